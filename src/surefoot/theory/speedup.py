"""Expected tokens, time and work of a round of speculative decoding.

A round drafts gamma tokens and makes one target pass. With acceptance i.i.d. at rate alpha it yields

    E[L] = (1 - alpha^(gamma+1)) / (1 - alpha)          (Leviathan et al., 2023, equation 1)

tokens, the target's own included, and is E[L] / (1 + gamma c) times as fast as plain decoding if a pass over gamma + 1 tokens
costs what a pass over one costs. It does not: use :func:`speedup_measured` with V(m) wherever a measurement exists.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, Curve, curve, not_negative, positive, probability, whole


def expected_tokens(alpha: ArrayLike, gamma: ArrayLike) -> Array:
    """E[L], broadcast; gamma + 1 at alpha = 1."""
    a, k = np.broadcast_arrays(probability("alpha", alpha), whole("gamma", gamma))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = -np.expm1((k + 1) * np.log(a)) / (1.0 - a)
    return np.asarray(np.where(a == 1.0, k + 1.0, found))


def tokens_from_reach(reach: ArrayLike) -> Array:
    """1 + r_1 + … + r_k for k = 0 … K; ``reach`` [K], from measured acceptance by position."""
    r = probability("reach", reach)
    if np.any(np.diff(r) > 1e-12):
        raise ValueError("reach cannot grow with depth; give r_i = a_1 … a_i")
    return np.concatenate([[1.0], 1.0 + np.cumsum(r)])


def length_law(alpha: float, gamma: int) -> Array:
    """P(L = 1 … gamma + 1) [gamma+1] of the tokens of a round."""
    a, k = float(probability("alpha", alpha)), int(whole("gamma", gamma))
    return np.array([a**j * (1 - a) for j in range(k)] + [a**k])


def speedup(alpha: ArrayLike, gamma: ArrayLike, c: ArrayLike) -> Array:
    """E[L] / (1 + gamma c) (Leviathan et al., 2023, theorem 3.8); a target pass costs 1 whatever its width."""
    return np.asarray(expected_tokens(alpha, gamma) / (1.0 + whole("gamma", gamma) * not_negative("c", c)))


def speedup_measured(tokens: ArrayLike, c: float, cost: Curve | ArrayLike) -> Array:
    """tokens[k] / (k c + V(k + 1)) for k = 0 … K; ``tokens`` [K+1]: expected tokens of a round at each draft length.

    ``c``: one draft step over a pass of one token. ``cost``: see :func:`surefoot.theory.checks.curve`.
    """
    e = positive("tokens", tokens)
    k = np.arange(len(e))
    v = curve(cost, len(e))
    return np.asarray(e / (k * float(not_negative("c", c)) + v[k + 1]))


def seconds_per_token(tokens: ArrayLike, draft_seconds: float, cost: Curve | ArrayLike) -> Array:
    """(k draft + V(k + 1)) / tokens[k] in seconds; ``cost`` in seconds, ``draft_seconds`` of one drafted token."""
    e = positive("tokens", tokens)
    k = np.arange(len(e))
    first = float(cost(1)) if callable(cost) else float(np.asarray(cost, np.float64)[0])
    return np.asarray((k * float(not_negative("draft_seconds", draft_seconds)) + first * curve(cost, len(e))[k + 1]) / e)


def operations_factor(alpha: ArrayLike, gamma: ArrayLike, c_hat: ArrayLike) -> Array:
    """Arithmetic of speculative over that of plain decoding: (gamma c^ + gamma + 1) / E[L] (Leviathan et al., 2023, sec. 3.4).

    ``c_hat``: operations of the draft over those of the target, a token.
    """
    k = whole("gamma", gamma)
    return np.asarray((k * not_negative("c_hat", c_hat) + k + 1) / expected_tokens(alpha, k))


def break_even(alpha: ArrayLike) -> Array:
    """The c below which some draft pays: alpha itself; there the gain is at least (1 + alpha) / (1 + c) (corollary 3.9)."""
    return probability("alpha", alpha)


def break_even_measured(tokens: ArrayLike, cost: Curve | ArrayLike) -> float:
    """The c below which some draft length 1 … K pays: max_k (tokens[k] - V(k + 1)) / k. Below 0: none does, even if free."""
    e = positive("tokens", tokens)
    if len(e) < 2:
        raise ValueError("the break-even cost needs the tokens of at least one draft length; give tokens[0 … K], K from 1")
    k = np.arange(1, len(e))
    return float(np.max((e[1:] - curve(cost, len(e))[2:]) / k))


def least_gain(alpha: ArrayLike, c: ArrayLike) -> Array:
    """(1 + alpha) / (1 + c) where c < alpha, else 1."""
    a, cost = probability("alpha", alpha), not_negative("c", c)
    return np.asarray(np.where(cost < a, (1 + a) / (1 + cost), 1.0))


def speedup_of_rounds(share: ArrayLike, tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike) -> Array:
    """(1 - share + share tokens) / (gamma c + 1): a ``share`` of the rounds is verified and yields ``tokens``, the others one.

    Every round pays for its draft and for one pass. ``tokens`` is the mean number of tokens of a verified round, from 1 up.
    """
    b, e = probability("share", share), positive("tokens", tokens)
    if np.any(e < 1.0):
        raise ValueError("a verified round yields at least one token; for an acceptance *rate* see speedup_seed_approximation")
    return np.asarray((1 - b + b * e) / (whole("gamma", gamma) * not_negative("c", c) + 1))


def speedup_of_run(share: float, tokens: float, gain: float) -> float:
    """(1 - share + share tokens) / (1 - share + share tokens / gain): a run of which a ``share`` of the passes has a draft.

    Those yield ``tokens`` each at the speed-up ``gain``; the others are plain. Unlike in :func:`speedup_of_rounds`, they do not
    pay for a draft: nothing was proposed.
    """
    b, e, s = float(probability("share", share)), float(positive("tokens", tokens)), float(positive("gain", gain))
    return (1 - b + b * e) / (1 - b + b * e / s)


def speedup_seed_approximation(share: ArrayLike, rate: ArrayLike, gamma: ArrayLike, c: ArrayLike) -> Array:
    """The same formula with an acceptance *rate* in the place of the tokens a round, as it is often printed.

    It never exceeds 1, whatever the draft: kept for comparison only.
    """
    b, a = probability("share", share), probability("rate", rate)
    return np.asarray((1 - b + b * a) / (whole("gamma", gamma) * not_negative("c", c) + 1))
