"""Estimates, scores and multipliers: hand values, laws of Rand's draws, gradients."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from inside import Streams, estimates
from scipy import stats

import cbandit as cb
from cbandit import multipliers, scores

F64 = torch.float64
CPU = torch.device("cpu")
RATE = 1e-6  # how often a right sampler would fail each test; seeds are fixed


def widths(explore, batch=(), m=1, t=1, gain=None, noise=None):
    bound = explore.widths.bind(batch, m, CPU)
    shape = (*(batch or (1,)), 1 + m)
    gain = torch.zeros(shape, dtype=F64) if gain is None else gain
    noise = torch.ones(shape, dtype=F64) if noise is None else noise
    return bound(t, gain, lambda: noise)


def test_ucb_is_optimistic_in_both():
    explore = cb.UCB(2.0, 3.0)
    width = widths(explore, (2,), 2)
    coefficient = explore.coefficient(width, Streams(0, 2))
    assert coefficient.tolist() == [[2.0, -3.0, -3.0]] * 2
    assert width.min() > 0  # what a policy keeps is as it was
    mean, std = torch.ones(2, 3, 4, dtype=F64), torch.full((2, 1, 4), 0.5, dtype=F64)
    found = estimates(mean, std, coefficient)
    assert found[:, :, 0].tolist() == [[2.0, -0.5, -0.5]] * 2


def test_widths_of_all_shapes():
    assert widths(cb.UCB(2.0), (), 2).tolist() == [[2.0, 2.0, 2.0]]
    assert widths(cb.UCB([1.0, 2.0]), (2,), 1).tolist() == [[1.0, 1.0], [2.0, 2.0]]
    per_cost = cb.UCB(1.0, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert widths(per_cost, (2,), 3)[:, 1:].tolist() == [
        [1.0, 2.0, 3.0],
        [4.0, 5.0, 6.0],
    ]
    gain = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=F64)
    own = cb.UCB(lambda t, gain: t + gain)
    assert widths(own, (2,), 2, 10, gain).tolist() == [[11.0, 12.0, 13.0], [14, 15, 16]]
    constant = cb.UCB(cb.Constant(0.5), cb.Constant([1.0, 2.0]))
    assert widths(constant, (), 2).tolist() == [[0.5, 1.0, 2.0]]
    kept = np.array([1.0, 2.0])
    explore = cb.UCB(kept)
    bound = explore.widths.bind((2,), 1, CPU)
    kept[:] = 9.0
    assert bound(1, gain, lambda: gain).tolist() == [[1.0, 1.0], [2.0, 2.0]]


def draws(explore, count=4000, m=1, trials=2):
    streams, width = Streams(3, trials), widths(explore, (trials,), m)
    out = [explore.coefficient(width, streams) for _ in range(count)]
    return torch.stack(out).numpy()


def test_normal_draws():
    found = draws(cb.Rand(2.0, 0.5))
    for scale, column in ((2.0, found[..., 0]), (0.5, found[..., 1])):
        for trial in range(2):
            assert stats.kstest(column[:, trial] / scale, "norm").pvalue > RATE
    flat = found.reshape(len(found), -1)
    z = np.corrcoef(flat.T)[np.triu_indices(4, 1)] * np.sqrt(len(flat))
    assert 2 * stats.norm.sf(abs(z).max()) * z.size > RATE


def chi_square(values: np.ndarray, points: np.ndarray, share: np.ndarray) -> float:
    place = abs(values[:, None] - points).argmin(1)
    assert abs(values - points[place]).max() <= 1e-12
    seen = np.bincount(place, minlength=len(points))
    return stats.chisquare(seen, share / share.sum() * len(values)).pvalue


def test_uniform_draws():
    found = draws(cb.Rand(1.5, 0.5, draw="uniform", points=11))
    points, even = np.linspace(0, 3, 11), np.ones(11)
    for trial in range(2):
        assert chi_square(found[:, trial, 0], points, even) > RATE
        assert chi_square(-found[:, trial, 1], points / 3, even) > RATE
    assert found[..., 0].min() == 0.0
    assert found[..., 0].max() == pytest.approx(3.0)


def test_gaussian_grid_draws():
    explore = cb.Rand(2.0, 1.0, draw="gaussian-grid", points=9, low=-0.5, high=1.5)
    found = draws(explore)
    points = np.linspace(-0.5, 1.5, 9)
    share = np.exp(-0.5 * points**2)
    for trial in range(2):
        assert chi_square(found[:, trial, 0], 2 * points, share) > RATE
        assert chi_square(-found[:, trial, 1], points, share) > RATE
    # the same test sees the weights of another law
    assert chi_square(found[:, 0, 0], 2 * points, np.ones(9)) < RATE


def top(generator, shape):
    return torch.ones(shape)


def test_draws_of_ones_own():
    assert draws(cb.Rand(2.0, 0.5, draw=top), 1).tolist() == [[[2.0, -0.5]] * 2]
    bad = cb.Rand(1.0, draw=lambda generator, shape: torch.full(shape, torch.nan))
    with pytest.raises(cb.CBanditError, match="draw"):
        draws(bad, 1)
    short = cb.Rand(1.0, draw=lambda generator, shape: torch.ones(3, 5))
    with pytest.raises(cb.CBanditError, match="draw"):
        draws(short, 1)


def test_scores_by_hand():
    f = torch.tensor([1.0, 2.0, 3.0], dtype=F64)
    g = torch.tensor([[-1.0, 0.5, 2.0], [0.0, 1.0, -3.0]], dtype=F64)
    phi = torch.tensor([2.0, 0.5], dtype=F64)
    assert scores.primal_dual(f, g, phi).tolist() == [3.0, 0.5, 0.5]
    assert scores.primal_dual(f, g[:1], phi[:1]).tolist() == [3.0, 1.0, -1.0]
    assert scores.rectified(f, g, phi).tolist() == [1.0, 0.5, -1.0]
    assert scores.optimistic_feasible(f, g).tolist() == [1.0, -torch.inf, -torch.inf]
    assert scores.least_violating(g).tolist() == [-0.0, -1.0, -2.0]
    assert scores.clip(f, 1.5).tolist() == [1.0, 1.5, 1.5]
    batch = torch.stack([f, 2 * f]), torch.stack([g, -g]), torch.stack([phi, 3 * phi])
    assert scores.primal_dual(*batch)[1].tolist() == [2 - 6.0, 4 + 4.5, 6 + 7.5]


def test_multipliers_by_hand():
    phi = torch.tensor([0.0, 1.0, 2.9], dtype=F64)
    g = torch.tensor([-1.0, 0.5, 1.0], dtype=F64)
    found = multipliers.projected(phi, g, 0.2, 0.1, 3.0)
    assert found.tolist() == pytest.approx([0.0, 1.12, 3.0])
    assert multipliers.queue(phi, g, 0.1).tolist() == pytest.approx([0.0, 1.6, 4.0])
    assert multipliers.rectified(phi, g, 1.2).tolist() == pytest.approx([1.2, 1.5, 3.9])


def test_gradients_flow():
    torch.manual_seed(0)
    f = torch.randn(2, 5, dtype=F64, requires_grad=True)
    for m in (1, 3):
        g = torch.randn(2, m, 5, dtype=F64, requires_grad=True)
        phi = torch.rand(2, m, dtype=F64, requires_grad=True)
        mean = torch.randn(2, 1 + m, 5, dtype=F64, requires_grad=True)
        std = torch.rand(2, 1, 5, dtype=F64, requires_grad=True)
        beta = torch.rand(2, 1 + m, dtype=F64, requires_grad=True)
        assert torch.autograd.gradcheck(scores.primal_dual, (f, g, phi))
        assert torch.autograd.gradcheck(scores.rectified, (f, g, phi))
        assert torch.autograd.gradcheck(estimates, (mean, std, beta))
        at = g.detach()[..., 0].clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda p, v: multipliers.projected(p, v, 0.1, 0.2, 5.0), (phi, at)
        )
        assert torch.autograd.gradcheck(lambda p, v: multipliers.queue(p, v), (phi, at))
        assert torch.autograd.gradcheck(
            lambda p, v: multipliers.rectified(p, v, 0.01), (phi, at)
        )


@pytest.mark.parametrize("shared", [True, False])
def test_long_rows_are_scaled_one_by_one_and_alike(shared):
    """From 2^14 actions on each function's row is scaled by a number."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(1, 3, 1 << 14, generator=generator).double()
    spread = torch.rand(1, 1 if shared else 3, 1 << 14, generator=generator).double()
    scale = torch.tensor([[2.0, -0.5, -3.0]]).double()
    found = estimates(mean, spread, scale)
    torch.testing.assert_close(found, mean + scale[..., None] * spread)


def rbf(x, y):
    gap = np.asarray(x)[:, None] - np.asarray(y)[None]
    return np.exp(-0.5 * np.square(gap / 0.2).sum(-1))


def told_policy(kind, actions, trials=None, **explore):
    """A policy over a line, told three rewards and costs."""
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=F64)
    gp = cb.GP(kernel, noise=1e-2)
    policy = kind(
        actions, reward=gp, costs=[gp], explore=cb.UCB(**explore), trials=trials
    )
    x = torch.tensor([[0.1], [0.5], [0.9]], dtype=F64)
    cost = torch.tensor([[-3.0], [-1.0], [2.0]], dtype=F64)
    batch = () if trials is None else (trials,)
    reward = torch.tensor([0.0, 1.0, 2.0], dtype=F64)
    policy.observe(
        x=x.expand(*batch, 3, 1),
        reward=reward.expand(*batch, 3),
        cost=cost.expand(*batch, 3, 1),
    )
    return policy, x, reward, cost


class TestNegativeCostWidths:
    GRID = torch.linspace(0, 1, 101, dtype=F64).unsqueeze(-1)

    def score(self, dense, x, reward, cost, width):
        """RPOL's first score on the grid, by a dense solve."""
        beliefs = [dense(rbf, 1e-2), dense(rbf, 1e-2)]
        for gp, y in zip(beliefs, (reward, cost[:, 0]), strict=True):
            for point, value in zip(x, y, strict=True):
                gp.add(point, value)
        (f, s), (g, r) = (gp.posterior(self.GRID.numpy()) for gp in beliefs)
        return f + s - np.maximum(g - width * r, 0)

    @pytest.mark.parametrize("width", [-1.0, -2.5, 0.0])
    @pytest.mark.parametrize("kind", ["finite", "box", "trials"])
    def test_they_add_deviations_to_the_mean(self, dense, width, kind):
        box = cb.Box([0.0], [1.0])
        actions = box if kind == "box" else cb.Finite(self.GRID)
        trials = 2 if kind == "trials" else None
        policy, *data = told_policy(cb.RPOL, actions, trials, beta=1.0, cost_beta=width)
        choice, score = policy.ask(), self.score(dense, *data, width)
        if kind == "box":
            assert choice.x.item() == pytest.approx(score.argmax() / 100, abs=0.01)
        else:
            assert set(choice.index.reshape(-1).tolist()) == {int(score.argmax())}
        optimistic = self.score(dense, *data, 1.0)
        assert optimistic.argmax() > score.argmax() + 3

    def test_one_a_cost_and_a_trial(self):
        explore = cb.UCB(1.0, [[-1.0, 2.0], [0.0, -3.0]])
        width = widths(explore, (2,), 2)
        coefficient = explore.coefficient(width, Streams(0, 2))
        assert coefficient.tolist() == [[1.0, 1.0, -2.0], [1.0, 0.0, 3.0]]

    def test_a_saved_policy_goes_on(self, tmp_path):
        policy, *_ = told_policy(cb.RPOL, cb.Box([0.0], [1.0]), cost_beta=-1.0, beta=1)
        policy.save(tmp_path / "policy.pt")
        copy = cb.load(tmp_path / "policy.pt")
        for _ in range(3):
            first, second = policy.ask(), copy.ask()
            assert torch.equal(first.x, second.x)
            policy.tell(first, reward=0.5, cost=0.1)
            copy.tell(second, reward=0.5, cost=0.1)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda a, gp: cb.TS(1.0, -1.0), "cost_beta must not be negative"),
            (lambda a, gp: cb.Rand(1.0, -1.0), "cost_beta must not be negative"),
            (lambda a, gp: cb.UCB(-1.0), "beta must not be negative"),
            (lambda a, gp: cb.UCB(1.0, [1.0, np.nan]), "cost_beta must be finite"),
            (
                lambda a, gp: cb.RPOL(
                    a,
                    reward=gp,
                    costs=gp,
                    explore=cb.UCB(1.0, -1.0),
                    feedback=cb.Delayed(3, weight=1.0),
                ),
                "cost_beta must not be negative with feedback=cb.Delayed",
            ),
            (
                lambda a, gp: cb.baselines.SafeOpt(
                    a,
                    reward=gp,
                    costs=gp,
                    explore=cb.UCB(1.0, -1.0),
                    safe=cb.Safe(index=0),
                ),
                "SafeOpt takes no negative cost_beta",
            ),
        ],
    )
    def test_where_they_mean_nothing(self, make, words):
        actions = cb.Finite(self.GRID)
        with pytest.raises(cb.CBanditError, match=words):
            make(actions, cb.GP.default(actions))


class TestMargins:
    GRID = TestNegativeCostWidths.GRID

    @pytest.mark.parametrize("trials", [None, 2])
    @pytest.mark.parametrize("box", [False, True])
    def test_costs_are_raised_by_deviations_at_the_last_choice(
        self, dense, trials, box
    ):
        actions = cb.Box([0.0], [1.0]) if box else cb.Finite(self.GRID)
        margin = 2.0 if trials is None else torch.tensor([2.0, 0.5], dtype=F64)
        policy, x, reward, cost = told_policy(
            cb.RPOL, actions, trials, beta=1.0, margin=margin
        )
        first = policy.ask()
        policy.tell(
            first,
            reward=torch.full((trials,) if trials else (), 2.0),
            cost=torch.full((trials,) if trials else (), 0.0),
        )
        q = policy.multiplier.reshape(-1)
        second = policy.ask()
        for i, kappa in enumerate(torch.as_tensor(margin).reshape(-1).tolist()):
            place = first.x.reshape(-1, 1)[i].numpy()
            beliefs = [dense(rbf, 1e-2), dense(rbf, 1e-2)]
            for gp, y in zip(beliefs, (reward, cost[:, 0]), strict=True):
                for point, value in zip(x, y, strict=True):
                    gp.add(point, value)
            before = beliefs[1].posterior(place[None])[1].item()
            for gp, y in zip(beliefs, (2.0, 0.0), strict=True):
                gp.add(place, y)
            (f, s), (g, r) = (gp.posterior(self.GRID.numpy()) for gp in beliefs)

            def best(kappa, f=f, s=s, g=g, r=r, before=before, i=i):
                over = np.maximum(g - r + kappa * before, 0)
                return int((f + s - q[i].item() * over).argmax()) / 100

            chosen = second.x.reshape(-1)[i].item()
            assert chosen == pytest.approx(best(kappa), abs=0.006 if box else 1e-9)
            assert best(kappa) < best(0.0) - 0.02  # without one it goes further

    def test_the_first_round_has_none(self):
        plain, *_ = told_policy(cb.RPOL, cb.Finite(self.GRID), beta=1.0)
        wary, *_ = told_policy(cb.RPOL, cb.Finite(self.GRID), beta=1.0, margin=2.0)
        assert plain.ask().index == wary.ask().index

    def test_a_saved_policy_goes_on(self, tmp_path):
        policy, *_ = told_policy(cb.RPOL, cb.Box([0.0], [1.0]), beta=1.0, margin=2.0)
        policy.tell(policy.ask(), reward=0.5, cost=0.1)
        policy.save(tmp_path / "policy.pt")
        copy = cb.load(tmp_path / "policy.pt")
        for _ in range(3):
            first, second = policy.ask(), copy.ask()
            assert torch.equal(first.x, second.x)
            policy.tell(first, reward=0.5, cost=0.1)
            copy.tell(second, reward=0.5, cost=0.1)

    def test_a_draw_takes_one(self):
        policy = cb.RPOL(
            cb.Finite(self.GRID),
            reward=cb.GP.default(cb.Finite(self.GRID)),
            costs=[cb.GP.default(cb.Finite(self.GRID))] * 2,
            explore=cb.TS(1.0, margin=[1.0, 3.0]),
        )
        for t in range(4):
            policy.tell(policy.ask(), reward=t, cost=[t - 2.0, 1.0 - t])
        assert repr(policy.explore) == "TS(1.0, margin=[1.0, 3.0])"

    def test_it_is_usual_under_default_beliefs_alone(self):
        actions = cb.Finite(self.GRID)
        gp = cb.GP.default(actions)
        kernel = gpytorch.kernels.RBFKernel().double()
        mine = cb.GP(kernel, noise=0.1, standardize=True)
        late = cb.Delayed(3, weight=1.0)

        def said(reward, costs, **more):
            return repr(cb.RPOL(actions, reward=reward, costs=costs, **more).explore)

        assert said(gp, gp) == "UCB(1.0, margin=2.0)"
        assert said(gp, mine) == said(mine, mine) == "UCB(1.0)"
        assert said(gp, gp, feedback=late) == "UCB(1.0)"

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda a, gp: cb.UCB(1.0, margin=-1.0), "margin must not be negative"),
            (
                lambda a, gp: cb.GPUCB(a, reward=gp, explore=cb.UCB(1.0, margin=1.0)),
                "margin of explore= goes with beliefs about all costs",
            ),
            (
                lambda a, gp: cb.baselines.SafeOpt(
                    a,
                    reward=gp,
                    costs=gp,
                    explore=cb.UCB(1.0, margin=1.0),
                    safe=cb.Safe(index=0),
                ),
                "SafeOpt takes no margin of explore",
            ),
        ],
    )
    def test_where_it_means_nothing(self, make, words):
        actions = cb.Finite(self.GRID)
        with pytest.raises(cb.CBanditError, match=words):
            make(actions, cb.GP.default(actions))


class TestCautiousDraws:
    """``cb.TS()`` in RPOL under default beliefs: a margin, on a box half the width."""

    GRID = torch.linspace(0, 1, 101, dtype=F64).unsqueeze(-1)

    def test_where_nothing_is_said_of_costs(self):
        actions = cb.Finite(self.GRID)
        gp = cb.GP.default(actions)
        mine = cb.GP(gpytorch.kernels.RBFKernel().double(), noise=0.1, standardize=True)

        def said(explore, costs=gp, kind=cb.RPOL):
            both = {"reward": gp, "costs": costs, "explore": explore}
            return repr(kind(actions, **both).explore)

        box = cb.Box([0.0], [1.0])
        open_box = {"reward": cb.GP.default(box), "costs": cb.GP.default(box)}
        wide = "TS(1.0, margin=1.0)"
        assert said(cb.TS()) == said(cb.TS(1.0)) == wide
        assert repr(cb.RPOL(box, **open_box, explore=cb.TS(1.0)).explore) == wide
        half = repr(cb.RPOL(box, **open_box, explore=cb.TS()).explore)
        assert half == "TS(0.5, margin=1.0)"
        assert said(cb.TS(1.0, margin=0.0)) == said(cb.TS(), mine) == "TS(1.0)"
        assert said(cb.TS(2.0, 1.0)) == "TS(2.0, cost_beta=1.0)"
        for kind in (cb.CKB, cb.baselines.CONFIG):
            assert said(cb.TS(), kind=kind) == "TS(1.0)"

    @pytest.mark.parametrize("trials", [None, 2])
    @pytest.mark.parametrize("box", [False, True])
    def test_costs_are_means_and_a_deviation_at_the_last_choice(self, trials, box):
        actions = cb.Box([0.0], [1.0]) if box else cb.Finite(self.GRID)
        gp = cb.GP.default(actions)
        gp.refit_every = None  # posteriors below are then those of the ask itself
        policy = cb.RPOL(
            actions,
            reward=gp,
            costs=[gp] * 2,
            explore=cb.TS(0.5, cost_beta=0.0, margin=1.0),
            trials=trials,
        )
        batch, x = (() if trials is None else (trials,)), self.GRID[[5, 50, 95]]
        reward = torch.tensor([0.0, 1.0, 2.0], dtype=F64).expand(*batch, 3)
        cost = torch.tensor([[-3.0, 1.0], [-1.0, 0.0], [2.0, -2.0]], dtype=F64)
        cost = cost.expand(*batch, 3, 2)
        policy.observe(x=x.expand(*batch, 3, 1), reward=reward, cost=cost)
        last = None
        for _ in range(3):
            choice = policy.ask()
            taken = policy.explain(choice).taken[..., 1:]
            posterior = policy.posterior(x=choice.x.unsqueeze(-2))
            mean, std = posterior.costs.mean[..., 0], posterior.costs.std[..., 0]
            expected = mean if last is None else mean + last
            torch.testing.assert_close(taken, expected, rtol=1e-6, atol=1e-8)
            sizes = cost.std(-2, correction=1)
            cost = torch.cat([cost, mean.unsqueeze(-2)], -2)
            # a margin is in units, which move with what is told
            last = std / sizes * cost.std(-2, correction=1)
            policy.tell(choice, reward=torch.ones(batch), cost=mean)

    @pytest.mark.filterwarnings("ignore:cost1:UserWarning")
    def test_what_looks_infeasible_from_afar_is_tried(self):
        """A rise hides the feasible part: means of costs stay where it seems best."""
        trials, actions = 240, cb.Finite(self.GRID)
        gp = cb.GP.default(actions)
        gp.refit_every = None
        generator = torch.Generator().manual_seed(5)

        def value(x):
            cost = 0.5 - 1.5 * torch.exp(-(((x - 0.8) / 0.12) ** 2))
            return cost - 0.3 * torch.exp(-(((x - 0.2) / 0.2) ** 2))

        def found(explore):
            policy = cb.RPOL(
                actions, reward=gp, costs=gp, explore=explore, trials=trials, seed=1
            )
            x = self.GRID[[5, 20, 35, 50]]
            policy.observe(x=x, reward=0 * x[:, 0], cost=value(x[:, 0]))
            feasible = torch.zeros(trials, dtype=torch.bool)
            for _ in range(25):
                choice = policy.ask()
                x = choice.x[:, 0]
                noise = 0.02 * torch.randn(2, trials, generator=generator, dtype=F64)
                feasible |= value(x) <= 0
                policy.tell(choice, reward=noise[0], cost=value(x) + noise[1])
            return feasible

        draws, means = found(cb.TS()), found(cb.TS(1.0, cost_beta=0.0, margin=1.0))
        better, worse = int((draws & ~means).sum()), int((means & ~draws).sum())
        test = stats.binomtest(better, better + worse, alternative="greater")
        assert test.pvalue < RATE

    @pytest.mark.slow
    def test_fewer_and_smaller_excesses(self):
        """Paired over trials: a t test, at a rate of RATE under equal violations."""
        trials, actions = 150, cb.Finite(torch.cartesian_prod(*[self.GRID[::5, 0]] * 2))
        gp = cb.GP.default(actions)
        gp.refit_every = None  # fits take most of the time

        def excess(explore):
            both = {"reward": gp, "costs": gp, "thresholds": 0.2}
            policy = cb.RPOL(actions, **both, explore=explore, trials=trials, seed=3)
            total = torch.zeros(trials, dtype=F64)
            for _ in range(15):
                choice = policy.ask()
                x, y = choice.x.unbind(-1)
                cost = x * y + 0.2 * torch.sin(9 * x)
                total += (cost - 0.2).clamp_min(0)
                policy.tell(choice, reward=x + y, cost=cost)
            return total

        drawn, alone = excess(cb.TS(1.0, margin=0.0)), excess(cb.TS())
        test = stats.ttest_rel(drawn, alone, alternative="greater")
        assert test.pvalue < RATE
