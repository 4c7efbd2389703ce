"""What stands in simulated streets: sizes, boxes, counts, places, and the same on any machine."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.data.boxes import points_in_boxes
from millisecond.data.simulator import RecordedFrame, record
from millisecond.data.simulator.cars import car, van
from millisecond.data.simulator.fast_casting import has_kernels
from millisecond.data.simulator.lidar import default_sensor, scan
from millisecond.data.simulator.lorries import bus, trailer, tram, truck
from millisecond.data.simulator.people import (
    bicycle,
    cyclist,
    motorcyclist,
    pedestrian,
    scooter_rider,
    sitting_person,
    wheelchair_user,
)
from millisecond.data.simulator.scenes import SCENES, make_street
from millisecond.data.simulator.statistics import SIZES, Anywhere
from millisecond.data.simulator.street import WORLD, Placed, Street
from millisecond.ops import overlap_bev
from tests.helpers.meshes import bounds_of, mesh_of
from tests.helpers.world_fingerprint import fingerprint

ROOT = Path(__file__).resolve().parents[2]
MAKERS = {
    "Car": car, "Van": van, "Truck": truck, "Tram": tram, "Pedestrian": pedestrian,
    "Person_sitting": sitting_person, "Cyclist": cyclist,
}  # fmt: skip
# KITTI's labels per frame, and the median distance along the view of a label, metres
PER_FRAME = {"Car": 3.84, "Van": 0.39, "Pedestrian": 0.60, "Cyclist": 0.22}
MEDIAN_DEPTH = {"Car": 25.4, "Van": 32.2, "Pedestrian": 14.7, "Cyclist": 21.6}
VEHICLES = ("Car", "Van", "Truck", "Tram")
ABOVE = ("_gantry", "_bridge")  # they stand beside the road and span it


@cache
def streets() -> tuple[Street, ...]:
    return tuple(make_street(np.random.default_rng(seed)) for seed in range(250))


@cache
def recordings() -> tuple[RecordedFrame, ...]:
    return tuple(record(seed) for seed in range(1000, 1150))


@pytest.mark.parametrize("kind", MAKERS)
def test_sizes_follow_the_labels(kind):
    rng = np.random.default_rng(0)
    drawn = np.array([np.ptp(MAKERS[kind](rng).label_bounds(), axis=0) for _ in range(400)])
    fitted = SIZES[kind]
    spread = np.array(fitted.spread)
    # The limits cut the tails off, and a style of car has a height of its own.
    np.testing.assert_array_less(np.abs(drawn.mean(0) - fitted.mean) / spread, 0.35)
    np.testing.assert_array_less(np.abs(drawn.std(0) / spread - 1), 0.4)
    assert (drawn >= np.array(fitted.low) - 1e-9).all()
    assert (drawn <= np.array(fitted.high) + 1e-9).all()


@pytest.mark.parametrize("kind", MAKERS)
def test_boxes_lie_around_things_as_annotators_draw_them(kind):
    rng = np.random.default_rng(1)
    for _ in range(25):
        thing = MAKERS[kind](rng)
        box, hull = thing.label_bounds(), mesh_of(thing.solids).vertices
        low, high = hull.min(0), hull.max(0)
        if kind in VEHICLES:
            inside = (low[0] - box[0, 0], box[1, 0] - high[0], box[1, 2] - high[2])
            assert min(inside) > 0.0 and max(inside) < 0.12
            body = hull[np.abs(hull[:, 1]) < box[1, 1]]  # the mirrors lie outside
            assert box[1, 1] - body[:, 1].max() < 0.12
            assert 0.03 < box[0, 2] < 0.07  # the ground lies below
        else:
            over = thing.make.args[0].carried == "umbrella"
            assert over or 0.0 < box[1, 2] - high[2] < 0.2
            assert 0 <= box[0, 2] < 0.04


# KITTI's labels of cars, mean length in metres by |heading to the sensor's own|: below 25 degrees,
# within 20 degrees of crossing, above 155 degrees. Their mean width is 1.63 m.
@pytest.mark.parametrize("heading, length", [(0.0, 3.79), (np.pi / 2, 4.06), (np.pi, 3.96)])
def test_labels_leave_out_what_annotators_never_see(heading, length):
    rng = np.random.default_rng(3)
    cars = [Placed(car(rng), 20.0, 4.0, heading) for _ in range(400)]  # ahead, to the left
    whole = np.array([placed.thing.label_bounds() for placed in cars])
    drawn = np.array([placed.label_bounds() for placed in cars])
    size = np.ptp(drawn, axis=1).mean(0)
    assert size[0] == pytest.approx(length, abs=0.1)
    assert size[1] == pytest.approx(1.63, abs=0.03)
    low, high = (drawn != whole).any(0).tolist()
    moved = {  # tail, right side, bottom; nose, left side, top
        0.0: ([False, False, False], [True, True, False]),
        np.pi / 2: ([False, True, False], [False, False, False]),
        np.pi: ([True, True, False], [False, False, False]),
    }
    assert (low, high) == moved[heading]


@pytest.mark.parametrize("heading, end", [(0.0, 0), (np.pi, 1)])
def test_labels_behind_the_sensor_leave_out_the_other_end(heading, end):
    """A car behind that goes the same way shows its nose, one that has passed its tail."""
    placed = Placed(car(np.random.default_rng(3)), -20.0, 4.0, heading)
    moved = np.flatnonzero((placed.label_bounds() != placed.thing.label_bounds())[:, 0])
    assert moved.tolist() == [end]


# Standard deviation of the bottoms of KITTI's labelled cars at most 5 m to the side, by distance.
@pytest.mark.parametrize("low, high, spread", [(8, 15, 0.11), (20, 30, 0.17), (30, 50, 0.28)])
def test_hills_are_those_of_the_labels(low, high, spread):
    heights = []
    for street in streets():
        for placed, (x, y, z, _) in zip(street.placed, street.poses(0.0).tolist(), strict=True):
            if placed.thing.kind == "Car" and low < x < high and abs(y) < 5:
                heights.append(z)
    assert len(heights) > 80
    assert np.std(heights) == pytest.approx(spread, rel=0.35)


def test_roofs_return_pulses():
    """Of real cars seen from behind, 60 to 75 % of those 0.08 to 0.16 m below the box's top."""
    rng, ground = np.random.default_rng(4), streets()[0].ground
    met, width = 0, 0
    for _ in range(40):
        thing, away = car(rng), rng.uniform(10, 20)
        street = Street((Placed(thing, away, 0.0, 0.0),), ground)
        seen = scan(street, 0.0, rng)
        x, y, z = seen.points[seen.owner == 0, :3].T
        columns = np.round(np.degrees(np.arctan2(y, x)) / default_sensor().azimuth_step)
        high = z > street.poses(0.0)[0, 2] + thing.label_bounds()[1, 2] - 0.16
        met, width = met + len(np.unique(columns[high])), width + len(np.unique(columns))
    assert met / width > 0.6  # the roof is not as wide as the car


RIDDEN = (scooter_rider, motorcyclist, wheelchair_user, bicycle)


@pytest.mark.parametrize("make", [*MAKERS.values(), *RIDDEN, bus, trailer])
def test_meshes_are_closed_and_turned_outwards(make):
    rng = np.random.default_rng(2)
    for _ in range(5):
        mesh = mesh_of(make(rng).solids)
        a, b, c = (mesh.vertices[mesh.triangles[:, k]].astype(np.float64) for k in range(3))
        assert (a * np.cross(b, c)).sum() > 0  # six times the volume
        edges = Counter(zip(*np.concatenate([mesh.triangles[:, [k, (k + 1) % 3]] for k in range(3)])
                            .T.tolist(), strict=True))  # fmt: skip
        assert all(edges[v, u] == count for (u, v), count in edges.items())


def test_solids_keep_to_their_extent():
    for street in streets()[:8]:
        for placed in street.placed:
            low, high = bounds_of(placed.thing.solids)
            extent = np.reshape(placed.thing.extent, (2, 3))
            assert (low > extent[0] - 0.02).all() and (high < extent[1] + 0.02).all()


def test_all_scenes_appear():
    shares = Counter(street.scene for street in streets())
    for name, (share, _) in SCENES.items():
        assert shares[name] / len(streets()) == pytest.approx(share, abs=0.12)
    assert sum(share for share, _ in SCENES.values()) == pytest.approx(1)


def _on_the_ground(street: Street, time: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [T, 7] of the ground that everything takes, and which of them have labels."""
    foot = np.array([p.thing.foot for p in street.placed])
    middle, size = (foot[:, :2] + foot[:, 2:]) / 2, foot[:, 2:] - foot[:, :2]
    x, y, z, yaw = street.poses(time).T
    cos, sin = np.cos(yaw), np.sin(yaw)
    x = x + cos * middle[:, 0] - sin * middle[:, 1]
    y = y + sin * middle[:, 0] + cos * middle[:, 1]
    place = np.stack([x, y, z, *size.T, np.ones_like(x), yaw], axis=1)
    makers = (getattr(p.thing.make, "func", p.thing.make) for p in street.placed)
    spans = np.array([make.__name__ in ABOVE for make in makers])
    labelled = np.array([p.thing.kind is not None for p in street.placed])
    return place[~spans], labelled[~spans]


@pytest.mark.parametrize("time", [0.0, 4.0])
def test_nothing_labelled_stands_in_anything(time):
    for street in streets():
        if not street.placed:
            continue
        place, labelled = _on_the_ground(street, time)
        boxes = torch.from_numpy(place.astype(np.float32))
        overlap = overlap_bev(boxes[torch.from_numpy(labelled)], boxes)
        overlap[torch.arange(len(overlap)), torch.from_numpy(np.flatnonzero(labelled))] = 0
        assert not (overlap > 0.02).any(), street.scene


def test_no_scenery_stands_in_the_own_lane():
    for street in streets():
        for placed in street.placed:
            thing = placed.thing
            if thing.kind is None and getattr(thing.make, "func", thing.make).__name__ not in ABOVE:
                reach = np.hypot(*np.abs(np.array(thing.foot).reshape(2, 2)).max(0))
                across = abs(abs(placed.heading) - np.pi / 2) < 0.7  # at the end of the street
                assert across or abs(placed.v) > 1.2 or abs(placed.s) > 12 + reach


@pytest.mark.parametrize("kind", ["Car", "Van", "Pedestrian", "Cyclist"])
def test_counts_and_distances_are_those_of_the_labels_or_a_little_more(kind):
    counts = np.array([r.frame.names.count(kind) for r in recordings()])
    # people are so frequent that a network sees enough of them
    at_most = {"Pedestrian": 9, "Cyclist": 12}.get(kind, 3)
    assert 0.7 * PER_FRAME[kind] < counts.mean() < at_most * PER_FRAME[kind]
    assert (counts == 0).any() and counts.max() > 2
    depth = [b[0] for r in recordings() for b, n in zip(r.frame.boxes, r.frame.names, strict=True)
             if n == kind]  # fmt: skip
    assert np.median(depth) == pytest.approx(MEDIAN_DEPTH[kind], rel=0.35)


def test_boxes_hold_the_points_of_their_things():
    held = []
    for recording in recordings()[:30]:
        frame = recording.frame
        if len(frame.boxes):
            inside = points_in_boxes(frame.points, frame.boxes).sum(1)
            wider = frame.boxes + np.array([0, 0, 0, 0.3, 0.3, 0.3, 0], dtype=np.float32)
            held += ((inside + 3) / (points_in_boxes(frame.points, wider).sum(1) + 3)).tolist()
    assert np.median(held) > 0.8  # the rest is ground, and the noise of range


# by version of the world, see data/simulator/street.py
STREETS = {17: "4b17356846b7aa2f88ffbba1bff4e2c0e74eaaa1729b8957acd975a384995fbf"}


@pytest.mark.parametrize("kernels", [True, False])
def test_streets_are_those_of_their_version(kernels, monkeypatch):
    """Where they should be others, raise WORLD and write the new hash down."""
    if kernels and not has_kernels():
        pytest.skip("no C++ compiler")
    monkeypatch.setattr("millisecond.data.simulator.casting.has_kernels", lambda: kernels)
    assert fingerprint() == STREETS[WORLD]


def test_a_processor_without_vector_instructions_makes_the_same_streets():
    from numpy._core._multiarray_umath import __cpu_dispatch__

    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.world_fingerprint"]
    found = subprocess.run(
        command, env={**os.environ, **plain}, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == STREETS[WORLD]


def test_streets_anywhere_have_large_cars_and_people_far_away():
    """KITTI's labels have no car longer than the limit of its sizes, and few people at 40 m."""
    longest, shares = SIZES["Car"].high[0], {}
    for place in (np.random.Generator, Anywhere):
        streets = [make_street(place(np.random.PCG64(seed))) for seed in range(60)]
        placed = [one for street in streets for one in street.placed]
        cars = [np.diff(one.thing.box[::3])[0] for one in placed if one.thing.kind == "Car"]
        people = [abs(one.s) > 40 for one in placed if one.thing.kind == "Pedestrian"]
        shares[place] = np.mean(np.array(cars) > longest + 0.01), np.mean(people)
    (long, far), (long_anywhere, far_anywhere) = shares.values()
    assert long == 0 and long_anywhere > 0.03
    assert far_anywhere > 3 * far
