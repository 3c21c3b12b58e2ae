"""Checks of arguments, which convert them to tensors or say what is expected."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cbandit._core import devices
from cbandit.errors import CBanditError

# the sum of squares of a million such numbers, as in spreads, is finite
LARGEST = {
    dtype: math.sqrt(torch.finfo(dtype).max) / 1000
    for dtype in (torch.float64, torch.float32)
}
COMPUTED = (
    *(torch.float64, torch.float32, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


def tensor(
    name: str,
    value: object,
    dtype: torch.dtype | None = torch.float64,
    device: torch.device | str | None = None,
    graph: bool = False,
) -> Tensor:
    """Copy ``value``, a number, sequence, numpy array or tensor, as a tensor.

    Gradients flow back through the copy if ``graph``; without it, it is plain data.
    """
    if isinstance(value, Tensor):
        out = _dense(name, value) if graph else plain(name, value)
    elif torch.compiler.is_compiling():  # which knows few of numpy's options
        return torch.as_tensor(value, dtype=dtype, device=device)
    else:
        out = _from_numpy(name, value)
    if out.is_complex():
        raise CBanditError(f"{name} must be real; got {out.dtype}")
    if dtype is None and out.dtype not in COMPUTED:
        # torch supports few operations in other dtypes
        dtype = torch.float64 if out.is_floating_point() else torch.int64
    # the caller may refill the same memory
    out = out.to(dtype=dtype, copy=True)
    return out if device is None else devices.put(out, torch.device(device))


def plain(name: str, value: Tensor) -> Tensor:
    """Return ``value`` without gradients, as a plain tensor; raise if it is sparse."""
    return _dense(name, value.detach())


def _dense(name: str, value: Tensor) -> Tensor:
    odd = value.is_quantized or value.is_nested or value.is_meta
    if odd or value.layout is not torch.strided:
        raise CBanditError(
            f"{name} must be a dense tensor that holds its numbers; got {value.dtype} "
            f"of layout {value.layout} on {value.device}"
        )
    known = type(value) in (Tensor, torch.nn.Parameter)
    return value if known else value.as_subclass(Tensor)


def numbers_of(thing: object) -> dict[str, Any]:
    """Return an object's attributes without graphs, which cannot be copied or saved.

    As ``__getstate__`` of classes whose parameters gradients may reach.
    """
    held = vars(thing)
    tensors = [v for v in held.values() if isinstance(v, Tensor) and v.requires_grad]
    # two names of one tensor stay two names of one tensor
    plain = {id(v): v.detach() for v in tensors}
    return {name: plain.get(id(v), v) for name, v in held.items()}


def readable() -> bool:
    """Return whether numbers of tensors can be read now.

    They cannot where torch compiles, exports or transforms a function (``torch.func``).
    Checks of numbers are left out there.
    """
    if torch.compiler.is_compiling():
        return False
    return not torch._C._are_functorch_transforms_active()


def _from_numpy(name: str, value: object) -> Tensor:
    # through numpy: torch would turn Python numbers into float32, and lose digits
    try:
        if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            raise ValueError("some of it is masked")
        array = np.asarray(value, order="C")
        if array.dtype == object:  # such as a pandas row of flags and numbers
            array = np.asarray(array.tolist())
        if array.dtype.kind in "biufc":
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        # name one entry that is not a number
        entries = array.ravel().tolist()
        odd = [e for e in entries if not isinstance(e, int | float | complex)][:1]
        reason = f" holding {kind(odd[0])}" if array.ndim and odd else ""
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f" ({error})"
    text = f" {value!r}" if isinstance(value, str) else ""
    raise CBanditError(
        f"{name} must be a number, array or tensor of numbers; got "
        f"{kind(value)}{text}{reason}"
    )


def kind(value: object) -> str:
    """Return the name of a value's class, for errors about values of the wrong one."""
    if isinstance(value, type):
        return f"the class {value.__name__}, not a {value.__name__}(...)"
    return type(value).__name__


def finite(name: str, value: Tensor, advice: str = "") -> Tensor:
    """Return ``value``, or raise if it holds NaN or infinity."""
    if not readable():
        return value
    seen = value.detach()
    # one pass; only an overflowing or infinite sum needs a closer look
    if not math.isfinite(float(seen.sum())) and not bool(seen.isfinite().all()):
        bad = seen[~torch.isfinite(seen)].flatten()[0].item()
        raise CBanditError(f"{name} must be finite; got {bad}{advice}")
    return value


def measured(name: str, value: Tensor, dtype: torch.dtype, advice: str = "") -> Tensor:
    """Return ``value``; raise unless sums of its squares in ``dtype`` are finite."""
    limit = LARGEST[dtype]
    if value.numel() == 1:
        fits = abs(float(value)) <= limit
    else:
        fits = bool((value.abs() <= limit).all())
    if not fits:
        finite(name, value, advice)
        bad = value[value.abs() > limit].flatten()[0].item()
        raise CBanditError(
            f"{name} must be at most {limit:.3g} in size: squares of larger numbers do "
            f"not add up in {dtype}; got {bad}{advice}"
        )
    return value


def no_flag(name: str, value: Any) -> Any:
    """Return ``value``; raise if it holds truth values, which are not measurements."""
    several = isinstance(value, list | tuple) and value
    first = value[0] if several else value
    dtype = getattr(first, "dtype", None)
    if isinstance(first, bool) or dtype in (torch.bool, np.bool_):
        raise CBanditError(
            f"{name} must be a number; got a truth value: give float(...) of it, if 1 "
            "and 0 are what was measured"
        )
    return value


def shaped(name: str, value: Tensor, shape: Sequence[int], meaning: str) -> Tensor:
    """Return ``value`` broadcast to ``shape``; ``meaning`` names its axes in errors."""
    try:
        return value.expand(tuple(shape))
    except RuntimeError:
        raise CBanditError(
            f"{name} must have shape {meaning} = {tuple(shape)}; got "
            f"{tuple(value.shape)}"
        ) from None


def number(name: str, value: Any, *, minimum: float = -math.inf) -> float:
    """Return ``value`` as a finite Python float that is at least ``minimum``."""
    try:
        out = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise CBanditError(f"{name} must be a number; got {value!r}") from None
    if not math.isfinite(out) or out < minimum:
        bound = "finite" if minimum == -math.inf else f"finite and at least {minimum:g}"
        raise CBanditError(f"{name} must be {bound}; got {out}")
    return out


def share(name: str, value: object) -> float:
    """Return ``value`` as a number strictly between 0 and 1."""
    out = number(name, value)
    if not 0 < out < 1:
        percent = f"; {out:g} % is {out / 100:g}" if 1 < out < 100 else ""
        raise CBanditError(f"{name} must lie between 0 and 1; got {out:g}{percent}")
    return out


def whole(
    name: str,
    value: Any,
    minimum: int | None = 1,
    expected: str | None = None,
    maximum: int | None = None,
) -> int:
    """Return ``value``, an integer of any library, as an int within bounds."""
    try:
        out = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        out = None
    if out is None or (minimum is not None and out < minimum):
        wanted = expected or f"an int of at least {minimum}"
        raise CBanditError(f"{name} must be {wanted}; got {value!r}")
    if maximum is not None and out > maximum:
        raise CBanditError(f"{name} must be at most {maximum}; got {value!r}")
    return out


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False; texts and numbers are refused."""
    if not isinstance(value, bool | np.bool_):
        raise CBanditError(f"{name} must be True or False; got {value!r}")
    return bool(value)


@contextmanager
def about(name: str) -> Iterator[None]:
    """Add the argument's name to errors that are raised inside the context."""
    try:
        yield
    except CBanditError as error:
        raise CBanditError(f"{name}: {error}") from None


def one_of(
    name: str, value: object, *options: str, other: str = "", called: bool = False
) -> Any:
    """Return ``value`` if it is one of the words, or if ``called`` a callable.

    Errors also mention ``other``.
    """
    known = isinstance(value, str) and value in options
    if not known and not (called and callable(value)):
        words = [*map(repr, options), *([other] if other else [])]
        wanted = f"{', '.join(words[:-1])} or {words[-1]}"
        raise CBanditError(f"{name} must be {wanted}; got {value!r}")
    return value


def path(name: str, value: Any) -> Path:
    """Return ``value`` as the path of a file or a folder."""
    try:
        out = Path(value)
        os.fsencode(out)
        out.exists()  # raises for names that are too long
    except TypeError:
        raise CBanditError(f"{name} must be a path; got {value!r}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise CBanditError(f"{name} must be a path; got {value!r} ({reason})") from None
    if "\0" in str(out):
        raise CBanditError(f"{name} must be a path without a null byte; got {value!r}")
    return out


def seed(value: object) -> int:
    """Return ``value`` as a seed, an int from 0 to 2^64 - 1."""
    wanted = "an int from 0 to 2**64 - 1"
    out = whole("seed", value, 0, wanted)
    if out >= 2**64:
        raise CBanditError(f"seed must be {wanted}; got {value!r}")
    return out


def device(value: Any) -> torch.device:
    """Return ``value`` as a device that exists: ``None`` is the CPU, 3 ``cuda:3``."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"cuda:{value}"  # torch itself takes numbers in CUDA builds only
    try:
        out = torch.device("cpu" if value is None else value)
    except (RuntimeError, TypeError, ValueError):
        out = torch.device("meta")
    if out.type not in ("cpu", "cuda") or isinstance(value, bool):
        raise CBanditError(f"device must be 'cpu' or 'cuda'; got {value!r}")
    if out.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (out.index or 0) >= count:
            present = "no CUDA device" if count == 0 else f"{count} CUDA devices"
            raise CBanditError(
                f"device {str(out)!r} is not here: torch {torch.__version__} sees "
                f"{present}; use 'cpu'"
                + ("" if torch.version.cuda else ", or a CUDA build of torch")
            )
    return out if out.type == "cuda" else torch.device("cpu")


def positive(name: str, value: object, *, graph: bool = False) -> Tensor:
    """Return ``value`` as a finite float64 tensor whose every entry is above zero."""
    out = tensor(name, value, graph=graph)
    if readable() and not bool(
        ((out > 0) & out.isfinite()).all()
    ):  # one look at the device
        least = finite(name, out).min().item()
        raise CBanditError(f"{name} must be above 0; got {least:g}")
    return out


def nonnegative(name: str, value: object, *, graph: bool = False) -> Tensor:
    """Return ``value`` as a finite float64 tensor without a negative entry."""
    out = tensor(name, value, graph=graph)
    if readable() and not bool(((out >= 0) & out.isfinite()).all()):
        least = finite(name, out).min().item()
        raise CBanditError(f"{name} must not be negative; got {least:g}")
    return out


def per_trial(
    name: str, value: object, batch: tuple[int, ...], *, graph: bool = False
) -> Tensor:
    """Copy ``value``, a number or ``(*trials,)``, as ``(T,)`` float64."""
    out = tensor(name, value, graph=graph)
    if out.dim() > 1 or (out.dim() == 1 and tuple(out.shape) not in ((1,), batch)):
        raise CBanditError(
            f"{name} must be a number or have shape (*trials,) = {batch}; got "
            f"{tuple(out.shape)}"
        )
    return out.expand(batch or (1,)).clone()


def per_cost(
    name: str, value: object, batch: tuple[int, ...], m: int, *, graph: bool = False
) -> Tensor:
    """Return a number, ``(m,)``, ``(*trials, 1)`` or ``(*trials, m)`` as ``(T, m)``.

    ``(*trials,)`` is allowed too, unless it could also be ``(m,)``: then it is one
    number for each cost, as it is without trials.
    """
    out, shape = tensor(name, value, graph=graph), (*(batch or (1,)), m)
    got = tuple(out.shape)
    if got in ((m,), (1, m), (*batch, m), shape, ()):
        return out.expand(shape)
    if batch and got in (batch, (*batch, 1)):
        return out.reshape(-1, 1).expand(shape).clone()
    wanted = f"(m,) = {(m,)}"
    if batch:
        wanted += f", (*trials, 1) = {(*batch, 1)} or (*trials, m) = {(*batch, m)}"
    several = "" if m > 1 else "; several costs are a list, costs=[...]"
    raise CBanditError(
        f"{name} must be a number or have shape {wanted}; got {got}{several}"
    )


def rows(
    name: str,
    value: Tensor,
    batch: tuple[int, ...],
    axes: tuple[int, ...] = (),
    n: int | None = None,
) -> Tensor:
    """Return rows ``(n, *axes)``, with or without trials, as ``(T, n, *axes)``.

    A last axis of length 1 may be left out.
    """
    got, count = tuple(value.shape), batch[0] if batch else 1
    if axes == (1,) and n is not None and got in ((n,), (count, n)):
        value = value.unsqueeze(-1)
    shape = tuple(value.shape)
    lead, ends = shape[: len(shape) - len(axes)], shape[len(shape) - len(axes) :]
    fits = ends == axes and (n is None or lead[-1:] == (n,))
    if not fits or len(lead) not in (1, 2) or lead[:-1] not in ((), (count,)):
        known = "n" if n is None else str(n)
        plain = ", ".join([known, *map(str, () if axes == (1,) and n else axes)])
        wanted = f"({plain})" if "," in plain else f"({plain},)"
        if batch:
            wanted += f" or ({count}, {plain})"
        raise CBanditError(
            f"{name} must have {known} rows, of shape {wanted}; got {got}"
        )
    return value.expand(count, *shape[len(lead) - 1 :])
