"""KITTI's frames, and data of one's own in the same layout."""

import difflib
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from millisecond.data.calibration import Calibration, read_plane
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import DONT_CARE, TYPES, Labels, boxes_to_labels, read_labels
from millisecond.data.kitti.layout import USUAL_IMAGE, Layout, image_shape
from millisecond.data.packed import Split


class KittiDataset(Split):
    """The frames of a split: raw points, boxes in the LiDAR frame. KITTI labels only what its
    camera sees, so the points are cropped to the image; where a data set has no images, they are
    taken to be of the usual 1242 x 375 pixels.

    The layout is told in `data.kitti.layout`. Clouds come from the pack that millisecond prepare
    made, where there is one and it was made from these very files.
    """

    layout: Layout

    def __init__(
        self,
        root: Path | str,
        split: str,
        classes: Sequence[str] = (),
        prepared: Path | str | None = None,
        packed: bool = True,
        crop: bool = True,
        labels: bool = True,
        points: PointColumns = KITTI_POINTS,
    ):
        """
        Args:
            root: folder of the data set.
            split: name of a list in root/ImageSets, a path to a list (.txt), or "all".
            classes: names that labels may have beside KITTI's own.
            prepared: folder of millisecond prepare's files; root/millisecond unless given.
            packed: False to read the data set's own clouds in any case.
            crop: False for all points of a scan, where there is no camera.
            labels: False where frames without ground truth will do: not all need a label file.
            points: the columns of the clouds.

        Raises:
            FileNotFoundError, ValueError: one line naming what is missing or wrong.
        """
        self.layout = Layout.find(root, split, labels)
        self.crop = crop and not self.layout.cropped
        super().__init__(classes, prepared, packed, points)

    def pack_path(self, kind: str) -> Path:
        path = super().pack_path(kind)
        # cut to the image, clouds have other points
        return path if self.crop or self.layout.cropped else path.with_name(f"{path.name}_whole")

    def prepare_command(self) -> str:
        words = ["--root", str(self.layout.root), "--splits", self.layout.split]
        words += ["--classes", *self.classes] if set(self.classes) - set(TYPES) else []
        words += ["--no-crop"] if not (self.crop or self.layout.cropped) else []
        return self._command(*words)

    def __getitem__(self, index: int) -> Frame:
        frame_id = self.layout.ids[index]
        calibration = self.calibration(index)
        labels = None if frame_id in self.layout.unlabelled else self.labels(index)
        boxes, names, difficulty = self._objects(labels, calibration, frame_id)
        shape = self.image_shape(index)
        plane = self.layout.plane(frame_id)
        return Frame(
            frame_id=frame_id,
            points=self._points(index, calibration, shape),
            boxes=boxes,
            names=names,
            difficulty=difficulty,
            calibration=calibration,
            image_shape=shape,
            image=self.layout.image(frame_id),
            plane=read_plane(plane, calibration) if plane.is_file() else None,
        )

    def labels(self, index: int) -> Labels:
        """The label file as it is, DontCare regions too: the metric's ground truth. Nothing where
        only some frames have one and this one has none."""
        frame_id = self.layout.ids[index]
        if not self.layout.labelled:
            raise ValueError(f"frame {frame_id}: the split '{self.layout.split}' has no labels")
        if frame_id in self.layout.unlabelled:
            return boxes_to_labels(np.zeros((0, 7)), ())
        return read_labels(self.layout.label(frame_id))

    def calibration(self, index: int) -> Calibration:
        return Calibration.from_file(self.layout.calibration(self.layout.ids[index]))

    def truth_files(self, frame_id: str) -> list[Path]:
        label, plane = self.layout.label(frame_id), self.layout.plane(frame_id)
        return [label] * self.layout.labelled + [plane] * plane.is_file()

    def view(self, frame_id: str) -> int:
        """A checksum of the calibration, the image's size and the columns."""
        key = zlib.crc32(self.layout.calibration(frame_id).read_bytes())
        image = self.layout.image(frame_id)
        if image is not None:
            with image.open("rb") as file:
                key = zlib.crc32(file.read(24), key)  # the bytes that give the image's size
        return key if self.columns == KITTI_POINTS else zlib.crc32(repr(self.columns).encode(), key)

    def image_shape(self, index: int) -> tuple[int, int]:
        """(height, width) in pixels."""
        image = self.layout.image(self.layout.ids[index])
        return USUAL_IMAGE if image is None else image_shape(image)

    def _points(self, index: int, calibration: Calibration, shape: tuple[int, int]) -> np.ndarray:
        frame_id = self.layout.ids[index]
        if self.packed_clouds is not None and frame_id in self.packed_clouds:
            return self.packed_clouds[frame_id]
        self.warn_of_changes()
        points = self.whole_points(index)
        return points[calibration.in_image(points, shape)] if self.crop else points

    def _objects(
        self, labels: Labels | None, calibration: Calibration, frame_id: str
    ) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        if labels is None:
            return np.zeros((0, 7), np.float32), (), np.zeros(0, np.int8)
        path = self.layout.label(frame_id)
        known = {*TYPES, *self.classes}
        for number, name in enumerate(labels.types.tolist(), start=1):
            if name not in known:
                raise ValueError(f"{path}: object {number} is a {name!r}; {_meant(name, known)}")
        labels = labels.select(labels.types != DONT_CARE)
        flat = np.flatnonzero((labels.size <= 0).any(axis=1))
        if len(flat):
            length, height, width = labels.size[flat[0]]
            raise ValueError(
                f"{path}: a {labels.types[flat[0]]} has height {height:g}, width {width:g}, length "
                f"{length:g}; sizes are metres above 0 (DontCare is the type of an object without "
                "a box)"
            )
        boxes = calibration.boxes_from_camera(labels.boxes)
        return boxes, tuple(labels.types.tolist()), labels.difficulty


def _meant(name: str, known: Iterable[str]) -> str:
    near = {kind.lower(): kind for kind in known}
    match = difflib.get_close_matches(name.lower(), near, n=1)
    meant = f"is {near[match[0]]!r} meant? " if match else ""
    return (
        f"{meant}known are {', '.join(sorted(known))}; name a type of your own in the classes of "
        "the configuration, or after --classes where a program reads none"
    )
