"""Words in streams of bytes, and the options that forbid them; against brute force over all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.bans import BadSequences, BadWords, Least
from surefoot.core.words import Vocabulary, Word

PIECES = [b"a", b"b", b"ab", b"ba", b"aba", b"", b"c", b"abc", b"xabc", b"bcx", b"\xc3", b"\xa9", "é".encode(), b"a"]


def word(text: str | bytes, pieces: Sequence[bytes] = PIECES) -> Word:
    order = sorted(range(len(pieces)), key=pieces.__getitem__)
    return Word(text.encode() if isinstance(text, str) else text, pieces, order)


def banned(part, size: int = len(PIECES)) -> list[int]:
    logits = np.zeros(size)
    part.apply(logits, [])
    assert set(logits.tolist()) <= {0.0, -np.inf}
    return np.flatnonzero(logits == -np.inf).tolist()


def told(part, *tokens: int):
    for token in tokens:
        part.advance(token)
    return part


def test_tokens_that_hold_the_whole_word_complete_it():
    assert sorted(word("ab").completing[0]) == [2, 4, 7, 8]


def test_tokens_that_go_on_with_the_word_complete_it():
    """From one letter of "abc" on, and from two; a token may go on past it."""
    found = word("abc")
    assert sorted(found.completing[1]) == [9]
    assert sorted(found.completing[2]) == [6]


def test_tokens_that_go_on_past_the_word_overshoot():
    found = word("ab")
    assert sorted(found.overshooting[0]) == [4, 7, 8]
    assert sorted(found.overshooting[1]) == [3, 9]
    assert sorted(word("ab", [b"ab", b"aab", b"abb", b"b", b"abab"]).overshooting[0]) == [2, 4]  # the last ends with it again


def test_equal_pieces_are_all_found():
    assert sorted(word("a").completing[0]) == [0, 2, 3, 4, 7, 8, 13]


def test_beginnings_of_the_word_at_the_end_of_a_text():
    found = word("aab")
    assert found.begun(b"") == [0]
    assert found.begun(b"xa") == [0, 1]
    assert found.begun(b"aa") == [0, 1, 2]
    assert found.begun(b"aab") == [0]


alphabet = st.sampled_from([b"a", b"b", b"c"])
texts = st.lists(alphabet, min_size=1, max_size=4).map(b"".join)
pieces = st.lists(st.lists(alphabet, max_size=4).map(b"".join), min_size=1, max_size=8)


@given(pieces, st.lists(texts, min_size=1, max_size=3), st.lists(st.integers(0, 7), max_size=8))
def test_bad_words_are_exactly_the_tokens_that_would_complete_one(pieces, words, path):
    """Along a path that holds none of them: a fork at every step, and the bytes as the judge."""
    vocabulary = Vocabulary(pieces)
    part, text = BadWords([vocabulary.word(w.decode()) for w in words], vocabulary), b""
    for token in [*path, None]:
        wanted = [i for i, piece in enumerate(pieces) if any(w in text + piece for w in words)]
        assert banned(part, len(pieces)) == wanted
        if token is None or token >= len(pieces) or token in wanted:
            break
        fork = part.fork()
        fork.advance(token)
        assert banned(part, len(pieces)) == wanted, "a fork moved its parent"
        part, text = fork, text + pieces[token]


@given(pieces, texts, st.lists(st.integers(0, 7), max_size=8))
def test_overshooting_is_exactly_what_goes_on_past_the_first_occurrence(pieces, text, path):
    vocabulary = Vocabulary(pieces)
    found, tail = vocabulary.word(text.decode()), b""
    for token in path:
        ends = [(tail + piece).find(text) for piece in pieces]
        wanted = [i for i, at in enumerate(ends) if at >= 0 and at + len(text) < len(tail + pieces[i])]
        assert sorted({int(i) for begun in found.begun(tail) for i in found.overshooting[begun]}) == wanted
        if token >= len(pieces) or ends[token] >= 0:
            break
        tail += pieces[token]


def test_a_word_over_the_bytes_of_one_character():
    vocabulary = Vocabulary(PIECES)
    part = BadWords([vocabulary.word("é")], vocabulary)
    assert banned(part) == [12]
    assert banned(told(part, 10)) == [11, 12]
    assert banned(told(part, 0)) == [12], "the first half is not the last byte any more"


def test_a_token_without_text_does_not_break_a_word():
    vocabulary = Vocabulary(PIECES)
    part = told(BadWords([vocabulary.word("abc")], vocabulary), 2, 5)
    assert banned(part) == [6, 7, 8]


def test_words_are_looked_up_once_and_the_oldest_are_forgotten():
    vocabulary = Vocabulary(PIECES)
    first = vocabulary.word("ab")
    for i in range(255):
        vocabulary.word(f"w{i}")
    assert vocabulary.word("ab") is first
    for i in range(255, 511):
        vocabulary.word(f"w{i}")
    assert vocabulary.word("ab") is not first
    assert sorted(vocabulary.word("ab").completing[0]) == sorted(first.completing[0])


def test_padded_ids_have_no_text():
    vocabulary = Vocabulary(PIECES)
    assert vocabulary.piece(len(PIECES) + 3) == b""
    assert vocabulary.text([0, 99, 1]) == b"ab"


def test_sequences_of_ids():
    part = BadSequences([(3,), (1, 2), (1, 1, 4)])
    assert banned(part) == [3]
    assert banned(told(part, 1)) == [2, 3]
    assert banned(told(part, 1)) == [2, 3, 4]
    assert banned(told(part, 0)) == [3]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=9),
)
def test_bad_sequences_are_exactly_the_tokens_that_would_complete_one(sequences, path):
    part = BadSequences(sequences)
    for at in range(len(path) + 1):
        before = path[:at]
        wanted = sorted({s[-1] for s in sequences if (s[:-1] == before[at - len(s) + 1 :] and at >= len(s) - 1) or len(s) == 1})
        assert banned(part, 4) == wanted
        fork = part.fork()
        fork.advance(3)
        assert banned(part, 4) == wanted, "a fork moved its parent"
        if at < len(path):
            part.advance(path[at])


@pytest.mark.parametrize("least", [1, 2, 5])
def test_no_end_before_that_many_tokens(least):
    """With ``least`` tokens in the output the next one may end it, and not before."""
    part = Least([2, 4], least)
    for _ in range(least):
        fork = part.fork()
        told(fork, 1, 1, 1, 1, 1)
        assert banned(fork) == []
        assert banned(part) == [2, 4]
        part.advance(1)
    assert banned(part) == []
