"""What request options mean, once more: plain Python over token histories, written without a look at the package's own way.

``shaped`` and ``probabilities`` take the logits of one position as a list and the tokens before it, and know nothing of
drafts, nodes or states. Options are a plain dict under the request's own names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toys_grammar import accepts

from surefoot.backends.table import TableModel
from surefoot.core.constraint import Constraint, from_response_format, from_structured_outputs

NEVER = -math.inf


class World:
    """A table and, where options speak of texts, the pieces of its tokens."""

    def __init__(self, target: TableModel, pieces: Sequence[bytes] = (), eos: Sequence[int] = ()) -> None:
        self.target = target
        self.pieces = [b"" if i in eos else p for i, p in enumerate(pieces)]
        self.eos = tuple(eos)
        self.extra: list[Callable[[Sequence[int], Sequence[int], list[float]], list[float]]] = []
        """Twins of a request's processors: (prompt, output, logits) -> logits."""

    def text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.pieces[t] for t in tokens)

    def ends(self, options: Mapping[str, Any]) -> set[int]:
        return {*options.get("stop_token_ids", ()), *(() if options.get("ignore_eos") else self.eos)}

    def shaped(self, prompt: Sequence[int], output: Sequence[int], options: Mapping[str, Any]) -> list[float]:
        """Logits after all options that change them."""
        x = [float(v) for v in self.target.next_logits([*prompt, *output])]
        for token, bias in dict(options.get("logit_bias", {})).items():
            x[int(token)] += bias
        repetition = options.get("repetition_penalty", 1.0)
        for token in {*prompt, *output}:
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        for token in set(output):
            x[token] -= options.get("presence_penalty", 0.0)
            x[token] -= options.get("frequency_penalty", 0.0) * list(output).count(token)
        for twin in self.extra:
            x = twin(prompt, output, x)
        return [v if self._possible(t, output, options) else NEVER for t, v in enumerate(x)]

    def _possible(self, token: int, output: Sequence[int], options: Mapping[str, Any]) -> bool:
        longer = [*output, token]
        if token not in options.get("allowed_token_ids", [token]):
            return False
        if len(output) < options.get("min_tokens", 0) and token in self.ends(options):
            return False
        if any(longer[-len(bad) :] == list(bad) for bad in options.get("bad_words_ids", ())):
            return False
        if any(bad.encode() in self.text(longer) for bad in options.get("bad_words", ())):
            return False
        found = constraint_of(options)
        return found is None or self._fits(found, token, output, options.get("constrain_after"))

    def _fits(self, constraint: Any, token: int, output: Sequence[int], after: str | None) -> bool:
        begin = 0
        if after is not None:
            marker = after.encode()
            whole = [n for n in range(1, len(output) + 1) if self.text(output[:n]).endswith(marker)]
            if not whole:
                text = self.text([*output, token])
                return marker not in text or text.endswith(marker)
            begin = whole[0]
        text = self.text(output[begin:])
        if token in self.eos:
            return accepts(constraint, text)
        return bool(self.pieces[token]) and accepts(constraint, text + self.pieces[token], prefix=True)

    def probabilities(self, prompt: Sequence[int], output: Sequence[int], options: Mapping[str, Any]) -> list[float]:
        """The law of the next token."""
        x = self.shaped(prompt, output, options)
        temperature = options.get("temperature", 0.0)
        if temperature == 0:
            return [float(t == x.index(max(x))) for t in range(len(x))]
        return filtered([v / temperature for v in x], options)

    def done(self, output: Sequence[int], options: Mapping[str, Any]) -> bool:
        if len(output) >= options["max_tokens"] or (output and output[-1] in self.ends(options)):
            return True
        # a language without an end token ends where nothing can follow
        if not output or self.eos or constraint_of(options) is None:
            return False
        return not any(self._possible(t, output, options) for t in range(len(self.pieces)))

    def joint(self, prompt: Sequence[int], options: Mapping[str, Any]) -> dict[tuple[int, ...], float]:
        """Every whole output with its probability."""
        going: dict[tuple[int, ...], float] = {(): 1.0}
        out: dict[tuple[int, ...], float] = {}
        while going:
            path, mass = going.popitem()
            if self.done(path, options):
                out[path] = mass
                continue
            p = self.probabilities(prompt, path, options)
            going |= {(*path, t): mass * p[t] for t in range(len(p)) if p[t] > 0}
        return out

    def greedy(self, prompt: Sequence[int], options: Mapping[str, Any]) -> tuple[int, ...]:
        output: list[int] = []
        while not self.done(output, options):
            x = self.shaped(prompt, output, options)
            output.append(x.index(max(x)))
        return tuple(output)


def constraint_of(options: Mapping[str, Any]) -> Constraint | None:
    return from_structured_outputs(options.get("structured_outputs")) or from_response_format(options.get("response_format"))


def softmax(x: Sequence[float]) -> list[float]:
    top = max(x)
    return normal([math.exp(v - top) for v in x])


def normal(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    return [v / total for v in weights]


def filtered(x: Sequence[float], options: Mapping[str, Any]) -> list[float]:
    """Top-k, top-p, min-p and typical-p, in this order; all that ties with the last one kept is kept."""
    kept = set(range(len(x)))
    if k := options.get("top_k", 0):
        kept = {t for t in kept if x[t] >= sorted(x, reverse=True)[min(k, len(x)) - 1]}
    p = softmax([v if t in kept else NEVER for t, v in enumerate(x)])
    if (top_p := options.get("top_p", 1.0)) < 1:
        mass, least = 0.0, 0.0
        for v in sorted(p, reverse=True):
            mass, least = mass + v, v
            if mass >= top_p:
                break
        p = [v if v >= least else 0.0 for v in p]
    least = options.get("min_p", 0.0) * max(p)
    p = normal([v if v >= least else 0.0 for v in p])
    if (typical := options.get("typical_p", 1.0)) < 1:
        entropy = -math.fsum(v * math.log(v) for v in p if v > 0)
        far = {t: abs(-math.log(v) - entropy) for t, v in enumerate(p) if v > 0}
        mass, last = 0.0, 0.0
        for t in sorted(far, key=far.__getitem__):
            mass, last = mass + p[t], far[t]
            if mass >= typical:
                break
        p = normal([v if t in far and far[t] <= last else 0.0 for t, v in enumerate(p)])
    return p
