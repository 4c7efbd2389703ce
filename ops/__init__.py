"""Sparse convolution, voxels, boxes and anchors: functions of tensors only.

An operator has three files of one name: `ops/<name>.py` checks its arguments and chooses,
`ops/reference/<name>.py` defines it in plain torch and is the CPU path, `ops/cuda/<name>.py` runs
the kernels and holds gradients and fakes. Where plain torch is too slow, `ops/cpu/<name>.py` runs
the kernels of a CPU.
"""

from ops.adamw import LossScale, Moments, Recipe, adamw_update
from ops.anchors import Match, Targets, anchor_sides, anchor_targets, match_anchors
from ops.bev_cells import bev_cells, bev_spread
from ops.bev_heads import BevHeads
from ops.box_coder import apply_direction, decode, direction_bin, encode, limit_period
from ops.boxes import Kept, iou_3d, iou_bev, nms, overlap_bev, paired_overlap_bev
from ops.collect import collect
from ops.conv_blocks import conv_blocks
from ops.conv_chain import ConvChain
from ops.dataflow import Dataflow, LocationMap, PairMap
from ops.dense import bev_map, dense
from ops.dense_conv3d import dense_conv3d
from ops.furthest_point_sampling import furthest_point_sampling
from ops.geometry import ConvGeometry
from ops.kernel_map import index_pyramid, index_workspace, strided_map, submanifold_map
from ops.layers import InverseConv, SparseMaxPool, StridedConv, SubmanifoldConv
from ops.load_points import load_points, load_workspace, stage_points
from ops.locations import location_map
from ops.losses import anchor_loss_gradients, anchor_losses
from ops.max_pool import sparse_max_pool
from ops.norm_relu import norm_relu
from ops.pairs import pair_map
from ops.point_features import group_points, interpolate, inverse_distance_weights
from ops.point_neighbours import Nearest, ball_query, three_nearest
from ops.rulebook import BevCells, CellPlan, CellValues, KernelMap, Level, Pyramid, Table
from ops.select_boxes import SelectedBoxes, select_boxes, select_boxes_of_cells
from ops.sparse_conv import sparse_conv
from ops.sparse_tensor import SparseTensor
from ops.tuned import Tuned, use_tuned
from ops.tuned_file import read_tuned
from ops.voxel_pool import PointVoxels, dynamic_voxelize, voxel_pool
from ops.voxelize import VoxelGrid, Voxels, voxelize

__all__ = [
    "BevCells",
    "BevHeads",
    "CellPlan",
    "CellValues",
    "ConvChain",
    "ConvGeometry",
    "Dataflow",
    "InverseConv",
    "Kept",
    "KernelMap",
    "Level",
    "LocationMap",
    "LossScale",
    "Match",
    "Moments",
    "Nearest",
    "PairMap",
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
    "Tuned",
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
    "collect",
    "conv_blocks",
    "decode",
    "dense",
    "dense_conv3d",
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
    "location_map",
    "match_anchors",
    "nms",
    "norm_relu",
    "overlap_bev",
    "pair_map",
    "paired_overlap_bev",
    "read_tuned",
    "select_boxes",
    "select_boxes_of_cells",
    "sparse_conv",
    "sparse_max_pool",
    "stage_points",
    "strided_map",
    "submanifold_map",
    "three_nearest",
    "use_tuned",
    "voxel_pool",
    "voxelize",
]
