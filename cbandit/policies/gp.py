"""The base class of policies whose beliefs are Gaussian processes.

Each round the multiplier moves, the action of greatest score is played, and the beliefs
absorb its feedback. Scores use estimates of reward and costs: ``mean + coefficient *
spread + offset``, clipped to a bound. A spread is a standard deviation, or a joint draw
less its mean. A standardised belief divides outcomes by its unit, the standard
deviation of its data. Shapes: ``T`` trials, ``m`` costs, ``F`` functions (the reward,
then costs), ``N`` actions of a set, ``n`` points, ``d`` coordinates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, devices, distributed
from cbandit._core.arguments import stated
from cbandit._core.log import warn
from cbandit._core.randomness import Streams
from cbandit.actions import Actions, Category, plain, with_value
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.confidence.bound import BoundWidths
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore
from cbandit.policies.abilities import BY_SCORE
from cbandit.policies.acquire import AcquisitionScore, Estimates
from cbandit.policies.base import Policy
from cbandit.policies.budget import Budget
from cbandit.policies.checks import (
    check_multiplier,
    check_score,
    read_beliefs,
    read_points,
    unchanged,
)
from cbandit.policies.choices import Data, DecisionRecord, News, Place
from cbandit.policies.concerns.budgets import Budgets, BudgetStatus
from cbandit.policies.concerns.contradiction import Contradictions
from cbandit.policies.concerns.order import concerns_of
from cbandit.policies.concerns.restarts import ADAPTIVE, checked_restart
from cbandit.policies.concerns.retirements import (
    Retirements,
    category_of,
    without_values,
)
from cbandit.policies.keywords import GP_POLICY_HELP, CostBeliefs, RuleKeywords
from cbandit.policies.posterior import Joint, Posterior, check_count
from cbandit.policies.recommending import recommend_best
from cbandit.policies.round import with_state
from cbandit.policies.round_search import Search, round_blocks, trials_without_data
from cbandit.policies.saving import locked
from cbandit.policies.setup import Setup
from cbandit.policies.signs import Objective
from cbandit.policies.status import Status
from cbandit.policies.timing import Held, timing_of
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.engines.protocol import Dictionary
from cbandit.posterior.links import BINARY
from cbandit.posterior.log import join
from cbandit.posterior.look import Best, Score
from cbandit.posterior.units import Units, level, linked, told
from cbandit.recommend import Recommendation, nothing_told
from cbandit.search.box import Climbs, Estimate
from cbandit_kernels import Look

if TYPE_CHECKING:
    import pandas as pd
    from botorch.models.model_list_gp_regression import ModelListGP

MAX_SAVED_BYTES = 256 * 1024**2  # checkpoints leave out larger computed arrays
SMALL_LAM_NOISE = 0.5  # variance below which RKHS(form="small-lam") is a heuristic
START_HINT = "; without start= there is no multiplier"
NO_LEARNED_NOISE = (
    "noise= cannot go with a cb.GP.linear that learns the noise: state the belief's, "
    "cb.GP.linear(space, noise=...)"
)


class UnscaledExcess(NamedTuple):
    """Excesses of told costs that have no unit yet, kept until they have one.

    A standardised cost has a unit once two of its outcomes differ.

    Args:
        where: the costs without a unit, ``(T, m)`` bool.
        excess: for each ``tell``, by how much costs exceeded their thresholds, in the
            user's units, ``(T, m)``; 0 for costs that have a unit.
    """

    where: Tensor
    excess: tuple[Tensor, ...]


class GPState(NamedTuple):
    """All that a GP policy keeps from round to round.

    Args:
        beliefs: the beliefs about the reward and the costs.
        multiplier: the multiplier of the last ``ask``, ``(T, m)``; at first the start.
        held: what the timing of feedback keeps, such as values that came too late.
        estimate: the estimates of reward and costs at the last round's choice,
            ``(T, 1 + m)``; ``None``: the rule has chosen in no round yet.
        arrived: for each ``tell`` since, by how much costs exceeded their thresholds,
            ``(T, m)``, in the user's units, 0 in trials without feedback.
        moved: the multiplier of the next ``ask``; ``None``: not computed yet.
        own: the state that a derived policy adds; ``None``: nothing.
        waiting: excesses of costs that have no unit yet; ``None``: there are none.
        epoch: the first round of the current epoch, or of each trial's, ``(T, 1)``.
        fits: how often hyperparameters were fitted.
    """

    beliefs: Any
    multiplier: Tensor
    held: Held
    estimate: Tensor | None = None
    arrived: tuple[Tensor, ...] = ()
    moved: Tensor | None = None
    own: Any = None
    waiting: UnscaledExcess | None = None
    epoch: Any = 1
    fits: int = 0

    def after(self, timed: tuple[Any, Held]) -> GPState:
        """Return the state with what a timing returned: beliefs, held feedback."""
        beliefs, held = timed
        if beliefs is self.beliefs and held is self.held:
            return self
        return self._replace(beliefs=beliefs, held=held)

    def in_units(self) -> GPState:
        """Return the state with the excesses in ``arrived`` divided by their units.

        Those of costs whose unit is not known yet are moved to ``waiting``.
        """
        arrived, waiting = self.arrived, self.waiting
        units = self.beliefs.units() if arrived or waiting else None
        if units is None or units.size.shape[1] == 1:
            return self
        size, known = units.size[:, 1:], units.known[:, 1:]
        if waiting is not None and bool((waiting.where & known).any()):
            arrived, waiting = (*waiting.excess, *arrived), None
        measured = tuple(torch.where(known, row / size, 0.0) for row in arrived)
        if arrived and not bool(known.all()):
            left = tuple(torch.where(known, 0.0, row) for row in arrived)
            where = ~known
            if waiting is not None:
                where, left = where | waiting.where, waiting.excess + left
            waiting = UnscaledExcess(where, left)
        return self._replace(arrived=measured, waiting=waiting)


class GPPolicy(Policy):
    """Base class of policies whose beliefs are Gaussian processes.

    It has beliefs, exploration and search. Two methods make it a policy:
    :meth:`score` (or :meth:`acquire`, which also sees means and deviations) says what
    to maximise, and :meth:`move` how the multiplier moves between rounds. The rest
    works on every set and engine, in batches of trials. Tensors have the trials as
    their first axis, ``T`` of them, 1 where there is no trials axis. They are float64,
    except ``f`` and ``g`` of a float32 set. Store each argument of your class under its
    name (``self.step``): a run is resumed only by a policy in which these are equal.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or one belief a cost, in a list or by name;
            ``[gp] * m`` for ``m`` alike. A number, or names, for costs without a
            belief. ``None``: no costs.
        explore: how estimates come from beliefs: :class:`~cbandit.UCB` (``cb.UCB(1.0)``
            unless given), :class:`~cbandit.TS` or :class:`~cbandit.Rand`. A class may
            state another default, with what else it can do:
            ``abilities = replace(cb.GPPolicy.abilities, explore=cb.UCB(2.0))``.
        start: the first multiplier, a number, ``(*trials,)`` or ``(1 or *trials, m)``.
            ``None``: 0 if the class defines :meth:`move`; otherwise there is no
            multiplier, and the score cannot use one.
        restart: how many rounds an epoch has, or ``"doubling"``: the multiplier is
            ``start`` again in the first round of each. ``"adaptive"``: a trial starts
            anew when its predictions fail, see
            :mod:`cbandit.policies.concerns.restarts`.
            ``None``: one epoch.
        forget: whether a restart also drops the beliefs' data. Feedback told after it
            enters the new beliefs, even that of earlier rounds.
        observed_costs: whether each round's costs are seen in full before choosing, by
            ``ask(observed_costs=...)``.
        common: see below.

    Example:
        CKB with another dual update: the multiplier moves by factors, not by steps.

        >>> import cbandit as cb
        >>> class Geometric(cb.GPPolicy):
        ...     name = "Geometric"
        ...
        ...     def __init__(self, actions, *, step=0.1, **common):
        ...         super().__init__(actions, start=1.0, **common)
        ...         self.step = step
        ...
        ...     def score(self, t, phi):
        ...         return cb.scores.PrimalDual(phi)  # f - sum_j phi_j g_j
        ...
        ...     def move(self, t, phi, estimate, arrived):
        ...         return phi * (self.step * estimate[:, 1:]).exp()

        >>> world = cb.problems.zhou_synthetic(trials=2)
        >>> own = {"reward": cb.GP.default(world.actions), "explore": cb.UCB(1.0)}
        >>> policy = Geometric(world.actions, costs=own["reward"], **own, trials=2)
        >>> run = cb.simulate(policy, world, 30)
    """

    abilities = BY_SCORE
    common = GP_POLICY_HELP
    _oversampling = 5.0  # of the dictionary, with engine="sketch"

    def __init__(
        self,
        actions: Actions,
        *,
        reward: GP,
        costs: CostBeliefs | int | Sequence[str] | None,
        explore: Explore | None = None,
        start: ArrayLike | None = None,
        restart: int | str | None = None,
        forget: bool = False,
        observed_costs: bool = False,
        clip: Any = None,
        engine: str = "auto",
        feedback: Delayed | Sliding | None = None,
        **common: Unpack[RuleKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        beliefs, m = read_beliefs(reward, costs)
        box = isinstance(actions, Actions) and bool(actions.continuous)
        explore = self._choose_exploration(explore, beliefs, feedback, box)
        self._check_arguments(actions, explore, feedback)
        self.sees_costs = observed_costs
        super().__init__(actions, m, **common)
        abilities = self.abilities
        for j, belief in enumerate(beliefs):
            name = "reward" if j == 0 else f"costs[{j - 1}]"
            belief.suit(name, self.actions.domain, self.batch_shape)
            beliefs[j] = self.objective.belief(j, belief)
        self.feedback, self.explore = feedback, explore
        rescaled = [belief.standardize for belief in beliefs]
        spread = any(belief.in_spreads for belief in beliefs)
        self.standardized = spread and self.abilities.readings
        self._rescaled = torch.tensor(rescaled).to(self.device)
        if any(belief.conjugate for belief in beliefs):
            self.refuse("noise", NO_LEARNED_NOISE)
        timing = timing_of(
            feedback, len(beliefs), self.batch_shape, self.device, self.horizon
        )
        self._timing = timing
        self._outcomes = self._read_outcomes(beliefs)
        if timing.adds_pending:
            self.refuse("noise", timing.no_noise)
        hallucinates = self._keywords.get("pending") == "hallucinate"
        self._ignores_backlog = timing.adds_pending or hallucinates
        self._restart = restart = checked_restart(restart)
        self.forget = checks.flag("forget", forget)
        if forget and restart is None:
            raise CBanditError("forget=True goes with restart=")
        #: when all trials begin a new epoch; ``None``: never, or each by itself
        self.restart = None if restart == ADAPTIVE else restart
        self._widths = self._bound_widths(beliefs)
        #: bounds of the estimates, ``(T, F)``; ``None``: they are not clipped
        self._bound = None if clip is None else self._read_clip(clip, len(beliefs))
        self._functions = len(beliefs)
        # the offset of estimates, with the limits and allowance it was computed from
        self._kept_offset: tuple[Any, Any, Tensor | None] | None = None
        self._engine, self._refits = engine, any(each.refit_every for each in beliefs)
        budgets = bool(self.objective.budgets)
        self._ranks = distributed.ALONE if budgets else self._processes()
        #: on a Box: how many climbs the searches made, how many of them failed, and how
        #: many of these scipy's L-BFGS-B improved
        self.climbs = Climbs()
        if start is None and abilities.moves:
            start = 0.0
        wide = torch.zeros(self.size, 0, dtype=torch.float64, device=self.device)
        self._start = (
            wide if start is None else self._cost_number("start", start).clone()
        )
        fresh = self._empty_beliefs(beliefs)
        too_late = torch.zeros(self.size, dtype=torch.long, device=self.device)
        self.begin(GPState(fresh, self._start, Held(too_late)))
        self._set_concerns(self._setup())

    def _setup(self) -> Setup:
        beliefs = self._beliefs
        return (
            super()
            ._setup()
            ._replace(
                sees_costs=self.sees_costs,
                functions=beliefs.functions,
                rescaled=self._rescaled,
                outcomes=self._outcomes,
                fades=beliefs.fades,
                restart=self._restart,
                forget=self.forget,
                timing=self._timing,
                explore=self.explore,
                widths=self._widths,
            )
        )

    def __init_subclass__(cls, **arguments: object) -> None:
        """Derive the abilities of a new class that does not state them."""
        super().__init_subclass__(**arguments)
        if "abilities" not in vars(cls):
            cls.abilities = cls.abilities.with_methods(vars(cls))

    def _read_outcomes(self, beliefs: Sequence[GP]) -> dict[int, str]:
        """Return the kinds of binary and counted functions, checked."""
        kinds = {f: each.outcome for f, each in enumerate(beliefs) if each.outcome}
        if not kinds:
            return {}
        name = type(self).__name__
        if not self.abilities.outcomes:
            raise CBanditError(
                f"{name} takes no belief with outcome={kinds[min(kinds)]!r}: its rule "
                "is for Gaussian outcomes; cb.CKB, cb.RPOL, cb.GPUCB, cb.GPTS, "
                "cb.baselines.CONFIG and rules on cb.GPPolicy take it"
            )
        if self._timing.no_outcome:
            raise CBanditError(self._timing.no_outcome)
        limits = self._stated_limits(1)
        for f, kind in kinds.items():
            if f:
                self._check_outcome(f, kind, limits[:, f - 1], self.objective.budgets)
        return kinds

    def _check_outcome(
        self, f: int, kind: str, limit: Tensor, budgets: Mapping[int, Budget]
    ) -> None:
        """Raise unless the binary or counted function ``f`` can keep its limit."""
        limit = limit * self.objective.signs[f]
        binary = kind == BINARY
        inside = (limit > 0) & (limit < 1) if binary else limit > 0
        if not bool(inside.all()):
            what = "a probability between 0 and 1" if binary else "a rate above 0"
            pace = "'s Budget over its rounds" * (f - 1 in budgets)
            raise CBanditError(
                f"the threshold of {self._labels[f]}{pace} must be {what}, as its "
                f"belief has outcome={kind!r}; got {limit.tolist()}"
            )

    def _choose_exploration(
        self,
        explore: Explore | None,
        beliefs: Sequence[GP],
        feedback: object,
        box: bool,
    ) -> Explore:
        """Return the exploration: the user's, or the default where it is ``None``."""
        usual, cautious = self.abilities.explore, self.abilities.cautious
        by_default = all(belief.by_default for belief in beliefs)
        if cautious is None or isinstance(feedback, Delayed) or not by_default:
            return usual if explore is None else explore
        if isinstance(explore, TS) and explore.open:
            return explore.cautious(box)
        return cautious if explore is None else explore

    def _check_arguments(
        self,
        actions: Actions,
        explore: Explore,
        feedback: Delayed | Sliding | None,
    ) -> None:
        """Raise an error if the class does not take these arguments together."""
        explores, box = self.abilities.explores, self.abilities.boxes
        if not isinstance(explore, explores):
            kinds = " or ".join(f"cb.{each.__name__}(...)" for each in explores)
            raise CBanditError(f"explore must be {kinds}; got {checks.kind(explore)}")
        if isinstance(actions, Actions) and not (
            actions.finite or (box and actions.continuous)
        ):
            kinds = "a Finite set or a ProductGrid" + ", or a Box" * box
            raise CBanditError(
                f"{type(self).__name__} chooses from {kinds}; got {actions!r}"
            )
        if not isinstance(feedback, Delayed | Sliding | None):
            raise CBanditError(
                "feedback must be None, cb.Delayed(window) or cb.Sliding(window); got "
                f"{feedback!r}"
            )
        kind, negative = type(feedback).__name__, explore.widths.negative
        for name, what in (
            (kind, f"feedback=cb.{kind}(...)"),
            ("caution" if negative else "", "negative cost_beta"),
            ("caution" if bool(explore.margin.any()) else "", "margin of explore"),
        ):
            reason = self.abilities.refuses.get(name)
            if reason is not None:
                raise CBanditError(f"{type(self).__name__} takes no {what}: {reason}")
        if isinstance(feedback, Delayed) and negative:
            raise CBanditError(
                "cost_beta must not be negative with feedback=cb.Delayed(...), which "
                "widens the bounds by what has not arrived; got "
                f"cb.{explore!r}"
            )
        if isinstance(feedback, Delayed) and not isinstance(explore, UCB):
            raise CBanditError(
                "feedback=cb.Delayed(...) counts outstanding rounds itself: it goes "
                f"with explore=cb.UCB(...); got cb.{explore.name}"
            )

    def _check_limit(self, j: int, limit: Tensor, objective: Objective) -> None:
        begins = objective.budgets and not self.objective.budgets
        if begins and self._ranks is not distributed.ALONE:
            raise CBanditError(
                "a cb.Budget cannot begin while several processes share the set: give "
                "it in thresholds= when the policy is built"
            )
        kind = self._outcomes.get(1 + j)
        if kind is not None:
            self._check_outcome(1 + j, kind, limit, objective.budgets)

    def _processes(self) -> distributed.Ranks:
        """Return the processes that share the set, each holding one part."""
        return distributed.current() if self.abilities.shards else distributed.ALONE

    def _bound_widths(self, beliefs: Sequence[GP]) -> BoundWidths:
        """Return the widths of confidence bounds; warn if one is only a heuristic."""
        widths, costs = self._timing.adapt(self.explore.widths), len(beliefs) - 1
        bound = widths.bind(self.batch_shape, costs, self.device, graph=False)
        for part, which in bound.rkhs_parts():
            least = min(float(belief.noise.min()) for belief in beliefs[which])
            if part.rkhs.form == "small-lam" and least < SMALL_LAM_NOISE:
                warn(
                    "RKHS(form='small-lam') is a guarantee for a noise of 1 + 2/T; "
                    f"beside a noise of {least:g} it is a heuristic, which most runs "
                    "can leave. form='any-lam' holds for every noise",
                )
                break
        return bound

    def _read_clip(self, clip: Any, functions: int) -> Tensor:
        """Return ``clip`` as bounds of the functions' estimates, ``(T, F)``."""
        if functions == 1 and not isinstance(clip, tuple | list):
            clip = (clip, None)
        try:
            bound, cost_bound = clip
        except (TypeError, ValueError):
            raise CBanditError(f"clip must be a pair (B, G); got {clip!r}") from None
        b = self._per_trial("clip B", checks.positive("clip B", bound)).unsqueeze(-1)
        if functions == 1:
            return b
        g = self._cost_number("clip G", checks.positive("clip G", cost_bound))
        return torch.cat([b, g], -1)

    def _empty_beliefs(self, beliefs: list[GP]) -> Any:
        """Return beliefs without data."""
        samples, domain = self.explore.samples, self.actions.domain
        fresh = Beliefs.start(
            beliefs,
            domain,
            self.batch_shape,
            self.dtype,
            self.device,
            engine=self._engine,
            samples=samples,
            dictionary=Dictionary(
                self._oversampling, self.seed, self.trials, torch.ones(())
            ),
            apart=self._timing.adds_pending and beliefs[0].standardize,
            ranks=self._ranks,
            # probabilities and rates take their unit from their limits; others have
            # none
            limits=self._stated_limits(1)
            if any(gp.outcome for gp in beliefs)
            else None,
        )
        # a finite set of choices in a continuous context has exact draws
        if samples and not (domain.continuous and self.actions.finite):
            fresh.check_samples()
        return fresh

    # -- what a policy fills in --------------------------------------------------------

    def score(self, t: int, multiplier: Tensor) -> scores.Formed | Score:
        """Return what to maximise in round ``t``, given the multiplier ``(T, m)``.

        Return one of :mod:`cbandit.scores` with weights ``(T, m)``, which engines
        compute in one pass, or a function that returns ``(T, n)`` from estimates
        ``f (T, n)`` and ``g (T, m, n)``, thresholds subtracted. Such a function is
        called for a block of actions at a time.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define score() or acquire()"
        )

    def acquire(self, t: int, multiplier: Tensor, estimates: Estimates) -> Tensor:
        """Return what to maximise, ``(T, n)``, given means and deviations.

        A policy defines this in place of :meth:`score` if its rule needs means,
        deviations or the best value so far. The method is called for a block of actions
        at a time, so it must treat each action by itself; on a Box it must be
        differentiable in the points. Two values count as equal if they differ by less
        than 1e-10 of the greatest.

        Args:
            t: the round.
            multiplier: ``(T, m)``, or ``(T, 0)`` where there is none.
            estimates: the belief about these actions, see :class:`~cbandit.Estimates`.

        Example:
            Expected improvement where the limits are kept, by its probability:

            >>> import cbandit as cb, torch
            >>> class Improvement(cb.GPPolicy):
            ...     name = "EI"
            ...
            ...     def acquire(self, t, multiplier, e):
            ...         best = e.incumbent.unsqueeze(-1)
            ...         chance = e.chance(self.limits(t))
            ...         normal = torch.distributions.Normal(0.0, 1.0)
            ...         gap = (e.mean[:, 0] - best) / e.std[:, 0]
            ...         gain = gap * normal.cdf(gap) + normal.log_prob(gap).exp()
            ...         gain = torch.where(best.isinf(), 1.0, gain * e.std[:, 0])
            ...         return gain * chance

            >>> world = cb.problems.zhou_synthetic()
            >>> gp = cb.GP.default(world.actions)
            >>> policy = Improvement(world.actions, reward=gp, costs=gp)
            >>> run = cb.simulate(policy, world, 20)
        """
        raise NotImplementedError(f"{type(self).__name__} does not define acquire()")

    def move(
        self, t: int, multiplier: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Return the multiplier ``(T, m)`` after round ``t``; called between rounds.

        Args:
            t: the round that has ended.
            multiplier: the multiplier that the round used, ``(T, m)``.
            estimate: the estimates of reward and costs at the round's choice,
                ``(T, 1 + m)``, as the score used them, thresholds subtracted.
            arrived: for each ``tell`` of costs since the round before, by how much they
                exceed the thresholds, ``(T, m)``, negative below, 0 where nothing was
                told. There may be none or several between two rounds, so sum them,
                and add once what the round itself contributes.

        Estimates and excesses are in spreads where beliefs are standardised; an excess
        told before its cost has a unit arrives once it has one.

        When users call this method, it is differentiable in its arguments and in the
        policy's parameters. A policy keeps the multiplier without its autograd graph,
        which would grow with every round.
        """
        return multiplier

    # -- one round -------------------------------------------------------------------

    def decide(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return the action of greatest score, and the state after the round."""
        return self._pick(state, turn)

    def _pick(self, state: GPState, turn: Turn) -> tuple[Decision, GPState]:
        """Return a round's decision, and the state with the choice's estimates."""
        known_costs = self._known_costs(turn) if self.sees_costs else None
        look = self._make_look(state, turn)
        beliefs, samples = state.beliefs, self.explore.samples
        fresh = trials_without_data(beliefs, turn) if beliefs.by_default else None
        search = Search(samples, self.climbs, beliefs, look, turn, known_costs, fresh)
        best, infeasible = search.best()
        estimate = self._dual_estimate(beliefs, look, best, turn).double()
        decision = Decision(
            best.index,
            infeasible,
            x=best.x,
            keys=best.keys,
            score=best.value,
            estimate=best.estimate.double(),
            sure=True,
        )
        return decision, state._replace(estimate=estimate)

    def _dual_estimate(
        self, beliefs: Beliefs, look: Look, best: Best, turn: Turn
    ) -> Tensor:
        """Return the estimates ``(T, 1 + m)`` by which the multiplier moves."""
        return best.estimate

    def _open_round(self, state: GPState, turn: Turn) -> GPState:
        """Return the state at the start of a round, with the multiplier moved.

        In rounds of a design the multiplier does not move.
        """
        if not turn.by_rule:
            state = self._begin_epoch(state, turn)
            return state._replace(estimate=None, arrived=(), moved=None)
        if not self.abilities.by_score:
            return state
        state = state.in_units()
        multiplier = self._next_multiplier(state, turn.t, turn.restarted)
        state = self._begin_epoch(state._replace(multiplier=multiplier), turn)
        beliefs = state.beliefs
        if beliefs.fades:
            beliefs = beliefs.aged(turn.t)
        return state._replace(beliefs=beliefs, estimate=None, arrived=(), moved=None)

    def _begin_epoch(self, state: GPState, turn: Turn) -> GPState:
        """Return the state after a restart of the trials whose epoch begins now."""
        restarted = turn.restarted
        if restarted is None:
            return state
        if self.restart is None:  # each trial by itself
            epoch = torch.where(restarted.unsqueeze(-1), turn.t, state.epoch)
            beliefs = state.beliefs.forget(restarted.tolist())
            return state._replace(beliefs=beliefs, epoch=epoch)
        beliefs = state.beliefs.forget_all() if self.forget else state.beliefs
        return state._replace(beliefs=beliefs, epoch=turn.t, waiting=None)

    def _next_multiplier(
        self, state: GPState, t: int, restarted: Tensor | None
    ) -> Tensor:
        """Return the multiplier of round ``t``, moved by :meth:`move`.

        The state must come from :meth:`GPState.in_units`. In the trials that are
        ``restarted (T,)`` the multiplier is as at the start; ``None``: none is.
        """
        if state.moved is not None:
            return state.moved
        if state.estimate is None:
            return self._start
        if restarted is not None and self.restart is not None:
            return self._start
        before, arrived = state.multiplier, state.arrived
        ended = t - state.epoch if self.abilities.counts_epoch else t - 1
        name = f"{type(self).__name__}.move"
        with unchanged(name, before, state.estimate, *arrived):
            multiplier = self.move(ended, before, state.estimate, arrived)
        moved = check_multiplier(name, multiplier, before)
        if restarted is None:
            return moved
        return torch.where(restarted.unsqueeze(-1), self._start, moved)

    def _known_costs(self, turn: Turn) -> Tensor | Estimate:
        """Return this round's ``observed_costs`` less the thresholds, ``(T, m, N)``.

        On a box return a function of points ``(T, n, d)``.
        """
        name, limits = "observed_costs", turn.limits
        observed, batch, m = turn.observed_costs, self.batch_shape, self.m
        if turn.actions.continuous:
            if not callable(observed):
                raise CBanditError(
                    f"{name} must be a callable on a Box, x (*trials, n, d) -> "
                    f"(*trials, m, n); got {type(observed).__name__}"
                )

            def at(x: Tensor) -> Tensor:
                values: Tensor = observed(x if batch else x[0])
                return values.reshape(len(x), m, x.shape[1]) - limits.unsqueeze(-1)

            return at
        # check before moving: on the host, a check waits for no device
        costs = checks.finite(name, checks.tensor(name, observed))
        g, size = devices.put(costs, limits.device), self.actions.size
        if turn.actions is not self.actions.domain:
            size = turn.actions.size
        shape = tuple(g.shape)
        if m == 1 and shape == (*batch, size):
            g = g.reshape(self.size, 1, size)
        elif shape in ((*batch, m, size), (m, size)):
            g = g.expand(self.size, m, size)
        else:
            raise CBanditError(
                f"{name} must have shape (*trials, m, N) = {(*batch, m, size)}; got "
                f"{shape}"
            )
        if size < turn.actions.size:  # the turn's set is a grid of choices x contexts
            g = g.repeat_interleave(turn.actions.size // size, -1)
        return g - limits.unsqueeze(-1)

    def _make_look(self, state: GPState, turn: Turn) -> Look:
        """Return this round's :class:`Look`: its score, and how estimates are made."""
        t, phi = turn.t, state.multiplier
        score: Any
        if self._acquires:
            score = self._acquisition(state, turn)
        else:
            name, weights = f"{type(self).__name__}.score", (self.size, self.m)
            with unchanged(name, phi):
                score = self.score(t, phi)
            hint = START_HINT if self.m and not phi.shape[-1] else ""
            score = check_score(name, score, weights, hint)
        coefficient, units = self._coefficient(state, turn), state.beliefs.units()
        offset = self._offset(turn, units)
        if turn.margin is not None:
            raised = torch.nn.functional.pad(turn.margin, (1, 0))
            offset = raised if offset is None else offset + raised
        close = state.beliefs.tolerance(scores.of_costs(score))
        form, weight = score, None
        if isinstance(score, scores.Formed):
            form, weight = score.kind, score.weight
        mask, bound = turn.mask, self._bound
        look = Look(coefficient, offset, bound, form, weight, mask, tolerance=close)
        return self._convert_estimates(look, units)

    def _convert_estimates(self, look: Look, units: Units | None) -> Look:
        """Return the look, in which binary and counted functions have a link.

        The link turns their estimates into probabilities and rates.
        """
        return replace(look, link=partial(linked, units)) if self._outcomes else look

    def _acquisition(self, state: GPState, turn: Turn) -> AcquisitionScore:
        """Return this round's score as computed by the policy's :meth:`acquire`."""
        t, beliefs, units = turn.t, state.beliefs, state.beliefs.units()
        x, _, real = beliefs.tried(0)
        ahead = turn.pending
        if ahead:  # outstanding choices count as told at their means
            waits = devices.put([choice.waits[0] for choice in ahead], real.device)
            places = torch.stack([choice.x.double() for choice in ahead], 1)
            x, real = torch.cat([x, places], 1), torch.cat([real, waits.mT], 1)
        mean, _ = told(units, *beliefs.anywhere(x))
        limits = turn.limits[:, : mean.shape[1] - 1].unsqueeze(-1)
        good = real & (mean[:, 1:] <= limits).all(1)
        values = mean[:, 0].masked_fill(~good, -torch.inf)
        nothing = values.new_full((len(values), 1), -torch.inf)
        return AcquisitionScore(
            f"{type(self).__name__}.acquire",
            partial(self.acquire, t, state.multiplier),
            self.m if self._functions > 1 or self.sees_costs else 0,
            units,
            torch.cat([values, nothing], 1).amax(1),
        )

    def _offset(self, turn: Turn, units: Units | None) -> Tensor | None:
        """Return the offset of the round's estimates, ``(T, F)``; ``None``: 0.

        The offset is minus the thresholds, in units, plus an allowance for drift, which
        raises rewards and lowers costs.
        """
        limits, allowance = turn.limits, self._timing.allowance(turn.t)
        if units is not None:
            return self._compute_offset(limits, allowance, units)
        kept = self._kept_offset
        if kept is None or kept[0] is not limits or kept[1] is not allowance:
            offset = self._compute_offset(limits, allowance, None)
            self._kept_offset = kept = limits, allowance, offset
        return kept[2]

    def _compute_offset(
        self, limits: Tensor, allowance: Tensor | None, units: Units | None
    ) -> Tensor | None:
        """Compute :meth:`_offset`; ``allowance (T, F)`` is for drift, ``None``: 0."""
        out = None
        if allowance is not None:
            size = allowance.to(self.dtype)
            out = torch.cat([size[:, :1], -size[:, 1:]], -1)
        if self._functions > 1 and (self._limited or units is not None):
            limits = level(units, limits)
            tau = torch.cat([torch.zeros_like(limits[:, :1]), limits], -1)
            out = -tau if out is None else out - tau
        return out

    def _coefficient(self, state: GPState, turn: Turn) -> Tensor:
        """Return the factors of this round's spreads in estimates, ``(T, F)``."""
        widths, bound_count = self._widths_of(state), self._count_bounds(state)
        width = self._timing.width(
            turn.t, widths, bound_count, state.beliefs, state.held
        )
        return self.explore.coefficient(width, turn.streams)

    def _widths_of(self, state: GPState) -> BoundWidths:
        """Return the widths of confidence bounds; they may depend on the state."""
        return self._widths

    def _count_bounds(self, state: GPState) -> int:
        """Return how many bounds must hold together, ``c`` of the RKHS widths."""
        return self._timing.bound_count(state.beliefs.functions)

    def _moments(
        self, state: GPState, turn: Turn
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the first action, mean and spread ``(T, F, n)`` of each block."""
        streams = turn.streams if self.explore.samples else None
        blocks = round_blocks(state.beliefs, turn.actions, streams, turn.pending)
        return ((block.start, block.mean, block.spread) for block in blocks)

    def _round_actions(self, actions: Any) -> Actions:
        on, base = super()._round_actions(actions), self.actions
        if self.explore.samples:
            raise CBanditError(
                "ask(actions=...) needs explore=cb.UCB or cb.Rand on a GP policy; "
                "joint draws are kept over the policy's own set"
            )
        if not on.finite:
            raise CBanditError(
                "actions of this round must be points, a cb.Finite or a "
                f"cb.ProductGrid; got {on!r}"
            )
        if base.covariance is not None or on.covariance is not None:
            raise CBanditError(
                "ask(actions=...) needs coordinates; arms given by their covariance "
                "alone have none: use ask(among=...)"
            )
        if base.continuous:
            base.inside(on.block(0, on.size), "actions of this round")
        return on

    # -- feedback --------------------------------------------------------------------

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with the feedback of one choice in its beliefs."""
        if not (news.rewards or news.costs):
            return state
        arrived = state.arrived
        if self.abilities.told_costs and self._start.shape[-1]:
            for costs in news.costs if news.place.t > self.design else ():
                values, came = costs.in_columns(self.m)
                arrived = (*arrived, (values - news.limits) * came)
        beliefs, held = self._timing.absorb(state.beliefs, state.held, news)
        return state._replace(beliefs=beliefs, held=held, arrived=arrived, moved=None)

    def _add_pending(
        self, state: GPState, choice: Choice, place: Place, limits: Tensor
    ) -> GPState:
        if choice.idle is not None and state.estimate is not None:
            plays = ~choice.idle.reshape(-1, 1)  # an idle trial moves no multiplier
            state = state._replace(estimate=state.estimate * plays)
        return state.after(
            self._timing.add_pending(state.beliefs, state.held, place, limits)
        )

    def _after_absorbing(self, state: GPState, t: int) -> GPState:
        return state.after(self._timing.due(state.beliefs, state.held, t))

    def _compare_readings(self) -> None:
        """Compare new readings with the beliefs; warn if they contradict each other."""
        now, found = self._catch_up(), self._concerns.find(Contradictions)
        if found is not None:
            (slot, concern), states = found, now.concerns
            state = concern.look(states[slot], now.state.beliefs)
            ready = now._replace(concerns=with_state(states, slot, state))
            self._ready = self._now, ready
            self._warn_once(ready)

    @locked
    def status(self) -> Status:
        """Return how each limit was kept, open choices, fits and warnings."""
        self._compare_readings()
        return super().status()

    def _fit_if_due(self, state: GPState) -> GPState:
        if not self._refits:
            return state
        before, beliefs = state.beliefs, state.beliefs.refit(due_only=True)
        if beliefs is before:
            return state
        pairs = zip(before.groups, beliefs.groups, strict=False)
        fits = state.fits + any(old is not new for old, new in pairs)
        return state._replace(beliefs=beliefs, fits=fits)

    @locked
    def observe(
        self,
        history: pd.DataFrame | None = None,
        *,
        index: ArrayLike | None = None,
        x: ArrayLike | None = None,
        reward: Any = None,
        cost: Any = None,
        params: Any = None,
        exposure: Any = None,
        noise: Any = None,
    ) -> None:
        """Learn from ``n`` rows of earlier data; multipliers and history do not change.

        Args:
            history: a frame from :meth:`history` of a policy, or some of its rows, in
                place of all other arguments. Failed choices count as failed; rows
                without values are skipped.
            index: the actions' numbers, ``(n,)`` or ``(*trials, n)``.
            x: in place of ``index``, the actions' points, ``(n, d)`` or
                ``(*trials, n, d)``.
            params: in place of ``index``, the actions by name: ``n`` dicts, or with
                trials lists of dicts.
            reward: ``(n,)`` or ``(*trials, n)``.
            cost: ``(n, m)`` or ``(*trials, n, m)``; if m = 1 also ``(n,)`` or
                ``(*trials, n)``. Where a belief has ``outcome=``, a pair (see
                :meth:`tell`) is of two such arrays.
            exposure: what counts were taken over, a number, ``(n,)`` or
                ``(*trials, n)``.
            noise: the observations' own variances, ``(n,)`` or ``(*trials, n)``, for
                all functions, or by name, ``{"reward": (n,), "latency": (n,)}``, as in
                :meth:`tell`.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8))
            >>> old = cb.GPUCB(space, reward=cb.GP.default(space))
            >>> old.tell(old.ask(), reward=2.0)
            >>> new = cb.GPTS(space, reward=cb.GP.default(space))
            >>> new.observe(old.history())
        """
        given = index, x, reward, cost, params, exposure, noise
        if history is None:
            data = self._inbox().read_data(self.actions, *given)
        elif any(each is not None for each in given):
            raise CBanditError("observe takes a history, or data by keywords; not both")
        else:
            data = self._inbox().read_history(self.actions, history, self.trials)
        now = self._catch_up()
        beliefs = now.state.beliefs
        concerns, data = self._concerns.observe(now.concerns, data, beliefs)
        self._set_state(self._absorb_data(now.state, data), concerns)

    def _absorb_data(self, state: GPState, data: Data) -> GPState:
        """Return the state with earlier data in its beliefs."""
        # the data change units, on which the next multiplier may depend
        rows = [row for parts in data.rows() for row in join(parts)]
        beliefs = state.beliefs.absorb(rows)
        return state._replace(beliefs=beliefs, moved=None)

    # -- choices that come and go ------------------------------------------------------

    @locked
    def add(self, name: str, value: Any) -> None:
        """Add a value to a category of the set; it may be chosen from now on.

        The value gets the last position. The belief about it is the prior, given the
        feedback on other values. A retired value comes back with its own feedback. A
        new value of a context may be shown from now on.

        Args:
            name: the name of the parameter or the context.
            value: a string, a number, a boolean or ``None``.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(model=cb.Category("old", "small"))
            >>> policy = cb.GPUCB(space, reward=cb.GP.default(space))
            >>> policy.add("model", "new")
            >>> policy.retire("model", "old")
            >>> policy.actions.size
            3
            >>> policy.ask(among={"model": ["old", "new"]}).params
            {'model': 'new'}
        """
        position = self._find_category("add", name).place(plain(value))
        if position is not None:
            slot = self._concerns.slot(Retirements)
            retired = self._now.concerns[slot].values
            if (name, position) not in retired:
                raise CBanditError(f"add: {name} has the value {value!r} already")
            self._set_retired(retired - {(name, position)}, slot)
            return
        actions = with_value(self.actions, name, plain(value))
        actions = actions.to(self.device, self.dtype)
        now = self._catch_up()
        concerns = self._concerns.grow(now.concerns, actions)
        beliefs = now.state.beliefs.over(actions.domain)

        def renamed(choice: Choice) -> Choice:
            if choice.index is None or choice.actions is not None:
                return choice
            index = actions.index(choice.x)
            return replace(choice, index=index, keys=index.reshape(-1).tolist())

        self._ledger.replace_choices(renamed, self._place)
        self._set_state(now.state._replace(beliefs=beliefs), concerns)
        hooks = concerns_of(self._setup()._replace(actions=actions))
        vars(self).update(actions=actions, _concerns=hooks)

    @locked
    def retire(self, name: str, value: Any) -> None:
        """Stop choosing a value of a category, until it is added again.

        Feedback on the value still counts, and outstanding choices of it can be told.

        Args:
            name: the name of the parameter.
            value: one of its values.
        """
        category = self._find_category("retire", name)
        position = category.place(plain(value))
        if position is None:
            raise CBanditError(f"retire: {name} must be of {category!r}; got {value!r}")
        if name not in self.actions.menu.names.parameters:
            raise CBanditError(
                f"retire: {name} is a context, which is shown and not chosen"
            )
        slot = self._concerns.slot(Retirements)
        retired = self._now.concerns[slot].values
        self._set_retired(retired | {(name, position)}, slot)

    def _set_retired(self, values: frozenset[tuple[str, float]], slot: int) -> None:
        """Set which values of parameters are never chosen.

        ``values`` are pairs of a parameter's name and a value's position in it; the
        concern that keeps them has the number ``slot``.
        """
        menu, states = self.actions.menu, self._now.concerns
        retired = without_values(menu, values, self.batch_shape, self.device)
        concerns = with_state(states, slot, retired)
        self._now = self._now._replace(concerns=concerns)

    def _find_category(self, call: str, name: str) -> Category:
        """Return a category by its name, or raise an error that names ``call``."""
        if not self.abilities.categories:
            raise CBanditError(
                f"{type(self).__name__} has no {call}: it rests on a set that stays; "
                "CKB, RPOL, GPUCB, GPTS, SCGPUCB and CONFIG have it"
            )
        return category_of(self.actions, call, name)

    # -- what is believed --------------------------------------------------------------

    @property
    @locked
    def multiplier(self) -> Tensor:
        """The multiplier of the next ``ask``, ``(*trials, m)``, or an empty one."""
        now = self._catch_up()
        moved = now.state.moved
        if moved is None:
            coming = now.t + 1
            _, restarted = self._concerns.open_epoch(now.concerns, coming)
            moved = self._next_multiplier(now.state.in_units(), coming, restarted)
            self._ready = self._now, now._replace(state=now.state._replace(moved=moved))
        return self._user_shape(moved.clone())

    @property
    @locked
    def price(self) -> Tensor:
        """The multiplier in the user's units, ``(*trials, m)``.

        The price is the reward that a unit of cost is worth: the multiplier times the
        reward's unit, divided by the cost's. With ``dual="queue"``, divide it by ``V``
        as the score does. It is NaN where a standardised belief has no unit yet.
        """
        multiplier = self.multiplier.reshape(self.size, -1)
        return self._price_of(multiplier, self._catch_up().state.beliefs)

    def _price_of(self, multiplier: Tensor, beliefs: Beliefs) -> Tensor:
        """Return multipliers ``(T, m)`` as prices, ``(*trials, m)``, see :attr:`price`.

        A price is NaN where a belief has no unit and the multiplier is not 0.
        """
        units, m = beliefs.units(), multiplier.shape[-1]
        # beliefs about derived values are not in the units that users tell
        if units is not None and m and self.abilities.readings:
            ratio = units.ratio(m)
            multiplier = torch.where(multiplier == 0, 0.0, multiplier * ratio)
        return self._user_shape(multiplier)

    @property
    @locked
    def late(self) -> Tensor:
        """The number of values that came too late to count, ``(*trials,)``."""
        return self._user_shape(self._catch_up().state.held.too_late.clone())

    @property
    @locked
    def budget(self) -> dict[str, BudgetStatus]:
        """The state of each :class:`~cbandit.Budget`, by the name of its cost.

        ``policy.budget["usd"].left`` is ``(*trials,)``, as are ``total``, ``spent``,
        ``promised`` (to outstanding choices) and ``pace``, the limit of the next round;
        ``rounds`` is the number left. It is empty without budgets.
        """
        found = self._concerns.find(Budgets)
        if found is None:
            return {}
        (slot, budgets), now = found, self._catch_up()
        return budgets.statuses(now.concerns[slot], now.t, self._user_shape)

    def _place_for_beliefs(self, choice: Choice) -> Place:
        return self._place(choice)

    def _beliefs_in(self, state: GPState) -> Any:
        return state.beliefs

    @property
    def _beliefs(self) -> Any:
        """The current beliefs, without feedback that waits to be absorbed."""
        return self._now.state.beliefs

    @property
    @locked
    def engine(self) -> str:
        """The engines that compute the posterior, and the reason for each, in words."""
        return str(self._beliefs.describe())

    def _engine_texts(self) -> list[str]:
        return [f"engine={' and '.join(self._beliefs.engines())}"]

    @locked
    def posterior(
        self,
        x: ArrayLike | None = None,
        params: Any = None,
        context: Any = None,
        index: ArrayLike | None = None,
        joint: bool = False,
    ) -> Posterior:
        """Return means and standard deviations, of all actions or of some.

        They are in the user's units. Without data they are the prior's; that of a
        standardised belief, 0 +- 1, has no unit yet.

        Args:
            x: points, ``(n, d)`` or ``(*trials, n, d)``. A Box needs them, or
                ``params``.
            params: points by name; a dict is one point.
            context: on a set with contexts, the context of all choices, see
                :meth:`ask`; or that of the choices ``index``.
            index: actions by number, ``(n,)`` or ``(*trials, n)``.
            joint: whether to return covariances and draws as well, see
                :class:`~cbandit.Marginal`, for up to 4 096 points.

        Example:
            >>> import cbandit as cb, torch
            >>> grid = cb.ProductGrid([torch.linspace(0, 1, 50)])
            >>> policy = cb.GPUCB(grid, reward=cb.GP.default(grid))
            >>> policy.tell(policy.ask(), reward=1.0)
            >>> some = policy.posterior(index=[3, 4, 5], joint=True).reward
            >>> tuple(some.covariance.shape), tuple(some.sample(10).shape)
            ((3, 3), (10, 3))
        """
        checks.flag("joint", joint)
        now = self._catch_up()
        beliefs: Beliefs = now.state.beliefs
        points = self._read_some(x, params, context, index)
        if points is None and joint:
            check_count(int(self.actions.size))
            points = self.actions.domain.block(0, self.actions.size)
        if points is None:
            return self._make_posterior(*beliefs.posterior())
        if joint:
            check_count(points.shape[-2])
        found = self._make_posterior(*told(beliefs.units(), *beliefs.anywhere(points)))
        if not joint:
            return found
        mean, covariance = beliefs.jointly(points)
        mean, costs = self.objective.functions(mean), found.costs
        reward = replace(found.reward, joint=self._joint(mean, covariance, True))
        if costs is not None:
            costs = replace(costs, joint=self._joint(mean, covariance, False))
        return Posterior(reward, costs)

    def _joint(self, mean: Tensor, covariance: Tensor, reward: bool) -> Joint:
        """Return how points vary together, of the reward or of the costs.

        The means ``(T, F, n)`` and covariances ``(T, F, n, n)`` are of all functions.
        """
        some = slice(0, 1) if reward else slice(1, None)
        latent = [f in self._outcomes for f in range(mean.shape[1])][some]
        name = f"posterior {'reward' if reward else 'costs'} {self._now.t}"
        streams, batched = Streams(self.seed, self.trials, name), bool(self.batch_shape)
        of = mean[:, some], covariance[:, some], tuple(latent)
        return Joint(*of, streams, batched, single=reward)

    def _read_some(
        self, x: ArrayLike | None, params: Any, context: Any, index: ArrayLike | None
    ) -> Tensor | None:
        """Return the points ``(*trials, n, d)`` that a user asks for; ``None``: all."""
        actions, batch = self.actions, self.batch_shape
        if index is not None and (x is not None or params is not None):
            raise CBanditError("posterior takes one of x=, params= and index=")
        params = [params] if isinstance(params, Mapping) else params
        x = read_points(actions, x, params)
        if x is not None:
            if context is not None:
                raise CBanditError("posterior takes context=, or points that hold it")
            points = checks.finite("x", checks.tensor("x", x, self.dtype, self.device))
            return checks.rows("x", points, batch, (actions.dim,))
        if actions.continuous:
            raise CBanditError(
                "posterior needs points on a Box: posterior(x) with x of shape (n, d)"
            )
        shown = self._read_context(context)
        if index is None:
            return None if shown is None else shown.space.candidates(shown.values)
        numbers = checks.tensor("index", index, None)
        numbers = checks.rows("index", numbers.reshape(numbers.shape or (1,)), batch)
        actions.points(numbers)  # raises unless they are of the set
        points = actions.menu.at(numbers.to(self.device).long())
        return points if shown is None else shown.whole(points)

    @locked
    def recommend(
        self, confidence: float = 0.95, context: Any = None
    ) -> Recommendation:
        """Return what to deploy: the best action feasible with ``confidence``.

        On a set with contexts, return the best choice in ``context``, see :meth:`ask`.

        If the policy has no beliefs about its costs, or no data of a cost, return the
        action of greatest expected reward, not called feasible. Calling this before any
        trial was told a reward is an error, as all actions are alike by the prior;
        later, trials without a reward have NaN.
        """
        confidence = checks.share("confidence", confidence)
        self._compare_readings()
        beliefs = self._catch_up().state.beliefs
        if not bool(beliefs.has_data()[:, 0].any()):
            raise nothing_told()
        turn = self._unplayed_turn(self._read_context(context))
        streams = Streams(self.seed, self.trials, "recommend")
        linked = bool(self._outcomes)
        best = recommend_best(beliefs, self.actions, turn, confidence, streams, linked)
        return self.objective.recommended(best.of(self._user_shape))

    def _believe_at(self, x: Tensor) -> Posterior:
        return self.posterior(x)

    def _points_to_deploy(self, trial: int) -> Tensor | None:
        with contextlib.suppress(CBanditError):  # no data, or no context
            best = self.recommend()
            return best.x.reshape(self.size, 1, -1)[trial]
        return None

    def _explain_latest(self, turn: Turn) -> dict[str, Any]:
        """Return the beliefs at the latest choice, its estimates and its price."""
        if not self.abilities.by_score or self._timing.adds_pending:
            return {}
        state, outside = self._now.state, self._user_shape
        beliefs, entry = state.beliefs, self._ledger.latest(turn.t)
        x = entry.choice.x.reshape(self.size, -1).unsqueeze(1)
        moments = told(beliefs.units(), *beliefs.anywhere(x, turn.pending))
        mean, std = (each.expand_as(moments[0]) for each in moments)
        return {
            "mean": outside(self.objective.functions(mean)[..., 0]),
            "std": outside(std[..., 0]),
            "known": outside(beliefs.has_data()),
            "taken": self._estimate_for_user(entry.made),
            "drawn_from": entry.choice.distribution,
            "price": self._price_of(state.multiplier, beliefs),
        }

    def _estimate_for_user(self, made: DecisionRecord) -> Tensor | None:
        """Return the estimates stored in ``made``, in the user's units and signs."""
        estimate = made.estimate
        if estimate is None or estimate.shape[-1] != 1 + self.m:
            return None
        units, inside = self._now.state.beliefs.units(), estimate.cpu().clone()
        if units is not None:
            size, center = units.size.to(inside), units.center.to(inside)
            inside[:, :1] = inside[:, :1] * size[:, :1] + center[:, :1]
            if size.shape[1] == 1 + self.m:
                inside[:, 1:] = inside[:, 1:] * size[:, 1:]
        inside[:, 1:] += made.limits.to(inside)
        return self._user_shape(self.objective.turned(inside, range(1 + self.m)))

    @locked
    def refit(self) -> None:
        """Fit hyperparameters to all data now, by marginal likelihood."""
        state: GPState = self._catch_up().state
        beliefs, fits = state.beliefs.refit(), state.fits + 1
        self._set_state(state._replace(beliefs=beliefs, fits=fits))

    @property
    @locked
    def model(self) -> ModelListGP:
        """The beliefs as a BoTorch ``ModelListGP``, reward first: a snapshot.

        Its data are means over repeats, with the noise of means. Its predictions of
        observations (fantasies, ``observation_noise=True``) have the noise of a single
        observation. For a binary or counted function it models the latent function: the
        probability is ``Phi`` of it, the rate ``exp``. Its data are then the normal
        readings that stand for outcomes; its fantasies have noise 1.
        """
        from cbandit.posterior.botorch import model_list

        signs = self.objective.signs.tolist()
        return model_list(self._catch_up().state.beliefs, signs=signs)

    def lighten(self, actions: bool = True) -> None:
        """Drop large arrays before a checkpoint; they are recomputed when needed.

        If ``actions`` is false, all arrays over the set are dropped.
        """
        state, largest = self._now.state, MAX_SAVED_BYTES if actions else -1
        state.beliefs.lighten(largest)
        self._concerns.lighten(self._now.concerns, largest)
