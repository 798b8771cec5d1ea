"""The thinking budget counted token by token, its forced end, and a constraint that begins after a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys_grammar import ToyGrammars

from surefoot.core.constraint import Constraint
from surefoot.core.phases import Constrained, Thinking
from surefoot.core.words import Vocabulary

PIECES = [b"a", b"<", b"t>", b"<t>", b"</", b"</t>", b"</t><t>", b"", b"b", b"x</t>y", b"<t>a</t>", b"</t", b">"]
A, LESS, REST, START, SLASH, END, BOTH, EMPTY, B, INNER, WHOLE, NEARLY, LAST = range(len(PIECES))


def thinking(budget: int, prompt: Sequence[int] = (), forced: Sequence[int] = (SLASH, REST)) -> Thinking:
    made = Thinking(budget, "<t>", "</t>", forced, Vocabulary(PIECES))
    made.begin(prompt)
    return made


def forced_next(part: Thinking) -> int | None:
    """The one token that is possible, if it is only one."""
    logits = np.linspace(-1.0, 1.0, len(PIECES))
    part.apply(logits, [])
    left = np.flatnonzero(logits > -np.inf)
    assert len(left) in (1, len(PIECES))
    found = int(left[0]) if len(left) == 1 else None
    assert part.forced(9)[:1] == ([] if found is None else [found])
    return found


def run(part: Thinking, wanted: Sequence[int]) -> list[int]:
    """What comes out where ``wanted`` is what would come out without a budget; a forced token takes the place of one."""
    out = []
    for token in wanted:
        forced = forced_next(part)
        out.append(token if forced is None else forced)
        part.advance(out[-1])
    return out


@pytest.mark.parametrize("budget", range(5))
def test_so_many_tokens_after_the_start_then_the_end_is_forced(budget):
    out = run(thinking(budget), [B, START, *[A] * 8])
    assert out == [B, START, *[A] * budget, SLASH, REST, *[A] * (6 - budget)]


@pytest.mark.parametrize("budget", range(4))
def test_thinking_that_began_in_the_prompt(budget):
    assert run(thinking(budget, [B, START]), [A] * 7) == [*[A] * budget, SLASH, REST, *[A] * (5 - budget)]


def test_thinking_that_ended_in_the_prompt_is_over():
    assert run(thinking(1, [START, A, END]), [A] * 4) == [A] * 4


def test_tokens_outside_do_not_count():
    assert run(thinking(1), [A, B, A, B, START, B, A]) == [A, B, A, B, START, B, SLASH]


def test_an_end_of_its_own_needs_no_force():
    assert run(thinking(3), [START, A, END, *[A] * 5]) == [START, A, END, *[A] * 5]


def test_an_end_over_several_tokens_is_seen():
    """Both of its tokens count: the budget of three is spent on them, and nothing is forced."""
    assert run(thinking(3), [START, A, SLASH, REST, *[A] * 4]) == [START, A, SLASH, REST, *[A] * 4]


def test_an_end_that_lacks_one_byte_is_seen():
    assert run(thinking(4), [START, A, NEARLY, LAST, *[A] * 4]) == [START, A, NEARLY, LAST, *[A] * 4]


def test_an_end_that_has_begun_when_the_budget_is_spent_is_forced_whole():
    assert run(thinking(2), [START, A, SLASH, REST, A]) == [START, A, SLASH, SLASH, REST]


@pytest.mark.parametrize("start", [[START], [LESS, REST], [LESS, EMPTY, REST]])
def test_a_start_over_several_tokens_is_seen(start):
    assert run(thinking(1), [*start, A, A]) == [*start, A, SLASH]


def test_markers_over_the_end_of_the_prompt():
    assert run(thinking(1, [LESS]), [REST, A, A]) == [REST, A, SLASH]
    assert run(thinking(2, [START, A, SLASH]), [REST, A, A, A]) == [REST, A, A, A]


def test_the_budget_is_one_for_all_thinking():
    out = run(thinking(3), [START, A, END, START, A, A, A, A])
    assert out == [START, A, END, START, A, SLASH, REST, A]
    assert run(thinking(1), [START, A, A, A, B, START, A, A, B]) == [START, A, SLASH, REST, B, START, SLASH, REST, B]


def test_a_token_that_ends_and_begins_again():
    assert run(thinking(2), [START, BOTH, A, A]) == [START, BOTH, A, SLASH]


def test_a_token_that_begins_and_ends():
    assert run(thinking(1), [WHOLE, A, A, A]) == [WHOLE, A, A, A]


def test_a_marker_inside_a_token():
    assert run(thinking(2), [START, INNER, A, A, A]) == [START, INNER, A, A, A]


def test_the_forced_end_is_not_read_as_the_beginning_of_a_marker():
    """After "</" + "t>" nothing of it is left over: "<" ends no marker, and a later one counts anew."""
    out = run(thinking(0), [LESS, REST, A, A, REST, A, LESS, REST, A])
    assert out == [LESS, REST, SLASH, REST, REST, A, LESS, REST, SLASH]
    assert run(thinking(1), [START, LESS, A, A, REST, A]) == [START, LESS, SLASH, REST, REST, A], "nor what stood before it"


def test_what_is_forced_is_known_ahead_up_to_a_limit():
    part = thinking(0, [START], forced=[LESS, EMPTY, SLASH, REST])
    assert part.forced(2) == [LESS, EMPTY]
    part.advance(LESS)
    assert part.forced(9) == [EMPTY, SLASH, REST]
    assert part.forced(0) == []
    assert thinking(1, [START]).forced(9) == []


def test_a_fork_thinks_for_itself():
    part = thinking(2, [START])
    part.advance(A)
    fork = part.fork()
    fork.advance(A)
    assert forced_next(fork) == SLASH
    child = fork.fork()
    child.advance(SLASH)
    assert [forced_next(p) for p in (child, fork, part)] == [REST, SLASH, None]
    part.advance(END)
    assert forced_next(part) is None


tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=12)


@given(st.integers(0, 4), tokens, tokens)
def test_any_path_equals_a_reading_of_the_whole_text(budget, prompt, path):
    """The judge reads all bytes from the start at every step; tokens count where thinking was on before them."""
    part = thinking(budget, prompt)
    text, spent = b"".join(PIECES[t] for t in prompt), 0
    marker: list[int] = []
    for token in path:
        inside, rest = False, text
        while (at := rest.find(b"</t>" if inside else b"<t>")) >= 0:
            rest = rest[at + (4 if inside else 3) :]
            inside = not inside
        if not marker and inside and spent >= budget:
            marker = [SLASH, REST]
            text = text[: len(text) - len(rest)] + b"a" * 9  # what is begun is forgotten
        wanted = marker[0] if marker else None
        assert forced_next(part) == wanted
        if wanted is not None:
            token = marker.pop(0)
        elif inside:
            spent += 1
        part.advance(token)
        text += PIECES[token]


WORDS = [b"a", b"b", b"ab", b";", b"a;", b";a", b"", b";b"]


def constrained(pattern: str, after: str | None = None, eos: Sequence[int] = ()) -> Constrained:
    vocabulary = Vocabulary(WORDS)
    matcher = ToyGrammars(WORDS, eos).matcher(Constraint("regex", pattern))
    return Constrained("response_format", matcher, None if after is None else vocabulary.word(after), vocabulary)


def possible(part: Constrained) -> list[int]:
    logits = np.zeros(len(WORDS))
    part.apply(logits, [])
    return np.flatnonzero(logits == 0.0).tolist()


def told(part: Constrained, *tokens: int) -> Constrained:
    for token in tokens:
        part.advance(token)
    return part


def test_a_constraint_from_the_beginning():
    part = constrained("ab*")
    assert possible(part) == [0, 2]
    assert possible(told(part, 2)) == [1]


def test_a_constraint_after_a_text():
    part = constrained("b+", after=";")
    assert possible(part) == [0, 1, 2, 3, 4, 6], "all but what goes on past the text"
    assert possible(told(part, 0, 1, 2)) == [0, 1, 2, 3, 4, 6]
    assert possible(told(part, 4)) == [1], "the text ended, and the constraint begins"


def test_a_text_over_several_tokens():
    part = constrained("b", after=";a")
    assert possible(part) == list(range(8))
    assert possible(told(part, 0, 3)) == [0, 1, 3, 5, 6, 7], "'ab' and 'a;' would go on past it"
    assert possible(told(part, 0)) == [1]


def test_the_matcher_sees_its_own_tokens_only():
    part = constrained("ab", after=";")
    told(part, 1, 1, 4, 0)
    assert part._matcher.read == (0,)
    assert part.mask == "response_format"


def test_the_end_of_a_constraint():
    """Without an end token the output is over where nothing can follow; never before the constraint has begun."""
    part = constrained("ab", after=";")
    assert not told(part, 0, 1).ended
    assert not told(part, 3).ended
    assert not told(part, 0).ended
    assert told(part, 1).ended


def test_forced_tokens_only_once_the_constraint_has_begun():
    part = constrained("abb", after=";")
    assert part.forced(9) == []
    assert told(part, 3).forced(9) == [2, 1]
    assert part.forced(1) == [2]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_forks_of_a_constraint_go_their_own_ways(before):
    part = told(constrained("a(a|b)b*", after=";"), *[3, 0][:before])
    wanted = possible(part)
    one, other = part.fork(), part.fork()
    told(one, *[3, 0, 0][before:], 1)
    told(other, *[3, 0, 1][before:])
    assert possible(part) == wanted
    assert part._matcher.read == (0,) * (before - 1)
    assert possible(one) == [1]
    child = told(other.fork(), 1)
    assert child._matcher.read == (0, 1, 1)
    assert other._matcher.read == (0, 1)
