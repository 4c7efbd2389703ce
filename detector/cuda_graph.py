"""The capacities that CUDA graphs of a network are made for."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from millisecond.detector.models.second import Second
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops.geometry import level_shapes
from millisecond.ops.kernel_map import fits

# Rows per frame of the levels 0 to 4 of second_kitti.yaml: 1.3 times the most of ten scans that are
# cropped to the camera's view, rounded up.
KITTI_ROWS = (24_000, 48_000, 36_000, 18_000, 15_000)
STEP = 2.5  # from one capacity to the next
POINTS = 2.2  # per voxel: of a scan of all directions about half is in the grid


class Capacity(NamedTuple):
    """The most that a graph holds: for inference of each frame, for training of the batch."""

    points: int
    rows: tuple[int, ...]  # of each level of the encoder; the rows of level 0 are the voxels
    boxes: int = 0  # of ground truth, per frame

    def holds(self, points: int, rows: Sequence[int] = (), boxes: int = 0) -> bool:
        """Whether so much fits; no rows: as far as is known."""
        few = points <= self.points and boxes <= self.boxes
        return few and all(map(operator.le, rows, self.rows))


def capacities_of(model: Second) -> tuple[Capacity, ...]:
    """Rising capacities for scans of a network: the first holds a KITTI scan that is cropped to the
    camera's view, the last as many voxels as the network takes."""
    most = _most_rows(model)[0]
    found = [capacity_of(model, 0)]
    while found[-1].rows[0] < most:
        found.append(capacity_of(model, len(found)))
    return tuple(found)


def capacity_of(model: Second, number: int) -> Capacity:
    """A capacity of the endless row of them. From some number on each level has room for every row
    that a scan can have, and only the points rise."""
    scale = STEP**number
    rows = [round(capacity * scale) for capacity in KITTI_ROWS]
    fitting = tuple(map(min, rows, _most_rows(model)))
    return Capacity(round(KITTI_ROWS[0] * scale * POINTS), fitting)


def _most_rows(model: Second) -> list[int]:
    """Of each level for one scan."""
    cells = [math.prod(shape) for shape in level_shapes(model.grid.sparse_shape, DOWNS)]
    return [min(model.max_voxels[1], cells[0]), *cells[1:]]


def indexable(model: Second, batch_size: int) -> bool:
    """Whether batches of this size have an index that never reads back to the host."""
    return fits(batch_size, level_shapes(model.grid.sparse_shape, DOWNS))


def first_that_holds(capacities: Sequence[Capacity], points: int, rows: Sequence[int]) -> int:
    """Number of the first capacity for a frame; the number of capacities where none holds it."""
    fitting = (n for n, capacity in enumerate(capacities) if capacity.holds(points, rows))
    return next(fitting, len(capacities))
