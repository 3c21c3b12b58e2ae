"""The one pass that updates, scores and chooses, against sweeps in plain torch."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from inside import Swept, beliefs_of

import cbandit as cb

pytest.importorskip("triton")
launch = pytest.importorskip("cbandit_kernels._triton.rounds")

F64 = torch.float64
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDS = 50


def _kernel(kind, dim):
    if kind == "rbf":
        kernel = gpytorch.kernels.RBFKernel(ard_num_dims=dim).double()
        kernel.lengthscale = torch.linspace(0.2, 0.3, dim, dtype=F64)
        return kernel
    part = gpytorch.kernels.MaternKernel(nu=2.5).double()
    part.lengthscale = torch.tensor(0.4, dtype=F64)
    kernel = gpytorch.kernels.ScaleKernel(part).double()
    kernel.outputscale = torch.tensor(1.7, dtype=F64)
    return kernel


def _grid():
    # uneven axes: no two actions tie but for the prior's own symmetry
    first = torch.linspace(0, 1, 9, dtype=F64) ** 1.3
    return cb.ProductGrid([first, torch.linspace(0, 1.1, 7, dtype=F64) ** 0.8])


def _points(trials=None):
    generator = torch.Generator().manual_seed(3)
    lead = () if trials is None else (trials,)
    return cb.Finite(torch.rand(*lead, 40, 3, generator=generator, dtype=F64))


def _world(x):
    reward = torch.sin(5 * x[..., 0]) + 0.5 * x[..., 1]
    cost = torch.cos(4 * x[..., -1]) - 0.4 * x[..., 0]
    return reward, cost


def _play(policy, rounds, among=None):
    generator = torch.Generator().manual_seed(9)
    chosen, multipliers = [], []
    for _ in range(rounds):
        choice = policy.ask(among=among)
        reward, cost = _world(choice.x.double().cpu())
        noise = 0.1 * torch.randn(2, *reward.shape, generator=generator, dtype=F64)
        policy.tell(choice, reward=reward + noise[0], cost=cost + noise[1])
        chosen.append(choice.index.cpu().clone())
        multipliers.append(policy.multiplier.cpu().clone())
    return torch.stack(chosen), torch.stack(multipliers)


def _policy(kind, actions, kernel, explore, device=DEVICE, **more):
    more = {"device": device, "dtype": F64, **more}
    gp = cb.GP(_kernel(kernel, actions.dim), noise=0.01, mean=0.1)
    if kind == "CKB":
        more = {"step": 0.2, "cap": 3.0, "clip": (1.5, 1.2), **more}
    make = {"CKB": cb.CKB, "RPOL": cb.RPOL}[kind]
    return make(actions, reward=gp, costs=gp, explore=explore, **more)


class _Counted:
    """A launch that counts, so that a path is known to have run."""

    def __init__(self, monkeypatch, name):
        self.count, self.real = 0, getattr(launch, name)
        monkeypatch.setattr(launch, name, self)

    def __call__(self, *args):
        self.count += 1
        return self.real(*args)


@pytest.fixture
def launches(monkeypatch):
    return {name: _Counted(monkeypatch, name) for name in ("stream", "finish")}


def _same(monkeypatch, make, rounds=ROUNDS, among=None, limit=1e-8):
    plain = _play(make("cpu"), rounds, among)
    monkeypatch.setattr(Swept, "BACKEND", "triton")
    fused = make(DEVICE)
    seen = _play(fused, rounds, among)
    assert torch.equal(seen[0], plain[0])
    assert torch.allclose(seen[1], plain[1], rtol=0, atol=limit)
    return fused


@pytest.mark.parametrize("kind", ["CKB", "RPOL"])
def test_a_grid_by_matrix_products(kind, monkeypatch, launches):
    def make(device):
        return _policy(kind, _grid(), "rbf", cb.UCB(2.0), device, engine="product")

    _same(monkeypatch, make)
    assert launches["finish"].count == ROUNDS


@pytest.mark.parametrize("kind", ["CKB", "RPOL"])
def test_a_free_form_set_by_kernel_values(kind, monkeypatch, launches):
    def make(device):
        explore = cb.UCB(1.5, 1.0)
        return _policy(kind, _points(), "matern", explore, device, engine="stream")

    _same(monkeypatch, make)
    # nothing was told before the first round: a look, and no columns
    assert launches["stream"].count == ROUNDS - 1
    assert launches["finish"].count == 1


def test_trials_thresholds_and_a_mask(monkeypatch, launches):
    among = torch.arange(40) % 3 != 1

    def make(device):
        return _policy(
            "CKB",
            _points(2),
            "rbf",
            cb.UCB(cb.RKHS(1.0, 0.1)),
            device,
            engine="stream",
            trials=2,
            thresholds=torch.tensor([[0.1], [-0.2]], dtype=F64),
        )

    fused = _same(monkeypatch, make, rounds=15, among=among)
    assert launches["stream"].count == 14
    assert fused.ask(among=among).index.remainder(3).ne(1).all()


@pytest.mark.parametrize("explore", [cb.TS(1.0), cb.Rand(1.0)])
def test_draws(explore, monkeypatch, launches):
    def make(device):
        return _policy("CKB", _grid(), "rbf", explore, device, engine="product")

    _same(monkeypatch, make, rounds=20)
    assert launches["finish"].count == 20


def test_optimistic_feasible_where_nothing_is_feasible(monkeypatch, launches):
    def make(device):
        gp = cb.GP(_kernel("rbf", 3), noise=0.01)
        return cb.baselines.CONFIG(
            _points(),
            reward=gp,
            costs=gp,
            explore=cb.UCB(0.5),
            thresholds=-0.8,
            device=device,
            dtype=F64,
            engine="stream",
        )

    fused = _same(monkeypatch, make, rounds=20)
    # a second look, in rounds when nothing is believed feasible, changes nothing
    assert launches["stream"].count == 19
    assert launches["finish"].count > 1
    assert fused.ask().infeasible.dtype == torch.bool


def test_float32_within_its_rounding(monkeypatch, launches):
    def make(device):
        return _policy(
            "CKB",
            _points(),
            "rbf",
            cb.UCB(2.0),
            device,
            engine="stream",
            dtype=torch.float32,
        )

    _same(monkeypatch, make, rounds=15, limit=1e-4)
    assert launches["stream"].count == 14


def test_what_is_left_to_plain_sweeps(monkeypatch, launches):
    """Feedback told apart, outstanding choices and rescaled outcomes."""
    monkeypatch.setattr(Swept, "BACKEND", "triton")
    policy = _policy("CKB", _points(), "rbf", cb.UCB(2.0), engine="stream")
    choice = policy.ask()
    policy.tell(choice, reward=0.1)
    policy.ask()
    assert launches["stream"].count == 0
    policy = _policy(
        "CKB",
        _points(),
        "rbf",
        cb.UCB(2.0),
        engine="stream",
        pending="hallucinate",
    )
    policy.tell(policy.ask(), reward=0.1, cost=0.2)
    policy.ask()
    assert launches["stream"].count == 1  # nothing was outstanding
    policy.ask()
    assert launches["stream"].count == 1


def test_several_changes_and_forgetting(monkeypatch, launches):
    """A window forgets as it learns: two changes a round, sharing one pass."""

    def make(device):
        return _policy(
            "RPOL",
            _points(),
            "rbf",
            cb.UCB(2.0),
            device,
            engine="stream",
            feedback=cb.Sliding(6),
        )

    _same(monkeypatch, make, rounds=25)
    assert launches["stream"].count == 24


def test_what_a_stopped_pass_left_is_computed_afresh(monkeypatch):
    monkeypatch.setattr(Swept, "BACKEND", "triton")
    policy = _policy("CKB", _points(), "rbf", cb.UCB(2.0), engine="stream")
    _play(policy, 5)
    engine = beliefs_of(policy).groups[0].engine

    def stopped(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(launch, "stream", stopped)
        with pytest.raises(KeyboardInterrupt):
            policy.ask()
    policy.ask()
    assert engine.refreshes == 1
    policy.posterior()
    index = torch.arange(40, device=DEVICE).unsqueeze(0)
    mean, var = engine.history.at(engine.prior.actions.all)
    seen_mean, seen_var = engine.at_numbers(index)
    assert (seen_mean - mean).abs().max() <= 1e-10
    assert (seen_var - var).abs().max() <= 1e-10


@pytest.mark.parametrize("room", [1 << 30, 1 << 16])
def test_a_grid_whose_first_group_is_several_axes(room, monkeypatch):
    """Its rows are kept axis by axis, and so is a refresh that does not fit at once."""
    monkeypatch.setattr(Swept, "REFRESH_BYTES", room)
    axes = [torch.linspace(0, 1, n, dtype=F64) for n in (12, 36, 40)]
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.8, dtype=F64)
    gp = cb.GP(kernel, noise=0.01)
    policy = cb.CKB(
        cb.ProductGrid(axes),
        reward=gp,
        costs=gp,
        explore=cb.UCB(2.0),
        step=0.1,
        cap=3.0,
        engine="product",
        device=DEVICE,
        dtype=F64,
    )
    generator = torch.Generator().manual_seed(4)
    index = torch.randint(policy.actions.size, (40,), generator=generator)
    x = cb.ProductGrid(axes).points(index)
    reward, cost = _world(x)
    policy.observe(index=index, reward=reward, cost=cost)
    _play(policy, 3)
    policy.posterior()
    engine = beliefs_of(policy).groups[0].engine
    assert len(engine.rows._fronts) == 2
    assert engine.rows._bases[1] is not None
    assert engine.history.used > engine.rows._bases[-1].shape[-1]
    every = torch.arange(0, policy.actions.size, 7, device=DEVICE)
    mean, var = engine.history.at(policy.actions.at(every))
    seen_mean, seen_var = engine.at_numbers(every.unsqueeze(0))
    assert (seen_mean - mean).abs().max() <= 1e-9
    assert (seen_var - var).abs().max() <= 1e-9
