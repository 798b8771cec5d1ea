"""The command line on a toy model: what it prints, what it refuses, with which status."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from toys_cli import EOS, error_of, install, table, tokenizer

from surefoot import loader
from surefoot.backends.table import TableModel
from surefoot.cli import main
from surefoot.commands.answer import Answer
from surefoot.commands.report import guard, lines
from surefoot.commands.terminal import progress
from surefoot.core.completion import Completion, Usage
from surefoot.core.stats import Stats
from surefoot.errors import ModelNotFound
from surefoot.models import cache
from surefoot.text import Codec
from surefoot.text.special import Special


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return install(monkeypatch)


def test_version_and_help_answer_without_torch() -> None:
    program = "import sys; from surefoot.cli import main; s = main(sys.argv[1:]); sys.exit(s + 10 * ('torch' in sys.modules))"
    for words in (["--version"], ["--help"], ["generate", "--help"], ["chat", "--help"], ["check", "-h"], ["demo", "-h"]):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert "surefoot" in done.stdout


def test_generate_streams_what_the_model_says(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "--max-tokens", "40", "--drafter", "none"]) == 0
    plain, err = capsys.readouterr()
    assert re.fullmatch(r"[a-z]{40}\n", plain)
    assert err == ""
    for options in (["--drafter", "ngram"], ["--drafter", "suffix:k=3"], ["--no-stream"]):
        assert main(["generate", "hello", "--max-tokens", "40", *options]) == 0
        assert capsys.readouterr().out == plain


def test_generate_json(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "hello", "--max-tokens", "60", "--drafter", "ngram:max_n=2,k=4", "--controller", "fixed", "--json"]
    assert main([*words, "--temperature", "0.5", "--seed", "7", "-m", "toy"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"model", "drafter", "seed", "text", "token_ids", "finish_reason", "usage", "stats"}
    assert (found["model"], found["drafter"], found["seed"], found["finish_reason"]) == ("toy", "ngram", 7, "length")
    assert toy.codec.decode(found["token_ids"]) == found["text"]
    assert found["usage"]["completion_tokens"] == 60 == len(found["token_ids"])
    assert found["usage"]["prompt_tokens"] == len(toy.codec.chat([{"role": "user", "content": "hello"}]))
    assert found["stats"]["draft_tokens"] > 0
    main(["generate", "hello", "--max-tokens", "60", "--json", "--drafter", "none", "--temperature", "0.5", "--seed", "7"])
    again = json.loads(capsys.readouterr().out)
    assert again["token_ids"] == found["token_ids"]
    main(words)
    assert "seed" not in json.loads(capsys.readouterr().out)


def test_generate_stats_name_every_source(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "hello", "--max-tokens", "80", "--drafter", "ngram", "--controller", "fixed", "--stats", "--json"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    stats = json.loads(out)["stats"]
    assert f"mean length    {stats['mean_acceptance_length']:.2f} tokens a drafted pass ({stats['drafts']} drafts)" in err
    assert re.search(r"tokens/s +\d+\.\d \(80 tokens, \d+ passes\)", err)
    assert re.search(r"draft tokens +\d+% accepted \(\d+ of \d+\)", err)
    assert re.search(r"from ngram +\d+ of \d+ accepted", err)
    assert "first token" in err
    assert main(["generate", "hello", "--max-tokens", "80", "--drafter", "ngram:k=0", "--stats"]) == 0
    err = capsys.readouterr().err
    assert "from ngram     drafted nothing" in err
    assert "drafting did nothing here" in err
    assert main(["generate", "hello", "--drafter", "none", "--stats"]) == 0
    assert "drafting did nothing" not in capsys.readouterr().err


def test_prompt_from_file_and_standard_input(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("grüße", encoding="utf-8")

    def prompt_tokens(words: list[str], stdin: bytes = b"") -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        assert main(["generate", *words, "--json", "--max-tokens", "1"]) == 0
        return int(json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"])

    chat = len("<user>\n<assistant>")
    assert prompt_tokens(["-f", str(tmp_path / "prompt.txt")]) == chat + 7
    assert prompt_tokens([], b"four\n") == chat + 4
    assert prompt_tokens(["-"], b"four\r\n") == chat + 4
    assert prompt_tokens(["--raw"], b"four\n") == 5
    assert prompt_tokens(["--raw", "four"]) == 4
    assert prompt_tokens(["four", "--system", "be kind"]) == chat + 4 + len("<system>be kind\n")
    toy.codec.special = Special(eos_ids=(EOS,))
    assert prompt_tokens(["four"]) == 4


def test_stops(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "--max-tokens", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text, ids = found["text"], found["token_ids"]
    assert main(["generate", "hello", "--stop", text[4:6], "--stop", "0"]) == 0
    assert capsys.readouterr().out == text[: text.find(text[4:6])] + "\n"
    assert main(["generate", "hello", "--stop-token-ids", f"300,{ids[3]}"]) == 0
    assert capsys.readouterr().out == text[: ids.index(ids[3])] + "\n"
    toy.model = table(toy.codec, end=True)
    words = ["generate", "hello", "--temperature", "1", "--seed", "1", "--max-tokens", "200", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "stop"
    assert main([*words, "--ignore-eos"]) == 0
    assert json.loads(capsys.readouterr().out)["finish_reason"] == "length"


def test_trace_is_a_line_a_pass(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    words = ["generate", "hello", "--max-tokens", "50", "--drafter", "ngram", "--controller", "fixed", "--json"]
    assert main([*words, "--trace", str(file)]) == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(steps) == stats["passes"]
    assert sum(step["kept"] for step in steps) == 50
    assert sum(sum(step["accepted"]) for step in steps) == stats["accepted_tokens"] > 0
    assert all(len(step["candidates"]) == len(step["p"]) for step in steps)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_trace_is_drawn(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, told = tmp_path / "trace.svg", tmp_path / "trace.jsonl"
    words = ["generate", "hello", "--max-tokens", "40", "--drafter", "horizontal:of=ngram/suffix", "--controller", "fixed"]
    assert main([*words, "--trace-picture", str(file), "--trace", str(told), "--stats"]) == 0
    assert "from horizontal" not in capsys.readouterr().err
    steps = [json.loads(line) for line in told.read_text().splitlines()]
    sources = {source for step in steps for source in step["sources"]}
    assert sources == {"ngram", "suffix"}
    drawn = ElementTree.fromstring(file.read_text("utf-8"))
    nodes = [e.get("data-source") for e in drawn.iter() if e.get("data-source")]
    assert {*nodes} == {*sources, "target", "pending"}
    assert len(nodes) >= sum(len(step["candidates"]) for step in steps)
    assert main([*words, "-n", "2", "--temperature", "1", "--trace-picture", str(file)]) == 0
    assert "Answer 2" in file.read_text("utf-8")


def test_stats_tell_the_levels_of_a_cascade(capsys: pytest.CaptureFixture[str]) -> None:
    stats = Stats()
    stats.add_level("ngram", proposed=4)
    stats.add_level("model", passes=2, reviewed=4, accepted=3, proposed=5)
    stats.add_pass(["ngram", "model"], ["ngram", "target"])
    done = Completion("", (1, 2), "length", Usage(1, 2), stats, ("ngram", "target"))
    text = "\n".join(lines([Answer(done, 0.1, 0.2, False)] * 2, "ngram+model+cascade"))
    assert "  level ngram    proposed 8\n" in text
    assert "  level model    proposed 10, reviewed 8 in 4 passes and accepted 6 (75%)\n" in text
    assert "  level target   proposed 4, reviewed 4 in 2 passes and accepted 2 (50%)" in text
    assert "from cascade" not in text


def test_trace_on_a_full_disk(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "--no-stream", "--trace", "/dev/full"]) == 2
    assert re.fullmatch(r"surefoot: error: [^\n]*No space left on device[^\n]*\n", capsys.readouterr().err)


BAD = {
    "no command": [],
    "unknown command": ["generat"],
    "unknown option": ["generate", "x", "--temprature", "1"],
    "a word for a number": ["generate", "x", "--max-tokens", "many"],
    "empty prompt": ["generate", ""],
    "blank prompt": ["generate", "  \n"],
    "prompt twice": ["generate", "x", "-f", "y"],
    "no such file": ["generate", "-f", "no/such/file"],
    "prompt not UTF-8": ["generate", "caf\udce9"],
    "negative temperature": ["generate", "x", "--temperature", "-1"],
    "temperature NaN": ["generate", "x", "--temperature", "nan"],
    "top_p 0": ["generate", "x", "--top-p", "0"],
    "min_p 1": ["generate", "x", "--min-p", "1"],
    "top_k -2": ["generate", "x", "--top-k", "-2"],
    "no tokens": ["generate", "x", "--max-tokens", "0"],
    "empty stop": ["generate", "x", "--stop", ""],
    "stop ids": ["generate", "x", "--stop-token-ids", "a"],
    "unknown rule": ["generate", "x", "--verification", "lenient"],
    "greedy rule, warm": ["generate", "x", "--verification", "greedy", "--temperature", "1"],
    "json and stream": ["generate", "x", "--json", "--stream"],
    "trace nowhere": ["generate", "x", "--trace", "no/such/folder/trace"],
    "chat, temperature": ["chat", "--temperature", "-1"],
    "demo, repeats": ["demo", "--repeats", "0"],
}


@pytest.mark.parametrize("words", BAD.values(), ids=list(BAD))
def test_bad_words_cost_no_loading(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    error_of(capsys, main(words))
    assert toy.opened == 0


REFUSED = {
    "unknown drafter": (["--drafter", "ngran"], "did you mean 'ngram'"),
    "unknown drafter option": (["--drafter", "ngram:size=3"], "size"),
    "drafter option": (["--drafter", "ngram:max_n=0"], "max_n"),
    "k < 0": (["--drafter", "ngram:k=-1"], "give 0"),
    "draft-max < 0": (["--draft-max", "-3"], "give 0"),
    "draft too long": (["--num-speculative-tokens", "64"], "takes in a pass (63)"),
    "model drafter alone": (["--drafter", "model"], "draft_model"),
    "unknown controller": (["--controller", "fixd"], "did you mean 'fixed'"),
    "prompt too long": (["--raw", "x" * 600], "600 tokens but the context holds 600"),
    "system and raw": (["--raw", "x", "--system", "y"], "--system cannot be honoured"),
}


@pytest.mark.parametrize("words, fix", REFUSED.values(), ids=list(REFUSED))
def test_refusals_name_the_fix(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str], fix: str) -> None:
    prompt = [] if "--raw" in words else ["hello"]
    assert fix in error_of(capsys, main(["generate", *prompt, *words]))


def test_draft_with_another_vocabulary(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Codec(tokenizer(swap=True), Special(eos_ids=(EOS,)))
    draft = SimpleNamespace(model=toy.model, codec=other, calibration=toy.calibration, path=Path("draft"))
    monkeypatch.setattr(loader, "open_target", lambda ref, *a, **k: draft if ref == "draft" else toy)
    assert "ids differ, the first is 10" in error_of(
        capsys, main(["generate", "hello", "--drafter", "model:vocab=equal", "-md", "draft"])
    )
    draft.codec = toy.codec
    assert main(["generate", "hello", "-md", "draft", "--max-tokens", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["drafter"] == "model+suffix+lookahead+hybrid+grammar"
    assert found["stats"]["acceptance_rate"] == 1.0


@pytest.mark.parametrize(
    "failure, told",
    [
        (OSError(errno.ENOSPC, "No space left on device", "somewhere"), "No space left on device (somewhere)"),
        (cache.disk_full(Path("here")), "no space left on the disk of here: free some, or set SUREFOOT_CACHE"),
        (ModelNotFound("two\nlines"), "two lines"),
        (MemoryError(), "no memory left"),
    ],
)
def test_failures_are_one_line(
    toy: SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    told: str,
) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise failure

    monkeypatch.setattr(loader, "open_target", fail)
    assert told in error_of(capsys, main(["generate", "hello"]))


def test_broken_download_and_unknown_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 60)
    assert "download it again" in error_of(capsys, main(["generate", "x", "-m", str(broken)]))
    assert "download it again" in error_of(capsys, main(["check", str(broken)]))
    assert "did you mean" in error_of(capsys, main(["generate", "x", "-m", "smollm2"]))
    assert "broken.gguf" in error_of(capsys, main(["check", str(tmp_path / "brokem.gguf")]))
    assert "unknown backend" in error_of(capsys, main(["generate", "x", "--backend", "cuda"]))


def press(times: list[int]) -> Callable[[TableModel], None]:
    """Make a model whose passes of these numbers send Ctrl-C."""

    def wrap(model: TableModel) -> None:
        score, count = model.score, iter(range(1, 1000))

        def pressing(*args: Any, **options: Any) -> Any:
            if next(count) in times:
                os.kill(os.getpid(), signal.SIGINT)
            return score(*args, **options)

        model.score = pressing  # type: ignore[method-assign]

    return wrap


@pytest.fixture
def interruptible() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_keeps_what_was_generated(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    press([10])(toy.model)
    assert main(["generate", "hello", "--drafter", "none", "--stats"]) == 130
    out, err = capsys.readouterr()
    assert re.fullmatch(r"[a-z]{10}\n", out)
    assert "(10 tokens, 10 passes)" in err
    assert toy.model.open_slots == 1  # kept for a later prompt with the same beginning
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    press([3])(toy.model)
    assert main(["generate", "hello", "--json", "--drafter", "none"]) == 130
    found = json.loads(capsys.readouterr().out)
    assert (found["finish_reason"], len(found["token_ids"])) == ("abort", 3)


@pytest.mark.usefixtures("interruptible")
def test_interrupt_while_loading(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "open_target", lambda *a, **k: os.kill(os.getpid(), signal.SIGINT))
    assert main(["generate", "hello"]) == 130
    assert capsys.readouterr() == ("", "\n")


class Pipe(io.StringIO):
    """Standard output whose writes fail."""

    def __init__(self, failure: OSError) -> None:
        super().__init__()
        self._failure = failure

    def write(self, text: str) -> int:
        raise self._failure


def test_reader_gone_and_disk_full(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Pipe(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert main(["generate", "hello"]) == 141
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys, "stdout", Pipe(OSError(errno.ENOSPC, "No space left on device")))
    assert "No space left on device" in error_of(capsys, main(["generate", "hello"]))


def chat(monkeypatch: pytest.MonkeyPatch, lines: str, *words: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["chat", "--max-tokens", "30", *words])


def test_chat_reuses_the_conversation(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat(monkeypatch, "hello\n\nand now?\n/stats\n/reset\n/stats\n/what\nhello\n/exit\nunread\n") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert "\x1b" not in out
    first = lines[0]
    assert re.fullmatch(r"[a-z]{30}", first)
    drafted = r"\d+% draft tokens accepted · drafted in \d+ of \d+ passes · \d\.\d\d tokens a pass"
    assert re.match(rf"\d+\.\d tokens/s · ({drafted}|nothing drafted)", lines[1])
    assert "reused" not in lines[1]
    # all that was sent and said before is in the cache, but for the pending last token
    before = len(toy.codec.chat([{"role": "user", "content": "hello"}])) + 29
    assert f"reused {before} tokens" in lines[3]
    assert any(re.match(r"tokens/s .*\(60 tokens,", line) for line in lines)
    assert lines.count("(a new conversation)") == 1
    assert "(nothing was said yet)" in lines
    assert any(line.startswith("(/reset forgets") for line in lines)
    assert lines[-2] == first
    assert "unread" not in out


def test_chat_goes_on_after_an_error(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat(monkeypatch, f"{'x' * 700}\nhello\n") == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"surefoot: error: the prompt has \d+ tokens [^\n]+\n", err)
    assert re.match(r"[a-z]{30}\n", out)
    toy.codec.special = Special()
    assert "no chat template" in error_of(capsys, chat(monkeypatch, "hello\n"))


@pytest.mark.usefixtures("interruptible")
def test_chat_interrupt_stops_the_answer_only(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    press([5])(toy.model)
    assert chat(monkeypatch, "hello\nmore\n", "--drafter", "none") == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"[a-z]{5}", lines[0])
    assert lines[1].endswith("· stopped")
    assert re.fullmatch(r"[a-z]{30}", lines[2])
    assert re.search(r"reused \d\d tokens", lines[3])


def test_colours_follow_the_source(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--drafter", "ngram", "--controller", "fixed", "--stop", "0")
    chat(monkeypatch, "hello\n", *words)
    plain = capsys.readouterr().out.splitlines()[0]
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    chat(monkeypatch, "hello\n", *words)
    coloured = capsys.readouterr().out.splitlines()[0]
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    green = "".join(re.findall(r"\x1b\[32m([^\x1b]*)", coloured))
    assert main(["generate", "hello", "--max-tokens", "30", *words, "--json"]) == 0
    assert len(green) == json.loads(capsys.readouterr().out)["stats"]["accepted_tokens"] > 0
    monkeypatch.setenv("NO_COLOR", "1")
    chat(monkeypatch, "hello\n", *words)
    assert capsys.readouterr().out.splitlines()[0] == plain


def folder(path: Path, made: Tokenizer, *, vocab: int = 257, context: int = 512, hidden: int = 32) -> str:
    """A transformers folder with headers, a tokenizer and next to no weights."""
    path.mkdir()
    config = {"model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 3, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "vocab_size": vocab, "max_position_embeddings": context, "eos_token_id": EOS}
    (path / "config.json").write_text(json.dumps(config))
    made.save(str(path / "tokenizer.json"))
    save_file({"w": np.zeros((hidden, 10), np.float32)}, path / "model.safetensors")
    return str(path)


def test_check_plans_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder(tmp_path / "target", tokenizer())
    words = ["check", target, "--backend", "torch", "--kv-tokens", "100", "--draft-max", "7"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    memory = found["target"]["memory"]
    assert (memory["kv_per_token"], memory["kv"]) == (2 * 3 * 2 * 8 * 4, 100 * 384)
    assert memory["logits"] == 8 * 257 * 4
    assert memory["weights"] == 320 * 4
    assert memory["total"] == 100 * 384 + 8 * 257 * 4 + 320 * 4
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "vocabulary 257 (tokenizer 257), context 512, no chat template" in out
    assert out.splitlines()[-1] == "fits"


def test_check_tells_whether_a_draft_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder(tmp_path / "target", tokenizer(), hidden=64)
    padded = folder(tmp_path / "padded", tokenizer(), vocab=320, context=128)
    assert main(["check", target, padded]) == 0
    out = capsys.readouterr().out
    assert "same vocabulary (257 tokens); embeddings of 257 and 320 rows" in out
    assert "the draft holds 128 of 512 tokens" in out
    assert "the draft has 50% of the target's parameters" in out
    other = folder(tmp_path / "other", tokenizer(swap=True))
    assert main(["check", target, "--draft-model", other]) == 0
    out = capsys.readouterr().out
    assert "2 ids differ, the first is 10" in out
    assert "greedy requests: intersection (one tokenizer but for 2 ids: 257 tokens, 100% of the target's vocabulary" in out
    assert out.splitlines()[-1] == "fits"
    assert main(["check", target, other, "--vocab", "equal", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["fits"], found["vocabulary"]["compatible"], found["vocabulary"]["differing"]) == (False, False, 2)
    assert (found["vocabulary"]["greedy"]["way"], found["vocabulary"]["common"]) == ("intersection", 257)
    assert "2 ids differ" in found["problems"][0]
    for words in ([other, "--draft-model", other], [other, "--vocab", "x"]):
        error_of(capsys, main(["check", target, *words]))
    small = folder(tmp_path / "small", tokenizer(), vocab=100)
    assert main(["check", small]) == 1
    assert "use its own tokenizer" in capsys.readouterr().out
    assert main(["check", target, "--kv-tokens", str(10**12)]) == 1
    assert "lower --kv-tokens" in capsys.readouterr().out
    for words in (["--kv-tokens", "0"], ["--draft-max", "-1"], ["--backend", "x"], ["--precision", "int3"]):
        error_of(capsys, main(["check", target, *words]))
    error_of(capsys, main(["check", str(tmp_path)]))


def test_models_lists_the_packaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert main(["models"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"smollm2-135m-instruct +packaged .*to download +not here yet: surefoot models --fetch smollm2", out)
    (tmp_path / "converted").mkdir()
    folder(tmp_path / "converted" / "mine", tokenizer())
    (tmp_path / "converted" / "torn").mkdir()
    assert main(["models", "--json"]) == 0
    found = {Path(entry["ref"]).name: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["mine"]["vocab_size"] == 257
    assert "broken" in found["torn"]
    assert found["smollm2-135m-instruct"]["cached"] is False
    assert main(["models"]) == 0
    assert "broken" in capsys.readouterr().out


def test_models_fetch(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--fetch", "toy"]) == 0
    assert "toy is ready: float64 on cpu, about 100 tokens/s plain" in capsys.readouterr().out


def test_progress_without_a_terminal_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as tell:
        for done in range(3):
            tell("downloading x", done, 3)
        tell("converting x", 0, None)
    assert capsys.readouterr() == ("", "surefoot: downloading x\nsurefoot: converting x\n")


def test_demo_compares_every_pair(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.model = table(toy.codec, max_context=2000)
    assert main(["demo", "--max-tokens", "24", "--repeats", "2"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "identical tokens: yes"
    assert re.search(r"^plain +\d+\.\d tokens/s\nspeculative +\d+\.\d tokens/s\nratio +\d+\.\d\d$", out, re.M)
    assert re.search(r"^peak memory: \d+\.\d\d GB$", out, re.M)
    assert toy.model.open_slots == 0
    # a drafter that changes what is said must show
    assemble = loader.assemble

    def other(target: Any, drafter: str) -> Any:
        if drafter == "none":
            return assemble(target, drafter)
        changed = SimpleNamespace(**{**vars(toy), "model": TableModel(toy.model.logits.flip(0), max_context=2000)})
        return assemble(changed, drafter)

    monkeypatch.setattr(loader, "assemble", other)
    assert main(["demo", "--max-tokens", "24", "--repeats", "1"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "identical tokens: no"


def test_the_breaker_is_told_where_it_acted() -> None:
    def engine(opened: int) -> SimpleNamespace:
        stats = {"state": "open", "opened": opened, "probes": 2, "closed": 1, "gain": 0.9}
        return SimpleNamespace(controller=SimpleNamespace(stats=lambda: stats))

    assert guard(engine(0)) == guard(SimpleNamespace(controller=None)) == []
    assert guard(engine(3)) == [
        "breaker        open: drafting lost against plain decoding 3 times, was tried again 2 times, resumed 1 times"
    ]
