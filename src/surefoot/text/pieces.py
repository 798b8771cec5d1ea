"""The bytes that each token id stands for, as it stands in the middle of a text.

Contract, by the steps of the tokenizer's own decoder:

- byte-level BPE: exact; a piece may be a part of a character, and the pieces of a text's tokens put together are its bytes
- metaspace and byte fallback (SentencePiece): ``▁`` is a space and ``<0xAB>`` that byte; exact but for the space that the
  tokenizer puts before a text
- a suffix that ends words (``</w>``): the space after them; WordPiece: a space before each token that does not continue a word.
  Best effort: such tokenizers also change letters, accents and the spaces around punctuation
- any other: the token, decoded alone

An added token is the bytes of its own name, and an id that stands for nothing has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def pieces_of(tokenizer: Tokenizer, size: int) -> list[bytes]:
    """One entry an id below ``size``."""
    table = tokenizer.get_vocab(with_added_tokens=True)
    piece = _reader(tokenizer)
    pieces = [b""] * size
    for token, i in table.items():
        if i < size:
            pieces[i] = piece(token)
    for i, added in tokenizer.get_added_tokens_decoder().items():
        if i < size:
            pieces[i] = added.content.encode()
    return pieces


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that mark something (begin, end, roles) and are not text, however they are spelt."""
    return frozenset(i for i, added in tokenizer.get_added_tokens_decoder().items() if added.special)


def _reader(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """Token -> bytes."""
    steps = list(_steps(tokenizer))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()

        def raw(token: str) -> bytes:
            try:
                return bytes([alphabet[c] for c in token])
            except KeyError:  # the decoder leaves such tokens as they are
                return token.encode()

        return raw
    if not kinds & {"Metaspace", "ByteFallback", "Replace", "WordPiece", "BPEDecoder"}:
        return lambda token: tokenizer.decode([tokenizer.token_to_id(token) or 0], skip_special_tokens=False).encode()
    changes = [change for step in steps if (change := _change(step)) is not None]
    fallback = "ByteFallback" in kinds

    def written(token: str) -> bytes:
        if fallback and (found := _BYTE.fullmatch(token)):
            return bytes([int(found[1], 16)])
        for change in changes:
            token = change(token)
        return token.encode()

    return written


def _steps(tokenizer: Tokenizer) -> Iterator[Mapping[str, Any]]:
    """The decoder's parts, in order."""
    todo = [] if tokenizer.decoder is None else [json.loads(tokenizer.decoder.__getstate__())]
    while todo:
        step = todo.pop(0)
        if step["type"] == "Sequence":
            todo = [*step["decoders"], *todo]
        else:
            yield step


def _change(step: Mapping[str, Any]) -> Callable[[str], str] | None:
    """What a part of a decoder does to one token that stands in the middle of a text."""
    kind = step["type"]
    if kind == "Replace" and "String" in step["pattern"]:
        return lambda token: token.replace(step["pattern"]["String"], step["content"])
    if kind == "Metaspace":
        return lambda token: token.replace(step["replacement"], " ")
    if kind == "BPEDecoder":
        return lambda token: token.replace(step["suffix"], " ")
    if kind == "WordPiece":
        prefix = step["prefix"]
        return lambda token: token.removeprefix(prefix) if token.startswith(prefix) else " " + token
    return None


def _byte_alphabet() -> dict[str, int]:
    """The letters that byte-level BPE writes bytes with: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = sorted(set(range(256)) - set(printable))
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(rest)}
