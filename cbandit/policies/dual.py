"""Constants of CKB's duals: step, slack, cap, and the width that moves the multiplier.

Step, slack and cap are given by the user, follow from the theorem, or have defaults.
Defaults are in spreads; ``benchmarks/defaults.py`` says how they were chosen. The rules
are :mod:`cbandit.policies.projected`, :mod:`cbandit.policies.queue` and
:mod:`cbandit.policies.resolved`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.policies.choices import News
from cbandit.policies.gp import GPPolicy, GPState
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.look import Best
from cbandit.posterior.units import Units, level, linked
from cbandit.scores import clip
from cbandit_kernels import Look

STEP, CAP, DUAL_BETA = 0.5, 20.0, -1.5
NO_LIMIT = (
    "slater= and clip=, and the step and cap that follow from them, are for the limits "
    "that it was built with"
)


Scheduled = ArrayLike | Callable[[int], ArrayLike]
"""A number, or a callable of the round that returns one."""
Pick = Callable[[GPState, Turn], tuple[Decision, GPState]]


class Schedule:
    """A parameter ``(T, m)`` that is a number, or a callable of the round.

    Args:
        name: what errors call it.
        value: the number or the callable.
        shaped: turns a number into ``(T, m)``, in its graph.
        checked: raises an error for a number that is not allowed.
        root: whether the number is divided by the root of ``length``.
        length: the horizon; ``None``: the length of the round's epoch.
    """

    def __init__(
        self,
        name: str,
        value: Any,
        shaped: Callable[[str, Any], Tensor],
        checked: Callable[..., Tensor],
        root: bool = False,
        length: int | None = None,
    ) -> None:
        self._name, self._shaped, self._checked = name, shaped, checked
        self._root, self._length = root, length
        self._value = value if callable(value) else self._number(value)

    def __call__(self, t: int, start: int = 1) -> Tensor:
        """Return the value in round ``t`` of the epoch that starts at ``start``."""
        if callable(self._value):
            return self._number(self._value(t))
        fixed: Tensor = self._value
        # a doubling epoch has as many rounds as the number of its first round
        return fixed / math.sqrt(self._length or start) if self._root else fixed

    __getstate__ = checks.numbers_of

    def _number(self, value: Any) -> Tensor:
        value = self._checked(self._name, value, graph=True)
        return self._shaped(self._name, value)


class Constants(NamedTuple):
    """The constants of a dual that makes steps.

    Args:
        step: ``1 / V``.
        slack: added to every estimate.
        cap: ``rho``, ``(T, m)``; infinite where none is given and none is needed.
        beta: the width of the costs' estimates that move the multiplier, ``(T, m)``;
            ``None``: the score's own estimates move it.
        no_limit: why the limits must stay, where constants rest on them; else empty.
    """

    step: Schedule
    slack: Schedule
    cap: Tensor
    beta: Tensor | None
    no_limit: str


@dataclass(frozen=True)
class Given:
    """The constants of a dual as the user gives them, and what they may follow from.

    Args:
        step: ``1 / V``, above 0.
        cap: ``rho``, above 0.
        slack: added to every estimate.
        slater: Slater's constant.
        beta: the width of the estimates that move the multiplier; ``"score"``: the
            score's.
        shaped: turns a number into ``(T, m)``, in its graph.
        bounds: ``(B, G)`` of each trial, ``(T, 1 + m)``.
        units: the units of the beliefs; ``None``: the user's own.
        epoch: ``T``, or ``"doubling"``; ``None``: it is unknown.
    """

    step: Scheduled | None
    cap: ArrayLike | None
    slack: Scheduled
    slater: ArrayLike | None
    beta: ArrayLike | None
    shaped: Callable[[str, Any], Tensor]
    bounds: Tensor | None
    units: Units | None
    epoch: int | str | None

    @property
    def has_defaults(self) -> bool:
        """Whether what is left out has a default: all constants are in spreads."""
        return self.slater is None and self.units is not None and self.units.shared

    def constants(self, capped: bool) -> Constants:
        """Return the constants as given, or as they follow from the theorem.

        Args:
            capped: whether a cap is needed.
        """

        def positive(name: str, value: ArrayLike) -> Tensor:
            return self.shaped(name, checks.positive(name, value, graph=True))

        slack = Schedule("slack", self.slack, self.shaped, checks.nonnegative)
        bounds, room = self.bounds, None
        if self.slater is not None:
            room = positive("slater", self.slater) - slack(1)
            if bool((room <= 0).any()):
                raise CBanditError(
                    f"slack must be below slater = {self.slater}; got "
                    f"{slack(1).tolist()}"
                )
        rho = None if self.cap is None else positive("cap", self.cap)
        wanted, missing = [], []
        if self.cap is None and capped:
            wanted.append("cap= (by the theorem 4 B / slater)")
            missing += ["clip=(B, G)"] * (bounds is None)
            missing += ["slater="] * (self.slater is None)
            if bounds is not None and room is not None:
                rho = 4 * bounds[:, :1] / room
        step, root = self.step, self.step is None
        if root:
            wanted.append("step= (by the theorem cap / (G sqrt(T)))")
            missing += ["clip=(B, G)"] * (bounds is None and self.cap is not None)
            missing += ["horizon= (or anytime=True)"] * (self.epoch is None)
        if missing:
            raise CBanditError(
                f"give {' and '.join(wanted)}, or what they follow from: "
                + ", ".join(missing)
            )
        if rho is not None and bounds is not None and root:
            step = rho / bounds[:, 1:]
        length = self.epoch if isinstance(self.epoch, int) else None
        steps = Schedule("step", step, self.shaped, checks.positive, root, length)
        derived = self.slater is not None or (bounds is not None and root)
        cap = torch.tensor(torch.inf) if rho is None else rho
        return Constants(steps, slack, cap, self._width(), NO_LIMIT if derived else "")

    def _width(self) -> Tensor | None:
        """Return the width that the multiplier is judged by; ``None``: the score's."""
        beta = self.beta
        if beta is None and self.has_defaults:
            beta = DUAL_BETA
        if beta is None or (isinstance(beta, str) and beta == "score"):
            return None
        return self.shaped("dual_beta", beta).detach()


class Dual(ABC):
    """A rule by which CKB's multiplier moves, and what it changes in a round.

    Gradients reach its numbers. Copies and saved files hold numbers alone.
    """

    beta: Tensor | None = None
    no_limit: str = ""

    __getstate__ = checks.numbers_of

    @abstractmethod
    def score(self, t: int, phi: Tensor, start: int) -> scores.PrimalDual:
        """Return what to maximise in round ``t`` of the epoch from round ``start``."""

    @abstractmethod
    def move(self, t: int, phi: Tensor, g: Tensor, start: int) -> Tensor:
        """Return ``phi`` after round ``t``, whose estimated costs were ``g (T, m)``."""

    def dual_estimate(
        self, beliefs: Beliefs, look: Look, best: Best, turn: Turn
    ) -> Tensor:
        """Return the estimates at ``best`` that move the multiplier, ``(T, 1 + m)``.

        Args:
            beliefs: about reward and costs.
            look: the look that found the best action.
            best: the best action of the round.
            turn: the round.
        """
        estimate = best.estimate
        if self.beta is None:
            return estimate
        moments = beliefs.anywhere(turn.point(best), turn.pending)
        mean, std = (part[:, 1:, 0] for part in moments)
        units, g = beliefs.units(), mean - self.beta * std
        if units is not None and units.binds:
            g = linked(units, g.unsqueeze(-1), 1).squeeze(-1)
        g = g - level(units, turn.limits)
        if look.bound is not None:
            g = clip(g, look.bound[:, 1:].to(g))
        return torch.cat([estimate[:, :1].to(g), g], -1)

    # -- for a rule that does more than make steps -------------------------------------

    def start(self) -> Any:
        """Return the rule's own state before the first round."""
        return None

    def hear(self, own: Any, news: News) -> Any:
        """Return the rule's own state after news of a round."""
        return own

    def coefficient(self, coefficient: Tensor) -> Tensor:
        """Return the factors ``(T, 1 + m)`` of the spreads in the score."""
        return coefficient

    def next_multiplier(self, phi: Tensor, state: GPState) -> Tensor:
        """Return the multiplier of the next round; ``phi`` has moved already."""
        return phi

    def pick(
        self, policy: GPPolicy, greatest: Pick, state: GPState, turn: Turn
    ) -> tuple[Decision, GPState]:
        """Return the decision and the state after it.

        Args:
            policy: whose beliefs and set they are.
            greatest: returns the action of greatest score.
            state: of the round, with the multiplier moved.
            turn: the round.
        """
        return greatest(state, turn)

    def complete(self, decision: Decision) -> Decision:
        """Return a decision, the rule's or a design's, as its choice shows it."""
        return decision
