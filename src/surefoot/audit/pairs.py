"""Two outputs that another engine has written, held against the model position by position.

The kernels of that engine are not here to be measured. A token counts as a tie if its gap is at most one unit in the last
place of the stated dtype at the size of the largest logit (two logits that close round to one number there), or twice the noise
of this machine's own draft-free passes, or the tolerance that is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.params import SamplingParams
from ..errors import BadRequest
from ..loader import Target
from .classify import BUG, OK, Finding, Judge, end, findings
from .force import Forced, Forcer
from .item import Item
from .prompts import ids, item_of, json_lines
from .report import Report, Result, provenance, texts_of
from .subject import Subject
from .tracks import Shape

BITS = {"bf16": 8, "bfloat16": 8, "f16": 11, "fp16": 11, "float16": 11, "f32": 24, "fp32": 24, "float32": 24}
"""Significant bits of each dtype."""


@dataclass(frozen=True, slots=True)
class Output:
    """One line of a file of outputs."""

    id: str | None
    tokens: list[int]
    finish_reason: str | None


def ulp(value: float, dtype: str) -> float:
    """Distance of two neighbouring numbers of ``dtype`` at the size of ``value``."""
    return 0.0 if value == 0 or not math.isfinite(value) else math.ldexp(1.0, math.frexp(abs(value))[1] - BITS[dtype])


def audit_pairs(
    target: Target,
    reference: str,
    candidate: str,
    params: SamplingParams | None = None,
    *,
    dtype: str = "bf16",
    tolerance: float = 0.0,
    raw: bool = False,
    system: str | None = None,
    tell: Callable[[str], None] = lambda label: None,
) -> Report:
    """Compare two files of outputs; ``print(report.table())``. Greedy only: a sampled token cannot be told from a wrong one.

    reference, candidate   JSON lines. Each has ``token_ids`` (or ``output_token_ids``), or ``text`` (or ``output``), which is
               tokenized; ``finish_reason`` and ``id`` if known. The reference's lines hold the prompts too
    params     the options that both were made with
    dtype      in which the other engine computes: bf16, f16 or f32
    tolerance  a gap up to this many logits is a tie
    """
    params = params if params is not None else SamplingParams()
    if params.temperature > 0:
        raise BadRequest("two outputs can be compared where decoding is greedy; leave temperature out")
    if dtype not in BITS:
        raise BadRequest(f"dtype {dtype!r} is unknown; give one of {', '.join(BITS)}")
    if not tolerance >= 0:
        raise BadRequest(f"tolerance={tolerance} is not allowed; give a number from 0 up")
    subject = Subject.of(target)
    pairs = _pairs(reference, candidate, subject, raw, system)
    forcer = Forcer(subject, (Shape(64),) if subject.model.traits.exact else (Shape(2), Shape(6), Shape(64)))
    sides: list[list[tuple[Forced, list[float]]]] = []
    for prompt, a, b in pairs:
        tell("scoring without drafts")
        sides.append([_forced(forcer, prompt, out, params, dtype) for out in (a.tokens, b.tokens)])
    judge = Judge(False, forcer.noise, tolerance)
    first: list[Finding] = []
    second: list[Finding] = []
    for number, ((_, a, b), (own, other)) in enumerate(zip(pairs, sides, strict=True)):
        first += findings(judge, own[0], None, number, units=own[1])
        if a.tokens == b.tokens:
            # told once, beside the reference
            told = []
        else:
            told = findings(judge, other[0], a.tokens, number, units=other[1])
        second += [*told, *_end(number, a, b)]
    differing = sum(a.tokens != b.tokens for _, a, b in pairs)
    results = tuple(
        _result(name, [side[i][0] for side in sides], count, found)
        for i, (name, count, found) in enumerate((("reference", 0, first), ("candidate", differing, second)))
    )
    about = provenance(subject, params, [len(prompt) for prompt, _, _ in pairs]) | {"dtype": dtype, "tolerance": tolerance}
    texts = texts_of(subject, results, {(number, 0): a.tokens for number, (_, a, _) in enumerate(pairs)})
    return Report(about, False, forcer.noise, 0.0, results, texts=texts)


def _result(name: str, forced: list[Forced], differing: int, found: list[Finding]) -> Result:
    tokens, flips = sum(len(one.positions) for one in forced), sum(one.flips for one in forced)
    return Result(name, len(forced), tokens, differing, flips, 0, 0, 0, 0, tuple(found))


def _forced(
    forcer: Forcer, prompt: list[int], output: list[int], params: SamplingParams, dtype: str
) -> tuple[Forced, list[float]]:
    forced = forcer(prompt, output, params)
    return forced, [ulp(p.top, dtype) for p in forced.positions]


def _end(number: int, a: Output, b: Output) -> list[Finding]:
    """Where one output only begins like the other, or the two end for different reasons."""
    common = min(len(a.tokens), len(b.tokens))
    if a.tokens[:common] != b.tokens[:common]:
        return []
    if len(a.tokens) != len(b.tokens):
        return [end(number, 0, common, f"{len(b.tokens)} tokens, but {len(a.tokens)} in the reference")]
    if None not in (a.finish_reason, b.finish_reason) and a.finish_reason != b.finish_reason:
        return [end(number, 0, common, f"finish reason {b.finish_reason!r}, but {a.finish_reason!r} in the reference")]
    return []


def _pairs(
    reference: str, candidate: str, subject: Subject, raw: bool, system: str | None
) -> list[tuple[list[int], Output, Output]]:
    """Prompt and both outputs, matched by id, or by order where there are no ids."""
    left = [(item_of(value, where), _output(value, where, subject)) for value, where in json_lines(reference)]
    right = [_output(value, where, subject) for value, where in json_lines(candidate)]
    if not left or len(left) != len(right):
        raise BadRequest(f"{reference} has {len(left)} outputs and {candidate} {len(right)}; give one for each prompt in both")
    named = all(a.id is not None for _, a in left) and all(b.id is not None for b in right)
    if named:
        by_id = {b.id: b for b in right}
        missing = [a.id for _, a in left if a.id not in by_id]
        if missing or len(by_id) != len(right):
            raise BadRequest(f"{candidate} has no output with id {missing[0]!r}" if missing else f"{candidate} has an id twice")
        right = [by_id[a.id] for _, a in left]
    return [(_prompt(item, subject, raw, system), a, b) for (item, a), b in zip(left, right, strict=True)]


def _prompt(item: Item, subject: Subject, raw: bool, system: str | None) -> list[int]:
    tokens = item.tokens(subject.codec, raw, system)
    vocab = subject.model.traits.vocab_size
    if not tokens or not all(0 <= t < vocab for t in tokens):
        raise BadRequest(f"prompt token ids must lie in 0..{vocab - 1}; were they made with this model's tokenizer?")
    return tokens


def _output(value: Any, where: str, subject: Subject) -> Output:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{where}: give an object with token_ids or text")
    found = _first(value, ("token_ids", "output_token_ids"))
    vocab = subject.model.traits.vocab_size
    if found is not None:
        if found != [] and (not ids(found) or not all(0 <= t < vocab for t in found)):
            raise BadRequest(f"{where}: token_ids must be a list of token ids in 0..{vocab - 1}")
        tokens = list(found)
    else:
        text = _first(value, ("text", "output"))
        if not isinstance(text, str):
            raise BadRequest(f"{where}: there is no output; give token_ids or text")
        tokens = list(subject.codec.encode(text, special=False))
    # some engines give the end token, others do not
    stops = set(subject.codec.eos_ids) if subject.codec is not None else set()
    while tokens and tokens[-1] in stops:
        tokens.pop()
    name, reason = value.get("id", value.get("question_id")), value.get("finish_reason")
    return Output(None if name is None else str(name), tokens, reason if isinstance(reason, str) else None)


def _first(value: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


__all__ = ["BUG", "OK", "audit_pairs", "ulp"]
