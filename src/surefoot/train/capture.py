"""Text that the target writes itself, with its activations, into shards.

Every document has random numbers of its own, made of the seed and its number; ``rows`` of them are decoded together. A user
turn comes first (:mod:`.prompts`, or given prompts), then the answer, whose temperature is drawn from ``temperatures``. A
shard is written when all of its documents are there, so that a capture that was killed, or that ran out of disk, goes on
where the last whole shard ends.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.engine import Engine
from ..core.params import SamplingParams
from ..core.protocols import Need, Plan, Scores, TargetModel, Verdict
from ..core.request import Row
from ..core.tree import DraftTree, Forest
from ..errors import BackendError, BadRequest
from .prompts import Opening, closing, opening, usable
from .shards import FACTS_FILE, Document, documents_in, shard_path, write_shard

Tell = Callable[[int, int], None]
"""Told after each shard: documents and answer tokens so far."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the captured text depends on, beside the target and the prompts."""

    documents: int
    seed: int = 0
    length: int = 256
    """Most tokens of an answer."""
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.0, 0.7, 1.0)
    top_k: int = 50
    per_shard: int = 128
    rows: int = 48

    def __post_init__(self) -> None:
        if min(self.documents, self.length, self.per_shard, self.rows) < 1:
            raise BadRequest("documents, length, per_shard and rows must be at least 1")
        if not self.temperatures or min(self.temperatures) < 0:
            raise BadRequest("temperatures must name one or more numbers from 0 up, such as 0,0.7,1")


class Recorder:
    """A drafter that drafts nothing and keeps the activations of every row."""

    name = "recorder"
    source = 1

    def __init__(self, taps: Sequence[int]) -> None:
        self.needs = Need(tuple(taps))
        self._rows: dict[int, list[Tensor]] = {}
        """Row -> the activations of its tokens, taps side by side: slices of what each pass returned."""

    def propose(self, rows: Sequence[Row], plans: Sequence[Plan]) -> list[DraftTree]:
        return [DraftTree.chain(row.tokens[-1:]) for row in rows]

    def observe(self, rows: Sequence[Row], forest: Forest, scores: Scores, verdicts: Sequence[Verdict | None]) -> None:
        half = torch.cat([scores.hidden[tap].to(torch.float16) for tap in self.needs.hidden], 1)
        for b, row in enumerate(rows):
            # without drafts all nodes of a row stay, but its padding
            begin = forest.begins[b]
            self._rows.setdefault(row.id, []).append(half[begin : begin + forest.sizes[b]])

    def take(self, row: Row) -> dict[int, Tensor]:
        """tap -> [n, H] of the row's first n tokens."""
        taps = self.needs.hidden
        return dict(zip(taps, torch.cat(self._rows.pop(row.id)).chunk(len(taps), 1), strict=True))

    def forget(self, rows: Sequence[Row]) -> None: ...


@dataclass(slots=True)
class _Job:
    """A document on its way: ``opened`` while its user turn is written."""

    number: int
    rng: random.Random
    row: Row
    opened: Opening | None


class Capture:
    """One run. ``prompts``: token ids to answer, taken in turn, in place of generated user turns."""

    def __init__(
        self,
        model: TargetModel,
        codec: Any,
        folder: Path,
        settings: Settings,
        taps: Sequence[int],
        *,
        target: Mapping[str, Any],
        prompts: Sequence[Sequence[int]] = (),
    ) -> None:
        self._recorder = Recorder(sorted({*taps, model.traits.last}))
        self._engine = Engine(model, [self._recorder], codec=codec, reuse=False, max_rows=settings.rows)
        self._codec, self._folder, self._settings, self._prompts = codec, folder, settings, prompts
        self._closing = closing(codec)
        self._room = model.traits.max_context - settings.length - model.traits.min_width
        if self._room < 16:
            raise BadRequest(f"answers of {settings.length} tokens leave no room in a context of {model.traits.max_context}")
        facts = {
            "target": dict(target),
            "taps": list(self._recorder.needs.hidden),
            "settings": asdict(settings) | {"temperatures": list(settings.temperatures), "documents": None, "rows": None},
            "prompts": len(prompts),
        }
        self._claim(facts)

    def _claim(self, facts: dict[str, Any]) -> None:
        """The folder is for this run, or for one that it can go on from."""
        self._folder.mkdir(parents=True, exist_ok=True)
        place = self._folder / FACTS_FILE
        if place.exists():
            try:
                before = json.loads(place.read_text("utf-8"))
            except ValueError:
                raise BadRequest(f"{place} is damaged; delete the folder and capture again") from None
            if before != facts:
                other = next(k for k in facts if before.get(k) != facts[k])
                raise BadRequest(
                    f"{self._folder} holds text captured with another {other} ({before.get(other)}, now {facts[other]}); "
                    "give another folder, or the same settings to go on"
                )
            return
        staging = place.with_suffix(".part")
        staging.write_text(json.dumps(facts, indent=1), "utf-8")
        staging.replace(place)

    def run(self, tell: Tell = lambda documents, tokens: None) -> int:
        """Writes the shards that are missing; returns the number of documents in all."""
        settings, size = self._settings, self._settings.per_shard
        shards = -(-settings.documents // size)
        missing = [n for n in range(shards) if documents_in(shard_path(self._folder, n)) < self._size(n)]
        waiting: dict[int, list[Document | None]] = {n: [None] * self._size(n) for n in missing}
        numbers = iter([n * size + i for n in missing for i in range(self._size(n))])
        answers = 0
        try:
            for number, document in self._documents(numbers):
                shard = number // size
                waiting[shard][number % size] = document
                answers += len(document.tokens) - document.answer
                done = [d for d in waiting[shard] if d is not None]
                if len(done) == len(waiting[shard]):
                    self._write(shard, done)
                    del waiting[shard]
                    tell(settings.documents - sum(map(len, waiting.values())), answers)
        finally:
            self._engine.close()
        return settings.documents

    def _size(self, shard: int) -> int:
        return min(self._settings.per_shard, self._settings.documents - shard * self._settings.per_shard)

    def _write(self, shard: int, documents: Sequence[Document]) -> None:
        try:
            write_shard(self._folder, shard, documents)
        except OSError as error:
            raise BackendError(
                f"shard {shard} cannot be written to {self._folder} ({error}); free some space and run the same command again: "
                "the shards before it are kept"
            ) from None

    def _documents(self, numbers: Iterator[int]) -> Iterator[tuple[int, Document]]:
        jobs: dict[int, _Job] = {}
        left = True
        while jobs or left:
            while left and len(jobs) < self._settings.rows:
                number = next(numbers, None)
                if number is None:
                    left = False
                else:
                    job = self._begin(number)
                    jobs[job.row.id] = job
            self._engine.step()
            for job in [job for job in jobs.values() if job.row.done]:
                del jobs[job.row.id]
                if (following := self._ended(job)) is None:
                    yield job.number, self._document(job.row)
                else:
                    jobs[following.row.id] = following

    def _begin(self, number: int) -> _Job:
        rng = random.Random(f"{self._settings.seed} {number}")
        if self._prompts:
            prompt = self._prompts[number % len(self._prompts)]
            return _Job(number, rng, self._answer(list(prompt)[: self._room], rng), None)
        return self._turn(number, rng)

    def _turn(self, number: int, rng: random.Random) -> _Job:
        """A user turn, still to be written."""
        opened = opening(self._codec, rng)
        params = SamplingParams(
            max_tokens=min(opened.most, self._room - len(opened.tokens)),
            temperature=1.0,
            top_k=self._settings.top_k,
            seed=rng.getrandbits(31),
            stop=(self._closing,) if self._closing else (),
        )
        return _Job(number, rng, self._engine.add(list(opened.tokens), params), opened)

    def _ended(self, job: _Job) -> _Job | None:
        """What follows: the answer to a turn, or another turn where this one says nothing; None: the answer is there."""
        if job.row.error is not None:
            raise job.row.error
        if job.opened is None:
            return None
        self._recorder.take(job.row)
        turn = job.opened.start + job.row.text
        if not usable(turn, job.opened):
            return self._turn(job.number, job.rng)
        prompt = self._codec.prompt([{"role": "user", "content": turn}] if self._codec.has_template else turn)
        return _Job(job.number, job.rng, self._answer(prompt[: self._room], job.rng), None)

    def _answer(self, prompt: list[int], rng: random.Random) -> Row:
        temperature = rng.choice(self._settings.temperatures)
        params = SamplingParams(
            max_tokens=self._settings.length,
            temperature=temperature,
            top_k=self._settings.top_k if temperature else 0,
            seed=rng.getrandbits(31),
        )
        return self._engine.add(prompt, params)

    def _document(self, row: Row) -> Document:
        """The target never reads its last token, most often the end. It is a label all the same, so it is kept, and where the
        activations would be stand those of the token before it, which nothing asks for: no token comes behind."""
        read = self._recorder.take(row)
        tokens = row.tokens[: min(map(len, read.values())) + 1]
        hidden = {tap: torch.cat([found, found[-1:]])[: len(tokens)] for tap, found in read.items()}
        return Document(torch.tensor(tokens, dtype=torch.int32), min(row.n_prompt, len(tokens)), hidden)
