"""Trained heads by name, on both backends: whatever a head on disk says, the output is that of plain decoding.

The heads know nothing: their weights are random. One target is opened with the taps of all of them, another one is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle_toys import eagle, eagle3
from tiny_llama import VOCAB, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toys import run
from toys_heads import IDS, shaken

import surefoot
from surefoot import loader
from surefoot.core.protocols import Ends
from surefoot.errors import Unsupported
from surefoot.heads.attention import AttentionConfig
from surefoot.heads.distilled import Distilled, DistilledConfig
from surefoot.heads.distilled_files import save_distilled
from surefoot.heads.eagle_files import save_eagle, save_eagle3
from surefoot.heads.exit import Exit, ExitConfig
from surefoot.heads.exit_files import save_exit
from surefoot.heads.hydra import Hydra, HydraConfig
from surefoot.heads.hydra_files import save_hydra
from surefoot.heads.medusa import Medusa, MedusaConfig
from surefoot.heads.medusa_files import save_medusa

BACKENDS = ("torch", "openvino")
LAYERS, CUT, KNOWN = 3, 2, 51
HEADS = {
    "medusa": "medusa",
    "hydra": "hydra",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "distilled": "distilled",
    "kangaroo": "early_exit",
    "eesd": "early_exit",
    "bare": "early_exit",
}
"""Folder -> drafter."""
PROMPTS = ([3, 9, 27], [40, 2, 40, 2, 40, 2, 40, 2, 7, 11, 12, 13], [5])
GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 0.8, "top_k": 12, "seed": 5}
DRAWN = {"temperature": 0.8, "top_p": 0.9}


def heads(folder: Path, ends: Ends) -> None:
    """One of each, of the tiny model's sizes."""
    attention, ids = AttentionConfig(32, 4, 2, 8), torch.tensor(IDS)
    save_medusa(folder / "medusa", shaken(Medusa(MedusaConfig(32, VOCAB, 3), ends, ids)))
    save_hydra(folder / "hydra", shaken(Hydra(HydraConfig(32, VOCAB, (1, LAYERS + 1), inner=24), ends)))
    save_eagle(folder / "eagle", eagle(ends, ids))
    save_eagle3(folder / "eagle3", eagle3(ends, ids), layout="speculators")
    save_distilled(folder / "distilled", shaken(Distilled(DistilledConfig(40, (0, 2), attention), ends)))
    torch.manual_seed(2)
    save_exit(folder / "kangaroo", Exit(ExitConfig("kangaroo", CUT, attention), ends), layout="kangaroo")
    save_exit(folder / "eesd", Exit(ExitConfig("eesd", CUT, attention, 48), ends, ids))
    save_exit(folder / "bare", Exit(ExitConfig("bare", CUT), ends))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from transformers import PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("heads")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[:KNOWN]
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tiny_llama().save_pretrained(root / "model")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(root / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUREFOOT_CACHE", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def targets(folder: Path) -> Callable[[str, bool], loader.Target]:
    """By backend and whether it is cut; opened once each."""
    made: dict[tuple[str, bool], loader.Target] = {}

    def get(backend: str, cut: bool = False) -> loader.Target:
        if (backend, cut) not in made:
            how: dict[str, Any] = {"cut": CUT} if cut else {"taps": lambda layers: range(layers + 2)}
            made[backend, cut] = loader.open_target(folder / "model", backend, kv_tokens=8192, **how)
        return made[backend, cut]

    heads(folder, get("torch").model.ends())  # type: ignore[attr-defined]
    return get


def requests(**options: Any) -> list[tuple[list[int], dict[str, Any]]]:
    return [(prompt, {"max_tokens": 18 + 4 * i, **options}) for i, prompt in enumerate(PROMPTS)]


PLAIN: dict[Any, list[Any]] = {}


def plain(target: loader.Target, **options: Any) -> list[Any]:
    """Token ids of plain decoding, run once for each target and options."""
    key = id(target), tuple(options.items())
    if key not in PLAIN:
        with closing(loader.assemble(target, "none")) as engine:
            PLAIN[key] = tokens(engine, **options)
    return PLAIN[key]


def tokens(engine: Any, **options: Any) -> list[Any]:
    return [c.token_ids for c in run(engine, *requests(**options))]


def watched(engine: Any, name: str) -> list[Any]:
    """The trees that a drafter proposes, as (tree, width of its plan)."""
    found: list[Any] = []
    drafter = engine.drafters[name]
    propose = drafter.propose

    def spy(rows: Any, plans: Any) -> Any:
        trees = propose(rows, plans)
        found.extend(zip(trees, [plan.width for plan in plans], strict=True))
        return trees

    drafter.propose = spy
    return found


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_output_is_that_of_plain_decoding(targets, folder, backend, head):
    name = HEADS[head]
    target = targets(backend, name == "early_exit")
    for k in (1, 2, 5):
        wanted = [plain(target, **options) for options in (GREEDY, SEEDED)]
        with closing(loader.assemble(target, f"{name}:path={folder / head},k={k}", controller="fixed")) as engine:
            trees = watched(engine, name)
            assert [tokens(engine, **options) for options in (GREEDY, SEEDED)] == wanted, k
        drafts = [tree for tree, _ in trees if len(tree) > 1]
        assert max(map(len, drafts)) == 1 + min(k, 3 if name == "medusa" else k)
        assert all(tree.q is None for tree in drafts), "a seed couples the draws: what is drafted is a point"
        ids = {int(t) for tree in drafts for t in tree.tokens[1:]}
        assert max(ids) < KNOWN, "ids that stand for nothing are not drafted"
        if head in ("medusa", "eagle", "eagle3", "eesd"):
            assert ids <= set(IDS)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_without_a_seed_say_from_which_law(targets, folder, backend, head):
    name = HEADS[head]
    target = targets(backend, name == "early_exit")
    with closing(loader.assemble(target, f"{name}:path={folder / head},k=3", controller="fixed")) as engine:
        trees = watched(engine, name)
        for found, (_, options) in zip(tokens(engine, **DRAWN), requests(), strict=True):
            assert len(found) == options["max_tokens"]
    drafts = [tree for tree, _ in trees if len(tree) > 1]
    assert drafts
    for tree in drafts:
        for node, law in tree.law_rows().items():
            assert law.shape == (VOCAB,)
            assert float(law.sum()) == pytest.approx(1.0, abs=1e-4)
            assert float(law[tree.tokens[node + 1]]) > 0, "a token was drafted that its law cannot give"
        assert tree.q is not None


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_trees_branch_and_change_nothing(targets, folder, backend, head):
    name = HEADS[head]
    target = targets(backend, name == "early_exit")
    wanted = plain(target, **GREEDY)
    with closing(loader.assemble(target, f"{name}:path={folder / head},k=3,width=2,nodes=6", controller="fixed")) as engine:
        trees = watched(engine, name)
        assert tokens(engine, **GREEDY) == wanted
    drafts = [(tree, width) for tree, width in trees if len(tree) > 1]
    assert all(tree.q is None for tree, _ in drafts), "the likeliest children are points"
    if target.model.traits.tree:
        assert any(len(set(tree.parents.tolist())) < len(tree) for tree, _ in drafts), "no tree has branched"


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_merged_with_text(targets, folder, backend, head):
    name = HEADS[head]
    target = targets(backend, name == "early_exit")
    text = f"hybrid:of=suffix/{name},{name}.path={folder / head},k=4"
    wanted = [plain(target, **options) for options in (GREEDY, SEEDED)]
    with closing(loader.assemble(target, text, controller="fixed")) as engine:
        steps = counted(engine, name)
        assert [tokens(engine, **options) for options in (GREEDY, SEEDED)] == wanted
        assert steps, "the head was never asked"
        assert list(engine.drafters) == ["suffix", name, "hybrid"]


def counted(engine: Any, name: str) -> list[int]:
    """Numbers of states of each step of the head."""
    found: list[int] = []
    lane = engine.drafters[name].lane
    step = lane.step

    class Counted:
        def __getattr__(self, what: str) -> Any:
            return getattr(lane, what)

        def step(self, states: Any, tokens: Any) -> Any:
            found.append(len(states))
            return step(states, tokens)

    engine.drafters[name].paths.lane = Counted()
    return found


@pytest.mark.parametrize("head", ["hydra", "eagle3", "distilled", "kangaroo"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_load_opens_the_target_as_the_head_needs_it(targets, folder, backend, head):
    name = HEADS[head]
    targets(backend)  # which makes the heads
    engine = surefoot.load(folder / "model", drafter=f"{name}:path={folder / head},k=2", backend=backend, controller="fixed")
    traits = engine.target.traits
    if backend == "openvino":
        wanted = {"hydra": (1, 4), "eagle3": (0, 1, 2), "distilled": (), "kangaroo": (CUT,)}[head]
        assert traits.hidden == wanted, "no tap more than is read"
    assert tokens(engine, **GREEDY) == plain(targets(backend, name == "early_exit"), **GREEDY)


def test_two_heads_and_two_exits_in_one_engine(targets, folder):
    targets("openvino")
    text = f"hydra:path={folder / 'hydra'}+early_exit:path={folder / 'kangaroo'}+medusa:path={folder / 'medusa'}"
    engine = surefoot.load(folder / "model", drafter=text, backend="openvino", num_speculative_tokens=3)
    assert engine.target.traits.hidden == (1, CUT, LAYERS + 1)
    assert tokens(engine, **GREEDY) == plain(targets("openvino"), **GREEDY)


@pytest.mark.parametrize("head, says", [("hydra", r"\[1, 4\]"), ("kangaroo", "cut"), ("eagle3", "activations")])
def test_a_target_opened_for_nothing_is_refused(targets, folder, head, says):
    targets("openvino")
    bare = loader.open_target(folder / "model", "openvino", kv_tokens=1024)
    with pytest.raises(Unsupported, match=says) as told:
        loader.assemble(bare, f"{HEADS[head]}:path={folder / head}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head, option", [("kangaroo", "layer=7"), ("deep", "")])
def test_a_head_of_a_deeper_target_is_refused(targets, folder, backend, head, option):
    ends = targets("torch").model.ends()  # type: ignore[attr-defined]
    save_hydra(folder / "deep", Hydra(HydraConfig(32, VOCAB, (1, 9), inner=24), ends))
    name = HEADS.get(head, "hydra")
    with pytest.raises(surefoot.errors.SurefootError, match=r"layer|after") as told:
        surefoot.load(folder / "model", drafter=f"{name}:path={folder / head},{option}", backend=backend)
    assert "\n" not in str(told.value)
    assert "load it with this drafter" not in str(told.value), "it was"
