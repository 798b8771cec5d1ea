"""Every controller, on every kind of backend, with every kind of drafter: it changes the speed and nothing else."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest
from behaviour import clock
from contract.conftest import Backend
from contract.test_engine_contract import REQUESTS, check, drafter, drafters, go, requests

from surefoot.control.bandit import BanditController
from surefoot.control.breaker import Breaker
from surefoot.control.confidence import ConfidenceController
from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.control.marginal import MarginalController
from surefoot.control.thompson import ThompsonController
from surefoot.control.window import WindowController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams

BACKENDS = ("table", "table-padded", "llama", "openvino-llama")
DRAFTERS = ("mixed", "model", "ngram")


def breaker(names, costs, **options):
    inner = ThompsonController(names, costs, **options)
    return Breaker(inner, costs, patience=2, wait=2, probe=2, min_width=options["min_width"])


def goodput(names, costs, *, seed, **options):
    return GoodputController(names, costs, **options)


def marginal(names, costs, *, seed, **options):
    """With a few sizes where changing one is dear."""
    return MarginalController(names, costs, sizes=(3, 8) if costs.change else (), switch=costs.change / 2, **options)


MAKERS: dict[str, Callable] = {
    "fixed": lambda names, costs, **options: FixedController(names[0], 5),
    "window": lambda names, costs, **options: WindowController(names[0], 8, 0, 2, window=4, warmup=2),
    "goodput": goodput,
    "top": lambda *a, **options: ConfidenceController(*a, **options, kind="top"),
    "product": lambda *a, **options: ConfidenceController(*a, **options, kind="product", threshold=0.3),
    "entropy": lambda *a, **options: ConfidenceController(*a, **options, kind="entropy"),
    "adapting": lambda *a, **options: ConfidenceController(*a, **options, adapt=0.8, step=0.2),
    "thompson": ThompsonController,
    "thompson-row": lambda *a, **options: ThompsonController(*a, **options, per_row=True),
    "ucb": BanditController,
    "exp3": lambda *a, **options: BanditController(*a, **options, kind="exp3"),
    "breaker": breaker,
    "marginal": marginal,
}
CHOOSE = ("goodput", "thompson", "thompson-row", "ucb", "exp3", "breaker")
"""Those that take several drafters."""


def controller(backend: Backend, name: str, drafters: list[str], change: float = 0.0, seed: int = 0):
    costs = LiveCosts(lambda nodes, context: 1.0 + 0.05 * nodes, change=change)
    return MAKERS[name](drafters, costs, max_draft=6, min_width=backend.target.traits.min_width, seed=seed)


@pytest.fixture
def backend(request, backends: Callable[[str], Backend]) -> Backend:
    return backends(request.param)


def grid() -> list:
    """With and without a price on a change of size; it says nothing to the first two."""
    cells = itertools.product(BACKENDS, DRAFTERS, MAKERS, (0.0, 0.5))
    return [
        pytest.param(name, kind, who, change, id=f"{name}-{kind}-{who}-{'dear' if change else 'free'}")
        for name, kind, who, change in cells
        if not (change and who in ("fixed", "window"))
    ]


@pytest.mark.parametrize("backend, kind, who, change", grid(), indirect=["backend"])
def test_a_ragged_batch_says_what_plain_decoding_says(backend, kind, who, change):
    """Greedy, seeded and one-hot rows of one batch, prefill in chunks among the drafts."""
    one = drafter(backend, kind)
    engine = Engine(backend.target, [one], controller(backend, who, [one.name], change), chunk=8)
    rows = go(engine, [engine.add(prompt, params) for prompt, params in requests(backend)])
    for row in rows:
        check(backend, row)
    if kind != "ngram":
        assert sum(row.stats.draft_tokens for row in rows) > 0
    engine.close()
    for name in ("target", "draft"):
        assert backend.held(getattr(backend, name)) == 0


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("who", CHOOSE)
def test_of_several_drafters(backend, who):
    """Two in turn or side by side; requests that come one after the other, so that something was learned."""
    several = [drafter(backend, "ngram"), drafter(backend, "mixed")]
    several[1].source = 2
    engine = Engine(backend.target, several, controller(backend, who, ["ngram", "script"]), chunk=8)
    for _ in range(2):
        for row in go(engine, [engine.add(prompt, params) for prompt, params in requests(backend)]):
            check(backend, row)
    for prompt, params in requests(backend):
        [row] = go(engine, [engine.add(prompt, params)])
        check(backend, row)
    engine.close()


@pytest.mark.parametrize("backend", [*BACKENDS, "openvino-mask"], indirect=True)
@pytest.mark.parametrize("change", [0.0, 0.5], ids=["free", "dear"])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("guarded", [False, True], ids=["bare", "guarded"])
def test_marginal_cuts_the_drafts_of_hybrid(backend, change, width, guarded):
    """Drafts whose length follows what was learned, alone and in ragged batches, chains and trees."""
    several = drafters(backend, "hybrid")
    costs = LiveCosts(lambda nodes, context: 1.0 + 0.05 * nodes, change=change)
    inner = marginal(["hybrid"], costs, seed=0, max_draft=6, min_width=backend.target.traits.min_width, width=width)
    control = Breaker(inner, costs, patience=2, wait=2, probe=2, min_width=inner._min_width) if guarded else inner
    engine = Engine(backend.target, several, control, chunk=8)
    rows = go(engine, [engine.add(prompt, params) for prompt, params in requests(backend)])
    for prompt, params in requests(backend):
        rows += go(engine, [engine.add(prompt, params)])
    for row in rows:
        check(backend, row)
    assert sum(row.stats.accepted_tokens for row in rows) > 0
    assert guarded or _held(control) == 0
    engine.close()
    for name in ("target", "draft"):
        assert backend.held(getattr(backend, name)) == 0


@pytest.mark.parametrize("backend", ["table-padded"], indirect=True)
@pytest.mark.parametrize("who", MAKERS)
def test_the_controllers_numbers_are_not_the_requests(backend, who):
    """Rows that draw from the law, seeded: equal under controllers of other seeds, alone and beside others."""
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=7)
    said = set()
    for seed in (0, 1):
        for beside in (0, 3):
            one = drafter(backend, "model")
            engine = Engine(backend.target, [one], controller(backend, who, [one.name], seed=seed))
            others = [engine.add(*request) for request in requests(backend)[:beside]]
            row = engine.add(backend.prompt(9, 1), params)
            go(engine, [row, *others])
            said.add(tuple(row.output))
            engine.close()
    plain = Engine(backend.target)
    assert said == {tuple(go(plain, [plain.add(backend.prompt(9, 1), params)])[0].output)}
    plain.close()


@pytest.mark.parametrize("backend", ["table"], indirect=True)
@pytest.mark.parametrize("who", MAKERS)
def test_ended_and_aborted_requests_leave_nothing_behind(backend, who):
    """What a controller holds after a hundred requests does not grow with their number."""
    one = drafter(backend, "mixed")
    control = controller(backend, who, [one.name])
    engine = Engine(backend.target, [one], control)
    for turn in range(20):
        rows = [engine.add(prompt, params) for prompt, params in requests(backend)]
        for _ in range(3):
            engine.step()
        engine.abort(rows[turn % len(REQUESTS)])
        go(engine, rows)
    assert _held(control) < 40
    engine.close()


def _held(thing) -> int:
    """Entries of all dicts that are keyed by rows, however deep."""
    inner = [*vars(thing).values()] if hasattr(thing, "__dict__") else []
    own = sum(len(v) for v in inner if isinstance(v, dict) and all(isinstance(k, int) for k in v))
    return own + sum(_held(v) for v in inner if type(v).__module__.startswith("surefoot."))


@functools.cache
def _best_fixed(accuracy: float) -> float:
    return max(clock.rate(clock.decode(_price, 0.05, accuracy, k, 1200), 1200) for k in (0, 1, 2, 3, 5, 8))


def _price(nodes: int) -> float:
    return 1.0 + 0.06 * (nodes - 1)


@pytest.mark.parametrize("accuracy", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("who, share", [("thompson", 0.95), ("ucb", 0.93), ("exp3", 0.89)])
def test_in_the_engine_they_come_near_the_best_fixed_length(who, share, accuracy):
    """On a clock that only work moves; plain decoding is the best where drafts are always wrong."""
    now = clock.Clock()
    script = clock.Script(now, 0.05, accuracy)
    control = MAKERS[who](["script"], LiveCosts(lambda nodes, context: _price(nodes)), max_draft=8)
    engine = Engine(clock.Priced(now, _price), [script], control, clock=now)
    stats = engine.generate([clock.VOCAB - 1, 0], max_tokens=1200).stats
    assert clock.rate(stats, 1200) >= share * _best_fixed(accuracy)
