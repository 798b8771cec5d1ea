"""A request's prompt as token ids, and as text."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadRequest
from .completion import Codec, Prompt


def prompt_tokens(prompt: Prompt, codec: Codec | None, vocab: int) -> list[int]:
    """Token ids of a prompt; :class:`BadRequest` where there are none, or some are not below ``vocab``."""
    if codec is not None:
        tokens = codec.prompt(prompt)
    elif isinstance(prompt, str) or not all(isinstance(t, int) for t in prompt):
        raise BadRequest("this engine has no tokenizer; give token ids")
    else:
        tokens = [t for t in prompt if isinstance(t, int)]
    if not tokens:
        raise BadRequest("the prompt is empty; give at least one token")
    if not all(0 <= t < vocab for t in tokens):
        raise BadRequest(f"prompt token ids must lie in 0..{vocab - 1}; tokenize with the target's tokenizer")
    return tokens


def echoed(prompt: Prompt, tokens: Sequence[int], codec: Codec | None) -> str:
    """The prompt as text; ``tokens`` are its ids."""
    if isinstance(prompt, str):
        return prompt
    if codec is None:
        raise BadRequest("echo needs a tokenizer; load the engine with one or leave it out")
    decoder = codec.decoder()
    return "".join(decoder.push(token) for token in tokens) + decoder.flush()
