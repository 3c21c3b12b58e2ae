"""Nothing that goes in or comes out shares memory with a policy."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from inside import cap_of, limits_of, step_of
from midway import F64, belief, line, policy_of, prepared, same_future

import cbandit as cb


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
            lambda made: limits_of(made, 1),
        ),
        ("step", lambda v: policy_of(step=v[0, 0]), step_of),
        ("cap", lambda v: policy_of(cap=v[0, 0]), cap_of),
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
    safe |= {"largest": 5.0}  # no reward told is above it
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
        if a.index is not None and a.t > 1:  # before data nothing is recommended
            recommended = policy.recommend()
            given += [recommended.x, recommended.index, recommended.value]
        for each in given:
            each.fill_(3)
        policy.tell(a, reward=reward, cost=cost)
        twin.tell(b, reward=reward.copy(), cost=cost.copy())
        reward[...], cost[...] = 7.0, 8.0


def held():
    """What users hold, by name, once a policy has been at work."""
    linear, safe = cb.Linear(0.1), cb.Safe(index=0, reward=0.0, cost=0.0)
    policy = prepared()[0]
    both = {"reward": linear, "costs": linear, "safe": safe, "thresholds": 0.5}
    counts = {name: cb.Counts(0.1) for name in ("reward", "costs")}
    problem = cb.problems.Table([0.5, 1.0], [[0.0, 0.1]], 0.1)
    player = cb.GPUCB(problem.actions, reward=belief(), explore=cb.UCB(1.0))
    things = [
        *(policy, given_out("Box", 2), given_out("Delayed", 2)),
        cb.LCLUCB(cb.Finite(line(6)), **both),
        cb.OPB(cb.Finite(line(6)), **both | counts, horizon=99),
        cb.EpochPenalty(cb.Finite(line()), reward=belief(), costs=1, epoch=4),
        cb.baselines.Random(cb.Finite(line(3)), costs=1),
        *(belief(), cb.GP.default(cb.Finite(line()))),
        *(cb.Finite(line()), cb.ProductGrid([line(3)[:, 0]] * 2)),
        *(cb.Box([0.0], [1.0]), cb.Star([0.0, 0.0], np.eye(2))),
        cb.Space(threads=cb.Int(1, 4), codec=cb.Category("lz4", "zstd")),
        policy.ask(),
        cb.simulate(player, problem, 5, progress=False),
    ]
    return {f"{i}-{type(thing).__name__}": thing for i, thing in enumerate(things)}


def tensors_in(thing, seen):
    """All tensors that can be reached from a thing through its attributes."""
    if id(thing) in seen or isinstance(thing, type):
        return []
    seen[id(thing)] = thing
    if isinstance(thing, torch.Tensor):
        return [thing]
    inside = list(getattr(thing, "__dict__", {}).values())
    if isinstance(thing, dict):
        inside += thing.values()
    elif isinstance(thing, list | tuple | set):
        inside += thing
    return [found for each in inside for found in tensors_in(each, seen)]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize(("name", "thing"), held().items())
def test_a_copy_shares_nothing_that_can_change(name, thing, copied):
    ours, theirs = (tensors_in(each, {}) for each in (thing, copied(thing)))
    assert len(ours) == len(theirs)
    places = {each.data_ptr() for each in ours if each.numel()}
    assert not places & {each.data_ptr() for each in theirs if each.numel()}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_of_a_policy_are_told_each_their_own(copied):
    policy, half, last = prepared()
    other, twin = copied(policy), prepared()[0]
    assert other.ask().id != policy.ask().id
    other.cancel(half.id)
    other.tell(last, reward=1.0, cost=[1.0, 2.0])  # both were outstanding in both
    assert [each.t for each in policy.outstanding] == [7, 8, 9]
    assert [each.t for each in other.outstanding] == [9]
    for each in (policy, twin):
        for choice in each.outstanding:
            each.cancel(choice)
    assert twin.ask().t == 9
    twin.cancel(twin.outstanding[0])
    assert same_future(policy, twin)


def test_a_copy_of_a_belief_has_a_kernel_of_its_own():
    gp = belief()
    before, other = gp.kernel.lengthscale.item(), copy.copy(gp)
    other.kernel.lengthscale = 7.0
    assert gp.kernel.lengthscale.item() == before


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
