"""One answer: stepped pass by pass, so that Ctrl-C ends it between passes and what was generated stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .terminal import Interrupts

if TYPE_CHECKING:
    from ..core.completion import Completion
    from ..core.engine import Engine
    from ..core.params import SamplingParams
    from ..core.request import Piece, Row


@dataclass(frozen=True, slots=True)
class Answer:
    """``first``: seconds to the first token. ``seconds``: to the last one."""

    completion: Completion
    first: float
    seconds: float
    interrupted: bool

    @property
    def tokens_per_second(self) -> float:
        """Decode rate; the token that the prompt's own pass gives is not counted."""
        stats = self.completion.stats
        tokens = len(self.completion.token_ids) - (stats.prompt_seconds > 0)
        return tokens / stats.decode_seconds if stats.decode_seconds > 0 and tokens > 0 else 0.0


def answer(
    engine: Engine,
    prompt: Any,
    params: SamplingParams,
    emit: Callable[[Piece], None] | None = None,
    *,
    trace: bool = False,
) -> Answer:
    """Run a request to its end or to Ctrl-C. ``emit`` gets each piece as it becomes final."""
    start = time.perf_counter()
    row = engine.add(prompt, params, trace=trace)
    first = 0.0
    interrupts = Interrupts()
    try:
        with interrupts:
            while not row.done and not interrupts.asked:
                engine.step()
                if not first and row.output:
                    first = time.perf_counter() - start
                if emit is not None:
                    _drain(engine, row, emit)
    finally:
        engine.abort(row)
    if emit is not None:
        _drain(engine, row, emit)
    return Answer(engine.completion(row), first, time.perf_counter() - start, interrupts.asked)


def _drain(engine: Engine, row: Row, emit: Callable[[Piece], None]) -> None:
    piece = row.drain(engine.names)
    if piece is not None and (piece.text or piece.token_ids):
        emit(piece)
