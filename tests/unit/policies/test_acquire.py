"""Rules that see the belief itself: cb.GPPolicy.acquire and cb.Estimates."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from botorch.acquisition.analytic import LogConstrainedExpectedImprovement
from inside import next_look

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 9, dtype=F64)
GRID = cb.ProductGrid([AXIS, AXIS])
ENGINES = ["joint", "factor", "product", "stream"]
STANDARD = torch.distributions.Normal(
    torch.tensor(0.0, dtype=F64), torch.tensor(1.0, dtype=F64)
)


class Lagrangian(cb.GPPolicy):
    """CKB's score, written on the estimates."""

    name = "Lagrangian"

    def __init__(self, actions, **common):
        super().__init__(actions, start=0.7, **common)

    def acquire(self, t, multiplier, estimates):
        return cb.scores.primal_dual(
            estimates.f, estimates.g, multiplier.to(estimates.f)
        )


class Known(Lagrangian):
    """The same by the score that engines know."""

    def score(self, t, multiplier):
        return cb.scores.PrimalDual(multiplier)


class Improvement(cb.GPPolicy):
    """Constrained expected improvement."""

    name = "EI"

    def acquire(self, t, multiplier, estimates):
        best = estimates.incumbent.unsqueeze(-1)
        gap = (estimates.mean[:, 0] - best) / estimates.std[:, 0]
        gain = gap * STANDARD.cdf(gap) + STANDARD.log_prob(gap).exp()
        gain = torch.where(best.isinf(), 1.0, gain * estimates.std[:, 0])
        return gain * estimates.chance(self.limits(t))


class Recorder(cb.GPPolicy):
    """Remember what it was shown; play the greatest mean."""

    name = "Recorder"
    shown: list

    def acquire(self, t, multiplier, estimates):
        self.shown.append(estimates)
        return estimates.mean[:, 0]


def belief(**more):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    return cb.GP(kernel, noise=1e-2, **more)


def world(x):
    reward = -(x - 0.4).square().sum(-1)
    return reward, x.sum(-1) - 0.9


def played(policy, rounds, scale=1.0, shift=0.0):
    chosen = []
    for _ in range(rounds):
        choice = policy.ask()
        chosen.append(choice.x)
        reward, cost = world(choice.x)
        policy.tell(choice, reward=reward * scale + shift, cost=cost)
    return torch.stack(chosen)


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("explore", [cb.UCB(1.5), cb.TS(1.0), cb.Rand(1.0)])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_acquisition_of_estimates_is_that_score(engine, explore, trials):
    """Both take the same actions, round by round."""
    common = {"reward": belief(), "costs": belief(), "explore": explore}
    policies = [
        kind(GRID, engine=engine, trials=trials, seed=4, clip=(2.0, 2.0), **common)
        for kind in (Lagrangian, Known)
    ]
    ours, known = (played(policy, 8) for policy in policies)
    assert ours.tolist() == known.tolist()


@pytest.mark.parametrize("explore", [cb.UCB(1.5), cb.TS(1.0)])
def test_so_it_is_on_a_box(explore):
    box = cb.Box([0.0, 0.0], [1.0, 1.0])
    common = {"reward": belief(), "costs": belief(), "explore": explore, "seed": 3}
    ours, known = (played(kind(box, **common), 5) for kind in (Lagrangian, Known))
    torch.testing.assert_close(ours, known, rtol=0, atol=1e-6)


@pytest.mark.parametrize("explore", [cb.UCB(1.5), cb.TS(1.0)])
def test_so_it_is_in_contexts(explore):
    space = cb.Space(model=cb.Category("a", "b", "c"), prompt=cb.Context(2))
    gp = cb.GP.default(space)
    common = {"reward": gp, "costs": gp, "explore": explore, "seed": 3}
    prompts = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    runs = []
    for kind in (Lagrangian, Known):
        policy, chosen = kind(space, **common), []
        for prompt in prompts:
            choice = policy.ask(context=prompt)
            chosen.append(int(choice.index))
            reward = float(prompt[0]) * chosen[-1]
            policy.tell(choice, reward=reward, cost=reward - 0.5)
        runs.append(chosen)
    assert runs[0] == runs[1]


def dense(x, y, at, noise, scale=0.3):
    """A posterior by a plain solve."""

    def k(a, b):
        return torch.exp(-torch.cdist(a, b).square() / (2 * scale**2))

    gram = k(x, x) + noise * torch.eye(len(x), dtype=F64)
    cross = k(at, x)
    mean = cross @ torch.linalg.solve(gram, y)
    var = 1 - (cross * torch.linalg.solve(gram, cross.mT).mT).sum(-1)
    return mean, var.sqrt()


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_rule_is_shown(engine):
    """Means, deviations and the incumbent in the user's units, by a dense solve."""
    policy = Recorder(
        GRID,
        reward=belief(),
        costs={"weight": belief()},
        thresholds={"weight": -0.1},
        minimise=True,
        explore=cb.UCB(2.0),
        engine=engine,
    )
    policy.shown = []
    points = torch.rand(7, 2, generator=torch.Generator().manual_seed(1)).mul(8).round()
    points = points.double() / 8
    reward, cost = world(points)
    policy.observe(x=points, reward=-reward, cost=cost)  # to be small
    policy.ask()
    at = GRID.points(torch.arange(GRID.size))
    mean = torch.cat([shown.mean for shown in policy.shown], -1)[0]
    std = torch.cat([shown.std for shown in policy.shown], -1)[0]
    for function, outcomes in enumerate((reward, cost)):
        wanted, deviation = dense(points, outcomes, at, 1e-2)
        torch.testing.assert_close(mean[function], wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(std[function], deviation, rtol=0, atol=1e-7)
    shown = policy.shown[0]
    tried, _ = dense(points, reward, points, 1e-2)
    allowed = dense(points, cost, points, 1e-2)[0] <= -0.1
    assert allowed.any() and not allowed.all()
    assert float(shown.incumbent) == pytest.approx(
        float(tried[allowed].max()), abs=1e-9
    )
    f, g = (
        shown.mean[:, 0] + 2 * shown.std[:, 0],
        shown.mean[:, 1:] - 2 * shown.std[:, 1:],
    )
    torch.testing.assert_close(shown.f, f)
    torch.testing.assert_close(shown.g, g + 0.1)
    assert shown.unit.tolist() == [[1.0, 1.0]]


def test_units_of_standardised_outcomes():
    policy = Recorder(
        GRID, reward=belief(standardize=True), costs=belief(), explore=cb.UCB(1.0)
    )
    policy.shown = []
    points = torch.tensor([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]], dtype=F64)
    outcomes = torch.tensor([1e9, 1e9 + 2e6, 1e9 - 4e6], dtype=F64)
    policy.observe(x=points, reward=outcomes, cost=torch.zeros(3))
    policy.ask()
    shown = policy.shown[0]
    spread = outcomes.std()
    assert shown.unit.tolist() == [[pytest.approx(float(spread)), 1.0]]
    scaled = (outcomes - outcomes.mean()) / spread
    mean, std = dense(points, scaled, points, 1e-2)
    wanted = mean.max() * spread + outcomes.mean()
    assert float(shown.incumbent) == pytest.approx(float(wanted), rel=1e-12)
    at = [int(GRID.index(x)) for x in points]
    torch.testing.assert_close(shown.std[0, 0, at], std * spread, rtol=1e-6, atol=0)


def test_there_is_no_incumbent_before_data_and_where_no_limit_is_kept():
    policy = Recorder(GRID, reward=belief(), costs=belief(), trials=2)
    policy.shown = []
    choice = policy.ask()
    assert policy.shown[0].incumbent.tolist() == [-torch.inf, -torch.inf]
    cost = torch.tensor([[1.0], [-1.0]])
    policy.tell(choice, reward=torch.tensor([0.5, 0.5]), cost=cost)
    policy.ask()
    assert policy.shown[-1].incumbent[0] == -torch.inf
    assert policy.shown[-1].incumbent[1] == pytest.approx(0.5 / 1.01)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("trials", [None, 2])
def test_outstanding_choices_that_count_are_incumbents(engine, trials):
    """Where a choice is outstanding, expected improvement does not ask again."""
    common = {"reward": belief(), "costs": belief(), "trials": trials}
    policy = Improvement(GRID, **common, engine=engine, pending="hallucinate")
    played(policy, 3)
    before = next_look(policy).score.incumbent
    choices = policy.ask(n=6)
    index = torch.stack([choice.index for choice in choices])
    assert all(len(set(row)) == 6 for row in index.reshape(6, -1).T.tolist())
    believed = policy.posterior()
    mean, cost = believed.reward.mean, believed.costs.mean[..., 0, :]
    at = index.reshape(6, -1).mT  # T x 6
    feasible = cost.reshape(-1, GRID.size).gather(1, at) <= 0
    ahead = mean.reshape(-1, GRID.size).gather(1, at).where(feasible, -torch.inf)
    wanted = torch.maximum(before, ahead.amax(1))
    assert bool((wanted > before).any())
    torch.testing.assert_close(next_look(policy).score.incumbent, wanted)
    for choice in choices[:-1]:
        policy.cancel(choice)
    last = torch.maximum(before, ahead[:, -1])
    torch.testing.assert_close(next_look(policy).score.incumbent, last)


@pytest.mark.parametrize("engine", ["joint", "stream"])
def test_expected_improvement_chooses_as_botorchs(engine):
    """The action is the maximum of BoTorch's score on BoTorch's model of the belief."""
    policy = Improvement(GRID, reward=belief(), costs=belief(), engine=engine)
    played(policy, 6)
    best = next_look(policy).score.incumbent
    model = policy.model
    score = LogConstrainedExpectedImprovement(
        model, best_f=best, objective_index=0, constraints={1: (None, 0.0)}
    )
    with torch.no_grad():
        values = score(GRID.points(torch.arange(GRID.size)).unsqueeze(1))
    assert int(policy.ask().index) == int(values.argmax())


def test_a_part_of_the_set_and_another_set():
    policy = Improvement(GRID, reward=belief(), costs=belief())
    played(policy, 4)
    mask = torch.zeros(GRID.size, dtype=torch.bool)
    mask[[3, 60]] = True
    assert int(policy.ask(among=mask).index) in (3, 60)
    points = torch.tensor([[0.11, 0.2], [0.4, 0.39]], dtype=F64)
    assert policy.ask(actions=points).x.tolist() in points.tolist()


def test_it_is_saved_and_goes_on(tmp_path):
    policy = Improvement(GRID, reward=belief(), costs=belief())
    played(policy, 4)
    policy.save(tmp_path / "ei")
    again = cb.load(tmp_path / "ei", trust=(Improvement,))
    assert played(policy, 4).tolist() == played(again, 4).tolist()


def test_values_near_the_greatest_tie():
    class Alike(Recorder):
        def acquire(self, t, multiplier, estimates):
            size = estimates.mean.shape[-1]
            return 1e-30 * (1 + 1e-12 * torch.arange(size, dtype=F64).expand(1, -1))

    policy = Alike(cb.Finite(AXIS.unsqueeze(-1)), reward=belief(), costs=None)
    assert int(policy.ask().index) == 0


def test_explanations_give_the_acquisitions_value_without_a_unit():
    gp = cb.GP.default(GRID)
    policy = Improvement(GRID, reward=gp, costs=gp)
    played(policy, 4)
    text = str(policy.explain(policy.ask()))
    (score,) = [line for line in text.splitlines() if line.startswith("  score")]
    assert "spreads" not in score
    assert "costs did not matter" not in text


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda e: e.mean, "shape .T, n. = .1, 81.; got .1, 2, 81."),
        (lambda e: 3.0, "got a float|got the float|got float|got 3"),
        (lambda e: e.mean[:, 0].add_(1.0), "must not change"),
        (lambda e: e.mean[:, 0] * torch.nan, "not a finite number"),
    ],
)
def test_what_is_no_value_for_each_action_is_named(answer, words):
    class Wrong(cb.GPPolicy):
        def acquire(self, t, multiplier, estimates):
            return answer(estimates)

    policy = Wrong(GRID, reward=belief(), costs=belief())
    with pytest.raises(cb.CBanditError, match=words):
        policy.ask()
