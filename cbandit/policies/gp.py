"""Policies whose beliefs are Gaussian processes: a score and a multiplier's move.

Each round the multiplier moves, the best action is played, and beliefs take in news.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, distributed
from cbandit._core.arguments import stated
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore, Rand
from cbandit.policies import answers, shared, suits
from cbandit.policies.alone import alone
from cbandit.policies.believed import (
    Data,
    Posterior,
    data_rows,
    fresh_beliefs,
    posterior_at,
    recommended,
)
from cbandit.policies.censored import Awaited
from cbandit.policies.chosen import Search, seen_in_full, stretches
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.estimating import Estimating
from cbandit.policies.explained import Rivals, rivals
from cbandit.policies.feedback import timing
from cbandit.policies.ledger import News
from cbandit.policies.outliers import RECENT, bounded, bounded_rows, warn_of
from cbandit.policies.packing import Place, by_functions, place_of
from cbandit.policies.policy import Now, Policy
from cbandit.policies.pricing import measured, priced
from cbandit.policies.state import Arrivals, GPState
from cbandit.posterior.look import Best, Look, Score
from cbandit.posterior.observations import Ahead
from cbandit.recommend import Recommendation

if TYPE_CHECKING:
    from botorch.models.model_list_gp_regression import ModelListGP

__all__ = ["GPPolicy"]

LIGHT = 256 * 1024**2  # bytes of arrays above which a checkpoint holds history only


class GPPolicy(Policy):
    """Beliefs, exploration and search; a policy adds a score and a multiplier's move.

    Two methods make a policy: :meth:`score` says what to maximise, :meth:`move` how the
    multiplier moves between rounds. The rest comes with this class, on every set and
    engine, in batches of trials. Tensors lead with the trials, ``T`` of them, 1 where
    there is no trials axis. They are float64, but for ``f`` and ``g`` of a float32 set.
    Keep each argument of your own under its name (``self.step``): a run is resumed only
    by a policy in which these are the same.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or one a cost, also by name; ``[gp] * m`` for
            ``m`` alike. A number, or names: costs without a belief. ``None``: none.
        explore: how estimates come from beliefs: :class:`~cbandit.UCB` (``cb.UCB(1.0)``
            unless given), :class:`~cbandit.TS` or :class:`~cbandit.Rand`.
        start: the first multiplier, a number, ``(*trials,)`` or ``(1 or *trials, m)``;
            ``None``: there is none, and the score must do without.
        restart: how many rounds an epoch has, or ``"doubling"``: the multiplier is back
            at ``start`` in the first round of each. ``None``: one epoch.
        forget: whether the beliefs drop their data then too. Feedback of earlier rounds
            that is told later enters the new beliefs.
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

    explores: tuple[type, ...] = (UCB, TS, Rand)
    usual: Explore = UCB(1.0)  # what explore=None is
    hallucinates = False  # what pending=None is, where that goes
    #: "Delayed", "Sliding" or "hallucinate", where they do not go, and why
    takes_no: Mapping[str, str] = {}
    continuous = True  # whether it can choose from a Box
    piecemeal = True  # costs of one choice may come one by one
    splits = True  # whether ranks may share the set; else each keeps all of it
    hears_costs = True  # whether move looks at the costs told
    common = shared.GP_POLICY

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: Any,
        explore: Explore | None = None,
        start: Any = None,
        restart: int | str | None = None,
        forget: bool = False,
        observed_costs: bool = False,
        clip: Any = None,
        engine: str = "auto",
        feedback: Delayed | Sliding | None = None,
        pending: str | None = None,
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        beliefs, m = suits.functions(reward, costs)
        explore = self.usual if explore is None else explore
        patient = pending == "hallucinate"
        pending = suits.suited(self, actions, explore, feedback, pending)
        super().__init__(actions, m, **common)
        for j, belief in enumerate(beliefs):
            name = "reward" if j == 0 else f"costs[{j - 1}]"
            belief.suit(name, self.actions, self.batch_shape)
            beliefs[j] = self.senses.belief(j, belief)
        self.feedback, self.explore, self.pending = feedback, explore, pending
        rescaled = [belief.standardize for belief in beliefs]
        self.standardized = any(rescaled)
        self._rescaled = torch.tensor(rescaled).to(self.device)
        delayed = isinstance(feedback, Delayed)
        if delayed:
            self.no_noise = suits.NO_NOISE
        self.patient = delayed or patient
        self.learns_costs, self.sees_costs = not observed_costs, observed_costs
        self.restart = suits.epochs(restart)
        self.forget = checks.flag("forget", forget)
        if forget and restart is None:
            raise CBanditError("forget=True goes with restart=")
        self._estimating = Estimating(self, explore, beliefs, clip)
        self._timing = timing(feedback, self.batch_shape, self.device, self.horizon)
        self._engine, self._refits = engine, any(each.refit_every for each in beliefs)
        self._ranks = distributed.current() if self.splits else distributed.ALONE
        self._search = Search(self.actions, explore.samples, self._ranks)
        #: on a Box: how many climbs the searches made, and how many failed
        self.climbs = self._search.climbs
        wide = torch.zeros(self._size, 0, dtype=torch.float64, device=self.device)
        self._start = wide if start is None else self._number("start", start).clone()
        late = torch.zeros(self._size, dtype=torch.long, device=self.device)
        fresh = self._fresh_beliefs(beliefs)
        beyond = extent = None
        if self.standardized:
            shape = self._size, fresh.functions
            beyond = torch.zeros(RECENT, *shape, dtype=torch.int8, device=self.device)
            ends = torch.tensor([torch.inf, -torch.inf]).to(self.device)
            extent = ends.double()[:, None, None].repeat(1, *shape)
        held = Arrivals(late, beyond=beyond, extent=extent)
        self._begin(GPState(fresh, self._start, held))

    def _fresh_beliefs(self, beliefs: list[GP]) -> Any:
        """Return beliefs without data."""
        return fresh_beliefs(self, beliefs, self._engine)

    # -- what a policy fills in --------------------------------------------------------

    def score(self, t: int, multiplier: Tensor) -> scores.Formed | Score:
        """Return what to maximise in round ``t``, given the multiplier ``(T, m)``.

        One of :mod:`cbandit.scores`, which engines form in passing, weights being ``(T,
        m)``; or a function of estimates ``f (T, n)`` and ``g (T, m, n)``, thresholds
        subtracted, that returns ``(T, n)``: it sees a part of the actions at a time.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score()")

    def move(
        self, t: int, multiplier: Tensor, estimate: Tensor, arrived: Sequence[Tensor]
    ) -> Tensor:
        """Return the multiplier ``(T, m)`` after round ``t``; called between rounds.

        Args:
            t: the round that has ended.
            multiplier: what it used, ``(T, m)``.
            estimate: explored and clipped, thresholds subtracted, at its choice,
                ``(T, 1 + m)``: the reward's, then the costs'.
            arrived: a ``(T, m)`` for each ``tell`` of costs since the round before, by
                how much they exceed the thresholds, not rectified; 0 where it told
                nothing. None, or several, may come between two rounds: what a round
                adds by itself is added once, beside their sum.

        Estimates and excesses are in spreads where beliefs are standardised; an excess
        that has no unit yet comes once it has.
        """
        return multiplier

    # -- one round -------------------------------------------------------------------

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return the action of greatest score."""
        state = self._opened(state, asked)
        beliefs, ahead = state.beliefs, self._ahead(asked)
        beside = self._beside(asked) if self.sees_costs else None
        look = self._look(state, asked)
        fresh = self._fresh(beliefs, asked)
        best, infeasible = self._search.best(beliefs, look, asked, ahead, beside, fresh)
        judged = self._judged(beliefs, look, best, asked)
        estimate = judged.to(torch.float64, copy=True)  # a view would keep them all
        same = judged is best.estimate
        entered = estimate if same else best.estimate.to(torch.float64, copy=True)
        place = best.index, infeasible, None, best.x, best.keys
        decision = Decision(*place, best.value, entered, sure=True)
        return decision, state._replace(estimate=estimate)

    def _fresh(self, beliefs: Any, asked: Asked) -> Tensor | None:
        """Return the trials ``(T,)`` that begin in the middle; ``None``: none does.

        Nothing has been told of them, nor is anything outstanding: all actions of a
        belief by default are alike then, and the first in number is often a corner.
        """
        if not beliefs.by_default:
            return None
        fresh = ~beliefs.has_data().any(-1)
        for entry in asked.waiting:
            reward, cost = map(torch.tensor, entry.missing())
            fresh &= ~(reward | cost)
        return fresh if bool(fresh.any()) else None

    def _judged(self, beliefs: Any, look: Look, best: Best, asked: Asked) -> Tensor:
        """Return the estimates that the multiplier moves by, ``(T, 1 + m)``."""
        return best.estimate

    def _opened(self, state: GPState, asked: Asked) -> GPState:
        """Return the state that a round starts from: the multiplier has moved."""
        beliefs, multiplier = state.beliefs, self._next(state, asked.t)
        _, waiting = measured(beliefs, state.arrived, state.waiting)
        if self._epoch(asked.t) == asked.t:
            waiting = None
            beliefs = beliefs.forget_all() if self.forget else beliefs
        held, own = state.held, state.own
        return GPState(beliefs, multiplier, held, own=own, waiting=waiting)

    def _beside(self, asked: Asked) -> Any:
        """Return this round's costs less thresholds, which are seen in full."""
        seen, limits = asked.observed_costs, self._limits(asked.t)
        return seen_in_full(seen, asked.actions, limits, self.batch_shape)

    def _rivals(self, asked: Asked, position: Any) -> Rivals | None:
        own = type(self).decide is not GPPolicy.decide
        late = own or isinstance(self._timing, Awaited)
        return None if late else rivals(self, asked, position)

    def _next(self, state: GPState, t: int) -> Tensor:
        """Return the multiplier that round ``t`` uses."""
        if state.moved is not None:
            return state.moved
        if state.estimate is None or self._epoch(t) == t:
            return self._start
        return answers.moved(self, state, t - 1)

    def _epoch(self, t: int) -> int:
        """Return the first round of the epoch that round ``t`` is in."""
        return suits.first_round(self.restart, t)

    def _look(self, state: GPState, asked: Asked) -> Look:
        """Return which score of which estimates this round wants."""
        t, estimating = asked.t, self._estimating
        score, limits = answers.scored(self, t, state.multiplier), self._limits(t)
        coefficient, units = self._coefficient(state, asked), state.beliefs.units()
        offset, bound = estimating.offset(self, t, limits, units), estimating.bound
        estimates = coefficient, offset, bound
        close = state.beliefs.tolerance(scores.of_costs(score))
        if not isinstance(score, scores.Formed):
            return Look(*estimates, score, mask=asked.mask, tolerance=close)
        form = score.kind, score.weight
        return Look(*estimates, *form, asked.mask, tolerance=close)

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        """Return what this round's spread is multiplied by, ``(T, F)``."""
        widths, chances = self._estimating.widths, self._chances(state)
        both = state.beliefs, state.held
        width = self._timing.width(asked.t, widths, both, chances)
        return self.explore.coefficient(width, asked.streams)

    def _chances(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths: how many bounds hold together."""
        return self._timing.chances(state.beliefs.functions)

    def _ahead(self, asked: Asked) -> list[Ahead]:
        """Return outstanding choices, where they count."""
        if self.pending == "ignore":
            return []
        waiting, late = asked.waiting, self.feedback
        if isinstance(late, Sliding):
            waiting = [e for e in waiting if e.choice.t >= asked.t - late.window]
        return [Ahead(*place_of(self, e.choice)[:2], e.waits(self.m)) for e in waiting]

    def _looks(
        self, state: GPState, asked: Asked
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield ``(start, mean, spread)``, ``(T, F, n)`` each, over the round's set."""
        streams = asked.streams if self.explore.samples else None
        other = None if asked.actions is self.actions else asked.actions
        return stretches(state.beliefs, streams, self._ahead(asked), other)

    def _round_actions(self, actions: Any) -> Any:
        asked = super()._round_actions(actions)
        suits.round_points(self.actions, asked, self.explore.samples)
        return asked

    # -- feedback ----------------------------------------------------------------------

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with the news in its beliefs."""
        if self.sees_costs:
            news = news._replace(costs=())  # they are known already
        if not (news.rewards or news.costs):
            return state
        arrived, place = state.arrived, place_of(self, news.choice)
        news, held = self._bounded_news(state, news, place)
        if self.hears_costs and self._start.shape[-1]:
            limits = self._limits(place.t) if news.costs and self._limited else None
            for told in news.costs:
                over = told.excess(limits, self.m)
                if told.where is not None:
                    over = over * told.mask().unsqueeze(-1)
                arrived = (*arrived, over)
        both = state.beliefs, held
        beliefs, held = self._timing.absorb(both, news, place, self.t)
        _, phi, _, estimate, _, _, own, waiting = state
        return GPState(beliefs, phi, held, estimate, arrived, None, own, waiting)

    def _bounded_news(
        self, state: GPState, news: News, place: Place
    ) -> tuple[News, Arrivals]:
        """Return the news within the bounds of what is believed, and traces of it."""
        held, limited = state.held, []
        if held.beyond is None or held.extent is None:
            return news, held
        least, most = (list(each.unbind(-1)) for each in held.extent)
        recent, doubts = list(held.beyond.unbind(-1)), []
        x, noise, ends = place.x.unsqueeze(1), None, None
        for told, functions in by_functions(news):
            if ends is None or told.noise is not noise:
                noise = told.noise
                ends = state.beliefs.bounds(
                    x, noise, isinstance(self.feedback, Delayed)
                )
            low, high = (torch.stack([e[:, f, 0] for f in functions], -1) for e in ends)
            # what was taken as told once is not far outside what was seen
            low = low.minimum(torch.stack([least[f] for f in functions], -1))
            high = high.maximum(torch.stack([most[f] for f in functions], -1))
            before = torch.stack([recent[f] for f in functions], -1)
            came = told.mask().unsqueeze(-1)
            values, beyond, after = bounded(told.values, came, (low, high), before)
            for k, f in enumerate(functions):
                recent[f], here = after[..., k], came.expand_as(values)[:, k]
                value = values[:, k].double()
                least[f] = torch.where(here, value.minimum(least[f]), least[f])
                most[f] = torch.where(here, value.maximum(most[f]), most[f])
            doubts.append((functions, told.values, beyond, (low, high)))
            limited.append(told._replace(values=values))
        # the device is waited for once, whatever was told
        if doubts and bool(torch.cat([beyond for _, _, beyond, _ in doubts], -1).any()):
            for doubt in doubts:
                warn_of(self.senses, f"round {place.t}", *doubt)
        count = len(news.rewards)
        news = news._replace(rewards=limited[:count], costs=limited[count:])
        extent = torch.stack([torch.stack(least, -1), torch.stack(most, -1)])
        return news, held._replace(beyond=torch.stack(recent, -1), extent=extent)

    def _stood(self, state: GPState, choice: Choice) -> GPState:
        if not isinstance(self._timing, Awaited):
            return state
        both, limits = (state.beliefs, state.held), self._limits(choice.t)
        beliefs, held = self._timing.stood(both, place_of(self, choice), limits)
        return state._replace(beliefs=beliefs, held=held)

    def _due(self, state: GPState) -> GPState:
        beliefs, held = self._timing.due((state.beliefs, state.held), self.t)
        if self._refits:
            beliefs = beliefs.refit(due_only=True)
        if beliefs is state.beliefs and held is state.held:
            return state
        return state._replace(beliefs=beliefs, held=held)

    @alone
    def observe(
        self,
        *,
        index: Any = None,
        x: Any = None,
        reward: Any = None,
        cost: Any = None,
        params: Any = None,
    ) -> None:
        """Learn from ``n`` rows of data from before; multipliers, history do not move.

        Args:
            index: the actions' numbers, ``(n,)`` or ``(*trials, n)``.
            x: or the actions themselves, ``(n, d)`` or ``(*trials, n, d)``.
            params: or these by name, ``n`` dicts, or with trials lists of them.
            reward: ``(n,)`` or ``(*trials, n)``.
            cost: ``(n, m)`` or ``(*trials, n, m)``; ``(n,)``, ``(*trials, n)`` if m =
                1.
        """
        data = data_rows(self, index, x, reward, cost, params)
        self._change(self._observed(self._settled().state, data))

    def _observed(self, state: GPState, data: Data) -> GPState:
        """Return the state with data from before in its beliefs."""
        if state.held.beyond is not None:
            data = self._bounded_data(state, data)
        # units have changed, and the next multiplier may rest on them
        return state._replace(beliefs=state.beliefs.observe(data.rows()), moved=None)

    def _bounded_data(self, state: GPState, data: Data) -> Data:
        """Return data from before within bounds, where beliefs are standardised."""
        parts = []
        rough = isinstance(self.feedback, Delayed)
        ends = state.beliefs.bounds(data.places, None, rough)
        for functions, told in data.parts:
            told = told.to(self.device).expand(len(data.places), -1, -1)
            own = [each[:, functions].mT for each in ends]
            rescaled = self._rescaled[functions]
            values, beyond, bounds = bounded_rows(told, rescaled, own[0], own[1])
            for row in beyond.any(-1).any(0).nonzero().flatten().tolist():
                low, high = (each[:, row] for each in bounds)
                what = f"row {row} of the data from before"
                at = told[:, row], beyond[:, row], (low, high)
                warn_of(self.senses, what, functions, *at)
            parts.append((functions, values))
        return replace(data, parts=parts)

    # -- what is believed --------------------------------------------------------------

    @property
    @alone
    def multiplier(self) -> Tensor:
        """As the next ``ask`` will use it, ``(*trials, m)``; empty: there is none."""
        now = self._settled()
        moved = now.state.moved
        if moved is None:
            moved = self._next(now.state, now.t + 1)
            state = now.state._replace(moved=moved)
            self._now = Now(now.t, state, now.position, now.heard, now.settled)
        return self._outside(moved.clone())

    @property
    @alone
    def price(self) -> Tensor:
        """The multiplier in the user's units, ``(*trials, m)``.

        What reward a unit of cost is worth: the multiplier times the reward's unit
        over the cost's. A queue's is to be divided by ``V``, as in the score. NaN where
        a standardised belief has no unit yet.
        """
        phi = self.multiplier.reshape(self._size, -1)
        return self._outside(priced(self._settled().state.beliefs, phi))

    @property
    @alone
    def late(self) -> Tensor:
        """How many values came too late to count, ``(*trials,)``."""
        return self._outside(self._settled().state.held.late.clone())

    @property
    def _beliefs(self) -> Any:
        """The beliefs as they are now, without what waits to be absorbed."""
        return self._now.state.beliefs

    @property
    @alone
    def engine(self) -> str:
        """Which engines keep the posterior, and why."""
        return str(self._beliefs.describe())

    def _engines(self) -> list[str]:
        return [f"engine={' and '.join(self._beliefs.engines())}"]

    @alone
    def posterior(self, x: Any = None, params: Any = None) -> Posterior:
        """Return means and standard deviations over the set, in the user's units.

        Before data it is the prior; that of a standardised belief, 0 +- 1, is in no
        unit yet. A dense solve gives it at points ``x``, ``(n, d)`` or ``(*trials, n,
        d)``, or at ``params``, these by name; on a Box there is no other way.
        """
        return posterior_at(self, self._settled().state.beliefs, x, params)

    @alone
    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Return what to deploy: the best action feasible with ``confidence``.

        Of a policy without beliefs about its costs, or without data of one, the action
        of greatest expected reward, nowhere called feasible. An error before any trial
        was told a reward: the prior holds all actions alike. Trials that were told none
        have NaN then.
        """
        found = recommended(self, self._settled().state.beliefs, confidence)
        return self.senses.recommended(found.of(self._outside))

    @alone
    def refit(self) -> None:
        """Fit hyperparameters to all data now, by marginal likelihood."""
        state: GPState = self._settled().state
        self._change(state._replace(beliefs=state.beliefs.refit()))

    @property
    @alone
    def model(self) -> ModelListGP:
        """The beliefs as a BoTorch ``ModelListGP``, reward first: a snapshot.

        Its data are means over repeats, with the noise of means; what it is to observe
        (fantasies, ``observation_noise=True``) has the noise of one observation.
        """
        from cbandit.posterior.botorch import model_list

        signs = self.senses.signs.tolist()
        return model_list(self._settled().state.beliefs, signs=signs)

    def lighten(self) -> None:
        """Before a checkpoint: large arrays are computed afresh instead of saved."""
        self._settled().state.beliefs.lighten(LIGHT)
