"""What holds whatever is asked and told, in whatever order, on every engine."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inside import missing

import cbandit as cb

F64 = torch.float64
NOISE = 0.01
SIZE = 20
WIDE = cb.ProductGrid([torch.linspace(0, 1, 5, dtype=F64), torch.arange(4.0) / 3])
# a file a test is shared by its examples, which write it anew
FEW = settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def kernel(scale=0.4):
    out = gpytorch.kernels.RBFKernel().double()
    out.lengthscale = torch.tensor(scale, dtype=F64)
    return out


def belief(**more):
    return cb.GP(kernel(), **{"noise": NOISE, **more})


def value(seed, place):
    """A number that looks random, and is the same in every replay."""
    return float(np.random.default_rng([seed, place]).normal())


MAKES = {
    "CKB": lambda gp, **more: cb.CKB(
        WIDE, reward=gp, costs=[gp, gp], explore=cb.UCB(2.0), step=0.3, cap=5.0, **more
    ),
    "CKB-TS": lambda gp, **more: cb.CKB(
        WIDE, reward=gp, costs=[gp, gp], explore=cb.TS(1.0), step=0.3, cap=5.0, **more
    ),
    "CKB sliding": lambda gp, **more: cb.CKB(
        WIDE,
        reward=gp,
        costs=[gp, gp],
        explore=cb.UCB(2.0),
        step=0.3,
        cap=5.0,
        feedback=cb.Sliding(4),
        **more,
    ),
    "RPOL": lambda gp, **more: cb.RPOL(
        WIDE, reward=gp, costs=[gp, gp], explore=cb.UCB(2.0), **more
    ),
    "RPOL delayed": lambda gp, **more: cb.RPOL(
        WIDE,
        reward=gp,
        costs=[gp, gp],
        explore=cb.UCB(2.0),
        feedback=cb.Delayed(5),
        **more,
    ),
    "CONFIG": lambda gp, **more: cb.baselines.CONFIG(
        WIDE, reward=gp, costs=[gp, gp], explore=cb.UCB(2.0), **more
    ),
}
DETERMINED = [name for name in MAKES if name not in ("CKB-TS", "CKB sliding")]

ACTS = ("ask", "ask", "tell", "tell", "newest", "apart", "rest", "observe", "failed")
PLAY = st.lists(
    st.tuples(
        st.sampled_from([*ACTS, "cancel", "save", "refuse", "refit"]),
        st.integers(0, 10**6),
    ),
    min_size=4,
    max_size=22,
)


def do(policy, act, seed):
    """One act, on the k-th of the choices that wait; nothing where there is none."""
    waiting = policy.outstanding
    if act == "ask":
        if len(waiting) < 6:
            policy.ask()
    elif act == "observe":
        policy.observe(
            index=[seed % SIZE],
            reward=[value(seed, 0)],
            cost=[[value(seed, 1), value(seed, 2)]],
        )
    elif act == "refit":
        policy.refit()
    elif waiting:
        choice = waiting[-1 if act == "newest" else seed % len(waiting)]
        reward, cost = value(seed, 0), [value(seed, 1), value(seed, 2)]
        wants_reward, *costs = missing(policy, choice)[0]
        wants_cost = any(costs)
        if act == "apart" and wants_reward:
            policy.tell(choice, reward=reward)
        elif act == "rest" and wants_cost:
            policy.tell(choice, cost=cost)
        elif act in ("tell", "newest"):
            told = {"reward": reward} if wants_reward else {}
            told |= {"cost": cost} if wants_cost else {}
            policy.tell(choice, **told)
        elif act == "cancel":
            policy.cancel(choice)
        elif act == "failed" and seed % 3 == 0:
            policy.tell(choice, failed=True)


def refused(policy, seed):
    """Calls that must be errors, and change nothing."""
    bad = [
        lambda: policy.ask(among=[]),
        lambda: policy.ask(among=[SIZE]),
        lambda: policy.ask(observed_costs=torch.zeros(2, SIZE)),
        lambda: policy.observe(index=[0], reward=[float("nan")]),
        lambda: policy.observe(index=[0, SIZE], reward=[0.0, 0.0]),
        lambda: policy.observe(index=[0], reward=[0.0], cost=[[0.0, 1e200]]),
        lambda: policy.tell("nobody-1", reward=0.0),
        lambda: policy.cancel(None),
    ]
    if policy.outstanding:
        choice = policy.outstanding[seed % len(policy.outstanding)]
        bad += [
            lambda: policy.tell(choice),
            lambda: policy.tell(choice, reward=0.0, cost=[0.0]),
            lambda: policy.tell(choice, reward=0.0, cost=[0.0, float("inf")]),
            lambda: policy.tell(choice, cost={"nothing": 1.0}),
            lambda: policy.tell(choice, reward=0.0, failed=True),
            lambda: policy.tell(choice, reward=0.0, where=[True, False]),
        ]
    with pytest.raises((cb.CBanditError, ValueError)):
        bad[seed % len(bad)]()


def believed(policy):
    """All that two policies must agree on."""
    found = policy.posterior()
    return [
        *(found.reward.mean, found.reward.std, found.costs.mean, found.costs.std),
        torch.as_tensor(policy.multiplier),
    ]


def same(one, two):
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def close(one, two, limit):
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", MAKES)
@FEW
@given(play=PLAY)
def test_saving_and_refused_calls_change_nothing(tmp_path_factory, name, play):
    """A policy that is saved, loaded and asked the impossible, and one that is not."""
    path = tmp_path_factory.getbasetemp() / f"{name}.ckpt"
    gp = cb.GP(kernel(), noise=None, refit_every=None, standardize=True)
    disturbed, plain = (MAKES[name](gp, thresholds=0.3, seed=1) for _ in range(2))
    refits = 0
    for act, seed in play:
        if act == "save":
            disturbed.save(path, overwrite=True)  # another example's
            disturbed = cb.load(path)
        elif act == "refuse":
            refused(disturbed, seed)
        elif act != "refit" or (refits := refits + 1) < 2:
            do(disturbed, act, seed)
            do(plain, act, seed)
    same(believed(disturbed), believed(plain))
    a, b = disturbed.ask(), plain.ask()
    assert torch.equal(a.index, b.index)
    # all but ids, which tell copies apart, and times
    columns = [c for c in plain.history() if c not in ("id", "asked", "told")]
    assert disturbed.history()[columns].equals(plain.history()[columns])


@pytest.mark.parametrize("name", DETERMINED)
@FEW
@given(play=PLAY)
def test_engines_agree(name, play):
    """Posteriors within 1e-7 of each other, whatever was told, and multipliers."""
    engines = ("joint", "factor", "product", "stream")
    policies = [MAKES[name](belief(), thresholds=0.3, engine=e) for e in engines]
    for act, seed in play:
        if act in ("save", "refuse", "refit"):
            continue
        if act == "ask":
            # near ties may be broken one way or the other: all play the first's
            if len(policies[0].outstanding) < 6:
                at = [int(policies[0].ask().index)]
                for policy in policies[1:]:
                    policy.ask(among=at)
            continue
        for policy in policies:
            do(policy, act, seed)
    first = believed(policies[0])
    for policy in policies[1:]:
        close(believed(policy), first, 1e-7)


@pytest.mark.parametrize("name", MAKES)
@FEW
@given(play=PLAY)
def test_trials_are_independent(name, play):
    """Three trials at once are three policies of one trial each."""
    three = MAKES[name](belief(), thresholds=0.3, trials=3)
    alone = [
        MAKES[name](belief(), thresholds=0.3, trials=range(k, k + 1)) for k in range(3)
    ]
    for act, seed in play:
        waiting = three.outstanding
        if act == "ask" and len(waiting) < 6:
            allowed = [[seed % SIZE, (seed // 7) % SIZE, (seed + 3) % SIZE]]
            index = three.ask(among=allowed).index
            single = [policy.ask(among=allowed).index for policy in alone]
            assert torch.equal(index, torch.cat(single))
        elif waiting and act in ("tell", "newest", "apart", "cancel"):
            place = -1 if act == "newest" else seed % len(waiting)
            if act == "cancel":
                three.cancel(waiting[place])
                for policy in alone:
                    policy.cancel(policy.outstanding[place])
                continue
            values = [[value(seed, 3 * k + j) for j in range(3)] for k in range(3)]
            if not all(row[0] for row in missing(three, waiting[place])):
                continue
            three.tell(
                waiting[place],
                reward=[v[0] for v in values],
                cost=[v[1:] for v in values],
            )
            for policy, v in zip(alone, values, strict=True):
                policy.tell(policy.outstanding[place], reward=[v[0]], cost=[v[1:]])
    together = believed(three)
    for k, policy in enumerate(alone):
        close([each[k : k + 1] for each in together], believed(policy), 1e-10)


@pytest.mark.parametrize("name", DETERMINED)
@FEW
@given(
    order=st.permutations([(k, part) for k in range(4) for part in (0, 1)]),
    seed=st.integers(0, 10**6),
    gone=st.integers(0, 7),
)
def test_tells_commute(name, order, seed, gone):
    """Rewards and costs of four choices, in any order, one of them never."""
    gp = belief(standardize=True)
    one, two = (MAKES[name](gp, thresholds=0.3) for _ in range(2))
    for policy in (one, two):
        for k in range(6):
            policy.tell(policy.ask(), reward=value(seed, k), cost=[0.1 * k, 0.2])
    pairs = {}
    for policy in (one, two):
        pairs[id(policy)] = [policy.ask(among=[3 * k + 1]) for k in range(4)]
    usual = [(k, part) for k in range(4) for part in (0, 1)]
    lost = usual[gone]
    for policy, way in ((one, usual), (two, order)):
        choices = pairs[id(policy)]
        for k, part in way:
            if (k, part) == lost:
                continue
            if part == 0:
                policy.tell(choices[k], reward=value(seed, 10 + k))
            else:
                policy.tell(choices[k], cost=[value(seed, 20 + k), value(seed, 30 + k)])
        policy.cancel(choices[lost[0]])
    close(believed(one), believed(two), 1e-9)


@FEW
@given(play=PLAY)
def test_the_posterior_is_that_of_what_was_told(play):
    """Against a dense solve in numpy of the rewards that were told, late or not."""
    policy, told = MAKES["RPOL"](belief(), thresholds=0.3), []
    points = WIDE.points(torch.arange(SIZE)).double().numpy()
    gaps = ((points[:, None] - points[None]) ** 2).sum(-1)
    prior = np.exp(-gaps / (2 * 0.4**2))
    for act, seed in play:
        if act == "observe":
            told.append((seed % SIZE, value(seed, 0)))
        elif act in ("tell", "newest", "apart") and policy.outstanding:
            waiting = policy.outstanding
            choice = waiting[-1 if act == "newest" else seed % len(waiting)]
            if missing(policy, choice)[0][0]:
                told.append((int(choice.index), value(seed, 0)))
        if act not in ("save", "refuse", "refit"):
            do(policy, act, seed)
    index = [k for k, _ in told]
    small = prior[np.ix_(index, index)] + NOISE * np.eye(len(told))
    cross = prior[:, index]
    mean = cross @ np.linalg.solve(small, np.array([y for _, y in told]))
    var = 1 - (cross * np.linalg.solve(small, cross.T).T).sum(1)
    reward = policy.posterior().reward
    np.testing.assert_allclose(reward.mean.numpy(), mean, atol=1e-8)
    np.testing.assert_allclose(reward.std.numpy() ** 2, var, atol=1e-8)
