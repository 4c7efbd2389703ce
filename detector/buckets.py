"""Capacities that CUDA graphs are made for."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from detector.models.encoder_graph import KITTI_CAPACITIES
from detector.models.second import Second
from detector.models.sparse_encoder import DOWNS
from ops.cuda.bitmap import fits
from ops.geometry import level_shapes

STEP = 2.5  # from one bucket's capacities to the next
POINTS = 2.2  # per voxel: of a scan of all directions about half is in the grid


class Bucket(NamedTuple):
    """The most that a graph holds per frame."""

    points: int
    rows: tuple[int, ...]  # of each level of the encoder; those of level 0 are the voxels

    def holds(self, points: int, rows: Sequence[int]) -> bool:
        """Whether a frame of so many points and rows fits; no rows: as far as is known."""
        return points <= self.points and all(map(operator.le, rows, self.rows))


def buckets_of(model: Second) -> tuple[Bucket, ...]:
    """Rising capacities for scans of a network: the first holds a KITTI scan that is cropped to the
    camera's view, the last as many voxels as the network takes."""
    cells = [math.prod(shape) for shape in level_shapes(model.grid.sparse_shape, DOWNS)]
    most = min(model.max_voxels[1], cells[0])
    found: list[Bucket] = []
    while not found or found[-1].rows[0] < most:
        scale = STEP ** len(found)
        voxels = min(most, round(KITTI_CAPACITIES[0] * scale))
        rows = [round(capacity * scale) for capacity in KITTI_CAPACITIES[1:]]
        rows = [min(*pair) for pair in zip(rows, cells[1:], strict=True)]
        found.append(Bucket(round(KITTI_CAPACITIES[0] * scale * POINTS), (voxels, *rows)))
    return tuple(found)


def indexable(model: Second, batch_size: int) -> bool:
    """Whether batches of this size have an index that never reads back to the host."""
    return fits(batch_size, level_shapes(model.grid.sparse_shape, DOWNS))


def first_that_holds(buckets: Sequence[Bucket], points: int, rows: Sequence[int]) -> int:
    """Number of the first bucket for a frame; the number of buckets where none holds it."""
    for number, bucket in enumerate(buckets):
        if bucket.holds(points, rows):
            return number
    return len(buckets)
