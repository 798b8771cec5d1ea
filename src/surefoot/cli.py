"""The command ``surefoot``: picks a command, and turns whatever ends it early into one line and an exit status.

Status 0: done; 1: the command's own "no"; 2: bad input or failure, one line ``surefoot: error: …`` on standard error;
130: ended by Ctrl-C; 141: the reader of a pipe went away. Only the chosen command is imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from . import __version__
from .errors import SurefootError

COMMANDS = {
    "generate": "continue or answer a prompt",
    "chat": "talk with a model",
    "check": "say what runs a model, what memory it takes, and whether a draft model fits it",
    "plan": "what speculation gains, from acceptance and cost, before anything is run",
    "audit": "hold speculative decoding against plain decoding, token by token",
    "bench": "measure self-speculation of thinking models on tasks with long answers",
    "tune": "find the fastest way to draft for a model on this machine, and write it to a configuration",
    "train": "train a draft head for a model on what that model says",
    "datastore": "make a file of your own texts that drafts are taken from, or say what one holds",
    "models": "list the models on this machine, or fetch one",
    "demo": "answer with the default model, then compare plain and speculative decoding",
}
_EPILOG = "'surefoot COMMAND --help' tells the options of a command. Models and measurements are kept in $SUREFOOT_CACHE."


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"surefoot: error: {' '.join(message.split())}; see '{self.prog} --help'\n")


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the options of those commands whose name is among ``words``."""
    top = Parser(
        "surefoot", description="Faster language-model inference, the same tokens.", epilog=_EPILOG, allow_abbrev=False
    )
    top.add_argument("--version", action="version", version=f"surefoot {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        own = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False)
        own.set_defaults(parser=own)
        if name in words:
            import_module(f".commands.{name}", __package__).add_arguments(own)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        if "utf" not in (getattr(stream, "encoding", None) or "utf-8").lower():
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        args, unknown = parser(words).parse_known_args(words)
        if unknown:
            args.parser.error(f"unknown option or word {unknown[0]!r}")
        args.words = words
        status: int = import_module(f".commands.{args.command}", __package__).run(args)
        sys.stdout.flush()
        return status
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        _silence()
        return 141
    except SurefootError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("no memory left; choose a smaller model or lower --kv-tokens")
    except OSError as error:
        _silence()
        where = f" ({error.filename})" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}; free the disk or choose another place")


def _fail(message: str) -> int:
    print(f"surefoot: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _silence() -> None:
    """Standard output cannot be written: without this the interpreter fails once more when it flushes at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


if __name__ == "__main__":
    sys.exit(main())
