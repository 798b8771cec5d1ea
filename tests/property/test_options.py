"""Any set of request options, under any drafts: always what plain decoding says, errors and states of processors included.

"Plain" is an engine without drafters that runs each answer alone. On the torch model last bits of logits depend on the shape
of a pass unless its class is exact, so it is loaded as :func:`surefoot.load` loads it on a CPU: chains only, in passes of
moderate width, padded as its own probe demands. There a different token is a bug, never rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from contract.conftest import nudged, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Custom, ToyCodec, fixed, random_trees
from toys_grammar import ToyGrammars

from surefoot.backends.table import TableModel
from surefoot.backends.torch import TorchModel
from surefoot.core import shaping
from surefoot.core.engine import Engine
from surefoot.core.logprobs import Logprob
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import TargetModel
from surefoot.core.request import Piece, Row
from surefoot.core.verify import FRESH
from surefoot.drafters.grammar import GrammarDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BadRequest

PIECES = [b"a", b"b", b"ab", b"<", b"b>", b"1", b"", b"\xc3", b"\xa9", b">", b"><"]
V = len(PIECES)

ASTRAY = "the state is not that of the history"

ids = st.integers(0, V - 1)
texts = st.lists(st.sampled_from(["ab", "a", "b", "b>", "<", "1", "é", ">"]), min_size=1, max_size=3).map("".join)


class Running:
    """A processor with state: it remembers its path, and favours, forbids or fails by a hash of it."""

    def __init__(self, kind: str, strength: float, path: tuple[int, ...] = ()) -> None:
        self.kind, self.strength, self.path = kind, strength, path

    @property
    def hash(self) -> int:
        found = 17
        for token in self.path:
            found = (found * 31 + token + 1) % 10_007
        return found

    def __call__(self, token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if self.path and tuple(token_ids[-len(self.path) :]) != self.path:
            raise RuntimeError(ASTRAY)
        if self.kind == "fails" and self.hash % 11 == 0:
            raise ValueError(f"at {self.hash}")
        places = (torch.arange(len(logits)) * 7 + self.hash) % 13
        if self.kind == "forbids":
            logits[places % 3 != 0] = -torch.inf
        return logits + self.strength * places / 13

    def advance(self, token: int) -> None:
        self.path = (*self.path, token)
        if self.kind == "stumbles" and self.hash % 11 == 0:
            raise ValueError(f"stumbles at {self.hash}")

    def fork(self) -> Running:
        return Running(self.kind, self.strength, self.path)


def by_length(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """A processor without state."""
    logits[len(token_ids) % V] += 2.0
    return logits


kinds = st.sampled_from(["favours", "favours", "forbids", "fails", "stumbles"])
processors = st.lists(st.one_of(st.builds(Running, kinds, st.sampled_from([0.0, 1.0, 4.0])), st.just(by_length)), max_size=2)

draws = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.3, 1.0, 2.0]), "seed": st.integers(-5, 2**70)},
        optional={
            "top_k": st.integers(0, 4),
            "top_p": st.sampled_from([0.3, 0.9]),
            "min_p": st.sampled_from([0.02, 0.2]),
            "typical_p": st.sampled_from([0.2, 0.6, 0.95]),
            "verification": st.sampled_from(["auto", "coupled"]),
        },
    ),
    # a one-hot law: under rules that draw anew in every pass, too, there is one answer only
    st.fixed_dictionaries({"temperature": st.just(0.9), "top_k": st.just(1), "verification": st.sampled_from(FRESH)}),
)

lengths = st.fixed_dictionaries(
    {},
    optional={
        "min_tokens": st.integers(0, 8),
        "stop": st.lists(texts, min_size=1, max_size=2),
        "stop_token_ids": st.lists(ids, min_size=1, max_size=2),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
    },
)

weights = st.fixed_dictionaries(
    {},
    optional={
        "logit_bias": st.dictionaries(ids, st.sampled_from([-100.0, -3.0, 2.5, 9.0]), max_size=3),
        "repetition_penalty": st.sampled_from([0.6, 1.3, 3.0]),
        "presence_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.3, 2.0]),
        "logits_processors": processors,
    },
)

masks = st.fixed_dictionaries(
    {},
    optional={
        "allowed_token_ids": st.lists(ids, min_size=1, max_size=V, unique=True),
        "bad_words": st.lists(texts, min_size=1, max_size=3),
        "bad_words_ids": st.lists(st.lists(ids, min_size=1, max_size=3), min_size=1, max_size=3),
    },
)

constraints = st.one_of(
    st.lists(st.text("ab1<", min_size=1, max_size=6), min_size=1, max_size=3).map(lambda c: {"type": "choice", "choice": c}),
    st.sampled_from(["(ab|1)*", "a*b", "[ab]{2,5}1?", "<a+b>", "é*1", ".*>"]).map(lambda r: {"type": "regex", "regex": r}),
)

phases = st.one_of(
    st.just({}),
    st.just({}),
    st.builds(
        lambda budget, markers: {"thinking_budget": budget, "thinking_start": markers[0], "thinking_end": markers[1]},
        st.integers(0, 6), st.sampled_from([("<", ">"), ("<", "b>"), ("a", "ab1"), ("b", "é")]),
    ),
    st.fixed_dictionaries({"response_format": constraints}, optional={"constrain_after": texts}),
    st.builds(
        lambda budget, constraint: {
            "thinking_budget": budget, "thinking_start": "<", "thinking_end": "b>", "response_format": constraint
        },
        st.integers(0, 4), constraints,
    ),
)  # fmt: skip

outputs = st.fixed_dictionaries({}, optional={"logprobs": st.integers(0, 3), "echo": st.booleans(), "n": st.integers(2, 3)})


def together(most: int, *parts: dict[str, Any]) -> SamplingParams:
    """One set of options, without the contradictions that are refused when they are given."""
    options = {name: value for part in parts for name, value in part.items()} | {"max_tokens": most}
    options["min_tokens"] = min(options.get("min_tokens", 0), most)
    if "response_format" in options:
        options.pop("ignore_eos", None)
    return SamplingParams.build(options)


def params(*most: int) -> st.SearchStrategy[SamplingParams]:
    return st.builds(together, st.sampled_from(most), draws, lengths, weights, masks, phases, outputs)


@dataclass(frozen=True)
class Shape:
    """How an engine drafts and packs."""

    kind: str
    k: int
    width: int
    nodes: int
    seed: int
    accuracy: float
    options: dict[str, Any]
    trace: bool


shapes = st.builds(
    Shape,
    st.sampled_from(["script", "random", "script-tree", "ngram", "suffix", "model", "self", "grammar"]),
    st.sampled_from([2, 1, 0, 3, 5, 8, 16]),
    st.integers(1, 3),
    st.sampled_from([4, 1, 0, 3, 6, 12, 20]),
    st.integers(0, 1000),
    st.sampled_from([1.0, 0.9, 0.5, 0.0]),
    st.fixed_dictionaries({"chunk": st.integers(1, 20), "max_rows": st.integers(1, 4), "reuse": st.booleans()}),
    st.booleans(),
)
prompts = st.one_of(st.lists(ids, min_size=1, max_size=6), st.lists(st.integers(0, 3), min_size=1, max_size=20))
eos = st.lists(ids, max_size=1)


@dataclass(frozen=True)
class Case:
    """A target, a relative of it as a draft model, and what reads its tokens."""

    target: TargetModel
    draft: TargetModel
    codec: ToyCodec
    grammars: ToyGrammars

    def plain(self) -> Engine:
        return Engine(self.target, codec=self.codec, grammars=self.grammars, reuse=False)

    def engine(self, shape: Shape, truth: Callable[[Row], Sequence[int]]) -> Engine:
        known = self.codec.vocab_size
        made: Any
        if shape.kind == "random":
            made = Custom(random_trees(known, shape.seed))
        elif shape.kind.startswith("script"):
            made = ScriptDrafter(truth, known, accuracy=shape.accuracy, tree=shape.kind.endswith("tree"), seed=shape.seed)
        elif shape.kind in ("model", "self"):
            draft = self.draft if shape.kind == "model" else self.target
            made = ModelDrafter(draft, self.target.traits.vocab_size, chunk=3)
        else:
            made = {"ngram": NgramDrafter, "suffix": SuffixDrafter, "grammar": GrammarDrafter}[shape.kind]()
        return fixed(
            self.target, made, shape.k, shape.width, shape.nodes, codec=self.codec, grammars=self.grammars, **shape.options
        )


@dataclass(frozen=True)
class Facts:
    """All that must not depend on drafts."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    usage: tuple[int, int]
    error: str | None
    paths: tuple[object, ...]
    """What each processor with state has seen."""
    next: object
    """What all options would do to the logits of the next position."""

    @staticmethod
    def of(engine: Engine, row: Row) -> Facts:
        done = engine.completion(row)
        usage = done.usage.prompt_tokens, done.usage.completion_tokens
        seen = tuple(getattr(p, "path", None) for p in _given(row.params, row))
        return Facts(done.token_ids, done.text, done.finish_reason, usage, done.error, seen, _next(row, engine))


def _given(params: SamplingParams, row: Row) -> list[object]:
    parts = [] if row.state is None else row.state._parts
    found = [part._given for part in parts if isinstance(part, shaping.Custom)]
    assert len(found) == len(params.logits_processors)
    return found


def _next(row: Row, engine: Engine) -> object:
    if row.state is None or row.error is not None:
        return None
    try:
        return row.state.shape(np.linspace(-1.0, 1.0, engine.target.traits.vocab_size)).round(9).tolist()
    except BadRequest as error:
        return str(error)


def close(found: Sequence[Logprob | None] | None, wanted: Sequence[Logprob | None] | None) -> None:
    """Log-probabilities to 1e-4, all else equal."""
    assert (found is None) == (wanted is None)
    for a, b in zip(found or (), wanted or (), strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            tops = (a.top, b.top), (a.top_asked, b.top_asked)
            assert a.token == b.token
            assert [[t for t, _ in x] for x, _ in tops] == [[t for t, _ in y] for _, y in tops]
            theirs = [b.logprob, b.asked, *(value for _, y in tops for _, value in y)]
            assert [a.logprob, a.asked, *(value for x, _ in tops for _, value in x)] == pytest.approx(theirs, abs=1e-4)


def answers(engine: Engine, *asked: tuple[Sequence[int], SamplingParams], trace: bool = False) -> list[str | list[Row]]:
    """The rows of each request, run together to their ends; or why it was refused. What they stream adds up."""
    found: list[str | list[Row]] = []
    for prompt, options in asked:
        try:
            found.append(engine.submit(prompt, options, trace=trace))
        except BadRequest as error:
            found.append(str(error))
    rows = [row for each in found if not isinstance(each, str) for row in each]
    pieces: dict[int, list[Piece]] = {row.id: [] for row in rows}
    for step in range(10_000):
        for row in rows:
            ended = pieces[row.id] and pieces[row.id][-1].finish_reason
            if not ended and (piece := row.drain(engine.names)) is not None:
                pieces[row.id].append(piece)
        if all(row.done for row in rows):
            break
        assert step < 9_999, "the engine does not get on"
        engine.step()
    for row in rows:
        done, mine = engine.completion(row), pieces[row.id]
        assert "".join(p.text for p in mine) == done.text
        assert tuple(t for p in mine for t in p.token_ids) == done.token_ids
        assert tuple(x for p in mine for x in p.logprobs) == (done.logprobs or ())
        assert [p.finish_reason for p in mine] == [None] * (len(mine) - 1) + [done.finish_reason]
        assert done.stats.accepted_tokens == sum(s != "target" for s in done.sources) <= done.stats.draft_tokens
        assert done.usage.completion_tokens == len(done.sources) == len(done.token_ids)
        assert done.error is None or ASTRAY not in done.error
    return found


def alone(options: SamplingParams, index: int) -> SamplingParams:
    return replace(options, n=1, seed=None if options.seed is None else options.seed + index)


def check(case: Case, shape: Shape, asked: Sequence[tuple[Sequence[int], SamplingParams]], runs: int) -> None:
    plain: list[list[tuple[str, Row | None, Facts | None]]] = []
    said: dict[object, list[int]] = {}
    for prompt, options in asked:
        plain.append([])
        for index in range(options.n):
            one = case.plain()
            [found] = answers(one, (prompt, alone(options, index)))
            if isinstance(found, str):
                plain[-1].append((found, None, None))
            else:
                [row] = found
                plain[-1].append(("", row, Facts.of(one, row)))
                said[tuple(prompt), options, index] = [*row.output, 0, 1, 2]  # a draft may go on past the end
            one.close()
    engine = case.engine(shape, lambda row: said[tuple(row.tokens[: row.n_prompt]), row.params, row.index])
    for _ in range(runs):  # again with what the first run left behind: warm caches, learned drafts
        for found, wanted in zip(answers(engine, *asked, trace=shape.trace), plain, strict=True):
            if isinstance(found, str):
                assert [found] * len(wanted) == [error for error, _, _ in wanted]
                continue
            assert [Facts.of(engine, row) for row in found] == [facts for _, _, facts in wanted]
            for row, (_, other, _) in zip(found, wanted, strict=True):
                assert other is not None
                close(row.logprobs, other.logprobs)
                close(row.prompt_logprobs, other.prompt_logprobs)
    engine.close()
    for _, options in asked:
        assert all(getattr(p, "path", ()) == () for p in options.logits_processors), "the user's own object was touched"


@settings(max_examples=1700)
@given(
    st.integers(1, 2), st.integers(0, 10_000), st.sampled_from([0.5, 2.0, 8.0]), st.integers(0, 2), st.sampled_from([1, 2, 4]),
    eos, st.lists(st.tuples(prompts, params(4, 1, 2, 8, 12, 16, 20, 25)), min_size=1, max_size=3), shapes,
)  # fmt: skip
def test_tables_equal_plain_decoding(order, seed, sharpness, padding, min_width, eos, asked, shape):
    """``padding``: ids of the model that the tokenizer does not have."""
    target = TableModel.random(V + padding, order, seed, sharpness, min_width=min_width)
    draft = target.mixed(TableModel.random(V + padding, order, seed + 1, sharpness), 0.4)
    case = Case(target, draft, ToyCodec(PIECES, eos), ToyGrammars(PIECES, eos, V + padding))
    check(case, shape, asked, 2)
    assert target.open_slots == 0


@cache
def models() -> tuple[TorchModel, TorchModel]:
    model = tiny("LlamaConfig")
    options = {"max_rows": 16, "trees": False, "max_nodes": 64}
    target, draft = TorchModel(model, **options), TorchModel(nudged(model), **options)
    target.adopt(target.probe())
    assert target.traits.exact
    return target, draft


@settings(max_examples=300)
@given(eos, st.lists(st.tuples(prompts, params(3, 1, 6, 8, 10)), min_size=1, max_size=2), shapes)
def test_a_tiny_transformer_equals_plain_decoding(eos, asked, shape):
    """Its other ids are padding: the tokenizer has the pieces of the tables."""
    target, draft = models()
    case = Case(target, draft, ToyCodec(PIECES, eos), ToyGrammars(PIECES, eos, target.traits.vocab_size))
    check(case, shape, asked, 1)
    assert not target._slots
