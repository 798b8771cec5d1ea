"""What logs of drafts say about acceptance.

Read are JSON lines, each of which is a pass of ``surefoot generate --trace``, an object of ``surefoot generate --json``, or
``{"accepted": 2, "drafted": 5}``. A pass whose answer ended within the accepted tokens says nothing about a refusal, a pass
without a draft nothing at all. In a tree the tokens of one depth are tried together: a depth counts as one trial.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ..errors import BadRequest
from ..theory.acceptance import Estimate, proportion


@dataclass(frozen=True, slots=True)
class Log:
    """One entry a draft: ``accepted`` tokens of ``lengths`` that were tried, were there no refusal."""

    name: str
    accepted: tuple[int, ...]
    lengths: tuple[int, ...]
    plain: int = 0
    """Passes that drafted nothing."""
    branches: tuple[Estimate, ...] = ()
    """How often the first, second, … child was the target's token, where it was tried (of traces only)."""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class _Reading:
    accepted: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    plain: int = 0
    hits: list[int] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    first_only: int = 0

    def add(self, accepted: int, length: int) -> None:
        if length:
            self.accepted.append(accepted)
            self.lengths.append(length)
        else:
            self.plain += 1


def read_log(path: str) -> Log:
    """The drafts of a file; ``-`` is standard input."""
    text = _text(path)
    reading = _Reading()
    for where, entry in _entries(path, text):
        if "candidates" in entry:
            _trace(reading, entry, where)
        elif "stats" in entry or "choices" in entry:
            _generated(reading, entry, where)
        elif "accepted" in entry:
            drafted = _count(entry, "drafted", where)
            accepted = _count(entry, "accepted", where)
            if accepted > drafted:
                _fail(where, f"{accepted} accepted of {drafted} drafted tokens")
            reading.add(accepted, drafted)
        else:
            _fail(where, "an object of none of the known forms (a pass of --trace, an object of --json, accepted and drafted)")
    if not reading.accepted:
        told = f"its {reading.plain} passes drafted nothing" if reading.plain else "it is empty"
        raise BadRequest(f"{path} says nothing about acceptance: {told}; log a run that drafts")
    warnings: tuple[str, ...] = ()
    if reading.first_only:
        warnings = (
            f"{path}: drafts of different lengths, whose lengths a JSON object does not tell; only their first tokens count "
            "(a trace tells all)",
        )
    branches = tuple(proportion(h, n) for h, n in zip(reading.hits, reading.trials, strict=True))
    return Log(path, tuple(reading.accepted), tuple(reading.lengths), reading.plain, branches, warnings)


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except OSError as error:
        raise BadRequest(f"cannot read the log {path} ({error.strerror}); correct the path") from None
    except UnicodeDecodeError:
        raise BadRequest(f"the log {path} is not UTF-8 text; give JSON lines") from None


def _entries(path: str, text: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(FILE:LINE, object): of each line, or of the whole text if it is one object over several lines."""
    try:
        whole = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        whole = None
    if isinstance(whole, dict):
        return [(f"{path}:1", whole)]
    out: list[tuple[str, Mapping[str, Any]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            entry = json.loads(line, parse_constant=_no_constant)
        except ValueError as error:
            _fail(where, f"no JSON ({error})")
        if not isinstance(entry, dict):
            _fail(where, "no JSON object")
        out.append((where, entry))
    return out


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _trace(reading: _Reading, entry: Mapping[str, Any], where: str) -> None:
    """A pass: node 0 is the pending token, candidate i is node i + 1."""
    candidates = entry["candidates"]
    if not isinstance(candidates, list):
        _fail(where, "candidates must be a list")
    parents, kept = entry.get("parents"), entry.get("accepted")
    n = len(candidates)
    if not isinstance(parents, list) or not isinstance(kept, list) or not len(parents) == len(kept) == n:
        _fail(where, "parents and accepted must be lists with one entry a candidate")
    if not all(_whole(p) and 0 <= p <= i for i, p in enumerate(parents)):
        _fail(where, "parents must be earlier nodes, 0 for the pending token")
    if not all(isinstance(flag, bool) for flag in kept):
        _fail(where, "accepted must be true or false for each candidate")
    if not n:
        reading.plain += 1
        return
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents, 1):
        children.setdefault(parent, []).append(node)
    # the pass kept the target's own token too, unless the answer ended before it
    whole = _count(entry, "kept", where) > sum(kept)
    node, depth = 0, 0
    while node in children:
        taken = [i for i, child in enumerate(children[node]) if kept[child - 1]]
        if len(taken) > 1:
            _fail(where, "two accepted candidates with the same parent")
        if taken or whole:
            _branches(reading, len(children[node]), taken)
        if not taken:
            break
        node, depth = children[node][taken[0]], depth + 1
    if depth != sum(kept):
        _fail(where, "an accepted candidate below one that is not")
    tried = bool(children.get(node)) and whole
    if depth or tried:
        reading.add(depth, _length(n, parents, depth, tried))


def _length(n: int, parents: Sequence[int], depth: int, tried: bool) -> int:
    """A chain has its length; of a tree, and of a pass that was cut, what was tried counts."""
    chain = all(parent == i for i, parent in enumerate(parents))
    return n if chain and (tried or depth == n) else depth + tried


def _branches(reading: _Reading, width: int, taken: Sequence[int]) -> None:
    more = width - len(reading.trials)
    reading.hits += [0] * more
    reading.trials += [0] * more
    for rank in range(width):
        reading.trials[rank] += 1
    for rank in taken:
        reading.hits[rank] += 1


def _generated(reading: _Reading, entry: Mapping[str, Any], where: str) -> None:
    """An answer, or several: accepted tokens by position, numbers of drafts and of drafted tokens."""
    answers = entry.get("choices", [entry])
    if not isinstance(answers, list) or not all(isinstance(a, dict) and isinstance(a.get("stats"), dict) for a in answers):
        _fail(where, "an answer without stats")
    for answer in answers:
        stats = answer["stats"]
        drafts, drafted = _count(stats, "drafts", where), _count(stats, "draft_tokens", where)
        by_position = stats.get("accepted_per_position")
        if not isinstance(by_position, list) or not all(_whole(x) and x >= 0 for x in by_position):
            _fail(where, "accepted_per_position must be a list of counts")
        if drafted < drafts or any(a < b for a, b in zip([drafts, *by_position], by_position, strict=False)):
            _fail(where, "counts that do not fit: accepted_per_position must fall, and stay below drafts")
        if sum(by_position) > drafted:
            _fail(where, f"{sum(by_position)} accepted of {drafted} drafted tokens")
        reading.plain += max(0, stats.get("passes", drafts) - drafts) if _whole(stats.get("passes", drafts)) else 0
        if not drafts:
            continue
        length, rest = divmod(drafted, drafts)
        if rest or len(by_position) > length:
            reading.first_only += 1
            length, by_position = 1, by_position[:1]
        steps = [drafts, *by_position, 0]
        for depth, (reached, further) in enumerate(pairwise(steps)):
            for _ in range(reached - further):
                reading.add(depth, length)


def _count(entry: Mapping[str, Any], name: str, where: str) -> int:
    value: Any = entry.get(name)
    if not _whole(value) or value < 0:
        _fail(where, f"{name} must be a number from 0 up; got {json.dumps(value)}" if name in entry else f"{name} is missing")
    return int(value)


def _whole(value: Any) -> Any:
    return isinstance(value, int) and not isinstance(value, bool)


def _fail(where: str, what: str) -> NoReturn:
    raise BadRequest(f"{where}: {what}; correct the log")
