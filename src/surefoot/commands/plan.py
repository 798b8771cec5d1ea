"""``surefoot plan``: what speculation gains, from acceptance and cost, before anything is run.

The table (or ``--json``) goes to standard output, warnings to standard error, figures to the folder of ``--plot``.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from . import plan_cascade, plan_ssr

if TYPE_CHECKING:
    from ..plan import Source
    from ..theory.cascade import Level


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="cascade|ssr", required=False)
    told = "the best schedule of cascades of several drafters; see 'surefoot plan cascade --help'"
    plan_cascade.add_arguments(kinds.add_parser("cascade", help=told, allow_abbrev=False))
    told = "requests that draft their answer while they think; see 'surefoot plan ssr --help'"
    plan_ssr.add_arguments(kinds.add_parser("ssr", help=told, allow_abbrev=False))
    group = parser.add_argument_group("how often drafts are accepted")
    group.add_argument(
        "--alpha", nargs="+", action="extend", type=_numbers, metavar="A", help="acceptance rate, one or several"
    )
    group.add_argument(
        "--log", metavar="FILE", help="JSON lines: a trace, objects of generate --json, or accepted and drafted; '-': input"
    )
    group.add_argument("--chances", type=_numbers, metavar="P,…", help="of trees: chance of the first, second, … child")
    group = parser.add_argument_group("what it costs")
    group.add_argument("--c", type=float, metavar="C", help="a drafted token over a pass, where every pass costs the same")
    group.add_argument("--cost", metavar="FILE", help='cost curve in JSON: as measured, or {"seconds": [of 1, of 2, … tokens]}')
    group.add_argument("-m", "--model", metavar="REF", help="the cost curve of this model, measured on this machine")
    group.add_argument(
        "--device",
        metavar="NAME=V,…",
        help="a described device: bandwidth=900GB/s,compute=150TFLOPS,overhead=0.1ms,parameters=7B,bytes=2,"
        "cache=128KB,draft_parameters=0.5B",
    )
    group.add_argument("--draft-seconds", type=float, metavar="S", help="seconds of a drafted token, with a cost curve (0)")
    group.add_argument("--context", type=int, metavar="N", help="cached tokens, with a cost curve")
    group.add_argument("--backend", default="auto", metavar="NAME", help="with --model: auto (default), openvino or torch")
    group.add_argument("--precision", default="auto", metavar="NAME", help="with --model: as in generate")
    group = parser.add_argument_group("what is planned")
    group.add_argument("--method", default="chain", metavar="NAME", help="chain (default), tree, cascade or horizontal")
    group.add_argument("--max-draft", type=int, metavar="K", help="longest draft (12); of trees the most nodes (32)")
    group.add_argument("--depth", type=int, metavar="N", help="deepest tree (8)")
    group.add_argument(
        "--level", action="append", type=_level, metavar="A,N,C", help="a level: acceptance, steps, cost; the heaviest first"
    )
    group.add_argument("--rows", type=int, default=1, metavar="N", help="requests in a batch (1)")
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    group.add_argument("--plot", metavar="DIR", help="write figures to this folder, as PNG and SVG")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers; write them as 0.5,0.7") from None


def _level(text: str) -> tuple[float, int, float]:
    try:
        alpha, steps, c = text.split(",")
        return float(alpha), int(steps), float(c)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no level; write acceptance,steps,cost as 0.8,3,0.2") from None


def run(args: argparse.Namespace) -> int:
    if args.kind is not None:
        return (plan_ssr if args.kind == "ssr" else plan_cascade).run(args)
    from ..plan import plan, read_log

    if args.plot is not None:
        from ..plan.plots import prepare

        prepare(args.plot)
    cost = _cost(args)
    asked: dict[str, Any] = {
        "alpha": None if args.alpha is None else [a for part in args.alpha for a in part],
        "log": None if args.log is None else read_log(args.log),
        "method": args.method,
        "max_draft": args.max_draft,
        "chances": args.chances,
        "depth": args.depth,
        "levels": _levels(args),
        "rows": args.rows,
    }
    if args.model is not None:
        plan(**asked, cost=lambda m: 1.0, draft_seconds=args.draft_seconds)  # what is wrong is told before a model is loaded
        cost = measured(args)
    found = plan(**asked, c=args.c, cost=cost, draft_seconds=args.draft_seconds)
    for warning in found.warnings:
        print(f"surefoot: warning: {warning}", file=sys.stderr)
    print(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False) if args.json else found.table())
    if args.plot is not None:
        written = found.plot(args.plot)
        if not args.json:
            print(f"\nfigures: {', '.join(str(path) for path in written)}")
    return 0


def _levels(args: argparse.Namespace) -> list[Level]:
    from ..theory.cascade import Level

    return [Level(*entry) for entry in args.level or ()]


def _cost(args: argparse.Namespace) -> Source | None:
    """The one curve that is asked for, but for that of a model."""
    from ..plan import described, read_cost

    given = [name for name in ("c", "cost", "model", "device") if getattr(args, name) is not None]
    if len(given) > 1:
        raise BadRequest(f"--{given[0]} and --{given[1]} both say what a pass costs; give one")
    if given in ([], ["c"]) and args.context is not None:
        raise BadRequest("--context belongs to a cost curve (--cost, --model or --device); leave it out")
    if args.context is not None and args.context < 0:
        raise BadRequest(f"--context {args.context} is not allowed; give 0 or more cached tokens")
    if args.model is None and (args.backend, args.precision) != ("auto", "auto"):
        raise BadRequest("--backend and --precision belong to --model; leave them out")
    if args.rows < 1:
        raise BadRequest(f"--rows {args.rows} is not allowed; give a number from 1 up")
    if args.cost is not None:
        return read_cost(args.cost, args.context)
    if args.device is not None:
        return described(args.device, args.context, args.rows)
    return None


def measured(args: argparse.Namespace) -> Source:
    """The curve of a model, on this machine."""
    from .. import loader
    from ..plan import of_curve
    from .terminal import progress

    with progress() as tell:
        target = loader.open_target(args.model, args.backend, precision=args.precision, progress=tell)
        return of_curve(target.calibration.cost(target.model), args.model, args.context)
