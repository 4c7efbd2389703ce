"""What the ROS 2 node in C++ does without ROS, beside what Python does."""

import ctypes
from ctypes import (
    POINTER,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
)
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from millisecond.data.boxes import FollowedObjects
from millisecond.data.formats.points import cloud_of
from millisecond.data.live.messages import detection_array, header_of, marker_array
from millisecond.detector.tracking.ego_motion import inverse, move_boxes
from tests.cpp.conftest import built

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "examples" / "ros2" / "millisecond_ros_cpp" / "src"
DATATYPES = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 8}


@pytest.fixture(scope="module")
def code():
    """ros_scans.cpp; what C++ leaves undefined ends the process."""
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-pthread"]
    flags += ["-fsanitize=undefined", "-fno-sanitize-recover=all", f"-I{SOURCE}"]
    code = ctypes.CDLL(str(built(*flags, HERE / "ros_scans.cpp")))
    code.last_fault.restype, code.read_cloud.restype = c_char_p, c_int64
    code.hand_over.restype, code.percentile.restype = c_int64, c_double
    code.percentile.argtypes = [POINTER(c_double), c_int64, c_double]
    code.labels_of.restype = code.messages.restype = code.reports.restype = c_char_p
    return code


def array(values, kind):
    return np.ascontiguousarray(values).ctypes.data_as(POINTER(kind))


def texts(*words):
    return (c_char_p * len(words))(*(word.encode() for word in words))


def read(code, rows, padding=0, full=255.0, cut=0):
    """The points of records [height, width] as a PointCloud2's bytes."""
    height, width = rows.shape
    step = rows.dtype.itemsize
    data = b"".join(row.tobytes() + b"\xff" * padding for row in rows)
    data = np.frombuffer(data, np.uint8)[: -cut or None]
    names = (c_char_p * len(rows.dtype.names))(*(name.encode() for name in rows.dtype.names))
    kinds = [DATATYPES[kind.str[1:]] for kind, _ in rows.dtype.fields.values()]
    offsets = np.uint32([offset for _, offset in rows.dtype.fields.values()])
    sizes = np.uint32([height, width, step, step * width + padding])
    points = np.zeros((rows.size, 4), np.float32)
    big = rows.dtype[0].str[0] == ">"
    count = code.read_cloud(
        array(sizes, c_uint32), len(kinds), names, array(offsets, c_uint32),
        array(np.uint8(kinds), c_uint8), c_bool(big), array(data, c_uint8), c_int64(len(data)),
        c_float(full), array(points, c_float),
    )  # fmt: skip
    if count < 0:
        raise ValueError(code.last_fault().decode())
    return points[:count]


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("axis, light", [("f4", "u1"), ("f8", "u2"), ("i2", "f4"), ("i4", "f8")])
def test_points_are_those_that_python_reads(code, order, axis, light):
    rng = np.random.default_rng(3)
    kinds = [
        ("ring", "u2"),
        *((name, axis) for name in "xyz"),
        ("intensity", light),
        ("time", "f8"),
    ]
    rows = np.zeros((5, 40), [(name, order + kind) for name, kind in kinds])
    for name in "xyz":
        rows[name] = rng.uniform(-90, 90, rows.shape)
    rows["intensity"] = rng.integers(0, 120, rows.shape)
    if axis[0] == "f":
        rows["y"][rng.random(rows.shape) < 0.2] = np.nan
        rows["z"][0, 0] = np.inf
    flat = rows.reshape(-1)
    expected = cloud_of({name: flat[name] for name in rows.dtype.names}, "rows").points
    expected[:, 3] = np.clip(expected[:, 3] / np.float32(100), 0, 1)
    np.testing.assert_array_equal(read(code, rows, padding=7, full=100.0), expected)


def test_a_wrong_cloud_is_refused(code):
    rows = np.zeros((2, 9), [("x", "<f4"), ("y", "<f4"), ("z", "<f4")])
    assert read(code, rows).shape == (18, 4)  # without intensities
    with pytest.raises(ValueError, match="bytes are not 2 rows of 9 points of 12"):
        read(code, rows, cut=1)
    with pytest.raises(ValueError, match="no fields x, y and z"):
        read(code, rows[["x", "y"]].astype([("x", "<f4"), ("y", "<f4")]))


def test_boxes_move_as_in_python(code):
    rng = np.random.default_rng(4)
    for _ in range(20):
        turns, shifts = Rotation.random(2, rng), rng.normal(0, 30, (2, 3))
        poses = np.tile(np.eye(4), (2, 1, 1))
        poses[:, :3, :3], poses[:, :3, 3] = turns.as_matrix(), shifts
        box = rng.normal(0, 3, 7)
        expected = move_boxes(box[None], poses[0] @ inverse(poses[1]))[0]
        given = (turns[0].as_quat(), shifts[0], turns[1].as_quat(), shifts[1], box)
        code.move_box(*(array(part, c_double) for part in given))
        np.testing.assert_allclose(box, expected, rtol=0, atol=1e-9)


def test_the_newest_is_handed_over_and_the_rest_counted(code):
    dropped = c_int64()
    total = code.hand_over(c_int64(20_000), byref(dropped))
    assert 20_000 <= total <= 20_000 * 20_001 // 2 and 0 <= dropped.value < 20_000


def test_percentiles_are_of_the_last_thousand(code):
    times = np.random.default_rng(5).exponential(1, 1700)
    for percent in (1, 50, 99, 100):
        expected = np.percentile(times[-1000:], percent, method="inverted_cdf")
        assert code.percentile(array(times, c_double), len(times), percent) == expected
    assert code.percentile(array(times, c_double), 0, 50) == 0


def test_classes_are_chosen_by_name(code):
    def labels(*wanted):
        known = ("Car", "Pedestrian", "Cyclist")
        return code.labels_of(len(wanted), texts(*wanted), 3, texts(*known)).decode()

    assert labels() == labels("") == "1 2 3 "
    assert labels("Cyclist", "Car", "Car") == "1 3 "
    assert labels("Car", "Cat") == "classes: the network has no 'Cat'"


def fields(message):
    """As ros_scans.cpp writes a message of Python's: texts, then numbers."""
    pose = message.pose if hasattr(message, "scale") else message.bbox.center
    size = message.scale if hasattr(message, "scale") else message.bbox.size
    place, turn = pose.position, pose.orientation
    numbers = [place.x, place.y, place.z, turn.x, turn.y, turn.z, turn.w, size.x, size.y, size.z]
    if hasattr(message, "scale"):
        names = (message.ns, message.text)
        kinds = (message.id, message.type, message.action)
        return names, [*kinds, *numbers, message.color.a]
    [result] = message.results
    again = [*numbers[:7], 0, 0, 0]  # the pose of the result is the box's
    names = (message.id, result.hypothesis.class_id)
    return names, [result.hypothesis.score, *numbers, *again]


def test_messages_are_those_of_python(code):
    pytest.importorskip("rosbags")
    rng, known = np.random.default_rng(6), ("Car", "Pedestrian", "Cyclist")
    boxes, labels, ids = rng.uniform(1, 9, (5, 7)), rng.integers(1, 4, 5), np.array([0, 7, 0, 8, 9])
    scores = np.float32(rng.uniform(0.3, 1, 5))
    names = tuple(known[label - 1] for label in labels)
    objects = FollowedObjects(boxes, scores, names, ids, ((),) * 5, np.zeros((5, 2)))
    header = header_of(0, "lidar")
    expected = [
        *map(fields, detection_array(objects, header).detections),
        *map(fields, marker_array(objects, [(0, 0, 0)] * 5, header).markers[1:]),
    ]
    sent = code.messages(
        5, array(boxes, c_double), array(scores, c_float), array(np.int32(labels), c_int32),
        array(ids, c_int64), 3, texts(*known),
    )  # fmt: skip
    lines = [line.split(";") for line in sent.decode().splitlines()]
    removal = lines.pop(5)
    assert removal[3:6] == ["0", "0", "3"]  # all markers go before the new ones come
    for line, (told, numbers) in zip(lines, expected, strict=True):
        assert line[0] == "lidar" and tuple(line[1:3]) == told
        np.testing.assert_allclose([float(part) for part in line[3:]], numbers, rtol=0, atol=1e-7)


def test_diagnostics_tell_what_came_since_the_last_ones(code):
    rounds = [  # messages, drops so far, left out, fault; level and message; left out so far
        (10, 0, 0, "", "0;detecting", 0),
        (9, 1, 2, "", "1;1 clouds dropped, 2 left out in the last second", 2),
        (0, 1, 0, "", "1;no result in the last second", 2),
        (3, 1, 1, "out of memory", "2;out of memory", 3),
        (5, 1, 0, "", "0;detecting", 3),
    ]
    done, dropped, lost, faults, expected, total = zip(*rounds, strict=True)
    counts = (array(np.int64(part), c_int64) for part in (done, dropped, lost))
    lines = code.reports(len(rounds), *counts, texts(*faults)).decode().splitlines()
    for i, (line, start) in enumerate(zip(lines, expected, strict=True)):
        told = (
            f"{start};scans;{sum(done[: i + 1])};dropped;{dropped[i]};left out;{total[i]};cloud to"
        )
        assert line.startswith(told)
