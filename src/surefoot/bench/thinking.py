"""The prompt of a task, written so that the model begins by thinking.

A model whose chat template knows thinking is left to its own habits. Any other is told to think first, and its answer is begun
with the start marker and a few words, for a model that was not trained to think would not begin by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.params import SamplingParams
from ..core.words import Vocabulary
from ..ssr import Family, choose
from ..ssr.thought import Thought

SYSTEM = (
    "First think about the task in plain words: what is asked, which parts the answer has, and in which order. "
    "Then write the whole answer."
)
BEGIN = "\nThe task asks for"


@dataclass(frozen=True, slots=True)
class Format:
    """``taught``: the model has a way of thinking of its own."""

    family: Family
    taught: bool

    def prompt(self, codec: Any, task: str) -> list[int]:
        messages = [{"role": "user", "content": task}]
        if self.taught:
            return list(codec.chat(messages))
        begin = f"{self.family.start}{BEGIN}"
        if not codec.has_template:
            return list(codec.encode(f"{SYSTEM}\n\n{task}\n\n{begin}"))
        system = [{"role": "system", "content": SYSTEM}]
        return list(codec.encode(codec.chat_text([*system, *messages]) + begin, special=False))

    def params(self, max_tokens: int, budget: int, **options: Any) -> SamplingParams:
        """A thought that its budget ends, ends as the drafts' thoughts do, where the model would not end it by itself."""
        end = self.family.end if self.taught else self.family.force
        return SamplingParams(
            max_tokens=max_tokens,
            thinking_budget=budget,
            thinking_start=self.family.start,
            thinking_end=end,
            # an untaught model may end its output where the thought should go on
            min_tokens=0 if self.taught else min(budget, max_tokens),
            **options,
        )

    def lengths(self, codec: Any, prompt: Sequence[int], output: Sequence[int]) -> tuple[int, int]:
        """Tokens of thought and of answer."""
        found = Thought(self.family, Vocabulary(codec.pieces))
        tokens = [*prompt, *output]
        found.read(tokens)
        answer = len(tokens) - found.answer if found.answer > len(prompt) else 0
        return len(output) - answer, answer


def format_of(codec: Any, family: str = "auto") -> Format:
    """By the chat template of the model; ``family``: another one."""
    template = codec.special.template if codec.has_template else None
    found = choose(family, template)
    taught = template is not None and found.end in template
    return Format(found, taught)
