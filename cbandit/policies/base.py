"""The rounds of a policy: ask, tell, cancel and save.

``ask`` starts a round; ``tell`` puts feedback into a ledger; the next ``ask`` (or a
look at the beliefs) absorbs the feedback in the order of rounds. So the order of tells
does not matter, and a ``tell`` that fails changes nothing. All that rounds change is
one value, ``self._now``, replaced by one assignment, so an ``ask`` that fails changes
nothing either. Concerns (``round.py``) are the subjects beside the rule, such as
budgets. Shapes: ``T`` trials, ``m`` costs, ``F`` functions (the reward, then costs),
``N`` actions.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from logging import DEBUG
from time import time
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cbandit._core import checks, devices, graph
from cbandit._core.arguments import stated
from cbandit._core.distributed import ALONE, Ranks
from cbandit._core.hints import hinted
from cbandit._core.log import LOG, warn
from cbandit._core.randomness import Streams, Trials, trial_range
from cbandit._core.threads import threads_for
from cbandit.actions import Actions, Contextual, Shown, checked_actions
from cbandit.choice import Choice, Distribution
from cbandit.errors import (
    BudgetError,
    CBanditError,
    ChoiceError,
    HorizonError,
    ReadOnlyError,
)
from cbandit.explain import Explanation
from cbandit.policies import picture
from cbandit.policies.abilities import Abilities
from cbandit.policies.budget import Budget
from cbandit.policies.checks import (
    array_type,
    check_decision,
    check_probability,
    observed_costs_error,
    round_actions,
    round_mask,
    trial_mask,
)
from cbandit.policies.choices import (
    DecisionRecord,
    Entry,
    Ledger,
    News,
    Outstanding,
    Place,
    private_copy,
)
from cbandit.policies.concerns.confidence import Confidence
from cbandit.policies.concerns.kept_limits import KeptLimits
from cbandit.policies.concerns.order import KEYWORDS, concerns_of
from cbandit.policies.concerns.receipt import Receipt, ReceiptState
from cbandit.policies.history import History
from cbandit.policies.inbox import Inbox
from cbandit.policies.keywords import (
    POLICY_HELP,
    ActionValues,
    ConcernKeywords,
    ObservedCosts,
)
from cbandit.policies.listening import Listener, Listeners
from cbandit.policies.log import log_of
from cbandit.policies.posterior import Marginal, Posterior
from cbandit.policies.round import Concern, Concerns, PolicyState, with_state
from cbandit.policies.saving import Files, Lock, locked, pack, unpack
from cbandit.policies.setup import Setup
from cbandit.policies.signs import NOT_GIVEN, Objective
from cbandit.policies.status import LimitStatus, Status
from cbandit.policies.turn import Decision, Turn
from cbandit.posterior.links import BINARY
from cbandit.receipt.alarm import Alarm
from cbandit.receipt.certificate import Certificate
from cbandit.receipt.log import Log

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MAX_OUTSTANDING = 100  # choices without feedback, beyond those of one ask(n=)
NO_CONTEXT_HINT = "Or build it on the choices alone, a cb.Space without the cb.Context"
#: attributes that users cannot assign, besides those named like an argument
READ_ONLY = frozenset(
    [
        "actions",
        "batch_shape",
        "device",
        "dtype",
        "horizon",
        "m",
        "multiplier",
        "price",
        "seed",
        "objective",
        "size",
        "standardized",
        "t",
        "thresholds",
        "trials",
    ]
)
MAX_REPR_LENGTH = 60  # characters of the set's repr within the policy's

ConcernT = TypeVar("ConcernT", bound=Concern[Any])


class Policy(metaclass=ABCMeta):
    """Base class of policies: it keeps count of rounds, choices and feedback.

    A policy is two functions of its state: ``decide`` (the rule) and ``absorb`` (what
    feedback changes). They return a new state and never change the old one. The
    constructor sets the first state with ``self.begin(state)``. Tensors have the
    trials as their first axis, ``T = self.size`` of them, 1 where there is no trials
    axis. ``turn.limits`` are the round's thresholds ``(T, m)``, and
    ``turn.streams.uniform(n)`` draws ``n`` numbers for each trial: ``(n,)`` without a
    trials axis, else ``(T, n)``.

    Args:
        actions: what can be chosen.
        m: how many costs, or their names.
        common: see below.

    Example:
        >>> import cbandit as cb, torch
        >>> class Greedy(cb.Policy):  # every arm once, then the best within limits
        ...     name = "Greedy"
        ...
        ...     def __init__(self, actions, m, **common):
        ...         super().__init__(actions, m, **common)
        ...         shape = (self.size, actions.size, 1 + self.m)  # the reward first
        ...         nothing = torch.zeros(shape, dtype=torch.float64)
        ...         self.begin((nothing, nothing))  # sums, and how many they are of
        ...
        ...     def decide(self, state, turn):
        ...         sums, tries = state
        ...         means = sums / tries.clamp(min=1)
        ...         above = means[..., 1:] - turn.limits.unsqueeze(-2)
        ...         score = means[..., 0] - 10 * above.clamp(min=0).sum(-1)
        ...         score[tries[..., 0] == 0] = torch.inf
        ...         if turn.mask is not None:
        ...             score = score.where(turn.mask, -torch.inf)
        ...         return cb.Decision(score.argmax(-1)), state
        ...
        ...     def absorb(self, state, news):
        ...         sums, tries = (each.clone() for each in state)
        ...         row, arm = torch.arange(self.size), news.choice.index.reshape(-1)
        ...         outputs = [(told, slice(0, 1)) for told in news.rewards]
        ...         outputs += [(told, slice(1, None)) for told in news.costs]
        ...         for told, which in outputs:
        ...             came = told.mask().unsqueeze(-1)
        ...             sums[row, arm, which] += told.values.where(came, 0.0)
        ...             tries[row, arm, which] += came
        ...         return sums, tries
        >>> costs = [[-1.0, 0.2, 1.0]]
        >>> world = cb.problems.Table([1.0, 2.0, 3.0], costs, 0.01, thresholds=0.5)
        >>> greedy = Greedy(world.actions, 1, thresholds=0.5)
        >>> run = cb.simulate(greedy, world, 50)
        >>> greedy.ask().index
        tensor(1)
    """

    name = "policy"
    abilities = Abilities()
    sees_costs = False  # whether users give all costs to ask and tell none
    #: the functions, 0 the reward, with outcomes "binary" or "count"
    _outcomes: Mapping[int, str] = {}
    #: for each function the interval of its values, or None; empty: none has one
    _ranges: Sequence[tuple[float, float] | None] = ()
    _ignores_backlog = False  # whether many outstanding choices need no warning
    standardized = False  # whether multipliers are in spreads, not the user's units
    common: Mapping[str, str] = POLICY_HELP  # the keywords in **common, with help
    _concerns: Concerns
    _ranks: Ranks = ALONE  # the processes that share the set
    _reminded = False  # whether the warning of a backlog was given
    _largest_n = 0  # the largest n= of an ask
    #: the state after all feedback is absorbed, and that with which an ask begins
    _ready: tuple[PolicyState, PolicyState] | None = None
    _latest: Turn | None = None  # the latest turn, until its beliefs change

    def __init_subclass__(cls, **arguments: object) -> None:
        """Add the arguments that all policies share to the help of a new class."""
        super().__init_subclass__(**arguments)
        cls.__doc__ = with_common_help(cls)
        if "__init__" in vars(cls):
            cls.__init__ = hinted(cls.__init__)  # type: ignore[method-assign]

    def __init__(
        self,
        actions: Actions,
        m: int | Sequence[str],
        *,
        thresholds: Any = NOT_GIVEN,
        minimise: bool = False,
        seed: int = 0,
        trials: Trials = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        horizon: int | None = None,
        design: int = 0,
        expire: int | None = None,
        **common: Unpack[ConcernKeywords],
    ) -> None:
        self.settings = stated(self, locals())
        #: the keyword arguments that only one concern uses
        self._keywords = {k: v for k, v in common.items() if k in KEYWORDS}
        checked_actions(actions)
        self.device = checks.device(device)
        self.dtype = array_type(dtype, self.device)
        #: the names, signs and limits of the costs
        self.objective = Objective(m, thresholds, minimise)
        self.m, thresholds = self.objective.m, self.objective.limits
        if self.objective.budgets and not self.abilities.budgets:
            raise CBanditError(
                f"{type(self).__name__} takes no cb.Budget in thresholds: cb.CKB, "
                "cb.RPOL, cb.baselines.CONFIG and a cb.GPPolicy of your own do, where "
                "they have a belief about every cost; give a limit of one round"
            )
        self._costs = range(1, 1 + self.m)  # functions, 0 is the reward
        self._labels = ("reward", *map(self.objective.label, range(self.m)))
        self.trials, self.seed = trial_range(trials), checks.seed(seed)
        self.batch_shape = () if self.trials is None else (len(self.trials),)
        self.size = 1 if self.trials is None else len(self.trials)
        if actions.batch_shape and tuple(actions.batch_shape) != self.batch_shape:
            raise CBanditError(
                f"actions have sets for {actions.batch_shape[0]} trials; trials must "
                f"be that number, got {trials!r}"
            )
        if isinstance(actions, Contextual) and not self.abilities.contexts:
            way = self.abilities.refuses.get("contexts", NO_CONTEXT_HINT)
            raise CBanditError(
                f"{type(self).__name__} takes no set with contexts; cb.CKB, cb.RPOL, "
                "cb.GPUCB, cb.GPTS, cb.SCGPUCB and cb.baselines.CONFIG do. "
                f"{way}"
            )
        self.actions: Any = actions.to(self.device, self.dtype)
        if horizon is not None:
            horizon = checks.whole("horizon", horizon, 1, "None or a positive int")
        for j, budget in self.objective.budgets.items():
            self._per_trial(f"the total of {self.objective.label(j)!r}", budget.total)
        self._own_horizon = horizon
        self.horizon = self._last_round(self.objective)
        self.design = checks.whole(
            "design", design, 0, "a whole number, 0 for none", 1_000_000
        )
        if expire is not None:
            expire = checks.whole("expire", expire, 1, "None or a positive int")
        self.expire = expire
        #: what the policy does not take, with the reason, see Abilities.refuses
        self._refuses = dict(self.abilities.refuses)
        if not callable(thresholds):
            thresholds = self._per_cost("thresholds", thresholds)
        self._first_limits: Callable[[int], object] | Tensor = thresholds
        # new limits by cost, where the first ones or the new one are callable
        self._new_limits: dict[int, Callable[[int], object] | Tensor] = {}
        # whether a threshold differs from 0
        self._limited = callable(thresholds) or bool(thresholds.any())
        self._streams = Streams(self.seed, self.trials, "policy")
        #: the files that the policy was loaded from or saved to
        self._files = Files()
        self._lock = Lock()
        self._listeners = Listeners()
        costs = self.m > 0 and not self.sees_costs
        self._ledger = Ledger(self.size, self.m, costs, self.expire)
        self._history = History(self.size, self.m, self.actions.dim)
        self._nowhere = torch.zeros(self.batch_shape, dtype=torch.bool).to(self.device)
        self._now = PolicyState(0, None, self._streams.position(), 0)
        self._set_concerns(
            Policy._setup(self)
        )  # GPPolicy, yet without beliefs, calls it again
        #: the kinds of warnings given so far, see :meth:`status`
        self._alarmed: frozenset[str] = frozenset()

    # -- what a policy fills in ------------------------------------------------------

    def begin(self, state: object) -> None:
        """Set the first state; a constructor calls this."""
        self._now = self._now._replace(state=state)

    def _set_concerns(self, setup: Setup) -> None:
        """Make the policy's concerns and their first states."""
        self._concerns = concerns_of(setup)
        self._now = self._now._replace(concerns=self._concerns.start())

    def _setup(self) -> Setup:
        """Return all that the policy's concerns are made from."""
        return Setup(
            type(self).__name__,
            {"design": self.design, "expire": self.expire, **self._keywords},
            self.abilities,
            self.objective,
            self.actions,
            self.trials,
            self.seed,
            self.device,
            self.dtype,
            self.sees_costs,
            self._first_thresholds(),
        )

    def _beliefs_in(self, state: Any) -> Any:
        """Return the beliefs in a state, for concerns; ``None``: it has none."""
        return None

    @abstractmethod
    def decide(self, state: Any, turn: Turn) -> tuple[Decision, Any]:
        """Return the decision of the rule in this round, and the state after it.

        The only side effect allowed is to draw from ``turn.streams``.
        """

    @abstractmethod
    def absorb(self, state: Any, news: News) -> Any:
        """Return the state after feedback of one choice.

        Args:
            state: the state before.
            news: ``news.choice`` is the choice of ``ask``, so that its ``index`` is
                ``(*trials,)``; ``news.rewards`` and ``news.costs`` list what has come
                since the last call: ``values`` are ``(T, 1)`` and ``(T, m)``, and only
                the trials of ``mask()`` count. ``news.limits`` are the thresholds of
                its round, ``(T, m)``.
        """

    def _add_pending(
        self, state: Any, choice: Choice, place: Place, limits: Tensor
    ) -> Any:
        """Return the state after a choice was made, before any feedback.

        ``limits (T, m)`` are the thresholds of the choice's round.
        """
        return state

    #: returns, for each trial, the number and point of the action that must not fail
    _must_work: Callable[[], Sequence[tuple[int | None, Tensor]]] | None = None

    def _after_absorbing(self, state: Any, t: int) -> Any:
        """Return the state after all feedback up to round ``t`` was absorbed."""
        return state

    def _fit_if_due(self, state: Any) -> Any:
        """Return the state with hyperparameters fitted, if a fit is due."""
        return state

    def _explain_latest(self, turn: Turn) -> dict[str, Any]:
        """Return the parts of the latest choice's explanation that need the beliefs."""
        return {}

    def _engine_texts(self) -> list[str]:
        """Return the engines that compute the posterior, as texts for ``repr``."""
        return []

    @property
    def _acquires(self) -> bool:
        """Whether scores come from ``acquire``, and are in the unit of its result."""
        return self.abilities.acquires

    @locked
    def refuse(self, what: str, reason: str) -> None:
        """Refuse ``what``, a key of :attr:`Abilities.refuses`, for ``reason``."""
        self._refuses[what] = reason

    # -- shapes ----------------------------------------------------------------------

    def _per_trial(self, name: str, value: ArrayLike) -> Tensor:
        """Return a number, or one for each trial, as ``(T,)``."""
        return devices.put(checks.per_trial(name, value, self.batch_shape), self.device)

    def _per_cost(self, name: str, value: ArrayLike, graph: bool = False) -> Tensor:
        """Return a number, ``(m,)`` or ``(*trials, 1 or m)``, as ``(T, m)``.

        If ``graph``, the result keeps its autograd graph.
        """
        value = checks.finite(name, checks.tensor(name, value, graph=graph))
        shaped = checks.per_cost(name, value, self.batch_shape, self.m, graph=graph)
        return devices.put(shaped, self.device)

    def _cost_number(self, name: str, value: ArrayLike, graph: bool = False) -> Tensor:
        """Return a number, ``(*trials,)`` or ``(1 or *trials, m)``, as ``(T, m)``.

        If ``graph``, the result keeps its autograd graph.
        """
        value = checks.tensor(name, value, graph=graph)
        if self.batch_shape and tuple(value.shape) == self.batch_shape:
            value = value.unsqueeze(-1)
        return self._per_cost(name, value, graph)

    def _cost_parameter(self, name: str, value: ArrayLike) -> Tensor:
        """Return a number as :meth:`_cost_number` does, with its autograd graph."""
        return self._cost_number(name, value, graph=True)

    def _user_shape(self, value: Tensor) -> Tensor:
        """Return a tensor ``(T, ...)``, or ``(...)`` where there is no trials axis."""
        return value if self.batch_shape else value[0]

    # -- limits ----------------------------------------------------------------------

    @property
    def thresholds(self) -> Callable[[int], object] | Tensor:
        """The limits: a tensor ``(T, m)`` or a callable of the round.

        In the tensor, lower limits are negated. :meth:`limit` changes one of them.
        """
        given = self.limits if self._new_limits else self._first_limits
        return given if callable(given) else given.clone()

    def limits(self, t: int) -> Tensor:
        """Return the thresholds ``(T, m)`` of a round to come.

        The thresholds of a past round are stored with its choice, ``news.limits``.
        """
        limits = self._stated_limits(t)
        if not self._concerns.defines("limit"):
            return limits
        coming = max(t, self._now.t + 1)
        return self._concerns.limit(self._now.concerns, limits, coming)

    def _stated_limits(self, t: int) -> Tensor:
        """Return the thresholds ``(T, m)`` that the user gave for a round."""
        given = self._first_limits
        if not callable(given) and not self._new_limits:
            return given
        if callable(given):
            given = self._per_cost("thresholds", self.objective.in_order(given(t)))
        limits = given.clone()
        for j, limit in self._new_limits.items():
            limits[:, j] = self._read_limit(j, limit, t)
        return limits

    def _first_thresholds(self) -> Tensor:
        """Return the thresholds ``(T, m)`` of round 1; 0 if a callable gives none.

        That is an error when a round needs them.
        """
        with contextlib.suppress(CBanditError):
            return self._stated_limits(1)
        return torch.zeros(self.size, self.m, dtype=torch.float64, device=self.device)

    def _read_limit(self, j: int, limit: Any, t: int) -> Tensor:
        """Return a user's limit of cost ``j`` for round ``t`` as ``(T,)``."""
        if callable(limit):
            limit = self.objective.read(j, limit(t))
        return self._per_trial(f"the limit of {self.objective.label(j)}", limit)

    def _last_round(self, objective: Objective) -> int | None:
        """Return the last round that may be asked for; ``None``: there is none."""
        last = [budget.last for budget in objective.budgets.values()]
        if self._own_horizon is not None:
            last.append(self._own_horizon)
        return min(last, default=None)

    @locked
    def limit(self, name: str, limit: Any) -> None:
        """Change the limit of a cost, from the next ``ask`` on.

        Choices made before keep the limits of their rounds, and their costs are judged
        by these. Beliefs and multipliers go on. The limit is saved, and
        :meth:`history` has a column ``limit_NAME`` once a limit has changed. Policies
        whose theorem or safe action rests on the limits refuse.

        Args:
            name: the cost's name; ``"cost1"`` is the first of costs without names.
            limit: ``"<= 60"``, ``"<= 1%"`` (which is .01), a number, ``(*trials,)``, or
                a callable of the round that returns one of these; the side stays. Or a
                :class:`~cbandit.Budget`, whose first round is the next one.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8))
            >>> gp = cb.GP.default(space)
            >>> policy = cb.RPOL(
            ...     space, reward=gp, costs={"ms": gp}, thresholds={"ms": "<= 90"}
            ... )
            >>> policy.limit("ms", "<= 60")
            >>> policy.thresholds
            tensor([[60.]], dtype=torch.float64)
        """
        if "limit" in self._refuses:
            raise CBanditError(
                f"{self.name} takes no other limit: {self._refuses['limit']}. Build a "
                "policy with the new thresholds=, and give it history() by observe()"
            )
        self._catch_up()
        j = self.objective.number(name)
        # one update, so that an interrupt changes nothing
        vars(self).update(self._with_limit(j, limit), _latest=None)

    def _check_limit(self, j: int, limit: Tensor, objective: Objective) -> None:  # noqa: B027
        """Raise an error if cost ``j`` cannot have the new limit ``(T,)``."""

    def _with_limit(self, j: int, limit: Any) -> dict[str, Any]:
        """Return the policy's attributes that change with the limit of cost ``j``."""
        t, given, label = self._now.t + 1, self._first_limits, self.objective.label(j)
        said, budget = limit, None
        if isinstance(limit, Budget):
            budgets = self.abilities.budgets
            if not budgets or self.objective.above(j):
                side = "a lower limit" if budgets else "the policy spends none"
                raise CBanditError(f"{label} cannot have a cb.Budget: {side}")
            self._per_trial(f"the total of {label!r}", limit.total)
            budget, limit = limit.from_round(t), limit.pace
        if not callable(limit):
            limit = self.objective.read(j, limit)
        now = self._read_limit(j, limit, t)
        later = {i: other for i, other in self._new_limits.items() if i != j}
        if callable(limit) or callable(given):
            later[j] = limit if callable(limit) else now
        else:
            given = given.clone()
            given[:, j] = now
        objective = self.objective.with_limit(j, said if budget is None else budget)
        self._check_limit(j, now, objective)
        concerns = concerns_of(self._setup()._replace(objective=objective))
        states = concerns.take_over(self._now.concerns, self._concerns, j)
        return {
            "_first_limits": given,
            "_new_limits": later,
            "_limited": callable(given) or bool(later) or bool(given.any()),
            "objective": objective,
            "horizon": self._last_round(objective),
            "_concerns": concerns,
            "_now": self._now._replace(concerns=states),
        }

    def _place_for_beliefs(self, choice: Choice) -> Place:
        """Return the place of a choice; without keys, as there are no beliefs here."""
        return Place([], choice.x.reshape(self.size, -1), choice.t)

    def _place(self, choice: Choice) -> Place:
        """Return the place of a choice: its actions' keys and points, and its round."""
        x = choice.x.reshape(self.size, -1)
        if isinstance(self.actions, Contextual):
            return Place(self.actions.domain.keys(x), x, choice.t)
        if choice.actions is None and choice.keys is not None:
            return Place(choice.keys, x, choice.t)
        if choice.actions is None and choice.index is not None:
            return Place(choice.index.reshape(-1).tolist(), x, choice.t)
        return Place(self.actions.keys(x), x, choice.t)

    def _read_context(self, context: ActionValues | None) -> Shown | None:
        """Return the context that a user gave, checked; ``None``: the set has none."""
        if not isinstance(self.actions, Contextual):
            if context is None:
                return None
            raise CBanditError(
                f"context= needs a set that has one, cb.Space(..., load=cb.Context(1));"
                f" got {self.actions!r}: leave context= out"
            )
        names = ", ".join(map(repr, self.actions.contexts.parameters))
        if context is None:
            raise CBanditError(
                f"context must give {names}, which the set has as a cb.Context; got "
                "none: context={...}"
            )
        values = self.actions.read(context, self.batch_shape)
        values = checks.measured("context", values, self.dtype)
        values = devices.put(values, self.device, self.dtype)
        return Shown(self.actions, values)

    def _unplayed_turn(self, shown: Shown | None = None) -> Turn:
        """Return a turn in the context ``shown`` that only serves to recommend."""
        on, mask = self.actions.menu, None
        if shown is not None:
            on, mask = shown.round(on, None, bool(self.batch_shape))
        now = self._catch_up()
        turn = Turn(now.t + 1, on, mask, None, self._streams, self._ledger)
        turn = turn._replace(
            shown=shown,
            limits=self.limits(max(now.t, 1)),
            beliefs=self._beliefs_in(now.state),
            purpose="recommend",
            ranks=self._ranks,
            must_work=self._must_work,
        )
        return self._concerns.open_turn(now.concerns, turn)[1]

    # -- rounds ----------------------------------------------------------------------

    @property
    def t(self) -> int:
        """The round last asked for, 0 before the first."""
        return self._now.t

    @property
    @locked
    def multiplier(self) -> Tensor:
        """The multiplier of the next ``ask``, ``(*trials, m)``, or an empty one."""
        shape = (*self.batch_shape, 0)
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    @property
    @locked
    def price(self) -> Tensor:
        """The multiplier in the user's units, ``(*trials, m)``."""
        return self.multiplier

    @overload
    def ask(
        self,
        *,
        n: None = None,
        among: ActionValues | None = None,
        actions: Actions | ActionValues | None = None,
        observed_costs: ObservedCosts | None = None,
        context: ActionValues | None = None,
        confidence: ArrayLike | None = None,
    ) -> Choice: ...

    @overload
    def ask(
        self,
        *,
        n: int,
        among: ActionValues | None = None,
        actions: Actions | ActionValues | None = None,
        observed_costs: ObservedCosts | None = None,
        context: ActionValues | None = None,
        confidence: ArrayLike | None = None,
    ) -> list[Choice]: ...

    @locked  # type: ignore[misc]  # mypy takes its Any for self as a parameter more
    def ask(
        self,
        *,
        n: int | None = None,
        among: ActionValues | None = None,
        actions: Actions | ActionValues | None = None,
        observed_costs: ObservedCosts | None = None,
        context: ActionValues | None = None,
        confidence: ArrayLike | None = None,
    ) -> Choice | list[Choice]:
        """Start the next round and choose.

        An ``ask`` that fails, or is interrupted by Ctrl-C, changes nothing.

        Args:
            n: how many choices to make, as if asked one by one; then the answer is a
                list. It is shorter where a budget ends. An action may come several
                times: where readings are noisy, measuring the best one again is often
                worth more than another one. ``context`` is one context for all choices,
                or ``n`` of them: arrays with one more axis in front, alone or by name,
                or a list of dicts. With trials, ``(n, k)`` holds contexts that the
                trials share, unless ``n`` is the number of trials: then each trial has
                its row, the same for all choices.
            among: a mask ``(N,)`` or ``(*trials, N)``, or action numbers ``(k,)`` or
                ``(*trials, k)``: only these may be chosen this round.
            actions: a set for this round alone, solved afresh; the choice's index
                refers to it.
            observed_costs: this round's costs on every action, ``(*trials, m, N)``, for
                policies that see them in full; on a Box a callable, ``x (*trials, n, d)
                -> (*trials, m, n)``.
            context: what the world shows in this round, by name: ``{"load": 0.3}``, or
                the value alone where the set has one :class:`~cbandit.Context`.
                Several numbers are ``(k,)`` or ``(*trials, k)``.
            confidence: choose only what keeps all limits with this probability, a
                number or ``(*trials,)``, by today's beliefs about the noiseless costs,
                which count as independent. Where nothing does, the likeliest is chosen
                and ``choice.infeasible`` is set. It goes before ``design=``. For GP
                policies with beliefs about their costs.
        """
        if n is None:
            with threads_for(self._numbers_per_pass):
                return self._ask(among, actions, observed_costs, context, confidence)
        contexts = [context] * checks.whole("n", n)
        if isinstance(self.actions, Contextual):
            contexts = self.actions.each(context, n, self.batch_shape)
        self._catch_up()
        self._largest_n = max(self._largest_n, n)
        before, latest, choices = self._now, self._latest, []
        try:
            with threads_for(self._numbers_per_pass):
                for one in contexts:
                    choice = self._ask(among, actions, observed_costs, one, confidence)
                    choices.append(choice)
        except BudgetError:
            if not choices:
                raise
        except BaseException:
            # entries of later rounds than the policy's are ignored
            self._now, self._latest = before, latest
            raise
        return choices

    def _ask(
        self,
        among: ActionValues | None,
        actions: Actions | ActionValues | None,
        observed_costs: ObservedCosts | None,
        context: ActionValues | None,
        confidence: ArrayLike | None,
    ) -> Choice:
        """Start the next round and choose, see :meth:`ask`."""
        if (observed_costs is not None) != self.sees_costs:
            raise observed_costs_error(self.name, self.sees_costs)
        if observed_costs is not None:
            observed_costs = self.objective.observed(observed_costs)
        t = self._now.t + 1
        if self.horizon is not None and t > self.horizon:
            raise HorizonError(
                f"ask: the horizon of {self.horizon} rounds has passed; build the "
                "policy with a larger horizon="
                + ", and budgets of as many rounds"
                * bool(self.objective.budgets)
            )
        if among is not None and actions is not None:
            raise CBanditError("ask takes among= or actions=, not both")
        contextual, shown = isinstance(self.actions, Contextual), None
        if contextual or context is not None:
            shown = self._read_context(context)
        if shown is not None and actions is not None:
            raise CBanditError(
                "ask takes context= or actions=, not both; a part of the choices is "
                "for among="
            )
        mask = None
        if among is not None:
            menu = self.actions.menu
            mask = round_mask(among, menu, self.batch_shape, self.device)
        now, streams, ledger = self._catch_up(), self._streams, self._ledger
        streams.go(now.position)
        on = self.actions.menu if actions is None else self._round_actions(actions)
        if shown is not None:
            on, mask = shown.round(on, mask, bool(self.batch_shape))
        turn = Turn(
            t,
            on,
            mask,
            observed_costs,
            streams,
            ledger,
            shown=shown,
            apart=actions is not None,
            confidence=None if confidence is None else self._read_chance(confidence),
            limits=self.limits(t),
            must_work=self._must_work,
            ranks=self._ranks,
            purpose="design" if t <= self.design and confidence is None else "rule",
        )
        turn, decision, state, concerns = self._take_turn(now, turn)
        choice = self._make_choice(turn, decision)
        private = private_copy(choice)
        place = self._place_for_beliefs(private)
        state = self._add_pending(state, private, place, turn.limits)
        phi, chance = getattr(state, "multiplier", None), decision.chance
        if chance is not None and decision.idle is not None:
            chance = chance.masked_fill(decision.idle, torch.nan)
        made = DecisionRecord(
            time(),
            turn.limits,
            phi,
            decision.estimate,
            decision.score,
            decision.promised,
            decision.expected,
            chance,
        )
        ledger.open(private, choice, place, made)
        now = PolicyState(t, state, streams.position(), now.heard, False, concerns)
        # a warning may be an error: then the round does not count
        most = MAX_OUTSTANDING + self._largest_n
        if len(ledger) >= most and not (self._ignores_backlog or self._reminded):
            if (count := len(ledger.waiting(t))) >= most:
                self._reminded = True
                warn(ledger.reminder(self.name, count))
        self._warn_once(now)
        # this makes the round count
        fits = getattr(self._now.state, "fits", 0)
        vars(self).update(_now=now, _latest=turn)
        self._listeners.note("ask", t, choice=choice)
        if getattr(state, "fits", 0) > fits:
            self._listeners.note("fit", t, fits=state.fits)
        if LOG.isEnabledFor(DEBUG):
            LOG.debug("%s asks %s", self.name, choice)
        return choice

    def _read_chance(self, confidence: ArrayLike) -> Tensor:
        """Return the probability with which limits must be kept, ``(T,)``, checked."""
        if self._concerns.find(Confidence) is None:
            raise CBanditError(
                f"ask: {self.name} takes no confidence= ({confidence!r}): cb.CKB, "
                "cb.RPOL, cb.baselines.CONFIG and rules on cb.GPPolicy do, where they "
                "have beliefs about their costs"
            )
        least = self._per_trial("confidence", confidence)
        return check_probability("confidence", least, confidence)

    def _take_turn(
        self, now: PolicyState, initial: Turn
    ) -> tuple[Turn, Decision, Any, Any]:
        """Return the turn as played, its decision, and the states after it.

        The states are the rule's, then those of the concerns. ``initial`` is the turn
        before concerns change it.
        """
        hooks, opened = self._concerns, None
        while True:
            states, restarted = hooks.open_epoch(now.concerns, initial.t)
            turn = initial
            if restarted is not None:
                turn = turn._replace(restarted=restarted)
            if opened is None:
                opened = self._open_round(now.state, turn), initial.streams.position()
            state, start = opened
            turn = turn._replace(beliefs=self._beliefs_in(state))
            states, turn = hooks.open_turn(states, turn)
            decision = hooks.choose(states, turn)
            if decision is None:
                rule = hooks.mixed(states, functools.partial(self._apply_rule, state))
                decision, state = rule(turn)
            states, checked = hooks.check_pick(states, turn, decision)
            if checked is not None:
                return turn, checked, state, states
            initial.streams.go(start)  # rewind, to repeat the same draws
            initial = initial._replace(tight=True)
            if initial.actions.continuous and not initial.by_rule:
                # a design has no second point on a box: the rule chooses
                initial, opened = initial._replace(purpose="rule"), None

    def _apply_rule(self, state: Any, turn: Turn) -> tuple[Decision, Any]:
        """Return the rule's decision, checked, and the state after it."""
        answer, name = self.decide(state, turn), f"{type(self).__name__}.decide"
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise CBanditError(
                f"{name} must return a cb.Decision and the state after it, a pair; got "
                f"{checks.kind(answer)}"
            )
        decision, state = answer
        if type(decision) is Decision and decision.sure:
            return decision, state
        shape = self.size, self.m
        return check_decision(
            name, decision, turn, *shape, self.device, self.dtype
        ), state

    def _open_round(self, state: Any, turn: Turn) -> Any:
        """Return the state at the start of a round, before concerns shape the turn."""
        return state

    def _round_actions(self, actions: Actions | ActionValues) -> Actions:
        """Return the set given for this round alone, on the policy's device."""
        on = round_actions(actions, self.actions, self.batch_shape)
        return on.to(self.device, self.dtype)

    def _make_choice(self, turn: Turn, decision: Decision) -> Choice:
        """Return the choice that users get for a decision."""
        outside, on, shown = self._user_shape, turn.actions, turn.shown
        index = None if decision.index is None else outside(decision.index)
        x = on.at(index) if decision.x is None else outside(decision.x)
        keys = decision.keys
        if shown is not None:
            keys = None
            if index is not None:
                index = shown.choices(index)
            elif decision.x is not None:
                x = outside(shown.whole(decision.x.unsqueeze(1)).squeeze(1))
        infeasible = self._nowhere
        if decision.infeasible is not None:
            infeasible = outside(decision.infeasible)
        idle = decision.idle
        if idle is not None:
            idle = outside(idle)
            infeasible = infeasible | idle
        pi = decision.distribution
        if pi is not None:
            number = pi.index if shown is None else shown.choices(pi.index)
            pi = Distribution(outside(number), outside(pi.probability))
        return Choice(
            turn.t,
            index,
            x,
            infeasible.clone(),  # users may change it in place
            pi,
            self._ledger.id(turn.t),
            on if turn.apart else None,
            keys,
            self.actions.names,
            idle,
        )

    # -- feedback --------------------------------------------------------------------

    @locked
    def tell(
        self,
        choice: Choice | str,
        reward: ArrayLike | None = None,
        cost: ArrayLike | Mapping[str, ArrayLike] | None = None,
        noise: ArrayLike | Mapping[str, ArrayLike] | None = None,
        where: ArrayLike | None = None,
        failed: bool = False,
        exposure: ArrayLike | None = None,
    ) -> None:
        """Record feedback of a choice: reward and cost together, or apart and later.

        Args:
            choice: what ``ask`` returned, or its ``id``.
            reward: ``(*trials,)``. Where its belief has ``outcome="binary"``: True or
                False, 1 or 0, or a pair ``(successes, tries)``; with ``"count"`` a
                whole number or a pair ``(number, exposure)``. The same goes for a cost,
                told by name or as an entry of a list. Histories show the share or rate.
            cost: ``(*trials, m)``, or ``(*trials,)`` where ``m`` is 1: all ``m`` at
                once. Or some of them by name, ``{"latency": 3.1}``, the others later.
                If one of them will never come, tell the others, then call
                :meth:`cancel`. Costs are ignored where ``ask`` was given all of them.
            noise: this observation's variance, ``(*trials,)``, replacing the belief's:
                of all that is told here, or by name, ``{"reward": 0.1, "latency": 2}``,
                in the squared units of each (of a cost without a name ``"cost1"``, and
                so on). Some policies take none.
            where: ``(*trials,)`` bool, the trials that this feedback belongs to; all
                unless given.
            failed: whether the action could not be measured. GP policies learn where
                actions fail, see ``failures=``. Other policies, and those with
                ``failures=False``, do not ask for the action again. On a Box they also
                avoid points within 1e-3 of it (in the unit cube, in the same row of
                choices), and on a Star its segment. Beliefs about reward and costs
                learn nothing; a multiplier moves as in a round without feedback. If the
                failure says nothing about the action, call :meth:`cancel` instead. With
                a :class:`~cbandit.Budget` what the choice may have cost stays spent,
                unless ``cost`` says what it did cost: that is charged, and the beliefs
                do not learn from it.
            exposure: what this feedback was counted over, such as hours or thousands of
                requests, ``(*trials,)``; 1 unless given.

        Telling the same values again changes nothing, so a request may be sent twice;
        other values are an error.
        """
        mask = None if where is None else trial_mask(where, self.batch_shape)
        given = reward, cost, noise, exposure
        try:
            self._record_feedback(choice, mask, failed, *given)
        except ChoiceError:
            if not self._is_repeat(choice, mask, failed, *given):
                raise
            LOG.info("%s: a choice was told the same again", self.name)
            return
        name = choice.id if isinstance(choice, Choice) else choice
        values = {"id": name, "reward": reward, "cost": cost, "failed": failed}
        self._listeners.note("tell", self._now.t, **values)

    def _record_feedback(
        self,
        choice: Choice | str,
        mask: Tensor | None,
        failed: bool,
        reward: Any,
        cost: Any,
        noise: Any,
        exposure: Any,
    ) -> None:
        """Put feedback into the ledger, see :meth:`tell`; ``mask`` is ``where``."""
        known = self.sees_costs and reward is None and cost is not None
        if (known or mask is not None) and self._ledger.finished(choice, self._now.t):
            if known or not bool(torch.as_tensor(mask).any()):
                return  # everything told here has come already
        entry = self._find_waiting(choice)
        number = self._ledger.next_serial
        mask = entry.playing(mask)
        if mask is not None and not bool(mask.any()):
            return  # the trials told here play nothing
        inbox = self._inbox()
        if failed is False or not checks.flag("failed", failed):
            feedback = inbox.read(reward, cost, noise, mask, exposure)
            self._ledger.put(inbox.add_feedback(entry, number, feedback))
            return
        told = (reward, noise) if self.objective.budgets else (reward, cost, noise)
        if any(each is not None for each in told):
            raise CBanditError(
                "tell takes failed=True or feedback, not both"
                + "; beside a Budget, cost= too" * bool(self.objective.budgets)
            )
        new = inbox.add_charge(entry, number, cost, mask)
        self._ledger.put(new.with_failure(mask, number()))
        LOG.info("%s: choice %s has failed", self.name, entry.choice.id)

    def _is_repeat(
        self, choice: object, mask: Tensor | None, failed: bool, *given: Any
    ) -> bool:
        """Return whether the same values were told of a choice before.

        This happens when a client sends a request again because it got no answer.
        """
        name = choice.id if isinstance(choice, Choice) else choice
        if not isinstance(name, str):
            return False
        row = self._history.row(name, self._ledger.all(self._now.t))
        return row is not None and self._inbox().is_repeat(row, mask, failed, *given)

    @locked
    def cancel(
        self,
        choice: Choice | str,
        cost: ArrayLike | Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Record that the rest of a choice's feedback will never come.

        Args:
            choice: what ``ask`` returned, or its ``id``.
            cost: what it cost nevertheless, as in :meth:`tell`. It is charged to the
                :class:`~cbandit.Budget`, and the beliefs do not learn from it. Left
                out, what the choice may have cost stays spent.
        """
        entry = self._find_waiting(choice)
        if cost is not None and not self.objective.budgets:
            raise CBanditError(
                "cancel takes cost= beside a cb.Budget only; what came of the choice "
                "goes to tell(choice, cost=...), before it is cancelled"
            )
        number, plays = self._ledger.next_serial, entry.playing(None)
        entry = self._inbox().add_charge(entry, number, cost, plays)
        self._ledger.put(entry._replace(closed=True, cancelled=number()))
        self._listeners.note("cancel", self._now.t, id=entry.choice.id)
        LOG.info("%s: choice %s is cancelled", self.name, entry.choice.id)

    def _inbox(self) -> Inbox:
        """Return the inbox, which reads and checks the values that users tell."""
        t, objective = self._now.t, self.objective
        return Inbox(
            name=self.name,
            t=t,
            batch_shape=self.batch_shape,
            dtype=self.dtype,
            device=self.device,
            objective=objective,
            labels=self._labels,
            outcomes=self._outcomes,
            ranges=self._ranges,
            partial_costs=self.abilities.partial_costs,
            noise_error=self._refuses.get("noise", ""),
            limits=self.limits(t + 1) if objective.shares else None,
        )

    def _find_waiting(self, choice: Choice | str) -> Entry:
        """Return the entry of a choice; raise an error unless it waits for feedback."""
        ledger, t = self._ledger, self._now.t
        entry = ledger.find(choice, t)
        if entry is None:
            states = functools.partial(self._history.states, entries=ledger.all(t))
            raise ledger.refusal(choice, t, states)
        return entry

    def _absorb_all(self) -> PolicyState:
        """Absorb all feedback told, in the order of rounds; return the new state."""
        now, ledger = self._now, self._ledger
        heard, state = ledger.last, now.state
        if now.settled and heard == now.heard:
            return now
        concerns = now.concerns
        if heard != now.heard:
            for news in ledger.news(now.heard, now.t, self.sees_costs):
                beliefs = self._beliefs_in(state)
                concerns, news = self._concerns.hear(concerns, news, beliefs)
                state = self.absorb(state, news)
        state = self._after_absorbing(state, now.t)
        before = len(self._alarms_in(now.concerns))
        now = PolicyState(now.t, state, now.position, heard, True, concerns)
        vars(self).update(_latest=None, _now=now)
        for alarm in self._alarms_in(concerns)[before:]:
            self._listeners.note("alarm", now.t, alarm=alarm)
        ledger.tidy(heard, self._history.put)
        return now

    def _catch_up(self) -> PolicyState:
        """Return the state that the next ``ask`` begins with, with due fits done.

        Only a call that changes the policy stores this state in it. So looking at the
        beliefs between rounds has no influence on when hyperparameters are fitted.
        """
        now = self._absorb_all()
        if self._ready is None or self._ready[0] is not now:
            state = self._fit_if_due(now.state)
            beliefs = self._beliefs_in(state)
            concerns = self._concerns.settle(now.concerns, beliefs, now.t, self._table)
            ready = now
            if state is not now.state or concerns is not now.concerns:
                ready = now._replace(state=state, concerns=concerns)
            vars(self).update(_ready=(now, ready))
            return ready
        return self._ready[1]

    @property
    def _numbers_per_pass(self) -> float:
        """The number of values that one pass over the set computes, ``N T``."""
        domain = self.actions.domain
        size = domain.size if domain.finite else self.actions.size
        return float(size * self.size)

    def _warn_once(self, now: PolicyState) -> None:
        """Give the warnings due in the state ``now``, each kind once per policy."""
        for kind, text in self._alarms(now).items():
            if kind not in self._alarmed:
                self._alarmed |= {kind}
                self._listeners.note("warning", now.t, kind=kind, text=text)
                warn(f"{self.name}: {text}")

    def _alarms(self, now: PolicyState) -> dict[str, str]:
        """Return the warnings due in the state ``now``, by kind."""
        return self._concerns.alarms(now.concerns, now.t, self._largest_n)

    @locked
    def status(self) -> Status:
        """Return how each limit was kept, open choices, fits and warnings.

        It prints as text, and ``.frame()`` is a table. A round counts for a limit once
        that cost has been told, by the limit of its own round. None of this is a
        guarantee.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8))
            >>> gp = cb.GP.default(space)
            >>> policy = cb.RPOL(
            ...     space, reward=gp, costs={"ms": gp}, thresholds={"ms": "<= 90"}
            ... )
            >>> policy.tell(policy.ask(), reward=2.0, cost={"ms": 95.0})
            >>> print(policy.status())
            RPOL-UCB: round 1, 0 open, 0 fits
            ms <= 90: within in 0 of 1 rounds told, 0 of the last 1; mean 95
              expected -inf to inf: open
        """
        now, outside, objective = self._catch_up(), self._user_shape, self.objective
        state = now.concerns[self._concerns.slot(KeptLimits)]
        counts, limits = state.with_held(), self.limits(now.t + 1)
        n, above = counts.recent()
        means = objective.costs(counts.total / counts.told)
        certificate, broken = None, ()
        if (found := self._concerns.find(Receipt)) is not None:
            receipt = now.concerns[found[0]]
            certificate = found[1].certificate(receipt, 0.05, None, None)
            broken = receipt.alarms
        standing = []
        for j in range(self.m):
            limit = objective.costs(limits)[:, j].expand(self.size).clone()
            parts = counts.told, counts.within, n, n - above, means
            columns = [outside(part[:, j].clone()) for part in parts]
            sign = ">=" if objective.above(j) else "<="
            label = objective.label(j)
            bound = None if certificate is None else certificate.costs[j]
            of = label, sign, outside(limit)
            standing.append(LimitStatus(*of, *columns, bound=bound))
        waiting, alarms = len(self._ledger.waiting(now.t)), self._alarms(now)
        expired = sum(entry.expired for entry in self._ledger.all(now.t))
        fits, texts = getattr(now.state, "fits", 0), tuple(alarms.values())
        counts = self.name, now.t, tuple(standing), waiting, fits, texts
        return Status(*counts, broken, self.trials, expired)

    @locked
    def certificate(
        self,
        alpha: float = 0.05,
        window: int | None = None,
        outstanding: str | None = None,
    ) -> Certificate:
        """Return whether each limit was kept on average, and how sure that is.

        The bounds are of the expected cost of the rounds played, and hold at all looks
        at once, whatever the policy did and however the world changed. It says nothing
        of rounds to come. Earlier data (``observe``) and cancelled choices do not
        count; designed and failed rounds do.

        Args:
            alpha: the chance that any of the bounds ever fails.
            window: ``certificate_window``, for a certificate of about so many last
                rounds, each at ``alpha``; ``None``: of all rounds.
            outstanding: ``"worst"``: rounds whose cost was not told count at their
                worst. ``"told"``: nothing is said of them, which is right only if
                lateness has nothing to do with the outcome. ``None``: the former where
                a range or a yes or no says what the worst is, else the latter; the text
                says which.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8))
            >>> gp = cb.GP.default(space)
            >>> policy = cb.RPOL(
            ...     space, reward=gp, costs={"ms": gp}, thresholds={"ms": "<= 90"},
            ...     ranges={"ms": (0, 200)},
            ... )
            >>> policy.tell(policy.ask(), reward=2.0, cost={"ms": 95.0})
            >>> print(policy.certificate())
            95 % at every look, of all rounds
            ms <= 90: told 95 on average; expected 0 to 200: open (exact)
              beyond it in 1 of 1 rounds; expected share 0 to 1
        """
        _, concern, state = self._receipt("certificate")
        alpha = checks.share("alpha", alpha)
        if outstanding not in (None, "worst", "told"):
            raise CBanditError(
                "certificate: outstanding must be None, 'worst' or 'told'; got "
                f"{outstanding!r}"
            )
        return concern.certificate(state, alpha, window, outstanding)

    @locked
    def watch(self, credit: float | None = None, alpha: float = 0.05) -> None:
        """Sound an alarm when a limit is broken from some round on.

        It begins with the next cost that is told, and is saved with the policy. An
        alarm is a warning once, and an entry of :attr:`alarms`. After one the watch of
        that cost begins again when a certificate of the rounds since says kept.

        Args:
            credit: by how many standard deviations of a round's cost the rounds of any
                window may together exceed the limit without an alarm. ``None``: 10 for
                policies that pay back what they exceed, such as CKB; 0 where every
                excess counts.
            alpha: the chance that it ever sounds while no window exceeds its credit.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8))
            >>> gp = cb.GP.default(space)
            >>> policy = cb.RPOL(
            ...     space, reward=gp, costs={"ms": gp}, thresholds={"ms": "<= 90"}
            ... )
            >>> policy.watch()
            >>> policy.alarms
            []
        """
        now, concern, state = self._receipt("watch")
        alpha = checks.share("alpha", alpha)
        if credit is None:
            credit = self.abilities.credit
        credit = checks.number("credit", credit, minimum=0.0)
        state = concern.watching(state, credit, alpha)
        slot = self._concerns.slot(Receipt)
        self._set_state(now.state, with_state(now.concerns, slot, state))

    @property
    @locked
    def alarms(self) -> list[Alarm]:
        """The alarms so far, see :meth:`watch`: cost, round it began, round told."""
        return list(self._receipt("alarms")[2].alarms)

    @locked
    def listen(self, function: Listener) -> Callable[[], None]:
        """Call a function after each ask, tell, cancel, fit, alarm and warning.

        It is called in the order of what happened, outside the policy's lock: other
        threads may use the policy meanwhile. It is not saved or copied, and an
        exception in it is a warning.

        Args:
            function: it takes an :class:`~cbandit.policies.listening.Event`, with the
                attributes ``event``, ``round`` and ``values``.

        Returns:
            A function that removes it.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8))
            >>> policy = cb.GPUCB(space, reward=cb.GP.default(space))
            >>> remove = policy.listen(lambda event: print(event.event, event.round))
            >>> choice = policy.ask()
            ask 1
            >>> policy.tell(choice, reward=2.0)
            tell 1
            >>> remove()
        """
        return self._listeners.add(function)

    def _alarms_in(self, concerns: tuple[Any, ...]) -> tuple[Alarm, ...]:
        """Return the alarms so far, from the states of the concerns."""
        found = self._concerns.find(Receipt)
        return () if found is None else concerns[found[0]].alarms

    def _receipt(self, what: str) -> tuple[PolicyState, Receipt, ReceiptState]:
        """Return the state after all feedback, the receipt and its state."""
        found = self._concerns.find(Receipt)
        if found is None:
            raise CBanditError(
                f"{what}: {self.name} is told no costs, so there is nothing to certify"
            )
        now = self._absorb_all()
        slot, concern = found
        return now, concern, now.concerns[slot]

    def _table(self) -> Mapping[str, Tensor]:
        """Return the history of all rounds as a table, see :meth:`History.table`."""
        return self._history.table(self._ledger.all(self._now.t))

    def _set_state(
        self, state: object, concerns: tuple[Any, ...] | None = None
    ) -> None:
        """Replace the rule's state between rounds, and the concerns' if given."""
        now = self._now._replace(state=state, settled=False)
        if concerns is not None:
            now = now._replace(concerns=concerns)
        self._now, self._latest = now, None

    def _jump_to_round(self, t: int, state: object, concerns: tuple[Any, ...]) -> None:
        """Make round ``t`` the next one, with these states of rule and concerns.

        Other copies of the policy may have played the rounds before. The draws of round
        ``t`` depend on the seed and ``t`` alone.
        """
        self._set_state(state, concerns)
        self._streams = Streams(self.seed, self.trials, f"round {t}")
        position = self._streams.position()
        self._now = self._now._replace(t=t - 1, position=position)

    # -- what happened ---------------------------------------------------------------

    @property
    @locked
    def outstanding(self) -> list[Choice]:
        """Choices whose feedback has not all come, oldest first, without expired ones.

        The list prints what each choice waits for.
        """
        ledger = self._ledger
        waiting = ledger.waiting(self._now.t)
        return Outstanding(waiting, self._labels[: ledger.awaits])

    @locked
    def history(self) -> pd.DataFrame:
        """Return all rounds as a pandas frame, with a row for each round and trial.

        Columns: ``id``, ``round``, the action by name (else ``action`` and ``x1``..),
        ``state`` (open, told, failed, cancelled or expired), the times ``asked`` and
        (last) ``told``, ``reward``, costs, multipliers, and ``score`` if the policy
        maximises one. Where they were told, also the tries (``tries_fails``; for counts
        ``exposure_restarts``) that a share or rate is of, and observations' own
        variances (``noise_reward``); where they change, limits (``limit_latency``).
        A GP policy takes it back: ``observe(history)``.

        Data given to ``observe`` is not in it, as no round was asked for it.
        """
        entries, names = self._ledger.all(self._now.t), self.actions.names
        return self._history.frame(
            entries, self.objective, names, self.trials, self._outcomes
        )

    @locked
    def log(self) -> Log | list[Log]:
        """Return the rounds played with the chances of their choices.

        :func:`cbandit.evaluate` judges another policy by it. Rounds whose choice was
        certain have no chances, see ``explore_share=``. Cancelled choices and those of
        ``ask(actions=)`` are left out; of a set with more than 50 choices only those
        are listed that were played or had a chance. With trials it is a list, a log a
        trial. ``log.save(path)`` writes parquet.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(model=cb.Category("small", "large"))
            >>> gp = cb.GP.default(space)
            >>> policy = cb.RPOL(
            ...     space, reward=gp, costs={"ms": gp}, thresholds={"ms": "<= 90"},
            ...     explore_share=0.1,
            ... )
            >>> for _ in range(3):
            ...     policy.tell(policy.ask(), reward=2.0, cost={"ms": 95.0})
            >>> policy.log().actions
            ({'model': 'small'}, {'model': 'large'})
        """
        now, ranges = self._absorb_all(), self._known_ranges()
        limits = self.objective.costs(self.limits(now.t + 1)).expand(self.size, -1)
        of = self._table(), self.actions, self.objective
        logs = [log_of(i, limits[i], ranges, *of) for i in range(self.size)]
        return logs if self.batch_shape else logs[0]

    def _known_ranges(self) -> dict[int, tuple[float, float]]:
        """Return what functions cannot leave, in the user's sense, by number."""
        out, signs = {}, self.objective.signs.tolist()
        for f, ends in enumerate(self._ranges):
            if ends is not None:
                out[f] = ends if signs[f] > 0 else (-ends[1], -ends[0])
        out |= dict.fromkeys(
            (f for f, kind in self._outcomes.items() if kind == BINARY), (0.0, 1.0)
        )
        found = self._concerns.find(Receipt)
        return out if found is None else out | found[1].ranges()

    @locked
    def explain(self, choice: Choice | str) -> Explanation:
        """Explain why a choice was made; takes a choice or its id, prints as text.

        Every choice has what was stored when it was made: estimates, multiplier and
        score. With standardised beliefs these are in spreads of the data seen, and the
        text says so. The latest choice of a GP policy also has the beliefs it was made
        by, in the user's units, until the next ``ask`` or look absorbs feedback.
        """
        if not isinstance(choice, str | Choice):
            raise ChoiceError(
                f"choice must come from ask(), or be its id; got {checks.kind(choice)}"
            )
        name = choice if isinstance(choice, str) else choice.id
        row = self._history.row(name, self._ledger.all(self._now.t))
        if row is None:
            raise ChoiceError(f"no choice of this policy is called {name!r}")
        outside, index, t = self._user_shape, row["index"], int(row["round"])
        latest, more = self._latest, {}
        if latest is not None and t == latest.t:
            more = self._explain_latest(latest)
        known: dict[str, Any] = {
            name: None if bool(row[name].isnan().all()) else outside(row[name])
            for name in ("estimate", "score", *["multiplier"] * (self.m > 0))
        }
        return Explanation(
            id=name,
            t=t,
            index=None if bool((index < 0).any()) else outside(index),
            x=outside(row["x"]),
            labels=self._labels,
            names=self.actions.names,
            unit="spreads" if self.standardized else "",
            own_score=self._acquires,
            **known,
            **more,
        )

    @locked
    def foresee(self, contexts: Sequence[Any] = (None,)) -> list[Choice]:
        """Return what ``ask`` would choose now in each of several contexts.

        No round begins and nothing is learned: the policy stays as it is. A policy that
        draws its choices makes the same draw in every context; ``choice.distribution``
        has the probabilities where it knows them.

        Args:
            contexts: each as ``ask(context=)`` takes it; one ``None`` where the set has
                no contexts.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8), load=cb.Context(1))
            >>> policy = cb.GPUCB(space, reward=cb.GP.default(space))
            >>> choices = policy.foresee([{"load": 0.1}, {"load": 0.9}])
            >>> len(choices), policy.t
            (2, 0)
        """
        return copy.deepcopy(self)._play_again(contexts)

    def _play_again(self, contexts: Sequence[Any]) -> list[Choice]:
        """Play the next round once in each context, always from the same state."""
        now = self._catch_up()
        if self.horizon is not None:  # beyond it the last round is played again
            now = now._replace(t=min(now.t, self.horizon - 1))
        choices = []
        for context in contexts:
            vars(self).update(_now=now, _latest=None)
            choices.append(self.ask(context=context))
        return choices

    def _make_posterior(self, mean: Tensor, std: Tensor) -> Posterior:
        """Return means and deviations ``(T, F, N)`` in the form that users get."""
        mean, outside = self.objective.functions(mean), self._user_shape
        reward = Marginal(outside(mean[:, 0]), outside(std[:, 0]))
        if mean.shape[1] == 1:
            return Posterior(reward, None)
        return Posterior(reward, Marginal(outside(mean[:, 1:]), outside(std[:, 1:])))

    # -- the picture -----------------------------------------------------------------

    def _believe_at(self, x: Tensor) -> Posterior | None:
        """Return the beliefs at points ``(n, d)``; ``None``: the policy has none."""
        return None

    def _points_to_deploy(self, trial: int) -> Tensor | None:
        """Return what a trial would deploy, ``(k, d)``, likeliest first.

        ``None``: nothing is recommended.
        """
        return None

    @locked
    def plot(
        self,
        knobs: str | int | Sequence[str | int] | None = None,
        at: Mapping[str, Any] | None = None,
        trial: int = 0,
    ) -> Figure:
        """Draw beliefs, limits and what was told; then multiplier and certificate.

        Beliefs are drawn over one or two knobs, the others held where the policy would
        play at best. Dots are all rounds told, wherever their other knobs were. It
        needs the extra ``plots``.

        Args:
            knobs: one or two of the set's names (``"x1"`` is the first of coordinates
                without names) or their numbers from 0; ``None``: the first two.
            at: values of other knobs and of contexts, by name.
            trial: the trial that is drawn, counted from 0.

        Example:
            >>> import cbandit as cb
            >>> space = cb.Space(threads=cb.Int(1, 8))
            >>> policy = cb.GPUCB(space, reward=cb.GP.default(space))
            >>> policy.tell(policy.ask(), reward=2.0)
            >>> figure = policy.plot()
            >>> figure.savefig("policy.png")                        # doctest: +SKIP
        """
        trial = checks.whole("trial", trial, 0, "a trial's number", self.size - 1)
        axes, past = picture.read_axes(self.actions, knobs), self._table()
        best = self._points_to_deploy(trial)
        base = picture.base_point(self.actions, past["x"][:, trial], best, at)
        found = self._concerns.find(Receipt)
        parts = picture.Parts(
            f"{self.name}, round {self._now.t}",
            axes,
            self.objective,
            past,
            trial,
            self._believe_at(picture.points_along(axes, base)),
            self.limits(self._now.t + 1).expand(self.size, -1)[trial],
            best,
            None if found is None else found[1].costs,
        )
        return parts.draw()

    # -- checkpoints -----------------------------------------------------------------

    @locked  # noqa: B027  # most policies have no such arrays
    def lighten(self, actions: bool = True) -> None:  # not every policy
        """Drop arrays that are faster to compute again than to save.

        If ``actions`` is false, drop every array over the set.
        """

    @locked
    def save(
        self,
        path: str | os.PathLike[str],
        overwrite: bool = False,
        actions: bool = True,
    ) -> None:
        """Write the policy to ``path``, atomically; :func:`cbandit.load` reads it.

        Args:
            path: the file. It is an error, and the file stays, if others have saved it
                since this policy was loaded from it or saved to it, if it holds more
                rounds than this policy, or if it holds a run.
            overwrite: replace such a file all the same.
            actions: whether the file holds the set. Without it the file is small: it
                holds a digest of the set but no points, and no arrays over them. Give
                the set to :func:`cbandit.load` then. Both sides compute the arrays
                anew, as they do beyond 256 MB: the next round takes that much longer.
        """
        actions = checks.flag("actions", actions)
        overwrite = checks.flag("overwrite", overwrite)
        apart = None
        if not actions:
            label = self._files.label(self.actions, self.device, self.dtype)
            apart = graph.Apart(self.actions, label)
        self.lighten(actions)
        self._files.write(path, self, self._now.t, apart, overwrite)

    __copy__ = copy.deepcopy  # a shallow one would share the ledger

    def __setattr__(self, name: str, value: object) -> None:
        if name[0] != "_" and self._is_read_only(name):
            way = ""
            if name in ("thresholds", "objective"):
                way = ": limit(name, '<= 60') changes a limit, from the next ask on"
            elif (
                name in self.common or name in inspect.signature(type(self)).parameters
            ):
                way = f": build a policy with another {name}="
            raise ReadOnlyError(
                f"{type(self).__name__}.{name} cannot be assigned, as the policy's "
                f"state rests on it{way}"
            )
        object.__setattr__(self, name, value)

    def _is_read_only(self, name: str) -> bool:
        """Return whether users cannot assign an attribute."""
        held = vars(self)
        if name in held.get("_keywords", ()):
            return True
        if name in READ_ONLY or name in held.get("settings", ()):
            return name in held or isinstance(getattr(type(self), name, 0), property)
        return False

    @locked
    def __getstate__(self) -> dict[str, Any]:
        return pack(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(unpack(state))

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def __repr__(self) -> str:
        actions = repr(self.actions)
        if len(actions) > MAX_REPR_LENGTH:
            actions = f"{type(self.actions).__name__}(dim={self.actions.dim})"
        parts = [actions, *self._engine_texts(), f"costs={self.m}"]
        if self.trials is not None:
            first, count = self.trials[0], len(self.trials)
            parts.append(f"trials={self.trials if first else count}")
        return f"{type(self).__name__}({', '.join(parts)}, t={self._now.t})"


def with_common_help(cls: type[Any]) -> str | None:
    """Return a class' docstring, with shared arguments added if it has ``common:``."""
    help_text: str | None = cls.__dict__.get("__doc__")
    text = inspect.cleandoc(help_text or "")  # as Python itself does from 3.13 on
    if "\n    common: " not in text:
        return help_text or cls.__doc__
    lines = [
        f"    {name}: {meaning}"
        for name, meaning in cls.common.items()
        if f"\n    {name}: " not in text
    ]
    known = ["Attributes:", "    t: the round last asked for, 0 before the first."]
    return "\n".join([text, "", "Common:", *lines, "", *known, ""])


Policy.__doc__ = with_common_help(Policy)
