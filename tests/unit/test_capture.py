"""Captured text: whole documents, activations beside their tokens, shards that go on where they ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from contract.conftest import tiny

from surefoot.backends.torch import TorchModel
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.errors import BackendError, BadRequest
from surefoot.train import capture as module
from surefoot.train.capture import Capture, Settings
from surefoot.train.shards import Shards

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7]]
SETTINGS = Settings(documents=7, length=12, per_shard=3, rows=4, temperatures=(0.0, 0.8), top_k=5, seed=3)


class Words:
    """A tokenizer as far as generated turns need one: a letter a token, with a template of two marks."""

    has_template = True
    vocab_size = 53
    eos_ids = (0,)

    def encode(self, text, special=True):
        return [1 + ord(c) % 50 for c in text]

    def chat_text(self, messages, add_generation_prompt=True):
        return "".join(f"<{m['role']}>{m['content']}</turn>" for m in messages) + ("<said>" if add_generation_prompt else "")

    def prompt(self, prompt):
        if isinstance(prompt, str):
            return self.encode(prompt)
        return self.encode(self.chat_text(prompt)) if isinstance(prompt[0], dict) else list(prompt)

    def decoder(self):
        return Letters()


class Letters:
    def push(self, token):
        return " " if token % 4 == 0 else chr(96 + token % 26)

    def flush(self):
        return ""


@pytest.fixture(scope="module")
def model():
    return TorchModel(tiny("LlamaConfig"), max_rows=8)


def captured(model, folder, settings=SETTINGS, prompts=PROMPTS, taps=(1,), **more):
    Capture(model, Words(), folder, settings, taps, target={"name": "tiny"}, prompts=prompts).run(**more)
    return Shards(folder)


def test_documents_are_prompts_and_what_the_model_says(model, tmp_path):
    shards = captured(model, tmp_path)
    assert len(shards) == 7
    assert shards.taps == (1, model.traits.last)
    ends = model.ends()
    greedy = 0
    for i in range(len(shards)):
        document = shards.document(i, shards.taps)
        tokens = document.tokens.tolist()
        prompt = PROMPTS[i % 3]
        assert tokens[: document.answer] == prompt
        assert len(tokens) == len(prompt) + 12
        # the activations of the last token are never computed
        assert all(torch.equal(hidden[-1], hidden[-2]) for hidden in document.hidden.values())
        assert not any(torch.equal(hidden[-2], hidden[-3]) for hidden in document.hidden.values())
        assert all(hidden.shape == (len(tokens), 32) for hidden in document.hidden.values())
        logits = document.hidden[model.traits.last].float() @ ends.head.T
        engine = Engine(model)
        row = engine.add(prompt, SamplingParams(max_tokens=12, temperature=0.0))
        while not row.done:
            engine.step()
        engine.close()
        if row.tokens == tokens:
            greedy += 1
            assert logits.argmax(-1).tolist()[len(prompt) - 1 : -1] == tokens[len(prompt) :]
    assert 0 < greedy < 7  # both temperatures were drawn


def test_activations_are_those_of_the_whole_text(model, tmp_path):
    shards = captured(model, tmp_path)
    document = shards.document(4, (1,))
    with torch.no_grad():
        whole = model.model(document.tokens[None].long(), output_hidden_states=True).hidden_states[1][0]
    assert torch.allclose(document.hidden[1][:-1].float(), whole[:-1], atol=2e-2)


def test_the_end_is_a_label(model, tmp_path):
    """Ends that a model says are in the text, so that a head can learn to say them."""
    first = captured(model, tmp_path / "first", replace(SETTINGS, temperatures=(0.0,)))
    document = first.document(0)
    end = int(document.tokens[document.answer + 3])

    class Ends(Words):
        eos_ids = (end,)

    Capture(model, Ends(), tmp_path / "ended", replace(SETTINGS, temperatures=(0.0,)), (1,), target={}, prompts=PROMPTS).run()
    shards = Shards(tmp_path / "ended")
    ended = [shards.document(i, shards.taps) for i in range(7)]
    assert int(ended[0].tokens[-1]) == end
    assert all(end not in each.tokens[each.answer : -1].tolist() for each in ended)
    assert all(len(hidden) == len(each.tokens) for each in ended for hidden in each.hidden.values())


def test_the_model_writes_both_sides(model, tmp_path):
    shards = captured(model, tmp_path, prompts=())
    for i in range(len(shards)):
        document = shards.document(i)
        text = Words().encode("<user>")
        assert document.tokens[: len(text)].tolist() == text
        assert document.answer > len(Words().encode("<user></turn><said>"))


def test_a_killed_capture_goes_on_at_the_next_shard(model, tmp_path):
    whole = captured(model, tmp_path / "whole")

    class Killed(Exception): ...

    def killed(documents, tokens):
        raise Killed

    with pytest.raises(Killed):
        captured(model, tmp_path / "parts", tell=killed)
    assert len(list((tmp_path / "parts").glob("shard-*.safetensors"))) == 1
    parts = captured(model, tmp_path / "parts")
    assert len(parts) == len(whole) == 7
    for i in range(7):
        assert torch.equal(parts.document(i).tokens, whole.document(i).tokens)


def test_a_full_disk_keeps_the_shards_before_it(model, tmp_path, monkeypatch):
    write, calls = module.write_shard, []

    def full(folder, number, documents):
        calls.append(number)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(folder, number, documents)

    monkeypatch.setattr(module, "write_shard", full)
    with pytest.raises(BackendError, match="free some space"):
        captured(model, tmp_path)
    assert len(Shards(tmp_path)) > 0
    assert not list(tmp_path.glob("*.part"))
    monkeypatch.setattr(module, "write_shard", write)
    assert len(captured(model, tmp_path)) == 7


def test_other_settings_need_another_folder(model, tmp_path):
    captured(model, tmp_path)
    with pytest.raises(BadRequest, match="another settings"):
        captured(model, tmp_path, Settings(documents=7, length=11, per_shard=3, seed=3))
    more = Settings(documents=9, length=12, per_shard=3, rows=2, temperatures=(0.0, 0.8), top_k=5, seed=3)
    assert len(captured(model, tmp_path, more)) == 9  # more of the same is no other setting


@pytest.mark.parametrize("bad", [{"documents": 0}, {"temperatures": ()}, {"temperatures": (-1.0,)}, {"length": 0}])
def test_bad_settings(bad):
    with pytest.raises(BadRequest):
        Settings(**{"documents": 4, **bad})


def test_no_room_for_answers(model, tmp_path):
    with pytest.raises(BadRequest, match="leave no room"):
        captured(model, tmp_path, Settings(documents=1, length=250))


def test_a_damaged_set_is_refused(model, tmp_path):
    captured(model, tmp_path)
    (tmp_path / "shard-00001.safetensors").write_bytes(b"short")
    with pytest.raises(BadRequest, match="damaged"):
        Shards(tmp_path)
    (tmp_path / "set.json").write_text(json.dumps({})[:1])
    with pytest.raises(BadRequest, match="damaged"):
        captured(model, tmp_path)
