"""The audit: plain decoding and every drafter asked for, over the same prompts, position by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.completion import Codec
from ..core.constraint import Grammars
from ..core.engine import Engine
from ..core.params import SamplingParams
from ..core.protocols import Drafter, TargetModel
from ..core.request import Row
from ..core.tree import depths
from ..errors import BadRequest, SurefootError
from ..loader import Target
from .cases import Case, Skipped, cases
from .classify import Finding, Judge, findings
from .compare import ends, same
from .force import Forced, Forcer
from .item import Item
from .report import Report, Result, provenance, texts_of
from .sample import sample
from .statistics import Test, holm
from .subject import Subject
from .suite import with_schema
from .tracks import Shape

Tell = Callable[[str], None]
_CONTROL = Shape(64, chunk=64)
"""The widest draft-free scoring, which also cuts the prompt in another way."""
_LOOKED_AT = 3
"""Answers on which siblings are changed."""
_SEED = 20240


def audit(
    target: Target | Engine | TargetModel,
    prompts: Sequence[Item | str | Sequence[int]],
    params: SamplingParams | None = None,
    *,
    drafters: Sequence[str | Drafter] | None = None,
    lengths: Sequence[int] = (1, 5),
    draft: Target | None = None,
    samples: int = 0,
    rows: int = 1,
    raw: bool = False,
    system: str | None = None,
    codec: Codec | None = None,
    grammars: Grammars | None = None,
    tell: Tell = lambda label: None,
) -> Report:
    """Hold every drafter's output against plain decoding on the same target; see ``report.ok`` and ``print(report.table())``.

    target     what :func:`surefoot.loader.open_target` returns; an engine, which is audited as it is; or a target model, with
               ``codec`` and ``grammars`` if its requests need them
    prompts    items, texts or token ids
    params     request options, the same for all (default: greedy, 64 tokens). Above temperature 0 the outputs are compared
               with seeds of the audit's own if none is given
    drafters   names or drafters; ``all`` (default; for an engine: only itself): each one that can run here
    lengths    draft lengths that each is run with
    draft      loaded draft model, for the drafter ``model``
    samples    continuations a drafter that are drawn without a seed and tested (needs a temperature above 0)
    rows       requests that run at the same time; plain decoding always runs alone
    raw, system  send texts as they are; a system message for those that are not
    tell       called with what is being done
    """
    params = params if params is not None else SamplingParams(max_tokens=64)
    if samples and params.temperature == 0:
        raise BadRequest("samples need draws; give a temperature above 0, or leave samples out")
    if not isinstance(rows, int) or rows < 1 or not isinstance(samples, int) or samples < 0:
        raise BadRequest(f"rows={rows}, samples={samples}: give whole numbers, rows from 1 and samples from 0")
    subject = Subject.of(target, codec, grammars)
    asked = drafters if drafters is not None else () if subject.own is not None else ("all",)
    chosen, skipped = cases(subject, asked, lengths, draft)
    return _Run(subject, chosen, skipped, params, samples, rows, tell).run(prompts, raw, system)


class _Run:
    def __init__(
        self,
        subject: Subject,
        chosen: list[Case],
        skipped: list[Skipped],
        params: SamplingParams,
        samples: int,
        rows: int,
        tell: Tell,
    ) -> None:
        self.subject, self.cases, self.skipped, self.params = subject, chosen, skipped, params
        self.samples, self.rows, self.tell = samples, rows, tell
        self.exact = subject.model.traits.exact
        used = list(dict.fromkeys(shape for case in chosen for shape in case.shapes))
        if self.exact:  # one class of bits: a few shapes are enough to see that it is one
            chains, trees = ([s for s in used if bool(s.siblings) is tree] for tree in (False, True))
            used = [max(kind, key=lambda s: s.width) for kind in (chains, trees) if kind]
        self.forcer = Forcer(subject, [_CONTROL, *used])
        self.prompts: list[tuple[list[int], SamplingParams]] = []
        self.references: list[list[Row]] = []

    def run(self, given: Sequence[Item | str | Sequence[int]], raw: bool, system: str | None) -> Report:
        items = [item if isinstance(item, Item) else Item(item) for item in given]
        self._admit(items, raw, system)
        self.tell("plain decoding")
        try:
            for prompt, params in self.prompts:
                self.references.append(self._play(self.subject.plain, [(prompt, params)])[0])
        finally:
            self.subject.plain.close()
        self.tell("scoring without drafts")
        played = [_Played("plain", self.references)]
        self._force(played[0])
        for case in self.cases:
            self.tell(f"drafter {case.name}")
            played.append(self._case(case))
            self._force(played[-1])
        # only now the noise of the whole run is known
        judge = Judge(self.exact, self.forcer.noise)
        results = [self._judge(one, judge) for one in played]
        looked = list(zip(self.prompts, self.references, strict=True))[:_LOOKED_AT]
        siblings = max(self.forcer.siblings(prompt, rows[0].output) for (prompt, _), rows in looked)
        tests, outside = self._sample(judge)
        results = [replace(r, findings=(*r.findings, *outside.get(r.name, ()))) for r in results]
        return Report(
            provenance(self.subject, self.params, [len(prompt) for prompt, _ in self.prompts]),
            self.exact,
            self.forcer.noise,
            siblings,
            tuple(results),
            tuple(tests),
            tuple(self.skipped),
            texts_of(
                self.subject, results, {(i, row.index): row.output for i, rows in enumerate(self.references) for row in rows}
            ),
        )

    def _admit(self, items: Sequence[Item], raw: bool, system: str | None) -> None:
        """The prompts as tokens, with their options. What a given prompt cannot do is an error; extra ones are left out."""
        extra = with_schema() if self._structured() else []
        for item in [*items, *extra]:
            prompt = item.tokens(self.subject.codec, raw, system)
            try:
                params = self._options(len(self.prompts), item)
                self.subject.ghost(prompt, params)
            except SurefootError as error:
                if item not in extra:
                    raise
                self.skipped.append(Skipped("prompts with a schema", str(error)))
                break
            self.prompts.append((prompt, params))
        if not self.prompts:
            raise BadRequest("there are no prompts; give at least one")

    def _structured(self) -> bool:
        """Whether answers with a schema are wanted beside the others: where a drafter lives on them."""
        return self.params.constraint is None and any(case.name.startswith("grammar") for case in self.cases)

    def _options(self, number: int, item: Item) -> SamplingParams:
        changes: dict[str, Any] = dict(item.options)
        if self.params.temperature > 0:
            # with these the tokens are a function of the request; the rule that was asked for is tested by its draws
            changes["verification"] = "coupled"
            if self.params.seed is None:
                changes["seed"] = _SEED + number
        return replace(self.params, **changes)

    def _case(self, case: Case) -> _Played:
        done = _Played(case.name, [])
        engine = case.make()
        try:
            for begin in range(0, len(self.prompts), self.rows):
                done.rows += self._play(engine, self.prompts[begin : begin + self.rows])
        except SurefootError as error:
            done.error = f"{type(error).__name__}: {error}"
        finally:
            engine.close()
        return done

    def _play(self, engine: Engine, requests: Sequence[tuple[list[int], SamplingParams]]) -> list[list[Row]]:
        # traces tell the shapes of passes; where those do not matter, rows run exactly as a user's do
        found = [engine.submit(prompt, params, trace=not self.exact) for prompt, params in requests]
        while not all(row.done for rows in found for row in rows):
            engine.step()
        return found

    def _force(self, done: _Played) -> None:
        """Score each answer without drafts; equal ones are scored once."""
        for number, (rows, references) in enumerate(zip(done.rows, self.references, strict=False)):
            prompt, params = self.prompts[number]
            for row, reference in zip(rows, references, strict=True):
                # where bits depend on the shape of a pass: the shapes that this answer was made in
                apart = not self.exact and row.output != reference.output
                used = _shapes(row) if apart else []
                done.forced.append(self.forcer(prompt, row.output, params, row.index, used))

    def _judge(self, done: _Played, judge: Judge) -> Result:
        """Verdicts on all answers of a case, or on plain decoding itself."""
        found: list[Finding] = []
        differing, plain, forced = 0, done.rows is self.references, iter(done.forced)
        for number, (rows, references) in enumerate(zip(done.rows, self.references, strict=False)):
            for row, reference in zip(rows, references, strict=True):
                equal = same(row, reference)
                differing += not equal
                own = next(forced)
                if plain or not equal:  # what plain decoding itself does wrong is told once
                    found += findings(judge, own, reference.output, number, row.index)
                found += ends(self.subject, number, row, self.prompts[number][1], None if plain else reference)
        flips = sum(one.flips for one in done.forced)
        return Result.of(done.name, [row for rows in done.rows for row in rows], differing, flips, found, done.error)

    def _sample(self, judge: Judge) -> tuple[list[Test], dict[str, list[Finding]]]:
        tests: list[Test] = []
        outside: dict[str, list[Finding]] = {}
        if not self.samples:
            return tests, outside
        prompts = [(prompt, replace(params, verification=self.params.verification)) for prompt, params in self.prompts]
        for name, make in [("plain", lambda: self.subject.plain), *((c.name, c.make) for c in self.cases)]:
            self.tell(f"drawing, drafter {name}")
            found = sample(self.subject, make(), name, prompts, self.samples, _SEED, judge)
            tests += found.tests
            outside[name] = found.findings
        return holm(tests), outside


def _shapes(row: Row) -> list[Shape]:
    """Those of the passes that made an answer."""
    found = set()
    for step in row.stats.trace or []:
        parents = [-1, *step.parents]
        chain = parents == list(range(-1, len(parents) - 1))
        found.add(Shape(len(parents)) if chain else Shape(max(depths(parents)) + 1, 1))
    return sorted(found, key=lambda shape: (shape.siblings, shape.width))


class _Played:
    """The answers of one case, what draft-free scoring says of each, and what broke the case off."""

    def __init__(self, name: str, rows: list[list[Row]]) -> None:
        self.name, self.rows = name, rows
        self.forced: list[Forced] = []
        self.error = ""
