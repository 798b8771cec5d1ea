"""Loading a transformers causal language model from a folder or a hub id, with errors that name the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM

from ..errors import BackendError, BadRequest, ModelNotFound, Unsupported
from .torch_family import refuse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def from_pretrained(path: str, device: str = "auto", dtype: str = "auto", attention: str | None = None) -> Any:
    """The model, in eval mode, on its device. A path that exists is never looked up on the network."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype != "auto" and dtype not in DTYPES:
        raise BadRequest(f"dtype '{dtype}' is unknown; choose auto, {', '.join(DTYPES)}")
    if attention not in (None, "eager", "sdpa"):
        raise BadRequest(f"attention '{attention}' is unknown; choose eager or sdpa")
    local = Path(path).expanduser()
    folder = local.is_dir()
    if folder and not (local / "config.json").is_file():
        raise ModelNotFound(f"'{path}' has no config.json; give a transformers model folder")
    if not folder and (local.exists() or path.startswith(("/", ".", "~")) or path.count("/") > 1):
        raise ModelNotFound(f"'{path}' is not a folder; give a transformers model folder or a hub id")
    where = str(local) if folder else path
    number = DTYPES.get(dtype, torch.float32 if device == "cpu" else "auto")
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    try:
        config = AutoConfig.from_pretrained(where, local_files_only=folder)
        refuse(config)
        options.update(config=config, dtype=number, local_files_only=folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(where, output_loading_info=True, **options)
        model, found = loaded
        if found["missing_keys"]:
            # transformers would go on with random numbers in their place
            raise BackendError(f"'{path}' lacks the weights of {min(found['missing_keys'])}; give a complete model folder")
        return model.eval().to(device)
    except (BackendError, Unsupported):
        raise
    except torch.OutOfMemoryError as e:
        raise BackendError(f"no memory to load '{path}' on {device}; choose dtype='bfloat16' or a smaller model") from e
    except OSError as e:
        raise ModelNotFound(f"cannot load '{path}': {_line(e)}; give a model folder or a reachable hub id") from e
    except (ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as e:
        raise BackendError(f"cannot load '{path}': {_line(e)}; check that it is a complete causal model") from e


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
