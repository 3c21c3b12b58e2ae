"""How results show themselves: as a line of text, and as a table in a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

MAX_NUMBERS = 4  # a tensor of more numbers is shown as its shape and type
MAX_ROWS = 20  # of a table


def brief(self: Any) -> str:
    """Return the ``repr`` of a dataclass that may hold large tensors, as one line.

    Fields that are ``None`` are left out.
    """
    parts = []
    for field in fields(self):
        value = getattr(self, field.name)
        if field.repr and value is not None:
            shown = _numbers(value) if isinstance(value, Tensor) else repr(value)
            parts.append(f"{field.name}={shown}")
    return f"{type(self).__name__}({', '.join(parts)})"


def _numbers(values: Tensor) -> str:
    """Return a tensor as numbers if they are few, else its shape and type."""
    if values.numel() > MAX_NUMBERS:
        return f"{tuple(values.shape)} {str(values.dtype).removeprefix('torch.')}"
    if values.dtype == torch.bool or not values.is_floating_point():
        return repr(values.tolist())
    rounded = [float(f"{value:.4g}") for value in values.flatten().tolist()]
    return repr(torch.tensor(rounded, dtype=torch.float64).view(values.shape).tolist())


def html_table(rows: Sequence[Mapping[str, object]], caption: str = "") -> str:
    """Return an HTML table with a row for each mapping, for notebooks.

    Args:
        rows: by column; a column is empty where a row lacks it. Only the first
            ``MAX_ROWS`` are shown.
        caption: the text above the table.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = []
    for row in rows[:MAX_ROWS]:
        cells = (html.escape(_cell(row.get(name))) for name in names)
        body.append("".join(f"<td>{cell}</td>" for cell in cells))
    if len(rows) > MAX_ROWS:
        more = f"and {len(rows) - MAX_ROWS} more rows"
        body.append(f'<td colspan="{len(names)}">{more}</td>')
    lines = [
        "<table>",
        f'<caption style="text-align: left">{html.escape(caption)}</caption>',
        f"<thead><tr>{head}</tr></thead>",
        *(f"<tr>{cells}</tr>" for cells in body),
        "</table>",
    ]
    return "\n".join(lines)


def _cell(value: object) -> str:
    """Return a value as text: floats in few digits, nothing for what is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
