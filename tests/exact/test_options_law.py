"""The exact joint law under options that look at the tokens before: total variation at most 1e-12.

The expected law is the product of the laws of single positions, each computed from the token history alone in plain Python
(:mod:`exact.reference`): what a token's law is must not depend on how many of the tokens before it were drafted.
"""

from __future__ import annotations

import functools

import pytest
from exact.joint import CAUGHT, PROMPT, TOLERANCE, distance, engine_of, observed, q_chain, q_shape, q_tree, toy
from exact.reference import World
from toys import Custom, ToyCodec, random_trees
from toys_grammar import ToyGrammars

from surefoot.backends.table import TableModel
from surefoot.core.laws import Laws
from surefoot.core.params import SamplingParams
from surefoot.drafters.model import ModelDrafter

TARGET = toy(3, seed=7)
DRAFT = TableModel.random(3, order=2, seed=9, sharpness=0.9)
PIECES = ["a", "b", "c"]
GRAMMAR = {"structured_outputs": {"regex": "b(a|cb)*c?b?"}}


class Growing:
    """A stateful processor: the more 2s it was told of, the less it likes them, and it dislikes the token told last."""

    def __init__(self, twos: int = 0, last: int | None = None) -> None:
        self.twos, self.last = twos, last

    def __call__(self, token_ids, logits):
        logits[2] -= 0.6 * self.twos
        if self.last is not None:
            logits[self.last] -= 0.3
        return logits

    def advance(self, token):
        self.twos, self.last = self.twos + (token == 2), token

    def fork(self):
        return Growing(self.twos, self.last)


def growing_twin(prompt, output, x):
    x[2] -= 0.6 * list(output).count(2)
    if output:
        x[output[-1]] -= 0.3
    return x


def alternate(token_ids, logits):
    """A processor without state."""
    logits[len(token_ids) % 3] += 1.1
    return logits


def alternate_twin(prompt, output, x):
    x[(len(prompt) + len(output)) % 3] += 1.1
    return x


CASES = {
    "repetition": {"repetition_penalty": 1.6},
    "presence": {"presence_penalty": 1.3},
    "frequency": {"frequency_penalty": -1.1},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7, "temperature": 0.8},
    "bias": {"logit_bias": {0: -1.5, 2: 2.0}},
    "bad-ids": {"bad_words_ids": [[1, 2], [2, 2], [0, 1, 0]]},
    "bad-texts": {"bad_words": ["ca", "bb"]},
    "least": {"min_tokens": 3, "stop_token_ids": [0]},
    "allowed": {"allowed_token_ids": [1, 2], "frequency_penalty": 0.5},
    "grammar": GRAMMAR,
    "grammar-after": GRAMMAR | {"constrain_after": "c"},
    "stateful": {"logits_processors": [Growing()]},
    "stateless": {"logits_processors": [alternate]},
    "all": {
        "repetition_penalty": 1.2, "frequency_penalty": 0.5, "logit_bias": {1: 0.7}, "bad_words_ids": [[2, 0]],
        "logits_processors": [Growing(), alternate], "temperature": 0.9, "top_p": 0.9, "min_p": 0.05,
    },
}  # fmt: skip
TWINS = {Growing: growing_twin, type(alternate): alternate_twin}


def world(options) -> World:
    found = World(TARGET, [p.encode() for p in PIECES])
    found.extra = [TWINS[type(processor)] for processor in options.get("logits_processors", ())]
    return found


def engine(drafter, plan):
    codec = ToyCodec(PIECES)
    return engine_of(TARGET, drafter, *plan, codec=codec, grammars=ToyGrammars(codec.pieces))


# under the coupled rule a proposal's law is not looked at: drawn chains and trees are points to it
GRID = [
    ("q-chain", "ratio"),
    ("q-chain", "block"),
    ("q-tree", "ratio"),
    ("q-tree", "traversal"),
    ("model", "coupled"),
    ("model", "ratio"),
    ("model", "block"),
    ("twins", "ratio"),
    ("twins", "traversal"),
    ("twins", "kseq"),
    ("points", "coupled"),
    ("points", "ratio"),
]
SHAPES = {
    "q-chain": lambda: (Custom(q_chain(DRAFT)), (2, 1, 2)),
    "model": lambda: (ModelDrafter(DRAFT, 3), (2, 1, 2)),
    "q-tree": lambda: (Custom(q_tree(DRAFT)), (2, 2, 3)),
    "twins": lambda: (Custom(q_shape(DRAFT, [-1, 0, 0], independent=True)), (1, 2, 2)),
    "points": lambda: (Custom(random_trees(3, 5)), (2, 2, 5)),
}


def whole(name: str, rule: str) -> dict:
    return {"max_tokens": 4, "temperature": 1.0, "verification": rule} | CASES[name]


@functools.cache
def expected(name: str):
    return world(CASES[name]).joint(PROMPT, whole(name, "auto"))


@pytest.mark.parametrize("shape, rule", GRID)
@pytest.mark.parametrize("name", CASES)
def test_the_law_is_that_of_the_history_alone(name, shape, rule):
    options = whole(name, rule)
    seen = observed(engine(*SHAPES[shape]()), SamplingParams.build(options), 4)
    assert abs(sum(seen.values()) - 1.0) <= TOLERANCE
    assert distance(seen, expected(name)) <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_every_option_changes_the_law(name):
    """So that the test above cannot pass because nothing happens."""
    options = whole(name, "auto")
    without = {k: options[k] for k in ("max_tokens", "temperature")}
    assert distance(expected(name), World(TARGET).joint(PROMPT, without)) > CAUGHT


@pytest.mark.parametrize("name", ["penalties", "bad-ids", "bad-texts", "least", "grammar", "grammar-after", "stateful"])
def test_an_engine_that_shapes_all_nodes_by_the_rows_history_is_caught(name, monkeypatch):
    monkeypatch.setattr(Laws, "_at", lambda self, node: self._state)
    options = whole(name, "coupled")
    seen = observed(engine(*SHAPES["points"]()), SamplingParams.build(options), 4)
    assert distance(seen, expected(name)) > CAUGHT
