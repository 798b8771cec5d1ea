"""A target that drafts for itself with sublayers left out, on both backends that can."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.conftest import VOCAB, tiny
from toys import fixed, run

from surefoot.backends.openvino import OpenVINOModel, from_transformers
from surefoot.backends.torch import TorchModel
from surefoot.core.engine import Engine
from surefoot.core.protocols import Need
from surefoot.core.sublayers import Sample, SkipSet
from surefoot.core.tree import DraftTree, Forest
from surefoot.errors import BadRequest, Unsupported
from surefoot.skips import find_skips, layer_skip

LAYERS = 5
SKIPS = SkipSet.parse("attn:1,mlp:2-3,attn:3")
TOKENS = [1, 5, 9, 2, 30, 7, 8, 11, 40, 3]
SAMPLES = [Sample(tuple(TOKENS), 4), Sample((4, 4, 50, 6, 7, 1), 2)]
BACKENDS = ("torch", "openvino")


@dataclass(frozen=True)
class Case:
    model: Any
    targets: dict[str, Any]


def wrap(backend: str, model: Any, folder: Path) -> Any:
    if backend == "torch":
        return TorchModel(model, max_rows=8)
    return OpenVINOModel(from_transformers(model, folder / "model"), precision="f32", kv_tokens=4096, threads=1, taps=(LAYERS,))


def deep(kind: str, layer_types: list[str] | None = None, **changes) -> Any:
    model = tiny(kind, **changes)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = LAYERS
    if layer_types is not None:
        config.layer_types = layer_types
    torch.manual_seed(2)
    return type(model)._from_config(config, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = deep("LlamaConfig")
    targets = {name: wrap(name, model, tmp_path_factory.mktemp(name)) for name in BACKENDS}
    for target in targets.values():
        target.adopt(target.probe())
    return Case(model, targets)


def silenced(model: Any, skips: SkipSet) -> Any:
    """The same function by other means: what a skipped sublayer adds is zero because its last weight is."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for layer in skips.attention:
            other.model.layers[layer].self_attn.o_proj.weight.zero_()
        for layer in skips.mlp:
            other.model.layers[layer].mlp.down_proj.weight.zero_()
    return other


def logits(target: Any, tokens: list[int], chunk: int = 99) -> torch.Tensor:
    """[T, V], scored and committed in chunks."""
    [slot] = target.open(1)
    out = []
    for i in range(0, len(tokens), chunk):
        part = tokens[i : i + chunk]
        forest = Forest.pack([DraftTree.chain(part)], min_width=target.traits.min_width)
        out.append(target.score([slot], forest, Need()).logits.clone())
        target.commit([slot], [range(len(part))])
    target.close([slot])
    return torch.cat(out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_draft_is_the_model_without_the_sublayers(case: Case, backend: str) -> None:
    target = case.targets[backend]
    before = logits(target, TOKENS)
    draft = target.without(SKIPS)
    with torch.no_grad():
        wanted = silenced(case.model, SKIPS)(torch.tensor([TOKENS])).logits[0]
    for chunk in (99, 3, 1):
        assert torch.allclose(logits(draft, TOKENS, chunk), wanted, atol=1e-3), "and with its own cache"
    assert torch.equal(logits(target, TOKENS), before), "the target is as it was"
    assert not torch.allclose(before, wanted, atol=1e-2)
    assert draft.traits.min_width == target.traits.min_width


def test_torch_shares_every_parameter_and_caches_nothing_for_skipped_layers(case: Case) -> None:
    target = case.targets["torch"]
    draft = target.without(SKIPS)
    ours = {p.data_ptr() for p in draft.model.parameters()}
    assert ours == {p.data_ptr() for p in target.model.parameters()}
    assert not any(type(m).__name__ == "Gate" for m in target.model.modules())
    [slot] = draft.open(1)
    draft.score([slot], Forest.pack([DraftTree.chain(TOKENS)]), Need())
    assert [store.is_initialized for store in draft._pool.stores] == [True, False, True, False, True]
    assert not any(store.is_initialized for store in target._pool.stores), "the caches are separate"
    draft.close([slot])


def test_openvino_compiles_neither_skipped_work_nor_its_caches(case: Case) -> None:
    target = case.targets["openvino"]
    draft = target.without(SKIPS, kv_tokens=640)
    assert len(draft.pool.arrays) == 2 * (LAYERS - len(SKIPS.attention))
    assert draft.traits.n_layers == LAYERS - len(SKIPS.attention)
    assert draft.pool.capacity == 640
    assert target.without(SKIPS).pool.capacity == target.pool.capacity


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
def test_output_is_that_of_plain_decoding(case: Case, backend: str, k: int) -> None:
    target = case.targets[backend]
    requests = [
        ([1, 2, 3], {"max_tokens": 24}),
        ([4, 9] * 9, {"max_tokens": 9, "temperature": 0.9, "seed": 5}),
        ([5, 6, 30, 31], {"max_tokens": 17, "temperature": 0.7, "top_p": 0.9, "seed": 6, "verification": "coupled"}),
        ([2], {"max_tokens": 1}),
    ]
    engine = fixed(target, layer_skip(target, [], None, skips="attn:2,mlp:2"), k)
    plain = [Engine(target).generate(prompt, **options) for prompt, options in requests]
    for got, wanted in zip(run(engine, *requests), plain):
        assert got.token_ids == wanted.token_ids
    found = engine.generate(*requests[0][:1], **requests[0][1])
    assert found.token_ids == plain[0].token_ids
    assert found.stats.draft_tokens > 0
    engine.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trial_says_what_the_draft_would(case: Case, backend: str) -> None:
    trial = case.targets[backend].trial()
    draft = case.targets[backend].without(SKIPS)
    for skips, model in ((SKIPS, draft), (SkipSet(), case.targets[backend]), (SKIPS, draft)):
        said = [logits(model, list(s.read))[s.start - 1 :].argmax(-1).tolist() for s in SAMPLES]
        assert trial.best(SAMPLES, skips) == [token for each in said for token in each]


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_make_up_the_whole_pass_for_each_alternative(case: Case, backend: str) -> None:
    target = case.targets[backend]
    trial = target.trial()
    assert trial.steps() == tuple(((kind, layer),) for layer in range(LAYERS) for kind in ("attn", "mlp"))
    start = trial.embed(SAMPLES)
    streams = torch.stack([start, 2 * start, start])
    for i in range(2 * LAYERS):
        streams = trial.run(i, SAMPLES, streams)
    at = 0
    for sample in SAMPLES:
        [slot] = target.open(1)
        forest = Forest.pack([DraftTree.chain(sample.read)], min_width=target.traits.min_width)
        wanted = target.score([slot], forest, Need((LAYERS,))).hidden[LAYERS][: len(sample.read)]
        target.close([slot])
        for j in (0, 2):
            assert torch.allclose(streams[j, at : at + len(sample.read)], wanted, atol=1e-3)
        assert not torch.allclose(streams[1, at : at + len(sample.read)], wanted, atol=1e-2)
        at += len(sample.read)


@pytest.mark.parametrize("method", ["swift", "clasp"])
def test_both_backends_find_the_same_set(case: Case, method: str) -> None:
    found = [
        find_skips(case.targets[b], [[1, 2, 3], [7, 8]], method=method, ratio=0.5, tokens=24, max_evaluations=12)
        for b in BACKENDS
    ]
    assert found[0] == found[1]
    assert len(found[0].skips) == 3
    assert 0 <= found[0].agreement <= 1


def test_layers_that_run_both_sublayers_side_by_side(tmp_path: Path) -> None:
    """Torch skips them one by one and plans them whole; the graph does not show them apart."""
    model = deep("GPTNeoXConfig")
    target = wrap("torch", model, tmp_path)
    draft = target.without(SKIPS)
    assert torch.isfinite(logits(draft, TOKENS)).all()
    assert target.trial().steps()[2] == (("attn", 2), ("mlp", 2))
    assert len(find_skips(target, [[1, 2, 3]], method="clasp", ratio=0.5, tokens=16).skips) == 2
    with pytest.raises(Unsupported, match="one by one; use backend=torch"):
        wrap("openvino", model, tmp_path).without(SKIPS)


def test_what_has_no_mlp_module_is_refused(tmp_path: Path) -> None:
    model = deep("OPTConfig", ffn_dim=64, word_embed_proj_dim=32)
    with pytest.raises(Unsupported, match="not one attention and one MLP module"):
        wrap("torch", model, tmp_path).without(SKIPS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ends_and_missing_layers_are_refused(case: Case, backend: str) -> None:
    for text in ("attn:0", "mlp:4", "mlp:5"):
        with pytest.raises(BadRequest, match="name layers 1 to 3 of 5"):
            case.targets[backend].without(SkipSet.parse(text))


def test_windows_stay_with_their_layers(tmp_path: Path) -> None:
    """The layer before a windowed one is left out: the window must not move."""
    kinds = ["full_attention", "full_attention", "sliding_attention", "full_attention", "full_attention"]
    model = deep("Qwen2Config", kinds, sliding_window=3, use_sliding_window=True, max_window_layers=0)
    tokens = [(3 + 7 * i) % VOCAB for i in range(12)]
    skips = SkipSet.parse("attn:1")
    with torch.no_grad():
        wanted = silenced(model, skips)(torch.tensor([tokens])).logits[0]
    for backend in BACKENDS:
        assert torch.allclose(logits(wrap(backend, model, tmp_path).without(skips), tokens), wanted, atol=1e-3), backend
