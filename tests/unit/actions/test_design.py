"""The design that the first rounds play: cb.CKB(..., design=n)."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from inside import spread_points

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 6, dtype=F64)
POINTS = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).double()
SPACE = cb.Space(threads=cb.Int(1, 8), codec=cb.Category("a", "b", "c"))
MIXED = cb.Space(memory=cb.Float(0.5, 8.0), codec=cb.Category("a", "b", "c"))
COVARIANCE = torch.exp(-torch.cdist(POINTS, POINTS).square())
SETS = {
    "points": cb.Finite(POINTS),
    "covariance": cb.Finite(covariance=COVARIANCE),
    "grid": cb.ProductGrid([AXIS, AXIS]),
    "space": SPACE,
    "mixed": MIXED,
    "box": cb.Box([0.0, -1.0], [1.0, 3.0]),
}


def gp(actions):
    return cb.GP.default(actions)


def ckb(actions, **more):
    belief = gp(actions)
    return cb.CKB(actions, reward=belief, costs=belief, **more)


def rpol(actions, **more):
    belief = gp(actions)
    return cb.RPOL(actions, reward=belief, costs=belief, explore=cb.TS(1.0), **more)


def ucb(actions, **more):
    return cb.GPUCB(actions, reward=gp(actions), **more)


def random(actions, **more):
    return cb.baselines.Random(actions, costs=1, **more)


def epochs(actions, **more):
    return cb.EpochPenalty(actions, reward=gp(actions), costs=1, epoch=3, **more)


POLICIES = (ckb, rpol, ucb, random, epochs)


def tell(policy, choice, cost=1.0):
    ones = torch.ones(policy.batch_shape)
    told = {"cost": cost * ones} if policy.m else {}
    policy.tell(choice, reward=choice.x.sum(-1), **told)


def played(policy, rounds):
    chosen = []
    for _ in range(rounds):
        choice = policy.ask()
        chosen.append(choice.x)
        tell(policy, choice)
    return torch.stack(chosen, -2)


@pytest.mark.parametrize("trials", [None, 3])
@pytest.mark.parametrize("name", SETS)
def test_policies_with_one_seed_play_the_same_design(name, trials):
    actions = SETS[name]
    runs = [played(make(actions, design=5, trials=trials), 5) for make in (ckb, random)]
    assert runs[0].tolist() == runs[1].tolist()
    other = played(random(actions, design=5, trials=trials, seed=1), 5)
    assert other.tolist() != runs[0].tolist()
    if trials:
        assert runs[0][0].tolist() != runs[0][1].tolist()
        alone = played(random(actions, design=5, trials=range(1, 2)), 5)
        assert alone[0].tolist() == runs[0][1].tolist()


@pytest.mark.parametrize("make", POLICIES)
def test_each_policy_does(make):
    actions = SETS["box"]
    assert played(make(actions, design=4), 4).tolist() == (
        played(random(actions, design=4), 4).tolist()
    )


@pytest.mark.parametrize("name", ["points", "grid", "space", "covariance"])
def test_actions_do_not_repeat_while_others_are_left(name):
    actions = SETS[name]
    policy = random(actions, design=actions.size + 3)
    numbers = []
    for _ in range(actions.size + 3):
        choice = policy.ask()
        numbers.append(int(choice.index))
    assert sorted(numbers[: actions.size]) == list(range(actions.size))


def test_the_design_fills_the_set():
    """Each quarter of a box, and each category, is met."""
    x = played(random(SETS["box"], design=8), 8)
    quarter = (x[:, 0] > 0.5).long() * 2 + (x[:, 1] > 1).long()
    assert quarter.bincount(minlength=4).tolist() == [2, 2, 2, 2]
    codecs = played(random(MIXED, design=9), 9)[:, 1]
    assert codecs.long().bincount(minlength=3).min() >= 2


def test_multipliers_stay_where_they_start():
    for make in (ckb, rpol):
        policy, fresh = make(SETS["grid"], design=4), make(SETS["grid"])
        late = policy.ask()
        for _ in range(3):
            tell(policy, policy.ask(), cost=5.0)
        first = fresh.multiplier
        assert policy.multiplier.tolist() == first.tolist()
        tell(policy, late, cost=50.0)  # told in time
        choice = policy.ask()
        assert policy.t == 5
        tell(policy, choice, cost=5.0)
        assert policy.multiplier > first


def test_late_feedback_of_the_design_moves_no_multiplier():
    policy = rpol(SETS["grid"], design=2)
    late, other = policy.ask(), policy.ask()
    tell(policy, other)
    for _ in range(3):
        tell(policy, policy.ask(), cost=-1.0)
    before = policy.multiplier
    tell(policy, late, cost=100.0)
    assert policy.multiplier.tolist() == before.tolist()


def test_epochs_begin_after_the_design():
    policy = epochs(SETS["grid"], design=4)
    for _ in range(6):
        tell(policy, policy.ask(), cost=0.5)
    assert policy.multiplier.tolist() == [1.0]
    tell(policy, policy.ask(), cost=0.5)
    assert policy.multiplier > 1.0


def test_the_beliefs_learn_from_it():
    policy = ucb(SETS["grid"], design=6)
    played(policy, 6)
    deviation = policy.posterior().reward.std
    numbers = [
        int(SETS["grid"].index(x)) for x in played(ucb(SETS["grid"], design=6), 6)
    ]
    assert deviation[numbers].max() < 0.5 * deviation.max()


def test_what_was_observed_before_does_not_count():
    policy = ucb(SETS["grid"], design=3)
    policy.observe(index=[0, 1], reward=[0.0, 1.0])
    assert played(policy, 3).tolist() == played(ucb(SETS["grid"], design=3), 3).tolist()


def test_a_part_of_the_set_and_what_has_failed():
    policy = random(SETS["points"], design=5)
    allowed = torch.tensor([3, 7, 9])
    choices = [policy.ask(among=allowed) for _ in range(3)]
    assert sorted(int(choice.index) for choice in choices) == [3, 7, 9]
    policy = random(SETS["points"], design=2)
    first = policy.ask()
    again = random(SETS["points"], design=2)
    again.tell(again.ask(among=first.index.reshape(1)), failed=True)
    assert int(again.ask().index) != int(first.index)


def test_a_point_of_the_design_that_failed_is_passed_over():
    box = SETS["box"]
    x = played(random(box, design=3), 3)
    policy = ucb(box, design=3)
    first = policy.ask()
    policy.tell(first, failed=True)
    assert policy.ask().x.tolist() == x[1].tolist()
    # the same point is named as one that cannot be measured before it comes
    other = ucb(cb.Box([0.0, -1.0], [1.0, 3.0]), design=3)
    other.ask()
    assert other.ask().x.tolist() == x[1].tolist()


def test_a_run_that_is_saved_within_the_design_goes_on(tmp_path):
    policy = ckb(SETS["box"], design=4)
    played(policy, 2)
    policy.save(tmp_path / "half")
    assert played(cb.load(tmp_path / "half"), 3).tolist() == played(policy, 3).tolist()


SAFE = {"safe": cb.Safe(index=0, reward=0.0, cost=-1.0), "horizon": 100}
SMOOTH = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: cb.OPB(
            SETS["points"],
            reward=cb.Counts(subgaussian=1.0),
            costs=cb.Counts(subgaussian=1.0),
            **SAFE,
            **more,
        ),
        lambda **more: cb.OPB(
            SETS["points"],
            reward=SMOOTH,
            costs=SMOOTH,
            **SAFE,
            **more,
        ),
        lambda **more: cb.OPLB(
            SETS["points"],
            reward=cb.Linear(subgaussian=1.0, ridge=1.0, norm=1.0),
            costs=cb.Linear(subgaussian=1.0, ridge=1.0, norm=1.0),
            **SAFE,
            **more,
        ),
    ],
)
def test_safe_policies_take_none(make):
    make()
    with pytest.raises(cb.CBanditError, match="takes no design="):
        make(design=2)


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", None, True])
def test_a_design_is_a_number_of_rounds(wrong):
    with pytest.raises(cb.CBanditError, match="design must be a whole number"):
        ckb(SETS["grid"], design=wrong)


CONTEXTS = {
    "levels": cb.Space(a=cb.Int(1, 5), day=cb.Context(cb.Category("x", "y"))),
    "numbers": cb.Space(a=cb.Int(1, 5), load=cb.Context(2)),
    "box": cb.Space(a=cb.Float(0, 1), load=cb.Context(cb.Float(0, 40))),
}


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_design_is_of_the_choices_whatever_the_context(name, trials):
    actions, runs = CONTEXTS[name], []
    shown = {
        "levels": ["x", "y", "y", "x"],
        "numbers": torch.rand(4, 2),
        "box": [1.0, 40.0, 0.0, 3.0],
    }[name]
    for order in (1, -1):
        policy = ucb(actions, design=4, trials=trials)
        choices = []
        for context in list(shown)[::order]:
            choice = policy.ask(context=context)
            rows = choice.params if trials else [choice.params]
            choices.append([row["a"] for row in rows])
            tell(policy, choice)
        runs.append(choices)
    assert runs[0] == runs[1]
    assert len({tuple(row) for row in runs[0]}) == 4


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_spread_points_are_of_the_set_and_always_the_same(name, neighbours):
    actions = SETS[name]
    x = spread_points(actions, 16, neighbours=neighbours)
    assert torch.equal(x, spread_points(actions, 16, neighbours=neighbours))
    assert 14 <= len(x) <= 16 and x.shape[-1] == actions.dim
    assert len(x.unique(dim=0)) == len(x)
    if actions.finite:
        every = actions.block(0, actions.size)
        assert bool((x.unsqueeze(1) == every).all(-1).any(-1).all())
        if actions.covariance is None:  # no axis is left out
            assert bool((x.amax(0) > x.amin(0)).all())
    else:
        assert torch.equal(actions.inside(x), x)


def test_spread_points_of_a_few_actions_are_all_of_them():
    own = torch.rand(3, 5, 2, generator=torch.Generator().manual_seed(1)).double()
    assert torch.equal(spread_points(cb.Finite(own), 16), own)
