"""Vocabularies of draft and target: padding is harmless, another meaning of an id is mapped, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from behaviour.grid import LENGTHS, plain, same, words
from behaviour.letters import EOS, SIZE, codec, table, target, tokenizer
from contract.conftest import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from toys import fixed

from surefoot import loader
from surefoot.backends.torch import TorchModel
from surefoot.core.params import SamplingParams
from surefoot.drafters.cross import CrossDrafter
from surefoot.drafters.model import ModelDrafter
from surefoot.errors import SurefootError, VocabMismatch
from surefoot.text import Codec
from surefoot.text.crossing import cross
from surefoot.text.special import Special

PADS = [(0, 64), (64, 0), (64, 128), (128, 64)]
"""Padding rows of the target's and of the draft's embedding."""


def drafting(k: int, ours, draft):
    return loader.assemble(ours, "model", draft, "fixed", k)


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8, "seed": 7}, {"temperature": 0.8, "verification": "ratio", "seed": 7}]
)
def test_L67_padded_embeddings_work_both_ways(k, pads, options):
    """Padded ids have the largest logits of all, in both models; still nobody drafts or emits one."""
    unpadded = table(1)
    ours = target(table(1, SIZE + pads[0], padding=50.0))
    draft = target(table(1, SIZE + pads[1], sharpness=1.6, padding=50.0))
    engine = drafting(k, ours, draft)
    found = engine.generate("hello", max_tokens=40, trace=True, **options)
    offered = [token for step in found.stats.trace for token in step.candidates]
    assert len(offered) == found.stats.draft_tokens > 0
    assert max(offered) < SIZE
    assert max(found.token_ids) < SIZE
    assert found.stats.accepted_tokens > 0
    if options.get("verification") != "ratio":
        same(found, plain(unpadded, ours.codec.prompt("hello"), {"max_tokens": 40, **options}, ours.codec))
    engine.close()
    assert draft.model.open_slots == ours.model.open_slots == 0


def resized(rows: int):
    """The tiny model of 53 tokens in an embedding of ``rows``, whose padding rows give the largest logits of all."""
    model = tiny("LlamaConfig")
    before = model.get_output_embeddings().weight.shape[0]
    model.resize_token_embeddings(rows, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[before:] *= 100
    return model


@pytest.fixture(scope="module")
def real():
    made = {rows: TorchModel(resized(rows), max_rows=4) for rows in (53, 64, 80)}
    for model in made.values():
        model.adopt(model.probe())
    return made


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("rows", [(53, 64), (64, 53), (64, 80), (80, 64)])
def test_L67_padded_embeddings_of_real_models(real, rows, k):
    """The same through transformers. The padded draft is the target but for its padding: all that it drafts is right."""
    ours, draft = (real[n] for n in rows)
    engine = fixed(ours, ModelDrafter(draft, ours.traits.vocab_size, known=53), k, codec=words(53))
    found = engine.generate([3, 1, 4, 1, 5], max_tokens=8)
    same(found, plain(real[53], [3, 1, 4, 1, 5], {"max_tokens": 8}, words(53)))
    assert found.stats.accepted_tokens == found.stats.draft_tokens > 0


@pytest.mark.parametrize("swap", [[(0, 255)], [(7, 9)], [(254, 255)], [(i, 255 - i) for i in range(128)]])
def test_L68_another_tokenizer_is_refused_before_generation_if_equal_ids_are_asked_for(swap):
    ours, draft = target(), target(own=codec(swap))
    first = min(min(pair) for pair in swap)
    said = f"{2 * len(swap)} ids differ, the first is {first}: {ours.codec.table[first]!r} against {draft.codec.table[first]!r}"
    with pytest.raises(VocabMismatch) as error:
        loader.assemble(ours, "model:vocab=equal", draft, "fixed", 4)
    assert said in str(error.value)
    assert "use a draft model of the target's family" in str(error.value)
    assert "\n" not in str(error.value)
    assert ours.model.nodes_scored == draft.model.nodes_scored == ours.model.open_slots == draft.model.open_slots == 0


def test_L68_vocabularies_without_a_common_id_are_refused():
    ours = codec()
    report = ours.compare(ours)
    assert report.compatible
    nothing = Codec(tokenizer(), ours.special)
    nothing.__dict__["table"] = {}
    with pytest.raises(VocabMismatch, match="257 and 0 ids are on one side only"):
        ours.compare(nothing).require()


def crossing(k: int, ours, draft, way: str = "auto"):
    """An engine whose draft model has a tokenizer of its own."""
    found = cross(ours.codec, draft.codec, way).require()
    return fixed(ours.model, CrossDrafter(draft.model, found.bridge, ours.model.traits.vocab_size), k, codec=ours.codec)


@pytest.mark.parametrize("differing", [1, 2, 5])
def test_L69_differing_ids_are_told_and_refused_only_if_asked_to(differing):
    ours = codec(added=["<end>", *(f"<extra{i}>" for i in range(differing))])
    draft = codec(added=["<end>", *(f"<other{i}>" for i in range(differing))])
    report = ours.compare(draft)
    assert (report.differing, report.first) == (differing, (SIZE, "<extra0>", "<other0>"))
    said = f"{differing} ids differ, the first is 257: '<extra0>' against '<other0>'"
    with pytest.raises(VocabMismatch, match=said):
        cross(ours, draft, "equal")
    with pytest.warns(RuntimeWarning, match=said) as told:
        found = cross(ours, draft).require().told()
    assert len(told) == 1
    assert (found.greedy, found.sampled, found.found.common) == ("intersection", "intersection", SIZE)
    cross(ours, ours).require().told()  # equal tables: nothing to tell


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.0, "seed": 3, "verification": "ratio"}]
)
def test_L69_a_differing_id_is_never_drafted(k, options):
    """Both say the id often; it means two things, so the drafts go without it, and all else is drafted as before."""

    def often(seed: int):
        model = table(seed, SIZE + 1)
        model.logits[:, SIZE] = 1.5  # among small letters drawn with deviation 2
        return model

    ours, draft = target(often(1), codec(added=["<end>", "<extra>"])), target(often(1), codec(added=["<end>", "<other>"]))
    engine = crossing(k, ours, draft)
    offered = set()
    for prompt in ("hello", "a", "zebra"):
        found = engine.generate(prompt, max_tokens=40, trace=True, **options)
        if "verification" not in options:
            same(found, plain(ours.model, ours.codec.prompt(prompt), {"max_tokens": 40, **options}, ours.codec))
        offered |= {token for step in found.stats.trace for token in step.candidates}
        assert found.stats.accepted_tokens > 0
    assert offered
    assert SIZE not in offered
    engine.close()
    assert draft.model.open_slots == 0


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
def test_L69_ids_that_changed_places_are_mapped(k, options):
    """The draft is the target, but for two letters whose ids are swapped: every draft is right."""
    a, b = (codec().encode(letter)[0] for letter in "eu")
    ours, draft = target(table(1)), target(table(1), codec([(a, b)]))
    order = list(range(SIZE))
    order[a], order[b] = b, a
    draft.model.logits = draft.model.logits[[*order, SIZE]][:, order]
    found = crossing(k, ours, draft).generate("hello", max_tokens=40, **options)
    same(found, plain(ours.model, ours.codec.prompt("hello"), {"max_tokens": 40, **options}, ours.codec))
    assert {a, b} & set(found.token_ids)
    assert found.stats.accepted_tokens == found.stats.draft_tokens > 0


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("longer", ["target", "draft"])
def test_L69_tokens_at_the_end_that_one_side_lacks_do_no_harm(k, longer):
    """The longer side says its extra token often; the shorter one has no such id."""
    extra = codec(added=["<end>", "<extra>"])

    def often(seed: int):
        model = table(seed, SIZE + 1)
        model.logits[:, SIZE] = 1.0  # among small letters drawn with deviation 2
        return model

    if longer == "target":
        ours, draft = target(often(1), extra), target(table(1))
    else:
        ours, draft = target(table(1)), target(often(1), extra)
    assert ours.codec.compare(draft.codec).differing == 0
    engine = drafting(k, ours, draft)
    for seed in range(5):
        options = {"max_tokens": 30, "temperature": 1.0, "seed": seed}
        found = engine.generate("hello", trace=True, **options)
        same(found, plain(ours.model, ours.codec.prompt("hello"), options, ours.codec))
        offered = {token for step in found.stats.trace for token in step.candidates}
        assert longer == "target" or SIZE not in offered
    engine.close()
    assert draft.model.open_slots == 0


@pytest.fixture(scope="module")
def kinds():
    """Rotary and learned positions, the same vocabulary."""
    made = {name: TorchModel(tiny(name), max_rows=4) for name in ("LlamaConfig", "GPT2Config")}
    for model in made.values():
        model.adopt(model.probe())
    return made


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("names", [("LlamaConfig", "GPT2Config"), ("GPT2Config", "LlamaConfig")])
def test_L70_draft_and_target_keep_positions_of_their_own(kinds, names, k):
    """Rotary target with a draft of learned positions, and the reverse: the tokens of plain decoding, and each drafted
    token is what the draft model itself says after prompt, output and draft so far, by one pass over all of it."""
    ours, draft = (kinds[name] for name in names)
    prompt = [7, 3, 7, 3, 9]
    engine = fixed(ours, ModelDrafter(draft, ours.traits.vocab_size), k)
    found = engine.generate(prompt, max_tokens=10, trace=True)
    same(found, plain(ours, prompt, {"max_tokens": 10}))
    text = [*prompt, *found.token_ids]
    checked = 0
    for step in found.stats.trace:
        if step.candidates:
            seen = [*text[: step.position], *step.candidates]
            with torch.no_grad():
                logits = draft.model(torch.tensor([seen])).logits[0]
            assert tuple(logits[step.position - 1 : -1].argmax(-1).tolist()) == step.candidates
            checked += len(step.candidates)
    assert checked == found.stats.draft_tokens > 0


def syllables() -> Codec:
    """A tokenizer of bytes and pairs of letters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(x, y) for x in "aeiou" for y in "nrst"]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(["<e>", *letters, *map("".join, pairs)])}, pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<e>"])
    return Codec(made, Special())


def speaking(config: str, own: Codec) -> TorchModel:
    """A tiny model that says letters: the logits of their tokens are the largest in size."""
    model = tiny(config)
    model.resize_token_embeddings(own.vocab_size, mean_resizing=False)
    letters = [i for i, piece in enumerate(own.pieces) if piece.isalpha() and piece.islower() and piece.isascii()]
    with torch.no_grad():
        model.get_output_embeddings().weight[letters] *= 8
    made = TorchModel(model, max_rows=4)
    made.adopt(made.probe())
    return made


@pytest.fixture(scope="module")
def tongues():
    """Rotary and learned positions, two tokenizers: all four combinations."""
    return {
        (name, own): SimpleNamespace(model=speaking(name, made), codec=made)
        for name in ("LlamaConfig", "GPT2Config")
        for own, made in (("letters", codec()), ("syllables", syllables()))
    }


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("way", ["universal", "intersection"])
@pytest.mark.parametrize("words", [("letters", "syllables"), ("syllables", "letters")])
@pytest.mark.parametrize("names", [("LlamaConfig", "GPT2Config"), ("GPT2Config", "LlamaConfig")])
def test_L70_two_tokenizers_and_two_kinds_of_positions(tongues, names, words, way, k):
    """The tokens of plain decoding; and what is drafted is the beginning of what the draft model says by itself after the
    text so far, by passes over all of it."""
    ours, draft = (tongues[key] for key in zip(names, words, strict=True))
    engine = crossing(k, ours, draft, way)
    prompt = ours.codec.prompt("stories ")
    found = engine.generate(prompt, max_tokens=12, trace=True)
    same(found, plain(ours.model, prompt, {"max_tokens": 12}, ours.codec))
    tokens = [*prompt, *found.token_ids]
    checked = 0
    for step in found.stats.trace:
        if step.candidates:
            seen = draft.codec.encode(ours.codec.decode(tokens[: step.position]), special=False)
            drafted = b"".join(ours.codec.pieces[t] for t in step.candidates)
            said = b""
            while len(said) < len(drafted):
                with torch.no_grad():
                    seen.append(int(draft.model.model(torch.tensor([seen])).logits[0, -1].argmax()))
                said += draft.codec.pieces[seen[-1]]
            assert said.startswith(drafted)
            checked += len(step.candidates)
    assert checked == found.stats.draft_tokens > 0
    engine.close()


def folder(path: Path, swap=()) -> Path:
    path.mkdir(parents=True)
    tokenizer(swap).save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": SIZE, "eos_token_id": EOS}))
    return path


def gguf_file(path: Path, tokens: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([])
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREFOOT_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("own_cache")
def test_L71_the_tokenizer_is_that_of_the_folder_given(tmp_path: Path):
    """Two revisions of a model under one name: what is compared is what was given."""
    old, new = folder(tmp_path / "old" / "model"), folder(tmp_path / "new" / "model", [(3, 4)])
    for here, there in ((old, new), (new, old)):
        assert Codec.load(here).compare(Codec.load(here)).same
        assert Codec.load(here).compare(Codec.load(there)).first[0] == 3
        with pytest.raises(VocabMismatch, match="the first is 3"):
            cross(Codec.load(here), Codec.load(there), "equal")
        assert cross(Codec.load(here), Codec.load(here)).bridge is None
        bridge = cross(Codec.load(here), Codec.load(there)).require().bridge
        assert [bridge.there[i] for i in (2, 3, 4, 5)] == [bridge.back[i] for i in (2, 3, 4, 5)] == [2, 4, 3, 5]


@pytest.mark.usefixtures("own_cache")
def test_L71_a_cached_tokenizer_is_not_taken_for_another_revision(tmp_path: Path):
    """Tokenizers made from GGUF files are cached: another file of the same name, or a file that was replaced, is read anew."""
    letters = sorted(codec().table.values())[:40]
    old = gguf_file(tmp_path / "old" / "model.gguf", letters)
    new = gguf_file(tmp_path / "new" / "model.gguf", letters[::-1])
    assert Codec.load(old).table[0] == letters[0]
    assert Codec.load(new).table[0] == letters[-1]
    assert Codec.load(old).table[0] == letters[0]
    old.unlink()
    gguf_file(old, letters[1:])
    assert Codec.load(old).table[0] == letters[1]


@pytest.mark.usefixtures("own_cache")
def test_L71_the_draft_is_opened_by_the_reference_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = {"target": folder(tmp_path / "old" / "model"), "draft": folder(tmp_path / "new" / "model", [(3, 4)])}
    opened = []

    def open_target(ref, *args, **options):
        opened.append(ref)
        return target(own=Codec.load(Path(ref)))

    monkeypatch.setattr(loader, "open_target", open_target)
    with pytest.raises(VocabMismatch, match="2 ids differ"):
        loader.load(paths["target"], "model:vocab=equal", draft_model=paths["draft"])
    assert opened == [paths["target"], paths["draft"]]


@pytest.mark.parametrize("rows", [800, 1200])
def test_L72_a_draft_of_another_size_is_refused_with_both_sizes(rows):
    """Heads of another hidden size or model type are expected with trained heads; draft models are checked now."""
    with pytest.raises(VocabMismatch, match=f"the draft model has {rows} tokens, the target {SIZE}"):
        ModelDrafter(table(rows=rows), SIZE)


@pytest.mark.usefixtures("own_cache")
def test_L72_a_tokenizer_that_is_not_the_models_is_refused_with_both_sizes(tmp_path: Path):
    path = tmp_path / "small"
    resized(100).save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    with pytest.raises(SurefootError, match="the tokenizer has 257 tokens, the model 100"):
        loader.load(path, "none", "torch")
    with pytest.raises(VocabMismatch, match="the tokenizer has 257 tokens, the model 100"):
        loader.open_target(path, "torch")


def test_L72_params_name_ids_of_the_model_only():
    """An id past the model's own is refused, not wrapped around."""
    engine = loader.assemble(target(), "none")
    for options in ({"logit_bias": {SIZE: 1.0}}, {"allowed_token_ids": [1, SIZE]}, {"bad_words_ids": [[SIZE]]}):
        with pytest.raises(SurefootError, match=f"names token {SIZE}; the model has the ids 0..{SIZE - 1}"):
            engine.submit("hello", SamplingParams.build(options))
