"""The reference backend: any transformers causal language model, on CPU or GPU, through its public interface.

Contract: :class:`surefoot.core.protocols.TargetModel`. Every pass, chains included, gives the model an explicit
4-D mask and explicit positions, so plain and speculative decoding take one attention path. The KV cache is ours
(:mod:`.torch_cache`), a fork copies its prefix, and a new pass drops whatever the last one left uncommitted.
With ``static=True`` the cache is allocated once and passes are padded to the same few shapes: all rows, full context,
widths that are powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core.protocols import Ends, InvarianceReport, Need, Scores, Slot, Traits
from ..core.sublayers import SkipSet
from ..core.tree import DraftTree, Forest
from ..errors import BackendError, BadRequest
from .torch_batch import Batch, bucket, check_pass, kept_columns, lay_out
from .torch_cache import Pool, TorchSlot, round_up
from .torch_ends import ends
from .torch_exit import Part, Sections
from .torch_family import describe, masked_attention
from .torch_load import from_pretrained
from .torch_probe import compare_with_full_pass, invariance
from .torch_skip import TorchTrial, draft_of
from .torch_taps import Taps

STATIC_CONTEXT = 2048
"""Tokens a row of a static cache holds where ``capacity_tokens`` does not say."""


class TorchModel:
    """A loaded transformers model as a target, or as a draft model."""

    def __init__(
        self,
        model: Any,
        *,
        capacity_tokens: int | None = None,
        max_rows: int = 16,
        max_nodes: int = 512,
        max_context: int | None = None,
        trees: bool = True,
        static: bool = False,
        cut: int | Sequence[int] | None = None,
        width_step: int = 4,
        context_step: int = 512,
        name: str | None = None,
    ) -> None:
        """``capacity_tokens``: most cached tokens of all rows together. ``max_nodes``: widest pass of a row. ``cut``: layer, or
        layers, behind which :meth:`prefix` can stop.

        Passes are padded to multiples of ``width_step`` nodes and ``context_step`` cache columns: CPU kernels add in
        another order for other remainders, and these are the smallest steps under which chains agree bit for bit.
        A tree moves a path's keys to other columns, hence to another order of addition: ``trees=False`` gives them up.
        """
        self._family = family = describe(model)
        if min(max_rows, max_nodes, width_step, context_step) < 1:
            raise BadRequest("max_rows, max_nodes, width_step and context_step must be at least 1")
        if capacity_tokens is not None and capacity_tokens < max_rows:
            raise BadRequest(f"capacity_tokens must be at least max_rows ({max_rows})")
        masked_attention(model)
        self.model = model.eval()
        self._static = static
        weight = model.get_input_embeddings().weight
        self._device, self._dtype = weight.device, model.dtype
        context = min(family.max_context, max_context or family.max_context)
        if static:
            a_row = capacity_tokens // max_rows if capacity_tokens else min(context, STATIC_CONTEXT)
            context = min(context, a_row)
        nodes = min(max_nodes, context)
        self._capacity = capacity_tokens or max_rows * context
        self._steps = (width_step, context_step)
        whole = context + max(bucket(nodes), width_step)
        columns = round_up(whole if static else min(whole, context_step), context_step)
        self._pool = Pool(family.layers, max_rows, columns, fixed=static)
        self._slots: dict[int, TorchSlot] = {}
        self._traits = Traits(
            name=name or str(getattr(model.config, "name_or_path", "") or model.config.model_type),
            vocab_size=0,
            hidden_size=family.hidden_size,
            n_layers=family.layers,
            max_context=context,
            max_nodes=nodes,
            capacity=self._capacity,
            tree=trees,
            exact=False,
            hidden=tuple(range(family.layers + 1 + (family.decoder is not None))) if family.blocks is not None else (),
            exits=tuple(range(1, family.layers)) if family.blocks is not None else (),
            device=str(self._device),
            dtype=str(self._dtype).removeprefix("torch."),
        )
        self._sections = Sections(model, family.blocks, cut, self._batch, self._forward)
        self._traits = replace(self._traits, vocab_size=compare_with_full_pass(self))

    @staticmethod
    def load(
        path: str, *, device: str = "auto", dtype: str = "auto", attention: str | None = None, **options: Any
    ) -> TorchModel:
        """A folder (never the network) or a hub id; ``options`` as in the constructor.

        ``auto``: CUDA where there is one; float32 on CPU, else the stored dtype. ``attention``: eager or sdpa.
        """
        return TorchModel(from_pretrained(path, device, dtype, attention), **{"name": str(path), **options})

    @property
    def traits(self) -> Traits:
        return self._traits

    @property
    def max_rows(self) -> int:
        return self._pool.max_rows

    def open(self, n: int) -> list[Slot]:
        return [self._new_slot() for _ in range(n)]

    def fork(self, slot: Slot, length: int | None = None) -> Slot:
        source = self._own(slot)
        kept = source.length if length is None else length
        if not 0 <= kept <= source.length:
            raise BackendError(f"cannot fork {kept} tokens of a row that has {source.length}; give a length up to that")
        self._room(kept)
        new = self._new_slot()
        self._pool.copy(source.index, new.index, kept)
        new.length = kept
        return new

    def close(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            mine = cast(TorchSlot, slot)
            if self._slots.get(mine.index) is mine:
                del self._slots[mine.index]
                mine.pending, mine.length = None, 0
                self._sections.progress.forget([mine])
                self._pool.give(mine.index)

    def score(self, slots: Sequence[Slot], forest: Forest, need: Need) -> Scores:
        mine = [self._own(s) for s in slots]
        self._check(mine, forest, need)
        if not mine:
            return Scores(torch.zeros(0, self._traits.vocab_size, device=self._device))
        for slot in self._slots.values():
            slot.pending = None
        early = self._sections.early(mine, forest, need)
        batch = self._batch(mine, forest, [0] * len(mine))
        least = self._traits.min_width if self._family.keeps_logits else batch.ids.shape[1]
        kept = kept_columns(batch, forest, least, self._steps[0], self._static)
        streams, part = self._sections.resume(batch, forest, early)
        with Taps(self._family.blocks, self._family.decoder, [x for x in need.hidden if x not in streams]) as taps:
            logits = self._forward(batch, kept, part)
        hidden = taps.streams | {layer: x for layer, x in streams.items() if layer in need.hidden}
        for b, slot in enumerate(mine):
            lo = forest.begins[b]
            slot.pending = forest.parents[lo : lo + forest.sizes[b]].tolist()
        scored = forest.scored().numpy()
        at = (batch.row[scored], np.searchsorted(kept, batch.column[scored]))
        rows, places = (torch.from_numpy(x).to(self._device) for x in at)
        every = torch.from_numpy(batch.row * batch.ids.shape[1] + batch.column).to(self._device)
        found = {layer: h.reshape(-1, h.shape[-1])[every] for layer, h in hidden.items()}
        return Scores(logits[rows, places].float(), found)

    @property
    def cuts(self) -> tuple[int, ...]:
        return self._sections.progress.cuts

    def prefix(
        self, slots: Sequence[Slot], chains: Sequence[Sequence[int]], layer: int, counts: Sequence[int] | None = None
    ) -> Tensor:
        mine = [self._own(s) for s in slots]
        self._check(mine, Forest.pack([DraftTree.chain(tokens) for tokens in chains]), Need())
        return self._sections.prefix(mine, chains, layer, counts)

    def commit(self, slots: Sequence[Slot], paths: Sequence[Sequence[int]]) -> None:
        for slot, path in zip(slots, paths, strict=True):
            mine, nodes = self._own(slot), [int(i) for i in path]
            if mine.pending is None:
                raise BackendError("commit follows the pass that scored the row, once; score the row again")
            chain = [-1, *nodes[:-1]]
            if any(not 0 <= i < len(mine.pending) or mine.pending[i] != p for i, p in zip(nodes, chain, strict=False)):
                raise BackendError(f"{nodes} is not a path from the row's first node; commit an accepted path")
            self._pool.keep(mine.index, mine.length, nodes)
            mine.length += len(nodes)
            mine.pending = None
            self._sections.progress.forget([mine])

    def probe(self) -> InvarianceReport:
        return invariance(self)

    def adopt(self, report: InvarianceReport) -> None:
        """Let the traits say what the probe found."""
        self._traits = replace(self._traits, exact=report.exact, min_width=report.min_width)

    def without(self, skips: SkipSet, *, kv_tokens: int | None = None, max_rows: int | None = None) -> TorchModel:
        """The model without these sublayers: shared parameters, a cache of its own, passes of the same shapes.

        A drafting row takes two cache rows, hence by default room for twice as many as here.
        """
        traits, (width_step, context_step) = self._traits, self._steps
        draft = TorchModel(
            draft_of(self.model, skips),
            capacity_tokens=kv_tokens or 2 * self._capacity,
            max_rows=max_rows or 2 * self.max_rows,
            max_nodes=traits.max_nodes,
            max_context=traits.max_context,
            trees=traits.tree,
            static=self._static,
            width_step=width_step,
            context_step=context_step,
            name=f"{traits.name} without {len(skips)} sublayers",
        )
        draft._traits = replace(draft._traits, min_width=traits.min_width)
        return draft

    def ends(self) -> Ends:
        """The tables that the model reads and says tokens with, and its final norm."""
        return ends(self.model, self._family)

    def trial(self) -> TorchTrial:
        """To try skip sets on texts."""
        return TorchTrial(self.model)

    def _own(self, slot: Slot) -> TorchSlot:
        mine = cast(TorchSlot, slot)
        if self._slots.get(mine.index) is not mine:
            raise BackendError("the row is closed or belongs to another model; open a new one")
        return mine

    def _new_slot(self) -> TorchSlot:
        slot = TorchSlot(self._pool.take())
        self._slots[slot.index] = slot
        return slot

    def _room(self, tokens: int) -> None:
        held = sum(s.length for s in self._slots.values())
        if held + tokens > self._capacity:
            raise BackendError(
                f"the KV cache holds {held} of {self._capacity} tokens, {tokens} more do not fit; raise capacity_tokens"
            )

    def _check(self, slots: list[TorchSlot], forest: Forest, need: Need) -> None:
        check_pass(self._traits, [s.index for s in slots], [s.length for s in slots], forest, need)
        self._room(sum(forest.sizes))

    def _batch(self, slots: list[TorchSlot], forest: Forest, ahead: Sequence[int]) -> Batch:
        """``ahead``: provisional tokens of each row that stay where they are."""
        step, context_step = self._steps
        width = round_up(max(self._traits.min_width, *np.diff(forest.begins).tolist()), step)
        # rows that only come along, in a static cache, are written to behind what was drafted
        lengths = {s.index: s.length + self._sections.progress.ahead(s) for s in self._slots.values()}
        lengths |= {s.index: s.length + a for s, a in zip(slots, ahead, strict=True)}
        if self._static:
            width, rows, seen = bucket(width), list(range(self._pool.max_rows)), self._pool.columns
        else:
            rows = sorted(s.index for s in slots)
            seen = round_up(max(lengths[row] for row in rows) + width, context_step)
        self._pool.reserve(seen)
        return lay_out(
            forest,
            [s.index for s in slots],
            lengths,
            rows=rows,
            width=width,
            seen=seen,
            max_context=self._traits.max_context,
            windows=self._family.windows,
            device=self._device,
            dtype=self._dtype,
        )

    @torch.no_grad()
    def _forward(self, batch: Batch, kept: np.ndarray, part: Part | None) -> Tensor:
        """Logits [B, K, V], or nothing of a pass over a part that ends before them.."""
        masks = batch.masks if self._family.keyed else next(iter(batch.masks.values()))
        extra: dict[str, Any] = {self._family.cache_argument: self._pool.cache}
        if self._family.keeps_logits:
            extra["logits_to_keep"] = torch.from_numpy(kept).to(self._device)
        self._pool.place = batch.place
        logits = torch.empty(0)
        try:
            with part or nullcontext():
                logits = self.model(
                    input_ids=batch.ids,
                    attention_mask=masks,
                    position_ids=batch.positions,
                    use_cache=True,
                    return_dict=True,
                    **extra,
                ).logits
        except torch.OutOfMemoryError as e:
            raise BackendError(f"no memory for {tuple(batch.ids.shape)} nodes; lower max_rows or max_nodes") from e
        finally:
            self._pool.place = None
        return logits
