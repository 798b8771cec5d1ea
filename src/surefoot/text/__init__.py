"""Tokenizer, chat template and incremental detokenizing of a model."""

from .codec import Codec, Prompt
from .decoder import StreamDecoder
from .prompt_file import read_prompt
from .vocab import VocabReport

__all__ = ["Codec", "Prompt", "StreamDecoder", "VocabReport", "read_prompt"]
