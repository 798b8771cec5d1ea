"""``surefoot plan cascade``: what cascades of drafters gain, and the best schedule.

The table (or ``--json``) goes to standard output, warnings to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest

if TYPE_CHECKING:
    from ..plan import Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(parser=parser)
    group = parser.add_argument_group("the drafters, the heaviest first")
    group.add_argument("--alpha", type=_numbers, metavar="A1,A2,…", help="how often the target accepts the tokens of each")
    group.add_argument(
        "--cost",
        type=_numbers,
        metavar="C1,C2,…",
        help="one pass of each over a target pass; of one that makes no passes, one drafted token",
    )
    group.add_argument(
        "--inner-alpha",
        type=_numbers,
        metavar="A,…",
        help="how often each accepts the next one's tokens; or all pairs: 1-2, 1-3, …, 2-3, …",
    )
    group.add_argument("--names", type=_words, metavar="NAME,…", help="what to call them (1, 2, …)")
    group.add_argument("--measured", metavar="FILE", help="all of this from 'surefoot tune --cascade --json', '-': input")
    group = parser.add_argument_group("what a target pass over m tokens costs (by default as much as over one)")
    group.add_argument("--curve", metavar="FILE", help='in JSON: as measured, or {"seconds": [of 1, of 2, … tokens]}')
    group.add_argument("-m", "--model", metavar="REF", help="that of this model, measured on this machine")
    group.add_argument("--device", metavar="NAME=V,…", help="that of a described device, as in plan")
    group.add_argument(
        "--review-curve",
        action="append",
        metavar="FILE",
        help="the same of the first drafter's passes, then of the second's, …",
    )
    group.add_argument("--context", type=int, metavar="N", help="cached tokens, with one of these")
    group.add_argument("--backend", default="auto", metavar="NAME", help="with --model: auto (default), openvino or torch")
    group.add_argument("--precision", default="auto", metavar="NAME", help="with --model: as in generate")
    group = parser.add_argument_group("what is planned")
    group.add_argument("--steps", type=_counts, metavar="N,…,K", help="a vertical cascade: reviews of each, tokens of the last")
    group.add_argument("--lengths", type=_counts, metavar="K1,K2,…", help="a horizontal cascade: drafted tokens of each")
    group.add_argument("--search", action="store_true", help="look for the best schedule (default, unless one is given)")
    group.add_argument("--horizontal", action="store_true", help="look for horizontal cascades only")
    group.add_argument("--longest", type=int, metavar="K", help="longest draft of a schedule that is looked for (48)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers; write them as 0.8,0.4") from None


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers; write them as 5,3") from None


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    from ..plan import plan_cascade

    words = list(getattr(args, "words", []))
    if "plan" in words and words[words.index("plan") + 1 :][:1] != ["cascade"]:
        raise BadRequest("options of 'plan cascade' stand behind the word cascade; move them there")
    check_curve(args, "curve")
    asked = _asked(args)
    if args.model is not None:
        plan_cascade(**asked)  # what is wrong is told before a model is loaded
    cost = _cost(args)
    found = plan_cascade(**(asked if cost is None else asked | {"cost": cost}))
    for warning in found.warnings:
        print(f"surefoot: warning: {warning}", file=sys.stderr)
    print(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False) if args.json else found.table())
    return 0


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of the plan, but for a curve that is given."""
    from ..plan import read_cost, read_measured

    asked: dict[str, Any] = {"steps": args.steps, "lengths": args.lengths, "search": True if args.search else None}
    asked |= {"only_horizontal": args.horizontal, "longest": args.longest}
    own = {"--alpha": args.alpha, "--cost": args.cost, "--inner-alpha": args.inner_alpha, "--names": args.names}
    own["--review-curve"] = args.review_curve
    if args.measured is not None:
        twice = next((flag for flag, value in own.items() if value is not None), None)
        if twice is not None:
            raise BadRequest(f"--measured and {twice} both describe the drafters; give one")
        return asked | read_measured(args.measured)
    for flag, what in (("--alpha", "how often the target accepts each drafter's tokens"), ("--cost", "what the drafters cost")):
        if own[flag] is None:
            raise BadRequest(f"nothing says {what}; give {flag}, or --measured")
    asked |= {"alphas": args.alpha, "costs": args.cost, "inner": args.inner_alpha or (), "names": args.names or ()}
    return asked | {"reviews": [read_cost(path) for path in args.review_curve or ()]}


def check_curve(args: argparse.Namespace, curve: str) -> None:
    """Options about the cost of passes that do not go together; ``curve``: the one that names a file."""
    given = [name for name in (curve, "model", "device") if getattr(args, name) is not None]
    if len(given) > 1:
        raise BadRequest(f"--{given[0]} and --{given[1]} both say what a pass costs; give one")
    if not given and args.context is not None:
        raise BadRequest(f"--context belongs to a cost curve (--{curve}, --model or --device); leave it out")
    if args.context is not None and args.context < 0:
        raise BadRequest(f"--context {args.context} is not allowed; give 0 or more cached tokens")
    if args.model is None and (args.backend, args.precision) != ("auto", "auto"):
        raise BadRequest("--backend and --precision belong to --model; leave them out")


def _cost(args: argparse.Namespace) -> Source | None:
    from ..plan import described, read_cost

    if args.curve is not None:
        return read_cost(args.curve, args.context)
    if args.device is not None:
        return described(args.device, args.context)
    if args.model is None:
        return None
    from .plan import measured

    return measured(args)
