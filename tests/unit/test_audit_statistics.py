"""The audit's statistics: calibrated where the output follows the law, and not fooled where it does not."""

from __future__ import annotations

import inspect
import textwrap

import numpy as np
import pytest
import scipy.stats

from surefoot.audit import Item, audit
from surefoot.audit.statistics import ALPHA, Test, g_test, holm, transform, transform_event
from surefoot.backends.table import TableModel
from surefoot.core import laws as laws_module
from surefoot.core import settle as settle_module
from surefoot.core import traversal, verify
from surefoot.core.law import row_law
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Verdict
from surefoot.core.verify import FRESH

TARGET = TableModel.random(7, order=2, seed=3, sharpness=1.5)
PROMPTS = [Item([1, 2, 3, 1, 2, 3, 1, 2]), Item([0, 5, 0, 5, 0]), Item([4])]


def drawn(drafters, samples=150, k=3, **options):
    params = SamplingParams.build({"max_tokens": 16, "temperature": 1.0} | options)
    return audit(TARGET, PROMPTS, params, drafters=drafters, lengths=(k,), samples=samples)


def failed(report, case):
    return [t.name for t in report.tests if t.case.startswith(case) and t.failed]


def test_transform_of_every_outcome_covers_the_unit_interval_once():
    law = np.array([0.2, 0.5, 0.0, 0.1, 0.2], np.float32)
    pieces = sorted((transform(law, t, 0.0), transform(law, t, 1.0)) for t in (0, 1, 3, 4))
    assert pieces[0][0] == 0.0
    assert pieces[-1][1] == pytest.approx(1.0)
    assert [a for a, _ in pieces[1:]] == pytest.approx([b for _, b in pieces[:-1]])
    assert transform(law, 1, 1.0) == pytest.approx(0.5)  # the most probable comes first
    assert transform(law, 0, 0.0) == pytest.approx(0.5)  # of equal ones the smaller id
    assert transform(law, 2, 0.3) == 1.0  # impossible
    assert transform_event(0.3, True, 1.0) == transform_event(0.3, False, 0.0) == pytest.approx(0.3)
    assert transform_event(0.3, False, 1.0) == 1.0


def test_g_and_p_are_those_of_scipy(rng):
    values = rng.random(500) ** 1.05
    found = g_test("x", "tokens", values.tolist())
    counts = np.histogram(values, 20, (0, 1))[0]
    g, p = scipy.stats.power_divergence(counts, lambda_="log-likelihood")
    assert (found.n, found.bins) == (500, 20)
    assert found.g == pytest.approx(g)
    assert found.p == pytest.approx(p)


def test_few_values_mean_fewer_bins_and_then_no_verdict():
    assert g_test("x", "t", [0.1] * 30).bins == 6
    assert g_test("x", "t", [0.1] * 9).p == 1.0
    assert not holm([g_test("x", "t", [0.1] * 9)])[0].failed


def test_holm_rejects_step_by_step():
    def of(*ps):
        return [t.failed for t in holm([Test("x", str(i), 100, 20, 0.0, p) for i, p in enumerate(ps)])]

    assert of(ALPHA / 4, 0.9, ALPHA / 3, 0.5) == [True, False, True, False]
    assert of(ALPHA / 3, 0.9, ALPHA / 3, 0.5) == [False] * 4
    assert of(ALPHA) == [True]


def test_p_values_are_uniform_under_the_null():
    """200 small runs of exact draws; each transform is taken under the law of its own prefix."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(200):
        tokens, us = [int(rng.integers(7))], []
        for _ in range(150):
            law = row_law(TARGET.next_logits(tokens).numpy(), SamplingParams(temperature=0.8, top_p=0.95))
            token = int(rng.choice(7, p=law / law.sum()))
            us.append(transform(law, token, float(rng.random())))
            tokens.append(token)
        found.append(g_test("x", "tokens", us).p)
    assert scipy.stats.kstest(found, "uniform").pvalue > 1e-3
    assert min(found) > 1e-5


def test_exact_engines_pass():
    report = drawn(["ngram", "suffix-tree", "self", "blurred"], temperature=0.7, repetition_penalty=1.2, top_p=0.9)
    assert report.ok, report.table()
    assert {t.name for t in report.tests} == {"tokens", "drafted positions", "points"}
    assert all(t.n > 500 for t in report.tests)
    accepted = {r.name: r.accepted for r in report.results}
    drafted = {r.name: r.drafted for r in report.results}
    assert 0 < accepted["ngram k=3"] < drafted["ngram k=3"]


def test_a_run_can_be_repeated():
    first, second = drawn(["ngram"], 40), drawn(["ngram"], 40)
    assert first.tests == second.tests


def test_points_are_not_tested_where_drafts_are_drawn():
    assert {t.name for t in drawn(["blurred"], 60).tests if t.case != "plain"} == {"tokens", "drafted positions"}


def change(monkeypatch, module, name, old, new, **extra):
    """One function with one piece of it changed."""
    source = textwrap.dedent(inspect.getsource(getattr(module, name)))
    assert source.count(old) == 1, f"the mutant no longer fits {name}(): bring it up to date"
    scope = dict(vars(module)) | extra
    exec("from __future__ import annotations\n" + source.replace(old, new), scope)
    monkeypatch.setattr(module, name, scope[name])


def test_accepting_every_draft_is_caught(monkeypatch):
    change(monkeypatch, verify, "walk", "tokens[child] == token", "True")
    assert {"tokens", "drafted positions", "points"} <= set(failed(drawn(["ngram"]), "ngram"))


def test_accepting_the_argmax_is_caught(monkeypatch):
    """A draft that is the argmax is taken although the draw says otherwise."""

    def kind(tree, p, noise, position):
        def choose(node, depth):
            best = int(p[node].argmax())
            tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
            offered = any(parents[i] == node and tokens[i] == best for i in range(len(tokens)))
            return best if offered else noise.categorical(p[node], position + depth, 0)

        return verify.walk(tree, choose)

    monkeypatch.setattr(verify, "coupled", kind)
    report = drawn(["ngram"])
    assert failed(report, "ngram")
    assert not failed(report, "plain")
    assert not report.ok


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("ratio", "current = residual(current, q)", "pass"),
        ("residual", "(p - q).clamp_min_(0.0)", "(p - q).abs_()"),
        ("ratio", "min(1.0, float(current[x]) / claimed)", "1.0"),
        ("ratio", "min(1.0, float(current[x]) / claimed)", "min(1.0, 1.5 * float(current[x]) / claimed)"),
    ],
    ids=["residual-not-subtracted", "absolute-residual", "accept-always", "lenient"],
)
def test_wrong_ratio_rules_are_caught(monkeypatch, name, old, new):
    change(monkeypatch, verify, name, old, new)
    report = drawn(["blurred"], 400, verification="ratio")
    assert failed(report, "blurred"), report.table()
    assert not failed(report, "plain")


@pytest.mark.parametrize(
    "old, new",
    [
        ("current, share, mass = rest, ", "share, mass = "),
        ("min(1.0, share *", "min(1.0, share / mass *"),
        ("if path and not noise.accept(mass, here - 1, ACCEPT, turn, node):", "if path and mass < 0.5:"),
    ],
    ids=["residual-not-subtracted", "mass-not-carried-on", "accepts-the-likely"],
)
def test_wrong_traversals_are_caught(monkeypatch, old, new):
    """The rule that draft models get by themselves where no seed is given."""
    change(monkeypatch, traversal, "traversal", old, new)
    monkeypatch.setattr(verify, "traversal", traversal.traversal)
    report = drawn(["blurred"], 400)
    assert failed(report, "blurred"), report.table()
    assert not failed(report, "plain")


@pytest.mark.parametrize("rule", FRESH)
def test_every_rule_passes_with_drafts_that_carry_their_law(rule):
    report = drawn(["blurred", "self"], 400, verification=rule)
    assert report.ok, report.table()


def test_draws_at_another_temperature_are_caught(monkeypatch):
    """The engine forgets the temperature; the audit shapes its laws itself."""
    hot = SamplingParams(temperature=1.0)

    def forgets(self, node, noise, position, lane, turn=0):
        return noise.categorical(row_law(self.shaped(node), hot), position, lane, turn)

    monkeypatch.setattr(settle_module, "Laws", type("Laws", (laws_module.Laws,), {"draw": forgets}))
    report = drawn(["ngram"], temperature=0.5)
    assert failed(report, "plain")
    assert failed(report, "ngram")
    assert report.bugs  # with seeds the race has another winner


def test_a_token_outside_of_the_law_is_a_bug(monkeypatch):
    change(monkeypatch, verify, "walk", "tokens[child] == token", "True")
    report = drawn(["ngram"], 100, top_k=1, temperature=0.9)
    outside = [f for r in report.results if r.name != "plain" for f in r.findings if "no probability" in f.why]
    assert outside
    assert all(f.verdict == "bug" for f in outside)


def test_seeded_outputs_are_compared_token_for_token(monkeypatch):
    assert not drawn(["ngram", "self"], 0).differing

    def other(tree, p, noise, position):
        """The noise depends on how deep the draft is."""
        return verify.walk(tree, lambda node, depth: noise.categorical(p[node], position, 0))

    monkeypatch.setattr(verify, "coupled", other)
    report = drawn(["ngram"], 0)
    assert report.differing
    assert report.bugs
    assert any("exact mode" in f.why for r in report.results for f in r.findings)


def test_a_verifier_of_a_wrong_kind_shows_in_greedy_mode(monkeypatch):
    def first_child(tree, best):
        return Verdict((1,), best[1]) if len(tree) > 1 else verify.greedy(tree, best)

    monkeypatch.setattr(settle_module, "greedy", first_child)
    report = audit(TARGET, PROMPTS, SamplingParams(max_tokens=30), drafters=["ngram"])
    assert report.bugs
    assert not report.ok
    assert report.results[0].bugs == 0  # plain decoding itself is right
