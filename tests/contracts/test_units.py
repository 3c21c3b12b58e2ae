"""What a policy does is the same whatever its outcomes are measured in."""

from __future__ import annotations

import math
import warnings

import gpytorch
import numpy as np
import pytest
import torch
from inside import (
    Observation,
    all_outcomes,
    beliefs_of,
    estimated,
    limits_of,
    next_look,
    no_outcomes,
    scorer,
    settled,
    spreads_of,
)

import cbandit as cb
from cbandit_kernels import count_outcomes, count_outcomes_ref

POINTS = torch.linspace(0, 1, 24, dtype=torch.float64)
LINE = cb.Finite(POINTS.unsqueeze(-1))
GRID = cb.ProductGrid([POINTS[::4], POINTS[::3]])
BOX = cb.Box([0.0], [1.0])
LIMIT = torch.tensor([0.3, 0.6], dtype=torch.float64)


def smooth(noise=0.05):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
    return cb.GP(kernel, noise=noise, standardize=True)


def default(actions, refit_every=20):
    gp = cb.GP.default(actions)
    gp.refit_every = refit_every
    return gp


def world(x, t, trials=None):
    """A reward and two costs, noisy; the first costs are alike to the bit."""
    g = torch.Generator().manual_seed(t)
    z = torch.randn(3 if trials is None else (trials, 3), generator=g).double()
    u = x[..., 0] + (x[..., 1] / 2 if x.shape[-1] > 1 else 0)
    costs = torch.stack([u**2, 0.9 - (3 * u).sin() / 2], -1)
    costs = costs + 0.05 * z[..., 1:]
    if t <= 3:
        costs[..., 0] = 0.5
    return (5 * u).sin() + u + 0.1 * z[..., 0], costs


KINDS = {
    "CKB": lambda a, **b: cb.CKB(a, explore=cb.UCB(1.0), step=0.3, cap=20.0, **b),
    "CKB clipped": lambda a, **b: cb.CKB(
        a, explore=cb.UCB(1.0), clip=(1.5, 2.0), slater=0.5, anytime=True, **b
    ),
    "CKB-TS": lambda a, **b: cb.CKB(a, explore=cb.TS(1.0), step=0.3, cap=20.0, **b),
    "CKB restarts": lambda a, **b: cb.baselines.CKBRestart(
        a, restart=12, explore=cb.Rand(1.0), step=0.3, cap=20.0, **b
    ),
    "RPOL": lambda a, **b: cb.RPOL(a, explore=cb.UCB(1.0), **b),
    "RPOL estimate": lambda a, **b: cb.RPOL(
        a, explore=cb.UCB(1.0), penalty="estimate", **b
    ),
    "CONFIG": lambda a, **b: cb.baselines.CONFIG(a, explore=cb.UCB(1.0), **b),
    "SafeOpt": lambda a, **b: cb.baselines.SafeOpt(
        a, explore=cb.UCB(1.0), safe=[0, 2], **b
    ),
    "SafeOpt Lipschitz": lambda a, **b: cb.baselines.SafeOpt(
        a, explore=cb.UCB(1.0), safe=[0, 2], lipschitz=4.0, **b
    ),
    "StageOpt": lambda a, **b: cb.baselines.StageOpt(
        a, explore=cb.UCB(1.0), safe=[0, 2], rounds=14, eps=0.3, **b
    ),
    "SGP-UCB": lambda a, **b: cb.baselines.SGPUCB(
        a, explore=cb.UCB(1.0), safe=[0, 2], rounds=3, **b
    ),
    "OPB": lambda a, **b: cb.OPB(a, **b),
}


class Told:
    """A policy whose outcomes are ``size * value + shift``.

    Args:
        kind: of :data:`KINDS`.
        actions: the set.
        belief: of each function.
        sizes, shifts: of the reward and the costs.
        more: keywords.
    """

    def __init__(self, kind, actions, belief, sizes, shifts, **more):
        self.kind, self.trials = kind, more.get("trials")
        self.sizes, self.shifts = (
            torch.tensor(each, dtype=torch.float64) for each in (sizes, shifts)
        )
        tau = LIMIT * self.sizes[1:] + self.shifts[1:]
        if kind == "OPB":
            own = torch.tensor([0.2, 0.1, 0.5], dtype=torch.float64)
            reward, *cost = (own * self.sizes + self.shifts).tolist()
            largest = 3.0 * self.sizes[0] + self.shifts[0]
            safe = cb.Safe(index=0, reward=reward, cost=cost)
            more |= {"safe": safe, "largest": largest}
        both = {"reward": belief, "costs": [belief] * 2, "thresholds": tau}
        self.policy = KINDS[kind](actions, **both, **more)

    def round(self, t):
        """Play round ``t``; what it was, and the multiplier and price before."""
        before = self.policy.multiplier.clone(), self.policy.price
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # too few outcomes as yet
            choice = self.policy.ask()
        reward, cost = world(choice.x, t, self.trials)
        if t % 4 != 2:  # apart, and later
            self.policy.tell(choice, reward=reward * self.sizes[0] + self.shifts[0])
        self.policy.tell(choice, cost=cost * self.sizes[1:] + self.shifts[1:])
        if t % 4 == 2:
            self.policy.tell(choice, reward=reward * self.sizes[0] + self.shifts[0])
        return choice, *before


def gap(policy):
    """By how much the runner-up of the next round trails; infinite where unknown."""
    if policy.name in ("OPB", "SafeOpt", "StageOpt", "SGP-UCB"):
        return math.inf
    look = next_look(policy)
    blocks = list(beliefs_of(policy).blocks())
    mean, std = (
        torch.cat([getattr(b, n) for b in blocks], -1) for n in ("mean", "std")
    )
    estimate = estimated(look, mean, std.expand_as(mean))
    values = scorer(look)(estimate[:, 0], estimate[:, 1:])
    none = values.isneginf().all(-1, keepdim=True)
    values = torch.where(none, -estimate[:, 1:].amax(1), values)
    top = values.topk(2).values
    return float((top[:, 0] - top[:, 1]).min())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("belief", [default, lambda actions: smooth()])
def test_powers_of_two_give_equal_bits(kind, belief):
    plain = Told(kind, LINE, belief(LINE), [1.0] * 3, [0.0] * 3)
    sizes = [2.0**-20, 2.0**30, 2.0**7]
    other = Told(kind, LINE, belief(LINE), sizes, [0.0] * 3)
    for t in range(1, 31):
        (a, phi, price), (b, same, other_price) = plain.round(t), other.round(t)
        assert torch.equal(a.index, b.index)
        assert torch.equal(a.infeasible, b.infeasible)
        assert torch.equal(phi, same)
        if phi.numel():
            scaled = price * other.sizes[0] / other.sizes[1:]
            torch.testing.assert_close(
                other_price, scaled, rtol=0, atol=0, equal_nan=True
            )


@pytest.mark.parametrize(
    ("actions", "more"),
    [
        (GRID, {}),
        (LINE, {"trials": 3}),
        (LINE, {"feedback": cb.Sliding(8)}),
        (LINE, {"feedback": cb.Delayed(10, weight=0.1)}),
        (LINE, {"engine": "stream"}),
        (LINE, {"dtype": "float32"}),
    ],
    ids=["grid", "trials", "sliding", "delayed", "stream", "float32"],
)
@pytest.mark.parametrize("kind", ["CKB", "RPOL", "CONFIG"])
def test_powers_of_two_on_other_sets_and_feedback(kind, actions, more):
    sizes = [2.0**12, 2.0**-9, 2.0**20]
    plain = Told(kind, actions, smooth(), [1.0] * 3, [0.0] * 3, **dict(more))
    other = Told(kind, actions, smooth(), sizes, [0.0] * 3, **dict(more))
    for t in range(1, 25):
        (a, phi, _), (b, same, _) = plain.round(t), other.round(t)
        assert torch.equal(a.index, b.index)
        assert torch.equal(phi, same)


@pytest.mark.parametrize("kind", ["CKB", "CKB-TS", "RPOL", "CONFIG"])
def test_powers_of_two_on_a_box(kind):
    sizes = [2.0**12, 2.0**-9, 2.0**20]
    plain = Told(kind, BOX, smooth(), [1.0] * 3, [0.0] * 3)
    other = Told(kind, BOX, smooth(), sizes, [0.0] * 3)
    for t in range(1, 9):
        (a, phi, _), (b, same, _) = plain.round(t), other.round(t)
        assert torch.equal(a.x, b.x)
        assert torch.equal(phi, same)


@pytest.mark.parametrize(
    ("sizes", "shifts"),
    [
        ([1e-6, 3e8, 7.0], [0.0, 0.0, 0.0]),
        ([1e9, 1e-6, 3.0], [4e9, -1e-5, 200.0]),
        ([0.3, 70.0, 1e9], [-40.0, 1e4, 3e9]),
    ],
)
@pytest.mark.parametrize("belief", ["default", "smooth"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_units_give_the_same_actions(kind, belief, sizes, shifts):
    gp = default(LINE, None) if belief == "default" else smooth()
    plain = Told(kind, LINE, gp, [1.0] * 3, [0.0] * 3)
    other = Told(kind, LINE, gp, sizes, shifts)
    rounds = 0
    for t in range(1, 31):
        close = gap(plain.policy) <= 1e-6
        (a, phi, price), (b, same, told) = plain.round(t), other.round(t)
        if not torch.equal(a.index, b.index):
            assert close
            break
        rounds += 1
        torch.testing.assert_close(phi, same, rtol=1e-6, atol=1e-6)
        if phi.numel():
            scaled = price * other.sizes[0] / other.sizes[1:]
            torch.testing.assert_close(
                told, scaled, rtol=1e-6, atol=1e-9, equal_nan=True
            )
    assert rounds >= 20


@pytest.mark.parametrize("kind", ["RPOL", "CONFIG", "CKB"])
@pytest.mark.parametrize("more", [{"trials": 2}, {"feedback": cb.Sliding(9)}])
def test_other_units_in_batches_and_windows(kind, more):
    plain = Told(kind, GRID, smooth(), [1.0] * 3, [0.0] * 3, **dict(more))
    other = Told(
        kind, GRID, smooth(), [1e7, 1e-5, 3.0], [9e6, 3e-4, -20.0], **dict(more)
    )
    rounds = 0
    for t in range(1, 31):
        close = gap(plain.policy) <= 1e-6
        (a, phi, _), (b, same, _) = plain.round(t), other.round(t)
        if not torch.equal(a.index, b.index):
            assert close
            break
        rounds += 1
        torch.testing.assert_close(phi, same, rtol=1e-6, atol=1e-6)
    assert rounds >= 20


@pytest.mark.parametrize("kind", ["RPOL", "CONFIG"])
def test_other_units_on_a_box(kind):
    plain = Told(kind, BOX, smooth(), [1.0] * 3, [0.0] * 3)
    other = Told(kind, BOX, smooth(), [1e7, 1e-5, 3.0], [9e6, 3e-4, -20.0])
    for t in range(1, 9):
        (a, _, _), (b, _, _) = plain.round(t), other.round(t)
        torch.testing.assert_close(a.x, b.x, rtol=0, atol=1e-4)


# ------------------------------------------------------------------ by hand


def rpol(**more):
    belief = smooth()
    return cb.RPOL(
        LINE, reward=belief, costs=[belief] * 2, explore=cb.UCB(1.0),
        thresholds=[1.0, 2.0], **more,
    )  # fmt: skip


def test_excess_waits_for_its_unit_and_is_divided_by_that_of_the_next_ask():
    policy = rpol()
    told = [[4.0, 3.0], [4.0, 9.0], [6.0, 3.0]]
    for t, cost in enumerate(told):
        policy.tell(policy.ask(), reward=1.0 + t, cost=cost)
        if t == 0:
            assert policy.multiplier.tolist() == [1.0, 1.0]
    # the first cost had no unit before the third outcome, the second had from two on;
    # the floor after two rounds is the root of two
    first = torch.tensor([4.0, 4.0, 6.0]).double().std()
    second = torch.tensor([3.0, 9.0]).double().std()
    third = torch.tensor([3.0, 9.0, 3.0]).double().std()
    expected = torch.stack(
        [2**0.5 + (3 + 3 + 5) / first, 1 + (1 + 7) / second + 1 / third]
    )
    policy.ask()
    torch.testing.assert_close(policy.multiplier, expected)


def test_excess_of_several_rounds_waits():
    policy = rpol()
    for t, cost in enumerate([[4.0, 3.0], [4.0, 3.0], [6.0, 9.0]]):
        policy.tell(policy.ask(), reward=1.0 + t, cost=cost)
    first = torch.tensor([4.0, 4.0, 6.0]).double().std()
    second = torch.tensor([3.0, 3.0, 9.0]).double().std()
    policy.ask()
    expected = torch.stack(
        [2**0.5 + (3 + 3 + 5) / first, 2**0.5 + (1 + 1 + 7) / second]
    )
    torch.testing.assert_close(policy.multiplier, expected)


def test_what_waits_survives_a_checkpoint(tmp_path):
    policy = rpol(trials=2)
    policy.tell(policy.ask(), reward=[1.0, 2.0], cost=[[4.0, 3.0], [4.0, 5.0]])
    policy.tell(policy.ask(), reward=[1.0, 2.0], cost=[[4.0, 3.0], [6.0, 5.0]])
    policy.ask()
    policy.save(tmp_path / "policy")
    other = cb.load(tmp_path / "policy")
    for each in (policy, other):
        each.tell(each.ask(), reward=[3.0, 4.0], cost=[[5.0, 4.0], [4.0, 5.0]])
    assert torch.equal(policy.multiplier, other.multiplier)
    assert bool((policy.multiplier[0] > 5).all())
    assert float(policy.multiplier[1, 1]) == 2.0  # its floor: the second cost waits


def test_no_unit_yet():
    """The threshold counts as the mean; a price is unknown, unless it is 0."""
    policy = rpol()
    policy.tell(policy.ask(), reward=1.0, cost=[4.0, 3.0])
    choice = policy.ask()
    assert not bool(choice.infeasible)
    estimate = settled(policy).estimate
    std = beliefs_of(policy).anywhere(choice.x.unsqueeze(0))[1]
    beta = torch.tensor([1.0, -1.0, -1.0]).double()
    torch.testing.assert_close(estimate, beta * std[0].mT)
    assert policy.price.isnan().all()
    ckb = KINDS["CKB"](LINE, reward=smooth(), costs=smooth())
    assert ckb.price.tolist() == [0.0]


def test_estimates_are_in_spreads():
    policy = rpol()
    data = {"reward": [1.0, 3.0, 7.0], "cost": [[1.0, 5.0], [2.0, 5.0], [4.0, 9.0]]}
    policy.observe(index=[0, 7, 15], **data)
    choice = policy.ask()
    believed, j = policy.posterior(), int(choice.index)
    told = torch.cat(
        [torch.tensor(data["reward"])[:, None], torch.tensor(data["cost"])], -1
    )
    spread = told.double().std(0)
    mean = torch.cat([believed.reward.mean[j : j + 1], believed.costs.mean[:, j]])
    std = torch.cat([believed.reward.std[j : j + 1], believed.costs.std[:, j]])
    estimate = (mean + torch.tensor([1.0, -1.0, -1.0]) * std) / spread
    expected = (
        estimate
        - torch.cat([told[:, 0].mean()[None], limits_of(policy, 1)[0]]) / spread
    )
    torch.testing.assert_close(settled(policy).estimate[0], expected)
    price = policy.multiplier * spread[0] / spread[1:]
    torch.testing.assert_close(policy.price, price)


def test_an_observations_own_noise_has_units_too():
    """Before there is a unit it counts as the belief's."""
    for size in (1.0, 2.0**20):
        policy = cb.GPUCB(LINE, reward=smooth(), explore=cb.UCB(1.0))
        for _ in range(2):
            policy.tell(policy.ask(), reward=3.0 * size, noise=0.01 * size**2)
        known = beliefs_of(policy).anywhere(LINE.points(torch.arange(24))[None])[1]
        if size == 1.0:
            first = known
    assert torch.equal(first, known)


def test_rows_with_their_own_noise_count_as_one_by_one():
    """Each function's rows weigh by its own spread, also after it has changed."""
    gp, rng = smooth(), np.random.default_rng(4)
    index, size = rng.integers(0, 20, 30), np.array([1.0, 100.0])
    y = rng.normal(size=(30, 2)) * size
    policies = []
    for rows in (25, 1):
        x = torch.linspace(0, 1, 20).double().unsqueeze(-1)
        policy = cb.CKB(cb.Finite(x), reward=gp, costs=gp, step=0.1, cap=1.0)
        for first in range(0, 25, rows):
            at = slice(first, first + rows)
            seen = {"reward": y[at, 0], "cost": y[at, 1], "noise": np.full(rows, 0.5)}
            policy.observe(index=index[at], **seen)
        for at in range(25, 30):
            more = {"reward": 9 * y[at : at + 1, 0], "cost": 9 * y[at : at + 1, 1]}
            policy.observe(index=index[at : at + 1], **more)
        policies.append(policy)
    together, single = (policy.posterior() for policy in policies)
    for part in ("reward", "costs"):
        one, other = getattr(together, part), getattr(single, part)
        torch.testing.assert_close(one.mean, other.mean)
        torch.testing.assert_close(one.std, other.std)


def test_beliefs_of_both_kinds():
    """A cost without standardize stays in the user's units beside others."""
    plain = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.05)
    policy = cb.RPOL(
        LINE, reward=smooth(), costs=[smooth(), plain], explore=cb.UCB(1.0),
        thresholds=[1.0, 2.0],
    )  # fmt: skip
    for t in range(3):
        policy.tell(policy.ask(), reward=4.0 * t, cost=[5.0 * t, 6.0])
    s = torch.tensor([0.0, 1.0, 2.0]).double().std()
    two = 4 / torch.tensor([0.0, 5.0]).double().std()
    expected = [1 + float(two + 9 / (5 * s)), 13.0]
    assert policy.multiplier.tolist() == pytest.approx(expected)
    ratio = torch.stack([4 * s / (5 * s), 4 * s])
    torch.testing.assert_close(policy.price, policy.multiplier * ratio)


def test_prices_of_other_policies():
    world = cb.problems.Table([1.0, 2.0, 3.0], [[-1.0, 0.2, 1.0]], noise=0.1)
    seen = cb.SCGPUCB(
        world.actions, reward=cb.GP.default(world.actions), costs=1, slater=1.0,
        clip=5.0, explore=cb.UCB(1.0),
    )  # fmt: skip
    for reward in (1.0, 3.0, 3.5):
        choice = seen.ask(observed_costs=[[0.5, 0.7, 1.0]])
        seen.tell(choice, reward=reward)
    spread = torch.tensor([1.0, 3.0, 3.5]).double().std()
    torch.testing.assert_close(seen.price, seen.multiplier * spread)
    epochs = cb.EpochPenalty(
        LINE, reward=cb.GP.default(LINE), costs=1, explore=cb.UCB(1.0), epoch=3
    )
    for t in range(5):
        epochs.tell(epochs.ask(), reward=4.0 * t, cost=1.0 + t)
    assert torch.equal(epochs.price, epochs.multiplier)
    counts = cb.LCLUCB(
        cb.Star([0.0], [[1.0]]), reward=cb.Linear(0.1, length=1.0),
        costs=cb.Linear(0.1, length=1.0), thresholds=0.5,
        safe=cb.Safe(x=[0.0], reward=0.0, cost=0.0),
    )  # fmt: skip
    assert torch.equal(counts.price, counts.multiplier)


def test_a_run_keeps_prices():
    world = cb.problems.Table([1.0, 2.0, 3.0], [[-1.0, 0.2, 1.0]], noise=0.1)
    belief = cb.GP.default(world.actions)
    policy = cb.RPOL(world.actions, reward=belief, costs=belief, explore=cb.UCB(1.0))
    run = cb.simulate(policy, world, 12)
    assert run.prices.shape == run.multipliers.shape
    assert run.prices[:2].isnan().all() and run.prices[4:].isfinite().all()
    assert not torch.equal(run.prices[4:], run.multipliers[4:])
    plain = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.05)
    policy = cb.RPOL(world.actions, reward=plain, costs=plain, explore=cb.UCB(1.0))
    run = cb.simulate(policy, world, 12)
    assert torch.equal(run.prices, run.multipliers)


@pytest.mark.parametrize("kind", ["SafeOpt", "StageOpt", "SGP-UCB"])
def test_nothing_is_certified_by_a_few_outcomes(kind):
    belief = cb.GP.default(LINE)
    policy = KINDS[kind](LINE, reward=belief, costs=belief, thresholds=10.0)
    played = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for t in range(8):
            choice = policy.ask()
            played.append(int(choice.index))
            policy.tell(choice, reward=float(t), cost=1.0 + 0.1 * t)
    (one,) = said
    assert "before it has seen 5" in str(one.message)
    assert set(played[:5]) <= {0, 2} and not set(played[5:]) <= {0, 2}


def test_opb_says_when_outcomes_do_not_differ():
    belief = cb.GP.default(LINE)
    safe = cb.Safe(index=3, reward=0.0, cost=1.0)
    policy = cb.OPB(LINE, reward=belief, costs=belief, safe=safe, thresholds=2.0)
    for _ in range(5):
        policy.tell(policy.ask(), reward=0.0, cost=1.0)
    with pytest.warns(UserWarning, match="has seen 5 outcomes; before"):
        assert int(policy.ask().index) == 3


@pytest.mark.parametrize(("trials", "apart"), [(1, False), (3, False), (3, True)])
def test_all_outcomes_at_once_count_as_one_by_one(trials, apart):
    """To the bit, and as numpy's averages and spreads."""
    draws = np.random.default_rng(0)
    y = draws.normal(size=(60, trials, 1)) * 10.0 ** draws.integers(0, 7, (60, 1, 1))
    came = draws.random((60, trials)) < 0.7
    rows = [
        Observation(
            [0],
            [t] * trials,
            torch.zeros(trials, 1),
            torch.from_numpy(value),
            flags.tolist() if not apart else [True] * trials,
            arrived=torch.from_numpy(flags[:, None]) if apart and t % 2 else None,
        )
        for t, (value, flags) in enumerate(zip(y, came, strict=True))
    ]
    if apart:
        came[::2] = True
    like = torch.zeros(trials, 1)
    single = plain = no_outcomes(like)
    for row in rows:
        told = row.values, row.outcome_flags(like.device)
        single, plain = count_outcomes(single, *told), count_outcomes_ref(plain, *told)
    together = all_outcomes(rows, like)
    for one, *others in zip(single, together, plain, strict=True):
        for other in others:
            assert one.dtype == other.dtype and torch.equal(one, other)
    less, plainly = single, plain
    for row in rows:  # to the last bit without compiled loops
        told = row.values, row.outcome_flags(like.device), -1
        less, plainly = count_outcomes(less, *told), count_outcomes_ref(plainly, *told)
        for one, other in zip(less, plainly, strict=True):
            assert torch.equal(one, other)
    units = spreads_of(together)
    for i in range(trials):
        told = y[came[:, i], i, 0]
        assert units.seen[i].item() == len(told)
        assert units.center[i].item() == pytest.approx(told.mean(), rel=1e-9)
        assert units.size[i].item() == pytest.approx(told.std(ddof=1), rel=1e-9)
