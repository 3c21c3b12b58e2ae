"""Problems: finite tables, the Zhou problems, data files."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from inside import Choice, Streams, data
from scipy.optimize import linprog

import cbandit as cb
from cbandit import problems
from cbandit.problems import Normal, Table, zhou_finance, zhou_light, zhou_synthetic


def choice(problem, index):
    index = torch.as_tensor(index)
    x = problem.actions.points(index)
    return Choice(1, index, x, torch.zeros(index.shape, dtype=torch.bool))


def programme(f, g):
    """``max E f, E g <= 0`` by HiGHS."""
    ones = np.ones((1, len(f)))
    answer = linprog(-f, A_ub=g, b_ub=np.zeros(len(g)), A_eq=ones, b_eq=[1.0])
    return -answer.fun if answer.status == 0 else float("nan")


class TestTable:
    def test_truth(self):
        problem = Table([[0.0, 1.0, 2.0]] * 2, [[[-1.0, -1.0, 1.0]]] * 2, trials=2)
        x = torch.tensor([[1.0], [2.0]])
        assert problem.reward(x, 1).tolist() == [1.0, 2.0]
        assert problem.costs(x, 1).tolist() == [[-1.0], [1.0]]
        assert problem.optimum(1).tolist() == [1.0, 1.0]
        assert problem.stochastic_optimum(1).tolist() == [1.5, 1.5]
        reward, cost = problem.observe(choice(problem, [2, 0]), Streams(0, 2))
        assert reward.tolist() == [2.0, 0.0]
        assert cost.tolist() == [[1.0], [-1.0]]

    def test_a_trial_without_feasible_action_is_nan(self):
        problem = Table([0.0, 1.0], [[[1.0, 1.0]], [[1.0, -1.0]]], trials=2)
        assert problem.optimum(1)[0].isnan()
        assert problem.optimum(1)[1] == 1.0
        assert problem.stochastic_optimum(1)[0].isnan()
        assert problem.best.tolist() == [-1, 1]

    @pytest.mark.parametrize("m", [1, 2, 4])
    def test_stochastic_optimum_against_highs(self, m):
        generator = torch.Generator().manual_seed(m)
        f = torch.randn(6, 15, generator=generator, dtype=torch.float64)
        g = torch.randn(6, m, 15, generator=generator, dtype=torch.float64) + 0.3
        problem = Table(f, g, trials=6)
        plain = torch.tensor(
            [programme(a.numpy(), b.numpy()) for a, b in zip(f, g, strict=False)]
        )
        torch.testing.assert_close(
            problem.stochastic_optimum(1), plain.double(), equal_nan=True
        )
        seen = problem.stochastic_optimum(1) >= problem.optimum(1) - 1e-12
        assert bool((seen | problem.optimum(1).isnan()).all())

    def test_thresholds(self):
        problem = Table([0.0, 1.0, 2.0], [[1.0, 2.0, 3.0]], thresholds=2.0)
        assert problem.optimum(1) == 1.0
        assert problem.stochastic_optimum(1) == pytest.approx(1.0)

    def test_noise_has_its_variance_and_is_each_trials_own(self):
        problem = Table([0.0], [[0.0], [0.0]], noise=4.0, cost_noise=[1.0, 0.25])
        streams = Streams(0, range(3, 5))
        draws = [problem.observe(choice(problem, [0, 0]), streams) for _ in range(4000)]
        reward = torch.stack([each[0] for each in draws])
        cost = torch.stack([each[1] for each in draws])
        # four standard errors of a variance of 4000 normals: 9 %
        torch.testing.assert_close(
            reward.var(0), torch.full((2,), 4.0).double(), rtol=0.09, atol=0
        )
        torch.testing.assert_close(
            cost.var(0), torch.tensor([[1.0, 0.25]] * 2).double(), rtol=0.09, atol=0
        )
        alone = Streams(0, range(4, 5))
        first = problem.observe(choice(problem, [0]), alone)
        assert torch.equal(first[0][0], reward[0, 1])

    def test_an_ordinary_generator_will_do(self):
        problem = Table([0.0], [[0.0]], noise=1.0)
        generator = torch.Generator().manual_seed(0)
        reward, cost = problem.observe(choice(problem, 0), generator)
        assert reward.shape == ()
        assert cost.shape == (1,)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"reward": [0.0, float("nan")]}, "reward must be finite"),
            ({"costs": [[0.0]]}, "costs must have shape"),
            ({"costs": [0.0, 1.0]}, "costs must have shape"),
            ({"noise": -1.0}, "noise must not be negative"),
            ({"thresholds": [1.0, 2.0]}, "thresholds must have shape"),
            ({"trials": 0}, "trials"),
        ],
    )
    def test_bad_input_is_named(self, given, message):
        arguments = {"reward": [0.0, 1.0], "costs": [[0.0, 1.0]], **given}
        with pytest.raises(cb.CBanditError, match=message):
            Table(**arguments)

    def test_an_action_outside_is_named(self):
        problem = Table([0.0, 1.0], [[0.0, 1.0]])
        with pytest.raises(cb.CBanditError, match="x must be a point of the set"):
            problem.reward(torch.tensor([0.5]), 1)


class TestSynthetic:
    @pytest.mark.parametrize("cost", ["half", "quarter", "independent"])
    def test_any_split_of_trials_is_the_same(self, cost):
        whole = zhou_synthetic(cost, trials=6, seed=3)
        part = zhou_synthetic(cost, trials=range(2, 5), seed=3)
        one = zhou_synthetic(cost, trials=range(2, 3), seed=3)
        assert torch.equal(whole.f[2:5], part.f)
        assert torch.equal(whole.g[2:5], part.g)
        for name in ("safe", "noise", "slater", "norm", "lipschitz", "bound"):
            a, b = getattr(whole.known, name), getattr(part.known, name)
            assert torch.equal(a[2:5], b), name
        assert torch.equal(one.f[0], whole.f[2])
        assert not torch.equal(whole.f[0], whole.f[1])
        single = zhou_synthetic(cost, seed=3)
        assert torch.equal(single.f, whole.f[0])
        assert single.f.shape == (100,)
        assert not torch.equal(single.f, zhou_synthetic(cost, seed=4).f)

    def test_the_cost_is_as_the_paper_says(self):
        cases = itertools.product(
            (("half", 0.5), ("quarter", 0.25)), ("max", "max-abs")
        )
        for (cost, share), bound in cases:
            problem = zhou_synthetic(cost, trials=4, bound=bound)
            most = problem.f.abs().amax(-1)
            top = most if bound == "max-abs" else problem.f.amax(-1)
            expected = share * top.unsqueeze(-1) - problem.f
            torch.testing.assert_close(problem.g[:, 0], expected)
            assert torch.equal(problem.known.bound, top)
            assert bool((problem.optimum(1) == problem.f.amax(-1)).all())
        problem = zhou_synthetic("independent", trials=4)
        together = torch.corrcoef(torch.stack([problem.f[0], problem.g[0, 0]]))
        assert together[0, 1].abs() < 0.999

    def test_f_lies_in_the_kernels_space_with_the_norm_said(self):
        problem = zhou_synthetic("independent", trials=3)
        x = problem.actions.all
        gram = torch.exp(-0.5 * ((x - x.mT) / 0.2) ** 2)
        torch.testing.assert_close(problem.known.kernel(x).to_dense(), gram)
        values, vectors = torch.linalg.eigh(gram)
        least = 1e-11 * values.max()
        keep = values > least
        # h = K a, so what is left out of a' K a is at most least |a|^2, and the hundred
        # coefficients of the draw, each within [-1, 1], add up to at most 100
        left_out = float(least) * 100**2
        for h, norm in (
            (problem.f, problem.known.norm),
            (problem.g[:, 0], problem.known.cost_norm),
        ):
            parts = (h @ vectors)[:, keep]
            gap = norm.square() - (parts.square() / values[keep]).sum(-1)
            assert bool((gap >= -1e-7).all())
            assert bool((gap <= left_out + 1e-7).all())
            assert bool((h.abs().amax(-1) <= norm + 1e-12).all())

    def test_every_trial_is_strictly_feasible_and_its_seed_safe(self):
        for cost in ("half", "independent"):
            problem = zhou_synthetic(cost, trials=60)
            assert bool((problem.g.amin((-2, -1)) < 0).all())
            at = problem.g[:, 0].gather(-1, problem.known.safe.unsqueeze(-1))
            assert bool((at <= 0).all())
            assert len(problem.known.safe.unique()) > 10
            several = zhou_synthetic(cost, trials=60, seeds=7).known.safe
            assert several.shape == (60, 7)
            assert bool((problem.g[:, 0].gather(-1, several) <= 0).all())
            assert sum(len(row.unique()) > 1 for row in several) > 50
        assert zhou_synthetic(seeds=7).known.safe.shape == (7,)

    def test_an_unknown_cost_is_named(self):
        with pytest.raises(cb.CBanditError, match="cost must be"):
            zhou_synthetic("third")
        with pytest.raises(cb.CBanditError, match="bound must be 'max' or"):
            zhou_synthetic(bound="min")
        with pytest.raises(cb.CBanditError, match="noise must be"):
            zhou_synthetic(noise=-0.1)

    def test_the_slope_is_a_bound(self):
        problem = zhou_synthetic(trials=3)
        rise = (problem.f[:, 1:] - problem.f[:, :-1]).abs().amax(-1) * 99
        torch.testing.assert_close(problem.known.lipschitz, rise, rtol=1e-9, atol=0)


def test_noise_of_each_actions_own_deviation():
    law = Normal(
        torch.tensor([0.0, 0.5, 2.0]).double(),
        torch.tensor([[1.0, 0.1, 3.0]]).double(),
    )
    index = torch.tensor([0, 1, 2]).repeat(3000)
    reward, cost = law(index, Streams(0, range(9000), "any"))
    assert reward.shape == (9000,)
    assert cost.shape == (9000, 1)
    for arm, (r, c) in enumerate([(0.0, 1.0), (0.5, 0.1), (2.0, 3.0)]):
        # of 3000 draws: seven standard errors
        assert float(reward[index == arm].std()) == pytest.approx(r, rel=0.09)
        assert float(cost[index == arm].std()) == pytest.approx(c, rel=0.09)
    both = torch.corrcoef(torch.stack([reward, cost[:, 0]])[:, index == 2])
    assert abs(float(both[0, 1])) < 0.13


needs_light = pytest.mark.skipif(
    not any((folder / "light_test.csv").exists() for folder in data.folders()),
    reason="the light sensors' data files are not here",
)
needs_stocks = pytest.mark.skipif(
    not any((f / "stocks_dow29_adjclose.csv").exists() for f in data.folders()),
    reason="the stocks' data file is not here",
)


@pytest.mark.data
class TestData:
    @needs_light
    def test_light(self):
        problem = zhou_light(trials=2)
        assert problem.actions.size == 41
        assert problem.f.max() == 1.0
        torch.testing.assert_close(problem.g[:, 0], 0.5 - problem.f)
        covariance = problem.actions.covariance
        torch.testing.assert_close(covariance.diagonal(), torch.ones(41).double())
        assert problem.optimum(1).tolist() == [1.0, 1.0]

    @needs_light
    @needs_stocks
    @pytest.mark.parametrize("world", [zhou_light, zhou_finance])
    def test_readings_of_normalised(self, world):
        train = (data.light()[0] if world is zhou_light else data.stocks()).numpy()
        spread = train.std(0)
        expected = {
            "each": np.corrcoef(train, rowvar=False),
            "common": np.cov(train, rowvar=False, ddof=0) / spread.max() ** 2,
            "largest": train.T @ train / len(train) / train.max() ** 2,
        }
        for normalise, covariance in expected.items():
            got = world(normalise=normalise).actions.covariance.numpy()
            np.testing.assert_allclose(got, covariance, rtol=0, atol=1e-12)
            assert got.max() < 1 + 1e-12
        with pytest.raises(ValueError, match="normalise must be 'each', 'common'"):
            world(normalise="other")

    @needs_light
    def test_a_reward_is_a_test_reading(self):
        problem, streams = zhou_light(), Streams(0)
        test = data.light()[1]
        readings = test[:, 7] / test.mean(0).max()
        for _ in range(20):
            reward, cost = problem.observe(choice(problem, 7), streams)
            assert (readings - reward).abs().min() < 1e-12
            assert (readings - (0.5 - cost)).abs().min() < 1e-12

    @needs_stocks
    def test_finance(self):
        problem = zhou_finance()
        prices = data.stocks()
        assert problem.actions.size == 29
        best = int(prices.mean(0).argmax())
        assert int(problem.best) == best
        assert problem.optimum(1).item() == pytest.approx(1.0)
        feasible = prices.mean(0) >= 100
        assert torch.equal(problem.g[0] <= 0, feasible)


def test_a_missing_file_says_which_and_where(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "folders", lambda: [tmp_path / "a", tmp_path / "b"])
    with pytest.raises(
        cb.MissingDataError, match=r"light_train.csv \(601 x 41 numbers"
    ):
        zhou_light()
    with pytest.raises(cb.MissingDataError, match=r"stocks.*nor in .*b") as error:
        zhou_finance()
    assert "fin.csv in the GitHub repository sayakrc/" in str(error.value)
    assert "`cbandit data fin.csv`" in str(error.value)


def test_a_missing_file_is_looked_for_in_named_places(monkeypatch, tmp_path):
    monkeypatch.delenv("CBANDIT_DATA", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    source = tmp_path / "environment" / "site-packages"
    monkeypatch.setattr(data, "SOURCE", source)
    home = "~/.local/share/cbandit"
    with pytest.raises(cb.MissingDataError) as error:
        zhou_light()
    assert str(error.value).endswith(f"$CBANDIT_DATA (not set) nor in {home}")
    assert str(tmp_path) not in str(error.value)
    source.mkdir(parents=True)
    (source / "pyproject.toml").touch()
    with pytest.raises(cb.MissingDataError) as error:
        zhou_light()
    beside = "../shared/data of the checkout"
    assert f"(not set) nor in {beside} nor in {home}" in str(error.value)
    monkeypatch.setenv("CBANDIT_DATA", str(tmp_path / "mine"))
    with pytest.raises(cb.MissingDataError, match=r"not in .CBANDIT_DATA .*mine"):
        zhou_light()


def test_a_wrong_file_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CBANDIT_DATA", str(tmp_path))
    (tmp_path / "light_train.csv").write_text("1,2,3\n")
    with pytest.raises(cb.MissingDataError, match=r"light_train\.csv is not"):
        zhou_light()


def test_everything_public_is_there():
    for name in problems.__all__:
        assert getattr(problems, name).__doc__
