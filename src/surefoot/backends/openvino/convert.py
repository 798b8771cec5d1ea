"""Conversions into a folder that :class:`OpenVINOModel` loads: from GGUF, and from any transformers causal model.

The folder appears whole or not at all, and the source is never written to. ``progress(label, done, total)`` is told
what happens; total is None where it cannot be known.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BackendError, Unsupported
from .gguf_facts import scalars
from .graph import DEFAULT_CONTEXT, FACTS_FILE, MODEL_FILE, load
from .publish import need_room, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Progress = Callable[[str, int, "int | None"], None]

VERSION = "2"
"""Changes whenever folders made by an older version should be made anew."""

_IMPORT = "import sys, openvino_genai; openvino_genai.LLMPipeline(sys.argv[1], 'CPU', enable_save_ov_model=True)"
_LONGEST_SECONDS = 1800


def from_gguf(gguf: Path, out: Path, progress: Progress | None = None) -> Path:
    """Import a GGUF file (Llama and Qwen families) with its quantized weights as they are. Returns ``out``."""
    gguf, out = Path(gguf), Path(out)
    fields = scalars(gguf)
    architecture = str(fields.get("general.architecture", "unknown"))
    size = gguf.stat().st_size
    need_room(out, size + size // 4)
    _tell(progress, f"importing {gguf.name}")
    with whole(out) as folder:
        # The importer writes beside its input: give it a link in the temporary folder.
        link = folder / "source.gguf"
        try:
            os.symlink(gguf.resolve(), link)
        except OSError:  # symbolic links are a privilege on some systems
            os.link(gguf.resolve(), link)
        _import(gguf, link, architecture)
        for file in folder.iterdir():
            if file.stem != Path(MODEL_FILE).stem:
                file.unlink()
        _write_facts(
            folder,
            name=str(fields.get("general.name") or gguf.stem),
            max_context=fields.get(f"{architecture}.context_length", DEFAULT_CONTEXT),
            window=fields.get(f"{architecture}.attention.sliding_window", 0),
            source=gguf.name,
        )
        _check(folder)
    return out


def from_transformers(
    model: str | os.PathLike[str] | PreTrainedModel,
    out: Path,
    progress: Progress | None = None,
    weights: str = "auto",
) -> Path:
    """Export a transformers causal model (a folder, hub id or loaded model). Returns ``out``.

    weights  "f32", "f16", "int8" or "int4" (these two need nncf), "auto": f16 for checkpoints in half precision, else f32
    """
    from . import export

    out = Path(out)
    _tell(progress, "loading the transformers model")
    source = export.open_model(model)
    kind = export.resolve_weights(weights, source)
    need_room(out, export.size(source, kind) * 5 // 4)
    _tell(progress, "exporting the graph")
    with whole(out) as folder:
        export.save(source, folder / MODEL_FILE, kind)
        _write_facts(folder, **export.facts(source, model))
        _tell(progress, "comparing with transformers")
        _check(folder)
        export.compare(source, folder, kind)
    return out


def _import(gguf: Path, link: Path, architecture: str) -> None:
    """In a process of its own: its memory comes back, its messages stay out of sight, a crash stays a message."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT, str(link)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_LONGEST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackendError(f"importing {gguf.name} took over {_LONGEST_SECONDS // 60} minutes; use a smaller model") from None
    if done.returncode == 0 and (link.parent / MODEL_FILE).is_file():
        return
    text = (done.stderr + done.stdout).decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = lines[-1][:200] if lines else f"exit status {done.returncode}"
    if "No module named" in text:
        raise BackendError("importing GGUF files needs openvino-genai; pip install openvino-genai")
    if "nsupported" in text or "not supported" in text:
        raise Unsupported(
            f"{gguf.name} ({architecture}) cannot be imported: {reason}; use a Q4_0, Q4_1, Q8_0 or F16 file of a Llama or Qwen "
            "model, or give the transformers folder"
        )
    raise BackendError(
        f"{gguf.name} ({architecture}) could not be imported: {reason}; download it again or give the transformers folder"
    )


def _check(folder: Path) -> None:
    """A folder that cannot be loaded is not worth keeping."""
    from .hardware import shared_core

    load(shared_core(), folder)


def _write_facts(folder: Path, **facts: Any) -> None:
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


def _tell(progress: Progress | None, label: str) -> None:
    if progress is not None:
        progress(label, 0, None)
