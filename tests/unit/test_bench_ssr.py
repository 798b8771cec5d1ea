"""``bench ssr``: how tasks are read and written, what is compared, what the figures say; on a toy model."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys_cli import error_of, install, table

from surefoot.bench import VARIANTS, Asked, Item, bench_ssr, own, read, variants
from surefoot.bench.report import summary
from surefoot.bench.run import engine as real_engine
from surefoot.bench.thinking import format_of
from surefoot.bench.timing import Timing
from surefoot.cli import main
from surefoot.errors import BadRequest
from surefoot.text import Codec
from surefoot.text.special import Special

SMALL = ["--no-own", "--max-tokens", "40", "--thinking-budget", "20", "--draft-budget", "4"]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = install(monkeypatch)
    made.model = table(made.codec, max_context=2000)
    made.identity, made.backend, made.folder = "toy", "table", None
    return made


def humaneval(path: Path, count: int = 2, pack: bool = False) -> str:
    lines = [{"task_id": f"HumanEval/{i}", "prompt": f"def f{i}(x):\n", "entry_point": f"f{i}"} for i in range(count)]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if pack else text)
    return str(path)


def classeval(path: Path) -> str:
    entry = {"task_id": "ClassEval_0", "skeleton": "class A:\n    def b(self):\n", "class_name": "A", "methods_info": []}
    path.write_text(json.dumps([entry]), encoding="utf-8")
    return str(path)


def longproc(path: Path, **entry: Any) -> str:
    path.write_text(json.dumps([entry]), encoding="utf-8")
    return str(path)


def test_our_own_prompts() -> None:
    found = own()
    assert len(found) >= 20
    assert len({item.id for item in found}) == len({item.text for item in found}) == len(found)
    assert {item.set for item in found} == {"own"}
    assert min(len(item.text) for item in found) > 100


def test_files_in_the_published_layouts(tmp_path: Path) -> None:
    for pack in (False, True):
        first, second = read("humaneval", humaneval(tmp_path / "h", pack=pack))
        assert (first.set, first.id, second.id) == ("humaneval", "HumanEval/0", "HumanEval/1")
        assert "def f0(x):" in first.text
        assert "canonical" not in first.text
    [task] = read("classeval", classeval(tmp_path / "c.json"))
    assert "class A" in task.text
    assert task.text.startswith("Write the Python class A")
    [task] = read("longproc", longproc(tmp_path / "p.json", problem_id="7A", pseudocode_lines=["read n", "print n"]))
    assert (task.set, task.id) == ("longproc pseudocode", "7A")
    assert "read n\nprint n" in task.text
    [task] = read("longproc", longproc(tmp_path / "d.json", nums=[3, 4], target=12, solution=["3*4=12"]))
    assert (task.set, task.id) == ("longproc countdown", "0")
    assert "3, 4" in task.text
    assert "3*4" not in task.text  # the solution is not told
    story = longproc(tmp_path / "t.json", story_components="Rooms: x", story="Ann goes.", question="Where is it?", answer=["x"])
    [task] = read("longproc", story)
    assert task.set == "longproc beliefs"
    assert "Ann goes.\n\nWhere is it?" in task.text


@pytest.mark.parametrize(
    "kind, text, message",
    [
        ("humaneval", '{"task_id": "a"}', "'prompt'"),
        ("humaneval", "no json", "line 1 is not JSON"),
        ("humaneval", "", "no tasks"),
        ("classeval", '{"a": 1}', "no list"),
        ("classeval", "[1]", "no object"),
        ("longproc", '[{"x": 1}]', "pseudocode_lines"),
        ("longproc", "[", "is not JSON"),
    ],
)
def test_bad_files(tmp_path: Path, kind: str, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadRequest, match=message):
        read(kind, str(path))


def test_a_missing_file() -> None:
    with pytest.raises(BadRequest, match="cannot read nowhere"):
        read("humaneval", "nowhere.jsonl")


def codec(template: str | None) -> Codec:
    from toys_cli import tokenizer

    return Codec(tokenizer(), Special(eos_ids=(256,), template=template))


def test_a_model_without_a_format_of_its_own_is_made_to_think() -> None:
    plain = codec("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]")
    written = format_of(plain)
    text = bytes(t for t in b"".join(plain.pieces[t] for t in written.prompt(plain, "Do it."))).decode()
    assert text.startswith("[system]First think")
    assert "[user]Do it.[assistant]<think>\n" in text
    params = written.params(50, 20)
    assert (params.thinking_budget, params.thinking_end, params.min_tokens) == (20, "\n</think>\n\n", 20)
    bare = codec(None)
    assert "\n\nDo it.\n\n<think>" in b"".join(bare.pieces[t] for t in format_of(bare).prompt(bare, "Do it.")).decode()


def test_a_model_that_was_taught_to_think_is_left_to_itself() -> None:
    taught = codec("{% for m in messages %}{{ m.content }}{% endfor %}[assistant]<think>{# </think> #}")
    written = format_of(taught)
    assert written.taught
    assert b"".join(taught.pieces[t] for t in written.prompt(taught, "Do it.")) == b"Do it.[assistant]<think>"
    params = written.params(50, 20)
    assert (params.thinking_end, params.min_tokens) == ("</think>", 0)
    prompt = written.prompt(taught, "Do it.")
    assert written.lengths(taught, prompt, taught.encode("abc</think>wxyz", special=False)) == (11, 4)
    assert written.lengths(taught, prompt, taught.encode("abc", special=False)) == (3, 0)


def test_variants_differ_in_one_thing_each() -> None:
    found = {v.name: v.drafter for v in variants(tuple(VARIANTS), budget=9, draft_tokens=70, interval=5, always=True)}
    assert (found["plain"], found["ngram"], found["auto"]) == ("none", "ngram", "auto")
    whole = "ssr:draft_budget=9,draft_tokens=70,always=true"
    assert found["ssr"] == whole
    for name, change in (("prefix", "suffix=false"), ("suffix", "prefix=false"), ("iterative", "interval=5")):
        assert set(found[f"ssr-{name}"].split(",")) == {*whole.split(","), change}
    assert [v.name for v in Asked().compared()] == ["plain", "auto", "ssr"]
    assert [v.name for v in Asked(ablations=True).compared()] == list(VARIANTS)
    assert [v.drafter for v in Asked(thinking_budget=100, names=("ssr",)).compared()][1].startswith("ssr:draft_budget=25,")
    with pytest.raises(BadRequest, match="unknown variant 'sir'"):
        variants(("sir",), budget=1, draft_tokens=1, interval=1, always=False)


def told(seconds: float, tokens: Sequence[int] = (1, 2, 3), **ssr: Any) -> Timing:
    return Timing(tuple(tokens), seconds, 2, 4, 2, ssr or None)


def test_a_summary() -> None:
    plain = [[told(2.0), told(3.0)], [told(4.0), told(5.0)]]
    stages = {f"{stage}_seconds": 0.5 for stage in ("thought", "draft", "verify", "continuation")}
    counts = {"drafts": 1, "draft_tokens": 7, "prefix_tokens": 2, "suffix_tokens": 3, **stages}
    fast = [[told(1.0, **counts), told(9.0, (1, 2, 4), **counts)], [told(4.0), told(4.0)]]
    found = summary(fast, plain)
    assert (found["answers"], found["answers_that_differ"]) == (4, 1)
    assert found["speedup"] == pytest.approx(6 / 5)  # of the lower times
    assert found["latency_reduction"] == pytest.approx(1 / 6)
    assert (found["median_speedup"], found["mean_speedup"], found["least_speedup"]) == (1.5, 1.5, 1.0)
    assert found["drafted_tokens_kept"] == 0.5
    own_figures = found["ssr"]
    assert (own_figures["forks"], own_figures["requests_forked"], own_figures["prefix_tokens"]) == (2, 2, 4)
    assert own_figures["seconds_by_stage"]["thought"] == 1.0
    assert "ssr" not in summary(plain, plain)


def test_the_command(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--humaneval", humaneval(tmp_path / "h.jsonl", 3), "--classeval", classeval(tmp_path / "c.json")]
    out = tmp_path / "figures.json"
    words = ["bench", "ssr", *SMALL, *files, "--limit", "2", "--ablations", "--always", "--out", str(out)]
    assert main(words) == 0
    shown, err = capsys.readouterr()
    assert "humaneval: 2 prompts" in shown
    assert "0 of 18 answers differ" in shown
    assert "prompt 3 of 3" in err
    figures = json.loads(out.read_text("utf-8"))
    assert set(figures["sets"]) == {"humaneval", "classeval"}
    assert set(figures["sets"]["humaneval"]) == set(VARIANTS)
    assert figures["sets"]["humaneval"]["ssr"]["ssr"]["forks"] == 2
    assert figures["sets"]["humaneval"]["ssr-iterative"]["ssr"]["forks"] > 2
    assert figures["lengths"]["classeval"]["prompts"] == 1
    assert figures["lengths"]["humaneval"]["answer"] > 0
    assert str(tmp_path) not in out.read_text("utf-8")
    assert figures["provenance"]["command"].startswith("surefoot bench ssr")


def test_sampling_with_a_seed_says_the_same(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["bench", "ssr", *SMALL, "--humaneval", humaneval(tmp_path / "h.jsonl"), "--always", "--temperature", "1", "--json"]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["asked"]["options"]["seed"] == 0
    assert figures["sets"]["humaneval"]["ssr"]["ssr"]["forks"] == 2


def test_an_answer_that_differs_is_status_1(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = SimpleNamespace(**{**vars(toy), "model": table(toy.codec, max_context=2000)})
    other.model.logits = other.model.logits.flip(0)

    def wrong(target: Any, variant: Any) -> Any:
        return real_engine(other if variant.name == "ssr" else target, variant)

    monkeypatch.setattr("surefoot.bench.run.engine", wrong)
    assert main(["bench", "ssr", *SMALL, "--humaneval", humaneval(tmp_path / "h.jsonl")]) == 1
    assert "2 of 4 answers differ" in capsys.readouterr().out


def test_tasks_that_are_too_long_are_left_out_and_counted(toy: SimpleNamespace) -> None:
    items = [Item("own", "short", "Say a."), Item("own", "long", "x" * 3000)]
    figures = bench_ssr(toy, items, Asked(max_tokens=12, thinking_budget=6, names=("ssr",)), lambda line: None)
    assert figures["left_out_for_length"] == 1
    assert figures["lengths"]["own"]["prompts"] == 1
    with pytest.raises(BadRequest, match="no task leaves room"):
        bench_ssr(toy, items[1:], Asked(max_tokens=12, thinking_budget=6), lambda line: None)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--no-own"], "no task to run"),
        (["--limit", "0"], "--limit 0"),
        (["--thinking-budget", "512"], "no room for an answer"),
        (["--max-tokens", "1"], "max_tokens"),
        (["--draft-budget", "-1"], "draft_budget"),
        (["--interval", "0"], "interval"),
        (["--variants", "sir"], "unknown variant"),
        (["--family", "odd"], "unknown thinking family"),
        (["--seed", "1"], "--seed belongs"),
        (["--temperature", "-1"], "temperature"),
        (["--humaneval", "missing.jsonl"], "cannot read"),
        (["--out", "no/such/folder/x.json"], "no such folder"),
    ],
)
def test_bad_input_is_one_line(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    status = main(["bench", "ssr", *words])
    assert message in error_of(capsys, status)
    assert toy.opened == 0  # told before a model is loaded


def test_the_kind_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["bench", "sir"])
    assert "invalid choice" in error_of(capsys, status)
