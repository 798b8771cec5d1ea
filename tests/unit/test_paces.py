"""Two compiled copies of a graph: which pass runs where, that it shows in no bit of the logits, and when there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from contract.conftest import tiny
from toys import fixed, run

from surefoot.backends.openvino import OpenVINOModel, from_transformers
from surefoot.backends.openvino import model as model_file
from surefoot.backends.openvino.paces import NARROW, Paces
from surefoot.core.engine import Engine
from surefoot.core.protocols import Need
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.recycle import RecycleDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BadRequest


class Says:
    """Stands for a runner: names itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, inputs, rows):
        return [self.name, inputs, rows]


def test_narrow_passes_run_on_the_first_copy_and_wide_ones_on_the_second() -> None:
    both = Paces([Says("narrow"), Says("wide")])  # type: ignore[list-item]
    assert both.narrow == NARROW
    assert [both.run({}, n, [n])[0] for n in (1, 2, NARROW, NARROW + 1, 300)] == ["narrow"] * 3 + ["wide"] * 2
    assert both.run({"x": 1}, 3, [4])[1:] == [{"x": 1}, [4]]  # type: ignore[dict-item]
    one = Paces([Says("only")])  # type: ignore[list-item]
    assert one.narrow == 0
    assert [one.run({}, n, [n])[0] for n in (1, 300)] == ["only"] * 2
    assert Paces([]).narrow == 0


def test_each_copy_keeps_a_size_of_its_own() -> None:
    """Going to and fro between 5 and 12 changes no size; with one copy the smaller pass is padded."""
    both, one = Paces([Says("a"), Says("b")]), Paces([Says("a")])  # type: ignore[list-item]
    for paces in (both, one):
        for need in (5, 12):
            paces.ran(need, paces.size(need), 1.0)
    assert [both.size(n) for n in (5, 12)] == [5, 12]
    assert [one.size(n) for n in (5, 12)] == [12, 12]
    assert both.size(4) == 5, "padded to what its copy ran last"
    assert both.size(10) == 12
    assert both.size(NARROW) == NARROW, "never beyond its copy's reach"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(from_transformers(tiny("LlamaConfig"), tmp_path_factory.mktemp("paces") / "llama"))


def opened(folder: Path, **options) -> OpenVINOModel:
    return OpenVINOModel(folder, precision="f32", kv_tokens=2048, threads=1, **options)


@pytest.fixture(scope="module")
def twice(folder: Path) -> OpenVINOModel:
    return opened(folder, copies=2)


def logits(target: OpenVINOModel, prompt: list[int], tokens: list[int], parents: list[int] | None = None) -> torch.Tensor:
    """[N, V] of a draft behind a prompt."""
    [slot] = target.open(1)
    width = target.traits.min_width
    for token in prompt:
        target.score([slot], Forest.pack([DraftTree.chain([token])], min_width=width), Need())
        target.commit([slot], [[0]])
    drafted = DraftTree.chain(tokens)
    if parents is not None:
        drafted = DraftTree(torch.tensor(tokens), torch.tensor(parents), None, drafted.source)
    found = target.score([slot], Forest.pack([drafted], min_width=width), Need()).logits.clone()
    target.commit([slot], [[]])
    target.close([slot])
    return found


PROMPT = [3, 1, 4, 1, 5, 9, 2]
LONG = [(7 * i + 3) % 53 for i in range(20)]


@pytest.mark.parametrize("n", [1, 2, 5, NARROW, NARROW + 1, 12, 20])
def test_both_copies_say_the_same_bit_for_bit(twice: OpenVINOModel, n: int) -> None:
    """The same pass on one copy and on the other, and what both have in common with a pass of another width."""
    narrow, wide = twice._paces.runners
    assert narrow is not wide
    said = []
    for order in ((narrow, wide), (wide, narrow), (narrow, narrow), (wide, wide)):
        twice._paces.runners = order
        said.append(logits(twice, PROMPT, LONG[:n]))
    twice._paces.runners = (narrow, wide)
    assert all(torch.equal(said[0], other) for other in said[1:])
    if n > 1:
        assert torch.equal(said[0], logits(twice, PROMPT, LONG)[:n]), "a narrow pass and the wide one that begins with it"


def test_passes_go_where_their_tokens_say(twice: OpenVINOModel, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    for i, runner in enumerate(twice._paces.runners):
        monkeypatch.setattr(runner, "run", lambda inputs, rows, i=i, run=runner.run: (ran.append(i), run(inputs, rows))[1])

    def where(tokens: list[int], parents: list[int] | None = None) -> int:
        logits(twice, [], tokens, parents)
        return ran[-1]

    assert [where(LONG[:n]) for n in (1, 2, NARROW, NARROW + 1, 20, 3, 9)] == [0, 0, 0, 1, 1, 0, 1]
    # a tree of five nodes whose two paths are two and four tokens, and one of three and four
    assert where(LONG[:5], [-1, 0, 0, 2, 3]) == 0
    assert where(LONG[:6], [-1, 0, 1, 0, 3, 4]) == 1


def test_trees_say_the_same_on_both(twice: OpenVINOModel) -> None:
    narrow, wide = twice._paces.runners
    said = []
    for order in ((narrow, wide), (wide, narrow)):
        twice._paces.runners = order
        said += [logits(twice, PROMPT, LONG[:6], [-1, 0, 1, 0, 3, 4]), logits(twice, PROMPT, LONG[:4], [-1, 0, 0, 2])]
    twice._paces.runners = (narrow, wide)
    assert torch.equal(said[0], said[2])
    assert torch.equal(said[1], said[3])
    assert torch.equal(said[0][:3], logits(twice, PROMPT, LONG[:3]))


def test_the_copies_share_one_cache(twice: OpenVINOModel) -> None:
    """What a narrow pass committed a wide one reads, and the other way round."""
    [slot] = twice.open(1)
    [plain] = twice.open(1)
    for begin, end in ((0, 9), (9, 11), (11, 20)):
        part = LONG[begin:end]
        found = twice.score([slot], Forest.pack([DraftTree.chain(part)], min_width=2), Need()).logits[-1].clone()
        twice.commit([slot], [range(len(part))])
        for token in part:
            last = twice.score([plain], Forest.pack([DraftTree.chain([token])], min_width=2), Need()).logits[0].clone()
            twice.commit([plain], [[0]])
        assert torch.equal(found, last)
    twice.close([slot, plain])


def test_small_weights_are_compiled_twice_and_large_ones_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (folder / "openvino_model.bin").stat().st_size > 0
    once = opened(folder, copies=1)
    assert (len(once._paces.runners), once.traits.narrow) == (1, 0)
    small = opened(folder)
    assert (len(small._paces.runners), small.traits.narrow) == (2, NARROW)
    monkeypatch.setattr(model_file, "SMALL_WEIGHTS", (folder / "openvino_model.bin").stat().st_size - 1)
    assert len(opened(folder)._paces.runners) == 1
    assert len(opened(folder, copies=2)._paces.runners) == 2
    assert logits(once, PROMPT, LONG).equal(logits(small, PROMPT, LONG))


def test_a_model_that_is_cut_has_one_pace(folder: Path) -> None:
    cut = opened(folder, cut=1)
    assert (cut.traits.narrow, cut.traits.steady) == (0, True)
    assert logits(cut, PROMPT, LONG).shape == (20, 53)


@pytest.mark.parametrize("copies", [0, 3, -1, "2", 1.5])
def test_other_numbers_of_copies_are_refused(folder: Path, copies: object) -> None:
    with pytest.raises(BadRequest, match="copies must be 1 or 2"):
        opened(folder, copies=copies)


def test_the_probe_finds_both_in_one_class(twice: OpenVINOModel) -> None:
    report = twice.probe()
    assert report.exact


@pytest.mark.parametrize("copies", [1, 2])
def test_decoding_says_the_same_with_any_number_of_copies(folder: Path, twice: OpenVINOModel, copies: int) -> None:
    """Drafts long and short, chains and trees, so that passes go to and fro."""
    target = twice if copies == 2 else opened(folder, copies=1)
    requests = [(LONG[:9] * 2, {"max_tokens": 30}), ([5], {"max_tokens": 25, "temperature": 0.8, "seed": 3})]
    plain = [run(Engine(target, reuse=False), request)[0].token_ids for request in requests]
    for drafter, k, width in ((SuffixDrafter(), 12, 1), (RecycleDrafter(53), 3, 2), (RecycleDrafter(53), 8, 3)):
        engine = fixed(target, drafter, k, width, nodes=k)
        assert [one.token_ids for one in run(engine, *requests)] == plain
        assert [run(engine, request)[0].token_ids for request in requests] == plain
        engine.close()
