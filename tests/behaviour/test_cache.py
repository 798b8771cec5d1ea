"""L29 to L44: what was rejected leaves no trace in any cache, of the target or of the draft."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import transformers as tf
from behaviour.grid import (
    LENGTHS,
    build,
    combinations,
    engine_of,
    every_draft,
    every_draft_and_self,
    finish,
    plain,
    same,
    speculate,
)
from contract.conftest import VOCAB, Backend, nudged, tiny
from toys import Custom, Truth, counter, fixed, random_trees, tree

import surefoot
from surefoot.backends.table import TableModel
from surefoot.backends.torch import TorchModel, TorchSlot
from surefoot.core.completion import Completion
from surefoot.core.engine import Engine
from surefoot.core.protocols import Need, Plan
from surefoot.core.request import Row
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.model import ModelDrafter
from surefoot.errors import Unsupported
from surefoot.loader import open_target

WINDOW = 8
MIXED = ["sliding_attention", "full_attention"]
WINDOWED: dict[str, Callable[[], torch.nn.Module]] = {
    "mistral": lambda: tiny("MistralConfig", sliding_window=WINDOW),
    "gemma2": lambda: tiny(
        "Gemma2Config", sliding_window=WINDOW, layer_types=MIXED, query_pre_attn_scalar=8, tie_word_embeddings=False
    ),
    "gemma3": lambda: tiny(
        "Gemma3TextConfig", sliding_window=WINDOW, layer_types=MIXED, query_pre_attn_scalar=8, tie_word_embeddings=False
    ),
}


@pytest.fixture(scope="module")
def windowed() -> Iterator[Callable[[str], tuple[TorchModel, TorchModel]]]:
    """Name -> a target whose layers (all, or every other) see eight tokens back, and a draft of its kind."""
    made: dict[str, tuple[TorchModel, TorchModel]] = {}

    def get(name: str) -> tuple[TorchModel, TorchModel]:
        if name not in made:
            model = WINDOWED[name]()
            made[name] = TorchModel(model, max_rows=24), TorchModel(nudged(model), max_rows=24)
            target = made[name][0]
            target.adopt(target.probe())
        return made[name]

    yield get
    for pair in made.values():
        assert [len(m._slots) for m in pair] == [0, 0], "cache rows leaked"


def prompt(length: int, shift: int = 0) -> list[int]:
    return [(5 * (i % (4 + shift)) + 3 * shift + i // 9) % VOCAB for i in range(length)]


def together(engine: Engine, prompts: Sequence[Sequence[int]], options: dict) -> list[Completion]:
    rows = [engine.add(list(p), build(options)) for p in prompts]
    while not all(row.done for row in rows):
        engine.step()
    return [engine.completion(row) for row in rows]


def stored(target: TorchModel, row: Row) -> list[torch.Tensor]:
    """Keys and values that the cache holds for a row, layer by layer, cut to what is committed."""
    slot = row.slot
    assert isinstance(slot, TorchSlot)
    return [b[slot.index, :, : slot.length].clone() for store in target._pool.stores for b in store.buffers()]


# ---- sliding windows ----


@pytest.mark.parametrize("name", WINDOWED)
@combinations(("oracle", "wrong", "mixed", "self", "model"))
def test_L29_around_and_beyond_the_window(name, kind, k, windowed):
    """Prompts shorter than the window, as long, and longer; the target has the window, and the draft too."""
    target, draft = windowed(name)
    prompts, options = [prompt(n, n % 3) for n in (4, 7, 8, 9, 20)], {"max_tokens": 40}
    source = ModelDrafter(draft, VOCAB) if kind == "model" else kind
    engine = engine_of(target, source, k)
    for p, found in zip(prompts, together(engine, prompts, options), strict=True):
        same(found, plain(target, p, options))
        assert kind not in ("oracle", "self") or found.stats.accepted_tokens == found.stats.draft_tokens
    engine.close()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_L29_the_reference_is_the_window_of_the_model_itself(attention):
    """Plain decoding is compared with the model's own pass, without a cache, at every length around the window."""
    model = WINDOWED["gemma3"]()
    model.set_attn_implementation(attention)
    target = TorchModel(model)
    said = [*prompt(4), *speculate(target, prompt(4), {"max_tokens": 30}, "mixed", 5).token_ids]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([said]), use_cache=False).logits[0]
    assert logits[3:-1].argmax(-1).tolist() == said[4:]


@every_draft
def test_L30_the_cache_holds_what_is_committed_and_no_more(kind, k):
    """Window 16, 200 tokens. Our caches keep a column a committed token; what is rejected must not add to that."""
    target = TorchModel(tiny("MistralConfig", sliding_window=16), max_rows=2, context_step=16)
    new = 200 if k == 5 else 60
    options = {"max_tokens": new}
    engine = engine_of(target, kind, k, reuse=False)
    row = engine.add(prompt(20), build(options))
    while not row.done:
        engine.step()
        assert row.done or row.cached == len(row.tokens) - 1
        assert target._pool.columns <= 2 * (20 + new + k + 16), "grown by doubling, in steps of 16"
    same(engine.completion(row), plain(target, prompt(20), options))
    engine.close()


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("k", LENGTHS)
def test_L31_rejected_at_every_step_far_beyond_the_window(name, k, windowed):
    target, _ = windowed(name)
    options = {"max_tokens": 90}
    found = speculate(target, prompt(20, 1), options, "wrong", k)
    same(found, plain(target, prompt(20, 1), options))
    assert found.stats.accepted_tokens == 0
    assert found.stats.drafts == 88, "it drafts on: all but the first and the last token"


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("kind", ["wrong", "mixed", "tree"])
def test_L32_every_layer_holds_the_committed_tokens_and_nothing_else(kind, k, windowed):
    """Full and sliding layers, past the window: after each pass the cache is that of a fresh pass over the tokens kept."""
    target, _ = windowed("gemma3")
    engine = (
        engine_of(target, kind, k)
        if kind != "tree"
        else fixed(target, Custom(random_trees(VOCAB, 2)), k, 3, 2 * k, reuse=False)
    )
    row = engine.add(prompt(12), build({"max_tokens": 24}))
    while not row.done:
        engine.step()
        if row.done:
            break
        kept = row.tokens[:-1]
        assert row.cached == len(kept)
        (fresh,) = target.open(1)
        forest = Forest.pack([DraftTree.chain(kept)], min_width=target.traits.min_width)
        mine = stored(target, row)
        target.score([fresh], forest, Need())
        target.commit([fresh], [range(len(kept))])
        cold = [b[fresh.index, :, : fresh.length] for s in target._pool.stores for b in s.buffers()]
        assert len(mine) == 4
        for a, b in zip(mine, cold, strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
        target.close([fresh])
    engine.close()


# ---- states that cannot be cut ----


HYBRIDS: dict[str, Callable[[], object]] = {
    "mamba": lambda: tf.MambaConfig(vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=2),
    "mamba2": lambda: tf.Mamba2Config(
        vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=2, num_heads=4, head_dim=16, n_groups=1
    ),
    "falcon_mamba": lambda: tf.FalconMambaConfig(vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=2),
    "rwkv": lambda: tf.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
    "recurrent_gemma": lambda: tf.RecurrentGemmaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, lru_width=32
    ),
    "jamba": lambda: tf.JambaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=4,
        mamba_dt_rank=4, use_mamba_kernels=False,
    ),
    "lfm2": lambda: tf.Lfm2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, layer_types=["conv", "full_attention"],
    ),
    "qwen3_next": lambda: tf.Qwen3NextConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_experts=2, num_experts_per_tok=1, layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    ),
}  # fmt: skip


def model_of(config: object) -> torch.nn.Module:
    with warnings.catch_warnings():  # slow kernels and the like
        warnings.simplefilter("ignore")
        return tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.parametrize("name", HYBRIDS)
def test_L33_recurrent_layers_are_refused_with_the_reason(name):
    """Nothing is run on such a model: neither wrong text nor a trim that does nothing."""
    with pytest.raises(Unsupported, match=r"recurrent state|no position_ids and cache") as error:
        TorchModel(model_of(HYBRIDS[name]()))
    assert name in str(error.value)
    assert "choose" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Saved models with one tokenizer: a plain one, and two with recurrent layers."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    root = tmp_path_factory.mktemp("pairs")
    found = {}
    configs = {"mamba": HYBRIDS["mamba"](), "hybrid": HYBRIDS["qwen3_next"]()}
    for name in ("llama", *configs):
        model = tiny("LlamaConfig") if name == "llama" else model_of(configs[name])
        model.save_pretrained(root / name)
        letters = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
        letters.pre_tokenizer = pre_tokenizers.Whitespace()
        tf.PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="w0").save_pretrained(root / name)
        found[name] = str(root / name)
    return found


@pytest.fixture
def no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(*args: object) -> None:
        pytest.fail("a pass was run before the refusal")

    monkeypatch.setattr(TorchModel, "score", score)


@pytest.mark.parametrize("backend", ["auto", "torch", "openvino"])
@pytest.mark.parametrize("name", ["mamba", "hybrid"])
def test_L34_the_refusal_comes_at_load_before_anything_runs(name, backend, folders, no_passes, tmp_path, monkeypatch):
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    with pytest.raises(Unsupported, match=r"recurrent|linear_attention") as error:
        open_target(folders[name], backend)
    assert "backend=torch" not in str(error.value), "that one refuses it too"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["mamba", "hybrid"])
def test_L34_an_unsupported_draft_is_refused_at_load_too(name, folders, tmp_path, monkeypatch):
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    with pytest.raises(Unsupported, match="recurrent"):
        surefoot.load(folders["llama"], "model", "torch", draft_model=folders[name])


def test_L35_a_hybrid_and_a_repeating_prompt(folders, tmp_path, monkeypatch):
    """No stale state and no loops: with lookup, too, such a model does not start."""
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    with pytest.raises(Unsupported, match="recurrent"):
        surefoot.load(folders["hybrid"], "ngram", "torch")


@pytest.mark.parametrize("name", ["llama", "gemma3-window"])
def test_L36_a_rejected_block_leaves_the_state_bit_for_bit(name, backends):
    """Recurrent models are refused (L33). On attention models: blocks rejected at depth 1 to 8 in consecutive steps."""
    backend = backends(name)
    target, say = backend.target, Truth(backend.target, reuse=False)
    depth = 0

    def propose(row: Row, plan: Plan) -> DraftTree:
        """Right up to ``depth``, then wrong."""
        right = list(say(row)[len(row.output) :][: plan.depth])
        drafted = [(t + 1) % VOCAB if i >= depth - 1 else t for i, t in enumerate(right)]
        return tree([row.tokens[-1], *drafted], range(-1, len(drafted)))

    engine = fixed(target, Custom(propose), 8, reuse=False)
    row = engine.add(backend.prompt(14, 1), build({"max_tokens": 60}))
    engine.step()
    for depth in range(1, 9):
        before, length = stored(target, row), row.cached
        engine.step()
        after = stored(target, row)
        assert row.cached == length + depth, "the pending token and the right ones"
        for a, b in zip(before, after, strict=True):
            assert torch.equal(a, b[:, :length])
    while not row.done:
        engine.step()
    assert tuple(row.output) == say(row)
    engine.close()


# ---- caches that are given, shared, counted ----


@every_draft_and_self
def test_L37_a_cache_allocated_once_stays_where_it_is(kind, k):
    model = tiny("LlamaConfig")
    dynamic = TorchModel(model, max_rows=2)
    static = TorchModel(model, static=True, max_rows=4, capacity_tokens=4 * 96, max_nodes=32, context_step=32)
    engine = engine_of(static, kind, k, reuse=False)
    row = engine.add(prompt(18), build({"max_tokens": 32}))
    engine.step()
    places = [b.data_ptr() for store in static._pool.stores for b in store.buffers()]
    assert len(places) == 4
    while not row.done:
        engine.step()
        assert [b.data_ptr() for store in static._pool.stores for b in store.buffers()] == places
    same(engine.completion(row), plain(dynamic, prompt(18), {"max_tokens": 32}))
    engine.close()


@every_draft_and_self
@pytest.mark.parametrize("name", ["llama", "gemma3-window"])
def test_L38_from_a_cache_that_was_filled_before(name, kind, k, backends):
    """One request fills the cache with the prompt; another one goes on from it."""
    backend = backends(name)
    text, options = backend.prompt(30, 1), {"max_tokens": 24}
    engine = engine_of(backend.target, kind, k, reuse=True)
    first = engine.add(text, build({"max_tokens": 1}))
    while not first.done:
        engine.step()
    held = first.cached
    assert held == len(text)
    second = engine.add(text, build(options))
    while not second.done:
        engine.step()
    same(engine.completion(second), plain(backend.target, text, options))
    assert second.stats.cached_tokens == len(text) - 1
    assert second.cached == len(text) + 24 - 1
    assert first.cached == held, "the first one's cache is as it was"
    engine.close()
    assert backend.held(backend.target) == 0


@every_draft_and_self
@pytest.mark.parametrize("name", ["llama", "gemma3-window"])
@pytest.mark.parametrize("shared", [0.04, 0.9])
def test_L39_a_second_turn_warm_and_cold(shared, name, kind, k, backends):
    """The second turn begins with four tokens of the first in common, or with nine tenths of it."""
    backend = backends(name)
    options = {"max_tokens": 12}
    engine = engine_of(backend.target, kind, k, reuse=True)
    one = engine.add(backend.prompt(60, 1), build(options))
    while not one.done:
        engine.step()
    common = max(4, int(shared * len(one.tokens)))
    other = (one.tokens[common] + 1) % backend.vocab
    two = [*one.tokens[:common], other, *backend.prompt(9, 2)]
    wanted = plain(backend.target, two, options)
    same(finish(engine, two, options), wanted)  # may share what the engine keeps
    row = engine.add(two, build(options), parent=one)  # shares whatever is common, however short
    while not row.done:
        engine.step()
    same(engine.completion(row), wanted)
    assert row.stats.cached_tokens == common
    engine.close()


@every_draft
def test_L40_each_token_is_processed_once(kind, k):
    """The target sees the prompt, each pending token and each draft, and never a prefix again; nor does the draft model."""
    target = TableModel.random(11, order=2, seed=6, sharpness=1.5)
    text, options = [1, 2, 3, 4] * 30, {"max_tokens": 40}
    wanted = plain(target, text, options)
    engine = engine_of(target, kind, k, chunk=16)
    engine.drafters["script"].propose(rows := [engine.add(text, build(options))], [Plan("script", 1, 1, 1)])
    target.nodes_scored = 0  # the oracle has asked its questions
    while not rows[0].done:
        engine.step()
    found = engine.completion(rows[0])
    engine.close()
    same(found, wanted)
    assert target.nodes_scored == len(text) + found.stats.passes - 1 + found.stats.draft_tokens
    assert target.nodes_scored <= len(text) + (found.stats.passes - 1) * (k + 1)
    draft = target.mixed(TableModel.random(11, order=2, seed=7), 0.3)
    found = speculate(target, text, options, ModelDrafter(draft, 11, chunk=16), k)
    assert draft.nodes_scored <= len(text) + 40 + found.stats.draft_tokens


MQA: dict[str, Callable[[], TorchModel]] = {
    "gpt_bigcode": lambda: TorchModel(
        tf.AutoModelForCausalLM.from_config(
            tf.GPTBigCodeConfig(
                vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3, multi_query=True,
                bos_token_id=None, eos_token_id=None, pad_token_id=None,
            )
        )
    ),
    "falcon": lambda: TorchModel(
        tf.AutoModelForCausalLM.from_config(
            tf.FalconConfig(
                vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.3,
                multi_query=True, new_decoder_architecture=False, alibi=False, bos_token_id=None, eos_token_id=None,
            )
        )
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def one_head() -> Callable[[str], TorchModel]:
    made: dict[str, TorchModel] = {}

    def get(name: str) -> TorchModel:
        if name not in made:
            torch.manual_seed(2)
            made[name] = MQA[name]()
        return made[name]

    return get


@pytest.mark.parametrize("name", MQA)
@every_draft_and_self
def test_L41_caches_with_one_head_for_all(name, kind, k, one_head):
    target = one_head(name)
    assert {b.shape[1] for store in target._pool.stores for b in store.buffers()} <= {1}
    found = speculate(target, prompt(13, 1), {"max_tokens": 24}, kind, k)
    same(found, plain(target, prompt(13, 1), {"max_tokens": 24}))
    model = target.model
    said = [*prompt(13, 1), *found.token_ids]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([said]), use_cache=False).logits[0]
    assert logits[12:-1].argmax(-1).tolist() == said[13:]


def test_L41_a_layout_that_is_not_understood_is_refused():
    config = tf.FalconConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True)
    with pytest.raises(Unsupported, match=r"falcon.*ALiBi"):
        TorchModel(tf.AutoModelForCausalLM.from_config(config))


# ---- the draft's own limits ----


def short_draft(name: str, backends: Callable[[str], Backend]) -> tuple[object, object, int]:
    """A target with room for hundreds of tokens, its like as a draft with a context of 64, and the vocabulary."""
    if name == "table":
        target = TableModel.random(13, order=2, seed=3, sharpness=1.5, max_context=512)
        return target, TableModel(target.logits, 2, max_context=64), 13
    target = backends("llama").target
    return target, TorchModel(target.model, max_context=64, max_rows=4), VOCAB


@pytest.mark.parametrize("name, k", [*(("table", k) for k in LENGTHS), ("llama", 1), ("llama", 5), ("llama", 16)])
def test_L42_a_draft_context_that_fills_up(name, k, backends):
    """200 tokens with a draft that holds 64: it drafts while it can, says once that it stops, and nothing else changes."""
    target, draft, vocab = short_draft(name, backends)
    engine = engine_of(target, ModelDrafter(draft, vocab), k)
    with pytest.warns(RuntimeWarning, match="context holds 64 tokens") as told:
        found = [finish(engine, [t % vocab for t in prompt(n, 1)], {"max_tokens": 200}) for n in (20, 30)]
    assert len(told) == 1
    for n, each in zip((20, 30), found, strict=True):
        same(each, plain(target, [t % vocab for t in prompt(n, 1)], {"max_tokens": 200}))
        drafted = [n + i + 1 for i, source in enumerate(each.sources) if source == "model"]
        assert 60 <= max(drafted) <= 64, "it drafts as long as there is room"
    again = finish(engine, [1, 2, 3], {"max_tokens": 20})  # and drafts again for the next request
    assert again.stats.accepted_tokens > 0
    engine.close()


@pytest.mark.parametrize("name, k", [*(("table", k) for k in LENGTHS), ("llama", 5)])
def test_L43_a_prompt_longer_than_the_draft_holds(name, k, backends):
    target, draft, vocab = short_draft(name, backends)
    engine = engine_of(target, ModelDrafter(draft, vocab), k)
    text = [t % vocab for t in prompt(100, 2)]
    with pytest.warns(RuntimeWarning, match="context holds 64 tokens.*longer context") as told:
        found = [finish(engine, text, {"max_tokens": 30}) for _ in range(2)]
    assert len(told) == 1
    for each in found:
        same(each, plain(target, text, {"max_tokens": 30}))
        assert each.stats.draft_tokens == 0
    engine.close()


def test_L43_equal_contexts_need_no_warning(recwarn):
    target = TableModel.random(13, order=2, seed=3, sharpness=1.5, max_context=64)
    found = speculate(target, [1, 2, 3], {}, ModelDrafter(TableModel(target.logits, 2, max_context=64), 13), 4)
    same(found, plain(target, [1, 2, 3], {}))
    assert len(found.token_ids) == 61
    assert not recwarn.list


class Changing:
    """Draft lengths that change with every request."""

    def __init__(self, name: str, first: int) -> None:
        self._name, self._first = name, first

    def plan(self, rows):
        return [Plan(self._name, k, 1, k) for k in (1 + (self._first - 1 + 17 * row.id) % 64 for row in rows)]

    def learn(self, rows, trees, verdicts, costs): ...

    def forget(self, rows): ...


@pytest.mark.parametrize("kind", ["oracle", "wrong", "mixed"])
def test_L44_every_length_from_1_to_64(kind):
    target = counter(100)
    for k in range(1, 65):
        found = speculate(target, [3], {"max_tokens": 70}, kind, k)
        same(found, plain(target, [3], {"max_tokens": 70}))
        assert kind != "oracle" or len(found.stats.accepted_per_position) == k


@pytest.mark.parametrize("name", ["llama", "gemma3-window"])
@pytest.mark.parametrize("kind", ["oracle", "wrong", "mixed", "self"])
def test_L44_a_length_that_changes_with_each_request(kind, name, backends):
    """Several requests at once and one after another, each with a length of its own, 1 to 64, on one engine."""
    backend = backends(name)
    fixed_one = engine_of(backend.target, kind, 1)
    engine = Engine(backend.target, list(fixed_one.drafters.values()), Changing(next(iter(fixed_one.drafters)), 1))
    prompts, options = [backend.prompt(5 + 3 * i, i) for i in range(4)], {"max_tokens": 70}
    for _ in range(2):
        for text, found in zip(prompts, together(engine, prompts, options), strict=True):
            same(found, plain(backend.target, text, options))
    engine.close()
