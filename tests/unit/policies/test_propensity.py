"""Propensities: the chance of each choice, with and without ``explore_share=``."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

import cbandit as cb

# a frequency test fails by chance in one of 10 000 runs; seeds are fixed besides
RARE = 1e-4
ARMS = cb.Finite(torch.linspace(0, 1, 5).double().unsqueeze(-1))


def belief(lengthscale=0.3):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return cb.GP(kernel, noise=0.01)


def ckb(actions=ARMS, **keywords):
    own = {"step": 0.5, "cap": 5.0} if keywords.get("dual") != "resolved" else {}
    own |= {"thresholds": 0.2, "explore": cb.UCB(1.0)}
    return cb.CKB(actions, reward=belief(), costs=belief(), **(own | keywords))


def teach(policy, arms=range(5)):
    """Tell arms a reward and a cost that grow with their numbers."""
    index = torch.tensor(list(arms))
    policy.observe(index=index, reward=index / 4.0, cost=index / 4.0)
    return policy


def dense(distribution, size):
    """Probabilities over all arms, ``(T, size)``."""
    index, chance = (
        part.reshape(-1, part.shape[-1]) for part in distribution_of(distribution)
    )
    return torch.zeros(len(index), size).double().scatter_add(1, index, chance.double())


def distribution_of(pi):
    return pi.index, pi.probability


def fits(index, law):
    """Whether arms ``(n,)`` come from their laws ``(n, K)``, by each arm's z score."""
    played = torch.nn.functional.one_hot(index, law.shape[1]).double()
    spread = (law * (1 - law)).sum(0).sqrt()
    z = (played - law).sum(0)[spread > 0] / spread[spread > 0]
    assert ((played - law).sum(0)[spread == 0] == 0).all()
    return float(z.abs().max()) < norm.isf(RARE / 2 / law.shape[1])


POLICIES = {
    "UCB": lambda **k: teach(ckb(**k)),
    "resolved": lambda **k: teach(ckb(dual="resolved", **k)),
    "TS": lambda **k: teach(ckb(explore=cb.TS(1.0), **k)),
    "Rand": lambda **k: teach(ckb(explore=cb.Rand(1.0), **k), arms=[4, 4, 4]),
    "resolved TS": lambda **k: teach(ckb(dual="resolved", explore=cb.TS(1.0), **k)),
    "RPOL": lambda **k: teach(
        cb.RPOL(ARMS, reward=belief(), costs=belief(), thresholds=0.2, **k)
    ),
    "CONFIG": lambda **k: teach(
        cb.baselines.CONFIG(
            ARMS, reward=belief(), costs=belief(), explore=cb.TS(1.0), **k
        )
    ),
    "GPTS": lambda **k: cb.GPTS(ARMS, reward=belief(), explore=cb.TS(1.0), **k),
    "Random": lambda **k: cb.baselines.Random(ARMS, **k),
    "OPB": lambda **k: teach(
        cb.OPB(
            ARMS,
            reward=cb.Counts(subgaussian=0.1, range=(0.0, 1.0)),
            costs=cb.Counts(subgaussian=0.1, range=(0.0, 1.0)),
            safe=cb.Safe(index=0, reward=0.0, cost=0.0),
            thresholds=0.6,
            horizon=100,
            **k,
        ),
        arms=list(range(5)) * 20,
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_arms_are_played_as_often_as_their_law_says(name):
    n = 3000
    policy = POLICIES[name](trials=n, explore_share=0.3)
    choice = policy.ask()
    law = dense(choice.distribution, 5)
    assert torch.allclose(law.sum(-1), torch.ones(n).double())
    assert fits(choice.index, law)
    chance = torch.tensor(policy.history()["propensity"].tolist()).double()
    played = law.gather(1, choice.index[:, None])[:, 0]
    torch.testing.assert_close(chance, played, rtol=1e-6, atol=0)
    # OPB explores what it believes safe, Random all arms anyway
    least = {"OPB": 0.0, "Random": 0.2}.get(name, 0.3 / 5)
    assert float(law.min()) >= least - 1e-12


@pytest.mark.parametrize("name", ["TS", "Rand", "CONFIG"])
def test_thirty_two_draws_do_not_change_what_a_rule_plays(name):
    n, share = 4000, 1e-9
    plain = POLICIES[name](trials=n).ask().index.bincount(minlength=5)
    policy = POLICIES[name](trials=n, explore_share=share, seed=1)
    drawn = policy.ask().index.bincount(minlength=5)
    both = torch.stack([plain, drawn]).double()
    both = both[:, both.sum(0) > 10]
    assert both.shape[1] > 1
    expected = both.sum(1, keepdim=True) * both.sum(0) / both.sum()
    statistic = float(((both - expected).square() / expected).sum())
    assert statistic < chi2.isf(RARE, both.shape[1] - 1)


def test_a_draw_that_is_played_keeps_its_estimates():
    # the law of the dual step's estimate is that of the rule: its mean over trials
    n = 4000
    means = []
    for keywords in ({}, {"explore_share": 1e-9, "seed": 1}):
        policy = POLICIES["TS"](trials=n, **keywords)
        policy.tell(policy.ask(), reward=torch.zeros(n), cost=torch.zeros(n))
        means.append(policy.multiplier.reshape(-1))
    spread = sum(float(m.var()) / n for m in means) ** 0.5
    assert abs(float(means[0].mean() - means[1].mean())) < norm.isf(RARE / 2) * spread


def test_the_multiplier_moves_by_the_arm_explored():
    policy = teach(ckb(trials=40, explore_share=0.5))
    before = policy.posterior().costs
    choice = policy.ask()
    mean, std = (
        part[:, 0].gather(1, choice.index[:, None])[:, 0]
        for part in (before.mean, before.std)
    )
    greedy = choice.distribution.index.gather(
        1, choice.distribution.probability.argmax(-1, keepdim=True)
    )
    assert (choice.index != greedy[:, 0]).sum() > 5
    moved = (0.5 * (mean - std - 0.2)).clamp(0, 5)
    torch.testing.assert_close(policy.multiplier[:, 0], moved)
    told = policy.explain(choice).estimate
    torch.testing.assert_close(told[:, 1], mean - std - 0.2)


def test_the_column_is_nan_where_the_arm_was_certain():
    def propensity(policy, n=6):
        for _ in range(n):
            policy.tell(policy.ask(), reward=0.3, cost=0.1)
        return policy.history()["propensity"].to_numpy()

    gp = cb.GP.default(ARMS)
    own = {"reward": gp, "costs": gp, "thresholds": 0.2}
    assert np.isnan(propensity(ckb())).all()
    assert np.isnan(propensity(ckb(explore=cb.TS(1.0)))).all()
    assert np.isnan(propensity(ckb(dual="resolved", explore=cb.TS(1.0)))).all()
    assert not np.isnan(propensity(ckb(dual="resolved"))).any()
    assert not np.isnan(propensity(ckb(explore_share=0.2))).any()
    first = propensity(cb.CKB(ARMS, explore_share=0.2, **own))
    assert np.isnan(first).tolist() == [True] + [False] * 5
    designed = propensity(cb.CKB(ARMS, explore_share=0.2, design=3, **own))
    assert np.isnan(designed).tolist() == [True] * 3 + [False] * 3
    counts = cb.Counts(subgaussian=0.1, range=(0.0, 1.0))
    unknown = cb.OPB(
        ARMS,
        reward=counts,
        costs=counts,
        safe=cb.Safe(index=0),
        thresholds=0.6,
        horizon=100,
        explore_share=0.2,
    )
    assert np.isnan(propensity(unknown, 3)).all()  # the safe arm, until it is known


SAFE = {
    "SafeOpt": {},
    "StageOpt": {"rounds": 5},
    "SGPUCB": {"rounds": 3},
    "LoSBO": {"lipschitz": 1.0, "noise_bound": 0.1},
}


@pytest.mark.parametrize("name", SAFE)
def test_safe_sets_explore_within_what_is_believed_safe(name):
    policy = getattr(cb.baselines, name)(
        ARMS,
        reward=belief(1.0),
        costs=belief(1.0),
        explore=cb.UCB(2.0),
        safe=[0],
        thresholds=0.7,
        explore_share=0.5,
        seed=3,
        **SAFE[name],
    )
    seen = set()
    for _ in range(40):
        believed = policy.posterior().costs
        surely = (believed.mean + 2 * believed.std)[0] <= 0.7
        choice = policy.ask()
        assert choice.index == 0 or name == "LoSBO" or bool(surely[choice.index])
        assert choice.index <= 2
        seen.add(int(choice.index))
        policy.tell(choice, reward=float(choice.x), cost=float(choice.x))
    assert seen == {0, 1, 2}


def test_mixtures_of_opb_and_oplb_keep_the_limit():
    policy = POLICIES["OPB"](explore_share=0.4)
    believed = policy.posterior().costs
    pi = dense(policy.ask().distribution, 5)[0]
    # the width of an average of n pulls, as in the policy's protocol
    width = 0.1 * np.sqrt(2 * np.log(2 * 2 * 5 * 100 / 0.1) / 20)
    upper = believed.mean[0] + width
    upper[0] = 0.0
    assert float((pi * upper).sum()) <= 0.6 + 1e-9
    inside = upper <= 0.6
    assert bool((pi[inside] >= 0.4 / int(inside.sum()) - 1e-12).all())

    vectors = cb.Finite(torch.cat([torch.zeros(1, 2), torch.eye(2), -torch.eye(2)]))
    lin = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.0)
    policy = cb.OPLB(
        vectors,
        reward=lin,
        costs=lin,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.5,
        horizon=100,
        beta=0.3,
        explore_share=0.4,
        dtype="float64",
    )
    policy.observe(
        index=[1, 2, 3, 4] * 5,
        reward=[0.9, 0.1, -0.9, -0.1] * 5,
        cost=[0.9, 0.2, -0.9, -0.2] * 5,
    )
    pi = dense(policy.ask().distribution, 5)[0]
    believed = policy.posterior().costs
    upper = believed.mean[0] + 3 * believed.std[0]  # deviations are R = .1 times norms
    inside = upper <= 0.5
    assert inside.tolist() == [True, False, True, True, True]
    assert float(pi[1]) > 0
    assert bool((pi[inside] >= 0.1 - 1e-9).all())
    assert float((pi * upper).sum()) <= 0.5 + 1e-6


@pytest.mark.filterwarnings("ignore:.*plays the safe action")  # SafeLTS' draws may
def test_linear_safe_policies_explore_too():
    vectors = cb.Finite(
        torch.cat([torch.zeros(1, 2), torch.eye(2) / 4, torch.eye(2)]).double()
    )
    lin = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.0)
    for kind in (cb.LCLUCB, cb.baselines.SafeLTS):
        policy = kind(
            vectors,
            reward=lin,
            costs=lin,
            safe=cb.Safe(index=0, reward=0.0, cost=0.0),
            thresholds=0.3,
            horizon=100,
            beta=0.2,
            explore_share=0.5,
        )
        policy.observe(
            index=[1, 2, 3, 4] * 5,
            reward=[0.1, 0.2, 0.5, 0.9] * 5,
            cost=[0.02, 0.2, 0.1, 0.8] * 5,
        )
        pi = dense(policy.ask().distribution, 5)[0]
        believed = policy.posterior().costs
        inside = believed.mean[0] + 2 * believed.std[0] <= 0.3
        assert inside.tolist() == [True, True, True, True, False]
        assert (pi > 0).tolist() == inside.tolist()
        assert float(pi[pi > 0].min()) == pytest.approx(0.5 / 4)


def test_budgets_explore_what_is_affordable():
    space = cb.Space(size=cb.Category("s", "m", "l", "xl"))
    gp = cb.GP.default(space)
    policy = cb.CKB(
        space,
        reward=gp,
        costs={"usd": gp},
        thresholds={"usd": cb.Budget(60.0, rounds=60)},
        explore_share=0.9,
        seed=1,
    )
    price = {"s": 0.2, "m": 0.6, "l": 3.0, "xl": 12.0}
    names, rng = list(price), np.random.default_rng(0)
    for _ in range(3):
        observed = [{"size": n} for n in names]
        usd = [price[n] * (1 + 0.01 * rng.standard_normal()) for n in names]
        policy.observe(params=observed, reward=[0.1, 0.2, 0.3, 0.4], cost=usd)
    support = []
    for _ in range(60):
        left = float(policy.budget["usd"].left)
        try:
            choice = policy.ask()
        except cb.BudgetError:
            break
        usd = price[choice.params["size"]]
        policy.tell(choice, reward=0.2, cost={"usd": usd})
        support.append(int((choice.distribution.probability > 0).sum()))
        assert usd <= left
    assert support[0] == 4 and support[-1] < 4
    spent = policy.budget["usd"].spent
    assert float(spent) <= 60.0


def test_contexts_and_parts_of_large_sets():
    space = cb.Space(model=cb.Category("a", "b", "c"), load=cb.Context(2))
    gp = cb.GP.default(space)
    for explore in (None, cb.TS(1.0)):
        policy = cb.CKB(
            space,
            reward=gp,
            costs={"ms": gp},
            thresholds={"ms": "<= 2"},
            explore=explore,
            explore_share=0.3,
        )
        for t in range(25 if explore is None else 4):
            choice = policy.ask(context={"load": [t % 3, 1.0]})
            policy.tell(choice, reward=float(choice.index), cost={"ms": 1.0 + t % 2})
        pi = dense(choice.distribution, 3)[0]
        assert float(pi.sum()) == pytest.approx(1)
        assert bool((pi >= 0.1 - 1e-12).all())
    wide = cb.Finite(torch.linspace(0, 1, 80).double().unsqueeze(-1))
    policy = ckb(wide, explore_share=0.5, failures=False)
    with pytest.raises(cb.CBanditError, match=r"explore_share .* 80 are allowed"):
        policy.ask()
    assert policy.t == 0
    choice = policy.ask(among=[3, 7, 70])
    assert set(choice.distribution.index.tolist()) == {3, 7, 70}
    policy.tell(choice, failed=True)  # failures=False: it is not asked for again
    left = policy.ask(among=[3, 7, 70]).distribution.index.tolist()
    assert left == sorted({3, 7, 70} - {int(choice.index)})


def test_a_rule_of_ones_own_that_draws():
    class Coin(cb.Policy):
        name = "Coin"

        def __init__(self, actions, **common):
            super().__init__(actions, 0, **common)
            self.begin(None)

        def decide(self, state, turn):
            up = turn.streams.uniform().reshape(self.size) < 0.7
            return cb.Decision(torch.where(up, 3, 1)), state

        def absorb(self, state, news):
            return state

    choice = Coin(ARMS, trials=2000, explore_share=0.25).ask()
    law = dense(choice.distribution, 5)
    assert fits(choice.index, law)
    wanted = torch.tensor([0.05, 0.275, 0.05, 0.575, 0.05]).double()
    assert torch.allclose(law.mean(0), wanted, atol=0.01)


def test_a_law_stated_by_a_rule_of_ones_own_is_a_propensity():
    class Stated(cb.Policy):
        name = "Stated"

        def __init__(self, actions, **common):
            super().__init__(actions, 0, **common)
            self.begin(None)

        def decide(self, state, turn):
            pi = cb.Distribution(torch.tensor([[1, 4]]), torch.tensor([[0.25, 0.75]]))
            up = turn.streams.uniform().reshape(1) < 0.25
            return cb.Decision(torch.where(up, 1, 4), distribution=pi), state

        def absorb(self, state, news):
            return state

    policy = Stated(ARMS)
    for _ in range(5):
        policy.ask()
    frame = policy.history()
    wanted = frame["action"].map({1: 0.25, 4: 0.75}).tolist()
    assert frame["propensity"].tolist() == wanted


def test_a_trial_alone_plays_as_in_a_batch():
    for name in ("UCB", "TS"):
        whole = POLICIES[name](trials=4, explore_share=0.4, seed=2)
        part = POLICIES[name](trials=range(2, 3), explore_share=0.4, seed=2)
        for _ in range(12):
            a, b = whole.ask(), part.ask()
            assert int(a.index[2]) == int(b.index[0])
            assert torch.allclose(
                dense(a.distribution, 5)[2], dense(b.distribution, 5)[0]
            )
            whole.tell(a, reward=a.x[:, 0], cost=a.x[:, 0])
            part.tell(b, reward=b.x[:, 0], cost=b.x[:, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_and_loaded(dtype, tmp_path):
    policy = POLICIES["TS"](explore_share=0.4, dtype=dtype)
    for _ in range(5):
        choice = policy.ask()
        policy.tell(choice, reward=choice.x[0], cost=choice.x[0])
    policy.ask()
    policy.save(tmp_path / "a.ckpt")
    again = cb.load(tmp_path / "a.ckpt")
    for _ in range(5):
        a, b = policy.ask(), again.ask()
        assert a.index == b.index
        assert torch.equal(a.distribution.probability, b.distribution.probability)
    columns = ["action", "propensity"]
    assert policy.history()[columns].equals(again.history()[columns])


def test_simulated_runs_count_rounds_that_explore():
    world = cb.problems.zhou_synthetic(trials=2)
    gp = cb.GP.default(world.actions)
    policy = cb.RPOL(
        world.actions,
        reward=gp,
        costs=gp,
        trials=2,
        thresholds=world.thresholds,
        explore_share=0.2,
    )
    with pytest.raises(cb.CBanditError, match="at most 50"):
        cb.simulate(policy, world, 5, progress=False)
    table = cb.problems.Table([1.0, 2.0, 3.0], [[-1.0, 0.2, 1.0]], 0.01, thresholds=0.5)
    gp = cb.GP.default(table.actions)
    own = {"reward": gp, "costs": gp, "thresholds": 0.5, "explore_share": 0.5}
    policy = cb.RPOL(table.actions, design=2, **own)
    run = cb.simulate(policy, table, 30, progress=False)
    assert run.expected_rewards.shape == (30,)
    assert policy.certificate().costs[0].told == 30


def test_refusals():
    box = cb.Box([0.0], [1.0])
    with pytest.raises(cb.CBanditError, match=r"explore_share .*numbered actions"):
        cb.RPOL(box, reward=belief(), costs=belief(), explore_share=0.1)
    star = cb.Star(torch.zeros(2), torch.eye(2))
    lin = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.0)
    with pytest.raises(cb.CBanditError, match=r"explore_share .*numbered actions"):
        cb.LCLUCB(
            star,
            reward=lin,
            costs=lin,
            safe=cb.Safe(x=[0.0, 0.0]),
            horizon=10,
            explore_share=0.1,
        )
    for bad in (0.0, 1.0, -0.1, 5):
        with pytest.raises(cb.CBanditError, match="explore_share must lie between"):
            ckb(explore_share=bad)
    with pytest.raises(cb.CBanditError, match="explore_share"):
        ckb(explore_share=[0.1, 0.2], trials=3)
    with pytest.raises(cb.CBanditError, match="ADMMBO takes no explore_share"):
        cb.baselines.ADMMBO(ARMS, reward=belief(), costs=belief(), explore_share=0.1)
    each = ckb(explore_share=[0.1, 0.9, 0.5], trials=3).ask().distribution
    least = torch.tensor([0.02, 0.18, 0.1]).double()
    torch.testing.assert_close(each.probability.amin(-1), least)
