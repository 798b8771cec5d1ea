"""The same laws with the real random numbers: what enumeration cannot see is two decisions that share a key."""

from __future__ import annotations

from collections import Counter

import pytest
from exact.joint import PROMPT, engine_of, expected, q_tree, toy
from scipy.stats import chisquare
from toys import Custom

from surefoot.backends.table import TableModel
from surefoot.core.params import SamplingParams
from surefoot.drafters.model import ModelDrafter

TARGET = toy(3, seed=4)
DRAFT = TableModel.random(3, order=1, seed=9, sharpness=0.8)
RUNS = 2000


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
@pytest.mark.parametrize("shape", ["plain", "chain", "tree"])
def test_seeds_draw_from_the_joint_law(rule, shape):
    drafter = {"plain": None, "chain": ModelDrafter(DRAFT, 3), "tree": Custom(q_tree(DRAFT))}[shape]
    engine = engine_of(TARGET, drafter, 2, 2 if shape == "tree" else 1, 6 if shape == "tree" else 2)
    params = [SamplingParams(max_tokens=4, temperature=1.0, verification=rule, seed=s) for s in range(RUNS)]
    seen: Counter[tuple[int, ...]] = Counter()
    for begin in range(0, RUNS, 50):
        rows = [engine.add(PROMPT, p) for p in params[begin : begin + 50]]
        while not all(row.done for row in rows):
            engine.step()
        seen.update(tuple(row.output) for row in rows)
    law = expected(TARGET, params[0], 4)
    paths = sorted(law)
    assert chisquare([seen[x] for x in paths], [RUNS * law[x] for x in paths]).pvalue > 1e-5
