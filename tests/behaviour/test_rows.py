"""Every row of the list of behaviour cases is tested, or is listed with a reason, never both."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from behaviour.rows import LATER, NOT_APPLICABLE

ROWS = [f"L{n:02d}" for n in range(1, 97)]


def covered() -> dict[str, list[str]]:
    """Row -> tests named after it."""
    found: dict[str, list[str]] = {}
    for file in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and (name := re.match(r"test_(L\d\d)_\w+", node.name)):
                found.setdefault(name[1], []).append(f"{file.name}::{node.name}")
    return found


def test_every_row_is_tested_or_has_a_reason():
    known = covered().keys() | LATER.keys() | NOT_APPLICABLE.keys()
    assert sorted(known - set(ROWS)) == []
    assert sorted(set(ROWS) - known) == []


def test_no_row_is_in_two_places():
    places = [set(covered()), set(LATER), set(NOT_APPLICABLE)]
    assert sum(map(len, places)) == len(set.union(*places))


def test_reasons_name_the_missing_part():
    for row, reason in LATER.items():
        assert reason.startswith("expected with "), row
    for row, reason in NOT_APPLICABLE.items():
        assert len(reason) > 40, row
