"""What is odd about a data set of plain files: labels, doubled frames, splits that share scenes."""

from __future__ import annotations

import numpy as np

from data.folder.dataset import FolderDataset
from data.frame import Frame
from data.kitti.splits import read_split, some
from data.label_readings import LabelReadings
from data.split_leaks import Fingerprints

EMPTY = 0.02  # share of boxes without points from which it is told


class FolderChecks:
    """Looks at frame after frame; `lines` says what was odd."""

    def __init__(self, dataset: FolderDataset):
        self._layout = dataset.layout
        self._readings, self._fingerprints = LabelReadings(), Fingerprints()
        self._boxes, self._empty = 0, list[str]()

    def add(self, frame: Frame, boxes: np.ndarray, counts: np.ndarray) -> None:
        """boxes: [M, 7] as they stand in the label file; counts: [M] points in them."""
        self._boxes += len(boxes)
        empty = [name for name, count in zip(frame.names, counts, strict=True) if count == 0]
        self._empty += [f"a {name} in frame {frame.frame_id}" for name in empty]
        self._readings.add(frame.points, boxes)
        self._fingerprints.add(frame.frame_id, frame.points)

    def lines(self) -> list[str]:
        """One line per oddity."""
        found = []
        reading = self._readings.line()
        if reading is not None:
            found.append(reading)
        if len(self._empty) > EMPTY * self._boxes:
            found.append(
                f"{len(self._empty)} of {self._boxes} boxes hold no point, such as "
                f"{self._empty[0]}; take them out, or correct them: a network cannot learn to see "
                "what no point shows"
            )
        twice = self._fingerprints.duplicates()
        if twice:
            found.append(
                f"{some([name for _, name in twice])} the same cloud as another frame, such as "
                f"{twice[0][1]} as {twice[0][0]}; keep one of each"
            )
        lists = sorted((self._layout.root / "ImageSets").glob("*.txt"))
        if not lists:
            found.append(
                "no ImageSets/train.txt and val.txt; docs/own_data.md shows how to make them"
            )
        leak = self._fingerprints.leak({path.stem: read_split(path) for path in lists})
        if leak is not None:
            found.append(leak)
        left_out = self._layout.unlabelled
        if left_out:
            found.append(
                f"{some(left_out)} without a label file, and left out; an empty file says that a "
                "frame has no objects"
            )
        return found
