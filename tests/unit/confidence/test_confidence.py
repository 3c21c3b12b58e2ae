"""Widths against hand values, gains against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from inside import Task, change_detected, find, settings_of_experiment

import cbandit as cb
from cbandit import confidence

F64 = torch.float64


def test_rkhs_widths_by_hand():
    gain = torch.tensor([0.0, 2.0, 10.0], dtype=F64)
    small = cb.RKHS(norm=2.0, subgaussian=0.5, delta=0.1, form="small-lam")
    for g, found in zip([0.0, 2.0, 10.0], small(3, gain), strict=True):
        expected = 2 + 0.5 * math.sqrt(2 * (g + 1 + math.log(20)))
        assert found.item() == pytest.approx(expected, rel=1e-14)
    # c = 1: no costs;  c = 4: three costs
    for c in (1, 4):
        expected = 2 + 0.5 * math.sqrt(2 * (2 + 1 + math.log(c / 0.1)))
        assert small(3, gain, c)[1].item() == pytest.approx(expected, rel=1e-14)
    any_lam = cb.RKHS(norm=2.0, subgaussian=0.5, delta=0.1)
    expected = 2 + 0.5 / 0.2 * math.sqrt(2 * 2 + 2 * math.log(20))
    found = any_lam(3, gain, 2, torch.tensor(0.04, dtype=F64))[1]
    assert found.item() == pytest.approx(expected, rel=1e-14)
    tight = cb.RKHS(norm=2.0, subgaussian=0.5, delta=0.1, form="tight")
    expected = math.sqrt(4 + 0.25 / 0.04 * (2 * 2 + 2 * math.log(20)))
    found = tight(3, gain, 2, torch.tensor(0.04, dtype=F64))[1]
    assert found.item() == pytest.approx(expected, rel=1e-14)
    for width in (any_lam, tight):
        with pytest.raises(cb.CBanditError, match=f"{width.form}.*noise="):
            width(3, gain)


def test_the_tight_width_is_the_edge_of_the_set_of_functions(rng):
    """The largest ``w' h`` of all ``w`` that data and norm allow, by its Lagrangian.

    With ``q = y' (H H' + lam I)^-1 y`` the set is ``|y - H w|^2 + lam |w|^2 <= lam B^2
    + R^2 (ln det(I + H H' / lam) + 2 ln(2 / delta)) + lam q``: what a mixture of the
    likelihood ratios ``exp((|y - H w*|^2 - |y - H w|^2) / 2 R^2)`` over ``w ~ N(0, R^2
    I / lam)`` exceeds with a probability of ``delta / 2`` at most.
    """
    noise, norm, r, delta = 0.05, 1.3, 0.4, 0.1
    x = torch.linspace(0, 1, 15, dtype=F64).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    width = cb.RKHS(norm, r, delta, form="tight")
    policy = cb.RPOL(
        cb.Finite(x),
        reward=cb.GP(kernel, noise=noise),
        costs=cb.GP(kernel, noise=noise),
        explore=cb.UCB(width),
    )
    told, y = [], []
    for _ in range(12):
        choice = policy.ask()
        told.append(int(choice.index))
        y.append(rng.normal())
        policy.tell(choice, reward=y[-1], cost=rng.normal())
    policy.ask()
    gram = np.exp(-((x - x.T).numpy() ** 2) / (2 * 0.3**2))
    values, vectors = np.linalg.eigh(gram)
    features = vectors * np.sqrt(values.clip(0))
    h, target = features[told], np.array(y)
    outer = h @ h.T
    q = target @ np.linalg.solve(outer + noise * np.eye(12), target)
    spent = np.linalg.slogdet(np.eye(12) + outer / noise)[1] + 2 * math.log(2 / delta)
    level = noise * norm**2 + r**2 * spent + noise * q
    normal = h.T @ h + noise * np.eye(15)
    centre = np.linalg.solve(normal, h.T @ target)
    left = ((target - h @ centre) ** 2).sum() + noise * centre @ centre
    reach = np.einsum("ij,ji->i", features, np.linalg.solve(normal, features.T))
    edge = features @ centre + np.sqrt((level - left) * reach)
    bound = policy.posterior().reward
    gain = torch.tensor(0.5 * np.linalg.slogdet(np.eye(12) + outer / noise)[1])
    beta = width(13, gain, 2, torch.tensor(noise, dtype=F64))
    assert np.abs((bound.mean + beta * bound.std).numpy() - edge).max() < 1e-9
    assert policy.explore.widths.beta.form == "tight"


def test_late_feedback_does_not_take_the_tight_width():
    tight = cb.RKHS(1.0, 0.1, form="tight")
    with pytest.raises(cb.CBanditError, match=r"Delayed.*form='any-lam'"):
        policy_with(0.1, cb.UCB(tight), cb.GPUCB, feedback=cb.Delayed(3), horizon=9)


@pytest.mark.parametrize(
    ("horizon", "drift", "gain", "expected"),
    [
        (500, 5.0, 16.0, 20),  # 16^(1/4) (100)^(1/2)
        (1000, 2.0, 1.0, 22),  # sqrt(500) = 22.36
        (1000, 2.0, 10_000.0, 224),  # ten times that
        (100, 0.0, 3.0, 100),  # nothing changes: all rounds
        (100, 0.001, 9.0, 100),  # at most the horizon
        (10, 1e6, 0.5, 1),  # at least one
    ],
)
def test_the_window_of_a_drift_by_hand(horizon, drift, gain, expected):
    assert confidence.drift_window(horizon, drift, gain) == expected


def test_a_window_of_nonsense_is_refused():
    for bad in ({"drift": -1.0}, {"gain": math.nan}, {"horizon": 0}):
        given = {"horizon": 10, "drift": 1.0, "gain": 1.0} | bad
        with pytest.raises(cb.CBanditError, match=next(iter(bad))):
            confidence.drift_window(**given)


def test_the_drift_allowance_by_hand():
    found = confidence.drift_allowance(window=8, noise=0.5, gain=6.0, drift=0.25)
    assert found == pytest.approx(math.sqrt(2 * 8 * 1.5 * 6) / 0.5 * 0.25, rel=1e-15)


def test_a_change_by_hand(rng):
    """All windows, functions and trials by the formula; one needs the full window."""
    count, delta, n = np.array([[1.0, 7.0], [40.0, 300.0], [5.0, 90.0]]), 0.05, 16
    errors = rng.standard_normal((n, 3, 2)) * 0.6
    errors[-1, 0, 0], errors[:, 1, 1], errors[:, 2, 0] = 5.2, 1.9, 1.9
    bands = rng.uniform(0, 0.1, (n, 3, 2))
    bands[:-2, 2] = np.inf  # only two rounds so far: 1.9 twice is not enough
    variances = rng.uniform(0.5, 1.0, (n, 3, 2))
    expected, by_last = np.zeros((3, 2), bool), np.zeros((3, 2), bool)
    for i, f in itertools.product(range(3), range(2)):
        log = math.log(2 * 2 * 5 * math.pi**2 * count[i, f] ** 2 / (6 * delta))
        for size in (1, 2, 4, 8, 16):
            noise = math.sqrt(2 * log * sum(variances[-size:, i, f]))
            most = sum(bands[-size:, i, f]) + noise
            beyond = abs(sum(errors[-size:, i, f])) > most
            expected[i, f] |= beyond
            by_last[i, f] = beyond
    tensors = map(torch.tensor, (errors, bands, variances, count))
    found = change_detected(*tensors, delta)
    assert found.tolist() == expected.tolist()
    assert expected.tolist() == [[True, False], [False, True], [False, False]]
    assert not by_last[0, 0]


def test_noise_alone_is_seldom_taken_for_a_change(rng):
    """At most a share delta of 300 runs of 200 rounds, whatever the window."""
    noise = torch.tensor(rng.standard_normal((200, 300, 2)))
    zeros, found = torch.zeros_like(noise), torch.zeros(300, dtype=torch.bool)
    for t in range(1, 201):
        last = slice(max(0, t - 64), t)
        missing = torch.zeros(64 - min(t, 64), 300, 2, dtype=F64)
        errors = torch.cat([missing, noise[last]])
        bands = torch.cat([missing + torch.inf, zeros[last]])
        count = torch.full((300, 2), float(t), dtype=F64)
        ones = torch.ones_like(errors)
        found |= change_detected(errors, bands, ones, count, 0.1).any(-1)
    assert found.double().mean() <= 0.1


def test_the_sketched_width_by_hand():
    one = torch.ones(1, 1, dtype=F64)
    found = confidence.sketched_width(
        2 * one, 0.3 * one, 4 * one, 9 * one, one / 4, 0.1
    )
    expected = (1 + math.sqrt(2)) * 2 + 2 * 0.3 / 0.5 * math.sqrt(
        3 * (1 + math.log(10)) * 4 + math.log(10)
    )
    assert found.item() == pytest.approx(expected, rel=1e-14)


def test_linear_and_count_widths_by_hand():
    found = confidence.linear_width(5, 3, 0.5, 2.0, 1.5, 0.7, 0.1)
    expected = (
        0.5 * math.sqrt(3 * math.log((1 + 4 * 0.49 / 2) / 0.1)) + math.sqrt(2) * 1.5
    )
    assert found == pytest.approx(expected, rel=1e-14)
    counts = torch.tensor([0.0, 1.0, 4.0], dtype=F64)
    width = 0.5 * math.sqrt(2 * math.log(20))
    found = confidence.count_width(counts, 0.5, 0.05)
    assert found.tolist() == pytest.approx([width, width, width / 2], rel=1e-14)


def test_greedy_gain_takes_the_largest_variance_each_time(rng):
    half = rng.standard_normal((7, 7))
    covariance, lam = half @ half.T, 0.3
    found = confidence.greedy_gain(torch.as_tensor(covariance), 5, lam)
    picked: list[int] = []
    for n in range(5):
        gram = covariance[np.ix_(picked, picked)] + lam * np.eye(n)
        cross = covariance[picked]
        var = np.diagonal(covariance) - np.einsum(
            "ij,ij->j", cross, np.linalg.solve(gram, cross) if n else cross
        )
        picked.append(int(np.argmax(var)))
        part = covariance[np.ix_(picked, picked)]
        gain = 0.5 * np.linalg.slogdet(np.eye(n + 1) + part / lam)[1]
        assert found[n].item() == pytest.approx(gain, rel=1e-10)


def test_the_worst_case_is_above_every_choice(rng):
    half = rng.standard_normal((5, 5))
    covariance, lam, rounds = half @ half.T, 0.3, 3
    best = max(
        0.5 * np.linalg.slogdet(np.eye(rounds) + covariance[np.ix_(p, p)] / lam)[1]
        for p in itertools.product(range(5), repeat=rounds)
    )
    table = torch.as_tensor(covariance)
    greedy = confidence.greedy_gain(table, rounds, lam)[-1].item()
    bound = confidence.worst_case_gain(table, rounds, lam).item()
    assert greedy <= best + 1e-12 <= bound + 1e-12
    assert bound == pytest.approx(greedy / (1 - math.exp(-1)), rel=1e-14)


def test_gains_of_a_batch(rng):
    half = torch.as_tensor(rng.standard_normal((3, 6, 6)))
    tables = half @ half.mT
    found = confidence.greedy_gain(tables, 8, 0.1)
    for table, row in zip(tables, found, strict=True):
        assert torch.allclose(confidence.greedy_gain(table, 8, 0.1), row, atol=1e-12)
    assert found.diff(dim=-1).min() > 0


def policy_with(noise, explore, kind=cb.RPOL, **more):
    actions = cb.Finite(torch.linspace(0, 1, 20, dtype=F64).unsqueeze(-1))
    gp = cb.GP(RBFKernel().double(), noise=noise)
    return kind(actions, reward=gp, explore=explore, **more)


def test_a_heuristic_form_warns_once_a_policy():
    small = cb.RKHS(norm=1.0, subgaussian=0.1, form="small-lam")
    costs = cb.GP(RBFKernel().double(), noise=0.3)
    with pytest.warns(UserWarning, match="noise of 0.3 it is a heuristic") as caught:
        policy = policy_with(1.5, cb.UCB(1.0, cost_beta=small), costs=costs)
    for _ in range(3):  # any other warning is an error
        policy.tell(policy.ask(), reward=0.1, cost=0.1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="noise of 0.01 it is a heuristic"):
        policy_with(0.01, cb.UCB(small), cb.GPUCB)
    # where it is a guarantee, is not used, or is not the form: no word
    assert cb.RKHS(1.0, 0.1).form == "any-lam"
    policy_with(0.5, cb.UCB(small), costs=cb.GP(RBFKernel().double(), noise=1.0))
    policy_with(0.01, cb.UCB(cb.RKHS(1.0, 0.1)), cb.GPUCB)
    policy_with(0.01, cb.UCB(small, cost_beta=2.0), cb.GPUCB, feedback=cb.Sliding(5))


def test_the_papers_form_is_asked_for_by_name_and_without_a_word():
    """Warnings are errors here."""
    settings = settings_of_experiment("zhou-synthetic", trials=2, horizon=5)
    for name in settings.policies:
        task = Task(find("zhou-synthetic"), settings, name, range(2))
        policy = task.make(task.problem())
        assert policy.explore.widths.beta.form == "small-lam"
        assert policy.explore.widths.cost_beta.form == "small-lam"
