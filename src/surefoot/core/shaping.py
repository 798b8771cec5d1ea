"""What a request's options do to the logits of one position, given the tokens before it.

A :class:`State` stands after the tokens that the row kept. The verifier forks it along a draft, so that every node is shaped
by its own ancestors; :meth:`Row.commit` advances it once per kept token, and nothing else does. The logits that come out
depend on the tokens before them alone, never on how many of them were drafted.

Order: logit_bias, repetition_penalty, presence and frequency penalty, your processors, then what makes tokens impossible
(allowed_token_ids, bad words, min_tokens, the constraint), and last the forced end of thinking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import BadRequest

Logits = np.ndarray[Any, Any]


class LogitsProcessor(Protocol):
    """A processor of your own. A plain function ``(token_ids, logits) -> logits`` is one without state.

    One with state also has ``fork()``, an independent copy, and ``advance(token)``, called once per token of the path. Each
    request begins with a fork of the object that its options name. Both are called for drafted tokens too, on forks that
    are thrown away; the request's own object sees the kept tokens, each once, in order.
    """

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        """New logits [V]; ``token_ids``: prompt and output before this position, ``logits`` a copy that may be changed."""
        ...


class Processor(Protocol):
    """One option. ``mask``: the option's name if it can make every token impossible, else ''."""

    @property
    def mask(self) -> str: ...

    def apply(self, logits: Logits, tokens: Sequence[int]) -> None:
        """Change ``logits`` [V] in place; ``tokens``: prompt and output before this position."""
        ...

    def advance(self, token: int) -> None: ...

    def fork(self) -> Processor: ...


class History(Sequence[int]):
    """A row's tokens and a few more, without copying the former."""

    __slots__ = ("base", "extra")

    def __init__(self, base: Sequence[int], extra: Sequence[int] = ()) -> None:
        self.base = base
        self.extra = extra

    def __len__(self) -> int:
        return len(self.base) + len(self.extra)

    def __iter__(self) -> Iterator[int]:
        yield from self.base
        yield from self.extra

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [*self.base, *self.extra][index]
        at = index if index >= 0 else index + len(self)
        if not 0 <= at < len(self):
            raise IndexError(index)
        return self.base[at] if at < len(self.base) else self.extra[at - len(self.base)]


class State:
    """All options of one request that look at tokens; ``tokens`` is the row's own list."""

    __slots__ = ("_extra", "_masked", "_parts", "_tokens")

    def __init__(self, parts: Sequence[Processor], tokens: Sequence[int], extra: Sequence[int] | None = None) -> None:
        self._parts = parts
        self._tokens = tokens
        self._extra = extra
        self._masked = any(part.mask for part in parts)

    def fork(self) -> State:
        """A copy for a path below the row's last token; valid until the row commits."""
        return State([part.fork() for part in self._parts], self._tokens, list(self._extra or ()))

    def moved(self, tokens: Sequence[int], extra: int) -> State:
        """A state of another row, whose own list ``tokens`` begins with this one's tokens and goes on with ``extra`` more."""
        made = State([getattr(part, "moved", part.fork)() for part in self._parts], tokens)
        for token in tokens[len(tokens) - extra :]:
            made.advance(token)
        return made

    def advance(self, token: int) -> None:
        """One token further. The row's own state reads it from the row."""
        if self._extra is not None:
            self._extra = [*self._extra, token]
        for part in self._parts:
            part.advance(token)

    def shape(self, logits: Logits, known: int | None = None) -> Logits:
        """Shaped copy of ``logits`` [V]; ids from ``known`` on are impossible. :class:`BadRequest` if no token is left."""
        out = logits.copy()
        if known is not None:
            out[known:] = -np.inf
        tokens = History(self._tokens, self._extra or ())
        for part in self._parts:
            part.apply(out, tokens)
        if self._masked and not float(out.max()) > -np.inf:
            names = " and ".join(sorted({part.mask for part in self._parts if part.mask}))
            names = names or "logits_processors"
            raise BadRequest(f"no token is possible at token {len(tokens)} of the request: loosen {names}")
        return out

    def check(self, size: int, known: int) -> None:
        """:class:`BadRequest` if the options alone, whatever the logits [size], leave none of ``known`` tokens possible now."""
        masks = [part for part in self._parts if part.mask and part.mask != Custom.mask]
        State(masks, self._tokens).shape(np.zeros(size), known)

    def forced(self, limit: int) -> list[int]:
        """At most ``limit`` tokens that are without alternative, as far as that is cheap to know."""
        for part in reversed(self._parts):
            found: list[int] = getattr(part, "forced", lambda _: [])(limit)
            if found:
                return found
        return []

    @property
    def ended(self) -> bool:
        """The output is complete and nothing can follow."""
        return any(getattr(part, "ended", False) for part in self._parts)


class Bias:
    """``logit_bias``."""

    mask = ""

    def __init__(self, ids: Sequence[int], values: Sequence[float]) -> None:
        self._ids = np.array(ids, np.int64)
        self._values = np.array(values)

    def apply(self, logits: Logits, tokens: Sequence[int]) -> None:
        logits[self._ids] += self._values.astype(logits.dtype)

    def advance(self, token: int) -> None: ...

    def fork(self) -> Bias:
        return self


class Allowed:
    """``allowed_token_ids``."""

    mask = "allowed_token_ids"

    def __init__(self, ids: Sequence[int], vocab: int) -> None:
        self._banned = np.ones(vocab, bool)
        self._banned[list(ids)] = False

    def apply(self, logits: Logits, tokens: Sequence[int]) -> None:
        np.putmask(logits, self._banned, -np.inf)

    def advance(self, token: int) -> None: ...

    def fork(self) -> Allowed:
        return self


class Custom:
    """A user's processor."""

    mask = "logits_processors"

    def __init__(self, given: Any) -> None:
        self._given = given
        self._fork, self._advance = getattr(given, "fork", None), getattr(given, "advance", None)
        if (self._fork is None) != (self._advance is None):
            raise BadRequest(f"logits_processors: {_name(given)} has only one of fork and advance; give both, or neither")

    def apply(self, logits: Logits, tokens: Sequence[int]) -> None:
        made = self._call(self._given, list(tokens), torch.from_numpy(logits.copy()))
        if not isinstance(made, Tensor) or made.shape != logits.shape:
            raise BadRequest(f"logits_processors: {_name(self._given)} must return logits of shape {list(logits.shape)}")
        made = made.detach().cpu().to(torch.from_numpy(logits).dtype)
        if not bool((made < torch.inf).all()):  # NaN is not either
            raise BadRequest(f"logits_processors: {_name(self._given)} returned NaN or infinity; return numbers or -inf")
        logits[:] = made.numpy()

    def advance(self, token: int) -> None:
        if self._advance is not None:
            self._call(self._advance, token)

    def fork(self) -> Custom:
        return self if self._fork is None else Custom(self._call(self._fork))

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Whatever goes wrong in a user's code is the request's error, not the engine's."""
        try:
            return function(*arguments)
        except Exception as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise BadRequest(f"logits_processors: {_name(self._given)} failed: {what}") from error


def _name(given: Any) -> str:
    return str(getattr(given, "__name__", type(given).__name__))
