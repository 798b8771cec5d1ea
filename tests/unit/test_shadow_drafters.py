"""Every drafter behind others' drafts: a shadow is drafted for as a request that holds the same tokens, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from toys import counter, fixed
from unit.test_cross_vocab import toys as two_vocabularies
from unit.test_grammar_drafter import Lines
from unit.test_retrieval import build

from surefoot.backends.table import TableModel
from surefoot.core.compiled import Compiler
from surefoot.core.constraint import Grammars
from surefoot.core.noise import SplitMix
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Drafter, Need, Plan, Scores, Verdict
from surefoot.core.request import Row
from surefoot.core.shadow import shadow
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.bridge import INTERSECTION, UNIVERSAL, Bridge
from surefoot.drafters.cross import CrossDrafter
from surefoot.drafters.grammar import GrammarDrafter
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.lookahead import LookaheadDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.proposed import Proposed
from surefoot.drafters.recycle import RecycleDrafter
from surefoot.drafters.retrieval import RetrievalDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BackendError

V = 40
STORY = [30, 1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22, 1, 2]
"""Its end was there before, and what may be drafted next repeats the same place: a text that ends with the drafted tokens has
the same continuations after every context that ends it."""
PATHS = ([3], [3, 4], [20, 21], [3, 4, 5, 6])
ENDS = ([3], [3, 4, 5], [20, 21, 22])
"""What the request may have been told when the next round begins."""
WORDS = [3, 4, 5, 7, 16, 2]
OPTIONS = ({}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "seed": 3, "verification": "ratio"})
DRAFT = TableModel.random(V, 2, seed=5)


def request(
    tokens: Sequence[int], id: int = 0, said: int = 5, vocab: int = V, grammars: Grammars | None = None, **options
) -> Row:
    """A request that was told the last ``said`` of these tokens."""
    params = SamplingParams.build({"max_tokens": 1000, **options})
    row = Row(id, tokens[: len(tokens) - said], params, limit=1000, noise=SplitMix(11))
    row.state = Compiler(vocab, None, grammars).state(params, row.tokens, row.stop_ids)
    tell(row, tokens[len(tokens) - said :])
    row.turn = 6
    return row


def tell(row: Row, tokens: Sequence[int]) -> None:
    assert row.commit(tokens, [0] * len(tokens)) == len(tokens)
    row.turn += 1


def same(a: DraftTree, b: DraftTree) -> bool:
    laws = a.q is b.q is None or (a.q is not None and b.q is not None and torch.equal(a.q, b.q))
    return laws and all(torch.equal(x, y) for x, y in ((a.tokens, b.tokens), (a.parents, b.parents), (a.source, b.source)))


def table(tmp_path: Path, steady: bool = False, **options: int) -> TableModel:
    made = TableModel(DRAFT.logits, 2, **options)
    made.traits = replace(made.traits, steady=steady)
    return made


def learned(tmp_path: Path) -> RecycleDrafter:
    """What comes after each token."""
    made = RecycleDrafter(V)
    fixed(counter(V), made, 3).generate([0], max_tokens=45)
    return made


def truth(row: Row) -> Sequence[int]:
    assert row.of is None, "the truth is known of requests"
    return [(7 * i) % V for i in range(60)]


def model(tmp_path: Path, **options) -> ModelDrafter:
    return ModelDrafter(table(tmp_path, **options), V, chunk=6)


def store(tmp_path: Path) -> RetrievalDrafter:
    path = tmp_path / "texts"
    return RetrievalDrafter(path if path.exists() else build(path, [[*STORY, 3, 4, 5, 9, 9]]), min_match=1)


KINDS: dict[str, Callable[[Path], Drafter]] = {
    **{
        f"ngram-{pick}": partial(lambda pick, _: NgramDrafter(pick=pick), pick)
        for pick in ("recent", "frequent", "all", "max_gram")
    },
    "suffix": lambda _: SuffixDrafter(),
    "lookahead": lambda _: LookaheadDrafter(),
    "jacobi": lambda _: LookaheadDrafter(pool=0),
    "window": lambda _: LookaheadDrafter(window=3),
    "recycle": learned,
    "retrieval": store,
    "script": lambda _: ScriptDrafter(truth, V, accuracy=0.6, tree=True),
    "model-tree": model,
    "model-forks": partial(model, steady=True),
    "model-padded": partial(model, min_width=4),
    "grammar": lambda _: GrammarDrafter(SuffixDrafter()),
    "texts": lambda path: HybridDrafter([SuffixDrafter(), LookaheadDrafter(source=5), learned(path)]),
    "whole": lambda path: HybridDrafter([Proposed(NgramDrafter()), SuffixDrafter()]),
    "model-merged": lambda path: HybridDrafter([Proposed(model(path)), SuffixDrafter()]),
}
TAILS = ("recycle", "retrieval", "script", "model-tree", "model-forks", "model-padded")
"""Kinds for which it makes no difference what the end of the text is like."""
MERGED = ("texts", "whole", "model-merged")
"""Kinds whose trees depend on how deep in the draft they begin."""
CHAIN, TREE = Plan(depth=3, nodes=3), Plan(depth=3, width=3, nodes=9)


def slots(drafter: Drafter) -> int:
    """Open slots of the model that drafts, if one does."""
    whole = getattr(drafter, "_whole", [])
    inner = whole[0].inner if whole else drafter
    return inner.draft.open_slots if isinstance(inner, ModelDrafter | CrossDrafter) else 0


def ended(drafter: Drafter, rows: Sequence[Row]) -> None:
    """The engine tells each of its drafters."""
    for each in (drafter, *(getattr(s, "inner", s) for s in getattr(drafter, "_sources", ()))):
        each.forget(rows)
        if isinstance(each, GrammarDrafter) and each.inner is not None:
            each.inner.forget(rows)


@pytest.mark.parametrize("options", OPTIONS, ids=["greedy", "coupled", "ratio"])
@pytest.mark.parametrize(
    "kind, plan", [(kind, plan) for kind in KINDS for plan in (CHAIN, TREE) if plan is CHAIN or kind not in MERGED]
)
def test_a_shadow_gets_the_draft_of_a_request_with_its_tokens(kind: str, plan: Plan, options: dict, tmp_path: Path) -> None:
    make = KINDS[kind]
    lasting, row = make(tmp_path), request(STORY, **options)
    [before] = lasting.propose([row], [plan])
    drafted = 0
    for told in ([], *ENDS):
        if told:
            tell(row, told)
        for path in PATHS if not told else ([20], [20, 2]):
            [found] = lasting.propose([shadow(row, path)], [plan])
            whole = request([*row.tokens, *path], said=len(row.output) + len(path), **options)
            whole.turn = row.turn
            if not told or kind in TAILS:
                [wanted] = make(tmp_path).propose([whole], [plan])
                assert same(found, wanted), path
            assert found.tokens[0] == path[-1]
            drafted += len(found) - 1
        [again] = lasting.propose([row], [plan])
        [wanted] = make(tmp_path).propose([row], [plan])
        assert same(again, wanted), "shadows must not change the drafts of the request itself"
        if not told:
            assert same(again, before)
    assert drafted > 3
    ended(lasting, [row])
    assert slots(lasting) == 0
    assert getattr(lasting, "_rows", {}) == getattr(lasting, "_leans", {}) == {}


@pytest.mark.parametrize("options", OPTIONS, ids=["greedy", "coupled", "ratio"])
@pytest.mark.parametrize("plan", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", KINDS)
def test_shadows_and_requests_together_are_as_one_at_a_time(kind: str, plan: Plan, options: dict, tmp_path: Path) -> None:
    make = KINDS[kind]
    together, row, other = make(tmp_path), request(STORY, **options), request(STORY[3:], 1, **options)
    asked = [
        shadow(row, PATHS[0]),
        row,
        shadow(other, [5]),
        *(shadow(row, path) for path in PATHS[1:]),
        other,
        shadow(row, [3]),
    ]
    plans = [replace(plan, depth=0) if i == 3 else plan for i in range(len(asked))]
    trees = together.propose(asked, plans)
    for each, own, found in zip(asked, plans, trees, strict=True):
        drafter = make(tmp_path)
        if isinstance(drafter, HybridDrafter):
            drafter.propose([row, other], [Plan(), Plan()])  # how many share a pass is taken into account
        [wanted] = drafter.propose([each], [own])
        assert same(found, wanted), each.drafted
    ended(together, [row, other])
    assert slots(together) == 0


@pytest.mark.parametrize("kind", ["ngram-recent", "ngram-max_gram", "suffix", "texts"])
def test_a_copy_goes_on_through_the_end_of_the_text_into_what_others_drafted(kind: str, tmp_path: Path) -> None:
    row = request(STORY)
    [found] = KINDS[kind](tmp_path).propose([shadow(row, [3, 4])], [Plan(depth=13, nodes=13)])
    assert found.tokens.tolist() == [4, 5, 6, 7, 8, 9, 20, 21, 22, 1, 2, 3, 4, 5]


def test_a_walk_goes_on_through_the_end_of_the_text_into_what_others_drafted() -> None:
    """What the text ends with was never followed by anything."""
    row, whole = request([1, 2, 3, 4], said=1), request([1, 2, 3, 4, 1, 2], said=3)
    found = []
    for each in (shadow(row, [1, 2]), whole):
        walk = SuffixDrafter().walk(each)
        for token in (3, 4, 1, 2):
            found.append(walk.candidates(1))
            assert found[-1][0][0] == token
            walk = walk.after(token)
    assert found[:4] == found[4:]


def test_guesses_are_for_places_and_shadows_leave_them() -> None:
    drafter, row = LookaheadDrafter(), request(STORY)
    drafter.walk(row)
    own = drafter._rows[row.id]
    own.guess, own.at = [31, 32, 33, 34], len(row.tokens)
    assert drafter.walk(shadow(row, [10, 10])).candidates(1)[0][0] == 33
    assert drafter.walk(shadow(row, [10])).after(10).candidates(1)[0][0] == 33
    assert own.guess == [31, 32, 33, 34]
    assert own.at == len(row.tokens) == own.known


@pytest.mark.parametrize("way", [UNIVERSAL, INTERSECTION])
@pytest.mark.parametrize("options", OPTIONS, ids=["greedy", "coupled", "ratio"])
@pytest.mark.parametrize("turned", [False, True])
def test_across_vocabularies(way: str, options: dict, turned: bool) -> None:
    ours, theirs = reversed(two_vocabularies()) if turned else two_vocabularies()
    size = len(ours.pieces)
    logits = TableModel.random(len(theirs.pieces), 2, seed=6, sharpness=2.0).logits

    def make() -> CrossDrafter:
        return CrossDrafter(TableModel(logits, 2), Bridge.of(ours, theirs, way, way), size, chunk=6)

    row, other = request(WORDS * 4, vocab=size, **options), request([4, 5, 8], 1, said=1, vocab=size, **options)
    letters = (10, 1) if turned else (10, 6)  # which the draft writes as one token
    paths = [[5], [5, 16 if not turned else 13], [9, 11, 10], [letters[1], 5], [13, 14, 6]]
    lasting = make()
    drafted = 0
    for told in ([], letters[:1], letters[1:], [9, 11, 4]):
        if told:
            tell(row, told)
        asked = [row, *(shadow(row, path) for path in paths), shadow(other, [4]), other]
        if told and told != letters[:1]:
            asked = asked[1:]  # the request itself is not asked for, and has more to read the next time
        lasting.propose(asked, [CHAIN] * len(asked))
        for each, found in zip(asked, lasting.propose(asked, [CHAIN] * len(asked)), strict=True):
            whole = request(each.tokens, each.id, said=len(each.tokens) - each.n_prompt, vocab=size, **options)
            whole.turn = each.turn
            [wanted] = make().propose([whole], [CHAIN])
            assert same(found, wanted), each.drafted
            drafted += len(found) - 1
        assert lasting.draft.open_slots <= 2
    assert drafted > 10
    lasting.forget([row, other])
    assert lasting.draft.open_slots == 0
    assert lasting.stats()["rows"] == 0


def test_across_vocabularies_a_long_request_is_read_once() -> None:
    ours, theirs = two_vocabularies()
    draft = TableModel.random(len(theirs.pieces), 2, seed=6)
    drafter = CrossDrafter(draft, Bridge.of(ours, theirs), len(ours.pieces))
    row = request(WORDS * 12, vocab=len(ours.pieces))
    for _ in range(5):
        drafter.propose([shadow(row, [5]), shadow(row, [9, 11])], [CHAIN] * 2)
    assert draft.nodes_scored < len(drafter._readings[0].ids) + 120
    drafter.forget([row])
    assert draft.open_slots == 0


class Watched(TableModel):
    """Keeps the sizes of the rows of each pass."""

    def __init__(self, **options: int) -> None:
        super().__init__(DRAFT.logits, 2, **options)
        self.passes: list[list[int]] = []

    def score(self, slots: Sequence, forest: Forest, need: Need) -> Scores:
        self.passes.append(list(forest.sizes))
        return super().score(slots, forest, need)


ONE = Plan(depth=1, nodes=1)


def read(drafter: ModelDrafter, *rows: Row, plan: Plan = ONE) -> list[list[int]]:
    drafter.draft.passes.clear()
    drafter.propose(rows, [plan] * len(rows))
    return [sorted(sizes) for sizes in drafter.draft.passes]


def test_what_was_read_for_a_shadow_is_not_read_again() -> None:
    drafter, row = ModelDrafter(Watched(), V), request(STORY)
    assert read(drafter, row) == [[15]]
    assert read(drafter, shadow(row, [3, 4])) == [[2]]
    assert read(drafter, shadow(row, [3, 4, 5, 6])) == [[2]]
    assert read(drafter, shadow(row, [3, 4, 9])) == [[1]]
    assert read(drafter, shadow(row, [3, 7]), shadow(row, [3, 4, 5])) == [[1, 1]], "one pass for all"
    tell(row, [3, 4, 5, 8])
    assert read(drafter, row) == [[1]], "what was read is the request's own once it was said"
    tell(row, [3, 4])
    assert read(drafter, shadow(row, [9])) == [[3]], "of the last round nothing else is held"
    drafter.forget([row])
    assert drafter.draft.open_slots == 0


def test_shadows_alone_keep_the_draft_near_the_request() -> None:
    drafter, row = ModelDrafter(Watched(), V), request(STORY * 4)
    assert read(drafter, shadow(row, [3, 4])) == [[62]]
    for told in ([3, 9], [3, 4, 9], [8]):
        tell(row, told)
        [[size]] = read(drafter, shadow(row, [3, 4]))
        assert size <= 4
        assert drafter.draft.open_slots <= 2
    drafter.forget([row])
    assert drafter.draft.open_slots == 0


def test_a_long_request_is_read_once_for_all_its_shadows() -> None:
    drafter, row = ModelDrafter(Watched(), V), request(STORY * 4)
    first, second = read(drafter, shadow(row, [3]), shadow(row, [3, 4]), shadow(row, [20]))
    assert first == [60]
    assert second == [2, 2, 3]
    drafter.forget([row])
    assert drafter.draft.open_slots == 0


def test_few_forks_are_kept() -> None:
    drafter, row = ModelDrafter(Watched(), V), request(STORY)
    for token in range(30):
        drafter.propose([shadow(row, [token])], [CHAIN])
    assert drafter.draft.open_slots <= 10
    drafter.forget([row])
    assert drafter.draft.open_slots == 0


class Small(Watched):
    """Holds so many slots."""

    most = 6

    def fork(self, slot, length=None):
        if self.open_slots >= self.most:
            raise BackendError("the cache is full; raise kv_tokens")
        return super().fork(slot, length)


def test_kept_forks_make_room_before_drafting_ends() -> None:
    drafter, row = ModelDrafter(Small(), V), request(STORY)
    for token in range(12):
        [tree] = drafter.propose([shadow(row, [token])], [CHAIN])
        assert len(tree) == 4
    with pytest.warns(RuntimeWarning, match="stops drafting for 1 requests.*raise kv_tokens"):
        trees = drafter.propose([shadow(row, [token]) for token in range(9)], [CHAIN] * 9)
    assert [len(tree) for tree in trees] == [1] * 9
    assert drafter.draft.open_slots == 0
    assert len(drafter.propose([row], [CHAIN])[0]) == 1, "it must not try again for the same request"


def test_a_drafted_token_that_the_model_cannot_read_ends_nothing() -> None:
    drafter, row = ModelDrafter(TableModel.random(V - 5, 1, seed=2), V), request(STORY)
    assert len(drafter.propose([shadow(row, [V - 1])], [CHAIN])[0]) == 1
    assert len(drafter.propose([shadow(row, [3])], [CHAIN])[0]) == 4
    tell(row, [V - 1])
    assert len(drafter.propose([shadow(row, [3])], [CHAIN])[0]) == 1
    assert drafter._without == {row.id}


def test_options_follow_the_drafted_tokens() -> None:
    """A token that was drafted counts for a penalty as one that was said does."""
    options = {"frequency_penalty": 1.5, "repetition_penalty": 1.3}
    row = request(STORY, **options)
    [found] = model(Path()).propose([shadow(row, [3, 4])], [TREE])
    [wanted] = model(Path()).propose([request([*STORY, 3, 4], said=7, **options)], [TREE])
    [plain] = model(Path()).propose([request([*STORY, 3, 4], said=7)], [TREE])
    assert same(found, wanted)
    assert not same(found, plain)


def test_forced_tokens_follow_the_drafted_ones() -> None:
    lines = Lines([{1, 2}, {3}, {4}, {5, 6}, {7}, {8}])
    row = request([3, 5], said=0, vocab=12, grammars=lines, structured_outputs={"regex": "x"})
    drafter = GrammarDrafter()
    trees = drafter.propose([row, shadow(row, [1]), shadow(row, [2, 3, 4, 6])], [Plan(depth=4, nodes=4)] * 3)
    assert [tree.tokens.tolist() for tree in trees] == [[5], [1, 3, 4], [6, 7, 8]]
    assert row.state.forced(4) == []


def test_a_draft_of_a_shadow_is_not_taken_for_the_one_that_is_scored() -> None:
    found = []
    for between in (False, True):
        drafter, row = HybridDrafter([SuffixDrafter()]), request(STORY)
        [tree] = drafter.propose([row], [CHAIN])
        if between:
            drafter.propose([shadow(row, [20]), shadow(row, [20, 21])], [CHAIN] * 2)
        verdict = Verdict(tuple(range(1, len(tree))), 6)
        drafter.observe([row], Forest.pack([tree]), Scores(torch.zeros(0, V)), [verdict])
        found.append((drafter.calibration._weights, drafter._leans, drafter._refused))
    assert found[0] == found[1]
    fresh = HybridDrafter([SuffixDrafter()])
    assert found[0][0] != fresh.calibration._weights
