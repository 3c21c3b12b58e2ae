"""What every policy does with choices and feedback, whatever it believes.

``ask`` starts a round; ``tell`` puts feedback into an inbox; the next ``ask`` (or a
look at the posterior) empties it in the order of rounds. So tells commute, and one that
fails has changed nothing.
"""

from __future__ import annotations

import difflib
import inspect
import re
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit._core.arguments import Stated
from cbandit._core.interrupts import Held
from cbandit._core.randomness import Streams, Trials, trial_range
from cbandit.actions import Actions, Box, Finite, checked_index
from cbandit.choice import Choice, Distribution
from cbandit.errors import CBanditError, ChoiceError, HorizonError

__all__ = ["COST_COUNT", "Decision", "Policy", "Told", "listed"]

LONG = 60  # letters of a set in a policy's repr
MANY = 100  # choices outstanding, of a policy that does not count on them
COST_COUNT = "the number of costs, an int of at least 1"
_TOGETHER = (
    ". All costs of a choice are told at once: where one will never come, tell the "
    "reward alone and cancel(choice)"
)


@dataclass
class Decision:
    """What a policy's rule comes to in a round, ``T`` trials at once.

    Args:
        index: the action's number, ``(T,)``.
        infeasible: ``(T,)``, or ``None``: nothing to report.
        distribution: what the action was drawn from, ``(T, k)``.
        x: the action itself, ``(T, d)``, where it is not that of its number.
        keys: see :class:`~cbandit.search.Best`, where they are known.
    """

    index: Tensor | None
    infeasible: Tensor | None = None
    distribution: Distribution | None = None
    x: Tensor | None = None
    keys: list[Any] | None = None


@dataclass
class Told:
    """Feedback of one choice that waits to be absorbed.

    Args:
        values: ``(T, 1)`` for the reward, ``(T, m)`` for costs.
        where: ``(T,)`` bool, on the host, or ``None``: all trials.
        noise: this observation's variance, ``(T,)``, or ``None``.
        at: the round in which it was told.
    """

    values: Tensor
    where: Tensor | None
    noise: Tensor | None
    at: int

    def mask(self) -> Tensor:
        """``where``, beside the values."""
        if self.where is None:
            shape, device = len(self.values), self.values.device
            return torch.ones(shape, dtype=torch.bool, device=device)
        return devices.put(self.where, self.values.device)


@dataclass
class _Open:
    """An outstanding choice, and in which trials its feedback has come.

    ``own`` is the policy's: whoever asked may change in place what is in ``choice``.
    """

    choice: Choice
    own: Choice
    reward_seen: Tensor | bool = False
    cost_seen: Tensor | bool = False


@dataclass
class _Mail:
    """Feedback of one choice since the last ``ask``."""

    choice: Choice
    rewards: list[Told] = field(default_factory=list)
    costs: list[Told] = field(default_factory=list)


class Policy(Stated, ABC):
    """Bookkeeping of rounds, choices and feedback.

    A policy fills in ``_decide`` (the rule) and ``_absorb`` (what feedback changes).
    Inside, tensors lead with the trials, ``T = self._size`` of them, which is 1 where
    there is no trials axis. ``self._limits(t)`` are the thresholds ``(T, m)``, and
    ``self._streams.uniform(n)`` draws ``n`` numbers for each trial. ``save`` keeps all
    attributes. ``t`` is the round last asked for, 0 before the first.

    Args:
        actions: what can be chosen.
        m: how many costs.
        thresholds: what costs are compared with, 0 unless given: a number, ``(m,)``,
            ``(*trials, m)`` or, where no two costs differ, ``(*trials, 1)``; or a
            callable of the round that gives one of these.
        seed: of all draws, an int from 0; one seed, one run.
        trials: ``None``, how many replications run side by side, or a ``range`` of
            their numbers (a part of a larger batch).
        device: where tensors live, ``"cpu"`` (the default) or ``"cuda"``.
        dtype: of arrays over the actions, ``"float64"`` or ``"float32"`` (or torch's
            own names); float64 on the CPU and float32 on CUDA by default. float32 has
            seven digits, for coordinates too: centre those that lie far from 0 against
            a kernel's lengthscale, a linear kernel's above all, or take float64.
        horizon: the last round, where one is known.

    Example:
        >>> import cbandit as cb, torch
        >>> class Greedy(cb.Policy):  # every arm once, then the best within limits
        ...     name = "Greedy"
        ...
        ...     def __init__(self, actions, m, **common):
        ...         super().__init__(actions, m, **common)
        ...         shape = (self._size, actions.size, 1 + m)  # the reward first
        ...         self.sums = torch.zeros(shape, dtype=torch.float64)
        ...         self.tries = torch.zeros(shape, dtype=torch.float64)
        ...
        ...     def _decide(self, t, asked, mask, observed_costs):
        ...         means = self.sums / self.tries.clamp(min=1)
        ...         above = means[..., 1:] - self._limits(t).unsqueeze(-2)
        ...         score = means[..., 0] - 10 * above.clamp(min=0).sum(-1)
        ...         score[self.tries[..., 0] == 0] = torch.inf
        ...         if mask is not None:
        ...             score = score.where(mask, -torch.inf)
        ...         return cb.Decision(score.argmax(-1))
        ...
        ...     def _absorb(self, choice, rewards, costs):
        ...         row, arm = torch.arange(self._size), choice.index.reshape(-1)
        ...         outputs = [(told, slice(0, 1)) for told in rewards]
        ...         outputs += [(told, slice(1, None)) for told in costs]
        ...         for told, which in outputs:
        ...             came = told.mask().unsqueeze(-1)
        ...             self.sums[row, arm, which] += told.values.where(came, 0.0)
        ...             self.tries[row, arm, which] += came
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
    patient = False  # whether it counts on choices that wait for their feedback
    _reminded = False
    _foreign = False  # whether its rule is of somebody's own

    @classmethod
    def _about_to_take(cls, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Wrong arguments are told by the name of the class that was called."""
        # a class of one's own knows what it takes; what is unpickled is given nothing
        home = cls.__init__.__module__ or ""  # none, of a class made by exec
        if (arguments or named) and home.startswith("cbandit."):
            _taken(cls, arguments, named)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Help on a policy names the arguments it shares with others too."""
        super().__init_subclass__(**arguments)
        cls.__doc__ = _with_shared_arguments(cls)
        cls._foreign = not (cls._decide.__module__ or "").startswith("cbandit.")

    def __init__(
        self,
        actions: Actions,
        m: int,
        *,
        thresholds: Any = 0.0,
        seed: int = 0,
        trials: Trials = None,
        device: Any = None,
        dtype: Any = None,
        horizon: int | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise TypeError(_unknown(type(self), next(iter(unknown))))
        if not isinstance(actions, Actions):
            raise CBanditError(
                "actions must be a cb.Finite (which takes points as rows), "
                f"cb.ProductGrid, cb.Box or cb.Star; got {checks.kind(actions)}"
            )
        self.device = checks.device(device)
        self.dtype, self.m = _dtype(dtype, self.device), m
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
        self._thresholds = (
            thresholds
            if callable(thresholds)
            else self._per_cost("thresholds", thresholds)
        )
        # whether there is anything to subtract
        self._limited = callable(self._thresholds) or bool(self._thresholds.any())
        self.t = 0
        # of policies that have any
        self._multiplier = torch.zeros(
            self._size, 0, dtype=torch.float64, device=self.device
        )
        self._streams = Streams(self.seed, self.trials, "policy")
        self._mark = secrets.token_hex(8)
        self._open: dict[int, _Open] = {}
        self._inbox: dict[int, _Mail] = {}
        self._nowhere = torch.zeros(
            self.batch_shape, dtype=torch.bool, device=self.device
        )

    @property
    def multiplier(self) -> Tensor:
        """As the next ``ask`` will use it, ``(*trials, m)``; empty: there is none."""
        return self._outside(self._multiplier.clone())

    # -- shapes --------------------------------------------------------------------

    def _per_trial(self, name: str, value: Any) -> Tensor:
        """A number or ``(*trials,)`` as ``(T,)``."""
        return devices.put(checks.per_trial(name, value, self.batch_shape), self.device)

    def _per_cost(self, name: str, value: Any) -> Tensor:
        """A number, ``(m,)``, ``(*trials, 1)`` or ``(*trials, m)`` as ``(T, m)``."""
        value = checks.finite(name, checks.tensor(name, value))
        shaped = checks.per_cost(name, value, self.batch_shape, self.m)
        return devices.put(shaped, self.device)

    def _number(self, name: str, value: Any) -> Tensor:
        """A number or ``(*trials,)``; one a cost is ``(*trials, m)``. As ``(T, m)``."""
        value = checks.tensor(name, value)
        if self.batch_shape and tuple(value.shape) == self.batch_shape:
            value = value.unsqueeze(-1)
        return self._per_cost(name, value)

    def _outside(self, value: Tensor) -> Tensor:
        """A tensor led by ``T`` as the user sees it: without, where trials is None."""
        return value if self.batch_shape else value[0]

    def _limits(self, t: int) -> Tensor:
        """This round's thresholds, ``(T, m)``."""
        if callable(self._thresholds):
            return self._per_cost("thresholds", self._thresholds(t))
        return self._thresholds

    # -- rounds --------------------------------------------------------------------

    def ask(
        self, *, among: Any = None, actions: Any = None, observed_costs: Any = None
    ) -> Choice:
        """Start the next round and choose.

        Ctrl-C waits until all is whole again, and then it is as if nobody had asked; a
        second one does not wait.

        Args:
            among: a mask ``(N,)`` or ``(*trials, N)``, or action numbers ``(k,)`` or
                ``(*trials, k)``: only these may be chosen this round.
            actions: a set for this round alone, solved afresh; the choice's index
                refers to it.
            observed_costs: this round's costs on every action, ``(*trials, m, N)``, for
                policies that see them in full.
        """
        if observed_costs is not None and not self.sees_costs:
            raise CBanditError(
                f"{self.name} learns costs from feedback; observed_costs= goes to "
                "cb.SCGPUCB"
            )
        t = self.t + 1
        if self.horizon is not None and t > self.horizon:
            raise HorizonError(
                f"ask: the horizon of {self.horizon} rounds has passed; build the "
                "policy with a larger horizon="
            )
        if among is not None and actions is not None:
            raise CBanditError("ask takes among= or actions=, not both")
        mask = None if among is None else self._mask(among)
        with Held() as interrupt:
            self._deliver()
            before = [(each, dict(vars(each))) for each in self._parts()]
            self._streams.mark()
            try:
                asked = actions
                asked = self.actions if asked is None else self._round_actions(asked)
                decision = self._decide(t, asked, mask, observed_costs)
                if self._foreign:
                    decision = _looked_at(self, decision, asked, mask)
                choice = self._choice(t, asked, decision)
                own = _kept(choice)
                interrupt.let_go()
            except BaseException:
                # as if nobody had asked
                for each, held in before:
                    vars(each).clear()
                    vars(each).update(held)
                self._streams.go_back()
                raise
            self.t = t
            self._open[t] = _Open(choice, own)
            self._started(own)
        if len(self._open) >= MANY and not (self.patient or self._reminded):
            self._remind()
        return choice

    def _remind(self) -> None:
        self._reminded = True
        costs = self.m > 0 and self.learns_costs
        warnings.warn(
            f"{self.name}: {len(self._open)} choices wait for their feedback; hand "
            f"each to tell(choice, reward=...{', cost=...' if costs else ''}), or to "
            "cancel(choice) if it will never come",
            stacklevel=3,
        )

    def _parts(self) -> list[Any]:
        """Whose attributes a rule may set, and gets back as they were if it fails.

        What it changes in place stays changed: that must wait until nothing can fail.
        """
        return [self]

    def _started(self, choice: Choice) -> None:
        """Called once the choice of a round stands."""

    def _round_actions(self, actions: Any) -> Any:
        if not isinstance(actions, Actions):
            actions = Finite(actions)
        if actions.dim != self.actions.dim:
            raise CBanditError(
                f"actions of this round must have d = {self.actions.dim} coordinates; "
                f"got {actions.dim}"
            )
        if actions.batch_shape and tuple(actions.batch_shape) != self.batch_shape:
            raise CBanditError(
                f"actions of this round have sets for {actions.batch_shape[0]} trials; "
                f"this policy has trials of shape {self.batch_shape}"
            )
        return actions.to(self.device, self.dtype)

    def _mask(self, among: Any) -> Tensor:
        """``(1 or T, N)``, with at least one action in each trial."""
        size = self.actions.size
        if isinstance(self.actions, Box):
            raise CBanditError(
                f"among picks from numbered actions, and {self.actions!r} has none"
            )
        # looked at where it is, mostly on the host
        given = checks.tensor("among", among, None)
        if given.dim() not in (1, 2) or (
            given.dim() == 2 and given.shape[0] not in (1, self._size)
        ):
            raise CBanditError(
                f"among must have shape (N,), (k,), (*trials, N) or (*trials, k) with "
                f"N = {size} and trials = {self.batch_shape}; got {tuple(given.shape)}"
            )
        rows = given if given.dim() == 2 else given.unsqueeze(0)
        if rows.dtype == torch.bool:
            if rows.shape[-1] != size:
                raise CBanditError(
                    f"among, a mask, must cover all {size} actions; got "
                    f"{rows.shape[-1]}"
                )
            some, mask = bool(rows.any(-1).all()), devices.put(rows, self.device)
        else:
            with checks.about("among"):
                checked_index(rows, size, rows.device)
            some = rows.shape[-1] > 0
            mask = torch.zeros(len(rows), size, dtype=torch.bool, device=self.device)
            mask.scatter_(-1, devices.put(rows.long(), self.device), True)
        if not some:
            raise CBanditError("among must leave at least one action in every trial")
        return mask

    def _choice(self, t: int, asked: Any, decision: Decision) -> Choice:
        index = None if decision.index is None else self._outside(decision.index)
        if decision.x is not None:
            x = self._outside(decision.x)
        else:
            x = asked.at(index)
        if self._nowhere._version:  # somebody has written into it
            self._nowhere = torch.zeros_like(self._nowhere)
        infeasible = self._nowhere
        if decision.infeasible is not None:
            infeasible = self._outside(decision.infeasible).clone()
        distribution = decision.distribution
        if distribution is not None:
            distribution = Distribution(
                self._outside(distribution.index),
                self._outside(distribution.probability),
            )
        kept = None if asked is self.actions else asked
        mark, keys = self._mark, decision.keys
        return Choice(t, index, x, infeasible, distribution, mark, kept, keys)

    # -- feedback ------------------------------------------------------------------

    def tell(
        self,
        choice: Choice,
        reward: Any = None,
        cost: Any = None,
        noise: Any = None,
        where: Any = None,
    ) -> None:
        """Say what came of a choice: reward and cost together, or apart and later.

        Args:
            choice: what ``ask`` returned.
            reward: ``(*trials,)``.
            cost: ``(*trials, m)``, or ``(*trials,)`` where ``m`` is 1; all ``m`` at
                once. Where one will never come, tell the reward alone, and then
                :meth:`cancel`.
            noise: this observation's variance, ``(*trials,)``, instead of the belief's,
                where the policy can take it.
            where: ``(*trials,)`` bool, the trials in which this has come.
        """
        mask = None if where is None else self._where(where)
        if mask is not None and self._finished(choice) and not bool(mask.any()):
            return  # the rest of what has come already: nothing
        entry = self._entry(choice)
        if noise is not None and self.no_noise:
            raise CBanditError(self.no_noise)
        if reward is None and cost is None:
            raise CBanditError("tell needs reward=, cost= or both; got neither")
        own = None
        if noise is not None:
            own = self._per_trial("noise", checks.positive("noise", noise)).clone()
        told: list[tuple[str, Told]] = []
        if reward is not None:
            self._unseen("reward", entry.reward_seen, mask, choice)
            values = self._feedback("reward", reward, 1, mask)
            values = devices.put(values, self.device)
            told.append(("reward", Told(values, mask, own, self.t)))
        if cost is not None:
            if self.m == 0:
                raise CBanditError(f"{self.name} has no costs; got cost={cost!r}")
            self._unseen("cost", entry.cost_seen, mask, choice)
            values = self._feedback("cost", cost, self.m, mask)
            values = devices.put(values, self.device)
            told.append(("cost", Told(values, mask, own, self.t)))
        costs_due = self.m > 0 and self.learns_costs
        with Held():  # nothing can fail from here on
            mail = self._inbox.setdefault(choice.t, _Mail(entry.own))
            for kind, news in told:
                if kind == "reward":
                    mail.rewards.append(news)
                    entry.reward_seen = _seen(entry.reward_seen, mask)
                else:
                    mail.costs.append(news)
                    entry.cost_seen = _seen(entry.cost_seen, mask)
            if entry.reward_seen is True and (entry.cost_seen is True or not costs_due):
                del self._open[choice.t]

    def cancel(self, choice: Choice) -> None:
        """Say that the rest of a choice's feedback will never come."""
        self._entry(choice)
        del self._open[choice.t]

    @property
    def outstanding(self) -> list[Choice]:
        """Choices whose feedback has not all come, oldest first."""
        return [entry.choice for _, entry in sorted(self._open.items())]

    def _finished(self, choice: Any) -> bool:
        """Whether a choice is of this policy, and told in full or cancelled."""
        ours = isinstance(choice, Choice) and choice.owner == self._mark
        return ours and choice.t <= self.t and choice.t not in self._open

    def _entry(self, choice: Choice) -> _Open:
        if not isinstance(choice, Choice):
            raise ChoiceError(
                f"choice must come from ask(); got {type(choice).__name__}"
            )
        if choice.owner != self._mark:
            raise ChoiceError(
                "choice belongs to another policy; tell the one that asked"
            )
        entry = self._open.get(choice.t)
        if entry is None:
            if not self._finished(choice):
                raise ChoiceError(
                    f"choice of round {choice.t} is unknown: this policy is in round "
                    f"{self.t}"
                )
            raise ChoiceError(
                f"choice of round {choice.t} is finished: it was told in full, or "
                "cancelled"
            )
        return entry

    def _unseen(
        self, kind: str, seen: Tensor | bool, mask: Tensor | None, choice: Choice
    ) -> None:
        if seen is False:
            return
        if mask is None or bool((mask & seen).any()):
            raise ChoiceError(
                f"choice of round {choice.t} was told its {kind} already"
                + ("" if seen is True else " in some of these trials")
            )

    def _where(self, where: Any) -> Tensor:
        mask = checks.tensor("where", where, None, "cpu")
        if mask.dtype != torch.bool or tuple(mask.shape) not in (
            self.batch_shape,
            (1,),
        ):
            raise CBanditError(
                f"where must be bool of shape (*trials,) = {self.batch_shape}; got "
                f"{mask.dtype} of shape {tuple(mask.shape)}"
            )
        return mask.reshape(-1).expand(self._size)

    def _feedback(self, name: str, value: Any, m: int, mask: Tensor | None) -> Tensor:
        """What was told, ``(T, m)``; an error if it cannot be."""
        if mask is None and not self.batch_shape and m == 1 and _plain(value):
            only = checks.number(name, value)
            return torch.full((1, 1), only, dtype=torch.float64)
        # looked at where it is: no device has to be waited for
        if isinstance(value, Tensor) and value.dtype == torch.float64:
            given = checks.plain(name, value)
        else:
            given = checks.tensor(name, value, torch.float64)
        shape, batch = tuple(given.shape), self.batch_shape
        if shape == batch and m == 1:
            out = given.reshape(self._size, 1)
        elif shape == (*batch, m) and (name == "cost" or not batch):
            out = given.reshape(self._size, m)
        else:
            wanted = "(*trials,)" if name == "reward" else "(*trials, m)"
            expected = batch if name == "reward" else (*batch, m)
            raise CBanditError(
                f"{name} must have shape {wanted} = {expected}; got {shape}"
            )
        # a copy: it is read later, and the caller may fill the same array again
        if mask is None:
            return checks.finite(name, out, _TOGETHER if m > 1 else "").clone()
        # what is not said to have come may be anything, NaN included
        came = devices.put(mask, out.device).unsqueeze(-1)
        return checks.finite(name, torch.where(came, out, 0.0))

    def _catch_up(self) -> None:
        """Take in all that was told, as a whole."""
        with Held():
            self._deliver()

    def _deliver(self) -> None:
        """Absorb the inbox in the order of rounds; only then forget it."""
        for t in sorted(self._inbox):
            mail = self._inbox[t]
            self._absorb(mail.choice, mail.rewards, mail.costs)
            del self._inbox[t]

    def lighten(self) -> None:
        """Before a checkpoint: drop what is better computed afresh than saved."""

    def save(self, path: Any) -> None:
        """Write all to ``path``, atomically; :func:`cbandit.load` goes on from it."""
        from cbandit._core.checkpoint import save

        self._catch_up()
        save(self, path)

    def __repr__(self) -> str:
        actions = repr(self.actions)
        if len(actions) > LONG:
            actions = f"{type(self.actions).__name__}(dim={self.actions.dim})"
        parts = [actions, *self._engines(), f"costs={self.m}"]
        if self.trials is not None:
            first, count = self.trials[0], len(self.trials)
            parts.append(f"trials={self.trials if first else count}")
        return f"{type(self).__name__}({', '.join(parts)}, t={self.t})"

    def _engines(self) -> list[str]:
        """What keeps its beliefs, for ``repr``, where there is a choice."""
        return []

    # -- what a policy fills in ------------------------------------------------------

    @abstractmethod
    def _decide(
        self, t: int, asked: Any, mask: Tensor | None, observed_costs: Any
    ) -> Decision:
        """The rule: what to play in round ``t``.

        Args:
            t: the round, counted from 1.
            asked: the set to choose from, mostly ``self.actions``.
            mask: ``(1 or T, N)`` bool, what ``among`` allows; ``None``: everything.
            observed_costs: this round's costs, as ``ask`` was given them.
        """

    @abstractmethod
    def _absorb(
        self, choice: Choice, rewards: Sequence[Told], costs: Sequence[Told]
    ) -> None:
        """What feedback of a choice changes.

        Args:
            choice: as ``ask`` gave it out, so that ``index`` is ``(*trials,)``.
            rewards: what has come of its reward since the last call: ``values`` are
                ``(T, 1)``, and only the trials of ``mask()`` count.
            costs: likewise, ``(T, m)``.
        """


def _kept(choice: Choice) -> Choice:
    """A choice that shares no memory with it, but for what is known on the host too."""
    index = choice.index
    if index is not None and choice.keys is None:
        index = index.clone()
    t, x, distribution = choice.t, choice.x.clone(), choice.distribution
    mark, asked, keys = choice.owner, choice.actions, choice.keys
    return Choice(t, index, x, choice.infeasible, distribution, mark, asked, keys)


def _looked_at(policy: Policy, given: Any, asked: Any, mask: Tensor | None) -> Decision:
    """What a rule of somebody's own came to, an error if that cannot be."""
    rule, size = f"{type(policy).__name__}._decide", policy._size
    if not isinstance(given, Decision):
        raise CBanditError(f"{rule} must return a cb.Decision; got {given!r}")

    def led(name: str, value: Any, *axes: int, dtype: Any = None) -> Tensor:
        out = checks.tensor(f"{rule}: {name}", value, dtype, policy.device)
        if tuple(out.shape) != (size, *axes):
            raise CBanditError(
                f"{rule}: {name} must lead with the trials, of shape {(size, *axes)}; "
                f"got {tuple(out.shape)}"
            )
        return out

    def numbers(name: str, value: Any, *axes: int) -> Tensor:
        try:
            return checked_index(led(name, value, *axes), asked.size, policy.device)
        except CBanditError as error:
            said = str(error).removeprefix("index ")
            raise CBanditError(
                said if said.startswith(rule) else f"{rule}: {name} {said}"
            ) from None

    index, x, infeasible = given.index, given.x, given.infeasible
    needed, each = ("x", "point") if isinstance(asked, Box) else ("index", "number")
    if getattr(given, needed) is None:
        raise CBanditError(f"{rule} must say {needed}, one {each} a trial; got None")
    if index is not None:
        index = numbers("index", index)
        allowed = mask is None or mask.expand(size, -1).gather(1, index.unsqueeze(-1))
        if not torch.as_tensor(allowed).all():
            raise CBanditError(
                f"{rule}: index must be of what among allows; got {index.tolist()}"
            )
    if x is not None:
        x = led("x", x, policy.actions.dim, dtype=policy.dtype)
        checks.finite(f"{rule}: x", x)
        x = asked.inside(x, f"{rule}: x") if isinstance(asked, Box) else x
    if infeasible is not None:
        infeasible = led("infeasible", infeasible).bool()
    drawn = given.distribution
    if drawn is not None:
        if not isinstance(drawn, Distribution):
            raise CBanditError(
                f"{rule}: distribution must be a cb.Distribution; got {drawn!r}"
            )
        k = checks.tensor(f"{rule}: distribution", drawn.index).shape[-1:]
        drawn = Distribution(
            numbers("distribution.index", drawn.index, *k),
            led("distribution.probability", drawn.probability, *k),
        )
    return replace(given, index=index, x=x, infeasible=infeasible, distribution=drawn)


def _plain(value: Any) -> bool:
    """Whether this is one real number, on its own."""
    if isinstance(value, Tensor):
        odd = value.is_cuda or value.is_complex() or value.requires_grad
        return value.dim() == 0 and not odd
    return isinstance(value, float | int)


def _seen(seen: Tensor | bool, mask: Tensor | None) -> Tensor | bool:
    if mask is None:
        return True
    both = mask.clone() if seen is False else mask | seen
    if bool(both.all()):
        return True
    return both if bool(both.any()) else False


def listed(costs: Any, kind: type[Any]) -> list[Any]:
    """One belief a cost; each is for the caller to look at."""
    if isinstance(costs, kind):
        return [costs]
    # no other iterables: a gpytorch kernel can be gone through without an end
    if not isinstance(costs, Sequence):
        raise CBanditError(
            f"costs must be a cb.{kind.__name__} or a list of them; got "
            f"{checks.kind(costs)}"
        )
    if not costs:
        raise CBanditError("costs must hold at least one belief; got none")
    return list(costs)


def _arguments_of(cls: type) -> dict[str, str]:
    """What the ``Args:`` of a class' own documentation say, by argument."""
    text = inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("Args:\n")[2]
    text = text.partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*?)(?=\n    \w+:|\Z)", text, re.M | re.S)
    return dict(found)


def _with_shared_arguments(cls: Any) -> str | None:
    own, text = _arguments_of(cls), str(cls.__doc__)
    taken = inspect.signature(cls.__init__).parameters
    if "common" not in own or "common" not in taken:
        return cls.__doc__ and text
    shared: dict[str, str] = {}
    for base in cls.__mro__[1:-1]:
        texts, keywords = _arguments_of(base), _keywords(base)
        for name in keywords:
            if name in texts and name not in own and name != "m":
                shared.setdefault(name, texts[name])
    lines = [f"    {name}: {text}" for name, text in shared.items()]
    known = ["Attributes:", "    t: the round last asked for, 0 before the first."]
    return "\n".join([inspect.cleandoc(text), "", "Common:", *lines, "", *known, ""])


def _keywords(cls: Any) -> list[str]:
    parameters = inspect.signature(cls.__init__).parameters.items()
    return [key for key, each in parameters if each.kind is each.KEYWORD_ONLY]


def _taken(cls: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """An error unless the constructor takes these, itself or by what it hands on."""
    signature = inspect.signature(cls.__init__)
    for name in named:
        if name not in signature.parameters and name not in _known(cls):
            raise TypeError(_unknown(cls, name))
    try:
        signature.bind(None, *arguments, **named)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}: {error}") from None


def _known(cls: type) -> list[str]:
    keys = [key for base in cls.__mro__[:-1] for key in _keywords(base)]
    return [key for key in keys if key != "m"]  # what costs= says


def _unknown(cls: type, name: str) -> str:
    known = _known(cls)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{cls.__name__} takes no argument {name!r}{hint}"


def _dtype(dtype: Any, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cuda" else torch.float64
    if isinstance(dtype, str | torch.dtype):
        for one in (torch.float32, torch.float64):
            if str(dtype).removeprefix("torch.") == str(one).removeprefix("torch."):
                return one
    raise CBanditError(f"dtype must be 'float32' or 'float64'; got {dtype!r}")
