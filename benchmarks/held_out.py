"""Acceptance of trained heads on captured text that they were not trained on, greedy documents and drawn ones apart.

A document counts as greedy if all its answer is what the target finds likeliest, place by place; the head is asked at every
place of it, not only where an engine would draft.

    python benchmarks/held_out.py --data DIR [--seed 0] HEAD_FOLDER [HEAD_FOLDER ...]

DIR is the folder of text that the heads were trained on (``surefoot train capture``), the seed that of their training.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from provenance import write

from surefoot.heads.open import open_head
from surefoot.loader import open_target
from surefoot.models import DEFAULT
from surefoot.train.evaluate import evaluate, tau
from surefoot.train.recipes import recipe_class
from surefoot.train.run import shape_of
from surefoot.train.shards import Shards
from surefoot.train.windows import Windows, split

SAME = 0.98
"""Share of an answer's tokens that must be the target's likeliest: numerics differ a little between passes."""


def greedy(shards: Shards, documents: list[int], shape: Any) -> list[int]:
    """Those documents whose answers are greedy."""
    found = []
    for i in documents:
        own = shards.document(i, (shape.last,))
        begin = max(own.answer, 1)
        logits = own.hidden[shape.last][begin - 1 : -1].float() @ shape.ends.head.T
        said = own.tokens[begin:].long()
        if float((logits.argmax(-1) == said).float().mean()) >= SAME:
            found.append(i)
    return found


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heads", nargs="+", type=Path)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="held_out", help="results/NAME.json; empty: nothing is written")
    args = parser.parse_args()
    target = open_target(args.model)
    torch.set_num_threads(2)
    shards = Shards(args.data)
    _, held = split(shards, args.seed)
    figures: dict[str, Any] = {"documents_held_out": len(held)}
    for folder in args.heads:
        card = json.loads((folder / "card.json").read_text("utf-8"))
        kind, module = open_head(folder, target.model.ends(), target.model.traits.n_layers)
        ids = getattr(module, "draft_ids", None)
        shape, _ = shape_of(target, shards, target.model.traits.vocab_size if ids is None else len(ids))
        recipe = recipe_class(card["kind"])(**card["recipe"])
        likeliest = greedy(shards, held, shape)
        own: dict[str, Any] = {"kind": kind}
        for name, chosen in (("all", held), ("greedy", likeliest), ("drawn", sorted({*held} - {*likeliest}))):
            windows = Windows(shards, chosen, sorted({*recipe.taps(shape.n_layers), shape.last}), batch_tokens=2048)
            _, acceptance = evaluate(recipe, module, shape, windows)
            own[name] = {"documents": len(chosen), "acceptance": acceptance, "tau": tau(acceptance)}
            told = " ".join(f"{a:.3f}" for a in acceptance)
            print(f"{folder.name:12s} {name:7s} {len(chosen):4d} documents  {told}  tau {own[name]['tau']:.3f}", flush=True)
        figures[folder.name] = own
    if args.name:
        print(f"written: {write(args.name, figures)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
