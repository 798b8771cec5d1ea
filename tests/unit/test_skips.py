"""Skip sets: their text, the two searches on toys with a known answer, the store, and the drafter over tables."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from toys import fixed, run

from surefoot.backends.table import TableModel
from surefoot.core.engine import Engine
from surefoot.core.sublayers import Sample, Skippable, SkipSet, skippable
from surefoot.errors import BadRequest, Unsupported
from surefoot.skips import Found, Store, find_skips, layer_skip, samples
from surefoot.skips.clasp import programme
from surefoot.skips.surrogate import expected_improvement, propose
from surefoot.skips.swift import ENOUGH, EVERY, search

VOCAB = 7


class ToyTrial:
    """Five layers of one number a token: step i adds ``size[i]`` along an axis of its own. Argmaxes err where sets are bad."""

    layers = 5

    def __init__(self, sizes, good=()) -> None:
        self.sizes = sizes
        self.good = set(good)
        self.asked: list[SkipSet] = []

    def best(self, samples, skips):
        self.asked.append(skips)
        wrong = sum(s not in self.good for s in skips.sublayers)
        said = [t for s in samples for t in s.tokens[s.start :]]
        return [(t + 1) % VOCAB if i < wrong * len(said) // 6 else t for i, t in enumerate(said)]

    def steps(self):
        return tuple(((kind, layer),) for layer in range(5) for kind in ("attn", "mlp"))

    def embed(self, samples):
        return torch.cat([torch.eye(12)[[11] * len(s.read)] for s in samples])

    def run(self, step, samples, streams):
        out = streams.clone()
        out[..., step] += self.sizes[step]
        return out


class Own(TableModel):
    """A table whose draft moves towards another one, the further the more is skipped."""

    tried: ToyTrial

    def without(self, skips, *, kv_tokens=None):
        skips.check(5)
        other = TableModel.random(VOCAB, 2, seed=9)
        self.drafts = [*getattr(self, "drafts", []), (skips, kv_tokens)]
        return self.mixed(other, 0.1 * len(skips))

    def trial(self):
        return self.tried


def own(good=()) -> Own:
    target = Own(TableModel.random(VOCAB, 2, seed=3).logits, 2)
    target.tried = ToyTrial([1.0] * 10, good)
    return target


def test_text_of_a_set_goes_there_and_back() -> None:
    skips = SkipSet.parse("mlp:5-7/attn:3, attn:1;attn:3")
    assert skips == SkipSet((1, 3), (5, 6, 7))
    assert str(skips) == "attn:1,attn:3,mlp:5,mlp:6,mlp:7"
    assert SkipSet.parse(str(skips)) == skips
    assert len(skips) == 5


@pytest.mark.parametrize("text", ["", "attn", "attn:", "ffn:3", "attn:5-3", "attn:-1", "attn:1x", "3"])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"skips.*attn:3,mlp:5-8"):
        SkipSet.parse(text)


@pytest.mark.parametrize("text", ["attn:0", "mlp:5", "mlp:0", "attn:6", "attn:2,mlp:9"])
def test_first_and_last_layers_and_missing_ones_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="name layers 1 to 4 of 6"):
        SkipSet.parse(text).check(6)
    SkipSet.parse("attn:1,mlp:4").check(6)


def test_what_may_be_skipped() -> None:
    assert skippable(4) == (("attn", 1), ("mlp", 1), ("attn", 2), ("mlp", 2))
    assert skippable(2) == ()


def planted(good, places=100):
    return lambda skips: sum(s in good for s in skips.sublayers) / len(skips)


def test_random_search_is_bounded_deterministic_and_ends_where_it_is_good_enough() -> None:
    choice = skippable(12)
    good = set(choice[::2])
    first = search(planted(good), choice, 8, 100, evaluations=40, seed=1)
    assert first == search(planted(good), choice, 8, 100, evaluations=40, seed=1)
    assert first != search(planted(good), choice, 8, 100, evaluations=40, seed=2)
    assert first[2] == 40
    assert len(first[0]) == 8
    asked = []
    skips, score, made = search(lambda s: asked.append(s) or ENOUGH, choice, 8, 100, evaluations=40)
    assert (score, made) == (ENOUGH, 1)
    assert asked == [skips]


def test_every_step_by_the_surrogate_finds_what_random_search_does_not() -> None:
    """The planted half: random sets of 8 in 20 almost never hold more than 7 of it; a guided search finds 8 of 8."""
    choice = skippable(12)
    good = set(choice[::2])
    scores = {
        every: search(planted(good), choice, 8, 100, evaluations=110, seed=3, every=every)[1] for every in (2, EVERY, 999)
    }
    assert scores[2] == 1.0
    assert scores[999] < 0.93
    assert scores[EVERY] >= scores[999]


def test_improvement_is_expected_beside_the_best_and_never_of_sets_tried(rng) -> None:
    tried = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]], float)
    scores = np.array([0.9, 0.1, 0.1])
    near, far = [1, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0]
    gain = expected_improvement(tried, scores, 1000, np.array([near, far, tried[0]], float))
    assert gain[0] > gain[1] > 0
    assert gain[2] < gain[0], "nothing is to be gained where it is known"

    def draw():
        return tried[0]

    for _ in range(5):
        found = propose(tried, scores, 1000, draw, rng)
        assert not any((found == row).all() for row in tried)
        assert found.sum() == 2


SAMPLES = [Sample((1, 2, 3, 4), 2), Sample((5, 6, 1), 1)]


def test_the_programme_skips_what_changes_nothing_and_spares_the_ends() -> None:
    """Steps 0, 3, 6, 9 add nothing; 0 and 9 are of layers that have to run."""
    sizes = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert programme(ToyTrial(sizes), SAMPLES, 2) == SkipSet.of([("mlp", 1), ("attn", 3)])


def test_the_programme_is_the_recursion() -> None:
    """With steps on axes of their own, the best of all sets by the cosine at the end is found."""
    sizes = [1.0, 0.5, 0.3, 0.9, 0.2, 0.7, 0.4, 0.1, 1.0, 0.6]
    trial = ToyTrial(sizes)
    course = np.array([*sizes, 0.0, 1.0])

    def end(out) -> float:
        other = course.copy()
        other[list(out)] = 0
        return float(other @ course / np.linalg.norm(other) / np.linalg.norm(course))

    for size in (1, 2, 3, 5):
        wanted = max(itertools.combinations(range(2, 8), size), key=end)
        steps = trial.steps()
        assert programme(trial, SAMPLES, size) == SkipSet.of([steps[i][0] for i in wanted])


def test_the_programme_counts_whole_layers_as_two() -> None:
    class Side(ToyTrial):
        def steps(self):
            return tuple((("attn", layer), ("mlp", layer)) for layer in range(5))

    trial = Side([1.0, 1.0, 0.0, 1.0, 1.0])
    assert programme(trial, SAMPLES, 3) == SkipSet((2,), (2,))
    assert programme(trial, SAMPLES, 1) == SkipSet()


def test_samples_are_the_targets_own_words() -> None:
    target = own()
    found = samples(target, [[1, 2], [3]], 25)
    assert [len(s.tokens) - s.start for s in found] == [13, 12]
    assert target.open_slots == 0, "the search holds rows of the cache"
    for s in found:
        assert (
            s.tokens[s.start :]
            == tuple(Engine(target).generate(s.tokens[: s.start], max_tokens=25).token_ids)[: len(s.tokens) - s.start]
        )
    assert len(samples(target, [[1], [2], [3]], 10)) == 1
    with pytest.raises(BadRequest, match="no prompt"):
        samples(target, [[]], 10)


def test_both_methods_find_a_set_of_the_asked_size() -> None:
    good = {("attn", 1), ("mlp", 2), ("attn", 3)}
    target = own(good)
    found = find_skips(target, [[1, 2]], method="swift", ratio=0.5, max_evaluations=200)
    assert set(found.skips.sublayers) == good
    assert found.agreement == 1.0
    assert found.evaluations < 200
    found = find_skips(own(), [[1, 2]], method="clasp", ratio=0.5)
    assert len(found.skips) == 3
    assert found.evaluations == 1


@pytest.mark.parametrize(
    "options, told",
    [
        ({"method": "best"}, "method='best' is unknown; choose swift, clasp"),
        ({"ratio": 0}, "ratio=0 must be a number between 0 and 1"),
        ({"ratio": 1.0}, "ratio=1.0 must be"),
        ({"ratio": "0.3"}, "ratio='0.3' must be"),
        ({"tokens": 0}, "tokens=0 must be a whole number"),
        ({"max_evaluations": True}, "max_evaluations=True must be"),
    ],
)
def test_bad_options_are_refused(options: dict, told: str) -> None:
    with pytest.raises(BadRequest, match=f"layer_skip: {told}"):
        layer_skip(own(), [[1]], None, **options)


def test_what_cannot_skip_is_refused() -> None:
    with pytest.raises(Unsupported, match="this backend cannot leave sublayers out"):
        layer_skip(TableModel.random(VOCAB, 2), [[1]], None)
    shallow = own()
    shallow.tried.layers = 2
    with pytest.raises(Unsupported, match="2 layers leave nothing to skip at ratio"):
        layer_skip(shallow, [[1]], None)
    assert isinstance(own(), Skippable)


def test_sets_are_kept_by_identity_and_options(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path))
    target = own()
    layer_skip(target, [[1, 2]], "model a", kv_tokens=99)
    made = len(target.tried.asked)
    assert made > 0
    drafter = layer_skip(target, [[1, 2]], "model a")
    assert len(target.tried.asked) == made, "a stored set was searched again"
    assert (drafter.name, drafter.source) == ("layer_skip", 6)
    [(first, tokens), (again, _)] = target.drafts
    assert first == again
    assert tokens == 99
    for identity, options in (("model b", {}), ("model a", {"ratio": 0.3}), ("model a", {"method": "swift"}), (None, {})):
        before = len(target.tried.asked)
        layer_skip(target, [[1, 2]], identity, **options)
        assert len(target.tried.asked) > before


def test_sets_named_outright_need_no_search() -> None:
    target = own()
    layer_skip(target, [], None, skips="attn:2/mlp:1-3")
    assert not target.tried.asked
    assert target.drafts == [(SkipSet((2,), (1, 2, 3)), None)]
    with pytest.raises(BadRequest, match="attn:4 cannot be left out"):
        layer_skip(target, [], None, skips="attn:4")


@pytest.mark.parametrize("content", ["", "[]", "not json", '{"o": 3}', '{"o": {"skips": "?"}}', '{"o": {"skips": "attn:1"}}'])
def test_an_unreadable_store_is_no_store(tmp_path, content: str) -> None:
    store = Store("model", tmp_path)
    found = Found(SkipSet((1,), (2,)), 0.5, 3, "swift")
    store.save("o", found)
    assert Store("model", tmp_path).load("o") == found
    assert Store("model", tmp_path).load("p") is None
    [file] = (tmp_path / "skips").iterdir()
    assert json.loads(file.read_text())["o"]["skips"] == "attn:1,mlp:2"
    file.write_text(content)
    assert Store("model", tmp_path).load("o") is None
    store.save("o", found)
    assert store.load("o") == found


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
def test_output_is_that_of_plain_decoding(k: int) -> None:
    """Ragged rows, greedy and seeded, with forks, on a draft that is right now and then."""
    target = own()
    requests = [
        ([1, 2, 3], {"max_tokens": 30}),
        ([4] * 9, {"max_tokens": 11, "temperature": 0.9, "seed": 5}),
        ([5, 6], {"max_tokens": 17, "temperature": 1.2, "seed": 6, "verification": "coupled", "n": 2}),
        ([2], {"max_tokens": 1}),
    ]
    engine = fixed(target, layer_skip(target, [], None, skips="attn:1-2"), k)
    found = [engine.generate(prompt, **options) for prompt, options in requests]
    for (prompt, options), got in zip(requests, found):
        wanted = Engine(target).generate(prompt, **options)
        assert [c.token_ids for c in got.choices] == [c.token_ids for c in wanted.choices]
    batch = [(p, o) for p, o in requests if "n" not in o]
    for (prompt, options), got in zip(batch, run(engine, *batch)):
        assert got.token_ids == Engine(target).generate(prompt, **options).token_ids
    assert found[0].stats.accepted_tokens > 0


def test_an_aborted_row_gives_its_draft_cache_back() -> None:
    target = own()
    drafter = layer_skip(target, [], None, skips="mlp:1")
    engine = fixed(target, drafter, 3)
    from surefoot.core.params import SamplingParams

    row = engine.add([1, 2, 3], SamplingParams(max_tokens=50))
    for _ in range(3):
        engine.step()
    assert drafter.draft.open_slots > 0
    engine.abort(row)
    assert drafter.draft.open_slots == 0
