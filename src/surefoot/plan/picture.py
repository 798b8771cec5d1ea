"""A step trace as a picture: the draft tree of every pass, its nodes coloured by the drafter that they came from.

One SVG without scripts, the same for the same trace. A pass reads from left to right: the token that was pending, the drafted
ones behind it, and at the end of the accepted path, drawn bold, the target's own token. What the target thought of a drafted
token shows where the pointer rests on it.

    done = engine.generate("…", trace=True)
    Path("trace.svg").write_text(draw([done.stats.trace], engine.codec.token), encoding="utf-8")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from ..core.tree import children_of, depths

if TYPE_CHECKING:
    from ..core.stats import StepTrace

COLOURS = ("#a6d3e8", "#f4b8bf", "#b5e0bc", "#d6c1ea", "#f7d9a3", "#f3c6e3", "#d9c4b0", "#a9ded6", "#dfe3a1", "#c3cbe0")
TARGET, PENDING = "#ffffff", "#e4e4e4"
_TARGET, _PENDING = "target", "pending"
_WIDE, _HIGH = 104, 24
_GAP, _LINE = 26, 34
_LEFT, _TOP = 16, 16
_LETTERS = 12
"""Most of a token that is shown; the whole of it is in its tooltip."""
_SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "⇤"}


@dataclass(frozen=True, slots=True)
class _Node:
    """``parent``: an earlier node, -1 at the root. ``kept``: on the path that the request took."""

    text: str
    source: str
    parent: int
    kept: bool
    tip: str


@dataclass(slots=True)
class _Page:
    """What is drawn so far, and how far it reaches."""

    colours: dict[str, str]
    parts: list[str] = field(default_factory=list)
    width: float = 0
    y: float = _TOP

    def say(self, x: float, text: str, *, bold: bool = False, size: int = 13) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(f'<text x="{x:g}" y="{self.y + size:g}" font-size="{size}"{weight}>{escape(text)}</text>')
        self.width = max(self.width, x + 0.62 * size * len(text))
        self.y += size + 9


def draw(answers: Sequence[Sequence[StepTrace]], token: Callable[[int], str]) -> str:
    """The SVG of the traces of one answer or several; ``token``: the text of a token, such as the codec's."""
    names = dict.fromkeys(source for steps in answers for step in steps for source in _sources(step))
    colours = {_PENDING: PENDING, **dict(zip(names, _cycle(), strict=False)), _TARGET: TARGET}
    page = _Page(colours)
    _legend(page, [name for name in colours if name != _PENDING])
    for i, steps in enumerate(answers):
        if len(answers) > 1:
            page.say(_LEFT, f"Answer {i + 1}", bold=True, size=16)
        before = ""
        for number, step in enumerate(steps, 1):
            _step(page, number, step, before, token)
            before = token(step.token) if step.kept > sum(step.accepted) else ""
    if not any(answers):
        page.say(_LEFT, "no pass was traced")
    size = f'width="{page.width + _LEFT:g}" height="{page.y + _TOP:g}"'
    box = f'viewBox="0 0 {page.width + _LEFT:g} {page.y + _TOP:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="DejaVu Sans Mono, Consolas, monospace">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *page.parts,
            "</svg>\n",
        ]
    )


def _cycle() -> Iterator[str]:
    return (COLOURS[i % len(COLOURS)] for i in count())


def _sources(step: StepTrace) -> Sequence[str]:
    return step.sources or (step.drafter or "drafter",) * len(step.candidates)


def _legend(page: _Page, names: Sequence[str]) -> None:
    x = float(_LEFT)
    for name in names:
        page.parts.append(
            f'<g class="legend"><rect x="{x:g}" y="{page.y:g}" width="14" height="14" rx="3" fill="{page.colours[name]}" '
            f'stroke="#666666"/><text x="{x + 20:g}" y="{page.y + 12:g}" font-size="12">{escape(name)}</text></g>'
        )
        x += 40 + 7.6 * len(name)
    page.width = max(page.width, x)
    page.y += 24
    page.say(_LEFT, "bold: kept by the request; the last bold token is the target's own", size=11)


def _step(page: _Page, number: int, step: StepTrace, before: str, token: Callable[[int], str]) -> None:
    accepted = sum(step.accepted)
    drafted = len(step.candidates)
    by = f", drafted by {step.drafter}: {accepted} of {drafted} accepted" if drafted else ", nothing drafted"
    page.parts.append('<g class="step">')
    page.say(_LEFT, f"pass {number}, position {step.position}{by}")
    nodes = _nodes(step, before, token)
    parents = [node.parent for node in nodes]
    lines, high = _lines(parents)
    xs = [_LEFT + depth * (_WIDE + _GAP) for depth in depths(parents)]
    ys = [page.y + line * _LINE for line in lines]
    for i, node in enumerate(nodes):
        if node.parent >= 0:
            page.parts.append(_edge(xs[node.parent] + _WIDE, ys[node.parent], xs[i], ys[i], node.kept))
    page.parts += [_box(page.colours, node, x, y) for node, x, y in zip(nodes, xs, ys, strict=True)]
    page.parts.append("</g>")
    page.width = max([page.width, *(x + _WIDE for x in xs)])
    page.y += high * _LINE + 12


def _nodes(step: StepTrace, before: str, token: Callable[[int], str]) -> list[_Node]:
    """The pending token, the drafted ones, and the target's own if it was kept."""
    nodes = [_Node(before or "…", _PENDING, -1, True, "the token before, not yet scored")]
    last = 0
    rows = zip(step.candidates, step.parents, step.p, step.accepted, _sources(step), strict=True)
    for i, (candidate, parent, p, accepted, source) in enumerate(rows, 1):
        text = token(candidate)
        fate = "accepted" if accepted else "not accepted"
        nodes.append(_Node(text, source, parent, accepted, f"{text!r} from {source}, p = {p:.4g}, {fate}"))
        last = i if accepted else last
    if step.kept > sum(step.accepted):
        text = token(step.token)
        nodes.append(_Node(text, _TARGET, last, True, f"{text!r}, the target's own"))
    return nodes


def _lines(parents: Sequence[int]) -> tuple[list[int], int]:
    """The line that each node stands on, that of its first child; and how many there are."""
    children = children_of(parents)
    lines = [0] * len(parents)
    high, stack = 0, [0]
    while stack:
        node = stack.pop()
        if not children[node]:
            lines[node] = high
            high += 1
        stack += reversed(children[node])
    for node in range(len(parents) - 1, -1, -1):
        if children[node]:
            lines[node] = lines[children[node][0]]
    return lines, high


def _edge(x0: float, y0: float, x1: float, y1: float, kept: bool) -> str:
    half = _HIGH / 2
    middle = (x0 + x1) / 2
    stroke = 'stroke="#222222" stroke-width="2.5"' if kept else 'stroke="#aaaaaa"'
    path = f"M{x0:g} {y0 + half:g}C{middle:g} {y0 + half:g} {middle:g} {y1 + half:g} {x1:g} {y1 + half:g}"
    return f'<path class="{"kept" if kept else "edge"}" d="{path}" fill="none" {stroke}/>'


def _box(colours: dict[str, str], node: _Node, x: float, y: float) -> str:
    text = _visible(node.text)
    short = text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"
    stroke = 'stroke="#222222" stroke-width="2.5"' if node.kept else 'stroke="#999999"'
    bold = ' font-weight="bold"' if node.kept else ' fill="#444444"'
    return (
        f'<g class="{"kept" if node.kept else "node"}" data-source={quoteattr(node.source)}>'
        f"<title>{escape(_visible(node.tip, signs=False))}</title>"
        f'<rect x="{x:g}" y="{y:g}" width="{_WIDE}" height="{_HIGH}" rx="6" fill="{colours[node.source]}" {stroke}/>'
        f'<text x="{x + _WIDE / 2:g}" y="{y + 16:g}" font-size="12" text-anchor="middle"{bold}>{escape(short)}</text></g>'
    )


def _visible(text: str, *, signs: bool = True) -> str:
    """Spaces and ends of lines as signs; what XML cannot hold as a replacement character."""
    shown = "".join(_SIGNS.get(c, c) for c in text) if signs else text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)
