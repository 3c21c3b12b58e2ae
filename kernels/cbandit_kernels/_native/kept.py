"""Machine code on disk: a file for each function and signature, written in one step."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

from numba.core.serialize import dumps

__all__ = ["Folder"]


class Folder:
    """The files of one function, which replace numba's index.

    A file's name contains everything that its content depends on. So processes that
    compile at the same time cannot mix up their files, and only a file with the right
    name is read.
    """

    def __init__(self, path: str, name: str, stamp: str) -> None:
        self._path, self._name, self._stamp = Path(path), name, stamp

    def _file(self, key: str) -> Path:
        number = hashlib.sha256(key.encode()).hexdigest()[:16]
        return self._path / f"{self._name}.{self._stamp}.{number}.nbc"

    def load(self, key: str) -> Any:
        """Return the data stored under ``key``, or ``None``."""
        try:
            kept, data = pickle.loads(self._file(key).read_bytes())
        except Exception:  # missing or damaged: compile
            return None
        return data if kept == key else None

    def save(self, key: str, data: Any) -> None:
        """Store ``data``, and delete what older sources were compiled to.

        A full or a read-only disk is no error: the code runs without the file.
        """
        with contextlib.suppress(OSError):
            number, name = tempfile.mkstemp(dir=self._path, prefix=self._name)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(dumps((key, data)))
                os.replace(name, self._file(key))
            except BaseException:
                os.unlink(name)
                raise
            for old in self._path.glob(f"{self._name}.*.nbc"):
                if old.name.split(".")[-3] != self._stamp:
                    old.unlink(missing_ok=True)

    def flush(self) -> None:
        """Delete all stored files."""
        for file in self._path.glob(f"{self._name}.*.nbc"):
            file.unlink(missing_ok=True)
