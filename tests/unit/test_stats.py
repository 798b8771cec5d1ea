"""Counts follow the kept prefix; conventions: a draft is a pass with drafted tokens, τ = 1 + accepted / drafts."""

from __future__ import annotations

import json

import pytest

from surefoot.core.protocols import Costs
from surefoot.core.stats import Stats


def test_nothing_happened():
    stats = Stats()
    assert stats.acceptance_rate == 0.0
    assert stats.mean_acceptance_length == 1.0


def test_plain_passes_are_not_drafts():
    stats = Stats()
    stats.add_pass([], ["target"])
    assert (stats.passes, stats.drafts, stats.draft_tokens) == (1, 0, 0)


def test_what_was_kept_counts():
    stats = Stats()
    stats.add_pass(["a"] * 4, ["a", "a", "target"])  # two of four accepted
    stats.add_pass(["a"] * 4, ["target"])  # none
    stats.add_pass(["a"] * 4, ["a"])  # three were right, but the request ended after the first
    assert (stats.passes, stats.drafts, stats.draft_tokens, stats.accepted_tokens) == (3, 3, 12, 3)
    assert stats.accepted_per_position == [2, 1]
    assert stats.acceptance_rate == pytest.approx(0.25)
    assert stats.mean_acceptance_length == pytest.approx(2.0)


def test_counts_by_source():
    stats = Stats()
    stats.add_pass(["a", "b", "b"], ["b", "b", "target"])
    stats.add_pass(["a"], ["target"])
    a, b = stats.by_source["a"], stats.by_source["b"]
    assert (a.drafts, a.draft_tokens, a.accepted_tokens) == (2, 2, 0)
    assert (b.drafts, b.draft_tokens, b.accepted_tokens) == (1, 2, 2)


def test_time_goes_to_prompt_or_decoding():
    stats = Stats()
    stats.add_time(Costs(1.0, 2.0, 0.5, 9, 9, 9), prefill=True)
    stats.add_time(Costs(1.0, 2.0, 0.5, 9, 0, 9), prefill=False)
    assert (stats.prompt_seconds, stats.decode_seconds, stats.draft_seconds, stats.score_seconds) == (3.5, 3.5, 1.0, 2.0)


def test_plain_values_for_json():
    stats = Stats()
    stats.add_pass(["a", "a"], ["a", "target"])
    out = json.loads(json.dumps(stats.to_dict()))
    assert out["mean_acceptance_length"] == 2.0
    assert out["acceptance_rate"] == 0.5
    assert out["by_source"] == {"a": {"drafts": 1, "draft_tokens": 2, "accepted_tokens": 1}}
