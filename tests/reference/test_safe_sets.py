"""Policies within safe sets, and CONFIG, against dense forms of their pseudo-code."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from dense import BETA, GP, LAM, D, Dense, N, X, drive, follow, functions, noise, rbf
from inside import chunk_distances, furthest, settled

import cbandit as cb


def only(allowed, values):
    out = np.full(len(values), -np.inf)
    out[allowed] = values[allowed]
    return out


class Config(Dense):
    def ask(self):
        mean, w, _ = self.bounds()
        mean = np.broadcast_to(mean, (self.m + 1, N))
        f, g = mean[0] + w, (mean[1:] - w)
        feasible = (g <= 0).all(0)
        if not feasible.any():
            return -g.max(0)
        return np.where(feasible, f, -np.inf)


class Sgp(Dense):
    first = 0

    def ask(self):
        mean, w, _ = self.bounds()
        mean = np.broadcast_to(mean, (self.m + 1, N))
        safe = (mean[1:] + w <= 0).all(0)
        safe[self.seed] = True
        return np.where(safe, mean[0] + w, -np.inf)


class Growing(Dense):
    """Safety values ``q = -g``; sets exactly as the papers write them."""

    def start(self, seed, lipschitz, m, distance=D):
        self.m, self.seed, self.lip, self.d = m, list(seed), lipschitz, distance
        n = len(self.k)
        self.low = np.full((m + 1, n), -np.inf)
        self.high = np.full((m + 1, n), np.inf)
        self.low[1:, self.seed] = 0
        self.safe = set(self.seed)
        self.t, self.going = 0, True

    def look_around(self):
        n = len(self.k)
        mean, w, cov = self.bounds()
        mean = np.broadcast_to(mean, (self.m + 1, n)).copy()
        mean[1:] *= -1  # of q
        self.low = np.maximum(self.low, mean - w)
        self.high = np.minimum(self.high, mean + w)
        grown = []
        for j in range(1, self.m + 1):
            if self.lip is None:
                grown.append({x for x in range(n) if self.low[j, x] >= 0})
            else:
                grown.append(
                    {
                        x
                        for x in range(n)
                        if any(
                            self.low[j, s] - self.lip[j - 1] * self.d[s, x] >= 0
                            for s in self.safe
                        )
                    }
                )
        self.safe = set.intersection(*grown) | set(self.seed)
        unsafe = [x for x in range(n) if x not in self.safe]
        expanders = []
        for x in sorted(self.safe):
            every = True
            for j in range(1, self.m + 1):
                if self.lip is None:
                    s = cov[x, x] + LAM
                    after = mean[j] + cov[x] * (self.high[j, x] - mean[j, x]) / s
                    var = (np.diag(cov) - cov[x] ** 2 / s).clip(0)
                    after = np.maximum(self.low[j], after - BETA * np.sqrt(var))
                    every &= any(after[z] >= 0 for z in unsafe)
                else:
                    every &= any(
                        self.high[j, x] - self.lip[j - 1] * self.d[x, z] >= 0
                        for z in unsafe
                    )
            if every:
                expanders.append(x)
        return mean[0] + w, expanders


class Safe(Growing):
    def ask(self):
        _, expanders = self.look_around()
        safe = sorted(self.safe)
        best = max(self.low[0, x] for x in safe)
        both = [x for x in safe if x in expanders or self.high[0, x] >= best]
        return only(both or safe, (self.high - self.low).max(0))


class Stage(Growing):
    rounds, eps = 40, 0.3

    def ask(self):
        self.t += 1
        ucb, expanders = self.look_around()
        if self.t <= self.rounds and self.going:
            width = (self.high - self.low)[1:].max(0)
            if max([width[x] for x in expanders], default=0) < self.eps:
                self.going = False
            elif expanders:
                return only(expanders, width)
        return only(sorted(self.safe), ucb)


class Los(Growing):
    """Safe by readings of costs, ``y + E + Lip d <= 0``; bands only guide."""

    noise_bound = 0.3

    def ask(self):
        mean, w, _ = self.bounds()
        mean = np.broadcast_to(mean, (self.m + 1, N))
        low, high, y = mean - w, mean + w, np.array(self.y)
        grown, costs = [], range(1, self.m + 1)
        for j in costs:
            reach = [
                y[s, j] + self.noise_bound + self.lip[j - 1] * self.d[i]
                for s, i in enumerate(self.at)
            ]
            grown.append(np.min([np.full(N, np.inf), *reach], 0) <= 0)
        safe = sorted({*np.flatnonzero(np.all(grown, 0)), *self.seed})
        unsafe = [x for x in range(N) if x not in safe]
        expanders = [
            x
            for x in safe
            if all(
                any(low[j, x] + self.lip[j - 1] * self.d[x, z] <= 0 for z in unsafe)
                for j in costs
            )
        ]
        best = max(low[0, x] for x in safe)
        both = {*expanders, *(x for x in safe if high[0, x] >= best)}
        return only(sorted(both), (2 * w)[None].max(0))


LIP = {1: [3.0], 3: [3.0, 4.0, 5.0]}


def build(name, m, trials, lipschitz=None, **more):
    own = {
        "CONFIG": {},
        "SGPUCB": {"safe": 12, "rounds": 0},
        "SafeOpt": {"safe": 12, "lipschitz": lipschitz},
        "LoSBO": {
            "safe": 12,
            "lipschitz": lipschitz,
            "noise_bound": Los.noise_bound,
        },
        "StageOpt": {
            "safe": 12,
            "lipschitz": lipschitz,
            "rounds": Stage.rounds,
            "eps": Stage.eps,
        },
    }[name]
    return getattr(cb.baselines, name)(
        cb.Finite(X),
        reward=GP,
        costs=[GP] * m,
        explore=cb.UCB(BETA),
        trials=trials,
        **{**own, **more},
    )


def dense(name, m, lipschitz):
    model = {
        "CONFIG": Config,
        "SGPUCB": Sgp,
        "SafeOpt": Safe,
        "LoSBO": Los,
        "StageOpt": Stage,
    }[name]()
    if isinstance(model, Growing):
        model.start([12], lipschitz, m)
    else:
        model.m, model.seed = m, [12]
    return model


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(
    ("name", "with_lipschitz"),
    [
        ("CONFIG", False),
        ("SGPUCB", False),
        ("SafeOpt", True),
        ("SafeOpt", False),
        ("LoSBO", True),
        ("StageOpt", True),
        ("StageOpt", False),
    ],
)
def test_as_the_pseudo_code(name, with_lipschitz, m):
    trials, rounds = 2, 100
    lipschitz = LIP[m] if with_lipschitz else None
    truth, noises = functions(trials, m), noise(trials, m, rounds)
    given = None if lipschitz is None else torch.tensor(lipschitz)
    played, _ = drive(build(name, m, trials, given), truth, noises)
    for i in range(trials):
        follow(dense(name, m, lipschitz), played[:, i], truth[i], noises[:, i])
    assert len(np.unique(played)) > 3


@pytest.mark.parametrize("engine", ["factor", "stream"])
def test_made_up_observations_on_other_engines(engine):
    truth, noises = functions(1, 2), noise(1, 2, 40)
    played, _ = drive(build("SafeOpt", 2, 1, engine=engine), truth, noises)
    follow(dense("SafeOpt", 2, None), played[:, 0], truth[0], noises[:, 0])


@pytest.mark.parametrize("name", ["CONFIG", "SGPUCB", "SafeOpt", "LoSBO", "StageOpt"])
def test_a_batch_is_its_trials(name):
    truth, noises = functions(4, 2, seed=3), noise(4, 2, 60)
    more = {"rounds": 7} if name == "SGPUCB" else {}
    if name in ("SafeOpt", "LoSBO", "StageOpt"):
        more = {
            "lipschitz": torch.tensor([[2.0, 3.0]] * 4) * torch.arange(1, 5)[:, None]
        }
    batch, _ = drive(build(name, 2, 4, **more), truth, noises)
    for i in range(4):
        if "lipschitz" in more:
            part = {"lipschitz": more["lipschitz"][i : i + 1]}
        else:
            part = more
        one, _ = drive(
            build(name, 2, range(i, i + 1), **part),
            truth[i : i + 1],
            noises[:, i : i + 1],
        )
        np.testing.assert_array_equal(one[:, 0], batch[:, i])


# A cost of the prior leaves mean + beta std at one of N actions in one of T rounds
# with probability at most N T exp(-beta^2 / 2) / 2 (Srinivas et al. 2010): with N = 30,
# T = 60 and beta = 5.5 that is 2.5e-4 a trial, and 0.005 for the 20 of a case.
@pytest.mark.parametrize("name", ["SGPUCB", "SafeOpt", "StageOpt"])
def test_never_unsafe_with_the_theorys_width(name):
    trials, rounds = 20, 60
    truth, noises = functions(trials, 1, seed=11, shift=1.0), noise(trials, 1, rounds)
    more = {"explore": cb.UCB(5.5), "safe": 12}
    if name == "StageOpt":
        slope = np.abs(np.diff(truth[:, 1]) / np.diff(X[:, 0])).max(-1)
        more["lipschitz"] = torch.tensor(slope)
    own = dict(more)
    explore = own.pop("explore")
    rounds_of = {"SGPUCB": {"rounds": 5}, "StageOpt": {"rounds": 30}}.get(name, {})
    policy = getattr(cb.baselines, name)(
        cb.Finite(X),
        reward=GP,
        costs=GP,
        explore=explore,
        trials=trials,
        **own,
        **rounds_of,
    )
    played, _ = drive(policy, truth, noises)
    costs = np.take_along_axis(truth[:, 1], played.T, -1)
    assert (costs <= 0).all()
    assert len(np.unique(played)) > 5  # it did leave the seed


def test_seed_is_played_uniformly_first():
    mask = torch.zeros(3, N, dtype=torch.bool)
    mask[0, [1, 2]] = mask[1, [5]] = mask[2, [7, 8, 9]] = True
    policy = cb.baselines.SGPUCB(
        cb.Finite(X),
        reward=GP,
        costs=GP,
        explore=cb.UCB(2.0),
        safe=mask,
        rounds=torch.tensor([200, 200, 200]),
        trials=3,
    )
    played, _ = drive(policy, functions(3, 1), noise(3, 1, 200))
    for i in range(3):
        numbers, counts = np.unique(played[:, i], return_counts=True)
        assert numbers.tolist() == mask[i].nonzero().squeeze(-1).tolist()
        # each count is binomial; 5 standard deviations, an error rate below 1e-5
        share = 1 / len(numbers)
        assert (
            abs(counts - 200 * share) <= 5 * (200 * share * (1 - share)) ** 0.5
        ).all()


def test_rounds_may_differ_by_trial():
    policy = cb.baselines.SGPUCB(
        cb.Finite(X),
        reward=GP,
        costs=GP,
        explore=cb.UCB(0.5),
        safe=[12],
        rounds=torch.tensor([0, 6]),
        trials=2,
    )
    truth = functions(2, 1, shift=3.0)
    truth[:, 0] = np.linspace(0, 5, N)
    played, _ = drive(policy, truth, noise(2, 1, 6) * 0)
    assert (played[:, 1] == 12).all()
    assert (played[1:, 0] != 12).any()


def test_config_says_infeasible_where_it_is():
    truth = np.zeros((2, 2, N))
    truth[0, 1], truth[1, 1] = 2.0 + X[:, 0].numpy(), -1.0
    policy = build("CONFIG", 1, 2)
    played, choices = drive(policy, truth, noise(2, 1, 60) * 0)
    flags = torch.stack([c.infeasible for c in choices])
    assert bool(flags[-1, 0])
    assert not bool(flags[:, 1].any())
    # then the least lower bound of the cost is played: the left end
    assert played[-1, 0] <= 2


@pytest.mark.parametrize("name", ["SGPUCB", "SafeOpt", "LoSBO", "StageOpt"])
def test_among_without_a_safe_action_is_a_flag(name):
    policy = build(name, 1, 2, 1.0 if name == "LoSBO" else None)
    among = torch.zeros(2, N, dtype=torch.bool)
    among[0, 12:14] = among[1, :3] = True
    choice = policy.ask(among=among)
    assert choice.infeasible.tolist() == [False, True]
    assert bool(among.gather(-1, choice.index[:, None]).all())
    assert choice.index[0].item() == 12


def test_product_grids_and_chunks(monkeypatch):
    axis = torch.linspace(0, 1, 8, dtype=torch.float64)
    grid = cb.ProductGrid([axis, axis])
    gp = cb.GP(rbf(0.4), noise=LAM)
    truth = functions(2, 1)[..., :1] + np.zeros((2, 2, 64))
    runs = []
    for chunk, kept in ((1 << 22, 1 << 24), (640, 0)):
        chunk_distances(monkeypatch, chunk, kept)
        for actions in (grid, cb.Finite(grid.block(0, 64))):
            for lipschitz in (2.0, None):
                policy = cb.baselines.SafeOpt(
                    actions,
                    reward=gp,
                    costs=gp,
                    explore=cb.UCB(1.0),
                    safe=[20, 21],
                    lipschitz=lipschitz,
                    trials=2,
                    thresholds=1.5,
                )
                runs.append(drive(policy, truth, noise(2, 1, 30))[0])
    for run in runs[2:]:
        which = 0 if np.array_equal(run, runs[0]) else 1
        np.testing.assert_array_equal(run, runs[which])


def test_a_failed_ask_changes_nothing():
    policy = build("StageOpt", 1, None)
    policy.tell(policy.ask(), reward=0.1, cost=-0.4)
    t, state = policy.t, settled(policy)
    with pytest.raises(cb.CBanditError, match="among"):
        policy.ask(actions=X[:3])
    with pytest.raises(cb.CBanditError, match="among"):
        policy.ask(among=torch.zeros(N, dtype=torch.bool))
    assert settled(policy) is state
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match="reward"):
        policy.tell(choice, reward=float("nan"), cost=0.0)
    policy.cancel(choice)
    assert policy.t == t + 1
    now, before = settled(policy).own.sets, state.own.sets
    assert torch.equal(now.upper, now.upper.minimum(before.upper))
    policy.tell(policy.ask(), reward=0.1, cost=-0.4)


def test_goes_on_from_a_checkpoint(tmp_path):
    truth, noises = functions(2, 1), noise(2, 1, 40)
    policy = build("StageOpt", 1, 2, torch.tensor(3.0))
    drive(policy, truth, noises[:20])
    policy.save(tmp_path / "policy")
    later = cb.load(tmp_path / "policy")
    expected, _ = drive(policy, truth, noises[20:])
    played, _ = drive(later, truth, noises[20:])
    np.testing.assert_array_equal(played, expected)


@pytest.mark.parametrize("name", ["CONFIG", "SGPUCB", "SafeOpt", "LoSBO", "StageOpt"])
def test_learned_beliefs_feedback_apart_and_in_some_trials(name):
    actions = cb.Finite(X)
    gp = cb.GP.default(actions)
    own = {} if name == "CONFIG" else {"safe": torch.tensor([12, 13])}
    if name in ("SGPUCB", "StageOpt"):
        own["rounds"] = 4
    if name == "LoSBO":
        own |= {"lipschitz": 1.0, "noise_bound": 0.1}
    policy = getattr(cb.baselines, name)(
        actions,
        reward=gp,
        costs=[gp] * 2,
        explore=cb.UCB(1.0),
        trials=2,
        dtype=torch.float32,
        thresholds=0.5,
        **own,
    )
    rng = np.random.default_rng(0)
    for t in range(25):
        first = name not in ("CONFIG", "LoSBO") and t == (4 if name == "SGPUCB" else 0)
        with pytest.warns(UserWarning, match="seen 5") if first else nullcontext():
            choice = policy.ask()
        policy.tell(choice, reward=rng.standard_normal(2))
        where = torch.tensor([True, t % 3 > 0])
        policy.tell(choice, cost=rng.standard_normal((2, 2)) / 4, where=where)
        if not bool(where.all()):
            policy.cancel(choice)
    assert not policy.outstanding
    assert policy.multiplier.shape == (2, 0)
    assert policy.recommend(0.5).index.shape == (2,)


def test_kernel_distance_of_arms_without_coordinates():
    rng = np.random.default_rng(5)
    root = rng.standard_normal((12, 4)) / 2
    table = root @ root.T + 0.1 * np.eye(12)
    own = np.diag(table)
    distance = np.sqrt((own[:, None] + own - 2 * table).clip(0))
    truth = rng.standard_normal((1, 2, 12)) @ np.linalg.cholesky(table).T
    truth[:, 1] -= truth[:, 1, 3] + 0.7
    noises = noise(1, 1, 60)
    policy = cb.baselines.SafeOpt(
        cb.Finite(covariance=table),
        reward=cb.GP(noise=LAM),
        costs=cb.GP(noise=LAM),
        explore=cb.UCB(BETA),
        safe=3,
        lipschitz=0.6,
    )
    played, _ = drive(policy, truth, noises)
    model = Safe(table)
    model.start([3], [0.6], 1, distance)
    follow(model, played[:, 0], truth[0], noises[:, 0])
    assert len(set(played[:, 0])) > 1


def test_how_far_one_may_go_by_hand():
    """From costs 0.2 and -1 on: half a unit is left of the first, two of the second."""
    start = torch.tensor([[[0.2], [-1.0]]], dtype=torch.float64)
    end = [[1.0, 0.7, 0.5, 2.2], [0.0, 1.5, 0.5, 3.0]]
    limit = torch.tensor([[[0.7], [1.0]]], dtype=torch.float64)
    found = furthest(start, torch.tensor([end], dtype=torch.float64), limit)
    wanted = [0.5 / 0.8, 2 / 2.5, 1.0, 0.5 / 2.0]
    assert found[0].tolist() == pytest.approx(wanted, rel=1e-11)
    assert (found[0] <= torch.tensor(wanted, dtype=torch.float64)).all()
