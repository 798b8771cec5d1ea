"""What self-speculation did for a request: seconds by stage, and tokens that drafts of the answer gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..core.stats import Stats


@dataclass(slots=True)
class SsrStats:
    """``thought``: until the thought ended, forks included; ``verify``: as long as a draft agreed from the answer's beginning;
    ``continuation``: behind the first difference, or without a draft. ``budgets``: tokens of thought at each fork."""

    thought_seconds: float = 0.0
    verify_seconds: float = 0.0
    continuation_seconds: float = 0.0
    drafts: int = 0
    draft_tokens: int = 0
    prefix_tokens: int = 0
    suffix_tokens: int = 0
    budgets: list[int] = field(default_factory=list)
    _before: float = 0.0

    def time(self, stats: Stats, inside: bool, intact: bool) -> None:
        """The seconds since the last call belong to the stage that the request was in."""
        now = stats.prompt_seconds + stats.decode_seconds
        seconds, self._before = now - self._before, now
        if inside:
            self.thought_seconds += seconds
        elif intact:
            self.verify_seconds += seconds
        else:
            self.continuation_seconds += seconds

    def to_dict(self) -> dict[str, object]:
        return {key: value for key, value in asdict(self).items() if not key.startswith("_")}
