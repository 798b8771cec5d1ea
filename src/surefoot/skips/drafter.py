"""The drafter ``layer_skip``: the draft-model drafter over the target's own weights with sublayers left out."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.protocols import TargetModel
from ..core.sublayers import SkipSet
from ..drafters.model import ModelDrafter
from ..models import Progress
from .find import check, find_skips, require
from .store import Store

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a fox who finds a map.",
    "Write a Python function that reverses a list.",
    "List three ways to save water at home.",
)
"""What a target is asked to continue where no others are given: prose, a story, code, a list."""


def layer_skip(
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    identity: str | None,
    *,
    skips: str | SkipSet | None = None,
    ratio: float = 0.45,
    method: str = "clasp",
    tokens: int = 50,
    max_evaluations: int = 100,
    kv_tokens: int | None = None,
    known: int | None = None,
    source: int = 6,
    progress: Progress | None = None,
) -> ModelDrafter:
    """The drafter with the given, the stored or a newly found skip set.

    prompts     tokens of prompts for the search, such as :data:`PROMPTS` in the model's chat format
    identity    what a stored set depends on (see :class:`Store`); ``None``: store nothing
    skips       ``attn:3,mlp:5-8``: these sublayers, without a search
    ratio       share of the sublayers between first and last layer to leave out
    method      ``swift`` or ``clasp``
    tokens      length of the text that the search compares
    max_evaluations  bound on the passes of the search (swift)
    kv_tokens   tokens of the draft's cache; as a rule as many as the target's
    known       ids from here on stand for nothing and are not drafted
    """
    able = require(target)
    check(method, ratio, tokens, max_evaluations)
    chosen = SkipSet.parse(skips) if isinstance(skips, str) else skips
    if chosen is None:
        options = f"{method} ratio={ratio:g} tokens={tokens} max_evaluations={max_evaluations if method == 'swift' else 1}"
        store = None if identity is None else Store(identity)
        found = None if store is None else store.load(options)
        if found is None:
            found = find_skips(
                target,
                prompts,
                method=method,
                ratio=ratio,
                tokens=tokens,
                max_evaluations=max_evaluations,
                progress=progress,
            )
            if store is not None:
                store.save(options, found)
        chosen = found.skips
    draft = able.without(chosen, kv_tokens=kv_tokens)
    return ModelDrafter(draft, target.traits.vocab_size, known=known, name="layer_skip", source=source)
