"""``surefoot bench ssr``: self-speculation while a model thinks, on tasks with long structured answers.

Status 0: done; 1: an answer differs from that of plain decoding; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .common import add_model

if TYPE_CHECKING:
    from ..bench import Asked, Item

KINDS = ("ssr",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help="ssr: drafts of the answer while the model thinks")
    group = parser.add_argument_group("tasks (our own prompts, and files that you have)")
    group.add_argument("--humaneval", metavar="FILE", help="HumanEval, .jsonl or .jsonl.gz")
    group.add_argument("--classeval", metavar="FILE", help="ClassEval, .json")
    group.add_argument("--longproc", nargs="+", default=[], metavar="FILE", help="tasks of LongProc, .json")
    group.add_argument("--no-own", action="store_true", help="without our own prompts")
    group.add_argument("--limit", type=int, metavar="N", help="tasks of each set (all)")
    group = parser.add_argument_group("requests")
    group.add_argument("--max-tokens", type=int, default=512, metavar="N", help="thought and answer together, at most (512)")
    group.add_argument("--thinking-budget", type=int, default=192, metavar="N", help="most tokens of thought (192)")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (default): greedy; else with --seed")
    group.add_argument("--seed", type=int, metavar="N", help="with a temperature (0)")
    group.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="1: off (default)")
    group.add_argument("--family", default="auto", metavar="NAME", help="how the model marks its thoughts (by its template)")
    group = parser.add_argument_group("drafts of answers")
    group.add_argument("--draft-budget", type=int, metavar="N", help="thought before the first fork (a quarter of its budget)")
    group.add_argument("--draft-tokens", type=int, default=500, metavar="N", help="most tokens of a draft (500)")
    group.add_argument("--interval", type=int, metavar="N", help="thought between forks, iterative (as the draft budget)")
    group.add_argument("--always", action="store_true", help="fork without asking whether it pays")
    group = parser.add_argument_group("what is compared")
    group.add_argument("--ablations", action="store_true", help="n-grams alone, and ssr in parts too")
    group.add_argument("--variants", default="", metavar="NAME,…", help="these, beside plain decoding")
    group.add_argument("--repeats", type=int, default=1, metavar="N", help="timings of each; the lower counts (1)")
    add_model(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    group.add_argument("--out", metavar="FILE", help="also write the JSON object to a file")


def run(args: argparse.Namespace) -> int:
    from .. import loader
    from ..bench import bench_ssr
    from ..bench.report import table
    from .terminal import progress

    asked, items = _asked(args), _items(args)
    if args.out is not None and not Path(args.out).absolute().parent.is_dir():
        raise BadRequest(f"--out {args.out}: there is no such folder; make it first")
    with progress() as tell:
        target = loader.open_target(
            args.model, args.backend, precision=args.precision, kv_tokens=args.kv_tokens, progress=tell, **_needs(args, asked)
        )
    figures = bench_ssr(target, items, asked, _say, list(getattr(args, "words", [])))
    text = json.dumps(figures, ensure_ascii=False, indent=1)
    if args.out is not None:
        Path(args.out).write_text(text + "\n", "utf-8")
    print(json.dumps(figures, ensure_ascii=False) if args.json else table(figures))
    return int(figures["answers_that_differ"] > 0)


def _needs(args: argparse.Namespace, asked: Asked) -> dict[str, Any]:
    """How the model has to be loaded for the drafters of all variants."""
    from .. import loader

    return loader.needs([variant.drafter for variant in asked.compared()], args.model)


def _asked(args: argparse.Namespace) -> Asked:
    from ..bench import Asked
    from ..core.params import SamplingParams

    options: dict[str, Any] = {"temperature": args.temperature, "repetition_penalty": args.repetition_penalty}
    if args.temperature > 0:  # without a seed the same request has other answers
        options["seed"] = 0 if args.seed is None else args.seed
    elif args.seed is not None:
        raise BadRequest("--seed belongs to a temperature above 0; leave it out")
    SamplingParams(**options)
    return Asked(
        max_tokens=args.max_tokens,
        thinking_budget=args.thinking_budget,
        draft_budget=args.draft_budget,
        draft_tokens=args.draft_tokens,
        interval=args.interval,
        ablations=args.ablations,
        always=args.always,
        repeats=args.repeats,
        family=args.family,
        names=tuple(filter(None, (name.strip() for name in args.variants.split(",")))),
        options=options,
    )


def _items(args: argparse.Namespace) -> list[Item]:
    from ..bench.data import own, read, some

    if args.limit is not None and args.limit < 1:
        raise BadRequest(f"--limit {args.limit} is not allowed; give a number from 1 up")
    found = [] if args.no_own else own()
    for kind, paths in (("humaneval", [args.humaneval]), ("classeval", [args.classeval]), ("longproc", args.longproc)):
        for path in filter(None, paths):
            found += read(kind, path)
    if not found:
        raise BadRequest("there is no task to run; give --humaneval, --classeval or --longproc, or leave --no-own out")
    return some(found, args.limit)


def _say(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line}", end="", file=sys.stderr, flush=True)
    else:
        print(line, file=sys.stderr, flush=True)
