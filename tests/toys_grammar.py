"""A grammar library for tests: regular expressions over bytes, by derivatives, with nothing to install.

A term is a nested tuple, so equal states compare equal; a matcher is a term and the tokens it has read. Kinds: ``regex``,
``choice``, and ``json_object`` as a small language of flat objects. What it cannot compile it refuses like a real library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from surefoot.core.constraint import Constraint
from surefoot.errors import BadRequest

Term = tuple
VOID: Term = ("void",)
EMPTY: Term = ("empty",)
JSON_OBJECT = r'\{("[ab]+":("[ab]*"|[1-3]+)(,"[ab]+":("[ab]*"|[1-3]+))*)?\}'


def _byte(allowed: frozenset[int]) -> Term:
    return ("byte", allowed) if allowed else VOID


def _cat(a: Term, b: Term) -> Term:
    if VOID in (a, b):
        return VOID
    if a == EMPTY:
        return b
    return a if b == EMPTY else ("cat", a, b)


def _alt(a: Term, b: Term) -> Term:
    """A union as a set, so that derivatives of a starred term stay finitely many."""
    parts = frozenset(x for t in (a, b) for x in (t[1] if t[0] == "alt" else (t,)) if x != VOID)
    if not parts:
        return VOID
    return next(iter(parts)) if len(parts) == 1 else ("alt", parts)


def _star(a: Term) -> Term:
    return EMPTY if a in (VOID, EMPTY) else ("star", a)


def nullable(t: Term) -> bool:
    if t[0] == "cat":
        return nullable(t[1]) and nullable(t[2])
    if t[0] == "alt":
        return any(nullable(x) for x in t[1])
    return t[0] in ("empty", "star")


def derive(t: Term, byte: int) -> Term:
    """What may follow ``byte``."""
    if t[0] == "byte":
        return EMPTY if byte in t[1] else VOID
    if t[0] == "cat":
        first = _cat(derive(t[1], byte), t[2])
        return _alt(first, derive(t[2], byte)) if nullable(t[1]) else first
    if t[0] == "alt":
        out = VOID
        for x in t[1]:
            out = _alt(out, derive(x, byte))
        return out
    return _cat(derive(t[1], byte), t) if t[0] == "star" else VOID


def first_bytes(t: Term) -> frozenset[int]:
    if t[0] == "byte":
        return t[1]
    if t[0] == "cat":
        return first_bytes(t[1]) | (first_bytes(t[2]) if nullable(t[1]) else frozenset())
    if t[0] == "alt":
        return frozenset().union(*map(first_bytes, t[1]))
    return first_bytes(t[1]) if t[0] == "star" else frozenset()


def literal(text: bytes) -> Term:
    out = EMPTY
    for byte in reversed(text):
        out = _cat(_byte(frozenset([byte])), out)
    return out


class _Parser:
    """Literals, escapes, ``.``, classes, groups, ``|``, ``*``, ``+``, ``?``, ``{m}``, ``{m,n}``."""

    def __init__(self, pattern: str) -> None:
        self._rest = pattern.encode()

    def whole(self) -> Term:
        out = self._union()
        if self._rest:
            raise ValueError(f"cannot read {self._rest!r}")
        return out

    def _take(self) -> int:
        if not self._rest:
            raise ValueError("the pattern ends too early")
        byte, self._rest = self._rest[0], self._rest[1:]
        return byte

    def _union(self) -> Term:
        out = self._sequence()
        while self._rest[:1] == b"|":
            self._take()
            out = _alt(out, self._sequence())
        return out

    def _sequence(self) -> Term:
        parts: list[Term] = []
        while self._rest and self._rest[0] not in b"|)":
            parts.append(self._repeated())
        out = EMPTY
        for part in reversed(parts):
            out = _cat(part, out)
        return out

    def _repeated(self) -> Term:
        atom = self._atom()
        while self._rest and (self._rest[0] in b"*+?" or re.match(rb"\{\d+(,\d+)?\}", self._rest)):
            if found := re.match(rb"\{(\d+)(?:,(\d+))?\}", self._rest):
                self._rest = self._rest[found.end() :]
                low = int(found[1])
                base, out = atom, EMPTY
                for _ in range(int(found[2] or low) - low):
                    out = _alt(EMPTY, _cat(base, out))
                for _ in range(low):
                    out = _cat(base, out)
                atom = out
            else:
                sign = chr(self._take())
                atom = _alt(EMPTY, atom) if sign == "?" else _star(atom) if sign == "*" else _cat(atom, _star(atom))
        return atom

    def _atom(self) -> Term:
        byte = self._take()
        if byte in b"*+?)":
            raise ValueError(f"nothing to apply {chr(byte)!r} to")
        if byte == ord("("):
            inner = self._union()
            if self._take() != ord(")"):
                raise ValueError("a group is not closed")
            return inner
        if byte == ord("["):
            return self._set()
        if byte == ord("."):
            return _byte(frozenset(range(256)) - {10})
        return _byte(frozenset([self._take() if byte == ord("\\") else byte]))

    def _set(self) -> Term:
        negated = self._rest[:1] == b"^"
        if negated:
            self._take()
        found: set[int] = set()
        while (byte := self._take()) != ord("]"):
            low = self._take() if byte == ord("\\") else byte
            high = low
            if self._rest[:1] == b"-" and self._rest[1:2] != b"]":
                self._take()
                high = self._take()
            found.update(range(low, high + 1))
        return _byte(frozenset(range(256)) - frozenset(found) if negated else frozenset(found))


def compile_term(constraint: Constraint) -> Term:
    if constraint.kind == "choice":
        out = VOID
        for text in constraint.choices:
            out = _alt(out, literal(text.encode()))
        return out
    if constraint.kind == "json_object":
        return _Parser(JSON_OBJECT).whole()
    if constraint.kind != "regex":
        raise BadRequest(f"{constraint.kind}: the toy grammars have regex, choice and json_object only; give one of them")
    try:
        return _Parser(constraint.text).whole()
    except ValueError as error:
        raise BadRequest(f"regex: {constraint.text!r} is not a pattern ({error}); correct it") from None


class ToyGrammars:
    """Over the byte pieces of a vocabulary. ``eos``: end tokens, whose pieces are names and never part of a text."""

    def __init__(self, pieces: Sequence[bytes], eos: Sequence[int] = (), vocab: int | None = None) -> None:
        self.pieces = [b"" if i in eos else piece for i, piece in enumerate(pieces)]
        self.pieces += [b""] * ((vocab or len(pieces)) - len(pieces))
        self.eos = tuple(eos)
        self.masks: dict[Term, np.ndarray] = {}
        self._terms: dict[Constraint, Term] = {}

    def matcher(self, constraint: Constraint) -> ToyMatcher:
        if constraint not in self._terms:
            self._terms[constraint] = compile_term(constraint)
        return ToyMatcher(self, self._terms[constraint])

    def after(self, term: Term, text: bytes) -> Term:
        for byte in text:
            term = derive(term, byte)
        return term

    def mask(self, term: Term) -> np.ndarray:
        if term not in self.masks:
            firsts = first_bytes(term)
            mask = np.array([bool(p) and p[0] in firsts and self.after(term, p) != VOID for p in self.pieces])
            mask[list(self.eos)] = nullable(term)
            self.masks[term] = mask
        return self.masks[term]


class ToyMatcher:
    """``read``: the tokens so far, its own and those of the matchers it was forked from."""

    def __init__(self, grammars: ToyGrammars, term: Term, over: bool = False, read: tuple[int, ...] = ()) -> None:
        self._grammars = grammars
        self._term = term
        self._over = over
        self.read = read

    @property
    def ended(self) -> bool:
        return self._over or (not self._grammars.eos and self._term == EMPTY)

    def allowed(self) -> np.ndarray:
        if self._over:
            return np.zeros(len(self._grammars.pieces), bool)
        return self._grammars.mask(self._term)

    def advance(self, token: int) -> None:
        if not self.allowed()[token]:
            self._term = VOID
        elif token in self._grammars.eos:
            self._over = True
        else:
            self._term = self._grammars.after(self._term, self._grammars.pieces[token])
        self.read = (*self.read, token)

    def fork(self) -> ToyMatcher:
        return type(self)(self._grammars, self._term, self._over, self.read)

    def forced(self, limit: int) -> list[int]:
        if self._over:
            return []
        text, term = b"", self._term
        while not nullable(term) and len(firsts := first_bytes(term)) == 1 and len(text) < 64:
            text += bytes(firsts)
            term = derive(term, text[-1])
        out: list[int] = []
        while text and len(out) < limit:
            fitting = [i for i, piece in enumerate(self._grammars.pieces) if piece and text.startswith(piece)]
            if not fitting:
                break
            out.append(max(fitting, key=lambda i: len(self._grammars.pieces[i])))
            text = text[len(self._grammars.pieces[out[-1]]) :]
        return out


def accepts(constraint: Constraint, text: bytes | str, prefix: bool = False) -> bool:
    """Whether the language holds ``text`` (``prefix``: a text that begins so)."""
    term = compile_term(constraint)
    for byte in text.encode() if isinstance(text, str) else text:
        term = derive(term, byte)
    return term != VOID if prefix else nullable(term)
