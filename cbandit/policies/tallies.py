"""Tallies: users' binary and counted outcomes, read as events and tries.

A binary outcome counts successes of so many tries; a counted one, with ``outcome=
"count"``, events within an exposure. ``f`` is the number of functions told together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

Read = Callable[[str, Any, int], Tensor]
"""``(name, value, count)``: checks a user's value; returns it as ``(..., count)``."""

PAIRS = {"binary": "(successes, tries)", "count": "(number, exposure)"}  # in errors


def read_tallies(
    name: str,
    value: Any,
    outcomes: Sequence[str | None],
    exposure: Any,
    read: Read,
) -> tuple[Tensor, Tensor]:
    """Return events, and their tries or exposures, ``(..., f)`` each.

    Gaussian values are returned unchanged, with one try each.

    Args:
        name: the value's name in errors.
        value: the user's value: an array ``(..., f)``; or a pair, if ``f`` is 1; or a
            list with an entry for each function, some of them pairs.
        outcomes: for each function ``"binary"``, ``"count"``, or ``None``: Gaussian.
        exposure: the exposure of counts told as plain numbers; ``None``: 1.
        read: see :data:`Read`.
    """
    count = len(outcomes)
    paired = isinstance(value, tuple) and len(value) == 2 and count == 1
    if paired and outcomes[0] is not None:
        if exposure is not None and outcomes[0] == "count":
            raise CBanditError(
                f"{name} is told as a pair or with exposure=, not both; got {value!r} "
                f"and exposure={exposure!r}"
            )
        events = read(name, checks.tensor(name, value[0]), 1)
        label = f"{name}'s {'tries' if outcomes[0] == 'binary' else 'exposure'}"
        tries = _read_tries(read, label, value[1], events)
        check_events(name, events, tries, outcomes[0])
        return events, tries
    several = isinstance(value, list | tuple) and len(value) == count
    if several and any(isinstance(entry, tuple) for entry in value):
        parts = [
            read_tallies(f"{name}[{j}]", entry, [kind], exposure, read)
            for j, (entry, kind) in enumerate(zip(value, outcomes, strict=True))
        ]
        return torch.cat([e for e, _ in parts], -1), torch.cat(
            [n for _, n in parts], -1
        )
    events = read(name, checks.tensor(name, value), count)
    tries = torch.ones_like(events)
    for j, kind in enumerate(outcomes):
        if kind == "count" and exposure is not None:
            tries[..., j : j + 1] = _read_tries(
                read, "exposure", exposure, events[..., :1]
            )
        if kind is not None:
            column = slice(j, j + 1)
            label = name if count == 1 else f"{name}, column {j},"
            check_events(label, events[..., column], tries[..., column], kind)
    return events, tries


def check_one_try(label: str, tries: Tensor) -> None:
    """Raise unless all tries of ``label``, a cost with a budget, are 1."""
    if bool((tries != 1).any()):
        raise CBanditError(
            f"{label} has a cb.Budget, which counts one try, or an exposure of 1, a "
            f"round; got {tries.flatten().tolist()}: ask once for each try, or give a "
            "limit of one round"
        )


def _read_tries(read: Read, name: str, value: Any, like: Tensor) -> Tensor:
    """Return the user's tries or exposure ``value`` in the shape of ``like``."""
    if np.ndim(value) == 0 and like.numel() > 1:
        value = torch.full_like(like[..., 0], checks.number(name, value))
    return read(name, checks.tensor(name, value), 1)


def check_events(name: str, events: Tensor, tries: Tensor, kind: str) -> None:
    """Raise unless events of a ``kind`` are whole numbers that fit their tries."""
    whole = (events >= 0) & (events == events.round())
    fits = whole & (tries > 0)
    wanted = f"a whole number, 0 or more, or {PAIRS[kind]} with an exposure above 0"
    if kind == "binary":
        fits &= (events <= tries) & (tries == tries.round())
        wanted = f"True or False, 0 or 1, or {PAIRS[kind]}, whole numbers"
    if bool(fits.all()):
        return
    bad = (~fits).flatten().nonzero()[0]
    got = events.flatten()[bad].item(), tries.flatten()[bad].item()
    shown = got[0] if got[1] == 1 else got
    swapped = ""
    if kind == "binary" and got[0] > got[1] >= 1:
        swapped = f": in a pair successes come first, ({got[1]:g}, {got[0]:g})"
    raise CBanditError(
        f"{name} must be {wanted}, as its belief has outcome={kind!r}; got "
        f"{shown}{swapped}"
    )
