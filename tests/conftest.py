"""Settings of the whole suite."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

# before anything imports Triton: without a GPU its kernels run in the interpreter
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("MPLBACKEND", "agg")

# tensors are slow to warm up, and a failure must be the same failure tomorrow
settings.register_profile("cbandit", deadline=None, derandomize=True)
settings.load_profile("cbandit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device on this machine"))
