"""Policies whose beliefs are Gaussian processes: a score and a multiplier's move.

Each round: the multiplier moves, estimates come from the beliefs, the action of
greatest score is played, and what is told of it enters the beliefs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cbandit import scores
from cbandit._core import checks, distributed
from cbandit._core.arguments import stated
from cbandit._core.randomness import Streams
from cbandit.actions import Box, Finite, Star
from cbandit.beliefs.feedback import Delayed, Sliding
from cbandit.beliefs.gp import GP
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.explore import TS, UCB, Explore, Rand
from cbandit.policies import chosen, shared
from cbandit.policies.believed import (
    Data,
    Marginal,
    Posterior,
    data_rows,
    posterior_of,
    recommended,
)
from cbandit.policies.decision import Asked, Decision
from cbandit.policies.feedback import Arrivals, Awaited, Place, timing
from cbandit.policies.given import listed
from cbandit.policies.ledger import News
from cbandit.policies.policy import COST_COUNT, Policy
from cbandit.posterior.beliefs import Ahead, Beliefs
from cbandit.posterior.look import Look
from cbandit.recommend import Recommendation
from cbandit.search.box import Climbs

if TYPE_CHECKING:
    from botorch.models.model_list_gp_regression import ModelListGP

__all__ = ["GPPolicy", "GPState", "Marginal", "Posterior"]

LIGHT = 256 * 1024**2  # bytes of arrays above which a checkpoint holds history only


class GPState(NamedTuple):
    """What a GP policy keeps from round to round.

    Args:
        beliefs: about the reward and the costs.
        multiplier: what the last ``ask`` used, ``(T, m)``; at first what it will use.
        held: what feedback left behind beside the beliefs.
        estimate: of reward and costs where the last round chose, ``(T, 1 + m)``.
        arrived: by how much costs told since were above their thresholds, ``(T, m)``
            each, 0 in trials where nothing came.
        moved: the multiplier of the next ``ask``, where it is known already.
        own: what a policy keeps for itself.
    """

    beliefs: Any
    multiplier: Tensor
    held: Arrivals
    estimate: Tensor | None = None
    arrived: tuple[Tensor, ...] = ()
    moved: Tensor | None = None
    own: Any = None


class GPPolicy(Policy):
    """Beliefs, exploration and search; a policy adds its score and its multiplier.

    Args:
        actions: what can be chosen.
        reward: the belief about the reward.
        costs: the belief about the cost, or one a cost; ``[gp] * m`` for ``m`` alike. A
            number ``m``: so many costs without a belief. ``None``: none.
        explore: how estimates come from beliefs: :class:`~cbandit.UCB`,
            :class:`~cbandit.TS` or :class:`~cbandit.Rand`.
        start: the first multiplier, a number, ``(*trials,)`` or ``(*trials, m)``;
            ``None``: there is none.
        restart: how many rounds an epoch has, or ``"doubling"``: the multiplier is back
            at ``start`` in the first round of each; ``None``: one epoch.
        forget: whether the beliefs drop their data then, too.
        observed_costs: whether each round's costs are seen in full before choosing.
        clip: ``(B, G)``: estimates are kept within ``[-B, B]`` and, thresholds
            subtracted, ``[-G, G]``.
        engine: ``"auto"``, ``"joint"``, ``"factor"``, ``"product"`` or ``"stream"``.
        feedback: ``None``, :class:`~cbandit.Delayed` or :class:`~cbandit.Sliding`.
        pending: ``"ignore"`` outstanding choices, or ``"hallucinate"``: count their
            variance and keep their mean.
        common: see below.
    """

    explores: tuple[type, ...] = (UCB, TS, Rand)
    continuous = True  # whether it can choose from a Box
    splits = True  # whether ranks may share the set; else each keeps all of it
    common = shared.GP_POLICY

    def __init__(
        self,
        actions: Any,
        *,
        reward: GP,
        costs: GP | Sequence[GP] | int | None,
        explore: Explore,
        start: Any = None,
        restart: int | str | None = None,
        forget: bool = False,
        observed_costs: bool = False,
        clip: Any = None,
        engine: str = "auto",
        feedback: Delayed | Sliding | None = None,
        pending: str = "ignore",
        **common: Any,
    ) -> None:
        self.settings = stated(self, locals())
        beliefs, m = _functions(reward, costs)
        self._suit(actions, explore, feedback, pending)
        super().__init__(actions, m, **common)
        for j, belief in enumerate(beliefs):
            name = "reward" if j == 0 else f"costs[{j - 1}]"
            belief.suit(name, self.actions, self.batch_shape)
        self.feedback, self.explore, self.pending = feedback, explore, pending
        if isinstance(feedback, Delayed):
            self.no_noise = (
                "noise= cannot go with feedback=cb.Delayed(...): a choice weighs in "
                "when it is made, before its own variance is known"
            )
        self.patient = isinstance(feedback, Delayed) or pending == "hallucinate"
        self.learns_costs, self.sees_costs = not observed_costs, observed_costs
        self.restart = _epochs(restart)
        self.forget = checks.flag("forget", forget)
        if forget and restart is None:
            raise CBanditError("forget=True goes with restart=")
        self._widths = explore.widths.bind(
            self.batch_shape, len(beliefs) - 1, self.device
        )
        self._bound = None if clip is None else self._clip(clip)
        varies = callable(self._thresholds) or callable(getattr(feedback, "drift", 0))
        self._fixed_off = None if varies else self._off(1)
        self._varies = varies
        self._timing = timing(feedback, self.batch_shape, self.device, self.horizon)
        self._engine = engine
        self._ranks = distributed.current() if self.splits else distributed.ALONE
        #: on a Box: how many climbs the searches made, and how many failed
        self.climbs = Climbs()
        wide = torch.zeros(self._size, 0, dtype=torch.float64, device=self.device)
        self._start = wide if start is None else self._number("start", start).clone()
        late = torch.zeros(self._size, dtype=torch.long, device=self.device)
        fresh = self._fresh_beliefs(beliefs)
        self._begin(GPState(fresh, self._start, Arrivals(late)))

    def _suit(
        self, actions: Any, explore: Explore, feedback: Any, pending: Any
    ) -> None:
        """Raise an error unless these go together."""
        if not isinstance(explore, self.explores):
            kinds = " or ".join(f"cb.{each.__name__}(...)" for each in self.explores)
            raise CBanditError(f"explore must be {kinds}; got {checks.kind(explore)}")
        if isinstance(actions, Star) or (
            isinstance(actions, Box) and not self.continuous
        ):
            kinds = "a Finite set or a ProductGrid" + ", or a Box" * self.continuous
            raise CBanditError(
                f"{type(self).__name__} chooses from {kinds}; got {actions!r}"
            )
        checks.one_of("pending", pending, "ignore", "hallucinate")
        if pending == "hallucinate" and not isinstance(explore, UCB):
            raise CBanditError(
                "pending='hallucinate' goes with explore=cb.UCB(...): draws already "
                f"spread choices apart; got cb.{explore.name}"
            )
        if not isinstance(feedback, Delayed | Sliding | None):
            raise CBanditError(
                "feedback must be None, cb.Delayed(window) or cb.Sliding(window); got "
                f"{feedback!r}"
            )
        if isinstance(feedback, Delayed) and (
            pending == "hallucinate" or not isinstance(explore, UCB)
        ):
            raise CBanditError(
                "feedback=cb.Delayed(...) counts outstanding rounds itself: it goes "
                f"with explore=cb.UCB(...) and pending='ignore'; got cb.{explore.name} "
                f"and pending={pending!r}"
            )

    def _fresh_beliefs(self, beliefs: list[GP]) -> Any:
        """Return beliefs without data."""
        apart = isinstance(self.feedback, Delayed) and beliefs[0].standardize
        fresh = Beliefs(
            beliefs,
            self.actions,
            self.batch_shape,
            self.dtype,
            self.device,
            self._engine,
            self.explore.samples,
            apart,
            self._ranks,
        )
        if self.explore.samples:
            fresh.check_samples()
        return fresh

    def _clip(self, clip: Any) -> Tensor:
        """Return ``(B, G_1, ...)``, ``(T, F)``."""
        if self._widths.functions == 1 and not isinstance(clip, tuple | list):
            bound = self._per_trial("clip B", checks.positive("clip B", clip))
            return bound.unsqueeze(-1)
        try:
            bound, cost_bound = clip
        except (TypeError, ValueError):
            raise CBanditError(f"clip must be a pair (B, G); got {clip!r}") from None
        b = self._per_trial("clip B", checks.positive("clip B", bound))
        if self._widths.functions == 1:
            return b.unsqueeze(-1)
        g = self._number("clip G", checks.positive("clip G", cost_bound))
        return torch.cat([b.unsqueeze(-1), g], -1)

    # -- what a policy fills in --------------------------------------------------------

    def score(
        self, t: int, multiplier: Tensor
    ) -> scores.Formed | Callable[[Tensor, Tensor], Tensor]:
        """Return what to maximise in round ``t``, given the multiplier ``(T, m)``.

        One of :mod:`cbandit.scores`, which engines form in passing, or a function of
        estimates ``f (T, n)`` and ``g (T, m, n)``, thresholds subtracted, that returns
        ``(T, n)``.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score")

    def move(
        self,
        t: int,
        multiplier: Tensor,
        estimate: Tensor,
        arrived: Sequence[Tensor],
    ) -> Tensor:
        """Return the multiplier ``(T, m)`` after round ``t``; called between rounds.

        Args:
            t: the round that has ended.
            multiplier: what it used, ``(T, m)``.
            estimate: of reward and costs where it chose, ``(T, 1 + m)``.
            arrived: by how much costs were above their thresholds, one ``(T, m)`` for
                everything told since the round before; 0 in trials where nothing came.
        """
        return multiplier

    # -- one round -------------------------------------------------------------------

    def decide(self, state: GPState, asked: Asked) -> tuple[Decision, GPState]:
        """Return the action of greatest score."""
        state = self._opened(state, asked)
        limits, beside = self._limits(asked.t), None  # type: Tensor, Any
        if self.sees_costs:
            seen, batch = asked.observed_costs, self.batch_shape
            beside = chosen.seen_in_full(seen, asked.actions, limits, batch)
        look = self._look(state, asked)
        beliefs, ranks, ahead = state.beliefs, self._ranks, self._ahead(asked)
        draws = asked.streams if self.explore.samples else None
        if isinstance(asked.actions, Box):
            best, infeasible = chosen.best_point(
                asked.actions,
                beliefs,
                look,
                draws,
                ahead,
                beside,
                asked.streams,
                self.climbs,
            )
        else:
            other = None if asked.actions is self.actions else asked.actions
            look = look if beside is None else replace(look, beside=beside)
            best, infeasible = chosen.best_action(
                beliefs, look, draws, ahead, other, ranks
            )
        estimate = torch.cat([best.f.unsqueeze(-1), best.g], -1).double()
        decision = Decision(best.index, infeasible, x=best.x, keys=best.keys, sure=True)
        multiplier, held, own = state.multiplier, state.held, state.own
        return decision, GPState(beliefs, multiplier, held, estimate, (), None, own)

    def _opened(self, state: GPState, asked: Asked) -> GPState:
        """Return the state that a round starts from: the multiplier has moved."""
        beliefs, multiplier = state.beliefs, self._next(state, asked.t)
        if self.forget and self._epoch(asked.t) == asked.t:
            beliefs = beliefs.forget_all()
        return GPState(beliefs, multiplier, state.held, own=state.own)

    def _next(self, state: GPState, t: int) -> Tensor:
        """Return the multiplier that round ``t`` uses."""
        if state.moved is not None:
            return state.moved
        if state.estimate is None or self._epoch(t) == t:
            return self._start
        return self.move(t - 1, state.multiplier, state.estimate, state.arrived)

    def _epoch(self, t: int) -> int:
        """Return the first round of the epoch that round ``t`` is in."""
        if self.restart is None:
            return 1
        if self.restart == "doubling":  # epoch i is rounds 2^i .. 2^(i+1) - 1
            return 1 << (t.bit_length() - 1)
        return t - (t - 1) % int(self.restart)

    def _look(self, state: GPState, asked: Asked) -> Look:
        """Return which score of which estimates this round wants."""
        t, score = asked.t, self.score(asked.t, state.multiplier)
        off = self._off(t) if self._varies else self._fixed_off
        coefficient = self._coefficient(state, asked)
        bound, mask = self._bound, asked.mask
        if isinstance(score, scores.Formed):
            return Look(coefficient, off, bound, score.kind, score.weight, mask)
        return Look(coefficient, off, bound, score, None, mask)

    def _next_look(self) -> tuple[Any, Look]:
        """Return the beliefs and the look of the next round, which is not begun."""
        now, ledger = self._settled(), self._ledger
        asked = Asked(now.t + 1, self.actions, None, None, self._streams, ledger)
        state = self._opened(now.state, asked)
        return state.beliefs, self._look(state, asked)

    def _off(self, t: int) -> Tensor | None:
        """Return what is added to estimates: minus thresholds, and for drift."""
        drift = getattr(self.feedback, "drift", None)
        functions, out = self._widths.functions, None
        if drift is not None:
            value = drift(t) if callable(drift) else drift
            size = self._per_trial("drift", checks.nonnegative("drift", value))
            signs = torch.ones(1, functions, dtype=self.dtype, device=self.device)
            signs[:, 1:] = -1
            out = size.to(self.dtype).unsqueeze(-1) * signs
        if self._limited and functions > 1:
            limits = self._limits(t)
            tau = torch.cat([torch.zeros_like(limits[:, :1]), limits], -1)
            out = -tau if out is None else out - tau
        return out

    def _coefficient(self, state: GPState, asked: Asked) -> Tensor:
        """Return what this round's spread is multiplied by, ``(T, F)``."""
        beliefs, width = state.beliefs, self._widths.fixed
        if width is None:
            gains, noises = beliefs.gains(), beliefs.noises
            width = self._widths(asked.t, gains, noises, self._chances(state))
        if isinstance(self._timing, Awaited):
            recent = state.held.recent
            width = self._timing.widened(width, self._widths, beliefs, recent)
        return self.explore.coefficient(width, asked.streams)

    def _chances(self, state: GPState) -> int:
        """Return ``c`` of the RKHS widths: functions, or with a window rounds too."""
        functions: int = state.beliefs.functions
        if isinstance(self.feedback, Sliding) and self.horizon is not None:
            return functions * self.horizon
        return functions

    def _ahead(self, asked: Asked) -> list[Ahead]:
        """Return outstanding choices, where they count."""
        if self.pending == "ignore":
            return []
        return [
            Ahead(*self._place(entry.choice)[:2], *entry.missing())
            for entry in asked.waiting
        ]

    def _looks(
        self, state: GPState, asked: Asked
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield ``(start, mean, spread)``, ``(T, F, n)`` each, over the round's set."""
        streams = asked.streams if self.explore.samples else None
        other = None if asked.actions is self.actions else asked.actions
        return chosen.stretches(state.beliefs, streams, self._ahead(asked), other)

    def _round_actions(self, actions: Any) -> Any:
        if self.explore.samples:
            raise CBanditError(
                "ask(actions=...) needs explore=cb.UCB or cb.Rand on a GP policy; "
                "joint draws are kept over the policy's own set"
            )
        asked = super()._round_actions(actions)
        if isinstance(asked, Box | Star):
            raise CBanditError(
                "actions of this round must be points, a cb.Finite or a "
                f"cb.ProductGrid; got {asked!r}"
            )
        for each in (self.actions, asked):
            if isinstance(each, Finite) and each.covariance is not None:
                raise CBanditError(
                    "ask(actions=...) needs coordinates; arms given by their "
                    "covariance alone have none: use ask(among=...)"
                )
        if isinstance(self.actions, Box):
            self.actions.inside(asked.block(0, asked.size), "actions of this round")
        return asked

    # -- feedback ----------------------------------------------------------------------

    def absorb(self, state: GPState, news: News) -> GPState:
        """Return the state with the news in its beliefs."""
        if self.sees_costs:
            news = news._replace(costs=())  # they are known already
        if not (news.rewards or news.costs):
            return state
        arrived, place = state.arrived, self._place(news.choice)
        if self._start.shape[-1]:
            limits = self._limits(place.t) if news.costs and self._limited else None
            for told in news.costs:
                over = told.values if limits is None else told.values - limits
                if told.where is not None:
                    over = over * told.mask().unsqueeze(-1)
                arrived = (*arrived, over)
        both = state.beliefs, state.held
        beliefs, held = self._timing.absorb(both, news, place, self.t)
        multiplier, estimate, own = state.multiplier, state.estimate, state.own
        return GPState(beliefs, multiplier, held, estimate, arrived, None, own)

    def _stood(self, state: GPState, choice: Choice) -> GPState:
        if not isinstance(self._timing, Awaited):
            return state
        both, limits = (state.beliefs, state.held), self._limits(choice.t)
        beliefs, held = self._timing.stood(both, self._place(choice), limits)
        return state._replace(beliefs=beliefs, held=held)

    def _due(self, state: GPState) -> GPState:
        beliefs, held = self._timing.due((state.beliefs, state.held), self.t)
        beliefs = beliefs.refit(due_only=True)
        if beliefs is state.beliefs and held is state.held:
            return state
        return state._replace(beliefs=beliefs, held=held)

    def _place(self, choice: Choice) -> Place:
        """Return what the history calls the actions chosen, and where they are."""
        x = choice.x.reshape(self._size, -1)
        if choice.actions is None and choice.keys is not None:
            return Place(choice.keys, x, choice.t)
        if choice.actions is None and choice.index is not None:
            index = choice.index.tolist()
            return Place(index if isinstance(index, list) else [index], x, choice.t)
        if not isinstance(self.actions, Box):
            try:
                return Place(self.actions.index(x).tolist(), x, choice.t)
            except CBanditError:
                pass
        return Place([tuple(row) for row in x.tolist()], x, choice.t)

    def observe(
        self, *, index: Any = None, x: Any = None, reward: Any = None, cost: Any = None
    ) -> None:
        """Learn from ``n`` rows of data from before; multipliers do not move.

        Args:
            index: the actions' numbers, ``(n,)`` or ``(*trials, n)``.
            x: or the actions themselves, ``(n, d)`` or ``(*trials, n, d)``.
            reward: ``(n,)`` or ``(*trials, n)``.
            cost: ``(n, m)`` or ``(*trials, n, m)``; ``(n,)``, ``(*trials, n)`` if m =
                1.
        """
        data = data_rows(self, index, x, reward, cost)
        self._change(self._observed(self._settled().state, data))

    def _observed(self, state: GPState, data: Data) -> GPState:
        """Return the state with data from before in its beliefs."""
        return state._replace(beliefs=state.beliefs.observe(data.rows()))

    # -- what is believed --------------------------------------------------------------

    @property
    def multiplier(self) -> Tensor:
        """As the next ``ask`` will use it, ``(*trials, m)``; empty: there is none."""
        state: GPState = self._settled().state
        if state.moved is None:
            state = state._replace(moved=self._next(state, self.t + 1))
            self._change(state)
        moved = self._start if state.moved is None else state.moved
        return self._outside(moved.clone())

    @property
    def late(self) -> Tensor:
        """How many values came too late to count, ``(*trials,)``."""
        return self._outside(self._settled().state.held.late.clone())

    @property
    def _beliefs(self) -> Any:
        """The beliefs as they are now, without what waits to be absorbed."""
        return self._now.state.beliefs

    @property
    def engine(self) -> str:
        """Which engines keep the posterior, and why."""
        described: str = self._beliefs.describe()
        return described

    def _engines(self) -> list[str]:
        return [f"engine={' and '.join(self._beliefs.engines())}"]

    def posterior(self, x: Any = None) -> Posterior:
        """Return means and standard deviations over the set, in the user's units.

        Or, by a dense solve, at points ``x``, ``(n, d)`` or ``(*trials, n, d)``; on a
        Box there is no other way.
        """
        beliefs = self._settled().state.beliefs
        if x is not None:
            points = checks.finite("x", checks.tensor("x", x, self.dtype, self.device))
            axes = (self.actions.dim,)
            points = checks.rows("x", points, self.batch_shape, axes)
            return posterior_of(beliefs.anywhere(points), self._outside)
        if isinstance(self.actions, Box):
            raise CBanditError(
                "posterior needs points on a Box: posterior(x) with x of shape (n, d)"
            )
        return posterior_of(beliefs.posterior(), self._outside)

    def recommend(self, confidence: float = 0.95) -> Recommendation:
        """Return what to deploy: the best action feasible with ``confidence``.

        Of a policy without beliefs about its costs the action of greatest expected
        reward, nowhere called feasible.
        """
        confidence = checks.number("confidence", confidence)
        if not 0 < confidence < 1:
            raise CBanditError(f"confidence must lie between 0 and 1; got {confidence}")
        beliefs, limits = self._settled().state.beliefs, self._limits(max(self.t, 1))
        streams = Streams(self.seed, self.trials, "recommend")
        on, ranks = self.actions, self._ranks
        found = recommended(beliefs, on, limits, confidence, streams, ranks)
        return found.of(self._outside)

    def refit(self) -> None:
        """Fit hyperparameters to all data now, by marginal likelihood."""
        state: GPState = self._settled().state
        self._change(state._replace(beliefs=state.beliefs.refit()))

    @property
    def model(self) -> ModelListGP:
        """The beliefs as a BoTorch ``ModelListGP``, reward first: a snapshot.

        Its data are means over repeats, with the noise of means; what it is to observe
        (fantasies, ``observation_noise=True``) has the noise of one observation.
        """
        from cbandit.posterior.botorch import model_list

        return model_list(self._settled().state.beliefs)

    def lighten(self) -> None:
        """Before a checkpoint: large arrays are computed afresh instead of saved."""
        self._beliefs.lighten(LIGHT)


def _functions(reward: Any, costs: Any) -> tuple[list[GP], int]:
    """Return one belief a function, reward first, and how many costs there are."""
    counted = isinstance(costs, int) and not isinstance(costs, bool)
    beliefs = [reward, *([] if costs is None or counted else listed(costs, GP))]
    for j, belief in enumerate(beliefs):
        if not isinstance(belief, GP):
            name = "reward" if j == 0 else f"costs[{j - 1}]"
            raise CBanditError(f"{name} must be a cb.GP; got {checks.kind(belief)}")
    m = checks.whole("costs", costs, 1, COST_COUNT) if counted else len(beliefs) - 1
    return beliefs, m


def _epochs(restart: Any) -> int | str | None:
    if restart is None or restart == "doubling":
        return None if restart is None else "doubling"
    return checks.whole("restart", restart)
