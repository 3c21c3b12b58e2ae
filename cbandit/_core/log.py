"""The library's only logger, ``logging.getLogger("cbandit")``: quiet by default.

And warnings that point at the user's line, however deep in the library they arise.
"""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType

LOG = logging.getLogger("cbandit")
LOG.addHandler(logging.NullHandler())


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn about the line outside the library that led here."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and _ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)


def _ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return str(name).partition(".")[0] == "cbandit"
