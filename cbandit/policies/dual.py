"""CKB's duals, the rules that move its multipliers: base class and constants.

Step, slack and cap are given by the user, follow from the theorem, or have defaults.
Defaults are in units of the beliefs' spreads; ``docs/guide/defaults.md`` says how they
were chosen. The rules are :mod:`cbandit.policies.projected`,
:mod:`cbandit.policies.queue` and :mod:`cbandit.policies.resolved`. ``T`` counts trials,
``m`` costs.
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

DEFAULT_STEP, DEFAULT_CAP, DEFAULT_DUAL_BETA = 0.5, 20.0, -1.5
LIMIT_REFUSAL = (
    "slater= and clip=, and the step and cap that follow from them, are for the limits "
    "that it was built with"
)

Scheduled = ArrayLike | Callable[[int], ArrayLike]
"""A number, or a function of the round that returns one."""
PickRule = Callable[[GPState, Turn], tuple[Decision, GPState]]


class Schedule:
    """A parameter ``(T, m)`` that is a number, or a function of the round.

    Args:
        name: the parameter's name in error messages.
        value: the number or the function.
        reshape: turns a number into ``(T, m)``; gradients pass through.
        check: raises an error for a number that is not allowed.
        by_root: whether the number is divided by the square root of ``length``.
        length: the horizon; ``None``: the length of the round's epoch.
    """

    def __init__(
        self,
        name: str,
        value: Any,
        reshape: Callable[[str, Any], Tensor],
        check: Callable[..., Tensor],
        by_root: bool = False,
        length: int | None = None,
    ) -> None:
        self._name, self._reshape, self._check = name, reshape, check
        self._by_root, self._length = by_root, length
        self._value = value if callable(value) else self._read_number(value)

    def __call__(self, t: int, first_round: int = 1) -> Tensor:
        """Return the value in round ``t`` of the epoch from ``first_round`` on."""
        if callable(self._value):
            return self._read_number(self._value(t))
        fixed: Tensor = self._value
        # a doubling epoch has as many rounds as the number of its first round
        length = self._length or first_round
        return fixed / math.sqrt(length) if self._by_root else fixed

    __getstate__ = checks.numbers_of

    def _read_number(self, value: Any) -> Tensor:
        """Return a number as ``(T, m)``; raise an error if it is not allowed."""
        value = self._check(self._name, value, graph=True)
        return self._reshape(self._name, value)


class Constants(NamedTuple):
    """The constants of a dual that moves the multiplier step by step.

    Args:
        step: ``1 / V``.
        slack: what is added to every estimated cost.
        cap: ``rho``, the largest multiplier, ``(T, m)``; infinite without a cap.
        beta: the width of the costs' estimates that move the multiplier, ``(T, m)``;
            ``None``: the estimates in the score move it.
        limit_refusal: why limits may not change, if constants rest on them; else empty.
    """

    step: Schedule
    slack: Schedule
    cap: Tensor
    beta: Tensor | None
    limit_refusal: str


@dataclass(frozen=True)
class GivenConstants:
    """The user's constants of a dual, and what missing ones are computed from.

    Args:
        step: ``1 / V``, above 0; ``None``: not given.
        cap: ``rho``, the largest multiplier, above 0; ``None``: not given.
        slack: what is added to every estimated cost.
        slater: Slater's constant; ``None``: not given.
        beta: the width of the costs' estimates that move the multiplier; ``"score"``:
            the estimates in the score move it; ``None``: not given.
        reshape: turns a number into ``(T, m)``; gradients pass through.
        bounds: the bounds ``(B, G)`` on reward and costs in each trial, ``(T, 1 + m)``;
            ``None``: not given.
        units: the units of the beliefs; ``None``: the user's units.
        epoch: the rounds of an epoch, or ``"doubling"``; ``None``: unknown.
    """

    step: Scheduled | None
    cap: ArrayLike | None
    slack: Scheduled
    slater: ArrayLike | None
    beta: ArrayLike | None
    reshape: Callable[[str, Any], Tensor]
    bounds: Tensor | None
    units: Units | None
    epoch: int | str | None

    @property
    def has_defaults(self) -> bool:
        """Whether defaults, in spreads of the data, replace missing constants."""
        return self.slater is None and self.units is not None and self.units.shared

    def constants(self, needs_cap: bool) -> Constants:
        """Return step, cap and slack: the user's, or else the theorem's.

        Args:
            needs_cap: whether the rule has a cap. If the user gave none, it is computed
                by the theorem; an error names the arguments that this lacks.
        """

        def positive(name: str, value: ArrayLike) -> Tensor:
            return self.reshape(name, checks.positive(name, value, graph=True))

        slack = Schedule("slack", self.slack, self.reshape, checks.nonnegative)
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
        if self.cap is None and needs_cap:
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
        steps = Schedule("step", step, self.reshape, checks.positive, root, length)
        derived = self.slater is not None or (bounds is not None and root)
        cap = torch.tensor(torch.inf) if rho is None else rho
        refusal = LIMIT_REFUSAL if derived else ""
        return Constants(steps, slack, cap, self._dual_beta(), refusal)

    def _dual_beta(self) -> Tensor | None:
        """Return :attr:`Constants.beta` from the user's value or the default."""
        beta = self.beta
        if beta is None and self.has_defaults:
            beta = DEFAULT_DUAL_BETA
        if beta is None or (isinstance(beta, str) and beta == "score"):
            return None
        return self.reshape("dual_beta", beta).detach()


class Dual(ABC):
    """A rule by which CKB's multiplier ``phi (T, m)`` moves.

    It may change other parts of a round too. Gradients reach its constants. Copies and
    saved files hold them without gradients.
    """

    beta: Tensor | None = None
    limit_refusal: str = ""

    __getstate__ = checks.numbers_of

    @abstractmethod
    def score(self, t: int, phi: Tensor, first_round: int) -> scores.PrimalDual:
        """Return the score of round ``t``; its epoch began in ``first_round``."""

    @abstractmethod
    def move(self, t: int, phi: Tensor, g: Tensor, first_round: int) -> Tensor:
        """Return ``phi`` after round ``t``, whose estimated costs were ``g (T, m)``."""

    def dual_estimate(
        self, beliefs: Beliefs, look: Look, best: Best, turn: Turn
    ) -> Tensor:
        """Return the estimates at ``best`` that move the multiplier, ``(T, 1 + m)``.

        Args:
            beliefs: the beliefs about reward and costs.
            look: the query of the beliefs that found the best action.
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
        """Return the rule's state before the first round; ``None``: it has none."""
        return None

    def hear(self, rule_state: Any, news: News) -> Any:
        """Return the rule's state after the feedback of one round."""
        return rule_state

    def coefficient(self, coefficient: Tensor) -> Tensor:
        """Return the factors ``(T, 1 + m)`` of deviations in the round's estimates.

        ``coefficient`` are the policy's factors, from its exploration.
        """
        return coefficient

    def next_multiplier(self, phi: Tensor, state: GPState) -> Tensor:
        """Return the next round's multiplier, given that :meth:`move` gave ``phi``."""
        return phi

    def pick(
        self, policy: GPPolicy, pick_greatest: PickRule, state: GPState, turn: Turn
    ) -> tuple[Decision, GPState]:
        """Return the round's decision and the state after it.

        Args:
            policy: the policy that decides.
            pick_greatest: decides for the action of greatest score.
            state: the policy's state in this round, with the multiplier moved.
            turn: the round.
        """
        return pick_greatest(state, turn)

    def complete(self, decision: Decision) -> Decision:
        """Return the decision; a rule that draws actions adds its distribution."""
        return decision
