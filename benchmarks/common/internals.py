"""The private names that benchmarks need, and nothing else here knows any.

What a pass over the set leaves behind, and what it costs without the rest of a round,
no public call tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

import cbandit as cb
from cbandit._core.randomness import Streams
from cbandit.experiments.intervals import interval
from cbandit.policies.turn import Turn
from cbandit.posterior.beliefs import Beliefs
from cbandit.posterior.engines.swept import Swept
from cbandit.posterior.rows.kronecker import Kronecker
from cbandit.posterior.system import System
from cbandit.search.box import Climbs, maximise_box, starting_points, starts_in
from cbandit_kernels import Change, Look

__all__ = [
    "Climbs",
    "Streams",
    "believed",
    "block_of",
    "inner_of",
    "interval",
    "made_in_registers",
    "maximise_box",
    "own_block",
    "pass_of",
    "solver_of",
    "starting_points",
    "starts_in",
    "stream_pass",
    "system_round",
    "tried",
]


def solver_of(
    policy: cb.GPPolicy, draws: Streams | None
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Means of all functions at points ``(T, n, d)``, and deviations or a draw."""
    beliefs: Beliefs = policy._catch_up().state.beliefs
    return beliefs.solver(streams=draws)


def _engine(policy: cb.CKB) -> Swept:
    return cast(Swept, policy._beliefs.groups[0].engine)


def tried(policy: cb.CKB) -> int:
    """How many distinct actions the policy has tried."""
    return _engine(policy).history.used


def block_of(policy: cb.CKB) -> int:
    """How many actions the engine looks at together."""
    engine = _engine(policy)
    return engine.step


def inner_of(policy: cb.CKB) -> int | None:
    """The inner dimension of a grid's matrix product; ``None`` on free-form sets."""
    rows = _engine(policy).rows
    if not isinstance(rows, Kronecker):
        return None
    basis = rows._bases[-1]
    return tried(policy) if basis is None else min(tried(policy), basis.shape[-1])


def believed(policy: cb.CKB, index: Tensor) -> tuple[Tensor, Tensor]:
    """Means ``(F, n)`` and deviations ``(1, n)`` as the last pass left them."""
    mean, var = _engine(policy).at_numbers(index.unsqueeze(0))
    return mean[0], var.clamp_min(0).sqrt()


def pass_of(policy: cb.CKB) -> Callable[[], Any]:
    """The pass of the next round alone; the small solves before it are done here."""
    now, streams = policy._catch_up(), policy._streams
    turn = Turn(now.t + 1, policy.actions, None, None, streams, policy._ledger)
    turn = turn._replace(limits=policy.limits(now.t + 1))
    state = policy._open_round(now.state, turn)
    look = policy._make_look(state, turn)
    return lambda: state.beliefs.choose(look)


# -- kernels ---------------------------------------------------------------------------


def own_block(dim: int, dtype: torch.dtype) -> int:
    """How many actions the stream kernel looks at together."""
    from cbandit_kernels._triton.rounds import stream_block

    return stream_block(dim, 1, 1, dtype)


def made_in_registers(values: Tensor, used: int, dim: int) -> Callable[[], Any]:
    """Kernel values of ``used`` tried actions a number of ``values``, not stored."""
    from cbandit_kernels._triton.ceiling import pairs

    block = own_block(dim, values.dtype)
    return lambda: pairs(values, used, dim, block)


def stream_pass(policy: cb.CKB, block: int) -> Callable[[], Any]:
    """The stream kernel's pass over the set, ``block`` actions together."""
    from cbandit_kernels._triton.rounds import stream

    engine = _engine(policy)
    rows: Any = engine.rows
    used, functions = engine.history.used, engine.mean.shape[1]
    kept: dict[str, Any] = {"dtype": torch.float64, "device": engine.mean.device}
    weights, zeros = torch.zeros(1, used, 1, **kept), torch.zeros(1, functions, **kept)
    nothing = Change(torch.zeros(1, 1, **kept), torch.zeros(1, functions, 1, **kept))
    look = Look(zeros, zeros, None, "primal-dual", zeros[:, 1:])
    return lambda: stream(
        policy.actions.all,
        rows._frame(),
        rows._points[:, :used],
        weights,
        ("rbf",),
        nothing,
        engine.mean,
        engine.var,
        look,
        0,
        None,
        block=block,
    )


def system_round(gram: Tensor, functions: int) -> Callable[[], Any]:
    """One row more of the small system, and its solve, as a round has them."""
    u, device = len(gram), gram.device
    one = torch.ones(1, dtype=torch.float64, device=device)
    seen = torch.ones(1, u, 1 + functions, dtype=torch.float64, device=device)
    slots = torch.arange(u, device=device).unsqueeze(0)
    system = System(gram.unsqueeze(0), seen[..., 0], seen[..., 1:], slots)

    def play() -> None:
        spot = system.at(slots[:, 0], gram[:1])
        system.column(spot, u)
        system.border(spot, one, seen[:, 0, 1:])

    return play
