"""How CKB's multiplier moves: its step, slack and cap.

Each is given by the user, follows from the theorem, or has a default. Defaults are in
spreads; ``benchmarks/defaults.py`` says how they were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import multipliers
from cbandit._core import checks
from cbandit.errors import CBanditError
from cbandit.policies.choices import Asked
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


@dataclass(frozen=True)
class Dual:
    """The rule by which CKB's multiplier moves.

    Gradients reach step, slack and cap. Copies and saved files hold numbers alone.

    Args:
        kind: ``"projected"`` or ``"queue"``.
        step: ``1 / V``.
        slack: added to every estimate.
        cap: ``rho``, ``(T, m)``; a queue has none.
        beta: the width of the costs' estimates that move ``phi``, ``(T, m)``; ``None``:
            the score's own estimates move it.
        no_limit: why the limits must stay, where constants rest on them; else empty.
    """

    kind: str
    step: Schedule
    slack: Schedule
    cap: Tensor | None
    beta: Tensor | None
    no_limit: str = ""

    __getstate__ = checks.numbers_of

    @classmethod
    def of(
        cls,
        kind: str,
        step: Scheduled | None,
        cap: ArrayLike | None,
        slack: Scheduled,
        slater: ArrayLike | None,
        beta: ArrayLike | None,
        *,
        shaped: Callable[[str, Any], Tensor],
        bounds: Tensor | None,
        units: Units | None,
        epoch: int | str | None,
    ) -> Dual:
        """Return the rule, with defaults for step, slack, cap and width not given.

        Without ``slater``, if all beliefs are standardised, the defaults are the
        constants of this file; else they follow from the bounds.

        Args:
            kind: ``"projected"`` or ``"queue"``.
            step: ``1 / V``; ``None``: ``rho / (G sqrt(T))``, where ``T`` is the number
                of rounds until the multiplier restarts.
            cap: ``rho``; ``None``: ``4 B / (slater - slack)``.
            slack: what is added to every estimate.
            slater: ``delta``.
            beta: the width of the estimates that move the multiplier; ``"score"``: the
                score's.
            shaped: turns a number into ``(T, m)``, in its graph.
            bounds: ``(B, G)`` of each trial, ``(T, 1 + m)``.
            units: the units of the beliefs; ``None``: the user's own.
            epoch: ``T``, or ``"doubling"``; ``None``: it is unknown.
        """

        def positive(name: str, value: ArrayLike) -> Tensor:
            return shaped(name, checks.positive(name, value, graph=True))

        checks.one_of("dual", kind, "projected", "queue")
        if kind == "projected" and (callable(step) or callable(slack)):
            raise CBanditError(
                "step and slack may be callables of the round with dual='queue' only"
            )
        if kind == "queue" and cap is not None and step is not None:
            raise CBanditError(
                "cap goes with dual='projected', for a queue has none; got "
                f"{cap!r} (with step left out, the queue's step follows from it)"
            )
        in_spreads = units is not None and units.shared
        if slater is None and in_spreads:
            if kind == "projected":
                cap = CAP if cap is None else cap
            if (
                kind == "projected" or cap is None
            ):  # otherwise a queue derives its step from cap
                step = STEP if step is None else step
            beta = DUAL_BETA if beta is None else beta
        slacks, room = Schedule("slack", slack, shaped, checks.nonnegative), None
        if slater is not None:
            room = positive("slater", slater) - slacks(1)
            if bool((room <= 0).any()):
                raise CBanditError(
                    f"slack must be below slater = {slater}; got {slacks(1).tolist()}"
                )
        rho = None if cap is None else positive("cap", cap)
        wanted, missing = [], []
        # a queue has no cap, but its step is derived from one
        if cap is None and (kind == "projected" or step is None):
            wanted.append("cap= (by the theorem 4 B / slater)")
            missing += ["clip=(B, G)"] * (bounds is None)
            missing += ["slater="] * (slater is None)
            if bounds is not None and room is not None:
                rho = 4 * bounds[:, :1] / room
        if step is None:
            wanted.append("step= (by the theorem cap / (G sqrt(T)))")
            missing += ["clip=(B, G)"] * (bounds is None and cap is not None)
            missing += ["horizon= (or anytime=True)"] * (epoch is None)
        if missing:
            raise CBanditError(
                f"give {' and '.join(wanted)}, or what they follow from: "
                + ", ".join(missing)
            )
        root = step is None
        if rho is not None and bounds is not None and root:
            step = rho / bounds[:, 1:]
        length = epoch if isinstance(epoch, int) else None
        steps = Schedule("step", step, shaped, checks.positive, root, length)
        scored = beta is None or (isinstance(beta, str) and beta == "score")
        width = None if scored else shaped("dual_beta", beta).detach()
        derived = slater is not None or (bounds is not None and root)
        return cls(kind, steps, slacks, rho, width, NO_LIMIT if derived else "")

    def judged(
        self,
        beliefs: Beliefs,
        look: Look,
        best: Best,
        asked: Asked,
    ) -> Tensor:
        """Return the estimates at ``best`` that move the multiplier, ``(T, 1 + m)``.

        Args:
            beliefs: about reward and costs.
            look: the look that found the best action.
            best: the best action of the round.
            asked: the round.
        """
        estimate = best.estimate
        if self.beta is None:
            return estimate
        moments = beliefs.anywhere(asked.point(best), asked.pending)
        mean, std = (part[:, 1:, 0] for part in moments)
        units, g = beliefs.units(), mean - self.beta * std
        if units is not None and units.binds:
            g = linked(units, g.unsqueeze(-1), 1).squeeze(-1)
        g = g - level(units, asked.limits)
        if look.bound is not None:
            g = clip(g, look.bound[:, 1:].to(g))
        return torch.cat([estimate[:, :1].to(g), g], -1)

    def coefficient(self, coefficient: Tensor) -> Tensor:
        """Return the factors of the spreads in the score, unchanged."""
        return coefficient

    def weight(self, phi: Tensor, t: int, start: int) -> Tensor:
        """Return the costs' weight in the score: ``phi``, or a queue's ``phi / V``."""
        return phi * self.step(t, start) if self.kind == "queue" else phi

    def moved(self, phi: Tensor, g: Tensor, t: int, start: int) -> Tensor:
        """Return ``phi`` after round ``t``, whose estimated costs were ``g``.

        ``start`` is the first round of the epoch.
        """
        slack = self.slack(t)
        if self.kind == "queue" or self.cap is None:
            return multipliers.queue(phi, g, slack, checked=False)
        step = self.step(t, start)
        return multipliers.projected(phi, g, step, slack, self.cap, checked=False)
