"""Rows that serve a drafter: *shadows* hold a request's tokens and drafted ones behind them, *hidden* rows go on by themselves.

A shadow's ``of`` is the request's own row, however deep drafts are nested, and its tokens begin with that one's. What a drafter
keeps of a row it keeps of :attr:`Row.base`, whose tokens only grow; a shadow's drafted tokens may be others in the next pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from .noise import DRAFT, Array, Noise, Weights
from .params import SamplingParams
from .request import Row

_LANES = DRAFT + 1
"""Lanes of noise that a row uses."""
_TURNS = 1 << 48
"""Distance of the keys of passes, more than a pass uses of its own."""


class Aside:
    """The noise of a request for draws of one pass that must not depend on those of verification, nor on other passes'."""

    __slots__ = ("_noise", "_turn")

    def __init__(self, noise: Noise, turn: int) -> None:
        self._noise = noise
        self._turn = (turn + 1) * _TURNS

    def categorical(self, weights: Weights, position: int, lane: int, turn: int = 0, ids: Array | None = None) -> int:
        return self._noise.categorical(weights, position, lane + _LANES, turn + self._turn, ids)

    def accept(self, probability: float, position: int, lane: int, turn: int = 0, index: int = 0) -> bool:
        return self._noise.accept(probability, position, lane + _LANES, turn + self._turn, index)


def shadow(row: Row, path: Sequence[int] = ()) -> Row:
    """A row with the tokens of ``row``, which may be a shadow itself, and those of ``path``.

    Raises :class:`~surefoot.errors.BadRequest` where the request's options leave no way down this path.
    """
    base = row.base
    tokens = [*row.tokens, *path]
    made = Row(row.id, tokens, row.params, limit=len(tokens), noise=row.noise, index=row.index)
    made.n_prompt = base.n_prompt
    made.of = base
    made.turn = row.turn
    made.stop_ids = base.stop_ids
    made.logprobs = made.prompt_logprobs = None  # for the request's own tokens only
    if row.state is not None:
        made.state = row.state.fork()
        for token in path:
            made.state.advance(token)
    return made


def hidden(row: Row, id: int, extra: Sequence[int], params: SamplingParams, limit: int, ends: Sequence[int]) -> Row:
    """A row that goes on by itself, ``limit`` tokens at most, behind what ``row`` holds now and ``extra``.

    Options that look at tokens are those of ``row``; ``params`` says how to choose. Raises
    :class:`~surefoot.errors.BadRequest` where the options do not allow ``extra``.
    """
    made = Row(id, [*row.tokens, *extra], params, limit=limit, index=row.index)
    made.stop_ids = row.stop_ids | frozenset(ends)
    made.hidden = True
    if row.state is not None:
        made.state = row.state.moved(made.tokens, len(extra))
    return made
