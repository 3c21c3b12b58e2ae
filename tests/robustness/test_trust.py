"""Files run no code: what they name is known, or passed as trusted, or refused."""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import pickle
import pkgutil
import sys
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from attacks import attacks, pickles
from gpytorch import kernels as gpk
from gpytorch.priors import GammaPrior, LogNormalPrior
from inside import (
    CLASSES,
    EXPERIMENTS,
    FUNCTIONS,
    Task,
    find,
    forge,
    main,
    settings_of_experiment,
    write_config,
)
from midway import F64, belief, line, policy_of, prepared, same_future
from worlds import Plain, Uniform, same, stop_after

import cbandit as cb

NEED_DATA = ("zhou-light", "zhou-finance")


def refused(call, mark, *words):
    with pytest.raises(cb.CheckpointError) as error:
        call()
    assert not mark.exists(), "it ran"
    for word in words:
        assert word in str(error.value)


def test_the_payloads_work(tmp_path):
    """Each pickle does what it should where nobody looks."""
    mark = tmp_path / "mark"
    for name, body in pickles(mark):
        if name.endswith("pickled") and not name.startswith("attr"):
            mark.unlink(missing_ok=True)
            pickle.loads(body)
            assert mark.exists(), name


def test_loading_runs_no_code(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "a.ckpt"
    for name, body in attacks(mark):
        forge(path, "policy", body)
        before = path.read_bytes()
        refused(lambda: cb.load(path), mark, str(path), "kept")
        refused(lambda: cb.load(path, trust=(Fraction,)), mark)
        assert path.read_bytes() == before, name


def test_going_on_runs_no_code(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "a.ckpt"
    for _, body in attacks(mark):
        forge(path, "simulation", body)
        policy = Uniform(Plain())
        refused(lambda p=policy: cb.simulate(p, Plain(), 9, path), mark, "kept")
        assert policy.t == 0


def test_a_run_runs_no_code(tmp_path):
    problem, mark = Plain(), tmp_path / "mark"
    run = cb.simulate(Uniform(problem), problem, 5)
    run.save(tmp_path / "run")
    for _, body in attacks(mark):
        forge(tmp_path / "run" / "run.ckpt", "run", body)
        refused(lambda: cb.Run.load(tmp_path / "run"), mark)


def test_resuming_a_strangers_folder_runs_no_code(tmp_path, capsys):
    mark, out = tmp_path / "mark", tmp_path / "theirs"
    settings = settings_of_experiment(
        "cbo-gpu-allocation", trials=2, horizon=6, policies=["SCGP-UCB"]
    )
    out.mkdir()
    write_config(settings, out)
    (out / "checkpoints").mkdir()
    for body in list(dict(pickles(mark)).values())[:4]:
        forge(out / "checkpoints" / "SCGP-UCB.ckpt", "simulation", body)
        with pytest.raises(SystemExit) as ended:
            main(["run", str(out / "config.toml"), "--out", str(out), "--resume"])
        assert ended.value.code == 2
        assert not mark.exists()
        assert "SCGP-UCB.ckpt cannot be read" in capsys.readouterr().err


# ------------------------------------------------------- what users wrote themselves


def width(t, gain):
    return 1.0 + 0.1 * t


def limit(t):
    return 0.4 + 0.01 * t


def steepness(z):
    return (0.5 * z.clamp_min(0)).exp()


def draws(streams, shape):
    return streams.uniform(*shape) - 0.5


def scaled(factor, t, gain):
    return factor * t**0.1


class Ours(gpk.RBFKernel):
    """A kernel of a user's own."""


class Plan:
    """Thresholds that are a method of some object."""

    def __init__(self, start):
        self.start = Fraction(start)

    def at(self, t):
        return float(self.start) + 0.01 * t


class Counted(NamedTuple):
    """A state that comes in after the first round."""

    rounds: int


class Greedy(cb.GPPolicy):
    """A policy of a user's own."""

    last = None

    def score(self, t, multiplier):
        self.last = Counted(t)
        return cb.scores.PrimalDual(multiplier)

    def move(self, t, multiplier, estimate, arrived):
        return (multiplier + estimate[:, 1:]).clamp_min(0)


def own_kernel():
    kernel = Ours().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=F64)
    return cb.GP(kernel, noise=1e-2)


def greedy():
    both = {"reward": belief(), "costs": [belief()] * 2}
    return Greedy(cb.Finite(line()), **both, explore=cb.UCB(1.0), start=0.0)


def widest(estimates):
    return estimates.std[:, 0]


def epochs(**more):
    more = {"explore": cb.UCB(1.0), "epoch": 3, **more}
    return cb.EpochPenalty(cb.Finite(line()), reward=belief(), costs=2, **more)


OWN = {
    "schedule": (lambda: policy_of(explore=cb.UCB(width)), (width,), "width"),
    "threshold": (lambda: policy_of(thresholds=limit), (limit,), "limit"),
    "psi": (lambda: epochs(psi=steepness), (steepness,), "steepness"),
    "inner": (lambda: epochs(inner=widest), (widest,), "widest"),
    "draw": (lambda: policy_of(explore=cb.Rand(1.0, draw=draws)), (draws,), "draws"),
    "kernel": (lambda: policy_of(reward=own_kernel()), (Ours,), "Ours"),
    "policy": (greedy, (Greedy, Counted), "Greedy"),
    "partial": (
        lambda: policy_of(explore=cb.UCB(functools.partial(scaled, 1.5))),
        (scaled,),
        "scaled",
    ),
    "method": (
        lambda: policy_of(thresholds=Plan("2/5").at),
        (Plan, Fraction),
        "Plan.at",
    ),
}


def played(policy, rounds=4):
    for _ in range(rounds):
        policy.tell(policy.ask(), reward=0.2, cost=[0.1, 0.3])
    return policy


@pytest.mark.parametrize("name", OWN)
def test_what_users_wrote_is_refused_unless_trusted(name, tmp_path):
    make, trust, word = OWN[name]
    policy, path = played(make()), tmp_path / "a.ckpt"
    policy.save(path)
    here = __name__
    with pytest.raises(cb.CheckpointError) as error:
        cb.load(path)
    assert f"it holds {here}:{word}" in str(error.value)
    assert f"trust=({word.partition(':')[2] or word}," in str(error.value)
    assert f"--trust {here}" in str(error.value)
    for given in (trust, (sys.modules[here], Fraction)):
        again, twin = cb.load(path, trust=given), played(make())
        assert torch.equal(again.ask().x, twin.ask().x)
        assert torch.equal(again.multiplier, twin.multiplier)


def test_an_object_stands_for_its_class(tmp_path):
    policy, path = policy_of(reward=own_kernel()), tmp_path / "a.ckpt"
    policy.save(path)
    assert same_future(policy, cb.load(path, trust=[Ours()]))


def test_what_cannot_be_trusted():
    for bad, words in [
        (width, "trust must be a tuple"),
        ("tests", "trust must be a tuple"),
        (("tests",), "the text 'tests'"),
        ((lambda: 0,), "cannot be found by this name"),
    ]:
        with pytest.raises(cb.CBanditError, match=words):
            cb.load("nowhere", trust=bad)


class Late(Uniform):
    """A policy whose state is of a class that its first round brings."""

    def ask(self, **question):
        self.counted = Counted(self.t)
        return super().ask(**question)


def test_a_policy_vouches_for_what_it_is_made_of(tmp_path):
    problem, path = Plain(), tmp_path / "a.ckpt"
    whole = cb.simulate(Uniform(problem), problem, 20)
    cb.simulate(Uniform(problem), problem, 20, path, callback=stop_after(7))
    assert same(whole, cb.simulate(Uniform(problem), problem, 20, path))
    late = tmp_path / "late.ckpt"
    cb.simulate(Late(problem), problem, 20, late, callback=stop_after(7))
    policy = Late(problem)
    with pytest.raises(cb.CheckpointError, match=r"Counted.*trust=\(Counted,\)"):
        cb.simulate(policy, problem, 20, late)
    assert policy.t == 0
    again = cb.simulate(policy, problem, 20, late, trust=(Counted,))
    assert same(whole, again)


def test_the_command_line_trusts_modules_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "theirs_alone.py").write_text("class Thing:\n    size = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import theirs_alone

    settings = settings_of_experiment(
        "cbo-gpu-allocation", trials=2, horizon=6, policies=["SCGP-UCB"]
    )
    task = Task(find("cbo-gpu-allocation"), settings, "SCGP-UCB", range(2))
    out = tmp_path / "out"
    (out / "checkpoints").mkdir(parents=True)
    write_config(settings, out)
    problem = task.problem()
    policy = task.make(problem)
    policy.thing = theirs_alone.Thing()
    path = out / "checkpoints" / "SCGP-UCB.ckpt"
    cb.simulate(policy, problem, 6, path, callback=stop_after(3), progress=False)
    command = ["run", str(out / "config.toml"), "--out", str(out), "--resume"]
    with pytest.raises(SystemExit):
        main(command)
    assert "--trust theirs_alone" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*command, "--trust", "no_such_module"])
    assert "no_such_module" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*command, "--trust", "theirs_alone"])
    assert ended.value.code == 0
    assert (out / "summary.json").exists()


# --------------------------------------------------------------- what needs no trust


@pytest.mark.parametrize("name", [n for n in EXPERIMENTS if n not in NEED_DATA])
def test_policies_of_experiments_need_no_trust(name, tmp_path):
    small = {"points": 20} if name == "bench-stagewise" else {}
    settings = settings_of_experiment(name, trials=2, horizon=9, parameters=small)
    for policy in settings.policies:
        task = Task(find(name), settings, policy, range(2))
        problem = task.problem()
        made = task.make(problem)
        cb.simulate(made, problem, 3, progress=False, callback=lambda played: False)
        made.save(tmp_path / policy)
        assert cb.load(tmp_path / policy).t == 3


@pytest.mark.parametrize("engine", ["joint", "factor", "product", "stream"])
@pytest.mark.parametrize("more", [{}, {"feedback": cb.Sliding(5)}], ids=["", "window"])
def test_engines_need_no_trust(engine, more, tmp_path):
    axis = torch.linspace(0, 1, 5, dtype=F64)
    actions = cb.ProductGrid([axis, axis])
    both = {"reward": belief(), "costs": [belief()] * 2, "step": 0.2, "cap": 3.0}
    policy = cb.CKB(actions, **both, explore=cb.UCB(1.0), engine=engine, **more)
    played(policy, 8).save(tmp_path / "a")
    assert same_future(policy, cb.load(tmp_path / "a"))


KERNELS = {
    "matern": lambda: gpk.MaternKernel(2.5, lengthscale_prior=LogNormalPrior(0.0, 1.0)),
    "scaled": lambda: gpk.ScaleKernel(
        gpk.RBFKernel(lengthscale_prior=GammaPrior(2.0, 3.0)),
        outputscale_prior=GammaPrior(2.0, 0.2),
    ),
    "sum": lambda: gpk.RBFKernel() + gpk.RQKernel(),
    "product": lambda: gpk.RBFKernel() * gpk.PeriodicKernel(),
    "rq": gpk.RQKernel,
    "polynomial": lambda: gpk.PolynomialKernel(2),
    "cosine": gpk.CosineKernel,
    "piecewise": gpk.PiecewisePolynomialKernel,
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_need_no_trust(name, tmp_path):
    gp = cb.GP(KERNELS[name]().double(), noise=0.1)
    policy = policy_of(reward=gp)
    policy.tell(policy.ask(), reward=0.3, cost=[0.1, 0.2])
    policy.save(tmp_path / "a")
    assert same_future(policy, cb.load(tmp_path / "a"))


def modules_in(home):
    """A module, and all below it where it is a package."""
    yield (top := importlib.import_module(home))
    for each in pkgutil.walk_packages(getattr(top, "__path__", ()), f"{home}."):
        with contextlib.suppress(ImportError):
            yield importlib.import_module(each.name)


def test_the_known_names_are_there():
    for home, names in CLASSES.items():
        held = [
            thing
            for module in modules_in(home)
            for thing in vars(module).values()
            if isinstance(thing, type) and thing.__module__ == module.__name__
        ]
        assert set(names.split()) <= {each.__qualname__ for each in held}, home
    for home, names in FUNCTIONS.items():
        for name in names.split():
            assert callable(operator.attrgetter(name)(importlib.import_module(home)))


def test_a_half_told_policy_goes_on(tmp_path):
    policy, _, _ = prepared(trials=3)
    policy.save(tmp_path / "a")
    assert same_future(policy, cb.load(tmp_path / "a"))


def test_spaces_need_no_trust(tmp_path):
    knobs = {"threads": cb.Int(1, 8, log=True), "codec": cb.Category("lz4", 2, True)}
    for more in ({}, {"memory": cb.Float(0.5, 8.0)}):
        space = cb.Space(**knobs, **more)
        policy = cb.GPUCB(space, reward=cb.GP.default(space), explore=cb.UCB(1.0))
        policy.tell(policy.ask(), reward=0.3)
        path = tmp_path / f"{space.dim}"
        policy.save(path)
        again = cb.load(path)
        assert again.ask().params == policy.ask().params
