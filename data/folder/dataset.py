"""Frames of a data set of plain files: any LiDAR, no camera, any classes."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from millisecond.data.boxes import wrap_angle
from millisecond.data.calibration import Calibration
from millisecond.data.folder.labels import (
    LabelledObjects,
    checked_box,
    objects,
    read_json_labels,
    read_text_labels,
)
from millisecond.data.folder.layout import FolderLayout
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.frame import Frame
from millisecond.data.kitti.dataset import DONT_CARE
from millisecond.data.kitti.labels import Labels, boxes_to_labels, read_labels
from millisecond.data.kitti.layout import some
from millisecond.data.packed import Split


class FolderDataset(Split):
    """The frames of a split: points of all directions, boxes in the LiDAR frame.

    The layout is told in `data.folder.layout`. Every object has difficulty 0: nothing is known of
    how well a camera sees it.
    """

    crop = False
    layout: FolderLayout

    def __init__(
        self,
        root: Path | str,
        split: str,
        classes: Sequence[str] = (),
        prepared: Path | str | None = None,
        packed: bool = True,
        labels: bool = True,
        points: PointColumns = KITTI_POINTS,
    ):
        """As `KittiDataset`, but for two arguments.

        classes: that the network finds; labels may have others, but no two that differ by upper and
        lower case only. labels: False to keep the frames that have no label file.
        """
        self.layout = FolderLayout.find(root, split, labels)
        # by name in lower case: the name, and where it stands first
        self._spelled = {name.lower(): (name, "") for name in classes}
        super().__init__(classes, prepared, packed, points)

    def prepare_command(self) -> str:
        where = ("--root", str(self.layout.root), "--splits", self.layout.split)
        return self._command("--config", "CONFIG", *where)

    def warn_of_changes(self) -> None:
        """Warns of frames that have no labels, and of clouds that are not as they were packed."""
        super().warn_of_changes()
        left_out = self.layout.unlabelled
        if left_out and left_out[0] not in self.layout.ids:
            warnings.warn(
                f"{self.layout.clouds}: {some(left_out)} without a label file and left out; an "
                "empty file says that a frame has no objects",
                stacklevel=2,
            )

    def __getitem__(self, index: int) -> Frame:
        found, frame_id = self.objects(index), self.layout.ids[index]
        boxes, packed = found.boxes.copy(), self.packed_clouds
        boxes[:, 6] = wrap_angle(boxes[:, 6].astype(np.float64))
        return Frame(
            frame_id=frame_id,
            points=packed[frame_id]
            if packed is not None and frame_id in packed
            else self.whole_points(index),
            boxes=boxes,
            names=found.names,
            difficulty=np.zeros(len(boxes), np.int8),
        )

    def objects(self, index: int) -> LabelledObjects:
        """The labelled objects as they stand in the file; none of a frame without one."""
        found = self._read(self.layout.ids[index])
        for name, place in zip(found.names, found.places, strict=True):
            right, first = self._spelled.setdefault(name.lower(), (name, place))
            if right != name:
                seen = f", as in {first}" if first else ""
                raise ValueError(f"{place}: class {name!r}; is {right!r} meant{seen}?")
        return found

    def _read(self, frame_id: str) -> LabelledObjects:
        path = self.layout.label(frame_id)
        if path is None:
            return objects([], [], [])
        if path.suffix.lower() == ".json":
            return read_json_labels(path)
        if path.parent.name == "label_2":
            return _of_kitti(path, self.layout.calibration(frame_id))
        return read_text_labels(path)

    def labels(self, index: int) -> Labels:
        """The objects as KITTI's metric takes them."""
        found = self.objects(index)
        return boxes_to_labels(found.boxes, found.names)

    def truth_files(self, frame_id: str) -> list[Path]:
        label = self.layout.label(frame_id)
        if label is None:
            return []
        of_kitti = label.parent.name == "label_2"
        return [label, self.layout.calibration(frame_id)] if of_kitti else [label]

    def view(self, frame_id: str) -> int:
        """Of the columns."""
        return zlib.crc32(repr(self.columns).encode())


def _of_kitti(path: Path, calibration: Path) -> LabelledObjects:
    """Labels in the camera's frame, without DontCare."""
    labels = read_labels(path)
    labels = labels.select(labels.types != DONT_CARE)
    boxes = Calibration.from_file(calibration).boxes_from_camera(labels.boxes)
    places = [f"{path}, object {number}" for number in range(1, len(labels) + 1)]
    checked = [checked_box(box, place) for box, place in zip(boxes.tolist(), places, strict=True)]
    return objects(checked, labels.types.tolist(), places)
