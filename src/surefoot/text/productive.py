"""Can a grammar's output ever be complete? A rule that always needs itself again, as ``root ::= "a" root``, never is.

Contract: reads the grammar as the library prints it, one rule ``name ::= ((a b) | (c))`` a line. A rule of any other form
counts as one that can be completed.
"""

from __future__ import annotations

import re

_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]\*?')
_AHEAD = re.compile(r" \(=.*\)$")
_NAMED = re.compile(r"([A-Za-z_][\w.-]*)(\{0,[^}]*\}|[*?])?")


def productive(grammar: str) -> bool:
    """Whether the rule ``root`` spells any text."""
    rules: dict[str, list[set[str]]] = {}
    for line in grammar.splitlines():
        name, sign, body = line.partition(" ::= ")
        if not sign:
            continue
        body = _AHEAD.sub("", _LITERAL.sub("", body))
        plain = body.startswith("((") or body.startswith("( |")
        rules[name] = [_needed(part) for part in body.split("|")] if plain else [set()]
    done: set[str] = set()
    while new := {name for name, parts in rules.items() if name not in done and any(part <= done for part in parts)}:
        done |= new
    return "root" not in rules or "root" in done


def _needed(part: str) -> set[str]:
    """Rules that a sequence cannot do without."""
    return {name for name, optional in _NAMED.findall(part) if not optional}
