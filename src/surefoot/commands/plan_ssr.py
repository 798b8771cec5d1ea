"""``surefoot plan ssr``: what it gains that a request drafts its answer while it still thinks, and when to begin.

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
    group = parser.add_argument_group("the requests")
    group.add_argument("--thought", type=_counts, metavar="N,…", help="tokens of thought; several: equally likely lengths")
    group.add_argument("--answer", type=int, metavar="N", help="tokens of the answer")
    group.add_argument(
        "--overlap",
        type=_overlap,
        metavar="O",
        help="share of the answer that a draft foresees; or by share of the thought behind it: 0:0.2,0.5:0.6,1:0.9",
    )
    group.add_argument(
        "--recovery", type=float, default=1.0, metavar="R", help="tokens behind a difference until the draft is found again (1)"
    )
    group.add_argument("--prefix-only", action="store_true", help="the draft is left at the first difference")
    group.add_argument(
        "--tokens", type=float, default=1.0, metavar="T", help="tokens that a pass gives without ssr, by other drafters (1)"
    )
    group = parser.add_argument_group("the forks")
    group.add_argument("--draft-budget", type=int, metavar="B", help="tokens of thought before the first fork (the best)")
    group.add_argument("--draft-tokens", type=int, default=500, metavar="M", help="most tokens of a draft (500)")
    group.add_argument("--interval", type=int, metavar="I", help="tokens of thought between further forks (one fork only)")
    group.add_argument("--max-drafts", type=int, metavar="N", help="most forks of a request, with --interval (4)")
    group.add_argument("--chain", type=int, metavar="K", help="drafted tokens of a pass of the answer (the best)")
    group.add_argument("--force-tokens", type=int, default=4, metavar="N", help="tokens that end a fork's thought (4)")
    group = parser.add_argument_group("what a pass over m tokens costs (by default as much as over one)")
    group.add_argument("--cost", metavar="FILE", help='in JSON: as measured, or {"seconds": [of 1, of 2, … tokens]}')
    group.add_argument("-m", "--model", metavar="REF", help="that of this model, measured on this machine")
    group.add_argument("--device", metavar="NAME=V,…", help="that of a described device, as in plan")
    group.add_argument("--width", type=int, metavar="W", help="tokens that a row's pass has at least (1; of a model its own)")
    group.add_argument("--context", type=int, metavar="N", help="cached tokens, with one of these")
    group.add_argument("--backend", default="auto", metavar="NAME", help="with --model: auto (default), openvino or torch")
    group.add_argument("--precision", default="auto", metavar="NAME", help="with --model: as in generate")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers; write them as 200,400") from None


def _overlap(text: str) -> float | list[tuple[float, float]]:
    try:
        if ":" not in text:
            return float(text)
        points = [part.split(":") for part in text.split(",")]
        return [(float(at), float(value)) for at, value in points]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no overlap; write 0.7, or points as 0:0.2,0.5:0.6,1:0.9") from None


def run(args: argparse.Namespace) -> int:
    from ..plan import plan_ssr
    from .plan_cascade import check_curve

    words = list(getattr(args, "words", []))
    if "plan" in words and words[words.index("plan") + 1 :][:1] != ["ssr"]:
        raise BadRequest("options of 'plan ssr' stand behind the word ssr; move them there")
    for flag, value in (("--thought", args.thought), ("--answer", args.answer), ("--overlap", args.overlap)):
        if value is None:
            raise BadRequest(
                f"{flag} is missing; give --thought, --answer and --overlap, as in --thought 400 --answer 200 --overlap 0.7"
            )
    check_curve(args, "cost")
    asked: dict[str, Any] = {
        "thought": args.thought,
        "answer": args.answer,
        "overlap": args.overlap,
        "budget": args.draft_budget,
        "draft": args.draft_tokens,
        "interval": args.interval,
        "drafts": args.max_drafts,
        "recovery": args.recovery,
        "suffix": not args.prefix_only,
        "chain": args.chain,
        "tokens": args.tokens,
        "width": 1 if args.width is None else args.width,
        "force": args.force_tokens,
    }
    if args.model is not None:
        plan_ssr(**asked)  # what is wrong is told before a model is loaded
    cost, width = _cost(args)
    found = plan_ssr(**{**asked, "cost": cost, "width": width if args.width is None else args.width})
    for warning in found.warnings:
        print(f"surefoot: warning: {warning}", file=sys.stderr)
    print(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False) if args.json else found.table())
    return 0


def _cost(args: argparse.Namespace) -> tuple[Source | None, int]:
    """The curve, and the tokens that a row's pass has at least."""
    from ..plan import described, of_curve, read_cost

    if args.cost is not None:
        return read_cost(args.cost, args.context), 1
    if args.device is not None:
        return described(args.device, args.context), 1
    if args.model is None:
        return None, 1
    from .. import loader
    from .terminal import progress

    with progress() as tell:
        target = loader.open_target(args.model, args.backend, precision=args.precision, progress=tell)
        cost = of_curve(target.calibration.cost(target.model), args.model, args.context)
        return cost, target.model.traits.min_width
