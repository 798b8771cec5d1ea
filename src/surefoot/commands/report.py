"""Statistics of answers, as lines for people and as values for JSON. Ratios come from summed counters only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.completion import Completion
    from ..core.engine import Engine
    from ..core.logprobs import Logprob
    from ..core.stats import Stats
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
        parts.append(f"drafted in {stats.drafts} of {stats.passes} passes")
        parts.append(f"{len(answer.completion.token_ids) / stats.passes:.2f} tokens a pass")
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
    stats = [c.stats for a in all_answers for c in a.choices]
    tokens = sum(len(c.token_ids) for a in all_answers for c in a.choices)
    prompt = sum(a.completion.usage.prompt_tokens for a in all_answers)
    seconds = sum(a.decode_seconds for a in all_answers)
    decoded = sum(a.tokens_per_second * a.decode_seconds for a in all_answers)
    drafts, drafted, kept = (
        sum(s.drafts for s in stats),
        sum(s.draft_tokens for s in stats),
        sum(s.accepted_tokens for s in stats),
    )
    passes = sum(s.passes for s in stats)
    reused = sum(s.cached_tokens for s in stats)
    first = sum(a.first for a in all_answers) / max(1, len(all_answers))
    out = [
        f"tokens/s       {decoded / seconds if seconds else 0.0:.1f} ({tokens} tokens, {passes} passes)",
        f"first token    {first:.2f} s (prompt of {prompt} tokens, {reused} reused)",
        f"draft tokens   {accepted(drafted, kept)} accepted ({kept} of {drafted})",
        f"mean length    {mean_length(drafts, kept):.2f} tokens a drafted pass ({drafts} drafts)",
        f"all passes     {tokens / passes if passes else 0.0:.2f} tokens a pass, drafted in {drafts} of {passes}",
        _times(stats),
    ]
    by_source: dict[str, list[int]] = {}
    for s in stats:
        for name, counts in s.by_source.items():
            entry = by_source.setdefault(name, [0, 0, 0])
            entry[0] += counts.drafts
            entry[1] += counts.draft_tokens
            entry[2] += counts.accepted_tokens
    out += [f"  from {name:<9} {k} of {d} accepted ({n} drafts)" for name, (n, d, k) in by_source.items()]
    out += _levels(stats)
    if drafter != "none":
        # that nothing was forced is no news where nothing constrains the answer
        quiet = (
            "grammar",
            "horizontal",
            "dytc",
            *(name for name in drafter.split("+") if name.startswith(("cascade", "two_exit"))),
        )
        silent = [name for name in drafter.split("+") if name not in by_source and name not in quiet]
        out += [f"  from {name:<9} drafted nothing" for name in silent]
        if not drafted:
            out.append("drafting did nothing here: no proposal was found, or by measured cost none would have paid")
        elif drafts < passes / 4:
            out.append("most passes drafted nothing: no proposal was found, or by measured cost none would have paid")
    return out


def _levels(stats: Iterable[Stats]) -> list[str]:
    """Of a cascade, level by level: what it reviewed of the level below."""
    levels: dict[str, list[int]] = {}
    for s in stats:
        for name, level in s.levels.items():
            entry = levels.setdefault(name, [0, 0, 0, 0])
            for i, value in enumerate((level.proposed, level.passes, level.reviewed, level.accepted)):
                entry[i] += value
    return [
        f"  level {name:<8} proposed {n}"
        + (f", reviewed {reviewed} in {passes} passes and accepted {kept} ({accepted(reviewed, kept)})" if passes else "")
        for name, (n, passes, reviewed, kept) in levels.items()
    ]


def guard(engine: Engine) -> list[str]:
    """What a breaker did, if the engine's controller is one and it did anything."""
    stats = getattr(engine.controller, "stats", None)
    found = stats() if callable(stats) else {}
    if not found.get("opened"):
        return []
    return [
        f"breaker        {found['state']}: drafting lost against plain decoding {found['opened']} times, "
        f"was tried again {found['probes']} times, resumed {found['closed']} times"
    ]


def _times(stats: list[Stats]) -> str:
    """Where the time of the passes after the prompt's went."""
    total, draft, score = (
        sum(getattr(s, name) for s in stats) for name in ("decode_seconds", "draft_seconds", "score_seconds")
    )
    if not total:
        return "time           none"
    return (
        f"time           {draft / total:.0%} drafting, {score / total:.0%} scoring, {1 - (draft + score) / total:.0%} the rest"
    )


def values(answer: Answer, engine: Engine, model: str, seed: int | None) -> dict[str, Any]:
    """The JSON object of a request: its answer, or several under ``choices``."""
    completion = answer.completion
    usage = completion.usage
    rate, first = round(answer.tokens_per_second, 3), round(answer.first, 6)
    speed = {"tokens_per_second": rate, "time_to_first_token": first}
    if completion.choices:
        said: dict[str, Any] = {"choices": [_choice(c, engine.codec, seed) for c in completion.choices]}
    else:
        said = _said(completion, engine.codec)
        speed |= completion.stats.to_dict()  # type: ignore[arg-type]
    return {
        "model": model,
        "drafter": drafter_name(engine),
        **({"seed": seed} if seed is not None else {}),
        **said,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
        "stats": speed,
    }


def _choice(completion: Completion, codec: Any, seed: int | None) -> dict[str, Any]:
    own = {} if seed is None else {"seed": seed + completion.index}
    return {"index": completion.index, **own, **_said(completion, codec), "stats": completion.stats.to_dict()}


def _said(completion: Completion, codec: Any) -> dict[str, Any]:
    """One answer; what was not asked for or did not happen has no key."""
    found: dict[str, Any] = {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
    }
    if completion.error is not None:
        found["error"] = completion.error
    if completion.logprobs is not None:
        found["logprobs"] = [_logprob(entry, codec) for entry in completion.logprobs]
    if completion.prompt_logprobs is not None:
        found["prompt_logprobs"] = [_logprob(entry, codec) for entry in completion.prompt_logprobs]
    return found


def _logprob(entry: Logprob | None, codec: Any) -> dict[str, Any] | None:
    """``logprob``: by the model alone; ``asked``: by the law that the options make of it."""
    if entry is None:
        return None
    top, asked = (
        [{"token_id": token, "token": codec.token(token), "logprob": _finite(value)} for token, value in listed]
        for listed in (entry.top, entry.top_asked)
    )
    return {
        "token_id": entry.token,
        "token": codec.token(entry.token),
        "logprob": _finite(entry.logprob),
        "asked": _finite(entry.asked),
        "top_logprobs": top,
        "top_asked": asked,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: the logarithm of 0 is null."""
    return value if math.isfinite(value) else None
