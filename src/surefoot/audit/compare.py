"""One answer held against another and against its own tokens: where the output ends, with which reason and text."""

from __future__ import annotations

from ..core.params import SamplingParams
from ..core.request import Row
from .classify import Finding, end
from .subject import Subject

_OUTSIDE = ("abort", "error")
"""Ends that no token brought about."""


def ends(subject: Subject, number: int, row: Row, params: SamplingParams, reference: Row | None = None) -> list[Finding]:
    """What is wrong with the end of an answer. Its tokens, committed one by one, must give the same reason and text.

    ``reference``: the answer that it should equal; compared as far as the tokens are the same.
    """
    found = []
    at = len(row.output)
    if row.finish_reason not in _OUTSIDE:
        ghost = subject.ghost(row.tokens[: row.n_prompt], params, row.index)
        for token in row.output:
            if ghost.done:
                break
            ghost.commit([token], [0])
        said, meant = _end(row), _end(ghost)
        if said != meant:
            found.append(end(number, row.index, at, f"{_differ(said, meant)} when the same tokens are committed one by one"))
    if row.logprobs is not None and len(row.logprobs) != at:
        found.append(end(number, row.index, at, f"{len(row.logprobs)} log-probabilities for {at} tokens"))
    if reference is None:
        return found
    common = min(at, len(reference.output))
    if row.output[:common] == reference.output[:common]:
        said, meant = (*_end(row), _error(row)), (*_end(reference), _error(reference))
        if said != meant:
            found.append(end(number, row.index, common, f"{_differ(said, meant)} in plain decoding"))
    return found


def same(row: Row, reference: Row) -> bool:
    return row.output == reference.output and _end(row) == _end(reference) and _error(row) == _error(reference)


def _end(row: Row) -> tuple[object, ...]:
    return len(row.output), row.finish_reason, row.text


def _error(row: Row) -> str | None:
    return None if row.error is None else str(row.error)


def _differ(said: tuple[object, ...], meant: tuple[object, ...]) -> str:
    """The first thing that two ends disagree on."""
    names = ("tokens", "finish reason", "text", "error")
    for name, a, b in zip(names, said, meant, strict=False):
        if a != b:
            return f"{name} {_short(a)}, but {_short(b)}"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"…{text[-58:]}"
