"""Posteriors of policies after random programmes, against dense solves.

A programme asks, tells in parts, late and out of order, cancels, observes, refits,
copies, saves and loads, on a random set with random beliefs. The reference knows only
what was told. As a script this plays more, and prints the worst deviations:
``test_programmes.py --count 400 --seed 1000``.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import pickle
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from inside import beliefs_of, missing, torn
from kernel_cases import CASES

import cbandit as cb

F64, F32 = torch.float64, torch.float32
LIMITS = {F64: 1e-10, F32: 1e-4}  # of the prior deviation
ROUNDING = {F64: 1e-15, F32: 2e-7}  # of the readings themselves
BLOCK = 20  # points between which distances are taken at a time
QUICK = 16  # programmes in the suite
TINY_PERIOD = 40121  # whose fit once ended at a period of 1e-122
CLOSED = [name for name, case in CASES.items() if case.closed]
FACTORS = [name for name, case in CASES.items() if case.factors]
DRAWN = "auto", "joint", "product"  # engines that draw whatever the kernel is
FEW = 12  # so many choices are out at most
ACTS = {  # how often each is played
    "ask": 30,
    "tell": 22,
    "part": 14,
    "round": 20,
    "observe": 3,
    "cancel": 2,
    "fail": 1,
    "refit": 2,
    "look": 5,
    "read": 4,
    "copy": 2,
    "save": 2,
    "tear": 1,
    "add": 1,
    "many": 1,
}


class Own(cb.GPPolicy):
    """A rule of one's own: plain torch, and a multiplier that moves by factors."""

    def __init__(self, actions, **common):
        super().__init__(actions, start=1.0, **common)

    def score(self, t, multiplier):
        return lambda f, g: f - (multiplier.unsqueeze(-1) * g).sum(1)

    def move(self, t, multiplier, estimate, arrived):
        return multiplier * (0.1 * estimate[:, 1:].clamp(-1, 1)).exp()


def held(kernel):
    """Keep a kernel's lengthscales from 0, where a fit to few readings may end.

    There GPyTorch's distances, which the reference takes, lose all digits.
    """
    for part in kernel.modules():
        if getattr(part, "has_lengthscale", False):
            value = part.lengthscale.detach().clone()
            part.register_constraint("raw_lengthscale", GreaterThan(0.02))
            part.lengthscale = value
    return kernel


# -- what the reference knows ----------------------------------------------------------


class Reading(NamedTuple):
    """A value of one function in one trial; until it came, what stands in for it."""

    t: int
    x: np.ndarray
    value: float
    noise: float | None = None
    came: bool = True


def solved(prior, noise, right):
    """Return ``(prior + noise)^-1 right`` in long doubles."""
    factor = (prior + np.diag(noise)).astype(np.longdouble)
    out = right.astype(np.longdouble)
    for j in range(len(factor)):
        factor[j, j] = np.sqrt(factor[j, j])
        factor[j + 1 :, j] /= factor[j, j]
        column = factor[j + 1 :, j]
        factor[j + 1 :, j + 1 :] -= np.outer(column, column)
        out[j] /= factor[j, j]
        out[j + 1 :] -= np.outer(column, out[j])
    for j in reversed(range(len(factor))):
        out[j] = (out[j] - factor[j + 1 :, j] @ out[j + 1 :]) / factor[j, j]
    return out


def dense(kernel, x, y, trial=0):
    """Return GPyTorch's own kernel matrix, from distances that keep all digits.

    It takes them from differences for up to 25 points that are not the same ones, hence
    the blocks and the row too many. Else they are off by 1e-8 between equal points.
    """
    x, y = map(torch.as_tensor, (x, y))
    with torch.no_grad():
        rows = [
            torch.cat(
                [
                    kernel(part, torch.cat([other, other[:1]])).to_dense()[..., :-1]
                    for other in y.split(BLOCK)
                ],
                -1,
            )
            for part in x.split(BLOCK)
        ]
    out = torch.cat(rows, -2)
    return (out[trial] if out.dim() > 2 else out).numpy()


class Believed(NamedTuple):
    """The prior of one function in one trial.

    Args:
        kernel: a function of two arrays of points.
        noise: variance of one observation, in spreads if outcomes are standardised.
        mean: the prior mean; in spreads from the average if they are.
        standardize: whether they are.
        conjugate: whether deviations scale with a noise that is learned in closed form.
        fade: what is left of a reading a round later.
    """

    kernel: Any
    noise: float
    mean: float
    standardize: bool
    conjugate: bool = False
    fade: float = 1.0

    def posterior(self, readings, at, now):
        """Return means and deviations at points, and the prior deviation."""
        came = np.array([r.came for r in readings], dtype=bool)
        y = np.array([r.value for r in readings], dtype=np.longdouble)
        center, size, known = 0.0, 1.0, False
        if self.standardize and came.any():
            center = y[came].mean()
            spread = y[came].std(ddof=1) if came.sum() > 1 else 0.0
            known = spread > 1e-12 * abs(center)
            size = spread if known else 1.0
        mean = self.mean
        if self.standardize:
            mean = center + (mean * size if known else 0.0)
        prior = np.diagonal(self.kernel(at, at))
        if not readings:
            std = np.sqrt(prior) * size
            return np.full(len(at), mean), std, std.max()
        x = np.stack([r.x for r in readings])
        own = self.standardize and not known
        noise = np.array(
            [
                self.noise if r.noise is None or own else r.noise / size**2
                for r in readings
            ]
        )
        noise = noise * self.fade ** (np.array([r.t for r in readings]) - now)
        rest = np.where(came | (not self.standardize), y - mean, 0.0) / size
        cross = self.kernel(x, at)
        weights = solved(self.kernel(x, x), noise, np.column_stack([rest, cross]))
        var = prior - (cross * weights[:, 1:]).sum(0)
        scale = size
        if self.conjugate:
            count, left = (1 / noise).sum(), rest @ weights[:, 0]
            scale = size * np.sqrt((1 + left / 2) / (1 + count / 2))
        std = np.sqrt(np.maximum(var, 0)) * scale
        top = float(np.sqrt(prior.max()) * scale)
        return mean + size * (cross.T @ weights[:, 0]), std, top


def framed(readings, numbers):
    """Return centre and spread of the open numbers: of the first ones, by rounds."""
    count = len(readings)
    first = 1 << count.bit_length() - 1 if count >= 4 else min(count, 1)
    rows = sorted(readings, key=lambda r: r.t)[:first]
    if not rows:
        return 0.0, 1.0
    z = np.stack([r.x[numbers] for r in rows])
    center = z.mean(0)
    spread = z.std(0, ddof=1) if first > 1 else np.zeros_like(center)
    return center, np.where(spread > 1e-12 * abs(center), spread, 1.0)


# -- what is played --------------------------------------------------------------------


class Deviation(NamedTuple):
    """The worst deviations of a look, as shares of the prior deviation."""

    mean: float
    std: float


class Programme:
    """A policy that is played at random, beside what it was told."""

    def __init__(self, seed, folder):
        self.rng = np.random.default_rng([91, seed])
        self.path = Path(folder) / f"{seed}.ckpt"
        self.changes, self.fitted = 0, False
        self.closed = self.factors = True  # the kernels, as engines need them
        self.open: dict[str, Any] = {}  # choices that wait for feedback, by id
        self.worst = Deviation(0.0, 0.0)
        self.acts: list[str] = []
        self.choose()

    def one(self, *options):
        return options[self.rng.integers(len(options))]

    def chance(self, share):
        return self.rng.uniform() < share

    # -- what is drawn before it begins ----------------------------------------------

    def choose(self):
        self.kind = self.one(
            "points", "covariance", "grid", "box", "space", "contexts", "linear", "open"
        )
        self.dtype = F32 if self.chance(0.15) else F64
        self.trials = self.one(None, None, 2, 3)
        self.size = self.trials or 1
        self.actions = getattr(self, f"make_{self.kind}")()
        self.engine = "auto"
        rule = self.one(cb.CKB, cb.RPOL, cb.GPUCB, cb.GPTS, Own, cb.baselines.CONFIG)
        self.m = 0 if rule in (cb.GPUCB, cb.GPTS) else self.one(1, 1, 2, 3)
        self.functions = 1 + self.m
        self.beliefs = self.make_beliefs()
        learns = any(b.refit_every or b.learn_noise for b in self.beliefs)
        self.learns = learns and self.kind not in ("linear", "open")
        self.feedback = self.one(None, None, "Delayed", "Sliding")
        if any(b.fade is not None for b in self.beliefs):
            self.feedback = None
        if self.feedback == "Delayed" and (self.level_moves() or rule is cb.GPTS):
            self.feedback = None
        self.window = self.one(3, 6, 15)
        self.restart = None
        if rule in (cb.CKB, cb.RPOL, Own) and self.chance(0.25):
            self.restart = self.one(5, 11, "doubling")
        self.turned = self.chance(0.3)
        self.level, self.scale = self.make_level()
        self.waves = self.rng.normal(size=(self.functions, self.actions.dim))
        self.readings = [[[] for _ in range(self.size)] for _ in range(self.functions)]
        self.build(rule)

    def level_moves(self):
        """Whether a refit moves what stands in for rewards that have not come."""
        return any(b.learn_mean and not b.standardize for b in self.beliefs)

    def make_points(self):
        dim = self.one(1, 2, 3)
        points = self.rng.uniform(size=(self.one(12, 40), dim))
        return cb.Finite(torch.from_numpy(points))

    def make_covariance(self):
        points = self.rng.uniform(size=(20, 2))
        kernel = CASES["matern52"].values
        self.table = kernel(points, points)
        return cb.Finite(covariance=torch.from_numpy(self.table))

    def make_grid(self):
        sizes = self.one((25,), (6, 7), (3, 4, 4))
        axes = [np.sort(self.rng.uniform(size=n)) for n in sizes]
        return cb.ProductGrid([torch.from_numpy(axis) for axis in axes])

    def make_box(self):
        dim = self.one(1, 2)
        return cb.Box([0.0] * dim, [1.0] * dim)

    def make_space(self):
        return cb.Space(level=cb.Int(0, 6), codec=cb.Category("a", "b", "c"))

    def make_contexts(self):
        return cb.Space(
            model=cb.Category("a", "b", "c"), load=cb.Context(cb.Float(0.0, 1.0))
        )

    def make_linear(self):
        return self.one(self.make_points, self.make_grid, self.make_space)()

    def make_open(self):
        return cb.Space(model=cb.Category("a", "b", "c"), load=cb.Context(2))

    def make_beliefs(self):
        one = self.make_belief()
        apart = self.chance(0.3)
        costs = [self.make_belief() if apart else one for _ in range(self.m)]
        return [one, *costs]

    def make_belief(self):
        if self.kind in ("linear", "open"):
            noise, fade = self.one(None, 0.1), self.one(None, None, 0.98)
            return cb.GP.linear(self.actions, self.one(0.5, 2.0), noise, fade)
        if self.kind == "space" and self.chance(0.5):
            belief = cb.GP.default(self.actions)
            belief.refit_every = self.one(None, 7, "auto")
            self.closed = False
            return belief
        kernel = None
        if self.kind != "covariance":
            names = {"grid": FACTORS, "box": CLOSED}.get(self.kind, [*CASES])
            case = CASES[self.one(*names)]
            self.closed &= case.closed
            self.factors &= case.factors
            kernel = held(case.make(self.actions.dim))
        standardize = self.chance(0.4)
        mean = 0.0 if standardize else self.one(0.0, 1.5)
        # a fit may end at a lengthscale of 1e-10, for which float32 has no digits
        learned = self.dtype == F64 and self.chance(0.3)
        if learned and self.chance(0.5):
            mean = "learned"
        noise = None if learned else self.one(0.01, 0.1, 0.001)
        return cb.GP(kernel, noise, mean, standardize, 9 if learned else None)

    def make_level(self):
        if not all(b.standardize for b in self.beliefs):
            return 0.0, 1.0
        if self.dtype == F32:
            return self.one(0.0, 5.0), self.one(1.0, 40.0)
        return self.one(0.0, 5.0, -300.0), self.one(1.0, 1e-3, 40.0)

    def engines(self):
        """Return the engines that take the set and all its kernels."""
        names = ["auto", "auto"]
        if self.kind in ("linear", "open", "box", "contexts"):
            return names
        names += ["joint", "gpytorch"]
        if self.kind == "covariance":
            return names
        names += ["factor"] + ["stream"] * self.closed
        return names + ["product"] * (self.factors and self.kind != "points")

    def build(self, rule):
        engines = self.engines()
        if rule is cb.GPTS:  # on the others not every kernel can be drawn from
            engines = [name for name in engines if name in DRAWN]
        self.engine = self.one(*engines)
        draws = [cb.UCB(2.0), cb.UCB(1.0)]
        if not self.delayed and self.engine in DRAWN:
            draws += [cb.TS(1.0), cb.Rand(1.0)]
        own: dict[str, Any] = {"reward": self.beliefs[0], "trials": self.trials}
        own |= {"dtype": self.dtype, "engine": self.engine, "seed": 3}
        signs = [1.0, *(self.one(1.0, -1.0) for _ in range(self.m))]
        self.names_of_costs = [f"cost{j}" for j in range(self.m)]
        self.limits = self.rng.uniform(-0.5, 1.5, self.m) * self.scale + self.level
        if self.m:
            own["costs"] = dict(zip(self.names_of_costs, self.beliefs[1:], strict=True))
            own["thresholds"] = {
                name: f"{'<=' if sign > 0 else '>='} {limit!r}"
                for name, sign, limit in zip(
                    self.names_of_costs,
                    signs[1:],
                    map(float, self.limits),
                    strict=True,
                )
            }
        own["minimise"] = self.turned
        if rule is cb.CKB:
            own |= {"step": 0.1, "cap": 5.0, "explore": self.one(*draws)}
            own["dual"] = "projected"
        elif rule in (cb.GPUCB, Own, cb.baselines.CONFIG):
            own["explore"] = draws[0]
        elif rule is cb.RPOL:
            own["explore"] = self.one(*draws)
        if self.feedback is not None:
            own["feedback"] = getattr(cb, self.feedback)(self.window)
        if self.restart is not None:
            own |= {"restart": self.restart, "forget": True}
        self.rule = rule
        self.policy = rule(self.actions, **own)

    # -- what happens ------------------------------------------------------------------

    def play(self, acts):
        weights = np.array([*ACTS.values()], dtype=float)
        for _ in range(acts):
            name = str(self.rng.choice([*ACTS], p=weights / weights.sum()))
            self.acts.append(name)
            getattr(self, name)()
        self.look()
        torn(self.policy)
        self.look()

    @property
    def delayed(self):
        return self.feedback == "Delayed"

    def context(self):
        shape = (self.size,) if self.trials and self.chance(0.5) else ()
        if self.kind == "contexts":
            return {"load": self.rng.uniform(size=shape)}
        if self.kind == "open":
            return {"load": self.rng.normal(3.0, 2.0, size=(*shape, 2))}
        return None

    def ask(self):
        if len(self.open) >= FEW:
            return
        how = {}
        context = self.context()
        if context is not None:
            how["context"] = context
        elif self.actions.continuous is False and self.chance(0.5):
            count = int(self.policy.actions.size)
            how["among"] = self.rng.choice(count, size=count // 2, replace=False)
        self.asked([self.policy.ask(**how)])

    def many(self):
        context = self.context()
        how = {} if context is None else {"context": context}
        self.asked(self.policy.ask(n=3, **how))

    def asked(self, choices):
        for choice in choices:
            t = choice.t
            if self.begins(t):
                self.readings = [[[] for _ in row] for row in self.readings]
            self.open[choice.id] = choice
            if self.delayed:
                x = choice.x.double().reshape(self.size, -1).numpy()
                for f, i in self.each():
                    stand_in = self.limits[f - 1] if f else float(self.beliefs[0].mean)
                    reading = Reading(t, x[i], stand_in, came=False)
                    self.readings[f][i].append(reading)

    def each(self):
        return itertools.product(range(self.functions), range(self.size))

    def begins(self, t):
        """Whether the beliefs are emptied as a round begins."""
        if self.restart is None or t == 1:
            return False
        if self.restart == "doubling":
            return t & (t - 1) == 0
        return (t - 1) % self.restart == 0

    def value(self, f, i, x):
        wave = math.sin(4 * x @ self.waves[f] + i)
        return self.level + self.scale * (wave + 0.2 * self.rng.normal())

    def waiting(self):
        return self.one(*self.open.values()) if self.open else None

    def tell(self, choice=None):
        choice = choice or self.waiting()
        if choice is not None:
            self.give(choice, [*range(self.functions)], True)

    def part(self):
        choice = self.waiting()
        if choice is not None:
            some = [f for f in range(self.functions) if self.chance(0.5)]
            self.give(choice, some, self.chance(0.5))

    def round(self):
        if len(self.open) < FEW:
            before = {*self.open}
            self.ask()
            (new,) = {*self.open} - before
            self.tell(self.open[new])

    def give(self, choice, functions, everywhere):
        """Tell what a choice still waits for, of some functions in some trials."""
        waits = np.array(missing(self.policy, choice))
        where = np.ones(self.size, dtype=bool)
        if self.trials and not everywhere:
            where = self.rng.uniform(size=self.size) < 0.6
        wanted = [f for f in functions if waits[where, f].all()]
        if not wanted or not where.any():
            return
        x = choice.x.double().reshape(self.size, -1).numpy()
        values = np.array(
            [[self.value(f, i, x[i]) for f in wanted] for i in range(self.size)]
        )
        noise, own = None, self.rng.uniform(0.01, 0.3, self.size) * self.scale**2
        if not self.delayed and not self.conjugate and self.chance(0.15):
            noise = own
        self.send(choice, wanted, values, where, noise)
        for f, i in itertools.product(wanted, range(self.size)):
            if where[i]:
                value = values[i, wanted.index(f)]
                of = None if noise is None else noise[i]
                self.note(choice.t, f, i, x[i], value, of)
        if not any(other.id == choice.id for other in self.policy.outstanding):
            del self.open[choice.id]

    @property
    def conjugate(self):
        return any(b.conjugate for b in self.beliefs)

    def send(self, choice, wanted, values, where, noise):
        shaped = values if self.trials else values[0]
        told = {}
        if 0 in wanted:
            told["reward"] = shaped[..., wanted.index(0)]
        costs = [f for f in wanted if f]
        if len(costs) == self.m and costs and self.chance(0.5):
            told["cost"] = shaped[..., [wanted.index(f) for f in costs]]
        elif costs:
            told["cost"] = {
                self.names_of_costs[f - 1]: shaped[..., wanted.index(f)] for f in costs
            }
        if noise is not None:
            told["noise"] = noise if self.trials else noise[0]
        if not where.all():
            told["where"] = where
        self.policy.tell(self.one(choice, choice.id), **told)

    def note(self, t, f, i, x, value, noise):
        """Note a value, if it came in time to count."""
        rows = self.readings[f][i]
        if self.delayed:
            places = [k for k, r in enumerate(rows) if r.t == t and r.t]
            if places and self.policy.t - t <= self.window:
                (place,) = places
                rows[place] = Reading(t, x, value)
            return
        if self.feedback == "Sliding" and t < self.policy.t + 1 - self.window:
            return
        rows.append(Reading(t, x, value, noise))

    def observe(self):
        count = self.one(1, 3, 12)
        x = self.places(count)
        wanted = [0] if self.chance(0.3) else [*range(self.functions)]
        values = np.array(
            [
                [[self.value(f, i, p) for f in wanted] for p in x]
                for i in range(self.size)
            ]
        )
        shaped = values if self.trials else values[0]
        told = {"x": x, "reward": shaped[..., 0]}
        if len(wanted) > 1:
            told["cost"] = shaped[..., 1:]
        noise = None
        if not self.delayed and not self.conjugate and self.chance(0.3):
            noise = self.rng.uniform(0.01, 0.3, count) * self.scale**2
            told["noise"] = noise
        self.policy.observe(**told)
        for f, i in itertools.product(wanted, range(self.size)):
            t = 0 if self.beliefs[f].fade is None else self.policy.t
            for k in range(count):
                of = None if noise is None else noise[k]
                value = values[i, k, wanted.index(f)]
                self.readings[f][i].append(Reading(t, x[k], value, of))

    def cancel(self):
        choice = self.waiting()
        if choice is not None:
            self.policy.cancel(choice)
            del self.open[choice.id]

    def fail(self):
        choice = self.waiting()
        if choice is not None and np.all(missing(self.policy, choice)):
            self.policy.tell(choice, failed=True)
            del self.open[choice.id]

    def refit(self):
        if self.learns:
            self.policy.refit()
            self.fitted = True

    def read(self):
        """Look at what changes nothing."""
        self.policy.status()
        self.policy.history()
        for choice in self.policy.outstanding[-1:]:
            self.policy.explain(choice)
        rows = [self.in_window(readings) for readings in self.readings[0]]
        if any(r.came for row in rows for r in row):
            context = self.context()
            self.policy.recommend(**({} if context is None else {"context": context}))

    def copy(self):
        how = self.one(copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p)))
        self.policy = how(self.policy)

    def save(self):
        light, actions = self.chance(0.5), self.policy.actions
        self.policy.save(self.path, overwrite=True, actions=not light)
        given = {"actions": actions} if light else {}
        if self.chance(0.8):
            self.policy = cb.load(self.path, trust=(Own,), **given)

    def tear(self):
        torn(self.policy)

    def add(self):
        """A category comes, or goes."""
        name = {"space": "codec", "contexts": "model", "open": "model"}.get(self.kind)
        if name is None:
            return
        self.changes += 1
        if self.changes == 1:
            self.policy.retire(name, "b")
        elif self.changes < 4:
            self.policy.add(name, f"new{self.changes}")

    # -- what is compared --------------------------------------------------------------

    def places(self, count):
        """Points to look at, or to observe."""
        actions = self.policy.actions
        if self.kind == "box":
            return self.rng.uniform(size=(count, actions.dim))
        if self.kind in ("contexts", "open"):
            categories = self.rng.integers(3, size=(count, 1)).astype(float)
            if self.kind == "contexts":
                load = self.rng.uniform(size=(count, 1))
            else:
                load = self.rng.normal(3.0, 2.0, size=(count, 2))
            return np.concatenate([load, categories], 1)
        index = self.rng.integers(int(actions.size), size=count)
        return actions.points(torch.from_numpy(index)).double().numpy()

    def look(self):
        actions = self.policy.actions
        if self.kind in ("box", "contexts", "open") or self.chance(0.2):
            at = self.places(20)
            found = self.policy.posterior(at)
        else:
            at = actions.points(torch.arange(int(actions.size))).double().numpy()
            found = self.policy.posterior()
        if self.dtype == F32:
            at = at.astype(np.float32).astype(np.float64)
        parts = [found.reward] if found.costs is None else [found.reward, found.costs]
        mean, std = (
            torch.cat(
                [
                    getattr(p, name).double().reshape(self.size, -1, len(at))
                    for p in parts
                ],
                1,
            ).numpy()
            for name in ("mean", "std")
        )
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        for f, i in self.each():
            self.compare(f, i, at, mean[i, f], std[i, f])

    def compare(self, f, i, at, mean, std):
        readings = self.in_window(self.readings[f][i])
        known, want = self.prior(f, i, readings), {}
        want["mean"], want["std"], size = known.posterior(readings, at, self.policy.t)
        spare = ROUNDING[self.dtype] * np.abs(want["mean"]).max()
        off = [
            max(0.0, float((np.abs(found - want[name]).max() - spare) / size))
            for name, found in (("mean", mean), ("std", std))
        ]
        self.worst = Deviation(*map(max, self.worst, off))

    def in_window(self, readings):
        if self.feedback != "Sliding":
            return readings
        first = self.policy.t + 1 - self.window
        return [r for r in readings if r.t >= first]

    def prior(self, f, i, readings):
        """Return the prior of a function in a trial, with fitted hyperparameters."""
        spec = self.beliefs[f]
        if self.kind == "open":
            center, size = framed(readings, [0, 1])
            kernel = self.open_kernel(spec, center, size)
        elif self.kind == "covariance":

            def kernel(x, y):
                at = x[:, 0].round().astype(int), y[:, 0].round().astype(int)
                return self.table[np.ix_(*at)]

        else:
            kernel = self.plain_kernel(spec.kernel)
        noise, mean = float(spec.noise), float(spec.mean)
        if self.fitted or spec.refit_every or spec.unit is not None:
            groups = beliefs_of(self.policy).groups
            (group,) = [g for g in groups if f in g.functions]
            covariance, at = group.prior.covariance, group.functions.index(f)
            own = covariance.kernel
            if self.kind != "covariance":

                def kernel(x, y):
                    pair = [covariance.inputs(torch.from_numpy(v)) for v in (x, y)]
                    return dense(own, *pair, i)

            noise = float(group.noise[i])
            sign = -1.0 if self.is_turned(f) else 1.0
            part = group.scale.constants if spec.standardize else group.scale.means
            mean = sign * float(part[i, at])
        fade = 1.0 if spec.fade is None else float(spec.fade)
        return Believed(kernel, noise, mean, spec.standardize, spec.conjugate, fade)

    def is_turned(self, f):
        """Whether the policy sees minus the function."""
        return float(self.policy.objective.signs[f]) < 0

    def plain_kernel(self, kernel):
        return lambda x, y: dense(kernel, x, y)

    def open_kernel(self, spec, center, size):
        def kernel(x, y):
            h, k = (
                np.column_stack([(v[:, :2] - center) / size, np.ones(len(v))])
                for v in (x, y)
            )
            same = x[:, 2:].round() == y[:, 2].round()
            return float(spec.kernel.scale) ** 2 * (h @ k.T) * same

        return kernel

    def __str__(self):
        words = self.kind, self.engine, str(self.dtype).removeprefix("torch.")
        rule = self.rule.__name__
        more = self.trials, self.feedback, self.window, self.restart
        return f"{' '.join(words)}; {rule} {more} {self.beliefs}"


def played(seed, folder):
    """Play a programme, and return it with its worst deviations."""
    programme = Programme(seed, folder)
    most = 30 if programme.kind == "box" else 90  # each search of a box takes 0.1 s
    programme.play(int(programme.rng.integers(15, most)))
    return programme


@pytest.mark.parametrize("seed", [*range(QUICK), TINY_PERIOD])
def test_the_posterior_is_that_of_what_was_told(seed, tmp_path):
    programme = played(seed, tmp_path)
    assert max(programme.worst) < LIMITS[programme.dtype], str(programme)


def main():
    """Play many programmes, and print the worst deviations by kind."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1000)
    given = parser.parse_args()
    warnings.simplefilter("error", UserWarning)
    for words in (".*was told (above|below) its limit", ".*lie to one side"):
        warnings.filterwarnings("ignore", words)
    worst: dict[str, Deviation] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.count):
            try:
                programme = played(seed, folder)
            except Exception as error:
                print(f"{seed}: {type(error).__name__}: {error}", flush=True)
                continue
            if not max(programme.worst) < LIMITS[programme.dtype]:
                print(f"{seed}: {programme.worst} {programme}", flush=True)
            words = [programme.kind, programme.engine, str(programme.dtype)[6:]]
            key = " ".join(words)
            before = worst.get(key, Deviation(0.0, 0.0))
            worst[key] = Deviation(*map(max, before, programme.worst))
    for key, (mean, std) in sorted(worst.items()):
        print(f"{key:32} mean {mean:.1e} std {std:.1e}")


if __name__ == "__main__":
    main()
