"""A target cut twice: what the shallow exit ran is not run again for the deep one, nor for verification, on either backend.

The deep exit reviews what the shallow one drafts (a cascade within one model); heads know nothing, outputs stay what they are.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from contract.conftest import VOCAB
from contract.test_early_exit import BACKENDS, EXACT, PROMPT, case, chain, counted, head, prefill  # noqa: F401
from toys import run

from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.protocols import Need
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.lane import read
from surefoot.drafters.lane_target import LaneTarget
from surefoot.errors import BadRequest

SHALLOW, DEEP = 1, 3
TAIL = PROMPT[3:9]


@pytest.mark.parametrize("backend", BACKENDS)
def test_streams_of_several_tokens(case, backend):  # noqa: F811
    target = case(backend, "two")
    slots = [prefill(target, PROMPT), prefill(target, PROMPT[:15])]
    want = {}
    for layer in (SHALLOW, DEEP):
        want[layer] = [
            torch.cat([target.prefix([slot], [TAIL[: i + 1]], layer) for i in range(len(TAIL))]).clone() for slot in slots
        ]
        end_round(target, slots)
    chains = [TAIL[:5], TAIL[:2]]
    for layer in (DEEP, SHALLOW):
        for counts in ([5, 1], [2, 2], [1, 1]):
            found = target.prefix(slots, chains, layer, counts)
            parts = [want[layer][b][len(c) - n : len(c)] for b, (c, n) in enumerate(zip(chains, counts, strict=True))]
            assert torch.equal(found, torch.cat(parts))
    assert torch.equal(target.prefix(slots, chains, DEEP), torch.stack([want[DEEP][0][4], want[DEEP][1][1]]))
    for counts in ([0, 1], [1, 3]):
        with pytest.raises(BadRequest, match="counts has"):
            target.prefix(slots, chains, DEEP, counts)
    target.close(slots)


def end_round(target: Any, slots: Any) -> None:
    """What was run is dropped."""
    target.score(slots, Forest.pack([DraftTree.chain([1])] * len(slots), min_width=target.traits.min_width), Need())
    target.commit(slots, [[]] * len(slots))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_deeper_cut_goes_on_from_a_shallower_one(case, backend, monkeypatch):  # noqa: F811
    target = case(backend, "two")
    a, b = prefill(target, PROMPT), prefill(target, PROMPT)
    want = chain(target, a, [*TAIL[:3], 5, 6])[0]
    ran = counted(target, monkeypatch)

    def prefix(tokens, layer, *counts):
        ran.clear()
        target.prefix([b], [tokens], layer, *counts)
        return list(ran)

    for i in range(4):
        assert prefix(TAIL[: i + 1], SHALLOW) == [(0, 1)]
    assert prefix(TAIL[:4], DEEP, [4]) == [(1, 4)]
    assert prefix(TAIL[:4], DEEP) == prefix(TAIL[:2], DEEP, [2]) == prefix(TAIL[:4], SHALLOW, [4]) == []
    assert prefix(TAIL[:5], DEEP, [1]) == [(0, 1), (1, 1)]
    assert prefix([*TAIL[:3], 5], SHALLOW) == [(0, 1)], "another token takes the fourth one's place"
    assert prefix([*TAIL[:3], 5], DEEP) == [(1, 1)]
    ran.clear()
    assert torch.equal(chain(target, b, [*TAIL[:3], 5, 6])[0], want)
    assert ran == [(0, 1), (1, 1)]
    target.close([a, b])


def ran_once(target: Any, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Fails where a section reads a token twice between two commits; tokens read by section."""
    sections, read_, totals = target._sections, set(), {0: 0, 1: 0}
    advance, commit = sections._advance, target.commit

    def advanced(section, works):
        for work in works:
            tokens = tuple(sections.progress._chains[id(work.slot)][1].tokens)
            for end in range(work.ahead + 1, work.ahead + len(work.tokens) + 1):
                key = section, id(work.slot), tokens[:end]
                assert key not in read_, "run again"
                read_.add(key)
                totals[section] += 1
        return advance(section, works)

    def committed(slots, paths):
        read_.clear()
        commit(slots, paths)

    monkeypatch.setattr(sections, "_advance", advanced)
    monkeypatch.setattr(target, "commit", committed)
    return totals


def two_exits(target: Any, kind: str, k: int, bottom: int, confidence: float = 0.0, shared: bool = False) -> Engine:
    shallow = HeadDrafter(ExitLane(head(target, SHALLOW, kind), target), VOCAB, name="shallow", source=1)
    deep = HeadDrafter(ExitLane(head(target, DEEP, kind, seed=5), target), VOCAB, name="deep", source=2)
    middle = LaneTarget(deep.lane, VOCAB, paths=deep.paths if shared else None)
    inner = Engine(middle, [Below(shallow)], FixedController("shallow", bottom), reuse=False)
    cascade = CascadeDrafter(inner, VOCAB, confidence=confidence, name="cascade", source=3)
    return Engine(target, [shallow, deep, cascade], FixedController("cascade", k))


@pytest.mark.parametrize("kind", ["kangaroo", "bare"])
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b in EXACT])
def test_shared_layers_run_once(case, backend, kind, monkeypatch):  # noqa: F811
    target = case(backend, "two")
    options = [
        {"max_tokens": 22, "temperature": 0},
        {"max_tokens": 12, "temperature": 1.0, "seed": 5, "top_k": 12},
        {"max_tokens": 15, "temperature": 0, "repetition_penalty": 1.3},
    ]
    requests = [(PROMPT[i : 12 + 3 * i], option) for i, option in enumerate(options)]
    plain = Engine(target)
    want = [run(plain, request)[0].token_ids for request in requests]
    plain.close()
    with monkeypatch.context() as patch:
        totals = ran_once(target, patch)
        for k, bottom, shared in ((4, 2, False), (6, 4, True), (3, 0, False)):
            engine = two_exits(target, kind, k, bottom, shared=shared)
            found = run(engine, *requests)
            assert [c.token_ids for c in found] == want
            alone = run(engine, requests[0])[0]
            assert alone.token_ids == want[0]
            engine.close()
            assert alone.stats.draft_tokens > 0
            if not bottom:
                assert totals[0] == totals[1]
    assert totals[0] >= totals[1] > 0
    assert not target._sections.progress._chains


@pytest.mark.parametrize("kind", ["kangaroo", "eesd", "bare"])
@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_the_cascade_drafts_what_the_deep_exit_says_alone(case, backend, kind):  # noqa: F811
    """Whatever the shallow exit drafts below, and whether chains are read at once or step by step."""
    target = case(backend, "two")
    drafts = []
    for name in ("deep", "cascade"):
        engine = two_exits(target, kind, 5, 3)
        drafter = engine.drafters[name]
        propose, said = drafter.propose, []

        def proposed(rows, plans, propose=propose, said=said):
            trees = propose(rows, plans)
            said += [tree.tokens.tolist() for tree in trees]
            return trees

        drafter.propose = proposed
        engine = Engine(target, list(engine.drafters.values()), FixedController(name, 5))
        engine.generate(PROMPT, max_tokens=24, temperature=0)
        engine.close()
        drafts.append(said)
    assert drafts[0] == drafts[1]
    assert max(map(len, drafts[0])) == 6


@pytest.mark.parametrize("kind", ["kangaroo", "eesd", "bare"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_reading_is_stepping(case, backend, kind):  # noqa: F811
    target = case(backend, "two")
    lane = ExitLane(head(target, DEEP, kind), target)
    engine = Engine(target, [HeadDrafter(lane, VOCAB, name="deep", source=1)], FixedController("deep", 2))
    rows = [engine.add(PROMPT[: 9 + i]) for i in range(2)]
    for _ in range(2):
        engine.step()
    chains = [[row.tokens[-1], 7, 8, 9][: 4 - i] for i, row in enumerate(rows)]
    roots = [lane.root(row) for row in rows]
    _, said = read(lane, roots, chains)
    for root, tokens, found in zip(roots, chains, said, strict=True):
        states, lines = [root], []
        for token in tokens:
            states, logits = lane.step(states, [token])
            lines.append(logits)
        torch.testing.assert_close(found, torch.cat(lines), atol=1e-4, rtol=1e-4)
    engine.close()
