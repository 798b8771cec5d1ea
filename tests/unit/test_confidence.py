"""Stopping by confidence: the rules, the output's law under them, and that drafting really stops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, gap, toy
from toys import counter

from surefoot.backends.table import TableModel
from surefoot.control.confidence import THRESHOLDS, ConfidenceController, EntropyStop, ProductStop, TopStop
from surefoot.control.costs import LiveCosts
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import PLAIN, Costs, Plan, Verdict
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BadRequest

FREE = Costs(0.0, 1.0, 0.0, 1, 0, 10)
KINDS = tuple(THRESHOLDS)


def row(id: int = 0, tokens=(0,)) -> Row:
    return Row(id, list(tokens), SamplingParams(), limit=10**9)


def live(change: float = 0.0, slope: float = 0.06) -> LiveCosts:
    return LiveCosts(lambda nodes, context: 1.0 + slope * (nodes - 1), change=change)


def of(*law: float) -> np.ndarray:
    return np.array(law)


# rules


def test_top_looks_at_the_most_probable_token_whichever_was_drawn():
    stop = TopStop(0.6)
    assert not stop(of(0.6, 0.3, 0.1), 2, 1)
    assert stop(of(0.59, 0.31, 0.1), 0, 1)


def test_product_multiplies_along_a_draft_and_begins_anew_with_the_next():
    stop = ProductStop(0.7)
    assert [stop(of(0.9, 0.1), 0, depth) for depth in (1, 2, 3, 4)] == [False, False, False, True]  # 0.9^4 = 0.656
    assert not stop(of(0.9, 0.1), 0, 1)
    assert stop(of(0.75, 0.25), 0, 2)


def test_entropy_is_the_published_bound():
    law = of(0.7, 0.2, 0.1, 0.0)
    bound = 1.0 - math.sqrt(0.2 * -sum(x * math.log(x) for x in (0.7, 0.2, 0.1)))
    assert not EntropyStop(bound - 1e-9, 0.2)(law, 0, 1)
    assert EntropyStop(bound + 1e-9, 0.2)(law, 0, 1)
    assert not EntropyStop(1.0, 0.2)(of(1.0, 0.0), 0, 1)  # no doubt at all: the bound is 1
    assert EntropyStop(THRESHOLDS["entropy"], 0.2)(np.full(64, 1 / 64), 0, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_asks_for_all_and_brings_a_rule_of_its_own(kind):
    controller = ConfidenceController("x", live(), max_draft=5, kind=kind)
    one, other = controller.plan([row(0), row(1)])
    assert (one.drafter, one.depth, one.width, one.nodes, one.hold) == ("x", 5, 1, 5, 0)
    sure, torn = of(1.0, 0.0), of(0.5, 0.5)
    assert one.stop is not None
    assert other.stop is not None
    assert [one.stop(sure, 0, 1), one.stop(torn, 0, 2)] == [False, kind != "entropy"]
    assert not other.stop(sure, 0, 1)
    assert not ConfidenceController("x", live(), kind=kind, threshold=0.0).plan([row()])[0].stop(torn, 0, 1)


def test_only_product_has_a_floor_for_drafters_without_a_law():
    floors = {kind: ConfidenceController("x", live(), kind=kind, threshold=0.65).plan([row()])[0].floor for kind in KINDS}
    assert floors == {"top": 0.0, "product": 0.65, "entropy": 0.0}


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter()])
def test_history_drafters_heed_the_floor(drafter):
    said = row(tokens=[1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])

    def drafted(kind: str, threshold: float) -> int:
        plans = ConfidenceController(drafter.name, live(), kind=kind, threshold=threshold).plan([said])
        return len(drafter.propose([said], plans)[0]) - 1

    assert drafted("top", 0.9) == 8
    assert 0 < drafted("product", 0.5) < 8
    assert drafted("product", 0.0) == 8


# the law of the output

TARGETS = {2: toy(2, seed=3, sharpness=0.9), 3: toy(3, seed=4)}
DRAFTS = {2: TableModel.random(2, order=1, seed=8, sharpness=1.0), 3: TableModel.random(3, order=2, seed=9, sharpness=0.9)}


class Kept:
    """A drafter that keeps the lengths of what it proposed; ``change``: what becomes of a row's tree."""

    def __init__(self, drafter: ModelDrafter, change=lambda tree, plan, row: tree) -> None:
        self._drafter, self._change = drafter, change
        self.name, self.source, self.needs = drafter.name, drafter.source, drafter.needs
        self.observe, self.forget = drafter.observe, drafter.forget
        self.lengths: list[int] = []
        self.short: list[bool] = []
        """Whether less was drafted than asked for."""
        self.trees: list[DraftTree] = []

    def propose(self, rows, plans):
        trees = self._drafter.propose(rows, plans)
        trees = [self._change(t, p, r) for t, p, r in zip(trees, plans, rows)]
        self.trees += trees
        self.lengths += [len(t) - 1 for t in trees]
        self.short += [len(t) - 1 < p.depth for t, p in zip(trees, plans) if p.depth > 1]
        return trees


def params(rule: str, tokens: int = 4) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=1.0, verification=rule)


@pytest.mark.parametrize("vocab, rule, tokens", [(2, "coupled", 5), (2, "ratio", 6), (3, "ratio", 5)])
@pytest.mark.parametrize("kind, thresholds", [("top", (0.6, 0.55)), ("product", (0.4, 0.4)), ("entropy", (0.66, 0.57))])
def test_the_joint_law_is_the_targets(kind, thresholds, vocab, rule, tokens):
    """By enumeration of all outcomes; in some of them drafts do stop early, and in some they do not."""
    drafter = Kept(ModelDrafter(DRAFTS[vocab], vocab))
    controller = ConfidenceController("model", live(), max_draft=3, kind=kind, threshold=thresholds[vocab - 2])
    engine = Engine(TARGETS[vocab], [drafter], controller, reuse=False)
    assert gap(engine, params(rule, tokens)) <= TOLERANCE
    assert set(drafter.short) == {False, True}


class OwnStop:
    """Looks at the probability of the token itself."""

    def __call__(self, law, token, depth) -> bool:
        return law[token] < 0.35


class Asking(FixedController):
    def plan(self, rows):
        return [Plan("model", 2, 1, 2, stop=OwnStop()) for _ in rows]


def dropped(tree: DraftTree, plan: Plan, row: Row) -> DraftTree:
    """Without its last token, if that one was what the draft ended for."""
    law, token = tree.q[-1].numpy(), int(tree.tokens[-1])
    if not OwnStop()(law, token, len(tree) - 1):
        return tree
    return DraftTree.chain(tree.tokens.tolist()[:-1], tree.q[:-1] if len(tree) > 2 else None, 1)


def test_stopping_after_an_unlikely_token_is_exact_and_dropping_it_is_not():
    kept, wrong = Kept(ModelDrafter(DRAFTS[3], 3)), Kept(ModelDrafter(DRAFTS[3], 3), dropped)
    assert gap(Engine(TARGETS[3], [kept], Asking("model"), reuse=False), params("ratio")) <= TOLERANCE
    assert gap(Engine(TARGETS[3], [wrong], Asking("model"), reuse=False), params("ratio")) >= CAUGHT
    assert set(kept.short) == {False, True}
    assert 0 in wrong.lengths


# that drafting stops

UNSURE = 17


def unsure_counter() -> TableModel:
    """Counts, and knows little after token UNSURE: the right one has 0.5, two others the rest."""
    model = counter(40)
    model.logits[UNSURE] = -torch.inf
    model.logits[UNSURE, UNSURE + 1] = math.log(0.5)
    model.logits[UNSURE, [3, 5]] = math.log(0.25)
    return model


class Counted:
    """A target that counts its passes."""

    def __init__(self, model: TableModel) -> None:
        self._model = model
        self.passes = 0

    def __getattr__(self, name: str):
        return getattr(self._model, name)

    def score(self, slots, forest, need):
        self.passes += 1
        return self._model.score(slots, forest, need)


@pytest.mark.parametrize("kind, threshold", [("top", 0.6), ("product", 0.7), ("entropy", 0.6)])
def test_the_draft_ends_after_the_unsure_token_which_is_still_verified(kind, threshold):
    model = counter(40)
    said = Engine(model).generate([10], max_tokens=24).token_ids
    assert UNSURE + 1 in said
    draft = Counted(unsure_counter())
    drafter = Kept(ModelDrafter(draft, 40))
    engine = Engine(model, [drafter], ConfidenceController("model", live(), max_draft=8, kind=kind, threshold=threshold))
    done = engine.generate([10], max_tokens=24)
    assert done.token_ids == said
    before = [t.tokens.tolist() for t in drafter.trees if UNSURE in t.tokens.tolist()[:-1]]
    assert before
    assert all(tokens[-1] == UNSURE + 1 for tokens in before)  # the unsure token is in, and nothing after it
    assert any(len(tokens) < 9 for tokens in before)
    assert done.stats.acceptance_rate == 1.0
    assert max(drafter.lengths) == 8
    # one pass a drafted token: those that were not drafted were not computed
    assert draft.passes == sum(drafter.lengths)


# the threshold that moves


def told(controller: ConfidenceController, kept: int, drafted: int) -> None:
    r = row()
    controller.plan([r])
    controller.learn([r], [DraftTree.chain([0] * (drafted + 1), source=1)], [Verdict(tuple(range(1, kept + 1)), 0)], FREE)


def test_one_step_of_the_threshold():
    controller = ConfidenceController("x", live(), threshold=0.5, adapt=0.8, beta=0.9, step=0.1)
    told(controller, 1, 2)  # share 0.5, under 0.8
    assert controller.threshold == pytest.approx(0.51)
    told(controller, 8, 8)  # share 0.75
    assert controller.threshold == pytest.approx(0.52)
    told(controller, 8, 8)  # share 0.875
    assert controller.threshold == pytest.approx(0.51)
    told(controller, 0, 0)  # nothing drafted says nothing
    assert controller.threshold == pytest.approx(0.51)


def test_the_threshold_stays_a_probability():
    for kept, end in ((0, 1.0), (8, 0.0)):
        controller = ConfidenceController("x", live(), adapt=0.5, step=1.0, beta=0.5)
        for _ in range(10):
            told(controller, kept, 8)
        assert controller.threshold == end


def test_without_adapt_the_threshold_is_fixed():
    controller = ConfidenceController("x", live())
    told(controller, 0, 8)
    assert controller.threshold == THRESHOLDS["top"]


@pytest.mark.parametrize("goal", [0.7, 0.85])
def test_the_threshold_finds_the_share_that_is_wanted(goal, rng):
    """Tokens of confidence c, uniform in [0.3, 1], are accepted with chance c."""

    def run(controller: ConfidenceController, rounds: int = 6000) -> float:
        r, all_kept, all_drafted = row(), 0, 0
        for i in range(rounds):
            [plan] = controller.plan([r])
            kept, drafted, going = 0, 0, True
            while drafted < plan.depth:
                c = float(rng.uniform(0.3, 1.0))
                drafted += 1
                going = going and bool(rng.random() < c)
                kept += going
                if plan.stop(of(c, 1.0 - c), 0, drafted):
                    break
            tree = DraftTree.chain([0] * (drafted + 1), source=1)
            controller.learn([r], [tree], [Verdict(tuple(range(1, kept + 1)), 0)], FREE)
            if i >= rounds // 2:
                all_kept, all_drafted = all_kept + kept, all_drafted + drafted
        return all_kept / all_drafted

    free = run(ConfidenceController("x", live(), max_draft=4, threshold=0.0), 2000)
    assert free < 0.5
    held = run(ConfidenceController("x", live(), max_draft=4, threshold=0.6, adapt=goal, step=0.05))
    assert held == pytest.approx(min(goal, 0.66), abs=0.06)  # a draft's first token is always verified: 0.65 at most


# sizes and options


def test_rows_hold_the_longest_size_only_where_that_costs_less_than_changes():
    assert ConfidenceController("x", live(0.0)).plan([row()])[0].hold == 0
    assert ConfidenceController("x", live(0.2, slope=0.06)).plan([row()])[0].hold == 0  # 7 more nodes cost 0.42
    assert ConfidenceController("x", live(0.5, slope=0.06)).plan([row()])[0].hold == 9
    assert ConfidenceController("x", live(0.2, slope=0.06), min_width=7).plan([row()])[0].hold == 9


def test_drafting_is_charged():
    costs = live()
    controller, r = ConfidenceController("x", costs), row()
    controller.plan([r])
    controller.learn([r], [DraftTree.chain([0] * 4)], [Verdict((), 0)], Costs(0.9, 1.0, 0.0, 4, 0, 10))
    assert costs.draft("x") == pytest.approx(0.3)


def test_nothing_to_draft_is_plain():
    assert ConfidenceController("x", live(), max_draft=0).plan([row()]) == [PLAIN]


def test_one_drafter_only():
    assert ConfidenceController(["x"], live()).plan([row()])[0].drafter == "x"
    with pytest.raises(BadRequest, match=r"confidence: drafters=\['x', 'y'\]; give one"):
        ConfidenceController(["x", "y"], live())


@pytest.mark.parametrize(
    "option, value",
    [
        ("max_draft", -1), ("min_width", 0), ("seed", -1), ("kind", "softmax"), ("threshold", 1.1), ("threshold", -0.1),
        ("threshold", float("nan")), ("gamma", 0.0), ("gamma", float("inf")), ("adapt", 1.5), ("beta", -0.1), ("step", 2.0),
    ],
)  # fmt: skip
def test_bad_options_are_named(option, value):
    with pytest.raises(BadRequest, match=rf"confidence: {option}="):
        ConfidenceController("x", live(), **{option: value})
