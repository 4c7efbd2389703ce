"""The ground-truth database: every labelled object cut out of its scan.

Training pastes its objects into other scans, see `paste_objects` in data/augment.py. It is a
`data.packed` pack with one entry per object: the points inside the box, in the LiDAR frame where
they were measured, and the columns frame, name, difficulty, boxes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data.boxes import points_in_boxes
from data.frame import Frame
from data.packed import Pack, PackWriter

MIN_POINTS = 5  # objects with fewer are not worth pasting
COLUMNS = {"frame": "U", "name": "U", "difficulty": "i1", "boxes": "f4"}


class GroundTruthDatabase:
    """Objects of one data set."""

    def __init__(self, path: Path | str):
        """Open the pack of this name; raises FileNotFoundError where tools/prepare.py has not
        made it, ValueError where it is damaged."""
        self._pack = Pack(path)
        columns = self._pack.columns
        self.signature = self._pack.signature  # of what it was made from
        self.names: np.ndarray = columns["name"]  # [n] str
        self.frames: np.ndarray = columns["frame"]  # [n] str
        self.difficulty: np.ndarray = columns["difficulty"]  # [n] int8
        self.boxes: np.ndarray = columns["boxes"].reshape(-1, 7)  # [n, 7] float32, LiDAR frame
        self.counts: np.ndarray = np.diff(self._pack.offsets)  # [n] points
        self._usable = {
            name: np.flatnonzero((self.names == name) & (self.difficulty >= 0))
            for name in np.unique(self.names).tolist()
        }

    def __len__(self) -> int:
        return len(self._pack)

    def points(self, entry: int) -> np.ndarray:
        """[P, 4 or more] float32 points inside the box, LiDAR frame."""
        return self._pack[entry]

    def select(self, name: str, min_points: int = MIN_POINTS) -> np.ndarray:
        """Entries of a class that have a difficulty and at least so many points."""
        entries = self._usable.get(name, np.zeros(0, np.int64))
        return entries[self.counts[entries] >= min_points]


def add_objects(writer: PackWriter, frame: Frame) -> None:
    """Append a frame's objects of at least MIN_POINTS points to a database."""
    inside = points_in_boxes(frame.points, frame.boxes)
    kept = np.flatnonzero(inside.sum(axis=1) >= MIN_POINTS)
    writer.append(
        [frame.points[inside[entry]] for entry in kept],
        frame=[frame.frame_id] * len(kept),
        name=[frame.names[entry] for entry in kept],
        difficulty=frame.difficulty[kept],
        boxes=frame.boxes[kept],
    )
