"""The tokenizer inside a GGUF file as a ``tokenizers.Tokenizer``.

Contract: same ids as the model's own tokenizer. GGUF names the pre-tokenizer (``tokenizer.ggml.pre``) without spelling
it out, and a wrong one changes ids silently (transformers' own conversion drops the digit splitting of SmolLM), so a
name that is not known here is refused. SentencePiece vocabularies go through transformers.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ..errors import BackendError, Unsupported
from ..models.gguf_header import GgufHeader

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
_GPT2 = frozenset({"gpt-2", "gpt2", "phi-2"})
_LLAMA3 = frozenset({"llama-bpe", "llama3", "llama-v3"})
_QWEN = frozenset({"qwen2", "deepseek-r1-qwen"})
_BY_ARCHITECTURE = {"gpt2": "gpt-2", "qwen2": "qwen2", "qwen3": "qwen2"}
"""Files from before the pre-tokenizer had a name."""


def token_table(header: GgufHeader) -> dict[int, str]:
    """id -> token, without the padding entries that some converters add."""
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if not tokens:
        raise BackendError(f"{header.path} has no tokenizer; give a GGUF file with one, or the model's folder")
    kinds = header.fields.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    return {i: token for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED}


def from_gguf(header: GgufHeader) -> Tokenizer:
    """Build the tokenizer from the metadata."""
    if header.fields.get("tokenizer.ggml.model") != "gpt2":
        return _through_transformers(header)
    table = token_table(header)
    name = header.fields.get("tokenizer.ggml.pre") or _BY_ARCHITECTURE.get(header.architecture, "")
    merges = [tuple(merge.split(" ", 1)) for merge in header.fields.get("tokenizer.ggml.merges", [])]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in table.items()}, merges=merges, ignore_merges=name in _LLAMA3)
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(name, header)
    tokenizer.decoder = decoders.ByteLevel()
    if name in _QWEN:
        tokenizer.normalizer = normalizers.NFC()
    _add_tokens(tokenizer, header, table)
    _add_bos(tokenizer, header, table, default=name in _LLAMA3)
    return tokenizer


def _pre_tokenizer(name: str, header: GgufHeader) -> Any:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in _DIGITS | _GPT2)
    if name in _GPT2:
        return byte_level
    if name in _DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name in _LLAMA3 | _QWEN:
        pattern = Regex(_WORDS % ("{1,3}" if name in _LLAMA3 else ""))
        return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, "isolated"), byte_level])
    raise Unsupported(
        f"{header.path.name} needs the pre-tokenizer {name or '(unnamed)'!r}, which is not known here: "
        "put the model's tokenizer.json beside the file"
    )


def _add_tokens(tokenizer: Tokenizer, header: GgufHeader, table: dict[int, str]) -> None:
    kinds = header.fields.get("tokenizer.ggml.token_type") or []
    added = [(i, kinds[i]) for i in table if i < len(kinds) and kinds[i] in (CONTROL, USER)]
    tokenizer.add_special_tokens([AddedToken(table[i], normalized=False, special=True) for i, kind in added if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(table[i], normalized=False, special=False) for i, kind in added if kind == USER])


def _add_bos(tokenizer: Tokenizer, header: GgufHeader, table: dict[int, str], default: bool) -> None:
    bos = header.fields.get("tokenizer.ggml.bos_token_id")
    if bos in table and header.fields.get("tokenizer.ggml.add_bos_token", default):
        token = table[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, bos)]
        )


def _through_transformers(header: GgufHeader) -> Tokenizer:
    try:
        import transformers

        loaded = transformers.AutoTokenizer.from_pretrained(str(header.path.parent), gguf_file=header.path.name)
        tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    except Exception as error:
        kind = header.fields.get("tokenizer.ggml.model")
        raise Unsupported(
            f"the {kind!r} tokenizer of {header.path.name} cannot be converted ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:120] if str(error) else ''}): put the model's tokenizer.json beside the file"
        ) from error
    return tokenizer
