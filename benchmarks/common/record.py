"""Record what every policy does, in two checkouts, and compare it to the last bit.

    python benchmarks/common/record.py BEFORE [--after DIR] [--only WORD] [--keep FILE]

BEFORE and DIR (this checkout, unless given) are folders that hold ``cbandit/`` and
``kernels/``. A fixed list of runs is played in both, and a third of it once more
without compiled loops: each policy on numbered sets, grids, boxes and sets with
contexts, alone and in trials, with pairs of the keywords that policies share; the
catalogue of experiments, for a few rounds; studies of Optuna's. Half-way each run is
saved and loaded, and its second half is played once more from the file.

Compared are the choices, the multipliers, what was believed and recommended at the end,
and the second halves. Runs are equal, or the first round that differs is named, and
whether it was a round without a feasible action (a fallback, which may change by
intent). It ends with 1 where a run differs. ``--keep`` keeps what BEFORE did in a file
and reads it from there the next time, if it is of the same commit.
"""

from __future__ import annotations

import argparse
import copy
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
ROUNDS = 40
CATALOGUE = 60
PLAIN = 3  # one run in so many is played without compiled loops
TRIALS = 3
NOT_RECORDED = ("state", "asked", "told", "id")  # columns of a history


# -- the world -------------------------------------------------------------------------


@dataclass
class World:
    """What a policy is told: smooth functions of its choice, and noise.

    Args:
        lower: of the coordinates, for scaling; ``(d,)``.
        upper: likewise.
        m: the number of costs.
        names: the costs' names, if they have any.
        told: how outcomes come, one of ``TELLING``.
        outcomes: functions that are "binary" or "count", by number.
        seed: of the noise.
    """

    lower: np.ndarray
    upper: np.ndarray
    m: int = 2
    names: tuple[str, ...] = ()
    told: str = "at once"
    outcomes: dict[int, str] = field(default_factory=dict)
    seed: int = 0
    linear: bool = False

    def __post_init__(self) -> None:
        self.noise = np.random.default_rng(self.seed)
        self.waiting: list[tuple[int, str, dict[str, Any]]] = []

    def means(self, x: np.ndarray) -> np.ndarray:
        """Return reward and costs ``(..., 1 + m)`` without noise; thresholds are 0."""
        span = np.where(self.upper > self.lower, self.upper - self.lower, 1.0)
        z = (x - self.lower) / span
        d = np.arange(1, z.shape[-1] + 1)
        if self.linear:
            slopes = [0.8 / d, *((1.0 - 0.3 * j) / d for j in range(self.m))]
            return np.stack([(x * slope).sum(-1) for slope in slopes], -1)
        out = [np.sin(3.0 * (z / d).sum(-1))]
        for j in range(self.m):
            out.append(np.cos((2.0 + j) * (z * d[::-1] / len(d)).sum(-1)) - 0.1)
        return np.stack(out, -1)

    def outcome(self, x: np.ndarray) -> np.ndarray:
        """Return one outcome of each function, ``(..., 1 + m)``."""
        mean = self.means(x)
        noise = self.noise.standard_normal(mean.shape)
        values = mean + 0.1 * noise
        for f, kind in self.outcomes.items():
            if kind == "binary":
                values[..., f] = noise[..., f] < mean[..., f]
            else:
                values[..., f] = np.floor(np.exp(mean[..., f]) + np.abs(noise[..., f]))
        return values


def tell_at_once(world: World, policy: Any, choice: Any, values: np.ndarray) -> None:
    """Tell all at once."""
    cost: dict[str, Any] = {"cost": values[..., 1:]} if world.m else {}
    if world.names:
        cost = {"cost": {n: values[..., 1 + j] for j, n in enumerate(world.names)}}
    policy.tell(choice.id, reward=values[..., 0], **cost)


def tell_late(world: World, policy: Any, choice: Any, values: np.ndarray) -> None:
    """Tell rewards up to four rounds late and costs up to six, in any order."""
    rows = world.waiting
    ready = choice.t + int(world.noise.integers(0, 5))
    rows.append((ready, choice.id, {"reward": values[..., 0]}))
    if world.m:
        ready = choice.t + int(world.noise.integers(0, 7))
        rows.append((ready, choice.id, {"cost": values[..., 1:]}))
    due = [row for row in rows if row[0] <= choice.t]
    world.waiting = [row for row in rows if row[0] > choice.t]
    for _, name, told in due[::-1]:
        policy.tell(name, **told)


def tell_apart(world: World, policy: Any, choice: Any, values: np.ndarray) -> None:
    """Tell each trial by itself, the odd ones one round late."""
    trials = len(values)
    odd = np.arange(trials) % 2 == 1
    told: dict[str, Any] = {"reward": values[..., 0]}
    if world.m:
        told["cost"] = values[..., 1:]
    for _, name, late in world.waiting:
        policy.tell(name, **late)
    policy.tell(choice.id, **told, where=~odd)
    world.waiting = [(choice.t, choice.id, {**told, "where": odd})]


def tell_failures(world: World, policy: Any, choice: Any, values: np.ndarray) -> None:
    """Report a failure where the first coordinate is large; cancel each ninth."""
    x = np.asarray(choice.x)
    span = world.upper[0] - world.lower[0] or 1.0
    failed = (x[..., 0] - world.lower[0]) / span > 0.8
    if choice.t % 9 == 0:
        policy.cancel(choice.id)
    elif not failed.any():
        tell_at_once(world, policy, choice, values)
    elif failed.ndim == 0 or failed.all():
        policy.tell(choice.id, failed=True)
    else:
        policy.tell(choice.id, failed=True, where=failed)
        cost: dict[str, Any] = {"cost": values[..., 1:]} if world.m else {}
        policy.tell(choice.id, reward=values[..., 0], **cost, where=~failed)


def tell_by_name(world: World, policy: Any, choice: Any, values: np.ndarray) -> None:
    """Tell the reward and the first cost; the other costs two rounds later."""
    due = [row for row in world.waiting if row[0] <= choice.t]
    world.waiting = [row for row in world.waiting if row[0] > choice.t]
    for _, name, told in due:
        policy.tell(name, **told)
    first, *others = world.names
    policy.tell(choice.id, reward=values[..., 0], cost={first: values[..., 1]})
    late = {name: values[..., 2 + j] for j, name in enumerate(others)}
    if late:
        world.waiting.append((choice.t + 2, choice.id, {"cost": late}))


TELLING = {
    "at once": tell_at_once,
    "late": tell_late,
    "apart": tell_apart,
    "failures": tell_failures,
    "by name": tell_by_name,
}


# -- a run -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One run: a policy, its world, and what is asked of it.

    Args:
        name: what differs from others.
        make: returns a new policy; may raise an error, which is then recorded.
        world: returns a new world.
        ask: the keywords of round ``t``'s ask.
        after: called with the policy after round ``t``.
        trust: what loading needs to be told.
        rounds: how many rounds are played.
    """

    name: str
    make: Callable[[], Any]
    world: Callable[[], World]
    ask: Callable[[int], dict[str, Any]] = lambda t: {}
    after: Callable[[Any, int], None] = lambda policy, t: None
    trust: tuple[Any, ...] = ()
    rounds: int = ROUNDS


Record = dict[str, Any]
"""What a run did, by name: arrays, or words for an error."""


def record(case: Case) -> Record:
    """Play a case; return what it did."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            policy = case.make()
        except Exception as error:  # what is refused is a part of what it does
            return {"refused": type(error).__name__}
        world, rows = case.world(), []
        half, second, kept = case.rounds // 2, None, None
        try:
            for t in range(1, case.rounds + 1):
                rows.append(_turn(case, policy, world, t))
                if t == half:
                    second, kept = _reloaded(policy, case), copy.deepcopy(world)
            out = _joined(rows) | _ending(policy, world)
        except Exception as error:
            place = f"{type(error).__name__} in round {len(rows) + 1}"
            return _joined(rows) | {"ended": place}
        if isinstance(second, str):
            return out | {"saved": second}
        assert kept is not None
        rows = [_turn(case, second, kept, t) for t in range(half + 1, case.rounds + 1)]
        again = _joined(rows)
        same = all(
            np.array_equal(out[name][half:], again[name], equal_nan=True)
            for name in again
        )
        return out | {"resumed": "as without a save" if same else "OTHERWISE"}


def _turn(case: Case, policy: Any, world: World, t: int) -> Record:
    """Play one round; return what was chosen."""
    asked = case.ask(t)
    answer = policy.ask(**asked)
    choices = answer if isinstance(answer, list) else [answer]
    for choice in choices:
        values = world.outcome(np.asarray(choice.x, dtype=float))
        TELLING[world.told](world, policy, choice, values)
    case.after(policy, t)
    none = np.full(1, -1)
    return {
        "x": np.stack([np.asarray(c.x, dtype=float) for c in choices]),
        "index": np.stack(
            [none if c.index is None else np.asarray(c.index) for c in choices]
        ),
        "infeasible": np.stack([np.asarray(c.infeasible) for c in choices]),
    }


def _reloaded(policy: Any, case: Case) -> Any:
    """Save a policy and load it again; return words where it cannot be saved."""
    import cbandit as cb

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.ckpt"
        try:
            policy.save(path)
            return cb.load(path, trust=case.trust)
        except Exception as error:
            return f"{type(error).__name__}"


def _joined(rows: list[Record]) -> Record:
    """Return the rows' arrays, one on the other."""
    if not rows:
        return {}
    return {
        name: np.stack([row[name] for row in rows])
        if len({row[name].shape for row in rows}) == 1
        else np.array([row[name].tolist() for row in rows], dtype=object)
        for name in rows[0]
    }


def _ending(policy: Any, world: World) -> Record:
    """Return what a policy holds after its last round."""
    out: Record = {"multiplier": np.asarray(policy.multiplier)}
    history = policy.history()
    for name in history.columns:
        if name not in NOT_RECORDED and history[name].dtype.kind in "fiub":
            out[f"history {name}"] = history[name].to_numpy()
    looks: dict[str, Callable[[], Record]] = {
        "posterior": partial(_posterior, policy, world),
        "recommended": partial(_recommended, policy),
    }
    for label, look in looks.items():
        try:
            for name, value in look().items():
                out[f"{label} {name}"] = value
        except Exception as error:
            out[label] = type(error).__name__
    return out


def _posterior(policy: Any, world: World) -> Record:
    """Return what is believed on the set, or at some points of a box."""
    if getattr(policy.actions, "continuous", False):
        grid = np.random.default_rng(7).random((20, len(world.lower)))
        posterior = policy.posterior(world.lower + grid * (world.upper - world.lower))
    else:
        posterior = policy.posterior()
    parts = {"reward": posterior.reward, "costs": posterior.costs}
    return {
        f"{name} {kind}": np.asarray(getattr(part, kind))
        for name, part in parts.items()
        if part is not None
        for kind in ("mean", "std")
    }


def _recommended(policy: Any) -> Record:
    """Return what a policy recommends."""
    best = policy.recommend()
    found = {n: getattr(best, n, None) for n in ("x", "value", "probability", "margin")}
    return {n: np.asarray(v) for n, v in found.items() if v is not None}


# -- the list --------------------------------------------------------------------------


def kernel(d: int, scale: float = 0.3) -> Any:
    """Return a double-precision RBF kernel."""
    import gpytorch
    import torch

    out = gpytorch.kernels.RBFKernel(ard_num_dims=d).double()
    out.lengthscale = torch.full((1, d), scale, dtype=torch.float64)
    return out


def cases() -> Iterator[Case]:
    """Yield every run of the list, the catalogue and the study of Optuna's apart."""
    yield from _kinds()
    yield from _pairs()
    yield from _sets()
    yield from _contexts()
    yield from _outcomes()
    yield from _linear()
    yield from _rivals()


def _free(n: int = 60) -> Any:
    import cbandit as cb

    return cb.Finite(np.random.default_rng(3).random((n, 2)))


def _unit(d: int = 2, **more: Any) -> World:
    return World(np.zeros(d), np.ones(d), **more)


def _gp(**more: Any) -> Any:
    import cbandit as cb

    return cb.GP(kernel(2), **{"noise": 0.01, **more})


def _kinds() -> Iterator[Case]:
    """Each kind of a policy on a free set, alone, in trials, told in each way."""
    import cbandit as cb

    gp = _gp()
    two: dict[str, Any] = {"reward": gp, "costs": [gp, gp]}
    bound: dict[str, Any] = {"clip": (2.0, 2.0), "horizon": ROUNDS, "slater": 0.5}
    width = cb.RKHS(norm=1.0, subgaussian=0.1)
    kinds: dict[str, Callable[..., Any]] = {
        "CKB": partial(cb.CKB, **two, step=0.2, cap=5.0),
        "CKB-TS": partial(cb.CKB, **two, step=0.2, cap=5.0, explore=cb.TS(0.5)),
        "CKB-Rand": partial(cb.CKB, **two, step=0.2, cap=5.0, explore=cb.Rand(1.0)),
        "CKB theorem": partial(cb.CKB, **two, **bound, explore=cb.UCB(width)),
        "CKB slack": partial(cb.CKB, **two, **bound, slack=0.1),
        "CKB anytime": partial(
            cb.CKB,
            **two,
            clip=(2.0, 2.0),
            slater=0.5,
            anytime=True,
            forget=True,
        ),
        "CKB queue": partial(cb.CKB, **two, **bound, dual="queue"),
        "CKB mean": partial(cb.CKB, **two, step=0.2, cap=5.0, dual_beta=0.0),
        "CKB pessimistic": partial(cb.CKB, **two, step=0.2, cap=5.0, dual_beta=-1.0),
        "CKB resolved": partial(cb.CKB, **two, dual="resolved"),
        "RPOL": partial(cb.RPOL, **two),
        "RPOL-TS": partial(cb.RPOL, **two, explore=cb.TS(0.5)),
        "RPOL estimate": partial(cb.RPOL, **two, penalty="estimate"),
        "CONFIG": partial(cb.baselines.CONFIG, **two),
        "CONFIG-TS": partial(cb.baselines.CONFIG, **two, explore=cb.TS(0.5)),
        "GPUCB": partial(cb.GPUCB, reward=gp),
        "GPTS": partial(cb.GPTS, reward=gp),
        "epochs": partial(cb.EpochPenalty, reward=gp, costs=2, epoch=7),
        "epochs linear": partial(
            cb.EpochPenalty, reward=gp, costs=2, epoch=7, psi="linear", rate=0.5
        ),
        "epochs ts": partial(cb.EpochPenalty, reward=gp, costs=2, epoch=7, inner="ts"),
        "epochs afresh": partial(
            cb.EpochPenalty, reward=gp, costs=2, epoch=7, reuse=False
        ),
        "CKBRestart": partial(
            cb.baselines.CKBRestart, **two, step=0.2, cap=5.0, restart=11
        ),
        "BKB": partial(cb.baselines.BKB, **two, step=0.2, cap=5.0),
        "Random": partial(cb.baselines.Random, costs=2),
    }
    for name, kind in kinds.items():
        m = 0 if name in ("GPUCB", "GPTS") else 2
        for told in TELLING:
            if told == "by name":
                continue
            for trials in (None, TRIALS):
                if told == "apart" and trials is None:
                    continue
                if told != "at once" and trials is None and name not in FEW:
                    continue
                yield Case(
                    f"{name}, {told}, {trials} trials",
                    partial(kind, _free(), trials=trials),
                    partial(_unit, m=m, told=told),
                    rounds=20 if told == "failures" else ROUNDS,
                )


#: policies that are played in more ways than others
FEW = ("CKB", "CKB-TS", "RPOL", "CONFIG")
#: keywords that are played on a box too
ON_A_BOX = (
    *("delayed", "sliding", "share", "design", "failures", "no failures", "margin"),
    *("budget", "hallucinate", "default", "moving"),
)


def _keywords() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return keywords of policies, each with what it says of the world."""
    import cbandit as cb

    names = ("speed", "load")
    named = {name: _gp() for name in names}
    limits = {"speed": ">= -0.1", "load": "<= 0.2"}
    standard = _gp(standardize=True)
    return {
        "delayed": ({"feedback": cb.Delayed(5), "horizon": 100}, {"told": "late"}),
        "sliding": ({"feedback": cb.Sliding(15), "horizon": 100}, {}),
        "ignore": ({"pending": "ignore"}, {"told": "late"}),
        "hallucinate": ({"pending": "hallucinate"}, {"told": "late"}),
        "share": ({"share": 0.8}, {}),
        "design": ({"design": 6}, {}),
        "failures": ({}, {"told": "failures"}),
        "no failures": ({"failures": False}, {"told": "failures"}),
        "margin": ({"explore": cb.UCB(1.0, margin=1.0)}, {}),
        "draws": ({"explore": cb.TS(0.7)}, {}),
        "cautious": ({"explore": cb.UCB(1.0, cost_beta=-0.5)}, {}),
        "default": (
            {"reward": cb.GP.default(_free()), "costs": [cb.GP.default(_free())] * 2},
            {},
        ),
        "spreads": ({"reward": standard, "costs": [standard] * 2}, {}),
        "names": (
            {"costs": named, "thresholds": limits, "minimise": True},
            {"names": names, "told": "by name"},
        ),
        "moving": ({"thresholds": moving}, {}),
        "clip": ({"clip": (1.5, 1.0)}, {}),
        "joint": ({"engine": "joint"}, {}),
        "stream": ({"engine": "stream"}, {}),
        "float32": ({"dtype": "float32"}, {}),
        "budget": (
            {
                "costs": named,
                "thresholds": {"speed": 0.1, "load": cb.Budget(20.0, rounds=60)},
            },
            {"names": names},
        ),
        "restart": ({"restart": 9}, {}),
        "adaptive": (
            {"restart": "adaptive", "forget": True, "explore": cb.UCB(1.0)},
            {},
        ),
    }


def moving(t: int) -> float:
    """Return thresholds that move with the round."""
    return 0.1 + 0.002 * t


def rule_class() -> Any:
    """Return a class of a user's own: a plain score, moved by what was told."""
    import cbandit as cb

    if "Own" not in globals():

        class Own(cb.GPPolicy):
            """A plain function as a score, and a multiplier moved by excesses."""

            name = "Own"

            def score(self, t: int, phi: Any) -> Any:
                """Return the reward less the weighted excess."""
                return lambda f, g: f - (phi.unsqueeze(-1) * g).sum(-2)

            def move(self, t: int, phi: Any, estimate: Any, arrived: Any) -> Any:
                """Return the multiplier after the costs told."""
                for excess in arrived:
                    phi = (phi + 0.3 * excess).clamp(min=0.0)
                return phi

        Own.__module__, Own.__qualname__ = __name__, "Own"
        globals()["Own"] = Own
    return globals()["Own"]


def _pairs() -> Iterator[Case]:
    """CKB, RPOL and a rule of one's own with each pair of the common keywords."""
    import cbandit as cb

    gp = _gp()
    base: dict[str, Any] = {"reward": gp, "costs": [gp, gp]}
    kinds: dict[str, Callable[..., Any]] = {
        "CKB": partial(cb.CKB, step=0.2, cap=5.0),
        "RPOL": cb.RPOL,
        "Own": rule_class(),
    }
    every = _keywords()
    pairs = [(name,) for name in every] + list(combinations(every, 2))
    for number, pair in enumerate(pairs):
        keywords: dict[str, Any] = {}
        says: dict[str, Any] = {}
        for name in pair:
            given, said = every[name]
            clash = set(keywords) & set(given) - {"costs", "reward", "horizon"}
            if clash or (set(says) & set(said)) or {"names", "budget"} <= set(pair):
                break
            keywords, says = keywords | given, says | said
        else:
            for kind, make in kinds.items():
                if kind == "CKB" and "restart" in keywords:
                    continue
                if len(pair) == 2 and (number + len(kind)) % 3:
                    continue  # a third of the pairs each
                trials = TRIALS if number % 2 else None
                if kind != "CKB" and number % 3 == 0:
                    trials = TRIALS
                yield Case(
                    f"{kind} with {' + '.join(pair)}, {trials} trials",
                    partial(make, _free(), **{**base, **keywords}, trials=trials),
                    partial(_unit, **says),
                    trust=(moving, rule_class()),
                    rounds=16 if "failures" in says.get("told", "") else 26,
                )


def _sets() -> Iterator[Case]:
    """Grids, larger sets, boxes and named spaces; parts of a set; several at once."""
    import cbandit as cb

    gp = _gp()
    two: dict[str, Any] = {"reward": gp, "costs": [gp, gp]}
    grid = cb.ProductGrid([np.linspace(0, 1, 13), np.linspace(0, 1, 11)])
    many = cb.Finite(np.random.default_rng(5).random((900, 2)))
    box = cb.Box([0.0, 0.0], [1.0, 1.0])
    kinds: dict[str, Callable[..., Any]] = {
        "CKB": partial(cb.CKB, **two, step=0.2, cap=5.0),
        "CKB-TS": partial(cb.CKB, **two, step=0.2, cap=5.0, explore=cb.TS(0.5)),
        "RPOL": partial(cb.RPOL, **two),
        "CONFIG": partial(cb.baselines.CONFIG, **two),
    }
    for name, kind in kinds.items():
        for engine in ("auto", "product", "factor", "stream", "joint"):
            yield Case(
                f"{name} on a grid, {engine}",
                partial(kind, grid, engine=engine),
                partial(_unit),
            )
        yield Case(f"{name} on 900", partial(kind, many), partial(_unit))
        yield Case(
            f"{name} on 900, {TRIALS} trials", partial(kind, many, trials=3), _unit
        )
        yield Case(
            f"{name}, among",
            partial(kind, grid),
            partial(_unit),
            ask=lambda t: {"among": list(range(t % 7, 143, 3))},
        )
        if name != "CKB-TS":
            yield Case(
                f"{name}, sets of one round",
                partial(kind, grid),
                partial(_unit),
                ask=lambda t: {
                    "actions": np.random.default_rng(t).random((15, 2)),
                },
            )
        yield Case(
            f"{name}, confidence",
            partial(kind, grid),
            partial(_unit),
            ask=lambda t: {"confidence": 0.8} if t > 3 else {},
        )
        yield Case(
            f"{name}, several at once",
            partial(kind, grid),
            partial(_unit),
            ask=lambda t: {"n": 3},
            rounds=14,
        )
        yield Case(f"{name} on a box", partial(kind, box), partial(_unit), rounds=24)
    every = _keywords()
    for name in ("RPOL", "CKB"):
        for word in ON_A_BOX:
            keywords, says = every[word]
            if word == "default":
                belief = cb.GP.default(box)
                keywords = {"reward": belief, "costs": [belief] * 2}
            yield Case(
                f"{name} on a box, {word}",
                partial(kinds[name], box, **keywords, trials=2 if word < "f" else None),
                partial(_unit, **says),
                trust=(moving,),
                rounds=20,
            )
    yield Case(
        "RPOL on a box, confidence",
        partial(kinds["RPOL"], box),
        partial(_unit),
        ask=lambda t: {"confidence": 0.8} if t > 3 else {},
        rounds=20,
    )
    space = cb.Space(
        threads=cb.Int(1, 16, log=True),
        memory=cb.Float(0.5, 8.0, step=0.5),
        codec=cb.Category("lz4", "zstd", "none"),
    )
    mixed = cb.Space(memory=cb.Float(0.5, 8.0), codec=cb.Category("lz4", "zstd"))
    ends = np.array([1.0, 0.5, 0.0]), np.array([16.0, 8.0, 2.0])
    few = np.array([0.5, 0.0]), np.array([8.0, 1.0])
    for name in ("CKB", "RPOL"):
        kind = getattr(cb, name)
        for words, on, (low, high), rounds in (
            ("named grid", space, ends, ROUNDS),
            ("named box", mixed, few, 20),
        ):
            gp = cb.GP.default(on)
            more: dict[str, Any] = {"reward": gp, "costs": {"speed": gp, "load": gp}}
            yield Case(
                f"{name} on a {words}",
                partial(kind, on, **more, thresholds={"speed": "<= 0.2", "load": 0.1}),
                partial(World, low, high, names=("speed", "load")),
                after=_comings if words == "named grid" else (lambda policy, t: None),
                rounds=rounds,
            )


def _comings(policy: Any, t: int) -> None:
    """Let values of a category come and go."""
    if t == 10:
        policy.retire("codec", "lz4")
    if t == 15:
        policy.add("codec", "brotli")
    if t == 30:
        policy.add("codec", "lz4")


def _contexts() -> Iterator[Case]:
    """Sets with contexts: numbers and categories, few and many, with budgets."""
    import cbandit as cb

    models = cb.Category("small", "middle", "large")
    names = ("usd",)
    for size in (2, 12):
        space = cb.Space(model=models, prompt=cb.Context(size))
        low, high = np.zeros(1 + size), np.array([2.0] + [1.0] * size)

        def shown(t: int, size: int = size) -> dict[str, Any]:
            return {"context": np.random.default_rng(t).random(size)}

        gp = cb.GP.default(space)
        line = cb.GP.linear(space)
        for words, belief in (("default", gp), ("linear", line)):
            base: dict[str, Any] = {"reward": belief, "costs": {"usd": belief}}
            kinds: dict[str, Callable[..., Any]] = {
                "CKB": partial(cb.CKB, **base, thresholds={"usd": "<= 0.3"}),
                "CKB-TS": partial(
                    cb.CKB, **base, thresholds={"usd": "<= 0.3"}, explore=cb.TS(1.0)
                ),
                "CKB stepped": partial(
                    cb.CKB,
                    **base,
                    thresholds={"usd": "<= 0.3"},
                    dual="projected",
                    step=0.1,
                    cap=5.0,
                ),
                "RPOL": partial(cb.RPOL, **base, thresholds={"usd": "<= 0.3"}),
                "CONFIG": partial(
                    cb.baselines.CONFIG, **base, thresholds={"usd": "<= 0.3"}
                ),
                "CKB budget": partial(
                    cb.CKB, **base, thresholds={"usd": cb.Budget(15.0, rounds=60)}
                ),
                "RPOL budget": partial(
                    cb.RPOL, **base, thresholds={"usd": cb.Budget(15.0, rounds=60)}
                ),
                "GPUCB": partial(cb.GPUCB, reward=belief),
            }
            for name, make in kinds.items():
                m = 0 if name == "GPUCB" else 1
                for trials in (None, TRIALS):
                    yield Case(
                        f"{name}, {size} numbers of context, {words}, {trials} trials",
                        partial(make, space, trials=trials),
                        partial(World, low, high, m=m, names=names[:m]),
                        ask=shown,
                        after=_models if trials is None else (lambda policy, t: None),
                        rounds=ROUNDS if size == 12 else 24,
                    )


def _models(policy: Any, t: int) -> None:
    """Let models come and go."""
    if t == 10:
        policy.add("model", "new")
    if t == 14:
        policy.retire("model", "middle")


def _outcomes() -> Iterator[Case]:
    """Binary and counted outcomes."""
    import cbandit as cb

    chance, rate = _gp(noise=None, outcome="binary"), _gp(noise=None, outcome="count")
    gp = _gp()
    kinds: dict[str, Callable[..., Any]] = {
        "CKB": partial(cb.CKB, step=0.2, cap=5.0),
        "RPOL": cb.RPOL,
        "CONFIG": cb.baselines.CONFIG,
    }
    for name, kind in kinds.items():
        for words, beliefs, outcomes in (
            ("binary cost", (gp, [chance, gp]), {1: "binary"}),
            ("counted cost", (gp, [gp, rate]), {2: "count"}),
            ("binary reward", (chance, [gp, gp]), {0: "binary"}),
        ):
            limits = [0.5 if j == 1 and 1 in outcomes else 1.0 for j in (1, 2)]
            for trials in (None, TRIALS):
                yield Case(
                    f"{name}, {words}, {trials} trials",
                    partial(
                        kind,
                        _free(),
                        reward=beliefs[0],
                        costs=beliefs[1],
                        thresholds=limits,
                        trials=trials,
                    ),
                    partial(_unit, outcomes=outcomes),
                )


def _linear() -> Iterator[Case]:
    """The stage-wise policies."""
    import cbandit as cb

    points = np.random.default_rng(2).uniform(-0.7, 0.7, (30, 3))
    points[0] = 0.0
    line = cb.Linear(subgaussian=0.1, ridge=1.0, norm=1.5)
    gp = cb.GP(kernel(3, 0.6), noise=0.01)
    arms = cb.Counts(subgaussian=0.1, range=(-2.0, 2.0))
    star = cb.Star(points[0], points[1:])
    safe = cb.Safe(index=0, reward=0.0, cost=0.0)
    known: dict[str, Any] = {"thresholds": 0.4, "delta": 0.1, "horizon": ROUNDS}
    world = partial(World, np.zeros(3), np.ones(3), m=1, linear=True)
    free = cb.Finite(points)
    start: dict[str, Any] = {"reward": gp, "costs": gp, "safe": cb.Safe(index=0)}
    makes: dict[str, Callable[..., Any]] = {
        "LCLUCB": partial(
            cb.LCLUCB, free, reward=line, costs=line, safe=safe, **known
        ),
        "LCLUCB star": partial(
            cb.LCLUCB,
            star,
            reward=line,
            costs=line,
            safe=cb.Safe(x=points[0], reward=0.0, cost=0.0),
            **known,
        ),
        "LCLUCB unknown": partial(
            cb.LCLUCB, free, reward=line, costs=line, safe=cb.Safe(index=0), **known
        ),
        "OPLB": partial(cb.OPLB, free, reward=line, costs=line, safe=safe, **known),
        "OPB": partial(cb.OPB, free, reward=arms, costs=arms, safe=safe, **known),
        "OPB gp": partial(cb.OPB, free, reward=gp, costs=gp, safe=safe, **known),
        "SafeLTS": partial(
            cb.baselines.SafeLTS, star, reward=line, costs=line,
            safe=cb.Safe(x=points[0], reward=0.0, cost=0.0), **known
        ),
        "SafeOpt": partial(cb.baselines.SafeOpt, free, **start, thresholds=0.4),
        "StageOpt": partial(
            cb.baselines.StageOpt, free, **start, thresholds=0.4, rounds=10
        ),
        "SGPUCB": partial(
            cb.baselines.SGPUCB, free, **start, thresholds=0.4, rounds=10
        ),
    }  # fmt: skip
    for name, make in makes.items():
        for trials in (None, TRIALS):
            yield Case(f"{name}, {trials} trials", partial(make, trials=trials), world)


def _rivals() -> Iterator[Case]:
    """Costs seen in full before choosing, and the baselines on boxes."""
    import cbandit as cb

    gp = _gp()
    on = _free()
    box = cb.Box([0.0, 0.0], [1.0, 1.0])

    def seen(t: int) -> dict[str, Any]:
        world = _unit()
        costs = world.means(on.all.numpy())[:, 1:].T
        noise = np.random.default_rng(t).standard_normal(costs.shape)
        return {"observed_costs": costs + 0.1 * noise}

    for schedule in (1, 2):
        yield Case(
            f"SCGPUCB {schedule}",
            partial(
                cb.SCGPUCB,
                on,
                reward=gp,
                costs=2,
                schedule=schedule,
                slater=0.5,
                clip=2.0,
            ),
            partial(_unit),
            ask=seen,
        )
    yield Case(
        "ADMMBO",
        partial(cb.baselines.ADMMBO, box, reward=gp, costs=[gp, gp]),
        partial(_unit),
        rounds=16,
    )
    yield Case(
        "BanditOCO",
        partial(
            cb.baselines.BanditOCO, box, costs=2, radius=0.1, step=0.05, dual_step=0.1
        ),
        partial(_unit),
    )


def catalogue() -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield each policy of each experiment, played for a few rounds."""
    from cbandit.experiments.catalogue import EXPERIMENTS

    for name, experiment in EXPERIMENTS.items():
        for policy in experiment.policies:
            yield f"{name}: {policy}", partial(_experiment, experiment, policy)


def _experiment(experiment: Any, policy: str) -> Record:
    import cbandit as cb
    from cbandit.experiments.experiment import Task

    rounds = min(CATALOGUE, experiment.horizon)
    settings = experiment.settings(horizon=rounds, trials=2, policies=[policy])
    task = Task(experiment, settings, policy, range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem = task.problem()
            run = cb.simulate(task.make(problem), problem, rounds, progress=False)
        except Exception as error:
            return {"refused": type(error).__name__}
    names = ("actions", "rewards", "costs", "multipliers", "regret", "soft_violation")
    return {n: np.asarray(getattr(run, n)) for n in names}


def studies() -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield studies of Optuna's that policies sample."""
    for kind in ("RPOL", "CKB", "CONFIG"):
        yield f"Optuna: {kind}", partial(_study, kind)


def _study(kind: str) -> Record:
    import cbandit as cb

    try:
        import optuna
    except ImportError:
        return {"refused": "no optuna"}
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: Any) -> float:
        threads = trial.suggest_int("threads", 1, 16)
        size = trial.suggest_float("size", 0.1, 1.0)
        if threads == 13:
            raise optuna.TrialPruned
        trial.set_user_attr("latency", 40.0 / threads + 5.0 * size)
        return float(threads * size)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = cb.optuna.Sampler(kind, limits={"latency": "<= 10"})
        study = optuna.create_study(sampler=sampler)
        study.optimize(objective, n_trials=16)
    rows = [[t.params["threads"], t.params["size"]] for t in study.trials]
    return {"x": np.array(rows)}


def played(only: str, every: int) -> dict[str, Record]:
    """Play the list, or one run in ``every``; return each run's record by its name."""
    out: dict[str, Record] = {}
    jobs: list[tuple[str, Callable[[], Record]]] = [
        (case.name, partial(record, case)) for case in cases()
    ]
    jobs += [*catalogue(), *studies()]
    for name, job in jobs[::every]:
        if only in name:
            start = time.perf_counter()
            out[name] = job() | {"seconds": time.perf_counter() - start}
    return out


# -- two checkouts ---------------------------------------------------------------------


def run(tree: Path, native: bool, only: str) -> subprocess.Popen[bytes]:
    """Start to play the list in a checkout."""
    path = f"{tree}{os.pathsep}{tree / 'kernels'}"
    say = {
        "PYTHONPATH": path,
        "CBANDIT_NATIVE": str(int(native)),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE), str(tree), "--play", "--only", only]
    if not native and not only:
        command += ["--every", str(PLAIN)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **say})


def read(job: subprocess.Popen[bytes]) -> dict[str, Record]:
    """Wait for a checkout's records."""
    body, _ = job.communicate()
    if job.returncode:
        raise SystemExit("a checkout could not be played: see above")
    found: dict[str, Record] = pickle.loads(body)
    return found


def differing(before: Record, after: Record) -> str:
    """Return in words where two records differ; empty where they do not."""
    names = [name for name in before if name in after and name != "seconds"]
    gone = {*before} ^ {*after}
    words = [f"only one has {', '.join(sorted(gone))}"] if gone else []
    for name in names:
        old, new = before[name], after[name]
        if isinstance(old, str) or isinstance(new, str):
            if old != new:
                words.append(f"{name}: {old} -> {new}")
        elif old.shape != new.shape:
            words.append(f"{name}: shapes {old.shape} -> {new.shape}")
        elif not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
            words.append(f"{name}{_place(name, old, new, before)}")
    return "; ".join(words)


def _place(name: str, old: np.ndarray, new: np.ndarray, before: Record) -> str:
    """Return the first round that differs, and whether it was a fallback."""
    if old.dtype.kind not in "fiub":
        return ""
    with np.errstate(invalid="ignore"):
        apart = (old != new) & ~((old != old) & (new != new))
        size = np.abs(old.astype(float) - new.astype(float))
    most = f", by at most {np.nanmax(np.where(apart, size, 0.0)):.2g}"
    if name not in ("x", "index", "infeasible"):
        return most
    first = int(np.flatnonzero(apart.reshape(len(apart), -1).any(1))[0])
    none = np.asarray(before["infeasible"][first])
    return f" from round {first + 1}" + " (a fallback)" * bool(none.any()) + most


def compare(before: dict[str, Record], after: dict[str, Record], words: str) -> int:
    """Print how many runs are equal, and where others differ; return how many do.

    Runs that only one side plays are named: an experiment may have got new policies.
    """
    found = {}
    if alone := sorted(before.keys() ^ after.keys()):
        print(f"played on one side alone: {', '.join(alone)}")
    before = {name: record for name, record in before.items() if name in after}
    for name in before:
        difference = differing(before[name], after[name])
        if difference:
            found[name] = difference
    none = sum(
        int(np.asarray(one["infeasible"]).astype(bool).sum())
        for one in before.values()
        if "infeasible" in one and one["infeasible"].dtype != object
    )
    refused = sum("refused" in one for one in before.values())
    ended = [name for name, one in before.items() if "ended" in one]
    odd = [n for n, one in after.items() if one.get("resumed") == "OTHERWISE"]
    print(
        f"{words}: {len(before) - len(found)} of {len(before)} runs equal to the bit; "
        f"{refused} refused, {len(ended)} end early; {none} rounds without a feasible "
        f"action; {sum(one['seconds'] for one in before.values()):.0f} and "
        f"{sum(one['seconds'] for one in after.values()):.0f} s"
    )
    for name, difference in found.items():
        print(f"  {name}: {difference}")
    for name in odd:
        print(f"  {name}: goes on otherwise after a save")
    return len(found) + len(odd)


def commit(tree: Path) -> str:
    """Return a checkout's commit; empty where it has changes that are not committed."""
    state = subprocess.run(
        ["git", "-C", str(tree), "status", "--porcelain", "cbandit", "kernels"],
        capture_output=True,
        text=True,
        check=True,
    )
    if state.stdout:
        return ""
    head = ["git", "-C", str(tree), "rev-parse", "HEAD"]
    return subprocess.run(head, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Play and compare."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/common/record.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, help="the checkout to compare with")
    parser.add_argument("--after", type=Path, default=HERE.parents[2])
    parser.add_argument("--only", default="", help="runs whose names hold this word")
    parser.add_argument("--keep", type=Path, help="file for what BEFORE did")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--every", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        sys.stdout.buffer.write(pickle.dumps(played(given.only, given.every)))
        return 0
    before, after = given.before.resolve(), given.after.resolve()
    mark = (commit(before), HERE.read_bytes(), given.only)
    kept = None
    if given.keep and given.keep.exists() and mark[0]:
        found = pickle.loads(given.keep.read_bytes())
        kept = found["runs"] if found["mark"] == mark else None
    jobs = {native: run(after, native, given.only) for native in (True, False)}
    news = {native: read(job) for native, job in jobs.items()}
    if kept is None:
        jobs = {native: run(before, native, given.only) for native in (True, False)}
        kept = {native: read(job) for native, job in jobs.items()}
        if given.keep:
            given.keep.write_bytes(pickle.dumps({"mark": mark, "runs": kept}))
    words = {True: "compiled loops", False: "plain torch"}
    return min(sum(compare(kept[n], news[n], words[n]) for n in (True, False)), 1)


if __name__ == "__main__":
    sys.exit(main())
