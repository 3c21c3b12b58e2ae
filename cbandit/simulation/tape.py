"""The tape: a record of every quantity in every round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import trial_range
from cbandit.policies.signs import Objective
from cbandit.simulation.parts import Policy
from cbandit.simulation.run import Run
from cbandit.simulation.world import World

BLOCK = 256
_TRUE = ("true_rewards", "true_costs", "expected_rewards", "expected_costs")


class Tape:
    """All rounds so far, as a list of pieces for each quantity.

    A piece is ``(*trials, n, ...)``, on the CPU. The current block's rounds stay on the
    device where they are computed, so that the host waits for a GPU once a block rather
    than once a round.
    """

    def __init__(self, batch: tuple[int, ...]) -> None:
        self.batch = batch
        self.rounds = self.flushed = 0
        self.seconds: list[float] = []  # of rounds that are not flushed yet
        self.block: dict[str, Tensor] = {}  # BLOCK x *trials x ...
        self.rows: dict[str, tuple[Tensor, ...]] = {}  # of the block, one a round
        self.pieces: dict[str, list[Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        pieces = {name: [self._joined(v)] for name, v in self.pieces.items()}
        return vars(self) | {"block": {}, "rows": {}, "pieces": pieces}

    def has(self, name: str) -> bool:
        """Return whether this quantity was noted in an earlier round."""
        return name in self.rows or name in self.pieces

    def put(self, name: str, value: Tensor) -> None:
        """Note a quantity in this round; rounds before its first note count as 0."""
        rows = self.rows.get(name)
        if rows is None:
            self.block[name] = value.new_zeros(BLOCK, *value.shape)
            rows = self.rows[name] = self.block[name].unbind(0)
        rows[self.rounds % BLOCK].copy_(value)

    def turn(self, seconds: float, world: World) -> None:
        """End the round, which took ``seconds``."""
        self.seconds.append(seconds)
        self.rounds += 1
        if self.rounds % BLOCK == 0:
            self.flush(world)

    def flush(self, world: World) -> None:
        """Move the block to the CPU, and ask a blockwise problem for its truth."""
        start, stop = self.flushed, self.rounds
        if start == stop:
            return
        fresh = slice(start % BLOCK, start % BLOCK + stop - start)
        part = {
            name: block[fresh].to("cpu", copy=True).movedim(0, len(self.batch))
            for name, block in self.block.items()
        }
        part["seconds"] = torch.tensor(self.seconds, dtype=torch.float64)
        t = torch.arange(start, stop) + 1
        part |= world.truths(t, part.get("index"), part["actions"])
        for name, values in part.items():
            if name not in self.pieces:
                axis = self._axis(values)
                before = (*values.shape[:axis], start, *values.shape[axis + 1 :])
                self.pieces[name] = [torch.zeros(before, dtype=values.dtype)]
            self.pieces[name].append(values)
        self.flushed, self.seconds = stop, []

    def _axis(self, values: Tensor) -> int:
        """Return the axis of rounds: the first for seconds, else after the trials."""
        return min(len(self.batch), values.dim() - 1)

    def _joined(self, pieces: list[Tensor]) -> Tensor:
        return torch.cat(pieces, self._axis(pieces[0]))

    def run(self, policy: Policy, objective: Objective, horizon: int) -> Run:
        """Return the rounds so far as a run, and empty the tape; flush it before."""
        # one by one, so that memory never holds the whole record twice
        out = {name: self._joined(self.pieces.pop(name)) for name in [*self.pieces]}
        index = out.pop("index", None)
        idle = out.pop("idle", None)
        for name in _TRUE:
            if idle is not None and name in out:  # idle trials played nothing
                wide = idle.unsqueeze(-1) if "costs" in name else idle
                out[name] = out[name].masked_fill(wide, 0.0)
        tau = _thresholds(objective.limits, out["true_costs"])
        for name in ("true_costs", "expected_costs"):
            if name in out:
                out[name] = objective.costs(out[name]) - tau
        stopped = getattr(policy, "stopped", None)
        if not isinstance(stopped, Tensor) or tuple(stopped.shape) != self.batch:
            stopped = None
        return Run(
            policy=policy.name,
            seed=policy.seed,
            trials=trial_range(policy.trials),
            horizon=horizon,
            thresholds=objective.costs(tau),
            objective=Objective.of(
                objective.as_dict()
            ),  # without limits, which may be code
            index=index,
            names=getattr(getattr(policy, "actions", None), "names", None),
            stopped=None if stopped is None else stopped.cpu(),
            **out,
        )


def _thresholds(limits: object, costs: Tensor) -> Tensor:
    """Return thresholds ``(*trials, T, m)``; if constant, ``(*trials, 1, m)``."""
    shape = (*costs.shape[:-2], costs.shape[-1])

    def checked(value: object) -> Tensor:
        tau = checks.tensor("problem.thresholds", value)
        return checks.shaped("problem.thresholds", tau, shape, "(*trials, m)")

    if callable(limits):
        rounds = range(1, costs.shape[-2] + 1)
        return torch.stack([checked(limits(t)) for t in rounds], -2)
    return checked(limits).unsqueeze(-2).contiguous()
