"""Figures of one scan: where its points are, and how many of the pulses came back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from data.boxes import points_in_boxes
from data.frame import Frame
from data.simulator.sensors import Sensor
from ops.geometry import ConvGeometry
from ops.kernel_map import strided_map
from ops.voxelize import VoxelGrid, voxelize

RINGS = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0)  # metres from the sensor
HEIGHTS = (-np.inf, -0.5, -0.15, 0.15, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, np.inf)  # above the ground
VIEW = 76.0  # degrees ahead in which free rays are counted: within every crop to a camera's image
QUERIES = 2000  # points per scan whose nearest neighbour is looked for
FEW = 20  # points in a ring with fewer have no typical spacing


class Objects(NamedTuple):
    """The labelled objects of a scan, M of them."""

    names: tuple[str, ...]
    distance: np.ndarray  # [M] horizontal, metres
    points: np.ndarray  # [M] inside the box
    voxels: np.ndarray  # [M] of those points


class ScanStatistics(NamedTuple):
    """Figures of one scan of a sensor with B beams."""

    points: int
    rings: np.ndarray  # [9] points between the RINGS of horizontal range
    beams: np.ndarray  # [B] points of each beam, the lowest first
    free: np.ndarray  # [B] share of a beam's pulses into the VIEW that brought no point
    heights: np.ndarray  # [10] points between the HEIGHTS above the ground
    voxels: np.ndarray  # [L] active sites of each level of the encoder
    spacing: np.ndarray  # [9] per ring, median distance to the nearest other point, metres or NaN
    objects: Objects

    def features(self) -> np.ndarray:
        """The figures that a classifier may use: all but the objects; counts as logarithms."""
        counts = (self.points, *self.rings, *self.beams, *self.heights, *self.voxels)
        return np.concatenate([np.log1p(counts), self.free, np.nan_to_num(self.spacing)])


class Measure(NamedTuple):
    """By what scans are measured: their sensor, and the grid and strides of an encoder."""

    sensor: Sensor
    grid: VoxelGrid
    downs: Sequence[ConvGeometry]

    def __call__(self, frame: Frame) -> ScanStatistics:
        """The figures of a frame; its points that are not finite do not count."""
        points = frame.points[np.isfinite(frame.points).all(axis=1), :3].astype(np.float64)
        distance = np.hypot(points[:, 0], points[:, 1])
        beam = nearest_beam(points, self.sensor)
        ahead = np.abs(np.degrees(np.arctan2(points[:, 1], points[:, 0]))) < VIEW / 2
        beams = len(self.sensor.elevations)
        pulses = min(VIEW, self.sensor.field_of_view) / self.sensor.azimuth_step
        returned = np.bincount(beam[ahead], minlength=beams) / pulses
        return ScanStatistics(
            points=len(points),
            rings=np.histogram(distance, RINGS)[0],
            beams=np.bincount(beam, minlength=beams),
            free=1 - returned.clip(max=1),
            heights=np.histogram(points[:, 2] + self.sensor.height, HEIGHTS)[0],
            voxels=voxels_per_level(points, self.grid, self.downs),
            spacing=spacing_per_ring(points, distance),
            objects=_objects(points, frame, self.grid),
        )


def nearest_beam(points: np.ndarray, sensor: Sensor) -> np.ndarray:
    """[P, 3] -> [P] the beam whose elevation, as its laser sees the point, is nearest."""
    table, heights = np.array(sensor.elevations), np.array(sensor.laser_heights)
    distance = np.hypot(points[:, 0], points[:, 1])
    best, gap = np.zeros(len(points), dtype=np.int64), np.full(len(points), np.inf)
    for height in np.unique(heights):
        own = np.flatnonzero(heights == height)
        elevation = np.degrees(np.arctan2(points[:, 2] - height, distance))
        place = np.searchsorted((table[own][1:] + table[own][:-1]) / 2, elevation)
        off = np.abs(table[own][place] - elevation)
        closer = off < gap
        best[closer], gap[closer] = own[place][closer], off[closer]
    return best


def voxels_per_level(
    points: np.ndarray, grid: VoxelGrid, downs: Sequence[ConvGeometry]
) -> np.ndarray:
    """Active sites [1 + len(downs)]: the voxels of points [P, 3], then of each strided level."""
    cloud = torch.from_numpy(np.ascontiguousarray(points, dtype=np.float32))
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    coords = voxelize(cloud, offsets, grid, 1, max(len(points), 1)).coords
    shape, sites = tuple(grid.sparse_shape), [len(coords)]
    for down in downs:
        coords, shape, _ = strided_map(coords, shape, 1, down)
        sites.append(len(coords))
    return np.array(sites)


def spacing_per_ring(points: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Median distance [9] from a point of the ring to its nearest other point; NaN for few.

    points [P, 3]; at most QUERIES of them, evenly taken from the scan, are looked at.
    """
    spacing = np.full(len(RINGS) - 1, np.nan)
    if len(points) < 2:
        return spacing
    some = np.linspace(0, len(points) - 1, min(QUERIES, len(points))).astype(int)
    cloud = torch.from_numpy(points)
    # not by matrix products: they lose centimetres to cancellation
    exact = "donot_use_mm_for_euclid_dist"
    nearest = torch.cat(
        [
            torch.cdist(part, cloud, compute_mode=exact).topk(2, largest=False).values[:, 1]
            for part in cloud[some].split(250)
        ]
    ).numpy()
    ring = np.digitize(distance[some], RINGS) - 1
    for index in range(len(spacing)):
        if np.count_nonzero(ring == index) >= FEW:
            spacing[index] = np.median(nearest[ring == index])
    return spacing


def _objects(points: np.ndarray, frame: Frame, grid: VoxelGrid) -> Objects:
    inside = points_in_boxes(points, frame.boxes)
    cells = np.floor(points / np.array(grid.voxel_size)).astype(np.int64)
    voxels = [len(np.unique(cells[row], axis=0)) for row in inside]
    distance = np.hypot(frame.boxes[:, 0], frame.boxes[:, 1]).astype(np.float64)
    return Objects(frame.names, distance, inside.sum(axis=1), np.array(voxels, dtype=np.int64))
