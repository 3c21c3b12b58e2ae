"""Nothing is claimed, and no corner is tried, before anything has been told."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from inside import middle
from stagewise import rbf

import cbandit as cb

TOLD_NOTHING = "recommend: nothing has been told yet"
AXIS = torch.linspace(0, 1, 5).double()


def grid_policy(kind=cb.RPOL, actions=None, trials=None, costs=("heat",), **own):
    actions = cb.ProductGrid([AXIS, AXIS]) if actions is None else actions
    belief = cb.GP.default(actions)
    goal = {"costs": dict.fromkeys(costs, belief)} if costs else {}
    limits = {"thresholds": dict.fromkeys(costs, 0.5)} if costs else {}
    return kind(actions, reward=belief, **goal, **limits, trials=trials, **own)


def with_own_kernel():
    belief = cb.GP(rbf(), noise=0.01, mean=3.0)
    return cb.CKB(
        cb.ProductGrid([AXIS]), reward=belief, costs=belief, step=0.1, cap=10.0
    )


def epochs():
    actions = cb.ProductGrid([AXIS])
    belief = cb.GP.default(actions)
    return cb.EpochPenalty(actions, reward=belief, costs=1, epoch=5, explore=cb.UCB(1))


def late():
    return grid_policy(feedback=cb.Delayed(window=10))


# -- recommendations -------------------------------------------------------------------

MADE = {
    "grid": grid_policy,
    "box": lambda: grid_policy(actions=cb.Box([0.0], [1.0])),
    "no costs": lambda: grid_policy(cb.GPUCB, costs=()),
    "trials": lambda: grid_policy(trials=3),
    "own kernel, a prior mean": with_own_kernel,
    "epochs": epochs,
    "late": late,
    "sketch": lambda: cb.baselines.BKB(
        cb.ProductGrid([AXIS]), reward=cb.GP(rbf(), noise=0.1)
    ),
    "random": lambda: cb.baselines.Random(cb.ProductGrid([AXIS]), costs=1),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("asked", [False, True])
def test_no_recommendation_rests_on_nothing(name, asked):
    policy = MADE[name]()
    if asked:
        policy.ask()
    with pytest.raises(cb.CBanditError, match=TOLD_NOTHING) as error:
        policy.recommend()
    assert "tell()" in str(error.value)
    assert "observe()" in str(error.value) or name == "random"


def test_data_from_before_are_enough():
    policy = grid_policy()
    policy.observe(index=[12], reward=[1.0], cost={"heat": [0.1]})
    assert policy.recommend().feasible


def test_no_reward_means_no_recommendation():
    policy = grid_policy()
    policy.tell(policy.ask(), cost={"heat": 0.1})
    with pytest.raises(cb.CBanditError, match=TOLD_NOTHING):
        policy.recommend()


@pytest.mark.parametrize("actions", [None, cb.Box([0.0], [1.0])])
def test_no_chance_is_claimed_of_a_cost_that_was_not_told(actions):
    policy = grid_policy(actions=actions, costs=("heat", "price"))
    choice = policy.ask()
    policy.tell(choice, reward=1.0)
    found = policy.recommend()
    assert not found.feasible
    assert found.probability.isnan()
    assert found.margin.isnan().all()
    assert "nothing is known of heat, price: it may or may not be" in str(found)
    policy.tell(choice, cost={"heat": 0.1})
    found = policy.recommend()
    assert not found.feasible
    assert found.probability.isnan()
    assert found.margin.isnan().tolist() == [False, True]
    assert found.value == pytest.approx(1.0)
    assert "nothing is known of price: it may or may not be" in str(found)
    policy.tell(choice, cost={"price": 0.1})
    found = policy.recommend()
    assert found.feasible
    assert "observed within its limits" in str(found)


def test_limits_that_were_told_of_count_beside_those_that_were_not():
    policy = grid_policy(costs=("heat", "price"))
    for row in range(25):
        choice = policy.ask(among=[row])
        policy.tell(choice, reward=float(row), cost={"heat": row / 10})
    found = policy.recommend()
    assert 0 < found.value < 6  # heat is at most 0.5 up to row 5


@pytest.mark.parametrize("actions", [None, cb.Box([0.0], [1.0])])
@pytest.mark.parametrize("kind", [cb.RPOL, cb.baselines.Random])
def test_trials_without_data_say_so(kind, actions):
    actions = cb.ProductGrid([AXIS]) if actions is None else actions
    if kind is cb.RPOL:
        policy = grid_policy(actions=actions, trials=3, costs=("heat",))
    else:
        policy = kind(actions, costs=["heat"], thresholds=0.5, trials=3)
    choice = policy.ask()
    where = torch.tensor([True, False, True])
    policy.tell(choice, reward=torch.ones(3), cost=torch.zeros(3), where=where)
    found = policy.recommend()
    assert found.feasible.tolist() == where.tolist()
    for each in (found.value, found.margin[:, 0]):
        assert each.isnan().tolist() == (~where).tolist()
    assert found.probability[1].isnan()
    lines = str(found).splitlines()
    assert "nothing has been told yet" in lines[1]
    assert all("reward 1" in lines[i] for i in (0, 2))


ARMS = cb.Finite(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]]))


def safe_policy(kind, trials=None, **safe):
    own = {"thresholds": 0.5, "delta": 0.1, "horizon": 100, "trials": trials}
    own["safe"] = cb.Safe(index=0, **safe)
    if kind is cb.OPNLB:
        values = [[0.2, 0.3, 0.9], [0.2, 0.9, 0.1]]
        belief = cb.FiniteClass(values, subgaussian=0.1)
    elif kind == "arms":
        kind, belief = cb.OPB, cb.Counts(0.1, range=(-1.0, 1.0))
    elif kind == "gp":
        kind, belief = cb.OPB, cb.GP(rbf(), noise=0.01)
    else:
        belief = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.0)
    return kind(ARMS, reward=belief, costs=belief, **own)


SAFE = [cb.LCLUCB, cb.OPLB, cb.OPNLB, "arms", "gp"]


@pytest.mark.parametrize("kind", SAFE)
def test_before_data_a_safe_policy_recommends_what_is_known_to_be_safe(kind):
    policy = safe_policy(kind, reward=0.2, cost=0.2)
    found = policy.recommend()
    assert found.feasible
    assert found.value == pytest.approx(0.2)
    assert found.margin == pytest.approx(0.3)
    if found.distribution is None:
        assert found.index == 0
    else:
        assert (found.distribution.probability * found.index).sum() == 0
    if kind is cb.OPNLB:
        return  # it takes no safe action that nothing is known of
    unknown = safe_policy(kind)
    with pytest.raises(cb.CBanditError, match=TOLD_NOTHING):
        unknown.recommend()


@pytest.mark.filterwarnings("ignore:LC-LUCB plays the safe action")
@pytest.mark.parametrize("kind", [cb.LCLUCB, cb.OPLB, "arms", "gp"])
def test_safe_policies_say_which_trials_have_no_data(kind):
    policy, where = safe_policy(kind, trials=2), torch.tensor([False, True])
    choice = policy.ask()
    both = {"reward": torch.full((2,), 0.2), "cost": torch.full((2,), 0.2)}
    policy.tell(choice, **both, where=where)
    found = policy.recommend()
    assert found.value.isnan().tolist() == [True, False]
    assert not found.feasible[0]
    assert "nothing has been told yet" in str(found).splitlines()[0]


def test_an_arm_that_was_never_pulled_is_not_recommended():
    policy = safe_policy("arms", reward=-1.0, cost=0.2)
    told = {"reward": [-1.0, -1.0, -0.5, -0.5], "cost": [0.2] * 4}
    policy.observe(index=[0, 0, 1, 1], **told)
    found = policy.recommend()
    assert (found.distribution.probability * (found.index == 2)).sum() == 0


# -- explanations ----------------------------------------------------------------------


def test_an_explanation_tells_a_prior_from_what_was_learned():
    policy = grid_policy()
    words = str(policy.explain(policy.ask()))
    assert "believed" not in words
    assert "nan" not in words
    assert words.count("nothing told yet, prior 0 +- 1") == 2
    policy.tell(policy.ask(), reward=3.0)
    words = str(policy.explain(policy.ask())).splitlines()
    assert words[1].startswith("  reward: believed 3")
    assert words[2].startswith("  heat: nothing told yet, prior 0 +- ")


# -- the first choice ------------------------------------------------------------------


def first(actions, kind=cb.CKB, **own):
    return grid_policy(kind, actions, **own).ask()


@pytest.mark.parametrize(
    "explore", [cb.UCB(1.0), cb.TS(1.0), cb.Rand(1.0)], ids=lambda e: e.name
)
@pytest.mark.parametrize("kind", [cb.CKB, cb.RPOL, cb.baselines.CONFIG])
def test_a_grid_begins_in_its_middle(kind, explore):
    if kind is cb.baselines.CONFIG and explore.name == "Rand":
        pytest.skip("CONFIG takes UCB and TS")
    choice = first(cb.ProductGrid([AXIS, AXIS]), kind, explore=explore)
    assert choice.index == 12
    assert not choice.infeasible


def test_policies_without_costs_and_in_epochs_begin_in_the_middle_too():
    actions = cb.ProductGrid([AXIS, AXIS])
    for kind in (cb.GPUCB, cb.GPTS):
        assert grid_policy(kind, actions, costs=()).ask().index == 12
    assert epochs().ask().index == 2


def test_levels_are_counted_on_the_scale_that_the_kernel_sees():
    space = cb.Space(
        threads=cb.Int(1, 64, log=True),
        codec=cb.Category("lz4", "zstd", "none"),
        memory=cb.Float(0.5, 8.5, step=0.5),
    )
    assert first(space).params == {"threads": 8, "codec": "lz4", "memory": 4.5}
    uneven = cb.ProductGrid([torch.tensor([0.0, 0.1, 0.2, 0.6, 1.0]).double()])
    assert first(uneven).index == 3


def test_even_numbers_of_levels_take_the_lower_one():
    assert first(cb.ProductGrid([torch.arange(4.0), torch.arange(2.0)])).index == 2


def test_points_begin_with_the_one_nearest_to_the_middle_of_their_box():
    points = torch.tensor([[0.0, 0.0], [10.0, 1000.0], [4.0, 400.0], [6.0, 100.0]])
    assert first(cb.Finite(points)).index == 2
    # coordinates count by their own widths: 400 of 1000 is nearer than 4 of 10 is far
    assert first(cb.Finite(points.double()[[0, 1, 3]])).index == 2


def test_a_large_set_is_looked_at_in_parts(monkeypatch):
    points = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0)).double()
    whole = first(cb.Finite(points)).index
    monkeypatch.setattr(middle, "CHUNK", 7)
    assert first(cb.Finite(points)).index == whole


def test_a_box_begins_at_its_centre():
    assert first(cb.Box([0.0, 10.0], [1.0, 30.0])).x.tolist() == [0.5, 20.0]
    rows = [[1.0, 9.0], [2.0, 4.0], [9.0, 1.0], [4.0, 5.0]]
    box = cb.Box([0.0], [1.0], choices=rows)
    assert first(box).x.tolist() == [0.5, 4.0, 5.0]
    space = cb.Space(
        rate=cb.Float(0.01, 1.0, log=True),
        codec=cb.Category("lz4", "zstd"),
        threads=cb.Int(1, 5),
    )
    params = first(space).params
    assert params["rate"] == pytest.approx(0.1)
    assert (params["codec"], params["threads"]) == ("lz4", 3)


def test_what_is_allowed_this_round_begins_nearest_to_the_middle():
    policy = grid_policy(cb.CKB)
    assert policy.ask(among=[0, 4, 8, 24]).index == 8
    space = cb.Space(codec=cb.Category("a", "b", "c"), size=cb.Int(1, 5))
    policy = grid_policy(cb.CKB, space)
    params = policy.ask(among={"codec": ["c", "b"]}).params
    assert params == {"codec": "b", "size": 3}
    own = cb.Finite(torch.tensor([[0.0], [1.0]]).double())
    new = torch.tensor([[0.9], [0.6], [0.1]]).double()
    assert grid_policy(cb.CKB, own).ask(actions=new).index == 1


def test_only_the_very_first_choice_goes_there():
    policy = grid_policy(cb.CKB)
    one, two, three = policy.ask(), policy.ask(), policy.ask()
    assert one.index == 12
    assert len({int(each.index) for each in (one, two, three)}) == 3
    for each in (one, two, three):
        policy.cancel(each)
    again = policy.ask()
    assert again.index == 12
    policy.tell(again, cost={"heat": 0.3})
    assert policy.ask().index != 12
    policy = grid_policy(cb.CKB)
    policy.observe(index=[3], reward=[1.0], cost=[[0.1]])
    assert policy.ask().index != 12


def test_a_middle_that_has_failed_is_left_for_the_next_nearest():
    policy = grid_policy(cb.CKB, failures=False)
    policy.tell(policy.ask(), failed=True)
    assert policy.ask().index == 7
    policy = grid_policy(cb.CKB, cb.Box([0.0], [1.0]), failures=False)
    policy.tell(policy.ask(), failed=True)
    assert policy.ask().x.tolist() != [0.5]


@pytest.mark.parametrize("rest", ["cancelled", "failed"])
@pytest.mark.parametrize("box", [False, True])
def test_trials_begin_as_they_would_alone(box, rest):
    if box and rest == "failed":
        pytest.skip("around a ball of a box a flat score is searched at random")
    actions = cb.Box([0.0], [1.0]) if box else cb.ProductGrid([AXIS, AXIS])

    def second(trials):
        policy = grid_policy(cb.CKB, actions, trials=trials, failures=False)
        size = policy.batch_shape[0]
        where = torch.tensor([True, False])[-size:]
        one = policy.ask()
        told = {"reward": torch.ones(size), "cost": torch.zeros(size, 1)}
        policy.tell(one, **told, where=where)
        if rest == "failed":
            policy.tell(one, failed=True, where=~where)
        else:
            policy.cancel(one)
        return policy.ask().x[-1].tolist()

    both = second(2)
    assert both == second(range(1, 2))
    assert both == {"cancelled": [0.5, 0.5], "failed": [0.25, 0.5]}[rest][-len(both) :]


def test_sets_of_each_trial_have_middles_of_their_own():
    points = torch.tensor([[[0.0], [1.0], [0.6]], [[0.0], [0.4], [1.0]]]).double()
    policy = grid_policy(cb.CKB, cb.Finite(points), trials=2)
    assert policy.ask().index.tolist() == [2, 1]


def test_own_kernels_and_arms_without_coordinates_begin_as_before():
    assert with_own_kernel().ask().index == 0
    kernel = gpytorch.kernels.RBFKernel().double()
    actions = cb.ProductGrid([AXIS])
    learned = cb.GP(kernel, standardize=True, refit_every=20)
    policy = cb.CKB(actions, reward=learned, costs=cb.GP.default(actions))
    assert policy.ask().index == 0
    arms = cb.Finite(covariance=torch.eye(5).double())
    assert grid_policy(cb.CKB, arms).ask().index == 0


def recommended(rewards, costs, limit, ns=range(1, 21)):
    space = cb.Space(n=cb.Int(1, 20))
    belief = cb.GP.default(space)
    goal = {"reward": belief, "costs": {"heat": belief}}
    policy = cb.RPOL(space, **goal, thresholds={"heat": limit})
    params = [{"n": n} for n, _ in zip(ns, rewards, strict=False)]
    policy.observe(params=params, reward=rewards, cost={"heat": costs})
    return policy.recommend()


@pytest.mark.parametrize("limit", [20.0, -5.0, -500.0])
def test_of_actions_that_are_all_far_over_the_limit_the_nearest_is_named(limit):
    costs = [22 + (20 - n) * 0.2 for n in range(1, 21)]
    best = recommended([1.0] * 20, costs, limit)
    assert best.params == {"n": 20}
    assert not bool(best.feasible)
    assert best.probability == 0


def test_one_outcome_makes_no_claim_elsewhere():
    best = recommended([7.0], [3.0], 100.0, ns=[15])
    assert best.params == {"n": 15}
    assert best.probability.isnan()
    assert "observed within its limits, margin heat 97" in str(best)


@pytest.mark.parametrize("told", [0.0, 2.0])
def test_a_cost_that_never_varies_is_judged_alike_in_every_unit(told):
    """Also one that exceeds its limit of 1."""
    bests = [
        recommended([float(n) for n in range(10)], [told * s] * 10, s)
        for s in (0.01, 1.0, 100.0)
    ]
    assert {float(best.probability) for best in bests} == {float(told < 1)}
    assert len({best.params["n"] for best in bests}) == 1
