"""One action set divided over several processes: each rank keeps a part of it.

Every rank runs the same program. History, small solves, multipliers and draws are equal
on all ranks; means and variances of the actions are divided. In a round each rank finds
the best action of its own stretch, and the ranks exchange one candidate each: its
score, its number and the estimates there. The best candidate is what one process would
have chosen, with the lowest number on ties.

The few numbers exchanged are needed on the host anyway, so they are sent from host to
host, from rank to rank. So it is known by number which rank has died.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cbandit._core import checks
from cbandit.errors import CBanditError, LostRankError

T = TypeVar("T")

TIMEOUT = 1800.0  # seconds, as torch's own


class Divided(Protocol):
    """A set of actions that can be divided over ranks."""

    def shares(self, block: int, count: int) -> Sequence[tuple[int, int]]:
        """Return the first action of each share, and one past its last."""
        ...


class Ranks:
    """The processes that share an action set, seen from one of them.

    Args:
        group: a gloo process group, or ``None``: this process alone.
        timeout: seconds to wait for another rank.
    """

    def __init__(self, group: Any = None, timeout: float = TIMEOUT) -> None:
        self._group, self._timeout = group, timedelta(seconds=timeout)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def __deepcopy__(self, memo: object) -> Ranks:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        # process groups do not pickle; the current one is used on load
        return "ALONE" if self is ALONE else (current, ())

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.size}"

    # -- the set -------------------------------------------------------------------

    def stretch(self, actions: Divided, block: int) -> tuple[int, int]:
        """Return the first action of this rank, and one past its last."""
        return actions.shares(block, self.size)[self.rank]

    def whole(self, parts: Tensor, actions: Divided, block: int) -> Tensor:
        """Gather ``(..., N)`` on every rank, from each rank's part of it."""
        if self.size == 1:
            return parts
        every = actions.shares(block, self.size)
        empty = torch.empty(0, dtype=parts.dtype)
        pieces = [empty.new_empty(*parts.shape[:-1], b - a) for a, b in every]
        self._swap(parts.cpu().contiguous(), pieces)
        return torch.cat(pieces, -1).to(parts.device)

    # -- exchanges -----------------------------------------------------------------

    def candidates(self, index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Gather ``index (T,)`` and ``values (T, k)`` as ``(R, T)`` and ``(R, T, k)``.

        The exchange is exact: floating point is sent as the bits of float64.
        """
        bits = values.double().cpu().contiguous().view(torch.int64)
        sent = torch.cat([index.cpu().unsqueeze(-1), bits], -1)
        got = torch.empty(self.size, *sent.shape, dtype=torch.int64)
        self._swap(sent, list(got.unbind(0)))
        real = got[..., 1:].contiguous().view(torch.float64)
        return got[..., 0].to(index.device), real.to(values)

    def every(self, flags: Tensor) -> Tensor:
        """Return which flags ``(T,)`` are set on all ranks."""
        return self.least(flags.double()).bool()

    def least(self, values: Tensor) -> Tensor:
        """Return the least of the ranks' values ``(T,)``."""
        if self.size == 1:
            return values
        numbers = torch.zeros(len(values), dtype=torch.long, device=values.device)
        least: Tensor = self.candidates(numbers, values.unsqueeze(-1))[1].amin(0)
        return least.squeeze(-1)

    def either(self, *flags: bool) -> tuple[bool, ...]:
        """Return for each flag whether it is set on any rank."""
        if self.size == 1:
            return flags
        sent = torch.tensor(flags)
        got = sent.new_empty(self.size, len(flags))
        self._swap(sent, list(got.unbind(0)))
        return tuple(got.any(0).tolist())

    def first(self, function: Callable[[], T]) -> T:
        """Call ``function`` on rank 0 alone, and return its result on every rank.

        If it raises a :class:`~cbandit.CBanditError`, every rank does.
        """
        if self.size == 1:
            return function()
        if self.rank == 0:
            result: Any = None
            failure: CBanditError | None = None
            try:
                result = function()
            except CBanditError as error:
                failure = error
            body = torch.frombuffer(
                bytearray(pickle.dumps((result, failure))), dtype=torch.uint8
            )
            for peer in range(1, self.size):
                for sent in (torch.tensor([len(body)]), body):
                    self._wait(peer, self._begin(dist.isend, sent, peer))
        else:
            length = torch.zeros(1, dtype=torch.int64)
            self._wait(0, self._begin(dist.irecv, length, 0))
            body = torch.empty(int(length), dtype=torch.uint8)
            self._wait(0, self._begin(dist.irecv, body, 0))
            result, failure = pickle.loads(body.numpy().tobytes())
        if failure is not None:
            raise failure
        return result  # type: ignore[no-any-return]

    def _swap(self, sent: Tensor, got: list[Tensor]) -> None:
        """Send a tensor to all other ranks; receive rank ``r``'s in ``got[r]``."""
        got[self.rank].copy_(sent)
        peers = [rank for rank in range(self.size) if rank != self.rank]
        sending = {peer: self._begin(dist.isend, sent, peer) for peer in peers}
        for peer in peers:
            self._wait(peer, self._begin(dist.irecv, got[peer], peer))
        for peer, work in sending.items():
            self._wait(peer, work)

    def _begin(self, move: Callable[..., Any], tensor: Tensor, peer: int) -> Any:
        end = "group_dst" if move is dist.isend else "group_src"
        with self._with(peer):
            return move(tensor, group=self._group, **{end: peer})

    def _wait(self, peer: int, work: dist.Work) -> None:
        with self._with(peer):
            work.wait(self._timeout)

    @contextmanager
    def _with(self, peer: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostRankError(
                f"rank {self._lost(peer)} of {self.size} does not answer: it has ended "
                f"(its own output says why), or is {self._timeout.total_seconds():g} s "
                f"behind, or is not in the same call. Rank {self.rank} stops"
            ) from error

    def _lost(self, peer: int) -> int:
        """Return the rank that was lost first, as ranks that notice it end too."""
        try:
            store = self._group.get_group_store()
            return int(store.compare_set("cbandit/lost", "", str(peer)))
        except RuntimeError:  # the store was on the lost rank
            return peer


ALONE = Ranks()
_current: ContextVar[Ranks] = ContextVar("cbandit.ranks", default=ALONE)


def current() -> Ranks:
    """Return the ranks that :func:`shard` has set, or this process alone."""
    return _current.get()


@contextmanager
def shard(
    group: dist.ProcessGroup | None = None, timeout: float = TIMEOUT
) -> Iterator[Ranks]:
    """Divide the action sets of policies built inside over a process group's ranks.

    Every rank must make the same calls in the same order, and tell its policy the same
    feedback; all ranks get the same choices. This includes ``posterior()``,
    ``recommend()`` and ``save()``. Each rank keeps all of a set of few actions (engine
    *joint*), of a :class:`~cbandit.Box`, and of the set of a policy whose rule looks at
    all actions at once (``policy.engine`` says so). Each rank holds all points of a
    :class:`~cbandit.Finite` set, and the axes of a :class:`~cbandit.ProductGrid`. Use
    machines of the same kind, so that what all of them compute is equal.

    Args:
        group: a group of ``torch.distributed``, of any backend; by default all its
            ranks.
        timeout: seconds to wait for a rank before it counts as lost.

    Example:
        >>> import cbandit as cb, torch.distributed as dist
        >>> dist.init_process_group("gloo")                         # doctest: +SKIP
        >>> with cb.distributed.shard() as ranks:                   # doctest: +SKIP
        ...     policy = cb.CKB(actions, reward=gp, costs=gp, explore=cb.UCB(2.0))
        ...     choice = policy.ask()
        ...     reward, cost = ranks.first(lambda: measure(choice.x))
        ...     policy.tell(choice, reward=reward, cost=cost)
    """
    if not dist.is_available() or not dist.is_initialized():
        raise CBanditError(
            "shard needs a process group: start the program with torchrun and call "
            "torch.distributed.init_process_group first"
        )
    seconds = float(checks.positive("timeout", timeout))
    whole = dist.group.WORLD if group is None else group
    if dist.get_backend(whole) != "gloo":
        members = dist.get_process_group_ranks(whole)
        whole = dist.new_group(members, backend="gloo", use_local_synchronization=True)
    token = _current.set(Ranks(whole, seconds))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


@contextmanager
def launched() -> Iterator[Ranks]:
    """Yield the ranks that ``torchrun`` has started, or this process alone."""
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield ALONE
        return
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % count)
    dist.init_process_group("gloo")
    try:
        with shard() as ranks:
            yield ranks
    finally:
        dist.destroy_process_group()
