"""The exact joint law of three tokens (after a certain one), for every kind of proposal under every rule.

Total variation at most 1e-12.
"""

from __future__ import annotations

import pytest
import torch
from exact.joint import CAUGHT, PROMPT, TOLERANCE, distance, engine_of, expected, gap, observed, q_chain, q_shape, q_tree, toy
from toys import Custom, random_trees, within

from surefoot.backends.table import TableModel
from surefoot.control.goodput import GoodputController
from surefoot.control.window import WindowController
from surefoot.core.engine import Engine
from surefoot.core.noise import enumerate_law
from surefoot.core.params import SamplingParams
from surefoot.core.tree import DraftTree
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter

FRESH = ["ratio", "block", "traversal", "kseq"]
RULES = ["coupled", *FRESH]
TWO = toy(2, seed=3, sharpness=0.9)
THREE = toy(3, seed=7)
DRAFTS = {2: TableModel.random(2, order=1, seed=8, sharpness=1.0), 3: TableModel.random(3, order=2, seed=9, sharpness=0.9)}


def params(rule="auto", tokens=4, **options) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 1.0, "verification": rule} | options)


@pytest.fixture(params=[TWO, THREE], ids=["V2", "V3"])
def target(request) -> TableModel:
    return request.param


@pytest.fixture(params=RULES)
def rule(request) -> str:
    return request.param


def test_plain_decoding(target, rule):
    assert gap(engine_of(target), params(rule)) <= TOLERANCE


def test_plain_decoding_with_padding_and_chunks(target, rule):
    padded = TableModel(target.logits, target.order, min_width=4)
    assert gap(engine_of(padded, chunk=1), params(rule)) <= TOLERANCE


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param(lambda row, n: [0] * n, id="zeros"),
        pytest.param(lambda row, n: [1, 0, 1][:n], id="alternating"),
        pytest.param(lambda row, n: [1] * min(n, 1), id="short"),
        pytest.param(lambda row, n: [sum(row.tokens) % 2] * n, id="parity"),
        pytest.param(lambda row, n: [row.tokens[-1], 1 - row.tokens[-1] % 2][:n], id="last-token"),
        pytest.param(lambda row, n: [1, 0][:n] if len(row.tokens) % 2 else [], id="now-and-then"),
    ],
)
@pytest.mark.parametrize("k", [1, 2])
def test_point_chains(target, rule, draft, k):
    drafter = Custom(lambda row, plan: DraftTree.chain([row.tokens[-1], *draft(row, plan.depth)], source=1))
    assert gap(engine_of(target, drafter, k), params(rule)) <= TOLERANCE
    assert max(plan.depth for plan in drafter.plans) == k


@pytest.mark.parametrize(
    "tokens, parents",
    [
        ([0, 1], [0, 0]),
        ([1, 0, 0, 1], [0, 0, 1, 1]),
        ([0, 1, 1, 0], [0, 0, 2, 1]),
        ([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2]),
        ([1, 1, 1], [0, 1, 2]),
    ],
    ids=["siblings", "one-side", "crossed", "full", "deep"],
)
def test_point_trees(target, rule, tokens, parents):
    drafter = Custom(lambda row, plan: within(plan, [row.tokens[-1], *tokens], [-1, *parents]))
    assert gap(engine_of(target, drafter, 3, 2, 6), params(rule, tokens=5)) <= TOLERANCE


def test_point_tree_with_every_token_as_a_sibling(rule):
    drafter = Custom(lambda row, plan: within(plan, [row.tokens[-1], 2, 0, 1, 1, 0, 2], [-1, 0, 0, 0, 1, 1, 1]))
    assert gap(engine_of(THREE, drafter, 2, 3, 6), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("seed", range(3))
def test_point_trees_that_depend_on_the_history(target, rule, seed):
    drafter = Custom(random_trees(target.traits.vocab_size, seed))
    assert gap(engine_of(target, drafter, 2, 2, 5), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("vocab", [2, 3])
def test_chains_drawn_by_a_draft_model(vocab, rule, k):
    target = {2: TWO, 3: THREE}[vocab]
    drafter = ModelDrafter(DRAFTS[vocab], vocab)
    tokens = 5 if k == 3 and vocab == 2 else 4
    assert gap(engine_of(target, drafter, k), params(rule, tokens=tokens)) <= TOLERANCE
    drafter.forget([])
    assert DRAFTS[vocab].open_slots == 0


@pytest.mark.parametrize("rule", FRESH)
def test_the_target_as_its_own_draft_accepts_all(target, rule):
    drafter = ModelDrafter(TableModel(target.logits, target.order), target.traits.vocab_size)
    engine = engine_of(target, drafter, 2)
    assert gap(engine, params(rule)) <= TOLERANCE
    done = engine.generate(PROMPT, max_tokens=10, temperature=1.0, verification=rule)
    assert done.stats.mean_acceptance_length == 3.0


def test_a_draft_of_tokens_that_the_target_never_says(rule):
    """p and q without common support: everything is refused, and the residual is p itself."""
    logits = torch.tensor(
        [[0.0, -torch.inf, -torch.inf], [0.0, 0.0, -torch.inf], [0.0, 1.0, -torch.inf], [0.0, 1.0, -torch.inf]]
    )
    draft = TableModel(torch.tensor([[-torch.inf, -torch.inf, 0.0]]).repeat(4, 1), 1)
    assert gap(engine_of(TableModel(logits, 1), ModelDrafter(draft, 3), 2), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("full_rows", [False, True], ids=["inner-rows", "all-rows"])
def test_chains_that_report_q(target, rule, full_rows):
    draft = DRAFTS[target.traits.vocab_size]
    drafter = Custom(q_tree(draft, full_rows=full_rows))
    assert gap(engine_of(target, drafter, 2, 1, 2), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("depth, width, nodes", [(1, 2, 2), (2, 2, 4), (2, 2, 6)], ids=["pair", "one-side", "full"])
def test_trees_drawn_without_replacement(target, rule, depth, width, nodes):
    if target is THREE and nodes == 6:
        nodes = 3
    drafter = Custom(q_tree(DRAFTS[target.traits.vocab_size]))
    assert gap(engine_of(target, drafter, depth, width, nodes), params(rule)) <= TOLERANCE


def test_three_siblings_drawn_without_replacement(rule):
    drafter = Custom(q_tree(DRAFTS[3]))
    assert gap(engine_of(THREE, drafter, 1, 3, 3), params(rule)) <= TOLERANCE


SHAPES = {
    "first-deeper": [-1, 0, 0, 1],
    "second-deeper": [-1, 0, 0, 2],
    "fork-below": [-1, 0, 1, 1],
    "three-and-one": [-1, 0, 0, 0, 2],
    "comb": [-1, 0, 0, 1, 1],
    "twice-two": [-1, 0, 0, 1, 1, 2, 2],
}


@pytest.mark.parametrize("independent", [False, True], ids=["without-replacement", "independent"])
@pytest.mark.parametrize("shape", SHAPES)
def test_trees_of_any_shape(rule, shape, independent):
    """Two tokens for the larger shapes, so that siblings of independent draws repeat often, with subtrees of their own."""
    target = THREE if len(SHAPES[shape]) == 4 and not independent else TWO
    drafter = Custom(q_shape(DRAFTS[target.traits.vocab_size], SHAPES[shape], independent))
    assert gap(engine_of(target, drafter, 2, 3, 6), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("width", [2, 3])
def test_independent_siblings(rule, width):
    drafter = Custom(q_shape(DRAFTS[3], [-1] + [0] * width, independent=True))
    assert gap(engine_of(THREE, drafter, 1, width, width), params(rule, tokens=5 - width)) <= TOLERANCE


# which node of the tree the next token is drawn below, given the tokens drawn so far
FOLLOWING = {
    "a cousin chooses": lambda drawn: (0, 0, 1 + drawn[-1])[len(drawn)] if drawn else 0,
    "a nephew chooses": lambda drawn: (0, 1, 0 if drawn[-1] else 1)[len(drawn)] if drawn else 0,
    "a parent chooses": lambda drawn: (0, drawn[0], 0)[len(drawn)] if drawn else 0,
}


@pytest.mark.parametrize("rule", FRESH)
@pytest.mark.parametrize("independent", [False, True], ids=["without-replacement", "independent"])
@pytest.mark.parametrize("name", FOLLOWING)
def test_shapes_that_follow_what_was_drawn_before(rule, independent, name):
    """Whether a token is drawn may depend on all tokens before it, on siblings and their subtrees too.

    Not under ``kseq``, which asks how many siblings there are before it looks at the first.
    """
    drafter = Custom(q_shape(DRAFTS[2], [-1, 0, 0, 0], independent, FOLLOWING[name]))
    found = gap(engine_of(TWO, drafter, 3, 3, 3), params(rule))
    if (rule, independent, name) == ("kseq", True, "a nephew chooses"):
        assert found > CAUGHT
    else:
        assert found <= TOLERANCE


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.6},
        {"temperature": 0.7, "top_k": 2},
        {"top_k": 1},
        {"top_p": 0.75},
        {"temperature": 0.7, "min_p": 0.4},
        {"temperature": 1.3, "top_k": 2, "top_p": 0.8, "min_p": 0.2},
    ],
    ids=lambda o: "-".join(f"{k}{v}" for k, v in o.items()),
)
@pytest.mark.parametrize("shape", ["chain", "tree", "independent", "point"])
def test_filtered_laws(options, rule, shape):
    if shape == "independent":
        drafter, plan = Custom(q_shape(DRAFTS[3], [-1, 0, 0], independent=True)), (1, 2, 2)
    elif shape == "chain":
        drafter, plan = ModelDrafter(DRAFTS[3], 3), (2, 1, 2)
    elif shape == "tree":
        drafter, plan = Custom(q_tree(DRAFTS[3])), (2, 2, 3)
    else:
        drafter, plan = Custom(random_trees(3, 5)), (2, 2, 5)
    assert gap(engine_of(THREE, drafter, *plan), params(rule, **options)) <= TOLERANCE


@pytest.mark.parametrize("confidence", [0.3, 0.5, 0.9])
def test_stopping_after_an_unlikely_token_is_exact(target, rule, confidence):
    drafter = Custom(q_chain(DRAFTS[target.traits.vocab_size], stop_below=confidence))
    assert gap(engine_of(target, drafter, 2), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("make", [NgramDrafter, SuffixDrafter], ids=["ngram", "suffix"])
@pytest.mark.parametrize("width", [1, 2])
def test_drafters_that_read_the_history(target, rule, make, width):
    prompt = (0, 1, 1, 0, 1)

    def once(noise):
        engine = engine_of(target, make(), 2, width, 2 * width)  # the shared store must not learn from other branches
        row = engine.add(prompt, params(rule), noise=noise)
        while not row.done:
            engine.step()
        return tuple(row.output)

    seen: dict[tuple[int, ...], float] = {}
    for tokens, mass in enumerate_law(once):
        seen[tokens] = seen.get(tokens, 0.0) + mass
    assert distance(seen, expected(target, params(), 4, prompt)) <= TOLERANCE


@pytest.mark.parametrize("tree_shaped", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_scripts(target, rule, accuracy, tree_shaped):
    drafter = ScriptDrafter(lambda row: [1, 0, 1], target.traits.vocab_size, accuracy=accuracy, tree=tree_shaped)
    assert gap(engine_of(target, drafter, 2, 2 if tree_shaped else 1, 4), params(rule)) <= TOLERANCE


@pytest.mark.parametrize("name", ["window", "goodput"])
def test_controllers_that_learn_from_what_was_accepted(target, rule, name):
    def controller():
        if name == "window":
            return WindowController("custom", 2, 0, 1, window=1, warmup=1, high=0.6)
        return GoodputController("custom", lambda nodes, context: 1.0 + 0.3 * nodes, max_draft=2, retry=2)

    def once(noise):
        drafter = Custom(q_chain(DRAFTS[target.traits.vocab_size]))
        engine = Engine(target, [drafter], controller(), reuse=False)
        row = engine.add(PROMPT, params(rule), noise=noise)
        while not row.done:
            engine.step()
        return tuple(row.output)

    seen: dict[tuple[int, ...], float] = {}
    for tokens, mass in enumerate_law(once):
        seen[tokens] = seen.get(tokens, 0.0) + mass
    assert distance(seen, expected(target, params(), 4)) <= TOLERANCE


@pytest.mark.parametrize("kind", ["chain", "tree", "independent", "point"])
def test_a_row_in_a_ragged_batch(target, rule, kind):
    vocab = target.traits.vocab_size
    drafter = {
        "chain": lambda: ModelDrafter(DRAFTS[vocab], vocab),
        "tree": lambda: Custom(q_tree(DRAFTS[vocab])),
        "independent": lambda: Custom(q_shape(DRAFTS[vocab], [-1, 0, 0], independent=True)),
        "point": lambda: Custom(random_trees(vocab, 2)),
    }[kind]()
    beside = [((1, 0, 1, 1, 0, 0, 1), SamplingParams(max_tokens=5)), ((1,), params(seed=7, tokens=2))]
    engine = engine_of(target, drafter, 2, 2 if kind != "chain" else 1, 3 if kind != "chain" else 2, chunk=2)
    assert gap(engine, params(rule), beside=beside) <= TOLERANCE


def test_two_rows_of_one_batch_are_independent(rule):
    engine = engine_of(TWO, ModelDrafter(DRAFTS[2], 2), 1)
    first, second = PROMPT, (1, 1, 0)

    def once(noise):
        rows = [engine.add(p, params(rule, tokens=3), noise=noise) for p in (first, second)]
        while not all(row.done for row in rows):
            engine.step()
        return tuple(tuple(row.output) for row in rows)

    seen: dict[tuple[tuple[int, ...], ...], float] = {}
    for both, mass in enumerate_law(once):
        seen[both] = seen.get(both, 0.0) + mass
    a, b = expected(TWO, params(), 3, first), expected(TWO, params(), 3, second)
    product = {(x, y): a[x] * b[y] for x in a for y in b}
    assert distance(seen, product) <= TOLERANCE


def test_stop_tokens_cut_the_law_where_they_occur(rule):
    """Outcomes end at the first stop token; their law is that of plain decoding with the same stop."""
    stopping = params(rule, stop_token_ids=(0,), tokens=5)
    wanted = observed(engine_of(TWO), stopping, 5)
    for drafter in (ModelDrafter(DRAFTS[2], 2), Custom(q_tree(DRAFTS[2])), Custom(q_shape(DRAFTS[2], [-1, 0, 0, 1], True))):
        assert distance(observed(engine_of(TWO, drafter, 2, 2, 3), stopping, 5), wanted) <= TOLERANCE
