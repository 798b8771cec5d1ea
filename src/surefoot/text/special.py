"""What a model says about its own tokens: end ids, named special tokens, chat template, padded vocabulary size.

Contract: read from metadata only, never guessed from a token's looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BackendError
from ..models.describe import read_json, text_config
from ..models.gguf_header import GgufHeader

_GGUF_NAMED = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # spelt so in the format
    "cls_token": "cls",
    "mask_token": "mask",
}
"""A tokenizer's special tokens -> their names in GGUF metadata."""


@dataclass(frozen=True, slots=True)
class Special:
    """``named``: "eos_token" -> its text, as chat templates use it."""

    eos_ids: tuple[int, ...] = ()
    named: dict[str, str] = field(default_factory=dict)
    template: str | None = None
    padded_size: int | None = None
    """Rows of the model's embedding; may exceed the tokenizer's own size."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> Special:
        return Special(**{**value, "eos_ids": tuple(value["eos_ids"])})


def special_of_gguf(header: GgufHeader, table: dict[int, str]) -> Special:
    """From GGUF metadata."""
    fields = header.fields
    ends: list[Any] = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends += fields.get("tokenizer.ggml.eos_token_ids") or []
    named = {name: table.get(fields.get(f"tokenizer.ggml.{key}_token_id", -1)) for name, key in _GGUF_NAMED.items()}
    embedding = next((tensor.shape for tensor in header.tensors if tensor.name == "token_embd.weight"), ())
    return Special(
        eos_ids=_unique(ends, table),
        named={name: token for name, token in named.items() if token is not None},
        template=fields.get("tokenizer.chat_template"),
        padded_size=embedding[1] if len(embedding) == 2 else None,
    )


def special_of_folder(folder: Path, ids: dict[str, int]) -> Special:
    """From the JSON files of a model folder; ``ids``: token text -> id."""
    settings = read_json(folder / "tokenizer_config.json")
    named = {**read_json(folder / "special_tokens_map.json"), **settings}
    texts = {name: _text(named[name]) for name in _GGUF_NAMED if named.get(name)}
    config, generation = text_config(read_json(folder / "config.json")), read_json(folder / "generation_config.json")
    ends = _as_list(generation.get("eos_token_id")) or _as_list(config.get("eos_token_id"))
    ends = [*ends, ids.get(texts.get("eos_token", ""))]
    size = config.get("vocab_size")
    return Special(
        eos_ids=_unique(ends, {i: token for token, i in ids.items()}),
        named=texts,
        template=_template(folder, settings),
        padded_size=int(size) if size is not None else None,
    )


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _unique(ids: Iterable[Any], table: dict[int, str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(i) for i in ids if i is not None and int(i) in table))


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The chat template: its own file first, as transformers does; the one named "default" of several."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        try:
            return own.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BackendError(f"{own} cannot be read ({error}); download it again") from error
    value = read_json(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(value, list):
        by_name = {entry.get("name"): entry.get("template") for entry in value}
        value = by_name.get("default") or next(iter(by_name.values()), None)
    return str(value) if value else None


def load_special(path: Path) -> Special:
    return Special.from_json(json.loads(path.read_text(encoding="utf-8")))
