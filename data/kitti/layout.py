"""Where the files of a KITTI data set are, and the lists of frames of its splits."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from millisecond.data.files import led_to, read_text

NAME = re.compile(r"[\w-][\w.-]*")
RECORDING = ".jsonl"  # a recording of `millisecond import`, see `read_recording`


def check_name(split: str) -> None:
    """Raises ValueError for what cannot be the name of a split: it becomes part of file names."""
    if not NAME.fullmatch(split):
        raise ValueError(
            f"split {split!r}: a name has letters, digits, '-', '_' and '.' only; a list of frames "
            "elsewhere is given as the path of a .txt file"
        )


def read_split(path: Path | str) -> tuple[str, ...]:
    """Read frame ids, one per line, in the order of the file; blank lines do not count."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such split; take one of those in {path.parent}, or the split 'all' for "
            "every frame that has a cloud"
        )
    lines = enumerate(read_text(path).splitlines(), start=1)
    numbered = [(name, number) for number, line in lines for name in line.split()]
    if not numbered:
        raise ValueError(f"{path}: the split names no frames")
    first: dict[str, int] = {}
    for name, number in numbered:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"{path}:{number}: {name[:80]!r} is not a frame id, the name of a scan without its "
                ".bin: letters, digits, '-', '_' and '.' only"
            )
        if name in first:
            raise ValueError(f"{path}:{number}: {name} is named in line {first[name]} already")
        first[name] = number
    return tuple(first)


def listed_ids(root: Path, split: str) -> tuple[str, ...]:
    """The frames of root/ImageSets/SPLIT.txt, or of the list whose path is given."""
    if split.endswith(".txt"):
        check_name(Path(split).stem)
        return read_split(split)
    check_name(split)
    return read_split(root / "ImageSets" / f"{split}.txt")


def require_files(ids: Sequence[str], folder: Path, suffix: str, needed_by: object) -> None:
    """Raise FileNotFoundError, naming the first few and the number, for ids without a file."""
    present = set()
    if folder.is_dir():
        with os.scandir(folder) as entries:
            present = {entry.name for entry in entries if entry.is_file()}
    missing = [name for name in ids if name + suffix not in present]
    if missing:
        raise FileNotFoundError(
            f"{folder}: {some([name + suffix for name in missing])} not there, of {len(ids)} "
            f"that {needed_by} names; add the files or choose another split"
        )


def some(names: Iterable[str]) -> str:
    """The first few of a list, and how many they are: 'a, b, c ... (7 in all) are'."""
    names = list(names)
    first = ", ".join(names[:3])
    if len(names) <= 3:
        return first + (" is" if len(names) == 1 else " are")
    return f"{first} ... ({len(names)} in all) are"


USUAL_IMAGE = (375, 1242)  # height, width of most of KITTI's images
LARGEST_IMAGE = 1 << 15  # pixels per side
CLOUDS = ("velodyne", "velodyne_reduced")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Layout:
    """The folders of one split, either of the object benchmark or of one recorded sequence.

    Object benchmark: root/training (root/testing for the split test) with velodyne, calib and
    label_2, and if they exist image_2 and planes. Sequence: root itself with velodyne_reduced
    (already cropped to the image), label_2 and one calib.txt. The ids of a split stand in
    root/ImageSets/SPLIT.txt, or in the file that the split names when it ends in .txt; `all` is
    every frame that has a cloud. A file test.txt is of root/testing where there is that folder.
    """

    root: Path
    split: str
    folder: Path
    clouds: Path
    cropped: bool
    ids: tuple[str, ...]
    labels: bool = True

    @classmethod
    def find(cls, root: Path | str, split: str, labels: bool = True) -> Layout:
        """Look for the split's files. labels: False where frames without a label file will do.

        Raises FileNotFoundError or ValueError naming what is missing.
        """
        root = Path(root)
        if not root.is_dir():
            raise FileNotFoundError(f"{root}: no such folder; give the root of a KITTI data set")
        part = root / ("testing" if _of_testing(root, split) else "training")
        sequence = not part.is_dir() and any((root / name).is_dir() for name in CLOUDS)
        folder = root if sequence else part
        clouds = next((folder / name for name in CLOUDS if (folder / name).is_dir()), None)
        if clouds is None:
            raise FileNotFoundError(f"{folder / 'velodyne'}: no such folder; clouds belong there")
        ids = _ids(root, split, clouds)
        layout = cls(root, split, folder, clouds, clouds.name == "velodyne_reduced", ids, labels)
        layout._require()
        return layout

    @property
    def labelled(self) -> bool:
        return self.folder.name != "testing" and (self.labels or (self.folder / "label_2").is_dir())

    @cached_property
    def unlabelled(self) -> frozenset[str]:
        """The frames that have no label file."""
        if not self.labelled:
            return frozenset(self.ids)
        if self.labels:
            return frozenset()  # they were looked for
        return frozenset(name for name in self.ids if not self.label(name).is_file())

    @cached_property
    def has_images(self) -> bool:
        return (self.folder / "image_2").is_dir()

    @cached_property
    def _shared_calibration(self) -> Path | None:
        path = self.folder / "calib.txt"
        return path if path.is_file() else None

    def cloud(self, frame_id: str) -> Path:
        return self.clouds / f"{frame_id}.bin"

    def label(self, frame_id: str) -> Path:
        return self.folder / "label_2" / f"{frame_id}.txt"

    def calibration(self, frame_id: str) -> Path:
        return self._shared_calibration or self.folder / "calib" / f"{frame_id}.txt"

    def plane(self, frame_id: str) -> Path:
        return self.folder / "planes" / f"{frame_id}.txt"

    def image(self, frame_id: str) -> Path | None:
        """The frame's image; None where the data set has no images at all."""
        return self.folder / "image_2" / f"{frame_id}.png" if self.has_images else None

    def _require(self) -> None:
        source = f"split '{self.split}'"
        require_files(self.ids, self.clouds, ".bin", source)
        if self._shared_calibration is None:
            require_files(self.ids, self.folder / "calib", ".txt", source)
        if self.labels and self.labelled:
            require_files(self.ids, self.folder / "label_2", ".txt", source)
        if self.has_images:
            require_files(self.ids, self.folder / "image_2", ".png", source)


def image_shape(path: Path) -> tuple[int, int]:
    """(height, width) from the header of a PNG file, without decoding it."""
    with path.open("rb") as file:
        header = file.read(24)
    if len(header) < 24 or header[:8] != PNG_SIGNATURE:
        raise ValueError(f"{path}: not a PNG image")
    width, height = struct.unpack(">II", header[16:])
    if not (0 < width <= LARGEST_IMAGE and 0 < height <= LARGEST_IMAGE):
        raise ValueError(f"{path}: an image of {width} x {height} pixels is not a camera's")
    return height, width


def _of_testing(root: Path, split: str) -> bool:
    """Whether a split takes its frames from root/testing."""
    if not split.endswith(".txt"):
        return split == "test"
    path = Path(split)
    own = led_to(path) == led_to(root / "ImageSets" / "test.txt")
    return own or (path.name == "test.txt" and (root / "testing").is_dir())


def _ids(root: Path, split: str, clouds: Path) -> tuple[str, ...]:
    if split == "all":
        ids = tuple(sorted(path.stem for path in clouds.glob("*.bin")))
        if not ids:
            raise FileNotFoundError(f"{clouds}: no .bin files in it")
        return ids
    return listed_ids(root, split)
