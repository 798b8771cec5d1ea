"""Toys that several test folders share: a counting model, a codec over byte pieces, drafters with a fault or a purpose."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

import numpy as np
import torch

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.completion import Completion
from surefoot.core.engine import Engine
from surefoot.core.protocols import Need, Plan
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree


def counter(vocab: int = 40, certainty: float = 30.0, **options: int) -> TableModel:
    """After token t comes t + 1 (mod V), almost surely."""
    logits = torch.zeros(vocab + 1, vocab, dtype=torch.float64)
    for t in range(vocab + 1):
        logits[t, (t + 1) % vocab] = certainty
    return TableModel(logits, 1, **options)


class _Decoder:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(self._pieces[token])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class ToyCodec:
    """Token id -> bytes; prompts are token ids. A character may span several tokens."""

    def __init__(self, pieces: Sequence[str | bytes], eos: Sequence[int] = ()) -> None:
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]
        self.eos_ids = tuple(eos)
        self.vocab_size = len(self.pieces)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The longest piece first."""
        rest, out = text.encode(), []
        while rest:
            fitting = [i for i, piece in enumerate(self.pieces) if piece and rest.startswith(piece)]
            best = max(fitting, key=lambda i: len(self.pieces[i]))
            out.append(best)
            rest = rest[len(self.pieces[best]) :]
        return out

    def prompt(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)

    def decoder(self) -> _Decoder:
        return _Decoder(self.pieces)

    def text(self, tokens: Sequence[int]) -> str:
        return b"".join(self.pieces[t] for t in tokens).decode(errors="replace")


class Truth:
    """What plain decoding says to a row: its own prompt and options on the same target, run once and remembered."""

    def __init__(self, target, longest: int | None = None, **engine) -> None:
        self._target, self._longest, self._engine = target, longest, engine
        self._known: dict[object, tuple[int, ...]] = {}

    def __call__(self, row: Row) -> tuple[int, ...]:
        key = (tuple(row.tokens[: row.n_prompt]), row.params)
        if key not in self._known:
            engine = Engine(self._target, **self._engine)
            other = engine.add(key[0], row.params)
            while not other.done:
                engine.step()
            engine.close()
            self._known[key] = tuple(other.output)
        return self._known[key]


class Custom:
    """A drafter made of one function (row, plan) -> tree; keeps what it was asked and told."""

    needs = Need()

    def __init__(self, one: Callable[[Row, Plan], DraftTree], source: int = 1, name: str = "custom") -> None:
        self._one = one
        self.source = source
        self.name = name
        self.plans: list[Plan] = []
        self.forgotten: list[int] = []

    def propose(self, rows, plans):
        self.plans += plans
        return [self._one(row, plan) for row, plan in zip(rows, plans, strict=True)]

    def observe(self, rows, forest, scores, verdicts):
        assert forest.rows == len(rows) == len(verdicts)

    def forget(self, rows):
        self.forgotten += [row.id for row in rows]


def tree(tokens: Sequence[int], parents: Sequence[int], q: torch.Tensor | None = None, source: int = 1) -> DraftTree:
    sources = torch.full((len(tokens),), source, dtype=torch.int16)
    sources[0] = 0
    return DraftTree(torch.tensor(list(tokens)), torch.tensor(list(parents)), q, sources)


def within(plan: Plan, tokens: Sequence[int], parents: Sequence[int]) -> DraftTree:
    """A point tree, without the nodes that are deeper than the plan; nodes are sorted by depth."""
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    n = sum(d <= plan.depth for d in depth)
    return tree(tokens[:n], parents[:n])


def random_trees(vocab: int, seed: int) -> Callable[[Row, Plan], DraftTree]:
    """Point trees of random shape and tokens within the plan; a function of (seed, history)."""

    def one(row: Row, plan: Plan) -> DraftTree:
        rng = np.random.default_rng([seed, *row.tokens])
        tokens, parents, depth = [row.tokens[-1]], [-1], [0]
        used: set[tuple[int, int]] = set()
        for _ in range(int(rng.integers(0, plan.nodes + 1))):
            parent = int(rng.integers(0, len(tokens))) if plan.width > 1 else len(tokens) - 1
            token = int(rng.integers(0, vocab))
            if depth[parent] < plan.depth and (parent, token) not in used:
                used.add((parent, token))
                tokens.append(token)
                parents.append(parent)
                depth.append(depth[parent] + 1)
        return tree(tokens, parents)

    return one


def fixed(target, drafter, k: int, width: int = 1, nodes: int | None = None, **engine) -> Engine:
    return Engine(target, [drafter], FixedController(drafter.name, k, width, nodes), **engine)


def run(engine: Engine, *requests: tuple[Sequence[int], dict]) -> list[Completion]:
    """Requests with options of their own, in one batch."""
    from surefoot.core.params import SamplingParams

    rows = [engine.add(prompt, SamplingParams.build(options)) for prompt, options in requests]
    while not all(row.done for row in rows):
        engine.step()
    return [engine.completion(row) for row in rows]
