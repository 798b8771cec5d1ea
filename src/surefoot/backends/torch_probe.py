"""Two checks of a torch target: against the model's own full pass (at construction), and against itself (the probe)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.protocols import InvarianceReport, Need, Slot, TargetModel
from ..core.tree import DraftTree, Forest
from ..errors import BackendError, Unsupported

if TYPE_CHECKING:
    from .torch import TorchModel

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 16)
CONTEXT = 504
"""Committed tokens before the probed ones: the probed ones reach over a step of the padded context length."""
TOLERANCE = {"float32": 1e-3, "float64": 1e-6}
"""Of the spread of the logits; half precisions get ``LOOSE``. A mask that is not honoured errs by far more."""
LOOSE = 0.1


def _score(target: TargetModel, slots: Sequence[Slot], trees: Sequence[DraftTree]) -> list[Tensor]:
    forest = Forest.pack(trees, min_width=target.traits.min_width)
    logits = target.score(slots, forest, Need()).logits.clone()
    return list(logits.split([len(t) for t in trees]))


def _chain(target: TargetModel, slot: Slot, tokens: Sequence[int], chunk: int) -> Tensor:
    """Logits [T, V] of the tokens, scored and committed chunk by chunk."""
    out = []
    for i in range(0, len(tokens), chunk):
        part = tokens[i : i + chunk]
        out += _score(target, [slot], [DraftTree.chain(part)])
        target.commit([slot], [range(len(part))])
    return torch.cat(out)


def _tree(tokens: Sequence[int], vocab_size: int) -> tuple[DraftTree, list[int]]:
    """The tokens as a path with a stray sibling beside every node but the first, and the path's nodes."""
    path, ids, parents = [0], [tokens[0]], [-1]
    for token in tokens[1:]:
        ids += [(token + 1) % vocab_size, token]
        parents += [path[-1], path[-1]]
        path.append(len(ids) - 1)
    source = torch.zeros(len(ids), dtype=torch.int16)
    return DraftTree(torch.tensor(ids), torch.tensor(parents), None, source), path


def compare_with_full_pass(target: TorchModel) -> int:
    """Refuse a model that does not honour masks and positions in a ragged tree pass; returns the width of its logits.

    Two rows of different length; the logits along a tree's path, and after its commit, must be those of
    the model's own pass over the same tokens without cache.
    """
    model, traits = target.model, target.traits
    vocab = int(model.get_input_embeddings().weight.shape[0])
    tokens = [(3 + 7 * i) % vocab for i in range(min(9, traits.max_context))]
    cut = max(1, len(tokens) - 4)
    prompt, path_tokens = tokens[:cut], tokens[cut:-1] or tokens[cut:]
    if not path_tokens or traits.max_nodes < 2 * len(path_tokens) or traits.max_nodes < cut:
        raise Unsupported("the context or max_nodes is too small to decode with; raise max_nodes to at least 16")
    slots = target.open(min(2, target.max_rows))
    trees = [DraftTree.chain(prompt[: cut - b]) for b in range(len(slots))]
    try:
        _score(target, slots, trees)
        target.commit(slots, [range(len(t)) for t in trees])
        chain = DraftTree.chain(path_tokens), list(range(len(path_tokens)))
        tree, path = _tree(path_tokens, vocab) if traits.tree else chain
        scores = _score(target, slots, [tree, DraftTree.chain(prompt[-1:])][: len(slots)])
        target.commit(slots[:1], [path])
        last = tokens[cut + len(path_tokens) :][:1]
        mine = [scores[0][path], *(_score(target, slots[:1], [DraftTree.chain(last)]) if last else [])]
        ids = torch.tensor([tokens[: cut + len(path_tokens) + len(last)]], device=model.device)
        with torch.no_grad():
            full = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].float()
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as e:
        if isinstance(e, Unsupported):
            raise
        line = (str(e).strip().splitlines() or [type(e).__name__])[0]
        raise Unsupported(
            f"the torch backend cannot run '{model.config.model_type}' with 4-D masks and its own cache ({line}); "
            "choose another model or backend"
        ) from e
    finally:
        target.close(slots)
    wrong = float((torch.cat(mine) - full[cut:]).abs().max())
    allowed = TOLERANCE.get(traits.dtype, LOOSE) * float(full.max() - full.min())
    if not wrong <= max(allowed, 1e-6):
        raise Unsupported(
            f"the torch backend cannot run '{model.config.model_type}': with a tree mask its logits are off by "
            f"{wrong:.2g}; choose another model or backend"
        )
    return int(full.shape[-1])


def invariance(target: TorchModel) -> InvarianceReport:
    """The same tokens at several widths, as a tree, beside a neighbour, and after another split of the prompt.

    ``min_width``: the smallest probed width from which on all agree bit for bit; 1 if not even the widest two do.
    """
    traits = target.traits
    longest = min(WIDTHS[-1], traits.max_nodes // 2, traits.max_context // 2)
    room = traits.capacity // min(2, target.max_rows)
    before = min(CONTEXT, min(traits.max_context, room) - 2 * longest)
    if min(before, longest) < 1:
        raise BackendError("the probe needs room for 64 tokens in two rows; raise capacity_tokens or max_context")
    tokens = [(3 + 7 * i) % traits.vocab_size for i in range(before + longest)]
    prompt, probed = tokens[:before], tokens[before:]
    widths = [w for w in WIDTHS if w < longest] + [longest]
    whole = min(before, traits.max_nodes)

    def fresh(chunk: int = whole) -> Slot:
        (slot,) = target.open(1)
        _chain(target, slot, prompt, chunk)
        return slot

    seen: dict[str, Tensor] = {}
    base = fresh()
    for width in widths:
        copy = target.fork(base, before) if target.max_rows > 1 else base
        seen[f"width={width}"] = _chain(target, copy, probed, width)
        target.close([copy])
        base = base if copy is not base else fresh()
    if traits.tree:
        tree, path = _tree(probed, traits.vocab_size)
        seen["tree"] = _score(target, [base], [tree])[0][path]
    if target.max_rows > 1:
        pair = [base, *target.open(1)]
        _chain(target, pair[1], prompt[:7], 7)
        seen["batch"] = _score(target, pair, [DraftTree.chain(probed), DraftTree.chain(probed[:3])])[0]
        target.close(pair[1:])
    target.close([base])
    slot = fresh(max(1, whole // 3))
    seen["prompt in parts"] = _chain(target, slot, probed, longest)
    target.close([slot])

    reference = seen[f"width={longest}"]
    difference = {k: float((v - reference).abs().max()) for k, v in seen.items()}
    agreeing = [all(difference[f"width={w}"] == 0 for w in widths[i:]) for i in range(len(widths))]
    smallest = widths[agreeing.index(True)]
    found = smallest < longest or longest == 1
    rest = [v for k, v in difference.items() if not k.startswith("width=")]
    return InvarianceReport(found and not any(rest), max(smallest if found else 1, traits.min_width), True, difference)
