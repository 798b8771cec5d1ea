"""What is compared: plain decoding, drafters without SSR, and SSR as a whole and in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadRequest
from ..loader import assemble

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..target import Target

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Variant:
    """``drafter``: as the loader reads it."""

    name: str
    drafter: str
    what: str


VARIANTS = {
    PLAIN: "no draft",
    "ngram": "n-grams of prompt and output alone",
    "auto": "all that auto drafts with, without ssr",
    "ssr": "auto, and a draft of the answer from one fork",
    "ssr-prefix": "ssr, drafts are left at the first difference",
    "ssr-suffix": "ssr, drafts are looked up only, not read on from the beginning",
    "ssr-iterative": "ssr, several forks, each reading the draft before it",
}
USUAL = (PLAIN, "auto", "ssr")
_CHANGES = {"ssr-prefix": "suffix=false", "ssr-suffix": "prefix=false"}


def variants(
    names: tuple[str, ...], *, budget: int, draft_tokens: int, interval: int, always: bool, family: str = "auto"
) -> list[Variant]:
    """``budget``: tokens of thought before the first fork; ``interval``: of the iterative variant."""
    found = []
    for name in dict.fromkeys((PLAIN, *names)):
        if name not in VARIANTS:
            raise BadRequest(f"unknown variant {name!r}; choose {', '.join(VARIANTS)}")
        drafter = {PLAIN: "none"}.get(name, name)
        if name.startswith("ssr"):
            options = [f"draft_budget={budget}", f"draft_tokens={draft_tokens}"]
            options += [_CHANGES[name]] if name in _CHANGES else []
            options += [f"interval={interval}"] if name == "ssr-iterative" else []
            options += ["always=true"] if always else []
            options += [f"family={family}"] if family != "auto" else []
            drafter = f"ssr:{','.join(options)}"
        found.append(Variant(name, drafter, VARIANTS[name]))
    return found


def engine(target: Target, variant: Variant) -> Engine:
    """As ``surefoot.load`` makes it, on a target that all variants share."""
    return assemble(target, variant.drafter)
