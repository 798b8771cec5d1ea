"""Options that several commands share, and what they turn into: an engine and request options.

Contract: request options are checked before a model is touched, so a typing error costs no loading.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..core.params import SamplingParams
    from ..models import Progress

MODEL = "smollm2-135m-instruct"
MAX_TOKENS = 512


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model runs, and how."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m", "--model", default=MODEL, metavar="REF", help=f"GGUF file, model folder, hub id, or {MODEL} (default)"
    )
    group.add_argument("--backend", default="auto", metavar="NAME", help="auto (default), openvino or torch")
    group.add_argument(
        "--precision", default="auto", metavar="NAME", help="auto (default), bf16, f32 or fast; on torch a dtype"
    )
    group.add_argument("--kv-tokens", type=int, metavar="N", help="tokens that the cache holds")


def add_drafting(parser: argparse.ArgumentParser) -> None:
    """How it is made faster; none of these changes the output."""
    group = parser.add_argument_group("drafting (never changes the output)")
    group.add_argument(
        "--drafter",
        default="auto",
        metavar="NAME[:K=V,…]",
        help="auto (default), none, ngram, suffix or model, e.g. ngram:max_n=3,k=5",
    )
    group.add_argument("--controller", default="auto", metavar="NAME", help="auto (by measured cost, default), fixed or window")
    group.add_argument(
        "--num-speculative-tokens",
        "--draft-max",
        type=int,
        metavar="K",
        help="most drafted tokens a pass; with fixed: always K",
    )
    group.add_argument("-md", "--draft-model", metavar="REF", help="draft model, a small relative of the model")


def add_request(parser: argparse.ArgumentParser) -> None:
    """What is asked of the model."""
    group = parser.add_argument_group("request")
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"most new tokens (default {MAX_TOKENS})"
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K most probable tokens (0: all)")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the most probable tokens of mass P")
    group.add_argument(
        "--min-p", type=float, default=0.0, metavar="P", help="least probability, relative to the most probable token"
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same output")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text (repeatable)")
    group.add_argument("--stop-token-ids", type=_ids, default=(), metavar="ID[,ID…]", help="tokens that end the output")
    group.add_argument("--ignore-eos", action="store_true", help="go on past the model's end token")
    group.add_argument("--verification", default="auto", metavar="RULE", help="auto (default), greedy, coupled or ratio")


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids; write them as 1,2") from None


def request(args: argparse.Namespace) -> SamplingParams:
    """The request options, checked."""
    from ..core.params import SamplingParams

    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        stop=tuple(args.stop),
        stop_token_ids=args.stop_token_ids,
        ignore_eos=args.ignore_eos,
        verification=args.verification,
    )


def engine(args: argparse.Namespace, progress: Progress | None) -> Engine:
    """The engine that the options describe."""
    from .. import loader

    return loader.load(
        args.model,
        args.drafter,
        args.backend,
        controller=args.controller,
        num_speculative_tokens=args.num_speculative_tokens,
        draft_model=args.draft_model,
        precision=args.precision,
        kv_tokens=args.kv_tokens,
        progress=progress,
    )


def messages(text: str, system: str | None, before: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
    """A conversation that ends with the user's ``text``."""
    start = [{"role": "system", "content": system}] if system is not None else []
    return [*start, *map(dict, before), {"role": "user", "content": text}]


def prompt_for(engine: Engine, text: str, system: str | None, raw: bool) -> Any:
    """The text itself (``raw``, or the model has no chat template), or a conversation of one message."""
    template = bool(getattr(engine.codec, "has_template", False))
    if system is not None and (raw or not template):
        why = "--raw sends the text alone" if raw else "the model has no chat template"
        raise BadRequest(f"--system cannot be honoured: {why}; leave it out or put it into the prompt")
    return messages(text, system) if template and not raw else text
