"""The tape: every quantity of every round, written as the rounds go by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.randomness import trial_range
from cbandit.policies.words import Senses
from cbandit.simulation.parts import Policy
from cbandit.simulation.run import Run
from cbandit.simulation.world import World

__all__ = ["BLOCK", "Tape"]

BLOCK = 256


class Tape:
    """All rounds so far, a list of pieces for each quantity.

    A piece is ``(*trials, n, ...)``, on the CPU. The rounds of the block that is being
    played stay where their values are made, so that the host waits for a policy on a
    GPU once a block rather than once a round.
    """

    def __init__(self, batch: tuple[int, ...]) -> None:
        self.batch = batch
        self.rounds = 0
        self.block: dict[str, list[Tensor]] = {}
        self.pieces: dict[str, list[Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        whole = {name: [self._joined(v)] for name, v in self.pieces.items()}
        return vars(self) | {"pieces": whole}

    def has(self, name: str) -> bool:
        """Whether this quantity was noted before."""
        return name in self.block or name in self.pieces

    def put(self, name: str, value: Tensor) -> None:
        """Note a quantity of the round being played; it was 0 before the first note."""
        if name not in self.block:
            missed = 0 if name in self.pieces else self.rounds
            self.block[name] = [torch.zeros_like(value)] * missed
        values = self.block[name]
        device = values[0].device if values else value.device
        values.append(value.to(device, copy=True))

    def turn(self, seconds: float, world: World) -> None:
        """End the round, which took so many seconds."""
        self.put("seconds", torch.tensor(seconds, dtype=torch.float64))
        self.rounds += 1
        if self.rounds % BLOCK == 0:
            self.flush(world)

    def flush(self, world: World) -> None:
        """Put the block away, and ask a blockwise problem for the truth about it."""
        if not self.block:
            return
        part = {
            name: torch.stack(values, self._axis(values[0])).cpu()
            for name, values in self.block.items()
        }
        self.block = {}
        x = part["actions"]
        t = torch.arange(self.rounds - x.shape[-2], self.rounds) + 1
        part |= world.truths(t, part.get("index"), x)
        for name, values in part.items():
            self.pieces.setdefault(name, []).append(values)

    def _axis(self, one: Tensor) -> int:
        """Return the axis of rounds of a quantity, from its value in one of them."""
        return min(len(self.batch), one.dim())

    def _joined(self, pieces: list[Tensor]) -> Tensor:
        return torch.cat(pieces, min(len(self.batch), pieces[0].dim() - 1))

    def run(self, policy: Policy, senses: Senses, horizon: int) -> Run:
        """Return the rounds so far as a run; this empties the tape, flushed before."""
        # one by one: never all of it twice
        out = {name: self._joined(self.pieces.pop(name)) for name in [*self.pieces]}
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
            horizon=horizon,
            thresholds=senses.costs(tau),
            senses=Senses.of(senses.plainly()),  # without limits, which may be code
            index=index,
            names=getattr(getattr(policy, "actions", None), "names", None),
            stopped=None if stopped is None else stopped.cpu(),
            **out,
        )


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
