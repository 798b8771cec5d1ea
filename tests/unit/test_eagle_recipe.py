"""Training EAGLE heads: the loss is the formula, falls, leaves the target's tables alone, and hits are counted right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toys_train
from eagle_toys import Fed
from tiny_llama import tiny_llama
from toys_train import LAST, LAYERS, VOCAB, following, shape

from surefoot.drafters.eagle import EagleLane
from surefoot.errors import BadRequest
from surefoot.heads.eagle_layer import logits
from surefoot.heads.open import open_head
from surefoot.train.recipe import Batch, Shape
from surefoot.train.recipes import recipe_class
from surefoot.train.recipes.eagle import Eagle3Recipe, EagleRecipe
from surefoot.train.recipes.eagle_unroll import unroll

RECIPES = {
    "eagle": EagleRecipe(steps=3),
    "eagle3": Eagle3Recipe(steps=3),
    "eagle3-own": Eagle3Recipe(steps=2, tied=False, layout="speculators"),
}
TAPS = (0, 1, 2, LAST)


def batch(rows: int = 6, seed: int = 0, noise: float = 0.05) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    made = [toys_train.document(12 + i, 2 + i % 3, generator, noise, TAPS) for i in range(rows)]
    width = max(len(d.tokens) for d in made)
    tokens, answer = torch.zeros(rows, width, dtype=torch.int64), torch.zeros(rows, width, dtype=torch.bool)
    hidden = {tap: torch.zeros(rows, width, toys_train.HIDDEN) for tap in TAPS}
    for i, d in enumerate(made):
        n = len(d.tokens)
        tokens[i, :n], answer[i, d.answer : n] = d.tokens.long(), True
        for tap in TAPS:
            hidden[tap][i, :n] = d.hidden[tap]
    return Batch(tokens, answer, hidden, torch.tensor([len(d.tokens) for d in made]))


@pytest.fixture(params=list(RECIPES))
def recipe(request):
    return RECIPES[request.param]


def test_registered():
    assert recipe_class("eagle") is EagleRecipe
    assert recipe_class("eagle3") is Eagle3Recipe
    assert EagleRecipe().kind == "eagle"
    assert Eagle3Recipe().kind == "eagle3"
    assert Eagle3Recipe().taps(30) == (2, 15, 27, 31)


def test_the_loss_falls_and_the_head_learns_the_cycle(recipe):
    torch.manual_seed(0)
    own, data = shape(), batch()
    module = recipe.build(own)
    table = own.ends.head.clone()
    first = float(recipe.loss(module, own, data).detach())
    optimizer = torch.optim.AdamW([w for w in module.parameters() if w.requires_grad], 3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        loss = recipe.loss(module, own, data)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.6 * first
    assert torch.equal(own.ends.head, table)
    assert all(w.grad is not None for w in module.parameters())
    hits = recipe.right(module, own, batch(seed=1, noise=0.0))
    assert hits[0][0] > 0.9 * hits[0][1]


def test_loss_is_the_formula():
    """Sum over steps of decay^k times the mean cross-entropy against the target's law, where the word is the target's own."""
    own, data = replace(shape(), draft_ids=torch.arange(3, 17)), batch()
    recipe = EagleRecipe(steps=3, feature_weight=0.25, decay=0.5, chunk=7)
    torch.manual_seed(1)
    module = recipe.build(own)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        found = unroll(module, data.tokens, data.hidden[LAST], 3)
        said = [logits(module, hidden) for hidden in found]
        rows = own.ends.head[own.draft_ids]
        wanted = 0.0
        for k in range(3):
            errors, features = [], []
            for b in range(len(data.tokens)):
                for p in range(int(data.length[b]) - 2 - k):
                    if data.answer[b, p + 2 + k]:
                        p_target = (rows @ data.hidden[LAST][b, p + 1 + k]).softmax(0)
                        if data.answer[b, p + 2]:  # roots are places whose first word counts
                            errors.append(-(p_target * said[k][b, p].log_softmax(0)).sum())
                        features.append(torch.nn.functional.smooth_l1_loss(found[k][b, p], data.hidden[LAST][b, p + 1 + k]))
            wanted += 0.5**k * (_mean(errors) + 0.25 * _mean(features))
    found_loss = recipe.loss(module, own, data)
    assert float(found_loss.detach()) == pytest.approx(float(wanted), rel=1e-5)


def _mean(values):
    return torch.stack(values).mean()


def test_hits_are_counted_along_the_text(monkeypatch):
    """A head that is right but at known (row, base, word): word k counts where the words before it were right."""
    own, data = shape(), batch(rows=3, noise=0.0)
    wrong = {(0, 4, 0), (1, 5, 1), (2, 3, 0), (2, 6, 2)}
    B, T = data.tokens.shape

    def rigged(head, tokens, features, steps):
        found = []
        for k in range(steps):
            words = tokens.roll(-2 - k, 1).clone()
            for b, p, step in wrong:
                if step == k:
                    words[b, p] = (words[b, p] + 1) % VOCAB
            found.append(own.ends.head[words])  # rows are orthogonal, so their own token is the likeliest
        return found

    monkeypatch.setattr("surefoot.train.recipes.eagle.unroll", rigged)
    module = EagleRecipe().build(own)
    found = EagleRecipe(steps=3).right(module, own, data)
    expected = []
    alive = [(b, p) for b in range(B) for p in range(T) if p + 2 < data.length[b] and data.answer[b, p + 2]]
    for k in range(3):
        alive = [(b, p) for b, p in alive if p + 2 + k < data.length[b]]
        hits = [(b, p) for b, p in alive if (b, p, k) not in wrong]
        expected.append((len(hits), len(alive)))
        alive = hits
    assert list(found)[:3] == expected
    assert expected[0][0] < expected[0][1]
    assert expected[1][0] < expected[1][1]


def test_a_trained_head_decodes_as_it_was_trained(recipe, tmp_path):
    """Saved, loaded and stepped by the lane, the head says what it said in training, word by word."""
    torch.manual_seed(2)
    own, data = replace(shape(), draft_ids=torch.arange(2, VOCAB - 1)), batch()
    module = recipe.build(own)
    optimizer = torch.optim.AdamW([w for w in module.parameters() if w.requires_grad], 3e-3)
    for _ in range(5):
        optimizer.zero_grad()
        recipe.loss(module, own, data).backward()
        optimizer.step()
    recipe.save(tmp_path, module, own, {"seed": 2})
    kind, head = open_head(tmp_path, own.ends, LAYERS)
    assert kind == recipe.kind
    assert torch.equal(head.draft_ids, own.draft_ids)
    features = torch.cat([data.hidden[tap] for tap in module.taps(LAYERS)], -1)
    with torch.no_grad():
        said = [logits(module, x) for x in unroll(module, data.tokens, features, 3)]
    b, p = 3, 5
    lane = EagleLane(head, LAYERS)
    fed = Fed(lane, data.tokens[b].tolist(), {tap: x[b] for tap, x in data.hidden.items()})
    fed.see(p + 1, prefill=True)
    state = lane.root(fed.row)
    for k in range(3):
        (state,), found = lane.step([state], [int(data.tokens[b, p + 1 + k])])
        torch.testing.assert_close(found[0], said[k][b, p], rtol=1e-3, atol=1e-3)


def test_a_warm_head_says_what_the_target_said_before():
    own, data = shape(), batch(noise=0.0)
    for recipe in (EagleRecipe(), EagleRecipe(warm=False)):
        torch.manual_seed(3)
        module = recipe.build(own)
        with torch.no_grad():
            module.fc.weight[:, : own.hidden_size] = 0
            first = unroll(module, data.tokens, data.hidden[LAST], 1)[0]
        says = logits(module, first).argmax(-1)
        same = [int(says[b, p]) == following(int(data.tokens[b, p])) for b in range(6) for p in range(int(data.length[b]))]
        assert all(same) == recipe.warm


def test_a_warm_eagle3_head_goes_on_where_the_deepest_tap_ends(tmp_path):
    """Of three layers the deepest tap is the embedding; the head makes of it what the first layer and the final norm do."""
    model = tiny_llama(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    from surefoot.backends.torch import TorchModel

    own = TorchModel(model).ends()
    sizes = Shape(32, 3, 53, own, torch.arange(53), folder=tmp_path)
    torch.manual_seed(0)
    module = Eagle3Recipe().build(sizes)
    tokens = torch.randint(0, 53, (2, 12))
    taps = model(tokens, output_hidden_states=True).hidden_states
    data = Batch(
        tokens, torch.ones(2, 12, dtype=torch.bool), {0: taps[0], 1: taps[1], 2: taps[2], 4: taps[3]}, torch.tensor([12, 12])
    )
    with torch.no_grad():
        Eagle3Recipe().loss(module, sizes, data)
        assert module.taps(3) == (2, 1, 0)
        module.fc.weight[:, :64] = 0  # the other taps, and the embedding, have a little say at first
        for part in (module.layer.self_attn.q_proj, module.layer.self_attn.k_proj, module.layer.self_attn.v_proj):
            part.weight[:, :32] = 0
        features = torch.cat([data.hidden[tap] for tap in (2, 1, 0)], -1)
        length = features[..., -32:].square().mean((0, 1)).mean().sqrt()
        module.fc.weight.mul_(length)  # the length that the layer was trained on; a fresh head need not keep it
        found = module.ready(unroll(module, tokens, features, 1)[0])
        torch.testing.assert_close(found, own.norm(taps[1].flatten(0, 1)).view(2, 12, 32), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: EagleRecipe(steps=0), "steps"),
        (lambda: EagleRecipe(loss_name="mse"), "mse"),
        (lambda: EagleRecipe(feature_weight=-1.0), "feature_weight"),
        (lambda: Eagle3Recipe(intermediate_size=-1), "intermediate_size"),
        (lambda: Eagle3Recipe(layout="zip"), "layout"),
    ],
)
def test_options_out_of_range_are_refused(make, says):
    with pytest.raises(BadRequest, match=says):
        make()
