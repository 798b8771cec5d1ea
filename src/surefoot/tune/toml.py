"""A tuning as a configuration file for ``--config``, with where its figures come from as comments."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .tuning import Tuning


def config(tuning: Tuning, model: Mapping[str, str | int], draft_model: str | None, notes: list[str]) -> str:
    """``model``: what the table [model] says. ``notes``: lines on date, machine, prompts and options."""
    best = tuning.recommended
    parts = () if tuning.cascade is None else (*tuning.cascade.rows(), "")
    out = [f"# {_line(text)}" for text in (*notes, "", *tuning.rows(), "", *parts, tuning.why)]
    out += ["", "[model]", *(_pair(key, value) for key, value in model.items()), "", "[drafting]"]
    spec = best.spec
    out.append(_pair("drafter", spec if isinstance(spec, str) else spec.name))
    if not best.plain:
        out.append(_pair("controller", best.controller))
        if best.k is not None:
            out.append(_pair("num-speculative-tokens", best.k))
        if best.takes_draft and draft_model is not None:
            out.append(_pair("draft-model", draft_model))
    return "\n".join(line.rstrip() for line in out) + "\n"


def _pair(key: str, value: str | int) -> str:
    # JSON's strings are TOML's, but for a character that TOML wants escaped too
    return f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")


def _line(text: str) -> str:
    """Comments hold no control characters."""
    return "".join(c if c.isprintable() else " " for c in text)
