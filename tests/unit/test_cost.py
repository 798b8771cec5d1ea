"""The cost model: measured by a clock that the test controls, interpolated, stored."""

from __future__ import annotations

import json

import pytest
import torch

from surefoot.backends.table import TableModel
from surefoot.core.cost import CostModel, rising
from surefoot.core.measure import measure
from surefoot.core.protocols import Scores
from surefoot.errors import BadRequest


class Timed(TableModel):
    """Each pass takes fixed + a_node * nodes + a_cached * context seconds, on a clock of its own."""

    def __init__(self, fixed=1.0, a_node=0.25, a_cached=0.001, jitter=(), **options):
        super().__init__(torch.zeros(6, 5), **options)
        self.now = 0.0
        self._cost = (fixed, a_node, a_cached)
        self._jitter = list(jitter)
        self.widths: list[int] = []

    def clock(self) -> float:
        return self.now

    def score(self, slots, forest, need) -> Scores:
        fixed, a_node, a_cached = self._cost
        extra = self._jitter.pop() if self._jitter else 0.0
        self.now += fixed + a_node * forest.nodes + a_cached * slots[0].length + extra
        self.widths.append(forest.nodes)
        return super().score(slots, forest, need)


def test_measures_what_passes_take():
    target = Timed()
    cost = measure(target, (1, 2, 4, 8), context=100, far=1000, repeats=3, clock=target.clock)
    assert cost.widths == (1, 2, 4, 8)
    assert cost.seconds == pytest.approx([1 + 0.25 * w + 0.1 for w in (1, 2, 4, 8)])
    assert cost.context == 100
    assert cost.per_context == pytest.approx(0.001)
    assert cost(6, 600) == pytest.approx(1 + 0.25 * 6 + 0.6)
    assert target.open_slots == 0


def test_one_slow_pass_does_not_spoil_the_median():
    target = Timed(a_cached=0.0, jitter=[50.0 if i == 8 else 0.0 for i in range(40)][::-1])
    cost = measure(target, (1, 2), context=10, far=20, repeats=5, clock=target.clock)
    assert cost.seconds == pytest.approx([1.25, 1.5])


def test_never_narrower_than_the_backend_pads_nor_wider_than_it_takes():
    target = Timed(min_width=3, max_nodes=10)
    cost = measure(target, (1, 2, 4, 8, 32), context=20, far=100, repeats=1, clock=target.clock)
    assert cost.widths == (3, 4, 8)
    assert min(target.widths) >= 3


def test_a_short_context_is_not_overrun():
    target = Timed(max_context=40)
    cost = measure(target, (1, 2, 4, 32), context=200, far=1000, repeats=1, clock=target.clock)
    assert cost.widths == (1, 2, 4)
    assert cost.context < 40


def test_the_cache_is_as_it_was_between_passes():
    """Each timed pass runs at the same context: nothing that it scored is kept."""
    target = Timed(a_node=0.0, fixed=0.001, a_cached=1.0)
    cost = measure(target, (1, 2, 4), context=50, far=200, repeats=4, clock=target.clock)
    assert cost.seconds == pytest.approx([50.001] * 3)


def test_interpolates_and_goes_on_with_the_last_slope():
    cost = CostModel((2, 4, 8), (1.0, 2.0, 6.0), context=100, per_context=0.01)
    assert [cost(n) for n in (1, 2, 3, 4, 6, 8, 10)] == pytest.approx([1.0, 1.0, 1.5, 2.0, 4.0, 6.0, 8.0])
    assert cost(2, 300) == pytest.approx(3.0)
    assert cost(2, 50) == pytest.approx(0.5)
    assert cost(2, -1000) == pytest.approx(0.1)  # never nothing, never negative
    assert CostModel((4,), (2.0,), 0)(8) == pytest.approx(4.0)
    assert CostModel((4,), (2.0,), 0)(1) == pytest.approx(2.0)


def test_survives_storage():
    cost = CostModel((1, 2, 5), (0.1, 0.15, 0.3), 200, 1e-6)
    assert CostModel.from_dict(json.loads(json.dumps(cost.to_dict()))) == cost


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"widths": [1], "seconds": [1.0], "context": 3},
        {"widths": [1, 2], "seconds": [1.0], "context": 3, "per_context": 0},
        {"widths": [2, 1], "seconds": [1.0, 1.0], "context": 3, "per_context": 0},
        {"widths": [], "seconds": [], "context": 3, "per_context": 0},
        {"widths": [1], "seconds": [0.0], "context": 3, "per_context": 0},
        {"widths": [1], "seconds": ["x"], "context": 3, "per_context": 0},
        {"widths": None, "seconds": [1.0], "context": 3, "per_context": 0},
    ],
)
def test_broken_storage_is_refused(data):
    with pytest.raises(BadRequest, match="measure"):
        CostModel.from_dict(data)


def test_a_curve_that_falls_is_pooled():
    assert rising([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert rising([3.0, 1.0, 5.0]) == [2.0, 2.0, 5.0]
    assert rising([1.0, 4.0, 3.0, 2.0]) == [1.0, 3.0, 3.0, 3.0]
    assert rising([]) == []
