"""Runs of different trials, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from cbandit._core.randomness import trial_range
from cbandit.errors import CBanditError
from cbandit.simulation.run import Run

__all__ = ["join"]


def join(runs: Sequence[Run]) -> Run:
    """Join runs of different trials into one, in the order of the trials' numbers.

    The parts must be of one policy over the same rounds. The seconds of a round are
    those of the slowest part, as if they ran side by side.
    """
    if not runs:
        raise CBanditError("runs must hold at least one run; got none")
    if any(run.trials is None for run in runs):
        raise CBanditError("runs must have a trials axis to be joined")
    runs = sorted(runs, key=lambda run: run.trials[0] if run.trials else 0)
    numbers = [i for run in runs for i in run.trials or ()]
    trials = trial_range(range(numbers[0], numbers[-1] + 1))
    if trials is None or numbers != list(trials):
        raise CBanditError(f"runs must hold consecutive trials; got {numbers}")
    first = runs[0]
    if any((run.policy, run.rounds) != (first.policy, first.rounds) for run in runs):
        raise CBanditError(f"runs must be of one policy and length; got {runs}")
    joined: dict[str, Any] = {}
    for each in fields(Run):
        values = [getattr(run, each.name) for run in runs]
        if each.name == "failed" and any(value is not None for value in values):
            nowhere = [torch.zeros_like(run.infeasible) for run in runs]
            values = [
                v if v is not None else n for v, n in zip(values, nowhere, strict=True)
            ]
        if isinstance(values[0], Tensor) and each.name != "seconds":
            joined[each.name] = torch.cat(values)
    seconds = torch.stack([run.seconds for run in runs]).amax(0)
    return replace(first, trials=trials, seconds=seconds, **joined)
