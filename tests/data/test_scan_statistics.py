"""Figures of scans against loops over their points, and the classifier against what must be so."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from millisecond.data.checks.comparison import (
    HEIGHTS,
    RINGS,
    Measure,
    compare,
    nearest_beam,
    spacing_per_ring,
    tell_apart,
)
from millisecond.data.frame import Frame
from millisecond.data.simulator.sensors import Sensor, find_sensor
from millisecond.ops.geometry import ConvGeometry
from millisecond.ops.voxelize import VoxelGrid

GRID = VoxelGrid((0, -8, -3, 16, 8, 1), (0.5, 0.5, 0.5))
DOWN = ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1))
SENSOR = Sensor(elevations=(-20, -10, -5, 0, 3), azimuth_step=1.0, height=1.8, field_of_view=90)


def _frame(seed: int, points: int = 400) -> Frame:
    rng = np.random.default_rng(seed)
    cloud = rng.uniform((0.5, -8, -2.2, 0), (15, 8, 1, 1), (points, 4)).astype(np.float32)
    boxes = np.array([[5, 1, -1, 4, 2, 1.5, 0.7], [12, -4, -1, 2, 2, 2, -2]], dtype=np.float32)
    return Frame("0", cloud, boxes, ("Car", "Van"), np.zeros(2, np.int8))


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_loop(seed):
    frame = _frame(seed)
    rings, heights = [0] * (len(RINGS) - 1), [0] * (len(HEIGHTS) - 1)
    returned = [0] * 5
    for x, y, z in frame.points[:, :3].tolist():
        away = math.hypot(x, y)
        rings[next(i for i in range(9) if RINGS[i] <= away < RINGS[i + 1])] += 1
        above = z + 1.8
        heights[next(i for i in range(10) if HEIGHTS[i] <= above < HEIGHTS[i + 1])] += 1
        elevation = math.degrees(math.atan2(z, away))
        beam = min(range(5), key=lambda b: abs(SENSOR.elevations[b] - elevation))
        returned[beam] += abs(math.degrees(math.atan2(y, x))) < 38
    seen = Measure(SENSOR, GRID, [DOWN])(frame)
    assert seen.rings.tolist() == rings and seen.heights.tolist() == heights
    np.testing.assert_allclose(seen.free, [max(0, 1 - n / 76) for n in returned])
    assert seen.points == sum(rings) == seen.beams.sum()
    low = replace(frame, points=frame.points - np.float32((0, 0, 9, 0)))  # below the last beams
    assert Measure(SENSOR, GRID, [DOWN])(low).beams.tolist() == [400, 0, 0, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_voxels_are_the_cells_that_windows_touch(seed):
    frame = _frame(seed, 60)
    cells = {tuple(c) for c in ((frame.points[:, :3] - (0, -8, -3)) // 0.5).astype(int).tolist()}
    # output o of a convolution of 3 cells, every second, reads the inputs 2 o - 1 to 2 o + 1
    touched = {
        tuple((c + step) // 2 for c, step in zip(cell, steps, strict=True))
        for cell in cells
        for steps in product((-1, 0, 1), repeat=3)
        if all((c + step) % 2 == 0 and c + step >= 0 for c, step in zip(cell, steps, strict=True))
    }
    inside = {(x, y, z) for x, y, z in touched if x < 16 and y < 16 and z < 5}
    seen = Measure(SENSOR, GRID, [DOWN])(frame)
    assert seen.voxels.tolist() == [len(cells), len(inside)]


def test_objects_have_the_points_in_their_boxes():
    frame = _frame(5, 3000)
    found = Measure(SENSOR, GRID, [])(frame).objects
    for box, points, voxels in zip(frame.boxes, found.points, found.voxels, strict=True):
        x, y, z, length, width, height, yaw = box.tolist()
        inside = [
            (u, v, w)
            for u, v, w in frame.points[:, :3].tolist()
            if abs((u - x) * math.cos(yaw) + (v - y) * math.sin(yaw)) < length / 2
            and abs((v - y) * math.cos(yaw) - (u - x) * math.sin(yaw)) < width / 2
            and abs(w - z) < height / 2
        ]
        assert points == len(inside) > 20
        assert voxels == len({tuple(math.floor(c / 0.5) for c in point) for point in inside})
    np.testing.assert_allclose(found.distance, [math.hypot(5, 1), math.hypot(12, 4)], rtol=1e-6)


def test_spacing_is_that_of_all_pairs():
    points = _frame(7, 700).points[:, :3].astype(np.float64)
    points[::100] += (25, 0, 0)  # few in their rings
    distance = np.hypot(points[:, 0], points[:, 1])
    every = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag([np.inf] * 700)
    ring = np.digitize(distance, RINGS) - 1
    expected = [
        np.median(every.min(1)[ring == i]) if (ring == i).sum() >= 20 else np.nan for i in range(9)
    ]
    np.testing.assert_allclose(spacing_per_ring(points, distance), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["hdl-64e", "vlp-16"])
def test_points_of_a_beam_are_known_by_its_laser(name):
    sensor = find_sensor(name)
    rng = np.random.default_rng(0)
    beam = rng.integers(len(sensor.elevations), size=500)
    elevation = np.radians(sensor.elevations)[beam]
    away, azimuth = rng.uniform(4, 60, 500), rng.uniform(-3, 3, 500)
    points = np.stack([away * np.cos(azimuth), away * np.sin(azimuth)], axis=1)
    z = away * np.tan(elevation) + np.array(sensor.laser_heights)[beam]
    found = nearest_beam(np.column_stack([points, z]), sensor)
    # where lasers of both blocks see a point equally well, either is right
    assert (found == beam).mean() > (0.97 if name == "hdl-64e" else 0.999)
    z += rng.normal(0, 0.3, 500)  # between the beams too
    seen = np.degrees(np.arctan2(z[:, None] - sensor.laser_heights, away[:, None]))
    off = np.abs(seen - sensor.elevations)
    found = nearest_beam(np.column_stack([points, z]), sensor)
    np.testing.assert_allclose(off[range(500), found], off.min(axis=1), atol=1e-9)


def _scans(seeds, more: int = 0):
    measure = Measure(SENSOR, GRID, [DOWN])
    return [measure(_frame(seed, 300 + more + seed % 7)) for seed in seeds]


def test_a_classifier_guesses_among_equals_and_knows_others():
    same = tell_apart(_scans(range(40)), _scans(range(100, 140)))
    assert 0.25 < same.accuracy < 0.75
    other = tell_apart(_scans(range(40)), _scans(range(100, 130), more=300))
    assert other.accuracy > 0.95
    assert math.isnan(tell_apart(_scans(range(3)), _scans(range(40))).accuracy)


def test_a_classifier_does_not_know_a_scan_by_its_neighbours():
    """Five drives of eight equal scans: each is told by the four others."""
    a, b = (_scans(np.repeat(range(first, first + 5), 8)) for first in (0, 100))
    assert tell_apart(a, b).accuracy < 0.8


def test_the_figures_that_differ_most_are_told_first():
    a = _scans(range(6))
    fewer = [scan._replace(beams=scan.beams - 20 * (np.arange(5) == 3)) for scan in a]
    more = [scan._replace(spacing=scan.spacing + 5 * (np.arange(9) == 1)) for scan in a]
    assert tell_apart(a, fewer).telling[0] == "beams: beam 3"
    assert tell_apart(a, more).telling[0] == "spacing: 5 to 10 m"


def test_rows_are_means_per_scan():
    a, b = _scans(range(4)), _scans(range(6), more=100)
    rows = {(row.table, row.name): row for row in compare(a, b)}
    row = rows["scan", "points"]
    assert row.a == pytest.approx(np.mean([scan.points for scan in a]))
    assert row.ratio == pytest.approx(np.mean([scan.points for scan in b]) / row.a)
    assert rows["objects per scan", "Car, 0 to 10 m"].a == 1
    car = rows["points per object", "Car, 0 to 10 m"]
    assert car.b == pytest.approx(np.mean([scan.objects.points[0] for scan in b]))
    assert car.behind == (4, 6)


@pytest.mark.filterwarnings("ignore:Mean of empty slice")  # of rings without a spacing
def test_what_a_scan_could_not_measure_is_in_no_mean():
    cropped = [scan._replace(free=scan.free.clip(np.eye(5)[0])) for scan in _scans(range(10))]
    a, b = cropped[:4], cropped[4:]
    gone = b[0].objects._replace(names=("Tram", "Van"))
    b[0] = b[0]._replace(spacing=np.full(9, np.nan), free=np.ones(5), objects=gone)
    rows = {(row.table, row.name): row for row in compare(a, b)}
    for table in ("rings", "beams", "free", "heights", "voxels", "spacing"):
        found = [(row.a, row.b) for (one, _), row in rows.items() if one == table]
        means = [np.nanmean([getattr(scan, table) for scan in scans], axis=0) for scans in (a, b)]
        np.testing.assert_allclose(found, np.transpose(means))
    free = np.mean([scan.free[1:] for scan in b])  # the first beam is not in the crop
    assert rows["scan", "free rays"].b == pytest.approx(free)
    tram = rows["points per object", "Tram, 0 to 10 m"]
    assert math.isnan(tram.a) and tram.b == b[0].objects.points[0] and tram.behind == (0, 1)
    assert rows["objects per scan", "Tram, 0 to 10 m"][2:4] == (0, pytest.approx(1 / 6))
