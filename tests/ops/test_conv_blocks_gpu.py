"""Training blocks in one call are their parts one after another."""

import itertools

import pytest
import torch

from ops import ConvGeometry, conv_blocks, sparse_conv, strided_map, submanifold_map
from tests.conftest import CONV_BLOCKS
from tests.helpers.sparse import error, on_cuda, random_coords

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_conv_blocks_are_their_parts(dtype):
    generator = torch.Generator().manual_seed(11)
    coords = random_coords(generator, (9, 40, 40), 2, 0.2)
    geometry = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
    same = on_cuda(submanifold_map(coords, (9, 40, 40), 2))
    maps = [same, same, on_cuda(strided_map(coords, (9, 40, 40), 2, geometry)[2])]
    rows = maps[-1].forward.neighbours.shape[1]
    channels = (4, 16, 16, 32)
    features = torch.randn(len(coords), 4, generator=generator).to("cuda", dtype)
    weights = [
        torch.randn(27, c_in, c_out, generator=generator).cuda() / (5 * c_in) ** 0.5
        for c_in, c_out in itertools.pairwise(channels)
    ]
    grad = torch.randn(rows, 32, generator=generator).to("cuda", dtype)
    results = []
    for fused in (False, True):
        norms = [torch.nn.BatchNorm1d(c, eps=1e-3, momentum=0.01).cuda() for c in channels[1:]]
        x, own = features.clone().requires_grad_(), [w.clone().requires_grad_() for w in weights]
        if fused:
            out = conv_blocks(x, own, maps, norms)
        else:
            out = x
            for w, kernel_map, norm in zip(own, maps, norms, strict=True):
                out = torch.relu(norm(sparse_conv(out, w.to(dtype), kernel_map)))
        out.backward(grad)
        results.append([out, x.grad, *(w.grad for w in own)])
        for norm in norms:
            results[-1] += [norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]
    tolerance = CONV_BLOCKS[dtype]
    for one, other in zip(*results, strict=True):
        assert error(one, other) <= tolerance
