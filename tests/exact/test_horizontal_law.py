"""The exact joint law of horizontal cascades under every rule; total variation at most 1e-12.

Parts that report a law and parts that name points, in both orders, and a vertical cascade among them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exact.joint import CAUGHT, TOLERANCE, gap, toy
from toys import Custom

from surefoot.backends.table import TableModel
from surefoot.control.confidence import TopStop
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.drafters import horizontal
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.horizontal import HorizontalDrafter
from surefoot.drafters.model import ModelDrafter

TWO = toy(2, seed=3, sharpness=0.9)
THREE = toy(3, seed=4)
DRAFTS = {2: TableModel.random(2, order=2, seed=8, sharpness=1.0), 3: TableModel.random(3, order=2, seed=9, sharpness=1.6)}
OTHERS = {2: TableModel.random(2, order=1, seed=18, sharpness=1.2), 3: TableModel.random(3, order=1, seed=19, sharpness=1.0)}
RULES = ["ratio", "block", "traversal", "coupled"]


def params(rule: str, tokens: int = 4, **options) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 1.0, "verification": rule} | options)


def likeliest(vocab: int, source: int, name: str, most: int = 9) -> Custom:
    """Points: what a table finds likeliest behind the row's tokens, whichever row that is."""
    table = OTHERS[vocab]

    def one(row, plan):
        tokens = row.tokens[-1:]
        path = [*row.tokens]
        for _ in range(min(plan.depth, most)):
            path.append(int(table.next_logits(path).argmax()))
            tokens.append(path[-1])
        return DraftTree.chain(tokens, None, source)

    return Custom(one, source, name)


class Seen(HorizontalDrafter):
    """Keeps the sources of its drafts, and whether they carried a law."""

    def propose(self, rows, plans):
        trees = super().propose(rows, plans)
        self.seen = getattr(self, "seen", set()) | {(tuple(t.source.tolist()[1:]), t.q is not None) for t in trees}
        return trees


def parts(vocab: int, kinds: str):
    """``m``, ``n``: models; ``p``, ``r``: points; ``s``: points, one at a time; ``c``: a cascade of a model over points."""
    made, all_ = [], []
    for kind in kinds:
        number = len(all_) + 1
        if kind in "mn":
            table = DRAFTS[vocab] if kind == "m" else OTHERS[vocab]
            all_.append(ModelDrafter(table, vocab, source=number, name=f"model{number}"))
        elif kind == "c":
            low = likeliest(vocab, number, f"low{number}")
            inner = Engine(DRAFTS[vocab], [Below(low)], FixedController(low.name, 1), reuse=False)
            all_ += [low, CascadeDrafter(inner, vocab, source=number + 1)]
        else:
            all_.append(likeliest(vocab, number, f"points{number}", 1 if kind == "s" else 9))
        made.append(all_[-1])
    return made, all_


def engine(target: TableModel, kinds: str, lengths, k: int, stop: float | None = None) -> Engine:
    made, all_ = parts(target.traits.vocab_size, kinds)
    drafter = Seen(made, lengths, source=len(all_) + 1)
    controller = FixedController("horizontal", k)
    if stop is not None:
        controller = Stopping("horizontal", k, stop)
    return Engine(target, [*all_, drafter], controller, reuse=False)


class Stopping(FixedController):
    def __init__(self, drafter: str, k: int, threshold: float) -> None:
        super().__init__(drafter, k)
        self._stop = TopStop(threshold)

    def plan(self, rows):
        return [replace(plan, stop=self._stop) for plan in super().plan(rows)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "kinds, lengths, k", [("mp", (1, 2), 3), ("pm", (1, 2), 3), ("mn", (1, 1), 2), ("pr", (1, 2), 3), ("smp", (2, 1, 1), 3)]
)
def test_chains_of_two_tokens(rule, kinds, lengths, k):
    made = engine(TWO, kinds, lengths, k)
    assert gap(made, params(rule, k + 2)) <= TOLERANCE
    (drafter,) = (d for d in made.drafters.values() if isinstance(d, Seen))
    longest, law = max(drafter.seen, key=lambda one: len(one[0]))
    assert len(longest) == k
    assert len(set(longest)) == len(kinds), "not all parts drafted"
    assert law == (rule != "coupled" and bool({*kinds} & {*"mnc"}))


@pytest.mark.parametrize("rule", ["ratio", "block", "traversal"])
@pytest.mark.parametrize("kinds, lengths, k", [("mp", (1, 1), 2), ("pm", (1, 1), 2), ("mpn", (1, 1, 1), 3)])
def test_chains_of_three_tokens(rule, kinds, lengths, k):
    assert gap(engine(THREE, kinds, lengths, k), params(rule, 3)) <= TOLERANCE


@pytest.mark.parametrize("rule", ["ratio", "traversal", "coupled"])
@pytest.mark.parametrize("kinds, lengths", [("cp", (2, 1)), ("pc", (1, 2)), ("mc", (1, 1))])
def test_a_cascade_as_a_part(rule, kinds, lengths):
    assert gap(engine(TWO, kinds, lengths, 3), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("rule", ["ratio", "block", "traversal"])
def test_a_stop_ends_the_whole_draft(rule):
    made = engine(TWO, "mp", (2, 2), 4, stop=0.62)
    assert gap(made, params(rule, 5)) <= TOLERANCE
    (drafter,) = (d for d in made.drafters.values() if isinstance(d, Seen))
    assert {1, 3} <= {len(sources) for sources, _ in drafter.seen}


@pytest.mark.parametrize("options", [{"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.7}], ids=lambda o: next(iter(o)))
def test_options_shape_what_later_parts_draft(options):
    assert gap(engine(THREE, "mn", (1, 1), 2), params("ratio", 3, **options)) <= TOLERANCE


def test_options_that_depend_on_the_path():
    from exact.joint import distance, engine_of, observed

    for options in ({"repetition_penalty": 1.7}, {"frequency_penalty": 0.9}):
        request = params("traversal", **options)
        seen = observed(engine(TWO, "mn", (1, 2), 3), request, 4)
        assert distance(seen, observed(engine_of(TWO), request, 4)) <= TOLERANCE


class Uniform(horizontal._Draft):
    """Claims that points were drawn at random."""

    def _q(self):
        found = super()._q()
        if found is not None:
            for i in range(len(self.tokens)):
                if i not in self.laws:
                    found[i] = 1.0 / found.shape[1]
        return found


class Dropped(horizontal._Draft):
    """Takes the last token back where it is unlikely."""

    def extend(self, tree):
        super().extend(tree)
        last = len(self.tokens) - 1
        if last in self.laws and float(self.laws[last][self.tokens[last]]) < 0.45:
            self.tokens.pop()
            self.sources.pop()
            self.laws.pop(last)


@pytest.mark.parametrize("wrong, kinds", [(Uniform, "pm"), (Dropped, "mn")])
def test_these_tests_catch_a_wrong_draft(monkeypatch, wrong, kinds):
    monkeypatch.setattr(horizontal, "_Draft", wrong)
    assert gap(engine(TWO, kinds, (1, 1), 2), params("ratio")) > CAUGHT


def test_rows_of_all_kinds_share_a_pass():
    made = engine(TWO, "mp", (1, 2), 3)
    beside = [((1, 0), SamplingParams(max_tokens=6, temperature=0)), ((0, 1), params("coupled", 5, seed=3))]
    assert gap(made, params("ratio", 3), beside) <= TOLERANCE


def test_the_law_of_a_point_is_certain():
    made = engine(THREE, "mp", (1, 2), 3)
    row = made.add([0], params("ratio", 9))
    made.step()
    plan = FixedController("horizontal", 3).plan([row])
    (tree,) = made.drafters["horizontal"].propose([row], plan)
    assert tree.q is not None
    assert torch.equal(tree.q[1:], torch.nn.functional.one_hot(tree.tokens[2:], 3).to(tree.q))
    assert tree.source.tolist() == [0, 1, 2, 2]
