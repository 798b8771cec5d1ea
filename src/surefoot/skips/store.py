"""Skip sets that were found before, in the cache; anything unreadable is searched anew."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.sublayers import SkipSet
from ..errors import BadRequest
from ..models import cache_root
from ..models.cache import write_json
from .find import Found

VERSION = 1
"""Raised when a search changes what it finds."""


class Store:
    """One target's sets. ``identity``: model fingerprint, backend and numerics."""

    def __init__(self, identity: str, root: Path | None = None) -> None:
        key = hashlib.sha256(f"{VERSION}\0{identity}".encode()).hexdigest()[:20]
        self._path = (root or cache_root()) / "skips" / f"{key}.json"

    def load(self, options: str) -> Found | None:
        """What was found under these options of the search."""
        entry: Any = self._read().get(options)
        try:
            skips = SkipSet.parse(str(entry["skips"]))
            return Found(skips, float(entry["agreement"]), int(entry["evaluations"]), str(entry["method"]))
        except (TypeError, KeyError, ValueError, BadRequest):
            return None

    def save(self, options: str, found: Found) -> None:
        # a full or read-only cache costs a new search next time, nothing else
        with contextlib.suppress(OSError):
            write_json(self._path, {**self._read(), options: {**asdict(found), "skips": str(found.skips)}})

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}
