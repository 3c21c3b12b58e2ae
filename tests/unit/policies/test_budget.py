"""Budgets: promises by hand, who may spend what, many runs with heavy tails, saves."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import pytest
import torch
from scipy.special import ndtr

import cbandit as cb

ARMS = 6
SURE = 1.6448536269514722  # the 95 % quantile of a standard normal


def believed(noise=0.04, mean=0.0, standardize=False):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return cb.GP(kernel, noise=noise, mean=mean, standardize=standardize)


def arms():
    return cb.Finite(torch.arange(float(ARMS), dtype=torch.float64).unsqueeze(-1))


def policy_of(cls=cb.CKB, total=10.0, rounds=40, **arguments):
    settings = {
        "reward": believed(),
        "costs": {"usd": believed()},
        "thresholds": {"usd": cb.Budget(total, rounds=rounds)},
    }
    if cls is cb.CKB:
        settings |= {"step": 0.1, "cap": 5.0}
    return cls(arms(), **{**settings, **arguments})


def test_promises_are_in_the_users_units():
    """The bound of a standardised belief, from its posterior and the model's noise."""
    gp = believed(0.05, standardize=True)
    policy = policy_of(total=9000.0, reward=gp, costs={"usd": gp}, explore=cb.UCB(0.5))
    rows = torch.arange(ARMS).repeat(3)
    costs = 100.0 + 20 * rows.double() + torch.linspace(-9, 9, len(rows)).double()
    policy.observe(index=rows, reward=rows.double(), cost=costs.unsqueeze(-1))
    post, choice = policy.posterior(), policy.ask()
    mean, std = (
        part[0, int(choice.index)].item() for part in (post.costs.mean, post.costs.std)
    )
    noise = 0.05 * costs.var().item()
    bound = mean + SURE * math.sqrt(std**2 + noise)
    np.testing.assert_allclose(policy.budget["usd"].promised, bound, rtol=1e-9)


def test_promises_fade_with_what_was_learned():
    """The bound is that of the round's own belief, not of the round before."""
    gp = cb.GP.linear(arms(), noise=0.3, fade=0.5)
    policy = policy_of(total=9000.0, reward=gp, costs={"usd": gp})
    costs = [1.0, 4.0, 2.0, 8.0]
    for cost in costs:
        policy.tell(policy.ask(), reward=cost, cost={"usd": cost})
    choice = policy.ask()
    now = policy.posterior().costs
    mean, std = (part[0, int(choice.index)].item() for part in (now.mean, now.std))
    bound = mean + SURE * math.sqrt(std**2 + 0.3 * np.var(costs, ddof=1))
    np.testing.assert_allclose(policy.budget["usd"].promised, bound, rtol=1e-9)


@pytest.mark.parametrize("trials", [None, 3])
def test_promises_are_predictive_bounds_and_costs_replace_them(trials):
    total = 10.0 if trials is None else torch.tensor([10.0, 20.0, 30.0])
    policy = policy_of(total=total, trials=trials)
    shape = policy.batch_shape
    one = torch.ones(shape, dtype=torch.float64)
    spent, bounds, choices = 0 * one, [], []
    for t in range(4):
        standing = policy.budget["usd"]
        left = total - spent - sum(bounds, 0 * one)
        torch.testing.assert_close(standing.spent, spent)
        torch.testing.assert_close(standing.promised, sum(bounds, 0 * one))
        torch.testing.assert_close(standing.left, left)
        torch.testing.assert_close(standing.pace, left / (40 - t))
        assert standing.rounds == 40 - t
        post, choice = policy.posterior(), policy.ask()
        at = choice.index.unsqueeze(-1)
        mean, std = (
            part[..., 0, :].gather(-1, at).squeeze(-1)
            for part in (post.costs.mean, post.costs.std)
        )
        bounds.append(mean + SURE * (std.square() + 0.04).sqrt())
        if t == 1:  # of the first choice; the rest stay promised
            policy.tell(choices[0], reward=one, cost={"usd": 0.7 * one})
            spent, bounds[0] = 0.7 * one, 0 * one
        choices.append(choice)
    frame = policy.history()
    np.testing.assert_allclose(
        frame["promised_usd"].to_numpy()[-one.numel() :],
        bounds[-1].reshape(-1),
        rtol=1e-9,
    )
    assert frame["pace_usd"].notna().all()


def test_a_unit_that_is_not_known_yet_counts_as_the_pace():
    policy = policy_of(
        reward=believed(0.1, standardize=True),
        costs={"usd": believed(0.1, standardize=True)},
    )
    policy.ask()
    assert policy.budget["usd"].promised.item() == 10.0 / 40


def test_only_what_fits_is_chosen():
    """The best arm is too dear for what is left: the best that fits is played."""
    policy = policy_of(explore=cb.UCB(0.0), total=2.0, rounds=10, cap=1e-9)
    rows = torch.arange(ARMS).repeat(50)
    costs = 0.5 * rows.double()
    policy.observe(index=rows, reward=rows.double(), cost=costs.unsqueeze(-1))
    assert policy.budget["usd"].spent.item() == 0.0  # observe is never charged
    choice = policy.ask()
    # arm 3 costs 1.5 and 0.33 more for noise, arm 4 costs 2.0
    assert int(choice.index) == 3 and choice.idle is None
    policy.tell(choice, reward=3.0, cost={"usd": 1.5})
    assert int(policy.ask().index) == 0
    with pytest.raises(
        cb.BudgetError, match=r"'usd': 0\.1.* of 2 is left.*1 outstanding"
    ):
        policy.ask()
    assert policy.t == 2
    # what is told of the choice that waits makes room again
    policy.tell(policy.outstanding[0], reward=0.0, cost={"usd": 0.0})
    assert int(policy.ask().index) == 0


@pytest.mark.parametrize("cls", [cb.CKB, cb.RPOL, cb.baselines.CONFIG])
def test_a_box_chooses_what_fits(cls):
    """The best point costs 10; once it is paid for, the rest of the total decides."""
    box, totals = cb.Box([0.0, 0.0], [1.0, 1.0]), torch.tensor([13.0, 14.0]).double()
    gp = cb.GP.default(box)
    policy = cls(
        box, reward=gp, costs={"usd": gp}, trials=2, explore=cb.UCB(0.1),
        thresholds={"usd": cb.Budget(totals, rounds=2)},
    )  # fmt: skip
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).double()
    policy.observe(x=x, reward=x.sum(-1), cost=5 * x.sum(-1, keepdim=True))
    spent = torch.zeros(2, dtype=torch.float64)
    for _ in range(2):
        choice = policy.ask()
        cost = 5 * choice.x.sum(-1)
        spent += cost
        assert choice.idle is None
        policy.tell(choice, reward=choice.x.sum(-1), cost={"usd": cost})
    assert bool((spent <= totals).all())
    torch.testing.assert_close(policy.budget["usd"].spent, spent)
    # what is left is not wasted, but by a policy that leaves room to be safe
    assert bool((spent > 0.85 * totals).all())


def test_trials_that_can_afford_nothing_are_idle():
    policy = policy_of(total=torch.tensor([0.2, 50.0]), trials=2, explore=cb.UCB(0.0))
    rows = torch.arange(ARMS).repeat(20)
    cost = 0.3 + 0.1 * rows.double().unsqueeze(-1)
    policy.observe(index=rows, reward=rows.double(), cost=cost)
    choice = policy.ask()
    assert choice.idle.tolist() == choice.infeasible.tolist() == [True, False]
    # its cost would be above the pace, and is not played
    assert policy.budget["usd"].pace[0] < 0.3
    assert policy.multiplier[0].tolist() == [0.0]
    nothing = torch.tensor([math.nan, 0.5], dtype=torch.float64)
    policy.tell(choice, reward=nothing, cost={"usd": nothing})
    assert policy.budget["usd"].spent.tolist() == [0.0, 0.5]
    assert policy.budget["usd"].promised.tolist() == [0.0, 0.0]
    assert not policy.outstanding
    frame = policy.history()
    assert frame["state"].tolist() == ["idle", "told"]
    assert frame["promised_usd"].tolist()[0] == 0.0
    # told apart, and in part: the idle trial is left out
    choice = policy.ask()
    policy.tell(choice, reward=nothing, where=[True, True])
    policy.tell(choice, reward=nothing, where=[True, False])
    policy.tell(choice, cost={"usd": nothing})
    assert not policy.outstanding
    # a failure is of the trials that play
    policy.tell(policy.ask(), failed=True)
    assert policy.history()["state"].tolist()[-2:] == ["idle", "failed"]


@pytest.mark.parametrize("way", ["cancel", "failed"])
def test_what_never_comes_stays_spent_unless_its_cost_is_told(way):
    policy = policy_of()

    def end(choice, **cost):
        if way == "cancel":
            policy.cancel(choice, **cost)
        else:
            policy.tell(choice, failed=True, **cost)

    choice = policy.ask()
    promised = policy.budget["usd"].promised.item()
    assert promised > 0
    end(choice)
    standing = policy.budget["usd"]
    assert (standing.spent.item(), standing.promised.item()) == (promised, 0.0)
    # the cost beside the end of it
    end(policy.ask(), cost={"usd": 0.25})
    np.testing.assert_allclose(policy.budget["usd"].spent, promised + 0.25)
    # the cost told before
    choice = policy.ask()
    policy.tell(choice, cost={"usd": 0.5})
    with pytest.raises(cb.ChoiceError, match="told its cost"):
        end(choice, cost={"usd": 0.25})
    end(choice)
    np.testing.assert_allclose(policy.budget["usd"].spent, promised + 0.75)
    assert policy.budget["usd"].promised.item() == 0.0
    # what was charged beside the end was not learned from
    assert len(policy.model.models[1].train_targets) == 1
    assert policy.history()["usd"].tolist()[1] == 0.25


def test_a_failure_in_one_trial_spends_what_was_promised_there():
    policy = policy_of(trials=2)
    choice = policy.ask()
    first, other = policy.budget["usd"].promised.tolist()
    assert first > 0
    policy.tell(choice, failed=True, where=[True, False])
    standing = policy.budget["usd"]
    assert standing.spent.tolist() == [first, 0.0]
    assert standing.promised.tolist() == [0.0, other]
    assert standing.left.tolist() == [10.0 - first, 10.0 - other]
    policy.tell(choice, reward=[0.0, 1.0], cost=[0.0, 0.25], where=[False, True])
    standing = policy.budget["usd"]
    assert standing.spent.tolist() == [first, 0.25]
    assert standing.promised.tolist() == [0.0, 0.0]
    # what fails at a known cost there, and is cancelled at a known cost elsewhere
    choice = policy.ask()
    policy.tell(choice, failed=True, where=[True, False], cost=[0.5, 0.0])
    assert policy.budget["usd"].promised.tolist()[0] == 0.0
    policy.tell(choice, failed=True, where=[False, True], cost=[0.0, 0.75])
    assert policy.budget["usd"].spent.tolist() == [first + 0.5, 1.0]


def test_the_error_counts_choices_of_the_trial_that_it_names():
    policy = policy_of(total=torch.tensor([2.0, 2.5]), trials=2, rounds=40)
    while True:
        try:
            choice = policy.ask()
        except cb.BudgetError as error:
            text = str(error)
            break
        if policy.t == 1:  # at once in the trial that is the richest
            policy.tell(choice, reward=[0, 0], cost=[0, 0], where=[False, True])
    waiting = policy.t - 1
    assert "in trial 1" in text
    assert f"promised to {waiting} outstanding" in text


def test_without_a_budget_costs_beside_an_end_are_errors():
    policy = policy_of(thresholds={"usd": "<= 1"})
    choice = policy.ask()
    with pytest.raises(ValueError, match="cancel takes cost= beside"):
        policy.cancel(choice, cost=0.1)
    with pytest.raises(ValueError, match="failed=True or feedback, not both"):
        policy.tell(choice, failed=True, cost=0.1)
    assert policy.budget == {}


def test_after_its_rounds_the_horizon_has_passed():
    policy = policy_of(rounds=3)
    assert policy.horizon == 3
    for _ in range(3):
        policy.tell(policy.ask(), reward=0.0, cost={"usd": 0.1})
    with pytest.raises(cb.HorizonError, match="budgets of as many rounds"):
        policy.ask()
    assert policy.budget["usd"].rounds == 0


def test_the_limit_of_a_round_is_the_pace():
    """RPOL's multiplier gains what was above the pace of the round, told late too."""
    policy = policy_of(cb.RPOL, total=8.0, rounds=20)
    q, waiting = 1.0, []
    costs = [0.9, 0.1, 0.7, 0.05, 0.8, 0.3]
    for t, cost in enumerate(costs, start=1):
        pace = policy.budget["usd"].pace.item()
        waiting.append((policy.ask(), cost, pace))
        if len(waiting) == 3:  # two rounds late
            choice, cost, pace = waiting.pop(0)
            policy.tell(choice, reward=0.0, cost={"usd": cost})
            q += max(cost - pace, 0.0)
        q = max(q, math.sqrt(t))
        np.testing.assert_allclose(policy.multiplier, [q], rtol=1e-12)


def test_several_budgets_and_a_limit():
    gp = believed()
    policy = cb.CKB(
        arms(), reward=gp, costs={"usd": gp, "ms": gp, "up": gp}, step=0.1, cap=5.0,
        thresholds={
            "ms": cb.Budget(50.0, rounds=20),
            "up": ">= -1.0",
            "usd": cb.Budget(torch.tensor([4.0, 6.0]), rounds=10),
        },
        trials=2,
    )  # fmt: skip
    assert policy.horizon == 10
    one = torch.ones(2, dtype=torch.float64)
    policy.tell(policy.ask(), reward=one, cost={"usd": one, "ms": 2 * one, "up": one})
    assert list(policy.budget) == ["usd", "ms"]
    torch.testing.assert_close(
        policy.budget["usd"].left, torch.tensor([3.0, 5.0]).double()
    )
    torch.testing.assert_close(policy.budget["ms"].pace, 48 * one / 19)
    assert "spent 1, 1, promised 0, 0, left 3, 5" in str(policy.budget["usd"])
    listed = cb.CKB(
        arms(), reward=gp, costs=[gp, gp], step=0.1, cap=5.0,
        thresholds=[0.5, cb.Budget(3.0, rounds=6)],
    )  # fmt: skip
    assert listed.budget["cost2"].pace.item() == 0.5
    single = cb.CKB(
        arms(), reward=gp, costs=gp, step=0.1, cap=5.0,
        thresholds=cb.Budget(3.0, rounds=6),
    )  # fmt: skip
    single.tell(single.ask(), reward=0.0, cost=0.5)
    assert single.budget["cost1"].pace.item() == 0.5


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("dual", ["projected", "resolved"])
def test_saved_and_resumed_bit_for_bit(tmp_path, dual, trials):
    gp = believed(0.1, standardize=True)
    policy = cb.CKB(
        arms(), reward=gp, costs={"usd": gp}, dual=dual, trials=trials,
        thresholds={"usd": cb.Budget(15.0, rounds=40)},
    )  # fmt: skip

    def play(policy, rounds, generator):
        for _ in range(rounds):
            choice = policy.ask()
            draws = torch.rand(2, *policy.batch_shape, generator=generator).double()
            if choice.t % 3:
                policy.tell(choice, reward=draws[0], cost={"usd": draws[1]})

    generator = torch.Generator().manual_seed(0)
    play(policy, 8, generator)
    policy.save(tmp_path / "state")
    again, state = cb.load(tmp_path / "state"), generator.get_state()
    play(policy, 10, generator)
    play(again, 10, torch.Generator().set_state(state))
    for name in ("spent", "promised", "left", "pace"):
        mine, theirs = (getattr(p.budget["usd"], name) for p in (policy, again))
        assert torch.equal(mine, theirs)
    assert torch.equal(policy.multiplier, again.multiplier)
    columns = ["action", "pace_usd", "promised_usd", "score"]
    assert policy.history()[columns].equals(again.history()[columns])


def counted_policy(outcome, total=4.0, rounds=60, **arguments):
    kernel = believed().kernel
    return policy_of(
        cb.RPOL,
        total,
        rounds,
        costs={"usd": cb.GP(kernel, outcome=outcome)},
        **arguments,
    )


@pytest.mark.parametrize("outcome", ["binary", "count"])
@pytest.mark.parametrize("box", [False, True])
def test_promises_of_outcomes_are_bounds_of_one_outcome(outcome, box):
    """The mean plus 1.64 deviations, by integration over the latent function."""
    policy = counted_policy(outcome)
    if box:
        policy = cb.CKB(
            cb.Box([0.0], [5.0]), reward=believed(), step=0.1, cap=5.0,
            costs={"usd": cb.GP(believed().kernel, outcome=outcome)},
            thresholds={"usd": cb.Budget(4.0, rounds=60)},
        )  # fmt: skip
    x = torch.tensor([[0.0], [0.0], [1.0], [4.0]], dtype=torch.float64)
    policy.observe(x=x, reward=x[:, 0], cost=torch.tensor([[0.0], [0], [1], [0]]))
    latent, choice = policy.model, policy.ask()
    f = latent.posterior(choice.x.unsqueeze(0))
    mean, std = f.mean[0, 1].item(), f.variance[0, 1].sqrt().item()
    z, weight = np.polynomial.hermite_e.hermegauss(80)
    weight /= weight.sum()
    chance = ndtr(mean + std * z) if outcome == "binary" else np.exp(mean + std * z)
    first = weight @ chance
    inside = chance * (1 - chance) if outcome == "binary" else chance
    spread = weight @ inside + weight @ (chance - first) ** 2
    bound = first + SURE * math.sqrt(spread)
    if outcome == "binary":
        bound = min(bound, 1.0)
    promised = policy.budget["usd"].promised.item()
    np.testing.assert_allclose(promised, bound, rtol=1e-6)
    policy.tell(choice, reward=1.0, cost={"usd": 1})
    standing = policy.budget["usd"]
    assert (standing.spent.item(), standing.promised.item()) == (1.0, 0.0)
    np.testing.assert_allclose(standing.pace, 3 / 59)


@pytest.mark.parametrize("cls", [cb.CKB, cb.RPOL, cb.baselines.CONFIG])
def test_a_budget_of_failures_is_never_overspent_one_by_one(cls, tmp_path):
    """Every choice has a binary cost; told before the next one, none goes too far."""
    settings = {} if cls is not cb.CKB else {"step": 0.1, "cap": 5.0}
    policy = cls(
        arms(), reward=believed(), trials=2, explore=cb.UCB(0.5),
        costs={"fails": cb.GP(believed().kernel, outcome="binary")},
        thresholds={"fails": cb.Budget(torch.tensor([3.0, 6.0]), rounds=50)},
        **settings,
    )  # fmt: skip
    generator, total = torch.Generator().manual_seed(0), torch.zeros(2).double()
    for t in range(50):
        try:
            choice = policy.ask()
        except cb.BudgetError:
            break
        if t == 5:
            policy.save(tmp_path / "run")
            policy = cb.load(tmp_path / "run")
        fails = torch.rand(2, generator=generator) < 0.1 * (1 + choice.index)
        plays = True if choice.idle is None else ~choice.idle
        total += fails & plays
        told = torch.where(torch.as_tensor(plays), fails.double(), torch.nan)
        policy.tell(choice.id, reward=choice.index + 0 * told, cost={"fails": told})
    standing = policy.budget["fails"]
    assert torch.equal(standing.spent, total)
    assert bool((total <= standing.total).all())
    assert bool((total >= 1).all())


def test_what_a_budget_of_outcomes_does_not_take_says_so():
    with pytest.raises(ValueError, match="'s Budget over its rounds must be a prob"):
        counted_policy("binary", total=60.0)
    policy = counted_policy("binary")
    choice = policy.ask()
    before = policy.budget["usd"].promised
    for told in ((1, 3), (0, 2)):
        with pytest.raises(ValueError, match="one try, or an exposure of 1, a round"):
            policy.tell(choice, reward=0.0, cost={"usd": told})
    assert torch.equal(policy.budget["usd"].promised, before)
    policy.tell(choice, reward=0.0, cost={"usd": True})
    assert policy.budget["usd"].spent.item() == 1.0
    policy.cancel(policy.ask(), cost={"usd": True})
    assert policy.budget["usd"].spent.item() == 2.0
    policy = counted_policy("count", total=40.0)
    with pytest.raises(ValueError, match="exposure of 1"):
        policy.tell(policy.ask(), reward=0.0, cost={"usd": 2}, exposure=0.5)
    policy.tell(policy.outstanding[0], reward=0.0, cost={"usd": 2})
    assert policy.budget["usd"].left.item() == 38.0


class Tariff(cb.problems.Table):
    """A table whose costs have exponential noise: the dearer, the heavier the tail."""

    def observe(self, choice, generator):
        reward, cost = super().observe(choice, generator)[:2]
        tail = torch.rand(cost.shape, generator=generator, dtype=torch.float64)
        return reward, cost * -torch.log1p(-tail)


def test_a_simulation_shows_it_and_ends_with_the_budget():
    rows = torch.linspace(0.1, 0.6, ARMS, dtype=torch.float64)
    problem = Tariff(rows.sqrt(), rows.unsqueeze(0), 1e-4, trials=2, thresholds=9.0)
    gp = believed(0.1, standardize=True)
    policy = cb.CKB(
        problem.actions, reward=gp, costs=gp, trials=2, cap=1e-9, explore=cb.UCB(0.1),
        thresholds=cb.Budget(torch.tensor([3.0, 12.0]), rounds=200),
    )  # fmt: skip
    run = cb.simulate(policy, problem, 200, progress=False)
    rounds = run.rewards.shape[1]
    assert 10 < rounds < 200
    idle = run.rewards.isnan()
    assert 0 < int(idle[0].sum()) < rounds
    assert torch.equal(idle, run.costs.isnan()[..., 0])
    assert bool(run.infeasible[idle].all())
    # nothing is earned and nothing is spent where nothing is played
    assert bool((run.true_rewards[idle] == 0).all())
    assert bool((run.true_costs[idle] == -9.0).all())
    standing = policy.budget["cost1"]
    torch.testing.assert_close(standing.spent, run.costs.nan_to_num(0.0).sum((1, 2)))


@pytest.mark.slow
def test_300_runs_with_heavy_tails_and_20_outstanding():
    """Never overspent beyond the excess of outstanding choices over their bounds.

    Costs are lognormal, of variance 1.7 times the squared mean; the best arm costs four
    times the pace, and 20 choices wait. What is left beside promises, once the last
    choice is made, is at most 2 % of the total.
    """
    runs, rounds, total, late = 300, 1000, 500.0, 20
    policy = cb.CKB(
        arms(), reward=believed(0.1), costs=believed(2.0, mean=1.0), trials=runs,
        dual="resolved", explore=cb.UCB(2.0), pending="ignore",
        thresholds=cb.Budget(total, rounds=rounds),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    means = torch.linspace(0.2, 2.0, ARMS, dtype=torch.float64)
    actual = torch.zeros(runs, rounds, dtype=torch.float64)
    promised = torch.zeros_like(actual)
    last, waiting = torch.zeros(runs).long(), []
    for t in range(rounds):
        before = policy.budget["cost1"]
        try:
            choice = policy.ask()
        except cb.BudgetError:
            break
        after = policy.budget["cost1"]
        plays = torch.ones(runs).bool() if choice.idle is None else ~choice.idle
        assert bool((after.left >= -1e-9)[plays].all())
        last[plays] = t
        noise = torch.randn(runs, generator=generator, dtype=torch.float64)
        cost = torch.where(plays, means[choice.index] * torch.exp(noise - 0.5), 0.0)
        promised[:, t] = after.promised - before.promised
        actual[:, t] = cost
        waiting.append((choice, means[choice.index].sqrt(), cost))
        if len(waiting) > late:
            old, reward, cost = waiting.pop(0)
            policy.tell(old, reward=reward, cost=cost)
    for old, reward, cost in waiting:
        policy.tell(old, reward=reward, cost=cost)
    spent = policy.budget["cost1"].spent
    torch.testing.assert_close(spent, actual.sum(-1), rtol=1e-12, atol=0)
    number = torch.arange(rounds)
    outstanding = (number <= last[:, None]) & (number > last[:, None] - late - 1)
    stated = ((actual - promised).clamp_min(0) * outstanding).sum(-1)
    assert bool((spent - total <= stated + 1e-9).all())
    left = total - spent - ((promised - actual) * outstanding).sum(-1)
    assert bool((left <= 0.02 * total).all())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: cb.Budget(0.0, rounds=5), "total must be above 0"),
        (lambda: cb.Budget(1.0, rounds=0), "rounds must be"),
        (lambda: cb.Budget([[1.0]], rounds=5), "total must be a number or of shape"),
        (
            lambda: policy_of(thresholds={"eur": cb.Budget(1.0, rounds=5)}),
            "no cost is called 'eur'",
        ),
        (
            lambda: policy_of(total=torch.tensor([1.0, 2.0])),
            "the total of 'usd'",
        ),
        (
            lambda: cb.CKB(
                arms(), reward=believed(), costs=[believed()] * 2, step=0.1, cap=5.0,
                thresholds=[cb.Budget(1.0, rounds=5)],
            ),
            "thresholds must be 2, one a cost",
        ),
        (
            lambda: cb.SCGPUCB(
                arms(), reward=believed(), costs=1, slater=0.5, clip=(1.0, 1.0),
                thresholds=cb.Budget(1.0, rounds=5),
            ),
            "a belief about every cost",
        ),
        (
            lambda: cb.baselines.SafeOpt(
                arms(), reward=believed(), costs=believed(), safe=cb.Safe(index=0),
                thresholds=cb.Budget(1.0, rounds=5),
            ),
            "takes no cb.Budget in thresholds",
        ),
        (
            lambda: cb.LCLUCB(
                arms(), reward=cb.Linear(1.0, 1.0, 1.0),
                costs=cb.Linear(1.0, 1.0, 1.0), safe=cb.Safe(x=[0.0], cost=0.0),
                delta=0.1, thresholds=cb.Budget(1.0, rounds=5),
            ),
            "takes no cb.Budget in thresholds",
        ),
    ],
)  # fmt: skip
def test_what_is_no_budget_says_so(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def ask_beside(policy, rounds):
    """Play rounds that cost .05 each, and ask beside each for a choice not played."""
    shadows = []
    for _ in range(rounds):
        policy.tell(policy.ask(), reward=0.5, cost=0.05)
        shadows.append(policy.ask())
    return shadows


def test_bounds_of_unanswered_choices_that_add_up_are_said_once():
    policy = policy_of(total=100.0, rounds=400)
    said = "'usd': 1[0-9] choices that later ones overtook have no answer"
    with pytest.warns(UserWarning, match=said) as seen:
        shadows = ask_beside(policy, 15)
    assert len(seen) == 1
    assert "policy.cancel(choice, cost=...)" in str(seen[0].message)
    assert float(policy.budget["usd"].promised) > 3 * 15 * 0.05
    for choice in shadows:  # as the warning says
        policy.cancel(choice, cost=0.0)
    standing = policy.budget["usd"]
    np.testing.assert_allclose(standing.spent, 15 * 0.05)
    np.testing.assert_allclose(standing.left, 100 - 15 * 0.05)
    ask_beside(policy, 15)  # no second warning: warnings are errors here


def test_a_batch_and_answers_that_come_late_are_not_warned_about():
    policy = policy_of(total=900.0, rounds=400)
    for choice in policy.ask(n=15):
        policy.tell(choice, reward=0.5, cost=0.05)
    waiting = []
    for _ in range(40):  # answers come eight rounds late
        waiting.append(policy.ask())
        if len(waiting) > 8:
            policy.tell(waiting.pop(0), reward=0.5, cost=0.05)
