"""Epochs of a fixed length: in designed rounds too, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from inside import beliefs_of
from worlds import smooth

import cbandit as cb

LINE = cb.Finite(torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1))


def readings(policy):
    """How many readings the beliefs hold."""
    return int(beliefs_of(policy).units().seen.max())


@pytest.mark.parametrize("design", [0, 4, 6, 9])
def test_an_epoch_that_begins_in_a_design_drops_its_data(design):
    gp = smooth()
    policy = cb.RPOL(LINE, reward=gp, costs=gp, restart=5, forget=True, design=design)
    held = []
    for _ in range(12):
        choice = policy.ask()
        held.append(int(policy._now.state.beliefs.units().seen.max()))
        policy.tell(choice, reward=float(choice.x), cost=0.1)
    assert held == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize("restart", [5, "doubling"])
def test_data_from_before_stay_in_the_first_epoch(restart):
    gp = smooth()
    policy = cb.RPOL(LINE, reward=gp, costs=gp, restart=restart, forget=True)
    policy.observe(index=[3, 20], reward=[0.1, 0.4], cost=[0.0, 0.2])
    held = []
    for _ in range(7):
        policy.tell(policy.ask(), reward=0.3, cost=0.1)
        held.append(readings(policy))
    assert held == ([3, 4, 5, 6, 7, 1, 2] if restart == 5 else [3, 1, 2, 1, 2, 3, 4])


def test_a_margin_stays_where_nothing_is_forgotten():
    gp, explore = smooth(standardize=False), cb.UCB(1.0, margin=2.0)
    margins = []
    policy = cb.RPOL(LINE, reward=gp, costs=gp, explore=explore, restart=4)
    for _ in range(10):
        choice = policy.ask()
        margins.append(float(policy._latest.margin or torch.zeros(1)))
        policy.tell(choice, reward=float(choice.x), cost=0.1)
    assert margins[0] == 0.0
    assert min(margins[1:]) > 0.0
