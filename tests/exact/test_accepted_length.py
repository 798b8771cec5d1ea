"""How much each rule accepts: which rule beats which, where that is a theorem, and where it is not.

Expected lengths are exact (:mod:`exact.length`); the best that any exact rule can do for one chain is found by a linear
program and by its closed form.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch
from exact.length import World, mean_length
from scipy.optimize import linprog

from surefoot.core.kseq import solve
from surefoot.core.noise import enumerate_law
from surefoot.core.tree import DraftTree
from surefoot.core.verify import verify

ROUNDING = 1e-12
CHAINS = [(3, 1), (3, 2), (3, 3), (3, 4), (4, 1), (4, 2), (4, 3), (5, 2), (6, 1), (6, 2)]
"""(vocabulary, draft length): small enough to enumerate."""
# of siblings, the earlier one has at least what the later one has below it
NESTED = {
    "pair": [-1, 0, 0],
    "first-deeper": [-1, 0, 0, 1],
    "fork-below": [-1, 0, 1, 1],
    "comb": [-1, 0, 0, 1, 1],
    "even": [-1, 0, 0, 1, 2],
    "two-deep": [-1, 0, 0, 1, 3],
}


def chain(length: int) -> list[int]:
    return list(range(-1, length))


def world(number: int, vocab: int) -> World:
    return World(vocab, number, (0.6, 2.0, 4.0)[number % 3], (0.0, 0.5, 0.9)[number // 3 % 3])


@pytest.mark.parametrize("vocab, length", CHAINS)
def test_block_accepts_at_least_what_ratio_accepts_of_a_chain(vocab, length):
    gains = []
    for number in range(20):
        own = world(number, vocab)
        gains.append(mean_length(own, chain(length), "block") - mean_length(own, chain(length), "ratio"))
    assert min(gains) >= -ROUNDING
    if length == 1:
        assert max(gains) <= ROUNDING
    else:
        assert sum(gain > 1e-6 for gain in gains) >= 15


def closed_form(own: World, length: int) -> float:
    """Sum over paths of w(path), w(path x) = min(q(path x), w(path) p(x | path)): no exact rule accepts more of a chain."""
    total, going = 0.0, {(): (1.0, 1.0)}
    for _ in range(length):
        longer = {}
        for path, (w, drafted) in going.items():
            p, q = (law.tolist() for law in own(path))
            longer |= {(*path, x): (min(drafted * q[x], w * p[x]), drafted * q[x]) for x in range(own.vocab)}
        going = longer
        total += sum(w for w, _ in going.values())
    return total


@pytest.mark.parametrize("vocab, length", CHAINS)
def test_block_reaches_the_most_that_any_rule_can_accept_of_a_chain(vocab, length):
    for number in range(6):
        own = world(number, vocab)
        assert mean_length(own, chain(length), "block") == pytest.approx(closed_form(own, length), abs=ROUNDING)


@pytest.mark.parametrize("vocab, length", [(2, 1), (2, 2), (3, 2), (2, 3)])
def test_the_most_is_what_a_linear_program_finds(vocab, length):
    """Over all joint laws of draft, accepted length and next token whose output has the target's law."""
    drafts = list(itertools.product(range(vocab), repeat=length))
    cells = [(x, tau, y) for x in drafts for tau in range(length + 1) for y in range(vocab)]
    for number in range(4):
        own = world(number, vocab)

        def likely(path, which, own=own):
            return float(np.prod([own(path[:i])[which][path[i]] for i in range(len(path))]))

        rows, wanted = [], []
        for x in drafts:
            rows.append([float(cell[0] == x) for cell in cells])
            wanted.append(likely(x, 1))
        for z in itertools.product(range(vocab), repeat=length + 1):
            full = likely(z, 0)
            rows.append([full / likely(z[: t + 1], 0) if (*x[:t], y) == z[: t + 1] else 0.0 for x, t, y in cells])
            wanted.append(full)
        best = linprog([-t for _, t, _ in cells], A_eq=rows, b_eq=wanted)
        assert best.status == 0
        assert mean_length(own, chain(length), "block") == pytest.approx(-best.fun, abs=1e-7)


def published(x, p, q):
    """Algorithm 2 of arXiv 2403.10444: the law of (tau, token) for the drafted tokens ``x``; p [n + 1, V], q [n, V]."""
    n = len(x)
    mass = [1.0]
    for i in range(n):
        mass.append(min(1.0, mass[i] * p[i][x[i]] / q[i][x[i]]))
    accept = []
    for i in range(1, n):
        z = np.maximum(mass[i] * p[i] - q[i], 0.0).sum()
        accept.append(z / (z + 1.0 - mass[i]) if z + 1.0 - mass[i] > 0 else 1.0)
    accept.append(mass[n])
    out, missed = defaultdict(float), 1.0
    for i in range(n, -1, -1):
        chance = missed * (accept[i - 1] if i else 1.0)
        missed -= chance
        weights = p[n] if i == n else np.maximum(mass[i] * p[i] - q[i], 0.0)
        if chance > 0:
            for token in range(len(weights)):
                out[i, token] += chance * weights[token] / weights.sum()
    return out


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_block_is_the_published_block_verification(length):
    rng = np.random.default_rng(length)
    for number in range(40):
        vocab = int(rng.integers(2, 6))
        p, q = rng.dirichlet(np.full(vocab, 0.5), length + 1), rng.dirichlet(np.full(vocab, 0.8), length)
        if number % 4 == 0:  # a filtered target
            p[:, 0] = 0.0
            p /= p.sum(-1, keepdims=True)
        x = [int(rng.choice(vocab, p=q[i])) for i in range(length)]
        made = DraftTree.chain([0, *x], torch.from_numpy(q))
        seen = defaultdict(float)
        for verdict, mass in enumerate_law(lambda noise: verify(made, torch.from_numpy(p), noise, "block", 5, 1)):
            seen[len(verdict.path), verdict.token] += mass
        wanted = published(x, p, q)
        assert sum(abs(seen[key] - wanted[key]) for key in {*seen, *wanted}) <= ROUNDING


@pytest.mark.parametrize("independent", [False, True], ids=["without-replacement", "independent"])
@pytest.mark.parametrize("shape", NESTED)
def test_traversal_accepts_at_least_what_ratio_accepts_of_nested_trees(shape, independent):
    vocab = 3 if len(NESTED[shape]) < 5 or not independent else 2
    gains = []
    for number in range(15):
        own = world(number, vocab)
        lengths = [mean_length(own, NESTED[shape], rule, independent) for rule in ("ratio", "traversal")]
        gains.append(lengths[1] - lengths[0])
    assert min(gains) >= -ROUNDING
    assert shape == "pair" or sum(gain > 1e-6 for gain in gains) >= 10


def test_traversal_may_accept_less_where_a_later_sibling_is_the_deeper_one():
    """It takes what it can of the earlier sibling, a leaf, at the expense of the later one and its subtree."""
    unlucky = [mean_length(World(3, n, 5.0), [-1, 0, 1, 1, 3], "traversal") for n in range(12)]
    by_ratio = [mean_length(World(3, n, 5.0), [-1, 0, 1, 1, 3], "ratio") for n in range(12)]
    losses = [a - b for a, b in zip(unlucky, by_ratio)]
    assert min(losses) < -1e-3
    assert max(losses) > 1e-3


def recursive(p: np.ndarray, q: np.ndarray, k: int) -> float:
    """How often ``ratio`` accepts one of k independent drafts."""
    missed = 1.0
    for _ in range(k):
        missed *= 1.0 - np.minimum(p, q).sum()
        rest = np.maximum(p - q, 0.0)
        if rest.sum() <= 1e-15:
            return 1.0
        p = rest / rest.sum()
    return 1.0 - missed


def test_kseq_accepts_at_least_what_ratio_accepts_of_one_nodes_siblings():
    rng = np.random.default_rng(3)
    gains = []
    for _ in range(2000):
        vocab, k = int(rng.integers(2, 9)), int(rng.integers(2, 6))
        p, q = (rng.dirichlet(np.full(vocab, rng.choice([0.2, 1.0, 3.0]))) for _ in "pq")
        rho = solve(p, q, k)
        beta = np.minimum(p / rho, q).sum()
        assert 1.0 <= rho <= k
        assert 1.0 - (1.0 - beta) ** k == pytest.approx(rho * beta, abs=ROUNDING)
        gains.append(1.0 - (1.0 - beta) ** k - recursive(p, q, k))
    assert min(gains) >= -ROUNDING
    assert sum(gain > 1e-6 for gain in gains) >= 1000


@pytest.mark.parametrize("k", [2, 3])
def test_kseq_accepts_at_least_what_ratio_accepts_of_a_flat_tree(k):
    for number in range(15):
        own = world(number, 3)
        lengths = [mean_length(own, [-1] + [0] * k, rule, True) for rule in ("ratio", "kseq")]
        assert lengths[1] >= lengths[0] - ROUNDING
        p, q = (law.numpy() for law in own(()))
        assert lengths[0] == pytest.approx(recursive(p, q, k), abs=ROUNDING)


def test_kseq_may_accept_less_of_deeper_trees():
    """It treats siblings as equals, also where only the first has tokens below it."""
    gains = [mean_length(w, [-1, 0, 0, 1], "kseq", True) - mean_length(w, [-1, 0, 0, 1], "ratio", True)
             for w in (world(n, 3) for n in range(12))]  # fmt: skip
    assert min(gains) < -1e-2
