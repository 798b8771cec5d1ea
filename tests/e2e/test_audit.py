"""The audit of the packaged model: in exact mode nothing differs, whatever drafts; a fast mode's differences are ties."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from surefoot.audit import SUITES, Item, audit
from surefoot.core import verify as verify_module
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Verdict
from surefoot.loader import Target, open_target

pytestmark = [pytest.mark.timeout(1800), pytest.mark.slow]


@pytest.fixture(scope="module")
def target() -> Target:
    return open_target("smollm2-135m-instruct")


@pytest.fixture(scope="module", autouse=True)
def no_leak(target: Target) -> Iterator[None]:
    yield
    assert target.model.pool.free == target.model.pool.blocks, "cache blocks leaked"


def test_sixty_prompts_with_every_drafter(target: Target) -> None:
    report = audit(target, SUITES["standard"](), SamplingParams(max_tokens=10), lengths=(3,), rows=6)
    assert report.ok, report.table()
    assert (report.differing, report.bugs, report.ties, report.noise, report.siblings) == (0, 0, 0, 0.0, 0.0)
    names = {r.name for r in report.results}
    assert {"plain", "ngram k=3", "suffix k=3", "suffix-tree k=3", "self k=3", "blurred k=3", "auto"} <= names
    assert all(r.answers >= 60 for r in report.results)
    assert sum(r.accepted for r in report.results if r.name == "self k=3") > 300
    own = next(r for r in report.results if r.name == "self k=3")
    assert own.accepted >= 0.98 * own.drafted  # the target never refuses itself: only drafts past an end are not kept


def test_draws(target: Target) -> None:
    options = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.95, repetition_penalty=1.1)
    report = audit(target, SUITES["quick"](), options, drafters=["ngram", "blurred"], lengths=(3,), samples=96)
    assert report.ok, report.table()
    assert report.differing == 0
    assert all(t.n >= 50 for t in report.tests)
    blurred = next(r for r in report.results if r.name == "blurred k=3")
    assert 0 < blurred.accepted < blurred.drafted


def test_a_broken_verifier_is_caught(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = verify_module.walk

    def first_child(tree, choose):  # type: ignore[no-untyped-def]
        return Verdict((1,), choose(1, 1)) if len(tree) > 1 else shipped(tree, choose)

    monkeypatch.setattr(verify_module, "walk", first_child)
    prompts = [item for item in SUITES["quick"]() if item.kind in ("copying", "repetition")]
    report = audit(target, prompts, SamplingParams(max_tokens=24), drafters=["ngram"], lengths=(3,))
    assert not report.ok
    assert report.bugs
    assert report.results[0].bugs == 0


def test_the_fast_mode_is_explained() -> None:
    """Quantized activations: the widths agree or not, by processor; masked trees do not agree with chains."""
    fast = open_target("smollm2-135m-instruct", precision="fast")
    prompts = [Item("Describe a kettle in a harbour."), *SUITES["quick"]()[:3]]
    report = audit(fast, prompts, SamplingParams(max_tokens=24), drafters=["ngram", "suffix-tree"], lengths=(3,))
    assert not report.exact
    assert report.noise > 0
    assert report.ok, report.table()
