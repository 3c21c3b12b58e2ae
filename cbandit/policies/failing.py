"""Learn from failures: a belief about the probability that an action fails.

The belief is made at the first failure, from all that was measured and all that failed
by then. It is binary: ``P(fails) = Phi(f)``, where ``f`` is a Gaussian process of
variance 1 with the set's default kernel, and its mean says that 5 % of all actions
fail. Lengthscales are learned (where contexts are wide, ``f`` is linear). One failure
at an action that was never measured raises its probability to 0.24, two to 0.41, three
to 0.52.

An action that fails loses the round. Next to a region that fails the belief is slow to
pass one half: a policy that asks up to there loses about every second round. So the bar
lies half-way between one half and the least probability at any action tried so far,
mostly a little above one quarter: one failure may be luck, two are not. Where half of
all tries fail everywhere, the bar is one half. If nothing is below the bar, the actions
below one half are left, and failing those, the ones least likely to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.actions import Actions
from cbandit.beliefs.gp import GP
from cbandit.errors import CBanditError
from cbandit.policies.choices import News, Place
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.observations import Part

USUAL = 0.05  # the share of all actions that fails, before any data
TRIED = 256  # how many of the latest tries the least probability is taken over


class Result(NamedTuple):
    """The outcome of a round: whether the action failed or was measured.

    Args:
        place: the round's actions.
        failed: the trials in which the action failed, ``(T,)`` bool on the host.
        measured: the trials in which it was measured, likewise.
    """

    place: Place
    failed: Tensor
    measured: Tensor


class Failing(NamedTuple):
    """A belief about failures, and the results that it has not absorbed yet.

    Args:
        beliefs: about the latent function; ``None``: not made yet.
        fresh: the results that are not in the beliefs.
    """

    beliefs: Any
    fresh: tuple[Result, ...] = ()

    def absorbed(self) -> Failing:
        """Return this with all results absorbed into the beliefs."""
        beliefs = self.beliefs
        for result in sorted(self.fresh, key=lambda each: each.place.t):
            either, place = result.failed | result.measured, result.place
            values = devices.put(result.failed, beliefs.device).unsqueeze(-1)
            part = Part([0], values.double(), either.tolist())
            beliefs = beliefs.absorb(place.keys, place.x, [part], place.t)
        return Failing(beliefs.refit(due_only=True))

    def left(self, on: Actions, mask: Tensor | None) -> Tensor:
        """Return the actions of a set that likely do not fail, ``(T, N)`` bool.

        ``mask (1 or T, N)`` says which may be chosen.
        """
        beliefs = self.beliefs
        if on is beliefs.actions:
            parts = [_height(block.mean, block.std) for block in beliefs.blocks()]
        else:
            parts = [_height(*beliefs.anywhere(on.block(0, on.size)))]
        height = torch.cat(parts, -1)
        if mask is not None:
            height = height.masked_fill(~mask, torch.inf)
        least = height.amin(-1, keepdim=True)
        if mask is not None and bool(least.isinf().any()):
            raise CBanditError("among must leave an action to choose")
        bar = self._bar().to(height)
        return height <= torch.where(least <= bar, bar, least.clamp_min(0.0))

    def above(
        self, whole: Callable[[Tensor], Tensor] | None
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that is above 0 at points of a box that likely fail.

        It takes points ``(T, n, c)`` and returns ``(T, 1, n)``; ``whole`` adds the
        context to points, where there is one.
        """
        solve, bar = self.beliefs.solver(), self._bar().unsqueeze(1)

        def excess(x: Tensor) -> Tensor:
            mean, std = solve(x if whole is None else whole(x))
            return _height(mean, std).unsqueeze(1) - bar

        return excess

    def _bar(self) -> Tensor:
        """Return the latent value above which actions are left out, ``(T, 1)``."""
        tried = _height(*self.beliefs.anywhere(self.beliefs.incumbents(TRIED)))
        least = torch.special.ndtr(tried.amin(-1, keepdim=True))
        bar: Tensor = torch.special.ndtri(0.5 * (least + 0.5)).clamp_max(0.0)
        return bar


def _height(mean: Tensor, std: Tensor) -> Tensor:
    """Return ``Phi^-1`` of the probability to fail, ``(T, n)``."""
    return mean[:, 0] / (1 + std[:, 0].square()).sqrt()


def noted(
    failing: Failing | None, news: News, place: Place, awaits: int
) -> Failing | None:
    """Return what is known of failures, with these news still to be absorbed.

    A choice is measured once all ``awaits`` functions, the reward first, have come.
    """
    if failing is None and news.failed is None:
        return None  # nothing has failed so far
    now = torch.zeros(len(news.came), dtype=torch.bool)
    for told in (*news.rewards, *news.costs):
        now |= True if told.where is None else told.where
    measured = now & news.came[:, :awaits].all(-1)
    failed = torch.zeros_like(now) if news.failed is None else news.failed
    if not bool((measured | failed).any()):
        return failing
    before = Failing(None) if failing is None else failing
    return before._replace(fresh=(*before.fresh, Result(place, failed, measured)))


def belief_of(actions: Actions) -> GP | None:
    """Return the belief about failures over a set; ``None``: there can be none.

    Arms that are known by their covariance alone have no default kernel.
    """
    if actions.covariance is not None:
        return None
    belief = GP.default(actions, outcome="binary")
    belief.learn_mean, belief.mean = False, torch.tensor(USUAL).double()
    return belief


def begun(gp: GP, like: Beliefs, results: Sequence[Result]) -> Failing:
    """Return a belief about failures on the set of ``like``, from all results."""
    beliefs = Beliefs([gp], like.actions, like.batch_shape, like.dtype, like.device)
    return Failing(beliefs, tuple(results)).absorbed()
