"""Tensors packed for a file come back as they were, memory shared as it was."""

from __future__ import annotations

import pytest
import torch
from inside import packed, unpacked

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
        torch.eye(3).to_sparse(),
        torch.rand(2, requires_grad=True),
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.complex(torch.rand(2), torch.rand(2)).conj(),
    ],
    "nothing": list,
}


def bits(tensor):
    if tensor.layout is not torch.strided:
        return tensor.to_dense().tolist()
    return tensor.detach().resolve_conj().contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("name", KINDS)
def test_back_as_they_were(name):
    given = KINDS[name]()
    places, whole = packed(given)
    out = unpacked(places, whole)
    assert len(out) == len(given)
    for one, other in zip(given, out, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.requires_grad == other.requires_grad
        if one.layout is torch.strided:
            assert one.stride() == other.stride()
            if one.numel():
                assert torch.equal(bits(one), bits(other))
        else:
            assert bits(one) == bits(other)
    if name in ("plain", "scalars", "shared", "strided", "nothing"):
        assert len(whole) == len({tensor.dtype for tensor in given})


def test_memory_is_shared_as_it_was():
    mine = BASE.clone()
    out = unpacked(*packed([mine, mine[1], torch.zeros(4).double(), mine.T]))
    out[1].add_(10.0)
    assert out[0][1].tolist() == [14.0, 15.0, 16.0, 17.0]
    assert out[3][0, 1] == 14.0
    assert out[2].tolist() == [0.0] * 4
    assert mine[1, 0] == 4.0
