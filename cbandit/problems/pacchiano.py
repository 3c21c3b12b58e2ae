"""The experiments of the stage-wise paper: linear bandits, and Bernoulli arms.

A. Pacchiano, M. Ghavamzadeh, P. Bartlett, *Contextual bandits with stage-wise
constraints*, 2024, sections 4.5 and 5.4 and appendix E. Details that the paper leaves
open are marked "ours".
"""

from __future__ import annotations

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import Streams, Trials, trial_range
from cbandit.actions import ProductGrid, Star
from cbandit.problems.linear import LinearProblem
from cbandit.problems.linear_rounds import LinearRounds
from cbandit.problems.protocol import uniforms
from cbandit.problems.table import Table


class Bernoulli:
    """Noise that turns a mean into a draw of 0 or 1.

    Args:
        reward: the means of the reward, ``(*trials, N)``.
        costs: the means of the costs, ``(*trials, m, N)``.
    """

    def __init__(self, reward: Tensor, costs: Tensor) -> None:
        self._means = torch.cat(
            [reward.unsqueeze(-2), costs], -2
        )  # *trials x 1 + m x N

    def __call__(
        self, index: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return noise ``(*trials,)`` and ``(*trials, m)`` at the actions ``index``."""
        functions, size = self._means.shape[-2:]
        means = self._means.expand(*index.shape, functions, size)
        at = index.reshape(*index.shape, 1, 1).expand(*index.shape, functions, 1)
        mean = means.gather(-1, at).squeeze(-1)
        drawn = uniforms(generator, tuple(index.shape), functions) < mean
        noise = drawn.to(mean) - mean
        return noise[..., 0], noise[..., 1:]


def pacchiano_cyclic(
    d: int = 10, tau: float = 0.5, noise: float = 1.0, trials: Trials = None
) -> LinearProblem:
    """Segments from 0 to the cyclic shifts of ``(0, .., d - 1)``, scaled to length 1.

    The reward's coefficients are that vector; the cost's are the vector reversed. Ours:
    Gaussian noise, of variance ``noise``.
    """
    d = checks.whole("d", d, 2, "a whole number above 1")
    v = torch.arange(d, dtype=torch.float64)
    v = v / v.norm()
    star = Star(torch.zeros_like(v), torch.stack([v.roll(k) for k in range(d)]))
    return LinearProblem(star, v, v.flip(0).unsqueeze(0), noise, tau, trials)


def pacchiano_sphere(
    d: int = 5,
    trials: Trials = None,
    seed: int = 0,
    noise: float = 1.0,
    rays: int = 100,
) -> LinearProblem:
    """Rays from 0 to 100 uniform unit vectors, in place of the unit ball.

    Each trial draws its own coefficients, uniform unit vectors, and its own threshold,
    uniform on [0, 1]. Ours: each trial draws its own rays too; Gaussian noise of
    variance ``noise``. The paper says 100 ``rays`` in one place, 1 000 in another.
    """
    d = checks.whole("d", d, 2, "a whole number above 1")
    streams = Streams(seed, trial_range(trials), "pacchiano-sphere")
    draws = streams.normal(2 + checks.whole("rays", rays), d)
    unit = draws / draws.norm(dim=-1, keepdim=True)
    tau = streams.uniform(1)
    star = Star(torch.zeros(d, dtype=torch.float64), unit[..., 2:, :])
    return LinearProblem(star, unit[..., 0, :], unit[..., 1:2, :], noise, tau, trials)


def pacchiano_contextual(
    d: int = 5,
    count: int = 20,
    tau: float = 0.5,
    star: bool = True,
    noise: float = 0.01,
    trials: Trials = None,
    seed: int = 0,
) -> LinearRounds:
    """New unit vectors in every round, the paper's contextual setting.

    The paper has no experiment in it; this one is ours. Each trial draws its own
    coefficients, uniform unit vectors, and ``count`` vectors a round, see
    :class:`LinearRounds`. LC-LUCB takes stars, OPLB finite sets (``star=False``).
    """
    d = checks.whole("d", d, 2, "a whole number above 1")
    streams = Streams(seed, trial_range(trials), "pacchiano-contextual")
    draws = streams.normal(2, d)
    unit = draws / draws.norm(dim=-1, keepdim=True)
    theta, mu = unit[..., 0, :], unit[..., 1:, :]
    return LinearRounds(theta, mu, count, star, noise, tau, trials, seed)


def pacchiano_opb_random(
    arms: int = 10, tau: float = 0.5, trials: Trials = None, seed: int = 0
) -> Table:
    """Arms with Bernoulli rewards and costs of uniform means; arm 0 has means 0."""
    arms = checks.whole("arms", arms, 2, "a whole number above 1")
    streams = Streams(seed, trial_range(trials), "pacchiano-opb-random")
    means = streams.uniform(2, arms)
    means[..., 0] = 0.0
    reward, costs = means[..., 0, :], means[..., 1:, :]
    noise = Bernoulli(reward, costs)
    return Table(reward, costs, noise, thresholds=tau, trials=trials)


def pacchiano_opb_four(tau: float = 0.8, trials: Trials = None) -> Table:
    """Four arms with Bernoulli rewards and costs; the first one, of cost 0, is safe."""
    reward = torch.tensor([0.1, 0.2, 0.4, 0.7], dtype=torch.float64)
    costs = torch.tensor([[0.0, 0.4, 0.5, 0.2]], dtype=torch.float64)
    noise = Bernoulli(reward, costs)
    return Table(reward, costs, noise, thresholds=tau, trials=trials)


def _hard(
    arms: int, twin: bool, r0: float, gap: float, tau: float
) -> tuple[Tensor, Tensor]:
    """Return rewards ``(arms,)`` and costs ``(1, arms)`` of the lower bound's arms."""
    arms = checks.whole("arms", arms, 4, "a whole number above 3")
    step, base = (1 - r0) / 7, (8 * r0 - 1) / 7
    reward = torch.full((arms,), base + 4 * step, dtype=torch.float64)
    # r0 is base + step, and 1 is base + 8 step
    reward[0], reward[1], reward[2] = r0, 1.0, base
    costs = torch.full((1, arms), tau + 2 * gap, dtype=torch.float64)
    costs[0, 0] = costs[0, 2] = tau - gap
    if twin:
        costs[0, 3] = tau - gap
    return reward, costs


def pacchiano_hard(
    arms: int = 4,
    twin: bool = False,
    r0: float = 0.3,
    gap: float = 0.2,
    tau: float = 0.5,
    trials: Trials = None,
) -> Table:
    """The lower bound's two instances: arm 3 is infeasible, or in the twin feasible.

    ``gap`` is ``tau - c0``. Telling the two apart takes about ``1 / gap^2`` plays of an
    arm that can hardly be played. Gaussian noise of variance 1.
    """
    reward, costs = _hard(arms, twin, r0, gap, tau)
    return Table(reward, costs, 1.0, thresholds=tau, trials=trials)


def pacchiano_hard_linear(
    arms: int = 4,
    twin: bool = False,
    r0: float = 0.3,
    gap: float = 0.2,
    tau: float = 0.5,
    trials: Trials = None,
) -> LinearProblem:
    """The same two instances as linear bandits, for LC-LUCB (Theorem 21).

    An action is a distribution over the arms; ``theta`` and ``mu`` are their rewards
    and costs. Ours: only the segments of the simplex from the safe arm to each other
    arm, a set that LC-LUCB can search; Gaussian noise of variance 1 at every action.
    The first instance's optimum, even on the whole simplex, plays arm 1 a third of the
    time. The twin's optimum here is arm 3, as in the paper, though on the simplex
    playing arm 1 a third of the time beside it earns more.
    """
    reward, costs = _hard(arms, twin, r0, gap, tau)
    corners = torch.eye(len(reward), dtype=torch.float64)
    star = Star(corners[0], corners[1:])
    return LinearProblem(star, reward, costs, 1.0, tau, trials)


def bench_stagewise(
    points: int = 1000,
    costs: int = 3,
    noise: float = 0.01,
    gap: float = 0.5,
    trials: Trials = None,
    seed: int = 0,
) -> Table:
    """Draws of a GP prior on a product grid over ``[0, 6]^2``, for OPB's GP form.

    This problem is ours. Reward and costs have an RBF kernel of lengthscale 0.5; every
    threshold is ``gap`` above its cost at the corner (action 0), which is therefore
    safe.
    """
    points, costs = checks.whole("points", points, 2), checks.whole("costs", costs)
    axis = torch.linspace(0, 6, points, dtype=torch.float64)
    gram = torch.exp(-0.5 * ((axis.unsqueeze(-1) - axis) / 0.5).square())
    value, vectors = torch.linalg.eigh(gram)
    # a solver may return either sign of a vector; this picks one on every machine
    vectors = torch.where(vectors[:1] < 0, -vectors, vectors)
    large = value > 1e-14 * value[-1]
    root = vectors[:, large] * value[large].sqrt()  # points x r
    streams = Streams(seed, trial_range(trials), "bench-stagewise")
    rank = root.shape[-1]
    z = streams.normal(1 + costs, rank, rank)
    drawn = (root @ z @ root.mT).flatten(-2)  # *trials x 1 + costs x N
    tau = drawn[..., 1:, 0] + checks.number("gap", gap, minimum=0.0)
    grid = ProductGrid([axis, axis])
    f, g = drawn[..., 0, :], drawn[..., 1:, :]
    return Table(f, g, noise, actions=grid, thresholds=tau, trials=trials)
