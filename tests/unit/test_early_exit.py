"""Exit heads and their lane: a draft reads what one reading of the text would show; files come back; training learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from toys import fixed, run
from toys_exit import LAYER, exit_head, exit_target

from surefoot.core.engine import Engine
from surefoot.core.protocols import Exits
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.errors import BadRequest, Unsupported, VocabMismatch
from surefoot.heads.exit import KINDS, ExitConfig
from surefoot.heads.exit_files import load_exit, save_exit
from surefoot.heads.files import read
from surefoot.train.recipe import Batch, Shape
from surefoot.train.recipes.exit import ExitRecipe

V = 16
IDS = torch.tensor([1, 2, 3, 5, 8, 13])
TEACH = ("kangaroo", "eesd")


@pytest.fixture(scope="module")
def target():
    return exit_target(V)


class Spy(ExitLane):
    """Keeps what it said: (committed and drafted tokens read, logits)."""

    said: list

    def step(self, states, tokens):
        after, logits = super().step(states, tokens)
        self.said += [(state.slot, state, row.clone()) for state, row in zip(after, logits, strict=True)]
        return after, logits


def compiled(module, example, dynamic=()):
    """Results in a buffer that the next call overwrites, as a compiled function's are."""
    buffers: dict = {}

    def function(*arguments):
        out = module(*arguments)
        found = out if isinstance(out, tuple) else (out,)
        for i, x in enumerate(found):
            if buffers.get(i, torch.empty(0)).shape != x.shape:
                buffers[i] = torch.empty_like(x)
            buffers[i].copy_(x)
        return tuple(buffers[i] for i in range(len(found)))

    return function


@pytest.mark.parametrize("compile", [None, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_is_one_reading_of_the_text(target, kind, ids, compile):
    """Whatever was accepted before, each step says what the whole head says of the streams of exactly these tokens."""
    head = exit_head(target, kind, ids)
    lane = Spy(head, target, compile=compile)
    lane.said = []
    engine = fixed(target, HeadDrafter(lane, V, name="early_exit"), 3, 2, 6)
    rows = [engine.add([3, 5, 1, 7, 2][: 2 + i]) for i in range(3)]
    for row in rows:
        row.params = replace(row.params, temperature=0)
        row.limit = 25 + row.id
    checked = 0
    while not all(row.done for row in rows):
        lane.said.clear()
        before = {id(row.slot): list(row.tokens) for row in rows if not row.done}
        engine.step()
        for slot, state, logits in lane.said:
            tokens = [*before[id(slot)][: state.seen], *state.tokens]
            assert before[id(slot)][state.seen] == state.tokens[0]
            streams = torch.stack([target.early.next_logits(tokens[: i + 1]) for i in range(len(tokens))]).float()
            with torch.no_grad():
                want = head(streams[None], torch.arange(len(tokens))[None])[0, -1]
            assert torch.allclose(logits, want, atol=1e-4)
            checked += 1
    assert checked > 50
    assert not lane._caches
    engine.close()


def test_the_context_is_bounded(target):
    lane = ExitLane(exit_head(target, "kangaroo"), target, context=12)
    engine = fixed(target, HeadDrafter(lane, V, name="early_exit"), 3)
    plain = Engine(target).generate([3, 5, 1] * 9, max_tokens=40, temperature=0)
    row = engine.add([3, 5, 1] * 9)
    row.params, row.limit = replace(row.params, temperature=0), 40
    while not row.done:
        engine.step()
        assert all(cache.store.length <= 12 for cache in lane._caches.values())
    assert tuple(row.output) == tuple(plain.token_ids)


def test_a_gap_in_what_was_seen_is_no_trouble(target):
    """A request that shares another's cache: its lane never saw the beginning."""
    lane = ExitLane(exit_head(target, "eesd"), target)
    engine = fixed(target, HeadDrafter(lane, V, name="early_exit"), 3)
    prompt = [(3 * i) % V for i in range(40)]
    first = engine.generate(prompt, max_tokens=12, temperature=0)
    again = engine.generate(prompt, max_tokens=12, temperature=0)
    assert again.stats.cached_tokens > 30
    assert again.token_ids == first.token_ids
    assert again.stats.draft_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_that_of_plain_decoding(target, kind):
    requests = [([3, 5, 1], {"max_tokens": 30, "temperature": 0}), ([4, 4], {"max_tokens": 30, "temperature": 0.9, "seed": 2})]
    want = [done.token_ids for done in run(Engine(target), *requests)]
    for width in (1, 3):
        engine = fixed(target, HeadDrafter(ExitLane(exit_head(target, kind), target), V, name="early_exit"), 4, width, 9)
        assert [done.token_ids for done in run(engine, *requests)] == want


def test_lane_refusals(target):
    assert isinstance(target, Exits)
    with pytest.raises(Unsupported, match="cut=3"):
        ExitLane(exit_head(target, "bare", layer=3), target)
    with pytest.raises(BadRequest, match="layer="):
        ExitLane(exit_head(target, "bare", layer=0), target)
    assert ExitLane(exit_head(target, "bare", layer=0), target, layer=LAYER).layer == LAYER
    for options in ({"depth": 0}, {"context": 2}):
        with pytest.raises(BadRequest, match="give at least"):
            ExitLane(exit_head(target, "bare"), target, **options)


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_our_files_come_back(target, tmp_path, kind, ids):
    head, streams = exit_head(target, kind, ids), torch.randn(1, 7, V)
    save_exit(tmp_path, head, {"note": 1})
    again = load_exit(read(tmp_path), target.ends())
    assert again.config == replace(head.config, attention=again.config.attention)
    assert torch.equal(again(streams, torch.arange(7)[None]), head(streams, torch.arange(7)[None]))
    assert (again.draft_ids is None) if ids is None else torch.equal(again.draft_ids, ids)
    assert json.loads((tmp_path / "config.json").read_text())["surefoot"] == {"note": 1}
    assert not any("rows" in name for name in read(tmp_path).tensors), "the target's table is not stored"


def rename(path: Path, change) -> None:
    tensors = read(path).tensors
    save_file({change(name): x for name, x in tensors.items()}, path / "model.safetensors")


def config(path: Path, **changes) -> None:
    file = path / "config.json"
    said = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in said.items() if v is not None}))


@pytest.mark.parametrize("prefix", ["", "layers.0.", "model.layers.0.", "adapter.", "adapter_model.layers.0."])
@pytest.mark.parametrize("pickle", [False, True])
def test_kangaroo_files_are_read_under_any_prefix(target, tmp_path, prefix, pickle):
    head, streams = exit_head(target, "kangaroo"), torch.randn(1, 7, V)
    save_exit(tmp_path, head, layout="kangaroo")
    rename(tmp_path, lambda name: prefix + name.removeprefix("layers.0."))
    config(tmp_path, exit_layer=None)
    if pickle:
        torch.save(read(tmp_path).tensors | {"head_model.weight": torch.ones(V, V)}, tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(BadRequest, match="pickle=True"):
            read(tmp_path)
    again = load_exit(read(tmp_path, pickle=pickle), target.ends())
    assert (again.config.kind, again.config.exit_layer) == ("kangaroo", 0)
    assert torch.equal(again(streams, torch.arange(7)[None]), head(streams, torch.arange(7)[None]))


@pytest.mark.parametrize(
    "change, error, match",
    [
        (lambda p: config(p, hidden_size=32), Unsupported, "32.*16"),
        (lambda p: config(p, vocab_size=99), VocabMismatch, "99.*16"),
        (lambda p: config(p, num_hidden_layers=2), Unsupported, "2 layers"),
        (lambda p: rename(p, lambda n: n.replace("layers.0", "layers.1")), Unsupported, "several layers"),
        (lambda p: rename(p, lambda n: n.replace("o_proj", "z_proj")), Unsupported, "z_proj"),
        (lambda p: rename(p, lambda n: "lm_head.weight" if n == "norm.weight" else n), BadRequest, "'norm.weight' is missing"),
        (lambda p: config(p, num_attention_heads=2), BadRequest, "shape"),
        (lambda p: config(p, hidden_act="gelu"), Unsupported, "gelu"),
        (lambda p: config(p, model_type="surefoot-exit"), BadRequest, "exit_kind"),
        (lambda p: config(p, model_type="surefoot-exit", exit_kind="kangaroo", draft_vocab_size=5), VocabMismatch, "disagree"),
        (lambda p: (p / "model.safetensors").write_bytes(b"\\x08" * 40), BadRequest, "cut short"),
    ],
)  # fmt: skip
def test_files_that_are_refused(target, tmp_path, change, error, match):
    save_exit(tmp_path, exit_head(target, "kangaroo"), layout="kangaroo")
    load_exit(read(tmp_path), target.ends())
    change(tmp_path)
    with pytest.raises(error, match=match):
        load_exit(read(tmp_path), target.ends())


def test_kinds_and_layouts_that_do_not_go_together(target, tmp_path):
    for kind, ids in (("eesd", None), ("bare", None), ("kangaroo", IDS)):
        with pytest.raises(BadRequest, match="layout='own'"):
            save_exit(tmp_path, exit_head(target, kind, ids), layout="kangaroo")
    with pytest.raises(BadRequest, match="choose one of"):
        save_exit(tmp_path, exit_head(target, "bare"), layout="other")
    with pytest.raises(BadRequest, match="kangaroo, eesd, bare"):
        ExitConfig("other", 2)
    with pytest.raises(BadRequest, match="needs attention"):
        ExitConfig("eesd", 2)


def shape(target, ids=IDS) -> Shape:
    return Shape(V, 4, V, target.ends(), ids)


def batch(target, rows: int = 6, size: int = 24, seed: int = 0) -> Batch:
    """Text that the target wrote, with its streams; the prompts are four tokens long, and rows end at different places."""
    torch.manual_seed(seed)
    tokens = torch.zeros(rows, size, dtype=torch.int64)
    early, last = torch.zeros(rows, size, V), torch.zeros(rows, size, V)
    length = torch.tensor([size - 3 * b for b in range(rows)])
    for b in range(rows):
        text = torch.randint(0, V, (4,)).tolist()
        while len(text) < size:
            text.append(int(target.next_logits(text).argmax()))
        tokens[b] = torch.tensor(text)
        for t in range(size):
            early[b, t], last[b, t] = target.early.next_logits(text[: t + 1]), target.next_logits(text[: t + 1])
    answer = (torch.arange(size) >= 4) & (torch.arange(size) < length[:, None])
    return Batch(tokens, answer.expand(rows, size), {LAYER: early, 5: last}, length)


@pytest.mark.parametrize("kind", TEACH)
def test_training_learns(target, kind):
    recipe = ExitRecipe(layer=LAYER, head_kind=kind, heads=2, inner=24)
    assert recipe.kind == "exit"
    assert recipe.taps(4) == (LAYER, 5)
    torch.manual_seed(1)
    known, data = shape(target), batch(target)
    module = recipe.build(known).train()
    first = float(recipe.loss(module, known, data).detach())
    hits = recipe.right(module, known, data)[0]
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        recipe.loss(module, known, data).backward()
        optimizer.step()
    assert all(p.grad is not None for p in module.parameters())
    assert float(recipe.loss(module, known, data).detach()) < 0.8 * first
    assert recipe.right(module, known, data)[0] > hits


def test_a_new_head_speaks_as_the_bare_exit(target):
    known, streams = shape(target), torch.randn(2, 9, V)
    rms = streams.pow(2).mean(-1, keepdim=True).sqrt()
    for kind in TEACH:
        module = ExitRecipe(layer=LAYER, head_kind=kind).build(known)
        want = 2.0 * (streams / rms)[..., IDS]  # the toy's norm doubles
        assert torch.allclose(module(streams, torch.arange(9)[None]), want, atol=1e-3)


def test_right_counts_chains(target):
    """By hand: places where the text is the target's own, alive while the words before were right."""
    known, data = shape(target), batch(target, rows=3)
    recipe = ExitRecipe(layer=LAYER, words=4)
    module = recipe.build(known).eval()
    with torch.no_grad():
        said = IDS[module(data.hidden[LAYER], torch.arange(24)[None]).argmax(-1)]
    agree = torch.rand(3, 23, generator=torch.Generator().manual_seed(2)) < 0.6
    data.tokens[:, 1:][agree] = said[:, :-1][agree]
    want = [[0, 0] for _ in range(4)]
    for b in range(3):
        for t in range(23):
            for k in range(4):
                if t + k + 1 >= 24 or not all(data.answer[b, t + 1 + j] for j in range(k + 1)):
                    break
                want[k][1] += 1
                if said[b, t + k] != data.tokens[b, t + k + 1]:
                    break
                want[k][0] += 1
    assert [list(pair) for pair in recipe.right(module, known, data)] == want
    assert want[0][0] > want[1][0] > 0


def test_loss_is_over_answers_alone(target):
    known, data = shape(target), batch(target)
    recipe = ExitRecipe(layer=LAYER)
    module = recipe.build(known)
    first = recipe.loss(module, known, data)
    other = data.hidden[5].clone()
    other[:, :3] += 5.0  # what the target says of the prompt
    assert torch.equal(first, recipe.loss(module, known, replace(data, hidden=data.hidden | {5: other})))
    other[:, 6] += 5.0 * torch.randn(V)
    assert not torch.equal(first, recipe.loss(module, known, replace(data, hidden=data.hidden | {5: other})))


@pytest.mark.parametrize(
    "options, match",
    [
        ({"layer": 4}, "1..3"),
        ({"layer": -1}, "layer"),
        ({"head_kind": "bare"}, "nothing to learn"),
        ({"head_kind": "x"}, "kangaroo and eesd"),
        ({"copy": 1}, "eesd"),
        ({"heads": 3}, "heads=3"),
        ({"loss_name": "x"}, "no loss"),
        ({"head_kind": "eesd", "copy": 1}, "own files"),
        ({"words": 0}, "words"),
    ],
)
def test_recipe_refusals(target, options, match):
    with pytest.raises(BadRequest, match=match):
        ExitRecipe(**options).build(shape(target))


def test_a_copied_layer_is_the_targets(target, tmp_path):
    import transformers as tf

    torch.manual_seed(4)
    config = tf.LlamaConfig(
        vocab_size=V, hidden_size=V, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = tf.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    recipe = ExitRecipe(layer=LAYER, head_kind="eesd", copy=-1)
    module = recipe.build(replace(shape(target), folder=tmp_path)).eval()
    with torch.no_grad():
        states = model.model(torch.tensor([[1, 5, 2, 9]]), output_hidden_states=True).hidden_states
        found = module.ready(states[-2], torch.arange(4)[None])
    assert torch.allclose(found, states[-1], atol=1e-5), "fed what its original reads, it says what the model says"
    recipe.save(tmp_path / "head", module, shape(target), {"seed": 1})
    assert load_exit(read(tmp_path / "head"), target.ends()).config.kind == "eesd"
