"""The concerns of a round: what surrounds a policy's rule, one file each.

A concern is one subject beside the rule, such as outlying readings or budgets. It has a
file in :mod:`cbandit.policies.concerns`, a slot of state, and hooks. These are pure:
they return a new state and change nothing. A hook that no concern of a policy defines
costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from torch import Tensor

from cbandit._core.randomness import Position
from cbandit.actions import Actions
from cbandit.policies.choices import Data, News
from cbandit.policies.turn import Decision, Turn

if TYPE_CHECKING:
    from cbandit.policies.setup import Setup

S = TypeVar("S")
V = TypeVar("V")
ConcernT = TypeVar("ConcernT", bound="Concern[Any]")
Slotted = tuple[int, Callable[..., Any]]
Past = Callable[[], Mapping[str, Tensor]]


class Concern(Generic[S]):
    """One concern of a round.

    It defines :meth:`of`, :meth:`start` and some of the hooks.
    """

    #: the keywords of policies that are for this concern alone, with their help
    keywords: ClassVar[Mapping[str, str]] = {}
    #: whether it is for policies with beliefs only
    needs_beliefs: ClassVar[bool] = True
    #: whether shared studies can make its state anew, from their trials alone
    in_studies: ClassVar[bool] = False

    @classmethod
    def of(cls, setup: Setup) -> Self | None:
        """Return the concern of a policy; ``None``: the policy lacks it."""
        raise NotImplementedError

    def start(self) -> S:
        """Return the state before the first round."""
        raise NotImplementedError

    def hear(self, state: S, news: News, beliefs: Any) -> tuple[S, News]:
        """Return the state after feedback, and the feedback that beliefs shall hear.

        Args:
            state: the concern's own.
            news: the feedback of one choice, as earlier concerns left it.
            beliefs: the policy's, without this feedback; ``None``: it has none.
        """
        return state, news

    def limit(self, state: S, limits: Tensor, t: int) -> Tensor:
        """Return the thresholds ``(T, m)`` of round ``t``, which has not been asked."""
        return limits

    def observe(self, state: S, data: Data, beliefs: Any) -> tuple[S, Data]:
        """Return the state after data from before, and what beliefs shall observe."""
        return state, data

    def settle(self, state: S, beliefs: Any, t: int, past: Past) -> S:
        """Return the state after work that is due once all feedback is heard.

        Args:
            state: the concern's own.
            beliefs: the policy's.
            t: the latest round.
            past: returns the table of all rounds, see :meth:`History.table`.
        """
        return state

    def open_epoch(self, state: S, t: int) -> tuple[S, Tensor | None]:
        """Return the state, and the trials ``(T,)`` that start anew in round ``t``."""
        return state, None

    def open_turn(self, state: S, turn: Turn) -> tuple[S, Turn]:
        """Return the state and the round as the rule shall see it."""
        return state, turn

    def choose(self, state: S, turn: Turn) -> Decision | None:
        """Return the choice in the rule's place; ``None``: the rule chooses."""
        return None

    def check_pick(
        self, state: S, turn: Turn, pick: Decision
    ) -> tuple[S, Decision | None]:
        """Return the state and the choice after the rule has chosen.

        ``None``: the choice does not fit, and the round opens again, as ``turn.tight``.
        """
        return state, pick

    def alarm(self, state: S, t: int, together: int) -> dict[str, str]:
        """Return what is wrong, by kind, in words that say what to do.

        Args:
            state: the concern's own.
            t: the latest round.
            together: the largest number of choices that were asked for at once.
        """
        return {}

    def grow(self, state: S, actions: Actions) -> S:
        """Return the state over the policy's set, which has grown."""
        return state

    def lighten(self, state: S, largest: int) -> None:
        """Drop arrays of more than ``largest`` bytes that can be computed again."""

    def take_over(self, state: S, before: Self, j: int) -> S:
        """Return the state of ``before``, after which cost ``j`` got another limit."""
        return state


HOOKS = (
    *("hear", "limit", "observe", "settle", "open_epoch", "open_turn", "choose"),
    *("check_pick", "alarm", "grow", "lighten"),
)
States = tuple[Any, ...]
"""The states of a policy's concerns, in their order."""


class Concerns:
    """A policy's concerns in their order; it calls the hooks that they define.

    Args:
        concerns: in their order, see :mod:`cbandit.policies.concerns`.
    """

    def __init__(self, *concerns: Concern[Any]) -> None:
        self.all = concerns
        #: for each hook the slots of the concerns that define it, and their methods
        self._hooks = hooks_of(concerns)

    def __getstate__(self) -> dict[str, Any]:
        return {"all": self.all}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _hooks=hooks_of(state["all"]))

    def find(self, kind: type[ConcernT]) -> tuple[int, ConcernT] | None:
        """Return the slot and the concern of a kind; ``None``: there is none."""
        for slot, concern in enumerate(self.all):
            if isinstance(concern, kind):
                return slot, concern
        return None

    def define(self, hook: str) -> bool:
        """Return whether a concern defines a hook."""
        return bool(self._hooks[hook])

    def slot(self, kind: type[Concern[Any]]) -> int:
        """Return the slot of a concern that every policy has."""
        return [type(concern) for concern in self.all].index(kind)

    def start(self) -> States:
        """Return the states before the first round."""
        return tuple(concern.start() for concern in self.all)

    def take_over(self, states: States, before: Concerns, j: int) -> States:
        """Return the states of ``before``, after which cost ``j`` got another limit."""
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
        """Return the states after feedback, and the feedback that beliefs hear."""
        return self._pass("hear", states, news, beliefs)

    def limit(self, states: States, limits: Tensor, t: int) -> Tensor:
        """Return the thresholds ``(T, m)`` of round ``t``, which has not been asked."""
        for slot, limit in self._hooks["limit"]:
            limits = limit(states[slot], limits, t)
        return limits

    def observe(self, states: States, data: Data, beliefs: Any) -> tuple[States, Data]:
        """Return the states after data from before, and what beliefs observe."""
        return self._pass("observe", states, data, beliefs)

    def settle(self, states: States, beliefs: Any, t: int, past: Past) -> States:
        """Return the states after work that is due once all feedback is heard."""
        for slot, settle in self._hooks["settle"]:
            states = put(states, slot, settle(states[slot], beliefs, t, past))
        return states

    def open_epoch(self, states: States, t: int) -> tuple[States, Tensor | None]:
        """Return the states, and the trials ``(T,)`` that start anew in round ``t``."""
        restarted = None
        for slot, open_epoch in self._hooks["open_epoch"]:
            state, began = open_epoch(states[slot], t)
            states = put(states, slot, state)
            if began is not None:
                restarted = began if restarted is None else restarted | began
        return states, restarted

    def open_turn(self, states: States, turn: Turn) -> tuple[States, Turn]:
        """Return the states and the round as the concerns shape it."""
        return self._pass("open_turn", states, turn)

    def _pass(
        self, hook: str, states: States, value: V, *given: Any
    ) -> tuple[States, V]:
        """Return the states and a value after each concern has had it in turn."""
        for slot, act in self._hooks[hook]:
            state, value = act(states[slot], value, *given)
            states = put(states, slot, state)
        return states, value

    def choose(self, states: States, turn: Turn) -> Decision | None:
        """Return the choice of a concern; ``None``: the rule chooses."""
        for slot, choose in self._hooks["choose"]:
            decision: Decision | None = choose(states[slot], turn)
            if decision is not None:
                return decision
        return None

    def check_pick(
        self, states: States, turn: Turn, pick: Decision
    ) -> tuple[States, Decision | None]:
        """Return the states and the choice; ``None``: the round opens again."""
        for slot, check_pick in self._hooks["check_pick"]:
            state, checked = check_pick(states[slot], turn, pick)
            if checked is None:
                return states, None
            states, pick = put(states, slot, state), checked
        return states, pick

    def alarms(self, states: States, t: int, together: int) -> dict[str, str]:
        """Return what is wrong at present, by kind, in words."""
        alarms: dict[str, str] = {}
        for slot, alarm in self._hooks["alarm"]:
            alarms |= alarm(states[slot], t, together)
        return alarms

    def grow(self, states: States, domain: Actions) -> States:
        """Return the states over a set that has grown."""
        for slot, grow in self._hooks["grow"]:
            states = put(states, slot, grow(states[slot], domain))
        return states

    def lighten(self, states: States, largest: int) -> None:
        """Drop arrays of more than ``largest`` bytes that can be computed again."""
        for slot, lighten in self._hooks["lighten"]:
            lighten(states[slot], largest)


def hooks_of(concerns: Sequence[Concern[Any]]) -> dict[str, tuple[Slotted, ...]]:
    """Return, by hook, the slots and methods of the concerns that define it."""
    return {
        hook: tuple(
            (slot, getattr(concern, hook))
            for slot, concern in enumerate(concerns)
            if getattr(type(concern), hook) is not getattr(Concern, hook)
        )
        for hook in HOOKS
    }


def put(states: States, slot: int, state: Any) -> States:
    """Return the states with another one in a slot."""
    return (*states[:slot], state, *states[slot + 1 :])


class Now(NamedTuple):
    """The part of a policy that rounds change, replaced as a whole.

    Args:
        t: the latest round asked for.
        state: what the policy's rule keeps.
        position: where the streams of draws are.
        heard: the serial number of the last item of feedback in ``state``.
        settled: whether the work due by this round is done.
        concerns: the state of each of the policy's concerns, in their order.
    """

    t: int
    state: Any
    position: Position
    heard: int
    settled: bool = False
    concerns: tuple[Any, ...] = ()
