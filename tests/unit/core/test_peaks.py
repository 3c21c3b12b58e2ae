"""The greatest of a long row: the first of ties, and what is not a number is seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from inside import SHORT, argmax, maximise


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1000, 4097, 100_003])
@pytest.mark.parametrize("least", [False, True])
def test_the_first_of_ties(size: int, least: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randint(max(2, size // 50), (3, size), generator=generator).double()
    for row, found in zip(rows.tolist(), argmax(rows, least).tolist(), strict=True):
        assert found == row.index(min(row) if least else max(row))


@pytest.mark.parametrize("place", [0, 77_000, 100_002])
def test_not_a_number_is_found(place: int) -> None:
    row = torch.rand(1, 100_003, dtype=torch.float64)
    row[0, place] = torch.nan
    assert argmax(row).tolist() == [place]


def test_a_long_stretch_is_searched_as_a_short_one_is() -> None:
    generator = torch.Generator().manual_seed(5)
    estimate = torch.randint(40, (1, 2, 150_000), generator=generator).double()

    def stretches(size: int) -> Iterator[tuple[int, torch.Tensor]]:
        for start in range(0, 150_000, size):
            yield start, estimate[..., start : start + size]

    found = [
        maximise(stretches(size), lambda f, g: f - g[:, 0])
        for size in (SHORT - 8, SHORT + 8, 70_001)
    ]
    values = (estimate[0, 0] - estimate[0, 1]).tolist()
    best = values.index(max(values))
    for each in found:
        assert each.index is not None and each.index.tolist() == [best]
        assert each.value.tolist() == [values[best]]
        assert each.f.tolist() == [float(estimate[0, 0, best])]
