"""``surefoot check TARGET [DRAFT]``: what runs a model, what it takes, how a draft model fits it: by headers and tokenizers.

Weights are not loaded. Status 0: fits; 1: does not, the reasons are listed; 2: bad input.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest, VocabMismatch

if TYPE_CHECKING:
    from ..models import Capabilities, Progress
    from ..text import Codec
    from ..text.crossing import Crossing
    from .memory import MemoryPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="GGUF file, model folder, hub id or packaged name")
    parser.add_argument("draft", nargs="?", metavar="DRAFT", help="a draft model for it (also as --draft-model)")
    parser.add_argument("--draft-model", dest="draft_model", metavar="DRAFT", help=argparse.SUPPRESS)
    parser.add_argument(
        "--vocab", default="auto", metavar="WAY", help="vocabularies: auto (default), equal, intersection or universal"
    )
    parser.add_argument("--backend", default="auto", metavar="NAME", help="auto (default), openvino or torch")
    parser.add_argument("--precision", default="auto", metavar="NAME", help="auto (default), bf16, f32, fast; on torch a dtype")
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="tokens that the cache holds (default: one full context)")
    parser.add_argument("--num-speculative-tokens", "--draft-max", type=int, default=16, metavar="K", help="draft length (16)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@dataclass(frozen=True, slots=True)
class Checked:
    """One model. ``problems``: why it cannot be used."""

    name: str
    can: Capabilities
    memory: MemoryPlan
    codec: Codec
    problems: tuple[str, ...]


def run(args: argparse.Namespace) -> int:
    from ..loader import BACKENDS
    from .memory import OVERHEAD, amount, available
    from .terminal import progress

    if args.backend not in BACKENDS:
        raise BadRequest(f"unknown backend {args.backend!r}; choose {', '.join(BACKENDS)}")
    if args.num_speculative_tokens < 0 or (args.kv_tokens is not None and args.kv_tokens < 1):
        raise BadRequest("--num-speculative-tokens must be 0 or more and --kv-tokens 1 or more; correct the number")
    if args.draft is not None and args.draft_model is not None:
        raise BadRequest("the draft model is given twice (DRAFT and --draft-model); give it once")
    draft = args.draft if args.draft is not None else args.draft_model
    with progress() as tell:
        models = [_check(ref, args, tell) for ref in (args.target, draft) if ref is not None]
    problems = [p for model in models for p in model.problems]
    total = OVERHEAD + sum(model.memory.total or 0 for model in models)
    if total > available():
        problems.append(f"memory: {amount(total)} are needed, {amount(available())} are free; lower --kv-tokens")
    vocabulary = _vocabulary(models, args.vocab, problems)
    if args.json:
        print(json.dumps(_values(models, vocabulary, problems), ensure_ascii=False))
    else:
        print("\n".join(_lines(models, vocabulary, problems, available())))
    return 1 if problems else 0


def _vocabulary(models: list[Checked], way: str, problems: list[str]) -> Crossing | None:
    """How the draft can draft, if there is one."""
    from ..text.crossing import WAYS, cross

    if way not in WAYS:
        raise BadRequest(f"--vocab {way!r} is not known; give one of {', '.join(WAYS)}")
    if len(models) < 2:
        return None
    try:
        return cross(models[0].codec, models[1].codec, way).require()
    except VocabMismatch as error:
        problems.append(str(error))
        return cross(models[0].codec, models[1].codec)


def _check(ref: str, args: argparse.Namespace, tell: Progress) -> Checked:
    from ..models import describe, fetch, resolve
    from ..text import Codec
    from .memory import plan

    path = fetch(resolve(ref), tell)
    can = describe(path)
    memory = plan(path, can, args.backend, args.precision, args.kv_tokens, args.num_speculative_tokens)
    codec = Codec.load(path)
    problems = [] if can.backends else [f"{ref}: no backend runs it"]
    if can.vocab_size is not None and codec.vocab_size > can.vocab_size:
        problems.append(
            f"{ref}: the tokenizer has {codec.vocab_size} tokens, the model {can.vocab_size}; use its own tokenizer"
        )
    if can.context is not None and args.num_speculative_tokens + 1 >= can.context:
        problems.append(
            f"{ref}: a draft of {args.num_speculative_tokens} tokens fills its context of {can.context}; draft fewer"
        )
    return Checked(ref, can, memory, codec, tuple(problems))


def _lines(models: list[Checked], vocabulary: Crossing | None, problems: list[str], free: int) -> list[str]:
    from .memory import OVERHEAD, amount

    out: list[str] = []
    for role, model in zip(("target", "draft"), models, strict=False):
        can, plan = model.can, model.memory
        size = f"{can.parameters / 1e6:,.0f} M parameters" if can.parameters else "size unknown"
        out += [
            f"{role:<7} {model.name}",
            f"  model    {can.format} {can.architecture} {can.quantisation}, {size}, {can.layers} layers of {can.hidden_size}",
            f"  tokens   vocabulary {can.vocab_size} (tokenizer {model.codec.vocab_size}), context {can.context}"
            + ("" if model.codec.has_template else ", no chat template"),
            f"  runs on  {', '.join(can.backends) or 'nothing'}",
            *(f"           not {line}" for line in can.cannot),
            f"  memory   on {plan.backend} in {plan.numbers}: about {amount(plan.total)}",
            f"           weights {amount(plan.weights)}; logits of {plan.draft} drafted tokens {amount(plan.logits)}",
            f"           KV {amount(plan.kv_per_token)} a token, {amount(plan.kv)} for {plan.kv_tokens} tokens",
        ]
    total = OVERHEAD + sum(model.memory.total or 0 for model in models)
    out.append(f"memory  about {amount(total)} in all with libraries and work buffers, {amount(free)} free")
    if vocabulary is not None:
        out += _pair(models[0].can, models[1].can, vocabulary)
    out += [f"problem: {line}" for line in problems]
    out.append("does not fit" if problems else "fits")
    return out


def _pair(target: Capabilities, draft: Capabilities, vocabulary: Crossing) -> list[str]:
    """What the two have to do with each other."""
    report = vocabulary.found.report
    rows = report.padded
    padded = (
        f"; embeddings of {rows[0]} and {rows[1]} rows, padding is ignored" if None not in rows and rows[0] != rows[1] else ""
    )
    out = [f"tokens  {report.explain()}{padded}", *(f"        {line}" for line in vocabulary.lines())]
    if target.context and draft.context and draft.context < target.context:
        out.append(f"context the draft holds {draft.context} of {target.context} tokens; past that decoding is plain")
    if target.parameters and draft.parameters:
        share = draft.parameters / target.parameters
        out.append(f"size    the draft has {100 * share:.0f}% of the target's parameters")
        if share > 0.5:
            out.append("note    a draft of more than half the target's size rarely pays; the controller then decodes plainly")
    return out


def _values(models: list[Checked], vocabulary: Crossing | None, problems: list[str]) -> dict[str, Any]:
    from .memory import OVERHEAD, available

    total = OVERHEAD + sum(model.memory.total or 0 for model in models)
    found: dict[str, Any] = {"fits": not problems, "problems": problems, "memory": total, "free": available()}
    for role, model in zip(("target", "draft"), models, strict=False):
        memory = {**asdict(model.memory), "total": model.memory.total}
        found[role] = {"name": model.name, **asdict(model.can), "tokenizer_size": model.codec.vocab_size, "memory": memory}
    if vocabulary is not None:
        known = vocabulary.found
        found["vocabulary"] = {
            **asdict(known.report),
            "compatible": known.report.compatible,
            "greedy": {"way": vocabulary.greedy, "why": vocabulary.why_greedy},
            "sampled": {"way": vocabulary.sampled, "why": vocabulary.why_sampled},
            "common": known.common,
            "share": known.share,
            "covers": known.covers,
        }
    return found
