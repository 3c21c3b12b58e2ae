"""Variances told by function, ``noise={"reward": ..., "latency": ...}``.

References are dense float64 solves.
"""

from __future__ import annotations

import math

import pytest
import torch
from gpytorch import kernels as gpk
from torch import Tensor

import cbandit as cb

F64 = torch.float64
LAM = 0.01
ENGINES = ("joint", "factor", "product", "stream", "gpytorch", "sketch")
NAMES = ("latency", "power")


def rbf() -> gpk.Kernel:
    kernel = gpk.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    return kernel


def grid() -> cb.ProductGrid:
    axis = torch.linspace(0, 1, 9, dtype=F64)
    return cb.ProductGrid([axis, axis])


def outcomes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The reward and both costs at points ``(*b, d)``."""
    return torch.sin(4.0 * x[..., 0]) + x[..., 1], x[..., 0], 1.0 - x.square().sum(-1)


def variances(t: int) -> dict[str, float]:
    return {"reward": 0.05 + 0.01 * t, "latency": 0.2, "power": 0.5 / (1 + t)}


def ckb(actions, **more) -> cb.CKB:
    gp = cb.GP(rbf(), noise=LAM)
    common = {"step": 0.1, "cap": 5.0, "explore": cb.UCB(1.0), "thresholds": 0.5}
    return cb.CKB(actions, reward=gp, costs=dict.fromkeys(NAMES, gp), **(common | more))


def dense(x: Tensor, y: Tensor, noise: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    kernel = rbf()
    gram = kernel(x, x).to_dense() + torch.diag(noise)
    cross = kernel(at, x).to_dense()
    taken = (cross * torch.linalg.solve(gram, cross.mT).mT).sum(-1)
    mean = cross @ torch.linalg.solve(gram, y)
    return mean.detach(), (1 - taken).clamp_min(0).sqrt().detach()


def check(policy, x: Tensor, noises: dict[str, list[float]], close=1e-8):
    """Compare each function's posterior with a solve; ``x`` is ``(n, d)``."""
    at = grid().block(0, 81)
    found = policy.posterior(at)
    means = [found.reward.mean, *found.costs.mean.unbind(-2)]
    stds = [found.reward.std, *found.costs.std.unbind(-2)]
    names = ("reward", *NAMES)
    for name, y, mean, std in zip(names, outcomes(x), means, stds, strict=True):
        noise = torch.tensor(noises[name], dtype=F64)
        true = dense(x, y, noise, at)
        assert (mean.reshape(-1, 81)[0] - true[0]).abs().max() < close
        assert (std.reshape(-1, 81)[0] - true[1]).abs().max() < close


def tell_all(policy, choice, noise, apart: str) -> None:
    r, *costs = outcomes(choice.x)
    costs = dict(zip(NAMES, costs, strict=True))
    if apart == "together":
        policy.tell(choice, reward=r, cost=costs, noise=noise)
    elif apart == "as an array":
        policy.tell(choice, r, torch.stack(list(costs.values()), -1), noise=noise)
    else:
        policy.tell(choice, cost={"power": costs["power"]}, noise=pick(noise, "power"))
        policy.tell(choice, reward=r, noise=pick(noise, "reward"))
        policy.tell(
            choice, cost={"latency": costs["latency"]}, noise=pick(noise, "latency")
        )


def pick(noise: dict[str, float], name: str) -> dict[str, float]:
    return {name: noise[name]}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("apart", ["together", "as an array", "apart"])
def test_each_function_has_its_own_variances(engine, apart):
    policy, x = ckb(grid(), engine=engine), []
    noises = {name: [] for name in ("reward", *NAMES)}
    for t in range(8):
        choice = policy.ask()
        tell_all(policy, choice, variances(t), apart)
        x.append(choice.x.reshape(2))
        for name, value in variances(t).items():
            noises[name].append(value)
    check(policy, torch.stack(x), noises)


@pytest.mark.parametrize("actions", [grid(), cb.Box([0.0, 0.0], [1.0, 1.0])])
def test_some_named_and_the_belief_for_the_rest(actions):
    policy, x = ckb(actions, trials=2), []
    for _ in range(5):
        choice = policy.ask()
        r, *costs = outcomes(choice.x)
        noise = {"latency": torch.tensor([0.3, 0.7], dtype=F64)}
        policy.tell(choice, r, torch.stack(costs, -1), noise=noise)
        x.append(choice.x[0])
    noises = {"reward": [LAM] * 5, "latency": [0.3] * 5, "power": [LAM] * 5}
    check(policy, torch.stack(x), noises)


@pytest.mark.parametrize("engine", ENGINES)
def test_earlier_data_have_variances_by_function(engine):
    index = torch.arange(0, 81, 8)
    x, n = grid().points(index), 11
    noises = {
        name: torch.linspace(0.01 * (k + 1), 0.5, n, dtype=F64)
        for k, name in enumerate(("reward", *NAMES))
    }
    policy = ckb(grid(), engine=engine)
    r, *costs = outcomes(x)
    policy.observe(index=index, reward=r, cost=torch.stack(costs, -1), noise=noises)
    check(policy, x, {name: value.tolist() for name, value in noises.items()})


def test_standardised_functions_divide_them_by_their_own_units():
    gp = cb.GP(rbf(), noise=0.1, standardize=True)
    policies = []
    for scale in (1.0, 1024.0):
        policy = cb.CKB(
            grid(),
            reward=gp,
            costs={"latency": gp},
            thresholds={"latency": f"<= {0.5 * scale}"},
        )
        for t in range(6):
            choice = policy.ask()
            r, cost, _ = outcomes(choice.x)
            noise = {"reward": 0.1 + 0.1 * t, "latency": 0.2 * scale**2}
            policy.tell(choice, r, {"latency": cost * scale}, noise=noise)
        policies.append(policy)
    small, large = policies
    assert torch.equal(small.posterior().reward.std, large.posterior().reward.std)
    gap = small.posterior().costs.std * 1024.0 - large.posterior().costs.std
    assert gap.abs().max() == 0
    assert int(small.ask().index) == int(large.ask().index)


def test_multipliers_take_costs_as_if_told_together():
    policies = [
        cb.RPOL(
            grid(),
            reward=cb.GP(rbf(), noise=LAM),
            costs=dict.fromkeys(NAMES, cb.GP(rbf(), noise=LAM)),
            thresholds=0.2,
        )
        for _ in range(2)
    ]
    for noise in (None, {"latency": LAM, "power": LAM}):
        policy = policies[noise is not None]
        for _ in range(6):
            choice = policy.ask()
            r, *costs = outcomes(choice.x)
            policy.tell(choice, r, torch.stack(costs, -1), noise=noise)
    assert torch.equal(policies[0].multiplier, policies[1].multiplier)
    assert int(policies[0].ask().index) == int(policies[1].ask().index)


def test_histories_keep_them_and_observe_takes_them_back(tmp_path):
    policy = ckb(grid())
    for t in range(4):
        tell_all(policy, policy.ask(), variances(t), "together")
    frame = policy.history()
    for name in ("reward", *NAMES):
        told = [variances(t)[name] for t in range(4)]
        assert frame[f"noise_{name}"].tolist() == pytest.approx(told)
    other = ckb(grid())
    other.observe(frame)
    gap = other.posterior().costs.std - policy.posterior().costs.std
    assert gap.abs().max() < 1e-10
    policy.save(tmp_path / "state")
    again = cb.load(tmp_path / "state")
    assert torch.equal(again.posterior().reward.mean, policy.posterior().reward.mean)


def test_the_same_again_is_no_error_and_another_variance_is():
    policy = ckb(grid())
    choice = policy.ask()
    for _ in range(2):
        tell_all(policy, choice, variances(0), "together")
    with pytest.raises(cb.ChoiceError, match="cannot be changed"):
        tell_all(policy, choice, variances(0) | {"power": 3.0}, "together")
    assert len(policy.history()) == 1


def test_gaussian_functions_have_them_beside_binary_ones():
    latency = cb.GP(rbf(), noise=LAM)
    policy = cb.RPOL(
        grid(),
        reward=latency,
        costs={"latency": latency, "up": cb.GP(rbf(), outcome="binary")},
        thresholds={"latency": "<= 0.5", "up": ">= 0.9"},
    )
    x, cost = [], {"up": True}
    for _ in range(4):
        choice = policy.ask()
        r, first, _ = outcomes(choice.x)
        noise = {"reward": 0.3, "latency": 0.1}
        policy.tell(choice, r, cost | {"latency": first}, noise=noise)
        x.append(choice.x.reshape(2))
    x, at = torch.stack(x), grid().block(0, 81)
    true = dense(x, outcomes(x)[0], torch.full((4,), 0.3, dtype=F64), at)
    assert (policy.posterior(at).reward.mean - true[0]).abs().max() < 1e-8
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match="noise= of up cannot be told"):
        policy.tell(choice, 1.0, cost | {"latency": 0.1}, noise=0.1)
    with pytest.raises(cb.CBanditError, match="noise= of up cannot be told"):
        policy.tell(choice, cost=cost, noise={"up": 0.1})
    policy.tell(choice, reward=1.0, noise=0.1)
    assert policy.outstanding


@pytest.mark.parametrize(
    ("noise", "match"),
    [
        ({"speed": 0.1}, r"noise by name must be of what is told, \['reward'.*'speed'"),
        ({"power": -1.0}, r"noise\['power'\] must"),
        ({"power": math.nan}, r"noise\['power'\] must"),
        ({"power": [0.1, 0.2]}, r"noise\['power'\] must"),
    ],
)
def test_bad_variances_are_named_and_change_nothing(noise, match):
    policy = ckb(grid())
    choice = policy.ask()
    r, *costs = outcomes(choice.x)
    with pytest.raises(cb.CBanditError, match=match):
        policy.tell(choice, r, torch.stack(costs, -1), noise=noise)
    with pytest.raises(cb.CBanditError, match="what is told"):
        policy.tell(choice, reward=r, noise={"power": 0.1})
    assert policy.outstanding
    policy.tell(choice, r, torch.stack(costs, -1))


def test_costs_without_names_are_numbered():
    gp = cb.GP(rbf(), noise=LAM)
    policy = cb.RPOL(grid(), reward=gp, costs=[gp, gp], thresholds=0.5)
    choice = policy.ask()
    policy.tell(choice, 1.0, [0.1, 0.2], noise={"reward": 0.1, "cost2": 0.4})
    frame = policy.history()
    assert frame["noise_cost2"].tolist() == [0.4]
    assert "noise_cost1" not in frame
