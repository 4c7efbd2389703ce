"""Data sets by the files in their folder: KITTI's layout, or plain files."""

from collections.abc import Sequence
from pathlib import Path

from millisecond.data.files import led_to
from millisecond.data.folder.dataset import CLOUDS, LABELS, FolderDataset, cloud_folder
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.layout import CLOUDS as KITTI_CLOUDS

OWN = (*CLOUDS, *LABELS, *KITTI_CLOUDS, "calib", "image_2", "planes", "ImageSets")
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
    velocities: bool = False,
) -> Dataset:
    """A split of the data set in `root`; see KittiDataset and FolderDataset for the arguments.

    Raises FileNotFoundError or ValueError, one line, where neither layout is there.
    """
    root = Path(root)
    if is_folder(root):
        return FolderDataset(root, split, classes, prepared, packed, labels, points, velocities)
    if velocities:
        raise ValueError(f"{root}: KITTI's labels have no velocities; set model.velocity=false")
    return KittiDataset(root, split, classes, prepared, packed, crop, labels, points)


def require_apart(output: Path, root: Path) -> None:
    """Raises ValueError for an output among the clouds, labels or other files of a data set."""
    place = led_to(output)
    for folder in (root / part / name for part in ("", "training", "testing") for name in OWN):
        if folder.is_dir() and led_to(folder) in (place, *place.parents):
            raise ValueError(
                f"{output}: is among the files of the data set in {folder}; give another --output"
            )


def is_folder(root: Path) -> bool:
    """Whether plain files lie there. Raises FileNotFoundError where no data set does."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; give the root of a data set")
    if _holds_kitti(root):
        return False
    if cloud_folder(root) is None:
        inner = (path for path in sorted(root.iterdir()) if path.is_dir())
        meant = next((path for path in inner if _holds_kitti(path) or cloud_folder(path)), None)
        raise FileNotFoundError(
            f"{root}: no data set: neither {CLOUDS[0]}/ with clouds nor training/velodyne"
            + (f"; is {meant} meant?" if meant else "")
        )
    return True


def _holds_kitti(root: Path) -> bool:
    return any((root / name).is_dir() for name in ("training", "testing", *KITTI_CLOUDS))
