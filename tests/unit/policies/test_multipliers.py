"""Multipliers move by numbers of the right shape and sign."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from midway import F64, INF, NAN

import cbandit as cb

MULTIPLIERS = {
    "projected": lambda phi, g, more=0.5: cb.multipliers.projected(phi, g, more),
    "queue": lambda phi, g, more=0.5: cb.multipliers.queue(phi, g, more),
    "rectified": lambda phi, g, more=0.5: cb.multipliers.rectified(phi, g, more),
}


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_multipliers_take_lists_and_refuse_other_costs(name):
    move = MULTIPLIERS[name]
    phi, g = torch.tensor([0.2, 0.4], dtype=F64), torch.tensor([1.0, -1.0], dtype=F64)
    wanted = move(phi, g)
    assert torch.equal(move([0.2, 0.4], [1.0, -1.0]), wanted)
    assert torch.equal(move(np.array([0.2, 0.4]), g), wanted)
    assert torch.equal(move(phi, g.expand(3, 2)), wanted.expand(3, 2))
    assert torch.equal(move(phi, g, [0.5, 0.5]), wanted)
    for bad, came in [(torch.zeros(3), "(3,)"), ([1.0], "(1,)"), (1.0, "()")]:
        with pytest.raises(cb.CBanditError) as error:
            move(phi, bad)
        assert "(*b, m)" in str(error.value)
        assert "(2,)" in str(error.value)
        assert str(error.value).endswith(f"got {came}")
    with pytest.raises(cb.CBanditError, match=r"\(2,\); got \(3,\)"):
        move(phi, g, torch.zeros(3))
    with pytest.raises(cb.CBanditError, match="must be a number, array or tensor"):
        move("much", g)


@pytest.mark.parametrize("bad", [-1.0, NAN, -INF, INF, torch.tensor([-1.0, 1.0])])
def test_multipliers_move_by_numbers_of_the_right_sign(bad):
    phi, g, move = torch.ones(2), torch.ones(2), cb.multipliers
    for name, call in [
        ("step", lambda: move.projected(phi, g, bad)),
        ("slack", lambda: move.projected(phi, g, 1.0, bad)),
        ("cap", lambda: move.projected(phi, g, 1.0, cap=bad)),
        ("multiplier", lambda: move.projected(bad * phi, g, 1.0)),
        ("slack", lambda: move.queue(phi, g, bad)),
        ("length", lambda: move.queue(bad * phi, g)),
        ("floor", lambda: move.rectified(phi, g, bad)),
        ("multiplier", lambda: move.rectified(bad * phi, g, 1.0)),
    ]:
        if name == "cap" and isinstance(bad, float) and bad == INF:
            assert torch.equal(call(), phi + g)  # there is none
            continue
        with pytest.raises(cb.CBanditError, match=f"^{name} must be .*at least 0"):
            call()
    for call in (
        lambda: move.projected(phi, NAN * g, 1.0),
        lambda: move.queue(phi, NAN * g),
    ):
        with pytest.raises(cb.CBanditError, match=r"^g must be finite"):
            call()
    with pytest.raises(cb.CBanditError, match=r"^cost must be finite"):
        move.rectified(phi, INF * g, 1.0)


def test_multipliers_by_hand():
    """All parts away from 0 and 1, where a sign or an operation would not show."""
    move = cb.multipliers
    phi, g = [0.5, 2.0, 0.1], [0.3, 1.0, -2.0]
    moved = move.projected(phi, g, 2.0, 0.25, cap=4.0)
    torch.testing.assert_close(moved, torch.tensor([1.6, 4.0, 0.0], dtype=F64))
    moved = move.projected(phi, g, 2.0, 0.25, cap=torch.tensor([1.5, 5.0, 1.0]))
    torch.testing.assert_close(moved, torch.tensor([1.5, 4.5, 0.0], dtype=F64))
    moved = move.rectified(phi, g, 0.7)
    torch.testing.assert_close(moved, torch.tensor([0.8, 3.0, 0.7], dtype=F64))
    moved = move.rectified(phi, g, torch.tensor([0.9, 0.2, 0.05]))
    torch.testing.assert_close(moved, torch.tensor([0.9, 3.0, 0.1], dtype=F64))
    torch.testing.assert_close(
        move.queue(phi, g, 0.25), torch.tensor([1.05, 3.25, 0], dtype=F64)
    )
    z = torch.tensor([1.5, -1.0])
    wanted = torch.tensor([(3 * 1.5 + 1) ** 2.0, 1.0])
    torch.testing.assert_close(move.polynomial(z, 2.0, 3.0), wanted)
    wanted = torch.tensor([math.exp(4.5), 1.0])
    torch.testing.assert_close(move.exponential(z, 3.0), wanted)
