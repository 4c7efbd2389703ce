"""Preparation of a data set for training: packed clouds and a ground-truth database."""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path

from millisecond.data.augment import COLUMNS, MOVING, GroundTruthDatabase, add_objects
from millisecond.data.datasets import Dataset
from millisecond.data.files import locked
from millisecond.data.kitti.layout import some
from millisecond.data.packed import COLUMNS as CLOUD_COLUMNS
from millisecond.data.packed import CloudOrigin, Pack, PackedClouds, PackWriter

FORMAT = "3"  # of both packs; packs of another format are made again

Progress = Callable[[Iterable[int]], Iterable[int]]


def check_clouds(dataset: Dataset) -> None:
    """Raise ValueError for clouds that are cut off, or empty: nothing can be learnt from them."""
    files = [dataset.layout.cloud(name) for name in dataset.frame_ids]
    sizes = {path.name: path.stat().st_size for path in files}
    point = 4 * len(dataset.columns.columns)
    broken = [name for name, size in sizes.items() if name.endswith(".bin") and size % point]
    empty = [name for name, size in sizes.items() if size == 0]
    if broken:
        raise ValueError(
            f"{dataset.layout.clouds}: {some(broken)} not a whole number of {point}-byte points; "
            "the copy was cut off, get the file again"
        )
    if empty:
        raise ValueError(
            f"{dataset.layout.clouds}: {some(empty)} empty; get the file again or take the frame "
            "out of the split"
        )


def prepare(dataset: Dataset, database: bool, progress: Progress) -> bool:
    """Pack the clouds of a split into the data set's folder `prepared` and, if asked, the points of
    its objects.

    Stopped at any moment and called again, it goes on where it ended; called on finished files that
    were made from this very data, it does nothing and returns False. Raises ValueError where
    another process works on it.

    Args:
        dataset: a split, opened with packed=False.
        database: make the ground-truth database too.
        progress: wraps the indices of the frames that are left, for a progress bar.
    """
    with locked(dataset.prepared):
        signature = signature_of(dataset)
        clouds, objects = dataset.pack_path("clouds"), dataset.pack_path("database")
        clouds_due = not _made(clouds, signature)
        known = MOVING if dataset.velocities else COLUMNS
        objects_due = database and dataset.layout.labelled and not _made(objects, signature)
        if not (clouds_due or objects_due):
            return False
        with (
            PackWriter(clouds, signature, CLOUD_COLUMNS, dataset.columns.width)
            if clouds_due
            else nullcontext() as cloud_pack,
            PackWriter(objects, signature, known, dataset.columns.width)
            if objects_due
            else nullcontext() as object_pack,
        ):
            writers = [writer for writer in (cloud_pack, object_pack) if writer is not None]
            for index in progress(range(min(w.steps for w in writers), len(dataset))):
                frame = dataset[index]
                if cloud_pack is not None and cloud_pack.steps == index:
                    source = CloudOrigin.of(dataset, frame.frame_id)._asdict()
                    columns = {name: [value] for name, value in source.items()}
                    cloud_pack.append([frame.points], frame=[frame.frame_id], **columns)
                if object_pack is not None and object_pack.steps == index:
                    add_objects(object_pack, frame)
            for writer in writers:
                writer.finish()
        return True


def open_database(dataset: Dataset) -> GroundTruthDatabase:
    """The database of a split that is as the files are now.

    Raises FileNotFoundError where millisecond prepare has not made it, ValueError where it is
    damaged or where labels, clouds, calibrations or the split have changed since.
    """
    path = dataset.pack_path("database")
    try:
        found = GroundTruthDatabase(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}.npz: no such file; make it with {dataset.prepare_command()}"
        ) from None
    if found.signature != signature_of(dataset):
        raise ValueError(
            f"{path}: made from other labels, clouds, calibrations or frames than are there now; "
            f"make it again with {dataset.prepare_command()}"
        )
    return found


def signature_of(dataset: Dataset) -> str:
    """A digest of everything that is learnt from: contents, not times.

    Reads all labels, and those clouds that are not packed or have changed since.
    """
    packed, known = dataset.packed_clouds, {}
    digest = hashlib.sha256(f"{FORMAT} {dataset.crop}".encode())
    with suppress(FileNotFoundError, ValueError):
        known = (packed or PackedClouds(dataset.pack_path("clouds"), dataset)).sources
    for name in dataset.frame_ids:
        source = known.get(name) or CloudOrigin.of(dataset, name)
        digest.update(f"{name} {source.content} {source.view} ".encode())
        for path in dataset.truth_files(name):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _made(path: Path, signature: str) -> bool:
    with suppress(FileNotFoundError, ValueError):  # a damaged pack is made again
        return Pack(path).signature == signature
    return False
