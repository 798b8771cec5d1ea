"""Prompts made by code, of the kinds that speculative decoding has been wrong on.

Contract: the same prompts in every run and on every machine; nothing is read or downloaded. Kinds: chat, code, repetition,
lists, JSON, copying, several scripts, a single token, long prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from .item import Item

_PLACES = ("harbour", "library", "orchard", "railway station", "bakery", "observatory", "workshop", "school garden")
_THINGS = ("lantern", "bicycle", "clock", "kettle", "umbrella", "ladder", "compass", "violin")
_COLOURS = ("red", "green", "blue", "yellow", "white", "grey")
_NAMES = ("Ada", "Bruno", "Chidi", "Dana", "Eero", "Farah", "Goran", "Hana")

_CHAT = (
    "How does a {thing} work? Explain it in four sentences.",
    "Write a short story about a {thing} that was left in a {place}.",
    "What should one look at first in a {place}?",
    "Compare a {thing} with a {other}.",
    "Write a friendly note to {name}, who lost a {thing} near the {place}.",
)
_CODE = (
    "Write a Python function that counts how often each {thing} occurs in a list.",
    "Write a Python class `{Thing}` with the attributes colour, weight and price, and a method that prints them.",
    "def total_of_{thing}s(prices):\n    total = 0\n    for price in prices:\n",
    "Rename `x` to `{thing}_count`:\n\nx = 0\nfor item in items:\n    if item.ready:\n        x = x + 1\nprint(x)\n",
)
_LISTS = (
    "List ten things that one finds in a {place}, one a line, numbered.",
    "Count from {a} to {b}, separated by commas.",
    "Name the days of the week and give each a {thing}; begin with a {colour} one.",
)
_COPYING = (
    "Repeat this text twice, word for word:\n\n{text}",
    "Correct the spelling and give the whole text again:\n\n{typos}",
    "Replace every {colour} by {colour2} and give the whole text again:\n\n{text}",
    "Write this text in capital letters:\n\n{text}",
)
_SCRIPTS = (
    "Traduis en anglais : « Le {name} de la gare a déjà vu l'été s'achever à l'aube. »",
    "用中文介绍一下图书馆，并列出三条规则。",
    "Напиши короткое письмо другу о поездке к морю.",
    "日本語で、春の庭について三つの文を書いてください。",
    "Repeat exactly: 🌊🛶🌊🛶🌊🛶 naïve café — Ελλάδα ☕ 한국어 ☕ العربية",
    "एक छोटी कविता लिखो जिसमें बारिश और नदी हो।",
)
_REPEATED = ("serving", " the", "ab", " 1", "\n", " ha", "=", " x")


def _text(rng: np.random.Generator, sentences: int) -> str:
    """Plain sentences that repeat each other in part."""
    out = []
    for i in range(sentences):
        name, place, thing = (str(rng.choice(words)) for words in (_NAMES, _PLACES, _THINGS))
        out.append(f"Room {i + 1} of the {place} is {rng.choice(_COLOURS)} and holds {rng.integers(2, 60)} chairs.")
        out.append(f"{name} keeps a {rng.choice(_COLOURS)} {thing} there.")
    return " ".join(out)


def _filled(template: str, rng: np.random.Generator) -> str:
    thing, other = (str(x) for x in rng.choice(_THINGS, 2, replace=False))
    colour, colour2 = (str(x) for x in rng.choice(_COLOURS, 2, replace=False))
    text = _text(rng, 2)
    start = int(rng.integers(1, 90))
    values = {
        "thing": thing, "other": other, "Thing": thing.capitalize(), "colour": colour, "colour2": colour2, "text": text,
        "typos": text.replace("chairs", "chiars").replace("keeps", "keps"), "place": rng.choice(_PLACES),
        "name": rng.choice(_NAMES), "a": start, "b": start + 14,
    }  # fmt: skip
    return template.format(**values)


def _of(kind: str, templates: tuple[str, ...]) -> Callable[[int, np.random.Generator], Item]:
    return lambda i, rng: Item(_filled(templates[i % len(templates)], rng), kind)


def _json(i: int, rng: np.random.Generator) -> Item:
    rows = [
        {"name": str(rng.choice(_NAMES)), "thing": str(rng.choice(_THINGS)), "price": int(rng.integers(1, 99))} for _ in "abc"
    ]
    asked = ("Double every price", "Sort the list by price", 'Add a field "colour" to every object')[i % 3]
    return Item(f"{asked} and answer with JSON only:\n{json.dumps(rows, indent=1 if i % 2 else None)}", "json")


def _repetition(i: int, rng: np.random.Generator) -> Item:
    return Item(_REPEATED[i % len(_REPEATED)] * 48, "repetition", raw=True)


def _single(i: int, rng: np.random.Generator) -> Item:
    return Item(("A", " the", "\n", "{")[i % 4], "single token", raw=True)


def _long(i: int, rng: np.random.Generator) -> Item:
    asked = ("Which rooms are green?", "Who keeps a clock?", "Repeat the last four sentences.", "Sum up the text.")[i % 4]
    return Item(f"{_text(rng, 22)}\n\n{asked}", "long")


KINDS: dict[str, tuple[int, Callable[[int, np.random.Generator], Item]]] = {
    "chat": (10, _of("chat", _CHAT)),
    "code": (8, _of("code", _CODE)),
    "repetition": (8, _repetition),
    "list": (6, _of("list", _LISTS)),
    "json": (6, _json),
    "copying": (8, _of("copying", _COPYING)),
    "scripts": (6, _of("scripts", _SCRIPTS)),
    "single token": (4, _single),
    "long": (4, _long),
}
"""Kind -> how many of it the standard suite has, and what makes the i-th."""


def standard() -> list[Item]:
    """60 prompts of all kinds."""
    return [make(i, np.random.default_rng([i, 2])) for count, make in KINDS.values() for i in range(count)]


def quick() -> list[Item]:
    """12 prompts of all kinds."""
    first = [make(0, np.random.default_rng(0)) for _, make in KINDS.values()]
    return first + [KINDS[kind][1](1, np.random.default_rng(1)) for kind in ("chat", "code", "copying")]


SUITES: dict[str, Callable[[], list[Item]]] = {"quick": quick, "standard": standard}


def generated(n: int, seed: int, vocab: int) -> list[Item]:
    """``n`` random prompts: of a random kind, two of them joined, or random token ids below ``vocab``."""
    rng = np.random.default_rng(seed)
    kinds = list(KINDS.values())

    def one() -> Item:
        return kinds[int(rng.integers(len(kinds)))][1](int(rng.integers(1000)), rng)

    out: list[Item] = []
    for i in range(n):
        if i % 3 == 2:
            out.append(Item(rng.integers(0, vocab, int(rng.integers(1, 80))).tolist(), "random tokens"))
        elif i % 3 == 1:
            out.append(Item(f"{one().prompt}\n\n{one().prompt}", "joined", raw=bool(rng.integers(2))))
        else:
            out.append(one())
    return out


_TABLE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "price": {"type": "integer"},
        "colour": {"enum": list(_COLOURS)},
    },
    "required": ["name", "price", "colour"],
    "additionalProperties": False,
}


def with_schema() -> list[Item]:
    """Prompts whose answers must fit a JSON schema."""
    shapes = (_TABLE, {"type": "array", "items": _TABLE, "minItems": 1, "maxItems": 2})
    return [
        Item(
            _filled("Describe a {thing} from the {place} as JSON.", np.random.default_rng(i)),
            "schema",
            options={"response_format": {"type": "json_schema", "json_schema": {"schema": shapes[i % 2]}}},
        )
        for i in range(4)
    ]
