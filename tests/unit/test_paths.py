"""Heads that draft behind what others drafted: as behind committed tokens, and without reading a path twice in a round."""

from __future__ import annotations

import pytest
import torch
from toys import fixed
from toys_heads import TableLane

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.core.shadow import shadow
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.head_source import HeadSource
from surefoot.drafters.paths import Paths, path, whole

V = 9
TARGET = TableModel.random(V, 2, seed=5)
DRAFT = TableModel.random(V, 3, seed=6)
OPTIONS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.9, "seed": 3, "verification": "ratio"},
    {"temperature": 0.0, "repetition_penalty": 1.8},
    {"temperature": 0.8, "seed": 2, "frequency_penalty": 1.0, "verification": "ratio"},
]


class Once(TableLane):
    """Refuses to step a path twice; roots may be asked for once a round, too."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen: set = set()
        self.roots = 0

    def root(self, row):
        assert row.of is None, "a lane knows requests only"
        self.roots += 1
        return super().root(row)

    def step(self, states, tokens):
        for state, token in zip(states, tokens, strict=True):
            assert (*state, token) not in self.seen
            self.seen.add((*state, token))
        return super().step(states, tokens)


def begun(prompts, **options):
    engine = Engine(TARGET)
    rows = [engine.add(p, SamplingParams(max_tokens=30, **options)) for p in prompts]
    engine.step()
    return engine, rows


def twin(row, drafted):
    """A request whose tokens are the row's and the drafted ones."""
    other = shadow(row, drafted)
    other.id, other.of = 77, None
    return other


def same(a, b):
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(a.parents, b.parents)
    assert torch.equal(a.source, b.source)
    assert (a.q is None) == (b.q is None)
    assert a.q is None or torch.equal(a.q, b.q)


@pytest.mark.parametrize("ids", [None, (1, 4, 6, 7)], ids=["all", "some"])
@pytest.mark.parametrize("plan", [(1, 1, 1), (4, 1, 4), (3, 2, 5)])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
def test_a_shadow_is_drafted_for_like_a_request_with_its_tokens(options, plan, ids):
    _, [row] = begun([[1, 2, 3]], **options)
    depth, width, nodes = plan
    asked = Plan("h", depth, width, nodes)
    for drafted in ([], [4], [4, 0, 8]):
        [found] = HeadDrafter(Once(DRAFT, ids), V, name="h").propose([shadow(row, drafted)], [asked])
        [want] = HeadDrafter(TableLane(DRAFT, ids), V, name="h").propose([twin(row, drafted)], [asked])
        same(found, want)
        assert len(found) > 1
        assert int(found.tokens[0]) == [*row.tokens, *drafted][-1]


def test_nothing_is_read_twice_in_a_round():
    _, rows = begun([[1, 2, 3], [4]], temperature=0.0)
    lane = Once(DRAFT)
    drafter = HeadDrafter(lane, V, name="h")
    plan = Plan("h", 3, 1, 3)
    trees = drafter.propose(rows, [plan, plan])
    assert lane.steps == [2, 2, 2]
    said = [tree.tokens[1:].tolist() for tree in trees]
    lane.steps.clear()
    assert drafter.propose(rows, [plan, plan])[1].tokens.tolist() == trees[1].tokens.tolist()
    assert lane.steps == []
    # behind its own draft: what it said there is known but for the last token's own step and what comes after
    [further] = drafter.propose([shadow(rows[0], said[0])], [Plan("h", 2, 1, 2)])
    assert lane.steps == [1, 1]
    lane.steps.clear()
    drafter.propose([shadow(rows[0], [*said[0], int(further.tokens[1])])], [Plan("h", 1, 1, 1)])
    assert lane.steps == []
    # two branches that begin alike, and one of another row: what they share is read once, each branch as far as it goes
    wrong = (said[0][0] + 1) % V
    shadows = [shadow(rows[0], [wrong, 1, 2]), shadow(rows[0], [wrong, 3]), shadow(rows[1], [said[1][0], 5])]
    found = drafter.propose(shadows, [Plan("h", 1, 1, 1)] * 3)
    assert sum(lane.steps) == 3 + 1 + (said[1][1] != 5)
    for each, tree in zip(shadows, found, strict=True):
        same(tree, HeadDrafter(TableLane(DRAFT), V, name="h").propose([twin(each, [])], [Plan("h", 1, 1, 1)])[0])
    assert lane.roots == 2


def test_a_round_ends_when_the_row_goes_on():
    lane = Once(DRAFT)
    drafter = HeadDrafter(lane, V, name="h")
    engine = fixed(TARGET, drafter, 2)
    row = engine.add([1, 2, 3], SamplingParams(max_tokens=30, temperature=0.0))
    while not row.done:
        before = list(row.tokens)
        if len(row.tokens) > row.n_prompt and row.remaining > 4:
            [tree] = drafter.propose([shadow(row, [3, 3])], [Plan("h", 2, 1, 2)])
            assert tree.tokens[1] == int(DRAFT.next_logits([*before, 3, 3]).argmax())
        engine.step()
        lane.seen.clear()
        assert not drafter.paths._rounds, "observed, hence forgotten"
    paths = Paths(TableLane(DRAFT))
    engine, [row] = begun([[1, 2, 3]], temperature=0.0)
    assert paths.knows(row)
    [old] = paths.said([(row, path(row))])
    engine.step()
    [new] = paths.said([(row, path(row))])
    assert torch.equal(new, DRAFT.next_logits(row.tokens))
    assert not torch.equal(old, new), "the row has more tokens, though nobody said so"
    _, [other] = begun([[5, 5, 5, 6]], temperature=0.0)
    assert other.id == row.id
    assert torch.equal(paths.said([(other, path(other))])[0], DRAFT.next_logits(other.tokens))
    paths.forget([shadow(other, [1])])
    assert not paths._rounds


def test_the_lanes_depth_counts_from_the_request():
    _, [row] = begun([[1, 2, 3]], temperature=0.0)
    drafter = HeadDrafter(TableLane(DRAFT, depth=4), V, name="h")
    for drafted, want in (([], 4), ([1], 3), ([1, 2, 3], 1), ([1, 2, 3, 4], 0), ([1, 2, 3, 4, 5], 0)):
        [tree] = drafter.propose([shadow(row, drafted)], [Plan("h", 6, 1, 6)])
        assert len(tree) - 1 == want
        assert int(tree.tokens[0]) == [*row.tokens, *drafted][-1]


def test_nothing_is_said_behind_a_row_that_is_not_known():
    _, rows = begun([[1, 2, 3], [4]], temperature=0.0)
    lane = TableLane(DRAFT)
    lane.deaf = {rows[0].id}
    drafter = HeadDrafter(lane, V, name="h")
    trees = drafter.propose([shadow(rows[0], [1]), shadow(rows[1], [1])], [Plan("h", 2, 1, 2)] * 2)
    assert [len(tree) for tree in trees] == [1, 3]
    assert HeadSource(drafter).walk(shadow(rows[0], [1])).candidates(2) == []
    lane.deaf = set()
    assert len(drafter.propose([shadow(rows[0], [1])], [Plan("h", 2, 1, 2)])[0]) == 3, "it may learn later"


def test_a_source_goes_on_behind_a_shadow():
    _, [row] = begun([[1, 2, 3]], temperature=0.0)
    lane = Once(DRAFT)
    source = HeadSource(HeadDrafter(lane, V, name="h"), depth=5)
    far = source.walk(row).after(4).after(0)
    want = far.candidates(3)
    assert lane.steps == [1, 1, 1], "all of the path at once"
    assert source.walk(shadow(row, [4, 0])).candidates(3) == want
    assert source.walk(shadow(row, [4])).after(0).candidates(3) == want
    assert lane.steps == [1, 1, 1]
    assert [token for token, _ in want] == DRAFT.next_logits([*row.tokens, 4, 0]).topk(3).indices.tolist()
    assert source.walk(shadow(row, [1, 1, 1, 1])).candidates(3)
    assert source.walk(shadow(row, [1, 1, 1, 1, 1])).candidates(3) == [], "five steps of the head, and no more"
    [tree] = source.inner.propose([shadow(row, [4, 0])], [Plan("h", 1, 1, 1)])
    assert int(tree.tokens[1]) == want[0][0]
    assert sum(lane.steps) == 3 + 4, "the drafter and the source share what was read"


def test_whole():
    lines = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    assert whole(lines, None, 2)[1] is lines[1]
    found = torch.stack(whole(lines, torch.tensor([3, 0]), 4))
    assert found.tolist() == [[2.0, -torch.inf, -torch.inf, 1.0], [4.0, -torch.inf, -torch.inf, 3.0]]
    assert whole([], torch.tensor([3, 0]), 4) == []


def test_options_that_leave_no_way_down():
    _, [row] = begun([[1, 2, 3]], temperature=0.0, allowed_token_ids=[0, 2, 3])
    drafter = HeadDrafter(TableLane(DRAFT, (1, 4)), V, name="h")
    [tree] = drafter.propose([shadow(row, [2])], [Plan("h", 2, 1, 2)])
    assert len(tree) == 1
