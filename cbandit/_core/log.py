"""The library's only logger, and warnings that point at the user's line.

The logger is ``logging.getLogger("cbandit")``; by default it is quiet.
"""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType

LOG = logging.getLogger("cbandit")
LOG.addHandler(logging.NullHandler())


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn, and point at the line outside the library that led here."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def _ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0] == "cbandit"
