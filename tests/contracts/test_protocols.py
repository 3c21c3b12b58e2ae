"""What every engine, every kind of kernel rows and all beliefs answer alike.

An implementation joins by a row of the table it belongs to.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace

import gpytorch
import pytest
import torch
from inside import (
    Beliefs,
    Coming,
    Covariance,
    Dictionary,
    Engine,
    Kronecker,
    Log,
    Look,
    Observation,
    Recomputed,
    Rows,
    Step,
    Stored,
    Streams,
    Update,
    engine_choice,
    in_users_units,
    make_engine,
    make_rows,
    partition,
    passed_over,
    plain_torch,
    read,
    scan,
    write,
)

import cbandit as cb

F64 = torch.float64
CPU = torch.device("cpu")
TRIALS = 2
NOISE = 0.05


def kernel(scale=0.3):
    made = gpytorch.kernels.RBFKernel().double()
    made.lengthscale = torch.tensor(scale, dtype=F64)
    return made


def linear():
    line = gpytorch.kernels.LinearKernel().double()
    return line + gpytorch.kernels.ConstantKernel().double()


AXES = [torch.linspace(0, 1, n, dtype=F64) ** p for n, p in ((6, 1.2), (7, 0.9))]
GRID = cb.ProductGrid(AXES)
BOX = cb.Box([0.0, 0.0], [1.0, 1.0])
POINTS = GRID.block(0, GRID.size)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A set of 42 actions takes several blocks."""
    monkeypatch.setattr(engine_choice, "BLOCK", 14)


def draws(seed):
    return torch.Generator().manual_seed(seed)


# -- engines ---------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineRow:
    """An engine, how it is tried, and what it says of itself.

    Args:
        name: the engine's.
        actions: the set or the box that it keeps.
        points: the numbered actions that are observed and looked at.
        kernel: makes the prior's kernel.
        elsewhere: whether it can condition on actions that are not in the set.
        keeps_all: whether it keeps the whole set however many ranks share it.
        keeps_rows: whether it keeps kernel rows.
        by_features: whether joint draws are by random features.
        by_slots: whether it keeps what was observed by action.
    """

    name: str
    actions: cb.Actions = GRID
    points: cb.Actions = GRID
    kernel: Callable[[], gpytorch.kernels.Kernel] = kernel
    elsewhere: bool = True
    keeps_all: bool = False
    keeps_rows: bool = False
    by_features: bool = False
    by_slots: bool = True

    def made(self, functions=2) -> Engine:
        covariance = Covariance.of(self.kernel(), self.actions)
        given = self.actions, covariance, TRIALS, functions, F64, CPU
        return make_engine(self.name, *given)

    def told(self, count, functions=2, seed=1):
        return told(count, functions, seed, self.points)

    def answers(self, engine):
        """Means and variances at all points as the engine has them, and the gain."""
        return *self.believed(engine), engine.gain()

    def believed(self, engine):
        """Means and variances at all points: of the arrays, where there are any."""
        return self.solved(engine) if self.actions.continuous else kept(engine)

    def solved(self, engine, *ahead):
        """Means and variances at all points by the history."""
        return engine.history.at(everything(self.points), *ahead)


ENGINES = [
    EngineRow("joint", elsewhere=False, keeps_all=True),
    EngineRow("factor", keeps_rows=True, by_features=True),
    EngineRow("product"),
    EngineRow("stream", by_features=True),
    EngineRow("dense", BOX, keeps_all=True, by_features=True),
    EngineRow("weights", kernel=linear, keeps_all=True, by_slots=False),
    EngineRow("gpytorch", keeps_all=True, by_features=True),
]
OVER_A_SET = [row for row in ENGINES if not row.actions.continuous]


def everything(actions):
    return actions.block(0, actions.size)


def told(count, functions=2, seed=1, actions=GRID):
    """Observations of some places, of which trial 1 sees two in three."""
    generator, rows = draws(seed), []
    for t in range(count):
        keys = torch.randint(12, (TRIALS,), generator=generator)
        values = torch.randn(TRIALS, functions, generator=generator, dtype=F64)
        wanted = [True, t % 3 != 0]
        precision = torch.tensor(wanted) / torch.full((TRIALS,), NOISE, dtype=F64)
        rows.append(Update(keys.tolist(), actions.at(keys), values, precision, wanted))
    return rows


def kept(engine):
    """Means and variances over the set as the arrays have them."""
    blocks = passed_over(engine)
    mean = torch.cat([block.mean for block in blocks], -1)
    return mean, torch.cat([block.std for block in blocks], -1)[:, 0].square()


def dense(row, precision):
    """Variances of all points after observations of ``precision (T, N)``, by hand."""
    x = everything(row.points)
    prior, out = row.kernel()(x).to_dense().detach(), []
    for p in precision:
        k = prior[p > 0]
        inner = k[:, p > 0] + torch.diag(1 / p[p > 0])
        out.append(prior.diag() - (k * torch.linalg.solve(inner, k)).sum(0))
    return torch.stack(out)


def update_of(row):
    """A row of a log as an engine takes it."""
    wanted = torch.tensor(row.wanted)
    precision = wanted / torch.full((TRIALS,), NOISE, dtype=F64)
    return Update(row.keys, row.x, row.values, precision, row.wanted, t=row.t)


def believed_as(row, engine, log):
    """Let an engine catch up with a log, and compare it with one that never had to."""
    engine.catch_up(log, 2, update_of, False)
    assert engine.history.whole
    fresh = row.made()
    fresh.add_all(list(map(update_of, log)))
    close(row.answers(engine), row.answers(fresh), 1e-9)


def close(one, other, limit=1e-10):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=limit)


@pytest.mark.parametrize("row", ENGINES, ids=lambda row: row.name)
class TestEngine:
    def test_it_believes_what_gpytorch_does(self, row):
        engine = row.made()
        reference = replace(row, name="gpytorch", actions=row.points).made()
        for each in (engine, reference):
            each.add_all(row.told(14))
        close(row.believed(engine), kept(reference), 1e-9)

    def test_one_by_one_is_many_at_once(self, row):
        one, many = row.made(), row.made()
        for seen in row.told(20):
            one.add(seen)
        many.add_all(row.told(20))
        close(row.answers(one), row.answers(many))

    def test_what_is_forgotten_was_never_seen(self, row):
        engine, rest = row.made(), row.made()
        first, then = row.told(8), row.told(8, seed=2)
        engine.add_all([*first, *then])
        for seen in first:
            engine.remove(seen)
        rest.add_all(then)
        close(row.answers(engine), row.answers(rest))

    def test_how_many_were_seen(self, row):
        engine, rows = row.made(), row.told(12)
        engine.add_all(rows[:6])
        for seen in rows[6:]:
            engine.add(seen)
        places = [
            {seen.keys[trial] for seen in rows if seen.wanted[trial]}
            for trial in range(TRIALS)
        ]
        assert engine.history.distinct() == list(map(len, places))
        for seen in rows:
            engine.remove(seen)
        assert engine.history.distinct() == [0] * TRIALS
        fresh = row.made()
        close(row.answers(engine), row.answers(fresh))

    def test_the_gain(self, row):
        engine, rows = row.made(), row.told(9)
        for seen in rows:
            engine.add(seen)
        x = torch.stack([seen.x for seen in rows], 1)
        root = torch.stack([seen.precision for seen in rows], 1).sqrt()
        gram = engine.history.covariance.cross(x, x)
        inner = torch.eye(9) + root.unsqueeze(-1) * gram * root.unsqueeze(-2)
        close([engine.gain()], [0.5 * torch.logdet(inner)])

    def test_outcomes_of_one_place_that_differ_far_more_than_the_noise(self, row):
        if not row.by_slots:
            pytest.skip("sums of features round what is so precise")
        engine, once = row.made(), row.made()
        rows = [seen._replace(precision=1e9 * seen.precision) for seen in row.told(30)]
        for seen in rows:
            engine.add(seen)
        once.add_all(rows)
        close(row.answers(engine)[:1], row.answers(once)[:1], 1e-9)

    def test_other_targets(self, row):
        engine, other = row.made(), row.made()
        rows = row.told(10)
        engine.add_all(rows)
        seen = rows[3]
        rows[3] = seen._replace(values=seen.values + 1)
        engine.aim(seen, rows[3])
        other.add_all(rows)
        close(row.answers(engine), row.answers(other))
        engine.aim_all([row._replace(values=2 * row.values) for row in rows])
        mean, var = row.believed(other)
        close(row.believed(engine), (2 * mean, var))

    def test_a_cleared_engine_knows_the_prior(self, row):
        engine, fresh = row.made(), row.made(3)
        engine.add_all(row.told(10))
        engine.clear(3)
        assert engine.functions == 3
        close(row.answers(engine), row.answers(fresh), 0)
        engine.add_all(row.told(10, 3))
        fresh.add_all(row.told(10, 3))
        close(row.answers(engine), row.answers(fresh), 0)

    def test_it_catches_up_with_any_version_of_a_log(self, row):
        """A random programme of changes, some of older versions, and broken calls."""
        engine, generator, told = row.made(), draws(9), row.told(120)
        log, older, rebuilds = Log(), [], 0
        engine.history.whole = False  # broken off before there was anything to hold
        believed_as(row, engine, log)

        def pick(below):
            return int(torch.randint(below, (), generator=generator))

        for t, seen in enumerate(told):
            wanted, t = seen.wanted, t - 3 * (pick(8) == 0)  # some come late
            entry = Observation([0, 1], seen.keys, seen.x, seen.values, wanted, None, t)
            log = log.enter(entry, Step("add", (seen,)))
            what = pick(8)
            if what == 0 and len(log) > 4:
                gone = update_of(log[0])
                log = log.without_first(Step("remove", (gone,)))
            elif what == 1:
                place = pick(len(log))
                before = log[place]
                after = before._replace(values=before.values + 1)
                step = Step("aim", (update_of(before), update_of(after)))
                log = log.replaced(place, after, step)
            elif what == 2:
                rows = [each._replace(values=2 * each.values) for each in log]
                step = Step("aim_all", (list(map(update_of, rows)),))
                log = log.with_targets(rows, step)
            unusual = pick(6)
            if unusual == 0 and older:  # somebody looks at an older version
                believed_as(row, engine, older[pick(len(older))])
                rebuilds += 1
            elif unusual == 1:
                engine.history.whole = False  # as a call that broke off leaves it
                rebuilds += 1
            if pick(2):
                believed_as(row, engine, log)
                older = [*older[-3:], log]
        assert engine.rebuilds <= 2 * rebuilds + 1  # back, and on

    def test_it_goes_on_after_a_pickle(self, row):
        engine = row.made()
        engine.add_all(row.told(10))
        again = pickle.loads(pickle.dumps(engine))
        for each in (engine, again):
            each.add(row.told(1, seed=7)[0])
        close(row.answers(engine), row.answers(again), 0)

    def test_it_goes_on_from_a_file_without_trust(self, row, tmp_path):
        engine = row.made()
        engine.add_all(row.told(10))
        write(tmp_path / "a", "engine", engine)
        again = read(tmp_path / "a", "engine", object)
        for each in (engine, again):
            each.add(row.told(1, seed=7)[0])
        close(row.answers(engine), row.answers(again), 0)

    def test_what_it_says_of_itself(self, row):
        engine = row.made()
        assert engine.plan.name == row.name
        assert engine.covers(None)
        assert engine.takes([3, 4])
        assert engine.takes([(0.1, 0.2)]) == row.elsewhere
        assert engine.keeps_all == row.keeps_all
        assert engine.keeps_rows == row.keeps_rows
        assert engine.by_features == row.by_features
        assert engine.by_slots == row.by_slots
        with plain_torch():
            assert engine.fused is None
        assert not engine.drifts
        assert engine.bytes() >= 0
        assert not engine.light
        engine.make_room()
        assert engine.plan.name == row.name


@pytest.mark.parametrize("row", OVER_A_SET, ids=lambda row: row.name)
class TestEngineOverASet:
    def test_the_arrays_are_the_dense_solve(self, row):
        engine = row.made()
        for t, seen in enumerate(row.told(30)):
            engine.add(seen)
            if t % 4 == 0:
                passed_over(engine)
        close(kept(engine), row.solved(engine))
        engine.refresh()
        close(kept(engine), row.solved(engine))

    def test_a_pass_of_a_settled_engine_only_reads(self, row):
        engine = row.made()
        engine.add_all(row.told(10))
        engine.add(row.told(1, seed=3)[0])
        engine.settle()
        before = kept(engine)
        engine.history.whole = True
        step = engine.step or row.points.size
        next(engine.blocks(partition(row.points, step)))  # and no more
        assert engine.history.whole
        close(kept(engine), before, 0)

    @pytest.mark.parametrize("within", [True, False])
    def test_deviations_after_choices_to_come(self, row, within):
        engine = row.made()
        engine.add_all(row.told(15))
        numbers = torch.tensor([[3, 30], [20, 20]])
        x = row.points.at(numbers) + (0.0 if within else 0.01)
        keys = numbers.tolist() if within else [[(k, "off") for k in range(2)]] * 2
        if not within:
            keys[1] = [(k, "other") for k in range(2)]
        precision = torch.tensor([[20.0, 0.0], [20.0, 10.0]], dtype=F64)
        ahead = Coming(keys, x, precision)
        want = row.solved(engine, ahead)[1]
        blocks = passed_over(engine, None, None, ahead)
        std = torch.cat([block.std for block in blocks], -1)[:, 0]
        close([std.square()], [want])
        close(kept(engine), row.solved(engine))

    def test_choices_to_come_open_close_and_are_told_in_any_order(self, row):
        engine, generator = row.made(), draws(4)
        data, open_ = torch.zeros(TRIALS, row.points.size, dtype=F64), []
        told, usual = [], torch.full((TRIALS,), 1 / NOISE, dtype=F64)
        for t in range(60):
            what, trial = (
                int(torch.randint(8, (), generator=generator)),
                torch.arange(2),
            )
            if what < 3 or not open_:  # a choice opens, the same places now and then
                open_.append(torch.randint(20, (TRIALS,), generator=generator))
            elif what < 6 or (what == 6 and not told):
                keys = open_.pop(
                    int(torch.randint(len(open_), (), generator=generator))
                )
                if what < 5:  # it is told, else cancelled
                    x, wanted = row.points.at(keys), [True] * TRIALS
                    precision = usual if what < 4 else 3 * usual
                    values = torch.randn(TRIALS, 2, generator=generator, dtype=F64)
                    update = Update(keys.tolist(), x, values, precision, wanted)
                    engine.add(update)
                    told.append(update)
                    data[trial, keys] += precision
            elif what == 6:
                first = told.pop(0)
                engine.remove(first)
                data[trial, torch.tensor(first.keys)] -= first.precision
                data[data < 1] = 0.0
            else:
                close(kept(engine)[1:], [dense(row, data)])
            if not open_:
                continue
            coming, total = torch.stack(open_), data.clone()
            waits = torch.rand(TRIALS, len(open_), generator=generator) < 0.8
            precision = waits * usual.unsqueeze(-1)
            for i, keys in enumerate(coming):
                total[trial, keys] += precision[:, i]
            ahead = Coming(coming.tolist(), row.points.at(coming), precision)
            if t % 10 == 9:  # a pass that is left has no effect on the next
                next(engine.blocks(partition(row.points, 14), None, ahead))
                if not engine.history.whole:
                    engine.refresh()
                    engine.history.whole = True
            blocks = passed_over(engine, None, None, ahead)
            std = torch.cat([block.std for block in blocks], -1)[:, 0]
            close([std.square()], [dense(row, total)])
        close(kept(engine), row.solved(engine))

    def test_choices_to_come_without_noise(self, row):
        engine, sure = row.made(), torch.full((TRIALS,), 1e9, dtype=F64)
        for update in row.told(15):
            wanted = update.precision > 0
            engine.add(update._replace(precision=sure * wanted, usual=True))
        kept(engine)
        keys = torch.tensor([[30, 30], [14, 41], [23, 17]])
        for count in (1, 2, 3, 2):
            precision = sure.unsqueeze(-1).expand(-1, count)
            x = row.points.at(keys[:count])
            ahead = Coming(keys[:count].tolist(), x, precision)
            blocks = passed_over(engine, None, None, ahead)
            std = torch.cat([block.std for block in blocks], -1)[:, 0]
            want = row.solved(engine, ahead)[1].clamp_min(0).sqrt()
            close([std], [want], 1e-8)

    def test_a_choice_to_come_may_take_the_place_of_what_was_forgotten(self, row):
        engine, usual = row.made(), torch.full((TRIALS,), 1 / NOISE, dtype=F64)
        updates = []
        for number in (5, 20):
            x, values = row.points.at(torch.tensor([number] * 2)), torch.ones(2, 2)
            keys, wanted = [number] * TRIALS, [True] * TRIALS
            updates.append(Update(keys, x, values.double(), usual, wanted))
            engine.add(updates[-1])

        def after(numbers):
            keys = torch.tensor(numbers).unsqueeze(-1).expand(-1, TRIALS)
            precision = usual.unsqueeze(-1).expand(-1, len(numbers))
            ahead = Coming(keys.tolist(), row.points.at(keys), precision)
            blocks = passed_over(engine, None, None, ahead)
            return torch.cat([block.std for block in blocks], -1)[:, 0].square()

        after([31])
        engine.remove(updates[0])
        kept(engine)  # from here on its slot is free
        data = torch.zeros(TRIALS, row.points.size, dtype=F64)
        data[:, [20, 31, 40]] = 1 / NOISE
        close([after([31, 40])], [dense(row, data)])

    def test_covariances(self, row):
        engine = row.made()
        engine.add_all(row.told(15))
        at, to = torch.tensor([0, 5, 40]), torch.tensor([1, 5])
        between, own, other = engine.covariances(to)(at)
        _, var = row.solved(engine)
        close((own, other), (var[:, at], var[:, to]))
        points = everything(row.points)
        want = engine.history.covariances(points[to])(points[at])[0]
        close([between], [want])

    def test_a_draw_is_certain_where_all_is_known(self, row):
        engine, rows = row.made(), row.told(12)
        for seen in rows:
            sure = 1e12 * (seen.precision > 0).double()
            engine.add(seen._replace(precision=sure))
        blocks = passed_over(engine, None, Streams(5, TRIALS))
        draw = torch.cat([block.draw for block in blocks], -1)
        assert draw.shape == (TRIALS, 2, row.points.size)
        for trial in range(TRIALS):
            seen = sorted({s.keys[trial] for s in rows if s.wanted[trial]})
            assert draw[trial][:, seen].abs().max() < 1e-3
            # a line through three points is known everywhere
            assert (draw[trial].abs().amax(-1).min() > 1e-2) == row.by_slots

    @pytest.mark.parametrize("call", ["settle", "refresh", "pass"])
    def test_looking_leaves_the_arrays_whole(self, row, call):
        engine = row.made()
        for seen in row.told(10):
            engine.add(seen)
        engine.aim_all([seen._replace(values=2 * seen.values) for seen in row.told(10)])
        passed_over(engine) if call == "pass" else getattr(engine, call)()
        assert engine.history.whole


# -- rows ------------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelRow:
    """A kind of kernel rows, how it is tried, and what it says of itself.

    Args:
        kind: its class.
        actions: the set.
        kernel: makes the prior's kernel.
        roomier: whether there are rows that keep less.
    """

    kind: Callable[..., Rows]
    actions: cb.Actions = GRID
    kernel: Callable[[], gpytorch.kernels.Kernel] = kernel
    roomier: bool = False

    def made(self):
        return make_rows(self.kind, self.actions, self.covariance(), TRIALS, F64, CPU)

    def covariance(self):
        return Covariance.of(self.kernel(), self.actions)

    def written(self, rows, numbers):
        """Write the rows of some actions; return what they should hold."""
        for slot, number in enumerate(numbers):
            x = self.actions.at(torch.tensor([number] * TRIALS))
            every = list(range(TRIALS))
            rows.write(every, [slot] * TRIALS, x, [number] * TRIALS)
        points = everything(self.actions)
        return self.covariance().cross(points[list(numbers)], points)


ROWS = [KernelRow(Stored, roomier=True), KernelRow(Kronecker), KernelRow(Recomputed)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind.__name__)
class TestRows:
    @pytest.mark.parametrize("columns", [1, 3])
    def test_combinations(self, row, columns):
        rows, numbers = row.made(), (3, 17, 40, 8)
        dense = row.written(rows, numbers)
        shape = TRIALS, len(numbers), columns
        weights = torch.randn(shape, generator=draws(2), dtype=F64)
        made = rows.multiply(weights)
        for start, stop in partition(row.actions, 14):
            want = weights.mT @ dense[:, start:stop]
            assert (made(start, stop) - want).abs().max() <= 1e-12

    def test_cleared_rows_are_written_anew(self, row):
        rows = row.made()
        row.written(rows, (1, 2, 3))
        rows.clear()
        dense = row.written(rows, (30, 4))
        weights = torch.ones(TRIALS, 2, 1, dtype=F64)
        want = weights.mT @ dense
        assert (rows.multiply(weights)(0, row.actions.size) - want).abs().max() <= 1e-12

    def test_a_prior_draw_less_a_combination(self, row):
        rows, numbers = row.made(), (3, 17)
        dense = row.written(rows, numbers)
        points = everything(row.actions)[list(numbers)].expand(TRIALS, -1, -1)
        path = rows.path(Streams(4, TRIALS), 1, points, "reward")
        weights = torch.full((TRIALS, 2, 1), 0.5, dtype=F64)
        plain = path.corrected(0 * weights)(0, row.actions.size)
        less = path.corrected(weights)(0, row.actions.size)
        assert (plain - less - weights.mT @ dense).abs().max() <= 1e-12
        close = 1e-6 if rows.by_features else 1e-12  # features are float32 over a set
        assert (plain[..., list(numbers)] - path.tried).abs().max() <= close

    def test_what_they_say_of_themselves(self, row):
        rows = row.made()
        assert rows.bytes_per_row() > 0
        assert rows.bytes_per_column() >= 0
        assert (rows.roomier() is not None) == row.roomier


# -- beliefs ---------------------------------------------------------------------------


def believed(engine="auto", count=2, actions=GRID, apart=False, **more):
    gps = [cb.GP(kernel(), noise=NOISE, **more) for _ in range(count)]
    return Beliefs.start(gps, actions, (TRIALS,), F64, CPU, engine, apart=apart)


def sketched():
    gps = [cb.GP(kernel(), noise=NOISE, mean=mean) for mean in (0.2, -0.1)]
    where = GRID, (TRIALS,), F64, CPU
    by = Dictionary(5.0, 1, range(TRIALS), torch.ones(()))
    return Beliefs.start(gps, *where, "sketch", dictionary=by)


BELIEFS = {
    "joint": lambda: believed("joint", mean=0.3),
    "factor": lambda: believed("factor"),
    "product": lambda: believed("product", mean=0.3),
    "stream": lambda: believed("stream"),
    "apart": lambda: believed("factor", apart=True),
    "standardised": lambda: believed("product", standardize=True),
    "sketch": sketched,
}


def learned(beliefs, count=12, seed=1, t=0):
    for number, seen in enumerate(told(count, beliefs.functions, seed)):
        every = list(range(beliefs.functions))
        of = every, seen.keys, seen.x, seen.values, seen.wanted
        beliefs = beliefs.absorb([Observation(*of, t=t + number)])
    return beliefs


def look_at(beliefs, score="primal-dual", **more):
    count = beliefs.functions
    signs = torch.tensor([1.0] + [-1.0] * (count - 1), dtype=F64)
    weight = torch.full((TRIALS, count - 1), 0.5, dtype=F64) if count > 1 else None
    return Look(1.5 * signs.expand(TRIALS, -1), None, None, score, weight, **more)


def in_units(beliefs):
    """Means and deviations over the set, as scores see them."""
    blocks = list(beliefs.blocks())
    mean = torch.cat([block.mean for block in blocks], -1)
    return mean, torch.cat([block.std for block in blocks], -1).expand_as(mean)


@pytest.mark.parametrize("name", BELIEFS)
class TestBeliefs:
    def test_a_change_leaves_the_old_beliefs_as_they_were(self, name):
        old = learned(BELIEFS[name]())
        before, gain = old.posterior(), old.gains().clone()
        new = learned(old, 5, seed=2)
        after = new.posterior()
        assert (after[0] - before[0]).abs().max() > 1e-3
        close(old.posterior(), before)
        close([old.gains()], [gain])
        close(new.posterior(), after)

    def test_nothing_can_be_set(self, name):
        said = r"never change|cannot assign to field"
        with pytest.raises(AttributeError, match=said):
            BELIEFS[name]().functions = 3

    @pytest.mark.parametrize("score", ["primal-dual", "own", "beside"])
    @pytest.mark.parametrize("masked", [False, True])
    def test_the_choice_is_the_best_of_the_blocks(self, name, score, masked):
        beliefs = learned(BELIEFS[name]())
        more = {"mask": torch.arange(GRID.size).remainder(3).eq(1)[None]}
        more = more if masked else {}
        if score == "beside":
            known = torch.randn(TRIALS, 1, GRID.size, generator=draws(3), dtype=F64)
            more["beside"] = known
        own = score != "primal-dual"
        look = look_at(beliefs, (lambda f, g: f - g.sum(-2)) if own else score, **more)
        best = beliefs.choose(look)
        mean, std = in_units(beliefs)
        want = scan([(0, mean, std)], look)
        assert torch.equal(best.index, want.index)
        close((best.value, best.f, best.g), (want.value, want.f, want.g))
        again = beliefs.choose(look)
        assert torch.equal(best.index, again.index)
        close([best.value], [again.value], 0)

    def test_reading_stops_anywhere(self, name):
        beliefs = learned(BELIEFS[name]())
        before = copy.deepcopy(beliefs).posterior()
        for _ in beliefs.blocks():
            break
        close(beliefs.posterior(), before, 0)

    @pytest.mark.parametrize("block", [0, 1])
    def test_a_choice_broken_off_loses_nothing(self, name, block):
        beliefs = learned(BELIEFS[name]())
        want, left = copy.deepcopy(beliefs).posterior(), [block]

        def fragile(f, g):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return f

        blocks = len(list(copy.deepcopy(beliefs).blocks()))
        if blocks > block:
            with pytest.raises(KeyboardInterrupt):
                beliefs.choose(look_at(beliefs, fragile))
        close(beliefs.posterior(), want)
        more = learned(beliefs, 3, seed=8)
        close(more.posterior(), learned(copy.deepcopy(beliefs), 3, seed=8).posterior())

    def test_copies_and_pickles_go_on(self, name):
        beliefs = learned(BELIEFS[name]())
        others = copy.deepcopy(beliefs), pickle.loads(pickle.dumps(beliefs))
        for again in others:
            close(again.posterior(), beliefs.posterior(), 0)
        want = learned(beliefs, 4).posterior()
        for again in others:
            close(learned(again, 4).posterior(), want, 0)

    def test_a_light_checkpoint_holds_the_data(self, name):
        beliefs = learned(BELIEFS[name]())
        before = beliefs.posterior()
        heavy = len(pickle.dumps(beliefs))
        beliefs.lighten(0)
        light = pickle.dumps(beliefs)
        assert len(light) < heavy or name == "sketch"
        close(pickle.loads(light).posterior(), before)
        close(pickle.loads(light).posterior(), beliefs.posterior(), 0)

    def test_what_they_say_of_themselves(self, name):
        beliefs = learned(BELIEFS[name]())
        shape = TRIALS, beliefs.functions
        assert beliefs.gains().shape == beliefs.noises().shape == shape
        assert beliefs.describe()
        assert beliefs.engines()
        assert beliefs.refit(due_only=True) is beliefs
        mean, std = beliefs.anywhere(POINTS)
        close((mean, std), in_units(beliefs), 1e-8)
        users = in_users_units(beliefs.units(), mean, std)
        close(users, beliefs.posterior(), 1e-8)
        rows = [
            Observation([0], s.keys, s.x, s.values[:, :1], s.wanted) for s in told(9)
        ]
        more = beliefs.absorb(rows)
        assert (more.gains() > beliefs.gains()).any()
