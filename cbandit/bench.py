"""How fast a round is, measured beside the alternatives, each with its check.

``bench_round`` times a CKB-UCB round over large sets against BoTorch's posterior and a
hand-written Cholesky solve; ``bench_trials`` times batched trials against single ones
and against bare tensor loops. Every timing stands beside a comparison with a dense
float64 solve; a fast wrong answer makes ``result["ok"]`` false.
"""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from cbandit.actions import Finite, ProductGrid
from cbandit.beliefs.gp import GP
from cbandit.confidence import RKHS
from cbandit.explore import TS, UCB, Explore
from cbandit.policies.ckb import CKB
from cbandit.posterior.engines import free_memory

__all__ = ["bench_round", "bench_trials", "table"]

NOISE, BETA, BOUND, CAP, STEP = 1e-2, 2.0, 1.0, 10.0, 0.05
LENGTH, LENGTH_FREE = 0.2, 0.5
LIMIT = {torch.float64: 1e-8, torch.float32: 1e-3}  # in prior standard deviations


@dataclass(frozen=True)
class _Sizes:
    """How large ``bench round`` is; the defaults are the full run."""

    side: int = 1000
    free: int = 10**6
    dim: int = 6
    distinct: int = 300
    many: int | None = 1000
    rounds: int = 15
    warm: int = 3
    subset: int = 20_000
    chunks: tuple[int, ...] = (2000, 5000, 20_000)
    batches: tuple[int, ...] = (1, 10, 20, 50)
    whole: bool = True  # the best form of the others over all actions, not scaled
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)
    growth: tuple[int, ...] = (100, 300, 1000)
    repeats: int = 10
    memory: bool = True


_QUICK = _Sizes(
    free=10**5,
    many=None,
    rounds=9,
    subset=10_000,
    chunks=(2000, 5000),
    batches=(1, 10),
    whole=False,
    dtypes=(torch.float64,),
    growth=(100, 300),
)


# -- results ---------------------------------------------------------------------------


def _check(name: str, value: float, limit: float) -> dict[str, Any]:
    """A comparison that must hold: ``value <= limit``."""
    return {"name": name, "value": value, "limit": limit, "ok": bool(value <= limit)}


def _row(
    section: str,
    what: str,
    seconds: float | None = None,
    *,
    ratio: float | None = None,
    goal: tuple[str, float] | None = None,
    checks: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A line of the result; ``goal`` is ``(">=" or "<=", number)`` of ``ratio``."""
    met = None
    if goal is not None and ratio is not None:
        met = ratio >= goal[1] if goal[0] == ">=" else ratio <= goal[1]
    return {
        "section": section,
        "what": what,
        "ms": None if seconds is None else 1e3 * seconds,
        "ratio": ratio,
        "goal": None if goal is None else f"{goal[0]} {goal[1]:g}",
        "met": met,
        "checks": checks or [],
        **more,
    }


def _result(name: str, quick: bool, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "bench": name,
        "quick": quick,
        "machine": _machine(),
        "rows": rows,
        "ok": all(check["ok"] for row in rows for check in row["checks"]),
    }


def _machine() -> dict[str, Any]:
    from importlib.metadata import version

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            names = [
                n.split(":", 1)[1].strip() for n in lines if n.startswith("model name")
            ]
            model = names[0] if names else model
    except OSError:
        pass
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpytorch": version("gpytorch"),
        "botorch": version("botorch"),
    }


def table(result: dict[str, Any]) -> str:
    """A result as text, one line a row, its checks and notes beneath."""
    machine = result["machine"]
    lines = [
        f"bench {result['bench']}{' --quick' if result['quick'] else ''}: "
        f"{machine['processor']}, {machine['threads']} threads, "
        f"torch {machine['torch']}, botorch {machine['botorch']}"
    ]
    section = None
    for row in result["rows"]:
        if row["section"] != section:
            section = row["section"]
            lines += ["", section]
        ms = "" if row["ms"] is None else f"{row['ms']:,.3f} ms"
        if row["ms"] is not None and row["ms"] >= 10:
            ms = f"{row['ms']:,.1f} ms"
        ratio = ""
        if row["ratio"] is not None:
            digits = 0 if row["ratio"] >= 100 else 2
            ratio = f"{row['ratio']:,.{digits}f} x"
        goal = ""
        if row["met"] is not None:
            reached = "reached" if row["met"] else "NOT REACHED"
            goal = f"goal {row['goal']} x: {reached}"
        lines.append(f"  {row['what']:<70}{ms:>14} {ratio:>9}  {goal}".rstrip())
        notes = []
        if row.get("note"):
            notes.append(row["note"])
        if row.get("peak_mb") is not None:
            notes.append(f"peak memory {row['peak_mb']:,.0f} MB ({row['peak_how']})")
        for check in row["checks"]:
            mark = "ok" if check["ok"] else "FAILED"
            limit = f"(limit {check['limit']:.2g})"
            notes.append(f"{check['name']} {check['value']:.2g} {limit} {mark}")
        lines += [f"      {note}" for note in notes]
    goals = [row for row in result["rows"] if row["met"] is not None]
    met = sum(bool(row["met"]) for row in goals)
    correct = "all hold" if result["ok"] else "SOME FAILED"
    lines += ["", f"checks of the answers: {correct}"]
    if goals:
        lines.append(f"goals of speed: {met} of {len(goals)} reached")
    return "\n".join(lines)


def _say(text: str) -> None:
    """Progress: what is measured now, which may take a minute."""
    print(text, file=sys.stderr, flush=True)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- a policy at work ------------------------------------------------------------------


class _World:
    """A fixed random function of the reward and one of the cost, with noise."""

    def __init__(self, dim: int, length: float, seed: int = 7) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._frequency = self._normal(2, dim, 64) / (2 * length)
        self._phase = 2 * math.pi * self._normal(2, 1, 64)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def __call__(self, x: Tensor) -> Tensor:
        """Noisy values ``(n, 2)`` at ``x (n, d)``."""
        waves = torch.cos(x.double() @ self._frequency + self._phase)
        values = waves.sum(-1).mT * math.sqrt(1 / 64)
        values[:, 1] += 0.3  # a constraint that binds
        return values + math.sqrt(NOISE) * self._normal(*values.shape)


class _Data:
    """Observations merged by action."""

    def __init__(self) -> None:
        self.total: dict[int, Tensor] = {}
        self.count: dict[int, int] = {}

    def add(self, index: int, y: Tensor) -> None:
        self.total[index] = self.total.get(index, 0) + y
        self.count[index] = self.count.get(index, 0) + 1

    def merged(self) -> tuple[Tensor, Tensor, Tensor]:
        """Actions ``(u,)``, how often seen ``(u,)``, average outcomes ``(u, 2)``."""
        count = torch.tensor(list(self.count.values()), dtype=torch.float64)
        mean = torch.stack(list(self.total.values())) / count.unsqueeze(-1)
        return torch.tensor(list(self.count)), count, mean


class _Case:
    """A CKB policy that knows ``distinct`` random actions, its world and its data."""

    def __init__(
        self,
        actions: Finite | ProductGrid,
        kernel: Kernel,
        engine: str,
        dtype: torch.dtype,
        distinct: int,
        *,
        length: float,
        repeats: int = 1,
        explore: Explore | None = None,
        seed: int = 3,
    ) -> None:
        gp = GP(kernel, noise=NOISE)
        self.policy = CKB(
            actions,
            reward=gp,
            costs=gp,
            explore=explore or UCB(BETA),
            step=STEP,
            cap=CAP,
            clip=(BOUND, BOUND),
            engine=engine,
            dtype=dtype,
        )
        self.actions, self.kernel, self.length = actions, kernel, length
        self.world, self.data = _World(actions.dim, length), _Data()
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(actions.size, (4 * distinct,), generator=generator)
        index = torch.tensor(list(dict.fromkeys(index.tolist()))[:distinct])
        index = index.repeat(repeats)
        y = self.world(actions.points(index))
        self.policy.observe(index=index, reward=y[:, 0], cost=y[:, 1])
        for i, row in zip(index.tolist(), y, strict=True):
            self.data.add(i, row)

    def round(self) -> float:
        """Seconds of one ask and one tell."""
        start = time.perf_counter()
        choice = self.policy.ask()
        middle = time.perf_counter()
        assert choice.index is not None
        index = int(choice.index)
        y = self.world(self.actions.points(torch.tensor([index])))[0]
        reward, cost = float(y[0]), float(y[1])
        again = time.perf_counter()
        self.policy.tell(choice, reward=reward, cost=cost)
        stop = time.perf_counter()
        self.data.add(index, y)
        return middle - start + stop - again

    def rounds(self, count: int, warm: int) -> float:
        """The median round."""
        gc.collect()
        return statistics.median([self.round() for _ in range(warm + count)][warm:])

    def dense(self, dtype: torch.dtype = torch.float64) -> _Dense:
        """The same beliefs in the hand-written way."""
        return _Dense(self.actions, self.data, self.length, self.kernel, dtype)

    def compare(self, dtype: torch.dtype, count: int | None = None) -> dict[str, Any]:
        """One more round against the dense float64 solve.

        Over all actions, or over ``count`` random ones and the one chosen. Returns the
        checks and the round's multiplier and choice, so that others may repeat it.
        """
        dense = self.dense()
        posterior = self.policy.posterior()
        assert posterior.costs is not None
        mean = torch.stack([posterior.reward.mean, posterior.costs.mean[0]])
        std = torch.stack([posterior.reward.std, posterior.costs.std[0]])
        phi = float(self.policy.multiplier)
        choice = self.policy.ask()
        self.policy.cancel(choice)
        assert choice.index is not None
        chosen, size = int(choice.index), self.actions.size
        numbers: Tensor | None = None
        if count is not None and count < size:
            generator = torch.Generator().manual_seed(11)
            numbers = torch.randint(size, (count,), generator=generator)
            numbers = torch.cat([torch.tensor([chosen]), numbers])
        worst_mean = worst_std = 0.0
        scores = []
        for part in _parts(numbers, size, 5000):
            m, var = dense.posterior(self.actions.points(part), "triangular")
            s = var.clamp_min(0).sqrt()
            worst_mean = max(worst_mean, float((mean[:, part] - m).abs().max()))
            worst_std = max(worst_std, float((std[:, part] - s).abs().max()))
            scores.append(_score(m, s, phi))
        score = torch.cat(scores)
        lost = float(score.max() - score[chosen if numbers is None else 0])
        best = int(score.argmax())
        best = best if numbers is None else int(numbers[best])
        limit = LIMIT[dtype]
        checks = [
            _check("largest difference of the mean", worst_mean, limit),
            _check("largest difference of the std", worst_std, limit),
            _check("score lost at our argmax", lost, limit),
        ]
        if dtype == torch.float64:
            checks.append(_check("other argmax", float(best != chosen), 0.0))
        return {"checks": checks, "phi": phi, "chosen": chosen}


def _parts(numbers: Tensor | None, size: int, step: int) -> Iterator[Tensor]:
    for start in range(0, size if numbers is None else len(numbers), step):
        if numbers is None:
            yield torch.arange(start, min(start + step, size))
        else:
            yield numbers[start : start + step]


def _score(mean: Tensor, std: Tensor, phi: float) -> Tensor:
    """``f - phi g`` of clipped bounds, ``mean (2, n)``, ``std (n,)`` or ``(2, n)``."""
    up, down = (std, std) if std.dim() == 1 else (std[0], std[1])
    f = (mean[0] + BETA * up).clamp_(-BOUND, BOUND)
    g = (mean[1] - BETA * down).clamp_(-BOUND, BOUND)
    return f - phi * g


# -- what it is measured against -------------------------------------------------------


class _Dense:
    """The hand-written solve: one Cholesky factor, one solve for both functions."""

    FORMS = ("triangular", "cholesky_solve", "inverse factor")

    def __init__(
        self,
        actions: Finite | ProductGrid,
        data: _Data,
        length: float,
        kernel: Kernel,
        dtype: torch.dtype,
    ) -> None:
        index, count, mean = data.merged()
        self.rbf, self.length, self.dtype = isinstance(kernel, RBFKernel), length, dtype
        self.x = (actions.points(index).double() / length).to(dtype)
        gram = self.kernel(self.x)
        gram.diagonal().add_(NOISE / count.to(dtype))
        self.factor = torch.linalg.cholesky(gram)
        self.alpha = torch.cholesky_solve(mean.to(dtype), self.factor)
        self._inverse: Tensor | None = None

    def kernel(self, x: Tensor) -> Tensor:
        """``(u, n)`` at scaled points ``x (n, d)``."""
        if not self.rbf:
            return torch.cdist(self.x, x, p=1).neg_().exp_()
        squares = (x * x).sum(-1)
        known = (self.x * self.x).sum(-1, keepdim=True)
        cross = (self.x @ x.mT).mul_(-2).add_(squares).add_(known)
        return cross.clamp_min_(0).mul_(-0.5).exp_()

    def posterior(self, points: Tensor, form: str) -> tuple[Tensor, Tensor]:
        """Means ``(2, n)`` and variance ``(n,)``."""
        k = self.kernel((points / self.length).to(self.dtype))
        mean = self.alpha.mT @ k
        if form == "triangular":
            half = torch.linalg.solve_triangular(self.factor, k, upper=False)
            return mean, 1 - half.mul_(half).sum(0)
        if form == "cholesky_solve":
            return mean, 1 - torch.cholesky_solve(k, self.factor).mul_(k).sum(0)
        if self._inverse is None:
            eye = torch.eye(len(self.x), dtype=self.dtype)
            self._inverse = torch.linalg.solve_triangular(self.factor, eye, upper=False)
        half = self._inverse @ k
        return mean, 1 - half.mul_(half).sum(0)


Looked = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Means ``(2, n)`` and standard deviations ``(n,)`` or ``(2, n)`` at points."""


def _argmax(look: Looked, points: Tensor, chunk: int, phi: float) -> int:
    best, place = -math.inf, -1
    for start in range(0, len(points), chunk):
        mean, std = look(points[start : start + chunk])
        value, at = _score(mean, std, phi).max(0)
        if float(value) > best:
            best, place = float(value), start + int(at)
    return place


@dataclass
class _Peer:
    """A way to do the same round from nothing: ``build()`` returns what looks."""

    name: str
    build: Callable[[], Looked]
    chunk: int


def _fastest(
    peers: list[_Peer], points: Tensor, phi: float, sizes: _Sizes
) -> tuple[_Peer, float, int | None]:
    """The quickest, its seconds over all ``points`` and its argmax (if run on all).

    Each is tried on a subset, after two short looks that fill caches and drop what is
    far behind; the best is then run over everything, from nothing, or its subset's time
    is scaled.
    """
    found: list[tuple[float, _Peer]] = []
    subset = points[torch.randperm(len(points))[: sizes.subset]]
    for peer in peers:
        _say(f"  {peer.name}")
        chunk = min(peer.chunk, len(subset))
        probe = subset[: min(chunk, 1000)]
        start = time.perf_counter()
        look = peer.build()
        look(probe)
        first = time.perf_counter() - start
        start = time.perf_counter()
        look(probe)
        again = time.perf_counter() - start
        least = min((total for total, _ in found), default=math.inf)
        if again / len(probe) * len(points) > 4 * least:
            continue
        start = time.perf_counter()
        _argmax(look, subset, chunk, phi)
        each = (time.perf_counter() - start) / len(subset)
        total = each * len(points) + max(0.0, first - again)
        found.append((total, peer))
        _say(f"    {total:.2f} s")
    total, best = min(found, key=lambda pair: pair[0])
    if not sizes.whole:
        return best, total, None
    start = time.perf_counter()
    index = _argmax(best.build(), points, best.chunk, phi)
    return best, time.perf_counter() - start, index


def _hand_written(case: _Case, dtype: torch.dtype, sizes: _Sizes) -> list[_Peer]:
    def builder(form: str) -> Callable[[], Looked]:
        def build() -> Looked:
            dense = case.dense(dtype)

            def look(x: Tensor) -> tuple[Tensor, Tensor]:
                mean, var = dense.posterior(x, form)
                return mean, var.clamp_min_(0).sqrt_()

            return look

        return build

    return [
        _Peer(f"Cholesky by hand, {form}, chunks of {chunk}", builder(form), chunk)
        for form in _Dense.FORMS
        for chunk in sizes.chunks
    ]


def _botorch(case: _Case, dtype: torch.dtype, sizes: _Sizes) -> list[_Peer]:
    def builder(q: int, fast: bool, together: bool) -> Callable[[], Looked]:
        def build() -> Looked:
            return _botorch_look(case, dtype, q, fast, together)

        return build

    return [
        _Peer(
            f"BoTorch, {'one model' if together else 'a model each'}, q = {q}, "
            f"chunks of {chunk}, fast_pred_var {'on' if fast else 'off'}",
            builder(q, fast, together),
            chunk,
        )
        for together in (False, True)
        for q in sizes.batches
        for chunk in sizes.chunks
        for fast in (True, False)
    ]


def _botorch_model(case: _Case, dtype: torch.dtype, together: bool) -> Any:
    """Both functions as BoTorch's exact GPs, the prior and noise known."""
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from gpytorch.means import ZeroMean

    index, count, mean = case.data.merged()
    x = case.actions.points(index).to(dtype)
    noise = (NOISE / count).to(dtype).unsqueeze(-1)

    def model(y: Tensor) -> Any:
        kernel = deepcopy(case.kernel).to(dtype)
        return SingleTaskGP(
            x,
            y.to(dtype),
            noise.expand_as(y),
            covar_module=kernel,
            mean_module=ZeroMean(),
            outcome_transform=None,
        ).eval()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = (
            model(mean)
            if together
            else ModelListGP(model(mean[:, :1]), model(mean[:, 1:]))
        )
    return whole.eval()


def _botorch_look(
    case: _Case, dtype: torch.dtype, q: int, fast: bool, together: bool
) -> Looked:
    """BoTorch's exact posterior of both functions, in t-batches of ``q`` points."""
    import gpytorch

    whole = _botorch_model(case, dtype, together)

    def look(points: Tensor) -> tuple[Tensor, Tensor]:
        full = len(points) // q * q
        with (
            torch.no_grad(),
            gpytorch.settings.fast_pred_var(fast),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            points = points.to(dtype)
            seen = [whole.posterior(points[:full].view(-1, q, points.shape[-1]))]
            if full < len(points):
                seen.append(whole.posterior(points[full:].unsqueeze(-2)))
            mean = torch.cat([p.mean.reshape(-1, 2) for p in seen]).mT
            var = torch.cat([p.variance.reshape(-1, 2) for p in seen]).mT
        return mean, var.clamp_min(0).sqrt()

    return look


# -- memory ----------------------------------------------------------------------------


def _resident(peak: bool) -> int:
    """Bytes resident now, or the most there ever were."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    try:
        with open("/proc/self/status") as lines:
            for line in lines:
                if line.startswith(wanted):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used


def _memory_of(spec: dict[str, Any]) -> None:
    """In a process of its own: what a policy takes beyond its set of actions."""
    dtype = getattr(torch, spec["dtype"])

    def played(size: int, distinct: int) -> Iterator[int]:
        actions = _actions(spec["engine"], size, spec["dim"])
        yield _resident(peak=False)
        case = _case(actions, spec["engine"], dtype, distinct)
        for _ in range(3):
            case.round()
        yield len(case.data.count)

    list(played(2500, 20))  # libraries and thread pools come in on first use
    before, distinct = played(spec["size"], spec["distinct"])
    print(json.dumps({"bytes": _resident(peak=True) - before, "distinct": distinct}))


def _peak(
    engine: str, size: int, dim: int, dtype: torch.dtype, distinct: int
) -> tuple[int, int]:
    """Peak bytes of a policy, and how many distinct actions it then knew."""
    spec = {
        "engine": engine,
        "size": size,
        "dim": dim,
        "dtype": _name(dtype),
        "distinct": distinct,
    }
    code = f"import json; from cbandit import bench; bench._memory_of({spec!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    told = json.loads(done.stdout.splitlines()[-1])
    return told["bytes"], told["distinct"]


_PEAK_HOW = "resident high-water mark of a process of its own, less imports and actions"


# -- one round -------------------------------------------------------------------------


def _actions(engine: str, size: int, dim: int) -> Finite | ProductGrid:
    if engine == "product":
        side = math.isqrt(size)
        return ProductGrid([torch.linspace(0, 1, side, dtype=torch.float64)] * 2)
    generator = torch.Generator().manual_seed(5)
    return Finite(torch.rand(size, dim, generator=generator, dtype=torch.float64))


def _case(
    actions: Finite | ProductGrid,
    engine: str,
    dtype: torch.dtype,
    distinct: int,
    **more: Any,
) -> _Case:
    length = LENGTH if engine == "product" else LENGTH_FREE
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(length, dtype=torch.float64)
    return _Case(actions, kernel, engine, dtype, distinct, length=length, **more)


def _matern_product() -> Kernel:
    """Matern-1/2 on each axis: the grid's factors have full rank."""
    parts = []
    for axis in (0, 1):
        part = MaternKernel(nu=0.5, active_dims=(axis,)).double()
        part.lengthscale = torch.tensor(LENGTH, dtype=torch.float64)
        parts.append(part)
    return parts[0] * parts[1]


def _grid(sizes: _Sizes, dtype: torch.dtype) -> tuple[list[dict[str, Any]], float]:
    size = sizes.side**2
    section = (
        f"a CKB-UCB round, {sizes.side} x {sizes.side} grid, u = {sizes.distinct}, "
        f"RBF, {_name(dtype)}"
    )
    _say(section)
    actions = _actions("product", size, 2)
    case = _case(actions, "product", dtype, sizes.distinct)
    seconds = case.rounds(sizes.rounds, sizes.warm)
    compared = case.compare(dtype)
    more: dict[str, Any] = {}
    if sizes.memory:
        peak, _ = _peak("product", size, 2, dtype, sizes.distinct)
        more = {"peak_mb": peak / 1e6, "peak_how": _PEAK_HOW}
    rows = [
        _row(
            section,
            "cbandit, product",
            seconds,
            checks=compared["checks"],
            actions=size,
            distinct=len(case.data.count),
            dtype=_name(dtype),
            **more,
        )
    ]
    points = actions.block(0, size).to(dtype)
    for peers, goal in (
        (_hand_written(case, dtype, sizes), 300.0),
        (_botorch(case, dtype, sizes), 500.0),
    ):
        rows.append(
            _against(
                section,
                peers,
                points,
                compared,
                seconds,
                sizes,
                dtype,
                (">=", goal) if dtype == torch.float64 else None,
            )
        )
    return rows, seconds


def _against(
    section: str,
    peers: list[_Peer],
    points: Tensor,
    compared: dict[str, Any],
    seconds: float,
    sizes: _Sizes,
    dtype: torch.dtype,
    goal: tuple[str, float] | None,
) -> dict[str, Any]:
    best, other, index = _fastest(peers, points, compared["phi"], sizes)
    checks = []
    note = (
        f"fastest of {len(peers)} forms on {min(sizes.subset, len(points)):,} actions"
    )
    if index is None:
        note += f", scaled to {len(points):,}"
    else:
        note += f"; this one run over all {len(points):,}"
        if dtype == torch.float64:
            differs = float(index != compared["chosen"])
            checks.append(_check("other argmax than ours", differs, 0.0))
        else:
            note += "; argmax " + (
                "the same" if index == compared["chosen"] else "differs"
            )
    return _row(
        section,
        best.name,
        other,
        ratio=other / seconds,
        goal=goal,
        checks=checks,
        note=note,
        actions=len(points),
        dtype=_name(dtype),
    )


def _reading(size: int, rows: int, dtype: torch.dtype) -> float:
    """Seconds to read ``rows x size`` numbers once, by products of 32 rows."""
    chunk = torch.rand(32, size, dtype=dtype)
    weights, out = torch.rand(1, 32, dtype=dtype), torch.empty(1, size, dtype=dtype)
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        torch.mm(weights, chunk, out=out)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * rows / 32


def _free(sizes: _Sizes, dtype: torch.dtype, distinct: int) -> list[dict[str, Any]]:
    size, main = sizes.free, distinct == sizes.distinct
    section = (
        f"a CKB-UCB round, free-form {size:,} x {sizes.dim}, u = {distinct}, RBF, "
        f"{_name(dtype)}"
    )
    _say(section)
    actions = _actions("factor", size, sizes.dim)
    rows, timed = [], []
    compared: dict[str, Any] = {}
    case: _Case | None = None
    for engine, goal in (("factor", 20.0), ("stream", 4.0)):
        needs = 1.2 * (distinct + 32) * size * dtype.itemsize
        if engine == "factor" and needs > free_memory(torch.device("cpu")):
            rows.append(
                _row(
                    section,
                    "cbandit, factor",
                    note=f"skipped: needs {needs / 1e9:.1f} GB",
                )
            )
            continue
        more: dict[str, Any] = {}
        if sizes.memory and main:
            peak, known = _peak(engine, size, sizes.dim, dtype, distinct)
            budget = 1.1 * known * size * dtype.itemsize if engine == "factor" else 2e8
            more = {
                "peak_mb": peak / 1e6,
                "peak_how": _PEAK_HOW,
                "memory_ratio": peak / (known * size * dtype.itemsize),
                "memory_met": peak <= budget,
                "note": f"memory goal {budget / 1e6:,.0f} MB"
                + (": kept" if peak <= budget else ": NOT KEPT"),
            }
        case = None
        gc.collect()
        case = _case(actions, engine, dtype, distinct)
        seconds = case.rounds(
            sizes.rounds if engine == "factor" else 5, min(sizes.warm, 2)
        )
        compared = case.compare(dtype, None if main and engine == "factor" else 20_000)
        timed.append((engine, seconds, goal))
        rows.append(
            _row(
                section,
                f"cbandit, {engine}",
                seconds,
                checks=compared["checks"],
                actions=size,
                distinct=len(case.data.count),
                dtype=_name(dtype),
                **more,
            )
        )
    assert case is not None
    if any(engine == "factor" for engine, _, _ in timed):
        rows.append(
            _row(
                section,
                "reading u N numbers once, which factor cannot do without",
                _reading(size, len(case.data.count), dtype),
            )
        )
    scaled = (
        sizes
        if main
        else _Sizes(**{**sizes.__dict__, "whole": False, "subset": 20_000})
    )
    peers = _hand_written(case, dtype, scaled)
    best, other, _ = _fastest(
        peers, actions.block(0, size).to(dtype), compared["phi"], scaled
    )
    note = f"fastest of {len(peers)} forms on {min(scaled.subset, size):,} actions"
    note += f"; run over all {size:,}" if scaled.whole else f", scaled to {size:,}"
    rows.append(_row(section, best.name, other, note=note, dtype=_name(dtype)))
    for engine, seconds, goal in timed:
        rows.append(
            _row(
                section,
                f"  by hand / {engine}",
                ratio=other / seconds,
                goal=(">=", goal) if main else None,
            )
        )
    return rows


def _thompson(sizes: _Sizes) -> list[dict[str, Any]]:
    section = (
        f"an exact Thompson round of both functions, {sizes.side} x {sizes.side} grid, "
        f"u = {sizes.distinct}, float64"
    )
    _say(section)
    rows = []
    actions = _actions("product", sizes.side**2, 2)
    rbf = RBFKernel().double()
    rbf.lengthscale = torch.tensor(LENGTH, dtype=torch.float64)
    for name, kernel, goal in (
        ("RBF", rbf, 2.0),
        ("Matern-1/2 per axis", _matern_product(), 8.0),
    ):
        base = _Case(
            actions, kernel, "product", torch.float64, sizes.distinct, length=LENGTH
        )
        ucb = base.rounds(sizes.rounds, sizes.warm)
        compared = base.compare(torch.float64, 20_000)
        rows.append(_row(section, f"CKB-UCB, {name}", ucb, checks=compared["checks"]))
        case = _Case(
            actions,
            kernel,
            "product",
            torch.float64,
            sizes.distinct,
            length=LENGTH,
            explore=TS(BETA),
        )
        seconds = case.rounds(sizes.rounds, sizes.warm)
        rows.append(
            _row(
                section,
                f"CKB-TS, {name}",
                seconds,
                ratio=seconds / ucb,
                goal=("<=", goal),
                checks=[_law(case, 2 * sizes.rounds)],
                note="ratio to the UCB round above",
            )
        )
    return rows


def _law(case: _Case, draws: int, count: int = 12) -> dict[str, Any]:
    """Draws at a few actions against the exact law: their squares' sum, in deviations.

    With ``z`` the draws over the exact standard deviations and ``R`` the exact
    correlations, ``sum z^2`` has mean ``count`` and variance ``2 |R|^2`` a draw.
    """
    generator = torch.Generator().manual_seed(13)
    numbers = torch.randint(case.actions.size, (count,), generator=generator)
    dense = case.dense()
    x = (case.actions.points(numbers) / case.length).double()
    k = dense.kernel(x)
    half = torch.linalg.solve_triangular(dense.factor, k, upper=False)
    gap = x.unsqueeze(1) - x
    prior = (-0.5 * gap.square().sum(-1) if dense.rbf else -gap.abs().sum(-1)).exp()
    covariance = prior - half.mT @ half
    std = covariance.diagonal().sqrt()
    spread = 2 * (covariance / (std.unsqueeze(-1) * std)).square().sum()
    total, functions = 0.0, 2
    for _ in range(draws):
        for block in case.policy._beliefs.sweep(case.policy._streams):
            assert block.draw is not None
            inside = (numbers >= block.start) & (numbers < block.stop)
            seen = block.draw[0, :, numbers[inside] - block.start]
            total += float((seen / std[inside]).square().sum())
    off = (total - draws * functions * count) / math.sqrt(
        draws * functions * float(spread)
    )
    return _check("spread of the draws, deviations off the exact law", abs(off), 6.0)


def _growth(sizes: _Sizes) -> list[dict[str, Any]]:
    section = "growth of a CKB-UCB round, product grid, RBF, float64"
    _say(section)
    size = sizes.side**2
    rows = []

    def timed(side: int, distinct: int, repeats: int = 1) -> tuple[float, list[Any]]:
        actions = _actions("product", side * side, 2)
        case = _case(actions, "product", torch.float64, distinct, repeats=repeats)
        seconds = case.rounds(sizes.rounds, sizes.warm)
        return seconds, case.compare(torch.float64, 5000)["checks"]

    base: dict[str, float] = {}
    sides = [max(2, round(sizes.side * math.sqrt(share))) for share in (0.1, 0.3, 1.0)]
    for side in sides:
        seconds, checks = timed(side, sizes.distinct)
        base.setdefault("N", seconds)
        more: dict[str, Any] = {}
        if side != sides[0]:
            times = side**2 / sides[0] ** 2
            more = {"ratio": seconds / base["N"], "goal": ("<=", round(1.3 * times, 2))}
        rows.append(
            _row(
                section,
                f"N = {side**2:,}, u = {sizes.distinct}",
                seconds,
                checks=checks,
                **more,
            )
        )
    for distinct in sizes.growth:
        seconds, checks = timed(sizes.side, distinct)
        base.setdefault("u", seconds)
        more = {}
        if distinct != sizes.growth[0]:
            times = distinct / sizes.growth[0]
            more = {"ratio": seconds / base["u"], "goal": ("<=", round(1.3 * times, 2))}
        rows.append(
            _row(
                section, f"N = {size:,}, u = {distinct}", seconds, checks=checks, **more
            )
        )
    for repeats in (1, sizes.repeats):
        seconds, checks = timed(sizes.side, sizes.distinct, repeats)
        base.setdefault("t", seconds)
        more = (
            {} if repeats == 1 else {"ratio": seconds / base["t"], "goal": ("<=", 1.2)}
        )
        what = f"N = {size:,}, u = {sizes.distinct}, t = {sizes.distinct * repeats}"
        rows.append(_row(section, what, seconds, checks=checks, **more))
    return rows


def bench_round(quick: bool = False) -> dict[str, Any]:
    """Time a round over large sets; see ``cbandit bench round``.

    Args:
        quick: a minute instead of ten: float64 alone, a smaller free-form set, and the
            others' times scaled from a subset.
    """
    return _round(_QUICK if quick else _Sizes(), quick)


def _round(sizes: _Sizes, quick: bool = False) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for dtype in sizes.dtypes:
        rows += _grid(sizes, dtype)[0]
    for dtype in sizes.dtypes:
        rows += _free(sizes, dtype, sizes.distinct)
    if sizes.many is not None:
        for dtype in sizes.dtypes:
            rows += _free(sizes, dtype, sizes.many)
    rows += _thompson(sizes)
    rows += _growth(sizes)
    return _result("round", quick, rows)


# -- trials ----------------------------------------------------------------------------


@dataclass
class _Arms:
    """100 arms on a line: what each trial's arms give, and the noise of each round."""

    points: Tensor  # N x 1
    values: Tensor  # trials x 2 x N
    noise: Tensor  # rounds x trials x 2

    @classmethod
    def make(cls, arms: int, trials: int, rounds: int) -> _Arms:
        generator = torch.Generator().manual_seed(17)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        points = torch.linspace(0, 1, arms, dtype=torch.float64).unsqueeze(-1)
        waves = torch.cos(
            points * normal(trials, 2, 1, 16) / LENGTH + 6 * normal(trials, 2, 1, 16)
        )
        values = 0.25 * waves.sum(-1)
        values[:, 1] += 0.3  # a constraint that binds
        return cls(points, values, math.sqrt(NOISE) * normal(rounds, trials, 2))

    def policy(self, trials: int | None) -> CKB:
        kernel = RBFKernel().double()
        kernel.lengthscale = torch.tensor(LENGTH, dtype=torch.float64)
        gp = GP(kernel, noise=NOISE)
        return CKB(
            Finite(self.points),
            reward=gp,
            costs=gp,
            explore=UCB(RKHS(1.0, 0.1)),
            step=STEP,
            cap=CAP,
            clip=(BOUND, BOUND),
            trials=trials,
        )

    @property
    def covariance(self) -> Tensor:
        gap = (self.points - self.points.mT) / LENGTH
        return torch.exp(-0.5 * gap * gap)


Played = tuple[list[float], Tensor]
"""Seconds of each round, and the arms chosen ``(rounds, trials)``."""


def _batched(arms: _Arms, rounds: int) -> Played:
    trials = len(arms.values)
    policy, every = arms.policy(trials), torch.arange(trials)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        choice = policy.ask()
        assert choice.index is not None
        y = arms.values[every, :, choice.index] + arms.noise[t]
        policy.tell(choice, reward=y[:, 0], cost=y[:, 1])
        seconds.append(time.perf_counter() - start)
        chosen.append(choice.index)
    return seconds, torch.stack(chosen)


def _single(arms: _Arms, rounds: int, trial: int) -> Played:
    policy, values = arms.policy(None), arms.values[trial]
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        choice = policy.ask()
        assert choice.index is not None
        y = values[:, int(choice.index)] + arms.noise[t, trial]
        policy.tell(choice, reward=y[0], cost=y[1])
        seconds.append(time.perf_counter() - start)
        chosen.append(choice.index)
    return seconds, torch.stack(chosen).unsqueeze(-1)


def _bare_single(arms: _Arms, rounds: int, trial: int) -> Played:
    """The same arithmetic as one tensor loop, without a library around it."""
    cov, values = arms.covariance, arms.values[trial]
    mean = cov.new_zeros(2, len(cov))
    signs = cov.new_tensor([[1.0], [-1.0]])
    phi, gain, log = cov.new_zeros(()), cov.new_zeros(()), math.log(2 / 0.1)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        beta = 1.0 + 0.1 * (2 * (gain + 1 + log)).sqrt()
        std = cov.diagonal().clamp_min(0).sqrt()
        f, g = torch.addcmul(mean, signs * beta, std).clamp_(-BOUND, BOUND)
        index = int((f - phi * g).argmax())
        phi = (phi + STEP * g[index]).clamp(0, CAP)
        y = values[:, index] + arms.noise[t, trial]
        column = cov[index].clone()
        spread = column[index] + NOISE
        gain = gain + 0.5 * torch.log1p(column[index] / NOISE)
        mean.addcmul_(((y - mean[:, index]) / spread).unsqueeze(-1), column)
        cov.addcmul_(column.unsqueeze(-1), column / spread, value=-1)
        seconds.append(time.perf_counter() - start)
        chosen.append(index)
    return seconds, torch.tensor(chosen).unsqueeze(-1)


def _bare_batched(arms: _Arms, rounds: int) -> Played:
    """The same loop with a trials axis."""
    trials, count = len(arms.values), len(arms.points)
    every = torch.arange(trials)
    cov = arms.covariance.expand(trials, -1, -1).clone()
    mean = cov.new_zeros(trials, 2, count)
    signs = cov.new_tensor([1.0, -1.0])
    phi, gain, log = cov.new_zeros(trials), cov.new_zeros(trials), math.log(2 / 0.1)
    seconds, chosen = [], []
    for t in range(rounds):
        start = time.perf_counter()
        beta = 1.0 + 0.1 * (2 * (gain + 1 + log)).sqrt()
        std = cov.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().unsqueeze(1)
        width = (beta.unsqueeze(-1) * signs).unsqueeze(-1)
        estimate = torch.addcmul(mean, width, std).clamp_(-BOUND, BOUND)
        f, g = estimate[:, 0], estimate[:, 1]
        index = (f - phi.unsqueeze(-1) * g).argmax(-1)
        phi = (phi + STEP * g[every, index]).clamp(0, CAP)
        y = arms.values[every, :, index] + arms.noise[t]
        column = cov[every, index]
        own = column[every, index]
        spread = (own + NOISE).unsqueeze(-1)
        gain = gain + 0.5 * torch.log1p(own / NOISE)
        gap = (y - mean[every, :, index]) / spread
        mean.addcmul_(gap.unsqueeze(-1), column.unsqueeze(1))
        cov.addcmul_(column.unsqueeze(-1), (column / spread).unsqueeze(1), value=-1)
        seconds.append(time.perf_counter() - start)
        chosen.append(index)
    return seconds, torch.stack(chosen)


def bench_trials(quick: bool = False) -> dict[str, Any]:
    """Time batched trials against single ones and bare loops; ``cbandit bench trials``.

    Args:
        quick: fewer rounds and repetitions.
    """
    return _trials(rounds=100 if quick else 300, repeats=3 if quick else 9, quick=quick)


def _trials(
    rounds: int, repeats: int, arms: int = 100, trials: int = 50, quick: bool = False
) -> dict[str, Any]:
    section = f"a CKB-UCB round, {arms} arms, RBF, RKHS widths, float64"
    _say(section)
    data = _Arms.make(arms, trials, rounds)
    contenders: dict[str, Callable[[int], Played]] = {
        "batched": lambda _: _batched(data, rounds),
        "bare batched": lambda _: _bare_batched(data, rounds),
        "single": lambda i: _single(data, rounds, i % trials),
        "bare single": lambda i: _bare_single(data, rounds, i % trials),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name, play in contenders.items():
            _say(f"  {name}, {repeat + 1} of {repeats}")
            warm = min(20, rounds // 4)
            seconds[name].append(statistics.median(play(repeat)[0][warm:]))
    took = {name: statistics.median(each) for name, each in seconds.items()}

    _say("  checks")
    chosen = _batched(data, rounds)[1]
    singles = torch.cat([_single(data, rounds, i)[1] for i in range(trials)], -1)
    bare = torch.cat([_bare_single(data, rounds, i)[1] for i in range(trials)], -1)
    bare_batched = _bare_batched(data, rounds)[1]

    def parted(name: str, other: Tensor, ours: Tensor) -> dict[str, Any]:
        return _check(name, float((other != ours).any(0).double().mean()), 0.0)

    rows = [
        _row(
            section,
            f"{trials} trials in one batch",
            took["batched"],
            checks=[
                parted("share of trials that part from single ones", singles, chosen)
            ],
        ),
        _row(
            section,
            f"{trials} single trials, one after another",
            trials * took["single"],
            ratio=trials * took["single"] / took["batched"],
            goal=(">=", 10.0),
            note=f"ratio to the batch; {trials} times the median round of one",
        ),
        _row(
            section,
            "one single trial",
            took["single"],
            ratio=took["single"] / took["bare single"],
            goal=("<=", 3.0),
            checks=[
                parted("share of trials that part from the bare loop", bare, singles)
            ],
            note="ratio to the bare loop below",
        ),
        _row(section, "a bare tensor loop, one trial", took["bare single"]),
        _row(
            section,
            f"{trials} trials in one batch",
            took["batched"],
            ratio=took["batched"] / took["bare batched"],
            goal=("<=", 2.5),
            checks=[
                parted(
                    "share of trials that part from the bare loop", bare_batched, chosen
                )
            ],
            note="ratio to the bare loop below",
        ),
        _row(section, f"a bare tensor loop, {trials} trials", took["bare batched"]),
    ]
    return _result("trials", quick, rows)
