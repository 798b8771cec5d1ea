"""EAGLE lanes: what they say step by step is what the head says of the whole text at once, whatever was drafted in between."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from eagle_toys import IDS, LAYERS, Fed, H, V, eagle, eagle3, ends

from surefoot.drafters.eagle import EagleLane
from surefoot.errors import BadRequest, Unsupported
from surefoot.heads.eagle_layer import logits, whole
from surefoot.train.recipes.eagle_unroll import unroll

HEADS = {
    "eagle": lambda: eagle(ends(bias=True), None, fc_bias=True),
    "eagle-reduced": lambda: eagle(ends(bias=True), IDS, scale=torch.rand(2 * H) + 0.5),
    "eagle3": lambda: eagle3(ends()),
    "eagle3-normed": lambda: eagle3(ends(), norm_before_residual=True),
    "eagle3-tied": lambda: eagle3(ends(bias=True), tied=True),
}


def text(n: int, seed: int = 3):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, (n,), generator=g)
    taps = {tap: torch.randn(n, H, generator=g) for tap in (2, 3, LAYERS + 1)}
    return tokens, taps


def features(head, taps):
    return torch.cat([taps[tap] for tap in head.taps(LAYERS)], 1)


@torch.no_grad()
def expected(head, tokens, taps, n: int, begin: int = 0):
    """Logits after n tokens, of which the last is pending: all pairs from ``begin`` on, read at once."""
    x = features(head, taps)[None, begin : n - 1]
    _, found = whole(head, tokens[None, begin + 1 : n], x, torch.arange(begin, n - 1)[None])
    return found[0, -1]


def close(found, wanted):
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


@pytest.fixture(params=list(HEADS))
def head(request):
    return HEADS[request.param]()


def test_training_steps_are_decoding_steps(head):
    """Step k of the unroll at base p == the k-th drafted step of the lane whose newest feature is of token p."""
    n, steps = 14, 4
    tokens, taps = text(n)
    with torch.no_grad():
        found = [logits(head, x)[0] for x in unroll(head, tokens[None], features(head, taps)[None], steps)]
    for p in (0, 1, 5, 9):
        lane = EagleLane(head, LAYERS)
        fed = Fed(lane, tokens, taps)
        fed.see(p + 1, prefill=True)
        state = lane.root(fed.row)
        assert state is not None
        for k in range(steps):
            lane.step([state, state], [(int(tokens[p + 1 + k]) + 1) % V, 4])  # branches beside the chain leave it as it was
            (state, _), said = lane.step([state, state], [int(tokens[p + 1 + k]), 9])
            close(said[0], found[k][p])


def test_unroll_has_no_view_of_what_comes_later(head):
    tokens, taps = text(12)
    other, others = tokens.clone(), {tap: x.clone() for tap, x in taps.items()}
    other[9:] = (other[9:] + 1) % V
    for x in others.values():
        x[7:] += 1.0
    a = unroll(head, tokens[None], features(head, taps)[None], 3)
    b = unroll(head, other[None], features(head, others)[None], 3)
    for k in range(3):  # base 6 of step k reads token 6 + 1 + k at the latest
        last = 6 if k < 2 else 5
        torch.testing.assert_close(a[k][:, : last + 1], b[k][:, : last + 1])
        assert not torch.allclose(a[k][:, 7], b[k][:, 7])


@pytest.mark.parametrize("seed", range(4))
def test_rounds_with_partial_accepts_equal_a_reading_from_scratch(head, seed):
    """Drafts of every round are refused, taken in part or whole; the next round knows nothing of what was not taken."""
    rng = np.random.default_rng(seed)
    tokens, taps = text(120, seed)
    lane = EagleLane(head, LAYERS)
    fed = Fed(lane, tokens, taps)
    for n in rng.integers(1, 9, 3):
        fed.see(int(n), prefill=True)
    while len(fed.row.tokens) < 80:
        fed.see(int(rng.integers(1, 6)))
        if rng.random() < 0.3:
            continue  # a round of plain decoding
        root = lane.root(fed.row)
        assert lane.root(fed.row) is root
        n = len(fed.row.tokens)
        states, said = lane.step([root], [fed.row.tokens[-1]])
        close(said[0], expected(head, tokens, taps, n))
        again, same = lane.step([root], [fed.row.tokens[-1]])
        assert torch.equal(same, said)
        assert again[0] is states[0]
        for _ in range(int(rng.integers(0, 4))):  # a tree of drafts
            width = int(rng.integers(1, 4))
            new, _ = lane.step(
                [states[int(i)] for i in rng.integers(0, len(states), width)], rng.integers(0, V, width).tolist()
            )
            states += new


def test_rows_together_say_what_each_says_alone(head):
    tokens, taps = zip(*(text(30, seed) for seed in range(3)), strict=True)
    lengths = (4, 11, 20)

    def drafted(rows):
        lane = EagleLane(head, LAYERS)
        fed = [Fed(lane, tokens[i], taps[i], id=i) for i in rows]
        for one, i in zip(fed, rows, strict=True):
            one.see(lengths[i], prefill=True)
        states, first = lane.step([lane.root(one.row) for one in fed], [one.row.tokens[-1] for one in fed])
        # interleaved rows: two children each
        _, second = lane.step(states * 2, [3] * len(rows) + [5] * len(rows))
        return first, second.unflatten(0, (2, -1))

    first, second = drafted([0, 1, 2])
    for i in range(3):
        alone, below = drafted([i])
        close(first[i], alone[0])
        close(second[:, i], below[:, 0])


def test_the_first_token_may_be_another_than_the_rows_last(head):
    tokens, taps = text(20)
    lane = EagleLane(head, LAYERS)
    fed = Fed(lane, tokens, taps)
    fed.see(9, prefill=True)
    root, last = lane.root(fed.row), fed.row.tokens[-1]
    other = (last + 3) % V
    _, said = lane.step([root, root], [other, last])
    changed = tokens.clone()
    changed[9] = other
    close(said[0], expected(head, changed, taps, 10))
    close(said[1], expected(head, tokens, taps, 10))


def test_a_prefix_that_another_request_read_is_not_seen(head):
    tokens, taps = text(40)
    lane = EagleLane(head, LAYERS)
    fed = Fed(lane, tokens, taps)
    fed.see(5, prefill=True, skipped=20)
    _, said = lane.step([lane.root(fed.row)], [fed.row.tokens[-1]])
    close(said[0], expected(head, tokens, taps, 26, begin=20))


def test_the_oldest_pairs_make_room(head):
    tokens, taps = text(90)
    lane = EagleLane(head, LAYERS, context=16)
    fed = Fed(lane, tokens, taps)
    fed.see(40, prefill=True)
    _, said = lane.step([lane.root(fed.row)], [fed.row.tokens[-1]])
    close(said[0], expected(head, tokens, taps, 41, begin=24))
    fed.see(3)
    _, said = lane.step([lane.root(fed.row)], [fed.row.tokens[-1]])  # 16 + 3 do not fit: half of the context stays
    close(said[0], expected(head, tokens, taps, 44, begin=35))
    fed.see(2)
    _, said = lane.step([lane.root(fed.row)], [fed.row.tokens[-1]])
    close(said[0], expected(head, tokens, taps, 46, begin=35))
    assert len(lane._rows[0].store) <= 64


def test_no_root_without_the_newest_activation(head):
    tokens, taps = text(20)
    lane = EagleLane(head, LAYERS)
    fed = Fed(lane, tokens, taps)
    fed.row.tokens = [1]
    assert lane.root(fed.row) is None
    fed.see(5, prefill=True)
    assert lane.root(fed.row) is not None
    fed.row.tokens = [*fed.row.tokens, 3]  # a pass that the lane did not see
    assert lane.root(fed.row) is None
    fed.see(4, skipped=1)
    assert lane.root(fed.row) is not None
    lane.forget([fed.row])
    assert lane.root(fed.row) is None
    assert not lane._rows


def test_roots_that_were_not_stepped_from_are_made_up_for(head):
    tokens, taps = text(40)
    lane = EagleLane(head, LAYERS)
    fed = Fed(lane, tokens, taps)
    fed.see(5, prefill=True)
    for _ in range(3):
        fed.see(3)
        lane.root(fed.row)
    _, said = lane.step([lane.root(fed.row)], [fed.row.tokens[-1]])
    close(said[0], expected(head, tokens, taps, 15))


def test_compiled_halves_may_reuse_their_buffers(head):
    """Both halves go through ``compile``, and what states hold survives the next call's results."""
    sizes = []

    def compile(module, example, dynamic=()):
        assert [len(x) for x in example] == [2] * len(example)
        assert [list(d) for d in dynamic] == [[0]] * len(example)
        held: dict[int, list[torch.Tensor]] = {}

        def run(*inputs):
            sizes.append(len(inputs[0]))
            out = module(*inputs)
            mine = held.setdefault(len(out[0]), [torch.empty_like(x) for x in out])
            for buffer, x in zip(mine, out, strict=True):
                buffer.copy_(x)
            return tuple(mine)

        return run

    tokens, taps = text(80)
    said = []
    for quick in (None, compile):
        lane = EagleLane(head, LAYERS, compile=quick)
        fed = Fed(lane, tokens, taps)
        fed.see(40, prefill=True)
        found = []
        for _ in range(3):
            root = lane.root(fed.row)
            (a,), first = lane.step([root], [fed.row.tokens[-1]])
            (b,), x = lane.step([a], [3])
            found += [first.clone(), x.clone()]
            (c,), x = lane.step([b], [4])
            found.append(x.clone())
            found.append(lane.step([a, c, b], [1, 2, 3])[1].clone())
            found.append(lane.step([root], [fed.row.tokens[-1]])[1].clone())
            fed.see(2)
        said.append(found)
    for a, b in zip(*said, strict=True):
        close(a, b)
    assert max(sizes) == 40, "what a prompt brought goes through them at once"
    assert 3 in sizes


@pytest.mark.parametrize("options, says", [({"depth": 0}, "depth"), ({"context": 3}, "context")])
def test_options_out_of_range_are_refused(options, says):
    with pytest.raises(BadRequest, match=says):
        EagleLane(HEADS["eagle"](), LAYERS, **options)


def test_taps_beyond_the_target_are_refused():
    own = eagle3(ends(), layers=(2, 3, LAYERS + 1))
    assert EagleLane(own, LAYERS).needs.hidden == (2, 3, LAYERS + 1)
    with pytest.raises(Unsupported, match=f"after layer {LAYERS + 1}, the target has {LAYERS - 1}"):
        EagleLane(own, LAYERS - 1)
