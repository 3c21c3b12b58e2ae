"""The library's scores as BoTorch acquisition functions.

For people who keep their own loop: any BoTorch model whose outputs are the reward
first and the costs after, and anything BoTorch can do with an acquisition function. The
scores are those of :mod:`cbandit.scores`, which the policies call too; ``beta``
multiplies sigma (BoTorch's own UCB takes its square root), and feasible means a cost at
or below its threshold.

A batch of ``q`` points is worth what sequential greedy collects: the first point's
score, the second's with the first one pending, and so on. A pending point narrows the
deviations, for it will be observed; it moves no mean, since the value hallucinated
there is the mean. On an ensemble (a fully Bayesian model) a score is the mean of its
members' scores.

Importing this module imports BoTorch, which changes GPyTorch's settings; ``import
cbandit`` alone does not.
"""

from __future__ import annotations

import hashlib
import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
)
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models.deterministic import DeterministicModel, MatheronPathModel
from botorch.models.model import Model, ModelList
from botorch.models.multitask import MultiTaskGP
from botorch.posteriors.ensemble import EnsemblePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.multitask import MultitaskGPPosterior
from botorch.posteriors.posterior_list import PosteriorList
from botorch.sampling.pathwise.utils import get_train_inputs
from botorch.utils.transforms import (
    average_over_ensemble_models,
    t_batch_mode_transform,
)
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn.functional import softplus

from cbandit import scores
from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.explore import estimates

__all__ = [
    "OptimisticFeasible",
    "PathwisePrimalDual",
    "PrimalDual",
    "RectifiedPenalty",
]

Outputs = Sequence[tuple[int, float]]

# below these a variance is none; GPyTorch's own limits are of the size of a variance
# in small units
SMALLEST = {torch.float64: 1e-60, torch.float32: 1e-30}
POINTS = 2048  # that a path is followed to at a time
FAR = 1000.0  # how many times the size of the reward infeasible points lie below it


class _Score(AcquisitionFunction):
    """Estimates of reward and costs from a model; a subclass says what they score.

    Tensors may lead with the model's batch shape ``*b``.
    """

    width: Tensor  # *b x (1 + m)
    thresholds: Tensor  # *b x m
    bound: Tensor | None  # *b x (1 + m)
    smooth: Tensor | None  # 1 + m; m where there is no clip
    noise: Tensor | None  # one an output of the model
    place: Tensor  # 1 + m
    scale: Tensor  # 1 + m

    def __init__(
        self,
        model: Model,
        beta: Any,
        cost_beta: Any,
        thresholds: Any,
        clip: Any,
        smooth: Any,
        noise: Any,
        outputs: Outputs | None,
        X_pending: Tensor | None,
    ) -> None:
        if not isinstance(model, Model):
            raise CBanditError(
                f"model must be a BoTorch model; got {type(model).__name__}"
            )
        super().__init__(model=model)
        self._dim = _coordinates(model)
        place, scale = _arrangement(outputs, model.num_outputs)
        self._keep("place", place)
        self._keep("scale", scale)
        self.m = len(scale) - 1
        width = self._functions("beta", beta, "cost_beta", cost_beta)
        self._keep("width", checks.nonnegative("beta and cost_beta", width))
        tau = checks.finite("thresholds", checks.tensor("thresholds", thresholds))
        self._keep("thresholds", self._costs("thresholds", tau))
        self._keep("bound", None if clip is None else self._clip(clip))
        soft = None if smooth is None else checks.positive("smooth", smooth)
        self._keep(
            "smooth", None if soft is None else _each("smooth", soft, 1 + self.m)
        )
        lam = None if noise is None else checks.nonnegative("noise", noise)
        count = model.num_outputs
        self._keep("noise", None if lam is None else _each("noise", lam, count))
        self.register_buffer("X_pending", None)
        self.set_X_pending(X_pending)

    @abstractmethod
    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """What is maximised ``(*b, q)``; ``f`` is ``(*b, q)``, ``g`` ``(*b, m, q)``."""

    def forward(self, X: Tensor) -> Tensor:
        """The score of ``X`` ``(*b, q, d)``, summed over the ``q`` points: ``(*b)``."""
        total: Tensor = self._summed(self._points("X", X))
        return total

    @t_batch_mode_transform()
    @average_over_ensemble_models  # type: ignore[arg-type]
    def _summed(self, X: Tensor) -> Tensor:
        return self.score(*self.estimates(X)).sum(-1)

    def estimates(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Upper bound of the reward ``(*b, q)``, lower bounds of costs ``(*b, m, q)``.

        Thresholds are subtracted, and bounds applied, as in the policies.
        """
        X = self._points("X", X)
        mean, std = self._moments(X)
        sign = torch.ones_like(self.width)
        sign[..., 1:] = -1
        return self._finished(estimates(mean, std, sign * self.width))

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Points ``(p, d)`` that are being evaluated, or ``None``."""
        if X_pending is not None:
            given = tuple(self._points("X_pending", X_pending).shape)
            if len(given) != 2:
                raise CBanditError(f"X_pending must have shape (p, d); got {given}")
            checks.finite("X_pending", X_pending.detach())
        super().set_X_pending(X_pending)

    def _points(self, name: str, X: Any) -> Tensor:
        """``X``, an error unless it is a tensor of points of the model's width."""
        if not isinstance(X, Tensor):
            raise CBanditError(
                f"{name} must be a tensor of points (..., d); got {checks.kind(X)}"
            )
        if X.dim() < 2 or self._dim not in (None, X.shape[-1]):
            wanted = "(p, d)" if name == "X_pending" else "(..., n, d)"
            known = "" if self._dim is None else f" with d = {self._dim}, the model's"
            raise CBanditError(
                f"{name} must have shape {wanted}{known}; got {tuple(X.shape)}"
            )
        own = next(self.model.parameters(), X).dtype
        if X.dtype == torch.float64 and own == torch.float32:
            raise CBanditError(
                f"{name} must be float32, as the model is; got float64 (or build the "
                "model on float64 data)"
            )
        return X

    # -- from the model ----------------------------------------------------------------

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of reward and costs, ``(*b, 1 + m, q)``."""
        pending: Tensor | None = self.X_pending
        points, p = X, 0
        if pending is not None:
            p = pending.shape[-2]
            waiting = pending.to(X).expand(*X.shape[:-2], *pending.shape)
            points = torch.cat([waiting, X], -2)
        posterior: Any = self.model.posterior(points)
        mean: Tensor = _one_each(_mean(posterior), points)[..., p:, :].mT
        if points.shape[-2] == 1:
            with _small_variances():
                variance = posterior.variance.mT
        else:
            # one point more: what is seen before it is the same in all t-batches
            seen = points[..., :-1, :]
            if pending is not None and X.shape[-2] == 1:
                seen = pending.to(X)
            noise = self._noise(seen, posterior)
            variance = _one_by_one(_blocks(posterior), noise)[..., p:]
        return self._arranged(mean), self._arranged(_root(variance), sign=False)

    def _arranged(self, values: Tensor, sign: bool = True) -> Tensor:
        """Reward and costs from the model's outputs, ``(*b, outputs, q)``."""
        scale = (self.scale if sign else self.scale.abs()).to(values).unsqueeze(-1)
        return values.index_select(-2, self.place.to(values.device)) * scale

    def _noise(self, seen: Tensor, posterior: Any) -> Tensor:
        """Noise on what is seen before the last point, ``(*b, n - 1, outputs)``."""
        before: Tensor = posterior.mean[..., :-1, :]
        if self.noise is not None:
            return self.noise.to(before).expand_as(before)
        with torch.no_grad(), _small_variances():
            noisy: Any = self.model.posterior(seen, observation_noise=True)
            lam: Tensor = noisy.variance - posterior.variance[..., :-1, :]
            lam = lam.clamp_min(0)
        if not bool(torch.isfinite(lam).all()):
            raise CBanditError(
                "noise cannot be had from the model, which has data of infinite "
                "variance: give noise=, the variance of an observation"
            )
        return lam

    def _finished(self, estimate: Tensor) -> tuple[Tensor, Tensor]:
        """``(*b, 1 + m, q)`` less thresholds, within bounds; reward and costs apart."""
        tau = self.thresholds.to(estimate).unsqueeze(-1)
        f, g = estimate[..., :1, :], estimate[..., 1:, :] - tau
        estimate = torch.cat([f.expand(*g.shape[:-2], 1, g.shape[-1]), g], -2)
        if self.bound is not None:
            bound = self.bound.to(estimate).unsqueeze(-1)
            if self.smooth is None:
                estimate = scores.clip(estimate, bound)
            else:
                soft = self.smooth.to(estimate).unsqueeze(-1)
                up = _soft(estimate + bound, soft)
                estimate = up - _soft(estimate - bound, soft) - bound
        return estimate[..., 0, :], estimate[..., 1:, :]

    # -- arguments ---------------------------------------------------------------------

    def _keep(self, name: str, value: Tensor | None) -> None:
        """State goes where the model is."""
        device = next((p.device for p in self.model.parameters()), None)
        self.register_buffer(name, value if value is None else value.clone().to(device))

    def _led(self, name: str, lead: torch.Size) -> None:
        """An error where ``*b`` is not the model's: it would go with points instead."""
        try:
            own = self.model.batch_shape
        except NotImplementedError:
            own = None
        if own is None:  # not every model says
            return
        try:
            fits = torch.broadcast_shapes(lead, own).numel() == own.numel()
            fits = fits and len(lead) <= max(1, len(own))
        except RuntimeError:
            fits = False
        if not fits:
            raise CBanditError(
                f"{name} must be the same for all points, or lead with the model's "
                f"batch shape {tuple(own)}; got {tuple(lead)}"
            )

    def _costs(self, name: str, value: Tensor) -> Tensor:
        """A number, ``(m,)`` or ``(*b, m)``, as ``(*b, m)``."""
        if value.dim() == 0:
            return value.expand(self.m)
        if value.shape[-1] != self.m:
            raise CBanditError(
                f"{name} must be a number or have shape (m,) or (*batch, m) with m = "
                f"{self.m}, for the model has a reward and {self.m} costs; got "
                f"{tuple(value.shape)}"
            )
        self._led(name, value.shape[:-1])
        return value

    def _functions(self, name: str, value: Any, cost_name: str, costs: Any) -> Tensor:
        """A number or ``(*b,)`` for the reward, and for the costs, ``(*b, 1 + m)``."""
        first = checks.tensor(name, value).unsqueeze(-1)
        self._led(name, first.shape[:-1])
        if costs is None:
            return first.expand(*first.shape[:-1], 1 + self.m)
        rest = self._costs(cost_name, checks.tensor(cost_name, costs))
        try:
            batch = torch.broadcast_shapes(first.shape[:-1], rest.shape[:-1])
        except RuntimeError:
            raise CBanditError(
                f"{name} and {cost_name} must have shapes (*batch,) and (*batch, m); "
                f"got {tuple(first.shape[:-1])} and {tuple(rest.shape)}"
            ) from None
        return torch.cat([first.expand(*batch, 1), rest.expand(*batch, self.m)], -1)

    def _clip(self, clip: Any) -> Tensor:
        try:
            bound, cost_bound = clip
        except (TypeError, ValueError):
            raise CBanditError(f"clip must be a pair (B, G); got {clip!r}") from None
        limits = self._functions("clip B", bound, "clip G", cost_bound)
        return checks.positive("clip", limits)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *rest: Any, **named: Any
    ) -> None:
        # how many points are pending is state, so the buffer takes its size from there
        given = state_dict.get(prefix + "X_pending")
        room = None if given is None else torch.empty_like(given).to(self.width.device)
        self.register_buffer("X_pending", room)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


class _Weighted(_Score):
    """A score with multipliers."""

    multiplier: Tensor  # *b x m

    def __init__(self, model: Model, multiplier: Any, **common: Any) -> None:
        super().__init__(model, **common)
        phi = checks.nonnegative("multiplier", multiplier)
        self._keep("multiplier", self._costs("multiplier", phi))

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """The Lagrangian of :func:`cbandit.scores.primal_dual`."""
        return scores.primal_dual(f, g, self.multiplier.to(f))


class PrimalDual(_Weighted):
    """CKB's score: ``clip(f + beta s) - sum_j phi_j clip(g_j - beta s_j - tau_j)``.

    Args:
        model: the reward first, then ``m`` costs. A cost that is known needs no GP: put
            a ``GenericDeterministicModel`` into a ``ModelList``.
        beta: how many standard deviations of optimism; a number, or ``(*b,)`` for a
            model of batch shape ``*b``.
        multiplier: ``phi``, a number, ``(m,)`` or ``(*b, m)``, none negative; move it
            between rounds with :func:`cbandit.multipliers.projected`.
        cost_beta: for the costs, a number, ``(m,)`` or ``(*b, m)``; as ``beta`` if left
            out.
        thresholds: ``tau``: costs are feasible at or below it.
        clip: ``(B, G)``: estimates are kept within ``[-B, B]`` and, thresholds
            subtracted, ``[-G, G]``.
        smooth: rounds the corners of ``clip`` off, over about this range of the
            estimate; a number or ``(1 + m,)``. Off by default.
        noise: variance of an observation at a pending point, a number or one an output
            of the model; the model's own if left out.
        outputs: which of the model's outputs are the reward and the costs, and by what
            each is multiplied: ``[(0, 1.0), (2, -1.0)]`` takes output 2, feasible when
            large, for the cost. Left out, all outputs in their order.
        X_pending: points ``(p, d)`` that are being evaluated.

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

    def __init__(
        self,
        model: Model,
        beta: Any,
        multiplier: Any,
        cost_beta: Any = None,
        thresholds: Any = 0.0,
        clip: Any = None,
        *,
        smooth: Any = None,
        noise: Any = None,
        outputs: Outputs | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(
            model,
            multiplier,
            beta=beta,
            cost_beta=cost_beta,
            thresholds=thresholds,
            clip=clip,
            smooth=smooth,
            noise=noise,
            outputs=outputs,
            X_pending=X_pending,
        )


class RectifiedPenalty(_Weighted):
    """RPOL's score: ``f + beta s - sum_j Q_j [g_j - beta s_j - tau_j]_+``.

    Args:
        model, beta, multiplier, cost_beta, thresholds, clip: see :class:`PrimalDual`.
        smooth: puts ``smooth softplus(g / smooth)`` in place of ``[g]_+``: it errs by
            at most ``0.7 smooth``, and L-BFGS-B no longer stops at the corner. A number
            or ``(1 + m,)``. Off by default.
        noise, outputs, X_pending: as for :class:`PrimalDual`.
    """

    def __init__(
        self,
        model: Model,
        beta: Any,
        multiplier: Any,
        cost_beta: Any = None,
        thresholds: Any = 0.0,
        clip: Any = None,
        *,
        smooth: Any = None,
        noise: Any = None,
        outputs: Outputs | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(
            model,
            multiplier,
            beta=beta,
            cost_beta=cost_beta,
            thresholds=thresholds,
            clip=clip,
            smooth=smooth,
            noise=noise,
            outputs=outputs,
            X_pending=X_pending,
        )

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """The penalised reward of :func:`cbandit.scores.rectified`."""
        if self.smooth is None:
            return scores.rectified(f, g, self.multiplier.to(f))
        soft = self.smooth[1:].to(g).unsqueeze(-1)
        return scores.primal_dual(f, _soft(g, soft), self.multiplier.to(f))


class OptimisticFeasible(_Score):
    """CONFIG's score: ``f + beta s`` where every ``g_j - beta s_j <= tau_j``.

    Elsewhere it is ``floor - max_j (g_j - beta s_j - tau_j)``: below the reward of any
    feasible point, and rising towards feasibility. So the best of a finite set is
    CONFIG's choice, also where nothing is feasible, and L-BFGS-B climbs into the
    feasible region from outside. It meets a cliff there: an optimum on the boundary is
    found to within a step from inside. For such problems give ``smooth``, or hand
    :meth:`slack` to ``optimize_acqf`` as a nonlinear constraint.

    Args:
        model, beta, cost_beta, thresholds: as for :class:`PrimalDual`.
        smooth: a smooth score instead, ``f + beta s - sum_j softplus((g_j - ...) /
            smooth)``: a little inside the boundary where ``1 / smooth`` well exceeds
            the reward that a unit of cost can buy, and like CONFIG as ``smooth`` goes
            to 0. A number or ``(m,)``. Off by default.
        floor: what infeasible points lie below; left out, the least reward believed at
            the model's data less a thousand times its size.
        noise, outputs, X_pending: as for :class:`PrimalDual`.
    """

    floor: Tensor | None

    def __init__(
        self,
        model: Model,
        beta: Any,
        cost_beta: Any = None,
        thresholds: Any = 0.0,
        *,
        smooth: Any = None,
        floor: float | None = None,
        noise: Any = None,
        outputs: Outputs | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(
            model, beta, cost_beta, thresholds, None, None, noise, outputs, X_pending
        )
        if smooth is not None:
            soft = self._costs("smooth", checks.positive("smooth", smooth))
            self._keep("smooth", soft)
        if floor is None and smooth is None:
            floor = _floor(self)
        if floor is not None:
            level = torch.tensor(checks.number("floor", floor), dtype=torch.float64)
            self._keep("floor", level)
        else:
            self._keep("floor", None)

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """The reward's bound where feasible; see the class."""
        if self.smooth is not None:
            soft = self.smooth.to(g)
            return scores.primal_dual(f, _soft(g, soft.unsqueeze(-1)), 1 / soft)
        assert self.floor is not None
        feasible = scores.optimistic_feasible(f, g)
        elsewhere = self.floor.to(f) + scores.least_violating(g)
        return torch.where(feasible.isneginf(), elsewhere, feasible)

    def slack(self, X: Tensor) -> Tensor:
        """How much room every cost is believed to leave at ``X`` ``(*b, d)``: ``(*b)``.

        Feasible at or above 0, as BoTorch has it:
        ``optimize_acqf(..., nonlinear_inequality_constraints=[(score.slack, True)])``,
        which then wants feasible points to begin with, in ``batch_initial_conditions``.
        """
        room: Tensor = self._room(X.unsqueeze(-2).unsqueeze(0))
        return room[0]

    @average_over_ensemble_models  # type: ignore[arg-type]
    def _room(self, X: Tensor) -> Tensor:
        _, g = self.estimates(X)
        return scores.least_violating(g)[..., 0]


class PathwisePrimalDual(_Weighted):
    """CKB-TS's score: the Lagrangian of one Thompson path, a function of ``x``.

    A path is a draw of ``GP(mean, beta^2 covariance)``, by random Fourier features (an
    approximate prior) and an exact update on the data. It is the same function at every
    call: differentiable, and decided by ``seed`` alone. Each point of a batch, and each
    point while others are pending, follows a path of its own, drawn when it is first
    needed.

    Args:
        model: the reward first, then ``m`` costs; models that
            ``botorch.sampling.pathwise`` knows.
        beta, multiplier, cost_beta, thresholds, clip: as for :class:`PrimalDual`.
        seed: an int, or a ``torch.Generator`` to draw one from. A new one each round:
            paths of one seed share their prior.
        smooth, outputs, X_pending: as for :class:`PrimalDual`.
    """

    seed: Tensor

    def __init__(
        self,
        model: Model,
        beta: Any,
        multiplier: Any,
        cost_beta: Any = None,
        thresholds: Any = 0.0,
        clip: Any = None,
        *,
        seed: int | torch.Generator,
        smooth: Any = None,
        outputs: Outputs | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(
            model,
            multiplier,
            beta=beta,
            cost_beta=cost_beta,
            thresholds=thresholds,
            clip=clip,
            smooth=smooth,
            noise=None,
            outputs=outputs,
            X_pending=X_pending,
        )
        if isinstance(seed, torch.Generator):
            device = seed.device
            seed = int(torch.randint(2**32, (), generator=seed, device=device))
        self.register_buffer("seed", torch.tensor(_folded(checks.seed(seed))))
        self.paths = torch.nn.ModuleList()
        self._path(0)

    def estimates(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The paths at ``X``: reward ``(*b, q)`` and costs ``(*b, m, q)``."""
        X = self._points("X", X)
        p = 0 if self.X_pending is None else self.X_pending.shape[-2]
        drawn = [self._path(p + i)(x) for i, x in enumerate(X.split(1, -2))]
        path = self._arranged(_one_each(torch.cat(drawn, -2), X).mT)
        if bool(self.width.eq(1).all()):
            return self._finished(path)
        posterior: Any = self.model.posterior(X)
        mean = self._arranged(posterior.mean.mT)
        return self._finished(estimates(mean, path - mean, self.width))

    def _path(self, number: int) -> Any:
        while len(self.paths) <= number:
            # an odd step, so that no two paths of a seed meet
            seed = int(self.seed) + len(self.paths) * 0x9E3779B1
            self.paths.append(_Path(self.model, seed))
        return self.paths[number]

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *rest: Any, **named: Any
    ) -> None:
        start = prefix + "paths."
        numbers = [
            key[len(start) :].split(".")[0] for key in state_dict if start in key
        ]
        for number in {int(n) for n in numbers if n.isdigit()}:
            self._path(number)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)


def _folded(seed: int) -> int:
    """The 32 bits that torch's generators keep of a seed: larger ones are hashed."""
    if seed < 2**32:
        return seed
    digest = hashlib.blake2b(seed.to_bytes(8, "little"), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class _Path(torch.nn.Module):
    """A path of every part of a model, ``(*b, q, d) -> (*b, q, outputs)``."""

    def __init__(self, model: Model, seed: int) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList()
        for number, part in enumerate(_parts(model)):
            # far apart: the next round's seed may be the next number
            self.parts.append(_drawn(part, (seed + number * 0x85EBCA6B) % 2**32))

    def forward(self, X: Tensor) -> Tensor:
        values = [_followed(part, X) for part in self.parts]
        most = max(value.dim() for value in values)
        # an ensemble's members stand before the points
        values = [v if v.dim() == most else v.unsqueeze(-3) for v in values]
        batch = torch.broadcast_shapes(*[v.shape[:-2] for v in values])
        return torch.cat([v.expand(*batch, *v.shape[-2:]) for v in values], -1)


def _followed(path: Any, X: Tensor) -> Tensor:
    """A path at ``X (*b, q, d)``; every point takes the memory of its features."""
    many = X.shape[:-1].numel() > POINTS
    if many and isinstance(path, MatheronPathModel) and not path.batch_shape:
        blocks = [path(x) for x in X.flatten(0, -2).split(POINTS)]
        return torch.cat(blocks).reshape(*X.shape[:-1], -1)
    values: Tensor = path(X)
    return values


def _drawn(part: Model, seed: int) -> DeterministicModel:
    """A path of one model; a function that is known is its own."""
    if isinstance(part, DeterministicModel):
        return part
    try:
        with torch.no_grad():
            return MatheronPathModel(part, seed=seed)
    except (AttributeError, NotImplementedError) as error:
        raise CBanditError(
            "model must be one that botorch.sampling.pathwise can draw paths of; got "
            f"{type(part).__name__} ({error})"
        ) from None


def _root(variance: Tensor) -> Tensor:
    """Its root, 0 where there is none, whose slope is finite."""
    least = SMALLEST.get(variance.dtype, 0.0)
    return variance.clamp_min(least).sqrt().where(variance > least, 0.0)


def _soft(values: Tensor, temperature: Tensor) -> Tensor:
    """``[values]_+`` with its corner rounded off."""
    return temperature * softplus(values / temperature)


def _small_variances() -> Any:
    """Variances as small as the user's units make them."""
    single, double = SMALLEST[torch.float32], SMALLEST[torch.float64]
    return gpytorch.settings.min_variance(single, double, None)


def _mean(posterior: Any) -> Tensor:
    """The mean of a posterior, with its gradient."""
    if isinstance(posterior, MultitaskGPPosterior):
        # the gradient of .mean fails or is wrong here; that of a draw is right
        still = posterior.mean.new_zeros(1, *posterior.base_sample_shape)
        return posterior.rsample_from_base_samples(torch.Size([1]), still)[0]
    mean: Tensor = posterior.mean
    return mean


def _one_each(values: Tensor, points: Tensor) -> Tensor:
    """``values (*b, n, outputs)``, an error if points have several."""
    if values.shape[-2] > points.shape[-2]:
        raise CBanditError(
            "model must give each point one value an output: no InputPerturbation; got "
            f"{values.shape[-2]} values for {points.shape[-2]} points"
        )
    return values


def _blocks(posterior: Any) -> list[Tensor]:
    """Joint covariances ``(*b, n, k, n, k)`` of the outputs that go together."""
    if isinstance(posterior, PosteriorList):
        parts: list[Any] = posterior.posteriors
        blocks = [block for part in parts for block in _blocks(part)]
        most = max(block.dim() for block in blocks)
        # an ensemble's members stand before the points
        return [b if b.dim() == most else b.unsqueeze(-5) for b in blocks]
    if isinstance(posterior, EnsemblePosterior) and posterior.ensemble_size == 1:
        shape = posterior.mean.shape  # a function that is known
        return [posterior.mean.new_zeros(*shape, *shape[-2:])]
    if not isinstance(posterior, GPyTorchPosterior):
        raise CBanditError(
            "pending points and q > 1 need a model whose posterior is jointly normal; "
            f"got {type(posterior).__name__}"
        )
    normal = posterior.distribution
    covariance: Tensor = normal.covariance_matrix
    n, k = posterior.mean.shape[-2:]
    batch = covariance.shape[:-2]
    if isinstance(normal, MultitaskMultivariateNormal) and not normal._interleaved:
        covariance = covariance.reshape(*batch, k, n, k, n)
        return [covariance.transpose(-4, -3).transpose(-2, -1)]
    return [covariance.reshape(*batch, n, k, n, k)]


def _one_by_one(blocks: list[Tensor], noise: Tensor) -> Tensor:
    """Variances of ``n`` points, each given the noisy values of all before it.

    Args:
        blocks: ``(*b, n, k, n, k)`` each, the ``k`` adding up to ``F``.
        noise: ``(*b, n - 1, F)``.

    Returns:
        ``(*b, F, n)``.
    """
    out = []
    for block, lam in zip(
        blocks, noise.split([b.shape[-1] for b in blocks], -1), strict=True
    ):
        n, k = block.shape[-2:]
        seen = (n - 1) * k
        flat = block.reshape(*block.shape[:-4], n * k, n * k)
        lam = lam.flatten(-2)
        # in units in which what is observed has variance 1: jitter knows no others
        size = flat.diagonal(dim1=-2, dim2=-1)[..., :seen] + lam
        none = size <= 0
        unit = size.masked_fill(none, 1.0).rsqrt().detach().unsqueeze(-1)
        own = (lam + none) * unit.squeeze(-1).square()
        known = flat[..., :seen, :seen] * unit * unit.mT + torch.diag_embed(own)
        root = psd_safe_cholesky(known)
        # row i of L^-1 K rests on points up to i alone: one solve serves every point
        cross = flat[..., :seen, :] * unit
        solved = torch.linalg.solve_triangular(root, cross, upper=False)
        batch = solved.shape[:-2]
        explained = solved.square().reshape(*batch, n - 1, k, n, k).sum(-3)
        before = torch.ones(n - 1, n, dtype=flat.dtype, device=flat.device).triu(1)
        gone = (explained * before.unsqueeze(-1)).sum(-3)
        prior = flat.diagonal(dim1=-2, dim2=-1).unflatten(-1, (n, k))
        out.append((prior - gone).mT)
    return torch.cat(out, -2)


def _arrangement(given: Outputs | None, count: int) -> tuple[Tensor, Tensor]:
    """Which outputs are the reward and the costs, and their factors, ``(1 + m,)``."""
    if given is None:
        given = [(j, 1.0) for j in range(count)]
    try:
        place = [operator.index(j) for j, _ in given]
        factor = [checks.number("outputs", a) for _, a in given]
    except (TypeError, ValueError):
        raise CBanditError(
            "outputs must be a list of pairs (number of an output, factor); got "
            f"{given!r}"
        ) from None
    if len(place) < 2:
        raise CBanditError(
            "model must have 1 + m outputs, the reward first and m >= 1 costs after; "
            f"got {len(place)}"
        )
    if min(place) < 0 or max(place) >= count or 0 in factor:
        raise CBanditError(
            f"outputs must name outputs 0 .. {count - 1}, with factors other than 0; "
            f"got {given!r}"
        )
    return torch.tensor(place), torch.tensor(factor, dtype=torch.float64)


def _each(name: str, value: Tensor, count: int) -> Tensor:
    """A number, or one for each of ``count`` outputs, ``(count,)``."""
    if value.dim() and tuple(value.shape) != (count,):
        raise CBanditError(
            f"{name} must be a number or have shape {(count,)}; got "
            f"{tuple(value.shape)}"
        )
    return value.expand(count)


def _parts(model: Model) -> list[Model]:
    """The models of a list, or the one."""
    parts: Any = model.models if isinstance(model, ModelList) else [model]
    return list(parts)


def _data(part: Model) -> Tensor | None:
    """Where a model has been observed, ``(*b, n, d)``; ``None`` if it does not say."""
    try:
        x: Tensor = get_train_inputs(part, transformed=False)[0]
        extra = x.dim() - 2 - len(part.batch_shape)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    for _ in range(extra):
        x = x.select(-3, 0)  # the same for all outputs
    if isinstance(part, MultiTaskGP) and part.num_outputs > 1:
        # a column of it is the task's, which points leave out
        task = part._task_feature % x.shape[-1]
        x = torch.cat([x[..., :task], x[..., task + 1 :]], -1)
    return x


def _coordinates(model: Model) -> int | None:
    """The width ``d`` of points, where the model's data tell it."""
    if any(isinstance(part, MultiTaskGP) for part in model.modules()):
        return None  # points may name a task or not
    data = [_data(part) for part in _parts(model)]
    widths = {x.shape[-1] for x in data if x is not None}
    return widths.pop() if len(widths) == 1 else None


def _floor(score: _Score) -> float:
    """A level that no reward believed in comes down to."""
    output, scale = int(score.place[0]), float(score.scale[0])
    for part in _parts(score.model):
        if output < part.num_outputs:
            break
        output -= part.num_outputs
    x = _data(part)
    if x is None:
        raise CBanditError(
            f"floor cannot be had from a {type(part).__name__}: give floor=, a number "
            "below every reward"
        )
    with torch.no_grad(), _small_variances():
        seen: Any = part.posterior(x.movedim(-2, 0).unsqueeze(-2))
        mean = scale * seen.mean[..., output]
        std = abs(scale) * _root(seen.variance[..., output])
    size = max(float(mean.abs().max()), float(std.max()))
    return float((mean - 6 * std).min()) - FAR * (size or 1.0)


def _stated(
    outputs: Outputs | None, thresholds: Any, posterior_transform: Any, limits: Any
) -> dict[str, Any]:
    """Outputs and thresholds, from an optimisation's objective and constraints if any.

    ``limits`` is ``(A, b)``: feasible means ``A y <= b``. The costs are its rows.
    """
    if limits is None or outputs is not None:
        if outputs is None and posterior_transform is not None:
            raise CBanditError(
                "posterior_transform does not say which outputs are the costs: give "
                "constraints_tuple, or outputs= in its place"
            )
        tau = 0.0 if thresholds is None else thresholds
        return {"outputs": outputs, "thresholds": tau}
    if thresholds is not None:
        raise CBanditError(
            "thresholds come with the optimisation's constraints here; got thresholds "
            f"= {thresholds!r} too"
        )
    if not isinstance(posterior_transform, ScalarizedPosteriorTransform):
        raise CBanditError(
            "posterior_transform must say which output is the reward, by a "
            f"ScalarizedPosteriorTransform; got {posterior_transform!r}"
        )
    weights: Any = posterior_transform.weights
    rows = torch.cat([weights.unsqueeze(0), limits[0]])
    if bool(((rows != 0).sum(-1) != 1).any()):
        raise CBanditError(
            "objective and constraints must each be on one output; got weights "
            f"{rows.tolist()}"
        )
    place = rows.abs().argmax(-1)
    factor = rows.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    pairs = list(zip(place.tolist(), factor.tolist(), strict=True))
    return {"outputs": pairs, "thresholds": limits[1].squeeze(-1)}


def _inputs_weighted(
    model: Model,
    beta: Any,
    multiplier: Any,
    cost_beta: Any = None,
    thresholds: Any = None,
    clip: Any = None,
    smooth: Any = None,
    noise: Any = None,
    outputs: Outputs | None = None,
    X_pending: Tensor | None = None,
    posterior_transform: Any = None,
    constraints_tuple: Any = None,
) -> dict[str, Any]:
    """What :class:`PrimalDual` and :class:`RectifiedPenalty` take."""
    return {
        "model": model,
        "beta": beta,
        "multiplier": multiplier,
        "cost_beta": cost_beta,
        "clip": clip,
        "smooth": smooth,
        "noise": noise,
        "X_pending": X_pending,
        **_stated(outputs, thresholds, posterior_transform, constraints_tuple),
    }


def _inputs_feasible(
    model: Model,
    beta: Any,
    cost_beta: Any = None,
    thresholds: Any = None,
    smooth: Any = None,
    floor: float | None = None,
    noise: Any = None,
    outputs: Outputs | None = None,
    X_pending: Tensor | None = None,
    posterior_transform: Any = None,
    constraints_tuple: Any = None,
) -> dict[str, Any]:
    """What :class:`OptimisticFeasible` takes."""
    return {
        "model": model,
        "beta": beta,
        "cost_beta": cost_beta,
        "smooth": smooth,
        "floor": floor,
        "noise": noise,
        "X_pending": X_pending,
        **_stated(outputs, thresholds, posterior_transform, constraints_tuple),
    }


def _inputs_pathwise(
    model: Model,
    beta: Any,
    multiplier: Any,
    seed: int | torch.Generator,
    cost_beta: Any = None,
    thresholds: Any = None,
    clip: Any = None,
    smooth: Any = None,
    outputs: Outputs | None = None,
    X_pending: Tensor | None = None,
    posterior_transform: Any = None,
    constraints_tuple: Any = None,
) -> dict[str, Any]:
    """What :class:`PathwisePrimalDual` takes."""
    return {
        "model": model,
        "beta": beta,
        "multiplier": multiplier,
        "seed": seed,
        "cost_beta": cost_beta,
        "clip": clip,
        "smooth": smooth,
        "X_pending": X_pending,
        **_stated(outputs, thresholds, posterior_transform, constraints_tuple),
    }


for _kinds, _inputs in (
    ((PrimalDual, RectifiedPenalty), _inputs_weighted),
    ((OptimisticFeasible,), _inputs_feasible),
    ((PathwisePrimalDual,), _inputs_pathwise),
):
    for _kind in _kinds:
        # BoTorch's registry refuses a class that it has
        if _kind not in ACQF_INPUT_CONSTRUCTOR_REGISTRY:
            acqf_input_constructor(_kind)(_inputs)
