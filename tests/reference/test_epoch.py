"""Epoch penalties against Algorithms 2 and 3, done densely, one trial at a time."""

from __future__ import annotations

import math
import warnings

import numpy as np
import penalties as ref
import pytest
import torch
from inside import rounds_told

import cbandit as cb

BETA, N = ref.BETA, ref.N

TRIALS, EPOCH = 3, 13
SCALE = 0.3


def cosh(z):
    """A user's: 1 up to 0, convex, ``psi(x) psi(y) >= psi(x + y)``."""
    return torch.exp(torch.clamp(torch.as_tensor(z), min=0) * 1.3)


PSI = {
    "exp": lambda z: np.exp(np.maximum(z, 0)),
    ("exp", 0.4): lambda z: np.exp(0.4 * np.maximum(z, 0)),
    ("polynomial", 2): lambda z: (np.maximum(z, 0) + 1) ** 2,
    ("polynomial", 3, 0.2): lambda z: (0.2 * np.maximum(z, 0) + 1) ** 3,
    cosh: lambda z: np.exp(1.3 * np.maximum(z, 0)),
}


def epochs(m=1, trials=TRIALS, **given):
    given = {"explore": cb.UCB(BETA), "reward": ref.belief(), "epoch": EPOCH, **given}
    return cb.EpochPenalty(ref.actions(), costs=m, trials=trials, **given)


def at(tensor):
    return tensor.reshape(-1).tolist()


class Reference:
    """One trial: what the next score is, from all rounds told so far."""

    def __init__(self, m, psi, reuse, rate=0.5, width=None):
        self.psi, self.reuse, self.rate = psi, reuse, rate
        self.width = width or (lambda gain, kappa: BETA)
        self.kappa = np.zeros(m) if psi == "linear" else np.ones(m)
        self.rounds, self.epoch_costs = [], []

    def target(self, r, c):
        if self.psi == "linear":
            return r - self.kappa @ c
        return r - self.kappa @ (PSI[self.psi](c) - 1)

    def turn(self, t):
        if t == 1 or (t - 1) % EPOCH:
            return
        mean = np.mean(self.epoch_costs, 0)
        if self.psi == "linear":
            self.kappa = np.maximum(self.kappa + self.rate * mean, 0)
        else:
            self.kappa = self.kappa * PSI[self.psi](mean)
        self.epoch_costs = []
        if not self.reuse:
            self.rounds = []

    def parts(self):
        """Mean and deviation in the user's units, gain, spread."""
        index = [k for k, _, _ in self.rounds]
        y = np.array([self.target(r, c) for _, r, c in self.rounds])
        shift, scale = 0.0, 1.0
        if self.reuse and len(y):
            shift = y.mean()
            if len(y) > 1 and y.std(ddof=1) > 0:
                scale = y.std(ddof=1)
        mean, std, gain = ref.posterior(index, (y - shift) / scale)
        return shift + scale * mean, scale * std, gain, scale

    def score(self):
        mean, std, gain, _ = self.parts()
        return mean + self.width(gain, self.kappa) * std

    def learn(self, k, r, c):
        self.rounds.append((k, r, c))
        self.epoch_costs.append(c)


CASES = [
    ("exp", True, 3),
    ("exp", False, 1),
    (("polynomial", 2), True, 1),
    (("polynomial", 2), False, 3),
    (cosh, True, 3),
    ("linear", True, 1),
    ("linear", False, 3),
    (("exp", 0.4), True, 1),
    (("polynomial", 3, 0.2), True, 3),
]


@pytest.mark.parametrize(("psi", "reuse", "m"), CASES)
def test_epochs_against_the_algorithms(psi, reuse, m):
    rounds = 200 if psi == "exp" else 110
    world, scores = ref.World(TRIALS, m, rounds, 9), ref.Scores()
    linear = psi == "linear"
    given = {"psi": psi, "reuse": reuse, "thresholds": 0.1}
    if linear:
        given["rate"] = 0.5
    policy, single = epochs(m, **given), epochs(m, None, **given)
    trials = [Reference(m, psi, reuse) for _ in range(TRIALS)]
    rng = np.random.default_rng(1)
    scores.watch(policy)
    for t in range(1, rounds + 1):
        for i in range(TRIALS):
            trials[i].turn(t)
        kappa = np.stack([one.kappa for one in trials])
        ref.close(policy.multiplier, kappa, t)
        ref.close(single.multiplier, kappa[0], t)
        choice, alone = policy.ask(), single.ask()
        best = scores.values[-1]
        index = at(choice.index)
        assert alone.index.item() == index[0]
        reward = world.reward(t, index)
        cost = world.cost(t, index) if linear else world.true_cost(index)
        cost = SCALE * cost
        for i in range(TRIALS):
            ref.check_choice(trials[i].score(), best[i], index[i], (t, i))
            trials[i].learn(index[i], float(reward[i]), cost[i].numpy() - 0.1)
        # apart, in any order, trial by trial
        for n in rng.permutation(2 * TRIALS):
            where = torch.arange(TRIALS) == n // 2
            told = {"reward": reward} if n % 2 else {"cost": cost}
            policy.tell(choice, **told, where=where)
        single.tell(alone, reward=reward[0], cost=cost[0])
    ref.close(
        policy.posterior().reward.mean, np.stack([one.parts()[0] for one in trials])
    )
    ref.close(
        policy.posterior().reward.std, np.stack([one.parts()[1] for one in trials])
    )
    assert policy.posterior().costs is None


@pytest.mark.filterwarnings("ignore:RKHS.form='small-lam':UserWarning")
@pytest.mark.parametrize("form", ["small-lam", "any-lam", "tight"])
@pytest.mark.parametrize("psi", ["exp", "linear"])
@pytest.mark.parametrize(
    ("m", "own", "known"), [(1, False, True), (1, True, False), (3, True, True)]
)
def test_widths_share_delta_and_grow_with_kappa(m, own, known, psi, form):
    """``delta / L`` an epoch, ``delta / (2 L)`` and more noise with noisy costs.

    Without a horizon epoch ``l`` has ``delta / (l (l + 1))``.
    """
    rounds, norm, r, r_g, delta = 90, 0.8, 0.2, 0.35, 0.1
    linear, whole = psi == "linear", rounds // EPOCH
    assert rounds % EPOCH  # the last epoch is cut short, and counts
    world, scores = ref.World(1, m, rounds, 3), ref.Scores()
    beta = cb.RKHS(norm, r, delta, form)
    cost_beta = cb.RKHS(norm, r_g, delta, form) if own else None
    given = {"explore": cb.UCB(beta, cost_beta=cost_beta)}
    if known:
        given["horizon"] = rounds
    t = 1
    policy = epochs(m, None, psi=psi, rate=0.8 if linear else None, **given)

    def width(gain, kappa):
        number = (t - 1) // EPOCH + 1
        epochs = whole + 1 if known else number * (number + 1)
        chances = (2 if linear else 1) * epochs
        noise = r
        if linear:
            noise = math.sqrt(r**2 + ((kappa * (r_g if own else r)) ** 2).sum())
        return ref.theory(norm, noise, gain, delta, chances, form)

    one = Reference(m, psi, True, 0.8, width)
    scores.watch(policy)
    for t in range(1, rounds + 1):
        one.turn(t)
        choice = policy.ask()
        index = at(choice.index)
        ref.check_choice(one.score(), scores.values[-1][0], index[0], t)
        reward, cost = world.reward(t, index)[0], world.cost(t, index)[0]
        if not linear:
            cost = SCALE * world.true_cost(index)[0]
        policy.tell(choice, reward=reward, cost=cost)
        one.learn(index[0], float(reward), cost.numpy())


def test_thompson_sampling_inside(monkeypatch):
    """With the draw held fixed: mean plus beta times the draw, in the user's units."""
    rounds = 60
    world, scores = ref.World(TRIALS, 1, rounds, 5), ref.Scores()
    policy = epochs(explore=cb.TS(0.7), inner="ts")
    engine = type(policy._beliefs.groups[0].engine)
    rng = np.random.default_rng(2)
    trials = [Reference(1, "exp", True) for _ in range(TRIALS)]
    scores.watch(policy)
    for t in range(1, rounds + 1):
        draw = rng.standard_normal((TRIALS, 2, N))
        monkeypatch.setattr(
            engine, "_draw", lambda self, streams, draw=draw: torch.tensor(draw)
        )
        for one in trials:
            one.turn(t)
        choice = policy.ask()
        index = at(choice.index)
        reward, cost = world.reward(t, index), SCALE * world.true_cost(index)
        for i, one in enumerate(trials):
            mean, _, _, scale = one.parts()
            score = mean + 0.7 * scale * draw[i, 0]
            ref.check_choice(score, scores.values[-1][i], index[i], (t, i))
            one.learn(index[i], float(reward[i]), cost[i].numpy())
        policy.tell(choice, reward=reward, cost=cost)


def test_rates_by_trial_and_cost():
    """The step may be a number for each trial, and one for each cost of each."""
    cost = torch.tensor([[0.3, 0.5], [1.0, -0.2], [0.4, 2.0]], dtype=torch.float64)
    rate = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.0, 0.6]], dtype=torch.float64)
    for given, each in ((rate, rate), (rate[:, 0], rate[:, :1])):
        policy = epochs(2, TRIALS, epoch=2, psi="linear", rate=given)
        for _ in range(2):
            policy.tell(policy.ask(), reward=torch.zeros(TRIALS), cost=cost)
        ref.close(policy.multiplier, (each * cost).clamp_min(0))


def improvement(e):
    """A rule of a user's own: expected improvement on the best mean so far."""
    normal = torch.distributions.Normal(0.0, 1.0)
    best = e.incumbent.unsqueeze(-1)
    gap = torch.where(best.isinf(), 0.0, (e.mean[:, 0] - best) / e.std[:, 0])
    return e.std[:, 0] * (gap * normal.cdf(gap) + normal.log_prob(gap).exp())


class Improving(cb.EpochPenalty):
    """The same rule as a method."""

    def acquire(self, t, multiplier, estimates):
        return improvement(estimates)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_an_inner_rule_of_ones_own(own, reuse):
    """It sees the penalised function, in the user's units, and its best mean so far."""
    rounds = 60
    world = ref.World(TRIALS, 1, rounds, 6)
    given = {"explore": cb.UCB(BETA), "reward": ref.belief(), "epoch": EPOCH}
    given |= {"reuse": reuse, "costs": 1, "trials": TRIALS}
    kind, rule = (Improving, {}) if own else (cb.EpochPenalty, {"inner": improvement})
    policy = kind(ref.actions(), **given, **rule)
    trials = [Reference(1, "exp", reuse) for _ in range(TRIALS)]
    for t in range(1, rounds + 1):
        for one in trials:
            one.turn(t)
        choice = policy.ask()
        index = at(choice.index)
        reward, cost = world.reward(t, index), SCALE * world.true_cost(index)
        for i, one in enumerate(trials):
            mean, std, _, _ = one.parts()
            tried = [k for k, _, _ in one.rounds]
            gap = (mean - mean[tried].max()) / std if tried else 0 * mean
            tail = np.array([math.erf(v / math.sqrt(2)) for v in gap])
            density = np.exp(-gap * gap / 2) / math.sqrt(2 * math.pi)
            score = std * (gap * (1 + tail) / 2 + density)
            ref.close(score[index[i]], score.max(), (t, i))
            one.learn(index[i], float(reward[i]), cost[i].numpy())
        policy.tell(choice, reward=reward, cost=cost)


def test_late_tells_across_an_epochs_end():
    """Told after the next epoch has begun: data, but no part in its multiplier."""
    world = ref.World(1, 1, 40, 6)

    def play(order):
        policy = epochs(1, None, epoch=4)
        open_ = {}
        for t in range(1, 7):
            open_[t] = policy.ask()
            if t not in (3, 4):
                k = at(open_[t].index)
                policy.tell(
                    open_[t], reward=world.reward(t, k)[0], cost=world.true_cost(k)[0]
                )
        for t in order:
            k = at(open_[t].index)
            reward, cost = world.reward(t, k)[0], world.true_cost(k)[0]
            policy.tell(open_[t], cost=cost)
            policy.tell(open_[t], reward=reward)
        return policy, [at(open_[t].index)[0] for t in range(1, 7)]

    (a, index), (b, _) = play([3, 4]), play([4, 3])
    first = np.mean([world.g[0, 0, k] for k in index[:2]])
    ref.close(a.multiplier, math.exp(max(first, 0)))
    ref.close(a.posterior().reward.mean, b.posterior().reward.mean)
    assert rounds_told(a) == [1, 2, 3, 4, 5, 6]
    second = epochs(1, None, epoch=4, reuse=False)
    late = [second.ask() for _ in range(5)]
    second.tell(late[0], reward=1.0, cost=1.0)
    ref.close(second.posterior().reward.mean, 0.0)


def test_an_epoch_of_which_nothing_came_moves_nothing():
    policy = epochs(2, None, epoch=2)
    for _ in range(4):
        policy.cancel(policy.ask())
    assert policy.multiplier.tolist() == [1.0, 1.0]


def test_one_belief_an_epoch():
    beliefs = [ref.belief(), ref.belief()]
    beliefs[1].noise = beliefs[1].noise * 3
    for reuse in (True, False):
        policy = epochs(1, None, reward=beliefs, epoch=2, reuse=reuse)
        index = []
        for _ in range(2):
            choice = policy.ask()
            index.append(int(choice.index))
            policy.tell(choice, reward=0.3 + 0.2 * len(index), cost=-1.0)
        policy.ask()
        assert float(policy._beliefs.groups[0].noise) == pytest.approx(3 * ref.LAM)
        mean = policy.posterior().reward.mean
        if not reuse:
            ref.close(mean, 0.0)
            continue
        y = np.array([0.5, 0.7])
        scaled = (y - y.mean()) / y.std(ddof=1)
        expected = ref.posterior(index, scaled, 3 * ref.LAM)[0]
        ref.close(mean, y.mean() + y.std(ddof=1) * expected)


def test_data_from_before():
    for reuse in (True, False):
        policy = epochs(2, TRIALS, reuse=reuse, thresholds=0.2)
        rng = np.random.default_rng(0)
        numbers = rng.integers(0, N, (TRIALS, 12))
        rewards, costs = rng.normal(size=(TRIALS, 12)), rng.normal(size=(TRIALS, 12, 2))
        policy.observe(index=numbers, reward=rewards, cost=costs)
        expected = []
        for i in range(TRIALS):
            one = Reference(2, "exp", reuse)
            one.rounds = [
                (numbers[i, n], rewards[i, n], costs[i, n] - 0.2) for n in range(12)
            ]
            expected.append(one.parts()[0])
        ref.close(policy.posterior().reward.mean, np.stack(expected))
        assert policy.multiplier.tolist() == [[1.0, 1.0]] * TRIALS
        for _ in range(EPOCH + 1):
            policy.tell(policy.ask(), reward=[0.1] * TRIALS, cost=[[0.3, 0.0]] * TRIALS)
        policy.posterior()
        assert len(rounds_told(policy)) == (12 + EPOCH + 1 if reuse else 1)
    with pytest.raises(cb.CBanditError, match="reward= and cost= together"):
        policy.observe(index=[1], reward=[0.0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reuse", [True, False])
def test_kappa_at_the_dtypes_edge(reuse, dtype):
    policy = epochs(2, 2, epoch=3, reuse=reuse, dtype=dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(40):
            choice = policy.ask()
            bad = [100.0 + (t % 3), -1.0]
            policy.tell(choice, reward=[0.1, 0.2], cost=[bad, [-1.0, -1.0]])
            assert bool(policy.multiplier.isfinite().all())
    mine = [w for w in caught if "kappa" in str(w.message)]
    assert len(mine) == 1
    assert "polynomial" in str(mine[0].message)
    assert policy.multiplier[0, 0] == torch.finfo(torch.float64).max
    assert policy.multiplier[0, 1] == 1.0
    assert policy.multiplier[1].tolist() == [1.0, 1.0]
    assert bool(policy.posterior().reward.mean.isfinite().all())


@pytest.mark.parametrize(
    ("psi", "message"),
    [
        (lambda z: torch.exp(z), "be 1 for z <= 0"),
        (lambda z: 1 + 0 * z, "increase for z > 0"),
        (lambda z: 1 + z.clamp_min(0).log1p(), "be convex for z > 0"),
        (lambda z: torch.exp(z.clamp_min(0) ** 2), "psi\\(x\\) psi\\(y\\) >="),
        (lambda z: z.sum(), "of its shape"),
        (("polynomial", 0.5), "power n"),
        (("polynomial", 2, 0.0), "constant c must be above 0"),
        (("exp", -1), "constant c must be above 0"),
        (("exp", 1, 2), "psi must be 'exp'"),
        ("cubic", "psi must be 'exp'"),
        (lambda z: z * torch.nan, "psi must be finite"),
    ],
)
def test_a_psi_without_the_properties(psi, message):
    with pytest.raises(cb.CBanditError, match=message):
        epochs(psi=psi)


def test_bad_input():
    for given, message in (
        ({"psi": "linear"}, "rate is needed"),
        ({"rate": 0.5}, "rate goes with psi='linear'"),
        ({"psi": "linear", "rate": -0.5}, "rate must not be negative"),
        ({"psi": "linear", "rate": [0.1] * 5}, r"rate must .*\(5,\)"),
        ({"epoch": 0}, "epoch must be an int"),
        ({"inner": "rand"}, "inner must be"),
        ({"inner": "ts"}, "goes with explore=cb.TS"),
        ({"inner": improvement, "clip": (1.0, 1.0)}, "clip goes with inner="),
        ({"kappa": 0.0}, "kappa must be above 0"),
        ({"reward": []}, "reward must be a cb.GP"),
        ({"reward": ref.belief(mean=1.0)}, "reward must have mean 0"),
        ({"feedback": cb.Delayed(3)}, "takes no feedback="),
        ({"m": 0}, "costs must be the number of costs"),
    ):
        with pytest.raises(cb.CBanditError, match=message):
            epochs(**given)
    policy = epochs(1, None)
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match="takes no noise="):
        policy.tell(choice, reward=0.1, cost=0.1, noise=0.1)
    policy.tell(choice, reward=0.1, cost=0.1)


def test_a_fixed_kappa_stays():
    for psi in ("linear", "exp"):
        policy = epochs(1, None, epoch=2, psi=psi, rate=0.0, kappa=2.5)
        for _ in range(7):
            policy.tell(policy.ask(), reward=0.1, cost=1.0)
        assert float(policy.multiplier) == pytest.approx(2.5, rel=1e-12)


def test_history_and_explain_show_kappa():
    for reuse in (True, False):
        policy = epochs(2, None, epoch=2, psi="linear", rate=0.5, reuse=reuse)
        used = []
        for _ in range(5):
            used.append(policy.multiplier.tolist())
            choice = policy.ask()
            explained = policy.explain(choice)
            assert explained.multiplier.tolist() == used[-1]
            assert explained.price.tolist() == used[-1]
            assert "in spreads" not in str(explained)
            policy.tell(choice, reward=0.3, cost=[1.0, 0.2])
        assert used[-1] == [1.0, 0.2]
        table = policy.history()
        assert table[["multiplier1", "multiplier2"]].to_numpy().tolist() == used


def test_new_targets_go_to_their_own_rounds():
    """With a fixed kappa a new epoch changes no target, whatever was told when."""
    points = cb.Finite(np.random.default_rng(0).random((20, 3)))
    for fade in (None, 0.9):
        means = []
        for epoch in (4, 1000):
            common = {"costs": 1, "psi": "linear", "rate": 0.0, "design": 6}
            belief = cb.GP.linear(points, fade=fade)
            policy = cb.EpochPenalty(points, reward=belief, epoch=epoch, **common)
            choices, rng = [], np.random.default_rng(1)
            for t in range(15):
                choices.append(policy.ask(among=[t]))
                policy.tell(choices[-1], reward=rng.normal())
                if t > 1:
                    policy.tell(choices[t - 2], cost=rng.normal())
                if t in (0, 5):
                    policy.observe(index=[1, 2], reward=[0.1, 5.0], cost=[[0.1], [0.5]])
            means.append(policy.posterior().reward.mean)
        ref.close(*means)
