"""Structured output through xgrammar: from a constraint to the tokens that may come next.

Contract: what the allowed tokens spell, in bytes, is what the constraint says, and an end token is allowed where that is
complete. Special tokens are not text: a grammar never allows them, even where their names would fit. JSON comes in one
line, spaced as ``json.dumps`` does it (``{"a": 1, "b": [2, 3]}``), so that no model can go on with white space for ever,
and members come in the schema's order. In a ``regex`` a dot is any character but the end of a line, as in Python.

xgrammar is imported with the first constraint.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..core.constraint import Constraint
from ..errors import BadRequest, Unsupported
from .codec import Codec
from .pieces import special_ids
from .productive import productive
from .schema import check_schema

_KEPT = 64
"""Compiled constraints that are remembered."""
_CUTS = 4096
"""Forced texts whose tokens are remembered."""
_LIKELY = 0.1
"""A last forced token is kept where fewer tokens would lengthen it, as a share of those that may follow it."""
_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")
_MEANT = {
    "json_object": "request",
    "json_schema": "schema",
    "regex": "pattern",
    "grammar": "grammar",
    "choice": "list of choices",
}


class Words(Protocol):
    """What is asked of a tokenizer."""

    @property
    def eos_ids(self) -> Sequence[int]: ...

    @property
    def pieces(self) -> Sequence[bytes]: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...


class XGrammars:
    """:class:`surefoot.core.constraint.Grammars` for one tokenizer. ``vocab_size``: that of the target's logits."""

    def __init__(self, codec: Words, vocab_size: int) -> None:
        self._codec = codec
        self._vocab = vocab_size
        self._lexicons: dict[bool, Lexicon] = {}
        self._begun: OrderedDict[Constraint, XMatcher] = OrderedDict()

    def matcher(self, constraint: Constraint) -> XMatcher:
        found = self._begun.get(constraint)
        if found is None:
            found = self._begin(constraint)
            self._begun[constraint] = found
            if len(self._begun) > _KEPT:
                self._begun.popitem(last=False)
        self._begun.move_to_end(constraint)
        return found.fork()

    def _begin(self, constraint: Constraint) -> XMatcher:
        library = _library()
        kind = constraint.kind
        if kind == "json_schema":
            check_schema(json.loads(constraint.text))
        # one line of JSON has no use for control characters, and the library lets some of them into strings
        lines = kind not in ("json_object", "json_schema")
        if lines not in self._lexicons:
            self._lexicons[lines] = Lexicon(self._codec, self._vocab, lines)
        lexicon = self._lexicons[lines]
        try:
            compiled = _compile(lexicon.compiler, constraint)
        except Exception as error:  # the library raises what its C++ side throws
            raise BadRequest(f"{kind}: {_reason(error)}; correct the {_MEANT[kind]}") from None
        matcher = XMatcher(lexicon, library.GrammarMatcher(compiled, terminate_without_stop_token=False))
        if not matcher.allowed().any():
            raise BadRequest(f"{kind}: no token of the model can begin the output; loosen the {_MEANT[kind]}")
        if not productive(str(compiled.grammar)):
            raise BadRequest(f"{kind}: no output can ever be complete; give the {_MEANT[kind]} a way to end")
        return matcher


class Lexicon:
    """A vocabulary as its matchers share it. ``lines``: tokens with control characters are used."""

    __slots__ = ("codec", "compiler", "cuts", "ends", "lengths", "mask", "pieces", "usable", "vocab", "_bits")

    def __init__(self, codec: Words, vocab: int, lines: bool) -> None:
        library = _library()
        special = special_ids(codec.tokenizer) if isinstance(codec, Codec) else frozenset[int]()
        self.codec = codec
        self.vocab = vocab
        self.ends = frozenset(i for i in codec.eos_ids if i < vocab)
        given = list(codec.pieces[:vocab])
        self.pieces = given + [b""] * (vocab - len(given))
        for i, piece in enumerate(self.pieces):
            if i in special or i in self.ends or (not lines and any(byte < 0x20 for byte in piece)):
                self.pieces[i] = b""
        self.lengths = np.array([len(piece) for piece in self.pieces])
        self.usable = bytes(bool(piece) or i in self.ends for i, piece in enumerate(self.pieces))
        known = self.pieces + separators(self.pieces)
        info = library.TokenizerInfo(
            known, library.VocabType.RAW, vocab_size=len(known), stop_token_ids=sorted(self.ends), add_prefix_space=False
        )
        self.compiler = library.GrammarCompiler(info, max_threads=2, cache_enabled=False)
        self.mask = torch.zeros(1, (len(known) + 31) // 32, dtype=torch.int32)
        self._bits = self.mask.numpy().view(np.uint8)[0]
        self.cuts: dict[tuple[int, str], list[int]] = {}

    def bits(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """[V] of the filled mask."""
        return np.unpackbits(self._bits, count=self.vocab, bitorder="little").view(np.bool_)

    def cut(self, last: int, text: str) -> list[int]:
        """Tokens of ``text`` after the token ``last`` (-1: unknown), as the tokenizer would cut the whole."""
        found = self.cuts.get((last, text))
        if found is None:
            if len(self.cuts) >= _CUTS:
                self.cuts.clear()
            found = self.cuts[last, text] = self._cut(last, text)
        return found

    def _cut(self, last: int, text: str) -> list[int]:
        wanted = text.encode()
        try:
            before = self.pieces[last].decode() if last >= 0 else ""
        except UnicodeDecodeError:
            before = ""
        # some tokenizers put a space before a text, so it may need another one before it
        for context in dict.fromkeys((before, "", "\n")):
            try:
                tokens = self.codec.encode(context + text, special=False)
            except (BadRequest, ValueError):
                continue
            size, begin = 0, len(tokens)
            while size < len(wanted) and begin > 0:
                begin -= 1
                size += len(self.pieces[tokens[begin]]) if tokens[begin] < self.vocab else len(wanted) + 1
            if b"".join(self.pieces[token] for token in tokens[begin:] if token < self.vocab) == wanted:
                return tokens[begin:]
        return []


def separators(pieces: Sequence[bytes]) -> list[bytes]:
    """Pieces to put beside these, under ids that no one reads, so that the library's masks are complete.

    In sorted order it takes the run of pieces that *contain* a piece for those that begin with it, and leaves the whole run
    out where that piece does not fit: with ``":`` it loses ``"a":``. A piece between the two ends the run where it should.
    """
    added: list[bytes] = []
    words = sorted({piece for piece in pieces if piece})
    while True:
        found = set()
        for i, piece in enumerate(words):
            at = bisect_left(words, True, i + 1, key=lambda other, piece=piece: not other.startswith(piece))  # type: ignore[misc]
            if at < len(words) and piece in words[at]:
                common = next(n for n, (a, b) in enumerate(zip(piece, words[at], strict=False)) if a != b)
                found.add(words[at][: common + 1])
        if not found:
            return added
        added += sorted(found)
        words = sorted({*words, *found})


class XMatcher:
    """:class:`surefoot.core.constraint.Matcher` over xgrammar's; the library is not asked once the output has ended."""

    __slots__ = ("_alive", "_last", "_lexicon", "_matcher", "ended")

    def __init__(self, lexicon: Lexicon, matcher: Any, last: int = -1, alive: bool = True, ended: bool = False) -> None:
        self._lexicon = lexicon
        self._matcher = matcher
        self._last = last
        self._alive = alive
        self.ended = ended

    def allowed(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        lexicon = self._lexicon
        if not self._alive:
            return np.zeros(lexicon.vocab, np.bool_)
        self._matcher.fill_next_token_bitmask(lexicon.mask)
        return lexicon.bits()

    def advance(self, token: int) -> None:
        lexicon = self._lexicon
        # the library writes to stderr about tokens outside the vocabulary and after the end, so it is not asked
        if not (self._alive and 0 <= token < lexicon.vocab and lexicon.usable[token] and self._matcher.accept_token(token)):
            self._alive = False
            return
        self._last = token
        if token in lexicon.ends or (not lexicon.ends and self._matcher.is_completed() and not self.allowed().any()):
            self._alive, self.ended = False, True

    def fork(self) -> XMatcher:
        matcher = self._matcher.fork() if self._alive else self._matcher
        return XMatcher(self._lexicon, matcher, self._last, self._alive, self.ended)

    def forced(self, limit: int) -> list[int]:
        if not self._alive or limit < 1:
            return []
        text = self._matcher.find_jump_forward_string()
        if text:
            return self._agreed(self._lexicon.cut(self._last, text), limit)
        allowed = self.allowed()
        return [int(allowed.argmax())] if np.count_nonzero(allowed) == 1 else []

    def _agreed(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Those of a forced text's tokens that the model is likely to cut it into, at most ``limit``."""
        at = self.fork()
        for n, token in enumerate(tokens):
            if n == limit:
                return list(tokens[:limit])
            before = at.allowed() if n == len(tokens) - 1 else None
            at.advance(token)
            if not (at._alive or at.ended):
                return list(tokens[:n])
            # the last token of the text may be written together with what follows
            if before is not None:
                longer = np.count_nonzero(before & (self._lexicon.lengths > self._lexicon.lengths[token]))
                if longer > _LIKELY * np.count_nonzero(at.allowed()):
                    return list(tokens[:n])
        return list(tokens)


def _library() -> Any:
    try:
        import xgrammar
    except ImportError:
        raise Unsupported("structured output needs xgrammar: pip install 'surefoot[grammar]'") from None
    return xgrammar


def _compile(compiler: Any, constraint: Constraint) -> Any:
    kind, text = constraint.kind, constraint.text
    if kind == "regex":
        return compiler.compile_regex(_within_lines(text))
    if kind == "grammar":
        return compiler.compile_grammar(text)
    if kind == "choice":
        return compiler.compile_grammar("root ::= " + " | ".join(map(_literal, constraint.choices)))
    return compiler.compile_json_schema('{"type": "object"}' if kind == "json_object" else text, any_whitespace=False)


def _literal(text: str) -> str:
    """A string of the grammar language; letters and digits as they are, all else by number."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(f"{ascii(text)[:40]} holds an unpaired surrogate")
    return '"' + "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08x}" for c in text) + '"'


def _within_lines(pattern: str) -> str:
    """The pattern with its dots, which to the library are any character, kept to one line, and without anchors.

    The whole output matches the whole pattern, so an anchor at the edge of an alternative says nothing; the library would
    ignore one elsewhere, where it can make a pattern match nothing.
    """
    out: list[str] = []
    inside, at, depth = False, 0, 0
    while at < len(pattern):
        c = pattern[at]
        begins, ends = at == 0 or pattern[at - 1] == "|", at + 1 == len(pattern) or pattern[at + 1] == "|"
        if c == "\\":
            c = pattern[at : at + 2]
        elif c == "[" and not inside:
            inside = True
        elif c == "]":
            inside = False
        elif not inside:
            depth += (c == "(") - (c == ")")
            if c in "^$":
                if depth or not (begins if c == "^" else ends):
                    raise ValueError(f"{c!r} stands at character {at}, not at the edge of the pattern; leave it out")
                at += 1
                continue
        out.append(r"[^\n]" if c == "." and not inside else c)
        at += len(c)
    return "".join(out)


def _reason(error: Exception) -> str:
    """One line of the library's message, without its source file."""
    lines = [_WHERE.sub("", line).strip() for line in str(error).splitlines()]
    return next((line[:160].rstrip(".") for line in lines if line), type(error).__name__)
