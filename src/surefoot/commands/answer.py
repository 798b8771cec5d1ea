"""One request: stepped pass by pass, so that Ctrl-C ends it between passes and what was generated stays."""

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
    """``first``: seconds to the first token. ``seconds``: to the last one. Several answers run at the same time."""

    completion: Completion
    first: float
    seconds: float
    interrupted: bool

    @property
    def choices(self) -> tuple[Completion, ...]:
        """All answers, however many."""
        return self.completion.choices or (self.completion,)

    @property
    def decode_seconds(self) -> float:
        """Time of the passes after the prompt's; answers share them."""
        return max(c.stats.decode_seconds for c in self.choices)

    @property
    def error(self) -> str | None:
        """Why an answer broke off, if one did."""
        return next((c.error for c in self.choices if c.error is not None), None)

    @property
    def tokens_per_second(self) -> float:
        """Decode rate; the tokens that the prompt's own passes give are not counted."""
        tokens = sum(len(c.token_ids) - (c.stats.prompt_seconds > 0) for c in self.choices)
        seconds = self.decode_seconds
        return tokens / seconds if seconds > 0 and tokens > 0 else 0.0


def answer(
    engine: Engine,
    prompt: Any,
    params: SamplingParams,
    emit: Callable[[Piece], None] | None = None,
    *,
    trace: bool = False,
) -> Answer:
    """Run a request to its end or to Ctrl-C. ``emit`` gets each piece as it becomes final; ``piece.index`` is its answer."""
    from ..core.completion import Completion

    start = time.perf_counter()
    rows = engine.submit(prompt, params, trace=trace)
    first = 0.0
    going = list(rows)
    interrupts = Interrupts()
    try:
        with interrupts:
            while not all(row.done for row in rows) and not interrupts.asked:
                engine.step()
                if not first and any(row.output for row in rows):
                    first = time.perf_counter() - start
                _drain(engine, going, emit)
    finally:
        for row in rows:
            engine.abort(row)
    _drain(engine, going, emit)
    completion = Completion.together(rows, engine.names)
    return Answer(completion, first, time.perf_counter() - start, interrupts.asked)


def _drain(engine: Engine, going: list[Row], emit: Callable[[Piece], None] | None) -> None:
    """Emit what is new, and take the rows that ended off the list."""
    for row in list(going):
        piece = row.drain(engine.names) if emit is not None else None
        if piece is not None and emit is not None:
            emit(piece)
        if row.done:
            going.remove(row)
