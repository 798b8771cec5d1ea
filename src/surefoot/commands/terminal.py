"""What a terminal needs: progress, an interrupt that waits for the end of a pass, tokens coloured by source.

Contract: nothing here draws on standard output that is not a terminal, and ``NO_COLOR`` is honoured.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ..core.request import Piece
    from ..models import Progress
    from ..text import Codec

PALETTE = ("green", "cyan", "magenta", "yellow")


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """A progress callback: a bar on a terminal, else one line for each thing that is done. Gone before text comes."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar)


class _Lines:
    """Each label once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if label not in self._seen:
            self._seen.add(label)
            print(f"surefoot: {label}", file=sys.stderr, flush=True)


class _Bar:
    """One visible task, that of the last label."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._label, self._task = "", None

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if label != self._label:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._label, self._task = label, self._bar.add_task(label, total=total)
        self._bar.update(self._task, completed=done, total=total)


class Interrupts:
    """While active, the first Ctrl-C only sets ``asked``, so that a pass ends whole; a second one raises."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        self.asked = False
        main = threading.current_thread() is threading.main_thread()
        # A process that was started to ignore the signal goes on ignoring it.
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None


class Painter:
    """Writes pieces to standard output: accepted draft tokens in their drafter's colour, the target's own plain.

    The text is the piece's own. A decoder of our own only tells how much of it each token gave, since text may be withheld
    while it could become a stop string.
    """

    def __init__(self, codec: Codec | None) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        coloured = self._console.is_terminal and not self._console.no_color
        self._decoder = codec.decoder() if coloured and codec is not None else None
        self._spans: deque[tuple[int, str]] = deque()
        self._colours: dict[str, str] = {}

    @property
    def coloured(self) -> bool:
        return self._decoder is not None

    def __call__(self, piece: Piece) -> None:
        if self._decoder is None:
            sys.stdout.write(piece.text)
            sys.stdout.flush()
            return
        for token, source in zip(piece.token_ids, piece.sources, strict=True):
            self._spans.append((len(self._decoder.push(token)), source))
        text = piece.text
        while text:
            size, source = self._spans.popleft() if self._spans else (len(text), "target")
            self._console.print(Text(text[:size], self._style(source)), end="", soft_wrap=True)
            if size > len(text):
                self._spans.appendleft((size - len(text), source))
            text = text[size:]

    def _style(self, source: str) -> str:
        if source == "target":
            return ""
        return self._colours.setdefault(source, PALETTE[len(self._colours) % len(PALETTE)])
