"""How model families mark their thinking, and what ends it early.

``force`` is written in place of the rest of a thought: the end marker, in some families behind a sentence that leads over to
the answer (budget forcing, arXiv 2501.19393; for Qwen3 section 4.3 of its technical report, arXiv 2505.09388).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import BadRequest


@dataclass(frozen=True, slots=True)
class Family:
    """``start``, ``end``: texts around a thought. ``force``: text that ends one before its time; holds ``end``."""

    name: str
    start: str
    end: str
    force: str

    def __post_init__(self) -> None:
        if not self.start or not self.end or self.start == self.end:
            raise BadRequest(f"thinking markers {self.start!r} and {self.end!r} must be two different texts, not empty")
        if self.end not in self.force:
            raise BadRequest(f"the text that ends a thought must hold the end marker {self.end!r}: add it to {self.force!r}")


_HURRY = "Considering the limited time by the user, I have to give the solution based on the thinking directly now."
_FOUND = (
    Family("generic", "<think>", "</think>", "\n</think>\n\n"),
    Family("qwen3", "<think>", "</think>", f"\n\n{_HURRY}\n</think>\n\n"),
    Family("deepseek-r1", "<think>", "</think>", "\n</think>\n\n"),
    Family("gemma4", "<|channel>thought\n", "<channel|>", "<channel|>"),
)
FAMILIES = {family.name: family for family in _FOUND}


def choose(
    name: str = "auto",
    template: str | None = None,
    *,
    start: str | None = None,
    end: str | None = None,
    force: str | None = None,
    names: Callable[[], str] = str,
) -> Family:
    """The family of that name, or the one that the chat template looks like; ``start``, ``end``, ``force`` replace its texts.

    ``names``: the model's own name, asked for only where the template does not tell families apart.
    """
    if name == "auto":
        found = FAMILIES[_guess(template or "", names)]
    elif name in FAMILIES:
        found = FAMILIES[name]
    else:
        raise BadRequest(
            f"unknown thinking family {name!r}; choose auto, {', '.join(FAMILIES)}, or give the markers themselves"
        )
    texts = {key: text for key, text in (("start", start), ("end", end), ("force", force)) if text is not None}
    if "end" in texts and "force" not in texts:
        texts["force"] = f"\n{texts['end']}\n\n"
    return replace(found, name="custom" if texts else found.name, **texts)


def _guess(template: str, names: Callable[[], str]) -> str:
    if "<channel|>" in template:
        return "gemma4"
    if "<｜Assistant｜>" in template or "deepseek" in template.lower():
        return "deepseek-r1"
    return "qwen3" if "<think>" in template and "qwen" in names().lower() else "generic"
