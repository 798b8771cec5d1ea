"""``surefoot audit``: is the output of speculative decoding that of plain decoding, and if not, why.

Status 0: no bug; 1: a bug, or draws that are not the target's law; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .common import add_model, add_request, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..audit import Item, Report
    from ..core.params import SamplingParams
    from ..loader import Target
    from ..models import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--prompts", metavar="FILE", help="JSON lines (prompt, messages, turns or prompt_token_ids), or one a line"
    )
    group.add_argument("--suite", metavar="NAME", help="built-in prompts: quick (12, default) or standard (60)")
    group.add_argument("--generate", type=int, metavar="N", help="N random prompts")
    group.add_argument("--raw", action="store_true", help="send texts as they are, without the model's chat template")
    group = parser.add_argument_group("what is audited")
    group.add_argument(
        "--drafters",
        default="all",
        metavar="NAME[,…]",
        help="all (default), none, ngram, suffix, suffix-tree, grammar, self, model, auto, …, also NAME:K=V",
    )
    group.add_argument("-k", "--lengths", type=_lengths, default=(1, 5), metavar="K[,…]", help="draft lengths (1,5)")
    group.add_argument("-md", "--draft-model", metavar="REF", help="draft model, for the drafter model")
    group.add_argument("--rows", type=int, default=1, metavar="N", help="requests that run at the same time (1)")
    group.add_argument(
        "--samples", type=int, default=0, metavar="N", help="with a temperature: N unseeded continuations a drafter, tested"
    )
    group = parser.add_argument_group("outputs of another engine, instead of drafters")
    group.add_argument("--reference", metavar="FILE", help="JSON lines with prompts and outputs (token_ids or text)")
    group.add_argument("--candidate", metavar="FILE", help="JSON lines with outputs for the same prompts")
    group.add_argument("--dtype", default="bf16", metavar="NAME", help="numbers of that engine: bf16 (default), f16, f32")
    group.add_argument("--tolerance", type=float, default=0.0, metavar="X", help="gaps up to X logits are ties")
    add_request(parser)
    add_model(parser)
    _shorter(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    group.add_argument("--output", metavar="FILE", help="also write the JSON object to a file")


def _shorter(parser: argparse.ArgumentParser) -> None:
    """Another default than that of the commands that answer."""
    for action in parser._actions:
        if "--max-tokens" in action.option_strings:
            action.default, action.help = 64, "most new tokens (default 64)"


def _lengths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of draft lengths from 1 up; write them as 1,5")
    return found


def run(args: argparse.Namespace) -> int:
    from .terminal import progress

    params = request(args)
    _check(args, params)
    given = _prompts(args)
    if args.output is not None:
        _try_to_write(args.output)
    with progress() as tell:
        report = _audit(args, params, given, tell)
    values = report.to_dict()
    if args.output is not None:
        with open(args.output, "w", encoding="utf-8") as file:
            json.dump(values, file, ensure_ascii=False, indent=1)
    print(json.dumps(values, ensure_ascii=False) if args.json else report.table())
    return 0 if report.ok else 1


def _check(args: argparse.Namespace, params: SamplingParams) -> None:
    """Everything that can be known before a model is loaded."""
    from ..audit import SUITES
    from ..audit.pairs import BITS

    if (args.reference is None) != (args.candidate is None):
        raise BadRequest("--reference and --candidate belong together; give both")
    sources = [n for n in ("prompts", "suite", "generate", "reference") if getattr(args, n) is not None]
    if len(sources) > 1:
        raise BadRequest(f"--{sources[0]} and --{sources[1]} are two sources of prompts; give one")
    if args.suite is not None and args.suite not in SUITES:
        raise BadRequest(f"unknown suite {args.suite!r}; choose one of {', '.join(SUITES)}")
    if args.generate is not None and args.generate < 1:
        raise BadRequest(f"--generate {args.generate} is not allowed; give a number from 1 up")
    if args.rows < 1 or args.samples < 0:
        raise BadRequest("--rows must be 1 or more and --samples 0 or more; correct the number")
    if args.samples and params.temperature == 0:
        raise BadRequest("--samples needs draws; give --temperature, or leave it out")
    if args.dtype not in BITS or not args.tolerance >= 0:
        raise BadRequest(f"--dtype must be one of {', '.join(BITS)} and --tolerance 0 or more; correct it")
    if args.reference is not None and params.temperature > 0:
        raise BadRequest("two outputs can be compared where decoding is greedy; leave --temperature out")


def _prompts(args: argparse.Namespace) -> list[Item] | None:
    """The prompts, as far as they can be had without the model."""
    from ..audit import SUITES, read

    if args.prompts is not None:
        return read(args.prompts)
    if args.reference is not None or args.generate is not None:
        return None
    return SUITES[args.suite or "quick"]()


def _audit(args: argparse.Namespace, params: SamplingParams, given: list[Item] | None, tell: Progress) -> Report:
    from .. import loader
    from ..audit import audit, audit_pairs, generated

    def open_target(ref: str, kv_tokens: int | None, **more: Any) -> Target:
        return loader.open_target(ref, args.backend, precision=args.precision, kv_tokens=kv_tokens, progress=tell, **more)

    label: Callable[[str], None] = lambda text: tell(f"audit: {text}", 0, None)  # noqa: E731
    named = [name for name in _names(args.drafters) if name.partition(":")[0] in loader.DRAFTERS]
    target = open_target(args.model, args.kv_tokens, **loader.needs(named, args.model, tell))
    common: dict[str, Any] = {"raw": args.raw, "system": args.system, "tell": label}
    if args.reference is not None:
        return audit_pairs(target, args.reference, args.candidate, params, dtype=args.dtype, tolerance=args.tolerance, **common)
    if given is None:
        seed = 0 if args.seed is None else args.seed
        given = generated(args.generate, seed, min(target.codec.vocab_size, target.model.traits.vocab_size))
    return audit(
        target,
        given,
        params,
        drafters=_names(args.drafters),
        lengths=args.lengths,
        draft=None if args.draft_model is None else open_target(args.draft_model, None),
        samples=args.samples,
        rows=args.rows,
        **common,
    )


def _names(text: str) -> list[str]:
    """Names at commas, except commas between a drafter's own options: ``ngram:max_n=3,min_n=2,suffix``."""
    found: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        if "=" in part and ":" not in part and found:
            found[-1] += f",{part}"
        elif part:
            found.append(part)
    if not found:
        raise BadRequest("--drafters is empty; give all, none or names")
    return found


def _try_to_write(path: str) -> None:
    """Told at once, not after an hour."""
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise BadRequest(f"cannot write to {path} ({error.strerror}); choose another file") from None
