"""The contenders of ``constrained_functions.py``: ours, BoTorch's, Optuna's, on boxes.

Each is built of a problem and a seed, hears what points gave, says which point is next,
and which one it would keep. BoTorch's models are its defaults (``SingleTaskGP`` with
standardised outcomes over the unit cube), fitted anew after every observation up to 20,
then after every fourth, from where the last fit ended.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

import cbandit as cb
from benchmarks.common.constrained_problems import Problem

__all__ = ["RULES", "Player", "Rule"]

SAMPLES = 128  # of the Monte-Carlo acquisition function
RAW, RESTARTS, CLIMB = 128, 4, 50  # of the search for its greatest value
CANDIDATES = 1000  # of SCBO's draws
OFTEN, SELDOM = 20, 4  # observations with a fit each, and then one in so many


class Player(Protocol):
    """A contender in one run."""

    def hear(self, x: Tensor, y: Tensor) -> None:
        """Take in rewards and costs ``(n, 1 + m)`` at points ``(n, d)``.

        First come the start points, then one point a round, which may be told without
        having been asked for: so a run is taken up again.
        """

    def next(self) -> Tensor:
        """Return the point to measure now, ``(d,)``."""

    def best(self) -> Tensor:
        """Return the point to keep, ``(d,)``."""


Rule = Callable[[Problem, int], Player]


class Asked:
    """A policy of the library, with nothing set but what ``make`` sets."""

    def __init__(self, make: Callable[..., Any], problem: Problem, seed: int) -> None:
        belief = cb.GP.default(problem.box)
        costs = [belief] * problem.m
        self.policy = make(problem.box, reward=belief, costs=costs, seed=seed)
        self.choice: Any = None
        self.started = False

    def hear(self, x: Tensor, y: Tensor) -> None:
        """Tell the choice, or what was known before."""
        if not self.started:
            self.policy.observe(x=x, reward=y[:, 0], cost=y[:, 1:])
            self.started = True
            return
        choice = self.policy.ask() if self.choice is None else self.choice
        self.policy.tell(choice, reward=y[0, 0], cost=y[0, 1:])
        self.choice = None

    def next(self) -> Tensor:
        """Ask."""
        self.choice = self.policy.ask()
        return torch.as_tensor(self.choice.x)

    def best(self) -> Tensor:
        """Return what it recommends."""
        return torch.as_tensor(self.policy.recommend().x)


class Remembered:
    """A rival: what it was told, and the best point measured."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.low, self.width = problem.box.lower, problem.box.upper - problem.box.lower
        self.x = torch.zeros(0, problem.box.dim, dtype=torch.float64)  # on the cube
        self.y = torch.zeros(0, 1 + problem.m, dtype=torch.float64)

    def hear(self, x: Tensor, y: Tensor) -> None:
        """Remember."""
        self.x = torch.cat([self.x, (x - self.low) / self.width])
        self.y = torch.cat([self.y, y])

    @property
    def feasible(self) -> Tensor:
        """Which points were measured as feasible."""
        return (self.y[:, 1:] <= 0).all(-1)

    def first(self) -> int:
        """Return the best feasible point's number, or the least violating one's."""
        over = (self.y[:, 1:] / self.problem.spread).clamp_min(0).sum(-1)
        reward = torch.where(self.feasible, self.y[:, 0], -math.inf)
        return int((reward if bool(self.feasible.any()) else -over).argmax())

    def best(self) -> Tensor:
        """Return the best point measured: there is no noise."""
        return self.low + self.width * self.x[self.first()]


# -- BoTorch ---------------------------------------------------------------------------


class Modelled(Remembered):
    """A rival with BoTorch's model of all functions together."""

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem, seed)
        self.learned: dict[str, Tensor] | None = None

    def model(self) -> Any:
        """Return the model of all that was told."""
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        model = SingleTaskGP(self.x, self.y)
        if self.learned is not None:
            model.load_state_dict(self.learned, strict=False)
        n = len(self.x)
        if self.learned is None or n <= OFTEN or n % SELDOM == 0:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            # outcomes' scales are the data's own, not learned
            self.learned = {
                name: value.clone()
                for name, value in model.state_dict().items()
                if not name.startswith("outcome_transform")
            }
        return model.eval()

    def seeded(self) -> Any:
        """Return a context in which draws depend on the seed and the round only."""
        from botorch.utils.sampling import manual_seed

        return manual_seed(1000 * self.seed + len(self.x))


def column(j: int, z: Tensor, X: Any = None) -> Tensor:
    """Return one function's values."""
    return z[..., j]


def noisy_improvement(player: Modelled, model: Any) -> Any:
    """Return constrained noisy expected improvement over all that was tried."""
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.objective import GenericMCObjective
    from botorch.sampling.normal import SobolQMCNormalSampler

    return qLogNoisyExpectedImprovement(
        model,
        player.x,
        sampler=SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=len(player.x)),
        objective=GenericMCObjective(partial(column, 0)),
        constraints=[partial(column, j) for j in range(1, player.y.shape[-1])],
        prune_baseline=True,
    )


def analytic_improvement(player: Modelled, model: Any) -> Any:
    """Return improvement over the best feasible point, by its probability.

    Until a point is feasible it is the probability alone.
    """
    from botorch.acquisition.analytic import (
        LogConstrainedExpectedImprovement,
        LogProbabilityOfFeasibility,
    )

    m = player.y.shape[-1] - 1
    limits: dict[int, Any] = dict.fromkeys(range(1, 1 + m), (None, 0.0))
    if not bool(player.feasible.any()):
        return LogProbabilityOfFeasibility(model, limits)
    best = player.y[player.feasible, 0].amax()
    return LogConstrainedExpectedImprovement(model, best, 0, limits)


class Improving(Modelled):
    """The point of greatest acquisition value."""

    def __init__(
        self, make: Callable[[Modelled, Any], Any], problem: Problem, seed: int
    ) -> None:
        super().__init__(problem, seed)
        self.make = make

    def next(self) -> Tensor:
        """Fit, and climb from the best of the raw points."""
        from botorch.optim.optimize import optimize_acqf

        cube = torch.stack([torch.zeros_like(self.low), torch.ones_like(self.low)])
        with self.seeded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x, _ = optimize_acqf(
                self.make(self, self.model()),
                bounds=cube,
                q=1,
                num_restarts=RESTARTS,
                raw_samples=RAW,
                options={"maxiter": CLIMB},
                retry_on_optimization_warning=False,  # twice the time for nothing
            )
        return self.low + self.width * x[0]


class Scbo(Modelled):
    """SCBO: the best of a joint draw in a box about the best point so far.

    Among the candidates whose drawn costs keep the limits, the one of greatest drawn
    reward; where there are none, the one that exceeds them least. The box doubles after
    ten successes and halves after ``max(4, d)`` failures; it starts anew once it is
    tiny.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem, seed)
        self.length, self.wins, self.losses = 0.8, 0, 0

    def hear(self, x: Tensor, y: Tensor) -> None:
        """Remember, and resize the box."""
        if not len(self.x):
            return super().hear(x, y)
        before = self.first()
        super().hear(x, y)
        won = self.first() != before
        self.wins, self.losses = (self.wins + 1, 0) if won else (0, self.losses + 1)
        if self.wins == 10:
            self.length, self.wins = min(2 * self.length, 1.6), 0
        elif self.losses == max(4, self.x.shape[-1]):
            self.length, self.losses = self.length / 2, 0
        if self.length < 0.5**7:
            self.length, self.wins, self.losses = 0.8, 0, 0

    def next(self) -> Tensor:
        """Draw all functions jointly over the candidates, and take the best."""
        with self.seeded(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.enable_grad():
                model = self.model()
            x = self.candidates()
            y = model.posterior(x).rsample(torch.Size([1]))[0]
        over = (y[:, 1:] / self.problem.spread).clamp_min(0).sum(-1)
        kept = over == 0
        reward = torch.where(kept, y[:, 0], -math.inf)
        at = int((reward if bool(kept.any()) else -over).argmax())
        return self.low + self.width * x[at]

    def candidates(self) -> Tensor:
        """Return points in the box, each apart from its middle in about 20 places."""
        d = self.x.shape[-1]
        center = self.x[self.first()]
        low = (center - self.length / 2).clamp(0, 1)
        high = (center + self.length / 2).clamp(0, 1)
        seed = 1000 * self.seed + len(self.x)
        sobol = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed)
        x = low + (high - low) * sobol.draw(CANDIDATES, dtype=torch.float64)
        moved = torch.rand(CANDIDATES, d) <= min(20.0 / d, 1.0)
        moved[~moved.any(-1), torch.randint(d, ())] = True
        return torch.where(moved, x, center)


# -- Optuna ----------------------------------------------------------------------------


class Suggested(Remembered):
    """One of Optuna's samplers."""

    def __init__(self, make: Callable[..., Any], problem: Problem, seed: int) -> None:
        import optuna

        super().__init__(problem, seed)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.trial: Any = None
        startup = 2 * problem.box.dim + 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a sampler is experimental
            sampler = make(seed=seed, n_startup_trials=startup)
        self.study = optuna.create_study(sampler=sampler, direction="maximize")

    def hear(self, x: Tensor, y: Tensor) -> None:
        """Tell the trial, or queue and tell what was known before."""
        super().hear(x, y)
        for k, cube in enumerate(self.x[-len(x) :].tolist()):
            if self.trial is None:
                self.study.enqueue_trial({f"x{j}": v for j, v in enumerate(cube)})
                self.next()
            trial, self.trial = self.trial, None
            for j, cost in enumerate(y[k, 1:].tolist()):
                trial.set_constraint(str(j), cost)
            self.study.tell(trial, float(y[k, 0]))

    def next(self) -> Tensor:
        """Return what the sampler suggests."""
        self.trial = self.study.ask()
        d = len(self.low)
        cube = [self.trial.suggest_float(f"x{j}", 0.0, 1.0) for j in range(d)]
        return self.low + self.width * torch.tensor(cube, dtype=torch.float64)


def tpe(**settings: Any) -> Any:
    """Return Optuna's default sampler."""
    from optuna.samplers import TPESampler

    return TPESampler(**settings)


def gp(**settings: Any) -> Any:
    """Return Optuna's Gaussian-process sampler, told that there is no noise."""
    from optuna.samplers import GPSampler

    return GPSampler(deterministic_objective=True, **settings)


RULES: dict[str, Rule] = {
    "RPOL": partial(Asked, cb.RPOL),
    "RPOL-TS": partial(Asked, partial(cb.RPOL, explore=cb.TS())),
    "CKB": partial(Asked, cb.CKB),
    "qLogNEI": partial(Improving, noisy_improvement),
    "LogCEI": partial(Improving, analytic_improvement),
    "SCBO": Scbo,
    "Optuna GP": partial(Suggested, gp),
    "Optuna TPE": partial(Suggested, tpe),
}
"""Ours first, then the rivals."""
