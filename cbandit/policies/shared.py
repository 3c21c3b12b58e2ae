"""The arguments that policies share, with their help."""

from __future__ import annotations

import inspect
from typing import Any

from cbandit.posterior.engines.choice import ENGINES

__all__ = ["GP_POLICY", "POLICY", "documented"]

POLICY = {
    "thresholds": """what costs are compared with, 0 unless given: a number, ``(m,)``,
        ``(*trials, m)`` or, where no two costs differ, ``(*trials, 1)``; or a
        callable of the round that gives one of these. Of costs by name,
        ``costs={"latency": gp}``, by name too: ``{"latency": "<= 20"}``; named costs
        without any are limited at 0, and a warning says so. A cost with ``">= 0.9"``
        is to stay above it. What has two limits is two costs, told twice: ``{"low":
        ">= 0.2", "high": "<= 0.8"}``.""",
    "minimise": """whether the reward is to be small. It is told, and given back, as it
        is.""",
    "seed": "of all draws, an int from 0; one seed, one run.",
    "trials": """``None``, how many replications run side by side, or a ``range`` of
        their numbers (a part of a larger batch).""",
    "device": 'where tensors live, ``"cpu"`` (the default) or ``"cuda"``.',
    "dtype": """of arrays over the actions, ``"float64"`` or ``"float32"`` (or torch's
        own names); float64 on the CPU and float32 on CUDA by default. float32 has
        seven digits, for coordinates too: centre those that lie far from 0 against
        a kernel's lengthscale, a linear kernel's above all, or take float64.""",
    "horizon": "the last round, where one is known.",
}
GP_POLICY = {
    "clip": """``(B, G)``: estimates are kept within ``[-B, B]`` and, thresholds
        subtracted, ``[-G, G]``; in spreads where a belief is standardised.""",
    "engine": "one of " + ", ".join(f'``"{name}"``' for name in ENGINES) + ".",
    "feedback": "``None``, :class:`~cbandit.Delayed` or :class:`~cbandit.Sliding`.",
    "pending": """``"ignore"`` outstanding choices, or ``"hallucinate"``: count their
        variance and keep their mean, so that several in a row are several places.
        ``None``: the latter for GPUCB, CKB, RPOL and CONFIG with UCB and without
        ``Delayed``, the former elsewhere.""",
    **POLICY,
}


def documented(cls: Any) -> str | None:
    """Return the class' help, shared arguments appended where it has ``common:``."""
    own: str | None = cls.__dict__.get("__doc__")
    text = inspect.cleandoc(own or "")  # as Python itself does from 3.13 on
    if "\n    common: " not in text:
        return own or cls.__doc__
    lines = [
        f"    {name}: {meaning}"
        for name, meaning in cls.common.items()
        if f"\n    {name}: " not in text
    ]
    known = ["Attributes:", "    t: the round last asked for, 0 before the first."]
    return "\n".join([text, "", "Common:", *lines, "", *known, ""])
