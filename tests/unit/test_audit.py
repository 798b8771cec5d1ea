"""The auditor on toys: prompts, teacher forcing, verdicts, other engines' outputs, the command."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from toys import Custom, ToyCodec, tree

from surefoot import loader
from surefoot.audit import SUITES, Item, audit, audit_pairs, generated, read
from surefoot.audit.classify import BUG, OK, TIE, Judge
from surefoot.audit.force import Forcer, Position
from surefoot.audit.pairs import ulp
from surefoot.audit.subject import Subject
from surefoot.audit.suite import KINDS
from surefoot.audit.tracks import Shape
from surefoot.backends.table import TableModel
from surefoot.cli import main
from surefoot.control.fixed import FixedController
from surefoot.core import engine as engine_module
from surefoot.core import verify as verify_module
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need, Scores, Verdict
from surefoot.core.tree import DraftTree
from surefoot.errors import BadRequest
from surefoot.loader import Target

TABLE = TableModel.random(7, order=2, seed=3, sharpness=1.5)
PROMPTS = [Item([1, 2, 3, 1, 2, 3, 1, 2]), Item([0, 5, 0, 5, 0]), Item([4])]
CODEC = ToyCodec(["a", "b", "c ", "d", "é", "f", "\n"])


class Noisy(TableModel):
    """Logits depend a little on the shape of the pass: not exact, and no bug."""

    def __init__(self, logits: torch.Tensor, order: int, size: float, chains: bool = True) -> None:
        super().__init__(logits, order)
        self.size, self.chains = size, chains
        self.traits = replace(self.traits, exact=False)

    def score(self, slots: Sequence[Any], forest: Any, need: Need) -> Scores:
        scores = super().score(slots, forest, need)
        narrow = forest.nodes == 1 or (not self.chains and all(forest.linear))
        if narrow:
            return scores
        generator = torch.Generator().manual_seed(forest.nodes)
        noise = 2 * torch.rand(scores.logits.shape, generator=generator, dtype=torch.float64) - 1
        return Scores(scores.logits + self.size * noise)


def close_table(seed: int = 0) -> torch.Tensor:
    """The two best logits are often close."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(64, 7, generator=generator, dtype=torch.float64)
    best = logits.argmax(-1)
    other = (best + 1) % 7
    for row in range(0, 64, 2):
        logits[row, other[row]] = logits[row, best[row]] - 0.01
    return logits


shipped = verify_module.walk


def first_child(tree, choose):
    """A verifier that accepts whatever was drafted first."""
    return Verdict((1,), choose(1, 1)) if len(tree) > 1 else shipped(tree, choose)


def wild(row, plan):
    rng = np.random.default_rng(row.tokens)
    return DraftTree.chain([row.tokens[-1], *rng.integers(0, 7, plan.depth).tolist()], source=1)


# prompts


def test_suites_are_fixed_and_of_all_kinds() -> None:
    standard, quick = SUITES["standard"](), SUITES["quick"]()
    assert (len(standard), len(quick)) == (60, 12)
    assert [i.prompt for i in standard] == [i.prompt for i in SUITES["standard"]()]
    assert {i.kind for i in standard} == {i.kind for i in quick} == set(KINDS)
    assert len({str(i.prompt) for i in standard}) == 60
    assert "serving" * 48 in [i.prompt for i in standard]
    assert any(any(ord(c) > 0x2000 for c in str(i.prompt)) for i in standard)
    # four letters of such text make at least one token of a common tokenizer
    assert all(len(str(i.prompt)) > 400 * 4 for i in standard if i.kind == "long")


def test_generated_prompts_follow_the_seed() -> None:
    one, same, other = generated(9, 1, 50), generated(9, 1, 50), generated(9, 2, 50)
    assert one == same
    assert [i.prompt for i in one] != [i.prompt for i in other]
    drawn = [i.prompt for i in one if i.kind == "random tokens"]
    assert drawn
    assert all(0 <= t < 50 for prompt in drawn for t in prompt)


def test_reading_prompts(tmp_path: Path) -> None:
    lines = [
        {"prompt": "one", "id": 7},
        {"messages": [{"role": "user", "content": "two"}]},
        {"question_id": 81, "category": "writing", "turns": ["three\u2028", "not this"]},
        {"prompt_token_ids": [1, 2], "prompt": "ignored"},
    ]
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps(x, ensure_ascii=False) for x in lines) + "\n\n")
    found = read(str(file))
    assert [i.prompt for i in found] == ["one", [{"role": "user", "content": "two"}], "three\u2028", [1, 2]]
    assert [i.id for i in found] == ["7", None, "81", None]
    text = tmp_path / "p.txt"
    text.write_text("first\n\nsecond\n")
    assert [i.prompt for i in read(str(text))] == ["first", "second"]


@pytest.mark.parametrize(
    "line, told",
    [
        ("{", "line 1 is not JSON"),
        ('{"text": "x"}', "line 1: there is no prompt"),
        ('{"prompt": ""}', "prompt must be a text"),
        ('{"turns": []}', "turns must be"),
        ('{"prompt_token_ids": [1, "x"]}', "prompt_token_ids must be token ids"),
        ("3", "give a string or an object"),
        ("", "has no prompts"),
    ],
)
def test_bad_prompt_files(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(BadRequest, match=re.escape(told)):
        read(str(tmp_path / "p.jsonl"))


# teacher forcing


@pytest.mark.parametrize("shape", [Shape(1), Shape(3), Shape(1, 1), Shape(4, 2), Shape(64, chunk=2)])
def test_every_shape_scores_the_same_text(shape: Shape) -> None:
    output = Engine(TABLE).generate([1, 2, 3], max_tokens=20).token_ids
    before = TABLE.open_slots
    forced = Forcer(Subject.of(TABLE), [shape])([1, 2, 3], output, SamplingParams())
    assert [p.best for p in forced.positions] == list(output)
    assert forced.noise == 0.0
    assert forced.flips == 0
    assert TABLE.open_slots == before


def test_gaps_are_those_of_the_shaped_logits() -> None:
    params = SamplingParams(repetition_penalty=1.5, logit_bias={2: 1.0})
    output = [3, 3, 0, 2]
    forced = Forcer(Subject.of(TABLE), [])([1, 2], output, params)
    history = [1, 2]
    for token, position in zip(output, forced.positions, strict=True):
        x = TABLE.next_logits(history).numpy().copy()
        x[2] += 1.0
        for seen in set(history):
            x[seen] = x[seen] / 1.5 if x[seen] > 0 else x[seen] * 1.5
        assert position.best == int(x.argmax())
        assert position.gap == pytest.approx(x.max() - x[token])
        history.append(token)


def test_gap_in_a_race_is_the_least_raise() -> None:
    params = SamplingParams(temperature=0.7, top_k=3, seed=5)
    [plain] = [Engine(TABLE).generate([1, 2], max_tokens=1, temperature=0.7, top_k=3, seed=5).token_ids]
    subject = Subject.of(TABLE)
    for token in range(7):
        [position] = Forcer(subject, [])([1, 2], [token], params).positions
        assert position.best == plain[0]
        if token == plain[0]:
            assert position.gap == 0.0
            continue
        for by, wins in ((position.gap - 1e-3, False), (position.gap + 1e-3, True)):
            lifted = TABLE.logits.clone()
            lifted[1 * 8 + 2, token] += by
            found = Engine(TableModel(lifted, 2)).generate([1, 2], max_tokens=1, temperature=0.7, top_k=3, seed=5)
            assert (found.token_ids[0] == token) is wins


# verdicts


def test_bf16_neighbours_are_a_tie_and_five_per_cent_are_not() -> None:
    judge = Judge(exact=False)
    for size in (0.7, 3.0, 18.0, 37.5):
        unit = ulp(size, "bf16")
        here = torch.tensor(size).bfloat16()
        assert unit == float(torch.nextafter(here, torch.tensor(1e9).bfloat16()) - here)
        assert judge.judge(Position(1, 0, unit, 0.0, False), unit)[0] == TIE
        assert judge.judge(Position(1, 0, 0.05 * size, 0.0, False), unit)[0] == BUG
    assert ulp(1.0, "f16") == 2.0**-10
    assert ulp(-5.0, "f32") == 2.0**-21
    assert ulp(0.0, "bf16") == 0.0


def test_verdicts() -> None:
    judge = Judge(exact=False, noise=0.5)
    assert judge.judge(Position(1, 1, 0.0, 0.0, False))[0] == OK
    assert judge.judge(Position(1, 0, 0.2, 0.1, True))[0] == TIE
    assert "draft-free pass flips it" in judge.judge(Position(1, 0, 0.2, 0.1, True))[2]
    assert judge.judge(Position(1, 0, 0.9, 0.1, False))[0] == TIE  # within the noise of the run
    assert judge.judge(Position(1, 0, 1.1, 0.1, False))[0] == BUG
    assert judge.judge(Position(1, 0, math.inf, 0.1, False))[0] == BUG
    assert judge.judge(Position(1, 0, 5.0, 0.1, False, reached=True))[0] == TIE
    exact = Judge(exact=True)
    assert exact.judge(Position(1, 0, 1e-9, 0.0, False))[0] == BUG
    assert exact.judge(Position(1, 0, 0.0, 0.0, False))[0] == BUG  # equal logits: the smallest id wins


def test_exact_mode_without_faults() -> None:
    table = TableModel(TABLE.logits, 2)
    report = audit(table, PROMPTS, SamplingParams(max_tokens=40), lengths=(1, 4), rows=2)
    assert report.ok, report.table()
    assert (report.differing, report.ties, report.bugs, report.noise) == (0, 0, 0, 0.0)
    assert {r.name for r in report.results} >= {"plain", "ngram k=1", "suffix-tree k=4", "self k=4"}
    assert next(r for r in report.results if r.name == "self k=4").accepted > 0
    assert [s.name for s in report.skipped if s.name == "auto"]
    assert table.open_slots == 0
    json.dumps(report.to_dict())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_noise_is_explained_as_ties(seed: int) -> None:
    report = audit(
        Noisy(close_table(seed), 2, 0.02), PROMPTS, SamplingParams(max_tokens=60), drafters=["ngram"], lengths=(1, 4)
    )
    assert report.ok, report.table()
    assert report.differing
    assert report.ties
    assert 0.01 < report.noise <= 0.04
    assert any(r.flips for r in report.results)
    assert "twice the" in report.table()


def test_noise_of_tree_passes_is_measured_in_tree_passes() -> None:
    target = Noisy(close_table(), 2, 0.02, chains=False)
    report = audit(target, PROMPTS, SamplingParams(max_tokens=60), drafters=["suffix-tree"], lengths=(4,))
    assert report.ok, report.table()
    assert report.differing
    assert report.noise > 0


def test_seeded_draws_with_noise_are_ties() -> None:
    params = SamplingParams(max_tokens=60, temperature=0.8, top_p=0.9, seed=3)
    report = audit(Noisy(close_table(), 2, 0.05), PROMPTS, params, drafters=["ngram"], lengths=(1, 4))
    assert report.ok, report.table()
    assert report.differing


def test_a_difference_in_exact_mode_is_a_bug_however_small() -> None:
    target = Noisy(close_table(), 2, 0.02)
    target.traits = replace(target.traits, exact=True)
    report = audit(target, PROMPTS, SamplingParams(max_tokens=60), drafters=["ngram"], lengths=(4,))
    assert not report.ok
    assert report.broken
    assert next(r for r in report.results if r.name == "ngram k=4").bugs


def test_a_wrong_verifier_is_not_excused_by_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "walk", first_child)
    drafter = Custom(wild)
    report = audit(Noisy(close_table(), 2, 0.02), PROMPTS, SamplingParams(max_tokens=30), drafters=[drafter], lengths=(3,))
    assert report.bugs
    bugs = [f for r in report.results for f in r.findings if f.verdict == BUG]
    assert all(f.gap > f.tolerance for f in bugs)
    assert any(not f.first for f in bugs)  # every position is looked at, not only the first


def test_nodes_that_see_their_siblings() -> None:
    """A tree mask with a hole: the logits of a node depend on a token that is not among its ancestors."""

    class Leaky(TableModel):
        def score(self, slots: Sequence[Any], forest: Any, need: Need) -> Scores:
            scores = super().score(slots, forest, need)
            if not all(forest.linear):
                return Scores(scores.logits + 1e-3 * float(forest.tokens.sum()))
            return scores

    report = audit(Leaky(TABLE.logits, 2), PROMPTS, SamplingParams(max_tokens=20), drafters=["ngram"], lengths=(2,))
    assert not report.ok
    assert "beside a path" in report.broken


def test_ends_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text past a stop string, as after a verifier that looks for stops once a pass."""
    options = SamplingParams(max_tokens=30, stop=("b",))
    assert audit(TABLE, PROMPTS, options, drafters=["ngram"], codec=CODEC).ok
    commit = engine_module.Row.commit

    def late(self, tokens, sources):
        if len(tokens) < 2:
            return commit(self, tokens, sources)
        stops, self.params = self.params, replace(self.params, stop=())
        kept = commit(self, tokens, sources)
        self.params = stops
        return kept

    monkeypatch.setattr(engine_module.Row, "commit", late)
    report = audit(TABLE, PROMPTS, options, drafters=[Custom(oracle)], lengths=(4,), codec=CODEC)
    assert not report.ok
    assert any(f.token is None and "tokens" in f.why for r in report.results for f in r.findings)


def oracle(row, plan):
    tokens = list(row.tokens)
    for _ in range(plan.depth):
        tokens.append(int(TABLE.next_logits(tokens).argmax()))
    return tree([row.tokens[-1], *tokens[len(row.tokens) :]], list(range(-1, plan.depth)))


def test_an_engine_is_audited_as_it_is() -> None:
    engine = Engine(TABLE, [Custom(oracle)], FixedController("custom", 5), codec=CODEC)
    report = audit(engine, PROMPTS, SamplingParams(max_tokens=30, logprobs=1, n=2))
    assert report.ok, report.table()
    found = next(r for r in report.results if r.name == "engine")
    assert (found.answers, found.tokens) == (6, 180)
    assert found.mean_length == pytest.approx(6, abs=0.5)


def test_a_drafter_that_breaks_is_a_bug() -> None:
    broken = Custom(lambda row, plan: tree([row.tokens[-1], 99], [-1, 0]))
    table = TableModel(TABLE.logits, 2)
    report = audit(table, PROMPTS, SamplingParams(max_tokens=30), drafters=[broken], lengths=(2,))
    assert not report.ok
    assert "drafted token ids must lie in" in report.table()
    assert table.open_slots == 0


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"samples": 5}, "samples need draws"),
        ({"rows": 0}, "rows=0"),
        ({"lengths": (0,)}, "draft lengths"),
        ({"drafters": ["ngran"]}, "did you mean 'ngram'"),
        ({"drafters": ["auto"]}, "measured costs"),
        ({"drafters": ["model"]}, "draft_model"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], told: str) -> None:
    with pytest.raises((BadRequest, RuntimeError), match=re.escape(told)):
        audit(TABLE, PROMPTS, **({"drafters": ["ngram"]} | changes))


# outputs of other engines


def pair_files(folder: Path, first: list[dict], second: list[dict]) -> tuple[str, str]:
    for name, lines in (("a.jsonl", first), ("b.jsonl", second)):
        (folder / name).write_text("\n".join(map(json.dumps, lines)))
    return str(folder / "a.jsonl"), str(folder / "b.jsonl")


def table_target(logits: torch.Tensor, codec: ToyCodec = CODEC) -> Target:
    return Target(TableModel(logits, 1), codec, None, Path("toy"))  # type: ignore[arg-type]


@pytest.mark.parametrize("distance, verdict", [(1.0, TIE), (8.0, BUG)])
def test_pairs_one_bf16_step_apart(tmp_path: Path, distance: float, verdict: str) -> None:
    logits = torch.full((8, 7), -20.0)
    logits[:, 3] = 18.0
    logits[2, 4] = 18.0 - distance * ulp(18.0, "bf16")
    first = [{"prompt_token_ids": [1], "token_ids": [3, 3, 3]}, {"prompt_token_ids": [2], "token_ids": [3, 3]}]
    second = [{"token_ids": [3, 3, 3]}, {"output_token_ids": [4, 3]}]
    report = audit_pairs(table_target(logits), *pair_files(tmp_path, first, second))
    reference, candidate = report.results
    assert (reference.bugs, reference.ties) == (0, 0)
    assert [f.verdict for f in candidate.findings] == [verdict]
    assert candidate.differing == 1
    [finding] = candidate.findings
    assert (finding.prompt, finding.position, finding.first, finding.expected, finding.token) == (1, 0, True, 3, 4)
    assert report.ok is (verdict == TIE)
    assert audit_pairs(table_target(logits), *pair_files(tmp_path, first, second), tolerance=1.1).ok


def test_pairs_match_by_id_and_tell_of_the_reference(tmp_path: Path) -> None:
    logits = torch.full((8, 7), -20.0)
    logits[:, 3] = 5.0
    first = [{"id": "x", "prompt_token_ids": [1], "text": "dd"}, {"id": "y", "prompt_token_ids": [2], "text": "dc "}]
    second = [{"id": "y", "token_ids": [3, 3]}, {"id": "x", "token_ids": [3, 3]}]
    report = audit_pairs(table_target(logits), *pair_files(tmp_path, first, second))
    reference, candidate = report.results
    assert [(f.prompt, f.position, f.token, f.expected) for f in reference.findings] == [(1, 1, 2, 3)]
    # the candidate is right where the reference is not
    assert [(f.prompt, f.verdict, f.why) for f in candidate.findings] == [
        (1, TIE, "this output follows the target here; the reference does not")
    ]
    assert not report.ok


def test_pairs_with_other_ends(tmp_path: Path) -> None:
    logits = torch.full((8, 7), -20.0)
    logits[:, 3] = 5.0
    codec = ToyCodec(CODEC.pieces, eos=[6])
    short = [{"prompt_token_ids": [1], "token_ids": [3, 3, 3]}]
    assert not audit_pairs(table_target(logits), *pair_files(tmp_path, short, [{"token_ids": [3, 3]}])).ok
    reasons = [short[0] | {"finish_reason": "length"}], [{"token_ids": [3, 3, 3], "finish_reason": "stop"}]
    assert "finish reason" in audit_pairs(table_target(logits), *pair_files(tmp_path, *reasons)).table()
    # an end token that one engine gives and the other does not
    assert audit_pairs(table_target(logits, codec), *pair_files(tmp_path, short, [{"token_ids": [3, 3, 3, 6]}])).ok


@pytest.mark.parametrize(
    "second, told",
    [
        ([], "1 outputs"),
        ([{"token_ids": [9]}], "0..6"),
        ([{"x": 1}], "there is no output"),
        ([{"id": "z", "token_ids": [3]}], "no output with id 'x'"),
    ],
)
def test_bad_pairs(tmp_path: Path, second: list[dict], told: str) -> None:
    files = pair_files(tmp_path, [{"id": "x", "prompt_token_ids": [1], "token_ids": [3]}], second)
    with pytest.raises(BadRequest, match=re.escape(told)):
        audit_pairs(table_target(torch.zeros(8, 7)), *files)


# the command


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(model=TABLE, codec=CODEC, calibration=None, path=Path("toy"), opened=0)

    def open_target(*args: Any, **options: Any) -> Any:
        made.opened += 1
        return Target(made.model, made.codec, None, made.path)  # type: ignore[arg-type]

    monkeypatch.setattr(loader, "open_target", open_target)
    return made


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt_token_ids": list(i.prompt)}) for i in PROMPTS))
    return str(file)


def test_command(toy: SimpleNamespace, tokens: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "audit",
        "--prompts",
        tokens,
        "--drafters",
        "none,ngram:max_n=3,min_n=1,suffix-tree",
        "-k",
        "2,5",
        "--max-tokens",
        "20",
    ]
    assert main([*words, "--output", str(tmp_path / "found.json")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ngram:max_n=3,min_n=1 k=5 +3 +60 +0 +0 +0 ", out, re.M)
    assert "no bug, 0 ties, 0 differing answers" in out
    found = json.loads((tmp_path / "found.json").read_text())
    assert {d["name"] for d in found["drafters"]} >= {"plain", "none", "suffix-tree k=2", "suffix-tree k=5"}
    assert found["ok"] is True
    assert {"machine", "surefoot", "model", "target", "options", "prompt_tokens", "precision"} <= set(found)
    assert main([*words, "--json", "--temperature", "0.8", "--samples", "40"]) == 0
    assert {t["name"] for t in json.loads(capsys.readouterr().out)["tests"]} == {"tokens", "drafted positions", "points"}


def test_command_finds_a_broken_verifier(
    toy: SimpleNamespace, tokens: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "walk", first_child)
    words = ["audit", "--prompts", tokens, "--drafters", "ngram", "-k", "3", "--max-tokens", "30"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert re.search(r"^ngram k=3: bug: prompt 0, first divergence at \d+.*expected.*emitted; gap ", out, re.M)
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_command_on_pairs(toy: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = list(Engine(TABLE).generate([1, 2], max_tokens=6).token_ids)
    wrong = [*said[:3], (said[3] + 1) % 7, *said[4:]]
    a, b = pair_files(tmp_path, [{"prompt_token_ids": [1, 2], "token_ids": said}], [{"token_ids": wrong}])
    assert main(["audit", "--reference", a, "--candidate", a]) == 0
    assert main(["audit", "--reference", a, "--candidate", b]) == 1
    assert "first divergence at 3" in capsys.readouterr().out
    assert main(["audit", "--reference", a, "--candidate", b, "--tolerance", "99"]) == 0


@pytest.mark.parametrize(
    "words, told",
    [
        (["--suite", "huge"], "unknown suite"),
        (["--suite", "quick", "--generate", "3"], "two sources"),
        (["--generate", "0"], "from 1 up"),
        (["-k", "0"], "draft lengths"),
        (["--samples", "5"], "--temperature"),
        (["--reference", "x"], "belong together"),
        (["--reference", "x", "--candidate", "y", "--dtype", "int8"], "--dtype"),
        (["--reference", "x", "--candidate", "y", "--temperature", "1"], "greedy"),
        (["--prompts", "no/such/file"], "cannot read"),
        (["--output", "no/such/folder/file"], "cannot write"),
        (["--temperature", "-1"], "temperature"),
    ],
)
def test_bad_words(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    assert main(["audit", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"surefoot: error: [^\n]+\n", err)
    assert told in err
    assert toy.opened == 0
