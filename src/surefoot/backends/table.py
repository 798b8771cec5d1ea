"""A toy language model whose law is a table: milliseconds, no weights, exact enumeration.

Public, so that users can test drafters of their own: the law of the next token depends on the last ``order`` committed
tokens, and the "cache" is the list of committed tokens itself, so a wrong commit shows as a wrong law.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.protocols import InvarianceReport, Need, Scores, Slot, Traits
from ..core.tree import Forest
from ..errors import BackendError, BadRequest


class TableSlot:
    """Committed tokens of one row, and the nodes of the last pass."""

    __slots__ = ("closed", "provisional", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.provisional: list[int] = []
        self.closed = False

    @property
    def length(self) -> int:
        return len(self.tokens)


class TableModel:
    """``logits`` [(V+1)^order, V] float64: one row for each tail of ``order`` tokens (digit V: before the beginning)."""

    def __init__(
        self, logits: Tensor, order: int = 1, *, max_context: int = 4096, max_nodes: int = 256, min_width: int = 1
    ) -> None:
        vocab = logits.shape[-1]
        if logits.shape[0] != (vocab + 1) ** order:
            raise BadRequest(f"a table of order {order} over {vocab} tokens needs {(vocab + 1) ** order} rows")
        self.logits = logits.double()
        self.order = order
        self.open_slots = 0
        self.nodes_scored = 0
        self.traits = Traits(
            name=f"table-{vocab}",
            vocab_size=vocab,
            hidden_size=vocab,
            n_layers=1,
            max_context=max_context,
            max_nodes=max_nodes,
            capacity=1 << 20,
            min_width=min_width,
            hidden=(1,),
            dtype="float64",
        )

    @staticmethod
    def random(vocab: int, order: int = 1, seed: int = 0, sharpness: float = 2.0, **options: int) -> TableModel:
        """A random table; larger ``sharpness`` gives more certain laws."""
        generator = torch.Generator().manual_seed(seed)
        logits = sharpness * torch.randn((vocab + 1) ** order, vocab, generator=generator, dtype=torch.float64)
        return TableModel(logits, order, **options)

    def mixed(self, other: TableModel, weight: float) -> TableModel:
        """A relative of this model: logits moved towards ``other`` by ``weight`` (a draft of chosen quality)."""
        return TableModel((1 - weight) * self.logits + weight * other.logits, self.order)

    def next_logits(self, tokens: Sequence[int]) -> Tensor:
        """[V] logits after these tokens."""
        vocab = self.traits.vocab_size
        row = 0
        for token in ([vocab] * self.order + list(tokens))[-self.order :]:
            row = row * (vocab + 1) + token
        return self.logits[row]

    def open(self, n: int) -> list[Slot]:
        self.open_slots += n
        return [TableSlot([]) for _ in range(n)]

    def fork(self, slot: Slot, length: int | None = None) -> Slot:
        self.open_slots += 1
        return TableSlot(_own(slot).tokens[:length])

    def score(self, slots: Sequence[Slot], forest: Forest, need: Need) -> Scores:
        self.nodes_scored += forest.nodes
        wanted = set(forest.scored().tolist())
        rows: list[Tensor] = []
        hidden: list[Tensor] = []
        for b, slot in enumerate(slots):
            own = _own(slot)
            lo, hi = forest.begins[b], forest.begins[b + 1]
            own.provisional = forest.tokens[lo:hi].tolist()
            paths: list[list[int]] = []
            for i, parent in enumerate(forest.parents[lo:hi].tolist()):
                paths.append([*(own.tokens if parent < 0 else paths[parent]), own.provisional[i]])
                logits = self.next_logits(paths[-1])
                if lo + i in wanted:
                    rows.append(logits)
                hidden.append(logits)
        logits = torch.stack(rows) if rows else torch.zeros(0, self.traits.vocab_size, dtype=torch.float64)
        return Scores(logits, {layer: torch.stack(hidden) for layer in need.hidden})

    def commit(self, slots: Sequence[Slot], paths: Sequence[Sequence[int]]) -> None:
        for slot, path in zip(slots, paths, strict=True):
            own = _own(slot)
            own.tokens += [own.provisional[i] for i in path]
            own.provisional = []

    def close(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if isinstance(slot, TableSlot) and not slot.closed:
                slot.closed = True
                self.open_slots -= 1

    def probe(self) -> InvarianceReport:
        return InvarianceReport(True, self.traits.min_width, False, {})


def _own(slot: Slot) -> TableSlot:
    if not isinstance(slot, TableSlot) or slot.closed:
        raise BackendError("this slot is closed or belongs to another target; open a new one")
    return slot
