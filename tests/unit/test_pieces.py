"""The bytes of each token id, for every family of tokenizers."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from surefoot.models import fetch, resolve
from surefoot.text import Codec
from surefoot.text.pieces import pieces_of, special_ids

TEXTS = (
    "plain words, 12 of them",
    "héllo wörld — naïve façade",
    "日本語のテキスト 한국어",
    "🎉 family 👩‍👩‍👧 and flags 🇨🇭",
    "  two  spaces\n\n\ttabs\r\n",
    "{\"key\": [1, 2.5, null], \"s\": \"a\\\"b\"}",
    "\x00\x7f\xa0\xad\u2028",
)  # fmt: skip


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, "the quick brown fox 日本 🎉"] * 8, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a", "▁ab", "é"]
    merges = [("▁", "a"), ("▁a", "b")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(tokens)}, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def text_of(tokenizer: Tokenizer, text: str) -> bytes:
    pieces = pieces_of(tokenizer, tokenizer.get_vocab_size())
    return b"".join(pieces[i] for i in tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_pieces_are_the_bytes_of_the_text(text: str) -> None:
    assert text_of(byte_level(), text) == text.encode()


def test_a_byte_level_piece_may_be_a_part_of_a_character() -> None:
    tokenizer = byte_level()
    pieces = pieces_of(tokenizer, tokenizer.get_vocab_size())
    assert {bytes([b]) for b in range(256)} <= set(pieces)
    parts = [pieces[i] for i in tokenizer.encode("\U0001f9ff", add_special_tokens=False).ids]
    assert len(parts) > 1
    assert b"".join(parts) == "\U0001f9ff".encode()


def test_a_byte_level_token_outside_the_alphabet_stays_as_it_is() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"Ġa": 0, "a b": 1, "日": 2}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    assert pieces_of(tokenizer, 3) == [b" a", b"a b", "日".encode()]


@pytest.mark.parametrize("text", TEXTS)
def test_byte_fallback_pieces_are_the_text_after_the_space_that_comes_first(text: str) -> None:
    assert text_of(byte_fallback(), text) == b" " + text.encode()


def test_byte_fallback_by_hand() -> None:
    tokenizer = byte_fallback()
    pieces = pieces_of(tokenizer, tokenizer.get_vocab_size())
    assert pieces[1 + 0xAB] == b"\xab"
    assert pieces[tokenizer.token_to_id("▁ab")] == b" ab"
    assert pieces[tokenizer.token_to_id("é")] == "é".encode()


def test_byte_names_are_text_where_there_is_no_fallback() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("<0x41>", -1.0), ("▁hi", -1.0)], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    assert pieces_of(tokenizer, 4)[1:] == [b" ", b"<0x41>", b" hi"]


def test_word_pieces_and_word_ends() -> None:
    words = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    assert pieces_of(words, 3)[1:] == [b" play", b"ing"]
    ends = Tokenizer(models.BPE(vocab={"lo": 0, "low</w>": 1}, merges=[]))
    ends.decoder = decoders.BPEDecoder()
    assert pieces_of(ends, 2) == [b"lo", b"low "]


def test_other_tokenizers_are_decoded_token_by_token() -> None:
    tokenizer = Tokenizer(models.WordLevel({"one": 0, "two": 1}, unk_token="one"))
    assert pieces_of(tokenizer, 2) == [b"one", b"two"]


def test_added_tokens_are_their_names_and_other_ids_nothing() -> None:
    for tokenizer in (byte_level(), byte_fallback()):
        before = tokenizer.get_vocab_size()
        tokenizer.add_special_tokens([AddedToken("<|im▁end|>", special=True)])
        tokenizer.add_tokens([AddedToken("</think>", special=False)])
        pieces = pieces_of(tokenizer, before + 5)
        assert pieces[before:] == ["<|im▁end|>".encode(), b"</think>", b"", b"", b""]
        assert before in special_ids(tokenizer)
        assert before + 1 not in special_ids(tokenizer)
        assert len(pieces_of(tokenizer, 3)) == 3


def test_the_packaged_model() -> None:
    codec = Codec.load(fetch(resolve("smollm2-135m-instruct")))
    assert len(codec.pieces) == codec.vocab_size
    for text in TEXTS:
        assert b"".join(codec.pieces[i] for i in codec.encode(text, special=False)) == text.encode()
    assert codec.pieces[codec.eos_ids[0]] == b"<|im_end|>"
    assert set(codec.eos_ids) <= special_ids(codec.tokenizer)
