"""Tracks through detections: made-up scenes whose answers are known."""

import copy
import itertools
import sys

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.detector.tracking import Tracker, tracker
from millisecond.detector.tracking.tracker import (
    NOISE,
    VELOCITY_NOISE,
    Estimates,
    assign,
    distances,
)

CAR, PEDESTRIAN = (4.0, 1.8, 1.5), (0.8, 0.6, 1.7)


def box(x, y, yaw=0.0, size=CAR):
    return [x, y, -0.8, *size, yaw]


def scan(*boxes, names=None, scores=None):
    count = len(boxes)
    return NamedDetections(
        np.array(boxes, np.float64).reshape(-1, 7),
        np.array([0.9] * count if scores is None else scores),
        tuple(["Car"] * count if names is None else names),
    )


def pose(x, y, turn):
    cos, sin = np.cos(turn), np.sin(turn)
    return np.array([[cos, -sin, 0, x], [sin, cos, 0, y], [0, 0, 1, 0.5], [0, 0, 0, 1]])


def random_scenes(seed, scans=25):
    """Detections per scan of a dozen objects with noise, misses and false positives."""
    rng = np.random.default_rng(seed)
    start, speed = rng.uniform(-25, 25, (12, 2)), rng.normal(0, 5, (12, 2))
    yaw = np.arctan2(speed[:, 1], speed[:, 0])
    kinds = np.array(["Car", "Pedestrian", "Cyclist"])[np.arange(12) % 3]
    scenes = []
    for number in range(scans):
        places = start + 0.1 * number * speed + rng.normal(0, 0.1, (12, 2))
        seen = np.flatnonzero(rng.uniform(size=12) > 0.15)
        boxes = [box(*places[i], yaw[i]) for i in seen]
        boxes += [box(*rng.uniform(-25, 25, 2), rng.uniform(-3, 3)) for _ in range(2)]
        names = [*kinds[seen].tolist(), "Car", "Pedestrian"]
        # one decimal: many scores are equal
        scenes.append(scan(*boxes, names=names, scores=rng.uniform(0.2, 1, len(boxes)).round(1)))
    return scenes


def test_an_object_of_constant_velocity_is_one_track_with_that_velocity():
    tracker, velocity = Tracker(), np.array([7.0, -3.0])
    times = np.cumsum(np.random.default_rng(0).uniform(0.05, 0.3, 40))  # no even rate
    for number, time in enumerate(times):
        place = [1, 2] + velocity * time
        tracks = tracker.update(scan(box(*place, yaw=-0.4)), time)
        assert tracks.ids.tolist() == ([] if number == 0 else [1])
        if number:
            assert tracks.ages.tolist() == [number] and tracks.names == ("Car",)
    np.testing.assert_allclose(tracks.velocities[0], velocity, atol=0.02)
    np.testing.assert_allclose(tracks.boxes[0], box(*place, yaw=-0.4), atol=0.02)
    assert tracks.ids.dtype == tracks.ages.dtype == np.int64


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_detections_has_no_effect(seed):
    rng, one, other = np.random.default_rng(seed), Tracker(), Tracker()
    for number, found in enumerate(random_scenes(seed)):
        mixed = found.select(rng.permutation(len(found.scores)))
        a, b = one.update(found, 0.1 * number), other.update(mixed, 0.1 * number)
        for left, right in zip(a, b, strict=True):
            np.testing.assert_array_equal(left, right)
    assert len(a.ids) > 5


@pytest.mark.parametrize("size", [CAR, PEDESTRIAN], ids=["cars", "pedestrians"])
def test_two_that_cross_keep_their_ids(size):
    tracker, speed = Tracker(), 8.0 if size is CAR else 1.5
    gap = size[1] + 0.3  # between their lanes
    for number in range(61):
        way = speed * (0.1 * number - 3)
        found = scan(box(20 + way, 0, 0.0, size), box(20 - way, gap, np.pi, size))
        tracks = tracker.update(found, 0.1 * number)
        if number:
            assert tracks.ids.tolist() == [1, 2]
            assert (tracks.velocities[:, 0] > 0).tolist() == [True, False]
            np.testing.assert_allclose(tracks.boxes[:, 1], [0, gap], atol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_of_the_world_changes_nothing(seed):
    """Poses from another origin, turned: same ids, boxes and velocities in the LiDAR frame."""
    one, other, elsewhere = Tracker(), Tracker(), pose(300.0, -80.0, 2.0)
    for number, found in enumerate(random_scenes(seed)):
        ego = pose(0.5 * number, 0.1 * number, 0.02 * number)
        a = one.update(found, 0.1 * number, ego)
        b = other.update(found, 0.1 * number, elsewhere @ ego)
        assert a.ids.tolist() == b.ids.tolist() and a.names == b.names
        np.testing.assert_allclose(a.boxes[:, :6], b.boxes[:, :6], atol=1e-8)
        np.testing.assert_allclose(wrap_angle(a.boxes[:, 6] - b.boxes[:, 6]), 0, atol=1e-8)
        np.testing.assert_allclose(a.velocities, b.velocities, atol=1e-8)
    assert len(a.ids) > 5


def test_with_poses_velocities_are_over_ground():
    """A parked car and one that overtakes, seen from a car that drives a curve."""
    with_poses, without = Tracker(), Tracker()
    for number in range(40):
        time = 0.1 * number
        ego = pose(6 * time, 0.2 * time**2, 0.1 * time)
        back = np.linalg.inv(ego)
        boxes = []
        for x, y in ((30.0, 5.0), (40 + 14 * time, -4.0)):
            place = back @ [x, y, 0, 1]
            boxes.append(box(place[0], place[1], -0.1 * time))
        tracks = with_poses.update(scan(*boxes), time, ego)
        relative = without.update(scan(*boxes), time)
    turn = back[:2, :2]
    assert tracks.ids.tolist() == relative.ids.tolist() == [1, 2]
    np.testing.assert_allclose(tracks.velocities[0], [0, 0], atol=0.02)
    np.testing.assert_allclose(tracks.velocities[1], turn @ [14, 0], atol=0.05)
    np.testing.assert_allclose(tracks.boxes, boxes, atol=0.05)
    assert np.linalg.norm(relative.velocities[0]) > 5  # the sensor's own motion


def test_a_fast_car_is_found_again_along_its_heading_but_not_beside():
    """3 m in a tenth of a second: 30 m/s. The same step sideways is another car."""
    for yaw, expected in ((0.0, 1), (np.pi, 1), (np.pi / 2, 0)):
        tracker = Tracker()
        for number in range(2):
            tracks = tracker.update(scan(box(3.0 * number, 0, yaw)), 0.1 * number)
        assert len(tracks.ids) == expected


def test_headings_that_flip_are_decided_by_the_majority():
    rng, tracker = np.random.default_rng(3), Tracker()
    wrong = rng.uniform(size=60) < 0.2
    wrong[:1] = True  # also the first
    for number in range(60):
        yaw = 0.7 + np.pi * wrong[number]
        tracks = tracker.update(scan(box(0.5 * number, 0.4 * number, yaw)), 0.1 * number)
        if number:  # along one line, never across
            assert abs(wrap_angle(2 * (tracks.boxes[0, 6] - 0.7))) < 0.05
        if number > 8:
            assert abs(wrap_angle(tracks.boxes[0, 6] - 0.7)) < 0.05
    assert tracks.ids.tolist() == [1]


def test_an_object_that_really_turns_round_is_followed():
    tracker = Tracker()
    for number in range(60):
        yaw = 0.1 * number  # one radian per second, almost a full turn
        tracks = tracker.update(scan(box(10, 0, yaw)), 0.1 * number)
    assert tracks.ids.tolist() == [1]
    assert abs(wrap_angle(tracks.boxes[0, 6] - yaw)) < 0.3


def test_classes_do_not_mix():
    tracker = Tracker()
    for number in range(6):  # a car and a van, and after two scans each is where the other was
        names = ["Car", "Van"] if number < 2 else ["Van", "Car"]
        tracks = tracker.update(scan(box(10, 0), box(10, 1), names=names), 0.1 * number)
        assert number == 0 or tracks.names == ("Car", "Van")
    assert tracks.ids.tolist() == [1, 2] and tracks.boxes[0, 1] > tracks.boxes[1, 1] + 0.5


def test_weak_detections_continue_a_track_but_begin_none():
    tracker = Tracker(birth_score=0.5)
    for number in range(6):
        score = 0.9 if number < 3 else 0.2
        found = scan(box(number, 0), box(number, 30), scores=[score, 0.4])
        tracks = tracker.update(found, 0.1 * number)
    assert tracks.ids.tolist() == [1] and tracks.scores.tolist() == [0.2]
    assert tracks.boxes[0, 0] == pytest.approx(5, abs=0.1)
    for score, goes_on in ((0.1, True), (0.09, False)):  # a fifth of birth_score, and less
        after = copy.deepcopy(tracker).update(scan(box(6, 0), scores=[score]), 0.6)
        assert (after.scores.tolist() == [score]) == goes_on


def test_a_detection_continues_one_track_and_a_track_takes_one_detection():
    """A strong detection before a weak one beside it; an object that was seen beside the track once
    is not seen again where the track is."""
    tracker = Tracker()
    tracker.update(scan(box(10, 0)), 0.0)
    tracker.update(scan(box(10, 0), box(10, 1)), 0.1)
    tracks = tracker.update(scan(box(10, 0), box(10, 1), scores=[0.9, 0.3]), 0.2)
    assert tracks.ids.tolist() == [1] and tracks.scores.tolist() == [0.9]
    assert abs(tracks.boxes[0, 1]) < 0.01


def test_a_track_does_not_live_on_weak_detections_alone():
    tracker = Tracker(max_gap=1.0)
    for number in range(30):
        found = scan(box(10, 0), scores=[0.9 if number < 5 else 0.3])
        tracks = tracker.update(found, 0.1 * number + 0.001)
        assert tracks.ids.tolist() == ([1] if 1 <= number <= 14 else [])


def test_births_gaps_and_deaths():
    tracker = Tracker(confirm=3, max_gap=0.5, coast=0.25)
    here = scan(box(10, 0))
    seen = []
    for number in range(40):
        present = number < 3 or 4 <= number < 10 or 13 <= number < 15 or number >= 25
        tracks = tracker.update(here if present else scan(), 0.1 * number)
        seen.append(tracks.ids.tolist())
    assert seen[:2] == [[], []]  # not confirmed
    assert seen[2:12] == [[1]] * 10  # over a missed scan, and 0.2 s after the last
    assert seen[12] == []  # longer ago than it is reported
    assert seen[13:17] == [[1]] * 4  # found again within half a second
    assert seen[17:27] == [[]] * 10  # over; begins anew at 25
    assert seen[27:] == [[2]] * 13  # an id is never used again
    assert tracks.ages.tolist() == [14]


def test_a_track_that_is_not_confirmed_ends_when_it_is_missed():
    tracker = Tracker()
    for number in range(10):
        found = scan(box(10, 0)) if number % 2 else scan()
        assert not len(tracker.update(found, 0.1 * number).ids)


def test_after_a_long_break_nothing_is_matched():
    tracker = Tracker(max_gap=1.0)
    for time in (0.0, 0.1, 0.2):
        tracker.update(scan(box(10, 0)), time)
    tracker.update(scan(box(10, 0)), 1000.0)
    assert tracker.update(scan(box(10, 0)), 1000.1).ids.tolist() == [2]


def test_scans_without_detections():
    tracker = Tracker()
    for number in range(3):
        tracks = tracker.update(scan(), 0.1 * number)
        assert tracks.boxes.shape == (0, 7) and tracks.velocities.shape == (0, 2)
        assert tracks.names == () and len(tracks.ids) == len(tracks.scores) == 0


@pytest.mark.parametrize(
    ("time", "found", "where", "word"),
    [
        (0.2, scan(), None, "time 0.2 is not after 0.2"),
        (0.1, scan(), None, "time 0.1 is not after 0.2"),
        (np.nan, scan(), None, "time nan"),
        (0.3, scan(box(np.nan, 0)), None, "detection 0 has box"),
        (0.3, scan(box(1, 0), box(9, 0), scores=[1, np.inf]), None, "detection 1 has box"),
        (0.3, scan(box(1, 0, size=(4, 0, 1))), None, "sizes above 0"),
        (0.3, scan(box(1, 0), names=["Car", "Van"]), None, "do not fit together"),
        (0.3, scan(), np.eye(4), "for none"),
        (0.3, scan()._replace(boxes=np.ma.zeros((0, 7))), None, "boxes: a masked array"),
        (0.3, scan()._replace(scores=np.ma.zeros(0)), None, "scores: a masked array"),
    ],
)
def test_bad_input_is_said_and_changes_nothing(time, found, where, word):
    tracker, twin = Tracker(), Tracker()
    for each in (tracker, twin):
        for number in range(3):
            each.update(scan(box(number, 0)), 0.1 * number)
    with pytest.raises(ValueError, match=word):
        tracker.update(found, time, where)
    left, right = (each.update(scan(box(3, 0)), 0.3) for each in (tracker, twin))
    np.testing.assert_array_equal(left.boxes, right.boxes)
    assert left.ids.tolist() == right.ids.tolist() == [1]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (np.eye(3), "shape"),
        (np.eye(4) * 2, "not a rigid motion"),
        (np.diag([1.0, 1, -1, 1]), "not a rigid motion"),
        (np.full((4, 4), np.nan), "not a rigid motion"),
        (np.eye(4) + np.eye(4, k=-3), "not a rigid motion"),
        (np.ma.array(np.eye(4)), "pose: a masked array"),
    ],
)
def test_a_pose_that_is_none(wrong, word):
    with pytest.raises(ValueError, match=word):
        Tracker().update(scan(), 0.0, wrong)


def test_without_scipy_one_line_says_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ValueError, match=r"^tracking needs scipy \(.*\): pip install scipy$"):
        Tracker()


@pytest.mark.parametrize("seed", range(30))
def test_the_assignment_is_the_best_of_all(seed):
    """Against every assignment: as many pairs as possible, then the least cost."""
    rng = np.random.default_rng(seed)
    cost = rng.uniform(0, 5, rng.integers(0, 5, 2))
    cost[rng.uniform(size=cost.shape) < 0.4] = np.inf
    best = (0, 0.0)
    rows, columns = range(cost.shape[0]), range(cost.shape[1])
    for count in range(min(cost.shape) + 1):
        for some in itertools.combinations(rows, count):
            for others in itertools.permutations(columns, count):
                total = float(sum(cost[a, b] for a, b in zip(some, others, strict=True)))
                if np.isfinite(total):
                    best = max(best, (count, -total))
    a, b = assign(cost)
    assert len(set(a.tolist())) == len(set(b.tolist())) == len(a) == best[0]
    assert cost[a, b].sum() == pytest.approx(-best[1])


def test_distances_are_of_centres_and_end_at_the_gate():
    known = Estimates.begin(np.array([box(0, 0, np.pi / 2, (4, 2, 1.5))]))
    known.covariance[:] = 0
    # half of the size and half a metre: 2.5 m along y, 1.5 m along x
    boxes = np.array([box(0, 2.4), box(0, -2.6), box(1.4, 0), box(-1.6, 0), box(1.4, 2.4)])
    expected = [2.4, np.inf, 1.4, np.inf, np.inf]
    np.testing.assert_allclose(distances(known, boxes)[0], expected)


def test_two_steps_of_time_are_one():
    known = Estimates.begin(np.array([box(1, 2, 0.3), box(5, -2, 2.0, PEDESTRIAN)]))
    known = known.predict(0.1).correct(known.boxes + 0.1)
    once, twice = known.predict(0.7), known.predict(0.25).predict(0.45)
    np.testing.assert_allclose(once.mean, twice.mean, atol=1e-12)
    np.testing.assert_allclose(once.covariance, twice.covariance, atol=1e-12)


@pytest.mark.parametrize("moving", [False, True])
def test_without_random_walks_the_filter_is_least_squares(monkeypatch, moving):
    """All measurements and what is known of the velocity at first, in one system of equations. The
    second velocity is not measured."""
    monkeypatch.setattr(tracker, "WALK", np.zeros(7))
    rng, times = np.random.default_rng(0), np.array([0.0, 0.1, 0.25, 0.3, 0.5])
    measured = rng.normal([10, 3, 0, 4, 2, 1.5, 0.5], 0.2, (len(times), 7))
    speeds = rng.normal([4, -1], 1, (len(times), 2))
    speeds[1] = np.nan
    prior = Estimates.begin(measured[:1]).covariance[0, 7:, 7:]
    known = Estimates.begin(measured[:1], speeds[:1] if moving else None)
    for step, boxes, speed in zip(np.diff(times), measured[1:], speeds[1:], strict=True):
        known = known.predict(step).correct(boxes[None], speed[None] if moving else None)
    # unknown: x, y, vx, vy at the last time
    rows, values = [], []
    for time, found in zip(times - times[-1], measured, strict=True):
        rows += [[1, 0, time, 0], [0, 1, 0, time]]
        values += [found[0], found[1]]
    root = np.linalg.inv(np.linalg.cholesky(prior))
    rows = np.concatenate([np.array(rows) / NOISE[0], np.pad(root, ((0, 0), (2, 0)))])
    values = np.concatenate([np.array(values) / NOISE[0], [0, 0]])
    for speed in speeds[[0, 2, 3, 4]] if moving else ():
        rows = np.concatenate([rows, np.eye(4)[2:] / VELOCITY_NOISE])
        values = np.concatenate([values, speed / VELOCITY_NOISE])
    solution = np.linalg.lstsq(rows, values, rcond=None)[0]
    covariance = np.linalg.inv(rows.T @ rows)
    index = [0, 1, 7, 8]
    np.testing.assert_allclose(known.mean[0, index], solution, atol=1e-9)
    np.testing.assert_allclose(known.covariance[0][np.ix_(index, index)], covariance, atol=1e-9)
    others = measured[:, [2, 3, 4, 5, 6]].mean(axis=0)
    np.testing.assert_allclose(known.boxes[0, [2, 3, 4, 5, 6]], others, atol=1e-9)


def test_measured_velocities_make_a_track_sure_sooner():
    """A car that drives 10 m/s across the way of the sensor's car, noisy boxes; its velocity after
    some scans, of many tracks."""
    errors = {True: [], False: []}
    for seed in range(30):
        rng, trackers = np.random.default_rng(seed), [(known, Tracker()) for known in errors]
        for number in range(4):
            time = 0.1 * number
            here = pose(8 * time, 0, 0.3)
            back = np.linalg.inv(here)
            place = back @ [20, -5 + 10 * time, 0, 1]
            found = scan(box(*place[:2] + rng.normal(0, 0.15, 2), yaw=np.pi / 2 - 0.3))
            speed = back[:2, :2] @ [0, 10] + rng.normal(0, 0.5, 2)
            for known, own in trackers:
                given = found._replace(velocities=speed[None] if known else None)
                tracks = own.update(given, time, here)
        for known, own in trackers:
            errors[known].append(own.update(scan(), 0.4, here).velocities[0])
    wanted = back[:2, :2] @ [0, 10]
    with_it, without = (
        np.linalg.norm(np.array(errors[known]) - wanted, axis=1).mean() for known in (True, False)
    )
    assert with_it < 0.5 * without and len(tracks.ids) == 1


def test_velocities_are_over_ground_and_need_poses():
    """Without poses, tracks move relative to the sensor: what a network says is of no use."""
    plain, given = Tracker(), Tracker()
    for number in range(5):
        found = scan(box(10, number, yaw=1.5))
        wrong = found._replace(velocities=np.array([[99.0, 99.0]]))
        a, b = plain.update(found, 0.1 * number), given.update(wrong, 0.1 * number)
        np.testing.assert_array_equal(a.velocities, b.velocities)
    unknown = found._replace(velocities=np.full((1, 2), np.nan))
    a, b = (Tracker(confirm=1).update(one, 0, np.eye(4)) for one in (found, unknown))
    np.testing.assert_array_equal(a.velocities, b.velocities)
    with pytest.raises(ValueError, match=r"velocities \[2, 2\] do not fit 1 boxes"):
        plain.update(found._replace(velocities=np.zeros((2, 2))), 9)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"birth_score": value} for value in (2, -0.1, np.nan, np.inf)),
        *({"confirm": value} for value in (0, -1, 1.5, np.nan, True)),
        *({"max_gap": value} for value in (-1, np.nan, np.inf)),
        *({"coast": value} for value in (-0.1, np.nan, np.inf)),
    ],
)
def test_a_tracker_that_would_never_report_is_a_mistake(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"\A{name}: expected [^\n]*, got {value}\Z"):
        Tracker(**wrong)


def test_the_ends_of_the_ranges_are_fine():
    tracker = Tracker(birth_score=0, confirm=np.int64(1), max_gap=0, coast=0)
    assert len(tracker.update(scan(box(0, 0)), 0.0).ids) == 1
    Tracker(birth_score=1)
