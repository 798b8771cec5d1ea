"""Text to tokens and back, for one model.

Contract: the model's own tokenizer, end tokens and chat template; bad prompts are a :class:`BadRequest` that names the
fix. transformers is imported only where a tokenizer has no ``tokenizer.json``, once: the result is kept in the cache.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from ..errors import BackendError, BadRequest, Unsupported
from ..models.cache import building, derived_dir, write_json
from ..models.gguf_header import read_header
from ..models.reference import local
from .chat import compile_template, render
from .decoder import StreamDecoder, byte_runs
from .gguf_tokenizer import from_gguf, token_table
from .special import Special, load_special, special_of_folder, special_of_gguf
from .vocab import VocabReport, compare_tables, fingerprint_of

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]

_VERSION = "1"
_SLOW_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


class Codec:
    """A tokenizer with what the model says about it."""

    def __init__(self, tokenizer: Tokenizer, special: Special) -> None:
        # A tokenizer.json may ask for cutting or padding, which is meant for training.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.special = special
        self._runs = {skip: byte_runs(tokenizer, skip) for skip in (False, True)}

    @staticmethod
    def load(path: str | os.PathLike[str], cache: Path | None = None) -> Codec:
        """The codec of a model folder or a GGUF file; ``cache``: another cache root than the usual one."""
        model = local(Path(path))
        assert model.path is not None
        folder = model.path
        if model.kind == "gguf":
            return _load_gguf(folder, cache)
        file = folder / "tokenizer.json"
        if file.is_file():
            return _of_folder(_read(file), folder)
        if any((folder / name).is_file() for name in _SLOW_FILES):
            target = derived_dir("tokenizers", folder, _VERSION, cache)
            with building(target) as staging:
                if staging is not None:
                    _slow(folder).save(str(staging / "tokenizer.json"))
            return _of_folder(_read(target / "tokenizer.json"), folder)
        raise Unsupported(f"{folder} has no tokenizer.json: copy it from the model that the folder was made from")

    @cached_property
    def table(self) -> dict[int, str]:
        """id -> token."""
        return {i: token for token, i in self.tokenizer.get_vocab(with_added_tokens=True).items()}

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id that stands for a token."""
        return max(self.table, default=-1) + 1

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes that each id below :attr:`vocab_size` stands for; a special token's are those of its name."""
        from .pieces import pieces_of

        return pieces_of(self.tokenizer, self.vocab_size)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the id -> token table."""
        return fingerprint_of(self.table)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end the output, by the model's own metadata."""
        return self.special.eos_ids

    @property
    def has_template(self) -> bool:
        return self.special.template is not None

    def compare(self, other: Codec) -> VocabReport:
        """Whether a draft of ``other`` is a draft for this vocabulary."""
        return compare_tables(self.table, other.table, (self.special.padded_size, other.special.padded_size))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Tokens of a text; ``special`` adds what the tokenizer puts around a prompt (a BOS, if it says so)."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"the prompt holds an unpaired surrogate at character {error.start}: pass valid UTF-8") from error
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    @cached_property
    def _template(self) -> jinja2.Template:
        if self.special.template is None:
            raise BadRequest("the model has no chat template: pass a plain prompt, or use an instruct model")
        return compile_template(self.special.template)

    def chat_text(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **values: Any) -> str:
        """A conversation as the model's template writes it; ``values`` reach the template (tools, …)."""
        values = {"tools": None, "documents": None, **self.special.named, **values}
        return render(self._template, messages, add_generation_prompt=add_generation_prompt, **values)

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **values: Any) -> list[int]:
        """Tokens of a conversation; the template writes the special tokens, so none are added."""
        return self.encode(self.chat_text(messages, add_generation_prompt, **values), special=False)

    def prompt(self, prompt: Prompt) -> list[int]:
        """Tokens of a text, a conversation or a list of ids."""
        if isinstance(prompt, str):
            ids = self.encode(prompt) if prompt else []
        elif not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise BadRequest(f"the prompt is a {type(prompt).__name__}: give a string, messages or a list of token ids")
        elif prompt and isinstance(prompt[0], Mapping):
            ids = self.chat(prompt)  # type: ignore[arg-type]
        else:
            ids = [self._id(token, i) for i, token in enumerate(prompt)]
        if not ids:
            raise BadRequest("the prompt is empty: give at least one character or token")
        return ids

    def _id(self, token: Any, place: int) -> int:
        try:
            value = -1 if isinstance(token, bool) else operator.index(token)
        except TypeError:
            raise BadRequest(f"prompt[{place}] is a {type(token).__name__}: give all token ids, or all messages") from None
        if not 0 <= value < max(self.vocab_size, self.special.padded_size or 0):
            raise BadRequest(f"prompt[{place}] is {token}: token ids are 0 to {self.vocab_size - 1}")
        return value

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def decoder(self, skip_special: bool = True) -> StreamDecoder:
        """A fresh incremental detokenizer."""
        return StreamDecoder(self.tokenizer, self._runs[skip_special], skip_special)

    def token(self, i: int) -> str:
        """Text of one token for display."""
        return self.tokenizer.decode([i], skip_special_tokens=False)


def _read(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception
        raise BackendError(f"{file} cannot be read as a tokenizer ({str(error)[:120]}); download it again") from error


def _of_folder(tokenizer: Tokenizer, folder: Path) -> Codec:
    return Codec(tokenizer, special_of_folder(folder, tokenizer.get_vocab(with_added_tokens=True)))


def _load_gguf(path: Path, cache: Path | None) -> Codec:
    target = derived_dir("tokenizers", path, _VERSION, cache)
    with building(target) as staging:
        if staging is not None:
            header = read_header(path)
            tokenizer = _beside(path, token_table(header)) or from_gguf(header)
            tokenizer.save(str(staging / "tokenizer.json"), pretty=False)
            write_json(staging / "special.json", special_of_gguf(header, token_table(header)).to_json())
    return Codec(_read(target / "tokenizer.json"), load_special(target / "special.json"))


def _beside(path: Path, table: dict[int, str]) -> Tokenizer | None:
    """A ``tokenizer.json`` in the same folder, if it is this model's (folders may hold several models)."""
    file = path.parent / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = _read(file)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    return tokenizer if all(ids.get(token) == i for i, token in table.items()) else None


def _slow(folder: Path) -> Tokenizer:
    try:
        import transformers

        loaded = transformers.AutoTokenizer.from_pretrained(str(folder))
        return Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    except Exception as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise Unsupported(f"the tokenizer of {folder} has no fast form ({reason}): add its tokenizer.json") from error
