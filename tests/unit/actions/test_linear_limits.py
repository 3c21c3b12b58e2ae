"""Known linear limits on inputs: ``Box(linear=)`` and ``Space(where=)``.

Nothing beyond them is chosen, whatever chooses. Optima are compared with scipy's SLSQP
from many starts, masks with the limits computed by hand.
"""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import torch
from inside import Streams, best_feasible_point, maximise_box
from scipy.optimize import linprog, minimize

import cbandit as cb

F64 = torch.float64
CORNER = [[1.0, 1.0], [-1.0, 2.0]]
LIMIT = [1.0, 0.5]


def belief(lengthscale=0.3):
    kernel = gpytorch.kernels.MaternKernel(2.5).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=F64)
    return cb.GP(kernel, noise=1e-3)


def cut(**more):
    """The unit square below two lines."""
    return cb.Box([0.0, 0.0], [1.0, 1.0], linear=(CORNER, LIMIT), **more)


def excess(x, matrix=CORNER, limit=LIMIT):
    matrix = torch.tensor(np.asarray(matrix), dtype=F64)
    limit = torch.tensor(np.asarray(limit), dtype=F64)
    return float((x.double() @ matrix.T - limit).max())


def polytope(d, seed):
    """Some half-spaces around a point of the unit cube: ``A``, ``b`` and the point."""
    generator = torch.Generator().manual_seed(1000 * d + seed)
    k = int(torch.randint(1, 2 * d + 1, (), generator=generator))
    matrix = torch.randn(k, d, generator=generator, dtype=F64)
    if seed % 3 == 0:
        matrix = matrix.abs()
    point = torch.rand(d, generator=generator, dtype=F64)
    gap = 10 ** (-2 * torch.rand(k, generator=generator, dtype=F64))
    return matrix, matrix @ point + matrix.norm(dim=1) * gap, point


# ---------------------------------------------------------------- what users write


@pytest.mark.parametrize(
    ("text", "row", "bound"),
    [
        ("x0 + x1 <= 1", [1, 1, 0], 1),
        ("2 x0 <= x2", [2, 0, -1], 0),
        ("x0*2 - .5 * x1 >= 3e-1", [-2, 0.5, 0], -0.3),
        ("x1 / 4 + 1 <= x0", [-1, 0.25, 0], -1),
        ("-x0 + 3 <= 50%", [-1, 0, 0], -2.5),
        ("1 >= x0 + x0 - x2", [2, 0, -1], 1),
    ],
)
def test_a_text_is_a_row_of_the_matrix(text, row, bound):
    box = cb.Box([0.0] * 3, [4.0] * 3, linear=text)
    assert box.linear.matrix.tolist() == [row]
    assert box.linear.bound.tolist() == [bound]


@pytest.mark.parametrize(
    ("linear", "said"),
    [
        (["x0 + x1 <= -1"], "leave nothing of the box"),
        (["x0 <= .4", "x0 + x1 >= 1.6"], "leave nothing of the box"),
        (["x0 + x1 <= 1", "x0 + x1 >= 1"], "is flat"),
        (["x0 < 1"], "the sign '<' is written '<='"),
        (["x0 = 1"], "a limit has a side"),
        (["0 <= x0 <= 1"], "write two limits"),
        (["x0 * x1 <= 1"], "must be a sum"),
        (["x0 + 2 * <= 1"], "must be a sum"),
        (["x2 <= 1"], "there is no 'x2'"),
        (["1 <= 2"], "limits nothing"),
        (["x0 / 0 <= 2"], "divides by 0"),
        ([], "must be a list of texts"),
        (3, "must be a list of texts"),
        ([7], "must be a text"),
        (([[1.0]], [1.0]), r"A must have shape \(k, d\)"),
        (([[1.0, 1.0]], [1.0, 2.0]), r"b must have shape \(k,\)"),
        (([[1.0, float("nan")]], [1.0]), "linear: A"),
    ],
)
def test_what_cannot_be_a_limit_is_refused_by_name(linear, said):
    with pytest.raises(cb.errors.CBanditError, match=said):
        cb.Box([0.0, 0.0], [1.0, 1.0], linear=linear)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (["codec <= 1"], "codec is a category"),
        (["load + cores <= 1"], "load is shown and not chosen"),
        (["core <= 1"], "did you mean 'cores'"),
        (["cores + memory <= 1"], "leaves nothing of the grid"),
        (([[1.0, 1.0]], [1.0]), "must be a text"),
    ],
)
def test_a_space_refuses_by_name(where, said):
    with pytest.raises(cb.errors.CBanditError, match=said):
        cb.Space(
            cores=cb.Int(1, 4),
            memory=cb.Int(1, 8),
            codec=cb.Category("a", "b"),
            load=cb.Context(2),
            where=where,
        )


def test_reprs_say_the_limits_and_a_parameter_may_be_called_where():
    assert repr(cb.Box([0.0], [1.0], linear="x0 <= .5")) == (
        "Box([0.0], [1.0], linear=['x0 <= .5'])"
    )
    space = cb.Space(a=cb.Int(0, 3), b=cb.Int(0, 3), where="a + b <= 3")
    assert repr(space) == "Space(a=Int(0, 3), b=Int(0, 3), where=['a + b <= 3'])"
    assert cb.Space(where=cb.Int(1, 3)).size == 3


# ---------------------------------------------------------------- maps and search


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("d", [1, 2, 5, 20])
def test_points_are_moved_inside_and_stay_where_they_are_inside(d, dtype):
    for seed in range(6):
        matrix, bound, point = polytope(d, seed)
        box = cb.Box([0.0] * d, [1.0] * d, linear=(matrix, bound)).to(dtype=dtype)
        x = torch.rand(400, d, generator=torch.Generator().manual_seed(seed)).to(dtype)
        x = torch.cat([x, x.round(), point.to(dtype).unsqueeze(0)])
        for near in (box.nearest(x), box.spread(x), box.centred(x)):
            assert near.dtype == dtype
            assert excess(near, matrix, bound) <= 0
            assert near.min() >= 0
            assert near.max() <= 1
        kept = (x.double() @ matrix.T <= bound - 1e-5).all(-1)
        assert torch.equal(box.nearest(x)[kept], x[kept])


def slsqp(loss, matrix, bound, starts, low=0.0, high=1.0):
    """The least ``loss(x)`` that SLSQP finds from ``starts``."""
    a, b = matrix.numpy(), bound.numpy()
    rows = {"type": "ineq", "fun": lambda x: b - a @ x, "jac": lambda x: -a}

    def both(x):
        x = torch.from_numpy(x).requires_grad_(True)
        value = loss(x)
        (slope,) = torch.autograd.grad(value, x)
        return float(value.detach()), slope.numpy()

    found = [
        minimize(
            both, start.numpy(), jac=True, bounds=[(low, high)] * len(start),
            constraints=rows, method="SLSQP", options={"ftol": 1e-13, "maxiter": 500},
        )
        for start in starts
    ]  # fmt: skip
    return min(one.fun for one in found if (a @ one.x - b).max() < 1e-9)


@pytest.mark.parametrize("d", [2, 4, 9, 20])
def test_the_search_finds_the_optimum_of_random_polytopes(d):
    for seed in range(3):
        matrix, bound, point = polytope(d, seed)
        generator = torch.Generator().manual_seed(seed)
        top = torch.rand(d, generator=generator, dtype=F64) * 1.4 - 0.2
        root = torch.randn(d, d, generator=generator, dtype=F64)
        bend = root @ root.T / d + 0.1 * torch.eye(d, dtype=F64)

        def height(x, top=top, bend=bend):
            away = x - top
            return -((away @ bend) * away).sum(-1)

        box = cb.Box([0.0] * d, [1.0] * d, linear=(matrix, bound))
        best = maximise_box(
            box, lambda x: height(x).unsqueeze(1), lambda f, g: f, Streams(seed)
        )
        assert excess(best.x, matrix, bound) <= 0
        starts = [point, *box.spread(torch.rand(5, d, dtype=F64, generator=generator))]
        reference = -slsqp(lambda x: -height(x), matrix, bound, starts)
        assert abs(reference - float(height(best.x))) < 1e-6


def test_limits_are_in_the_users_numbers_where_the_search_uses_logarithms():
    space = cb.Space(
        rate=cb.Float(1e-3, 10.0, log=True),
        share=cb.Float(0.0, 10.0),
        where=["rate + share <= 6", "share <= 3 rate"],
    )
    weight = torch.tensor([0.3, 1.0], dtype=F64)

    def height(x):
        return (x * weight).sum(-1) - 0.02 * x.square().sum(-1)

    best = maximise_box(
        space, lambda x: height(x).unsqueeze(1), lambda f, g: f, Streams(0)
    )
    limits = space.linear.matrix, space.linear.bound
    assert excess(best.x, *limits) <= 0
    starts = torch.tensor([[1.0, 1.0], [5.0, 0.5]], dtype=F64)
    reference = -slsqp(lambda x: -height(x), *limits, starts, 1e-3, 10.0)
    assert abs(reference - float(height(best.x))) < 1e-6


def test_costs_and_linear_limits_are_kept_together():
    box = cut()
    best, infeasible = best_feasible_point(
        box,
        lambda x: torch.stack([x[..., 0] + 2 * x[..., 1], x[..., 0] - 0.3], 1),
        Streams(0),
        torch.zeros(1, 0, 2, dtype=F64),
    )
    assert not infeasible.any()
    ends = linprog([-1, -2], [*CORNER, [1, 0]], [*LIMIT, 0.3], bounds=(0, 1))
    assert torch.allclose(best.x, torch.tensor(ends.x), atol=1e-6)


def test_a_thousandth_of_a_box_is_searched_and_drawn_from():
    """The simplex of eight coordinates is a share of 1 / 40 320 of its cube."""
    box = cb.Box([0.0] * 8, [1.0] * 8, linear=(torch.ones(1, 8), [1.0]))
    policy = cb.baselines.Random(box, costs=0, trials=40)
    x = policy.ask().x
    assert excess(x, np.ones((1, 8)), [1.0]) <= 0
    # uniform on the simplex: Dirichlet(1, ..., 1), each of mean 1/9
    mean, spread = x.mean(0), (8 / 81 / 10 / len(x)) ** 0.5
    assert ((mean - 1 / 9).abs() < 5 * spread).all()


# ---------------------------------------------------------------- policies on boxes


class Improvement(cb.GPPolicy):
    """A rule of the user's own."""

    name = "EI"

    def acquire(self, t, multiplier, e):
        return e.mean[:, 0] + e.std[:, 0] - e.g.clamp(min=0).sum(1)


def acquisition(model, policy):
    from botorch.acquisition import UpperConfidenceBound

    return UpperConfidenceBound(model.models[0], beta=1.0)


BOX_POLICIES = {
    "RPOL-UCB": lambda box, **more: cb.RPOL(box, **more),
    "RPOL-TS": lambda box, **more: cb.RPOL(box, explore=cb.TS(1.0), **more),
    "CKB": lambda box, **more: cb.CKB(box, step=0.5, cap=5.0, **more),
    "CONFIG": lambda box, **more: cb.baselines.CONFIG(box, **more),
    "EI": lambda box, **more: Improvement(box, **more),
    "BoTorch": lambda box, **more: cb.baselines.BoTorchPolicy(
        box, make_acquisition=acquisition, **more
    ),
    "ADMMBO": lambda box, **more: cb.baselines.ADMMBO(box, **more),
    "Random": lambda box, **more: cb.baselines.Random(box, **more),
}


def world(x):
    """Reward and cost; the reward draws beyond both limits."""
    return x.sum(-1) + 0.2 * torch.sin(6 * x[..., 0]), x[..., 0] - 0.6


def played(policy, rounds=2, **how):
    for _ in range(rounds):
        choice = policy.ask(**how)
        assert excess(choice.x) <= 1e-9
        reward, cost = world(choice.x)
        policy.tell(choice, reward=reward, cost=cost)
    return policy


@pytest.mark.parametrize("name", BOX_POLICIES)
def test_every_policy_stays_inside_a_box(name):
    policy = BOX_POLICIES[name](cut(), reward=belief(), costs=belief())
    if name != "Random":
        policy.observe(x=[[0.9, 0.9]], reward=[9.0], cost=[-0.5])  # data may lie beyond
    played(policy)
    if name != "ADMMBO":
        assert excess(policy.recommend().x) <= 1e-9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trials_design_middle_and_confidence_stay_inside(dtype):
    gp = belief()
    policy = cb.RPOL(cut(), reward=gp, costs=gp, trials=2, dtype=dtype, design=3)
    first = [policy.ask() for _ in range(4)]
    assert all(excess(choice.x) <= 1e-9 for choice in first)
    other = cb.baselines.CONFIG(
        cut(), reward=gp, costs=gp, trials=2, dtype=dtype, design=3
    )
    for choice in first[:3]:
        assert torch.equal(other.ask().x, choice.x)  # the same design
        reward, cost = world(choice.x)
        policy.tell(choice, reward=reward, cost=cost)
    if dtype == "float32":
        played(policy, 1, confidence=0.9)
    low = cb.Box([0.0, 0.0], [1.0, 1.0], linear="x0 + x1 <= .5")
    gp = cb.GP.default(low)
    start = cb.RPOL(low, reward=gp, costs=gp, dtype=dtype).ask()
    side = 0.5 / (2 + 2**0.5)  # the centre of the triangle's inscribed circle
    assert torch.allclose(start.x.double(), torch.full((2,), side, dtype=F64))


def test_failures_leave_a_ball_out_at_the_limit_too():
    policy = cb.RPOL(cut(), reward=belief(), costs=belief(), failures=False)
    for _ in range(2):
        choice = policy.ask()
        policy.tell(choice, failed=True)
        again = policy.ask()
        assert (again.x - choice.x).norm() > 1e-3
        assert excess(again.x) <= 1e-9


def test_a_loaded_policy_goes_on_inside(tmp_path):
    policy = played(cb.RPOL(cut(), reward=belief(), costs=belief()), 2)
    policy.save(tmp_path / "policy")
    copy = cb.load(tmp_path / "policy")
    assert repr(copy.actions) == repr(policy.actions)
    assert torch.equal(copy.ask().x, policy.ask().x)
    policy.save(tmp_path / "light", actions=False)
    with pytest.raises(cb.errors.CBanditError, match="set"):
        cb.load(tmp_path / "light", actions=cb.Box([0.0, 0.0], [1.0, 1.0]))


def test_what_a_user_gives_for_a_round_is_kept_inside():
    policy = played(cb.RPOL(cut(), reward=belief(), costs=belief()), 1)
    assert policy.ask(actions=[[0.9, 0.9], [0.2, 0.1]]).index == 1
    with pytest.raises(cb.errors.CBanditError, match="beyond the known limits"):
        policy.ask(actions=[[0.9, 0.9]])

    class Far(cb.Policy):
        name = "Far"

        def __init__(self, actions):
            super().__init__(actions, 1)
            self.begin(None)

        def decide(self, state, turn):
            return cb.Decision(None, x=torch.ones(1, 2, dtype=F64)), state

        def absorb(self, state, news):
            return state

    with pytest.raises(cb.errors.CBanditError, match="x must keep the set's limits"):
        Far(cut()).ask()


def test_who_cannot_keep_limits_refuses():
    with pytest.raises(cb.errors.CBanditError, match="moves between bounds alone"):
        cb.baselines.BanditOCO(cut(), costs=1, radius=0.1, step=0.1, dual_step=0.1)


def test_the_sampler_of_a_study_refuses_limits():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def limited(space, **given):
        within = cb.Space(where="a + b <= 9", **space.names.parameters)
        gp = cb.GP.default(within)
        return cb.GPUCB(within, reward=gp, minimise=given["minimise"])

    study = optuna.create_study(sampler=cb.optuna.Sampler(limited))
    with pytest.raises(cb.errors.CBanditError, match="built on a space with where="):
        study.optimize(
            lambda trial: trial.suggest_int("a", 1, 5) + trial.suggest_int("b", 1, 5),
            n_trials=3,
        )


# ---------------------------------------------------------------- choices and grids


def machines():
    return cb.Space(
        cores=cb.Int(1, 6),
        memory=cb.Float(0.5, 8.0),
        where=["2 cores <= memory"],
    )


def test_rows_of_choices_without_a_point_are_closed():
    space = machines()
    assert sorted(set(space.playable[:, 0].tolist())) == [1, 2, 3, 4]
    gp = belief(3.0)
    policies = [
        cb.RPOL(space, reward=gp, costs=gp, design=5),
        cb.baselines.BoTorchPolicy(space, reward=gp, make_acquisition=acquisition),
        cb.baselines.Random(space, costs=1),
    ]
    for policy in policies:
        if policy.name != "Random":
            cost = {"cost": [-1.0]} if policy.m else {}
            beyond = [{"cores": 6, "memory": 1.0}]
            policy.observe(params=beyond, reward=[50.0], **cost)
        for _ in range(2 if policy.name == "BoTorch" else 7):
            choice = policy.ask()
            params = choice.params
            assert 2 * params["cores"] <= params["memory"] + 1e-9 * 7.5
            cost = {"cost": -1.0} if policy.m else {}
            policy.tell(choice, reward=params["cores"] - 0.1 * params["memory"], **cost)
    best = policies[0].recommend().params  # a slice that is one point
    assert (best["cores"], best["memory"]) == (4, 8.0)


def stairs(**more):
    return cb.Space(
        cores=cb.Int(1, 8), memory=cb.Float(0.1, 1.2, step=0.1), **more,
    )  # fmt: skip


def test_a_grid_keeps_its_numbers_and_masks_by_hand():
    where = ["0.1 cores <= memory", "cores + 2 memory >= 2.4"]
    space, plain = stairs(where=where), stairs()
    x = space.points(torch.arange(space.size))
    assert torch.equal(x, plain.points(torch.arange(plain.size)))
    cores, tenths = x[:, 0].long(), (10 * x[:, 1]).round().long()
    expected = (cores <= tenths) & (10 * cores + 2 * tenths >= 24)
    assert torch.equal(space.within_limits(), expected)


GRID = cb.Space(
    a=cb.Int(0, 11),
    b=cb.Int(0, 11),
    c=cb.Category("x", "y"),
    where=["a + b <= 12", "a <= 2 b + 3"],
)


SAFE = cb.Safe(index=0, reward=0.0, cost=-1.0)


def within(params):
    params = params if isinstance(params, list) else [params]
    return all(p["a"] + p["b"] <= 12 and p["a"] <= 2 * p["b"] + 3 for p in params)


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream", "gpytorch"])
def test_every_engine_keeps_the_limits_of_a_grid(engine):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(4.0, dtype=F64)
    gp = cb.GP(kernel, noise=0.01)
    policy = cb.CKB(
        GRID, reward=gp, costs=gp, engine=engine, explore=cb.UCB(2.0), design=4,
        step=0.5, cap=5.0, trials=2, failures=False,
    )  # fmt: skip
    beyond = [{"a": 11, "b": 11, "c": "x"}]
    policy.observe(params=beyond, reward=[99.0], cost=[-1.0])
    for _ in range(8):
        choice = policy.ask(among={"c": ["x"]})
        assert within(choice.params)
        x = choice.x
        policy.tell(choice, reward=x[:, 0] + 2 * x[:, 1], cost=x[:, 0] - 9)
    assert within(policy.recommend().params)
    failed = policy.ask()
    policy.tell(failed, failed=True)
    assert within(policy.ask().params)
    with pytest.raises(cb.errors.CBanditError, match="beyond the known limits"):
        policy.ask(among=beyond)


@pytest.mark.parametrize(
    "build",
    [
        lambda gp: cb.GPTS(GRID, reward=gp),
        lambda gp: cb.RPOL(GRID, reward=gp, costs=gp),
        lambda gp: cb.EpochPenalty(GRID, reward=gp, costs=1, epoch=4),
        lambda gp: cb.baselines.ADMMBO(GRID, reward=gp, costs=gp),
        lambda gp: cb.OPB(GRID, reward=gp, costs=gp, safe=SAFE, horizon=9, delta=0.1),
        lambda gp: cb.baselines.SafeOpt(
            GRID, reward=gp, costs=gp, safe=cb.Safe(index=0), explore=cb.UCB(2.0)
        ),
        lambda gp: cb.baselines.Random(GRID, costs=1),
    ],
)
def test_other_policies_keep_the_limits_of_a_grid(build):
    policy = build(cb.GP.default(GRID))
    for _ in range(4):
        choice = policy.ask()
        assert within(choice.params)
        cost = {"cost": -1.0} if policy.m else {}
        policy.tell(choice, reward=float(choice.x[0] + choice.x[1]), **cost)


def test_the_safe_action_must_lie_inside():
    last = cb.Safe(index=GRID.size - 1, reward=0.0, cost=-1.0)
    gp = cb.GP.default(GRID)
    with pytest.raises(cb.errors.CBanditError, match="so must where="):
        cb.OPB(GRID, reward=gp, costs=gp, safe=last, delta=0.1).ask()


@pytest.mark.parametrize("load", [cb.Context(2), cb.Context(cb.Int(0, 2))])
def test_limits_go_with_contexts(load):
    space = cb.Space(a=cb.Int(0, 4), b=cb.Int(0, 4), load=load, where="a + b <= 4")
    gp = cb.GP.default(space)
    policy = cb.RPOL(space, reward=gp, costs=gp)
    shown = {"load": [0.5, 0.2] if load.width == 2 else 1}
    for _ in range(4):
        params = policy.ask(context=shown).params
        assert params["a"] + params["b"] <= 4
        policy.tell(policy.outstanding[-1], reward=params["a"] + 0.0, cost=-1.0)
    best = policy.recommend(context=shown).params
    assert best["a"] + best["b"] <= 4


def test_a_grown_and_a_loaded_grid_keep_their_limits(tmp_path):
    gp = cb.GP.default(GRID)
    policy = cb.GPUCB(GRID, reward=gp)
    policy.tell(policy.ask(), reward=1.0)
    policy.add("c", "z")
    assert policy.actions.linear.texts == GRID.linear.texts
    assert within(policy.ask().params)
    policy.save(tmp_path / "policy")
    copy = cb.load(tmp_path / "policy")
    for _ in range(3):
        assert copy.ask().params == policy.ask().params


def test_the_optimum_of_a_table_is_within_the_limits():
    space = cb.Space(a=cb.Int(0, 4), b=cb.Int(0, 4), where="a + b <= 4")
    x = space.points(torch.arange(space.size))
    table = cb.problems.Table(
        x.sum(-1) + 0.1 * x[:, 1], x[:, :1].T - 3, 0.01, actions=space
    )
    assert table.actions.points(table.best).tolist() == [0.0, 4.0]
    assert float(table.optimum(1)) == pytest.approx(4.4)
    assert float(table.stochastic_optimum(1)) == pytest.approx(4.4)
