"""Where the files of a data set of plain files are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millisecond.data.formats.clouds import SUFFIXES
from millisecond.data.kitti.layout import listed_ids, some, split_name

CLOUDS = ("points", "pointclouds", "lidar")  # of OpenPCDet, labelCloud and SUSTechPOINTS
LABELS = ("labels", "label", "label_2")  # the last: of KITTI, with calibrations
LABEL_SUFFIXES = (".txt", ".json")


@dataclass(frozen=True)
class FolderLayout:
    """The files of one split.

    root/points has a cloud per frame, root/labels a label file of the same name, and
    root/ImageSets/SPLIT.txt the names of the split's frames, one per line. A split that ends in
    .txt is the path of such a list; `all` is every frame that has a cloud. Where labels are wanted,
    frames without a label file are left out: nobody has said what is in them. An empty label file
    is a frame without objects.
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
    def name(self) -> str:
        """Of the split, see `split_name`."""
        return split_name(self.root, self.split, self.ids)

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
    ids = listed_ids(root, split)
    missing = [name for name in ids if name not in cloud_of]
    if missing:
        raise FileNotFoundError(
            f"{clouds}: {some(missing)} not there, of {len(ids)} frames that split '{split}' "
            "names; add the clouds or take the names out of the list"
        )
    return ids
