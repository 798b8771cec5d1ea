"""Statistics of answers, as lines for people and as values for JSON. Ratios come from summed counters only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.engine import Engine
    from .answer import Answer


def drafter_name(engine: Engine) -> str:
    return "+".join(engine.drafters) or "none"


def accepted(drafted: int, kept: int) -> str:
    """Share of drafted tokens that stayed."""
    return f"{100 * kept / drafted:.0f}%" if drafted else "none"


def mean_length(drafts: int, kept: int) -> float:
    return 1 + kept / drafts if drafts else 1.0


def footer(answer: Answer) -> str:
    """One line under an answer."""
    stats = answer.completion.stats
    parts = [f"{answer.tokens_per_second:.1f} tokens/s"]
    if stats.drafts:
        parts.append(f"{accepted(stats.draft_tokens, stats.accepted_tokens)} draft tokens accepted")
        parts.append(f"mean length {stats.mean_acceptance_length:.1f}")
    else:
        parts.append("nothing drafted")
    if stats.cached_tokens:
        parts.append(f"reused {stats.cached_tokens} tokens")
    if answer.completion.finish_reason == "length":
        parts.append("cut at the most tokens allowed")
    return " · ".join(parts)


def lines(answers: Iterable[Answer], drafter: str) -> list[str]:
    """Several lines on one answer or on all answers of a conversation."""
    all_answers = list(answers)
    stats = [a.completion.stats for a in all_answers]
    tokens = sum(len(a.completion.token_ids) for a in all_answers)
    prompt = sum(a.completion.usage.prompt_tokens for a in all_answers)
    seconds = sum(s.decode_seconds for s in stats)
    decoded = sum(a.tokens_per_second * a.completion.stats.decode_seconds for a in all_answers)
    drafts, drafted, kept = (
        sum(s.drafts for s in stats),
        sum(s.draft_tokens for s in stats),
        sum(s.accepted_tokens for s in stats),
    )
    reused = sum(s.cached_tokens for s in stats)
    first = sum(a.first for a in all_answers) / max(1, len(all_answers))
    out = [
        f"tokens/s       {decoded / seconds if seconds else 0.0:.1f} ({tokens} tokens, {sum(s.passes for s in stats)} passes)",
        f"first token    {first:.2f} s (prompt of {prompt} tokens, {reused} reused)",
        f"draft tokens   {accepted(drafted, kept)} accepted ({kept} of {drafted})",
        f"mean length    {mean_length(drafts, kept):.2f} tokens a drafted pass ({drafts} drafts)",
    ]
    by_source: dict[str, list[int]] = {}
    for s in stats:
        for name, counts in s.by_source.items():
            entry = by_source.setdefault(name, [0, 0, 0])
            entry[0] += counts.drafts
            entry[1] += counts.draft_tokens
            entry[2] += counts.accepted_tokens
    out += [f"  from {name:<9} {k} of {d} accepted ({n} drafts)" for name, (n, d, k) in by_source.items()]
    if drafter != "none":
        out += [f"  from {name:<9} drafted nothing" for name in drafter.split("+") if name not in by_source]
        if not drafted:
            out.append("drafting did nothing here: no proposal was found, or by measured cost none would have paid")
    return out


def values(answer: Answer, engine: Engine, model: str, seed: int | None) -> dict[str, Any]:
    """The JSON object of one answer."""
    completion = answer.completion
    usage = completion.usage
    rate, first = round(answer.tokens_per_second, 3), round(answer.first, 6)
    return {
        "model": model,
        "drafter": drafter_name(engine),
        **({"seed": seed} if seed is not None else {}),
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
        "stats": {"tokens_per_second": rate, "time_to_first_token": first, **completion.stats.to_dict()},
    }
