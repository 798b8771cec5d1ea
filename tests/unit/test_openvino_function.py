"""Small modules compiled by OpenVINO against the same modules in torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from surefoot.backends.openvino import function
from surefoot.backends.openvino.function import CompiledFunction, compile_module, eager, quick
from surefoot.errors import BackendError, BadRequest, Unsupported

WIDE, VOCAB = 32, 50
PLAIN = {"precision": "f32", "weights": "plain"}


class Head(nn.Module):
    """A state and a token in; the state behind it, scores and the best tokens out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDE)
        self.fc = nn.Linear(2 * WIDE, WIDE)
        self.head = nn.Linear(WIDE, VOCAB, bias=False)

    def forward(self, state, token):
        state = state + silu(self.fc(torch.cat([state, self.embedding(token)], -1)))
        scores = self.head(state)
        return state, scores, scores.topk(3, -1).indices


class Attention(nn.Module):
    """One position of each row over the keys and values before it: [n, T, heads, size] in, one position more out."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 4
        self.qkv = nn.Linear(WIDE, 3 * WIDE)

    def forward(self, x, keys, values):
        q, k, v = (t.reshape(x.shape[0], 1, self.heads, -1) for t in self.qkv(x).chunk(3, -1))
        keys, values = torch.cat([keys, k], 1), torch.cat([values, v], 1)
        out = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, keys, values)))
        return out.reshape(x.shape[0], -1), k, v


@pytest.fixture
def head():
    torch.manual_seed(1)
    return Head()


def asked(rows: int, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDE, generator=g), torch.randint(0, VOCAB, (rows,), generator=g)


def function_reads(run: CompiledFunction, result: torch.Tensor) -> int:
    """Arguments that the request reads out of a result's memory."""
    place = result.untyped_storage().data_ptr()
    return sum(bound.untyped_storage().data_ptr() == place for bound in run._bound)


def error(found, wanted) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("options, most", [(PLAIN, 1e-5), ({"weights": "plain"}, 0.03), ({}, 0.05)])
def test_results_are_the_modules_for_any_number_of_rows(head, options, most):
    run, same = compile_module(head, asked(2), [[0], [0]], threads=1, **options), eager(head)
    for seed, rows in enumerate((1, 4, 4, 2, 8, 1)):
        state, scores, best = run(*asked(rows, seed))
        state_too, scores_too, best_too = same(*asked(rows, seed))
        assert error(state, state_too) < most
        assert error(scores, scores_too) < most
        assert best.dtype == torch.int64
        assert best.shape == (rows, 3)
        if most <= 1e-5:
            assert torch.equal(best, best_too)


def test_eight_bits_are_fewer(head):
    """Rounded weights show in the results, or the option would do nothing."""
    wanted = eager(head)(*asked(4))[1]
    errors = [
        error(compile_module(head, asked(4), threads=1, precision="f32", weights=weights)(*asked(4))[1], wanted)
        for weights in ("plain", "int8")
    ]
    assert errors[0] < 1e-5 < 1e-3 < errors[1]


def test_the_next_call_writes_over_results(head):
    run = compile_module(head, asked(2), [[0], [0]], threads=1)
    first = run(*asked(2, seed=1))
    before = first[1].clone()
    second = run(*asked(2, seed=2))
    assert first[1].data_ptr() == second[1].data_ptr()
    assert not torch.equal(first[1], before)


def test_arguments_are_read_anew_and_left_alone(head):
    run = compile_module(head, asked(2), [[0], [0]], threads=1)
    (state, token), (other, _) = asked(2, seed=1), asked(2, seed=2)
    kept = state.clone()
    first = run(state, token)[1].clone()
    run(other, token)
    assert torch.equal(state, kept)  # copied, not written into
    state.copy_(other)
    assert not torch.equal(run(state, token)[1], first)
    wide = torch.zeros(2, 2 * WIDE)
    wide[:, ::2] = kept
    assert torch.equal(run(wide[:, ::2], token)[1], first)  # strides


def test_large_arguments_are_read_where_they_lie(monkeypatch, head):
    monkeypatch.setattr(function, "COPY", 0)
    run = compile_module(head, asked(2), [[0], [0]], threads=1, **PLAIN)
    state, token = asked(2, seed=1)
    for step in range(3):
        wanted = eager(head)(state, token)[1]
        assert error(run(state, token)[1], wanted) < 1e-5
        state.mul_(-2).add_(step)  # in place: nothing is bound anew
    turned = torch.randn(WIDE, 2).T  # the request cannot read it as it lies
    assert error(run(turned, token)[1], eager(head)(turned, token)[1]) < 1e-5
    for seed in range(3):  # other memory in every call
        assert error(run(*asked(3, seed))[1], eager(head)(*asked(3, seed))[1]) < 1e-5


@pytest.mark.parametrize("copied", [0, 1 << 20])
def test_results_may_go_in_again(monkeypatch, head, copied):
    """Also whole, or as a part: the request must not read what it writes."""
    monkeypatch.setattr(function, "COPY", copied)
    run = compile_module(head, asked(2), [[0], [0]], threads=1, **PLAIN)
    state, token = asked(2)
    wanted = state
    for _ in range(3):
        state, _, best = run(state, token)
        wanted, _, best_too = eager(head)(wanted, token)
        token = best[:, 0].clone()
        assert error(state, wanted) < 1e-5
        assert torch.equal(best, best_too)
        assert function_reads(run, state) == 0
    run(state[:1], token[:1])
    assert function_reads(run, state) == 0


@pytest.mark.parametrize("copied", [0, 1 << 20])
def test_attention_over_keys_that_grow(monkeypatch, copied):
    monkeypatch.setattr(function, "COPY", copied)
    torch.manual_seed(2)
    module, rows = Attention(), 2
    example = (torch.randn(rows, WIDE), torch.randn(rows, 3, 4, 8), torch.randn(rows, 3, 4, 8))
    run = compile_module(module, example, [[0], [0, 1], [0, -3]], threads=1, **PLAIN)
    _, keys, values = example
    for length in range(3, 8):
        x = torch.randn(rows, WIDE)
        wanted = eager(module)(x, keys, values)
        found = run(x, keys, values)
        assert all(error(a, b) < 1e-5 for a, b in zip(found, wanted, strict=True)), length
        keys, values = (torch.cat([old, new], 1) for old, new in zip((keys, values), found[1:], strict=True))
    x = torch.randn(1, WIDE)
    assert error(run(x, keys[:1], values[:1])[0], eager(module)(x, keys[:1], values[:1])[0]) < 1e-5


def test_a_table_in_half_precision():
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(VOCAB, WIDE).to(torch.bfloat16), requires_grad=False)

        def forward(self, token):
            return self.table[token]

    torch.manual_seed(3)
    module = Table()
    found = compile_module(module, (torch.tensor([1, 2]),), [[0]], threads=1)(torch.tensor([4, 9, 0]))[0]
    assert found.dtype == torch.float32
    assert torch.equal(found, module.table[[4, 9, 0]].float())


def test_masks_and_gradients():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x, mask):
            return torch.where(mask, x * self.scale, torch.zeros_like(x))

    x, mask = torch.randn(2, 3, requires_grad=True), torch.tensor([[True, False, True], [False, True, True]])
    (found,) = compile_module(Masked(), (x, mask), [[0], [0]], threads=1, **PLAIN)(x, mask)
    assert not found.requires_grad
    assert torch.equal(found, torch.where(mask, x, 0.0))


class Failing(nn.Module):
    def forward(self, x):
        raise KeyError("missing part")


class Odd(nn.Module):
    """Torch can, OpenVINO cannot."""

    def forward(self, x):
        return torch.linalg.eigvals(x).real


class Dictionary(nn.Module):
    def forward(self, x):
        return {"x": x}


class Branching(nn.Module):
    """A trace keeps one branch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x if self.calls == 1 else -x


@pytest.mark.parametrize(
    "module, said",
    [
        (Failing(), "missing part"),
        (Odd(), "linalg_eigvals.*run it in torch"),
        (Dictionary(), "tuple of tensors"),
        (Branching(), "off by 200.0%"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_compiled_is_refused(module, said, capfd):
    with pytest.raises(Unsupported, match=said) as caught:
        compile_module(module, (torch.eye(2) + 1,), threads=1)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_arguments_that_do_not_fit_are_refused(head):
    run = compile_module(head, asked(2), threads=1)
    for _ in range(2):
        with pytest.raises(BackendError, match="dynamic"):
            run(*asked(3))  # not said to vary
    with pytest.raises(BadRequest, match="2 arguments, not 1"):
        run(asked(2)[0])
    assert run(*asked(2))[1].shape == (2, VOCAB)  # and it still runs
    with pytest.raises(Unsupported, match=r"argument 0 is torch\.float64"):
        compile_module(head, (torch.zeros(2, WIDE, dtype=torch.float64), asked(2)[1]))
    with pytest.raises(BadRequest, match="unknown weights 'int3'"):
        compile_module(head, asked(2), weights="int3")


def test_quick_falls_back_to_torch(head):
    told: list[str] = []
    assert isinstance(quick(head, asked(2), [[0], [0]], tell=told.append, threads=1), CompiledFunction)
    assert not told
    run = quick(Odd(), (torch.eye(2),), tell=told.append)
    assert torch.equal(run(torch.eye(2) * 3)[0], torch.tensor([3.0, 3.0]))
    assert len(told) == 1
    assert "run it in torch" in told[0]
    with pytest.raises(BadRequest):  # a mistake of the caller's is not the module's
        quick(head, asked(2), weights="int3")


def test_converting_writes_nothing(head, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    compile_module(head, asked(2), [[0], [0]], threads=1)
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")
