"""Model references, the cache, and what models can do.

Contract: ``resolve`` names a model, ``fetch`` makes it local, ``describe`` reads its headers, ``building`` makes a
derived folder once, however many processes ask for it.
"""

from .cache import Progress, building, cache_root, content, derived_dir, fingerprint, label
from .describe import Capabilities, describe
from .fetch import CachedModel, converted_dir, fetch, fetch_head, list_cached
from .packaged import DEFAULT, PACKAGED
from .reference import ModelRef, resolve
from .shipped import Shipped, shipped

__all__ = [
    "DEFAULT",
    "PACKAGED",
    "CachedModel",
    "Capabilities",
    "ModelRef",
    "Progress",
    "Shipped",
    "building",
    "cache_root",
    "content",
    "converted_dir",
    "derived_dir",
    "describe",
    "fetch",
    "fetch_head",
    "fingerprint",
    "label",
    "list_cached",
    "resolve",
    "shipped",
]
