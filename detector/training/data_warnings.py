"""Warnings about the data before a training starts."""

from __future__ import annotations

from data.datasets import Dataset
from data.gt_database import GroundTruthDatabase
from data.kitti.dataset import KittiDataset
from data.kitti.splits import some
from data.scan_checks import Note, Tally, oddities
from detector.config import Config

LOOKED_AT = 5  # training frames whose points are examined


def data_warnings(
    config: Config,
    frames: Dataset,
    validation_frames: Dataset,
    database: GroundTruthDatabase | None,
) -> list[str]:
    """A line for everything that is allowed but probably not intended."""
    lines = []
    same_place = frames.layout.clouds.resolve() == validation_frames.layout.clouds.resolve()
    shared = [name for name in validation_frames.frame_ids if name in set(frames.frame_ids)]
    if shared and same_place:
        lines.append(
            f"{some(shared)} in both splits, of {len(validation_frames)} validation frames: the "
            "AP is too high, because training sees them too"
        )
    for name, wanted in config.augment.sample.items():
        if database is not None and wanted and not len(_usable(database, name, config)):
            owned = int((database.names == name).sum())
            lines.append(
                f"no {name} to paste (augment.sample.{name}: {wanted}): of {owned} in the database "
                f"none has a difficulty and {config.augment.min_points} points; a difficulty takes "
                "a box in the image of 25 pixels or more, columns 5 to 8 of a label"
            )
    return lines + _odd_scans(config, frames)


def _usable(database: GroundTruthDatabase, name: str, config: Config):
    return database.select(name, config.augment.min_points)


def _odd_scans(config: Config, frames: Dataset) -> list[str]:
    """Of the first frames, each kind of oddity once."""
    tally = Tally()
    for index in range(min(LOOKED_AT, len(frames))):
        points = frames[index].points
        notes = oddities(points[:, :4], config.grid.range, config.ground_z)
        whole = 0
        if isinstance(frames, KittiDataset) and frames.crop and not frames.layout.has_images:
            whole = len(frames.whole_points(index))
        if len(points) < whole / 2:
            notes.append(
                Note(
                    "crop",
                    f"{whole - len(points)} of {whole} points are left out, for they are out of "
                    "the camera's picture; if there is no camera, say grid.crop_to_image: false",
                )
            )
        tally.add(f"frame {frames.frame_ids[index]}", notes)
    return tally.lines()
