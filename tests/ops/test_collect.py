"""Small results one behind another on the host, from either device."""

import numpy as np
import pytest
import torch

from millisecond.ops import collect

PARTS = [
    torch.arange(5) - 2**40,
    torch.rand(3, 7, 2),
    torch.zeros(0),
    torch.tensor([[1, 2], [-3, 4]], dtype=torch.int32).T,
    torch.rand(1000),
]
BITS = np.concatenate([np.ascontiguousarray(part.numpy()).view("<i4").ravel() for part in PARTS])


def test_the_bits_of_all_parts_in_their_order():
    out = torch.full((len(BITS),), 7, dtype=torch.int32)
    collect(PARTS, out)
    assert (out.numpy() == BITS).all()


@pytest.mark.gpu
def test_the_same_from_a_gpu_and_by_a_replay():
    parts = [part.cuda() for part in PARTS]
    out = torch.zeros(len(BITS), dtype=torch.int32).pin_memory()
    collect(parts, out)
    torch.cuda.synchronize()
    assert (out.numpy() == BITS).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        collect(parts, out)
    parts[4].zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (out.numpy()[:-1000] == BITS[:-1000]).all() and not out[-1000:].any()
    with pytest.raises(ValueError, match="pinned"):
        collect(parts, out.clone())
    with pytest.raises(RuntimeError, match="parts must be 1 to 16"):
        torch.ops.millisecond.collect([parts[0]] * 17, out)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (torch.zeros(3, dtype=torch.int32), "out: has 3 words, the parts have 8"),
        (torch.zeros(8), r"out: expected \[words\] int32 on the host, got \[8\] torch.float32"),
        (torch.zeros(8, dtype=torch.int32, device="meta"), "on meta"),
    ],
)
def test_a_wrong_argument_is_one_line(out, message):
    with pytest.raises(ValueError, match=message):
        collect([torch.zeros(4, dtype=torch.int64)], out)
