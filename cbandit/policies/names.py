"""Find which choice is meant, by itself or by its id; name a policy."""

from __future__ import annotations

from typing import Any

from cbandit._core import checks
from cbandit.choice import Choice
from cbandit.errors import ChoiceError
from cbandit.policies.ledger import STAYS, Entry, Ledger
from cbandit.policies.record import Record

__all__ = ["finished", "meant", "prefix", "said"]

LONG = 60  # letters of a set in a policy's repr


def prefix(choice: Choice) -> str:
    """Return the part of a choice's id that its policy puts into all of them."""
    return choice.id.rpartition("-")[0]


def meant(
    choice: Any, ledger: Ledger, t: int, prefixes: tuple[str, ...], record: Record
) -> Entry:
    """Return the entry of a choice, or of its id, that waits for feedback.

    Args:
        choice: what a user handed over.
        ledger: the policy's.
        t: the policy's round.
        prefixes: of the ids that the policy gave out, before it was copied too.
        record: the policy's, of rounds that are over.
    """
    if isinstance(choice, str):
        entry = ledger.named(choice)
        if entry is not None and entry.choice.t <= t:
            return entry
        over = record.became(ledger.all(t), choice)
        if over:
            raise ChoiceError(f"the choice with id {choice!r} {_over(over)}")
        raise ChoiceError(
            f"no choice with id {choice!r} waits for feedback here: another policy "
            "gave it out, or a copy of this one"
        )
    if not isinstance(choice, Choice):
        raise ChoiceError(
            f"choice must come from ask(), or be its id; got {checks.kind(choice)}. "
            "What ask() did not give out goes to observe(index=, x= or params=)"
        )
    entry = ledger.entry(choice.t)
    if entry is not None and entry.choice.id == choice.id and choice.t <= t:
        return entry
    if prefix(choice) not in prefixes:
        raise ChoiceError(
            "choice belongs to another policy; tell the one that asked (of two copies "
            "of a checkpoint each knows its own choices only)"
        )
    if choice.t > t:
        raise ChoiceError(
            f"choice of round {choice.t} is unknown: this policy is in round {t}"
        )
    if entry is not None:
        raise ChoiceError(
            f"choice of round {choice.t} was given out by another copy of this policy; "
            "tell that one"
        )
    over = record.became(ledger.all(t), choice.id)
    raise ChoiceError(f"choice of round {choice.t} is finished: it {_over(over)}")


def _over(states: set[str]) -> str:
    """Return what became of a choice that waits for nothing, in words."""
    if "failed" in states:
        return (
            "was told as failed, and its action is not asked for again (what may work "
            f"another time is for cancel(choice)){STAYS}"
        )
    if "cancelled" in states:
        return (
            "was cancelled; what has come of it after all goes to observe(...), where "
            "the policy has it"
        )
    return f"was told in full{STAYS}"


def finished(choice: Any, ledger: Ledger, t: int, prefixes: tuple[str, ...]) -> bool:
    """Return whether a choice is of the policy, and told in full or cancelled."""
    ours = isinstance(choice, Choice) and prefix(choice) in prefixes
    return ours and choice.t <= t and ledger.entry(choice.t) is None


def said(policy: Any) -> str:
    """Return a policy in words, for its ``repr``."""
    actions = repr(policy.actions)
    if len(actions) > LONG:
        actions = f"{type(policy.actions).__name__}(dim={policy.actions.dim})"
    parts = [actions, *policy._engines(), f"costs={policy.m}"]
    if policy.trials is not None:
        first, count = policy.trials[0], len(policy.trials)
        parts.append(f"trials={policy.trials if first else count}")
    return f"{type(policy).__name__}({', '.join(parts)}, t={policy.t})"
