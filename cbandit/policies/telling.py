"""Put what a user tells into a new entry of the ledger, checked and turned."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.errors import CBanditError, ChoiceError
from cbandit.policies import given
from cbandit.policies.ledger import STAYS, Entry, Told, also_seen, unseen

__all__ = ["entered", "failed_in"]

Seen = Tensor | bool


def entered(
    policy: Any, entry: Entry, reward: Any, cost: Any, noise: Any, mask: Tensor | None
) -> Entry:
    """Return an entry with what was told of its choice; an error changes nothing.

    Args:
        policy: whose choice it is.
        entry: of the choice, before.
        reward: see :meth:`Policy.tell`, as are the others.
        cost: all costs, or some by name.
        noise: this observation's variance.
        mask: the trials in which this has come, ``(T,)`` on the host; ``None``: all.
    """
    if noise is not None and policy.no_noise:
        raise CBanditError(policy.no_noise)
    if reward is None and cost is None:
        raise CBanditError(
            "tell needs reward=, cost= or both; got neither. What came of the choice? "
            "If no answer will come: cancel(choice); if the action cannot be measured: "
            "tell(choice, failed=True); if it comes later, tell it then"
        )
    if isinstance(reward, Mapping):
        raise CBanditError(
            "reward must be a number; got a dict: costs by name go to "
            f"cost={dict(reward)!r}"
        )
    own = None
    if noise is not None:
        own = policy._per_trial("noise", checks.nonnegative("noise", noise)).clone()
    t, serial, now = policy._now.t, policy._ledger.number(), time.time()
    _, _, reward_seen, cost_seen, rewards, costs, *_ = entry
    held = entry.held
    if reward is not None:
        unseen("reward", reward_seen, mask, entry.choice)
        values = _values(policy, "reward", reward, (0,), mask)
        rewards = (*rewards, Told(values, mask, own, t, serial, None, now))
        reward_seen = also_seen(reward_seen, mask)
    if cost is not None:
        if policy.m == 0:
            raise CBanditError(f"{policy.name} has no costs; got cost={cost!r}")
        columns = policy.senses.columns(cost)
        if columns is None or len(columns) == policy.m:
            unseen("cost", cost_seen, mask, entry.choice)
            values = _costs(policy, cost, columns, mask)
            costs = (*costs, Told(values, mask, own, t, serial, None, now))
            cost_seen = also_seen(cost_seen, mask)
        else:
            before = _wide(cost_seen, policy._size, policy.m)
            cost_seen = _told_now(policy, before, columns, mask, entry)
            values = _costs(policy, cost, columns, mask)
            if policy.piecemeal:
                costs = (*costs, Told(values, mask, own, t, serial, columns, now))
            else:
                if noise is not None:
                    raise CBanditError(
                        f"{policy.name} takes noise= with all costs at once; got "
                        f"{list(cost)}"
                    )
                held = _held(held, policy.m, values, columns, mask)
                whole = cost_seen.all(-1) & ~before.all(-1)
                if bool(whole.any()):
                    where = None if bool(whole.all()) else whole
                    costs = (*costs, Told(held, where, None, t, serial, None, now))
            cost_seen = _plain(cost_seen)
    no_costs = policy.m == 0 or not policy.learns_costs
    closed = reward_seen is True and (cost_seen is True or no_costs)
    both, seen = (entry.choice, entry.given), (reward_seen, cost_seen)
    held, failed = None if closed else held, entry.failed
    # where it has failed the rest will never come
    over = serial if closed and failed is not None else 0
    return Entry(*both, *seen, rewards, costs, closed, over, held, failed, entry.made)


def failed_in(
    policy: Any, entry: Entry, given: Sequence[Any], mask: Tensor | None
) -> Entry:
    """Return an entry whose action has failed in the trials ``mask (T,)``.

    They wait for nothing more. An error if nothing was to come there, or if there is
    feedback ``given`` with it.
    """
    if any(each is not None for each in given):
        raise CBanditError("tell takes failed=True or feedback, not both")
    reward, cost = (torch.tensor(waits) for waits in entry.missing())
    now = torch.ones(policy._size, dtype=torch.bool) if mask is None else mask
    before = torch.zeros_like(now) if entry.failed is None else entry.failed
    if bool((now & ~(reward | cost)).any()) or bool((now & before).any()):
        raise ChoiceError(
            f"choice of round {entry.choice.t} was told in full, or has failed, "
            f"already in some of these trials{STAYS}"
        )
    seen = also_seen(entry.reward_seen, now), also_seen(entry.cost_seen, now)
    closed, serial = seen[0] is True and seen[1] is True, policy._ledger.number()
    return entry._replace(
        reward_seen=seen[0],
        cost_seen=seen[1],
        failed=before | now,
        closed=closed,
        cancelled=serial if closed else 0,
    )


def _values(
    policy: Any, name: str, value: Any, functions: Sequence[int], mask: Tensor | None
) -> Tensor:
    """Return what was told of some functions, ``(T, f)``, as the policy has it."""
    batch, dtype = policy.batch_shape, policy.dtype
    values = given.told_values(name, value, len(functions), mask, batch, dtype)
    turned = policy.senses.turned(devices.put(values, policy.device), functions)
    out: Tensor = policy._accepted(name, turned, functions, mask)
    return out


def _costs(
    policy: Any, cost: Any, columns: Sequence[int] | None, mask: Tensor | None
) -> Tensor:
    """Return costs, ``(T, f)``: all of an array, or those that a mapping holds."""
    if columns is None:
        return _values(policy, "cost", cost, range(1, policy.m + 1), mask)
    every = zip(columns, policy.senses.listed(cost, columns), strict=True)
    parts = [_values(policy, name, own, (1 + j,), mask) for j, (name, own) in every]
    return torch.cat(parts, -1)


def _wide(seen: Seen, size: int, m: int) -> Tensor:
    """Return which costs have come, ``(T, m)``."""
    if isinstance(seen, bool):
        return torch.full((size, m), seen)
    return seen.clone() if seen.dim() == 2 else seen.unsqueeze(-1).repeat(1, m)


def _plain(seen: Tensor) -> Seen:
    """Return which costs have come in as few words as will do."""
    if bool(seen.all()):
        return True
    return seen.all(-1) if torch.equal(seen.all(-1), seen.any(-1)) else seen


def _told_now(
    policy: Any,
    before: Tensor,
    columns: tuple[int, ...],
    mask: Tensor | None,
    entry: Entry,
) -> Tensor:
    """Return which costs have come, ``(T, m)``; an error if some had before."""
    now = torch.zeros_like(before)
    now[:, list(columns)] = True if mask is None else mask.unsqueeze(-1)
    twice = (now & before).any(0)
    if bool(twice.any()):
        name = policy.senses.label(int(twice.nonzero()[0]))
        raise ChoiceError(
            f"choice of round {entry.choice.t} was told its cost {name!r} already"
            + STAYS
        )
    return before | now


def _held(
    held: Tensor | None,
    m: int,
    values: Tensor,
    columns: tuple[int, ...],
    mask: Tensor | None,
) -> Tensor:
    """Return the costs that wait for the others, ``(T, m)``."""
    out = values.new_zeros(len(values), m) if held is None else held.clone()
    if mask is not None:
        came = devices.put(mask, values.device).unsqueeze(-1)
        values = torch.where(came, values, out[:, list(columns)])
    out[:, list(columns)] = values
    return out
