"""How far drafts reach: the chance that a drafted token is kept, by depth, and what lengths are worth it.

a_i is the chance that the token at depth i is kept, once depth i-1 was and a token was asked for; a drafter that has nothing
to say counts as a miss. The reach of depth i is prod_{j<=i} a_j, so a draft of k tokens keeps sum_{i<=k} reach_i on average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul


class Reach:
    """Chance of acceptance by depth, from fading evidence."""

    def __init__(self, depth: int, fade: float) -> None:
        self._hits = [0.0] * depth
        self._tries = [0.0] * depth
        self._fade = fade

    def update(self, accepted: int, asked: int) -> None:
        """A pass for which ``asked`` tokens were asked and ``accepted`` of them kept."""
        self.rest(1)
        for i in range(min(asked, accepted + 1, len(self._tries))):
            self._tries[i] += 1.0
            self._hits[i] += i < accepted

    def rest(self, passes: int) -> None:
        """Passes without evidence: what was known of the text that is past fades."""
        left = self._fade**passes
        self._hits = [h * left for h in self._hits]
        self._tries = [t * left for t in self._tries]

    def chances(self, believed: Sequence[float], weight: float) -> list[float]:
        """a_1 … a_K; ``believed`` counts as ``weight`` tries."""
        return [(h + weight * b) / (t + weight) for h, t, b in zip(self._hits, self._tries, believed, strict=True)]

    def alone(self, prior: float, weight: float) -> list[float]:
        """a_1 … a_K with nothing else to go by: an untried depth is believed to be like the one above it.

        The first depth also counts passes in which the drafter had nothing to say, so the second may be better.
        """
        out: list[float] = []
        above = prior
        for i, (hits, tries) in enumerate(zip(self._hits, self._tries, strict=True)):
            chance = (hits + weight * above) / (tries + weight)
            out.append(chance)
            above = max(prior, chance) if i == 0 else chance
        return out


def products(chances: Sequence[float]) -> list[float]:
    """The reach of each depth."""
    return list(accumulate(chances, mul))


def allocate(
    reaches: Sequence[Sequence[float]],
    prices: Sequence[float],
    seconds: Callable[[int], float],
    *,
    floor: int = 1,
    margin: float = 0.0,
    beside: int = 0,
    openings: Sequence[float] = (),
) -> tuple[list[int], float]:
    """Draft lengths of rows that share a pass, and the tokens a second that they promise.

    Maximises (B + sum of reach) / (seconds(sum of sizes) + opening + sum of price x length), to within ``margin``: a longer
    draft must promise so much more. ``reaches[b]`` falls with depth; ``prices[b]``: seconds of each drafted token;
    ``openings[b]``: seconds beside, once a pass, where row b drafts (of several rows the most); ``floor``: rows are padded to
    it; ``beside``: other rows of the pass, which draft nothing.

    A drafted token is worth reach - rate x price. Drafts are prefixes and reach falls, so at the best rate the best set of
    every size is all that fits into padding and is worth anything, and then a prefix of the others, sorted by worth. The
    best rate is found by iteration (Dinkelbach, 1967); where drafting costs nothing, at once.
    """
    rows = len(reaches) + beside
    rate = rows / seconds(rows * floor)
    lengths = [0] * len(reaches)
    while True:
        found, worth = _scan(reaches, prices, openings or [0.0] * len(reaches), seconds, floor, margin, rows, rate)
        if worth <= rate:
            return lengths, rate
        lengths, rate = found, worth
        if not any(prices):
            return lengths, rate


def _scan(
    reaches: Sequence[Sequence[float]],
    prices: Sequence[float],
    openings: Sequence[float],
    seconds: Callable[[int], float],
    floor: int,
    margin: float,
    rows: int,
    rate: float,
) -> tuple[list[int], float]:
    """The best prefix of the candidates, sorted by their worth at this rate."""
    order = sorted(
        (depth >= floor, rate * price - reach, depth, b)
        for b, (row, price) in enumerate(zip(reaches, prices, strict=True))
        for depth, reach in enumerate(row, 1)
        if reach >= rate * price
    )
    tokens, size, drafting, opening = float(rows), rows * floor, 0.0, 0.0
    best = rows / seconds(size)
    count = 0
    for n, (paid, _, depth, b) in enumerate(order, 1):
        tokens += reaches[b][depth - 1]
        size += paid
        drafting += prices[b]
        opening = max(opening, openings[b])
        worth = tokens / (seconds(size) + opening + drafting)
        if worth > best * (1.0 + margin):
            best, count = worth, n
    lengths = [0] * len(reaches)
    for _, _, depth, b in order[:count]:
        lengths[b] = depth
    return lengths, best
