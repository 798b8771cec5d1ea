"""Self-speculation over partial chains of thought (SSR, arXiv 2608.20359): a request drafts its answer while it still thinks.

:class:`SsrSource` is the drafter ``ssr``; :class:`ForkControl` decides whether and when a request is forked; :mod:`.families`
knows how models mark their thinking.
"""

from .control import ForkControl, SsrOptions
from .families import FAMILIES, Family, choose
from .source import SsrSource
from .stats import SsrStats

__all__ = ["FAMILIES", "Family", "ForkControl", "SsrOptions", "SsrSource", "SsrStats", "choose"]
