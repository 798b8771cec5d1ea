"""``surefoot train`` from nothing: a tiny model that has something to say, its text, a head, drafts that are right."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import surefoot
from surefoot import loader
from surefoot.cli import main
from surefoot.control.fixed import FixedController
from surefoot.core.engine import Engine
from surefoot.core.tree import DraftTree
from surefoot.errors import SurefootError
from surefoot.train import capture as capturing
from surefoot.train.prompts import STARTS
from surefoot.train.shards import Shards
from surefoot.train.windows import split

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

WORDS = ("red", "boats", "pass", "the", "old", "stone", "bridge", "while", "small", "birds", "sing", "over", "green", "hills")
OPENINGS = [start for _, group in STARTS for start in group if start]


def sentence(rng: random.Random, words: int) -> str:
    """A start, then words that most often follow each other in one way."""
    said, at = [rng.choice(OPENINGS)], rng.randrange(len(WORDS))
    for _ in range(words):
        said.append(WORDS[at])
        at = (5 * at + 3) % len(WORDS) if rng.random() < 0.9 else rng.randrange(len(WORDS))
    return " ".join(said)


def taught(folder: Path, steps: int = 120, seed: int = 0) -> Path:
    """A Llama of two layers that was briefly trained on such sentences."""
    import transformers as tf

    rng = random.Random(seed)
    texts = [sentence(rng, 70) for _ in range(400)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    text = torch.tensor([tokenizer.encode(each).ids[:64] for each in texts])
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(steps):
        rows = text[torch.arange(16 * step, 16 * step + 16) % len(text)]
        loss = torch.nn.functional.cross_entropy(model(rows).logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert steps < 120 or float(loss.detach()) < 1.5, "it has learned nothing that a head could learn"
    model.eval().save_pretrained(folder)
    tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUREFOOT_CACHE", str(root / "cache"))
        taught(root / "model")
        yield root


def train(root: Path, *words: str) -> int:
    return main(["train", *words, "--target", str(root / "model"), "--threads", "1"])


@pytest.fixture(scope="module")
def medusa(root: Path) -> dict[str, Any]:
    """The card of a head that was trained with one command."""
    words = ["--documents", "100", "--length", "48", "--temperatures", "0", "--rows", "25", "--epochs", "12", "--lr", "5e-3"]
    more = ["--batch-tokens", "1024", "--set", "heads=3", "--vocabulary", "10"]
    assert train(root, "medusa", "--out", str(root / "medusa"), *words, *more) == 0
    card: dict[str, Any] = json.loads((root / "medusa" / "card.json").read_text("utf-8"))
    return card


class Asked:
    """A drafter that asks another one for a token at every place, and drafts nothing. ``right``: how often it was."""

    name, source = "asked", 90

    def __init__(self, inner: Any) -> None:
        self.needs, self._inner = inner.needs, inner
        self._said: dict[int, tuple[int, int]] = {}
        self.right: list[bool] = []

    def propose(self, rows: Any, plans: Any) -> Any:
        self._check(rows)
        for row, tree in zip(rows, self._inner.propose(rows, plans), strict=True):
            if len(tree) > 1:
                self._said[row.id] = len(row.tokens), int(tree.tokens[1])
        return [DraftTree.chain(row.tokens[-1:]) for row in rows]

    def _check(self, rows: Any) -> None:
        for row in rows:
            place, token = self._said.pop(row.id, (len(row.tokens), 0))
            if place < len(row.tokens):
                self.right.append(row.tokens[place] == token)

    def observe(self, *told: Any) -> None:
        self._inner.observe(*told)

    def forget(self, rows: Any) -> None:
        self._check(rows)
        self._inner.forget(rows)


def prompts(n: int) -> list[str]:
    rng = random.Random(99)
    return [sentence(rng, rng.randrange(3, 9)) for _ in range(n)]


def answers(root: Path, drafter: str, backend: str = "openvino", **options: Any) -> list[Any]:
    engine = surefoot.load(root / "model", drafter=drafter, backend=backend, **options)
    try:
        return [engine.generate(prompt, max_tokens=48, temperature=0.0) for prompt in prompts(8)]
    finally:
        engine.close()


def test_one_command_makes_a_head_that_is_right_as_often_as_it_says(root: Path, medusa: dict[str, Any]) -> None:
    shards = Shards(root / "medusa" / "data")
    assert len(shards) == 100
    said = Counter(t for i in range(100) for t in shards.document(i).tokens[shards.answer(i) :].tolist())
    chance = said.most_common(1)[0][1] / said.total()
    stated = medusa["best"]["acceptance"]
    assert stated[0] > max(0.4, 3 * chance)
    assert medusa["stopped"] in ("epochs", "patience")
    assert medusa["data"]["documents"] == {"trained on": 98, "held out": 2}
    assert medusa["target"]["name"] == "model"
    assert medusa["sizes"]["draft vocabulary size"] == 10
    assert medusa["command"].startswith("surefoot train medusa --out ")
    assert asked_everywhere(root, shards) == pytest.approx(stated[0], abs=0.06)
    plain = answers(root, "none")
    for backend in ("openvino", "torch"):
        drafter = f"medusa:path={root / 'medusa'}"
        found = answers(root, drafter, backend, controller="fixed", num_speculative_tokens=1)
        assert [c.token_ids for c in found] == [c.token_ids for c in plain]
        assert [c.text for c in found] == [c.text for c in plain]
        right = sum(c.stats.accepted_tokens for c in found) / sum(c.stats.draft_tokens for c in found)
        assert right > 2 * chance, "it is asked at every second place or so, where it may be worse than on the whole"
    merged = answers(root, f"hybrid:of=suffix/medusa,medusa.path={root / 'medusa'}")
    assert [c.token_ids for c in merged] == [c.token_ids for c in plain]
    fast = answers(root, drafter, controller="fixed", num_speculative_tokens=3)
    passes = [sum(c.stats.passes for c in each) for each in (plain, fast)]
    assert passes[1] < 0.9 * passes[0]


def asked_everywhere(root: Path, shards: Shards) -> float:
    """How often the head is right at the first place while the engine writes the answers that were held out."""
    target = loader.open_target(root / "model", "openvino", taps=(3,))
    [inner] = loader.assemble(target, f"medusa:path={root / 'medusa'}").drafters.values()
    asked = Asked(inner)
    with closing(Engine(target.model, [asked], FixedController("asked", 1), codec=target.codec)) as engine:
        for i in split(shards, 0)[1]:
            document = shards.document(i)
            engine.generate(document.tokens[: document.answer].tolist(), max_tokens=48, temperature=0.0)
    assert len(asked.right) > 80
    return sum(asked.right) / len(asked.right)


def test_the_card_and_the_log_are_beside_the_weights(root: Path, medusa: dict[str, Any]) -> None:
    folder = root / "medusa"
    names = {path.name for path in folder.iterdir()}
    assert names == {"data", "card.json", "README.md", "config.json", "log.jsonl", "medusa_lm_head.safetensors"}
    curve = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    assert max(e["tau"] for e in curve) == pytest.approx(medusa["best"]["tau"])
    assert curve[-1]["loss"] < curve[0]["loss"]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["surefoot"]["target"] == {k: v for k, v in medusa["target"].items() if k != "fingerprint"}
    assert not (folder / "data" / "unfinished.json").exists()


HYDRA = (
    "--set",
    "inner=24",
    "--set",
    "steps=2",
    "--set",
    "blocks=1",
    "--epochs",
    "3",
    "--batch-tokens",
    "1024",
    "--patience",
    "0",
)


def test_a_run_that_was_stopped_ends_with_the_same_weights(
    root: Path, medusa: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(root / "medusa" / "data"), *HYDRA)
    assert train(root, "hydra", "--out", str(root / "whole"), *data, "--json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["stopped"] == "epochs"
    for done in (1, 2):
        assert train(root, "hydra", "--out", str(root / "parts"), *data, "--minutes", "0") == 0
        assert f"time after {done} of {whole['steps']} steps" in capsys.readouterr().out
        assert (root / "parts" / "checkpoint.pt").is_file()
    assert train(root, "hydra", "--out", str(root / "parts"), *data) == 0
    assert f"epochs after {whole['steps']} of {whole['steps']} steps" in capsys.readouterr().out
    assert not (root / "parts" / "checkpoint.pt").exists()
    one, other = (load_file(root / name / "model.safetensors") for name in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    found = answers(root, f"hydra:path={root / 'parts'}", controller="fixed", num_speculative_tokens=2)
    assert [c.token_ids for c in found] == [c.token_ids for c in answers(root, "none")]


@pytest.fixture
def asked(root: Path, tmp_path: Path) -> tuple[str, ...]:
    """Options of a capture of two shards that is soon done."""
    (tmp_path / "prompts.txt").write_text("\n".join(prompts(20)), "utf-8")
    return ("--prompts", str(tmp_path / "prompts.txt"), "--length", "5", "--rows", "50")


def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ctrl-C when the second shard is about to be written; the result undoes it."""
    write = capturing.write_shard

    def stop(folder: Path, number: int, documents: Any) -> Path:
        if list(folder.glob("shard-*.safetensors")):
            raise KeyboardInterrupt
        return write(folder, number, documents)

    monkeypatch.setattr(capturing, "write_shard", stop)
    return lambda: monkeypatch.setattr(capturing, "write_shard", write)


def test_an_interrupted_capture_goes_on(
    root: Path, tmp_path: Path, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("capture", *asked, "--documents", "160")
    assert train(root, *words, "--data", str(tmp_path / "whole")) == 0
    assert "160 documents captured" in capsys.readouterr().err
    undo = interrupted(monkeypatch)
    parts = tmp_path / "parts"
    assert train(root, *words, "--data", str(parts)) == 130
    [shard] = parts.glob("shard-*.safetensors")
    before = shard.stat().st_mtime_ns
    undo()
    assert train(root, "capture", *asked, "--data", str(parts)) == 0, "how many were wanted is known"
    assert shard.stat().st_mtime_ns == before
    one, other = Shards(tmp_path / "whole"), Shards(parts)
    assert len(one) == len(other) == 160
    assert one.taps == other.taps == (0, 1, 2, 3)
    assert all(torch.equal(one.document(i).tokens, other.document(i).tokens) for i in range(160))


def refused(capsys: pytest.CaptureFixture[str], status: int) -> str:
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert re.fullmatch(r"surefoot: error: [^\n]+", err.strip().splitlines()[-1]), err
    assert "Traceback" not in err
    return err


def test_text_of_another_model_is_refused(
    root: Path, medusa: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = taught(tmp_path / "Other-0.5B", 1)
    data, out = str(root / "medusa" / "data"), str(tmp_path / "out")
    capsys.readouterr()
    status = main(["train", "medusa", "--target", str(other), "--data", data, "--out", out])
    said = refused(capsys, status)
    assert "'model'" in said
    assert "'Other-0.5B'" in said
    assert not (tmp_path / "out").exists()
    status = train(root, "eagle3", "--data", data, "--out", out)
    said = refused(capsys, status)
    assert "[3]" in said, "it names the taps that there are"
    with pytest.raises(SurefootError, match="use drafter 'medusa'"):
        surefoot.load(other, drafter=f"eagle:path={root / 'medusa'}", backend="openvino")


def test_too_little_text_is_refused(
    root: Path, tmp_path: Path, asked: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status = train(root, "hydra", "--out", str(tmp_path / "head"), *asked, "--documents", "3")
    assert "capture more" in refused(capsys, status)
    assert {path.name for path in (tmp_path / "head").iterdir()} == {"data"}
