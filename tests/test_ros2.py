"""The ROS 2 node in Python: messages in, messages out, and the node itself where there is ROS."""

import ast
import json
import queue
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from millisecond import Detector
from millisecond.data.live import messages
from millisecond.data.live.bag import type_store
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.simulator import simulate
from millisecond.detector.draw.style import Palette
from millisecond.detector.following import LiveDetection
from tests.helpers.ros_bags import CLOUD, DATATYPES

PACKAGE = Path(__file__).resolve().parents[1] / "examples" / "ros2" / "millisecond_ros"
sys.path.append(str(PACKAGE))
from millisecond_ros import scans  # noqa: E402

ARRAY = "vision_msgs/msg/Detection3DArray"
STAMP = 1_700_000_000_123_456_789  # nanoseconds, more than a float64 of seconds tells
HELIOS = np.dtype(
    [
        ("x", "f4"),
        ("y", "f4"),
        ("z", "f4"),
        ("intensity", "f4"),
        ("ring", "u2"),
        ("timestamp", "f8"),
    ]
)  # as rslidar_sdk publishes Helios, M1 and others: point_step 26, seconds since 1970


@pytest.fixture(scope="module")
def types():
    """Messages by name; vision_msgs by its own text."""
    pytest.importorskip("rosbags")
    from rosbags.typesys import get_types_from_msg

    types = type_store(ros1=False)
    for name, text in messages.DETECTIONS.items():
        types.register(get_types_from_msg(text, f"vision_msgs/msg/{name}"))
    return types


@pytest.fixture(scope="module")
def detector():
    return Detector.from_weights("second_small", "cpu")


def cloud(types, rows: np.ndarray, stamp: int = STAMP, frame: str = "lidar") -> bytes:
    """A PointCloud2 in CDR of records [width] or [height, width]."""
    kinds, rows = types.types, np.atleast_2d(rows)
    field, step = kinds["sensor_msgs/msg/PointField"], rows.dtype.itemsize
    fields = [
        field(name, offset, DATATYPES[kind.str[1:]], 1)
        for name, (kind, offset) in rows.dtype.fields.items()
    ]
    time = kinds["builtin_interfaces/msg/Time"](*divmod(stamp, 10**9))
    header = kinds["std_msgs/msg/Header"](time, frame)
    data = np.frombuffer(rows.tobytes(), np.uint8)
    height, width = rows.shape
    values = (header, height, width, fields, False, step, step * width, data, False)
    return bytes(types.serialize_cdr(kinds[CLOUD](*values), CLOUD))


def street(number: int) -> np.ndarray:
    """Points [P, 4] of a simulated street."""
    return simulate(7, number / 10).points


def turn(points: np.ndarray, height: int = 1) -> np.ndarray:
    """Points as records [height, width] of a Helios; rays without an echo are NaN."""
    rows = np.zeros(-(-len(points) // height) * height, HELIOS)
    for axis in "xyz":
        rows[axis] = np.nan
    for place, name in enumerate(("x", "y", "z", "intensity")):
        rows[name][: len(points)] = points[:, place] * (255 if name == "intensity" else 1)
    rows["ring"], rows["timestamp"] = np.arange(len(rows)) % 32, STAMP / 1e9
    return rows.reshape(-1, height).T


def all_of(clouds: scans.CloudQueue) -> list[LiveScan | Trouble]:
    items = []
    while True:
        try:
            items.append(clouds.get(0))
        except queue.Empty:
            return items


def test_clouds_of_a_robosense_keep_time_and_lose_only_rays_without_echo(types):
    points = street(0)
    for height in (1, 32):  # as it is sent dense, and with a row per beam
        clouds = scans.CloudQueue("/points")
        clouds.put(cloud(types, turn(points, height)))
        [scan] = [item for item in all_of(clouds) if isinstance(item, LiveScan)]
        order, same = np.lexsort(points.T), np.lexsort(scan.points.T)
        np.testing.assert_allclose(scan.points[same], points[order], rtol=0, atol=1e-6)
        assert (scan.stamp, scan.frame, clouds.dropped, clouds.left_out) == (STAMP, "lidar", 0, 0)


def test_the_newest_cloud_stays_and_what_cannot_be_read_is_told(types):
    clouds = scans.CloudQueue("/points")
    for number in range(5):
        clouds.put(cloud(types, turn(street(number)), STAMP + number))
    [scan] = [item for item in all_of(clouds) if isinstance(item, LiveScan)]
    assert (scan.stamp, clouds.dropped) == (STAMP + 4, 4)
    whole = cloud(types, turn(street(0)))
    flat = cloud(types, np.zeros(9, [("x", "f4"), ("y", "f4")]))
    for message, word in ((whole[:200], "cannot be read"), (flat, "no field z")):
        clouds.put(message)
        [trouble] = all_of(clouds)
        assert word in trouble.text and "/points" in trouble.text
    assert clouds.left_out == 2
    clouds.close()
    assert clouds.get(0) is None


def test_a_cloud_without_a_transform_is_left_out(types):
    def nowhere(frame, stamp):
        raise ValueError(f"no transform from {frame} at {stamp}")

    clouds = scans.CloudQueue("/points", nowhere)
    clouds.put(cloud(types, turn(street(0))))
    *_, trouble = all_of(clouds)
    assert f"no transform from lidar at {STAMP}" in trouble.text and clouds.left_out == 1


def run(types, detector, pose=None, count=4, target="", classes=()):
    """The messages of each scan of a drive, decoded; poses turn the car on."""
    poses = iter([pose] * count)
    clouds = scans.CloudQueue("/points", None if pose is None else lambda *_: next(poses))
    names = detector.config.class_names
    hidden, palette, outputs = scans.hidden_classes(classes, names), Palette(names), []
    with LiveDetection(clouds, detector) as frames:
        for number in range(count):
            clouds.put(cloud(types, turn(street(number)), STAMP + number * 10**8))
            while isinstance(frame := frames.get(30), Trouble):
                pass
            sent = scans.messages_of(frame, 0.3, hidden, palette, target)
            kinds = {"markers": "visualization_msgs/msg/MarkerArray"}
            outputs.append(
                {
                    name: types.deserialize_cdr(data, kinds.get(name, ARRAY))
                    for name, data in sent.items()
                }
            )
        clouds.close()
    return outputs


def boxes_in(array) -> np.ndarray:
    """[n, 7], and the score: as they were before they became messages."""
    rows = []
    for one in array.detections:
        centre, size, turn = one.bbox.center.position, one.bbox.size, one.bbox.center.orientation
        yaw = Rotation.from_quat([turn.x, turn.y, turn.z, turn.w]).as_euler("xyz")[2]
        score = one.results[0].hypothesis.score
        rows.append([centre.x, centre.y, centre.z, size.x, size.y, size.z, yaw, score])
    return np.array(rows).reshape(-1, 8)


def test_messages_tell_what_the_detector_finds(types, detector):
    outputs = run(types, detector)
    names = detector.config.class_names
    for number, sent in enumerate(outputs):
        clouds = scans.CloudQueue("/points")
        clouds.put(cloud(types, turn(street(number))))
        [scan] = [item for item in all_of(clouds) if isinstance(item, LiveScan)]
        boxes, scores, labels = (part.numpy() for part in detector(scan.points))
        strong = scores >= 0.3
        assert strong.sum() > 3
        told = boxes_in(sent["detections"])
        np.testing.assert_allclose(told[:, :6], boxes[strong, :6], rtol=1e-6)
        np.testing.assert_allclose(np.sin(told[:, 6] - boxes[strong, 6]), 0, atol=1e-6)
        np.testing.assert_allclose(told[:, 7], scores[strong], rtol=1e-6)
        kinds = [one.results[0].hypothesis.class_id for one in sent["detections"].detections]
        assert kinds == [names[label - 1] for label in labels[strong]]
        for name in ("detections", "tracks"):
            stamp = sent[name].header.stamp
            assert stamp.sec * 10**9 + stamp.nanosec == STAMP + number * 10**8  # to the nanosecond
    followed = {one.id for one in outputs[-1]["tracks"].detections}
    before = {one.id for one in outputs[-2]["tracks"].detections}
    assert len(before) >= 3 and before <= followed and "" not in followed
    texts = {
        marker.text.split()[1] for marker in outputs[-1]["markers"].markers if "#" in marker.text
    }
    assert texts == {f"#{number}" for number in followed}


def test_boxes_are_told_in_the_target_frame(types, detector):
    turned = Rotation.from_euler("xyz", [0.01, -0.02, 2.0])
    pose = scans.matrix_of((100.0, -50.0, 3.0), turned.as_quat())
    np.testing.assert_allclose(pose[:3, :3], turned.as_matrix(), atol=1e-15)
    [plain], [sent] = (run(types, detector, p, 1, t) for p, t in ((None, ""), (pose, "map")))
    here, there = boxes_in(plain["detections"]), boxes_in(sent["detections"])
    assert sent["detections"].header.frame_id == "map" and len(here) > 3
    np.testing.assert_allclose(there[:, :3], turned.apply(here[:, :3]) + pose[:3, 3], atol=1e-6)
    np.testing.assert_allclose(np.sin(there[:, 6] - here[:, 6] - 2.0), 0, atol=1e-3)
    np.testing.assert_array_equal(there[:, 3:6], here[:, 3:6])


def test_other_classes_are_left_out_and_unknown_ones_refused(types, detector):
    assert scans.hidden_classes((), ("Car", "Cyclist")) == set()
    assert scans.hidden_classes(("Car",), ("Car", "Cyclist")) == {"Cyclist"}
    with pytest.raises(ValueError, match="'Cat' is not one of Car, Cyclist"):
        scans.hidden_classes(("Cat",), ("Car", "Cyclist"))


def test_both_nodes_have_the_same_parameters():
    """But for what docs/ros2.md, which tells all of them, has as Python's or C++'s."""
    root = PACKAGE.parents[2]
    tree = ast.parse((PACKAGE / "millisecond_ros" / "node.py").read_text())
    named = (node for node in tree.body if isinstance(node, ast.AnnAssign))
    [table] = (node for node in named if ast.unparse(node.target) == "PARAMETERS")
    python = {name: default for name, (default, _) in ast.literal_eval(table.value).items()}
    text = (PACKAGE.parent / "millisecond_ros_cpp" / "src" / "node.cpp").read_text()
    cpp = {}
    for name, default in re.findall(r'^ *declare\("(\w+)", (.*?), "', text, re.M):
        numbers = re.sub(r"std::vector<[^>]*>\{(.*)\}", r"[\1]", default)
        cpp[name] = json.loads(numbers)
    assert python.pop("precision") == "fp32" and cpp.pop("precision") == "fp16"
    assert python.pop("device") == "" and (cpp.pop("full_intensity"), cpp.pop("move")) == (255, [])
    assert python == cpp and len(cpp) == 5
    section = (root / "docs" / "ros2.md").read_text().split("## Parameters")[1].split("\n## ")[0]
    extra = {"precision", "device", "full_intensity", "move"}
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == extra | set(cpp)


def test_the_node_publishes_what_the_detector_finds(types, detector, monkeypatch):
    """In ROS itself, where rclpy, tf2_ros and vision_msgs are."""
    rclpy = pytest.importorskip("rclpy")
    tf2_ros = pytest.importorskip("tf2_ros")
    pytest.importorskip("vision_msgs")
    from diagnostic_msgs.msg import DiagnosticArray
    from geometry_msgs.msg import TransformStamped
    from millisecond_ros.node import TOPICS, DetectorNode
    from rclpy.lifecycle import TransitionCallbackReturn as Outcome
    from rclpy.qos import qos_profile_sensor_data
    from rosgraph_msgs.msg import Clock
    from sensor_msgs.msg import PointCloud2

    given = {"weights": "second_small", "device": "cpu", "score": "0.3", "target_frame": "base"}
    given["use_sim_time"] = "true"  # of a bag that is paused: nothing waits for its time
    rclpy.init(args=["--ros-args", *(w for k, v in given.items() for w in ("-p", f"{k}:={v}"))])
    node, driver = DetectorNode(), rclpy.create_node("driver")
    executor = rclpy.executors.SingleThreadedExecutor()
    for one in (node, driver):
        executor.add_node(one)
    got = {name: [] for name in (*TOPICS, "diagnostics")}
    for name, kind in TOPICS.items():
        driver.create_subscription(kind, f"/millisecond/{name}", got[name].append, 10)
    driver.create_subscription(DiagnosticArray, "/diagnostics", got["diagnostics"].append, 10)
    sensor = driver.create_publisher(PointCloud2, "points", qos_profile_sensor_data)
    tf = TransformStamped(child_frame_id="lidar")
    tf.header.frame_id, tf.transform.translation.z = "base", 1.73
    tf2_ros.StaticTransformBroadcaster(driver).sendTransform(tf)

    def spin(until, seconds=60):
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            executor.spin_once(0.05)
        assert until()

    try:
        value = node._value
        monkeypatch.setattr(node, "_value", lambda n: ["Cat"] if n == "classes" else value(n))
        assert node.trigger_configure() == Outcome.FAILURE  # it stays unconfigured
        monkeypatch.undo()
        assert node.trigger_configure() == node.trigger_activate() == Outcome.SUCCESS
        spin(
            lambda: (
                sensor.get_subscription_count()
                and node._buffer.can_transform("base", "lidar", rclpy.time.Time())
            )
        )
        for number in range(4):
            sensor.publish(cloud(types, turn(street(number)), STAMP + number * 10**8))
            spin(lambda count=number + 1: all(len(got[name]) == count for name in TOPICS))
        told = boxes_in(got["detections"][-1])
        [*_, sent] = run(types, detector)
        expected = boxes_in(sent["detections"])
        expected[:, 2] += 1.73
        np.testing.assert_allclose(told, expected, atol=1e-6)
        assert got["detections"][-1].header.frame_id == "base" and got["tracks"][-1].detections
        got["diagnostics"].clear()
        spin(lambda: got["diagnostics"])
        values = {one.key: one.value for one in got["diagnostics"][0].status[0].values}
        assert (values["scans"], values["dropped"], values["left out"]) == ("4", "0", "0")
        assert 0 < float(values["detection, p50, ms"]) < float(values["cloud to messages, p50, ms"])
        bag = driver.create_publisher(Clock, "/clock", 10)
        spin(bag.get_subscription_count)
        bag.publish(Clock(clock=rclpy.time.Time(seconds=100).to_msg()))
        spin(lambda: node.get_clock().now().nanoseconds)
        tf.child_frame_id = "wheel"  # which moves
        tf2_ros.TransformBroadcaster(driver).sendTransform(tf)
        spin(lambda: node._buffer.can_transform("base", "wheel", rclpy.time.Time()))
        bag.publish(Clock(clock=rclpy.time.Time(seconds=50).to_msg()))  # it is played again
        spin(lambda: not node._buffer.can_transform("base", "wheel", rclpy.time.Time()))
        assert node.trigger_deactivate() == node.trigger_cleanup() == Outcome.SUCCESS
    finally:
        executor.shutdown()
        node.destroy_node()
        driver.destroy_node()
        rclpy.shutdown()
