"""The contenders of ``peers.py``: ours, BoTorch's, Optuna's, on one finite set.

Each is built of the actions, the limits ``(m,)`` and a seed, hears what actions gave,
says which action is next, and which one it would keep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

import cbandit as cb

__all__ = ["RULES", "Rule", "Seen"]

SAMPLES = 128  # of BoTorch's sampler
CANDIDATES = 1000  # of SCBO's draws


@dataclass(frozen=True)
class Seen:
    """Actions, their rewards ``(n,)`` and costs ``(n, m)``, in the user's units."""

    index: Tensor
    reward: Tensor
    cost: Tensor


class Player(Protocol):
    """A contender in one trial."""

    def hear(self, seen: Seen) -> None:
        """Take in what was measured; after ``next``, at the action that it gave."""

    def next(self) -> int:
        """Return the action to measure now."""

    def best(self) -> int:
        """Return the action to keep."""


Rule = Callable[[Any, Tensor, int], Player]


class Asked:
    """A policy of the library; limits are taken off the costs, which it keeps at 0."""

    def __init__(
        self, make: Callable[..., Any], actions: Any, limits: Tensor, seed: int
    ) -> None:
        belief = cb.GP.default(actions)
        costs = [belief] * len(limits)
        self.policy = make(actions, reward=belief, costs=costs, seed=seed)
        self.limits = limits
        self.choice: Any = None

    def hear(self, seen: Seen) -> None:
        """Tell the choice, or what was known before."""
        excess = seen.cost - self.limits
        if self.choice is None:
            self.policy.observe(index=seen.index, reward=seen.reward, cost=excess)
        else:
            self.policy.tell(self.choice, reward=seen.reward[0], cost=excess[0])

    def next(self) -> int:
        """Ask."""
        self.choice = self.policy.ask()
        return int(self.choice.index)

    def best(self) -> int:
        """Return what it recommends."""
        return int(self.policy.recommend().index)


# -- BoTorch ---------------------------------------------------------------------------


def by_botorch(make: Callable[..., Any], actions: Any, **own: Any) -> Any:
    """Return a policy that plays an acquisition function of BoTorch's."""
    return cb.baselines.BoTorchPolicy(actions, make_acquisition=make, **own)


def column(j: int, z: Tensor, X: Any = None) -> Tensor:
    """Return one function's values."""
    return z[..., j]


def noisy_improvement(model: Any, policy: Any) -> Any:
    """Return constrained noisy expected improvement over all that was tried."""
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.objective import GenericMCObjective
    from botorch.sampling.normal import SobolQMCNormalSampler

    first = model.models[0]
    return qLogNoisyExpectedImprovement(
        model,
        first.input_transform.untransform(first.train_inputs[0]),
        sampler=SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=policy.t),
        objective=GenericMCObjective(partial(column, 0)),
        constraints=[partial(column, j) for j in range(1, len(model.models))],
        prune_baseline=True,
    )


def analytic_improvement(model: Any, policy: Any) -> Any:
    """Return improvement over the best mean believed feasible, by its probability."""
    from botorch.acquisition.analytic import LogConstrainedExpectedImprovement

    first = model.models[0]
    x = first.input_transform.untransform(first.train_inputs[0])
    with torch.no_grad():
        mean = model.posterior(x.unsqueeze(1)).mean[:, 0]
    kept = (mean[:, 1:] <= 0).all(-1)
    best = mean[kept, 0].amax() if bool(kept.any()) else mean[:, 0].amin()
    limits: dict[int, Any] = dict.fromkeys(range(1, len(model.models)), (None, 0.0))
    return LogConstrainedExpectedImprovement(model, best, 0, limits)


class Scbo(Asked):
    """SCBO: the best of a joint draw among what the draws of the costs allow.

    With ``region`` candidates lie in a box about the best action so far, which doubles
    after 3 successes and halves after ``max(4, d)`` failures, as its authors have it.
    """

    def __init__(self, actions: Any, limits: Tensor, seed: int, region: bool) -> None:
        super().__init__(cb.RPOL, actions, limits, seed)
        x = actions.block(0, actions.size)
        low, high = x.amin(0), x.amax(0)
        self.unit = (x - low) / (high - low).clamp_min(1e-12)
        self.draws = torch.Generator().manual_seed(seed)
        self.index: list[int] = []
        self.value: list[tuple[float, float]] = []  # less is better
        self.region, self.length, self.wins, self.losses = region, 0.8, 0, 0

    def hear(self, seen: Seen) -> None:
        """Learn, fit at the same rounds as the others, move the region."""
        excess = seen.cost - self.limits
        self.policy.observe(index=seen.index, reward=seen.reward, cost=excess)
        before = min(self.value, default=None)
        over = excess.clamp_min(0).sum(-1)
        for k, index in enumerate(seen.index.tolist()):
            self.index.append(index)
            y = 0.0 if over[k] > 0 else -float(seen.reward[k])
            self.value.append((float(over[k]), y))
        if len(self.index) % 20 == 0:
            self.policy.refit()
        if before is not None:
            self._moved(min(self.value) < before)

    def _moved(self, won: bool) -> None:
        self.wins, self.losses = (self.wins + 1, 0) if won else (0, self.losses + 1)
        if self.wins == 3:
            self.length, self.wins = min(2 * self.length, 1.6), 0
        elif self.losses == max(4, self.unit.shape[-1]):
            self.length, self.losses = self.length / 2, 0
        if self.length < 0.5**7:
            self.length = 0.8

    def next(self) -> int:
        """Draw reward and costs jointly over candidates, and take the best."""
        from botorch.generation.sampling import ConstrainedMaxPosteriorSampling
        from botorch.models.model_list_gp_regression import ModelListGP
        from botorch.utils.sampling import manual_seed

        near = torch.arange(len(self.unit))
        if self.region:
            center = self.unit[self.index[self.value.index(min(self.value))]]
            inside = ((self.unit - center).abs() <= self.length / 2).all(-1)
            near = inside.nonzero()[:, 0]
        shuffled = torch.randperm(len(near), generator=self.draws)[:CANDIDATES]
        near = near[shuffled]
        x = self.policy.actions.at(near)
        model = self.policy.model
        costs = ModelListGP(*model.models[1:])
        sampling = ConstrainedMaxPosteriorSampling(model.models[0], costs)
        seed = int(torch.randint(2**31, (), generator=self.draws))
        with torch.no_grad(), manual_seed(seed):
            best = sampling(x, num_samples=1)
        return int(near[(x == best).all(-1).nonzero()[0, 0]])


# -- Optuna ----------------------------------------------------------------------------


class Suggested:
    """One of Optuna's samplers on the box; suggestions go to the nearest action."""

    def __init__(
        self, make: Callable[..., Any], actions: Any, limits: Tensor, seed: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.x = actions.block(0, actions.size)
        self.low, self.high = self.x.amin(0), self.x.amax(0)
        self.limits = limits
        self.trial: Any = None
        self.study = optuna.create_study(sampler=make(seed=seed), direction="maximize")

    def hear(self, seen: Seen) -> None:
        """Tell the trial, or queue and tell what was known before."""
        for k, index in enumerate(seen.index.tolist()):
            if self.trial is None:
                names = {f"x{j}": float(v) for j, v in enumerate(self.x[index])}
                self.study.enqueue_trial(names)
                self._suggested()
            trial, self.trial = self.trial, None
            for j, value in enumerate((seen.cost[k] - self.limits).tolist()):
                trial.set_constraint(str(j), value)
            trial.set_user_attr("index", index)
            self.study.tell(trial, float(seen.reward[k]))

    def _suggested(self) -> Tensor:
        self.trial = self.study.ask()
        bounds = zip(self.low.tolist(), self.high.tolist(), strict=True)
        values = [
            self.trial.suggest_float(f"x{j}", a, b) for j, (a, b) in enumerate(bounds)
        ]
        return torch.tensor(values, dtype=self.x.dtype)

    def next(self) -> int:
        """Return the action nearest to the suggestion, on the unit cube."""
        gap = (self.x - self._suggested()) / (self.high - self.low).clamp_min(1e-12)
        return int(gap.square().sum(-1).argmin())

    def best(self) -> int:
        """Return the best trial that was measured as feasible, or the least over."""
        trials = self.study.get_trials(deepcopy=False)

        def rank(trial: Any) -> tuple[float, float]:
            over = sum(max(0.0, each) for each in trial.constraints.values())
            return over, -(trial.value or 0.0) if over == 0 else math.inf

        return int(min(trials, key=rank).user_attrs["index"])


def tpe(**own: Any) -> Any:
    """Return Optuna's default sampler."""
    from optuna.samplers import TPESampler

    return TPESampler(**own)


def gp(**own: Any) -> Any:
    """Return Optuna's Gaussian-process sampler."""
    from optuna.samplers import GPSampler

    return GPSampler(**own)


# -- random ----------------------------------------------------------------------------


def at_random(actions: Any, *, reward: Any, costs: Any, seed: int) -> Any:
    """Return random actions; recommended is what a GP's posterior makes of them."""
    # all rounds are first rounds, so that no acquisition function is built
    own = {"reward": reward, "costs": costs, "seed": seed, "initial": 1 << 30}
    return by_botorch(noisy_improvement, actions, **own)


RULES: dict[str, Rule] = {
    "CKB": partial(Asked, cb.CKB),
    "RPOL": partial(Asked, cb.RPOL),
    "RPOL-TS": partial(Asked, partial(cb.RPOL, explore=cb.TS())),
    "CONFIG": partial(Asked, cb.baselines.CONFIG),
    "CONFIG-TS": partial(Asked, partial(cb.baselines.CONFIG, explore=cb.TS(1.0))),
    "BoTorch qLogNEI": partial(Asked, partial(by_botorch, noisy_improvement)),
    "BoTorch LogConstrainedEI": partial(
        Asked, partial(by_botorch, analytic_improvement)
    ),
    "SCBO": partial(Scbo, region=False),
    "SCBO, trust region": partial(Scbo, region=True),
    "Optuna TPE": partial(Suggested, tpe),
    "Optuna GP": partial(Suggested, gp),
    "random": partial(Asked, at_random),
}
