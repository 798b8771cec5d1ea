"""The fast CPU target: an OpenVINO graph with paged attention and our own block tables.

One pass is one ``infer`` over ragged chains of at least ``traits.min_width`` tokens each; a tree is taken apart into its
paths (see ``branches``). Which width keeps the logits bitwise equal across passes is what :meth:`OpenVINOModel.probe` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from ...core.protocols import Ends, InvarianceReport, Need, Scores, Slot, Traits
from ...core.sublayers import SkipSet
from ...core.tree import Forest
from ...errors import BackendError, BadRequest, Unsupported
from ..progress import as_cuts
from . import branches, graph
from .branches import Lines
from .caches import make_pool
from .cut import split
from .ends import ends
from .exits import Sections
from .hardware import compile_options, resolve, shared_core
from .paces import SMALL_WEIGHTS, Paces
from .passes import arrays
from .pool import BlockPool
from .pool import Slot as Row
from .runner import Runner
from .skip import bypass
from .trial import OpenVINOTrial

MAX_NODES = 1024
_NOTHING = Need()
TREES = ("auto", "chains", "mask")


class OpenVINOModel:
    """A :class:`~surefoot.core.protocols.TargetModel` over a folder with ``openvino_model.xml``.

    precision  "auto" (bf16 where the processor has it, else f32), "bf16", "f32", or "fast" (quantized activations: not exact)
    kv_tokens  tokens the KV pool holds over all rows; memory is only used as it fills
    taps       activations that ``score`` can return (:attr:`Traits.hidden`), or what says them for so many layers
    cut        layer, or layers, after which to cut for early exit (:meth:`prefix`)
    trees      "chains" (exact), "mask" (each node computed once, not exact), "auto" (mask in the fast mode only)
    report     outcome of an earlier :meth:`probe` of this model on this machine
    copies     times that the graph is compiled, 1 or 2 (see :class:`Paces`); None: twice where its weights are small
    edit       change of the paged graph before it is compiled (:meth:`without`)

    ``steady`` (attribute): pad passes rather than change their size, see :class:`Paces`. Switch it off to time bare sizes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        precision: str = "auto",
        kv_tokens: int | None = None,
        threads: int | None = None,
        taps: Sequence[int] | Callable[[int], Sequence[int]] = (),
        cut: int | Sequence[int] | None = None,
        trees: str = "auto",
        report: InvarianceReport | None = None,
        name: str | None = None,
        copies: int | None = None,
        edit: graph.Edit | None = None,
    ) -> None:
        for what, number in (("kv_tokens", kv_tokens), ("threads", threads)):
            if number is not None and number < 1:
                raise BadRequest(f"{what} must be at least 1, not {number}")
        if trees not in TREES:
            raise BadRequest(f"unknown trees {trees!r}; choose one of {', '.join(TREES)}")
        if copies not in (None, 1, 2):
            raise BadRequest(f"copies must be 1 or 2, not {copies}")
        cuts = as_cuts(cut)
        if cuts and copies == 2:
            raise BadRequest("a model with a cut is compiled once; leave copies or cut out")
        core = shared_core()
        self.precision = resolve(core, precision)
        self.trees = trees if trees != "auto" else "mask" if self.precision == "fast" else "chains"
        facts = graph.facts(Path(folder))
        model, structure = graph.load(core, Path(folder))
        wanted = taps(len(structure.attention)) if callable(taps) else taps
        taps = tuple(sorted({*wanted, *cuts}))
        graph.check_layers(structure, taps)
        graph.slide(model, structure, facts.windows)
        self.window = graph.sliding_window(structure)
        if edit is not None:
            model, structure = edit(model, structure)
        graph.gather_rows(model, structure)
        options, rounded = compile_options(self.precision, threads), self.precision == "bf16"
        self._folder, self._threads, self._taps = Path(folder), threads, taps
        self._sections: Sections | None = None
        self._ends: Ends | None = None
        if cuts:
            inner = [t for t in taps if t not in cuts]
            parts = [Runner(core, part, options) for part in split(model, structure, cuts, inner, rounded)]
            self._pool = make_pool(parts, kv_tokens)
            self._sections, self._paces = Sections(parts, cuts, inner, self._pool), Paces(())
        else:
            graph.tap(model, structure, taps, rounded)
            twice = copies if copies is not None else 1 + (graph.weights(Path(folder)) <= SMALL_WEIGHTS)
            self._paces = Paces([Runner(core, model, options) for _ in range(twice)])
            self._pool = make_pool(self._paces.runners, kv_tokens)
        self._masked = False
        self._steady = True
        # The kernel counts a window in cache rows, so under a tree mask, and in a graph whose windows got lost, contexts must
        # stay within it; there a sliding layer is an ordinary one.
        narrow = self.window if self.trees == "mask" else facts.window if not self.window else 0
        context = min(facts.max_context, narrow or facts.max_context, self._pool.capacity)
        layers = len(structure.attention)
        self._traits = Traits(
            name=name or facts.name,
            vocab_size=structure.vocab_size,
            hidden_size=structure.hidden_size,
            n_layers=layers,
            max_context=context,
            max_nodes=min(MAX_NODES, context),
            capacity=self._pool.capacity,
            min_width=2,
            steady=True,
            narrow=self._paces.narrow,
            paths=self.trees == "chains",
            exact=self.can_be_exact,
            hidden=taps,
            exits=tuple(range(1, layers)) if structure.residual else (),
            dtype="bfloat16" if self.precision == "bf16" else "float32",
        )
        if report is not None:
            self.adopt(report)

    @property
    def traits(self) -> Traits:
        return self._traits

    @property
    def pool(self) -> BlockPool:
        return self._pool

    @property
    def steady(self) -> bool:
        return self._steady

    @steady.setter
    def steady(self, on: bool) -> None:
        self._steady = on
        if self._sections is not None:
            self._sections.steady = on

    @property
    def can_be_exact(self) -> bool:
        """Whether the options leave any class of passes exact, whatever a probe says."""
        return self.precision != "fast" and self.trees == "chains"

    def adopt(self, report: InvarianceReport) -> None:
        """Stay in the class of passes that the probe found. Only while no slot is open: earlier KV is of another class."""
        self.set_passes(report.min_width, report.masked)
        self._traits = replace(self._traits, exact=report.exact and self.can_be_exact)

    def passes(self) -> tuple[int, bool]:
        """The class of passes in use: least nodes of a row, and whether every pass is masked."""
        return self._traits.min_width, self._masked

    def set_passes(self, min_width: int, masked: bool) -> None:
        """Change the class of passes (the probe does)."""
        self._masked = masked
        self._traits = replace(self._traits, min_width=min_width)
        if self._sections is not None:
            self._sections.min_width, self._sections.masked = min_width, masked

    def work(self, forest: Forest) -> int:
        """Tokens that a pass over ``forest`` computes: more than its nodes where trees are taken apart."""
        return branches.work(forest) if self.trees == "chains" else forest.nodes

    def open(self, n: int) -> list[Slot]:
        return [Row() for _ in range(n)]

    def fork(self, slot: Slot, length: int | None = None) -> Slot:
        [row] = _ours([slot])
        return self._pool.fork(row, row.length if length is None else length)

    def score(self, slots: Sequence[Slot], forest: Forest, need: Need = _NOTHING) -> Scores:
        """ONE pass. The tensors are views of buffers: read them before the next pass of this model."""
        if need.hidden and not set(need.hidden) <= set(self._taps):
            wanted = sorted({*need.hidden, *self._taps})
            raise Unsupported(f"hidden layers {list(need.hidden)} were not all tapped; load the model with taps={wanted}")
        inputs, rows, lines = self._prepare(slots, forest)
        if self._sections is not None:
            logits, found = self._sections.score(_ours(slots), forest, lines, inputs, rows)
        else:
            start = perf_counter()
            asked = lines.size - lines.pad
            logits, *taps = self._paces.run(inputs, asked, [rows] + [lines.size] * len(self._taps))
            self._paces.ran(asked, lines.size, perf_counter() - start)
            found = dict(zip(self._taps, taps, strict=True))
        return Scores(logits[: _scored(forest)], {layer: _gather(found[layer], lines) for layer in need.hidden}, lines.size)

    @property
    def cuts(self) -> tuple[int, ...]:
        return self._sections.progress.cuts if self._sections is not None else ()

    def prefix(
        self, slots: Sequence[Slot], chains: Sequence[Sequence[int]], layer: int, counts: Sequence[int] | None = None
    ) -> Tensor:
        if self._sections is None:
            raise Unsupported(f"the model was loaded whole; load it with cut={layer} for early exit")
        return self._sections.prefix(_ours(slots), chains, layer, counts)

    def commit(self, slots: Sequence[Slot], paths: Sequence[Sequence[int]]) -> None:
        rows = _ours(slots)
        for row, path in zip(rows, paths, strict=True):
            if len(path) and not (path[0] >= 0 and path[-1] < row.pending and all(a < b for a, b in pairwise(path))):
                raise BadRequest(
                    f"cannot commit nodes {list(path)}: the row's last pass had {row.pending} nodes; name them ascending"
                )
        for row, path in zip(rows, paths, strict=True):
            branches.keep(self._pool, row, path)
        self._forget(rows)

    def close(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if isinstance(slot, Row) and slot.open:
                self._pool.release(slot)
                self._forget([slot])

    def probe(self) -> InvarianceReport:
        from .probe import probe

        return probe(self)

    def without(self, skips: SkipSet, *, kv_tokens: int | None = None) -> OpenVINOModel:
        """The model without these sublayers, from the same file: its own cache, for as many tokens, and passes of one class."""
        name = f"{self._traits.name} without {len(skips)} sublayers"
        tokens = kv_tokens or self._pool.capacity
        edit, threads = partial(bypass, skips=skips), self._threads
        draft = OpenVINOModel(
            self._folder, precision=self.precision, kv_tokens=tokens, threads=threads, trees=self.trees, name=name, edit=edit
        )
        draft.set_passes(*self.passes())
        return draft

    def ends(self) -> Ends:
        """The tables that the model reads and says tokens with, and its final norm."""
        if self._ends is None:
            self._ends = ends(self._folder)
        return self._ends

    def trial(self) -> OpenVINOTrial:
        """To try skip sets on texts."""
        return OpenVINOTrial(self._folder, compile_options(self.precision, self._threads))

    def _prepare(self, slots: Sequence[Slot], forest: Forest) -> tuple[dict[str, np.ndarray], int, Lines]:
        rows = _ours(slots)
        widths = [hi - lo for lo, hi in pairwise(forest.begins)]
        if max(widths) > self._traits.max_nodes:
            raise BadRequest(f"a row has {max(widths)} nodes but the backend takes {self._traits.max_nodes} a pass; split it")
        masked = self._masked
        if self.trees == "chains":
            lines = branches.lay_out(self._pool, rows, forest, self._traits.min_width)
            if self.steady and not masked:
                lines = lines.padded(self._pool, (self._sections or self._paces).size(lines.size))
        else:
            self._pool.reserve(rows, widths)
            lines = Lines(rows, None, None, forest.begins)
            masked = masked or not all(forest.linear)
        for row, width in zip(rows, widths, strict=True):
            row.pending = width
        return *arrays(lines, forest, self._pool.block, masked), lines

    def _forget(self, rows: Sequence[Row]) -> None:
        if self._sections is not None:
            self._sections.progress.forget(rows)


def _gather(hidden: Tensor, lines: Lines) -> Tensor:
    """Tokens of the pass -> nodes of the forest."""
    return hidden[: lines.size - lines.pad] if lines.place is None else hidden[torch.from_numpy(lines.place)]


def _scored(forest: Forest) -> int:
    return sum(size - root for size, root in zip(forest.sizes, forest.roots, strict=True))


def _ours(slots: Sequence[Slot]) -> list[Row]:
    """The slots as rows of this backend; a closed or foreign one is refused."""
    rows = [slot for slot in slots if isinstance(slot, Row) and slot.open]
    if len(rows) != len(slots):
        raise BackendError("a slot was used after it was closed, or belongs to another model; open a new one")
    return rows
