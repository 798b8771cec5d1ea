"""Drafting across vocabularies: spelling, contexts, both ways to draft, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from toys import ToyCodec, fixed
from unit.test_pieces import TEXTS, byte_fallback, byte_level

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Plan
from surefoot.core.request import Row
from surefoot.drafters.bridge import EQUAL, INTERSECTION, PADDED, REFUSED, UNIVERSAL, Bridge, unfinished
from surefoot.drafters.cross import CrossDrafter, model_drafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.reading import Reading
from surefoot.drafters.universal import Universal
from surefoot.errors import BackendError, BadRequest, VocabMismatch
from surefoot.text import Codec
from surefoot.text.crossing import cross
from surefoot.text.special import Special
from surefoot.text.spelling import Spelling

LENGTHS = (1, 2, 3, 5, 8, 16)
WORDS = ["", *"abcdehmnot .é", "the", " cat", " mat", "at", " the", "</s>"]
PARTS = ["<end>", *"tonmhedcba. ", b"\xc3", b"\xa9", "th", "e cat ", "ma", " m"]
"""Two vocabularies of the same letters; in the second one a letter is two tokens. Both have an end of their own name."""


def toys() -> tuple[Spelling, Spelling]:
    return Spelling(ToyCodec(WORDS, [len(WORDS) - 1])), Spelling(ToyCodec(PARTS, [0]))


def codec(tokenizer: Tokenizer, eos: Sequence[int] = (), padded: int | None = None) -> Codec:
    return Codec(tokenizer, Special(eos_ids=tuple(eos), padded_size=padded))


class Says(TableModel):
    """Goes on with a text that repeats itself, in the longest tokens that fit. After ``end`` bytes it says ``eos``.

    ``shift``: bytes that come before the text.
    """

    def __init__(self, words: Spelling, text: str, end: int | None = None, shift: int = 0, **options: int) -> None:
        size = len(words.pieces)
        super().__init__(torch.zeros(1, size), 0, **options)
        self.words, self.said, self.end, self.shift = words, text.encode(), end, shift

    def next_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        at = sum(len(self.words.pieces[t]) for t in tokens) - self.shift
        ahead = (self.said * (at // len(self.said) + 3))[at : at + 20]
        fits = [i for i, p in enumerate(self.words.pieces) if p and ahead.startswith(p)]
        best = max(fits, key=lambda i: len(self.words.pieces[i]))
        if self.end is not None and at >= self.end:
            best = self.words.eos_ids[0]
        logits = torch.zeros(len(self.words.pieces), dtype=torch.float64)
        logits[best] = 20.0
        return logits


# ---- spelling ----


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_spelling_gives_the_bytes_asked_for_wherever_the_text_is_cut(make) -> None:
    words = Spelling.of(codec(make()))
    for text in TEXTS:
        data = text.encode()
        for i in range(len(data)):
            for j in (i + 1, i + 3, min(i + 20, len(data))):
                for before in (data[:i], b""):
                    found = words.spell(data[i:j], before)
                    assert found is not None
                    assert b"".join(words.pieces[t] for t in found) == data[i:j]


def test_what_stands_before_decides_how_a_stretch_is_cut() -> None:
    words = Spelling(ToyCodec(["a", "b", "c", "ab", "bc", "\n", " ", "."]))
    assert words.spell(b"bc", b"c") == [4]
    assert words.spell(b"c", b"ab") == [2]
    # a + bc would be the text's own cut; the row ended between b and c, so c stands alone
    assert words.spell(b"ca", b"b") == [2, 0]


def test_a_space_that_the_tokenizer_puts_first_is_not_written_inside_a_text() -> None:
    words = Spelling.of(codec(byte_fallback()))
    assert words.lead
    a, spaced = (words.ids[piece] for piece in (b"a", b" a"))
    assert words.spell(b"a", b"b") == [a]
    assert words.spell(b"a", b"") == [a]
    assert words.spell(b" a", b"b") == [spaced]
    assert words.spell(b"a", None) == [spaced], "at the beginning of a text it is the tokenizer's own way"


def test_what_cannot_be_written_is_refused_not_replaced() -> None:
    words = Spelling(ToyCodec(["a", "b", "\n", " ", "."]))
    assert words.spell(b"\xc3", b"a") is None
    assert words.spell(b"a\xc3", b"a") is None
    assert words.spell(b"", b"a") == []


def test_of_equal_pieces_the_one_that_the_tokenizer_writes_is_used() -> None:
    tokenizer = byte_fallback()
    words = Spelling.of(codec(tokenizer))
    assert words.ids[b"b"] == tokenizer.token_to_id("b") != tokenizer.token_to_id("<0x62>")
    early = Tokenizer(models.BPE({"<unk>": 0, "\n": 1, "<0x0A>": 2, "▁": 3}, [], byte_fallback=True, unk_token="<unk>"))
    early.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    assert Spelling(SimpleNamespace(encode=lambda t, special=True: early.encode(t).ids, vocab_size=4, eos_ids=(),
                                    pieces=[b"", b"\n", b"\n", b" "])).ids[b"\n"] == 1  # fmt: skip


@pytest.mark.parametrize(
    "data, n", [(b"", 0), (b"a", 0), (b"\xc3", 1), (b"\xc3\xa9", 0), (b"a\xf0\x9f", 2), (b"\xf0\x9f\x8e", 3), (b"\xa9", 0)]
)
def test_unfinished_characters(data: bytes, n: int) -> None:
    assert unfinished(data) == n


# ---- bridge and contexts ----


def test_tokens_are_joined_by_bytes_marks_by_name_and_ends_to_ends() -> None:
    ours = Spelling(ToyCodec(["a", "b", "<x>", "<s>", "</s>", "<only>"], [4]), frozenset({2, 3, 5}))
    theirs = Spelling(ToyCodec(["<end>", "b", "<x>", "<s>", "c"], [0]), frozenset({3}))
    bridge = Bridge.of(ours, theirs)
    # a has no equal; <x> is a mark here and text there; <s> by name; the ends to each other; <only> has no equal
    assert bridge.there == [-1, 1, -1, 3, 0, -1]
    assert bridge.back == [4, 1, -1, 3, -1]
    assert [x.tolist() for x in bridge.common] == [[0, 1, 3], [4, 1, 3]]
    assert bridge.end(0) == 4


def test_an_end_token_whose_name_is_something_else_there() -> None:
    """Our <m> ends; there <m> is a role and <e> ends: an end stays an end."""
    ours, theirs = Spelling(ToyCodec(["a", "<m>"], [1])), Spelling(ToyCodec(["a", "<m>", "<e>"], [2]), frozenset({1}))
    bridge = Bridge.of(ours, theirs)
    assert bridge.there == [0, 2]
    assert bridge.back == [0, -1, 1]


@pytest.mark.parametrize("ours, theirs", [(byte_level, byte_fallback), (byte_fallback, byte_level)])
def test_a_context_is_the_whole_text_in_the_drafts_tokens(ours, theirs, rng: np.random.Generator) -> None:
    """Read in steps of random size, even inside characters; what is said to be unchanged is unchanged."""
    target, draft = codec(ours()), codec(theirs())
    for text in TEXTS:
        tokens = target.encode(text * 4, special=False)
        reading = Reading(Bridge.of(Spelling.of(target), Spelling.of(draft)))
        held: list[int] = []
        at = 0
        while at < len(tokens):
            at = min(len(tokens), at + int(rng.integers(1, 6)))
            assert reading.follow(tokens[:at])
            assert reading.ids[: reading.kept] == held[: reading.kept]
            held, reading.kept = list(reading.ids), len(reading.ids)
            spelled = b"".join(reading._bridge.theirs.pieces[t] for t in reading.ids)
            lead = b" " if reading._bridge.theirs.lead else b""
            assert spelled == lead + target.decode(tokens).encode()[: len(spelled) - len(lead)]
        assert reading.ids == draft.encode(text * 4, special=False)


def test_a_context_is_not_cut_off_where_the_draft_has_no_token() -> None:
    ours, theirs = Spelling(ToyCodec(["a", "b", "é"])), Spelling(ToyCodec(["b", "a", "\n", " ", "."]))
    theirs._encode = lambda text, special=True: [theirs.ids[c.encode()] for c in text if c != "é"]
    reading = Reading(Bridge.of(ours, theirs))
    assert reading.follow([0, 2, 1, 0])
    assert reading.ids == [1, 0, 1]
    assert reading.follow([0, 2, 1, 0, 2, 2, 1])
    assert reading.ids == [1, 0, 1, 0]


def test_marks_before_a_prompt_give_way_to_the_drafts_own() -> None:
    def begun(name: str, at: int) -> Spelling:
        tokenizer = byte_level()
        tokenizer.add_special_tokens([name, "<role>"])
        i = tokenizer.token_to_id(name)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{name} $A", special_tokens=[(name, i)])
        return Spelling.of(codec(tokenizer))

    plain = byte_level()
    plain.add_special_tokens(["<s>", "<role>"])
    ours, theirs, without = begun("<s>", 0), begun("<bos>", 0), Spelling.of(codec(plain))
    begin, role = ours.begin[0], ours.marks[b"<role>"]
    a, b = (ours.ids[c] for c in (b"a", b"b"))
    reading = Reading(Bridge.of(ours, theirs))
    assert reading.follow([begin, a, role, b])
    assert reading.ids == [theirs.begin[0], theirs.ids[b"a"], theirs.marks[b"<role>"], theirs.ids[b"b"]]
    for alike in (False, True):
        reading = Reading(Bridge.of(ours, without, alike=alike))
        assert reading.follow([begin, a, begin, b])  # the second one is in the text: it is a mark that both have
        assert reading.ids == [without.ids[b"a"], without.marks[b"<s>"], without.ids[b"b"]]
    assert without.begin == ()


# ---- drafting ----


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("way", [UNIVERSAL, INTERSECTION])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 0.7, "seed": 4, "top_k": 5}])
@pytest.mark.parametrize("turned", [False, True])
def test_the_output_is_that_of_plain_decoding(k: int, way: str, options: dict, turned: bool) -> None:
    ours, theirs = reversed(toys()) if turned else toys()
    target = TableModel.random(len(ours.pieces), 1, seed=5, sharpness=1.5)
    draft = TableModel.random(len(theirs.pieces), 1, seed=6, sharpness=1.5)
    engine = fixed(target, CrossDrafter(draft, Bridge.of(ours, theirs, way, way), len(ours.pieces)), k)
    prompts = [[3, 4, 5], [7] * 9, [1, 15]]
    wanted = [Engine(target).generate(p, max_tokens=40, **options).token_ids for p in prompts]
    assert [x.token_ids for x in engine.generate_batch(prompts, max_tokens=40, **options)] == wanted
    found = engine.generate(prompts[0], max_tokens=40, **options)
    assert found.token_ids == wanted[0]
    assert found.stats.draft_tokens > 0
    engine.close()
    assert draft.open_slots == 0


@pytest.mark.parametrize("turned", [False, True])
def test_a_draft_that_says_the_same_text_is_right(turned: bool) -> None:
    """The two write the same text with other tokens, and one of them writes é with two."""
    ours, theirs = reversed(toys()) if turned else toys()
    text = "the cat ate the mat. é "
    target, draft = Says(ours, text), Says(theirs, text)
    drafter = CrossDrafter(draft, Bridge.of(ours, theirs, UNIVERSAL, UNIVERSAL), len(ours.pieces))
    engine = fixed(target, drafter, 4)
    prompt = ours.spell(b"the cat")
    assert prompt is not None
    found = engine.generate(prompt, max_tokens=60)
    assert found.token_ids == Engine(target).generate(prompt, max_tokens=60).token_ids
    assert found.stats.accepted_tokens > 0.75 * found.stats.draft_tokens
    assert found.stats.mean_acceptance_length > 3
    engine.close()


@pytest.mark.parametrize("way", [UNIVERSAL, INTERSECTION])
@pytest.mark.parametrize("make, other", [(byte_level, byte_fallback), (byte_fallback, byte_level)])
def test_byte_level_and_byte_fallback_draft_for_each_other(make, other, way: str) -> None:
    """A text in which characters are several tokens on either side; no draft disagrees but for how words are cut."""
    target, draft = codec(make()), codec(other())
    ours, theirs = Spelling.of(target), Spelling.of(draft)
    text = "ab é 日本 the fox 🎉\n"
    model, speaker = Says(ours, text), Says(theirs, text, shift=1 if theirs.lead else 0)
    drafter = CrossDrafter(speaker, Bridge.of(ours, theirs, way, way), len(ours.pieces))
    engine = fixed(model, drafter, 4, codec=target)
    prompt = ours.spell(text.encode() * 2)
    found = engine.generate(prompt, max_tokens=80)
    assert found.token_ids == Engine(model).generate(prompt, max_tokens=80).token_ids
    assert found.stats.accepted_tokens > 0.3 * found.stats.draft_tokens > 0
    engine.close()


@pytest.mark.parametrize("way", [UNIVERSAL, INTERSECTION])
def test_the_drafts_cache_holds_the_text_as_it_is_cut_now(way: str) -> None:
    """A drafter that goes along proposes what a new one proposes, and reads only what changed."""
    ours, theirs = toys()
    bridge = Bridge.of(ours, theirs, way, way)
    draft = TableModel.random(len(theirs.pieces), 2, seed=6, sharpness=2.0)
    lasting = CrossDrafter(draft, bridge, len(ours.pieces))
    propose = lasting.propose
    seen = 0

    def checked(rows, plans):
        nonlocal seen
        trees = propose(rows, plans)
        fresh = CrossDrafter(TableModel(draft.logits, 2), bridge, len(ours.pieces))
        for one, other, row in zip(trees, fresh.propose(rows, plans), rows, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert lasting._follower._slots[row.id].tokens == lasting._readings[row.id].ids
            seen += len(one) - 1
        return trees

    lasting.propose = checked
    target = TableModel.random(len(ours.pieces), 1, seed=5, sharpness=0.5)
    engine = fixed(target, lasting, 3)
    engine.generate_batch([[3, 4, 5], [16, 2]], max_tokens=100, temperature=1.0, seed=1)
    assert seen > 100
    assert lasting.stats()["changed"] > 0, "later text changes how the text before is cut"
    assert lasting.stats()["rows"] == draft.open_slots == 0
    assert draft.nodes_scored < 1500


def test_the_drafts_end_is_the_targets_end() -> None:
    ours, theirs = toys()
    text = "the cat ate. "
    target, draft = Says(ours, text, end=26), Says(theirs, text, end=26)
    engine = fixed(target, CrossDrafter(draft, Bridge.of(ours, theirs), len(ours.pieces)), 16)
    found = engine.generate(ours.spell(b"the cat"), max_tokens=60, trace=True, stop_token_ids=[ours.eos_ids[0]])
    assert found.finish_reason == "stop"
    assert any(ours.eos_ids[0] in step.candidates for step in found.stats.trace)
    assert (
        found.token_ids
        == Engine(target).generate(ours.spell(b"the cat"), max_tokens=60, stop_token_ids=[ours.eos_ids[0]]).token_ids
    )


def test_half_a_character_is_never_proposed() -> None:
    """The draft says é in two tokens; with room for one of them it proposes nothing of it."""
    ours, theirs = toys()
    draft = Says(theirs, "é")
    engine = fixed(Says(ours, "é"), CrossDrafter(draft, Bridge.of(ours, theirs), len(ours.pieces)), 3)
    found = engine.generate(ours.spell("éé".encode()), max_tokens=20, trace=True)
    offered = {token for step in found.stats.trace for token in step.candidates}
    assert offered == {ours.ids["é".encode()]}
    assert found.stats.accepted_tokens == found.stats.draft_tokens > 0


def one_hot(words: Spelling, piece: bytes) -> np.ndarray:
    logits = np.zeros(len(words.pieces))
    logits[words.ids[piece]] = 9.0
    return logits


def drafted(ours: Spelling, theirs: Spelling, depth: int, room: int, *said: bytes) -> list[bytes]:
    """What a draft through text proposes behind an a, if the draft model says these pieces."""
    row = Row(0, [ours.ids[b"a"]], SamplingParams(), limit=9)
    voice = Universal(Bridge.of(ours, theirs), row, Plan("model", depth, 1, depth), 1.0, room)
    for piece in said[:-1]:
        assert voice.say(one_hot(theirs, piece)) == theirs.ids[piece]
    assert voice.say(one_hot(theirs, said[-1])) is None
    return [ours.pieces[t] for t in voice.tree(1).tokens[1:].tolist()]


def test_a_token_that_may_be_the_beginning_of_a_longer_one_is_waited_for() -> None:
    ours, theirs = Spelling(ToyCodec(["a", "b", "c", "bc"])), Spelling(ToyCodec(["a", "b", "c"]))
    assert drafted(ours, theirs, 1, 9, b"b", b"c") == [b"bc"]
    assert drafted(ours, theirs, 1, 9, b"b", b"a") == [b"b"]


def test_the_beginning_of_a_character_is_not_proposed_even_where_there_is_a_token_for_it() -> None:
    both = Spelling(ToyCodec(["a", "b", b"\xc3", b"\xa9"]))
    assert drafted(both, both, 3, 2, b"b", b"\xc3") == [b"b"]
    assert drafted(both, both, 3, 3, b"b", b"\xc3", b"\xa9") == [b"b", b"\xc3", b"\xa9"]


def test_by_token_a_token_without_an_equal_is_spelled() -> None:
    ours, theirs = Spelling(ToyCodec(["a", "b", "ab"])), Spelling(ToyCodec(["b", "a"]))
    reading = Reading(Bridge.of(ours, theirs, alike=True))
    assert reading.follow([0, 2, 1])
    assert reading.ids == [1, 1, 0, 0]


def test_a_greedy_draft_of_the_intersection_says_nothing_second_best() -> None:
    ours, theirs = Spelling(ToyCodec(["a", "b"])), Spelling(ToyCodec(["c", "a", "b"]))
    logits = torch.tensor([3.0, 2.0, 1.0]).repeat(4, 1)
    drafter = CrossDrafter(TableModel(logits, 1), Bridge.of(ours, theirs, INTERSECTION, INTERSECTION, True), 2)
    engine = fixed(TableModel.random(2, 1), drafter, 3)
    assert engine.generate([0, 1], max_tokens=10).stats.draft_tokens == 0
    sampled = engine.generate([0, 1], max_tokens=10, temperature=1.0, seed=1)
    assert sampled.stats.draft_tokens > 0


def test_options_shape_the_intersection() -> None:
    ours, theirs = toys()
    draft = TableModel.random(len(theirs.pieces), 1, seed=6, sharpness=1.5)
    drafter = CrossDrafter(draft, Bridge.of(ours, theirs, INTERSECTION, INTERSECTION), len(ours.pieces))
    target = TableModel.random(len(ours.pieces), 1, seed=5, sharpness=1.5)
    allowed = [ours.ids[c] for c in (b"t", b"h", b"e", b"a")]
    found = fixed(target, drafter, 4).generate(
        [3], max_tokens=40, temperature=1.0, seed=1, allowed_token_ids=allowed, trace=True
    )
    offered = {token for step in found.stats.trace for token in step.candidates}
    assert offered
    assert offered <= set(allowed)


def test_forks_and_aborts_give_the_cache_back() -> None:
    ours, theirs = toys()
    draft = TableModel.random(len(theirs.pieces), 1, seed=6)
    target = TableModel.random(len(ours.pieces), 1, seed=5)
    engine = fixed(target, CrossDrafter(draft, Bridge.of(ours, theirs), len(ours.pieces)), 3)
    row = engine.add([3, 4, 5])
    for _ in range(4):
        engine.step()
    other = engine.fork(row, [6])
    engine.step()
    engine.abort(row)
    while len(other.output) < 20:
        engine.step()
    prompt = other.tokens[: other.n_prompt]
    assert tuple(other.output[:20]) == Engine(target).generate(prompt, max_tokens=20).token_ids
    engine.close()
    assert draft.open_slots == 0


def test_a_full_cache_ends_the_drafts_not_the_request() -> None:
    class Full(TableModel):
        def fork(self, slot, length=None):
            raise BackendError("the cache is full; raise kv_tokens")

    ours, theirs = toys()
    draft = Full(TableModel.random(len(theirs.pieces), 1, seed=6).logits, 1)
    target = TableModel.random(len(ours.pieces), 1, seed=5)
    engine = fixed(target, CrossDrafter(draft, Bridge.of(ours, theirs), len(ours.pieces)), 3)
    with pytest.warns(RuntimeWarning, match="stops drafting.*raise kv_tokens") as told:
        found = engine.generate([3, 4], max_tokens=30)
    assert len(told) == 1
    assert found.token_ids == Engine(target).generate([3, 4], max_tokens=30).token_ids
    assert draft.open_slots == 0


def test_a_short_context_ends_the_drafts_with_one_warning() -> None:
    ours, theirs = toys()
    draft = TableModel(TableModel.random(len(theirs.pieces), 1, seed=6).logits, 1, max_context=12)
    target = TableModel.random(len(ours.pieces), 1, seed=5)
    engine = fixed(target, CrossDrafter(draft, Bridge.of(ours, theirs), len(ours.pieces)), 3)
    with pytest.warns(RuntimeWarning, match="context holds 12 tokens") as told:
        found = engine.generate([3, 4], max_tokens=30)
    assert len(told) == 1
    assert 0 < found.stats.draft_tokens < 20
    assert found.token_ids == Engine(target).generate([3, 4], max_tokens=30).token_ids


def test_one_maker_for_pairs_of_either_kind() -> None:
    ours, theirs = toys()
    draft = TableModel.random(len(theirs.pieces), 1, seed=6)
    made = model_drafter(draft, len(ours.pieces), bridge=Bridge.of(ours, theirs), known=3, source=4)
    assert isinstance(made, CrossDrafter)
    assert (made.name, made.source) == ("model", 4)
    made = model_drafter(draft, len(ours.pieces), known=3, source=5)
    assert isinstance(made, ModelDrafter)
    assert (made.name, made.source) == ("model", 5)
    for bridge in (None, Bridge.of(ours, theirs)):
        with pytest.raises(TypeError, match="other"):
            model_drafter(draft, len(ours.pieces), bridge=bridge, other=1)


def test_a_tokenizer_that_is_not_the_models_is_refused() -> None:
    ours, theirs = toys()
    with pytest.raises(VocabMismatch, match="the draft's tokenizer has 19 tokens, the model 5"):
        CrossDrafter(TableModel.random(5, 1), Bridge.of(ours, theirs), len(ours.pieces))
    with pytest.raises(VocabMismatch, match="the target's tokenizer has 20 tokens, the model 6"):
        CrossDrafter(TableModel.random(len(theirs.pieces), 1), Bridge.of(ours, theirs), 6)


# ---- which way ----


def lowercasing() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "##s": 2}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def renamed(at: int, name: str = "zz") -> Tokenizer:
    """The byte-level tokenizer with one entry changed."""
    import json

    made = json.loads(byte_level().to_str())
    old = next(token for token, i in made["model"]["vocab"].items() if i == at)
    made["model"]["merges"] = [m for m in made["model"]["merges"] if old not in (m[0], m[1], m[0] + m[1])]
    made["model"]["vocab"] = {name if i == at else token: i for token, i in made["model"]["vocab"].items()}
    return Tokenizer.from_str(json.dumps(made))


def test_equal_and_padded_tables_need_no_mapping() -> None:
    one = codec(byte_level(), padded=400)
    found = cross(one, codec(byte_level(), padded=400)).require()
    assert (found.greedy, found.sampled, found.bridge) == (EQUAL, EQUAL, None)
    found = cross(one, codec(byte_level(), padded=448)).require()
    assert (found.greedy, found.sampled, found.bridge) == (PADDED, PADDED, None)
    assert "400 and 448" in found.why_greedy


def test_one_tokenizer_with_a_differing_entry_is_drafted_by_ids() -> None:
    last = byte_level().get_vocab_size() - 1
    found = cross(codec(byte_level()), codec(renamed(last))).require()
    assert (found.greedy, found.sampled) == (INTERSECTION, INTERSECTION)
    assert found.bridge is not None
    assert found.bridge.alike
    assert found.bridge.there[last] == found.bridge.back[last] == -1
    assert sum(i < 0 for i in found.bridge.there) == 1
    assert "one tokenizer but for 1 ids" in found.explain()


def test_other_tokenizers_draft_by_text_and_sample_in_the_intersection() -> None:
    found = cross(codec(byte_level()), codec(byte_fallback())).require()
    assert (found.greedy, found.sampled) == (UNIVERSAL, INTERSECTION)
    assert found.bridge is not None
    assert not found.bridge.alike
    assert found.found.common == len(found.bridge.common[0]) > 200
    assert f"{found.found.common} tokens" in found.why_sampled


def test_tokenizers_that_change_texts_are_refused_by_name() -> None:
    for pair, name in (((byte_level(), lowercasing()), "draft"), ((lowercasing(), byte_level()), "target")):
        found = cross(*map(codec, pair))
        assert (found.greedy, found.sampled, found.possible) == (REFUSED, REFUSED, False)
        with pytest.raises(VocabMismatch, match=f"the tokenizer of the {name} changes texts"):
            found.require()


@pytest.mark.parametrize("way", [INTERSECTION, UNIVERSAL])
def test_a_way_can_be_asked_for(way: str) -> None:
    for other in (byte_level(), byte_fallback()):
        found = cross(codec(byte_level()), codec(other), way).require()
        assert (found.greedy, found.sampled) == (way, way)
        assert found.bridge is not None
    with pytest.raises(VocabMismatch, match="ids differ"):
        cross(codec(byte_level()), codec(byte_fallback()), EQUAL)
    with pytest.raises(BadRequest, match="vocab='other' is not known; give one of auto, equal"):
        cross(codec(byte_level()), codec(byte_level()), "other")
