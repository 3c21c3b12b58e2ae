"""Checkpoints: written whole or not at all, and read only if intact.

A file begins with one line, ``cbandit checkpoint FORMAT KIND ROUNDS DIGEST``; the rest
is its body, made by :mod:`~cbandit._core.graph`. Format, kind and digest are checked
before the body is read. Reading runs no code from the file and decompresses nothing.

A policy or a run notes the digests of the files that it has read or written. It does
not replace a file that has changed since, nor an unknown file of another kind or with
more rounds. So no process overwrites the rounds of another one.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cbandit._core import checks, distributed, graph
from cbandit._core.distributed import Ranks
from cbandit._core.files import atomic, digest, whole
from cbandit._core.names import Names
from cbandit.errors import CBanditError, CheckpointError

FORMAT = 9
KEPT = "this one was kept as it is"
_NAME = b"cbandit checkpoint "
LINE = 200  # bytes; the first line is shorter

Digests = dict[str, tuple[bytes, ...]]
"""By path, the file's digests when the policy or run last read or wrote it. The policy
or run has been in these states, so replacing them loses nothing."""

# By kind: what reads a checkpoint, and what to do if others have changed it.
_KINDS = {
    "policy": (
        "cb.load(path) reads it",
        "cb.load() it and go on from there, save() to another path, or replace it by "
        "save(path, overwrite=True)",
    ),
    "simulation": (
        "cb.simulate(policy, problem, horizon, checkpoint=path) goes on with it",
        "let one process at a time play a run; the same call again goes on from what "
        "is there",
    ),
    "run": ("cb.Run.load(folder) reads it", ""),
}


class _Head(NamedTuple):
    """The first line of a checkpoint.

    Args:
        kind: the kind of its content.
        rounds: the number of rounds in it, in digits.
        digest: the digest of kind, rounds and body.
    """

    kind: bytes
    rounds: bytes
    digest: bytes


def write(
    path: object,
    kind: str,
    content: object,
    digests: Digests | None = None,
    overwrite: bool = False,
    rounds: int = 0,
    apart: graph.Apart | None = None,
) -> None:
    """Put ``content`` in the file ``path``, atomically.

    Args:
        path: the file. A checkpoint of this format is replaced, unless it may hold
            rounds of others; any other file stays, and it is an error.
        kind: one word for the content, which :func:`read` must name.
        content: anything of plain values, containers, tensors and objects.
        digests: of the files that the writer has read or written; the new one is added.
        overwrite: replace any checkpoint of this format.
        rounds: the number of rounds in ``content``.
        apart: a part of the content that is not written.
    """
    target, noted = _path(path), {} if digests is None else digests
    if target.is_dir():
        raise CheckpointError(f"path must be a file; {target} is a directory")
    if target.exists():
        try:
            _opened(target)
        except CheckpointError as error:
            raise CheckpointError(
                f"{error}, not overwritten: choose another path, or remove it"
            ) from None
        if not overwrite:
            _check(target, kind, noted, rounds)  # before the work, and again after it
    try:
        parts = graph.written(content, apart)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"this cannot be saved: {error}. Functions given to a policy (schedules, "
            "draws, thresholds) must be defined at a module's top level, not lambdas"
        ) from None
    if not target.parent.is_dir():
        raise CheckpointError(f"path: the folder {target.parent} does not exist")
    name, place = b"%s %d" % (kind.encode(), rounds), os.path.realpath(target)
    mark = digest(name, *parts)

    def check() -> None:
        """Raise if another process has written the file; else note its new digest."""
        if not overwrite:
            _check(target, kind, noted, rounds)
        # noted first, as an interrupt may come once the file is there
        noted[place] = (*noted.get(place, ()), mark)

    with atomic(target, check) as file:
        file.write(b"%s%d %s %s\n" % (_NAME, FORMAT, name, mark))
        for part in parts:
            file.write(part)
    noted[place] = (mark,)


def read(
    path: object,
    kind: str,
    of: type[Any],
    trust: Mapping[str, Any] | None = None,
    ranks: Ranks = distributed.ALONE,
    digests: Digests | None = None,
    give: Callable[[Sequence[str]], object] | None = None,
) -> Any:
    """Return the content that :func:`write` put in the file.

    Args:
        path: the file.
        kind: the word that it was written with.
        of: the class of its content.
        trust: what it may name beside the known names, see :func:`names.trusted`.
        ranks: the processes that call this together; the first one reads the file.
        digests: gets the digest of the file as read.
        give: takes the label of the part that was left out, and returns the part.
    """
    target = _path(path)
    head, body = ranks.first(lambda: _opened(target))
    other = head.kind.decode()
    if other != kind:
        reader, _ = _KINDS.get(other, ("nothing here reads it", ""))
        raise CheckpointError(
            f"{target} is the checkpoint of a {other}, not of a {kind}: {reader}; "
            f"{KEPT}"
        )
    try:
        whole = graph.parsed(body, Names(trust or {}), give)
    except CheckpointError as error:
        raise CheckpointError(f"{target} was not read: {error}; {KEPT}") from None
    except Exception as error:  # a forged body fails in many ways
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(
            f"{target} cannot be read here ({reason}); {KEPT}"
        ) from error
    if not isinstance(whole, of):
        raise CheckpointError(
            f"{target} was not read: it holds {checks.kind(whole)}, not a {kind}; "
            f"{KEPT}"
        )
    if digests is not None:
        digests[os.path.realpath(target)] = (head.digest,)
    return whole


def _path(path: object) -> Path:
    try:
        target = checks.path("path", path)
        return target.resolve() if target.is_symlink() else target
    except (CBanditError, RuntimeError) as error:  # a link that leads to itself
        raise CheckpointError(str(error)) from None


def _check(target: Path, kind: str, digests: Digests, rounds: int) -> None:
    """Raise if an existing checkpoint may hold rounds of others.

    Args:
        target: the checkpoint.
        kind: the kind of the content that is to replace it.
        digests: of the files that the writer has read or written.
        rounds: the number of rounds in the new content.
    """
    try:
        with open(target, "rb") as file:
            head = _head(target, file.readline(LINE).rstrip(b"\n"))
    except FileNotFoundError:
        return
    noted = digests.get(os.path.realpath(target))
    if noted is None:
        other = head.kind.decode()
        if other == kind and int(head.rounds) <= rounds:
            return
        there = f"is a {other} of {int(head.rounds)} rounds"
        what = f"{there}, which this {kind} is not from"
    elif head.digest in noted:
        return
    else:
        what = f"has changed since this {kind} was loaded from it or saved to it"
    raise CheckpointError(
        f"{target} {what}: what others have saved there would be lost, so it was kept; "
        f"{_KINDS[kind][1]}"
    )


def _opened(target: Path) -> tuple[_Head, bytes]:
    """Return a checkpoint's first line and body; raise if it is foreign or broken."""
    try:
        raw = _read(target)
    except FileNotFoundError as error:
        raise CheckpointError(f"cannot read {target}: {error.strerror}") from None
    line, _, body = raw.partition(b"\n")
    head = _head(target, line)
    if head.digest != digest(b"%s %s" % (head.kind, head.rounds), body):
        raise CheckpointError(
            f"{target} is broken (its checksum fails): take another copy of it; {KEPT}"
        )
    return head, body


def _read(path: Path) -> bytes:
    """Return the bytes of a file; raise unless it is a regular file."""
    try:
        if path.is_file() or not path.exists():
            return whole(path)
        reason: object = "it is no file"
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror
    raise CheckpointError(f"cannot read {path}: {reason}; {KEPT}")


def _head(target: Path, line: bytes) -> _Head:
    """Return the parsed first line of a checkpoint; raise if the file is foreign."""
    if not line.startswith(_NAME):
        raise CheckpointError(
            f"{target} is not a checkpoint of cbandit: it does not begin with "
            f"{_NAME.decode().strip()!r}. Give a path that policy.save(path) or "
            f"cb.simulate(..., checkpoint=path) has written; {KEPT}"
        )
    words = line.removeprefix(_NAME).split(b" ")
    if len(words) != 4 or words[0] != b"%d" % FORMAT:
        version = "cbandit 0.1" if words == [b"1"] else "another version of cbandit"
        raise CheckpointError(
            f"{target} is a checkpoint of {version}, which this one cannot read: load "
            "it with the version that wrote it, and give its history() to observe() of "
            f"a new policy, or begin anew; {KEPT}"
        )
    head = _Head(*words[1:])
    if not head.rounds.isdigit():
        raise CheckpointError(f"{target} is broken: take another copy of it; {KEPT}")
    return head
