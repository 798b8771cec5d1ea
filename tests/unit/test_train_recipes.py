"""Medusa and Hydra recipes: the places they learn from, their losses by brute force, and what they learn of a toy target."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import toys_train as toys
from torch.nn.functional import linear

from surefoot.core.protocols import Ends
from surefoot.errors import BadRequest
from surefoot.heads.files import read
from surefoot.heads.hydra_files import load_hydra
from surefoot.heads.medusa_files import load_medusa
from surefoot.train.evaluate import evaluate
from surefoot.train.loop import train
from surefoot.train.losses import LOSSES
from surefoot.train.recipe import Batch
from surefoot.train.recipes import RECIPES, recipe_class
from surefoot.train.recipes.chain import chains
from surefoot.train.recipes.hydra import HydraRecipe
from surefoot.train.recipes.medusa import MedusaRecipe
from surefoot.train.settings import Settings
from surefoot.train.windows import Windows


def batch(taps=(toys.LAST,)):
    """A row of 9 tokens whose own begin at 3, and one of 6 whose own begin at 1."""
    torch.manual_seed(0)
    tokens = torch.randint(toys.VOCAB, (2, 9))
    answer = torch.zeros(2, 9, dtype=torch.bool)
    answer[0, 3:9] = True
    answer[1, 1:6] = True
    tokens[1, 6:] = 0
    return Batch(tokens, answer, {tap: torch.randn(2, 9, toys.HIDDEN) for tap in taps}, torch.tensor([9, 6]))


def shape(ids=None):
    """As the toys', with a bias."""
    torch.manual_seed(9)
    plain = toys.shape(ids)
    return dataclasses.replace(plain, ends=Ends(plain.ends.embedding, plain.ends.head, torch.randn(toys.VOCAB), lambda x: x))


def jostled(module):
    """Weights that are not those of the start, where much is zero."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.2 * torch.randn_like(weight)
    return module


def places(depth):
    """(row, root token, label token) by depth: the label is the target's own, and so are the ones between."""
    found = []
    for row, (begin, end) in enumerate([(3, 9), (1, 6)]):
        found += [(row, t, t + 2 + depth) for t in range(9) if t + 2 >= begin and t + 2 + depth < end]
    return found


def test_chains_are_the_places_by_brute_force():
    found = chains(batch(), 4)
    assert found.roots.tolist() == [row * 9 + t for row, t, _ in places(0)]
    for k in range(4):
        pairs = {(int(found.roots[r]), int(j)) for r, j in zip(found.places[k], found.labels) if r >= 0}
        assert pairs == {(row * 9 + t, row * 9 + label - 1) for row, t, label in places(k)}


IDS = torch.tensor([0, 3, 4, 7, 11, 12, 20, 23])


def words(recipe, module, b, row, t, depth):
    """State and logits of word ``depth`` at one root, one token at a time."""
    if isinstance(recipe, MedusaRecipe):
        features = module.features(b.hidden[toys.LAST][row, t][None])
        return module.logits(features)[:, depth]
    state = module.start(torch.cat([b.hidden[tap][row, t] for tap in recipe.taps(toys.LAYERS)])[None])
    for k in range(depth + 1):
        state = module.read(state, b.tokens[row, t + 1 + k][None])
    return module.logits(state)


RECIPES_HERE = {
    "medusa": MedusaRecipe(heads=3, chunk=5),
    "medusa, own tables": MedusaRecipe(heads=3, own=True, layers=2, loss_name="tv"),
    "hydra": HydraRecipe(steps=3, inner=24, chunk=5),
    "hydra, two taps": HydraRecipe(steps=3, inner=24, taps_read=(1, toys.LAST), loss_name="acceptance"),
}


@pytest.mark.parametrize("name", RECIPES_HERE)
@pytest.mark.parametrize("ids", [None, IDS])
def test_loss_is_that_of_each_place_by_itself(name, ids):
    recipe, b, s = RECIPES_HERE[name], batch((1, toys.LAST)), shape(ids)
    module = jostled(recipe.build(s))
    expected = torch.zeros(())
    for k in range(3):
        rows = []
        for row, t, label in places(k):
            target = linear(b.hidden[toys.LAST][row, label - 1][None], s.ends.head, s.ends.bias)[:, s.draft_ids]
            rows.append(LOSSES[recipe.loss_name](words(recipe, module, b, row, t, k), target))
        expected = expected + 0.8**k * torch.stack(rows).mean()
    found = recipe.loss(module, s, b)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    mine = torch.autograd.grad(found, list(module.parameters()))
    theirs = torch.autograd.grad(expected, list(module.parameters()))
    for (weight, _), a, e in zip(module.named_parameters(), mine, theirs):
        torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-4, msg=lambda text, w=weight: f"{w}: {text}")


@pytest.mark.parametrize("name", RECIPES_HERE)
def test_right_counts_chains_of_right_words(name):
    recipe, b, s = RECIPES_HERE[name], batch((1, toys.LAST)), shape(IDS)
    b = dataclasses.replace(b, tokens=IDS[torch.randint(2, (2, 9))])
    module = jostled(recipe.build(s))
    with torch.no_grad():  # few tokens, one of them likely, so that chains go deep
        for weight in [module.tables] if getattr(module, "tables", None) is not None else [module.head_bias]:
            weight[0] += 3 if weight.ndim == 1 else 0
        found = recipe.right(module, s, b)
        hits = {}
        for k, (right, seen) in enumerate(found):
            alive = [(r, t, x) for r, t, x in places(k) if all(hits[r, t, i] for i in range(k))]
            for row, t, label in alive:
                hits[row, t, k] = int(IDS[words(recipe, module, b, row, t, k).argmax()]) == int(b.tokens[row, label])
            assert (right, seen) == (sum(hits[r, t, k] for r, t, _ in alive), len(alive))


def test_no_answer_in_a_batch_is_no_loss():
    b = dataclasses.replace(batch(), answer=torch.zeros(2, 9, dtype=torch.bool))
    for recipe in (MedusaRecipe(heads=2), HydraRecipe(steps=2, inner=8)):
        module = recipe.build(toys.shape())
        value = recipe.loss(module, toys.shape(), b)
        value.backward()
        assert float(value.detach()) == 0
        assert recipe.right(module, toys.shape(), b)[0] == (0, 0)


@pytest.mark.parametrize(
    "recipe, first, tau",
    [(MedusaRecipe(heads=3), 0.8, 3.2), (HydraRecipe(steps=3, inner=64), 0.85, 4.5)],
    ids=["medusa", "hydra"],
)
def test_a_head_learns_what_can_be_learned(tmp_path, recipe, first, tau):
    shards = toys.capture(tmp_path / "text", 60)
    settings = Settings(epochs=16, lr=1e-2, batch_tokens=256, held=0.1, patience=0, eval_every=20)
    result = train(recipe, shards, toys.shape(), tmp_path / "head", settings, threads=1)
    torch.manual_seed(0)
    _, untrained = evaluate(recipe, recipe.build(toys.shape()), toys.shape(), Windows(shards, range(60), [toys.LAST]))
    assert untrained[0] < 0.2
    assert result.best.acceptance[0] >= first  # one token in twenty is not the likely one
    assert result.best.tau >= tau
    checkpoint = read(tmp_path / "head")
    load = load_medusa if recipe.kind == "medusa" else load_hydra
    module = load(checkpoint, toys.shape().ends)
    hits = seen = 0
    for i in range(10):
        d = shards.document(i, (toys.LAST,))
        whole = Batch(
            d.tokens.long()[None],
            (torch.arange(len(d.tokens)) >= d.answer)[None],
            {toys.LAST: d.hidden[toys.LAST].float()[None]},
            torch.tensor([len(d.tokens)]),
        )
        right, places = recipe.right(module, toys.shape(), whole)[0]
        hits, seen = hits + right, seen + places
    assert hits / seen >= first
    assert json.loads((tmp_path / "head" / "config.json").read_text())["surefoot"]["best"]["tau"] >= tau


def test_reduced_vocabulary_is_saved(tmp_path):
    shards = toys.capture(tmp_path / "text", 20)
    s = toys.shape(IDS)
    train(HydraRecipe(steps=2, inner=8), shards, s, tmp_path / "head", Settings(epochs=1, batch_tokens=256), threads=1)
    assert read(tmp_path / "head").tensors["draft_ids"].tolist() == IDS.tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MedusaRecipe(heads=0),
        lambda: MedusaRecipe(loss_name="huber"),
        lambda: HydraRecipe(steps=0),
        lambda: HydraRecipe(blocks=-1),
        lambda: HydraRecipe(loss_name="huber"),
        lambda: HydraRecipe(taps_read=(9,)).taps(4),
        lambda: recipe_class("transformer"),
    ],
)
def test_options_that_cannot_be_are_refused(make):
    with pytest.raises(BadRequest):
        make()


def test_taps_are_the_final_one_unless_told():
    assert HydraRecipe().taps(4) == MedusaRecipe().taps(4) == (5,)
    assert HydraRecipe(taps_read=(2, 5)).taps(4) == (2, 5)
    assert HydraRecipe(taps_read=3).taps(4) == (3,)


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_registry_gives_the_classes(name):
    assert set(RECIPES) == {"medusa", "hydra", "eagle", "eagle3", "exit", "distill"}
    assert recipe_class(name)().kind == name
