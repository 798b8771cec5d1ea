"""The auditor: does speculative decoding say what the target says, and if not, is it rounding or a bug?

``audit(target, prompts)`` runs plain decoding and every drafter over the same prompts and scores each output again without any
draft. ``audit_pairs`` does the same for two outputs that some other engine has written.
"""

from .cases import Case, Skipped
from .classify import Finding
from .item import Item
from .pairs import audit_pairs
from .prompts import read
from .report import Report, Result
from .run import audit
from .statistics import Test
from .suite import SUITES, generated

__all__ = [
    "SUITES",
    "Case",
    "Finding",
    "Item",
    "Report",
    "Result",
    "Skipped",
    "Test",
    "audit",
    "audit_pairs",
    "generated",
    "read",
]
