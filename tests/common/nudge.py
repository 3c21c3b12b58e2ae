"""Another processor, pretended: every score is off by rounding, at random.

Processors differ in the last bits of what they compute. With ``nudged(seed)``, or
``CBANDIT_NUDGE=seed`` in the environment of the tests, each score is changed by 1e-13
of the prior deviation, up or down by the seed, wherever it is computed: in compiled
loops, in Triton's kernels, in plain torch, on sets and boxes. In float32 it is 1e-7. As
on one processor, the same computation gives the same bits again. A run that comes out
otherwise than without depends on the processor. Tests marked ``unaided`` are skipped:
they compare bits with a process of their own, or count what is sent to a device.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from inside import Running, best_place, box_search, kernels
from torch import Tensor

#: of a score's tolerance: 1e-13 of the deviation, in float32 1e-7
SHARE = {torch.float64: 1e-3, torch.float32: 0.1}
#: at most, for some tests set tolerances that can be seen
MOST = {torch.float64: 1e-10, torch.float32: 1e-6}


class Nudges:
    """Random signs times a share of the tolerance.

    Args:
        seed: of the signs.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.count = seed, 0

    def __call__(self, value: Tensor, tolerance: Tensor | float | None) -> Tensor:
        """Return changes of ``value (T, n)``, none without a ``tolerance (T,)``."""
        if tolerance is None:
            return torch.zeros_like(value)
        self.count += 1
        size = torch.as_tensor(tolerance).to(value).view(-1, 1) * SHARE[value.dtype]
        size = size.clamp_max(MOST[value.dtype])
        generator = torch.Generator().manual_seed(self.seed)
        signs = torch.randint(0, 2, value.shape, generator=generator)
        return (2.0 * signs.to(value) - 1.0) * size

    def score(self, score: Callable[..., Tensor], tolerance: Any) -> Any:
        """Return a score that is off."""

        def off(f: Tensor, g: Tensor) -> Tensor:
            values = score(f, g)
            return values + self(values.detach(), tolerance)

        return off

    def launch(self, play: Callable[..., Any]) -> Any:
        """Return a round's pass whose means are off while it looks."""
        names = inspect.signature(play)

        @functools.wraps(play)
        def off(*args: Any, **named: Any) -> Any:
            known = names.bind(*args, **named).arguments
            mean, look = known["mean"], known["look"]
            change = self(mean[:, 0], look.tolerance)
            at = slice(1, None) if look.score == "least" else slice(0, 1)
            mean[:, at] += change.unsqueeze(1)
            try:
                return play(*args, **named)
            finally:
                mean[:, at] -= change.unsqueeze(1)

        return off


@contextmanager
def nudged(seed: int) -> Iterator[Nudges]:
    """All scores are off, by the seed."""
    nudges = Nudges(seed)
    with ExitStack() as stack:

        def put(module: ModuleType | type, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(module, name, value))

        for module, names in kernels():
            for name in names:
                put(module, name, nudges.launch(getattr(module, name)))
        started, climbed = Running.__init__, box_search.maximise_box

        def start(
            running: Any, score: Any, mask: Any = None, close: Any = None
        ) -> None:
            started(running, nudges.score(score, close), mask, close)

        def climb(*args: Any, **named: Any) -> Any:
            known = inspect.signature(climbed).bind(*args, **named).arguments
            score = nudges.score(known["score"], known.get("tolerance", 0.0))
            return climbed(**{**known, "score": score})

        def place(value: Tensor, close: Any) -> Tensor:
            return best_place(value + nudges(value, close), close)

        put(Running, "__init__", start)
        for module in [m for n, m in sys.modules.items() if n.startswith("cbandit")]:
            for name, other in (("best_place", place), ("maximise_box", climb)):
                if hasattr(module, name):
                    put(module, name, other)
        yield nudges
