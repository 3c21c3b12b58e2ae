"""Tallies of arms against plain averages, and as values."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from inside import Tally

import cbandit as cb

CPU = torch.device("cpu")


def some(rounds, trials=3, functions=2, arms=5):
    g = torch.Generator().manual_seed(4)
    arm = torch.randint(arms, (rounds, trials), generator=g)
    return arm, torch.randn(rounds, trials, functions, generator=g).double()


def added(tally, arms, values):
    out = [tally]
    for arm, y in zip(arms, values, strict=True):
        out.append(out[-1].added(arm, y))
    return out


def held(tally):
    return torch.stack([tally.count, tally.mean, tally.spread]).clone()


def test_it_holds_counts_and_averages():
    arms, values = some(40)
    tally = added(Tally.start((3, 2, 5), torch.float64, CPU), arms, values)[-1]
    for trial in range(3):
        for arm in range(5):
            mine = values[arms[:, trial] == arm, trial]
            n = len(mine)
            assert (tally.count[trial, :, arm] == n).all()
            mean = mine.mean(0) if n else torch.zeros(2).double()
            torch.testing.assert_close(tally.mean[trial, :, arm], mean)
            spread = torch.full((2,), max(n, 1) ** -0.5, dtype=torch.float64)
            torch.testing.assert_close(tally.spread[trial, :, arm], spread)


def test_some_functions_in_some_trials():
    tally = Tally.start((2, 3, 4), torch.float64, CPU)
    weight = torch.tensor([[1.0], [0.0]]).double()
    told = torch.tensor([[3.0], [7.0]]).double()  # the second one is not meant
    one = tally.added(torch.tensor([1, 2]), told, weight, slice(0, 1))
    assert one.count.nonzero().tolist() == [[0, 0, 1]]
    assert one.mean.nonzero().tolist() == [[0, 0, 1]]
    assert one.mean.sum() == 3.0
    two = one.added(torch.tensor([1, 2]), 5 + told, weight, slice(0, 1))
    assert two.mean[0, 0, 1] == 5.5
    assert two.mean[1].abs().sum() == 0


def test_older_ones_stay_as_they_were():
    arms, values = some(12)
    every = added(Tally.start((3, 2, 5), torch.float64, CPU), arms, values)
    last = held(every[-1])
    again = added(Tally.start((3, 2, 5), torch.float64, CPU), arms[:5], values[:5])
    assert torch.equal(held(every[5]), held(again[-1]))
    # what came after is lost, and says so; from here on it is the same again
    with pytest.raises(cb.CBanditError, match="lost"):
        held(every[-1])
    assert torch.equal(held(added(every[5], arms[5:], values[5:])[-1]), last)


def test_an_addition_that_breaks_off_leaves_it_as_it_was(monkeypatch):
    arms, values = some(3)
    one = added(Tally.start((3, 2, 5), torch.float64, CPU), arms[:1], values[:1])[-1]
    before = held(one)

    def broken(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "scatter_", broken)
        with pytest.raises(KeyboardInterrupt):
            one.added(arms[1], values[1])
    assert torch.equal(held(one), before)
    assert (one.added(arms[1], values[1]).count.sum() - one.count.sum()) == 6


def test_copies_are_apart():
    arms, values = some(6)
    tally = added(Tally.start((3, 2, 5), torch.float64, CPU), arms, values)[3]
    for other in (copy.deepcopy(tally), pickle.loads(pickle.dumps(tally))):
        before = held(other)
        tally = tally.added(arms[4], values[4])
        assert torch.equal(held(other), before)
