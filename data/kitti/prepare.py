"""What training needs of a KITTI data set, made once: packed clouds and a ground-truth database."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path

from data.frame import Frame
from data.gt_database import COLUMNS, add_objects
from data.kitti.dataset import KittiDataset, clouds_pack, source_key
from data.kitti.splits import some
from data.packed import Pack, PackWriter

CLOUD_COLUMNS = {"frame": "U", "source": "i8"}
FORMAT = "1"  # of the two packs; a new one makes them anew

Progress = Callable[[Iterable[int]], Iterable[int]]


def database_pack(folder: Path, split: str) -> Path:
    """The pack of a split's ground-truth database (a path without suffix)."""
    return folder / f"database_{split}"


def check_clouds(dataset: KittiDataset) -> None:
    """Raise ValueError for clouds that are cut off, or empty: nothing can be learnt from those."""
    sizes = {name: dataset.layout.cloud(name).stat().st_size for name in dataset.frame_ids}
    broken = [f"{name}.bin" for name, size in sizes.items() if size % 16]
    empty = [f"{name}.bin" for name, size in sizes.items() if size == 0]
    if broken:
        raise ValueError(
            f"{dataset.layout.clouds}: {some(broken)} not a whole number of 16-byte points; the "
            "copy was cut off, get the file again"
        )
    if empty:
        raise ValueError(
            f"{dataset.layout.clouds}: {some(empty)} empty; get the file again or take the frame "
            "out of the split"
        )


def prepare(dataset: KittiDataset, folder: Path, database: bool, progress: Progress) -> bool:
    """Pack the cropped clouds of a split and, if asked, the points of its objects.

    Stopped at any moment and called again, it goes on where it ended; called on finished files that
    were made from this very data, it does nothing and returns False.

    Args:
        dataset: a split, opened with packed=False.
        folder: where the packs go.
        database: make the ground-truth database too.
        progress: wraps the indices of the frames that are left, for a progress bar.
    """
    signature = _signature(dataset)
    split = dataset.layout.name
    clouds, objects = clouds_pack(folder, split), database_pack(folder, split)
    clouds_due = not _made(clouds, signature)
    objects_due = database and dataset.layout.labelled and not _made(objects, signature)
    if not (clouds_due or objects_due):
        return False
    with (
        PackWriter(clouds, signature, CLOUD_COLUMNS) if clouds_due else nullcontext() as cloud_pack,
        PackWriter(objects, signature, COLUMNS) if objects_due else nullcontext() as object_pack,
    ):
        writers = [writer for writer in (cloud_pack, object_pack) if writer is not None]
        for index in progress(range(min(w.steps for w in writers), len(dataset))):
            frame = dataset[index]
            if clouds_due and cloud_pack.steps == index:
                _add_cloud(cloud_pack, dataset, frame)
            if objects_due and object_pack.steps == index:
                add_objects(object_pack, frame)
        for writer in writers:
            writer.finish()
    return True


def _add_cloud(writer: PackWriter, dataset: KittiDataset, frame: Frame) -> None:
    path = dataset.layout.cloud(frame.frame_id)
    key = source_key(path, frame.calibration, frame.image_shape)
    writer.append([frame.points], frame=[frame.frame_id], source=[key])


def _made(path: Path, signature: str) -> bool:
    with suppress(FileNotFoundError, ValueError):  # a damaged pack is made anew
        return Pack(path).signature == signature
    return False


def _signature(dataset: KittiDataset) -> str:
    """A digest of everything that the packs are made from; of a cloud its size and time."""
    digest = hashlib.sha256(FORMAT.encode())
    layout = dataset.layout
    for index, name in enumerate(layout.ids):
        key = source_key(layout.cloud(name), dataset.calibration(index), dataset.image_shape(index))
        digest.update(f"{name} {key} ".encode())
        if layout.labelled:
            digest.update(layout.label(name).read_bytes())
    return digest.hexdigest()
