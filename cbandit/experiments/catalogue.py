"""The papers' experiments: their problems, policies and sizes.

A plain table of functions. What a paper leaves open is settled in the problem's own
docstring and in the policies' factories below, and in ``recipes.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cbandit.errors import CBanditError
from cbandit.experiments.recipes import (
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
    from cbandit.experiments.settings import Settings
    from cbandit.simulation.loop import Policy

__all__ = ["EXPERIMENTS", "Experiment", "Parameter", "Task", "find"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of an experiment: its default first, all of its values if few.

    A number that is not one of few is at least ``least``; so is a text that stands for
    a number, and is the default otherwise.
    """

    default: Any
    choices: tuple[Any, ...] = ()
    meaning: str = ""
    least: float | None = None

    def parse(self, name: str, value: Any) -> Any:
        """``value``, perhaps as typed on a command line, or an error that helps."""
        kind = type(self.default)
        try:
            out = kind(value)
        except (TypeError, ValueError, OverflowError):
            out = None
        cut = kind is int and isinstance(value, float) and out != value
        if out is None or cut or isinstance(value, bool):
            word = {int: "a whole number", float: "a number"}.get(kind, "a text")
            raise CBanditError(f"parameter {name} must be {word}; got {value!r}")
        if self.choices and out not in self.choices:
            known = ", ".join(map(str, self.choices))
            raise CBanditError(f"parameter {name} must be one of {known}; got {out!r}")
        if self.least is not None and out != self.default:
            try:
                fits = self.least <= float(out) < math.inf
            except ValueError:
                fits = False
            if not fits:
                word = f"{self.default!r} or " if kind is str else ""
                raise CBanditError(
                    f"parameter {name} must be {word}a number, at least {self.least}; "
                    f"got {out!r}"
                )
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
        spread, width: the band in its figures, see ``cb.plots.overview``.
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
    return float(given), float(given)


_BETA = Parameter("theory", (), "exploration width: the theory's, or a number", 0)


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
            "noise": Parameter(1.0, (), "its variance, R squared", 0),
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
            "arms": Parameter(4, (), "how many", 4),
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
            "points": Parameter(1000, (), "on each of two axes", 2),
            "costs": Parameter(3, (), "how many", 1),
            "noise": Parameter(0.01, (), "its variance"),
            "gap": Parameter(0.5, (), "thresholds less the safe corner's costs", 0),
            "beta": Parameter(2.0, (), "the width; 0 for the theory's", 0),
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
    "rate": Parameter(0.5, (), "the multipliers' step mu, noisy constraint", 0),
}
_EPOCHS = {**_RATE, "epoch": Parameter(20, (), "rounds an epoch, S", 1)}

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
