"""A toy model that reasons: it writes a thought of a known length, and a cut thought foresees a known share of the answer.

Public, so that drafters which work while a model thinks can be tested, and their gain held against a formula.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from ..errors import BadRequest
from .table import TableModel

EDITS = ("substitute", "insert", "delete")
_KEPT = 256
"""Texts that are remembered."""


class ThinkingTable(TableModel):
    """Behind a prompt come :attr:`start`, ``thought`` words, :attr:`end`, ``answer`` words and :attr:`eos`.

    The words are a function of ``seed`` and the prompt; a prompt may hold earlier turns, or begin the thought itself. Behind a
    thought that was cut to a share of its length, each word of the answer is that of the full one with chance ``overlap``
    (or ``overlap(share)``); else one of ``edits`` happens to it. Prompts that begin with word 0 are answered without a thought,
    and without an end. ``sharpness``: logit of the word that is meant above all others.
    """

    def __init__(
        self,
        vocab: int = 64,
        *,
        thought: int = 80,
        answer: int = 60,
        overlap: float | Callable[[float], float] = 1.0,
        edits: Sequence[str] = ("substitute",),
        sharpness: float = 40.0,
        seed: int = 0,
        **options: int,
    ) -> None:
        if vocab < 5 or thought < 0 or answer < 0 or not edits or not set(edits) <= set(EDITS):
            raise BadRequest(f"a thinking table needs 5 tokens or more, lengths from 0 up, and edits among {', '.join(EDITS)}")
        super().__init__(torch.zeros(vocab + 1, vocab, dtype=torch.float64), 1, **options)
        self.start, self.end, self.eos = vocab - 3, vocab - 2, vocab - 1
        self.thought, self.answer, self.overlap = thought, answer, overlap
        self._edits = tuple(edits)
        self._sharpness = sharpness
        self._seed = seed
        self._texts: OrderedDict[str, list[int]] = OrderedDict()

    @property
    def pieces(self) -> list[bytes]:
        """The texts of the tokens, all different."""
        words = [chr(97 + i % 26) * (1 + i // 26) + " " for i in range(self.start)]
        return [text.encode() for text in (*words, "<think>", "</think>", "<eos>")]

    def next_logits(self, tokens: Sequence[int]) -> Tensor:
        out = torch.zeros(self.traits.vocab_size, dtype=torch.float64)
        out[self.meant(tokens)] = self._sharpness
        return out

    def meant(self, tokens: Sequence[int]) -> int:
        """The likeliest token behind these."""
        said = list(tokens)
        if said[0] == 0:
            return self._words(f"quiet {said[-2:]}", 1)[0]
        begin = _last(said, self.start)
        if begin < 0 or self.eos in said[begin:]:  # nothing was thought in this turn
            return self.start
        prompt = f"{said[:begin]}"
        if self.end not in said[begin:]:
            at = len(said) - begin - 1
            return self.end if at >= self.thought else self._words(f"thought {prompt}", self.thought)[at]
        cut = said.index(self.end, begin)
        text = self.text(said[:begin], cut - begin - 1)
        at = len(said) - cut - 1
        return text[at] if at < len(text) else self.eos

    def text(self, prompt: Sequence[int], thought: int) -> list[int]:
        """The words of the answer behind so many tokens of thought."""
        key = f"answer {list(prompt)}"
        full = self._words(key, self.answer)
        if thought >= self.thought:
            return full
        known = f"{key} behind {thought}"
        if known not in self._texts:
            self._keep(known, self._changed(full, thought / self.thought, Random(f"{self._seed} {known}")))
        return self._texts[known]

    def _changed(self, full: Sequence[int], share: float, random: Random) -> list[int]:
        overlap = self.overlap(share) if callable(self.overlap) else self.overlap
        out: list[int] = []
        for word in full:
            edit = "keep" if random.random() < overlap else random.choice(self._edits)
            if edit in ("substitute", "insert"):
                out.append((word + random.randrange(1, self.start)) % self.start)
            if edit in ("keep", "insert"):
                out.append(word)
        return out

    def _words(self, key: str, n: int) -> list[int]:
        if key not in self._texts:
            random = Random(f"{self._seed} {key}")
            self._keep(key, [random.randrange(self.start) for _ in range(n)])
        return self._texts[key]

    def _keep(self, key: str, text: list[int]) -> None:
        self._texts[key] = text
        while len(self._texts) > _KEPT:
            self._texts.popitem(last=False)


def _last(tokens: Sequence[int], token: int) -> int:
    return next((i for i in range(len(tokens) - 1, -1, -1) if tokens[i] == token), -1)
