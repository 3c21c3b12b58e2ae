"""Spaces: actions with names, on grids and boxes, in every place that takes a set."""

from __future__ import annotations

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch

import cbandit as cb

GRID = cb.Space(
    threads=cb.Int(1, 16, log=True),
    codec=cb.Category("lz4", "zstd", None),
    memory=cb.Float(0.1, 0.7, step=0.1),
)
BOX = cb.Space(
    codec=cb.Category(*(f"c{i}" for i in range(50))),
    rate=cb.Float(1e-3, 10.0, log=True),
    threads=cb.Int(2, 5),
    share=cb.Float(0.0, 1.0),
)
ONE = {"threads": 8, "codec": "zstd", "memory": 0.3}


def policy(space, kind=cb.RPOL, **own):
    gp = cb.GP.default(space)
    return kind(space, reward=gp, costs=gp, explore=cb.UCB(2.0), **own)


def matern(a, b, scale):
    r = np.sqrt(5) * np.abs(np.subtract.outer(a, b)) / scale
    return (1 + r + r**2 / 3) * np.exp(-r)


# ---------------------------------------------------------------- numbers and names


def test_a_grid_is_a_grid_and_a_box_a_box():
    assert isinstance(GRID, cb.ProductGrid)
    assert GRID.size == 16 * 3 * 7
    assert isinstance(BOX, cb.Box)
    assert BOX.continuous == 2
    assert BOX.choices.shape == (50 * 4, 2)
    assert str(GRID) == (
        "Space(threads=Int(1, 16, log=True), codec=Category('lz4', 'zstd', None), "
        "memory=Float(0.1, 0.7, step=0.1))"
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_action_of_a_grid_has_its_own_params(dtype):
    grid = GRID.to(dtype=dtype)
    every = grid.names.params(grid.points(torch.arange(grid.size)))
    wanted = [
        {"threads": threads, "codec": codec, "memory": memory}
        for threads in range(1, 17)
        for codec in ("lz4", "zstd", None)
        for memory in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    ]
    assert every == wanted
    assert {type(value) for value in every[0].values()} == {int, str, float}
    back = grid.index(grid.names.points(every).to(dtype))
    assert back.tolist() == list(range(grid.size))


def test_x_holds_the_users_numbers_and_positions_in_categories():
    assert GRID.names.points(ONE).tolist() == [8.0, 1.0, 0.3]
    # on a box the continuous ones come first; params keep the order they were told in
    given = {"codec": "c7", "rate": 0.5, "threads": 3, "share": 0.25}
    x = BOX.names.points([given, {**given, "codec": "c0"}])
    assert x.tolist() == [[0.5, 0.25, 7.0, 3.0], [0.5, 0.25, 0.0, 3.0]]
    assert list(BOX.names.params(x[0])) == ["codec", "rate", "threads", "share"]
    assert BOX.names.params(x)[0] == given


def test_true_is_no_number_and_one_no_boolean():
    space = cb.Space(a=cb.Category(True, 1, 0, "1"), b=cb.Int(0, 1))
    assert [space.names.params(space.points(2 * i))["a"] for i in range(4)] == [
        *(True, 1, 0, "1")
    ]
    assert space.names.points({"a": 1, "b": 0}).tolist() == [1.0, 0.0]
    assert space.names.points({"a": True, "b": 0}).tolist() == [0.0, 0.0]
    assert space.names.points({"a": np.int64(0), "b": 0}).tolist() == [2.0, 0.0]


# ---------------------------------------------------------------------- beliefs


def test_the_default_on_a_grid_is_a_product_that_the_product_engine_takes():
    gp = cb.GP.default(GRID)
    gp.refit_every = None
    asked = cb.RPOL(GRID, reward=gp, costs=gp, explore=cb.UCB(2.0), engine="product")
    generator = torch.Generator().manual_seed(3)
    picks = torch.randperm(GRID.size, generator=generator)[:12]
    y = torch.randn(12, generator=generator, dtype=torch.float64)
    asked.observe(params=GRID.names.params(GRID.points(picks)), reward=y, cost=y)
    # the kernel written out, before any fit
    (leaf, codec, memory) = cb.GP.default(GRID).kernel.kernels
    scales = [float(part.lengthscale.detach()) for part in (leaf, codec, memory)]
    x = GRID.points(torch.arange(GRID.size)).numpy()
    u, v = np.log(x[:, 0]) / np.log(16), (x[:, 2] - 0.1) / 0.6
    k = matern(u, u, scales[0]) * matern(v, v, scales[2])
    k *= np.where(np.equal.outer(x[:, 1], x[:, 1]), 1.0, np.exp(-1 / scales[1]))
    lam, at = 1e-2, picks.numpy()
    z = (y.numpy() - y.numpy().mean()) / y.numpy().std(ddof=1)
    solve = np.linalg.solve(k[np.ix_(at, at)] + lam * np.eye(12), k[at])
    mean = z @ solve * y.numpy().std(ddof=1) + y.numpy().mean()
    std = np.sqrt(1 - (k[at] * solve).sum(0)) * y.numpy().std(ddof=1)
    found = asked.posterior().reward
    assert "product" in asked.engine
    np.testing.assert_allclose(found.mean, mean, atol=1e-9)
    np.testing.assert_allclose(found.std, std, atol=1e-9)
    few = asked.posterior(params=[ONE, {**ONE, "codec": None}]).reward
    one = asked.posterior(params=ONE).reward
    assert torch.equal(one.mean, asked.posterior(params=[ONE]).reward.mean)
    rows = GRID.index(GRID.names.points([ONE, {**ONE, "codec": None}]))
    np.testing.assert_allclose(few.mean, mean[rows], atol=1e-9)


def test_the_default_on_a_box_is_one_matern_times_one_categorical_kernel():
    gp = cb.GP.default(BOX)
    numbers, categories = gp.kernel.kernels
    assert numbers.active_dims.tolist() == [0, 1, 3]
    assert categories.active_dims.tolist() == [2]
    # BoTorch's model of the same beliefs, its own transforms, says the same
    asked = policy(BOX)
    generator = torch.Generator().manual_seed(5)
    share = torch.rand(9, BOX.dim, generator=generator, dtype=torch.float64)
    x = BOX.nearest(BOX.unit.point(share))
    y = torch.randn(9, generator=generator, dtype=torch.float64)
    asked.observe(x=x, reward=y, cost=-y)
    points = [{"codec": "c3", "rate": r, "threads": 4, "share": 0.5} for r in (0.01, 1)]
    found = asked.posterior(params=points)
    theirs = asked.model.posterior(BOX.names.points(points))
    torch.testing.assert_close(found.reward.mean, theirs.mean[:, 0], atol=1e-9, rtol=0)
    std = theirs.variance.sqrt()[:, 1]
    torch.testing.assert_close(found.costs.std[0], std, atol=1e-7, rtol=0)


def test_large_spaces_are_taken_by_the_product_engine():
    space = cb.Space(
        **{f"k{i}": cb.Int(1, 10) for i in range(6)}, c=cb.Category(*"abc")
    )
    asked = policy(space)
    for _ in range(3):
        choice = asked.ask()
        asked.tell(choice, reward=choice.params["k0"], cost=choice.params["k1"] - 5)
    assert space.size == 3 * 10**6
    assert "product" in asked.engine


@pytest.mark.parametrize("engine", ["joint", "factor", "product"])
def test_engines_agree_over_names(engine):
    space = cb.Space(a=cb.Int(1, 9, log=True), c=cb.Category("u", "v"))
    asked, plain = policy(space, engine=engine), policy(space)
    for each in (asked, plain):
        each.observe(index=[0, 5, 9, 17], reward=[1, 2, 0.5, 1], cost=[0, 1, 1, 0])
    for kind in ("mean", "std"):
        one, other = (getattr(p.posterior().reward, kind) for p in (asked, plain))
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


def test_stream_refuses_logarithms_and_auto_never_takes_it_for_them():
    space = cb.Space(a=cb.Int(1, 30, log=True), b=cb.Int(1, 30))
    with pytest.raises(cb.CBanditError, match="engine='stream' takes coordinates as"):
        policy(space, engine="stream")
    even = cb.Space(a=cb.Int(1, 30), b=cb.Int(1, 30))
    assert "stream" in policy(even, engine="stream").engine


# ----------------------------------------------------------------------- rounds


def test_a_search_over_names_finds_what_is_best():
    asked = policy(BOX, cb.CKB, step=1.0, cap=5.0)
    for at in range(0, 50, 2):  # each second category was tried before
        params = {"codec": f"c{at}", "rate": 0.1, "threads": 3, "share": 0.5}
        asked.observe(params=[params], reward=[float(at == 48)], cost=[-1.0])
    found = asked.recommend().params
    assert found["codec"] == "c48"
    assert 0.03 < found["rate"] < 0.3
    # a choice is of the set to the last digit, so that categories stay told apart
    for _ in range(5):
        choice = asked.ask()
        assert choice.x[2:].tolist() == choice.x[2:].round().tolist()
        asked.tell(choice, reward=0.0, cost=0.0)


def test_a_search_spreads_over_logarithms():
    space = cb.Space(rate=cb.Float(1e-6, 1.0, log=True))
    asked = cb.GPUCB(space, reward=cb.GP.default(space), explore=cb.UCB(1.0))
    tried = torch.logspace(-6, 0, 16, dtype=torch.float64)
    # best at 1e-4: of the whole range a share of 0.0003 is within a factor of 3
    asked.observe(x=tried.unsqueeze(-1), reward=-(tried.log10() + 4).abs())
    asked.refit()
    assert abs(np.log10(asked.recommend().params["rate"]) + 4) < 0.3
    assert abs(np.log10(asked.ask().params["rate"]) + 4) < 0.5


def test_what_is_no_list_of_dicts_is_refused():
    space = cb.Space(threads=cb.Int(1, 4))
    policy = cb.GPUCB(space, reward=cb.GP.default(space))
    itself = []
    itself.append(itself)
    with pytest.raises(cb.CBanditError, match="among must be a number, array or"):
        policy.ask(among=itself)
    with pytest.raises(cb.CBanditError, match="params must be a dict of threads"):
        policy.observe(params=pd.Series({"threads": 3}), reward=1.0)


def test_among_by_name():
    asked = policy(GRID)
    only = {"codec": "lz4", "threads": [1, 2]}
    for among in (only, [{**ONE, "codec": "lz4", "threads": 2}]):
        params = asked.ask(among=among).params
        assert params["codec"] == "lz4"
        assert params["threads"] in (1, 2)
    assert asked.ask(among=[ONE]).params == ONE
    two = policy(GRID, trials=2)
    other = {**ONE, "codec": None}
    assert two.ask(among=[[ONE], [other]]).params == [ONE, other]


def test_a_set_of_one_round_by_name():
    asked = policy(GRID)
    other = {"threads": 3, "codec": None, "memory": 0.7}
    choice = asked.ask(actions=[ONE, other])
    assert choice.params in (ONE, other)
    asked.tell(choice, reward=1.0, cost=0.0)


@pytest.mark.parametrize("space", [GRID, BOX], ids=["grid", "box"])
def test_trials_and_checkpoints_keep_the_names(space, tmp_path):
    asked = policy(space, trials=2)
    for _ in range(2):
        choice = asked.ask()
        assert len(choice.params) == 2
        asked.tell(choice, reward=[1.0, 2.0], cost=[0.0, 1.0])
    waiting = asked.ask()
    asked.save(tmp_path / "a.ckpt")
    loaded = cb.load(tmp_path / "a.ckpt")
    assert loaded.outstanding[0].params == waiting.params
    assert loaded.actions.names == space.names
    for each in (asked, loaded):
        each.tell(waiting.id, reward=[0.0, 1.0], cost=[0.0, 1.0])
    assert loaded.ask().params == asked.ask().params
    assert loaded.recommend().params == asked.recommend().params
    assert len(loaded.recommend().params) == 2


@pytest.mark.parametrize("kind", [cb.GPTS, cb.GPUCB])
def test_draws_over_a_grid_with_names(kind):
    explore = cb.TS(1.0) if kind is cb.GPTS else cb.UCB(1.0)
    asked = kind(GRID, reward=cb.GP.default(GRID), explore=explore)
    for _ in range(3):
        asked.tell(asked.ask(), reward=1.0)


def test_distributions_by_name():
    counts = cb.Counts(subgaussian=1.0)
    safe = cb.Safe(index=0, reward=0.1, cost=0.0)
    space = cb.Space(arm=cb.Category("a", "b", "c"))
    own = {"reward": counts, "costs": counts, "safe": safe}
    asked = cb.OPB(space, **own, thresholds=0.5, horizon=10)
    asked.observe(params=[{"arm": "b"}], reward=[1.0], cost=[0.2])
    assert asked.ask().params["arm"] in ("a", "b", "c")
    found = asked.recommend()
    assert {each["arm"] for each in found.params} <= {"a", "b", "c"}
    assert "arm=" in str(found)


def test_recommendations_print_names():
    asked = policy(GRID)
    other = {**ONE, "codec": "lz4"}
    asked.observe(params=[ONE, other], reward=[3.0, 0.0], cost=[-1.0, -1.2])
    assert "(threads=8, codec=zstd, memory=0.3)" in str(asked.recommend(0.6))
    assert asked.recommend(0.6).params == ONE


# ------------------------------------------------------------------------- runs


class World:
    """Fast codecs cost memory."""

    trials, thresholds, actions = None, 0.4, GRID

    def reward(self, x, t):
        return x[..., 0].log() + (x[..., 1] == 1)

    def costs(self, x, t):
        return x[..., 2:]

    def observe(self, choice, generator):
        assert choice.params["threads"] == choice.x[..., 0]
        return self.reward(choice.x, 1), self.costs(choice.x, 1)

    def optimum(self, t):
        return float(np.log(16)) + 1

    stochastic_optimum = optimum


def test_a_run_has_a_column_a_name(tmp_path):
    asked = policy(GRID, thresholds=0.4)
    run = cb.simulate(asked, World(), 4, progress=False)
    run.save(tmp_path)
    for each in (run, cb.Run.load(tmp_path)):
        frame = each.frame()
        assert [*frame.columns[3:8]] == [
            *("action", "threads", "codec", "memory", "reward")
        ]
        rows = frame[["threads", "codec", "memory"]].to_dict("records")
        wanted = GRID.names.params(each.actions)
        assert [list(row.values()) for row in rows] == [
            list(row.values()) for row in wanted
        ]
        assert frame["threads"].dtype == np.int64


def test_a_parameter_may_be_called_as_a_column_is():
    space = cb.Space(policy=cb.Category("lru", "fifo"))

    class Cache(World):
        actions = space

        def reward(self, x, t):
            return x[..., 0]

        def costs(self, x, t):
            return x

        def observe(self, choice, generator):
            return self.reward(choice.x, 1), self.costs(choice.x, 1)

    run = cb.simulate(policy(space, thresholds=0.4), Cache(), 2, progress=False)
    assert set(run.frame()["x.policy"]) <= {"lru", "fifo"}
    assert set(run.frame()["policy"]) == {"RPOL-UCB"}


# ----------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cb.Space(), "at least one parameter"),
        (lambda: cb.Space(a=3), r"Space: a must be a cb.Int.*got 3"),
        (lambda: cb.Int(3, 1), "lo must be below hi; got lo = 3, hi = 1"),
        (lambda: cb.Int(0, 4, log=True), "lo must be above 0 with log=True; got 0"),
        (lambda: cb.Int(0.5, 4), "Int: lo must be an int; got 0.5"),
        (lambda: cb.Int(1, 10**8), "at most 1000000 values"),
        (lambda: cb.Float(1, 1), "lo must be below hi"),
        (lambda: cb.Float(0, float("nan")), "Float: hi must be finite"),
        (lambda: cb.Float(0, 1, step=0), "Float: step must be above 0; got 0"),
        (lambda: cb.Float(0, 1, log=1), "Float: log must be True or False"),
        (lambda: cb.Category(), "at least one value"),
        (lambda: cb.Category(["a", "b"]), r"one by one"),
        (lambda: cb.Category("a", "a"), "its values must differ"),
        (lambda: cb.Category(object()), "takes strings, numbers, booleans and None"),
        (
            lambda: cb.Space(
                a=cb.Int(1, 2000), b=cb.Int(1, 2000), c=cb.Float(0.0, 1.0)
            ),
            r"the others \(a, b\) must have at most 1000000",
        ),
    ],
)
def test_a_space_that_cannot_be(make, words):
    with pytest.raises(cb.CBanditError, match=words):
        make()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({**ONE, "codec": "gzip"}, r"params\[0\]: codec must be of Category.*'gzip'"),
        (
            {**ONE, "threads": 8.5},
            r"threads must be of Int\(1, 16, log=True\); got 8.5",
        ),
        ({**ONE, "threads": 17}, r"threads must be of Int.*got 17"),
        ({**ONE, "memory": 0.35}, r"memory must be of Float.*got 0.35"),
        ({**ONE, "memory": "much"}, r"memory must be of Float.*got 'much'"),
        ({"threads": 8}, "threads, codec, memory, and no other; it misses 'codec'"),
        ({**ONE, "cores": 2}, "it has 'cores'"),
        (3, r"params\[0\] must be a dict of threads, codec, memory"),
    ],
)
def test_params_that_are_not_of_the_space(params, words):
    asked = policy(GRID)
    with pytest.raises(cb.CBanditError, match=words):
        asked.observe(params=[params], reward=[1.0], cost=[0.0])
    with pytest.raises(cb.CBanditError):
        asked.posterior(params=[params])
    assert asked.t == 0


def test_names_need_a_set_with_names():
    plain = cb.Finite([[0.0], [1.0]])
    asked = policy(plain)
    asked.tell(asked.ask(), reward=1.0, cost=0.0)
    for call in (
        lambda: asked.ask().params,
        lambda: asked.recommend().params,
        lambda: asked.observe(params=[{"a": 1}], reward=[1.0]),
        lambda: asked.ask(among={"a": 1}),
        lambda: asked.ask(actions=[{"a": 1}]),
    ):
        with pytest.raises(cb.CBanditError, match="a set with names"):
            call()
    both = policy(GRID)
    with pytest.raises(cb.CBanditError, match="x= or params=, not both"):
        both.observe(x=[[8.0, 1.0, 0.3]], params=[ONE], reward=[1.0])
    with pytest.raises(cb.CBanditError, match="one of index=, x= and params="):
        both.observe(index=[1], params=[ONE], reward=[1.0])
    with pytest.raises(cb.CBanditError, match="there is no parameter 'cores'"):
        both.ask(among={"cores": 2})
    with pytest.raises(cb.CBanditError, match="codec must be of Category"):
        both.ask(among={"codec": "gzip"})


def test_a_kernel_of_ones_own_over_a_space():
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor([4.0, 0.1, 0.2], dtype=torch.float64)
    gp = cb.GP(kernel, noise=0.01)
    asked = cb.RPOL(GRID, reward=gp, costs=gp, explore=cb.UCB(1.0))
    asked.tell(asked.ask(), reward=1.0, cost=0.0)
    assert asked.ask().params["threads"] >= 1
