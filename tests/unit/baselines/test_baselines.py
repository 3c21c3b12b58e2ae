"""BKB against dense solves, and any acquisition function of BoTorch."""

from __future__ import annotations

import subprocess
import sys

import gpytorch
import numpy as np
import pytest
import torch
from dense import GP, LAM, K, X, drive, functions, noise, rbf

import cbandit as cb
from cbandit._core.randomness import Streams
from cbandit.baselines.bkb import dimensions


def test_bkb_with_all_in_the_dictionary_is_gp_ucb():
    truth, noises = functions(3, 1)[:, :1], noise(3, 0, 120)
    explore = cb.UCB(lambda t, gain: 1 + 0.3 * gain.sqrt())
    actions = cb.Finite(X)
    exact = cb.GPUCB(actions, reward=GP, explore=explore, trials=3)
    policy = cb.baselines.BKB(
        actions, reward=GP, explore=explore, trials=3, oversampling=1e9
    )
    expected, _ = drive(exact, truth, noises)
    played, _ = drive(policy, truth, noises)
    np.testing.assert_array_equal(played[:20], expected[:20])
    policy.ask()  # the last action enters the dictionary
    told = cb.GPUCB(actions, reward=GP, explore=explore, trials=3)
    seen = np.take_along_axis(truth[:, 0], played.T, -1) + noises[..., 0].T
    told.observe(index=played.T, reward=seen)
    found, wanted = policy.posterior().reward, told.posterior().reward
    torch.testing.assert_close(found.mean, wanted.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std**2, wanted.std**2, atol=1e-7, rtol=0)


def test_bkb_is_its_formula():
    truth, noises = functions(2, 0), noise(2, 0, 50)
    policy = cb.baselines.BKB(
        cb.Finite(X),
        reward=cb.GP(rbf(), noise=LAM, mean=0.3),
        explore=cb.UCB(2.0),
        trials=2,
        oversampling=0.2,
    )
    played, _ = drive(policy, truth, noises)
    policy.ask()
    found = policy.posterior().reward
    engine = policy._beliefs.groups[0].engine
    for i in range(2):
        keys = engine.history.keys()[i]
        chosen = [k for k, c in zip(keys, engine.chosen[i].tolist(), strict=False) if c]
        assert 0 < len(chosen) < len(set(played[:, i]))
        at = played[:, i]
        y = truth[i, 0, at] + noises[:, i, 0] - 0.3
        value, vector = np.linalg.eigh(K[np.ix_(chosen, chosen)])
        sound = value > 1e-13 * value.max()
        z = (vector[:, sound] / np.sqrt(value[sound])).T @ K[chosen]
        v = np.linalg.inv(z[:, at] @ z[:, at].T + LAM * np.eye(len(z)))
        mean = 0.3 + z.T @ v @ z[:, at] @ y
        gram = z[:, at] @ z[:, at].T @ v
        var = np.diag(K) - np.einsum("in,ij,jn->n", z, gram, z)
        np.testing.assert_allclose(found.mean[i], mean, atol=1e-5)
        np.testing.assert_allclose(found.std[i] ** 2, var, atol=1e-5)


def test_bkb_scores_by_the_papers_width():
    truth, noises = functions(1, 0), noise(1, 0, 30)
    # enough for everything that was tried to be kept: the posterior is exact
    policy = cb.baselines.BKB(
        cb.Finite(X),
        reward=cb.GP(rbf(), noise=LAM),
        explore=cb.UCB(cb.RKHS(norm=1.5, subgaussian=0.2, delta=0.05)),
        oversampling=1e9,
    )
    at = []
    for t in range(30):
        choice = policy.ask()
        if at:
            gram = K[np.ix_(at, at)] + LAM * np.eye(t)
            y = truth[0, 0, at] + noises[:t, 0, 0]
            mean = K[:, at] @ np.linalg.solve(gram, y)
            var = np.diag(K) - np.einsum(
                "ij,ji->i", K[:, at], np.linalg.solve(gram, K[at])
            )
            spent = 3 * (1 + np.log(1 + t / LAM)) * var[at].sum() / LAM + np.log(20)
            beta = (1 + 2**0.5) * 1.5 + 2 * 0.2 / LAM**0.5 * spent**0.5
            scores = mean + beta * np.sqrt(var.clip(0))
            assert scores[int(choice.index)] >= scores.max() - 1e-4
        at.append(int(choice.index))
        policy.tell(choice, reward=truth[0, 0, at[-1]] + noises[t, 0, 0])
    assert len(set(at)) > 5


@pytest.mark.parametrize("lam", [1e-3, 1.0])
def test_bkb_stays_within_the_papers_width(lam):
    # 60 functions of norm 1, a tenth may leave the band in any of 40 rounds
    runs, rounds, r = 60, 40, lam**0.5
    generator = torch.Generator().manual_seed(3)
    x = X
    gram = rbf()(x).to_dense().detach()
    weight = torch.randn(runs, len(x), generator=generator, dtype=torch.float64)
    f = weight @ gram
    f = f / (weight * f).sum(-1, keepdim=True).sqrt()
    policy = cb.baselines.BKB(
        cb.Finite(x),
        reward=cb.GP(rbf(), noise=lam),
        explore=cb.UCB(cb.RKHS(norm=1.0, subgaussian=r)),
        trials=runs,
        oversampling=72 * float(np.log(4 * rounds / 0.1)),
    )
    left, every = torch.zeros(runs, dtype=torch.bool), torch.arange(runs)
    for _ in range(rounds):
        choice = policy.ask()
        belief = policy.posterior().reward
        dimension, mass = dimensions(policy._beliefs)
        one = torch.ones(runs, 1, dtype=torch.float64)
        beta = cb.confidence.sketched_width(
            one, r * one, dimension, mass, lam * one, 0.1
        )
        left |= ((f - belief.mean).abs() > beta * belief.std + 1e-9).any(-1)
        noises = torch.randn(runs, generator=generator, dtype=torch.float64)
        policy.tell(choice, reward=f[every, choice.index] + r * noises)
    assert int(left.sum()) <= 12  # 12 of 60 at a rate of a tenth: p = 0.01


def test_bkb_variances_are_right_up_to_a_factor():
    truth, noises = functions(2, 0), noise(2, 0, 60)
    policy = cb.baselines.BKB(
        cb.Finite(X), reward=GP, explore=cb.UCB(2.0), trials=2, oversampling=3.0
    )
    exact = cb.GPUCB(cb.Finite(X), reward=GP, explore=cb.UCB(2.0), trials=2)
    played, _ = drive(policy, truth, noises)
    exact.observe(index=played.T, reward=truth[:, 0][np.arange(2)[:, None], played.T])
    policy.ask()
    ratio = policy.posterior().reward.std / exact.posterior().reward.std
    # (1 - eps) / (1 + eps) on the variance, by the paper's Theorem 1, with eps = 1/2
    assert 1 / 3 < float(ratio.square().min()) <= float(ratio.square().max()) < 3
    one = cb.baselines.BKB(
        cb.Finite(X),
        reward=GP,
        explore=cb.UCB(2.0),
        trials=range(1, 2),
        oversampling=3.0,
    )
    alone, _ = drive(one, truth[1:], noises[:, 1:])
    np.testing.assert_array_equal(alone[:, 0], played[:, 1])


@pytest.mark.parametrize("dual", ["projected", "queue"])
def test_ckb_on_whole_sketches_is_ckb(dual):
    """With all in the dictionaries: the same actions, multipliers and posteriors."""
    truth, noises = functions(3, 2, shift=0.1), noise(3, 2, 60)
    explore = cb.UCB(lambda t, gain: 1 + 0.3 * gain.sqrt())
    given = {"reward": GP, "costs": [GP, GP], "explore": explore, "slack": 0.02}
    given |= {"clip": (3.0, 3.0), "slater": 0.1, "horizon": 61, "dual": dual}
    exact = cb.CKB(cb.Finite(X), **given, trials=3, pending="ignore")
    policy = cb.baselines.BKB(cb.Finite(X), **given, trials=3, oversampling=1e9)
    expected, _ = drive(exact, truth, noises)
    played, _ = drive(policy, truth, noises)
    np.testing.assert_array_equal(played, expected)
    torch.testing.assert_close(policy.multiplier, exact.multiplier, atol=1e-5, rtol=0)
    assert float(exact.multiplier.max()) > 0.1
    policy.ask()  # the last action enters the dictionaries
    found, wanted = policy.posterior().costs, exact.posterior().costs
    torch.testing.assert_close(found.mean, wanted.mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std**2, wanted.std**2, atol=1e-7, rtol=0)


def test_ckb_on_sketches_is_its_formula():
    """A dense loop beside it, told only which actions each dictionary holds."""
    truth, noises = functions(1, 1, shift=0.1), noise(1, 1, 50)[:, 0]
    other = cb.GP(rbf(0.4), noise=0.04, mean=0.1)
    policy = cb.baselines.BKB(
        cb.Finite(X), reward=GP, costs=other, explore=cb.UCB(1.5), step=0.3, cap=5.0,
        slack=0.01, dual_beta=0.5, oversampling=0.3, clip=(2.0, 1.0),
    )  # fmt: skip
    kernels = K, rbf(0.4)(X, X).to_dense().detach().numpy()
    lams, means, at, seen, phi = (LAM, 0.04), (0.0, 0.1), [], [], 0.0
    sizes, most = [], 0.0
    for t in range(50):
        choice = policy.ask()
        looks = []
        for f, group in enumerate(policy._beliefs.groups):
            belief = group.engine
            k, lam = kernels[f], lams[f]
            mean, var = np.full(len(k), means[f]), np.diag(k).copy()
            if at:
                keys = belief.history.keys()[0]
                kept = belief.chosen[0].tolist()
                kept = [a for a, c in zip(keys, kept, strict=False) if c]
                sizes.append(len(kept))
                if kept:
                    gram = k[np.ix_(kept, kept)] + 1e-12 * np.eye(len(kept))
                    z = np.linalg.solve(np.linalg.cholesky(gram), k[kept])
                    v = np.linalg.inv(z[:, at] @ z[:, at].T / lam + np.eye(len(kept)))
                    y = np.array(seen)[:, f] - means[f]
                    mean = mean + z.T @ v @ z[:, at] @ y / lam
                    var = var - (z * z).sum(0) + np.einsum("in,ij,jn->n", z, v, z)
            looks.append((mean, np.sqrt(var.clip(0))))
        (f, df), (g, dg) = looks
        score = (f + 1.5 * df).clip(-2, 2) - phi * (g - 1.5 * dg).clip(-1, 1)
        index = int(choice.index)
        assert score[index] >= score.max() - 1e-4
        moved = np.clip(g[index] - 0.5 * dg[index], -1, 1)
        phi = np.clip(phi + 0.3 * (moved + 0.01), 0, 5)
        most = max(most, phi)
        y = truth[0, :, index] + noises[t]
        policy.tell(choice, reward=y[0], cost=y[1])
        at.append(index)
        seen.append(y)
        assert float(policy.multiplier) == pytest.approx(phi, abs=1e-4)
    assert most > 0.3
    assert 0 < np.mean(sizes) < 0.7 * len(set(at))


def test_ckb_on_sketches_shares_delta_among_its_functions():
    """The widths are the sketch paper's at ``delta / 3`` each, a number stays one."""
    truth, noises = functions(1, 2), noise(1, 2, 12)
    rkhs = cb.RKHS(norm=1.5, subgaussian=0.2, delta=0.06)
    policy = cb.baselines.BKB(
        cb.Finite(X), reward=GP, costs=[GP, GP], step=0.3, cap=5.0, oversampling=1e9,
        explore=cb.UCB(0.7, cost_beta=rkhs),
    )  # fmt: skip
    played, _ = drive(policy, truth, noises)
    at = played[:, 0]
    why = policy.explain(policy.ask())
    gram = K[np.ix_(at, at)] + LAM * np.eye(12)
    var = np.diag(K) - np.einsum("ij,ji->i", K[:, at], np.linalg.solve(gram, K[at]))
    spent = 3 * (1 + np.log(1 + 12 / LAM)) * var[at].sum() / LAM + np.log(3 / 0.06)
    beta = (1 + 2**0.5) * 1.5 + 2 * 0.2 / LAM**0.5 * spent**0.5
    found = (why.estimate - why.mean) / why.std
    np.testing.assert_allclose(found, [0.7, -beta, -beta], rtol=1e-6)


def test_a_sketch_is_an_engine_of_other_policies():
    """The same as BKB; looks between rounds and a file change nothing."""
    truth, noises = functions(2, 1, shift=0.1), noise(2, 1, 40)
    given = {"reward": GP, "costs": GP, "explore": cb.UCB(1.5), "trials": 2}
    given |= {"step": 0.3, "cap": 5.0}
    bkb = cb.baselines.BKB(cb.Finite(X), **given)
    ckb = cb.CKB(cb.Finite(X), **given, engine="sketch")
    assert "dictionary" in ckb.engine
    for t in range(40):
        one, other = bkb.ask(), ckb.ask()
        assert torch.equal(one.index, other.index)
        y = truth[np.arange(2), :, one.index] + noises[t]
        bkb.tell(one, reward=y[:, 0], cost=y[:, 1])
        ckb.tell(other, reward=y[:, 0])
        ckb.posterior()
        ckb.tell(other, cost=y[:, 1])
        ckb.posterior()
    assert int(ckb._beliefs.groups[0].engine.chosen.sum(-1).max()) < len(X)


@pytest.mark.parametrize("place", ["set", "points"])
def test_draws_have_the_law_of_a_sketch(place):
    """2 000 draws by a small dictionary; a variance may be 5.5 of its errors off."""
    policy = cb.baselines.BKB(
        cb.Finite(X), reward=cb.GP(rbf(0.1), noise=LAM), oversampling=0.01, seed=1
    )
    for t in range(25):
        policy.tell(policy.ask(), reward=float(np.sin(t)))
    (group,) = policy._beliefs.groups
    engine, x = group.engine, torch.as_tensor(X)
    exact = engine.history.at(x)[1]
    assert float((engine.at(x)[1] - exact).abs().max()) > 0.05
    wanted = engine._between(x, x)[0]
    drawn = []
    for seed in range(2000):
        streams = Streams(seed)
        if place == "points":
            drawn.append(policy._beliefs.drawn(x.unsqueeze(0), streams)[0, 0])
        else:
            (block,) = engine.blocks([(0, len(X))], streams)
            drawn.append(block.draw[0, 0])
    drawn = torch.stack(drawn)
    error = (wanted.square() + torch.outer(wanted.diag(), wanted.diag())) / 2000
    gap = (drawn.T @ drawn / 2000 - wanted).abs()
    assert float((gap / error.sqrt().clamp_min(1e-9)).max()) < 5.5
    torch.testing.assert_close(wanted.diag(), engine.at(x)[1][0])


def test_choices_to_come_by_a_sketch():
    """With all in the dictionary their variances are the exact engine's."""
    actions = cb.Finite(X)
    exact, ours = (
        cb.GPUCB(actions, reward=GP, explore=cb.UCB(2.0), engine=engine)
        for engine in ("joint", "sketch")
    )
    ours._beliefs.groups[0].held._dictionary = ours._beliefs.groups[
        0
    ].held._dictionary._replace(oversampling=1e9)
    for policy in (exact, ours):
        for place in (3, 17, 25, 3):
            policy.tell(policy.ask(among=[place]), reward=float(place % 5))
    for _ in range(5):
        assert int(exact.ask().index) == int(ours.ask().index)


def test_bkb_on_a_set_of_the_round():
    policy = cb.baselines.BKB(
        cb.Finite(X), reward=GP, explore=cb.UCB(2.0), oversampling=1e9
    )
    exact = cb.GPUCB(cb.Finite(X), reward=GP, explore=cb.UCB(2.0))
    asked = np.linspace(0.03, 0.99, 7)[:, None]
    for t in range(6):
        ours, theirs = (p.ask(actions=asked[t % 2 :]) for p in (policy, exact))
        assert ours.index.item() == theirs.index.item()
        for p, choice in ((policy, ours), (exact, theirs)):
            p.tell(choice, reward=np.sin(5 * float(choice.x)))


def test_bkb_dictionary_stays_small():
    x = torch.linspace(0, 1, 2000, dtype=torch.float64).unsqueeze(-1)
    policy = cb.baselines.BKB(
        cb.Finite(x),
        reward=cb.GP(rbf(), noise=LAM),
        explore=cb.UCB(2.0),
        oversampling=2.0,
    )
    sizes, tried = [], set()
    for t in range(150):
        choice = policy.ask()
        place = float(choice.x)
        tried.add(place)
        # the argmax moves all the time, so that nearly each round tries a new action
        policy.tell(choice, reward=float(np.sin(7 * place + 0.05 * t)))
        sizes.append(int(policy._beliefs.groups[0].engine.chosen.sum()))
    assert len(tried) > 60
    # the effective dimension is 1/2 of ... at most a dozen for this kernel and noise
    assert max(sizes[20:]) < 60
    with pytest.raises(cb.CBanditError, match="sketch"):
        _ = policy.model
    assert "dictionary" in policy.engine


@pytest.mark.parametrize(
    "bad",
    [
        {"reward": cb.GP(rbf(), noise=None)},
        {"oversampling": 0.0},
        {"step": 0.1},  # there are no costs
        {"slack": 0.1},
        {"dual": "queue"},
        {"costs": 1, "step": 0.1, "cap": 1.0},  # without a belief
        {"costs": cb.GP(rbf(), noise=None), "step": 0.1, "cap": 1.0},
        {"explore": cb.TS()},
        {"pending": "hallucinate"},
        {"feedback": cb.Delayed(5)},
    ],
)
def test_bkb_bad_input(bad):
    given = {"reward": GP, "explore": cb.UCB(1.0)}
    with pytest.raises(cb.CBanditError, match=next(iter(bad))):
        cb.baselines.BKB(cb.Finite(X), **{**given, **bad})


def constrained_ei(model, policy):
    from botorch.acquisition.analytic import LogConstrainedExpectedImprovement

    best = model.models[0].train_targets.max()
    return LogConstrainedExpectedImprovement(model, best, 0, {1: (None, 0.0)})


def log_ei(model, policy):
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.sampling import SobolQMCNormalSampler

    model = model.models[0]
    sampler = SobolQMCNormalSampler(torch.Size([32]))
    return qLogExpectedImprovement(model, model.train_targets.max(), sampler=sampler)


def test_botorch_acquisition_in_the_loop():
    truth, noises = functions(2, 1, seed=4), noise(2, 1, 12)
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(X),
        reward=GP,
        costs=GP,
        make_acquisition=constrained_ei,
        trials=2,
        chunk=7,
    )
    state = torch.get_rng_state()
    played, _ = drive(policy, truth, noises)
    assert torch.equal(state, torch.get_rng_state())
    # the next choice is the argmax of the acquisition over a model built by hand
    choice = policy.ask()
    from botorch.models import ModelListGP, SingleTaskGP

    for i in range(2):
        at, where = np.unique(played[:, i], return_inverse=True)
        models = []
        for j in range(2):
            y = truth[i, j, played[:, i]] + noises[:, i, j]
            count = np.bincount(where)
            mean = np.bincount(where, y) / count
            model = SingleTaskGP(
                X[at],
                torch.tensor(mean)[:, None],
                torch.tensor(LAM / count)[:, None],
                covar_module=rbf(),
                outcome_transform=None,
                mean_module=gpytorch.means.ZeroMean(),
            )
            models.append(model.eval())
        value = constrained_ei(ModelListGP(*models), None)(X.unsqueeze(1))
        assert int(value.argmax()) == int(choice.index[i])


def test_botorch_on_a_box_with_a_learned_belief():
    box = cb.Box([0.0, -1.0], [1.0, 1.0])
    policy = cb.baselines.BoTorchPolicy(
        box,
        reward=cb.GP.default(box),
        make_acquisition=log_ei,
        initial=4,
        num_restarts=2,
        raw_samples=16,
        seed=3,
    )
    values = []
    for _ in range(12):
        choice = policy.ask()
        box.inside(choice.x)
        assert choice.index is None
        values.append(-float((choice.x - torch.tensor([0.3, 0.2])).square().sum()))
        policy.tell(choice, reward=values[-1])
    assert max(values) > -0.05
    assert policy.model.models[0].train_targets.shape == (12,)
    again = cb.baselines.BoTorchPolicy(
        box,
        reward=cb.GP.default(box),
        make_acquisition=log_ei,
        initial=4,
        num_restarts=2,
        raw_samples=16,
        seed=3,
    )
    for value in values[:6]:
        choice = again.ask()
        assert -float((choice.x - torch.tensor([0.3, 0.2])).square().sum()) == value
        again.tell(choice, reward=value)
    with pytest.raises(cb.CBanditError, match="Box"):
        policy.posterior()
    found = policy.recommend()
    assert found.index is None
    assert float((found.x - torch.tensor([0.3, 0.2])).abs().max()) < 0.3


def test_botorch_arms_without_coordinates():
    table = np.stack([K[:9, :9], 2 * K[:9, :9]])
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(covariance=table),
        reward=cb.GP(noise=LAM),
        make_acquisition=log_ei,
        trials=2,
        name="qLogEI",
    )
    truth = functions(2, 0)[..., :9]
    played, _ = drive(policy, truth, noise(2, 0, 8))
    assert policy.name == "qLogEI"
    assert len(np.unique(played)) > 2


def broken(model, policy):
    return lambda x: torch.full(x.shape[:1], torch.nan)


def test_botorch_bad_input():
    with pytest.raises(cb.CBanditError, match="make_acquisition"):
        cb.baselines.BoTorchPolicy(cb.Finite(X), reward=GP, make_acquisition=None)
    with pytest.raises(cb.CBanditError, match="pending"):
        cb.baselines.BoTorchPolicy(
            cb.Finite(X), reward=GP, make_acquisition=log_ei, pending="hallucinate"
        )
    policy = cb.baselines.BoTorchPolicy(
        cb.Finite(X), reward=GP, make_acquisition=broken
    )
    policy.tell(policy.ask(), reward=0.0)
    with pytest.raises(cb.CBanditError, match="NaN"):
        policy.ask()
    assert policy.t == 1


def test_import_leaves_botorch_alone():
    code = "import cbandit, sys; cbandit.baselines.BoTorchPolicy; "
    code += "sys.exit('botorch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names():
    from cbandit import baselines

    names = [baselines.CONFIG.name, baselines.StageOpt.name, baselines.SafeOpt.name]
    names += [baselines.SGPUCB.name, baselines.BKB.name]
    assert names == ["CONFIG", "StageOpt", "SafeOpt", "SGP-UCB", "BKB"]


def test_botorch_on_a_box_with_choices():
    box = cb.Box([0.0], [1.0], choices=[[0.0], [1.0], [2.0]])
    policy = cb.baselines.BoTorchPolicy(
        box,
        reward=cb.GP.default(box),
        make_acquisition=log_ei,
        initial=4,
        num_restarts=2,
        raw_samples=16,
    )
    for _ in range(10):
        choice = policy.ask()
        assert torch.equal(box.inside(choice.x), choice.x)
        gap = (choice.x - torch.tensor([0.3, 1.0])).abs()
        policy.tell(choice, reward=float(-(gap[0] ** 2) - gap[1]))
    assert policy.recommend().x[1].item() == 1.0
    with pytest.raises(cb.CBanditError, match="whose last ones are chosen from rows"):
        cb.baselines.BanditOCO(box, costs=1, radius=0.1, step=0.1, dual_step=0.1)


@pytest.mark.parametrize("noise", [1e-16, 1e-310, 0.0])
def test_a_dictionary_of_outcomes_without_noise(noise):
    kernel = gpytorch.kernels.MaternKernel(nu=1.5).double()
    x = torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)
    policy = cb.baselines.BKB(
        cb.Finite(x), reward=cb.GP(kernel, noise=noise), explore=cb.UCB(1.0)
    )
    for place in [*range(12), *range(12)]:
        choice = policy.ask(among=[place])
        policy.tell(choice, reward=float(torch.sin(3 * choice.x)))
    policy.ask()
    found = policy.posterior().reward
    assert bool(found.std.isfinite().all())
    assert float((found.mean - torch.sin(3 * x[:, 0])).abs().max()) < 0.05


@pytest.mark.parametrize("trials", [None, 3])
def test_random_plays_the_tips_of_a_star(trials):
    tips = torch.rand(*(trials or 1,), 5, 2, generator=torch.Generator().manual_seed(0))
    star = cb.Star([0.0, 0.0], tips if trials else tips[0])
    policy = cb.baselines.Random(star, costs=1, trials=trials, thresholds=0.5)
    for _ in range(4):
        choice = policy.ask()
        assert torch.equal(choice.x, star.points(choice.index))
        ones = torch.ones_like(choice.x[..., 0])
        policy.tell(choice, reward=choice.x.sum(-1), cost=0.1 * ones)
    assert policy.recommend().index is None
    assert bool((policy.recommend().value >= choice.x.sum(-1)).all())
    with pytest.raises(cb.CBanditError, match=r"design= \(2\) needs .* got Star"):
        cb.baselines.Random(star, costs=1, trials=trials, design=2)


@pytest.mark.parametrize("costs", [False, True])
def test_bkb_goes_on_after_a_failure(costs):
    more = {"costs": {"c": GP}, "step": 0.5, "cap": 20.0} if costs else {}
    more |= {"thresholds": {"c": "<= 0.5"}} if costs else {}
    told = {"reward": 0.1} | ({"cost": 0.2} if costs else {})
    policy = cb.baselines.BKB(cb.Finite(X), reward=GP, **more)
    for _ in range(3):
        policy.tell(policy.ask(), **told)
    choice = policy.ask()
    policy.tell(choice, failed=True)
    assert int(policy.ask().index) != int(choice.index)
    assert policy.multiplier.shape == (int(costs),)
    policy.recommend()
