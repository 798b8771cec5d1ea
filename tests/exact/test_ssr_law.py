"""The exact joint law of requests that are forked while they think, in all phases of their answers and under every rule.

The toy thinks from its prompt on and may end its thought, answer and think again at any token. Each branch of the enumeration
has an engine of its own, so that what forks said and drafters learned is the same up to where the branches part.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from exact.joint import CAUGHT, PROMPT, TOLERANCE, Law, distance, toy
from exact.reference import World
from toys import ToyCodec
from toys_grammar import ToyGrammars
from toys_ssr import SSR, forking

from surefoot.core.engine import Engine
from surefoot.core.noise import Noise, enumerate_law
from surefoot.core.params import SamplingParams
from surefoot.core.pool import Pool
from surefoot.core.request import Row
from surefoot.core.shaping import State
from surefoot.core.tree import DraftTree
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.ssr import Family, SsrSource

START, WORD, END = PROMPT[0], 1, 2
TARGET = toy(3, seed=4)
PIECES = [b"<", b"w", b">"]
FAMILY = Family("toy", "<", ">", ">")
LONG = 9
RULES = ("auto", "coupled", "ratio", "block", "traversal")
KINDS: dict[str, dict] = {
    "once": {"draft_budget": 1},
    "at-once": {"draft_budget": 0, "draft_tokens": 1},
    "late": {"draft_budget": 2},
    "iterative": {"draft_budget": 1, "interval": 1, "max_drafts": 3, "drafts": 1},
    "several": {"draft_budget": 1, "interval": 1, "max_drafts": 4, "drafts": 3},
    "prefix": {"draft_budget": 1, "suffix": False},
    "suffix": {"draft_budget": 0, "prefix": False},
}
OPTIONS: dict[str, dict] = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": -0.6},
    "bad-ids": {"bad_words_ids": [[1, 2, 2], [1, 1, 1]]},
    "bad-texts": {"bad_words": [">w>", "ww<"]},
    "grammar": {"structured_outputs": {"regex": "w(>w|w)*>?"}, "constrain_after": ">"},
    "budget": {"thinking_budget": 2, "thinking_start": "<", "thinking_end": ">"},
    "top_k": {"top_k": 2},
}


class Watched(dict):
    """Outcomes: their masses, and how often tokens of drafts were refused, and kept in either phase."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()


Change = Callable[[SsrSource, HybridDrafter], None]


def engine(kind: str, k: int = 3, width: int = 1, change: Change | None = None, others: bool = False) -> Engine:
    codec = ToyCodec(PIECES)
    made, ssr = forking(
        TARGET,
        PIECES,
        family=FAMILY,
        codec=codec,
        k=k,
        width=width,
        others=others,
        engine={"reuse": False, "grammars": ToyGrammars(codec.pieces)},
        **KINDS[kind],
    )
    if change is not None:
        hybrid = made.drafters["hybrid"]
        assert isinstance(hybrid, HybridDrafter)
        change(ssr, hybrid)
    return made


def observed(make: Callable[[], Engine], params: SamplingParams, beside: bool = False) -> Watched:
    found = Watched()

    def once(noise: Noise) -> tuple[int, ...]:
        e = make()
        other = e.add([START, WORD], SamplingParams(max_tokens=9, temperature=1.0, seed=5)) if beside else None
        row = e.add(PROMPT, params, noise=noise)
        while not row.done:
            e.step()
        if other is not None:
            e.abort(other)
        drafted = row.stats.by_source.get("ssr")
        if drafted is not None:
            found.counts["refused"] += drafted.draft_tokens - drafted.accepted_tokens
        if row.stats.ssr is not None:
            told = row.stats.ssr.to_dict()
            found.counts.update({name: told[name] for name in ("drafts", "prefix_tokens", "suffix_tokens")})
        return tuple(row.output)

    masses: dict[tuple[int, ...], float] = defaultdict(float)
    for tokens, mass in enumerate_law(once):
        masses[tokens] += mass
    found.update(masses)
    assert abs(sum(found.values()) - 1.0) <= TOLERANCE
    return found


def whole(rule: str, n: int = 6, **options) -> dict:
    return {"max_tokens": n, "temperature": 1.0, "verification": rule} | options


@functools.cache
def expected(n: int = 6, name: str = "") -> Law:
    """``budget`` is left to a twin of its own."""
    options = OPTIONS.get(name, {})
    world = World(TARGET, PIECES)
    if name == "budget":
        world.extra = [_hurried]
        options = {}
    return world.joint(PROMPT, whole("auto", n, **options))


def _hurried(prompt, output, x):
    """Thinking is over behind two of its tokens, whatever the model wants; all of it counts together."""
    inside, spent = True, 0
    for token in output:
        spent += inside
        inside = token == START if not inside else token != END and (spent <= 2)
    forced = inside and spent >= 2
    return [0.0 if t == END else -float("inf") for t in range(3)] if forced else x


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_joint_law(kind: str, rule: str) -> None:
    """Two tokens are possible at a time, so that outputs are long enough for all that a draft can go through."""
    seen = observed(lambda: engine(kind), SamplingParams(**whole(rule, LONG, top_k=2)))
    assert distance(seen, expected(LONG, "top_k")) <= TOLERANCE
    assert seen.counts["drafts"], "no request was forked"
    assert seen.counts["refused"], "no token of a draft was ever refused"
    assert bool(seen.counts["prefix_tokens"]) == (kind != "suffix")
    assert bool(seen.counts["suffix_tokens"]) == (kind not in ("prefix", "at-once"))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["once", "several"])
def test_the_joint_law_of_all_tokens(kind: str, rule: str) -> None:
    seen = observed(lambda: engine(kind), SamplingParams(**whole(rule)))
    assert distance(seen, expected()) <= TOLERANCE
    assert seen.counts["prefix_tokens"]


@pytest.mark.parametrize("rule", ["coupled", "ratio", "traversal"])
def test_trees_of_several_drafts(rule: str) -> None:
    seen = observed(lambda: engine("several", 2, 2, others=True), SamplingParams(**whole(rule)))
    assert distance(seen, expected()) <= TOLERANCE
    assert seen.counts["prefix_tokens"] + seen.counts["suffix_tokens"]


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_beside_another_request_that_thinks(rule: str) -> None:
    seen = observed(lambda: engine("iterative"), SamplingParams(**whole(rule, 5)), beside=True)
    assert distance(seen, expected(5)) <= TOLERANCE
    assert seen.counts["prefix_tokens"]


@pytest.mark.parametrize("rule", ["auto", "ratio", "block"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_look_at_tokens(name: str, rule: str) -> None:
    seen = observed(lambda: engine("iterative"), SamplingParams.build(whole(rule, 5, **OPTIONS[name])))
    assert distance(seen, expected(5, name)) <= TOLERANCE
    assert seen.counts["drafts"]
    assert name == "bad-texts" or seen.counts["prefix_tokens"] + seen.counts["suffix_tokens"]


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_changes_the_law(name: str) -> None:
    assert distance(expected(5, name), expected(5)) > CAUGHT


def _committed(ssr: SsrSource, hybrid: HybridDrafter) -> None:
    """A token of a fork becomes one of its request."""
    shipped = ssr._read

    def read(fork) -> None:
        said = len(fork.reference.tokens)
        shipped(fork)
        for row in ssr._engine._pool.running:  # type: ignore[union-attr]
            own = ssr._rows.get(row.id)
            if own is fork.parent and not said and fork.reference.tokens and not row.done:
                row.commit(fork.reference.tokens[:1], [SSR])

    ssr._read = read  # type: ignore[method-assign]


def _claimed(ssr: SsrSource, hybrid: HybridDrafter) -> None:
    """Drafts are said to be drawn from a law that they were not drawn from."""
    shipped = hybrid._one

    def one(row, plan) -> DraftTree:
        tree = shipped(row, plan)
        return replace(tree, q=torch.full((len(tree), 3), 1 / 3, dtype=torch.float64)) if len(tree) > 1 else tree

    hybrid._one = one  # type: ignore[method-assign]


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_a_fork_whose_token_leaks_into_its_request_is_caught(rule: str) -> None:
    seen = observed(lambda: engine("once", change=_committed), SamplingParams(**whole(rule, 5)))
    assert distance(seen, expected(5)) > CAUGHT


def test_drafts_that_claim_a_law_are_caught() -> None:
    seen = observed(lambda: engine("once", change=_claimed), SamplingParams(**whole("ratio")))
    assert distance(seen, expected()) > CAUGHT


def test_a_fork_that_writes_into_the_cache_of_its_request_is_caught(monkeypatch) -> None:
    def spawn(self: Pool, row: Row, parent: Row) -> bool:
        row.slot = parent.slot
        self.running.append(row)
        return True

    monkeypatch.setattr(Pool, "spawn", spawn)
    # the cache is no longer that of the request's tokens, which shows as a law or as an error
    try:
        seen = observed(lambda: engine("once"), SamplingParams(**whole("coupled", 5)))
    except Exception:
        return
    assert distance(seen, expected(5)) > CAUGHT


@pytest.mark.parametrize("name", ["penalties", "bad-ids", "bad-texts", "grammar"])
def test_a_fork_that_moves_the_state_of_its_requests_options_is_caught(name: str, monkeypatch) -> None:
    def moved(self: State, tokens, extra: int) -> State:
        made = State(self._parts, tokens)  # the very parts of the request
        for token in tokens[len(tokens) - extra :]:
            made.advance(token)
        return made

    monkeypatch.setattr(State, "moved", moved)
    seen = observed(lambda: engine("once"), SamplingParams.build(whole("coupled", 5, **OPTIONS[name])))
    assert distance(seen, expected(5, name)) > CAUGHT
