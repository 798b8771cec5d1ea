"""Targets cut for early exit: what a drafter ran is not run again, and nothing that it ran shows in any output.

On both backends, with heads that know nothing: the exit's own law decides how long drafts live, never what comes out.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.conftest import VOCAB, tiny
from contract.test_layer_skip import deep
from toys import Custom, fixed, run, tree

from surefoot.backends.openvino import OpenVINOModel, from_transformers
from surefoot.backends.openvino.hardware import native_bf16, shared_core
from surefoot.backends.torch import TorchModel
from surefoot.control.confidence import ConfidenceController
from surefoot.control.costs import LiveCosts
from surefoot.control.thompson import ThompsonController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Exits, Need
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.errors import BadRequest, Unsupported
from surefoot.heads.attention import AttentionConfig
from surefoot.heads.exit import Exit, ExitConfig

EXACT = ("torch", "openvino", "openvino-bf16")
"""Those whose trees give the bits of chains."""
LAYERS = 5
"""Of the models."""
BACKENDS = ("torch", "openvino", "openvino-mask") + (("openvino-bf16",) if native_bf16(shared_core()) else ())
CUTS = {"one": (2,), "two": (1, 3)}
PROMPT = [(7 * i + i // 5) % VOCAB for i in range(23)]
ATTENTION = AttentionConfig(32, 4, 2, 8)


@dataclass
class Case:
    model: Any
    folder: Path
    made: dict[tuple[str, str], Any]

    def __call__(self, backend: str, cuts: str = "one") -> Any:
        key = backend, cuts
        if key not in self.made:
            self.made[key] = self.make(backend, CUTS[cuts])
        return self.made[key]

    def make(self, backend: str, cut: Any, **options: Any) -> Any:
        if backend == "torch":
            target: Any = TorchModel(self.model, max_rows=8, cut=cut, **options)
        else:
            numerics = {"precision": "bf16" if backend.endswith("bf16") else "f32"}
            trees = {"trees": "mask" if backend.endswith("mask") else "chains"}
            target = OpenVINOModel(self.folder, kv_tokens=4096, threads=1, cut=cut, **numerics, **trees, **options)
        target.adopt(target.probe())
        return target


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = deep("LlamaConfig")
    return Case(model, from_transformers(model, tmp_path_factory.mktemp("cut") / "model"), {})


def head(target: Any, layer: int, kind: str = "kangaroo", ids: torch.Tensor | None = None, seed: int = 3) -> Exit:
    """One that has learned nothing: its weights are random."""
    torch.manual_seed(seed)
    attention = None if kind == "bare" else ATTENTION
    return Exit(ExitConfig(kind, layer, attention, 48 if kind == "eesd" else 0), target.ends(), ids).eval()


def drafter(
    target: Any, layer: int, kind: str = "kangaroo", name: str = "early_exit", source: int = 1, **more: Any
) -> HeadDrafter:
    return HeadDrafter(ExitLane(head(target, layer, kind, **more), target), VOCAB, name=name, source=source)


def prefill(target: Any, tokens: list[int]) -> Any:
    [slot] = target.open(1)
    target.score([slot], Forest.pack([DraftTree.chain(tokens)], min_width=target.traits.min_width), Need())
    target.commit([slot], [range(len(tokens))])
    return slot


def chain(target: Any, slot: Any, tokens: list[int], need: Need = Need()) -> Any:  # noqa: B008
    forest = Forest.pack([DraftTree.chain(tokens)], min_width=target.traits.min_width)
    scores = target.score([slot], forest, need)
    return scores.logits.clone(), {k: v[: len(tokens)].clone() for k, v in scores.hidden.items()}


def counted(target: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(section, real tokens) of every pass over a section for which a drafter, or the verification after it, asked."""
    sections, found = target._sections, []
    before = sections._advance

    def advance(section, works):
        found.append((section, sum(len(work.tokens) for work in works)))
        return before(section, works)

    monkeypatch.setattr(sections, "_advance", advance)
    return found


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_drafted_is_not_run_again(case, backend, cuts, monkeypatch):
    target = case(backend, cuts)
    layers, tail = CUTS[cuts], PROMPT[3:9]
    need = Need(hidden=layers)
    a, b = prefill(target, PROMPT), prefill(target, PROMPT)
    want, streams = [], {layer: [] for layer in layers}
    for token in tail:
        logits, hidden = chain(target, a, [token], need)
        target.commit([a], [[0]])
        want.append(logits)
        for layer in layers:
            streams[layer].append(hidden[layer])
    ran = counted(target, monkeypatch)
    found = [target.prefix([b], [tail[: i + 1]], layers[-1]).clone() for i in range(len(tail) - 1)]
    assert ran == [(section, 1) for _ in tail[1:] for section in range(len(layers))]
    ran.clear()
    logits, hidden = chain(target, b, tail, need)
    assert ran == [(section, 1) for section in range(len(layers))], "the last token alone is new"
    assert torch.equal(logits, torch.cat(want))
    for layer in layers:
        assert torch.equal(hidden[layer], torch.cat(streams[layer]))
    assert torch.equal(hidden[layers[-1]][:-1], torch.cat(found))
    target.commit([b], [range(3)])
    assert b.length == len(PROMPT) + 3
    assert torch.equal(chain(target, b, tail[3:])[0], torch.cat(want[3:])), "what was accepted is in the cache"
    target.close([a, b])


@pytest.mark.parametrize("backend", BACKENDS)
def test_cuts_and_taps_change_no_logit(case, backend):
    """Loading the model for a drafter must not change what it says. In bf16 an output would, were it not shielded."""
    if backend == "torch":
        whole, others = TorchModel(case.model, max_rows=8), [case(backend)]
    else:
        whole = case.make(backend, None)
        others = [
            case(backend),
            case(backend, "two"),
            case.make(backend, None, taps=(0, 2, 4, 6)),
            case.make(backend, 4, taps=(0, 5)),
        ]
    slot = prefill(whole, PROMPT)
    want = chain(whole, slot, PROMPT[4:9])[0]
    for other in others:
        own = prefill(other, PROMPT)
        assert torch.equal(chain(other, own, PROMPT[4:9])[0], want)
        other.close([own])
    whole.close([slot])


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_token_takes_its_place(case, backend, monkeypatch):
    target, tail = case(backend), PROMPT[3:9]
    a, b = prefill(target, PROMPT), prefill(target, PROMPT)
    want = chain(target, a, tail)[0]
    wrong = [*tail[:2], (tail[2] + 1) % VOCAB, 5, 6, 7]
    for other in (wrong, tail[:2], wrong[:3], [wrong[2]]):
        target.prefix([b], [wrong], 2)
        target.prefix([b], [other], 2)
        ran = counted(target, monkeypatch)
        assert torch.equal(chain(target, b, tail)[0], want)
        common = 0 if other[0] != tail[0] else 2
        assert ran == [(0, len(tail) - common)]
        target.commit([b], [[]])
        ran.clear()
        assert torch.equal(chain(target, b, tail)[0], want)
        assert ran in ([(0, len(tail))], []), "after a commit nothing is taken for granted"  # torch runs it as one pass
        target.commit([b], [[]])
    target.close([a, b])


@pytest.mark.parametrize("backend", BACKENDS)
def test_neighbours_draft_or_not(case, backend):
    target = case(backend)
    tails = [PROMPT[3:9], PROMPT[5:7], PROMPT[1:2]]
    slots = [prefill(target, PROMPT[: 23 - i]) for i in range(3)]
    alone = []
    for slot, tail in zip(slots, tails, strict=True):
        alone.append(chain(target, slot, tail)[0])
        target.commit([slot], [[]])
    for drafted in ([4, 0, 0], [0, 2, 0], [6, 1, 1], [3, 2, 1], [0, 0, 0]):
        for i in range(max(drafted)):
            going = [b for b in range(3) if i < drafted[b]]
            target.prefix([slots[b] for b in going], [tails[b][: i + 1] for b in going], 2)
        held = Forest.pack([DraftTree.chain(t) for t in tails], min_width=target.traits.min_width, hold=[8, 0, 5])
        logits = target.score(slots, held, Need()).logits.clone()
        assert torch.equal(logits, torch.cat(alone)), drafted
        target.commit(slots, [[]] * 3)
    fork = target.fork(slots[0])
    target.prefix([slots[0]], [tails[0][:3]], 2)
    target.prefix([fork], [[9, 9, 9]], 2)
    target.close([fork])
    [other] = target.open(1)
    assert torch.equal(chain(target, slots[0], tails[0])[0], alone[0])
    target.close([*slots, other])


@pytest.mark.parametrize("backend", BACKENDS)
def test_trees_are_run_whole(case, backend):
    target = case(backend, "two")
    assert target.traits.tree
    slot, tail = prefill(target, PROMPT), PROMPT[3:6]
    want = chain(target, slot, tail)[0]
    target.commit([slot], [[]])
    target.prefix([slot], [tail], 3)
    bush = tree([tail[0], 4, tail[1], 5, tail[2]], [-1, 0, 0, 2, 2])
    forest = Forest.pack([bush], min_width=target.traits.min_width)
    found = target.score([slot], forest, Need(hidden=(1, 3))).logits[[0, 2, 4]].clone()
    exact = backend in ("openvino", "openvino-bf16")
    close = torch.equal if exact else lambda x, y: torch.allclose(x, y, atol=1e-3)
    assert close(found, want)
    target.commit([slot], [[0, 2]])
    assert close(chain(target, slot, tail[2:])[0], want[2:])
    target.close([slot])


@pytest.mark.parametrize(
    "backend, kind, lengths",
    [
        *[(backend, "kangaroo", (1, 2, 3, 5, 8)) for backend in ("torch", "openvino")],
        *[(backend, "bare", (2, 5)) for backend in BACKENDS],
        ("torch", "eesd", (3,)),
        ("openvino", "eesd", (3,)),
    ],
)
def test_output_is_that_of_plain_decoding(case, backend, kind, lengths):
    target = case(backend)
    options = [
        {"max_tokens": 22, "temperature": 0},
        {"max_tokens": 9, "temperature": 1.0, "seed": 5, "top_k": 12},
        {"max_tokens": 15, "temperature": 0, "repetition_penalty": 1.3, "logit_bias": {3: -2.0}},
        {"max_tokens": 2, "temperature": 0.7, "seed": 6},
    ]
    requests = [(PROMPT[i : 12 + 3 * i], option) for i, option in enumerate(options)]
    plain = Engine(target)
    want = [run(plain, request)[0].token_ids for request in requests]
    assert [c.token_ids for c in run(plain, *requests)] == want
    plain.close()
    accepted = 0
    for k in lengths:
        engine = fixed(target, drafter(target, 2, kind), k)
        assert [c.token_ids for c in run(engine, *requests)] == want, k
        found = run(engine, requests[0])[0]
        assert found.token_ids == want[0]
        accepted += found.stats.accepted_tokens
        engine.close()
    if kind == "bare":
        assert accepted, "an exit behind two of five layers is right now and then"


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b in EXACT])
def test_trees_aborts_and_forks(case, backend):
    target = case(backend)
    plain = Engine(target)
    want = plain.generate(PROMPT, max_tokens=18, temperature=0).token_ids
    plain.close()
    width = 3 if target.traits.tree else 1
    engine = fixed(target, drafter(target, 2, "eesd"), 3, width, 9)
    rows = [engine.add(PROMPT, SamplingParams(max_tokens=18, temperature=0)) for _ in range(3)]
    for _ in range(4):
        engine.step()
    engine.abort(rows[1])
    fork = engine.fork(rows[0])
    while not all(row.done for row in (rows[0], rows[2], fork)):
        engine.step()
    assert tuple(rows[0].output) == tuple(rows[2].output) == tuple(want)
    assert tuple(rows[1].output) == tuple(want)[: len(rows[1].output)]
    assert tuple(fork.tokens[len(PROMPT) :][:18]) == tuple(want)
    lane = engine.drafters["early_exit"].lane
    engine.close()
    assert not lane._caches
    assert not target._sections.progress._chains, "nothing is kept of rows that ended"


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_drafters_run_on_a_cut_target(case, backend):
    target = case(backend)
    want = Engine(case(backend)).generate(PROMPT, max_tokens=16, temperature=0).token_ids
    ladder = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *PROMPT[: plan.depth]], source=1))
    assert fixed(target, ladder, 4).generate(PROMPT, max_tokens=16, temperature=0).token_ids == want


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_a_draft_stops_behind_an_unsure_token_which_is_verified(case, backend):
    target = case(backend)
    exit_ = drafter(target, 2, "bare")
    costs = LiveCosts(lambda nodes, context: 1.0 + 0.05 * nodes)
    lengths, sure = [], []
    for threshold in (0.0, 0.6, 1.0):
        engine = Engine(target, [exit_], ConfidenceController("early_exit", costs, max_draft=6, threshold=threshold))
        done = engine.generate(PROMPT, max_tokens=20, temperature=0, trace=True)
        assert done.stats.trace is not None
        lengths.append([len(entry.candidates) for entry in done.stats.trace if entry.candidates])
        sure.append(done.token_ids)
        engine.close()
    assert sure[0] == sure[1] == sure[2]
    assert set(lengths[2]) == {1}, "each draft is one unsure token long, and that token is verified"
    assert max(lengths[0]) == 6, "nothing is unsure enough"


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_thompson_chooses_among_the_exits_of_one_target(case, backend):
    target = case(backend, "two")
    want = Engine(target).generate(PROMPT, max_tokens=60, temperature=0).token_ids
    exits = [drafter(target, 1, "kangaroo", "early_exit-1", 1), drafter(target, 3, "bare", "early_exit-3", 2)]
    costs = LiveCosts(lambda nodes, context: 1.0 + 0.01 * nodes)
    controller = ThompsonController([e.name for e in exits], costs, max_draft=4, seed=1)
    engine = Engine(target, exits, controller)
    done = engine.generate(PROMPT, max_tokens=60, temperature=0)
    assert done.token_ids == want
    assert set(done.stats.by_source) == {"early_exit-1", "early_exit-3"}, "both are tried"
    engine.close()


def test_refusals(case):
    for backend in ("torch", "openvino"):
        target = case(backend)
        assert isinstance(target, Exits)
        assert target.cuts == (2,)
        assert target.traits.exits == (1, 2, 3, 4)
        [slot] = target.open(1)
        with pytest.raises(BadRequest, match="cut=3"):
            target.prefix([slot], [[1]], 3)
        target.close([slot])
        with pytest.raises(Unsupported, match="1.." + str(LAYERS - 1)):
            case.make(backend, LAYERS)
        with pytest.raises(Unsupported, match="cut=3"):
            ExitLane(head(target, 3), target)
        with pytest.raises(BadRequest, match="layer="):
            ExitLane(head(target, 0), target)
        assert ExitLane(head(target, 0), target, layer=2).layer == 2
        with pytest.raises(BadRequest, match="depth"):
            ExitLane(head(target, 2), target, depth=0)
    whole = TorchModel(case.model, max_rows=2)
    assert whole.cuts == ()
    with pytest.raises(Unsupported, match="cut=2"):
        whole.prefix(whole.open(1), [[1]], 2)


def test_openvino_gives_blocks_back(case):
    target = case.make("openvino", (1, 3))
    engine = fixed(target, drafter(target, 3), 5)
    run(engine, *[(PROMPT[: 9 + i], {"max_tokens": 12 + i}) for i in range(4)])
    engine.close()
    assert target.pool.free == target.pool.blocks


def test_torch_cuts_layers_of_any_form():
    """Layers that return tuples, layers told apart by their kind, a cache of fixed size; and the model stays as it was."""
    for kind, changes in (
        ("GPT2Config", {}),
        ("MistralConfig", {"sliding_window": 8}),
        (
            "Gemma3TextConfig",
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8},
        ),
    ):
        model = tiny(kind, **changes)
        plain = TorchModel(copy.deepcopy(model), max_rows=4)
        for options in ({}, {"static": True, "capacity_tokens": 800}):
            target = TorchModel(model, max_rows=4, cut=1, **options)
            other = TorchModel(model, max_rows=4, **options)
            slots = [prefill(t, PROMPT) for t in (target, target, other, other)]
            tail = PROMPT[2:7]
            want = [chain(other, slots[2], tail)[0], chain(other, slots[3], tail[:2])[0]]
            for i in range(3):
                target.prefix(slots[:2], [tail[: i + 1], tail[: min(i + 1, 2)]], 1)
            forest = Forest.pack([DraftTree.chain(tail), DraftTree.chain(tail[:2])])
            logits = target.score(slots[:2], forest, Need()).logits
            assert torch.allclose(logits, torch.cat(want), atol=1e-4), (kind, options)
            assert all("forward" not in block.__dict__ for block in model.modules())
        slot = prefill(plain, PROMPT)
        assert torch.allclose(chain(plain, slot, tail)[0], want[0], atol=1e-4)
