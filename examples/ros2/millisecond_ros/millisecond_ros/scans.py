"""PointCloud2 to scans, and what was found in them to messages: all that needs no ROS.

Messages are bytes in CDR, as rclpy's raw subscriptions give them and its publishers take them.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Condition

import numpy as np

from millisecond.data.boxes import FollowedObjects
from millisecond.data.live.bag import CLOUD, CloudReader, type_store
from millisecond.data.live.messages import detection_array, encode, header_of, marker_array
from millisecond.data.live.scan import LiveScan, Trouble, Troubles
from millisecond.detector.draw.style import Palette
from millisecond.detector.following import NONE, LiveFrame
from millisecond.detector.tracking.ego_motion import move_boxes

PoseOf = Callable[[str, int], np.ndarray]  # frame, nanoseconds -> [4, 4] to the target frame


class CloudQueue:
    """The newest cloud of a topic, for `LiveDetection`. One that still waits when the next one
    comes is dropped, and counted."""

    def __init__(self, topic: str, pose_of: PoseOf | None = None):
        """topic: its name, for messages. pose_of: raises ValueError where the pose is not known;
        such a cloud is left out."""
        self.dropped = self.left_out = 0
        self._topic, self._pose_of = topic, pose_of
        self._types, self._reader = type_store(ros1=False), CloudReader(topic)
        self._troubles = Troubles()
        self._read: deque[LiveScan | Trouble] = deque()
        self._changed = Condition()  # guards the next two
        self._waiting: tuple[int, bytes] | None = None  # when it came, in nanoseconds; the message
        self._closed = False

    def put(self, message: bytes) -> None:
        """A PointCloud2 that has just come."""
        with self._changed:
            self.dropped += self._waiting is not None
            self._waiting = (time.time_ns(), message)
            self._changed.notify()

    def close(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def get(self, timeout: float) -> LiveScan | Trouble | None:
        """The next scan, or a line for what is wrong; None when the queue is closed. Raises
        queue.Empty when there is none within so many seconds."""
        if not self._read:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed, timeout)
                if self._closed:
                    return None
                if self._waiting is None:
                    raise queue.Empty
                (came, message), self._waiting = self._waiting, None
            self._read.extend(self._scans(came, message))
            self.left_out += not any(isinstance(item, LiveScan) for item in self._read)
        if not self._read:
            raise queue.Empty
        return self._read.popleft()

    def _scans(self, came: int, message: bytes) -> Iterator[LiveScan | Trouble]:
        """The scan of a message, if it has one, behind the troubles with it."""
        try:
            cloud = self._types.deserialize_cdr(message, CLOUD)
        except Exception as error:  # of many kinds, e.g. AssertionError
            text = f"{self._topic}: a message cannot be read ({type(error).__name__}); left out"
            yield from self._troubles.add("message", text)
            return
        for item in self._reader.read(cloud, came):
            if isinstance(item, LiveScan) and self._pose_of is not None:
                try:
                    item = item._replace(pose=self._pose_of(item.frame, item.stamp or came))
                except ValueError as error:
                    text = f"{self._topic}: {error}; left out"
                    yield from self._troubles.add("pose", text)
                    continue
            yield item


def matrix_of(shift: Sequence[float], turn: Sequence[float]) -> np.ndarray:
    """The pose [4, 4] of a shift (x, y, z) and a quaternion (x, y, z, w) of length 1."""
    x, y, z, w = turn
    pose = np.eye(4)
    pose[:3, 3] = shift
    pose[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return pose


def messages_of(
    frame: LiveFrame, score: float, hidden: set[str], palette: Palette, target: str = ""
) -> dict[str, bytes]:
    """What was found in a scan, by topics: `detections` and `tracks` (Detection3DArray; tracks have
    their number as id), `markers` of both (MarkerArray).

    score: the least that is told; hidden: classes that are not. target: the frame to which the
    scan's pose leads; empty: boxes are in the cloud's own. Raises ValueError for a time that a
    message cannot tell.
    """
    scan = frame.scan
    header = header_of(scan.time, target or scan.frame, scan.stamp)
    shown = moved(frame.objects(score, hidden), scan.pose)
    found = moved(frame._replace(tracks=None).objects(score, hidden), scan.pose)
    colours = palette.paint(shown.boxes, shown.names).colours
    messages = {"detections": detection_array(found, header)}
    if frame.tracks is not None:
        tracked = frame._replace(found=frame.found.select(NONE)).objects(score, hidden)
        messages["tracks"] = detection_array(moved(tracked, scan.pose), header)
    messages["markers"] = marker_array(shown, colours, header)
    return {name: encode(message) for name, message in messages.items()}


def moved(objects: FollowedObjects, pose: np.ndarray | None) -> FollowedObjects:
    """The objects in the frame that the pose [4, 4] leads to, where there is one."""
    if pose is None:
        return objects
    trails = tuple(trail @ pose[:3, :3].T + pose[:3, 3] for trail in objects.trails)
    return objects._replace(boxes=move_boxes(objects.boxes, pose), trails=trails)


def hidden_classes(wanted: Sequence[str], known: Sequence[str]) -> set[str]:
    """The classes that are not to be told; wanted: none for all. Raises ValueError for one that
    the network does not know."""
    wrong = [name for name in wanted if name not in known]
    if wrong:
        raise ValueError(f"classes: {wrong[0]!r} is not one of {', '.join(known)}")
    return set(known) - set(wanted) if wanted else set()
