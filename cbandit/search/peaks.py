"""Peaks of long rows; see :mod:`cbandit._core.peaks`."""

from cbandit._core.peaks import argmax, at_each, members, neighbours, peaks_of

__all__ = ["argmax", "at_each", "members", "neighbours", "peaks_of"]
