"""The same laws with the real random numbers: what enumeration cannot see is two decisions that share a key."""

from __future__ import annotations

from collections import Counter

import pytest
from exact.joint import PROMPT, engine_of, expected, q_shape, q_tree, toy
from scipy.stats import chisquare
from toys import Custom

from surefoot.backends.table import TableModel
from surefoot.core.params import SamplingParams
from surefoot.drafters.model import ModelDrafter

TARGET = toy(3, seed=7)
DRAFT = TableModel.random(3, order=1, seed=9, sharpness=0.8)
RUNS = 2000


@pytest.mark.parametrize(
    "shape, rule",
    [
        *((shape, rule) for shape in ("plain", "chain", "tree") for rule in ("coupled", "ratio", "traversal")),
        ("twins", "ratio"),
        ("twins", "kseq"),
        ("twins", "traversal"),
    ],
)
def test_seeds_draw_from_the_joint_law(shape, rule):
    drafter, plan = {
        "plain": (None, (1, 1, 1)),
        "chain": (ModelDrafter(DRAFT, 3), (2, 1, 2)),
        "tree": (Custom(q_tree(DRAFT)), (2, 2, 6)),
        "twins": (Custom(q_shape(DRAFT, [-1, 0, 0, 1, 1], independent=True)), (2, 2, 4)),
    }[shape]
    engine = engine_of(TARGET, drafter, *plan)
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
