"""Known linear limits on the actions themselves: ``A x <= b``.

Unlike thresholds on costs they are known before the first round, so no action beyond
them is ever chosen. They are in the user's numbers, also where beliefs use logarithms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cbandit._core import checks
from cbandit._core.limit_text import read_linear
from cbandit.actions.base import moved
from cbandit.errors import CBanditError

TOLERANCE = 1e-9  # share of a limit's range over the set by which a point may exceed it


class LinearLimits:
    """Linear limits ``A x <= b`` on points ``x (..., d)``, in the user's numbers.

    Args:
        matrix: ``A``, ``(k, d)``.
        bound: ``b``, ``(k,)``.
        extent: ``(2, d)``, the least and the greatest coordinates of the set.
        texts: the limits as the user wrote them; empty: given as arrays.

    Attributes:
        excess: by how much a limit may be exceeded, ``(k,)``.
    """

    def __init__(
        self, matrix: Tensor, bound: Tensor, extent: Tensor, texts: tuple[str, ...]
    ) -> None:
        self.matrix, self.bound, self.texts = matrix, bound, texts
        low, high = extent.double()
        reach = (matrix.abs() * (high - low)).sum(-1)
        size = (matrix.abs() * torch.maximum(low.abs(), high.abs())).sum(-1)
        rounding = 4 * torch.finfo(torch.float64).eps * (size + bound.abs())
        self.excess = TOLERANCE * reach + rounding

    @classmethod
    def read(
        cls,
        name: str,
        given: Any,
        variables: Sequence[str],
        extent: Tensor,
        refused: Mapping[str, str] | None = None,
    ) -> LinearLimits:
        """Return the limits that a user gave as texts, or as a pair ``(A, b)``.

        Args:
            name: the argument's, for errors.
            given: the user's argument.
            variables: the name of each coordinate.
            extent: ``(2, d)``, the least and the greatest coordinates of the set.
            refused: names that limits may not use, each with the reason.
        """
        if isinstance(given, str):
            given = [given]
        if isinstance(given, tuple) and len(given) == 2:
            if not any(isinstance(part, str) for part in given):
                return cls(*_arrays(name, given, len(variables)), extent, ())
        if not isinstance(given, list | tuple) or not given:
            pair = ", or a pair (A, b) for A x <= b" if name == "linear" else ""
            raise CBanditError(
                f"{name} must be a list of texts such as "
                f"'{' + '.join(variables[:2])} <= 1'{pair}; got {checks.kind(given)}"
            )
        known = [each for each in variables if each not in (refused or {})]
        rows = [
            read_linear(f"{name}[{i}]", text, known, refused)
            for i, text in enumerate(given)
        ]
        matrix = torch.zeros(len(rows), len(variables), dtype=torch.float64)
        for row, (coefficients, _) in zip(matrix, rows, strict=True):
            for variable, value in coefficients.items():
                row[variables.index(variable)] = value
        bound = torch.tensor([b for _, b in rows], dtype=torch.float64)
        return cls(matrix, bound, extent, tuple(map(str.strip, given)))

    def holds(self, x: Tensor) -> Tensor:
        """Return which points ``x (..., d)`` keep all limits, ``(...)`` bool."""
        values = x.double() @ self.matrix.mT
        kept: Tensor = (values <= self.bound + self.excess).all(-1)
        return kept

    def written(self) -> str:
        """Return the limits as they are written in a program."""
        if self.texts:
            return f"[{', '.join(map(repr, self.texts))}]"
        return f"(A, b) with {len(self.bound)} rows"

    def to(
        self, device: torch.device | str | None, dtype: torch.dtype | None = None
    ) -> LinearLimits:
        """Return the same limits on another device; they stay float64."""
        out = object.__new__(LinearLimits)
        out.texts = self.texts
        out.matrix, out.bound = moved(self.matrix, device), moved(self.bound, device)
        out.excess = moved(self.excess, device)
        return out


def _arrays(name: str, given: tuple[Any, Any], dim: int) -> tuple[Tensor, Tensor]:
    """Return a user's ``(A, b)`` as tensors ``(k, d)`` and ``(k,)``, checked."""
    matrix, bound = (
        checks.finite(f"{name}: {part}", checks.tensor(f"{name}: {part}", value))
        for part, value in zip("Ab", given, strict=True)
    )
    if matrix.dim() != 2 or matrix.shape[1] != dim or not len(matrix):
        raise CBanditError(
            f"{name}: A must have shape (k, d) with d = {dim}; got "
            f"{tuple(matrix.shape)}"
        )
    if bound.shape != matrix.shape[:1]:
        raise CBanditError(
            f"{name}: b must have shape (k,) = {tuple(matrix.shape[:1])}, one number "
            f"per row of A; got {tuple(bound.shape)}"
        )
    return matrix.clone(), bound.clone()
