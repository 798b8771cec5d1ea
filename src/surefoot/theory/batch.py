"""Batches: what it costs to wait for the slowest row.

B rows draft gamma tokens each and accept A_1 … A_B. *Ragged* batches commit A_b + 1 tokens of row b. *Synchronous* ones
commit as many of each row as of the row that accepted least, 1 + min A_b, since their caches advance together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .checks import Curve, curve, not_negative, probability, whole
from .speedup import expected_tokens


def ragged_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens of a round a row: (1 - alpha^(gamma+1)) / (1 - alpha), whatever the batch."""
    return float(expected_tokens(alpha, gamma))


def synchronous_tokens(alpha: float, gamma: int, rows: int) -> float:
    """1 + sum_{j=1}^{gamma} alpha^(j B): all B rows accept j tokens with alpha^(jB)."""
    a, b = float(probability("alpha", alpha)), int(whole("rows", rows, 1))
    return 1.0 + sum(a ** (j * b) for j in range(1, int(whole("gamma", gamma)) + 1))


def batch_speedup(alpha: float, gamma: int, c: float, rows: int, cost: Curve | ArrayLike, *, ragged: bool = True) -> float:
    """Tokens per time of B rows over those of plain decoding of the same B rows.

    ``cost``: V of a pass over m tokens of all rows together; a draft step of the batch costs ``c`` passes over one token.
    """
    b, k = int(whole("rows", rows, 1)), int(whole("gamma", gamma))
    v = curve(cost, b * (k + 1))
    tokens = ragged_tokens(alpha, k) if ragged else synchronous_tokens(alpha, k, b)
    return float(tokens * v[b] / (k * float(not_negative("c", c)) + v[b * (k + 1)]))


def rounds_to_finish(alpha: float, gamma: int, rows: int, tokens: int, *, ragged: bool = True) -> float:
    """Expected rounds until every row has ``tokens`` tokens, exactly, by the law of the number of tokens after r rounds.

    Rows of a ragged batch finish by themselves, so the batch lasts as long as the slowest; a synchronous one advances together.
    """
    a, k = float(probability("alpha", alpha)), int(whole("gamma", gamma))
    b, n = int(whole("rows", rows, 1)), int(whole("tokens", tokens, 1))
    power = 1 if ragged else b
    law = np.array([a ** (j * power) * (1 - a**power) for j in range(k)] + [a ** (k * power)])  # P(A = j), A + 1 tokens
    missing = np.zeros(n + 1)
    missing[n] = 1.0  # P(row still misses m tokens)
    expected = 0.0
    while True:
        going = 1.0 - missing[0]
        alive = 1.0 - (1.0 - going) ** b if ragged else going
        if alive < 1e-13:
            return expected
        expected += alive
        after = np.zeros_like(missing)
        after[0] = missing[0]
        for j, chance in enumerate(law):
            step = j + 1
            after[: n + 1 - step] += chance * np.where(np.arange(step, n + 1) > 0, missing[step:], 0.0)
            after[0] += chance * missing[1:step].sum()
        missing = after
