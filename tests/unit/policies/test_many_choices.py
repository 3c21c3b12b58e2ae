"""Several choices at once: ask(n=)."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from inside import Coming, Kronecker, beliefs_of, count_singly

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 7, dtype=F64)
GRID = cb.ProductGrid([AXIS, AXIS])
BOX = cb.Box([0.0, 0.0], [1.0, 1.0])
SPACE = cb.Space(model=cb.Category("a", "b", "c"), prompt=cb.Context(2))


def policy_on(actions, **more):
    gp = cb.GP.default(actions)
    return cb.RPOL(actions, reward=gp, costs=gp, explore=cb.UCB(1.0), **more)


def tell(policy, choice):
    reward = choice.x.sum(-1)
    policy.tell(choice, reward=reward, cost=reward - 1.0)


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("actions", [GRID, BOX])
def test_they_are_as_if_asked_one_by_one(actions, trials):
    together, apart = (policy_on(actions, trials=trials) for _ in range(2))
    for policy in (together, apart):
        tell(policy, policy.ask())
    choices = together.ask(n=4)
    singles = [apart.ask() for _ in range(4)]
    assert [c.x.tolist() for c in choices] == [c.x.tolist() for c in singles]
    assert [c.t for c in choices] == [2, 3, 4, 5]
    assert len(together.outstanding) == 4
    for choice, single in zip(reversed(choices), reversed(singles), strict=True):
        tell(together, choice)
        tell(apart, single)
    assert together.ask().x.tolist() == apart.ask().x.tolist()


def test_hallucinated_variances_spread_them():
    policy = policy_on(GRID)
    tell(policy, policy.ask())
    assert len({int(choice.index) for choice in policy.ask(n=6)}) == 6


@pytest.mark.parametrize("trials", [None, 2])
def test_contexts_are_one_or_one_each(trials):
    lead = () if trials is None else (trials,)
    each = torch.rand(3, *lead, 2, generator=torch.Generator().manual_seed(0))
    shown = policy_on(SPACE, trials=trials).ask(n=3, context=each)
    first = [choice.x.reshape(-1, 3)[0] for choice in shown]
    rows = [row.reshape(-1, 2)[0].double() for row in each]
    for x, row in zip(first, rows, strict=True):
        assert set(row.tolist()) <= set(x.tolist())
    alike = policy_on(SPACE, trials=trials).ask(n=3, context=each[0])
    by_name = policy_on(SPACE, trials=trials).ask(n=3, context={"prompt": each[0]})
    assert [c.x.tolist() for c in alike] == [c.x.tolist() for c in by_name]
    named = [{"prompt": row} for row in each]
    listed = policy_on(SPACE, trials=trials).ask(n=3, context=named)
    assert [c.x.tolist() for c in listed] == [c.x.tolist() for c in shown]
    with pytest.raises(cb.CBanditError, match="or 4 of them; got 3"):
        policy_on(SPACE, trials=trials).ask(n=4, context=each)


@pytest.mark.parametrize("trials", [None, 3])
def test_contexts_by_name_have_one_axis_more(trials):
    space = cb.Space(
        model=cb.Category("a", "b"),
        prompt=cb.Context(2),
        load=cb.Context(cb.Float(0, 40)),
        region=cb.Context(cb.Category("eu", "us")),
    )
    shown = {"prompt": [[1.0, 2.0], [3.0, 4.0]], "load": [[5.0], [6.0]]}
    choices = policy_on(space, trials=trials).ask(
        n=2, context={**shown, "region": "us"}
    )
    for i, choice in enumerate(choices):
        for params in [choice.params] if trials is None else choice.params:
            assert params["prompt"] == shown["prompt"][i]
            assert (params["load"], params["region"]) == (shown["load"][i][0], "us")
    with pytest.raises(cb.CBanditError, match="n = 4 choices, or 4 of them; got 2"):
        policy_on(space, trials=trials).ask(n=4, context={**shown, "region": "us"})


@pytest.mark.parametrize("region", [["eu", "us"], [["eu"], ["us"]]])
def test_names_are_contexts_of_several_choices(region):
    space = cb.Space(
        model=cb.Category("a", "b"), region=cb.Context(cb.Category("eu", "us"))
    )
    choices = policy_on(space).ask(n=2, context=region)
    assert [choice.params["region"] for choice in choices] == ["eu", "us"]
    assert policy_on(space).ask(context=["us"]).params["region"] == "us"


def test_a_failure_changes_nothing():
    policy = policy_on(GRID, horizon=5)
    twin = policy_on(GRID, horizon=5)
    for each in (policy, twin):
        tell(each, each.ask())
    with pytest.raises(cb.HorizonError):
        policy.ask(n=5)
    assert policy.t == 1
    assert policy.outstanding == []
    assert len(policy.history()) == 1
    assert policy.multiplier.tolist() == twin.multiplier.tolist()
    choices, others = policy.ask(n=4), twin.ask(n=4)
    assert [c.x.tolist() for c in choices] == [c.x.tolist() for c in others]


def test_the_list_ends_where_a_budget_does():
    gp = cb.GP.default(GRID)
    policy = cb.CKB(
        GRID,
        reward=gp,
        costs={"usd": gp},
        thresholds={"usd": cb.Budget(6.0, rounds=40)},
    )
    for cost in (1.0, 1.2, 0.9):
        policy.tell(policy.ask(), reward=1.0, cost={"usd": cost})
    choices = policy.ask(n=20)
    assert 1 <= len(choices) < 20
    assert float(policy.budget["usd"].promised) <= 2.9
    with pytest.raises(cb.BudgetError):
        policy.ask(n=5)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
def test_n_is_a_whole_number(wrong):
    with pytest.raises(cb.CBanditError, match="n must be"):
        policy_on(GRID).ask(n=wrong)


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("trials", [None, 2])
def test_each_further_choice_is_counted_once(monkeypatch, trials, learned):
    axis = torch.linspace(0, 1, 12, dtype=F64)
    grid = cb.ProductGrid([axis, axis**1.1, axis**0.9])
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor([0.3, 0.4, 0.5], dtype=F64)
    gp = cb.GP.default(grid) if learned else cb.GP(kernel, noise=0.01)
    policy = cb.RPOL(grid, reward=gp, costs=gp, explore=cb.UCB(1.0), trials=trials)
    for _ in range(3):
        tell(policy, policy.ask())
    columns, multiply = [], Kronecker.multiply

    def counted(rows, weights):
        columns.append(weights.shape[-1])
        return multiply(rows, weights)

    monkeypatch.setattr(Kronecker, "multiply", counted)
    work = []
    for _ in range(30):
        columns.clear()
        policy.ask()
        work.append(sum(columns))
    assert set(work[1:]) == {len(beliefs_of(policy).groups)}


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("outcome", [None, "binary"])
@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_many_open_choices_that_are_alike_count_as_one(
    monkeypatch, trials, outcome, engine
):
    actions = cb.Finite(AXIS.unsqueeze(-1))
    settings = {"explore": cb.UCB(2.0), "engine": engine, "trials": trials}
    scores, counts, of = [], [], Coming.of
    monkeypatch.setattr(
        Coming, "of", lambda ahead, *rest: counts.append(len(ahead)) or of(ahead, *rest)
    )
    for joined in (True, False):
        gp = cb.GP.default(actions, outcome=outcome)
        policy = cb.GPUCB(actions, reward=gp, **settings)
        for value in (0.0, 1.0, 1.0):
            choice = policy.ask()
            policy.tell(choice, reward=torch.full(choice.x.shape[:-1], value))
        if not joined:
            assert max(counts) < 64
            count_singly(monkeypatch)
        policy.ask(n=70)
        half = policy.outstanding[::2]
        policy.ask(n=70)
        for choice in half:
            policy.cancel(choice)
        policy.ask(n=40)
        scores.append(torch.tensor(policy.history()["score"].to_numpy()))
    torch.testing.assert_close(*scores, rtol=0, atol=1e-10, equal_nan=True)
    assert max(counts) > 120


def test_no_reminder_is_of_what_n_has_just_asked_for():
    gp = cb.GP.default(GRID)
    policy = cb.GPUCB(GRID, reward=gp, explore=cb.UCB(1.0))
    policy.ask(n=150)  # any warning is an error
    for _ in range(99):
        policy.ask()
    with pytest.warns(UserWarning, match="250 choices wait for their feedback"):
        policy.ask()


@pytest.mark.parametrize("trials", [None, 2])
def test_a_checkpoint_holds_what_is_open(tmp_path, trials):
    axis = torch.linspace(0, 1, 12, dtype=F64)
    policy = policy_on(cb.ProductGrid([axis, axis**1.1, axis**0.9]), trials=trials)
    choices = [policy.ask() for _ in range(3)]
    tell(policy, choices[0])
    for _ in range(3):
        policy.ask()
    policy.save(tmp_path / "state")
    other = cb.load(tmp_path / "state")
    for each in (policy, other):
        value = torch.full(choices[1].x.shape[:-1], 0.5, dtype=F64)
        each.tell(choices[1].id, reward=value, cost=value)
        each.cancel(choices[2].id)
        each.ask(n=2)
    scores = [each.history()["score"].dropna().tolist() for each in (policy, other)]
    assert scores[0] == scores[1]
