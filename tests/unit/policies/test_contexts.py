"""Contexts: what the world shows before a choice, on grids, points and boxes."""

from __future__ import annotations

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch

import cbandit as cb

REGIONS = ("eu", "us", "as")
GRID = cb.Space(
    model=cb.Category("small", "large"),
    region=cb.Context(cb.Category(*REGIONS)),
    threads=cb.Int(1, 4),
    hour=cb.Context(cb.Int(0, 5)),
)
POINTS = cb.Space(
    region=cb.Context(cb.Category("eu", "us")),
    model=cb.Category("small", "large", "huge"),
    prompt=cb.Context(2),
)
BOX = cb.Space(
    load=cb.Context(cb.Float(0.0, 40.0)),
    speed=cb.Float(0.0, 2.0),
    model=cb.Category("small", "large"),
    region=cb.Context(cb.Category("eu", "us")),
)
SHOWN = {
    GRID: {"region": "us", "hour": 4},
    POINTS: {"region": "us", "prompt": [0.4, -3.0]},
    BOX: {"region": "us", "load": 12.5},
}
every = pytest.mark.parametrize("space", SHOWN, ids=("grid", "points", "box"))
numbered = pytest.mark.parametrize("space", [GRID, POINTS], ids=("grid", "points"))
LAM, BETA = 0.05, 1.5


def context_of(space, generator):
    """Return a random context by name."""
    u = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    if space is GRID:
        return {"region": REGIONS[int(3 * u[0])], "hour": int(6 * u[1])}
    region = ("eu", "us")[int(2 * u[0])]
    if space is POINTS:
        return {"region": region, "prompt": [4 * u[1] - 2, 4 * u[2] - 2]}
    return {"region": region, "load": 40 * u[1]}


def rbf(space):
    """Return a kernel over choice and context, and the same as a function."""
    dim = space.dim
    scales = torch.linspace(0.7, 1.5, dim, dtype=torch.float64)
    scales[[n == "load" for n in space.names.columns]] = 20.0
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=dim).double()
    kernel.lengthscale = scales
    own = scales.numpy()

    def values(a, b):
        gap = (a[:, None, :] - b[None, :, :]) / own
        return np.exp(-0.5 * (gap**2).sum(-1))

    return kernel, values


def solved(values, x, y, at):
    """Return mean and covariance at ``at`` by a dense solve."""
    cross, inner = values(at, x), values(x, x) + LAM * np.eye(len(x))
    mean = cross @ np.linalg.solve(inner, y)
    return mean, values(at, at) - cross @ np.linalg.solve(inner, cross.T)


def default(space, kind=cb.CKB, **options):
    gp = cb.GP.default(space)
    costs = {} if kind in (cb.GPUCB, cb.GPTS) else {"costs": gp}
    return kind(space, reward=gp, **costs, **options)


def filled(policy, rounds, seed=0):
    """Play some rounds in random contexts."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        choice = policy.ask(context=context_of(policy_space(policy), generator))
        reward = torch.randn(policy.batch_shape, generator=generator)
        costs = {"cost": 0.5 * reward} if policy.m else {}
        policy.tell(choice, reward=reward, **costs)
    return policy


def policy_space(policy):
    return next(s for s in SHOWN if repr(s) == repr(policy.actions))


# ------------------------------------------------------------------------- the sets


def test_size_and_index_count_choices_only():
    assert (GRID.size, GRID.dim) == (8, 4)
    assert (POINTS.size, POINTS.dim) == (3, 4)
    assert (BOX.size, BOX.dim) == (float("inf"), 4)
    assert GRID.points(5).tolist() == [1.0, 2.0]  # model and threads
    assert GRID.index([[1.0, 2.0, 0.0, 0.0]]).tolist() == [5]  # region and hour too
    assert repr(POINTS) == (
        "Space(region=Context(Category('eu', 'us')), model=Category('small', 'large', "
        "'huge'), prompt=Context(2))"
    )


@every
def test_params_hold_the_context_too(space):
    choice = default(space).ask(context=SHOWN[space])
    assert {name: choice.params[name] for name in SHOWN[space]} == SHOWN[space]
    assert choice.params.keys() == space.names.parameters.keys()
    assert choice.x.shape == (space.dim,)
    if choice.index is None:
        assert space is BOX
    else:
        assert int(space.index(choice.x)) == int(choice.index) < space.size
    again = space.names.points(choice.params)
    assert torch.equal(again, choice.x)


def test_an_array_alone_where_there_is_one_context():
    space = cb.Space(model=cb.Category("s", "l"), prompt=cb.Context(3))
    shown = np.array([1.0, 2.0, -5.0])
    for context in (shown, torch.as_tensor(shown), shown.tolist(), {"prompt": shown}):
        assert default(space).ask(context=context).params["prompt"] == shown.tolist()
    both = default(space, trials=2)
    assert both.ask(context=shown).x[:, :3].tolist() == [shown.tolist()] * 2
    apart = np.stack([shown, -shown])
    for context in (apart, {"prompt": apart}, [{"prompt": row} for row in apart]):
        params = both.ask(context=context).params
        assert [row["prompt"] for row in params] == apart.tolist()
    one = cb.Space(model=cb.Category("s", "l"), load=cb.Context(cb.Float(0, 4)))
    assert default(one).ask(context=2.5).params["load"] == 2.5
    asked = default(one, trials=2).ask(context=[2.5, 3.0])
    assert [row["load"] for row in asked.params] == [2.5, 3.0]


@pytest.mark.parametrize(
    ("space", "context", "words"),
    [
        (GRID, {"region": "us"}, "region, hour, and no other; it misses 'hour'"),
        (GRID, {"region": "us", "hour": 2, "day": 1}, "it has 'day'"),
        (GRID, {"region": "uk", "hour": 2}, "region must be of Category.*got 'uk'"),
        (GRID, {"region": "us", "hour": 6}, "hour must be of Int.*got 6"),
        (GRID, 3, "context must be a dict of region, hour; got int"),
        (GRID, None, "context must give 'region', 'hour'.*got none"),
        (GRID, {"region": ["us", "us"], "hour": 1}, "region must be one value.*2 val"),
        (POINTS, {"region": "eu", "prompt": [1.0, float("nan")]}, "prompt.*nan"),
        (POINTS, {"region": "eu", "prompt": [1.0]}, r"2 numbers.*\(2,\); got \(1,\)"),
        (BOX, {"region": "eu", "load": 41.0}, "load must be of Float.*got 41"),
        (BOX, {"region": "eu", "load": float("nan")}, "load must be of Float.*nan"),
    ],
)
def test_contexts_that_cannot_be(space, context, words):
    policy = default(space)
    for call in (policy.ask, policy.recommend, policy.posterior):
        if call == policy.recommend or (call == policy.posterior and space is BOX):
            continue
        with pytest.raises(cb.CBanditError, match=words):
            call(context=context)
    assert policy.t == 0
    filled(policy, 1)
    with pytest.raises(cb.CBanditError, match=words):
        policy.recommend(context=context)


def test_a_row_of_a_table_is_a_context():
    """A row of flags and numbers, which pandas holds as objects, as well."""
    table = pd.DataFrame({"size": [1.5, 2.5], "new": [True, False], "words": [3, 40]})
    space = cb.Space(model=cb.Category("a", "b"), prompt=cb.Context(3))
    gp = cb.GP.linear(space)
    policy = cb.GPUCB(space, reward=gp)
    choice = policy.ask(context=table.iloc[1])
    assert choice.params["prompt"] == [2.5, 0.0, 40.0]
    with pytest.raises(cb.CBanditError, match="numbers; got Series holding str"):
        policy.ask(context=table.astype({"words": str}).iloc[1])


def test_shapes_of_trials():
    policy = default(POINTS, trials=3)
    with pytest.raises(cb.CBanditError, match=r"\(2,\) or \(3, 2\); got \(2, 2\)"):
        policy.ask(context={"region": "eu", "prompt": np.zeros((2, 2))})
    with pytest.raises(cb.CBanditError, match="one for each of the 3 trials; got 2"):
        policy.ask(context={"region": ["eu", "us"], "prompt": np.zeros(2)})
    with pytest.raises(cb.CBanditError, match="each of the 3 trials; got 1"):
        policy.ask(context=[{"region": "eu", "prompt": np.zeros(2)}])
    assert policy.t == 0


def test_contexts_go_with_sets_that_have_them():
    plain = cb.Space(model=cb.Category("s", "l"))
    with pytest.raises(cb.CBanditError, match="context= needs a set that has one"):
        default(plain).ask(context={"prompt": 1.0})
    for call in (default(plain).posterior, filled_plain(plain).recommend):
        with pytest.raises(cb.CBanditError, match="context= needs a set that has one"):
            call(context={"prompt": 1.0})
    with pytest.raises(cb.CBanditError, match="a parameter to choose beside its"):
        cb.Space(prompt=cb.Context(3))
    with pytest.raises(cb.CBanditError, match="context= or actions=, not both"):
        default(GRID).ask(context=SHOWN[GRID], actions=[[0.0, 1.0, 2.0, 3.0]])
    with pytest.raises(cb.CBanditError, match="an index says nothing of the context"):
        default(GRID).observe(index=[1], reward=[1.0], cost=[1.0])
    with pytest.raises(cb.CBanditError, match="Context: shown must be how many"):
        cb.Context(0)
    safe = cb.Safe(index=0, reward=0.0, cost=0.0)
    with pytest.raises(cb.CBanditError, match="LCLUCB takes no set with contexts"):
        cb.LCLUCB(
            GRID, reward=cb.Linear(0.1, 1.0, 1.0), costs=cb.Linear(0.1, 1.0, 1.0),
            safe=safe, delta=0.1,
        )  # fmt: skip
    with pytest.raises(cb.CBanditError, match=r"ask\(actions=cb.Finite\(rows"):
        cb.OPLB(GRID, reward=cb.Linear(0.1), costs=cb.Linear(0.1), safe=safe)
    table = cb.FiniteClass(torch.zeros(1, GRID.size), subgaussian=1.0)
    with pytest.raises(cb.CBanditError, match=r"give ask\(among=numbers\) those"):
        cb.OPNLB(GRID, reward=table, costs=table, safe=safe)


def filled_plain(space):
    policy = default(space)
    policy.tell(policy.ask(), reward=1.0, cost=0.0)
    return policy


# ----------------------------------------------------------------------- the choices


@numbered
@pytest.mark.parametrize("trials", [None, 2])
def test_every_choice_is_the_best_of_its_context(space, trials):
    # phi's own rule, by a dense solve over the candidates of the round
    kernel, values = rbf(space)
    gp = cb.GP(kernel, noise=LAM)
    policy = cb.CKB(
        space, reward=gp, costs=gp, explore=cb.UCB(BETA), dual="projected",
        step=0.3, cap=5.0, thresholds=0.1, trials=trials, pending="ignore",
    )  # fmt: skip
    generator, size = torch.Generator().manual_seed(1), trials or 1
    x, y = [[] for _ in range(size)], [[] for _ in range(size)]
    phi = np.zeros(size)
    for _ in range(25):
        shown = [context_of(space, generator) for _ in range(size)]
        choice = policy.ask(context=shown if trials else shown[0])
        index = choice.index.reshape(-1).tolist()
        for i in range(size):
            at = space.candidates(space.read(shown[i], ()))[0].numpy()
            f, g = np.full(len(at), BETA), np.full(len(at), -BETA)
            if x[i]:
                told = np.array(y[i])
                mean, cov = solved(values, np.array(x[i]), told, at)
                std = np.sqrt(np.diag(cov))
                f, g = mean[:, 0] + BETA * std, mean[:, 1] - BETA * std
            score = f - phi[i] * (g - 0.1)
            assert score[index[i]] >= score.max() - 1e-9
            assert np.allclose(at[index[i]], choice.x.reshape(size, -1)[i].numpy())
            phi[i] = np.clip(phi[i] + 0.3 * (g[index[i]] - 0.1), 0, 5)
        assert torch.allclose(
            policy.multiplier.reshape(-1), torch.as_tensor(phi), atol=1e-9
        )
        reward, cost = torch.randn(2, size, generator=generator, dtype=torch.float64)
        for i in range(size):
            x[i].append(choice.x.reshape(size, -1)[i].tolist())
            y[i].append([float(reward[i]), float(cost[i])])
        shape = policy.batch_shape
        policy.tell(choice.id, reward=reward.view(shape), cost=cost.view(shape))
    assert len({tuple(row) for row in x[0]}) > 10


def test_on_a_box_the_rest_is_searched():
    kernel, values = rbf(BOX)
    policy = cb.GPUCB(
        BOX, reward=cb.GP(kernel, noise=LAM), explore=cb.UCB(BETA), pending="ignore"
    )
    generator, x, y = torch.Generator().manual_seed(2), [], []
    speeds = torch.linspace(0, 2, 401, dtype=torch.float64)
    rows = torch.cartesian_prod(speeds, torch.tensor([0.0, 1.0]).double())
    for _ in range(8):
        shown = context_of(BOX, generator)
        choice = policy.ask(context=shown)
        point = choice.x.numpy()
        assert choice.params["load"] == pytest.approx(shown["load"], abs=1e-12)
        assert choice.params["region"] == shown["region"]
        if x:
            context = BOX.read(shown, ()).expand(len(rows), -1)
            at = np.vstack([point, BOX.joined(rows, context).numpy()])
            mean, cov = solved(values, np.array(x), np.array(y), at)
            score = mean + BETA * np.sqrt(np.diag(cov))
            assert score[0] >= score[1:].max() - 1e-6
        x.append(point)
        y.append(float(np.sin(3 * point[0]) + point[1] / 40))
        policy.tell(choice, reward=y[-1])


def test_a_large_grid_keeps_its_engine():
    space = cb.Space(a=cb.Int(1, 300), b=cb.Int(1, 50), load=cb.Context(cb.Int(0, 9)))
    policy = default(space)
    for load in (3, 7, 3):
        choice = policy.ask(context={"load": load})
        assert choice.params["load"] == load
        policy.tell(choice, reward=1.0, cost=0.0)
    assert "product" in policy.engine
    assert space.size == 15_000


@every
def test_posteriors_in_a_context_are_those_of_a_dense_solve(space):
    kernel, values = rbf(space)
    policy = cb.GPUCB(space, reward=cb.GP(kernel, noise=LAM), pending="ignore")
    generator = torch.Generator().manual_seed(3)
    params = []
    for _ in range(12):
        params.append(filled_params(space, generator))
    y = torch.randn(12, generator=generator, dtype=torch.float64)
    policy.observe(params=params, reward=y)
    x = space.names.points(params).numpy()
    asked = [filled_params(space, generator) for _ in range(5)]
    mean, cov = solved(values, x, y.numpy(), space.names.points(asked).numpy())
    answer = policy.posterior(params=asked).reward
    assert np.allclose(answer.mean.numpy(), mean, atol=1e-9)
    assert np.allclose(answer.std.numpy(), np.sqrt(np.diag(cov)), atol=1e-9)
    if space is BOX:
        with pytest.raises(cb.CBanditError, match="needs points on a Box"):
            policy.posterior(context=SHOWN[space])
        return
    at = space.candidates(space.read(SHOWN[space], ()))[0].numpy()
    mean, cov = solved(values, x, y.numpy(), at)
    answer = policy.posterior(context=SHOWN[space]).reward
    assert answer.mean.shape == (space.size,)
    assert np.allclose(answer.mean.numpy(), mean, atol=1e-9)
    assert np.allclose(answer.std.numpy(), np.sqrt(np.diag(cov)), atol=1e-9)
    best = policy.recommend(context=SHOWN[space])
    assert int(best.index) == int(mean.argmax())
    assert float(best.value) == pytest.approx(mean.max(), abs=1e-9)
    assert {k: best.params[k] for k in SHOWN[space]} == SHOWN[space]


def filled_params(space, generator):
    """Return a random choice in a random context, by name."""
    u = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    if space is GRID:
        choice = {
            "model": ("small", "large")[int(2 * u[0])],
            "threads": 1 + int(4 * u[1]),
        }
    elif space is POINTS:
        choice = {"model": ("small", "large", "huge")[int(3 * u[0])]}
    else:
        choice = {"model": ("small", "large")[int(2 * u[0])], "speed": 2 * u[1]}
    return choice | context_of(space, generator)


def test_recommendations_on_a_box_are_of_the_context():
    policy = default(BOX)
    params = [
        {"load": load, "speed": speed, "model": "small", "region": "eu"}
        for load in (5.0, 15.0, 25.0, 35.0)
        for speed in np.linspace(0, 2, 9)
    ]
    # the best speed is load / 20, and those above 1.5 are not allowed
    reward = [-((p["speed"] - p["load"] / 20) ** 2) for p in params]
    policy.observe(
        params=params, reward=reward, cost=[p["speed"] - 1.5 for p in params]
    )
    for load, best in ((10.0, 0.5), (22.0, 1.1), (38.0, 1.5)):
        answer = policy.recommend(context={"load": load, "region": "eu"})
        assert answer.params["load"] == load
        assert answer.params["speed"] == pytest.approx(best, abs=0.12)


def test_thompson_draws_of_candidates_have_the_posteriors_moments():
    # 4 000 draws of 3 means and 6 covariances: each within 4.5 standard errors, which
    # all keep with a probability above 1 - 1e-4; the seed is fixed
    kernel, values = rbf(POINTS)
    policy = cb.GPTS(
        POINTS, reward=cb.GP(kernel, noise=LAM), explore=cb.TS(1.0), trials=4000
    )
    generator = torch.Generator().manual_seed(4)
    params = [filled_params(POINTS, generator) for _ in range(4)]
    y = torch.randn(4, generator=generator, dtype=torch.float64)
    policy.observe(params=params, reward=y)
    at = POINTS.candidates(POINTS.read(SHOWN[POINTS], ()))
    state = policy._catch_up().state
    draws = state.beliefs.drawn(at.expand(4000, -1, -1), policy._streams)[:, 0].numpy()
    mean, cov = solved(
        values, POINTS.names.points(params).numpy(), y.numpy(), at[0].numpy()
    )
    error = np.sqrt(np.diag(cov) / 4000)
    assert (np.abs(draws.mean(0)) < 4.5 * error).all()
    pairs = np.outer(np.diag(cov), np.diag(cov)) + cov**2
    assert (np.abs(np.cov(draws.T) - cov) < 4.5 * np.sqrt(pairs / 4000)).all()
    # and the rule plays each choice as often as it is the best of a draw
    index = policy.ask(context=SHOWN[POINTS]).index
    share = np.bincount(index.numpy(), minlength=3) / 4000
    other = np.random.default_rng(5).multivariate_normal(mean, cov, 100_000)
    wanted = np.bincount(other.argmax(1), minlength=3) / 100_000
    assert (np.abs(share - wanted) < 4.5 * np.sqrt(0.25 / 4000) + 0.007).all()


@every
@pytest.mark.parametrize(
    "kind", [cb.RPOL, cb.GPUCB, cb.baselines.CONFIG, cb.baselines.CKBRestart]
)
def test_all_gp_policies_choose_in_contexts(space, kind):
    options = {"restart": 5} if kind is cb.baselines.CKBRestart else {}
    policy = filled(default(space, kind, **options), 6 if space is BOX else 12)
    choice = policy.ask(context=SHOWN[space])
    assert {name: choice.params[name] for name in SHOWN[space]} == SHOWN[space]


@every
@pytest.mark.parametrize("trials", [None, 2])
def test_random_choices_in_contexts(space, trials):
    policy = cb.baselines.Random(space, trials=trials, costs=1)
    filled(policy, 6)
    x = torch.stack([policy.ask(context=SHOWN[space]).x for _ in range(20)])
    rows = x[:, 0] if trials else x
    assert len({tuple(row) for row in rows.tolist()}) > 1
    params = space.names.params(rows)
    assert all({n: p[n] for n in SHOWN[space]} == SHOWN[space] for p in params)
    with pytest.raises(cb.CBanditError, match="recommends nothing in a context"):
        policy.recommend()


@numbered
@pytest.mark.parametrize("feedback", [cb.Sliding(5), cb.Delayed(3)])
def test_windows_and_delays_in_contexts(space, feedback):
    policy = filled(default(space, feedback=feedback), 15)
    assert policy.ask(context=SHOWN[space]).t == 16


@numbered
def test_costs_that_are_seen_in_full(space):
    gp = cb.GP(rbf(space)[0], noise=LAM)
    policy = cb.SCGPUCB(
        space, reward=gp, costs=1, explore=cb.UCB(1.0), schedule=1, slater=1.0,
        clip=(2.0, 2.0),
    )  # fmt: skip
    costs = torch.full((1, space.size), 5.0)
    costs[0, 1] = -1.0
    for _ in range(30):
        choice = policy.ask(context=SHOWN[space], observed_costs=costs)
        policy.tell(choice, reward=0.0)
    assert int(choice.index) == 1


def test_epochs_in_contexts():
    gp = cb.GP.default(POINTS)
    policy = cb.EpochPenalty(POINTS, reward=gp, costs=1, epoch=4)
    filled(policy, 10)
    assert policy.recommend(context=SHOWN[POINTS]).params["region"] == "us"


@every
def test_the_model_agrees_with_the_posterior(space):
    policy = filled(default(space), 4)
    asked = [filled_params(space, torch.Generator().manual_seed(1))]
    model = policy.model.posterior(space.names.points(asked)).mean[0]
    answer = policy.posterior(params=asked)
    assert float(model[0]) == pytest.approx(float(answer.reward.mean[0]), abs=1e-9)
    assert float(model[1]) == pytest.approx(float(answer.costs.mean[0, 0]), abs=1e-9)


@numbered
def test_outstanding_choices_in_one_context_are_apart(space):
    policy = default(space, kind=cb.GPUCB, explore=cb.UCB(3.0))
    indices = [int(policy.ask(context=SHOWN[space]).index) for _ in range(3)]
    assert len(set(indices)) == 3


# -------------------------------------------------------------------- what is around


@numbered
def test_among_is_of_choices(space):
    policy = filled(default(space), 3)
    only = policy.ask(context=SHOWN[space], among=[2])
    assert int(only.index) == 2
    named = policy.ask(context=SHOWN[space], among={"model": "large"})
    assert named.params["model"] == "large"
    mask = torch.zeros(space.size, dtype=torch.bool)
    mask[1] = True
    assert int(policy.ask(context=SHOWN[space], among=mask).index) == 1
    name = next(iter(SHOWN[space]))
    with pytest.raises(cb.CBanditError, match=f"there is no parameter '{name}'"):
        policy.ask(context=SHOWN[space], among={name: SHOWN[space][name]})


@every
@pytest.mark.parametrize("trials", [None, 2])
def test_what_failed_is_not_asked_for_again_in_its_context(space, trials):
    policy = filled(default(space, trials=trials, failures=False), 4)
    seen = []
    for _ in range(2):
        choice = policy.ask(context=SHOWN[space])
        seen.append(choice.x.reshape(trials or 1, -1))
        policy.tell(choice, failed=True)
    assert not (seen[0] == seen[1]).all(-1).any()
    if space is POINTS:
        rest = policy.ask(context=SHOWN[space]).x.reshape(trials or 1, -1)
        assert not (rest == seen[0]).all(-1).any()
        assert not (rest == seen[1]).all(-1).any()
        policy.tell(policy.outstanding[0], failed=True)
        with pytest.raises(cb.CBanditError, match="failed"):
            policy.ask(context=SHOWN[space])
        policy.ask(context={"region": "eu", "prompt": [0.0, 0.0]})
    best = policy.recommend(context=SHOWN[space]) if space is not POINTS else None
    if best is not None:
        assert not (best.x.reshape(trials or 1, -1) == seen[0]).all(-1).any()


@every
def test_explanations_and_history_name_the_context(space):
    policy = filled(default(space), 5)
    choice = policy.ask(context=SHOWN[space])
    explained = policy.explain(choice)
    assert explained.params == choice.params
    if space is not BOX:
        assert int(explained.index) == int(choice.index)
    frame = policy.history()
    assert len(frame) == 6
    assert frame["region"].iloc[-1] == "us"
    if space is POINTS:
        assert "prompt=(0.4, -3)" in str(explained)
        assert frame[["prompt1", "prompt2"]].iloc[-1].tolist() == [0.4, -3.0]
    else:
        name = "hour" if space is GRID else "load"
        assert frame[name].iloc[-1] == SHOWN[space][name]


@every
@pytest.mark.parametrize("trials", [None, 2])
def test_saved_policies_go_on_bit_for_bit(space, trials, tmp_path):
    explore = None if space is BOX else cb.TS(1.0)
    policy = filled(default(space, trials=trials, explore=explore), 7)
    open_choice = policy.ask(context=SHOWN[space])
    policy.save(tmp_path / "state.ckpt")
    other = cb.load(tmp_path / "state.ckpt")
    for each in (policy, other):
        each.tell(open_choice.id, reward=torch.ones(each.batch_shape),
                  cost=torch.ones(each.batch_shape))  # fmt: skip
        filled(each, 3, seed=9)
    first, second = (each.ask(context=SHOWN[space]) for each in (policy, other))
    assert torch.equal(first.x, second.x)
    assert torch.equal(policy.multiplier, other.multiplier)


@every
def test_trials_are_those_that_run_alone(space):
    options = {"explore": cb.UCB(1.0)} if space is BOX else {"explore": cb.TS(1.0)}
    both = default(space, trials=2, **options)
    alone = [default(space, trials=range(i, i + 1), **options) for i in range(2)]
    generator = torch.Generator().manual_seed(6)
    for _ in range(4 if space is BOX else 8):
        shown = [context_of(space, generator) for _ in range(2)]
        reward = torch.randn(2, generator=generator, dtype=torch.float64)
        choice = both.ask(context=shown)
        both.tell(choice, reward=reward, cost=reward - 0.2)
        for i, policy in enumerate(alone):
            single = policy.ask(context=[shown[i]])
            assert torch.allclose(single.x[0], choice.x[i], atol=1e-6)
            told = reward[i : i + 1]
            policy.tell(single, reward=told, cost=told - 0.2)


class World:
    """A problem that shows a context before each choice."""

    trials, thresholds = None, 0.5

    def __init__(self, space):
        self.actions = space

    def round(self, t, generator):
        draw = torch.Generator().manual_seed(t)
        return cb.Round(context=context_of(self.actions, draw))

    def reward(self, x, t):
        return x.sum(-1).sin()

    def costs(self, x, t):
        return x.mean(-1, keepdim=True).cos()

    def observe(self, choice, generator):
        noise = 0.1 * generator.normal(2)
        costs = self.costs(choice.x, choice.t) + noise[..., 1:]
        return self.reward(choice.x, choice.t) + noise[..., 0], costs

    def optimum(self, t):
        return 1.0

    def stochastic_optimum(self, t):
        return None


@every
@pytest.mark.parametrize("trials", [None, 2])
def test_simulate_plays_contexts(space, trials, tmp_path):
    world = World(space)

    def build():
        return default(space, trials=trials, thresholds=0.5)

    path = tmp_path / "run.ckpt"
    run = cb.simulate(build(), world, 8, progress=False)
    part = cb.simulate(build(), world, 5, checkpoint=path, progress=False)
    whole = cb.simulate(build(), world, 8, checkpoint=path, progress=False)
    assert torch.equal(part.actions, run.actions[..., :5, :])
    assert torch.equal(whole.actions, run.actions)
    frame = run.frame()
    wanted = context_of(space, torch.Generator().manual_seed(8))
    assert frame["region"].iloc[-1] == wanted["region"]
    if space is POINTS:
        assert frame["prompt2"].iloc[-1] == pytest.approx(wanted["prompt"][1])


class Day(World):
    """A process whose best speed depends on the day's load, which heats it too."""

    thresholds = 0.8

    def round(self, t, generator):
        return cb.Round(context={"load": np.random.default_rng(t).uniform()})

    def reward(self, x, t):
        load = np.random.default_rng(t).uniform()
        return -((x[..., 0] - load) ** 2)

    def costs(self, x, t):
        return x[..., :1] * (0.6 + 0.9 * np.random.default_rng(t).uniform())


@pytest.mark.slow
def test_a_tuner_that_sees_the_days_load_does_better_and_keeps_its_limit():
    # 3 trials of 40 rounds with fixed seeds; the ignorant one's best speed is a half,
    # at a reward of -1/12 a round whatever it learns
    seen = cb.Space(speed=cb.Float(0.0, 1.0), load=cb.Context(cb.Float(0.0, 1.0)))
    blind = cb.Space(speed=cb.Float(0.0, 1.0))
    late = {}
    for space in (seen, blind):
        kernel = gpytorch.kernels.RBFKernel().double()
        kernel.lengthscale = torch.tensor(0.5, dtype=torch.float64)
        gp = cb.GP(kernel, noise=0.01)
        world = Day(space)
        if space is blind:
            world.round = lambda t, generator: cb.Round()
        policy = cb.CKB(
            space, reward=gp, costs=gp, thresholds=0.8, trials=3,
            explore=cb.UCB(1.0), dual="projected", step=0.1, cap=5.0,
        )  # fmt: skip
        run = cb.simulate(policy, world, 40, progress=False)
        assert float(run.costs.mean(-2).max()) <= 0.8
        late[space] = run.true_rewards[:, 20:].mean(-1)
    assert bool((late[seen] > late[blind]).all())
    assert float(late[seen].mean()) > -0.5 / 12
