"""Which candidates are measured, and which one is recommended: by tokens per second, never by acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .candidate import Candidate
from .profile import Profile
from .tuning import Option

_MARGIN = 0.03
"""A fixed length must be so much faster than the controller, which also copes with text unlike these prompts."""
_GAIN = 0.01
"""Less than this over plain decoding is within the error of the measurement."""


def choose(options: Sequence[Option], profiles: Mapping[Candidate, Profile], most: int) -> list[Option]:
    """The best length or tree of the ``most`` best drafters by prediction, and the controller with the best and with ``auto``.

    Of drafters that offered the same drafts one is measured, ``auto`` if it is among them. What has differed is not.
    """
    alike: dict[tuple[tuple[int, ...], ...], Candidate] = {}
    for candidate, found in sorted(profiles.items(), key=lambda item: item[0].name != "auto"):
        alike.setdefault((found.asked, found.drafted, found.accepted), candidate)
    kept = {c.drafter for c in alike.values()}
    best: dict[tuple[object, bool], Option] = {}
    for option in options:
        c = option.candidate
        tree = c.width > 1
        if option.equal is False or (not tree and c.drafter not in kept):
            continue
        key = (c.drafter, tree)
        if key not in best or (option.predicted or 0.0) > (best[key].predicted or 0.0):
            best[key] = option
    fixed = sorted(best.values(), key=lambda o: -(o.predicted or 0.0))[:most]
    led = [o.candidate.drafter for o in fixed if o.candidate.width == 1][:1]
    led += [c.drafter for c in profiles if c.name == "auto" and c.drafter not in led and (c.drafter, False) in best]
    return [*fixed, *(Option(Candidate(d, "auto")) for d in led)]


def recommend(raced: Sequence[Option]) -> tuple[Option, str]:
    """The option to use and the reason; ``raced[0]`` is plain decoding."""
    plain, *rest = raced
    bad = [o for o in rest if not o.equal]
    fine = [o for o in rest if o.equal]
    note = "" if not bad else f" Left out, since tokens differed: {', '.join(o.candidate.label for o in bad)}."
    led = max((o for o in fine if o.candidate.k is None), key=_rate, default=None)
    fixed = max((o for o in fine if o.candidate.k is not None), key=_rate, default=None)
    best = led
    if fixed is not None and (led is None or _rate(led) <= 1.0 + _GAIN or _rate(fixed) > _rate(led) * (1.0 + _MARGIN)):
        best = fixed if led is None or _rate(fixed) > _rate(led) else led
    if best is None:
        return plain, f"No drafter could be measured without a difference.{note}"
    if _rate(best) <= 1.0 + _GAIN:
        most = f"the best, {best.candidate.label}, reached {_rate(best):.2f}x"
        return plain, f"Nothing beats plain decoding on these prompts: {most}.{note}"
    why = f"{_rate(best):.2f}x plain decoding, measured."
    if best is led and fixed is not None:
        why += f" The best fixed length, {fixed.candidate.label}, reached {_rate(fixed):.2f}x."
    elif best is fixed and led is not None:
        why += f" The controller by measured cost reached {_rate(led):.2f}x."
    return best, why + note


def _rate(option: Option) -> float:
    """Tokens per second over those of plain decoding."""
    return option.measured or 0.0
