"""The installed command on the packaged model. The first run downloads and converts it into the shared cache."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src"
TEXT = "The old boat hall by the harbour has a red door, a green roof and three small windows that look out to the sea."


def command(*words: str, **changes: str) -> dict[str, Any]:
    """What to hand to subprocess."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **changes}
    return {"args": [sys.executable, "-m", "surefoot.cli", *words], "env": env, "text": True, "encoding": "utf-8"}


def run(*words: str, stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**command(*words, **changes), input=stdin, capture_output=True, timeout=280)


@cache
def generated(*words: str) -> dict[str, Any]:
    done = run("generate", "--json", "--max-tokens", "60", *words, stdin=f"Repeat this sentence twice: {TEXT}\n")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_drafting_changes_nothing_but_the_count_of_passes() -> None:
    plain, fast = generated("--drafter", "none"), generated("--drafter", "ngram", "--controller", "fixed")
    assert plain["token_ids"] == fast["token_ids"]
    assert plain["text"] == fast["text"]
    assert fast["drafter"] == "ngram"
    assert fast["stats"]["accepted_tokens"] > 0
    assert fast["stats"]["passes"] < plain["stats"]["passes"]


def test_stream_and_stats() -> None:
    done = run("generate", "--max-tokens", "60", "--stats", f"Repeat this sentence twice: {TEXT}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip("\n") == generated("--drafter", "none")["text"].rstrip("\n")
    assert re.search(r"^tokens/s +\d+\.\d \(\d+ tokens, \d+ passes\)$", done.stderr, re.M)
    assert re.search(r"^first token +\d+\.\d\d s", done.stderr, re.M)
    assert "Traceback" not in done.stderr


def listens_to_interrupts() -> None:
    """A test run in the background passes on that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupt_ends_cleanly() -> None:
    words = ("generate", "Count from one to a thousand.", "--max-tokens", "2000", "--ignore-eos", "--stats")
    process = subprocess.Popen(
        **command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listens_to_interrupts
    )
    assert process.stdout is not None
    start = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert start
    assert out.endswith("\n")
    assert "Traceback" not in err
    assert re.search(r"^tokens/s ", err, re.M)


def test_reader_that_goes_away() -> None:
    words = ("generate", "Count from one to a thousand.", "--max-tokens", "2000", "--ignore-eos")
    process = subprocess.Popen(**command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert "Error" not in err


def test_chat_reuses_the_first_turn() -> None:
    done = run("chat", "--max-tokens", "24", stdin="Name a colour.\nAnd another one.\n/exit\n")
    assert done.returncode == 0, done.stderr
    footers = re.findall(r"^\d+\.\d tokens/s · .*$", done.stdout, re.M)
    assert len(footers) == 2
    reused = re.search(r"reused (\d+) tokens", footers[1])
    assert reused is not None
    assert int(reused[1]) >= 32


def test_check_reads_headers_only() -> None:
    done = run("check", "smollm2-135m-instruct", "smollm2-135m-instruct", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["vocabulary"]["same"] is True
    memory = found["target"]["memory"]
    # 30 layers, 3 heads of 64 numbers, key and value
    assert memory["kv_per_token"] in (30 * 3 * 64 * 2 * 2, 30 * 3 * 64 * 2 * 4)


def test_models_shows_the_cached_model() -> None:
    done = run("models", "--json")
    assert done.returncode == 0, done.stderr
    found = {entry["ref"]: entry for entry in json.loads(done.stdout)}
    assert found["smollm2-135m-instruct"]["context"] == 8192


def test_prompt_longer_than_the_context() -> None:
    done = run("generate", " ".join(str(i) for i in range(5000)), "--raw")
    assert done.returncode == 2
    assert re.fullmatch(r"surefoot: error: the prompt has \d+ tokens but the context holds \d+; shorten it\n", done.stderr)


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "someone/some-model"])
def test_no_network_is_one_line(tmp_path: Path, model: str) -> None:
    nowhere = "http://127.0.0.1:9"
    changes = {"SUREFOOT_CACHE": str(tmp_path), "PIP_INDEX_URL": nowhere, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    changes |= {"HF_ENDPOINT": nowhere, "HF_HOME": str(tmp_path), "no_proxy": "127.0.0.1"}
    done = run("generate", "hi", "-m", model, **changes)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("surefoot: error: ")
    assert "check the network" in last


def test_bad_bytes_on_standard_input() -> None:
    done = subprocess.run(
        **{**command("generate"), "text": False, "encoding": None}, input=b"caf\xe9", capture_output=True, timeout=60
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == b"surefoot: error: standard input is not valid UTF-8 (byte 3 is 0xe9): save it as UTF-8, e.g. with iconv\n"
    )


def test_demo() -> None:
    done = run("demo", "--max-tokens", "24", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "identical tokens: yes"
    peak = re.search(r"^peak memory: (\d+\.\d\d) GB$", done.stdout, re.M)
    assert peak is not None
    assert float(peak[1]) < 2.5
