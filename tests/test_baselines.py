"""Baselines against dense implementations of their pseudo-code, one trial at a time."""

from __future__ import annotations

import subprocess
import sys

import gpytorch
import numpy as np
import pytest
import torch

import cbandit as cb

N, BETA, LAM = 30, 2.0, 0.01
# uneven, for on an even grid mirror images tie and rounding decides
X = torch.tensor(np.sort(np.random.default_rng(7).uniform(size=N))).unsqueeze(-1)


def rbf(lengthscale=0.2):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


GP = cb.GP(rbf(), noise=LAM)
K = rbf()(X, X).to_dense().detach().numpy()
D = np.abs(X.numpy() - X.numpy().T)


def functions(trials, m, seed=0, shift=0.5):
    """Reward and costs ``(trials, 1 + m, N)`` from the prior, safe at action 12."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(K + 1e-9 * np.eye(N))
    out = rng.standard_normal((trials, 1 + m, N)) @ root.T
    out[:, 1:] -= out[:, 1:, 12:13] + shift
    return out


def noise(trials, m, rounds, seed=1):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rounds, trials, 1 + m)) * np.sqrt(LAM)


class Dense:
    """A posterior by dense solves: means ``(F, N)``, covariance ``(N, N)``."""

    def __init__(self, k=K):
        self.k, self.at, self.y = k, [], []

    def tell(self, i, y):
        self.at.append(i)
        self.y.append(y)

    def look(self):
        if not self.at:
            return np.zeros((1, len(self.k))), self.k
        cross = self.k[self.at]
        solved = np.linalg.solve(
            self.k[np.ix_(self.at, self.at)] + LAM * np.eye(len(self.at)), cross
        )
        return np.array(self.y).T @ solved, self.k - cross.T @ solved

    def bounds(self, beta=BETA):
        mean, cov = self.look()
        std = np.sqrt(np.diag(cov).clip(0))
        return mean, std * beta, cov


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


def drive(policy, truth, noises):
    """Play; ``(rounds, trials)`` actions, the choices."""
    f, out, choices = torch.tensor(truth), [], []
    m = truth.shape[1] - 1
    for eps in torch.tensor(noises):
        choice = policy.ask()
        at = choice.index.reshape(-1, 1, 1).expand(-1, 1 + m, 1)
        y = f.gather(-1, at)[..., 0] + eps
        if not policy.batch_shape:
            y = y[0]
        cost = None if policy.m == 0 else y[..., 1:]
        policy.tell(choice, reward=y[..., 0], cost=cost)
        out.append(choice.index.reshape(-1).tolist())
        choices.append(choice)
    return np.array(out), choices


def follow(model, played, truth, noises):
    """Each action played has the greatest score, to rounding; then the next round.

    Actions that mirror each other tie: which one it is, rounding decides.
    """
    for t, (i, eps) in enumerate(zip(played, noises, strict=True)):
        score = model.ask()
        assert score[i] >= score.max() - 1e-9, (t, i, int(score.argmax()))
        model.tell(i, truth[:, i] + eps)


LIP = {1: [3.0], 3: [3.0, 4.0, 5.0]}


def build(name, m, trials, lipschitz=None, **more):
    own = {
        "CONFIG": {},
        "SGPUCB": {"safe": 12, "rounds": 0},
        "SafeOpt": {"safe": 12, "lipschitz": lipschitz},
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
    model = {"CONFIG": Config, "SGPUCB": Sgp, "SafeOpt": Safe, "StageOpt": Stage}[
        name
    ]()
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


@pytest.mark.parametrize("name", ["CONFIG", "SGPUCB", "SafeOpt", "StageOpt"])
def test_a_batch_is_its_trials(name):
    truth, noises = functions(4, 2, seed=3), noise(4, 2, 60)
    more = {"rounds": 7} if name == "SGPUCB" else {}
    if name in ("SafeOpt", "StageOpt"):
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


# -- hand-made sets --------------------------------------------------------------------


def on_a_line(kind, m=1, **given):
    """``kind`` on arms 0 .. 4, a unit apart, that say nothing of each other."""
    x = torch.arange(5, dtype=torch.float64).unsqueeze(-1)
    gp = cb.GP(rbf(0.05), noise=1e-6)
    given = {"explore": cb.UCB(1.0), "safe": 0, **given}
    return kind(cb.Finite(x), reward=gp, costs=[gp] * m, **given)


def test_lipschitz_growth_and_expanders_by_hand():
    policy = on_a_line(cb.baselines.StageOpt, lipschitz=1.0, rounds=10, thresholds=2.5)
    # the prior: -1 <= cost <= 1, safety between 1.5 and 3.5: arms 0 and 1 are safe
    choice = policy.ask()
    assert policy.safe.tolist() == [True, True, False, False, False]
    # both could reach arm 2; equally wide, the first is played
    assert choice.index.item() == 0
    policy.tell(choice, reward=0.0, cost=0.0)
    # arm 0 is 2.5 safe: it vouches for arm 2; arm 1, in the safe set by now, too
    choice = policy.ask()
    assert policy.safe.tolist() == [True, True, True, False, False]
    # arm 0 cannot reach arm 3 any more: 2.5 < 3; arms 1 and 2 may
    assert choice.index.item() == 1
    policy.tell(choice, reward=0.0, cost=2.4)
    # arm 1 is 0.1 safe; of the rest arm 2 alone is an expander, and vouches for 3
    assert policy.ask().index.item() == 2
    assert policy.safe.tolist() == [True, True, True, True, False]


def test_costs_are_intersected():
    policy = on_a_line(
        cb.baselines.SafeOpt,
        2,
        lipschitz=torch.tensor([1.0, 2.0]),
        thresholds=torch.tensor([2.5, 2.5]),
    )
    policy.ask()
    # the first cost would let arm 1 in, 1.5 >= 1; the second does not, 1.5 < 2
    assert policy.safe.tolist() == [True, False, False, False, False]


def test_zero_lipschitz_makes_all_safe_at_once():
    policy = on_a_line(cb.baselines.StageOpt, lipschitz=0.0, rounds=9)
    choice = policy.ask()  # the seed is safe by 0, and costs are all alike
    assert bool(policy.safe.all())
    assert choice.index.item() == 0


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


def test_moving_thresholds_shrink_the_safe_set():
    policy = on_a_line(
        cb.baselines.StageOpt, lipschitz=1.0, rounds=0, thresholds=tighter
    )
    policy.ask()
    assert policy.safe.tolist() == [True, True, True, False, False]
    policy.ask()
    assert policy.safe.tolist() == [True, False, False, False, False]


def tighter(t):
    return 3.5 if t == 1 else 0.5


def test_eps_ends_expansion():
    policy = on_a_line(
        cb.baselines.StageOpt,
        safe=torch.tensor([0, 0]),
        lipschitz=1.0,
        rounds=100,
        eps=torch.tensor([3.0, 0.1]),
        thresholds=2.5,
        trials=2,
    )
    # widths are 2: trial 0 has nothing to expand, and both play arm 0 for it is first
    choice = policy.ask()
    policy.tell(choice, reward=[-5.0, -5.0], cost=[0.0, 0.0])
    assert policy.ask().index.tolist() == [1, 1]
    policy.tell(policy.outstanding[0], reward=[-5.0, -5.0], cost=[2.4, 2.4])
    assert policy.ask().index.tolist() == [2, 2]
    assert policy._expanding.tolist() == [False, True]


# -- infeasible trials, among, engines -------------------------------------------------


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


@pytest.mark.parametrize("name", ["SGPUCB", "SafeOpt", "StageOpt"])
def test_among_without_a_safe_action_is_a_flag(name):
    policy = build(name, 1, 2)
    among = torch.zeros(2, N, dtype=torch.bool)
    among[0, 12:14] = among[1, :3] = True
    choice = policy.ask(among=among)
    assert choice.infeasible.tolist() == [False, True]
    assert bool(among.gather(-1, choice.index[:, None]).all())
    assert choice.index[0].item() == 12


def test_product_grids_and_chunks(monkeypatch):
    from cbandit.baselines import safe_set

    axis = torch.linspace(0, 1, 8, dtype=torch.float64)
    grid = cb.ProductGrid([axis, axis])
    gp = cb.GP(rbf(0.4), noise=LAM)
    truth = functions(2, 1)[..., :1] + np.zeros((2, 2, 64))
    runs = []
    for chunk, kept in ((1 << 22, 1 << 24), (640, 0)):
        monkeypatch.setattr(safe_set, "CHUNK", chunk)
        monkeypatch.setattr(safe_set, "KEPT", kept)
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


# -- seeds as given, bad input ---------------------------------------------------------


@pytest.mark.parametrize(
    ("safe", "trials", "expected"),
    [
        (3, None, [[3]]),
        ([3, 4], None, [[3, 4]]),
        (torch.tensor([3, 4]), None, [[3, 4]]),
        ([3, 4], 2, [[3, 4], [3, 4]]),
        (torch.tensor([3, 4]), 2, [[3], [4]]),
        (np.array([[3, 4], [5, 5]]), 2, [[3, 4], [5]]),
        (torch.arange(N) < 2, 2, [[0, 1], [0, 1]]),
        (X[[3, 4]], 2, [[3, 4], [3, 4]]),
        (X[3], None, [[3]]),
        (X[torch.tensor([[3], [5]])], 2, [[3], [5]]),
    ],
)
def test_seed_sets(safe, trials, expected):
    policy = cb.baselines.SafeOpt(
        cb.Finite(X), reward=GP, costs=GP, explore=cb.UCB(1.0), safe=safe, trials=trials
    )
    mask = policy.safe.reshape(-1, N)
    assert [row.nonzero().squeeze(-1).tolist() for row in mask] == expected


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"safe": []}, "empty seed"),
        ({"safe": torch.zeros(N, dtype=torch.bool)}, "empty seed"),
        ({"safe": N}, "index"),
        ({"safe": -1}, "index"),
        ({"safe": torch.tensor([1, 2, 3])}, "safe"),
        ({"safe": torch.ones(4, dtype=torch.bool)}, "safe"),
        ({"safe": [[0.123]]}, "point of the set"),
        ({"safe": "left"}, "safe"),
        ({"lipschitz": -1.0}, "lipschitz"),
        ({"lipschitz": float("nan")}, "lipschitz"),
        ({"lipschitz": torch.ones(5)}, "lipschitz"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"eps": -0.1}, "eps"),
        ({"costs": None}, "costs"),
        ({"explore": cb.TS()}, "explore"),
        ({"pending": "hallucinate"}, "pending"),
        ({"feedback": cb.Sliding(10)}, "feedback"),
    ],
)
def test_bad_input_is_named(bad, word):
    given = {
        "reward": GP,
        "costs": GP,
        "explore": cb.UCB(1.0),
        "safe": 12,
        "rounds": 3,
        "trials": 2,
    }
    with pytest.raises(cb.CBanditError, match=word):
        cb.baselines.StageOpt(cb.Finite(X), **{**given, **bad})


def test_a_failed_ask_changes_nothing():
    policy = build("StageOpt", 1, None)
    policy.tell(policy.ask(), reward=0.1, cost=-0.4)
    before = [policy.t, policy._sets.upper.clone(), policy.safe.clone()]
    with pytest.raises(cb.CBanditError, match="among"):
        policy.ask(actions=X[:3])
    with pytest.raises(cb.CBanditError, match="among"):
        policy.ask(among=torch.zeros(N, dtype=torch.bool))
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match="reward"):
        policy.tell(choice, reward=float("nan"), cost=0.0)
    policy.cancel(choice)
    assert policy.t == before[0] + 1
    assert torch.equal(policy._sets.upper, policy._sets.upper.minimum(before[1]))
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


# -- BKB -------------------------------------------------------------------------------


def test_bkb_with_all_in_the_dictionary_is_gp_ucb():
    truth, noises = functions(3, 1)[:, :1], noise(3, 0, 120)
    explore = cb.UCB(cb.RKHS(norm=1.0, subgaussian=0.1))
    actions = cb.Finite(X)
    exact = cb.GPUCB(actions, reward=GP, explore=explore, trials=3)
    policy = cb.baselines.BKB(
        actions, reward=GP, explore=explore, trials=3, oversampling=1e9
    )
    expected, _ = drive(exact, truth, noises)
    played, _ = drive(policy, truth, noises)
    np.testing.assert_array_equal(played[:20], expected[:20])
    policy.ask()  # the last action enters the dictionary
    told = cb.GPUCB(actions, reward=GP, explore=explore, trials=3)
    seen = np.take_along_axis(truth[:, 0], played.T, -1) + noises[..., 0].T
    told.observe(index=played.T, reward=seen)
    found, wanted = policy.posterior().reward, told.posterior().reward
    torch.testing.assert_close(found.mean, wanted.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std**2, wanted.std**2, atol=1e-7, rtol=0)


def test_bkb_is_its_formula():
    truth, noises = functions(2, 0), noise(2, 0, 50)
    policy = cb.baselines.BKB(
        cb.Finite(X),
        reward=cb.GP(rbf(), noise=LAM, mean=0.3),
        explore=cb.UCB(2.0),
        trials=2,
        oversampling=0.2,
    )
    played, _ = drive(policy, truth, noises)
    policy.ask()
    found = policy.posterior().reward
    belief = policy._beliefs
    for i in range(2):
        keys = belief.history.keys()[i]
        chosen = [k for k, c in zip(keys, belief.chosen[i].tolist(), strict=False) if c]
        assert 0 < len(chosen) < len(set(played[:, i]))
        at = played[:, i]
        y = truth[i, 0, at] + noises[:, i, 0] - 0.3
        z = np.linalg.solve(
            np.linalg.cholesky(K[np.ix_(chosen, chosen)] + 1e-12 * np.eye(len(chosen))),
            K[chosen],
        )
        v = np.linalg.inv(z[:, at] @ z[:, at].T + LAM * np.eye(len(chosen)))
        mean = 0.3 + z.T @ v @ z[:, at] @ y
        gram = z[:, at] @ z[:, at].T @ v
        var = np.diag(K) - np.einsum("in,ij,jn->n", z, gram, z)
        np.testing.assert_allclose(found.mean[i], mean, atol=1e-5)
        np.testing.assert_allclose(found.std[i] ** 2, var, atol=1e-5)


def test_bkb_variances_are_right_up_to_a_factor():
    truth, noises = functions(2, 0), noise(2, 0, 60)
    policy = cb.baselines.BKB(
        cb.Finite(X), reward=GP, explore=cb.UCB(2.0), trials=2, oversampling=3.0
    )
    exact = cb.GPUCB(cb.Finite(X), reward=GP, explore=cb.UCB(2.0), trials=2)
    played, _ = drive(policy, truth, noises)
    exact.observe(index=played.T, reward=truth[:, 0][np.arange(2)[:, None], played.T])
    policy.ask()
    ratio = policy.posterior().reward.std / exact.posterior().reward.std
    # (1 - eps) / (1 + eps) on the variance, by the paper's Theorem 1, with eps = 1/2
    assert 1 / 3 < float(ratio.square().min()) <= float(ratio.square().max()) < 3
    one = cb.baselines.BKB(
        cb.Finite(X),
        reward=GP,
        explore=cb.UCB(2.0),
        trials=range(1, 2),
        oversampling=3.0,
    )
    alone, _ = drive(one, truth[1:], noises[:, 1:])
    np.testing.assert_array_equal(alone[:, 0], played[:, 1])


def test_bkb_on_a_set_of_the_round():
    policy = cb.baselines.BKB(
        cb.Finite(X), reward=GP, explore=cb.UCB(2.0), oversampling=1e9
    )
    exact = cb.GPUCB(cb.Finite(X), reward=GP, explore=cb.UCB(2.0))
    asked = np.linspace(0.03, 0.99, 7)[:, None]
    for t in range(6):
        ours, theirs = (p.ask(actions=asked[t % 2 :]) for p in (policy, exact))
        assert ours.index.item() == theirs.index.item()
        for p, choice in ((policy, ours), (exact, theirs)):
            p.tell(choice, reward=np.sin(5 * float(choice.x)))


def test_bkb_dictionary_stays_small():
    x = torch.linspace(0, 1, 2000, dtype=torch.float64).unsqueeze(-1)
    policy = cb.baselines.BKB(
        cb.Finite(x),
        reward=cb.GP(rbf(), noise=LAM),
        explore=cb.UCB(2.0),
        oversampling=2.0,
    )
    sizes, tried = [], set()
    for t in range(150):
        choice = policy.ask()
        place = float(choice.x)
        tried.add(place)
        # the argmax moves all the time, so that nearly each round tries a new action
        policy.tell(choice, reward=float(np.sin(7 * place + 0.05 * t)))
        sizes.append(int(policy._beliefs.chosen.sum()))
    assert len(tried) > 60
    # the effective dimension is 1/2 of ... at most a dozen for this kernel and noise
    assert max(sizes[20:]) < 60
    with pytest.raises(cb.CBanditError, match="sketch"):
        _ = policy.model
    assert "dictionary" in policy.engine


@pytest.mark.parametrize(
    "bad",
    [
        {"reward": cb.GP(rbf(), noise=None)},
        {"oversampling": 0.0},
        {"explore": cb.TS()},
        {"pending": "hallucinate"},
        {"feedback": cb.Delayed(5)},
    ],
)
def test_bkb_bad_input(bad):
    given = {"reward": GP, "explore": cb.UCB(1.0)}
    with pytest.raises(cb.CBanditError, match=next(iter(bad))):
        cb.baselines.BKB(cb.Finite(X), **{**given, **bad})


# -- any acquisition of BoTorch's ------------------------------------------------------


def constrained_ei(model, policy):
    from botorch.acquisition.analytic import LogConstrainedExpectedImprovement

    best = model.models[0].train_targets.max()
    return LogConstrainedExpectedImprovement(model, best, 0, {1: (None, 0.0)})


def log_ei(model, policy):
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.sampling import SobolQMCNormalSampler

    model = model.models[0]
    sampler = SobolQMCNormalSampler(torch.Size([32]))
    return qLogExpectedImprovement(model, model.train_targets.max(), sampler=sampler)


def test_botorch_acquisition_in_the_loop():
    truth, noises = functions(2, 1, seed=4), noise(2, 1, 12)
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(X),
        reward=GP,
        costs=GP,
        make_acquisition=constrained_ei,
        trials=2,
        chunk=7,
    )
    state = torch.get_rng_state()
    played, _ = drive(policy, truth, noises)
    assert torch.equal(state, torch.get_rng_state())
    # the next choice is the argmax of the acquisition over a model built by hand
    choice = policy.ask()
    from botorch.models import ModelListGP, SingleTaskGP

    for i in range(2):
        at, where = np.unique(played[:, i], return_inverse=True)
        models = []
        for j in range(2):
            y = truth[i, j, played[:, i]] + noises[:, i, j]
            count = np.bincount(where)
            mean = np.bincount(where, y) / count
            model = SingleTaskGP(
                X[at],
                torch.tensor(mean)[:, None],
                torch.tensor(LAM / count)[:, None],
                covar_module=rbf(),
                outcome_transform=None,
                mean_module=gpytorch.means.ZeroMean(),
            )
            models.append(model.eval())
        value = constrained_ei(ModelListGP(*models), None)(X.unsqueeze(1))
        assert int(value.argmax()) == int(choice.index[i])


def test_botorch_on_a_box_with_a_learned_belief():
    box = cb.Box([0.0, -1.0], [1.0, 1.0])
    policy = cb.baselines.BoTorchPolicy(
        box,
        reward=cb.GP.default(box),
        make_acquisition=log_ei,
        initial=4,
        num_restarts=2,
        raw_samples=16,
        seed=3,
    )
    values = []
    for _ in range(12):
        choice = policy.ask()
        box.inside(choice.x)
        assert choice.index is None
        values.append(-float((choice.x - torch.tensor([0.3, 0.2])).square().sum()))
        policy.tell(choice, reward=values[-1])
    assert max(values) > -0.05
    assert policy.model.models[0].train_targets.shape == (12,)
    again = cb.baselines.BoTorchPolicy(
        box,
        reward=cb.GP.default(box),
        make_acquisition=log_ei,
        initial=4,
        num_restarts=2,
        raw_samples=16,
        seed=3,
    )
    for value in values[:6]:
        choice = again.ask()
        assert -float((choice.x - torch.tensor([0.3, 0.2])).square().sum()) == value
        again.tell(choice, reward=value)
    with pytest.raises(cb.CBanditError, match="Box"):
        policy.posterior()
    found = policy.recommend()
    assert found.index is None
    assert float((found.x - torch.tensor([0.3, 0.2])).abs().max()) < 0.3


def test_botorch_arms_without_coordinates():
    table = np.stack([K[:9, :9], 2 * K[:9, :9]])
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(covariance=table),
        reward=cb.GP(noise=LAM),
        make_acquisition=log_ei,
        trials=2,
        name="qLogEI",
    )
    truth = functions(2, 0)[..., :9]
    played, _ = drive(policy, truth, noise(2, 0, 8))
    assert policy.name == "qLogEI"
    assert len(np.unique(played)) > 2


def broken(model, policy):
    return lambda x: torch.full(x.shape[:1], torch.nan)


def test_botorch_bad_input():
    with pytest.raises(cb.CBanditError, match="make_acquisition"):
        cb.baselines.BoTorchPolicy(cb.Finite(X), reward=GP, make_acquisition=None)
    with pytest.raises(cb.CBanditError, match="pending"):
        cb.baselines.BoTorchPolicy(
            cb.Finite(X), reward=GP, make_acquisition=log_ei, pending="hallucinate"
        )
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(X), reward=GP, make_acquisition=broken
    )
    policy.tell(policy.ask(), reward=0.0)
    with pytest.raises(cb.CBanditError, match="NaN"):
        policy.ask()
    assert policy.t == 1


@pytest.mark.parametrize("name", ["CONFIG", "SGPUCB", "SafeOpt", "StageOpt"])
def test_learned_beliefs_feedback_apart_and_in_some_trials(name):
    actions = cb.Finite(X)
    gp = cb.GP.default(actions)
    own = {} if name == "CONFIG" else {"safe": torch.tensor([12, 13])}
    if name in ("SGPUCB", "StageOpt"):
        own["rounds"] = 4
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
        choice = policy.ask()
        policy.tell(choice, reward=rng.standard_normal(2))
        where = torch.tensor([True, t % 3 > 0])
        policy.tell(choice, cost=rng.standard_normal((2, 2)) / 4, where=where)
        if not bool(where.all()):
            policy.cancel(choice)
    assert not policy.outstanding
    assert policy.multiplier.shape == (2, 0)
    assert policy.recommend(0.5).index.shape == (2,)


def test_import_leaves_botorch_alone():
    code = "import cbandit, sys; cbandit.baselines.BoTorchPolicy; "
    code += "sys.exit('botorch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names():
    from cbandit import baselines

    names = [baselines.CONFIG.name, baselines.StageOpt.name, baselines.SafeOpt.name]
    names += [baselines.SGPUCB.name, baselines.BKB.name]
    assert names == ["CONFIG", "StageOpt", "SafeOpt", "SGP-UCB", "BKB"]


def test_botorch_on_a_box_with_choices():
    box = cb.Box([0.0], [1.0], choices=[[0.0], [1.0], [2.0]])
    policy = cb.baselines.BoTorchPolicy(
        box,
        reward=cb.GP.default(box),
        make_acquisition=log_ei,
        initial=4,
        num_restarts=2,
        raw_samples=16,
    )
    for _ in range(10):
        choice = policy.ask()
        assert torch.equal(box.inside(choice.x), choice.x)
        gap = (choice.x - torch.tensor([0.3, 1.0])).abs()
        policy.tell(choice, reward=float(-(gap[0] ** 2) - gap[1]))
    assert policy.recommend().x[1].item() == 1.0
    with pytest.raises(cb.CBanditError, match="whose last ones are chosen from rows"):
        cb.baselines.BanditOCO(box, costs=1, radius=0.1, step=0.1, dual_step=0.1)


@pytest.mark.parametrize("noise", [1e-16, 1e-310])
def test_a_dictionary_of_outcomes_without_noise(noise):
    kernel = gpytorch.kernels.MaternKernel(nu=1.5).double()
    x = torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)
    policy = cb.baselines.BKB(
        cb.Finite(x), reward=cb.GP(kernel, noise=noise), explore=cb.UCB(1.0)
    )
    for place in [*range(12), *range(12)]:
        choice = policy.ask(among=[place])
        policy.tell(choice, reward=float(torch.sin(3 * choice.x)))
    policy.ask()
    found = policy.posterior().reward
    assert bool(found.std.isfinite().all())
    assert float((found.mean - torch.sin(3 * x[:, 0])).abs().max()) < 0.05
