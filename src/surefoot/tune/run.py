"""The tuning run: measure costs and acceptance, predict, measure the best in turn with plain decoding, recommend."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.completion import Prompt
from ..core.cost import CostModel
from ..core.measure import measure
from ..core.params import SamplingParams
from ..core.protocols import Drafter
from ..errors import BadRequest, Unsupported
from ..loader import Target
from .candidate import PLAIN, Candidate, Clock
from .choose import choose, recommend
from .predict import Machine, in_chains, lengths, trees
from .profile import Profile, play, profile
from .race import Lap, over, race
from .tuning import Option, Tuning

TREES = ("suffix",)
"""Drafters that make trees of what they know."""
_WIDTH = 3


def tune(
    target: Target,
    prompts: Sequence[Prompt],
    params: SamplingParams | None = None,
    *,
    drafters: Sequence[str | Drafter] | None = None,
    draft: Target | None = None,
    longest: int = 12,
    repeats: int = 3,
    most: int = 3,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda label: None,
) -> Tuning:
    """Which drafter, length and controller give most tokens per second on these prompts; see ``tuning.recommended``.

    target    what :func:`surefoot.loader.open_target` returns
    prompts   texts, conversations or token ids
    params    request options, the same for all (default: greedy, 96 tokens)
    drafters  names or drafters (default: ngram, suffix, auto, and model where there is a draft model)
    draft     loaded draft model
    longest   draft length at which acceptance is measured; no longer one is considered
    repeats   measured runs of each candidate
    most      fixed candidates that are measured, beside the controller by measured cost
    clock     seconds
    tell      called with what is being done
    """
    names = _names(drafters, draft)
    params = checked(prompts, params, repeats, most, longest)
    return Run(target, prompts, params, names, draft, longest, clock, tell).run(repeats, most)


def checked(prompts: Sequence[Prompt], params: SamplingParams | None, repeats: int, most: int, longest: int) -> SamplingParams:
    """The options to run with, after a look at all that is given."""
    if not prompts:
        raise BadRequest("there are no prompts; give at least one")
    if repeats < 1 or most < 1 or longest < 1:
        raise BadRequest(f"repeats={repeats}, most={most}, longest={longest}: give whole numbers from 1 up")
    params = params if params is not None else SamplingParams(max_tokens=96)
    if params.n > 1:
        raise BadRequest(f"n={params.n}: one answer a prompt is measured; leave n out")
    if params.temperature > 0:  # so that the tokens are a function of the request, and can be compared
        return replace(params, verification="coupled", seed=0 if params.seed is None else params.seed)
    return params


def _names(drafters: Sequence[str | Drafter] | None, draft: Target | None) -> list[str | Drafter]:
    if drafters is None:
        return ["ngram", "suffix", "auto", *(["model"] if draft is not None else [])]
    if not drafters:
        raise BadRequest("drafters is empty; leave it out or name at least one")
    for name in drafters:
        if name == "none":
            raise BadRequest("drafter 'none' is plain decoding, which is measured anyway; leave it out")
        if name == "model" and draft is None:
            raise BadRequest("drafter 'model' needs a draft model; give one")
    return list(dict.fromkeys(drafters))


class Run:
    """One model, prompts and options, and what is measured of drafters on them."""

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        names: Sequence[str | Drafter],
        draft: Target | None,
        longest: int,
        clock: Clock | None,
        tell: Callable[[str], None],
    ) -> None:
        traits = target.model.traits
        self.target, self.prompts, self.params, self.draft = target, prompts, params, draft
        self.clock: Clock = clock if clock is not None else time.perf_counter
        self.measured = clock is None
        self.tell = tell
        self.longest = min(longest, traits.max_nodes - 1)
        if self.longest < 1:
            raise Unsupported(f"{traits.name} takes one token a pass, so nothing can be drafted; use another backend")
        # a name that is wrong or cannot run here is told before anything is measured
        self.given = [Candidate(name, "fixed", self.longest) for name in names]
        for candidate in self.given:
            self.engine(candidate).close()
        self._check_prompts()

    def engine(self, candidate: Candidate) -> Any:
        return candidate.engine(self.target, self.draft, self.clock)

    def _check_prompts(self) -> None:
        engine = self.engine(PLAIN)
        try:
            for prompt in self.prompts:
                engine.abort(engine.add(prompt, self.params))
        finally:
            engine.close()

    def run(self, repeats: int, most: int) -> Tuning:
        machine, reference = self.plain()
        profiles = {c: self.profile(c) for c in self.given}
        options = self.predict(profiles, machine, reference)
        return self.settle(machine, reference, profiles, options, choose(options, profiles, most), repeats)

    def settle(
        self,
        machine: Machine,
        reference: list[tuple[int, ...]],
        profiles: dict[Candidate, Profile],
        options: Sequence[Option],
        chosen: Sequence[Option],
        repeats: int,
    ) -> Tuning:
        """Measure what is ``chosen`` of the ``options`` in turn with plain decoding, and recommend."""
        laps = race(
            [lambda c=o.candidate: self.engine(c) for o in (Option(PLAIN), *chosen)],  # type: ignore[misc]
            self.prompts,
            self.params,
            repeats,
            reference,
            self.tell,
        )
        raced = [_option(option, own, laps[0]) for option, own in zip((Option(PLAIN), *chosen), laps, strict=True)]
        best, why = recommend(raced)
        measured = {o.candidate for o in raced}
        rest = [o for o in options if o.candidate not in measured and _worth_telling(o, options)]
        order = sorted(raced, key=lambda o: -(o.measured or 0.0)) + sorted(rest, key=lambda o: -(o.predicted or 0.0))
        return Tuning(
            best,
            tuple(order),
            statistics.median(lap.rate for lap in laps[0]),
            why,
            machine.cost,
            len(self.prompts),
            sum(map(len, reference)),
            str(getattr(self.target.model, "precision", self.target.model.traits.dtype)),
            {c.name: lengths(p, machine) for c, p in profiles.items()},
            {c.name: p.reach() for c, p in profiles.items()},
            {c.name: p.draft_seconds for c, p in profiles.items()},
        )

    def _cost(self) -> CostModel:
        self.tell("cost of passes")
        if self.measured and self.target.calibration is not None:
            return self.target.calibration.cost(self.target.model, refresh=True)
        return measure(self.target.model, clock=self.clock)

    def plain(self) -> tuple[Machine, list[tuple[int, ...]]]:
        """What passes cost, what the engine adds to them, and what plain decoding says."""
        cost, traits = self._cost(), self.target.model.traits
        self.tell("plain decoding")
        engine = self.engine(PLAIN)
        try:
            play(engine, self.prompts[0], self.params)  # kernels of the first shapes
            rows = [play(engine, prompt, self.params) for prompt in self.prompts]
        finally:
            engine.close()
        passes = sum(max(0, len(row.output) - 1) for row in rows)
        if not passes:
            raise BadRequest(
                "every answer is one token long, so there is nothing to make faster; give other prompts or max_tokens"
            )
        spent = sum(row.stats.decode_seconds - row.stats.score_seconds for row in rows)
        context = round(sum(len(row.tokens) - len(row.output) / 2 for row in rows) / len(rows))
        machine = Machine(
            cost, context, traits.min_width, max(0.0, spent / passes), traits.steady, in_chains(self.target.model)
        )
        return machine, [tuple(row.output) for row in rows]

    def profile(self, candidate: Candidate) -> Profile:
        self.tell(f"drafter {candidate.name}")
        engine = self.engine(candidate)
        try:
            return profile(engine, self.prompts, self.params, self.longest)
        finally:
            engine.close()

    def predict(self, profiles: dict[Candidate, Profile], machine: Machine, reference: list[tuple[int, ...]]) -> list[Option]:
        """Every length of every drafter, and a tree where one could pay."""
        found: list[Option] = []
        for candidate, own in profiles.items():
            same = list(own.outputs) == reference
            differs = tuple(i for i, (a, b) in enumerate(zip(own.outputs, reference, strict=True)) if a != b)
            for k, gain in enumerate(lengths(own, machine)):
                if k:
                    found.append(
                        Option(candidate.longest(k), own.acceptance(k), gain, equal=None if same else False, differs=differs)
                    )
            if candidate.name.partition(":")[0] in TREES and self.target.model.traits.tree:
                found += self._tree(candidate, machine, reference)
        return found

    def _tree(self, candidate: Candidate, machine: Machine, reference: list[tuple[int, ...]]) -> list[Option]:
        most = min(2 * self.longest, self.target.model.traits.max_nodes - 1)
        wide = replace(candidate, width=_WIDTH, nodes=most)
        self.tell(f"drafter {candidate.name}, trees")
        engine = self.engine(wide)
        try:
            own = profile(engine, self.prompts, self.params, self.longest, _WIDTH)
        finally:
            engine.close()
        shape = trees(own, machine, self.longest, most)
        if shape is None:
            return []
        differs = tuple(i for i, (a, b) in enumerate(zip(own.outputs, reference, strict=True)) if a != b)
        made = replace(candidate, k=shape.depth, width=shape.width, nodes=shape.nodes)
        return [Option(made, own.acceptance(most), shape.speedup, equal=False if differs else None, differs=differs)]


def _option(option: Option, laps: Sequence[Lap], plain: Sequence[Lap]) -> Option:
    differs = tuple(sorted({i for lap in laps for i in lap.differs} | set(option.differs)))
    drafted = sum(lap.drafted for lap in laps)
    return replace(
        option,
        acceptance=sum(lap.accepted for lap in laps) / drafted if drafted else None,
        measured=over(laps, plain),
        rate=statistics.median(lap.rate for lap in laps),
        equal=not differs,
        differs=differs,
    )


def _worth_telling(option: Option, options: Sequence[Option]) -> bool:
    """The best length of a drafter, and its tree."""
    own = [
        o for o in options if o.candidate.drafter == option.candidate.drafter and o.candidate.width == option.candidate.width
    ]
    return option is max(own, key=lambda o: o.predicted or 0.0)
