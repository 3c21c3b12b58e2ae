"""Rounds that choose only what likely keeps its limits: ask(confidence=)."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from scipy.stats import norm

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 9, dtype=F64)
POINTS = torch.rand(60, 2, generator=torch.Generator().manual_seed(3)).double()
SETS = {
    "grid": cb.ProductGrid([AXIS, AXIS]),
    "points": cb.Finite(POINTS),
    "box": cb.Box([0.0, 0.0], [1.0, 1.0]),
}
ENGINES = ["joint", "factor", "product", "stream"]
RULES = {
    "CKB": lambda on, gp, **more: cb.CKB(
        on, reward=gp, costs=[gp, gp], step=0.1, cap=10.0, **more
    ),
    "RPOL": lambda on, gp, **more: cb.RPOL(on, reward=gp, costs=[gp, gp], **more),
    "TS": lambda on, gp, **more: cb.RPOL(
        on, reward=gp, costs=[gp, gp], explore=cb.TS(1.0), **more
    ),
    "CONFIG": lambda on, gp, **more: cb.baselines.CONFIG(
        on, reward=gp, costs=[gp, gp], **more
    ),
    "resolved": lambda on, gp, **more: cb.CKB(
        on, reward=gp, costs=[gp, gp], dual="resolved", **more
    ),
}


def belief(**more):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    return cb.GP(kernel, noise=1e-2, **more)


def world(x):
    return x.sum(-1), torch.stack([x[..., 0] - 0.6, 3.0 * x[..., 1] - 1.0], -1)


def told(policy, count=12, seed=0):
    """The same rows for every policy."""
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)).double()
    if not policy.actions.continuous:
        distance = torch.cdist(
            x, policy.actions.points(torch.arange(policy.actions.size))
        )
        x = policy.actions.points(distance.argmin(-1))
    reward, cost = world(x)
    policy.observe(x=x, reward=reward, cost=cost)
    return x, cost


def chance(x, cost, at, scale=0.3, noise=1e-2):
    """By a dense solve and scipy's normal distribution."""

    def k(a, b):
        return torch.exp(-torch.cdist(a, b).square() / (2 * scale**2))

    gram = k(x, x) + noise * torch.eye(len(x), dtype=F64)
    cross = k(at, x)
    mean = cross @ torch.linalg.solve(gram, cost)
    std = (1 - (cross * torch.linalg.solve(gram, cross.mT).mT).sum(-1)).sqrt()
    return norm.cdf(-mean.numpy() / std.numpy()[:, None]).prod(-1)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SETS)
def test_what_is_chosen_keeps_its_limits_with_that_probability(name, rule, confidence):
    if name == "box" and rule == "resolved":
        pytest.skip("a price is solved over finite sets")
    actions = SETS[name]
    policy = RULES[rule](actions, belief())
    x, cost = told(policy)
    for _ in range(1 if name == "box" else 3):
        choice = policy.ask(confidence=confidence)
        probability = chance(x, cost, choice.x.reshape(1, 2))[0]
        assert probability >= confidence - 1e-7
        assert not choice.infeasible
        assert float(policy.ask().x.sum()) >= float(choice.x.sum()) - 0.35


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_the_best_of_those_that_do(engine):
    """By the rule's score over a dense belief."""
    actions = SETS["grid"]
    policy = RULES["RPOL"](actions, belief(), engine=engine, explore=cb.UCB(1.0))
    x, cost = told(policy)
    at = actions.points(torch.arange(actions.size))
    sure = torch.from_numpy(chance(x, cost, at)) >= 0.8
    moments = policy.posterior()
    f = moments.reward.mean + moments.reward.std
    g = (moments.costs.mean - moments.costs.std).clamp_min(0).sum(0)
    score = (f - g).masked_fill(~sure, -torch.inf)
    choice = policy.ask(confidence=0.8)
    assert int(choice.index) == int(score.argmax())
    assert int(policy.ask().index) != int(choice.index)


@pytest.mark.parametrize(
    ("name", "rule"), [*((name, "RPOL") for name in SETS), ("box", "CONFIG")]
)
def test_where_nothing_does_it_is_the_likeliest(name, rule):
    actions = SETS[name]
    policy = RULES[rule](actions, belief(), thresholds=-5.0)
    x, cost = told(policy)
    choice = policy.ask(confidence=0.9)
    assert bool(choice.infeasible)
    if name == "box":
        at = torch.cartesian_prod(*[torch.linspace(0, 1, 60, dtype=F64)] * 2)
    else:
        at = actions.points(torch.arange(actions.size))
    best = chance(x, cost + 5.0, at).max()
    assert chance(x, cost + 5.0, choice.x.reshape(1, 2))[0] >= best * (1 - 1e-4)


def test_trials_have_a_confidence_each():
    actions = SETS["grid"]
    policy = RULES["RPOL"](actions, belief(), trials=3, thresholds=torch.zeros(3, 2))
    x, cost = told(policy)
    choice = policy.ask(confidence=torch.tensor([0.3, 0.9, 0.9999]))
    chances = chance(x, cost, choice.x)
    assert (chances >= [0.3, 0.9, 0.9999]).all() or bool(choice.infeasible.any())
    assert chances[0] < chances[1]


def test_a_part_of_the_set():
    policy = RULES["CKB"](SETS["points"], belief())
    told(policy)
    sure = [int(policy.ask(confidence=0.9).index) for _ in range(2)]
    mask = torch.ones(60, dtype=torch.bool)
    mask[sure] = False
    other = policy.ask(among=mask, confidence=0.9)
    assert int(other.index) not in sure
    points = torch.tensor([[0.05, 0.02], [0.99, 0.99]], dtype=F64)
    assert policy.ask(actions=points, confidence=0.9).index == 0


@pytest.mark.parametrize("name", SETS)
def test_before_data_nothing_is_sure(name):
    gp = cb.GP.default(SETS[name])
    policy = cb.RPOL(SETS[name], reward=gp, costs=gp)
    first = policy.ask(confidence=0.9)
    assert bool(first.infeasible)
    assert not bool(cb.RPOL(SETS[name], reward=gp, costs=gp).ask().infeasible)
    if name == "box":
        assert first.x.tolist() == [0.5, 0.5]
    policy.tell(first, reward=1.0, cost=-1.0)
    assert bool(policy.ask(confidence=0.9).infeasible)  # one outcome has no scale


def test_default_beliefs_in_the_users_units_and_senses():
    space = cb.Space(a=cb.Float(0, 1), b=cb.Float(0, 1))
    gp = cb.GP.default(space)
    policy = cb.CKB(
        space,
        reward=gp,
        costs={"latency": gp, "accuracy": gp},
        thresholds={"latency": "<= 800", "accuracy": ">= 0.5"},
        minimise=True,
    )
    for _ in range(25):
        choice = policy.ask(confidence=0.9)
        a, b = choice.params["a"], choice.params["b"]
        policy.tell(
            choice,
            reward=2.0 - a - b,
            cost={"latency": 1000 * a, "accuracy": 1.0 - b},
        )
    history = policy.history()
    late = history.iloc[10:]
    over = (late["latency"] > 800) | (late["accuracy"] < 0.5)
    assert over.mean() <= 0.2
    belief_now = policy.posterior(params=[choice.params])
    room = (800 - belief_now.costs.mean[0]) / belief_now.costs.std[0]
    assert float(room) > 0


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, 90, float("nan")])
def test_a_confidence_lies_between_0_and_1(wrong):
    policy = RULES["RPOL"](SETS["grid"], belief())
    with pytest.raises(cb.CBanditError, match="confidence"):
        policy.ask(confidence=wrong)
    assert policy.t == 0


def test_policies_without_beliefs_about_costs_say_so():
    gp = belief()
    policies = [
        cb.GPUCB(SETS["grid"], reward=gp),
        cb.EpochPenalty(SETS["grid"], reward=gp, costs=1, epoch=3),
        cb.baselines.Random(SETS["grid"], costs=1),
    ]
    for policy in policies:
        with pytest.raises(cb.CBanditError, match="takes no confidence="):
            policy.ask(confidence=0.9)


@pytest.mark.slow
def test_rounds_keep_their_limits_as_often_as_said():
    """From the tenth round on, over 10 random problems with learned beliefs."""
    kept = []
    for seed in range(10):
        problem = cb.problems.zhou_synthetic(cost="independent", seed=seed)
        gp = cb.GP.default(problem.actions)
        policy = cb.CKB(problem.actions, reward=gp, costs=gp, seed=seed)
        for t in range(30):
            choice = policy.ask(confidence=0.9)
            reward, cost = problem.observe(choice, torch.Generator().manual_seed(t))
            policy.tell(choice, reward=reward, cost=cost)
            if t >= 10:
                kept.append(bool((problem.costs(choice.x, t) <= 0).all()))
    assert sum(kept) / len(kept) >= 0.9


def test_config_on_a_box_takes_the_likeliest_where_nothing_is_sure():
    box = cb.Box([0.0], [1.0])
    gp = belief()
    policy = cb.baselines.CONFIG(box, reward=gp, costs=gp, thresholds=-3.0)
    policy.observe(x=[[0.2], [0.8]], reward=[0.0, 1.0], cost=[0.0, -0.5])
    choice = policy.ask(confidence=0.9)
    assert choice.infeasible
    assert policy.posterior(choice.x.unsqueeze(0)).costs.mean < 0
