"""The engine's promise on every backend: whatever drafts, rule, draft length and neighbours, the output is plain decoding's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from contract.conftest import FACTORIES, Backend
from toys import Custom, Truth, random_trees

from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.control.window import WindowController
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.request import Row
from surefoot.core.verify import FRESH
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.datastore_build import write
from surefoot.drafters.dytc import DytcDrafter
from surefoot.drafters.horizontal import HorizontalDrafter
from surefoot.drafters.hybrid import HybridDrafter
from surefoot.drafters.lookahead import LookaheadDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.proposed import Proposed
from surefoot.drafters.recycle import RecycleDrafter
from surefoot.drafters.retrieval import RetrievalDrafter
from surefoot.drafters.script import ScriptDrafter
from surefoot.drafters.suffix import SuffixDrafter

LENGTHS = (1, 2, 3, 5, 8, 16)
SOME = (1, 3, 8)
DRAFTERS = (
    "oracle", "wrong", "mixed", "oracle-tree", "wrong-tree", "mixed-tree",
    "random-trees", "ngram", "suffix", "suffix-tree", "model", "self",
    "recycle", "recycle-tree", "hybrid", "hybrid-tree", "lookahead", "lookahead-tree", "retrieval",
    "cascade", "cascade-three", "horizontal", "dytc", "dytc-tree",
)  # fmt: skip
LATER = DRAFTERS[DRAFTERS.index("recycle") :]
"""Drafters without a draft model whose proposals are made by parts that the others have tried: fewer lengths of them."""
# rows of one batch: prompt length, prompt number, options. With top_k 1 rules that draw anew have one answer only: greedy.
REQUESTS: tuple[tuple[int, int, dict], ...] = (
    (1, 0, {"max_tokens": 26}),
    (23, 1, {"max_tokens": 9}),
    (9, 2, {"max_tokens": 17, "temperature": 0.8, "top_p": 0.9, "seed": 1}),
    (9, 2, {"max_tokens": 12, "temperature": 0.8, "top_k": 4, "seed": 2, "verification": "coupled"}),
    (6, 3, {"max_tokens": 14, "temperature": 0.7, "top_k": 1, "verification": "ratio"}),
    (12, 5, {"max_tokens": 11, "temperature": 1.1, "top_k": 1, "verification": "traversal"}),
    (40, 4, {"max_tokens": 1}),
)

_truths: dict[str, Truth] = {}


def truth(backend: Backend) -> Truth:
    """Plain decoding, alone, on an engine without drafters: what every other run is compared with."""
    return _truths.setdefault(backend.target.traits.name + str(id(backend.target)), Truth(backend.target, reuse=False))


def drafters(backend: Backend, kind: str) -> list:
    """The drafters of an engine, the one that is planned for last."""
    if kind.startswith(("cascade", "horizontal", "dytc")):
        return cascades(backend, kind)
    if not kind.startswith("hybrid"):
        return [drafter(backend, kind)]
    parts = [
        SuffixDrafter(source=1),
        RecycleDrafter(backend.vocab, source=2),
        LookaheadDrafter(source=3),
        ModelDrafter(backend.draft, backend.vocab, chunk=7, source=4),
    ]
    return [*parts, HybridDrafter([*parts[:3], Proposed(parts[3])], paths=backend.target.traits.paths)]


def cascades(backend: Backend, kind: str) -> list:
    """Behind the draft model, or one that agrees with the target, lookup."""
    vocab = backend.vocab
    lookup, model = NgramDrafter(source=1), ModelDrafter(backend.draft, vocab, chunk=7, source=2)
    if kind == "horizontal":
        return [lookup, model, HorizontalDrafter([model, lookup], [2, 3])]
    if kind.startswith("dytc"):
        return [lookup, model, DytcDrafter([model], lookup, paths=backend.target.traits.paths)]
    below = [lookup]
    if kind == "cascade-three":
        below.append(CascadeDrafter(middle(backend.target, below), vocab, name="low", source=3))
    return [*below, CascadeDrafter(middle(backend.draft, below), vocab, source=4)]


def middle(model, below: list) -> Engine:
    return Engine(model, [Below(each) for each in below], FixedController(below[-1].name, 2), reuse=False, chunk=7)


def drafter(backend: Backend, kind: str):
    say, vocab = truth(backend), backend.vocab
    if kind.startswith(("oracle", "wrong", "mixed")):
        accuracy = {"oracle": 1.0, "wrong": 0.0, "mixed": 0.5}[kind.split("-")[0]]
        return ScriptDrafter(say, vocab, accuracy=accuracy, tree=kind.endswith("tree"))
    if kind == "random-trees":
        return Custom(random_trees(vocab, 3))
    if kind == "ngram":
        return NgramDrafter()
    if kind.startswith("suffix"):
        return SuffixDrafter()
    if kind.startswith("recycle"):
        return RecycleDrafter(vocab)
    if kind.startswith("lookahead"):
        return LookaheadDrafter(paths=backend.target.traits.paths, window=2 if kind.endswith("tree") else 0)
    if kind == "retrieval":
        return RetrievalDrafter(store(backend))
    return ModelDrafter(backend.draft if kind == "model" else backend.target, vocab, chunk=7)


def store(backend: Backend) -> Path:
    """A datastore of what the target has said before, and of noise."""
    path = backend.folder / "store"
    if not path.exists():
        plain = Engine(backend.target, reuse=False)
        asked = [backend.prompt(n, shift) for n, shift, _ in REQUESTS]
        said = [[*p, *plain.generate(p, max_tokens=20).token_ids] for p in asked]
        plain.close()
        texts = [np.array(text, np.int32) for text in [*said, [3 * i % backend.vocab for i in range(50)]]]
        write(path, texts, fingerprint="ab" * 32, vocab_size=backend.vocab, model="tiny", folder="texts")
    return path


def engine(backend: Backend, kind: str, k: int, **options) -> Engine:
    tree = kind.endswith(("tree", "trees"))
    several = drafters(backend, kind)
    plans = FixedController(several[-1].name, k, 3 if tree else 1, 2 * k if tree else k)
    return Engine(backend.target, several, plans, **options)


def requests(backend: Backend) -> list[tuple[list[int], SamplingParams]]:
    return [(backend.prompt(n, shift), SamplingParams(**options)) for n, shift, options in REQUESTS]


def go(e: Engine, rows: list[Row]) -> list[Row]:
    while not all(row.done for row in rows):
        e.step()
    return rows


def check(backend: Backend, row: Row) -> None:
    said = truth(backend)(row)
    assert tuple(row.output) == said
    assert row.finish_reason == "length"
    assert len(row.output) == row.params.max_tokens
    stats = row.stats
    assert 0 <= stats.accepted_tokens <= stats.draft_tokens
    assert stats.accepted_tokens == sum(stats.accepted_per_position) == sum(s != 0 for s in row.sources)


@pytest.fixture
def backend(request, backends: Callable[[str], Backend]) -> Backend:
    return backends(request.param)


def grid() -> list:
    return [
        pytest.param(name, kind, k, id=f"{name}-{kind}-{k}")
        for name in FACTORIES
        for kind in DRAFTERS
        for k in (SOME if kind in LATER else LENGTHS)
    ]


@pytest.mark.parametrize("backend, kind, k", grid(), indirect=["backend"])
def test_a_ragged_batch_says_what_plain_decoding_says(backend, kind, k):
    """Greedy, seeded and one-hot rows of one batch, prompts of 1 to 40 tokens, prefill in chunks among the drafts."""
    e = engine(backend, kind, k, chunk=8)
    rows = go(e, [e.add(prompt, params) for prompt, params in requests(backend)])
    for row in rows:
        check(backend, row)
    if kind.startswith("oracle"):
        drafted = [row for row in rows if row.stats.drafts]
        assert drafted
        assert all(row.stats.acceptance_rate == 1.0 or kind.endswith("tree") for row in drafted)
    if kind == "self":  # whether greedy or with the common noise of a seed, a model agrees with itself
        assert all(
            row.stats.acceptance_rate == 1.0 for row in rows if row.stats.drafts and row.params.verification not in FRESH
        )
    if kind.startswith("wrong"):
        assert all(row.stats.accepted_tokens == 0 for row in rows if row.params.temperature == 0 or row.params.seed is not None)
    e.close()
    for name in ("target", "draft"):
        assert backend.held(getattr(backend, name)) == 0


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
@pytest.mark.parametrize("kind", ["mixed", "mixed-tree", "suffix-tree", "model", "hybrid-tree"])
def test_first_a_then_b_then_a_again(backend, kind):
    e = engine(backend, kind, 4)
    both = requests(backend)[1:3]
    runs = [go(e, [e.add(*both[i])])[0] for i in (0, 1, 0)]
    for row in runs:
        check(backend, row)
    assert runs[0].output == runs[2].output
    e.close()


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
@pytest.mark.parametrize("kind", ["mixed", "mixed-tree", "model", "hybrid-tree"])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_fork_says_what_a_cold_run_says(backend, kind, reuse):
    e = engine(backend, kind, 5, reuse=reuse)
    first = e.add(*requests(backend)[2])
    while len(first.output) < 6 and not first.done:
        e.step()
    running = e.fork(first, [1, 2], SamplingParams(max_tokens=9))
    go(e, [first, running])
    ended = e.fork(first, [3], SamplingParams(max_tokens=8, temperature=0.9, top_p=0.9, seed=5))
    go(e, [ended])
    for row in (first, running, ended):
        check(backend, row)
    assert running.stats.cached_tokens >= first.n_prompt
    e.close()
    assert backend.held(backend.target) == 0


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
@pytest.mark.parametrize("kind", ["mixed", "mixed-tree", "model"])
def test_a_shared_prefix_says_what_a_cold_run_says(backend, kind):
    e = engine(backend, kind, 5, reuse=True)
    prompt = backend.prompt(30, 1)
    params = SamplingParams(max_tokens=10)
    first = go(e, [e.add(prompt, params)])[0]
    again = go(e, [e.add(prompt, params)])[0]
    longer = go(e, [e.add([*first.tokens, 1, 2, 3], params)])[0]
    other = go(e, [e.add([*prompt[:20], (prompt[20] + 1) % backend.vocab, 6], params)])[0]
    for row in (first, again, longer, other):
        check(backend, row)
    assert again.stats.cached_tokens == 29
    assert longer.stats.cached_tokens >= 30
    assert other.stats.cached_tokens == 20
    e.close()
    assert backend.held(backend.target) == 0


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
@pytest.mark.parametrize("kind", ["mixed", "mixed-tree", "suffix", "model", "recycle-tree", "hybrid"])
def test_aborted_rows_leave_their_neighbours_alone(backend, kind):
    e = engine(backend, kind, 4, chunk=8)
    rows = [e.add(prompt, params) for prompt, params in requests(backend)]
    victims, late = [rows[1], rows[3]], rows[-1]
    e.abort(late)
    for _ in range(3):
        e.step()
    for victim in victims:
        e.abort(victim)
        assert victim.finish_reason in ("abort", "length")
    newcomer = e.add(*requests(backend)[0])
    rest = [row for row in rows if row not in (*victims, late)]
    go(e, [*rest, newcomer])
    for row in (*rest, newcomer):
        check(backend, row)
    for victim in victims:
        assert tuple(victim.output) == truth(backend)(victim)[: len(victim.output)]
    e.close()
    assert backend.held(backend.target) == backend.held(backend.draft) == 0


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
@pytest.mark.parametrize(
    "kind, rule", [("ngram", "ratio"), ("random-trees", "traversal"), ("model", "ratio"), ("model", "block")]
)
def test_seeded_rows_that_draw_anew_do_not_notice_their_neighbours(backend, kind, rule):
    """These rules draw anew in every pass, so the output depends on the drafts, but on nothing beside the row."""
    params = SamplingParams(max_tokens=13, temperature=0.9, top_p=0.95, seed=4, verification=rule)
    prompt = backend.prompt(11, 2)
    alone = engine(backend, kind, 3, reuse=False)
    solo = go(alone, [alone.add(prompt, params)])[0]
    alone.close()
    for chunk in (4, 5, 8):  # 5: the last chunk of the prompt is one token
        e = engine(backend, kind, 3, chunk=chunk, reuse=True)
        others = [e.add(*request) for request in requests(backend)[:3]]
        row = e.add(prompt, params)
        go(e, [*others, row])
        assert row.output == solo.output
        warm = go(e, [e.add(prompt, params)])[0]
        assert warm.output == solo.output
        e.close()


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
@pytest.mark.parametrize("name", ["window", "goodput"])
def test_controllers_change_the_speed_only(backend, name):
    target, script = backend.target, drafter(backend, "mixed")
    if name == "window":
        controller = WindowController("script", 8, 0, 2, window=4, warmup=2)
    else:
        controller = GoodputController("script", lambda n, c: 1 + 0.05 * n, max_draft=8, min_width=target.traits.min_width)
    e = Engine(target, [script], controller, chunk=8)
    for row in go(e, [e.add(prompt, params) for prompt, params in requests(backend)]):
        check(backend, row)
    e.close()


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
def test_two_drafters_in_one_engine(backend):
    """Rows of one pass drafted by different drafters."""

    class Alternate(FixedController):
        def plan(self, rows):
            plans = super().plan(rows)
            return [FixedController(("ngram", "script")[row.id % 2], 4).plan([row])[0] for row, _ in zip(rows, plans)]

    e = Engine(
        backend.target, [NgramDrafter(source=1), ScriptDrafter(truth(backend), backend.vocab, source=2)], Alternate("ngram")
    )
    rows = go(e, [e.add(prompt, params) for prompt, params in requests(backend)])
    for row in rows:
        check(backend, row)
        assert set(row.stats.by_source) <= {("ngram", "script")[row.id % 2]}
    e.close()


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
def test_up_to_the_last_token_of_the_context(backend):
    """Drafts near the end of the context neither overrun it nor change what is said."""
    context = backend.target.traits.max_context
    prompt = backend.prompt(context - 12, 1)
    params = SamplingParams()
    plain = Engine(backend.target, reuse=False)
    said = go(plain, [plain.add(prompt, params)])[0]
    plain.close()
    assert said.finish_reason == "length"
    assert 1 <= len(said.output) <= 13
    for kind in ("oracle", "mixed-tree"):
        e = engine(backend, kind, 8, reuse=False)
        row = go(e, [e.add(prompt, params)])[0]
        assert row.output == said.output
        e.close()


@pytest.mark.parametrize("name", FACTORIES)
def test_the_tiny_models_have_something_to_say(name, backends):
    """A model that repeats one token would make most of these tests vacuous."""
    backend = backends(name)
    plain = Engine(backend.target, reuse=False)
    said = [plain.generate(backend.prompt(n, n), max_tokens=24).token_ids for n in (5, 9, 23)]
    assert sum(len(set(tokens)) >= 4 for tokens in said) >= 2
    assert len(set(said)) >= 2


def test_two_backends_of_one_model_agree(backends):
    torch_llama, openvino_llama = backends("llama"), backends("openvino-llama")
    for n in (1, 8, 23):
        said = [Engine(b.target, reuse=False).generate(b.prompt(n, n), max_tokens=24) for b in (torch_llama, openvino_llama)]
        assert said[0].token_ids == said[1].token_ids
