"""Checkpoints: written whole or not at all, and read only if intact.

A file begins with one line, ``cbandit checkpoint FORMAT KIND ROUNDS DIGEST``; the rest
is its body, made by :mod:`~cbandit._core.graph`. Format, kind and digest are checked
before the body is read. Reading runs no code from the file and decompresses nothing.

A file may have a journal, ``FILE.journal``: a line that names the file's digest, then
the records that were appended since. Before each record is a line with its length and a
digest of everything up to its end. An incomplete last record, left by a crash, is
ignored; any other damage is an error; a journal of a file that was replaced is ignored.
A file that may be appended to has a journal from the start, so that a reader can tell a
lost journal from one that was never begun: its first line is appended to the journal of
the file that it will replace. So a journal may hold those of two files, and a process
killed between the two writes leaves nothing that looks like a loss.

A policy or a run notes the digests of the files that it has read or written. It does
not replace a file that has changed since, nor an unknown file of another kind or with
more rounds. So no process overwrites the rounds of another one.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from cbandit._core import checks, distributed, graph
from cbandit._core.distributed import Ranks
from cbandit._core.files import PART, PATIENCE, atomic, digest, locked, whole
from cbandit._core.names import Names
from cbandit.errors import CBanditError, CheckpointError

FORMAT = 7
KEPT = "this one was kept as it is"
_NAME = b"cbandit checkpoint "
_JOURNAL = b"cbandit journal of "
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
    followed: bool = False,
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
        followed: whether to begin a journal for the file.
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
        if followed:
            with suppress(OSError, CheckpointError):  # the file is complete without it
                _begin(target, mark)

    def tidy() -> None:
        """Remove the journal of the file before."""
        journal = _journal(target)
        with suppress(OSError):
            if followed:
                part = target.with_name(f".{journal.name}{PART}")
                part.write_bytes(_first(mark))
                os.replace(part, journal)
            else:
                journal.unlink(missing_ok=True)

    with atomic(target, check, tidy) as file:
        file.write(b"%s%d %s %s\n" % (_NAME, FORMAT, name, mark))
        for part in parts:
            file.write(part)
    noted[place] = (mark,)


class Entries(NamedTuple):
    """The records of a journal.

    Args:
        bodies: the records.
        mark: the digest of all of them, and of the checkpoint that they follow.
        end: how many bytes of the file are intact.
    """

    bodies: list[bytes]
    mark: bytes
    end: int


def append(path: object, bodies: Sequence[bytes], digests: Digests) -> bool:
    """Append records to a checkpoint's journal; return whether that was possible.

    It is possible only if the checkpoint and its journal are as noted in ``digests``.
    Once this returns, the records are on the disk.
    """
    target = _path(path)
    place, journal = os.path.realpath(target), _journal(target)
    busy = f"{journal} was not written: another process has locked its folder"
    if not target.is_file():
        return False
    with locked(target.parent, PATIENCE, busy):
        with open(target, "rb") as file:
            head = _head(target, file.readline(LINE).rstrip(b"\n"))
        entries = _entries(target, head)
        if digests.get(place) != (entries.mark,):
            return False
        mark, parts = entries.mark, []
        if not entries.end:
            parts.append(_first(head.digest))
        for body in bodies:
            mark = digest(mark, body)
            parts += [_line(len(body), mark), body]
        try:
            with open(journal, "r+b" if entries.end else "wb") as file:
                file.truncate(entries.end)
                file.seek(entries.end)
                # noted first, as an interrupt may come once the records are there
                digests[place] = (entries.mark, mark)
                file.write(b"".join(parts))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(journal, entries.end)
            raise CheckpointError(
                f"{journal} cannot be written ({error.strerror}); what was there stays"
            ) from None
        digests[place] = (mark,)
    return True


def journal_of(path: object, digests: Digests) -> list[bytes] | None:
    """Return the records that follow a checkpoint noted by :func:`read`.

    ``None``: it has no journal.
    """
    target = _path(path)
    with open(target, "rb") as file:
        head = _head(target, file.readline(LINE).rstrip(b"\n"))
    entries = _entries(target, head)
    if digests.get(os.path.realpath(target)) != (entries.mark,):
        raise CheckpointError(f"{target} was written while it was read: load it again")
    return entries.bodies if entries.end else None


def _journal(target: Path) -> Path:
    return target.with_name(f"{target.name}.journal")


def _begin(target: Path, mark: bytes) -> None:
    """Begin the journal of the file with digest ``mark`` that will replace another."""
    journal, end = _journal(target), 0
    if target.exists():
        with open(target, "rb") as file:
            head = _head(target, file.readline(LINE).rstrip(b"\n"))
        end = _entries(target, head).end
    with open(journal, "r+b" if end else "wb") as file:
        file.truncate(end)
        file.seek(end)
        file.write(_first(mark))
        file.flush()
        os.fsync(file.fileno())


def _first(mark: bytes) -> bytes:
    """Return the first line of the journal of a checkpoint with this digest."""
    return b"%s%s %s\n" % (_JOURNAL, mark, digest(mark))


def _line(length: int, mark: bytes) -> bytes:
    """Return the line before a record; it always has the same length."""
    line = b"%012d %s" % (length, mark)
    return b"%s %s\n" % (line, digest(line))


def _entries(target: Path, head: _Head) -> Entries:
    """Return the records that follow a checkpoint with this first line."""
    mark, bodies = head.digest, list[bytes]()
    nothing = Entries(bodies, mark, 0)
    try:
        raw = _read(_journal(target))
    except FileNotFoundError:
        return nothing
    first = _first(mark)
    end = raw.find(first) + len(first)
    broken = False
    if end < len(first):  # not here, or incomplete, or of a file that was replaced
        of = raw[len(_JOURNAL) : len(_JOURNAL) + len(mark)]
        broken = len(raw) >= len(first) and not raw.startswith(_first(of))
        if not broken:
            return nothing
    while not broken:
        begin = end + len(_line(0, mark))
        if len(raw) < begin or raw.startswith(_JOURNAL, end):
            return Entries(bodies, mark, end)
        number, _, rest = raw[end:begin].partition(b" ")
        length, said = int(number) if number.isdigit() else 0, rest[: len(mark)]
        broken = raw[end:begin] != _line(length, said)
        body = raw[begin : begin + length]
        if not broken and len(body) < length:
            return Entries(bodies, mark, end)
        broken = broken or digest(mark, body) != said
        if not broken:
            mark, end = said, begin + length
            bodies.append(body)
    raise CheckpointError(
        f"{_journal(target)} is broken (a checksum fails): take another copy of it, or "
        f"remove it to go on from {target.name} alone; {KEPT}"
    )


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
        mark = ranks.first(lambda: _entries(target, head).mark)
        digests[os.path.realpath(target)] = (mark,)
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
        more = len(_entries(target, head).bodies)
        if other == kind and int(head.rounds) <= rounds and not more:
            return
        there = f"is a {other} of {int(head.rounds)} rounds"
        what = f"{there}, which this {kind} is not from"
    elif _entries(target, head).mark in noted:
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
            f"it with the version that wrote it, or begin anew; {KEPT}"
        )
    head = _Head(*words[1:])
    if not head.rounds.isdigit():
        raise CheckpointError(f"{target} is broken: take another copy of it; {KEPT}")
    return head
