"""The log of a policy's rounds, by which other policies can be judged.

Shapes: ``n`` rounds, ``T`` trials, ``m`` costs, ``K`` choices, ``k`` the most choices
with a chance in any round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from cbandit.actions import Contextual
from cbandit.errors import CBanditError
from cbandit.policies.history import MAX_LAW, STATES
from cbandit.policies.signs import Objective
from cbandit.receipt.log import Log, choices_of

PLAYED = [STATES.index(state) for state in ("open", "told", "failed", "expired")]


def log_of(
    trial: int,
    limits: Tensor,
    ranges: Mapping[int, tuple[float, float]],
    table: Mapping[str, Tensor],
    actions: Any,
    objective: Objective,
) -> Log:
    """Return the log of one trial.

    Args:
        trial: the trial's place among all.
        limits: the limits of the costs in the user's sense, ``(m,)``.
        ranges: what functions cannot leave, in the user's sense, by number.
        table: the history, see :meth:`cbandit.policies.history.History.table`.
        actions: the policy's set.
        objective: the names and signs of reward and costs.
    """
    import pandas as pd

    if not actions.finite:
        raise CBanditError(
            "log lists the chance of every choice, so it needs a set of numbered "
            f"actions; got {actions!r}"
        )
    state, apart = table["state"][:, trial].numpy(), table["apart"].numpy()
    rows = np.isin(state, PLAYED) & ~apart
    parts = {name: table[name][rows] for name in table if table[name].dim() > 1}
    column = {name: part[:, trial].numpy() for name, part in parts.items()}
    played, shares, chance = column["index"], column["law_chances"], column["chance"]
    certain = np.isnan(chance)[:, None] | np.isnan(shares)
    numbers = np.where(certain, -1, column["law"])
    every = np.arange(int(actions.size))
    if len(every) > MAX_LAW:  # those that were played, or could have been
        met = np.unique(np.concatenate([played, numbers.ravel()]))
        every = met[met >= 0]
    distribution = np.full((len(played), len(every)), np.nan)
    at = np.arange(len(played))
    place = np.searchsorted(every, played)
    distribution[at, place] = chance
    whole = (numbers >= 0).any(-1)
    distribution[whole] = 0.0
    i, j = np.nonzero(numbers >= 0)
    distribution[i, np.searchsorted(every, numbers[i, j])] = shares[i, j]
    contexts = None
    if isinstance(actions, Contextual):
        shown = actions.split(parts["x"][:, trial])[1]
        contexts = pd.DataFrame(actions.contexts.table(shown))
    names = ["reward", *map(objective.label, range(objective.m))]
    names[1:] = [f"cost.{name}" if name == "reward" else name for name in names[1:]]
    reward = objective.reward(parts["reward"][:, trial]).unsqueeze(-1).numpy()
    costs = objective.costs(parts["costs"][:, trial]).numpy()
    words = [
        f"{'>=' if objective.above(j) else '<='} {limit:.12g}"
        for j, limit in enumerate(limits.tolist())
    ]
    return Log(
        actions=choices_of(actions, every),
        action=place,
        contexts=contexts,
        distribution=distribution,
        outcomes=pd.DataFrame(np.hstack([reward, costs]), columns=names),
        limits=dict(zip(names[1:], words, strict=True)),
        ranges={names[f]: ends for f, ends in ranges.items()},
        maximise=not objective.minimise,
    )
