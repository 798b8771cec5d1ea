"""Speed by a simulated clock, memory by counting: nothing here depends on how busy the machine is."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psutil
import pytest
import torch
from behaviour.clock import VOCAB, Clock, Priced, Script, decode, rate
from behaviour.grid import LENGTHS, engine_of, every_draft_and_self, plain, same, speculate, words
from behaviour.letters import target, tokenizer
from toys import Custom, ToyCodec, counter, fixed, tree, within
from toys_grammar import ToyGrammars

from surefoot import loader
from surefoot.backends.table import TableModel
from surefoot.backends.torch import TorchModel
from surefoot.cli import main
from surefoot.commands import memory
from surefoot.commands.answer import answer
from surefoot.commands.report import lines
from surefoot.control.fixed import FixedController
from surefoot.control.goodput import GoodputController
from surefoot.control.window import WindowController
from surefoot.core.cost import CostModel
from surefoot.core.engine import Engine
from surefoot.core.law import law
from surefoot.core.measure import measure
from surefoot.core.noise import DRAFT, SplitMix
from surefoot.core.params import SamplingParams
from surefoot.core.protocols import Need
from surefoot.core.stats import Stats
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter
from surefoot.drafters.suffix import SuffixDrafter
from surefoot.errors import BadRequest

# L73: a draft that samples


def toy_pair():
    ours = TableModel.random(12, 1, seed=3, sharpness=1.5)
    return ours, ours.mixed(TableModel.random(12, 1, seed=4, sharpness=1.5), 0.35)


def independent(draft: TableModel, seed: int) -> Custom:
    """The naive drafter: draws from its law with random numbers of its own and says nothing about the law."""
    noise = SplitMix(seed)

    def one(row, plan):
        drafted = [row.tokens[-1]]
        for i in range(plan.depth):
            q = law(draft.next_logits([*row.tokens, *drafted[1:]])[None], row.params)[0]
            drafted.append(noise.categorical(q, len(row.tokens) + i, DRAFT, row.turn))
        return tree(drafted, range(-1, len(drafted) - 1))

    return Custom(one)


MODES = {
    "independent": lambda draft: (independent(draft, 99), {"verification": "coupled", "seed": 5}),
    "seeded": lambda draft: (ModelDrafter(draft, 12), {"seed": 5}),
    "unseeded": lambda draft: (ModelDrafter(draft, 12), {}),
}
AGREE = {
    "independent": lambda p, q: (p * q).sum(),
    "seeded": lambda p, q: (1 / torch.maximum(p[:, None] / p[None], q[:, None] / q[None]).sum(0)).sum(),
    "unseeded": lambda p, q: torch.minimum(p, q).sum(),
}
"""Chance that a drafted token is accepted: two own draws; two draws on the same noise; drafts with a known law."""


@pytest.fixture(scope="module")
def sampled():
    """(mode, k) -> stats with trace and tokens of one long request at T = 0.5."""
    ours, draft = toy_pair()
    made = {}

    def get(mode: str, k: int):
        if (mode, k) not in made:
            drafter, options = MODES[mode](draft)
            engine = fixed(ours, drafter, k)
            params = SamplingParams(max_tokens=1500 if k == 1 else 600, temperature=0.5, **options)
            row = engine.add([1], params, noise=SplitMix(5), trace=k == 1)
            while not row.done:
                engine.step()
            made[mode, k] = row
        return made[mode, k]

    return get


@pytest.mark.parametrize("k", LENGTHS)
def test_L73_default_draft_modes_are_accepted_more_than_independent_draws(sampled, k):
    """With a seed (shared noise) and without one (known law): both are accepted more often than a naive sampled draft."""
    naive, seeded, unseeded = (sampled(mode, k).stats for mode in ("independent", "seeded", "unseeded"))
    assert seeded.mean_acceptance_length > 1.1 * naive.mean_acceptance_length - 0.1
    assert unseeded.mean_acceptance_length >= seeded.mean_acceptance_length - 0.05
    first = [s.accepted_per_position[0] / s.drafts for s in (naive, seeded, unseeded)]
    assert first[0] < first[1] - 0.05 < first[2]


@pytest.mark.parametrize("mode", MODES)
def test_L73_acceptance_is_what_the_laws_allow(sampled, mode):
    """Each drafted token at k = 1 is accepted with the chance that its two laws and its mode give: within four sigma."""
    ours, draft = toy_pair()
    row = sampled(mode, 1)
    wanted = variance = 0.0
    for step in row.stats.trace:
        if step.candidates:
            p, q = (law(m.next_logits(row.tokens[: step.position])[None], row.params)[0] for m in (ours, draft))
            chance = float(AGREE[mode](p, q))
            wanted += chance
            variance += chance * (1 - chance)
    assert row.stats.draft_tokens > 600
    assert abs(row.stats.accepted_tokens - wanted) < 4 * variance**0.5


# L74: what is kept from call to call


def oracle_plans(controller, requests: int, accuracy: float = 1.0):
    """Draft lengths planned, by request."""
    asked = []
    plan = controller.plan

    def watched(rows):
        plans = plan(rows)
        asked[-1].extend(p.nodes for p in plans)
        return plans

    controller.plan = watched
    clock = Clock()
    engine = Engine(Priced(clock, lambda m: 1.0 + 0.1 * m), [Script(clock, 0.0, accuracy)], controller, clock=clock)
    for _ in range(requests):
        asked.append([])
        engine.generate([0], max_tokens=200)
    return asked


def test_L74_goodput_begins_where_the_last_request_left_off():
    """Persistent: what all requests taught. The schedules ``heuristic`` and ``heuristic_transient`` come with the tuner."""
    cost = measure(Priced(clock := Clock(), lambda m: 1.0 + 0.1 * m), clock=clock)
    first, second = oracle_plans(GoodputController("script", cost), 2)
    assert second[0] > first[0]
    assert second[0] >= 0.8 * max(first)
    poor, again = oracle_plans(GoodputController("script", cost), 2, accuracy=0.0)
    assert again[0] < poor[0]


def test_L74_window_begins_anew_with_each_request():
    """Transient: a window belongs to its request."""
    first, second = oracle_plans(WindowController("script"), 2)
    assert max(first) > first[0]
    assert second == first


# L75, L76: what a report must tell


def rarely(every: int) -> Custom:
    """Two right tokens every so many passes."""

    def one(row, plan):
        last = row.tokens[-1]
        if row.turn % every:
            return tree([last], [-1])
        return within(plan, [last, (last + 1) % VOCAB, (last + 2) % VOCAB], [-1, 0, 1])

    return Custom(one)


@pytest.mark.parametrize("k", LENGTHS)
def test_L75_drafts_offered_per_pass_are_in_the_report(k):
    """All drafted tokens were accepted, and next to nothing was drafted: the report has both."""
    engine = fixed(counter(VOCAB), rarely(10), k)
    said = answer(engine, [0], SamplingParams(max_tokens=200))
    stats = said.completion.stats
    assert stats.acceptance_rate == 1.0
    assert stats.draft_tokens == min(k, 2) * stats.drafts
    assert 0.05 < stats.drafts / stats.passes < 0.12
    found = stats.to_dict()
    assert (found["passes"], found["drafts"], found["draft_tokens"]) == (stats.passes, stats.drafts, stats.draft_tokens)
    report = "\n".join(lines([said], "custom"))
    assert f"{stats.passes} passes" in report
    assert f"tokens a drafted pass ({stats.drafts} drafts)" in report
    assert f"({stats.accepted_tokens} of {stats.draft_tokens})" in report


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("accuracy", [1.0, 0.0, 0.5])
def test_L76_a_pass_is_split_into_draft_verify_and_other(k, accuracy):
    """A pass over m tokens takes 3 + m, a drafted token 0.5, the verifier's bookkeeping here nothing."""
    told = []

    class Recording(FixedController):
        def learn(self, rows, trees, verdicts, costs):
            told.append(costs)

    clock = Clock()
    drafter = Script(clock, 0.5, accuracy)
    engine = Engine(Priced(clock, lambda m: 3.0 + m), [drafter], Recording("script", k), clock=clock)
    stats = engine.generate([VOCAB - 1, 0], max_tokens=50).stats
    assert stats.draft_seconds == pytest.approx(0.5 * stats.draft_tokens)
    passes = stats.passes - 1  # the prompt's own pass gives the first token
    assert stats.prompt_seconds == pytest.approx(5.0)
    assert stats.decode_seconds == pytest.approx(stats.draft_seconds + 4.0 * passes + stats.draft_tokens)
    for costs in told[1:]:
        drafted = costs.nodes - 1
        assert (costs.draft, costs.score) == (pytest.approx(0.5 * drafted), pytest.approx(4.0 + drafted))
        assert costs.other == pytest.approx(0.0)


@pytest.mark.parametrize(
    "price, draft", [(lambda m: 1.0 + 0.5 * m, 0.0), (lambda m: 1.0 + 0.01 * m, 1.5), (lambda m: float(m), 0.2)]
)
def test_L76_auto_stops_drafting_where_it_is_slower(price, draft):
    """Wrong drafts, and a price for each of them: what is left is one token tried now and then."""
    cost = measure(Priced(clock := Clock(), price), clock=clock)
    stats = decode(price, draft, 0.0, cost)
    plainly = decode(price, draft, 0.0, 0)
    assert stats.draft_tokens < 0.12 * stats.passes
    tried = (draft + price(2)) / price(1) - 1
    assert stats.decode_seconds < (1.03 + tried / 16) * plainly.decode_seconds


def test_L76_the_command_line_tells_when_nothing_was_drafted(monkeypatch, capsys):
    """A curve by which no draft can pay."""
    toy = target(cost=CostModel((1, 2, 17), (0.01, 10.0, 100.0), 100))
    monkeypatch.setattr(loader, "open_target", lambda *args, **options: toy)
    assert main(["generate", "hello", "--max-tokens", "12", "--stats"]) == 0
    err = capsys.readouterr().err
    assert "drafted nothing" in err
    assert "by measured cost none would have paid" in err


# L77: the cost model

PRICES = {
    "flat": (lambda m: 1.0 + 0.01 * m, 0.02),
    "steep": (lambda m: 1.0 + 0.25 * m, 0.02),
    "dear draft": (lambda m: 1.0 + 0.02 * m, 0.4),
    "step": (lambda m: 1.0 if m <= 8 else 2.0, 0.01),
}


@pytest.mark.parametrize("name", PRICES)
def test_L77_predicted_speed_is_the_measured_one(name):
    """(1 + a + … + a^k) / (k d + V(k + 1)) against V(1), from a curve that was measured, within 15 per cent of the run."""
    price, draft = PRICES[name]
    cost = measure(Priced(clock := Clock(), price), clock=clock)
    plainly = rate(decode(price, draft, 0.5, 0))
    for k in LENGTHS:
        for accuracy in (0.0, 0.3, 0.8, 1.0):
            tokens = sum(accuracy**i for i in range(k + 1))
            predicted = tokens * cost(1) / (k * draft + cost(k + 1))
            measured = rate(decode(price, draft, accuracy, k)) / plainly
            assert predicted == pytest.approx(measured, rel=0.15), (k, accuracy)


@pytest.mark.parametrize("name", PRICES)
@pytest.mark.parametrize("accuracy", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_L77_advice_is_near_the_best_length_and_zero_where_none_pays(name, accuracy):
    price, draft = PRICES[name]
    cost = measure(Priced(clock := Clock(), price), clock=clock)
    by_length = {k: rate(decode(price, draft, accuracy, k)) for k in (0, *LENGTHS)}
    stats = decode(price, draft, accuracy, cost)
    assert rate(stats) > 0.9 * max(by_length.values())
    if max(by_length.values()) < 1.02 * by_length[0]:
        assert stats.drafts < 0.15 * stats.passes


@pytest.mark.parametrize("name", PRICES)
def test_L77_the_curve_is_measured_not_guessed(name):
    price, _ = PRICES[name]
    cost = measure(Priced(clock := Clock(), price), clock=clock)
    for m in range(1, 33):
        assert cost(m) == pytest.approx(price(m), rel=0.01)


# L78: ragged batches


RAGGED = [(4, {"max_tokens": 21}), (23, {"max_tokens": 6}), (11, {"max_tokens": 14, "stop_token_ids": [3]})]


@every_draft_and_self
@pytest.mark.parametrize("name", ["table", "table-padded", "llama", "gemma3-window", "openvino-llama"])
def test_L78_each_row_of_a_ragged_batch_equals_its_run_alone(backends, name, kind, k):
    """Three prompts of different length that end at different times."""
    backend = backends(name)
    codec = words(backend.vocab)
    engine = engine_of(backend.target, kind, k, codec)
    requests = [(backend.prompt(length, shift=i), options) for i, (length, options) in enumerate(RAGGED)]
    rows = [engine.add(prompt, SamplingParams.build(options)) for prompt, options in requests]
    ended = []
    while not all(row.done for row in rows):
        engine.step()
        ended += [row.id for row in rows if row.done and row.id not in ended]
    for row, (prompt, options) in zip(rows, requests):
        same(engine.completion(row), plain(backend.target, prompt, options, codec))
    engine.close()
    if kind == "wrong":
        assert ended[-1] == rows[0].id, "the rows were to end one after the other"


# L79: planned memory


def folder(path, layers: int, hidden: int = 32) -> str:
    """A small transformers folder with real weights."""
    import transformers as tf

    torch.manual_seed(0)
    config = tf.LlamaConfig(
        vocab_size=257, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, eos_token_id=256, bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(path)
    tokenizer().save(str(path / "tokenizer.json"))
    return str(path)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("planned")
    return {"target": folder(root / "target", 3), "draft": folder(root / "draft", 1)}


@pytest.fixture(scope="module")
def loaded(folders):
    return {role: TorchModel.load(path, dtype="float32", max_rows=2) for role, path in folders.items()}


@pytest.mark.parametrize("k", LENGTHS)
def test_L79_every_planned_part_is_what_the_backend_holds(folders, loaded, k, capsys):
    """Weights and cache of target and draft, and the logits of a verified draft: planned bytes against bytes held."""
    words = ["check", folders["target"], folders["draft"], "--backend", "torch", "--kv-tokens", "512", "--draft-max", str(k)]
    assert main([*words, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    total = 0
    for role in ("target", "draft"):
        model = loaded[role]
        parts = planned[role]["memory"]
        assert parts["weights"] == sum(p.numel() * p.element_size() for p in model.model.parameters())
        [slot] = model.open(1)
        forest = Forest.pack([DraftTree.chain(range(k + 1))], None, [True], model.traits.min_width)
        logits = model.score([slot], forest, Need()).logits
        assert parts["logits"] == (k + 1) * logits.shape[-1] * 4 <= logits.numel() * logits.element_size()
        held = sum(b.shape[1] * b.shape[3] * b.element_size() for store in model._pool.stores for b in store.buffers())
        assert parts["kv_per_token"] == held
        assert parts["kv"] == 512 * held
        total += parts["weights"] + parts["kv"] + parts["logits"]
        model.commit([slot], [()])
        model.close([slot])
    assert planned["memory"] == memory.OVERHEAD + total


def test_L79_what_does_not_fit_is_told_before_anything_is_loaded(folders, capsys, monkeypatch):
    """The sum that is printed is the one that decides; the draft belongs to it."""
    words = ["check", folders["target"], folders["draft"], "--backend", "torch"]
    assert main([*words, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["memory"]
    for free, status in ((planned, 0), (planned - 1, 1)):
        monkeypatch.setattr(memory, "available", lambda free=free: free)
        assert main(words) == status
        out = capsys.readouterr().out
        assert f"about {memory.amount(planned)} in all" in out
        assert ("lower --kv-tokens" in out) == (status == 1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.skipif(torch.cuda.is_available(), reason="libraries for GPUs take more than the plan's share for libraries")
def test_L79_planned_bytes_cover_the_measured_peak(folders, capsys, tmp_path):
    """The whole command in a process of its own, target and draft: its peak is at most a tenth over the plan."""
    models = [folders["target"], folders["draft"]]
    assert main(["check", *models, "--backend", "torch", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["memory"]
    # not ru_maxrss: a child's begins with the size of the process that started it
    program = (
        "import re, sys; from surefoot.cli import main; s = main(sys.argv[1:]); "
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1]); sys.exit(s)"
    )
    words = ["generate", "--raw", "hello hello hello", "-m", models[0], "-md", models[1], "--backend", "torch"]
    words += ["--controller", "fixed", "--draft-max", "4", "--max-tokens", "40", "--ignore-eos", "--no-stream"]
    own = {**os.environ, "SUREFOOT_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=300, env=own)
    assert done.returncode == 0, done.stderr
    assert planned >= 0.9 * 1024 * int(done.stdout.split()[-1])


# L80: memory from request to request


def drafters_for(backend):
    return {
        "model": ModelDrafter(backend.draft, backend.vocab),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(shared_tokens=200),
    }


@pytest.mark.parametrize("name", ["table", "llama", "openvino-llama"])
@pytest.mark.parametrize("kind", ["model", "ngram", "suffix"])
@pytest.mark.parametrize("k", [1, 5])
def test_L80_equal_requests_hold_equal_memory(backends, name, kind, k):
    """Fifty times the same: slots and drafter entries do not grow after the tenth; the process hardly does."""
    backend = backends(name)
    drafter = drafters_for(backend)[kind]
    before = backend.held(backend.target), backend.held(backend.draft)
    engine = fixed(backend.target, drafter, k)
    seen = []
    for _ in range(50):
        engine.generate(backend.prompt(20), max_tokens=12)
        stats = drafter.stats() if kind != "model" else {"rows": len(drafter._cache._slots), "left out": len(drafter._without)}
        seen.append((backend.held(backend.target), backend.held(backend.draft), stats, psutil.Process().memory_info().rss))
    tenth, last = seen[9], seen[-1]
    assert last[:2] == tenth[:2]
    assert last[2]["rows"] == 0
    if kind == "suffix":
        assert last[2]["shared_tokens"] <= 200
        assert last[2]["bytes"] <= 1.01 * max(entry[2]["bytes"] for entry in seen[:20])
    else:
        assert last[2] == tenth[2]
    assert last[3] - tenth[3] < 24 << 20
    engine.close()
    assert (backend.held(backend.target), backend.held(backend.draft)) == before


CONTROLLERS = {
    "fixed": lambda: FixedController("ngram", 4),
    "window": lambda: WindowController("ngram"),
    "goodput": lambda: GoodputController("ngram", lambda nodes, context: 1.0 + 0.1 * nodes),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_L80_controllers_keep_nothing_of_ended_requests(name):
    controller = CONTROLLERS[name]()
    engine = Engine(counter(VOCAB), [NgramDrafter()], controller)
    for _ in range(50):
        engine.generate([*range(10), *range(5)], max_tokens=20)
    assert [key for key, value in vars(controller).items() if isinstance(value, dict) and value] == []


# L81: off is off


@pytest.fixture
def opened(monkeypatch):
    """Names of the models that were loaded, and what was loaded."""
    found = {}

    def open_target(ref, *args, **options):
        found[ref] = target()
        return found[ref]

    monkeypatch.setattr(loader, "open_target", open_target)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "none"},
        {"drafter": None},
        {"draft_model": "small", "num_speculative_tokens": 0},
        {"drafter": "model:k=0", "draft_model": "small"},
        {"drafter": "ngram:k=0"},
        {"drafter": "suffix", "num_speculative_tokens": 0},
        {"drafter": "suffix", "num_speculative_tokens": 0, "controller": "fixed"},
        {"drafter": "ngram", "num_speculative_tokens": 0, "controller": "window"},
    ],
)
def test_L81_off_loads_and_drafts_nothing(opened, options):
    engine = loader.load("big", **options)
    assert list(opened) == ["big"]
    done = engine.generate("hello", max_tokens=30)
    assert done.token_ids == loader.load("big", "none").generate("hello", max_tokens=30).token_ids
    assert set(done.sources) == {"target"}
    empty = Stats()
    for field in ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position", "by_source", "draft_seconds"):
        assert getattr(done.stats, field) == getattr(empty, field)
    assert done.stats.passes == 30
    assert done.stats.mean_acceptance_length == 1.0


def test_L81_none_and_a_draft_model_contradict_each_other(opened):
    with pytest.raises(BadRequest, match="belong together"):
        loader.load("big", "none", draft_model="small")
    assert not opened


# L82: target and draft on different backends

LETTERS = [chr(97 + i) if i < 26 else chr(65 + i - 26) if i < 52 else "0" for i in range(53)]


class Boost:
    """A processor with state: raises the token that is its count of tokens so far, over 53."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def __call__(self, token_ids, logits):
        logits[self.count % 53] += 2.0
        return logits

    def fork(self):
        return Boost(self.count)

    def advance(self, token):
        self.count += 1


SECTION_5 = {
    "frequency": {"frequency_penalty": 1.5, "presence_penalty": -0.5},
    "repetition": {"repetition_penalty": 1.3},
    "bias": {"logit_bias": {4: 6.0, 7: -100.0}},
    "allowed": {"allowed_token_ids": list(range(0, 53, 2))},
    "bad words": {"bad_words_ids": [[5], [8, 9]], "bad_words": ["ab", "Q"]},
    "least": {"min_tokens": 6, "stop_token_ids": [3, 4, 5, 6, 7, 8, 9, 10]},
    "processor": {"logits_processors": [Boost()]},
    "logprobs": {"logprobs": 3},
    "thinking": {"thinking_budget": 4, "thinking_start": "a", "thinking_end": "zz", "logit_bias": {0: 3.0}},
    "regex": {"structured_outputs": {"regex": "([ab]c|[xyz]+0)*"}},
    "choice after": {"structured_outputs": {"choice": ["abc", "abd", "x"]}, "constrain_after": "k", "logit_bias": {10: 4.0}},
    "sampled": {"temperature": 0.8, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
    "typical": {"temperature": 1.2, "seed": 4, "typical_p": 0.8, "logprobs": 2, "frequency_penalty": 0.5},
}
PAIRS = [("openvino-llama", "llama"), ("llama", "openvino-llama")]


@pytest.mark.parametrize("option", SECTION_5)
@pytest.mark.parametrize("names", PAIRS, ids=["openvino-torch", "torch-openvino"])
def test_L82_every_option_with_the_draft_on_another_backend(backends, names, option):
    """Target on one backend, draft on the other: what plain decoding says, with what is shaped on both sides."""
    ours, draft = backends(names[0]).target, backends(names[1]).draft
    codec = ToyCodec(LETTERS)
    grammars = ToyGrammars(codec.pieces)
    options = {"max_tokens": 12} | SECTION_5[option]
    prompt = [7, 3, 7, 3, 9]
    found = speculate(ours, prompt, options, ModelDrafter(draft, 53), 3, codec, grammars=grammars, trace=True)
    same(found, plain(ours, prompt, options, codec, grammars=grammars))
    assert found.stats.draft_tokens > 0
    offered = [token for step in found.stats.trace for token in step.candidates]
    if option == "allowed":
        assert all(token % 2 == 0 for token in offered)
    if option == "bias":
        assert 7 not in offered
    if option == "least":
        assert not set(offered[:3]) & set(range(3, 11))


@pytest.mark.parametrize("k", LENGTHS)
@pytest.mark.parametrize("names", PAIRS, ids=["openvino-torch", "torch-openvino"])
def test_L82_many_options_at_once_with_the_draft_on_another_backend(backends, names, k):
    ours, draft = backends(names[0]).target, backends(names[1]).draft
    options = {"max_tokens": 10, "temperature": 0.9, "seed": 1, "logprobs": 2} | SECTION_5["repetition"]
    options |= SECTION_5["bias"] | SECTION_5["processor"] | {"min_p": 0.01, "bad_words_ids": [[5], [8, 9]]}
    prompt = [7, 3, 7, 3, 9]
    found = speculate(ours, prompt, options, ModelDrafter(draft, 53), k)
    same(found, plain(ours, prompt, options))
    assert 0 < found.stats.accepted_tokens <= found.stats.draft_tokens or k == 1
