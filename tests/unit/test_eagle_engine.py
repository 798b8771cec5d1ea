"""EAGLE heads with random weights in the engine: outputs are plain decoding's, and the lane stands on real activations."""

from __future__ import annotations

import pytest
import torch
from eagle_toys import config, eagle, eagle3
from toys import fixed, run
from toys_heads import IDS, LAST, PROMPTS, VOCAB, Watched, agrees_with_plain, compiled, torch_target

from surefoot.core.engine import Engine
from surefoot.core.params import SamplingParams
from surefoot.drafters.eagle import EagleLane
from surefoot.drafters.head import HeadDrafter
from surefoot.heads.eagle import Eagle
from surefoot.heads.eagle_layer import whole

LAYERS = 2


@pytest.fixture(scope="module")
def target():
    return torch_target()


@pytest.fixture(scope="module", params=["eagle", "eagle-reduced", "eagle3"])
def head(request, target):
    own, ids = target.ends(), torch.tensor(IDS)
    return {
        "eagle": lambda: echo(own),
        "eagle-reduced": lambda: eagle(own, ids),
        "eagle3": lambda: eagle3(own, ids),
    }[request.param]()


def echo(own) -> Eagle:
    """Says at first what the target said a token before, so its drafts are right now and then."""
    head = Eagle(config(1, own.head.shape[1]), own).eval()
    with torch.no_grad():
        size = own.head.shape[1]
        head.fc.weight[:, size:] = torch.eye(size)
        head.layer.self_attn.o_proj.weight.mul_(0.1)
        head.layer.mlp.down_proj.weight.mul_(0.1)
    return head


SAMPLED = {"temperature": 0.9, "seed": 7}


@pytest.mark.parametrize("options", [{"temperature": 0}, SAMPLED, SAMPLED | {"top_p": 0.8, "repetition_penalty": 1.2}])
@pytest.mark.parametrize("width", [1, 3])
def test_outputs_are_those_of_plain_decoding(target, head, options, width):
    agrees_with_plain(target, lambda: EagleLane(head, LAYERS), width=width, lengths=(1, 3, 8), **options)


def test_compiled_and_short_of_context(target, head):
    agrees_with_plain(target, lambda: EagleLane(head, LAYERS, context=8, compile=compiled), lengths=(4,), temperature=0)


def test_drafts_are_accepted_now_and_then(target):
    head = echo(target.ends())
    found = agrees_with_plain(target, lambda: EagleLane(head, LAYERS), width=3, lengths=(3, 5), temperature=0)
    assert 0.01 < found < 0.99


def test_the_lane_stands_on_the_targets_activations(target):
    """Ragged rows, chunked prefill, prefixes of earlier requests, an aborted neighbour and a fork."""
    head = echo(target.ends())
    drafter = Watched(EagleLane(head, LAYERS), target, [LAST], lambda root: root.feature)
    engine = fixed(target, drafter, 4, 2, 6, chunk=5, reuse=True)
    run(engine, *[(prompt * 6, {"max_tokens": 12, "temperature": 0}) for prompt in PROMPTS])
    found = run(engine, *[(prompt * 6 + [9], {"max_tokens": 12, "temperature": 0}) for prompt in PROMPTS])
    assert any(c.stats.cached_tokens for c in found), "no prefix was shared"
    gone = engine.add(PROMPTS[0] * 3, SamplingParams(max_tokens=30, temperature=0))
    row = engine.add(PROMPTS[2], SamplingParams(max_tokens=30, temperature=0))
    for _ in range(6):
        engine.step()
    engine.abort(gone)
    fork = engine.fork(row, [1, 2], SamplingParams(max_tokens=10, temperature=0))
    while not (row.done and fork.done):
        engine.step()
    engine.close()
    assert drafter.checked > 30
    assert not drafter.lane._rows


class Recomputed(HeadDrafter):
    """Compares what the lane says in front of each draft with a reading of the whole row from scratch."""

    def __init__(self, lane: EagleLane, target, head) -> None:
        super().__init__(lane, VOCAB, name="head")
        self.model, self.head, self.checked = target.model, head, 0

    def propose(self, rows, plans):
        for row in rows:
            root = self.lane.root(row)
            if root is None:
                continue
            _, said = self.lane.step([root], row.tokens[-1:])
            with torch.no_grad():
                streams = self.model(torch.tensor([row.tokens[:-1]]), output_hidden_states=True).hidden_states
                # the last of them is behind the final norm, so the tap after the last layer is made from its input
                last = self.model.model.layers[-1]
                raw: list[torch.Tensor] = []
                handle = last.register_forward_hook(lambda m, a, out: raw.append(out if torch.is_tensor(out) else out[0]))
                self.model(torch.tensor([row.tokens[:-1]]))
                handle.remove()
                taps = {0: streams[0], 1: streams[1], 2: raw[0], LAST: streams[-1]}
                x = torch.cat([taps[tap] for tap in self.head.taps(LAYERS)], -1)
                n = len(row.tokens) - 1
                _, wanted = whole(self.head, torch.tensor([row.tokens[1:]]), x, torch.arange(n)[None])
            torch.testing.assert_close(said[0], wanted[0, -1], rtol=1e-3, atol=1e-3)
            self.checked += 1
        return super().propose(rows, plans)


def test_keys_after_partial_accepts_are_those_of_the_text(target, head):
    drafter = Recomputed(EagleLane(head, LAYERS), target, head)
    engine = fixed(target, drafter, 4, 3, 7, chunk=6, reuse=False)
    run(engine, *[(prompt * 2, {"max_tokens": 16, "temperature": 0}) for prompt in PROMPTS])
    engine.close()
    assert drafter.checked > 20


def test_drawn_drafts_carry_the_law_they_were_drawn_from(target, head):
    """Without a seed the rule uses q: any q that is not the law of the draw makes the tree invalid or the output skewed."""
    drafter = HeadDrafter(EagleLane(head, LAYERS), VOCAB, name="head")
    seen = []
    propose = drafter.propose
    drafter.propose = lambda rows, plans: seen.extend(trees := propose(rows, plans)) or trees  # type: ignore[method-assign]
    engine = fixed(target, drafter, 4, 2, 6)
    run(engine, *[(prompt, {"max_tokens": 12, "temperature": 1.0}) for prompt in PROMPTS])
    engine.close()
    drawn = [tree for tree in seen if len(tree) > 1]
    assert drawn
    for tree in drawn:
        laws = tree.law_rows()
        for node, parent in enumerate(tree.parents.tolist()):
            if parent >= 0:
                assert float(laws[parent][tree.tokens[node]]) > 0
                assert float(laws[parent].sum()) == pytest.approx(1.0)


def test_plain_engine_is_untouched_by_a_lane_that_never_drafts(target, head):
    drafter = HeadDrafter(EagleLane(head, LAYERS), VOCAB, name="head")
    engine = Engine(target, [drafter])
    other = Engine(target)
    for prompt in PROMPTS:
        a = engine.generate(prompt, max_tokens=12, temperature=0)
        assert a.token_ids == other.generate(prompt, max_tokens=12, temperature=0).token_ids
    engine.close()
    other.close()
