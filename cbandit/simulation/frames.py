"""A run as a long pandas frame, in the user's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from cbandit.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame_of"]

OWN = {"policy", "trial", "t", "action", "reward", "true_reward", "failed"}


def frame_of(run: Any, metrics: Sequence[str]) -> pd.DataFrame:
    """Return a frame with a row for each trial and round; see :meth:`Run.frame`."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError(
            "run.frame() needs pandas: pip install 'cbandit[experiments]'"
        ) from None
    numbers = list(run.trials or range(1))
    columns: dict[str, Any] = {
        "policy": run.policy,
        "trial": torch.tensor(numbers).repeat_interleave(run.rounds).numpy(),
        "t": torch.arange(1, run.rounds + 1).repeat(len(numbers)).numpy(),
    }
    if run.index is not None:
        columns["action"] = run.index.reshape(-1).numpy()
    tables = {
        "x": run.actions,
        "reward": run.rewards,
        "cost": run.costs,
        "true_reward": run.true_rewards,
        "true_cost": run._stated(run.true_costs),
        "threshold": run.thresholds.expand_as(run.costs),
        "multiplier": run.multipliers,
    }
    if run.failed is not None:
        columns["failed"] = run.failed.reshape(-1).numpy()
    if run.expected_rewards is not None:
        tables["expected_reward"] = run.expected_rewards
        tables["stage_cost"] = run._stated(run.stage_costs)
    costs = (run.senses and run.senses.names) or ()
    for name, table in tables.items():
        if name == "x" and run.names is not None:
            for own, values in run.names.read(table).items():
                taken = own in OWN or own in costs or own in metrics
                columns[f"x.{own}" if taken else own] = values.reshape(-1)
            continue
        if name.endswith("reward"):
            columns[name] = table.reshape(-1).numpy()
            continue
        for j, column in enumerate(table.unbind(-1)):
            columns[_column(name, j, costs)] = column.reshape(-1).numpy()
    for name in metrics:
        columns[name] = getattr(run, name).reshape(-1).numpy()
    return pd.DataFrame(columns)


def _column(name: str, j: int, costs: Sequence[str]) -> str:
    """Return what a frame calls a column of costs, multipliers or coordinates."""
    if name == "x" or not costs:
        return f"{name}{j + 1}"
    return {"cost": costs[j], "true_cost": f"true_{costs[j]}"}.get(
        name, f"{name}_{costs[j]}"
    )
