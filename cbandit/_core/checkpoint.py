"""Checkpoints: written whole or not at all, read back only if they are ours."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from cbandit._core import checks, distributed
from cbandit.errors import CBanditError, CheckpointError

__all__ = ["atomic", "load", "read", "save", "writable", "write"]

_MAGIC = b"cbandit checkpoint 1\n"


def write(path: Any, content: Any) -> None:
    """Put ``content`` in the file ``path``, atomically.

    A file that is there and is not one of ours is left alone: an error.
    """
    target = _path(path)
    if target.is_dir():
        raise CheckpointError(f"path must be a file; {target} is a directory")
    if target.exists():
        try:
            _body(target)
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
    body = buffer.getbuffer()
    if not target.parent.is_dir():
        raise CheckpointError(f"path: the folder {target.parent} does not exist")
    with atomic(target) as file:
        file.write(_MAGIC)
        file.write(hashlib.blake2b(body, digest_size=16).digest())
        file.write(body)


@contextlib.contextmanager
def atomic(path: Any) -> Iterator[BinaryIO]:
    """A file that appears under its name whole, or not at all."""
    target, (part, begun) = Path(path), _begun(Path(path))
    try:
        with begun as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def writable(path: Any) -> None:
    """An error now if :func:`atomic` could not begin to write there."""
    part, begun = _begun(Path(path))
    begun.close()
    part.unlink()


def _begun(target: Path) -> tuple[Path, BinaryIO]:
    """The file beside ``target`` that will become it, open."""
    if target.is_dir():
        raise CBanditError(f"{target} is a folder; it must be a file")
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        return part, open(part, "wb")
    except OSError as error:
        raise CBanditError(
            f"{target} cannot be written: {error.strerror} ({target.parent})"
        ) from None


def _sync(folder: Path) -> None:
    # the new name itself must survive a crash; not every file system can
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _path(path: Any) -> Path:
    try:
        return checks.path("path", path)
    except CBanditError as error:
        raise CheckpointError(str(error)) from None


def _body(target: Path) -> bytes:
    try:
        raw = target.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {target}: {error.strerror}") from None
    if not raw.startswith(_MAGIC):
        raise CheckpointError(
            f"{target} is not a checkpoint of this version of cbandit; it was kept"
        )
    start = len(_MAGIC)
    digest, body = raw[start : start + 16], raw[start + 16 :]
    if hashlib.blake2b(body, digest_size=16).digest() != digest:
        raise CheckpointError(f"{target} is broken (its checksum fails); it was kept")
    return body


def read(path: Any) -> Any:
    """What :func:`write` put in the file. It runs code: open only what you trust.

    Where ranks share a run, the first of them reads it for all.
    """
    target = _path(path)
    body = distributed.current().first(lambda: _body(target))
    try:
        return torch.load(io.BytesIO(body), weights_only=False)
    except Exception as error:
        raise CheckpointError(
            f"{target} cannot be read here ({error}); it was kept"
        ) from error


def save(policy: Any, path: Any) -> None:
    """Write a policy; see ``policy.save``."""
    policy.lighten()
    content = {"kind": "policy", "policy": policy}
    distributed.current().first(lambda: write(path, content))


def load(path: Any) -> Any:
    """The policy that ``policy.save(path)`` wrote; it goes on bit for bit.

    Reading a checkpoint runs code stored in it: open only files you trust.
    """
    content = read(path)
    if not isinstance(content, dict) or content.get("kind") != "policy":
        raise CheckpointError(f"{path} holds no policy; it was kept")
    return content["policy"]
