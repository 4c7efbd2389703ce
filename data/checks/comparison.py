"""Two sets of scans side by side: figures of each, and whether a classifier tells them apart."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from millisecond.data.boxes import points_in_boxes
from millisecond.data.frame import Frame
from millisecond.data.metric.reliability import logistic
from millisecond.data.simulator.sensors import Sensor
from millisecond.ops.geometry import ConvGeometry
from millisecond.ops.kernel_map import strided_map
from millisecond.ops.voxelize import VoxelGrid, voxelize

RINGS = (0.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0)  # metres from the sensor
HEIGHTS = (-np.inf, -0.5, -0.15, 0.15, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, np.inf)  # above the ground
VIEW = 76.0  # degrees ahead in which free rays are counted: within every crop to a camera's image
QUERIES = 2000  # points per scan whose nearest neighbour is looked for
FEW = 20  # points in a ring with fewer have no typical spacing


class ScanObjects(NamedTuple):
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
    objects: ScanObjects

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
    points: np.ndarray, grid: VoxelGrid, downs: Sequence[ConvGeometry] = ()
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
    apart = (torch.cdist(part, cloud, compute_mode=exact) for part in cloud[some].split(250))
    nearest = torch.cat([part.topk(2, largest=False).values[:, 1] for part in apart]).numpy()
    ring = np.digitize(distance[some], RINGS) - 1
    for index in range(len(spacing)):
        if np.count_nonzero(ring == index) >= FEW:
            spacing[index] = np.median(nearest[ring == index])
    return spacing


def _objects(points: np.ndarray, frame: Frame, grid: VoxelGrid) -> ScanObjects:
    inside = points_in_boxes(points, frame.boxes)
    cells = np.floor(points / np.array(grid.voxel_size)).astype(np.int64)
    voxels = [len(np.unique(cells[row], axis=0)) for row in inside]
    distance = np.hypot(frame.boxes[:, 0], frame.boxes[:, 1]).astype(np.float64)
    return ScanObjects(frame.names, distance, inside.sum(axis=1), np.array(voxels, dtype=np.int64))


NEAR = (0.0, 10.0, 20.0, 30.0, 40.0, 70.0)  # metres: rings of objects
FOLDS = 5
PENALTY = 1.0  # of the squared weights of the classifier


class FigureRow(NamedTuple):
    """A figure of both sets, a mean per scan or per object."""

    table: str
    name: str
    a: float
    b: float
    behind: tuple[int, int]  # scans or objects that the means are of

    @property
    def ratio(self) -> float:
        """b / a; NaN where a is 0."""
        return self.b / self.a if self.a else float("nan")


class Verdict(NamedTuple):
    """How well a classifier tells the sets apart: 0.5 is guessing, 1 always."""

    accuracy: float  # the mean of both sets' shares that are told right; NaN for too few scans
    telling: tuple[str, ...]  # the figures that differ most, of their spread


def compare(a: Sequence[ScanStatistics], b: Sequence[ScanStatistics]) -> list[FigureRow]:
    """All tables, row by row."""
    scans = len(a), len(b)
    left, right = _means(a, b, "points")
    rows = [FigureRow("scan", "points", float(left), float(right), scans)]
    for table, names in _names(a[0]).items():
        left, right = _means(a, b, table)
        rows += [
            FigureRow(table, name, float(x), float(y), scans)
            for name, x, y in zip(names, left, right, strict=True)
        ]
    left, right = _means(a, b, "free")
    seen = (np.array([left, right]) < 0.999).any(axis=0)  # the crop leaves out whole beams
    rows.append(
        FigureRow("scan", "free rays", float(left[seen].mean()), float(right[seen].mean()), scans)
    )
    return [*rows, *_object_rows(a, b)]


def _names(scan: ScanStatistics) -> dict[str, list[str]]:
    beams = [f"beam {index}" for index in range(len(scan.beams))]
    rings = [f"{low:g} to {high:g} m" for low, high in pairwise(RINGS)]
    return {
        "rings": rings,
        "beams": beams,
        "free": beams,
        "heights": [f"{low:g} to {high:g} m" for low, high in pairwise(HEIGHTS)],
        "voxels": [f"level {index}" for index in range(len(scan.voxels))],
        "spacing": rings,
    }


def _means(a: Sequence[ScanStatistics], b: Sequence[ScanStatistics], name: str) -> list[np.ndarray]:
    """Means over the scans, without NaNs, which stand for values that could not be measured."""
    means = []
    for scans in (a, b):
        values = np.array([getattr(scan, name) for scan in scans], dtype=np.float64)
        count = np.isfinite(values).sum(axis=0)
        means.append(np.where(count > 0, np.nansum(values, axis=0) / np.maximum(count, 1), np.nan))
    return means


def _object_rows(a: Sequence[ScanStatistics], b: Sequence[ScanStatistics]) -> Iterator[FigureRow]:
    sets = [[scan.objects for scan in scans] for scans in (a, b)]
    for name in sorted({name for objects in sets[0] + sets[1] for name in objects.names}):
        for near, far in pairwise(NEAR):
            left, right = (_select(objects, name, near, far) for objects in sets)
            count = len(left), len(right)
            if max(count):
                where = f"{name}, {near:g} to {far:g} m"
                per_scan = count[0] / len(a), count[1] / len(b)
                yield FigureRow("objects per scan", where, *per_scan, count)
                for column, kind in enumerate(("points", "voxels")):
                    means = _mean(left[:, column]), _mean(right[:, column])
                    yield FigureRow(f"{kind} per object", where, *means, count)


def _select(objects: Sequence[ScanObjects], name: str, near: float, far: float) -> np.ndarray:
    """Points and voxels [M, 2] of the objects of a class and ring."""
    rows = [np.zeros((0, 2))]
    for some in objects:
        own = (np.array(some.names) == name) & (some.distance >= near) & (some.distance < far)
        rows.append(np.stack([some.points[own], some.voxels[own]], axis=1))
    return np.concatenate(rows)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def tell_apart(a: Sequence[ScanStatistics], b: Sequence[ScanStatistics]) -> Verdict:
    """Logistic regression on the scans' figures, cross-validated over FOLDS runs of neighbours.

    Neighbours stay together: the scans of a drive resemble each other.
    """
    sides = [np.array([scan.features() for scan in scans]) for scans in (a, b)]
    x = np.concatenate(sides)
    truth = np.repeat([0.0, 1.0], [len(a), len(b)])
    spread = x.std(axis=0) + 1e-6
    apart = np.abs(sides[0].mean(axis=0) - sides[1].mean(axis=0)) / spread
    tables, order = _names(a[0]), ("rings", "beams", "heights", "voxels", "free", "spacing")
    names = ["points", *(f"{table}: {name}" for table in order for name in tables[table])]
    telling = tuple(names[index] for index in np.argsort(-apart)[:5])
    if min(len(a), len(b)) < FOLDS:
        return Verdict(float("nan"), telling)
    fold = np.concatenate([np.arange(len(side)) * FOLDS // len(side) for side in sides])
    right = np.zeros(len(x), dtype=bool)
    for index in range(FOLDS):
        train = fold != index
        middle, scale = x[train].mean(axis=0), x[train].std(axis=0) + 1e-6
        known = truth[train]
        importance = 0.5 / np.where(known > 0.5, known.mean(), 1 - known.mean())  # sides are alike
        weights = logistic((x[train] - middle) / scale, known, importance, PENALTY)
        score = np.append((x - middle) / scale, np.ones((len(x), 1)), axis=1) @ weights
        right[~train] = ((score > 0) == (truth > 0.5))[~train]
    return Verdict(float((right[truth < 0.5].mean() + right[truth > 0.5].mean()) / 2), telling)
