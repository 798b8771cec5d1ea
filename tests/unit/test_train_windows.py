"""Which documents are held out, how text is cut into windows and batches, and the reduced vocabulary."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
import toys_train as toys

from surefoot.errors import BadRequest, VocabMismatch
from surefoot.train.shards import FACTS_FILE, Document, Shards, write_shard
from surefoot.train.vocabulary import choose_vocabulary
from surefoot.train.windows import Windows, cut, split


def stored(folder, documents):
    (folder / FACTS_FILE).write_text(json.dumps({"target": {}}), "utf-8")
    hidden = {t: torch.arange(sum(len(d) for d, _ in documents)).float()[:, None].repeat(1, 2) + t for t in (0, 3)}
    made, at = [], 0
    for tokens, answer in documents:
        part = {t: h[at : at + len(tokens)] for t, h in hidden.items()}
        made.append(Document(torch.tensor(tokens, dtype=torch.int32), answer, part))
        at += len(tokens)
    write_shard(folder, 0, made)
    return Shards(folder)


@pytest.mark.parametrize("size", [5, 16, 17, 40, 61])
@pytest.mark.parametrize("answer", [0, 1, 4, 20])
def test_each_answer_token_is_a_label_once_and_has_its_context(size, answer):
    windows = cut(3, size, answer, length=16, context=4)
    labels = [t for w in windows for t in range(w.label, w.end)]
    assert labels == list(range(max(answer, 1), size))
    for w in windows:
        assert (w.document, w.size <= 16) == (3, True)
        assert w.label - w.begin >= min(4, w.label)
    if size <= 16 and windows:
        assert [(w.begin, w.end) for w in windows] == [(0, size)]


def test_windows_overlap_no_more_than_the_context():
    windows = cut(0, 100, 2, length=16, context=4)
    assert [b.begin - a.end for a, b in pairwise(windows)] == [-4] * (len(windows) - 1)
    assert all(w.size == 16 for w in windows[:-1])


def test_batches_of_an_epoch_hold_each_window_once_within_the_limit(tmp_path):
    shards = toys.capture(tmp_path, 60, longest=60)
    windows = Windows(shards, range(60), [toys.LAST], length=32, context=4, batch_tokens=200, seed=1)
    epochs = [windows.order(e) for e in (0, 1, 0, None)]
    plain = [sorted((w.document, w.begin) for batch in epoch for w in batch) for epoch in epochs]
    assert plain[0] == plain[1] == plain[3] == sorted(set(plain[0]))
    assert epochs[0] == epochs[2] != epochs[1]
    assert Windows(shards, range(60), [toys.LAST], length=32, context=4, batch_tokens=200, seed=2).order(0) != epochs[0]
    for epoch in epochs:
        padded = [len(batch) * max(w.size for w in batch) for batch in epoch]
        assert max(padded) <= 200
        assert sum(padded) <= 1.2 * sum(w.size for batch in epoch for w in batch)
    sizes = [max(w.size for w in batch) for batch in epochs[0]]
    assert sizes != sorted(sizes)
    assert windows.labels == sum(shards.size(i) - shards.answer(i) for i in range(60))


def test_batch_holds_text_activations_and_labels(tmp_path):
    shards = stored(tmp_path, [([1, 2, 3, 4, 5], 3), ([6, 7, 8], 1)])
    windows = Windows(shards, [0, 1], [0, 3], length=8, context=2, batch_tokens=100)
    batch = windows.batch(sorted((w for b in windows.order(0) for w in b), key=lambda w: w.document))
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]
    assert batch.answer.tolist() == [[False, False, False, True, True], [False, True, True, False, False]]
    assert batch.length.tolist() == [5, 3]
    assert batch.hidden[3].dtype == torch.float32
    assert batch.hidden[3][:, :, 1].tolist() == [[3, 4, 5, 6, 7], [8, 9, 10, 0, 0]]
    assert batch.hidden[0][0, :, 0].tolist() == [0, 1, 2, 3, 4]


def test_tokens_before_a_windows_labels_are_context_only(tmp_path):
    shards = stored(tmp_path, [(list(range(1, 21)), 2)])
    windows = Windows(shards, [0], [3], length=8, context=2, batch_tokens=1000)
    batch = windows.batch([w for b in windows.order(None) for w in b])
    assert sorted(batch.tokens[batch.answer].tolist()) == list(range(3, 21))


def test_a_tap_that_was_not_captured_is_named(tmp_path):
    shards = stored(tmp_path, [([1, 2, 3], 1)])
    with pytest.raises(BadRequest, match="tap 7"):
        Windows(shards, [0], [0, 7])
    with pytest.raises(BadRequest, match="context"):
        Windows(shards, [0], [0], length=10, context=6)
    with pytest.raises(BadRequest, match="batch tokens"):
        Windows(shards, [0], [0], batch_tokens=0)


def test_split_holds_out_a_share_by_document_and_seed(tmp_path):
    shards = toys.capture(tmp_path, 100)
    own, held = split(shards, 0, 0.1)
    assert sorted(own + held) == list(range(100))
    assert 8 <= len(held) <= 10
    assert split(shards, 0, 0.1) == (own, held)
    assert split(shards, 1, 0.1)[1] != held
    assert len(split(shards, 0, 0.0001)[1]) == 1


def test_answers_to_one_prompt_stay_on_one_side(tmp_path):
    documents = [([p, p, *range(20)], 2) for p in range(10) for _ in range(5)]
    shards = stored(tmp_path, documents)
    own, held = split(shards, 0, 0.2)
    assert len(held) == 10
    assert not {documents[i][0][0] for i in own} & {documents[i][0][0] for i in held}


def test_one_prompt_for_all_is_split_by_document(tmp_path):
    own, held = split(stored(tmp_path, [([1, 2, *range(20)], 2)] * 20), 0, 0.1)
    assert (len(own), len(held)) == (18, 2)


@pytest.mark.parametrize("documents", [[], [([1, 2, 3], 3)] * 9, [([1] * 500, 2)], [([1, 2, 3], 2)] * 9])
def test_too_little_text_says_how_much_there_is_and_is_needed(tmp_path, documents):
    shards = stored(tmp_path, documents) if documents else None
    if shards is None:
        (tmp_path / FACTS_FILE).write_text(json.dumps({"target": {}}), "utf-8")
        shards = Shards(tmp_path)
    with pytest.raises(BadRequest, match=r"\d+ documents with \d+ answer tokens, needed are at least 2 with 64"):
        split(shards, 0)


def test_a_share_that_is_none_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="share"):
        split(stored(tmp_path, [([1] * 100, 2)] * 2), 0, 1.0)


def test_vocabulary_is_the_most_frequent_answer_tokens(tmp_path):
    shards = stored(tmp_path, [([9, 9, 9, 9, 5, 5, 5, 2, 7, 7, 3, 3], 4), ([8, 5, 11], 1)])
    found = choose_vocabulary(shards, 3, 20)
    assert found.ids.tolist() == [3, 5, 7]
    assert found.ids.dtype == torch.int64
    assert found.coverage == pytest.approx(8 / 10)
    assert choose_vocabulary(shards, 4, 20).ids.tolist() == [2, 3, 5, 7]  # 2 and 11 are said once: the lower id
    assert choose_vocabulary(shards, 15, 20).ids.tolist() == [2, 3, 5, 7, 11]
    assert choose_vocabulary(shards, 20, 20).ids.tolist() == list(range(20))


def test_special_tokens_that_occur_are_always_in(tmp_path):
    shards = stored(tmp_path, [([9, 9, 9, 9, 5, 5, 5, 2, 7, 7, 3, 3], 4), ([8, 5, 11], 1)])
    found = choose_vocabulary(shards, 3, 20, special=[8, 11, 0, 99])  # 8 is in a prompt only, 0 nowhere
    assert found.ids.tolist() == [5, 8, 11]
    assert found.coverage == pytest.approx(5 / 10)


def test_vocabulary_refuses_what_cannot_be(tmp_path):
    shards = stored(tmp_path, [([1, 2, 30], 1)])
    with pytest.raises(VocabMismatch, match="30"):
        choose_vocabulary(shards, 4, 20)
    with pytest.raises(BadRequest, match="at least 1"):
        choose_vocabulary(shards, 0, 40)
    (tmp_path / "none").mkdir()
    with pytest.raises(BadRequest, match="no answer tokens"):
        choose_vocabulary(stored(tmp_path / "none", [([1, 2], 2)]), 4, 20)
