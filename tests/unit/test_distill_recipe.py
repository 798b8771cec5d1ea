"""Training of a distilled draft: its loss, its acceptance, and what is saved."""

from __future__ import annotations

import pytest
import torch
from tiny_llama import VOCAB, save_gguf, tiny_llama

from surefoot.backends.torch import TorchModel
from surefoot.errors import BadRequest
from surefoot.heads.distilled_files import load_distilled
from surefoot.heads.files import read
from surefoot.train.losses import LOSSES
from surefoot.train.recipe import Batch, Shape
from surefoot.train.recipes import recipe_class
from surefoot.train.recipes.distill import DistillRecipe


@pytest.fixture(scope="module")
def model():
    return tiny_llama(initializer_range=0.2)


@pytest.fixture(scope="module")
def shape(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return Shape(32, 3, VOCAB, TorchModel(model).ends(), torch.arange(VOCAB), "tiny", folder)


def few(shape, ids):
    return Shape(32, 3, VOCAB, shape.ends, torch.tensor(ids), "tiny", shape.folder)


@torch.no_grad()
def batch_of(model, rows=6, length=24, greedy=True, seed=0):
    """Rows that the model says; the first 4 tokens are given, and the last rows are shorter."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (rows, 4), generator=generator)
    while tokens.shape[1] < length:
        logits = model(tokens).logits[:, -1]
        new = logits.argmax(-1, keepdim=True) if greedy else torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, new], 1)
    sizes = torch.tensor([length - b for b in range(rows)])
    at = torch.arange(length)
    answer = (at >= 4) & (at < sizes[:, None])
    hidden = model.model(tokens).last_hidden_state
    return Batch(tokens.where(at < sizes[:, None], torch.tensor(0)), answer, {4: hidden}, sizes)


def counts(rows):
    """Places where position k is asked, all before it being right: answers of n tokens have n - k of them."""
    return [sum(24 - b - 4 - k for b in range(rows)) for k in range(5)]


def test_all_layers_are_always_right(model, shape):
    recipe = DistillRecipe(layers="0,1,2")
    module, batch = recipe.build(shape), batch_of(model)
    assert recipe.right(module, shape, batch) == [(n, n) for n in counts(6)]
    assert recipe.taps(3) == (4,)


def test_positions_follow_from_the_ones_before(model, shape):
    """By hand: a place counts at k only where all earlier drafted tokens are right and the text goes on."""
    recipe = DistillRecipe(layers=(0, -1))
    module, batch = recipe.build(shape), batch_of(model)
    with torch.no_grad():
        said = module.says(module(batch.tokens)).argmax(-1)
    want = [[0, 0] for _ in range(5)]
    for b in range(6):
        for t in range(23):
            for k in range(5):
                if t + 1 + k >= 24 or not batch.answer[b, t + 1 + k] or not batch.answer[b, t + 1]:
                    break
                want[k][1] += 1
                if said[b, t + k] != batch.tokens[b, t + 1 + k]:
                    break
                want[k][0] += 1
    found = [list(pair) for pair in recipe.right(module, shape, batch)]
    assert found == want
    assert 0 < found[0][0] < found[0][1]


@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_that_of_the_laws_at_answer_tokens(model, shape, name):
    shape = few(shape, [3, 1, 40, 22])
    recipe, batch = DistillRecipe(loss_name=name, chunk=7), batch_of(model, greedy=False)
    module = recipe.build(shape)
    own = batch.answer[:, 1:]
    with torch.no_grad():
        said = module.says(module(batch.tokens))[:, :-1][own]
        told = model(batch.tokens).logits[:, :-1][own][:, shape.draft_ids]
    loss = recipe.loss(module, shape, batch)
    assert loss.item() == pytest.approx(LOSSES[name](said, told).item(), rel=1e-4)
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())


def test_padding_and_prompts_teach_nothing(model, shape):
    recipe, batch = DistillRecipe(), batch_of(model)
    module = recipe.build(shape)
    want, right = recipe.loss(module, shape, batch).item(), recipe.right(module, shape, batch)
    at = torch.arange(24)
    batch.tokens[at >= batch.length[:, None]] = 9
    for hidden in batch.hidden.values():
        hidden[:, :3] = 9
        hidden[at >= batch.length[:, None]] = torch.nan
    assert recipe.loss(module, shape, batch).item() == pytest.approx(want, rel=1e-6)
    assert recipe.right(module, shape, batch) == right


def test_a_batch_without_answers(model, shape):
    recipe, batch = DistillRecipe(), batch_of(model)
    batch.answer[:] = False
    module = recipe.build(shape)
    assert recipe.loss(module, shape, batch).item() == 0
    assert recipe.right(module, shape, batch) == [(0, 0)] * 5


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_falls_and_acceptance_rises(model, shape, name):
    torch.manual_seed(0)
    recipe, batches = DistillRecipe(layers=[0, 2], loss_name=name), [batch_of(model, 16, seed=s) for s in range(6)]
    held = batch_of(model, 16, seed=99)
    module = recipe.build(shape)
    before = recipe.loss(module, shape, held).item(), recipe.right(module, shape, held)[0][0]
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    for step in range(60):
        optimizer.zero_grad()
        recipe.loss(module, shape, batches[step % 6]).backward()
        optimizer.step()
    assert recipe.loss(module, shape, held).item() < before[0]
    assert recipe.right(module, shape, held)[0][0] > before[1]


def test_what_is_saved_is_what_was_trained(model, shape, tmp_path):
    shape = few(shape, [3, 1, 40, 22])
    recipe, batch = DistillRecipe(), batch_of(model)
    module = recipe.build(shape)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.1)
    recipe.save(tmp_path, module, shape, {"kind": recipe.kind})
    found = read(tmp_path)
    assert found.config["surefoot"] == {"kind": "distilled"}
    back = load_distilled(found, shape.ends)
    assert torch.equal(back.says(back(batch.tokens)), module.says(module(batch.tokens)))
    assert back.draft_ids.tolist() == [3, 1, 40, 22]


def test_from_a_gguf_file(model, shape, tmp_path):
    file = save_gguf(model, tmp_path / "m.gguf")
    module = DistillRecipe(layers=(0, 1, 2)).build(Shape(32, 3, VOCAB, shape.ends, shape.draft_ids, "tiny", file))
    assert module.draft_ids is None
    batch = batch_of(model)
    assert DistillRecipe().right(module, shape, batch) == [(n, n) for n in counts(6)]


@pytest.mark.parametrize(
    "options, match",
    [
        ({"layers": "0,x"}, "layers"),
        ({"layers": 3}, "layers"),
        ({"loss_name": "l2"}, "l2"),
        ({"words": 0}, "words"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_bad_options(options, match):
    with pytest.raises(BadRequest, match=match):
        recipe_class("distill")(**options)


def test_targets_that_cannot_be_copied(model, shape, tmp_path):
    with pytest.raises(BadRequest, match="files"):
        DistillRecipe().build(Shape(32, 3, VOCAB, shape.ends, shape.draft_ids))
    with pytest.raises(BadRequest, match="3 layers"):
        DistillRecipe(layers=(0, 5)).build(shape)
    tiny_llama(hidden_size=64).save_pretrained(tmp_path)
    with pytest.raises(BadRequest, match=r"64.*32"):
        DistillRecipe().build(Shape(32, 3, VOCAB, shape.ends, shape.draft_ids, "tiny", tmp_path))
