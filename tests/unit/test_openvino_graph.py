"""Pieces of the OpenVINO backend that need no language model: structure, fusion, cuts, blocks, paths, publishing."""

from __future__ import annotations

import errno
import os
from collections import namedtuple
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as op
import pytest
import torch

from surefoot.backends.openvino import convert, fuse, gguf_facts, publish, structure
from surefoot.backends.openvino.branches import keep, lay_out, paths, work
from surefoot.backends.openvino.hardware import shared_core
from surefoot.backends.openvino.passes import arrays
from surefoot.backends.openvino.pool import BlockPool
from surefoot.backends.openvino.steady import Steady
from surefoot.core.tree import DraftTree, Forest
from surefoot.errors import BackendError, ModelNotFound, Unsupported


def weight(rng, rows: int, columns: int, *, packed: bool):
    """A plain float weight, or an integer one with zero point and scale for each group of columns."""
    if not packed:
        return op.constant(rng.standard_normal((rows, columns)).astype(np.float32))
    shape = (rows, columns // 4, 4)
    numbers = op.convert(op.constant(rng.integers(0, 255, shape).astype(np.uint8)), "f16")
    zero = op.convert(op.constant(rng.integers(0, 255, (rows, columns // 4, 1)).astype(np.uint8)), "f16")
    scale = op.constant(rng.random((rows, columns // 4, 1)).astype(np.float16))
    grid = op.multiply(op.subtract(numbers, zero), scale)
    return op.convert(op.reshape(grid, op.constant(np.array([rows, columns])), False), "f32")


@pytest.mark.parametrize("packed", [False, True])
def test_fusion_keeps_the_products(rng, packed):
    x = op.parameter([-1, 8], ov.Type.f32, name="x")
    sizes = (6, 2, 4)
    model = ov.Model([op.result(op.matmul(x, weight(rng, n, 8, packed=packed), False, True)) for n in sizes], [x])
    value = rng.standard_normal((3, 8)).astype(np.float32)

    def run(m: ov.Model) -> list[np.ndarray]:
        compiled = shared_core().compile_model(m, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return [a.copy() for a in compiled(value).values()]

    before = run(model)
    assert fuse.fuse(model) == 1
    assert sum(n.get_type_name() == "MatMul" for n in model.get_ops()) == 1
    for a, b in zip(before, run(model), strict=True):
        assert np.allclose(a, b, rtol=1e-3, atol=1e-3)


def test_fusion_leaves_what_does_not_fit(rng):
    x, y = op.parameter([-1, 8], ov.Type.f32, name="x"), op.parameter([-1, 8], ov.Type.f32, name="y")
    products = [
        op.matmul(x, weight(rng, 4, 8, packed=True), False, True),
        op.matmul(x, weight(rng, 4, 8, packed=False), False, True),  # another form of weight
        op.matmul(y, weight(rng, 4, 8, packed=False), False, True),  # another input
        op.matmul(x, y, False, True),  # no weight at all
    ]
    assert fuse.fuse(ov.Model([op.result(p) for p in products], [x, y])) == 0


def test_waists_are_found_through_branches(rng):
    """embed -> a; b = a + f(a); c = b + g(b) + h(b): the waists are a, b, c and what lies between inputs and a."""
    x = op.parameter([-1, 8], ov.Type.f32, name="x")
    x.output(0).set_names({"x"})
    a = op.multiply(x, op.constant(np.float32(2)))
    b = op.add(a, op.sin(a))
    side = op.add(op.cos(b), op.sin(b))
    c = op.add(b, side)
    other = op.parameter([-1, 8], ov.Type.f32, name="other")
    end = op.result(op.add(c, op.exp(other)))
    cone = structure.value_cone(ov.Model([end], [x, other]).get_ordered_ops(), "x")
    names = [structure.key(n) for n in cone]
    assert structure.key(other) not in names
    found = [names[i] for i in structure.waists(cone)]
    assert [structure.key(n) for n in (x, a, b, c)] == found[:4]
    assert structure.key(side) not in found


def test_graph_without_attention_is_refused(rng):
    ids = op.parameter([-1], ov.Type.i64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    table = op.gather(op.constant(np.eye(4, dtype=np.float32)), ids, op.constant(0))
    end = op.result(op.matmul(table, weight(rng, 4, 4, packed=False), False, True))
    end.output(0).set_names({"logits"})
    with pytest.raises(Unsupported, match="no attention"):
        structure.read(ov.Model([end], [ids]))


def pool(tokens: int = 64) -> BlockPool:
    return BlockPool([(1, 4, 2), (1, 4, 2), (2, 4, 2), (2, 4, 2)], np.dtype(np.float32), tokens)


def put(blocks: BlockPool, slot, position: int, value: float) -> None:
    for array in blocks.arrays:
        array[slot.table[position // 4], :, position % 4] = value


def got(blocks: BlockPool, slot, position: int) -> set[float]:
    return {float(x) for array in blocks.arrays for x in array[slot.table[position // 4], :, position % 4].ravel()}


def slot_of(blocks: BlockPool, values):
    from surefoot.backends.openvino.pool import Slot

    slot = Slot()
    blocks.reserve([slot], [len(values)])
    for i, v in enumerate(values):
        put(blocks, slot, i, v)
    blocks.keep(slot, range(len(values)))
    return slot


def test_rows_move_when_a_masked_path_is_kept():
    blocks = pool()
    slot = slot_of(blocks, range(1, 7))
    blocks.reserve([slot], [9])
    for i in range(9):
        put(blocks, slot, 6 + i, 100 + i)
    blocks.keep(slot, [0, 3, 4, 8])
    assert slot.length == 10
    assert [got(blocks, slot, i) for i in range(5, 10)] == [{6.0}, {100.0}, {103.0}, {104.0}, {108.0}]
    assert len(slot.table) == 3
    blocks.release(slot)
    assert blocks.free == blocks.blocks


def test_blocks_are_reused_last_first_and_counted():
    blocks = pool()
    a = slot_of(blocks, range(8))
    table = list(a.table)
    b = blocks.fork(a, 8)
    assert b.table == table
    blocks.release(a)
    assert blocks.free == blocks.blocks - 2
    assert got(blocks, b, 7) == {7.0}
    blocks.release(b)
    assert slot_of(blocks, range(8)).table == table[::-1] or blocks.free == blocks.blocks - 2


def run(steady: Steady, needs, token: float = 1.0, change: float = 5.0) -> tuple[list[int], float]:
    """Sizes run and their cost on a machine with these costs."""
    sizes, total = [], 0.0
    for need in needs:
        size = steady.choose(need)
        assert size >= need
        cost = 10 + token * size + (change if size != steady.size else 0)
        steady.ran(need, size, cost)
        sizes.append(size)
        total += cost
    return sizes, total


def test_sizes_stay_while_that_is_cheaper():
    assert run(Steady(), [5] * 4)[0] == [5] * 4
    assert run(Steady(), [2, 6, 2, 6, 2, 6])[0] == [2, 6, 6, 6, 6, 6]
    sizes, _ = run(Steady(), [8, *[3, 4] * 10])
    assert sizes[0] == 8
    assert sizes[-1] == 4
    assert run(Steady(), [300, 2])[0] == [300, 2]


def test_size_changes_are_priced_as_measured():
    dear, cheap = Steady(), Steady()
    warm = [2, 2, 10, 10, 2, 2, 10, 10, 60, 2, 2, 60]
    run(dear, warm, change=30.0)
    run(cheap, warm, change=0.5)
    assert run(dear, [10, 2, 2], change=30.0)[0] == [10, 10, 10]
    assert run(cheap, [10, 2, 2], change=0.5)[0] == [10, 2, 2]


def test_steady_sizes_cost_at_most_twice_the_best_fixed_choice(rng):
    for _ in range(20):
        needs = rng.integers(2, 12, 60).tolist()
        _, total = run(Steady(), needs)
        exact = sum(10 + n + 5 * (n != before) for before, n in zip([0, *needs], needs, strict=False))
        assert total <= exact * 1.05


TREE = Forest.pack([DraftTree(torch.arange(6), torch.tensor([-1, 0, 0, 1, 1, 4]), None, torch.zeros(6, dtype=torch.int16))])


def test_paths_of_a_tree():
    assert paths([-1, 0, 0, 1, 1, 4]) == [[0, 2], [0, 1, 3], [0, 1, 4, 5]]
    assert paths([-1]) == [[0]]
    assert paths([-1, 0, 0], 4) == [[0, 1, 1, 1], [0, 2, 2, 2]]
    assert work(TREE) == 9
    assert work(Forest.pack([DraftTree.chain([1, 2])] * 3)) == 6


def test_tree_taken_apart_and_its_winner_kept():
    blocks = pool()
    slot = slot_of(blocks, range(1, 7))
    lines = lay_out(blocks, [slot], TREE, 2)
    assert lines.nodes.tolist() == [0, 2, 0, 1, 3, 0, 1, 4, 5]
    assert lines.place.tolist() == [0, 3, 1, 4, 7, 8]
    inputs, rows = arrays(lines, TREE, 4, masked=False)
    assert rows == 6
    assert inputs["input_ids"].tolist() == [0, 2, 0, 1, 3, 0, 1, 4, 5]
    assert inputs["position_ids"].tolist() == [6, 7, 6, 7, 8, 6, 7, 8, 9]
    assert inputs["logit_rows"].tolist() == lines.place.tolist()
    assert inputs["past_lens"].tolist() == [6, 6, 6]
    branch = lines.slots[2]
    assert branch.table[0] == slot.table[0]
    assert branch.table[1] != slot.table[1]
    assert got(blocks, branch, 5) == {6.0}
    for i, v in enumerate((50, 51, 54, 55)):
        put(blocks, branch, 6 + i, v)
    assert lay_out(blocks, [slot], TREE, 2).slots[2] is branch
    keep(blocks, slot, [0, 1, 4])
    assert slot.length == 9
    assert [got(blocks, slot, i) for i in range(4, 9)] == [{5.0}, {6.0}, {50.0}, {51.0}, {54.0}]
    blocks.release(slot)
    assert blocks.free == blocks.blocks


def test_full_pool_leaves_nothing_half_taken():
    blocks = pool(24)
    slot = slot_of(blocks, range(6))
    free = blocks.free
    star = Forest.pack([DraftTree(torch.arange(12), torch.tensor([-1] + [0] * 11), None, torch.zeros(12, dtype=torch.int16))])
    with pytest.raises(BackendError, match="kv_tokens"):
        lay_out(blocks, [slot], star, 2)
    assert blocks.free == free
    assert (slot.branches, slot.lines) == ([], [])


def test_absurd_pool_is_refused():
    with pytest.raises(BackendError, match="kv_tokens"):
        BlockPool([(64, 32, 256)], np.dtype(np.float32), 1 << 46)


def test_folder_is_whole_or_absent(tmp_path):
    out = tmp_path / "deep" / "out"

    def fail() -> None:
        with publish.whole(out) as folder:
            (folder / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(out.parent.iterdir()) == []
    for text in ("first", "second"):
        with publish.whole(out) as folder:
            (folder / "file").write_text(text)
    assert (out / "file").read_text() == "second"
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    with pytest.raises(BackendError, match="disk full"), publish.whole(out):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (out / "file").read_text() == "second"


def test_no_room_is_said_before_the_work(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(publish.shutil, "disk_usage", lambda _: usage(10, 10, 1 << 20))
    with pytest.raises(BackendError, match="needs 2 MB and has 1 MB"):
        publish.need_room(tmp_path / "not" / "yet", 2 << 20)


def gguf_bytes(architecture: str = "llama") -> bytes:
    def text(s: str) -> bytes:
        return len(s).to_bytes(8, "little") + s.encode()

    def field(name: str, kind: int, value: bytes) -> bytes:
        return text(name) + kind.to_bytes(4, "little") + value

    fields = [
        field("general.architecture", 8, text(architecture)),
        field("tokenizer.ggml.tokens", 9, (8).to_bytes(4, "little") + (2).to_bytes(8, "little") + text("a") + text("bc")),
        field("tokenizer.ggml.scores", 9, (6).to_bytes(4, "little") + (3).to_bytes(8, "little") + bytes(12)),
        field(f"{architecture}.context_length", 4, (77).to_bytes(4, "little")),
    ]
    return (
        b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + len(fields).to_bytes(8, "little") + b"".join(fields)
    )


def test_gguf_scalars(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes())
    assert gguf_facts.scalars(path) == {"general.architecture": "llama", "llama.context_length": 77}
    path.write_bytes(gguf_bytes()[:-3])
    with pytest.raises(BackendError, match="not a complete GGUF"):
        gguf_facts.scalars(path)
    with pytest.raises(ModelNotFound):
        gguf_facts.scalars(tmp_path / "none")


@pytest.mark.parametrize(
    "script, error, match",
    [
        ("import sys; sys.exit('Unsupported model architecture')", Unsupported, "give the transformers folder"),
        ("import os; os.abort()", BackendError, "exit status"),
        ("import no_such_module", BackendError, "pip install openvino-genai"),
        ("pass", BackendError, "could not be imported"),
    ],
)
def test_failed_import_leaves_nothing(tmp_path, monkeypatch, script, error, match):
    folder = tmp_path / "user"
    folder.mkdir()
    path = folder / "m.gguf"
    path.write_bytes(gguf_bytes())
    monkeypatch.setattr(convert, "_IMPORT", script)
    with pytest.raises(error, match=match):
        convert.from_gguf(path, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["user"]
    assert os.listdir(folder) == ["m.gguf"]


def test_import_works_beside_a_link_not_beside_the_file(tmp_path, monkeypatch):
    """The stand-in importer writes beside its argument, as the real one does."""
    folder = tmp_path / "user"
    folder.mkdir()
    path = folder / "m.gguf"
    path.write_bytes(gguf_bytes())
    script = (
        "import sys, pathlib; p = pathlib.Path(sys.argv[1]); assert p.read_bytes()[:4] == b'GGUF'\n"
        "for n in ('openvino_model.xml', 'openvino_model.bin', 'openvino_tokenizer.xml'): (p.parent / n).write_text('x')"
    )
    monkeypatch.setattr(convert, "_IMPORT", script)
    monkeypatch.setattr(convert, "_check", lambda folder: None)
    told: list[str] = []
    out = convert.from_gguf(path, tmp_path / "out", lambda label, done, total: told.append(label))
    assert sorted(os.listdir(out)) == ["openvino_model.bin", "openvino_model.xml", "surefoot.json"]
    assert '"max_context": 77' in Path(out, "surefoot.json").read_text()
    assert os.listdir(folder) == ["m.gguf"]
    assert told == ["importing m.gguf"]
