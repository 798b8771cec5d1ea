"""The OpenVINO target on tiny random models: right logits, one class of passes bit for bit, caches that are given back."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from surefoot.backends.openvino import OpenVINOModel, from_gguf, from_transformers
from surefoot.backends.openvino.hardware import native_bf16, shared_core
from surefoot.core.protocols import InvarianceReport, Need, TargetModel
from surefoot.core.tree import DraftTree, Forest
from surefoot.errors import BackendError, BadRequest, ModelNotFound, Unsupported

V = 300
NOTHING = Need()
KINDS = ("llama", "qwen3", "gpt2", "neox")
PRECISIONS = ("bf16", "f32") if native_bf16(shared_core()) else ("f32",)


def tiny(kind: str):
    """A random causal model of three layers."""
    torch.manual_seed(7)
    common = {"vocab_size": V, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    common["max_position_embeddings"] = 512
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    gated = {"num_key_value_heads": 2, "intermediate_size": 96}
    t = transformers
    config = {
        "llama": lambda: t.LlamaConfig(**common, **gated, **ends),
        "qwen3": lambda: t.Qwen3Config(**common, **gated, **ends, head_dim=16),
        "gpt2": lambda: t.GPT2Config(vocab_size=V, n_embd=64, n_layer=3, n_head=4, n_positions=512, **ends),
        "neox": lambda: t.GPTNeoXConfig(**common, **ends, intermediate_size=96, rotary_pct=0.5),
        "mistral": lambda: t.MistralConfig(**common, **gated, **ends, sliding_window=24),
        "gemma3": lambda: t.Gemma3TextConfig(
            **common,
            **gated,
            **ends,
            head_dim=16,
            sliding_window=24,
            layer_types=["sliding_attention"] * 2 + ["full_attention"],
        ),
    }[kind]()
    model = t.AutoModelForCausalLM.from_config(config).float().eval()
    for p in model.parameters():  # logits wide enough that bf16 noise does not decide every argmax
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.15)
    return model


class _Made:
    """Exported once a session, loaded at most once a (model, options)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources, self._loaded = {}, {}

    def source(self, kind: str):
        if kind not in self._sources:
            self._sources[kind] = tiny(kind)
        return self._sources[kind]

    def folder(self, kind: str) -> Path:
        out = self._folder / kind
        if not out.exists():
            from_transformers(self.source(kind), out)
        return out

    def __call__(self, kind: str, **options) -> OpenVINOModel:
        key = (kind, *sorted(options.items()))
        if key not in self._loaded:
            self._loaded[key] = OpenVINOModel(self.folder(kind), kv_tokens=options.pop("kv_tokens", 4096), **options)
        return self._loaded[key]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> _Made:
    return _Made(tmp_path_factory.mktemp("openvino"))


def tokens(n: int, seed: int = 0) -> list[int]:
    return torch.randint(0, V, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def score(model, slots, trees, need=NOTHING) -> torch.Tensor:
    forest = Forest.pack(trees, min_width=model.traits.min_width)
    return model.score(slots, forest, need).logits.clone()


def chain(model, slot, ids) -> torch.Tensor:
    return score(model, [slot], [DraftTree.chain(ids)])


def prefill(model, ids, chunk: int = 64):
    [slot] = model.open(1)
    for i in range(0, len(ids), chunk):
        part = ids[i : i + chunk]
        forest = Forest.pack([DraftTree.chain(part)], wanted=[False], min_width=model.traits.min_width)
        assert model.score([slot], forest, Need()).logits.shape == (0, V)
        model.commit([slot], [range(len(part))])
    return slot


def bushy(ids) -> tuple[DraftTree, list[int]]:
    """A tree whose path ``ids`` has a sibling before each node; and the nodes of the path."""
    out, parents, path = [ids[0]], [-1], [0]
    for t in ids[1:]:
        out += [(t + 1) % V, t]
        parents += [path[-1]] * 2
        path.append(len(out) - 1)
    return DraftTree(torch.tensor(out), torch.tensor(parents), None, torch.zeros(len(out), dtype=torch.int16)), path


def test_is_a_target(made):
    model = made("llama")
    assert isinstance(model, TargetModel)
    traits = model.traits
    assert (traits.vocab_size, traits.hidden_size, traits.n_layers, traits.max_context) == (V, 64, 3, 512)
    assert traits.exits == (1, 2)
    assert traits.min_width == 2
    assert traits.exact


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(made, kind):
    model = made(kind, precision="f32")
    ids = tokens(40)
    slot = prefill(model, ids[:25], chunk=11)
    got = chain(model, slot, ids[25:])
    with torch.no_grad():
        want = made.source(kind)(input_ids=torch.tensor([ids])).logits[0, 25:]
    assert (got - want).abs().max() < 1e-3
    assert torch.equal(got.argmax(-1), want.argmax(-1))
    model.close([slot])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_probe_finds_a_class(made, kind, precision):
    model = made(kind, precision=precision)
    before = model.passes()
    report = model.probe()
    assert report.exact, report.difference
    assert any("tree" in case for case in report.difference)
    assert model.passes() == before
    assert model.pool.free == model.pool.blocks


@pytest.mark.parametrize("precision", PRECISIONS)
def test_widths_trees_and_neighbours_do_not_matter(made, precision):
    model = made("llama", precision=precision)
    ids, tail = tokens(70), tokens(12, 1)
    slot = prefill(model, ids)
    want = chain(model, slot, tail)
    for width in (1, 2, 3, 5):
        fork, out = model.fork(slot), []
        for i in range(0, 12, width):
            out.append(chain(model, fork, tail[i : i + width]))
            model.commit([fork], [range(len(tail[i : i + width]))])
        model.close([fork])
        assert torch.equal(torch.cat(out), want), width
    other = prefill(model, tokens(33, 2), chunk=8)
    alone = chain(model, other, tail[:2])
    tree, path = bushy(tail[:6])
    both = score(model, [slot, other], [tree, DraftTree.chain(tail[:2])])
    assert torch.equal(both[path], want[:6])
    assert torch.equal(both[len(tree) :], alone)
    both = score(model, [other, slot], [DraftTree.chain(tail[:2]), tree])
    assert torch.equal(both[2:][path], want[:6])
    model.close([slot, other])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_padding_to_a_steady_size_changes_nothing(made, precision):
    padded = made("llama", precision=precision, taps=(1,))
    bare = OpenVINOModel(made.folder("llama"), precision=precision, taps=(1,), kv_tokens=1024)
    bare.steady = False
    ids, sizes = tokens(40), [8, 3, 2, 5, 1, 8, 2, 2, 2, 2, 4, 1]
    rows = [(m, prefill(m, ids)) for m in (padded, bare)]
    for i, n in enumerate(sizes):
        tree = bushy(tokens(n, i))[0] if n % 2 else DraftTree.chain(tokens(n, i))
        forest = Forest.pack([tree], min_width=2)
        a, b = (m.score([s], forest, Need(hidden=(1,))) for m, s in rows)
        assert torch.equal(a.logits, b.logits)
        assert torch.equal(a.hidden[1], b.hidden[1])
        for m, s in rows:
            m.commit([s], [[0]])
    for m, s in rows:
        m.close([s])
        assert m.pool.free == m.pool.blocks


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("trees", ["chains", "mask"])
def test_committed_tree_path_is_a_chain(made, precision, trees):
    model = made("llama", precision=precision, trees=trees)
    slot, tail = prefill(model, tokens(61)), tokens(9, 3)
    want = chain(model, slot, tail)
    tree, path = bushy(tail[:5])
    got = score(model, [slot], [tree])
    close = torch.equal if trees == "chains" else lambda a, b: torch.allclose(a, b, atol=0.1, rtol=0.05)
    assert close(got[path], want[:5])
    # nodes of another branch, then of the path: the first is dropped without a trace
    model.commit([slot], [path])
    assert slot.length == 66
    assert close(chain(model, slot, tail[5:]), want[5:])
    model.commit([slot], [[]])
    assert slot.length == 66
    model.close([slot])
    assert model.pool.free == model.pool.blocks


def test_masked_siblings_see_only_their_ancestors(made):
    """The mask does something: without it the path would see its siblings, far outside rounding."""
    model = made("llama", precision="f32", trees="mask")
    slot, tail = prefill(model, tokens(61)), tokens(5, 3)
    want = chain(model, slot, tail)
    tree, path = bushy(tail)
    assert (score(model, [slot], [tree])[path] - want).abs().max() < 1e-3
    flat = chain(model, slot, tree.tokens.tolist())
    assert (flat[path] - want).abs().max() > 0.05
    assert not model.traits.exact
    model.close([slot])


def test_fork_shares_full_blocks_and_never_writes_them(made):
    model = made("llama")
    pool, ids, tail = model.pool, tokens(75), tokens(6, 4)
    slot = prefill(model, ids)
    want = chain(model, slot, tail)
    model.commit([slot], [[]])
    free = pool.free
    fork = model.fork(slot)
    assert free - pool.free == 1  # 75 tokens: two full blocks shared, one partial block copied
    chain(model, fork, tokens(40, 5))
    model.commit([fork], [range(40)])
    assert torch.equal(chain(model, slot, tail), want)
    shorter = model.fork(slot, 50)
    assert shorter.length == 50
    assert torch.equal(chain(model, shorter, ids[50:] + tail)[25:], want)
    model.close([slot])
    model.commit([shorter], [[]])
    assert torch.equal(chain(model, shorter, ids[50:] + tail)[25:], want)
    with pytest.raises(BadRequest, match="cannot fork"):
        model.fork(shorter, 51)
    model.close([shorter, fork, slot])
    model.close([fork])
    assert pool.free == pool.blocks
    with pytest.raises(BackendError, match="closed"):
        chain(model, fork, tail)


def test_exhaustion_names_the_option_and_keeps_the_rows(made):
    model = OpenVINOModel(made.folder("llama"), kv_tokens=128)
    slot, tail = prefill(model, tokens(60)), tokens(4, 1)
    want = chain(model, slot, tail)
    model.commit([slot], [[]])
    free = model.pool.free
    [other] = model.open(1)
    with pytest.raises(BackendError, match="kv_tokens"):
        chain(model, other, tokens(100))
    with pytest.raises(BackendError, match="kv_tokens"):  # the first row fits, the second does not: neither is given blocks
        score(model, [slot, other], [DraftTree.chain(tail), DraftTree.chain(tokens(90))])
    star = DraftTree(torch.arange(9), torch.tensor([-1] + [0] * 8), None, torch.zeros(9, dtype=torch.int16))
    with pytest.raises(BackendError, match="kv_tokens"):
        score(model, [slot], [star])
    assert model.pool.free == free
    assert torch.equal(chain(model, slot, tail), want)
    model.close([slot, other])
    assert model.pool.free == model.pool.blocks


def test_commit_refuses_what_was_not_scored(made):
    model = made("llama")
    slot = prefill(model, tokens(10))
    chain(model, slot, tokens(3))
    for path in ([0, 5], [1, 0], [-1]):
        with pytest.raises(BadRequest, match="cannot commit"):
            model.commit([slot], [path])
    tree, _ = bushy(tokens(3))
    score(model, [slot], [tree])
    with pytest.raises(BadRequest, match="path of the tree"):
        model.commit([slot], [[0, 1, 2]])
    model.close([slot])


@pytest.mark.parametrize("kind", KINDS)
def test_taps_are_the_residual_stream(made, kind):
    model = made(kind, precision="f32", taps=(0, 1, 2))
    ids = tokens(20)
    slot = prefill(model, ids[:10])
    forest = Forest.pack([DraftTree.chain(ids[10:])], min_width=2)
    found = model.score([slot], forest, Need(hidden=(0, 1, 2))).hidden
    with torch.no_grad():
        want = made.source(kind)(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    for layer in (0, 1, 2):
        assert found[layer].shape == (10, 64)
        assert torch.allclose(found[layer], want[layer][0, 10:], atol=1e-3, rtol=1e-3), layer
    tree, path = bushy(ids[10:15])
    hidden = model.score([slot], Forest.pack([tree], min_width=2), Need(hidden=(2,))).hidden
    assert hidden.keys() == {2}
    assert hidden[2].shape == (len(tree), 64)
    assert torch.allclose(hidden[2][path], want[2][0, 10:15], atol=1e-3, rtol=1e-3)
    with pytest.raises(Unsupported, match="taps="):
        model.score([slot], forest, Need(hidden=(3,)))
    model.close([slot])


def test_last_tap_feeds_the_head(made):
    model = made("llama", precision="f32", taps=(3,))
    source = made.source("llama")
    slot = prefill(model, tokens(10))
    scores = model.score([slot], Forest.pack([DraftTree.chain(tokens(4, 1))], min_width=2), Need(hidden=(3,)))
    with torch.no_grad():
        want = source.lm_head(source.model.norm(scores.hidden[3]))
    assert torch.allclose(scores.logits, want, atol=1e-3, rtol=1e-3)
    model.close([slot])


def test_fast_mode_and_reports(made):
    fast = made("llama", precision="fast")
    assert not fast.traits.exact
    assert fast.trees == "mask"
    fast.adopt(InvarianceReport(True, 4, True, {}))
    assert not fast.traits.exact
    assert fast.passes() == (4, True)
    slot, tail = prefill(fast, tokens(30)), tokens(8, 1)
    assert chain(fast, slot, tail).isfinite().all()
    model = OpenVINOModel(made.folder("gpt2"), precision="f32", kv_tokens=1024, report=InvarianceReport(True, 4, False, {}))
    assert model.traits.min_width == 4
    assert model.traits.exact
    work = Forest.pack([bushy(tokens(4))[0]], min_width=2)
    assert model.work(work) == 2 + 3 + 4 + 4
    assert fast.work(work) == work.nodes == 7
    model.adopt(replace(model.probe(), exact=False))
    assert not model.traits.exact
    fast.close([slot])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [2, 4])
def test_trees_hold_in_every_class(made, masked, width):
    model = OpenVINOModel(made.folder("llama"), precision="f32", kv_tokens=1024)
    model.set_passes(width, masked)
    slot, tail = prefill(model, tokens(33)), tokens(3, 2)
    tree, path = bushy(tail)
    want = chain(model, slot, tail)
    assert torch.equal(score(model, [slot], [tree])[path], want)


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_sliding_windows_slide(made, kind):
    model = made(kind, precision="f32")
    assert (model.window, model.traits.max_context) == (24, 512)
    ids = tokens(90)
    with torch.no_grad():
        want = made.source(kind)(input_ids=torch.tensor([ids])).logits[0, 60:]
    slot = prefill(model, ids[:60], chunk=17)
    assert (chain(model, slot, ids[60:]) - want).abs().max() < 1e-3
    tree, path = bushy(ids[60:66])
    assert (score(model, [slot], [tree])[path] - want[:6]).abs().max() < 1e-3
    model.close([slot])
    assert model.probe().exact
    assert made(kind, precision="f32", trees="mask").traits.max_context == 24


def test_lost_windows_bound_the_context(made, tmp_path):
    folder = tmp_path / "other"
    shutil.copytree(made.folder("llama"), folder)
    (folder / "surefoot.json").unlink()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 300, "sliding_window": 24}))
    assert OpenVINOModel(folder, kv_tokens=512).traits.max_context == 24
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 300, "attn_logit_softcapping": 50.0}))
    with pytest.raises(Unsupported, match="caps its attention"):
        OpenVINOModel(folder, kv_tokens=512)


def test_export_refuses_what_it_cannot_compute(tmp_path):
    config = transformers.Gemma2Config(vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    config.save_pretrained(tmp_path / "gemma2")
    with pytest.raises(Unsupported, match="capped"):
        from_transformers(tmp_path / "gemma2", tmp_path / "out")
    with pytest.raises(BadRequest, match="int4"):
        from_transformers(tiny("llama"), tmp_path / "out", weights="int5")
    with pytest.raises(ModelNotFound):
        from_transformers(tmp_path / "nothing", tmp_path / "out")
    assert {p.name for p in tmp_path.iterdir()} == {"gemma2"}


def test_broken_files_are_named(made, tmp_path):
    with pytest.raises(ModelNotFound, match="no such file"):
        from_gguf(tmp_path / "none.gguf", tmp_path / "out")
    bad = tmp_path / "bad.gguf"
    for data in (b"GGUF", b"not a model at all, but long enough", b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 64):
        bad.write_bytes(data)
        with pytest.raises(BackendError, match="download it again"):
            from_gguf(bad, tmp_path / "out")
    with pytest.raises(ModelNotFound, match=r"openvino_model\.xml"):
        OpenVINOModel(tmp_path)
    folder = tmp_path / "cut"
    shutil.copytree(made.folder("llama"), folder)
    weights = folder / "openvino_model.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(BackendError, match="convert it again"):
        OpenVINOModel(folder)
    (folder / "surefoot.json").write_text("{")
    with pytest.raises(BackendError, match=r"surefoot\.json"):
        OpenVINOModel(folder)
    assert {p.name for p in tmp_path.iterdir()} == {"bad.gguf", "cut"}


def test_bad_options_are_refused(made):
    folder = made.folder("llama")
    for options in ({"precision": "int3"}, {"kv_tokens": 0}, {"threads": 0}, {"trees": "no"}):
        with pytest.raises(BadRequest):
            OpenVINOModel(folder, **options)
    with pytest.raises(Unsupported, match=r"0\.\.4"):
        OpenVINOModel(folder, taps=(9,))
    assert json.loads((folder / "surefoot.json").read_text())["max_context"] == 512


def test_an_interrupt_after_models_went_is_harmless(made):
    """Each OpenVINO core brings a stack for signal handlers; overlapping ones would leave an unmapped one behind."""
    code = f"""
import faulthandler, gc, os, signal, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
faulthandler.enable()  # sets an alternate stack, as a debugger or a test runner does
from surefoot.backends.openvino import OpenVINOModel
first = OpenVINOModel(Path({str(made.folder("llama"))!r}), precision="f32")
second = OpenVINOModel(Path({str(made.folder("llama"))!r}), precision="f32")
del first
gc.collect()
del second
gc.collect()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted"), done.stderr
