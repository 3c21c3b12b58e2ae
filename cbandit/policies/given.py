"""Checks of what a user gives to ``ask`` and ``tell``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks, devices
from cbandit.actions import Actions, Finite, Names, ProductGrid, checked_index
from cbandit.errors import CBanditError

__all__ = [
    "COST_COUNT",
    "array_type",
    "costs_not_for",
    "listed",
    "named_points",
    "round_actions",
    "round_mask",
    "told_in",
    "told_values",
]

COST_COUNT = "the number of costs, an int of at least 1"

_TOGETHER = (
    ". An array has all costs of a choice: where some come later or never, tell the "
    "others by name, cost={'latency': 3.1}"
)


def listed(costs: Any, kind: type[Any]) -> list[Any]:
    """Return one belief a cost; the caller checks each of them."""
    if isinstance(costs, kind):
        return [costs]
    if isinstance(costs, Mapping):
        return list(costs.values())
    # no other iterables: a gpytorch kernel can be gone through without an end
    if not isinstance(costs, Sequence) or isinstance(costs, str):
        raise CBanditError(
            f"costs must be a cb.{kind.__name__}, or a list or a dict of them, "
            f"{{'latency': gp}}; got {checks.kind(costs)}"
        )
    if not costs:
        raise CBanditError("costs must hold at least one belief; got none")
    return list(costs)


def costs_not_for(name: str, sees: bool) -> CBanditError:
    """Return the error about costs seen in full that are missing, or too many."""
    if sees:
        return CBanditError(
            f"{name} sees the costs before it chooses: give ask(observed_costs=g_t) of "
            "shape (*trials, m, N); to simulate, a problem whose round(t, generator) "
            "returns cb.Round(observed_costs=g_t)"
        )
    return CBanditError(
        f"{name} learns costs from feedback; observed_costs= goes to cb.SCGPUCB"
    )


def round_actions(given: Any, own: Any, batch_shape: tuple[int, ...]) -> Any:
    """Return a set for one round, which fits the policy's ``own``."""
    actions = given
    if _dicts(given):
        actions = Finite(_names(own, "actions").points(given, "actions"))
    elif not isinstance(given, Actions):
        actions = Finite(given)
    if actions.dim != own.dim:
        raise CBanditError(
            f"actions of this round must have d = {own.dim} coordinates; got "
            f"{actions.dim}"
        )
    if actions.batch_shape and tuple(actions.batch_shape) != batch_shape:
        raise CBanditError(
            f"actions of this round have sets for {actions.batch_shape[0]} trials; "
            f"this policy has trials of shape {batch_shape}"
        )
    return actions


def round_mask(
    among: Any, own: Any, batch_shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """Return what ``among`` allows, ``(1 or T, N)``, with an action in each trial."""
    if own.continuous:
        raise CBanditError(f"among picks from numbered actions, and {own!r} has none")
    size, trials = own.size, batch_shape[0] if batch_shape else 1
    if isinstance(among, Mapping):
        among = _where(among, own)
    elif _dicts(among):
        points = _names(own, "among").points(among, "among")
        among = own.index(points.to(own.extent())).cpu()
    if isinstance(among, str):
        raise CBanditError(
            "among must be a mask, action numbers, or values by name, "
            f"{{{among!r}: [...]}}; got str"
        )
    # looked at where it is, mostly on the host
    given = checks.tensor("among", among, None)
    if given.dim() not in (1, 2) or (
        given.dim() == 2 and given.shape[0] not in (1, trials)
    ):
        raise CBanditError(
            f"among must have shape (N,), (k,), (*trials, N) or (*trials, k) with "
            f"N = {size} and trials = {batch_shape}; got {tuple(given.shape)}"
        )
    rows = given if given.dim() == 2 else given.unsqueeze(0)
    if rows.dtype == torch.bool:
        if rows.shape[-1] != size:
            raise CBanditError(
                f"among, a mask, must cover all {size} actions; got {rows.shape[-1]}"
            )
        some, mask = bool(rows.any(-1).all()), devices.put(rows, device)
    else:
        with checks.about("among"):
            checked_index(rows, size, rows.device)
        if rows.shape[-1] == size > 1 and bool((rows <= 1).all()):
            raise CBanditError(
                f"among holds {size} whole numbers, 0 and 1 only, and there are {size} "
                "actions: is it a mask, or action numbers? Give a mask as booleans, "
                "torch.as_tensor(among).bool(); give action numbers once each, or "
                "leave among out for all actions"
            )
        some = rows.shape[-1] > 0
        mask = torch.zeros(len(rows), size, dtype=torch.bool, device=device)
        mask.scatter_(-1, devices.put(rows.long(), device), True)
    if not some:
        raise CBanditError("among must leave at least one action in every trial")
    return mask


def named_points(own: Any, x: Any, params: Any) -> Any:
    """Return points that were given by coordinates, or by name."""
    if params is None:
        return x
    if x is not None:
        raise CBanditError("give x= or params=, not both")
    return _names(own, "params").points(params)


def _dicts(given: Any) -> bool:
    """Return whether these are actions by name, in lists."""
    while isinstance(given, list | tuple) and given:
        given = given[0]
    return isinstance(given, Mapping)


def _names(own: Any, name: str) -> Names:
    if own.names is None:
        raise CBanditError(
            f"{name} by name needs a set with names: give the policy a cb.Space(...)"
        )
    found: Names = own.names
    return found


def _where(among: Mapping[str, Any], own: Any) -> Tensor:
    """Return the actions ``(N,)`` with these values of some parameters."""
    allowed = _names(own, "among").allowed(among, "among")
    if isinstance(own, ProductGrid):
        axes = [axis.cpu() for axis in own.axes]
    else:
        axes = list(own.all.cpu().unbind(-1))
    flags = [torch.ones(len(axis), dtype=torch.bool) for axis in axes]
    for j, values in allowed.items():
        gaps = (axes[j].unsqueeze(-1) - torch.tensor(values).to(axes[j])).abs().amin(-1)
        flags[j] = gaps <= 1e-6 * (1 + axes[j].abs())
    if not isinstance(own, ProductGrid):
        return torch.stack(flags).all(0)
    mask = flags[0]
    for flag in flags[1:]:
        mask = (mask.unsqueeze(-1) & flag).reshape(-1)
    return mask


def told_in(where: Any, batch_shape: tuple[int, ...]) -> Tensor:
    """Return the trials in which feedback has come, ``(T,)`` on the host."""
    mask = checks.tensor("where", where, None, "cpu")
    fits = tuple(mask.shape) in (batch_shape, batch_shape or (1,))
    if mask.dtype != torch.bool or not fits:
        raise CBanditError(
            f"where must be bool of shape (*trials,) = {batch_shape}; got "
            f"{mask.dtype} of shape {tuple(mask.shape)}"
        )
    return mask.reshape(-1)


def told_values(
    name: str,
    value: Any,
    m: int,
    mask: Tensor | None,
    batch: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Return a reward or a cost that was told, ``(T, m)``, copied."""
    checks.no_flag(name, value)
    if mask is None and not batch and m == 1 and _plain(value):
        only = checks.number(name, value)
        whole = torch.full((1, 1), only, dtype=torch.float64)
        return checks.measured(name, whole, dtype)
    # looked at where it is: no device has to be waited for
    if isinstance(value, Tensor) and value.dtype == torch.float64:
        given = checks.plain(name, value)
    else:
        given = checks.tensor(name, value, torch.float64)
    shape, size = tuple(given.shape), batch[0] if batch else 1
    if shape == batch and m == 1:
        out = given.reshape(size, 1)
    elif shape == (*batch, m) and (name != "reward" or not batch):
        out = given.reshape(size, m)
    else:
        wanted = "(*trials,)" if name == "reward" else "(*trials, m)"
        expected = batch if name == "reward" else (*batch, m)
        advice = _TOGETHER if m > 1 else ""
        raise CBanditError(
            f"{name} must have shape {wanted} = {expected}; got {shape}{advice}"
        )
    # a copy: it is read later, and the caller may fill the same array again
    if mask is None:
        advice = _TOGETHER if m > 1 else ""
        return checks.measured(name, out, dtype, advice).clone()
    # what is not said to have come may be anything, NaN included
    came = devices.put(mask, out.device).unsqueeze(-1)
    return checks.measured(name, torch.where(came, out, 0.0), dtype)


def _plain(value: Any) -> bool:
    """Return whether this is one real number on its own."""
    if isinstance(value, Tensor):
        odd = value.is_cuda or value.is_complex() or value.requires_grad
        return value.dim() == 0 and not odd
    return isinstance(value, float | int)


def array_type(dtype: Any, device: torch.device) -> torch.dtype:
    """Return the dtype of arrays over the actions, which may be given by its name."""
    if dtype is None:
        return torch.float32 if device.type == "cuda" else torch.float64
    if isinstance(dtype, str | torch.dtype):
        for one in (torch.float32, torch.float64):
            if str(dtype).removeprefix("torch.") == str(one).removeprefix("torch."):
                return one
    raise CBanditError(f"dtype must be 'float32' or 'float64'; got {dtype!r}")
