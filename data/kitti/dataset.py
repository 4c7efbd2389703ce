"""KITTI's frames, and data of one's own in the same layout."""

from __future__ import annotations

import difflib
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data.frame import Frame
from data.kitti.calibration import Calibration
from data.kitti.labels import TYPES, Labels, read_labels
from data.kitti.layout import USUAL_IMAGE, Layout, image_shape
from data.kitti.points import read_points
from data.kitti.road_plane import read_plane
from data.packed import Pack, index_path

DONT_CARE = "DontCare"


class KittiDataset:
    """The frames of a split: raw points cropped to the image's field of view, boxes in the LiDAR
    frame. Where a data set has no images, they are taken to be of the usual 1242 x 375 pixels.

    The layout is told in `data.kitti.layout`. Clouds come from the pack that tools/prepare_kitti.py
    made, where there is one and it was made from these very files.
    """

    def __init__(
        self,
        root: Path | str,
        split: str,
        classes: Sequence[str] = (),
        prepared: Path | str | None = None,
        packed: bool = True,
        labels: bool = True,
    ):
        """
        Args:
            root: folder of the data set.
            split: name of a list in root/ImageSets, a path to a list (.txt), or "all".
            classes: names that labels may have beside KITTI's own.
            prepared: folder of prepare_kitti's files; root/millisecond unless given.
            packed: False to read the data set's own clouds in any case.
            labels: False where frames without ground truth will do: label_2 need not be there.

        Raises:
            FileNotFoundError, ValueError: one line naming what is missing or wrong.
        """
        self.layout = Layout.find(root, split, labels)
        self.known = {*TYPES, *classes}
        folder = self.layout.root / "millisecond" if prepared is None else Path(prepared)
        self._pack = self._row = None
        path = clouds_pack(folder, self.layout.name)
        if packed and index_path(path).is_file():
            self._pack = Pack(path)
            names = self._pack.columns["frame"].tolist()
            self._row = {name: row for row, name in enumerate(names)}

    @property
    def frame_ids(self) -> tuple[str, ...]:
        return self.layout.ids

    def __len__(self) -> int:
        return len(self.layout.ids)

    def __iter__(self) -> Iterator[Frame]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Frame:
        frame_id = self.layout.ids[index]
        calibration = self.calibration(index)
        labels = self.labels(index) if self.layout.labelled else None
        boxes, names, difficulty = self._objects(labels, calibration, frame_id)
        shape = self.image_shape(index)
        plane = self.layout.plane(frame_id)
        return Frame(
            frame_id=frame_id,
            points=self._points(frame_id, calibration, shape),
            boxes=boxes,
            names=names,
            difficulty=difficulty,
            calibration=calibration,
            image_shape=shape,
            image=self.layout.image(frame_id),
            plane=read_plane(plane, calibration) if plane.is_file() else None,
        )

    def labels(self, index: int) -> Labels:
        """The label file as it is, DontCare regions too: the metric's ground truth."""
        frame_id = self.layout.ids[index]
        if not self.layout.labelled:
            raise ValueError(f"frame {frame_id}: the split '{self.layout.split}' has no labels")
        return read_labels(self.layout.label(frame_id))

    def calibration(self, index: int) -> Calibration:
        return Calibration.from_file(self.layout.calibration(self.layout.ids[index]))

    def image_shape(self, index: int) -> tuple[int, int]:
        """(height, width) in pixels."""
        image = self.layout.image(self.layout.ids[index])
        return USUAL_IMAGE if image is None else image_shape(image)

    def _points(
        self, frame_id: str, calibration: Calibration, shape: tuple[int, int]
    ) -> np.ndarray:
        path = self.layout.cloud(frame_id)
        if self._pack is not None:
            row = self._row.get(frame_id)
            key = source_key(path, calibration, shape)
            if row is not None and self._pack.columns["source"][row] == key:
                return self._pack[row]
            warnings.warn(
                f"{self._pack.path}: made before {path} or its calibration was changed; run "
                "tools/prepare_kitti.py again",
                stacklevel=3,
            )
        points = read_points(path)
        if self.layout.cropped:
            return points
        return points[calibration.in_image(points, shape)]

    def _objects(
        self, labels: Labels | None, calibration: Calibration, frame_id: str
    ) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        if labels is None:
            return np.zeros((0, 7), np.float32), (), np.zeros(0, np.int8)
        path = self.layout.label(frame_id)
        for number, name in enumerate(labels.types.tolist(), start=1):
            if name not in self.known:
                raise ValueError(f"{path}: object {number} is a {name!r}; {self._meant(name)}")
        labels = labels.select(labels.types != DONT_CARE)
        flat = np.flatnonzero((labels.size <= 0).any(axis=1))
        if len(flat):
            length, height, width = labels.size[flat[0]]
            raise ValueError(
                f"{path}: a {labels.types[flat[0]]} has height {height:g}, width {width:g}, length "
                f"{length:g}; sizes are metres above 0 (DontCare is the type of what has no box)"
            )
        boxes = calibration.boxes_from_camera(labels.boxes)
        return boxes, tuple(labels.types.tolist()), labels.difficulty

    def _meant(self, name: str) -> str:
        near = {known.lower(): known for known in self.known}
        match = difflib.get_close_matches(name.lower(), near, n=1)
        meant = f"is {near[match[0]]!r} meant? " if match else ""
        own = "types of one's own belong into the classes of the configuration"
        return f"{meant}known are {', '.join(sorted(self.known))}; {own}"


def clouds_pack(folder: Path, split: str) -> Path:
    """The pack of a split's cropped clouds (a path without suffix)."""
    return folder / f"clouds_{split}"


def source_key(path: Path, calibration: Calibration, shape: tuple[int, int]) -> int:
    """A number that changes with the cloud's file (size, time), the calibration or the image."""
    status = path.stat()
    parts = [status.st_size, status.st_mtime_ns, *shape]
    matrices = (calibration.p2, calibration.r0_rect, calibration.velo_to_cam)
    numbers = np.array(parts, np.int64).tobytes()
    return zlib.crc32(numbers + b"".join(matrix.tobytes() for matrix in matrices))
