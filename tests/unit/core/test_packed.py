"""Tensors packed for a file come back as they were, memory shared as it was."""

from __future__ import annotations

import json

import pytest
import torch
from inside import packed, unpacked

import cbandit as cb

BASE = torch.arange(12.0, dtype=torch.float64).view(3, 4)
KINDS = {
    "plain": lambda: [torch.rand(3, 2), torch.rand(5).double(), torch.arange(3)],
    "scalars": lambda: [torch.tensor(2.5), torch.tensor(True), torch.tensor(7)],
    "shared": lambda: [BASE, BASE[1], BASE[:, 2], BASE.T],
    "strided": lambda: [BASE.clone()[:, ::2], torch.rand(6, 5).T],
    "a row of much": lambda: [torch.rand(100, 100)[7], torch.rand(100, 100)],
    "other dtype": lambda: [BASE, BASE.view(torch.int64)],
    "parameter": lambda: (lambda p: [p, p.data, p.data[:1]])(
        torch.nn.Parameter(torch.rand(3))
    ),
    "odd": lambda: [
        torch.empty(0, 3),
        torch.empty(2, 0, 3)[:, :, 1:],
        torch.rand(2, requires_grad=True),
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.complex(torch.rand(2), torch.rand(2)).conj(),
    ],
    "nothing": list,
}


def bits(tensor):
    return tensor.detach().resolve_conj().contiguous().view(-1).view(torch.uint8)


def back(tensors):
    sizes, places, memory = packed(tensors)
    data = b"".join(each.numpy().tobytes() for each in memory)
    return unpacked(sizes, json.loads(json.dumps(places)), memoryview(data))


@pytest.mark.parametrize("name", KINDS)
def test_back_as_they_were(name):
    tensors = KINDS[name]()
    out = back(tensors)
    assert len(out) == len(tensors)
    for one, other in zip(tensors, out, strict=True):
        for name in ("dtype", "shape", "requires_grad"):
            assert getattr(one, name) == getattr(other, name)
        assert type(one) is type(other)
        if one.numel():
            assert one.stride() == other.stride()
            assert torch.equal(bits(one), bits(other))


def test_memory_is_shared_as_it_was():
    mine = BASE.clone()
    out = back([mine, mine[1], torch.zeros(4).double(), mine.T])
    out[1].add_(10.0)
    assert out[0][1].tolist() == [14.0, 15.0, 16.0, 17.0]
    assert out[3][0, 1] == 14.0
    assert out[2].tolist() == [0.0] * 4
    assert mine[1, 0] == 4.0


def test_a_row_of_much_takes_its_own_numbers():
    ((size, _),), _, _ = packed([torch.rand(100, 100)[7]])
    assert size == 400


@pytest.mark.parametrize(
    "odd", [torch.eye(3).to_sparse(), torch.empty(2, device="meta")], ids=str
)
def test_what_holds_no_plain_numbers_is_refused(odd):
    with pytest.raises(TypeError, match="only dense tensors can be saved"):
        packed([odd])


WHOLE = [[32, "cpu"]]


@pytest.mark.parametrize(
    ("sizes", "place"),
    {
        "longer than its memory": (WHOLE, [0, "float64", [5]]),
        "beyond its end": (WHOLE, [0, "float64", [2], 3]),
        "before its start": (WHOLE, [0, "float64", [1], -1]),
        "backwards": (WHOLE, [0, "float64", [2], 3, [-1]]),
        "too wide a step": (WHOLE, [0, "float64", [2, 2], 0, [3, 1]]),
        "less than nothing": (WHOLE, [0, "float64", [-1, -4]]),
        "a view of 10^12": (WHOLE, [0, "float64", [10**6, 10**6], 0, [0, 0]]),
        "out of nothing": ([[32, "cpu"], [0, "cpu"]], [1, "uint8", [1], 0, [0]]),
        "empty, beyond its end": (WHOLE, [0, "float64", [0], 5]),
        "more bytes than there are": ([[10**12, "cpu"]], [0, "uint8", [1]]),
        "fewer bytes": ([[31, "cpu"]], [0, "uint8", [1]]),
        "sizes that cancel": ([[64, "cpu"], [-32, "cpu"]], [0, "uint8", [64]]),
    }.values(),
)
def test_what_claims_more_than_there_is_is_refused(sizes, place):
    with pytest.raises(cb.CheckpointError, match="claims"):
        unpacked(sizes, [place], memoryview(bytes(32)))


def test_truth_values_are_0_or_1():
    (out,) = unpacked([[3, "cpu"]], [[0, "bool", [3]]], memoryview(b"\0\1\xff"))
    assert out.view(torch.uint8).tolist() == [0, 1, 1]
