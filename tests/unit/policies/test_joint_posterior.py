"""``posterior(index=, joint=True)``: covariances and draws, beside dense solves."""

from __future__ import annotations

import pytest
import torch
from gpytorch import kernels as gpk
from torch import Tensor

import cbandit as cb

F64, F32 = torch.float64, torch.float32
LAM = 0.05
ENGINES = ("joint", "factor", "product", "stream", "gpytorch")


def rbf() -> gpk.Kernel:
    kernel = gpk.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    return kernel


def grid(dtype=F64) -> cb.ProductGrid:
    axis = torch.linspace(0, 1, 9, dtype=dtype)
    return cb.ProductGrid([axis, axis])


def values(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sin(4.0 * x[..., 0]) + x[..., 1], x.square().sum(-1)


def ckb(actions, **more) -> cb.CKB:
    gp = cb.GP(rbf(), noise=LAM)
    common = {"step": 0.1, "cap": 5.0, "explore": cb.UCB(1.0), "thresholds": 0.5}
    return cb.CKB(actions, reward=gp, costs=[gp], **(common | more))


def play(policy, rounds: int = 6) -> Tensor:
    """Play; return what was chosen, (T, rounds, d)."""
    chosen = []
    for _ in range(rounds):
        choice = policy.ask()
        r, c = values(choice.x.double())
        policy.tell(choice, reward=r, cost=c)
        chosen.append(choice.x.double().reshape(-1, 2))
    return torch.stack(chosen, 1)


def dense(kernel, x: Tensor, at: Tensor, lam: float = LAM) -> Tensor:
    gram = kernel(x, x).to_dense() + lam * torch.eye(len(x), dtype=F64)
    cross = kernel(at, x).to_dense()
    prior = kernel(at, at).to_dense()
    return (prior - cross @ torch.linalg.solve(gram, cross.mT)).detach()


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("engine", ENGINES)
def test_covariances_are_those_of_a_dense_solve(engine, dtype):
    policy = ckb(grid(dtype), engine=engine, dtype=dtype)
    (x,) = play(policy)
    index = torch.arange(0, 81, 7)
    at = grid().points(index)
    found, close = policy.posterior(index=index, joint=True), 1e-10
    if dtype == F32:  # its points are rounded
        at, close = grid(F32).points(index).double(), 1e-6
    true = dense(rbf(), x, at)
    assert (found.reward.covariance - true).abs().max() < close
    assert found.costs.covariance.shape == (1, 12, 12)
    assert (found.costs.covariance[0] - true).abs().max() < close
    std = found.reward.covariance.diagonal().sqrt()
    assert (std - found.reward.std).abs().max() < 1e-6


def test_numbers_points_and_names_are_the_same_actions():
    space = cb.Space(threads=cb.Int(1, 8), codec=cb.Category("lz4", "zstd"))
    policy = cb.GPUCB(space, reward=cb.GP.default(space))
    for k in range(5):
        policy.tell(policy.ask(), reward=float(k))
    index = [1, 5, 12]
    rows = space.points(torch.tensor(index)).tolist()
    codecs = "lz4", "zstd"
    params = [{"threads": int(n), "codec": codecs[int(k)]} for n, k in rows]
    some = [
        policy.posterior(index=index),
        policy.posterior(space.points(torch.tensor(index))),
        policy.posterior(params=params),
    ]
    for other in some[1:]:
        assert torch.equal(other.reward.mean, some[0].reward.mean)
    whole = policy.posterior().reward
    assert (whole.mean[index] - some[0].reward.mean).abs().max() < 1e-9
    assert (whole.std[index] - some[0].reward.std).abs().max() < 1e-9
    one = policy.posterior(index=policy.ask().index)
    assert one.reward.mean.shape == (1,)


def test_the_whole_set_if_nothing_is_named():
    policy = ckb(grid())
    (x,) = play(policy)
    found = policy.posterior(joint=True).reward
    assert (found.covariance - dense(rbf(), x, grid().block(0, 81))).abs().max() < 1e-10


def test_trials_have_their_own():
    policy = ckb(grid(), trials=3, explore=cb.TS(1.0))
    chosen = play(policy)
    index = torch.tensor([[0, 5], [9, 40], [80, 2]])
    found = policy.posterior(index=index, joint=True)
    assert found.reward.covariance.shape == (3, 2, 2)
    assert found.costs.covariance.shape == (3, 1, 2, 2)
    assert found.reward.sample(7).shape == (7, 3, 2)
    assert found.costs.sample(7).shape == (7, 3, 1, 2)
    for i, x in enumerate(chosen):
        true = dense(rbf(), x, grid().points(index[i]))
        assert (found.reward.covariance[i] - true).abs().max() < 1e-10
    shared = policy.posterior(index=[1, 2, 3], joint=True).reward
    assert shared.covariance.shape == (3, 3, 3)


def test_boxes_take_points():
    policy = ckb(cb.Box([0.0, 0.0], [1.0, 1.0]))
    (x,) = play(policy, 4)
    at = grid().points(torch.arange(0, 81, 9))
    found = policy.posterior(at, joint=True).reward
    assert (found.covariance - dense(rbf(), x, at)).abs().max() < 1e-10
    with pytest.raises(cb.CBanditError, match="needs points on a Box"):
        policy.posterior(index=[0], joint=True)


@pytest.mark.parametrize("engine", ["joint", "stream"])
def test_draws_have_the_means_and_covariances(engine):
    policy, index = ckb(grid(), engine=engine), torch.arange(0, 81, 9)
    play(policy)
    found, count = policy.posterior(index=index, joint=True), 40_000
    for part in (found.reward, found.costs):
        draws = part.sample(count).reshape(count, -1)
        assert draws.dtype == F64
        mean, covariance = part.mean.reshape(-1), part.covariance.reshape(9, 9)
        # 5 deviations of an average of so many
        assert ((draws.mean(0) - mean).abs() < 5 * part.std.reshape(-1) / 200).all()
        assert (draws.T.cov() - covariance).abs().max() < 0.05 * covariance.max()
    reward, cost = found.reward.sample(count), found.costs.sample(count)[:, 0]
    together = torch.corrcoef(torch.cat([reward, cost], -1).T)[:9, 9:]
    assert together.abs().max() < 5 / 200  # they are independent


def test_draws_of_many_alike_points_are_finite_and_smooth():
    axis = torch.linspace(0, 1, 1500, dtype=F64)
    actions = cb.ProductGrid([axis])
    policy = cb.GPUCB(actions, reward=cb.GP(rbf(), noise=1e-8))
    policy.observe(index=[0, 700, 1499], reward=[0.0, 1.0, -1.0])
    draws = policy.posterior(joint=True).reward.sample(3)
    assert draws[:, [0, 700, 1499]] == pytest.approx(
        torch.tensor([[0.0, 1.0, -1.0]] * 3, dtype=F64), abs=1e-3
    )
    assert draws.diff(dim=-1).abs().max() < 0.05


def test_draws_repeat_and_go_on():
    policy, twin = ckb(grid(), explore=cb.TS(1.0)), ckb(grid(), explore=cb.TS(1.0))
    for each in (policy, twin):
        play(each, 3)
    first, again = (policy.posterior(index=[1, 2], joint=True) for _ in range(2))
    one = first.reward.sample(4)
    assert torch.equal(one, again.reward.sample(4))
    assert not torch.equal(one, first.reward.sample(4))
    assert int(policy.ask().index) == int(twin.ask().index)  # its own draws are its own


def test_trials_draw_the_same_alone():
    both = ckb(grid(), trials=2)
    second = ckb(grid(), trials=range(1, 2))
    for policy in (both, second):
        policy.observe(index=[3, 50], reward=[1.0, 0.0], cost=[0.1, 0.2])
    draws = [
        p.posterior(index=[5, 6, 7], joint=True).reward.sample(5)
        for p in (both, second)
    ]
    assert (draws[0][:, 1] - draws[1][:, 0]).abs().max() < 1e-9


def test_units_and_signs_are_the_users():
    gp = cb.GP(rbf(), noise=LAM, standardize=True)
    policy = cb.CKB(
        grid(),
        reward=gp,
        costs={"power": gp},
        thresholds={"power": ">= 0.5"},
        minimise=True,
    )
    index = torch.arange(0, 81, 10)
    at = grid().points(index)
    r, c = values(at)
    policy.observe(index=index, reward=1000.0 + 50.0 * r, cost=c)
    found = policy.posterior(index=[4, 44, 78], joint=True)
    for part in (found.reward, found.costs):
        std = part.covariance.reshape(3, 3).diagonal().sqrt()
        assert std.numpy() == pytest.approx(part.std.reshape(-1).numpy(), rel=1e-9)
        draws = part.sample(20_000).reshape(20_000, -1)
        gap = draws.mean(0) - part.mean.reshape(-1)
        assert (gap.abs() < 5 * part.std.reshape(-1) / 140).all()


@pytest.mark.parametrize("noise", [0.1, None])
def test_linear_beliefs(noise):
    space = cb.Space(a=cb.Int(0, 5), b=cb.Float(0.0, 1.0, step=0.25))
    policy = cb.GPUCB(space, reward=cb.GP.linear(space, noise=noise))
    index = torch.arange(0, 30, 3)
    policy.observe(index=index, reward=space.points(index).sum(-1))
    found = policy.posterior(index=[0, 7, 29], joint=True).reward
    std = found.covariance.diagonal().clamp_min(0).sqrt()
    assert std.numpy() == pytest.approx(found.std.numpy(), rel=1e-8)
    # a linear function: what varies at three points of a line varies together
    line = policy.posterior(index=[1, 2, 3], joint=True).reward.covariance
    bend = torch.tensor([1.0, -2.0, 1.0], dtype=F64)
    assert (bend @ line @ bend).abs() < 1e-9 * line.max()


def test_sketches_are_as_the_engine_sees_it():
    policy = ckb(grid(), engine="sketch")
    play(policy)
    found = policy.posterior(index=[3, 30, 60], joint=True).reward
    std = found.covariance.diagonal().sqrt()
    assert std.numpy() == pytest.approx(found.std.numpy(), rel=1e-8)


def test_latent_functions_are_called_so():
    policy = cb.CKB(
        grid(),
        reward=cb.GP(rbf(), noise=LAM),
        costs={"up": cb.GP(rbf(), outcome="binary"), "ms": cb.GP(rbf(), noise=LAM)},
        thresholds={"up": ">= 0.7", "ms": "<= 1"},
        step=0.1,
        cap=5.0,
    )
    for k in range(6):
        policy.tell(policy.ask(), 1.0, {"up": k % 3 > 0, "ms": 0.5})
    found = policy.posterior(index=[0, 40, 80], joint=True)
    assert found.reward.latent == (False,)
    assert found.costs.latent == (True, False)
    draws = found.costs.sample(40_000)
    chance = torch.special.ndtr(draws[:, 0]).mean(0)
    assert (chance - found.costs.mean[0]).abs().max() < 0.01
    assert (draws[:, 1].mean(0) - found.costs.mean[1]).abs().max() < 0.03


def test_choices_in_a_context_by_number():
    space = cb.Space(model=cb.Category("a", "b", "c"), load=cb.Context(2))
    policy = cb.GPUCB(space, reward=cb.GP(rbf(), noise=LAM))
    for _ in range(3):
        policy.tell(policy.ask(context=[0.3, 0.6]), reward=1.0)
    every = policy.posterior(context=[0.3, 0.6])
    some = policy.posterior(context=[0.3, 0.6], index=[2, 0], joint=True)
    assert torch.equal(some.reward.mean, every.reward.mean[[2, 0]])
    assert some.reward.covariance.shape == (2, 2)
    with pytest.raises(cb.CBanditError, match="context must give"):
        policy.posterior(index=[1])


def test_arms_known_by_their_covariance():
    table = torch.tensor([[1.0, 0.5], [0.5, 2.0]], dtype=F64)
    policy = cb.GPUCB(cb.Finite(covariance=table), reward=cb.GP(noise=0.5))
    found = policy.posterior(joint=True).reward.covariance
    assert torch.equal(found, table)
    policy.observe(index=[0], reward=[1.0])
    found = policy.posterior(index=[0, 1], joint=True).reward.covariance
    true = table - table[:, :1] @ table[:1] / 1.5
    assert (found - true).abs().max() < 1e-12


def test_bad_arguments_are_named():
    policy = ckb(grid())
    with pytest.raises(cb.CBanditError, match="one of x=, params= and index="):
        policy.posterior([[0.0, 0.0]], index=[0])
    with pytest.raises(cb.CBanditError, match="81"):
        policy.posterior(index=[81])
    with pytest.raises(cb.CBanditError, match="index must have n rows"):
        policy.posterior(index=[[0, 1], [2, 3]])
    plain = policy.posterior(index=[0, 1])
    for read in (lambda: plain.reward.covariance, plain.reward.sample):
        with pytest.raises(cb.CBanditError, match=r"needs posterior.*joint=True"):
            read()
    with pytest.raises(cb.CBanditError, match="k must be"):
        policy.posterior(index=[0], joint=True).reward.sample(0)
    axis = torch.linspace(0, 1, 70, dtype=F64)
    large = ckb(cb.ProductGrid([axis, axis]))
    with pytest.raises(cb.CBanditError, match=r"up to 4096 points.*got 4900"):
        large.posterior(joint=True)
    assert (
        large.posterior(index=range(4096), joint=True)
        .reward.covariance.isfinite()
        .all()
    )
