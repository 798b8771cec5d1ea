"""Toys of requests that think: engines whose requests are forked, and an eye on the forks."""

from __future__ import annotations

from collections.abc import Sequence

from toys import ToyCodec

from surefoot.backends.table_thinking import ThinkingTable
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.request import Row
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.ssr import Family, ForkControl, SsrOptions, SsrSource

FAMILY = Family("toy", "<think>", "</think>", "</think>")
ASKED = {"draft_budget": 10, "always": True}
SSR = 1
"""Number of the source."""


def codec_of(target: ThinkingTable) -> ToyCodec:
    return ToyCodec(target.pieces, eos=(target.eos,))


def forking(
    target,
    pieces: Sequence[bytes],
    *,
    family: Family = FAMILY,
    force: Sequence[int] = (),
    codec=None,
    k: int = 8,
    width: int = 1,
    others=True,
    control: ForkControl | None = None,
    engine: dict | None = None,
    **options,
) -> tuple[Engine, SsrSource]:
    """An engine whose drafts are those of ``ssr`` and, with ``others``, of ``suffix``; ``options``: of :class:`SsrOptions`."""
    control = control or ForkControl(SsrOptions(**{**ASKED, **options}))
    force = force or [pieces.index(family.end.encode())]
    ssr = SsrSource(family, pieces, force, control, source=SSR)
    parts = [ssr, SuffixDrafter(source=SSR + 1)] if others else [ssr]
    hybrid = HybridDrafter(parts, source=SSR + 2)
    plans = FixedController("hybrid", k, width, width * k)
    return Engine(target, [*parts, hybrid], plans, codec=codec, **(engine or {})), ssr


def thinking(target: ThinkingTable, **options) -> tuple[Engine, SsrSource]:
    codec = codec_of(target)
    return forking(target, codec.pieces, codec=codec, **options)


def plain(target: ThinkingTable, **engine) -> Engine:
    return Engine(target, codec=codec_of(target), **engine)


def forks(engine: Engine) -> list[Row]:
    """Those under way."""
    return [row for row in engine._pool.running if row.hidden]


def steps(engine: Engine, rows: Sequence[Row], most: int = 5000) -> int:
    """Step until all have ended; returns the most forks that shared a pass."""
    seen = 0
    while not all(row.done for row in rows):
        engine.step()
        seen = max(seen, len(forks(engine)))
        most -= 1
        assert most, "the rows do not end"
    return seen


def nothing_left(engine: Engine, ssr: SsrSource) -> None:
    """All rows have ended, and nothing of them is held anywhere."""
    assert not engine._pool.running
    assert not ssr._rows
    assert not ssr._forks
    engine.close()
    assert engine.target.open_slots == 0
