"""``surefoot chat``: a conversation. Each turn sends all of it; the engine finds the cached prefix by itself."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadRequest, SurefootError
from .common import add_drafting, add_model, add_request, engine, messages, request

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..core.params import SamplingParams
    from .answer import Answer

_HELP = "/reset forgets the conversation, /stats sums it up, /exit (or Ctrl-D) leaves; Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request(parser)
    add_model(parser)
    add_drafting(parser)


def run(args: argparse.Namespace) -> int:
    from .terminal import progress

    params = request(args)
    _refuse(params)
    with progress() as tell:
        running = engine(args, tell)
    if not getattr(running.codec, "has_template", False):
        raise BadRequest("the model has no chat template; use 'surefoot generate --raw', or an instruct model")
    conversation = Conversation(running, params, args.system)
    with _history():
        conversation.loop()
    return 0


def _refuse(params: SamplingParams) -> None:
    """What a conversation on a terminal has no place for."""
    for name, given, why in (
        ("n", params.n > 1, "a conversation goes on from one answer"),
        ("echo", params.echo, "a conversation shows what was said already"),
        ("logprobs", params.logprobs is not None, "a conversation prints text alone"),
    ):
        if given:
            raise BadRequest(f"--{name} is not for chat: {why}; leave it out, or use 'surefoot generate --json'")


class Conversation:
    """``turns``: the messages so far, the system message left out."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None) -> None:
        self.engine = engine
        self.params = params
        self.system = system
        self.turns: list[dict[str, str]] = []
        self.answers: list[Answer] = []
        self._tty = sys.stdin.isatty() and sys.stdout.isatty()

    def loop(self) -> None:
        """Until /exit or the end of the input."""
        if self._tty:
            legend = "" if _plain() else " Coloured: drafted and accepted."
            print(f"{self.engine.target.traits.name}. {_HELP}.{legend}")
        while True:
            try:
                line = input("> " if self._tty else "").strip()
            except EOFError:
                if self._tty:
                    print()
                return
            except KeyboardInterrupt:
                print("\n(/exit or Ctrl-D leaves)")
                continue
            except UnicodeDecodeError:
                print("surefoot: error: the line is not valid UTF-8; type it again", file=sys.stderr)
                continue
            if line in ("/exit", "/quit"):
                return
            try:
                if line.startswith("/"):
                    self.command(line)
                elif line:
                    self.say(line)
            except SurefootError as error:
                print(f"surefoot: error: {error}; /reset starts anew", file=sys.stderr)

    def command(self, line: str) -> None:
        from .report import drafter_name, guard, lines

        if line == "/reset":
            self.turns.clear()
            self.answers.clear()
            print("(a new conversation)")
        elif line == "/stats":
            said = [*lines(self.answers, drafter_name(self.engine)), *guard(self.engine)]
            print("\n".join(said) if self.answers else "(nothing was said yet)")
        else:
            print(f"({_HELP})")

    def say(self, text: str) -> None:
        """One turn; an answer cut by Ctrl-C stays as far as it came."""
        from .answer import answer
        from .report import footer
        from .terminal import Painter

        codec = self.engine.codec
        prompt = messages(text, self.system, self.turns)
        done = answer(self.engine, prompt, self.params, Painter(codec))  # type: ignore[arg-type]
        said = done.completion.text
        print("" if said.endswith("\n") else "\n", end="")
        print(_dim(footer(done) + (" · stopped" if done.interrupted else "")))
        if done.error is not None:
            print(f"surefoot: error: {done.error}", file=sys.stderr)
        self.answers.append(done)
        if said:
            self.turns += [{"role": "user", "content": text}, {"role": "assistant", "content": said}]


def _dim(text: str) -> str:
    return text if _plain() else f"\x1b[2m{text}\x1b[0m"


def _plain() -> bool:
    return not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing, and lines of earlier conversations; only where a person types."""
    try:
        import readline
    except ImportError:
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    import platformdirs

    file = Path(platformdirs.user_state_dir("surefoot", appauthor=False)) / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)
