"""Data sets of plain files, any LiDAR, no camera, any classes: their files and their frames."""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import wrap_angle
from millisecond.data.calibration import Calibration
from millisecond.data.files import read_text
from millisecond.data.folder.labels import (
    LabelledObjects,
    checked_box,
    objects,
    read_json_labels,
    read_text_labels,
)
from millisecond.data.formats.clouds import SUFFIXES
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import DONT_CARE, Labels, boxes_to_labels, read_labels
from millisecond.data.kitti.layout import NAME, RECORDING, listed_ids, some
from millisecond.data.packed import Split

__all__ = ["FolderDataset"]

CLOUDS = ("points", "pointclouds", "lidar")  # of OpenPCDet, labelCloud and SUSTechPOINTS
LABELS = ("labels", "label", "label_2")  # the last: of KITTI, with calibrations
LABEL_SUFFIXES = (".txt", ".json")
SEQUENCES = "sequences"  # the folder of the recordings


@dataclass(frozen=True)
class FolderLayout:
    """The files of one split.

    root/points has a cloud per frame, root/labels a label file of the same name, and
    root/ImageSets/SPLIT.txt the names of the split's frames, one per line. A split that ends in
    .txt is the path of such a list, one that ends in .jsonl a recording; `all` is every frame that
    has a cloud. Where labels are wanted, frames without a label file are left out: nobody has said
    what is in them. An empty label file is a frame without objects.
    """

    root: Path
    split: str
    clouds: Path
    ids: tuple[str, ...]
    unlabelled: tuple[str, ...]  # frames of the split that have no label file
    cloud_of: Mapping[str, Path] = field(repr=False)  # of all frames, not only of the split
    label_of: Mapping[str, Path] = field(repr=False)

    @classmethod
    def find(cls, root: Path | str, split: str, labels: bool = True) -> FolderLayout:
        """Look for the split's files. labels: False to keep the frames that have none.

        Raises FileNotFoundError or ValueError naming what is missing or twice there.
        """
        root = Path(root)
        clouds = cloud_folder(root)
        if clouds is None:
            raise FileNotFoundError(f"{root / CLOUDS[0]}: no such folder; clouds belong there")
        label_folder = next((root / name for name in LABELS if (root / name).is_dir()), None)
        if labels and label_folder is None:
            raise FileNotFoundError(f"{root / LABELS[0]}: no such folder; labels belong there")
        cloud_of = _by_name(clouds, SUFFIXES)
        label_of = _by_name(label_folder, LABEL_SUFFIXES) if label_folder else {}
        homeless = sorted(set(label_of) - set(cloud_of))
        if homeless:
            first = label_of[homeless[0]]
            raise ValueError(
                f"{first}: no cloud of this name in {clouds}; labels without a cloud: "
                f"{len(homeless)}"
            )
        ids = _ids(root, split, clouds, cloud_of)
        unlabelled = tuple(name for name in ids if name not in label_of)
        if labels:
            ids = tuple(name for name in ids if name in label_of)
            if not ids:
                raise FileNotFoundError(f"{label_folder}: no labels of any frame of '{split}'")
        return cls(root, split, clouds, ids, unlabelled, cloud_of, label_of)

    @property
    def labelled(self) -> bool:
        return bool(self.label_of)

    def cloud(self, frame_id: str) -> Path:
        return self.cloud_of[frame_id]

    def label(self, frame_id: str) -> Path | None:
        """None of a frame that has no label file."""
        return self.label_of.get(frame_id)

    def calibration(self, frame_id: str) -> Path:
        """Of labels in KITTI's form."""
        shared = self.root / "calib.txt"
        return shared if shared.is_file() else self.root / "calib" / f"{frame_id}.txt"


def cloud_folder(root: Path) -> Path | None:
    """The folder of the clouds of a data set of plain files."""
    return next((root / name for name in CLOUDS if (root / name).is_dir()), None)


def _by_name(folder: Path, suffixes: Iterable[str]) -> dict[str, Path]:
    """Files by their names without suffix. Raises ValueError for two of one name."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        # labelCloud keeps its list of classes beside the labels, in _classes.json
        if path.suffix.lower() in suffixes and path.is_file() and path.name[0] not in "._":
            other = found.setdefault(path.stem, path)
            if other is not path:
                raise ValueError(f"{path}: frame {path.stem} has {other.name} too; keep one")
    return found


def _ids(root: Path, split: str, clouds: Path, cloud_of: dict[str, Path]) -> tuple[str, ...]:
    if split == "all":
        if not cloud_of:
            raise FileNotFoundError(f"{clouds}: no clouds ({', '.join(SUFFIXES)}) in it")
        return tuple(cloud_of)
    if split.endswith(RECORDING):
        ids = tuple(frame.name for frame in read_recording(Path(split)))
    else:
        ids = listed_ids(root, split)
    missing = [name for name in ids if name not in cloud_of]
    if missing:
        raise FileNotFoundError(
            f"{clouds}: {some(missing)} not there, of {len(ids)} frames that split '{split}' "
            "names; add the clouds or take the names out of the list"
        )
    return ids


class ImportedFrame(NamedTuple):
    """What `millisecond import` tells of a scan beside its cloud and its labels."""

    name: str
    time: float  # seconds
    pose: np.ndarray | None  # [4, 4] float64, takes points of the scan to the world
    tracks: list[str | None] | None  # of each labelled object; None: nobody has labelled the scan
    velocities: list[list[float] | None] | None = None  # of each; m/s over ground along x and y


def read_recording(path: Path) -> list[ImportedFrame]:
    """The scans of root/sequences/RECORDING.jsonl, the earliest first. Raises ValueError, naming
    the line, for anything else, and where only some scans have poses."""
    frames: list[ImportedFrame] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            frame = ImportedFrame(**json.loads(line))
            good = bool(NAME.fullmatch(frame.name)) and math.isfinite(frame.time)
            if frame.pose is not None:
                pose = np.array(frame.pose, np.float64)
                frame = frame._replace(pose=pose)
                good = good and pose.shape == (4, 4) and bool(np.isfinite(pose).all())
            good = good and isinstance(frame.tracks, list | None)
            if frame.velocities is not None:
                known = [one for one in frame.velocities if one is not None]
                speeds = np.array(known, np.float64).reshape(-1, 2)
                good = good and bool(np.isfinite(speeds).all())
                good = good and len(frame.velocities) == len(frame.tracks or ())
        except (ValueError, TypeError, RecursionError):
            good = False
        if not good:
            raise ValueError(f"{path}, line {number}: not a scan as millisecond import writes it")
        if frames and frame.time <= frames[-1].time:
            raise ValueError(f"{path}, line {number}: its time is not after the one before")
        if frames and (frame.pose is None) != (frames[-1].pose is None):
            raise ValueError(f"{path}, line {number}: poses are of all scans, or of none")
        frames.append(frame)
    if not frames:
        raise ValueError(f"{path}: names no scans")
    return frames


class FolderDataset(Split):
    """The frames of a split: points of all directions, boxes in the LiDAR frame.

    `FolderLayout` describes the files. Every object has difficulty 0: nothing is known of
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
        velocities: bool = False,
    ):
        """As `KittiDataset`, but for three arguments.

        classes: that the network finds; labels may have others, but no two that differ by upper and
        lower case only. labels: False to keep the frames that have no label file. velocities:
        frames tell the velocities that root/sequences has.
        """
        self.layout = FolderLayout.find(root, split, labels)
        # by name in lower case: the name, and where it stands first
        self._spelled = {name.lower(): (name, "") for name in classes}
        self.velocities = velocities
        if velocities and not self._recorded:
            raise ValueError(
                f"{self.layout.root / SEQUENCES}: no recordings, which tell velocities; set "
                "model.velocity=false, or take a data set of millisecond import"
            )
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
            velocities=self._velocities(frame_id, len(boxes)) if self.velocities else None,
        )

    @cached_property
    def _recorded(self) -> dict[str, tuple[Path, list[list[float] | None] | None]]:
        """Of each scan of a recording its file, and the velocities that it tells."""
        paths = sorted((self.layout.root / SEQUENCES).glob(f"*{RECORDING}"))
        return {
            scan.name: (path, scan.velocities) for path in paths for scan in read_recording(path)
        }

    def _velocities(self, frame_id: str, count: int) -> np.ndarray:
        """[count, 2] float32, NaN where unknown."""
        path, known = self._recorded.get(frame_id, (None, None))
        unknown = [np.nan, np.nan]
        if known is not None and len(known) != count:
            raise ValueError(
                f"{path}: {len(known)} velocities in scan {frame_id}, whose label file has {count} "
                "objects: it was changed; set model.velocity=false, or import it anew elsewhere"
            )
        rows = [one or unknown for one in known or [None] * count]
        return np.array(rows, np.float32).reshape(-1, 2)

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
        files = [label]
        if label.parent.name == "label_2":
            files.append(self.layout.calibration(frame_id))
        if self.velocities and frame_id in self._recorded:
            files.append(self._recorded[frame_id][0])
        return files

    def view(self, frame_id: str) -> int:
        """A checksum of the columns."""
        return zlib.crc32(repr(self.columns).encode())


def _of_kitti(path: Path, calibration: Path) -> LabelledObjects:
    """Labels in the camera's frame, without DontCare."""
    labels = read_labels(path)
    labels = labels.select(labels.types != DONT_CARE)
    boxes = Calibration.from_file(calibration).boxes_from_camera(labels.boxes)
    places = [f"{path}, object {number}" for number in range(1, len(labels) + 1)]
    checked = [checked_box(box, place) for box, place in zip(boxes.tolist(), places, strict=True)]
    return objects(checked, labels.types.tolist(), places)
