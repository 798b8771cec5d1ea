"""L01 to L15: greedy output is plain decoding's, whatever the draft; every forward pass sees the right positions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from behaviour.grid import LENGTHS, combinations, engine_of, every_draft, every_draft_and_self, finish, plain, same, speculate
from contract.conftest import tiny
from toys import Custom, fixed, within

from surefoot.audit import audit_pairs
from surefoot.backends.table import TableModel
from surefoot.backends.torch import TorchModel
from surefoot.core.protocols import Need
from surefoot.core.tree import DraftTree, Forest
from surefoot.drafters.model import ModelDrafter
from surefoot.drafters.ngram import NgramDrafter

TINY = ("llama", "gpt2", "gemma3-window")
BOS = 1
SAMPLED = TableModel.random(9, order=1, seed=3, sharpness=1.5)


def each(*names: str):
    return pytest.mark.parametrize("name", names)


def half(model: torch.nn.Module) -> TorchModel:
    """The model in bfloat16, where one token and a block of them need not give the same bits."""
    return TorchModel(model.to(torch.bfloat16), trees=True)


def margins(target: TorchModel, tokens: list[int], new: int) -> list[tuple[int, float, int]]:
    """Of the last ``new`` tokens, scored one at a time: the argmax, its lead over the given token in steps of bfloat16,
    and the argmax when all of them are scored in one pass (the control: no draft, only a block)."""
    (slot, other) = target.open(2)

    def score(which, some):
        forest = Forest.pack([DraftTree.chain(some)], min_width=target.traits.min_width)
        logits = target.score([which], forest, Need()).logits.clone()
        target.commit([which], [range(len(some))])
        return logits

    begin = len(tokens) - new
    score(slot, tokens[: begin - 1])
    score(other, tokens[: begin - 1])
    block = score(other, tokens[begin - 1 : -1]).argmax(-1).tolist()
    found = []
    for i in range(begin, len(tokens)):
        logits = score(slot, [tokens[i - 1]])[-1]
        best = int(logits.argmax())
        lead = float(logits[best] - logits[tokens[i]])
        found.append((best, lead / (float(logits[best].abs()) * 2**-7), block[i - begin]))
    target.close([slot, other])
    return found


@each("llama", "gpt2")
@every_draft_and_self
def test_L01_one_token_prompt(name, kind, k, backends):
    target = backends(name).target
    wanted = plain(target, [7], {"max_tokens": 64})
    assert len(wanted.token_ids) == 64
    same(speculate(target, [7], {"max_tokens": 64}, kind, k), wanted)


@each("llama", "gpt2")
@every_draft_and_self
def test_L02_a_right_draft_is_never_rejected_behind_a_long_prompt(name, kind, k, backends):
    backend = backends(name)
    prompt, options = backend.prompt(208, 1), {"max_tokens": 32}
    found = speculate(backend.target, prompt, options, kind, k)
    same(found, plain(backend.target, prompt, options))
    if kind in ("oracle", "self"):
        assert found.stats.draft_tokens > 0
        assert found.stats.accepted_tokens == found.stats.draft_tokens


@every_draft_and_self
def test_L03_a_second_call_on_the_same_engine(kind, k, backends):
    backend = backends("llama")
    first, second, options = backend.prompt(21, 1), backend.prompt(33, 2), {"max_tokens": 24}
    engine = engine_of(backend.target, kind, k)
    for prompt in (first, second, first):
        same(finish(engine, prompt, options), plain(backend.target, prompt, options))
    engine.close()


@each("llama", "gemma3-window")
@pytest.mark.parametrize("kind", ["oracle", "wrong", "mixed", "self"])
def test_L04_draft_lengths_do_not_matter_in_float32(name, kind, backends):
    backend = backends(name)
    prompt, options = backend.prompt(17, 2), {"max_tokens": 24}
    said = {speculate(backend.target, prompt, options, kind, k).token_ids for k in range(1, 17)}
    assert said == {plain(backend.target, prompt, options).token_ids}


@pytest.mark.parametrize("kind", ["oracle", "mixed"])
def test_L04_in_bfloat16_only_ties_may_differ(kind):
    target = half(tiny("LlamaConfig"))
    prompt, options = [3, 1, 4, 1, 5, 9, 2, 6], {"max_tokens": 24}
    wanted = plain(target, prompt, options).token_ids
    for k in range(1, 17):
        found = speculate(target, prompt, options, kind, k).token_ids
        same_until = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), len(wanted))
        for best, lead, _ in margins(target, [*prompt, *found[: same_until + 1]], len(found[: same_until + 1])):
            assert lead <= 2.0, f"k={k}: token {same_until} is no tie, the argmax {best} leads by {lead} steps"


@every_draft
def test_L05_never_a_first_token_that_plain_decoding_does_not_say(kind, k, backends):
    """A pair of one family, the prompt opened by BOS."""
    backend = backends("llama")
    prompt, options = [BOS, *backend.prompt(12, 1)], {"max_tokens": 40}
    wanted = plain(backend.target, prompt, options)
    assert BOS not in wanted.token_ids
    same(speculate(backend.target, prompt, options, kind, k), wanted)
    found = speculate(backend.target, prompt, options, ModelDrafter(backend.draft, backend.vocab), k)
    same(found, wanted)
    assert 0 < found.stats.accepted_tokens < found.stats.draft_tokens


@pytest.mark.parametrize("k", LENGTHS)
def test_L05_samples_are_as_probable_as_plain_ones(k):
    """Mean log-probability under the target of samples at T = 0.7, by the ratio rule and a draft model."""
    target = SAMPLED
    draft = target.mixed(TableModel.random(9, order=1, seed=4, sharpness=1.5), 0.4)
    laws = torch.log_softmax(target.logits / 0.7, -1)

    options = {"max_tokens": 10, "temperature": 0.7, "verification": "ratio"}
    engine = engine_of(target, ModelDrafter(draft, 9), k)

    def mean(tokens: tuple[int, ...]) -> float:
        return float(np.mean([float(laws[a, b]) for a, b in itertools.pairwise([2, *tokens])]))

    found = [finish(engine, [2], options | {"seed": 1000 + i}) for i in range(150)]
    assert sum(c.stats.accepted_tokens for c in found) > 200
    ours = [mean(c.token_ids) for c in found]
    plainly = [mean(plain(target, [2], options | {"seed": 5000 + i}).token_ids) for i in range(150)]
    engine.close()
    error = np.sqrt(np.var(ours) / len(ours) + np.var(plainly) / len(plainly))
    assert abs(np.mean(ours) - np.mean(plainly)) < 4 * error


@each("llama", "gemma3-window")
@every_draft
def test_L07_trees_in_float32(name, kind, k, backends):
    backend = backends(name)
    for n, shift in ((1, 0), (19, 1)):
        prompt, options = backend.prompt(n, shift), {"max_tokens": 24}
        same(speculate(backend.target, prompt, options, kind, k, tree=True), plain(backend.target, prompt, options))


@every_draft
def test_L07_trees_in_bfloat16_say_the_argmax_or_a_tie(kind, k, half_llama):
    prompt = [11, 3, 8, 3, 8, 2]
    found = speculate(half_llama, prompt, {"max_tokens": 24}, kind, k, tree=True).token_ids
    for best, lead, _ in margins(half_llama, [*prompt, *found], len(found)):
        assert lead <= 2.0, f"the argmax {best} leads by {lead} steps"


@pytest.fixture(scope="module")
def half_llama() -> TorchModel:
    return half(tiny("LlamaConfig"))


@each("llama")
@combinations(("oracle", "wrong", "mixed", "ngram"))
def test_L08_one_token_forty_eight_times(name, kind, k, backends):
    backend = backends(name)
    prompt, options = [9] * 48, {"max_tokens": 32}
    draft = NgramDrafter(max_n=5, min_n=2) if kind == "ngram" else kind
    found = speculate(backend.target, prompt, options, draft, k)
    same(found, plain(backend.target, prompt, options))
    assert found.stats.draft_tokens > 0


@each(*TINY)
@pytest.mark.parametrize("k", LENGTHS)
def test_L10_its_own_draft_is_always_accepted_in_float32(name, k, backends):
    backend = backends(name)
    prompt, options = backend.prompt(20, 1), {"max_tokens": 200}
    found = speculate(backend.target, prompt, options, "self", k)
    same(found, plain(backend.target, prompt, options))
    assert found.stats.draft_tokens == found.stats.accepted_tokens > 90


@every_draft
def test_L11_differs_at_most_where_a_block_without_a_draft_does(kind, k, half_llama):
    """The control: plain decoding's own text scored in one pass. Elsewhere the output is plain decoding's."""
    prompt, options = [2, 7, 1, 8, 2, 8], {"max_tokens": 32}
    wanted = plain(half_llama, prompt, options).token_ids
    control = margins(half_llama, [*prompt, *wanted], len(wanted))
    flips = [i for i, (best, lead, block) in enumerate(control) if best != block or lead > 0]
    found = speculate(half_llama, prompt, options, kind, k).token_ids
    first = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), None)
    assert first is None or first in flips


STEP = 0.125
"""Of bfloat16 at 16: two logits that far apart may round to a tie."""


def stepped() -> TableModel:
    """The best logit is 16; the second best is one step lower, the third one five per cent."""
    logits = torch.zeros(41, 40, dtype=torch.float64)
    for t in range(41):
        for ahead, value in ((1, 16.0), (2, 16.0 - STEP), (3, 16.0 * 0.95)):
            logits[t, (t + ahead) % 40] = value
    return TableModel(logits, 1)


def outputs(path: Path, tokens: list[int]) -> str:
    path.write_text(json.dumps({"prompt_token_ids": [2], "token_ids": tokens, "finish_reason": "length"}) + "\n")
    return str(path)


@pytest.mark.parametrize("place", range(12))
def test_L12_either_of_a_tie_and_never_five_per_cent_less(place, tmp_path):
    """A checker that knows ties looks at every position, behind an accepted tie too."""
    target = stepped()
    wanted = list(plain(target, [2], {"max_tokens": 12}).token_ids)
    reference = outputs(tmp_path / "a.jsonl", wanted)

    def verdicts(ahead: dict[int, int]) -> list[tuple[int, str]]:
        """Of an output that goes ``ahead[place]`` on instead of one."""
        tokens = [2]
        for i in range(12):
            tokens.append(tokens[-1] + ahead.get(i, 1))
        found = audit_pairs(target, reference, outputs(tmp_path / "b.jsonl", tokens[1:]), dtype="bf16").results[1]
        return [(f.position, f.verdict) for f in found.findings if f.verdict != "ok"]

    assert verdicts({place: 2}) == [(place, "tie")]
    assert verdicts({place: 3}) == [(place, "bug")]
    assert verdicts({0: 2, place: 3}) == ([(0, "tie"), (place, "bug")] if place else [(0, "bug")])
    assert verdicts(dict.fromkeys(range(12), 2)) == [(i, "tie") for i in range(12)]


@pytest.mark.parametrize("best_first", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
def test_L13_only_the_argmax_branch_is_followed(length, best_first):
    """Children {argmax, second best} at the root; the second best has a long chain of its own argmaxes below it."""
    target = TableModel.random(12, order=2, seed=8, sharpness=1.5)

    def propose(row, plan):
        root = torch.topk(target.next_logits(row.tokens), 2).indices.tolist()
        pair = root if best_first else root[::-1]
        tokens, parents = [row.tokens[-1], *pair], [-1, 0, 0]
        path, node = [*row.tokens, root[1]], 1 + pair.index(root[1])
        for _ in range(length):
            path.append(int(target.next_logits(path).argmax()))
            tokens.append(path[-1])
            parents.append(node)
            node = len(tokens) - 1
        return within(plan, tokens, parents)

    prompt, options = [4, 5], {"max_tokens": 24}
    draft = Custom(propose)
    engine = fixed(target, draft, length + 1, width=2, nodes=length + 2)
    found = finish(engine, prompt, options, trace=True)
    same(found, plain(target, prompt, options))
    for entry in found.stats.trace or []:
        # the argmax has no children here, so one token at most is accepted, and it is that child
        accepted = [i for i, flag in enumerate(entry.accepted) if flag]
        assert accepted in ([], [0 if best_first else 1])
    assert found.stats.accepted_tokens >= 10
    engine.close()
