"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

from kernel_cases import CASES, Case, Dense

# This comes before numpy or torch is imported, and holds in processes that tests start:
# on arrays this small more threads gain nothing, and on a busy machine they wait for
# each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from hypothesis import settings

# This comes before Triton is imported: without a GPU its interpreter runs the kernels.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("MPLBACKEND", "agg")
# A shell's background process ignores Ctrl-C, and its children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: the first tensors are slow. Derandomised: failures must be repeatable.
settings.register_profile("cbandit", deadline=None, derandomize=True)
settings.load_profile("cbandit")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            # one process: several would have to share the GPU's memory
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.xdist_group("gpu"))
    if "CBANDIT_NUDGE" in os.environ:
        skip = pytest.mark.skip(reason="would see the aid itself, see nudge.py")
        for item in items:
            if item.get_closest_marker("unaided"):
                item.add_marker(skip)
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device on this machine")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)
    if hasattr(config, "workerinput"):  # of several processes none ends long after all
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    _spare_the_collector()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Iterator[None]:
    yield
    if nextitem is not None and nextitem.path != item.path:
        _spare_the_collector()


def _spare_the_collector() -> None:
    """Let the garbage collector pass over modules and tests, which stay until the end.

    It would walk through a million objects for 0.7 s each time that it looks at all.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Change the last bits of all scores, where ``CBANDIT_NUDGE`` says so."""
    seed = os.environ.get("CBANDIT_NUDGE")
    if seed is not None:
        from nudge import nudged  # only now: it takes the whole library

        off = nudged(int(seed))
        off.__enter__()
        config.add_cleanup(lambda: off.__exit__(None, None, None))


# ---------------- an independent reference: dense, float64, numpy, nothing merged


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    """Kernels by name."""
    return CASES


@pytest.fixture(scope="session")
def dense() -> type[Dense]:
    """The dense reference."""
    return Dense


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240117)
