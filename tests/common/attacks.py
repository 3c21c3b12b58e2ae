"""Checkpoints that mean ill: pickles and forged bodies that would create a file."""

from __future__ import annotations

import functools
import io
import json
import operator
import os
import pickle

import torch
from gpytorch import kernels as gpk

import cbandit as cb


class Payload:
    """Pickled, it is a call of some function."""

    def __init__(self, function, *given, state=None):
        self.parts = (function, given) if state is None else (function, given, state)

    def __reduce__(self):
        return self.parts


class Stateful:
    """Unpickled, it is told its state."""

    def __setstate__(self, state):
        state["call"](*state["given"])


def stateful(call, *given):
    out = Stateful()
    vars(out).update(call=call, given=given)
    return out


def pickles(mark):
    """Bodies that create the file ``mark`` when they are unpickled, by name."""
    touch, code = f"touch {mark}", f"open({str(mark)!r}, 'w').close()"
    inner = io.BytesIO()
    torch.save(Payload(os.system, touch), inner, _use_new_zipfile_serialization=False)
    shell = functools.partial(os.system, touch)
    reached = Payload(operator.attrgetter("__globals__"), pickles)
    whole = {
        "os.system": Payload(os.system, touch),
        "eval": Payload(eval, code),
        "exec": Payload(exec, code),
        "torch.storage": Payload(torch.storage._load_from_bytes, inner.getvalue()),
        "partial": Payload(shell),
        "attrgetter": [reached, Payload(os.system, touch)],
        "methodcaller": Payload(operator.methodcaller("touch"), mark),
        "setstate": stateful(os.system, touch),
        "state of a known class": Payload(
            cb.GP, gpk.RBFKernel(), 0.1, state={"kernel": Payload(os.system, touch)}
        ),
        "plain": {"nodes": torch.zeros(3), "tensors": [Payload(os.system, touch)]},
    }
    for name, payload in whole.items():
        zipped = io.BytesIO()
        torch.save(payload, zipped)
        yield name, zipped.getvalue()
        yield f"{name}, pickled", pickle.dumps(payload)


def nodes(*each, root=(0,)):
    """The body of a checkpoint of these nodes."""
    return json.dumps([list(root), [], [], *each]).encode() + b"\n"


def forgeries(mark):
    """Bodies in our own format that mean ill, by name."""
    given, nothing = ["tuple", f"touch {mark}"], ["tuple"]
    rest = [[1], None, [2], [2]]
    for name in (
        "os:system",
        "builtins:eval",
        "builtins:getattr",
        "builtins:exec",
        "operator:attrgetter",
        "functools:partial",
        "subprocess:Popen",
        "importlib:import_module",
        "torch.storage:_load_from_bytes",
        "torch:load",
        "pathlib:Path",
        "cbandit._core.names:importlib.import_module",
        "cbandit._core.files:os.system",
        "cbandit.cli:main",
        "cbandit.simulation.run:Run",
        "cbandit.policies.ckb:CKB.save",
        "gpytorch.kernels.kernel:Kernel.__init__",
        "os.system",
        "",
    ):
        for kind in ("made", "object"):
            yield f"{kind} {name}", nodes([kind, name, *rest], given, ["list"])
        for kind in ("name", "method", "partial"):
            more = {"name": [], "method": [[1]], "partial": [[1], [2]]}[kind]
            made = [kind, name, *more] if kind != "partial" else [kind, [3], *more]
            found = ["name", name]
            yield f"{kind} {name}", nodes(made, given, ["dict"], found)
    yield (
        "a known class is called",
        nodes(["made", "cbandit.explore:UCB", [1], None, [2], [2]], given, ["list"]),
    )
    yield (
        "items",
        nodes(
            ["object", "cbandit.explore:UCB", [1], None, [2], [3]],
            *(nothing, ["list", 1], ["list"]),
        ),
    )
    yield (
        "a slot that is none",
        nodes(
            ["object", "cbandit.policies.saving:Lock", [1], [3], [2], [2]],
            *(nothing, ["list"], ["tuple", None, [4]], ["dict", "__reduce__", 1]),
        ),
    )
    yield "a tuple in itself", nodes(["tuple", [0]])
    yield "no such node", nodes(["list", [7]])
    yield "no such kind", nodes(["reduce", "os:system"])
    yield "no such dtype", nodes(["dtype", "Tensor"])
    yield "not even nodes", nodes(1)
    yield "a name that is none", nodes(["name", [1]], ["list"])


def attacks(mark):
    return [*pickles(mark), *forgeries(mark)]
