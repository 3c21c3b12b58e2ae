"""The linear programme of OPB against HiGHS, hand values and its own certificate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import solve_policy, solve_policy_by_pricing, spied_passes
from scipy.optimize import linprog

import cbandit as cb

KINDS = ("normal", "integers", "duplicates", "hull", "scales", "touching")


def highs(u_r, u_c, tau):
    """Status and value by HiGHS, in units that suit its absolute tolerances."""
    by_r, by_c = np.abs(u_r).max() or 1.0, np.abs(u_c).max(1) + np.abs(tau)
    by_c[by_c == 0] = 1.0
    out = linprog(
        -u_r / by_r,
        A_ub=u_c / by_c[:, None],
        b_ub=tau / by_c,
        A_eq=np.ones((1, len(u_r))),
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
        options={
            "primal_feasibility_tolerance": 1e-10,
            "dual_feasibility_tolerance": 1e-10,
        },
    )
    return out.status, None if out.fun is None else -out.fun * by_r


def instance(rng, kind, size, m):
    u_r, u_c = rng.normal(size=size), rng.normal(size=(m, size))
    tau = 0.5 * rng.normal(size=m)
    if kind == "integers":  # ties everywhere
        u_r = rng.integers(0, 3, size).astype(float)
        u_c = rng.integers(-2, 3, (m, size)).astype(float)
        tau = rng.integers(-1, 2, m).astype(float)
    elif kind == "duplicates":
        copies = rng.integers(0, size, size)
        u_r, u_c = u_r[copies], u_c[:, copies]
    elif kind == "hull":  # every arm is a vertex
        u_c = rng.random((m, size))
        u_r, tau = np.sqrt(u_c).sum(0), np.abs(tau)
    elif kind == "scales":
        u_r *= 10.0 ** rng.integers(-9, 9)
        by = 10.0 ** rng.integers(-6, 6, m)
        u_c, tau = u_c * by[:, None], tau * by
    elif kind == "touching":  # one arm on every limit at once
        tau = u_c[:, rng.integers(size)].copy()
    return u_r, u_c, tau


def check(u_r, u_c, tau, solution):
    """What every solution of one trial must satisfy by itself."""
    m = len(tau)
    index = solution.distribution.index.numpy()
    p = solution.distribution.probability.numpy()
    assert index.shape == p.shape == (m + 1,)
    assert (p >= 0).all() and abs(p.sum() - 1) <= 4e-16 * (m + 1)
    assert (index[p == 0] == 0).all()
    support = index[p > 0]
    assert (np.diff(support) > 0).all() and (p[: len(support)] > 0).all()
    spent = (u_c[:, index] * p).sum(1) - tau
    scale = np.maximum(np.abs(u_c).max(1), np.abs(tau))
    if solution.infeasible:
        assert abs(spent.max() - float(solution.violation)) <= 1e-12 * scale.max()
        assert abs(float(solution.gap)) <= 1e-12 * scale.max()
        weights = solution.multiplier.numpy()
        assert (weights >= 0).all() and abs(weights.sum() - 1) <= 1e-12
    else:
        assert (spent <= 1e-12 * scale).all()
        assert float(solution.violation) == 0.0
        assert abs(float(solution.gap)) <= 1e-12 * np.abs(u_r).max()
        assert (solution.multiplier >= 0).all()
        value = (u_r[index] * p).sum()
        assert abs(value - float(solution.value)) <= 1e-14 * np.abs(u_r).max()
        # the certificate again, by hand
        lam = solution.multiplier.numpy()
        bound = (u_r - lam @ (u_c - tau[:, None])).max()
        assert bound - value <= 1e-12 * (np.abs(u_r).max() + lam @ scale)


def compare(seed, count, largest):
    rng = np.random.default_rng(seed)
    failed = infeasible = 0
    for i in range(count):
        m = int(rng.integers(1, 6))
        size = int(np.exp(rng.uniform(np.log(2), np.log(largest))))
        u_r, u_c, tau = instance(rng, KINDS[i % len(KINDS)], size, m)
        solution = solve_policy(u_r, u_c, tau)
        check(u_r, u_c, tau, solution)
        status, value = highs(u_r, u_c, tau)
        if status not in (0, 2):
            failed += 1
            continue
        assert bool(solution.infeasible) == (status == 2)
        infeasible += status == 2
        if status == 0:
            assert abs(float(solution.value) - value) <= 1e-9 * np.abs(u_r).max()
    assert failed <= count // 50
    assert 0 < infeasible < count / 2  # both answers were compared


def test_against_highs_on_small_sets():
    compare(0, 900, 300)


def test_against_highs_on_larger_sets():
    compare(1, 60, 5_000)


@pytest.mark.slow
def test_against_highs_on_10000_arms():
    rng = np.random.default_rng(2)
    for m in (1, 2, 3, 5):
        for kind in ("normal", "hull", "duplicates"):
            for _ in range(4):
                u_r, u_c, tau = instance(rng, kind, 10_000, m)
                solution = solve_policy(u_r, u_c, tau)
                check(u_r, u_c, tau, solution)
                status, value = highs(u_r, u_c, tau)
                assert bool(solution.infeasible) == (status == 2)
                if status == 0:
                    assert float(solution.value) == pytest.approx(value, rel=1e-9)


# --- hand values


def test_a_pair_mixes_up_to_the_limit():
    u_r, u_c, tau = [0.0, 1.0, 0.2], [[0.1, 0.9, 0.8]], 0.3
    best = cb.search.best_policy(u_r, u_c, tau)
    assert best.index.tolist() == [0, 1]
    first = (0.9 - 0.3) / (0.9 - 0.1)
    assert best.probability.tolist() == pytest.approx([first, 1 - first], abs=1e-15)
    solution = solve_policy(u_r, u_c, tau)
    assert float(solution.value) == pytest.approx(0.25, abs=1e-15)
    assert float(solution.multiplier) == pytest.approx(1.25, abs=1e-15)


def test_a_feasible_best_arm_is_played_alone():
    best = cb.search.best_policy([0.1, 0.7, 0.7, 0.2], [[0.0, 0.2, 0.2, 0.5]], 0.2)
    assert best.index.tolist() == [1, 0]
    assert best.probability.tolist() == [1.0, 0.0]


def test_two_costs_by_hand():
    # arms: safe; good but dear in the first; good but dear in the second
    u_r = [0.0, 1.0, 1.0]
    u_c = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    best = cb.search.best_policy(u_r, u_c, [0.25, 0.5])
    assert best.index.tolist() == [0, 1, 2]
    assert best.probability.tolist() == pytest.approx([0.25, 0.25, 0.5], abs=1e-15)
    solution = solve_policy(u_r, u_c, [0.25, 0.5])
    assert solution.multiplier.tolist() == pytest.approx([1.0, 1.0], abs=1e-15)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_alike_arms_are_played_by_the_first(m):
    best = cb.search.best_policy(np.ones(50), np.full((m, 50), 0.5), 0.5)
    assert best.index.tolist() == [0] * (m + 1)
    assert best.probability.tolist() == [1.0] + [0.0] * m


@pytest.mark.parametrize("m", [1, 2])
def test_a_single_arm(m):
    solution = solve_policy([3.0], np.zeros((m, 1)), 0.0)
    assert float(solution.value) == 3.0
    assert not solution.infeasible


def test_among_arms_at_the_limit_the_best_one():
    # the only feasible arms lie on the limit exactly
    u_r = [0.0, 0.4, 0.3, 5.0, 1.0]
    u_c = [[0.3, 0.3, 0.3, 0.31, 0.9]]
    best = cb.search.best_policy(u_r, u_c, 0.3)
    assert best.index.tolist() == [1, 0]
    assert best.probability.tolist() == [1.0, 0.0]


def test_a_limit_met_only_by_a_mixture_on_its_boundary():
    u_c = [[0.1, 0.3, 0.9], [0.3, 0.1, 0.9]]
    solution = solve_policy([1.0, 1.0, 9.0], u_c, [0.2, 0.2])
    assert not solution.infeasible
    assert solution.distribution.index.tolist() == [0, 1, 0]
    half = solution.distribution.probability.tolist()
    assert half == pytest.approx([0.5, 0.5, 0.0], abs=1e-12)


def test_limits_met_up_to_rounding_are_met():
    # two arms, neither cheaper in every cost, and limits at a mixture of them
    rng = np.random.default_rng(12)
    for _ in range(200):
        size, share = int(rng.integers(2, 9)), rng.random()
        u_r, u_c = rng.random(size), 1 + rng.random((2, size))
        u_c[:, :2] = [[0.1, 0.9], [0.9, 0.1]] * rng.uniform(0.5, 1.1, (2, 2))
        tau = u_c[:, :2] @ [share, 1 - share]
        solution = solve_policy(u_r, u_c, tau)
        check(u_r, u_c, tau, solution)
        assert not solution.infeasible
        assert float(solution.distribution.probability[0]) == pytest.approx(share)


def test_costs_of_very_different_scales():
    # 10^-10 of one cost matters as much as 2 of another
    u_c = [[1.0, 0.0], [1e-10, 0.0], [2.0, 0.0]]
    best = cb.search.best_policy([1.0, 0.0], u_c, [0.0, 0.0, 0.0])
    assert best.index.tolist() == [1, 0, 0, 0]
    assert best.probability.tolist() == [1.0, 0.0, 0.0, 0.0]
    rng = np.random.default_rng(13)
    for i in range(400):
        m, size, decades = int(rng.integers(1, 6)), int(rng.integers(2, 40)), i % 13
        u_r = rng.normal(size=size) * 10.0 ** rng.uniform(-decades, 0, size)
        u_c = rng.normal(size=(m, size)) * 10.0 ** rng.uniform(-decades, 0, (m, size))
        tau = rng.normal(size=m) * 10.0 ** rng.uniform(-decades, 0, m) * (i % 3 > 0)
        if i % 2:
            u_c[rng.random((m, size)) < 0.4] = 0.0
        check(u_r, u_c, tau, solve_policy(u_r, u_c, tau))


# --- infeasible sets


def test_an_infeasible_set_says_by_how_much():
    with pytest.raises(
        cb.InfeasibleError, match=r"u_c\[j\] - tau\[j\] is 0\.2"
    ) as caught:
        cb.search.best_policy([1.0, 2.0, 3.0], [[0.7, 0.5, 0.5]], 0.3)
    assert float(caught.value.violation) == pytest.approx(0.2, abs=1e-15)
    assert caught.value.best.index.tolist() == [2, 0]  # of the cheapest the best
    assert caught.value.best.probability.tolist() == [1.0, 0.0]


def test_the_least_violation_may_need_a_mixture():
    solution = solve_policy([0.0, 0.0, 0.0], [[1.0, 0.0, 1], [0.0, 1.0, 1]], 0.25)
    assert bool(solution.infeasible)
    assert float(solution.violation) == pytest.approx(0.25, abs=1e-15)
    assert solution.distribution.probability.tolist() == pytest.approx([0.5, 0.5, 0])
    assert solution.multiplier.tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("m", [1, 2])
def test_one_infeasible_trial_among_others_is_a_flag(m):
    u_c = (
        torch.tensor([0.0, 1.0]).expand(3, m, 2)
        + torch.tensor([0, 2.0, 0])[:, None, None]
    )
    best = cb.search.best_policy(torch.tensor([0.0, 1.0]), u_c, 0.5)
    assert best.infeasible.tolist() == [False, True, False]
    assert best.index[:, :2].tolist() == [[0, 1], [0, 0], [0, 1]]
    assert best.probability[1].tolist() == [1.0] + [0.0] * m


def test_infeasible_in_every_trial_is_an_error():
    with pytest.raises(cb.InfeasibleError) as caught:
        cb.search.best_policy(torch.zeros(2, 3), torch.ones(2, 1, 3), [[0.5], [0.0]])
    assert caught.value.violation.tolist() == [0.5, 1.0]


# --- large sets, by their certificate


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("kind", ["normal", "hull", "integers"])
def test_large_sets_certify_themselves(kind, m):
    rng = np.random.default_rng(3)
    u_r, u_c, tau = instance(rng, kind, 200_003, m)
    check(u_r, u_c, tau, solve_policy(u_r, u_c, tau))


@pytest.mark.parametrize("order", ["random", "up", "down"])
@pytest.mark.parametrize("hull", ["circle", "exponential", "root"])
def test_arcs_whose_every_arm_is_a_vertex(hull, order):
    rng = np.random.default_rng(4)
    x = rng.random(100_000)
    x = x if order == "random" else np.sort(x)[:: 1 if order == "up" else -1].copy()
    curve = {
        "circle": np.sqrt(1 - (1 - x) ** 2),
        "exponential": 1 - np.exp(-5 * x),
        "root": np.sqrt(x),
    }[hull]
    tau = np.array([0.37])
    solution = solve_policy(curve, x[None], tau)
    check(curve, x[None], tau, solution)
    # the two neighbours of the limit, whatever the arc
    left, right = x[x <= 0.37].max(), x[x > 0.37].min()
    assert sorted(x[solution.distribution.index]) == [left, right]


def test_arms_are_dropped_on_the_way(monkeypatch):
    seen = spied_passes(monkeypatch)
    rng = np.random.default_rng(5)
    x = rng.random(100_000)
    solve_policy(np.sqrt(x), x[None], 0.4)
    assert sum(n == 100_000 for n in seen) <= 8
    assert sum(seen) <= 1_200_000


# --- trials


@pytest.mark.parametrize("size", [7, 3_000, 60_000])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_a_batch_equals_its_trials_one_by_one(m, size):
    rng = np.random.default_rng(6)
    rows = [instance(rng, KINDS[i % 6], size, m) for i in range(12)]
    u_r, u_c, tau = (
        np.stack(part).reshape(3, 4, *part[0].shape) for part in zip(*rows, strict=True)
    )
    batch = solve_policy(u_r, u_c, tau)
    assert batch.value.shape == batch.gap.shape == batch.infeasible.shape == (3, 4)
    assert batch.multiplier.shape == (3, 4, m)
    assert batch.distribution.index.shape == (3, 4, m + 1)
    for i, (r, c, t) in enumerate(rows):
        at = divmod(i, 4)
        one = solve_policy(r, c, t)
        assert bool(one.infeasible) == bool(batch.infeasible[at])
        assert float(one.value) == pytest.approx(float(batch.value[at]), rel=1e-12)
        if m == 1:
            assert torch.equal(one.distribution.index, batch.distribution.index[at])
            assert torch.equal(
                one.distribution.probability, batch.distribution.probability[at]
            )


def test_arguments_are_shared_between_trials():
    u_c = torch.rand(5, 1, 30, generator=torch.Generator().manual_seed(0))
    u_r = torch.linspace(0, 1, 30)
    shared = cb.search.best_policy(u_r, u_c, 0.5)
    full = cb.search.best_policy(u_r.expand(5, 30), u_c, torch.full((5, 1), 0.5))
    assert torch.equal(shared.index, full.index)
    assert torch.equal(shared.probability, full.probability)


# --- sets never materialised


def pricing(u_r, u_c, log=None):
    def price(weight, lam):
        if log is not None:
            log.append(lam)
        at = (weight[..., None] * u_r - (lam[..., None] * u_c).sum(-2)).argmax(-1)
        at = at.unsqueeze(-1)
        every = at.unsqueeze(-2).expand(*at.shape[:-1], u_c.shape[-2], 1)
        return at, u_r.gather(-1, at), u_c.gather(-1, every)

    return price


@pytest.mark.parametrize("m", [1, 2, 4])
def test_pricing_reaches_the_same_value(m):
    rng = np.random.default_rng(7)
    for i in range(12):
        u_r, u_c, tau = instance(rng, KINDS[i % 6], 5_000, m)
        full = solve_policy(u_r, u_c, tau)
        calls = []
        price = pricing(torch.as_tensor(u_r), torch.as_tensor(u_c), calls)
        seen = solve_policy_by_pricing(price, m, tau)
        check(u_r, u_c, tau, seen)
        assert bool(seen.infeasible) == bool(full.infeasible)
        if not full.infeasible:
            assert float(seen.value) == pytest.approx(float(full.value), rel=1e-12)
        assert len(calls) < 200


def test_pricing_over_a_continuum():
    # u_r = sqrt(x), u_c = x on a billion points: the arms next to the limit
    n = 10**9

    def price(weight, lam):
        x = (weight / (2 * lam[..., 0]).clamp_min(1e-12)).square().clamp(0, 1)
        near = (x * n).long().clamp(0, n - 2).unsqueeze(-1) + torch.arange(2)
        at = torch.where(weight[..., None] > 0, near, torch.zeros_like(near))
        x = at.double() / n
        return at, x.sqrt(), x.unsqueeze(-2)

    solution = solve_policy_by_pricing(price, 1, [0.3])
    assert float(solution.value) == pytest.approx(0.3**0.5, abs=1e-9)
    assert abs(float(solution.gap)) <= 1e-12


def test_pricing_in_trials():
    generator = torch.Generator().manual_seed(8)
    u_r = torch.rand(4, 500, generator=generator, dtype=torch.float64)
    u_c = torch.rand(4, 2, 500, generator=generator, dtype=torch.float64)
    full = solve_policy(u_r, u_c, 0.2)
    seen = solve_policy_by_pricing(pricing(u_r, u_c), 2, torch.full((4, 2), 0.2))
    assert torch.allclose(full.value, seen.value, rtol=1e-12)


def test_a_bad_price_is_named():
    def price(weight, lam):
        return torch.zeros(1).long(), torch.tensor([torch.nan]), torch.zeros(1, 1)

    with pytest.raises(cb.CBanditError, match="u_r of price"):
        solve_policy_by_pricing(price, 1, [0.5])
    with pytest.raises(cb.CBanditError, match="price must return u_c"):
        solve_policy_by_pricing(price, 2, [0.5, 0.5])


# --- numbers of every kind


@pytest.mark.parametrize("by_r", [1e-300, 1e-150, 1.0, 1e150, 1e300])
@pytest.mark.parametrize("by_c", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("m", [1, 2])
def test_the_answer_is_free_of_scale(m, by_r, by_c):
    rng = np.random.default_rng(9)
    u_r, u_c = rng.random(40), rng.random((m, 40))
    plain = cb.search.best_policy(u_r, u_c, 0.2)
    if (
        m > 1 and np.log10(by_r) - np.log10(by_c) > 308
    ):  # no multiplier could say what a cost is worth
        with pytest.raises(cb.CBanditError, match="scales whose ratio is a number"):
            cb.search.best_policy(u_r * by_r, u_c * by_c, 0.2 * by_c)
        return
    scaled = cb.search.best_policy(u_r * by_r, u_c * by_c, 0.2 * by_c)
    assert torch.equal(plain.index, scaled.index)
    assert torch.allclose(plain.probability, scaled.probability, atol=1e-12)


def test_float32_integers_and_lists_are_taken():
    single = cb.search.best_policy(
        torch.tensor([0.0, 1.0]), torch.tensor([[0.25, 0.75]]), np.float32(0.5)
    )
    assert single.probability.tolist() == [0.5, 0.5]
    assert single.probability.dtype == torch.float64
    assert cb.search.best_policy([0, 2], [[0, 4]], 1).probability.tolist() == [
        0.75,
        0.25,
    ]


@pytest.mark.parametrize("size", [3, 5_000])
@pytest.mark.parametrize("m", [1, 2])
def test_infinity_forbids_an_arm(m, size):
    rng = np.random.default_rng(10)
    u_r, u_c = rng.random(size), rng.random((m, size))
    tau = np.full(m, 0.9 if size > 3 else 2.0)
    banned_r, banned_c = u_r.copy(), u_c.copy()
    banned_r[u_r.argmax()] = -np.inf
    banned_c[-1, 0] = np.inf
    allowed = np.isfinite(banned_r) & np.isfinite(banned_c).all(0)
    got = solve_policy(banned_r, banned_c, tau)
    want = solve_policy(u_r[allowed], u_c[:, allowed], tau)
    assert float(got.value) == float(want.value)
    played = got.distribution.index[got.distribution.probability > 0]
    assert allowed[played].all()
    # no limit can be kept: still none of the forbidden
    least = solve_policy(banned_r, banned_c, tau - 9)
    played = least.distribution.index[least.distribution.probability > 0]
    assert bool(least.infeasible) and allowed[played].all()


R3, C3 = [1.0, 2.0, 3.0], [[0.1, 0.2, 0.3]]


@pytest.mark.parametrize(
    ("u_r", "u_c", "tau", "message"),
    [
        ([1.0, np.nan, 3.0], C3, 0.1, "u_r must be finite"),
        ([1.0, np.inf, 3.0], C3, 0.1, "u_r must be finite.*got inf"),
        (R3, [[0.1, np.nan, 0.3]], 0.1, "u_c must be finite"),
        (R3, [[0.1, -np.inf, 0.3]], 0.1, "u_c must be finite.*got -inf"),
        (R3, C3, np.nan, "tau must be finite"),
        (R3, C3, np.inf, "tau must be finite"),
        ([-np.inf] * 3, C3, 0.1, "leave an arm"),
        (1.0, C3, 0.1, "u_r must have shape"),
        ([], [[]], 0.1, "u_r must have shape"),
        (R3, [0.1, 0.2, 0.3], 0.1, "u_c must have shape"),
        (R3, [[0.1, 0.2]], 0.1, "u_c must have shape .* K = 3"),
        (R3, C3, [0.1, 0.2], "tau must have shape .* m = 1"),
        (np.ones((2, 3)), np.ones((4, 1, 3)), 0.1, "the same trials"),
        ("one", C3, 0.1, "u_r must be a number"),
    ],
)
def test_bad_arguments_are_named(u_r, u_c, tau, message):
    with pytest.raises(cb.CBanditError, match=message):
        solve_policy(u_r, u_c, tau)


# --- properties

halves = st.integers(-4, 4).map(lambda i: i / 2)
wide = st.floats(-1e3, 1e3, allow_nan=False, allow_subnormal=False)


@st.composite
def programmes(draw):
    m, size = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    numbers = draw(st.sampled_from([halves, wide]))
    u_r = draw(st.lists(numbers, min_size=size, max_size=size))
    u_c = [draw(st.lists(numbers, min_size=size, max_size=size)) for _ in range(m)]
    tau = draw(st.lists(numbers, min_size=m, max_size=m))
    return np.array(u_r), np.array(u_c), np.array(tau)


@settings(max_examples=300, deadline=None)
@given(programmes())
def test_every_solution_certifies_itself(programme):
    u_r, u_c, tau = programme
    check(u_r, u_c, tau, solve_policy(u_r, u_c, tau))


@settings(max_examples=100, deadline=None)
@given(programmes(), st.integers(0, 6))
def test_more_room_and_more_arms_never_hurt(programme, arm):
    u_r, u_c, tau = programme
    before = solve_policy(u_r, u_c, tau)
    looser = solve_policy(u_r, u_c, tau + 1)
    assert bool(before.infeasible) or not bool(looser.infeasible)
    scale = 1e-9 * (1 + np.abs(u_r).max())
    if not before.infeasible:
        assert float(looser.value) >= float(before.value) - scale
    arm %= len(u_r)
    twice = solve_policy(np.append(u_r, u_r[arm]), np.c_[u_c, u_c[:, arm]], tau)
    assert float(twice.violation) == pytest.approx(float(before.violation), abs=1e-9)
    if not before.infeasible:
        assert float(twice.value) == pytest.approx(float(before.value), abs=scale)


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("m", [1, 3])
def test_cuda_agrees_with_the_cpu(m):
    rng = np.random.default_rng(11)
    rows = [instance(rng, "hull", 50_000, m) for _ in range(4)]
    u_r, u_c, tau = (torch.as_tensor(np.stack(a)) for a in zip(*rows, strict=True))
    here = solve_policy(u_r, u_c, tau)
    there = solve_policy(u_r.cuda(), u_c.cuda(), tau.cuda())
    assert there.value.is_cuda and there.distribution.index.is_cuda
    assert torch.allclose(here.value, there.value.cpu(), rtol=1e-12)
