"""Tokenizers from folders and GGUF files, chat templates, incremental detokenizing, vocabularies, prompt files."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from surefoot.errors import BackendError, BadRequest, Unsupported, VocabMismatch
from surefoot.text import Codec, read_prompt
from surefoot.text.chat import compile_template, render
from surefoot.text.special import Special

CORPUS = [
    "The quick brown fox jumps over the lazy dog. 1234567890 12 345 2024",
    "def add(a, b):\n    return a + b\n\n\nfor i in range(10):\n\tprint(i)",
    "naïve café — über, ½ of 日本語 and 😀👩‍👩‍👧; don't, we've, I'LL",
] * 4
TEXTS = [
    *CORPUS[:3],
    "  two  spaces\t\ttabs \r\n\r\n end   ",
    "2024-12-31 3.14159 ٣٤ ①",
    "漢字とかな👩‍👩‍👧‍👦🏳️‍🌈",
    "<|im_start|>user\nHi<|im_end|>",
    "\u00a0\u2003\ufeff",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return str(tokenizer.to_str())


def trained() -> Tokenizer:
    """A byte-level tokenizer with single digits, as SmolLM has."""
    return Tokenizer.from_str(_trained())


SIZE = trained().get_vocab_size()


def byte_fallback() -> Tokenizer:
    """A SentencePiece-like tokenizer: bytes of unknown characters are tokens of their own."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "é", "▁a", "�"]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, **files: Any) -> Path:
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, value in {"config": {"model_type": "llama"}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


def write_gguf(path: Path, pre: str | None = "smollm", change: Callable[[gguf.GGUFWriter], None] | None = None) -> Path:
    """A GGUF file with the trained tokenizer, two padding tokens, and an embedding."""
    model = json.loads(_trained())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, "[PAD0]", "[PAD1]"])
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)) + [5, 5])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens) + 2, 4), np.float32))
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(
        tmp_path / "model",
        trained(),
        tokenizer_config={"chat_template": CHATML, "eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"},
        generation_config={"eos_token_id": [2, 0]},
    )


@pytest.fixture
def codec(folder: Path) -> Codec:
    return Codec.load(folder)


class TestGguf:
    def test_same_ids_as_the_original(self, tmp_path: Path) -> None:
        codec, original = Codec.load(write_gguf(tmp_path / "m.gguf"), tmp_path / "cache"), trained()
        for text in TEXTS:
            assert codec.encode(text) == original.encode(text).ids, text
            assert codec.decode(codec.encode(text), skip_special=False) == text
        # Digit runs are what a conversion that ignores the pre-tokenizer gets wrong.
        assert len(codec.encode("12345")) == 5

    def test_what_the_metadata_says(self, tmp_path: Path) -> None:
        codec = Codec.load(write_gguf(tmp_path / "m.gguf"), tmp_path / "cache")
        assert codec.eos_ids == (2,)
        assert (codec.vocab_size, codec.special.padded_size) == (SIZE, SIZE + 2)
        assert codec.special.named == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        assert codec.chat([{"role": "user", "content": "x"}])[0] == 1
        more = write_gguf(tmp_path / "n.gguf", change=lambda w: w.add_eot_token_id(0))
        assert Codec.load(more, tmp_path / "cache").eos_ids == (2, 0)

    def test_bos_only_if_asked_for(self, tmp_path: Path) -> None:
        plain = Codec.load(write_gguf(tmp_path / "m.gguf"), tmp_path / "cache")
        asked = write_gguf(tmp_path / "n.gguf", change=lambda w: w.add_add_bos_token(True))
        asking = Codec.load(asked, tmp_path / "cache")
        ids = plain.prompt("dog")
        assert ids[0] != 1
        assert asking.prompt("dog") == [1, *ids]
        assert asking.encode("dog", special=False) == ids
        assert asking.chat([{"role": "user", "content": "x"}]) == plain.chat([{"role": "user", "content": "x"}])

    @pytest.mark.parametrize("pre, tokens", [("gpt-2", 1), ("llama-bpe", 1), ("qwen2", 2)])
    def test_pre_tokenizers(self, tmp_path: Path, pre: str, tokens: int) -> None:
        codec = Codec.load(write_gguf(tmp_path / "m.gguf", pre), tmp_path / "cache")
        split = codec.tokenizer.pre_tokenizer.pre_tokenize_str("12")
        assert len(split) == tokens
        for text in TEXTS:
            assert codec.decode(codec.encode(text, special=False), skip_special=False) == text
        assert (codec.prompt("dog")[0] == 1) is (pre == "llama-bpe")

    @pytest.mark.parametrize("pre", ["no-such-pre", None])
    def test_unknown_pre_tokenizer(self, tmp_path: Path, pre: str | None) -> None:
        file = write_gguf(tmp_path / "m.gguf", pre)
        with pytest.raises(Unsupported, match=r"tokenizer\.json beside the file"):
            Codec.load(file, tmp_path / "cache")
        trained().save(str(tmp_path / "tokenizer.json"))
        assert Codec.load(file, tmp_path / "cache").encode("12 dogs") == trained().encode("12 dogs").ids

    def test_foreign_tokenizer_beside_the_file_is_not_taken(self, tmp_path: Path) -> None:
        byte_fallback().save(str(tmp_path / "tokenizer.json"))
        codec = Codec.load(write_gguf(tmp_path / "m.gguf"), tmp_path / "cache")
        assert codec.encode("dog") == trained().encode("dog").ids

    def test_converted_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = write_gguf(tmp_path / "m.gguf")
        first = Codec.load(file, tmp_path / "cache")
        monkeypatch.setattr("surefoot.text.codec.read_header", lambda _: pytest.fail("read again"))
        second = Codec.load(file, tmp_path / "cache")
        assert second.special == first.special
        assert second.fingerprint == first.fingerprint
        assert "transformers" not in vars(sys.modules["surefoot.text.codec"])

    def test_without_tokenizer(self, tmp_path: Path) -> None:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with pytest.raises(BackendError, match="has no tokenizer"):
            Codec.load(tmp_path / "m.gguf", tmp_path / "cache")


class TestFolder:
    def test_load(self, codec: Codec) -> None:
        assert codec.eos_ids == (2, 0)
        assert codec.vocab_size == SIZE
        assert codec.has_template
        assert codec.encode("dog") == trained().encode("dog").ids
        assert codec.token(2) == "<|im_end|>"

    def test_end_tokens(self, tmp_path: Path) -> None:
        config = {"config": {"eos_token_id": 0, "vocab_size": 512}}
        codec = Codec.load(write_folder(tmp_path / "a", trained(), **config))
        assert (codec.eos_ids, codec.special.padded_size) == ((0,), 512)
        config["generation_config"] = {"eos_token_id": 2}
        assert Codec.load(write_folder(tmp_path / "b", trained(), **config)).eos_ids == (2,)
        config["generation_config"] = {"eos_token_id": [9999, 1]}
        assert Codec.load(write_folder(tmp_path / "c", trained(), **config)).eos_ids == (1,)
        assert Codec.load(write_folder(tmp_path / "d", trained())).eos_ids == ()

    def test_bos_by_the_tokenizer(self, tmp_path: Path) -> None:
        tokenizer = trained()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
        codec = Codec.load(write_folder(tmp_path / "a", tokenizer))
        assert codec.prompt("dog")[0] == 0
        assert codec.encode("dog", special=False)[0] != 0

    def test_truncation_and_padding_are_off(self, tmp_path: Path) -> None:
        tokenizer = trained()
        tokenizer.enable_truncation(2)
        tokenizer.enable_padding(length=9)
        codec = Codec.load(write_folder(tmp_path / "a", tokenizer))
        assert codec.encode(CORPUS[0]) == trained().encode(CORPUS[0]).ids

    @pytest.mark.parametrize(
        "write",
        [
            lambda f: (f / "chat_template.jinja").write_text("new"),
            lambda f: (f / "chat_template.json").write_text('{"chat_template": "new"}'),
            lambda f: (f / "tokenizer_config.json").write_text(
                '{"chat_template": [{"name": "rag", "template": "x"}, {"name": "default", "template": "new"}]}'
            ),
        ],
    )
    def test_places_of_the_template(self, folder: Path, write: Callable[[Path], Any]) -> None:
        write(folder)
        assert Codec.load(folder).special.template == "new"

    def test_missing_and_broken(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")
        with pytest.raises(BackendError, match="cannot be read as a tokenizer"):
            Codec.load(folder)
        (folder / "tokenizer.json").unlink()
        with pytest.raises(Unsupported, match=r"has no tokenizer\.json: copy it"):
            Codec.load(folder)


class TestPrompt:
    def test_forms(self, codec: Codec) -> None:
        message = [{"role": "user", "content": "dog"}]
        assert codec.prompt("dog") == codec.encode("dog")
        assert codec.prompt(message) == codec.chat(message)
        assert codec.prompt([5, np.int64(6)]) == [5, 6]

    @pytest.mark.parametrize(
        "prompt, says",
        [
            ("", "prompt is empty"),
            ([], "prompt is empty"),
            ([1, -1], r"prompt\[1\] is -1"),
            ([SIZE], f"token ids are 0 to {SIZE - 1}"),
            ([True], r"prompt\[0\] is True"),
            ([1, "a"], r"prompt\[1\] is a str"),
            (["a"], r"prompt\[0\] is a str"),
            (b"dog", "prompt is a bytes"),
            (7, "prompt is a int"),
            ("a\udcff", "unpaired surrogate at character 1"),
        ],
    )
    def test_bad(self, codec: Codec, prompt: Any, says: str) -> None:
        with pytest.raises(BadRequest, match=says) as caught:
            codec.prompt(prompt)
        assert "\n" not in str(caught.value)


class TestChat:
    def test_special_tokens_are_parsed(self, codec: Codec) -> None:
        ids = codec.chat([{"role": "user", "content": "dog"}])
        assert ids == [1, *codec.encode("user\ndog"), 2, *codec.encode("\n"), 1, *codec.encode("assistant\n")]
        assert codec.decode(ids, skip_special=False) == codec.chat_text([{"role": "user", "content": "dog"}])
        assert (
            codec.chat([{"role": "user", "content": "dog"}], add_generation_prompt=False) == ids[: -len(ids) + ids.index(2) + 2]
        )

    @pytest.mark.parametrize(
        "messages, says",
        [
            ([{"role": "wizard", "content": "x"}], r"messages\[0\]\.role is 'wizard': use one of system"),
            ([{"content": "x"}], r"messages\[0\]\.role is None"),
            ([{"role": "user"}], r"messages\[0\]\.content is NoneType"),
            ([{"role": "user", "content": "x"}, "y"], r"messages\[1\] is a str"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] is 'image_url'"),
        ],
    )
    def test_bad_messages(self, codec: Codec, messages: Any, says: str) -> None:
        with pytest.raises(BadRequest, match=says):
            codec.prompt(messages)
        with pytest.raises(BadRequest, match="list of messages is empty"):
            codec.chat([])

    def test_text_parts_and_developer(self, codec: Codec) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
        plain = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}]
        assert codec.chat(messages) == codec.chat(plain)

    def test_no_template(self, tmp_path: Path) -> None:
        codec = Codec.load(write_folder(tmp_path / "a", trained()))
        with pytest.raises(BadRequest, match="no chat template: pass a plain prompt"):
            codec.chat([{"role": "user", "content": "x"}])

    @pytest.mark.parametrize(
        "template, says",
        [
            ("{{ raise_exception('user first') }}", "refuses these messages: user first"),
            ("{% for %}", "template is broken"),
            ("{{ messages[9].x.y }}", "template fails"),
            ("{{ 1 + 'a' }}", "template fails"),
            ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "template fails"),
        ],
    )
    def test_bad_templates(self, template: str, says: str) -> None:
        codec = Codec(trained(), Special(template=template))
        with pytest.raises(BadRequest, match=says):
            codec.chat([{"role": "user", "content": "x"}])

    def test_as_transformers_renders(self) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        template = """{{ bos_token }}
            {%- for m in messages %}
                {%- if loop.index > 3 %}{% break %}{% endif %}
                {% generation %}{{ m.role }}: {{ m.content | trim }}{% endgeneration %}
            {% endfor %}
            {{ tools | tojson }} {{ tools | tojson(indent=2) }} {{ '<&>"é' | tojson }}
            {{ strftime_now('%Y') }}{% if add_generation_prompt %}go{% endif %}
        """
        messages = [{"role": role, "content": f" {role} é😀 "} for role in ("system", "user", "assistant", "user")]
        tools = [{"name": "é", "x": [1, None, True]}]
        theirs, _ = render_jinja_template(
            [messages], tools=tools, chat_template=template, add_generation_prompt=True, bos_token="<s>"
        )
        # transformers hands tools on as given only if they are dicts.
        ours = render(compile_template(template), messages, tools=tools, add_generation_prompt=True, bos_token="<s>")
        assert ours == theirs[0]


def assert_streams(codec: Codec, ids: list[int], skip_special: bool) -> None:
    decoder = codec.decoder(skip_special)
    pieces = [decoder.push(i) for i in ids]
    assert "".join(pieces) + decoder.flush() == codec.decode(ids, skip_special)
    assert decoder.flush() == ""


@cache
def byte_level_codec() -> Codec:
    return Codec(trained(), Special())


@cache
def byte_fallback_codec() -> Codec:
    return Codec(byte_fallback(), Special())


class TestDecoder:
    @given(ids=st.lists(st.integers(0, SIZE + 2)), skip_special=st.booleans())
    def test_byte_level(self, ids: list[int], skip_special: bool) -> None:
        assert_streams(byte_level_codec(), ids, skip_special)

    @given(ids=st.lists(st.integers(0, 266)), skip_special=st.booleans())
    def test_byte_fallback(self, ids: list[int], skip_special: bool) -> None:
        assert_streams(byte_fallback_codec(), ids, skip_special)

    @given(data=st.binary(max_size=40), skip_special=st.booleans())
    def test_any_bytes(self, data: bytes, skip_special: bool) -> None:
        """One token a byte: valid, cut and invalid sequences."""
        alphabet = gguf_bytes_to_unicode()
        codec = byte_level_codec()
        ids = [codec.tokenizer.token_to_id(alphabet[byte]) for byte in data]
        assert_streams(codec, ids, skip_special)
        assert codec.decode(ids) == data.decode("utf-8", errors="replace")
        assert_streams(byte_fallback_codec(), [3 + byte for byte in data] + [260], skip_special)

    @given(text=st.text(max_size=60))
    def test_text_comes_back(self, text: str) -> None:
        codec = byte_level_codec()
        assert_streams(codec, codec.encode(text), False)

    @pytest.mark.parametrize("text", TEXTS)
    def test_no_half_characters(self, codec: Codec, text: str) -> None:
        decoder = codec.decoder(skip_special=False)
        pieces = [decoder.push(i) for i in codec.encode(text)]
        assert "�" not in "".join(pieces)
        assert "".join(pieces) == text

    def test_text_comes_at_once(self, codec: Codec) -> None:
        decoder = codec.decoder()
        pieces = [decoder.push(i) for i in codec.encode("The quick 1 dog")]
        assert all(pieces)

    def test_special_tokens(self, codec: Codec) -> None:
        ids = codec.encode("a<|im_end|>b")
        assert codec.decode(ids) == "ab"
        assert codec.decode(ids, skip_special=False) == "a<|im_end|>b"
        assert_streams(codec, ids, True)


def gguf_bytes_to_unicode() -> dict[int, str]:
    """byte -> its letter in byte-level vocabularies: printable ones stand for themselves, the rest from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(rest)}


class TestVocabulary:
    def test_same(self, codec: Codec, tmp_path: Path) -> None:
        other = Codec.load(write_gguf(tmp_path / "m.gguf"), tmp_path / "cache")
        report = codec.compare(other)
        assert report.same
        assert report.compatible
        assert (report.sizes, report.padded) == ((SIZE, SIZE), (None, SIZE + 2))
        assert codec.fingerprint == other.fingerprint
        assert report.explain() == f"same vocabulary ({SIZE} tokens)"
        report.require()

    def test_extra_tokens_do_no_harm(self, codec: Codec) -> None:
        tokenizer = trained()
        tokenizer.add_special_tokens([AddedToken("<tool>", special=True)])
        report = codec.compare(Codec(tokenizer, Special()))
        assert not report.same
        assert report.compatible
        assert (report.only, report.differing, report.first) == ((0, 1), 0, None)
        assert codec.fingerprint != Codec(tokenizer, Special()).fingerprint
        report.require()

    def test_different(self, codec: Codec) -> None:
        other = Codec(byte_fallback(), Special())
        report = codec.compare(other)
        assert not report.compatible
        assert report.first == (0, "<|endoftext|>", "<unk>")
        assert report.differing > 200
        with pytest.raises(VocabMismatch, match=r"first is 0: '<\|endoftext\|>' against '<unk>'"):
            report.require()

    def test_two_swapped_tokens_are_noticed(self, codec: Codec) -> None:
        model = json.loads(_trained())
        vocab = model["model"]["vocab"]
        by_id = {i: token for token, i in vocab.items()}
        vocab[by_id[300]], vocab[by_id[301]] = 301, 300
        report = codec.compare(Codec(Tokenizer.from_str(json.dumps(model)), Special()))
        assert (report.differing, report.first) == (2, (300, by_id[300], by_id[301]))


class TestReadPrompt:
    def test_sources(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "p.txt"
        file.write_bytes(b"\xef\xbb\xbf" + "é\r\n".encode())
        assert read_prompt(file) == "é\r\n"
        assert read_prompt(str(file)) == "é\r\n"
        assert read_prompt(io.BytesIO("日".encode())) == "日"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"in")))
        assert read_prompt("-") == "in"

    @pytest.mark.parametrize(
        "data, at", [(b"ab\xff", 2), (b"\xef\xbb\xbfab\xff", 5), ("é".encode()[:1], 0), (b"a\xed\xa0\x80", 1)]
    )
    def test_invalid(self, tmp_path: Path, data: bytes, at: int) -> None:
        file = tmp_path / "p.txt"
        file.write_bytes(data)
        says = re.escape(f"p.txt is not valid UTF-8 (byte {at} is 0x{data[at]:02x}): save it as UTF-8")
        with pytest.raises(BadRequest, match=says):
            read_prompt(file)

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match=r"cannot read the prompt from .*check the path"):
            read_prompt(tmp_path / "none")
