"""Medusa heads: the module, its four layouts on disk, and decoding with its lane."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F
from toys import fixed, run
from toys_heads import IDS, LAST, PROMPTS, VOCAB, Watched, agrees_with_plain, compiled, shaken, torch_target

from surefoot.core.engine import Engine
from surefoot.core.protocols import Ends
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.medusa import MedusaLane
from surefoot.errors import BadRequest, SurefootError, Unsupported, VocabMismatch
from surefoot.heads.files import read, write
from surefoot.heads.medusa import Medusa, MedusaConfig
from surefoot.heads.medusa_files import load_medusa, save_medusa
from surefoot.heads.open import open_head

H, V = 8, 13
SOME = torch.tensor([1, 4, 5, 12])
HIDDEN = torch.randn(5, H, generator=torch.Generator().manual_seed(2))


def ends_of(hidden: int = H, vocab: int = V, bias: bool = False) -> Ends:
    generator = torch.Generator().manual_seed(3)
    table, head = torch.randn(2, vocab, hidden, generator=generator)
    return Ends(table, head, torch.randn(vocab, generator=generator) if bias else None, lambda x: x)


ENDS = ends_of()


def made(heads: int = 3, layers: int = 1, own: bool = False, ids: torch.Tensor | None = None, ends: Ends = ENDS) -> Medusa:
    return shaken(Medusa(MedusaConfig(H, V, heads, layers, own), ends, ids))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("own", [False, True])
def test_forward_is_head_by_head_and_layer_by_layer(layers, own):
    ends = ends_of(bias=True)
    module = made(layers=layers, own=own, ids=SOME, ends=ends)
    found = module(HIDDEN)
    assert found.shape == (5, 3, 4)
    for i in range(3):
        x = HIDDEN
        for j in range(layers):
            x = x + F.silu(x @ module.weight[i, j].T + module.bias[i, j])
        wanted = x @ module.tables[i].T if own else x @ ends.head[SOME].T + ends.bias[SOME]
        torch.testing.assert_close(found[:, i], wanted)


def test_an_untrained_head_says_what_the_target_says():
    for own in (False, True):
        module = Medusa(MedusaConfig(H, V, 2, 2, own), ENDS)
        torch.testing.assert_close(module(HIDDEN)[:, 1], HIDDEN @ ENDS.head.T)
        module(HIDDEN).sum().backward()
        assert module.weight.grad.abs().sum() > 0


def test_the_targets_tables_are_neither_trained_nor_stored():
    module = made(ids=SOME)
    assert {name for name, _ in module.named_parameters()} == {"weight", "bias"}
    assert module.state_dict().keys() == {"weight", "bias"}
    assert Medusa(MedusaConfig(H, V, 2), ENDS).head is ENDS.head, "a whole head is not copied"


LAYOUTS = [
    ("tied", {}, {}),
    ("tied", {"ids": SOME}, {}),
    ("tied", {"layers": 2}, {}),
    ("medusa1", {"own": True}, {}),
    ("medusa1", {"own": True, "layers": 2, "ids": SOME}, {}),
    ("medusa2", {"own": True}, {"base": {"model.embed_tokens.weight": torch.ones(V, H)}, "shards": 3}),
    ("medusa2", {"own": True, "layers": 2}, {}),
    ("vllm", {"own": True}, {}),
    ("vllm", {"own": True, "ids": SOME, "layers": 2}, {}),
]


@pytest.mark.parametrize("layout, how, more", LAYOUTS)
def test_layouts_round_trip(tmp_path, layout, how, more):
    module = made(**how)
    save_medusa(tmp_path, module, layout=layout, facts={"steps": 5}, **more)
    kind, again = open_head(tmp_path, ENDS, 2)
    assert kind == "medusa"
    assert again.config == module.config
    assert torch.equal(again(HIDDEN), module(HIDDEN))
    assert (again.draft_ids is None) == (module.draft_ids is None)
    assert module.draft_ids is None or torch.equal(again.draft_ids, SOME)
    assert read(tmp_path).config["surefoot"] == {"steps": 5}


def test_names_are_those_of_the_public_layouts(tmp_path):
    expected = {
        "medusa1": ("medusa_lm_head.safetensors", {"0.0.linear.weight", "0.0.linear.bias", "0.1.weight"}),
        "medusa2": (
            "model.safetensors",
            {"medusa_head.0.0.linear.weight", "medusa_head.0.0.linear.bias", "medusa_head.0.1.weight"},
        ),
        "vllm": ("model.safetensors", {"blocks.0.layers.0.weight", "blocks.0.layers.0.bias", "lm_heads.0.weight", "token_map"}),
    }
    for layout, (file, names) in expected.items():
        save_medusa(tmp_path / layout, made(1, own=True, ids=SOME if layout == "vllm" else None), layout=layout)
        assert (tmp_path / layout / file).is_file()
        assert read(tmp_path / layout).tensors.keys() == names
    save_medusa(tmp_path / "tied", made(1, ids=SOME))
    assert read(tmp_path / "tied").tensors.keys() == {"0.0.linear.weight", "0.0.linear.bias", "draft_ids"}


def test_heads_are_counted_from_the_tensors(tmp_path):
    save_medusa(tmp_path, made(5, own=True), layout="medusa1")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 4, "version": "1"}))
    assert open_head(tmp_path, ENDS, 2)[1].config == MedusaConfig(H, V, 5, 1, own=True)


def test_a_whole_models_tensors_stay_on_disk(tmp_path, monkeypatch):
    module = made(own=True)
    base = {"model.embed_tokens.weight": torch.ones(V, H), "lm_head.weight": torch.ones(V, H)}
    save_medusa(tmp_path, module, layout="medusa2", base=base, shards=2)
    seen = []
    monkeypatch.setattr("surefoot.heads.medusa_files.load_medusa", lambda c, e: seen.append(c) or load_medusa(c, e))
    assert torch.equal(open_head(tmp_path, ENDS, 2)[1](HIDDEN), module(HIDDEN))
    assert all(name.startswith("medusa_head.") for name in seen[0].tensors)


def test_variants_of_the_vllm_layout(tmp_path):
    module = made(2, own=True, ids=SOME)
    save_medusa(tmp_path / "a", module, layout="vllm")
    found = read(tmp_path / "a")
    # rows of the whole vocabulary, of which the map chooses
    whole = dict(found.tensors)
    for i in range(2):
        whole[f"lm_heads.{i}.weight"] = torch.zeros(V, H).index_copy(0, SOME, found.tensors[f"lm_heads.{i}.weight"])
    write(tmp_path / "b", found.config, {f"medusa_heads.{name}": t for name, t in whole.items()})
    # one table for all heads, no biases, a map that is not used
    one = {n: t for n, t in found.tensors.items() if "bias" not in n and n != "lm_heads.1.weight"}
    one["lm_heads.0.weight"] = whole["lm_heads.0.weight"]
    write(tmp_path / "c", found.config | {"original_lm_head": True, "truncated_vocab_size": V}, one)
    assert torch.equal(open_head(tmp_path / "b", ENDS, 2)[1](HIDDEN), module(HIDDEN))
    shared = open_head(tmp_path / "c", ENDS, 2)[1]
    assert shared.draft_ids is None
    assert shared.bias.abs().sum() == 0
    assert torch.equal(shared.tables[0], shared.tables[1])


@pytest.mark.parametrize("layout, how, more", LAYOUTS)
@pytest.mark.parametrize(
    "change, error, match",
    [
        ("hidden", Unsupported, "hidden size 8, the target has 6"),
        ("vocab", VocabMismatch, "1[123]"),
        ("missing", BadRequest, "missing"),
        ("shape", SurefootError, "shape|hidden size 7"),
        ("cut", BadRequest, "fetch it again"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, layout, how, more, change, error, match):
    save_medusa(tmp_path, made(**how), layout=layout, **more)
    ends = ENDS
    if change == "hidden":
        ends = ends_of(hidden=6)
    elif change == "vocab":
        ends = ends_of(vocab=11)
    elif change == "cut":
        file = max(tmp_path.glob("*.safetensors"), key=lambda f: f.stat().st_size)
        file.write_bytes(file.read_bytes()[:-9])
    else:
        found = read(tmp_path)
        name = next(
            n
            for n in sorted(found.tensors)
            if n.endswith((".1.0.linear.weight", "1.0.linear.weight", "blocks.1.layers.0.weight"))
        )
        if change == "missing":
            del found.tensors[name]
        else:
            found.tensors[name] = torch.zeros(H, H - 1)
        for file in tmp_path.iterdir():
            file.unlink()
        write(tmp_path, found.config, found.tensors)
    with pytest.raises(error, match=match) as told:
        open_head(tmp_path, ends, 2)
    assert "\n" not in str(told.value)


def test_a_missing_table_or_map_is_refused(tmp_path):
    save_medusa(tmp_path / "a", made(own=True), layout="medusa1")
    found = read(tmp_path / "a")
    del found.tensors["1.1.weight"]
    write(tmp_path / "b", found.config, found.tensors)
    with pytest.raises(BadRequest, match=r"1\.1\.weight"):
        open_head(tmp_path / "b", ENDS, 2)
    save_medusa(tmp_path / "c", made(own=True, ids=SOME), layout="medusa1")
    found = read(tmp_path / "c")
    del found.tensors["draft_ids"]
    write(tmp_path / "d", found.config, found.tensors)
    with pytest.raises(VocabMismatch, match="say 4 tokens, the target 13"):
        open_head(tmp_path / "d", ENDS, 2)


def test_pickled_public_files(tmp_path):
    module = made(own=True)
    save_medusa(tmp_path, module, layout="medusa1")
    tensors = read(tmp_path).tensors
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    torch.save({name: t.to(torch.float32) for name, t in tensors.items()}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(BadRequest, match="pickle=True"):
        open_head(tmp_path, ENDS, 2)
    assert torch.equal(open_head(tmp_path, ENDS, 2, pickle=True)[1](HIDDEN), module(HIDDEN))


def test_layouts_that_cannot_hold_the_heads(tmp_path):
    for own, layout in ((True, "tied"), (False, "medusa1"), (False, "vllm"), (True, "medusa9")):
        with pytest.raises(BadRequest, match="layout"):
            save_medusa(tmp_path, made(own=own), layout=layout)


# ------------------------------------------------------------------------------------------------------------- decoding


@pytest.fixture(scope="module")
def target():
    return torch_target()


@pytest.fixture(scope="module", params=["all", "reduced", "own"])
def module(request, target):
    ids = torch.tensor(IDS) if request.param == "reduced" else None
    return shaken(Medusa(MedusaConfig(32, VOCAB, 3, 1, own=request.param == "own"), target.ends(), ids), 0.1)


def read_root(state):
    return state[0].hidden


@pytest.mark.parametrize("compile", [None, compiled], ids=["torch", "compiled"])
def test_greedy_output_is_that_of_plain_decoding(target, module, compile):
    ends = target.ends()

    def watched(lane):
        drafter = Watched(lane, target, (LAST,), read_root)
        seen.append(drafter)
        return drafter

    seen: list[Watched] = []
    agrees_with_plain(target, lambda: MedusaLane(module, ends, layer=LAST, compile=compile), wrap=watched, temperature=0.0)
    assert all(d.checked > 10 and not d.blind for d in seen)


@pytest.mark.parametrize("width", [2, 3])
def test_trees(target, module, width):
    ends = target.ends()
    agrees_with_plain(target, lambda: MedusaLane(module, ends, layer=LAST), lengths=(2, 5), width=width, temperature=0.0)


@pytest.mark.parametrize("width", [1, 2])
def test_seeded_output_is_that_of_plain_decoding(target, module, width):
    ends = target.ends()
    lane = lambda: MedusaLane(module, ends, layer=LAST)  # noqa: E731
    agrees_with_plain(target, lane, lengths=(1, 3, 5), width=width, temperature=1.1, top_k=20, seed=4)


@pytest.mark.parametrize("compile", [None, compiled], ids=["torch", "compiled"])
def test_a_step_is_the_heads_own_word(target, module, compile):
    """Head d at depth d, in the order of the states, whatever the tokens."""
    lane = MedusaLane(module, target.ends(), layer=LAST, compile=compile)
    drafter = HeadDrafter(lane, VOCAB, name="head")
    engine = fixed(target, drafter, 3)
    rows = [engine.add(p) for p in PROMPTS[:2]]
    while min(len(row.output) for row in rows) < 5:
        engine.step()
    roots = [lane.root(row) for row in rows]
    with torch.no_grad():
        wanted = module(torch.cat([read_root(root) for root in roots]))
    one, first = lane.step([roots[1], roots[0]], [1, 2])
    torch.testing.assert_close(first, wanted[[1, 0], 0])
    lane.step([lane.root(rows[0])], [3])  # other rows' guesses are made in between
    two, second = lane.step([one[0], one[1], one[0]], [7, 8, 9])
    torch.testing.assert_close(second, wanted[[1, 0, 1], 1])
    torch.testing.assert_close(lane.step(two[:1], [0])[1], wanted[[1], 2])
    torch.testing.assert_close(lane.step(one[1:], [0])[1], wanted[[0], 1])
    assert not second.requires_grad
    assert lane.depth == 3
    engine.close()
    assert lane.root(rows[0]) is None, "the rows ended"


def test_forks_and_aborts(target, module):
    lane = MedusaLane(module, target.ends(), layer=LAST)
    drafter = Watched(lane, target, (LAST,), read_root)
    plain = Engine(target)
    [alone] = run(plain, ([*PROMPTS[3], 1, 2], {"max_tokens": 12, "temperature": 0.0}))
    plain.close()
    engine = fixed(target, drafter, 3)
    first = engine.add(PROMPTS[3])
    other = engine.add(PROMPTS[0])
    while len(first.output) < 4:
        engine.step()
    fork = engine.fork(first, [4, 4])
    engine.abort(first)
    again = engine.add([*PROMPTS[3], 1, 2])
    while len(again.output) < 12:
        engine.step()
    assert tuple(again.output[:12]) == tuple(alone.token_ids)
    assert len(fork.output) > 1
    engine.abort(fork)
    engine.abort(other)
    engine.close()
    assert drafter.checked
    assert not drafter.blind
    assert not lane._features._rows


def test_a_head_that_knows_the_future_is_believed(target):
    """The first drafted token is head 0's: a head that copies the target's own next token is accepted only there."""
    engine = Engine(target)
    [plain] = run(engine, (PROMPTS[0], {"max_tokens": 30, "temperature": 0.0}))
    engine.close()
    tokens = [*PROMPTS[0], *plain.token_ids]

    class Oracle(MedusaLane):
        def step(self, states, tokens_read):
            after, logits = super().step(states, tokens_read)
            logits = torch.zeros_like(logits)
            for i, (row, (_, depth)) in enumerate(zip(self.rows, states)):
                at = len(row.tokens) + depth
                logits[i, tokens[at] if at < len(tokens) else 0] = 9.0
            return after, logits

        def root(self, row):
            self.rows = [row]
            return super().root(row)

    lane = Oracle(made_for(target), target.ends(), layer=LAST)
    engine = fixed(target, HeadDrafter(lane, VOCAB, name="head"), 3)
    [found] = run(engine, (PROMPTS[0], {"max_tokens": 30, "temperature": 0.0}))
    engine.close()
    assert found.token_ids == plain.token_ids
    assert found.stats.accepted_tokens == found.stats.draft_tokens > 15


def made_for(target) -> Medusa:
    return shaken(Medusa(MedusaConfig(32, VOCAB, 3), target.ends()))
