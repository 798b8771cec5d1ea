"""The store file of the drafter ``suffix``: what comes back, caps, damage, other tokenizers, and several writers."""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import stat
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys_suffix import Line, ask, chain, whole

from surefoot.drafters import suffix_disk
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.drafters.suffix_disk import MAGIC, StoreFile
from surefoot.drafters.suffix_store import BREAK, ContextStore
from surefoot.errors import BackendError, BadRequest, VocabMismatch

STORY = list(range(100, 140))


def drafter(path: Path, **options) -> SuffixDrafter:
    return SuffixDrafter(**{"store": path, "vocabulary": "toy", **options})


def tell(made: SuffixDrafter, said: list[int], row_id: int = 1, prompt: tuple[int, ...] = (1, 2)) -> None:
    """A row that says this, and ends."""
    row = Line([*prompt, *said], row_id, len(prompt))
    ask(made, row.tokens, chain(1), row_id, row.n_prompt)
    made.forget([row])


def knows(made: SuffixDrafter, tokens: list[int], row_id: int = 99) -> list[int]:
    found = ask(made, tokens, chain(8), row_id).tokens.tolist()[1:]
    made.forget([Line(tokens, row_id, len(tokens))])
    return found


def test_what_rows_said_is_known_in_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store"
    first = drafter(path)
    tell(first, STORY)
    first.save()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir() if not entry.name.endswith(".lock")] == ["store"]
    second = drafter(path)
    assert knows(second, [3, 100, 101]) == STORY[2:10]
    assert knows(second, [9, 1]) == [], "prompts are not kept"
    assert whole(second._shared) == whole(first._shared)


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = SuffixDrafter(vocabulary="toy")
    tell(made, STORY)
    made.save()
    made.close()
    assert list(tmp_path.iterdir()) == []
    drafter(tmp_path / "store").save()
    assert not (tmp_path / "store").exists()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=14), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(2, 40),
    st.sets(st.integers(0, 7)),
)
def test_the_store_comes_back_as_it_was(
    tmp_path_factory, sequences: list[list[int]], depth: int, capacity: int, saves: set[int]
) -> None:
    """Also when sequences were cut or evicted, however often it was saved."""
    path = tmp_path_factory.mktemp("store") / "store"
    made = drafter(path, max_match=depth, shared_tokens=capacity)
    for i, said in enumerate(sequences):
        tell(made, said, i)
        if i in saves:
            made.save()
    made.save()
    again = drafter(path, max_match=depth, shared_tokens=capacity)
    ours, theirs = made._shared, again._shared
    assert len(theirs) == len(ours)
    assert whole(theirs, ours.end - theirs.end) == whole(ours)


def test_the_file_keeps_to_its_cap_and_the_latest_rows(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made = drafter(path, store_tokens=50)
    for i in range(30):
        tell(made, [1000 + 20 * i + j for j in range(20)], i)
    made.save()
    assert path.stat().st_size < 4 * (50 + 8) + 200
    again = drafter(path)
    assert again.stats()["shared_tokens"] == 50
    assert knows(again, [1581]) == list(range(1582, 1590))
    assert knows(again, [1201]) == []
    small = drafter(path, shared_tokens=10)
    assert small.stats()["shared_tokens"] == 10
    assert knows(small, [1581]) == []
    assert knows(small, [1591]) == list(range(1592, 1600))


def test_it_saves_now_and_then_at_close_and_when_no_longer_used(tmp_path: Path) -> None:
    made = drafter(tmp_path / "often", shared_tokens=100)
    tell(made, STORY)
    assert knows(drafter(tmp_path / "often"), [100]) == STORY[1:9]
    made = drafter(tmp_path / "close")
    tell(made, STORY)
    assert not (tmp_path / "close").exists()
    made.close()
    made.close()
    assert knows(drafter(tmp_path / "close"), [100]) == STORY[1:9]
    made = drafter(tmp_path / "dropped")
    tell(made, STORY)
    del made
    gc.collect()
    assert knows(drafter(tmp_path / "dropped"), [100]) == STORY[1:9]


# ---- damage


def written(path: Path) -> bytes:
    made = drafter(path)
    tell(made, STORY)
    made.save()
    return path.read_bytes()


def frame(body: bytes, version: int = 1) -> bytes:
    head = version.to_bytes(4, "little") + len(body).to_bytes(8, "little")
    return MAGIC + head + hashlib.sha256(head + body).digest() + body


def body(vocabulary: object = "toy", count: object = 3, context: object = 0, tokens: tuple[int, ...] = (BREAK, 5, 6)) -> bytes:
    about = {"vocabulary": vocabulary, "depth": 8, "context": context, "count": count}
    return json.dumps(about).encode() + b"\n" + array("i", tokens).tobytes()


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    data = written(path)
    for at in [*range(0, 60), *range(60, len(data), 13), len(data) - 1]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with pytest.warns(RuntimeWarning, match=r"damaged.*renamed to store\.broken.*anew"):
            made = drafter(path)
        assert made.stats()["shared_tokens"] == 0
        assert not path.exists()
        assert (tmp_path / "store.broken").read_bytes()[at] == data[at] ^ 0x41


@pytest.mark.parametrize("size", [0, 1, 8, 20, 51, 52, 60, -4, -1])
def test_a_truncated_file_is_set_aside_and_built_anew(tmp_path: Path, size: int) -> None:
    path = tmp_path / "store"
    data = written(path)
    path.write_bytes(data[:size])
    with pytest.warns(RuntimeWarning, match="damaged"):
        made = drafter(path)
    assert (tmp_path / "store.broken").read_bytes() == data[:size]
    assert knows(made, [100]) == []
    tell(made, STORY)
    made.save()
    assert knows(drafter(path), [100]) == STORY[1:9]


@pytest.mark.parametrize(
    "content",
    [
        frame(b""),
        frame(b"{}\n"),
        frame(b"[1]\n"),
        frame(b"\xff\n"),
        frame(body(count=2)),
        frame(body(count="many")),
        frame(body(count=-1)),
        frame(body(context=4)),
        frame(body(context=-1)),
        frame(body(tokens=(BREAK, -2, 6))),
        frame(body(), version=0),
        frame(body()) + b"x",
        b"a text of my own, and longer than the frame of a store file by some characters",
    ],
)
def test_what_contradicts_itself_is_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="damaged"):
        made = drafter(path)
    assert made.stats()["shared_tokens"] == 0


def test_the_frame_of_these_tests_is_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(frame(body()))
    assert drafter(path).stats()["shared_tokens"] == 3
    path.write_bytes(frame(body(context=2)))
    assert drafter(path).stats()["shared_tokens"] == 1


def test_another_tokenizer_and_a_newer_format_are_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for content, error, hint in (
        (frame(body("other")), VocabMismatch, "another tokenizer; give another path"),
        (frame(b"who knows", version=2), BackendError, "format 2.*update surefoot or give another path"),
    ):
        path.write_bytes(content)
        with pytest.raises(error, match=hint) as told:
            drafter(path)
        assert "\n" not in str(told.value)
        assert path.read_bytes() == content


def test_damage_while_in_use_is_repaired_from_memory(tmp_path: Path) -> None:
    path = tmp_path / "store"
    written(path)
    made = drafter(path)
    path.write_bytes(b"noise")
    tell(made, list(range(500, 520)), 5)
    with pytest.warns(RuntimeWarning, match="damaged"):
        made.save()
    again = drafter(path)
    assert knows(again, [100]) == STORY[1:9]
    assert knows(again, [500]) == list(range(501, 509))


def test_what_was_deleted_stays_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    written(path)
    made = drafter(path)
    path.unlink()
    tell(made, list(range(500, 520)), 5)
    made.save()
    again = drafter(path)
    assert knows(again, [100]) == []
    assert knows(again, [500]) == list(range(501, 509))


# ---- several writers, and writing that fails


def test_two_writers_keep_what_both_said(tmp_path: Path) -> None:
    path = tmp_path / "store"
    one, two = drafter(path), drafter(path)
    tell(one, STORY)
    tell(two, list(range(500, 520)))
    one.save()
    two.save()
    tell(one, list(range(700, 720)))
    one.save()
    again = drafter(path)
    for first in (100, 500, 700):
        assert knows(again, [first]) == list(range(first + 1, first + 9))
    assert again.stats()["shared_tokens"] == 41 + 21 + 21, "nothing twice"


def _write(path: str, start: int) -> None:
    file = StoreFile(path, "toy", 1 << 16, 8)
    file.load()
    for i in range(20):
        file.add(range(start + 10 * i, start + 10 * i + 10))
        file.save()


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    workers = [context.Process(target=_write, args=(path, start)) for start in (1000, 2000, 3000)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    file = StoreFile(path, "toy", 1 << 16, 8)
    file.load()
    assert sorted(token for token in file.kept if token != BREAK) == [
        token for start in (1000, 2000, 3000) for token in range(start, start + 200)
    ]
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.endswith(".lock")] == ["store"]


def test_a_full_disk_fails_no_request_and_loses_nothing_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    data = written(path)
    made = drafter(path, shared_tokens=100)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(suffix_disk.os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="not saved: cannot write.*No space left"):
        tell(made, list(range(500, 540)), 5)
    with pytest.raises(BackendError, match=r"No space left on device.*another"):
        made.save()
    assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.endswith(".lock")] == ["store"]
    for i in range(50):
        made._file._due = 1 << 30
        tell(made, list(range(500, 540)), i)
    monkeypatch.undo()
    made.save()
    assert knows(drafter(path), [500]) == list(range(501, 509))


def test_what_is_noted_is_bounded_while_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = drafter(tmp_path / "store", shared_tokens=100)
    monkeypatch.setattr(
        suffix_disk, "FileLock", lambda *a, **k: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    for i in range(40):
        if len(made._file._new) + 41 < made._file._due:
            tell(made, STORY, i)
        else:
            with pytest.warns(RuntimeWarning, match="Permission denied"):
                tell(made, STORY, i)
        assert made._file.nbytes <= 4 * (100 + 100)
    monkeypatch.undo()
    made.save()
    assert drafter(tmp_path / "store", shared_tokens=100).stats()["shared_tokens"] == 100


def test_a_process_that_waits_in_vain_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store"
    made = drafter(path)
    tell(made, STORY)
    monkeypatch.setattr(suffix_disk, "_WAIT", 0.05)
    with suffix_disk.FileLock(tmp_path / ".store.lock"), pytest.raises(BackendError, match="another process holds"):
        made.save()
    made.save()
    assert path.exists()


def test_a_forked_child_does_not_write_what_its_parent_writes(tmp_path: Path) -> None:
    made = drafter(tmp_path / "store")
    tell(made, STORY)
    made._file._owner += 1
    made.close()
    assert not (tmp_path / "store").exists()
    made._file._owner -= 1


@pytest.mark.parametrize(
    "options,named",
    [
        ({"store": 7}, "store="),
        ({"store": ""}, "store="),
        ({"store": "x", "vocabulary": ""}, "vocabulary="),
        ({"store": "x", "vocabulary": 3}, "vocabulary="),
        ({"store": "x", "shared_tokens": 0}, "shared_tokens=0"),
        ({"store": "x", "store_tokens": 0}, "store_tokens="),
        ({"store": None, "store_tokens": 5}, "store=PATH"),
        ({"store": "."}, "is a folder"),
        ({"store": None, "max_local_tokens": 0}, "max_local_tokens="),
    ],
)
def test_bad_options_are_named(options: dict, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadRequest, match=named):
        SuffixDrafter(**{"vocabulary": "toy", **options})
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BackendError, match="cannot read the suffix store"):
        drafter(tmp_path / "file" / "store")


def test_counts_of_a_restored_store_go_on(tmp_path: Path) -> None:
    store, other = ContextStore(3, 20), ContextStore(3, 20)
    for i in range(9):
        store.add_sequence([i % 3, 1, 2, i % 2])
    other.restore(store._text, len(store._text) - len(store))
    for i in range(9):
        store.add_sequence([1, 2, i % 2])
        other.add_sequence([1, 2, i % 2])
        assert whole(other, store.end - other.end) == whole(store)
