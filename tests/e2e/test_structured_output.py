"""Structured output on the packaged model: it always parses, and drafting changes no token of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from surefoot.control.fixed import FixedController
from surefoot.core.completion import Completion
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.drafters.grammar import GrammarDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.loader import Target, assemble, open_target
from surefoot.text.grammar import XGrammars

pytestmark = pytest.mark.timeout(1800)

REQUESTS = 100


def text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


def record(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": list(members)}


def whole(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def members(value: Any, *names: str) -> bool:
    return isinstance(value, dict) and list(value) == list(names)


def short(value: Any, most: int) -> bool:
    return isinstance(value, str) and len(value) <= most


PRICED = record(sku={"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"}, price={"type": "integer", "minimum": 1, "maximum": 99})
OPENING = record(day={"enum": ["Monday", "Friday"]}, open={"type": "boolean"})
SCHEMAS: list[tuple[dict[str, Any], str, Callable[[Any], bool]]] = [
    (
        record(name=text(12), age={"type": "integer", "minimum": 0, "maximum": 120}, color={"enum": ["red", "green"]}),
        '{"name": "Ann", "age": 31, "color": "green"}',
        lambda v: (
            members(v, "name", "age", "color")
            and short(v["name"], 12)
            and whole(v["age"], 0, 120)
            and v["color"] in ("red", "green")
        ),
    ),
    (
        record(city=text(10), capital={"type": "boolean"}),
        '{"city": "Rome", "capital": true}',
        lambda v: members(v, "city", "capital") and short(v["city"], 10) and isinstance(v["capital"], bool),
    ),
    (
        record(tags={"type": "array", "items": text(6), "minItems": 1, "maxItems": 2}, score={"enum": [1, 2, 3]}),
        '{"tags": ["new"], "score": 3}',
        lambda v: (
            members(v, "tags", "score")
            and 1 <= len(v["tags"]) <= 2
            and all(short(tag, 6) for tag in v["tags"])
            and v["score"] in (1, 2, 3)
        ),
    ),
    (
        record(item=PRICED),
        '{"item": {"sku": "AB12", "price": 20}}',
        lambda v: (
            members(v, "item")
            and members(v["item"], "sku", "price")
            and re.fullmatch("[A-Z]{2}[0-9]{2}", v["item"]["sku"]) is not None
            and whole(v["item"]["price"], 1, 99)
        ),
    ),
    (
        {"type": "array", "items": OPENING, "minItems": 1, "maxItems": 1},
        '[{"day": "Monday", "open": true}]',
        lambda v: (
            len(v) == 1
            and members(v[0], "day", "open")
            and v[0]["day"] in ("Monday", "Friday")
            and isinstance(v[0]["open"], bool)
        ),
    ),
]
PROMPTS = ["A person.", "Paris.", "A book.", "The shop.", "Today."]


def requests(target: Target) -> list[tuple[list[int], SamplingParams, Callable[[Any], bool]]]:
    """Schemas x prompts x greedy and three seeds; half of the prompts show what the answer looks like."""
    out = []
    for i in range(REQUESTS):
        schema, example, valid = SCHEMAS[i % 5]
        content = PROMPTS[i // 5 % 5] + (f" Answer in JSON like this: {example}" if i % 2 else " Answer in JSON.")
        prompt = target.codec.prompt([{"role": "user", "content": content}])
        drawn = {} if i < 25 else {"temperature": 0.6 + 0.2 * (i // 25), "seed": i}
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        out.append((prompt, SamplingParams.build({"max_tokens": 120, "response_format": form, **drawn}), valid))
    return out


@pytest.fixture(scope="module")
def target() -> Target:
    return open_target("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def grammars(target: Target) -> XGrammars:
    return XGrammars(target.codec, target.model.traits.vocab_size)


@pytest.fixture
def engines(target: Target) -> Iterator[list[Engine]]:
    made: list[Engine] = []
    yield made
    for engine in made:
        engine.close()
    assert target.model.pool.free == target.model.pool.blocks, "cache blocks leaked"


def run(engine: Engine, target: Target) -> list[Completion]:
    rows = [engine.add(prompt, params) for prompt, params, _ in requests(target)]
    while not all(row.done for row in rows):
        engine.step()
    found = [engine.completion(row) for row in rows]
    engine.close()
    return found


@pytest.fixture(scope="module")
def plain(target: Target, grammars: XGrammars) -> list[Completion]:
    return run(Engine(target.model, codec=target.codec, grammars=grammars, max_rows=25), target)


def test_every_answer_parses_and_is_valid(target: Target, plain: list[Completion]) -> None:
    assert [c.finish_reason for c in plain] == ["stop"] * REQUESTS
    for (_, _, valid), completion in zip(requests(target), plain, strict=True):
        assert valid(json.loads(completion.text)), completion.text
        assert completion.token_ids[-1] in target.codec.eos_ids
    assert len({c.text for c in plain}) > 40


@pytest.mark.parametrize("name", ["ngram", "suffix", "grammar", "auto"])
def test_no_token_differs_with(
    name: str, target: Target, grammars: XGrammars, plain: list[Completion], engines: list[Engine]
) -> None:
    if name == "auto":
        engine = assemble(target, max_rows=25)
    else:
        drafter = {"ngram": NgramDrafter, "suffix": SuffixDrafter, "grammar": GrammarDrafter}[name]()
        controller = FixedController(name, 6)
        engine = Engine(target.model, [drafter], controller, codec=target.codec, grammars=grammars, max_rows=25)
    engines.append(engine)
    found = run(engine, target)
    for i, (a, b) in enumerate(zip(found, plain, strict=True)):
        assert (a.token_ids, a.text, a.finish_reason, a.usage) == (b.token_ids, b.text, b.finish_reason, b.usage), (
            f"request {i}"
        )
    assert sum(c.stats.accepted_tokens for c in found) > 100
    if name in ("grammar", "auto"):
        shown = [c.stats.by_source["grammar"] for c in found[1:25:2] if "grammar" in c.stats.by_source]
        drafted, kept = (sum(getattr(s, key) for s in shown) for key in ("draft_tokens", "accepted_tokens"))
        assert kept > 0.8 * drafted > 0  # the model that was shown the form cuts forced text as its tokenizer does
    if name == "grammar":
        assert sum(c.stats.passes for c in found) < 0.8 * sum(c.stats.passes for c in plain)


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda said: re.fullmatch(pattern, said) is not None


DATE = r"[A-Z][a-z]{2,8}, [0-9]{4}\."
SUM = 'root ::= "<" n ("+" n){1,2} ">"\nn ::= [1-9] [0-9]?'
CHOICES = ["yes", 'yes, "of course"', "no\n", "né 🎉"]
KINDS: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({"structured_outputs": {"regex": DATE}}, matches(DATE)),
    ({"structured_outputs": {"grammar": SUM}}, matches(r"<[1-9][0-9]?(\+[1-9][0-9]?){1,2}>")),
    ({"structured_outputs": {"choice": CHOICES}}, CHOICES.__contains__),
    ({"response_format": {"type": "json_object"}}, lambda said: isinstance(json.loads(said), dict)),
]


@pytest.mark.parametrize("options, valid", KINDS, ids=["regex", "grammar", "choice", "json_object"])
def test_every_kind_of_constraint(
    options: dict[str, Any], valid: Callable[[str], bool], target: Target, engines: list[Engine]
) -> None:
    prompt = [{"role": "user", "content": 'Answer like this: {"a": 1}'}]
    engines += [assemble(target, "none"), assemble(target, "auto", controller="fixed", num_speculative_tokens=6)]
    for drawn in ({}, {"temperature": 0.9, "seed": 5}):
        plain, fast = (engine.generate(prompt, max_tokens=64, **options, **drawn) for engine in engines)
        assert plain.finish_reason == "stop"
        assert valid(plain.text), plain.text
        assert (fast.token_ids, fast.finish_reason) == (plain.token_ids, "stop")


def test_a_constraint_that_begins_inside_a_block(target: Target, grammars: XGrammars, engines: list[Engine]) -> None:
    """The draft holds the marker and what plain decoding says after it, right up to the end."""
    prompt = target.codec.prompt([{"role": "user", "content": "Repeat after me: The answer is: blue"}])
    options = {"max_tokens": 48, "constrain_after": "is:", "structured_outputs": {"regex": " (red|green), [0-9]{2}!"}}
    bare = Engine(target.model, codec=target.codec, grammars=grammars)
    engines.append(bare)
    plain = bare.generate(prompt, **options)
    assert re.search(r"is: (red|green), [0-9]{2}!$", plain.text), plain.text
    assert plain.finish_reason == "stop"
    marker = next(i for i in range(len(plain.token_ids)) if "is:" in target.codec.decode(plain.token_ids[:i]))
    for k in (2, 3, 5, 8, 12):
        for accuracy in (1.0, 0.7):
            script = ScriptDrafter({tuple(prompt): plain.token_ids}, target.model.traits.vocab_size, accuracy=accuracy)
            engine = Engine(target.model, [script], FixedController("script", k), codec=target.codec, grammars=grammars)
            engines.append(engine)
            found = engine.generate(prompt, **options)
            assert (found.token_ids, found.finish_reason) == (plain.token_ids, "stop")
            if accuracy == 1.0 and k == 12:
                assert found.sources[marker - 1] == found.sources[marker] == "script"
