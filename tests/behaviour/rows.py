"""Rows of the list of behaviour cases (L01 to L96) that no test of this folder is named after, and why.

``LATER``: the part that the row is about does not exist yet; the reason names it. ``NOT_APPLICABLE``: nothing here can have
the fault; the reason says why, and what stands in the row's place.
"""

from __future__ import annotations

LATER: dict[str, str] = {}
NOT_APPLICABLE: dict[str, str] = {}

# ---- L01 to L44: equality, stops, cache ----
LATER |= {
    "L14": "expected with early exit (drafter early_exit)",
    "L15": "expected with early exit (drafter early_exit)",
}

# ---- L45 to L66: sampling, penalties, grammar, logprobs (add yours below this line, and nowhere else) ----
LATER |= {}
NOT_APPLICABLE |= {}

# ---- L67 to L96: vocabulary, speed, memory, metrics, server (add yours below this line, and nowhere else) ----
LATER |= {}
NOT_APPLICABLE |= {}
