"""Our own export of transformers causal models: traced with explicit past keys and values, made stateful, saved.

The paged-attention transformation recognises a layer only if its past is a state with an initialiser, gathered by
``beam_idx``. Whatever the paged kernel would leave out (capped scores, attention sinks, recurrent state) is refused before
the export, and the exported graph is compared with the model itself after it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...core.protocols import Need
from ...core.tree import DraftTree, Forest
from ...errors import BackendError, BadRequest, ModelNotFound, Unsupported

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS = ("auto", "f32", "f16", "int8", "int4")
_BITS = {"f32": 32, "f16": 16, "int8": 8, "int4": 5}
_LAYERS = ("full_attention", "sliding_attention")
_OWN_ATTENTION = {"gpt_oss": "attention sinks", "bloom": "ALiBi biases", "mpt": "ALiBi biases"}


def open_model(model: str | os.PathLike[str] | PreTrainedModel) -> PreTrainedModel:
    """The model in evaluation mode with the attention that can be traced; what cannot be exported is refused unread."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with quiet():
            if isinstance(model, str | os.PathLike):
                check(AutoConfig.from_pretrained(model))
                loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype="auto", attn_implementation="sdpa")
            else:
                check(model.config)
                loaded = copy.deepcopy(model)
                loaded.set_attn_implementation("sdpa")
    except Unsupported:
        raise
    except ValueError as e:
        raise Unsupported(f"transformers cannot open the model for export: {_line(e)}; use backend=torch") from None
    except (OSError, RuntimeError, SafetensorError) as e:
        raise ModelNotFound(f"transformers cannot load {model}: {_line(e)}; give a whole model folder") from None
    return loaded.eval()


def check(config: Any) -> None:
    """Refuse what the paged kernel does not compute."""
    text = config.get_text_config()
    kind = str(getattr(config, "model_type", "unknown"))
    reason = _OWN_ATTENTION.get(kind)
    fix = "choose a causal attention-only model"  # the torch backend refuses the rest too
    if getattr(config, "is_encoder_decoder", False):
        reason = "an encoder beside its decoder"
    elif getattr(text, "attn_logit_softcapping", None):
        reason, fix = "capped attention scores", "use backend=torch"
    elif getattr(text, "alibi", False):
        reason = "ALiBi biases"
    elif other := sorted(set(getattr(text, "layer_types", None) or ()) - set(_LAYERS)):
        reason = f"layers of type {', '.join(other)}"
    elif kind == "gpt_oss":
        fix = "use backend=torch"
    if reason:
        raise Unsupported(f"{kind} has {reason}, which the openvino backend does not compute; {fix}")


def resolve_weights(weights: str, model: PreTrainedModel) -> str:
    if weights not in WEIGHTS:
        raise BadRequest(f"unknown weights {weights!r}; choose one of {', '.join(WEIGHTS)}")
    if weights == "auto":
        return "f16" if model.dtype in (torch.float16, torch.bfloat16) else "f32"
    if weights.startswith("int"):
        try:
            import nncf  # noqa: F401
        except ImportError:
            raise Unsupported(f"weights={weights} needs nncf; pip install nncf, or choose f16") from None
    return weights


def size(model: PreTrainedModel, weights: str) -> int:
    """Bytes of the exported weights."""
    return sum(p.numel() for p in model.parameters()) * _BITS[weights] // 8


def facts(model: PreTrainedModel, source: Any) -> dict[str, Any]:
    text = model.config.get_text_config()
    types = getattr(text, "layer_types", None)
    window = int(getattr(text, "sliding_window", None) or 0) if getattr(text, "use_sliding_window", True) else 0
    types = types or ["sliding_attention"] * text.num_hidden_layers
    windows = [window if kind == "sliding_attention" else 0 for kind in types]
    name = Path(source).name if isinstance(source, str | os.PathLike) else model.config.model_type
    return {"name": name, "max_context": int(text.max_position_embeddings), "window": 0, "windows": windows}


def save(model: PreTrainedModel, path: Path, weights: str) -> None:
    """Trace, make stateful, compress, write."""
    import openvino as ov

    from .stateful import stateful

    model = model.float()
    try:
        with quiet():
            graph = stateful(model)
            if weights.startswith("int"):
                import nncf

                mode = nncf.CompressWeightsMode.INT8_ASYM if weights == "int8" else nncf.CompressWeightsMode.INT4_ASYM
                graph = nncf.compress_weights(graph, mode=mode)
            ov.save_model(graph, path, compress_to_fp16=weights == "f16")
    except RuntimeError as e:
        raise BackendError(f"OpenVINO cannot export {model.config.model_type}: {_line(e)}; use backend=torch") from None


def compare(model: PreTrainedModel, folder: Path, weights: str) -> None:
    """The exported graph must say what the model says, in two passes over a dozen tokens."""
    from .model import OpenVINOModel

    ours = OpenVINOModel(folder, precision="f32", kv_tokens=64)
    count = min(12, ours.traits.max_context - 1)
    tokens = torch.randint(0, ours.traits.vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), quiet():
        truth = model(input_ids=tokens[None]).logits[0].float()
    slots = ours.open(1)
    got = []
    for part in (tokens[: count // 2], tokens[count // 2 :]):
        forest = Forest.pack([DraftTree.chain(part.tolist())], min_width=2)
        got.append(ours.score(slots, forest, Need()).logits.clone())
        ours.commit(slots, [range(len(part))])
    scale = 1.0 + float(truth.abs().max())
    worst = float((torch.cat(got) - truth).abs().max()) / scale
    limit = {"f32": 1e-3, "f16": 1e-2, "int8": 0.2, "int4": 1.0}[weights]
    if not worst <= limit:
        raise Unsupported(
            f"the exported graph of {model.config.model_type} differs from the model (logits by {worst:.2g} of their range); "
            "use backend=torch"
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Tracing warns about every shape that becomes a constant, and loaders draw bars; none of it concerns the user."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]
