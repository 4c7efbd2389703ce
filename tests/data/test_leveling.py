"""The ground below any sensor is found and clouds levelled by it; scans unlike KITTI's are told."""

import math
import warnings

import numpy as np
import pytest
import torch

from millisecond.data.boxes import points_in_boxes
from millisecond.data.checks.ground import GroundPlane, ground_of, plane_of
from millisecond.data.checks.leveling import (
    SCANS,
    Leveling,
    Placement,
    full_of,
    leveled,
    unlike_kitti,
)
from millisecond.data.checks.sensor import Mounting
from millisecond.data.formats.clouds import read_points, read_scan
from millisecond.data.simulator import simulate
from millisecond.data.simulator.sensors import AnySensor, Sensor, VariedKitti, find_sensor
from millisecond.ops.transfer import UNMOVED
from tests.helpers.moves import placement_of

SEEDS = range(16)


@pytest.fixture(scope="module")
def scans():
    """Streets, each scanned by another sensor."""
    return [simulate(seed, sensor=AnySensor(), crop=False) for seed in SEEDS]


def test_the_ground_lies_where_the_simulated_plane_says():
    heights, tilts = [], []
    for seed in SEEDS:
        # not of any sensor: in hills the plane nearest to 30 m of ground does not touch it
        frame = simulate(seed, sensor=AnySensor().of_street(seed), crop=False)
        found = ground_of(torch.from_numpy(frame.points))
        assert isinstance(found, GroundPlane), frame.frame_id
        normal = frame.plane[:3] / np.linalg.norm(frame.plane[:3])
        own = np.array([-found.slope_x, -found.slope_y, 1.0])
        heights.append(abs(found.height - frame.plane[3] / np.linalg.norm(frame.plane[:3])))
        tilts.append(math.degrees(math.acos(min(1.0, own @ normal / np.linalg.norm(own)))))
    assert np.median(heights) < 0.06 and max(heights) < 0.3
    *tilts, steepest = sorted(tilts)  # one street may look otherwise from where its sensor stands
    assert np.median(tilts) < 0.4 and max(tilts) < 1.25 and steepest < 4


def test_levelled_boxes_hold_the_same_points(scans):
    for frame in [scan for scan in scans if len(scan.boxes)][:10]:
        level, mounting = leveled(frame)
        before = points_in_boxes(frame.points, frame.boxes).sum(axis=1)
        after = points_in_boxes(level.points, level.boxes).sum(axis=1)
        # a tilted box is not upright: a few points at its faces change sides
        assert (np.abs(before - after) <= 2 + 0.25 * np.maximum(before, after)).mean() > 0.8
        back = mounting.boxes_from_network(level.boxes)
        np.testing.assert_allclose(back[:, :6], frame.boxes[:, :6], atol=1e-3)
        assert ground_of(torch.from_numpy(level.points)).height == pytest.approx(1.73, abs=0.1)


def test_points_beyond_all_bounds_do_not_move_the_ground(scans):
    points, largest = scans[0].points, np.finfo(np.float32).max
    wild = points[:300].copy()
    wild[:100, 0], wild[100:200, 1], wild[200:250, 2] = largest, -largest, -largest
    wild[250:] = math.inf, -math.inf, math.nan, 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ground_of(torch.from_numpy(np.concatenate([points[300:], wild])))
    assert found == ground_of(torch.from_numpy(points[300:]))


def test_what_has_no_ground_is_told_and_left():
    points = simulate(3, crop=False).points
    turned = Mounting(slopes=(math.tan(math.radians(30)), 0)).to_network(points)
    rng = np.random.default_rng(0)
    room = rng.uniform(-10, 10, (20000, 4)).astype(np.float32)
    for cloud, said in ((turned, "tilted by"), (room, "z = -"), (points[:20], "m2")):
        leveling = Leveling()
        level = leveling(torch.from_numpy(cloud))
        assert not level.mounting
        assert leveling.now.doubt and "\n" not in leveling.now.doubt
        assert said in leveling.now.doubt, leveling.now.doubt


@pytest.mark.parametrize("high", [0.3, 0.8])
def test_a_ground_that_was_cut_away_is_told(scans, high):
    """Of most scans; where nothing is cut the ground is found in all."""
    told = []
    for frame in scans:
        fit = plane_of(torch.from_numpy(frame.points))
        found = ground_of(torch.from_numpy(frame.points[fit.above(frame.points) > high]))
        told.append(isinstance(found, str))
    assert np.mean(told) > 0.5
    assert all(isinstance(ground_of(torch.from_numpy(one.points)), GroundPlane) for one in scans)


@pytest.mark.parametrize("spread", [0.1, 0.2, 0.3])
def test_grass_is_no_cut(spread):
    """Points of the ground that end at one height and reach up from there."""
    points = simulate(3, sensor=find_sensor("hdl-64e"), crop=False).points
    on = np.abs(plane_of(torch.from_numpy(points)).above(points)) < 0.15
    grass = points.copy()
    grass[on, 2] += np.random.default_rng(0).uniform(0, spread, on.sum()).astype(np.float32)
    assert ground_of(torch.from_numpy(grass)).height == pytest.approx(1.73 - spread / 2, abs=0.1)


@pytest.mark.parametrize("scale", [1.0, 255.0, 65535.0])
def test_intensities_of_any_scale_become_the_same(scale):
    frame = simulate(5, crop=False)
    points = torch.from_numpy(frame.points)
    other = points * torch.tensor([1, 1, 1, scale])
    level, wanted = Leveling()(other)(other), Leveling()(points)(points)
    torch.testing.assert_close(level, wanted, rtol=1e-4, atol=1e-4)
    assert 0.3 < wanted[:, 3].quantile(0.95) < 0.7


def test_constant_intensities_are_none():
    points = torch.from_numpy(simulate(5, crop=False).points)
    for constant in (0.0, 0.2, 255.0):
        flat = points.clone()
        flat[:, 3] = constant
        assert full_of(flat[:, 3]) == math.inf
        assert not Leveling()(flat)(flat)[:, 3].any()


def test_a_recording_settles_and_another_sensor_begins_anew():
    low, high = (Sensor(tuple(range(-24, 4)), 0.4, height) for height in (1.0, 2.4))
    leveling = Leveling()
    drive = [torch.from_numpy(simulate(7, t / 10, low, False).points) for t in range(SCANS + 2)]
    levels = [leveling(points) for points in drive]
    assert levels[-1] is levels[-2] and levels[-1].mounting.shift_z == pytest.approx(
        -0.73, abs=0.15
    )
    other = leveling(torch.from_numpy(simulate(7, 0, high, False).points))
    assert other.mounting.shift_z == pytest.approx(0.67, abs=0.2)


@pytest.mark.parametrize("turned", [Mounting(slopes=(0.03, 0.0)), Mounting(shift_z=0.2)])
def test_scans_that_do_not_follow_one_another_are_levelled_by_themselves(turned):
    """Also where the difference is so small that the ground seems to be where it was."""
    points = torch.from_numpy(simulate(4, crop=False).points)
    other = turned.from_network(points)
    leveling = Leveling()
    leveling(points)
    assert leveling(other).mounting == Leveling()(other).mounting
    assert not leveling.now.doubt


def test_a_doubt_ends_with_a_scan_that_has_a_ground():
    leveling = Leveling()
    leveling(torch.rand(2000, 4))
    assert leveling.now.doubt
    leveling(torch.from_numpy(simulate(4, crop=False).points))
    assert not leveling.now.doubt


def test_a_placement_moves_points_as_its_mounting_does():
    """To the last bit, and the intensities by the placement's own factor."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        points = torch.from_numpy(rng.normal(0, 30, (500, 5)).astype(np.float32))
        placement = placement_of(rng)
        moved, mounting = placement(points), placement.mounting
        assert torch.equal(moved[:, :3], mounting.to_network(points)[:, :3])
        np.testing.assert_array_equal(moved[:, :3], mounting.to_network(points.numpy())[:, :3])
        wanted = points[:, 3] / placement.full
        torch.testing.assert_close(moved[:, 3], wanted, rtol=2.0**-22, atol=0)
        assert torch.equal(moved[:, 4], points[:, 4])
    assert Placement(Mounting()).move == list(UNMOVED)


def test_the_users_mounting_holds():
    points = torch.from_numpy(simulate(4, crop=False).points)
    assert Leveling(Mounting(shift_z=0.4))(points).mounting == Mounting(shift_z=0.4)
    assert Leveling(Mounting(turn=90))(points).mounting.turn == 90


def test_drawn_sensors_are_of_all_kinds_and_the_same_for_a_seed():
    drawn = [AnySensor().of_street(seed) for seed in range(400)]
    assert drawn == [AnySensor().of_street(seed) for seed in range(400)]
    assert 0.4 < np.mean([sensor.intensity for sensor in drawn]) < 0.6
    assert 0.15 < np.mean([sensor.field_of_view < 360 for sensor in drawn]) < 0.35
    assert any(len(set(sensor.laser_heights)) == 2 for sensor in drawn)
    assert any(sensor.rosette for sensor in drawn)
    heights, tilts = [s.height for s in drawn], [abs(t) for s in drawn for t in s.tilt]
    assert min(heights) < 0.6 and max(heights) > 3.2 and 4.5 < max(tilts) <= 5
    assert all(16 <= len(sensor.elevations) <= 128 for sensor in drawn)


def test_kittis_sensor_varies_from_street_to_street_in_hills_and_out_of_them():
    varied = VariedKitti()
    for seed in range(8):
        sensor = varied.of_street(seed)
        assert sensor == varied.of_street(seed) and len(sensor.elevations) == 64
        assert abs(sensor.height - find_sensor("hdl-64e").height) <= varied.height
        frame, level = (simulate(seed, sensor=s) for s in (varied, sensor))
        assert np.array_equal(frame.points, level.points) != varied.in_hills(seed)
    assert len({varied.of_street(seed).pitch for seed in range(8)}) == 8
    assert 150 < sum(map(varied.in_hills, range(400))) < 250


def test_scans_of_kittis_sensor_are_like_kittis():
    for seed in range(8):
        frame = simulate(seed)
        assert unlike_kitti(torch.from_numpy(frame.points)) == ""
    other = [
        unlike_kitti(torch.from_numpy(simulate(s, sensor=AnySensor(), crop=False).points))
        for s in SEEDS
    ]
    assert np.mean([bool(why) for why in other]) > 0.8


def test_what_surrounds_a_sensor_closely_is_unlike_kittis():
    """What a sensor gives for rays without an echo, at its own place, tells nothing."""
    points = simulate(1).points
    near = points * np.float32([0.1, 0.1, 0.1, 1])
    assert "within 3 m" in unlike_kitti(torch.from_numpy(near))
    for few in (points[::50], points * np.float32(0), points * np.float32(math.nan), points[:0]):
        assert unlike_kitti(torch.from_numpy(few)) is None
    for empty in (0 * points, points * np.float32(math.nan), np.full_like(points, 3e38)):
        many = np.concatenate([points, *[empty] * 4])
        assert unlike_kitti(torch.from_numpy(many)) == ""
    thin = np.concatenate([points[::4], *[0 * points] * 4])
    assert "points per degree" in unlike_kitti(torch.from_numpy(thin))


def test_real_frames_of_kitti_are_like_kittis(kitti):
    for path in sorted(kitti.glob("training/velodyne/*.bin")):
        points = torch.from_numpy(read_points(path))
        found = ground_of(points)
        assert unlike_kitti(points) == ""
        assert found.height == pytest.approx(1.73, abs=0.15), path


def test_real_frames_of_other_sensors(sensors):
    """nuScenes' sensor is 1.84 m above the ground; Argoverse's axle is a third of a metre above."""
    (path,) = (sensors / "nuscenes").glob("*.bin")
    points = torch.from_numpy(np.fromfile(path, "<f4").reshape(-1, 5)[:, :4].copy())
    assert ground_of(points).height == pytest.approx(1.84, abs=0.08) and unlike_kitti(points)
    for path in sorted((sensors / "other" / "argoverse2").glob("*.npy")):
        points = torch.from_numpy(np.load(path))
        assert ground_of(points).height == pytest.approx(0.33, abs=0.05) and unlike_kitti(points)
    for path in sorted(sensors.glob("hesai_*/*.pcd")):  # in a room
        assert "within 3 m" in unlike_kitti(torch.from_numpy(read_scan(path)))
