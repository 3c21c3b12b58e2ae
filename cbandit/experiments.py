"""The papers' experiments: their problems, policies, sizes; and carrying one out.

A plain table of functions. What a paper leaves open is settled in the problem's own
docstring and in the policies' factories below.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import signal
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbandit.errors import CBanditError, LostRankError, MissingExtraError
from cbandit.recipes import (
    CBO,
    GUO_CHANGING,
    GUO_CLASSICAL,
    GUO_DELAYED,
    PROPOSITION,
    SHI,
    TRADE_OFF,
    common,
)

if TYPE_CHECKING:
    from cbandit.loop import Policy
    from cbandit.plots import Curves, Level
    from cbandit.run import Curve, Run

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Parameter",
    "Settings",
    "carry_out",
    "draw_together",
    "find",
    "read_curves",
    "settings_from_toml",
]

POINTS = 1000  # rounds kept of each curve in rounds.parquet: well below a megabyte each


@dataclass(frozen=True)
class Parameter:
    """A parameter of an experiment: its default first, all of its values if few."""

    default: Any
    choices: tuple[Any, ...] = ()
    meaning: str = ""

    def parse(self, name: str, value: Any) -> Any:
        """``value``, perhaps as typed on a command line, or an error that helps."""
        kind = type(self.default)
        try:
            out = kind(value)
        except (TypeError, ValueError):
            raise CBanditError(
                f"parameter {name} must be a {kind.__name__}; got {value!r}"
            ) from None
        if self.choices and out not in self.choices:
            known = ", ".join(map(str, self.choices))
            raise CBanditError(f"parameter {name} must be one of {known}; got {out!r}")
        return out


@dataclass(frozen=True)
class Task:
    """One policy of one experiment on some of its trials: what a worker gets."""

    settings: Settings
    policy: str
    trials: range

    @property
    def label(self) -> str:
        """A name for its files."""
        if len(self.trials) == self.settings.trials:
            return self.policy
        return f"{self.policy}-{self.trials[0]}-{self.trials[-1]}"


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Args:
        name: as the command line knows it.
        about: one line.
        horizon, trials: of the paper.
        parameters: by name.
        problem: ``(parameters, trials, seed) -> problem``.
        policies: by the papers' names: ``(problem, task) -> policy``.
        spread, width: the band in its figures, see :func:`cbandit.plots.overview`.
        averaged: metrics whose time averages are drawn.
        evolution: the regret of its third figure, beside each round's expected cost and
            reward with what is optimal; ``None``: no such figure.
        boxes: rounds between boxplots of these time averages; by policy, where one has
            its own. ``None``: no boxplots.
        early: a figure of the time averages up to this round, if given.
        traded: metrics to draw against each other, a point a policy, if given.
        changes: the first rounds of the world's later phases; the account of each phase
            is kept apart.
    """

    name: str
    about: str
    horizon: int
    trials: int
    problem: Callable[[Mapping[str, Any], range, int], Any]
    policies: Mapping[str, Callable[[Any, Task], Policy]]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    spread: str = "sem"
    width: float = 1.0
    averaged: tuple[str, ...] = ("regret", "soft_violation", "hard_violation")
    evolution: str | None = None
    boxes: Mapping[str, int] | None = None
    early: int | None = None
    traded: tuple[str, str] | None = None
    changes: tuple[int, ...] = ()


# --------------------------------------------------------------- Zhou and Ji's policies


def _widths(known: Any, given: str) -> tuple[Any, Any]:
    import cbandit as cb

    if given == "theory":
        beta = cb.RKHS(norm=known.bound, subgaussian=known.subgaussian, delta=0.1)
        cost_beta = cb.RKHS(
            norm=known.cost_bound, subgaussian=known.cost_subgaussian, delta=0.1
        )
        return beta, cost_beta
    try:
        width = float(given)
    except ValueError:
        raise CBanditError(
            f"parameter beta must be 'theory' or a number; got {given!r}"
        ) from None
    return width, width


_BETA = Parameter("theory", (), "exploration width: the theory's, or a number")


def _ckb(exploration: str) -> Callable[[Any, Task], Policy]:
    """CKB with RKHS widths at ``B = max|f|``, ``G = max|g|``; ``rho = 4B/delta``."""

    def make(problem: Any, task: Task) -> Policy:
        import cbandit as cb

        known = problem.known
        beta, cost_beta = _widths(known, task.settings.parameters["beta"])
        policy: Policy = cb.CKB(
            problem.actions,
            reward=cb.GP(known.kernel, noise=known.noise),
            costs=cb.GP(known.kernel, noise=known.cost_noise),
            explore=getattr(cb, exploration)(beta, cost_beta=cost_beta),
            clip=(known.bound, known.cost_bound),
            slater=known.slater,
            cap=4 * known.bound / known.slater,
            horizon=task.settings.horizon,
            **common(task),
        )
        return policy

    return make


SAFE_ROUNDS = 100  # StageOpt's expansion and SGP-UCB's exploration: ours


def _safe(kind: str) -> Callable[[Any, Task], Policy]:
    """StageOpt and SGP-UCB from one known feasible action, at CKB's widths."""

    def make(problem: Any, task: Task) -> Policy:
        import cbandit as cb

        known = problem.known
        beta, cost_beta = _widths(known, task.settings.parameters["beta"])
        own = {"lipschitz": known.cost_lipschitz} if kind == "StageOpt" else {}
        policy: Policy = getattr(cb.baselines, kind)(
            problem.actions,
            reward=cb.GP(known.kernel, noise=known.noise),
            costs=cb.GP(known.kernel, noise=known.cost_noise),
            explore=cb.UCB(beta, cost_beta=cost_beta),
            safe=known.safe,
            rounds=SAFE_ROUNDS,
            horizon=task.settings.horizon,
            **own,
            **common(task),
        )
        return policy

    return make


_ZHOU: dict[str, Callable[[Any, Task], Policy]] = {
    "CKB-UCB": _ckb("UCB"),
    "CKB-TS": _ckb("TS"),
    "CKB-Rand": _ckb("Rand"),
    "StageOpt": _safe("StageOpt"),
    "SGP-UCB": _safe("SGPUCB"),
}


def _zhou_synthetic(parameters: Mapping[str, Any], trials: range, seed: int) -> Any:
    from cbandit.problems import zhou_synthetic

    return zhou_synthetic(parameters["cost"], trials, seed)


def _zhou_light(parameters: Mapping[str, Any], trials: range, seed: int) -> Any:
    from cbandit.problems import zhou_light

    return zhou_light(trials, seed)


def _zhou_finance(parameters: Mapping[str, Any], trials: range, seed: int) -> Any:
    from cbandit.problems import zhou_finance

    return zhou_finance(trials, seed)


# ------------------------------------------- Pacchiano, Ghavamzadeh and Bartlett's


def _linear(name: str) -> Callable[[Any, Task], Policy]:
    """LC-LUCB or Safe-LTS with ``S = L = lam = 1``, ``delta = 0.1``, the true ``R``."""

    def make(problem: Any, task: Task) -> Policy:
        import cbandit as cb

        r = math.sqrt(task.settings.parameters.get("noise", 1.0))
        belief = cb.Linear(subgaussian=r, ridge=1.0, norm=1.0, length=1.0)
        build = cb.LCLUCB if name == "LC-LUCB" else cb.baselines.SafeLTS
        policy: Policy = build(
            problem.actions,
            reward=belief,
            costs=[belief] * problem.m,
            safe=cb.Safe(x=problem.actions.center),
            thresholds=problem.thresholds,
            delta=0.1,
            **common(task),
        )
        return policy

    return make


_LINEAR = {name: _linear(name) for name in ("LC-LUCB", "Safe-LTS")}


def _opb(problem: Any, task: Task) -> Policy:
    """OPB with ``R = 1``, ``delta = 0.1``; the safe arm, the first, is known."""
    import cbandit as cb

    belief = cb.Counts(subgaussian=1.0)
    policy: Policy = cb.OPB(
        problem.actions,
        reward=belief,
        costs=[belief] * problem.m,
        safe=cb.Safe(index=0, reward=problem.f[..., 0], cost=problem.g[..., 0]),
        thresholds=problem.thresholds,
        delta=0.1,
        horizon=task.settings.horizon,
        **common(task),
    )
    return policy


def _opb_gp(problem: Any, task: Task) -> Policy:
    """OPB's GP form under the functions' own prior; the safe corner is known."""
    import cbandit as cb
    from cbandit.problems.zhou import _rbf

    beta = task.settings.parameters["beta"]
    belief = cb.GP(_rbf(0.5), noise=task.settings.parameters["noise"])
    policy: Policy = cb.OPB(
        problem.actions,
        reward=belief,
        costs=[belief] * problem.m,
        safe=cb.Safe(index=0, reward=problem.f[..., 0], cost=problem.g[..., 0]),
        explore=cb.UCB(beta) if beta else None,
        thresholds=problem.thresholds,
        largest=problem.f.amax(-1),
        delta=0.1,
        horizon=task.settings.horizon,
        **common(task),
    )
    return policy


def _pacchiano(
    name: str, seeded: bool = True
) -> Callable[[Mapping[str, Any], range, int], Any]:
    def make(parameters: Mapping[str, Any], trials: range, seed: int) -> Any:
        from cbandit import problems

        build = getattr(problems, name)
        more = {"seed": seed} if seeded else {}
        return build(**parameters, trials=trials, **more)

    return make


def _stagewise(parameters: Mapping[str, Any], trials: range, seed: int) -> Any:
    from cbandit.problems import bench_stagewise

    world = {name: value for name, value in parameters.items() if name != "beta"}
    return bench_stagewise(**world, trials=trials, seed=seed)


def _tau(default: float, *others: float) -> Parameter:
    return Parameter(default, (default, *others), "the cost's threshold")


_PACCHIANO = (
    Experiment(
        name="pacchiano-cyclic",
        about="cyclic shifts of a vector, linear (LC-LUCB, Figures 1, 5 to 7)",
        horizon=10_000,
        trials=10,
        problem=_pacchiano("pacchiano_cyclic", seeded=False),
        policies=_LINEAR,
        parameters={
            "d": Parameter(10, (10, 5, 3), "the dimension"),
            "tau": _tau(0.5, 0.2, 0.8),
            "noise": Parameter(1.0, (), "its variance, R squared"),
        },
        spread="std",
        evolution="regret",
    ),
    Experiment(
        name="pacchiano-sphere",
        about="rays to 100 points of the sphere, linear (LC-LUCB, Figure 2)",
        horizon=10_000,
        trials=10,
        problem=_pacchiano("pacchiano_sphere"),
        policies=_LINEAR,
        parameters={"d": Parameter(5, (5, 10), "the dimension")},
        spread="std",
        evolution="regret",
    ),
    Experiment(
        name="pacchiano-opb-random",
        about="arms with random Bernoulli means (OPB, Figure 3)",
        horizon=10_000,
        trials=10,
        problem=_pacchiano("pacchiano_opb_random"),
        policies={"OPB": _opb},
        parameters={
            "arms": Parameter(10, (10, 5, 20), "how many"),
            "tau": _tau(0.5, 0.2, 0.8),
        },
        spread="std",
        width=0.5,
        evolution="policy_regret",
    ),
    Experiment(
        name="pacchiano-opb-four",
        about="four arms (OPB, Figures 4 and 8)",
        horizon=10_000,
        trials=10,
        problem=_pacchiano("pacchiano_opb_four", seeded=False),
        policies={"OPB": _opb},
        parameters={"tau": _tau(0.8, 0.6, 0.5, 0.2)},
        spread="std",
        width=0.5,
        evolution="policy_regret",
    ),
    Experiment(
        name="pacchiano-hard",
        about="the lower bound's two instances (OPB, Appendix E)",
        horizon=10_000,
        trials=10,
        problem=_pacchiano("pacchiano_hard", seeded=False),
        policies={"OPB": _opb},
        parameters={
            "arms": Parameter(4, (), "how many"),
            "twin": Parameter(0, (0, 1), "the instance in which arm 3 is affordable"),
            "r0": Parameter(0.3, (), "the safe arm's reward"),
            "gap": Parameter(0.2, (), "threshold less the safe arm's cost"),
            "tau": Parameter(0.5, (), "the cost's threshold"),
        },
        spread="std",
        evolution="policy_regret",
    ),
    Experiment(
        name="bench-stagewise",
        about="a million correlated actions, three costs (OPB, GP form; ours)",
        horizon=300,
        trials=1,
        problem=_stagewise,
        policies={"OPB": _opb_gp},
        parameters={
            "points": Parameter(1000, (), "on each of two axes"),
            "costs": Parameter(3, (), "how many"),
            "noise": Parameter(0.01, (), "its variance"),
            "gap": Parameter(0.5, (), "thresholds less the safe corner's costs"),
            "beta": Parameter(2.0, (), "the width; 0 for the theory's"),
        },
        evolution="policy_regret",
    ),
)


def _of(name: str) -> Callable[[Mapping[str, Any], range, int], Any]:
    """The problem of that name, given the experiment's parameters."""

    def problem(parameters: Mapping[str, Any], trials: range, seed: int) -> Any:
        from cbandit import problems

        return getattr(problems, name)(**parameters, trials=trials, seed=seed)

    return problem


def _shi(name: str) -> Callable[[Mapping[str, Any], range, int], Any]:
    def problem(parameters: Mapping[str, Any], trials: range, seed: int) -> Any:
        return _of(name)({"constraint": parameters["constraint"]}, trials, seed)

    return problem


_RATE = {
    "constraint": Parameter(
        "noiseless",
        ("noiseless", "noisy"),
        "how the constraint is observed: Algorithm 2, or 3",
    ),
    "rate": Parameter(0.5, (), "the multipliers' step mu, noisy constraint"),
}
_EPOCHS = {**_RATE, "epoch": Parameter(20, (), "rounds an epoch, S")}

_ALL = (
    Experiment(
        name="zhou-synthetic",
        about="random functions on a line of 100 points (CKB, Figure 1)",
        horizon=10_000,
        trials=50,
        problem=_zhou_synthetic,
        policies=_ZHOU,
        parameters={
            "cost": Parameter(
                "half",
                ("half", "quarter", "independent"),
                "g = -f + B/2, g = -f + B/4, or a random function of its own",
            ),
            "beta": _BETA,
        },
    ),
    Experiment(
        name="zhou-light",
        about="41 light sensors; needs data files",
        horizon=1000,
        trials=50,
        problem=_zhou_light,
        parameters={"beta": _BETA},
        policies=_ZHOU,
    ),
    Experiment(
        name="zhou-finance",
        about="29 stocks, heavy-tailed noise; needs data files",
        horizon=10_000,
        trials=50,
        problem=_zhou_finance,
        parameters={"beta": _BETA},
        policies=_ZHOU,
    ),
    *_PACCHIANO,
    Experiment(
        name="shi-small-feasible",
        about="1.7 % of a square is feasible (epoch penalties, Figures 2 to 5)",
        horizon=350,
        trials=100,
        problem=_shi("shi_small_feasible"),
        policies=SHI,
        parameters=_EPOCHS,
        averaged=("regret", "soft_violation"),
        boxes={"each": 20, "ADMMBO": 5},
        early=100,
    ),
    Experiment(
        name="shi-trade-off",
        about="the same with five epoch lengths (epoch penalties, Figure 1)",
        horizon=350,
        trials=20,
        problem=_shi("shi_small_feasible"),
        policies=TRADE_OFF,
        parameters=_RATE,
        averaged=("regret", "soft_violation"),
        traded=("regret", "soft_violation"),
    ),
    Experiment(
        name="shi-data-rate",
        about="utilities of four rates under one budget (epoch penalties, E.2)",
        horizon=350,
        trials=100,
        problem=_shi("shi_data_rate"),
        policies=SHI,
        parameters=_EPOCHS,
        averaged=("reward", "soft_violation"),
        boxes={"each": 20, "ADMMBO": 5},
        early=100,
    ),
    Experiment(
        name="shi-proposition-1",
        about="a fixed multiplier fails where the epochs do not",
        horizon=350,
        trials=100,
        problem=_shi("shi_proposition_1"),
        policies=PROPOSITION,
        parameters=_EPOCHS,
        averaged=("regret", "soft_violation"),
    ),
    Experiment(
        name="guo-classical",
        about="a strict feasible set (RPOL, Figure 1)",
        horizon=500,
        trials=50,
        problem=_of("guo_classical"),
        policies=GUO_CLASSICAL,
        averaged=("regret", "hard_violation"),
    ),
    Experiment(
        name="guo-delayed",
        about="reward and cost come about 15 rounds late (RPOL, Figure 2)",
        horizon=500,
        trials=50,
        problem=_of("guo_delayed"),
        policies=GUO_DELAYED,
        averaged=("regret", "hard_violation"),
    ),
    Experiment(
        name="guo-nonstationary",
        about="the world changes after rounds 100 and 300 (RPOL, Figure 3)",
        horizon=500,
        trials=50,
        problem=_of("guo_nonstationary"),
        policies=GUO_CHANGING,
        averaged=("reward", "hard_violation"),
        changes=(101, 301),
    ),
    Experiment(
        name="cbo-gpu-allocation",
        about="random arrivals seen before GPUs are allocated (SCGP-UCB)",
        horizon=2000,
        trials=50,
        problem=_of("cbo_gpu_allocation"),
        policies=CBO,
    ),
)
EXPERIMENTS: Mapping[str, Experiment] = {each.name: each for each in _ALL}


def find(name: str) -> Experiment:
    """The experiment of that name, or an error that lists them all."""
    if name not in EXPERIMENTS:
        raise CBanditError(
            f"no experiment is named {name!r}; known are {', '.join(EXPERIMENTS)}"
        )
    return EXPERIMENTS[name]


# ------------------------------------------------------------------------- the settings


@dataclass(frozen=True)
class Settings:
    """All that is needed to run an experiment again."""

    experiment: str
    parameters: dict[str, Any]
    policies: tuple[str, ...]
    horizon: int
    trials: int
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float64"

    @classmethod
    def of(cls, experiment: str, **given: Any) -> Settings:
        """The experiment's defaults, with what is given in their stead, checked."""
        known = find(experiment)
        parameters = {name: each.default for name, each in known.parameters.items()}
        for name, value in (given.pop("parameters", None) or {}).items():
            if name not in parameters:
                has = ", ".join(parameters) or "none"
                raise CBanditError(
                    f"{experiment} has no parameter {name!r}; it has: {has}"
                )
            parameters[name] = known.parameters[name].parse(name, value)
        policies = tuple(given.pop("policies", None) or known.policies)
        for name in policies:
            if name not in known.policies:
                raise CBanditError(
                    f"{experiment} has no policy {name!r}; it has: "
                    f"{', '.join(known.policies)}"
                )
        if len(set(policies)) != len(policies):
            raise CBanditError(f"policies must differ; got {', '.join(policies)}")
        numbers = {"horizon": known.horizon, "trials": known.trials, "seed": 0}
        for name, default in numbers.items():
            value = given.pop(name, None)
            value = default if value is None else value
            least = 0 if name == "seed" else 1
            if type(value) is not int or value < least:
                raise CBanditError(
                    f"{name} must be a whole number, at least {least}; got {value!r}"
                )
            numbers[name] = value
        device, dtype = given.pop("device", None), given.pop("dtype", None)
        if given:
            raise CBanditError(f"unknown settings: {', '.join(given)}")
        if dtype not in (None, "float64", "float32"):
            raise CBanditError(f"dtype must be float64 or float32; got {dtype!r}")
        return cls(
            experiment,
            parameters,
            policies,
            **numbers,
            device=_checked_device(device or "cpu"),
            dtype=dtype or "float64",
        )

    def toml(self) -> str:
        """As a settings file."""
        lines = ["# to run it again: cbandit run THIS_FILE"]
        values = asdict(self)
        parameters = values.pop("parameters")
        lines += [f"{name} = {_toml(value)}" for name, value in values.items()]
        if parameters:
            lines += ["", "[parameters]"]
            lines += [f"{name} = {_toml(value)}" for name, value in parameters.items()]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # JSON's strings and numbers are TOML's
    return json.dumps(value, ensure_ascii=False)


def settings_from_toml(path: str | os.PathLike[str], **over: Any) -> Settings:
    """The settings in a file; what is in ``over`` and not ``None`` wins."""
    try:
        found = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise CBanditError(
            f"settings file {path} cannot be read: {error.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CBanditError(f"settings file {path} is not TOML: {error}") from None
    if not isinstance(found.get("experiment"), str):
        raise CBanditError(f"settings file {path} must name its experiment")
    parameters = {**found.pop("parameters", {}), **(over.pop("parameters", None) or {})}
    found.update({name: value for name, value in over.items() if value is not None})
    return Settings.of(found.pop("experiment"), parameters=parameters, **found)


def _checked_device(device: str) -> str:
    import torch

    try:
        kind = torch.device(device)
    except RuntimeError:
        raise CBanditError(f"device must be cpu or cuda; got {device!r}") from None
    if kind.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (kind.index or 0) >= count:
            raise CBanditError(
                f"device {device} is not here: torch {torch.__version__} sees {count} "
                "CUDA devices"
            )
    elif kind.type != "cpu":
        raise CBanditError(f"device must be cpu or cuda; got {device!r}")
    return device


# ---------------------------------------------------------------------- carrying it out


def _play(task: Task, folder: str, progress: bool) -> str:
    """Runs a task, from its checkpoint if there is one; returns where its run lies."""
    from cbandit.baselines.admmbo import ADMMBO
    from cbandit.distributed import current
    from cbandit.loop import simulate
    from cbandit.run import Run

    settings, ranks = task.settings, current()
    done = Path(folder) / "runs" / task.label
    if ranks.first(lambda: done.exists() and Run.load(done).rounds == settings.horizon):
        return str(done)
    experiment = find(settings.experiment)
    problem = experiment.problem(settings.parameters, task.trials, settings.seed)
    policy = experiment.policies[task.policy](problem, task)
    checkpoint = Path(folder) / "checkpoints" / f"{task.label}.ckpt"
    ranks.first(lambda: checkpoint.parent.mkdir(exist_ok=True))
    run = simulate(policy, problem, settings.horizon, checkpoint, progress)
    if isinstance(policy, ADMMBO):
        run = replace(run, stopped=policy.stopped.cpu())

    def keep() -> None:
        replace(run, policy=task.policy).save(done)
        checkpoint.unlink()

    ranks.first(keep)
    return str(done)


Answer = str | CBanditError
"""Where the run of a task lies, or what went wrong."""


def _tasks(settings: Settings, workers: int) -> dict[str, list[Task]]:
    """Each policy's tasks; its trials are shared out among the workers."""
    parts = min(workers, settings.trials)
    edges = [settings.trials * k // parts for k in range(parts + 1)]
    splits = [range(a, b) for a, b in itertools.pairwise(edges)]
    return {
        name: [Task(settings, name, part) for part in splits]
        for name in settings.policies
    }


def carry_out(
    settings: Settings,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    workers: int | str = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs an experiment and writes its results; returns what is in ``summary.json``.

    ``folder`` gets ``config.toml``, ``summary.json``, PNG figures and
    ``rounds.parquet``: mean, standard deviation and standard error over the trials of
    every metric's curve, on about 1000 rounds, half of them evenly and half of them
    logarithmically spaced. Until all of it is written the folder also holds finished
    runs and checkpoints, from which ``resume`` goes on. Results of the same settings
    are computed and written again; those of others are an error.

    ``workers``: how many processes share the trials, or ``"ray"``: as many as Ray's
    cluster has CPUs (``folder`` must be the same on all of its machines). Each trial's
    draws are its own, so that results do not depend on it. Where ranks share an action
    set, all of them come here, and the first one alone reads and writes.
    """
    from cbandit.distributed import current

    out, ranks = Path(folder), current()
    if ranks.size > 1 and workers != 1:
        raise CBanditError(
            f"workers={workers} cannot go with {ranks.size} ranks that share the work "
            "already: leave it out"
        )
    finished = ranks.first(lambda: _prepare(settings, out, resume))
    if finished is not None:
        return finished
    answers = _played(settings, out, workers, progress)
    return ranks.first(lambda: _conclude(settings, out, answers))


def _conclude(
    settings: Settings, out: Path, played: Mapping[str, list[Answer]]
) -> dict[str, Any]:
    """Writes the results of all runs that are there; the summary."""
    from cbandit.run import Run, join

    runs: dict[str, Run] = {}
    status: dict[str, str] = {}
    for name, answers in played.items():
        parts = [each for each in answers if not isinstance(each, CBanditError)]
        errors = [each for each in answers if isinstance(each, CBanditError)]
        if errors:
            status[name] = f"failed: {errors[0]}"
            continue
        loaded = [Run.load(path) for path in parts]
        runs[name] = loaded[0] if len(loaded) == 1 else join(loaded)
        status[name] = "complete"
    if not runs:
        raise CBanditError("; ".join(f"{k} {v}" for k, v in status.items()))
    summary = _summary(settings, runs, status)
    _write_results(settings, out, runs, summary)
    if all(value == "complete" for value in status.values()):
        shutil.rmtree(out / "runs", ignore_errors=True)
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return summary


def _prepare(settings: Settings, out: Path, resume: bool) -> dict[str, Any] | None:
    """Makes the folder ready; the summary if everything is there already."""
    from cbandit.checkpoint import atomic

    config, summary = out / "config.toml", out / "summary.json"
    under_way = any((out / name).exists() for name in ("runs", "checkpoints"))
    if resume and config.exists():
        if settings_from_toml(config) != settings:
            raise CBanditError(
                f"{out} holds an experiment with other settings, see {config}; give "
                "those, or another folder"
            )
        if summary.exists() and not under_way:
            found: dict[str, Any] = json.loads(summary.read_text())
            return found
    elif under_way:
        raise CBanditError(
            f"{out} holds an unfinished experiment: go on with --resume, or choose "
            "another folder"
        )
    elif summary.exists() and not _same_settings(config, settings):
        raise CBanditError(
            f"{out} holds the results of other settings, see {config}; they are kept: "
            "choose another folder with --out, or remove this one"
        )
    out.mkdir(parents=True, exist_ok=True)
    for old in (summary, out / "rounds.parquet", out / "boxes.parquet"):
        old.unlink(missing_ok=True)
    with atomic(config) as file:
        file.write(settings.toml().encode())
    return None


def _same_settings(config: Path, settings: Settings) -> bool:
    try:
        return settings_from_toml(config) == settings
    except CBanditError:
        return False


def _played(
    settings: Settings, out: Path, workers: int | str, progress: bool
) -> dict[str, list[Answer]]:
    """By policy, where the runs of its tasks lie, or what went wrong."""
    if workers == 1:
        alone = _tasks(settings, 1)
        return {
            name: [_answer(task, str(out), progress)] for name, (task,) in alone.items()
        }
    if workers == "ray":
        tasks, answers = _by_ray(settings, out, progress)
    else:
        tasks, answers = _by_processes(settings, out, int(workers), progress)
    return {name: [answers[t.label] for t in each] for name, each in tasks.items()}


def _answer(task: Task, folder: str, progress: bool = False) -> Answer:
    try:
        return _play(task, folder, progress)
    except LostRankError:
        raise
    except CBanditError as error:
        return error


def _answer_in_worker(task: Task, folder: str, threads: int) -> Answer:
    """As :func:`_answer`, in a process that hears of Ctrl-C in here only."""
    import torch

    torch.set_num_threads(threads)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _answer(task, folder)
    finally:
        signal.signal(signal.SIGINT, before)


def _by_processes(
    settings: Settings, out: Path, workers: int, progress: bool
) -> tuple[dict[str, list[Task]], dict[str, Answer]]:
    """Every policy's tasks, and answers by label, from processes of this machine."""
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from multiprocessing import active_children, get_context

    tasks = _tasks(settings, workers)
    threads = max(1, (os.cpu_count() or 1) // workers)
    answers: dict[str, Answer] = {}
    waiting = [task for each in tasks.values() for task in each]
    running: dict[Future[Answer], Task] = {}
    # fresh processes: a forked torch may hang in its thread pools
    with (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        _bar(len(waiting), progress) as bar,
    ):
        try:
            while waiting or running:
                # none in the pool's own queue: after Ctrl-C nothing new is begun
                with _deaf():
                    while waiting and len(running) < workers:
                        task = waiting.pop(0)
                        given = (task, str(out), threads)
                        running[pool.submit(_answer_in_worker, *given)] = task
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    answers[running.pop(future).label] = future.result()
                    bar.update(1)
        except KeyboardInterrupt:
            # those at work write their checkpoints
            for child in active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return tasks, answers


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started in here does not hear Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _by_ray(
    settings: Settings, out: Path, progress: bool
) -> tuple[dict[str, list[Task]], dict[str, Answer]]:
    """As :func:`_by_processes`, on Ray's cluster, or a local one of all CPUs."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            "workers='ray' needs Ray: pip install 'cbandit[ray]'"
        ) from None
    import logging

    ours = not ray.is_initialized()
    if ours:
        ray.init(
            include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    try:
        resources: Any = ray.cluster_resources  # untyped
        tasks = _tasks(settings, max(1, int(resources().get("CPU", 1))))
        remote = ray.remote(num_cpus=1, max_retries=0)(_answer_in_worker)
        futures = {
            remote.remote(task, str(out.absolute()), 1): task
            for each in tasks.values()
            for task in each
        }
        answers: dict[str, Answer] = {}
        waiting = list(futures)
        try:
            with _bar(len(futures), progress) as bar:
                while waiting:
                    (done,), waiting = ray.wait(waiting)
                    answers[futures[done].label] = ray.get(done)
                    bar.update(1)
        except KeyboardInterrupt:
            for each in waiting:
                ray.cancel(each)
            # those at work write their checkpoints
            ray.wait(waiting, num_returns=len(waiting))
            raise
    finally:
        if ours:
            ray.shutdown()
    return tasks, answers


def _bar(total: int, progress: bool) -> Any:
    from tqdm import tqdm

    shown = progress and sys.stderr.isatty()
    return tqdm(total=total, desc="tasks", delay=1.0, leave=False, disable=not shown)


def _summary(
    settings: Settings, runs: Mapping[str, Run], status: Mapping[str, str]
) -> dict[str, Any]:
    policies: dict[str, Any] = {}
    for name, state in status.items():
        policies[name] = {"status": state}
        if name in runs:
            short = runs[name].summary()
            policies[name] = {
                **{metric: dict(each) for metric, each in short.items()},
                "soft_violation_over": _over(runs[name]),
                "seconds_per_round": short.seconds_per_round,
                "status": state,
            }
            changes = find(settings.experiment).changes
            if changes:
                policies[name]["phases"] = _phases(runs[name], changes)
    return {
        "experiment": settings.experiment,
        "parameters": settings.parameters,
        "horizon": settings.horizon,
        "trials": settings.trials,
        "device": settings.device,
        "dtype": settings.dtype,
        "seed": settings.seed,
        "versions": versions(),
        "policies": policies,
    }


def _over(run: Run) -> int | None:
    """The round from which the soft violation is 0 in every trial; ``None``: never."""
    worst = run.soft_violation.reshape(-1, run.rounds).amax(0)
    first = int((worst > 0).nonzero().max()) + 2 if bool((worst > 0).any()) else 1
    return first if first <= run.rounds else None


def _phases(run: Run, changes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Reward, regret and hard violation a round within each phase of the world."""
    edges = [1, *(t for t in changes if t <= run.rounds), run.rounds + 1]
    out = []
    for first, after in itertools.pairwise(edges):
        phase: dict[str, Any] = {"first": first, "last": after - 1}
        for name in ("reward", "regret", "hard_violation"):
            total = run.cumulative(name).reshape(-1, run.rounds)
            gained = total[:, after - 2] - (total[:, first - 2] if first > 1 else 0.0)
            mean = gained / (after - first)
            count = len(mean)
            sem = float(mean.std()) / count**0.5 if count > 1 else 0.0
            phase[name] = {"mean": float(mean.mean()), "sem": sem}
        out.append(phase)
    return out


def versions() -> dict[str, str]:
    """Of the library and of all that its numbers depend on."""
    from importlib.metadata import PackageNotFoundError, version

    out = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in (
        "cbandit",
        "torch",
        "gpytorch",
        "botorch",
        "linear_operator",
        "numpy",
        "scipy",
        "triton",
    ):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


def _without_nan(value: Any) -> Any:
    """NaN is no JSON: ``null`` instead, where a number is not known."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_results(
    settings: Settings, out: Path, runs: Mapping[str, Run], summary: dict[str, Any]
) -> None:
    from cbandit import plots
    from cbandit.checkpoint import atomic

    table = plots.curves(list(runs.values()), points=POINTS)
    with atomic(out / "rounds.parquet") as file:
        _frame(table).to_parquet(file, index=False)
    every = find(settings.experiment).boxes
    if every is not None:
        with atomic(out / "boxes.parquet") as file:
            metrics = find(settings.experiment).averaged
            _boxes(runs, every, metrics).to_parquet(file, index=False)
    draw(table, out, settings)
    # last: its presence says that all the rest is there
    with atomic(out / "summary.json") as file:
        file.write(json.dumps(_without_nan(summary), indent=1).encode())


def draw(table: Curves, out: Path, settings: Settings) -> list[Path]:
    """The figures of an experiment: the account, its time averages, and its own."""
    from cbandit import plots

    experiment = find(settings.experiment)
    title = _title(settings, settings.parameters)
    style: dict[str, Any] = {"spread": experiment.spread, "width": experiment.width}
    metrics = ("regret", "soft_violation", "hard_violation", "rounds_in_violation")
    account = plots.overview(table, metrics, title=title, **style)
    averages = plots.overview(
        table,
        experiment.averaged,
        title=title,
        average=True,
        log=False if experiment.changes else None,
        marks=experiment.changes,
        **style,
    )
    drawn = {"account.png": account, "averages.png": averages}
    if experiment.evolution is not None:
        drawn["evolution.png"] = plots.evolution(
            [("", *_levelled(table, settings))],
            (experiment.evolution, "stage_cost", "expected_reward"),
            title=title,
            **style,
        )
    chosen = _words(settings.parameters)
    name = settings.experiment + (f" ({chosen})" if chosen else "")
    words = f"{name}: {settings.trials} trials"
    if (out / "boxes.parquet").is_file():
        frame = _pandas().read_parquet(out / "boxes.parquet")
        drawn["boxes.png"] = plots.boxes(frame, title=words, table=table)
    if experiment.early is not None:
        drawn["early.png"] = plots.overview(
            table,
            experiment.averaged,
            title=title,
            average=True,
            log=False,
            until=experiment.early,
            **style,
        )
    if experiment.traded is not None:
        drawn["trade-off.png"] = plots.trade_off(table, experiment.traded, title=words)
    paths = [out / name for name in drawn]
    for figure, path in zip(drawn.values(), paths, strict=True):
        plots.save(figure, path)
    return paths


def _title(settings: Settings, parameters: Mapping[str, Any]) -> str:
    """The experiment, these of its parameters, and what its bands are."""
    title = settings.experiment + (f" ({_words(parameters)})" if parameters else "")
    if settings.trials == 1:
        return title
    experiment = find(settings.experiment)
    band = "standard error" if experiment.spread == "sem" else "standard deviation"
    share = "" if experiment.width == 1 else f"{experiment.width:g} "
    return title + f": mean and {share}{band} of {settings.trials} trials"


def _words(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in parameters.items())


def _levelled(
    table: Curves, settings: Settings
) -> tuple[Curves, dict[str, list[Level]]]:
    """Curves with costs in the problem's units, and what is optimal and allowed.

    Where thresholds differ from trial to trial, or there are several costs, what is
    left is the largest cost less its threshold.
    """
    problem = find(settings.experiment).problem(
        settings.parameters, range(settings.trials), settings.seed
    )
    tau = problem.thresholds.reshape(-1)
    best = float(problem.stochastic_optimum(1).mean())
    spent = problem.optimal_costs() - problem.thresholds
    shift = float(tau[0]) if problem.m == 1 and bool((tau == tau[0]).all()) else 0.0
    moved: dict[str, dict[str, Curve]] = {}
    for policy, each in table.items():
        moved[policy] = dict(each)
        if "stage_cost" in each:
            cost = each["stage_cost"]
            moved[policy]["stage_cost"] = replace(cost, mean=cost.mean + shift)
    optimal = float(spent.amax(-1).mean()) + shift
    return moved, {
        "stage_cost": [
            ("threshold", shift, "#000000"),
            ("optimum", optimal, "#C00000"),
        ],
        "expected_reward": [("optimum", best, "#C00000")],
    }


def draw_together(
    folders: Sequence[Path], path: Path, panels: str | None = None
) -> None:
    """One figure of several folders, each with other parameters of one experiment.

    Args:
        folders: of results.
        path: of the figure.
        panels: a parameter: regret alone, a panel for each of its values, a curve for
            each of the others'. Left out: a row for each folder, with costs and
            rewards.
    """
    from cbandit import plots

    every = [settings_from_toml(folder / "config.toml") for folder in folders]
    first = every[0]
    experiment = find(first.experiment)
    if any(each.experiment != first.experiment for each in every):
        names = ", ".join(sorted({each.experiment for each in every}))
        raise CBanditError(f"folders must hold one experiment; got {names}")
    if experiment.evolution is None:
        raise CBanditError(f"{first.experiment} has no figure of several settings")
    if panels is not None and panels not in first.parameters:
        raise CBanditError(
            f"panels must be a parameter of {first.experiment}, one of "
            f"{', '.join(first.parameters)}; got {panels!r}"
        )
    differing = [
        name
        for name in first.parameters
        if len({each.parameters[name] for each in every}) > 1
    ]
    alike = {k: v for k, v in first.parameters.items() if k not in differing}
    title = _title(first, alike)
    style: dict[str, Any] = {"spread": experiment.spread, "width": experiment.width}

    def named(settings: Settings, without: str | None = None) -> str:
        mine = settings.parameters
        return _words({k: mine[k] for k in differing if k != without})

    tables = [read_curves(folder) for folder in folders]
    if panels is None:
        rows = [
            (named(each), *_levelled(table, each))
            for each, table in zip(every, tables, strict=True)
        ]
        metrics = (experiment.evolution, "stage_cost", "expected_reward")
        plots.save(plots.evolution(rows, metrics, title=title, **style), path)
        return
    grouped: dict[str, dict[str, Mapping[str, Curve]]] = {}
    for each, table in zip(every, tables, strict=True):
        panel = grouped.setdefault(_words({panels: each.parameters[panels]}), {})
        for policy, curves in table.items():
            words = [policy] if len(table) > 1 else []
            label = ", ".join([*words, *filter(None, [named(each, panels)])])
            panel[label or policy] = curves
    metric = experiment.evolution
    plots.save(plots.comparison(grouped, metric, title=title, **style), path)


def _pandas() -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401  pandas' parquet
    except ImportError:
        raise MissingExtraError(
            "experiments need pandas, pyarrow and matplotlib: pip install "
            "'cbandit[experiments]'"
        ) from None
    return pandas


def _frame(table: Curves) -> Any:
    pandas = _pandas()
    parts = [
        pandas.DataFrame(
            {
                "policy": policy,
                "metric": metric,
                "t": curve.t.numpy(),
                "mean": curve.mean.numpy(),
                "std": curve.std.numpy(),
                "sem": curve.sem.numpy(),
            }
        )
        for policy, each in table.items()
        for metric, curve in each.items()
    ]
    return pandas.concat(parts, ignore_index=True)


def _boxes(
    runs: Mapping[str, Run], every: Mapping[str, int], metrics: tuple[str, ...]
) -> Any:
    """Every trial's time averages now and then: policy, metric, t, trial, value."""
    import torch

    from cbandit import account

    pandas = _pandas()
    parts = []
    for policy, run in runs.items():
        step = every.get(policy, every["each"])
        t = torch.arange(step, run.rounds + 1, step)
        for metric in metrics:
            total = account.time_average(run.cumulative(metric))
            values = total.reshape(-1, run.rounds)[:, t - 1]
            trials = torch.arange(len(values)).unsqueeze(-1).expand_as(values)
            parts.append(
                pandas.DataFrame(
                    {
                        "policy": policy,
                        "metric": metric,
                        "t": t.expand_as(values).reshape(-1).numpy(),
                        "trial": trials.reshape(-1).numpy(),
                        "value": values.reshape(-1).numpy(),
                    }
                )
            )
    return pandas.concat(parts, ignore_index=True)


def read_curves(folder: str | os.PathLike[str]) -> Curves:
    """The curves in a folder that :func:`carry_out` has written."""
    import torch

    from cbandit.run import Curve

    path = Path(folder) / "rounds.parquet"
    if not path.is_file():
        raise CBanditError(f"{folder} holds no results: {path} is missing")
    try:
        frame = _pandas().read_parquet(path)
        out: dict[str, dict[str, Curve]] = {}
        for (policy, metric), part in frame.groupby(["policy", "metric"], sort=False):
            numbers = (
                torch.tensor(part[name].to_numpy())
                for name in ("t", "mean", "std", "sem")
            )
            out.setdefault(policy, {})[metric] = Curve(*numbers)
    except (OSError, KeyError, ValueError) as error:
        raise CBanditError(f"{path} is not one of ours, or broken: {error}") from None
    return out
