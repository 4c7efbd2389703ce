"""The tracker of the C API beside Python's: the same recordings, matrices and mistakes."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.detector.tracking import Tracker, Tracks
from millisecond.detector.tracking.tracker import assign
from tests.cpp.conftest import CPP, built
from tests.cpp.structures import Sized

NAMES = ("Car", "Cyclist", "Pedestrian")  # in the order of their labels, from 1
SIZES = np.array([[4.2, 1.8, 1.5], [1.8, 0.6, 1.7], [0.8, 0.6, 1.7]])
TRACK = np.dtype("i8, i8, 7f8, 2f8, f4, i4")  # ms_track
TRACK.names = ("id", "age", "box", "velocity", "score", "label")


class Options(Sized):
    _fields_ = (
        ("confirm", c_int32),
        *((name, c_double) for name in ("birth_score", "max_gap", "coast")),
    )


class View(Sized):
    """ms_tracks."""

    _fields_ = (("count", c_int64), ("tracks", c_void_p))


@pytest.fixture(scope="module")
def code():
    """tracking.cpp; what C++ leaves undefined ends the process."""
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    flags += ["-Wno-missing-field-initializers", "-Werror", "-fsanitize=undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{CPP / 'src'}", f"-I{CPP / 'include'}"]
    code = ctypes.CDLL(str(built(*flags, Path(__file__).with_name("tracking.cpp"))))
    code.last_line.restype = c_char_p
    code.ms_tracker_destroy.argtypes = [c_void_p]
    code.ms_tracker_destroy.restype = None
    arrays = [POINTER(c_float), POINTER(c_float), POINTER(c_int32), c_int64]
    last = [c_double, POINTER(c_double), POINTER(View)]
    code.ms_tracker_update.argtypes = [c_void_p, *arrays, *last]
    code.ms_tracker_update_moving.argtypes = [c_void_p, arrays[0], *arrays, *last]
    return code


class Native:
    """Python's Tracker, of the C API."""

    def __init__(self, code, *options):
        self.code, self.tracker = code, c_void_p()
        given = byref(Options(*options)) if options else None
        self.check(code.ms_tracker_create(given, byref(self.tracker)))

    def check(self, status):
        if status:
            assert status == 1  # MS_ERROR_ARGUMENT
            raise ValueError(self.code.last_line().decode())

    def update(self, found, time, pose=None):
        boxes, scores = np.float32(found.boxes), np.float32(found.scores)
        labels = np.int32([NAMES.index(name) + 1 for name in found.names])
        world = None if pose is None else np.array(pose, np.float64)
        arrays = [at(boxes, c_float), at(scores, c_float), at(labels, c_int32), len(scores)]
        view = View()
        place = None if pose is None else at(world, c_double)
        last = time, place, byref(view)
        if found.velocities is None:
            self.check(self.code.ms_tracker_update(self.tracker, *arrays, *last))
        else:
            speeds = np.float32(found.velocities)
            given = arrays[0], at(speeds, c_float), *arrays[1:]
            self.check(self.code.ms_tracker_update_moving(self.tracker, *given, *last))
        bytes_ = ctypes.string_at(view.tracks, view.count * TRACK.itemsize) if view.count else b""
        tracks = np.frombuffer(bytes_, TRACK)
        names = tuple(NAMES[label - 1] for label in tracks["label"])
        columns = [tracks[name] for name in ("id", "velocity", "age")]
        return Tracks(tracks["box"], tracks["score"], names, *columns)

    def __del__(self):
        self.code.ms_tracker_destroy(self.tracker)


def at(array, kind):
    return np.ascontiguousarray(array).ctypes.data_as(POINTER(kind))


def motion(time, tilt):
    """The pose of a car that drives a curve on a slope."""
    cos, sin = np.cos(0.3 * time), np.sin(0.3 * time)
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    slope = np.array([[np.cos(tilt), 0, np.sin(tilt)], [0, 1, 0], [-np.sin(tilt), 0, np.cos(tilt)]])
    pose = np.eye(4)
    pose[:3, :3] = turn @ slope
    pose[:3, 3] = 8 * time, time**2, 0.1 * time
    return pose


def recording(seed, scans=40, objects=50):
    """Scans (detections, time, pose or None) of a crowd: objects that come and go, gaps, wrong
    headings, weak and false detections, equal scores, dropped scans."""
    rng = np.random.default_rng(seed)
    kinds, yaw = rng.integers(0, 3, objects), rng.uniform(-np.pi, np.pi, objects)
    places, speeds = rng.uniform(-15, 15, (objects, 2)), rng.uniform(0, [12, 5, 1.5])[kinds]
    turning = rng.normal(0, 0.2, objects)
    first, last = rng.uniform(-1, 4, objects), rng.uniform(2, 8, objects)
    for number, time in enumerate(np.cumsum(rng.choice([0.1, 0.1, 0.1, 0.05, 0.35], scans))):
        boxes = np.empty((objects, 7), np.float32)
        way = np.stack([np.cos(yaw), np.sin(yaw)], axis=1) * (speeds * time)[:, None]
        boxes[:, :2] = places + way + rng.normal(0, 0.1, (objects, 2))
        boxes[:, 2] = rng.normal(-0.8, 0.1, objects)
        boxes[:, 3:6] = SIZES[kinds] * rng.normal(1, 0.05, (objects, 3))
        boxes[:, 6] = yaw + turning * time + np.pi * (rng.uniform(size=objects) < 0.2)
        seen = (first < time) & (time < last) & (rng.uniform(size=objects) > 0.15)
        false = rng.uniform(size=objects) < 0.05
        boxes[false, :2] += rng.normal(0, 1, (false.sum(), 2))
        found = np.flatnonzero((seen | false) & (number % 13 != 12))
        scores = rng.choice([0.05, 0.12, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9], len(found)).astype(
            np.float32
        )
        names = tuple(NAMES[kind] for kind in kinds[found])
        pose = motion(time, 0.03 * np.sin(number)) if seed % 2 else None
        velocities = None
        if seed % 5 == 1 or seed % 5 == 2:  # measured in the world, in some seeds without poses
            velocities = np.stack([np.cos(yaw), np.sin(yaw)], axis=1) * speeds[:, None]
            velocities += np.random.default_rng((seed, number)).normal(0, 0.5, (objects, 2))
            velocities[::4] = np.nan
            velocities = velocities[found].astype(np.float32)
        yield NamedDetections(boxes[found], scores, names, velocities), float(time), pose


def require_equal(mine, theirs):
    assert mine.ids.tolist() == theirs.ids.tolist()
    assert mine.ages.tolist() == theirs.ages.tolist() and mine.names == theirs.names
    np.testing.assert_array_equal(mine.scores, theirs.scores)
    away = {"rtol": 0, "atol": 1e-9}
    np.testing.assert_allclose(mine.boxes[:, :6], theirs.boxes[:, :6], **away)
    np.testing.assert_allclose(wrap_angle(mine.boxes[:, 6] - theirs.boxes[:, 6]), 0, **away)
    np.testing.assert_allclose(mine.velocities, theirs.velocities, **away)


@pytest.mark.parametrize("seed", range(30))
def test_a_recording_has_python_s_tracks(code, seed):
    confirm, birth_score, max_gap, coast = [(2, 0.5, 1.0, 0.15), (1, 0.65, 0.2, 0.4)][seed % 3 == 2]
    theirs = Tracker(birth_score, confirm, max_gap, coast)
    mine = Native(code, confirm, birth_score, max_gap, coast) if seed % 3 else Native(code)
    ids, most = set(), 0
    for found, time, pose in recording(seed):
        tracks = theirs.update(found, time, pose)
        require_equal(mine.update(found, time, pose), tracks)
        ids |= set(tracks.ids.tolist())
        most = max(most, len(tracks.ids))
    assert most > 15 and len(ids) > most  # a crowd, in which tracks end and begin


@pytest.mark.parametrize("seed", range(40))
def test_the_assignment_is_scipy_s(code, seed):
    """Least cost of as many pairs as there can be; equal costs and forbidden pairs, too."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, 25, 2)
    cost = rng.uniform(0, 5, (rows, columns)) if seed % 2 else rng.integers(0, 4, (rows, columns))
    cost = np.where(rng.uniform(size=cost.shape) < rng.choice([0, 0.5, 0.95]), np.inf, cost)
    of_row = np.full(rows, -1, np.int32)
    code.assign_columns(at(cost, c_double), int(rows), int(columns), at(of_row, c_int32))
    mine = np.flatnonzero(of_row >= 0)
    chosen = of_row[mine]
    assert len(set(chosen.tolist())) == len(chosen)
    a, b = assign(cost)
    assert len(a) == len(mine)
    assert cost[mine, chosen].sum() == pytest.approx(cost[a, b].sum(), rel=0, abs=1e-12)
    if seed % 2:  # one optimum
        assert (mine.tolist(), chosen.tolist()) == (a.tolist(), b.tolist())
    if np.isfinite(cost).all():
        a, b = linear_sum_assignment(cost)
        assert cost[mine, chosen].sum() == pytest.approx(cost[a, b].sum(), rel=0, abs=1e-12)


def scan(*boxes, scores=None):
    scores = [0.9] * len(boxes) if scores is None else scores
    boxes, names = np.array(boxes, np.float32).reshape(-1, 7), ("Car",) * len(boxes)
    return NamedDetections(boxes, np.array(scores, np.float32), names)


CAR = (4.0, 1.8, 1.5)
HERE = [5.1, -2e-5, -0.8, *CAR, 1e20]
NAN_POSE = np.diag([np.nan, -np.inf, 1.23456, 1e-9])


@pytest.mark.parametrize(
    ("found", "time", "pose"),
    [
        (scan(), 0.2, None),
        (scan(), 1e-5, None),
        (scan(), -1e16, None),
        (scan(), np.nan, None),
        (scan(), np.inf, None),
        (scan(), 0.3, np.eye(4)),
        (scan(HERE, scores=[np.nan]), 0.3, None),
        (scan(HERE, [np.nan, np.inf, -np.inf, *CAR, 123456.789]), 0.3, None),
        (scan(HERE, [1, 2, 3, 4, 0, 1, 0]), 0.3, None),
        (scan([1, 2, 3, -1e-4, 1, 1, 0]), np.nan, np.eye(4)),
    ],
)
def test_a_mistake_is_said_as_python_says_it_and_changes_nothing(code, found, time, pose):
    mine, twin, theirs = Native(code), Native(code), Tracker()
    for number in range(3):
        for each in (mine, twin, theirs):
            each.update(scan([number, 0, 0, *CAR, 0]), 0.1 * number)
    with pytest.raises(ValueError, match=r"time|pose|detection") as said:
        theirs.update(found, time, pose)
    with pytest.raises(ValueError) as mine_said:
        mine.update(found, time, pose)
    assert str(mine_said.value) == str(said.value)
    tracks = [each.update(scan([3, 0, 0, *CAR, 0]), 0.3) for each in (mine, twin, theirs)]
    np.testing.assert_array_equal(tracks[0].boxes, tracks[1].boxes)
    require_equal(tracks[0], tracks[2])
    assert tracks[0].ids.tolist() == [1]


def test_numbers_in_lines_are_written_as_python_writes_them(code):
    rng, mine = np.random.default_rng(0), Native(code)
    mine.update(scan(), 1e300)
    random = rng.uniform(-10, 10, 300) * 10.0 ** rng.integers(-30, 30, 300)
    whole = 10.0 ** np.arange(-6, 25)
    odd = [0.0, -0.0, 5e-324, -1.7976931348623157e308, 2.0**53 + 2, 1e16 - 2, 0.1 + 0.2, 1 / 3]
    for time in [*random, *np.float32(random), *whole, *(1.5 * whole), *odd]:
        with pytest.raises(ValueError, match="not after") as said:
            mine.update(scan(), time)
        assert str(said.value).startswith(f"time {float(time)} is not after 1e+300, ")


def changed(row, column, value):
    pose = motion(1, 1)
    pose[row, column] = value
    return pose


@pytest.mark.parametrize(
    "pose",
    [
        2 * np.eye(4),
        np.diag([1.0, 1, -1, 1]),
        np.diag([np.nan, -np.inf, 1.23456, 1e-9]),
        changed(2, 0, 1 / 777),
        changed(1, 3, np.inf),
        changed(1, 3, np.nan),
        changed(3, 1, 1e17),
    ],
)
def test_what_is_no_pose(code, pose):
    mine, theirs = Native(code), Tracker()
    with pytest.raises(ValueError, match="not a rigid motion") as said:
        theirs.update(scan(), 0.0, pose)
    with pytest.raises(ValueError) as mine_said:
        mine.update(scan(), 0.0, pose)
    assert str(mine_said.value) == str(said.value)
    for found, time, _ in recording(0, scans=3):  # nor were poses given
        require_equal(mine.update(found, time), theirs.update(found, time))


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"birth_score": 1.5}, (2, 1.5, 1.0, 0.15)),
        ({"birth_score": float("nan")}, (2, np.nan, 1.0, 0.15)),
        ({"confirm": 0}, (0, 0.5, 1.0, 0.15)),
        ({"max_gap": -1.0}, (2, 0.5, -1.0, 0.15)),
        ({"coast": float("inf")}, (2, 0.5, 1.0, np.inf)),
    ],
)
def test_options_out_of_their_range(code, options, place):
    with pytest.raises(ValueError) as said:
        Tracker(**options)
    with pytest.raises(ValueError) as mine_said:
        Native(code, *place)
    assert str(mine_said.value) == str(said.value)


def test_wrong_arguments_leave_the_tracker_as_before(code):
    mine, view = Native(code), View()
    update, one = code.ms_tracker_update, (c_float * 7)(*[1.0] * 7)
    arrays = [one, (c_float * 1)(0.9), (c_int32 * 1)(1)]
    wrong = View()
    wrong.size = 0
    for arguments, line in [
        ([None, *arrays, 1, 0.0, None, byref(view)], "tracker: is null"),
        (
            [mine.tracker, *arrays, -1, 0.0, None, byref(view)],
            "count: -1 is not from 0 to 2147483647",
        ),
        ([mine.tracker, None, *arrays[1:], 1, 0.0, None, byref(view)], "boxes: is null"),
        ([mine.tracker, one, None, arrays[2], 1, 0.0, None, byref(view)], "scores: is null"),
        ([mine.tracker, *arrays[:2], None, 1, 0.0, None, byref(view)], "labels: is null"),
        ([mine.tracker, *arrays, 1, 0.0, None, None], "tracks: is null"),
        (
            [mine.tracker, *arrays, 1, 0.0, None, byref(wrong)],
            "tracks.size: is 0; set it to the struct's sizeof, 24",
        ),
    ]:
        assert update(*arguments) == 1
        assert code.last_line().decode() == line
    for time in (0.0, 0.1):  # the first scan comes only now
        assert update(mine.tracker, *arrays, 1, time, None, byref(view)) == 0
    assert view.count == 1
