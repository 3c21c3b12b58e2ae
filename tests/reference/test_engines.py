"""The four engines against a dense reference that merges nothing.

Errors are relative to the prior standard deviation: 1e-8 in float64, 1e-3 in float32.
"""

from __future__ import annotations

import math
import warnings

import gpytorch
import numpy as np
import pytest
import torch
from dense import extended_std, rbf
from inside import (
    Block,
    Covariance,
    Engine,
    Joint,
    Stored,
    Swept,
    Update,
    beliefs_of,
    check_every,
    engine_choice,
    forget_oldest,
    hold,
    make_engine,
    partition,
    passed_over,
    split,
)

import cbandit as cb

F64, F32 = torch.float64, torch.float32
CPU = torch.device("cpu")
ENGINES = ("joint", "factor", "product", "stream")
LARGE = ENGINES[1:]
BOUND = {F64: 1e-8, F32: 1e-3}


@pytest.fixture(autouse=True)
def fresh_memory_is_not_a_number():
    """What is read before it is written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_fresh_memory_is_indeed_not_a_number():
    assert bool(torch.empty(7).isnan().all())


def supports(engine: str, case) -> bool:
    return {"stream": case.closed, "product": case.factors}.get(engine, True)


def grid(*sizes: int) -> cb.ProductGrid:
    return cb.ProductGrid([torch.linspace(0, 1, n, dtype=F64) for n in sizes])


def everything(actions) -> np.ndarray:
    return actions.block(0, actions.size).double().numpy()


class Bench:
    """An engine beside dense references, one a trial and function."""

    def __init__(
        self,
        name,
        actions,
        case,
        dense,
        trials=1,
        functions=1,
        dtype=F64,
        lam=1e-2,
        covariance=None,
    ):
        if covariance is None:
            covariance = Covariance.of(case.make(actions.dim), actions)
        self.actions = actions.to(CPU, dtype)
        self.trials, self.functions, self.dtype, self.lam = (
            trials,
            functions,
            dtype,
            lam,
        )
        self.engine = make_engine(
            name, self.actions, covariance, trials, functions, dtype, CPU
        )
        self.dense = [
            [dense(case.values, lam) for _ in range(functions)] for _ in range(trials)
        ]

    def points(self, trial: int) -> np.ndarray:
        block = self.actions.block(0, self.actions.size).double().numpy()
        return block if block.ndim == 2 else block[trial]

    def tell(self, keys, values, precision=None, wanted=None, forget=False):
        keys = [int(k) for k in keys]
        wanted = [True] * self.trials if wanted is None else wanted
        if precision is None:
            precision = [1 / self.lam] * self.trials
        kept = [p if w else 0.0 for p, w in zip(precision, wanted, strict=True)]
        x = self.actions.at(torch.tensor(keys))
        move = self.engine.remove if forget else self.engine.add
        values_of, precision_of = (
            torch.as_tensor(each, dtype=F64) for each in (values, kept)
        )
        move(Update(keys, x, values_of, precision_of, wanted))
        for i in range(self.trials):
            for j in range(self.functions):
                if not wanted[i]:
                    continue
                if forget:
                    self.dense[i][j].forget()
                else:
                    noise = 1 / precision[i]
                    self.dense[i][j].add(x[i].numpy(), values[i][j], noise)

    def believed(self, stretches=None):
        """Means ``(T, F, N)`` and deviations ``(T, N)``, by a sweep."""
        size = self.actions.size
        mean = torch.full((self.trials, self.functions, size), torch.nan, dtype=F64)
        std = torch.full((self.trials, size), torch.nan, dtype=F64)
        for block in passed_over(self.engine, stretches):
            mean[..., block.start : block.stop] = block.mean.double()
            std[..., block.start : block.stop] = block.std[:, 0].double()
        return mean.numpy(), std.numpy()

    def errors(self, stretches=None) -> float:
        mean, std = self.believed(stretches)
        worst = 0.0
        for i in range(self.trials):
            points = self.points(i)
            prior = math.sqrt(
                np.diagonal(self.dense[i][0].kernel(points, points)).max()
            )
            for j in range(self.functions):
                m, s = self.dense[i][j].posterior(points)
                off = max(abs(mean[i, j] - m).max(), abs(std[i] - s).max())
                assert math.isfinite(off)
                worst = max(worst, float(off) / prior)
        return worst


def play(bench: Bench, rng, rounds: int, arms: int, looks: int = 7) -> None:
    """Observations at random, most of them repeats, with a sweep every few rounds."""
    pool = rng.choice(bench.actions.size, min(arms, bench.actions.size), replace=False)
    for t in range(rounds):
        keys = rng.choice(pool, bench.trials)
        bench.tell(keys, rng.standard_normal((bench.trials, bench.functions)))
        if t % looks == 0:
            bench.believed()


# -- the plain posterior ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize(
    ("kernel", "rounds"),
    [
        # as nearly singular as they come, and singular: errors of many rounds show
        ("rbf", 1000),
        ("linear", 1000),
        ("matern12", 250),
        ("matern32", 250),
        ("matern52", 250),
        ("product-matern", 250),
        ("scaled", 250),
        ("scaled-ard", 250),
        ("periodic", 250),
    ],
)
@pytest.mark.parametrize("name", ENGINES)
def test_every_kernel(name, kernel, rounds, dtype, cases, dense, rng):
    case = cases[kernel]
    if not supports(name, case):
        with pytest.raises(cb.CBanditError, match=f"engine='{name}'"):
            Bench(name, grid(9, 7), case, dense)
        return
    bench = Bench(name, grid(9, 7), case, dense, functions=2, dtype=dtype)
    assert bench.engine.plan.name == name
    play(bench, rng, rounds, 40)
    assert bench.errors() <= BOUND[dtype]
    assert bench.engine.gain().item() == pytest.approx(
        bench.dense[0][0].gain(), rel=1e-10
    )


@pytest.mark.parametrize("name", ["joint", "factor"])
@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "per-trial"])
def test_an_empirical_covariance(name, dtype, own, dense, rng):
    data = rng.standard_normal((2, 60, 25)) @ rng.standard_normal((2, 25, 25))
    tables = np.stack([np.cov(rows.T) for rows in data])
    if not own:
        tables[1] = tables[0]
    actions = cb.Finite(covariance=tables if own else tables[0])
    covariance = Covariance.of(None, actions)
    bench = Bench(
        name,
        actions,
        type("Any", (), {"values": None}),
        dense,
        trials=2,
        functions=2,
        dtype=dtype,
        covariance=covariance,
    )
    bench.dense = [[dense(tables[i], 1e-2) for _ in range(2)] for i in range(2)]
    bench.points = lambda i: np.arange(25.0)[:, None]
    play(bench, rng, 300, 12)
    assert bench.errors() <= BOUND[dtype]


def test_an_empirical_covariance_of_low_rank(dense, rng):
    half = rng.standard_normal((30, 6))
    table = half @ half.T
    policy = cb.GPUCB(
        cb.Finite(covariance=table), reward=cb.GP(noise=1e-4), explore=cb.UCB(2.0)
    )
    reference = dense(table, 1e-4)
    for _ in range(200):
        choice = policy.ask()
        y = float(rng.standard_normal())
        policy.tell(choice, reward=y)
        reference.add(choice.x.numpy(), y)
    mean, std = reference.posterior(np.arange(30.0)[:, None])
    found = policy.posterior().reward
    prior = math.sqrt(table.diagonal().max())
    assert abs(found.mean.numpy() - mean).max() <= 1e-8 * prior
    assert abs(found.std.numpy() - std).max() <= 1e-8 * prior


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
def test_trials_in_a_batch(name, dtype, cases, dense, rng):
    bench = Bench(
        name, grid(8, 9), cases["rbf"], dense, trials=3, functions=2, dtype=dtype
    )
    play(bench, rng, 150, 30)
    assert bench.errors() <= BOUND[dtype]


@pytest.mark.parametrize("name", ["joint", "factor", "stream"])
def test_a_set_of_its_own_for_each_trial(name, cases, dense, rng):
    actions = cb.Finite(rng.random((3, 50, 2)))
    bench = Bench(name, actions, cases["matern32"], dense, trials=3)
    play(bench, rng, 60, 20)
    assert bench.errors() <= 1e-8
    if isinstance(bench.engine, Swept):
        bench.engine.check()
        assert bench.engine.error().excess <= 0.1  # 1e-10 of the prior's
        assert bench.engine.refreshes == 0


@pytest.mark.parametrize("name", ENGINES)
def test_hyperparameters_of_its_own_for_each_trial(name, dense, rng, cases):
    from gpytorch import kernels as gpk

    kernel = gpk.ScaleKernel(
        gpk.RBFKernel(batch_shape=torch.Size([3])), batch_shape=torch.Size([3])
    ).double()
    scales, sizes = [0.2, 0.3, 0.5], [1.0, 2.0, 0.5]
    kernel.base_kernel.lengthscale = torch.tensor(scales, dtype=F64).view(3, 1, 1)
    kernel.outputscale = torch.tensor(sizes, dtype=F64)
    actions = grid(6, 8)
    bench = Bench(
        name,
        actions,
        cases["rbf"],
        dense,
        trials=3,
        covariance=Covariance.of(kernel, actions),
    )
    for i in range(3):

        def values(x, y, i=i):
            gap = ((x[:, None] - y[None]) ** 2).sum(-1)
            return sizes[i] * np.exp(-0.5 * gap / scales[i] ** 2)

        bench.dense[i] = [dense(values, 1e-2)]
    play(bench, rng, 80, 20)
    assert bench.errors() <= 1e-8
    bench.engine.refresh()
    assert bench.errors() <= 1e-8


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
def test_ragged_data_and_noise_of_its_own(name, dtype, cases, dense, rng):
    bench = Bench(
        name, grid(7, 6), cases["rbf"], dense, trials=4, functions=2, dtype=dtype
    )
    for t in range(120):
        # trial 3 sees nothing, trial 0 little
        wanted = [bool(rng.random() < p) for p in (0.1, 0.5, 1.0, 0.0)]
        precision = 1 / rng.choice([1e-2, 3e-2, 0.5], 4)
        keys = rng.integers(0, bench.actions.size, 4)
        bench.tell(keys, rng.standard_normal((4, 2)), precision.tolist(), wanted)
        if t % 5 == 0:
            bench.believed()
    assert bench.errors() <= BOUND[dtype]
    for i, row in enumerate(bench.dense):
        assert bench.engine.gain()[i].item() == pytest.approx(row[0].gain(), abs=1e-9)


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_observed_is_the_prior(name, cases, dense):
    bench = Bench(name, grid(5, 4), cases["scaled-ard"], dense, trials=2)
    assert bench.errors() <= 1e-15
    assert bench.engine.gain().tolist() == [0.0, 0.0]
    bench.tell([1, 1], [[1.0], [1.0]], wanted=[False, False])
    bench.engine.refresh()
    assert bench.errors() <= 1e-15


# -- noise next to nothing
# -------------------------------------------------------------------


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("fresh", [False, True], ids=["running", "refreshed"])
def test_deviations_under_tiny_noise_in_extended_precision(name, fresh, rng):
    """A prior variance of 1 falls to 1e-13: its rounding errors must not stay."""
    noise, lengthscale = 1e-12, 0.45
    axes = [np.sort(rng.random(n)) for n in (9, 7)]
    actions = cb.ProductGrid([torch.as_tensor(axis) for axis in axes])
    policy = cb.GPUCB(
        actions,
        reward=cb.GP(rbf(torch.tensor(lengthscale, dtype=F64)), noise=noise),
        explore=cb.UCB(2.0),
        engine=name,
    )
    pool, count = rng.choice(actions.size, 25, replace=False), {}
    for t in range(60):
        choice = policy.ask(among=rng.choice(pool, 1)) if t % 3 else policy.ask()
        x = choice.x.numpy()
        policy.tell(choice, reward=float(np.sin(5 * x).sum()))
        count[int(choice.index)] = count.get(int(choice.index), 0) + 1
    if fresh:
        beliefs_of(policy).groups[0].engine.refresh()
    places = everything(actions)
    noises = [noise / n for n in count.values()]
    wanted = extended_std(places, places[list(count)], noises, lengthscale)
    assert wanted.min() < 1e-6
    assert np.abs(policy.posterior().reward.std.numpy() - wanted).max() < 1e-8


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", LARGE)
def test_a_window_under_tiny_noise(name, dtype, cases, dense, rng):
    """Variances fall, rise with what is forgotten, and fall again."""
    noise, bound = {F64: (1e-12, 1e-8), F32: (1e-6, 2e-4)}[dtype]
    bench = Bench(name, grid(9, 7), cases["rbf"], dense, trials=2, dtype=dtype)
    told = []
    for t in range(100):
        told.append((rng.choice(63, 2), np.zeros((2, 1)), [1 / noise] * 2))
        bench.tell(*told[-1])
        if t >= 40:
            bench.tell(*told[t - 40], forget=True)
        bench.believed()
    _, std = bench.believed()
    for i in range(2):
        places = everything(bench.actions)
        known, count = np.unique([row[0][i] for row in told[60:]], return_counts=True)
        wanted = extended_std(places, places[known], noise / count, 0.3)
        assert np.abs(std[i] - wanted).max() < bound


# -- blocks ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("target", [1, 3, 7, 11, 13, 1000])
def test_blocks_of_any_size(name, target, cases, dense, rng):
    bench = Bench(name, grid(5, 3, 7), cases["rbf"], dense, trials=2)
    play(bench, rng, 40, 15, looks=10**9)
    covered = [i for a, b in partition(bench.actions, target) for i in range(a, b)]
    assert covered == list(range(bench.actions.size))
    assert bench.errors(partition(bench.actions, target)) <= 1e-9


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("sizes", [(1,), (1, 1), (1, 6), (6, 1), (9,), (2, 1, 3)])
def test_sets_of_one_action_and_flat_axes(name, sizes, cases, dense, rng):
    bench = Bench(name, grid(*sizes), cases["rbf"], dense)
    play(bench, rng, 30, 30)
    assert bench.errors() <= 1e-9


def test_a_grid_of_many_blocks(cases, dense, rng):
    # larger than the engines' own block of 32768
    bench = Bench("product", grid(190, 190), cases["rbf"], dense)
    play(bench, rng, 60, 25)
    mean, std = bench.believed()
    some = rng.choice(bench.actions.size, 400, replace=False)
    m, s = bench.dense[0][0].posterior(bench.points(0)[some])
    assert abs(mean[0, 0, some] - m).max() <= 1e-8
    assert abs(std[0, some] - s).max() <= 1e-8


# -- revise, forget
# ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("pending", [False, True], ids=["settled", "pending"])
def test_other_targets_for_all(name, pending, cases, dense, rng):
    bench = Bench(
        name,
        grid(6, 7),
        cases["matern52" if name != "product" else "rbf"],
        dense,
        trials=2,
        functions=2,
    )
    play(bench, rng, 90, 20, looks=4)
    if not pending:
        bench.believed()
    for every in bench.dense:
        for reference in every:
            reference.y = list(rng.standard_normal(len(reference.y)))
    updates = []
    for n in range(len(bench.dense[0][0].y)):
        x = torch.as_tensor(np.stack([every[0].x[n] for every in bench.dense]))
        values = [[reference.y[n] for reference in every] for every in bench.dense]
        precision = torch.full((2,), 1 / bench.lam, dtype=F64)
        keys = bench.actions.index(x).tolist()
        given = torch.tensor(values, dtype=F64), precision, [True] * 2
        updates.append(Update(keys, x, *given))
    bench.engine.aim_all(updates)
    bench.tell([0, 5], rng.standard_normal((2, 2)))
    assert bench.errors() <= 1e-8


@pytest.mark.parametrize("name", ENGINES)
def test_forget_everything_and_go_on(name, cases, dense, rng):
    bench = Bench(name, grid(6, 5), cases["rbf"], dense, trials=2)
    told = []
    for _ in range(40):
        keys, values = rng.integers(0, 30, 2), rng.standard_normal((2, 1))
        told.append((keys, values))
        bench.tell(keys, values)
    for keys, values in told:
        bench.tell(keys, values, forget=True)
        if rng.random() < 0.3:
            assert bench.errors() <= 1e-9
    assert bench.errors() <= 1e-12
    assert bench.engine.gain().abs().max() <= 1e-9
    play(bench, rng, 30, 10)
    assert bench.errors() <= 1e-9


@pytest.mark.parametrize("name", LARGE)
def test_forgotten_slots_are_used_again(name, cases, dense, rng):
    bench = Bench(name, grid(12, 12), cases["rbf"], dense, trials=2)
    told, used = [], []
    for t in range(400):
        keys, values = rng.integers(0, 144, 2), rng.standard_normal((2, 1))
        told.append((keys, values))
        bench.tell(keys, values)
        if t >= 20:
            keys, values = told[t - 20]
            bench.tell(keys, values, forget=True)
        bench.believed()
        used.append(bench.engine.history.used)
    assert max(used) <= 22
    assert bench.errors() <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kernel"),
    # the first two see a kernel's values alone
    [(name, "rbf") for name in ENGINES[:2]]
    + [(name, "product-matern") for name in ENGINES[2:]],
)
def test_a_window_of_a_hundred_for_five_thousand_rounds(
    name, kernel, cases, dense, rng, monkeypatch
):
    # without the drift check: the engine's own arithmetic must hold
    check_every(monkeypatch, 10**9)
    bench = Bench(name, grid(11, 10), cases[kernel], dense, functions=2)
    told = []
    for t in range(5000):
        keys = rng.integers(0, 110, 1)
        # nothing but noise, ten times what the belief allows for: errors show
        values = 10 * bench.lam**0.5 * rng.standard_normal((1, 2))
        told.append((keys, values))
        bench.tell(keys, values)
        if t >= 100:
            bench.tell(*told[t - 100], forget=True)
        if t % 3 == 0:
            passed_over(bench.engine)
    assert bench.errors() <= 1e-12
    assert bench.engine.gain().item() == pytest.approx(
        bench.dense[0][0].gain(), rel=1e-9
    )


# -- many at once, drift, torn sweeps
# -----------------------------------------------------


@pytest.mark.parametrize("name", LARGE)
def test_many_at_once_is_one_by_one(name, cases, dense, rng):
    keys = rng.integers(0, 42, (60, 3))
    values = torch.as_tensor(rng.standard_normal((60, 3, 2)))
    wanted = (rng.random((60, 3)) < 0.7).tolist()
    one = Bench(name, grid(6, 7), cases["rbf"], dense, trials=3, functions=2)
    many = Bench(name, grid(6, 7), cases["rbf"], dense, trials=3, functions=2)
    for t in range(60):
        one.tell(keys[t], values[t].numpy(), wanted=wanted[t])
    many.dense = one.dense
    precision = torch.tensor(wanted, dtype=F64) / many.lam
    x = torch.stack([many.actions.at(torch.as_tensor(k)) for k in keys])
    rows = zip(keys.tolist(), x, values, precision, wanted, strict=True)
    many.engine.add_all([Update(*row) for row in rows])
    assert one.errors() <= 1e-10
    assert many.errors() <= 1e-10
    one.tell([1, 2, 3], np.ones((3, 2)))
    many.engine.add(
        Update(
            [1, 2, 3],
            many.actions.at(torch.tensor([1, 2, 3])),
            torch.ones(3, 2, dtype=F64),
            torch.full((3,), 100.0, dtype=F64),
            [True] * 3,
        )
    )
    assert many.errors() <= 1e-10


def known_of(policy, dense, values):
    """References with all that a policy of one cost was told."""
    reward, cost = dense(values), dense(values)
    for row in beliefs_of(policy).groups[0].log:
        reward.add(row.x[0].numpy(), row.values[0, 0].item())
        cost.add(row.x[0].numpy(), row.values[0, 1].item())
    return [reward], [[cost]]


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("stop", [0, 1, 2])
@pytest.mark.parametrize("between", ["nothing", "append", "forget", "split", "look"])
def test_a_round_broken_off_half_way(name, stop, between, cases, dense, rng):
    """What was written by half is computed afresh; the data are as they were."""
    policy = make_policy(name, cases, actions=grid(6, 7))
    for _ in range(20):
        r, c = rng.standard_normal(2)
        policy.tell(policy.ask(), reward=r, cost=c)
    policy.posterior()
    blocks = list(partition(policy.actions, 10))
    beliefs = beliefs_of(policy)
    row = beliefs.groups[0].log[3]
    beliefs = beliefs.absorb([row._replace(values=row.values + 1, t=21)])
    passing = beliefs.groups[0].blocks(blocks)
    for _ in range(stop + 1):
        next(passing)
    # nobody asks for the rest
    if between == "append":
        beliefs = beliefs.absorb([row._replace(values=row.values + 1, t=22)])
    if between == "forget":
        beliefs = beliefs.expire(3)
    hold(policy, beliefs)
    known = known_of(policy, dense, cases["rbf"].values)
    if between == "split":
        split(policy, [1])
    if between == "look":
        policy.ask()
    check_against(policy, *known, 1e-10)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("harm", ["mean", "var", "nan"])
def test_drift_is_noticed_and_mended(name, harm, cases, dense, rng):
    bench = Bench(name, grid(6, 7), cases["rbf"], dense)
    play(bench, rng, 40, 20)
    bench.engine.check()
    assert bench.engine.refreshes == 0
    if harm == "nan":
        bench.engine.var[:] = torch.nan
    else:
        getattr(bench.engine, harm).add_(1e-6)
    bench.engine.check()
    assert bench.engine.refreshes == 1
    assert bench.errors() <= 1e-12


@pytest.mark.parametrize("harm", ["mean", "cov"])
def test_drift_of_a_whole_covariance_is_noticed_and_mended(harm, cases, dense, rng):
    bench = Bench("joint", grid(6, 7), cases["rbf"], dense)
    play(bench, rng, 40, 20)
    getattr(bench.engine, harm).add_(1e-6)
    assert bench.errors() > 1e-8
    bench.engine.check()
    assert bench.errors() <= 1e-12


def test_drift_is_looked_for_by_itself(cases, dense, rng, monkeypatch):
    check_every(monkeypatch, 16)
    bench = Bench("factor", grid(6, 7), cases["rbf"], dense)
    play(bench, rng, 10, 20)
    bench.engine.var.add_(1e-6)
    play(bench, rng, 10, 20)
    assert bench.engine.refreshes == 1
    assert bench.errors() <= 1e-12


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
def test_a_dtype_too_narrow_says_so(dtype, cases, dense, rng, monkeypatch):
    """Noise of 1e-6 is stated, and outcomes scatter a thousand times as far."""
    check_every(monkeypatch, 128)
    bench = Bench("factor", grid(12, 12), cases["rbf"], dense, dtype=dtype, lam=1e-6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        play(bench, rng, 640, 140)
    if dtype == F64:
        assert not caught
        return
    (told,) = caught
    assert "dtype='float64'" in str(told.message)
    mean, _ = bench.believed()
    true, _ = bench.dense[0][0].posterior(bench.points(0))
    assert abs(mean[0, 0] - true).max() > 1e-3 * abs(true).max()


def test_rows_that_a_trial_never_wrote_do_not_count(cases, dense, rng):
    # one trial runs far ahead: its slots are fresh memory in the other
    bench = Bench("factor", grid(9, 9), cases["rbf"], dense, trials=2)
    for key in range(70):
        bench.tell([key, 0], [[0.1], [0.1]], wanted=[True, key == 0])
    assert isinstance(bench.engine.rows, Stored)
    assert bench.errors() <= 1e-9


# -- points close together, little noise
# ---------------------------------------------------


@pytest.mark.parametrize("name", ["joint", "factor", "stream"])
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-4])
def test_points_close_together_in_float32(name, kernel, gap, cases, dense, rng):
    base = rng.random((25, 2))
    points = torch.as_tensor(np.concatenate([base, base + gap]), dtype=F32)
    bench = Bench(name, cb.Finite(points), cases[kernel], dense, dtype=F32)
    play(bench, rng, 300, 50)
    assert bench.errors() <= 1e-3


@pytest.mark.parametrize("name", ["factor", "stream"])
@pytest.mark.parametrize("kernel", ["rbf", "matern32", "matern52"])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_coordinates_far_from_the_origin_in_float32(
    name, kernel, shift, cases, dense, rng
):
    # a span of a hundred lengthscales, and an origin far away
    points = torch.as_tensor(30 * rng.random((60, 2)) + shift, dtype=F32)
    bench = Bench(name, cb.Finite(points), cases[kernel], dense, dtype=F32)
    play(bench, rng, 120, 40)
    assert bench.errors() <= 1e-3


# -- through policies ------------------------------------------------------------------


def make_policy(name, cases, kernel="rbf", m=1, actions=None, lam=1e-2, **more):
    actions = grid(7, 6) if actions is None else actions
    gp = cb.GP(cases[kernel].make(actions.dim), noise=lam, **more.pop("gp", {}))
    costs = more.pop("costs", [gp] * m)
    return cb.CKB(
        actions,
        reward=gp,
        costs=costs,
        explore=cb.UCB(1.5),
        step=0.3,
        cap=4.0,
        engine=name,
        **more,
    )


def check_against(policy, reward, costs, bound=1e-8, at=None):
    """``reward``: dense references a trial; ``costs``: a list of them a trial."""
    found = policy.posterior()
    points = everything(policy.actions) if at is None else at
    lead = (lambda v: v) if policy.batch_shape else (lambda v: v.unsqueeze(0))
    for i, (r, each) in enumerate(zip(reward, costs, strict=True)):
        mean, std = r.posterior(points)
        scale = math.sqrt(np.diagonal(r.kernel(points, points)).max()) * r.units()[1]
        assert abs(lead(found.reward.mean)[i].numpy() - mean).max() <= bound * scale
        assert abs(lead(found.reward.std)[i].numpy() - std).max() <= bound * scale
        for j, c in enumerate(each):
            mean, std = c.posterior(points)
            scale = math.sqrt(np.diagonal(c.kernel(points, points)).max())
            scale *= c.units()[1]
            assert (
                abs(lead(found.costs.mean)[i, j].numpy() - mean).max() <= bound * scale
            )
            assert abs(lead(found.costs.std)[i, j].numpy() - std).max() <= bound * scale


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("name", ENGINES)
def test_policies_condition_on_what_they_are_told(name, m, cases, dense, rng):
    policy = make_policy(name, cases, m=m, trials=2)
    values = cases["rbf"].values
    rewards = [dense(values) for _ in range(2)]
    costs = [[dense(values) for _ in range(m)] for _ in range(2)]
    for t in range(60):
        choice = policy.ask()
        r, c = rng.standard_normal(2), rng.standard_normal((2, m))
        where = np.array([True, t % 3 != 0])
        policy.tell(choice, reward=r, cost=c, where=where)
        for i in range(2):
            if where[i]:
                rewards[i].add(choice.x[i].numpy(), r[i])
                for j in range(m):
                    costs[i][j].add(choice.x[i].numpy(), c[i, j])
    check_against(policy, rewards, costs)
    assert len(beliefs_of(policy).groups) == 1


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("pieces", "groups"),
    [
        # what is told, and in which trials; None: all
        ([("reward", "some"), ("cost", "some")], 1),
        ([("cost", "some"), ("reward", "some")], 1),
        ([("reward", "some"), ("reward", "others"), ("cost", None)], 1),
        (
            [
                ("reward", "others"),
                ("cost", "others"),
                ("cost", "some"),
                ("reward", "some"),
            ],
            1,
        ),
        ([("both", "some"), ("both", "others")], 1),
        ([("reward", "some"), ("cost", "others")], 2),
        ([("reward", None), ("cost", "some")], 2),
    ],
)
def test_feedback_in_pieces(name, pieces, groups, cases, dense, rng):
    policy = make_policy(name, cases, m=2, trials=3)
    values = cases["rbf"].values
    rewards = [dense(values) for _ in range(3)]
    costs = [[dense(values) for _ in range(2)] for _ in range(3)]
    for _ in range(25):
        choice = policy.ask()
        r, c = rng.standard_normal(3), rng.standard_normal((3, 2))
        some = rng.random(3) < 0.5
        for what, part in pieces:
            where = {"some": some, "others": ~some, None: np.ones(3, bool)}[part]
            told = {"reward": {"reward": r}, "cost": {"cost": c}}.get(
                what, {"reward": r, "cost": c}
            )
            policy.tell(choice, **told, where=None if part is None else where)
            for i in np.flatnonzero(where):
                if "reward" in told:
                    rewards[i].add(choice.x[i].numpy(), r[i])
                for j in range(2 if "cost" in told else 0):
                    costs[i][j].add(choice.x[i].numpy(), c[i, j])
    check_against(policy, rewards, costs)
    assert len(beliefs_of(policy).groups) == groups


@pytest.mark.parametrize("name", ENGINES)
def test_prior_means_and_noise_told(name, cases, dense, rng):
    case = cases["rbf"]
    kernel = case.make(2)
    policy = cb.CKB(
        grid(7, 6),
        reward=cb.GP(kernel, noise=1e-2, mean=[2.0, -1.0]),
        costs=cb.GP(kernel, noise=1e-2, mean=0.5),
        explore=cb.UCB(1.0),
        step=0.1,
        cap=2.0,
        engine=name,
        trials=2,
    )
    rewards = [dense(case.values, mean=2.0), dense(case.values, mean=-1.0)]
    costs = [[dense(case.values, mean=0.5)] for _ in range(2)]
    check_against(policy, rewards, costs, 1e-14)
    for t in range(50):
        choice = policy.ask()
        r, c = rng.standard_normal(2), rng.standard_normal(2)
        noise = np.array([0.3, 0.02]) if t % 2 else None
        policy.tell(choice, reward=r, cost=c, noise=noise)
        for i in range(2):
            own = None if noise is None else noise[i]
            rewards[i].add(choice.x[i].numpy(), r[i], own)
            costs[i][0].add(choice.x[i].numpy(), c[i], own)
    check_against(policy, rewards, costs)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("own", [False, True], ids=["shared-noise", "own-noise"])
def test_standardised_outcomes_in_the_users_units(name, own, cases, dense, rng):
    policy = make_policy(name, cases, trials=2, gp={"standardize": True})
    told = [[], []]

    def references():
        """One a trial: until two outcomes differ there is no unit for their noise."""
        out = []
        for rows in told:
            both = [dense(cases["rbf"].values, standardize=True) for _ in range(2)]
            for x, values, noises in rows:
                for each, value, noise in zip(both, values, noises, strict=True):
                    each.add(x, value, noise if len(rows) > 1 else None)
            out.append(both)
        return [r for r, _ in out], [[c] for _, c in out]

    for t in range(40):
        choice = policy.ask()
        r, c = 1e3 + 50 * rng.standard_normal(2), -7 + 1e-2 * rng.standard_normal(2)
        noise = np.array([30.0, 70.0]) if own and t % 3 == 0 else None
        where = np.array([t != 3, t % 2 == 0])
        # the costs' own noise is in the costs' units
        policy.tell(choice, reward=r, noise=noise, where=where)
        cost_noise = None if noise is None else noise * 1e-7
        policy.tell(choice, cost=c, noise=cost_noise, where=where)
        for i in np.flatnonzero(where):
            noises = (None, None) if noise is None else (noise[i], cost_noise[i])
            told[i].append((choice.x[i].numpy(), (r[i], c[i]), noises))
        if t < 4:
            check_against(policy, *references())
    check_against(policy, *references())


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["shared-noise", "own-noise"])
@pytest.mark.parametrize("name", ENGINES)
def test_a_group_forgets_its_oldest(name, standardize, own, cases, dense, rng):
    policy = make_policy(name, cases, gp={"standardize": standardize})
    make = lambda: dense(cases["rbf"].values, standardize=standardize)  # noqa: E731
    reward, cost = make(), make()
    for t in range(60):
        choice = policy.ask()
        r, c = 5 + rng.standard_normal(2)
        noise = 0.4 if own and t % 2 else None
        policy.tell(choice, reward=r, cost=c, noise=noise)
        reward.add(choice.x.numpy(), r, noise)
        cost.add(choice.x.numpy(), c, noise)
        if t >= 15:
            policy.posterior()
            forget_oldest(policy)
            reward.forget()
            cost.forget()
    if not (standardize and own):
        check_against(policy, [reward], [[cost]])
    else:
        # noise told with reward and cost alike weighs by the first function's spread
        check_against(policy, [reward], [[]])


@pytest.mark.parametrize("name", ENGINES)
def test_feedback_told_apart(name, cases, dense, rng):
    policy = make_policy(name, cases, m=2)
    values = cases["rbf"].values
    reward, costs = dense(values), [dense(values), dense(values)]
    waiting = []
    for t in range(50):
        choice = policy.ask()
        r, c = rng.standard_normal(), rng.standard_normal(2)
        policy.tell(choice, reward=r)
        reward.add(choice.x.numpy(), r)
        waiting.append((choice, c))
        if t >= 5:
            late, c = waiting.pop(0)
            policy.tell(late, cost=c)
            for j in range(2):
                costs[j].add(late.x.numpy(), c[j])
        if t % 10 == 9:
            check_against(policy, [reward], [costs])
    assert [g.functions for g in beliefs_of(policy).groups] == [[0], [1, 2]] or [
        g.functions for g in beliefs_of(policy).groups
    ] == [[1, 2], [0]]
    assert len(policy.outstanding) == 5


@pytest.mark.parametrize("name", ENGINES)
def test_rows_from_before(name, cases, dense, rng):
    values = cases["rbf"].values
    for rows in (3, 40):
        many, single = (make_policy(name, cases, trials=2) for _ in range(2))
        index = rng.integers(0, 42, (2, rows))
        r, c = rng.standard_normal((2, rows)), rng.standard_normal((2, rows))
        many.observe(index=index, reward=r, cost=c)
        rewards, costs = (
            [dense(values) for _ in range(2)],
            [[dense(values)], [dense(values)]],
        )
        for i in range(2):
            for n in range(rows):
                x = everything(many.actions)[index[i, n]]
                rewards[i].add(x, r[i, n])
                costs[i][0].add(x, c[i, n])
        for n in range(rows):
            single.observe(
                x=single.actions.at(torch.as_tensor(index[:, n : n + 1])),
                reward=r[:, n : n + 1],
                cost=c[:, n : n + 1],
            )
        check_against(many, rewards, costs, 1e-10)
        check_against(single, rewards, costs, 1e-10)
        assert many.multiplier.tolist() == [[0.0], [0.0]]
        assert many.ask().index.tolist() == single.ask().index.tolist()


def test_rows_of_the_reward_alone(cases, dense, rng):
    for rows in (3, 40):
        policy = make_policy("factor", cases)
        index, r = rng.integers(0, 42, rows), rng.standard_normal(rows)
        policy.observe(index=index, reward=r)
        reward, cost = dense(cases["rbf"].values), dense(cases["rbf"].values)
        for n in range(rows):
            reward.add(everything(policy.actions)[index[n]], r[n])
        check_against(policy, [reward], [[cost]], 1e-10)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("trials", [None, 2])
def test_a_set_for_one_round(name, trials, cases, dense, rng):
    policy = make_policy(name, cases, trials=trials)
    count = trials or 1
    values = cases["rbf"].values
    rewards, costs = ([dense(values) for _ in range(count)] for _ in range(2))
    phi = np.zeros(count)
    for _ in range(40):
        # some of the points are in the policy's own set, most are not
        points = rng.random((8, 2))
        points[0] = everything(policy.actions)[rng.integers(42)]
        choice = policy.ask(actions=points)
        index = np.atleast_1d(choice.index.numpy())
        for i in range(count):
            f, sf = rewards[i].posterior(points)
            g, sg = costs[i].posterior(points)
            f, g = f + 1.5 * sf, g - 1.5 * sg
            assert index[i] == int(np.argmax(f - phi[i] * g))
            phi[i] = np.clip(phi[i] + 0.3 * g[index[i]], 0, 4)
        assert np.allclose(policy.multiplier.numpy().reshape(-1), phi, atol=1e-8)
        x = choice.x.reshape(count, 2).numpy()
        assert np.array_equal(x, points[index])
        r, c = rng.standard_normal(count), rng.standard_normal(count)
        policy.tell(choice, reward=r if trials else r[0], cost=c if trials else c[0])
        for i in range(count):
            rewards[i].add(x[i], r[i])
            costs[i].add(x[i], c[i])
    check_against(policy, rewards, [[c] for c in costs])


@pytest.mark.parametrize("name", ENGINES)
def test_only_some_actions_of_the_set(name, cases, rng):
    policy, twin = (
        make_policy(name, cases, trials=2),
        make_policy(name, cases, trials=2),
    )
    for t in range(30):
        allowed = np.sort(rng.choice(42, (2, 5)), -1)
        mask = np.zeros((2, 42), dtype=bool)
        np.put_along_axis(mask, allowed, True, -1)
        choice = policy.ask(among=allowed) if t % 2 else policy.ask(among=mask)
        other = twin.ask(among=mask) if t % 2 else twin.ask(among=allowed)
        assert choice.index.tolist() == other.index.tolist()
        assert all(choice.index[i].item() in allowed[i] for i in range(2))
        found = policy.posterior()
        r, c = rng.standard_normal(2), rng.standard_normal(2)
        policy.tell(choice, reward=r, cost=c)
        twin.tell(other, reward=r, cost=c)
        assert found.reward.mean.isfinite().all()


def test_the_best_of_some_actions_is_the_dense_best(cases, dense, rng):
    policy = make_policy("stream", cases)
    reward, cost = dense(cases["rbf"].values), dense(cases["rbf"].values)
    phi, points = 0.0, everything(policy.actions)
    for _ in range(40):
        allowed = np.sort(rng.choice(42, 6, replace=False))
        choice = policy.ask(among=allowed)
        (f, sf), (g, sg) = reward.posterior(points), cost.posterior(points)
        f, g = f + 1.5 * sf, g - 1.5 * sg
        assert choice.index.item() == allowed[np.argmax((f - phi * g)[allowed])]
        phi = np.clip(phi + 0.3 * g[choice.index.item()], 0, 4)
        r, c = rng.standard_normal(2)
        policy.tell(choice, reward=r, cost=c)
        reward.add(choice.x.numpy(), r)
        cost.add(choice.x.numpy(), c)


@pytest.mark.parametrize("name", ENGINES)
def test_a_batch_is_its_trials(name, cases, rng):
    world = rng.standard_normal((4, 42, 2))
    runs = []
    for trials in (4, range(0, 1), range(1, 2), range(2, 4)):
        policy = make_policy(name, cases, trials=trials)
        numbers = range(4) if trials == 4 else trials
        picked = []
        for t in range(80):
            choice = policy.ask()
            seen = np.stack(
                [world[i, int(k)] for i, k in zip(numbers, choice.index, strict=True)]
            )
            late = np.array([(i + t) % 4 != 0 for i in numbers])
            policy.tell(choice, reward=seen[:, 0], cost=seen[:, 1], where=late)
            picked.append(choice.index)
        runs.append((torch.stack(picked, -1), policy.multiplier, policy.posterior()))
    whole, parts = runs[0], runs[1:]
    assert torch.equal(whole[0], torch.cat([p[0] for p in parts]))
    for pick in (
        lambda run: run[1],
        lambda run: run[2].reward.mean,
        lambda run: run[2].reward.std,
        lambda run: run[2].costs.mean,
        lambda run: run[2].costs.std,
    ):
        assert (pick(whole) - torch.cat([pick(p) for p in parts])).abs().max() <= 1e-10
    alone = make_policy(name, cases)
    for t in range(80):
        choice = alone.ask()
        assert choice.index.item() == whole[0][0, t].item()
        if t % 4:
            r, c = world[0, choice.index.item()]
            alone.tell(choice, reward=r, cost=c)


def test_what_is_chosen_by_itself(cases):
    small = make_policy("auto", cases)
    assert isinstance(beliefs_of(small).groups[0].engine, Joint)
    large = make_policy("auto", cases, actions=grid(40, 40))
    assert beliefs_of(large).groups[0].engine.plan.name == "product"
    other = make_policy("auto", cases, kernel="matern32", actions=grid(40, 40))
    assert beliefs_of(other).groups[0].engine.plan.name == "factor"
    assert "joint" in small.engine
    assert "reward, cost 1: product" in large.engine


@pytest.mark.parametrize(("size", "name"), [(500, "joint"), (1_000, "factor")])
def test_rounds_leave_the_joint_engine_where_they_cost_more(size, name, cases):
    points = cb.Finite(torch.linspace(0, 1, size, dtype=F64).unsqueeze(-1))
    gp = cb.GP(cases["rbf"].make(1), noise=1e-2)
    assert name in cb.GPTS(points, reward=gp, explore=cb.TS(1.0)).engine
    assert name in cb.GPUCB(points, reward=gp, explore=cb.UCB(1.0)).engine


def test_draws_without_features_stay_on_the_joint_engine_for_longer():
    import gpytorch

    points = cb.Finite(torch.linspace(0, 1, 1_000, dtype=F64).unsqueeze(-1))
    gp = cb.GP(gpytorch.kernels.PeriodicKernel().double(), noise=1e-2)
    assert "joint" in cb.GPTS(points, reward=gp, explore=cb.TS(1.0)).engine
    assert "factor" in cb.GPUCB(points, reward=gp, explore=cb.UCB(1.0)).engine


@pytest.mark.parametrize("dtype", [F64, F32])
def test_an_axis_of_categories(dtype, rng):
    """One kernel per axis: RBF on a line, BoTorch's categorical kernel on codes."""
    import gpytorch
    from botorch.models.kernels.categorical import CategoricalKernel

    line = gpytorch.kernels.RBFKernel(active_dims=[0]).double()
    line.lengthscale = torch.tensor(0.3, dtype=F64)
    codes = CategoricalKernel(active_dims=[1]).double()
    codes.lengthscale = torch.tensor(0.7, dtype=F64)
    kernel = gpytorch.kernels.ScaleKernel(line * codes).double()
    kernel.outputscale = torch.tensor(2.0, dtype=F64)
    actions = cb.ProductGrid(
        [torch.linspace(0, 1, 25, dtype=F64), torch.tensor([0.0, 1.0, 2.0, 5.0])]
    )
    gp = cb.GP(kernel, noise=0.05)
    policy = cb.CKB(
        actions, reward=gp, costs=gp, explore=cb.UCB(2.0), step=0.3, cap=9.0,
        engine="product", dtype=dtype,
    )  # fmt: skip
    assert "product" in policy.engine
    numbers, seen = [], []
    for _ in range(30):
        choice = policy.ask()
        numbers.append(int(choice.index))
        seen.append(rng.standard_normal(2))
        policy.tell(choice, reward=seen[-1][0], cost=seen[-1][1])
    points, y = everything(actions), np.array(seen)

    def covariance(a, b):
        gap = (a[:, None, 0] - b[None, :, 0]) / 0.3
        other = 1.0 * (a[:, None, 1] != b[None, :, 1])
        return 2.0 * np.exp(-0.5 * gap**2) * np.exp(-other / 0.7)

    tried = points[numbers]
    cross = covariance(points, tried)
    weights = np.linalg.solve(covariance(tried, tried) + 0.05 * np.eye(30), cross.T).T
    std = np.sqrt(2.0 - (weights * cross).sum(-1))
    found, bound = policy.posterior(), BOUND[dtype] * math.sqrt(2.0)
    assert np.abs(found.reward.mean.numpy() - weights @ y[:, 0]).max() < bound
    assert np.abs(found.costs.mean[0].numpy() - weights @ y[:, 1]).max() < bound
    assert np.abs(found.reward.std.numpy() - std).max() < bound
    # left to itself a grid of this kind is taken apart by axes once it is large
    large = cb.ProductGrid([torch.linspace(0, 1, 9000, dtype=F64), torch.arange(5)])
    policy = cb.GPUCB(large, reward=gp, explore=cb.UCB(2.0))
    assert "product" in policy.engine


@pytest.mark.parametrize("engine", ["joint", "factor"])
@pytest.mark.parametrize("off", [False, True])
def test_noise_of_ones_own_in_standardised_units(engine, off):
    """Each function's noise is scaled by its own spread, whenever it was given."""
    import gpytorch

    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=F64)
    x = torch.linspace(0, 1, 6, dtype=F64).unsqueeze(-1)
    gp = cb.GP(kernel, noise=0.1, standardize=True)
    policy = cb.RPOL(
        cb.Finite(x), reward=gp, costs=gp, explore=cb.UCB(2.0), engine=engine
    )
    told = [(1.0, 10.0), (2.0, 50.0), (4.0, -30.0), (-7.0, 5.0)]
    given = [0.5, None, 2.0, None]
    places = []
    for t, ((reward, cost), noise) in enumerate(zip(told, given, strict=True)):
        choice = policy.ask(actions=[[0.33]]) if off and t == 2 else policy.ask()
        places.append(float(choice.x[0]))
        policy.tell(choice, reward=reward, cost=cost, noise=noise)
    found = policy.posterior()
    at, grid = np.array(places), x[:, 0].numpy()
    reward, cost = found.reward, found.costs
    pairs = (reward.mean, reward.std), (cost.mean[0], cost.std[0])
    for j, (mean, std) in enumerate(pairs):
        y = np.array([pair[j] for pair in told])
        shift, spread = y.mean(), y.std(ddof=1)
        noise = [0.1 if n is None else n / spread**2 for n in given]

        def k(a, b):
            return np.exp(-0.5 * ((a[:, None] - b) / 0.3) ** 2)

        gain = np.linalg.solve(k(at, at) + np.diag(noise), k(at, grid)).T
        wanted = shift + spread * gain @ ((y - shift) / spread)
        left = 1 - (gain * k(grid, at)).sum(-1)
        assert np.abs(mean.numpy() - wanted).max() < 1e-9 * spread
        assert np.abs(std.numpy() - spread * np.sqrt(left)).max() < 1e-9 * spread


# -- an engine of a newcomer -----------------------------------------------------------


class Inducing(Engine):
    """What a handful of inducing actions ``z`` tell of the others (projected process).

    With ``K_zx`` their prior covariance with the actions tried, ``P`` the precisions
    and ``M = K_zz + K_zx P K_xz``, the mean is ``k_z' M^-1 K_zx P y`` and the variance
    ``k - k_z' K_zz^-1 k_z + k_z' M^-1 k_z``. All else is inherited.
    """

    COUNT = 12

    def blocks(self, stretches, streams=None, ahead=None):
        history, actions = self.history, self.prior.actions
        covariance = self.prior.covariance
        z = actions.block(0, actions.size)[:: max(1, actions.size // self.COUNT)]
        used = history.used
        k_zz = covariance.cross(z, z) + 1e-12 * torch.eye(len(z), dtype=F64)
        k_zx = covariance.cross(z, history.points[:, :used])  # T x z x U
        inner = k_zz + k_zx * history.precision[:, None, :used] @ k_zx.mT
        weights = torch.linalg.solve(inner, k_zx @ history.weighted[..., :used].mT)
        for start, stop in stretches:
            x = actions.block(start, stop)
            k = covariance.cross(z, x)  # z x n
            less = torch.linalg.solve(k_zz, k) - torch.linalg.solve(inner, k)
            var = covariance.variance(x) - (k * less).sum(-2)
            std = var.clamp_min(0).sqrt().unsqueeze(1)
            yield Block(start, stop, weights.mT @ k, std)


@pytest.mark.parametrize("trials", [None, 2])
@pytest.mark.parametrize("standardize", [False, True])
def test_an_engine_of_a_newcomer(trials, standardize, monkeypatch, tmp_path):
    """It is told, chooses, forgets and is saved as those of the library do."""
    monkeypatch.setitem(engine_choice.MAKERS, "inducing", Inducing)
    actions = cb.Finite(torch.linspace(0, 1, 12, dtype=F64).unsqueeze(-1))
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.1, dtype=F64)

    def made(engine):
        mean = 0.0 if standardize else 0.3
        gp = cb.GP(kernel, noise=0.05, mean=mean, standardize=standardize)
        more = {"trials": trials, "feedback": cb.Sliding(9), "explore": cb.UCB(2.0)}
        limits = {"thresholds": 0.1, "step": 0.1, "cap": 5.0}
        return cb.CKB(actions, reward=gp, costs=gp, engine=engine, **more, **limits)

    inducing, joint = made("inducing"), made("joint")
    draws = torch.Generator().manual_seed(3)
    for t in range(20):
        if t == 12:
            inducing.save(tmp_path / "policy")
            inducing = cb.load(tmp_path / "policy", trust=(Inducing,))
        choices = inducing.ask(), joint.ask()
        assert torch.equal(choices[0].x, choices[1].x)
        wave = torch.sin(5 * choices[0].x[..., 0])
        y = wave + 0.1 * torch.randn(2, *wave.shape, generator=draws, dtype=F64)
        for policy, choice in zip((inducing, joint), choices, strict=True):
            policy.tell(choice, reward=y[0], cost=-y[1])
    assert "inducing (asked for)" in inducing.engine
    # where every action is an inducing one, it is exact
    rough, exact = inducing.posterior(), joint.posterior()
    for name in ("reward", "costs"):
        one, other = getattr(rough, name), getattr(exact, name)
        assert (one.mean - other.mean).abs().max() <= 1e-8
        assert (one.std - other.std).abs().max() <= 1e-8
    # and near the dense solve where few are
    monkeypatch.setattr(Inducing, "COUNT", 6)
    off = (inducing.posterior().reward.mean - exact.reward.mean).abs().max()
    assert 1e-4 < off < 1.0
