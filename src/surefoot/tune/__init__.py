"""The tuner: which drafter, draft length and controller are fastest for a model on this machine, on prompts like yours.

``tune(target, prompts)`` measures what passes and drafts cost and how many drafted tokens stay, predicts the gain of every
draft length, measures the best of them in turn with plain decoding, and recommends by tokens per second. ``tune_cascade`` does
the same for cascades.
"""

from .candidate import Candidate
from .cascades import tune_cascade
from .run import tune
from .tuning import Option, Tuning

__all__ = ["Candidate", "Option", "Tuning", "tune", "tune_cascade"]
