"""The engine: plan, propose, pack, score, verify, commit, learn. One loop for every drafter, backend and rule.

A step is one forward pass over all running rows. Plain decoding is a plan of zero drafted tokens; prefill is a chain of
pending tokens that is committed whole. What a pass computed and did not commit vanishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadRequest
from .compiled import Compiler
from .completion import Codec, Completion, Prompt
from .constraint import Grammars
from .noise import Noise
from .params import SamplingParams
from .parts import Assembler
from .pool import Pool
from .prompts import echoed, prompt_tokens
from .protocols import Attaches, Closes, Controller, Costs, Drafter, Need, TargetModel
from .request import Piece, Row
from .settle import Settler
from .shadow import hidden
from .tree import PENDING, Forest


class Engine:
    """Runs requests on a target; every output follows the target's law, whatever the drafters say.

    ``controller`` plans each row's draft; without one every plan is plain decoding. ``grammars`` compiles structured output.
    ``chunk``: most prefill tokens of a pass. ``reuse``: share the cache of common prefixes (default: where the target is
    exact). ``known``: ids from here on are never said (default: what the codec knows). ``clock``: seconds.
    """

    def __init__(
        self,
        target: TargetModel,
        drafters: Sequence[Drafter] = (),
        controller: Controller | None = None,
        *,
        codec: Codec | None = None,
        grammars: Grammars | None = None,
        max_rows: int = 64,
        chunk: int = 256,
        reuse: bool | None = None,
        known: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.target = target
        self.drafters: dict[str, Drafter] = {d.name: d for d in drafters}
        self.names: dict[int, str] = {PENDING: "target"} | {d.source: d.name for d in drafters}
        if len(self.names) != len(drafters) + 1 or len(self.drafters) != len(drafters):
            raise BadRequest("two drafters share a name or a source number; give each its own")
        self.controller = controller
        self.codec = codec
        self.clock = clock
        self._assembler = Assembler(target.traits, self.drafters, controller, chunk, clock)
        self._need = Need(tuple(sorted({layer for d in drafters for layer in d.needs.hidden})))
        self._pool = Pool(target, max_rows, target.traits.exact if reuse is None else reuse)
        self.grammars = grammars
        self._compiler = Compiler(target.traits.vocab_size, codec, grammars)
        known = codec.vocab_size if known is None and codec is not None else known
        self._known = target.traits.vocab_size if known is None else min(known, target.traits.vocab_size)
        self._settler = Settler(self.names, self._known)
        self._next_id = 0
        for drafter in drafters:
            if isinstance(drafter, Attaches):
                drafter.attach(self)

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        noise: Noise | None = None,
        trace: bool = False,
        parent: Row | None = None,
    ) -> Row:
        """Queue a request for one answer and return its row. ``parent``: a row whose cache the prompt shares."""
        params = params if params is not None else SamplingParams()
        if params.n > 1:
            raise BadRequest(f"add queues one answer, and n is {params.n}; use submit, which returns {params.n} rows")
        return self._add(prompt, params, noise, trace, parent, 0)

    def submit(self, prompt: Prompt, params: SamplingParams | None = None, *, trace: bool = False) -> list[Row]:
        """Queue a request for ``params.n`` answers, which share the prompt's cache, and return their rows."""
        params = params if params is not None else SamplingParams()
        first = self._add(prompt, params, None, trace, None, 0)
        parent = first if self._pool.reuse else None
        rest = [self._add(first.tokens[: first.n_prompt], params, None, trace, parent, i) for i in range(1, params.n)]
        for row in rest:
            row.text = first.text
        return [first, *rest]

    def _add(
        self, prompt: Prompt, params: SamplingParams, noise: Noise | None, trace: bool, parent: Row | None, index: int
    ) -> Row:
        tokens = prompt_tokens(prompt, self.codec, self.target.traits.vocab_size)
        traits = self.target.traits
        # a padded row reaches min_width - 1 positions past its last token
        room = traits.max_context - (traits.min_width - 1) - len(tokens)
        if room < 1:
            raise BadRequest(f"the prompt has {len(tokens)} tokens but the context holds {traits.max_context}; shorten it")
        if params.stop and self.codec is None:
            raise BadRequest("stop strings need a tokenizer; load the engine with one or use stop_token_ids")
        row = Row(
            self._next_id,
            tokens,
            params,
            limit=room if params.max_tokens is None else min(room, params.max_tokens),
            eos=self.codec.eos_ids if self.codec is not None else (),
            decoder=self.codec.decoder() if self.codec is not None else None,
            noise=noise,
            index=index,
            echo=echoed(prompt, tokens, self.codec) if params.echo else "",
        )
        row.state = self._compiler.state(params, row.tokens, row.stop_ids)
        if row.state is not None:
            row.state.check(traits.vocab_size, self._known)
        self._pool.check(row, params.n)
        if trace:
            row.stats.trace = []
        self._pool.enqueue(row, parent)
        self._next_id += 1
        return row

    def adopt(self, row: Row) -> None:
        """Queue a row that was made elsewhere (:func:`~.shadow.shadow`); its id is to be no other running row's."""
        self._pool.check(row, 1)
        self._pool.enqueue(row)

    def spawn(self, row: Row, extra: Sequence[int], params: SamplingParams, limit: int) -> Row | None:
        """A hidden row that goes on at once behind the running ``row`` and ``extra`` (:func:`~.shadow.hidden`); neither
        :attr:`rows` nor :meth:`step` name it. None where there is no room now, or requests wait for it: those that come later
        have it ended where it is in their way. Whoever made it may end it at any time, in ``observe`` by ``row.abort()``."""
        room = self.target.traits.max_context - (self.target.traits.min_width - 1) - len(row.tokens) - len(extra)
        if min(limit, room) < 1:
            return None
        ends = self.codec.eos_ids if self.codec is not None else ()
        made = hidden(row, self._next_id, extra, params, min(limit, room), ends)
        if made.state is not None:
            made.state.check(self.target.traits.vocab_size, self._known)
        self._next_id += 1
        return made if self._pool.spawn(made, row) else None

    def succeed(self, old: Row, new: Row) -> None:
        """``new``, made elsewhere, runs in place of the running ``old``, whose cache it takes over as far as tokens agree."""
        self._pool.succeed(old, new)

    def fork(self, row: Row, extra: Sequence[int] = (), params: SamplingParams | None = None) -> Row:
        """A new request whose prompt is all that ``row`` holds now, plus ``extra``; the common cache is shared."""
        return self.add([*row.tokens, *extra], params or replace(row.params, n=1), parent=row)

    def abort(self, row: Row) -> None:
        """End a request now; what was generated stays in the row. Harmless on a row that has ended."""
        if not row.done:
            row.abort()
            self._retire([row])

    @property
    def rows(self) -> list[Row]:
        """Requests that have not ended."""
        return [row for row in (*self._pool.running, *self._pool.waiting) if not row.hidden]

    def generate(self, prompt: Prompt, *, trace: bool = False, **options: Any) -> Completion:
        """Run one request to its end. Options are those of :class:`SamplingParams`.

        A request that fails on its way (no token is possible, a processor raises) raises its error here.
        """
        rows = self._run([prompt], SamplingParams.build(options), trace)[0]
        for row in rows:
            if row.error is not None:
                raise row.error
        return Completion.together(rows, self.names)

    def generate_batch(self, prompts: Sequence[Prompt], *, trace: bool = False, **options: Any) -> list[Completion]:
        """Run several requests together, as ragged rows of the same passes.

        One that fails on its way has ``finish_reason`` ``error``; the others are not lost.
        """
        found = self._run(prompts, SamplingParams.build(options), trace)
        return [Completion.together(rows, self.names) for rows in found]

    def _run(self, prompts: Sequence[Prompt], params: SamplingParams, trace: bool) -> list[list[Row]]:
        """The rows of each prompt, run to their ends."""
        found: list[list[Row]] = []
        try:
            for p in prompts:
                found.append(self.submit(p, params, trace=trace))  # noqa: PERF401 - a bad prompt must not lose the rows before it
            while any(not row.done for rows in found for row in rows):
                self.step()
        finally:
            for rows in found:
                for row in rows:
                    self.abort(row)
        return found

    def stream(self, prompt: Prompt, *, trace: bool = False, per_token: bool = False, **options: Any) -> Iterator[Piece]:
        """Pieces of one request as they become final, one a pass or one a token; closing the iterator ends the request.

        With ``n`` above 1 the pieces of all answers come as they are made; ``piece.index`` tells which one they belong to.
        """
        return self.follow(*self.submit(prompt, SamplingParams.build(options), trace=trace), per_token=per_token)

    def follow(self, *rows: Row, per_token: bool = False) -> Iterator[Piece]:
        """Step until the rows end and yield their pieces. A row that fails raises its error after its last piece."""
        going = list(rows)
        try:
            while going:  # another stream of this engine may have stepped the rows already, to their ends even
                for row in list(going):
                    piece = row.drain(self.names)
                    if piece is not None:
                        yield from piece.split() if per_token else (piece,)
                    if piece is not None and piece.finish_reason is not None:
                        going.remove(row)
                        if row.error is not None:
                            raise row.error
                if going and not any(row.done for row in going):
                    self.step()
        finally:
            for row in rows:
                self.abort(row)

    def completion(self, row: Row) -> Completion:
        """The result of a row, finished or not."""
        return Completion.of(row, self.names)

    def step(self, only: Collection[Row] | None = None) -> list[Row]:
        """One pass over the running rows, or those of ``only``; returns the rows that emitted tokens."""
        start = self.clock()
        rows = self._pool.admit()
        while (last := self._pool.yields()) is not None:
            self.abort(last)
            rows = self._pool.admit()
        if only is not None:
            rows = [row for row in rows if row in only]
        if not rows:
            return []
        parts, drafting = self._assembler.assemble(rows, self.target.traits)
        slots = [p.slot for p in parts]
        forest = Forest.pack(
            [p.tree for p in parts],
            [p.lead for p in parts],
            [p.wanted for p in parts],
            self.target.traits.min_width,
            [p.hold for p in parts],
            [p.whole for p in parts],
        )
        context = max(slot.length for slot in slots)
        before = self.clock()
        scores = self.target.score(slots, forest, self._need)
        after = self.clock()
        outcomes = self._settler.settle(parts, scores.logits)
        self.target.commit(slots, [o.path for o in outcomes])
        for drafter in self.drafters.values():
            drafter.observe([p.row for p in parts], forest, scores, [o.verdict for o in outcomes])
        seconds = self.clock() - start
        prefill = sum(p.prefill for p in parts)
        work = scores.work or forest.nodes
        costs = Costs(drafting, after - before, seconds - drafting - (after - before), work, prefill, context)
        done = [(p, o.verdict) for p, o in zip(parts, outcomes, strict=True) if o.verdict is not None]
        if self.controller is not None and done:
            self.controller.learn([p.row for p, _ in done], [p.tree for p, _ in done], [v for _, v in done], costs)
            learning = self.clock() - start - seconds
            seconds, costs = seconds + learning, replace(costs, other=costs.other + learning)
        for part, outcome in zip(parts, outcomes, strict=True):
            part.row.stats.add_time(costs, prefill=part.prefill > 0)
            if outcome.trace is not None:
                part.row.stats.add_trace(replace(outcome.trace, seconds=seconds))
        self._retire([row for row in self._pool.running if row.done])
        return [p.row for p, _ in done if not p.row.hidden]

    def _retire(self, rows: Sequence[Row]) -> None:
        if rows:
            for drafter in self.drafters.values():
                drafter.forget(rows)
            if self.controller is not None:
                self.controller.forget(rows)
            self._pool.end(rows)

    def close(self) -> None:
        """End all requests, give back their cache, and let drafters put away what they keep beyond the process."""
        for row in (*self._pool.running, *self._pool.waiting):
            self.abort(row)
        self._pool.clear()
        for drafter in self.drafters.values():
            if isinstance(drafter, Closes):
                drafter.close()
