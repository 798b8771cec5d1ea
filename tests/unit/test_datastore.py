"""Datastores against counting by hand; damaged, cut and foreign files; what a folder gives; the command."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ToyCodec
from toys_cli import error_of, tokenizer

from surefoot.cli import main
from surefoot.drafters import datastore as reader
from surefoot.drafters.datastore import Datastore
from surefoot.drafters.datastore_build import join, sort_places, write
from surefoot.drafters.datastore_files import gather
from surefoot.drafters.datastore_format import BREAK, MAGIC, PAGE, is_datastore
from surefoot.errors import BackendError, BadRequest, Unsupported


def build(path: Path, documents: Sequence[Sequence[int]], vocab: int = 50, fingerprint: str = "f" * 64) -> Path:
    arrays = [np.array(document, np.int32) for document in documents]
    return write(path, arrays, fingerprint=fingerprint, vocab_size=vocab, model="tiny", folder="my texts").path


texts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=6).filter(
    lambda documents: any(len(document) > 1 for document in documents)
)


def context(text: list[int], place: int) -> list[int]:
    found = []
    while text[place - 1] != BREAK:
        place -= 1
        found.append(text[place])
    return found


# ---- the arrays


@settings(max_examples=150, deadline=None)
@given(texts, st.sampled_from([2, 4, 32]))
def test_places_are_sorted_by_their_contexts(documents: list[list[int]], depth: int) -> None:
    joined = join([np.array(document, np.int32) for document in documents])
    text, order = joined.tolist(), sort_places(joined, depth).tolist()
    assert sorted(order) == [e for e in range(1, len(text)) if text[e] != BREAK and text[e - 1] != BREAK]
    contexts = [context(text, e)[:depth] for e in order]
    assert contexts == sorted(contexts)


def test_equal_contexts_keep_the_order_of_the_text() -> None:
    period = np.tile(np.arange(3, dtype=np.int32), 60)
    order = sort_places(join([period]))
    deep = [e for e in order.tolist() if e > 40]
    for token in range(3):
        places = [e for e in deep if period[e - 2] == token]
        assert places == sorted(places)
    again = sort_places(join([period]))
    assert (order == again).all()


def match(text: list[int], place: int, tail: list[int]) -> int:
    n = 0
    while n < len(tail) and text[place - 1 - n] == tail[-1 - n]:
        n += 1
    return n


@settings(max_examples=200, deadline=None)
@given(
    texts,
    st.lists(st.integers(0, 3), min_size=0, max_size=12),
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 4),
)
def test_rings_equal_a_search_by_hand(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[int]],
    tail: list[int],
    longest: int,
    least: int,
    most: int,
    shells: int,
) -> None:
    store = Datastore.open(build(tmp_path_factory.mktemp("s") / "store", documents))
    text = store.text.tolist()
    by_length: dict[int, list[int]] = {}
    for place in range(1, len(text)):
        if text[place] != BREAK and text[place - 1] != BREAK:
            by_length.setdefault(match(text, place, tail[-longest:]), []).append(place)
    wanted = [(n, by_length[n]) for n in sorted(by_length, reverse=True) if n >= least][:shells]
    found = store.rings(tail, longest, least, most, shells)
    room = most
    for (n, places), (m, all_) in zip(found, wanted, strict=False):
        assert n == m
        assert len(places) == len(set(places)) == min(room, len(all_))
        assert set(places) <= set(all_)
        room -= len(places)
    assert len(found) == len(wanted) or room == 0
    store.close()


def test_a_sample_is_spread_over_all_of_a_large_ring(tmp_path: Path) -> None:
    documents = [[before, 1, 2, before] for before in range(10, 50)]
    store = Datastore.open(build(tmp_path / "s", documents))
    ((n, places),) = store.rings([3, 1, 2], 8, 1, 10, 3)
    assert n == 2
    assert [store.text[place] for place in places] == list(range(10, 50, 4))


def test_reading_stops_at_the_end_of_a_document(tmp_path: Path) -> None:
    store = Datastore.open(build(tmp_path / "s", [[1, 2, 3], [4, 5]]))
    ((_, places),) = store.rings([1, 2], 8, 2, 8, 3)
    assert store.tokens(places[0], 9) == [3]
    assert store.tokens(places[0] - 2, 2) == [1, 2]
    assert store.rings([3, 4], 8, 2, 8, 3) == [], "documents do not run into each other"
    assert store.rings([7, 99], 8, 1, 8, 3) == []


# ---- damage


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = build(tmp_path / "deep" / "er" / "s", [[1, 2, 3], [4]], vocab=6)
    header = Datastore.open(path, verify=True).header
    assert (header.tokens, header.documents, header.vocab_size, header.fingerprint) == (4, 2, 6, "f" * 64)
    assert path.stat().st_size == header.size
    assert sorted(os.listdir(path.parent)) == ["s"], "no temporary file stays"


@pytest.mark.parametrize("keep", [9, 47, 60, 300, PAGE, 2 * PAGE, -1])
def test_a_cut_store_is_set_aside(tmp_path: Path, keep: int) -> None:
    path = build(tmp_path / "s", [[1, 2, 3], [4, 5]])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BackendError, match=r"damaged.*set aside as s\.broken.*surefoot datastore build .* --out .*s$"):
        Datastore.open(path)
    assert not path.exists()
    assert (tmp_path / "s.broken").exists()
    with pytest.raises(BadRequest, match=r"cannot be read.*build it anew"):
        Datastore.open(path)
    build(path, [[1, 2]])
    assert Datastore.open(path).header.tokens == 2


@pytest.mark.parametrize("at", [20, 70, 120, PAGE + 9, 2 * PAGE + 1, 3 * PAGE + 6])
def test_a_changed_byte_is_found(tmp_path: Path, at: int) -> None:
    path = build(tmp_path / "s", [[1, 2, 3], [4, 5]])
    data = bytearray(path.read_bytes())
    data[at] ^= 64
    path.write_bytes(data)
    with pytest.raises(BackendError, match="checksum"):
        Datastore.open(path)
    assert (tmp_path / "s.broken").read_bytes() == data


def test_the_message_names_the_command_that_built_it(tmp_path: Path) -> None:
    path = build(tmp_path / "s", [[1, 2, 3], [4, 5]])
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BackendError, match=r"datastore build 'my texts' --model tiny --out"):
        Datastore.open(path)


def test_large_stores_are_verified_when_asked_and_lookups_stay_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SMALL", 0)
    path = build(tmp_path / "s", [[1, 2, 3]])
    data = bytearray(path.read_bytes())
    data[2 * PAGE : 2 * PAGE + 8] = (2**31 - 1).to_bytes(4, "little") * 2  # both places point out of the text
    path.write_bytes(data)
    assert Datastore.open(path).rings([1, 2], 4, 1, 8, 3) == []
    with pytest.raises(BackendError, match="checksum of its order"):
        Datastore.open(path, verify=True)


def test_arrays_that_contradict_each_other_are_refused_at_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SMALL", 0)
    path = build(tmp_path / "s", [[1, 2, 3]])
    data = bytearray(path.read_bytes())
    data[PAGE : PAGE + 4] = bytes(4)  # the first break
    path.write_bytes(data)
    with pytest.raises(BackendError, match="contradict"):
        Datastore.open(path)


def test_files_that_are_not_stores_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    for content in (b"", b"hello", MAGIC[:5]):
        other.write_bytes(content)
        with pytest.raises(BadRequest, match="not a datastore"):
            Datastore.open(other)
        assert other.read_bytes() == content
    other.write_bytes(b"hello")
    with pytest.raises(BadRequest, match="exists and is not a datastore"):
        build(other, [[1, 2]])
    with pytest.raises(BadRequest, match="exists and is not a datastore"):
        build(tmp_path, [[1, 2]])
    assert other.read_bytes() == b"hello"


def test_another_format_is_told_from_damage(tmp_path: Path) -> None:
    path = build(tmp_path / "s", [[1, 2]])
    data = bytearray(path.read_bytes())
    data[8] = 200
    path.write_bytes(data)
    with pytest.raises(Unsupported, match="format 200"):
        Datastore.open(path)
    assert path.exists()


def test_a_failed_write_leaves_the_old_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(tmp_path / "s", [[1, 2]])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BackendError, match="No space left"):
        build(path, [[3, 4, 5]])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize("documents", [[[1, 50]], [[1, -1, 2]], [[-7, 2]]])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, documents: list[list[int]]) -> None:
    with pytest.raises(BadRequest, match=r"0\.\.49"):
        build(tmp_path / "s", documents)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("documents", [[], [[]], [[1], [2], [3]]])
def test_nothing_to_retrieve_is_refused(tmp_path: Path, documents: list[list[int]]) -> None:
    with pytest.raises(BadRequest, match="no document of two tokens"):
        build(tmp_path / "s", documents)


# ---- folders

CODEC = ToyCodec([chr(c) for c in range(128)])


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_a_folder_gives_its_texts_and_tells_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfab\r\ncd")
    (tmp_path / "sub" / "a.md").write_text("xy")
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "latin.txt").write_bytes(b"gr\xfc\xdfe")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    np.save(tmp_path / "t.npy", np.array([5, 6, 7], np.uint16))
    np.save(tmp_path / "wide.npy", np.zeros((2, 2), np.int64))
    np.save(tmp_path / "real.npy", np.zeros(2))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:-2])
    (tmp_path / "lines.jsonl").write_text('[1, 2]\n\n{"tokens": [3]}\n{"text": "hi", "id": 7}\n')
    (tmp_path / "bad.jsonl").write_text("[1, 2]\n{]\n")
    (tmp_path / "odd.jsonl").write_text('[1, 2]\n{"id": 7}\n')
    build(tmp_path / "store", [[1, 2]])
    corpus = gather(tmp_path, CODEC)
    wanted = [ids("ab\ncd"), [1, 2], [3], ids("hi"), [5, 6, 7], ids("xy")]
    assert [document.tolist() for document in corpus.documents] == wanted
    assert (corpus.files, corpus.tokens, corpus.unmatched) == (4, sum(map(len, wanted)), 0)
    reasons = dict(corpus.skipped)
    assert len(reasons) == len(corpus.skipped)
    told = {
        "binary": "zero bytes",
        "latin.txt": "UTF-8",
        "empty.txt": "empty",
        ".hidden": "hidden file",
        ".git/": "hidden folder",
        "lost": "cannot be read",
        "loop/": "link",
        "pipe": "regular",
        "wide.npy": "2 dimensions",
        "real.npy": "float64",
        "cut.npy": "readable",
        "bad.jsonl": "line 2",
        "odd.jsonl": "line 2",
        "store": "datastore",
    }
    assert reasons.keys() == told.keys()
    for name, part in told.items():
        assert part in reasons[name], name


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "b.txt").write_text("cd")
    plain = Path.open

    def guarded(self: Path, *args: object, **options: object) -> object:
        if self.name == "a.txt":
            raise PermissionError(13, "Permission denied")
        return plain(self, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", guarded)
    corpus = gather(tmp_path, CODEC)
    assert [document.tolist() for document in corpus.documents] == [ids("cd")]
    assert corpus.skipped == [("a.txt", "cannot be read (Permission denied)")]


@pytest.mark.parametrize("glob,wanted", [("*.md", ["sub/a.md"]), ("sub/*", ["sub/a.md", "sub/c.txt"]), ("*", 3), ("*.rst", [])])
def test_a_pattern_chooses_by_name_or_path(tmp_path: Path, glob: str, wanted: list[str] | int) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "sub/a.md", "sub/c.txt"):
        (tmp_path / name).write_text("xx")
    corpus = gather(tmp_path, CODEC, glob)
    count = wanted if isinstance(wanted, int) else len(wanted)
    assert (corpus.files, corpus.unmatched) == (count, 3 - count)


def test_the_limit_cuts_and_tells(tmp_path: Path) -> None:
    for name, text in (("a", "abcd"), ("b", "efgh"), ("c", "ij")):
        (tmp_path / name).write_text(text)
    corpus = gather(tmp_path, CODEC, most=6)
    assert [document.tolist() for document in corpus.documents] == [ids("abcd"), ids("ef")]
    assert [name for name, _ in corpus.skipped] == ["b", "c"]
    whole = gather(tmp_path, CODEC, most=8)
    assert [name for name, _ in whole.skipped] == ["c"], "b was taken whole"
    assert gather(tmp_path, CODEC, most=10).skipped == []
    with pytest.raises(BadRequest, match="max-tokens"):
        gather(tmp_path, CODEC, most=1)


def test_long_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.drafters.datastore_files._CHUNK", 5)
    text = "".join(f"line {i}\n" for i in range(20))
    (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_bytes(b"0123456789\n" * 3 + b"\xff")
    corpus = gather(tmp_path, CODEC)
    assert [document.tolist() for document in corpus.documents] == [ids(text)]
    assert corpus.skipped == [("b", "not UTF-8 text")]


@pytest.mark.parametrize("make", [lambda p: np.save(p / "t.npy", [1, 128]), lambda p: (p / "t.jsonl").write_text("[3, -1]")])
def test_foreign_ids_in_token_files_are_an_error_that_names_the_file(tmp_path: Path, make: object) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(BadRequest, match=r"t\.(npy|jsonl): token id (128|-1) .*0 to 127"):
        gather(tmp_path, CODEC)


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for name, why in (("f", "is a file"), ("g", "does not exist")):
        with pytest.raises(BadRequest, match=why):
            gather(tmp_path / name, CODEC)


# ---- the command


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_build_and_info(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, out = tmp_path / "texts", tmp_path / "my.store"
    texts.mkdir()
    (texts / "a.txt").write_text("the cat sat")
    (texts / "b.txt").write_text("on the mat")
    (texts / "c.bin").write_bytes(b"\xff\xfe\0")
    words = ["datastore", "build", str(texts), "--model", str(model), "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{out}: 21 tokens in 2 documents, ")
    assert f"--drafter retrieval:store={out}" in said.out
    assert said.err == "left out c.bin: not UTF-8 text\n"
    assert main(["datastore", "info", str(out), "--verify"]) == 0
    assert "checksums are right" in capsys.readouterr().out
    assert main([*words, "--glob", "a*", "--json"]) == 0, "an older store is replaced"
    found = json.loads(capsys.readouterr().out)
    assert (found["tokens"], found["files"], found["unmatched"], found["skipped"]) == (11, 1, 2, [])
    assert main(["datastore", "info", str(out), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["verified"] is True
    assert {key: found[key] for key in again if key != "verified"} == {k: v for k, v in again.items() if k != "verified"}
    assert is_datastore(out)


def test_the_command_refuses_in_one_line(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, out = tmp_path / "texts", tmp_path / "s"
    texts.mkdir()

    def fails(*words: str) -> str:
        return error_of(capsys, main(["datastore", *words]))

    assert "0 do not match" in fails("build", str(texts), "-m", str(model), "-o", str(out))
    (texts / "c.bin").write_bytes(b"\0")
    assert "c.bin: not text" in fails("build", str(texts), "-m", str(model), "-o", str(out))
    assert "1 do not match --glob '*.md'" in fails("build", str(texts), "-m", str(model), "-o", str(out), "--glob", "*.md")
    assert "is not a folder" in fails("build", str(texts / "c.bin"), "-m", str(model), "-o", str(out))
    assert "max-tokens=0" in fails("build", str(texts), "-m", str(model), "-o", str(out), "--max-tokens", "0")
    assert "is not a datastore" in fails("info", str(texts / "c.bin"))
    assert "--out" in fails("build", str(texts), "-m", str(model))
    assert "unknown option or word '--fast'" in fails("info", str(out), "--fast")
    assert "ACTION" in fails()
    assert not out.exists()
    build(out, [[1, 2, 3]])
    out.write_bytes(out.read_bytes()[:-1])
    assert "set aside as s.broken" in fails("info", str(out))


def test_many_files_left_out_are_summed_up(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("some text")
    for i in range(30):
        (texts / f"z{i:02}").write_bytes(b"\0")
    assert main(["datastore", "build", str(texts), "-m", str(model), "-o", str(tmp_path / "s"), "--glob", "[az]*"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "left out 10 more (--json lists them)"
