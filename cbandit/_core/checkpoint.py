"""Checkpoints: written whole or not at all, read back only if they are ours.

A file begins with one line, ``cbandit checkpoint FORMAT KIND DIGEST``; the rest is its
body. So format, kind and digest are checked before anything of the body is unpickled.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from cbandit._core import checks, distributed
from cbandit._core.files import atomic
from cbandit.errors import CBanditError, CheckpointError

__all__ = ["load", "read", "save", "write"]

FORMAT = 2
_NAME = b"cbandit checkpoint "


def write(path: Any, kind: str, content: Any) -> None:
    """Put ``content`` in the file ``path``, atomically.

    Args:
        path: a file that is there is replaced if it is a checkpoint of this format;
            any other is kept, an error.
        kind: one word for what it holds, which :func:`read` has to name.
        content: anything that can be pickled.
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
        torch.save(content, buffer)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"this cannot be saved: {error}. Functions given to a policy (schedules, "
            "draws, thresholds) must be defined at a module's top level, not lambdas"
        ) from None
    if not target.parent.is_dir():
        raise CheckpointError(f"path: the folder {target.parent} does not exist")
    name, body = kind.encode(), buffer.getbuffer()
    with atomic(target) as file:
        file.write(b"%s%d %s %s\n" % (_NAME, FORMAT, name, _digest(name, body)))
        file.write(body)


def read(path: Any, kind: str) -> Any:
    """Return what :func:`write` put in the file. It runs code: open what you trust.

    Where ranks share a run, the first of them reads it for all.
    """
    target = _path(path)
    found, body = distributed.current().first(lambda: _opened(target))
    if found != kind:
        raise CheckpointError(
            f"{target} is the checkpoint of a {found}, not of a {kind}; it was kept"
        )
    try:
        return torch.load(io.BytesIO(body), weights_only=False)
    except Exception as error:
        raise CheckpointError(
            f"{target} cannot be read here ({error}); it was kept"
        ) from error


def save(policy: Any, path: Any) -> None:
    """Write a policy; see ``policy.save``."""
    policy.lighten()
    distributed.current().first(lambda: write(path, "policy", policy))


def load(path: Any) -> Any:
    """Load the policy that ``policy.save(path)`` wrote; it goes on bit for bit.

    Reading a checkpoint runs code stored in it: open only files you trust.
    """
    return read(path, "policy")


def _path(path: Any) -> Path:
    try:
        return checks.path("path", path)
    except CBanditError as error:
        raise CheckpointError(str(error)) from None


def _digest(kind: bytes, body: Any) -> bytes:
    digest = hashlib.blake2b(kind, digest_size=16)
    digest.update(body)
    return digest.hexdigest().encode()


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
    if words[2] != _digest(words[1], body):
        raise CheckpointError(f"{target} is broken (its checksum fails); it was kept")
    return words[1].decode(), body
