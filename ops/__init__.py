"""Sparse convolution, voxels, boxes and anchors: functions of tensors only.

A file holds an operator or a small family of them: the public function `f`, which checks its
arguments and chooses, `f_definition` in plain torch, which is the CPU path, the call of the kernel,
its fake and its gradient. Where plain torch is too slow, `ops/cpu.py` runs the kernels of a CPU.
"""

from millisecond.ops.anchors import (
    Match,
    Targets,
    anchor_loss_gradients,
    anchor_losses,
    anchor_sides,
    anchor_targets,
    apply_direction,
    decode,
    direction_bin,
    encode,
    limit_period,
    match_anchors,
)
from millisecond.ops.bev import BevCells, BevHeads, CellPlan, CellValues, bev_cells, bev_spread
from millisecond.ops.boxes import (
    Kept,
    SelectedBoxes,
    iou_3d,
    iou_bev,
    nms,
    overlap_bev,
    paired_overlap_bev,
    select_boxes,
    select_boxes_of_cells,
)
from millisecond.ops.conv_blocks import conv_blocks
from millisecond.ops.conv_chain import ConvChain
from millisecond.ops.dense import bev_map, dense
from millisecond.ops.geometry import ConvGeometry
from millisecond.ops.kernel_map import index_pyramid, index_workspace, strided_map, submanifold_map
from millisecond.ops.layers import (
    InverseConv,
    SparseMaxPool,
    SparseTensor,
    StridedConv,
    SubmanifoldConv,
    TransposedConv,
    block_diagonal,
)
from millisecond.ops.max_pool import sparse_max_pool
from millisecond.ops.points import (
    Nearest,
    ball_query,
    furthest_point_sampling,
    group_points,
    interpolate,
    inverse_distance_weights,
    three_nearest,
)
from millisecond.ops.rulebook import KernelMap, Level, Pyramid, Table
from millisecond.ops.sparse_conv import sparse_conv
from millisecond.ops.training import LossScale, Moments, Recipe, adamw_update, norm_relu
from millisecond.ops.transfer import collect, load_points, load_workspace, stage_points
from millisecond.ops.voxelize import (
    PointVoxels,
    VoxelGrid,
    Voxels,
    dynamic_voxelize,
    voxel_pool,
    voxelize,
)

__all__ = [
    "BevCells",
    "BevHeads",
    "CellPlan",
    "CellValues",
    "ConvChain",
    "ConvGeometry",
    "InverseConv",
    "Kept",
    "KernelMap",
    "Level",
    "LossScale",
    "Match",
    "Moments",
    "Nearest",
    "PointVoxels",
    "Pyramid",
    "Recipe",
    "SelectedBoxes",
    "SparseMaxPool",
    "SparseTensor",
    "StridedConv",
    "SubmanifoldConv",
    "Table",
    "Targets",
    "TransposedConv",
    "VoxelGrid",
    "Voxels",
    "adamw_update",
    "anchor_loss_gradients",
    "anchor_losses",
    "anchor_sides",
    "anchor_targets",
    "apply_direction",
    "ball_query",
    "bev_cells",
    "bev_map",
    "bev_spread",
    "block_diagonal",
    "collect",
    "conv_blocks",
    "decode",
    "dense",
    "direction_bin",
    "dynamic_voxelize",
    "encode",
    "furthest_point_sampling",
    "group_points",
    "index_pyramid",
    "index_workspace",
    "interpolate",
    "inverse_distance_weights",
    "iou_3d",
    "iou_bev",
    "limit_period",
    "load_points",
    "load_workspace",
    "match_anchors",
    "nms",
    "norm_relu",
    "overlap_bev",
    "paired_overlap_bev",
    "select_boxes",
    "select_boxes_of_cells",
    "sparse_conv",
    "sparse_max_pool",
    "stage_points",
    "strided_map",
    "submanifold_map",
    "three_nearest",
    "voxel_pool",
    "voxelize",
]
