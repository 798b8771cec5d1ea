"""Drafters by name: what a spec makes, where options go, what is refused, and that all of it says what the target says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from toys import ToyCodec, counter, run

from surefoot import loader, making, registry
from surefoot.backends.table import TableModel
from surefoot.control.breaker import Breaker
from surefoot.control.goodput import GoodputController
from surefoot.control.marginal import MarginalController
from surefoot.core.cost import CostModel
from surefoot.core.engine import Engine
from surefoot.drafter_spec import Spec
from surefoot.drafters.datastore_build import write
from surefoot.drafters.proposed import Proposed
from surefoot.errors import BadRequest, SurefootError
from surefoot.text.vocab import VocabReport

VOCAB = 16


class Letters(ToyCodec):
    """A tokenizer that goes with any of its kind."""

    fingerprint = "ab" * 32

    def compare(self, other: Any) -> VocabReport:
        return VocabReport(True, 0, None, (VOCAB, VOCAB), (0, 0), (None, None))


def target(model: TableModel | None = None, known: int = VOCAB, **traits: Any) -> Any:
    cost = CostModel((1, 2, 16), (1.0, 1.02, 2.5), 100, 0.0, 0.3, 0.1)
    model = counter(VOCAB) if model is None else model
    model.traits = replace(model.traits, **traits)
    codec = Letters("abcdefghijklmnop"[:known])
    return loader.Target(model, codec, SimpleNamespace(cost=lambda target: cost), Path("toy"))  # type: ignore[arg-type]


def make(text: str, draft: bool = False, **traits: Any) -> making.Made:
    specs, _, _ = loader._parse(text, draft, "auto", None)
    return making.Maker(target(**traits), target() if draft else None).all(specs)


def parts(made: making.Made) -> list[Any]:
    (hybrid,) = [d for d in made.drafters if d.name == "hybrid"]
    return list(hybrid._sources)


# ---- what is made

DEFAULT = making.MERGED.split("/")


@pytest.mark.parametrize(
    "text, draft, merged",
    [
        ("hybrid", False, DEFAULT),
        ("hybrid:of=suffix", False, ["suffix"]),
        ("hybrid:of=recycle/suffix", False, ["recycle", "suffix"]),
        ("hybrid:of= suffix / recycle ", False, ["suffix", "recycle"]),
        ("hybrid:of=suffix/model", True, ["suffix", "model"]),
        ("hybrid:of=suffix/lookahead/recycle/ngram", False, ["suffix", "lookahead", "recycle", "ngram"]),
        ("auto", False, DEFAULT),
    ],
)
def test_hybrid_merges_what_is_named(text: str, draft: bool, merged: list[str]) -> None:
    made = make(text, draft)
    assert [s.name for s in parts(made)] == merged
    auto = text == "auto"
    assert [d.name for d in made.drafters] == [*merged, "hybrid", *(["grammar"] if auto else [])]
    assert [d.source for d in made.drafters] == list(range(1, len(made.drafters) + 1))
    assert made.chosen == ["grammar" if auto else "hybrid"]
    assert made.informed
    whole = [s for s in parts(made) if isinstance(s, Proposed)]
    assert [s.name for s in whole] == [name for name in merged if name in making.WHOLE]
    assert all(s.inner in made.drafters for s in whole), "the engine tells them of passes"
    if auto:
        assert made.drafters[-1].inner is made.drafters[-2]  # type: ignore[attr-defined]


OF_THE_MODEL = ("layer_skip", "quantized")
"""Drafters that are made of the target itself, for which it takes a real one."""


def test_every_drafter_that_can_be_merged_can(tmp_path: Path) -> None:
    assert set(OF_THE_MODEL) <= set(making.WHOLE)

    path = write(
        tmp_path / "s", [np.arange(9, dtype=np.int32)], fingerprint=Letters.fingerprint, vocab_size=VOCAB, model="m", folder="f"
    ).path
    for name in making.DRAFTERS:
        if name in (*making.UNMERGED, *OF_THE_MODEL, *making.LANES):  # heads need files that fit a target
            continue
        text = f"hybrid:of={name}/suffix" if name != "suffix" else "hybrid:of=suffix/recycle"
        engine = loader.assemble(
            target(), text + (f",{name}.store={path}" if name == "retrieval" else ""), target() if name == "model" else None
        )
        assert len(engine.generate([0, 1, 2], max_tokens=8).token_ids) == 8


def test_what_was_named_beside_hybrid_is_chosen_from() -> None:
    made = make("hybrid + ngram")
    assert made.chosen == ["hybrid", "ngram"]
    assert not made.informed, "one of several: reach alone does not decide"
    assert not make("suffix").informed


@pytest.mark.parametrize("paths", [False, True])
def test_what_the_target_decides_is_passed_on(paths: bool) -> None:
    specs, _, _ = loader._parse("hybrid:of=recycle/lookahead", False, "auto", None)
    made = making.Maker(target(known=10, paths=paths), None).all(specs)
    recycle, lookahead, hybrid = made.drafters
    assert hybrid._paths is paths  # type: ignore[attr-defined]
    assert recycle._known == 10  # type: ignore[attr-defined]
    assert recycle._next.shape[0] == VOCAB  # type: ignore[attr-defined]
    assert lookahead._known == 10  # type: ignore[attr-defined]


# ---- where options go


def test_options_go_to_the_part_they_name_and_without_a_name_to_the_first() -> None:
    suffix, recycle = parts(make("hybrid:of=suffix/recycle,suffix.max_match=5,recycle.nodes=9,min_match=2"))
    assert (suffix._depth, suffix._least, recycle._most) == (5, 2, 9)
    recycle, suffix = parts(make("hybrid:of=recycle/suffix,pairs=0"))
    assert (recycle._slots, suffix._depth) == (0, 8)
    assert parts(make("auto:max_match=4"))[0]._depth == 4
    assert parts(make("auto:lookahead.guesses=2"))[1]._guesses == 2
    model = parts(make("hybrid:of=suffix/model,model.depth=2", True))[1]
    assert model._depth == 2
    assert parts(make("hybrid:of=model/suffix,depth=3", True))[0]._depth == 3


@pytest.mark.parametrize(
    "text, draft, says",
    [
        ("hybrid:of=", False, "merges one source or more"),
        ("hybrid:of=/", False, "merges one source or more"),
        ("hybrid:of=suffix/nothing", False, "cannot merge 'suffix/nothing': 'nothing' is twice there or no source"),
        ("hybrid:of=suffix/recycle/suffix", False, "'suffix' is twice there"),
        ("hybrid:of=suffix/hybrid", False, "'hybrid' is twice there or no source"),
        ("hybrid:of=grammar", False, "'grammar' is twice there or no source"),
        ("hybrid:of=script/suffix", False, "'script' is twice there or no source"),
        ("hybrid:of=suffix,recycle.nodes=3", False, "'recycle.nodes' names no part of 'suffix'"),
        ("auto:model.depth=3", False, "'model.depth' names no part"),
        ("hybrid:of=suffix/model", False, "belong together"),
        ("hybrid:of=suffix", True, "belong together"),
        ("hybrid:of=suffix/model,model.depth=0", True, "model: depth=0 must be a whole number from 1"),
        ("hybrid:of=suffix/model,model.width=2", True, "'model' takes no option 'width'"),
        ("hybrid:of=suffix/recycle,recycle.nodes=0", False, "recycle: nodes=0"),
        ("hybrid:of=suffix/recycle,recycle.pairs=x", False, "recycle: pairs='x'"),
        ("hybrid:of=suffix/recycle,recycle.speed=3", False, "drafter 'recycle': got an unexpected keyword argument 'speed'"),
        ("hybrid:of=suffix/recycle,speed=3", False, "drafter 'suffix': got an unexpected keyword argument 'speed'"),
        ("auto:speed=3", False, "drafter 'suffix': .*'speed'"),
        ("recycle:known=3", False, "'recycle' takes no option 'known'"),
        ("recycle:vocab_size=3", False, "'recycle' takes no option 'vocab_size'"),
        ("lookahead:paths=true", False, "'lookahead' takes no option 'paths'"),
        ("suffix:source=3", False, "'suffix' takes no option 'source'"),
        ("hybrid:of=suffix/recycle,recycle.known=3", False, "'recycle' takes no option 'known'"),
        ("layer_skip:identity=x", False, "'layer_skip' takes no option 'identity'"),
        ("grammar:inner=3", False, "'grammar' takes no option 'inner'"),
        ("script", False, "needs the answers"),
        ("retrieval", False, "store="),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(text: str, draft: bool, says: str) -> None:
    with pytest.raises(SurefootError, match=says) as told:
        make(text, draft)
    assert "\n" not in str(told.value)
    assert isinstance(told.value, BadRequest)


def test_a_name_used_twice_in_an_engine_is_refused() -> None:
    with pytest.raises(BadRequest, match="share a name"):
        loader.assemble(target(), "hybrid:of=suffix/recycle+suffix")


def test_the_parts_of_a_spec() -> None:
    assert registry.parts(Spec("suffix", {"of": "x"})) == ["suffix"]
    assert registry.parts(Spec("hybrid", {})) == DEFAULT
    assert registry.parts(Spec("hybrid", {"of": " a /b//"})) == ["a", "b"]
    assert registry.parts(Spec("hybrid", {"of": 3})) == ["3"]


# ---- controllers


def inner(engine: Engine) -> Any:
    return engine.controller.inner if isinstance(engine.controller, Breaker) else engine.controller


@pytest.mark.parametrize(
    "drafter, draft, controller, kind",
    [
        ("auto", False, "auto", MarginalController),
        ("hybrid", False, "auto", MarginalController),
        ("hybrid:of=suffix/model", True, "auto", MarginalController),
        ("auto", True, "marginal", MarginalController),
        ("auto", True, "auto", GoodputController),
        ("hybrid+ngram", False, "auto", GoodputController),
        ("suffix", False, "auto", GoodputController),
        ("hybrid", False, "marginal", MarginalController),
    ],
)
def test_auto_is_marginal_where_the_drafter_knows_its_reach(drafter, draft, controller, kind) -> None:
    engine = loader.assemble(target(steady=True), drafter, target() if draft else None, controller, 6)
    assert type(inner(engine)) is kind
    assert isinstance(engine.controller, Breaker) == (controller == "auto")
    if kind is MarginalController:
        (plan,) = inner(engine).plan([SimpleNamespace(id=0, cached=3)])
        assert plan.sizes == (2, 5)
        assert (plan.depth, plan.width) == (4, 1)
        assert inner(engine)._switch == 0.1
    if (draft, controller) == (True, "marginal"):
        assert "model" in engine.drafters


def test_where_changing_size_is_cheap_no_sizes_are_kept() -> None:
    (plan,) = inner(loader.assemble(target(), "auto")).plan([SimpleNamespace(id=0, cached=3)])
    assert plan.sizes == ()


@pytest.mark.parametrize("drafter", ["suffix", "recycle", "suffix+recycle", "model"])
def test_marginal_needs_a_drafter_that_knows_its_reach(drafter: str) -> None:
    with pytest.raises(BadRequest, match="marginal"):
        loader.assemble(target(), drafter, target() if drafter == "model" else None, "marginal")


# ---- what it says


@pytest.mark.parametrize(
    "drafter, draft, controller",
    [
        ("auto", False, "auto"),
        ("auto", True, "auto"),
        ("auto", True, "marginal"),
        ("hybrid:of=suffix/model/recycle", True, "auto"),
        ("hybrid:of=ngram/suffix", False, "auto"),
        ("hybrid:width=3,nodes=7", False, "fixed"),
        ("auto:width=2", False, "fixed"),
        ("recycle:width=3,nodes=6", False, "fixed"),
        ("recycle", False, "auto"),
    ],
)
@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 16])
def test_tokens_equal_plain_decoding(drafter: str, draft: bool, controller: str, steady: bool, k: int) -> None:
    model = TableModel.random(VOCAB, 2, 3, 2.0, min_width=2)
    relative = model.mixed(TableModel.random(VOCAB, 2, 8, 2.0), 0.2)
    requests = [
        ([1, 2, 3], {"max_tokens": 25}),
        ([7], {"max_tokens": 18, "temperature": 0.9, "seed": 4}),
        ([2] * 9, {"max_tokens": 11, "temperature": 1.2, "top_k": 1}),
        ([1, 2, 3], {"max_tokens": 21, "temperature": 0.6, "seed": 5, "stop_token_ids": [3]}),
    ]
    plain = [run(loader.assemble(target(model), "none"), request)[0].token_ids for request in requests]
    made = loader.assemble(target(model, steady=steady), drafter, target(relative) if draft else None, controller, k)
    for _ in range(2):
        assert [one.token_ids for one in run(made, *requests)] == plain
        assert [run(made, request)[0].token_ids for request in requests] == plain
