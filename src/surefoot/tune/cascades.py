"""Tuning of cascades: what their parts accept and cost on these prompts, what that predicts, and what is fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..core.completion import Prompt
from ..core.params import SamplingParams
from ..drafters.cascade import CascadeDrafter
from ..errors import BadRequest, SurefootError
from ..loader import Target
from ..making import heads_of
from ..theory.schedule import Schedule
from .candidate import Candidate, Clock
from .choose import choose
from .parts import Parts, rate
from .predict import Machine
from .profile import Profile, play
from .reviews import Reviews
from .run import Run, checked
from .tuning import Option, Tuning

MIDDLES = ("quantized", "layer_skip")
"""Reviewers that are tried where they can run, beside a draft model and trained heads that come with the package."""
BOTTOMS = ("suffix", "ngram")


def tune_cascade(
    target: Target,
    prompts: Sequence[Prompt],
    params: SamplingParams | None = None,
    *,
    middles: Sequence[str] | None = None,
    bottoms: Sequence[str] = BOTTOMS,
    draft: Target | None = None,
    longest: int = 12,
    repeats: int = 3,
    most: int = 3,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda label: None,
) -> Tuning:
    """Which vertical or horizontal cascade gives most tokens per second, if any is faster than the best single drafter.

    middles  drafters with a model, which review (default: ``quantized``, ``layer_skip``, trained heads that come with the
             package, ``model`` where there is a draft model; those that cannot run here are left out)
    bottoms  drafters that draft for them
    most     schedules that are measured, in turn with the best single drafter and plain decoding

    The other arguments are those of :func:`surefoot.tune.tune`.
    """
    params = checked(prompts, params, repeats, most, longest)
    able, left_out = _able(target, draft, middles)
    if not able or not bottoms:
        told = f" ({'; '.join(left_out)})" if left_out else ""
        raise BadRequest(f"a cascade needs a middle and a bottom drafter{told}; name some that can run here")
    names = [*able, *bottoms]
    if len(set(names)) < len(names):
        raise BadRequest(f"a drafter is named twice among {', '.join(names)}; name each once")
    run = Run(target, prompts, params, names, draft, longest, clock, tell)
    machine, reference = run.plain()
    profiles = {c: run.profile(c) for c in run.given}
    singles = run.predict(profiles, machine, reference)
    pairs = {(m, b): _pair(run, m, b) for m in able for b in bottoms}
    parts = _parts(run, machine, able, profiles, pairs, left_out)
    found = [_option(parts, s) for s in parts.schedules()]
    chosen = [*choose(singles, profiles, 1), *_best(found, most)]
    return replace(run.settle(machine, reference, profiles, [*singles, *found], chosen, repeats), cascade=parts)


def _able(target: Target, draft: Target | None, middles: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Middles that can run here, and why others cannot; one that was named and cannot is an error."""
    wanted = middles if middles is not None else [*MIDDLES, *heads_of(target), *(["model"] if draft is not None else [])]
    able, left_out = [], []
    for name in wanted:
        spec = _spec((name, BOTTOMS[0]), Schedule("vertical", (0, 1), (1, 1), 1.0, 1.0))
        try:
            Candidate(spec, "fixed", 2).engine(target, draft).close()
            able.append(name)
        except SurefootError as error:
            if middles is not None:
                raise
            left_out.append(f"{name}: {error}")
    return able, left_out


@dataclass(frozen=True, slots=True)
class _Pair:
    """``rate``: how often the middle accepts the bottom's tokens, by depth; ``passes``: its seconds over 1, 2, … tokens."""

    rate: tuple[float, ...]
    passes: tuple[float, ...]


def _pair(run: Run, middle: str, bottom: str) -> _Pair:
    """One review a round, each of as many tokens as the bottom drafter has to say."""
    run.tell(f"{middle} over {bottom}")
    one = Schedule("vertical", (0, 1), (1, run.longest), 1.0, 1.0)
    engine = run.engine(Candidate(_spec((middle, bottom), one), "fixed", run.longest + 1))
    made = next(d for d in engine.drafters.values() if isinstance(d, CascadeDrafter))
    assert made.engine.controller is not None
    seen = made.engine.controller = Reviews(made.engine.controller, run.longest)
    try:
        for prompt in run.prompts:
            play(engine, prompt, run.params)
    finally:
        engine.close()
    cost = seen.cost()
    return _Pair(rate(seen.accepted, seen.asked), tuple(cost(m) for m in range(1, 2 * run.longest + 2)))


def _spec(names: Sequence[str], found: Schedule) -> str:
    return Parts(tuple(names), (), (), (), {}, (), ()).spec(found)


def _parts(
    run: Run,
    machine: Machine,
    middles: Sequence[str],
    profiles: dict[Candidate, Profile],
    pairs: dict[tuple[str, str], _Pair],
    left_out: Sequence[str],
) -> Parts:
    """The middles as told, the heaviest first by what their passes cost."""
    own = {c.name: p for c, p in profiles.items()}
    passes = {m: next(pair.passes for (name, _), pair in pairs.items() if name == m) for m in middles}
    names = [*sorted(middles, key=lambda m: -passes[m][0]), *(name for name in own if name not in middles)]
    at = {name: i for i, name in enumerate(names)}
    widest = min(2 * run.longest, run.target.model.traits.max_nodes - 1) + 1
    drafted = [own[name].draft_seconds / machine.plain for name in names]
    steps = [passes[name][0] / machine.plain if name in passes else drafted[i] for i, name in enumerate(names)]
    return Parts(
        tuple(names),
        tuple(rate(own[name].accepted, own[name].asked) for name in names),
        tuple(steps),
        tuple(drafted),
        {(at[m], at[b]): pair.rate for (m, b), pair in pairs.items()},
        tuple(machine.seconds(m) for m in range(1, widest + 1)),
        tuple(passes[name] for name in names if name in passes),
        tuple(left_out),
    )


def _option(parts: Parts, found: Schedule) -> Option:
    return Option(Candidate(parts.spec(found), "fixed", parts.longest(found)), predicted=found.ewif)


def _best(found: Sequence[Option], most: int) -> list[Option]:
    """The ``most`` best, a vertical and a horizontal one among them if there is room for both."""
    best = list(found[:most])
    for kind in ("cascade", "horizontal"):
        own = next((o for o in found if o.candidate.name.partition(":")[0] == kind), None)
        if own is not None and own not in best and len(best) > 1:
            best[-1] = own
    return best
