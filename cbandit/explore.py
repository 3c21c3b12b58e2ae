"""From beliefs to estimates ``f_t``, ``g_t``: UCB, Thompson sampling, one random width.

All three are ``mean + coefficient * spread``. UCB's spread is the standard deviation
and its coefficient ``+beta`` for the reward, ``-beta`` for costs (optimistic in both);
Rand's coefficient is one draw a round and function; Thompson's spread is a joint draw
of the posterior less its mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.randomness import Streams
from cbandit.confidence import RKHS, Constant
from cbandit.errors import CBanditError

__all__ = ["TS", "UCB", "Explore", "Rand", "Widths", "clip", "estimates"]

LONG = 1 << 14


def estimates(mean: Tensor, spread: Tensor, coefficient: Tensor) -> Tensor:
    """``mean + coefficient * spread``, ``(T, F, n)``; ``coefficient`` is ``(T, F)``."""
    if _by_scalars(mean) and not spread.requires_grad:
        out = torch.empty_like(mean)
        for j, scale in enumerate(coefficient[0].tolist()):
            own = spread[0, j if spread.shape[1] > 1 else 0]
            torch.add(mean[0, j], own, alpha=scale, out=out[0, j])
        return out
    return torch.addcmul(mean, coefficient.to(mean).unsqueeze(-1), spread)


def clip(estimate: Tensor, bound: Tensor) -> Tensor:
    """``estimate (T, F, n)`` within ``[-bound, bound]``, ``(T, F, 1)``.

    In place, unless it carries gradients.
    """
    if estimate.requires_grad:
        return estimate.clamp(-bound, bound)
    if _by_scalars(estimate):
        for row, size in zip(estimate[0], bound.flatten().tolist(), strict=True):
            row.clamp_(-size, size)
        return estimate
    return estimate.clamp_(-bound, bound)


def _by_scalars(values: Tensor) -> bool:
    # over a long row a number takes half the time of a tensor that is broadcast
    plain = values.dim() == 3 and not (values.is_cuda or values.requires_grad)
    return plain and values.shape[0] == 1 and values.shape[-1] >= LONG


class Widths:
    """``beta`` of the reward and the costs: numbers, schedules, callables.

    Numbers are brought into shape once, by :meth:`bind`, when a policy gets them.
    """

    def __init__(self, beta: Any, cost_beta: Any = None) -> None:
        self.beta = _checked("beta", beta)
        given = cost_beta is not None
        self.cost_beta = _checked("cost_beta", cost_beta) if given else self.beta

    def __repr__(self) -> str:
        first, second = _worded(self.beta), _worded(self.cost_beta)
        return first if first == second else f"{first}, cost_beta={second}"

    def bind(
        self, batch_shape: tuple[int, ...], m: int, device: torch.device
    ) -> BoundWidths:
        """The widths of ``1 + m`` functions in these trials."""
        parts = [_bound("beta", self.beta, batch_shape, 1, device)]
        if m:
            shared = self.cost_beta is self.beta
            name = "beta" if shared else "cost_beta"
            part = _bound(name, self.cost_beta, batch_shape, 1 if shared else m, device)
            parts.append(part.over(m))
        return BoundWidths(parts, m + 1)


class BoundWidths:
    """``(t, gain (T, F), noise, chances) -> (T, F)``; do not change what it returns.

    ``noise`` is called where a schedule needs the likelihood variances ``(T, F)``.
    """

    def __init__(self, parts: list[_Part], functions: int) -> None:
        self._parts, self.functions = parts, functions
        self._together = _joined(parts)
        schedules = [part.rkhs for part in parts if part.rkhs is not None]
        self._needs_noise = any(each.form == "any-lam" for each in schedules)
        self.fixed: Tensor | None = None
        if all(part.value is not None for part in parts):
            self.fixed = torch.cat([p.value for p in parts if p.value is not None], -1)

    def __call__(
        self,
        t: int,
        gain: Tensor,
        noise: Callable[[], Tensor],
        chances: int | None = None,
    ) -> Tensor:
        if self.fixed is not None:
            return self.fixed
        chances = chances or self.functions
        known = noise() if self._needs_noise else None
        if self._together is not None:
            return self._together(t, gain, known, chances)
        first = self._parts[0](t, gain[:, :1], _columns(known, 0, 1), chances)
        if self.functions == 1:
            return first
        rest = self._parts[1](t, gain[:, 1:], _columns(known, 1, None), chances)
        return torch.cat([first, rest], -1)

    def rkhs_parts(self) -> list[tuple[_Part, slice]]:
        """The parts that follow the theory, and which functions they are for."""
        columns = [slice(0, 1), slice(1, None)]
        pairs = zip(self._parts, columns, strict=False)
        return [(part, where) for part, where in pairs if part.rkhs is not None]


@dataclass
class _Part:
    """The width of some functions; one of ``value``, ``rkhs`` and ``call`` is set."""

    name: str
    batch_shape: tuple[int, ...]
    value: Tensor | None = None
    rkhs: RKHS | None = None
    norm: Tensor | None = None
    subgaussian: Tensor | None = None
    call: Callable[[int, Tensor], Any] | None = None

    def over(self, m: int) -> _Part:
        """The same for ``m`` functions, from one width for all of them or their own."""

        def wide(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.expand(-1, m).contiguous()

        kept = (self.value, self.norm, self.subgaussian)
        value, norm, r = map(wide, kept)
        return replace(self, value=value, norm=norm, subgaussian=r)

    def schedule(self) -> RKHS:
        """The theory's schedule."""
        assert self.rkhs is not None
        return self.rkhs

    def scale(self) -> tuple[Tensor, Tensor]:
        """``B`` and ``R``, ``(T, m)``."""
        assert self.norm is not None
        assert self.subgaussian is not None
        return self.norm, self.subgaussian

    def __call__(
        self, t: int, gain: Tensor, noise: Tensor | None, functions: int
    ) -> Tensor:
        if self.value is not None:
            return self.value
        if self.rkhs is not None:
            return self.rkhs(t, gain, functions, noise, self.norm, self.subgaussian)
        assert self.call is not None
        columns, m = [], gain.shape[-1]
        for j in range(m):
            given = self.call(t, gain[:, j].reshape(self.batch_shape))
            value = checks.nonnegative(self.name, given)
            value = devices.put(value, gain.device, gain.dtype)
            if value.dim() == len(self.batch_shape) + 1 and value.shape[-1] == m:
                value = value[..., j]
            columns.append(checks.per_trial(self.name, value, self.batch_shape))
        return torch.stack(columns, -1)


def _columns(values: Tensor | None, first: int, stop: int | None) -> Tensor | None:
    return None if values is None else values[:, first:stop]


def _joined(parts: list[_Part]) -> _Part | None:
    """Reward and costs that follow one schedule of the theory, as one part."""
    first = parts[0].rkhs
    if len(parts) == 1 or first is None or parts[1].rkhs is not first:
        return None
    pairs = zip(*[part.scale() for part in parts], strict=True)
    norm, r = (torch.cat(pair, -1) for pair in pairs)
    return _Part(
        parts[0].name, parts[0].batch_shape, rkhs=first, norm=norm, subgaussian=r
    )


def _worded(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.tolist())
    return str(getattr(value, "__qualname__", repr(value)))


def _checked(name: str, beta: Any) -> Any:
    if callable(beta) and not isinstance(beta, type):
        return beta
    return checks.nonnegative(name, beta)


def _bound(
    name: str, beta: Any, batch: tuple[int, ...], m: int, device: torch.device
) -> _Part:
    def shaped(what: str, value: Tensor) -> Tensor:
        return devices.put(checks.per_cost(what, value, batch, m), device)

    if isinstance(beta, RKHS):
        norm, r = shaped("norm", beta.norm), shaped("subgaussian", beta.subgaussian)
        return _Part(name, batch, rkhs=beta, norm=norm, subgaussian=r)
    if isinstance(beta, Constant):
        return _Part(name, batch, value=shaped(name, beta.beta))
    if callable(beta):
        return _Part(name, batch, call=beta)
    return _Part(name, batch, value=shaped(name, beta))


class UCB:
    """Optimism: ``mean + beta std`` for the reward, ``mean - beta std`` for costs.

    Args:
        beta: multiplies the standard deviation itself. A number, ``(*trials,)``, a
            schedule such as :class:`~cbandit.RKHS`, or a callable ``(t, gain) ->
            beta``.
        cost_beta: for the costs, also one a cost, ``(m,)`` or ``(*trials, m)``; as
            ``beta`` if left out.
    """

    name, samples = "UCB", False

    def __init__(self, beta: Any, cost_beta: Any = None) -> None:
        self.widths = Widths(beta, cost_beta)

    def __repr__(self) -> str:
        return f"UCB({self.widths})"

    def coefficient(self, width: Tensor, streams: Streams) -> Tensor:
        """``(+beta, -beta, ...)``, ``(T, F)``."""
        if width.shape[-1] == 1:
            return width
        signed = width.clone()
        signed.narrow(-1, 1, width.shape[-1] - 1).neg_()
        return signed


class TS:
    """Thompson sampling: one joint draw of ``GP(mean, beta^2 covariance)`` a function.

    Exact in law on small sets and on product grids; on other sets the prior is
    approximated by random features (``cbandit info`` and ``policy.engine`` say which).
    """

    name, samples = "TS", True

    def __init__(self, beta: Any = 1.0, cost_beta: Any = None) -> None:
        self.widths = Widths(beta, cost_beta)

    def __repr__(self) -> str:
        return f"TS({self.widths})"

    def coefficient(self, width: Tensor, streams: Streams) -> Tensor:
        """``beta``, ``(T, F)``."""
        return width


Draw = Callable[[Streams, tuple[int, ...]], Tensor]


class Rand:
    """``mean + Z std`` with one random ``Z`` a round and function, shared by all
    actions.

    Args:
        beta: the scale of ``Z``, as for :class:`UCB`.
        cost_beta: for the costs; as ``beta`` if left out.
        draw: ``"normal"``: ``Z ~ N(0, beta^2)``. ``"uniform"``: one of ``points``
            evenly spaced points of ``[0, 2 beta]`` (costs ``[-2 beta, 0]``).
            ``"gaussian-grid"``: one of ``points`` points of ``[low beta, high beta]``
            weighted by the density of ``N(0, beta^2)``, mirrored for costs. Or a
            callable ``(generator, shape) -> draws`` in units of ``beta``, mirrored for
            costs.
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
        self.widths = Widths(beta, cost_beta)
        own = "a callable (generator, shape) -> draws"
        checks.one_of("draw", draw, "normal", "uniform", "gaussian-grid", other=own)
        points = checks.whole("points", points, 2)
        low, high = checks.number("low", low), checks.number("high", high)
        if not (low < high and high >= 1):
            raise CBanditError(
                f"high must be at least 1 and above low; got low={low}, high={high}"
            )
        self.draw, self.points, self.low, self.high = draw, points, low, high

    def __repr__(self) -> str:
        return f"Rand({self.widths}, draw={_worded(self.draw)})"

    def coefficient(self, width: Tensor, streams: Streams) -> Tensor:
        """One draw a function, ``(T, F)``."""
        draws = self._draws(streams, width)
        if self.draw != "normal":
            draws[:, 1:].neg_()
        return draws.mul_(width)

    def _draws(self, streams: Streams, like: Tensor) -> Tensor:
        functions = like.shape[-1]
        if self.draw == "normal":
            draws = streams.normal(functions)
        elif self.draw == "uniform":
            steps = (streams.uniform(functions) * self.points).floor()
            draws = steps * (2 / (self.points - 1))
        elif self.draw == "gaussian-grid":
            grid = torch.linspace(self.low, self.high, self.points, dtype=torch.float64)
            share = torch.exp(-0.5 * grid.square()).cumsum(0)
            place = torch.searchsorted(
                share / share[-1], streams.uniform(functions).contiguous()
            )
            draws = grid[place.clamp_max(self.points - 1)]
        else:
            assert callable(self.draw)
            shape = (*streams.batch_shape, functions)
            draws = checks.finite(
                "draw", checks.tensor("draw", self.draw(streams.lent(), shape))
            )
            draws = checks.shaped("draw", draws, shape, "(*trials, 1 + m)")
        fresh = draws.reshape(like.shape).clone()
        return devices.put(fresh, like.device, like.dtype)


Explore = UCB | TS | Rand
