"""Figures that a notebook shows, whether or not pyplot was ever imported there."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure as _Figure

__all__ = ["Figure"]


class Figure(_Figure):
    """A figure of its own, which IPython shows as a picture."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=self.dpi)
        return file.getvalue()
