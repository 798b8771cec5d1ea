"""Requests that are forked while they think, on every backend: outputs are plain decoding's, whatever forks run beside them.

Tiny models do not think by themselves: ordinary tokens are the markers, prompts begin the thought, and a thinking budget ends
it where the model does not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract.conftest import FACTORIES, Backend, tiny
from toys import ToyCodec, Truth
from toys_ssr import forking, forks

from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.request import Row
from surefoot.ssr import Family, SsrSource

LENGTHS = (1, 2, 3, 5, 8, 16)
KINDS: dict[str, dict] = {
    "at-once": {"draft_budget": 0},
    "once": {"draft_budget": 3},
    "late": {"draft_budget": 9, "draft_tokens": 3},
    "never": {"draft_budget": 500},
    "iterative": {"draft_budget": 2, "interval": 3, "max_drafts": 4, "drafts": 1},
    "several": {"draft_budget": 1, "interval": 2, "max_drafts": 5, "drafts": 3},
    "prefix": {"draft_budget": 3, "suffix": False},
    "suffix": {"draft_budget": 3, "prefix": False},
}
SOME = ("iterative", "several")
"""Kinds that are tried at all lengths; the others at two of them."""

_truths: dict[int, Truth] = {}


def codec_of(backend: Backend) -> ToyCodec:
    return ToyCodec([b"%d," % i for i in range(backend.vocab)])


def family_of(backend: Backend) -> Family:
    """The two last tokens."""
    start, end = (f"{backend.vocab - n}," for n in (2, 1))
    return Family("tiny", start, end, end)


def thinking(backend: Backend, **options) -> SamplingParams:
    family = family_of(backend)
    return SamplingParams(thinking_start=family.start, thinking_end=family.end, **{"thinking_budget": 12} | options)


def requests(backend: Backend) -> list[tuple[list[int], SamplingParams]]:
    """Of different lengths; the second and the last do not think."""
    start = backend.vocab - 2
    plain = [t % start for t in backend.prompt(23, 1)]
    asked: list[tuple[list[int], SamplingParams]] = [
        ([*(t % start for t in backend.prompt(5, 0)), start], thinking(backend, max_tokens=34)),
        (plain, SamplingParams(max_tokens=15, logit_bias={start: -50.0})),
        ([*(t % start for t in backend.prompt(9, 2)), start, 1, 2], thinking(backend, max_tokens=30, temperature=0.8, seed=1)),
        ([*(t % start for t in backend.prompt(12, 5)), start], thinking(backend, max_tokens=26, thinking_budget=17)),
        (
            [*(t % start for t in backend.prompt(30, 4)), start],
            thinking(backend, max_tokens=28, temperature=1.0, top_k=5, seed=3, frequency_penalty=0.4),
        ),
        ([start], thinking(backend, max_tokens=24, temperature=0.7, top_k=1, verification="ratio")),
        (plain[:4], SamplingParams(max_tokens=9, temperature=0.9, seed=6, logit_bias={start: -50.0})),
    ]
    return asked


def truth(backend: Backend, row: Row) -> tuple[int, ...]:
    if id(backend) not in _truths:
        _truths[id(backend)] = Truth(backend.target, reuse=False, codec=codec_of(backend))
    return _truths[id(backend)](row)


def engine(backend: Backend, kind: str, k: int, width: int = 1, **options) -> tuple[Engine, SsrSource]:
    codec = codec_of(backend)
    return forking(
        backend.target,
        codec.pieces,
        family=family_of(backend),
        force=[backend.vocab - 1],
        codec=codec,
        k=k,
        width=width,
        engine={"chunk": 8} | options,
        **KINDS[kind],
    )


def go(e: Engine, rows: list[Row]) -> int:
    most = 0
    while not all(row.done for row in rows):
        e.step()
        most = max(most, len(forks(e)))
    return most


def check(backend: Backend, ssr: SsrSource, e: Engine, rows: list[Row]) -> None:
    for row in rows:
        assert tuple(row.output) == truth(backend, row)
        assert row.finish_reason == "length"
        assert len(row.output) == row.params.max_tokens
        assert (row.stats.ssr is not None) == (row.params.thinking_budget is not None)
    assert not ssr._rows
    assert not ssr._forks
    e.close()
    assert backend.held(backend.target) == 0


@pytest.fixture
def backend(request, backends: Callable[[str], Backend]) -> Backend:
    return backends(request.param)


def grid() -> list:
    return [
        pytest.param(name, kind, k, id=f"{name}-{kind}-{k}")
        for name in FACTORIES
        for kind in KINDS
        for k in (LENGTHS if kind in SOME else (3, 8))
    ]


@pytest.mark.parametrize("backend, kind, k", grid(), indirect=["backend"])
def test_a_ragged_batch_of_thinking_requests_says_what_plain_decoding_says(backend, kind, k):
    e, ssr = engine(backend, kind, k)
    rows = [e.add(prompt, params) for prompt, params in requests(backend)]
    most = go(e, rows)
    told = [row.stats.ssr.to_dict() for row in rows if row.stats.ssr is not None]
    if kind == "never":
        assert most == sum(each["drafts"] for each in told) == 0
    else:
        assert most
        assert sum(each["drafts"] for each in told) >= (6 if kind in SOME else 2)
        assert sum(each["draft_tokens"] for each in told) > 3
    if kind in ("at-once", "several"):
        assert sum(row.stats.by_source["ssr"].draft_tokens for row in rows if "ssr" in row.stats.by_source) > 0
    check(backend, ssr, e, rows)


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
@pytest.mark.parametrize("kind", ["once", "several"])
def test_drafts_as_trees(backend, kind):
    e, ssr = engine(backend, kind, 4, 3)
    rows = [e.add(prompt, params) for prompt, params in requests(backend)]
    assert go(e, rows) > 1
    check(backend, ssr, e, rows)


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
def test_alone(backend):
    """Each request by itself, so that the only neighbour is its own fork; and one after the other, on what was learned."""
    e, ssr = engine(backend, "iterative", 5, reuse=True)
    rows = []
    for prompt, params in requests(backend):
        rows.append(e.add(prompt, params))
        assert go(e, rows[-1:]) <= 1
    check(backend, ssr, e, rows)


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
def test_requests_that_come_and_go(backend):
    e, ssr = engine(backend, "several", 5)
    asked = requests(backend)
    rows = [e.add(*asked[i]) for i in (0, 2, 3)]
    while not forks(e):
        e.step()
    e.abort(rows[1])
    late = [e.add(*asked[i]) for i in (1, 4, 5)]
    e.step()
    e.step()
    e.abort(rows[2])
    go(e, [rows[0], *late])
    for row in rows[1:]:
        assert tuple(row.output) == truth(backend, row)[: len(row.output)]
    check(backend, ssr, e, [rows[0], *late])


@pytest.mark.parametrize("backend", FACTORIES, indirect=True)
def test_forks_give_way(backend):
    """With room for three rows, requests do not wait for forks."""
    e, ssr = engine(backend, "several", 3, max_rows=3)
    asked = requests(backend)
    rows = [e.add(*asked[0]), e.add(*asked[3])]
    while not forks(e):
        e.step()
    rows.append(e.add(*asked[2]))
    e.step()
    assert rows[-1].slot is not None
    go(e, rows)
    check(backend, ssr, e, rows)


def test_forks_in_the_numbers_of_real_models(tmp_path):
    """In bf16 sums depend on how passes are cut: forks must leave their requests in the class of passes that agree."""
    from surefoot.backends.openvino import OpenVINOModel, from_transformers
    from surefoot.backends.openvino.hardware import native_bf16, shared_core

    numerics = "bf16" if native_bf16(shared_core()) else "f32"  # what the processor computes in
    folder = from_transformers(tiny("LlamaConfig"), tmp_path / "target")
    target = OpenVINOModel(folder, precision=numerics, kv_tokens=8192, threads=1)
    target.adopt(target.probe())
    backend = Backend(f"openvino-{numerics}", target, target, lambda t: t.pool.blocks - t.pool.free, LENGTHS)
    for kind, k in (("once", 3), ("iterative", 8), ("several", 5)):
        e, ssr = engine(backend, kind, k)
        rows = [e.add(prompt, params) for prompt, params in requests(backend)]
        assert go(e, rows) > 1
        check(backend, ssr, e, rows)


@pytest.mark.parametrize("name", FACTORIES)
def test_the_thoughts_of_tiny_models_end_in_several_ways(name, backends):
    """Else most of these tests would be of one case."""
    backend = backends(name)
    codec, ends = codec_of(backend), []
    e = Engine(backend.target, reuse=False, codec=codec)
    for prompt, params in requests(backend):
        row = e.add(prompt, params)
        go(e, [row])
        if params.thinking_budget is not None:
            ends.append(row.output.index(backend.vocab - 1))
            assert ends[-1] + 5 < len(row.output)
    e.close()
    assert max(ends) >= 12
