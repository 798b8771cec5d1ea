"""Ctrl-C between two steps, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed inside. A second one ends at once.

    Only the main thread is told of signals; elsewhere nothing changes.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
