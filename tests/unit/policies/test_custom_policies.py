"""Policies of one's own on cb.GPPolicy: two methods, on every set, engine and batch."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import pytest
import torch
from inside import next_look

import cbandit as cb

F64 = torch.float64
AXIS = torch.linspace(0, 1, 9, dtype=F64)
GRID = cb.ProductGrid([AXIS, AXIS])
ENGINES = ["joint", "factor", "product", "stream"]


class Geometric(cb.GPPolicy):
    """CKB whose multiplier moves by factors, as in ``help(cb.GPPolicy)``."""

    name = "Geometric"

    def __init__(self, actions, *, step=0.1, **common):
        super().__init__(actions, start=1.0, **common)
        self.step = step

    def score(self, t, phi):
        return cb.scores.PrimalDual(phi)

    def move(self, t, phi, estimate, arrived):
        return phi * (self.step * estimate[:, 1:]).exp()


class Squared(cb.GPPolicy):
    """RPOL whose penalty is squared: a score that no backend knows."""

    name = "Squared"

    def __init__(self, actions, **common):
        super().__init__(actions, start=1.0, **common)

    def score(self, t, q):
        def penalised(f, g):
            return f - (q.to(g).unsqueeze(-1) * g.clamp(min=0) ** 2).sum(1)

        return penalised

    def move(self, t, q, estimate, arrived):
        for excess in arrived:
            q = q + excess.clamp(min=0)
        return q.clamp(min=math.sqrt(t))


class Projected(cb.GPPolicy):
    """CKB once more."""

    def __init__(self, actions, **common):
        super().__init__(actions, start=0.0, **common)

    def score(self, t, phi):
        return cb.scores.PrimalDual(phi)

    def move(self, t, phi, estimate, arrived):
        return cb.multipliers.projected(phi, estimate[:, 1:], 0.2, 0.0, 3.0)


def belief():
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    return cb.GP(kernel, noise=0.01)


def built(kind, actions=GRID, m=2, **more):
    gp = belief()
    more = {"explore": cb.UCB(1.5, 1.0), "thresholds": 0.1, **more}
    return kind(actions, reward=gp, costs=[gp] * m, **more)


def world(x):
    """Reward and two costs ``(*b, 3)`` of points ``(*b, 2)``."""
    f = torch.sin(5 * x[..., 0]) + x[..., 1]
    return torch.stack([f, x[..., 0] - 0.4, x[..., 1] - x[..., 0]], -1)


def told(policy, choice):
    y = world(choice.x)
    policy.tell(choice, reward=y[..., 0], cost=y[..., 1:])
    return y


def estimates(policy, x=None):
    """Optimistic ``f (T, n)`` and ``g (T, m, n)``, less thresholds, by hand."""
    seen = policy.posterior() if x is None else policy.posterior(x)
    f = seen.reward.mean + 1.5 * seen.reward.std
    g = seen.costs.mean - seen.costs.std - 0.1
    single = policy.trials is None
    return (f.unsqueeze(0), g.unsqueeze(0)) if single else (f, g)


def by_hand(kind, phi, f, g):
    if kind is Geometric:
        return f - (phi.unsqueeze(-1) * g).sum(1)
    return f - (phi.unsqueeze(-1) * g.clamp(min=0) ** 2).sum(1)


@pytest.mark.parametrize("trials", [None, 3])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [Geometric, Squared])
def test_variants_play_and_move_as_they_are_written(kind, engine, trials):
    policy = built(kind, engine=engine, trials=trials)
    phi = torch.ones(trials or 1, 2, dtype=F64)
    for t in range(1, 26):
        torch.testing.assert_close(policy.multiplier.reshape(-1, 2), phi)
        f, g = estimates(policy)
        score = by_hand(kind, phi, f, g)
        choice = policy.ask()
        index = choice.index.reshape(-1, 1)
        best = score.gather(1, index).squeeze(1)
        torch.testing.assert_close(best, score.amax(1), rtol=0, atol=1e-9)
        y = told(policy, choice).reshape(-1, 3)
        if kind is Geometric:
            at = index.unsqueeze(1).expand(-1, 2, 1)
            phi = phi * (0.1 * g.gather(2, at).squeeze(2)).exp()
        else:
            phi = (phi + (y[:, 1:] - 0.1).clamp(min=0)).clamp(min=math.sqrt(t))


@pytest.mark.parametrize("kind", [Geometric, Squared])
@pytest.mark.parametrize("trials", [None, 2])
def test_variants_on_a_box(kind, trials):
    box = cb.Box([0.0, 0.0], [1.0, 1.0])
    policy = built(kind, box, trials=trials)
    candidates = GRID.points(torch.arange(81))
    for _ in range(4):
        told(policy, policy.ask())
    phi = policy.multiplier.reshape(-1, 2)
    grid = by_hand(kind, phi, *estimates(policy, candidates)).amax(1)
    beliefs = policy.posterior
    state = [beliefs(candidates).reward.mean]
    choice = policy.ask()
    here = choice.x.reshape(-1, 1, 2) if trials else choice.x.reshape(1, 2)
    found = by_hand(kind, phi, *estimates(policy, here)).squeeze(1)
    assert (found >= grid - 1e-9).all()
    assert torch.equal(beliefs(candidates).reward.mean, state[0])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("explore", [cb.UCB(1.0), cb.TS(1.0), cb.Rand(1.0)])
def test_a_score_of_the_librarys_is_as_fast_as_a_policy_of_the_librarys(
    engine, explore
):
    if explore.samples and engine in ("factor", "stream"):
        pytest.skip("random features are drawn by these engines; see test_sampling")
    mine = built(Projected, engine=engine, explore=explore)
    ours = built(cb.CKB, engine=engine, explore=explore, step=0.2, cap=3.0)
    for _ in range(20):
        looks = [next_look(policy) for policy in (mine, ours)]
        assert looks[0].score == looks[1].score == "primal-dual"
        a, b = mine.ask(), ours.ask()
        assert torch.equal(a.index, b.index)
        assert torch.equal(mine.multiplier, ours.multiplier)
        told(mine, a), told(ours, b)


class Noting(Projected):
    """Notes what ``move`` is given."""

    def __init__(self, actions, **common):
        super().__init__(actions, **common)
        self.moves = []

    def move(self, t, phi, estimate, arrived):
        self.moves.append((t, phi, estimate, [each.clone() for each in arrived]))
        return super().move(t, phi, estimate, arrived)


def test_moves_come_once_a_round_and_see_what_was_told_since():
    policy = built(Noting, trials=2)
    first, second = policy.ask(), policy.ask()
    y = world(first.x)
    policy.tell(first, cost=y[..., 1:], where=[False, True])
    told(policy, second)
    policy.ask()
    policy.tell(first, reward=y[..., 0], cost=y[..., 1:], where=[True, False])
    policy.ask()
    assert [each[0] for each in policy.moves] == [1, 2, 3]
    arrived = [each[3] for each in policy.moves]
    assert [len(each) for each in arrived] == [0, 2, 1]
    # in the order of rounds, less thresholds, 0 where nothing came
    over = y[..., 1:] - 0.1
    assert arrived[1][0].tolist() == [[0.0, 0.0], over[1].tolist()]
    torch.testing.assert_close(arrived[1][1], world(second.x)[..., 1:] - 0.1)
    assert arrived[2][0].tolist() == [over[0].tolist(), [0.0, 0.0]]
    assert all(each[2].shape == (2, 3) for each in policy.moves)


def test_looking_at_the_multiplier_does_not_move_it_twice():
    looked, plain = built(Noting), built(Noting)
    for _ in range(6):
        assert torch.equal(looked.multiplier, looked.multiplier)
        a, b = looked.ask(), plain.ask()
        assert torch.equal(a.index, b.index)
        told(looked, a), told(plain, b)
    assert torch.equal(looked.multiplier, plain.multiplier)
    assert len(looked.moves) == len(plain.moves) == 6


def test_late_feedback_after_a_look_still_counts():
    policy = built(Squared)
    choice = policy.ask()
    before = policy.multiplier
    policy.tell(choice, cost=[1.1, 0.6])
    assert (policy.multiplier - before).tolist() == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("restart", [4, "doubling"])
@pytest.mark.parametrize("forget", [False, True])
def test_restarts(restart, forget):
    policy = built(Geometric, restart=restart, forget=forget)
    starts = {1, 5, 9} if restart == 4 else {1, 2, 4, 8}
    for t in range(1, 12):
        phi = policy.multiplier
        assert (phi == 1).all() == (t in starts)
        before = policy.posterior().reward.std.min()
        choice = policy.ask()
        if t > 1 and t in starts:
            after = policy.posterior().reward.std.min()
            assert (float(after) == pytest.approx(1.0)) == forget
            assert before < 0.9
        told(policy, choice)


@pytest.mark.parametrize(
    "feedback", [cb.Sliding(5), cb.Delayed(3, 0.1), cb.Sliding(5, drift=0.1)]
)
def test_windows_and_delays(feedback):
    mine = built(Projected, feedback=feedback, explore=cb.UCB(1.0))
    ours = built(cb.CKB, feedback=feedback, explore=cb.UCB(1.0), step=0.2, cap=3.0)
    for _ in range(15):
        a, b = mine.ask(), ours.ask()
        assert torch.equal(a.index, b.index)
        told(mine, a), told(ours, b)
    assert torch.equal(mine.posterior().reward.mean, ours.posterior().reward.mean)


def test_outstanding_choices_may_count():
    policy = built(Geometric, pending="hallucinate")
    assert len({int(policy.ask().index) for _ in range(4)}) == 4


class Open(cb.GPPolicy):
    """Costs without a belief, seen before choosing."""

    name = "Open"

    def __init__(self, actions, **common):
        super().__init__(actions, costs=1, observed_costs=True, start=0.0, **common)

    def score(self, t, q):
        return cb.scores.PrimalDual(q)

    def move(self, t, q, estimate, arrived):
        assert not arrived
        return (q + estimate[:, 1:]).clamp(min=0)


def test_costs_seen_in_full():
    policy = Open(GRID, reward=belief(), explore=cb.UCB(1.0))
    g, total = torch.linspace(-0.5, 1, 81, dtype=F64), 0.0
    with pytest.raises(cb.CBanditError, match="Open sees the costs before it chooses"):
        policy.ask()
    for _ in range(8):
        choice = policy.ask(observed_costs=g)
        policy.tell(choice, reward=1.0)
        total = max(total + float(g[choice.index]), 0.0)
        assert float(policy.multiplier) == pytest.approx(total)
        policy.tell(choice, cost=0.3)  # known already


class Careful(cb.GPPolicy):
    """The best of what may be feasible."""

    name = "Careful"

    def score(self, t, multiplier):
        return cb.scores.Feasible()


def test_the_least_violation_where_nothing_may_be_feasible():
    policy = built(Careful, thresholds=[0.1, -50.0])
    choice = policy.ask()
    assert bool(choice.infeasible)
    assert policy.multiplier.shape == (0,)
    lower = policy.posterior().costs
    worst = (lower.mean - lower.std - torch.tensor([[0.1], [-50.0]])).amax(0)
    assert float(worst[choice.index]) == pytest.approx(float(worst.min()))
    assert not bool(built(Careful).ask().infeasible)


def test_a_variant_is_saved_and_goes_on(tmp_path):
    policy = built(Squared, explore=cb.TS(1.0), trials=2)
    for _ in range(5):
        told(policy, policy.ask())
    policy.save(tmp_path / "variant.ckpt")
    loaded = cb.load(tmp_path / "variant.ckpt", trust=(Squared,))
    for _ in range(5):
        a, b = policy.ask(), loaded.ask()
        assert torch.equal(a.index, b.index)
        told(policy, a), told(loaded, b)
    assert torch.equal(policy.multiplier, loaded.multiplier)


def test_what_a_variant_lacks_is_named():
    class Without(cb.GPPolicy):
        pass

    with pytest.raises(NotImplementedError, match=r"Without must define score\(\)"):
        built(Without).ask()
    with pytest.raises(TypeError, match="no argument 'colour'"):
        built(Geometric, colour=1)
    with pytest.raises(
        cb.CBanditError, match="restart must be 'doubling', 'adaptive' or a"
    ):
        built(Geometric, restart="weekly")
    with pytest.raises(cb.CBanditError, match="forget=True goes with restart="):
        built(Geometric, forget=True)


@pytest.mark.parametrize(
    "answer",
    [torch.zeros(1, 2), torch.zeros(2), 0.5, None, torch.zeros(3, 2).long()],
)
def test_a_move_that_is_no_multiplier_is_named(answer):
    class Strange(Projected):
        def move(self, t, phi, estimate, arrived):
            return answer

    policy = built(Strange, trials=3)
    told(policy, policy.ask())
    with pytest.raises(cb.CBanditError, match=r"Strange\.move must return .*\(3, "):
        policy.ask()


@pytest.mark.parametrize("weigh", [cb.scores.PrimalDual, cb.scores.Rectified])
@pytest.mark.parametrize("shape", [(3, 3), (1, 2), (3, 1), (2,)])
def test_a_score_of_another_weight_is_named(weigh, shape):
    class Strange(Projected):
        def score(self, t, phi):
            return weigh(torch.ones(shape, dtype=F64))

    with pytest.raises(cb.CBanditError, match=r"Strange\.score must weigh .*\(3, 2\)"):
        built(Strange, trials=3).ask()


def test_a_score_that_weighs_by_no_multiplier_is_named():
    class Without(cb.GPPolicy):
        def score(self, t, phi):
            return cb.scores.Rectified(phi)

    with pytest.raises(cb.CBanditError, match=r"\(1, 0\); without start="):
        built(Without).ask()


@pytest.mark.parametrize("score", [torch.zeros(1, 81), None, cb.scores.Rectified])
def test_a_score_that_is_no_score_is_named(score):
    class Strange(Projected):
        def score(self, t, phi):
            return score

    with pytest.raises(cb.CBanditError, match=r"Strange\.score must return one of"):
        built(Strange).ask()


@pytest.mark.parametrize(
    ("trials", "given", "wanted"),
    [
        (None, [0.1, 0.3], [0.1, 0.3]),
        (3, [0.1, 0.3], [[0.1, 0.3]] * 3),
        (3, [0.1, 0.3, 0.5], [[0.1, 0.1], [0.3, 0.3], [0.5, 0.5]]),
        (3, [[0.1, 0.3]], [[0.1, 0.3]] * 3),
        (2, [[0.1, 0.3]], [[0.1, 0.3]] * 2),
        (2, [[0.1], [0.3]], [[0.1, 0.1], [0.3, 0.3]]),
        (2, [0.2, 0.2], [[0.2, 0.2]] * 2),
        (2, [0.1, 0.3], [[0.1, 0.1], [0.3, 0.3]]),
    ],
)
def test_numbers_for_trials_and_for_costs_are_told_apart(trials, given, wanted):
    class Kept(Projected):
        def __init__(self, actions, start, **common):
            cb.GPPolicy.__init__(self, actions, start=start, **common)

    assert built(Kept, trials=trials, start=given).multiplier.tolist() == wanted


def weighed(phi, f, g):
    return f - (phi.unsqueeze(-1).to(g) * g).sum(1)


WRONG = {
    "one action less": lambda phi, f, g: weighed(phi, f, g)[:, 1:],
    "one number": lambda phi, f, g: weighed(phi, f, g).amax(-1, keepdim=True),
    "no trials": lambda phi, f, g: weighed(phi, f, g)[0],
    "one trial": lambda phi, f, g: weighed(phi, f, g)[:1],
    "costs not added up": lambda phi, f, g: f.unsqueeze(1) - g,
    "whether": lambda phi, f, g: (g <= 0).all(1),
    "numpy": lambda phi, f, g: weighed(phi, f, g).detach().numpy(),
    "nothing": lambda phi, f, g: None,
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("actions", [GRID, cb.Box([0.0, 0.0], [1.0, 1.0])])
def test_a_function_that_returns_other_than_scores_is_named(actions, wrong):
    class Strange(Projected):
        def score(self, t, phi):
            return lambda f, g: WRONG[wrong](phi, f, g)

    words = r"Strange\.score returned must return a score for each action, .*\(T, n\)"
    with pytest.raises(cb.CBanditError, match=words):
        built(Strange, actions, trials=3).ask()


def test_scores_of_another_precision_will_do():
    class Half(Projected):
        def score(self, t, phi):
            return lambda f, g: weighed(phi, f, g).float()

    for actions in (GRID, cb.Box([0.0, 0.0], [1.0, 1.0])):
        assert built(Half, actions, trials=3).ask().x.shape == (3, 2)


@pytest.mark.parametrize(
    "change",
    [
        lambda phi, f, g: f.sub_(g.sum(1)),
        lambda phi, f, g: f - g.clamp_(min=0).sum(1),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_score_changes_nothing_in_place(engine, change):
    class Strange(Projected):
        def score(self, t, phi):
            return lambda f, g: change(phi, f, g)

    with pytest.raises(cb.CBanditError, match=r"Strange\.score returned must not chan"):
        built(Strange, engine=engine).ask()


def test_multipliers_and_estimates_are_not_changed_in_place():
    class Scoring(Projected):
        def score(self, t, phi):
            return cb.scores.PrimalDual(phi.mul_(2))

    class Moving(Projected):
        def move(self, t, phi, estimate, arrived):
            return phi.add_(1.0)

    class Clamping(Projected):
        def move(self, t, phi, estimate, arrived):
            return phi + estimate.clamp_(min=0)[:, 1:]

    with pytest.raises(cb.CBanditError, match=r"Scoring\.score must not change"):
        built(Scoring).ask()
    for kind in (Moving, Clamping):
        policy = built(kind)
        told(policy, policy.ask())
        with pytest.raises(cb.CBanditError, match=r"\.move must not change"):
            policy.ask()


def test_a_multiplier_with_a_move_of_its_own_begins_at_0():
    class Two(cb.GPPolicy):  # score and move, and no constructor
        score, move = Projected.score, Projected.move

    ours, its = built(Two), built(Projected)
    for _ in range(6):
        assert torch.equal(told(ours, ours.ask()), told(its, its.ask()))
    assert torch.equal(ours.multiplier, its.multiplier)
    assert bool((ours.multiplier > 0).any())


def test_a_function_that_lacks_a_multiplier_is_told_so():
    class Without(cb.GPPolicy):
        def score(self, t, phi):
            return lambda f, g: weighed(phi, f, g)

    with pytest.raises(cb.CBanditError, match=r"Without.score: .*; without start="):
        built(Without).ask()


def test_a_multiplier_that_is_not_finite_is_named():
    class Lost(Projected):
        def move(self, t, phi, estimate, arrived):
            phi = phi + 1
            phi[1] = np.nan
            return phi

    policy = built(Lost, trials=3)
    told(policy, policy.ask())
    with pytest.raises(
        cb.CBanditError, match=r"move returned is not .*\(trials \[1\]\)"
    ):
        policy.ask()


def test_a_score_without_a_bound_below_is_named_on_a_box_too():
    class Lost(Projected):
        def score(self, t, phi):
            return lambda f, g: f - torch.inf

    box = cb.Box([0.0, 0.0], [1.0, 1.0])
    for trials in (None, 3):
        with pytest.raises(cb.CBanditError, match="not a finite number at any allowed"):
            built(Lost, box, trials=trials).ask()


def test_a_score_that_is_nowhere_finite_is_named():
    class Lost(Projected):
        def score(self, t, phi):
            return lambda f, g: f * np.nan

    with pytest.raises(cb.CBanditError, match="not a finite number at any allowed"):
        built(Lost).ask()
