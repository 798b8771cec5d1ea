"""``surefoot generate``: one prompt, and its answer streamed to standard output.

Several answers (``-n``) run at the same time and are printed one after the other, each under a line ``--- answer 1 of 3 ---``:
the first as it comes, the others from where they are when those before them have ended. An answer that breaks off stays
printed; the error follows, with status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import BadRequest
from .common import add_drafting, add_model, add_request, engine, prompt_for, request
from .config import Switch, track

if TYPE_CHECKING:
    from ..core.completion import Completion
    from ..core.engine import Engine
    from ..core.request import Piece


def add_arguments(parser: argparse.ArgumentParser) -> None:
    track(parser)
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; '-' reads standard input")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("--raw", action="store_true", help="send the text as it is, without the model's chat template")
    add_request(parser)
    add_model(parser)
    add_drafting(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--stream", action=Switch, help="print text as it comes (default) or at the end")
    group.add_argument("--stats", action="store_true", help="print speed and acceptance to standard error")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("--trace", metavar="FILE", help="write every pass as a line of JSON: candidates, their p, what stayed")
    group.add_argument("--trace-picture", metavar="FILE", help="draw the drafts of every pass as an SVG, coloured by drafter")


def run(args: argparse.Namespace) -> int:
    from .answer import answer
    from .report import drafter_name, guard, lines, values
    from .terminal import progress

    if args.json and args.stream:
        raise BadRequest("--json prints one object at the end; leave --stream out")
    params = request(args)
    if params.logprobs is not None and not args.json:
        raise BadRequest("--logprobs are told in JSON; add --json, or leave --logprobs out")
    text = read(args)
    with contextlib.ExitStack() as stack:
        trace, picture = (stack.enter_context(_writable(f)) if f else None for f in (args.trace, args.trace_picture))
        with progress() as tell:
            running = engine(args, tell)
        prompt = prompt_for(running, text, args.system, args.raw)
        printer = None if args.json or args.stream is False else Printer(params.n)
        done = answer(running, prompt, params, printer, trace=trace is not None or picture is not None)
        if trace is not None:
            _write_trace(trace, done.choices)
        if picture is not None:
            picture.write(_draw(running, done.choices))
    if args.json:
        print(json.dumps(values(done, running, args.model, args.seed), ensure_ascii=False))
    elif printer is None:
        printer = Printer(params.n)
        for i, choice in enumerate(done.choices):
            printer.write(i, choice.text)
            printer.end(i)
    if args.stats:
        print("\n".join([*lines([done], drafter_name(running)), *guard(running)]), file=sys.stderr)
    if done.error is not None and not done.interrupted:
        raise BadRequest(done.error)
    return 130 if done.interrupted else 0


class Printer:
    """Prints ``n`` answers in order, whichever order their pieces come in."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._turn = 0
        self._titled = n == 1
        self._last = ""
        self._waiting: list[list[str]] = [[] for _ in range(n)]
        self._ended = [False] * n

    def __call__(self, piece: Piece) -> None:
        self.write(piece.index, piece.text)
        if piece.finish_reason is not None:
            self.end(piece.index)

    def write(self, index: int, text: str) -> None:
        if index != self._turn:
            self._waiting[index].append(text)
            return
        if not self._titled:
            print(f"--- answer {index + 1} of {self._n} ---")
            self._titled = True
        print(text, end="", flush=True)
        self._last = text or self._last

    def end(self, index: int) -> None:
        """An answer is over; the next one follows, and so on as long as they are over too."""
        self._ended[index] = True
        while self._turn < self._n and self._ended[self._turn]:
            print("" if self._last.endswith("\n") else "\n", end="", flush=True)
            self._turn += 1
            self._titled, self._last = False, ""
            if self._turn < self._n:
                self.write(self._turn, "".join(self._waiting[self._turn]))


def read(args: argparse.Namespace) -> str:
    """The prompt of argument, file or standard input. A line's end that a shell or an editor adds is not meant in a chat."""
    from ..text.prompt_file import read_prompt

    if args.prompt is not None and args.file is not None:
        raise BadRequest("the prompt is given twice; give PROMPT or -f FILE, not both")
    if args.file is not None:
        text = read_prompt(args.file)
    elif args.prompt is not None and args.prompt != "-":
        text = _utf8(args.prompt)
    elif args.prompt is None and sys.stdin.isatty():
        raise BadRequest("there is no prompt; give it as an argument, with -f FILE, or on standard input")
    else:
        text = read_prompt("-")
    if not args.raw and args.prompt in (None, "-"):
        text = text.removesuffix("\n").removesuffix("\r")
    if not (text if args.raw else text.strip()):
        raise BadRequest("the prompt is empty; give at least one character")
    return text


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"the prompt is not valid UTF-8 (character {error.start}); pass UTF-8, or a file with -f") from None
    return text


def _writable(path: str) -> TextIO:
    """Opened before the model is loaded: a path that cannot be written is told at once."""
    try:
        return open(path, "w", encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write the trace to {path} ({error.strerror}); choose another file") from None


def _write_trace(file: TextIO, choices: Sequence[Completion]) -> None:
    """Of several answers each line also says which one it is of."""
    for choice in choices:
        which = {"answer": choice.index} if len(choices) > 1 else {}
        for step in choice.stats.trace or ():
            file.write(json.dumps({**which, **asdict(step)}) + "\n")


def _draw(running: Engine, choices: Sequence[Completion]) -> str:
    from ..plan.picture import draw

    codec: Any = running.codec
    return draw([choice.stats.trace or () for choice in choices], codec.token)
