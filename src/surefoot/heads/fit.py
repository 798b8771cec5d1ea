"""Whether a head fits the target, and the part of the target's tables that it uses."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ..core.protocols import Ends
from ..errors import Unsupported, VocabMismatch


def check_fit(path: Path, ends: Ends, *, hidden: int | None = None, vocab: int | None = None) -> None:
    """Refuse a head made for another hidden size or vocabulary; None: the head does not say."""
    own_vocab, own_hidden = ends.head.shape
    if hidden is not None and hidden != own_hidden:
        raise Unsupported(
            f"{path}: the head reads hidden size {hidden}, the target has {own_hidden}; give a head trained for this target"
        )
    if vocab is not None and vocab != own_vocab:
        raise VocabMismatch(
            f"{path}: the head has a vocabulary of {vocab}, the target of {own_vocab}; give a head trained for this target"
        )


def reduced(ends: Ends, draft_ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows of the target's head [Vd, H], and its bias [Vd], for these tokens; None: all, without a copy."""
    if draft_ids is None:
        return ends.head, ends.bias
    at = draft_ids.to(ends.head.device)
    return ends.head[at].contiguous(), None if ends.bias is None else ends.bias[at].contiguous()
