"""A lane as a model: what an engine over it says is what stepping the lane says, whoever drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import Custom, random_trees
from toys_exit import LAYER, exit_head, exit_target
from toys_heads import TableLane

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Follows, Need, Plan, TargetModel
from surefoot.core.shadow import shadow
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.lane_target import LaneTarget
from surefoot.drafters.ngram import NgramDrafter
from surefoot.errors import BackendError, Unsupported

V = 9
TARGET = TableModel.random(V, 2, seed=5)
LANE = TableModel.random(V, 2, seed=6)
IDS = (1, 4, 6, 7)
OPTIONS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.0, "repetition_penalty": 1.8},
]


class Once(TableLane):
    """Refuses to read a path twice."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen: set = set()

    def step(self, states, tokens):
        for state, token in zip(states, tokens, strict=True):
            assert (*state, token) not in self.seen
            self.seen.add((*state, token))
        return super().step(states, tokens)


def begun(*prompts, **options):
    """Rows of an engine over the real target, which have said a token."""
    engine = Engine(TARGET)
    rows = [engine.add(p, SamplingParams(**{"max_tokens": 40, **options})) for p in prompts]
    engine.step()
    return engine, rows


def stepped(row, tokens, lane=LANE, ids=None):
    """What a request says that goes on by the lane's law: the lane's table as a target, from the row's tokens on."""
    table = lane
    if ids is not None:
        logits = torch.full_like(lane.logits, -torch.inf)
        logits[:, ids] = lane.logits[:, ids]
        table = TableModel(logits, lane.order)
    engine = Engine(table)
    other = engine.add(row.tokens, row.params)
    other.n_prompt, other.limit, other.noise = row.n_prompt, len(row.tokens) - row.n_prompt + tokens, row.noise
    if row.state is not None:
        other.state = row.state.fork()
    while not other.done:
        engine.step()
    return other.tokens[len(row.tokens) :]


def inner(target, drafter=None, k=3, hold=0):
    if drafter is None:
        return Engine(target, reuse=False)
    controller = FixedController(drafter.name, k)
    if hold:
        plan = controller.plan

        class Held:
            def plan(self, rows):
                return [replace(each, hold=hold) for each in plan(rows)]

            def learn(self, *args): ...

            def forget(self, rows): ...

        controller = Held()
    return Engine(target, [drafter], controller, reuse=False)


def review(engine, rows, tokens):
    """A shadow of each row goes on by the engine's target."""
    shadows = [shadow(row) for row in rows]
    for each, n in zip(shadows, tokens, strict=True):
        each.limit, each.stop_ids = len(each.tokens) - each.n_prompt + n, frozenset()
        engine.adopt(each)
    engine.step([])
    for each, row in zip(shadows, rows, strict=True):
        assert engine.target.follow(each.slot, row)
        assert each.slot.length == len(row.tokens) - 1
    while not all(each.done for each in shadows):
        engine.step(shadows)
    return [each.drafted for each in shadows]


def oracle(right):
    """Knows what comes, but for every ``right``-th token."""

    def one(row, plan):
        found = stepped(row, plan.depth)
        at = len(row.tokens)
        said = [(t + ((at + i) % right == 0)) % V for i, t in enumerate(found)]
        return DraftTree.chain([row.tokens[-1], *said], source=1)

    return Custom(one)


DRAFTERS = {
    "none": lambda: None,
    "ngram": lambda: NgramDrafter(),
    "oracle": lambda: oracle(3),
    "right": lambda: oracle(1000),
    "random": lambda: Custom(random_trees(V, 3)),
    "head": lambda: HeadDrafter(TableLane(LANE.mixed(TARGET, 0.3)), V, name="head", source=1),
}


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_an_engine_over_a_lane_says_what_its_steps_say(drafter, options, ids):
    outer, rows = begun([1, 2, 3], [4], [5, 5, 6, 7, 8, 0, 1], **options)
    lane = Once(LANE, ids, depth=30)
    engine = inner(LaneTarget(lane, V), DRAFTERS[drafter]())
    for _ in range(3):
        counts = [9, 4, 12]
        assert review(engine, rows, counts) == [stepped(row, n, ids=ids) for row, n in zip(rows, counts, strict=True)]
        outer.step()
        lane.seen.clear()


def test_the_protocols():
    lane = TableLane(LANE, depth=7)
    target = LaneTarget(lane, V, name="middle", max_context=99)
    assert isinstance(target, TargetModel)
    assert isinstance(target, Follows)
    traits = target.traits
    assert (traits.name, traits.vocab_size, traits.max_context, traits.max_nodes) == ("middle", V, 99, 7)
    assert (traits.tree, traits.steady, traits.exact, traits.min_width, traits.hidden) == (False, False, True, 1, ())
    assert target.probe().exact
    assert target.depth == 7
    assert target.lane is lane


def score(target, slot, *tokens, lead=(), **options):
    forest = Forest.pack([DraftTree.chain(tokens)], [list(lead)], **options)
    return target.score([slot], forest, Need()).logits


def test_partial_commits_and_forks():
    outer, [row] = begun([1, 2, 3], temperature=0.0)
    lane = Once(LANE)
    target = LaneTarget(lane, V)
    [slot] = target.open(1)
    assert target.follow(slot, row)
    t = row.tokens

    def law(*tokens):
        return LANE.next_logits([*t, *tokens])

    found = score(target, slot, t[-1], 4, 5, 6)
    assert torch.equal(found, torch.stack([law(), law(4), law(4, 5), law(4, 5, 6)]))
    assert slot.length == len(t) - 1, "nothing is kept before it is committed"
    target.commit([slot], [[0, 1]])
    assert slot.length == len(t) + 1
    assert torch.equal(score(target, slot, 7, 7), torch.stack([law(4, 7), law(4, 7, 7)]))
    target.commit([slot], [[]])
    assert slot.length == len(t) + 1
    # three steps ahead of the first pass's two: the rest is known
    lane.steps.clear()
    assert torch.equal(score(target, slot, 6, lead=(5,)), law(4, 5, 6)[None])
    assert lane.steps == []
    target.commit([slot], [[0, 1]])
    whole, part, root = target.fork(slot), target.fork(slot, len(t)), target.fork(slot, len(t) - 1)
    assert [each.length for each in (whole, part, root)] == [len(t) + 3, len(t), len(t) - 1]
    assert torch.equal(score(target, whole, 8), law(4, 5, 6, 8)[None])
    assert torch.equal(score(target, part, 3), law(3)[None])
    assert torch.equal(score(target, root, t[-1]), law()[None])
    target.commit([part, whole], [[0], [0]])
    assert [each.length for each in (slot, whole, part)] == [len(t) + 3, len(t) + 4, len(t) + 1]
    assert target.fork(slot, 0).length == 0
    with pytest.raises(BackendError, match="goes back to 3"):
        target.fork(slot, 2)
    target.close([slot, whole, part])
    assert torch.equal(score(target, root, t[-1], 4), torch.stack([law(), law(4)])), "read before, by others"
    outer.abort(row)
    _, [_, other] = begun([1, 2, 3], [5], temperature=0.0)
    target.follow(root, other)
    assert [own.row for own in target.paths._rounds.values()] == [other], "what was read of rows that ended is dropped"


def test_padding_is_not_read():
    _, [row] = begun([1, 2, 3], temperature=0.0)
    lane = TableLane(LANE)
    target = LaneTarget(lane, V)
    [slot] = target.open(1)
    target.follow(slot, row)
    found = score(target, slot, row.tokens[-1], 4, hold=[6], min_width=3)
    assert found.shape == (2, V)
    assert sum(lane.steps) == 2
    _, rows = begun([1, 2, 3], [4], temperature=0.0)
    lane.steps.clear()
    engine = inner(LaneTarget(lane, V), oracle(2), k=2, hold=8)
    assert review(engine, rows, [7, 5]) == [stepped(row, n) for row, n in zip(rows, (7, 5), strict=True)]
    assert sum(lane.steps) < 12 * 2


def test_chunks_without_wanted_logits():
    _, [row] = begun([1, 2, 3], temperature=0.0)
    target = LaneTarget(TableLane(LANE), V)
    [slot] = target.open(1)
    target.follow(slot, row)
    assert score(target, slot, row.tokens[-1], 4, wanted=[False]).shape == (0, V)
    target.commit([slot], [[0, 1]])
    assert torch.equal(score(target, slot, 5), LANE.next_logits([*row.tokens, 4, 5])[None])


def test_words_that_it_does_not_have_or_that_stand_for_nothing():
    _, [row] = begun([1, 2, 3], temperature=0.0)
    for ids, known, want in (
        (IDS, None, {1, 4, 6, 7}),
        (None, 5, set(range(5))),
        (IDS, 7, {1, 4, 6}),
        (None, 99, set(range(V))),
    ):
        target = LaneTarget(TableLane(LANE, ids), V, known=known)
        [slot] = target.open(1)
        target.follow(slot, row)
        [found] = score(target, slot, row.tokens[-1])
        assert set((found > -torch.inf).nonzero().flatten().tolist()) == want
        assert torch.equal(found[sorted(want)], LANE.next_logits(row.tokens)[sorted(want)])


def test_it_follows_shadows_as_far_as_the_lane_looks():
    _, [row] = begun([1, 2, 3], temperature=0.0)
    lane = TableLane(LANE, depth=3)
    target = LaneTarget(lane, V)
    [slot] = target.open(1)
    assert target.follow(slot, shadow(row, [4, 5]))
    assert slot.length == len(row.tokens) + 1
    found = score(target, slot, 5, 6)
    assert torch.equal(found[0], LANE.next_logits([*row.tokens, 4, 5]))
    assert not found[1].any(), "so far ahead, all are alike"
    assert sum(lane.steps) == 3
    assert not target.follow(slot, shadow(row, [4, 5, 6]))
    lane.deaf = {row.id}
    target.paths.forget([row])
    assert not target.follow(slot, row)


def test_a_drafter_and_a_target_on_one_lane_share_what_was_read():
    _, [row] = begun([1, 2, 3], temperature=0.0)
    lane = Once(LANE)
    drafter = HeadDrafter(lane, V, name="h")
    target = LaneTarget(lane, V, paths=drafter.paths)
    want = stepped(row, 4)
    assert review(inner(target), [row], [4]) == [want]
    [tree] = drafter.propose([row], [Plan("h", 4, 1, 4)])
    assert tree.tokens[1:].tolist() == want
    assert sum(lane.steps) == 4


def test_a_draft_is_reviewed_in_one_reading():
    target = exit_target(V)
    lane = ExitLane(exit_head(target, "kangaroo", layer=LAYER), target)
    outer = Engine(target, [HeadDrafter(lane, V, name="h", source=1)], FixedController("h", 0))
    row = outer.add([1, 2, 3], SamplingParams(max_tokens=9, temperature=0.0))
    outer.step()
    reviewer = LaneTarget(lane, V)
    [slot] = reviewer.open(1)
    assert reviewer.follow(slot, row)
    t = row.tokens[-1]
    score(reviewer, slot, t, 4, 5, 6)
    assert target.ran == [[(t, 4, 5, 6)]]
    reviewer.commit([slot], [[0, 1]])
    score(reviewer, slot, 5, 8)
    assert target.ran[1:] == [[(t, 4, 5, 8)]]
    outer.close()


def test_refusals():
    outer, [row] = begun([1, 2, 3], temperature=0.0)
    target = LaneTarget(TableLane(LANE), V)
    [slot] = target.open(1)
    with pytest.raises(BackendError, match="follow the row"):
        score(target, slot, 1)
    target.follow(slot, row)
    with pytest.raises(Unsupported, match="tap"):
        target.score([slot], Forest.pack([DraftTree.chain([1])]), Need((1,)))
    bush = DraftTree(torch.tensor([row.tokens[-1], 2, 3]), torch.tensor([-1, 0, 0]), None, torch.zeros(3, dtype=torch.int16))
    with pytest.raises(BackendError, match="chains only"):
        target.score([slot], Forest.pack([bush]), Need())
    score(target, slot, row.tokens[-1], 2)
    for nodes in ([1], [0, 1, 2], [1, 0]):
        with pytest.raises(BackendError, match="not a beginning"):
            target.commit([slot], [nodes])
    target.commit([slot], [[0]])
    with pytest.raises(BackendError, match="not a beginning"):
        target.commit([slot], [[0]])
    outer.step()
    with pytest.raises(BackendError, match="follow the row"):
        score(target, slot, 1)
    target.close([slot, slot])
    for use in (lambda: target.follow(slot, row), lambda: target.fork(slot), lambda: target.commit([slot], [[]])):
        with pytest.raises(BackendError, match="closed"):
            use()
    target.close(TARGET.open(1))
