"""The torch backend against transformers itself: tiny random models of each family, compared with their own passes."""

from __future__ import annotations

import pytest
import torch
import transformers as tf

from surefoot.backends.torch import TorchModel
from surefoot.core.protocols import Need, TargetModel
from surefoot.core.tree import DraftTree, Forest
from surefoot.errors import BackendError, BadRequest, ModelNotFound, Unsupported

VOCAB = 211
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MHA = {k: v for k, v in COMMON.items() if k not in ("num_key_value_heads", "head_dim")}
GPT = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
OPT = {k: v for k, v in MHA.items() if k != "intermediate_size"} | {"ffn_dim": 64, "word_embed_proj_dim": 32}
MIXED = ["sliding_attention", "full_attention"]
FAMILIES = {
    "llama": lambda: tf.LlamaConfig(**COMMON),
    "qwen2": lambda: tf.Qwen2Config(**COMMON),
    "qwen2-window": lambda: tf.Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3": lambda: tf.Qwen3Config(**COMMON),
    "gemma2": lambda: tf.Gemma2Config(**COMMON, sliding_window=8, layer_types=MIXED, query_pre_attn_scalar=8),
    "gemma3": lambda: tf.Gemma3TextConfig(**COMMON, sliding_window=8, layer_types=MIXED, query_pre_attn_scalar=8),
    "gpt2": lambda: tf.GPT2Config(**GPT),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**MHA),
    "falcon-mqa": lambda: tf.FalconConfig(**MHA, multi_query=True, new_decoder_architecture=False, alibi=False),
    "gpt_bigcode": lambda: tf.GPTBigCodeConfig(**GPT, multi_query=True),
    "mistral": lambda: tf.MistralConfig(**COMMON, sliding_window=None),
    "mistral-window": lambda: tf.MistralConfig(**COMMON, sliding_window=8),
    "phi3-window": lambda: tf.Phi3Config(**MHA, num_key_value_heads=2, sliding_window=8),
    "opt": lambda: tf.OPTConfig(**OPT),
}
NORMS = ("norm", "ln_f", "final_layer_norm", "final_norm")
WINDOWED = ("mistral-window", "qwen2-window", "gemma2", "gemma3", "phi3-window")


def make(family, seed=0, **changes):
    torch.manual_seed(seed)
    config = FAMILIES[family]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms start as constants; random ones test more
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request):
    return request.param


@pytest.fixture(scope="module")
def hf(family):
    return make(family)


@pytest.fixture(scope="module")
def target(hf):
    return TorchModel(hf)


def ids(n, shift=0):
    return [(5 + shift + 17 * i + i * i) % VOCAB for i in range(n)]


def full(hf, tokens):
    """[T, V] logits of the model's own pass without cache."""
    batch = torch.tensor([tokens])
    with torch.no_grad():
        return hf(input_ids=batch, attention_mask=torch.ones_like(batch), use_cache=False).logits[0]


def generate(hf, prompt, new):
    batch = torch.tensor([prompt])
    out = hf.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=new, do_sample=False)
    return out[0].tolist()


def score(target, slots, trees, need=(), **pack):
    forest = Forest.pack(trees, min_width=target.traits.min_width, **pack)
    scores = target.score(slots, forest, Need(tuple(need)))
    return scores, list(scores.logits.split([len(t) for t in trees]))


def feed(target, slot, tokens):
    """Score and commit a chain; [T, V]."""
    _, (logits,) = score(target, [slot], [DraftTree.chain(tokens)])
    target.commit([slot], [range(len(tokens))])
    return logits


def greedy(target, slot, prompt, new, wrong=0):
    """Token by token; with ``wrong`` rejected drafts behind every pending token."""
    out = list(prompt)
    logits = feed(target, slot, prompt)[-1]
    for _ in range(new):
        token = int(logits.argmax())
        out.append(token)
        drafts = [(token + 1 + i) % VOCAB for i in range(wrong)]
        _, (rows,) = score(target, [slot], [DraftTree.chain([token, *drafts])])
        target.commit([slot], [[0]])
        logits = rows[0]
    return out


def tree(tokens, parents):
    return DraftTree(torch.tensor(tokens), torch.tensor(parents), None, torch.zeros(len(tokens), dtype=torch.int16))


BRANCHY = [-1, 0, 0, 1, 2, 2, 4]
BRANCH_TOKENS = [11, 12, 13, 14, 15, 16, 17]


def path_to(node):
    path = []
    while node >= 0:
        path.append(node)
        node = BRANCHY[node]
    return path[::-1]


def close_to(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert a.argmax(-1).tolist() == b.argmax(-1).tolist()


def test_traits(target, hf):
    assert isinstance(target, TargetModel)
    traits = target.traits
    assert (traits.vocab_size, traits.hidden_size, traits.n_layers, traits.max_context) == (VOCAB, 32, 2, 256)
    assert (traits.device, traits.dtype, traits.hidden) == ("cpu", "float32", (0, 1, 2, 3))
    assert traits.exits == (1,)


def test_greedy_chain_equals_generate(target, hf):
    (slot,) = target.open(1)
    prompt = ids(12)
    assert greedy(target, slot, prompt, 24) == generate(hf, prompt, 24)
    target.close([slot])


def test_tree_rows_equal_linear_passes_and_a_committed_path_continues(target, hf):
    prompt = ids(10)
    for node in (3, 5, 6):
        (slot,) = target.open(1)
        feed(target, slot, prompt)
        _, (rows,) = score(target, [slot], [tree(BRANCH_TOKENS, BRANCHY)])
        path = path_to(node)
        line = prompt + [BRANCH_TOKENS[i] for i in path]
        close_to(rows[path], full(hf, line)[len(prompt) :])
        target.commit([slot], [path])
        assert slot.length == len(line)
        more = ids(3, shift=9)
        close_to(feed(target, slot, more), full(hf, line + more)[len(line) :])
        target.close([slot])


def test_ragged_batch_equals_solo(target, hf):
    prompts = [ids(3), ids(17, 3), ids(9, 6)]
    slots = target.open(3)
    _, logits = score(target, slots, [DraftTree.chain(p) for p in prompts])
    for mine, prompt in zip(logits, prompts, strict=True):
        close_to(mine, full(hf, prompt))
    target.commit(slots, [range(len(p)) for p in prompts])
    trees = [DraftTree.chain([7]), tree(BRANCH_TOKENS, BRANCHY), DraftTree.chain([8, 9, 10])]
    order = [2, 0, 1]  # rows need not come in slot order
    _, logits = score(target, [slots[i] for i in order], [trees[i] for i in order])
    of = dict(zip(order, logits, strict=True))
    close_to(of[0], full(hf, prompts[0] + [7])[3:])
    close_to(of[2], full(hf, prompts[2] + [8, 9, 10])[9:])
    path = path_to(6)
    close_to(of[1][path], full(hf, prompts[1] + [BRANCH_TOKENS[i] for i in path])[17:])
    target.commit([slots[1]], [path])
    target.close([slots[0]])  # a hole between the rows: the batch is no view any more
    (late,) = target.open(1)
    target.close([late])
    _, logits = score(target, [slots[2], slots[1]], [DraftTree.chain([30]), DraftTree.chain([31])])
    close_to(logits[0], full(hf, prompts[2] + [30])[-1:])
    close_to(logits[1], full(hf, prompts[1] + [BRANCH_TOKENS[i] for i in path] + [31])[-1:])
    target.close(slots)


def test_fork_shares_a_prefix(target, hf):
    prompt = ids(14)
    (slot,) = target.open(1)
    feed(target, slot, prompt)
    whole, part = target.fork(slot), target.fork(slot, 6)
    assert (whole.length, part.length) == (14, 6)
    drafts = [DraftTree.chain([21]), DraftTree.chain([22]), DraftTree.chain([23, 24])]
    _, logits = score(target, [slot, whole, part], drafts)
    target.commit([slot, whole, part], [[0], [0], [0, 1]])
    close_to(logits[0], full(hf, [*prompt, 21])[14:])
    close_to(logits[1], full(hf, [*prompt, 22])[14:])
    close_to(logits[2], full(hf, [*prompt[:6], 23, 24])[6:])
    target.close([slot])
    close_to(feed(target, whole, [40]), full(hf, [*prompt, 22, 40])[15:])
    close_to(feed(target, part, [41]), full(hf, [*prompt[:6], 23, 24, 41])[8:])
    target.close([whole, part])


def test_hidden_taps_are_the_residual_stream(target, hf):
    prompts = [ids(5), ids(8, 2)]
    slots = target.open(2)
    scores, _ = score(target, slots, [DraftTree.chain(p) for p in prompts], need=(0, 1, 2))
    for lo, prompt in ((0, prompts[0]), (5, prompts[1])):
        batch = torch.tensor([prompt])
        with torch.no_grad():
            out = hf(input_ids=batch, attention_mask=torch.ones_like(batch), output_hidden_states=True, use_cache=False)
        taps = {layer: stream[lo : lo + len(prompt)] for layer, stream in scores.hidden.items()}
        for layer in (0, 1):
            torch.testing.assert_close(taps[layer], out.hidden_states[layer][0], rtol=1e-4, atol=1e-4)
        # transformers' last entry is normalized already; the tap is what enters that norm
        norm = next(m for n, m in hf.named_modules() if n.count(".") <= 2 and n.split(".")[-1] in NORMS)
        torch.testing.assert_close(norm(taps[2]), out.hidden_states[2][0], rtol=1e-4, atol=1e-4)
    target.close(slots)


def test_static_shapes_equal_dynamic_ones(target, hf, monkeypatch):
    static = TorchModel(hf, static=True, max_rows=3, capacity_tokens=3 * 64, max_nodes=32, context_step=64)
    shapes = set()
    original = static.model.forward

    def spy(*args, **kwargs):
        mask = kwargs["attention_mask"]
        mask = mask if isinstance(mask, torch.Tensor) else next(iter(mask.values()))
        shapes.add((kwargs["input_ids"].shape, mask.shape))
        return original(*args, **kwargs)

    (plain,), (a,) = target.open(1), static.open(1)
    prompt = ids(11)
    expected = greedy(target, plain, prompt, 12)
    target.close([plain])
    with monkeypatch.context() as patch:
        patch.setattr(hf, "forward", spy)
        assert greedy(static, a, prompt, 12, wrong=2) == expected
    assert {s[0] for s in shapes} == {(3, 16), (3, 4)}
    assert len({s[1][-1] for s in shapes}) == 1
    b, c = static.open(2)
    feed(static, b, ids(5))
    feed(static, c, ids(9, 4))
    _, (rows,) = score(static, [c], [tree(BRANCH_TOKENS, BRANCHY)])
    path = path_to(6)
    close_to(rows[path], full(hf, ids(9, 4) + [BRANCH_TOKENS[i] for i in path])[9:])
    static.commit([c], [path])
    close_to(feed(static, b, [60]), full(hf, [*ids(5), 60])[5:])
    feed(static, b, ids(32))
    with pytest.raises(BackendError, match="context"):
        feed(static, b, ids(32))


@pytest.mark.parametrize("name", WINDOWED)
def test_window_equals_generate_after_rejected_drafts(name):
    hf = make(name, seed=3)
    target = TorchModel(hf)
    for length in (4, 7, 8, 9, 20):
        prompt = ids(length, shift=length)
        expected = generate(hf, prompt, 40)
        for wrong in (0, 3):
            (slot,) = target.open(1)
            assert greedy(target, slot, prompt, 40, wrong=wrong) == expected
            target.close([slot])
    unlimited = make(name, seed=3, sliding_window=200)
    assert not torch.allclose(full(hf, ids(30))[-1], full(unlimited, ids(30))[-1], atol=1e-3)  # the window matters here


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_window_in_a_tree_counts_positions(attention):
    hf = make("mistral-window")
    hf.set_attn_implementation(attention)
    target = TorchModel(hf)
    (slot,) = target.open(1)
    prompt = ids(6)
    feed(target, slot, prompt)
    # columns run ahead of positions, and the path is longer than the window
    parents = [-1, 0, 0, 0, 0, 0, 0, *range(6, 18)]
    tokens = list(range(50, 50 + len(parents)))
    _, (rows,) = score(target, [slot], [tree(tokens, parents)])
    path = [0, *range(6, len(parents))]
    close_to(rows[path], full(hf, prompt + [tokens[i] for i in path])[6:])


def test_logits_only_where_wanted():
    hf = make("llama")
    target = TorchModel(hf)
    slots = target.open(3)
    trees = [DraftTree.chain([4]), DraftTree.chain([5, 6]), DraftTree.chain([7])]
    forest = Forest.pack(trees, before=[ids(9), [], ids(4, 1)], wanted=[True, True, False])
    logits = target.score(slots, forest, Need()).logits
    assert logits.shape == (3, VOCAB)
    close_to(logits[:1], full(hf, [*ids(9), 4])[-1:])
    close_to(logits[1:], full(hf, [5, 6]))
    target.commit(slots, [range(10), [0], range(5)])
    assert [s.length for s in slots] == [10, 1, 5]
    nothing = Forest.pack([DraftTree.chain([3])], wanted=[False])
    assert target.score(slots[:1], nothing, Need()).logits.shape == (0, VOCAB)


def test_padding_nodes_are_never_kept_and_may_pass_the_context():
    hf = make("gpt2", n_positions=20)
    target = TorchModel(hf)
    (slot,) = target.open(1)
    feed(target, slot, ids(19))
    forest = Forest.pack([DraftTree.chain([9])], min_width=8)
    logits = target.score([slot], forest, Need()).logits
    close_to(logits, full(hf, [*ids(19), 9])[-1:])
    with pytest.raises(BackendError, match="not a path"):
        target.commit([slot], [[0, 1]])
    target.commit([slot], [[0]])
    with pytest.raises(BackendError, match="context"):
        feed(target, slot, [1])


def test_capacity_and_rows_are_refused_by_name_and_come_back():
    hf = make("llama")
    target = TorchModel(hf, capacity_tokens=40, max_rows=2)
    a, b = target.open(2)
    with pytest.raises(BackendError, match="max_rows"):
        target.open(1)
    feed(target, a, ids(30))
    with pytest.raises(BackendError, match="capacity_tokens"):
        feed(target, b, ids(11))
    target.close([b])
    with pytest.raises(BackendError, match="capacity_tokens"):
        target.fork(a)
    target.close([a])
    target.close([a])
    with pytest.raises(BackendError, match="closed"):
        feed(target, a, [1])
    assert not any(store.buffers() for store in target._pool.stores)
    (c,) = target.open(1)
    close_to(feed(target, c, ids(40, 2)), full(hf, ids(40, 2)))


def test_a_reused_row_keeps_nothing_of_its_predecessor():
    hf = make("llama")
    target = TorchModel(hf)
    keeper, old = target.open(2)
    feed(target, keeper, ids(3))
    feed(target, old, ids(50))
    for store in target._pool.stores:
        for buffer in store.buffers():
            buffer[1].fill_(float("nan"))
    target.close([old])
    (new,) = target.open(1)
    assert new is not old
    assert new.length == 0
    close_to(feed(target, new, ids(7, 1)), full(hf, ids(7, 1)))
    close_to(feed(target, keeper, [8]), full(hf, [*ids(3), 8])[3:])


def test_what_is_not_committed_vanishes():
    hf = make("qwen3")
    target = TorchModel(hf)
    (slot,) = target.open(1)
    feed(target, slot, ids(6))
    score(target, [slot], [DraftTree.chain([1, 2, 3, 4])])
    close_to(feed(target, slot, [9, 8]), full(hf, [*ids(6), 9, 8])[6:])
    with pytest.raises(BackendError, match="once"):
        target.commit([slot], [[0]])


def test_a_new_pass_drops_what_other_rows_left_uncommitted():
    target = TorchModel(make("qwen3"))
    first, second = target.open(2)
    score(target, [first], [DraftTree.chain([1, 2])])
    score(target, [second], [DraftTree.chain([1, 2])])
    with pytest.raises(BackendError, match="score the row again"):
        target.commit([first], [[0]])
    target.commit([second], [[0]])


def test_growth_keeps_what_was_committed():
    hf = make("gemma3")
    target = TorchModel(hf, context_step=16)
    prompt, slots = ids(150), target.open(3)
    for i in range(0, 150, 30):
        logits = feed(target, slots[1], prompt[i : i + 30])
    close_to(logits, full(hf, prompt)[120:])


def test_layers_may_differ_in_shape():
    """Gemma-3 keeps one head size, so this model gets other key heads in its second layer."""
    hf = make("llama")
    attention, small = hf.model.layers[1].self_attn, hf.model.layers[0].self_attn
    attention.k_proj, attention.v_proj = torch.nn.Linear(32, 32, bias=False), torch.nn.Linear(32, 32, bias=False)
    attention.num_key_value_groups = 1
    assert small.num_key_value_groups == 2
    target = TorchModel(hf)
    (slot,) = target.open(1)
    feed(target, slot, ids(9))
    close_to(feed(target, slot, [3, 4]), full(hf, [*ids(9), 3, 4])[9:])
    assert [store.keys.shape[1] for store in target._pool.stores] == [2, 4]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("options", [{}, {"static": True}, {"trees": False}, {"max_rows": 1}], ids=str)
def test_probe_reports_what_adopt_takes(name, options):
    target = TorchModel(make(name), **{"max_rows": 2, **options})
    report = target.probe()
    parts = {"prompt in parts"} | ({"tree"} if target.traits.tree else set()) | ({"batch"} if target.max_rows > 1 else set())
    assert report.masked
    assert report.difference["width=16"] == 0
    assert max(report.difference.values()) < 1e-3
    widths = {int(k[6:]): v for k, v in report.difference.items() if k.startswith("width=")}
    others = {k: v for k, v in report.difference.items() if not k.startswith("width=")}
    assert set(others) == parts
    assert {1, 2, 3, 4, 8, 16} <= set(widths)
    assert not any(v for w, v in widths.items() if w >= report.min_width) or report.min_width == 1
    assert report.exact == (not any(others.values()) and (report.min_width < 16) and widths[8] == 0)
    target.adopt(report)
    assert (target.traits.min_width, target.traits.exact) == (report.min_width, report.exact)
    target.close(target.open(target.max_rows))  # the probe gave its rows back


def test_probe_finds_a_kernel_that_depends_on_the_width(monkeypatch):
    hf = make("llama")
    target = TorchModel(hf, width_step=1)
    original = hf.lm_head.forward
    monkeypatch.setattr(hf.lm_head, "forward", lambda h: original(h) + (1e-3 if h.shape[0] * h.shape[1] < 3 else 0))
    report = target.probe()
    assert report.difference["width=1"] > 5e-4
    assert report.difference["width=2"] > 5e-4
    assert report.min_width >= 3
    target.adopt(report)
    assert max(target.probe().difference.values()) < 5e-4  # rows padded to min_width take the other kernel


def test_trees_can_be_given_up():
    target = TorchModel(make("llama"), trees=False)
    (slot,) = target.open(1)
    feed(target, slot, ids(5))
    assert not target.traits.tree
    with pytest.raises(Unsupported, match="trees=False"):
        score(target, [slot], [tree(BRANCH_TOKENS, BRANCHY)])


def refused():
    yield "mamba", tf.MambaConfig(vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=2), "recurrent"
    yield "bloom", tf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4), "ALiBi"
    yield "mpt", tf.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4), "ALiBi"
    yield "falcon", tf.FalconConfig(**MHA, alibi=True), "ALiBi"
    neo = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
    yield "gpt_neo", tf.GPTNeoConfig(vocab_size=VOCAB, hidden_size=32, **neo), "columns"


@pytest.mark.parametrize("config, why", [pytest.param(c, w, id=n) for n, c, w in refused()])
def test_refusals(config, why):
    model = tf.AutoModelForCausalLM.from_config(config)
    with pytest.raises(Unsupported, match=why) as error:
        TorchModel(model)
    assert "\n" not in str(error.value)


def test_encoder_decoder_is_refused():
    config = tf.T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    with pytest.raises(Unsupported, match="encoder-decoder"):
        TorchModel(tf.T5ForConditionalGeneration(config))


def test_a_model_that_ignores_its_mask_is_refused():
    hf = make("llama")
    original = hf.forward

    def deaf(input_ids, attention_mask, position_ids=None, cache=None, logits_to_keep=0, **kwargs):
        return original(input_ids, position_ids=position_ids, cache=cache, logits_to_keep=logits_to_keep, **kwargs)

    hf.forward = deaf
    with pytest.raises(Unsupported, match="mask"):
        TorchModel(hf)


def test_load(tmp_path):
    hf = make("llama")
    hf.save_pretrained(tmp_path / "tiny")
    target = TorchModel.load(str(tmp_path / "tiny"), device="cpu", max_rows=2)
    assert target.traits.dtype == "float32"
    assert target.traits.capacity == 2 * 256
    (slot,) = target.open(1)
    close_to(feed(target, slot, ids(5)), full(hf, ids(5)))
    with pytest.raises(ModelNotFound, match="no config"):
        TorchModel.load(str(tmp_path))
    with pytest.raises(ModelNotFound, match="not a folder"):
        TorchModel.load(str(tmp_path / "nothing"))
    with pytest.raises(BadRequest, match="dtype"):
        TorchModel.load(str(tmp_path / "tiny"), dtype="float8")
    weights = {k: v for k, v in hf.state_dict().items() if k != "model.layers.1.mlp.up_proj.weight"}
    hf.save_pretrained(tmp_path / "partial", state_dict=weights)
    with pytest.raises(BackendError, match="lacks the weights"):
        TorchModel.load(str(tmp_path / "partial"), device="cpu")
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"not a safetensors file")
    with pytest.raises(BackendError, match="cannot load"):
        TorchModel.load(str(tmp_path / "tiny"), device="cpu")
    next(c for n, c, _ in refused() if n == "mamba").save_pretrained(tmp_path / "mamba")
    with pytest.raises(Unsupported, match="recurrent"):
        TorchModel.load(str(tmp_path / "mamba"))
