"""The heads that come with the package: found by name, as good as their cards say, alone and in cascades; no token changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surefoot.loader import Target, assemble, needs, open_target
from surefoot.models import content, fetch, resolve, shipped

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"
LENGTH, EVERY = 64, 7
HEADS = ("medusa", "hydra", "eagle", "distilled", "early_exit", "early_exit_deep")
WHOLE = (
    "auto",
    "medusa",
    "eagle",
    "hydra",
    "distilled",
    "hybrid:of=suffix/hydra",
    "hybrid:of=suffix/distilled/medusa,ask=0.3",
    "cascade:of=eagle/suffix",
    "cascade:of=hydra/ngram,steps=2",
    "horizontal:of=hydra/suffix,lengths=2/4",
    "dytc:of=hydra/eagle/suffix",
)
CUT = ("early_exit", "early_exit_deep", "two_exit", "cascade:of=early_exit/suffix")
"""Drafters that leave the model early, for which it is cut."""
SPECS = (*WHOLE, *CUT)

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def target() -> Target:
    return open_target(MODEL, **needs(WHOLE))


@pytest.fixture(scope="module")
def cut() -> Target:
    return open_target(MODEL, **needs(CUT))


@pytest.fixture(scope="module")
def prompts(target: Target) -> list[list[int]]:
    lines = (ROOT / "benchmarks" / "prompts.jsonl").read_text("utf-8").splitlines()[::EVERY]
    return [target.codec.prompt([{"role": "user", "content": json.loads(line)["prompt"]}]) for line in lines]


@pytest.fixture(scope="module")
def plain(target: Target, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    engine = assemble(target, "none")
    return [engine.generate(p, max_tokens=LENGTH, temperature=0.0).token_ids for p in prompts]


@pytest.mark.parametrize("controller", ["fixed", "auto"])
@pytest.mark.parametrize("spec", SPECS)
def test_no_token_changes(target, cut, prompts, plain, spec, controller):
    """Cut or whole, the model is the same."""
    engine = assemble(cut if spec in CUT else target, spec, controller=controller)
    found = [engine.generate(p, max_tokens=LENGTH, temperature=0.0) for p in prompts]
    engine.close()
    assert [c.token_ids for c in found] == plain
    if controller == "fixed":
        kept = {name for c in found for name, counts in c.stats.by_source.items() if counts.accepted_tokens}
        named = set(spec.replace("=", "/").replace(",", "/").replace(":", "/").split("/"))
        heads = set(HEADS) & ({"auto": {"hydra"}, "two_exit": {*HEADS[4:]}}.get(spec, named))
        assert kept & heads, "no token of a trained head was ever right"


@pytest.mark.parametrize("name", HEADS)
def test_it_is_about_as_often_right_as_its_card_says(target, cut, prompts, name):
    """The card counts all places of unknown text; an engine drafts behind refusals, where it is harder."""
    card = json.loads((shipped(fetch(resolve(MODEL))).heads[name] / "card.json").read_text("utf-8"))
    engine = assemble(cut if name in CUT else target, name, controller="fixed", num_speculative_tokens=1)
    stats = [engine.generate(p, max_tokens=LENGTH, temperature=0.0).stats for p in prompts]
    engine.close()
    rate = sum(s.accepted_tokens for s in stats) / sum(s.draft_tokens for s in stats)
    assert rate > 0.6 * card["best"]["acceptance"][0]


def test_every_head_has_a_card_and_all_are_small():
    found = shipped(fetch(resolve(MODEL)))
    assert set(HEADS) == set(found.heads)
    assert found.auto == ("hydra",)
    for folder in found.heads.values():
        card = json.loads((folder / "card.json").read_text("utf-8"))
        assert card["target"]["content"] == content(fetch(resolve(MODEL)))
        assert len(card["curve"]) > 3
        assert card["command"].startswith("surefoot train")
        assert card["measured"], "what it gains was not measured"
        assert (folder / "README.md").is_file()
    assert sum(f.stat().st_size for f in (ROOT / "weights").rglob("*") if f.is_file()) < 60e6
