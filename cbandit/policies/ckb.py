"""CKB: primal-dual kernelized bandits with soft constraints.

Each round, with multiplier ``phi`` (one a cost), inverse step ``V`` and cap ``rho``:

1. estimates ``f_t``, ``g_t`` from the beliefs (UCB, Thompson, or one random width),
   clipped to ``[-B, B]`` and ``[-G, G]``;
2. ``x_t = argmax f_t(x) - sum_j phi_j g_tj(x)``;
3. ``phi_j = clip(phi_j + (g_tj(x_t) + slack) / V, 0, rho)``: by the estimate, not by
   what is observed;
4. observe reward and costs, update the beliefs.

X. Zhou and B. Ji, On kernelized multi-armed bandits with constraints, 2022. The theory
asks for ``rho >= 4 B / delta`` (``delta`` Slater's constant; less the slack, where
there is one) and ``V = G sqrt(T) / rho``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit import multipliers, scores
from cbandit._core import checks
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.explore import Explore
from cbandit.policies.gp import GPPolicy
from cbandit.policies.policy import Decision

__all__ = ["CKB"]


class CKB(GPPolicy):
    """Primal-dual exploration under soft constraints.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or a list of them.
        explore: :class:`~cbandit.UCB`, :class:`~cbandit.TS` or :class:`~cbandit.Rand`.
        step: ``1 / V``, above 0: what a multiplier gains in a round whose estimate is a
            unit above the limit; a small part of the limit's price over the usual
            excess. A number, ``(*trials,)`` or one a cost, ``(*trials, m)``, as
            ``cap``, ``slack`` and ``slater``; with ``dual="queue"`` also a callable of
            the round. Left out, ``rho / (G sqrt(T))``.
        cap: ``rho``. Left out, ``4 B / (slater - slack)``. A multiplier is reward for
            a unit of cost, in the units of what is told, standardised beliefs or not:
            a cap below the limit's price never makes the policy keep it.
        slack: added to every estimate in the dual step; ``0 < slack <= slater / 2``
            turns bounded violation into none. With ``dual="queue"`` also a callable of
            the round.
        clip: ``(B, G)``, bounds of reward and costs.
        horizon: ``T``; asking beyond it is an error.
        slater: ``delta``: some action (or distribution) has every cost ``<= -delta``.
        anytime: no horizon: epochs of doubling length, the multiplier back at 0 in
            each. The data go on, and so do widths: a callable ``beta`` gets the round
            of the run, and round ``t`` is in the epoch of ``1 << (t.bit_length() - 1)``
            rounds, should it rest on the length.
        forget: with ``anytime``, drop the data at every epoch too.
        dual: ``"projected"``, or ``"queue"``: ``Q = [Q + g_t(x_t) + slack]_+`` scored
            as ``f_t - step Q g_t`` (no cap: ``cap`` is for the step it implies).
        common: ``thresholds``, ``feedback``, ``seed``, ``trials``, ``device``,
            ``dtype``, ``engine``, ``pending``.

    Example:
        >>> import cbandit as cb, gpytorch, torch
        >>> kernel = gpytorch.kernels.RBFKernel().double()
        >>> kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
        >>> gp = cb.GP(kernel, noise=1e-2)
        >>> policy = cb.CKB(
        ...     cb.Finite(torch.linspace(0, 1, 100).double().unsqueeze(-1)),
        ...     reward=gp, costs=gp, explore=cb.UCB(2.0),
        ...     clip=(1.0, 1.0), slater=0.5, horizon=1000,
        ... )
        >>> choice = policy.ask()
        >>> policy.tell(choice, reward=0.3, cost=-0.1)
    """

    splits = True

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP],
        explore: Explore,
        step: Any = None,
        cap: Any = None,
        slack: Any = 0.0,
        clip: Any = None,
        horizon: int | None = None,
        slater: Any = None,
        anytime: bool = False,
        forget: bool = False,
        dual: str = "projected",
        **common: Any,
    ) -> None:
        checks.one_of("dual", dual, "projected", "queue")
        if costs is None:
            raise CBanditError("costs must be a cb.GP or a list of them; got None")
        anytime = checks.flag("anytime", anytime)
        forget = checks.flag("forget", forget)
        if forget and not anytime:
            raise CBanditError("forget=True goes with anytime=True")
        if dual == "projected" and (callable(step) or callable(slack)):
            raise CBanditError(
                "step and slack may be callables of the round with dual='queue' only"
            )
        if dual == "queue" and cap is not None and step is not None:
            raise CBanditError(
                f"cap goes with dual='projected', for a queue has none; got {cap!r} "
                "(with step left out, the queue's step follows from it)"
            )
        super().__init__(
            actions, reward, costs, explore, clip=clip, horizon=horizon, **common
        )
        self.name = f"CKB-{explore.name}"
        self.dual, self.anytime, self.forget = dual, anytime, forget
        self._slack = _Schedule("slack", slack, self._number, checks.nonnegative)
        self._settle(step, cap, slater)
        self._multiplier = torch.zeros(
            self._size, self.m, dtype=torch.float64, device=self.device
        )

    @property
    def multiplier(self) -> Tensor:
        """``phi`` (or ``Q``) as the next ``ask`` will use it, ``(*trials, m)``."""
        if self.t and self._epoch(self.t + 1) == self.t + 1:
            return self._outside(torch.zeros_like(self._multiplier))
        return self._outside(self._multiplier.clone())

    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        phi, start = self._multiplier, self._epoch(t)
        step, slack = self._step(t, start), self._slack(t)
        if t == start:
            phi = torch.zeros_like(phi)
            if self.forget:
                self._beliefs.forget_all()
        weight = phi if self.dual == "projected" else phi * step

        best = self._maximise(t, asked, mask, scores.PrimalDual(weight))
        g = best.g.double()
        if self.dual == "projected":
            assert self._cap is not None
            phi = multipliers.ascended(phi, g, step, slack, self._cap)
        else:
            phi = multipliers.queued(phi, g, slack)
        self._multiplier = phi
        return Decision(best.index, x=best.x, keys=best.keys)

    def _epoch(self, t: int) -> int:
        """The first round of the epoch that round ``t`` is in."""
        # doubling: epoch i is rounds 2^i .. 2^(i+1) - 1
        return 1 << (t.bit_length() - 1) if self.anytime else 1

    def _settle(self, step: Any, cap: Any, slater: Any) -> None:
        """Step and cap as given, or as the theorem has them."""
        bounds, room = self._clip_at, None
        if slater is not None:
            delta = self._number("slater", checks.positive("slater", slater))
            room = delta - self._slack(1)
            if bool((room <= 0).any()):
                raise CBanditError(
                    f"slack must be below slater = {slater}; got "
                    f"{self._slack(1).tolist()}"
                )
        self._cap: Tensor | None = None
        if cap is not None:
            self._cap = self._number("cap", checks.positive("cap", cap))
        wanted, missing = [], []
        # the queue itself has no cap, but its step rests on one
        if cap is None and (self.dual == "projected" or step is None):
            wanted.append("cap= (by the theorem 4 B / slater)")
            missing += ["clip=(B, G)"] * (bounds is None)
            missing += ["slater="] * (slater is None)
            if bounds is not None and room is not None:
                self._cap = 4 * bounds[:, :1] / room
        if step is None:
            wanted.append("step= (by the theorem cap / (G sqrt(T)))")
            missing += ["clip=(B, G)"] * (bounds is None and cap is not None)
            endless = self.horizon is None and not self.anytime
            missing += ["horizon= (or anytime=True)"] * endless
        if missing:
            raise CBanditError(
                f"give {' and '.join(wanted)}, or what they follow from: "
                + ", ".join(missing)
            )
        if step is not None:
            self._step = _Schedule("step", step, self._number, checks.positive)
            return
        assert bounds is not None
        assert self._cap is not None
        length = None if self.anytime else self.horizon
        follows = self._cap / bounds[:, 1:]
        self._step = _Schedule(
            "step", follows, self._number, checks.positive, length, root=True
        )


class _Schedule:
    """A number, or a callable of the round, as ``(T, m)``.

    With ``root`` the number is divided by the root of the horizon or, where there is
    none, of the epoch's length.
    """

    def __init__(
        self,
        name: str,
        value: Any,
        shaped: Callable[[str, Any], Tensor],
        checked: Callable[[str, Any], Tensor],
        horizon: int | None = None,
        root: bool = False,
    ) -> None:
        self._name, self._shaped, self._root = name, shaped, root
        self._checked, self._horizon = checked, horizon
        self._value = value if callable(value) else shaped(name, checked(name, value))

    def __call__(self, t: int, start: int = 1) -> Tensor:
        if callable(self._value):
            given = self._checked(self._name, self._value(t))
            return self._shaped(self._name, given)
        value: Tensor = self._value
        return value / math.sqrt(self._horizon or start) if self._root else value
