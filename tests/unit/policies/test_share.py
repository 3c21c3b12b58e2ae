"""Of all rounds so far, a stated share within all limits: the keyword share=."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from inside import Share, concern_of, now_of
from scipy.stats import norm

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 7, dtype=F64)
GRID = cb.ProductGrid([AXIS, AXIS])
POINTS = torch.cartesian_prod(AXIS, AXIS)
SCALE, NOISE = 0.3, 1e-2


def belief(**more):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(SCALE, dtype=F64)
    return cb.GP(kernel, noise=NOISE, **more)


def rpol(on=GRID, **more):
    return cb.RPOL(on, reward=belief(), costs=[belief(), belief()], **more)


def cost_at(x):
    return torch.stack([x[..., 0] - 0.6, 1.5 * x[..., 1] - 1.0], -1)


def tell(policy, choice):
    policy.tell(choice, reward=choice.x.sum(-1), cost=cost_at(choice.x))


def chances(x, cost, at):
    """Of two independent costs below 0, by a dense solve and scipy."""

    def k(a, b):
        return torch.exp(-torch.cdist(a, b).square() / (2 * SCALE**2))

    gram, cross = k(x, x) + NOISE * torch.eye(len(x), dtype=F64), k(at, x)
    mean = cross @ torch.linalg.solve(gram, cost)
    std = (1 - (cross * torch.linalg.solve(gram, cross.mT).mT).sum(-1)).sqrt()
    return torch.from_numpy(norm.cdf(-mean.numpy() / std.numpy()[:, None]).prod(-1))


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_the_confidence_follows_the_rounds_that_are_short(share):
    """Against the formula, with every probability from a dense solve."""
    policy, played = rpol(share=share), []
    early = [policy.ask(), policy.ask()]  # they wait, and count all the same
    for _ in range(6):
        choice = policy.ask()
        if played:
            x = torch.stack(played)
            known = torch.cat([x, *[each.x.unsqueeze(0) for each in early]])
            within = float(chances(x, cost_at(x), known).sum())
            short = share * len(known) - within + 1.0
            wanted = norm.cdf(min(4.0, norm.ppf(share) + short))
            sure = chances(x, cost_at(x), POINTS)
            chance = chances(x, cost_at(x), choice.x.unsqueeze(0))[0]
            if bool((sure >= wanted).any()):
                assert chance >= wanted - 1e-7
                assert not choice.infeasible
            else:
                assert chance >= sure.max() - 1e-7
                assert bool(choice.infeasible)
            asked = float(now_of(policy, Share).least)
            assert asked == pytest.approx(wanted, abs=1e-9)
        tell(policy, choice)
        played.append(choice.x)


def drawn(trials, seed=0):
    """Functions of the belief's own law, which a part of the set keeps in each."""
    generator = torch.Generator().manual_seed(seed)
    gram = torch.exp(-torch.cdist(POINTS, POINTS).square() / (2 * SCALE**2))
    root = torch.linalg.cholesky(gram + 1e-9 * torch.eye(len(POINTS), dtype=F64))
    values = torch.randn(trials, 2, len(POINTS), generator=generator, dtype=F64)
    f, g = (values @ root.mT).unbind(1)
    return f, g


def within(share, feedback=None, trials=60, rounds=50):
    """The share of each trial's rounds that kept a limit which most actions exceed."""
    f, g = drawn(trials)
    tau = g.quantile(0.3, dim=-1).unsqueeze(-1)
    world = cb.problems.Table(
        f, g.unsqueeze(1), 0.01, 0.01, actions=GRID, trials=trials, thresholds=tau
    )
    policy = cb.RPOL(
        GRID,
        reward=belief(),
        costs=belief(),
        explore=cb.UCB(2.0),
        trials=trials,
        thresholds=tau,
        share=share,
        feedback=feedback,
        **({"horizon": rounds} if feedback else {}),
    )
    run = cb.simulate(policy, world, rounds, progress=False)
    return (run.true_costs <= 0).all(-1).double().mean(-1)


def test_of_all_rounds_that_share_keeps_the_limits():
    """60 random problems: nine runs of ten, where without it every other one does."""
    share = 0.8
    kept = within(share)
    assert (kept >= share).double().mean() >= 0.9
    assert kept.mean() < 0.99  # it is not bought by playing safe
    assert (within(None) >= share).double().mean() < 0.6


def test_trials_have_a_share_each():
    shares = torch.tensor([0.5, 0.95]).repeat(30)
    kept = within(shares)
    assert kept[1::2].mean() > kept[::2].mean()
    assert (kept[1::2] >= 0.9).double().mean() >= 0.9


@pytest.mark.parametrize("feedback", [cb.Sliding(20), cb.Delayed(5)])
def test_windows_and_late_feedback(feedback):
    f, g = drawn(1)
    policy = cb.RPOL(
        GRID,
        reward=belief(),
        costs=belief(),
        explore=cb.UCB(1.0),
        share=0.8,
        feedback=feedback,
        thresholds=0.2,
        horizon=40,
    )
    waiting = []
    for _ in range(40):
        waiting.append(policy.ask())
        if len(waiting) == 3:
            choice = waiting.pop(0)
            at = choice.index
            policy.tell(choice, reward=f[0, at], cost=g[0, at])
    rounds = concern_of(policy, Share)
    old = int(rounds.settled_count) + len(rounds.open)
    assert old == 38
    if isinstance(feedback, cb.Sliding):
        assert min(each.t for each in rounds.open) >= 20


def test_rounds_that_leave_a_window_are_judged_with_their_outcome():
    """Independent arms: without its outcome each would count as half a round."""
    arms = cb.Finite(covariance=torch.eye(30, dtype=F64))
    gp = cb.GP(noise=NOISE)
    policy = cb.RPOL(
        arms, reward=gp, costs=gp, thresholds=0.0, share=0.8, horizon=40,
        explore=cb.UCB(1.0), feedback=cb.Sliding(5),
    )  # fmt: skip
    for arm in range(30):
        policy.tell(policy.ask(among=[arm]), reward=0.0, cost=-3.0)
    rounds = concern_of(policy, Share)
    assert rounds.settled_count == 25
    assert rounds.within > 0.99 * 25


def test_the_order_of_tells_does_not_matter():
    one, other = rpol(share=0.9), rpol(share=0.9)
    for policy, order in ((one, (0, 1, 2)), (other, (2, 0, 1))):
        choices = [policy.ask() for _ in range(3)]
        for i in order:
            tell(policy, choices[i])
            policy.multiplier  # noqa: B018  a look changes nothing
    assert torch.equal(one.ask().index, other.ask().index)
    # beliefs agree to rounding when they are told in another order
    asked = [float(now_of(policy, Share).least) for policy in (one, other)]
    assert asked[0] == pytest.approx(asked[1], rel=1e-9)


def test_costs_that_come_one_by_one_count_once():
    policy = cb.CKB(
        GRID, reward=belief(), costs={"a": belief(), "b": belief()}, share=0.8,
        thresholds={"a": "<= 0.1", "b": "<= 0.1"}, step=0.1, cap=5.0,
    )  # fmt: skip
    first, second, lost = policy.ask(), policy.ask(), policy.ask()
    policy.tell(first, cost={"a": 0.0})
    policy.ask()
    assert not now_of(policy, Share).open
    policy.tell(first, cost={"b": 0.0})
    policy.tell(second, reward=1.0, cost={"a": 0.0, "b": 0.3})
    policy.tell(lost, cost={"a": 0.0})
    policy.cancel(lost)
    policy.ask()
    assert [each.t for each in now_of(policy, Share).open] == [1, 2]


def test_it_resumes_bit_for_bit(tmp_path):
    policy = rpol(share=0.7, trials=3)
    for _ in range(5):
        tell(policy, policy.ask())
    left = policy.ask()
    policy.save(tmp_path / "a.ckpt")
    copy = cb.load(tmp_path / "a.ckpt")
    for each in (policy, copy):
        tell(each, left if each is policy else each.outstanding[0])
    for _ in range(4):
        one, other = policy.ask(), copy.ask()
        assert torch.equal(one.index, other.index)
        states = [now_of(each, Share) for each in (policy, copy)]
        assert torch.equal(states[0].least, states[1].least)
        tell(policy, one)
        tell(copy, other)


@pytest.mark.parametrize("kind", ["box", "context"])
def test_boxes_and_contexts(kind):
    on = cb.Box([0.0, 0.0], [1.0, 1.0])
    shown = {}
    if kind == "context":
        on = cb.Space(a=cb.Category("s", "m", "l"), z=cb.Context(cb.Float(0, 1)))
        shown = {"context": {"z": 0.4}}
    gp = cb.GP.default(on)
    policy = cb.CKB(on, reward=gp, costs=gp, thresholds=0.5, share=0.7)
    for _ in range(7):
        choice = policy.ask(**shown)
        x = float(choice.x[0])
        policy.tell(choice, reward=x, cost=x)
    rounds = concern_of(policy, Share)
    assert len(rounds.open) == 7
    assert 0 < float(rounds.least) < 1


def test_a_confidence_goes_before_it():
    policy = rpol(share=0.9)
    for _ in range(8):
        tell(policy, policy.ask())
    x, cost = (torch.stack(each) for each in told_of(policy))
    sure = chances(x, cost, POINTS)
    choice = policy.ask(confidence=0.05)
    assert float(sure.max()) > 0.9  # share would ask for more
    assert chances(x, cost, choice.x.unsqueeze(0))[0] >= 0.05
    assert not choice.infeasible


def told_of(policy):
    frame = policy.history()
    places = [POINTS[int(i)] for i in frame["action"]]
    return places, [cost_at(x) for x in places]


@pytest.mark.parametrize("wrong", [0.0, 1.0, 80, float("nan")])
def test_a_share_lies_between_0_and_1(wrong):
    with pytest.raises(cb.CBanditError, match="share must lie between 0 and 1"):
        rpol(share=wrong)


def test_policies_without_beliefs_about_costs_say_so():
    with pytest.raises(cb.CBanditError, match="GPUCB takes no share="):
        cb.GPUCB(GRID, reward=belief(), share=0.9)
    with pytest.raises(cb.CBanditError, match="SCGPUCB takes no share="):
        cb.SCGPUCB(
            GRID, reward=belief(), costs=1, schedule=1, slater=0.5, share=0.9,
            clip=(2.0, 2.0), explore=cb.UCB(1.0),
        )  # fmt: skip
