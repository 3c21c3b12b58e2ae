"""A run in one table: final values over the trials."""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["Summary", "mean_and_sem"]


class Summary(dict[str, dict[str, float]]):
    """Final values of a run: ``summary["regret"]["mean"]``; prints as a table.

    Args:
        policy: its name.
        rounds: how many were played.
        values: ``mean`` and ``sem``, the standard error over the trials, by metric.
        seconds_per_round: of the whole batch of trials.
        trials: how many there were.
        alike: whether they did the same to the bit: nothing is drawn at random.
    """

    def __init__(
        self,
        policy: str,
        rounds: int,
        values: dict[str, dict[str, float]],
        seconds_per_round: float,
        trials: int,
        alike: bool = False,
    ) -> None:
        self.policy, self.rounds, self.trials = policy, rounds, trials
        self.alike = alike
        self.seconds_per_round = seconds_per_round
        super().__init__(values)

    def __str__(self) -> str:
        head = f"{self.policy}, {self.rounds} rounds, "
        head += f"{1e3 * self.seconds_per_round:.3g} ms each"
        if self.alike:
            head += (
                f"; all {self.trials} trials are one run, to the bit, for neither the "
                "policy nor the problem draws at random: +- 0 says nothing"
            )
        rows = []
        for name, each in self.items():
            known = not math.isnan(each["mean"])
            mean = f"{each['mean']:.5g}" if known else "unknown"
            spread = f" +- {each['sem']:.3g}" if known and self.trials > 1 else ""
            rows.append(f"  {name:<20} {mean:>12}{spread}")
        return "\n".join([head, *rows])

    __repr__ = __str__


def mean_and_sem(values: Tensor) -> dict[str, float]:
    """Mean of ``(n,)`` values and its standard error, 0 for a single one."""
    spread = float(values.std()) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "sem": spread}
