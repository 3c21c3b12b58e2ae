"""Beliefs, widths and sets that cannot be, or do not go together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch import kernels as gpk
from midway import F64, INF, NAN, belief, line

import cbandit as cb


def test_kernels_for_other_coordinates():
    wide, plane = gpk.RBFKernel(ard_num_dims=3), torch.rand(9, 2, dtype=F64)
    axis = torch.linspace(0, 1, 5, dtype=F64)
    apart = gpk.RBFKernel(active_dims=[0]) * gpk.RBFKernel(active_dims=[2])
    for kernel, words in [
        (wide, ["ard_num_dims = 3", "d = 2"]),
        (gpk.ScaleKernel(wide), ["ard_num_dims = 3", "d = 2"]),
        (gpk.PeriodicKernel(ard_num_dims=3), ["PeriodicKernel", "3", "d = 2"]),
        (gpk.RBFKernel(active_dims=[0], ard_num_dims=2), ["= 2", "d = 1"]),
        (apart, ["active_dims = [2]", "d = 2"]),
        (gpk.RBFKernel(batch_shape=torch.Size([5])), ["batch_shape", "(5,)"]),
    ]:
        for actions in (
            cb.Finite(plane),
            cb.ProductGrid([axis, axis]),
            cb.Box([0.0, 0.0], [1.0, 1.0]),
        ):
            with pytest.raises(cb.CBanditError) as error:
                cb.CKB(
                    actions,
                    reward=belief(),
                    costs=[belief(), cb.GP(kernel, noise=1e-2)],
                    explore=cb.UCB(1.0),
                    step=0.1,
                    cap=1.0,
                )
            said = str(error.value)
            assert said.startswith("costs[1]: its ")
            assert all(word in said for word in words), said


def test_a_default_belief_is_for_its_own_set():
    made, wide = cb.GP.default(cb.Finite(line())), cb.Finite(10 * line())
    with pytest.raises(cb.CBanditError, match=r"reward: .*default.* \[10\.0\]"):
        cb.GPUCB(wide, reward=made, explore=cb.UCB(1.0))
    flat = cb.GP.default(cb.Box([0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(cb.CBanditError, match=r"reward: .*default.* \[1\.0, 1\.0\]"):
        cb.GPUCB(cb.Finite(line()), reward=flat, explore=cb.UCB(1.0))
    with pytest.raises(cb.CBanditError, match=r"reward: .*default"):
        cb.GPUCB(cb.Box([0.0, 0.0], [1.0, 1.0]), reward=made, explore=cb.UCB(1.0))
    # within the box that it was made for, and after rounding, it is fine
    for actions in (cb.Finite(line()[3:9]), cb.Box([0.2], [0.5]), cb.Finite(line())):
        for dtype in ("float32", "float64"):
            policy = cb.GPUCB(actions, reward=made, explore=cb.UCB(1.0), dtype=dtype)
            policy.tell(policy.ask(), reward=1.0)


def test_thompson_sampling_needs_no_width():
    policies = [
        cb.GPTS(cb.Finite(line()), reward=belief(), seed=4, **more)
        for more in ({}, {"explore": cb.TS(1.0)})
    ]
    for _ in range(5):
        a, b = (policy.ask() for policy in policies)
        assert torch.equal(a.index, b.index)
        for policy, choice in zip(policies, (a, b), strict=True):
            policy.tell(choice, reward=0.3)


def test_a_kernel_of_float32_is_used_in_float64():
    kernel = gpk.RBFKernel()
    kernel.lengthscale = 0.2
    gp = cb.GP(kernel, noise=1e-2)
    assert kernel.lengthscale.dtype == torch.float32  # the caller's own
    assert gp.kernel.lengthscale.dtype == F64
    held = np.log1p(np.exp(kernel.raw_lengthscale.item()))
    assert 1e-10 < abs(held - 0.2) < 1e-7
    policy = cb.GPUCB(cb.Finite(line()), reward=gp, explore=cb.UCB(1.0))
    policy.observe(x=[[0.0]], reward=[1.0])
    exact = np.exp(-0.5 * (np.linspace(0, 1, 20) / held) ** 2) / (1 + 1e-2)
    assert np.abs(policy.posterior().reward.mean.numpy() - exact).max() < 1e-14


BELIEFS = [
    (lambda: belief(noise=-1.0), ["noise", "negative", "-1"]),
    (lambda: belief(noise=NAN), ["noise", "finite"]),
    (lambda: belief(mean=INF), ["mean", "finite"]),
    (lambda: belief(mean=1.0, standardize=True), ["mean", "standardize"]),
    (lambda: belief(refit_every=0), ["refit_every"]),
    (lambda: cb.GP("rbf", noise=1.0), ["kernel", "str"]),
    (lambda: cb.GP(gpk.RBFKernel, noise=1.0), ["kernel", "the class RBFKernel"]),
    (lambda: cb.GP(torch.nn.Linear(1, 1), noise=1.0), ["kernel", "Linear"]),
    (lambda: cb.GP.default(np.zeros((3, 1))), ["actions", "ndarray", "cb.Finite"]),
    (lambda: cb.GP.default(line()), ["actions", "Tensor"]),
    (lambda: cb.UCB("2"), ["beta", "number", "str"]),
    (lambda: cb.UCB(None), ["beta", "NoneType"]),
    (lambda: cb.UCB(cb.RKHS), ["beta", "the class RKHS"]),
    (lambda: cb.Rand(1.0, low="a"), ["low", "'a'"]),
    (lambda: cb.Delayed(True), ["window", "True"]),
    (lambda: cb.load(None), ["path", "None"]),
    (
        lambda: cb.GPUCB(cb.Finite(line()), reward=belief(), explore=cb.UCB),
        ["explore", "the class UCB"],
    ),
    (
        lambda: cb.EpochPenalty(
            cb.Finite(line()),
            reward=gpk.RBFKernel(),
            costs=1,
            explore=cb.UCB(1.0),
            epoch=3,
        ),
        ["reward", "RBFKernel"],
    ),
    (
        lambda: cb.OPB(
            cb.Finite(line()),
            reward=gpk.RBFKernel(),
            costs=belief(),
            safe=cb.Safe(index=0),
        ),
        ["reward", "cb.Counts or a cb.GP", "RBFKernel"],
    ),
    (lambda: cb.UCB(-1.0), ["beta", "negative"]),
    (lambda: cb.UCB(1.0, [NAN]), ["cost_beta", "finite"]),
    (lambda: cb.Rand(1.0, draw="cauchy"), ["draw", "'cauchy'"]),
    (lambda: cb.Rand(1.0, points=1), ["points"]),
    (lambda: cb.Rand(1.0, high=0.5), ["high", "0.5"]),
    (lambda: cb.RKHS(1.0, 0.1, delta=1.0), ["delta"]),
    (lambda: cb.RKHS(-1.0, 0.1), ["norm"]),
    (lambda: cb.RKHS(1.0, 0.1, form="best"), ["form"]),
    (lambda: cb.Finite(), ["points", "covariance"]),
    (lambda: cb.Finite(torch.zeros(0, 2)), ["points", "(0, 2)"]),
    (
        lambda: cb.Finite(covariance=[[1.0, 2.0], [2.0, 1.0]]),
        ["covariance", "positive"],
    ),
    (
        lambda: cb.Finite(covariance=[[1.0, 0.5], [0.2, 1.0]]),
        ["covariance", "symmetric"],
    ),
    (lambda: cb.Finite(covariance=np.ones((2, 3))), ["covariance", "(2, 3)"]),
    (lambda: cb.Finite(covariance=[[NAN]]), ["covariance", "finite"]),
]


@pytest.mark.parametrize(("make", "words"), BELIEFS)
def test_parts_that_cannot_be(make, words):
    with pytest.raises(cb.CBanditError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)


def test_beliefs_and_sets_that_do_not_fit():
    make = {"explore": cb.UCB(1.0), "step": 0.1, "cap": 1.0}
    points, arms = cb.Finite(line()), cb.Finite(covariance=np.eye(4))
    for actions, reward, costs, words in [
        (points, cb.GP(noise=1.0), belief(), ["kernel", "covariance"]),
        (arms, belief(), belief(), ["kernel"]),
        (points, belief(), None, ["costs"]),
        (points, belief(), [], ["costs"]),
        (points, belief(), [belief(), 3], ["costs[1]", "int"]),
        (points, "gp", belief(), ["reward", "str"]),
        (line(), belief(), belief(), ["actions"]),
        (cb.Star([0.0], [[1.0]]), belief(), belief(), ["Star"]),
        (cb.Finite(torch.zeros(3, 5, 1)), belief(), belief(), ["3 trials"]),
        (points, belief(noise=[1.0, 2.0]), belief(), ["noise", "shape"]),
        (points, belief(), belief(mean=[1.0, 2.0]), ["mean", "shape"]),
    ]:
        with pytest.raises(cb.CBanditError) as error:
            cb.CKB(actions, reward=reward, costs=costs, **make)
        assert all(word in str(error.value) for word in words), str(error.value)


def test_an_empty_box_and_rows_that_are_none():
    with pytest.raises(cb.CBanditError, match="d at least 1; got"):
        cb.Box([], [], choices=[[1.0], [2.0]])
    for choices in ([1.0, 2.0], []):
        with pytest.raises(cb.CBanditError, match=r"choices must have rows"):
            cb.Box([0.0], [1.0], choices=choices)
