"""Self-speculation without training: which sublayers of a target its own draft may leave out.

Contract: :func:`find_skips` chooses a set for a target by a published search, on the target's own greedy text, within a
bound on the evaluations; :class:`Store` keeps it for the model, the numerics and the options; :func:`layer_skip` makes the
drafter. The draft has a cache of its own, so nothing that it computes reaches the target's.
"""

from .drafter import PROMPTS, layer_skip
from .find import METHODS, Found, find_skips, samples
from .store import Store

__all__ = ["METHODS", "PROMPTS", "Found", "Store", "find_skips", "layer_skip", "samples"]
