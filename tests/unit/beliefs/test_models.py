"""Fitted GPyTorch and BoTorch models as beliefs: posteriors, choices, refusals."""

from __future__ import annotations

import re
import sys
import types

import gpytorch
import pytest
import torch
from botorch.models import (
    KroneckerMultiTaskGP,
    MixedSingleTaskGP,
    ModelListGP,
    MultiTaskGP,
    SingleTaskGP,
    SingleTaskVariationalGP,
)
from botorch.models.transforms.input import (
    InputStandardize,
    Log10,
    Normalize,
    Round,
    Warp,
)
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Log, Standardize
from botorch.optim import optimize_acqf_discrete
from gpytorch import kernels as gpk
from gpytorch.likelihoods import GaussianLikelihood, GaussianLikelihoodWithMissingObs
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.priors import LogNormalPrior
from places import ROOT
from torch import Tensor

import cbandit as cb

F64 = torch.float64
LOW, HIGH = torch.tensor([-1.0, 2.0], dtype=F64), torch.tensor([3.0, 12.0], dtype=F64)
CLOSE = 1e-10  # of the outcomes' spread


def points(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return LOW + (HIGH - LOW) * torch.rand(n, 2, generator=generator, dtype=F64)


def reward_at(x: Tensor) -> Tensor:
    return 1000.0 + 50.0 * torch.sin(x[..., 0]) + 3.0 * x[..., 1]


def cost_at(x: Tensor) -> Tensor:
    return (x[..., 0] - x[..., 1] / 4.0).square()


def matern() -> gpk.Kernel:
    base = gpk.MaternKernel(nu=2.5, ard_num_dims=2)
    kernel = gpk.ScaleKernel(base).double()
    base.lengthscale = torch.tensor([0.3, 0.8], dtype=F64)
    kernel.outputscale = torch.tensor(1.3, dtype=F64)
    return kernel


def constant(value: float) -> ConstantMean:
    mean = ConstantMean().double()
    mean.constant = torch.tensor(value, dtype=F64)
    return mean


def line() -> LinearMean:
    mean = LinearMean(2).double()
    mean.weights.data = torch.tensor([[0.5], [-0.25]], dtype=F64)
    mean.bias.data = torch.tensor([0.1], dtype=F64)
    return mean


def with_noise(model, value: float = 0.02):
    model.likelihood.noise = torch.tensor(value, dtype=F64)
    return model


def single(values=reward_at, seed=0, x=None, **more) -> SingleTaskGP:
    """A model with hyperparameters as if it had been fitted."""
    x = points(20, seed) if x is None else x
    usual = {"input_transform": Normalize(2), "outcome_transform": Standardize(1)}
    model = SingleTaskGP(
        x,
        values(x).unsqueeze(-1),
        **({"covar_module": matern(), "mean_module": constant(0.4)} | usual | more),
    )
    return model.eval() if "train_Yvar" in more else with_noise(model).eval()


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood=None, mean=None, kernel=None):
        super().__init__(x, y, likelihood or GaussianLikelihood().double())
        self.mean_module, self.covar_module = mean or ZeroMean(), kernel or matern()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(
            self.mean_module(x), self.covar_module(x)
        )


class Deep(Exact):
    """Its kernel sees features of the inputs."""

    def forward(self, x):
        return super().forward(x.sin())


def exact(**more) -> Exact:
    x = points(15)
    return with_noise(Exact(x, cost_at(x), **more)).eval()


MODELS = {
    "transforms": single,
    "as BoTorch makes it": lambda: SingleTaskGP(
        points(20), reward_at(points(20)).unsqueeze(-1)
    ).eval(),
    "linear mean": lambda: single(mean_module=line()),
    "no transforms": lambda: single(
        cost_at, input_transform=None, outcome_transform=None
    ),
    "bounds, some inputs": lambda: single(
        input_transform=Normalize(2, indices=[1], bounds=torch.tensor([[2.0], [12.0]]))
    ),
    "centered": lambda: single(input_transform=Normalize(2, center=0.0)),
    "standardised inputs": lambda: single(input_transform=InputStandardize(2)),
    "own noises": lambda: single(
        train_Yvar=torch.linspace(1.0, 60.0, 20, dtype=F64).unsqueeze(-1)
    ),
    "one known noise": lambda: single(train_Yvar=torch.full((20, 1), 4.0, dtype=F64)),
    "exact": exact,
    "exact, line": lambda: exact(mean=line()),
    "exact, product": lambda: exact(
        kernel=gpk.ProductKernel(
            *(gpk.MaternKernel(nu=1.5, active_dims=[j]) for j in range(2))
        ).double()
    ),
}


def own_posterior(model, x: Tensor) -> tuple[Tensor, Tensor]:
    """The model's mean and deviation, ``(n,)``."""
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        if isinstance(model, SingleTaskGP):
            found = model.posterior(x)
            return found.mean[:, 0], found.variance[:, 0].sqrt()
        found = model(x)
        return found.mean, found.variance.sqrt()


def check(policy, model, x: Tensor, close: float = CLOSE):
    """Compare the reward's posterior with a model's."""
    mean, std = own_posterior(model, x)
    found, spread = policy.posterior(x).reward, 1.0
    if getattr(model, "outcome_transform", None) is not None:
        spread = float(model.outcome_transform.stdvs)
    for mine, true in ((found.mean, mean), (found.std, std)):  # of the first trial
        assert (mine.reshape(-1, len(x))[0] - true).abs().max() < close * max(
            1.0, spread
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_the_posterior_is_the_models_own(name):
    model = MODELS[name]()
    for actions in (cb.Finite(points(60, 1)), cb.Box(LOW, HIGH)):
        belief = cb.GP.of(model)
        policy = cb.GPUCB(actions, reward=belief)
        if not actions.continuous:  # what was observed need not be in the set
            policy = cb.GPUCB(cb.Finite(points(20)), reward=belief)
            if not isinstance(model, SingleTaskGP):
                policy = cb.GPUCB(cb.Finite(points(15)), reward=belief)
        policy.observe(**cb.data_of(model))
        check(policy, model, points(30, 2))


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream", "gpytorch"])
def test_engines_agree_with_the_model(engine):
    axes = [
        torch.linspace(*ends, 15, dtype=F64) for ends in zip(LOW, HIGH, strict=True)
    ]
    grid = cb.ProductGrid(axes)
    base = gpk.RBFKernel(ard_num_dims=2).double()
    base.lengthscale = torch.tensor([0.3, 0.5], dtype=F64)
    x = grid.points(torch.arange(0, 225, 11))
    model = SingleTaskGP(
        x,
        reward_at(x).unsqueeze(-1),
        covar_module=gpk.ScaleKernel(base).double(),
        mean_module=line(),
        input_transform=Normalize(2),
        outcome_transform=Standardize(1),
    )
    with_noise(model).eval()
    policy = cb.GPUCB(grid, reward=cb.GP.of(model), engine=engine)
    policy.observe(**cb.data_of(model))
    mean, std = own_posterior(model, grid.block(0, 225))
    policy.ask()
    found, size = policy.posterior().reward, float(model.outcome_transform.stdvs)
    assert (found.mean - mean).abs().max() < 1e-9 * size
    assert (found.std - std).abs().max() < 1e-9 * size


def test_before_data_it_is_the_models_prior():
    model = single(mean_module=line())
    policy = cb.GPUCB(cb.Box(LOW, HIGH), reward=cb.GP.of(model))
    x = points(9)
    found = policy.posterior(x).reward
    z = model.input_transform(x)
    size = float(model.outcome_transform.stdvs)
    mean = float(model.outcome_transform.means) + size * model.mean_module(z)
    assert (found.mean - mean.detach()).abs().max() < 1e-9
    assert found.std.numpy() == pytest.approx(size * 1.3**0.5)


def test_what_is_told_later_enters_as_the_model_takes_it():
    model = single()
    policy = cb.GPUCB(cb.Box(LOW, HIGH), reward=cb.GP.of(model), trials=2)
    policy.observe(**cb.data_of(model))
    choice = policy.ask()
    policy.tell(choice, reward=reward_at(choice.x) + 300.0)  # far off, yet believed
    later = told(model, choice.x[:1], reward_at(choice.x[:1]) + 300.0)
    check(policy, later, points(9, 3))


def told(model, x: Tensor, y: Tensor):
    """BoTorch's model of one more observation, with its transforms as they were."""
    with torch.no_grad():
        model.posterior(x)  # which BoTorch wants before
        return model.condition_on_observations(x, y.reshape(-1, 1))


def two() -> ModelListGP:
    return ModelListGP(single(), single(cost_at, mean_module=line()))


def test_a_list_of_models_is_a_list_of_beliefs():
    beliefs = cb.GP.of(two())
    assert [type(belief) for belief in beliefs] == [cb.GP, cb.GP]
    assert isinstance(cb.GP.of(ModelListGP(single())), list)


@pytest.mark.parametrize("rule", ["CKB", "RPOL"])
def test_choices_are_those_of_botorch_on_the_same_score(rule):
    model, some = two(), points(20)
    reward, cost = cb.GP.of(model)
    common = {"reward": reward, "costs": cost, "thresholds": 0.5}
    policy = getattr(cb, rule)(cb.Finite(some), **common, explore=cb.UCB(2.0))
    policy.observe(**cb.data_of(model))
    score = {"CKB": "PrimalDual", "RPOL": "RectifiedPenalty"}[rule]
    make, seen = getattr(cb.acquisition, score), set()
    for _ in range(6):
        # a price is a multiplier in the user's units
        score = make(model, 2.0, policy.price, thresholds=0.5)
        best, _ = optimize_acqf_discrete(score, 1, some)
        choice = policy.ask()
        assert torch.equal(choice.x, best[0])
        seen.add(int(choice.index))
        r, c = reward_at(choice.x), cost_at(choice.x)
        policy.tell(choice, reward=r, cost=c)
        pairs = zip(model.models, (r, c), strict=True)
        model = ModelListGP(*(told(one, choice.x.unsqueeze(0), y) for one, y in pairs))
    assert len(seen) > 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["CKB", "RPOL"])
def test_a_million_points(rule):
    axes = [
        torch.linspace(a, b, 1000, dtype=F64) for a, b in zip(LOW, HIGH, strict=True)
    ]
    grid = cb.ProductGrid(axes)
    x = grid.points(torch.arange(0, 10**6, 49_999))
    models = [single(x=x), single(cost_at, x=x, mean_module=line())]
    model = ModelListGP(*models)
    reward, cost = cb.GP.of(model)
    policy = getattr(cb, rule)(
        cb.Finite(grid.block(0, grid.size)),
        reward=reward,
        costs=cost,
        thresholds=0.5,
        explore=cb.UCB(2.0),
    )
    policy.observe(**cb.data_of(model))
    price = policy.price
    choice = policy.ask()
    score = {"CKB": "PrimalDual", "RPOL": "RectifiedPenalty"}[rule]
    score = getattr(cb.acquisition, score)(model, 2.0, price, thresholds=0.5)
    every = grid.block(0, grid.size).unsqueeze(1)
    with torch.no_grad():
        best = torch.cat([score(part) for part in every.split(20_000)])
    assert best[choice.index] > best.max() - 1e-8
    some = torch.arange(0, 10**6, 3_001)
    found = policy.posterior()
    for mine, one in zip((found.reward, found.costs), models, strict=True):
        mean, std = own_posterior(one, grid.points(some))
        size = float(one.outcome_transform.stdvs)
        assert (mine.mean.reshape(-1)[some] - mean).abs().max() < CLOSE * max(1, size)
        assert (mine.std.reshape(-1)[some] - std).abs().max() < CLOSE * max(1, size)


# -- units, refits, files ------------------------------------------------------------


def test_multipliers_are_in_the_models_unit():
    model = two()
    reward, cost = cb.GP.of(model)
    policy = cb.RPOL(cb.Box(LOW, HIGH), reward=reward, costs=cost, thresholds=0.5)
    sizes = [float(one.outcome_transform.stdvs) for one in model.models]
    ratio = policy.price / policy.multiplier
    assert float(ratio) == pytest.approx(sizes[0] / sizes[1])  # before any data too
    cb.CKB(cb.Box(LOW, HIGH), reward=reward, costs=cost, thresholds=0.5)  # its defaults
    plain = cb.GP.of(single(outcome_transform=None, input_transform=None))
    with pytest.raises(cb.CBanditError, match="step"):
        cb.CKB(cb.Box(LOW, HIGH), reward=plain, costs=plain, thresholds=0.5)


@pytest.mark.parametrize("minimise", [False, True])
def test_signs_turn_all_of_it(minimise):
    model = two()
    reward, cost = cb.GP.of(model)
    policy = cb.CKB(
        cb.Box(LOW, HIGH),
        reward=reward,
        costs={"power": cost},
        thresholds={"power": ">= 0.5"},
        minimise=minimise,
    )
    policy.observe(**cb.data_of(model, costs=["power"]))
    check(policy, model.models[0], points(9, 4))
    mean, _ = own_posterior(model.models[1], points(9, 4))
    found = policy.posterior(points(9, 4)).costs.mean[0]
    assert (found - mean).abs().max() < CLOSE * 10


def test_it_stays_as_it_was_unless_refits_are_asked_for():
    model = single(mean_module=line())
    frozen = cb.GPUCB(cb.Box(LOW, HIGH), reward=cb.GP.of(model))
    fitted = cb.GPUCB(cb.Box(LOW, HIGH), reward=cb.GP.of(model, refit_every=5))
    for policy in (frozen, fitted):
        policy.observe(**cb.data_of(model))
        policy.ask()
    check(frozen, model, points(9))
    group = fitted._beliefs.groups[0]
    assert group.prior.covariance.kernel.outputscale != 1.3
    assert float(group.noise) != pytest.approx(0.02)
    assert not torch.equal(
        group.scale.prior.at(points(9))[0], own_mean(model, points(9))
    )
    assert model.covar_module.outputscale.item() == pytest.approx(1.3)  # a copy


def own_mean(model, x):
    return model.mean_module(model.input_transform(x)).detach()


def test_noise_priors_are_of_the_noise_itself():
    tight = LogNormalPrior(0.0, 1e-3)  # about 1, whatever the outcomes' variance
    likelihood = GaussianLikelihood(noise_prior=tight).double()
    x = points(20)
    model = Exact(x, 100.0 * cost_at(x), likelihood)
    policy = cb.GPUCB(cb.Box(LOW, HIGH), reward=cb.GP.of(model, refit_every=5))
    policy.observe(**cb.data_of(model))
    policy.ask()
    assert float(policy._beliefs.groups[0].noise) == pytest.approx(1.0, rel=0.05)


def test_later_observations_have_the_average_of_known_noises():
    noises = torch.linspace(1.0, 60.0, 20, dtype=F64)
    model = single(train_Yvar=noises.unsqueeze(-1))
    belief, size = cb.GP.of(model), float(model.outcome_transform.stdvs)
    assert float(belief.noise) * size**2 == pytest.approx(float(noises.mean()))
    data = cb.data_of(model)
    assert (data["noise"]["reward"] - noises).abs().max() < 1e-10


def test_known_noises_of_costs_come_by_name():
    noises = torch.linspace(0.1, 2.0, 20, dtype=F64).unsqueeze(-1)
    model = ModelListGP(single(), single(cost_at, train_Yvar=noises))
    reward, cost = cb.GP.of(model)
    for name, costs in (("cost1", cost), ("latency", {"latency": cost})):
        policy = cb.RPOL(cb.Box(LOW, HIGH), reward=reward, costs=costs, thresholds=0.5)
        names = None if name == "cost1" else [name]
        policy.observe(**cb.data_of(model, costs=names))
        mean, std = own_posterior(model.models[1], points(9, 3))
        found = policy.posterior(points(9, 3)).costs
        assert (found.mean[0] - mean).abs().max() < CLOSE * 10
        assert (found.std[0] - std).abs().max() < CLOSE * 10


def test_a_checkpoint_goes_on(tmp_path):
    model = two()
    reward, cost = cb.GP.of(model, refit_every=10)
    policy = cb.CKB(cb.Box(LOW, HIGH), reward=reward, costs=cost, thresholds=0.5)
    policy.observe(**cb.data_of(model))
    policy.save(tmp_path / "state")
    again = cb.load(tmp_path / "state")
    assert torch.equal(again.ask().x, policy.ask().x)


def test_the_model_stays_as_it_was():
    model = single().train()
    cb.GP.of(model)
    cb.data_of(model)
    assert model.training
    assert torch.equal(model.train_inputs[0], points(20))
    assert all(p.requires_grad for p in model.parameters())


def test_policies_give_a_model_back_that_says_the_same():
    model = single(mean_module=line())
    policy = cb.GPUCB(cb.Box(LOW, HIGH), reward=cb.GP.of(model))
    policy.observe(**cb.data_of(model))
    again = cb.GP.of(policy.model.models[0])
    other = cb.GPUCB(cb.Box(LOW, HIGH), reward=again)
    other.observe(**cb.data_of(policy.model.models[0]))
    mine, theirs = (each.posterior(points(9, 5)).reward for each in (policy, other))
    assert (mine.mean - theirs.mean).abs().max() < 1e-8
    assert (mine.std - theirs.std).abs().max() < 1e-8


# -- what cannot be carried over -----------------------------------------------------


def tasks() -> MultiTaskGP:
    x = torch.cat(
        [points(8), torch.arange(8, dtype=F64).remainder(2).unsqueeze(-1)], -1
    )
    return MultiTaskGP(x, cost_at(x).unsqueeze(-1), task_feature=-1)


def both(n: int = 8) -> tuple[Tensor, Tensor]:
    x = points(n)
    return x, torch.stack([reward_at(x), cost_at(x)], -1)


REFUSED = {
    "a text": (lambda: "model", "which is no ExactGP"),
    "variational": (
        lambda: SingleTaskVariationalGP(points(8), cost_at(points(8)).unsqueeze(-1)),
        "SingleTaskVariationalGP, which is no ExactGP",
    ),
    "two outputs": (lambda: SingleTaskGP(*both()), r"\(2, 8\).*ModelListGP"),
    "tasks": (tasks, "several tasks or outputs"),
    "kronecker": (lambda: KroneckerMultiTaskGP(*both()), "KroneckerMultiTaskGP"),
    "log": (lambda: single(outcome_transform=Log()), "Log cannot be carried over"),
    "chain": (
        lambda: single(
            outcome_transform=ChainedOutcomeTransform(a=Log(), b=Standardize(1))
        ),
        "ChainedOutcomeTransform",
    ),
    "warped": (
        lambda: single(input_transform=Warp(2, [0], eps=1e-6)),
        "Warp cannot be carried over",
    ),
    "rounded": (
        lambda: single(input_transform=Round(integer_indices=[1])),
        "Round cannot be carried over",
    ),
    "logs of inputs": (
        lambda: single(input_transform=Log10(indices=[1])),
        "Log10 cannot be carried over",
    ),
    "features": (
        lambda: Deep(points(8), cost_at(points(8))),
        "more than its mean_module and covar_module",
    ),
    "inducing points": (
        lambda: exact(
            kernel=gpk.InducingPointKernel(matern(), points(4), GaussianLikelihood())
        ),
        "InducingPointKernel approximates",
    ),
    "missing outcomes": (
        lambda: exact(likelihood=GaussianLikelihoodWithMissingObs()),
        "GaussianLikelihoodWithMissingObs cannot be carried over",
    ),
    "no data": (lambda: Exact(None, None), "must have training data"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_carried_over_is_named(name):
    make, match = REFUSED[name]
    try:
        model = make()
    except (RuntimeError, AttributeError) as error:
        pytest.fail(f"the case itself failed: {error}")
    with pytest.raises(cb.CBanditError, match=match):
        cb.GP.of(model)


def test_the_refused_model_of_a_list_is_named():
    model = ModelListGP(single(), single(outcome_transform=Log()))
    with pytest.raises(cb.CBanditError, match=r"model.models\[1\]: its outcome"):
        cb.GP.of(model)


@pytest.mark.parametrize(
    "kernel",
    [
        gpk.MultitaskKernel(gpk.RBFKernel(), num_tasks=2),
        gpk.LCMKernel([gpk.RBFKernel()], num_tasks=2, rank=1),
        gpk.RBFKernelGrad(),
        gpk.RBFKernelGradGrad(),
        gpk.Matern52KernelGrad(),
        gpk.PolynomialKernelGrad(2),
        gpk.ScaleKernel(gpk.RBFKernelGrad()),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_kernels_of_several_outputs_are_refused_by_name(kernel):
    name = type(getattr(kernel, "base_kernel", kernel)).__name__
    with pytest.raises(cb.CBanditError, match=f"kernel: {name} is a kernel of"):
        cb.GP(kernel, noise=0.1)


def test_data_of_models_with_other_inputs_are_refused():
    model = ModelListGP(single(), single(cost_at, seed=1))
    with pytest.raises(cb.CBanditError, match="same training inputs"):
        cb.data_of(model)
    with pytest.raises(cb.CBanditError, match=r"each of the 1 costs; got \['a', 'b'\]"):
        cb.data_of(two(), costs=["a", "b"])


def test_sets_of_another_dimension_are_refused():
    with pytest.raises(cb.CBanditError, match=r"reward: .*d = 2"):
        cb.GPUCB(cb.Box([0.0], [1.0]), reward=cb.GP.of(single()))


def test_mixed_models_are_taken_where_their_kernel_is():
    x = torch.cat([points(12)[:, :1], torch.arange(12, dtype=F64)[:, None] % 3], -1)
    model = MixedSingleTaskGP(x, cost_at(x).unsqueeze(-1), cat_dims=[1]).eval()
    policy = cb.GPUCB(cb.Finite(x), reward=cb.GP.of(model))
    policy.observe(**cb.data_of(model))
    mean, std = own_posterior(model, x)
    found, size = policy.posterior().reward, float(model.outcome_transform.stdvs)
    assert (found.mean - mean).abs().max() < CLOSE * max(1.0, size)
    assert (found.std - std).abs().max() < CLOSE * max(1.0, size)


def test_the_page_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "integrations" / "models.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    script = types.ModuleType("script")  # where a function is found by its name
    monkeypatch.setitem(sys.modules, "script", script)
    names = vars(script)
    exec(compile(first, "the page", "exec"), names)
    assert float(capsys.readouterr().out) < 1e-8
    assert len(names["policy"].history()) == 1
    exec(compile(second, "the page", "exec"), names)
    assert names["policy"].posterior([[0.0, 1.0]]).reward.mean.item() == 0.0
