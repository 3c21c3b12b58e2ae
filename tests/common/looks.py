"""Random looks, and whether two passes found the same."""

from __future__ import annotations

import torch

from cbandit_kernels import Change, Found, Look, finish_round

F64, F32 = torch.float64, torch.float32
NEAR = {F64: 1e-12, F32: 2e-4}


def draws(seed: int):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, dtype: torch.dtype = F64) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64).to(dtype)

    return normal


def looked(normal, trials, functions, score, bound=False, mask=None) -> Look:
    weight = normal(trials, functions - 1).abs()
    return Look(
        normal(trials, functions),
        normal(trials, functions),
        normal(trials, functions).abs() + 0.3 if bound else None,
        score,
        weight,
        mask,
    )


def same(found: Found, wanted: Found, near: float) -> None:
    assert torch.allclose(found.value, wanted.value, atol=10 * near, rtol=near)
    if near < 1e-9:
        assert torch.equal(found.index, wanted.index)
        assert torch.allclose(found.estimate, wanted.estimate, atol=10 * near)


def best_of_a_line(n: int = 200_000) -> int:
    """The number of the last action, found by a compiled round."""
    mean, var = torch.zeros(1, 2, n, dtype=F64), torch.zeros(1, n, dtype=F64)
    mean[0, 0] = torch.linspace(0, 1, n)
    nothing = Change(torch.zeros(1, 0, dtype=F64), torch.zeros(1, 2, 0, dtype=F64))
    look = Look(torch.ones(1, 2, dtype=F64), None, None, "primal-dual")
    columns = torch.zeros(1, 0, n, dtype=F64)
    found = finish_round(columns, nothing, mean, var, look, backend="native")
    return int(found.index)
