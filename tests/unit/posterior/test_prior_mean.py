"""Prior means that vary: functions of points, and gpytorch Means.

References are dense float64 solves, and GPyTorch's own ExactGP.
"""

from __future__ import annotations

import math
from functools import partial

import gpytorch
import pytest
import torch
from gpytorch import kernels as gpk
from gpytorch.means import ConstantMean, LinearMean, Mean
from torch import Tensor

import cbandit as cb

F64, F32 = torch.float64, torch.float32
LAM = 0.01
ENGINES = ("joint", "factor", "product", "stream", "sketch", "gpytorch")


def slope(x: Tensor) -> Tensor:
    return 3.0 + 2.0 * x[:, 0] - torch.sin(5.0 * x[:, -1])


def bowl(x: Tensor) -> Tensor:
    return (x - 0.5).square().sum(-1) - 1.0


def share(x: Tensor) -> Tensor:
    return 0.2 + 0.6 * x[:, 0]


def rate(x: Tensor) -> Tensor:
    return 1.0 + 4.0 * x[:, 0]


class Wave(Mean):
    """A Mean of one's own, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.height = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.height * torch.sin(4.0 * x[..., 0])


def rbf(length: float = 0.3) -> gpk.Kernel:
    kernel = gpk.RBFKernel().double()
    kernel.lengthscale = torch.tensor(length, dtype=F64)
    return kernel


def line(slope: object, bias: object) -> LinearMean:
    mean = LinearMean(2).double()
    mean.weights.data = torch.tensor(slope, dtype=F64).unsqueeze(-1)
    mean.bias.data = torch.tensor([bias], dtype=F64)
    return mean


def reward_at(x: Tensor) -> Tensor:
    return torch.sin(4.0 * x[..., 0]) + x[..., 1]


def cost_at(x: Tensor) -> Tensor:
    return reward_at(x).square()


def points(n: int, seed: int = 0, dtype=F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, 2, generator=generator, dtype=F64).to(dtype)


def grid(dtype=F64) -> cb.ProductGrid:
    axis = torch.linspace(0, 1, 12, dtype=dtype)
    return cb.ProductGrid([axis, axis])


def dense(kernel, mean, x: Tensor, y: Tensor, at: Tensor, lam=LAM):
    """Posterior mean and deviation, by a solve."""
    x, at = x.double(), at.double()
    lam = torch.as_tensor(lam, dtype=F64).expand(len(x))
    gram = kernel(x, x).to_dense() + torch.diag(lam)
    cross = kernel(at, x).to_dense()
    center = mean(at) + cross @ torch.linalg.solve(gram, y.double() - mean(x))
    taken = (cross * torch.linalg.solve(gram, cross.mT).mT).sum(-1)
    return center.detach(), (kernel(at, diag=True) - taken).clamp_min(0).sqrt().detach()


class ByGPyTorch(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel, mean):
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = torch.tensor(LAM, dtype=F64)
        super().__init__(x, y, likelihood)
        self.covar_module, self.mean_module = kernel, mean

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(
            self.mean_module(x), self.covar_module(x)
        )


def ckb(actions, means=(slope, bowl), **more) -> cb.CKB:
    reward, cost = (cb.GP(rbf(), noise=LAM, mean=mean) for mean in means)
    common = {"step": 0.1, "cap": 5.0, "explore": cb.UCB(1.0), "thresholds": 1.0}
    return cb.CKB(actions, reward=reward, costs=cost, **(common | more))


def play(policy, rounds: int = 15):
    """Play some rounds; return what was chosen, (T, rounds, d)."""
    chosen = []
    for _ in range(rounds):
        choice = policy.ask()
        chosen.append(choice.x.double().reshape(-1, 2))
        policy.tell(choice, reward=reward_at(choice.x), cost=cost_at(choice.x))
    return torch.stack(chosen, 1)


def check(policy, chosen: Tensor, at: Tensor, means=(slope, bowl), close=1e-10):
    """Compare a posterior at points with dense solves, in every trial."""
    found = policy.posterior(at.to(policy.dtype))
    shape = len(chosen), -1, len(at)
    got = [
        found.reward.mean.reshape(shape)[:, 0],
        found.costs.mean.reshape(shape)[:, 0],
        found.reward.std.reshape(shape)[:, 0],
    ]
    for i, x in enumerate(chosen):
        first, std = dense(rbf(), means[0], x, reward_at(x), at)
        second, _ = dense(rbf(), means[1], x, cost_at(x), at)
        for mine, true in zip(got, (first, second, std), strict=True):
            assert (mine[i].double() - true).abs().max() < close


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_agrees_with_a_dense_solve(engine, dtype):
    policy = ckb(grid(dtype), engine=engine, dtype=dtype)
    chosen, close = play(policy), 1e-8 if dtype == F64 else 2e-4
    at = grid().block(0, 144)
    check(policy, chosen, at, close=close)
    whole = policy.posterior()
    mean, _ = dense(rbf(), slope, chosen[0], reward_at(chosen[0]), at)
    assert (whole.reward.mean.double() - mean).abs().max() < close


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
def test_choices_are_those_of_the_score_by_dense_solves(engine):
    policy, at = ckb(grid(), engine=engine), grid().block(0, 144)
    seen = torch.zeros(0, 2, dtype=F64)
    for _ in range(12):
        phi = policy.multiplier
        choice = policy.ask()
        f, std = dense(rbf(), slope, seen, reward_at(seen), at)
        g, _ = dense(rbf(), bowl, seen, cost_at(seen), at)
        score = f + std - phi[0] * (g - std - 1.0)
        assert score[choice.index] > score.max() - 1e-9
        policy.tell(choice, reward=reward_at(choice.x), cost=cost_at(choice.x))
        seen = torch.cat([seen, choice.x.reshape(1, 2)])


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
def test_trials_run_side_by_side(engine):
    policy = ckb(grid(), engine=engine, trials=3, explore=cb.TS(1.0))
    check(policy, play(policy, 8), points(9), close=1e-8)


def test_each_trial_has_its_own_points():
    own = torch.stack([points(40, seed) for seed in range(3)])
    policy = ckb(cb.Finite(own), trials=3)
    check(policy, play(policy, 6), points(9), close=1e-8)


def test_boxes_search_with_the_mean_and_its_slope():
    policy = ckb(cb.Box([0.0, 0.0], [1.0, 1.0]))
    chosen = play(policy, 5)
    check(policy, chosen, points(20))
    x, phi = chosen[0], policy.multiplier
    choice, at = (
        policy.ask(),
        cb.ProductGrid([torch.linspace(0, 1, 101, dtype=F64)] * 2),
    )

    def score(at):
        f, std = dense(rbf(), slope, x, reward_at(x), at)
        g, _ = dense(rbf(), bowl, x, cost_at(x), at)
        return f + std - phi[0] * (g - std - 1.0)

    best = score(at.block(0, at.size)).max()
    assert score(choice.x.reshape(1, 2)).item() > best - 1e-9


def test_gradients_reach_points_through_the_mean():
    policy = ckb(cb.Box([0.0, 0.0], [1.0, 1.0]))
    play(policy, 3)
    solve = policy._beliefs.solver()
    x = points(4).unsqueeze(0).requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: solve(x)[0], (x,))


def test_only_one_function_may_have_one():
    policy = ckb(grid(), means=(2.5, bowl))
    chosen = play(policy, 6)
    check(policy, chosen, points(9), (lambda x: torch.full_like(x[:, 0], 2.5), bowl))


@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_minimised_rewards_and_lower_limits_turn_it(engine):
    reward, cost = (cb.GP(rbf(), noise=LAM, mean=mean) for mean in (slope, bowl))
    policy = cb.CKB(
        grid(),
        reward=reward,
        costs={"power": cost},
        thresholds={"power": ">= 0.5"},
        minimise=True,
        step=0.1,
        cap=5.0,
        engine=engine,
    )
    check(policy, play(policy, 6), points(9))


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
def test_windows_forget_differences_from_the_mean(engine):
    policy = ckb(grid(), engine=engine, feedback=cb.Sliding(5), horizon=50)
    x = play(policy, 12)[0]
    policy.ask()  # the oldest of the window leaves
    check(policy, x[-4:].unsqueeze(0), points(9), close=1e-8)


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
def test_the_mean_stands_in_for_delayed_rewards(engine):
    policy = ckb(grid(), engine=engine, feedback=cb.Delayed(3), horizon=50)
    waiting, x, y = [], [], []
    for _ in range(9):
        waiting.append(policy.ask())
        x.append(waiting[-1].x.reshape(2))
        y.append(slope(x[-1].unsqueeze(0))[0])
        if len(waiting) > 1:
            choice = waiting.pop(0)
            y[-2] = reward_at(choice.x)
            policy.tell(choice, reward=y[-2], cost=cost_at(choice.x))
    mean, std = dense(rbf(), slope, torch.stack(x), torch.stack(y), points(9))
    found = policy.posterior(points(9)).reward
    assert (found.std - std).abs().max() < 1e-8
    assert (found.mean - mean).abs().max() < 1e-8


def test_a_known_mean_is_the_same_as_telling_differences_from_it():
    plain = ckb(grid(), means=(0.0, 0.0), thresholds=1.0)
    raised = ckb(grid(), means=(slope, 0.0), thresholds=1.0)
    index = torch.arange(0, 144, 12)
    at = grid().points(index)
    plain.observe(index=index, reward=reward_at(at), cost=cost_at(at))
    raised.observe(index=index, reward=reward_at(at) + slope(at), cost=cost_at(at))
    gap = raised.posterior().reward.mean - plain.posterior().reward.mean
    assert (gap - slope(grid().block(0, 144))).abs().max() < 1e-10
    assert torch.equal(raised.posterior().reward.std, plain.posterior().reward.std)


@pytest.mark.parametrize("outcome", ["binary", "count"])
def test_probabilities_and_rates_are_the_stated_ones_before_data(outcome):
    mean = {"binary": share, "count": rate}[outcome]
    policy = cb.GPUCB(grid(), reward=cb.GP(rbf(), mean=mean, outcome=outcome))
    gap = policy.posterior().reward.mean - mean(grid().block(0, 144))
    assert gap.abs().max() < 1e-9


def test_a_binary_outcome_moves_the_latent_function_as_bayes_says():
    policy = cb.GPUCB(grid(), reward=cb.GP(rbf(), mean=share, outcome="binary"))
    index = 100
    policy.observe(index=[index], reward=[1.0])
    found = policy.posterior().reward.mean[index].item()
    # the latent function there is normal with variance 1 and the stated probability
    stated = share(grid().points(torch.tensor([index])))
    center = torch.special.ndtri(stated) * math.sqrt(2.0)
    f = torch.linspace(-12, 12, 20001, dtype=F64)
    weight = torch.special.ndtr(f) * torch.exp(-0.5 * (f - center).square())
    weight = weight / weight.sum()
    after = (weight * f).sum()
    spread = (weight * (f - after).square()).sum()
    true = torch.special.ndtr(after / (1 + spread).sqrt())
    assert found == pytest.approx(true.item(), abs=1e-8)


@pytest.mark.parametrize("outcome", ["binary", "count"])
def test_a_function_that_is_constant_is_that_constant(outcome):
    found = []
    for mean in (0.3, lambda x: torch.full_like(x[:, 0], 0.3)):
        policy = cb.GPUCB(grid(), reward=cb.GP(rbf(), mean=mean, outcome=outcome))
        for k in range(8):
            policy.tell(policy.ask(), reward=k % 2)
        policy.refit()
        policy.ask()
        found.append(policy.posterior().reward.mean)
    assert (found[0] - found[1]).abs().max() < 1e-9


# -- gpytorch Means ------------------------------------------------------------------


@pytest.mark.parametrize("trials", [None, 2])
def test_a_linear_mean_is_fitted_as_gpytorch_fits_it(trials):
    x = points(25)
    y = 1.0 + 3.0 * x[:, 0] - 2.0 * x[:, 1] + 0.3 * torch.sin(9.0 * x[:, 0])
    belief = cb.GP(rbf(), noise=LAM, mean=line([0.0, 0.0], 0.0))
    policy = cb.GPUCB(cb.Box([0.0, 0.0], [1.0, 1.0]), reward=belief, trials=trials)
    policy.observe(x=x, reward=y)
    policy.refit()
    model = ByGPyTorch(x, y, rbf(), line([0.0, 0.0], 0.0)).double()
    model.likelihood.requires_grad_(False)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    model.train()
    free = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.LBFGS(free, max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        with gpytorch.settings.fast_computations(False, False, False):
            loss = -marginal(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimiser.step(closure)
    model.eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        theirs = model(points(9, 5)).mean
    mine = policy.posterior(points(9, 5)).reward.mean.reshape(-1, 9)
    assert (mine - theirs).abs().max() < 2e-4


def test_trials_fit_means_of_their_own():
    mean = LinearMean(2, batch_shape=torch.Size([2]))
    mean.weights.data.zero_()
    mean.bias.data.zero_()
    belief = cb.GP(rbf(), noise=LAM, mean=mean)
    policy = cb.GPUCB(grid(), reward=belief, trials=2)
    assert policy.posterior().reward.mean.abs().max() == 0
    index = torch.arange(0, 144, 7)
    at = grid().points(index)
    y = torch.stack([k * at[:, 0] + 0.1 * torch.sin(9.0 * at[:, 1]) for k in (-3, 5)])
    policy.observe(index=index, reward=y)
    policy.refit()
    for i in range(2):
        alone = cb.GPUCB(
            grid(), reward=cb.GP(rbf(), noise=LAM, mean=line([0.0, 0.0], 0))
        )
        alone.observe(index=index, reward=y[i])
        alone.refit()
        gap = policy.posterior().reward.mean[i] - alone.posterior().reward.mean
        assert gap.abs().max() < 1e-6


def test_means_of_ones_own_and_their_priors_enter_fits():
    index = torch.arange(0, 144, 5)
    at = grid().points(index)
    y = 2.0 * torch.sin(4.0 * at[:, 0])
    policy = cb.GPUCB(grid(), reward=cb.GP(rbf(1.0), noise=LAM, mean=Wave()))
    policy.observe(index=index, reward=y)
    policy.refit()
    assert abs(policy.model.models[0].mean_module(at)[3] - y[3]) < 0.1
    tight = gpytorch.priors.NormalPrior(4.0, 1e-3)
    levels = []
    for prior in (None, tight):
        mean = ConstantMean(constant_prior=prior)
        policy = cb.GPUCB(grid(), reward=cb.GP(rbf(0.05), noise=LAM, mean=mean))
        policy.observe(index=index, reward=y)
        policy.refit()
        levels.append(policy.model.models[0].mean_module(at)[0])
    assert abs(levels[1] - 4.0) < 0.01
    assert abs(levels[0] - 4.0) > 1.0


def test_refits_come_when_due_and_rebuild():
    belief = cb.GP(rbf(), noise=LAM, mean=line([0.0, 0.0], 0.0), refit_every=5)
    policy = cb.CKB(
        grid(), reward=belief, costs=cb.GP(rbf(), noise=LAM), step=0.1, cap=5.0
    )
    play(policy, 12)
    mean = policy.model.models[0].mean_module
    far = mean(torch.tensor([[9.0, 9.0]], dtype=F64))
    assert far.abs() > 0.1


# -- around it -----------------------------------------------------------------------


@pytest.mark.parametrize("trials", [None, 2])
def test_the_model_predicts_the_same(trials):
    policy = ckb(grid(), trials=trials)
    play(policy, 6)
    at = points(9)
    found = policy.posterior(at)
    with torch.no_grad():
        mean = policy.model.posterior(at).mean
    assert (mean[..., 0] - found.reward.mean).abs().max() < 1e-8
    assert (mean[..., 1] - found.costs.mean[..., 0, :]).abs().max() < 1e-8


def test_functions_are_loaded_only_if_trusted(tmp_path):
    policy = ckb(grid())
    play(policy, 4)
    policy.save(tmp_path / "state")
    with pytest.raises(cb.CheckpointError, match="trust="):
        cb.load(tmp_path / "state")
    again = cb.load(tmp_path / "state", trust=(slope, bowl))
    assert torch.equal(again.posterior().reward.mean, policy.posterior().reward.mean)
    assert again.ask().index == policy.ask().index
    bound = ckb(grid(), means=(lambda x: x[:, 0], bowl))
    with pytest.raises(cb.CheckpointError, match="lambda"):
        bound.save(tmp_path / "other")


@pytest.mark.parametrize("prior", [None, gpytorch.priors.NormalPrior(0.0, 1.0)])
def test_gpytorch_means_are_loaded_as_they_are(tmp_path, prior):
    means = line([1.0, -1.0], 0.5), ConstantMean(constant_prior=prior)
    policy = ckb(grid(), means=means)
    play(policy, 4)
    policy.save(tmp_path / "state")
    again = cb.load(tmp_path / "state")
    assert again.ask().index == policy.ask().index


def test_a_light_checkpoint_computes_means_again(tmp_path):
    policy = ckb(grid(), engine="factor")
    play(policy, 6)
    policy.save(tmp_path / "state", actions=False)
    again = cb.load(tmp_path / "state", trust=(slope, bowl), actions=grid())
    gap = again.posterior().reward.mean - policy.posterior().reward.mean
    assert gap.abs().max() < 1e-10


def test_named_parameters_come_in_the_users_numbers():
    space = cb.Space(threads=cb.Int(1, 64, log=True), codec=cb.Category("lz4", "zstd"))

    def known(x):
        return x[:, 0] * 10.0 + x[:, 1]

    kernel = gpk.RBFKernel(active_dims=[0]).double()
    policy = cb.GPUCB(space, reward=cb.GP(kernel, noise=LAM, mean=known))
    found = policy.posterior(params=[{"threads": 8, "codec": "zstd"}]).reward.mean
    assert found.item() == pytest.approx(81.0)


def test_contexts_are_among_the_users_numbers():
    space = cb.Space(model=cb.Category("a", "b"), load=cb.Context(2))
    kernel = rbf(1.0)

    def known(x):  # as in choice.x, contexts come first
        return 2.0 * x[:, 1] + x[:, 2]

    policy = cb.GPUCB(space, reward=cb.GP(kernel, noise=LAM, mean=known))
    choice = policy.ask(context=[0.1, 0.7])
    assert choice.params["model"] == "b"
    policy.tell(choice, reward=2.0)
    x, at = choice.x.reshape(1, 3), torch.tensor([[0.3, 0.2, 0.0]], dtype=F64)
    params = [{"model": "a", "load": [0.3, 0.2]}]
    found = policy.posterior(params=params).reward.mean
    true, _ = dense(kernel, known, x, torch.tensor([2.0]), at)
    assert (found - true).abs().max() < 1e-10


def test_arms_without_coordinates_are_known_by_their_number():
    table = torch.eye(5, dtype=F64)
    belief = cb.GP(noise=LAM, mean=lambda x: x[:, 0] * 2.0)
    policy = cb.GPUCB(cb.Finite(covariance=table), reward=belief)
    assert policy.posterior().reward.mean.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert int(policy.ask().index) == 4


def test_large_levels_cost_narrow_arrays_no_digits():
    def high(x):
        return 1e6 + x[:, 0]

    policy = cb.GPUCB(
        grid(F32), reward=cb.GP(rbf(), noise=LAM, mean=high), dtype=F32, engine="factor"
    )
    policy.ask()
    block = next(policy._beliefs.groups[0].engine.blocks([(0, 144)]))
    assert (block.mean[0, 0] - grid().block(0, 144)[:, 0]).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("mean", "match"),
    [
        ("average", "a function of points or 'learned'"),
        (lambda x: x, r"reward: mean must return a value for each point.*got \(8, 2\)"),
        (lambda x: x[:, 0] / 0.0, "reward: mean must be finite"),
        (lambda x: torch.zeros(3, dtype=F64), r"of shape \(n,\) = \(8,\); got \(3,\)"),
    ],
)
def test_bad_means_are_named(mean, match):
    with pytest.raises(cb.CBanditError, match=match):
        cb.GPUCB(grid(), reward=cb.GP(rbf(), noise=LAM, mean=mean))


def test_it_does_not_go_with_outcomes_counted_from_their_own_average():
    with pytest.raises(cb.CBanditError, match="standardize"):
        cb.GP(rbf(), noise=LAM, mean=slope, standardize=True)
    with pytest.raises(cb.CBanditError, match="mean 0 with reuse"):
        cb.EpochPenalty(
            grid(), reward=cb.GP(rbf(), noise=LAM, mean=slope), costs=1, epoch=5
        )


def test_expected_improvement_counts_the_mean():
    incumbents = []

    class Greedy(cb.GPPolicy):
        def acquire(self, t, multiplier, e):
            incumbents.append(e.incumbent.item())
            return e.mean[:, 0]

    policy = Greedy(grid(), reward=cb.GP(rbf(), noise=LAM, mean=slope), costs=None)
    choice = policy.ask()
    assert int(choice.index) == int(slope(grid().block(0, 144)).argmax())
    policy.tell(choice, reward=1.0)
    policy.ask()
    here = policy.posterior(choice.x.reshape(1, 2)).reward.mean.item()
    assert incumbents[-1] == pytest.approx(here)
    assert math.isinf(incumbents[0])


def test_partials_and_objects_are_functions_too():
    policy = ckb(grid(), means=(partial(torch.sum, dim=-1), Wave()))
    assert (
        policy.posterior().reward.mean - grid().block(0, 144).sum(-1)
    ).abs().max() < 1e-12
