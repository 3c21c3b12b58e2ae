"""From beliefs to estimates ``f_t``, ``g_t``: UCB, Thompson sampling, one random width.

All three are ``mean + coefficient * spread``. UCB's spread is the standard deviation and
its coefficient ``+beta`` for the reward, ``-beta`` for costs (optimistic in both);
Rand's coefficient is one draw a round and function; Thompson's spread is a joint draw
of the posterior less its mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cbandit import checks
from cbandit.confidence import RKHS
from cbandit.errors import CBanditError
from cbandit.randomness import Streams

__all__ = ["TS", "UCB", "Explore", "Outlook", "Rand", "estimates"]


def estimates(mean: Tensor, spread: Tensor, coefficient: Tensor) -> Tensor:
    """``mean + coefficient * spread``, ``(T, F, n)``; ``coefficient`` is ``(T, F)``."""
    return torch.addcmul(mean, coefficient.to(mean).unsqueeze(-1), spread)


@dataclass(frozen=True)
class Outlook:
    """What a schedule may depend on in a round.

    Args:
        t: the round (of the epoch, where there are epochs).
        gain: realised information gain, ``(T, F)``, reward first.
        noise: likelihood variances, ``(T, F)``.
        batch_shape: ``()`` or ``(trials,)``.
        streams: the policy's random draws.
    """

    t: int
    gain: Tensor
    noise: Tensor
    batch_shape: tuple[int, ...]
    streams: Streams


class _Widths:
    """``beta`` for the reward and the costs: numbers, schedules, callables."""

    def __init__(self, beta: Any, cost_beta: Any = None) -> None:
        self.beta = _checked("beta", beta)
        self.cost_beta = self.beta if cost_beta is None else _checked(
            "cost_beta", cost_beta
        )

    def __call__(self, outlook: Outlook) -> Tensor:
        """``(T, F)``, never negative."""
        trials, functions = outlook.gain.shape
        out = torch.empty_like(outlook.gain)
        out[:, :1] = _width("beta", self.beta, outlook, slice(0, 1))
        if functions > 1:
            out[:, 1:] = _width("cost_beta", self.cost_beta, outlook, slice(1, None))
        return out


def _checked(name: str, beta: Any) -> Any:
    return beta if callable(beta) else checks.nonnegative(name, beta)


def _width(name: str, beta: Any, outlook: Outlook, which: slice) -> Tensor:
    gain, noise = outlook.gain[:, which], outlook.noise[:, which]
    batch, m = outlook.batch_shape, gain.shape[-1]
    if isinstance(beta, RKHS):
        return beta(
            outlook.t,
            gain,
            outlook.gain.shape[-1],
            noise,
            checks.per_cost("norm", beta.norm, batch, m).to(gain),
            checks.per_cost("subgaussian", beta.subgaussian, batch, m).to(gain),
        )
    if not callable(beta):
        return checks.per_cost(name, beta, batch, m).to(gain)
    columns = []
    for j in range(m):
        own = gain[:, j].reshape(batch)
        value = checks.nonnegative(name, beta(outlook.t, own))
        if value.dim() == len(batch) + 1 and value.shape[-1] == m:
            value = value[..., j]
        columns.append(checks.per_trial(name, value, batch).to(gain))
    return torch.stack(columns, -1)


class UCB:
    """Optimism: ``mean + beta std`` for the reward, ``mean - beta std`` for costs.

    Args:
        beta: multiplies the standard deviation itself. A number, ``(*trials,)``, a
            schedule such as :class:`~cbandit.RKHS`, or a callable ``(t, gain) -> beta``.
        cost_beta: for the costs, also per cost ``(*trials, m)``; as ``beta`` if left out.
    """

    name, samples = "UCB", False

    def __init__(self, beta: Any, cost_beta: Any = None) -> None:
        self.widths = _Widths(beta, cost_beta)

    def coefficient(self, outlook: Outlook) -> Tensor:
        """``(+beta, -beta, ...)``, ``(T, F)``."""
        width = self.widths(outlook)
        width[:, 1:].neg_()
        return width


class TS:
    """Thompson sampling: one joint draw of ``GP(mean, beta^2 covariance)`` a function.

    Exact in law on small sets and on product grids; on other sets the prior is
    approximated by random features (``cbandit info`` and ``policy.engine`` say which).
    """

    name, samples = "TS", True

    def __init__(self, beta: Any = 1.0, cost_beta: Any = None) -> None:
        self.widths = _Widths(beta, cost_beta)

    def coefficient(self, outlook: Outlook) -> Tensor:
        """``beta``, ``(T, F)``."""
        return self.widths(outlook)


Draw = Callable[[Streams, tuple[int, ...]], Tensor]


class Rand:
    """``mean + Z std`` with one random ``Z`` a round and function, shared by all actions.

    Args:
        beta: the scale of ``Z``, as for :class:`UCB`.
        cost_beta: for the costs; as ``beta`` if left out.
        draw: ``"normal"``: ``Z ~ N(0, beta^2)``. ``"uniform"``: one of ``points`` evenly
            spaced points of ``[0, 2 beta]`` (costs ``[-2 beta, 0]``).
            ``"gaussian-grid"``: one of ``points`` points of ``[low beta, high beta]``
            weighted by the density of ``N(0, beta^2)``, mirrored for costs. Or a callable
            ``(generator, shape) -> draws`` in units of ``beta``, mirrored for costs.
        points: how many points the grids have.
        low: the gaussian grid's lower end.
        high: its upper end, at least 1: ``P(Z >= beta) > 0`` is what the theory needs.
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
        self.widths = _Widths(beta, cost_beta)
        if not callable(draw) and draw not in ("normal", "uniform", "gaussian-grid"):
            raise CBanditError(
                "draw must be 'normal', 'uniform', 'gaussian-grid' or a callable "
                f"(generator, shape) -> draws; got {draw!r}"
            )
        if not isinstance(points, int) or points < 2:
            raise CBanditError(f"points must be an int of at least 2; got {points!r}")
        if not (low < high and high >= 1):
            raise CBanditError(
                f"high must be at least 1 and above low; got low={low}, high={high}"
            )
        self.draw, self.points, self.low, self.high = draw, points, low, high

    def coefficient(self, outlook: Outlook) -> Tensor:
        """One draw a function, ``(T, F)``."""
        width = self.widths(outlook)
        draws = self._draws(outlook.streams, width)
        if self.draw != "normal":
            draws[:, 1:].neg_()
        return width.mul_(draws)

    def _draws(self, streams: Streams, like: Tensor) -> Tensor:
        functions = like.shape[-1]
        if self.draw == "normal":
            draws = streams.normal(functions)
        elif self.draw == "uniform":
            steps = (streams.uniform(functions) * self.points).floor()
            draws = steps * (2 / (self.points - 1))
        elif self.draw == "gaussian-grid":
            grid = torch.linspace(self.low, self.high, self.points).double()
            share = torch.exp(-0.5 * grid.square()).cumsum(0)
            place = torch.searchsorted(share / share[-1], streams.uniform(functions))
            draws = grid[place.clamp_max(self.points - 1)]
        else:
            assert callable(self.draw)
            shape = (*streams.batch_shape, functions)
            draws = checks.finite(
                "draw", checks.tensor("draw", self.draw(streams, shape))
            )
            draws = checks.shaped("draw", draws, shape, "(*trials, 1 + m)")
        return draws.reshape(like.shape).to(like, copy=True)


Explore = UCB | TS | Rand
