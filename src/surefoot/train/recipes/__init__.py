"""Kinds of heads that can be trained, by name: ``"module:Class"`` of the recipe, imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ...errors import BadRequest

RECIPES: Mapping[str, str] = {
    "medusa": "surefoot.train.recipes.medusa:MedusaRecipe",
    "hydra": "surefoot.train.recipes.hydra:HydraRecipe",
    "eagle": "surefoot.train.recipes.eagle:EagleRecipe",
    "eagle3": "surefoot.train.recipes.eagle:Eagle3Recipe",
    "exit": "surefoot.train.recipes.exit:ExitRecipe",
    "distill": "surefoot.train.recipes.distill:DistillRecipe",
}


def recipe_class(name: str) -> Any:
    """The recipe's class; its options are the constructor's arguments."""
    if name not in RECIPES:
        raise BadRequest(f"there is no head {name!r} to train; use one of {', '.join(RECIPES)}")
    module, _, attribute = RECIPES[name].partition(":")
    return getattr(import_module(module), attribute)
