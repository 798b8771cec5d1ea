"""Do two tokenizers share a vocabulary? A drafter of another vocabulary would propose other words.

Contract: what counts is the table id -> token, not its size: embeddings are padded, and extra tokens at the end
that one side lacks do no harm.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..errors import VocabMismatch


@dataclass(frozen=True, slots=True)
class VocabReport:
    """Comparison of two token tables, ours first."""

    same: bool
    """The tables are equal."""
    differing: int
    """Ids that both have, with different tokens."""
    first: tuple[int, str, str] | None
    """The first such id and both tokens."""
    sizes: tuple[int, int]
    """Tokens in each table."""
    only: tuple[int, int]
    """Ids that just one of them has."""
    padded: tuple[int | None, int | None]
    """Rows of each model's embedding, where known."""

    @property
    def compatible(self) -> bool:
        """A draft of one is a draft of the other: no id means two things, and there are ids in common."""
        return self.differing == 0 and max(self.sizes) - max(self.only) > 0

    def explain(self) -> str:
        """One line for people."""
        if self.same:
            return f"same vocabulary ({self.sizes[0]} tokens)"
        if self.first is not None:
            i, ours, theirs = self.first
            return f"different vocabularies: {self.differing} ids differ, the first is {i}: {ours!r} against {theirs!r}"
        return f"no id differs, {self.only[0]} and {self.only[1]} ids are on one side only (sizes {self.sizes})"

    def require(self) -> None:
        """Raise :class:`VocabMismatch` unless compatible."""
        if not self.compatible:
            raise VocabMismatch(f"draft and target have {self.explain()}: use a draft model of the target's family")


def compare_tables(ours: dict[int, str], theirs: dict[int, str], padded: tuple[int | None, int | None]) -> VocabReport:
    both = ours.keys() & theirs.keys()
    differing = [i for i in both if ours[i] != theirs[i]]
    first = min(differing, default=None)
    return VocabReport(
        same=ours == theirs,
        differing=len(differing),
        first=None if first is None else (first, ours[first], theirs[first]),
        sizes=(len(ours), len(theirs)),
        only=(len(ours) - len(both), len(theirs) - len(both)),
        padded=padded,
    )


def fingerprint_of(table: dict[int, str]) -> str:
    """Hash of the id -> token table."""
    digest = hashlib.sha256()
    for i in sorted(table):
        digest.update(f"{i}\0{table[i]}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]
