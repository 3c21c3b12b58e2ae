"""Of scores that are as good to within rounding the first counts, wherever it is."""

from __future__ import annotations

import itertools
import os
from contextlib import nullcontext
from dataclasses import replace

import gpytorch
import pytest
import torch
from inside import (
    Best,
    Look,
    Running,
    Streams,
    among,
    beliefs_of,
    best_place,
    maximise_box,
    only_equals_tie,
    plain_torch,
    ranked,
)
from nudge import nudged

import cbandit as cb

pytestmark = pytest.mark.skipif(
    "CBANDIT_NUDGE" in os.environ, reason="these tests put scores off by themselves"
)

F64 = torch.float64
TOLERANCE = 1e-3
SIZE = 2_000


def first_of(values, tolerance):
    """The rule, in words of one line."""
    return [
        next(i for i, v in enumerate(row) if v >= max(row) - tolerance)
        for row in values.tolist()
    ]


def stairs(seed, trials=1, size=SIZE):
    """Scores of which many come close to the greatest, each to the next, rising."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(trials, size, generator=generator, dtype=F64) - 1
    for row in values:
        count = int(torch.randint(1, 12, (), generator=generator))
        at = torch.randperm(size, generator=generator)[:count].sort().values
        rise = torch.rand(count, generator=generator, dtype=F64).cumsum(0)
        row[at] = 1 + 0.6 * TOLERANCE * rise
    return values


class TestAStretchAtATime:
    @pytest.mark.parametrize("trials", [1, 3])
    def test_it_does_not_matter_how_the_set_is_cut(self, trials):
        close = torch.full((trials,), TOLERANCE, dtype=F64)
        for seed, step in itertools.product(range(40), (SIZE, 617, 100)):
            values = stairs(seed, trials)
            estimate = torch.stack([values, 2 * values], 1)
            running = Running(lambda f, g: f, None, close)
            for start in range(0, SIZE, step):
                running.add(start, estimate[..., start : start + step])
            found, wanted = running.best(), first_of(values, TOLERANCE)
            assert found.index.tolist() == wanted
            assert found.value.tolist() == values.amax(-1).tolist()
            here = values[range(trials), wanted]
            assert torch.equal(found.estimate, torch.stack([here, 2 * here], -1))

    def test_what_is_left_out_is_not_taken(self):
        values = torch.tensor([[1.0, 0.0, 1.0]], dtype=F64)
        mask = torch.tensor([[False, True, True]])
        for allowed, wanted in ((mask, 2), (mask & False, 0)):
            running = Running(lambda f, g: f, allowed, torch.ones(1, dtype=F64) / 2)
            running.add(0, values.unsqueeze(1))
            assert running.best().index.tolist() == [wanted]

    def test_not_a_number_wins(self):
        running = Running(lambda f, g: f, None, torch.ones(1, dtype=F64))
        for start, value in enumerate((3.0, torch.nan, 5.0)):
            running.add(start, torch.full((1, 1, 1), value, dtype=F64))
        assert running.best().value.tolist() == [torch.inf]
        assert running.best().index.tolist() == [1]

    @pytest.mark.parametrize("size", [7, 5_000])
    def test_a_row(self, size):
        values = stairs(size, 4, size) if size > 20 else torch.rand(4, size, dtype=F64)
        assert best_place(values, TOLERANCE).tolist() == first_of(values, TOLERANCE)
        values[1, 3] = torch.nan
        assert best_place(values, TOLERANCE)[1].tolist() == 3

    def test_an_order(self):
        values = torch.tensor([[1.0, 5.0, 1.05, 4.96, -torch.inf, 4.92]], dtype=F64)
        assert ranked(values, 5, 0.045).tolist() == [[1, 3, 5, 2, 0]]
        assert ranked(values, 6, 0.06).tolist() == [[1, 3, 5, 0, 2, 4]]


class Ranks:
    """Two ranks in one process: the other one's answers are known."""

    size, rank = 2, 0

    def __init__(self, others):
        self.others, self.calls = others, 0

    def candidates(self, index, numbers):
        other = self.others[self.calls]
        self.calls += 1
        theirs = torch.cat([other.value.unsqueeze(-1), other.estimate], -1)
        return torch.stack([index, other.index]), torch.stack([numbers, theirs])


@pytest.mark.parametrize("seed", range(20))
def test_ranks_choose_what_one_process_would(seed):
    values, cut = stairs(seed, 2), SIZE // 2
    close = torch.full((2,), TOLERANCE, dtype=F64)

    def of(start, stop):
        running = Running(lambda f, g: f, None, close)
        running.add(start, values[:, start:stop].unsqueeze(1))
        return running

    first, second = of(0, cut), of(cut, SIZE)
    reach = values.amax(-1) - TOLERANCE
    # the second rank looks again where it must, as the first one does
    ranks = Ranks([second.best(), second.first(reach)])
    found = among(first.best(), ranks, first.reach, first.first)
    assert found.index.tolist() == first_of(values, TOLERANCE)
    assert isinstance(found, Best)


# -------------------------------------------------------------------- engines, kernels


def rbf(scale=0.3, amplitude=1.0):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=F64)
    kernel = gpytorch.kernels.ScaleKernel(kernel).double()
    kernel.outputscale = torch.tensor(amplitude, dtype=F64)
    return kernel


def grid(size=41):
    axis = torch.linspace(-1, 1, size, dtype=F64)
    return cb.ProductGrid([axis, axis])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("engine", ["joint", "product", "factor", "stream"])
def test_engines_take_the_first_that_is_close(engine, compiled):
    actions = grid()
    policy = cb.GPUCB(actions, reward=cb.GP(rbf(), noise=0.01), engine=engine)
    with torch.no_grad():
        for at in (3, 812, 1_500):
            policy.observe(index=[at], reward=[0.3 * at / 1_000])
        beliefs = beliefs_of(policy)
        mean, std = (each[0, 0] for each in beliefs.posterior())
        one = torch.ones(1, 1, dtype=F64)
        for tolerance in (0.0, 1e-9, 1e-3, 0.03, 0.3):
            close = torch.full((1,), tolerance, dtype=F64)
            look = Look(one, None, None, "primal-dual", None, tolerance=close)
            score = (mean + std).unsqueeze(0)
            for step in (None, 100, 717):
                for group in beliefs.groups:
                    if step is not None and group.engine.step is not None:
                        group.engine.step = step
                with nullcontext() if compiled else plain_torch():
                    found = beliefs.choose(look)
                known = found.index.item(), found.estimate.item()
                place = first_of(score, tolerance)[0]
                if tolerance > 1e-8:
                    assert known[0] == place
                assert known[1] == pytest.approx(score[0, known[0]].item(), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_stretches_of_one_engine_are_compared_exactly(seed):
    """Draws come a stretch at a time, also where loops are compiled."""
    actions = cb.Finite(torch.linspace(0, 1, SIZE, dtype=F64).unsqueeze(-1))
    policy = cb.GPTS(
        actions, reward=cb.GP(rbf(0.1), noise=0.01), engine="factor", seed=seed
    )
    policy.observe(index=[5, 900], reward=[0.1, 0.2])
    beliefs = beliefs_of(policy)
    engine, streams = beliefs.groups[0].engine, Streams(seed)
    one = torch.ones(1, 1, dtype=F64)
    start = streams.position()
    (block,) = engine.blocks([(0, SIZE)], streams)
    score = block.mean[:, 0] + block.draw[:, 0]
    for tolerance, step in itertools.product((1e-3, 1e-2, 0.1, 0.5), (SIZE, 333, 64)):
        close = torch.full((1,), tolerance, dtype=F64)
        look = Look(one, None, None, "primal-dual", None, tolerance=close)
        engine.step = step
        streams.go(start)
        found = beliefs.choose(look, streams)
        assert found.index.tolist() == first_of(score, tolerance)


def test_the_tolerance_is_a_share_of_the_prior_deviation():
    actions, close = grid(5), {}
    for dtype, share in ((F64, 1e-10), (torch.float32, 1e-6)):
        policy = cb.RPOL(
            actions,
            reward=cb.GP(rbf(0.3, 4.0), noise=0.01, mean=1e6),
            costs=[cb.GP(rbf(0.3, a), noise=0.01) for a in (9.0, 25.0)],
            thresholds=1e5,
            dtype=dtype,
            trials=3,
        )
        beliefs = beliefs_of(policy)
        close[dtype] = beliefs.tolerance(), beliefs.tolerance(costs=True)
        assert close[dtype][0].tolist() == pytest.approx([2 * share] * 3)
        assert close[dtype][1].tolist() == pytest.approx([5 * share] * 3)
    box = cb.Box([0.0], [1.0])
    flat = cb.GPUCB(box, reward=cb.GP(rbf(), noise=0.01), dtype=torch.float32)
    assert beliefs_of(flat).tolerance().tolist() == pytest.approx([1e-10])


# ------------------------------------------------------------------------- whole runs


def beliefs(**more):
    return cb.GP(rbf(**more), noise=0.01)


SAFE = {"safe": [60], "explore": cb.UCB(2.0)}
POLICIES = {
    "CKB": lambda on, gp: cb.CKB(
        on, reward=gp, costs=gp, explore=cb.UCB(2.0), step=0.3, cap=5.0
    ),
    "RPOL": lambda on, gp: cb.RPOL(on, reward=gp, costs=[gp, gp]),
    "CONFIG": lambda on, gp: cb.baselines.CONFIG(on, reward=gp, costs=gp),
    "CONFIG-TS": lambda on, gp: cb.baselines.CONFIG(
        on, reward=gp, costs=gp, explore=cb.TS(1.0)
    ),
    "infeasible": lambda on, gp: cb.baselines.CONFIG(
        on, reward=gp, costs=gp, thresholds=-9.0
    ),
    "GPUCB": lambda on, gp: cb.GPUCB(on, reward=gp),
    "EpochPenalty": lambda on, gp: cb.EpochPenalty(
        on, reward=gp, costs=1, epoch=4, explore=cb.UCB(1.0)
    ),
    "SafeOpt": lambda on, gp: cb.baselines.SafeOpt(on, reward=gp, costs=gp, **SAFE),
    "StageOpt": lambda on, gp: cb.baselines.StageOpt(
        on, reward=gp, costs=gp, rounds=6, **SAFE
    ),
    "SGPUCB": lambda on, gp: cb.baselines.SGPUCB(
        on, reward=gp, costs=gp, rounds=2, **SAFE
    ),
    "BKB": lambda on, gp: cb.baselines.BKB(on, reward=gp),
    "BKB with costs": lambda on, gp: cb.baselines.BKB(
        on, reward=gp, costs=gp, step=0.2, cap=3.0
    ),
    "ADMMBO": lambda on, gp: cb.baselines.ADMMBO(on, reward=gp, costs=gp),
    "default": lambda on, gp: cb.RPOL(
        on, reward=cb.GP.default(on), costs=cb.GP.default(on)
    ),
}


def world(x):
    """Mirrored in both axes, so that all but a few actions have equals."""
    square = x.double().square().sum(-1)
    return -square, square - 0.4


def played(make, actions, rounds=12):
    policy = make(actions, beliefs())
    chosen = []
    for _ in range(rounds):
        choice = policy.ask()
        reward, cost = world(choice.x)
        m = policy.m
        told = {"cost": cost if m == 1 else cost.expand(m)} if m else {}
        policy.tell(choice, reward=reward, **told)
        chosen.append(choice.index.tolist())
    return chosen


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", POLICIES)
def test_rounding_chooses_nothing_on_a_symmetric_set(name, compiled):
    actions, runs = grid(11), []
    for seed in range(3):
        with nudged(seed) as nudges:
            if compiled:
                runs.append(played(POLICIES[name], actions))
            else:
                with plain_torch():
                    runs.append(played(POLICIES[name], actions))
        assert nudges.count, "no score was off"
    assert runs[1:] == runs[:-1]


@pytest.mark.parametrize("name", ["CKB", "CONFIG", "BKB"])
def test_without_a_tolerance_it_does(name, monkeypatch):
    """What the test above would see."""
    only_equals_tie(monkeypatch)
    runs = []
    for seed in range(3):
        with nudged(seed), plain_torch():
            runs.append(played(POLICIES[name], grid(11)))
    assert runs[1:] != runs[:-1]


@pytest.mark.parametrize("name", ["LCLUCB", "SafeLTS"])
def test_nor_does_it_among_directions(name):
    angle = torch.arange(8, dtype=F64) * torch.pi / 4
    tips = torch.stack([angle.cos(), angle.sin()], -1)
    every = {"LCLUCB": cb.LCLUCB, "SafeLTS": cb.baselines.SafeLTS}
    star = cb.Star(torch.zeros(2, dtype=F64), tips)
    runs = []
    for seed in range(3):
        linear = cb.Linear(subgaussian=0.1)
        with nudged(seed):
            policy = every[name](
                star,
                reward=linear,
                costs=linear,
                safe=cb.Safe(x=[0.0, 0.0]),
                thresholds=0.5,
            )
            chosen = []
            for _ in range(6):
                choice = policy.ask()
                chosen.append(choice.index.tolist())
                policy.tell(choice, reward=0.0, cost=0.0)
            runs.append(chosen)
    assert runs[1:] == runs[:-1]


def test_a_box_that_is_flat_gives_the_first_point_that_was_drawn():
    box, found = cb.Box([0.0, 0.0], [1.0, 1.0]), []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)

        def flat(x, generator=generator):
            noise = torch.rand(*x.shape[:-1], generator=generator, dtype=F64)
            return (3.0 + 1e-13 * noise).unsqueeze(1) + 0 * x.sum(-1).unsqueeze(1)

        close = torch.full((1,), 1e-10, dtype=F64)
        best = maximise_box(box, flat, lambda f, g: f, Streams(0), tolerance=close)
        found.append(best.x.tolist())
    assert found[1:] == found[:-1]


@pytest.mark.parametrize("kind", [cb.CKB, cb.baselines.CONFIG])
def test_rounding_chooses_no_corner_of_a_box(kind):
    """All corners are alike at first: a run differs by what rounding moves, no more."""
    box, runs = cb.Box([-1.0, -1.0], [1.0, 1.0]), []
    more = {"step": 0.3, "cap": 5.0} if kind is cb.CKB else {}
    for seed in range(3):
        with nudged(seed):
            gp = beliefs(scale=0.6)
            policy = kind(box, reward=gp, costs=gp, explore=cb.UCB(2.0), **more)
            places = []
            for _ in range(6):
                choice = policy.ask()
                reward, cost = world(choice.x)
                policy.tell(choice, reward=reward, cost=cost)
                places.append(choice.x)
            runs.append(torch.stack(places))
    for run in runs[1:]:
        assert (run - runs[0]).abs().max() < 1e-4


def test_a_look_without_a_tolerance_takes_equals_alone():
    one = torch.ones(1, 1, dtype=F64)
    look = Look(one, None, None, "primal-dual")
    top = torch.ones(1, dtype=F64)
    assert look.reach(top).tolist() == [1.0]
    near = replace(look, tolerance=torch.full((1,), 0.25, dtype=F64))
    assert near.reach(top).tolist() == [0.75]
    assert near.closer(top - 0.1, near.reach(top)).tolerance.item() == pytest.approx(
        0.15
    )
