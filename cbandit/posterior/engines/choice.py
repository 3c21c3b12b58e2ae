"""Choose the engine for a belief over a set, and say why."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from cbandit._core import checks
from cbandit._core.devices import free_memory
from cbandit.actions import Actions, Finite, ProductGrid
from cbandit.beliefs.features import FeatureKernel
from cbandit.errors import CBanditError
from cbandit.posterior.covariance import Covariance, Prior, axes_of
from cbandit.posterior.digits import WIDE
from cbandit.posterior.draws.features import has_features
from cbandit.posterior.engines.exact_gps import ExactGPs
from cbandit.posterior.engines.joint import Joint
from cbandit.posterior.engines.protocol import Dictionary, Engine, Plan
from cbandit.posterior.engines.sketch import Sketched
from cbandit.posterior.engines.swept import Swept
from cbandit.posterior.engines.weights import Weights
from cbandit.posterior.rows.kronecker import Kronecker
from cbandit.posterior.rows.protocol import Rows
from cbandit.posterior.rows.recomputed import Recomputed
from cbandit.posterior.rows.stored import Stored
from cbandit_kernels import describe_native

JOINT_ACTIONS = 512  # with more, rows and draws by features are faster
JOINT_ACTIONS_EXACT = 1024  # the same for draws with a kernel that has no features
LINEAR_ACTIONS = 1024  # with more, a linear kernel is a regression on its features
EXPECTED_ROWS = 300
FEATURES = 1024  # with more, a linear kernel is treated like any other
BLOCK = 1 << 17
CUDA_BLOCK = 1 << 26  # large enough to make launches cheap

BEYOND = Plan("factor", "an action outside the set was observed")


def _swept(
    rows: Callable[[Prior], Rows], prior: Prior, functions: int, plan: Plan
) -> Engine:
    """Return an engine for large sets, with the rows that ``plan`` names."""
    _check_memory(plan, prior, functions)
    step = block_of(prior, functions)
    if prior.device.type == "cuda" and isinstance(prior.actions, ProductGrid):
        # 16 whole rows of the second group at a time, as kernels load 16 bytes at once
        whole = 16 * prior.actions.row
        step = max(step - step % whole, whole if whole <= 2 * step else step)
    return Swept(prior, functions, plan, rows(prior), step)


MAKERS: dict[str, Callable[[Prior, int, Plan], Engine]] = {
    "joint": Joint,
    "factor": partial(_swept, Stored),
    "product": partial(_swept, Kronecker),
    "stream": partial(_swept, Recomputed),
    "weights": Weights,
    "gpytorch": ExactGPs,
    "sketch": Sketched,
}
"""How each engine over a set is made, from a prior, the functions and a plan."""
ENGINES = ("auto", *MAKERS)


def plan(
    wanted: str,
    prior: Prior,
    samples: bool,
    noise: Tensor | None = None,
    dictionary: Dictionary | None = None,
) -> Plan:
    """Plan the engine for a set: ``wanted``, or the best one for ``"auto"``.

    Args:
        wanted: the name of the engine asked for.
        prior: the set and the prior over it.
        samples: whether joint draws will be asked for.
        noise: the least variance of an observation.
        dictionary: how a sketch draws its dictionary.
    """
    checks.one_of("engine", wanted, "auto", *MAKERS)
    actions, covariance, device = prior.actions, prior.covariance, prior.device
    if isinstance(covariance.kernel, FeatureKernel):
        if wanted not in ("auto", "weights"):
            raise CBanditError(
                f"engine must be 'auto' or 'weights' for a cb.GP.linear; got {wanted!r}"
            )
        return Plan("weights", "a linear belief: sums of its features say all")
    many = actions.continuous or actions.size > LINEAR_ACTIONS
    many = many and actions.dim <= FEATURES
    if wanted == "auto" and many and noise is not None and covariance.finite:
        if bool(noise * WIDE.sharp > covariance.largest(actions).amax()):
            return Plan("weights", "a linear kernel: sums of its features say all")
    if actions.continuous:
        if wanted not in ("auto", "weights"):
            raise CBanditError(
                "engine must be 'auto' on a Box, which has no set to keep, or "
                f"'weights' with a linear kernel; got {wanted!r}"
            )
        if wanted == "weights":
            return Plan(wanted, "asked for")
        return Plan("dense", "a continuous box: points are solved for as asked")
    if wanted == "sketch":
        return Plan(wanted, "asked for", dictionary)
    if wanted != "auto":
        return Plan(wanted, "asked for")
    size, memory = actions.size, free_memory(device)
    exact = samples and not has_features(covariance)
    limit = JOINT_ACTIONS_EXACT if exact else JOINT_ACTIONS
    table = isinstance(actions, Finite) and actions.covariance is not None
    joint = 8 * prior.trials * size * size
    if (size <= limit or table) and 2 * joint < memory:
        why = f"{size} actions: the whole covariance takes {joint / 1e6:.3g} MB"
        return Plan("joint", why)
    if isinstance(actions, ProductGrid) and actions.dim > 1:
        if axes_of(covariance, actions) is not None:
            return Plan("product", "a product grid and a kernel that factors over axes")
    rows = EXPECTED_ROWS * prior.trials * size * prior.dtype.itemsize
    closed = covariance.forms is not None and not covariance.bent
    if device.type == "cuda" and closed:
        return Plan("stream", "CUDA computes kernel values faster than it reads them")
    if 2 * rows > memory and closed:
        why = f"{EXPECTED_ROWS} kernel rows would take {rows / 1e9:.3g} GB"
        return Plan("stream", why)
    return Plan("factor", f"{EXPECTED_ROWS} kernel rows take {rows / 1e9:.3g} GB")


def make_engine(plan: Plan, prior: Prior, functions: int) -> Engine:
    """Return a new engine without data; on large sets, for the stored stretch."""
    make = MAKERS.get(plan.name, Engine)
    return make(prior, functions, plan)


def _check_memory(plan: Plan, prior: Prior, functions: int) -> None:
    """Raise if means and variances of all actions do not fit in memory."""
    (first, last), trials, dtype = prior.ends, prior.trials, prior.dtype
    least = trials * (functions + 1) * (last - first) * dtype.itemsize
    free = free_memory(prior.device)
    if least > free:
        raise CBanditError(
            f"actions: means and variances of {last - first:,} actions take "
            f"{least / 1e9:,.3g} GB (engine {plan.name}, {trials} x {functions + 1} x "
            f"{last - first:,} numbers of {dtype}), and {free / 1e9:.3g} GB are free "
            f"on {prior.device.type}: give the parameters fewer values, or make "
            "numbers continuous, which gives a cb.Box (in a cb.Space, cb.Float without "
            "step)"
        )


def block_of(prior: Prior, functions: int) -> int:
    """Return how many actions are computed together.

    It is as many as fit the cache, or fill a CUDA device; fewer if their temporaries
    would not fit in memory beside means and variances.
    """
    if prior.device.type != "cuda":
        return BLOCK
    first, last = prior.ends
    number = prior.trials * (functions + 1) * prior.dtype.itemsize
    room = (free_memory(prior.device) - number * (last - first)) // (8 * number)
    return min(CUDA_BLOCK, 1 << max(16, room.bit_length() - 1))


def describe_engines(device: torch.device | None = None) -> str:
    """Describe which engine ``"auto"`` takes on some typical sets, and why."""
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    axis = torch.linspace(0, 1, 1000, dtype=dtype)
    sets: list[tuple[str, Actions, int, bool]] = [
        ("100 points, 50 trials", _points(100, dtype), 50, False),
        ("500 points, Thompson draws", _points(500, dtype), 1, True),
        ("1 000 points, Thompson draws", _points(1000, dtype), 1, True),
        ("10^5 points", _points(100_000, dtype), 1, False),
        ("grid of 10^6", ProductGrid([axis, axis]), 1, False),
        ("grid of 10^9", ProductGrid([axis, axis, axis]), 1, False),
    ]
    lines = [f"engines on {device.type}, {free_memory(device) / 1e9:.3g} GB free:"]
    for what, actions, trials, samples in sets:
        kernel = Covariance(RBFKernel(), actions.dim).to(device)
        prior = Prior(actions.to(device), kernel, (trials,), dtype, device)
        chosen = plan("auto", prior, samples)
        line = f"  {what}: {chosen.name} ({chosen.why})"
        if chosen.name != "joint":
            block = min(block_of(prior, 2), actions.size)
            line += f", {block:,} actions at a time"
        lines.append(line)
    lines.append(f"rounds on the CPU: {describe_native()}")
    return "\n".join(lines)


def _points(count: int, dtype: torch.dtype) -> Finite:
    return Finite(torch.linspace(0, 1, count, dtype=dtype).unsqueeze(-1).expand(-1, 2))
