"""Figures of a run: by set and variant, against plain decoding; and where they come from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from .. import __version__
from ..calibrate import machine
from .timing import Timing
from .variants import PLAIN

STAGES = ("thought", "draft", "verify", "continuation")
"""Drafting is part of the thought: passes that a fork took part in."""


def summary(own: Sequence[Sequence[Timing]], plain: Sequence[Sequence[Timing]]) -> dict[str, Any]:
    """One variant on the prompts of one set."""
    took, base = ([min(t.seconds for t in timings) for timings in which] for which in (own, plain))
    ratios = [b / t if b > 0 and t > 0 else 1.0 for t, b in zip(took, base, strict=True)]
    every = [t for timings in own for t in timings]
    tokens, passes = sum(len(t.tokens) - 1 for t in every), sum(t.passes - 1 for t in every)
    drafted = sum(t.drafted for t in every)
    found: dict[str, Any] = {
        "answers": len(every),
        "answers_that_differ": sum(
            t.tokens != reference[0].tokens for timings, reference in zip(own, plain, strict=True) for t in timings
        ),
        "seconds": sum(took),
        "median_seconds": median(took),
        "speedup": sum(base) / sum(took) if sum(took) > 0 else 1.0,
        "median_speedup": median(ratios),
        "mean_speedup": fmean(ratios),
        "least_speedup": min(ratios),
        "latency_reduction": 1.0 - sum(took) / sum(base) if sum(base) > 0 else 0.0,
        "tokens_a_pass": tokens / max(1, passes),
        "drafted_tokens": drafted,
        "drafted_tokens_kept": sum(t.accepted for t in every) / drafted if drafted else 0.0,
    }
    told = [t.ssr for t in every if t.ssr is not None]
    if told:
        found["ssr"] = {
            "requests": len(told),
            "requests_forked": sum(entry["drafts"] > 0 for entry in told),
            "forks": sum(entry["drafts"] for entry in told),
            **{f"{key}_tokens": sum(entry[f"{key}_tokens"] for entry in told) for key in ("draft", "prefix", "suffix")},
            "seconds_by_stage": {stage: sum(entry[f"{stage}_seconds"] for entry in told) for stage in STAGES},
        }
    return found


def table(figures: Mapping[str, Any]) -> str:
    """Lines for a terminal."""
    head = [
        "variant",
        "answers",
        "differ",
        "s",
        "median",
        "speed-up",
        "median",
        "least",
        "tokens/pass",
        "forks",
        "prefix",
        "suffix",
    ]
    out = []
    for name, by_variant in figures["sets"].items():
        lengths = figures["lengths"][name]
        sizes = f"{lengths['thought']:.0f} tokens of thought, {lengths['answer']:.0f} of answer"
        cells = [head]
        for variant, found in by_variant.items():
            told = found.get("ssr", {})
            share = [str(told.get(key, "-")) for key in ("forks", "prefix_tokens", "suffix_tokens")]
            speeds = [f"{found[key]:.2f}x" for key in ("speedup", "median_speedup", "least_speedup")]
            times = [f"{found['seconds']:.1f}", f"{found['median_seconds']:.2f}"]
            counts = [str(found["answers"]), str(found["answers_that_differ"])]
            cells.append([variant, *counts, *times, *speeds, f"{found['tokens_a_pass']:.2f}", *share])
        out += [f"{name}: {lengths['prompts']} prompts, {sizes} (medians)", *_aligned(cells), ""]
    return "\n".join([*out, figures["sentence"]])


def sentence(sets: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    every = [found for by_variant in sets.values() for name, found in by_variant.items() if name != PLAIN]
    differ, answers = sum(f["answers_that_differ"] for f in every), sum(f["answers"] for f in every)
    return f"{differ} of {answers} answers differ from those of plain decoding"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    rows = (zip(line, widths, strict=True) for line in cells)
    return ["  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(row)) for row in rows]


def provenance(words: Sequence[str]) -> dict[str, str]:
    """Machine, versions, date and command; the commit, where the package lies in a repository."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=here, check=False)
        inside = subprocess.run(["git", "ls-files", __file__], capture_output=True, text=True, cwd=here, check=False)
        commit = done.stdout.strip() if inside.stdout.strip() else ""
    except OSError:
        commit = ""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "python": sys.version.split()[0],
        "surefoot": __version__,
        **({"commit": commit} if commit else {}),
        # where files lie on this machine is nobody's business: their names are enough
        "command": " ".join(["surefoot", *(Path(word).name if "/" in word else word for word in words)]),
    }
