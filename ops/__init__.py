"""Sparse convolution, voxels and boxes: functions of tensors only."""

from ops.boxes import Kept, iou_3d, iou_bev, nms, overlap_bev, paired_overlap_bev
from ops.furthest_point_sampling import furthest_point_sampling
from ops.kernel_map import (
    ConvGeometry,
    KernelMap,
    Level,
    Pyramid,
    Table,
    index_pyramid,
    index_workspace,
    strided_map,
    submanifold_map,
)
from ops.layers import InverseConv, SparseMaxPool, StridedConv, SubmanifoldConv
from ops.sparse_conv import sparse_conv, sparse_max_pool
from ops.sparse_tensor import SparseTensor, bev_map, dense
from ops.voxelize import VoxelGrid, Voxels, voxelize

__all__ = [
    "ConvGeometry",
    "InverseConv",
    "Kept",
    "KernelMap",
    "Level",
    "Pyramid",
    "SparseMaxPool",
    "SparseTensor",
    "StridedConv",
    "SubmanifoldConv",
    "Table",
    "VoxelGrid",
    "Voxels",
    "bev_map",
    "dense",
    "furthest_point_sampling",
    "index_pyramid",
    "index_workspace",
    "iou_3d",
    "iou_bev",
    "nms",
    "overlap_bev",
    "paired_overlap_bev",
    "sparse_conv",
    "sparse_max_pool",
    "strided_map",
    "submanifold_map",
    "voxelize",
]
