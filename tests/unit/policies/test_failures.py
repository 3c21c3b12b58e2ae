"""Actions that cannot be measured, by failures=False: never asked for again."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from inside import failures_of, set_failures

import cbandit as cb
from cbandit.policies.balls import Balls

N = 8
X = torch.linspace(0, 1, N, dtype=torch.float64).unsqueeze(-1)
SET = cb.Finite(X)
GRID = cb.ProductGrid([torch.linspace(0, 1, 3).double()] * 2)
BOX = cb.Box([0.0, -1.0], [2.0, 1.0])
MIXED = cb.Space(c=cb.Category("a", "b"), x=cb.Float(0.0, 5.0))
STAR = cb.Star([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])


# LC-LUCB says so when it knows of no other
pytestmark = pytest.mark.filterwarnings("ignore:LC-LUCB plays the safe action")


def rbf(scale=0.3):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=torch.float64)
    return cb.GP(kernel, noise=0.01)


def mean_model(model, policy):
    from botorch.acquisition import PosteriorMean
    from botorch.acquisition.objective import ScalarizedPosteriorTransform

    weights = torch.tensor([1.0, -0.5], dtype=torch.float64)
    transform = ScalarizedPosteriorTransform(weights)
    return PosteriorMean(model, posterior_transform=transform)


GP, UCB = rbf(), {"explore": cb.UCB(2.0)}
BOTH = {"reward": GP, "costs": GP, "thresholds": 0.2}
DUAL = BOTH | UCB | {"step": 0.5, "cap": 5.0}
LINEAR = {"reward": cb.Linear(0.1), "costs": cb.Linear(0.1), "thresholds": 0.5}
TOLD = {"largest": 2.0}  # no reward is above it
COUNTS = cb.Counts(0.1, means=(0.0, 1.0))
SAFE = cb.Safe(index=0, reward=0.0, cost=0.0)
CLASS = cb.FiniteClass(torch.stack([X[:, 0] * k for k in (0.2, 0.6, 1.0)]), radius=4.0)

POLICIES = {
    "CKB": (cb.CKB, SET, DUAL),
    "CKB on a grid": (cb.CKB, GRID, DUAL),
    "CKB-TS": (cb.CKB, SET, DUAL | {"explore": cb.TS(1.0)}),
    "CKB-Rand": (cb.CKB, SET, DUAL | {"explore": cb.Rand(1.0)}),
    "CKB on a box": (cb.CKB, BOX, DUAL),
    "CONFIG on a box": (cb.baselines.CONFIG, BOX, BOTH | UCB),
    "CKB-TS on a box": (cb.CKB, BOX, DUAL | {"explore": cb.TS(1.0)}),
    "RPOL": (cb.RPOL, SET, BOTH | UCB),
    "RPOL, late": (cb.RPOL, SET, BOTH | UCB | {"feedback": cb.Delayed(3)}),
    "RPOL, window": (cb.RPOL, SET, BOTH | UCB | {"feedback": cb.Sliding(3)}),
    "RPOL, ahead": (cb.RPOL, SET, BOTH | UCB | {"pending": "hallucinate"}),
    "GPUCB": (cb.GPUCB, SET, {"reward": GP} | UCB),
    "GPTS": (cb.GPTS, SET, {"reward": GP, "explore": cb.TS(1.0)}),
    "EpochPenalty": (
        cb.EpochPenalty,
        SET,
        {"reward": GP, "costs": 1, "epoch": 2, "thresholds": 0.2} | UCB,
    ),
    "LCLUCB": (cb.LCLUCB, SET, LINEAR | TOLD | {"safe": SAFE}),
    "LCLUCB on a star": (
        cb.LCLUCB,
        STAR,
        LINEAR | TOLD | {"safe": cb.Safe(x=[0.0, 0.0])},
    ),
    "OPLB": (cb.OPLB, SET, LINEAR | TOLD | {"safe": SAFE}),
    "OPB": (
        cb.OPB,
        SET,
        {"reward": COUNTS, "costs": COUNTS, "safe": SAFE, "horizon": 99}
        | {"thresholds": 0.5}
        | TOLD,
    ),
    "OPB, GP": (cb.OPB, SET, BOTH | {"safe": SAFE}),
    "OPNLB": (
        cb.OPNLB,
        SET,
        {"reward": CLASS, "costs": CLASS, "safe": SAFE, "thresholds": 0.5},
    ),
    "CONFIG": (cb.baselines.CONFIG, SET, BOTH | UCB),
    "SafeOpt": (cb.baselines.SafeOpt, SET, BOTH | UCB | {"safe": [0, 1, 2]}),
    "StageOpt": (
        cb.baselines.StageOpt,
        SET,
        BOTH | UCB | {"safe": [0, 1, 2], "rounds": 2},
    ),
    "SGPUCB": (
        cb.baselines.SGPUCB,
        SET,
        BOTH | UCB | {"safe": [0, 1, 2], "rounds": 2},
    ),
    "ADMMBO": (cb.baselines.ADMMBO, SET, {"reward": GP, "costs": GP}),
    "ADMMBO on a box": (cb.baselines.ADMMBO, BOX, {"reward": GP, "costs": GP}),
    "BoTorch": (
        cb.baselines.BoTorchPolicy,
        SET,
        {"reward": GP, "costs": GP, "make_acquisition": mean_model},
    ),
    "BoTorch on a box": (
        cb.baselines.BoTorchPolicy,
        BOX,
        {"reward": GP, "costs": GP, "make_acquisition": mean_model},
    ),
    "OCO": (
        cb.baselines.BanditOCO,
        BOX,
        {"costs": 1, "radius": 0.1, "step": 0.1, "dual_step": 0.1},
    ),
    "Random": (cb.baselines.Random, SET, {"costs": 1}),
    "Random on a box": (cb.baselines.Random, BOX, {}),
    "BKB": (cb.baselines.BKB, SET, {"reward": GP} | UCB),
    "BKB with costs": (
        cb.baselines.BKB,
        SET,
        {"reward": GP, "costs": GP, "step": 0.1, "cap": 9.0} | UCB,
    ),
}
LEANING = ("LCLUCB", "OPLB", "OPB", "OPNLB")


def made(name, **own):
    kind, actions, arguments = POLICIES[name]
    if isinstance(kind, type) and issubclass(kind, cb.GPPolicy):
        own["failures"] = False
    return kind(actions, **arguments, **own)


def tell(policy, choice, where=None):
    value = choice.x.sum(-1) + 1
    told = {"reward": value} | ({"cost": value - 1.5} if policy.m else {})
    policy.tell(choice, **told, where=where)


def apart(policy, one, other):
    """How far two points are from each other, in the unit cube on a box."""
    if policy.actions.continuous:
        unit = policy.actions.unit
        return float((unit.of(one) - unit.of(other)).norm())
    return float((one - other).abs().max())


def must_differ(policy):
    return 1e-3 if policy.actions.continuous else 1e-9


def safe_point(policy, x):
    """Whether this is the action that a policy cannot do without."""
    leaning = policy._must_work() if policy._must_work else None
    return leaning is not None and bool((leaning[0][1] == x).all())


@pytest.mark.parametrize("name", POLICIES)
def test_what_has_failed_is_not_asked_for_again(name, tmp_path):
    policy, bad, rounds = made(name), [], 0
    for t in range(1, 9):
        choice = policy.ask()
        rounds = t
        for x in bad:
            assert apart(policy, choice.x, x) >= must_differ(policy), t
        if t % 2 and len(bad) < 3 and not safe_point(policy, choice.x):
            before = policy.multiplier.clone()
            policy.tell(choice.id, failed=True)
            bad.append(choice.x.clone())
            assert torch.equal(policy.multiplier, before)
            assert choice.id not in [each.id for each in policy.outstanding]
        else:
            tell(policy, choice)
        if t == 4:
            policy.save(tmp_path / "a.ckpt")
            policy = cb.load(tmp_path / "a.ckpt", trust=(mean_model,))
    assert rounds == 8
    assert bad or name in (*LEANING, "LCLUCB on a star", "OPB, GP")


@pytest.mark.parametrize("name", POLICIES)
def test_a_failure_moves_no_belief_and_no_multiplier(name):
    # as if it had been cancelled, but for what may be asked for
    failed, cancelled = made(name), made(name)
    for policy in (failed, cancelled):
        tell(policy, policy.ask())
        choice = policy.ask()
        if policy is failed:
            policy.tell(choice, failed=True)
        else:
            policy.cancel(choice)
    assert torch.equal(failed.multiplier, cancelled.multiplier)
    if failed.actions.finite and hasattr(failed, "posterior"):
        one, other = failed.posterior(), cancelled.posterior()
        assert torch.equal(one.reward.mean, other.reward.mean)
        assert torch.equal(one.reward.std, other.reward.std)


@pytest.mark.parametrize(
    "name", [n for n in POLICIES if n not in LEANING and "star" not in n]
)
def test_each_trial_has_failures_of_its_own(name):
    policy, bad = made(name, trials=2), []
    for t in range(1, 6):
        choice = policy.ask()
        x = choice.x
        for old in bad:
            assert apart(policy, x[0], old) >= must_differ(policy)
        if t in (1, 3) and not safe_point(policy, x[0]):
            policy.tell(choice, failed=True, where=[True, False])
            assert len(policy.outstanding) == 1
            tell(policy, choice, where=[False, True])
            bad.append(x[0].clone())
        else:
            tell(policy, choice)
        assert not policy.outstanding


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
@pytest.mark.parametrize("trials", [None, 2])
def test_every_engine_leaves_failures_out(engine, trials):
    asked = made("CKB on a grid", engine=engine, trials=trials)
    plain = made("CKB on a grid", engine="joint", trials=trials)
    for t in range(9):
        one, other = asked.ask(), plain.ask()
        assert torch.equal(one.index, other.index)
        for policy, choice in ((asked, one), (plain, other)):
            if t % 2:
                policy.tell(choice, failed=True)
            else:
                tell(policy, choice)
    failures = 4
    left = GRID.size - failures
    for _ in range(left):
        asked.tell(asked.ask(), failed=True)
    with pytest.raises(
        cb.CBanditError, match=r"every action of this round has failed.*: nothing"
    ):
        asked.ask()
    assert asked.t == 9 + left


def test_what_is_left_of_a_part_of_the_set():
    policy = made("RPOL")
    policy.tell(policy.ask(among=[3]), failed=True)
    assert int(policy.ask(among=[3, 5]).index) == 5
    with pytest.raises(cb.CBanditError, match="every action that among allows has"):
        policy.ask(among=[3])
    # and of a set of one round, by coordinates
    found = policy.ask(actions=cb.Finite(X[[3, 6]]))
    assert found.x.tolist() == X[6].tolist()
    with pytest.raises(cb.CBanditError, match="every action of this round has failed"):
        policy.ask(actions=cb.Finite(X[[3]]))
    policy.tell(found, failed=True)
    assert 6 not in [int(policy.ask().index) for _ in range(4)]
    # what is not of the set itself
    other = policy.ask(actions=cb.Finite([[0.123]]))
    policy.tell(other, failed=True)
    with pytest.raises(cb.CBanditError, match="every action of this round has failed"):
        policy.ask(actions=cb.Finite([[0.123]]))


def test_a_cancelled_choice_may_be_asked_for_again():
    policy = made("GPUCB")
    first = policy.ask()
    policy.cancel(first)
    assert torch.equal(policy.ask().index, first.index)


@pytest.mark.parametrize("name", [*LEANING, "OPB, GP", "LCLUCB on a star"])
def test_a_failed_safe_action_is_an_error(name):
    policy = made(name)
    where = {} if "star" in name else {"among": [0]}
    choice = policy.ask(**where)
    if safe_point(policy, choice.x):
        policy.tell(choice, failed=True)
        with pytest.raises(cb.CBanditError, match="safe action has failed"):
            policy.ask()
    else:
        assert "star" in name


def test_a_star_goes_on_along_other_segments():
    policy, bad = made("LCLUCB on a star"), set()
    for _ in range(3):
        choice = policy.ask()
        assert int(choice.index) not in bad
        if bool((choice.x != 0).any()):
            policy.tell(choice, failed=True)
            bad.add(int(choice.index))
        else:
            tell(policy, choice)
    assert bad


def test_rows_of_choices_fail_one_by_one():
    gp = cb.GP.default(MIXED)
    policy = cb.CKB(
        MIXED,
        reward=gp,
        costs=gp,
        explore=cb.UCB(1.0),
        step=1.0,
        cap=5.0,
        failures=False,
    )
    at = {"c": "a", "x": 2.0}
    policy.observe(params=[at], reward=[1.0], cost=[-1.0])
    choice = policy.ask()
    policy.tell(choice, failed=True)
    near = policy.ask()
    assert apart(policy, near.x, choice.x) >= 1e-3
    balls = Balls(policy.actions, failures_of(policy).points)
    x = choice.x.clone()
    assert bool(balls.holds(x.unsqueeze(0)))
    x[1] = 1 - x[1]  # the other category, at the same place
    assert not bool(balls.holds(x.unsqueeze(0)))


def test_nothing_left_on_a_box_is_an_error():
    tiny = cb.Space(c=cb.Category("a", "b"), x=cb.Float(0.0, 1.0))
    policy = cb.GPUCB(tiny, reward=cb.GP.default(tiny), failures=False)
    barred = [policy.ask() for _ in range(2)]
    for choice in barred:
        policy.tell(choice, failed=True)
    # as if all places of both rows had failed
    points = [[x / 1000, c] for x in range(1001) for c in (0.0, 1.0)]
    set_failures(policy, torch.tensor(points).double())
    with pytest.raises(cb.CBanditError, match="nothing is left"):
        policy.ask()


@pytest.mark.parametrize("name", ["RPOL", "CKB on a box"])
def test_what_has_failed_is_not_recommended(name):
    policy = made(name)
    for _ in range(4):
        tell(policy, policy.ask())
    best = policy.recommend()
    if policy.actions.finite:
        choice = policy.ask(among=[int(best.index)])
        policy.tell(choice, failed=True)
        assert not torch.equal(policy.recommend().index, best.index)
    else:
        choice = policy.ask()
        policy.tell(choice, failed=True)
        set_failures(policy, best.x.unsqueeze(0).double())
        assert apart(policy, policy.recommend().x, best.x) >= 1e-3


def test_failures_that_say_nothing():
    policy = made("RPOL", trials=2)
    choice = policy.ask()
    for wrong, words in (
        ({"failed": True, "reward": [1.0, 1.0]}, "failed=True or feedback, not both"),
        ({"failed": 1}, "failed must be True or False; got 1"),
        ({"failed": True, "where": [1, 0]}, "where must be bool"),
    ):
        with pytest.raises(cb.CBanditError, match=words):
            policy.tell(choice, **wrong)
    policy.tell(choice, failed=True, where=[True, False])
    with pytest.raises(cb.ChoiceError, match="told in full, or has failed, already"):
        policy.tell(choice, failed=True)
    with pytest.raises(cb.ChoiceError, match="told its reward already"):
        policy.tell(choice, reward=[1.0, 1.0], cost=[0.0, 0.0])
    tell(policy, choice, where=[False, True])
    with pytest.raises(cb.ChoiceError, match="is finished"):
        policy.tell(choice, failed=True)


class Broken:
    """A world in which every third arm cannot be measured."""

    trials, thresholds, actions = None, 0.2, SET

    def __init__(self, delays=None):
        self.delays = delays

    def round(self, t, generator):
        return cb.Round(delays=self.delays)

    def reward(self, x, t):
        return x[..., 0]

    def costs(self, x, t):
        return x - 0.5

    def observe(self, choice, generator):
        failed = choice.index % 3 == 0
        noise = 0.1 * generator.normal(2)
        reward, costs = self.reward(choice.x, 1), self.costs(choice.x, 1)
        return reward + noise[..., 0], costs + noise[..., 1:], failed

    def optimum(self, t):
        return 0.7

    stochastic_optimum = optimum


@pytest.mark.parametrize("delays", [None, (2, 1)])
@pytest.mark.parametrize("trials", [None, 2])
def test_simulations_tell_failures(delays, trials, tmp_path):
    policy = made("RPOL", trials=trials)
    run = cb.simulate(policy, Broken(delays), 12, progress=False)
    index, failed = run.index.reshape(-1, 12), run.failed.reshape(-1, 12)
    assert torch.equal(failed, index % 3 == 0)
    assert failed.any()
    for i in range(len(index)):
        gone = index[i][failed[i]].tolist()
        assert len(set(gone)) == len(gone)  # each was asked for once
    assert torch.equal(run.rewards.isnan(), run.failed)
    assert torch.equal(run.costs[..., 0].isnan(), run.failed)
    for name in ("regret", "hard_violation", "realised_regret", "realised_violation"):
        assert getattr(run, name).isfinite().all()
    run.save(tmp_path)
    assert torch.equal(cb.Run.load(tmp_path).failed, run.failed)
    assert run.frame()["failed"].sum() == int(failed.sum())
    whole = cb.simulate(made("GPUCB"), cb.problems.Table([1.0] * N, [[0.0] * N]), 2)
    assert whole.failed is None
