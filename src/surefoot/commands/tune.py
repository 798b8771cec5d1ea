"""``surefoot tune MODEL``: measure, predict, measure the best, and write a configuration.

Status 0: written; 1: written, but some run had other tokens than plain decoding; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .common import add_model, add_request, request

if TYPE_CHECKING:
    from ..audit import Item
    from ..core.params import SamplingParams
    from ..loader import Target
    from ..models import Progress
    from ..tune import Tuning

_TOKENS, _QUICK_TOKENS = 96, 48
_KINDS = ("chat", "code", "json", "copying", "list", "long")
"""Kinds of built-in prompts that stand for real use; the others are there to break engines."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", nargs="?", metavar="MODEL", help="the model, as with -m")
    group = parser.add_argument_group("prompts")
    group.add_argument(
        "--prompts", metavar="FILE", help="JSON lines (prompt, messages, turns or prompt_token_ids), or one a line"
    )
    group.add_argument("--raw", action="store_true", help="send texts as they are, without the model's chat template")
    group = parser.add_argument_group("what is tuned")
    group.add_argument(
        "--drafters", default="all", metavar="NAME[,…]", help="all (default): ngram, suffix, auto, and model with -md"
    )
    group.add_argument("--cascade", action="store_true", help="tune cascades, against the best single drafter")
    group.add_argument(
        "--middles",
        metavar="NAME[,…]",
        help="with --cascade, drafters that review (quantized, layer_skip, the model's trained heads, and model with -md)",
    )
    group.add_argument("--bottoms", metavar="NAME[,…]", help="with --cascade, drafters that draft for them (suffix,ngram)")
    group.add_argument("-md", "--draft-model", metavar="REF", help="draft model, for the drafter model")
    group.add_argument("--longest", type=int, default=12, metavar="K", help="longest draft that is considered (12)")
    group.add_argument("--quick", action="store_true", help="fewer prompts, shorter answers, two runs of each")
    add_request(parser)
    _own_default(parser)
    add_model(parser)
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", default="surefoot.toml", metavar="FILE", help="the configuration (surefoot.toml)")
    group.add_argument("--force", action="store_true", help="overwrite it")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the table")


def _own_default(parser: argparse.ArgumentParser) -> None:
    """Another default than that of the commands that answer."""
    for action in parser._actions:
        if "--max-tokens" in action.option_strings:
            action.default, action.help = None, f"most new tokens (default {_TOKENS}, with --quick {_QUICK_TOKENS})"


def run(args: argparse.Namespace) -> int:
    from .terminal import progress

    if args.max_tokens is None:
        args.max_tokens = _QUICK_TOKENS if args.quick else _TOKENS
    params = request(args)
    model = _check(args)
    items = _prompts(args)
    _writable(args.output, args.force)
    with progress() as tell:
        target, precision, times = _target(args, model, tell)
        tuning = _tune(args, target, precision, items, params, tell)
    text = _config(args, tuning, model, precision, _notes(target, params, items, args, times))
    with open(args.output, "w", encoding="utf-8") as file:
        file.write(text)
    if args.json:
        found = {**tuning.to_dict(), "config": args.output, "plain_pass_seconds_by_precision": times}
        print(json.dumps(found, ensure_ascii=False))
    else:
        print(f"{tuning.table()}\nwritten: {args.output}; use it with: surefoot generate --config {args.output}")
    return 0 if tuning.ok else 1


def _check(args: argparse.Namespace) -> str:
    """Everything that can be known before a model is loaded; returns the model's reference."""
    from ..drafter_spec import parse
    from ..loader import DRAFTERS

    if args.reference is not None and args.model != args.parser.get_default("model") and args.model != args.reference:
        raise BadRequest(f"the model is given twice ({args.reference} and {args.model}); give one")
    if args.longest < 1:
        raise BadRequest(f"--longest {args.longest} is not allowed; give a whole number from 1 up")
    _check_cascade(args)
    for name in _names(args) or ():
        [kind, *more] = [spec.name for spec in parse(name, list(DRAFTERS))[0]]
        if more:
            raise BadRequest(f"drafter {name!r} cannot be tuned; name its drafters one by one")
        if kind == "none" or kind not in ("auto", *DRAFTERS):
            raise BadRequest(f"drafter {name!r} cannot be tuned; plain decoding is measured anyway")
        if kind == "model" and args.draft_model is None:
            raise BadRequest("drafter 'model' needs a draft model; give -md REF")
    return str(args.reference or args.model)


def _check_cascade(args: argparse.Namespace) -> None:
    from ..cascades import MIDDLES
    from ..drafter_spec import choose, parse
    from ..registry import DRAFTERS, UNMERGED

    if not args.cascade:
        if args.middles is not None or args.bottoms is not None:
            raise BadRequest("--middles and --bottoms belong to --cascade; add it, or leave them out")
        return
    if args.drafters != "all":
        raise BadRequest("--drafters names single drafters; with --cascade give --middles and --bottoms")
    bottoms = [name for name in DRAFTERS if name not in (*UNMERGED, *MIDDLES)]
    for flag, able in (("middles", list(MIDDLES)), ("bottoms", bottoms)):
        for name in _listed(getattr(args, flag)) or ():
            [kind, *more] = [spec.name for spec in parse(name, [*able, "none"])[0]]
            if more or kind not in able:
                raise BadRequest(f"--{flag}: {name!r} cannot be one; {choose(kind, able)}")
            if kind == "model" and args.draft_model is None:
                raise BadRequest("--middles model needs a draft model; give -md REF")


def _listed(text: str | None) -> list[str] | None:
    from .audit import _names as split

    return None if text is None else split(text)


def _names(args: argparse.Namespace) -> list[str] | None:
    """``None``: all that can run. Commas between a drafter's own options do not separate names."""
    if args.drafters == "all":
        return None
    return _listed(args.drafters)


def _prompts(args: argparse.Namespace) -> list[Item]:
    from ..audit import SUITES, read

    if args.prompts is not None:
        found = read(args.prompts)
        return found[:4] if args.quick else found
    count = dict.fromkeys(_KINDS[:4] if args.quick else _KINDS, 0)
    found = []
    for item in SUITES["standard"]():
        if item.kind in count and count[item.kind] < (1 if args.quick else 2):
            count[item.kind] += 1
            found.append(item)
    return found


def _writable(path: str, force: bool) -> None:
    """Told at once, not after minutes."""
    if os.path.exists(path) and not force:
        raise BadRequest(f"{path} exists; choose another file with --output, or overwrite it with --force")
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise BadRequest(f"cannot write to {path}; choose another file with --output")


def _target(args: argparse.Namespace, model: str, tell: Progress) -> tuple[Target, str, dict[str, float]]:
    """The loaded model, the precision to configure, and what was measured of each."""
    from .. import loader
    from .memory import available

    named = [
        name for name in (*(_names(args) or ()), *(_listed(args.middles) or ())) if name.partition(":")[0] in loader.DRAFTERS
    ]
    needs = loader.needs(named, model, tell)

    def open_in(precision: str) -> Target:
        return loader.open_target(model, args.backend, precision=precision, kv_tokens=args.kv_tokens, progress=tell, **needs)

    target = open_in(args.precision)
    if args.precision != "auto" or args.quick or _size(target) * 6 > available():
        return target, args.precision, {}
    from ..tune.precision import compare

    tell("tune: precisions", 0, None)
    return compare(target, open_in)


def _size(target: Target) -> int:
    """Bytes of the model's files."""
    path = target.path
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def _tune(
    args: argparse.Namespace, target: Target, precision: str, items: list[Item], params: SamplingParams, tell: Progress
) -> Tuning:
    from .. import loader
    from ..tune import tune, tune_cascade

    draft = None
    if args.draft_model is not None:
        draft = loader.open_target(args.draft_model, args.backend, precision=precision, progress=tell)
    prompts = [item.tokens(target.codec, args.raw, args.system) for item in items]
    asked: dict[str, Any] = {
        "draft": draft,
        "longest": args.longest,
        "repeats": 2 if args.quick else 3,
        "most": 2 if args.quick else 3,
        "tell": lambda label: tell(f"tune: {label}", 0, None),
    }
    if not args.cascade:
        return tune(target, prompts, params, drafters=_names(args), **asked)
    if args.bottoms is not None:
        asked["bottoms"] = _listed(args.bottoms)
    return tune_cascade(target, prompts, params, middles=_listed(args.middles), **asked)


def _config(args: argparse.Namespace, tuning: Tuning, model: str, precision: str, notes: Sequence[str]) -> str:
    from ..tune.toml import config

    values: dict[str, Any] = {"model": model}
    if args.backend != "auto":
        values["backend"] = args.backend
    if precision != "auto":
        values["precision"] = precision
    if args.kv_tokens is not None:
        values["kv-tokens"] = args.kv_tokens
    return config(tuning, values, args.draft_model, list(notes))


def _notes(
    target: Target, params: SamplingParams, items: Sequence[Item], args: argparse.Namespace, times: dict[str, float]
) -> list[str]:
    from .. import __version__
    from ..calibrate import machine

    traits = target.model.traits
    source = "built-in" if args.prompts is None else os.path.basename(args.prompts)
    law = "greedy" if params.temperature == 0 else f"temperature {params.temperature:g}"
    out = [
        f"surefoot tune {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        machine(),
        f"{traits.name}, {traits.dtype} on {traits.device}",
        f"{len(items)} prompts ({source}), up to {params.max_tokens} tokens, {law}",
    ]
    if times:
        out.append("plain pass: " + ", ".join(f"{name} {1e3 * s:.2f} ms" for name, s in times.items()))
    return out
