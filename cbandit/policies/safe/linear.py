"""Linear functions: their estimates, and the best action that is surely safe.

Finite sets are searched action by action, stars along the segments from their centre,
the safe action, to their tips. Along a segment the costs' bounds are convex, so its
safe part is one stretch. The reward's bound is convex too, so it is largest at an end
of that stretch. ``V_r`` and ``V_c`` are the bounds ``<x, w> + scale ||x||_{Sigma^-1}``
of reward and costs, ``A`` a root of ``Sigma^-1``: ``A' A = Sigma^-1``.

In shapes, ``T`` counts trials, ``m`` costs, ``F = 1 + m`` functions (the reward first),
``d`` coordinates, ``n`` actions, ``K`` the segments of a star.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import search
from cbandit._core import checks, devices
from cbandit._core.log import warn
from cbandit._core.peaks import CLOSE, best_place
from cbandit.actions import Actions, Star
from cbandit.beliefs.linear import Linear
from cbandit.errors import CBanditError
from cbandit.policies.concerns.failure_list import blocks_within, worst_outside
from cbandit.policies.dual import Scheduled
from cbandit.policies.safe.action import SafeAction, require_numbers
from cbandit.policies.safe.bounds import WidthFactors, within_limits
from cbandit.policies.safe.estimate import Block, SafeEstimate, check_has_safe
from cbandit.policies.safe.stagewise import SafeState
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.ridge import Ridge
from cbandit.recommend import Recommendation, quantile, recommend

BLOCK_ACTIONS = 2**14  # actions in a block
MIN_RIDGE_SHARE = 1e-10  # of a squared length; a smaller ridge is lost in rounding

#: how to use contexts with linear models, for an error message
CONTEXTS_ADVICE = (
    "Or build it on one cb.Finite set of vectors, features of choice and context, and "
    "give each round's to ask(actions=cb.Finite(rows)), the safe one among them"
)


class LinearModel:
    """A model of linear functions of an action's coordinates, in ``T`` trials.

    Args:
        actions: the policy's set.
        beliefs: the beliefs about the reward and every cost.
        safe: the safe action. If its cost is stated, costs are only estimated in
            directions orthogonal to it.
        delta: the share of runs in which the reward's bound may fail; in as many the
            costs' bounds together may.
        beta: the width, a number, ``(*trials,)`` or a function of the round; ``None``:
            the theory's.
        batch: the shape of the trials axis, ``()`` or ``(trials,)``.
    """

    def __init__(
        self,
        actions: Actions,
        beliefs: Sequence[Linear],
        safe: SafeAction,
        delta: float,
        beta: Scheduled | None,
        batch: tuple[int, ...],
    ) -> None:
        self.actions, self.safe, self._batch = actions, safe, batch
        self.subgaussian = safe.subgaussian
        self._ridge = ridge = self._columns("ridge", [b.ridge for b in beliefs])
        #: ``S``, the bound on the norm of every function's coefficients, ``(T, F)``
        self.norm = norm = self._columns("norm", [b.norm for b in beliefs])
        # the reward's prior deviation for an action of length 1
        self._prior_deviation = norm[:, 0] + self.subgaussian[:, 0] / ridge[:, 0].sqrt()
        lengths = [b.length for b in beliefs if b.length is not None]
        #: ``L``, the largest length of an action that the user states, ``(T,)``
        self.stated_length = (
            self._columns("length", lengths).amin(-1) if lengths else None
        )
        self._smallest_ridge = self._ridge.amin(-1)
        #: the length of the longest action of the policy's set, ``(1 or T,)``
        self.longest = self.length(actions)
        self._check_origin()
        # R sqrt(d ln((1 + n L^2 / lam) / delta)) + sqrt(lam) S
        dim = torch.full_like(self._ridge, actions.dim)
        if safe.cost is not None:
            dim[:, 1:] -= (~safe.origin).double().unsqueeze(-1)
        share = torch.full_like(self._ridge, delta)
        share[:, 1:] /= len(beliefs) - 1
        self._inverse_ridge, self._log_share = 1 / self._ridge, -share.log()
        self._noise_term = self.subgaussian.square() * dim
        self._norm_term = ridge.sqrt() * norm
        self._beta = beta if beta is None or callable(beta) else self._shape_beta(beta)

    def _columns(self, name: str, values: Sequence[Any]) -> Tensor:
        """Stack values, each a number or ``(*trials,)``, as columns, ``(T, k)``."""
        columns = [checks.per_trial(name, value, self._batch) for value in values]
        return devices.put(torch.stack(columns, -1), self.subgaussian.device)

    def _check_origin(self) -> None:
        """Raise an error if values other than 0 are stated for the origin."""
        safe, zero = self.safe, torch.zeros_like(self.subgaussian)
        reward = zero[:, 0] if safe.reward is None else safe.reward
        cost = zero[:, 1:] if safe.cost is None else safe.cost
        if bool((safe.origin & ((reward != 0) | (cost != 0).any(-1))).any()):
            raise CBanditError(
                "safe: the reward and cost of x = 0 are 0, for they are linear; got "
                f"reward = {reward.tolist()}, cost = {cost.tolist()}"
            )

    # -- learning --------------------------------------------------------------------

    def start(self) -> Ridge:
        """Return the estimates before any data: stated costs of the safe action."""
        dim, safe = self.actions.dim, self.safe
        if safe.cost is None:
            return Ridge.start(self._ridge, dim)
        along = self._ridge.new_zeros(*self._ridge.shape, dim)
        slope = torch.zeros_like(self._ridge)
        length = safe.x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        along[:, 1:] = (safe.x / length).unsqueeze(1)
        slope[:, 1:] = safe.cost / length
        return Ridge.start(self._ridge, dim, along, slope)

    def identify(self, x: Tensor, arm: Tensor | None) -> Tensor:
        """Return ``x``: observations are stored with the action's point."""
        return x

    def has_data(self, observations: Ridge) -> Tensor:
        """Return the trials that have data of all functions, ``(T, 1)`` bool."""
        return (observations.count > 0).all(-1, keepdim=True)

    def estimates(self, observations: Ridge) -> Iterator[Block]:
        """Yield estimates and deviations over the policy's set, or a star's tips."""
        for start, points in self.blocks(self.actions):
            mean, norm = observations.at(points)
            yield start, mean, norm * self.subgaussian.unsqueeze(-1)

    # -- widths ----------------------------------------------------------------------

    def width(self, t: int, state: SafeState) -> Tensor:
        """Return ``beta`` of every function in round ``t``, ``(T, F)``."""
        if self._beta is not None:
            beta = (
                self._shape_beta(self._beta(t)) if callable(self._beta) else self._beta
            )
            return beta.expand_as(self._norm_term)
        length = state.longest if self.stated_length is None else self.stated_length
        square = length.square().unsqueeze(-1)
        grown = torch.log1p(state.data.count * square * self._inverse_ridge)
        return (self._noise_term * (grown + self._log_share)).sqrt() + self._norm_term

    def scale(
        self, t: int, state: SafeState, factors: WidthFactors, ratio: Tensor
    ) -> Tensor:
        """Return the factors of the norms in ``V_r`` and every ``V_c``, ``(T, F)``.

        The reward's is ``alpha_r beta``. Its bonus makes up for the costs' widths (see
        :mod:`cbandit.policies.safe.bounds`) but multiplies the reward's norm of ``x``.
        So where a cost's norm of ``x`` is longer, as its ridge and data differ, the
        bonus is larger in proportion.

        Args:
            t: the round.
            state: the policy's state.
            factors: the factors that inflate the widths.
            ratio: ``2 (r_max - r0) / (tau_j - c0_j)``, ``(T, m)``.
        """
        beta, rho = factors.inflate(self.width(t, state), ratio)
        reward, costs = beta[:, :1], beta[:, 1:]
        bonus = rho * torch.maximum(costs * state.data.stretch, reward)
        return torch.cat([reward + bonus.amax(-1, keepdim=True), costs], -1)

    def _shape_beta(self, beta: ArrayLike) -> Tensor:
        """Return the user's width as a column, ``(T, 1)``; raise if negative."""
        return self._columns("beta", [checks.nonnegative("beta", beta)])

    # -- sets ------------------------------------------------------------------------

    def find_safe_action(
        self, state: SafeState, on: Actions
    ) -> tuple[Tensor | None, SafeState]:
        """Return the safe action's number in the set ``on``, and the new state.

        The state has the length of the longest action so far, which widens all bounds.
        """
        if on is self.actions:
            return self.safe.index, state
        if on.continuous:
            raise CBanditError(
                "actions of this round must be points, a cb.Finite, a cb.ProductGrid "
                f"or a cb.Star; got {on!r}"
            )
        longest, at = self.length(on), self.safe.number_in(on)
        longest = torch.maximum(state.longest, longest)
        return at, state._replace(longest=longest)

    def length(self, actions: Actions) -> Tensor:
        """Return the longest action's length, ``(1 or T,)``; raise if invalid."""
        if isinstance(actions, Star):
            ends = actions.ends.double()
            longest: Tensor = ends.norm(dim=-1).amax(-1).reshape(-1)
        else:
            lengths = [
                x.norm(dim=-1).amax(-1).reshape(-1) for _, x in self.blocks(actions)
            ]
            longest = torch.stack(lengths).amax(0)
        stated = self.stated_length
        if stated is not None and bool((longest > stated * (1 + 1e-9)).any()):
            raise CBanditError(
                f"actions must be no longer than length = {stated.min().item():g}; the "
                f"longest has length {longest.max().item():g}"
            )
        if bool((self._smallest_ridge < MIN_RIDGE_SHARE * longest.square()).any()):
            raise CBanditError(
                f"ridge must be at least {MIN_RIDGE_SHARE:g} times the squared length "
                "of every action, or it is lost in the rounding of their sums; got "
                f"{self._smallest_ridge.min().item():g}, and the longest action has "
                f"length {longest.max().item():g}"
            )
        return longest

    @staticmethod
    def blocks(actions: Actions) -> Iterator[tuple[int, Tensor]]:
        """Yield ``(start, points (1 or T, n, d))`` of a set, or of a star's tips."""
        if isinstance(actions, Star):
            tips = actions.tips.double()
            yield 0, tips if tips.dim() == 3 else tips.unsqueeze(0)
            return
        for start, stop in actions.stretches(BLOCK_ACTIONS):
            points = actions.block(start, stop).double()
            yield start, points if points.dim() == 3 else points.unsqueeze(0)

    def star_points(self, star: Star) -> Tensor:
        """Return the centre and the tips of a star, ``(T or 1, d, 1 + K)``."""
        tips = star.tips.double()
        tips = tips if tips.dim() == 3 else tips.unsqueeze(0)
        centre = self.safe.x.unsqueeze(1)
        if bool((centre == centre[:1]).all()):
            centre = centre[:1].expand(len(tips), -1, -1)
        tips = tips.expand(len(centre), -1, -1)
        return torch.cat([centre, tips], 1).mT.contiguous()

    def reward_tolerance(self, state: SafeState) -> Tensor:
        """Return the difference below which rewards count as equal, ``(T,)``."""
        tolerance: Tensor = CLOSE * self._prior_deviation * state.longest
        return tolerance

    # -- the best action that is surely safe -----------------------------------------

    def pick(
        self,
        name: str,
        state: SafeState,
        turn: Turn,
        bounds: LinearBounds,
        tau: Tensor,
        safe_index: Tensor | None,
    ) -> tuple[Decision, SafeState]:
        """Return the action of greatest ``V_r`` with ``V_c <= tau``, and the state.

        The safe action is always allowed.

        Args:
            name: the policy's name.
            state: the policy's state.
            turn: the round.
            bounds: ``V_r`` and ``V_c``.
            tau: the thresholds, ``(T, m)``.
            safe_index: the safe action's number in this round's set, ``(T,)``;
                ``None``: the set is a star.
        """
        on, safe, mask = turn.actions, state.safe, turn.mask
        infeasible = safe.unsafe_trials(tau)
        check_has_safe(mask, safe_index)
        close = self.reward_tolerance(state)
        if safe_index is None:
            star = self.star_points(on)
            index, x = _best_on_star(star, mask, bounds, tau, safe, close)
            if not safe.ready:
                x = torch.where(safe.known.unsqueeze(-1), x, safe.action.x)
            x = x.to(on.tips.dtype)
            return Decision(index, infeasible, x=x, sure=True), state
        values = self._bounds_in_blocks(on, bounds, tau, safe_index)
        best = search.maximise(values, search.within_limits, mask, close)
        index = require_numbers(best.index)
        if not state.warned and bool((index == safe_index).all()):
            state = state._replace(warned=True)
            warn(
                f"{name} plays the safe action, being sure of no other. On a "
                "Finite set it may never leave it, as that teaches nothing about the "
                "others; a Star around it, where one can go part of the way, does",
            )
        if not safe.ready:
            index = torch.where(safe.known, index, safe_index)
        inside = None
        if turn.explores:
            inside = self.safe_actions(turn, bounds, tau, safe_index)
            if not safe.ready:
                own = torch.arange(inside.shape[-1]).to(index) == safe_index[:, None]
                inside = torch.where(safe.known.unsqueeze(-1), inside, own)
        return Decision(index, infeasible, sure=True, safe=inside), state

    def safe_actions(
        self, turn: Turn, bounds: LinearBounds, tau: Tensor, safe_index: Tensor
    ) -> Tensor:
        """Return the allowed actions with ``V_c <= tau``, ``(T, N)`` bool.

        The arguments are those of :meth:`pick`, of a round on a set.
        """
        blocks = self._bounds_in_blocks(turn.actions, bounds, tau, safe_index)
        zero = torch.zeros_like(tau)
        inside = torch.cat([within_limits(v, zero) for _, v in blocks], -1)
        return inside if turn.mask is None else inside & turn.mask

    def _bounds_in_blocks(
        self, on: Actions, bounds: LinearBounds, tau: Tensor, safe_index: Tensor
    ) -> Iterator[tuple[int, Tensor]]:
        """Yield each block's start, and its ``V_r`` and ``V_c - tau``, ``(T, F, n)``.

        At the safe action ``V_c - tau`` is lowered to 0 if above. The arguments are
        those of :meth:`pick`; ``on`` is the round's set.
        """
        for start, points in self.blocks(on):
            v = bounds.at(points)
            v[:, 1:] -= tau.unsqueeze(-1)
            place = (safe_index - start).clamp(0, points.shape[-2] - 1)
            is_safe = (place + start == safe_index)[:, None, None]
            place = place[:, None, None].expand(-1, tau.shape[-1], 1)
            cost = v[:, 1:].gather(-1, place)
            v[:, 1:].scatter_(
                -1, place, torch.where(is_safe, cost.clamp_max(0.0), cost)
            )
            yield start, v

    def recommend_likely(
        self, state: SafeState, limits: Tensor, confidence: float, mask: Tensor | None
    ) -> Recommendation:
        """Return the best action believed feasible with ``confidence``.

        On a star ``index`` is the segment's number, and 0 for the centre. ``mask``
        says which actions or segments have not failed, ``(T, n)`` bool; ``None``: all.
        """
        if isinstance(self.actions, Star):
            star = self.star_points(self.actions)
            return self._recommend_on_star(star, state, limits, confidence, mask)
        blocks = blocks_within(
            state.safe.with_safe_values(self.estimates(state.data)), mask
        )
        best = recommend(blocks, limits, confidence)
        return replace(best, x=self.actions.at(require_numbers(best.index)))

    def _recommend_on_star(
        self,
        star: Tensor,
        state: SafeState,
        limits: Tensor,
        confidence: float,
        mask: Tensor | None,
    ) -> Recommendation:
        """Return :meth:`recommend_likely` on a star, given its centre and tips."""
        star = star.expand(len(limits), -1, -1)  # T x d x (1 + K)
        ridge, r = state.data, self.subgaussian
        width = quantile(confidence, limits.shape[-1]) * (1 + 1e-9) * r
        a = _safe_stretch(
            ridge.solved[0] @ star, ridge.rays(star), width, limits, state.safe
        )
        # mean rewards are affine along a segment: best at an end of its safe stretch,
        # or at a tip if no point is safe
        tips, centre = star[..., 1:], star[..., :1]
        ends = [torch.lerp(centre, tips, a[:, None, :, e]) for e in range(a.shape[-1])]
        points = torch.cat([centre, tips, *ends], -1).mT  # T x n x d
        mean, norm = ridge.at(points)
        if mask is not None:
            unfailed = [torch.ones_like(mask[:, :1]), *[mask] * (1 + len(ends))]
            mean = worst_outside(torch.cat(unfailed, -1), mean)
        best = recommend([(0, mean, norm * r.unsqueeze(-1))], limits, confidence)
        place = require_numbers(best.index)
        x = points.gather(1, place.view(-1, 1, 1).expand(-1, 1, points.shape[-1]))
        segment = (place - 1).clamp_min(0) % tips.shape[-1]
        return replace(best, index=segment, x=x.squeeze(1))


class LinearBounds(NamedTuple):
    """The bounds ``V_r`` and every ``V_c`` of a round.

    Args:
        ridge: the estimates ``w`` and ``Sigma``.
        scale: the factor of every norm, ``(T, F)``.
        shift: an amount added to the reward's ``w``, ``(T, d)``; ``None``: none.
    """

    ridge: Ridge
    scale: Tensor
    shift: Tensor | None = None

    def at(self, x: Tensor) -> Tensor:
        """Return the bounds at points ``x (T or 1, n, d)``, ``(T, F, n)``."""
        mean, norm = self.ridge.at(x)
        bounds = torch.addcmul(mean, norm, self.scale.unsqueeze(-1))
        if self.shift is not None:
            bounds[:, 0] += (x @ self.shift.unsqueeze(-1)).squeeze(-1)
        return bounds

    def parts(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``<x, w>`` and ``A x`` of columns, ``(T, F, n)``, ``(T, F, d, n)``."""
        mean = self.ridge.solved[0] @ columns
        if self.shift is not None:
            mean[:, 0] += (self.shift.unsqueeze(-2) @ columns).squeeze(-2)
        return mean, self.ridge.rays(columns)


def _best_on_star(
    star: Tensor,
    mask: Tensor | None,
    bounds: LinearBounds,
    tau: Tensor,
    safe: SafeEstimate,
    tolerance: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the segment ``(T,)`` and the coordinates ``(T, d)`` of the best point.

    It has the greatest ``V_r`` of the star's points with ``V_c <= tau`` and its centre.

    Args:
        star: centre and tips, as :meth:`LinearModel.star_points` returns them.
        mask: the segments allowed, ``(1 or T, K)``; ``None``: all.
        bounds: ``V_r`` and ``V_c``.
        tau: the thresholds, ``(T, m)``.
        safe: the estimate of the centre's reward and costs.
        tolerance: rewards that differ by less count as equal, ``(T,)``.
    """
    mean, ray = bounds.parts(star)  # T x F x (1 + K), T x F x d x (1 + K)
    a, value = _segment_ends(
        mean, ray, bounds.scale, tau, safe
    )  # T x K x e, T x (1 + K e)
    if mask is not None:
        allowed = mask.repeat_interleave(a.shape[-1], -1)
        value[:, 1:].masked_fill_(~allowed, -torch.inf)
    best = best_place(value, tolerance)
    # 0 is the centre; the two ends of a segment are next to each other
    place = (best - 1).clamp_min(0)
    share = a.flatten(1).gather(-1, place.unsqueeze(-1))
    share = share.masked_fill((best == 0).unsqueeze(-1), 0.0)
    segment = place if a.shape[-1] == 1 else place // a.shape[-1]
    tips = star.expand(len(tau), -1, -1)
    tip = tips.gather(-1, (segment + 1).view(-1, 1, 1).expand(-1, star.shape[1], 1))
    return segment, torch.lerp(tips[..., 0], tip.squeeze(-1), share)


def _segment_ends(
    mean: Tensor, ray: Tensor, scale: Tensor, tau: Tensor, safe: SafeEstimate
) -> tuple[Tensor, Tensor]:
    """Return the ends of each segment's safe stretch, and ``V_r`` at centre and ends.

    The ends are shares of the segment, ``(T, K, e)`` with ``e`` 1 or 2; the values of
    ``V_r`` are ``(T, 1 + K e)``.

    Args:
        mean: ``<x, w>`` at the centre and the tips, ``(T, F, 1 + K)``.
        ray: ``A x`` at the centre and the tips, ``(T, F, d, 1 + K)``.
        scale: the factor of every norm, ``(T, F)``.
        tau: the thresholds, ``(T, m)``.
        safe: the estimate of the centre's reward and costs.
    """
    wide = scale.unsqueeze(-1)
    if safe.action.from_origin:
        # from the origin on, bounds are proportional to the share of the segment
        bounds = torch.addcmul(mean, wide, ray.square().sum(-2).sqrt())
        cost = safe.cost.mean.unsqueeze(-1)
        a = search.furthest(cost, bounds[:, 1:, 1:], tau.unsqueeze(-1))
        bounds[:, 0, 1:] *= a
        return a.unsqueeze(-1), bounds[:, 0]
    a = _safe_stretch(mean, ray, scale, tau, safe)
    value = torch.lerp(mean[:, 0, :1, None], mean[:, 0, 1:, None], a)
    start, step = ray[:, 0, :, :1, None], ray[:, 0, :, 1:, None]
    norm = torch.lerp(start, step, a.unsqueeze(1)).square().sum(1).sqrt()
    value = torch.addcmul(value, wide[:, :1], norm).flatten(1)
    first = ray[:, 0, :, 0].norm(dim=-1, keepdim=True)
    first = torch.addcmul(mean[:, 0, :1], wide[:, 0], first)
    return a, torch.cat([first, value], -1)


def _safe_stretch(
    mean: Tensor, ray: Tensor, scale: Tensor, tau: Tensor, safe: SafeEstimate
) -> Tensor:
    """Return the ends of each segment's safe stretch, shares of it, ``(T, K, e)``.

    If the centre's cost is stated, the stretch begins at the centre, and only its far
    end is returned, ``e = 1``. The arguments are those of :func:`_segment_ends`.
    """
    wide, tau = scale[:, 1:].unsqueeze(-1), tau.unsqueeze(-1)
    if safe.action.cost is not None:
        norm = ray[:, 1:, :, 1:].square().sum(-2).sqrt()
        costs = torch.addcmul(mean[:, 1:, 1:], wide, norm)
        return search.furthest(safe.action.cost.unsqueeze(-1), costs, tau)[..., None]
    start, step = ray[:, 1:, :, :1], ray[:, 1:, :, 1:] - ray[:, 1:, :, :1]
    return search.safe_interval(
        tau - mean[:, 1:, :1],
        mean[:, 1:, 1:] - mean[:, 1:, :1],
        wide,
        start.square().sum(-2),
        (start * step).sum(-2),
        step.square().sum(-2),
    )
