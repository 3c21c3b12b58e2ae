"""Facts about a BoTorch model: its parts, data, outputs, and the width of points."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from botorch.models.model import Model, ModelList
from botorch.models.multitask import MultiTaskGP
from botorch.sampling.pathwise.utils import get_train_inputs
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError

__all__ = ["Outputs", "arrangement", "coordinates", "data", "parts"]

Outputs = Sequence[tuple[int, float]]
"""Which outputs are reward and costs, and by what each is multiplied."""


def parts(model: Model) -> list[Model]:
    """Return the models of a list, or the only one."""
    models: Any = model.models if isinstance(model, ModelList) else [model]
    return list(models)


def data(part: Model) -> Tensor | None:
    """Return where a model was observed, ``(*b, n, d)``; ``None`` if it cannot tell."""
    try:
        x: Tensor = get_train_inputs(part, transformed=False)[0]
        extra = x.dim() - 2 - len(part.batch_shape)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    for _ in range(extra):
        x = x.select(-3, 0)  # all outputs have the same
    if isinstance(part, MultiTaskGP) and part.num_outputs > 1:
        # one column is the task's, which points do not have
        task = part._task_feature % x.shape[-1]
        x = torch.cat([x[..., :task], x[..., task + 1 :]], -1)
    return x


def coordinates(model: Model) -> int | None:
    """Return the width ``d`` of points, if the model's data tell it."""
    if any(isinstance(part, MultiTaskGP) for part in model.modules()):
        return None  # points may name a task or not
    seen = [data(part) for part in parts(model)]
    widths = {x.shape[-1] for x in seen if x is not None}
    return widths.pop() if len(widths) == 1 else None


def arrangement(given: Outputs | None, count: int) -> tuple[Tensor, Tensor]:
    """Return which outputs are reward and costs, and their factors, ``(1 + m,)``."""
    if given is None:
        given = [(j, 1.0) for j in range(count)]
    try:
        place = [operator.index(j) for j, _ in given]
        factor = [checks.number("outputs", a) for _, a in given]
    except (TypeError, ValueError):
        raise CBanditError(
            "outputs must be a list of pairs (number of an output, factor); got "
            f"{given!r}"
        ) from None
    if len(place) < 2:
        raise CBanditError(
            "model must have 1 + m outputs, the reward first and m >= 1 costs after; "
            f"got {len(place)}"
        )
    if min(place) < 0 or max(place) >= count or 0 in factor:
        raise CBanditError(
            f"outputs must name outputs 0 .. {count - 1}, with factors other than 0; "
            f"got {given!r}"
        )
    return torch.tensor(place), torch.tensor(factor, dtype=torch.float64)
