"""RPOL, SCGP-UCB and restarts against their pseudo-code, done densely."""

from __future__ import annotations

import math

import numpy as np
import penalties as ref
import pytest
import torch
from gpytorch import kernels as gpk
from inside import beliefs_of, counted_refits, epochs, split, take_for, torn

import cbandit as cb

LAM, BETA, N = ref.LAM, ref.BETA, ref.N

ROUNDS, TRIALS = 200, 3


def rpol(m=1, trials=TRIALS, explore=None, **given):
    return cb.RPOL(
        ref.actions(),
        reward=ref.belief(),
        costs=[ref.belief()] * m,
        explore=explore or cb.UCB(BETA),
        trials=trials,
        **given,
    )


def at(tensor):
    return tensor.reshape(-1).tolist()


class Bounds:
    """Estimates of one trial from lists of ``(index, reward, costs)``."""

    def __init__(self, m, width=None):
        self.m, self.width = m, width or (lambda t, gain: BETA)

    def __call__(self, t, index, rewards, costs):
        mean, std, gain = ref.posterior(index, rewards)
        beta = self.width(t, gain)
        f = mean + beta * std
        g = []
        for j in range(self.m):
            y = [c[j] for c in costs]
            mean = ref.posterior(index, y)[0]
            g.append(mean - beta * std)
        return f, np.array(g)


# ------------------------------------------------------------------------- RPOL-UCB


@pytest.mark.parametrize("penalty", ["observation", "estimate"])
@pytest.mark.parametrize(
    ("m", "width"), [(1, "constant"), (3, "constant"), (1, "rkhs")]
)
def test_rpol_ucb(m, width, penalty):
    world, scores = ref.World(TRIALS, m, ROUNDS), ref.Scores()
    tau = np.array([0.0, 0.2, -0.1][:m])
    explore, bounds = cb.UCB(BETA), Bounds(m)
    if width == "rkhs":
        explore = cb.UCB(cb.RKHS(norm=1.0, subgaussian=0.3, delta=0.1))
        bounds = Bounds(m, lambda t, gain: ref.theory(1.0, 0.3, gain, 0.1, m + 1))
    limits = np.tile(tau, (TRIALS, 1))
    policy = rpol(m, explore=explore, penalty=penalty, thresholds=limits)
    single = rpol(m, None, explore=explore, penalty=penalty, thresholds=tau)
    q = np.ones((TRIALS, m))
    data = [([], [], []) for _ in range(TRIALS)]
    scores.watch(policy)
    for t in range(1, ROUNDS + 1):
        ref.close(policy.multiplier, q, t)
        choice = policy.ask()
        best = scores.values[-1]
        index = at(choice.index)
        reward, cost = world.reward(t, index), world.cost(t, index)
        alone = single.ask()
        assert alone.index.item() == index[0]
        for i in range(TRIALS):
            f, g = bounds(t, *data[i])
            g = g - tau[:, None]
            ref.check_choice(f - q[i] @ np.maximum(g, 0), best[i], index[i], (t, i))
            gained = g[:, index[i]] if penalty == "estimate" else cost[i].numpy() - tau
            q[i] = np.maximum(q[i] + np.maximum(gained, 0), math.sqrt(t))
            data[i][0].append(index[i])
            data[i][1].append(float(reward[i]))
            data[i][2].append(cost[i].numpy())
        policy.tell(choice, reward=reward, cost=cost)
        single.tell(alone, reward=reward[0], cost=cost[0])
        ref.close(single.multiplier, q[0], t)


def test_rpol_takes_feedback_apart_and_in_any_order():
    """Told together, apart, per trial or late within a round: the same policy."""
    world = ref.World(TRIALS, 2, 40)
    whole, parts = rpol(2), rpol(2)
    rng = np.random.default_rng(3)
    for start in range(1, 40, 4):
        choices = [(whole.ask(), parts.ask()) for _ in range(4)]
        news = []
        for k, (a, b) in enumerate(choices):
            index = at(a.index)
            assert index == at(b.index)
            reward, cost = world.reward(start + k, index), world.cost(start + k, index)
            whole.tell(a, reward=reward, cost=cost)
            for i in range(TRIALS):
                where = torch.arange(TRIALS) == i
                nan = torch.full_like(reward, torch.nan)
                news.append((b, {"reward": torch.where(where, reward, nan)}, where))
                news.append((b, {"cost": cost}, where))
        for n in rng.permutation(len(news)):
            choice, told, where = news[n]
            parts.tell(choice, **told, where=where)
        ref.close(whole.multiplier, parts.multiplier, start)
    for a, b in (
        (whole.posterior().reward, parts.posterior().reward),
        (whole.posterior().costs, parts.posterior().costs),
    ):
        ref.close(a.mean, b.mean)
        ref.close(a.std, b.std)


# ------------------------------------------------------------------- delayed feedback


def deliver(policy, t, waiting, rng, where=True):
    """Tell what is due at the end of round ``t``, in a random order."""
    due = [entry for entry in waiting if entry[0] == t]
    for n in rng.permutation(len(due)):
        _, choice, kind, value, i = due[n]
        mask = torch.arange(len(value)) == i
        policy.tell(choice, **{kind: value}, where=mask)
    waiting[:] = [entry for entry in waiting if entry[0] != t]


@pytest.mark.parametrize("engine", ["joint", "factor"])
@pytest.mark.filterwarnings("ignore:RKHS.form='small-lam':UserWarning")
@pytest.mark.parametrize("width", ["constant", "any-lam", "small-lam"])
@pytest.mark.parametrize("m", [1, 3])
def test_rpol_censored(m, width, engine):
    if engine == "factor" and m == 1 and width != "any-lam":
        pytest.skip("the others cover it")
    window, weight, horizon = 6, 0.4, ROUNDS
    world, scores = ref.World(TRIALS, m, ROUNDS, 1), ref.Scores()
    norm, r, delta = 0.7, 0.2, 0.1
    form = "small-lam" if width == "small-lam" else "any-lam"
    tau = np.array([0.2, 0.0, -0.1][:m])
    explore, feedback = cb.UCB(BETA), cb.Delayed(window, weight)
    if width != "constant":
        explore = cb.UCB(cb.RKHS(norm=norm, subgaussian=r, delta=delta, form=form))
        feedback = cb.Delayed(window)
        # half of delta for all noises of T rounds and m + 1 functions, half for bands
        noises = 2 * math.log(2 * (m + 1) * horizon / (delta / 2))
        weight = norm + r * math.sqrt(noises)
    given = {"thresholds": np.tile(tau, (TRIALS, 1)), "engine": engine}
    policy = rpol(m, explore=explore, feedback=feedback, horizon=horizon, **given)
    rng = np.random.default_rng(5)
    delays = rng.poisson(3.5, (2, TRIALS, ROUNDS + 1))
    assert (delays > window).any()
    q = np.ones((TRIALS, m))
    tried = [[] for _ in range(TRIALS)]
    rewards, costs = [{} for _ in range(TRIALS)], [{} for _ in range(TRIALS)]
    waiting, late = [], np.zeros(TRIALS, dtype=int)
    scores.watch(policy)
    for t in range(1, ROUNDS + 1):
        ref.close(policy.multiplier, q, t)
        choice = policy.ask()
        index = at(choice.index)
        reward, cost = world.reward(t, index), world.cost(t, index)
        for i in range(TRIALS):

            def counts(kind, s, i=i, t=t):
                return delays[kind, i, s] <= min(window, t - 1 - s)

            y = [rewards[i][s] if counts(0, s) else 0.0 for s in range(1, t)]
            mean, std, gain = ref.posterior(tried[i], y)
            beta = BETA
            if width != "constant":
                both = r + weight
                beta = ref.theory(norm, both, gain, delta / 2, 2 * (m + 1), form)
            v = beta + weight * sum(std[k] for k in tried[i][-window:])
            score = mean + v * std
            for j in range(m):
                # in the paper's units, where the limit is 0
                y = [costs[i][s][j] if counts(1, s) else 0.0 for s in range(1, t)]
                h = ref.posterior(tried[i], np.full(t - 1, tau[j]))[0] - tau[j]
                g = ref.posterior(tried[i], y)[0] + h - v * std
                score = score - q[i, j] * np.maximum(g, 0)
            ref.check_choice(score, scores.values[-1][i], index[i], (t, i))
            tried[i].append(index[i])
            rewards[i][t], costs[i][t] = float(reward[i]), cost[i].numpy() - tau
            for kind, value in ((0, reward), (1, cost)):
                name = ("reward", "cost")[kind]
                due = t + delays[kind, i, t]
                waiting.append((due, choice, name, value, i))
                late[i] += due <= ROUNDS and delays[kind, i, t] > window
            came = [s for s in range(1, t + 1) if s + delays[1, i, s] == t]
            gained = sum((np.maximum(costs[i][s], 0) for s in came), np.zeros(m))
            q[i] = np.maximum(q[i] + gained, math.sqrt(t))
        deliver(policy, t, waiting, rng)
    ref.close(policy.multiplier, q)
    assert policy.late.tolist() == late.tolist()


def test_delays_of_a_batch_are_those_of_its_trials():
    rounds, window = 80, 5
    world = ref.World(TRIALS, 1, rounds, 2)
    delays = np.random.default_rng(1).poisson(3, (2, TRIALS, rounds + 1))

    def play(which):
        batch = None if len(which) == 1 else len(which)
        policy = rpol(1, batch, feedback=cb.Delayed(window, 0.3))
        waiting, played = [], []
        for t in range(1, rounds + 1):
            choice = policy.ask()
            index = at(choice.index)
            played.append(index)
            full = [0] * TRIALS
            for place, i in enumerate(which):
                full[i] = index[place]
            reward = world.reward(t, full)[which]
            cost = world.cost(t, full)[which]
            for place, i in enumerate(which):
                for kind, value in (("reward", reward), ("cost", cost)):
                    due = t + delays[int(kind == "cost"), i, t]
                    waiting.append((due, choice, kind, value, place))
            for _, told, kind, value, place in [w for w in waiting if w[0] == t]:
                if batch is None:
                    policy.tell(told, **{kind: value[0]})
                else:
                    where = torch.arange(batch) == place
                    policy.tell(told, **{kind: value}, where=where)
        return np.array(played), policy

    together, policy = play([0, 1, 2])
    for i in range(TRIALS):
        alone, one = play([i])
        assert alone[:, 0].tolist() == together[:, i].tolist()
        ref.close(one.multiplier, policy.multiplier[i])
        assert int(one.late) == int(policy.late[i])


def test_a_late_target_stays_at_the_prior_mean():
    gp = ref.belief(mean=0.8)
    policy = cb.RPOL(
        ref.actions(),
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        feedback=cb.Delayed(2, 0.0),
        thresholds=0.8,
    )
    first = policy.ask()
    for _ in range(3):
        policy.ask()
    policy.tell(first, reward=9.0, cost=1.3)
    assert float(policy.multiplier) == pytest.approx(math.sqrt(3) + 0.5)
    assert int(policy.late) == 2
    ref.close(policy.posterior().reward.mean, 0.8)
    after = policy.ask()
    policy.tell(after, reward=0.9, cost=1.0)
    assert float(policy.posterior().reward.mean[int(after.index)]) > 0.8
    assert int(policy.late) == 2


def test_what_is_awaited_stands_at_the_threshold_of_its_round():
    gp = ref.belief(mean=0.4)
    policy = cb.RPOL(
        ref.actions(),
        reward=gp,
        costs=[gp, gp],
        explore=cb.UCB(1.0),
        feedback=cb.Delayed(9, 0.0),
        thresholds=lambda t: [0.1 * t, -0.2],
    )
    choices = [policy.ask() for _ in range(4)]
    index = [int(each.index) for each in choices]

    def check(reward, *costs):
        believed = policy.posterior()
        found = [believed.reward.mean, *believed.costs.mean]
        for mean, y in zip(found, (reward, *costs), strict=True):
            ref.close(mean, 0.4 + ref.posterior(index, np.array(y) - 0.4)[0])

    check([0.4] * 4, [0.1, 0.2, 0.3, 0.4], [-0.2] * 4)
    policy.tell(choices[1], cost=[0.7, 0.9])
    policy.tell(choices[2], reward=-1.0)
    check([0.4, 0.4, -1.0, 0.4], [0.1, 0.7, 0.3, 0.4], [-0.2, 0.9, -0.2, -0.2])


def test_delayed_widths_are_in_standardised_units():
    """Rewards a thousand times larger, the same choices."""
    world = ref.World(1, 1, 60)
    played = []
    for scale in (1.0, 1000.0):
        gp = ref.belief(standardize=True)
        policy = cb.RPOL(
            ref.actions(),
            reward=gp,
            costs=ref.belief(),
            explore=cb.UCB(1.0),
            feedback=cb.Delayed(4, 0.5),
        )
        policy.observe(index=[3, 30], reward=[0.2 * scale, -0.5 * scale])
        # costs far below 0: the penalty has units of its own
        indices, queue = [], []
        for t in range(1, 61):
            choice = policy.ask()
            index = at(choice.index)
            indices.append(index[0])
            queue.append((choice, scale * world.reward(t, index)[0]))
            if len(queue) > 2:
                told, reward = queue.pop(0)
                policy.tell(told, reward=reward, cost=-5.0)
        played.append(indices)
    assert played[0] == played[1]


def test_a_refit_splits_what_is_awaited_too():
    policy = rpol(1, None, feedback=cb.Delayed(5, 0.2))
    choices = [policy.ask() for _ in range(3)]
    policy.tell(choices[0], reward=0.5, cost=0.1)
    policy.posterior()
    split(policy, [1])
    policy.tell(choices[1], reward=0.2, cost=-0.4)
    policy.tell(choices[2], cost=0.7)
    index = [int(c.index) for c in choices]
    ref.close(policy.posterior().reward.mean, ref.posterior(index, [0.5, 0.2, 0.0])[0])
    ref.close(
        policy.posterior().costs.mean[0], ref.posterior(index, [0.1, -0.4, 0.7])[0]
    )
    torn(policy)
    ref.close(policy.posterior().reward.mean, ref.posterior(index, [0.5, 0.2, 0.0])[0])


def test_data_dropped_while_awaited():
    policy = cb.baselines.CKBRestart(
        ref.actions(),
        reward=ref.belief(),
        costs=ref.belief(),
        explore=cb.UCB(1.0),
        restart=4,
        step=0.1,
        cap=5.0,
        feedback=cb.Delayed(10),
    )
    choices = [policy.ask() for _ in range(5)]
    policy.tell(choices[1], reward=3.0, cost=1.0)
    policy.tell(choices[4], reward=1.0, cost=0.5)
    index = int(choices[4].index)
    ref.close(policy.posterior().reward.mean, ref.posterior([index], [1.0])[0])


@pytest.mark.parametrize("trials", [None, 2])
def test_the_botorch_model_knows_what_is_waited_for(trials):
    gp = ref.belief(standardize=True)
    policy = cb.RPOL(
        ref.actions(),
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        trials=trials,
        feedback=cb.Delayed(3, 0.1),
    )
    lead = () if trials is None else (trials,)
    for t in range(8):
        choice = policy.ask()
        if t % 2:
            policy.tell(choice, reward=np.full(lead, 5.0 + t), cost=np.full(lead, -t))
    found, points = policy.posterior(), ref.actions().all
    posterior = policy.model.posterior(points)
    mean = torch.cat([found.reward.mean.unsqueeze(-2), found.costs.mean], -2)
    ref.close(posterior.mean.mT.detach(), mean.numpy())


# ------------------------------------------------------------------- sliding windows


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("feedback", [cb.Delayed(3), cb.Sliding(3)])
def test_the_last_round_that_counts(feedback, read):
    """``Delayed`` waits for round ``t - 3`` in round ``t``; ``Sliding`` left it."""
    policy = rpol(trials=None, feedback=feedback)
    choices = [policy.ask(among=[k]) for k in range(4)]
    if read:  # nobody who looks in between closes anything
        policy.posterior()
    policy.tell(choices[0], reward=2.0, cost=1.0)
    if isinstance(feedback, cb.Delayed):
        found = policy.posterior().reward.mean
        assert int(policy.late) == 0
        # beside three rounds that stand at the prior mean
        ref.close(found, ref.posterior([0, 1, 2, 3], [2.0, 0.0, 0.0, 0.0])[0])
        policy.ask()
        policy.tell(choices[1], reward=2.0)
        policy.ask()
        policy.tell(choices[1], cost=1.0)
        assert int(policy.late) == 1
        return
    found = policy.posterior().reward
    assert int(policy.late) == 2  # the reward and the cost
    ref.close(found.mean, 0.0)
    ref.close(found.std, 1.0)
    policy.tell(choices[1], reward=2.0, cost=1.0)
    ref.close(policy.posterior().reward.mean, ref.posterior([1], [2.0])[0])
    assert int(policy.late) == 2


def test_an_empty_window_is_as_at_first():
    gp = ref.belief(standardize=True)
    policy = cb.RPOL(
        ref.actions(),
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        feedback=cb.Sliding(2),
    )
    for value in (7.0, 9.0):
        policy.tell(policy.ask(), reward=value, cost=-value)
    for _ in range(3):
        policy.ask()
    found = policy.posterior()
    ref.close(found.reward.mean, 0.0)
    ref.close(found.costs.mean, 0.0)
    ref.close(found.reward.std, 1.0)


@pytest.mark.parametrize("engine", ["joint", "factor"])
@pytest.mark.parametrize("m", [1, 3])
def test_rpol_sliding(m, engine):
    """Rounds told late, never, or only to some trials; an allowance for drift."""
    window = 25
    world, scores = ref.World(TRIALS, m, ROUNDS, 4), ref.Scores()
    drift = cb.confidence.drift_allowance(window, LAM, 0.01, 0.02)
    assert drift == pytest.approx(math.sqrt(2 * 25 * 1.1 * 0.01) / LAM * 0.02)

    def allowance(t):
        return drift * (1 + t / 100)

    sliding = cb.Sliding(window, allowance)
    policy = rpol(m, feedback=sliding, engine=engine, pending="ignore")
    rng = np.random.default_rng(6)
    # 0: at once; up to 40 rounds late, many outside the window; 99: never
    delays = rng.choice([0, 0, 0, 1, 7, 30, 99], (TRIALS, ROUNDS + 1))
    q = np.ones((TRIALS, m))
    seen = [{} for _ in range(TRIALS)]
    waiting, late = [], np.zeros(TRIALS, dtype=int)
    scores.watch(policy)
    for t in range(1, ROUNDS + 1):
        ref.close(policy.multiplier, q, t)
        choice = policy.ask()
        index = at(choice.index)
        reward, cost = world.reward(t, index), world.cost(t, index)
        waiting += [(t + delays[i, t], choice, reward, cost, i) for i in range(TRIALS)]
        for i in range(TRIALS):
            rounds = [s for s in sorted(seen[i]) if s >= t - window]
            data = [seen[i][s] for s in rounds]
            mean, std, _ = ref.posterior([d[0] for d in data], [d[1] for d in data])
            score = mean + BETA * std + allowance(t)
            for j in range(m):
                y = [d[2][j] for d in data]
                g = ref.posterior([d[0] for d in data], y)[0] - BETA * std
                score = score - q[i, j] * np.maximum(g - allowance(t), 0)
            ref.check_choice(score, scores.values[-1][i], index[i], (t, i))
        due = [w for w in waiting if w[0] == t]
        waiting = [w for w in waiting if w[0] != t]
        for n in rng.permutation(len(due)):
            _, told, reward_then, cost_then, i = due[n]
            where = torch.arange(TRIALS) == i
            policy.tell(told, reward=reward_then, cost=cost_then, where=where)
            k = int(told.index[i])
            if told.t > t - window:
                seen[i][told.t] = (k, float(reward_then[i]), cost_then[i].numpy())
            else:
                late[i] += 2
            q[i] += np.maximum(cost_then[i].numpy(), 0)
        q = np.maximum(q, math.sqrt(t))
    assert policy.late.tolist() == late.tolist()
    assert all(len(g.log) <= window * TRIALS for g in beliefs_of(policy).groups)


@pytest.mark.parametrize("form", ["small-lam", "any-lam", "tight"])
@pytest.mark.parametrize("m", [1, 3])
def test_sliding_widths_count_the_horizon(form, m):
    """Whatever the form: the paper's width for a window holds for every noise."""
    rounds, window = 60, 20
    world, scores = ref.World(1, m, rounds), ref.Scores()
    width = cb.RKHS(norm=0.5, subgaussian=0.2, delta=0.1, form=form)
    policy = rpol(
        m, None, explore=cb.UCB(width), feedback=cb.Sliding(window), horizon=rounds
    )
    index, rewards, costs, q = [], [], [], np.ones(m)
    scores.watch(policy)
    for t in range(1, rounds + 1):
        choice = policy.ask()
        k = int(choice.index)
        last = slice(max(0, t - 1 - window), t - 1)
        mean, std, gain = ref.posterior(index[last], rewards[last])
        log = math.log((m + 1) * rounds / 0.1)
        beta = 0.5 + 0.2 / math.sqrt(LAM) * math.sqrt(2 * gain + 2 * log)
        score = mean + beta * std
        for j in range(m):
            y = [cost[j] for cost in costs[last]]
            g = ref.posterior(index[last], y)[0] - beta * std
            score = score - q[j] * np.maximum(g, 0)
        ref.check_choice(score, scores.values[-1][0], k, t)
        index.append(k)
        rewards.append(float(world.reward(t, [k])[0]))
        costs.append(world.cost(t, [k])[0].numpy())
        policy.tell(choice, reward=rewards[-1], cost=costs[-1])
        q = np.maximum(q + np.maximum(costs[-1], 0), math.sqrt(t))


@pytest.mark.parametrize(
    ("drift", "m", "trials", "wanted"),
    [
        (0.3, 2, None, [0.3, 0.3, 0.3]),
        ([0.1, 0.3], 1, 2, [[0.1, 0.1], [0.3, 0.3]]),  # one a trial
        ((0.1, 0.3), 1, 2, [0.1, 0.3]),  # a pair
        ((0.1, 0.3), 2, None, [0.1, 0.3, 0.3]),
        ((0.1, [0.2, 0.3]), 2, 3, [0.1, 0.2, 0.3]),
        (([0.1, 0.4], 0.3), 2, 2, [[0.1, 0.3, 0.3], [0.4, 0.3, 0.3]]),
        ([0.1, 0.2, 0.3], 2, None, [0.1, 0.2, 0.3]),  # one a function
        ([[0.1, 0.2], [0.3, 0.4]], 1, 2, [[0.1, 0.2], [0.3, 0.4]]),
        (lambda t: (0.1 * t, 0.2), 1, 2, [0.1, 0.2]),
    ],
)
def test_a_drift_may_differ_for_the_reward_and_each_cost(drift, m, trials, wanted):
    seen = []
    policy = rpol(m, trials, feedback=cb.Sliding(5, drift))

    def score(t, q):
        def noted(f, g):
            seen.append((f.clone(), g.clone()))
            return f

        return noted

    policy.score = score
    policy.ask()
    f, g = seen[-1]  # nothing is known: mean 0, deviation 1
    added = torch.cat([f[:, :1] - BETA, -BETA - g[..., 0]], 1)
    expected = torch.tensor(wanted, dtype=added.dtype).expand_as(added)
    torch.testing.assert_close(added, expected, atol=1e-12, rtol=0)


def test_drifts_that_fit_nothing():
    for drift in ((0.1, -0.2), -1.0, (0.1, np.nan)):
        with pytest.raises(cb.CBanditError, match="drift must"):
            cb.Sliding(5, drift)
    for drift in ([0.1, 0.2, 0.3, 0.4], (0.1, [0.2, 0.3])):
        with pytest.raises(cb.CBanditError, match="drift must"):
            rpol(1, None, feedback=cb.Sliding(5, drift))


def test_refits_go_on_in_a_full_window():
    gp = cb.GP(ref.belief().kernel, noise=None, refit_every=10)
    policy = cb.RPOL(
        ref.actions(),
        reward=gp,
        costs=ref.belief(),
        explore=cb.UCB(1.0),
        feedback=cb.Sliding(15),
    )
    with counted_refits() as fits:
        for t in range(45):
            policy.tell(policy.ask(), reward=math.sin(t), cost=-1.0)
        policy.posterior()
    assert len(fits) == 4


def test_data_from_before_leave_a_window_first():
    policy = rpol(1, None, feedback=cb.Sliding(6))
    policy.tell(policy.ask(), reward=0.1, cost=0.2)
    policy.observe(index=list(range(12)), reward=[1.0] * 12, cost=[[0.0]] * 12)
    assert [row.t for row in beliefs_of(policy).groups[0].log] == [0] * 12 + [1]
    for _ in range(6):
        policy.tell(policy.ask(), reward=0.1, cost=0.2)
    policy.posterior()
    assert [row.t for row in beliefs_of(policy).groups[0].log] == [2, 3, 4, 5, 6, 7]


# -------------------------------------------------------- CKB: restarts and windows


@pytest.mark.parametrize("kind", ["restart", "sliding"])
@pytest.mark.parametrize("m", [1, 3])
def test_ckb_restart_and_sliding(m, kind):
    size = 30
    world, scores = ref.World(TRIALS, m, ROUNDS, 7), ref.Scores()
    shared = {
        "reward": ref.belief(),
        "costs": [ref.belief()] * m,
        "explore": cb.UCB(BETA),
        "clip": (2.0, 1.5),
        "slater": 0.5,
    }
    rho = 4 * 2.0 / 0.5

    def build(trials):
        if kind == "restart":
            return cb.baselines.CKBRestart(
                ref.actions(), restart=size, trials=trials, **shared
            )
        return cb.CKB(
            ref.actions(),
            feedback=cb.Sliding(size),
            horizon=ROUNDS,
            trials=trials,
            **shared,
        )

    policy, single = build(TRIALS), build(None)
    v = 1.5 * math.sqrt(size if kind == "restart" else ROUNDS) / rho
    phi = np.zeros((TRIALS, m))
    data = [([], [], []) for _ in range(TRIALS)]
    bounds = Bounds(m)
    scores.watch(policy)
    for t in range(1, ROUNDS + 1):
        restarts = kind == "restart" and (t - 1) % size == 0
        if restarts:
            phi[:] = 0
            data = [([], [], []) for _ in range(TRIALS)]
        ref.close(policy.multiplier, phi, t)
        ref.close(single.multiplier, phi[0], t)
        choice, alone = policy.ask(), single.ask()
        best = scores.values[-1]
        index = at(choice.index)
        assert alone.index.item() == index[0]
        reward, cost = world.reward(t, index), world.cost(t, index)
        for i in range(TRIALS):
            known = data[i]
            if kind == "sliding":
                known = tuple(part[-size:] for part in known)
            f, g = bounds(t, *known)
            f, g = np.clip(f, -2.0, 2.0), np.clip(g, -1.5, 1.5)
            score = f - phi[i] @ g
            ref.check_choice(score, best[i], index[i], (t, i))
            phi[i] = np.clip(phi[i] + g[:, index[i]] / v, 0, rho)
            data[i][0].append(index[i])
            data[i][1].append(float(reward[i]))
            data[i][2].append(cost[i].numpy())
        policy.tell(choice, reward=reward, cost=cost)
        single.tell(alone, reward=reward[0], cost=cost[0])


@pytest.mark.parametrize("forget", [True, False])
def test_rpol_restarts(forget):
    """Each epoch is a new policy; with its data, if they are not forgotten."""
    size, rounds = 15, 50
    world = ref.World(TRIALS, 2, rounds, 9)
    policy, fresh = rpol(2, restart=size, forget=forget), rpol(2)
    rows = []
    for t in range(1, rounds + 1):
        if (t - 1) % size == 0:
            fresh = rpol(2)
            for index, reward, cost in [] if forget else rows:
                fresh.observe(
                    index=torch.tensor(index)[:, None],
                    reward=reward[:, None],
                    cost=cost[:, None],
                )
        ref.close(policy.multiplier, fresh.multiplier, t)
        choice, other = policy.ask(), fresh.ask()
        index = at(choice.index)
        assert index == at(other.index)
        reward, cost = world.reward(t, index), world.cost(t, index)
        policy.tell(choice, reward=reward, cost=cost)
        fresh.tell(other, reward=reward, cost=cost)
        rows.append((index, reward, cost))


# ------------------------------------------------------ restarts when predictions fail


class Jumping:
    """Functions of known norm that change sign in one round of each trial, or never."""

    def __init__(self, jumps, rounds, seed=5, norm=2.0):
        rng = np.random.default_rng(seed)
        self.jumps, self.noise = jumps, 0.2
        weights = rng.standard_normal((len(jumps), 2, N))
        norms = np.sqrt(np.einsum("...i,ij,...j", weights, ref.KERNEL, weights))
        self.values = weights / norms[..., None] @ ref.KERNEL * norm
        self.drawn = self.noise * rng.standard_normal((len(jumps), rounds, 2))

    def __call__(self, t, index):
        """Rewards and costs of round ``t``, ``(2, trials)``."""
        rows = [
            self.values[i, :, k] * (-1 if jump is not None and t >= jump else 1)
            for i, (jump, k) in enumerate(zip(self.jumps, index, strict=True))
        ]
        return torch.tensor(np.stack(rows) + self.drawn[:, t - 1]).T


def adaptive(trials=None, kind=cb.RPOL, **given):
    """RPOL by the papers' noise and an RKHS width, or CKB by constant widths."""
    gp, own = ref.belief(), {"step": 0.5, "cap": 20.0}
    explore = cb.UCB(2.0, cost_beta=0.0, margin=1.0)
    if kind is cb.RPOL:
        gp, own = cb.GP(gp.kernel, noise=1.0), {"forget": True}
        explore = cb.UCB(cb.RKHS(norm=2.0, subgaussian=0.2))
    own |= {"restart": "adaptive", "reward": gp, "costs": gp, "explore": explore}
    return kind(ref.actions(), trials=trials, **{**own, **given})


def test_a_world_that_stays_starts_nothing_anew():
    """Bounds and test fail in at most 0.1 of all runs each; here are 300."""
    world, policy = Jumping([None] * 300, 40), adaptive(300)
    for t in range(1, 41):
        choice = policy.ask()
        reward, cost = world(t, at(choice.index))
        policy.tell(choice, reward=reward, cost=cost)
    policy.ask()
    assert np.mean(np.array(epochs(policy)) > 1) <= 0.1


def test_bounds_too_narrow_where_nothing_was_tried_start_nothing_anew():
    """A function far larger than its prior surprises only at new actions."""
    world, gp = Jumping([None] * 20, 40, norm=10.0), ref.belief()
    policy = adaptive(20, reward=gp, costs=gp, explore=cb.UCB(1.0))
    for t in range(1, 41):
        choice = policy.ask()
        reward, cost = world(t, at(choice.index))
        policy.tell(choice, reward=reward, cost=cost)
    assert epochs(policy) == [1] * 20


@pytest.mark.parametrize("kind", [cb.RPOL, cb.baselines.CKBRestart])
def test_a_trial_starts_anew_when_its_world_has_changed(kind, tmp_path):
    """Soon, by itself, and as a new policy; a batch is its trials one by one."""
    jumps, rounds = [30, 41, None], 60
    world = Jumping(jumps, rounds, 8)
    policy = adaptive(3, kind)
    single = [adaptive(None, kind) for _ in jumps]
    fresh, starts = list(single), [1, 1, 1]
    for t in range(1, rounds + 1):
        if t == 45:
            policy.save(tmp_path / "policy")
            policy = cb.load(tmp_path / "policy")
        choice, multiplier = policy.ask(), policy.multiplier
        index = at(choice.index)
        reward, cost = world(t, index)
        for i, start in enumerate(epochs(policy)):
            if start != starts[i]:
                assert start == t
                starts[i], fresh[i] = t, adaptive(None, kind)
            for alone in {id(p): p for p in (single[i], fresh[i])}.values():
                one = alone.ask()
                assert int(one.index) == index[i], (t, i)
                ref.close(alone.multiplier, multiplier[i], (t, i))
                alone.tell(one, reward=reward[i], cost=cost[i])
        policy.tell(choice, reward=reward, cost=cost)
        ref.close(policy.posterior().reward.mean[2], fresh[2].posterior().reward.mean)
    for start, jump in zip(starts[:2], jumps[:2], strict=True):
        assert jump < start <= jump + 8
    assert starts[2] == 1
    assert [epochs(each) for each in single] == [[start] for start in starts]


@pytest.mark.parametrize("noise", [None, 400.0])
def test_an_outcome_of_its_own_noise_is_judged_by_it(noise):
    gp = ref.belief()
    policy = adaptive(reward=gp, costs=gp, explore=cb.UCB(1.0))
    for t in range(1, 13):
        last = {"reward": 9.0, "noise": noise} if t == 12 else {"reward": 0.0}
        policy.tell(policy.ask(among=[3]), cost=0.0, **last)
    policy.ask()
    assert epochs(policy) == [13 if noise is None else 1]


@pytest.mark.filterwarnings("ignore:.* lies far outside what was seen")
@pytest.mark.parametrize("jump", [12, 31])
def test_learned_units_must_rest_on_many_outcomes(jump):
    gp, rng = cb.GP.default(ref.actions()), np.random.default_rng(2)
    policy = adaptive(reward=gp, costs=gp, explore=cb.UCB(1.0))
    for t in range(1, 38):
        choice, noise = policy.ask(), 0.1 * rng.standard_normal(2)
        x = float(choice.x) + (t >= jump)
        policy.tell(choice, reward=math.sin(6 * x) + noise[0], cost=x + noise[1])
        if t == jump + 6:
            break
    assert (epochs(policy)[0] > jump) == (jump > 20)


def test_what_a_restart_by_predictions_does_not_go_with():
    """The error says what does, and what goes with the rest."""
    binary = cb.GP.default(ref.actions(), outcome="binary")
    for given in (
        {"feedback": cb.Sliding(9)},
        {"feedback": cb.Delayed(9), "explore": cb.UCB(1.0)},
        {"explore": cb.TS(1.0)},
        {"share": 0.9},
        {"forget": False},
        {"costs": binary, "thresholds": 0.5},
    ):
        with pytest.raises(cb.CBanditError, match="it goes with forget=True"):
            adaptive(**given)


# ------------------------------------------------------------------------- SCGP-UCB


@pytest.mark.parametrize("width", ["constant", "theory"])
@pytest.mark.parametrize("schedule", [1, 2])
@pytest.mark.parametrize("m", [1, 3])
def test_scgp_ucb(m, schedule, width):
    world, scores = ref.World(TRIALS, m, ROUNDS, 8), ref.Scores()
    delta, b, tau = 0.4, 1.6, 0.1
    beta = BETA if width == "constant" else cb.RKHS(0.7, 0.2, delta=0.05)

    def build(trials):
        return cb.SCGPUCB(
            ref.actions(),
            reward=ref.belief(),
            costs=m,
            explore=cb.UCB(beta),
            schedule=schedule,
            slater=delta,
            clip=b,
            thresholds=tau,
            trials=trials,
        )

    policy, single = build(TRIALS), build(None)
    q = np.zeros((TRIALS, m))
    data = [([], []) for _ in range(TRIALS)]
    scores.watch(policy)
    for t in range(1, ROUNDS + 1):
        seen = world.costs[:, t - 1]
        ref.close(policy.multiplier, q, t)
        choice = policy.ask(observed_costs=seen)
        best = scores.values[-1]
        alone = single.ask(observed_costs=seen[0])
        index = at(choice.index)
        assert alone.index.item() == index[0]
        reward = world.reward(t, index)
        root = math.sqrt(t)
        eps, v = 1 / root, delta * root / (8 * b)
        if schedule == 2:
            eps, v = delta / (2 * root), delta**2 * root / (16 * b)
        for i in range(TRIALS):
            mean, std, gain = ref.posterior(*data[i])
            wide = BETA
            if width == "theory":  # ln(2 / delta), however many costs
                wide = ref.theory(0.7, 0.2, gain, 0.05, 2)
            f, g = np.clip(mean + wide * std, -b, b), seen[i] - tau
            ref.check_choice(f - q[i] @ g / v, best[i], index[i], (t, i))
            q[i] = np.maximum(q[i] + g[:, index[i]] + eps, 0)
            data[i][0].append(index[i])
            data[i][1].append(float(reward[i]))
        policy.tell(choice, reward=reward)
        single.tell(alone, reward=reward[0])
        ref.close(single.multiplier, q[0], t)


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("kind", ["scgp", "epoch"])
def test_recommend_where_several_costs_have_no_belief(kind, box, trials):
    common = {"costs": 3, "explore": cb.UCB(1.0), "trials": trials}
    common |= {"reward": ref.belief()}
    actions = cb.Box([0.0], [1.0]) if box else ref.actions()
    if kind == "scgp":
        policy = cb.SCGPUCB(actions, slater=0.4, clip=1.0, **common)
    else:
        policy = cb.EpochPenalty(actions, epoch=5, reuse=False, **common)
    lead = () if trials is None else (trials,)
    policy.observe(
        x=[[0.0], [1.0]],
        reward=[-1.0, 2.0],
        cost=np.full((2, 3), -0.5) if kind == "epoch" else None,
    )
    found = policy.recommend()
    assert found.x.shape == (*lead, 1)
    assert bool((found.x > 0.5).all())
    assert found.margin.shape == (*lead, 3)
    assert bool(found.margin.isnan().all())
    assert bool(found.probability.isnan().all())
    assert not bool(found.feasible.any())
    for line in str(found).split("\n"):
        assert line.endswith(
            "nothing is known of its costs: it may or may not be feasible"
        )
        assert ("penalties included" in line) == (kind == "epoch")


def test_recommend_without_costs_says_nothing_of_them():
    policy = cb.GPUCB(ref.actions(), reward=ref.belief(), explore=cb.UCB(1.0))
    policy.observe(x=[[1.0]], reward=[2.0])
    found = policy.recommend()
    assert bool(found.feasible)
    assert "feasible" not in str(found)


# ------------------------------------------------------------------------ bad input


def same_state(policy, before):
    assert torch.equal(policy.posterior().reward.mean, before[0])
    assert torch.equal(policy.multiplier, before[1])
    assert policy.t == before[2]


@pytest.mark.parametrize("make", [cb.Delayed, cb.Sliding])
@pytest.mark.parametrize("window", [0, -3, 2.5, True])
def test_a_window_of_nothing(make, window):
    with pytest.raises(cb.CBanditError, match="window must be an int of at least 1"):
        make(window)


def test_bad_feedback_changes_nothing():
    for feedback in (None, cb.Delayed(3, 0.1), cb.Sliding(3)):
        policy, other = rpol(2, 2, feedback=feedback), rpol(2, 2)
        done = policy.ask()
        policy.tell(done, reward=[0.1, 0.2], cost=[[0.1, 0.2], [0.0, 0.5]])
        half = policy.ask()
        policy.tell(half, reward=[0.1, 0.2], where=[True, False])
        gone = policy.ask()
        policy.cancel(gone)
        state = policy.posterior().reward.mean, policy.multiplier, policy.t
        whole = {"reward": [0.1, 0.2], "cost": [[0.1, 0.2]] * 2}
        for choice, told, message in (
            (done, whole, "is finished"),
            (gone, whole, "is finished"),
            (other.ask(), whole, "another policy"),
            (half, whole, "reward already in some of these trials"),
            (half, {"cost": [0.1, 0.2, 0.3]}, "cost must have shape"),
            (half, {"cost": [[0.1, np.nan]] * 2}, "cost must be finite"),
            (half, {"cost": [[0.1, 0.1]] * 2, "where": [1, 0]}, "where must be bool"),
            (half, {}, "reward=, cost= or both"),
            (7, whole, "choice must come from ask"),
        ):
            with pytest.raises(cb.CBanditError, match=message):
                policy.tell(choice, **told)
        same_state(policy, state)
        policy.tell(half, reward=[np.nan, 0.2], where=[False, True])


def test_a_cost_before_its_round():
    policy, twin = rpol(1, None), rpol(1, None)
    policy.ask()
    later = policy.ask()
    take_for(twin, policy)
    twin.ask()
    with pytest.raises(cb.ChoiceError, match=r"round 2 is unknown.*in round 1"):
        twin.tell(later, cost=0.1)


def test_words_for_what_cannot_be():
    policy = rpol(1, None, feedback=cb.Delayed(3, 0.1))
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match="noise= cannot go with"):
        policy.tell(choice, reward=0.1, noise=0.1)
    with pytest.raises(cb.CBanditError, match="penalty must be"):
        rpol(penalty="both")
    with pytest.raises(cb.CBanditError, match="counts outstanding rounds itself"):
        rpol(explore=cb.TS(1.0), feedback=cb.Delayed(3))
    explore = cb.UCB(cb.RKHS(norm=1.0, subgaussian=0.1))
    policy = rpol(explore=explore, feedback=cb.Delayed(3))
    with pytest.raises(cb.CBanditError, match="give the policy horizon="):
        policy.ask()
    policy = rpol(explore=explore, feedback=cb.Sliding(3))
    with pytest.raises(cb.CBanditError, match="give the policy horizon="):
        policy.ask()
    assert policy.t == 0
    with pytest.raises(cb.CBanditError, match="restart must be an int"):
        cb.baselines.CKBRestart(
            ref.actions(),
            reward=ref.belief(),
            costs=ref.belief(),
            explore=cb.UCB(1.0),
            restart=0,
            step=0.1,
            cap=1.0,
        )
    scgp = cb.SCGPUCB(
        ref.actions(),
        reward=ref.belief(),
        costs=1,
        explore=cb.UCB(1.0),
        slater=0.1,
        clip=1.0,
    )
    with pytest.raises(cb.CBanditError, match="give ask\\(observed_costs=g_t\\)"):
        scgp.ask()
    with pytest.raises(cb.CBanditError, match="observed_costs must have shape"):
        scgp.ask(observed_costs=np.zeros((2, N)))
    assert scgp.t == 0


def test_feedback_told_after_a_restart_enters_the_new_beliefs():
    points = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
    kernel = gpk.RBFKernel().double()
    policy = cb.RPOL(
        cb.Finite(points),
        reward=cb.GP(kernel, noise=0.5),
        costs=cb.GP(kernel, noise=0.5),
        restart=2,
        forget=True,
    )
    first, second = policy.ask(), policy.ask()
    policy.tell(second, reward=5.0, cost=0.0)
    policy.ask()  # the third round: a restart
    assert policy.posterior().reward.mean.abs().max() == 0
    policy.tell(first, reward=3.0, cost=0.0)
    mean = policy.posterior().reward.mean[int(first.index)]
    assert mean.item() == pytest.approx(3.0 / 1.5)  # of this alone


def test_settings_said_to_be_unused_change_nothing():
    def played(make, **more):
        policy, seen = make(ref.actions(), reward=ref.belief(), **more), []
        for _ in range(4):
            costs = {"observed_costs": torch.zeros(1, N)} if "slater" in more else {}
            choice = policy.ask(**costs)
            seen.append(int(choice.index))
            policy.tell(choice, reward=0.1 * seen[-1])
        return seen

    limits = [played(cb.GPUCB, thresholds=limit) for limit in (0.0, 0.5)]
    assert limits[0] == limits[1]
    own = {"costs": 1, "slater": 1.0}
    clips = [played(cb.SCGPUCB, clip=clip, **own) for clip in (2.0, (2.0, 1e-3))]
    assert clips[0] == clips[1]
