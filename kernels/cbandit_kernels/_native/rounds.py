"""The round's pass on the CPU: compiled loops with the references' signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit_kernels._native.ends import end
from cbandit_kernels._native.loops import BLOCK, REWARD, ROWS, loops
from cbandit_kernels._native.streams import stream as streaming
from cbandit_kernels._native.sums import SUM_PIECE, summed
from cbandit_kernels._native.threads import share
from cbandit_kernels._native.values import ROOTS
from cbandit_kernels.types import (
    SCORES,
    Change,
    Factors,
    Found,
    Frame,
    Late,
    Look,
)

__all__ = ["finish", "joint", "product", "stored", "stream"]

Array = np.ndarray[Any, Any]

WEIGHTED = 2  # the first scores of SCORES weigh costs
PIECE = 1 << 16  # actions in a thread's piece
STREAM_PIECE = 1 << 12  # the same if each action costs hundreds of kernel values
ALONE = 1 << 20  # with fewer numbers in the covariances, one thread is fastest
PARTS = 8  # pieces that the trials of larger covariances are cut into


def finish(
    columns: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
) -> Found:
    """See :func:`cbandit_kernels.rounds.finish_round_ref`."""
    trials, k, n = columns.shape
    columns, look, draw = _rows(columns), _looked(look), _drawn_as(mean, draw)
    go = loops(mean.dtype == torch.float64).finish
    given = columns.data_ptr(), (columns.stride(0), columns.stride(1))
    fixed = given, k, n, _changes(change, mean)
    cut = trials, n, PIECE
    return _shared(go, fixed, cut, n, start, mean, var, look, draw, None, columns)


def product(
    columns: Factors,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | Factors | None = None,
) -> Found:
    """See :func:`cbandit_kernels.whole.product_round_ref`."""
    trials, _, rows, _ = columns.left.shape
    tails, look = columns.right.shape[-1], _looked(look)
    path = None
    if isinstance(draw, Factors):
        path, draw = _by_fours(draw, mean), None
    draw = _drawn_as(mean, draw)
    go = loops(mean.dtype == torch.float64).product
    paths = path or _no_factors(mean.dtype)
    fixed = _by_fours(columns, mean), paths, _changes(change, mean)
    cut = trials, rows, max(1, PIECE // max(1, tails))
    return _shared(go, fixed, cut, tails, start, mean, var, look, draw, path)


def stored(
    rows: Sequence[Tensor],
    weights: Tensor,
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
) -> Found:
    """See :func:`cbandit_kernels.rounds.stored_round_ref`."""
    trials, each, n = rows[0].shape
    look, draw, kept = _looked(look), _drawn_as(mean, draw), tuple(map(_rows, rows))
    go = summed(mean.dtype == torch.float64)
    steps = kept[0].stride(0), kept[0].stride(1)
    if any((rest.stride(0), rest.stride(1)) != steps for rest in kept):
        raise ValueError("all chunks of rows must have the same strides")
    chunks = np.array([chunk.data_ptr() for chunk in kept], np.int64)
    given = chunks, each, steps
    fixed = given, _plain(weights, mean), _changes(change, mean)
    cut = trials, n, SUM_PIECE
    return _shared(go, fixed, cut, n, start, mean, var, look, draw, None, kept)


def stream(
    points: Tensor,
    frame: Frame,
    tried: Tensor,
    weights: Tensor,
    kinds: tuple[str, ...],
    change: Change,
    mean: Tensor,
    var: Tensor,
    look: Look,
    start: int = 0,
    draw: Tensor | None = None,
) -> Found:
    """See :func:`cbandit_kernels.rounds.stream_round_ref`."""
    n, dim = points.shape[-2:]
    look, draw = _looked(look), _drawn_as(mean, draw)
    go = streaming(kinds, dim, frame.far, mean.dtype == torch.float64)
    roots = torch.tensor([ROOTS[kind] for kind in kinds], dtype=torch.float64)
    scale = frame.scale.double() * roots.view(-1, 1, 1)
    center = frame.center.double()
    near = (tried.double() - center.unsqueeze(-2)) * scale.unsqueeze(-2)
    whole = points if points.dim() == 3 else points.unsqueeze(0)
    # points keep their dtype, as converting would copy all of them each round
    given = whole.contiguous().numpy(), center.numpy(), scale.numpy()
    framed = *given, _plain(near, mean)
    fixed = framed, _plain(weights, mean), _changes(change, mean)
    cut = len(mean), n, STREAM_PIECE
    return _shared(go, fixed, cut, n, start, mean, var, look, draw)


def joint(
    cov: Tensor,
    mean: Tensor,
    look: Look,
    told: tuple[Sequence[int], Tensor, Tensor] | None = None,
    draw: Tensor | None = None,
    late: Late | None = None,
) -> Found:
    """See :func:`cbandit_kernels.whole.joint_round_ref`."""
    trials, size, _ = cov.shape
    functions = mean.shape[1]
    look, draw = _looked(look), _drawn_as(mean, draw)
    _some(mean)
    if not (cov.is_contiguous() and mean.is_contiguous()) or mean.dtype != cov.dtype:
        raise ValueError(
            "cov and mean must be contiguous and of one dtype; got strides "
            f"{cov.stride()} and {mean.stride()}, {cov.dtype} and {mean.dtype}"
        )
    asked, drawn = _asked(look, mean), _drawn(draw)
    go = loops(cov.dtype == torch.float64).joint
    late = Late.room(cov, 1) if late is None else late
    columns, weights, var, waiting = late
    lacking = columns.numpy(), weights.numpy(), var.numpy(), waiting
    if told is None:
        seen = (
            False,
            np.zeros(trials, np.int64),
            _constant(0.0, (trials,), cov.dtype),
            _constant(0.0, (trials, functions), cov.dtype),
        )
    else:
        slots, precision, values = told
        seen = (
            True,
            np.array(slots, np.int64),
            _plain(precision, cov),
            _plain(values, cov),
        )
    table = cov.numpy()
    given = table, mean.numpy(), lacking, seen, asked, drawn
    out = _answer(trials, functions, table.dtype)
    if trials * size * size <= ALONE or trials == 1 or torch.get_num_threads() == 1:
        go(*given, (0, trials), out)
    else:
        each = -(-trials // PARTS)

        def work(piece: int, alive: object = (look, draw)) -> None:
            go(*given, (piece * each, min((piece + 1) * each, trials)), out)

        _spread(go, work, -(-trials // each))
    return Found(*map(torch.from_numpy, out))


# -- arguments and results of the loops --------------------------------------------


# an address keeps no array alive, so each piece of work holds the tensors behind it


def _some(mean: Tensor) -> None:
    if not mean.shape[-1]:
        raise ValueError("mean and var must hold at least one action; got none")


def _rows(value: Tensor) -> Tensor:
    """Return the values with neighbours next to each other in memory."""
    return value if value.stride(-1) == 1 else value.contiguous()


def _looked(look: Look) -> Look:
    if look.mask is None or look.mask.stride(-1) == 1:
        return look
    return replace(look, mask=look.mask.contiguous())


def _drawn_as(mean: Tensor, draw: Tensor | None) -> Tensor | None:
    return None if draw is None else _rows(draw.to(mean.dtype))


def _plain(value: Tensor, like: Tensor) -> Array:
    if value.dtype != like.dtype:
        value = value.to(like.dtype)
    return value.contiguous().numpy()


def _by_fours(factors: Factors, like: Tensor) -> tuple[Array, Array]:
    """Return both factors, padded with zeros to an inner multiple of four."""
    left, right = factors
    short = -left.shape[-1] % ROWS
    if short:
        pad = torch.nn.functional.pad
        left, right = pad(left, (0, short)), pad(right, (0, 0, 0, short))
    return _plain(left, like), _plain(right, like)


@lru_cache(maxsize=2)
def _no_factors(dtype: torch.dtype) -> tuple[Array, Array]:
    left, right = (
        torch.empty(1, 0, 1, 0, dtype=dtype),
        torch.empty(1, 0, 1, dtype=dtype),
    )
    return left.numpy(), right.numpy()


@lru_cache(maxsize=64)
def _constant(value: float, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    return torch.full(shape, value, dtype=dtype).numpy()


def _small(value: Tensor | None, default: float, like: Tensor) -> Array:
    """Return a ``(T, F)`` tensor as an array for the loops; ``None``: a constant."""
    if value is None:
        return _constant(default, tuple(like.shape[:2]), like.dtype)
    return _plain(value, like)


def _asked(look: Look, mean: Tensor) -> tuple[Any, ...]:
    """Return a look as small arrays, a code and an address."""
    mask, step = 0, 0
    if look.mask is not None:
        mask = look.mask.data_ptr()
        step = look.mask.stride(0) if len(look.mask) > 1 else 0
    code = SCORES.index(look.score)
    if look.weight is None and code < WEIGHTED:
        code = REWARD
    return (
        _small(look.coefficient, 0.0, mean),
        _small(look.offset, 0.0, mean),
        _small(look.bound, torch.inf, mean),
        code,
        _small(look.weight, 0.0, mean),
        mask,
        step,
        _constant(0.0, (len(mean),), mean.dtype)
        if look.tolerance is None
        else _plain(look.tolerance, mean),
    )


def _drawn(draw: Tensor | None) -> tuple[int, tuple[int, int]]:
    if draw is None:
        return 0, (0, 0)
    return draw.data_ptr(), (draw.stride(0), draw.stride(1))


def _changes(change: Change, mean: Tensor) -> tuple[Array, Array]:
    return _plain(change.spread, mean), _plain(change.shift, mean)


def _round(
    mean: Tensor, var: Tensor, look: Look, draw: Tensor | None
) -> tuple[Any, Any, Any]:
    """Return the set's arrays by address and strides, the look, and the draw."""
    side_by_side = mean.shape[-1] < 2 or (mean.stride(-1) == 1 == var.stride(-1))
    if not side_by_side or var.dtype != mean.dtype:
        raise ValueError(
            "mean and var must be of one dtype with a last stride of 1; got strides "
            f"{mean.stride()} and {var.stride()}, {mean.dtype} and {var.dtype}"
        )
    steps = mean.stride(0), mean.stride(1)
    held = mean.data_ptr(), steps, var.data_ptr(), var.stride(0)
    return held, _asked(look, mean), _drawn(draw)


def _spread(go: Any, work: Callable[[int], None], pieces: int) -> None:
    """Divide the pieces among threads.

    The first piece is done alone if it compiles the loop, so that no thread waits for
    another inside the compiler.
    """
    first = 0 if go.overloads else 1
    if first:
        work(0)
    share(lambda piece: work(first + piece), pieces - first)


def _shared(
    go: Any,
    fixed: tuple[Any, ...],
    cut: tuple[int, int, int],
    tails: int,
    start: int,
    mean: Tensor,
    var: Tensor,
    look: Look,
    draw: Tensor | None = None,
    paths: tuple[Array, Array] | None = None,
    columns: object = None,
) -> Found:
    """Divide trials of ``size`` items, ``step`` at a time, and return the best of all.

    The items are rows of ``tails`` actions, or else the actions of a single row.
    """
    trials, size, step = cut
    _some(mean)
    each = -(-size // step)
    kind = np.float64 if mean.dtype == torch.float64 else np.float32
    peaks = np.empty((trials, mean.shape[-1] // tails * -(-tails // BLOCK)), kind)
    held = _round(mean, var, look, draw)

    def work(number: int, alive: object = (mean, var, look, draw, columns)) -> None:
        t, piece = divmod(number, each)
        low = piece * step
        go(*fixed, *held, (t, low, min(low + step, size), start), peaks)

    _spread(go, work, trials * each)
    found = _answer(trials, mean.shape[1], kind)
    loop, paths = end(kind is np.float64), paths or _no_factors(mean.dtype)
    loop(peaks, tails, start, *held, paths, found)
    return Found(*map(torch.from_numpy, found))


def _answer(trials: int, functions: int, kind: Any) -> tuple[Array, Array, Array]:
    """Return empty arrays for results, which torch borrows: faster than the reverse."""
    index = np.empty(trials, np.int64)
    return np.empty(trials, kind), index, np.empty((trials, functions), kind)
