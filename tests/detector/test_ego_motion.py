"""The car's own motion: in a made-up place where the poses are known, and on a real drive."""

import sys

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.simulator import simulate
from millisecond.data.simulator.scenes import make_street
from millisecond.detector.tracking import EgoMotion, Tracker


def walls(rng):
    """Points [P, 3] of a ground and of posts and walls at both sides of a road."""
    ground = np.c_[rng.uniform(-20, 60, 6000), rng.uniform(-15, 15, 6000), np.full(6000, -1.7)]
    parts = [ground]
    for x in range(-20, 60, 4):
        for side in (-1, 1):
            y = side * rng.uniform(6, 12)
            flat = rng.uniform((0, 0, -1.7), (2.5, 0, 1.5), (150, 3))
            turn = rng.choice(
                [[[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [1, 0, 0], [0, 0, 1]]]
            )
            parts.append(flat @ turn + [x, y, 0])
    return np.concatenate(parts)


@pytest.mark.filterwarnings("error:invalid value")
def test_the_poses_of_a_drive_through_a_made_up_place():
    place = walls(np.random.default_rng(0))
    ego = EgoMotion()
    for time in (0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.8, 0.9):  # some scans are missing
        turn = 0.2 * time
        cos, sin = np.cos(turn), np.sin(turn)
        pose = np.array([[cos, -sin, 0, 8 * time], [sin, cos, 0, time], [0, 0, 1, 0], [0, 0, 0, 1]])
        points = (place - pose[:3, 3]) @ pose[:3, :3]
        points = points.astype(np.float32)
        points[:3] = np.nan
        points.view(np.uint32)[3, 0] = 0x7F800001  # a signalling NaN, at which a cast warns
        found = ego(points, time)
        np.testing.assert_allclose(found, pose, atol=0.03)


def test_a_recording_that_begins_fast():
    """Who takes the car to stand at first finds its speed in the fourth scan of this street."""
    seed, times = 800004, 0.1 * np.arange(9)
    speed = make_street(np.random.default_rng(seed)).ego_speed
    scans = [(simulate(seed, time).points, time) for time in times]
    ego = EgoMotion.of_recording(scans)
    places = np.array([ego(*scan)[:3, 3] for scan in scans])
    assert speed > 10
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    np.testing.assert_allclose(steps, 0.1 * speed, rtol=0.15)
    np.testing.assert_allclose(np.linalg.norm(places[-1] - places[0]), 0.8 * speed, rtol=0.03)


def test_a_scan_without_points_is_taken_to_go_on():
    place, ego = walls(np.random.default_rng(1)), EgoMotion()
    for time in (0.0, 0.1, 0.2, 0.3, 0.5):
        found = ego(place - [8 * time, 0, 0] if time < 0.25 else np.zeros((0, 4)), time)
        np.testing.assert_allclose(found[:3, 3], [8 * time, 0, 0], atol=0.05)


def test_times_that_do_not_go_on_are_said():
    ego = EgoMotion()
    ego(walls(np.random.default_rng(2)), 1.0)
    for time in (1.0, 0.5, np.nan):
        with pytest.raises(ValueError, match="is not after 1"):
            ego(np.zeros((0, 4)), time)


def test_without_kiss_icp_one_line_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "kiss_icp.kiss_icp", None)
    with pytest.raises(ValueError, match=r"motion needs kiss-icp \(.*\): pip install kiss-icp$"):
        EgoMotion()


def test_what_is_parked_stands_still_on_a_real_drive(kitti):
    """Frames in which the car drives at 6 m/s past parked cars."""
    drive = KittiDataset(kitti / "sequences" / "2011_09_26_drive_0005_sync", "all")
    ego, tracker, relative = EgoMotion(), Tracker(), Tracker()
    for place in range(124, 144):
        frame, time = drive[place], 0.1 * place
        found = NamedDetections(frame.boxes, np.ones(len(frame.boxes)), frame.names)
        tracks = tracker.update(found, time, ego(frame.points, time))
        others = relative.update(found, time)
    old = tracks.ages > 9
    cars = [row for row in np.flatnonzero(old) if tracks.names[row] == "Car"]
    assert len(cars) >= 5
    speeds = np.linalg.norm(tracks.velocities[cars], axis=1)
    assert (speeds < 0.5).all()
    cyclist = tracks.names.index("Cyclist")
    assert 3 < np.linalg.norm(tracks.velocities[cyclist]) < 9
    assert (np.linalg.norm(others.velocities[cars], axis=1) > 4).all()
