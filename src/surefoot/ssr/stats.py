"""What self-speculation did for a request: seconds by stage, and tokens that drafts of the answer gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ..core.stats import Stats

Stage = Literal["thought", "verify", "continuation"]


@dataclass(slots=True)
class SsrStats:
    """Seconds of three stages, which add up to the request's own, by where it stood when a pass began.

    thought       until a thought had ended, prompt and forks included
    verify        of the answer, as long as a draft agreed with it from the beginning
    continuation  the rest

    ``draft_seconds``: of the passes that a fork took part in, which are the thought's. ``drafts``: forks. ``draft_tokens``:
    what they said. ``prefix_tokens``, ``suffix_tokens``: of the answer, given by a draft that agreed from the beginning, and
    by one behind a difference. ``budgets``: tokens of thought at each fork.
    """

    thought_seconds: float = 0.0
    verify_seconds: float = 0.0
    continuation_seconds: float = 0.0
    draft_seconds: float = 0.0
    drafts: int = 0
    draft_tokens: int = 0
    prefix_tokens: int = 0
    suffix_tokens: int = 0
    budgets: list[int] = field(default_factory=list)
    _before: float = 0.0
    _stage: Stage = "thought"

    def time(self, stats: Stats, stage: Stage) -> None:
        """The seconds up to the last pass but one belong to its stage; ``stage``: where the last pass began.

        A row's seconds are counted when its pass is over, after drafters were told of it.
        """
        now = stats.prompt_seconds + stats.decode_seconds
        seconds, self._before = now - self._before, now
        if self._stage == "thought":
            self.thought_seconds += seconds
        elif self._stage == "verify":
            self.verify_seconds += seconds
        else:
            self.continuation_seconds += seconds
        self._stage = stage

    def to_dict(self) -> dict[str, object]:
        return {key: value for key, value in asdict(self).items() if not key.startswith("_")}
