"""The picture of a trace: one element a node, coloured by its drafter, the kept path bold, and safe whatever tokens say."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from toys import Custom, counter, tree

from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.stats import StepTrace
from surefoot.drafters.horizontal import HorizontalDrafter
from surefoot.plan.picture import COLOURS, TARGET, draw

SVG = "{http://www.w3.org/2000/svg}"


def step(parents: Sequence[int], accepted: Sequence[bool], sources: Sequence[str], kept: int | None = None) -> StepTrace:
    n = len(parents)
    kept = sum(accepted) + 1 if kept is None else kept
    p = tuple(0.5**i for i in range(n))
    return StepTrace(7, "x" if n else None, tuple(range(n)), tuple(parents), p, tuple(accepted), 20, kept, 0.0, tuple(sources))


def read(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)
    assert not [e for e in root.iter() if "script" in e.tag or any(key.startswith("on") for key in e.attrib)]
    return root


def boxes(root: ElementTree.Element, kind: str | None = None) -> list[ElementTree.Element]:
    """Nodes: a tooltip, a box, its text."""
    found = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}title") is not None]
    return [g for g in found if kind is None or g.get("class") == kind]


def said(box: ElementTree.Element) -> str:
    return box.findtext(f"{SVG}text") or ""


def test_a_tree_of_two_drafters():
    one = step([0, 0, 1, 2], [False, True, False, True], ["a", "b", "a", "b"])
    root = read(draw([[one]], lambda i: f"t{i}"))
    assert [said(box) for box in boxes(root)] == ["…", "t0", "t1", "t2", "t3", "t20"]
    assert [said(box) for box in boxes(root, "kept")] == ["…", "t1", "t3", "t20"]
    fills = {said(box): box.find(f"{SVG}rect").get("fill") for box in boxes(root)}
    assert (fills["t0"], fills["t1"], fills["t2"], fills["t3"], fills["t20"]) == (*COLOURS[:2], *COLOURS[:2], TARGET)
    legend = [
        (g.findtext(f"{SVG}text"), g.find(f"{SVG}rect").get("fill")) for g in root.iter(f"{SVG}g") if g.get("class") == "legend"
    ]
    assert legend == [("a", COLOURS[0]), ("b", COLOURS[1]), ("target", TARGET)]
    paths = [e.get("class") for e in root.iter(f"{SVG}path")]
    assert sorted(paths) == ["edge", "edge", "kept", "kept", "kept"]
    titles = [box.findtext(f"{SVG}title") for box in boxes(root)]
    assert titles[2] == "'t1' from b, p = 0.5, accepted"
    assert titles[3] == "'t2' from a, p = 0.25, not accepted"


def test_children_stand_to_the_right_and_no_two_share_a_place():
    shape = [0, 0, 1, 1, 2, 5, 3]
    one = step(shape, [False] * 7, ["a"] * 7)
    root = read(draw([[one]], str))
    spots = [(float(b.find(f"{SVG}rect").get("x")), float(b.find(f"{SVG}rect").get("y"))) for b in boxes(root)]
    assert len(set(spots)) == len(spots) == 9
    for i, parent in enumerate([*shape, 0], 1):
        assert spots[i][0] > spots[parent][0]
        assert spots[i][1] >= spots[parent][1]
    assert all(x + 104 <= float(root.get("width")) and y + 24 <= float(root.get("height")) for x, y in spots)


@pytest.mark.parametrize(
    "text, shown",
    [("<b>&", "<b>&"), (" a\n", "·a⏎"), ("\x00\ud800\x1b", "\ufffd" * 3), ('"', '"'), ("x" * 40, "x" * 11 + "…"), ("é", "é")],
)
def test_whatever_a_token_is_the_picture_is_valid(text, shown):
    root = read(draw([[step([0], [True], ["<&\"'>"])]], lambda i: text))
    assert said(boxes(root)[1]) == shown
    assert boxes(root)[1].get("data-source") == "<&\"'>"


def test_the_end_of_a_request():
    """The target's own token is drawn only if it was kept, and is what the next pass begins with."""
    steps = [step([0, 1], [True, False], ["a", "a"]), step([0], [True], ["a"], kept=1)]
    root = read(draw([steps], lambda i: f"t{i}"))
    passes = [g for g in root.iter(f"{SVG}g") if g.get("class") == "step"]
    assert [[said(box) for box in boxes(one)] for one in passes] == [["…", "t0", "t1", "t20"], ["t20", "t0"]]


def test_several_answers_and_none():
    one = step([0], [True], ["a"])
    root = read(draw([[one], [one]], str))
    texts = [e.text for e in root.iter(f"{SVG}text")]
    assert [t for t in texts if t and t.startswith("Answer")] == ["Answer 1", "Answer 2"]
    assert "no pass was traced" in draw([[]], str)
    assert "no pass was traced" in draw([], str)


def test_traces_that_do_not_say_where_nodes_came_from():
    one = StepTrace(1, "old", (3,), (0,), (0.5,), (True,), 4, 2, 0.0)
    assert boxes(read(draw([[one]], str)))[1].get("data-source") == "old"


def test_more_drafters_than_colours():
    names = [f"d{i}" for i in range(len(COLOURS) + 3)]
    root = read(draw([[step(range(len(names)), [False] * len(names), names)]], str))
    assert [box.get("data-source") for box in boxes(root)][1:-1] == names


def test_the_trace_of_a_request():
    parts = [
        Custom(lambda row, plan: tree([row.tokens[-1], (row.tokens[-1] + 1) % 40], [-1, 0], source=1), 1, "one"),
        Custom(lambda row, plan: tree([row.tokens[-1], (row.tokens[-1] + 2) % 40], [-1, 0], source=2), 2, "two"),
    ]
    engine = Engine(counter(40), [*parts, HorizontalDrafter(parts, [1, 1], source=3)], FixedController("horizontal", 2))
    done = engine.generate([3], max_tokens=9, trace=True)
    steps = done.stats.trace
    assert all(len(s.sources) == len(s.candidates) for s in steps)
    assert {s.sources for s in steps if len(s.candidates) == 2} == {("one", "two")}
    drawn = draw([steps], str)
    assert drawn == draw([steps], str)
    root = read(drawn)
    kept = [said(box) for box in boxes(root, "kept") if box.get("data-source") != "pending"]
    assert kept == [str(token) for token in done.token_ids]
    for box in boxes(root):
        if box.get("data-source") == "one":
            assert "accepted" in box.findtext(f"{SVG}title")
