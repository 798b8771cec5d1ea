"""EAGLE heads on disk, in the layouts that are published: EAGLE, EAGLE-3 as its authors write it, and speculators.

EAGLE            ``fc.*``, ``layers.0.*``; config of a Llama with ``num_hidden_layers`` 1 and ``bias``
EAGLE-3, raw     ``fc.weight``, ``midlayer.*``, ``norm.weight``, ``lm_head.weight``, ``d2t``, ``t2d``; ``draft_vocab_size``
speculators      the same with ``layers.0.*``; a config that nests the layer's under ``transformer_layer_config``

``d2t[i]`` is what draft id i lacks to the target's id, ``t2d`` [V] says which target ids can be said. Ours are the reduced
vocabulary of an EAGLE head (tensor ``draft_ids``), and EAGLE-3 without a table of its own (``tied``, under ``surefoot`` in
the config). The target's embedding is not written; one in the file is used only where it differs from the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.protocols import Ends
from ..errors import BadRequest, Unsupported, VocabMismatch
from .eagle import Eagle
from .eagle3 import Eagle3
from .eagle_config import layer_record, speculators_record, unnested
from .eagle_layer import LayerConfig
from .files import Checkpoint, write
from .fit import check_fit

_EMBEDDING = "embed_tokens.weight"
_UNREAD = ("rotary_emb.inv_freq", "embed_tokens.weight", "d2t", "t2d", "draft_ids", "lm_head.weight")


def load_eagle(checkpoint: Checkpoint, ends: Ends) -> Eagle:
    """Raises where the head is of another format or target, or a tensor is missing or too many."""
    tensors = _plain_names(checkpoint)
    if "fc.weight" not in tensors or any(name.startswith(("midlayer.", "layers.0.hidden_norm")) for name in tensors):
        raise Unsupported(f"{checkpoint.path} holds {_kind(checkpoint.config, tensors)}, not an EAGLE head; load it as such")
    config = LayerConfig.of(_biased(unnested(checkpoint), tensors, "layers.0."))
    check_fit(checkpoint.path, ends, hidden=config.hidden_size, vocab=_vocab(checkpoint.config, tensors))
    ids = checkpoint.draft_ids(ends.head.shape[0])
    module = Eagle(config, _with_embedding(ends, tensors), ids, fc_bias="fc.bias" in tensors)
    _fill(module, checkpoint.path, tensors, "layers.0.", ignore=())
    return module.to(ends.embedding.device).eval()


def load_eagle3(checkpoint: Checkpoint, ends: Ends) -> Eagle3:
    """Either layout. Raises as :func:`load_eagle`."""
    tensors, said = _plain_names(checkpoint), checkpoint.config
    kind = said.get("speculators_model_type")
    layer = "midlayer." if any(name.startswith("midlayer.") for name in tensors) else "layers.0."
    if kind not in (None, "eagle3") or f"{layer}hidden_norm.weight" not in tensors:
        raise Unsupported(f"{checkpoint.path} holds {_kind(said, tensors)}, not an EAGLE-3 head; load it as such")
    config = LayerConfig.of(_biased(unnested(checkpoint), tensors, layer), reads=2)
    check_fit(checkpoint.path, ends, hidden=config.hidden_size, vocab=_vocab(said, tensors))
    own = said.get("surefoot")
    tied = isinstance(own, Mapping) and own.get("tied") is True
    if not tied and "lm_head.weight" not in tensors:
        raise BadRequest(f"{checkpoint.path}: tensor 'lm_head.weight' is missing; the file is incomplete or of another format")
    ids = _draft_ids(checkpoint, tensors, ends.head.shape[0])
    said_size = tensors["lm_head.weight"].shape[0] if not tied else None
    wanted = ends.head.shape[0] if ids is None else len(ids)
    if said_size not in (None, wanted):
        raise VocabMismatch(
            f"{checkpoint.path}: lm_head says {said_size} tokens and d2t maps {wanted}; take both from one training run"
        )
    module = Eagle3(
        config,
        _with_embedding(ends, tensors),
        ids,
        tied=tied,
        norm_before_residual=bool(said.get("norm_before_residual", False)),
        layers=_taps(checkpoint),
    )
    _fill(module, checkpoint.path, tensors, layer, ignore=() if module.lm_head is None else ("lm_head.weight",))
    return module.to(ends.embedding.device).eval()


def save_eagle(folder: Path, module: Eagle, *, facts: Mapping[str, Any] | None = None) -> None:
    """``facts`` go into the config under ``surefoot``."""
    config = layer_record(module.config, module.embedding.shape[0]) | {
        "architectures": ["LlamaForCausalLMEagle"],
        "bias": module.fc.bias is not None,
    }
    if module.draft_ids is not None:
        config["draft_vocab_size"] = len(module.draft_ids)
    tensors = _named(module, module.scale, "layers.0.")
    if module.draft_ids is not None:
        tensors["draft_ids"] = module.draft_ids
    write(folder, config | ({"surefoot": dict(facts)} if facts else {}), tensors)


def save_eagle3(
    folder: Path, module: Eagle3, *, layout: str = "raw", target: str = "", facts: Mapping[str, Any] | None = None
) -> None:
    """``layout``: raw or speculators. ``target``: name of the model that the head was trained for."""
    if layout not in ("raw", "speculators"):
        raise BadRequest(f"layout is '{layout}'; choose raw or speculators")
    vocab = module.embedding.shape[0]
    ids = module.draft_ids if module.draft_ids is not None else torch.arange(vocab)
    config = layer_record(module.config, vocab)
    if layout == "speculators":
        config = speculators_record(config, target)
    else:
        config |= {"architectures": ["LlamaForCausalLMEagle3"]}
    config |= {"draft_vocab_size": len(ids), "norm_before_residual": module.norm_before_residual}
    if module.layers:
        config["eagle_aux_hidden_state_layer_ids"] = list(module.layers)
    own = dict(facts or {}) | ({"tied": True} if module.lm_head is None else {})
    tensors = _named(module, module.scale, "midlayer." if layout == "raw" else "layers.0.")
    tensors["d2t"] = ids.cpu() - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids.cpu(), True)
    write(folder, config | ({"surefoot": own} if own else {}), tensors)


def _plain_names(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return {name.removeprefix("model."): tensor for name, tensor in checkpoint.tensors.items()}


def _biased(config: Mapping[str, Any], tensors: Mapping[str, Tensor], layer: str) -> dict[str, Any]:
    """Whether attention has biases is seen in the file: configs do not always say."""
    own = {p: f"{layer}self_attn.{p}_proj.bias" in tensors for p in "qo"}
    return {**config, "attention_bias": own["q"], "attention_out_bias": own["o"]}


def _vocab(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
    """Of the target, as the head's files say it."""
    if "t2d" in tensors:
        return int(tensors["t2d"].shape[0])
    if _EMBEDDING in tensors:
        return int(tensors[_EMBEDDING].shape[0])
    said = config.get("transformer_layer_config", config).get("vocab_size")
    return None if said is None else int(said)


def _draft_ids(checkpoint: Checkpoint, tensors: Mapping[str, Tensor], vocab: int) -> Tensor | None:
    """[Vd] int64; None where the head says all tokens."""
    if "d2t" not in tensors:
        size = checkpoint.config.get("draft_vocab_size") or vocab
        if size != vocab:
            raise BadRequest(
                f"{checkpoint.path}: tensor 'd2t' is missing, though the head says {size} of {vocab} tokens; fetch it again"
            )
        return None
    ids = tensors["d2t"].to(torch.int64)
    ids = ids + torch.arange(len(ids))
    if len(ids) == vocab and torch.equal(ids, torch.arange(vocab)):
        return None
    found = replace(checkpoint, tensors={"draft_ids": ids}).draft_ids(vocab)
    known = tensors.get("t2d")
    if known is not None and not torch.equal(known.bool().nonzero()[:, 0], ids.sort().values):
        raise BadRequest(f"{checkpoint.path}: d2t and t2d do not name the same tokens; fetch the file again")
    return found


def _taps(checkpoint: Checkpoint) -> tuple[int, ...]:
    found = checkpoint.config.get("eagle_aux_hidden_state_layer_ids")
    if found is None:
        return ()
    if not isinstance(found, list) or not found or not all(isinstance(t, int) and t >= 0 for t in found):
        raise BadRequest(
            f"{checkpoint.path / 'config.json'}: 'eagle_aux_hidden_state_layer_ids' must list layers, got {found!r}"
        )
    return tuple(found)


def _with_embedding(ends: Ends, tensors: Mapping[str, Tensor]) -> Ends:
    """The file's own embedding where it was trained apart from the target's."""
    own = tensors.get(_EMBEDDING)
    if own is None or own.shape != ends.embedding.shape:
        return ends
    some = torch.arange(0, len(own), max(1, len(own) // 256))
    mine, theirs = own[some].float(), ends.embedding[some.to(ends.embedding.device)].cpu()
    # a target with quantized tables differs a little
    if float((mine - theirs).norm()) <= 0.1 * float(theirs.norm()):
        return ends
    return replace(ends, embedding=own.to(ends.embedding.device, torch.float32))


def _fill(module: Eagle | Eagle3, path: Path, tensors: Mapping[str, Tensor], layer: str, ignore: tuple[str, ...]) -> None:
    names = {name: name.replace("layer.", layer, 1) if name.startswith("layer.") else name for name in module.state_dict()}
    extra = [n for n in tensors if n not in names.values() and not n.endswith(_UNREAD) and n not in ignore]
    if extra:
        raise Unsupported(f"{path}: tensor '{sorted(extra)[0]}' has no place in a head of this format; it is of another one")
    checkpoint = Checkpoint(path, {}, dict(tensors))
    module.load_state_dict({own: checkpoint.take(names[own], tuple(t.shape)) for own, t in module.state_dict().items()})


def _named(module: Eagle | Eagle3, scale: Tensor | None, layer: str) -> dict[str, Tensor]:
    """Tensors by their public names, with the scale folded into fc."""
    found = {n.replace("layer.", layer, 1) if n.startswith("layer.") else n: t for n, t in module.state_dict().items()}
    if scale is not None:
        del found["scale"]
        found["fc.weight"] = found["fc.weight"] * scale
    return found


def _kind(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """What a file that is not of the wanted format is, in words."""
    said = config.get("speculators_model_type")
    if said not in (None, "eagle3"):
        return f"a head of the kind '{said}'"
    signs = {
        "a Medusa head": ("medusa_head.", "blocks.", "0.0.linear"),
        "an MTP head": ("eh_proj.", "layers.0.eh_proj", "mtp."),
        "an EAGLE-3 head": ("midlayer.", "layers.0.hidden_norm"),
        "an EAGLE head": ("fc.",),
        "a language model of its own": ("layers.1.",),
    }
    for kind, starts in signs.items():
        if any(name.startswith(starts) for name in tensors):
            return kind
    return f"'{config.get('model_type', 'something unknown')}'"
