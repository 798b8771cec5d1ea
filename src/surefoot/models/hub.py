"""Hub models: from the local hub cache where it is complete, else downloaded with ``huggingface_hub``.

Contract: only the files that inference needs are fetched; no network, no such repository and no permission are each a
one-line error that names the fix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ModelNotFound
from .cache import Progress, disk_errors, disk_full

_CONFIG = ["*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "vocab.txt", "merges.txt"]
_OPENVINO = ["openvino_*.xml", "openvino_*.bin"]
_SAFE = ["*.safetensors"]
_PICKLED = ["pytorch_model*.bin"]
# Second copies of the weights in other formats, which can be many times the size of what is needed.
_IGNORE = ["original/*", "onnx/*", "*.onnx", "*/*.safetensors", "consolidated*.safetensors", "*.msgpack", "*.h5"]


def fetch_hub(repo: str, file: str | None = None, progress: Progress | None = None) -> Path:
    """The local folder (or, with ``file``, the file) of hub repository ``repo``."""
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        if file is not None:
            return Path(huggingface_hub.hf_hub_download(repo, file, local_files_only=True))
        folder = Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
        if has_weights(folder):
            return folder
    except (LocalEntryNotFoundError, OSError):
        pass
    where = Path(HF_HUB_CACHE)
    try:
        with disk_errors(where):
            return _download(repo, file, progress)
    except ModelNotFound:
        raise
    except Exception as error:
        raise _explained(repo, error, where) from error


def has_weights(folder: Path) -> bool:
    """Whether a folder holds a model that can be loaded: OpenVINO, or config and every shard of the weights."""
    if (folder / "openvino_model.xml").is_file() and (folder / "openvino_model.bin").is_file():
        return True
    if not (folder / "config.json").is_file():
        return False
    for index in folder.glob("*.index.json"):
        shards = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        return bool(shards) and all((folder / shard).is_file() for shard in shards)
    return any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))


def _download(repo: str, file: str | None, progress: Progress | None) -> Path:
    import huggingface_hub

    if progress is not None:
        progress(f"downloading {repo}", 0, None)
    bar = _bar(f"downloading {repo}", progress)
    if file is not None:
        return Path(huggingface_hub.hf_hub_download(repo, file, tqdm_class=bar))
    for weights in (_OPENVINO + _SAFE, _PICKLED):
        folder = Path(
            huggingface_hub.snapshot_download(repo, allow_patterns=_CONFIG + weights, ignore_patterns=_IGNORE, tqdm_class=bar)
        )
        if has_weights(folder):
            return folder
    raise ModelNotFound(f"hub repository {repo} has no safetensors or OpenVINO weights: name a GGUF file as {repo}/FILE.gguf")


def _bar(label: str, progress: Progress | None) -> Any:
    """A progress bar class that reports to ``progress`` instead of drawing."""
    from tqdm.auto import tqdm

    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            kwargs["disable"] = False
            super().__init__(*args, **kwargs)

        def display(self, *args: Any, **kwargs: Any) -> None:
            return None

        def update(self, n: float | None = 1) -> bool | None:
            result: bool | None = super().update(n)
            if progress is not None and self.unit == "B":
                progress(label, int(self.n), int(self.total) if self.total else None)
            return result

    return Reporting


def _explained(repo: str, error: Exception, where: Path) -> Exception:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return ModelNotFound(f"hub repository {repo} is gated: accept its terms on the hub and set HF_TOKEN")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFound(f"no hub repository {repo}: check the spelling; if it is private, set HF_TOKEN")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return ModelNotFound(f"hub repository {repo} has no such file: check the name on the hub")
    if "No space left" in str(error):
        return disk_full(where)
    reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
    return ModelNotFound(
        f"{repo} is neither a local path nor in the hub cache, and the hub cannot be reached ({reason}): check the "
        "network and the spelling, or download it elsewhere and give the folder; smollm2-135m-instruct needs no hub"
    )
