"""float32: what it cannot hold is said early, and levels that move do not harm it."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch

import cbandit as cb

F64 = torch.float64


def rbf(scale):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=F64)
    return kernel


@pytest.mark.filterwarnings("ignore:.*lies far outside")  # the first of the new level
@pytest.mark.parametrize("engine", ["factor", "stream"])
def test_a_window_that_has_left_its_first_level_is_believed_as_in_float64(engine):
    points = cb.Finite(torch.linspace(0, 1, 20, dtype=F64).unsqueeze(-1))
    belief = cb.GP(rbf(0.3), noise=1e-4, standardize=True)

    def policy(dtype):
        return cb.GPUCB(
            points,
            reward=belief,
            engine=engine,
            feedback=cb.Sliding(10),
            dtype=dtype,
        )

    wide, narrow = policy("float64"), policy("float32")
    generator = torch.Generator().manual_seed(0)
    for t in range(1, 120):
        arm = torch.randint(20, (1,), generator=generator)
        noise = 0.01 * float(torch.randn((), generator=generator))
        told = 300.0 * (t // 15) + float(torch.sin(5 * points.at(arm)[0, 0])) + noise
        for each in (wide, narrow):
            each.tell(each.ask(among=arm), reward=told)
        if t % 15 >= 11:  # the window holds one level alone
            want, found = wide.posterior().reward, narrow.posterior().reward
            off = (found.mean.double() - want.mean).abs()
            assert float(off.max()) < 0.01 * float(want.mean.std())
            assert bool((off < 0.1 * want.std).all())


def assert_same_beliefs(narrow, wide):
    """A fiftieth of a deviation for deviations, a tenth of it for means."""
    found, want = (policy.posterior().reward for policy in (narrow, wide))
    assert found.mean.dtype == torch.float32
    assert bool(((found.std.double() - want.std).abs() <= 0.02 * want.std).all())
    assert bool(((found.mean.double() - want.mean).abs() <= 0.1 * want.std).all())


@pytest.mark.parametrize("engine", ["factor", "product", "stream"])
def test_an_arm_told_over_and_over_keeps_its_deviation(engine):
    """Its variance falls to a millionth of the prior's, a few roundings of it."""
    axis = torch.linspace(0, 1, 12, dtype=F64)
    narrow, wide = (
        cb.GPUCB(
            cb.ProductGrid([axis, axis]),
            reward=cb.GP(rbf(0.2), noise=1e-4),
            engine=engine,
            dtype=dtype,
        )
        for dtype in ("float32", "float64")
    )
    generator = torch.Generator().manual_seed(0)
    arms = torch.randperm(144, generator=generator)[:25]
    for t in range(450):
        place = torch.randint(25, (1,), generator=generator)
        arm = arms[place] if t % 5 == 0 else arms[:1]
        noise = 0.01 * float(torch.randn((), generator=generator))
        choice = narrow.ask(among=arm)
        told = float(torch.sin(5 * choice.x.double()).sum()) + noise
        narrow.tell(choice, reward=told)
        wide.observe(index=arm, reward=[told])
    assert float(wide.posterior().reward.std.min()) < 1e-3
    assert_same_beliefs(narrow, wide)


@pytest.mark.parametrize("engine", ["factor", "stream", "product"])
def test_outcomes_that_the_prior_finds_unlikely_are_believed_as_in_float64(engine):
    """Weights of a hundred thousand on kernel rows cancel to means of about 1."""
    generator = torch.Generator().manual_seed(0)
    axes = [torch.linspace(0, 1, 6, dtype=F64).pow(p) for p in (1.0, 1.1, 1.2, 1.3)]
    actions = cb.ProductGrid(axes)
    rows = torch.randperm(actions.size, generator=generator)[:300]
    reward = torch.randn(300, generator=generator, dtype=F64)
    narrow, wide = (
        cb.GPUCB(
            actions,
            reward=cb.GP(rbf(0.4), noise=1e-4),
            engine=engine,
            dtype=dtype,
        )
        for dtype in ("float32", "float64")
    )
    for policy in (narrow, wide):
        policy.observe(index=rows, reward=reward)
    assert_same_beliefs(narrow, wide)


@pytest.mark.parametrize("noise", [1e-4, 1e-5])
def test_weights_of_a_linear_kernel_in_float32(noise):
    """Arrays that are changed one by one keep the digits of an arm that is sure."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(300, 6, generator=generator, dtype=F64)
    narrow, wide = (
        cb.GPUCB(
            cb.Finite(points),
            reward=cb.GP(gpytorch.kernels.LinearKernel().double(), noise=noise),
            engine="weights",
            dtype=dtype,
        )
        for dtype in ("float32", "float64")
    )
    slope = torch.randn(6, generator=generator, dtype=F64)
    for t in range(260):
        arm = (
            torch.randint(20, (1,), generator=generator) if t % 3 else torch.tensor([7])
        )
        told = float(points[arm] @ slope)
        told += noise**0.5 * float(torch.randn((), generator=generator))
        narrow.tell(narrow.ask(among=arm), reward=told)
        wide.tell(wide.ask(among=arm), reward=told)
    assert_same_beliefs(narrow, wide)


@pytest.mark.parametrize("engine", ["factor", "product", "stream"])
def test_outcomes_that_float32_cannot_hold_are_said_early(engine):
    axis = torch.linspace(0, 1, 7, dtype=F64)
    policy = cb.GPUCB(
        cb.ProductGrid([axis, axis]),
        reward=cb.GP(rbf(5.0), noise=1e-8),
        engine=engine,
        dtype="float32",
    )
    generator = torch.Generator().manual_seed(0)

    def play():
        for _ in range(70):
            arm = torch.randint(49, (1,), generator=generator)
            noise = 0.1 * float(torch.randn((), generator=generator))
            choice = policy.ask(among=arm)
            policy.tell(choice, reward=float(choice.x.sum()) + noise)

    with pytest.warns(RuntimeWarning, match=r"in float32 are off by .*dtype='float64'"):
        play()


@pytest.mark.parametrize("engine", ["factor", "stream"])
def test_means_that_were_off_by_a_deviation_are_said_at_the_first_check(engine):
    """The last means mend them, but choices in between were not the belief's."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2000, 1, generator=generator, dtype=F64)
    rows = torch.randint(0, 2000, (300,), generator=generator)
    reward = 10 * torch.randn(300, generator=generator, dtype=F64)
    policy = cb.GPUCB(
        cb.Finite(points),
        reward=cb.GP(rbf(0.05), noise=1e-4),
        engine=engine,
        dtype="float32",
    )
    policy.observe(index=rows, reward=reward)

    def play():
        for t in range(17):
            policy.tell(policy.ask(), reward=10 * math.sin(t))

    with pytest.warns(RuntimeWarning, match=r"in float32 are off by .*dtype='float64'"):
        play()


FAR = 1e6 + torch.linspace(0, 1, 33, dtype=F64)


@pytest.mark.parametrize(
    ("actions", "named"),
    [
        (cb.Finite(FAR.unsqueeze(-1)), r"points: \d+ of 33"),
        (cb.Finite(torch.stack([FAR, FAR]).unsqueeze(-1)), r"points: \d+ of 33"),
        (cb.ProductGrid([[0.0, 1.0], FAR]), r"axes\[1\]: \d+ of 33"),
        (cb.Box([0.0], [1.0], choices=FAR.unsqueeze(-1)), r"choices: \d+ of 33"),
        (cb.Star([0.0], FAR.unsqueeze(-1)), r"tips: \d+ of 33"),
        (cb.Space(when=cb.Int(2**30, 2**30 + 9)), r"axes\[0\]: \d+ of 10"),
    ],
    ids=["points", "of its own for each trial", "grid", "box", "star", "space"],
)
def test_points_that_coincide_in_float32_are_named(actions, named):
    with pytest.warns(
        RuntimeWarning, match=named + r".* float32 .*\[0\] and .*torch.float64"
    ):
        actions.to(dtype=torch.float32)


@pytest.mark.parametrize("engine", ["auto", "factor", "stream"])
def test_coordinates_that_float32_cannot_resolve_are_named(engine):
    sets = [cb.Finite(1e6 + torch.arange(5, dtype=F64).unsqueeze(-1))]
    if engine == "auto":
        sets += [cb.Box([1e6], [1e6 + 4]), cb.ProductGrid([1e6 + torch.arange(5)])]
    for actions in sets:
        known = cb.GP(rbf(1.0), noise=1e-2)
        named = r"coordinate 0 .* float32 .* 0.062 lengthscales .*Shift"
        with pytest.warns(RuntimeWarning, match=named):
            cb.GPUCB(actions, reward=known, engine=engine, dtype="float32")
        cb.GPUCB(actions, reward=known, engine=engine, dtype="float64")


def test_what_float32_holds_is_not_spoken_of():
    twice = [[0.0, 0.5], [-0.0, 0.5], [0.0, 0.5], [1.0, 0.5]]
    years = torch.arange(1990, 2025, dtype=F64)
    belief = cb.GP(rbf(5.0), noise=1e-2)
    for actions in (cb.Finite(twice), cb.ProductGrid([years, [0.0, 1.0]])):
        cb.GPUCB(actions, reward=belief, dtype="float32")


def test_a_set_for_one_round_is_looked_at_too():
    belief = cb.GP(rbf(1e4), noise=1e-2)
    policy = cb.GPUCB(cb.Finite([[0.0], [1.0]]), reward=belief, dtype="float32")
    with pytest.warns(RuntimeWarning, match=r"points: \d+ of 33"):
        policy.ask(actions=FAR.unsqueeze(-1))


@pytest.mark.parametrize("engine", ["factor", "stream", "joint"])
def test_limits_beside_a_large_level_are_judged_as_in_float64(engine):
    """Costs of spread 0.01 around a million: float32 holds multiples of 0.06."""
    points = cb.Finite(torch.linspace(0, 1, 40, dtype=F64).unsqueeze(-1))
    belief = cb.GP(rbf(0.2), noise=0.01, standardize=True)
    rows = torch.arange(0, 40, 4)

    def cost(index):
        return 1e6 + 0.01 * torch.sin(index / 4.0)

    def played(dtype):
        policy = cb.RPOL(
            points,
            reward=belief,
            costs=belief,
            thresholds=1e6 + 0.003,
            engine=engine,
            dtype=dtype,
        )
        policy.observe(index=rows, reward=rows.double(), cost=cost(rows.double()))
        index = []
        for _ in range(4):
            choice = policy.ask(confidence=0.9)
            assert not choice.infeasible
            index.append(int(choice.index))
            at = choice.index.double()
            policy.tell(choice, reward=at, cost=cost(at))
        return index, policy.recommend(0.9)

    (wide, best), (narrow, found) = played("float64"), played("float32")
    assert wide == narrow
    assert int(best.index) == int(found.index)
    assert float(found.probability) == pytest.approx(float(best.probability), abs=1e-3)
    assert float(found.margin) == pytest.approx(float(best.margin), abs=1e-6)
