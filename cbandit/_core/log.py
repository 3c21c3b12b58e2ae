"""The library's only logger, ``logging.getLogger("cbandit")``: quiet by default."""

from __future__ import annotations

import logging

__all__ = ["LOG"]

LOG = logging.getLogger("cbandit")
LOG.addHandler(logging.NullHandler())
