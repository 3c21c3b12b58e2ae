"""A second device that is not there: which tensors would live on it, who waits for it.

Under :class:`Pretend` tensors asked for on ``"cuda"`` are ordinary ones whose memory is
marked as the device's; what is computed from them is marked too, and ``device`` answers
by the mark. What torch refuses on a real device raises here (tensors of two devices in
one operation, a CPU generator, ``numpy``); what makes the host wait for a real device
is counted, with the line of the library that did it:

* *reads*: a value comes back: ``item``, ``bool``, ``tolist``, ``cpu``, boolean masks,
  ``nonzero``, a factorisation that checks for errors;
* *waits*: a blocking copy to the device: torch waits for all that was asked of the
  device before. ``torch.tensor(..., device=)``, ``to(device)``, an index kept on the
  host, a number put at an index;
* *sends*: a copy that asks not to wait (``non_blocking=True``);
* *launches*: operations that run on the device.

The rules are those of ``TensorIterator``, advanced indexing and ``Copy.cu`` in torch.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from places import TESTS
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import cbandit
import cbandit_kernels

HERE, THERE = torch.device("cpu"), torch.device("cuda", 0)
# folders of what is looked at: the library, its kernels, the tests
OURS = [Path(f).parent for f in (cbandit.__file__, cbandit_kernels.__file__)] + [TESTS]
PASSING = ("pretend.py", "cbandit/_core/devices.py")  # whoever calls these is meant
# results whose size, or whose being right, the host must know
READ = {"_local_scalar_dense", "allclose", "bincount", "equal", "linalg_lstsq"}
READ |= {"masked_select", "nonzero", "unique_consecutive", "unique_dim", "_unique2"}
READ |= {"_linalg_check_errors", "_linalg_eigh", "_linalg_svd"}
COPIED = (torch.tensor, torch.as_tensor, torch.asarray)
MIXED = "Expected all tensors to be on the same device, but found cuda:0 and cpu"


class Account:
    """What was asked of the device, by kind and line; see the module."""

    def __init__(self, lines: Mapping[tuple[str, str], int] | None = None) -> None:
        self.lines = Counter(lines or {})

    def add(self, kind: str) -> None:
        """One more, by the line that is running."""
        self.lines[kind, "" if kind == "launches" else _line()] += 1

    def count(self, kind: str, where: str = "") -> int:
        """How many of a kind, by lines of files whose name contains ``where``."""
        found = self.lines.items()
        return sum(n for (k, line), n in found if k == kind and where in line)

    def copy(self) -> Account:
        """As it is now."""
        return Account(self.lines)

    def __sub__(self, before: Account) -> Account:
        """What came after ``before``, a copy."""
        return Account(self.lines - before.lines)

    def __repr__(self) -> str:
        return "\n".join(f"{n} {k} {at}" for (k, at), n in sorted(self.lines.items()))


class Pretend(ExitStack):
    """``with Pretend() as account:``, the device is there."""

    def __enter__(self) -> Account:
        """Make it appear."""
        super().__enter__()
        account, marks = Account(), Marks()
        answers: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "mem_get_info": lambda device=None: (1 << 37, 1 << 37),
            "memory_reserved": lambda device=None: 0,
            "memory_allocated": lambda device=None: 0,
            "synchronize": lambda device=None: account.add("reads"),
            "get_rng_state": lambda device=None: torch.zeros(0, dtype=torch.uint8),
            "set_rng_state": lambda state, device=None: None,
        }
        for name, answer in answers.items():
            self.enter_context(mock.patch.object(torch.cuda, name, answer))
        written = Tensor.__reduce_ex__

        def reduced(value: Tensor, protocol: Any) -> Any:
            parts = written(value, protocol)
            return (_again, parts) if value in marks else parts

        self.enter_context(mock.patch.object(Tensor, "__reduce_ex__", reduced))
        self.enter_context(_Operations(marks, account))
        self.enter_context(_Calls(marks, account))
        return account


class Marks:
    """Which memory is the device's; views of it share it."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}
        self._sweep = 1 << 12
        self.beside = False  # whether a call under way is about a tensor that is there

    def __contains__(self, value: Any) -> bool:
        if not isinstance(value, Tensor):
            return False
        with torch._C.DisableTorchFunction():
            return value.untyped_storage()._cdata in self._known

    def of(self, value: Tensor) -> torch.device:
        """The device of it."""
        return THERE if value in self else HERE

    def put(self, value: Tensor, there: bool = True) -> Tensor:
        """Mark it, or unmark it."""
        with torch._C.DisableTorchFunction():
            storage = value.untyped_storage()
        if not there:
            self._known.pop(storage._cdata, None)
            return value
        # the weak reference keeps the address from being used again
        self._known.setdefault(storage._cdata, StorageWeakRef(storage))
        if len(self._known) > self._sweep:
            live = {k: v for k, v in self._known.items() if not v.expired()}
            self._known, self._sweep = live, max(1 << 12, 2 * len(live))
        return value


class _Calls(TorchFunctionMode):
    """What Python asks by name: where things are, go, or are made."""

    def __init__(self, marks: Marks, account: Account) -> None:
        super().__init__()
        self.marks, self.account = marks, account

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        first = args[0] if args else None
        there = first in self.marks
        getter = getattr(func, "__self__", None)
        if getter is Tensor.device:
            return THERE if there else HERE
        if getter is Tensor.is_cuda or getter is Tensor.is_cpu:
            return there == (getter is Tensor.is_cuda)
        name = getattr(func, "__name__", "")
        if name == "get_device":
            return 0 if there else -1
        if name in ("numpy", "__array__") and there:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if name == "tolist" and there:
            self.account.add("reads")
        elif name in ("to", "cpu", "cuda"):
            return self._moved(name, args, kwargs)
        elif func in COPIED or name == "new_tensor":
            return self._from_host(func, args, kwargs)
        if kwargs.get("device") is not None:
            return self._made(func, args, kwargs)
        if name == "__deepcopy__" and there:
            args[1][id(first)] = out = first.detach().clone()
            return out.requires_grad_(first.requires_grad)
        # of a copy the second argument is a memo, which holds tensors of all kinds
        of = args[:1] if name == "__deepcopy__" else args
        self.marks.beside = any(v in self.marks for v in _tensors(of))
        try:
            return func(*args, **kwargs)
        finally:
            self.marks.beside = False

    def _moved(self, name: str, args: Any, kwargs: dict[str, Any]) -> Tensor:
        source, *rest = args
        given: dict[str, Any] = {"device": {"cpu": "cpu", "cuda": "cuda"}.get(name)}
        for value in rest:
            if isinstance(value, Tensor):
                given |= {"device": self.marks.of(value), "dtype": value.dtype}
            elif isinstance(value, str | torch.device):
                given["device"] = value
            elif isinstance(value, torch.dtype):
                given["dtype"] = value
            elif isinstance(value, bool):
                given["copy" if "non_blocking" in given else "non_blocking"] = value
        given |= kwargs
        device, wait = given.pop("device"), not given.pop("non_blocking", False)
        there = source in self.marks
        goes = there if device is None else _is_there(device)
        if goes == there:
            return Tensor.to(source, **given)
        if there:
            self.account.add("reads")
        else:
            self.account.add("waits" if wait else "sends")
        return self.marks.put(Tensor.to(source, **given | {"copy": True}), goes)

    def _from_host(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        place = "self" if func not in COPIED else "data"
        device, source = kwargs.pop("device", None), args[0]
        out: Tensor = func(*args, **kwargs)
        if place == "data" and source in self.marks:
            goes = device is None or _is_there(device)
            return self._moved("to", (out, THERE if goes else HERE), {})
        if device is None and place == "self":
            device = self.marks.of(source)
        return out if device is None else self._moved("to", (out, device), {})

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        goes = _is_there(kwargs["device"])
        generator = kwargs.get("generator")
        if goes and generator is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator, found cpu")
        out = func(*args, **kwargs | {"device": "cpu"})
        return self.marks.put(out, goes) if isinstance(out, Tensor) else out


class _Operations(TorchDispatchMode):
    """What torch comes to do: on which device, and whether the host waits."""

    def __init__(self, marks: Marks, account: Account) -> None:
        super().__init__()
        self.marks, self.account = marks, account

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [*_tensors(args), *_tensors(kwargs)]
        there = [t in self.marks for t in tensors]
        name = func._schema.name.removeprefix("aten::")
        if not any(there):
            out = func(*args, **kwargs)
            if self.marks.beside and not tensors and isinstance(out, Tensor):
                self.marks.put(out)  # torch made it for a tensor that is there
            return out
        if not all(there):
            self._meet(func, name, tensors, there, args, kwargs)
        if name == "copy_" and not there[0]:
            self.account.add("reads")
            return func(*args, **kwargs)
        masks = name in ("index", "index_put", "index_put_") and any(
            t.dtype == torch.bool for t in args[1] if t is not None
        )
        if name in READ or masks:
            self.account.add("reads")
        elif not (func.is_view or name.startswith(("empty", "new_empty"))):
            self.account.add("launches")
        out = func(*args, **kwargs)
        for value in _tensors(out):
            self.marks.put(value)
        return out

    def _meet(
        self,
        func: Any,
        name: str,
        tensors: list[Tensor],
        there: list[bool],
        args: Any,
        kwargs: Any,
    ) -> None:
        """Tensors of both devices: refused, or allowed at what price."""
        if torch._C._current_graph_task_id() != -1:
            return  # in a backward pass torch itself makes tensors, unmarked here
        strays = [t for t, known in zip(tensors, there, strict=True) if not known]
        if name == "copy_":
            if there[0]:
                wait = not (kwargs.get("non_blocking") or True in args[2:])
                self.account.add("waits" if wait else "sends")
            return
        if name in ("index", "index_put", "index_put_") and there[0]:
            keys = [t for t in args[1] if t is not None and t not in self.marks]
            value = [t for t in args[2:3] if t not in self.marks]
            if all(t.dim() == 0 for t in value):
                for _ in [*keys, *value]:
                    self.account.add("waits")
                return
        single = len(strays) == 1 and strays[0].dim() == 0
        single &= there[0] or not name.endswith("_")
        if name == "where" and all(t.dim() == 0 for t in strays):
            for _ in strays:
                self.account.add("waits")
        elif not (single and _pointwise(func, name)):
            raise RuntimeError(f"{MIXED} ({func})")


def _pointwise(func: Any, name: str) -> bool:
    """Whether one number of the host may stand in for a tensor of them."""
    more = name in ("masked_fill", "masked_fill_", "fill_")
    usual = torch.Tag.pointwise in func.tags and not name.startswith("clamp")
    return more or usual


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what an operation takes or gives; torch's own way is slower."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _is_there(device: Any) -> bool:
    if isinstance(device, int):
        return True
    return torch.device(device).type == "cuda"


def _again(*parts: Any) -> Tensor:
    """A tensor of the device, read back from a file."""
    rebuild, arguments, *_ = parts
    out: Tensor = rebuild(*arguments)
    return out.to(THERE)


def _line() -> str:
    """Where in the library, or else in the tests, the host is."""
    frame: FrameType | None = sys._getframe(2)
    found = ""
    while frame is not None:
        name = frame.f_code.co_filename
        own = [folder for folder in OURS if name.startswith(f"{folder}/")]
        if own and not name.endswith(PASSING):
            found = f"{Path(name).relative_to(own[0].parent)}:{frame.f_lineno}"
            break
        frame = frame.f_back
    return found
