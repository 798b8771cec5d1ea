"""Request options on the command line: every field of :class:`SamplingParams` that a terminal can say.

Contract: checked before a model is touched. Names are those of the fields; well-known other names of exactly the same meaning
are taken too.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from .config import ONE_OF, track

if TYPE_CHECKING:
    from ..core.params import SamplingParams

MAX_TOKENS = 512
_FIELDS = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "seed", "n", "stop", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output", "logit_bias", "bad_words", "bad_words_ids", "allowed_token_ids", "constrain_after",
    "thinking_budget", "thinking_start", "thinking_end", "logprobs", "echo", "verification",
)  # fmt: skip
"""Fields whose option has their name and their form."""


def add_request(parser: argparse.ArgumentParser) -> None:
    """What is asked of the model."""
    track(parser)
    group = parser.add_argument_group("request")
    add = group.add_argument
    add("--system", metavar="TEXT", help="system message")
    add("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help=f"most new tokens (default {MAX_TOKENS})")
    alias(group, "--max-new-tokens", "max_tokens", int)
    add("--min-tokens", type=int, default=0, metavar="N", help="no end before N tokens")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default)")
    alias(group, "--temp", "temperature", float)
    add("--top-k", type=int, default=0, metavar="K", help="draw from the K most probable tokens (0: all)")
    add("--top-p", type=float, default=1.0, metavar="P", help="draw from the most probable tokens of mass P")
    add("--min-p", type=float, default=0.0, metavar="P", help="least probability, relative to the most probable token")
    add("--typical-p", type=float, default=1.0, metavar="P", help="draw from the locally typical tokens of mass P")
    add(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="over 1: tokens of prompt and output get less probable",
    )
    add("--presence-penalty", type=float, default=0.0, metavar="X", help="-2 to 2, off the logits of tokens of the output")
    add("--frequency-penalty", type=float, default=0.0, metavar="X", help="-2 to 2, off these logits for each occurrence")
    add("--logit-bias", action="append", type=_biases, metavar="ID=X[,…]", help="add X to a token's logit (repeatable)")
    add("--allowed-token-ids", type=_ids, metavar="ID[,ID…]", help="no other tokens than these")
    add("--bad-word", dest="bad_words", action="append", metavar="TEXT", help="never write this text (repeatable)")
    add("--bad-word-ids", dest="bad_words_ids", action="append", type=_ids, metavar="ID[,ID…]",
        help="never this sequence of tokens (repeatable)")  # fmt: skip
    add("--seed", type=int, metavar="N", help="the same seed gives the same output")
    add("-n", "--n", type=int, default=1, metavar="N", help="that many answers; answer i uses seed + i")
    add("--stop", action="append", metavar="TEXT", help="end before this text (repeatable)")
    add("--stop-token-ids", type=_ids, default=(), metavar="ID[,ID…]", help="tokens that end the output")
    add("--include-stop-str-in-output", action="store_true", help="keep the text that ended the output")
    add("--ignore-eos", action="store_true", help="go on past the model's end token")
    add("--thinking-budget", type=int, metavar="N", help="most tokens of thinking before its end is forced")
    add("--thinking-start", metavar="TEXT", help="where thinking begins (<think>)")
    add("--thinking-end", metavar="TEXT", help="where thinking ends (</think>)")
    add("--logprobs", nargs="?", const=True, type=_count, metavar="N",
        help="log-probabilities of the tokens, and of the N most probable ones")  # fmt: skip
    add("--echo", action="store_true", help="begin the text with the prompt")
    add("--verification", default="auto", metavar="RULE",
        help="auto (default), greedy, coupled, ratio, block, traversal or kseq")  # fmt: skip
    group = parser.add_argument_group("request: what the output must look like (give one)")
    add = group.add_argument
    add("--json-object", action="store_true", help="some JSON object")
    add("--json-schema", type=_schema, metavar="FILE|JSON", help="JSON of this schema")
    add("--regex", metavar="PATTERN", help="text that matches")
    add("--grammar", metavar="FILE|TEXT", help="text of this grammar (EBNF with ::=)")
    add("--choice", action="append", metavar="TEXT", help="one of these texts (repeatable)")
    add("--constrain-after", metavar="TEXT", help="only after this text, such as </think>")


def alias(group: argparse._ArgumentGroup, name: str, dest: str, type: Any = None) -> None:
    """Another name of an option, not told in the help."""
    group.add_argument(name, dest=dest, type=type, help=argparse.SUPPRESS)


def request(args: argparse.Namespace) -> SamplingParams:
    """The request options, checked."""
    from ..core.params import SamplingParams

    options = {name: value for name in _FIELDS if (value := getattr(args, name)) is not None}
    if "logit_bias" in options:
        options["logit_bias"] = tuple(pair for pairs in options["logit_bias"] for pair in pairs)
    return SamplingParams(structured_outputs=_structure(args), **options)


def _structure(args: argparse.Namespace) -> Any:
    """vLLM's ``structured_outputs``."""
    given = [name for name in ONE_OF[1] if getattr(args, name) not in (None, False)]
    if len(given) > 1:
        first, second = ("--" + name.replace("_", "-") for name in given[:2])
        raise BadRequest(f"{first} and {second} both say what the output looks like; give one")
    if args.json_schema is not None:
        text = args.json_schema
        written = text.lstrip().startswith("{") or text.strip() in ("true", "false")
        return {"json": text if written else _file("--json-schema", text, "a schema in JSON")}
    if args.grammar is not None:
        written = "::=" in args.grammar
        return {"grammar": args.grammar if written else _file("--grammar", args.grammar, "a grammar with ::=")}
    if args.regex is not None:
        return {"regex": args.regex}
    if args.choice is not None:
        return {"choice": args.choice}
    return {"json_object": True} if args.json_object else None


def _file(option: str, path: str, other: str) -> str:
    if not os.path.exists(path):
        raise BadRequest(f"{option}: {path[:80]!r} is neither a file nor {other}; check it")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{option}: cannot read {path} ({error}); give a file in UTF-8") from None


# Types of option values. They also take what a configuration file has in their place.


def _ids(given: Any) -> tuple[int, ...]:
    items: list[Any] = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [given, None]
    try:
        if any(isinstance(item, bool) or not isinstance(item, int | str) for item in items):
            raise ValueError
        return tuple(int(item) for item in items)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{given!r} is not a list of token ids; write them as 1,2") from None


def _biases(given: Any) -> tuple[tuple[int, float], ...]:
    """``ID=X[,ID=X…]``, or one pair."""
    pairs = [part.split("=") for part in given.split(",")] if isinstance(given, str) else [given]
    try:
        return tuple((int(token), float(bias)) for token, bias in pairs)
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{given!r} is not a bias; write ID=X, such as 42=-100") from None


def _count(given: Any) -> int:
    if isinstance(given, int) or (isinstance(given, str) and given.isdecimal() and given.isascii()):
        return int(given)
    raise argparse.ArgumentTypeError(f"{given!r} is not a number; write --logprobs N, or put the prompt before --logprobs")


def _schema(given: Any) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise argparse.ArgumentTypeError("give a file, a text in JSON or a table")
    return json.dumps(given, ensure_ascii=False)
