"""Prints what the ROS 2 node in Python needs beside the detector: python examples/ros2/latency.py

From the bytes of a PointCloud2 to points, and from objects to the bytes of three messages. It needs
no ROS and no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from millisecond.data.boxes import NamedDetections
from millisecond.data.live.messages import encode, header_of, point_cloud
from millisecond.data.live.scan import LiveScan
from millisecond.data.simulator import simulate
from millisecond.detector.draw.style import Palette
from millisecond.detector.following import LiveFrame, Trails
from millisecond.detector.tracking import Tracker
from millisecond.ops.lab.timing import Times, wall

sys.path.append(str(Path(__file__).with_name("millisecond_ros")))
from millisecond_ros.scans import CloudQueue, messages_of

NAMES = ("Car", "Pedestrian", "Cyclist")
RUNS = 51
START = 1.7e9  # seconds


def timed(action: Callable[[], object]) -> str:
    """The median of many runs, and the fastest."""
    times = Times.of(wall(action, RUNS))
    return f"{times.median:.2f} ms, fastest {times.least:.2f} ms"


def scan_of(clouds: CloudQueue, message: bytes) -> LiveScan:
    """The scan of a message; lines about it come before."""
    clouds.put(message)
    while not isinstance(scan := clouds.get(1), LiveScan):
        pass
    return scan


def main() -> None:
    street = simulate(7).points
    street[:, 3] *= 255  # as drivers publish intensities
    for times in (1, 8):
        points = np.tile(street, (times, 1))
        message = encode(point_cloud(points, header_of(START, "lidar")))
        clouds = CloudQueue("/points")
        scan = scan_of(clouds, message)
        figure = timed(lambda clouds=clouds, message=message: scan_of(clouds, message))
        print(f"bytes to {len(points)} points: {figure}")
    palette, random = Palette(NAMES), np.random.default_rng(0)
    for count in (10, 50):
        boxes = np.column_stack(
            [random.uniform(-40, 40, (count, 3)), np.ones((count, 3)), np.zeros(count)]
        )
        found = NamedDetections(
            boxes, np.full(count, 0.9), tuple(NAMES[i % 3] for i in range(count))
        )
        tracker, trails = Tracker(), Trails()
        for number in range(20):
            tracks = tracker.update(found, START + number / 10)
            paths = trails.update(tracks)
        frame = LiveFrame(scan, found, tracks, paths)
        figure = timed(lambda frame=frame: messages_of(frame, 0.3, set(), palette))
        print(f"{count} tracks of 20 scans to messages: {figure}")


if __name__ == "__main__":
    main()
