"""Options from a file: what it may say, that the command line wins, and what is refused by file and key."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from toys_cli import error_of, install

from surefoot.cli import main, parser
from surefoot.commands.common import request
from surefoot.core.params import SamplingParams
from surefoot.errors import BadRequest


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return install(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "surefoot.toml"


def parsed(file: Path, text: str, *words: str, command: str = "generate") -> argparse.Namespace:
    """The options with the file before and after the words: the place of --config changes nothing."""
    file.write_text(text, encoding="utf-8")
    first, second = ([command, "--config", str(file), *words], [command, *words, "--config", str(file)])
    found, other = (parser(given).parse_args(given) for given in (first, second))
    assert values(found) == values(other)
    return found


def values(args: argparse.Namespace) -> dict[str, object]:
    return {k: v for k, v in vars(args).items() if k != "parser" and k[0] != "_"}


ALL = """
stats = true
[model]
model = "org/name"
kv-tokens = 4096
backend = "torch"
[drafting]
drafter = "ngram:max_n=3"
num_speculative_tokens = 6
controller = "fixed"
[request]
max_tokens = 40
temperature = 1
top-p = 0.5
seed = 3
n = 2
stop = ["a", "b"]
stop-token-ids = [1, 2]
ignore-eos = true
bad-word = "c"
bad-word-ids = [[1, 2], [3]]
allowed-token-ids = "5,6"
logit-bias = {5 = -1, 6 = 0.5}
logprobs = true
system = "be kind"
"""


def test_a_file_says_what_options_say(file: Path) -> None:
    args = parsed(file, ALL)
    assert (args.model, args.kv_tokens, args.backend, args.stats) == ("org/name", 4096, "torch", True)
    assert (args.drafter, args.num_speculative_tokens, args.controller) == ("ngram:max_n=3", 6, "fixed")
    assert args.system == "be kind"
    assert request(args) == SamplingParams(
        max_tokens=40,
        temperature=1.0,
        top_p=0.5,
        seed=3,
        n=2,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        ignore_eos=True,
        bad_words=["c"],
        bad_words_ids=[[1, 2], [3]],
        allowed_token_ids=[5, 6],
        logit_bias={5: -1, 6: 0.5},
        logprobs=True,
    )
    assert isinstance(args.temperature, float)


def test_keys_may_stand_at_the_top_and_the_rest_keeps_its_default(file: Path) -> None:
    args = parsed(file, 'max-tokens = 40\nmodel = "org/name"')
    assert (args.max_tokens, args.model) == (40, "org/name")
    assert request(args) == SamplingParams(max_tokens=40)
    plain = values(parser(["generate"]).parse_args(["generate"]))
    assert values(parsed(file, "")) == plain | {"config": str(file)}


def test_the_command_line_wins(file: Path) -> None:
    words = [
        "--max-tokens",
        "7",
        "--stop",
        "x",
        "--no-stream",
        "--seed",
        "9",
        "--system",
        "",
        "-m",
        "other",
        "--draft-max",
        "2",
    ]
    args = parsed(file, ALL + "[output]\nstream = true", *words)
    assert (args.max_tokens, args.stop, args.stream, args.seed, args.system) == (7, ["x"], False, 9, "")
    assert (args.model, args.num_speculative_tokens) == ("other", 2)
    assert args.bad_words == ["c"]
    assert parsed(file, 'stop = "a"', "--stop", "x", "--stop", "y").stop == ["x", "y"]
    # also where it says what the default is, and under another name
    assert parsed(file, ALL, "--temperature", "0").temperature == 0
    assert parsed(file, "max-new-tokens = 40", "--max-tokens", "512").max_tokens == 512
    assert parsed(file, "max-tokens = 40", "--max-new-tokens", "7").max_tokens == 7


def test_the_command_line_wins_over_the_same_choice_said_otherwise(file: Path) -> None:
    plain = parsed(file, ALL, "--drafter", "none")
    assert (plain.drafter, plain.num_speculative_tokens, plain.controller) == ("none", None, "auto")
    other = parsed(file, 'draft-model = "small"', "--drafter", "ngram")
    assert (other.drafter, other.draft_model) == ("ngram", None)
    model = parsed(file, 'drafter = "ngram"', "-md", "small")
    assert (model.drafter, model.draft_model) == ("auto", "small")
    regex = request(parsed(file, 'choice = ["a", "b"]', "--regex", "[ab]"))
    assert regex == SamplingParams(max_tokens=512, structured_outputs={"regex": "[ab]"})
    vllm = parsed(file, 'draft-model = "small"\ndraft-max = 3', "--speculative-config", '{"method": "suffix"}')
    assert (vllm.drafter, vllm.draft_model, vllm.num_speculative_tokens) == ("suffix", None, 3)
    nothing = parsed(file, '[drafting.speculative-config]\nmethod = "draft_model"\nmodel = "small"', "--drafter", "none")
    assert (nothing.drafter, nothing.draft_model) == ("none", None)


def test_tables_as_values(file: Path) -> None:
    args = parsed(file, '[drafting.speculative-config]\nmethod = "ngram"\nnum_speculative_tokens = 4\nprompt_lookup_max = 3')
    assert (args.drafter, args.num_speculative_tokens) == ("ngram:max_n=3,min_n=3", 4)
    args = parsed(file, '[request.json-schema]\ntype = "object"\nproperties.b.type = "integer"\nproperties.a.type = "string"')
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
    assert request(args) == SamplingParams(max_tokens=512, structured_outputs={"json": schema})
    assert parsed(file, "logprobs = 4").logprobs == 4
    assert parsed(file, "logprobs = false").logprobs is None


def test_commands_take_what_they_have(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    file.write_text('[request]\nmax-tokens = 5\n[drafting]\ndrafter = "ngram"')
    assert main(["generate", "hello", "--config", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["token_ids"]), found["drafter"]) == (5, "ngram")
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert main(["chat", "--config", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == found["text"]
    file.write_text("stats = true")
    assert "unknown key 'stats'" in error_of(capsys, main(["chat", "--config", str(file)]))


REFUSED = {
    "unknown key": ("max-tokns = 3", "unknown key 'max-tokns'; did you mean 'max-tokens'?"),
    "unknown key in a table": ("[request]\ntop_q = 3", "unknown key 'top_q' in [request]; did you mean 'top-"),
    "unknown table": ("[reqest]\nseed = 3", "unknown key 'reqest'; did you mean 'request'?"),
    "a table for a value": ("request = 3", "unknown key 'request'"),
    "another table's key": ("[model]\nseed = 3", "seed belongs to [request], not to [model]"),
    "nothing alike": ("zzzz = 1", "unknown key 'zzzz'; see --help"),
    "a word for a number": ('max-tokens = "many"', "max-tokens = 'many' is not allowed; give a whole number"),
    "a fraction": ("seed = 1.5", "seed = '1.5' is not allowed; give a whole number"),
    "true for a number": ("max-tokens = true", "give a whole number"),
    "true for a fraction": ("temperature = true", "give a number"),
    "a number for a text": ("system = 5", "system = '5' is not allowed; give a text"),
    "a number for a flag": ("ignore-eos = 1", "ignore-eos = '1' is not allowed; give true or false"),
    "a text for a flag": ('stream = "yes"', "give true or false"),
    "a list for a number": ("seed = [1]", "give a whole number"),
    "numbers for texts": ("stop = [1, 2]", "give a text"),
    "ids": ('stop-token-ids = ["a"]', "is not a list of token ids"),
    "an id": ("stop-token-ids = 5", "is not a list of token ids"),
    "ids, fraction": ("allowed-token-ids = [1.5]", "is not a list of token ids"),
    "ids, true": ("allowed-token-ids = [true]", "is not a list of token ids"),
    "bias": ("logit-bias = [5]", "is not a bias"),
    "schema": ("json-schema = 5", "give a file"),
    "twice": ("max-tokens = 3\nmax_tokens = 4", "max_tokens and max-tokens say the same thing twice"),
    "twice, table": ("seed = 3\n[request]\nseed = 4", "seed and seed say the same thing twice"),
    "twice, alias": ("max-tokens = 3\nmax-new-tokens = 4", "say the same thing twice"),
    "twice, vLLM": ('drafter = "suffix"\nspeculative-config = {method = "ngram"}', "say the same thing twice"),
    "vLLM's key": ('speculative-config = {method = "ngram", k = 3}', "unknown key 'k'"),
    "the file itself": ('config = "other.toml"', "unknown key 'config'"),
    "help": ("help = true", "unknown key 'help'"),
    "the prompt": ('prompt = "x"', "unknown key 'prompt'"),
    "a value out of range": ("top-p = 2.0", "top_p=2.0 is not allowed"),
    "not TOML": ("max-tokens: 3", "is not valid TOML"),
}


@pytest.mark.parametrize("text, told", REFUSED.values(), ids=list(REFUSED))
def test_refused_by_name(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], file: Path, text: str, told: str) -> None:
    file.write_text(text)
    err = error_of(capsys, main(["generate", "x", "--config", str(file)]))
    assert told in err
    assert str(file) in err or "top_p" in err  # a range is checked where all options come together
    assert toy.opened == 0


def test_files_that_cannot_be_read(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert f"cannot read the configuration {missing}" in error_of(capsys, main(["generate", "x", "--config", str(missing)]))
    assert "cannot read" in error_of(capsys, main(["generate", "x", "--config", str(tmp_path)]))
    missing.write_bytes(b'system = "\xff"')
    assert "not valid TOML" in error_of(capsys, main(["generate", "x", "--config", str(missing)]))
    missing.write_text("")
    assert "given twice" in error_of(capsys, main(["generate", "x", "--config", str(missing), "--config", str(missing)]))


def test_every_long_option_is_a_key() -> None:
    """A new option of a shared group can stand in a file without more ado."""
    from surefoot.commands.config import Store, _known

    made = parser(["generate"])
    [own] = [a.choices["generate"] for a in made._actions if isinstance(a, argparse._SubParsersAction)]
    known, tables = _known(own)
    assert tables == {"model", "drafting", "request", "output"}
    for action in own._actions:
        if action.option_strings and action.dest not in ("help", "config"):
            assert isinstance(action, Store), action
            assert any(name[2:] in known for name in action.option_strings)


def test_a_type_of_ones_own_is_never_a_traceback(file: Path) -> None:
    from surefoot.commands.config import Config, track

    made = argparse.ArgumentParser()
    track(made)
    made.add_argument("--config", action=Config)
    made.add_argument("--size", type=lambda text: int(text.strip()))
    made.add_argument("--late", action="append", default=["x"])
    file.write_text("size = 3")
    with pytest.raises(BadRequest, match="size = '3' is not allowed; give the form"):
        made.parse_args(["--config", str(file)])
    file.write_text('late = ["y"]')
    assert made.parse_args(["--config", str(file)]).late == ["y"]
    assert made.parse_args(["--config", str(file), "--late", "z"]).late == ["z"]
