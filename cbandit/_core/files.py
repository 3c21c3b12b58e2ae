"""Files that appear whole under their names, or not at all, and digests of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cbandit.errors import CBanditError

__all__ = ["atomic", "digest", "file_digest", "sealed", "unsealed", "writable"]


@contextlib.contextmanager
def atomic(path: Any) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` once it is written, and not on an error."""
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
    """Raise now if :func:`atomic` could not begin to write there."""
    part, begun = _begun(Path(path))
    begun.close()
    part.unlink()


def digest(*parts: Any) -> bytes:
    """Return what tells these bytes from any others, in 32 hexadecimal digits."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest().encode()


def file_digest(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with open(path, "rb") as file:
        new = functools.partial(hashlib.blake2b, digest_size=16)
        return hashlib.file_digest(file, new).hexdigest()


def sealed(text: str, before: str, after: str) -> bytes:
    """Return a text that ends with its own digest, between two words."""
    first, last = (text + before).encode(), after.encode()
    return first + digest(first, last) + last


def unsealed(raw: bytes, before: str, after: str) -> bool:
    """Return whether :func:`sealed` wrote this, to the bit."""
    last = after.encode()
    end = len(raw) - len(last)
    first, found = raw[: max(0, end - 32)], raw[max(0, end - 32) : end]
    ours = first.endswith(before.encode()) and raw.endswith(last)
    return ours and found == digest(first, last)


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
