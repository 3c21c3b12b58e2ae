"""Check each kernel on a device against its reference before its first use.

An untested driver or compiler must not make silent wrong choices. Before a form of a
kernel is used on a device (what it is compiled for: its score, its numbers of functions
and columns, its dtype), it plays one round of random numbers on a few thousand actions.
If it does not compile, or disagrees with its reference, a warning says so, and plain
torch replaces it from then on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from cbandit_kernels.types import Change, Found, Frame, Look

__all__ = ["Numbers", "Sample", "agrees", "sample_frame"]

ACTIONS = 2500  # several blocks of every kernel
LIMIT = {torch.float32: 1e-4, torch.float64: 1e-9}  # share of the compared values' size
TIE = 1e-2  # the sample's tolerance, so that rounding cannot decide the first action

Kernel = Callable[..., Found]
"""A kernel: takes the columns' arguments, and the fields of a :class:`Sample`."""

FOUND = ("value", "index", "estimate")

_verdicts: dict[Hashable, bool] = {}


class Sample(NamedTuple):
    """The arguments of a random round that follow the columns.

    See :func:`cbandit_kernels.finish_round_ref`.
    """

    change: Change
    mean: Tensor
    var: Tensor
    look: Look
    start: int
    draw: Tensor | None


class Numbers:
    """A source of random numbers on a round's device, the same in each new instance.

    Args:
        like: the round's means ``(T, F, n)``.
    """

    def __init__(self, like: Tensor) -> None:
        self._generator, self._like = torch.Generator().manual_seed(1), like
        self.trials, self.functions = min(2, len(like)), like.shape[1]

    def share(self, *shape: int) -> Tensor:
        """Return numbers between 0 and 1, in float64."""
        drawn = torch.rand(*shape, generator=self._generator, dtype=torch.float64)
        return drawn.to(self._like.device)

    def signed(self, *shape: int) -> Tensor:
        """Return numbers between -1 and 1, in float64."""
        return 2 * self.share(*shape) - 1

    def values(self, *shape: int) -> Tensor:
        """Return numbers between -1 and 1, in the dtype of the round."""
        return self.signed(*shape).to(self._like)

    def round(self, columns: int, look: Look, drawn: bool) -> Sample:
        """Return a round of ``columns`` columns, with a look of the given form."""
        trials, functions, n = self.trials, self.functions, ACTIONS
        alike = Look(
            self.signed(trials, functions),
            None if look.offset is None else 0.1 * self.signed(trials, functions),
            None if look.bound is None else 2 + self.share(trials, functions),
            look.score,
            None if look.weight is None else self.share(trials, functions - 1),
            None if look.mask is None else self.share(trials, n) > 0.5,
            tolerance=TIE + 0 * self.share(trials),
        )
        change = Change(
            0.1 * self.share(trials, columns), self.signed(trials, functions, columns)
        )
        mean = self.values(trials, functions, n)
        var = (0.1 + self.share(trials, n)).to(mean)
        draw = self.values(trials, functions, n) if drawn else None
        return Sample(change, mean, var, alike, 0, draw)


def sample_frame(numbers: Numbers, frame: Frame, kinds: int, dim: int) -> Frame:
    """Return a random frame in the form of ``frame``."""
    shape = kinds, min(numbers.trials, frame.center.shape[1]), dim
    scale = (1 + numbers.share(*shape)) / dim**0.5
    return Frame(
        numbers.share(*shape).to(frame.center), scale.to(frame.scale), frame.far
    )


def agrees(
    name: str,
    kernel: Kernel,
    reference: Kernel,
    known: tuple[Change, Tensor, Look, Tensor | None],
    form: Hashable,
    columns: Callable[[Numbers], tuple[object, ...]],
) -> bool:
    """Return whether a kernel agrees with its reference; once for each form and device.

    Args:
        name: the kernel's name, for the warning.
        kernel: changes means and variances in place and returns the best action.
        reference: does the same in plain torch.
        known: the change, the means, the look and the draw of the next round.
        form: what else the kernel is compiled for.
        columns: returns random arguments from which a round's columns are computed.
    """
    change, mean, look, draw = known
    shape = change.shift.shape[1:]
    place = name, mean.device, mean.dtype, shape, look.score
    key = *place, look.bound is None, look.mask is None, draw is None, form
    if key in _verdicts:
        return _verdicts[key]

    def played(play: Kernel) -> dict[str, Tensor]:
        numbers = Numbers(mean)
        made = columns(numbers)
        sample = numbers.round(shape[-1], look, draw is not None)
        found = play(*made, *sample)
        changed = {"mean": sample.mean, "variance": sample.var}
        return changed | {name: getattr(found, name) for name in FOUND}

    fault = _fault(played, kernel, reference)
    if fault is not None:
        warnings.warn(
            f"the kernel {name!r} is not used on {mean.device}, for {fault}. Plain "
            "torch takes its place, which is slower; please report it, with what "
            "'cbandit info' says",
            RuntimeWarning,
            stacklevel=4,
        )
    _verdicts[key] = fault is None
    return fault is None


def _fault(
    played: Callable[[Kernel], dict[str, Tensor]], kernel: Kernel, reference: Kernel
) -> str | None:
    wanted = played(reference)
    try:
        outcome = played(kernel)
    except torch.OutOfMemoryError:  # not the kernel's fault
        raise
    except Exception as error:  # compilers and drivers raise any class
        return f"it fails there ({type(error).__name__}: {error})"
    for part, value in wanted.items():
        limit = LIMIT.get(value.dtype, 0.0) * (1 + float(value.abs().amax()))
        gap = float((outcome[part] - value).abs().amax())
        if not gap <= limit:  # NaN counts as a difference
            return f"its {part} differs from plain torch's by up to {gap:.3g}"
    return None
