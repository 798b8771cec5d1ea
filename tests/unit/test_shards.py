"""Captured text on disk: what is written is read, nothing is left half, damage is named."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import SafetensorError

from surefoot.errors import BadRequest, ModelNotFound
from surefoot.train import shards as module
from surefoot.train.shards import FACTS_FILE, Document, Shards, write_shard


def made(n, answer, start=0):
    hidden = {tap: torch.arange(n * 3).reshape(n, 3) + tap / 4 for tap in (0, 5, 11)}
    return Document(torch.arange(start, start + n, dtype=torch.int32), answer, hidden)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / FACTS_FILE).write_text(json.dumps({"target": {"name": "toy"}}), "utf-8")
    write_shard(tmp_path, 1, [made(4, 4, 30)])
    write_shard(tmp_path, 0, [made(5, 2), made(3, 0, 10), made(6, 5, 20)])
    return tmp_path


def test_documents_come_back_in_the_order_of_shards(folder):
    shards = Shards(folder)
    assert (len(shards), shards.taps, shards.facts) == (4, (0, 5, 11), {"target": {"name": "toy"}})
    assert [shards.size(i) for i in range(4)] == [5, 3, 6, 4]
    assert [shards.answer(i) for i in range(4)] == [2, 0, 5, 4]
    assert [shards.document(i).answer for i in range(4)] == [2, 0, 5, 4]
    assert shards.document(2).tokens.tolist() == [20, 21, 22, 23, 24, 25]
    assert shards.document(3).tokens.tolist() == [30, 31, 32, 33]
    assert shards.document(1).hidden == {}
    found = shards.document(1, (11, 0))
    assert found.hidden[11].dtype == torch.float16
    for tap in (0, 11):
        assert torch.equal(found.hidden[tap].float(), made(3, 0).hidden[tap])


@pytest.mark.parametrize(
    "begin, end, tokens, answer",
    [(0, 6, [20, 21, 22, 23, 24, 25], 5), (1, 4, [21, 22, 23], 3), (4, 99, [24, 25], 1), (5, None, [25], 0)],
)
def test_a_window_of_a_document_stays_inside_it(folder, begin, end, tokens, answer):
    found = Shards(folder).document(2, (5,), begin, end)
    assert found.tokens.tolist() == tokens
    assert found.answer == answer
    assert torch.equal(found.hidden[5].float(), made(6, 5).hidden[5][begin:end])


def test_numbers_too_large_for_float16_stay_finite(tmp_path):
    (tmp_path / FACTS_FILE).write_text(json.dumps({"target": {}}), "utf-8")
    write_shard(tmp_path, 0, [Document(torch.zeros(1, dtype=torch.int32), 0, {1: torch.tensor([[1e6, -1e6, 2.0]])})])
    assert Shards(tmp_path).document(0, (1,)).hidden[1].tolist() == [[65504.0, -65504.0, 2.0]]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
def test_a_full_disk_leaves_nothing_behind(folder, monkeypatch, error):
    def full(data, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(module, "save_file", full)
    before = sorted(folder.iterdir())
    with pytest.raises(OSError, match="No space left"):
        write_shard(folder, 0, [made(4, 1)])
    assert sorted(folder.iterdir()) == before
    assert Shards(folder).size(0) == 5


def test_a_killed_capture_leaves_no_shard(folder):
    (folder / "shard-00002.part").write_bytes(b"half")
    assert len(Shards(folder)) == 4


def test_missing_and_damaged_files_are_named(folder, tmp_path):
    with pytest.raises(ModelNotFound, match="run the capture first"):
        Shards(tmp_path / "nowhere")
    whole = (folder / "shard-00000.safetensors").read_bytes()
    for cut in (whole[:-10], b"not a shard", b""):
        (folder / "shard-00000.safetensors").write_bytes(cut)
        with pytest.raises(BadRequest, match=r"shard-00000\.safetensors is damaged"):
            Shards(folder)
    (folder / "shard-00000.safetensors").write_bytes(whole)
    for text in ("{", "[1]", "{}"):
        (folder / FACTS_FILE).write_text(text, "utf-8")
        with pytest.raises(BadRequest, match="damaged"):
            Shards(folder)


def test_no_shards_yet_is_no_documents(tmp_path):
    (tmp_path / FACTS_FILE).write_text(json.dumps({"target": {}}), "utf-8")
    shards = Shards(tmp_path)
    assert (len(shards), shards.taps) == (0, ())


def test_shards_with_other_taps_are_refused(folder):
    only = Document(torch.zeros(2, dtype=torch.int32), 0, {0: torch.zeros(2, 3)})
    write_shard(folder, 2, [only])
    with pytest.raises(BadRequest, match="taps"):
        Shards(folder)
