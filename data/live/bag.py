"""A ROS 1 bag, a ROS 2 bag or an MCAP file as a source: clouds, or a sensor's packets."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from millisecond.data.checks.sensor import IntensityScale
from millisecond.data.files import require
from millisecond.data.formats.points import (
    Cloud,
    Field,
    cloud_of,
    columns_of,
    require_scan,
    require_size,
)
from millisecond.data.live.recording import Recording
from millisecond.data.live.scan import LiveScan, Source, Trouble, Troubles
from millisecond.data.live.velodyne import FASTEST, SLOWEST, USUAL_RATE, Packet, rate_of, turns_of

TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}  # by datatype


def read_point_cloud2(message: Any, source: object) -> Cloud:
    """Raises ValueError for sizes that do not fit together, or missing fields."""
    width, height, step = int(message.width), int(message.height), int(message.point_step)
    row = int(message.row_step)
    require_size(width * height * step, source)
    content = np.ascontiguousarray(message.data, np.uint8)
    if row != width * step and height > 1:
        if row < width * step or len(content) < height * row:
            raise ValueError(
                f"{source}: {len(content)} bytes are not {height} rows of {row}, with {width} "
                f"points of {step} each"
            )
        rows = content[: height * row].reshape(height, row)
        content = np.ascontiguousarray(rows[:, : width * step]).reshape(-1)
    order = ">" if message.is_bigendian else "<"
    fields = [
        Field(str(field.name), np.dtype(order + TYPES[field.datatype]), int(field.offset))
        for field in message.fields
        if field.datatype in TYPES
    ]
    columns = columns_of(content.data, fields, width * height, step, source)
    return cloud_of(columns, source)


CLOUD = "sensor_msgs/msg/PointCloud2"
PROBE = 20  # clouds by whose times the rate is measured
PACKETS = {  # messages of packets, and the bytes of one; of Nebula's the sensor's makers are many
    "velodyne_msgs/msg/VelodyneScan": ("VelodynePacket", "uint8[1206] data\n"),
    "pandar_msgs/msg/PandarScan": ("PandarPacket", "uint8[1500] data\nuint32 size\n"),
    "nebula_msgs/msg/NebulaPackets": ("NebulaPacket", "uint8[] data\n"),
}


class CloudReader:
    """The scans of a topic's messages of clouds, and a line for what is wrong with them."""

    def __init__(self, source: object):
        """source: what the lines name."""
        self._source = source
        self._scale, self._troubles, self._count = IntensityScale(), Troubles(), 0

    def read(self, message: Any, recorded: int) -> Iterator[LiveScan | Trouble]:
        """message: a PointCloud2; recorded: nanoseconds, its time where it has none."""
        try:
            cloud = read_point_cloud2(message, self._source)
            require_scan(cloud.points, self._source)
        except ValueError as error:
            yield from self._troubles.add("cloud", f"{error}; left out")
            return
        points, notes = self._scale(cloud)
        for note in notes:
            yield from self._troubles.add(note.kind, f"{self._source}: {note.text}", lost=False)
        header = message.header
        stamp = header.stamp.sec * 10**9 + header.stamp.nanosec or recorded
        time, name = stamp / 1e9, f"{self._count:06d}"
        frame = header.frame_id
        yield LiveScan(points, time, name, None, None, frame, recorded, stamp)
        self._count += 1

    def rest(self) -> list[Trouble]:
        """The totals that were not reported yet."""
        return self._troubles.rest()


class BagSource(Source):
    """The turns of one topic."""

    live = False

    def __init__(self, path: Path, topic: str = "", model: str = ""):
        """topic: empty where there is only one. Raises ValueError for another topic, or several."""
        self._path, self._model = path, model
        self.recording = Recording(path)
        self._topic = _chosen(self.recording.topics, topic, path)
        self.has_clouds = self.recording.topics[self._topic] not in PACKETS
        self._types = type_store(self.recording.is_ros1)
        self._frame, self._recorded = "", 0  # of the message that was read last
        self.rate = self._measured_rate()

    def __iter__(self) -> Iterator[LiveScan | Trouble]:
        reader, troubles = CloudReader(self._path), Troubles()
        messages = self._messages(troubles)
        if self.has_clouds:
            for item in messages:
                if isinstance(item, Trouble):
                    yield item
                else:
                    yield from reader.read(item[1], self._recorded)
        else:
            for turn in turns_of(_packets(messages), str(self._path), self._model):
                if isinstance(turn, LiveScan):
                    turn = turn._replace(frame=self._frame, recorded=self._recorded)
                yield turn
        yield from (*troubles.rest(), *reader.rest())

    def _messages(self, troubles: Troubles) -> Iterator[tuple[float, Any] | Trouble]:
        """Time and contents of each message; one that cannot be read is left out."""
        ros1 = self.recording.is_ros1
        deserialize = self._types.deserialize_ros1 if ros1 else self._types.deserialize_cdr
        for item in self.recording.messages(self._topic):
            if isinstance(item, Trouble):
                yield item
                continue
            try:
                message = deserialize(item.data, item.type)
            except Exception as error:  # of many kinds, e.g. AssertionError
                text = f"{self._path}: a message cannot be read ({type(error).__name__}); left out"
                yield from troubles.add("message", text)
                continue
            self._frame, self._recorded = message.header.frame_id, item.time
            stamp = message.header.stamp.sec + message.header.stamp.nanosec / 1e9
            yield stamp or item.time / 1e9, message

    def _measured_rate(self) -> float:
        """Turns per second. Raises ValueError for packets of no model that is known."""
        messages = (item for item in self._messages(Troubles()) if not isinstance(item, Trouble))
        probe = islice(messages, PROBE)
        if not self.has_clouds:
            return rate_of(_packets(probe), str(self._path), self._model) or USUAL_RATE
        steps = np.diff([time for time, _ in probe])
        step = float(np.median(steps)) if len(steps) else 0.0
        return 1 / step if 1 / FASTEST <= step <= 1 / SLOWEST else USUAL_RATE


def _packets(items: Iterable[tuple[float, Any] | Trouble]) -> Iterator[Packet | Trouble]:
    """The packets of messages."""
    for item in items:
        if isinstance(item, Trouble):
            yield item
            continue
        for packet in item[1].packets:
            data = bytes(packet.data[: getattr(packet, "size", None)])
            yield Packet(data, packet.stamp.sec + packet.stamp.nanosec / 1e9)


def type_store(ros1: bool) -> Any:
    """What decodes and encodes messages; it knows messages of packets too."""
    typesys = require("rosbags.typesys", "a bag")
    stores = typesys.Stores
    types = typesys.get_typestore(stores.ROS1_NOETIC if ros1 else stores.ROS2_HUMBLE)
    for scan, (packet, content) in PACKETS.items():  # they are not among the usual ones
        package = scan.partition("/")[0]
        texts = {
            f"{package}/msg/{packet}": f"builtin_interfaces/Time stamp\n{content}",
            scan: f"std_msgs/Header header\n{package}/{packet}[] packets\n",
        }
        for name, text in texts.items():
            types.register(typesys.get_types_from_msg(text, name))
    return types


def _chosen(topics: dict[str, str], topic: str, path: Path) -> str:
    fitting = sorted(name for name, kind in topics.items() if kind in (CLOUD, *PACKETS))
    if not fitting:
        kinds = sorted(set(topics.values()))
        raise ValueError(
            f"{path}: no topic of {' or '.join((CLOUD, *PACKETS))} in it; it has "
            f"{', '.join(kinds)[:300]}"
        )
    if not topic and len(fitting) > 1:
        raise ValueError(
            f"{path}: {len(fitting)} topics with clouds: {', '.join(fitting)}; choose one, e.g. "
            f"{path}:{fitting[0]}"
        )
    if topic and topic not in fitting:
        raise ValueError(f"{path}: no topic {topic} with clouds; it has {', '.join(fitting)}")
    return topic or fitting[0]
