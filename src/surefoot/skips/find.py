"""Finding a skip set for a target, on text that the target itself writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.engine import Engine
from ..core.protocols import TargetModel
from ..core.sublayers import Sample, Skippable, SkipSet, Trial, skippable
from ..errors import BadRequest, Unsupported
from ..models import Progress
from . import clasp, swift

METHODS = ("swift", "clasp")


@dataclass(frozen=True, slots=True)
class Found:
    """``agreement``: share of the samples' tokens that the skipping model would have said too."""

    skips: SkipSet
    agreement: float
    evaluations: int
    method: str


def samples(target: TargetModel, prompts: Sequence[Sequence[int]], tokens: int = 50) -> list[Sample]:
    """Greedy continuations, ``tokens`` long in all, of as many of the prompts as it takes to give each at least eight."""
    used = [list(p) for p in prompts[: max(1, tokens // 8)] if p]
    if not used:
        raise BadRequest("layer_skip: there is no prompt to search on; give at least one with a token")
    share = [tokens // len(used) + (i < tokens % len(used)) for i in range(len(used))]
    engine = Engine(target, reuse=False)
    found = []
    try:
        for prompt, n in zip(used, share, strict=True):
            said = engine.generate(prompt, max_tokens=n).token_ids
            found.append(Sample((*prompt, *said), len(prompt)))
    finally:
        engine.close()
    return found


def find_skips(
    target: TargetModel,
    prompts: Sequence[Sequence[int]],
    *,
    method: str = "clasp",
    ratio: float = 0.45,
    tokens: int = 50,
    max_evaluations: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Found:
    """Choose ``ratio`` of the sublayers between the first and the last layer to leave out.

    swift  random search with a surrogate model; ``max_evaluations`` passes over the samples at most
    clasp  dynamic programme over the residual stream; one pass in parts, and one to measure the outcome

    Deterministic for a given target. Raises :class:`Unsupported` where the backend cannot leave sublayers out.
    """
    check(method, ratio, tokens, max_evaluations)
    able = require(target)
    if progress is not None:
        progress("choosing sublayers", 0, None)  # counts would be shown as bytes
    trial = able.trial()
    choice = skippable(trial.layers)
    size = round(ratio * len(choice))
    if not size:
        raise Unsupported(f"layer_skip: {trial.layers} layers leave nothing to skip at ratio={ratio:g}; use another drafter")
    texts = samples(target, prompts, tokens)
    if method == "clasp":
        skips = clasp.programme(trial, texts, size)
        if not len(skips):
            raise Unsupported(f"layer_skip: ratio={ratio:g} skips no whole layer of {trial.layers}; raise it")
        return Found(skips, agreement(trial, texts, skips), 1, method)
    places = sum(len(s.tokens) - s.start for s in texts)
    best, score, made = swift.search(
        lambda skips: agreement(trial, texts, skips),
        choice,
        size,
        places,
        evaluations=max_evaluations,
        seed=seed,
    )
    return Found(best, score, made, method)


def agreement(trial: Trial, texts: Sequence[Sample], skips: SkipSet) -> float:
    """Share of the continuations' tokens that are the argmax without these sublayers."""
    said = [token for text in texts for token in text.tokens[text.start :]]
    return sum(a == b for a, b in zip(trial.best(texts, skips), said, strict=True)) / len(said)


def require(target: TargetModel) -> Skippable:
    if not isinstance(target, Skippable):
        raise Unsupported("layer_skip: this backend cannot leave sublayers out; use backend openvino or torch")
    return target


def check(method: str, ratio: float, tokens: int, max_evaluations: int) -> None:
    """Refuse option values out of range."""
    if method not in METHODS:
        raise BadRequest(f"layer_skip: method={method!r} is unknown; choose {', '.join(METHODS)}")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1:
        raise BadRequest(f"layer_skip: ratio={ratio!r} must be a number between 0 and 1")
    for name, value, high in (("tokens", tokens, 1000), ("max_evaluations", max_evaluations, 100_000)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise BadRequest(f"layer_skip: {name}={value!r} must be a whole number from 1 to {high}")
