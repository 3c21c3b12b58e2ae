"""The protocol of a problem: the methods that the loop needs, and optional ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import Streams, Trials
from cbandit.actions import Actions
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.problems.optima import in_rounds, listed, unknown, whole_set, within
from cbandit.search.simplex.programme import PolicySolution


@dataclass(frozen=True)
class Round:
    """The part of the world that is shown before a round; by default nothing.

    Args:
        actions: a set for this round alone.
        among: the part of the set that may be chosen, a mask or indices.
        observed_costs: the costs of every action, ``(*trials, m, N)``, or ``(m, N)``
            for all trials; on a Box a callable, ``x (*trials, n, d) -> (*trials, m,
            n)``. Policies that learn costs from feedback are not shown them.
        delays: by how many rounds the feedback is late: whole numbers ``(*trials,)``,
            as a pair (reward, cost) or a dict with ``reward`` and ``cost``. The
            feedback of round ``s`` with delay ``d`` is delivered at the end of round
            ``s + d``, and never if ``d`` is infinite.
        context: the context, if the set has any, see :meth:`Policy.ask`.
    """

    actions: Actions | None = None
    among: Any = None
    observed_costs: Any = None
    delays: Any = None
    context: Any = None

    @property
    def partial(self) -> bool:
        """Whether the actions to choose from are not the problem's whole set."""
        return self.actions is not None or self.among is not None

    def question(self) -> dict[str, Any]:
        """Return the keywords for ``policy.ask``."""
        named = {
            "actions": self.actions,
            "among": self.among,
            "observed_costs": self.observed_costs,
            "context": self.context,
        }
        return {key: value for key, value in named.items() if value is not None}


@runtime_checkable
class Problem(Protocol):
    """The world that a policy plays in. Feasible means ``costs <= 0``.

    A problem with limits other than 0 has an attribute ``thresholds`` (a number,
    ``(m,)``, ``(*trials, m)``, or a callable of ``t``). ``trials`` is ``None`` for a
    problem that is the same for every trial.

    Draw noise by ``generator.normal(*shape)`` and ``generator.uniform(*shape)``: these
    give ``(*trials, *shape)``, each row from its trial's own stream, so that a trial
    meets the same noise however the batch is split.
    ``torch.randn(..., generator=generator)`` also works, but draws for the batch as a
    whole.

    Example:
        >>> import cbandit as cb, torch
        >>> class Engine:  # the faster, the better; its heat is to be at most 0.5
        ...     trials, thresholds = None, 0.5
        ...     actions = cb.Finite([[0.2], [0.4], [0.6], [0.8]])
        ...
        ...     def reward(self, x, t):
        ...         return x[..., 0]
        ...
        ...     def costs(self, x, t):
        ...         return x**2  # (*trials, 1): one cost
        ...
        ...     def observe(self, choice, generator):
        ...         noise, x, t = 0.1 * generator.normal(2), choice.x, choice.t
        ...         costs = self.costs(x, t) + noise[..., 1:]
        ...         return self.reward(x, t) + noise[..., 0], costs
        ...
        ...     def optimum(self, t):
        ...         return 0.6
        ...
        ...     def stochastic_optimum(self, t):
        ...         return 0.7  # every other round at 0.8; None if it is not known
        >>> world = Engine()
        >>> gp = cb.GP.default(world.actions)
        >>> policy = cb.RPOL(
        ...     world.actions, reward=gp, costs=gp, thresholds=0.5, explore=cb.UCB(2.0)
        ... )
        >>> run = cb.simulate(policy, world, 50)
    """

    @property
    def actions(self) -> Actions:
        """The set of actions."""

    @property
    def trials(self) -> Trials:
        """The trials it has functions for, or ``None``."""

    def reward(self, x: Tensor, t: int) -> Tensor:
        """Noiseless reward ``(*trials,)`` of ``x`` ``(*trials, d)`` in round ``t``."""

    def costs(self, x: Tensor, t: int) -> Tensor:
        """Noiseless costs ``(*trials, m)`` of ``x`` ``(*trials, d)`` in round ``t``."""

    def observe(self, choice: Choice, generator: Streams) -> tuple[Tensor, ...]:
        """Noisy reward ``(*trials,)`` and costs ``(*trials, m)`` of the choice.

        A third value, ``(*trials,)`` bool, marks trials in which the action cannot be
        measured: the policy is told so, and does not ask for it again.
        """

    def optimum(self, t: int) -> Tensor:
        """The reward of the best feasible action, ``(*trials,)``; NaN if none is.

        Where :meth:`round` shows a set, it is the best action of that set.
        """

    def stochastic_optimum(self, t: int) -> Tensor:
        """The reward of the best distribution feasible on average, ``(*trials,)``."""

    def round(self, t: int, generator: Streams) -> Round:
        """Return what is shown before round ``t``; without this method, nothing is."""


@dataclass(frozen=True)
class Evaluation:
    """The noiseless truth about ``n`` rounds.

    Args:
        reward: the rewards, ``(*trials, n)``.
        costs: the costs, ``(*trials, n, m)``, before thresholds are subtracted.
        optimum: the best feasible reward, ``(*trials, n)`` or ``(*trials, 1)``.
        stochastic_optimum: that of the best distribution, shaped as ``optimum``.
    """

    reward: Tensor
    costs: Tensor
    optimum: Tensor
    stochastic_optimum: Tensor


@runtime_checkable
class Blockwise(Protocol):
    """A problem that can tell the truth about many rounds at once.

    The loop then asks for it every few hundred rounds instead of in every round.
    """

    def evaluate(self, t: Tensor, index: Tensor | None, x: Tensor) -> Evaluation:
        """Return the truth about rounds ``t`` ``(n,)``.

        ``index`` is ``(*trials, n)``, ``None`` without numbers; ``x`` is
        ``(*trials, n, d)``.
        """


class Fixed(ABC):
    """A problem whose functions never change.

    It is :class:`Blockwise`, so its account is cheap. Its noise is Gaussian with
    standard deviations ``_std``, ``(1 + m,)`` or ``(*trials, 1 + m)``. A subclass may
    show a set in each round: the account is then against the best of that set.
    """

    _std: Tensor
    actions: Any
    trials: Trials

    @abstractmethod
    def _values(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """Reward and costs ``(*trials, n, 1 + m)`` at ``x`` ``(*trials, n, d)``.

        ``index`` ``(*trials, n)`` are the actions' numbers, if they are known.
        """

    @cached_property
    @abstractmethod
    def _optimum(self) -> Tensor:
        """The reward of the best feasible action, ``(*trials,)``; NaN if none is."""

    @cached_property
    @abstractmethod
    def _solution(self) -> PolicySolution:
        """The best distribution that is feasible on average."""

    @cached_property
    def _stochastic_optimum(self) -> Tensor:
        best = self._solution
        return best.value.masked_fill(best.infeasible, torch.nan)

    def reward(self, x: Tensor, t: int) -> Tensor:
        """Noiseless reward ``(*trials,)`` of the actions ``x`` ``(*trials, d)``."""
        return self._values(x.unsqueeze(-2))[..., 0, 0]

    def costs(self, x: Tensor, t: int) -> Tensor:
        """Noiseless costs ``(*trials, m)`` of the actions ``x`` ``(*trials, d)``."""
        return self._values(x.unsqueeze(-2))[..., 0, 1:]

    def observe(self, choice: Choice, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Noisy reward ``(*trials,)`` and costs ``(*trials, m)`` of the choice."""
        # in a set of the round's own, numbers are not the problem's
        own = choice.actions is None and choice.index is not None
        index = choice.numbers().unsqueeze(-1) if own else None
        truth = self._values(choice.x.unsqueeze(-2), index)[..., 0, :]
        draws = normals(generator, tuple(truth.shape[:-1]), truth.shape[-1])
        noisy = torch.addcmul(truth, draws, self._std)
        return noisy[..., 0], noisy[..., 1:]

    @whole_set
    def optimum(self, t: int) -> Tensor:
        """The reward of the best feasible action, ``(*trials,)``; NaN: not known."""
        return self._optimum

    @whole_set
    def stochastic_optimum(self, t: int) -> Tensor:
        """The reward of the best distribution feasible on average, ``(*trials,)``."""
        return self._stochastic_optimum

    def within(self, t: int, shown: Round) -> tuple[Tensor, Tensor]:
        """Return both optima ``(*trials,)`` of the set that round ``t`` shows."""
        points = listed(self, shown.actions)
        if points is None:
            return unknown(self, shown.actions)
        return within(self, t, shown.among, self._values(*points))

    def round(self, t: int, generator: Streams) -> Round:
        """Return an empty round: nothing is shown before a choice."""
        return NOTHING

    def evaluate(self, t: Tensor, index: Tensor | None, x: Tensor) -> Evaluation:
        """Return the truth about the rounds ``t``."""
        values = self._values(x, index)
        optima = in_rounds(
            self,
            t,
            tuple(x.shape[:-2]),
            lambda: self._optimum.unsqueeze(-1),
            lambda: self._stochastic_optimum.unsqueeze(-1),
        )
        return Evaluation(values[..., 0], values[..., 1:], *optima)


NOTHING = Round()


def normals(
    generator: torch.Generator, batch_shape: tuple[int, ...], *shape: int
) -> Tensor:
    """Draw standard normals ``(*batch_shape, *shape)``.

    If ``generator`` has a stream for each trial, each trial draws from its own.
    """
    if isinstance(generator, Streams) and generator.batch_shape == batch_shape:
        return generator.normal(*shape)
    return torch.randn(*batch_shape, *shape, generator=generator, dtype=torch.float64)


def uniforms(
    generator: torch.Generator, batch_shape: tuple[int, ...], *shape: int
) -> Tensor:
    """Draw uniforms on [0, 1), ``(*batch_shape, *shape)``, as :func:`normals` does."""
    if isinstance(generator, Streams) and generator.batch_shape == batch_shape:
        return generator.uniform(*shape)
    return torch.rand(*batch_shape, *shape, generator=generator, dtype=torch.float64)


def delays_of(delays: Any, batch_shape: tuple[int, ...]) -> Tensor:
    """Return the delays of reward and cost, float64 ``(2, *trials)``."""
    if isinstance(delays, Mapping):
        if set(delays) - {"reward", "cost"}:
            raise CBanditError(
                f"delays must have the keys 'reward' and 'cost'; got {sorted(delays)}"
            )
        reward, cost = delays.get("reward", 0), delays.get("cost", 0)
    else:
        flat = not isinstance(delays, tuple | list) and np.ndim(delays) == 1
        try:
            reward, cost = delays
            if flat and batch_shape:  # of two trials, or of reward and cost?
                raise ValueError
        except (TypeError, ValueError):
            raise CBanditError(
                "delays must be a pair (reward, cost), or a dict with these keys; got "
                f"{delays!r}"
            ) from None
    waits = []
    for kind, value in (("reward", reward), ("cost", cost)):
        name = f"delays of the {kind}"
        wait = checks.tensor(name, value, device="cpu")
        wait = checks.shaped(name, wait, batch_shape, "(*trials,)")
        if bool(((wait < 0) | (wait != wait.floor())).any()):
            raise CBanditError(
                f"{name} must be whole numbers, at least 0; got {wait.tolist()}"
            )
        waits.append(wait)
    return torch.stack(waits)
