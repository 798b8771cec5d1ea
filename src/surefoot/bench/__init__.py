"""Benchmarks that come with the package. ``ssr``: self-speculation against plain decoding and other drafters, on tasks whose
answers are long and structured. Tasks are read from files that are given, or are our own."""

from .data import Item, own, read
from .run import Asked, bench_ssr
from .variants import VARIANTS, Variant, variants

__all__ = ["VARIANTS", "Asked", "Item", "Variant", "bench_ssr", "own", "read", "variants"]
