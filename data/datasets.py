"""Data sets by what lies in their folder: KITTI's layout, or plain files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data.folder.dataset import FolderDataset
from data.folder.layout import CLOUDS, cloud_folder
from data.kitti.dataset import KittiDataset
from data.kitti.layout import CLOUDS as KITTI_CLOUDS
from data.point_columns import KITTI_POINTS, PointColumns

Dataset = KittiDataset | FolderDataset


def open_dataset(
    root: Path | str,
    split: str,
    classes: Sequence[str] = (),
    prepared: Path | str | None = None,
    packed: bool = True,
    crop: bool = True,
    labels: bool = True,
    points: PointColumns = KITTI_POINTS,
) -> Dataset:
    """A split of the data set in `root`; see KittiDataset and FolderDataset for the arguments.

    Raises FileNotFoundError or ValueError, one line, where neither layout is there.
    """
    root = Path(root)
    if is_folder(root):
        return FolderDataset(root, split, classes, prepared, packed, labels, points)
    return KittiDataset(root, split, classes, prepared, packed, crop, labels, points)


def is_folder(root: Path) -> bool:
    """Whether plain files lie there. Raises FileNotFoundError where no data set does."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; give the root of a data set")
    if any((root / name).is_dir() for name in ("training", "testing", *KITTI_CLOUDS)):
        return False
    if cloud_folder(root) is None:
        raise FileNotFoundError(
            f"{root}: no data set: neither {CLOUDS[0]}/ with clouds nor training/velodyne"
        )
    return True
