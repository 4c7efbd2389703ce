r"""Runs every CUDA kernel once on small inputs, for compute-sanitizer to watch:

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
    python tests/helpers/every_kernel.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from ops.boxes import iou_3d, nms, paired_overlap_bev
from ops.conv_chain import ConvChain
from ops.cuda import naive
from ops.cuda.anchors import anchor_losses, match_anchors
from ops.cuda.sparse_conv import conv_blocks
from ops.furthest_point_sampling import furthest_point_sampling
from ops.kernel_map import ConvGeometry, index_pyramid, index_workspace, strided_map
from ops.sparse_conv import sparse_conv, sparse_max_pool
from ops.sparse_tensor import bev_map, dense
from ops.voxelize import VoxelGrid, voxelize

GRID = VoxelGrid((0, -4, -2, 12, 4, 2), (0.2, 0.2, 0.2))
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
CHANNELS = [(4, 16), (16, 16), (32, 64), (64, 64), (64, 128), (128, 64), (3, 5), (20, 12)]


def main() -> None:
    torch.manual_seed(0)
    points = (torch.rand(3000, 4) * torch.tensor([13, 9, 4, 1]) - torch.tensor([0, 4, 2, 0])).cuda()
    points[7] = float("nan")
    offsets = torch.tensor([0, 1800, 3000], dtype=torch.int32).cuda()
    voxels = voxelize(points, offsets, GRID)
    voxelize(points, offsets, GRID, max_voxels=300, capacity=700)
    workspace = index_workspace(GRID.sparse_shape, 2, [DOWN], points.device)
    count = torch.tensor([len(voxels.coords)], dtype=torch.int32).cuda()
    bounded = {"capacities": (2000, 2500), "count": count, "workspace": workspace}
    index_pyramid(voxels.coords, GRID.sparse_shape, 2, [DOWN], **bounded)
    pyramid = index_pyramid(voxels.coords, GRID.sparse_shape, 2, [DOWN])
    odd = ConvGeometry((2, 1, 3), (1, 2, 3), (0, 1, 2), (2, 1, 1))
    strided_map(voxels.coords, GRID.sparse_shape, 2, odd)
    level, below = pyramid.levels
    for kernel_map in (level.submanifold, below.down, below.down.reversed()):
        volume = len(kernel_map.forward.neighbours)
        sources = kernel_map.backward.neighbours.shape[1]
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for precision in ("highest", "high"):
                torch.set_float32_matmul_precision(precision)
                for c_in, c_out in CHANNELS:
                    x = torch.randn(sources, c_in, device="cuda", dtype=dtype, requires_grad=True)
                    w = torch.randn(volume, c_in, c_out, device="cuda", requires_grad=True)
                    bias = torch.randn(c_out, device="cuda", requires_grad=True)
                    sparse_conv(x, w.to(dtype), kernel_map, bias, relu=True).sum().backward()
                    norm = torch.nn.BatchNorm1d(c_out).cuda()
                    if not kernel_map.forward.flipped:
                        conv_blocks(x, [w], [kernel_map], [norm]).sum().backward()
            pooled = torch.randn(sources, 24, device="cuda", dtype=dtype, requires_grad=True)
            sparse_max_pool(pooled, kernel_map).sum().backward()
    x = torch.randn(len(below.coords), 32, device="cuda", requires_grad=True)
    dense(x, below.coords, below.spatial_shape, 2).sum().backward()
    bev_map(x.half(), below.coords, below.spatial_shape, 2)
    weights = [torch.randn(27, 16, 32), torch.randn(27, 32, 64)]
    chain = ConvChain(weights, [torch.randn(32), torch.randn(64)]).cuda().half()
    rows = torch.randn(len(level.coords), 16, device="cuda")
    chain(rows, [level.submanifold] * 2)
    chain.bev_map(rows, [level.submanifold] * 2, level, 2)
    narrow = ConvChain([torch.randn(27, 4, 16)], [torch.randn(16)]).cuda().half()
    narrow.bev_map(rows[:, :4].contiguous(), [level.submanifold], level, 2)
    anchors = torch.rand(9, 70, 3, 2, 7, device="cuda")
    columns, rows = (torch.rand(n, 3, 2, 2, device="cuda").sort().values for n in (70, 9))
    truth, labels = torch.rand(2, 150, 7, device="cuda"), torch.randint(4, (2, 150), device="cuda")
    match = match_anchors(columns, rows, torch.rand(3, 2, device="cuda"), truth, labels)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        predictions = (torch.randn(2, 3780, n, device="cuda", dtype=dtype) for n in (3, 7, 2))
        predictions = [p.requires_grad_() for p in predictions]
        anchor_losses(*predictions, anchors, truth, *match, (1, 2, 0.2))[0].backward()
    boxes = torch.rand(700, 7, device="cuda") * torch.tensor([20, 20, 2, 4, 2, 2, 6]).cuda()
    iou_3d(boxes, boxes[:50])
    paired_overlap_bev(boxes, boxes.flip(0))
    nms(boxes, torch.rand(700, device="cuda"), 0.1, 100)
    tables = naive.tables(level.coords, level.spatial_shape, 2, DOWN, below.coords)
    naive.sparse_conv(
        torch.randn(len(level.coords), 40).cuda(), torch.randn(27, 40, 50).cuda(), tables
    )
    for count in (3000, 5000, 40_000, 100_000, 132_000):  # a block, clusters, streamed
        furthest_point_sampling(torch.randn(2, count, 3, device="cuda"), 5)
    torch.cuda.synchronize()
    print("every kernel ran")


if __name__ == "__main__":
    main()
