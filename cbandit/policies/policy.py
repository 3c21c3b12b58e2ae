"""The rounds of a policy: ask, tell, cancel, outstanding.

``ask`` starts a round; ``tell`` puts feedback into a ledger; the next ``ask`` (or a
look at the beliefs) absorbs it in the order of rounds. So tells commute, and one that
fails has changed nothing. All that rounds change is one value, which one assignment
replaces: an ``ask`` that fails or is interrupted has changed nothing either.
"""

from __future__ import annotations

import copy
import secrets
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from logging import DEBUG
from time import time
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checkpoint, checks, devices, distributed
from cbandit._core.arguments import stated
from cbandit._core.hints import hinted
from cbandit._core.log import LOG, warn
from cbandit._core.names import trusted
from cbandit._core.randomness import Position, Streams, Trials, trial_range
from cbandit.actions import Actions, checked_actions
from cbandit.choice import Choice
from cbandit.errors import CBanditError, HorizonError
from cbandit.policies import given, shared
from cbandit.policies.alone import Door, alone
from cbandit.policies.decision import Asked, Decision, checked, choice_of, kept, pair_of
from cbandit.policies.explained import Rivals, explain
from cbandit.policies.failures import Failed
from cbandit.policies.ledger import Entry, Ledger, Made, News, Outstanding
from cbandit.policies.names import finished, meant, said
from cbandit.policies.record import Record, history
from cbandit.policies.senses import UNSAID, Senses
from cbandit.policies.state import Now
from cbandit.policies.telling import entered, failed_in

__all__ = ["Now", "Policy", "load"]

MANY = 100  # choices outstanding, of a policy that does not count on them


class Policy(metaclass=ABCMeta):
    """Bookkeeping of rounds, choices and feedback.

    A policy is two functions of its state, a value that they replace and never change:
    ``decide`` (the rule) and ``absorb`` (what feedback changes). Its constructor calls
    ``self._begin(state)`` with the first one. Inside, tensors lead with the trials, ``T
    = self._size`` of them, which is 1 where there is no trials axis.
    ``self._limits(t)`` are the thresholds ``(T, m)``, and ``asked.streams.uniform(n)``
    draws ``n`` numbers for each trial: ``(n,)`` without a trials axis, else ``(T, n)``.

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
        ...         shape = (self._size, actions.size, 1 + self.m)  # the reward first
        ...         nothing = torch.zeros(shape, dtype=torch.float64)
        ...         self._begin((nothing, nothing))  # sums, and how many they are of
        ...
        ...     def decide(self, state, asked):
        ...         sums, tries = state
        ...         means = sums / tries.clamp(min=1)
        ...         above = means[..., 1:] - self._limits(asked.t).unsqueeze(-2)
        ...         score = means[..., 0] - 10 * above.clamp(min=0).sum(-1)
        ...         score[tries[..., 0] == 0] = torch.inf
        ...         if asked.mask is not None:
        ...             score = score.where(asked.mask, -torch.inf)
        ...         return cb.Decision(score.argmax(-1)), state
        ...
        ...     def absorb(self, state, news):
        ...         sums, tries = (each.clone() for each in state)
        ...         row, arm = torch.arange(self._size), news.choice.index.reshape(-1)
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
    learns_costs = True  # whether a choice waits for its cost to be told
    sees_costs = False  # whether ask takes observed_costs
    no_noise = ""  # why tell takes no noise, where it does not
    piecemeal = False  # whether costs may come one by one; else they wait for all
    patient = False  # whether it counts on choices that wait for their feedback
    standardized = False  # whether multipliers are in spreads, not in the user's units
    common: Mapping[str, str] = shared.POLICY  # what constructors hand on, with help
    _reminded = False
    _failed: Failed | None = None
    _latest: tuple[Asked, Position] | None = None  # the round, and draws before it

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Help on a policy names the arguments it shares with others too."""
        super().__init_subclass__(**arguments)
        cls.__doc__ = shared.documented(cls)
        if "__init__" in vars(cls):
            cls.__init__ = hinted(cls.__init__)  # type: ignore[method-assign]

    def __init__(
        self,
        actions: Actions,
        m: int | Sequence[str],
        *,
        thresholds: Any = UNSAID,
        minimise: bool = False,
        seed: int = 0,
        trials: Trials = None,
        device: Any = None,
        dtype: Any = None,
        horizon: int | None = None,
    ) -> None:
        self.settings = stated(self, locals())
        checked_actions(actions)
        self.device = checks.device(device)
        self.dtype = given.array_type(dtype, self.device)
        #: the user's words for costs and senses
        self.senses = Senses.of_policy(m, thresholds, minimise)
        self.m, thresholds = self.senses.m, self.senses.limits
        self.trials, self.seed = trial_range(trials), checks.seed(seed)
        self.batch_shape = () if self.trials is None else (len(self.trials),)
        self._size = 1 if self.trials is None else len(self.trials)
        if actions.batch_shape and tuple(actions.batch_shape) != self.batch_shape:
            raise CBanditError(
                f"actions have sets for {actions.batch_shape[0]} trials; trials must "
                f"be that number, got {trials!r}"
            )
        self.actions: Any = actions.to(self.device, self.dtype)
        if horizon is not None:
            horizon = checks.whole("horizon", horizon, 1, "None or a positive int")
        self.horizon = horizon
        if not callable(thresholds):
            thresholds = self._per_cost("thresholds", thresholds)
        self.thresholds: Callable[[int], Any] | Tensor = thresholds
        # whether there is anything to subtract
        self._limited = callable(thresholds) or bool(thresholds.any())
        self._streams = Streams(self.seed, self.trials, "policy")
        # of the ids that this policy gives out, and gave out before it was copied
        self._prefixes: tuple[str, ...] = (secrets.token_hex(6),)
        #: the files that it was loaded from or saved to, as it left them
        self.digests: checkpoint.Digests = {}
        self._door = Door()
        self._ledger = Ledger()
        costs = self.m > 0 and self.learns_costs
        self._record = Record(self._size, self.m, self.actions.dim, costs)
        self._nowhere = torch.zeros(self.batch_shape, dtype=torch.bool).to(self.device)
        self._now = Now(0, None, self._streams.position(), 0)

    # -- what a policy fills in ------------------------------------------------------

    def _begin(self, state: Any) -> None:
        """Set the first state; a constructor calls this."""
        self._now = self._now._replace(state=state)

    @abstractmethod
    def decide(self, state: Any, asked: Asked) -> tuple[Decision, Any]:
        """Return what to play in this round, and the state after it.

        It changes nothing but by drawing from ``asked.streams``.
        """

    @abstractmethod
    def absorb(self, state: Any, news: News) -> Any:
        """Return the state after feedback of one choice.

        Args:
            state: the state before.
            news: ``news.choice`` is what ``ask`` gave out, so that its ``index`` is
                ``(*trials,)``; ``news.rewards`` and ``news.costs`` list what has come
                since the last call: ``values`` are ``(T, 1)`` and ``(T, m)``, and only
                the trials of ``mask()`` count.
        """

    def _stood(self, state: Any, choice: Choice) -> Any:
        """Return the state after a choice that stands, before any feedback."""
        return state

    def _leans_on(self) -> Sequence[tuple[int | None, Tensor]] | None:
        """Return the action it cannot do without: number and point of each trial."""
        return None

    def _left_over(self) -> Tensor | None:
        """Return the actions that have not failed, ``(T, N)``; ``None``: none has."""
        if self._failed is None:
            return None
        left, _ = self._failed.restricted(self, self.actions, None)
        return left

    def _due(self, state: Any) -> Any:
        """Return the state after what time makes due, all feedback being absorbed."""
        return state

    # -- shapes ----------------------------------------------------------------------

    def _per_trial(self, name: str, value: Any) -> Tensor:
        """Return a number or ``(*trials,)`` as ``(T,)``."""
        return devices.put(checks.per_trial(name, value, self.batch_shape), self.device)

    def _per_cost(self, name: str, value: Any) -> Tensor:
        """Return a number, ``(m,)`` or ``(*trials, 1 or m)`` as ``(T, m)``."""
        value = checks.finite(name, checks.tensor(name, value))
        shaped = checks.per_cost(name, value, self.batch_shape, self.m)
        return devices.put(shaped, self.device)

    def _number(self, name: str, value: Any) -> Tensor:
        """Return a number, ``(*trials,)`` or ``(1 or *trials, m)`` as ``(T, m)``."""
        value = checks.tensor(name, value)
        if self.batch_shape and tuple(value.shape) == self.batch_shape:
            value = value.unsqueeze(-1)
        return self._per_cost(name, value)

    def _outside(self, value: Tensor) -> Tensor:
        """Return a tensor led by ``T`` as users see it: without, if trials is None."""
        return value if self.batch_shape else value[0]

    def _limits(self, t: int) -> Tensor:
        """Return the thresholds of a round, ``(T, m)``."""
        if callable(self.thresholds):
            given = self.senses.limited(self.thresholds(t))
            return self._per_cost("thresholds", given)
        return self.thresholds

    # -- rounds ----------------------------------------------------------------------

    @property
    def t(self) -> int:
        """The round last asked for, 0 before the first."""
        return self._now.t

    @property
    @alone
    def multiplier(self) -> Tensor:
        """As the next ``ask`` will use it, ``(*trials, m)``; empty: there is none."""
        shape = (*self.batch_shape, 0)
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    @property
    @alone
    def price(self) -> Tensor:
        """The multiplier in the user's units, ``(*trials, m)``."""
        return self.multiplier

    @alone
    def ask(
        self, *, among: Any = None, actions: Any = None, observed_costs: Any = None
    ) -> Choice:
        """Start the next round and choose.

        One that fails, or is interrupted by Ctrl-C, is as if nobody had asked.

        Args:
            among: a mask ``(N,)`` or ``(*trials, N)``, or action numbers ``(k,)`` or
                ``(*trials, k)``: only these may be chosen this round.
            actions: a set for this round alone, solved afresh; the choice's index
                refers to it.
            observed_costs: this round's costs on every action, ``(*trials, m, N)``, for
                policies that see them in full; on a Box a callable, ``x (*trials, n, d)
                -> (*trials, m, n)``.
        """
        if (observed_costs is not None) != self.sees_costs:
            raise given.costs_not_for(self.name, self.sees_costs)
        if observed_costs is not None:
            observed_costs = self.senses.observed(observed_costs)
        t = self._now.t + 1
        if self.horizon is not None and t > self.horizon:
            raise HorizonError(
                f"ask: the horizon of {self.horizon} rounds has passed; build the "
                "policy with a larger horizon="
            )
        if among is not None and actions is not None:
            raise CBanditError("ask takes among= or actions=, not both")
        mask = None
        if among is not None:
            mask = given.round_mask(among, self.actions, self.batch_shape, self.device)
        now, streams, ledger = self._settled(), self._streams, self._ledger
        streams.go(now.position)
        on = self.actions if actions is None else self._round_actions(actions)
        barred = None
        if self._failed is not None:
            mask, barred = self._failed.restricted(self, on, mask)
        asked = Asked(t, on, mask, observed_costs, streams, ledger, barred)
        decision, state = pair_of(self, self.decide(now.state, asked))
        if type(decision) is not Decision or not decision.sure:
            rule, kind = f"{type(self).__name__}.decide", (self.device, self.dtype)
            decision = checked(rule, decision, asked, self._size, self.m, *kind)
        choice = choice_of(self, asked, decision)
        own = kept(choice)
        state = self._stood(state, own)
        phi, entered = getattr(state, "multiplier", None), decision.estimate
        ledger.open(own, choice, Made(time(), phi, entered, decision.score))
        # all that a round changes; what came before does not count without this
        self._now = Now(t, state, streams.position(), now.heard)
        self._latest = asked, now.position
        if LOG.isEnabledFor(DEBUG):
            LOG.debug("%s asks %s", self.name, choice)
        if len(ledger) >= MANY and not (self.patient or self._reminded):
            self._reminded = True
            text = ledger.reminder(self.name, self._record.costly)
            warn(text)
        return choice

    def _round_actions(self, actions: Any) -> Any:
        """Return the set of this round, on the policy's device."""
        found = given.round_actions(actions, self.actions, self.batch_shape)
        return found.to(self.device, self.dtype)

    # -- feedback --------------------------------------------------------------------

    @alone
    def tell(
        self,
        choice: Choice | str,
        reward: Any = None,
        cost: Any = None,
        noise: Any = None,
        where: Any = None,
        failed: bool = False,
    ) -> None:
        """Say what came of a choice: reward and cost together, or apart and later.

        Args:
            choice: what ``ask`` returned, or its ``id``.
            reward: ``(*trials,)``.
            cost: ``(*trials, m)``, or ``(*trials,)`` where ``m`` is 1: all ``m`` at
                once. Or some of them by name, ``{"latency": 3.1}``, the others later.
                Where one will never come, tell the rest, and then :meth:`cancel`. It
                teaches nothing where ``ask`` was given all costs.
            noise: this observation's variance, ``(*trials,)``, instead of the belief's,
                where the policy can take it.
            where: ``(*trials,)`` bool, the trials in which this has come.
            failed: that the action cannot be measured. It is not asked for again, on a
                Box nor is what lies within 1e-3 of it (of the unit cube, in the same
                row of choices), on a Star nor is its segment. Beliefs learn nothing;
                a multiplier moves as in a round of which nothing was told. For what may
                work another time, :meth:`cancel`.
        """
        mask = None if where is None else given.told_in(where, self.batch_shape)
        known = self.sees_costs and reward is None and cost is not None
        rest = self._ledger, self.t, self._prefixes
        if (mask is not None or known) and finished(choice, *rest):
            if known or not bool(torch.as_tensor(mask).any()):
                return  # nothing that has not come already
        entry = self._entry(choice)
        if not checks.flag("failed", failed):
            self._ledger.put(entered(self, entry, reward, cost, noise, mask))
            return
        new = failed_in(self, entry, (reward, cost, noise), mask)
        before = self._failed or Failed.none(self._size, self.actions.dim)
        self._failed = before.added(self, entry.choice, mask)
        self._ledger.put(new)
        LOG.info("%s: choice %s has failed", self.name, entry.choice.id)

    @alone
    def cancel(self, choice: Choice | str) -> None:
        """Say that the rest of a choice's feedback will never come."""
        entry = self._entry(choice)
        serial = self._ledger.number()
        self._ledger.put(entry._replace(closed=True, cancelled=serial))
        LOG.info("%s: choice %s is cancelled", self.name, entry.choice.id)

    @property
    @alone
    def outstanding(self) -> list[Choice]:
        """Choices whose feedback has not all come, oldest first.

        It prints as what each of them waits for.
        """
        costs = range(self.m if self.learns_costs else 0)
        labels = ("reward", *map(self.senses.label, costs))
        return Outstanding(self._ledger.waiting(self._now.t), labels)

    history = alone(history)
    explain = alone(explain)

    def _rivals(self, asked: Asked, position: Position) -> Rivals | None:
        """Return beliefs at the latest choice and its alternatives, where known."""
        return None

    def _entry(self, choice: Choice | str) -> Entry:
        """Return the entry of a choice that waits for feedback."""
        return meant(choice, self._ledger, self.t, self._prefixes, self._record)

    def _accepted(
        self, name: str, values: Tensor, functions: Sequence[int], mask: Tensor | None
    ) -> Tensor:
        """Return what was told of some functions, an error if it cannot be."""
        return values

    def _settled(self) -> Now:
        """Absorb all that was told, in the order of rounds, and return what is now."""
        now, ledger = self._now, self._ledger
        heard, state = ledger.last, now.state
        if now.settled and heard == now.heard:
            return now
        self._latest = None
        if heard != now.heard:
            for news in ledger.news(now.heard):
                state = self.absorb(state, news)
        self._now = now = Now(now.t, self._due(state), now.position, heard, True)
        ledger.tidy(heard, self._record.put)
        return now

    def _change(self, state: Any) -> None:
        """Replace the state between rounds."""
        self._now, self._latest = self._now._replace(state=state, settled=False), None

    # -- checkpoints -----------------------------------------------------------------

    @alone
    def lighten(self) -> None:
        """Absorb all that was told; drop what is better computed afresh than saved."""
        self._settled()

    @alone
    def save(self, path: Any, overwrite: bool = False) -> None:
        """Write all to ``path``, atomically; :func:`cbandit.load` goes on from it.

        Args:
            path: of the file. It is kept, with an error, where others have saved it
                since this policy was loaded from it or saved to it, and where it holds
                more rounds than this policy, or a run.
            overwrite: replace a checkpoint that others have saved, and what it holds.
        """
        overwrite = checks.flag("overwrite", overwrite)
        self.lighten()
        digests, self.digests = self.digests, {}  # where files lie stays out of them
        rest = "policy", self, digests, overwrite, self._now.t
        try:
            distributed.current().first(lambda: checkpoint.write(path, *rest))
        finally:
            self.digests = digests

    __copy__ = copy.deepcopy  # a shallow one would share the ledger

    @alone
    def __getstate__(self) -> dict[str, Any]:
        # the streams themselves say where they are
        self._streams.go(self._now.position)
        now = tuple(self._now._replace(position=None))  # type: ignore[arg-type]
        return {**vars(self), "_now": now, "_latest": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prefixes = (*self._prefixes, secrets.token_hex(6))
        now = Now(*state["_now"])
        self._now = now._replace(position=self._streams.position())

    def __repr__(self) -> str:
        return said(self)

    def _engines(self) -> list[str]:
        """Return what keeps its beliefs, for ``repr``, where there is a choice."""
        return []


Policy.__doc__ = shared.documented(Policy)


def load(path: Any, trust: Any = ()) -> Policy:
    """Load the policy that ``policy.save(path)`` wrote; it goes on bit for bit.

    No code of the file's is run. It holds numbers, and names of classes and functions:
    those of cbandit, and kernels, priors and constraints of gpytorch and botorch, are
    known. All others, your own kernels, policies, schedules, thresholds, draws and
    penalties among them, are refused unless you pass them.

    Args:
        path: of the file.
        trust: a tuple of classes and functions that the file may name too; of objects,
            for their classes; of modules, for all that is written in them. Trust only
            code that you would let the file call, whatever it gives it.

    Example:
        >>> policy.save("state.ckpt")                               # doctest: +SKIP
        >>> policy = cb.load("state.ckpt", trust=(my_schedule,))    # doctest: +SKIP
    """
    digests: checkpoint.Digests = {}
    rest = trusted(trust), distributed.current(), digests
    policy: Policy = checkpoint.read(path, "policy", Policy, *rest)
    policy.digests = digests
    return policy
