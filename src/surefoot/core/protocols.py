"""The protocols between engine, targets, drafters and controllers, and the small values that pass between them.

B rows, N nodes in a tree, M nodes in a forest, R scored nodes, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from .abilities import Attaches as Attaches
from .abilities import Closes as Closes
from .abilities import Follows as Follows
from .ends import Ends as Ends
from .ends import Exits as Exits
from .tree import DraftTree, Forest

if TYPE_CHECKING:
    from .noise import Noise
    from .request import Row

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a target can do. ``exact``: the probe found a class of passes with bitwise equal logits."""

    name: str
    vocab_size: int
    hidden_size: int
    n_layers: int
    max_context: int
    """Most tokens of one row, prompt and output together."""
    max_nodes: int
    """Most new tokens of one row in one pass."""
    capacity: int
    """Tokens that the KV pool holds over all rows."""
    min_width: int = 1
    """Rows of a pass narrower than this are padded (by :meth:`Forest.pack`)."""
    steady: bool = False
    """Changing the number of tokens between passes is dear, so a smaller pass may be padded to the last one's size."""
    narrow: int = 0
    """Passes of up to so many tokens, and wider ones, keep a size of their own each: going from one to the other is cheap."""
    tree: bool = True
    paths: bool = False
    """A tree is computed path by path: a branch costs its ancestors again."""
    exact: bool = True
    hidden: tuple[int, ...] = ()
    """Layers whose residual stream can be tapped: l = after layer l, 0 = embeddings, :attr:`last` = what the head reads."""
    exits: tuple[int, ...] = ()
    """Layers after which the model can be cut for early exit."""
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def last(self) -> int:
        """The tap behind the final norm."""
        return self.n_layers + 1


@dataclass(frozen=True, slots=True)
class Need:
    """What a pass must return beside logits: the taps of :attr:`Traits.hidden` with these numbers."""

    hidden: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of one pass; valid until the next pass of the same target.

    logits  [R, V] float32 or float64, rows in the order of :meth:`Forest.scored`
    hidden  layer -> [M, H]
    """

    logits: Tensor
    hidden: dict[int, Tensor] = field(default_factory=dict)
    work: int = 0
    """Tokens that the pass really computed, where the backend adds some of its own; 0: the nodes of the forest."""


@dataclass(frozen=True, slots=True)
class InvarianceReport:
    """Outcome of the probe. ``difference[name]`` is the largest |logit difference| against the reference pass."""

    exact: bool
    min_width: int
    masked: bool
    """Whether every pass must use the masked (tree) attention path to stay in one class."""
    difference: dict[str, float]


class Slot(Protocol):
    """One row's place in a target's cache."""

    @property
    def length(self) -> int:
        """Tokens whose KV is committed."""
        ...


@runtime_checkable
class TargetModel(Protocol):
    """A causal language model with a cache of committed tokens and one kind of forward pass."""

    @property
    def traits(self) -> Traits: ...

    def open(self, n: int) -> list[Slot]:
        """n empty slots."""
        ...

    def fork(self, slot: Slot, length: int | None = None) -> Slot:
        """A new slot with the first ``length`` (default: all) committed tokens of ``slot``; shares their KV."""
        ...

    def score(self, slots: Sequence[Slot], forest: Forest, need: Need) -> Scores:
        """ONE forward pass over all rows. The new KV is provisional."""
        ...

    def commit(self, slots: Sequence[Slot], paths: Sequence[Sequence[int]]) -> None:
        """Keep the KV of these nodes (local to the row, ascending) of the last pass, drop all else."""
        ...

    def close(self, slots: Sequence[Slot]) -> None:
        """Give the slots back. Closing twice is harmless."""
        ...

    def probe(self) -> InvarianceReport:
        """Score the same tokens at several widths and shapes and compare the logits bit for bit."""
        ...


class Stop(Protocol):
    """Ends a draft. Stopping *after* a token because of that token's own step is exact; taking it back is not."""

    def __call__(self, law: Array, token: int, depth: int) -> bool:
        """Whether the draft ends after ``token``, drafted at ``depth`` (from 1) and drawn from, or best in, ``law`` [V]."""
        ...


class Cut(Protocol):
    """Says how much of a draft is worth its cost, to drafters that estimate how far it reaches."""

    def __call__(self, reach: Sequence[float], work: Sequence[int]) -> int:
        """How many of the drafted nodes to keep, from the first on.

        ``reach[i]``: estimated probability that node i is accepted together with its ancestors; ``work[i]``: tokens that a pass
        computes for it beyond the nodes before it (more than one where a branch computes its ancestors again).
        """
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What a controller asks for one row: at most ``depth`` tokens deep, ``width`` children a node, ``nodes`` in all.

    ``floor``: a proposal whose estimated probability of being reached lies under it is not worth its cost; the first ``free``
    nodes only fill padding, and cost nothing.
    ``rate``: tokens a second that decoding reaches, over all rows: what a second of drafting is worth; 0: not told.
    ``hold``: pad the row to this many nodes if the draft is shorter, where changing the size of a pass is dear; ``sizes``
    (rising): pad a draft to the least of these that holds it.
    ``stop``: asked after each drafted token by drafters that know the law it came from. ``cut``: asked at the end by drafters
    of point proposals that estimate their reach; a token that was drawn from a law must not be cut for what it is.
    A plan of zero nodes is plain decoding.
    """

    drafter: str | None = None
    depth: int = 0
    width: int = 1
    nodes: int = 0
    floor: float = 0.0
    free: int = 0
    rate: float = 0.0
    hold: int = 0
    sizes: tuple[int, ...] = ()
    stop: Stop | None = None
    cut: Cut | None = None


PLAIN = Plan()


class PerNode(Protocol):
    """The target's law [V] at a node of a draft, made when it is asked for; or only a draw from it, which costs less."""

    def __getitem__(self, node: int) -> Tensor: ...

    def draw(self, node: int, noise: Noise, position: int, lane: int, turn: int = 0) -> int: ...


def draw(p: PerNode | Tensor, node: int, noise: Noise, position: int, lane: int, turn: int) -> int:
    """A token drawn from the law at a node; ``p`` may be all laws [N, V]."""
    if isinstance(p, Tensor):
        return noise.categorical(p[node], position, lane, turn)
    return p.draw(node, noise, position, lane, turn)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of verification: accepted nodes from the root downwards (root excluded), and the target's own token."""

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured seconds of one step."""

    draft: float
    score: float
    other: float
    nodes: int
    """Tokens that the pass computed, padding included."""
    prefill: int
    """Nodes of the pass that only filled the cache; 0 in pure decoding."""
    context: int
    """Longest context of the pass."""


class Drafter(Protocol):
    """Proposes a tree for each row. It learns from passes that are made anyway; it never changes the output."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> int:
        """The number that marks this drafter's nodes, from 1 up."""
        ...

    @property
    def needs(self) -> Need: ...

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        """One tree a row, ``row.tokens[-1]`` its node 0 and within the plan; only that node where it has nothing to say."""
        ...

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        """Called after every pass, ``rows`` being those of the forest; ``None``: the row was only prefilled."""
        ...

    def forget(self, rows: Sequence[Row]) -> None:
        """The rows ended; drop their state."""
        ...


class Controller(Protocol):
    """Decides what each row drafts in the next step."""

    def plan(self, rows: Sequence[Row]) -> list[Plan]: ...

    def learn(
        self,
        rows: Sequence[Row],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        costs: Costs,
    ) -> None: ...

    def forget(self, rows: Sequence[Row]) -> None: ...


class Decoder(Protocol):
    """Incremental detokenizer of one row."""

    def push(self, token: int) -> str:
        """Text that became final with this token ('' while a character is incomplete)."""
        ...

    def flush(self) -> str:
        """Text of an incomplete tail."""
        ...
