"""Scans and the objects in them as ROS 2 messages, and as an MCAP file that Foxglove opens.

Definitions: https://github.com/ros2/common_interfaces (Humble and later) and
https://github.com/ros-perception/vision_msgs (4.0 and later).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from millisecond.data.boxes import FollowedObjects
from millisecond.data.files import make_folder, naming, require
from millisecond.data.formats.points import KITTI
from millisecond.data.live.bag import CLOUD, BagSource, type_store
from millisecond.data.live.recording import Message
from millisecond.data.live.scan import LiveScan, Trouble, Troubles

DETECTIONS = {  # they are not among the usual types
    "ObjectHypothesis": "string class_id\nfloat64 score\n",
    "ObjectHypothesisWithPose": (
        "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n"
    ),
    "BoundingBox3D": "geometry_msgs/Pose center\ngeometry_msgs/Vector3 size\n",
    "Detection3D": (
        "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox3D bbox\nstring id\n"
    ),
    "Detection3DArray": "std_msgs/Header header\nvision_msgs/Detection3D[] detections\n",
}
LATEST = 1 << 31  # seconds; the end of the times that a message can tell
FLOAT32 = 7  # a PointField's datatype
CUBE, LINE_STRIP, TEXT = 1, 4, 9  # a Marker's type
ADD, DELETE_ALL = 0, 3  # a Marker's action
OPACITY = 0.4  # of boxes
LINE, LETTERS = 0.1, 0.6  # metres: width of trails, height of labels
Colour = tuple[int, int, int]  # red, green, blue, 0 to 255


@cache
def _store() -> Any:
    types = type_store(ros1=False)
    typesys = require("rosbags.typesys", "a ROS message")
    for name, text in DETECTIONS.items():
        types.register(typesys.get_types_from_msg(text, f"vision_msgs/msg/{name}"))
    return types


def _new(kind: str, *values: Any) -> Any:
    """A message of this type; the values of its fields in their order."""
    package, _, name = kind.partition("/")
    return _store().types[f"{package}/msg/{name}"](*values)


def encode(message: Any) -> bytes:
    """The message in CDR, as a bag has it and rclpy's publishers take it."""
    return bytes(_store().serialize_cdr(message, message.__msgtype__))


def header_of(time: float, frame: str, stamp: int | None = None) -> Any:
    """A std_msgs/Header. time: seconds; stamp: the same in nanoseconds, where it is known exactly.
    Raises ValueError for a time before 1970 or after 2038."""
    rounded = _nanoseconds(time)
    seconds, nanoseconds = divmod(rounded if stamp is None else stamp, 10**9)
    return _new("std_msgs/Header", _new("builtin_interfaces/Time", seconds, nanoseconds), frame)


def _nanoseconds(time: float) -> int:
    if not 0 <= time < LATEST - 1:
        raise ValueError(
            f"a scan's time is {time} s, and a ROS message can tell 0 to {LATEST} s; write a "
            "folder instead"
        )
    return int(time) * 10**9 + round(time % 1 * 1e9)


def point_cloud(points: np.ndarray, header: Any, others: Sequence[str] = ()) -> Any:
    """A sensor_msgs/PointCloud2 of points [P, 4 + len(others)] float32: x, y, z, intensity, and
    other features by name. Their bits stay."""
    rows = np.ascontiguousarray(points, "<f4")
    names, step = (*KITTI, *others), rows.itemsize * rows.shape[1]
    fields = [
        _new("sensor_msgs/PointField", name, rows.itemsize * place, FLOAT32, 1)
        for place, name in enumerate(names)
    ]
    data, count = rows.reshape(-1).view(np.uint8), len(rows)
    values = (header, 1, count, fields, False, step, step * count, data, True)
    return _new("sensor_msgs/PointCloud2", *values)


def camera_image(path: Path, header: Any) -> Any:
    """A sensor_msgs/CompressedImage of a PNG or JPEG file. Raises OSError."""
    form = "png" if path.suffix.lower() == ".png" else "jpeg"
    data = np.frombuffer(path.read_bytes(), np.uint8)
    return _new("sensor_msgs/CompressedImage", header, form, data)


def detection_array(objects: FollowedObjects, header: Any) -> Any:
    """A vision_msgs/Detection3DArray: one hypothesis per object; its id is its track's number, or
    empty."""
    detections = []
    for box, score, name, number in zip(*objects[:4], strict=True):
        pose, size = _pose(box), _new("geometry_msgs/Vector3", *map(float, box[3:6]))
        spread = _new("geometry_msgs/PoseWithCovariance", pose, np.zeros(36))  # 0: not known
        kind = _new("vision_msgs/ObjectHypothesis", name, float(score))
        results = [_new("vision_msgs/ObjectHypothesisWithPose", kind, spread)]
        bounds = _new("vision_msgs/BoundingBox3D", pose, size)
        identity = str(number) if number else ""
        detections.append(_new("vision_msgs/Detection3D", header, results, bounds, identity))
    return _new("vision_msgs/Detection3DArray", header, detections)


def marker_array(objects: FollowedObjects, colours: Sequence[Colour], header: Any) -> Any:
    """A visualization_msgs/MarkerArray that replaces the one before: a cube, a label and, of a
    track, its trail for each object. colours: one per object."""
    flat = (0.0, 0.0, 0.0)
    markers = [_marker(header, "", 0, CUBE, flat, flat, (0, 0, 0), 0.0, action=DELETE_ALL)]
    for place, (box, score, name, number, trail) in enumerate(zip(*objects[:5], strict=True)):
        colour, top = colours[place], (*box[:2], box[2] + box[5] / 2 + LETTERS)
        text = f"{name} {f'#{number} ' if number else ''}{score:.2f}"
        letters, line = (0.0, 0.0, LETTERS), (LINE, 0.0, 0.0)
        markers.append(
            _marker(header, "boxes", place, CUBE, box[:3], box[3:6], colour, OPACITY, box[6])
        )
        markers.append(_marker(header, "labels", place, TEXT, top, letters, colour, 1.0, text=text))
        if len(trail) > 1:
            markers.append(
                _marker(header, "trails", place, LINE_STRIP, flat, line, colour, 1.0, path=trail)
            )
    return _new("visualization_msgs/MarkerArray", markers)


def _pose(box: Sequence[float]) -> Any:
    half = float(box[6]) / 2
    turn = _new("geometry_msgs/Quaternion", 0.0, 0.0, math.sin(half), math.cos(half))
    return _new("geometry_msgs/Pose", _new("geometry_msgs/Point", *map(float, box[:3])), turn)


def _marker(
    header: Any,
    family: str,
    number: int,
    kind: int,
    centre: Sequence[float],
    size: Sequence[float],
    colour: Colour,
    opacity: float,
    yaw: float = 0.0,
    path: Iterable[Any] = (),
    text: str = "",
    action: int = ADD,
) -> Any:
    """A Marker, without end, without a texture and without a mesh."""
    nothing = np.zeros(0, np.uint8)
    shape = (_pose((*centre, 0.0, 0.0, 0.0, yaw)), _new("geometry_msgs/Vector3", *map(float, size)))
    paint = _new("std_msgs/ColorRGBA", *(part / 255 for part in colour), opacity)
    ever = _new("builtin_interfaces/Duration", 0, 0)
    points = [_new("geometry_msgs/Point", *map(float, point)) for point in path]
    texture = _new("sensor_msgs/CompressedImage", header, "", nothing)
    mesh = _new("visualization_msgs/MeshFile", "", nothing)
    values = [header, family, number, kind, action, *shape, paint, ever, False, points, []]
    return _new("visualization_msgs/Marker", *values, "", texture, [], text, "", mesh, False)


NEVER = 1 << 63  # nanoseconds; the end of the times of a log
PLACE = "/millisecond"  # of the topics
IMAGE_FRAME = "camera"
WRITTEN = (  # beside the topics of a bag
    CLOUD,
    "vision_msgs/msg/Detection3DArray",
    "visualization_msgs/msg/MarkerArray",
)
UNKNOWN = f"RIHS01_{0:064d}"  # the hash of a type


def is_message_file(path: Path | None) -> bool:
    """Whether a `MessageFile` is to be written there, by the name."""
    return path is not None and path.suffix == ".mcap"


class MessageFile:
    """Scans, what was found in them and, beside, the topics of the bag they are from: an MCAP file.

    Use it as a context manager. The file takes its place, whole, when it is closed; without that,
    or without any scan, there is none.
    """

    def __init__(self, path: Path, bag: BagSource | None = None, others: Sequence[str] = ()):
        """bag: of ROS 2. others: features of a point beside x, y, z and intensity.

        Raises ValueError where the file is there already, or rosbags is missing.
        """
        bags = require("rosbags.rosbag2", "an .mcap output")
        if path.exists():
            raise ValueError(f"{path}: is there already; move it away, or give another name")
        make_folder(path.parent)
        self.path, self.scans = path, 0
        self.notes: list[str] = []  # on topics of the bag
        self._folder = TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
        self._inner = Path(self._folder.name) / "bag"
        self._writer = bags.Writer(self._inner, version=9, storage_plugin=bags.StoragePlugin.MCAP)
        self._others = others
        self._connections: dict[tuple[str, str], Any] = {}  # by topic and type
        self._described = bag.recording.described if bag else {}
        self._has_points = bag is None or not bag.has_clouds  # they are not in the bag
        self._copied = self._messages_of(bag) if bag else iter(())
        self._next: Message | None = None

    def __enter__(self) -> MessageFile:
        self._writer.open()
        self._next = next(self._copied, None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer.storage is not None:
            self._writer.abort()
        self._folder.cleanup()

    def add(self, scan: LiveScan, objects: FollowedObjects, colours: Sequence[Colour]) -> None:
        """One more scan; colours: of its objects. Raises OSError, with the path, for a full disk;
        ValueError for a time that a message cannot tell. The file is then to be given up."""
        header = header_of(scan.time, scan.frame, scan.stamp)
        time = _nanoseconds(scan.time) if scan.recorded is None else max(0, scan.recorded)
        self._copy(time)
        messages = {"detections": detection_array(objects, header)}
        messages["markers"] = marker_array(objects, colours, header)
        if self._has_points:
            messages["points"] = point_cloud(scan.points, header, self._others)
        if scan.image is not None:
            messages["image"] = camera_image(scan.image, header_of(scan.time, IMAGE_FRAME))
        for name, message in messages.items():
            self._write(f"{PLACE}/{name}", message.__msgtype__, time, encode(message))
        self.scans += 1

    def close(self) -> None:
        """The rest of the bag; then the file takes its place. Raises as `add`."""
        if self._writer.storage is None or not self.scans:
            return
        self._copy()
        with naming(self.path):
            self._writer.close()
            (self._inner / "bag.mcap").replace(self.path)

    def _copy(self, until: float = math.inf) -> None:
        """Messages of the bag up to a time in nanoseconds."""
        while self._next is not None and self._next.time <= until:
            self._write(*self._next)
            self._next = next(self._copied, None)

    def _messages_of(self, bag: BagSource) -> Iterator[Message]:
        """Raw messages of the topics that can be kept and have no new messages."""
        names = ["points"] * self._has_points + ["detections", "markers"]
        left_out = {f"{PLACE}/{name}" for name in names}
        for topic, kind in bag.recording.topics.items():
            if topic in left_out:
                self.notes.append(f"{topic}: the new messages take the place of the bag's")
            elif not self._agrees(topic, kind):
                left_out.add(topic)
                self.notes.append(f"{topic}: not copied, since it has another version of {kind}")
            elif not (self._described.get(topic) or kind in _store().types):
                self.notes.append(f"{topic}: copied without the definition of {kind}")
        troubles = Troubles()
        for item in bag.recording.messages():
            if isinstance(item, Trouble):
                self.notes.append(item.text)
            elif item.topic in left_out:
                continue
            elif item.data and 0 <= item.time < NEVER:
                yield item
            else:
                text = f"{item.topic}: a message cannot be read; left out"
                self.notes += [trouble.text for trouble in troubles.add(item.topic, text)]
        self.notes += [trouble.text for trouble in troubles.rest()]

    def _agrees(self, topic: str, kind: str) -> bool:
        """Whether the bag defines a type as the new messages have it: a file has one definition."""
        if topic not in self._described or kind not in WRITTEN:
            return True
        typesys = require("rosbags.typesys", "a bag")
        try:
            told = typesys.get_types_from_msg(self._described[topic][0], kind)
        except typesys.TypesysError:
            return False
        known = _store().fielddefs
        return all(name in known and known[name][1] == told[name][1] for name in told)

    def _write(self, topic: str, kind: str, time: int, data: bytes) -> None:
        with naming(self.path):
            if (topic, kind) not in self._connections:
                text, quality = self._described.get(topic, ("", ()))
                told: dict[str, Any] = {"msgdef": text, "rihs01": UNKNOWN}
                if kind in _store().types and (not text or kind in WRITTEN):
                    told = {"typestore": _store()}
                self._connections[topic, kind] = self._writer.add_connection(
                    topic, kind, offered_qos_profiles=quality, **told
                )
            self._writer.write(self._connections[topic, kind], time, data)
