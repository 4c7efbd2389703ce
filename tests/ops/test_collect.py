"""Small results one behind another on the host, from either device."""

import numpy as np
import pytest
import torch

from ops import collect, wait_for_parts

PARTS = [
    torch.arange(5) - 2**40,
    torch.rand(3, 7, 2),
    torch.zeros(0),
    torch.tensor([[1, 2], [-3, 4]], dtype=torch.int32).T,
    torch.rand(1000),
]
BITS = np.concatenate([np.ascontiguousarray(part.numpy()).view("<i4").ravel() for part in PARTS])


def test_the_bits_of_all_parts_in_their_order():
    out = torch.full((len(BITS) + 1,), 7, dtype=torch.int32)
    out[-1] = 0
    assert not wait_for_parts(out)
    collect(PARTS, out)
    assert (out.numpy()[:-1] == BITS).all() and out[-1] == 1
    assert wait_for_parts(out)


@pytest.mark.gpu
def test_the_same_from_a_gpu_and_by_a_replay():
    parts = [part.cuda() for part in PARTS]
    out = torch.zeros(len(BITS) + 1, dtype=torch.int32).pin_memory()
    assert not wait_for_parts(out)
    collect(parts, out)
    assert wait_for_parts(out) and (out.numpy()[:-1] == BITS).all()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        collect(parts, out)
    parts[4].zero_()
    torch.cuda.synchronize()
    for _ in range(50):
        out.fill_(7)
        out[-1] = 0
        graph.replay()
        assert wait_for_parts(out)
        assert (out.numpy()[:-1001] == BITS[:-1000]).all() and not out[-1001:-1].any()
    many = torch.rand(50_000, device="cuda")
    out = torch.zeros(50_001, dtype=torch.int32).pin_memory()
    collect([many], out)
    assert wait_for_parts(out) and torch.equal(out[:-1].view(torch.float32), many.cpu())
    assert not torch.ops.millisecond.wait_for_parts(torch.zeros(3, dtype=torch.int32))  # nor ever
    with pytest.raises(ValueError, match="pinned"):
        collect([many], out.clone())
    with pytest.raises(RuntimeError, match="parts must be 1 to 16"):
        torch.ops.millisecond.collect([many] * 17, out)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.zeros(3, dtype=torch.int32), "out: has 3 words, the parts have 8 and need one"),
        (
            torch.zeros(8),
            r"out: expected \[words \+ 1\] int32 on the host, got \[8\] torch.float32",
        ),
        (torch.zeros(8, dtype=torch.int32, device="meta"), "on meta"),
    ],
)
def test_a_wrong_argument_is_one_line(out, message):
    with pytest.raises(ValueError, match=message):
        collect([torch.zeros(4, dtype=torch.int64)], out)
