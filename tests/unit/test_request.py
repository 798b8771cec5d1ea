"""The single commit function: tokens in order, and the first thing that ends the request wins."""

from __future__ import annotations

import pytest
from toys import ToyCodec

from surefoot.core.params import SamplingParams
from surefoot.core.request import Row

NAMES = {0: "target", 1: "ngram"}
LETTERS = ToyCodec("abcdefghij")


def row(limit=10, eos=(), codec: ToyCodec | None = LETTERS, prompt=(0,), **options) -> Row:
    decoder = codec.decoder() if codec is not None else None
    return Row(0, prompt, SamplingParams(**options), limit=limit, eos=eos, decoder=decoder)


def commit(r: Row, *tokens: int) -> int:
    return r.commit(tokens, [1] * len(tokens))


def test_keeps_all_while_nothing_ends():
    r = row()
    assert commit(r, 1, 2, 3) == 3
    assert (r.output, r.text, r.done, r.remaining) == ([1, 2, 3], "bcd", False, 7)


@pytest.mark.parametrize("at", range(5))
def test_eos_ends_at_its_place_and_has_no_text(at):
    r = row(eos=(9,))
    block = [1, 2, 3, 4, 5]
    block[at] = 9
    assert commit(r, *block) == at + 1
    assert r.output == block[: at + 1]
    assert r.text == LETTERS.text(block[:at])
    assert r.finish_reason == "stop"


def test_ignore_eos_goes_on_but_stop_tokens_still_stop():
    r = row(eos=(9,), ignore_eos=True, stop_token_ids=(8,))
    assert commit(r, 1, 9, 2, 8, 3) == 4
    assert r.text == "bjc"
    assert r.finish_reason == "stop"


@pytest.mark.parametrize("limit, kept, reason", [(2, 2, "length"), (3, 3, "stop"), (4, 3, "stop")])
def test_a_stop_at_or_before_the_limit_wins(limit, kept, reason):
    r = row(limit=limit, eos=(9,))
    assert commit(r, 1, 2, 9, 3) == kept
    assert r.finish_reason == reason
    by_string = row(limit=limit, stop="d")
    assert commit(by_string, 1, 2, 3, 4) == kept
    assert by_string.finish_reason == reason


def test_a_stop_string_over_tokens_and_blocks():
    r = row(stop="cdef")
    assert commit(r, 1, 2, 3) == 3
    assert r.text == "b"  # "cd" may begin the stop string
    assert commit(r, 4) == 1
    assert commit(r, 5, 6, 7) == 1
    assert (r.output, r.text, r.finish_reason) == ([1, 2, 3, 4, 5], "b", "stop")


def test_what_was_withheld_comes_back_when_the_stop_does_not():
    r = row(stop="cdz")
    commit(r, 1, 2, 3)
    assert r.text == "b"
    commit(r, 2)
    assert r.text == "bcd"
    commit(r, 3, 4)
    assert r.text == "bcdcde"


@pytest.mark.parametrize("end", ["length", "eos", "abort"])
def test_withheld_text_is_released_at_the_end(end):
    r = row(limit=3 if end == "length" else 9, eos=(9,), stop="dz")
    commit(r, 1, 2, 3)
    if end == "eos":
        commit(r, 9)
    if end == "abort":
        r.abort()
    assert r.done
    assert r.text == "bcd"


def test_the_earliest_of_several_stops_wins_and_the_longest_at_one_place():
    r = row(stop=("fg", "cd", "cde"), codec=ToyCodec(["a", "bcdefg"]))
    commit(r, 1)
    assert r.text == "b"
    kept = row(stop=("cd", "cde"), include_stop_str_in_output=True, codec=ToyCodec(["a", "bcdefg"]))
    commit(kept, 1)
    assert kept.text == "bcde"


def test_overlapping_beginnings_of_a_stop():
    r = row(stop="aab", codec=ToyCodec(["a", "b"]), limit=20)
    assert commit(r, 0, 0, 0, 0, 1, 0) == 5
    assert r.text == "aa"


@pytest.mark.parametrize("include, text", [(False, "x"), (True, "xEND")])
def test_a_stop_inside_a_token_cuts_the_text_not_the_token(include, text):
    r = row(stop="END", include_stop_str_in_output=include, codec=ToyCodec(["x", "EN", "D and more", "!"]))
    assert commit(r, 0, 1, 2, 3) == 3
    assert (r.output, r.text, r.finish_reason) == ([0, 1, 2], text, "stop")


def test_characters_over_several_tokens():
    euro = "€".encode()
    codec = ToyCodec([euro[:1], euro[1:2], euro[2:], "."])
    r = row(codec=codec)
    commit(r, 0)
    assert r.text == ""
    commit(r, 1, 2, 3)
    assert r.text == "€."
    broken = row(codec=codec, limit=2)
    commit(broken, 0, 1)
    assert broken.text == "\N{REPLACEMENT CHARACTER}"
    stopped = row(codec=codec, stop="€")
    assert commit(stopped, 3, 0, 1, 2, 3) == 4
    assert stopped.text == "."


def test_without_a_decoder_there_is_no_text():
    r = row(codec=None)
    commit(r, 1, 2)
    r.abort()
    assert (r.text, r.output) == ("", [1, 2])


def test_abort_keeps_what_there_is_and_changes_nothing_later():
    r = row(limit=2)
    commit(r, 1)
    r.abort()
    assert (r.output, r.text, r.finish_reason) == ([1], "b", "abort")
    ended = row(limit=1)
    commit(ended, 1)
    ended.abort()
    assert ended.finish_reason == "length"


def test_pieces_add_up_and_carry_sources():
    r = row(limit=6, stop="dez")
    assert r.drain(NAMES) is None
    r.commit([1, 2], [1, 0])
    first = r.drain(NAMES)
    assert first is not None
    assert (first.text, first.token_ids, first.sources, first.finish_reason) == ("bc", (1, 2), ("ngram", "target"), None)
    assert r.drain(NAMES) is None
    r.commit([3, 4], [1, 1])
    held = r.drain(NAMES)
    assert held is not None
    assert (held.text, held.token_ids) == ("", (3, 4))
    r.commit([5, 6, 7], [0, 1, 1])
    last = r.drain(NAMES)
    assert last is not None
    assert (last.text, last.token_ids, last.sources, last.finish_reason) == ("defg", (5, 6), ("target", "ngram"), "length")


def test_the_budget_counts_kept_tokens_only():
    r = row(limit=3)
    assert commit(r, 1, 2, 3, 4, 5) == 3
    assert r.remaining == 0
    assert r.tokens == [0, 1, 2, 3]
