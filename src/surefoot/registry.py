"""Drafters by name, and which others each is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .drafter_spec import Spec
from .trained import LANES

DRAFTERS = {
    "ngram": "surefoot.drafters.ngram:NgramDrafter",
    "suffix": "surefoot.drafters.suffix:SuffixDrafter",
    "recycle": "surefoot.drafters.recycle:RecycleDrafter",
    "retrieval": "surefoot.drafters.retrieval:RetrievalDrafter",
    "lookahead": "surefoot.drafters.lookahead:LookaheadDrafter",
    "model": "surefoot.drafters.cross:model_drafter",
    "layer_skip": "surefoot.skips:layer_skip",
    "quantized": "surefoot.drafters.model:ModelDrafter",
    **dict.fromkeys(LANES, "surefoot.drafters.head:HeadDrafter"),
    "hybrid": "surefoot.drafters.hybrid:HybridDrafter",
    "cascade": "surefoot.drafters.cascade:CascadeDrafter",
    "horizontal": "surefoot.drafters.horizontal:HorizontalDrafter",
    "two_exit": "surefoot.drafters.cascade:CascadeDrafter",
    "dytc": "surefoot.drafters.dytc:DytcDrafter",
    "ssr": "surefoot.ssr:SsrSource",
    "script": "surefoot.drafters.script:ScriptDrafter",
    "grammar": "surefoot.drafters.grammar:GrammarDrafter",
}
WHOLE = ("model", "layer_skip", "quantized", "ngram")
"""Drafters that hybrid asks for whole drafts."""
CASCADES = ("cascade", "horizontal", "two_exit", "dytc")
"""Drafters that ask others behind what was drafted."""
UNMERGED = ("hybrid", "grammar", "script", "ssr", *CASCADES)
MERGED = "suffix/lookahead"
"""What hybrid merges unless told otherwise; ``auto`` adds the trained heads that come with the package for the model."""
_USUAL = {"hybrid": MERGED, "dytc": "suffix", "ssr": MERGED}
"""What is made where a spec does not say ``of``; ``dytc`` and ``ssr`` add trained heads as ``auto`` does."""
OWN = {
    "hybrid": ("of", "ask"),
    "cascade": ("of", "steps", "inner_k", "inner", "confidence"),
    "horizontal": ("of", "lengths"),
    "dytc": (
        *("of", "top", "k_max", "decay", "window", "warm_up", "t_min", "alphas", "costs", "objective"),
        *("tree", "siblings", "dynamic", "estimates", "stop"),
    ),
    "ssr": (
        *("of", "ask", "draft_budget", "draft_tokens", "interval", "max_drafts", "drafts", "always", "prefix", "suffix"),
        *("family", "start", "end", "force"),
    ),
    "two_exit": ("shallow", "deep", "shallow_layer", "deep_layer", "steps", "inner_k", "inner", "confidence"),
}
"""Options of drafters that are made of others, beside those of their parts."""
EXITS = {"deep": "early_exit_deep", "shallow": "early_exit"}
"""The two exits of ``two_exit``, the deeper one first, as drafters of their own."""


def named(spec: Spec) -> list[str]:
    """The drafters that a spec is made of, by name; its own where it is made of none."""
    if spec.name not in OWN:
        return [spec.name]
    if spec.name == "two_exit":
        return list(EXITS.values())
    of = str(spec.options.get("of", _USUAL.get(spec.name, "")))
    return [name.strip() for name in of.split("/") if name.strip()]


def leaves(spec: Spec) -> list[Spec]:
    """The drafters at the bottom of a spec, each with its own options. What is wrong with it is told when it is made."""
    if spec.name not in OWN:
        return [spec]
    found = []
    for name in dict.fromkeys(named(spec)):
        found += leaves(Spec(name, options_of(spec, name)))
    return found


def parts(spec: Spec) -> list[str]:
    """The names of :func:`leaves`."""
    return [leaf.name for leaf in leaves(spec)]


def options_of(spec: Spec, name: str) -> dict[str, Any]:
    """What a spec says of one of the drafters that it is made of."""
    if spec.name == "two_exit":
        side = next(side for side, drafter in EXITS.items() if drafter == name)
        told = {key: spec.options[own] for key, own in (("path", side), ("layer", f"{side}_layer")) if own in spec.options}
        return {**told, **part_options(spec.options, side)}
    rest = {key: value for key, value in spec.options.items() if key not in OWN[spec.name]}
    return part_options(rest, name, first=spec.name == "hybrid" and name == named(spec)[0])


def part_options(options: Mapping[str, Any], name: str, *, first: bool = False) -> dict[str, Any]:
    """Options of one part, written ``part.option``; if it is the ``first``, those without a name too."""
    found = {}
    for key, value in options.items():
        part, dot, option = key.partition(".")
        if (dot and part == name) or (not dot and first):
            found[option or key] = value
    return found
