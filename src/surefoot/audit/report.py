"""What an audit found: as values for JSON and as lines for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from .. import __version__
from ..calibrate import machine
from ..core.params import SamplingParams
from ..core.request import Row
from ..models import fingerprint
from .cases import Skipped
from .classify import BUG, TIE, Finding
from .statistics import ALPHA, Test
from .subject import Subject

SHOWN = 20
"""Findings of one case that the table tells; JSON has all."""


@dataclass(frozen=True, slots=True)
class Result:
    """One drafter, or plain decoding itself. ``flips``: positions of its answers at which draft-free passes disagree.

    ``error``: what broke the case off; that is a bug, whatever it found before.
    """

    name: str
    answers: int
    tokens: int
    differing: int
    flips: int
    passes: int
    drafts: int
    drafted: int
    accepted: int
    findings: tuple[Finding, ...]
    error: str = ""

    @staticmethod
    def of(name: str, rows: Sequence[Row], differing: int, flips: int, found: list[Finding], error: str) -> Result:
        stats = [row.stats for row in rows]
        return Result(
            name,
            len(rows),
            sum(len(row.output) for row in rows),
            differing,
            flips,
            sum(s.passes for s in stats),
            sum(s.drafts for s in stats),
            sum(s.draft_tokens for s in stats),
            sum(s.accepted_tokens for s in stats),
            tuple(found),
            error,
        )

    @property
    def ties(self) -> int:
        return sum(f.verdict == TIE for f in self.findings)

    @property
    def bugs(self) -> int:
        return sum(f.verdict == BUG for f in self.findings) + bool(self.error)

    @property
    def mean_length(self) -> float:
        """Tokens of a drafted pass, the target's own included."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """``noise``: how far draft-free passes of several shapes are apart; ``siblings``: how far made-up tokens beside a path move
    its logits. In exact mode both must be 0.

    ``texts``: token -> text of the tokens in the findings; and (prompt, answer, position) -> the text before it.
    """

    about: dict[str, Any]
    exact: bool
    noise: float
    siblings: float
    results: tuple[Result, ...]
    tests: tuple[Test, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    texts: tuple[dict[int, str], dict[tuple[int, int, int], str]] = ({}, {})

    @property
    def bugs(self) -> int:
        """Positions, ends and broken cases that no rounding explains; and passes that differ although the target is exact."""
        return sum(r.bugs for r in self.results) + bool(self.broken)

    @property
    def broken(self) -> str:
        """What the target itself does wrong."""
        if self.exact and self.noise > 0:
            return f"the target counts as exact, but passes of other shapes move a logit by {self.noise:.4g}"
        if self.exact and self.siblings > 0:
            return f"tokens beside a path move its logits by {self.siblings:.4g}: the tree's nodes see too much"
        return ""

    @property
    def ties(self) -> int:
        return sum(r.ties for r in self.results)

    @property
    def differing(self) -> int:
        return sum(r.differing for r in self.results)

    @property
    def ok(self) -> bool:
        """No bug, and no statistical test failed."""
        return not self.bugs and not any(t.failed for t in self.tests)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            **self.about,
            "exact": self.exact,
            "noise": self.noise,
            "siblings": self.siblings,
            "broken": self.broken,
            "drafters": [self._result(r) for r in self.results],
            "tests": [asdict(t) for t in self.tests],
            "skipped": [asdict(s) for s in self.skipped],
        }

    def _result(self, result: Result) -> dict[str, Any]:
        names = [f.name for f in fields(Result) if f.name != "findings"]
        return {name: getattr(result, name) for name in names} | {
            "mean_length": result.mean_length,
            "ties": result.ties,
            "bugs": result.bugs,
            "findings": [self._finding(f) for f in result.findings],
        }

    def _finding(self, f: Finding) -> dict[str, Any]:
        values = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in asdict(f).items()}
        for side, token in (("expected", f.expected), ("token", f.token)):
            if token is not None:
                values[f"{side}_text"] = self.texts[0].get(token, "")
        return values

    def table(self) -> str:
        """Lines for a terminal."""
        about = self.about
        target = about["target"]
        out = [
            f"{target['name']}: {target['dtype']} on {target['device']}, "
            + (f"exact (rows of {target['min_width']} tokens or more)" if self.exact else "not exact"),
            f"{len(about['prompt_tokens'])} prompts; options: " + (_options(about["options"]) or "all as they are by default"),
            f"draft-free passes of other shapes move a logit by at most {self.noise:.4g}"
            + (f", made-up tokens beside a path by {self.siblings:.4g}" if self.siblings else ""),
            "",
        ]
        out += self._columns()
        out += [f"bug: {self.broken}"] if self.broken else []
        for r in self.results:
            out += self._lines(r)
        out += [f"left out: {s.name}: {s.why}" for s in self.skipped]
        if self.tests:
            out += ["", f"draws against the target's law (G-tests; Holm over all, family-wise {ALPHA:g})"]
            out += [f"  {_test(t)}" for t in self.tests]
        return "\n".join([*out, "", self._sentence()])

    def _columns(self) -> list[str]:
        rows = [["drafter", "answers", "tokens", "differ", "ties", "bugs", "accepted", "length", "control flips"]]
        for r in self.results:
            share = f"{100 * r.accepted / r.drafted:.0f}%" if r.drafted else "-"
            length = f"{r.mean_length:.2f}" if r.drafts else "-"
            rows.append([r.name, *map(str, (r.answers, r.tokens, r.differing, r.ties, r.bugs, share, length, r.flips))])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
        return ["  ".join([row[0].ljust(widths[0]), *cells[1:]]) for row, cells in zip(rows, aligned, strict=True)]

    def _lines(self, result: Result) -> list[str]:
        out = [f"{result.name}: broke off: {result.error}"] if result.error else []
        ordered = sorted(result.findings, key=lambda f: (f.verdict != BUG, not f.first))
        out += [f"{result.name}: {self._line(f)}" for f in ordered[:SHOWN]]
        if len(ordered) > SHOWN:
            out.append(f"{result.name}: … and {len(ordered) - SHOWN} more (--json tells all)")
        return out

    def _line(self, f: Finding) -> str:
        where = f"prompt {f.prompt}" + (f" answer {f.answer}" if f.answer else "")
        if f.token is None:
            return f"{f.verdict}: {where}, end at token {f.position}: {f.why}"
        what = "first divergence" if f.first else "token"
        before = self.texts[1].get((f.prompt, f.answer, f.position), "") if f.first else ""
        sides = f"{self._text(f.expected)} expected, {self._text(f.token)} emitted"
        return f"{f.verdict}: {where}, {what} at {f.position}{f' after {before!r}' if before else ''}: {sides}; {f.why}"

    def _text(self, token: int | None) -> str:
        return "nothing" if token is None or token < 0 else repr(self.texts[0].get(token, f"#{token}"))

    def _sentence(self) -> str:
        failed = sum(t.failed for t in self.tests)
        bugs = f"{self.bugs} bugs" if self.bugs else "no bug"
        return f"{bugs}, {self.ties} ties, {self.differing} differing answers" + (
            f", {failed} of {len(self.tests)} tests failed" if self.tests else ""
        )


def provenance(subject: Subject, params: SamplingParams | None, prompts: Sequence[int]) -> dict[str, Any]:
    """Machine, versions, model, precision and options."""
    traits, path = subject.model.traits, subject.target.path
    return {
        "surefoot": __version__,
        "machine": machine(),
        "model": {"path": path.name, "fingerprint": fingerprint(path) if path.exists() else None},
        "precision": getattr(subject.model, "precision", traits.dtype),
        "target": {
            name: getattr(traits, name)
            for name in ("name", "dtype", "device", "vocab_size", "max_context", "min_width", "exact")
        },
        "options": {} if params is None else changed(params),
        "prompt_tokens": list(prompts),
    }


def changed(params: SamplingParams) -> dict[str, Any]:
    """Options that are not at their defaults, as plain values."""
    plain = SamplingParams()
    found = {f.name: getattr(params, f.name) for f in fields(params) if getattr(params, f.name) != getattr(plain, f.name)}
    return {name: v if isinstance(v, int | float | str) else repr(v) for name, v in found.items()}


def texts_of(
    subject: Subject, results: Sequence[Result], references: Mapping[tuple[int, int], Sequence[int]]
) -> tuple[dict[int, str], dict[tuple[int, int, int], str]]:
    """Texts of what the findings name. ``references``: (prompt, answer) -> the tokens that others are compared with."""
    found = [f for r in results for f in r.findings]
    tokens = {t: subject.piece(t) for f in found for t in (f.expected, f.token) if t is not None and t >= 0}
    before = {
        (f.prompt, f.answer, f.position): subject.say(list(references[f.prompt, f.answer][: f.position]))[-30:]
        for f in found
        if f.first
    }
    return tokens, before


def _test(t: Test) -> str:
    return f"{t.case}, {t.name}: n={t.n} bins={t.bins} G={t.g:.1f} p={t.p:.3g}{'  FAILED' if t.failed else ''}"


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
