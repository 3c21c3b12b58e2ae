"""The scores of CKB, RPOL and CONFIG, on optimistic estimates."""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.model import Model
from botorch.utils.transforms import average_over_ensemble_models
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit.acquisition.base import Score, one_or_each, soft
from cbandit.acquisition.beneath import evaluated
from cbandit.acquisition.models import Outputs, data, parts, root, small_variances
from cbandit.errors import CBanditError

FAR = 1000.0  # infeasible points score this many sizes of the reward below its least


class Weighted(Score):
    """A score with a multiplier for each cost; see :class:`PrimalDual`."""

    multiplier: Tensor  # *b x m
    bound: Tensor | None  # *b x (1 + m)
    smooth: Tensor | None  # 1 + m

    def __init__(
        self,
        model: Model,
        beta: ArrayLike,
        multiplier: ArrayLike,
        cost_beta: ArrayLike | None = None,
        thresholds: ArrayLike = 0.0,
        clip: ArrayLike | None = None,
        *,
        smooth: Any = None,
        noise: ArrayLike | None = None,
        outputs: Outputs | None = None,
        X_pending: Tensor | None = None,
        units: ArrayLike | None = None,
    ) -> None:
        super().__init__(
            model, beta, cost_beta, thresholds, noise, outputs, X_pending, units
        )
        self._hold("bound", None if clip is None else self._clip(clip))
        if smooth is not None:
            smooth = checks.positive("smooth", smooth, graph=True)
            smooth = one_or_each("smooth", smooth, 1 + self.m)
        self._hold("smooth", smooth)
        phi = checks.nonnegative("multiplier", multiplier, graph=True)
        self._hold("multiplier", self._costs("multiplier", phi))

    def _clip(self, clip: Any) -> Tensor:
        try:
            bound, cost_bound = clip
        except (TypeError, ValueError):
            raise CBanditError(f"clip must be a pair (B, G); got {clip!r}") from None
        limits = self._functions("clip B", bound, "clip G", cost_bound)
        return checks.positive("clip", limits, graph=True)

    def _clipped(self, estimate: Tensor) -> Tensor:
        if self.bound is None:
            return estimate
        bound = self.bound.to(estimate).unsqueeze(-1)
        if self.smooth is None:
            return scores.clip(estimate, bound)
        width = self.smooth.to(estimate).unsqueeze(-1)
        return soft(estimate + bound, width) - soft(estimate - bound, width) - bound

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the Lagrangian of :func:`cbandit.scores.primal_dual`."""
        return scores.primal_dual(f, g, self.multiplier.to(f))


class PrimalDual(Weighted):
    """CKB's score: ``clip(f + beta s) - sum_j phi_j clip(g_j - beta s_j - tau_j)``.

    Args:
        model: the reward first, then ``m`` costs. A cost that is known needs no GP: put
            a ``GenericDeterministicModel`` into a ``ModelList``.
        beta: how many standard deviations of optimism; a number, or ``(*b,)`` for a
            model of batch shape ``*b``.
        multiplier: ``phi``, a number, ``(m,)`` or ``(*b, m)``, none negative; move it
            between rounds with :func:`cbandit.multipliers.projected`.
        cost_beta: ``beta`` of the costs, a number, ``(m,)`` or ``(*b, m)``; ``None``:
            the reward's.
        thresholds: ``tau``: costs are feasible at or below it. 0 by default.
        clip: ``(B, G)``: the reward is kept within ``[-B, B]``, costs less thresholds
            within ``[-G, G]``. ``None``: they are not clipped.
        smooth: rounds off the corners of ``clip``, over about this range of the
            estimate; a number or ``(1 + m,)``. Off by default.
        noise: variance of an observation at a pending point, a number or one per output
            of the model; ``None``: the model's own.
        outputs: which of the model's outputs are the reward and the costs, and by what
            each is multiplied: ``[(0, 1.0), (2, -1.0)]`` takes output 2, feasible when
            large, as the cost. ``None``: all outputs in their order.
        X_pending: points ``(p, d)`` that are being evaluated.
        units: ``(1 + m,)``, numbers that divide the reward and the costs less their
            thresholds, such as the spreads of outcomes. ``clip`` and ``multiplier`` are
            then in these units. ``None``: in the model's own.

    Example:
        >>> import cbandit as cb, torch
        >>> from botorch.models import SingleTaskGP
        >>> from botorch.optim import optimize_acqf
        >>> x = torch.rand(8, 2).double()
        >>> model = SingleTaskGP(x, torch.stack([x.sum(-1), x[:, 0] - 0.5], -1))
        >>> score = cb.acquisition.PrimalDual(model, beta=2.0, multiplier=[0.3])
        >>> box = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
        >>> x, value = optimize_acqf(score, box, q=1, num_restarts=4, raw_samples=64)
    """


class RectifiedPenalty(Weighted):
    """RPOL's score: ``f + beta s - sum_j Q_j [g_j - beta s_j - tau_j]_+``.

    Args:
        model, beta, multiplier, cost_beta, thresholds, clip: see :class:`PrimalDual`.
        smooth: replaces ``[g]_+`` by ``smooth softplus(g / smooth)``, which errs by at
            most ``0.7 smooth`` and has no corner for L-BFGS-B to stop at. A number or
            ``(1 + m,)``. Off by default.
        noise, outputs, X_pending, units: as for :class:`PrimalDual`.
    """

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the penalised reward of :func:`cbandit.scores.rectified`."""
        if self.smooth is None:
            return scores.rectified(f, g, self.multiplier.to(f))
        excess = soft(g, self.smooth[1:].to(g).unsqueeze(-1))
        return scores.primal_dual(f, excess, self.multiplier.to(f))


class OptimisticFeasible(Score):
    """CONFIG's score: ``f + beta s`` where every ``g_j - beta s_j <= tau_j``.

    Elsewhere it is ``floor - max_j (g_j - beta s_j - tau_j)``: below the reward of any
    feasible point, and rising towards feasibility. So the best of a finite set is
    CONFIG's choice, even if nothing is feasible, and L-BFGS-B climbs into the feasible
    region from outside. The score jumps at the boundary, so that a search may stop a
    step short of an optimum that lies on it. For such problems give ``smooth``, or hand
    :meth:`slack` to ``optimize_acqf`` as a nonlinear constraint.

    Args:
        model, beta, cost_beta, thresholds: as for :class:`PrimalDual`.
        smooth: gives a smooth score instead, ``f + beta s - sum_j softplus((g_j - ...)
            / smooth)``. Its maximum lies a little inside the boundary if ``1 / smooth``
            is well above the reward that a unit of cost can buy; as ``smooth`` goes to
            0 it becomes CONFIG's. A number or ``(m,)``. Off by default.
        floor: a level that infeasible points score below. ``None``: the least reward
            believed at the model's data, less a thousand times its size.
        noise, outputs, X_pending, units: as for :class:`PrimalDual`.
    """

    smooth: Tensor | None  # *b x m
    floor: Tensor  # None if smooth is given without it

    def __init__(
        self,
        model: Model,
        beta: ArrayLike,
        cost_beta: ArrayLike | None = None,
        thresholds: ArrayLike = 0.0,
        *,
        smooth: Any = None,
        floor: Any = None,
        noise: ArrayLike | None = None,
        outputs: Outputs | None = None,
        X_pending: Tensor | None = None,
        units: ArrayLike | None = None,
    ) -> None:
        super().__init__(
            model, beta, cost_beta, thresholds, noise, outputs, X_pending, units
        )
        if smooth is not None:
            smooth = self._costs(
                "smooth", checks.positive("smooth", smooth, graph=True)
            )
        elif floor is None:
            floor = _floor(self)
        self._hold("smooth", smooth)
        level = None
        if floor is not None:
            level = checks.finite("floor", checks.tensor("floor", floor, graph=True))
            if level.dim():
                raise CBanditError(
                    f"floor must be a number; got shape {tuple(level.shape)}"
                )
        self._hold("floor", level)

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return ``f`` where feasible, else the score that the class describes."""
        if self.smooth is not None:
            width = self.smooth.to(g)
            return scores.primal_dual(f, soft(g, width.unsqueeze(-1)), 1 / width)
        feasible = scores.optimistic_feasible(f, g)
        elsewhere = self.floor.to(f) + scores.least_violating(g)
        return torch.where(feasible.isneginf(), elsewhere, feasible)

    def slack(self, X: Tensor) -> Tensor:
        """Return the slack of the tightest cost at ``X (*b, d)``, optimistic, ``(*b)``.

        As in BoTorch, feasible means at or above 0:
        ``optimize_acqf(..., nonlinear_inequality_constraints=[(score.slack, True)])``.
        That needs feasible points to begin with, in ``batch_initial_conditions``.
        """
        room: Tensor = self._room(X.unsqueeze(-2).unsqueeze(0))
        return room[0]

    @average_over_ensemble_models  # type: ignore[arg-type]
    def _room(self, X: Tensor) -> Tensor:
        _, g = self.estimates(X)
        return scores.least_violating(g)[..., 0]


def _floor(score: Score) -> Tensor:
    """Return a level below every reward that the model believes in."""
    output, scale = int(score.place[0]), score.scale[0]
    for part in parts(score.model):
        if output < part.num_outputs:
            break
        output -= part.num_outputs
    x = data(part)
    if x is None:
        raise CBanditError(
            f"floor cannot be had from a {type(part).__name__}: give floor=, a number "
            "below every reward"
        )

    def moments(points: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), small_variances():
            posterior: Any = part.posterior(points)
            return posterior.mean[..., output], root(posterior.variance[..., output])

    mean, std = evaluated(part, moments, x.movedim(-2, 0).unsqueeze(-2), None)
    mean, std = scale * mean, scale.abs() * std
    size = torch.maximum(mean.abs().max(), std.max())
    floor: Tensor = (mean - 6 * std).min() - FAR * torch.where(size > 0, size, 1.0)
    return floor if score.units is None else floor / score.units[0]
