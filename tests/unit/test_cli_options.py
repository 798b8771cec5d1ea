"""Options on the command line: each reaches the request or is refused, and what several answers look like."""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toys_cli import EOS, error_of, install, table

from surefoot.cli import main, parser
from surefoot.commands.answer import Answer
from surefoot.commands.common import engine, request
from surefoot.core.completion import Completion, Usage
from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.core.stats import Stats
from surefoot.errors import BadRequest


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return install(monkeypatch)


def parsed(*words: str, command: str = "generate") -> argparse.Namespace:
    given = [command, *words]
    return parser(given).parse_args(given)


SCHEMA = '{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}'
GRAMMAR = 'root ::= "yes" | "no"'
FIELDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "max_tokens": (["--max-tokens", "7"], {"max_tokens": 7}),
    "min_tokens": (["--min-tokens", "3"], {"min_tokens": 3}),
    "temperature": (["--temperature", "0.5"], {"temperature": 0.5}),
    "top_k": (["--top-k", "5"], {"top_k": 5}),
    "top_p": (["--top-p", "0.9"], {"top_p": 0.9}),
    "min_p": (["--min-p", "0.1"], {"min_p": 0.1}),
    "typical_p": (["--typical-p", "0.8"], {"typical_p": 0.8}),
    "repetition_penalty": (["--repetition-penalty", "1.3"], {"repetition_penalty": 1.3}),
    "presence_penalty": (["--presence-penalty", "-1"], {"presence_penalty": -1.0}),
    "frequency_penalty": (["--frequency-penalty", "0.5"], {"frequency_penalty": 0.5}),
    "logit_bias": (["--logit-bias", "5=-100", "--logit-bias", "7=2.5,9=1"], {"logit_bias": {5: -100, 7: 2.5, 9: 1}}),
    "allowed_token_ids": (["--allowed-token-ids", "65,66"], {"allowed_token_ids": [65, 66]}),
    "bad_words": (["--bad-word", "a,b", "--bad-word", " c"], {"bad_words": ["a,b", " c"]}),
    "bad_words_ids": (["--bad-word-ids", "1,2", "--bad-word-ids", "3"], {"bad_words_ids": [[1, 2], [3]]}),
    "seed": (["--seed", "-4"], {"seed": -4}),
    "n": (["-n", "3"], {"n": 3}),
    "stop": (["--stop", "x", "--stop", "y,z"], {"stop": ["x", "y,z"]}),
    "stop_token_ids": (["--stop-token-ids", "4,5"], {"stop_token_ids": [4, 5]}),
    "ignore_eos": (["--ignore-eos"], {"ignore_eos": True}),
    "include_stop_str_in_output": (["--include-stop-str-in-output"], {"include_stop_str_in_output": True}),
    "thinking_budget": (["--thinking-budget", "8"], {"thinking_budget": 8}),
    "thinking_start": (["--thinking-budget", "8", "--thinking-start", "<a>"], {"thinking_budget": 8, "thinking_start": "<a>"}),
    "thinking_end": (["--thinking-budget", "8", "--thinking-end", "</a>"], {"thinking_budget": 8, "thinking_end": "</a>"}),
    "logprobs": (["--logprobs"], {"logprobs": True}),
    "top_logprobs": (["--logprobs", "3"], {"logprobs": True, "top_logprobs": 3}),
    "echo": (["--echo"], {"echo": True}),
    "verification": (["--verification", "ratio"], {"verification": "ratio"}),
    "structured_outputs": (["--json-schema", SCHEMA], {"structured_outputs": {"json": json.loads(SCHEMA)}}),
    "response_format": (["--json-object"], {"structured_outputs": {"json_object": True}}),
    "constrain_after": (
        ["--regex", "a+", "--constrain-after", "</think>"],
        {"structured_outputs": {"regex": "a+"}, "constrain_after": "</think>"},
    ),
}


@pytest.mark.parametrize("words, options", FIELDS.values(), ids=list(FIELDS))
def test_every_request_option_reaches_the_request(words: list[str], options: dict[str, Any]) -> None:
    found, wanted = request(parsed(*words)), SamplingParams(**{"max_tokens": 512, **options})
    # a number beside logprobs is its own short form of top_logprobs
    same = [(f.name, getattr(found, f.name), getattr(wanted, f.name)) for f in fields(wanted) if f.name != "top_logprobs"]
    assert all(a == b for _, a, b in same), same
    assert found != request(parsed())


def test_no_request_option_is_forgotten() -> None:
    """Processors are code: they cannot come from a terminal."""
    assert {f.name for f in fields(SamplingParams)} - set(FIELDS) == {"logits_processors"}
    assert request(parsed()) == SamplingParams(max_tokens=512)
    assert request(parsed(command="chat")) == SamplingParams(max_tokens=512)


STRUCTURE = {
    "--json-object": ([], {"json_object": True}),
    "--json-schema": ([SCHEMA], {"json": SCHEMA}),
    "--regex": (["[0-9]+"], {"regex": "[0-9]+"}),
    "--grammar": ([GRAMMAR], {"grammar": GRAMMAR}),
    "--choice": (["yes", "--choice", "no"], {"choice": ["yes", "no"]}),
}


@pytest.mark.parametrize("option", list(STRUCTURE))
def test_structure(option: str) -> None:
    words, wanted = STRUCTURE[option]
    assert request(parsed(option, *words)) == SamplingParams(max_tokens=512, structured_outputs=wanted)
    other = "--regex" if option != "--regex" else "--json-object"
    with pytest.raises(BadRequest, match="both say what the output looks like"):
        request(parsed(option, *words, other, *(["x"] if other == "--regex" else [])))


def test_schema_and_grammar_from_files(tmp_path: Path) -> None:
    for option, key, text in (("--json-schema", "json", SCHEMA), ("--grammar", "grammar", GRAMMAR)):
        file = tmp_path / key
        file.write_text(text)
        wanted = SamplingParams(max_tokens=512, structured_outputs={key: text})
        assert request(parsed(option, str(file))) == wanted
        with pytest.raises(BadRequest, match=f"{option}: .*neither a file nor"):
            request(parsed(option, str(tmp_path / "missing")))
        with pytest.raises(BadRequest, match=f"{option}: cannot read"):
            request(parsed(option, str(tmp_path)))
        file.write_bytes(b"\xff")
        with pytest.raises(BadRequest, match="UTF-8"):
            request(parsed(option, str(file)))


BAD = {
    "min > max": ["--min-tokens", "9", "--max-tokens", "3"],
    "typical_p": ["--typical-p", "0"],
    "presence": ["--presence-penalty", "3"],
    "bias without value": ["--logit-bias", "5"],
    "bias, word": ["--logit-bias", "a=1"],
    "bias, size": ["--logit-bias", "5=101"],
    "bias twice": ["--logit-bias", "5=1", "--logit-bias", "5=2"],
    "empty bad word": ["--bad-word", ""],
    "bad word ids": ["--bad-word-ids", "1,x"],
    "allowed": ["--allowed-token-ids", ""],
    "n 0": ["-n", "0"],
    "no number": ["--logprobs", "many"],
    "fewer than none": ["--logprobs", "-1"],
    "logprobs as text": ["--logprobs", "2"],
    "no schema": ["--json-schema", "nowhere.json"],
    "schema, not JSON": ["--json-schema", "{"],
    "two structures": ["--regex", "a", "--choice", "b"],
    "empty choice": ["--choice", ""],
    "after nothing": ["--constrain-after", "x"],
    "thinking end alone": ["--thinking-end", "x"],
    "structure without end": ["--json-object", "--ignore-eos"],
    "llama.cpp's shortest draft": ["--draft-min", "2"],
    "llama.cpp's window of repeats": ["--repeat-penalty", "1.1"],
    "least probability of a draft": ["--spec-draft-p-min", "0.5"],
    "speculative, text": ["--speculative-config", "ngram"],
    "speculative, list": ["--speculative-config", "[]"],
}


@pytest.mark.parametrize("words", BAD.values(), ids=list(BAD))
def test_bad_options_cost_no_loading(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    error_of(capsys, main(["generate", "x", *words]))
    assert toy.opened == 0


def test_a_prompt_after_logprobs_is_told_apart(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert "put the prompt before --logprobs" in error_of(capsys, main(["generate", "--logprobs", "hello"]))


@pytest.mark.parametrize(
    "alias, name, value",
    [
        ("--max-new-tokens", "max_tokens", "9"),
        ("--temp", "temperature", "0.3"),
        ("--model-draft", "draft_model", "small"),
        ("--assistant-model", "draft_model", "small"),
        ("--draft-max", "num_speculative_tokens", "5"),
    ],
)
def test_names_that_other_programs_use(alias: str, name: str, value: str) -> None:
    plain = "--" + name.replace("_", "-")
    assert getattr(parsed(alias, value), name) == getattr(parsed(plain, value), name) != getattr(parsed(), name)
    # an option's default does not depend on its other names
    assert getattr(parsed(), name) == {"max_tokens": 512, "temperature": 0.0}.get(name)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert main(["generate", "hello", "--json", *words]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


LAWS = [
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "allowed_token_ids", "bad_words", "ignore_eos", "verification",
]  # fmt: skip


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("drafter", ["none", "ngram", "suffix"])
def test_options_are_honoured_with_every_drafter(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], name: str, drafter: str
) -> None:
    """The command says what a plain engine says with the same options."""
    toy.model = table(toy.codec, end=name in ("min_tokens", "ignore_eos"))
    words, options = FIELDS[name]
    sampled = {} if name in ("repetition_penalty", "verification") else {"temperature": 1.0, "seed": 11}
    options = {"max_tokens": 30, **sampled, **options}
    if name == "verification":
        options["seed"] = 11
    extra = [w for key in ("temperature", "seed") if key in options and key != name for w in ("--" + key, str(options[key]))]
    controller = [] if drafter == "none" else ["--controller", "fixed"]
    found = said(capsys, "--max-tokens", "30", *extra, *words, "--drafter", drafter, *controller)
    plain = Engine(toy.model, codec=toy.codec).generate([{"role": "user", "content": "hello"}], **options)
    assert (found["token_ids"], found["text"]) == (list(plain.token_ids), plain.text)
    assert found["finish_reason"] == plain.finish_reason


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "model"])
def test_every_source_reports_itself(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], drafter: str) -> None:
    """A flag that is parsed and not passed on would decode plainly and say nothing of it."""
    words = ["-md", "toy"] if drafter == "model" else []
    found = said(capsys, "--drafter", drafter, *words, "--controller", "fixed", "--max-tokens", "60")
    assert found["drafter"] == drafter
    assert found["stats"]["by_source"][drafter]["draft_tokens"] > 0
    assert said(capsys, "--max-tokens", "60", "--drafter", "none")["token_ids"] == found["token_ids"]


VLLM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ngram": (
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        {"drafter": "ngram:max_n=4,min_n=2", "num_speculative_tokens": 5, "draft_model": None},
    ),
    "one end": ({"method": "ngram", "prompt_lookup_max": 3}, {"drafter": "ngram:max_n=3,min_n=3"}),
    "the other end": ({"method": "ngram", "prompt_lookup_min": 3}, {"drafter": "ngram:max_n=3,min_n=3"}),
    "no ends": ({"method": "ngram"}, {"drafter": "ngram", "num_speculative_tokens": None}),
    "suffix": ({"method": "suffix", "num_speculative_tokens": 8}, {"drafter": "suffix", "num_speculative_tokens": 8}),
    "draft model": (
        {"method": "draft_model", "model": "small", "num_speculative_tokens": 3},
        {"drafter": "model", "draft_model": "small", "num_speculative_tokens": 3},
    ),
    "model alone": ({"model": "small"}, {"drafter": "model", "draft_model": "small"}),
}


@pytest.mark.parametrize("given, wanted", VLLM.values(), ids=list(VLLM))
def test_speculative_config(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    args = parsed("--speculative-config", json.dumps(given))
    assert {name: getattr(args, name) for name in wanted} == wanted


def test_speculative_config_runs(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--controller", "fixed", "--max-tokens", "60", "--speculative-config"]
    found = said(capsys, *words, '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}')
    assert found["drafter"] == "ngram"
    assert 0 < found["stats"]["draft_tokens"] <= 3 * found["stats"]["drafts"]
    assert said(capsys, *words, '{"method": "draft_model", "model": "toy"}')["drafter"] == "model"


REFUSED = {
    "unknown key": ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
    "key of vLLM that is not here": ({"method": "ngram", "disable_by_batch_size": 3}, "known are method"),
    "unknown method": ({"method": "eagle3", "num_speculative_tokens": 3}, "'eagle3' is not here; give one of ngram"),
    "no method": ({"num_speculative_tokens": 3}, "no method"),
    "no model": ({"method": "draft_model"}, "needs model"),
    "a model for ngram": ({"method": "ngram", "model": "small"}, "belongs to method 'draft_model'"),
    "a range for suffix": ({"method": "suffix", "prompt_lookup_max": 3}, "belongs to method 'ngram'"),
    "range upside down": ({"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}, "prompt_lookup_min=3 is more"),
    "no length": ({"method": "ngram", "num_speculative_tokens": 0}, "from 1 up"),
    "length as text": ({"method": "ngram", "num_speculative_tokens": "4"}, "num_speculative_tokens='4'"),
    "true as length": ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens=True"),
}


@pytest.mark.parametrize("given, told", REFUSED.values(), ids=list(REFUSED))
def test_speculative_config_is_refused_by_name(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], given: dict[str, Any], told: str
) -> None:
    assert told in error_of(capsys, main(["generate", "x", "--speculative-config", json.dumps(given)]))
    assert toy.opened == 0


@pytest.mark.parametrize("words", [["--drafter", "suffix"], ["-md", "small"], ["--draft-max", "2"], ["--drafter", "auto"]])
def test_speculative_config_contradicts_its_short_forms(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    given = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}']
    for both in ([*words, *given], [*given, *words]):
        assert "say the same thing twice" in error_of(capsys, main(["generate", "x", *both]))
    length = parsed("--speculative-config", '{"method": "ngram"}', "--draft-max", "2")
    assert (length.drafter, length.num_speculative_tokens) == ("ngram", 2)


def test_several_answers(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--temperature", "1", "--max-tokens", "20"]
    single = [said(capsys, *words, "--seed", str(seed)) for seed in (5, 6, 7)]
    found = said(capsys, *words, "--seed", "5", "-n", "3")
    assert set(found) == {"model", "drafter", "seed", "choices", "usage", "stats"}
    assert [c["index"] for c in found["choices"]] == [0, 1, 2]
    assert [c["seed"] for c in found["choices"]] == [5, 6, 7]
    for choice, alone in zip(found["choices"], single):
        assert {k: choice[k] for k in ("text", "token_ids", "finish_reason")} == {
            k: alone[k] for k in ("text", "token_ids", "finish_reason")
        }
    assert found["usage"]["completion_tokens"] == 60
    assert found["usage"]["prompt_tokens"] == single[0]["usage"]["prompt_tokens"]
    wanted = "".join(f"--- answer {i} of 3 ---\n{alone['text']}\n" for i, alone in enumerate(single, 1))
    for stream in ([], ["--no-stream"]):
        assert main(["generate", "hello", *words, "--seed", "5", "-n", "3", *stream, "--stats"]) == 0
        out, err = capsys.readouterr()
        assert out == wanted
        assert "(60 tokens," in err


def test_answers_at_the_same_time_share_their_seconds() -> None:
    """Two answers of 11 and 5 tokens in passes of 2 and 1 seconds: 10 + 4 tokens in 2 seconds, not in 3."""
    choices = [
        Completion("", (1,) * n, "stop", Usage(3, n), Stats(prompt_seconds=0.5, decode_seconds=seconds), ("target",) * n)
        for n, seconds in ((11, 2.0), (5, 1.0))
    ]
    done = Answer(replace(choices[0], choices=tuple(choices)), 0.5, 2.5, False)
    assert (done.decode_seconds, done.tokens_per_second) == (2.0, 7.0)
    assert Answer(choices[1], 0.5, 2.5, False).tokens_per_second == 4.0


def test_answers_of_several_lengths_stay_in_order(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Later answers end first and an early one is empty; each is printed whole, in its turn."""
    toy.model = table(toy.codec, end=True)
    words = ["--temperature", "1", "--max-tokens", "40", "-n", "8", "--seed", "1"]
    choices = said(capsys, *words)["choices"]
    assert len({len(c["token_ids"]) for c in choices}) > 3
    assert main(["generate", "hello", *words]) == 0
    assert capsys.readouterr().out == "".join(f"--- answer {i} of 8 ---\n{c['text']}\n" for i, c in enumerate(choices, 1))


def test_a_trace_of_several_answers_says_which(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "trace"
    found = said(capsys, "-n", "2", "--temperature", "1", "--seed", "1", "--max-tokens", "10", "--trace", str(file))
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    for choice in found["choices"]:
        assert sum(s["kept"] for s in steps if s["answer"] == choice["index"]) == len(choice["token_ids"])


def test_logprobs(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "--logprobs", "3", "--max-tokens", "12", "--drafter", "ngram", "--controller", "fixed")
    assert [e["token_id"] for e in found["logprobs"]] == found["token_ids"]
    assert "".join(e["token"] for e in found["logprobs"]) == found["text"]
    for entry in found["logprobs"]:
        assert entry["logprob"] == entry["asked"] < 0
        assert entry["top_logprobs"][0]["token_id"] == entry["token_id"]
        assert len(entry["top_logprobs"]) == len(entry["top_asked"]) == 3
    assert "prompt_logprobs" not in found
    warm = said(capsys, "--logprobs", "--max-tokens", "12", "--temperature", "0.5", "--top-k", "2", "--seed", "1", "--echo")
    assert all(e["top_logprobs"] == [] and e["asked"] > e["logprob"] for e in warm["logprobs"])
    assert warm["prompt_logprobs"][0] is None
    assert len(warm["prompt_logprobs"]) == warm["usage"]["prompt_tokens"]
    several = said(capsys, "--logprobs", "1", "-n", "2", "--max-tokens", "5", "--temperature", "1", "--seed", "1")
    assert all(len(c["logprobs"]) == 5 for c in several["choices"])


def test_impossible_tokens_are_valid_json(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    toy.model.logits[toy.model.logits < -1e8] = -math.inf
    found = said(capsys, "--logprobs", "--echo", "--max-tokens", "2", "--drafter", "none")
    assert None in [e["logprob"] for e in found["prompt_logprobs"] if e]


def test_echo_begins_with_the_prompt(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    for stream in ([], ["--no-stream"]):
        assert main(["generate", "--raw", "hello", "--max-tokens", "4", *stream]) == 0
        plain = capsys.readouterr().out
        assert main(["generate", "--raw", "hello", "--max-tokens", "4", "--echo", *stream]) == 0
        assert capsys.readouterr().out == "hello" + plain
    assert said(capsys, "--echo", "--max-tokens", "4")["text"].startswith("<user>hello\n<assistant>")


def test_the_stop_text_stays_if_asked(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "--max-tokens", "20")["text"]
    stop = text[3:5]
    assert said(capsys, "--stop", stop)["text"] == text[: text.index(stop)]
    assert said(capsys, "--stop", stop, "--include-stop-str-in-output")["text"] == text[: text.index(stop)] + stop


def test_an_answer_that_breaks_off_stays_printed(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    """Only 'a' is allowed, and not three of them: after two no token is possible."""
    a = toy.codec.encode("a")[0]
    words = ["--allowed-token-ids", str(a), "--bad-word-ids", f"{a},{a},{a}"]
    for stream in ([], ["--no-stream"]):
        assert main(["generate", "hello", *words, *stream]) == 2
        out, err = capsys.readouterr()
        assert out == "aa\n"
        assert err.startswith("surefoot: error: ")
        assert err.count("\n") == 1
    assert main(["generate", "hello", *words, "--json", "-n", "2"]) == 2
    out, err = capsys.readouterr()
    for choice in json.loads(out)["choices"]:
        assert (choice["text"], choice["finish_reason"]) == ("aa", "error")
        assert choice["error"] in err


def chat(monkeypatch: pytest.MonkeyPatch, lines: str, *words: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["chat", "--max-tokens", "30", *words])


@pytest.mark.parametrize("words", [["-n", "2"], ["--echo"], ["--logprobs"]])
def test_chat_refuses_what_it_has_no_place_for(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    assert "is not for chat" in error_of(capsys, chat(monkeypatch, "hello\n", *words))
    assert toy.opened == 0


def test_chat_goes_on_after_an_answer_that_broke_off(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = toy.codec.encode("a")[0]
    words = ["--allowed-token-ids", str(a), "--bad-word-ids", f"{a},{a},{a}"]
    assert chat(monkeypatch, "hello\nmore\n", *words) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == out.splitlines()[2] == "aa"
    assert err.count("surefoot: error: ") == 2


@pytest.mark.parametrize(
    "words, fits",
    [
        (["--choice", "yes", "--choice", "no"], lambda text: text in ("yes", "no")),
        (["--regex", "[0-9]{3}-x"], lambda text: text[:3].isdecimal() and text[3:] == "-x"),
        (["--grammar", 'root ::= "<" [ab] ">"'], lambda text: text in ("<a>", "<b>")),
        (["--json-schema", '{"type": "object", "properties": {"k": {"type": "boolean"}}, "required": ["k"], '
          '"additionalProperties": false}'], lambda text: isinstance(json.loads(text)["k"], bool)),
    ],
)  # fmt: skip
def test_structure_holds(toy: SimpleNamespace, capsys: pytest.CaptureFixture[str], words: list[str], fits: Any) -> None:
    toy.model.logits[:, EOS] = 0.0  # it may end where the structure is complete
    plain = said(capsys, *words, "--drafter", "none", "--temperature", "1", "--seed", "2", "--max-tokens", "60")
    assert plain["finish_reason"] == "stop"
    assert fits(plain["text"])
    for drafter in ("auto", "grammar"):
        found = said(capsys, *words, "--drafter", drafter, "--temperature", "1", "--seed", "2", "--max-tokens", "60")
        assert found["token_ids"] == plain["token_ids"]


def test_the_engine_takes_what_the_options_say(toy: SimpleNamespace) -> None:
    made = engine(parsed("--drafter", "ngram:max_n=2", "--controller", "fixed"), None)
    assert list(made.drafters) == ["ngram"]
