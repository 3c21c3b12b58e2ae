"""Kernels of a device, each checked against its reference where it is first used.

A driver or a compiler that nobody has tried must not make silent wrong choices. Before
a form of a kernel is used on a device (what it is compiled for: its score, its numbers
of functions and columns, its dtype), it plays one round of random numbers on a few
thousand actions. Where it does not compile, or does not do what its reference does, a
warning says so, and plain torch takes its place from then on.
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
LIMIT = {torch.float32: 1e-4, torch.float64: 1e-9}  # of the size of what is compared
TIE = 1e-2  # the sample's tolerance: rounding must not decide which action is first

Kernel = Callable[..., Found]
"""It takes what columns are made of, and the fields of a :class:`Sample`."""

FOUND = ("value", "index", "estimate")

_verdicts: dict[Hashable, bool] = {}


class Sample(NamedTuple):
    """The arguments of a random round that follow those of its columns.

    See :func:`cbandit_kernels.finish_round_ref`.
    """

    change: Change
    mean: Tensor
    var: Tensor
    look: Look
    start: int
    draw: Tensor | None


class Numbers:
    """Random numbers, the same from every new generator, on a round's device.

    Args:
        like: the round's means ``(T, F, n)``.
    """

    def __init__(self, like: Tensor) -> None:
        self._generator, self._like = torch.Generator().manual_seed(1), like
        self.trials, self.functions = min(2, len(like)), like.shape[1]

    def share(self, *shape: int) -> Tensor:
        """Between 0 and 1, in float64."""
        drawn = torch.rand(*shape, generator=self._generator, dtype=torch.float64)
        return drawn.to(self._like.device)

    def signed(self, *shape: int) -> Tensor:
        """Between -1 and 1, in float64."""
        return 2 * self.share(*shape) - 1

    def values(self, *shape: int) -> Tensor:
        """Between -1 and 1, in the dtype of the round."""
        return self.signed(*shape).to(self._like)

    def round(self, columns: int, look: Look, drawn: bool) -> Sample:
        """A round of so many columns, whose look is of the form of ``look``."""
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
    """A random frame of the form of ``frame``."""
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
    """Whether a kernel does what its reference does; judged once a form and device.

    Args:
        name: of the kernel, for the warning.
        kernel: changes means and variances in place and returns the best action.
        reference: likewise.
        known: the change, the means, the look and the draw of the round to come.
        form: what else the kernel is compiled for.
        columns: makes random arguments from which a round's columns are made.
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
    except torch.OutOfMemoryError:  # says nothing about the kernel
        raise
    except Exception as error:  # a compiler's or a driver's may be of any class
        return f"it fails there ({type(error).__name__}: {error})"
    for part, value in wanted.items():
        limit = LIMIT.get(value.dtype, 0.0) * (1 + float(value.abs().amax()))
        gap = float((outcome[part] - value).abs().amax())
        if not gap <= limit:  # NaN is a difference
            return f"its {part} differs from plain torch's by up to {gap:.3g}"
    return None
