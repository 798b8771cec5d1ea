"""Constraints through xgrammar: what is allowed, what is forced, and what is refused."""

from __future__ import annotations

import json
import random
import re
import sys

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from surefoot.core.constraint import Constraint, from_response_format, from_structured_outputs
from surefoot.errors import BadRequest, Unsupported
from surefoot.text import Codec, grammar
from surefoot.text.grammar import XGrammars, XMatcher
from surefoot.text.productive import productive
from surefoot.text.special import Special

WORDS = ['{"name": "', '", "age": ', '"}', " true", " false", "name", "age", "color", "yes", " please", "<|end|> <|role|>"]


def make(eos: bool = True) -> Codec:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=1, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|role|>", special=True)])
    end = tokenizer.token_to_id("<|end|>")
    return Codec(tokenizer, Special(eos_ids=(end,) if eos else ()))


@pytest.fixture(scope="module")
def codec() -> Codec:
    return make()


@pytest.fixture(scope="module")
def grammars(codec: Codec) -> XGrammars:
    return XGrammars(codec, codec.vocab_size + 7)


def asked(**what: object) -> Constraint:
    found = from_structured_outputs(what)
    assert found is not None
    return found


def follow(matcher: XMatcher, tokens: list[int]) -> bool:
    """Whether the tokens are allowed one after another."""
    for token in tokens:
        if not matcher.allowed()[token]:
            return False
        matcher.advance(token)
    return True


def complete(grammars: XGrammars, codec: Codec, constraint: Constraint, text: str) -> bool:
    """Whether the text is allowed, and may end."""
    matcher = grammars.matcher(constraint)
    tokens = [i for c in text.encode() for i in [codec.pieces.index(bytes([c]))]]
    return follow(matcher, tokens) and bool(matcher.allowed()[codec.eos_ids[0]])


def wander(grammars: XGrammars, codec: Codec, constraint: Constraint, rng: random.Random, limit: int = 150) -> bytes | None:
    """Random allowed tokens up to the end; ``None`` if it did not come."""
    matcher, said = grammars.matcher(constraint), b""
    for _ in range(limit):
        allowed = np.flatnonzero(matcher.allowed()).tolist()
        assert allowed, f"dead end after {said!r}"
        closing = [i for i in allowed if codec.pieces[i][:1] in (b'"', b"}", b"]") or i in codec.eos_ids]
        token = rng.choice(closing if closing and rng.random() < 0.5 else allowed)
        matcher.advance(token)
        if matcher.ended:
            return said
        said += codec.pieces[token]
    return None


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "color": {"enum": ["red", "green"]},
    },
    "required": ["name", "age", "color"],
}


def test_json_comes_in_one_line_in_the_order_of_the_schema(grammars: XGrammars, codec: Codec) -> None:
    wanted = asked(json=SCHEMA)
    for right in ('{"name": "Bo", "age": 7, "color": "red"}', '{"name": "", "age": 120, "color": "green"}'):
        assert complete(grammars, codec, wanted, right)
    for wrong in (
        '{"name":"Bo", "age": 7, "color": "red"}',
        '{ "name": "Bo", "age": 7, "color": "red"}',
        '{"name": "Bo",\n"age": 7, "color": "red"}',
        '{"age": 7, "name": "Bo", "color": "red"}',
        '{"name": "Bo", "age": 121, "color": "red"}',
        '{"name": "Bo", "age": 7, "color": "blue"}',
        '{"name": "Bo", "age": 7}',
        '{"name": "long long name", "age": 7, "color": "red"}',
        '{"name": "\t", "age": 7, "color": "red"}',
    ):
        assert not complete(grammars, codec, wanted, wrong), wrong


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {"type": "object"},
        {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
        {"type": "string", "minLength": 1, "maxLength": 6},
        {"type": "string", "pattern": "^.{2,5}$"},
        {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": {"type": "boolean"}},
        {"anyOf": [{"type": "null"}, {"const": {"a": 'q"\n'}}]},
    ],
)
def test_whatever_is_allowed_is_json(grammars: XGrammars, codec: Codec, schema: dict[str, object]) -> None:
    rng = random.Random(5)
    found = [wander(grammars, codec, asked(json=schema), rng) for _ in range(60)]
    ended = [text for text in found if text is not None]
    assert len(ended) > 10
    for text in ended:
        json.loads(text.decode(errors="replace"))  # the library lets surrogates through, which are no UTF-8


def test_json_object_is_an_object_and_nothing_else(grammars: XGrammars, codec: Codec) -> None:
    wanted = from_response_format({"type": "json_object"})
    assert wanted is not None
    for right in ("{}", '{"a": [1, {"b": null}], "c": "x"}'):
        assert complete(grammars, codec, wanted, right)
    for wrong in ("[]", '"a"', "1", "null", '{"a"}', "{} ", '{\n"a": 1}'):
        assert not complete(grammars, codec, wanted, wrong), wrong


CHOICES = ["yes", "yes please", 'a "quoted"\nline\\', "été 🎉", "[x] | $1 (y)*", "<|end|>", "<|role|>", "\x00"]


def test_choices_are_taken_to_the_letter(grammars: XGrammars, codec: Codec) -> None:
    wanted = asked(choice=CHOICES)
    for choice in CHOICES:
        assert complete(grammars, codec, wanted, choice)
    for wrong in ("ye", "yes ", "yes please ", "a quoted", "n"):
        assert not complete(grammars, codec, wanted, wrong)


def test_special_tokens_are_no_text(grammars: XGrammars, codec: Codec) -> None:
    end, role = (codec.tokenizer.token_to_id(name) for name in ("<|end|>", "<|role|>"))
    for constraint in (asked(choice=["<|end|>", "<|role|>"]), asked(regex=".+"), asked(grammar='root ::= [^a]+ "x"')):
        allowed = grammars.matcher(constraint).allowed()
        assert not allowed[end]
        assert not allowed[role]
        matcher = grammars.matcher(constraint)
        matcher.advance(role)
        assert not matcher.allowed().any()


def test_a_regex_means_what_it_means_in_python(grammars: XGrammars, codec: Codec) -> None:
    pattern = r"a.[.\]x]{2}\.(b|[^c])\d"
    for text in ("aé.]..1", "a..x.b0", "a\nxx.b1", "axxxxb1", "axxx.c1", "axxx.\n1"):
        assert complete(grammars, codec, asked(regex=pattern), text) == bool(re.fullmatch(pattern, text)), text


def test_a_token_that_is_not_allowed_leaves_nothing(
    grammars: XGrammars, codec: Codec, capfd: pytest.CaptureFixture[str]
) -> None:
    for wrong in (codec.pieces.index(b"z"), codec.eos_ids[0], codec.eos_ids[0] + 1, codec.vocab_size + 3, 10**6, -1):
        matcher = grammars.matcher(asked(regex="[ab]+"))
        other = matcher.fork()
        matcher.advance(wrong)
        matcher.advance(codec.pieces.index(b"a"))
        assert not matcher.allowed().any()
        assert not matcher.ended
        assert matcher.forced(4) == []
        assert not matcher.fork().allowed().any()
        assert other.allowed().any()
    assert capfd.readouterr().err == ""


def test_the_end_is_the_end(grammars: XGrammars, codec: Codec, capfd: pytest.CaptureFixture[str]) -> None:
    matcher = grammars.matcher(asked(choice=["{}"]))
    assert follow(matcher, [codec.pieces.index(b"{"), codec.pieces.index(b"}")])
    assert np.flatnonzero(matcher.allowed()).tolist() == list(codec.eos_ids)
    assert matcher.forced(4) == list(codec.eos_ids)
    assert not matcher.ended
    matcher.advance(codec.eos_ids[0])
    for state in (matcher, matcher.fork()):
        assert state.ended
        assert not state.allowed().any()
        assert state.forced(4) == []
        for token in (codec.eos_ids[0], 3):
            state.advance(token)
        assert state.ended
    assert capfd.readouterr().err == ""


def test_without_an_end_token_the_output_ends_where_nothing_can_follow() -> None:
    codec = make(eos=False)
    grammars = XGrammars(codec, codec.vocab_size)
    a, b = codec.pieces.index(b"a"), codec.pieces.index(b"b")
    matcher = grammars.matcher(asked(regex="a+b"))
    for token in (a, a):
        matcher.advance(token)
        assert not matcher.ended
    matcher.advance(b)
    assert matcher.ended
    assert not matcher.allowed().any()
    open_end = grammars.matcher(asked(regex="a+"))
    open_end.advance(a)
    assert not open_end.ended
    assert np.flatnonzero(open_end.allowed()).tolist() == [i for i, p in enumerate(codec.pieces) if p and set(p) == set(b"a")]


def test_forks_are_independent(grammars: XGrammars, codec: Codec) -> None:
    matcher = grammars.matcher(asked(json=SCHEMA))
    before = matcher.allowed().copy()
    other = matcher.fork()
    assert follow(other, codec.encode('{"name": "', special=False))
    assert (matcher.allowed() == before).all()
    assert not (other.allowed() == before).all()
    again = grammars.matcher(asked(json=SCHEMA))
    assert (again.allowed() == before).all()


def test_forced_tokens_are_those_of_the_tokenizer(grammars: XGrammars, codec: Codec) -> None:
    matcher = grammars.matcher(asked(json=SCHEMA))
    begin = codec.encode('{"name": "', special=False)
    found = matcher.forced(50)
    assert len(found) >= len(begin) - 1  # the last may be written together with what follows
    assert found == begin[: len(found)]
    assert matcher.forced(2) == begin[:2]
    assert matcher.forced(0) == []
    inside = codec.encode('{"name": "x', special=False)
    assert follow(matcher, inside)
    assert matcher.forced(8) == []  # text of the model's own
    # after the quote the next member is forced, whatever was said before
    matcher.advance(codec.pieces.index(b'"'))
    ahead = b"".join(codec.pieces[i] for i in matcher.forced(50))
    assert ahead
    assert b', "age": '.startswith(ahead)


def test_a_last_token_that_may_be_longer_is_left_to_the_model(grammars: XGrammars, codec: Codec) -> None:
    assert b" true" in codec.pieces
    choices = asked(choice=["name true", "name false"])
    assert b"".join(codec.pieces[i] for i in grammars.matcher(choices).forced(9)) == b"name"
    # nothing goes on with a space and a digit in one token, so the space is certain
    assert b"".join(codec.pieces[i] for i in grammars.matcher(asked(regex="name [0-9]{9}")).forced(9)) == b"name "


def test_forced_text_is_never_a_special_token(grammars: XGrammars, codec: Codec) -> None:
    role = codec.tokenizer.token_to_id("<|role|>")
    matcher = grammars.matcher(asked(choice=["yes<|role|>no"]))
    assert role in codec.encode("yes<|role|>no", special=False)
    assert role not in matcher.forced(20)


def test_forced_tokens_of_a_tokenizer_that_puts_a_space_first() -> None:
    tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *'{}"abcdefghijklmnopqrstuvwxyz:', "na", "name", "▁{", '{"']
    merges = [("n", "a"), ("▁", "{"), ("{", '"')]
    model = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    codec = Codec(tokenizer, Special(eos_ids=(0,)))
    matcher = XGrammars(codec, codec.vocab_size).matcher(asked(choice=['{"nab']))
    found = matcher.forced(9)
    assert b"".join(codec.pieces[i] for i in found) == b'{"nab'
    assert len(found) < 5
    matcher.advance(found[0])
    assert matcher.forced(9) == found[1:]


@pytest.mark.parametrize(
    "what, says",
    [
        ({"json": {"type": "strng"}}, "json_schema: .*strng.*correct the schema"),
        ({"json": False}, "json_schema: .*false"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "json_schema: .*minimum greater"),
        ({"json": {"enum": []}}, "json_schema: .*empty"),
        ({"json": {"$ref": "#/$defs/x"}}, "json_schema: .*defs"),
        ({"json": {"$ref": "http://x.org/y"}}, r"json_schema: \$ref at the top is 'http"),
        ({"json": {"type": "array", "uniqueItems": True}}, "json_schema: uniqueItems at the top cannot"),
        ({"json": {"properties": {"a": {"not": {}}}}}, "json_schema: not at /properties/a cannot"),
        ({"json": {"type": "array", "items": {"minimum": 2}}}, 'minimum at /items needs "type": "number"'),
        ({"json": {"type": "number", "multipleOf": 0.5}}, "multipleOf at the top needs"),
        ({"json": {"type": "string", "pattern": "a", "maxLength": 3}}, "beside pattern"),
        ({"json": {"anyOf": [{"type": "string"}], "maxLength": 3}}, "maxLength at the top beside anyOf"),
        ({"json": {"type": "integer", "enum": [1, "a"]}}, "not of type"),
        ({"json": {"allOf": [{"type": "integer"}, {"minimum": 3}]}}, "allOf at the top with several"),
        ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "oneOf at the top has schemas that may hold together"),
        ({"json": {"type": "object", "properties": {}, "required": ["z"]}}, "required at the top names 'z'"),
        ({"regex": "["}, "regex: .*position 2.*correct the pattern"),
        ({"regex": "a(?=b)"}, "regex: .*[Ll]ookahead"),
        ({"regex": "a^b"}, "regex: .*character 1, not at the edge of the pattern; leave it out"),
        ({"regex": "(a$)b"}, "regex: .*character 2, not at the edge"),
        ({"grammar": "root ::="}, "grammar: .*line 1"),
        ({"grammar": 'top ::= "a"'}, "grammar: .*root"),
        ({"grammar": 'root ::= "a" root'}, "grammar: no output can ever be complete"),
        ({"grammar": "root ::= root"}, "grammar: "),
        ({"choice": ["\ud800"]}, "choice: .*surrogate"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    grammars: XGrammars, what: dict[str, object], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadRequest, match=says) as told:
        grammars.matcher(asked(**what))
    assert "\n" not in str(told.value)
    assert ".cc:" not in str(told.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"const": 1}, {"enum": [2, 3]}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in ("cat", "dog")
            ]
        },
        {"type": "string", "enum": ["a"], "title": "T", "default": "a"},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Optional"},
        {"type": "object", "properties": {"not": {"type": "null"}, "if": {"const": {"contains": 1}}}},
        {"$defs": {"x": {"type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]},
        {"type": "array", "uniqueItems": False, "items": {"type": "integer"}},
    ],
)
def test_schemas_that_can_be_kept_are_taken(grammars: XGrammars, schema: dict[str, object]) -> None:
    assert grammars.matcher(asked(json=schema)).allowed().any()


def test_a_grammar_whose_first_letter_no_token_has() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    with pytest.raises(BadRequest, match="choice: no token of the model can begin"):
        XGrammars(Codec(tokenizer, Special()), 2).matcher(asked(choice=["c"]))


def test_compiled_constraints_are_kept_within_bounds(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_one = grammar._compile
    monkeypatch.setattr(grammar, "_compile", lambda c, k: compiled.append(k.text) or compile_one(c, k))
    monkeypatch.setattr(grammar, "_KEPT", 2)
    grammars = XGrammars(codec, codec.vocab_size)
    for pattern in ("a", "b", "a", "c", "a", "b"):
        grammars.matcher(asked(regex=pattern))
    assert compiled == ["a", "b", "c", "b"]


def test_without_the_library_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = make()
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    grammars = XGrammars(codec, codec.vocab_size)
    with pytest.raises(Unsupported, match=r"pip install 'surefoot\[grammar\]'"):
        grammars.matcher(asked(regex="a"))


@pytest.mark.parametrize(
    "text, whole",
    [
        ('root ::= (("a" root))', False),
        ('root ::= (("a") | (root "b"))', True),
        ('root ::= (("a" x))\nx ::= ((x "c"))', False),
        ('root ::= ("" | (x root))\nx ::= (("[" x)) (=(root))', True),
        ("root ::= ((x{1, 3}))\nx ::= ((x))", False),
        ("root ::= ((x{0, 3}))\nx ::= ((x))", True),
        ('root ::= (("| x" [|x"]* y))\ny ::= (("\\" x"))', True),
        ('root ::= Regex("root")', True),
    ],
)
def test_grammars_without_an_end_are_found(text: str, whole: bool) -> None:
    assert productive(text) == whole


@pytest.mark.parametrize("pattern", ["^ab|c$", "^(yes|no)$", "a|^b$", r"[^ab]\^\$"])
def test_anchors_at_the_edge_say_nothing(grammars: XGrammars, codec: Codec, pattern: str, capfd) -> None:
    for text in ("ab", "c", "yes", "no", "a", "b", "y^$", "^$"):
        assert complete(grammars, codec, asked(regex=pattern), text) == bool(re.fullmatch(pattern, text)), text
    assert capfd.readouterr().err == ""


def test_masks_are_complete() -> None:
    """Every piece that the rest of the text begins with is allowed, over vocabularies of random pieces."""
    rng = random.Random(5)
    lost = 0
    for _ in range(150):
        text = "".join(rng.choices('ab":{', k=8))
        cuts = [text[i : i + n] for i in range(8) for n in (1, 2, 3, 4)]
        pieces = sorted({piece.encode() for piece in (*rng.sample(cuts, 8), *text)})
        lost += bool(grammar.separators(pieces))
        lexicon = grammar.Lexicon(Words(pieces), len(pieces), True)
        compiled = lexicon.compiler.compile_grammar(f"root ::= {grammar._literal(text)}")
        matcher, at = XMatcher(lexicon, grammar._library().GrammarMatcher(compiled)), 0
        while at < len(text):
            wanted = [i for i, piece in enumerate(pieces) if text[at:].encode().startswith(piece)]
            assert np.flatnonzero(matcher.allowed()).tolist() == wanted
            token = rng.choice(wanted)
            matcher.advance(token)
            at += len(pieces[token])
    assert lost > 5, "these vocabularies have none of the pieces that the library loses by itself"


class Words:
    """A vocabulary without an end token."""

    eos_ids: tuple[int, ...] = ()

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def encode(self, text: str, special: bool = True) -> list[int]:
        raise BadRequest("not asked for")
