"""All objects of a data set, and what is odd about its frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from data.boxes import points_in_boxes
from data.kitti.dataset import DONT_CARE, KittiDataset
from data.scan import Note, Tally, oddities
from detector.config import Config
from ops.voxelize import voxelize

Progress = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True)
class Survey:
    """All objects of a data set as columns of length M, and what was odd about its frames."""

    frames: int
    unreadable: tuple[str, ...]  # the errors, a line each
    without_points: tuple[str, ...]  # frame ids
    without_boxes: int
    not_finite: int  # points with a coordinate or intensity that is no number
    intensity: tuple[float, float]  # lowest and highest
    largest_turn: float  # of rotation_y in the label files, either way
    oddities: tuple[str, ...]  # of the scans, each kind once
    points: np.ndarray  # [F] points of each frame that could be read
    whole: np.ndarray  # [F] the same, before the crop to the image
    voxels: np.ndarray  # [F] cells of the grid with points; empty without a configuration
    names: np.ndarray  # [M] str
    frame_ids: np.ndarray  # [M] str
    boxes: np.ndarray  # [M, 7] float32, LiDAR frame
    counts: np.ndarray  # [M] points inside each box
    whole_counts: np.ndarray  # [M] the same, before the crop to the image
    flat: np.ndarray  # [M] bool: the box in the image, columns 5 to 8 of the label, is empty


def survey(
    dataset: KittiDataset, progress: Progress = iter, config: Config | None = None
) -> Survey:
    """Read every frame; frames that cannot be read are told of, not fatal.

    config: what the scans are meant for; without it voxels and oddities are not looked at.
    """
    unreadable, without_points, without_boxes, not_finite = [], [], 0, 0
    intensity, points, whole, voxels, turns, tally = [], [], [], [], [], Tally()
    names, frame_ids, boxes = [], [], [np.zeros((0, 7), np.float32)]
    counts, whole_counts, flat = ([np.zeros(0, int)] for _ in range(3))
    for index in progress(range(len(dataset))):
        try:
            frame = dataset[index]
            every = dataset.whole_points(index)
        except (ValueError, OSError) as error:
            unreadable.append(str(error))
            continue
        finite = frame.points[np.isfinite(frame.points).all(axis=1)]
        points.append(len(frame.points))
        whole.append(len(every))
        not_finite += len(frame.points) - len(finite)
        if config is not None:
            voxels.append(_voxels(finite, config))
            tally.add(f"frame {frame.frame_id}", _oddities(frame.points, config))
        without_boxes += not frame.names
        if len(finite):
            intensity += [finite[:, 3].min(), finite[:, 3].max()]
        else:
            without_points.append(frame.frame_id)
        labels = dataset.labels(index)
        labels = labels.select(labels.types != DONT_CARE)
        turns.extend(np.abs(labels.rotation_y))
        flat.append((labels.bbox[:, 2:] <= labels.bbox[:, :2]).any(axis=1))
        names += frame.names
        frame_ids += [frame.frame_id] * len(frame.names)
        boxes.append(frame.boxes)
        counts.append(points_in_boxes(finite, frame.boxes).sum(axis=1))
        whole_counts.append(points_in_boxes(every, frame.boxes).sum(axis=1))
    return Survey(
        frames=len(dataset),
        unreadable=tuple(unreadable),
        without_points=tuple(without_points),
        without_boxes=without_boxes,
        not_finite=not_finite,
        intensity=(float(min(intensity, default=0)), float(max(intensity, default=0))),
        largest_turn=float(max(turns, default=0)),
        oddities=tuple(tally.lines()),
        points=np.array(points, dtype=int),
        whole=np.array(whole, dtype=int),
        voxels=np.array(voxels, dtype=int),
        names=np.array(names, dtype=str),
        frame_ids=np.array(frame_ids, dtype=str),
        boxes=np.concatenate(boxes),
        counts=np.concatenate(counts),
        whole_counts=np.concatenate(whole_counts),
        flat=np.concatenate(flat).astype(bool),
    )


def _voxels(points: np.ndarray, config: Config) -> int:
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    cloud = torch.from_numpy(np.ascontiguousarray(points, np.float32))
    limit = max(len(points), 1)
    return len(voxelize(cloud, offsets, config.grid.voxels, 1, limit).coords)


def _oddities(points: np.ndarray, config: Config) -> list[Note]:
    """But for intensities, which the survey has itself."""
    feet = min(own.bottom for own in config.classes)
    notes = oddities(points, config.grid.range, feet)
    return [note for note in notes if "intensity" not in note.kind]
