"""CLaSp's dynamic programme (Chen et al., 2025, arXiv 2505.24196): skip what moves the residual stream least from its course.

With h_i the target's stream after step i and g(i, j) the stream after i steps of which j were skipped,

    D(i, j) = max( cos(h_i, g(i-1, j-1))   skip step i
                 , cos(h_i, f_i(g(i-1, j)))  run step i )

and g(i, j) is the stream of the better choice. A step is a sublayer, or both sublayers of a layer that computes them side
by side. The cosine is the mean over the places of the samples' continuations, whose streams attend to one another, as they
will in the draft's own cache; the published form looks at the last token over the target's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.sublayers import Sample, SkipSet, Step, Trial


def programme(trial: Trial, samples: Sequence[Sample], size: int) -> SkipSet:
    """A set of at most ``size`` sublayers; fewer where steps are whole layers and ``size`` is odd."""
    steps = trial.steps()
    places = _places(samples)
    last = trial.layers - 1
    free = [0 < step[0][1] < last for step in steps]
    width = max((len(step) for step, f in zip(steps, free, strict=True) if f), default=1)
    most = min(size // width, sum(free))
    streams = trial.embed(samples)[None]  # g(i, j) for j = 0, 1, ...
    skipped: list[list[bool]] = []
    for i in range(len(steps)):
        ran = trial.run(i, samples, streams)
        course = ran[0]
        choices = [False]
        after = [course]
        for j in range(1, min(most, sum(free[: i + 1])) + 1):
            skip = _cosine(course, streams[j - 1], places) if free[i] else -2.0
            run = _cosine(course, ran[j], places) if j < len(ran) else -2.0
            choices.append(skip > run)
            after.append(streams[j - 1] if choices[j] else ran[j])
        streams = torch.stack(after)
        skipped.append(choices)
    return SkipSet.of([sublayer for step in _chosen(steps, skipped, most) for sublayer in step])


def _chosen(steps: Sequence[Step], skipped: Sequence[Sequence[bool]], most: int) -> list[Step]:
    out, j = [], most
    for step, choices in zip(reversed(steps), reversed(skipped), strict=True):
        if choices[j]:
            out.append(step)
            j -= 1
    return out


def _places(samples: Sequence[Sample]) -> Tensor:
    """Rows of the streams whose successors are tokens of the continuations."""
    found, begin = [], 0
    for sample in samples:
        found.append(torch.arange(begin + sample.start - 1, begin + len(sample.read)))
        begin += len(sample.read)
    return torch.cat(found)


def _cosine(course: Tensor, other: Tensor, places: Tensor) -> float:
    where = places.to(course.device)
    return float(torch.cosine_similarity(course[where].float(), other[where].float(), dim=-1).mean())
