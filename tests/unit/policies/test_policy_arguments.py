"""Arguments of policies that cannot be are named, with what is expected."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gpytorch import kernels as gpk
from inside import (
    bound_of,
    cap_of,
    cost_noises,
    limits_of,
    safe_of,
    settings_of_experiment,
    settled,
    slack_of,
    step_of,
)
from midway import F64, NAN, belief, line, policy_of

import cbandit as cb

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
    ({"forget": True}, ["forget", "anytime", "restart"]),
    ({"anytime": True, "restart": 5}, ["anytime", "restart=5"]),
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
    ({"costs": {"a": 1}}, ["costs['a']", "int"]),
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
    each = limits_of(policy_of(trials, thresholds=WIDE), 1)
    assert each.tolist() == [WIDE.tolist()] * trials
    again = limits_of(policy_of(trials, thresholds=lambda t: WIDE), 1)
    assert torch.equal(again, each)
    column = np.linspace(0.1, 0.9, trials)[:, None]
    policy = policy_of(trials, thresholds=column)
    assert limits_of(policy, 1).tolist() == np.repeat(column, 2, 1).tolist()
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
    assert safe_of(arms).cost.tolist() == [(-WIDE).tolist()] * trials
    # the problem reads them likewise: its account is of the policy's limits
    table = cb.problems.Table(
        np.zeros(20), np.zeros((2, 20)), thresholds=WIDE, trials=trials
    )
    assert torch.equal(table.thresholds, each)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_numbers_are_one_a_trial_however_many_costs(m):
    wanted = np.repeat(WIDE[:, None], m, 1).tolist()
    for name, read in (
        ("step", step_of),
        ("cap", cap_of),
        ("slack", slack_of),
    ):
        policy = policy_of(2, m=m, **{name: WIDE})
        assert read(policy).tolist() == wanted
        policy = policy_of(2, m=m, **{name: np.repeat(WIDE[:, None], m, 1)})
        assert read(policy).tolist() == wanted
    policy = policy_of(2, m=m, clip=(WIDE, WIDE))
    assert bound_of(policy)[:, 1:].tolist() == wanted
    # a width of reward and costs alike
    for beta in (WIDE, cb.Constant(WIDE), cb.RKHS(WIDE, WIDE, delta=0.5)):
        widths = cb.UCB(beta).widths.bind((2,), m, torch.device("cpu"))
        gain = torch.zeros(2, 1 + m, dtype=F64)
        found = widths(1, gain, lambda: torch.ones_like(gain))
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
    assert cost_noises(policy).tolist() == [[0.2, 0.2], [0.7, 0.7]]


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
    with pytest.raises(TypeError, match=r"GPUCB takes no argument 'colour'; it takes"):
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
        (lambda: baselines.SafeOpt(points, **both), r"^SafeOpt needs 'safe'"),
        (lambda: baselines.CONFIG(points, reward=gp), r"^CONFIG needs 'costs'"),
        (
            lambda: baselines.CKBRestart(points, restart=3),
            r"^CKBRestart needs 'reward'",
        ),
        (lambda: baselines.CONFIG(points, gp, gp), r"^CONFIG takes 1 without a name"),
        (lambda: cb.GPUCB(points, **both), r"^GPUCB takes no argument 'costs'"),
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
            settings_of_experiment("zhou-synthetic", seed=seed)


@pytest.mark.parametrize("seed", [0, 2**64 - 1, np.uint64(2**64 - 1)])
def test_all_seeds_that_torch_takes(seed):
    policy = policy_of(seed=seed, explore=cb.TS())
    assert policy.ask().index.dim() == 0
    assert type(policy.seed) is int
    assert settings_of_experiment("zhou-synthetic", seed=seed).seed == seed


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
        ({"weight": [1.0, 2.0, 3.0]}, "weight must be a number or"),
        ({"weight": 0.0}, "weight must be above 0"),
    ]:
        with pytest.raises(cb.CBanditError, match=words):
            make(**more)
    policy = make(rho=[0.1, 0.2], weight=[3.0, 4.0], budgets=[1, 2])
    split = settled(policy).own.split
    assert split.rho.tolist() == [0.1, 0.2] and split.weight.tolist() == [3.0, 4.0]
    with pytest.raises(cb.CBanditError, match="name must be a str; got 3"):
        cb.baselines.BoTorchPolicy(
            points, reward=gp, make_acquisition=lambda m, p: None, name=3
        )


SPACE = cb.Space(m=cb.Category("a", "b"), k=cb.Int(0, 3), z=cb.Float(0, 1))
ROW = {"m": "a", "k": 1, "z": 0.5}
SHOWN = cb.Space(m=cb.Category("a", "b"), now=cb.Context(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, gp: p.posterior(params=[ROW | {"k": True}]), "k must be of Int"),
        (lambda p, gp: p.posterior(params=[ROW | {"z": True}]), "z must be of Float"),
        (lambda p, gp: p.posterior(params=[ROW | {"z": 10**400}]), "z must be of"),
        (lambda p, gp: p.add([], "x"), "name must be of a category"),
        (lambda p, gp: p.retire({}, "a"), "name must be of a category"),
        (lambda p, gp: p.add("m", torch.zeros(2)), "Category takes strings"),
        (lambda p, gp: p.add("m", math.nan), "NaN equals no value"),
        (lambda p, gp: cb.Context(10**40), "shown must be at most"),
        (lambda p, gp: cb.GP.linear(SHOWN, features=2**63), "features must be at most"),
        (lambda p, gp: cb.GP(gp.kernel, mean=True), "mean must be a number"),
        (lambda p, gp: cb.UCB(1.0, cost_beta=lambda t: 1.0), "cost_beta must be a num"),
        (lambda p, gp: _rpol(gp, pending=float), "pending must be 'ignore'"),
        (lambda p, gp: _rpol(gp, restart=float), "restart must be"),
        (lambda p, gp: _rpol(gp, design=10**18), "design must be at most"),
        (lambda p, gp: _rpol(gp, explore=cb.UCB(1.0, margin=[])), "margin must be a n"),
    ],
)
def test_what_is_refused_is_named(call, words):
    belief = cb.GP.default(SPACE)
    policy = cb.GPUCB(SPACE, reward=belief)
    with pytest.raises(cb.CBanditError, match=words):
        call(policy, belief)
    assert policy.ask().t == 1


def _rpol(belief, **given):
    return cb.RPOL(SPACE, reward=belief, costs=belief, **given)
