"""Calls whose name stands before the arguments: ``<function=NAME>…</function>``, and mistral's ``[TOOL_CALLS]NAME{…}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .call import NAME_LETTERS, is_name
from .machine import Machine, Options
from .markers import FUNCTION, HERMES, MISTRAL
from .parameters import Parameters
from .scan import JsonScanner


class Named:
    """Reads such calls as modes of the machine. ``tools``: OpenAI's list."""

    def __init__(self, machine: Machine, tools: Sequence[Mapping[str, Any]]) -> None:
        self._machine = machine
        self._tools = tools
        self._name = ""
        self._json = JsonScanner()
        self._parameters = Parameters(None)

    def function(self) -> None:
        """``<function=`` was read."""
        self._machine.family = (HERMES, FUNCTION)
        self._name = ""
        self._machine.mode = self._in_name

    def _in_name(self, c: str) -> None:
        m = self._machine
        m.hold.append(c)
        if c == ">" and is_name(self._name):
            self._parameters = Parameters.of(self._name, self._tools)
            m.expect({"{": self._arguments, "<parameter=": self._parameter, "</function>": self._last}, m.fail)
        elif NAME_LETTERS.fullmatch(c):
            self._name += c
        else:
            m.match = c
            m.fail()

    def _parameter(self) -> None:
        self._parameters.begin()
        self._machine.mode = self._in_parameter

    def _in_parameter(self, c: str) -> None:
        m = self._machine
        m.hold.append(c)
        self._parameters.push(c)
        if self._parameters.broken:
            m.match = c
            (m.broke if m.open else m.fail)()
        elif self._parameters.whole:
            if not m.open:
                m.begin(self._name)
            m.tell(self._parameters.take())
            # a model may forget the inner end marker
            more: Options = {"</function>": self._last, "</tool_call>": self._last}
            m.expect({"<parameter=": self._parameter, **more}, m.broke)

    def _last(self) -> None:
        """The end marker after parameters, or after none."""
        m = self._machine
        if not m.open:
            m.begin(self._name)
        m.tell(self._parameters.close())
        m.end(True)
        self._over()

    def _over(self) -> None:
        m = self._machine
        m.hold.clear()
        m.expect({"</tool_call>": m.closed, FUNCTION: self.function}, m.leave)

    def _arguments(self) -> None:
        """The '{' of arguments in JSON was read."""
        m = self._machine
        m.begin(self._name)
        self._json = JsonScanner()
        self._json.push("{")
        m.tell("{")
        m.mode = self._in_arguments

    def _in_arguments(self, c: str) -> None:
        m = self._machine
        self._json.push(c)
        if self._json.broken:
            m.hold.append(c)
            m.broke()
            return
        m.tell(c)
        if self._json.done:
            m.end(True)
            if MISTRAL in m.family:
                m.closed()
            else:
                m.expect({"</function>": self._over}, m.leave)

    def mistral(self) -> None:
        """What was read after the marker should begin a name."""
        m = self._machine
        self._name = ""
        again, m.match = m.match, ""
        del m.hold[-1]  # it is read once more
        m.mode = self._in_mistral_name
        m.again(again)

    def _in_mistral_name(self, c: str) -> None:
        m = self._machine
        if NAME_LETTERS.fullmatch(c):
            m.hold.append(c)
            self._name += c
            return
        arguments: Options = {"{": self._arguments} if is_name(self._name) else {}
        tagged: Options = {"[ARGS]": lambda: m.expect(arguments, m.fail), "[CALL_ID]": self._identified}
        m.expect({**arguments, **tagged}, m.fail)
        m.again(c)

    def _identified(self) -> None:
        self._machine.mode = self._in_id

    def _in_id(self, c: str) -> None:
        """Calls have ids of their own."""
        m = self._machine
        if NAME_LETTERS.fullmatch(c):
            m.hold.append(c)
            return
        m.expect({"[ARGS]": lambda: m.expect({"{": self._arguments}, m.fail)}, m.fail)
        m.again(c)
