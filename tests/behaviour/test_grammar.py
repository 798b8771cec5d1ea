"""L62 to L66: structured output holds in every block, whatever the drafts, and a request's state moves with kept tokens only.

The grammar library is a toy (:mod:`toys_grammar`), so that nothing but the engine is under test.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from behaviour.grid import DRAFTS, LENGTHS, engine_of, every_draft, finish, plain, same, speculate, streamed
from exact.reference import World, constraint_of
from toys import Custom, ToyCodec, fixed
from toys_grammar import ToyGrammars, ToyMatcher, accepts

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter

PIECES = [
    "{", "}", "{}", '"', "a", "b", ":", ",", "1", "23", '{"', '":', '"}', '","', "<eos>", "x", "aa", '"a":', "</", "think>",
    "</think>", "</think>{", "<function=", ">",
]  # fmt: skip
EOS = PIECES.index("<eos>")
CODEC = ToyCodec(PIECES, eos=[EOS])
V = len(PIECES)
TARGET = TableModel.random(V, order=1, seed=3, sharpness=1.5)
GRAMMARS = ToyGrammars(CODEC.pieces, [EOS])
WORLD = World(TARGET, CODEC.pieces, [EOS])
JSON = {"max_tokens": 30, "response_format": {"type": "json_object"}}
CASES = {
    "json": JSON,
    "json-hot": JSON | {"temperature": 1.4, "seed": 5},
    "regex": {"max_tokens": 30, "structured_outputs": {"regex": '("a"|"b":[1-3]{2,4},)+x'}},
    "choice": {"max_tokens": 30, "structured_outputs": {"choice": ["{aab}", '{"a":1}', "{}x"]}, "temperature": 1.0, "seed": 2},
    "endless": {"max_tokens": 23, "structured_outputs": {"regex": "[ab]+"}, "logit_bias": {EOS: -50}},
}


def check(prompt, options, kind, k, target=TARGET, tree=False):
    """Speculative output, equal to plain decoding with the same mask; in the language, or a beginning of it at the budget."""
    found = speculate(target, prompt, options, kind, k, CODEC, tree=tree, grammars=GRAMMARS)
    same(found, plain(target, prompt, options, CODEC, grammars=GRAMMARS))
    if "constrain_after" not in options:
        assert accepts(constraint_of(options), found.text, prefix=found.finish_reason == "length")
    return found


@every_draft
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_L62_output_is_in_the_language(tree, name, kind, k):
    for start in (0, 7, 15):
        check([start], CASES[name], kind, k, tree=tree)


@pytest.mark.parametrize("name", ["json", "regex", "choice"])
def test_L62_plain_decoding_agrees_with_the_reference(name):
    options = {key: value for key, value in CASES[name].items() if key not in ("temperature", "seed")}
    for start in range(0, V, 5):
        assert plain(TARGET, [start], options, CODEC, grammars=GRAMMARS).token_ids == WORLD.greedy([start], options)


def breaking(at: int, junk: list[int], options, prompt) -> Custom:
    """Right up to a place of the block, and then what the grammar cannot take."""
    said = plain(TARGET, prompt, options, CODEC, grammars=GRAMMARS).token_ids

    def one(row, plan):
        done = len(row.tokens) - row.n_prompt
        right = list(said[done : done + at])
        return DraftTree.chain([row.tokens[-1], *(right + junk * plan.depth)[: plan.depth]], source=1)

    return Custom(one)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("at", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("junk", [["x"], ["}"], ['"', ":"], ["<eos>", "a"], ["{}", "<eos>", "{}"]], ids="".join)
def test_L62_drafts_that_break_the_grammar(junk, at, k):
    for name in ("json", "json-hot", "regex"):
        ids = [PIECES.index(piece) for piece in junk]
        check([4], CASES[name], breaking(at, ids, CASES[name], [4]), k)


@pytest.mark.parametrize("k", LENGTHS)
def test_L62_neighbours_and_later_requests_are_unharmed(k):
    """One engine: constrained and free rows in the same passes, each with drafts that break the grammar."""
    engine = fixed(TARGET, Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *[15] * plan.depth], source=1)), k,
                   codec=CODEC, grammars=GRAMMARS)  # fmt: skip
    requests = [([4], JSON), ([1, 2], {"max_tokens": 25, "temperature": 1.0, "seed": 1}), ([9], CASES["regex"]), ([4], JSON)]
    for _ in range(2):
        rows = [engine.add(prompt, SamplingParams.build(options)) for prompt, options in requests]
        while not all(row.done for row in rows):
            engine.step()
        for row, (prompt, options) in zip(rows, requests):
            same(engine.completion(row), plain(TARGET, prompt, options, CODEC, grammars=GRAMMARS))
    assert engine.rows == []


# ---- L63: state moves once per kept token ----


class Counting(ToyMatcher):
    """Forks know their origin, so that what each copy was told can be read afterwards."""

    made: list[Counting]

    def fork(self):
        other = super().fork()
        other.made = self.made
        self.made.append(other)
        return other


class CountingGrammars(ToyGrammars):
    """Keeps the matcher of every request, and the copies that were made of each."""

    def __init__(self, *args):
        super().__init__(*args)
        self.roots: list[Counting] = []

    def matcher(self, constraint):
        plain_one = super().matcher(constraint)
        root = Counting(self, plain_one._term)
        root.made = []
        self.roots.append(root)
        return root


DIGITS = {"max_tokens": 20, "structured_outputs": {"regex": "[1-3]+"}, "logit_bias": {EOS: -60}}
LETTERS = [PIECES.index(p) for p in ("a", "b", "aa", "x")]


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("draft", [*DRAFTS, "letters"])
def test_L63_digits_only_and_one_advance_a_token(draft, k):
    grammars = CountingGrammars(CODEC.pieces, [EOS])
    letters = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *(LETTERS * 4)[: plan.depth]], source=1))
    for options in (DIGITS, DIGITS | {"temperature": 1.5, "seed": 3}):
        engine = engine_of(TARGET, draft if draft in DRAFTS else letters, k, CODEC, grammars=grammars)
        row = engine.add([0], SamplingParams.build(options))
        root = grammars.roots[-1]
        while not row.done:
            engine.step()
            assert list(root.read) == row.output  # each kept token once, in order, at every step
        assert set(row.text) <= set("123")
        same(engine.completion(row), plain(TARGET, [0], options, CODEC, grammars=GRAMMARS))
        # copies are for drafted tokens only: each knows the kept tokens before its own
        assert (len(root.made) > 0) == (row.stats.accepted_tokens > 0)


class Told:
    """A processor with state: each copy knows all it was told, and says which copy it is of."""

    def __init__(self, told=(), family=None):
        self.told = list(told)
        self.family = [] if family is None else family
        self.family.append(self)

    def __call__(self, token_ids, logits):
        assert token_ids[len(token_ids) - len(self.told) :] == self.told
        logits[(3 * len(self.told) + sum(self.told)) % len(logits)] += 3.0
        return logits

    def advance(self, token):
        self.told.append(token)

    def fork(self):
        return Told(self.told, self.family)


@every_draft
@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_L63_a_stateful_processor_is_told_of_kept_tokens(temperature, kind, k):
    def twin(prompt, output, x):
        x[(3 * len(output) + sum(output)) % V] += 3.0
        return x

    world = World(TARGET, CODEC.pieces, [EOS])
    world.extra = [twin]
    options = {"max_tokens": 24, "temperature": temperature, "seed": 4}
    given = Told()
    wanted = plain(TARGET, [3, 2], options | {"logits_processors": [Told()]}, CODEC)
    script = ScriptDrafter(lambda row: wanted.token_ids, V, accuracy={"oracle": 1.0, "wrong": 0.0, "mixed": 0.5}[kind])
    engine = fixed(TARGET, script, k, codec=CODEC)
    row = engine.add([3, 2], SamplingParams.build(options | {"logits_processors": [given]}))
    own = given.family[1]  # the request begins with a copy of the object that was given
    while not row.done:
        engine.step()
        assert own.told == row.output
    same(engine.completion(row), wanted)
    assert given.told == []
    if not temperature:
        assert tuple(row.output) == world.greedy([3, 2], options)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_L63_two_requests_with_one_processor_do_not_mix(k):
    given = Told()
    options = {"max_tokens": 16, "logits_processors": [given]}
    engine = engine_of(TARGET, "oracle", k, CODEC)
    rows = [engine.add(prompt, SamplingParams.build(options)) for prompt in ([1], [2], [1])]
    while not all(row.done for row in rows):
        engine.step()
    for row, prompt in zip(rows, ([1], [2], [1])):
        same(engine.completion(row), plain(TARGET, prompt, options, CODEC))
    assert given.told == []


# ---- L64: a constraint that begins after a marker ----


def spoken(text: list[str]) -> tuple[TableModel, list[int]]:
    """A model that says these pieces one after the other, wants letters after the marker, and digits never."""
    ids = [PIECES.index(piece) for piece in text]
    assert len(set(ids)) == len(ids)
    logits = TableModel.random(V, 1, 8, 0.5).logits.clone()
    for a, b in pairwise(ids):
        logits[a, b] += 30.0
    logits[:, LETTERS] += 4.0
    logits[:, PIECES.index("1")] -= 4.0
    return TableModel(logits, 1), ids


MARKERS = {"one-token": ["</think>"], "two-tokens": ["</", "think>"]}
AFTER = {"structured_outputs": {"regex": "[1-3]{4}(x|})"}, "constrain_after": "</think>", "max_tokens": 16}


def split_after(text: str) -> tuple[str, str]:
    before, marker, rest = text.partition("</think>")
    assert marker
    return before, rest


@every_draft
@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("marker", MARKERS)
def test_L64_the_constraint_begins_inside_the_block(marker, place, kind, k):
    """The marker is completed at each position of the first drafted block, and of later ones."""
    target, ids = spoken(["{", "}", ":", ",", '":', '"}', '","', *MARKERS[marker]])
    prompt = [ids[6 - place]]
    found = check(prompt, AFTER, kind, k, target=target)
    before, rest = split_after(found.text)
    assert accepts(constraint_of(AFTER), rest)
    assert found.finish_reason == "stop"
    free = plain(target, prompt, {"max_tokens": 16}, CODEC).text
    assert not accepts(constraint_of(AFTER), split_after(free)[1], prefix=True)  # without the constraint it would be broken
    assert free.startswith(before)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_L64_drafts_of_what_the_free_model_would_say(temperature, marker, k):
    """Right up to the marker, then the letters that the model wants: the trap of the report."""
    target, ids = spoken(["{", "}", ":", *MARKERS[marker]])
    options = AFTER | {"temperature": temperature, "seed": 11}
    said = plain(target, [ids[0]], options, CODEC, grammars=GRAMMARS).token_ids
    end = len(ids) - 1
    trap = ScriptDrafter(lambda row: [*said[:end], *LETTERS * 5], V)
    found = speculate(target, [ids[0]], options, trap, k, CODEC, grammars=GRAMMARS)
    same(found, plain(target, [ids[0]], options, CODEC, grammars=GRAMMARS))
    assert accepts(constraint_of(AFTER), split_after(found.text)[1])


@every_draft
def test_L64_tokens_that_would_overshoot_the_marker(kind, k):
    """The model wants ``</think>{``; the constraint begins between two tokens, so that token is impossible."""
    target, ids = spoken(["}", ":", "</think>{"])
    found = check([ids[0]], AFTER, kind, k, target=target)
    assert PIECES.index("</think>{") not in found.token_ids
    assert "</think>{" in plain(target, [ids[0]], {"max_tokens": 16}, CODEC).text


@every_draft
def test_L64_the_reference_agrees(kind, k):
    for start in range(0, V, 3):
        options = AFTER | {"logit_bias": {PIECES.index("</think>"): 2.5, PIECES.index("</"): 3.0}}
        assert check([start], options, kind, k).token_ids == WORLD.greedy([start], options)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_L64_a_draft_model_that_reads_past_the_marker(temperature, marker, k):
    """It walks one copy of the state through the whole draft; that must not move the request's own."""
    target, ids = spoken(["{", "}", ":", *MARKERS[marker]])
    options = AFTER | {"temperature": temperature, "seed": 11}
    for draft in (target, TARGET):
        made = fixed(target, ModelDrafter(draft, V), k, codec=CODEC, grammars=GRAMMARS)
        same(finish(made, [ids[0]], options), plain(target, [ids[0]], options, CODEC, grammars=GRAMMARS))


def test_L64_before_the_marker_nothing_is_constrained_and_nothing_ends():
    target, ids = spoken(["{", "}", ":", ",", '":', "{"][:5])
    options = AFTER | {"max_tokens": 6, "logit_bias": {PIECES.index("</think>"): -50, PIECES.index("</"): -50}}
    for k in LENGTHS:
        found = check([ids[0]], options, "oracle", k, target=target)
        assert found.finish_reason == "length"
        assert found.text.startswith('}:,":')


# ---- L65: the grammar ends inside the block ----

EMPTY = {"max_tokens": 12, "structured_outputs": {"choice": ["{}"]}}
NO_END = ToyCodec(PIECES)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("draft", [*DRAFTS, "ends", "junk", "self"])
@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"temperature": 1.0, "seed": 3}], ids=str)
@pytest.mark.parametrize("end", ["eos", "none"])
def test_L65_a_grammar_that_ends_inside_the_block(end, options, draft, k):
    """With an end token the output is ``{}`` and that token; without one it ends where nothing can follow."""
    codec = CODEC if end == "eos" else NO_END
    grammars = ToyGrammars(codec.pieces, codec.eos_ids)
    tail = {"ends": [EOS] * 16, "junk": [EOS if end == "eos" else 2, 2, 15, 0, EOS] * 4}.get(draft)

    def one(row, plan):
        said = plain(TARGET, [4], asked, codec, grammars=grammars).token_ids[len(row.output) :]
        right = [token for token in said if token != EOS]
        return DraftTree.chain([row.tokens[-1], *[*right, *tail][: plan.depth]], source=1)

    asked = EMPTY | options
    wanted = plain(TARGET, [4], asked, codec, grammars=grammars)
    assert (wanted.text, wanted.finish_reason) == ("{}", "stop")
    assert (wanted.token_ids[-1] == EOS) == (end == "eos")
    made = engine_of(TARGET, draft if tail is None else Custom(one), k, codec, grammars=grammars)
    same(finish(made, [4], asked), wanted)
    assert "".join(piece.text for piece in streamed(made, [4], asked)) == "{}"
    same(finish(made, [1, 2], {"max_tokens": 5}), plain(TARGET, [1, 2], {"max_tokens": 5}, codec))


@every_draft
@pytest.mark.parametrize("options", [CASES["choice"], CASES["json"], JSON | {"temperature": 0.7, "seed": 9}], ids=str)
def test_L65_longer_outputs_end_cleanly_too(options, kind, k):
    ended = 0
    for start in range(0, V, 4):
        found = check([start], options | {"max_tokens": 60, "logit_bias": {1: 3.0, 12: 3.0}}, kind, k)
        assert found.error is None
        ended += found.finish_reason == "stop"
    assert ended >= 3


def test_L65_a_draft_model_may_run_past_the_end():
    """A draft model that shapes its own logits meets a matcher that allows nothing: it stops drafting, no more."""
    engine = engine_of(TARGET, "self", 8, CODEC, grammars=GRAMMARS)
    rows = [
        engine.add([4], SamplingParams.build(o))
        for o in (EMPTY, {"max_tokens": 20, "ignore_eos": True}, EMPTY | {"temperature": 1.0})
    ]
    while not all(row.done for row in rows):
        engine.step()
    assert [row.finish_reason for row in rows] == ["stop", "length", "stop"]
    assert rows[0].text == rows[2].text == "{}"


# ---- L66: prompt lookup in tool-call markup ----

FUNCTION = {"max_tokens": 30, "structured_outputs": {"regex": "(<function=(a|b|aa)>)+x"}}


def markup() -> list[int]:
    return CODEC.encode("<function=a>{}<function=b>,<function=aa>x<function=a>", special=False)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("min_n", [1, 2, 8])
@pytest.mark.parametrize("grammar", [True, False], ids=["grammar", "free"])
def test_L66_lookup_of_short_matches_is_harmless(grammar, min_n, k):
    for extra in ({}, {"temperature": 0.9, "seed": 6}, {"frequency_penalty": 0.4}):
        options = (FUNCTION if grammar else {"max_tokens": 30}) | extra
        made = NgramDrafter(max_n=max(4, min_n), min_n=min_n)
        found = finish(fixed(TAGS, made, k, codec=CODEC, grammars=GRAMMARS), markup(), options)
        same(found, plain(TAGS, markup(), options, CODEC, grammars=GRAMMARS))
        if grammar:
            assert accepts(constraint_of(FUNCTION), found.text, prefix=found.finish_reason == "length")
        if min_n < 8:
            assert found.stats.draft_tokens > 0


def tags() -> TableModel:
    """Likes to write tags, with names that vary."""
    logits = TableModel.random(V, 1, 12, 1.0).logits.clone()
    opening, closing = PIECES.index("<function="), PIECES.index(">")
    logits[closing, opening] += 5.0
    logits[opening, LETTERS[:3]] += 5.0
    logits[LETTERS[:3], closing] += 5.0
    return TableModel(logits, 1)


TAGS = tags()


def test_L66_the_toy_grammar_is_one():
    """Masks agree with the language itself, and a library without a pattern's kind refuses it."""
    matcher = GRAMMARS.matcher(constraint_of(JSON))
    text = b""
    for piece in ('{"', "a", '":', "23"):
        allowed = matcher.allowed()
        for token in range(V):
            fits = token != EOS and accepts(constraint_of(JSON), text + CODEC.pieces[token], prefix=True)
            assert allowed[token] == (fits if token != EOS else accepts(constraint_of(JSON), text))
        matcher.advance(PIECES.index(piece))
        text += piece.encode()
    fork = matcher.fork()
    fork.advance(PIECES.index("}"))
    fork.advance(EOS)
    assert (fork.ended, matcher.ended) == (True, False)
    assert not fork.allowed().any()
    assert Engine(TARGET, codec=CODEC, grammars=GRAMMARS).generate([4], **EMPTY).text == "{}"


# ---- the same with the real library ----


@pytest.fixture(scope="module")
def real():
    from surefoot.text.grammar import XGrammars

    return XGrammars(CODEC, V), XGrammars(NO_END, V)


REAL = {name: CASES[name] for name in ("regex", "choice", "endless")} | {"after": AFTER, "empty": EMPTY}


@every_draft
@pytest.mark.parametrize("name", REAL)
def test_L62_the_real_library_says_what_the_toy_says(name, kind, k, real):
    """Two independent implementations of the same languages: the outputs are equal, token by token."""
    for start in (0, 7, 15):
        options = REAL[name] | {"max_tokens": 24}
        found = speculate(TARGET, [start], options, kind, k, CODEC, grammars=real[0])
        same(found, plain(TARGET, [start], options, CODEC, grammars=GRAMMARS))


@every_draft
def test_L65_the_real_library_is_not_asked_after_the_end(kind, k, real):
    for codec, grammars in ((CODEC, real[0]), (NO_END, real[1])):
        found = speculate(TARGET, [4], EMPTY, kind, k, codec, grammars=grammars)
        same(found, plain(TARGET, [4], EMPTY, codec, grammars=ToyGrammars(codec.pieces, codec.eos_ids)))
        assert (found.text, found.finish_reason) == ("{}", "stop")
