"""Some short lives of the soak: files, beliefs and late feedback of all kinds."""

from __future__ import annotations

from collections import Counter

import pytest
import soak


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_a_life_ends_with_the_beliefs_of_a_dense_solve(seed, tmp_path):
    life, tally = soak.Life(seed), Counter()
    life.rounds = min(life.rounds, 30)
    while life.turn(tally, tmp_path):
        pass
    assert life.end() < soak.LIMIT[life.against]


def test_growth_is_a_slope_an_hour():
    minutes = [float(k) for k in range(60)]
    rising = [500.0 + 2 * k for k in range(60)]
    slope, error = soak.growth(minutes, rising)
    assert slope == pytest.approx(120)
    assert error == pytest.approx(0, abs=1e-6)
    settled = [500.0 + min(k, 25) for k in range(60)]  # flat over the last half
    assert soak.growth(minutes, settled)[0] == pytest.approx(0, abs=1e-9)
