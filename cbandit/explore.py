"""Estimates ``f_t``, ``g_t`` from beliefs: by UCB, Thompson draws, random widths.

All three are ``mean + coefficient * spread``. For UCB, the spread is the standard
deviation and the coefficient is ``+beta`` for the reward and ``-beta`` for costs,
optimistic in both. For Rand, the coefficient is one draw per round and function. For
Thompson sampling, the spread is a joint draw of the posterior less its mean.

Gradients reach widths, means and spreads. A policy uses the numbers alone, so that its
state holds no graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.hints import hinted
from cbandit._core.randomness import Streams
from cbandit.confidence.bound import Widths, worded
from cbandit.errors import CBanditError

__all__ = ["TS", "UCB", "Explore", "Rand", "clip", "estimates"]

LONG = 1 << 14  # rows of at least this length are scaled one by one
# factor of the draws' deviations on a box: with 1, the search did not settle in 5 to 8
# dimensions, and had ten times the regret after 40 evaluations
CAUTIOUS = 0.5


def estimates(mean: Tensor, spread: Tensor, coefficient: Tensor) -> Tensor:
    """Return ``mean + coefficient (T, F) * spread``, ``(T, F, n)``."""
    if _by_scalars(mean, spread, coefficient):
        out = torch.empty_like(mean)
        for j, scale in enumerate(coefficient[0].tolist()):
            row = spread[0, j if spread.shape[1] > 1 else 0]
            torch.add(mean[0, j], row, alpha=scale, out=out[0, j])
        return out
    return torch.addcmul(mean, coefficient.to(mean).unsqueeze(-1), spread)


def clip(estimate: Tensor, bound: Tensor) -> Tensor:
    """Clip ``estimate (T, F, n)`` to ``[-bound, bound]``, with ``bound (T, F, 1)``.

    ``estimate`` is changed in place, unless gradients are asked for.
    """
    if not _plain(estimate, bound):
        return estimate.clamp(-bound, bound)
    if _by_scalars(estimate, bound):
        for row, size in zip(estimate[0], bound.flatten().tolist(), strict=True):
            row.clamp_(-size, size)
        return estimate
    return estimate.clamp_(-bound, bound)


def _plain(*values: Tensor) -> bool:
    """Return whether tensors are numbers alone, not parts of a graph or a trace."""
    return checks.readable() and not any(value.requires_grad for value in values)


def _by_scalars(values: Tensor, *others: Tensor) -> bool:
    # for long rows a number is twice as fast as a tensor that is broadcast
    alone = values.dim() == 3 and values.shape[0] == 1 and not values.is_cuda
    return alone and values.shape[-1] >= LONG and _plain(values, *others)


def _worded(margin: Tensor) -> str:
    return f", margin={worded(margin)}" if bool(margin.any()) else ""


def _margin(margin: Any) -> Tensor:
    return checks.nonnegative("margin", margin, graph=True)


@hinted
class UCB:
    """Optimism: ``mean + beta std`` for the reward, ``mean - beta std`` for costs.

    Args:
        beta: the factor of the standard deviation; a number, ``(*trials,)``, a schedule
            such as :class:`~cbandit.RKHS`, or a callable ``(t, gain) -> beta``.
        cost_beta: ``beta`` of the costs, which may also be ``(m,)`` or
            ``(*trials, m)``; if left out, ``beta``. Numbers may be negative: 0 is the
            mean, -1 the mean plus one deviation, so that an action counts as feasible
            once it is likely to be. Then fewer rounds exceed a limit. But the papers'
            regret bounds, which need optimism in the costs, no longer hold: a feasible
            region that looks infeasible from afar may stay untried.
        margin: how many deviations of the action chosen last to add to the costs of all
            actions: a number, ``(*trials,)`` or ``(1 or *trials, m)``. 0 by default.
            Optimism alone keeps choosing just above a limit. With a margin of 2 and
            ``beta=1``, costs near the last choice count by the mean plus one deviation,
            and optimistically where deviations are large. The margin shrinks with the
            deviation. The papers' bounds then hold for limits tightened by the margin.

    Example:
        >>> import cbandit as cb
        >>> cautious, wary = cb.UCB(1.0, cost_beta=-1.0), cb.UCB(1.0, margin=2.0)
    """

    name, samples = "UCB", False

    def __init__(self, beta: Any, cost_beta: Any = None, margin: Any = 0.0) -> None:
        self.widths = Widths(beta, cost_beta, signed=True)
        self.margin = _margin(margin)

    __getstate__ = checks.numbers_of

    def __repr__(self) -> str:
        return f"UCB({self.widths}{_worded(self.margin)})"

    def coefficient(self, width: Tensor, streams: Streams) -> Tensor:
        """Return the factors of the deviations: ``width (T, F)``, negated for costs."""
        if width.shape[-1] == 1:
            return width
        signed = width.clone()
        signed.narrow(-1, 1, width.shape[-1] - 1).neg_()
        return signed


@hinted
class TS:
    """Thompson sampling: a joint draw of ``GP(mean, beta^2 covariance)`` per function.

    Where a choice has a ``distribution``, it is the law of the action given this draw.

    Draws are exact on small sets and on product grids; on other sets random features
    approximate the prior (``cbandit info`` and ``policy.engine`` say which).
    Random features exist for RBF, Matern, linear and constant kernels, for categories
    of a :func:`~cbandit.Space`, and for products and sums of these.

    The best action of a draw exceeds a limit half the time, and by far while little is
    known. So :class:`~cbandit.RPOL` under :meth:`cbandit.GP.default` adds a margin if
    neither ``cost_beta`` nor ``margin`` is given: see :meth:`cautious`.

    Args:
        beta: the factor of the draws' deviations, as for :class:`UCB`. 1 if left out.
        cost_beta: ``beta`` of the costs; if left out, ``beta``. 0: their means.
        margin: as for :class:`UCB`; none if left out.

    Example:
        >>> import cbandit as cb
        >>> cb.TS(), cb.TS().cautious()
        (TS(1.0), TS(1.0, margin=1.0))
        >>> plain = cb.TS(1.0, margin=0.0)  # without a margin under GP.default too
    """

    name, samples = "TS", True

    def __init__(
        self, beta: Any = None, cost_beta: Any = None, margin: Any = None
    ) -> None:
        self._stated = beta is not None
        #: whether the policy may decide how to treat costs
        self.open = cost_beta is None and margin is None
        self.widths = Widths(1.0 if beta is None else beta, cost_beta)
        self.margin = _margin(0.0 if margin is None else margin)

    __getstate__ = checks.numbers_of

    def cautious(self, box: bool = False) -> TS:
        """Return draws whose costs have a margin of one deviation.

        On a box the draws are half as wide, unless ``beta`` was given. Measurements
        led to this (``benchmarks/README.md``): with costs at their means and a margin,
        a region that looked infeasible from afar stayed untried on noisy sets. No
        regret bound is claimed.
        """
        beta = CAUTIOUS if box and not self._stated else self.widths.beta
        return TS(beta, margin=1.0)

    def __repr__(self) -> str:
        return f"TS({self.widths}{_worded(self.margin)})"

    def coefficient(self, width: Tensor, streams: Streams) -> Tensor:
        """Return ``width (T, F)``, the factor of each function's joint draw."""
        return width


Draw = Callable[[Streams, tuple[int, ...]], Tensor]


@hinted
class Rand:
    """A random width: ``mean + Z std``, with one ``Z`` per round and function.

    All actions share it. Where a choice has a ``distribution``, it is the law of the
    action given ``Z``.

    Args:
        beta: the scale of ``Z``, as for :class:`UCB`.
        cost_beta: ``beta`` of the costs; if left out, ``beta``.
        draw: ``"normal"``: ``Z ~ N(0, beta^2)``. ``"uniform"``: one of ``points``
            evenly spaced points of ``[0, 2 beta]`` (costs ``[-2 beta, 0]``).
            ``"gaussian-grid"``: one of ``points`` points of ``[low beta, high beta]``
            weighted by the density of ``N(0, beta^2)``, mirrored for costs. Or a
            callable ``(generator, shape) -> draws`` in units of ``beta``, mirrored for
            costs.
        points: how many points the grids have.
        low: the lower end of the gaussian grid, in units of ``beta``.
        high: its upper end, at least 1: the theory needs ``P(Z >= beta) > 0``.
    """

    name, samples = "Rand", False

    def __init__(
        self,
        beta: Any = 1.0,
        cost_beta: Any = None,
        draw: str | Draw = "normal",
        points: int = 100,
        low: float = 0.0,
        high: float = 2.0,
    ) -> None:
        self.widths = Widths(beta, cost_beta)
        text = "a callable (generator, shape) -> draws"
        checks.one_of(
            "draw", draw, "normal", "uniform", "gaussian-grid", other=text, called=True
        )
        points = checks.whole("points", points, 2)
        low, high = checks.number("low", low), checks.number("high", high)
        if not (low < high and high >= 1):
            raise CBanditError(
                f"high must be at least 1 and above low; got low={low}, high={high}"
            )
        self.draw, self.points, self.low, self.high = draw, points, low, high
        self.margin = torch.zeros(())

    def __repr__(self) -> str:
        return f"Rand({self.widths}, draw={worded(self.draw)})"

    def coefficient(self, width: Tensor, streams: Streams) -> Tensor:
        """Return the widths times one random number for each function, ``(T, F)``."""
        draws = self._draws(streams, width)
        if self.draw != "normal":
            draws[:, 1:].neg_()
        return draws * width

    def _draws(self, streams: Streams, like: Tensor) -> Tensor:
        functions = like.shape[-1]
        if callable(self.draw):
            shape = (*streams.batch_shape, functions)
            drawn = checks.tensor("draw", self.draw(streams.lent(), shape))
            checks.finite("draw", drawn)
            draws = checks.shaped("draw", drawn, shape, "(*trials, 1 + m)")
        elif self.draw == "normal":
            draws = streams.normal(functions)
        elif self.draw == "uniform":
            steps = (streams.uniform(functions) * self.points).floor()
            draws = steps * (2 / (self.points - 1))
        else:
            grid = torch.linspace(self.low, self.high, self.points, dtype=torch.float64)
            share = torch.exp(-0.5 * grid.square()).cumsum(0)
            place = torch.searchsorted(
                share / share[-1], streams.uniform(functions).contiguous()
            )
            draws = grid[place.clamp_max(self.points - 1)]
        fresh = draws.reshape(like.shape).clone()
        return devices.put(fresh, like.device, like.dtype)


Explore = UCB | TS | Rand
