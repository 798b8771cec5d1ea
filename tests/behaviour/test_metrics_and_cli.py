"""Counts, flags a token, command-line plumbing, streams: what is told must be what happened."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import re
import weakref

import numpy as np
import pytest
import torch
from behaviour.clock import VOCAB, Clock, Priced, Script, decode, rate
from behaviour.grid import (
    ACCURACY,
    DRAFTS,
    LENGTHS,
    combinations,
    engine_of,
    every_draft,
    every_draft_and_self,
    plain,
    speculate,
    streamed,
    words,
)  # fmt: skip
from behaviour.letters import EOS, SIZE, codec, target
from contract.conftest import tiny
from tokenizers import Tokenizer, decoders, models
from toys import Custom, ToyCodec, counter, fixed, random_trees, tree

from surefoot import loader
from surefoot.backends.table import TableModel
from surefoot.backends.torch import TorchModel
from surefoot.cli import main, parser
from surefoot.commands import common
from surefoot.commands.answer import answer
from surefoot.commands.report import lines
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.measure import measure
from surefoot.core.params import SamplingParams
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.text import Codec
from surefoot.text.special import Special
from surefoot.text.tools import ToolCallStream, collect, parse_tool_calls
from surefoot.trained import LANES

# L83 to L87, L96: counts


def counts(stats) -> None:
    """What always holds."""
    assert 0 <= stats.accepted_tokens <= stats.draft_tokens
    assert stats.drafts <= min(stats.passes, stats.draft_tokens)
    assert stats.acceptance_rate == (stats.accepted_tokens / stats.draft_tokens if stats.draft_tokens else 0.0)
    assert 0.0 <= stats.acceptance_rate <= 1.0
    for own in stats.by_source.values():
        assert 0 <= own.accepted_tokens <= own.draft_tokens
    for field in ("draft_tokens", "accepted_tokens"):
        assert sum(getattr(own, field) for own in stats.by_source.values()) == getattr(stats, field)
    assert sum(stats.accepted_per_position) == stats.accepted_tokens
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)


ENDS = {
    "budget": {"max_tokens": 23},
    "stop token": {"max_tokens": 40, "stop_token_ids": [13]},
    "stop string": {"max_tokens": 40, "stop": ["w11 w12"]},
}


@every_draft_and_self
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_L83_accepted_is_never_more_than_drafted(kind, k, end, shape):
    """Whatever ends the request, in the middle of a block too: the target's own token is never counted as accepted."""
    found = speculate(counter(VOCAB), [0], ENDS[end], kind, k, words(VOCAB), tree=shape == "tree" and kind != "self")
    counts(found.stats)
    assert found.stats.accepted_tokens == sum(source != "target" for source in found.sources)
    assert found.stats.passes + found.stats.accepted_tokens >= len(found.token_ids)
    if kind == "wrong":
        assert found.stats.acceptance_rate == 0.0
    if kind in ("oracle", "self") and end == "budget" and shape == "chain":
        assert found.stats.acceptance_rate == 1.0


@pytest.mark.parametrize("k", LENGTHS)
def test_L84_mean_acceptance_length_includes_the_targets_own_token(k):
    """In [1, k + 1]: k + 1 where all is right, 1 where nothing is, and 1 where nothing was drafted."""
    length = {"max_tokens": 1 + 4 * (k + 1)}  # the prompt's own pass, then four whole blocks
    right, wrong, mixed = (speculate(counter(VOCAB), [0], length, kind, k).stats for kind in DRAFTS)
    assert (right.passes, right.drafts, right.draft_tokens) == (5, 4, 4 * k)
    assert right.mean_acceptance_length == k + 1
    assert wrong.mean_acceptance_length == 1.0
    assert mixed.mean_acceptance_length == 1 + mixed.accepted_tokens / mixed.drafts
    assert 1.0 < mixed.mean_acceptance_length < k + 1
    assert plain(counter(VOCAB), [0], length).stats.mean_acceptance_length == 1.0
    said = answer(engine_of(counter(VOCAB), "oracle", k), [0], SamplingParams(**length))
    assert f"mean length    {k + 1:.2f} tokens a drafted pass" in "\n".join(lines([said], "script"))


def offering(k: int, accuracy: float, **options):
    """An engine on the counting model, and the tokens that its drafter proposed, by pass."""
    clock = Clock()
    drafter = Script(clock, 0.0, accuracy)
    return Engine(Priced(clock, float), [drafter], FixedController("script", k), **options), drafter.offered


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("accuracy", [1.0, 0.0, 0.5])
def test_L85_drafted_is_what_the_source_proposed(k, accuracy):
    """Short last drafts are counted as short; no draft reaches past the budget."""
    for length in (*range(1, 13), 40):
        engine, offered = offering(k, accuracy)
        done = engine.generate([0], max_tokens=length, trace=True)
        verified = [len(step.candidates) for step in done.stats.trace if step.candidates]
        assert done.stats.draft_tokens == sum(offered) == sum(verified)
        assert done.stats.drafts == len([n for n in offered if n]) == len(verified)
        for step in done.stats.trace:
            assert len(step.candidates) <= min(k, max(0, length - (step.position - 1) - 1))
    if accuracy == 1.0:
        engine, offered = offering(4, 1.0)
        assert engine.generate([0], max_tokens=5).stats.draft_tokens == 3  # the first and the last token are the target's


@pytest.mark.parametrize("k", LENGTHS)
def test_L85_a_source_that_says_less_than_asked_is_counted_by_what_it_said(k):
    said = []

    def one(row, plan):
        made = random_trees(VOCAB, 3)(row, plan)
        said.append(len(made) - 1)
        return made

    stats = fixed(counter(VOCAB), Custom(one), k).generate([0], max_tokens=60).stats
    assert stats.draft_tokens == sum(said)
    assert stats.drafts == sum(n > 0 for n in said)
    assert 0 < stats.draft_tokens < k * stats.passes or k == 1


@pytest.mark.parametrize("price, least", [(lambda m: 1.0 + 0.01 * m, 5), (lambda m: float(m), 0)], ids=["flat", "steep"])
def test_L86_the_length_is_chosen_by_tokens_a_second(price, least):
    """Short drafts have the best acceptance rate whatever they cost. What is asked is the speed; the tuner comes later."""
    accuracy, draft = 0.8, 0.01
    by_rate = {k: decode(price, draft, accuracy, k) for k in LENGTHS}
    assert max(by_rate, key=lambda k: by_rate[k].acceptance_rate) < 5
    cost = measure(Priced(clock := Clock(), price), clock=clock)
    stats = decode(price, draft, accuracy, cost)
    best = max(map(rate, by_rate.values()))
    if least:
        assert rate(stats) > 0.9 * best
        assert stats.draft_tokens / stats.drafts >= least
    else:
        plainly = rate(decode(price, draft, accuracy, 0))
        assert best < plainly
        assert rate(stats) > 0.85 * plainly
        assert stats.drafts < 0.2 * stats.passes


@every_draft
@pytest.mark.parametrize("way", ["whole", "stream", "per token"])
def test_L87_each_token_carries_the_flag_of_its_source(kind, k, way):
    """Oracle: all but the first and each block's own; wrong: none; and always as many flags as accepted tokens."""
    options = {"max_tokens": 1 + 3 * (k + 1)}
    engine = engine_of(counter(VOCAB), kind, k, words(VOCAB))
    if way == "whole":
        done = engine.generate([0], **options)
        tokens, flags, accepted = done.token_ids, done.sources, done.stats.accepted_tokens
    else:
        row = engine.add([0], SamplingParams(**options))
        pieces = list(engine.follow(row, per_token=way == "per token"))
        tokens, flags = (tuple(x for p in pieces for x in getattr(p, field)) for field in ("token_ids", "sources"))
        assert all(len(p.token_ids) == len(p.sources) for p in pieces)
        accepted = row.stats.accepted_tokens
    assert len(flags) == len(tokens) == options["max_tokens"]
    assert sum(flag == "script" for flag in flags) == accepted
    if kind == "oracle":
        assert flags == ("target", *[*["script"] * k, "target"] * 3)
    if kind == "wrong":
        assert set(flags) == {"target"}
    if kind == "mixed":
        assert set(flags) == {"target", "script"}


def once(build):
    """Draft below the first token that the target gave, and never again."""
    return Custom(lambda row, plan: build(row.tokens[-1]) if len(row.output) == 1 else tree(row.tokens[-1:], [-1]))


def chain_of(flags):
    """A right token where the flag says so, whatever came before it; else a wrong one."""

    def build(last):
        right = [(last + 1 + i) % VOCAB for i in range(len(flags))]
        drafted = [r if flag else (r + 7) % VOCAB for r, flag in zip(right, flags)]
        return tree([last, *drafted], range(-1, len(flags)))

    return build


def some_flags(k: int):
    if k <= 5:
        return list(itertools.product((False, True), repeat=k))
    rng = np.random.default_rng(k)
    mixed = [tuple(bool(x) for x in rng.random(k) < 0.8) for _ in range(30)]
    return [*mixed, (True,) * k, (False,) * k, (False, *(True,) * (k - 1)), (*(True,) * (k - 1), False)]


@pytest.mark.parametrize("k", LENGTHS)
def test_L96_nothing_behind_the_first_rejection_counts(k):
    """[F, T, T] -> 0; [T, F, T] -> 1; [T, T, T] -> 3; and every other pattern."""
    for flags in some_flags(k):
        found = fixed(counter(VOCAB), once(chain_of(flags)), k).generate([0], max_tokens=k + 12, trace=True)
        wanted = len(list(itertools.takewhile(bool, flags)))
        assert found.token_ids == tuple((1 + i) % VOCAB for i in range(k + 12))
        assert (found.stats.draft_tokens, found.stats.accepted_tokens) == (k, wanted)
        assert found.stats.accepted_per_position == [1] * wanted
        assert sum(found.stats.trace[1].accepted) == wanted == sum(source == "custom" for source in found.sources)


def test_L96_of_a_tree_only_the_committed_path_counts():
    """Right tokens below a wrong one, and siblings of right ones, are not accepted."""

    def build(last):
        t = [(last + i) % VOCAB for i in range(5)]
        w = (last + 20) % VOCAB
        #        0     1  2     3     4     5  6     7
        tokens = [last, w, t[1], t[2], t[2], w, t[3], t[3]]
        parents = [-1, 0, 0, 1, 2, 2, 3, 5]
        return tree(tokens, parents)

    found = fixed(counter(VOCAB), once(build), 3, 2, 8).generate([0], max_tokens=9, trace=True)
    assert found.stats.trace[1].accepted == (False, True, False, True, False, False, False)
    assert (found.stats.draft_tokens, found.stats.accepted_tokens) == (7, 2)
    assert found.stats.accepted_per_position == [1, 1]


# L88, L89, L94: the command line


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Names of the models that were loaded, in order, and what was loaded. Any model has a file, and no trained heads."""
    found = {}
    (tmp_path / "big.gguf").write_bytes(b"weights")
    monkeypatch.setattr(loader, "fetch", lambda ref, progress=None: tmp_path / "big.gguf")
    monkeypatch.setattr(loader, "resolve", lambda ref: ref)

    def open_target(ref, *args, **options):
        found[ref] = target()
        return found[ref]

    monkeypatch.setattr(loader, "open_target", open_target)
    return found


FLAGS = {"model": ["-md", "small", "--drafter", "model"]}
"""How a drafter is asked for, where its name is not enough."""
REFUSED = {
    "script": "needs the answers",
    "retrieval": "store",
    "layer_skip": "skip",
    "quantized": "needs the model's files",
    **dict.fromkeys((*LANES, "two_exit"), "no trained head"),
    "cascade": "takes two drafters or more",
    "horizontal": "takes two drafters or more",
}
ASK = ["generate", "hello", "-m", "big", "--max-tokens", "80", "--json"]


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("name", loader.DRAFTERS)
def test_L88_each_drafter_flag_drafts_or_says_why_not(opened, capsys, name, k):
    status = main([*ASK, *FLAGS.get(name, ["--drafter", name]), "--controller", "fixed", "--draft-max", str(k), "--stats"])
    out, err = capsys.readouterr()
    if name in REFUSED:
        assert status == 2
        assert REFUSED[name] in err
        return
    found = json.loads(out)
    assert status == 0
    assert found["drafter"].split("+")[-1] == {"ssr": "grammar"}.get(name, name)  # which stands in front, as in auto
    for source, counts in found["stats"]["by_source"].items():
        assert name in (source, "hybrid", "dytc", "ssr")  # whose tokens are told by the part that was surest of them
        assert re.search(rf"from {source} +\d+ of {counts['draft_tokens']} accepted", err)
    if found["stats"]["draft_tokens"]:
        assert found["stats"]["by_source"]
    else:
        assert "drafting did nothing here" in err
    if name in ("ngram", "suffix", "model"):
        assert found["stats"]["draft_tokens"] > 0
    assert main([*ASK, "--drafter", "none"]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == found["token_ids"]


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("flag", ["--num-speculative-tokens", "--draft-max", "k="])
def test_L88_the_draft_length_is_passed_on(opened, capsys, tmp_path, flag, k):
    """A draft model offers always as many tokens as it is asked for."""
    given = ["--drafter", f"model:k={k}"] if flag == "k=" else [flag, str(k)]
    file = tmp_path / "trace"
    assert main([*ASK, "-md", "small", "--controller", "fixed", *given, "--trace", str(file)]) == 0
    offered = [len(json.loads(line)["candidates"]) for line in file.read_text().splitlines()]
    assert offered[0] == 0
    assert offered[1] == max(offered) == k


LOADER_FLAGS = {
    "--drafter ngram": ("drafter", "ngram"),
    "--controller window": ("controller", "window"),
    "--num-speculative-tokens 7": ("num_speculative_tokens", 7),
    "--draft-max 7": ("num_speculative_tokens", 7),
    "--draft-model small": ("draft_model", "small"),
    "-md small": ("draft_model", "small"),
    "--backend torch": ("backend", "torch"),
    "--precision f32": ("precision", "f32"),
    "--kv-tokens 512": ("kv_tokens", 512),
    "--model mine": ("model", "mine"),
}


@pytest.mark.parametrize("words", LOADER_FLAGS)
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_L88_every_loading_flag_reaches_the_loader(monkeypatch, words, command):
    given = {}

    class Reached(Exception):
        pass

    def load(model, drafter, backend, **options):
        given.update(options, model=model, drafter=drafter, backend=backend)
        raise Reached

    monkeypatch.setattr(loader, "load", load)
    with pytest.raises(Reached):
        main([command, *(["hello"] if command == "generate" else []), *words.split()])
    name, value = LOADER_FLAGS[words]
    assert given[name] == value


REQUEST_FLAGS = {
    "--max-tokens 7": {"max_tokens": 7},
    "--max-new-tokens 7": {"max_tokens": 7},
    "--min-tokens 3": {"min_tokens": 3},
    "--temperature 0.5": {"temperature": 0.5},
    "--temp 0.5": {"temperature": 0.5},
    "--top-k 4": {"top_k": 4},
    "--top-p 0.5": {"top_p": 0.5},
    "--min-p 0.25": {"min_p": 0.25},
    "--typical-p 0.5": {"typical_p": 0.5},
    "--repetition-penalty 1.5": {"repetition_penalty": 1.5},
    "--presence-penalty 0.5": {"presence_penalty": 0.5},
    "--frequency-penalty -0.5": {"frequency_penalty": -0.5},
    "--logit-bias 4=2.5,5=-1 --logit-bias 6=1": {"logit_bias": {4: 2.5, 5: -1.0, 6: 1.0}},
    "--allowed-token-ids 4,5": {"allowed_token_ids": (4, 5)},
    "--bad-word x --bad-word yz": {"bad_words": ("x", "yz")},
    "--bad-word-ids 4,5 --bad-word-ids 6": {"bad_words_ids": ((4, 5), (6,))},
    "--seed 9": {"seed": 9},
    "--n 3": {"n": 3},
    "-n 3": {"n": 3},
    "--stop x --stop y": {"stop": ("x", "y")},
    "--stop-token-ids 4,5": {"stop_token_ids": (4, 5)},
    "--include-stop-str-in-output --stop x": {"include_stop_str_in_output": True, "stop": ("x",)},
    "--ignore-eos": {"ignore_eos": True},
    "--thinking-budget 5": {"thinking_budget": 5},
    "--thinking-budget 5 --thinking-start [a]": {"thinking_budget": 5, "thinking_start": "[a]"},
    "--thinking-budget 5 --thinking-end [b]": {"thinking_budget": 5, "thinking_end": "[b]"},
    "--logprobs 3": {"logprobs": 3},
    "--echo": {"echo": True},
    "--verification ratio": {"verification": "ratio"},
    "--json-object": {"structured_outputs": {"json_object": True}},
    '--json-schema {"type":"object"}': {"structured_outputs": {"json": '{"type":"object"}'}},
    "--regex a+": {"structured_outputs": {"regex": "a+"}},
    '--grammar root::="a"': {"structured_outputs": {"grammar": 'root::="a"'}},
    "--choice a --choice b": {"structured_outputs": {"choice": ["a", "b"]}},
    "--regex a+ --constrain-after [c]": {"structured_outputs": {"regex": "a+"}, "constrain_after": "[c]"},
}


@pytest.mark.parametrize("words", REQUEST_FLAGS)
def test_L88_every_request_flag_reaches_the_request(words):
    args = parser(["generate"]).parse_args(["generate", "hello", *words.split()])
    wanted = SamplingParams.build({"max_tokens": common.MAX_TOKENS} | REQUEST_FLAGS[words])
    assert common.request(args) == wanted
    assert wanted != SamplingParams(max_tokens=common.MAX_TOKENS)


def test_L88_no_request_flag_is_missing_above():
    """A new flag has to be shown to reach the request."""
    own = argparse.ArgumentParser(add_help=False)
    common.add_request(own)
    shown = {word for words in REQUEST_FLAGS for word in words.split() if word.startswith("-")}
    assert {name for action in own._actions for name in action.option_strings} - shown == {"--system"}


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("words", [["-md", "small"], ["--draft-model", "small"], ["-md", "small", "--drafter", "auto"]])
def test_L89_giving_a_draft_model_is_enough_to_use_it(opened, capsys, words, k):
    assert main([*ASK, *words, "--draft-max", str(k)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(opened) == ["big", "small"]
    assert found["drafter"] == "model+suffix+lookahead+hybrid+grammar"  # the controller picks
    assert found["stats"]["draft_tokens"] > 0
    assert found["stats"]["by_source"]["model"]["draft_tokens"] > 0
    opened.clear()
    engine = loader.load("big", draft_model="small", num_speculative_tokens=k)
    assert list(engine.drafters) == ["model", "suffix", "lookahead", "hybrid", "grammar"]
    assert engine.generate("hello", max_tokens=20).stats.draft_tokens > 0


@pytest.mark.parametrize("words", ["--draft-max 3", "--model-draft small", "--assistant-model small"])
def test_L89_other_names_of_a_flag_are_taken(opened, capsys, words):
    """Names of other projects, of exactly the same meaning; none of our own was renamed yet, so none needs a warning."""
    given = ["-md", "small", *words.split()] if words.startswith("--draft-max") else words.split()
    assert main([*ASK, *given, "--controller", "fixed"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["drafter"], list(opened)) == ("model", ["big", "small"])
    assert found["stats"]["draft_tokens"] > 0


@pytest.mark.parametrize("k", LENGTHS)
def test_L94_a_draft_that_was_set_can_be_unset(opened, k):
    """The next engine drafts nothing, the draft's cache is given back, and the draft model itself is let go."""
    engine = loader.load("big", draft_model="small", controller="fixed", num_speculative_tokens=k)
    with_draft = engine.generate("hello", max_tokens=30)
    assert with_draft.stats.draft_tokens > 0
    ours, draft = opened["big"], opened.pop("small")
    engine.close()
    assert draft.model.open_slots == ours.model.open_slots == 0
    scored = draft.model.nodes_scored
    engine = loader.assemble(ours, "none")
    without = engine.generate("hello", max_tokens=30)
    assert draft.model.nodes_scored == scored
    assert (without.token_ids, without.stats.draft_tokens, without.stats.by_source) == (with_draft.token_ids, 0, {})
    alive = weakref.ref(draft.model)
    del draft
    gc.collect()
    assert alive() is None
    again = loader.load("big", draft_model="small", controller="fixed", num_speculative_tokens=k)
    assert again.generate("hello", max_tokens=30).stats.draft_tokens > 0


# L90 to L92: streams

CALLS = [("weather", {"city": "Köln", "days": [1, 2]}), ("add", {"a": 3, "b": {"c": "}</tool_call>"}})]
HERMES = "".join(
    f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>\n"
    for name, arguments in CALLS
)
FUNCTION = "".join(f"<function={name}>{json.dumps(arguments)}</function>" for name, arguments in CALLS)
MISTRAL = f"[TOOL_CALLS]{json.dumps([{'name': name, 'arguments': arguments} for name, arguments in CALLS])}"


def dictated(own: Codec, text: str, n_prompt: int):
    """A processor that makes the model say ``text`` and end."""
    ids = [*own.encode(text, special=False), EOS]

    def force(token_ids, logits):
        at = len(token_ids) - n_prompt
        logits[ids[min(at, len(ids) - 1)]] = 1e12
        return logits

    return force


@combinations(DRAFTS, range(1, 9))
@pytest.mark.parametrize("text", [HERMES, FUNCTION, MISTRAL], ids=["hermes", "function", "mistral"])
def test_L90_streamed_tool_calls_are_the_whole_ones(kind, k, text):
    """Two calls in one answer; the deltas are blocks of up to k + 1 tokens, and their arguments add up, each once."""
    ours, own = target(), codec()
    prompt = own.encode("call", special=False)
    options = SamplingParams(max_tokens=400, logits_processors=[dictated(own, text, len(prompt))])
    whole = plain(ours.model, prompt, options, own)
    assert (whole.text, whole.finish_reason) == (text, "stop")
    engine = engine_of(ours.model, ScriptDrafter(lambda row: whole.token_ids, SIZE, accuracy=ACCURACY[kind]), k, own)
    stream, events, deltas = ToolCallStream(), [], []
    for piece in engine.follow(engine.add(prompt, options)):
        deltas.append(len(piece.token_ids))
        events += stream.feed(piece.text)
    content, calls = collect([*events, *stream.finish()])
    assert (content, calls) == parse_tool_calls(whole.text)
    assert [(c.name, json.loads(c.arguments_json), c.complete) for c in calls] == [(*call, True) for call in CALLS]
    assert content.strip() == ""
    assert max(deltas) == k + 1 if kind == "oracle" else max(deltas) <= k + 1


TEXT = "naïve Käse — ½ of 日本語 and 😀👩‍👩‍👧! Ελληνικά, العربية; don't, 12 €.\n"


def bigrams(tokens, size: int, end: int | None = None) -> TableModel:
    """Says after a token what followed it in ``tokens``: a text of many-byte characters, now and then a broken one."""
    logits = torch.full((size + 1, size), -1e9, dtype=torch.float64)
    logits[:, tokens[0]] = 0.0
    for a, b in itertools.pairwise([*tokens, *tokens]):
        logits[a, b] = max(float(logits[a, b]), 0.0) + 0.5
    if end is not None:
        logits[:, end] = -3.0
    return TableModel(logits, max_context=1000)


def byte_fallback() -> Codec:
    """Bytes of unknown characters are tokens of their own, in runs."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "ï", "é", "日"]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<s>", "</s>"])
    return Codec(made, Special(eos_ids=(2,)))


def spelled():
    """Name -> target and codec."""
    whole = codec()
    fallback = byte_fallback()
    halves = ToyCodec([bytes([b]) for b in TEXT.encode()[:40]] + ["😀".encode()[:2], "😀".encode()[2:], "日本".encode()[1:5]])
    return {
        "bytes": (bigrams(whole.encode(TEXT), SIZE, EOS), whole),
        "fallback": (bigrams(fallback.encode(TEXT.replace(" ", "▁")), fallback.vocab_size, 2), fallback),
        "halves": (TableModel.random(halves.vocab_size, 1, seed=2, sharpness=3.0), halves),
    }


SPELLED = spelled()


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("name", SPELLED)
def test_L91_the_stream_adds_up_to_the_text(name, k):
    """Fifty prompts; characters end in the middle of tokens and of blocks."""
    ours, own = SPELLED[name]
    broken = several = 0
    for i in range(50):
        prompt = [(3 * i + j) % own.vocab_size for j in range(1 + i % 4)]
        options = {"max_tokens": 24, "temperature": 1.0, "seed": i}
        if i % 5 == 4:
            options["stop"] = ["語 a", "é", "\ufffd\ufffd"]
        whole = plain(ours, prompt, options, own)
        engine = engine_of(ours, DRAFTS[i % 3], k, own)
        row = engine.add(prompt, SamplingParams(**options))
        pieces = list(engine.follow(row, per_token=i % 2 == 1))
        assert "".join(piece.text for piece in pieces) == whole.text == row.text
        assert tuple(t for piece in pieces for t in piece.token_ids) == whole.token_ids
        assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + [whole.finish_reason]
        ids = [t for t in whole.token_ids if t not in own.eos_ids]
        text = own.decode(ids) if isinstance(own, Codec) else own.text(ids)
        found = [at for stop in options.get("stop", ()) if (at := text.find(stop)) >= 0]
        assert whole.text == (text[: min(found)] if found else text)
        assert whole.finish_reason == ("stop" if found or len(ids) < len(whole.token_ids) else "length")
        broken += "\ufffd" in whole.text
        several += any(len(piece.token_ids) > 1 and "\ufffd" not in piece.text for piece in pieces)
    assert several >= 3
    assert broken < 50 or name == "halves"


@every_draft
@pytest.mark.parametrize("extra", [{}, {"logprobs": 2}, {"stop": ["w9 w10"]}, {"n": 2, "temperature": 1.0, "seed": 3}], ids=str)
def test_L92_one_token_an_event_on_request(kind, k, extra):
    """Both ways have the same text, tokens, flags and log-probabilities; the end is told once, with the last of them.
    The server's own events come with the server."""
    ours = TableModel.random(20, 1, seed=1, sharpness=1.0) if "n" in extra else counter(VOCAB)
    own = words(ours.traits.vocab_size)
    options = {"max_tokens": 30} | extra
    blocks = streamed(engine_of(ours, kind, k, own), [0], options)
    engine = engine_of(ours, kind, k, own)
    events = list(engine.stream([0], per_token=True, **options))
    for index in range(options.get("n", 1)):
        ours_, theirs = ([p for p in found if p.index == index] for found in (events, blocks))
        assert all(len(p.token_ids) <= 1 and len(p.sources) == len(p.token_ids) for p in ours_)
        assert all(len(p.logprobs) == (len(p.token_ids) if "logprobs" in extra else 0) for p in ours_)
        assert "".join(p.text for p in ours_) == "".join(p.text for p in theirs)
        for field in ("token_ids", "sources", "logprobs"):
            assert [x for p in ours_ for x in getattr(p, field)] == [x for p in theirs for x in getattr(p, field)]
        assert [p.finish_reason for p in ours_[:-1]] == [None] * (len(ours_) - 1)
        assert ours_[-1].finish_reason == theirs[-1].finish_reason is not None
        if not extra:
            assert all(p.text == f" w{p.token_ids[0]}" for p in ours_)
    if kind == "oracle" and not extra:
        assert max(len(p.token_ids) for p in blocks) == min(k + 1, 29)


# L93: an adapted target


class LowRank(torch.nn.Module):
    """A linear layer with a low-rank update beside it, as adapters have."""

    def __init__(self, base: torch.nn.Linear, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.base = base
        self.down = torch.nn.Parameter(0.3 * torch.randn(4, base.in_features, generator=generator))
        self.up = torch.nn.Parameter(0.3 * torch.randn(base.out_features, 4, generator=generator))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


@pytest.fixture(scope="module")
def adapted():
    """Target with updates in its attention and feed-forward layers, what it says by itself, and the model without them."""
    model = tiny("LlamaConfig")
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj, i)
        layer.mlp.up_proj = LowRank(layer.mlp.up_proj, 10 + i)
    ours, draft = TorchModel(model.eval(), max_rows=4), TorchModel(tiny("LlamaConfig"), max_rows=4)
    ours.adopt(ours.probe())
    prompt = [5, 9, 5, 9, 5]
    said = list(prompt)
    with torch.no_grad():
        for _ in range(14):
            said.append(int(model(torch.tensor([said])).logits[0, -1].argmax()))
    return ours, draft, prompt, tuple(said[len(prompt) :])


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("kind", ["model", "ngram", "mixed"])
def test_L93_an_adapted_target_with_a_draft_that_is_not(adapted, kind, k):
    """Low-rank updates in the target's layers, none in the draft. Loading adapter files is expected with PEFT support."""
    ours, draft, prompt, said = adapted
    drafter = {"model": lambda: ModelDrafter(draft, 53), "ngram": NgramDrafter}.get(kind, lambda: kind)()
    found = speculate(ours, prompt, {"max_tokens": 14}, drafter, k)
    assert found.token_ids == said
    assert found.stats.draft_tokens > 0
    assert plain(draft, prompt, {"max_tokens": 14}).token_ids != said, "the update must matter"


# L95: counts by position


@combinations(DRAFTS, (1, 7))
def test_L95_counts_by_position_can_be_read_back(kind, k):
    """As JSON, for drafts of one and of seven tokens: never longer than the draft, and adding up. /metrics: with the server."""
    stats = speculate(counter(VOCAB), [0], {"max_tokens": 60}, kind, k).stats
    counts(stats)
    found = json.loads(json.dumps(stats.to_dict()))
    assert found["accepted_per_position"] == stats.accepted_per_position
    assert len(found["accepted_per_position"]) <= k
    if kind == "oracle":
        assert len(found["accepted_per_position"]) == k
        assert found["accepted_per_position"][0] == found["drafts"]
    if kind == "mixed":
        assert 0 < found["accepted_per_position"][0] < found["drafts"]


@pytest.mark.parametrize("k", [0, 1, 7])
def test_L95_reports_read_off_one_and_seven(opened, capsys, k):
    words = ["-md", "small", "--controller", "fixed", "--draft-max", str(k)] if k else ["--drafter", "none"]
    assert main([*ASK, *words, "--stats"]) == 0
    out, err = capsys.readouterr()
    stats = json.loads(out)["stats"]
    assert len(stats["accepted_per_position"]) == k
    assert sum(stats["accepted_per_position"]) == stats["accepted_tokens"]
    assert f"({stats['accepted_tokens']} of {stats['draft_tokens']})" in err
    assert f"{stats['passes']} passes" in err
