"""Options that several commands share, and what they turn into: an engine and request options.

Contract: request options are checked before a model is touched, so a typing error costs no loading.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .config import Config, track
from .request_options import MAX_TOKENS, add_request, alias, request
from .speculative import SpeculativeConfig

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..models import Progress

__all__ = [
    "MAX_TOKENS",
    "MODEL",
    "add_drafting",
    "add_model",
    "add_request",
    "engine",
    "messages",
    "prompt_for",
    "request",
]

MODEL = "smollm2-135m-instruct"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Which model runs, and how; and the file that options may stand in."""
    track(parser)
    parser.add_argument("--config", action=Config, metavar="FILE", help="a TOML file with options; the command line wins")
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
    track(parser)
    group = parser.add_argument_group("drafting (never changes the output)")
    group.add_argument(
        "--drafter",
        default="auto",
        metavar="NAME[:K=V,…]",
        help="auto (default: hybrid, and what a grammar forces), none, hybrid, ngram, suffix, recycle, lookahead, retrieval, "
        "model, layer_skip, quantized, grammar, with trained heads medusa, hydra, eagle, eagle3, early_exit, early_exit_deep, "
        "distilled, or made of others cascade, horizontal, two_exit, dytc; for models that think ssr; e.g. "
        "ngram:max_n=3,k=5, eagle:path=FOLDER, cascade:of=quantized/suffix, or several: ngram+model",
    )
    group.add_argument(
        "--controller",
        default="auto",
        metavar="NAME",
        help="auto (by measured cost, default), fixed, window, goodput, marginal, confidence, thompson, bandit, "
        "breaker (fixed, guarded)",
    )
    group.add_argument(
        "--num-speculative-tokens",
        "--draft-max",
        type=int,
        metavar="K",
        help="most drafted tokens a pass; with fixed: always K",
    )
    group.add_argument("-md", "--draft-model", metavar="REF", help="draft model, a small relative of the model")
    alias(group, "--model-draft", "draft_model")
    alias(group, "--assistant-model", "draft_model")
    group.add_argument(
        "--speculative-config",
        action=SpeculativeConfig,
        default=None,
        metavar="JSON",
        help="the same with vLLM's keys: method, num_speculative_tokens, model, prompt_lookup_max, prompt_lookup_min",
    )
    for name, what in SSR.items():
        group.add_argument(f"--ssr-{name}", type=int, metavar="N", help=f"drafter ssr: {what}")


SSR = {
    "draft-budget": "tokens of thought before the first draft (learned)",
    "draft-tokens": "most tokens of a draft (500)",
    "interval": "tokens of thought between further drafts (one draft only)",
    "max-drafts": "most drafts of a request (4, with an interval)",
    "drafts": "how many of the latest drafts are kept side by side (2)",
}
"""Options of drafter ``ssr`` that have a flag of their own."""


def drafter(args: argparse.Namespace) -> str:
    """The drafter's specification, with the options that have a flag of their own."""
    given = {name: value for name in SSR if (value := getattr(args, f"ssr_{name.replace('-', '_')}", None)) is not None}
    spec: str = args.drafter
    if not given:
        return spec
    name, _, rest = spec.partition(":")
    if name not in ("ssr", "auto") or (name == "auto" and rest):
        raise BadRequest(
            f"--ssr-{next(iter(given))} belongs to drafter 'ssr', not to {spec!r}; leave it out, or give --drafter ssr"
        )
    said = {item.partition("=")[0].replace("_", "-") for item in rest.split(",")}
    twice = next((name for name in given if name in said), None)
    if twice is not None:
        raise BadRequest(f"--ssr-{twice} is in --drafter {spec!r} too; give it once")
    return "ssr:" + ",".join([*filter(None, [rest]), *(f"{name}={value}" for name, value in given.items())])


def engine(args: argparse.Namespace, progress: Progress | None) -> Engine:
    """The engine that the options describe."""
    from .. import loader

    return loader.load(
        args.model,
        drafter(args),
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
