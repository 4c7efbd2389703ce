"""Bags for tests, written by rosbags."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("ros1", "sqlite3", "mcap")
COMPRESSED = ("ros1 lz4", "ros1 bz2", "sqlite3 zstd", "mcap zstd")
CLOUD = "sensor_msgs/msg/PointCloud2"
DATATYPES = {"i1": 1, "u1": 2, "i2": 3, "u2": 4, "i4": 5, "u4": 6, "f4": 7, "f8": 8}
POINT = np.dtype([("x", "f4"), ("y", "f4"), ("z", "f4"), ("intensity", "f4")])


def records(points: np.ndarray, dtype: np.dtype = POINT) -> np.ndarray:
    """Points [P, 4] as records with the fields of dtype; other fields than x to intensity are 1."""
    rows = np.ones(len(points), dtype)
    for column, name in enumerate(("x", "y", "z", "intensity")):
        if name in (dtype.names or ()):
            rows[name] = points[:, column]
    return rows


class Bag:
    """Writes messages; their times are seconds."""

    def __init__(self, path: Path, kind: str):
        """path: of the file or, for ROS 2, of the folder; kind: one of KINDS, or of COMPRESSED."""
        from rosbags.rosbag1 import Writer as Writer1
        from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
        from rosbags.rosbag2 import Writer as Writer2
        from rosbags.typesys import Stores, get_typestore

        kind, _, packing = kind.partition(" ")
        self.ros1 = kind == "ros1"
        self.types = get_typestore(Stores.ROS1_NOETIC if self.ros1 else Stores.ROS2_HUMBLE)
        if self.ros1:
            self._writer: Any = Writer1(path)
            if packing:
                self._writer.set_compression(Writer1.CompressionFormat[packing.upper()])
        else:
            plugin = StoragePlugin.MCAP if kind == "mcap" else StoragePlugin.SQLITE3
            self._writer = Writer2(path, version=9, storage_plugin=plugin)
            if packing:
                mode = CompressionMode.STORAGE if kind == "mcap" else CompressionMode.MESSAGE
                self._writer.set_compression(mode, CompressionFormat.ZSTD)
        self._connections: dict[str, Any] = {}

    def __enter__(self) -> "Bag":
        self._writer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)

    def write_raw(self, topic: str, kind: str, time: float, data: bytes) -> None:
        if topic not in self._connections:
            connection = self._writer.add_connection(topic, kind, typestore=self.types)
            self._connections[topic] = connection
        self._writer.write(self._connections[topic], round(1e9 * time), data)

    def write(self, topic: str, kind: str, time: float, message: Any) -> None:
        serialize = self.types.serialize_ros1 if self.ros1 else self.types.serialize_cdr
        self.write_raw(topic, kind, time, bytes(serialize(message, kind)))

    def header(self, time: float) -> Any:
        seconds, rest = divmod(round(1e9 * time), 10**9)
        stamp = self.types.types["builtin_interfaces/msg/Time"](seconds, rest)
        number = {"seq": 0} if self.ros1 else {}
        return self.types.types["std_msgs/msg/Header"](stamp=stamp, frame_id="lidar", **number)

    def cloud(self, rows: np.ndarray, time: float, row_padding: int = 0, **changes: Any) -> Any:
        """A PointCloud2 of records [width] or [height, width]; changes: fields of the message."""
        rows = np.atleast_2d(rows)
        height, width = rows.shape
        field = self.types.types["sensor_msgs/msg/PointField"]
        order = rows.dtype[0].str[0]
        fields = [
            field(name, offset, DATATYPES[kind.str[1:]], 1)
            for name, (kind, offset) in rows.dtype.fields.items()
        ]
        lines = [row.tobytes() + b"\xff" * row_padding for row in rows]
        step = rows.dtype.itemsize
        values = {
            "header": self.header(time),
            "height": height,
            "width": width,
            "fields": fields,
            "is_bigendian": order == ">",
            "point_step": step,
            "row_step": width * step + row_padding,
            "data": np.frombuffer(b"".join(lines), np.uint8),
            "is_dense": True,
        }
        return self.types.types[CLOUD](**(values | changes))


def write_clouds(
    path: Path, kind: str, clouds: Sequence[np.ndarray], topics: Sequence[str] = ("/points",)
) -> Path:
    """Each cloud [P, 4] once per topic, ten per second; the path to open."""
    with Bag(path, kind) as bag:
        for number, points in enumerate(clouds):
            for topic in topics:
                time = 1000 + number / 10
                bag.write(topic, CLOUD, time + 0.05, bag.cloud(records(points), time))
    return path
