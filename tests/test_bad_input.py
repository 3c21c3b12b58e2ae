"""A bad input gets an error that names it, and leaves the policy as it was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.test_functions.synthetic import ConstrainedGramacy
from gpytorch import kernels as gpk
from inside import Settings

import cbandit as cb

F64 = torch.float64


def belief(**more) -> cb.GP:
    kernel = gpk.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=F64)
    return cb.GP(kernel, **({"noise": 1e-2} | more))


def line(n: int = 20) -> torch.Tensor:
    return torch.linspace(0, 1, n, dtype=F64).unsqueeze(-1)


def policy_of(trials=None, explore=None, m=2, **more):
    settings = {"step": 0.2, "cap": 3.0, "reward": belief(), "costs": [belief()] * m}
    return cb.CKB(
        cb.Finite(line()),
        trials=trials,
        explore=explore or cb.Rand(1.0),
        **(settings | more),
    )


def prepared(trials=None, **more):
    """A policy amid a run, with one choice outstanding and one half told."""
    policy = policy_of(trials, **more)
    rng = np.random.default_rng(1)
    lead = () if trials is None else (trials,)
    for _ in range(6):
        choice = policy.ask()
        policy.tell(
            choice,
            reward=rng.standard_normal(lead),
            cost=rng.standard_normal((*lead, 2)),
        )
    half = policy.ask()
    policy.tell(half, reward=np.zeros(lead))
    return policy, half, policy.ask()


def same_future(policy, twin) -> bool:
    """Whether both go on alike: choices, multipliers, beliefs, draws."""
    assert policy.t == twin.t
    assert [c.t for c in policy.outstanding] == [c.t for c in twin.outstanding]
    for _ in range(3):
        a, b = policy.ask(), twin.ask()
        lead = policy.batch_shape
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=np.full(lead, 0.3), cost=np.full((*lead, 2), 0.1))
        if not torch.equal(a.index, b.index):
            return False
    found, other = policy.posterior(), twin.posterior()
    return torch.equal(policy.multiplier, twin.multiplier) and all(
        torch.equal(x, y)
        for x, y in [
            (found.reward.mean, other.reward.mean),
            (found.reward.std, other.reward.std),
            (found.costs.mean, other.costs.mean),
            (found.costs.std, other.costs.std),
        ]
    )


NAN, INF = float("nan"), float("inf")

TELLS = [
    ({"reward": NAN}, ["reward", "finite", "nan"]),
    ({"reward": 0.0, "cost": [0.0, INF]}, ["cost", "finite", "inf"]),
    ({"reward": [0.0, 1.0]}, ["reward", "shape", "(2,)"]),
    ({"cost": 0.0}, ["cost", "shape", "(2,)", "()"]),
    ({"cost": [0.0, 0.0, 0.0]}, ["cost", "shape", "(3,)", "(2,)"]),
    ({"reward": 0.0, "cost": [[0.0, 0.0]]}, ["cost", "shape"]),
    ({"reward": "much"}, ["reward", "number"]),
    ({"reward": 1 + 1j}, ["reward", "real"]),
    ({"reward": [[1.0], [2.0, 3.0]]}, ["reward", "number"]),
    ({"reward": 0.0, "noise": -0.1}, ["noise", "above 0", "-0.1"]),
    ({"reward": 0.0, "noise": 0.0}, ["noise", "above 0"]),
    ({"reward": 0.0, "noise": NAN}, ["noise", "finite"]),
    ({"reward": 0.0, "noise": [0.1, 0.1]}, ["noise", "shape"]),
    ({"reward": 0.0, "where": [True, False]}, ["where", "shape"]),
    ({"reward": 0.0, "where": 1.0}, ["where", "bool"]),
    ({}, ["reward=", "cost="]),
]


@pytest.mark.parametrize(("told", "words"), TELLS)
def test_feedback_that_is_none(told, words):
    (policy, _, choice), (twin, _, _) = prepared(), prepared()
    with pytest.raises(cb.CBanditError) as error:
        policy.tell(choice, **told)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


TRIAL_TELLS = [
    ({"reward": 0.0}, ["reward", "(3,)", "()"]),
    ({"reward": [0.0, NAN, 0.0]}, ["reward", "nan"]),
    ({"cost": np.zeros((2, 3))}, ["cost", "(3, 2)", "(2, 3)"]),
    ({"reward": np.zeros(3), "noise": [1.0, 2.0]}, ["noise", "(3,)", "(2,)"]),
    ({"reward": np.zeros(3), "where": [1, 0, 1]}, ["where", "bool"]),
    ({"reward": [NAN, 0.0, 0.0], "where": [True, False, True]}, ["reward", "nan"]),
]


@pytest.mark.parametrize(("told", "words"), TRIAL_TELLS)
def test_feedback_of_trials_that_is_none(told, words):
    (policy, _, choice), (twin, _, _) = prepared(3), prepared(3)
    with pytest.raises(cb.CBanditError) as error:
        policy.tell(choice, **told)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


def test_what_has_not_come_may_be_anything():
    policy, _, choice = prepared(3)
    policy.tell(
        choice,
        reward=[NAN, 1.0, INF],
        cost=np.full((3, 2), [NAN, 0.0]),
        where=[False, False, False],
    )
    policy.tell(choice, reward=[NAN, 1.0, INF], where=[False, True, False])
    assert policy.posterior().reward.mean.isfinite().all()


@pytest.mark.parametrize("trials", [None, 3])
def test_what_came_in_no_trial_may_still_come_in_all(trials):
    lead = () if trials is None else (trials,)
    (policy, _, choice), (twin, _, other) = prepared(trials), prepared(trials)
    told = {"reward": np.ones(lead), "cost": np.ones((*lead, 2))}
    policy.tell(choice, **told, where=np.zeros(lead, dtype=bool))
    policy.tell(choice, **told)
    twin.tell(other, **told)
    assert same_future(policy, twin)


def test_choices_told_twice_foreign_unknown_or_cancelled():
    (policy, half, _), (twin, _, _) = prepared(), prepared()
    stranger = twin.outstanding[-1]
    finished = cb.Choice(1, half.index, half.x, half.infeasible, owner=half.owner)
    future = cb.Choice(99, half.index, half.x, half.infeasible, owner=half.owner)
    for bad, told, words in [
        (half, {"reward": 1.0}, ["round 7", "reward", "already"]),
        (half, {"reward": 1.0, "cost": [0.0, 0.0]}, ["reward", "already"]),
        (stranger, {"reward": 1.0}, ["another policy"]),
        (finished, {"reward": 1.0}, ["round 1", "finished"]),
        (future, {"reward": 1.0}, ["round 99", "unknown"]),
        ("x", {"reward": 1.0}, ["choice", "str"]),
        (None, {"reward": 1.0}, ["choice", "NoneType"]),
    ]:
        with pytest.raises(cb.ChoiceError) as error:
            policy.tell(bad, **told)
        assert all(word in str(error.value) for word in words), str(error.value)
        if "reward" in words and bad is half:
            continue
        with pytest.raises(cb.ChoiceError):
            policy.cancel(bad)
    assert same_future(policy, twin)


def test_a_trial_told_twice():
    (policy, _, choice), (twin, _, other) = prepared(2), prepared(2)
    for each, one in ((policy, choice), (twin, other)):
        each.tell(one, reward=[0.5, 0.0], where=[True, False])
    for where in ([True, False], None, [True, True]):
        with pytest.raises(cb.ChoiceError, match="already"):
            policy.tell(choice, reward=[0.1, 0.1], where=where)
    assert same_future(policy, twin)
    policy.tell(choice, reward=[0.1, 0.1], where=[False, True])


@pytest.mark.parametrize("kind", ["UCB", "TS", "Rand"])
def test_several_points_at_once(kind):
    """There is no q: several are outstanding, and only UCB counts their variance."""
    make = {"UCB": cb.UCB(1.0), "TS": cb.TS(1.0), "Rand": cb.Rand(1.0)}
    (policy, _, _), (twin, _, _) = (prepared(explore=make[kind]) for _ in range(2))
    with pytest.raises(TypeError, match="'q'"):
        policy.ask(q=2)
    assert same_future(policy, twin)
    if kind != "UCB":
        with pytest.raises(cb.CBanditError, match="pending='hallucinate' goes with"):
            prepared(explore=make[kind], pending="hallucinate")


ASKS = [
    ({"among": []}, ["among"]),
    ({"among": np.zeros(20, bool)}, ["among", "at least one"]),
    ({"among": np.zeros(19, bool)}, ["among", "20", "19"]),
    ({"among": [3, 20]}, ["among", "index", "0 .. 19", "20"]),
    ({"among": [-1]}, ["among", "index", "-1"]),
    ({"among": [0.5]}, ["among", "index", "whole"]),
    ({"among": np.ones((2, 20), bool)}, ["among", "shape", "(2, 20)"]),
    ({"among": [1], "actions": line()}, ["among", "actions"]),
    ({"actions": torch.zeros(3, 2)}, ["actions", "d = 1", "2"]),
    ({"actions": torch.zeros(0, 1)}, ["points", "(0, 1)"]),
    ({"actions": [[NAN]]}, ["points", "finite"]),
    ({"actions": torch.zeros(4, 3, 1)}, ["actions", "trials"]),
    ({"actions": cb.Box([0.0], [1.0])}, ["actions", "Box"]),
    ({"actions": cb.Finite(covariance=np.eye(3))}, ["covariance", "among"]),
    ({"observed_costs": np.zeros((2, 20))}, ["observed_costs", "SCGPUCB"]),
]


@pytest.mark.parametrize("kind", ["UCB", "TS", "Rand"])
@pytest.mark.parametrize(("asked", "words"), ASKS)
def test_rounds_that_cannot_be(asked, words, kind):
    make = {"UCB": cb.UCB(1.0), "TS": cb.TS(1.0), "Rand": cb.Rand(1.0)}
    (policy, _, _), (twin, _, _) = (prepared(explore=make[kind]) for _ in range(2))
    with pytest.raises(cb.CBanditError) as error:
        policy.ask(**asked)
    if kind != "TS" or "actions" not in asked:
        assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


def test_a_set_for_a_round_with_joint_draws():
    (policy, _, _), (twin, _, _) = (prepared(explore=cb.TS(1.0)) for _ in range(2))
    with pytest.raises(cb.CBanditError, match=r"cb\.UCB or cb\.Rand"):
        policy.ask(actions=line(4))
    assert same_future(policy, twin)


@pytest.mark.parametrize("kind", ["UCB", "Rand"])
def test_callables_that_fail_change_nothing(kind):
    def explore():
        return cb.UCB(beta) if kind == "UCB" else cb.Rand(beta)

    broken = {"beta": False, "tau": False}

    def beta(t, gain):
        return -1.0 if broken["beta"] else 1.0

    def tau(t):
        return [1.0, 2.0, 3.0] if broken["tau"] else 0.1

    (policy, _, _), (twin, _, _) = (
        prepared(explore=explore(), thresholds=tau) for _ in range(2)
    )
    for name, word in (("beta", "beta"), ("tau", "thresholds")):
        broken[name] = True
        with pytest.raises(cb.CBanditError, match=word):
            policy.ask()
        broken[name] = False
    assert same_future(policy, twin)


class Broken:
    """A callable of the round that fails while it is broken."""

    def __init__(self, value):
        self.value, self.broken = value, False

    def __call__(self, *round_and_gain):
        return NAN if self.broken else self.value


@pytest.mark.filterwarnings("ignore:Safe-LTS plays the safe action")
@pytest.mark.parametrize("kind", ["RPOL", "SGP-UCB", "Safe-LTS", "Safe-LTS among"])
def test_a_round_that_fails_late_draws_and_learns_nothing(kind):
    given = {"reward": belief(), "costs": belief(), "trials": 2}
    linear = cb.Linear(subgaussian=0.1)
    pair = []
    for _ in range(2):
        flaky = Broken(0.5)
        if kind == "RPOL":
            policy = cb.RPOL(
                cb.Finite(line()), explore=cb.UCB(1.0), thresholds=flaky, **given
            )
        elif kind == "SGP-UCB":
            policy = cb.baselines.SGPUCB(
                cb.Finite(line()),
                explore=cb.UCB(flaky),
                safe=list(range(15)),
                rounds=[1, 30],
                **given,
            )
        else:
            policy = cb.baselines.SafeLTS(
                cb.Finite(line()),
                beta=flaky,
                safe=cb.Safe(index=0),
                thresholds=5.0,
                **(given | {"reward": linear, "costs": linear}),
            )
        pair.append((policy, flaky))
    (policy, flaky), (twin, _) = pair
    for each in (policy, twin):
        for _ in range(2):
            each.tell(each.ask(), reward=[0.3, -1.0], cost=[1.7, 0.9])
    flaky.broken = not kind.endswith("among")
    for _ in range(3):
        with pytest.raises(cb.CBanditError):
            policy.ask(among=[1, 2] if kind.endswith("among") else None)
    flaky.broken = False
    for _ in range(4):
        assert torch.equal(policy.multiplier, twin.multiplier)
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.x, b.x)
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=[0.1, 0.4], cost=[0.6, 0.2])
    mean = [each.posterior().reward.mean for each in (policy, twin)]
    assert torch.equal(*mean)


def at_an_end(kind, beta, tau):
    """A policy in whose next round, the ninth, something ends or is drawn anew."""
    gp, more = belief(), {"explore": cb.UCB(beta), "trials": 2}
    one = {"reward": gp, "costs": gp, "thresholds": tau, **more}
    multipliers = {"step": 0.2, "cap": 3.0}
    points, epochs = cb.Finite(line()), {"reward": gp, "costs": 1, "epoch": 8, **more}
    if kind == "anytime":
        return cb.CKB(points, anytime=True, forget=True, **multipliers, **one)
    if kind == "restart":
        return cb.baselines.CKBRestart(points, restart=8, **multipliers, **one)
    if kind == "drift":
        drifting = cb.Sliding(5, drift=beta)
        one["explore"] = cb.Rand(1.0)
        return cb.CKB(points, feedback=drifting, **multipliers, **one)
    if kind == "BKB":
        return cb.baselines.BKB(points, reward=gp, oversampling=0.01, **more)
    if kind == "ADMMBO":
        del one["explore"]
        two = {"budgets": (2, 2), "cost_budgets": (2, 2)}
        return cb.baselines.ADMMBO(points, **two, **one)
    return cb.EpochPenalty(points, reuse=kind == "epochs", thresholds=tau, **epochs)


@pytest.mark.parametrize("broken", ["beta", "tau"])
@pytest.mark.parametrize(
    "kind", ["anytime", "restart", "drift", "BKB", "ADMMBO", "epochs", "fresh epochs"]
)
def test_an_end_that_fails_has_not_come(kind, broken):
    if (kind, broken) in [("BKB", "tau"), ("ADMMBO", "beta")]:
        pytest.skip("there is none")
    pair = []
    for _ in range(2):
        flaky = {"beta": Broken(0.5), "tau": Broken(0.1)}
        policy = at_an_end(kind, **flaky)
        rng = np.random.default_rng(3)
        for _ in range(7 if kind == "anytime" else 8):
            told = {"cost": rng.standard_normal(2)} if policy.m else {}
            policy.tell(policy.ask(), reward=rng.standard_normal(2), **told)
        pair.append((policy, flaky))
    (policy, flaky), (twin, _) = pair
    before = policy.posterior()
    flaky[broken].broken = True
    for _ in range(2):
        with pytest.raises(cb.CBanditError):
            policy.ask()
    flaky[broken].broken = False
    after = policy.posterior()
    assert torch.equal(before.reward.mean, after.reward.mean)
    assert torch.equal(before.reward.std, after.reward.std)
    for _ in range(3):
        assert torch.equal(policy.multiplier, twin.multiplier)
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.x, b.x)
        for each, choice in ((policy, a), (twin, b)):
            told = {"cost": [0.6, 0.2]} if policy.m else {}
            each.tell(choice, reward=[0.1, 0.4], **told)
        mean = [each.posterior().reward.mean for each in (policy, twin)]
        assert torch.equal(*mean)


class Psi:
    """A penalty that is NaN while it is broken."""

    broken = False

    def __call__(self, z):
        return z.clamp_min(0).exp() * (NAN if self.broken else 1.0)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_penalty_that_fails_loses_and_doubles_nothing(reuse, apart):
    pair = []
    for _ in range(2):
        psi = Psi()
        policy = cb.EpochPenalty(
            cb.Finite(line()),
            reward=belief(),
            costs=1,
            explore=cb.UCB(1.0),
            epoch=4,
            psi=psi,
            reuse=reuse,
        )
        pair.append((policy, psi))
    (policy, flaky), (twin, _) = pair
    for t in range(10):
        assert torch.equal(policy.multiplier, twin.multiplier)
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.index, b.index)
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=0.1 * t)
            if apart:
                each.posterior()
        before = policy.posterior().reward.mean if apart else None
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, cost=0.3 * (-1) ** t)
        flaky.broken = True
        for call in (policy.posterior, policy.ask, lambda: policy.multiplier):
            with pytest.raises(cb.CBanditError, match="psi must be at least 1"):
                call()
        flaky.broken = False
        if t == 5:
            for each in (policy, twin):
                each.observe(index=[3, 4], reward=[0.1, 0.2], cost=[[0.1], [0.5]])
        after = policy.posterior().reward.mean
        assert torch.equal(after, twin.posterior().reward.mean)
        assert before is None or not torch.equal(before, after)
    flaky.broken = True
    with pytest.raises(cb.CBanditError, match="psi must be at least 1"):
        policy.observe(index=[3, 4], reward=[0.1, 0.2], cost=[[0.1], [0.5]])
    flaky.broken = False
    assert torch.equal(policy.posterior().reward.mean, after)


def test_a_draw_of_ones_own_that_fails_draws_nothing():
    broken = [False]

    def draw(generator, shape):
        values = torch.rand(shape, generator=generator, dtype=F64)
        return values.fill_(NAN) if broken[0] else values + generator.normal(3)

    (policy, _, _), (twin, _, _) = (
        prepared(explore=cb.Rand(1.0, draw=draw)) for _ in range(2)
    )
    broken[0] = True
    for _ in range(400):  # past the end of a block of draws
        with pytest.raises(cb.CBanditError, match="draw must be finite"):
            policy.ask()
    broken[0] = False
    assert same_future(policy, twin)


@pytest.mark.parametrize("trials", [None, 2])
def test_an_acquisition_function_that_fails_draws_nothing(trials):
    from botorch.acquisition import qUpperConfidenceBound

    broken = [False]

    def acquisition(model, policy):
        if broken[0]:
            raise RuntimeError("no")
        return qUpperConfidenceBound(model.models[0], beta=3.0)

    pair = [
        cb.baselines.BoTorchPolicy(
            cb.Finite(line()),
            reward=belief(),
            make_acquisition=acquisition,
            trials=trials,
        )
        for _ in range(2)
    ]
    lead = () if trials is None else (trials,)
    for each in pair:
        each.tell(each.ask(), reward=np.full(lead, 0.3))
    broken[0] = True
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no"):
            pair[0].ask()
    broken[0] = False
    state = [each._streams.state() for each in pair]
    assert torch.equal(state[0]["blocks"]["uniform"], state[1]["blocks"]["uniform"])
    for _ in range(3):
        a, b = (each.ask() for each in pair)
        assert torch.equal(a.index, b.index)
        for each, choice in zip(pair, (a, b), strict=True):
            each.tell(choice, reward=np.full(lead, 0.3))


def test_a_round_on_a_box_of_a_policy_of_vectors():
    linear = cb.Linear(subgaussian=0.1)
    policy = cb.LCLUCB(
        cb.Finite(line()),
        reward=linear,
        costs=linear,
        safe=cb.Safe(index=0, reward=0.0, cost=0.0),
        thresholds=0.5,
    )
    with pytest.raises(cb.CBanditError, match=r"actions of this round must be .*Box"):
        policy.ask(actions=cb.Box([0.0], [1.0]))


def default_on(actions):
    gp = cb.GP.default(actions)
    return cb.GPUCB(actions, reward=gp, explore=cb.UCB(1.0), seed=3)


@pytest.mark.parametrize("kind", ["Box", "rows"])
def test_a_round_outside_of_what_the_policy_knows(kind):
    far, words = [[5.0, 7.0]], "must lie between lower"
    actions = cb.Box([0.0, 0.0], [1.0, 1.0])
    if kind == "rows":
        actions = cb.Box([0.0], [1.0], choices=[[1.0], [2.0]])
        far, words = [[0.5, 1.5]], "must end with one of the 2 rows"
    policy, twin = default_on(actions), default_on(actions)
    with pytest.raises(cb.CBanditError, match=f"actions of this round {words}"):
        policy.ask(actions=far)
    assert policy.t == 0
    near = [[0.25, 1.0], [0.5, 1.0]]  # flat, but within
    for each in (policy, twin):
        choice = each.ask(actions=near)
        assert choice.x.tolist() in near
        each.tell(choice, reward=1.0)
    for _ in range(3):
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.x, b.x)
        for each, choice in ((policy, a), (twin, b)):
            each.tell(choice, reward=0.5)


def test_contexts_may_lie_where_no_action_of_the_set_did():
    policy = default_on(cb.Finite([[0.0, 0.0], [1.0, 1.0]]))
    choice = policy.ask(actions=[[1.2, 0.5]])
    policy.tell(choice, reward=1.0)
    assert float(policy.posterior([[1.2, 0.5]]).reward.mean) > 0.4


class Own(cb.Policy):
    """A rule that comes to what it is given, drawing before that."""

    name = "Own"

    def __init__(self, actions, given, **common):
        super().__init__(actions, 1, **common)
        self.given = given

    def _decide(self, t, asked, mask, observed_costs):
        self.drawn = self._streams.uniform(1)
        return self.given

    def _absorb(self, choice, rewards, costs):
        pass


def drawn(index, probability):
    return cb.Decision([1, 2], distribution=cb.Distribution(index, probability))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"must return a cb.Decision; got None"),
        (torch.tensor([1, 2]), r"must return a cb.Decision; got tensor"),
        (cb.Decision(None), r"must say index, one number a trial; got None"),
        (cb.Decision(1), r"index must lead with the trials, of shape \(2,\); got \(\)"),
        (cb.Decision([[1], [2]]), r"index must .*\(2,\); got \(2, 1\)"),
        (cb.Decision([1, 20]), r"index must lie in 0 .. 19; got 1 .. 20"),
        (cb.Decision([-1, 2]), r"index must lie in 0 .. 19; got -1 .. 2"),
        (cb.Decision([1.0, 2.0]), r"index must hold whole numbers"),
        (cb.Decision("ab"), r"index must be a number, array or tensor.*got str"),
        (cb.Decision([1, 2], infeasible=True), r"infeasible must .*\(2,\); got \(\)"),
        (cb.Decision([1, 2], x=[[0.5]]), r"x must .*\(2, 1\); got \(1, 1\)"),
        (cb.Decision([1, 2], x=[[0.5], [NAN]]), r"x must be finite; got nan"),
        (
            cb.Decision([1, 2], distribution=3),
            r"distribution must be a cb.Distribution",
        ),
        (drawn([[0, 1]], [[0.5, 0.5]]), r"distribution.index must .*\(2, 2\)"),
        (drawn([[0], [20]], [[1.0], [1.0]]), r"distribution.index must lie in 0 .. 19"),
        (drawn([[0], [2]], [1.0, 1.0]), r"distribution.probability must .*\(2, 1\)"),
    ],
)
@pytest.mark.parametrize("kind", ["Finite", "ProductGrid"])
def test_a_rule_of_ones_own_that_comes_to_what_cannot_be(kind, given, words):
    actions = cb.Finite(line()) if kind == "Finite" else cb.ProductGrid([line()[:, 0]])
    policy = Own(actions, given, trials=2)
    with pytest.raises(cb.CBanditError, match=rf"^Own\._decide:? {words}"):
        policy.ask()
    assert policy.t == 0
    assert "drawn" not in vars(policy)
    policy.given = drawn([[0, 1], [2, 3]], np.full((2, 2), 0.5))
    choice = policy.ask()
    assert torch.equal(policy.drawn, Own(actions, None, trials=2)._streams.uniform(1))
    assert choice.index.tolist() == [1, 2]
    assert torch.equal(choice.x, line()[[1, 2]])
    policy.given = cb.Decision(np.array([3, 4]))
    with pytest.raises(cb.CBanditError, match=r"index must be of what among allows"):
        policy.ask(among=[3, 5])
    assert policy.ask(among=[3, 4]).index.tolist() == [3, 4]


def test_a_rule_of_ones_own_on_a_box():
    policy = Own(cb.Box([0.0], [1.0]), cb.Decision([1]))
    for given, words in [
        (cb.Decision([1]), r"must say x, one point a trial"),
        (cb.Decision(None, x=[[1.5]]), r"x must lie between lower"),
    ]:
        policy.given = given
        with pytest.raises(cb.CBanditError, match=rf"^Own\._decide:? {words}"):
            policy.ask()
    policy.given = cb.Decision(None, x=[[0.5]])
    assert policy.ask().x.tolist() == [0.5]


OBSERVES = [
    ({"index": [20], "reward": [1.0]}, ["index", "0 .. 19"]),
    ({"index": [-1], "reward": [1.0]}, ["index", "-1"]),
    ({"index": [0.5], "reward": [1.0]}, ["index", "whole"]),
    ({"x": [[0.5001]], "reward": [1.0]}, ["x", "point of the set"]),
    ({"x": [[0.0, 0.0]], "reward": [1.0]}, ["x"]),
    ({"x": [[NAN]], "reward": [1.0]}, ["x", "finite"]),
    ({"index": [1], "reward": [NAN]}, ["reward", "finite"]),
    ({"index": [1, 2], "reward": [1.0]}, ["reward", "2 rows"]),
    ({"index": [1, 2], "cost": [[1.0, 2.0]]}, ["cost", "2 rows"]),
    ({"index": [1, 2], "cost": [1.0, 2.0]}, ["cost"]),
    ({"index": [1], "x": [[0.0]], "reward": [1.0]}, ["index=", "x="]),
    ({"reward": [1.0]}, ["index=", "x="]),
    ({"index": [1]}, ["reward=", "cost="]),
]


@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize(("data", "words"), OBSERVES)
def test_data_from_before_that_is_none(data, words, rows):
    (policy, _, _), (twin, _, _) = prepared(), prepared()
    data = {k: list(v) * 1 for k, v in data.items()}
    if rows > 1:
        # the fault is at the end of many good rows
        good = {"index": [3], "x": [[0.0]], "reward": [0.0], "cost": [[0.0, 0.0]]}
        data = (
            {k: good[k] * rows + v for k, v in data.items()}
            if words != ["cost"]
            else data
        )
    words = [w.replace("2 rows", "rows") for w in words]
    with pytest.raises(cb.CBanditError) as error:
        policy.observe(**data)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert same_future(policy, twin)


MISSHAPEN = [
    ({"index": [[1, 2], [3, 4]], "reward": [1.0, 2.0]}, "index", "(2, 2)", "(3, n)"),
    ({"index": [1, 2], "reward": [1.0] * 3}, "reward", "(3,)", "(2,) or (3, 2)"),
    ({"index": [1, 2], "reward": 1.0}, "reward", "()", "(2,) or (3, 2)"),
    ({"index": [1, 2], "cost": [1.0, 2.0]}, "cost", "(2,)", "(2, 2) or (3, 2, 2)"),
    ({"index": [1], "cost": [[1.0] * 3]}, "cost", "(1, 3)", "(1, 2) or (3, 1, 2)"),
    ({"x": [[0.0, 0.0]], "reward": [1.0]}, "x", "(1, 2)", "(n, 1) or (3, n, 1)"),
    ({"x": [0.0], "reward": [1.0]}, "x", "(1,)", "(n, 1) or (3, n, 1)"),
    ({"index": 1, "reward": [1.0]}, "index", "()", "(n,) or (3, n)"),
]


@pytest.mark.parametrize(("data", "name", "came", "expected"), MISSHAPEN)
def test_shapes_of_data_from_before(data, name, came, expected):
    (policy, _, _), (twin, _, _) = prepared(3), prepared(3)
    with pytest.raises(cb.CBanditError) as error:
        policy.observe(**data)
    said = str(error.value)
    assert said.startswith(f"{name} must have")
    assert expected in said
    assert said.endswith(f"got {came}")
    assert same_future(policy, twin)


@pytest.mark.parametrize("kind", ["arms", "linear"])
def test_shapes_of_data_from_before_of_other_beliefs(kind):
    safe = cb.Safe(index=0, reward=0.0, cost=0.0)
    if kind == "arms":
        policy = cb.OPB(
            cb.Finite(line()),
            reward=cb.Counts(1.0),
            costs=[cb.Counts(1.0)] * 2,
            safe=safe,
            thresholds=0.5,
            horizon=9,
        )
    else:
        policy = cb.LCLUCB(
            cb.Finite(line()),
            reward=cb.Linear(1.0),
            costs=[cb.Linear(1.0)] * 2,
            safe=safe,
            thresholds=0.5,
        )
    before = policy.posterior().reward.mean
    for data, name, came, expected in MISSHAPEN:
        with pytest.raises(cb.CBanditError) as error:
            policy.observe(**data)
        said = str(error.value)
        assert said.startswith(f"{name} must have")
        assert expected.partition(" or")[0].replace("3, n", "n,") in said
        assert said.endswith(f"got {came}")
    assert torch.equal(policy.posterior().reward.mean, before)


def test_no_data_from_before_is_no_error():
    (policy, _, _), (twin, _, _) = prepared(), prepared()
    policy.observe(index=[], reward=[])
    assert same_future(policy, twin)


def test_points_of_another_width_have_no_posterior():
    policy, _, _ = prepared()
    with pytest.raises(cb.CBanditError, match=r"x must have .*\(n, 1\); got \(3, 2\)"):
        policy.posterior(np.zeros((3, 2)))


def test_kernels_for_other_coordinates():
    wide, plane = gpk.RBFKernel(ard_num_dims=3), torch.rand(9, 2, dtype=F64)
    axis = torch.linspace(0, 1, 5, dtype=F64)
    apart = gpk.RBFKernel(active_dims=[0]) * gpk.RBFKernel(active_dims=[2])
    for kernel, words in [
        (wide, ["ard_num_dims = 3", "d = 2"]),
        (gpk.ScaleKernel(wide), ["ard_num_dims = 3", "d = 2"]),
        (gpk.PeriodicKernel(ard_num_dims=3), ["PeriodicKernel", "3", "d = 2"]),
        (gpk.RBFKernel(active_dims=[0], ard_num_dims=2), ["= 2", "d = 1"]),
        (apart, ["active_dims = [2]", "d = 2"]),
        (gpk.RBFKernel(batch_shape=torch.Size([5])), ["batch_shape", "(5,)"]),
    ]:
        for actions in (
            cb.Finite(plane),
            cb.ProductGrid([axis, axis]),
            cb.Box([0.0, 0.0], [1.0, 1.0]),
        ):
            with pytest.raises(cb.CBanditError) as error:
                cb.CKB(
                    actions,
                    reward=belief(),
                    costs=[belief(), cb.GP(kernel, noise=1e-2)],
                    explore=cb.UCB(1.0),
                    step=0.1,
                    cap=1.0,
                )
            said = str(error.value)
            assert said.startswith("costs[1]: its ")
            assert all(word in said for word in words), said


def test_a_default_belief_is_for_its_own_set():
    made, wide = cb.GP.default(cb.Finite(line())), cb.Finite(10 * line())
    with pytest.raises(cb.CBanditError, match=r"reward: .*default.* \[10\.0\]"):
        cb.GPUCB(wide, reward=made, explore=cb.UCB(1.0))
    flat = cb.GP.default(cb.Box([0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(cb.CBanditError, match=r"reward: its RBFKernel"):
        cb.GPUCB(cb.Finite(line()), reward=flat, explore=cb.UCB(1.0))
    with pytest.raises(cb.CBanditError, match=r"reward: .*default"):
        cb.GPUCB(cb.Box([0.0, 0.0], [1.0, 1.0]), reward=made, explore=cb.UCB(1.0))
    # within the box that it was made for, and after rounding, it is fine
    for actions in (cb.Finite(line()[3:9]), cb.Box([0.2], [0.5]), cb.Finite(line())):
        for dtype in ("float32", "float64"):
            policy = cb.GPUCB(actions, reward=made, explore=cb.UCB(1.0), dtype=dtype)
            policy.tell(policy.ask(), reward=1.0)


MULTIPLIERS = {
    "projected": lambda phi, g, more=0.5: cb.multipliers.projected(phi, g, more),
    "queue": lambda phi, g, more=0.5: cb.multipliers.queue(phi, g, more),
    "rectified": lambda phi, g, more=0.5: cb.multipliers.rectified(phi, g, more),
}


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_multipliers_take_lists_and_refuse_other_costs(name):
    move = MULTIPLIERS[name]
    phi, g = torch.tensor([0.2, 0.4], dtype=F64), torch.tensor([1.0, -1.0], dtype=F64)
    wanted = move(phi, g)
    assert torch.equal(move([0.2, 0.4], [1.0, -1.0]), wanted)
    assert torch.equal(move(np.array([0.2, 0.4]), g), wanted)
    assert torch.equal(move(phi, g.expand(3, 2)), wanted.expand(3, 2))
    assert torch.equal(move(phi, g, [0.5, 0.5]), wanted)
    for bad, came in [(torch.zeros(3), "(3,)"), ([1.0], "(1,)"), (1.0, "()")]:
        with pytest.raises(cb.CBanditError) as error:
            move(phi, bad)
        assert "(*b, m)" in str(error.value)
        assert "(2,)" in str(error.value)
        assert str(error.value).endswith(f"got {came}")
    with pytest.raises(cb.CBanditError, match=r"\(2,\); got \(3,\)"):
        move(phi, g, torch.zeros(3))
    with pytest.raises(cb.CBanditError, match="must be a number, array or tensor"):
        move("much", g)


@pytest.mark.parametrize("bad", [-1.0, NAN, -INF, INF, torch.tensor([-1.0, 1.0])])
def test_multipliers_move_by_numbers_of_the_right_sign(bad):
    phi, g, move = torch.ones(2), torch.ones(2), cb.multipliers
    for name, call in [
        ("step", lambda: move.projected(phi, g, bad)),
        ("slack", lambda: move.projected(phi, g, 1.0, bad)),
        ("cap", lambda: move.projected(phi, g, 1.0, cap=bad)),
        ("multiplier", lambda: move.projected(bad * phi, g, 1.0)),
        ("slack", lambda: move.queue(phi, g, bad)),
        ("length", lambda: move.queue(bad * phi, g)),
        ("floor", lambda: move.rectified(phi, g, bad)),
        ("multiplier", lambda: move.rectified(bad * phi, g, 1.0)),
    ]:
        if name == "cap" and isinstance(bad, float) and bad == INF:
            assert torch.equal(call(), phi + g)  # there is none
            continue
        with pytest.raises(cb.CBanditError, match=f"^{name} must be .*at least 0"):
            call()
    for call in (
        lambda: move.projected(phi, NAN * g, 1.0),
        lambda: move.queue(phi, NAN * g),
    ):
        with pytest.raises(cb.CBanditError, match=r"^g must be finite"):
            call()
    with pytest.raises(cb.CBanditError, match=r"^cost must be finite"):
        move.rectified(phi, INF * g, 1.0)


SETTINGS = [
    ({"step": -1.0}, ["step", "above 0"]),
    ({"step": 0}, ["step", "above 0"]),
    ({"slack": 0.5, "slater": 0.3}, ["slack", "0.5", "slater", "0.3"]),
    ({"cap": 0.0}, ["cap", "above 0"]),
    ({"cap": [1.0, 2.0, 3.0]}, ["cap", "shape"]),
    ({"slack": -0.1}, ["slack", "negative"]),
    ({"clip": 1.0}, ["clip", "(B, G)"]),
    ({"clip": (0.0, 1.0)}, ["clip B", "above 0"]),
    ({"clip": (1.0, NAN)}, ["clip G", "finite"]),
    ({"horizon": 0}, ["horizon", "positive"]),
    ({"dual": "other"}, ["dual", "'other'"]),
    ({"forget": True}, ["forget", "anytime"]),
    ({"step": lambda t: 1.0}, ["step", "queue"]),
    ({"dual": "queue"}, ["cap", "dual='projected'", "3.0"]),
    ({"thresholds": NAN}, ["thresholds", "finite"]),
    ({"thresholds": [1.0, 2.0, 3.0]}, ["thresholds", "shape"]),
    ({"trials": 0}, ["trials"]),
    ({"seed": 1.5}, ["seed", "int"]),
    ({"horizon": True}, ["horizon", "True"]),
    ({"dtype": torch.float16}, ["dtype", "float16"]),
    ({"dtype": "half"}, ["dtype", "'half'", "'float32'"]),
    ({"dtype": 32}, ["dtype", "32"]),
    ({"device": "gpu"}, ["device", "'gpu'", "'cpu'", "'cuda'"]),
    ({"device": "meta"}, ["device", "'meta'"]),
    ({"device": object()}, ["device", "object"]),
    ({"thresholds": None}, ["thresholds", "NoneType"]),
    ({"engine": "fast"}, ["engine", "'fast'"]),
    ({"engine": "product"}, ["engine='product'", "ProductGrid"]),
    ({"pending": "guess"}, ["pending", "'guess'"]),
    ({"pending": "hallucinate"}, ["hallucinate", "UCB"]),
    ({"explore": "UCB"}, ["explore", "str"]),
    ({"explore": cb.UCB}, ["explore", "the class UCB", "UCB(...)"]),
    ({"reward": gpk.RBFKernel()}, ["reward", "RBFKernel"]),
    ({"costs": gpk.RBFKernel()}, ["costs", "RBFKernel"]),
    ({"costs": {"a": 1}}, ["costs", "dict"]),
    ({"costs": cb.GP}, ["costs", "the class GP"]),
]


@pytest.mark.parametrize(("settings", "words"), SETTINGS)
def test_settings_that_cannot_be(settings, words):
    with pytest.raises(cb.CBanditError) as error:
        policy_of(**settings)
    assert all(word in str(error.value) for word in words), str(error.value)


WIDE = np.array([0.2, 0.7])


@pytest.mark.parametrize("trials", [2, 3])
def test_a_row_of_m_is_one_a_cost_however_many_trials(trials):
    each = policy_of(trials, thresholds=WIDE)._limits(1)
    assert each.tolist() == [WIDE.tolist()] * trials
    again = policy_of(trials, thresholds=lambda t: WIDE)._limits(1)
    assert torch.equal(again, each)
    column = np.linspace(0.1, 0.9, trials)[:, None]
    policy = policy_of(trials, thresholds=column)
    assert policy._limits(1).tolist() == np.repeat(column, 2, 1).tolist()
    explore = cb.UCB(1.0, WIDE).widths.bind((trials,), 2, torch.device("cpu"))
    assert explore.fixed.tolist() == [[1.0, *WIDE]] * trials
    safe = cb.Safe(index=0, reward=0.0, cost=-WIDE)
    arms = cb.OPB(
        cb.Finite(line()),
        reward=cb.Counts(1.0),
        costs=[cb.Counts(1.0)] * 2,
        safe=safe,
        horizon=9,
        trials=trials,
    )
    assert arms._safe.cost.tolist() == [(-WIDE).tolist()] * trials
    # the problem reads them likewise: its account is of the policy's limits
    table = cb.problems.Table(
        np.zeros(20), np.zeros((2, 20)), thresholds=WIDE, trials=trials
    )
    assert torch.equal(table.thresholds, each)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_numbers_are_one_a_trial_however_many_costs(m):
    wanted = np.repeat(WIDE[:, None], m, 1).tolist()
    for name, read in (
        ("step", lambda p: p._step(1)),
        ("cap", lambda p: p._cap),
        ("slack", lambda p: p._slack(1)),
    ):
        policy = policy_of(2, m=m, **{name: WIDE})
        assert read(policy).tolist() == wanted
        policy = policy_of(2, m=m, **{name: np.repeat(WIDE[:, None], m, 1)})
        assert read(policy).tolist() == wanted
    policy = policy_of(2, m=m, clip=(WIDE, WIDE))
    assert policy._clip_at[:, 1:].tolist() == wanted
    # a width of reward and costs alike
    for beta in (WIDE, cb.Constant(WIDE), cb.RKHS(WIDE, WIDE, delta=0.5)):
        widths = cb.UCB(beta).widths.bind((2,), m, torch.device("cpu"))
        gain = torch.zeros(2, 1 + m, dtype=F64)
        found = widths(1, gain, lambda: gain)
        assert torch.equal(found, found[:, :1].expand(-1, 1 + m))
        assert found[0, 0] != found[1, 0]


def test_a_noise_constant_of_each_trial_scales_each_trials_targets():
    explore = cb.UCB(cb.RKHS(1.0, WIDE))
    policy = cb.EpochPenalty(
        cb.Finite(line()),
        reward=belief(),
        costs=2,
        explore=explore,
        epoch=4,
        psi="linear",
        rate=0.1,
        trials=2,
    )
    assert policy._noises.tolist() == [[0.2, 0.2], [0.7, 0.7]]


LATER = [
    ({"step": lambda t: 0.0, "dual": "queue", "cap": None}, ["step", "above 0"]),
    ({"thresholds": lambda t: [1.0, 2.0, 3.0]}, ["thresholds", "(3,)"]),
    ({"thresholds": lambda t: None}, ["thresholds", "NoneType"]),
    ({"thresholds": lambda t: "much"}, ["thresholds", "str"]),
    ({"explore": cb.UCB(lambda t, gain: None)}, ["beta", "NoneType"]),
]


@pytest.mark.parametrize(("settings", "words"), LATER)
def test_callables_that_give_what_cannot_be(settings, words):
    policy = policy_of(**settings)
    with pytest.raises(cb.CBanditError) as error:
        policy.ask()
    assert all(word in str(error.value) for word in words), str(error.value)
    assert policy.t == 0


def test_arguments_that_no_policy_takes():
    points, counts = cb.Finite(line()), cb.Counts(1.0)
    safe = cb.Safe(index=0, reward=0.0, cost=-1.0)
    with pytest.raises(TypeError, match=r"CKB takes no .*'trails'.*'trials'"):
        policy_of(trails=3)
    with pytest.raises(TypeError, match=r"GPUCB takes no argument 'colour'$"):
        cb.GPUCB(points, reward=belief(), explore=cb.UCB(1.0), colour=1)
    with pytest.raises(TypeError, match=r"CKBRestart .*'slak'.*'slack'"):
        cb.baselines.CKBRestart(
            points,
            reward=belief(),
            costs=belief(),
            explore=cb.UCB(1.0),
            restart=5,
            step=0.1,
            cap=1.0,
            slak=0.1,
        )
    with pytest.raises(TypeError, match=r"OPB takes no .*'sede'.*'seed'"):
        cb.OPB(points, reward=counts, costs=counts, safe=safe, horizon=9, sede=1)


def test_numbers_of_numpy_and_names_of_dtypes():
    policy = policy_of(
        np.int64(2), horizon=np.int32(5), seed=np.uint8(3), dtype="float32"
    )
    assert policy.batch_shape == (2,)
    assert policy.horizon == 5
    assert policy.dtype == torch.float32
    assert policy.posterior().reward.mean.dtype == torch.float32
    assert cb.Delayed(np.int64(4)).window == 4
    assert belief(refit_every=np.int64(4)).refit_every == 4


def test_arguments_are_missed_by_the_class_that_was_called():
    points, gp, one = cb.Finite(line()), belief(), cb.UCB(1.0)
    safe = cb.Safe(index=0, reward=0.0, cost=-1.0)
    linear, both = cb.Linear(1.0), {"reward": gp, "costs": gp, "explore": one}
    baselines = cb.baselines
    for make, words in [
        (lambda: baselines.SafeOpt(points, **both), r"^SafeOpt: .*'safe'"),
        (lambda: baselines.CONFIG(points, reward=gp), r"^CONFIG: .*'costs'"),
        (lambda: baselines.CKBRestart(points, restart=3), r"^CKBRestart: .*'reward'"),
        (lambda: baselines.CONFIG(points, gp, gp), r"^CONFIG: too many positional"),
        (lambda: cb.GPUCB(points, **both), r"^GPUCB takes no argument 'costs'"),
        (lambda: baselines.BKB(points, **both), r"^BKB takes no argument 'costs'"),
        (lambda: baselines.ADMMBO(points, **both), r"^ADMMBO takes no .*'explore'"),
        (lambda: cb.RPOL(points, m=3, **both), r"^RPOL takes no argument 'm'"),
        (
            lambda: baselines.SafeLTS(
                points, reward=linear, costs=linear, safe=safe, largest=1.0
            ),
            r"^SafeLTS takes no argument 'largest'",
        ),
        (
            lambda: cb.OPNLB(points, reward=gp, costs=gp, m=2),
            r"^OPNLB takes no argument 'm'",
        ),
    ]:
        with pytest.raises(TypeError, match=words):
            make()


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, None, "3", np.int64(-2)])
def test_seeds_that_are_none(seed):
    known = r"seed must be an int from 0 to 2\*\*64 - 1; got "
    for make in (
        lambda: policy_of(seed=seed),
        lambda: cb.problems.zhou_synthetic(seed=seed),
        lambda: cb.problems.guo_classical(seed=seed),
    ):
        with pytest.raises(cb.CBanditError, match=known):
            make()
    if seed is not None:
        with pytest.raises(cb.CBanditError, match=known):
            Settings.of("zhou-synthetic", seed=seed)


@pytest.mark.parametrize("seed", [0, 2**64 - 1, np.uint64(2**64 - 1)])
def test_all_seeds_that_torch_takes(seed):
    policy = policy_of(seed=seed, explore=cb.TS())
    assert policy.ask().index.dim() == 0
    assert type(policy.seed) is int
    assert Settings.of("zhou-synthetic", seed=seed).seed == seed


def test_thompson_sampling_needs_no_width():
    policies = [
        cb.GPTS(cb.Finite(line()), reward=belief(), seed=4, **more)
        for more in ({}, {"explore": cb.TS(1.0)})
    ]
    for _ in range(5):
        a, b = (policy.ask() for policy in policies)
        assert torch.equal(a.index, b.index)
        for policy, choice in zip(policies, (a, b), strict=True):
            policy.tell(choice, reward=0.3)


def test_a_kernel_of_float32_is_used_in_float64():
    kernel = gpk.RBFKernel()
    kernel.lengthscale = 0.2
    gp = cb.GP(kernel, noise=1e-2)
    assert kernel.lengthscale.dtype == torch.float32  # the caller's own
    assert gp.kernel.lengthscale.dtype == F64
    held = np.log1p(np.exp(kernel.raw_lengthscale.item()))
    assert 1e-10 < abs(held - 0.2) < 1e-7
    policy = cb.GPUCB(cb.Finite(line()), reward=gp, explore=cb.UCB(1.0))
    policy.observe(x=[[0.0]], reward=[1.0])
    exact = np.exp(-0.5 * (np.linspace(0, 1, 20) / held) ** 2) / (1 + 1e-2)
    assert np.abs(policy.posterior().reward.mean.numpy() - exact).max() < 1e-14


def test_late_feedback_is_counted_in_the_shape_of_trials():
    for trials in (None, 2):
        policy = policy_of(
            trials, explore=cb.UCB(1.0), feedback=cb.Delayed(1, weight=0.0)
        )
        shape = () if trials is None else (trials,)
        first = policy.ask()
        policy.ask(), policy.ask()
        policy.tell(first, reward=np.zeros(shape))
        assert policy.late.shape == shape
        assert bool((policy.late == 1).all())


def shared_memory():
    """``(name, make, read)``: what keeps a tensor, made of it, and what it keeps."""
    points = cb.Finite(line())
    return [
        ("points", cb.Finite, lambda made: made.all),
        ("index", lambda v: (points, v), lambda made: made[0].points([3])),
        ("lower", lambda v: cb.Box(v[0], v[0] + 1), lambda made: made.lower),
        ("tips", lambda v: cb.Star([0.0], v), lambda made: made.tips),
        (
            "noise",
            lambda v: cb.GP(belief().kernel, noise=v[0, 0]),
            lambda made: made.noise,
        ),
        ("beta", lambda v: cb.UCB(v[0, 0]), lambda made: made.widths.beta),
        (
            "thresholds",
            lambda v: policy_of(thresholds=v[0, 0]),
            lambda made: made._limits(1),
        ),
        ("step", lambda v: policy_of(step=v[0, 0]), lambda made: made._step(1)),
        ("cap", lambda v: policy_of(cap=v[0, 0]), lambda made: made._cap),
    ]


@pytest.mark.parametrize("source", ["tensor", "numpy"])
@pytest.mark.parametrize("row", shared_memory(), ids=lambda row: row[0])
def test_what_a_caller_changes_later_is_not_ours(row, source):
    _, make, read = row
    given = np.linspace(0.5, 1.5, 20)[:, None]
    if source == "tensor":
        given = torch.from_numpy(given)
    made = make(given)
    before = read(made).clone()
    given += 1.0
    assert torch.equal(read(made), before)


@pytest.mark.parametrize("kind", ["Finite", "ProductGrid", "covariance"])
def test_a_choice_is_not_a_view_of_the_set(kind):
    actions = {
        "Finite": lambda: cb.Finite(line()),
        "ProductGrid": lambda: cb.ProductGrid([line()[:, 0]]),
        "covariance": lambda: cb.Finite(covariance=np.eye(20)),
    }[kind]()
    gp = cb.GP(noise=1e-2) if kind == "covariance" else belief()
    policy = cb.GPUCB(actions, reward=gp, explore=cb.UCB(1.0))
    before = policy.actions.points(range(20))
    policy.ask().x.add_(1.0)
    assert torch.equal(policy.actions.points(range(20)), before)


def given_out(kind, trials):
    """Policies that keep what they chose in ways of their own."""
    more, linear = {"trials": trials, "seed": 5}, cb.Linear(subgaussian=0.1)
    both = {"reward": belief(), "costs": belief(), **more}
    safe = {"safe": cb.Safe(index=0, reward=0.0, cost=0.0), "thresholds": 0.5}
    if kind == "grid":
        grid = cb.ProductGrid([line(5)[:, 0]] * 2)
        late = {"pending": "hallucinate", "engine": "product"}
        return cb.RPOL(grid, explore=cb.UCB(1.0), **late, **both)
    if kind == "Box":
        return cb.RPOL(cb.Box([0.0], [1.0]), explore=cb.UCB(1.0), **both)
    if kind == "LCLUCB":
        both |= {"reward": linear, "costs": linear}
        return cb.LCLUCB(cb.Finite(line(6)), **both, **safe)
    if kind == "OPB":
        both |= {"reward": cb.Counts(0.1), "costs": cb.Counts(0.1), "horizon": 99}
        return cb.OPB(cb.Finite(line(6)), **both, **safe)
    if kind == "Delayed":
        both["feedback"] = cb.Delayed(3, weight=1.0)
        return cb.RPOL(cb.Finite(line()), explore=cb.UCB(1.0), **both)
    return policy_of(explore=cb.TS(1.0), m=1, engine=kind, **more)


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize(
    "kind", ["joint", "factor", "stream", "grid", "Box", "LCLUCB", "OPB", "Delayed"]
)
def test_what_a_policy_gives_out_may_be_changed(kind, trials):
    policy, twin = given_out(kind, trials), given_out(kind, trials)
    rng, lead = np.random.default_rng(2), () if trials is None else (trials,)
    for _ in range(8):
        a, b = policy.ask(), twin.ask()
        assert torch.equal(a.x, b.x)
        assert not bool(a.infeasible.any())
        assert torch.equal(policy.multiplier, twin.multiplier)
        reward, cost = rng.standard_normal(lead), rng.standard_normal((*lead, 1))
        given = [a.x, a.infeasible, policy.multiplier]
        if a.index is not None:
            given.append(a.index)
            found = policy.posterior()
            given += [found.reward.mean, found.reward.std, found.costs.mean]
            recommended = policy.recommend()
            given += [recommended.x, recommended.index, recommended.value]
        for each in given:
            each.fill_(3)
        policy.tell(a, reward=reward, cost=cost)
        twin.tell(b, reward=reward.copy(), cost=cost.copy())
        reward[...], cost[...] = 7.0, 8.0


ODD_TENSORS = [
    (torch.eye(3, dtype=F64).to_sparse(), "sparse_coo"),
    (torch.empty(3, 1, dtype=F64, device="meta"), "meta"),
    (np.ma.masked_array(np.ones((3, 1)), [[True], [False], [False]]), "masked"),
]


@pytest.mark.parametrize(("odd", "word"), ODD_TENSORS, ids=lambda v: str(v)[:6])
def test_tensors_that_hold_no_numbers_or_not_all_of_them(odd, word):
    (policy, _, choice), (twin, _, _) = prepared(), prepared()
    for call, name in [
        (lambda: cb.Finite(odd), "points"),
        (lambda: cb.GP(belief().kernel, noise=odd), "noise"),
        (lambda: policy_of(step=odd), "step"),
        (lambda: policy.tell(choice, reward=odd), "reward"),
        (lambda: policy.tell(choice, cost=odd), "cost"),
        (lambda: policy.ask(among=odd), "among"),
        (lambda: policy.observe(x=odd, reward=np.ones(3)), "x"),
        (lambda: policy.posterior(odd), "x"),
    ]:
        with pytest.raises(cb.CBanditError, match=rf"^{name} must be .*{word}"):
            call()
    assert same_future(policy, twin)


class Marked(torch.Tensor):
    """A class of tensors that is a user's own."""


@pytest.mark.parametrize(
    "points",
    [
        line(5).as_subclass(Marked),
        torch.nn.Parameter(line(5)),
        line(5).half(),
        line(5).bfloat16(),
        line(10)[::2],
        line(5).numpy()[::-1],
    ],
    ids=["subclass", "Parameter", "half", "bfloat16", "strided", "reversed"],
)
def test_points_of_other_kinds_become_plain_ones(points):
    kept = cb.Finite(points).all
    assert type(kept) is torch.Tensor
    assert kept.dtype == F64
    assert not kept.requires_grad
    assert kept.tolist() == points.tolist()


def test_numbers_without_a_sign_are_indices():
    for dtype in (torch.uint16, torch.uint32, torch.uint64):
        index = torch.tensor([3, 5]).to(dtype)
        assert policy_of().ask(among=index).index.item() in (3, 5)
        with pytest.raises(cb.CBanditError, match="among: index must lie in"):
            policy_of().ask(among=torch.tensor([20]).to(dtype))


WORDS = {
    "dual": lambda v: policy_of(dual=v),
    "pending": lambda v: policy_of(pending=v),
    "engine": lambda v: policy_of(engine=v),
    "dtype": lambda v: policy_of(dtype=v),
    "draw": lambda v: cb.Rand(1.0, draw=v),
    "form": lambda v: cb.RKHS(1.0, 1.0, form=v),
    "penalty": lambda v: cb.RPOL(
        cb.Finite(line()),
        reward=belief(),
        costs=belief(),
        explore=cb.UCB(1.0),
        penalty=v,
    ),
    "inner": lambda v: cb.EpochPenalty(
        cb.Finite(line()), reward=belief(), costs=1, explore=cb.UCB(1), epoch=3, inner=v
    ),
    "schedule": lambda v: cb.SCGPUCB(
        cb.Finite(line()), reward=belief(), costs=1, explore=cb.UCB(1.0), schedule=v
    ),
}
ITSELF: list = []
ITSELF.append(ITSELF)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize(
    "value", [np.zeros(2), torch.zeros(0), ["a"], {}, ITSELF, "other"], ids=str
)
def test_words_that_are_none(name, value):
    with pytest.raises(cb.CBanditError, match=rf"^{name} must be"):
        WORDS[name](value)


def test_more_trials_than_anyone_has():
    for trials in (10**30, 2**63, 10**7, range(2**63, 2**63 + 2)):
        with pytest.raises(cb.CBanditError, match=r"trials must be .*at most"):
            policy_of(trials)


def test_what_makes_no_acquisition_function():
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(line()), reward=belief(), make_acquisition=lambda m, p: None
    )
    policy.tell(policy.ask(), reward=1.0)
    with pytest.raises(cb.CBanditError, match=r"make_acquisition must return .*None"):
        policy.ask()
    assert policy.t == 1


def test_a_seed_set_outside_of_the_set():
    for safe in ([20], [[0.5001]]):
        with pytest.raises(cb.CBanditError, match=r"^safe: (index|x) must"):
            cb.baselines.SafeOpt(
                cb.Finite(line()),
                reward=belief(),
                costs=belief(),
                explore=cb.UCB(1.0),
                safe=safe,
            )


def test_devices_that_are_not_there():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(cb.CBanditError, match="no CUDA device"):
        policy_of(device="cuda")
    with pytest.raises(cb.CBanditError, match="device 'cuda:3' is not here"):
        policy_of(device="cuda:3")


BELIEFS = [
    (lambda: belief(noise=-1.0), ["noise", "above 0"]),
    (lambda: belief(noise=0.0), ["noise", "above 0"]),
    (lambda: belief(noise=NAN), ["noise", "finite"]),
    (lambda: belief(mean=INF), ["mean", "finite"]),
    (lambda: belief(mean=1.0, standardize=True), ["mean", "standardize"]),
    (lambda: belief(refit_every=0), ["refit_every"]),
    (lambda: cb.GP("rbf", noise=1.0), ["kernel", "str"]),
    (lambda: cb.GP(gpk.RBFKernel, noise=1.0), ["kernel", "the class RBFKernel"]),
    (lambda: cb.GP(torch.nn.Linear(1, 1), noise=1.0), ["kernel", "Linear"]),
    (lambda: cb.GP.default(np.zeros((3, 1))), ["actions", "ndarray", "cb.Finite"]),
    (lambda: cb.GP.default(line()), ["actions", "Tensor"]),
    (lambda: cb.UCB("2"), ["beta", "number", "str"]),
    (lambda: cb.UCB(None), ["beta", "NoneType"]),
    (lambda: cb.UCB(cb.RKHS), ["beta", "the class RKHS"]),
    (lambda: cb.Rand(1.0, low="a"), ["low", "'a'"]),
    (lambda: cb.Delayed(True), ["window", "True"]),
    (lambda: cb.load(None), ["path", "None"]),
    (
        lambda: cb.GPUCB(cb.Finite(line()), reward=belief(), explore=cb.UCB),
        ["explore", "the class UCB"],
    ),
    (
        lambda: cb.EpochPenalty(
            cb.Finite(line()),
            reward=gpk.RBFKernel(),
            costs=1,
            explore=cb.UCB(1.0),
            epoch=3,
        ),
        ["reward", "RBFKernel"],
    ),
    (
        lambda: cb.OPB(
            cb.Finite(line()),
            reward=gpk.RBFKernel(),
            costs=belief(),
            safe=cb.Safe(index=0),
        ),
        ["reward", "cb.Counts or a cb.GP", "RBFKernel"],
    ),
    (lambda: cb.UCB(-1.0), ["beta", "negative"]),
    (lambda: cb.UCB(1.0, [NAN]), ["cost_beta", "finite"]),
    (lambda: cb.Rand(1.0, draw="cauchy"), ["draw", "'cauchy'"]),
    (lambda: cb.Rand(1.0, points=1), ["points"]),
    (lambda: cb.Rand(1.0, high=0.5), ["high", "0.5"]),
    (lambda: cb.RKHS(1.0, 0.1, delta=1.0), ["delta"]),
    (lambda: cb.RKHS(-1.0, 0.1), ["norm"]),
    (lambda: cb.RKHS(1.0, 0.1, form="best"), ["form"]),
    (lambda: cb.Finite(), ["points", "covariance"]),
    (lambda: cb.Finite(torch.zeros(0, 2)), ["points", "(0, 2)"]),
    (
        lambda: cb.Finite(covariance=[[1.0, 2.0], [2.0, 1.0]]),
        ["covariance", "positive"],
    ),
    (
        lambda: cb.Finite(covariance=[[1.0, 0.5], [0.2, 1.0]]),
        ["covariance", "symmetric"],
    ),
    (lambda: cb.Finite(covariance=np.ones((2, 3))), ["covariance", "(2, 3)"]),
    (lambda: cb.Finite(covariance=[[NAN]]), ["covariance", "finite"]),
]


@pytest.mark.parametrize(("make", "words"), BELIEFS)
def test_parts_that_cannot_be(make, words):
    with pytest.raises(cb.CBanditError) as error:
        make()
    assert all(word in str(error.value) for word in words), str(error.value)


def test_beliefs_and_sets_that_do_not_fit():
    make = {"explore": cb.UCB(1.0), "step": 0.1, "cap": 1.0}
    points, arms = cb.Finite(line()), cb.Finite(covariance=np.eye(4))
    for actions, reward, costs, words in [
        (points, cb.GP(noise=1.0), belief(), ["kernel", "covariance"]),
        (arms, belief(), belief(), ["kernel"]),
        (points, belief(), None, ["costs"]),
        (points, belief(), [], ["costs"]),
        (points, belief(), [belief(), 3], ["costs[1]", "int"]),
        (points, "gp", belief(), ["reward", "str"]),
        (line(), belief(), belief(), ["actions"]),
        (cb.Star([0.0], [[1.0]]), belief(), belief(), ["Star"]),
        (cb.Finite(torch.zeros(3, 5, 1)), belief(), belief(), ["3 trials"]),
        (points, belief(noise=[1.0, 2.0]), belief(), ["noise", "shape"]),
        (points, belief(), belief(mean=[1.0, 2.0]), ["mean", "shape"]),
    ]:
        with pytest.raises(cb.CBanditError) as error:
            cb.CKB(actions, reward=reward, costs=costs, **make)
        assert all(word in str(error.value) for word in words), str(error.value)


def test_where_the_posterior_is_asked_for():
    policy, _, _ = prepared()
    for x in (np.zeros((3, 4)), np.zeros((2, 3, 1)), np.zeros(3)):
        with pytest.raises(cb.CBanditError, match="x must have"):
            policy.posterior(x)
    assert policy.posterior(line(3)).reward.mean.shape == (3,)


def test_no_rows_of_data_are_no_data():
    (policy, _, _), (twin, _, _) = prepared(), prepared()
    policy.observe(index=[], reward=[], cost=np.zeros((0, 2)))
    policy.observe(x=np.zeros((0, 1)), reward=[])
    assert same_future(policy, twin)


def test_a_horizon_passed():
    policy = policy_of(horizon=3)
    for _ in range(3):
        policy.tell(policy.ask(), reward=0.0, cost=[0.0, 0.0])
    with pytest.raises(cb.HorizonError, match="horizon of 3"):
        policy.ask()
    assert policy.t == 3
    assert policy.recommend().index.dim() == 0


def test_a_policy_without_costs_is_told_none():
    policy = cb.GPUCB(cb.Finite(line()), reward=belief(), explore=cb.UCB(1.0))
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match="no costs"):
        policy.tell(choice, reward=1.0, cost=1.0)
    assert policy.outstanding == [choice]
    with pytest.raises(cb.CBanditError, match="no costs"):
        policy.observe(index=[1], cost=[1.0])


@pytest.mark.parametrize("engine", ["joint", "factor"])
def test_a_set_of_one_action(engine):
    policy = cb.CKB(
        cb.Finite([[0.5]]),
        reward=belief(),
        costs=belief(),
        explore=cb.UCB(1.0),
        step=0.1,
        cap=1.0,
        engine=engine,
    )
    for _ in range(5):
        choice = policy.ask()
        assert choice.index.item() == 0
        policy.tell(choice, reward=1.0, cost=1.0)


def test_what_is_not_a_number_is_not_skipped():
    from inside import maximise

    for trials in (1, 2):
        blocks = [torch.zeros(trials, 2, 4) for _ in range(3)]
        for bad in range(3):
            given = [b.clone() for b in blocks]
            given[bad][:, 0, 1] = NAN
            stretches = [(4 * k, b) for k, b in enumerate(given)]
            best = maximise(stretches, lambda f, g: f)
            assert best.value.isnan().all()


@pytest.mark.parametrize("told", ["nothing", "rewards only"])
def test_feedback_that_never_comes_is_warned_of_once(told):
    policy = policy_of(explore=cb.UCB(1.0))
    for t in range(1, 251):
        if t == 100:
            with pytest.warns(UserWarning, match="100 choices wait for their") as seen:
                choice = policy.ask()
            (warning,) = seen
            assert "tell(choice, reward=..., cost=...)" in str(warning.message)
            assert "cancel(choice)" in str(warning.message)
            assert warning.filename == __file__
        else:
            choice = policy.ask()  # any other warning is an error
        if told == "rewards only":
            policy.tell(choice, reward=0.0)
    assert len(policy.outstanding) == 250


def test_policies_that_count_on_feedback_to_come_are_not_warned():
    late = {"feedback": cb.Delayed(20, weight=0.0)}
    for more in (late, {"pending": "hallucinate", "m": 1}):
        policy = policy_of(explore=cb.UCB(1.0), **more)
        for _ in range(110):
            policy.ask()
    policy = policy_of(explore=cb.UCB(1.0))
    for _ in range(110):
        policy.tell(policy.ask(), reward=0.0, cost=[0.0, 0.0])


def test_a_policy_says_what_it_is():
    policy = policy_of(trials=3)
    policy.ask()
    said = "CKB(Finite(points, size=20, dim=1), engine=joint, costs=2, trials=3, t=1)"
    assert repr(policy) == said
    policy = policy_of(range(2, 4), engine="factor", explore=cb.UCB(1.0))
    assert "engine=factor, costs=2, trials=range(2, 4), t=0)" in repr(policy)
    wide = cb.GPUCB(
        cb.Box([0.0] * 20, [1.0] * 20), reward=belief(), explore=cb.UCB(1.0)
    )
    assert repr(wide) == "GPUCB(Box(dim=20), engine=dense, costs=0, t=0)"
    arms = cb.OPB(
        cb.Finite(line()),
        reward=cb.Counts(1.0),
        costs=cb.Counts(1.0),
        safe=cb.Safe(index=0, reward=0.0, cost=-1.0),
        horizon=9,
    )
    assert repr(arms) == "CountOPB(Finite(points, size=20, dim=1), costs=1, t=0)"


def test_broken_and_foreign_checkpoints_are_kept(tmp_path):
    policy, _, _ = prepared()
    path = tmp_path / "a.ckpt"
    policy.save(path)
    whole = path.read_bytes()
    for name, content in {
        "cut": whole[:-10],
        "flipped": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "foreign": b"hello",
        "empty": b"",
        "header": whole[:21],
    }.items():
        broken = tmp_path / name
        broken.write_bytes(content)
        with pytest.raises(cb.CheckpointError) as error:
            cb.load(broken)
        assert name in str(error.value)
        with pytest.raises(cb.CheckpointError) as error:
            policy.save(broken)
        assert name in str(error.value)
        assert broken.read_bytes() == content
    for bad in (tmp_path, tmp_path / "none" / "x"):
        with pytest.raises(cb.CheckpointError):
            policy.save(bad)
        with pytest.raises(cb.CheckpointError):
            cb.load(bad)
    policy.save(path)


def test_a_policy_that_cannot_be_saved(tmp_path):
    (policy, _, _), (twin, _, _) = (
        prepared(explore=cb.UCB(lambda t, gain: 1.0)) for _ in range(2)
    )
    with pytest.raises(cb.CheckpointError, match="lambda"):
        policy.save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    assert same_future(policy, twin)


def test_an_empty_box_and_rows_that_are_none():
    with pytest.raises(cb.CBanditError, match="d at least 1; got"):
        cb.Box([], [], choices=[[1.0], [2.0]])
    for choices in ([1.0, 2.0], []):
        with pytest.raises(cb.CBanditError, match=r"choices must have rows"):
            cb.Box([0.0], [1.0], choices=choices)


def test_a_policy_and_a_problem_over_other_boxes():
    box = cb.Box([0.0], [1.0])
    gp = cb.GP(gpk.RBFKernel(), noise=0.1)
    policy = cb.CKB(box, reward=gp, costs=gp, explore=cb.UCB(1.0), step=1.0, cap=2.0)
    problem = cb.problems.from_botorch(ConstrainedGramacy())
    with pytest.raises(cb.CBanditError, match="over the same actions"):
        cb.simulate(policy, problem, 3)
    with pytest.raises(cb.CBanditError, match="an instance of"):
        cb.problems.from_botorch(ConstrainedGramacy)


def test_points_without_a_feasible_one():
    function = ConstrainedGramacy()
    corner = [[0.0, 0.0], [0.05, 0.1]]
    slack = function.evaluate_slack_true(torch.tensor(corner, dtype=F64))
    least = -float(slack.amin(-1).max())
    known = rf"no feasible action of .*NaN; .* {least:.3g}"
    with pytest.warns(UserWarning, match=known):
        problem = cb.problems.from_botorch(function, points=corner)
    assert problem.optimum(1).isnan()
    # one is enough, and no warning
    cb.problems.from_botorch(function, points=[*corner, [0.6, 0.6]])


def test_flags_are_true_or_false():
    points, gp, one = cb.Finite(line()), belief(), cb.UCB(1.0)
    for name, make in [
        ("standardize", lambda v: belief(standardize=v)),
        ("anytime", lambda v: policy_of(anytime=v)),
        ("forget", lambda v: policy_of(anytime=True, forget=v)),
        (
            "reuse",
            lambda v: cb.EpochPenalty(
                points, reward=gp, costs=1, explore=one, epoch=3, reuse=v
            ),
        ),
    ]:
        make(True), make(np.bool_(False))
        for bad in ("False", 0, None, NAN):
            with pytest.raises(cb.CBanditError, match=f"^{name} must be True or False"):
                make(bad)


def test_what_explores_says_how_wide():
    def beta(t, gain):
        return 1.0

    for explore, said in [
        (cb.UCB(2.0), "UCB(2.0)"),
        (cb.UCB(2.0, [1.0, 3.0]), "UCB(2.0, cost_beta=[1.0, 3.0])"),
        (cb.TS(), "TS(1.0)"),
        (cb.Rand(0.5, draw="uniform"), "Rand(0.5, draw='uniform')"),
        (cb.UCB(cb.Constant(2.0)), "UCB(Constant(2.0))"),
    ]:
        assert repr(explore) == said
    assert repr(cb.UCB(beta)).endswith("<locals>.beta)")


def test_problems_of_what_cannot_be():
    made, function = cb.problems, ConstrainedGramacy()
    for make, words in [
        (lambda: made.Table([0.0], [[0.0]], actions=[1.0]), "actions must be .*list"),
        (lambda: made.Table([0.0], [[0.0]], actions=[]), "actions must be .*list"),
        (lambda: made.from_botorch(function, INF), "points must be .*whole"),
        (
            lambda: made.from_botorch(function, 1e308),
            "points must be .*at most 10000000",
        ),
        (lambda: made.from_botorch(function, optimum="x"), "optimum must be a number"),
        (lambda: made.from_botorch(function, optimum=NAN), "optimum must be finite"),
        (lambda: made.bench_stagewise(points=1.5), "points must be an int"),
        (lambda: made.bench_stagewise(costs="x"), "costs must be an int"),
    ]:
        with pytest.raises(cb.CBanditError, match=words):
            make()


def test_settings_of_admmbo_that_cannot_be():
    points, gp = cb.Finite(line()), belief()

    def make(**more):
        return cb.baselines.ADMMBO(points, reward=gp, costs=gp, trials=2, **more)

    for more, words in [
        ({"budgets": 3}, "budgets must be two positive ints; got 3"),
        ({"budgets": (1, 0)}, "budgets must be two positive ints; got 0"),
        ({"cost_budgets": (1, 2, 3)}, "cost_budgets must be two positive ints"),
        ({"iterations": 1.5}, "iterations must be an int"),
        ({"iterations": 0}, "iterations must be an int"),
        ({"rho": []}, "rho must be a number or"),
        ({"rho": [1.0, 2.0, 3.0]}, "rho must be a number or"),
        ({"rho": 0.0}, "rho must be above 0"),
        ({"weight": [1.0, 2.0]}, "weight must be a number"),
        ({"weight": 0.0}, "weight must be above 0"),
    ]:
        with pytest.raises(cb.CBanditError, match=words):
            make(**more)
    assert make(rho=[0.1, 0.2], budgets=[1, 2])._rho.tolist() == [0.1, 0.2]
    with pytest.raises(cb.CBanditError, match="name must be a str; got 3"):
        cb.baselines.BoTorchPolicy(
            points, reward=gp, make_acquisition=lambda m, p: None, name=3
        )


def test_bkb_says_what_it_is():
    gp, points = belief(), cb.Finite(line())
    policy = cb.baselines.BKB(points, reward=gp, explore=cb.UCB(1.0))
    policy.tell(policy.ask(), reward=1.0)
    said = "BKB(Finite(points, size=20, dim=1), engine=dictionary, costs=0, t=1)"
    assert repr(policy) == said


def test_every_policy_is_saved(tmp_path):
    policy = cb.baselines.BanditOCO(
        cb.Box([0.0, 0.0], [1.0, 1.0]), costs=1, radius=0.1, step=0.1, dual_step=0.1
    )
    policy.tell(policy.ask(), reward=1.0, cost=0.5)
    waiting = policy.ask()
    policy.tell(waiting, reward=0.5)
    policy.save(tmp_path / "a")
    again = cb.load(tmp_path / "a")
    for each in (policy, again):
        each.tell(each.outstanding[0], cost=0.2)
    assert torch.equal(policy.ask().x, again.ask().x)
    assert torch.equal(policy.multiplier, again.multiplier)


def test_what_to_do_about_several_costs_is_said():
    actions = cb.Finite([[0.0], [1.0]])
    gp = cb.GP.default(actions)
    goal = {"reward": gp, "explore": cb.UCB(1.0), "thresholds": [0.5, 1.0]}
    with pytest.raises(cb.CBanditError, match=r"several costs are a list"):
        cb.RPOL(actions, costs=gp, **goal)
    policy = cb.RPOL(actions, costs=[gp, gp], **goal)
    choice = policy.ask()
    with pytest.raises(cb.CBanditError, match=r"tell the reward alone and cancel"):
        policy.tell(choice, reward=1.0, cost=[0.3, NAN])
    policy.tell(choice, reward=1.0)
    policy.cancel(choice)
    assert policy.outstanding == []
    # the reward was kept, and nothing learned of the costs
    assert len(policy.model.models[0].train_targets) == 1
    assert float(policy.posterior().costs.mean.abs().max()) == 0.0
