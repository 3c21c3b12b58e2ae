"""ADMMBO: an augmented Lagrangian split between ``x`` and one copy ``z_j`` per cost.

To maximise ``f(x) - sum_j 1[g_j(z_j) > 0]`` (times a constant ``M``) over ``x = z_j``,
with multipliers ``y_j``, in turn:

1. optimality: expected improvement on ``f(x) - sum_j (rho/2) |x - z_j + y_j/rho|^2``;
2. feasibility, each ``j``: expected improvement on
   ``-(1[g_j(z) > 0] + (rho/2M) |x - z + y_j/rho|^2)``, the indicator Bernoulli under
   the belief about ``g_j``;
3. ``y_j += rho (x - z_j)``; ``rho`` doubled or halved where the residuals ``|x - z|``
and
   ``rho |z - z_before|`` differ tenfold; stop where both are small.

Each step has its own budget of evaluations, and all of them count as rounds. After it
has stopped, the best action seen that is believed feasible is played for ever.

S. Ariafar, J. Coll-Font, D. Brooks and J. Dy, ADMMBO: Bayesian optimization with
unknown constraints using ADMM, 2019. Ours: every round's reward and cost enter the
beliefs, whichever step asked for it; incumbents are by posterior mean, since
observations are noisy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.actions import Box
from cbandit.baselines.botorch_policy import BoTorchPolicy
from cbandit.beliefs.gp import GP, _extent
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.state import GPState

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.models.model_list_gp_regression import ModelListGP

__all__ = ["ADMMBO", "feasible_improvement", "improvement"]


def improvement(mean: Tensor, std: Tensor, best: Tensor) -> Tensor:
    """Expected improvement of ``N(mean, std^2)`` over ``best``."""
    std = std.clamp_min(1e-12)
    u = (mean - best) / std
    density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
    gain: Tensor = std * (density + u * torch.special.ndtr(u))
    return gain


def feasible_improvement(
    mean: Tensor, std: Tensor, distance: Tensor, best: Tensor
) -> Tensor:
    """Expected fall of ``1[g > 0] + distance`` below ``best``, ``g`` Gaussian."""
    share = torch.special.ndtr(mean / std.clamp_min(1e-12))
    room = best - distance
    gain: Tensor = (1 - share) * room.clamp_min(0) + share * (room - 1).clamp_min(0)
    return gain


class ADMMBO(BoTorchPolicy):
    """Alternating directions with expected improvement in each.

    Args:
        actions: a finite set, a product grid, or a :class:`~cbandit.Box` (there
            BoTorch's ``optimize_acqf`` searches, trial by trial).
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        rho: of the augmented Lagrangian, at first; a number or ``(*trials,)``.
        weight: ``M``.
        budgets: evaluations of the optimality step: the first one's, the later ones'.
        cost_budgets: likewise of each feasibility step.
        tolerance: of the residuals, in parts of the diagonal of the set.
        iterations: at most so many.
        num_restarts, raw_samples: of ``optimize_acqf``.
        common: see below. Coordinates are needed.
    """

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        rho: Any = 0.1,
        weight: float = 50.0,
        budgets: tuple[int, int] = (10, 5),
        cost_budgets: tuple[int, int] = (50, 5),
        tolerance: float = 0.03,
        iterations: int = 100,
        num_restarts: int = 4,
        raw_samples: int = 64,
        **common: Any,
    ) -> None:
        if costs is None:
            raise CBanditError("costs must be a cb.GP or a list of them; got None")
        super().__init__(
            actions,
            reward=reward,
            costs=costs,
            make_acquisition=_acquisition,
            num_restarts=num_restarts,
            raw_samples=raw_samples,
            name="ADMMBO",
            **common,
        )
        for name, pair in (("budgets", budgets), ("cost_budgets", cost_budgets)):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise CBanditError(f"{name} must be two positive ints; got {pair!r}")
            for n in pair:
                checks.whole(name, n, 1, "two positive ints")
        self.weight = checks.number("weight", weight)
        if self.weight <= 0:
            raise CBanditError(f"weight must be above 0; got {self.weight:g}")
        self.budgets, self.cost_budgets = tuple(budgets), tuple(cost_budgets)
        self.tolerance = checks.number("tolerance", tolerance, minimum=0.0)
        self.iterations = checks.whole("iterations", iterations)
        kept: dict[str, Any] = {"dtype": torch.float64, "device": self.device}
        low, high = _extent(self.actions).to(**kept)
        self._diagonal = float((high - low).norm())
        shape = (self._size, self.m, self.actions.dim)
        self._rho = self._per_trial("rho", checks.positive("rho", rho))
        self._y = torch.zeros(shape, **kept)
        self._z = high.expand(shape).clone()  # the upper corner, as published
        self._z_before = self._z.clone()
        self._x = high.expand(self._size, -1).clone()
        self._schedule = (0, 0, 0)  # iteration, step (0 the reward's), evaluations
        self._incumbent: Tensor = self._x.clone()
        #: the round from which the incumbent is played, ``(T,)``; 0 until then
        self.stopped = torch.zeros(self._size, dtype=torch.long, device=self.device)

    @property
    def multiplier(self) -> Tensor:
        """``|y_j|``, ``(*trials, m)``."""
        return self._outside(self._y.norm(dim=-1))

    # -- one round -----------------------------------------------------------------

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        if mask is not None or asked is not self.actions:
            raise CBanditError("ADMMBO chooses from its own set: no among=, actions=")
        seen = [self._known(self._beliefs, i) for i in range(self._size)]
        if t <= self.initial or not all(seen):
            return super().decide(self._now.state, self._asked)[0]
        if not bool((self.stopped == 0).any()):
            return self._play(t, self._incumbent)
        self._advance(t)
        iteration, step, done = self._schedule
        self._schedule = (iteration, step, done + 1)
        best, here = self._best_so_far(step)
        if isinstance(asked, Box):
            seeds = self._streams.uniform(1).reshape(self._size)
            found = torch.stack(
                [
                    self._best(self._beliefs, i, asked, None, int(seeds[i] * 2**31))
                    for i in range(self._size)
                ]
            ).double()
        else:
            found = self._over_set(step, best, here)
        return self._play(t, torch.where(self._over(), self._incumbent, found))

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Call the rule; temporary."""
        before = dict(vars(self))
        self._asked = asked
        try:
            decision = self._decide(asked.t, asked.actions, asked.mask, None)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise
        decision.sure = True
        return decision, state

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_asked", None)
        return state

    def _best(
        self, beliefs: Any, trial: int, asked: Any, allowed: Tensor | None, seed: int
    ) -> Tensor:
        from botorch.exceptions.warnings import BadInitialCandidatesWarning

        with warnings.catch_warnings():
            # no improvement to be had anywhere tried is an answer, not a fault
            warnings.simplefilter("ignore", BadInitialCandidatesWarning)
            return super()._best(beliefs, trial, asked, allowed, seed)

    def _over(self) -> Tensor:
        return (self.stopped > 0).unsqueeze(-1)

    def _play(self, t: int, x: Tensor) -> Decision:
        if isinstance(self.actions, Box):
            return Decision(None, x=x.to(self.dtype))
        return Decision(self.actions.index(x.to(self.dtype)))

    def _advance(self, t: int) -> None:
        """On to the next step, and the next iteration, where a budget is used up."""
        iteration, step, done = self._schedule
        budget = (self.cost_budgets if step else self.budgets)[min(iteration, 1)]
        if done < budget:
            return
        found = torch.where(self._over(), self._x, self._best_so_far(step)[1])
        if step == 0:
            self._x = found
        else:
            z = self._z.clone()
            z[:, step - 1] = torch.where(self._over(), z[:, step - 1], found)
            self._z = z
        if step < self.m:
            self._schedule = (iteration, step + 1, 0)
            return
        going = (self.stopped == 0).view(-1, 1, 1)
        gap = self._x.unsqueeze(1) - self._z
        self._y = torch.where(going, self._y + self._rho.view(-1, 1, 1) * gap, self._y)
        primal = gap.flatten(1).norm(dim=-1)
        dual = self._rho * (self._z - self._z_before).flatten(1).norm(dim=-1)
        small = self.tolerance * self._diagonal
        ends = (primal <= small) & (dual <= small) | (iteration + 1 >= self.iterations)
        ends &= self.stopped == 0
        factor = torch.where(primal > 10 * dual, 2.0, 1.0)
        factor = torch.where(dual > 10 * primal, 0.5, factor)
        self._rho = torch.where(self.stopped == 0, self._rho * factor, self._rho)
        self._z_before = self._z.clone()
        self._incumbent = torch.where(
            ends.unsqueeze(-1), self._deployed(), self._incumbent
        )
        self.stopped = torch.where(ends, t, self.stopped)
        self._schedule = (iteration + 1, 0, 0)

    # -- what was seen -------------------------------------------------------------

    def _best_so_far(self, step: int) -> tuple[Tensor, Tensor]:
        """The step's best value among what was seen ``(T,)``, and where, ``(T, d)``."""
        x, mean, seen = self._beliefs.tried(step)
        x = x.double()
        if step == 0:
            value = mean - self._penalty(x)
        else:
            limit = self._limits(max(self.t, 1))[:, step - 1 : step]
            value = -((mean > limit).double() + self._distance(step, x))
        best, place = value.masked_fill(~seen, -torch.inf).max(-1)
        return best, _at(x, place)

    def _deployed(self) -> Tensor:
        """The best action seen that is believed feasible; else the least violating."""
        x, reward, seen = self._beliefs.tried(0)
        costs = self._beliefs.anywhere(x)[0][:, 1:]
        worst = (costs - self._limits(max(self.t, 1)).unsqueeze(-1)).amax(1)
        feasible = (worst <= 0) & seen
        value = torch.where(feasible, reward, -torch.inf)
        least = torch.where(seen, -worst, -torch.inf)
        place = torch.where(feasible.any(-1), value.argmax(-1), least.argmax(-1))
        return _at(x.double(), place)

    def _penalty(self, x: Tensor, trial: int | None = None) -> Tensor:
        """``sum_j (rho/2) |x - z_j + y_j/rho|^2``, ``(T, n)``.

        ``x`` is ``(n, d)``, or ``(T, n, d)`` where trials look at points of their own.
        """
        pick = slice(None) if trial is None else slice(trial, trial + 1)
        rho = self._rho[pick].view(-1, 1, 1)
        squares = _squares(self._z[pick] - self._y[pick] / rho, x)  # T x m x n
        total: Tensor = (rho / 2 * squares).sum(1)
        return total

    def _distance(self, step: int, x: Tensor, trial: int | None = None) -> Tensor:
        """``(rho/2M) |x_hat - z + y_j/rho|^2`` at ``z = x``, ``(T, n)``; as above."""
        pick = slice(None) if trial is None else slice(trial, trial + 1)
        rho = self._rho[pick].view(-1, 1)
        target = self._x[pick] + self._y[pick, step - 1] / rho
        scaled: Tensor = _squares(target.unsqueeze(1), x).squeeze(1)
        scaled *= rho / (2 * self.weight)
        return scaled

    # -- the search ----------------------------------------------------------------

    def _over_set(self, step: int, best: Tensor, here: Tensor) -> Tensor:
        """Where the improvement is greatest, ``(T, d)``; ``here`` where it is 0."""
        top = torch.zeros_like(best)
        found = here.clone()
        limits = self._limits(self.t + 1)
        for start, stop, mean, std in self._beliefs.look(step):
            points = self.actions.block(start, stop).double()
            if step == 0:
                gain = improvement(
                    mean.double() - self._penalty(points),
                    std.double(),
                    best.unsqueeze(-1),
                )
            else:
                gain = feasible_improvement(
                    mean.double() - limits[:, step - 1 : step],
                    std.double(),
                    self._distance(step, points),
                    -best.unsqueeze(-1),
                )
            value, place = gain.max(-1)
            better = value > top
            at = self.actions.at(place + start).double()
            found = torch.where(better.unsqueeze(-1), at, found)
            top = torch.where(better, value, top)
        return found


def _at(x: Tensor, place: Tensor) -> Tensor:
    """Of ``x (T, n, d)`` the row ``place (T,)`` of each trial, ``(T, d)``."""
    rows = place.view(-1, 1, 1).expand(-1, 1, x.shape[-1])
    found: Tensor = x.gather(1, rows).squeeze(1)
    return found


def _squares(a: Tensor, x: Tensor) -> Tensor:
    """``|a - x|^2``, ``(T, k, n)``: ``a (T, k, d)``, ``x (n, d)`` or ``(T, n, d)``."""
    mode = "donot_use_mm_for_euclid_dist"  # exact where points coincide
    if x.dim() == 3:
        own: Tensor = torch.cdist(a, x, compute_mode=mode).square()
        return own
    flat: Tensor = torch.cdist(a.flatten(0, 1), x, compute_mode=mode).square()
    return flat.view(*a.shape[:2], -1)


def _acquisition(model: ModelListGP, policy: BoTorchPolicy) -> AcquisitionFunction:
    """The present step's improvement, for ``optimize_acqf`` on a box."""
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.utils.transforms import t_batch_mode_transform

    assert isinstance(policy, ADMMBO)
    admm: ADMMBO = policy
    step, trial = admm._schedule[1], admm.trial
    believed: Any = model.models[step]
    best = admm._best_so_far(step)[0][trial]
    limit = None if step == 0 else admm._limits(admm.t + 1)[trial, step - 1]

    class Improvement(AcquisitionFunction):
        @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
        def forward(self, X: Tensor) -> Tensor:
            """``b x 1 x d -> b``."""
            posterior = believed.posterior(X)
            mean = posterior.mean.reshape(-1)
            std = posterior.variance.reshape(-1).clamp_min(1e-18).sqrt()
            x = X.reshape(1, -1, X.shape[-1])
            if limit is None:
                return improvement(mean - admm._penalty(x, trial)[0], std, best)
            distance = admm._distance(step, x, trial)[0]
            return feasible_improvement(mean - limit, std, distance, -best)

    return Improvement(model)
