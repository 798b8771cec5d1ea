"""The sequential head: the module, its format, and decoding with its lane."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F
from toys import ToyCodec, fixed, run
from toys_heads import IDS, LAST, PROMPTS, VOCAB, Watched, agrees_with_plain, compiled, shaken, torch_target

from surefoot.core.engine import Engine
from surefoot.core.protocols import Ends
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.hydra import HydraLane
from surefoot.errors import BadRequest, SurefootError, Unsupported, VocabMismatch
from surefoot.heads.files import read, write
from surefoot.heads.hydra import Hydra, HydraConfig, unit_scale
from surefoot.heads.hydra_files import save_hydra
from surefoot.heads.open import open_head

H, V = 8, 13
SOME = torch.tensor([1, 4, 5, 12])


def ends_of(hidden: int = H, vocab: int = V) -> Ends:
    generator = torch.Generator().manual_seed(3)
    table, head = torch.randn(2, vocab, hidden, generator=generator)
    return Ends(table, head, torch.randn(vocab, generator=generator), lambda x: x)


ENDS = ends_of()
CONFIG = HydraConfig(H, V, taps=(1, 3), blocks=2, inner=5, scale=0.7, depth=6)
TAPS = torch.randn(4, 2 * H, generator=torch.Generator().manual_seed(1))
TOKENS = [torch.tensor([0, 3, 12, 7]), torch.tensor([5, 5, 1, 2])]


def made(ids: torch.Tensor | None = SOME, config: HydraConfig = CONFIG) -> Hydra:
    return shaken(Hydra(config, ENDS, ids))


def rms(x: torch.Tensor) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


def test_forward_is_the_formula():
    module = made()
    w = module.state_dict()
    state = torch.cat([rms(TAPS[:, :H]), rms(TAPS[:, H:])], 1) @ w["start.linear.weight"].T
    torch.testing.assert_close(module.start(TAPS), state)
    for tokens, found in zip(TOKENS, module.unroll(TAPS, TOKENS), strict=True):
        x = torch.cat([state, 0.7 * ENDS.embedding[tokens]], 1) @ w["fc.weight"].T + w["fc.bias"]
        for b in range(2):
            up = rms(x) * w[f"blocks.{b}.norm.weight"] @ w[f"blocks.{b}.up.weight"].T + w[f"blocks.{b}.up.bias"]
            x = x + F.silu(up) @ w[f"blocks.{b}.down.weight"].T + w[f"blocks.{b}.down.bias"]
        after, logits = module(state, ENDS.embedding[tokens])
        state = rms(x) * w["norm.weight"]
        torch.testing.assert_close(found, state)
        torch.testing.assert_close(after, state)
        torch.testing.assert_close(logits, state @ ENDS.head[SOME].T + ENDS.bias[SOME])


def test_a_new_head_starts_at_the_last_tap_and_learns():
    module = Hydra(CONFIG, ENDS, SOME)
    torch.testing.assert_close(module.start(TAPS), 2 * rms(TAPS[:, H:]))
    module.logits(module.unroll(TAPS, TOKENS)[-1]).square().sum().backward()
    still = {name for name, p in module.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    # what is behind a zero weight starts to learn once that weight has moved
    assert still == {f"blocks.{b}.{part}" for b in range(2) for part in ("norm.weight", "up.weight", "up.bias")}


def test_embeddings_are_scaled_to_unit_variance():
    assert float((ENDS.embedding * unit_scale(ENDS)).std()) == pytest.approx(1.0)


@pytest.mark.parametrize("ids", [None, SOME])
def test_round_trip(tmp_path, ids):
    module = made(ids)
    save_hydra(tmp_path, module, facts={"steps": 5})
    kind, again = open_head(tmp_path, ENDS, 2)
    assert kind == "hydra"
    assert again.config == CONFIG
    for a, b in zip(again(TAPS[:, :H], TAPS[:, H:]), module(TAPS[:, :H], TAPS[:, H:]), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(again.start(TAPS), module.start(TAPS))
    found = read(tmp_path)
    assert found.config["surefoot"] == {"steps": 5}
    assert found.config["model_type"] == "surefoot-hydra"
    assert all(t.shape != ENDS.head.shape for t in found.tensors.values()), "the target's tables are not stored"


@pytest.mark.parametrize(
    "change, error, match",
    [
        ({"hidden_size": 6}, Unsupported, "hidden size 6, the target has 8"),
        ({"vocab_size": 99}, VocabMismatch, "vocabulary of 99, the target of 13"),
        ({"taps": []}, BadRequest, "taps"),
        ({"taps": [1, "x"]}, BadRequest, "taps"),
        ({"taps": [1, 9]}, Unsupported, "after layer 9, the target has 2"),
        ({"taps": [1]}, BadRequest, r"start\.linear\.weight"),
        ({"blocks": 3}, BadRequest, r"blocks\.2"),
        ({"inner": 6}, BadRequest, "shape"),
        ({"blocks": "two"}, BadRequest, "blocks"),
        ({"embedding_scale": None}, BadRequest, "embedding_scale"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, change, error, match):
    save_hydra(tmp_path, made())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(error, match=match) as told:
        open_head(tmp_path, ENDS, 2)
    assert "\n" not in str(told.value)


def test_another_target_and_damaged_files_are_refused(tmp_path):
    save_hydra(tmp_path, made())
    with pytest.raises(Unsupported, match="hidden size 8, the target has 6"):
        open_head(tmp_path, ends_of(hidden=6), 2)
    with pytest.raises(VocabMismatch, match="vocabulary of 13, the target of 11"):
        open_head(tmp_path, ends_of(vocab=11), 2)
    found = read(tmp_path)
    for name in found.tensors:
        if name != "draft_ids":
            write(tmp_path / "less", found.config, {n: t for n, t in found.tensors.items() if n != name})
            with pytest.raises(SurefootError, match=name.replace(".", r"\.")):
                open_head(tmp_path / "less", ENDS, 2)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(BadRequest, match="fetch it again"):
        open_head(tmp_path, ENDS, 2)


# ------------------------------------------------------------------------------------------------------------- decoding


@pytest.fixture(scope="module")
def target():
    return torch_target()


@pytest.fixture(scope="module", params=["all", "reduced", "one-tap"])
def module(request, target):
    ids = torch.tensor(IDS) if request.param == "reduced" else None
    taps = (LAST,) if request.param == "one-tap" else (LAST, 0, 1)
    return shaken(Hydra(HydraConfig(32, VOCAB, taps, 1, 24, depth=6), target.ends(), ids), 0.1)


def lane_of(module: Hydra, target, compile=None) -> HydraLane:
    return HydraLane(module, target.ends(), layer=module.config.taps, compile=compile)


def read_root(state):
    vector, new = state
    assert new
    return vector


@pytest.mark.parametrize("compile", [None, compiled], ids=["torch", "compiled"])
def test_greedy_output_is_that_of_plain_decoding(target, module, compile):
    def watched(lane):
        drafter = Watched(lane, target, module.config.taps, read_root)
        seen.append(drafter)
        return drafter

    seen: list[Watched] = []
    agrees_with_plain(target, lambda: lane_of(module, target, compile), wrap=watched, temperature=0.0)
    assert all(d.checked > 10 and not d.blind for d in seen)


@pytest.mark.parametrize("width", [2, 3])
def test_trees(target, module, width):
    agrees_with_plain(target, lambda: lane_of(module, target), lengths=(2, 5), width=width, temperature=0.0)


@pytest.mark.parametrize("width", [1, 2])
def test_seeded_output_is_that_of_plain_decoding(target, module, width):
    options = {"temperature": 1.1, "top_k": 20, "seed": 4}
    agrees_with_plain(target, lambda: lane_of(module, target), lengths=(1, 3, 5), width=width, **options)


@pytest.mark.parametrize("compile", [None, compiled], ids=["torch", "compiled"])
def test_steps_are_the_modules_own(target, module, compile):
    """States of several rows and depths in one call; an earlier state stays as it was when others go on from it."""
    lane = lane_of(module, target, compile)
    engine = fixed(target, HeadDrafter(lane, VOCAB, name="head"), 3)
    rows = [engine.add(p) for p in PROMPTS[:2]]
    while min(len(row.output) for row in rows) < 5:
        engine.step()
    a, b = [lane.root(row) for row in rows]
    paths = {"a": (a, []), "b": (b, [])}

    def wanted(path):
        root, tokens = path
        with torch.no_grad():
            return module.logits(module.unroll(read_root(root), [torch.tensor([t]) for t in tokens])[-1])

    def go(names_tokens):
        states, logits = lane.step([at[name] for name, _ in names_tokens], [t for _, t in names_tokens])
        for (name, token), state, x in zip(names_tokens, states, logits, strict=True):
            new = f"{name}{token}"
            at[new], paths[new] = state, (paths[name][0], [*paths[name][1], token])
            torch.testing.assert_close(x[None], wanted(paths[new]))
        assert not logits.requires_grad

    at = {"a": a, "b": b}
    go([("b", 4), ("a", 7)])
    go([("a7", 1), ("b4", 2), ("a7", 3)])
    go([("a71", 5), ("b", 9), ("a7", 6), ("a73", 5), ("a", 7)])
    go([("b4", 2)])
    engine.close()
    assert lane.root(rows[0]) is None, "the rows ended"


def test_an_echo_and_long_prompts_do_not_shift_the_taps(target, module):
    """Where prompt tokens are scored too, where prefill is cut, and where the cache of a prefix is shared."""
    drafter = Watched(lane_of(module, target), target, module.config.taps, read_root)
    engine = fixed(target, drafter, 3, chunk=8, reuse=True, codec=ToyCodec([f"{i}," for i in range(VOCAB)]))
    prompt = [(7 * i + 3) % VOCAB for i in range(37)]
    options = {"max_tokens": 9, "temperature": 0.0}
    found = run(engine, (prompt, options), (prompt[:5], {**options, "logprobs": 2, "echo": True}))
    assert len(found[1].prompt_logprobs) == 5
    again = run(engine, (prompt, options), ([*prompt[:30], 1], options))
    assert again[0].token_ids == found[0].token_ids
    assert again[0].stats.cached_tokens >= 16
    engine.close()
    assert drafter.checked > 10
    assert not drafter.blind


def test_forks_and_aborts(target, module):
    drafter = Watched(lane_of(module, target), target, module.config.taps, read_root)
    plain = Engine(target)
    [alone] = run(plain, ([*PROMPTS[3], 1, 2], {"max_tokens": 12, "temperature": 0.0}))
    plain.close()
    engine = fixed(target, drafter, 3)
    first, other = engine.add(PROMPTS[3]), engine.add(PROMPTS[0])
    while len(first.output) < 4:
        engine.step()
    fork = engine.fork(first, [4, 4])
    engine.abort(first)
    again = engine.add([*PROMPTS[3], 1, 2])
    while len(again.output) < 12:
        engine.step()
    assert tuple(again.output[:12]) == tuple(alone.token_ids)
    assert len(fork.output) > 1
    for row in (fork, other, again):
        engine.abort(row)
    assert not drafter.lane._features._rows
    engine.close()
    assert drafter.checked
    assert not drafter.blind


def test_the_taps_are_the_heads_own(target, module):
    with pytest.raises(BadRequest, match="taps"):
        HydraLane(module, target.ends(), layer=(0, 1))


def test_on_the_openvino_backend(tmp_path):
    from contract.conftest import tiny

    from surefoot.backends.openvino import OpenVINOModel, from_transformers
    from surefoot.backends.openvino.function import quick

    folder = from_transformers(tiny("LlamaConfig"), tmp_path / "model")
    target = OpenVINOModel(folder, precision="f32", kv_tokens=4096, threads=1, taps=(1, LAST))
    target.adopt(target.probe())
    module = shaken(Hydra(HydraConfig(32, VOCAB, (1, LAST), 1, 24), target.ends(), torch.tensor(IDS)), 0.1)
    agrees_with_plain(target, lambda: lane_of(module, target), lengths=(3,), temperature=0.0)
    agrees_with_plain(target, lambda: lane_of(module, target), lengths=(3,), width=2, temperature=0.9, seed=2)
    for own in (lane_of(module, target, quick), medusa_lane(target, quick)):
        agrees_with_plain(target, lambda own=own: own, lengths=(3,), width=2, temperature=0.0)


def medusa_lane(target, compile):
    from surefoot.drafters.medusa import MedusaLane
    from surefoot.heads.medusa import Medusa, MedusaConfig

    module = shaken(Medusa(MedusaConfig(32, VOCAB, 3), target.ends(), torch.tensor(IDS)), 0.1)
    return MedusaLane(module, target.ends(), layer=LAST, compile=compile)
