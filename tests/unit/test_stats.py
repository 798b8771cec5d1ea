"""Counts follow the kept prefix; conventions: a draft is a pass with drafted tokens, τ = 1 + accepted / drafts."""

from __future__ import annotations

import json

import pytest

from surefoot.backends.table import TableModel
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.protocols import Costs
from surefoot.core.stats import Stats
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter


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


def test_levels_are_those_below_and_the_target():
    stats = Stats()
    stats.add_pass(["a"] * 3, ["a", "target"])
    assert stats.levels == {}
    assert "levels" not in stats.to_dict()
    stats.add_level("ngram", proposed=5)
    stats.add_level("model", passes=2, reviewed=5, accepted=3, proposed=4)
    stats.add_level("model", passes=1, reviewed=1, proposed=2)
    assert list(stats.levels) == ["ngram", "model", "target"]
    out = json.loads(json.dumps(stats.to_dict()))["levels"]
    assert out == {
        "ngram": {"passes": 0, "reviewed": 0, "accepted": 0, "proposed": 5},
        "model": {"passes": 3, "reviewed": 6, "accepted": 3, "proposed": 6},
        "target": {"passes": 1, "reviewed": 3, "accepted": 1, "proposed": 2},
    }
    stats.add_pass([], ["target"])
    assert stats.levels["target"].passes == 2


def cascade(levels: int):
    """Two or three levels over tables; all of them are drafters of the engine."""
    target = TableModel.random(6, 2, 0, 2.0)
    light = target.mixed(TableModel.random(6, 2, 1, 2.0), 0.3)
    lighter = target.mixed(TableModel.random(6, 2, 2, 2.0), 0.5)
    ngram, low, high = NgramDrafter(source=1), ModelDrafter(lighter, 6, source=2, name="low"), ModelDrafter(light, 6, source=3)
    below, bottom = [ngram], ngram
    if levels == 3:
        inner = Engine(lighter, [Below(ngram)], FixedController("ngram", 2), reuse=False)
        bottom = CascadeDrafter(inner, 6, part=low, name="inner", source=4)
        below = [ngram, low, bottom]
    engine = Engine(light, [Below(d) for d in below], FixedController(bottom.name, 3), reuse=False)
    outer = CascadeDrafter(engine, 6, part=high, steps=2, source=5)
    return Engine(target, [*below, high, outer], FixedController("cascade", 5))


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "verification": "ratio", "seed": 3}])
def test_what_a_level_proposes_the_next_one_reviews(levels, options):
    engine = cascade(levels)
    for _ in range(2):  # counts begin anew with every request
        stats = engine.generate([1, 2, 3, 1, 2, 3, 1, 2], max_tokens=60, **options).stats
        found = stats.levels
        assert list(found) == ["ngram", *(["low"] if levels == 3 else []), "model", "target"]
        for below, above in zip(found.values(), list(found.values())[1:]):
            assert below.proposed == above.reviewed > 0
            assert above.accepted <= above.reviewed
            assert above.proposed <= above.accepted + above.passes
        assert found["model"].passes <= 2 * stats.drafts
        assert found["target"].accepted == stats.accepted_tokens
        assert "cascade" not in stats.by_source
        # what stayed of a level's own tokens is among what it was not given by the one below
        assert stats.by_source["model"].draft_tokens >= found["model"].proposed - found["model"].accepted
        assert sum(counts.draft_tokens for counts in stats.by_source.values()) == found["model"].proposed


def test_levels_are_of_one_request():
    engine = cascade(2)
    alone = [engine.generate(prompt, max_tokens=30).stats.levels for prompt in ([1, 2, 3, 1], [4, 5, 4])]
    together = [done.stats.levels for done in engine.generate_batch([[1, 2, 3, 1], [4, 5, 4]], max_tokens=30)]
    assert together == alone
