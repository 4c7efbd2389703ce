"""The paths of tracks: where their centres were in the last scans."""

from __future__ import annotations

from collections import deque

import numpy as np

from detector.tracking import Tracks

LENGTH = 20  # scans
FORGET = 10  # scans without the track


class Trails:
    """Keeps the centres of tracks in the world, where poses are given, else in the LiDAR frame."""

    def __init__(self) -> None:
        self._paths: dict[int, deque[np.ndarray]] = {}
        self._seen: dict[int, int] = {}  # number of the scan in which the track was last seen
        self._scans = 0

    def update(self, tracks: Tracks, pose: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """The path [T, 3] of each track in the LiDAR frame of this scan, oldest first; it ends at
        the track's box. pose: [4, 4] from that frame to the world."""
        self._scans += 1
        pose = np.eye(4) if pose is None else pose
        back = np.linalg.inv(pose)
        for number, box in zip(tracks.ids.tolist(), tracks.boxes, strict=True):
            path = self._paths.setdefault(number, deque(maxlen=LENGTH))
            path.append(pose[:3, :3] @ box[:3] + pose[:3, 3])
            self._seen[number] = self._scans
        for number, scan in list(self._seen.items()):
            if self._scans - scan > FORGET:
                del self._seen[number], self._paths[number]
        worlds = (np.array(self._paths[number]) for number in tracks.ids.tolist())
        return tuple(world @ back[:3, :3].T + back[:3, 3] for world in worlds)
