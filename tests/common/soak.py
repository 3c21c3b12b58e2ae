"""Policies of all kinds played for long, in turns: do memory, files and beliefs hold?

As a script it plays for so many seconds, ``soak.py 3600``, prints a line a minute, and
ends with an error where a policy that was loaded is not the one that was saved, where
beliefs are not what a dense solve of all that was told gives, or where memory grew.
"""

from __future__ import annotations

import gc
import random
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import gpytorch
import numpy as np
import psutil
import torch
from kernel_cases import Dense

import cbandit as cb

F64 = torch.float64
NOISE, SCALE = 0.01, 0.3
TOLD_AT = ">= -0.4"  # the second cost is one that is to stay above
ENGINES = {
    "line": ("joint", "factor", "stream", "auto"),
    "grid": ("joint", "factor", "product", "stream"),
    "box": ("auto",),
    "space": ("auto",),
}
TOGETHER = 6  # lives led in turns
# by how much beliefs may be off a dense solve, or off what GPyTorch says: its distances
# cancel where a lengthscale that was learned is far below the points' own
LIMIT = {"dense": 1e-8, "gpytorch": 1e-4}
GROWTH = 20.0  # MB an hour that memory may grow by over the last half


def kernel() -> gpytorch.kernels.Kernel:
    out = gpytorch.kernels.RBFKernel().double()
    out.lengthscale = torch.tensor(SCALE, dtype=F64)
    return out


def rbf(x: np.ndarray, y: np.ndarray, scale: float = SCALE) -> np.ndarray:
    return np.exp(-0.5 * ((x[:, None] - y[None]) ** 2).sum(-1) / scale**2)


def where(kind: str) -> cb.Actions:
    if kind == "line":
        return cb.Finite(torch.linspace(0, 1, 50, dtype=F64).unsqueeze(-1))
    if kind == "grid":
        return cb.ProductGrid([torch.arange(n, dtype=F64) / n for n in (12, 9)])
    if kind == "box":
        return cb.Box([0.0, 0.0], [1.0, 1.0])
    return cb.Space(
        threads=cb.Int(1, 8), rate=cb.Float(0, 1), codec=cb.Category(*"abc")
    )


class Life:
    """One policy from its first round to its last, and all that it was told."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.rows: list[tuple[int, np.ndarray, int, np.ndarray, float | None]] = []
        dice = self.dice
        self.place = dice.choices([*ENGINES], (8, 8, 2, 1))[0]
        self.actions = where(self.place)
        self.finite = self.place in ("line", "grid")
        lasts = {"box": (10, 40), "space": (5, 12)}
        self.rounds = dice.randrange(*lasts.get(self.place, (80, 500)))
        self.rule = dice.choice(("CKB", "RPOL", "CONFIG", "GPUCB", "EpochPenalty"))
        if self.place == "line" and dice.random() < 0.25:
            self.rule = dice.choice(("OPB", "LCLUCB"))
        self.trials = dice.choice((None, None, 3)) if self.finite else None
        self.named = self.rule not in ("GPUCB", "EpochPenalty") and dice.random() < 0.5
        self.m = 0 if self.rule == "GPUCB" else 2
        self.feedback = None
        if self.rule in ("CKB", "RPOL"):
            windows = (None, cb.Sliding(40), cb.Delayed(8))
            self.feedback = dice.choices(windows, (2, 1, 1))[0]
        self.kind = dice.choice(("fixed", "spread", "learned"))
        if isinstance(self.feedback, cb.Delayed) or self.rule == "OPB":
            self.kind = "fixed"  # stand-ins of what has not come are easy to tell then
        if self.place == "space":
            self.kind = "learned"  # a kernel of its own for what has no order
        other = self.place == "space" or self.rule == "EpochPenalty"
        self.against = "gpytorch" if other else "dense"
        self.policy = self._made()
        self.stood: dict[int, np.ndarray] = {}  # where each round chose
        self.in_time: set[int] = set()  # rounds whose feedback came within the window

    def __repr__(self) -> str:
        words = self.policy, self.kind, self.feedback, self.trials, self.named
        return f"life {self.seed}, {', '.join(map(repr, words))}"

    def _belief(self) -> cb.GP:
        if self.kind == "learned":
            if self.place == "space":
                return cb.GP.default(self.actions)
            return cb.GP(kernel(), noise=None, refit_every=60, standardize=True)
        return cb.GP(kernel(), noise=NOISE, standardize=self.kind == "spread")

    def _made(self) -> cb.Policy:
        more = {"seed": self.dice.randrange(1000), "trials": self.trials}
        own, explore = {}, self.dice.choice((cb.UCB(2.0), cb.TS(1.0), cb.Rand(1.0)))
        costs, limits = [self._belief(), self._belief()], [0.3, 0.4]
        if self.rule in ("OPB", "LCLUCB"):
            belief = cb.Counts(0.1) if self.rule == "OPB" else cb.Linear(0.1, norm=2.0)
            costs = [belief, belief] if self.rule == "OPB" else [belief]
            self.m, own["reward"] = len(costs), belief
            known = -0.6 if self.rule == "OPB" else 0.0  # what is linear is 0 at 0
            more["safe"] = cb.Safe(index=0, reward=0.0, cost=[known] * self.m)
            if self.rule == "OPB":
                own["largest"], own["horizon"] = 2.0, self.rounds
            limits = limits[: self.m]
            self.named = False
        else:
            own["reward"], own["engine"] = (
                self._belief(),
                self.dice.choice(ENGINES[self.place]),
            )
            plain = self.rule in ("CONFIG", "EpochPenalty") or self.place == "space"
            if plain or isinstance(self.feedback, cb.Delayed):
                explore = cb.UCB(2.0)
            own["explore"] = explore
            if self.feedback is not None:
                own["feedback"] = self.feedback
        if self.named:
            costs = {"heat": costs[0], "yield": costs[1]}
            limits = {"heat": 0.3, "yield": TOLD_AT}
        if self.rule == "CKB":
            own |= {"step": 0.2, "cap": 5.0}
        if self.rule == "EpochPenalty":
            return cb.EpochPenalty(
                self.actions, costs=2, epoch=15, thresholds=limits, **own, **more
            )
        if self.rule == "GPUCB":
            kind = cb.GPTS if isinstance(explore, cb.TS) else cb.GPUCB
            own["explore"] = explore if kind is cb.GPTS else cb.UCB(2.0)
            return kind(self.actions, **own, **more)
        kind = getattr(cb, self.rule, None) or getattr(cb.baselines, self.rule)
        return kind(self.actions, costs=costs, thresholds=limits, **own, **more)

    def outcome(self, x: torch.Tensor) -> np.ndarray:
        """Reward and costs ``(*trials, 1 + m)`` in the library's senses."""
        at = x.double().numpy()[..., 0] / (8 if self.place == "space" else 1)
        every = [1 - (at - 0.7) ** 2, at - 0.5, 0.4 - at, at][: 1 + self.m]
        out = np.stack(every, -1)
        return out + 0.1 * self.numbers.standard_normal(out.shape)

    def turn(self, tally: dict[str, int], folder: Path) -> bool:
        """Play a round, and tell of some; whether there are more to play."""
        policy, dice = self.policy, self.dice
        if dice.random() < 0.02:
            self._saved_and_loaded(folder / "life.ckpt")
            policy = self.policy
            tally["loads"] += 1
        try:
            choice = policy.ask()
        except cb.CBanditError as error:
            # enough failures leave nothing, or no safe action: a life like another
            if not any(word in str(error) for word in ("failed", "no action")):
                raise
            return False
        tally["rounds"] += 1
        self.stood[choice.t] = self._place(choice)
        while len(policy.outstanding) > dice.randrange(10):
            choice = dice.choice(policy.outstanding)
            tally["late"] += choice.t < policy.t
            chance = dice.random()
            if chance < 0.02:
                policy.cancel(choice)
                tally["cancelled"] += 1
            elif chance < 0.025 and self.rule not in ("OPB", "LCLUCB"):
                policy.tell(choice, failed=True)
                tally["failed"] += 1
            else:
                self._tell(choice)
        if dice.random() < 0.1:
            known = policy.history()["reward"].notna().any()
            if (
                known
                and policy.t > 2
                and self.place != "space"
                and self.rule != "EpochPenalty"
            ):
                policy.recommend()
        return policy.t < self.rounds

    def _tell(self, choice: cb.Choice) -> None:
        policy, y = self.policy, self.outcome(choice.x)
        noise = None
        plain = self.kind == "fixed" and self.feedback is None
        if plain and self.rule in ("CKB", "RPOL", "CONFIG", "GPUCB"):
            noise = self.dice.choice((None, None, 0.05))
        x = self._place(choice)
        if policy.t - choice.t <= getattr(self.feedback, "window", 0):
            self.in_time.add(choice.t)
        for f in range(1 + self.m):
            if f == 0 or not policy.sees_costs:
                self.rows.append((choice.t, x, f, np.atleast_1d(y[..., f]), noise))
        more = {} if noise is None else {"noise": noise}
        if self.m == 0:
            policy.tell(choice, reward=y[..., 0], **more)
        elif not self.named:
            cost = y[..., 1:]
            if self.dice.random() < 0.5 and self.rule != "EpochPenalty":
                policy.tell(choice.id, cost=cost, **more)
                policy.tell(choice, reward=y[..., 0], **more)
            else:
                policy.tell(choice, reward=y[..., 0], cost=cost, **more)
        else:
            parts = {"heat": y[..., 1], "yield": -y[..., 2]}
            policy.tell(choice, reward=y[..., 0], **more)
            for name in self.dice.sample([*parts], 2):
                policy.tell(choice.id, cost={name: parts[name]}, **more)

    @staticmethod
    def _place(choice: cb.Choice) -> np.ndarray:
        return np.atleast_2d(choice.x.double().numpy())

    def _points(self) -> torch.Tensor:
        if self.finite:
            return self.actions.points(torch.arange(self.actions.size)).double()
        if self.place == "box":
            return torch.rand(
                40, 2, generator=torch.Generator().manual_seed(0)
            ).double()
        every = [torch.arange(1.0, 9), torch.tensor([0.1, 0.7]), torch.arange(3.0)]
        return torch.cartesian_prod(*every).double()

    def _found(self, policy: cb.Policy) -> list[torch.Tensor]:
        """Return means and deviations of all functions, reward first."""
        found = policy.posterior() if self.finite else policy.posterior(self._points())
        out = [found.reward.mean, found.reward.std]
        return out if found.costs is None else [*out, found.costs.mean, found.costs.std]

    def _saved_and_loaded(self, path: Path) -> None:
        """Go on with what was saved and loaded; it is the same, and chooses alike."""
        old = self.policy
        old.save(path, overwrite=True)  # another life's
        new = cb.load(path)
        pairs = [*zip(self._found(old), self._found(new), strict=True)]
        pairs.append((old.multiplier, new.multiplier))
        assert all(torch.equal(a, b) for a, b in pairs), self
        assert [c.id for c in old.outstanding] == [c.id for c in new.outstanding]
        assert old.history().equals(new.history())
        loaded = cb.load(path)
        try:
            one, two = old.ask(), loaded.ask()
        except cb.CBanditError:
            one = two = None
        assert one is None or torch.equal(one.x, two.x), self
        self.policy = new

    def end(self) -> float:
        """Return by how much beliefs differ from a dense solve, in deviations."""
        found = self._found(self.policy)
        if self.rule in ("OPB", "LCLUCB"):
            return self._stagewise(found)
        mean = torch.cat([found[0].unsqueeze(-2), *found[2:3]], -2)
        std = torch.cat([found[1].unsqueeze(-2), *found[3:]], -2)
        shape = (-1, *mean.shape[-2:])
        mean, std = mean.reshape(shape), std.reshape(shape)
        if self.against == "gpytorch":
            wanted_mean, wanted_std = self._of_model()
        else:
            wanted_mean, wanted_std = self._of_dense(*mean.shape[:2])
            if self.named:
                wanted_mean[:, 2] *= -1
        unit = np.abs(wanted_mean).max() + wanted_std.max()
        off = np.abs(mean.reshape(wanted_mean.shape).numpy() - wanted_mean).max()
        wide = std.reshape(wanted_std.shape).numpy() ** 2 - wanted_std**2
        return max(off / unit, np.abs(wide).max() / unit**2)

    def _of_dense(self, size: int, functions: int) -> tuple[np.ndarray, np.ndarray]:
        points, means, stds = self._points().numpy(), [], []
        own = self.policy.model.models if self.kind == "learned" else []
        for k in range(size):
            for f in range(functions):
                dense = Dense(rbf, NOISE, standardize=self.kind != "fixed")
                if own:
                    y = np.array([y for _, y, _ in self._counted(k, f)])
                    scale, noise = _learned(own[f], k, self._points()[:1])
                    dense = Dense(partial(rbf, scale=scale), noise, standardize=True)
                    dense.noise /= y.var(ddof=1)
                for x, y, noise in self._counted(k, f):
                    dense.add(x, y, noise)
                mean, std = dense.posterior(points)
                means.append(mean)
                stds.append(std)
        shape = (size, functions, -1)
        return np.array(means).reshape(shape), np.array(stds).reshape(shape)

    def _counted(self, k: int, f: int):
        """Yield what counts of one function in one trial."""
        rows = [(t, x[k], y[k], v) for t, x, of, y, v in self.rows if of == f]
        if isinstance(self.feedback, cb.Sliding):
            first = self.policy.t + 1 - self.feedback.window
            rows = [row for row in rows if row[0] >= first]
        if isinstance(self.feedback, cb.Delayed):
            told = {t: y for t, _, y, _ in rows if t in self.in_time}
            limit = 0.0 if f == 0 else (0.3, 0.4)[f - 1]
            rows = [(t, x[k], told.get(t, limit), None) for t, x in self.stood.items()]
        for _, x, y, noise in rows:
            yield x, y, noise

    def _of_model(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what GPyTorch makes of the same data and hyperparameters."""
        with torch.no_grad():
            found = [
                model.posterior(self._points()) for model in self.policy.model.models
            ]
        size = 1 if self.trials is None else self.trials
        means = [each.mean[..., 0].reshape(size, 1, -1) for each in found]
        stds = [each.variance[..., 0].sqrt().reshape(size, 1, -1) for each in found]
        return torch.cat(means, 1).numpy(), torch.cat(stds, 1).numpy()

    def _stagewise(self, found: list[torch.Tensor]) -> float:
        """Averages an arm, or least squares with a ridge of 1."""
        means = [found[0].unsqueeze(-2), *found[2:3]]
        mean = torch.cat(means, -2).reshape(-1, 1 + self.m, len(self._points())).numpy()
        points, worst = self._points().numpy(), 0.0
        for k in range(len(mean)):
            for f in range(1 + self.m):
                rows = [(x[k], y[k]) for _, x, of, y, _ in self.rows if of == f]
                x, y = np.array([x for x, _ in rows]), np.array([y for _, y in rows])
                if self.rule == "OPB":
                    same = np.isclose(points, x.T)
                    seen = same.any(1)
                    wanted = (same @ y)[seen] / same.sum(1)[seen]
                    worst = max(worst, np.abs(mean[k, f, seen] - wanted).max())
                else:
                    slope = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)
                    worst = max(worst, np.abs(mean[k, f] - points @ slope).max())
        return worst


def _learned(model, k: int, x: torch.Tensor) -> tuple[float, float]:
    """Return the lengthscale and the noise of trial ``k``."""
    scale = model.covar_module.base_kernel.lengthscale.flatten()
    with torch.no_grad():
        noisy, quiet = (
            model.posterior(x, observation_noise=each).variance.flatten()
            for each in (True, False)
        )
    return scale[k].item(), (noisy - quiet)[k].item()


def memory() -> float:
    """Return the resident memory of this process, MB."""
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def growth(minutes: list[float], used: list[float]) -> tuple[float, float]:
    """Return the slope of memory over the last half, MB an hour, and its error."""
    half = len(used) // 2
    x, y = np.array(minutes[half:]) / 60, np.array(used[half:])
    slope, level = np.polyfit(x, y, 1)
    rest = y - slope * x - level
    spread = np.sqrt((rest @ rest) / max(len(x) - 2, 1) / ((x - x.mean()) ** 2).sum())
    return float(slope), float(spread)


def soak(seconds: float, say=print) -> None:
    """Lead lives in turns for so long."""
    tally = dict.fromkeys(
        ("rounds", "late", "cancelled", "failed", "loads", "lives"), 0
    )
    minutes, used, wrong, seed = [], [], [], 0
    worst = dict.fromkeys(LIMIT, 0.0)
    begun, lives = time.monotonic(), []
    dice = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        while (now := time.monotonic() - begun) < seconds:
            while len(lives) < TOGETHER:
                lives.append(Life(seed))
                seed += 1
            life = dice.choice(lives)
            if not life.turn(tally, Path(folder)):
                off = life.end()
                worst[life.against] = max(worst[life.against], off)
                if not off < LIMIT[life.against]:
                    wrong.append(life.seed)
                    say(f"off by {off:.1e}: {life}")
                tally["lives"] += 1
                lives.remove(life)
            if now >= 60 * (len(used) + 1):
                minutes.append(now / 60)
                used.append(memory())
                parts = [f"{n} {word}" for word, n in tally.items()]
                parts += [f"{kind} off {off:.1e}" for kind, off in worst.items()]
                say(f"{minutes[-1]:.1f} min: {used[-1]:.0f} MB, {', '.join(parts)}")
    if len(used) >= 10:
        slope, error = growth(minutes, used)
        say(f"memory over the last half: {slope:+.1f} +- {error:.1f} MB an hour")
        assert slope - 2 * error < GROWTH, "memory grows"
    assert not wrong, f"beliefs are off in lives {wrong}"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    soak(float(sys.argv[1]), lambda text: print(text, flush=True))
