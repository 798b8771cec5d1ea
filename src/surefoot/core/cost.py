"""What a pass costs: measured seconds over its number of tokens, at a context.

Speculation pays by V(m), the time of a pass over m tokens; nobody should guess it: :mod:`.measure` asks the target itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import BadRequest
from .protocols import Traits

_LITTLE = 1.13
"""How much more than the least a pass may cost whose every token counts as free."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """``seconds[i]``: typical time of one row's pass over ``widths[i]`` tokens at ``context`` cached tokens.

    ``per_context``: seconds that each further cached token adds to a pass. ``change``: seconds that a pass of another
    width than the one before it takes longer. ``switch``: the same between two widths that the backend keeps ready (see
    ``Traits.narrow``). Piecewise linear, continued by the last slope.
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    context: int
    per_context: float = 0.0
    change: float = 0.0
    switch: float = 0.0

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.widths, self.widths[1:], strict=False))
        if not self.widths or len(self.widths) != len(self.seconds) or not rising or min(self.seconds) <= 0:
            raise BadRequest("a cost model needs rising widths and one positive time for each; measure it again")

    def __call__(self, nodes: int, context: int | None = None) -> float:
        """Seconds of a pass over ``nodes`` tokens (padding included)."""
        extra = 0.0 if context is None else (context - self.context) * self.per_context
        return max(self._base(nodes) + extra, 0.1 * self.seconds[0])

    def _base(self, nodes: int) -> float:
        w, s = self.widths, self.seconds
        if nodes <= w[0] or len(w) == 1:
            return s[0] * (max(1.0, nodes / w[0]) if len(w) == 1 else 1.0)
        i = min(max(bisect_left(w, nodes), 1), len(w) - 1)
        return s[i - 1] + (s[i] - s[i - 1]) * (nodes - w[i - 1]) / (w[i] - w[i - 1])

    def to_dict(self) -> dict[str, Any]:
        return {
            "widths": list(self.widths),
            "seconds": list(self.seconds),
            "context": self.context,
            "per_context": self.per_context,
            "change": self.change,
            "switch": self.switch,
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> CostModel:
        try:
            return CostModel(
                tuple(int(w) for w in data["widths"]),
                tuple(float(s) for s in data["seconds"]),
                int(data["context"]),
                float(data["per_context"]),
                float(data["change"]),
                float(data.get("switch", data["change"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(f"the stored cost model is broken ({error}); delete it to measure again") from None


def sizes(cost: CostModel, traits: Traits) -> tuple[int, ...]:
    """Sizes of a row's pass to keep to where changing it is dear: all that costs little more than the least, and 2.5 times it.

    The second is for text that drafts get right in long runs: on traces of the default model 2 to 3 times did equally well.
    """
    if not cost.change:
        return ()
    least = cost(traits.min_width)
    cheap = [w for w in cost.widths if cost(w) <= _LITTLE * least and (w <= traits.narrow or not traits.narrow)]
    small = max([*cheap, traits.min_width + 1])
    return tuple(size for size in (small, 5 * small // 2) if size <= traits.max_nodes)


def rising(values: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls (least squares, pooling neighbours that do): a wider pass is no quicker."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (b, m), (a, n) = pools.pop(), pools.pop()
            pools.append(((a * n + b * m) / (n + m), n + m))
    return [mean for mean, n in pools for _ in range(n)]
