"""A trained head on disk: a folder with ``config.json`` and tensors, most often ``model.safetensors``.

``read`` takes whatever file the tensors are in (safetensors, one or in shards; pickled ones only when told to) and ``write``
leaves either the old folder's files or the new ones, never half of one.
"""

from __future__ import annotations

import json
import os
import pickle as pickles
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import BackendError, BadRequest, ModelNotFound, VocabMismatch

Choose = Callable[[list[str]], Iterable[str]]
"""Names of all tensors -> names of those to read."""


@dataclass(frozen=True)
class Checkpoint:
    """``tensors`` as they are stored; readers convert them."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """The tensor of this name, which must be there and, if given, have this shape; numbers as float32."""
        found = self.tensors.get(name)
        if found is None:
            raise BadRequest(f"{self.path}: tensor {name!r} is missing; the file is incomplete or of another format")
        if shape is not None and tuple(found.shape) != shape:
            raise BadRequest(f"{self.path}: tensor {name!r} has shape {tuple(found.shape)}, expected {shape}")
        return found.to(torch.float32) if found.is_floating_point() else found

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """The whole number of this name in the config."""
        value = self.config.get(name, default)
        if value is None:
            raise BadRequest(f"{self.path / 'config.json'}: {name!r} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise BadRequest(f"{self.path / 'config.json'}: {name!r} must be a whole number >= {least}, got {value!r}")
        return value

    def draft_ids(self, vocab: int) -> Tensor | None:
        """[Vd] int64, the target's id of each token that the head can say, where the file reduces the vocabulary."""
        found = self.tensors.get("draft_ids")
        if found is None:
            return None
        if found.dtype != torch.int64 or found.ndim != 1 or not found.numel() or len(set(found.tolist())) != found.numel():
            raise BadRequest(f"{self.path}: 'draft_ids' must be a list of different int64 token ids")
        if int(found.min()) < 0 or int(found.max()) >= vocab:
            raise VocabMismatch(f"{self.path}: the head says token {int(found.max())}, the target has {vocab} tokens")
        return found


def peek(folder: Path, *, pickle: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Config and names of the tensors."""
    config, where = _parts(Path(folder), pickle)
    return config, list(where)


def read(folder: Path, *, pickle: bool = False, choose: Choose | None = None) -> Checkpoint:
    """``pickle``: also read ``.bin`` and ``.pt`` files. ``choose``: which tensors; default all."""
    folder = Path(folder)
    config, where = _parts(folder, pickle)
    wanted = set(where if choose is None else choose(list(where)))
    tensors: dict[str, Tensor] = {}
    for file in dict.fromkeys(where[name] for name in where if name in wanted):
        tensors.update(_tensors(file, [name for name in where if name in wanted and where[name] == file]))
    return Checkpoint(folder, config, tensors)


def _parts(folder: Path, pickle: bool) -> tuple[dict[str, Any], dict[str, Path]]:
    if not folder.is_dir():
        raise ModelNotFound(f"{folder}: no such folder; a head is a folder with config.json and model.safetensors")
    return _json(folder / "config.json"), _where(folder, pickle)


def write(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    name: str = "model.safetensors",
    shards: int = 1,
) -> None:
    """``name``: file of the tensors. ``shards``: spread them over so many files, with an index."""
    folder = Path(folder)
    # Tied tensors share memory, which the file format cannot say.
    plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shards == 1:
            _replace(folder / name, lambda file: save_file(plain, file, metadata={"format": "pt"}))
        else:
            stem, suffix = os.path.splitext(name)
            files = [f"{stem}-{i + 1:05d}-of-{shards:05d}{suffix}" for i in range(shards)]
            where = {key: files[i * shards // len(plain)] for i, key in enumerate(plain)}
            for file in files:
                part = {key: plain[key] for key in plain if where[key] == file}
                _replace(folder / file, partial(save_file, part, metadata={"format": "pt"}))
            index = json.dumps({"metadata": {}, "weight_map": where}, indent=2)
            _replace(folder / f"{name}.index.json", lambda file: file.write_text(index, encoding="utf-8"))
        _replace(folder / "config.json", lambda file: file.write_text(text, encoding="utf-8"))
    except (OSError, SafetensorError) as e:
        raise BackendError(f"{folder}: cannot write the head: {e}") from e


def _replace(file: Path, make: Callable[[Path], object]) -> None:
    number, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    os.close(number)
    made = Path(name)
    try:
        make(made)
        mask = os.umask(0)
        os.umask(mask)
        made.chmod(0o666 & ~mask)
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        raise ModelNotFound(f"{file}: no such file; a head is a folder with config.json and model.safetensors") from e
    except (OSError, ValueError) as e:
        raise BadRequest(f"{file}: cannot be read as JSON: {e}") from e
    if not isinstance(found, dict):
        raise BadRequest(f"{file}: must hold a JSON object")
    return found


def _where(folder: Path, pickle: bool) -> dict[str, Path]:
    """Name of each tensor -> its file."""
    heads = sorted(folder.glob("*_lm_head.safetensors"))
    index = folder / "model.safetensors.index.json"
    if len(heads) == 1:
        return dict.fromkeys(_names(heads[0]), heads[0])
    if (folder / "model.safetensors").is_file():
        return dict.fromkeys(_names(folder / "model.safetensors"), folder / "model.safetensors")
    if index.is_file():
        return _shards(index)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return dict.fromkeys(_names(others[0]), others[0])
    if others:
        raise BadRequest(f"{folder}: holds several .safetensors files and no index; which one is the head?")
    pickled = sorted(x for end in ("*.bin", "*.pt", "*.pth") for x in folder.glob(end) if x.name != "training_args.bin")
    if not pickled:
        raise ModelNotFound(f"{folder}: no tensors; expected model.safetensors")
    if not pickle:
        raise BadRequest(
            f"{pickled[0]}: is a pickle, not safetensors; convert it, or allow it with pickle=True if you trust its source"
        )
    listed = folder / "pytorch_model.bin.index.json"
    if listed.is_file():
        return _shards(listed)
    if len(pickled) > 1:
        raise BadRequest(f"{folder}: holds several pickles and no index; which one is the head?")
    return dict.fromkeys(_unpickled(pickled[0]), pickled[0])


def _shards(index: Path) -> dict[str, Path]:
    names = _json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(x, str) for x in names.values()):
        raise BadRequest(f"{index}: has no 'weight_map'")
    for file in set(names.values()):
        if Path(file).name != file or file in ("", ".", ".."):
            raise BadRequest(f"{index}: {file!r} is not a file of this folder")
        if not (index.parent / file).is_file():
            raise BadRequest(f"{index.parent / file}: no such file, though {index.name} names it; fetch the model again")
    return {name: index.parent / file for name, file in names.items()}


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (OSError, SafetensorError) as e:
        raise BadRequest(f"{file}: is damaged, cut short or not a safetensors file ({e}); fetch it again") from e


def _tensors(file: Path, names: list[str]) -> dict[str, Tensor]:
    if file.suffix != ".safetensors":
        found = _unpickled(file)
        missing = [name for name in names if name not in found]
        if missing:
            raise BadRequest(f"{file}: tensor {missing[0]!r} is missing, though the index names it; fetch the model again")
        return {name: found[name] for name in names}
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as e:
        raise BadRequest(f"{file}: is damaged, cut short or lacks a tensor ({e}); fetch it again") from e


def _unpickled(file: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, pickles.UnpicklingError) as e:
        raise BadRequest(f"{file}: is damaged or holds more than tensors, which is not read: {str(e).splitlines()[0]}") from e
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()):
        raise BadRequest(f"{file}: must hold tensors by name and nothing else")
    return cast("dict[str, Tensor]", found)
