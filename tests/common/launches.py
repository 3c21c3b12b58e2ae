"""Random rounds for the Triton kernels, and how their outputs are compared."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import cbandit_kernels as ck

launch = pytest.importorskip("cbandit_kernels._triton.rounds")


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


LIMIT = {torch.float32: 2e-5, torch.float64: 1e-12}


@dataclass
class Case:
    """A round of random numbers, reproducible from its seed."""

    n: int = 37
    trials: int = 1
    functions: int = 2
    dim: int = 2
    used: int = 5
    columns: int = 1
    kinds: tuple[str, ...] = ("rbf",)
    dtype: torch.dtype = torch.float32
    score: str = "primal-dual"
    clipped: bool = True
    masked: bool = False
    drawn: bool = False
    far: bool = False
    own_points: bool = False
    start: int = 0
    seed: int = 0

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)

        def rand(*shape, dtype=self.dtype):
            drawn = torch.rand(*shape, generator=generator, dtype=torch.float64)
            return drawn.to(DEVICE, dtype)

        def signed(*shape, dtype=torch.float64):
            return 2 * rand(*shape, dtype=dtype) - 1

        T, F, k = self.trials, self.functions, self.columns
        own = (T,) if self.own_points else ()
        self.points = rand(*own, self.n, self.dim)
        frames = T if self.own_points else 1
        shape = (len(self.kinds), frames, self.dim)
        self.frame = ck.Frame(rand(*shape) / 2, 1 + 2 * rand(*shape), self.far)
        self.tried = rand(T, self.used, self.dim, dtype=torch.float64)
        # some of the tried actions are among the actions
        for trial in range(T):
            own_points = self.points[trial] if self.own_points else self.points
            self.tried[trial, 0] = own_points[-1].double()
        self.weights = signed(T, self.used, k)
        self.made = signed(T, k, self.n, dtype=self.dtype)
        self.change = ck.Change(0.1 * rand(T, k, dtype=torch.float64), signed(T, F, k))
        # stretches of larger tensors: strides that are not their sizes
        self.mean = signed(T, F, self.n + 3, dtype=self.dtype)[..., 2:-1]
        self.var = (0.1 + rand(T, self.n + 2))[..., 1:-1]
        self.draw = signed(T, F, self.n, dtype=self.dtype) if self.drawn else None
        mask = None
        if self.masked:
            mask = torch.zeros(T, self.start + self.n, dtype=torch.bool, device=DEVICE)
            mask[:, self.start :] = rand(T, self.n) > 0.5
        self.look = ck.Look(
            signed(T, F),
            0.1 * signed(T, F),
            1 + rand(T, F, dtype=torch.float64) if self.clipped else None,
            self.score,
            rand(T, F - 1, dtype=torch.float64),
            mask,
        )

    def finish(self, play):
        mean, var = self.mean.clone(), self.var.clone()
        found = play(
            self.made, self.change, mean, var, self.look, self.start, self.draw
        )
        return mean, var, found

    def stream(self, play):
        mean, var = self.mean.clone(), self.var.clone()
        found = play(
            self.points,
            self.frame,
            self.tried,
            self.weights,
            self.kinds,
            self.change,
            mean,
            var,
            self.look,
            self.start,
            self.draw,
        )
        return mean, var, found


def small_blocks(play):
    """A launch in blocks so small that every case spans several."""
    return lambda *args: play(*args, block=32)


def parts(found):
    return found.value, found.index, found.estimate


def differences(case, seen, wanted):
    """What is wrong with a launch's outputs; nothing, if it agrees.

    Outputs are compared number by number. The index may be another one only where its
    score is as good to within rounding, which a tie is not: see TestTies.
    """
    wrong, limit = [], LIMIT[case.dtype]
    for name, ours, other in zip(("mean", "var"), seen, wanted, strict=False):
        gap = (ours - other).abs().max()
        if not gap <= limit * (1 + other.abs().max()):
            wrong.append(f"{name}: {float(gap)}")
    value, index, estimate = parts(seen[2])
    other, place, known = parts(wanted[2])
    scale = 1 + other[other.isfinite()].abs().sum()
    same = (value == other) | ((value - other).abs() <= limit * scale)
    if not bool(same.all()):
        wrong.append(f"value: {value.tolist()} {other.tolist()}")
    if not bool((index == place).all()):
        wrong.append(f"index: {index.tolist()} {place.tolist()}")
    if not bool(((estimate - known).abs() <= limit * (1 + known.abs())).all()):
        wrong.append(f"estimate: {estimate.tolist()} {known.tolist()}")
    return wrong
