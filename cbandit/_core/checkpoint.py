"""Checkpoints: written whole or not at all, read back only if they are ours.

A file begins with one line, ``cbandit checkpoint FORMAT KIND DIGEST``; the rest is its
body, nodes and tensors as :mod:`~cbandit._core.graph` makes them. Format, kind and
digest are checked before the body is touched, and reading runs no code of the file's.

A file is replaced only if its content is one that the writer has read or written there
itself: another's rounds are not lost unsaid.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from cbandit._core import checks, distributed, graph
from cbandit._core.distributed import Ranks
from cbandit._core.files import atomic, digest
from cbandit._core.names import Names, trusted
from cbandit.errors import CBanditError, CheckpointError

__all__ = ["Digests", "load", "read", "write"]

FORMAT = 3
_NAME = b"cbandit checkpoint "
LINE = 200  # bytes, more than the first line has

Digests = dict[str, tuple[bytes, ...]]
"""By path, the digests of what a policy or a run has read or written there last. These
are states that it has been through: what replaces them loses nothing."""

_ADVICE = {
    "policy": "cb.load() it and go on from there, save() to another path, or replace "
    "it by save(path, overwrite=True)",
    "simulation": "let one process at a time play a run; the same call again goes on "
    "from what is there",
}


def write(
    path: Any,
    kind: str,
    content: Any,
    digests: Digests | None = None,
    overwrite: bool = False,
) -> None:
    """Put ``content`` in the file ``path``, atomically.

    Args:
        path: a file that is there is replaced if it is a checkpoint of this format, and
            one of ``digests``; any other is kept, an error.
        kind: one word for what it holds, which :func:`read` has to name.
        content: anything of plain values, containers, tensors and objects.
        digests: what may be replaced; the file as it is now is noted there.
        overwrite: replace any checkpoint of this format.
    """
    target, known = _path(path), {} if digests is None else digests
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
        if not overwrite:
            _check(target, kind, known)  # before the work, and again after it
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
    name, place = kind.encode(), os.path.abspath(target)
    mark = digest(name, buffer.getbuffer())

    def check() -> None:
        """Raise if another process has written the file, else note what it will be."""
        if not overwrite:
            _check(target, kind, known)
        # noted first: an interrupt may come when the file is there already
        known[place] = (*known.get(place, ()), mark)

    with buffer.getbuffer() as body, atomic(target, check) as file:
        file.write(b"%s%d %s %s\n" % (_NAME, FORMAT, name, mark))
        file.write(body)
    known[place] = (mark,)


def read(
    path: Any,
    kind: str,
    trust: Mapping[str, Any] | None = None,
    ranks: Ranks = distributed.ALONE,
    digests: Digests | None = None,
) -> Any:
    """Return what :func:`write` put in the file.

    Args:
        path: of the file.
        kind: the word that it was written with.
        trust: what it may name beside what is known, from :func:`names.trusted`.
        ranks: the processes that ask for it together; the first of them reads it.
        digests: the file as it is now is noted there.
    """
    target = _path(path)
    found, mark, body = ranks.first(lambda: _opened(target))
    if found != kind:
        raise CheckpointError(
            f"{target} is the checkpoint of a {found}, not of a {kind}; it was kept"
        )
    try:
        whole = torch.load(io.BytesIO(body), weights_only=True)
        content = graph.parsed(whole["nodes"], whole["tensors"], Names(trust or {}))
    except CheckpointError as error:
        raise CheckpointError(f"{target} was not read: {error}; it was kept") from None
    except Exception as error:  # a forged body fails in many ways
        raise CheckpointError(
            f"{target} cannot be read here ({error}); it was kept"
        ) from error
    if digests is not None:
        digests[os.path.abspath(target)] = (mark,)
    return content


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
    digests: Digests = {}
    ranks = distributed.current()
    policy = read(path, "policy", trusted(trust), ranks, digests)
    policy.digests = digests
    return policy


def _path(path: Any) -> Path:
    try:
        return checks.path("path", path)
    except CBanditError as error:
        raise CheckpointError(str(error)) from None


def _check(target: Path, kind: str, digests: Digests) -> None:
    """Raise unless a checkpoint that is there is one of ``digests``."""
    try:
        with open(target, "rb") as file:
            _, mark = _head(target, file.readline(LINE).rstrip(b"\n"))
    except FileNotFoundError:
        return
    if mark in chain.from_iterable(digests.values()):
        return
    news = f"has changed since this {kind} was loaded from it or saved to it"
    if os.path.abspath(target) not in digests:
        news = f"is there already, and this {kind} is not from it"
    raise CheckpointError(
        f"{target} {news}: what others have saved there would be lost, so it was kept; "
        f"{_ADVICE[kind]}"
    )


def _opened(target: Path) -> tuple[str, bytes, bytes]:
    """Kind, digest and body of a checkpoint; an error unless it is ours and whole."""
    try:
        raw = target.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {target}: {error.strerror}") from None
    line, _, body = raw.partition(b"\n")
    kind, mark = _head(target, line)
    if mark != digest(kind, body):
        raise CheckpointError(f"{target} is broken (its checksum fails); it was kept")
    return kind.decode(), mark, body


def _head(target: Path, line: bytes) -> tuple[bytes, bytes]:
    """Kind and digest of a checkpoint, from its first line."""
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
    return words[1], words[2]
