"""Files that are written whole or not at all, locks and digests."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

import torch

from cbandit._core.devices import free_memory
from cbandit.errors import CBanditError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

PART = ".part"
PATIENCE = 10.0  # seconds; the others hold the lock for the time of one rename
DISK = {
    getattr(errno, name, None)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EACCES", "EPERM")
} - {None}


@contextlib.contextmanager
def atomic(
    path: str | os.PathLike[str],
    check: Callable[[], None] | None = None,
) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` once it is written without an error.

    Files that killed processes have left behind are removed.

    Args:
        path: the file to write.
        check: raises if ``path`` must not be replaced. From this call until the file is
            replaced, no other process that writes with a check can replace it.
    """
    target = Path(path)
    _sweep(target)
    part, begun = _begun(target)
    try:
        with begun as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows cannot rename an open file
            with contextlib.ExitStack() as lock:
                if check is not None:
                    busy = "was not written: another process has locked its folder"
                    folder = target.parent
                    lock.enter_context(locked(folder, PATIENCE, f"{target} {busy}"))
                    check()
                os.replace(part, target)
    except OSError as error:
        _remove(part)
        if error.errno not in DISK:
            raise
        raise _unwritten(target, error) from None
    except BaseException:
        _remove(part)
        raise
    _sync(target.parent)


def writable(path: str | os.PathLike[str]) -> None:
    """Raise if :func:`atomic` cannot begin to write ``path``."""
    part, begun = _begun(Path(path))
    with begun:
        _remove(part)


def folder(path: Path, name: str = "") -> Path:
    """Make a folder, and those above it, unless it exists; return it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if path.is_file() else error.strerror
        said = f"{name} {path}".lstrip()
        raise CBanditError(f"{said} cannot be made: {why}") from None
    return path


@contextlib.contextmanager
def locked(folder: Path, patience: float, refusal: str) -> Iterator[None]:
    """Hold the lock of a folder; continue without if the file system has no locks.

    The lock ends with its process, in whatever way that ends.

    Args:
        folder: an existing folder.
        patience: seconds to wait for another process that holds the lock.
        refusal: the text of the error after that.
    """
    try:
        opened = _Folder(folder)
    except OSError:  # Windows, or a folder whose names may not be listed
        yield
        return
    try:
        deadline = monotonic() + patience
        while _lock(opened) is False:
            if monotonic() >= deadline:
                raise CBanditError(refusal)
            sleep(0.002)
        yield
    finally:
        opened.close()


class _Folder:
    """An open folder, unlocked even if an interrupt comes while it is closed."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY)

    def fileno(self) -> int:
        return self._handle

    def close(self) -> None:
        """Unlock and close the folder; a second call does nothing."""
        with contextlib.suppress(OSError, AttributeError):
            if fcntl is not None:
                fcntl.flock(self, fcntl.LOCK_UN)  # a fork may hold it open
            os.close(self.__dict__.pop("_handle"))

    __del__ = close


def _lock(file: BinaryIO | _Folder) -> bool | None:
    """Lock an open file; return ``False`` if it is locked, ``None`` without locks."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except OSError:
        pass
    return None


def digest(*parts: bytes | memoryview) -> bytes:
    """Return the digest of these bytes, in 32 hexadecimal digits."""
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(part)
    return whole.hexdigest().encode()


def whole(path: Path) -> bytes:
    """Return the bytes of a file; an ``OSError`` if they do not fit in free memory.

    Where a system promises more memory than it has, a sparse file of terabytes would
    end the process.
    """
    with contextlib.suppress(MemoryError):
        if path.stat().st_size <= free_memory(torch.device("cpu")):
            return path.read_bytes()
    raise OSError(errno.EFBIG, "it is larger than the memory that is free")


def file_digest(path: Path) -> str:
    """Return the digest of a file's bytes."""
    with open(path, "rb") as file:
        new = functools.partial(hashlib.blake2b, digest_size=16)
        return hashlib.file_digest(file, new).hexdigest()


def sealed(text: str, before: str, after: str) -> bytes:
    """Return a text followed by its own digest, which stands between two words."""
    first, last = (text + before).encode(), after.encode()
    return first + digest(first, last) + last


def unsealed(raw: bytes, before: str, after: str) -> bool:
    """Return whether ``raw`` is bit for bit a result of :func:`sealed`."""
    last = after.encode()
    end = len(raw) - len(last)
    first, mark = raw[: max(0, end - 32)], raw[max(0, end - 32) : end]
    ours = first.endswith(before.encode()) and raw.endswith(last)
    return ours and mark == digest(first, last)


def _begun(target: Path) -> tuple[Path, BinaryIO]:
    """Open and lock a new file beside ``target``, which will replace it."""
    if target.is_dir():
        raise CBanditError(f"{target} is a folder; it must be a file")
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")
        try:
            begun = open(part, "wb")  # noqa: SIM115
        except OSError as error:
            raise _unwritten(target, error) from None
        if _lock(begun) is not False and part.exists():
            return part, begun
        begun.close()  # another process has just removed it


def _sweep(target: Path) -> None:
    """Remove the parts of ``target`` that ended processes have left behind."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.*{PART}"):
        with contextlib.suppress(OSError), open(part, "rb") as file:
            if _lock(file):  # without locks nothing is ever removed
                part.unlink()


def _remove(part: Path) -> None:
    with contextlib.suppress(OSError):
        part.unlink()


def _unwritten(target: Path, error: OSError) -> CBanditError:
    kept = "; the one that is there was kept" if target.exists() else ""
    why = error.strerror if error.errno is None else os.strerror(error.errno)
    return CBanditError(f"{target} cannot be written: {why} ({target.parent}){kept}")


def _sync(folder: Path) -> None:
    # the new name itself must survive a crash; not every file system can
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
