"""Where ADMMBO's steps look: the best action so far, and where one gains most.

Incumbents are by posterior mean. A set is searched whole, a box by BoTorch's search.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit._core.peaks import best_place
from cbandit.baselines.admm import Split
from cbandit.baselines.botorch_policy import best_on_box
from cbandit.errors import CBanditError
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.safe.action import numbered
from cbandit.posterior.units import Units
from cbandit.search import maximise

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction

__all__ = [
    "best_so_far",
    "decision_at",
    "deployed",
    "may_be",
    "of_step",
    "on_box",
    "on_set",
]


def of_step(limits: Tensor, step: int) -> Tensor | None:
    """Return the threshold of a step's cost, ``(T, 1)``; ``None`` of the reward's."""
    return None if step == 0 else limits[:, step - 1 : step]


def best_so_far(
    beliefs: Any, split: Split, step: int, limits: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a step's best value among actions seen ``(T,)``, and where, ``(T, d)``."""
    x, mean, seen = beliefs.tried(step)
    x = x.double()
    value = split.value(step, mean, x, of_step(limits, step))
    value = value.masked_fill(~seen, -torch.inf)
    place = best_place(value, beliefs.tolerance(costs=step > 0))
    return value.amax(-1), _at(x, place)


def deployed(beliefs: Any, limits: Tensor) -> Tensor:
    """Return the best feasible action that was seen; else the least violating."""
    x, reward, seen = beliefs.tried(0)
    costs = beliefs.anywhere(x)[0][:, 1:]
    worst = (costs - limits.unsqueeze(-1)).amax(1)
    feasible = (worst <= 0) & seen
    value = torch.where(feasible, reward, -torch.inf)
    least = torch.where(seen, -worst, -torch.inf)
    place = torch.where(
        feasible.any(-1),
        best_place(value, beliefs.tolerance()),
        best_place(least, beliefs.tolerance(costs=True)),
    )
    return _at(x.double(), place)


def _at(x: Tensor, place: Tensor) -> Tensor:
    """Return the row ``place (T,)`` of each trial of ``x (T, n, d)``, ``(T, d)``."""
    rows = place.view(-1, 1, 1).expand(-1, 1, x.shape[-1])
    found: Tensor = x.gather(1, rows).squeeze(1)
    return found


def decision_at(policy: Any, x: Tensor) -> Decision:
    """Return the decision to play ``x (T, d)``."""
    x = x.to(policy.dtype)
    if policy.actions.continuous:
        return Decision(None, x=x, sure=True)
    return Decision(policy.actions.index(x), sure=True)


def may_be(asked: Asked, x: Tensor) -> Tensor:
    """Return an incumbent ``(T, d)``, an error where it has failed or is left out."""
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


def on_set(
    asked: Asked,
    beliefs: Any,
    split: Split,
    step: int,
    limit: Any,
    best: Tensor,
    here: Tensor,
) -> Tensor:
    """Return where a step gains most, ``(T, d)``; ``here`` where nothing gains.

    Args:
        asked: the round, of the policy's own set.
        beliefs: about reward and costs.
        split: the augmented Lagrangian.
        step: 0 the reward's, ``j`` that of cost ``j``.
        limit: the cost's threshold, ``(T, 1)``; ``None`` of the reward's step.
        best: the step's best value so far, ``(T,)``.
        here: where that is, ``(T, d)``.
    """
    actions = asked.actions
    mask, close = asked.mask, beliefs.tolerance(costs=step > 0)

    def gains() -> Iterator[tuple[int, Tensor]]:
        for start, stop, mean, std in beliefs.one(step):
            points = actions.block(start, stop).double()
            numbers = mean.double(), std.double(), points, limit, best.unsqueeze(-1)
            yield start, split.gain(step, *numbers).unsqueeze(1)

    found = maximise(gains(), lambda f, g: f, mask, close)
    nothing = found.value <= close
    if mask is not None:
        at = actions.index(here.to(beliefs.dtype)).unsqueeze(-1)
        nothing &= mask.expand(len(at), -1).gather(-1, at).squeeze(-1)
    at = actions.at(numbered(found.index)).double()
    return torch.where(nothing.unsqueeze(-1), here, at)


def on_box(
    asked: Asked,
    beliefs: Any,
    split: Split,
    step: int,
    limit: Any,
    best: Tensor,
    num_restarts: int,
    raw_samples: int,
) -> Tensor:
    """Return the same on a box, by BoTorch's search, trial by trial."""
    from botorch.exceptions.warnings import BadInitialCandidatesWarning
    from botorch.utils.sampling import manual_seed

    from cbandit.posterior.botorch import model_list

    seeds, found = asked.streams.uniform(1).reshape(len(best)), []
    for i in range(len(best)):
        mine = None if limit is None else limit[i : i + 1]
        with warnings.catch_warnings(), manual_seed(int(seeds[i] * 2**31)):
            # no improvement to be had anywhere tried is an answer, not a fault
            warnings.simplefilter("ignore", BadInitialCandidatesWarning)
            model = model_list(beliefs, i)
            believed = _in_units(model, step, beliefs.units(), i)
            gain = _acquisition(believed, split.of(i), step, mine, best[i])
            found.append(best_on_box(gain, asked, i, num_restarts, raw_samples))
    return torch.stack(found).double()


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
