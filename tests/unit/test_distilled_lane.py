"""The distilled draft at work: its cache against whole readings, and engines with it against plain decoding."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from tiny_llama import VOCAB, tiny_llama
from toys import Truth, fixed

from surefoot.backends.torch import TorchModel
from surefoot.core.params import SamplingParams
from surefoot.drafters.distilled import KEPT, DistilledLane
from surefoot.drafters.distilled_cache import Held, common
from surefoot.drafters.head import HeadDrafter
from surefoot.errors import BadDraft
from surefoot.heads.distilled import Distilled, DistilledStep
from surefoot.train.layers import read_layers

PROMPT = [(7 * i + i // 5) % VOCAB for i in range(30)]


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def target(model):
    target = TorchModel(model, max_rows=24)
    target.adopt(target.probe())
    return target


@pytest.fixture(scope="module")
def whole(model, target, tmp_path_factory):
    """All layers and all tokens: it agrees with the target."""
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    found = read_layers(folder, [0, 1, 2])
    module = Distilled(found.config, target.ends())
    module.load_state_dict(dict(found.tensors))
    return module.eval()


def worse(whole, by=0.05, draft_ids=None, seed=2):
    """Right now and then; layers of its own."""
    ends = SimpleNamespace(embedding=whole._embedding, head=whole._head, bias=None)
    module = Distilled(whole.config, ends, draft_ids)
    generator = torch.Generator().manual_seed(seed)
    module.load_state_dict({k: v + by * torch.randn(v.shape, generator=generator) for k, v in whole.state_dict().items()})
    return module.eval()


def padded(module, example, dynamic=()):
    """A compiler that compiles nothing, holds its callers to what they said would vary, and hands out buffers."""
    assert isinstance(module, DistilledStep)
    shapes = [x.shape for x in example]
    buffers = []

    def run(*arguments):
        for x, shape, vary in zip(arguments, shapes, dynamic, strict=True):
            assert x.ndim == len(shape)
            assert all(i in vary or x.shape[i] == n for i, n in enumerate(shape))
            assert x.dtype in (torch.float32, torch.int64)
            assert x.isfinite().all()
        assert arguments[0].shape[1] in (2, 4, 8, 16, 32, 64, 128, 256)
        assert all(x.shape[2] % 128 == 0 < x.shape[2] for x in arguments[4:])
        for buffer in buffers:
            buffer.fill_(torch.nan)
        buffers[:] = module(*arguments)
        return tuple(buffers)

    return run


def row_of(tokens, id=0):
    return SimpleNamespace(id=id, tokens=list(tokens))


@torch.no_grad()
def truth(module, tokens):
    return module.says(module(torch.tensor([tokens])))[0, -1]


def agree(module, logits, texts):
    for found, text in zip(logits, texts, strict=True):
        assert (found - truth(module, text)).abs().max() < 2e-4


@pytest.mark.parametrize("compile", [None, padded])
def test_random_rounds_are_the_whole_reading(whole, compile):
    """Several rows, trees of random shape, and any part of a draft accepted, or none of it."""
    module = worse(whole)
    lane = DistilledLane(module, compile=compile, chunk=16)
    rng = random.Random(4)
    rows = [row_of(PROMPT[:n], id=n) for n in (1, 2, 11, 29)]
    for _ in range(12):
        live = rng.sample(rows, rng.randint(1, 4))
        nodes = [(lane.root(row), list(row.tokens[:-1]), row.tokens[-1]) for row in live]
        paths = {row.id: [[]] for row in live}
        owner = list(live)
        for _ in range(rng.randint(0, 3)):
            states, logits = lane.step([n[0] for n in nodes], [n[2] for n in nodes])
            texts = [[*text, token] for _, text, token in nodes]
            agree(module, logits, texts)
            following = []
            for state, text, row in zip(states, texts, owner):
                for token in rng.sample(range(VOCAB), rng.randint(0, 2)):
                    following.append((state, text, token, row))
                    paths[row.id].append([*text[len(row.tokens) :], token])
            rng.shuffle(following)
            nodes, owner = [f[:3] for f in following], [f[3] for f in following]
            if not nodes:
                break
        for row in live:
            row.tokens += rng.choice(paths[row.id])
            row.tokens.append(rng.randrange(VOCAB))
        for row in rows:
            if row not in live:
                row.tokens += [rng.randrange(VOCAB) for _ in range(rng.choice((0, 1, 12)))]  # without drafts


def test_states_stay_as_they_were(whole):
    module = worse(whole)
    lane = DistilledLane(module)
    row = row_of(PROMPT)
    root = lane.root(row)
    assert lane.root(row) is root
    [a], _ = lane.step([root], PROMPT[-1:])
    for token in (3, 4, 3):
        [b], logits = lane.step([a], [token])
        agree(module, logits, [[*PROMPT, token]])
        agree(module, lane.step([b], [9])[1], [[*PROMPT, token, 9]])
    row.tokens += [3, 9, 1]
    agree(module, lane.step([lane.root(row)], [1])[1], [row.tokens])
    with pytest.raises(BadDraft):
        lane.step([a], [3])


class Counting(DistilledLane):
    """Tokens of each call of the module."""

    def _call(self, parts):
        self.calls = [*getattr(self, "calls", []), [len(part.tokens) for part in parts]]
        return super()._call(parts)


def test_each_token_is_read_once(whole):
    lane = Counting(worse(whole), chunk=16)
    row = row_of(PROMPT)
    state = lane.root(row)
    assert lane.calls == [[16], [13]]
    for token in (PROMPT[-1], 5, 6, 7):
        [state], _ = lane.step([state], [token])
    row.tokens += [5, 6, 9]  # two of three accepted
    lane.step([lane.root(row)], [9])
    assert lane.calls[2:] == [[1], [1], [1], [1], [1]]
    row.tokens += [2, 3]  # a draft that was right to its end: its last token was never read
    lane.step([lane.root(row)], [3])
    assert lane.calls[7:] == [[2]]


def test_beginnings_are_shared(whole):
    module = worse(whole)
    lane = Counting(module)
    first, second = row_of(PROMPT, 1), row_of([*PROMPT[:20], 1, 2, 3], 2)
    lane.step([lane.root(first)], PROMPT[-1:])
    agree(module, lane.step([lane.root(second)], [3])[1], [second.tokens])
    assert lane.calls == [[29], [1], [3]]
    lane.forget([first, second])
    again = row_of([*PROMPT, 8, 8], 3)
    agree(module, lane.step([lane.root(again)], [8])[1], [again.tokens])
    assert lane.calls[3:] == [[2]]  # what was drafted and accepted counts, too
    for i in range(9):
        lane.root(other := row_of([i] * 25, 10 + i))
        lane.forget([other])
    assert len(lane._ended) == KEPT
    assert len(lane._rows) == 1


def test_rows_together_and_alone_in_turns(whole):
    """The copies of several rows follow what is read of one of them alone, and are made once a round."""
    module = worse(whole)
    lane = DistilledLane(module)
    a, b = row_of(PROMPT, 1), row_of(PROMPT[:9], 2)
    for _ in range(2):
        states, _ = lane.step([lane.root(a), lane.root(b)], [a.tokens[-1], b.tokens[-1]])
        copy = lane._joint._buffer
        [states[0]], _ = lane.step(states[:1], [4])
        states, logits = lane.step(states, [5, 6])
        agree(module, logits, [[*a.tokens, 4, 5], [*b.tokens, 6]])
        [after], _ = lane.step(states[1:], [7])
        for token in range(3):
            states, logits = lane.step([states[0], after], [8, token])
            after = states[1]
        agree(module, logits, [[*a.tokens, 4, 5, 8, 8, 8], [*b.tokens, 6, 7, 0, 1, 2]])
        assert lane._joint._buffer is copy
        a.tokens += [4, 5, 8, 1]
        b.tokens += [6, 3]


def test_no_room(whole):
    lane = DistilledLane(worse(whole), depth=8)
    assert lane.root(row_of([1] * 248)) is not None
    assert lane.root(row_of([1] * 249, 1)) is None


def test_common():
    rng = random.Random(1)
    for _ in range(300):
        a, b = ([rng.randrange(2) for _ in range(rng.randrange(7))] for _ in "ab")
        want = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        assert common(a, b) == want


def test_a_cache_that_grows_keeps_what_it_holds():
    held = Held((2, 1, 2), torch.device("cpu"))
    held.commit(torch.full((2, 1, 3, 2), 5.0))
    path = held.draft((), [7], torch.full((2, 1, 1, 2), 6.0))
    held.draft(path, [8] * 200, torch.full((2, 1, 200, 2), 7.0))
    assert held.buffer[:, :, :5].mean((0, 1, 3)).tolist() == [5, 5, 5, 6, 7]
    held.settle([0, 0, 0, 7])
    assert (held.length, held.used) == (4, 4)


def drafter(module, **options):
    return HeadDrafter(DistilledLane(module, **options), VOCAB, name="distilled", source=1)


def requests():
    return [
        (PROMPT[:n], SamplingParams.build(options))
        for n, options in (
            (1, {"max_tokens": 20, "temperature": 0}),
            (30, {"max_tokens": 24, "temperature": 0}),
            (11, {"max_tokens": 16, "temperature": 1.0, "seed": 5}),
            (17, {"max_tokens": 20, "temperature": 0.8, "top_p": 0.9, "seed": 7, "repetition_penalty": 1.2}),
        )
    ]


@pytest.mark.parametrize("k, width", [(1, 1), (4, 1), (4, 3)])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("compile", [None, padded])
def test_engines_say_what_plain_decoding_says(whole, target, k, width, few, compile):
    module = worse(whole, draft_ids=torch.arange(0, VOCAB, 2) if few else None)
    plain = Truth(target)
    engine = fixed(target, drafter(module, compile=compile), k, width, 12)
    rows = [engine.add(prompt, params) for prompt, params in requests()]
    while not all(row.done for row in rows):
        engine.step()
    assert [tuple(row.output) for row in rows] == [plain(row) for row in rows]
    accepted, drafted = (sum(getattr(row.stats, name) for row in rows) for name in ("accepted_tokens", "draft_tokens"))
    assert 0 < accepted < drafted  # partly right, or the test is about nothing
    assert not engine.drafters["distilled"].lane._rows


def test_draws_report_the_law_that_they_were_drawn_from(whole, target):
    """Without a seed the rules use q. The target's own law is always accepted, and of a worse one only some draws."""
    out = fixed(target, drafter(whole), 4).generate(PROMPT, max_tokens=41, temperature=1.0)
    assert out.stats.accepted_tokens >= out.stats.draft_tokens - 1 > 30  # rounding may cost one
    out = fixed(target, drafter(worse(whole)), 4).generate(PROMPT, max_tokens=80, temperature=1.0)
    assert 0 < out.stats.accepted_tokens < out.stats.draft_tokens


@pytest.mark.parametrize("draft_ids", [None, torch.arange(0, VOCAB, 2)])
def test_compiled_by_openvino(whole, draft_ids):
    from surefoot.backends.openvino.function import compile_module

    def compiled(module, example, dynamic=()):
        return compile_module(module, example, dynamic, precision="f32", threads=1, weights="plain")

    module = worse(whole, draft_ids=draft_ids)
    lane = DistilledLane(module, compile=compiled)
    first, second = row_of(PROMPT, 1), row_of([*PROMPT, *PROMPT, *PROMPT][:71], 2)
    states, logits = lane.step([lane.root(first), lane.root(second)], [first.tokens[-1], second.tokens[-1]])
    agree(module, logits, [first.tokens, second.tokens])
    states, logits = lane.step([states[1], states[1], states[0]], [4, 6, 8])
    agree(module, logits, [[*second.tokens, 4], [*second.tokens, 6], [*first.tokens, 8]])
    second.tokens += [6, 3, 2]
    agree(module, lane.step([lane.root(second)], [2])[1], [second.tokens])


def test_garbage_changes_nothing(whole, target):
    plain = Truth(target)
    engine = fixed(target, drafter(worse(whole, by=3.0)), 3)
    for prompt, params in requests():
        row = engine.add(prompt, params)
        while not row.done:
            engine.step()
        assert tuple(row.output) == plain(row)


def test_forks_and_aborts(whole, target):
    plain = Truth(target)
    engine = fixed(target, drafter(worse(whole)), 4)
    row = engine.add(PROMPT, SamplingParams(max_tokens=30))
    other = engine.add(PROMPT[:9], SamplingParams(max_tokens=30))
    for _ in range(4):
        engine.step()
    fork = engine.fork(row, [3, 1])
    for _ in range(2):
        engine.step()
    engine.abort(other)
    more = engine.fork(row)
    while not (row.done and fork.done and more.done):
        engine.step()
    for each in (row, fork, more):
        assert tuple(each.output) == plain(each)
    lane = engine.drafters["distilled"].lane
    assert not lane._rows
    assert not lane._roots


def test_several_answers(whole, target):
    found = fixed(target, drafter(worse(whole)), 3).generate(PROMPT, n=3, max_tokens=12, temperature=1.0, seed=3)
    want = fixed(target, drafter(worse(whole, by=2.0)), 2).generate(PROMPT, n=3, max_tokens=12, temperature=1.0, seed=3)
    assert [c.token_ids for c in found.choices] == [c.token_ids for c in want.choices]


def test_a_whole_copy_is_always_right(whole, target):
    engine = fixed(target, drafter(whole), 4)
    out = engine.generate(PROMPT, max_tokens=41, temperature=0)
    assert out.stats.draft_tokens == out.stats.accepted_tokens > 0
    assert out.stats.passes < 12
