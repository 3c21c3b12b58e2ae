"""Candidates: with which probability each choice would be made in logged rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from cbandit.actions import Contextual
from cbandit.choice import Choice
from cbandit.errors import CBanditError
from cbandit.policies.base import Policy
from cbandit.receipt.bets import Array
from cbandit.receipt.log import ROUNDING, Log

KINDS = (
    "a policy, a function of the context that returns the probabilities (K,) of the "
    "log's choices or one of them, or one of them"
)


def probabilities(candidate: object, log: Log, name: str = "candidate") -> Array:
    """Return a candidate's probabilities in each round, ``(n, K + 1)``.

    The last column is of whatever the log never could choose.

    Args:
        candidate: a policy, which is not changed; a function of the context; a choice;
            or the probabilities themselves, ``(K,)`` or ``(n, K)``.
        log: the rounds.
        name: the candidate's, for errors.
    """
    n, size = len(log), len(log.actions)
    if isinstance(candidate, Policy):
        shares = _of_policy(candidate, log, name)
        if n and (shares[:, size] == 1).all():
            raise CBanditError(
                f"{name} makes none of the log's choices, {_few(log.actions)}; it "
                f"chooses from {candidate.actions!r}"
            )
        return shares
    if callable(candidate):
        call: Callable[[dict[str, Any]], object] = candidate

        def answer(rows: Sequence[dict[str, Any]]) -> Array:
            return np.stack([_row(call(row), log, name) for row in rows])

        return _in_each_context(log, answer)
    if isinstance(candidate, np.ndarray | Tensor) and np.ndim(candidate) == 2:
        shares = np.asarray(candidate, dtype=np.float64)
        if shares.shape != (n, size):
            raise CBanditError(
                f"{name} must have shape (n, K) = {(n, size)}, a row a round; got "
                f"{shares.shape}"
            )
        return _with_others(_checked(shares, name))
    return np.tile(_row(candidate, log, name), (n, 1))


def _in_each_context(
    log: Log, answer: Callable[[Sequence[dict[str, Any]]], Array]
) -> Array:
    """Return the answers to the contexts of the rounds, each asked for once."""
    if log.contexts is None:
        return np.repeat(answer([{}]), len(log), 0)
    names, number = [*log.contexts], dict[tuple[Any, ...], int]()
    rows = log.contexts.itertuples(index=False, name=None)
    of_round = [number.setdefault(row, len(number)) for row in rows]
    return answer([dict(zip(names, row, strict=True)) for row in number])[of_round]


def _row(answer: object, log: Log, name: str) -> Array:
    """Return a choice, or probabilities ``(K,)``, as a row of :func:`probabilities`."""
    shares, number = np.zeros(len(log.actions)), log.number(answer)
    if number is not None:
        shares[number] = 1.0
        return _with_others(shares)
    if not isinstance(answer, np.ndarray | Tensor | Sequence) or isinstance(
        answer, str
    ):
        raise CBanditError(
            f"{name} must be {KINDS}: {_few(log.actions)}; got {answer!r}"
        )
    try:
        shares = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        raise CBanditError(f"{name} must be {KINDS}; got {answer!r}") from None
    if shares.shape != (len(log.actions),):
        raise CBanditError(
            f"{name} must give probabilities of shape (K,) = ({len(log.actions)},), in "
            f"the order of log.actions; got {shares.shape}"
        )
    return _with_others(_checked(shares, name))


def _with_others(shares: Array) -> Array:
    """Return probabilities ``(..., K)`` with nothing on other choices."""
    return np.concatenate([shares, np.zeros((*shares.shape[:-1], 1))], -1)


def _checked(shares: Array, name: str) -> Array:
    """Return probabilities ``(..., K)``; raise unless they are."""
    whole = (shares >= 0).all(-1) & (np.abs(shares.sum(-1) - 1) <= ROUNDING)
    if not whole.all():
        odd = np.atleast_2d(shares)[~np.atleast_1d(whole)][0]
        raise CBanditError(
            f"{name} must give probabilities that are at least 0 and add up to 1; got "
            f"{odd.tolist()}"
        )
    return shares


def _of_policy(policy: Policy, log: Log, name: str) -> Array:
    if policy.trials is not None:
        raise CBanditError(
            f"{name} must be a policy without trials=; got {policy!r}: each trial is a "
            "policy"
        )
    if not policy.actions.menu.finite:
        raise CBanditError(
            f"{name} must choose from a finite set, as the log does; got {policy!r}"
        )
    if not isinstance(policy.actions, Contextual):
        return np.tile(_played(policy.foresee()[0], policy, log, name), (len(log), 1))
    names = policy.actions.contexts
    if log.contexts is None or any(each not in log.contexts for each in names.labels()):
        has = [] if log.contexts is None else list(log.contexts)
        raise CBanditError(
            f"{name} needs the contexts {names.labels()}; the log has {has}"
        )

    def answer(rows: Sequence[dict[str, Any]]) -> Array:
        columns = {label: [row[label] for row in rows] for label in names.labels()}
        choices = policy.foresee(names.rows(columns))
        return np.stack([_played(each, policy, log, name) for each in choices])

    return _in_each_context(log, answer)


def _played(choice: Choice, policy: Policy, log: Log, name: str) -> Array:
    """Return the probabilities with which a policy makes each choice, ``(K + 1,)``."""
    if choice.index is None:
        raise CBanditError(f"{name} must number its choices; got {choice!r}")
    numbers, shares = [int(choice.index)], [1.0]
    if choice.distribution is not None:
        numbers = choice.distribution.index.tolist()
        shares = choice.distribution.probability.tolist()
    menu, found = policy.actions.menu, np.zeros(len(log.actions) + 1)
    for index, share in zip(numbers, shares, strict=True):
        if share <= 0:
            continue
        made = index
        if menu.names is not None:
            made = menu.names.params(menu.points(index))
        number = log.number(made)
        found[-1 if number is None else number] += share
    return found


def _few(actions: Sequence[object]) -> str:
    """Return choices as text, the first of many."""
    text = ", ".join(map(repr, actions[:5]))
    return text + f", .. {len(actions)} in all" * (len(actions) > 5)
