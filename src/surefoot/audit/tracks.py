"""Scoring a given text without any draft, in several shapes of passes.

The *canonical* shape is that of plain decoding: the prompt in chunks, then one pending token a pass, each row packed by
:meth:`Forest.pack`, which pads it to the backend's ``min_width``. The other shapes feed the same tokens several at a time, also
with a sibling beside each of them, which is what makes a pass use the masks and kernels of trees. The siblings are made up and
never kept. Where these give other logits, no draft has been verified: it is the arithmetic of the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.protocols import Need, Slot, TargetModel
from ..core.tree import DraftTree, Forest, integers

CHUNK = 256
"""Prompt tokens of a pass, as in the engine."""


@dataclass(frozen=True, slots=True)
class Shape:
    """``width`` tokens of the text a pass; ``siblings``: distance of the made-up token beside each, 0 for none.

    ``chunk``: prompt tokens of a pass.
    """

    width: int
    siblings: int = 0
    chunk: int = CHUNK


CANONICAL = Shape(1)


class Track:
    """One row of a target, fed with tokens that are known beforehand. Close it.

    ``root``: a track that stands at the end of the same prompt; its cache is shared.
    """

    def __init__(self, model: TargetModel, prompt: Sequence[int], chunk: int = CHUNK, root: Track | None = None) -> None:
        self.model = model
        self.slot: Slot
        self.first: Tensor
        """Logits [V] after the prompt."""
        if root is not None:
            self.slot, self.first = model.fork(root.slot), root.first
            return
        chunk = max(1, min(chunk, model.traits.max_nodes))
        [self.slot] = model.open(1)
        for begin in range(0, len(prompt), chunk):
            part = list(prompt[begin : begin + chunk])
            if begin + chunk < len(prompt):
                self._pass(DraftTree.chain(part), [], wanted=False)
            else:
                self.first = self._pass(DraftTree.chain(part[-1:]), part[:-1])[0]

    def feed(self, tokens: Sequence[int], shape: Shape) -> Iterator[Tensor]:
        """Logits [V] after each token; all are committed."""
        most = self.model.traits.max_nodes
        if shape.siblings and self.model.traits.tree and most > 2:
            width = max(1, min(shape.width, (most - 1) // 2))
            for begin in range(0, len(tokens), width):
                yield from self._beside(tokens[begin : begin + width], shape.siblings)
            return
        width = max(1, min(shape.width, most))
        for begin in range(0, len(tokens), width):
            yield from self._pass(DraftTree.chain(tokens[begin : begin + width]), [])

    def _beside(self, tokens: Sequence[int], distance: int) -> Tensor:
        """A pass over tokens with siblings; only the tokens are committed."""
        vocab = self.model.traits.vocab_size
        nodes, parents, path = [tokens[0]], [-1], [0]
        for token in [*tokens[1:], (tokens[-1] + 2 * distance) % vocab]:
            nodes += [(token + distance) % vocab, token]
            parents += [path[-1]] * 2
            path.append(len(nodes) - 1)
        path.pop()  # the last pair is there to make a tree of a single token, too
        tree = DraftTree(integers(nodes), integers(parents), None, integers([0] * len(nodes), np.int16))
        logits = self._score(self.slot, tree, [], True)[path]
        self.model.commit([self.slot], [path])
        return logits

    def peek(self, tokens: Sequence[int]) -> Tensor:
        """Logits [n, V] after each token, in one pass of a fork of this row."""
        fork = self.model.fork(self.slot)
        try:
            return self._score(fork, DraftTree.chain(tokens), [], True)
        finally:
            self.model.close([fork])

    def _pass(self, tree: DraftTree, lead: list[int], wanted: bool = True) -> Tensor:
        logits = self._score(self.slot, tree, lead, wanted)
        self.model.commit([self.slot], [range(len(lead) + len(tree))])
        return logits

    def _score(self, slot: Slot, tree: DraftTree, lead: list[int], wanted: bool) -> Tensor:
        forest = Forest.pack([tree], [lead], [wanted], self.model.traits.min_width)
        return self.model.score([slot], forest, Need()).logits.clone()

    def close(self) -> None:
        self.model.close([self.slot])


def scored(
    model: TargetModel, prompt: Sequence[int], output: Sequence[int], shape: Shape, root: Track | None = None
) -> Iterator[Tensor]:
    """Logits [V] at each output position: those that its token was taken from. ``root``: the prompt in the canonical shape."""
    track = Track(model, prompt, shape.chunk, root if shape.chunk == CHUNK else None)
    try:
        yield track.first
        yield from track.feed(output[:-1], shape)
    finally:
        track.close()
