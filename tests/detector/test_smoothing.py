"""Objects of whole recordings: made-up drives whose objects are known exactly."""

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections, box_corners, wrap_angle
from millisecond.detector.tracking.ego_motion import inverse, move_boxes
from millisecond.detector.tracking.smoothing import (
    SURE,
    Observed,
    mean_heading,
    merge_views,
    objects_of,
    resized,
    smooth,
    weighted_median,
)
from millisecond.detector.tracking.tracker import COLUMNS, NOISE, ORDER, Estimates
from tests.detector.test_tracker import box, pose, scan

RATE = 10.0
ERROR = np.array([0.15, 0.15, 0.1, 0.2, 0.1, 0.1, 0.05])  # of detections: standard deviations


def drive(truth, seen=None, seed=None, score=0.9, shown=None, extra=None):
    """Scans from a turning car of an object whose true boxes in the world are truth [S, 7], and
    their points.

    seen [S] bool: where it is detected. shown [S] bool: where it has points. seed: of the errors,
    none where it is None. extra: a further box in the world per scan number.
    """
    count, rng = len(truth), np.random.default_rng(seed)
    seen = np.ones(count, bool) if seen is None else seen
    shown = np.ones(count, bool) if shown is None else shown
    inside = rng.uniform(-0.45, 0.45, (60, 3))
    scans, clouds = [], []
    for number in range(count):
        place = pose(5 * number / RATE, 0.2 * number / RATE, 0.01 * number)
        here = move_boxes(truth[number][None], inverse(place))
        cloud = inside * here[0, 3:6]
        cos, sin = np.cos(here[0, 6]), np.sin(here[0, 6])
        cloud[:, :2] = cloud[:, :2] @ np.array([[cos, sin], [-sin, cos]])
        clouds.append((cloud + here[0, :3]) if shown[number] else np.zeros((0, 3)))
        boxes = here if seen[number] else here[:0]
        if seed is not None:
            boxes = boxes + rng.normal(0, ERROR, boxes.shape)
        if extra and number in extra:
            boxes = np.concatenate([boxes, move_boxes(extra[number][None], inverse(place))])
        found = scan(*boxes, scores=np.full(len(boxes), score))
        scans.append(Observed(found, np.full(len(boxes), 60), number / RATE, place))
    return scans, clouds.__getitem__


def standing(count, yaw=0.4):
    return np.tile(np.array(box(20.0, 6.0, yaw)), (count, 1))


def moving(count, speed=8.0, yaw=0.3):
    truth = np.tile(np.array(box(10.0, -4.0, yaw)), (count, 1))
    truth[:, :2] += speed * np.arange(count)[:, None] / RATE * np.array([np.cos(yaw), np.sin(yaw)])
    return truth


def labelled(objects):
    return [one for one in objects if one.coherent and one.confidence >= SURE]


def test_the_error_of_a_standing_box_falls_with_the_square_root_of_the_scans():
    errors = {}
    for count in (4, 16, 64):
        off = []
        for seed in range(30):
            truth = standing(count)
            (one,) = labelled(objects_of(*drive(truth, seed=seed)))
            assert one.standing and (one.boxes == one.boxes[0]).all()
            off.append((one.boxes[0] - truth[0])[:2])
        errors[count] = np.sqrt(np.square(off).mean())
    assert errors[4] < ERROR[0]
    assert 1.5 < errors[4] / errors[16] < 2.7 and 1.5 < errors[16] / errors[64] < 2.7


def test_gaps_are_filled_where_the_object_went():
    truth, seen = moving(40), np.ones(40, bool)
    seen[12:18] = False
    (one,) = labelled(objects_of(*drive(truth, seen, seed=1)))
    assert one.present.all() and not one.standing
    assert np.hypot(*(one.boxes - truth)[12:18, :2].T).max() < 0.4
    assert (one.boxes[:, 3:6] == one.boxes[0, 3:6]).all()


@pytest.mark.parametrize("path", [standing, moving])
def test_smoothed_boxes_are_nearer_to_the_truth_than_detections(path):
    truth, before, after = path(40), [], []
    for seed in range(10):
        scans, points_of = drive(truth, seed=seed)
        (one,) = labelled(objects_of(scans, points_of))
        after.append(one.boxes - truth)
        detected = [move_boxes(scan.found.boxes, scan.pose)[0] for scan in scans]
        before.append(np.array(detected) - truth)
    before, after = (np.sqrt(np.square(e).mean(axis=(0, 1))) for e in (before, after))
    assert (after[[0, 1, 2, 6]] < 0.8 * before[[0, 1, 2, 6]]).all()
    assert (after[3:6] < 0.4 * before[3:6]).all()


def test_boxes_of_one_scan_and_boxes_that_jump_are_not_labelled():
    rng = np.random.default_rng(2)
    ghost = {7: np.array(box(40.0, -10.0))}
    objects = objects_of(*drive(moving(20), seed=0, extra=ghost))
    assert len(objects) == 2 and len(labelled(objects)) == 1
    beside, seen = {20: np.array(box(20.0, 10.0, 0.4))}, np.arange(21) < 20
    objects = objects_of(*drive(standing(21), seen, extra=beside))  # in the last scan, without it
    assert sorted(np.count_nonzero(one.scores) for one in objects) == [1, 20]
    jumps = {n: np.array(box(60 + rng.normal(0, 2), 20 + rng.normal(0, 1.5))) for n in range(20)}
    (one,) = labelled(objects_of(*drive(moving(20), seed=0, extra=jumps)))
    assert np.hypot(*(one.boxes - moving(20))[:, :2].T).max() < 1


def test_low_scores_are_not_labelled():
    assert labelled(objects_of(*drive(standing(20), score=0.32))) == []
    assert len(objects_of(*drive(standing(20), score=0.32))) == 1
    assert objects_of(*drive(standing(20), score=0.25)) == []


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("yaw", [0.3, 2.5, -1.2])
@pytest.mark.parametrize("path", [standing, moving])
def test_headings_that_flip_are_mended(path, yaw, share):
    """What stands heads as most of its detections do, what moves as it goes."""
    truth, rng = path(30, yaw=yaw), np.random.default_rng(3)
    turned = truth.copy()
    turned[rng.permutation(30)[: round(30 * share)], 6] += np.pi
    (one,) = labelled(objects_of(*drive(turned)))
    wrong = np.pi if path is standing and share > 0.5 else 0.0
    assert np.abs(wrap_angle(one.boxes[:, 6] - truth[:, 6] - wrong)).max() < 0.02


def test_points_show_what_stands_before_and_after_its_detections():
    seen, shown = np.zeros(30, bool), np.zeros(30, bool)
    seen[10:15], shown[4:25], shown[28:], shown[:2] = True, True, True, True
    scans, points_of = drive(standing(30), seen, shown=shown)
    (one,) = objects_of(scans, points_of)
    assert np.flatnonzero(one.present).tolist() == list(range(4, 25))
    low = scans[12].found.boxes[0, 2] - 1.5 / 2 + 0.3  # points below may be of the ground
    assert 30 < one.points[12] == (points_of(12)[:, 2] > low).sum() < 60


def test_points_show_what_moves_for_half_a_second():
    seen = np.zeros(40, bool)
    seen[10:20] = True
    (one,) = objects_of(*drive(moving(40), seen))
    assert not one.standing
    assert np.flatnonzero(one.present).tolist() == list(range(5, 25))


@pytest.mark.parametrize(("speed", "stands"), [(0.46, True), (0.49, False)])
def test_what_moves_by_half_of_its_width_does_not_stand(speed, stands):
    (one,) = objects_of(*drive(moving(20, speed)))  # for 1.9 s, 1.8 m wide
    assert one.standing == stands


def test_a_car_that_arrives_where_another_was_is_another_object():
    """7 m behind; the car ahead is hidden for a while."""
    truth, seen = moving(40), np.ones(40, bool)
    seen[14:22] = False
    behind = truth - 7 * np.array([np.cos(0.3), np.sin(0.3), 0, 0, 0, 0, 0])
    objects = labelled(objects_of(*drive(truth, seen, extra=dict(enumerate(behind)))))
    assert len(objects) == 2
    for path in (truth, behind):
        assert min(np.hypot(*(one.boxes - path)[:, :2].T).max() for one in objects) < 0.5


def test_weak_detections_before_the_first_strong_one_are_of_the_track():
    scans, points_of = drive(moving(20), seed=4)
    weak = [s._replace(found=s.found._replace(scores=s.found.scores * 0.2)) for s in scans[:8]]
    (one,) = objects_of([*weak, *scans[8:]], points_of)
    assert (one.scores > 0).all()


@pytest.mark.parametrize("count", [22, 23])
def test_what_is_seen_for_longer_than_a_gap_is_one_track(count):
    (one,) = objects_of(*drive(moving(count)))
    assert one.present.all() and not one.standing


def test_a_track_that_ends_where_another_begins_is_followed_back_into_it():
    """A car backs, and drives off fast while hidden: nobody expects it there, looking ahead."""
    truth, along = standing(26, 0.0), np.array([0, -0.4, -0.8, *(2.0 * np.arange(1, 24) - 0.8)])
    truth[:, 0] += along
    seen = (np.arange(26) < 3) | (np.arange(26) > 4)
    (one,) = objects_of(*drive(truth, seen))
    assert np.array_equal(one.scores > 0, seen)


def test_a_hidden_object_that_stands_is_one_object():
    seen = np.ones(60, bool)
    seen[15:45] = False  # longer than a track lives
    objects = objects_of(*drive(standing(60), seen, seed=5))
    assert len(objects) == 1 and objects[0].present.all()


def test_two_objects_cannot_be_in_one_place():
    other = {n: np.array(box(20.3, 6.1, 0.4)) for n in range(20)}
    scans, points_of = drive(standing(20), extra=other)
    scores = np.array([0.9, 0.6])
    found = [NamedDetections(s.found.boxes, scores, ("Car", "Cyclist")) for s in scans]
    both = [s._replace(found=f) for s, f in zip(scans, found, strict=True)]
    assert [one.name for one in objects_of(both, points_of)] == ["Car"]


def test_the_same_scans_give_the_same_bytes():
    first, second = (objects_of(*drive(moving(30), seed=6)) for _ in range(2))
    assert [one.boxes.tobytes() for one in first] == [one.boxes.tobytes() for one in second]


def test_no_detections_are_no_objects():
    assert objects_of(*drive(standing(3), np.zeros(3, bool))) == []


def test_the_smoother_finds_the_likeliest_states():
    """As one linear system of all states: prior, random walks and measurements."""
    rng, times = np.random.default_rng(7), np.cumsum(np.array([0, 0.1, 0.1, 0.25, 0.1, 0.3]))
    scans = np.array([0, 1, 3, 5])
    boxes = moving(6)[scans] + rng.normal(0, 0.05, (4, 7))
    begun, size = Estimates.begin(boxes[:1]), 9
    information, right = np.zeros((6 * size, 6 * size)), np.zeros(6 * size)
    information[:size, :size] = np.linalg.inv(begun.covariance[0])
    right[:size] = information[:size, :size] @ begun.mean[0]
    for number in range(1, 6):
        step = times[number] - times[number - 1]
        move = np.eye(size)
        move[0, 7] = move[1, 8] = step
        still = Estimates(np.zeros((1, size)), np.zeros((1, size, size)))
        weight = np.linalg.inv(still.predict(step).covariance[0] + 1e-12 * np.eye(size))
        rows = np.concatenate([-move, np.eye(size)], axis=1)
        part = slice((number - 1) * size, (number + 1) * size)
        information[part, part] += rows.T @ weight @ rows
    for row, number in enumerate(scans[1:], start=1):
        part = slice(number * size, number * size + 7)
        information[part, part] += np.diag(NOISE**-2.0)
        right[part] += boxes[row, ORDER] / NOISE**2
    states = np.linalg.solve(information, right).reshape(6, size)
    assert np.allclose(smooth(boxes, scans, times), states[:, COLUMNS], atol=1e-4)


def test_another_size_leaves_the_seen_sides_where_they_are():
    """A car ahead, seen from behind and from its right side."""
    seen = np.array([box(20.0, 8.0, 0.0, (3.0, 1.5, 1.4))])
    larger = resized(seen, np.array([4.5, 1.8, 1.6]), np.zeros((1, 2)))
    low, high = (np.array([c.min(0) for c in box_corners(b)]) for b in (seen, larger))
    assert np.allclose(low, high) and larger[0, 3:6].tolist() == [4.5, 1.8, 1.6]


def test_views_become_one():
    one, two = box(10, 0, 0.1), box(10.2, 0.1, 0.1 + np.pi)
    a = scan(one, box(30, 5), names=["Car", "Car"], scores=[0.8, 0.5])
    b = scan(two, two, names=["Car", "Cyclist"], scores=[0.4, 0.6])
    merged = merge_views([a, b])
    assert list(zip(merged.names, merged.scores.round(6), strict=True)) == [
        ("Car", 0.6),
        ("Cyclist", 0.3),
        ("Car", 0.25),
    ]
    assert np.allclose(merged.boxes[0, :2], [10 + 0.2 / 3, 0.1 / 3])
    assert np.isclose(merged.boxes[0, 6], 0.1)
    assert len(merge_views([scan(), scan()]).boxes) == 0


def test_medians_by_weight_are_medians_of_copies():
    rng = np.random.default_rng(8)
    for _ in range(50):
        values, copies = rng.normal(size=(7, 3)), rng.integers(1, 5, 7)
        middle = np.sort(np.repeat(values, copies, axis=0), axis=0)[(copies.sum() - 1) // 2]
        assert (weighted_median(values, copies.astype(float)) == middle).all()


def test_mean_headings_do_not_care_where_angles_wrap():
    rng = np.random.default_rng(9)
    for turn in rng.uniform(-np.pi, np.pi, 20):
        yaws = turn + rng.normal(0, 0.1, 40) + np.pi * (rng.uniform(size=40) < 0.2)
        assert abs(wrap_angle(mean_heading(wrap_angle(yaws), np.ones(40)) - turn)) < 0.1
