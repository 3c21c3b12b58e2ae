"""ADMMBO: an augmented Lagrangian split between ``x`` and one copy ``z_j`` per cost.

To maximise ``f(x) - sum_j 1[g_j(z_j) > 0]`` (times a constant ``M``) over ``x = z_j``,
with multipliers ``y_j``, in turn:

1. optimality: expected improvement on ``f(x) - sum_j (rho/2) |x - z_j + y_j/rho|^2``;
2. feasibility, each ``j``: expected improvement on
   ``-(1[g_j(z) > 0] + (rho/2M) |x - z + y_j/rho|^2)``, the indicator Bernoulli under
   the belief about ``g_j``;
3. ``y_j += rho (x - z_j)``; ``rho`` doubled or halved where the residuals ``|x - z|``
   and ``rho |z - z_before|`` differ tenfold; stop where both are small.

Each step has its own budget of evaluations, and all of them count as rounds. After it
has stopped, the best action seen that is believed feasible is played for ever.

S. Ariafar, J. Coll-Font, D. Brooks and J. Dy, ADMMBO: Bayesian optimization with
unknown constraints using ADMM, 2019. Ours: every round's reward and cost enter the
beliefs, whichever step asked for it; incumbents are by posterior mean, since
observations are noisy.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.arguments import stated
from cbandit.baselines.admm import Split
from cbandit.baselines.botorch_policy import best_on_box, refused
from cbandit.baselines.random import clear
from cbandit.beliefs.gp import GP, _extent
from cbandit.errors import CBanditError
from cbandit.explore import UCB
from cbandit.policies.alone import alone
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.gp import GPPolicy
from cbandit.policies.state import GPState
from cbandit.policies.suits import believed_costs
from cbandit.posterior.units import Units, level

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction

__all__ = ["ADMMBO"]


@dataclass(frozen=True, eq=False)
class Progress:
    """How far ADMMBO is.

    Args:
        split: the augmented Lagrangian.
        incumbent: the action that is played once a trial has stopped, ``(T, d)``.
        stopped: the round from which it is, ``(T,)``; 0 until then.
        iteration: counted from 0.
        step: 0 the reward's, ``j`` that of cost ``j``.
        done: evaluations of this step.
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


class ADMMBO(GPPolicy):
    """Alternating directions with expected improvement in each.

    Args:
        actions: a finite set, a product grid, or a :class:`~cbandit.Box` (there
            BoTorch's ``optimize_acqf`` searches, trial by trial).
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        rho: of the augmented Lagrangian, at first; a number or ``(*trials,)``.
        weight: ``M``, in the reward's unit, as ``rho``.
        budgets: evaluations of the optimality step: the first one's, the later ones'.
        cost_budgets: likewise of each feasibility step.
        tolerance: of the residuals, in parts of the diagonal of the set.
        iterations: at most so many.
        num_restarts, raw_samples: of ``optimize_acqf``.
        common: see below. Coordinates are needed.
    """

    name = "ADMMBO"
    splits = False

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
        self.settings = stated(self, locals())
        refused(common)
        super().__init__(
            actions,
            reward=reward,
            costs=believed_costs(costs),
            explore=UCB(0.0),
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
        expected = "a positive int"
        self.num_restarts = checks.whole("num_restarts", num_restarts, 1, expected)
        self.raw_samples = checks.whole("raw_samples", raw_samples, 1, expected)
        low, high = _extent(self.actions).to(self.device)
        self._diagonal = float((high - low).norm())
        rho = self._per_trial("rho", checks.positive("rho", rho))
        # from the upper corner, as published
        split = Split.start(high, self.m, rho, self.weight)
        stopped = torch.zeros(self._size, dtype=torch.long, device=self.device)
        own = Progress(split, split.x, stopped)
        self._begin(self._now.state._replace(own=own))

    @property
    @alone
    def multiplier(self) -> Tensor:
        """``|y_j|``, ``(*trials, m)``."""
        return self._outside(self._now.state.own.split.y.norm(dim=-1))

    @property
    @alone
    def stopped(self) -> Tensor:
        """The round from which the incumbent is played, ``(T,)``; 0 until then."""
        stopped: Tensor = self._now.state.own.stopped.clone()
        return stopped

    # -- one round -------------------------------------------------------------------

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return the greatest improvement of the present step."""
        if asked.actions is not self.actions:
            raise CBanditError("ADMMBO chooses from its own set: no actions=")
        beliefs, own = state.beliefs, state.own
        trials = range(self._size)
        if asked.t == 1 or not all(beliefs.observed(i) for i in trials):
            return self._first(asked), state
        if not bool(own.going.any()):
            return self._play(_left(asked, own.incumbent)), state
        before = self._limits(max(asked.t - 1, 1))
        units = beliefs.units()
        before = level(units, before)
        own = self._advanced(beliefs, own, asked.t, before)
        best, here = _best_so_far(beliefs, own.split, own.step, before)
        limit = _of_step(level(units, self._limits(asked.t)), own.step)
        if self.actions.continuous:
            found = self._on_box(asked, beliefs, own, limit, best)
        else:
            found = self._on_set(asked, beliefs, own, limit, best, here)
        x = torch.where(own.going.unsqueeze(-1), found, own.incumbent)
        return self._play(x), state._replace(own=replace(own, done=own.done + 1))

    def _first(self, asked: Asked) -> Decision:
        """Return uniform actions, until every trial has seen every function."""
        count = asked.actions.dim if asked.actions.continuous else 1
        share = asked.streams.uniform(1 + count).reshape(self._size, -1)
        shares = share[:, 1:].to(self.device)
        found = torch.stack(
            [clear(asked, i, each) for i, each in enumerate(shares.unbind(0))]
        )
        if asked.actions.continuous:
            return Decision(None, x=found.to(self.dtype), sure=True)
        return Decision(found, sure=True)

    def _play(self, x: Tensor) -> Decision:
        x = x.to(self.dtype)
        if self.actions.continuous:
            return Decision(None, x=x, sure=True)
        return Decision(self.actions.index(x), sure=True)

    def _advanced(
        self, beliefs: Any, own: Progress, t: int, limits: Tensor
    ) -> Progress:
        """Return the next step, and the next iteration, where a budget is used up."""
        step, going = own.step, own.going
        budget = (self.cost_budgets if step else self.budgets)[min(own.iteration, 1)]
        if own.done < budget:
            return own
        _, found = _best_so_far(beliefs, own.split, step, limits)
        split = own.split.stepped(step, found, going)
        if step < self.m:
            return replace(own, split=split, step=step + 1, done=0)
        small, last = self.tolerance * self._diagonal, own.iteration + 1
        primal, dual = split.residuals()
        ends = (primal <= small) & (dual <= small) | (last >= self.iterations)
        ends &= going
        best = _deployed(beliefs, limits)
        incumbent = torch.where(ends.unsqueeze(-1), best, own.incumbent)
        stopped = torch.where(ends, t, own.stopped)
        return Progress(split.iterated(going), incumbent, stopped, last)

    # -- the search ------------------------------------------------------------------

    def _on_set(
        self,
        asked: Asked,
        beliefs: Any,
        own: Progress,
        limit: Any,
        best: Tensor,
        here: Tensor,
    ) -> Tensor:
        """Return where a step gains most, ``(T, d)``; ``here`` where nothing gains."""
        top, found, mask = torch.zeros_like(best), here.clone(), asked.mask
        if mask is not None:
            at = self.actions.index(here.to(self.dtype)).unsqueeze(-1)
            kept = mask.expand(len(at), -1).gather(-1, at).squeeze(-1)
            top = torch.where(kept, top, -torch.inf)
        for start, stop, mean, std in beliefs.one(own.step):
            points = self.actions.block(start, stop).double()
            numbers = mean.double(), std.double(), points, limit, best.unsqueeze(-1)
            gain = own.split.gain(own.step, *numbers)
            if mask is not None:
                gain = gain.masked_fill(~mask[:, start:stop], -torch.inf)
            value, place = gain.max(-1)
            better = value > top
            at = self.actions.at(place + start).double()
            found = torch.where(better.unsqueeze(-1), at, found)
            top = torch.where(better, value, top)
        return found

    def _on_box(
        self, asked: Asked, beliefs: Any, own: Progress, limit: Any, best: Tensor
    ) -> Tensor:
        """Return the same on a box, by BoTorch's search, trial by trial."""
        from botorch.exceptions.warnings import BadInitialCandidatesWarning
        from botorch.utils.sampling import manual_seed

        from cbandit.posterior.botorch import model_list

        seeds, found = asked.streams.uniform(1).reshape(self._size), []
        for i in range(self._size):
            mine = None if limit is None else limit[i : i + 1]
            with warnings.catch_warnings(), manual_seed(int(seeds[i] * 2**31)):
                # no improvement to be had anywhere tried is an answer, not a fault
                warnings.simplefilter("ignore", BadInitialCandidatesWarning)
                model = model_list(beliefs, i)
                believed = _in_units(model, own.step, beliefs.units(), i)
                gain = _acquisition(believed, own.split.of(i), own.step, mine, best[i])
                search = self.num_restarts, self.raw_samples
                found.append(best_on_box(gain, asked, i, *search))
        return torch.stack(found).double()


def _left(asked: Asked, x: Tensor) -> Tensor:
    """Return an incumbent ``(T, d)``, an error where it has failed or may not be."""
    if asked.barred is not None:
        gone = bool(asked.barred.holds(x).any())
    elif asked.mask is not None:
        at = asked.actions.index(x.to(asked.actions.extent())).unsqueeze(-1)
        gone = not bool(asked.mask.expand(len(at), -1).gather(-1, at).all())
    else:
        gone = False
    if gone:
        raise CBanditError(
            "ADMMBO has ended, and what it found has failed or among leaves it out"
        )
    return x


def _of_step(limits: Tensor, step: int) -> Tensor | None:
    """Return the threshold of a step's cost, ``(T, 1)``; ``None`` of the reward's."""
    return None if step == 0 else limits[:, step - 1 : step]


def _best_so_far(
    beliefs: Any, split: Split, step: int, limits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a step's best value among actions seen ``(T,)``, and where, ``(T, d)``."""
    x, mean, seen = beliefs.tried(step)
    x = x.double()
    value = split.value(step, mean, x, _of_step(limits, step))
    best, place = value.masked_fill(~seen, -torch.inf).max(-1)
    return best, _at(x, place)


def _deployed(beliefs: Any, limits: Tensor) -> Tensor:
    """Return the best feasible action that was seen; else the least violating."""
    x, reward, seen = beliefs.tried(0)
    costs = beliefs.anywhere(x)[0][:, 1:]
    worst = (costs - limits.unsqueeze(-1)).amax(1)
    feasible = (worst <= 0) & seen
    value = torch.where(feasible, reward, -torch.inf)
    least = torch.where(seen, -worst, -torch.inf)
    place = torch.where(feasible.any(-1), value.argmax(-1), least.argmax(-1))
    return _at(x.double(), place)


def _at(x: Tensor, place: Tensor) -> Tensor:
    """Return the row ``place (T,)`` of each trial of ``x (T, n, d)``, ``(T, d)``."""
    rows = place.view(-1, 1, 1).expand(-1, 1, x.shape[-1])
    found: Tensor = x.gather(1, rows).squeeze(1)
    return found


class _InUnits:
    """One trial's model of one function, read in units.

    Args:
        model: of BoTorch.
        center: what its values are counted from.
        size: the unit.
    """

    def __init__(self, model: Any, center: float, size: float) -> None:
        self.model, self._center, self._size = model, center, size

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and deviations ``(1, b)`` at ``x (b, 1, d)``."""
        posterior = self.model.posterior(x)
        mean = (posterior.mean.reshape(1, -1) - self._center) / self._size
        variance = posterior.variance.reshape(1, -1) / self._size**2
        return mean, variance.clamp_min(1e-18).sqrt()


def _in_units(model: Any, step: int, units: Units | None, trial: int) -> _InUnits:
    """Return the model of a step's function."""
    center, size = 0.0, 1.0
    if units is not None:
        center, size = float(units.center[trial, step]), float(units.size[trial, step])
    return _InUnits(model.models[step], center, size)


def _acquisition(
    believed: _InUnits, split: Split, step: int, limit: Tensor | None, best: Tensor
) -> AcquisitionFunction:
    """Return one trial's improvement as BoTorch takes it."""
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.utils.transforms import t_batch_mode_transform

    class Improvement(AcquisitionFunction):
        @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
        def forward(self, X: Tensor) -> Tensor:
            """``b x 1 x d -> b``."""
            mean, std = believed(X)
            x = X.reshape(1, -1, X.shape[-1])
            return split.gain(step, mean, std, x, limit, best).reshape(-1)

    return Improvement(believed.model)
