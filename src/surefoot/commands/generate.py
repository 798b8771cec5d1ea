"""``surefoot generate``: one prompt, one answer, streamed to standard output."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from ..errors import BadRequest
from .common import add_drafting, add_model, add_request, engine, prompt_for, request

if TYPE_CHECKING:
    from ..core.stats import StepTrace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; '-' reads standard input")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("--raw", action="store_true", help="send the text as it is, without the model's chat template")
    add_request(parser)
    add_model(parser)
    add_drafting(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--stream", action=argparse.BooleanOptionalAction, help="print text as it comes (default) or at the end")
    group.add_argument("--stats", action="store_true", help="print speed and acceptance to standard error")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("--trace", metavar="FILE", help="write every pass as a line of JSON: candidates, their p, what stayed")


def run(args: argparse.Namespace) -> int:
    from .answer import answer
    from .report import drafter_name, lines, values
    from .terminal import Painter, progress

    if args.json and args.stream:
        raise BadRequest("--json prints one object at the end; leave --stream out")
    params = request(args)
    text = read(args)
    with contextlib.ExitStack() as stack:
        trace = stack.enter_context(_writable(args.trace)) if args.trace else None
        with progress() as tell:
            running = engine(args, tell)
        prompt = prompt_for(running, text, args.system, args.raw)
        stream = not args.json and args.stream is not False
        done = answer(running, prompt, params, Painter(None) if stream else None, trace=trace is not None)
        if trace is not None:
            _write_trace(trace, done.completion.stats.trace or [])
    if args.json:
        print(json.dumps(values(done, running, args.model, args.seed), ensure_ascii=False))
    else:
        written = done.completion.text
        print("" if stream else written, end="" if written.endswith("\n") else "\n", flush=True)
    if args.stats:
        print("\n".join(lines([done], drafter_name(running))), file=sys.stderr)
    return 130 if done.interrupted else 0


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


def _write_trace(file: TextIO, steps: list[StepTrace]) -> None:
    for step in steps:
        file.write(json.dumps(asdict(step)) + "\n")
