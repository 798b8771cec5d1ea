"""The parts of self-speculation: markers, an earlier answer side by side with this one, when a fork pays, and the clock."""

from __future__ import annotations

import math
import random

import pytest

from surefoot.core.cost import CostModel
from surefoot.core.protocols import Costs
from surefoot.core.stats import Stats
from surefoot.core.words import Vocabulary
from surefoot.errors import BadRequest
from surefoot.ssr import FAMILIES, Family, ForkControl, SsrOptions, SsrSource, SsrStats, choose
from surefoot.ssr.control import Moment
from surefoot.ssr.reference import LEVELS, WEIGHTS, Place, Reference, ReferenceWalk, latest
from surefoot.ssr.thought import Thought

PIECES = [b"a", b"b ", b"<think>", b"</think>", b"<th", b"ink>", b"x</th", b"ink>\n\n", b"<", b"</think><think>", b"ink", b">y"]
A, B, START, END, TH, INK, X_TH, INK_N, LESS, AGAIN, IN, REST = range(12)
FAMILY = Family("toy", "<think>", "</think>", "</think>")


def thought(*tokens: int, family: Family = FAMILY) -> Thought:
    found = Thought(family, Vocabulary(PIECES))
    found.read(tokens)
    return found


def state(found: Thought) -> tuple:
    return found.inside, found.begin, found.answer, found.thought


@pytest.mark.parametrize(
    "tokens, expected",
    [
        ((A, B), (False, 0, 0, 0)),
        ((A, START), (True, 2, 0, 0)),
        ((A, START, A, B), (True, 2, 0, 2)),
        ((A, START, A, B, END), (False, 2, 5, 3)),
        ((A, START, A, B, END, A, A), (False, 2, 5, 3)),
        ((TH, INK, A), (True, 2, 0, 1)),  # the marker over two tokens
        ((TH, IN, REST, A), (True, 3, 0, 1)),  # the last of three goes on behind it
        ((START, X_TH, INK_N, A), (False, 1, 3, 2)),  # glued to text on both sides
        ((START, END), (False, 1, 2, 1)),
        ((START, A, END, A, START, B), (True, 5, 0, 1)),  # an earlier turn
        ((START, A, END, A, START, B, END, A), (False, 5, 7, 2)),
        ((START, A, AGAIN, B), (True, 3, 0, 1)),  # one token ends a thought and begins another
        ((START, START, A, END), (False, 1, 4, 3)),  # a marker within a thought is text
        ((END, A), (False, 0, 0, 0)),  # nothing to end
        ((LESS, TH, INK), (True, 3, 0, 0)),  # "<<think>"
        ((TH, A, INK), (False, 0, 0, 0)),
    ],
)
def test_where_thoughts_begin_and_end(tokens, expected) -> None:
    assert state(thought(*tokens)) == expected
    piecemeal = thought()
    for n in range(1, len(tokens) + 1):
        piecemeal.read(tokens[:n])
        assert piecemeal.known == n
    assert state(piecemeal) == expected


def test_reading_at_once_is_reading_token_by_token() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        tokens = [rng.randrange(len(PIECES)) for _ in range(24)]
        slow, fast = thought(), thought()
        for n in range(25):
            slow.read(tokens[:n])
        for n in sorted({rng.randrange(25) for _ in range(3)} | {24}):
            fast.read(tokens[:n])
        assert state(slow) == state(fast)


def test_the_end_of_a_thought_that_others_bring() -> None:
    own = thought(A, START, B)
    ended = own.ended([A, END, INK_N])
    assert ended is not None
    assert (ended.inside, ended.answer, ended.known) == (False, 5, 6)
    assert state(own) == (True, 2, 0, 1)
    assert own.ended([A, TH]) is None
    begun = thought(START, X_TH)  # it was about to end by itself
    ended = begun.ended([END])
    assert ended is not None
    assert ended.answer == 3
    assert own.ended([END, START]) is None


def test_a_marker_is_used_up() -> None:
    own = Family("own", "aa", "a", "a")
    assert state(thought(A, A, family=own)) == (True, 2, 0, 0)
    assert state(thought(A, A, B, A, family=own)) == (False, 2, 4, 2)


def test_ids_of_a_padded_embedding_have_no_text() -> None:
    assert thought(START, 99, END).answer == 3


def test_families() -> None:
    for family in FAMILIES.values():
        assert family.end in family.force
        assert family.start != family.end
    assert choose("auto", "{{'<think>'}} x").name == "generic"
    assert choose("auto", "{{'<think>'}} x", names=lambda: "Qwen/Qwen3-8B").name == "qwen3"
    assert choose("auto", "<｜Assistant｜><think>").name == "deepseek-r1"
    assert choose("auto", "<|channel>thought <channel|>").name == "gemma4"
    assert choose("auto", None).name == "generic"
    assert choose("qwen3", "<channel|>").name == "qwen3"
    own = choose("generic", start="[", end="]")
    assert (own.name, own.start, own.end, own.force) == ("custom", "[", "]", "\n]\n\n")
    assert choose(force="so: </think>").force == "so: </think>"


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: choose("llama"), "unknown thinking family"),
        (lambda: choose(end="]", force="no end"), "must hold the end marker"),
        (lambda: choose(start="</think>"), "two different texts"),
        (lambda: choose(start=""), "not empty"),
        (lambda: SsrOptions(draft_budget=-1), "draft_budget=-1"),
        (lambda: SsrOptions(draft_budget=True), "draft_budget=True"),
        (lambda: SsrOptions(draft_tokens=0), "draft_tokens=0"),
        (lambda: SsrOptions(draft_tokens=None), "draft_tokens=None"),
        (lambda: SsrOptions(interval=0), "interval=0"),
        (lambda: SsrOptions(interval=4, max_drafts=0), "max_drafts=0"),
        (lambda: SsrOptions(max_drafts=2), "needs interval"),
        (lambda: SsrOptions(drafts=0), "drafts=0"),
        (lambda: SsrOptions(always="yes"), "always='yes'"),
        (lambda: SsrOptions(prefix=1), "prefix=1"),
        (lambda: SsrSource(FAMILY, PIECES, [], ForkControl(SsrOptions())), "without the end marker"),
        (lambda: SsrSource(FAMILY, PIECES, [A, TH, INK], ForkControl(SsrOptions())), "'a<think>'"),
    ],
)
def test_what_is_refused(call, words) -> None:
    with pytest.raises(BadRequest) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_how_many_drafts() -> None:
    assert SsrOptions().most == SsrOptions(max_drafts=1).most == 1
    assert SsrOptions(interval=5).most == 4
    assert SsrOptions(interval=5, max_drafts=9).most == 9


def test_levels_rise_with_agreement() -> None:
    half = len(LEVELS) // 2
    assert sorted(LEVELS[:half]) == list(LEVELS[:half])
    assert sorted(LEVELS[half:]) == list(LEVELS[half:])
    assert all(intact >= again for intact, again in zip(LEVELS[:half], LEVELS[half:], strict=True))
    assert len(WEIGHTS) == len(LEVELS) + 2
    assert WEIGHTS[3] == pytest.approx(math.log(LEVELS[3] / (1 - LEVELS[3])))


def follow(walk: ReferenceWalk, said) -> list[tuple[bool, list[int]]]:
    """Per token: whether the best candidate was right; and all candidates."""
    out = []
    for token in said:
        named = [t for t, _ in walk.candidates(3)]
        out.append((bool(named) and named[0] == token, named))
        walk = walk.after(token)
    return out


def hits(reference, said, **options) -> list[bool]:
    return [hit for hit, _ in follow(ReferenceWalk.begin([Reference(reference)], SsrOptions(**options)), said)]


TEXT = list(range(100, 130))


def test_a_prefix_is_read_on() -> None:
    walk = ReferenceWalk.begin([Reference(TEXT)], SsrOptions())
    assert walk.candidates(1) == [(100, 0)]
    assert walk.intact
    levels = []
    for token in TEXT[:20]:
        levels.append(walk.candidates(1)[0][1])
        assert walk.foretold(token)
        assert not walk.foretold(7)
        walk = walk.after(token)
    # by agreement of 0, 1, 2, 3, 4, 8 and 16 tokens
    assert levels == [0, 1, 2, 3, *[4] * 4, *[5] * 8, *[6] * 4]
    assert all(hits(TEXT, TEXT))
    for token in TEXT[20:]:
        walk = walk.after(token)
    assert walk.candidates(1) == []  # at its end it has nothing to say


def test_one_token_exchanged() -> None:
    said = [*TEXT[:5], 7, *TEXT[6:]]
    found = hits(TEXT, said)
    assert found == [True] * 5 + [False] + [True] * 24
    walk = ReferenceWalk.begin([Reference(TEXT)], SsrOptions())
    for token in said[:6]:
        walk = walk.after(token)
    half = len(LEVELS) // 2
    assert walk.candidates(1) == [(TEXT[6], half)]
    assert not walk.intact
    assert not walk.foretold(TEXT[6])
    assert walk.after(TEXT[6]).candidates(1) == [(TEXT[7], half + 1)]


def test_tokens_that_the_draft_has_not() -> None:
    """Behind an insertion two right tokens are needed to find the place again."""
    said = [*TEXT[:5], 7, 8, 9, *TEXT[5:]]
    assert hits(TEXT, said) == [True] * 5 + [False] * 5 + [True] * 23


def test_tokens_that_only_the_draft_has() -> None:
    said = [*TEXT[:5], *TEXT[9:]]
    assert hits(TEXT, said) == [True] * 5 + [False] * 2 + [True] * 19


def test_the_nearest_of_equal_places() -> None:
    """Records that are alike but for their values: behind a difference the reading goes on in the same record."""
    record = [1, 2, 3]
    reference = [t for i in range(9) for t in (*record, 50 + i, 60 + i)]
    said = [*reference]
    said[18] = 99  # the value 53
    said[19] = 98
    assert [i for i, hit in enumerate(hits(reference, said)) if not hit] == [18, 19]
    del said[18:20]  # and one whose values are missing
    missed = [i for i, hit in enumerate(hits(reference, said)) if not hit]
    assert missed == [18, 19]


def test_of_two_hypotheses_the_right_one_goes_on() -> None:
    reference = [5, 6, 7, 8, 30, 31, 32, 33, 5, 40, 41, 42]
    # behind "5 40" the place looks like the later one, but only a token was exchanged
    walk = ReferenceWalk.begin([Reference(reference)], SsrOptions())
    for token in (5, 40):
        walk = walk.after(token)
    assert {token for token, _ in walk.candidates(3)} == {41, 7}
    assert walk.candidates(3)[0][0] == 41  # found again by two tokens says more than by none
    assert walk.after(7).candidates(3) == [(8, len(LEVELS) // 2 + 1)]
    assert walk.after(41).candidates(3)[0][0] == 42


def test_a_place_that_has_proved_right_is_not_doubted() -> None:
    reference = [*TEXT, 5, 40, 41, 42, 43, 44, 45, 46]
    walk = ReferenceWalk.begin([Reference(reference)], SsrOptions())
    for token in (100, 5, 40):
        walk = walk.after(token)
    assert len(walk.candidates(3)) == 2
    for token in (41, 42, 43):
        walk = walk.after(token)
    assert [t for t, _ in walk.candidates(3)] == [44]


def test_prefix_alone_and_suffix_alone() -> None:
    said = [*TEXT[:5], 7, *TEXT[6:]]
    assert hits(TEXT, said, suffix=False) == [True] * 5 + [False] * 25
    # without the beginning two tokens are needed to find the place
    assert hits(TEXT, said, prefix=False) == [False] * 2 + [True] * 3 + [False] + [True] * 24
    walk = ReferenceWalk.begin([Reference(TEXT)], SsrOptions(prefix=False))
    assert not walk.intact
    for token in (7, 8, 9):
        walk = walk.after(token)
        assert walk.candidates(3) == []
    assert hits(TEXT, TEXT, prefix=False, suffix=False) == [False] * 30


def test_several_references() -> None:
    old, new = Reference([1, 2, 3, 4, 5, 6]), Reference([1, 2, 30, 4, 50, 60])
    walk = ReferenceWalk.begin([old, new], SsrOptions())
    assert walk.candidates(3) == [(1, 0)]
    walk = walk.after(1).after(2)
    assert walk.candidates(3) == [(30, 2), (3, 2)]  # of equals the latest first
    assert walk.candidates(1) == [(30, 2)]
    walk = walk.after(3)
    assert [t for t, _ in walk.candidates(3)] == [4]  # named by both, at the better level
    assert walk.candidates(1)[0][1] == 3
    assert walk.intact
    assert [t for t, _ in walk.after(4).candidates(3)] == [5, 50]


def test_which_drafts_are_kept() -> None:
    long, short, newest = Reference(TEXT), Reference(TEXT[:4]), Reference(TEXT[:2])
    assert latest([], 2) == []
    assert latest([long, short], 2) == [long, short]
    assert latest([long, short, newest], 1) == [long, short, newest]  # each goes further than those behind it
    assert latest([short, long, newest], 1) == [long, newest]
    assert latest([newest, short, long], 1) == [long]
    assert latest([newest, short, long], 2) == [short, long]


def test_a_reference_grows_and_places_stay() -> None:
    reference = Reference(TEXT[:3])
    place = Place.begin(reference, SsrOptions())
    for i, token in enumerate(TEXT[:3]):
        place = place.after(token, TEXT[: i + 1])
    assert place.candidates() == []
    reference.extend(TEXT[3:])
    assert place.candidates() == [(TEXT[3], 3)]
    assert reference.find([TEXT[8], TEXT[9]], 0) == (10, 2)
    assert reference.find([1, *TEXT[:9]], 0) == (9, 9)
    assert reference.find([TEXT[9]], 0) is None
    assert reference.find([TEXT[9], TEXT[8]], 0) is None
    assert Reference([1, 2, 3, 1, 2, 4, 1, 2]).find([1, 2], 5) == (5, 2)
    assert Reference([1, 2, 3, 1, 2, 4, 1, 2]).find([1, 2], 4) == (5, 2)
    assert Reference([1, 2, 3, 1, 2, 4, 1, 2]).find([9, 1, 2], 3) == (2, 2)
    assert Reference([1, 2, 3, 1, 2, 4, 1, 2]).find([3, 1, 2], 0) == (5, 3)  # a longer agreement beats a nearer one


def dear(second: float, slope: float = 0.0) -> CostModel:
    """Passes of 1 and 2 tokens cost 1 and ``second``; ``slope`` a token from there on."""
    return CostModel((1, 2, 40), (1.0, second, second + 38 * slope), 0)


def moment(thought: int = 100, remaining: int = 1000, rows: int = 1, budget: int | None = None) -> Moment:
    return Moment(thought, remaining, 50, rows, budget)


def test_a_fork_that_is_free_pays_and_one_that_is_dear_does_not() -> None:
    assert ForkControl(SsrOptions()).gain(moment()) == pytest.approx(0.5 * 200)
    free = ForkControl(SsrOptions(), dear(1.0))
    assert free.gain(moment()) == pytest.approx(0.5 * 200)
    assert ForkControl(SsrOptions(), dear(1.3)).gain(moment()) == pytest.approx(
        0.5 * 200 * (1.0 - 0.3 / 16) - 200 * 0.3, abs=1e-9
    )
    assert ForkControl(SsrOptions(), dear(1.8)).gain(moment()) < 0
    assert ForkControl(SsrOptions(draft_tokens=20), dear(1.0)).gain(moment()) == pytest.approx(0.5 * 20)


def test_more_rows_make_a_fork_dearer() -> None:
    linear = CostModel((1, 2, 64), (1.0, 1.1, 1.1 + 62 * 0.1), 0)
    control = ForkControl(SsrOptions(), linear)
    gains = [control.gain(moment(rows=n)) for n in (1, 2, 4, 8, 16)]
    assert gains[0] > 0 > gains[-1]
    assert gains == sorted(gains, reverse=True)


def test_what_is_left_bounds_the_draft() -> None:
    control = ForkControl(SsrOptions())
    assert control.gain(moment(350)) == pytest.approx(0.5 * 100)  # at least a quarter of a usual thought is expected still
    assert control.gain(moment(100, remaining=350)) == pytest.approx(0.5 * 50)
    assert control.gain(moment(100, budget=130)) == pytest.approx(0.5 * 30)
    assert control.gain(moment(100, budget=90)) == 0.0
    assert not control.worth(moment(100, remaining=100))


def test_now_and_then_a_fork_is_made_to_learn() -> None:
    control = ForkControl(SsrOptions(), dear(1.9))
    assert [control.worth(moment()) for _ in range(16)].count(True) == 2
    assert not control.pays(moment())
    assert not any(control.worth(moment(remaining=50)) for _ in range(16))  # from which nothing could be learned
    always = ForkControl(SsrOptions(always=True), dear(1.9))
    assert always.worth(moment())
    assert always.pays(moment())


def test_when_the_first_fork_is_due() -> None:
    assert ForkControl(SsrOptions(draft_budget=0)).first(None) == 0
    assert ForkControl(SsrOptions(draft_budget=33)).first(5) == 33
    assert ForkControl(SsrOptions()).first(None) == 200
    control = ForkControl(SsrOptions(), thought=400.0, answer=300.0)
    assert control.first(None) == 100  # so that the draft is ready when the thought ends
    assert control.first(320) == 20
    assert control.first(10) == 8
    assert ForkControl(SsrOptions(draft_tokens=50), thought=400.0, answer=300.0).first(None) == 200


def test_learning() -> None:
    control = ForkControl(SsrOptions())
    for _ in range(30):
        control.learn(80, 60, 54, 60)
    assert control.thought == pytest.approx(80, abs=1)
    assert control.answer == pytest.approx(60, abs=1)
    assert control.overlap == pytest.approx(0.9, abs=0.01)
    for _ in range(30):
        control.learn(80, 60, 27, 30)  # a draft that went half way
    assert control.overlap == pytest.approx(0.9, abs=0.01)
    for _ in range(30):
        control.learn(80, 60, 0, 0)  # without a fork
    assert control.overlap == pytest.approx(0.9, abs=0.01)
    control.learn(80, 60, 0, 2)  # two tokens say little
    assert control.overlap > 0.87
    for _ in range(10):
        control.learn(80, 60, 0, 60)
    assert control.overlap < 0.12


def test_the_first_request_says_most() -> None:
    control = ForkControl(SsrOptions())
    control.learn(100, 100, 100, 100)
    assert control.thought == pytest.approx(0.3 * 400 + 0.7 * 100)
    assert control.overlap == pytest.approx(0.3 * 0.5 + 0.7)
    control.learn(100, 100, 0, 100)
    assert control.overlap == pytest.approx(0.8 * 0.85)


def test_thoughts_that_never_end() -> None:
    control = ForkControl(SsrOptions())
    for _ in range(20):
        control.learn(100, 0, 0, 100)
    assert control.thought == 400.0  # known to be longer than 100
    assert control.answer < 5
    assert control.overlap == 0.5
    assert control.gain(moment(remaining=450)) < 5


def stats_of(*passes: tuple[float, bool]) -> Stats:
    stats = Stats()
    for seconds, prefill in passes:
        stats.add_time(Costs(0.0, seconds, 0.0, 1, 0, 0), prefill)
    return stats


def test_seconds_go_to_the_stage_in_which_their_pass_began() -> None:
    told, row = SsrStats(), stats_of((1.0, True))
    # a drafter is told of a pass before its seconds are counted
    for stage, seconds in (("thought", 2.0), ("thought", 4.0), ("verify", 8.0), ("continuation", 16.0)):
        told.time(row, stage)
        row.add_time(Costs(0.0, seconds, 0.0, 1, 0, 0), False)
    told.time(row, "thought")
    assert (told.thought_seconds, told.verify_seconds, told.continuation_seconds) == (7.0, 8.0, 16.0)
    assert "_before" not in told.to_dict()
    assert "_stage" not in told.to_dict()
