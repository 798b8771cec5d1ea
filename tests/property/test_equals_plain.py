"""Random scripts, trees, options, padding, chunks and neighbours: always what plain decoding says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Custom, ToyCodec, Truth, fixed, random_trees, run

from surefoot.backends.table import TableModel
from surefoot.core.completion import Completion
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.verify import FRESH
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter

PIECES = ["a", "b", "ab", "", "ba", "é", "c"]

tables = st.builds(
    lambda vocab, order, seed, sharp: TableModel.random(vocab, order, seed, sharp),
    st.integers(2, 7), st.integers(1, 2), st.integers(0, 10_000), st.sampled_from([0.5, 2.0, 8.0]),
)  # fmt: skip

sampling = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.3, 1.0, 2.0]),
            "seed": st.integers(-5, 2**70),
            "top_k": st.integers(0, 4),
            "top_p": st.sampled_from([0.3, 0.9, 1.0]),
            "min_p": st.sampled_from([0.0, 0.2]),
            "verification": st.sampled_from(["auto", "coupled"]),
        }
    ),
    # a one-hot law: under rules that draw anew in every pass, too, there is one answer only
    st.fixed_dictionaries({"temperature": st.just(0.9), "top_k": st.just(1), "verification": st.sampled_from(FRESH)}),
)

stops = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 25),
        "stop": st.lists(st.text("abcé", min_size=1, max_size=4), max_size=2),
        "stop_token_ids": st.lists(st.integers(0, 6), max_size=1),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
    }
)

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=12)
requests = st.lists(st.tuples(prompts, st.builds(lambda a, b: a | b, sampling, stops)), min_size=1, max_size=3)
shapes = st.fixed_dictionaries(
    {"k": st.integers(0, 9), "width": st.integers(1, 3), "nodes": st.integers(0, 12)},
)
engines = st.fixed_dictionaries({"chunk": st.integers(1, 20), "max_rows": st.integers(1, 3), "reuse": st.booleans()})
drafters = st.sampled_from(["random", "script", "script-tree", "ngram", "suffix", "model", "self"])


def drafter(kind: str, target: TableModel, codec: ToyCodec, seed: int, accuracy: float):
    vocab = target.traits.vocab_size
    if kind == "random":
        return Custom(random_trees(vocab, seed))
    if kind.startswith("script"):
        said = Truth(target, codec=codec, reuse=False)
        return ScriptDrafter(said, vocab, accuracy=accuracy, tree=kind.endswith("tree"), seed=seed)
    if kind == "model":
        return ModelDrafter(target.mixed(TableModel.random(vocab, target.order, seed), 0.4), vocab, chunk=3)
    return {"ngram": NgramDrafter, "suffix": SuffixDrafter}.get(kind, lambda: ModelDrafter(target, vocab))()


def facts(done: Completion) -> tuple:
    return done.token_ids, done.text, done.finish_reason, done.usage


@settings(max_examples=300)
@given(
    tables, requests, shapes, engines, drafters,
    st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.9, 1.0]), st.sampled_from([1, 2, 4]),
    st.lists(st.integers(0, 6), max_size=1),
)  # fmt: skip
def test_equals_plain_decoding(table, asked, shape, options, kind, seed, accuracy, min_width, eos):
    codec = ToyCodec(PIECES[: table.traits.vocab_size], [e for e in eos if e < table.traits.vocab_size])
    target = TableModel(table.logits, table.order, min_width=min_width)
    plain = [run(Engine(table, codec=codec, reuse=False), request)[0] for request in asked]
    one = drafter(kind, target, codec, seed, accuracy)
    engine = fixed(target, one, **shape, codec=codec, **options)
    for _ in range(2):  # again with what the first run left behind: warm caches, learned drafts
        done = run(engine, *asked)
        assert [facts(d) for d in done] == [facts(d) for d in plain]
        for d in done:
            assert d.stats.accepted_tokens == sum(s != "target" for s in d.sources) <= d.stats.draft_tokens
            assert d.usage.completion_tokens == len(d.sources)
    engine.close()
    assert target.open_slots == 0


@settings(max_examples=100)
@given(tables, prompts, st.builds(lambda a, b: a | b, sampling, stops), shapes, st.integers(0, 1000))
def test_streams_add_up(table, prompt, options, shape, seed):
    codec = ToyCodec(PIECES[: table.traits.vocab_size])
    vocab = table.traits.vocab_size
    if options.get("verification") not in FRESH and options.get("temperature", 0.0) and "seed" not in options:
        options["seed"] = seed
    whole = fixed(table, Custom(random_trees(vocab, seed)), **shape, codec=codec).generate(prompt, **options)
    pieces = list(fixed(table, Custom(random_trees(vocab, seed)), **shape, codec=codec).stream(prompt, **options))
    assert "".join(p.text for p in pieces) == whole.text
    assert tuple(t for p in pieces for t in p.token_ids) == whole.token_ids
    assert pieces[-1].finish_reason == whole.finish_reason
    assert all(p.finish_reason is None for p in pieces[:-1])
    for stop in options["stop"]:
        if not options["include_stop_str_in_output"]:
            assert stop not in whole.text


@settings(max_examples=100)
@given(tables, prompts, st.integers(2, 12), st.integers(0, 11), shapes, st.integers(0, 1000), sampling)
def test_forks_equal_cold_runs(table, prompt, tokens, steps, shape, seed, options):
    vocab = table.traits.vocab_size
    engine = fixed(table, Custom(random_trees(vocab, seed)), **shape)

    params = SamplingParams.build(options | {"max_tokens": tokens})
    row = engine.add(prompt, params)
    for _ in range(steps):
        engine.step()
    prefix = [*row.tokens, seed % vocab]
    child = engine.fork(row, [seed % vocab], params)
    while not (row.done and child.done):
        engine.step()
    assert tuple(child.output) == run(Engine(table, reuse=False), (prefix, options | {"max_tokens": tokens}))[0].token_ids
    assert tuple(row.output) == run(Engine(table, reuse=False), (prompt, options | {"max_tokens": tokens}))[0].token_ids
    engine.close()
    assert table.open_slots == 0
