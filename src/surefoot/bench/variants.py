"""What is compared: plain decoding, drafters without SSR, and SSR as a whole and in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import BadRequest
from ..loader import DRAFTERS, assemble

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
    if variant.drafter.startswith("ssr") and "ssr" not in DRAFTERS:
        return _by_hand(target, variant.drafter)
    return assemble(target, variant.drafter)


def _by_hand(target: Any, drafter: str) -> Engine:
    from ..core.engine import Engine
    from ..drafter_spec import parse
    from ..drafters.hybrid import HybridDrafter
    from ..drafters.lookahead import LookaheadDrafter
    from ..drafters.suffix import SuffixDrafter
    from ..making import Made
    from ..ssr import ForkControl, SsrOptions, SsrSource, choose
    from ..steering import steer

    [spec], _ = parse(drafter, ["ssr"])
    options = {key: value for key, value in spec.options.items() if key != "family"}
    codec, traits = target.codec, target.model.traits
    template = codec.special.template if codec.has_template else None
    family = choose(str(spec.options.get("family", "auto")), template)
    control = ForkControl(SsrOptions(**options), target.calibration.cost(target.model), traits.min_width)
    force = codec.encode(family.force, special=False)
    own = SsrSource(family, codec.pieces, force, control, source=1)
    others: list[Any] = [SuffixDrafter(source=2), LookaheadDrafter(known=codec.vocab_size, paths=traits.paths, source=3)]
    merged = HybridDrafter([own, *others], paths=traits.paths, source=4)
    made = Made([own, *others, merged], ["hybrid"], informed=True)
    return Engine(target.model, made.drafters, steer("auto", made, None, {}, target), codec=codec)
