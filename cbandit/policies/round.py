"""The base class of concerns, and the object that runs a policy's concerns.

A concern is one subject beside the policy's rule, such as outlying readings or budgets.
It has a file in :mod:`cbandit.policies.concerns`; a slot, its place in the tuple of the
concerns' states; and hooks, the methods that a policy calls at fixed points of a round.
Hooks are pure: they return a new state and change nothing. The policy calls only hooks
that some concern defines. Shapes: ``T`` trials, ``m`` costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from torch import Tensor

from cbandit._core.randomness import Position
from cbandit.actions import Actions
from cbandit.policies.abilities import Abilities
from cbandit.policies.choices import Data, News
from cbandit.policies.mixing import Rule
from cbandit.policies.setup import Setup
from cbandit.policies.turn import Decision, Turn

StateT = TypeVar("StateT")
ValueT = TypeVar("ValueT")
ConcernT = TypeVar("ConcernT", bound="Concern[Any]")
SlotHook = tuple[int, Callable[..., Any]]
"""A concern's slot and one of its hooks."""
ReadPast = Callable[[], Mapping[str, Tensor]]
"""A function that returns the history of all rounds, as a table."""


class Concern(Generic[StateT]):
    """Base class of concerns.

    A concern defines :meth:`of`, :meth:`start` and some of the hooks.

    Args:
        setup: the policy as it is when the concern is made. Only :meth:`of` can ask for
            its abilities.
    """

    #: the policies' keyword arguments that only this concern uses, with their help
    keywords: ClassVar[Mapping[str, str]] = {}
    #: whether only policies with beliefs can have the concern
    needs_beliefs: ClassVar[bool] = True
    #: whether Optuna studies can compute its state anew from their trials. A new
    #: concern must say if they cannot
    in_studies: ClassVar[bool] = True

    def __init__(self, setup: Setup) -> None:
        # abilities name classes, which a file may not hold
        self.setup = setup._replace(abilities=Abilities(explores=()))

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern for a policy; ``None``: the policy has no need of it."""
        raise NotImplementedError

    def start(self) -> StateT:
        """Return the state before the first round."""
        raise NotImplementedError

    def hear(self, state: StateT, news: News, beliefs: Any) -> tuple[StateT, News]:
        """Return the state after feedback, and the feedback for the beliefs.

        Args:
            state: the state of this concern.
            news: the feedback of one choice, as earlier concerns passed it on.
            beliefs: the policy's beliefs before this feedback; ``None``: it has none.
        """
        return state, news

    def limit(self, state: StateT, limits: Tensor, t: int) -> Tensor:
        """Return a later round's thresholds ``(T, m)``; the user gave ``limits``."""
        return limits

    def observe(self, state: StateT, data: Data, beliefs: Any) -> tuple[StateT, Data]:
        """Return the state after earlier data, and the data for the beliefs."""
        return state, data

    def settle(self, state: StateT, beliefs: Any, t: int, past: ReadPast) -> StateT:
        """Return the state after all feedback was heard, before the next round.

        Args:
            state: the state of this concern.
            beliefs: the policy's beliefs.
            t: the latest round.
            past: a function that returns the history, see :meth:`History.table`.
        """
        return state

    def open_epoch(self, state: StateT, t: int) -> tuple[StateT, Tensor | None]:
        """Return the state, and the trials ``(T,)`` that start anew in round ``t``.

        ``None`` in place of the trials: none starts anew.
        """
        return state, None

    def open_turn(self, state: StateT, turn: Turn) -> tuple[StateT, Turn]:
        """Return the state, and the turn as the rule is to see it.

        It is called for recommendations too: ``turn.purpose`` says what a turn is for.
        """
        return state, turn

    def choose(self, state: StateT, turn: Turn) -> Decision | None:
        """Return this concern's own decision; ``None``: the policy's rule decides."""
        return None

    def mix(self, state: StateT, turn: Turn, rule: Rule) -> tuple[Decision, Any]:
        """Return the decision of ``rule``, or another one at a stated chance.

        The second value is the rule's state after it. The rule may be asked several
        times, also about other turns. Later concerns mix what earlier ones return.
        """
        return rule(turn)

    def check_pick(
        self, state: StateT, turn: Turn, pick: Decision
    ) -> tuple[StateT, Decision | None]:
        """Return the state and the decision ``pick``, perhaps changed.

        ``None`` in place of the decision refuses it: the round opens again, with
        ``turn.tight``.
        """
        return state, pick

    def alarm(self, state: StateT, t: int, together: int) -> dict[str, str]:
        """Return warnings, by kind, each a text that says what is wrong and what to do.

        Args:
            state: the state of this concern.
            t: the latest round.
            together: the largest ``n`` of an ``ask(n=)`` so far.
        """
        return {}

    def grow(self, state: StateT, actions: Actions) -> StateT:
        """Return the state for a set to which actions were added."""
        return state

    def lighten(self, state: StateT, largest: int) -> None:
        """Drop computed arrays of more than ``largest`` bytes from the state."""

    def take_over(self, state: StateT, before: Self, j: int) -> StateT:
        """Return the state to go on with after cost ``j`` got a new limit.

        ``state`` is that of ``before``, the concern made with the old limit.
        """
        return state


HOOKS = (
    *("hear", "limit", "observe", "settle", "open_epoch", "open_turn", "choose"),
    *("mix", "check_pick", "alarm", "grow", "lighten"),
)
States = tuple[Any, ...]
"""The states of a policy's concerns, one for each slot."""


class Concerns:
    """A policy's concerns; each method calls one hook of all concerns that define it.

    Args:
        concerns: the concerns, in the order in which their hooks are called.
    """

    def __init__(self, *concerns: Concern[Any]) -> None:
        self.all = concerns
        #: for each hook, the slots and methods of the concerns that define it
        self._hooks = collect_hooks(concerns)

    def __getstate__(self) -> dict[str, Any]:
        return {"all": self.all}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _hooks=collect_hooks(state["all"]))

    def find(self, kind: type[ConcernT]) -> tuple[int, ConcernT] | None:
        """Return the slot and the concern of a class; ``None``: the policy has none."""
        for slot, concern in enumerate(self.all):
            if isinstance(concern, kind):
                return slot, concern
        return None

    def defines(self, hook: str) -> bool:
        """Return whether any concern defines a hook."""
        return bool(self._hooks[hook])

    def slot(self, kind: type[Concern[Any]]) -> int:
        """Return the slot of a class of concerns that the policy has."""
        return [type(concern) for concern in self.all].index(kind)

    def start(self) -> States:
        """Return the states before the first round."""
        return tuple(concern.start() for concern in self.all)

    def take_over(self, states: States, before: Concerns, j: int) -> States:
        """Return the states to go on with after cost ``j`` got a new limit.

        ``states`` are those of ``before``, the concerns made with the old limit.
        """
        taken = []
        for concern in self.all:
            found = before.find(type(concern))
            if found is None:
                taken.append(concern.start())
            else:
                slot, old = found
                taken.append(concern.take_over(states[slot], old, j))
        return tuple(taken)

    def hear(self, states: States, news: News, beliefs: Any) -> tuple[States, News]:
        """Return the states after feedback, and the feedback for the beliefs."""
        return self._chain("hear", states, news, beliefs)

    def limit(self, states: States, limits: Tensor, t: int) -> Tensor:
        """Return a later round's thresholds ``(T, m)``; the user gave ``limits``."""
        for slot, limit in self._hooks["limit"]:
            limits = limit(states[slot], limits, t)
        return limits

    def observe(self, states: States, data: Data, beliefs: Any) -> tuple[States, Data]:
        """Return the states after earlier data, and the data for the beliefs."""
        return self._chain("observe", states, data, beliefs)

    def settle(self, states: States, beliefs: Any, t: int, past: ReadPast) -> States:
        """Return the states after all feedback was heard, before the next round."""
        for slot, settle in self._hooks["settle"]:
            states = with_state(states, slot, settle(states[slot], beliefs, t, past))
        return states

    def open_epoch(self, states: States, t: int) -> tuple[States, Tensor | None]:
        """Return the states, and the trials ``(T,)`` that start anew in round ``t``."""
        restarted = None
        for slot, open_epoch in self._hooks["open_epoch"]:
            state, began = open_epoch(states[slot], t)
            states = with_state(states, slot, state)
            if began is not None:
                restarted = began if restarted is None else restarted | began
        return states, restarted

    def open_turn(self, states: States, turn: Turn) -> tuple[States, Turn]:
        """Return the states, and the turn as the rule is to see it."""
        return self._chain("open_turn", states, turn)

    def _chain(
        self, hook: str, states: States, value: ValueT, *given: Any
    ) -> tuple[States, ValueT]:
        """Call one hook of each concern, each with the value that the last returned.

        Return the states and the value after the last call.
        """
        for slot, act in self._hooks[hook]:
            state, value = act(states[slot], value, *given)
            states = with_state(states, slot, state)
        return states, value

    def choose(self, states: States, turn: Turn) -> Decision | None:
        """Return a concern's decision; ``None``: the rule decides."""
        for slot, choose in self._hooks["choose"]:
            decision: Decision | None = choose(states[slot], turn)
            if decision is not None:
                return decision
        return None

    def mixed(self, states: States, rule: Rule) -> Rule:
        """Return the rule as the concerns mix it with decisions of their own."""
        for slot, mix in self._hooks["mix"]:
            rule = partial(mix, states[slot], rule=rule)
        return rule

    def check_pick(
        self, states: States, turn: Turn, pick: Decision
    ) -> tuple[States, Decision | None]:
        """Return the states and the decision; ``None``: a concern refused it."""
        for slot, check_pick in self._hooks["check_pick"]:
            state, checked = check_pick(states[slot], turn, pick)
            if checked is None:
                return states, None
            states, pick = with_state(states, slot, state), checked
        return states, pick

    def alarms(self, states: States, t: int, together: int) -> dict[str, str]:
        """Return the warnings of all concerns, by kind."""
        alarms: dict[str, str] = {}
        for slot, alarm in self._hooks["alarm"]:
            alarms |= alarm(states[slot], t, together)
        return alarms

    def grow(self, states: States, actions: Actions) -> States:
        """Return the states for a set to which actions were added."""
        for slot, grow in self._hooks["grow"]:
            states = with_state(states, slot, grow(states[slot], actions))
        return states

    def lighten(self, states: States, largest: int) -> None:
        """Drop computed arrays of more than ``largest`` bytes from the states."""
        for slot, lighten in self._hooks["lighten"]:
            lighten(states[slot], largest)


def collect_hooks(concerns: Sequence[Concern[Any]]) -> dict[str, tuple[SlotHook, ...]]:
    """Return, for each hook, the slots and methods of the concerns that define it."""
    return {
        hook: tuple(
            (slot, getattr(concern, hook))
            for slot, concern in enumerate(concerns)
            if getattr(type(concern), hook) is not getattr(Concern, hook)
        )
        for hook in HOOKS
    }


def with_state(states: States, slot: int, state: Any) -> States:
    """Return the states with ``state`` in a slot."""
    if state is states[slot]:
        return states
    return (*states[:slot], state, *states[slot + 1 :])


class PolicyState(NamedTuple):
    """All that rounds change in a policy, replaced as a whole.

    Args:
        t: the latest round asked for.
        state: the state of the policy's rule.
        position: the position of the random streams.
        heard: the serial number of the last item of feedback absorbed into ``state``.
        settled: whether the work that follows absorbing is done.
        concerns: the states of the policy's concerns, one for each slot.
    """

    t: int
    state: Any
    position: Position
    heard: int
    settled: bool = False
    concerns: tuple[Any, ...] = ()
