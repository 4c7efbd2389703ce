"""Voxel generators: `spconv.pytorch.utils.PointToVoxel` and `spconv.utils.Point2VoxelCPU3d`; and
the overlap of rotated boxes.

Voxels are numbered in the order of their first points, on a GPU too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext as nullcontext  # programs import it from here
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millisecond.ops.boxes import paired_overlap_bev
from millisecond.ops.geometry import coords_of_keys, linear_keys, whole
from millisecond.ops.spconv.core import of_dimensions
from millisecond.ops.transfer import require_unmasked


class PointVoxels(NamedTuple):
    """The points of each voxel, zeros after the last of them."""

    voxels: Tensor  # [M, P, C] float32
    indices: Tensor  # [M, D] int32 (z, y, x)
    num_per_voxel: Tensor  # [M] int32
    pc_voxel_id: Tensor  # [N] int64: voxel of each point, -1 = none


class PointToVoxel:
    """Points in a box of the LiDAR frame (metres) gathered by voxel: the first
    `max_num_points_per_voxel` of each, in the `max_num_voxels` voxels whose first points come
    first."""

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
        device: torch.device | str = "cpu",
    ):
        self.ndim, self.device = len(vsize_xyz), torch.device(device)
        self.num_point_features = whole("num_point_features", num_point_features, 1)
        self.max_num_voxels = whole("max_num_voxels", max_num_voxels, 0)
        self.max_num_points_per_voxel = whole(
            "max_num_points_per_voxel", max_num_points_per_voxel, 1
        )
        low, high = list(coors_range_xyz[: self.ndim]), list(coors_range_xyz[self.ndim :])
        # in the order of the indices: z first
        self.vsize = [float(size) for size in reversed(list(vsize_xyz))]
        self.coors_range = [float(x) for x in (*reversed(low), *reversed(high))]
        axes = zip(reversed(low), reversed(high), self.vsize, strict=True)
        try:
            # half of a cell is one, as in spconv
            self.grid_size = [math.floor((b - a) / size + 0.5) for a, b, size in axes]
        except ArithmeticError:
            raise ValueError(
                f"vsize_xyz: {vsize_xyz} does not divide the range {coors_range_xyz}"
            ) from None

    def __call__(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """voxels [M, P, C], indices [M, D], points per voxel [M] of pc [N, C]: see PointVoxels."""
        found = self.generate_voxel_with_id(pc, clear_voxels, empty_mean)
        return found.voxels, found.indices, found.num_per_voxel

    @torch.no_grad()
    def generate_voxel_with_id(
        self, pc: Tensor, clear_voxels: bool = True, empty_mean: bool = False
    ) -> PointVoxels:
        """`empty_mean` fills the places after a voxel's last point with the mean of its points."""
        if pc.ndim != 2 or pc.shape[1] != self.num_point_features:
            raise ValueError(f"pc: expected [N, {self.num_point_features}], got {list(pc.shape)}")
        keys, point = self._cells(pc)
        cell, voxel = _by_first_point(keys, len(pc), point)
        cell = cell[: self.max_num_voxels]
        voxel = torch.where(voxel < self.max_num_voxels, voxel, -1)
        ids = torch.full((len(pc),), -1, dtype=torch.int64, device=pc.device)
        ids[point] = voxel
        point, voxel = point[voxel >= 0], voxel[voxel >= 0]
        place = _places(voxel, len(cell))
        kept = place < self.max_num_points_per_voxel
        shape = len(cell), self.max_num_points_per_voxel, pc.shape[1]
        voxels = torch.zeros(shape, dtype=torch.float32, device=pc.device)
        voxels[voxel[kept], place[kept]] = pc[point[kept]].float()
        number = torch.bincount(voxel, minlength=len(cell)).clamp(max=shape[1])
        if empty_mean:
            mean = voxels.sum(1, keepdim=True) / number.clamp(min=1)[:, None, None]
            empty = torch.arange(shape[1], device=pc.device) >= number[:, None]
            voxels = torch.where(empty[..., None], mean, voxels)
        indices = coords_of_keys(cell, self.grid_size)[:, 1:].contiguous()
        return PointVoxels(voxels, indices, number.int(), ids)

    def _cells(self, pc: Tensor) -> tuple[Tensor, Tensor]:
        """Keys of the cells of the points inside of the box, and their rows."""
        xyz = pc[:, : self.ndim].float().flip(1)
        size = torch.tensor(self.vsize, device=pc.device)
        low = torch.tensor(self.coors_range[: self.ndim], device=pc.device)
        grid = torch.tensor(self.grid_size, device=pc.device)
        cells = torch.floor((xyz - low) / size)
        inside = ((cells >= 0) & (cells < grid)).all(1)  # a point that is not finite is outside
        point = inside.nonzero().squeeze(1)
        cells = torch.nn.functional.pad(cells[point].int(), (1, 0))
        return linear_keys(cells, self.grid_size), point


def _by_first_point(keys: Tensor, points: int, point: Tensor) -> tuple[Tensor, Tensor]:
    """The different keys in the order of their first points, and the number of each key in it."""
    different, place = keys.unique(return_inverse=True)
    first = torch.full((len(different),), points, dtype=torch.int64, device=keys.device)
    first = first.scatter_reduce(0, place, point, "amin")
    order = first.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=keys.device)
    return different[order], rank[place]


def _places(voxel: Tensor, voxels: int) -> Tensor:
    """The number of each point within its voxel, in the order of the points."""
    order = voxel.argsort(stable=True)
    count = torch.bincount(voxel, minlength=voxels)
    start = count.cumsum(0) - count
    place = torch.empty_like(voxel)
    place[order] = torch.arange(len(voxel), device=voxel.device) - start[voxel[order]]
    return place


def gather_features_by_pc_voxel_id(
    seg_res_features: Tensor, pc_voxel_id: Tensor, invalid_value: float = 0
) -> Tensor:
    """Features [N, ...] of points from those [M, ...] of their voxels."""
    ids = pc_voxel_id.to(seg_res_features.device)
    found = seg_res_features.new_full((len(ids), *seg_res_features.shape[1:]), invalid_value)
    found[ids >= 0] = seg_res_features[ids[ids >= 0]]
    return found


class HostArray:
    """An array as `cumm.tensorview` hands it out: `numpy()` gives the numbers."""

    def __init__(self, array: Any):
        self._array = array

    def numpy(self) -> Any:
        return self._array

    numpy_view = numpy

    @property
    def shape(self) -> list[int]:
        return list(self._array.shape)


class _Point2VoxelCPU:
    """`spconv.utils.Point2VoxelCPU{1,2,3}d`: arrays on the host."""

    NDIM: int

    def __init__(
        self,
        vsize_xyz: Sequence[float],
        coors_range_xyz: Sequence[float],
        num_point_features: int,
        max_num_voxels: int,
        max_num_points_per_voxel: int,
    ):
        if len(vsize_xyz) != self.NDIM:
            raise ValueError(
                f"vsize_xyz: expected {self.NDIM} numbers for {type(self).__name__}, "
                f"got {list(vsize_xyz)}"
            )
        self._generator = PointToVoxel(
            vsize_xyz, coors_range_xyz, num_point_features, max_num_voxels, max_num_points_per_voxel
        )
        self.grid_size = self._generator.grid_size

    def point_to_voxel(self, pc: Any, clear_voxels: bool = True) -> tuple[HostArray, ...]:
        """voxels, indices, points per voxel; see PointVoxels."""
        found = self._generator(_on_host(pc))
        return tuple(HostArray(part.numpy()) for part in found)

    def point_to_voxel_empty_mean(self, pc: Any, clear_voxels: bool = True):
        """The same, empty places filled with the mean of their voxel."""
        found = self._generator(_on_host(pc), empty_mean=True)
        return tuple(HostArray(part.numpy()) for part in found)


Point2VoxelCPU1d, Point2VoxelCPU2d, Point2VoxelCPU3d = of_dimensions(
    "Point2VoxelCPU", _Point2VoxelCPU, most=3
)


def _on_host(points: Any) -> Tensor:
    """float32 of an array, a tensor or what `cumm.tensorview.from_numpy` gives."""
    if isinstance(points, Tensor):
        return points.detach().cpu().float()
    require_unmasked("points", points)
    array = points.numpy() if hasattr(points, "numpy") else points
    return torch.as_tensor(array).float()


def rbbox_iou(box_corners: Any, qbox_corners: Any, standup_iou: Any, standup_thresh: float) -> Any:
    """IoU, an array [N, K], of rotated boxes, arrays [N, 4, 2] and [K, 4, 2] of their corners one
    after another; 0 where standup_iou [N, K] is not above its threshold."""
    shared, first, second = _overlaps(box_corners, qbox_corners, standup_iou, standup_thresh)
    union = first + second - shared
    return torch.where(union > 0, shared / union, 0).to(tensor_of(box_corners).dtype).numpy()


def rbbox_intersection(
    box_corners: Any, qbox_corners: Any, standup_iou: Any, standup_thresh: float
) -> Any:
    """The same for the area that two boxes share."""
    shared, _, _ = _overlaps(box_corners, qbox_corners, standup_iou, standup_thresh)
    return shared.to(tensor_of(box_corners).dtype).numpy()


def _overlaps(first: Any, second: Any, standup: Any, threshold: float) -> tuple[Tensor, ...]:
    """The areas [N, K] that boxes share, and the areas [N, 1] and [1, K] of the boxes, float64."""
    a, b = _rotated_boxes("box_corners", first), _rotated_boxes("qbox_corners", second)
    row, column = (tensor_of(standup) > threshold).nonzero(as_tuple=True)
    shared = a.new_zeros(len(a), len(b))
    shared[row, column] = paired_overlap_bev(a[row], b[column])
    return shared, (a[:, 3] * a[:, 4])[:, None], (b[:, 3] * b[:, 4])[None]


def _rotated_boxes(name: str, corners: Any) -> Tensor:
    """[N, 7] (x, y, z, l, w, h, yaw) float64 of corners [N, 4, 2]; ValueError for other shapes."""
    corners = tensor_of(corners).double()
    if corners.ndim != 3 or corners.shape[1:] != (4, 2):
        raise ValueError(f"{name}: expected [N, 4, 2], got {list(corners.shape)}")
    first, second, third, fourth = corners.unbind(1)
    along, across = second - first, third - second
    length, width = along.norm(dim=1), across.norm(dim=1)
    skew = (first + third - second - fourth).norm(dim=1) + (along * across).sum(1).abs().sqrt()
    wrong = (skew > 0.05 * (length + width)).nonzero()  # corners are rounded
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(f"{name}: row {row} is not a rectangle: {corners[row].tolist()}")
    none = torch.zeros_like(length)
    yaw = torch.atan2(along[:, 1], along[:, 0])
    x, y = corners.mean(1).unbind(1)
    return torch.stack((x, y, none, length, width, none, yaw), dim=1)


def tensor_of(array: Any) -> Tensor:
    """A tensor of an array, in any order of its memory, or of numbers."""
    return torch.as_tensor(array.copy() if hasattr(array, "__array_interface__") else array)
