"""What every behaviour test needs: the grid of drafts, the plain run, the speculative run, and their comparison.

``oracle`` drafts what plain decoding says and, past its end, what the target would go on with; ``wrong`` never agrees;
``mixed`` agrees at about half of the positions; ``self`` is the target as its own draft model; ``ngram`` looks up. A drafter
object stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from toys import ToyCodec, fixed

from surefoot.core.completion import Completion
from surefoot.core.engine import Engine
from surefoot.core.logprobs import Logprob
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Drafter, TargetModel
from surefoot.core.request import Piece, Row
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter

LENGTHS = (1, 2, 3, 5, 8, 16)
DRAFTS = ("oracle", "wrong", "mixed")
WITH_SELF = (*DRAFTS, "self")
ACCURACY = {"oracle": 1.0, "wrong": 0.0, "mixed": 0.5}
BEYOND = 20
"""Tokens that the oracle knows past the end of the plain run."""

Options = SamplingParams | Mapping[str, Any]

_known: dict[object, tuple[tuple[object, ...], Completion]] = {}


def combinations(kinds: Sequence[str] = DRAFTS, lengths: Sequence[int] = LENGTHS):
    """Parametrize a test over ``kind`` and ``k``."""
    return pytest.mark.parametrize("kind, k", [pytest.param(d, k, id=f"{d}-{k}") for d in kinds for k in lengths])


every_draft = combinations()
every_draft_and_self = combinations(WITH_SELF)


def words(count: int, eos: Sequence[int] = ()) -> ToyCodec:
    """A codec in which token i reads `` w<i>``."""
    return ToyCodec([f" w{i}" for i in range(count)], eos)


def build(params: Options) -> SamplingParams:
    return params if isinstance(params, SamplingParams) else SamplingParams.build(params)


def finish(engine: Engine, prompt: Sequence[int], params: Options, trace: bool = False) -> Completion:
    """Run one request to its end; a row that fails ends with ``error`` instead of raising."""
    rows = engine.submit(list(prompt), build(params), trace=trace)
    while not all(row.done for row in rows):
        engine.step()
    return Completion.together(rows, engine.names)


def plain(target: TargetModel, prompt: Sequence[int], params: Options, codec: Any = None, **engine: Any) -> Completion:
    """The reference: one token at a time on an engine without drafters. Run once and remembered."""
    params = build(params)
    held = (target, codec, *engine.values())  # kept alive, so that an id stays the id of one object
    key = (*map(id, held), tuple(engine), tuple(prompt), params)
    if key not in _known:
        made = Engine(target, codec=codec, reuse=False, **engine)
        _known[key] = held, finish(made, prompt, params)
        made.close()
    return _known[key][1]


def truth(target: TargetModel, codec: Any = None, **engine: Any) -> Callable[[Row], tuple[int, ...]]:
    """What plain decoding says to a row, and what the target would go on with after an end that is not the budget's."""

    def say(row: Row) -> tuple[int, ...]:
        seed = row.params.seed
        params = replace(row.params, n=1, seed=None if seed is None else seed + row.index)
        prompt = row.tokens[: row.n_prompt]
        said = plain(target, prompt, params, codec, **engine)
        if said.finish_reason != "stop":
            return said.token_ids
        return said.token_ids + plain(target, [*prompt, *said.token_ids], {"max_tokens": BEYOND}).token_ids

    return say


def drafter(target: TargetModel, kind: str, codec: Any = None, tree: bool = False, **engine: Any) -> Drafter:
    vocab = target.traits.vocab_size
    if kind == "self":
        return ModelDrafter(target, vocab)
    if kind == "ngram":
        return NgramDrafter()
    size = vocab if codec is None else min(vocab, codec.vocab_size)
    return ScriptDrafter(truth(target, codec, **engine), size, accuracy=ACCURACY[kind], tree=tree)


def engine_of(target: TargetModel, kind: str | Drafter, k: int, codec: Any = None, tree: bool = False, **engine: Any) -> Engine:
    """An engine that always drafts ``k`` tokens (as a tree: depth ``k``, two children a node). ``engine``: its options."""
    plainly = {name: value for name, value in engine.items() if name == "grammars"}
    made = drafter(target, kind, codec, tree, **plainly) if isinstance(kind, str) else kind
    return fixed(target, made, k, 2 if tree else 1, 2 * k if tree else k, codec=codec, **engine)


def speculate(
    target: TargetModel,
    prompt: Sequence[int],
    params: Options,
    kind: str | Drafter,
    k: int,
    codec: Any = None,
    tree: bool = False,
    trace: bool = False,
    **engine: Any,
) -> Completion:
    """One request on an engine of its own."""
    made = engine_of(target, kind, k, codec, tree, **engine)
    found = finish(made, prompt, params, trace)
    made.close()
    return found


def streamed(engine: Engine, prompt: Sequence[int], params: Options) -> list[Piece]:
    """All pieces of one request."""
    return list(engine.follow(*engine.submit(list(prompt), build(params))))


def same(found: Completion, wanted: Completion) -> None:
    """Equal in all that a user sees. Log-probabilities to 1e-4; statistics and sources may differ."""
    assert found.token_ids == wanted.token_ids
    assert found.text == wanted.text
    assert found.finish_reason == wanted.finish_reason
    assert found.usage == wanted.usage
    assert found.error == wanted.error
    _same_logprobs(found.logprobs, wanted.logprobs)
    _same_logprobs(found.prompt_logprobs, wanted.prompt_logprobs)
    assert len(found.choices) == len(wanted.choices)
    for a, b in zip(found.choices, wanted.choices, strict=True):
        if len(a.choices) == len(b.choices) == 0:
            same(a, b)


def _same_logprobs(found: Sequence[Logprob | None] | None, wanted: Sequence[Logprob | None] | None) -> None:
    assert (found is None) == (wanted is None)
    if found is None or wanted is None:
        return
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a is None) == (b is None)
        if a is None or b is None:
            continue
        assert a.token == b.token
        ours = [a.logprob, a.asked, *(value for _, value in (*a.top, *a.top_asked))]
        theirs = [b.logprob, b.asked, *(value for _, value in (*b.top, *b.top_asked))]
        assert ours == pytest.approx(theirs, abs=1e-4)
