"""A trained head among other sources: asked where they leave doubt, and only there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from surefoot.core.protocols import Need, Plan
from surefoot.drafters.calibration import UNASKED
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.head_source import WEIGHTS, HeadSource
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.errors import BadRequest

VOCAB = 20


class Lane:
    """Says ``token + 1`` with the given probability, and counts its steps. States are the tokens read."""

    needs = Need((3,))

    def __init__(self, chance: float = 0.9, ids=None, depth: int = 4, seen: bool = True) -> None:
        self.chance, self.draft_ids, self.depth, self.seen = chance, ids, depth, seen
        self.steps: list[tuple[int, ...]] = []

    def root(self, row):
        return () if self.seen else None

    def step(self, states, tokens):
        after = [(*state, token) for state, token in zip(states, tokens, strict=True)]
        self.steps += after
        size = VOCAB if self.draft_ids is None else len(self.draft_ids)
        laws = torch.full((len(tokens), size), (1 - self.chance) / (size - 1))
        for i, token in enumerate(tokens):
            laws[i, (token + 1) % size] = self.chance
        return after, laws.log()

    def observe(self, rows, forest, scores, verdicts): ...

    def forget(self, rows): ...


class Text:
    """A cheap source that is sure of what follows the tokens it knows, at one level of evidence."""

    name, source, needs = "text", 1, Need()

    def __init__(self, known: dict[int, int], sure: float) -> None:
        self.known, self.levels, self.weights = known, (0.9,), (sure, -1.0, 0.0)

    def walk(self, row):
        return Place(self, row.tokens[-1])


class Place:
    def __init__(self, of, token):
        self.of, self.token = of, token

    def candidates(self, width):
        return [(self.of.known[self.token], 0)] if self.token in self.of.known else []

    def after(self, token):
        return Place(self.of, token)


def row(*tokens, id=7):
    made = SimpleNamespace(id=id, tokens=list(tokens), n_prompt=1, done=False)
    made.base = made
    return made


def merged(lane, text=None, **options):
    head = HeadSource(HeadDrafter(lane, VOCAB, name="hydra", source=2))
    return HybridDrafter([text, head] if text is not None else [head], **options)


def drafted(made, *tokens, depth=3, width=1):
    return made.propose([row(*tokens)], [Plan(depth=depth, nodes=depth, width=width)])[0]


def test_it_goes_on_along_its_own_tokens():
    lane = Lane()
    made = merged(lane, ask=0.0)
    assert drafted(made, 5).tokens.tolist() == [5, 6, 7, 8]
    assert made.needs == Need((3,)) or lane.needs == Need((3,))
    assert lane.steps == [(5,), (5, 6), (5, 6, 7)]


def test_a_sure_text_is_not_asked_about():
    lane = Lane()
    made = merged(lane, Text({5: 11, 11: 12, 12: 13}, sure=6.0))
    assert drafted(made, 5).tokens.tolist() == [5, 11, 12, 13]
    assert lane.steps == []


def test_behind_a_text_that_ends_the_head_reads_what_was_drafted():
    lane = Lane()
    made = merged(lane, Text({5: 11}, sure=6.0))
    assert drafted(made, 5, depth=2).tokens.tolist() == [5, 11, 12]
    assert lane.steps == [(5,), (5, 11)]  # the first step is made late, for the state behind it


def test_doubt_is_settled_by_the_head():
    lane = Lane(chance=0.99)
    made = merged(lane, Text({5: 11}, sure=-1.0))
    assert drafted(made, 5, depth=1).tokens.tolist() == [5, 6]


def test_agreement_makes_surer():
    alone, both = merged(Lane(0.6), ask=0.0), merged(Lane(0.6), Text({5: 6}, sure=1.0), ask=0.0)
    reaches = []
    for made in (alone, both):
        plan = Plan(depth=1, nodes=1, cut=lambda reach, work: reaches.append(reach[0]) or 1)
        made.propose([row(5)], [plan])
    assert reaches[1] > reaches[0]


def test_unasked_is_no_evidence():
    made = merged(Lane(), Text({5: 11}, sure=6.0))
    place = made._look(tuple(s.walk(row(5)) for s in made._sources), row(5), Plan("hybrid", 1, 1, 1), 0, 1.0)
    assert place.kinds == {11: (0, UNASKED, 0)}
    assert made.calibration.alone(1, UNASKED) == 0.0
    assert made.calibration.alone(1, len(WEIGHTS) - 3) == WEIGHTS[-3]


def test_small_reach_is_not_worth_a_step():
    lane = Lane(chance=0.5)
    made = merged(lane, ask=0.3)
    drafted(made, 5, depth=4)
    assert 1 <= len(lane.steps) < 4


def test_a_head_without_activations_says_nothing():
    lane = Lane(seen=False)
    assert drafted(merged(lane), 5).tokens.tolist() == [5]
    assert drafted(merged(lane, Text({5: 11}, sure=0.0)), 5, depth=1).tokens.tolist() == [5, 11]
    assert lane.steps == []


def test_its_depth_is_kept():
    lane = Lane(depth=2)
    assert len(drafted(merged(lane, ask=0.0), 5, depth=4)) == 3
    assert len(lane.steps) == 2


def test_a_reduced_vocabulary_is_spoken_in_the_targets_ids():
    lane = Lane(ids=torch.tensor([2, 3, 5, 7, 11]))
    assert drafted(merged(lane, ask=0.0), 1, depth=1).tokens.tolist() == [1, 5]


def test_ids_that_stand_for_nothing_are_not_named():
    head = HeadSource(HeadDrafter(Lane(), VOCAB, name="hydra", known=6, source=2))
    assert drafted(HybridDrafter([head], ask=0.0), 5, depth=1).tokens.tolist() != [5, 6]


def test_trees_branch_at_the_head():
    tree = drafted(merged(Lane(0.06), ask=0.0), 5, depth=3, width=2)
    assert len(set(tree.parents.tolist())) < len(tree)
    assert len(tree) == 4


def test_rows_that_share_a_pass_ask_less():
    alone, crowd = Lane(0.5), Lane(0.5)
    plan = Plan(depth=1, nodes=1, width=1)
    merged(alone, Text({5: 11}, sure=0.4), ask=0.2).propose([row(5)], [plan])
    rows = [row(5, id=i) for i in range(9)]
    merged(crowd, Text({5: 11}, sure=0.4), ask=0.2).propose(rows, [plan] * 9)
    assert len(alone.steps) == 1
    assert crowd.steps == []


@pytest.mark.parametrize("ask", [-0.1, 1.5, True, "much"])
def test_bad_options(ask):
    with pytest.raises(BadRequest, match="ask"):
        merged(Lane(), ask=ask)
