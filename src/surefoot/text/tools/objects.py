"""Calls that are JSON objects with a name: hermes, mistral's list, llama 3."""

from __future__ import annotations

from collections.abc import Callable

from .call import CallObject
from .machine import Machine, Options
from .markers import BARE


class Objects:
    """Reads call objects, one after the other, as modes of the machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._call = CallObject()
        self._strict = False
        self._between: Options = {}
        """What may follow an object."""

    def tagged(self, end: str | None, others: Options, otherwise: Callable[[], None] | None = None) -> None:
        """After a marker: objects or a list of them, up to the text ``end``, or one of ``others``, or something else."""
        m = self._machine
        self._strict = False
        after: Options = {} if end is None else {end: m.closed}
        more: Options = {",": lambda: m.expect({"{": self._begin}, m.leave)}
        close = m.closed if end is None else lambda: m.expect(after, m.leave)
        self._between = {"{": self._begin, **more, **after}

        def listed() -> None:
            self._between = {**more, "]": close}
            m.expect({"{": self._begin}, m.fail)

        m.expect({"{": self._begin, "[": listed, **others}, otherwise or m.fail)

    def bare(self) -> None:
        """A '{' was read where an answer begins. It is a call if it has a call's members and no others."""
        m = self._machine
        more: Options = {"{": self._begin}
        self._strict = True
        self._between = {**more, ";": lambda: m.expect(more, m.leave)}
        self._begin()

    def python(self) -> None:
        m = self._machine
        m.expect({"{": self.bare}, m.fail)

    def _begin(self) -> None:
        self._call = CallObject(self._strict)
        self._call.push("{")
        self._machine.mode = self._read

    def _read(self, c: str) -> None:
        m, call = self._machine, self._call
        m.hold.append(c)
        call.push(c)
        if call.broken:
            self._broke(c)
            return
        # any answer in JSON may look like a bare call for a while; a call after a marker is told at once
        if not m.open and call.begun and (call.closed or BARE not in m.family):
            m.begin(call.name or "")
        if m.open and (new := call.take()):
            m.tell(new)
        m.whole = call.whole
        if call.closed:
            m.hold.clear()
            m.end(True)
            m.expect(self._between, m.leave)

    def _broke(self, c: str) -> None:
        m = self._machine
        if not m.open:
            m.match = c
            m.fail()
        elif not m.whole:
            m.broke()
        else:  # the arguments are whole: the model forgot the last brace
            m.end(True)
            again = "".join(m.hold)
            m.hold.clear()
            m.expect(self._between, m.leave)
            m.again(again)
