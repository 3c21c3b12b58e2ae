"""A round as a question to a policy's rule, and the rule's answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import Streams
from cbandit.actions import checked_index
from cbandit.choice import Choice, Distribution
from cbandit.errors import CBanditError
from cbandit.policies.failures import Barred
from cbandit.policies.ledger import Entry, Ledger

__all__ = ["Asked", "Decision", "checked", "choice_of", "kept", "pair_of"]


class Asked(NamedTuple):
    """One round, as a policy's rule is asked.

    Args:
        t: the round, counted from 1.
        actions: the set to choose from, mostly the policy's own.
        mask: ``(1 or T, N)`` bool, what ``among`` allows; ``None``: everything.
        observed_costs: this round's costs, as ``ask`` was given them.
        streams: where draws come from; those of an ``ask`` that fails are drawn again.
        ledger: the choices that wait for feedback.
        barred: on a box, what has failed: of points ``z (T, n, d)`` of the unit cube it
            says which lie there. ``None``: nothing has.
    """

    t: int
    actions: Any
    mask: Tensor | None
    observed_costs: Any
    streams: Streams
    ledger: Ledger
    barred: Barred | None = None

    @property
    def waiting(self) -> list[Entry]:
        """The choices whose feedback has not all come, oldest first."""
        return self.ledger.waiting(self.t - 1)


@dataclass
class Decision:
    """The answer of a policy's rule, for ``T`` trials at once.

    Args:
        index: the action's number, ``(T,)``.
        infeasible: ``(T,)``, or ``None``: nothing to report.
        distribution: what the action was drawn from, ``(T, k)``.
        x: the action itself, ``(T, d)``, where it is not that of its number.
        keys: see :class:`~cbandit.search.Best`, where they are known.
        score: of the action, ``(T,)``, for the history.
        estimate: of reward and costs that entered it, ``(T, 1 + m)``, likewise.
        sure: whether it is known to fit the set; otherwise ``ask`` checks it.
    """

    index: Tensor | None
    infeasible: Tensor | None = None
    distribution: Distribution | None = None
    x: Tensor | None = None
    keys: list[Any] | None = None
    score: Tensor | None = None
    estimate: Tensor | None = None
    sure: bool = False


def checked(
    rule: str,
    given: Any,
    asked: Asked,
    size: int,
    m: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Decision:
    """Return what a rule from outside decided, as tensors that fit the set.

    Args:
        rule: what errors call the rule.
        given: what it returned.
        asked: what it was asked.
        size: how many trials there are.
        m: how many costs there are.
        device: where the policy's tensors live.
        dtype: of its actions.
    """
    if not isinstance(given, Decision):
        raise CBanditError(f"{rule} must return a cb.Decision; got {given!r}")
    on, mask = asked.actions, asked.mask

    def led(name: str, value: Any, *axes: int, kind: Any = None) -> Tensor:
        out = checks.tensor(f"{rule}: {name}", value, kind, device)
        if tuple(out.shape) != (size, *axes):
            raise CBanditError(
                f"{rule}: {name} must lead with the trials, of shape {(size, *axes)}; "
                f"got {tuple(out.shape)}"
            )
        return out

    def numbers(name: str, value: Any, *axes: int) -> Tensor:
        try:
            return checked_index(led(name, value, *axes), on.size, device)
        except CBanditError as error:
            said = str(error).removeprefix("index ")
            raise CBanditError(
                said if said.startswith(rule) else f"{rule}: {name} {said}"
            ) from None

    index, x, infeasible = given.index, given.x, given.infeasible
    box = bool(on.continuous)
    needed, each = ("x", "point") if box else ("index", "number")
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
        x = led("x", x, on.dim, kind=dtype)
        checks.finite(f"{rule}: x", x)
        x = on.inside(x, f"{rule}: x") if box else x
        if asked.barred is not None and bool(asked.barred.holds(x).any()):
            raise CBanditError(f"{rule}: x must not lie where an action has failed")
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
    score, estimate = given.score, given.estimate
    if score is not None:
        score = led("score", score, kind=torch.float64)
    if estimate is not None:
        estimate = led("estimate", estimate, 1 + m, kind=torch.float64)
    return Decision(index, infeasible, drawn, x, given.keys, score, estimate)


def pair_of(policy: Any, answer: Any) -> tuple[Any, Any]:
    """Return a rule's decision and state, an error if they are not a pair."""
    if isinstance(answer, tuple) and len(answer) == 2:
        return answer
    raise CBanditError(
        f"{type(policy).__name__}.decide must return a cb.Decision and the state after "
        f"it, a pair; got {checks.kind(answer)}"
    )


def choice_of(policy: Any, asked: Asked, decision: Decision) -> Choice:
    """Return a policy's decision as users see it: without ``T``, if trials is None."""
    outside, on, nowhere = policy._outside, asked.actions, policy._nowhere
    index = None if decision.index is None else outside(decision.index)
    x = on.at(index) if decision.x is None else outside(decision.x)
    infeasible = decision.infeasible
    # a copy: whoever asked may change it in place
    flags = (nowhere if infeasible is None else outside(infeasible)).clone()
    pi = decision.distribution
    if pi is not None:
        pi = Distribution(outside(pi.index), outside(pi.probability))
    other = None if on is policy.actions else on
    name = f"{policy._prefixes[-1]}-{asked.t}"
    names = policy.actions.names
    return Choice(asked.t, index, x, flags, pi, name, other, decision.keys, names)


def kept(choice: Choice) -> Choice:
    """Return a choice that shares no memory with it but for what the host knows too."""
    own = object.__new__(Choice)
    vars(own).update(vars(choice), x=choice.x.clone())
    if choice.index is not None and choice.keys is None:
        vars(own)["index"] = choice.index.clone()
    return own
