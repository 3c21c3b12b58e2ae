"""float32: what it cannot hold is said early, and levels that move do not harm it."""

from __future__ import annotations

import gpytorch
import pytest
import torch

import cbandit as cb

F64 = torch.float64


def rbf(scale):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=F64)
    return kernel


@pytest.mark.parametrize("engine", ["factor", "stream"])
def test_a_window_that_has_left_its_first_level_is_believed_as_in_float64(engine):
    points = cb.Finite(torch.linspace(0, 1, 20, dtype=F64).unsqueeze(-1))
    belief = cb.GP(rbf(0.3), noise=1e-4, standardize=True)

    def policy(dtype):
        return cb.GPUCB(
            points,
            reward=belief,
            engine=engine,
            feedback=cb.Sliding(10),
            dtype=dtype,
        )

    wide, narrow = policy("float64"), policy("float32")
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 120):
        arm = torch.randint(20, (1,), generator=generator)
        noise = 0.01 * float(torch.randn((), generator=generator))
        told = 300.0 * (t // 15) + float(torch.sin(5 * points.at(arm)[0, 0])) + noise
        for each in (wide, narrow):
            each.tell(each.ask(among=arm), reward=told)
        if t % 15 >= 11:  # the window holds one level alone
            want, found = wide.posterior().reward, narrow.posterior().reward
            off = (found.mean.double() - want.mean).abs()
            assert float(off.max()) < 0.01 * float(want.mean.std())
            assert bool((off < 0.1 * want.std).all())


@pytest.mark.parametrize("engine", ["factor", "product", "stream"])
def test_outcomes_that_float32_cannot_hold_are_said_early(engine):
    axis = torch.linspace(0, 1, 7, dtype=F64)
    policy = cb.GPUCB(
        cb.ProductGrid([axis, axis]),
        reward=cb.GP(rbf(5.0), noise=1e-8),
        engine=engine,
        dtype="float32",
    )
    generator = torch.Generator().manual_seed(0)

    def play():
        for _ in range(70):
            arm = torch.randint(49, (1,), generator=generator)
            noise = 0.1 * float(torch.randn((), generator=generator))
            choice = policy.ask(among=arm)
            policy.tell(choice, reward=float(choice.x.sum()) + noise)

    with pytest.warns(RuntimeWarning, match=r"in float32 are off by .*dtype='float64'"):
        play()
