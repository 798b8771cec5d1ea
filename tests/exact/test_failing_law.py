"""Requests whose options fail on the way: the law of (tokens, how it ended) is that of plain decoding, under every rule.

A verifier that looks at nodes it does not keep meets failures that plain decoding would not have met; it must not end for them.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import defaultdict

import pytest
import torch
from exact.joint import CAUGHT, PROMPT, TOLERANCE, distance, engine_of, expected, q_chain, q_shape, q_tree, toy
from toys import Custom, random_trees

from surefoot.backends.table import TableModel
from surefoot.core import traversal, verify
from surefoot.core.noise import enumerate_law
from surefoot.core.params import SamplingParams
from surefoot.drafters.model import ModelDrafter

TARGET = toy(3, seed=7)
DRAFT = TableModel.random(3, order=2, seed=9, sharpness=0.9)
# endings of the output after which nothing is possible
DEAD = {
    "first": [(1, 2)],
    "second": [(1, 0, 1), (1, 1, 0)],
    "many": [(2,), (0, 0)],
    "every draft": [(1, 0), (1, 1), (1, 2)],
    "last": [(1, 0, 0, 2)],
    "from the start": [(1,)],
}
RULES = [
    ("model", "coupled"), ("points", "coupled"), ("points", "traversal"),
    *((kind, rule) for kind in ("q-chain", "q-tree", "unbalanced", "model") for rule in ("ratio", "traversal")),
    *(("twins", rule) for rule in ("ratio", "traversal", "kseq")),
]  # fmt: skip
SHAPES = {
    "points": lambda: (Custom(random_trees(3, 5)), (2, 2, 5)),
    "q-chain": lambda: (Custom(q_chain(DRAFT)), (2, 1, 2)),
    "q-tree": lambda: (Custom(q_tree(DRAFT)), (2, 2, 3)),
    "unbalanced": lambda: (Custom(q_shape(DRAFT, [-1, 0, 0, 2])), (2, 2, 3)),
    "model": lambda: (ModelDrafter(DRAFT, 3), (2, 1, 2)),
    "twins": lambda: (Custom(q_shape(DRAFT, [-1, 0, 0], independent=True)), (1, 2, 2)),
}


def ended(output, dead) -> bool:
    return any(tuple(output[-len(end) :]) == end for end in dead)


class Empty:
    """Without state: leaves no token after some outputs."""

    def __init__(self, dead) -> None:
        self.dead = dead

    def __call__(self, token_ids, logits):
        return logits.fill_(-torch.inf) if ended(token_ids[len(PROMPT) :], self.dead) else logits


class Raises(Empty):
    """With state: ``advance`` raises on the last token of such an output."""

    def __init__(self, dead, told=()) -> None:
        super().__init__(dead)
        self.told = told

    def __call__(self, token_ids, logits):
        return logits

    def advance(self, token):
        self.told = (*self.told, token)
        if ended(self.told, self.dead):
            raise RuntimeError("had enough")

    def fork(self):
        return Raises(self.dead, self.told)


def options(name: str, kind, rule: str, **more) -> SamplingParams:
    return SamplingParams(max_tokens=4, temperature=1.0, verification=rule, logits_processors=[kind(DEAD[name])], **more)


def outcomes(params: SamplingParams, drafter=None, plan=(1, 1, 1)):
    engine = engine_of(TARGET, drafter, *plan)

    def once(noise):
        row = engine.add(PROMPT, params, noise=noise)
        while not row.done:
            engine.step()
        return (*row.output, row.finish_reason)

    out: dict[tuple, float] = defaultdict(float)
    for found, mass in enumerate_law(once):
        out[found] += mass
    return dict(out)


def wanted(params: SamplingParams, dead) -> dict[tuple, float]:
    """From the target's own laws: an output goes on until it is long enough, stops, or is dead."""
    out: dict[tuple, float] = defaultdict(float)
    for tokens, mass in expected(TARGET, SamplingParams(temperature=1.0), 4).items():
        for n in range(1, 5):
            stops = tokens[n - 1] in params.stop_token_ids
            if stops or n == 4 or ended(tokens[:n], dead):
                out[(*tokens[:n], "stop" if stops else "error" if ended(tokens[:n], dead) and n < 4 else "length")] += mass
                break
    return dict(out)


@pytest.mark.parametrize("shape, rule", RULES)
@pytest.mark.parametrize("name", DEAD)
def test_a_failure_comes_exactly_where_plain_decoding_fails(name, shape, rule):
    params = options(name, Empty, rule)
    drafter, plan = SHAPES[shape]()
    seen = outcomes(params, drafter, plan)
    assert distance(seen, wanted(params, DEAD[name])) <= TOLERANCE
    assert any(found[-1] == "error" for found in seen) == (name != "last")


@pytest.mark.parametrize("shape, rule", RULES)
@pytest.mark.parametrize("name", ["first", "many"])
def test_a_processor_that_raises_when_it_is_told_a_token(name, shape, rule):
    """The token is kept, as in plain decoding."""
    params = options(name, Raises, rule)
    assert distance(outcomes(params, *SHAPES[shape]()), outcomes(params)) <= TOLERANCE


@pytest.mark.parametrize("shape, rule", RULES)
def test_a_stop_token_before_the_failure_wins(shape, rule):
    params = options("many", Empty, rule, stop_token_ids=[2])
    assert distance(outcomes(params, *SHAPES[shape]()), wanted(params, DEAD["many"])) <= TOLERANCE


_LEAF = "below = []"


@pytest.mark.parametrize("shape", ["q-chain", "q-tree"])
@pytest.mark.parametrize(
    "new",
    [
        pytest.param("raise", id="always-fails"),
        pytest.param("return None", id="never-fails"),
        pytest.param("below, mass = [], mass * mass", id="fails-with-another-mass"),
    ],
)
def test_wrong_failures_are_caught(monkeypatch, shape, new):
    source = textwrap.dedent(inspect.getsource(traversal.traversal))
    assert source.count(_LEAF) == 1, "the mutant no longer fits traversal(): bring it up to date"
    scope = dict(vars(traversal))
    exec(source.replace(_LEAF, new), scope)
    monkeypatch.setattr(verify, "traversal", scope["traversal"])
    params = options("every draft", Empty, "traversal")
    try:
        found = distance(outcomes(params, *SHAPES[shape]()), wanted(params, DEAD["every draft"]))
    except AssertionError:  # even the root was refused
        found = 1.0
    assert found > CAUGHT
