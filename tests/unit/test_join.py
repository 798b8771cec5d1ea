"""Captures joined: all documents in order, facts of each kept, text that does not belong together refused."""

from __future__ import annotations

import json

import pytest
import torch

from surefoot.errors import BadRequest
from surefoot.train.join import join
from surefoot.train.shards import FACTS_FILE, Document, Shards, write_shard


def capture(folder, seed, documents, target="toy", taps=(1,)):
    folder.mkdir()
    facts = {"target": {"name": target}, "taps": list(taps), "settings": {"seed": seed, "documents": None}, "prompts": 2}
    (folder / FACTS_FILE).write_text(json.dumps(facts), "utf-8")
    for number, start in enumerate(documents):
        tokens = torch.arange(start, start + 4, dtype=torch.int32)
        write_shard(folder, number, [Document(tokens, 1, {tap: torch.ones(4, 2) for tap in taps})])
    return folder


def test_documents_of_all_in_order(tmp_path):
    one, two = capture(tmp_path / "a", 1, [10, 20]), capture(tmp_path / "b", 2, [30])
    assert join(tmp_path / "c", [one, two]) == 3
    found = Shards(tmp_path / "c")
    assert [found.document(i).tokens[0].item() for i in range(3)] == [10, 20, 30]
    assert found.facts["target"] == {"name": "toy"}
    assert found.facts["settings"] == {"part 1": "2 documents; seed 1", "part 2": "1 documents; seed 2"}
    assert found.facts["prompts"] == 4


@pytest.mark.parametrize("other", [{"target": "another"}, {"taps": (1, 2)}], ids=str)
def test_text_of_another_kind_is_refused(tmp_path, other):
    one, two = capture(tmp_path / "a", 1, [10]), capture(tmp_path / "b", 2, [30], **other)
    with pytest.raises(BadRequest, match=next(iter(other))):
        join(tmp_path / "c", [one, two])
    assert not (tmp_path / "c").exists()


def test_a_folder_in_use_and_a_single_one_are_refused(tmp_path):
    one, two = capture(tmp_path / "a", 1, [10]), capture(tmp_path / "b", 2, [30])
    with pytest.raises(BadRequest, match="not empty"):
        join(one, [one, two])
    with pytest.raises(BadRequest, match="two folders"):
        join(tmp_path / "c", [one])
