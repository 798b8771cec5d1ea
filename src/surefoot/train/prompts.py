"""Prompts for self-generated text: the model writes both sides of the conversation.

A user turn is what the model itself goes on with behind the opening of its chat template, and behind a start drawn from
:data:`STARTS`, which spreads the turns over what people ask for. A model without a template goes on from a start alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

STARTS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (4.0, ("",)),
    (
        3.0,
        (
            "What", "How", "Why", "Who", "When did", "Where", "Which", "Can you", "Could you", "Please", "Is it", "I want to",
            "I need", "Give me", "Tell me", "Explain", "Describe", "List", "Write", "Create", "Compare", "Help me", "Suppose",
            "Imagine", "My", "The following", "Do you", "Name", "Define", "Design", "Plan", "Suggest", "Should I",
        ),
    ),
    (
        2.0,
        (
            "Write a Python function that", "Write a short story about", "Write an email to", "Write a poem about",
            "Write a speech about", "Explain the difference between", "Explain step by step how", "What are the benefits of",
            "What is the capital of", "What happens if", "How many", "How do I fix", "Fix the grammar:", "Make a table of",
            "Continue the story:", "Rewrite this more politely:", "Shorten this:", "Turn this into a list:",
        ),
    ),
    (
        1.5,
        (
            "Solve this problem: A farmer has", "A train leaves", "If x =", "Calculate", "Maria has", "A shop sells",
            "There are", "Find the", "Each of",
        ),
    ),
    (
        2.5,
        (
            "Summarize this article:\n", "Give a summary of this report in a few sentences:\n", "Sum up this news item.\n\n",
            "Read this text and answer the question behind it.\n\nText:", "Using these notes, answer the question.\n\nNotes:",
            "Put the main points of this passage in order:\n", "Translate into English:", "Translate this German text:",
            "Translate into French:", "Correct this code:\n```python\n", "What does this code do?\n```python\n",
        ),
    ),
)  # fmt: skip
"""Weight of a group, and the starts of its turns. Those of the last one bring a text with them, so they run longer."""
SHORT, LONG = 80, 320
"""Most tokens of a user turn."""
_MARK = "\x02user\x02"


class Coder(Protocol):
    """The part of a tokenizer that this needs."""

    @property
    def has_template(self) -> bool: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def chat_text(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class Opening:
    """What a user turn is generated behind. ``start``: the text that the turn begins with."""

    tokens: tuple[int, ...]
    start: str
    most: int


def opening(codec: Coder, rng: random.Random) -> Opening:
    """A drawn opening; the same for the same state of ``rng``."""
    place = rng.choices(range(len(STARTS)), [weight for weight, _ in STARTS])[0]
    start = rng.choice(STARTS[place][1])
    most = LONG if place == len(STARTS) - 1 else SHORT
    if not codec.has_template:
        return Opening(tuple(codec.encode(start or "The")), start or "The", most)
    head = codec.chat_text([{"role": "user", "content": _MARK}], add_generation_prompt=False).split(_MARK)[0]
    return Opening(tuple(codec.encode(head + start, special=False)), start, most)


def closing(codec: Coder) -> str:
    """The text by which a template ends a user turn; empty where there is no template, or nothing is written there."""
    if not codec.has_template:
        return ""
    tail = codec.chat_text([{"role": "user", "content": _MARK}], add_generation_prompt=False).split(_MARK)[-1]
    return tail.strip()


def usable(turn: str, opened: Opening) -> bool:
    """Whether a generated turn says something beyond its start."""
    return len(turn) >= len(opened.start) + 8 and len(turn.split()) >= 3
