"""Policies on a second device: its choices, and who waits for it.

Where there is no CUDA device it is a pretended one, which notices a tensor left on the
host and counts a round's waits (see ``pretend``). A real one says what it computes.
"""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import gpytorch
import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from inside import Swept, plain_torch, set_multiplier
from pretend import Account, Pretend, _again
from worlds import table

import cbandit as cb
from cbandit import multipliers

ROOT = Path(cb.__file__).parents[1]
REAL = torch.cuda.is_available()
pytestmark = pytest.mark.filterwarnings("ignore:.*plays the safe action")
of_the_pretended = pytest.mark.skipif(REAL, reason="a real one is here")
F64 = torch.float64
ROUNDS, STEADY = 9, 4
B = cb.baselines


def _kernel(scale=0.3):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = torch.tensor(scale, dtype=F64)
    return kernel


def _points(count, zero=False):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(count, 2, generator=generator, dtype=F64)
    if zero:
        points[0] = 0
    return cb.Finite(points)


AXIS = torch.linspace(0, 1, 5, dtype=F64)
GRID, POINTS, ARMS = cb.ProductGrid([AXIS, AXIS**1.1]), _points(20), _points(8)
FAN, BOX = _points(8, zero=True), cb.Box([0.0, 0.0], [1.0, 1.0])
STAR = cb.Star(torch.zeros(2), torch.eye(2))
TABLE = cb.Finite(covariance=_kernel()(POINTS.all).to_dense())

GP = cb.GP(_kernel(), noise=1e-2)
OTHER = cb.GP(_kernel(0.5), noise=0.02)
SCALED = cb.GP(_kernel(), noise=1e-2, standardize=True)
LEARNED = cb.GP(
    gpytorch.kernels.ScaleKernel(_kernel()).double(), noise=None, refit_every=6
)
ARM = cb.GP(noise=1e-2)
LINEAR, COUNTS = cb.Linear(subgaussian=0.1), cb.Counts(subgaussian=0.1)
CLASS = cb.FiniteClass([[0.0] * 8, [0.1 * i for i in range(8)]], radius=4.0)

UCB, TS, RAND = cb.UCB(1.5), cb.TS(1.5), cb.Rand(1.5)
THEORY = cb.UCB(cb.RKHS(norm=1.0, subgaussian=0.1))
SAFE = cb.Safe(index=0, reward=0.0, cost=-0.5)
AT_0, ORIGIN = cb.Safe(index=0), cb.Safe(x=[0.0, 0.0])


def rising(t):
    """A threshold that moves."""
    return 0.01 * t


def by_gain(t, gain):
    """A width that a user's own function makes of what is known on the device."""
    return 1 + 0.1 * gain


def _ckb(explore, **more):
    given = {"reward": GP, "costs": GP, "step": 0.2, "cap": 3.0}
    return {"explore": explore, **given, **more}


def _rpol(**more):
    return {"reward": GP, "costs": GP, "explore": UCB, **more}


def _safe(belief, safe=AT_0, **more):
    return {"reward": belief, "costs": belief, "safe": safe, "thresholds": 0.9, **more}


SEED = {"reward": GP, "costs": GP, "explore": UCB, "safe": [0]}
# name: policy, actions, arguments
CASES = {
    **{
        f"CKB {kind.name} {engine}": (
            cb.CKB,
            POINTS if engine == "stream" else GRID,
            _ckb(kind, engine=engine),
        )
        for kind in (UCB, TS, RAND)
        for engine in ("joint", "factor", "product", "stream")
    },
    "CKB TS stream single": (cb.CKB, POINTS, _ckb(TS, engine="stream")),
    "CKB UCB single": (cb.CKB, GRID, _ckb(UCB, engine="product")),
    "CKB arms": (cb.CKB, TABLE, _ckb(UCB, reward=ARM, costs=ARM)),
    "CKB scaled": (
        cb.CKB,
        GRID,
        _ckb(UCB, reward=SCALED, costs=SCALED, engine="product"),
    ),
    "CKB scaled joint": (cb.CKB, POINTS, _ckb(UCB, reward=SCALED, costs=SCALED)),
    "CKB learned": (cb.CKB, POINTS, _ckb(UCB, reward=LEARNED, costs=LEARNED)),
    "CKB theory": (
        cb.CKB,
        GRID,
        _ckb(THEORY, engine="product", clip=(1.0, 1.0), thresholds=rising),
    ),
    "CKB by gain": (cb.CKB, GRID, _ckb(cb.UCB(by_gain), engine="product")),
    "CKB queue": (cb.CKB, POINTS, _ckb(UCB, dual="queue", cap=None, slack=0.01)),
    "CKB anytime": (
        cb.CKB,
        POINTS,
        _ckb(UCB, anytime=True, forget=True, step=None, clip=(1.0, 1.0)),
    ),
    "CKB two costs": (cb.CKB, POINTS, _ckb(UCB, costs=[GP, OTHER], engine="factor")),
    "CKB hallucinate": (
        cb.CKB,
        POINTS,
        _ckb(UCB, pending="hallucinate", engine="factor"),
    ),
    "CKB box": (cb.CKB, BOX, _ckb(UCB)),
    "RPOL": (cb.RPOL, GRID, _rpol()),
    "RPOL estimate": (cb.RPOL, GRID, _rpol(penalty="estimate", engine="product")),
    "RPOL delayed": (cb.RPOL, GRID, _rpol(feedback=cb.Delayed(4, weight=0.1))),
    "RPOL delayed theory": (
        cb.RPOL,
        GRID,
        _rpol(feedback=cb.Delayed(4), explore=THEORY, horizon=100, engine="product"),
    ),
    "RPOL sliding": (cb.RPOL, POINTS, _rpol(feedback=cb.Sliding(4))),
    "RPOL sliding product": (
        cb.RPOL,
        GRID,
        _rpol(feedback=cb.Sliding(4), engine="product"),
    ),
    "SCGP-UCB": (
        cb.SCGPUCB,
        GRID,
        {"reward": GP, "costs": 1, "explore": UCB, "slater": 0.5, "clip": 1.0},
    ),
    "EpochPenalty": (
        cb.EpochPenalty,
        GRID,
        {"reward": GP, "costs": 1, "explore": UCB, "epoch": 7, "engine": "product"},
    ),
    "EpochPenalty TS": (
        cb.EpochPenalty,
        POINTS,
        {"reward": GP, "costs": 1, "explore": TS, "epoch": 4, "inner": "ts"},
    ),
    "GP-UCB": (cb.GPUCB, GRID, {"reward": GP, "explore": UCB, "engine": "product"}),
    "GP-TS": (cb.GPTS, GRID, {"reward": GP, "explore": TS}),
    "LC-LUCB": (cb.LCLUCB, FAN, _safe(LINEAR)),
    "LC-LUCB unknown": (cb.LCLUCB, ARMS, _safe(LINEAR, horizon=100)),
    "LC-LUCB star": (cb.LCLUCB, STAR, _safe(LINEAR, ORIGIN)),
    "OPLB": (cb.OPLB, FAN, _safe(LINEAR)),
    "OPB": (cb.OPB, ARMS, _safe(COUNTS, SAFE, horizon=100)),
    "OPB GP": (cb.OPB, GRID, _safe(GP, SAFE, horizon=100, engine="product")),
    "OPNLB": (cb.OPNLB, ARMS, _safe(CLASS, cb.Safe(index=0, reward=0.0, cost=0.0))),
    "CONFIG": (B.CONFIG, GRID, {"reward": GP, "costs": GP, "explore": UCB}),
    "SafeOpt": (B.SafeOpt, POINTS, SEED),
    "SafeOpt Lipschitz": (B.SafeOpt, POINTS, SEED | {"lipschitz": 2.0}),
    "StageOpt": (B.StageOpt, GRID, SEED | {"rounds": 4, "engine": "product"}),
    "SGP-UCB": (B.SGPUCB, GRID, SEED | {"rounds": 3}),
    "Safe-LTS": (B.SafeLTS, FAN, _safe(LINEAR)),
    "ROFUL": (B.ROFUL, STAR, _safe(LINEAR, ORIGIN)),
    "S-COLTS": (B.SCOLTS, STAR, _safe(LINEAR, ORIGIN)),
    "LoSBO": (B.LoSBO, POINTS, SEED | {"lipschitz": 2.0, "noise_bound": 0.1}),
    "BKB": (B.BKB, GRID, {"reward": GP, "explore": UCB}),
    "BKB with costs": (B.BKB, GRID, _ckb(UCB)),
    "ADMMBO": (
        B.ADMMBO,
        GRID,
        {"reward": GP, "costs": GP, "budgets": (2, 2), "cost_budgets": (2, 2)},
    ),
    "OCO": (
        B.BanditOCO,
        BOX,
        {"costs": 1, "radius": 0.1, "step": 0.1, "dual_step": 0.1},
    ),
    "CKB-Restart": (B.CKBRestart, GRID, _ckb(UCB, restart=6)),
}
# a round's looks at the device, where they are not just the one at its choice
LOOKS = {
    # whether what was told lies far outside, which is warned of
    "CKB scaled": 2,
    "CKB scaled joint": 2,
    "CKB box": None,  # its climbs end when what they find says so
    "CKB learned": None,  # and so do fits
    "CKB by gain": 3,  # what a user's function answers is checked where it is
    # an epoch: whether the multipliers have outgrown the dtype, and the outcomes that
    # are counted anew on the host
    "EpochPenalty": 1.5,
    "EpochPenalty TS": 1.5,
    "OPB GP": 2,  # its programme, and what is drawn from the answer
    "SafeOpt": 2,  # how many actions are safe is the size of what follows
    "SafeOpt Lipschitz": 2,
    "LoSBO": 2,
    "SGP-UCB": 2,
    "BKB": 4,  # its dictionary's size is drawn
    "BKB with costs": 7,  # and so are both of these
    "ADMMBO": None,
}


def _built(name, **on):
    kind, actions, arguments = CASES[name]
    return kind(actions, **arguments, **on)


def _world(x):
    reward = torch.sin(5 * x[..., 0]) + 0.2 * x.sum(-1)
    cost = torch.cos(4 * x[..., -1]) - 0.4 * x[..., 0] - 0.2
    return reward, cost


def _shown(policy):
    """What ``ask`` is given, where a policy sees its costs."""
    if not policy.sees_costs:
        return {}
    points = policy.actions.block(0, policy.actions.size).double().cpu()
    return {"observed_costs": _world(points)[1].expand(*policy.batch_shape, 1, -1)}


def _round(policy, generator, **question):
    choice = policy.ask(**_shown(policy), **question)
    x = choice.x.double().cpu()
    reward, cost = _world(x)
    noise = 0.1 * torch.randn(2, *reward.shape, generator=generator, dtype=F64)
    cost = (cost + noise[1]).unsqueeze(-1).expand(*cost.shape, policy.m)
    told = {"cost": cost} if policy.m and not policy.sees_costs else {}
    policy.tell(choice, reward=reward + noise[0], **told)
    return x


def _play(policy, account=None, rounds=ROUNDS):
    """Actions, and what the last rounds asked of the device, a round and kind."""
    account = account or Account()
    generator = torch.Generator().manual_seed(9)
    chosen = [_round(policy, generator) for _ in range(rounds - STEADY)]
    before = account.copy()
    chosen += [_round(policy, generator) for _ in range(STEADY)]
    return torch.stack(chosen), account.copy() - before


class Waits(ExitStack):
    """The lines that wait for a real device, by torch's own warnings, as an account.

    The check of a kernel at its first use may.
    """

    def __enter__(self):
        super().__enter__()
        self._said = self.enter_context(warnings.catch_warnings(record=True))
        warnings.filterwarnings("always", "called a synchronizing CUDA operation")
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        self.callback(torch.cuda.set_sync_debug_mode, "default")
        torch.cuda.set_sync_debug_mode("warn")
        return self

    def copy(self):
        lines = Counter()
        for said in self._said:
            file = Path(said.filename)
            if "synchronizing" in str(said.message) and file.name != "checked.py":
                name = file.relative_to(ROOT) if ROOT in file.parents else file
                lines["reads", f"{name}:{said.lineno}"] += 1
        return Account(lines)


@contextmanager
def pretended():
    """A device that is not there; what is in fact done on the host, is done plainly.

    The fused kernels have tests of their own. In their interpreter they would move
    every argument to the host and back, which is not what is counted here. On a real
    device they run, and torch says which lines wait for it.
    """
    if REAL:
        with Waits() as account:
            yield account
        return
    there = torch.serialization.safe_globals([_again])  # its tensors, in a file
    with mock.patch.object(Swept, "BACKEND", "plain"), there, Pretend() as account:
        yield account


@pytest.mark.parametrize("name", CASES)
def test_a_round_on_the_device(name):
    """The choices are those of the host, and the device is waited for once."""
    trials = None if len(name) % 2 else 3
    rounds = STEADY if name == "CKB box" else ROUNDS
    dtype = torch.float32 if "single" in name else F64
    on = {"dtype": dtype, "trials": trials}
    # to the bit, as among equal scores in float32 rounding chooses
    with plain_torch():
        here, _ = _play(_built(name, **on), rounds=rounds)
    with pretended() as account:
        there, asked = _play(_built(name, device="cuda", **on), account, rounds)
    assert (here - there).abs().max() <= (1e-12 if dtype == F64 else 1e-6)
    allowed = LOOKS.get(name, 1)
    if allowed is not None:
        assert asked.count("reads", "cbandit") <= allowed * STEADY, asked
        assert asked.count("waits", "cbandit") == 0, asked
    assert REAL or asked.count("launches") > 0


def _everything(policy, path):
    """All that can be asked of a policy besides rounds, as numbers on the host."""
    found, generator = [], torch.Generator().manual_seed(4)

    def note(*values):
        found.extend(v.double().cpu().flatten() for v in values if v is not None)

    note(_round(policy, generator, among=[0, 1, 2]))
    if not isinstance(policy, cb.EpochPenalty):
        policy.observe(index=[0, 3, 3], reward=[0.1, 0.2, 0.3], cost=[[0.1]] * 3)
    choice = policy.ask(**_shown(policy))
    came = torch.tensor([True, False, True])
    policy.tell(choice, reward=[0.1, torch.nan, 0.3], where=came)
    policy.tell(choice, cost=[[0.3], [0.2], [0.1]])
    policy.tell(choice, reward=[0.0, 0.2, 0.0], where=~came)
    note(policy.posterior().reward.mean, policy.posterior().reward.std)
    best = policy.recommend()
    note(best.index, best.x, best.value, best.probability, best.margin)
    policy.save(path)
    again = cb.load(path)
    note(_round(policy, generator), policy.multiplier)
    generator.manual_seed(5)
    note(_round(again, generator), again.multiplier)
    return torch.cat(found)


@pytest.mark.parametrize(
    "name",
    [
        "CKB UCB product",
        "CKB TS stream",
        "RPOL delayed",
        "EpochPenalty",
        "LC-LUCB",
        "OPB",
        "OPB GP",
        "OPNLB",
        "SafeOpt",
    ],
)
def test_what_else_a_policy_does(name, tmp_path):
    on = {"dtype": "float64", "trials": 3}
    here = _everything(_built(name, **on), tmp_path / "here")
    with pretended():
        there = _everything(_built(name, device="cuda", **on), tmp_path / "there")
    # a draw holds the root of what is left of a variance, which is all rounding
    assert (here - there).abs().nan_to_num(0).max() <= (1e-7 if REAL else 1e-10)
    assert torch.equal(here.isnan(), there.isnan())


@pytest.mark.unaided
def test_a_run_on_the_device():
    """The loop adds nothing to wait for: a table is asked for the number that is known
    on the host.
    """
    problem = table(trials=3)
    given = _ckb(UCB, dtype="float64", trials=3)
    here = cb.simulate(cb.CKB(problem.actions, **given), problem, 20, progress=False)
    with pretended() as account:
        policy = cb.CKB(problem.actions, device="cuda", **given)
        before = account.copy()
        there = cb.simulate(policy, problem, 20, progress=False)
        asked = account.copy() - before
    assert torch.equal(here.index, there.index)
    assert torch.allclose(here.regret, there.regret, rtol=0, atol=1e-9 if REAL else 0)
    at = "cbandit/_core/devices.py" if REAL else "cbandit/posterior/look.py"
    assert asked.count("reads", at) == 20
    # and what was kept on the device comes back once
    assert asked.count("reads") < 30
    assert asked.count("waits") == 0


def test_acquisition_functions_on_the_device():
    generator = torch.Generator().manual_seed(0)
    seen, x = torch.rand(2, 6, 2, generator=generator, dtype=F64)

    def values(device):
        models = [
            SingleTaskGP(
                seen.to(device), y.unsqueeze(-1).to(device), outcome_transform=None
            )
            for y in ((v - v.mean()) / v.std() for v in _world(seen))
        ]
        model, out = ModelListGP(*models).to(device), []
        weighted = {"beta": 2.0, "multiplier": [0.5]}
        for made in (
            cb.acquisition.PrimalDual(model, clip=(1.0, 1.0), **weighted),
            cb.acquisition.RectifiedPenalty(model, thresholds=0.1, **weighted),
            cb.acquisition.OptimisticFeasible(model, beta=2.0),
            # BoTorch draws a path on its model's device, by this one's generator
            *(
                []
                if REAL
                else [cb.acquisition.PathwisePrimalDual(model, seed=0, **weighted)]
            ),
        ):
            at = x.to(device).unsqueeze(1).requires_grad_(True)
            value = made(at)
            out += [value.detach(), *torch.autograd.grad(value.sum(), at)]
            made.set_X_pending(seen[:1].to(device))
            out.append(made(at).detach())
        return torch.cat([v.cpu().flatten() for v in out])

    here = values("cpu")
    with pretended():
        there = values("cuda")
    off = 1e-9 if REAL else 0.0
    assert torch.allclose(here, there, rtol=off, atol=off)


# -- the pretended device itself -------------------------------------------------------


@of_the_pretended
@pytest.mark.parametrize(
    "mixed",
    [
        lambda here, there: there + here,
        lambda here, there: there @ here.mT,
        lambda here, there: torch.cat([there, here]),
        lambda here, there: torch.where(there > 0, there, here),
        lambda here, there: there.clamp(here[0, 0], here[0, 1]),
        lambda here, there: there.addcmul(here[0, 0], here[0, 1]),
        lambda here, there: there.gather(-1, here.long()),
        lambda here, there: there.index_put((here[0].long(),), here[:2]),
        lambda here, there: here[there.long()],
        lambda here, there: here.add_(there[0, 0]),
        lambda here, there: torch.add(there, there, out=here),
        lambda here, there: torch.linalg.solve_triangular(there, here, upper=True),
    ],
)
def test_tensors_of_two_devices_are_refused(mixed):
    here = torch.eye(3, dtype=F64)
    with Pretend():
        there = here.to("cuda")
        with pytest.raises(RuntimeError, match="same device"):
            mixed(here, there)


@of_the_pretended
def test_numbers_of_the_host_are_allowed():
    with Pretend() as account:
        there = torch.ones(3, device="cuda")
        for out in (
            there + torch.tensor(1.0),
            there.masked_fill(there > 2, 0.0),
            torch.where(there > 0, there, 0.0),
            there.fill_(2.0),
            there.new_zeros(3),
            torch.stack([there, torch.zeros_like(there)])[:, 1:],
            torch.full((2,), 0.5, device="cuda"),
        ):
            assert out.is_cuda
            assert out.device == torch.device("cuda:0")
        assert not account.count("reads")
        assert not account.count("waits")
    assert not there.is_cuda


@of_the_pretended
@pytest.mark.parametrize(
    ("kind", "asks"),
    [
        ("reads", lambda there: there.sum().item()),
        ("reads", lambda there: bool((there > 0).all())),
        ("reads", lambda there: int(there.argmax())),
        ("reads", lambda there: there.tolist()),
        ("reads", lambda there: there.cpu()),
        ("reads", lambda there: there.to("cpu", non_blocking=True)),
        ("reads", lambda there: torch.zeros(3).copy_(there[0])),
        ("reads", lambda there: there[there > 0]),
        ("reads", lambda there: there.nonzero()),
        ("reads", lambda there: there.unique()),
        ("reads", lambda there: torch.equal(there, there)),
        ("reads", lambda there: torch.linalg.cholesky(there)),
        ("reads", lambda there: torch.linalg.eigh(there)),
        ("reads", lambda there: [1, 2, 3][there.argmin()]),
        ("waits", lambda there: torch.zeros(3).to(there)),
        ("waits", lambda there: torch.tensor([1.0], device=there.device)),
        ("waits", lambda there: there.new_tensor([1.0])),
        ("waits", lambda there: there[[0, 1]]),
        ("waits", lambda there: there[torch.tensor([0, 1])]),
        ("waits", lambda there: there[0].copy_(torch.zeros(3))),
        ("waits", lambda there: there.__setitem__((0, 0), 1.0)),
        ("waits", lambda there: torch.where(there > 0, there, torch.tensor(0.0))),
        ("sends", lambda there: torch.zeros(3).to("cuda", non_blocking=True)),
        ("sends", lambda there: there[0].copy_(torch.zeros(3), non_blocking=True)),
        ("launches", lambda there: there * 2),
    ],
)
def test_whoever_waits_is_counted(kind, asks):
    with Pretend() as account:
        there = torch.eye(3, device="cuda")
        before = account.copy()
        asks(there)
        asked = account - before
    counts = {k: asked.count(k) for k in ("reads", "waits", "sends")}
    assert counts == {k: int(k == kind) for k in counts}
    assert kind != "launches" or asked.count(kind) == 1
    if kind != "launches":
        assert asked.count(kind, "test_device.py") == 1


@of_the_pretended
def test_what_a_real_device_refuses_too():
    with Pretend():
        there = torch.ones(3, device="cuda")
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, device="cuda", generator=torch.Generator())


@of_the_pretended
def test_a_fault_in_a_round_is_seen(monkeypatch):
    """A tensor left behind, and a look too many, in the library itself."""
    on = {"dtype": "float64", "device": "cuda"}
    with pretended() as account:
        policy = _built("CKB UCB product", **on)
        _play(policy)
        monkeypatch.setattr(
            multipliers, "projected", lambda phi, g, *_, **_k: phi * (1 + 0 * float(g))
        )
        before = account.copy()
        _round(policy, torch.Generator())
        assert (account - before).count("reads", "cbandit/") == 1
        # the lambda's above, and the world's
        assert (account - before).count("reads", "test_device.py") == 2
        monkeypatch.undo()
        set_multiplier(policy, torch.zeros(1, 1, dtype=F64))
        _round(policy, torch.Generator())
        # the next round moves it
        with pytest.raises(RuntimeError, match="same device"):
            _round(policy, torch.Generator())


CONTEXTUAL = {
    "slice": (
        {"m": cb.Category("a", "b"), "n": cb.Int(0, 2), "at": cb.Context(cb.Int(0, 3))},
        {"at": 2},
    ),
    "points": (
        {"m": cb.Category("a", "b", "c"), "z": cb.Context(2)},
        {"z": [0.3, -0.4]},
    ),
    "rest": (
        {"m": cb.Category("a", "b"), "v": cb.Float(0, 1), "z": cb.Context(1)},
        {"z": [0.3]},
    ),
}
LONG = "points", "rest"


def _contexts(kind, path, **on):
    """All that a policy does in contexts, as numbers on the host."""
    parameters, context = CONTEXTUAL[kind]
    space, trials = cb.Space(**parameters), 2 if kind == "rest" else 3  # it takes long
    policy = cb.CKB(
        space, reward=SCALED, costs=SCALED, dual="projected", step=0.1, cap=9.0,
        trials=trials, explore=cb.UCB(1.0) if kind == "rest" else cb.TS(1.0), **on,
    )  # fmt: skip
    found = []

    def play(policy, rounds):
        for t in range(rounds):
            choice = policy.ask(context=context)
            found.append(choice.x)
            told = torch.arange(trials).double() + 0.3 * t
            policy.tell(choice, reward=told.sin(), cost=told.cos())
        return choice

    choice = play(policy, 2)
    policy.observe(params=[[p] for p in choice.params], reward=[1.0], cost=[[0.1]])
    policy.tell(policy.ask(context=context), failed=True)
    policy.add("m", "new")
    policy.retire("m", "a")
    late = play(policy, 1)
    found.append(policy.posterior(params=[[p] for p in late.params]).reward.mean)
    best = policy.recommend(context=context)
    found += [best.x, best.value, policy.multiplier]
    str(policy.explain(policy.ask(context=context)))
    policy.save(path)
    play(cb.load(path), 1)
    assert len(policy.history()) == 5 * trials
    return torch.cat([each.double().cpu().flatten() for each in found])


@pytest.mark.parametrize(
    "kind", ["slice", *(pytest.param(k, marks=pytest.mark.slow) for k in LONG)]
)
def test_contexts_on_the_device(kind, tmp_path):
    on = {"dtype": "float64"}
    here = _contexts(kind, tmp_path / "here", **on)
    with pretended():
        there = _contexts(kind, tmp_path / "there", device="cuda", **on)
    assert torch.allclose(here, there, rtol=0, atol=1e-9)


BATCHES = cb.Space(batch=cb.Int(1, 8), timeout=cb.Float(0.1, 0.5, step=0.1))
TOTAL = cb.Budget(6.0, rounds=30)


def _served(on, thresholds, **more):
    return cb.CKB(
        BATCHES,
        reward=cb.GP.default(BATCHES),
        costs={
            "fails": cb.GP.default(BATCHES, outcome="binary"),
            "restarts": cb.GP.default(BATCHES, outcome="count"),
        },
        thresholds=thresholds,
        **on,
        **more,
    )


def _linear(on):
    space = cb.Space(m=cb.Category("a", "b", "c"), z=cb.Context(2))
    return cb.CKB(
        space,
        reward=cb.GP.linear(space),
        costs={"fails": cb.GP.linear(space, outcome="binary")},
        thresholds={"fails": 0.3},
        **on,
    )


LEARNERS = {
    "limits": lambda on: _served(on, {"fails": "<= 0.2", "restarts": "<= 2"}),
    "share": lambda on: _served(on, {"fails": 0.2, "restarts": 2.0}, share=0.8),
    "budget": lambda on: _served(on, {"fails": TOTAL, "restarts": 2.0}),
    "linear": _linear,
    "failures": lambda on: cb.RPOL(
        BATCHES, reward=cb.GP.default(BATCHES), costs=cb.GP.default(BATCHES),
        explore=cb.TS(1.0), **on,
    ),
}  # fmt: skip


def _learned(kind, path, **on):
    """What a policy does whose beliefs learn from outcomes as they are."""
    policy, found = LEARNERS[kind](on), []
    context = {"context": {"z": [0.3, -0.5]}} if kind == "linear" else {}

    def told(choice, t):
        x = choice.x.double().cpu()
        # not on a lattice: what ties, a device's rounding would choose between
        cost = {"fails": (int(x[0] * 3) % 4, 4), "restarts": (t % 3, 0.5)}
        if kind == "linear":
            cost.pop("restarts")
        if kind == "budget":  # counts one try a round
            cost |= {"fails": t % 4 == 1}
        if kind == "failures":
            cost = 0.3 * (x.sum() - 2.2).sin()
        if kind == "failures" and t % 4 == 3:
            policy.tell(choice, failed=True)
        else:
            policy.tell(choice, reward=(5 * x.sum()).sin(), cost=cost)
        found.append(x)

    for t in range(4):
        told(policy.ask(**context), t)
    several = policy.ask(n=2, **context)
    for choice in several:
        told(choice, 4)
    told(policy.ask(confidence=0.8, **context), 5)
    for sure in ({}, {"confidence": 0.7}):
        best = policy.recommend(**sure, **context)
        found += [best.x, best.value, best.probability]
    str(policy.explain(policy.ask(**context)))
    policy.save(path)
    again = cb.load(path)
    found += [again.multiplier, again.ask(**context).x]
    return torch.cat([each.double().cpu().flatten() for each in found])


@pytest.mark.parametrize("kind", LEARNERS)
def test_outcomes_on_the_device(kind, tmp_path):
    on = {"dtype": "float64"}
    here = _learned(kind, tmp_path / "here", **on)
    with pretended():
        there = _learned(kind, tmp_path / "there", device="cuda", **on)
    assert torch.allclose(here, there, rtol=0, atol=1e-6)
