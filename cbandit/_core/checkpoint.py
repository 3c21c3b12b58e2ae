"""Checkpoints: written whole or not at all, read back only if they are ours.

A file begins with one line, ``cbandit checkpoint FORMAT KIND DIGEST``; the rest is its
body, nodes and tensors as :mod:`~cbandit._core.graph` makes them. Format, kind and
digest are checked before the body is touched, and reading runs no code of the file's.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cbandit._core import checks, distributed, graph
from cbandit._core.distributed import Ranks
from cbandit._core.files import atomic, digest
from cbandit._core.names import Names, trusted
from cbandit.errors import CBanditError, CheckpointError

__all__ = ["load", "read", "save", "write"]

FORMAT = 3
_NAME = b"cbandit checkpoint "


def write(path: Any, kind: str, content: Any) -> None:
    """Put ``content`` in the file ``path``, atomically.

    Args:
        path: a file that is there is replaced if it is a checkpoint of this format;
            any other is kept, an error.
        kind: one word for what it holds, which :func:`read` has to name.
        content: anything of plain values, containers, tensors and objects.
    """
    target = _path(path)
    if target.is_dir():
        raise CheckpointError(f"path must be a file; {target} is a directory")
    if target.exists():
        try:
            _opened(target)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}, and will not be overwritten; choose another path "
                "or remove it"
            ) from None
    buffer = io.BytesIO()
    try:
        nodes, tensors, _ = graph.written(content)
        torch.save({"nodes": nodes, "tensors": tensors}, buffer)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"this cannot be saved: {error}. Functions given to a policy (schedules, "
            "draws, thresholds) must be defined at a module's top level, not lambdas"
        ) from None
    if not target.parent.is_dir():
        raise CheckpointError(f"path: the folder {target.parent} does not exist")
    name = kind.encode()
    with buffer.getbuffer() as body, atomic(target) as file:
        file.write(b"%s%d %s %s\n" % (_NAME, FORMAT, name, digest(name, body)))
        file.write(body)


def read(
    path: Any,
    kind: str,
    trust: Mapping[str, Any] | None = None,
    ranks: Ranks = distributed.ALONE,
) -> Any:
    """Return what :func:`write` put in the file.

    Args:
        path: of the file.
        kind: the word that it was written with.
        trust: what it may name beside what is known, from :func:`names.trusted`.
        ranks: the processes that ask for it together; the first of them reads it.
    """
    target = _path(path)
    found, body = ranks.first(lambda: _opened(target))
    if found != kind:
        raise CheckpointError(
            f"{target} is the checkpoint of a {found}, not of a {kind}; it was kept"
        )
    try:
        whole = torch.load(io.BytesIO(body), weights_only=True)
        return graph.parsed(whole["nodes"], whole["tensors"], Names(trust or {}))
    except CheckpointError as error:
        raise CheckpointError(f"{target} was not read: {error}; it was kept") from None
    except Exception as error:  # a forged body fails in many ways
        raise CheckpointError(
            f"{target} cannot be read here ({error}); it was kept"
        ) from error


def save(policy: Any, path: Any) -> None:
    """Write a policy; see ``policy.save``."""
    policy.lighten()
    distributed.current().first(lambda: write(path, "policy", policy))


def load(path: Any, trust: Any = ()) -> Any:
    """Load the policy that ``policy.save(path)`` wrote; it goes on bit for bit.

    No code of the file's is run. It holds numbers, and names of classes and functions:
    those of cbandit, and kernels, priors and constraints of gpytorch and botorch, are
    known. All others, your own kernels, policies, schedules, thresholds, draws and
    penalties among them, are refused unless you pass them.

    Args:
        path: of the file.
        trust: a tuple of classes and functions that the file may name too; of objects,
            for their classes; of modules, for all that is written in them. Trust only
            code that you would let the file call, whatever it gives it.

    Example:
        >>> policy.save("state.ckpt")                               # doctest: +SKIP
        >>> policy = cb.load("state.ckpt", trust=(my_schedule,))    # doctest: +SKIP
    """
    return read(path, "policy", trusted(trust), distributed.current())


def _path(path: Any) -> Path:
    try:
        return checks.path("path", path)
    except CBanditError as error:
        raise CheckpointError(str(error)) from None


def _opened(target: Path) -> tuple[str, bytes]:
    """Kind and body of a checkpoint; an error unless it is ours and whole."""
    try:
        raw = target.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {target}: {error.strerror}") from None
    line, _, body = raw.partition(b"\n")
    words = line.removeprefix(_NAME).split(b" ")
    if words == [b"1"] and line.startswith(_NAME):
        raise CheckpointError(
            f"{target} was written by cbandit 0.1; this version cannot read it; it was "
            "kept"
        )
    if not line.startswith(_NAME) or len(words) != 3 or words[0] != b"%d" % FORMAT:
        raise CheckpointError(
            f"{target} is not a checkpoint of this version of cbandit; it was kept"
        )
    if words[2] != digest(words[1], body):
        raise CheckpointError(f"{target} is broken (its checksum fails); it was kept")
    return words[1].decode(), body
