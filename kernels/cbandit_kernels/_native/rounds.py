"""The round's pass on the CPU: compiled loops with the references' signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

KINDS = np.float32, np.float64  # by whether numbers are of double precision
NO_SLOTS = np.empty(0, np.int64)
WEIGHTED = 2  # the first scores of SCORES weigh costs
PIECE = 1 << 16  # actions in a thread's piece
STREAM_PIECE = 1 << 12  # the same if each action costs hundreds of kernel values
ALONE = 1 << 20  # with fewer numbers in the covariances, one thread is fastest
PIECES = 8  # pieces that the trials of larger covariances are cut into


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
    columns, draw = _rows(columns), _drawn_as(mean, draw)
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
    tails, path = columns.right.shape[-1], None
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
    draw, kept = _drawn_as(mean, draw), tuple(map(_rows, rows))
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
    draw = _drawn_as(mean, draw)
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
    draw = _drawn_as(mean, draw)
    _some(mean)
    if not (cov.is_contiguous() and mean.is_contiguous()) or mean.dtype != cov.dtype:
        raise ValueError(
            "cov and mean must be contiguous and of one dtype; got strides "
            f"{cov.stride()} and {mean.stride()}, {cov.dtype} and {mean.dtype}"
        )
    columns, weights, var, waiting = Late.room(cov, 1) if late is None else late
    arrays = (
        cov.data_ptr(),
        mean.data_ptr(),
        columns.data_ptr(),
        weights.data_ptr(),
        var.data_ptr(),
    )
    shape = trials, functions, size, columns.shape[1], waiting
    seen = NO_SLOTS, 0, 0
    if told is not None:
        precision, values = _as(told[1], cov), _as(told[2], cov)
        seen = np.array(told[0], np.int64), precision.data_ptr(), values.data_ptr()
    asked, kept = _asked(look, mean)
    given = arrays, shape, seen, asked, _drawn(draw)
    double = cov.dtype == torch.float64
    go, out = loops(double).joint, _answer(trials, functions, KINDS[double])
    if trials * size * size <= ALONE or trials == 1 or torch.get_num_threads() == 1:
        go(*given, (0, trials), out)
    else:
        each = -(-trials // PIECES)

        def work(piece: int, alive: object = kept) -> None:
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


def _drawn_as(mean: Tensor, draw: Tensor | None) -> Tensor | None:
    return None if draw is None else _rows(draw.to(mean.dtype))


def _as(value: Tensor, like: Tensor) -> Tensor:
    """Return a small tensor as the loops read it, in the dtype of ``like``."""
    if value.dtype == like.dtype and value.is_contiguous():
        return value
    return value.to(like.dtype).contiguous()


def _plain(value: Tensor, like: Tensor) -> Array:
    return value.to(like.dtype).contiguous().numpy()


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


def _asked(look: Look, mean: Tensor) -> tuple[tuple[int, ...], object]:
    """Return a look as addresses, a stride and a code, and what lies at the addresses.

    The caller keeps the latter while the addresses are in use.
    """
    code = SCORES.index(look.score)
    if look.weight is None and code < WEIGHTED:
        code = REWARD
    mask, step = look.mask, 0
    if mask is not None:
        mask = _rows(mask)
        step = mask.stride(0) if len(mask) > 1 else 0
    kept, places = [mask], []
    for part in (
        look.coefficient,
        look.offset,
        look.bound,
        look.weight,
        look.tolerance,
    ):
        if part is None:
            places.append(0)
            continue
        part = _as(part, mean)
        kept.append(part)
        places.append(part.data_ptr())
    scale, offset, bound, weight, tolerance = places
    place = 0 if mask is None else mask.data_ptr()
    given = scale, offset, bound, code, weight, place, step, tolerance
    return (mean.shape[1], *given), kept


def _drawn(draw: Tensor | None) -> tuple[int, tuple[int, int]]:
    if draw is None:
        return 0, (0, 0)
    return draw.data_ptr(), (draw.stride(0), draw.stride(1))


def _changes(change: Change, mean: Tensor) -> tuple[Array, Array]:
    return _plain(change.spread, mean), _plain(change.shift, mean)


def _round(
    mean: Tensor, var: Tensor, look: Look, draw: Tensor | None
) -> tuple[tuple[Any, Any, Any], object]:
    """Return the set's arrays by address and strides, the look, and the draw.

    And what :func:`_asked` returns beside the look.
    """
    side_by_side = mean.shape[-1] < 2 or (mean.stride(-1) == 1 == var.stride(-1))
    if not side_by_side or var.dtype != mean.dtype:
        raise ValueError(
            "mean and var must be of one dtype with a last stride of 1; got strides "
            f"{mean.stride()} and {var.stride()}, {mean.dtype} and {var.dtype}"
        )
    steps = mean.stride(0), mean.stride(1)
    held = mean.data_ptr(), steps, var.data_ptr(), var.stride(0)
    asked, kept = _asked(look, mean)
    return (held, asked, _drawn(draw)), kept


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
    held, kept = _round(mean, var, look, draw)

    def work(number: int, alive: object = (mean, var, kept, draw, columns)) -> None:
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
