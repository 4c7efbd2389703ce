"""Sparse convolution, voxels and boxes: functions of tensors only."""

from ops.kernel_map import (
    ConvGeometry,
    KernelMap,
    Level,
    Pyramid,
    Table,
    index_pyramid,
    strided_map,
    submanifold_map,
)
from ops.layers import InverseConv, SparseMaxPool, StridedConv, SubmanifoldConv
from ops.sparse_conv import sparse_conv, sparse_max_pool
from ops.sparse_tensor import SparseTensor, dense
from ops.voxelize import VoxelGrid, Voxels, voxelize

__all__ = [
    "ConvGeometry",
    "InverseConv",
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
    "dense",
    "index_pyramid",
    "sparse_conv",
    "sparse_max_pool",
    "strided_map",
    "submanifold_map",
    "voxelize",
]
