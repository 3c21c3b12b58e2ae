"""The tape: every quantity of every round, written as the rounds go by."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import trial_range
from cbandit.policies.senses import Senses
from cbandit.simulation.parts import Policy
from cbandit.simulation.run import Run
from cbandit.simulation.world import World

__all__ = ["BLOCK", "Tape"]

BLOCK = 256


class Column:
    """One quantity over the rounds: a block being filled, and the rounds before it.

    The block lies where its values are made, so that the host waits for a policy on a
    GPU once a block rather than once a round.
    """

    def __init__(self, like: Tensor, rounds: int) -> None:
        self.kept = torch.empty(0, *like.shape, dtype=like.dtype)
        self.device = like.device
        self.reserve(rounds)

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.kept, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # no block before the run goes on: a file's columns take what is in it
        self.kept, self.device = state["kept"], state["device"]

    def reserve(self, rounds: int) -> None:
        """Make room for so many rounds."""
        self.kept = _longer(self.kept, rounds)
        shape, dtype = self.kept.shape[1:], self.kept.dtype
        self.block = torch.zeros(BLOCK, *shape, dtype=dtype, device=self.device)
        self.rows = self.block.unbind(0)

    def first(self, rounds: int) -> Column:
        """The same column with only so many rounds kept, for a checkpoint."""
        short = object.__new__(Column)
        short.device, short.kept = self.device, self.kept[:rounds].clone()
        return short


class Tape:
    """All rounds so far. Inside, rounds are the first axis and trials the second."""

    def __init__(self, batch: tuple[int, ...]) -> None:
        self.batch = batch
        self.rounds = self.flushed = self.horizon = 0
        self.columns: dict[str, Column] = {}
        self.truth: dict[str, Tensor] = {}
        self.seconds = array("d")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        state["columns"] = {k: v.first(self.rounds) for k, v in self.columns.items()}
        state["truth"] = {k: v[: self.rounds].clone() for k, v in self.truth.items()}
        state["seconds"] = torch.tensor(self.seconds, dtype=torch.float64)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        seconds = array("d", state["seconds"].tolist())
        vars(self).update(state, seconds=seconds)

    def reserve(self, horizon: int) -> None:
        """Make room for ``horizon`` rounds."""
        self.horizon = horizon
        for column in self.columns.values():
            column.reserve(horizon)
        self.truth = {k: _longer(v, horizon) for k, v in self.truth.items()}

    def has(self, name: str) -> bool:
        """Whether this quantity was noted in an earlier round."""
        return name in self.columns

    def put(self, name: str, value: Tensor) -> None:
        """Note a quantity of the round being played."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = Column(value, self.horizon)
        column.rows[self.rounds % BLOCK].copy_(value)

    def turn(self, seconds: float, world: World) -> None:
        """End the round, which took so many seconds."""
        self.seconds.append(seconds)
        self.rounds += 1
        if self.rounds % BLOCK == 0:
            self.flush(world)

    def flush(self, world: World) -> None:
        """Put the block away, and ask a blockwise problem for the truth about it."""
        start, stop = self.flushed, self.rounds
        if start == stop:
            return
        first = start % BLOCK
        for column in self.columns.values():
            column.kept[start:stop] = column.block[first : first + stop - start]
        if world.blockwise:
            index = self._part("index", start, stop) if self.has("index") else None
            x, t = self._part("actions", start, stop), torch.arange(start, stop) + 1
            for name, value in world.truths(t, index, x).items():
                rounds_first = value.movedim(len(self.batch), 0)
                if name not in self.truth:
                    empty = torch.empty(0, *rounds_first.shape[1:], dtype=value.dtype)
                    self.truth[name] = _longer(empty, self.horizon)
                self.truth[name][start:stop] = rounds_first
        self.flushed = stop

    def _part(self, name: str, start: int, stop: int) -> Tensor:
        return self.columns[name].kept[start:stop].movedim(0, len(self.batch))

    def run(self, policy: Policy, senses: Senses) -> Run:
        """Return the rounds so far as a run; this empties the tape, flushed before."""
        out = {}
        for name in list(self.columns):
            out[name] = self._part(name, 0, self.rounds).contiguous()
            del self.columns[name]  # never all of it twice
        for name in list(self.truth):
            value = self.truth.pop(name)[: self.rounds]
            out[name] = value.movedim(0, len(self.batch)).contiguous()
        index = out.pop("index", None)
        tau = _thresholds(senses.limits, out["true_costs"])
        for name in ("true_costs", "expected_costs"):
            if name in out:
                out[name] = senses.costs(out[name]) - tau
        stopped = getattr(policy, "stopped", None)
        if not isinstance(stopped, Tensor) or tuple(stopped.shape) != self.batch:
            stopped = None
        return Run(
            policy=policy.name,
            seed=policy.seed,
            trials=trial_range(policy.trials),
            horizon=self.horizon,
            seconds=torch.tensor(self.seconds, dtype=torch.float64),
            thresholds=senses.costs(tau),
            senses=senses,
            index=index,
            names=getattr(getattr(policy, "actions", None), "names", None),
            stopped=None if stopped is None else stopped.cpu(),
            **out,
        )


def _longer(values: Tensor, rounds: int) -> Tensor:
    """Return values of at least so many rounds; those that were missing are 0."""
    if len(values) >= rounds:
        return values
    out = torch.zeros(rounds, *values.shape[1:], dtype=values.dtype)
    out[: len(values)] = values
    return out


def _thresholds(limits: Any, costs: Tensor) -> Tensor:
    """``(*trials, T, m)``, or ``(*trials, 1, m)`` where they do not change."""
    shape = (*costs.shape[:-2], costs.shape[-1])

    def checked(value: Any) -> Tensor:
        tau = checks.tensor("problem.thresholds", value)
        return checks.shaped("problem.thresholds", tau, shape, "(*trials, m)")

    if callable(limits):
        rounds = range(1, costs.shape[-2] + 1)
        return torch.stack([checked(limits(t)) for t in rounds], -2)
    return checked(limits).unsqueeze(-2).contiguous()
