"""ADMMBO: an augmented Lagrangian split between ``x`` and one copy ``z_j`` per cost.

To maximise ``f(x) - sum_j 1[g_j(z_j) > 0]`` (times a constant ``M``) over ``x = z_j``,
with multipliers ``y_j``, in turn:

1. optimality: expected improvement on ``f(x) - sum_j (rho/2) |x - z_j + y_j/rho|^2``;
2. feasibility, each ``j``: expected improvement on
   ``-(1[g_j(z) > 0] + (rho/2M) |x - z + y_j/rho|^2)``, the indicator Bernoulli under
   the belief about ``g_j``;
3. ``y_j += rho (x - z_j)``; ``rho`` doubled or halved where the residuals ``|x - z|``
   and ``rho |z - z_before|`` differ tenfold; stop where both are small.

Each step has its own budget of evaluations, each of which is a round. Once it has
stopped, it plays for ever the best action seen that is believed feasible.

S. Ariafar, J. Coll-Font, D. Brooks and J. Dy, ADMMBO: Bayesian optimization with
unknown constraints using ADMM, 2019. Ours: every round's reward and cost enter the
beliefs, whichever step asked for it; the incumbent is best by posterior mean, as
observations are noisy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit._core.peaks import best_place
from cbandit.actions import Actions, Unit
from cbandit.baselines.botorch_policy import REFUSES, best_on_box
from cbandit.baselines.random import uniform
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.abilities import OWN_RULE
from cbandit.policies.checks import believed_costs
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.keywords import CostBeliefs, GPKeywords
from cbandit.policies.safe.action import require_numbers
from cbandit.policies.saving import locked
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.units import level
from cbandit.search import maximise

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction


def improvement(mean: Tensor, std: Tensor, best: Tensor) -> Tensor:
    """Return the expected improvement of ``N(mean, std^2)`` over ``best``."""
    std = std.clamp_min(1e-12)
    u = (mean - best) / std
    density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
    gain: Tensor = std * (density + u * torch.special.ndtr(u))
    return gain


def feasible_improvement(
    mean: Tensor, std: Tensor, distance: Tensor, best: Tensor
) -> Tensor:
    """Return the expected fall of ``1[g > 0] + distance`` below ``best``.

    ``g`` is Gaussian with this mean and deviation.
    """
    share = torch.special.ndtr(mean / std.clamp_min(1e-12))
    room = best - distance
    gain: Tensor = (1 - share) * room.clamp_min(0) + share * (room - 1).clamp_min(0)
    return gain


@dataclass(frozen=True, eq=False)
class Split:
    """The state of the alternating directions, in ``T`` trials.

    Steps are require_numbers: 0 is the reward's, ``j`` that of cost ``j``.

    Args:
        x: the action of the reward's step, ``(T, d)``.
        z: the copies of ``x``, one a cost, ``(T, m, d)``.
        before: the copies after the previous iteration.
        y: the multipliers of ``x = z_j``, ``(T, m, d)``.
        rho: the penalty, ``(T,)``.
        weight: ``M``, ``(T,)``.
    """

    x: Tensor
    z: Tensor
    before: Tensor
    y: Tensor
    rho: Tensor
    weight: Tensor

    @classmethod
    def start(cls, corner: Tensor, m: int, rho: Tensor, weight: Tensor) -> Split:
        """Return the first state: all points at ``corner (d,)``, multipliers 0."""
        shape = (len(rho), m, len(corner))
        z = corner.expand(shape).clone()
        x = corner.expand(len(rho), -1).clone()
        return cls(x, z, z, torch.zeros_like(z), rho, weight)

    def of(self, trial: int) -> Split:
        """Return the state of one trial alone."""
        one = slice(trial, trial + 1)
        x, z, before, y = self.x, self.z, self.before, self.y
        rho, weight = self.rho[one], self.weight[one]
        return Split(x[one], z[one], before[one], y[one], rho, weight)

    def value(self, step: int, mean: Tensor, x: Tensor, limit: Tensor | None) -> Tensor:
        """Return the objective of a step at known means ``(T, n)``.

        Args:
            step: the step's number.
            mean: the means of the step's function.
            x: the points, ``(n, d)`` or ``(T, n, d)``.
            limit: the cost's threshold, ``(T, 1)``.
        """
        if limit is None:
            return mean - self._penalty(x)
        return -((mean > limit).double() + self._distance(step, x))

    def gain(
        self,
        step: int,
        mean: Tensor,
        std: Tensor,
        x: Tensor,
        limit: Tensor | None,
        best: Tensor,
    ) -> Tensor:
        """Return the expected improvement of a step over ``best`` ``(T, 1)``."""
        if limit is None:
            return improvement(mean - self._penalty(x), std, best)
        return feasible_improvement(mean - limit, std, self._distance(step, x), -best)

    def _penalty(self, x: Tensor) -> Tensor:
        """Return ``sum_j (rho/2) |x - z_j + y_j/rho|^2``, ``(T, n)``."""
        rho = self.rho.view(-1, 1, 1)
        squares = _squares(self.z - self.y / rho, x)  # T x m x n
        total: Tensor = (rho / 2 * squares).sum(1)
        return total

    def _distance(self, step: int, x: Tensor) -> Tensor:
        """Return ``(rho/2M) |x_hat - z + y_j/rho|^2`` at ``z = x``, ``(T, n)``."""
        rho = self.rho.view(-1, 1)
        target = self.x + self.y[:, step - 1] / rho
        scaled: Tensor = _squares(target.unsqueeze(1), x).squeeze(1)
        scaled *= rho / (2 * self.weight.view(-1, 1))
        return scaled

    def stepped(self, step: int, chosen: Tensor, going: Tensor) -> Split:
        """Return the state after a step chose ``chosen (T, d)`` in trials ``going``."""
        where = going.unsqueeze(-1)
        if step == 0:
            return replace(self, x=torch.where(where, chosen, self.x))
        z = self.z.clone()
        z[:, step - 1] = torch.where(where, chosen, z[:, step - 1])
        return replace(self, z=z)

    def residuals(self) -> tuple[Tensor, Tensor]:
        """Return ``|x - z|`` and ``rho |z - z_before|``, ``(T,)`` each."""
        primal = (self.x.unsqueeze(1) - self.z).flatten(1).norm(dim=-1)
        dual = self.rho * (self.z - self.before).flatten(1).norm(dim=-1)
        return primal, dual

    def iterated(self, going: Tensor) -> Split:
        """Return the state after an iteration, in trials ``going (T,)``.

        ``y_j += rho (x - z_j)``; ``rho`` is doubled or halved where the residuals
        differ tenfold.
        """
        gap, (primal, dual) = self.x.unsqueeze(1) - self.z, self.residuals()
        y = self.y + self.rho.view(-1, 1, 1) * gap
        factor = torch.where(primal > 10 * dual, 2.0, 1.0)
        factor = torch.where(dual > 10 * primal, 0.5, factor)
        return replace(
            self,
            before=self.z,
            y=torch.where(going.view(-1, 1, 1), y, self.y),
            rho=torch.where(going, self.rho * factor, self.rho),
        )


class Progress(NamedTuple):
    """The progress of ADMMBO: its step, its iteration and its best action.

    Args:
        split: the augmented Lagrangian.
        incumbent: the action that a trial plays once it has stopped, ``(T, d)``.
        stopped: the round from which it does, ``(T,)``; 0 until then.
        iteration: counted from 0.
        step: 0 for the reward's, ``j`` for that of cost ``j``.
        done: how many evaluations this step has had.
    """

    split: Split
    incumbent: Tensor
    stopped: Tensor
    iteration: int = 0
    step: int = 0
    done: int = 0

    @property
    def going(self) -> Tensor:
        """Trials that have not stopped, ``(T,)``."""
        return self.stopped == 0

    def limit(self, limits: Tensor) -> Tensor | None:
        """Return the threshold of the step's cost, ``(T, 1)``; the reward has none."""
        return None if self.step == 0 else limits[:, self.step - 1 : self.step]

    def best(self, beliefs: Beliefs, limits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step's best value ``(T,)`` among actions tried, and its action."""
        x, mean, tried = beliefs.tried(self.step)
        x = x.double()
        value = self.split.value(self.step, mean, x, self.limit(limits))
        value = value.masked_fill(~tried, -torch.inf)
        place = best_place(value, beliefs.tolerance(costs=self.step > 0))
        return value.amax(-1), _row(x, place)

    def gain(
        self, mean: Tensor, std: Tensor, x: Tensor, limit: Tensor | None, best: Tensor
    ) -> Tensor:
        """Return the step's expected improvement over ``best`` ``(T, 1)``."""
        return self.split.gain(self.step, mean, std, x, limit, best)


class ADMMBO(GPPolicy):
    """Alternating directions with expected improvement in each.

    Args:
        actions: a finite set, a product grid, or a :class:`~cbandit.Box` (there
            BoTorch's ``optimize_acqf`` searches, trial by trial).
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        rho: the first penalty of the augmented Lagrangian; a number or ``(*trials,)``.
        weight: ``M``, in the reward's unit; a number or ``(*trials,)``.
        budgets: evaluations in an optimality step: in the first one, and in later ones.
        cost_budgets: the same for each feasibility step.
        tolerance: residuals below this share of the set's diagonal end the search.
        iterations: the most iterations.
        num_restarts, raw_samples: arguments of ``optimize_acqf``.
        common: see below. Coordinates are needed.
    """

    name = "ADMMBO"
    abilities = replace(
        OWN_RULE,
        categories=False,
        refuses={
            **REFUSES,
            "limit": "its search converges under the limits that it began with",
        },
    )

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs,
        rho: ArrayLike = 0.1,
        weight: ArrayLike = 50.0,
        budgets: tuple[int, int] = (10, 5),
        cost_budgets: tuple[int, int] = (50, 5),
        tolerance: float = 0.03,
        iterations: int = 100,
        num_restarts: int = 4,
        raw_samples: int = 64,
        **common: Unpack[GPKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        costs, means = believed_costs(costs), UCB(0.0)
        super().__init__(actions, reward=reward, costs=costs, explore=means, **common)
        self.budgets = _evaluations("budgets", budgets)
        self.cost_budgets = _evaluations("cost_budgets", cost_budgets)
        self.tolerance = checks.number("tolerance", tolerance, minimum=0.0)
        self.iterations = checks.whole("iterations", iterations)
        self.num_restarts = checks.whole("num_restarts", num_restarts)
        self.raw_samples = checks.whole("raw_samples", raw_samples)
        low, high = Unit.around(self.actions).bounds.to(self.device)
        self._small = self.tolerance * float((high - low).norm())  # of residuals
        rho = self._per_trial("rho", checks.positive("rho", rho))
        weight = self._per_trial("weight", checks.positive("weight", weight))
        # from the upper corner, as published
        split = Split.start(high, self.m, rho, weight)
        stopped = torch.zeros(self.size, dtype=torch.long, device=self.device)
        progress = Progress(split, split.x, stopped)
        self.begin(self._now.state._replace(own=progress))

    @property
    @locked
    def multiplier(self) -> Tensor:
        """The norms ``|y_j|`` of the multipliers, ``(*trials, m)``."""
        return self._user_shape(self._now.state.own.split.y.norm(dim=-1))

    @property
    @locked
    def stopped(self) -> Tensor:
        """The round since which the incumbent is played, ``(*trials,)``, or 0."""
        return self._user_shape(self._now.state.own.stopped.clone())

    # -- one round -------------------------------------------------------------------

    def decide(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return the action of greatest improvement in the present step."""
        if turn.actions is not self.actions:
            raise CBanditError("ADMMBO chooses from its own set: no actions=")
        beliefs, progress = state.beliefs, state.own
        if turn.t == 1 or not bool(beliefs.has_data().all()):
            count = self.actions.dim if self.actions.continuous else 1
            share = turn.streams.uniform(1 + count).reshape(self.size, -1)
            return uniform(turn, share[:, 1:], self), state
        if not bool(progress.going.any()):
            if self._left_out(turn, progress.incumbent):
                raise CBanditError(
                    "ADMMBO has ended, and what it found has failed or among leaves it "
                    "out"
                )
            return self._at(progress.incumbent), state
        units = beliefs.units()
        before = level(units, self.limits(turn.t - 1))
        progress = self._advanced(progress, beliefs, turn.t, before)
        best, best_x = progress.best(beliefs, before)
        limit = progress.limit(level(units, turn.limits))
        if self.actions.continuous:
            chosen = self._on_box(turn, beliefs, progress, limit, best)
        else:
            chosen = self._on_set(turn, beliefs, progress, limit, best, best_x)
        x = torch.where(progress.going.unsqueeze(-1), chosen, progress.incumbent)
        return self._at(x), state._replace(
            own=progress._replace(done=progress.done + 1)
        )

    def _at(self, x: Tensor) -> Decision:
        """Return the decision to play ``x (T, d)``."""
        x = x.to(self.dtype)
        if self.actions.continuous:
            return Decision(None, x=x, sure=True)
        return Decision(self.actions.index(x), sure=True)

    def _left_out(self, turn: Turn, x: Tensor) -> bool:
        """Return whether ``x (T, d)`` has failed, or is not allowed by ``among``."""
        if turn.balls is not None:
            return bool(turn.balls.holds(x).any())
        return turn.mask is not None and not bool(self._allowed(turn.mask, x).all())

    def _allowed(self, mask: Tensor, x: Tensor) -> Tensor:
        """Return the trials ``(T,)`` whose action at ``x (T, d)`` is in the mask."""
        at = self.actions.index(x.to(self.dtype)).unsqueeze(-1)
        return mask.expand(len(at), -1).gather(-1, at).squeeze(-1)

    def _advanced(
        self, progress: Progress, beliefs: Beliefs, t: int, limits: Tensor
    ) -> Progress:
        """Return the progress, moved to the next step once a budget is used up.

        ``limits (T, m)`` are the thresholds of the round before ``t``.
        """
        budgets = self.cost_budgets if progress.step else self.budgets
        if progress.done < budgets[min(progress.iteration, 1)]:
            return progress
        _, chosen = progress.best(beliefs, limits)
        split = progress.split.stepped(progress.step, chosen, progress.going)
        if progress.step < self.m:
            return progress._replace(split=split, step=progress.step + 1, done=0)
        last, (primal, dual) = progress.iteration + 1, split.residuals()
        small = (primal <= self._small) & (dual <= self._small)
        ends = progress.going & (small | (last >= self.iterations))
        best = _deployed(beliefs, limits).where(ends.unsqueeze(-1), progress.incumbent)
        stopped = torch.where(ends, t, progress.stopped)
        return Progress(split.iterated(progress.going), best, stopped, last)

    def _on_set(
        self,
        turn: Turn,
        beliefs: Beliefs,
        progress: Progress,
        limit: Tensor | None,
        best: Tensor,
        best_x: Tensor,
    ) -> Tensor:
        """Return the action where a step gains most, ``(T, d)``, or else ``best_x``.

        Args:
            turn: the round.
            beliefs: about reward and costs.
            progress: the step.
            limit: the cost's threshold, ``(T, 1)``; ``None`` for the reward's step.
            best: the step's best value so far, ``(T,)``.
            best_x: the action of that value, ``(T, d)``, returned if nothing gains.
        """
        mask, close = turn.mask, beliefs.tolerance(costs=progress.step > 0)

        def gains() -> Iterator[tuple[int, Tensor]]:
            for start, stop, mean, std in beliefs.one(progress.step):
                points = self.actions.block(start, stop).double()
                moments = mean.double(), std.double()
                gain = progress.gain(*moments, points, limit, best.unsqueeze(-1))
                yield start, gain.unsqueeze(1)

        best_found = maximise(gains(), lambda f, g: f, mask, close)
        nothing = best_found.value <= close
        if mask is not None:
            nothing &= self._allowed(mask, best_x)
        at = self.actions.at(require_numbers(best_found.index)).double()
        return torch.where(nothing.unsqueeze(-1), best_x, at)

    def _on_box(
        self,
        turn: Turn,
        beliefs: Beliefs,
        progress: Progress,
        limit: Tensor | None,
        best: Tensor,
    ) -> Tensor:
        """Return the point of a box where a step gains most, by BoTorch's search."""
        from botorch.exceptions.warnings import BadInitialCandidatesWarning
        from botorch.utils.sampling import manual_seed

        from cbandit.posterior.botorch import model_list

        seeds, points = turn.streams.uniform(1).reshape(len(best)), []
        units = beliefs.units()
        for i in range(len(best)):
            with warnings.catch_warnings(), manual_seed(int(seeds[i] * 2**31)):
                # no improvement anywhere is a valid answer
                warnings.simplefilter("ignore", BadInitialCandidatesWarning)
                unit = (0.0, 1.0)
                if units is not None:
                    at = i, progress.step
                    unit = float(units.center[at]), float(units.size[at])
                alone = progress._replace(split=progress.split.of(i))
                tau = None if limit is None else limit[i : i + 1]
                model = model_list(beliefs, i).models[progress.step]
                gain = _acquisition(model, unit, alone, tau, best[i])
                points.append(
                    best_on_box(gain, turn, i, self.num_restarts, self.raw_samples)
                )
        return torch.stack(points).double()


def _acquisition(
    model: Any,
    unit: tuple[float, float],
    progress: Progress,
    limit: Tensor | None,
    best: Tensor,
) -> AcquisitionFunction:
    """Return one trial's improvement as a BoTorch acquisition function.

    Args:
        model: the model of the step's function.
        unit: the centre and size of the unit of its values.
        progress: the step.
        limit: the cost's threshold, ``(1, 1)``; ``None`` for the reward's step.
        best: the step's best value so far.
    """
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.utils.transforms import t_batch_mode_transform

    center, size = unit

    class Improvement(AcquisitionFunction):
        @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
        def forward(self, X: Tensor) -> Tensor:
            """Return the improvement ``(b,)`` at points ``(b, 1, d)``."""
            posterior: Any = self.model.posterior(X)
            mean = (posterior.mean.reshape(1, -1) - center) / size
            variance = posterior.variance.reshape(1, -1) / size**2
            std = variance.clamp_min(1e-18).sqrt()
            x = X.reshape(1, -1, X.shape[-1])
            return progress.gain(mean, std, x, limit, best).reshape(-1)

    return Improvement(model)


def _deployed(beliefs: Beliefs, limits: Tensor) -> Tensor:
    """Return the best feasible action tried, else the least violating one."""
    x, reward, tried = beliefs.tried(0)
    if beliefs.actions.linear is not None:  # earlier data may lie beyond
        tried = tried & beliefs.actions.linear.holds(x)
    costs = beliefs.anywhere(x)[0][:, 1:]
    worst = (costs - limits.unsqueeze(-1)).amax(1)
    feasible = (worst <= 0) & tried
    value = torch.where(feasible, reward, -torch.inf)
    least = torch.where(tried, -worst, -torch.inf)
    place = torch.where(
        feasible.any(-1),
        best_place(value, beliefs.tolerance()),
        best_place(least, beliefs.tolerance(costs=True)),
    )
    return _row(x.double(), place)


def _row(x: Tensor, place: Tensor) -> Tensor:
    """Return the row ``place (T,)`` of each trial of ``x (T, n, d)``, ``(T, d)``."""
    rows = place.view(-1, 1, 1).expand(-1, 1, x.shape[-1])
    row: Tensor = x.gather(1, rows).squeeze(1)
    return row


def _evaluations(name: str, budgets: object) -> tuple[int, int]:
    """Return a step's budgets in the first iteration and in later ones."""
    if not isinstance(budgets, tuple | list) or len(budgets) != 2:
        raise CBanditError(f"{name} must be two positive ints; got {budgets!r}")
    first, later = (checks.whole(name, n, 1, "two positive ints") for n in budgets)
    return first, later


def _squares(a: Tensor, x: Tensor) -> Tensor:
    """Return ``|a - x|^2 (T, k, n)`` for ``a (T, k, d)`` and ``x (.., n, d)``."""
    mode = "donot_use_mm_for_euclid_dist"  # exact where points coincide
    if x.dim() == 3:
        square: Tensor = torch.cdist(a, x, compute_mode=mode).square()
        return square
    flat: Tensor = torch.cdist(a.flatten(0, 1), x, compute_mode=mode).square()
    return flat.view(*a.shape[:2], -1)
