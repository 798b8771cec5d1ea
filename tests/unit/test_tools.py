"""Tool calls read from text: every form, every cut, broken calls, and a speculating engine's own pieces."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import ToyCodec, Truth, counter, fixed

from surefoot.drafters.script import ScriptDrafter
from surefoot.errors import BadRequest
from surefoot.text.tools import (
    FORMATS,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    ToolCall,
    ToolCallStream,
    collect,
    parse_tool_calls,
)

PARIS = '{"city": "Paris", "days": [1, 2]}'
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"zip": {"type": "string"}}}}}


def call(name: str, arguments: str, index: int = 0, complete: bool = True) -> ToolCall:
    return ToolCall(name, arguments, index, f"call_{index}", complete)


def streamed(pieces: list[str], format: str = "auto") -> tuple[str, tuple[ToolCall, ...]]:
    stream = ToolCallStream(format)
    events = [event for piece in pieces for event in stream.feed(piece)]
    return collect([*events, *stream.finish()])


ONE = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {PARIS}}}\n</tool_call>',
    "arguments first": f'<tool_call>{{"arguments": {PARIS}, "name": "weather"}}</tool_call>',
    "arguments in a string": f'<tool_call>{{"name": "weather", "arguments": {json.dumps(PARIS)}}}</tool_call>',
    "other members": f'<tool_call>{{"id": 7, "name": "weather", "x": {{"name": [1]}}, "arguments": {PARIS}}}</tool_call>',
    "a list": f'<tool_call>[{{"name": "weather", "arguments": {PARIS}}}]</tool_call>',
    "no end marker": f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}',
    "no last brace": f'<tool_call>{{"name": "weather", "arguments": {PARIS}</tool_call>',
    "parameters": f'<tool_call>{{"name": "weather", "parameters": {PARIS}}}</tool_call>',
    "function": f"<function=weather>{PARIS}</function>",
    "function in tool_call": f"<tool_call>\n<function=weather>\n{PARIS}\n</function>\n</tool_call>",
    "mistral list": f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS}}}]',
    "mistral name": f"[TOOL_CALLS]weather{PARIS}",
    "mistral args": f"[TOOL_CALLS]weather[CALL_ID]a1B2[ARGS]{PARIS}",
    "bare": f'\n{{"name": "weather", "parameters": {PARIS}}}',
    "bare, type": f'{{"type": "function", "name": "weather", "parameters": {PARIS}}}\n',
    "python tag": f'<|python_tag|>{{"name": "weather", "parameters": {PARIS}}}',
}


@pytest.mark.parametrize("text", ONE.values(), ids=list(ONE))
def test_every_form_gives_the_call_and_no_content(text: str) -> None:
    assert parse_tool_calls(text) == ("", (call("weather", PARIS),))
    assert streamed(list(text)) == ("", (call("weather", PARIS),))


TWO = {
    "hermes": '<tool_call>{"name": "a", "arguments": {}}</tool_call>\n'
    '<tool_call>{"name": "b", "arguments": {"x": 1}}</tool_call>',
    "one marker": '<tool_call>{"name": "a", "arguments": {}}\n{"name": "b", "arguments": {"x": 1}}</tool_call>',
    "list": '<tool_call>[{"name": "a"}, {"name": "b", "arguments": {"x": 1}}]</tool_call>',
    "function": '<function=a>{}</function><function=b>{"x": 1}</function>',
    "xml": "<tool_call><function=a></function></tool_call>\n<tool_call><function=b>"
    "<parameter=x>\n1\n</parameter></function></tool_call>",
    "mistral list": '[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {"x": 1}}]',
    "mistral names": '[TOOL_CALLS]a{}[TOOL_CALLS]b{"x": 1}',
    "bare": '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": 1}}',
}


@pytest.mark.parametrize("text", TWO.values(), ids=list(TWO))
@pytest.mark.parametrize("size", [1, 2, 5, 16, 10**6])
def test_two_calls_in_pieces_of_any_size(text: str, size: int) -> None:
    content, calls = streamed([text[i : i + size] for i in range(0, len(text), size)])
    assert content == ""
    assert [(c.name, json.loads(c.arguments_json), c.index, c.complete) for c in calls] == [
        ("a", {}, 0, True),
        ("b", {"x": 1}, 1, True),
    ]


def test_text_around_calls_is_content() -> None:
    text = 'Let me look.\n<tool_call>{"name": "a", "arguments": {}}</tool_call>\n\nDone: 1 < 2 [a] {"b": 1}.\n'
    assert parse_tool_calls(text) == ('Let me look.\n\n\nDone: 1 < 2 [a] {"b": 1}.\n', (call("a", "{}"),))


def test_content_comes_as_soon_as_no_marker_can_begin() -> None:
    stream = ToolCallStream()
    assert stream.feed("a <") == [Content("a ")]
    assert stream.feed("tool") == []
    assert stream.feed("box <") == [Content("<toolbox ")]
    assert stream.feed("b") == [Content("<b")]
    assert stream.feed("[TOOL_CAL") == []
    assert stream.finish() == [Content("[TOOL_CAL")]
    assert stream.finish() == []
    with pytest.raises(BadRequest, match="new ToolCallStream"):
        stream.feed("x")


def test_arguments_come_while_they_are_written() -> None:
    stream = ToolCallStream(prefix="c9")
    assert stream.feed('<tool_call>{"name": "a", "arguments": ') == []
    assert stream.feed('{"x": "lo') == [CallBegin(0, "c9_0", "a"), CallArguments(0, '{"x": "lo')]
    assert stream.feed('ng"}') == [CallArguments(0, 'ng"}')]
    assert stream.feed("}</tool") == [CallEnd(0, True)]
    assert stream.feed("_call>ok") == [Content("ok")]
    stream = ToolCallStream()
    assert stream.feed("<function=a><parameter=x>1</parameter><parameter=y>t")[1:] == [CallArguments(0, '{"x":1')]
    assert stream.feed("wo</parameter></function>")[0] == CallArguments(0, ',"y":"two"}')


def test_markers_inside_strings_belong_to_the_arguments() -> None:
    tricky = '{"t": "</tool_call> <tool_call> \\"}] [TOOL_CALLS] \\\\", "u": "\\u00e9}"}'
    for text in (
        f'<tool_call>{{"name": "a", "arguments": {tricky}}}</tool_call>',
        f"[TOOL_CALLS]a{tricky}",
        f"<function=a>{tricky}</function>",
    ):
        assert parse_tool_calls(text) == ("", (call("a", tricky),))


def test_xml_values_take_the_types_of_the_schema() -> None:
    text = (
        "<tool_call>\n<function=weather>\n<parameter=zip>\n01234\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
        '<parameter=list>[1, "a"]</parameter>\n<parameter=t>two\nlines <b></parameter>\n<parameter=q>"so"</parameter>\n'
        "</function>\n</tool_call>"
    )
    content, [found] = parse_tool_calls(text, "qwen3_coder", [WEATHER])
    assert content == ""
    assert json.loads(found.arguments_json) == {"zip": "01234", "n": 5, "list": [1, "a"], "t": "two\nlines <b>", "q": '"so"'}
    assert json.loads(parse_tool_calls("<function=weather><parameter=zip>5</parameter></function>")[1][0].arguments_json) == {
        "zip": 5
    }
    declared = parse_tool_calls("<function=weather><parameter=zip>5</parameter></function>", tools=[WEATHER])[1][0]
    assert json.loads(declared.arguments_json) == {"zip": "5"}


NO_CALL = [
    "",
    " \n ",
    "1 < 2",
    "<tool_call>",
    "<tool_call>not JSON</tool_call>",
    '<tool_call>{"name": "a"',
    '<tool_call>{"name": "a", "arguments": 5}</tool_call>',
    '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "a b", "arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"name": "a", "arguments": "[1]"}</tool_call>',
    '<tool_call>{"name": "a", "arguments": "{"}</tool_call>',
    "<tool_call>[]</tool_call>",
    "<function=>{}</function>",
    "<function=a b>{}</function>",
    "<function=a>text</function>",
    "<function=a><parameter=x>1",
    "[TOOL_CALLS]",
    "[TOOL_CALLS] and more",
    "[TOOL_CALLS]a[b]{}",
    '{"name": "a"}',
    '{"name": "a", "parameters": {}, "age": 3}',
    '{"answer": 42}',
    '{"name": "a", "parameters": {}',
    'x {"name": "a", "parameters": {}}',
]


@pytest.mark.parametrize("text", NO_CALL)
def test_what_is_no_call_is_content_as_it_stands(text: str) -> None:
    assert parse_tool_calls(text) == (text, ())
    assert streamed(list(text)) == (text, ())


BROKEN = {
    "cut": ('<tool_call>{"name": "a", "arguments": {"x": "lo', "", '{"x": "lo'),
    "bad JSON": ('<tool_call>{"name": "a", "arguments": {"x": oh}}</tool_call>', "oh}}</tool_call>", '{"x": '),
    "function": ('<function=a>{"x": 1,}</function>', "}</function>", '{"x": 1,'),
    "xml": ("<function=a><parameter=x>1</parameter><parameter=y>2", "<parameter=y>2", '{"x":1'),
    "mistral": ("[TOOL_CALLS]a{1}", "1}", "{"),
}


@pytest.mark.parametrize("text, content, arguments", BROKEN.values(), ids=list(BROKEN))
def test_a_call_that_breaks_ends_incomplete_and_the_rest_is_content(text: str, content: str, arguments: str) -> None:
    assert parse_tool_calls(text) == (content, (call("a", arguments, complete=False),))
    assert streamed(list(text)) == (content, (call("a", arguments, complete=False),))


def test_a_good_call_after_a_broken_one_is_found() -> None:
    good = '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    assert parse_tool_calls("<tool_call>" + good) == ("<tool_call>", (call("b", "{}"),))
    assert parse_tool_calls('<tool_call>{"x' + "\n" + good) == ('<tool_call>{"x\n', (call("b", "{}"),))
    content, calls = parse_tool_calls('<tool_call>{"name": "a", "arguments": {"x' + "\n" + good)
    assert (content, calls) == ("\n", (call("a", '{"x', complete=False), call("b", "{}", 1)))
    assert parse_tool_calls("<tool_" + good) == ("<tool_", (call("b", "{}"),))


def test_auto_keeps_to_the_format_of_the_first_call() -> None:
    other = "[TOOL_CALLS]b{}"
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call>' + other
    assert parse_tool_calls(text) == (other, (call("a", "{}"),))
    assert parse_tool_calls(other, "hermes") == (other, ())
    assert parse_tool_calls('{"name": "a", "parameters": {}}', "hermes")[1] == ()
    for format in FORMATS:
        assert parse_tool_calls("plain [text] <b>", format) == ("plain [text] <b>", ())
    with pytest.raises(BadRequest, match="did you mean 'hermes'"):
        ToolCallStream("herms")


def test_hostile_text_is_read_in_linear_time() -> None:
    deep = "[" * 50_000
    for text in (
        f'<tool_call>{{"name": "a", "arguments": {{"x": {deep}',
        f"<function=a><parameter=x>{deep}</parameter></function>",
        "<tool_call>{" * 20_000,
        "<function=a><parameter=x>" * 10_000,
        '<tool_call>{"name": "a", "arguments": {"n": ' + "9" * 200_000 + "}}",
        '<tool_call>{"name":"a","arguments":{}}' + " " * 100_000 + "x",
    ):
        begin = time.perf_counter()
        parse_tool_calls(text)
        assert time.perf_counter() - begin < 5


NAMES = st.from_regex(r"[A-Za-z_][\w.-]{0,8}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)


def written(form: str, calls: list[tuple[str, dict[str, object]]], indent: int | None) -> str:
    """Calls as a model would write them."""
    whole = [json.dumps({"name": n, "arguments": a}, indent=indent) for n, a in calls]
    args = [json.dumps(a, ensure_ascii=False, indent=indent) for _, a in calls]
    names = [n for n, _ in calls]
    return {
        "hermes": "\n".join(f"<tool_call>\n{w}\n</tool_call>" for w in whole),
        "list": f"<tool_call>[{', '.join(whole)}]</tool_call>",
        "function": "".join(f"<function={n}>{a}</function>" for n, a in zip(names, args)),
        "mistral": f"[TOOL_CALLS][{','.join(whole)}]",
        "mistral names": "".join(f"[TOOL_CALLS]{n}{a}" for n, a in zip(names, args)),
        "bare": "; ".join(whole),
    }[form]


@settings(max_examples=200)
@given(
    st.sampled_from(["hermes", "list", "function", "mistral", "mistral names", "bare"]),
    CALLS,
    st.sampled_from([None, 2]),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_what_is_written_is_read_however_it_is_cut(form, calls, indent, cuts) -> None:
    text = written(form, calls, indent)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    stream = ToolCallStream()
    events = [e for lo, hi in pairwise(places) for e in stream.feed(text[lo:hi])] + stream.finish()
    content, found = collect(events)
    assert content == ""
    assert [(c.name, json.loads(c.arguments_json), c.index, c.complete) for c in found] == [
        (name, arguments, i, True) for i, (name, arguments) in enumerate(calls)
    ]
    assert [e.index for e in events if isinstance(e, CallBegin)] == list(range(len(calls)))


PARTS = ["<tool_call>", "</tool_call>", "<function=", "a>", "</function>", "<parameter=", "x>", "</parameter>", "[TOOL_CALLS]"]
PARTS += [
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    '{"name": "a", "arguments": {',
    '{"name": "a"}',
    '"name"',
    ":",
    ",",
    "{",
    "}",
]
PARTS += [
    "[",
    "]",
    ";",
    '"',
    "\\",
    "\n",
    " ",
    "1",
    "null",
    "é",
    "text",
    "<",
    "<tool",
    '{"x": 1}',
    '{"name": "b", "parameters": {}}',
]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(PARTS), max_size=14), st.sampled_from(sorted(FORMATS)), st.integers(1, 7))
@example(["<tool_call>", '{"name": "a", "arguments": {', "}"], "auto", 1)
def test_anything_is_read_without_loss(parts, format, size) -> None:
    text = "".join(parts)
    content, calls = parse_tool_calls(text, format)
    assert streamed([text[i : i + size] for i in range(0, len(text), size)], format) == (content, calls)
    if not calls:
        assert content == text
    for found in calls:
        assert found.name in text
        if found.complete:
            assert isinstance(json.loads(found.arguments_json), dict)
    rest = iter(text)  # nothing is invented, and what is content keeps its order
    assert all(c in rest for c in content)


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("form", ["hermes", "list", "mistral names", "function"])
def test_calls_of_a_speculating_engine_are_those_of_its_text(form: str, k: int) -> None:
    """Accepted blocks deliver several tokens at once: streamed arguments are neither doubled nor lost."""
    calls = [("get_weather", {"city": "Zürich", "days": [1, 2, 3]}), ("send", {"to": "a@b", "text": "<ok> {…}"})]
    text = "Sure.\n" + written(form, calls, None)
    data = text.encode()
    cuts = [0, *range(3, len(data), 3), len(data)]  # tokens of three bytes: characters and markers are split
    codec = ToyCodec(["<start>", *(data[lo:hi] for lo, hi in pairwise(cuts)), "<end>"])
    codec.eos_ids = (codec.vocab_size - 1,)
    target = counter(codec.vocab_size)
    drafter = ScriptDrafter(Truth(target, codec=codec), codec.vocab_size, accuracy=1.0 if k % 2 else 0.7)
    engine = fixed(target, drafter, k, codec=codec)
    stream = ToolCallStream()
    events, pieces = [], []
    for piece in engine.stream([0]):
        pieces.append(piece)
        events += stream.feed(piece.text)
    content, found = collect([*events, *stream.finish()])
    assert "".join(piece.text for piece in pieces) == text
    assert max(len(piece.token_ids) for piece in pieces) > 1
    assert content == "Sure.\n"
    assert [(c.name, json.loads(c.arguments_json), c.complete) for c in found] == [(n, a, True) for n, a in calls]
    assert (content, found) == parse_tool_calls(text)
