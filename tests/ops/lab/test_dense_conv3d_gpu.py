"""Every rung of the dense convolution against torch's in float64."""

import pytest
import torch
from torch.nn.functional import conv3d

from millisecond.ops.lab import dense_conv3d
from millisecond.ops.lab.dense_conv3d import RUNGS
from tests.conftest import CONVOLUTION
from tests.helpers.sparse import error, poison
from tests.ops.lab.test_dense_conv3d import problem

pytestmark = pytest.mark.gpu

# on both sides of a block's outputs, 32 x 8 x 8, and of its four channels
SHAPES = [(1, 1, 1), (7, 8, 31), (8, 9, 32), (9, 7, 33), (17, 17, 257)]
CHANNELS = [(1, 1), (3, 4), (5, 6)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch_in_float64(shape, kernel, dtype):
    for channels in CHANNELS if max(shape) < 100 else CHANNELS[:1]:
        volume, weight = problem(kernel, channels, shape, dtype)
        expected = conv3d(volume.double(), weight.double(), padding=kernel // 2)
        for rung in RUNGS:
            poison()
            out = dense_conv3d(volume.cuda(), weight.cuda(), rung)
            assert error(out, expected) <= CONVOLUTION[dtype, "highest"], (rung, channels)


@pytest.mark.parametrize("rung", RUNGS)
def test_stream_and_graph_capture(rung):
    volume, weight = (tensor.cuda() for tensor in problem(5, (2, 5), (20, 30, 40)))
    expected = dense_conv3d(volume, weight, rung)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        late = volume.clone()  # on the side stream, so wrong unless the kernel follows it
        assert torch.equal(dense_conv3d(late, weight, rung), expected)
    torch.cuda.current_stream().wait_stream(side)
    graph, static = torch.cuda.CUDAGraph(), torch.zeros_like(volume)
    with torch.cuda.graph(graph):
        out = dense_conv3d(static, weight, rung)
    static.copy_(volume)
    graph.replay()
    assert torch.equal(out, expected)


def test_no_outputs_and_a_volume_that_is_not_contiguous():
    volume, weight = (tensor.cuda() for tensor in problem(3, (2, 5), (4, 5, 6)))
    assert dense_conv3d(volume[:0], weight).shape == (0, 5, 4, 5, 6)
    turned = volume.transpose(2, 4).contiguous().transpose(2, 4)
    assert torch.equal(dense_conv3d(turned, weight), dense_conv3d(volume, weight))


def test_opcheck():
    volume, weight = (tensor.cuda() for tensor in problem(3, (2, 5), (4, 5, 6)))
    dense_conv3d(volume, weight)  # loads the operators
    torch.library.opcheck(torch.ops.millisecond_lab.dense_conv3d.default, (volume, weight, "tiled"))
