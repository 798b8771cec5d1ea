"""``bench_ssr``: the variants on the tasks, and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from ..core.options import is_int
from ..errors import BadRequest
from ..ssr import choose
from .data import Item
from .report import provenance, sentence, summary
from .thinking import format_of
from .timing import Tell, turns
from .variants import PLAIN, USUAL, VARIANTS, Variant, engine, variants

if TYPE_CHECKING:
    from ..target import Target


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is asked for.

    max_tokens       most tokens of thought and answer together; ``thinking_budget``: of thought
    draft_budget     tokens of thought before the first fork (a quarter of the thinking budget)
    interval         between the forks of the iterative variant (as the draft budget)
    ablations        all variants, not only plain, auto and ssr
    always           ssr forks without asking whether it pays
    """

    max_tokens: int = 512
    thinking_budget: int = 192
    draft_budget: int | None = None
    draft_tokens: int = 500
    interval: int | None = None
    ablations: bool = False
    always: bool = False
    repeats: int = 1
    family: str = "auto"
    names: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    """Further request options."""

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 2), ("thinking_budget", 1), ("draft_tokens", 1), ("repeats", 1)):
            if not is_int(getattr(self, name), least):
                raise BadRequest(f"{name}={getattr(self, name)!r} is not allowed; give a whole number from {least} up")
        for name, least in (("draft_budget", 0), ("interval", 1)):
            value = getattr(self, name)
            if value is not None and not is_int(value, least):
                raise BadRequest(f"{name}={value!r} is not allowed; give a whole number from {least} up")
        if self.thinking_budget >= self.max_tokens:
            raise BadRequest(
                f"thinking_budget={self.thinking_budget} leaves no room for an answer in max_tokens={self.max_tokens}; lower it"
            )
        choose(self.family)
        self.compared()

    def compared(self) -> list[Variant]:
        """The variants, plain decoding the first."""
        budget = self.thinking_budget // 4 if self.draft_budget is None else self.draft_budget
        interval = max(1, budget) if self.interval is None else self.interval
        names = self.names or (tuple(VARIANTS) if self.ablations else USUAL)
        return variants(
            names,
            budget=budget,
            draft_tokens=self.draft_tokens,
            interval=interval,
            always=self.always,
            family=self.family,
        )


def bench_ssr(target: Target, items: Sequence[Item], asked: Asked, tell: Tell, words: Sequence[str] = ()) -> dict[str, Any]:
    """The figures, as plain values. ``tell`` hears of progress; ``words``: the command that asks."""
    if not items:
        raise BadRequest("there is no task to run; give a file of tasks, or leave --no-own out")
    written = format_of(target.codec, asked.family)
    params = written.params(asked.max_tokens, asked.thinking_budget, **asked.options)
    traits = target.model.traits
    room = traits.max_context - asked.max_tokens - traits.min_width
    encoded = [(item, written.prompt(target.codec, item.text)) for item in items]
    fitting = [(item, prompt) for item, prompt in encoded if len(prompt) <= room]
    if not fitting:
        raise BadRequest(
            f"no task leaves room for max_tokens={asked.max_tokens} in a context of {traits.max_context}; lower it"
        )
    chosen = asked.compared()
    prompts = [prompt for _, prompt in fitting]
    make = {variant.name: partial(engine, target, variant) for variant in chosen}
    runs = turns(make, prompts, params, asked.repeats, tell)
    places: dict[str, list[int]] = {}
    for i, (item, _) in enumerate(fitting):
        places.setdefault(item.set, []).append(i)
    sets = {
        name: {variant.name: summary([runs[variant.name][i] for i in at], [runs[PLAIN][i] for i in at]) for variant in chosen}
        for name, at in places.items()
    }
    lengths = [written.lengths(target.codec, prompt, runs[PLAIN][i][0].tokens) for i, prompt in enumerate(prompts)]
    return {
        "provenance": provenance(words),
        "model": traits.name,
        "dtype": traits.dtype,
        "min_width": traits.min_width,
        "asked": asdict(asked),
        "variants": {variant.name: {"drafter": variant.drafter, "what": variant.what} for variant in chosen},
        "thinking": {"family": written.family.name, "taught": written.taught, "end": params.thinking_end},
        "time": "decoding of the answer and its thought, prefill excluded; of the repeats of a prompt the lower",
        "left_out_for_length": len(encoded) - len(fitting),
        "lengths": {
            name: {
                "prompts": len(at),
                "prompt": median(len(prompts[i]) for i in at),
                "thought": median(lengths[i][0] for i in at),
                "answer": median(lengths[i][1] for i in at),
                "without_answer": sum(lengths[i][1] == 0 for i in at),
            }
            for name, at in places.items()
        },
        "sets": sets,
        "answers_that_differ": sum(f["answers_that_differ"] for own in sets.values() for f in own.values()),
        "sentence": sentence(sets),
    }
