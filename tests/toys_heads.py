"""Toys for trained heads: tiny targets that have hidden states, heads with random weights, drafters that are watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from contract.conftest import VOCAB, tiny
from torch import Tensor, nn
from toys import fixed, run

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.protocols import Need
from surefoot.drafters.head import HeadDrafter

IDS = (1, 2, 3, 5, 8, 13, 21, 30, 34, 40, 44, 47, 50, 52)
"""A reduced vocabulary of the tiny models."""
PROMPTS = ([3, 9, 27], [5], [40, 2, 40, 2, 40, 2, 40, 2, 7], [11, 12, 13, 14, 15, 16, 17, 18])
LAST = 3
"""The tap behind the final norm of a tiny model."""


def torch_target(kind: str = "LlamaConfig"):
    from surefoot.backends.torch import TorchModel

    target = TorchModel(tiny(kind), max_rows=24)
    target.adopt(target.probe())
    return target


class TableLane:
    """Says what a table model says; a state is the tokens before. ``ids``: a reduced vocabulary."""

    needs = Need()

    def __init__(self, model: TableModel, ids: Sequence[int] | None = None, depth: int = 9) -> None:
        self.model, self.depth = model, depth
        self.draft_ids = None if ids is None else torch.tensor(ids)
        self.steps: list[int] = []
        self.forgotten: list[int] = []
        self.observed = 0
        self.deaf: set[int] = set()
        """Numbers of the rows that it knows nothing of."""

    def root(self, row):
        return None if row.id in self.deaf else tuple(row.tokens[:-1])

    def step(self, states, tokens):
        self.steps.append(len(states))
        after = [(*state, token) for state, token in zip(states, tokens, strict=True)]
        logits = torch.stack([self.model.next_logits(x) for x in after])
        return after, logits if self.draft_ids is None else logits[:, self.draft_ids]

    def observe(self, rows, forest, scores, verdicts):
        self.observed += 1

    def forget(self, rows):
        self.forgotten += [row.id for row in rows]


def shaken(module, by: float = 0.3):
    """Random weights, so that nothing is zero and no two heads agree."""
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return module.eval()


class Watched(HeadDrafter):
    """Checks at each proposal that the lane stands on the activations of the token before the pending one.

    ``layers``: taps, of 0, 1 and LAST. ``read``: root state -> activations [1, k H].
    """

    def __init__(self, lane, target, layers: Sequence[int], read: Callable[..., Tensor]) -> None:
        super().__init__(lane, VOCAB, name="head")
        self._model, self._layers, self._read = target.model, layers, read
        self.checked = self.blind = 0

    def propose(self, rows, plans):
        for row in rows:
            root = self.lane.root(row)
            if root is None:
                self.blind += 1
                continue
            with torch.no_grad():
                out = self._model(torch.tensor([row.tokens[:-1]]), output_hidden_states=True)
            streams = [out.hidden_states[min(layer, 2)][0, -1:] for layer in self._layers]
            torch.testing.assert_close(self._read(root), torch.cat(streams, 1), rtol=1e-3, atol=1e-4)
            self.checked += 1
        return super().propose(rows, plans)


def compiled(module: nn.Module, example: Sequence[Tensor], dynamic: Sequence[Sequence[int]] = ()):
    """A ``Compile`` as unkind as its contract allows: the results are buffers that the next call overwrites."""
    with torch.no_grad():
        module(*example)
    kept: list[Tensor] = []

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        for a, e in zip(args, example, strict=True):
            assert (a.dtype, a.shape[1:]) == (e.dtype, e.shape[1:])
        for buffer in kept:
            buffer.fill_(float("nan"))
        with torch.no_grad():
            out = module(*args)
        kept[:] = [out] if isinstance(out, Tensor) else list(out)
        return tuple(kept)

    return function


def agrees_with_plain(target, lane_of, *, lengths=(1, 2, 3, 5, 8), width: int = 1, wrap=None, **options) -> float:
    """Ragged rows, plain and with the lane's drafts: equal outputs. Share of drafted tokens that were accepted.

    ``lane_of``: () -> a new lane. ``wrap``: lane -> drafter.
    """
    requests = [(prompt, {"max_tokens": 20 + 3 * i, **options}) for i, prompt in enumerate(PROMPTS)]
    engine = Engine(target)
    plain = [c.token_ids for c in run(engine, *requests)]
    engine.close()
    drafted = accepted = 0
    for k in lengths:
        drafter = HeadDrafter(lane_of(), VOCAB, name="head") if wrap is None else wrap(lane_of())
        engine = fixed(target, drafter, k, width, k if width == 1 else k + width)
        found = run(engine, *requests)
        engine.close()
        assert [c.token_ids for c in found] == plain, k
        drafted += sum(c.stats.draft_tokens for c in found)
        accepted += sum(c.stats.accepted_tokens for c in found)
    assert drafted, "nothing was drafted"
    return accepted / drafted
