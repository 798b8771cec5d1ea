"""Which way a model can draft for another, by their tokenizers, and why.

equal         the token tables are equal
padded        no id means two things: the embeddings differ in size, or one side has more tokens at the end
intersection  tokens that both sides have are drafted as they are; the rest is never drafted
universal     the draft's text is cut into the target's tokens; greedy proposals
refused       nothing is possible: it is not known what text the tokens stand for

The first two need no mapping. Decided from the two tokenizers given, nothing is looked up by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from ..drafters.bridge import EQUAL, INTERSECTION, PADDED, REFUSED, UNIVERSAL, Bridge
from ..errors import BadRequest, VocabMismatch
from .codec import Codec
from .spelling import SAMPLES, Spelling
from .vocab import VocabReport

WAYS = ("auto", EQUAL, INTERSECTION, UNIVERSAL)
"""What can be asked for."""

_FAMILY = 0.9
"""Share of common ids with equal tokens from which on two tokenizers are one, changed here and there."""
_ENOUGH = 0.5
"""Share of the tokens of ordinary text that must be common for the intersection to be worth more than greedy text."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the two tokenizers have in common."""

    report: VocabReport
    common: int
    """Tokens of the intersection."""
    share: float
    """Of them in the target's vocabulary."""
    covers: float
    """Share of the tokens of ordinary text that lie in the intersection, on the side where it is the smaller one."""
    alike: bool
    """Both cut ordinary text in the same places."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """The way for greedy and for sampled requests. ``bridge``: ``None`` where ids need no mapping, or nothing is possible."""

    greedy: str
    sampled: str
    why_greedy: str
    why_sampled: str
    found: Found
    bridge: Bridge | None

    @property
    def possible(self) -> bool:
        return REFUSED not in (self.greedy, self.sampled)

    def lines(self) -> list[str]:
        """A line each for greedy and for sampled requests."""
        return [f"greedy requests: {self.greedy} ({self.why_greedy})", f"sampled requests: {self.sampled} ({self.why_sampled})"]

    def explain(self) -> str:
        """One line for people."""
        if self.bridge is None and self.possible:
            return self.found.report.explain()
        return "; ".join([self.found.report.explain(), *self.lines()])

    def told(self) -> Crossing:
        """Itself; warns if ids are mapped, and how many of them differ."""
        if self.bridge is not None:
            warnings.warn(f"draft and target have {self.explain()}", RuntimeWarning, stacklevel=2)
        return self

    def require(self) -> Crossing:
        """Itself; :class:`VocabMismatch` if nothing is possible."""
        if not self.possible:
            raise VocabMismatch(
                f"draft and target have {self.found.report.explain()}; {self.why_greedy}: "
                "use a draft model of the target's family"
            )
        return self


def cross(target: Codec, draft: Codec, way: str = "auto") -> Crossing:
    """How ``draft`` can draft for ``target``. ``way``: one of :data:`WAYS`; what is asked for and impossible is refused."""
    if way not in WAYS:
        raise BadRequest(f"vocab={way!r} is not known; give one of {', '.join(WAYS)}")
    report = target.compare(draft)
    if way == EQUAL:
        report.require()
    if way in (EQUAL, "auto") and report.compatible:
        return _same(report)
    ours, theirs = Spelling.of(target), Spelling.of(draft)
    bridge = Bridge.of(ours, theirs)
    texts = [(target.encode(text, special=False), draft.encode(text, special=False)) for text in SAMPLES]
    mine = [bridge.there[i] >= 0 for ids, _ in texts for i in ids]
    other = [bridge.back[i] >= 0 for _, ids in texts for i in ids]
    found = Found(
        report,
        len(bridge.common[0]),
        len(bridge.common[0]) / max(1, len(ours.pieces)),
        min(sum(mine) / max(1, len(mine)), sum(other) / max(1, len(other))),
        all(_cuts(ours, a) == _cuts(theirs, b) for a, b in texts),
    )
    family = found.alike and 0 < report.differing <= (1 - _FAMILY) * min(report.sizes)
    unclear = [name for name, side in (("target", ours), ("draft", theirs)) if not side.faithful()]
    if unclear and not family:
        return _refused(
            found, f"the tokenizer of the {' and of the '.join(unclear)} changes texts, so its tokens cannot be mapped"
        )
    if not found.common:
        return _refused(found, "the vocabularies have no token in common")
    greedy, sampled, why_greedy, why_sampled = _choose(way, family, found)
    return Crossing(greedy, sampled, why_greedy, why_sampled, found, Bridge.of(ours, theirs, greedy, sampled, found.alike))


def _choose(way: str, family: bool, found: Found) -> tuple[str, str, str, str]:
    """(greedy, sampled, why, why)."""
    tokens = f"{found.common} tokens, {found.share:.0%} of the target's vocabulary, {found.covers:.0%} of ordinary text"
    text = "the draft's text is cut into the target's tokens"
    if way == UNIVERSAL:
        return UNIVERSAL, UNIVERSAL, text, f"as asked: {text}, and is greedy"
    if way == INTERSECTION:
        return INTERSECTION, INTERSECTION, f"as asked: {tokens}", f"as asked: {tokens}"
    if family:
        why = f"one tokenizer but for {found.report.differing} ids: {tokens}"
        return INTERSECTION, INTERSECTION, why, why
    if found.covers < _ENOUGH:
        return UNIVERSAL, UNIVERSAL, text, f"{text}, and is greedy: in common are but {tokens}"
    return UNIVERSAL, INTERSECTION, text, tokens


def _same(report: VocabReport) -> Crossing:
    rows = {n for n in report.padded if n is not None}
    way = EQUAL if report.same and len(rows) < 2 else PADDED
    why = report.explain() if way == EQUAL else f"{report.explain()}, sizes {' and '.join(map(str, sorted(rows)))}"
    both = report.sizes[0] - report.only[0]
    return Crossing(way, way, why, why, Found(report, both, both / max(1, report.sizes[0]), 1.0, True), None)


def _refused(found: Found, why: str) -> Crossing:
    return Crossing(REFUSED, REFUSED, why, why, found, None)


def _cuts(words: Spelling, ids: Sequence[int]) -> list[bytes]:
    """The text of each token, but for a space that comes first."""
    pieces = [words.pieces[i] for i in ids]
    return [pieces[0].removeprefix(b" "), *pieces[1:]] if words.lead and pieces else pieces
