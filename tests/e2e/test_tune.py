"""The tuner on the packaged model: a quick run writes a configuration with which the same tokens come."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from surefoot.cli import main

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["generate", "Count from 1 to 9, twice.", "--max-tokens", "24", "--json", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_quick_run_writes_a_configuration_that_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "surefoot.toml"
    assert main(["tune", "--quick", "--json", "--max-tokens", "32", "--output", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    measured = [o for o in found["options"] if o["measured"] is not None]
    assert all(o["equal"] for o in measured)
    assert {"none", "auto"} <= {o["drafter"] for o in measured}
    assert {"ngram", "suffix", "auto"} == set(found["predicted_by_length"])
    for curve in found["predicted_by_length"].values():
        assert len(curve) == 13
        assert curve[0] == 1.0
        assert max(curve) > 1.0  # some of these prompts are copied from
    chosen = found["recommended"]
    # the controller is preferred within a margin
    assert chosen["measured"] >= max(o["measured"] for o in measured) / 1.031
    written = tomllib.loads(file.read_text("utf-8"))
    assert written["drafting"]["drafter"].partition(":")[0] == chosen["drafter"]
    tuned = answer(capsys, "--config", str(file))
    assert tuned["token_ids"] == answer(capsys, "--drafter", "none")["token_ids"]
