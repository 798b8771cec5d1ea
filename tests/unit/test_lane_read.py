"""Several tokens behind a state in one call: what the same steps say, one after the other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny_llama import VOCAB, tiny_llama
from toys import fixed
from toys_exit import exit_head, exit_target
from toys_heads import TableLane

from surefoot.backends.table import TableModel
from surefoot.backends.torch import TorchModel
from surefoot.drafters.distilled import DistilledLane
from surefoot.drafters.early_exit import ExitLane
from surefoot.drafters.head import HeadDrafter
from surefoot.drafters.lane import Reads, read
from surefoot.heads.distilled import Distilled
from surefoot.heads.exit import KINDS
from surefoot.train.layers import read_layers

V = 16
IDS = torch.tensor([1, 2, 3, 5, 8, 13])


def stepped(lane, states, chains):
    """The same, token by token and row by row."""
    after, said = [], []
    for state, chain in zip(states, chains, strict=True):
        own, lines = [], []
        for token in chain:
            [state], logits = lane.step([state], [token])
            own.append(state)
            lines.append(logits.clone())
        after.append(own)
        said.append(torch.cat(lines))
    return after, said


def agree(lane, states, chains, further=4):
    """Reading equals stepping, also from each of the states that it gave."""
    after, said = read(lane, states, chains)
    others, want = stepped(lane, states, chains)
    assert [len(own) for own in after] == [len(lines) for lines in said] == [len(chain) for chain in chains]
    for ours, theirs in zip(said, want, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    ends = [state for own in after for state in own]
    more = [[(3 * i + j) % further for j in range(1 + i % 2)] for i in range(len(ends))]
    ours, theirs = read(lane, ends, more)[1], stepped(lane, [state for own in others for state in own], more)[1]
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-4)
    assert not all(torch.equal(said[0][0], line) for lines in said for line in lines)


def test_without_reads_levels_of_all_rows_are_steps():
    lane = TableLane(TableModel.random(9, 2, seed=5), (1, 4, 6))
    assert not isinstance(lane, Reads)
    agree(lane, [(1, 2), (3,), (4,)], [[5, 6, 7], [8], [0, 1]])
    lane.steps.clear()
    read(lane, [(1, 2), (3,), (4,)], [[5, 6, 7], [8], [0, 1]])
    assert lane.steps == [3, 2, 1]
    assert read(lane, [], []) == ([], [])


def begun(target, lane, prompts):
    """Rows that have said a few tokens, and the lane's states in front of their last."""
    engine = fixed(target, HeadDrafter(lane, V, name="head"), 2)
    rows = [engine.add(prompt) for prompt in prompts]
    for _ in range(3):
        engine.step()
    return rows, [lane.root(row) for row in rows]


@pytest.mark.parametrize("ids", [None, IDS], ids=["all", "some"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_reads_a_chain_in_one_pass(kind, ids):
    target = exit_target(V)
    lane = ExitLane(exit_head(target, kind, ids), target)
    assert isinstance(lane, Reads)
    rows, roots = begun(target, lane, [[3, 5, 1], [7]])
    chains = [[row.tokens[-1], 4, 9, 2][: 4 - i] for i, row in enumerate(rows)]
    target.ran.clear()
    lane.read(roots, chains)
    assert target.ran == [[tuple(chain) for chain in chains]]
    agree(lane, roots, chains)
    [[one]], _ = lane.read(roots[:1], [chains[0][:1]])
    target.ran.clear()
    lane.read([one, roots[1], one], [[4, 9], chains[1][:1], [6]])
    last = rows[0].tokens[-1]
    assert target.ran == [[(last, 4, 9), tuple(chains[1][:1])], [(last, 6)]], "branches of one row go one after the other"
    agree(lane, [one, roots[1], one], [[4, 9], chains[1], [6, 6, 6]])


@pytest.mark.parametrize("kind", ["kangaroo", "bare"])
def test_many_tokens_at_once(kind):
    """More than the compiled step is made for, in front of streams of the prompt that the head has not read yet."""
    target = exit_target(V)
    heads = exit_head(target, kind)
    said = []
    for several in (True, False):
        lane = ExitLane(heads, target)
        engine = fixed(target, HeadDrafter(lane, V, name="head"), 0)
        row = engine.add([(3 * i) % V for i in range(40)])
        row.limit = 9
        engine.step()
        chain = [row.tokens[-1], *range(12)]
        said.append((read if several else stepped)(lane, [lane.root(row)], [chain])[1][0])
    torch.testing.assert_close(*said, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize("quick", [False, True])
def test_a_distilled_draft_reads_a_chain_in_one_call(tmp_path, quick, some):
    model = tiny_llama()
    model.save_pretrained(tmp_path)
    target = TorchModel(model, max_rows=4)
    found = read_layers(tmp_path, [0, 2])
    module = Distilled(found.config, target.ends(), torch.tensor([2, 3, 4, 7, 11]) if some else None)
    module.load_state_dict(dict(found.tensors))
    calls = []

    def compile(step, example, dynamic):
        def run(*arguments):
            calls.append(arguments[3].shape[1])
            return tuple(step(*arguments))

        return run

    lane = DistilledLane(module.eval(), compile=compile if quick else None)
    assert isinstance(lane, Reads)
    rows = [SimpleNamespace(id=i, tokens=[(5 * j + i) % VOCAB for j in range(9 + i)]) for i in range(2)]
    roots = [lane.root(row) for row in rows]
    chains = [[row.tokens[-1], 4, 9, 2][: 4 - 2 * i] for i, row in enumerate(rows)]
    agree(lane, roots, chains)
    [[one]], _ = lane.read(roots[:1], [chains[0][:1]])
    calls.clear()
    lane.read([one, roots[1], one], [[4, 9], chains[1], [6]])
    assert len(calls) == quick
    assert all(n == 4 for n in calls), "three answers are asked for, and shapes are few"
    agree(lane, [one, roots[1], one], [[4, 9], chains[1], [6, 6, 6]])
    # what was read and then accepted is not read again
    rows[0].tokens += [4, 9, 5]
    [state] = [lane.root(rows[0])]
    assert state.lead == ()
    fresh = DistilledLane(module.eval())
    torch.testing.assert_close(lane.step([state], [5])[1], fresh.step([fresh.root(rows[0])], [5])[1], atol=1e-4, rtol=1e-4)
