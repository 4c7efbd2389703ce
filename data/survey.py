"""All objects of a data set, and notes on what is unusual about its frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from data.boxes import points_in_boxes
from data.datasets import Dataset
from data.folder.checks import FolderChecks
from data.folder.dataset import FolderDataset
from data.frame import Frame
from data.kitti.dataset import DONT_CARE
from data.scan_checks import Note, Tally, oddities
from ops.voxelize import VoxelGrid, voxelize


@dataclass(frozen=True)
class Survey:
    """All objects of a data set as columns of length M, and what was odd about its frames."""

    frames: int
    unreadable: tuple[str, ...]  # the errors, a line each
    without_points: tuple[str, ...]  # frame ids
    without_boxes: int
    not_finite: int  # points with a coordinate or intensity that is no number
    first_not_finite: str  # the first frame that has some, '' if none has
    intensity: tuple[float, float]  # lowest and highest
    largest_turn: float  # of the angles in the label files, either way
    oddities: tuple[str, ...]  # of the scans, each kind once
    checks: tuple[str, ...]  # what is odd about labels and splits, of plain files
    points: np.ndarray  # [F] points of each frame that could be read
    whole: np.ndarray  # [F] the same, before the crop to the image
    voxels: np.ndarray  # [F] cells of the grid with points; empty without a grid
    names: np.ndarray  # [M] str
    frame_ids: np.ndarray  # [M] str
    boxes: np.ndarray  # [M, 7] float32, LiDAR frame
    counts: np.ndarray  # [M] points inside each box
    whole_counts: np.ndarray  # [M] the same, before the crop to the image
    flat: np.ndarray  # [M] bool: the box in the image, columns 5 to 8 of the label, is empty


class _Look(NamedTuple):
    """What one frame adds to a survey; M boxes."""

    frame_id: str
    points: int
    whole: int
    not_finite: int
    intensity: tuple[float, ...]  # lowest and highest; none of a frame without points
    turns: np.ndarray  # |angle| of the labels
    voxels: int
    notes: list[Note]
    names: tuple[str, ...]
    boxes: np.ndarray
    counts: np.ndarray
    whole_counts: np.ndarray
    flat: np.ndarray


def survey(
    dataset: Dataset,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    grid: VoxelGrid | None = None,
    ground_z: float = 0.0,
) -> Survey:
    """Read every frame; frames that cannot be read are reported, not fatal.

    grid, ground_z: the network's grid, and the height at which its objects stand, in metres in the
    LiDAR frame; without a grid voxels and oddities are not looked at.
    """
    looks, unreadable, tally = [], [], Tally()
    checks = FolderChecks(dataset) if isinstance(dataset, FolderDataset) else None
    for index in progress(range(len(dataset))):
        try:
            frame = dataset[index]
            look = _look_at(dataset, frame, index, grid, ground_z)
            if checks is not None and isinstance(dataset, FolderDataset):
                checks.add(frame, dataset.objects(index).boxes, look.counts)
        except (ValueError, OSError) as error:
            unreadable.append(str(error))
            continue
        looks.append(look)
        tally.add(f"frame {look.frame_id}", look.notes)
    intensity = [value for look in looks for value in look.intensity]
    return Survey(
        frames=len(dataset),
        unreadable=tuple(unreadable),
        without_points=tuple(look.frame_id for look in looks if not look.intensity),
        without_boxes=sum(not look.names for look in looks),
        not_finite=sum(look.not_finite for look in looks),
        first_not_finite=next((look.frame_id for look in looks if look.not_finite), ""),
        intensity=(float(min(intensity, default=0)), float(max(intensity, default=0))),
        largest_turn=float(max((turn for look in looks for turn in look.turns), default=0)),
        oddities=tuple(tally.lines()),
        checks=tuple(checks.lines()) if checks is not None else (),
        points=np.array([look.points for look in looks], dtype=int),
        whole=np.array([look.whole for look in looks], dtype=int),
        voxels=np.array([look.voxels for look in looks] if grid else [], dtype=int),
        names=np.array([name for look in looks for name in look.names], dtype=str),
        frame_ids=np.array([look.frame_id for look in looks for _ in look.names], dtype=str),
        boxes=np.concatenate([np.zeros((0, 7), np.float32), *(look.boxes for look in looks)]),
        counts=np.concatenate([np.zeros(0, int), *(look.counts for look in looks)]),
        whole_counts=np.concatenate([np.zeros(0, int), *(look.whole_counts for look in looks)]),
        flat=np.concatenate([np.zeros(0, bool), *(look.flat for look in looks)]),
    )


def _look_at(
    dataset: Dataset, frame: Frame, index: int, grid: VoxelGrid | None, ground_z: float
) -> _Look:
    """Raises ValueError or OSError for a frame that cannot be read."""
    every = dataset.whole_points(index) if dataset.crop else frame.points
    finite = frame.points[np.isfinite(frame.points).all(axis=1)]
    if isinstance(dataset, FolderDataset):
        turns = np.abs(dataset.objects(index).boxes[:, 6])
        flat = np.zeros(len(turns), bool)
    else:
        labels = dataset.labels(index)
        labels = labels.select(labels.types != DONT_CARE)
        turns = np.abs(labels.rotation_y)
        flat = np.any(labels.bbox[:, 2:] <= labels.bbox[:, :2], axis=1)
    return _Look(
        frame_id=frame.frame_id,
        points=len(frame.points),
        whole=len(every),
        not_finite=len(frame.points) - len(finite),
        intensity=(finite[:, 3].min(), finite[:, 3].max()) if len(finite) else (),
        turns=turns,
        voxels=_count_voxels(finite, grid) if grid else 0,
        notes=_oddities(frame.points[:, :4], grid, ground_z) if grid else [],
        names=tuple(frame.names),
        boxes=frame.boxes,
        counts=points_in_boxes(finite, frame.boxes).sum(axis=1),
        whole_counts=points_in_boxes(every, frame.boxes).sum(axis=1),
        flat=flat,
    )


def voxels_of(dataset: Dataset, places: Iterable[int], grid: VoxelGrid) -> np.ndarray:
    """[F] cells of the grid with points, of the frames that can be read."""
    found = []
    for place in places:
        with suppress(ValueError, OSError):
            points = dataset[place].points
            found.append(_count_voxels(points[np.isfinite(points).all(axis=1)], grid))
    return np.array(found, int)


def _count_voxels(points: np.ndarray, grid: VoxelGrid) -> int:
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    cloud = torch.from_numpy(np.ascontiguousarray(points, np.float32))
    limit = max(len(points), 1)
    return len(voxelize(cloud, offsets, grid, 1, limit).coords)


def _oddities(points: np.ndarray, grid: VoxelGrid, ground_z: float) -> list[Note]:
    """But for intensities, which the survey has itself."""
    notes = oddities(points, grid.point_range, ground_z)
    return [note for note in notes if "intensity" not in note.kind]
