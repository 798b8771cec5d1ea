"""Cascades by their specs: what is made of what, where options go, what is refused, and that outputs stay the target's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys import ToyCodec, counter, run
from toys_exit import exit_head, exit_target

from surefoot import loader, making, trained
from surefoot.backends.table import TableModel
from surefoot.commands.speculative import options as speculative
from surefoot.control.breaker import Breaker
from surefoot.control.goodput import GoodputController
from surefoot.control.marginal import MarginalController
from surefoot.core.cost import CostModel
from surefoot.core.params import SamplingParams
from surefoot.drafter_spec import Spec, parse
from surefoot.drafters.cascade import Below, CascadeDrafter
from surefoot.drafters.horizontal import HorizontalDrafter
from surefoot.drafters.lane_target import LaneTarget
from surefoot.errors import BadRequest, ModelNotFound, SurefootError, VocabMismatch
from surefoot.heads.exit_files import save_exit
from surefoot.registry import DRAFTERS, leaves, parts
from surefoot.text.vocab import VocabReport

VOCAB = 16
COST = CostModel((1, 2, 16), (1.0, 1.02, 2.5), 100, 0.0, 0.3, 0.1)


class Letters(ToyCodec):
    """A tokenizer that goes with any of its kind."""

    fingerprint = "ab" * 32

    def compare(self, other: Any) -> VocabReport:
        return VocabReport(True, 0, None, (VOCAB, VOCAB), (0, 0), (None, None))


def target(model: Any = None, **traits: Any) -> Any:
    model = TableModel.random(VOCAB, 2, 3, 2.0, min_width=2) if model is None else model
    model.traits = replace(model.traits, **traits)
    cost = SimpleNamespace(cost=lambda target: COST)
    return loader.Target(model, Letters("abcdefghijklmnop"), cost, Path("toy"))  # type: ignore[arg-type]


def relative(rows: int = VOCAB) -> Any:
    if rows != VOCAB:
        return target(TableModel.random(rows, 2, 3, 2.0))
    own = TableModel.random(VOCAB, 2, 3, 2.0, min_width=2)
    return target(own.mixed(TableModel.random(VOCAB, 2, 8, 2.0), 0.2))


@pytest.fixture(autouse=True)
def light_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own weights in fewer bits and layers: other tables."""

    def lighter(target: Any, bits: int | None = None) -> TableModel:
        asked.append(bits)
        return relative().model

    def skipped(*args: Any, ratio: float = 0.5, source: int = 6, known: int | None = None, **more: Any) -> Any:
        from surefoot.drafters.model import ModelDrafter

        asked.append(ratio)
        model = TableModel.random(VOCAB, 2, 3, 2.0).mixed(TableModel.random(VOCAB, 2, 9, 2.0), 0.4)
        return ModelDrafter(model, VOCAB, known=known, name="layer_skip", source=source)

    asked.clear()
    monkeypatch.setattr("surefoot.target.quantized", lighter)
    monkeypatch.setattr("surefoot.skips.layer_skip", skipped)
    monkeypatch.setattr(making, "_layer_skip", lambda target, draft, options: options)
    monkeypatch.setitem(making.MAKERS, "layer_skip", lambda target, draft, options: options)


asked: list[Any] = []


def make(text: str, draft: Any = None, own: Any = None) -> making.Made:
    specs, _, _ = loader._parse(text, draft is not None, "auto", None)
    return making.Maker(target() if own is None else own, draft).all(specs)


def cascades(made: making.Made) -> list[CascadeDrafter]:
    return [d for d in made.drafters if isinstance(d, CascadeDrafter)]


# ---- what is made


@pytest.mark.parametrize(
    "text, names",
    [
        ("cascade:of=quantized/suffix", ["suffix", "quantized", "cascade"]),
        ("cascade:of= quantized / ngram ", ["ngram", "quantized", "cascade"]),
        ("cascade:of=quantized/layer_skip/ngram", ["ngram", "layer_skip", "cascade_layer_skip", "quantized", "cascade"]),
        ("cascade:of=quantized/layer_skip", ["layer_skip", "quantized", "cascade"]),
        ("horizontal:of=quantized/suffix/ngram", ["quantized", "suffix", "ngram", "horizontal"]),
        ("horizontal:of=cascade/ngram,cascade.of=quantized/ngram", ["ngram", "quantized", "cascade", "horizontal"]),
        ("horizontal:of=cascade/suffix,cascade.of=quantized/ngram", ["ngram", "quantized", "cascade", "suffix", "horizontal"]),
        ("dytc:of=layer_skip/quantized/suffix", ["layer_skip", "quantized", "suffix", "dytc"]),
        ("dytc", ["suffix", "dytc"]),
    ],
)
def test_every_part_is_a_drafter_of_the_engine(text: str, names: list[str]) -> None:
    made = make(text)
    assert [d.name for d in made.drafters] == names
    assert [d.source for d in made.drafters] == list(range(1, len(names) + 1))
    assert made.chosen == names[-1:]
    loader.assemble(target(), text).close()


def test_levels_are_nested_from_the_bottom_up() -> None:
    made = make("cascade:of=quantized/layer_skip/ngram,inner_k=5/2,steps=3/1,confidence=0.25")
    ngram, skip, inner, light, outer = made.drafters
    assert inner.engine.target is skip.draft
    assert outer.engine.target is light.draft
    below = list(outer.engine.drafters.values())
    assert all(isinstance(d, Below) for d in below)
    assert [d.inner for d in below] == [ngram, skip, inner]
    assert [d.inner for d in inner.engine.drafters.values()] == [ngram]
    plans = [c.engine.controller.plan([None])[0] for c in (outer, inner)]
    assert [(plan.drafter, plan.depth) for plan in plans] == [("cascade_layer_skip", 5), ("ngram", 2)]
    assert [(c._steps, c._confidence, c._mark) for c in (outer, inner)] == [(3, 0.25, light.source), (1, 0.25, skip.source)]
    assert not outer.engine._pool.reuse
    assert outer.engine._known == VOCAB


def test_options_go_to_the_part_they_name() -> None:
    made = make("cascade:of=quantized/layer_skip/ngram,quantized.bits=8,layer_skip.ratio=0.6,ngram.max_n=3")
    assert asked == [0.6, 8]
    assert made.drafters[0]._max_n == 3
    made = make(
        "horizontal:of=cascade/suffix,cascade.of=quantized/ngram,cascade.quantized.bits=3,cascade.inner_k=6,lengths=3/5"
    )
    assert asked[2:] == [3]
    (cascade,) = cascades(made)
    assert cascade.engine.controller.plan([None])[0].depth == 6
    (horizontal,) = [d for d in made.drafters if isinstance(d, HorizontalDrafter)]
    assert horizontal.lengths == (3, 5)
    assert horizontal._parts[0] is cascade
    made = make("dytc:of=quantized/suffix,quantized.bits=2,top=3,k_max=2,alphas=0.6,t_min=0.4,tree=off,siblings=false")
    dytc = made.drafters[-1]
    assert (dytc.options.width, dytc.options.k_max, dytc.options.t_min) == (3, 2, 0.4)
    assert not dytc.options.tree
    assert not dytc.options.siblings
    assert asked[-1] == 2


@pytest.mark.parametrize(
    "text, length",
    [
        ("cascade:of=quantized/suffix", 8),
        ("cascade:of=quantized/suffix,steps=1", 5),
        ("cascade:of=quantized/suffix,steps=1,inner_k=2", 3),
        ("cascade:of=quantized/suffix,steps=2,inner_k=6", 8),
        ("horizontal:of=quantized/suffix", 6),
        ("horizontal:of=quantized/suffix/ngram,lengths=1/2/9", 12),
        ("suffix", 4),
    ],
)
def test_the_length_that_a_fixed_controller_drafts(text: str, length: int) -> None:
    assert make(text).length == length
    engine = loader.assemble(target(), text, None, "fixed")
    assert engine.controller.plan([None])[0].depth == length
    engine = loader.assemble(target(), text, None, "fixed", 3)
    assert engine.controller.plan([None])[0].depth == 3


def test_the_inner_controller() -> None:
    (cascade,) = cascades(make("cascade:of=quantized/suffix,inner=goodput,inner_k=7"))
    assert isinstance(cascade.engine.controller, GoodputController)
    assert cascade.engine.controller._max == 7


def test_passes_of_a_model_that_dislikes_changes_keep_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = relative().model
    model.traits = replace(model.traits, steady=True)
    monkeypatch.setattr("surefoot.target.quantized", lambda target, bits=None: model)
    (cascade,) = cascades(make("cascade:of=quantized/suffix,inner_k=3"))
    (plan,) = cascade.engine.controller.plan([None])
    assert (plan.hold, plan.sizes) == (5, (5,))


@pytest.mark.parametrize(
    "text, kind", [("cascade:of=quantized/suffix", GoodputController), ("dytc:of=quantized/suffix", MarginalController)]
)
def test_auto_is_by_cost(text: str, kind: type) -> None:
    engine = loader.assemble(target(), text)
    assert isinstance(engine.controller, Breaker)
    assert type(engine.controller.inner) is kind


# ---- exits


@pytest.fixture
def exits(tmp_path: Path) -> tuple[Any, Path]:
    """A target that can be left behind layer 2 (the toy has one cut), and heads for layers 1 to 3."""
    own = exit_target(VOCAB)
    for layer in (1, 2, 3):
        save_exit(tmp_path / str(layer), exit_head(own, "bare", layer=layer))
    return target(own), tmp_path


def two(exits: tuple[Any, Path], shallow: int, deep: int, more: str = "") -> str:
    return f"two_exit:shallow={exits[1] / str(shallow)},deep={exits[1] / str(deep)}{more}"


def test_both_exits_are_asked_for_before_the_model_is_loaded(exits: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "resolve", lambda ref: ref)
    monkeypatch.setattr(loader, "fetch", lambda ref, progress=None: Path("toy"))
    text = two(exits, 1, 3, ",shallow.depth=5,deep_layer=3")
    assert loader.needs([text])["cut"] == (1, 3)
    found = loader._heads(parse(text, list(DRAFTERS))[0], "toy", None)
    assert [(h.drafter, h.folder.name, h.depth, h.layer) for h in found] == [
        ("early_exit_deep", "3", None, 3),
        ("early_exit", "1", 5, None),
    ]
    text = f"horizontal:of=cascade/early_exit,cascade.of=early_exit_deep/ngram,early_exit.path={exits[1] / '1'}"
    assert loader.needs([text + f",cascade.early_exit_deep.path={exits[1] / '2'}"])["cut"] == (1, 2)


def test_two_exits_are_a_cascade_over_the_deep_one(exits: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits[0].model, "cuts", (1, 2, 3))
    made = make(two(exits, 1, 3, ",steps=2"), own=exits[0])
    shallow, deep, drafter = made.drafters
    assert [d.name for d in made.drafters] == ["early_exit", "early_exit_deep", "two_exit"]
    assert isinstance(drafter, CascadeDrafter)
    model = drafter.engine.target
    assert isinstance(model, LaneTarget)
    assert model.lane is deep.lane
    assert model.paths is deep.paths
    assert (drafter._confidence, drafter._steps, made.length) == (0.6, 2, 8)
    assert drafter.engine.controller.plan([None])[0].depth == 3
    assert [d.inner for d in drafter.engine.drafters.values()] == [shallow]


@pytest.mark.parametrize("shallow, deep", [(2, 1), (2, 2)])
def test_exits_in_the_wrong_order_are_refused(exits: tuple[Any, Path], shallow: int, deep: int) -> None:
    with pytest.raises(BadRequest, match=f"after layer {shallow}, the deep one after layer {deep}; give an earlier exit"):
        make(two(exits, shallow, deep), own=exits[0])


@pytest.mark.parametrize(
    "text, says",
    [
        ("two_exit", r"no trained head 'early_exit_deep' .*\(in two_exit deep=FOLDER\), or train it: surefoot train exit"),
        ("two_exit:wings=3", "takes no option 'wings'; its own are shallow, deep"),
        ("two_exit:early_exit.path=x", "'early_exit.path' names no part of 'deep/shallow'"),
        ("early_exit_deep", r"comes with Surefoot .* surefoot train exit"),
    ],
)
def test_exits_that_are_missing(text: str, says: str) -> None:
    with pytest.raises((BadRequest, ModelNotFound), match=says):
        make(text)


def test_a_deep_exit_is_a_drafter_of_its_own(exits: tuple[Any, Path]) -> None:
    head = trained.find("early_exit_deep", {"path": str(exits[1] / "3")}, Path("toy"))
    assert (head.drafter, head.reads.cut) == ("early_exit_deep", 3)


# ---- what is refused


@pytest.mark.parametrize(
    "text, says",
    [
        ("cascade", "takes two drafters or more; name them as in of=quantized/suffix"),
        ("cascade:of=suffix", "takes two drafters or more"),
        ("cascade:of=quantized/sufix", r"'sufix' \(of 'quantized/sufix'\) cannot be part of one; did you mean 'suffix'"),
        ("cascade:of=quantized/hybrid", "'hybrid' .* cannot be part"),
        ("cascade:of=quantized/horizontal", "'horizontal' .* cannot be part"),
        ("cascade:of=quantized/suffix/quantized", "'quantized' is twice"),
        ("cascade:of=suffix/ngram", "'suffix' cannot review the drafts of 'ngram'; only the last part"),
        ("cascade:of=quantized/recycle/ngram", "'recycle' cannot review the drafts of 'ngram'"),
        ("cascade:of=quantized/suffix,stepps=2", "takes no option 'stepps'; its own are of, steps, inner_k, inner, confidence"),
        ("cascade:of=quantized/suffix,ngram.max_n=2", "'ngram.max_n' names no part of 'quantized/suffix'"),
        ("cascade:of=quantized/suffix,steps=0", "steps=0 is not allowed; give whole numbers from 1 up"),
        ("cascade:of=quantized/suffix,inner_k=x", "inner_k='x' is not allowed"),
        ("cascade:of=quantized/suffix,inner_k=2/3", "inner_k='2/3' gives 2 numbers for 1 levels"),
        ("cascade:of=quantized/layer_skip/ngram,steps=1/2/3", "steps='1/2/3' gives 3 numbers for 2 levels"),
        ("cascade:of=quantized/suffix,confidence=2", "confidence=2 must be a number from 0 to 1"),
        (
            "cascade:of=quantized/suffix,inner=window",
            "inner='window' is no controller of a cascade; give one of fixed, goodput",
        ),
        ("cascade:of=model/suffix", "belong together"),
        ("horizontal", "takes two drafters or more"),
        ("horizontal:of=quantized/suffix,lengths=2", "lengths=2 are not one for each of quantized/suffix; give 2"),
        ("horizontal:of=quantized/suffix,lengths=2/0", "lengths='2/0' is not allowed"),
        ("horizontal:of=quantized/nothing", "'nothing' .* cannot be part"),
        ("horizontal:of=suffix/suffix", "'suffix' is twice"),
        ("horizontal:of=suffix/dytc", "'dytc' .* cannot be part"),
        ("horizontal:of=suffix/ngram,max_n=3", "takes no option 'max_n'; its own are of, lengths"),
        (
            "horizontal:of=cascade/ngram,cascade.of=quantized/ngram,cascade.ngram.max_n=2,ngram.max_n=3",
            "the options of 'ngram' are given twice and differ",
        ),
        ("dytc:of=quantized/cascade", "its last part is a cheap drafter"),
        ("dytc:of=quantized/suffix,wings=2", "takes no option 'wings'"),
        ("dytc:of=quantized/suffix,alphas=x", "alphas='x' is not allowed; give numbers"),
        ("dytc:of=quantized/suffix,alphas=0.3/0.4", "alphas=.* give 1 numbers"),
        ("hybrid:of=cascade/suffix", "'cascade' is twice there or no source"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(SurefootError, match=says) as told:
        make(text)
    assert "\n" not in str(told.value)
    assert isinstance(told.value, BadRequest)


def test_a_draft_model_of_other_words_cannot_review(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VocabMismatch, match="lighter model must have the target's 16 tokens, not 14"):
        make("cascade:of=model/suffix", relative(14))
    for name in ("cascade:of=model/suffix,width=2", "horizontal:of=model/suffix,nodes=9"):
        with pytest.raises(BadRequest, match="makes drafts trees"):
            make(name, relative())


def test_marginal_needs_a_drafter_that_knows_its_reach() -> None:
    with pytest.raises(BadRequest, match=r"estimates its reach \(hybrid, dytc\)"):
        loader.assemble(target(), "cascade:of=quantized/suffix", None, "marginal")
    loader.assemble(target(), "dytc:of=quantized/suffix", None, "marginal").close()


def test_a_name_used_twice_in_an_engine_is_refused() -> None:
    with pytest.raises(BadRequest, match="share a name"):
        loader.assemble(target(), "cascade:of=quantized/suffix+suffix")


# ---- what specs are made of


def test_the_drafters_at_the_bottom_of_a_spec() -> None:
    one = Spec("horizontal", {"of": "cascade/suffix", "cascade.of": "model/ngram", "cascade.ngram.max_n": 3, "lengths": "1/2"})
    assert leaves(one) == [Spec("model", {}), Spec("ngram", {"max_n": 3}), Spec("suffix", {})]
    assert parts(one) == ["model", "ngram", "suffix"]
    assert leaves(Spec("ngram", {"max_n": 2})) == [Spec("ngram", {"max_n": 2})]
    assert leaves(Spec("hybrid", {"of": "hydra/suffix", "ask": 0.3, "path": "x", "suffix.max_match": 4})) == [
        Spec("hydra", {"path": "x"}),
        Spec("suffix", {"max_match": 4}),
    ]
    assert leaves(Spec("two_exit", {"shallow": "a", "deep": "b", "deep_layer": 9, "shallow.depth": 4, "steps": 1})) == [
        Spec("early_exit_deep", {"path": "b", "layer": 9}),
        Spec("early_exit", {"path": "a", "depth": 4}),
    ]
    assert parts(Spec("cascade", {})) == []


@pytest.mark.parametrize(
    "given, drafter",
    [
        ({"method": "cascade", "of": ["quantized", "suffix"], "steps": 2}, "cascade:of=quantized/suffix,steps=2"),
        ({"method": "horizontal", "of": "quantized/suffix", "lengths": [2, 6]}, "horizontal:of=quantized/suffix,lengths=2/6"),
        ({"method": "two_exit", "shallow": "a", "confidence": 0.5}, "two_exit:shallow=a,confidence=0.5"),
        ({"method": "dytc", "tree": False}, "dytc:tree=false"),
        ({"method": "dytc"}, "dytc"),
    ],
)
def test_the_same_as_json(given: dict[str, Any], drafter: str) -> None:
    assert speculative({**given, "num_speculative_tokens": 6}) == {
        "drafter": drafter,
        "draft_model": None,
        "num_speculative_tokens": 6,
    }


@pytest.mark.parametrize("value", [{}, [], None, [[1]], "a,b", "a+b"])
def test_json_that_no_option_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest, match="of="):
        speculative({"method": "cascade", "of": value})


def test_a_draft_model_in_json() -> None:
    found = speculative({"method": "cascade", "of": ["model", "ngram"], "model": "small"})
    assert found == {"drafter": "cascade:of=model/ngram", "draft_model": "small"}


# ---- what it says

SPECS = [
    "cascade:of=model/suffix",
    "cascade:of=model/quantized/ngram,steps=2,inner_k=3/2",
    "cascade:of=quantized/layer_skip/model,confidence=0.3",
    "cascade:of=model/suffix,inner=goodput",
    "horizontal:of=model/suffix,lengths=2/4",
    "horizontal:of=cascade/suffix,cascade.of=model/ngram",
    "dytc:of=model/quantized/suffix",
]


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("controller", ["fixed", "auto"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_tokens_equal_plain_decoding(text: str, controller: str, k: int) -> None:
    requests = [
        ([1, 2, 3], {"max_tokens": 25}),
        ([7], {"max_tokens": 18, "temperature": 0.9, "seed": 4}),
        ([2] * 9, {"max_tokens": 11, "temperature": 1.2, "top_k": 1}),
        ([1, 2, 3], {"max_tokens": 21, "temperature": 0.6, "seed": 5, "stop_token_ids": [3]}),
    ]
    plain = [run(loader.assemble(target(), "none"), request)[0].token_ids for request in requests]
    made = loader.assemble(target(), text, relative(), controller, k)
    for _ in range(2):
        assert [one.token_ids for one in run(made, *requests)] == plain
        assert [run(made, request)[0].token_ids for request in requests] == plain
    made.close()


@pytest.mark.parametrize("controller", ["window", "goodput", "confidence", "thompson", "bandit", "breaker"])
@pytest.mark.parametrize("text", ["cascade:of=model/suffix", "horizontal:of=model/suffix"])
def test_every_controller_can_plan_them(text: str, controller: str) -> None:
    request = ([1, 2, 3], {"max_tokens": 40})
    plain = run(loader.assemble(target(), "none"), request)[0].token_ids
    made = loader.assemble(target(), text, relative(), controller)
    assert run(made, request)[0].token_ids == plain


def test_the_lighter_model_reads_a_row_once() -> None:
    """However a draft ends, the cache of the lighter model stays."""
    draft = target(counter(VOCAB))
    engine = loader.assemble(target(counter(VOCAB)), "cascade:of=model/suffix,inner_k=4", draft, "fixed", 7)
    row = engine.add([*range(VOCAB)] * 4, SamplingParams(max_tokens=60))
    read = 0
    score = draft.model.score

    def counted(slots: Any, forest: Any, need: Any) -> Any:
        nonlocal read
        read += sum(forest.sizes)
        return score(slots, forest, need)

    draft.model.score = counted
    while not row.done:
        engine.step()
    levels = row.stats.levels
    assert levels["model"].accepted > 30
    assert read <= 4 * VOCAB + 60 + levels["suffix"].proposed + 2 * levels["model"].passes
