"""Trained heads by name: where a head is found, what it needs of its target, what is refused, and heads with the package."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from eagle_toys import IDS, H, V, eagle, eagle3, ends
from toys import ToyCodec, counter
from toys_heads import shaken

from surefoot import loader, making, trained
from surefoot.core.cost import CostModel
from surefoot.drafter_spec import Spec, parse
from surefoot.drafters.distilled import DistilledLane
from surefoot.drafters.eagle import EagleLane
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head_source import HeadSource
from surefoot.drafters.hydra import HydraLane
from surefoot.drafters.medusa import MedusaLane
from surefoot.errors import BadRequest, ModelNotFound, Unsupported, VocabMismatch
from surefoot.heads.attention import AttentionConfig
from surefoot.heads.distilled import Distilled, DistilledConfig
from surefoot.heads.distilled_files import save_distilled
from surefoot.heads.eagle_files import save_eagle, save_eagle3
from surefoot.heads.exit import Exit, ExitConfig
from surefoot.heads.exit_files import save_exit
from surefoot.heads.files import read, write
from surefoot.heads.hydra import Hydra, HydraConfig
from surefoot.heads.hydra_files import save_hydra
from surefoot.heads.medusa import Medusa, MedusaConfig
from surefoot.heads.medusa_files import save_medusa
from surefoot.heads.reads import reads
from surefoot.models import content, label, shipped
from surefoot.models.shipped import Shipped

LAYERS = 8
SHIPPED: Any = import_module("surefoot.models.shipped")
"""The module: the package has a function of that name."""
ENDS = ends()
ATTENTION = AttentionConfig(H, 4, 2, 6)
KINDS = {
    "medusa": "medusa",
    "medusa1": "medusa",
    "medusa2": "medusa",
    "medusa-vllm": "medusa",
    "hydra": "hydra",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "eagle3-speculators": "eagle3",
    "eagle3-taps": "eagle3",
    "kangaroo": "early_exit",
    "exit": "early_exit",
    "eesd": "early_exit",
    "bare": "early_exit",
    "distilled": "distilled",
}
"""Folder -> drafter."""
LANES = {
    "medusa": MedusaLane,
    "hydra": HydraLane,
    "eagle": EagleLane,
    "eagle3": EagleLane,
    "early_exit": ExitLane,
    "distilled": DistilledLane,
}


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head in each layout that is read."""
    root = tmp_path_factory.mktemp("heads")
    tied = shaken(Medusa(MedusaConfig(H, V, 2), ENDS))
    own = shaken(Medusa(MedusaConfig(H, V, 2, own=True), ENDS))
    save_medusa(root / "medusa", tied)
    save_medusa(root / "medusa1", own)
    save_medusa(root / "medusa2", own, layout="medusa2", base={"model.embed_tokens.weight": ENDS.embedding})
    save_medusa(root / "medusa-vllm", own, layout="vllm")
    save_hydra(root / "hydra", shaken(Hydra(HydraConfig(H, V, (2, LAYERS + 1), inner=12, depth=5), ENDS, IDS)))
    save_eagle(root / "eagle", eagle(ENDS, IDS))
    save_eagle3(root / "eagle3", eagle3(ENDS))
    save_eagle3(root / "eagle3-speculators", eagle3(ENDS), layout="speculators")
    save_eagle3(root / "eagle3-taps", eagle3(ENDS, layers=(1, 4, 6)))
    save_exit(root / "kangaroo", Exit(ExitConfig("kangaroo", 0, ATTENTION), ENDS), layout="kangaroo")
    save_exit(root / "exit", Exit(ExitConfig("kangaroo", 3, ATTENTION), ENDS, IDS))
    save_exit(root / "eesd", Exit(ExitConfig("eesd", 3, ATTENTION, 48), ENDS))
    save_exit(root / "bare", Exit(ExitConfig("bare", 2), ENDS))
    save_distilled(root / "distilled", Distilled(DistilledConfig(40, (0, 5), ATTENTION), ENDS))
    return root


class Model:
    """A target as far as opening a head asks: its tables and what it can be asked for."""

    def __init__(self, hidden: tuple[int, ...], cuts: tuple[int, ...] = (), own: Any = ENDS) -> None:
        traits = replace(counter(V).traits, n_layers=LAYERS, hidden_size=H, vocab_size=V, hidden=hidden)
        self.traits, self.cuts, self._ends = traits, cuts, own

    def ends(self) -> Any:
        return self._ends


def target(hidden: tuple[int, ...] = tuple(range(LAYERS + 2)), cuts: tuple[int, ...] = (), **more: Any) -> Any:
    codec = ToyCodec("abcdefghijklmnopqrst")
    return loader.Target(Model(hidden, cuts, **more), codec, None, Path("toy"), "torch")  # type: ignore[arg-type]


def found(heads: Path, name: str, **options: Any) -> trained.Head:
    if name == "kangaroo":
        options.setdefault("layer", 3)
    return trained.find(KINDS[name], {"path": str(heads / name), **options}, Path("toy"))


# ---- what a head reads


@pytest.mark.parametrize(
    "name, taps, cut",
    [
        *((name, (LAYERS + 1,), None) for name in ("medusa", "medusa1", "medusa2", "medusa-vllm", "eagle")),
        ("hydra", (2, LAYERS + 1), None),
        ("eagle3", (2, 4, 5), None),
        ("eagle3-speculators", (2, 4, 5), None),
        ("eagle3-taps", (1, 4, 6), None),
        ("exit", (), 3),
        ("eesd", (), 3),
        ("bare", (), 2),
        ("distilled", (), None),
    ],
)
def test_what_a_head_reads_is_told_from_its_files(heads: Path, name: str, taps: tuple[int, ...], cut: int | None) -> None:
    told = reads(heads / name)
    assert (told.taps(LAYERS), told.cut) == (taps, cut)


def test_taps_follow_the_targets_depth_where_the_file_names_none(heads: Path) -> None:
    assert reads(heads / "medusa").taps(40) == reads(heads / "eagle").taps(40) == (41,)
    assert reads(heads / "eagle3").taps(40) == (2, 20, 37)
    assert reads(heads / "eagle3-taps").taps(40) == (1, 4, 6)
    assert reads(heads / "hydra").taps(40) == (2, LAYERS + 1)


def test_an_exit_that_does_not_say_its_layer_needs_to_be_told(heads: Path) -> None:
    with pytest.raises(BadRequest, match="layer="):
        reads(heads / "kangaroo")
    assert reads(heads / "kangaroo", layer=3).cut == 3
    assert reads(heads / "exit", layer=5).cut == 5


@pytest.mark.parametrize("value", ["three", True, 0, -2, None])
def test_an_exit_layer_that_is_none(heads: Path, tmp_path: Path, value: Any) -> None:
    old = read(heads / "bare")
    write(tmp_path, old.config | {"exit_layer": value}, old.tensors)
    with pytest.raises(BadRequest, match="layer="):
        reads(tmp_path)


@pytest.mark.parametrize("name, key", [("hydra", "taps"), ("eagle3-taps", "eagle_aux_hidden_state_layer_ids")])
@pytest.mark.parametrize("value", [7, "123", ["a"], {"a": 1}, [-1]])
def test_layers_that_are_none_are_refused_where_the_head_is_opened(
    heads: Path, tmp_path: Path, name: str, key: str, value: Any
) -> None:
    old = read(heads / name)
    write(tmp_path, old.config | {key: value}, old.tensors)
    head = trained.find(KINDS[name], {"path": str(tmp_path)}, Path("toy"))
    trained.wants([head])["taps"](LAYERS)
    with pytest.raises(BadRequest, match=key):
        trained.lane(head, target())


# ---- where it is


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_is_a_head_of_its_drafter_alone(heads: Path, name: str) -> None:
    head = found(heads, name)
    assert (head.drafter, head.folder, head.depth, head.pickle) == (KINDS[name], heads / name, None, False)
    for other in trained.LANES:
        if trained.KINDS.get(other, other) != trained.KINDS.get(KINDS[name], KINDS[name]):
            more = {"layer": 3} if other in trained.EXITS else {}
            with pytest.raises(BadRequest, match=rf"use drafter '{KINDS[name]}'|does not name its exit layer"):
                trained.find(other, {"path": str(heads / name), **more}, Path("toy"))


def test_a_hub_id_is_fetched(heads: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def fetch_hub(repo: str, file: str | None, progress: Any) -> Path:
        asked.append((repo, file, progress))
        return heads / "medusa"

    monkeypatch.setattr(import_module("surefoot.models.fetch"), "fetch_hub", fetch_hub)
    monkeypatch.chdir(tmp_path)
    progress = lambda *args: None  # noqa: E731
    assert trained.find("medusa", {"path": "someone/medusa-toy"}, Path("toy"), progress).folder == heads / "medusa"
    assert asked == [("someone/medusa-toy", None, progress)]
    (tmp_path / "someone" / "medusa-toy").mkdir(parents=True)
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        trained.find("medusa", {"path": "someone/medusa-toy"}, Path("toy"))
    assert len(asked) == 1, "a folder of that name goes first"


@pytest.mark.parametrize("ref, says", [("FILE", "is a file"), ("nowhere", "head|model|path"), ("a/b/c.gguf", "no head")])
def test_what_is_no_head(heads: Path, ref: str, says: str) -> None:
    path = str(heads / "hydra" / "config.json") if ref == "FILE" else ref
    with pytest.raises(ModelNotFound, match=says) as told:
        trained.find("hydra", {"path": path}, Path("toy"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "drafter, options, says",
    [
        ("medusa", {"heads": 3}, "no option 'heads'; its options are path, depth, layer, pickle"),
        ("medusa", {"depth": 3}, "no option 'depth'"),
        ("hydra", {"depth": 3}, "no option 'depth'"),
        ("eagle", {"layer": 3}, "no option 'layer'"),
        ("eagle", {"depth": 0}, "depth=0 is not allowed"),
        ("eagle", {"depth": True}, "depth=True is not allowed"),
        ("early_exit", {"layer": 1.5}, r"layer=1\.5 is not allowed"),
        ("early_exit", {"layer": "x"}, "layer='x' is not allowed"),
        ("medusa", {"pickle": "yes"}, "pickle='yes' is not allowed; give true or false"),
        ("medusa", {"pickle": 1}, "pickle=1 is not allowed"),
    ],
)
def test_options_that_cannot_be(heads: Path, drafter: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        trained.find(drafter, {"path": str(heads / "none"), **options}, Path("toy"))


@pytest.mark.parametrize("drafter, kind", [("hydra", "hydra"), ("early_exit", "exit"), ("distilled", "distill")])
def test_where_none_is_shipped_the_message_says_what_to_do(drafter: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "Some2.5-0.5B").mkdir()
    with pytest.raises(ModelNotFound) as told:
        trained.find(drafter, {}, tmp_path / "Some2.5-0.5B")
    said = str(told.value)
    assert f"{drafter}:path=FOLDER" in said
    assert f"surefoot train {kind} --target" in said
    assert "for Some2.5-0.5B;" in said


def test_pickles_are_read_when_they_are_allowed(heads: Path, tmp_path: Path) -> None:
    old = read(heads / "medusa")
    torch.save(dict(old.tensors), tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text(json.dumps(old.config), "utf-8")
    with pytest.raises(BadRequest, match="pickle"):
        trained.find("medusa", {"path": str(tmp_path)}, Path("toy"))
    head = trained.find("medusa", {"path": str(tmp_path), "pickle": True}, Path("toy"))
    assert isinstance(trained.lane(head, target()), MedusaLane)


# ---- on a target


@pytest.mark.parametrize("name", KINDS)
def test_a_lane_of_each_kind_asks_for_what_was_announced(heads: Path, name: str) -> None:
    head = found(heads, name)
    wants = trained.wants([head])
    cut = wants.get("cut")
    taps = wants["taps"](LAYERS)
    made = trained.lane(head, target(tuple(taps), () if cut is None else (cut,)))
    assert type(made) is LANES[KINDS[name]]
    announced = set(taps) | ({cut} if cut is not None else set())
    assert set(made.needs.hidden) <= announced
    assert cut is not None or set(made.needs.hidden) == set(taps)


def test_depth_reaches_the_lane(heads: Path) -> None:
    for name in ("eagle", "eagle3", "exit", "distilled"):
        assert trained.lane(found(heads, name, depth=3), target(cuts=(3,))).depth == 3
        assert trained.lane(found(heads, name), target(cuts=(3,))).depth > 3
    assert trained.lane(found(heads, "hydra"), target()).depth == 5


def test_taps_are_read_in_the_heads_own_order(heads: Path, tmp_path: Path) -> None:
    save_hydra(tmp_path, shaken(Hydra(HydraConfig(H, V, (LAYERS + 1, 2), inner=12), ENDS)))
    head = trained.find("hydra", {"path": str(tmp_path)}, Path("toy"))
    assert trained.wants([head])["taps"](LAYERS) == [2, LAYERS + 1]
    made = trained.lane(head, target())
    assert made.needs.hidden == (2, LAYERS + 1)
    assert made._features._layers == (LAYERS + 1, 2)  # type: ignore[attr-defined]


def test_the_layer_that_is_given_is_that_of_the_exit(heads: Path) -> None:
    made = trained.lane(found(heads, "kangaroo", layer=4), target(cuts=(2, 4)))
    assert isinstance(made, ExitLane)
    assert made.layer == 4


@pytest.mark.parametrize("name", ["medusa", "hydra", "eagle", "eagle3"])
def test_taps_that_the_target_was_not_opened_with(heads: Path, name: str) -> None:
    taps = trained.wants([found(heads, name)])["taps"](LAYERS)
    with pytest.raises(Unsupported, match=rf"\[{taps[-1]}\].*load it with this drafter"):
        trained.lane(found(heads, name), target(tuple(taps[:-1])))


def test_a_target_that_is_not_cut(heads: Path) -> None:
    with pytest.raises(Unsupported, match="cut"):
        trained.lane(found(heads, "exit"), target(cuts=(2,)))


@pytest.mark.parametrize("name", KINDS)
def test_a_head_of_another_target_is_refused_as_such(heads: Path, name: str) -> None:
    """Even where the taps are not there either."""
    with pytest.raises((Unsupported, VocabMismatch), match=r"another|trained for this target"):
        trained.lane(found(heads, name), target((), own=ends(size=H + 4)))
    with pytest.raises((Unsupported, VocabMismatch, BadRequest)):
        trained.lane(found(heads, name), target((), own=ends(vocab=V + 4)))


def test_what_several_heads_want(heads: Path) -> None:
    assert trained.wants([])["taps"](LAYERS) == []
    assert "cut" not in trained.wants([found(heads, "medusa")])
    both = trained.wants([found(heads, "eagle3"), found(heads, "hydra"), found(heads, "distilled"), found(heads, "exit")])
    assert both["taps"](LAYERS) == [2, 4, 5, 9]
    assert both["taps"](20) == [2, 9, 10, 17]
    assert both["cut"] == 3
    cuts = trained.wants([found(heads, "exit"), found(heads, "bare"), found(heads, "eesd")])
    assert cuts["cut"] == (2, 3)


def test_only_the_cpu_backend_compiles() -> None:
    assert trained.compiler(target()) is None
    assert trained.compiler(replace(target(), backend="openvino")) is not None


# ---- in specs


def test_heads_of_a_spec_know_their_options(heads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "resolve", lambda ref: ref)
    monkeypatch.setattr(loader, "fetch", lambda ref, progress=None: Path("toy"))

    def of(text: str) -> list[trained.Head]:
        specs, _ = parse(text, list(making.DRAFTERS))
        return loader._heads(specs, "toy", None)

    [head] = of(f"hybrid:of=suffix/hydra,hydra.path={heads / 'hydra'}")
    assert (head.drafter, head.folder) == ("hydra", heads / "hydra")
    [head] = of(f"hybrid:of=eagle/suffix,path={heads / 'eagle'},depth=4,suffix.max_match=5")
    assert (head.drafter, head.depth) == ("eagle", 4)
    [one, two] = of(
        f"hybrid:of=suffix/early_exit,early_exit.path={heads / 'kangaroo'},early_exit.layer=2+eagle:path={heads / 'eagle'}"
    )
    assert (one.reads.cut, two.drafter) == (2, "eagle")
    assert of("hybrid:of=suffix/recycle+ngram") == []
    with pytest.raises(ModelNotFound, match="hydra:path="):
        of("hybrid:of=suffix/hydra,suffix.max_match=3")


def test_options_of_a_part() -> None:
    options = {"a.x": 1, "b.x": 2, "y": 3, "a.": 4}
    assert making.part_options(options, "a") == {"x": 1, "a.": 4}
    assert making.part_options(options, "b") == {"x": 2}
    assert making.part_options(options, "c") == {}
    assert making.part_options(options, "b", first=True) == {"x": 2, "y": 3}


def test_a_head_in_hybrid_is_a_source(heads: Path) -> None:
    spec = Spec("hybrid", {"of": "suffix/eagle", "eagle.path": str(heads / "eagle"), "eagle.depth": 3, "max_match": 5})
    made = making.Maker(target(), None).all([spec])
    suffix, head, hybrid = made.drafters
    [own, source] = hybrid._sources  # type: ignore[attr-defined]
    assert own is suffix
    assert suffix._depth == 5  # type: ignore[attr-defined]
    assert isinstance(source, HeadSource)
    assert source.inner is head, "the engine tells it of passes"
    assert (source.depth, source.source, head.known) == (3, head.source, 20)  # type: ignore[attr-defined]
    with pytest.raises(BadRequest, match="no option 'wings'"):
        making.Maker(target(), None).all([Spec("hybrid", {"of": "eagle", "wings": 2, "path": str(heads / "eagle")})])


def test_what_the_target_decides_is_no_option_of_a_head(heads: Path) -> None:
    with pytest.raises(BadRequest, match="lane"):
        making.Maker(target(), None).all([Spec("eagle", {"lane": 3, "path": str(heads / "eagle")})])


# ---- heads that come with the package


def model(folder: Path, weights: bytes = b"weights" * 999, name: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(weights)
    (folder / "config.json").write_text("{}")
    return folder


def test_content_is_of_the_weights_alone(tmp_path: Path) -> None:
    one = model(tmp_path / "one")
    digest = content(one)
    assert len(digest) == 16
    os.utime(one / "model.safetensors", (1, 1))
    (one / "README.md").write_text("text")
    assert content(one) == digest, "neither times nor other files"
    assert content(model(tmp_path / "two", name="weights.safetensors")) == digest, "nor names"
    assert content(one / "model.safetensors") == digest, "nor whether the folder or the file is named"
    assert content(model(tmp_path / "three", b"weights" * 998)) != digest
    assert content(model(tmp_path / "four", b"weightS" * 999)) != digest
    large = bytearray(9 << 20)
    before = content(model(tmp_path / "large", bytes(large)))
    for at in (0, len(large) // 2 - 1, len(large) - 1):  # the beginning, the middle and the end are looked at
        other = bytearray(large)
        other[at] = 1
        assert content(model(tmp_path / "large", bytes(other))) != before
    assert content(model(tmp_path / "two", name="other.bin")) != digest, "every file of weights counts"


def test_what_to_call_a_model(tmp_path: Path) -> None:
    assert label(model(tmp_path / "Some2.5-0.5B")) == "Some2.5-0.5B"
    assert label(model(tmp_path / "x", name="Some2.5-Q8.gguf") / "Some2.5-Q8.gguf") == "Some2.5-Q8"


@pytest.fixture
def weights(tmp_path: Path, heads: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up folder of shipped weights for the model in ``tmp_path / 'model'``."""
    place = tmp_path / "weights"
    save_hydra(place / "toy-hydra", shaken(Hydra(HydraConfig(H, V, (2, LAYERS + 1), inner=12), ENDS, IDS)))
    known = {"heads": {"hydra": "toy-hydra", "eagle": "toy-eagle"}, "auto": ["hydra"], "taps": [2, LAYERS + 1]}
    (place / "index.json").write_text(json.dumps({content(model(tmp_path / "model")): known}))
    monkeypatch.setattr(SHIPPED, "root", lambda: place)
    return place


def test_shipped_heads_are_found_by_what_the_model_holds(weights: Path, tmp_path: Path) -> None:
    told = shipped(tmp_path / "model")
    assert told == Shipped({"hydra": weights / "toy-hydra", "eagle": weights / "toy-eagle"}, ("hydra",), (2, LAYERS + 1))
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    os.utime(tmp_path / "elsewhere" / "model.safetensors", (5, 5))
    assert shipped(tmp_path / "elsewhere") == told
    assert shipped(model(tmp_path / "model", b"others")) == Shipped({})
    assert shipped(tmp_path / "elsewhere", weights) == told
    head = trained.find("hydra", {}, tmp_path / "elsewhere")
    assert head.folder == weights / "toy-hydra"
    with pytest.raises(ModelNotFound):
        trained.find("medusa", {}, tmp_path / "elsewhere")


def test_without_an_index_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHIPPED, "root", lambda: None)
    monkeypatch.setattr(SHIPPED, "content", lambda path: pytest.fail("read"))
    assert shipped(tmp_path / "nowhere") == Shipped({})


def test_the_folder_of_weights_has_an_index() -> None:
    place = SHIPPED.root()
    if place is not None:
        for told in json.loads((place / "index.json").read_text("utf-8")).values():
            assert set(told.get("auto", ())) <= set(told["heads"])
            assert all((place / folder / "config.json").is_file() for folder in told["heads"].values())


def priced(where: Path, hidden: tuple[int, ...]) -> Any:
    cost = CostModel((1, 2, 16), (1.0, 1.02, 2.5), 100)
    return replace(target(hidden), path=where, calibration=SimpleNamespace(cost=lambda model: cost))


@pytest.mark.parametrize("hidden, asked", [((2, 9), True), (tuple(range(10)), True), ((9,), False), ((), False)])
def test_auto_asks_shipped_heads_where_the_taps_are_there(
    weights: Path, tmp_path: Path, hidden: tuple[int, ...], asked: bool
) -> None:
    made = making.Maker(priced(tmp_path / "model", hidden), None).all([Spec("auto", {})])
    names = [d.name for d in made.drafters]
    assert names == [*making.MERGED.split("/"), *(["hydra"] if asked else []), "hybrid", "grammar"]
    other = making.Maker(priced(model(tmp_path / "other", b"x"), hidden), None).all([Spec("auto", {})])
    assert [d.name for d in other.drafters] == [*making.MERGED.split("/"), "hybrid", "grammar"]


def test_the_target_is_always_opened_with_the_taps_of_shipped_heads(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surefoot import target as module

    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "resolve", lambda ref: SimpleNamespace(kind="openvino"))
    monkeypatch.setattr(module, "fetch", lambda ref, progress=None: tmp_path / "model")
    monkeypatch.setattr(module, "_open", lambda kind, path, backend, precision, kv, extra, progress: opened.append(extra))
    module.open_target("model", "openvino")
    module.open_target("model", "openvino", taps=(1, 2), cut=4)
    module.open_target("model", "openvino", taps=lambda layers: [layers])
    assert [sorted(extra["taps"](20)) for extra in opened] == [[2, 9], [1, 2, 9], [2, 9, 20]]
    assert [extra["cut"] for extra in opened] == [None, 4, None]
    assert shipped(tmp_path / "model").taps == (2, 9)
