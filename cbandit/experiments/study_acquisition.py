"""BoTorch's acquisition functions as policies of a study.

A file names the function and gives the arguments that are a user's choice (``beta``,
the numbers of samples). All others follow from model, data and limits, under BoTorch's
names: ``best_f``, ``X_baseline``, ``constraints``, and so on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit.errors import CBanditError
from cbandit.experiments.named import Arguments, Home, located, of_botorch

if TYPE_CHECKING:
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.models.model_list_gp_regression import ModelListGP

    from cbandit.baselines.botorch_policy import BoTorchPolicy

POINTS = 512  # points that stand for the whole set in an integral over it


def acquisition(where: str, value: object, home: Home) -> Acquisition:
    """Return the callable that builds a policy's acquisition function.

    Args:
        where: the file, table and key, for errors.
        value: a name, or a table with the name as ``type`` and the arguments.
        home: which modules may be imported.
    """
    table = value if isinstance(value, Mapping) else {"type": value}
    words = table.get("type")
    if not isinstance(words, str):
        raise CBanditError(
            f"{where} must be the name of an acquisition function, or a table with it "
            f"as its type; got {value!r}"
        )
    named = {key: entry for key, entry in table.items() if key != "type"}
    with located(where):
        kind = _kind(words, home)
    found_later = dict.fromkeys((*FOUND, "model"))
    arguments = home.arguments(where, words, kind, named, found_later)
    return Acquisition(kind, {key: arguments[key] for key in named})


def _kind(words: str, home: Home) -> Any:
    """Return the class of an acquisition function."""
    from botorch import acquisition
    from botorch.acquisition import analytic
    from botorch.acquisition.acquisition import AcquisitionFunction

    if ":" not in words:
        return of_botorch((acquisition, analytic), words, AcquisitionFunction)
    kind = home.find(words)
    if not (isinstance(kind, type) and issubclass(kind, AcquisitionFunction)):
        raise CBanditError(
            "must be an acquisition function of BoTorch, or module:Class; got "
            f"{words!r}"
        )
    return kind


@dataclass(frozen=True)
class Acquisition:
    """A picklable builder of an acquisition function, called every round.

    It holds the class, not its name: a forged checkpoint could name any other class.

    Args:
        kind: the class of the acquisition function.
        arguments: the arguments given in the file.
    """

    kind: type[AcquisitionFunction]
    arguments: Mapping[str, Any]

    def __call__(
        self, model: ModelListGP, policy: BoTorchPolicy
    ) -> AcquisitionFunction:
        """Build the acquisition function from the model of one trial."""
        from botorch.exceptions.errors import BotorchError
        from botorch.exceptions.warnings import BotorchWarning

        kind, takes = self.kind, Arguments(self.kind)
        state = _State(model, policy, kind, takes)
        asked = {
            name: value
            for name, find in FOUND.items()
            if name in takes.named and name not in self.arguments
            for value in [find(state)]
            if value is not None
        }
        try:
            with warnings.catch_warnings():
                # BoTorch warns while nothing feasible was seen; policies know it
                warnings.simplefilter("ignore", BotorchWarning)
                return kind(model=model, **asked, **self.arguments)
        except BotorchError as error:
            raise CBanditError(f"acquisition {kind.__name__}: {error}") from error


class _State:
    """One trial's model, data and limits."""

    def __init__(
        self,
        model: Any,
        policy: BoTorchPolicy,
        kind: type[AcquisitionFunction],
        takes: Arguments,
    ) -> None:
        from botorch.acquisition.analytic import AnalyticAcquisitionFunction

        self.model, self.policy = model, policy
        self.analytic = issubclass(kind, AnalyticAcquisitionFunction)
        self.sampled = "objective" in takes.named
        self.x: Tensor = model.models[0].train_inputs[0]
        self.m = policy.m
        self.limits = policy.limits(policy.t + 1)[policy.trial] if self.m else None

    def best(self) -> Tensor:
        """Return the best mean reward at points believed feasible, else the least."""
        with torch.no_grad():
            mean = self.model.posterior(self.x.unsqueeze(1)).mean.squeeze(1)
        reward: Tensor = mean[:, 0]
        if self.limits is None:
            return reward.amax()
        feasible = (mean[:, 1:] <= self.limits).all(-1)
        return reward[feasible].amax() if bool(feasible.any()) else reward.amin()

    def constraints(self) -> Any:
        """Return bounds by output for analytic functions, else callables."""
        if self.limits is None:
            return {} if self.analytic else None
        limits = enumerate(self.limits.tolist(), start=1)
        if self.analytic:
            return {j: (None, limit) for j, limit in limits}
        return [_excess(j, limit) for j, limit in limits]

    def objective(self) -> Any:
        """Return an objective for the reward, the first of several outputs."""
        from botorch.acquisition.objective import GenericMCObjective

        return GenericMCObjective(_reward) if self.m else None

    def transform(self) -> Any:
        """Return a transform to the reward, for functions that draw no samples."""
        from botorch.acquisition.objective import ScalarizedPosteriorTransform

        if not self.m or self.sampled:
            return None
        return ScalarizedPosteriorTransform(torch.eye(1 + self.m).to(self.x)[0])

    def spread(self) -> Tensor:
        """Return points that stand for the whole set, ``(n, d)``."""
        from botorch.utils.sampling import draw_sobol_samples

        actions = self.policy.actions
        if actions.continuous:
            drawn = draw_sobol_samples(actions.bounds.double(), POINTS, 1, seed=0)
            points: Tensor = actions.nearest(drawn.squeeze(1))
        else:
            count = min(POINTS, actions.size)
            points = actions.at(torch.arange(count) * actions.size // count)
        return points.to(self.x)


def _reward(y: Tensor, X: Tensor | None = None) -> Tensor:
    return y[..., 0]


def _excess(j: int, limit: float) -> Callable[[Tensor], Tensor]:
    return lambda y: y[..., j] - limit


FOUND: dict[str, Callable[[_State], Any]] = {
    "best_f": _State.best,
    "X_baseline": lambda state: state.x,
    "X_observed": lambda state: state.x,
    "objective": _State.objective,
    "objective_index": lambda state: 0,
    "constraints": _State.constraints,
    "posterior_transform": _State.transform,
    "candidate_set": _State.spread,
    "mc_points": _State.spread,
}
"""How to compute an argument of BoTorch's, by its name."""
