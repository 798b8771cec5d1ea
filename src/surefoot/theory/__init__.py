"""The theory of speculative decoding as pure functions of numbers: numpy in, numpy out, nothing else of ours imported.

Symbols: ``alpha`` acceptance rate, ``gamma`` draft length, ``c`` seconds of one draft step over seconds of one target pass,
``V(m)`` seconds of a target pass over m tokens over seconds of one over one token. Bad input is a :class:`ValueError`.
"""

from __future__ import annotations

from . import acceptance, batch, cascade, foreseen, gamma, roofline, simulate, speedup, ssr, tree_plan

__all__ = ["acceptance", "batch", "cascade", "foreseen", "gamma", "roofline", "simulate", "speedup", "ssr", "tree_plan"]
