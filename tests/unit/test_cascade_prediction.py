"""The cascades that run are those of the theory: tokens and passes of each level, counted over scripted runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.horizontal import HorizontalDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.theory import arrivals, cascade
from surefoot.theory.cascade import Level

VOCAB, PROMPT, TOKENS, RUNS = 32, 4, 300, 4


class Said(TableModel):
    """After n tokens comes ``text[n]``, whatever they are. ``widths``: tokens of each pass behind the prompt."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__(torch.zeros(VOCAB + 1, VOCAB))
        self._text = text
        self._laws = 30.0 * torch.eye(VOCAB, dtype=torch.float64)
        self.widths: list[int] = []

    def next_logits(self, tokens):
        return self._laws[self._text[len(tokens)]]

    def score(self, slots, forest, need):
        if slots[0].length:
            self.widths.append(forest.nodes)
        return super().score(slots, forest, need)


def like(text, alpha, rng):
    """Other tokens at a share 1 - alpha of the places, the same share in every run."""
    hits = rng.permutation(len(text)) < round(alpha * len(text))
    return [t if hit else (t + 1) % VOCAB for t, hit in zip(text, hits)]


def script(said, number):
    made = ScriptDrafter(lambda row: said[row.n_prompt :], VOCAB, source=number)
    made.name = f"script{number}"
    return made


def decoded(engine, text):
    """Rounds behind the prompt's own pass."""
    row = engine.add(text[:PROMPT], SamplingParams(max_tokens=len(text) - PROMPT, ignore_eos=True))
    engine.step()
    rounds = 0
    while len(row.output) < TOKENS:
        engine.step()
        rounds += 1
    assert row.tokens == text[: len(row.tokens)]
    return rounds, len(row.output) - 1


@pytest.mark.parametrize(
    "alphas, steps",
    [
        ((0.8, 0.4), (5, 3)),
        ((0.6, 0.8), (2, 6)),
        ((0.9, 0.5), (1, 4)),
        ((0.9, 0.7, 0.5), (2, 2, 3)),
        ((0.7, 0.9, 0.6), (3, 1, 2)),
    ],
)
def test_a_vertical_cascade_is_that_of_the_theory(alphas, steps, rng):
    levels = [Level(a, n, 0.1) for a, n in zip(alphas, steps)]
    rounds = tokens = 0
    widths: list[list[int]] = [[] for _ in levels]
    for _ in range(RUNS):
        text = rng.integers(VOCAB, size=PROMPT + TOKENS + 120).tolist()
        said = [text]
        for alpha in alphas:
            said.append(like(said[-1], alpha, rng))
        drafters = [script(said[-1], 1)]
        models = [Said(one) for one in said[:-1]]
        most = steps[-1]
        for i in range(len(alphas) - 2, -1, -1):
            engine = Engine(models[i + 1], [Below(d) for d in drafters], FixedController(drafters[-1].name, most), reuse=False)
            name = f"cascade{i}"
            drafters.append(CascadeDrafter(engine, VOCAB, steps=steps[i], name=name, source=len(drafters) + 1))
            most = steps[i] * (most + 1)
        engine = Engine(models[0], drafters, FixedController(drafters[-1].name, most), reuse=False)
        made, gave = decoded(engine, text)
        engine.close()
        rounds, tokens = rounds + made, tokens + gave
        for seen, model in zip(widths, models):
            seen += model.widths
    law = arrivals.draft_law(levels)
    expected = arrivals.kept(law, alphas[0])
    assert tokens / rounds == pytest.approx(expected, rel=5 * 0.7 / math.sqrt(rounds))
    spread = math.sqrt(float(law @ np.arange(len(law)) ** 2 - (law @ np.arange(len(law))) ** 2))
    mean = float(law @ np.arange(len(law)))
    assert np.mean(widths[0]) == pytest.approx(1 + mean, abs=5 * spread / math.sqrt(rounds) + 0.01)
    times = 1
    for i, (seen, level) in enumerate(zip(widths[1:], levels)):
        times *= level.steps
        assert len(seen) == pytest.approx(times * rounds, rel=0.01)  # a round makes so many reviews, and each is one pass
        rest = arrivals.draft_law(levels[i + 1 :])
        # where all of a draft was accepted, the next pass also catches up with its last token
        assert -0.2 < np.mean(seen) - 1 - float(rest @ np.arange(len(rest))) < 1.0


def test_a_horizontal_cascade_is_that_of_the_theory(rng):
    alphas, lengths = (0.9, 0.6, 0.3), (2, 3, 2)
    rounds = tokens = 0
    for _ in range(RUNS):
        text = rng.integers(VOCAB, size=PROMPT + TOKENS + 120).tolist()
        target = Said(text)
        parts = [script(like(text, a, rng), i) for i, a in enumerate(alphas, 1)]
        whole = HorizontalDrafter(parts, lengths, source=4)
        engine = Engine(target, [*parts, whole], FixedController("horizontal", 7), reuse=False)
        made, gave = decoded(engine, text)
        engine.close()
        rounds, tokens = rounds + made, tokens + gave
        assert set(target.widths) == {8}
    assert tokens / rounds == pytest.approx(cascade.horizontal_tokens(alphas, lengths), rel=5 * 0.5 / math.sqrt(rounds))
