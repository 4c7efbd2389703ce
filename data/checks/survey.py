"""All objects of a data set, and notes on what is unusual about its frames and boxes."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from millisecond.data.boxes import points_in_boxes, wrap_angle
from millisecond.data.checks.comparison import voxels_per_level
from millisecond.data.checks.label_readings import Doubt, LabelReadings
from millisecond.data.checks.scans import Note, Tally, oddities
from millisecond.data.checks.splits import FolderChecks
from millisecond.data.datasets import Dataset
from millisecond.data.folder.dataset import FolderDataset
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import DONT_CARE
from millisecond.ops.voxelize import VoxelGrid

FEWEST_POINTS = 100  # of a cloud that shows anything
OUTLIERS = 0.01  # share of a frame's points that may lie out of its reach
MOST_DOUBTS = 3  # mistakes in the labels, one upon another


@dataclass(frozen=True)
class Survey:
    """All objects of a data set as columns of length M, and what was odd about its frames.

    Boxes that were labelled in another way than they are read stand as they were meant."""

    frames: int
    unreadable: tuple[str, ...]  # the errors, a line each
    without_points: tuple[str, ...]  # frame ids
    without_boxes: int
    not_finite: int  # points with a coordinate or intensity that is not a number
    first_not_finite: str  # the first frame that has some, '' if none has
    intensity: tuple[float, float]  # lowest and highest
    largest_turn: float  # of the angles in the label files, either way
    oddities: tuple[str, ...]  # of the scans, each kind once
    checks: tuple[str, ...]  # what is odd about frames and splits, of plain files
    doubts: tuple[Doubt, ...]  # mistakes in the labels, in the order in which they were taken back
    read_ids: np.ndarray  # [F] str: the frames that could be read
    reach: np.ndarray  # [2, 3] metres: all but OUTLIERS of the points of each frame are in it
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
    reach: np.ndarray  # [2, 3], NaN of a frame without points
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

    Where the labels are doubted, all frames are read once more with the boxes as they seem to be
    meant. grid, ground_z: the network's grid, and the height at which its objects stand, in metres
    in the LiDAR frame; without a grid voxels and oddities are not looked at.
    """
    doubts: list[Doubt] = []
    while True:
        found, doubt = _survey(dataset, progress, grid, ground_z, doubts)
        if doubt is None or len(doubts) == MOST_DOUBTS:
            return found
        doubts.append(doubt)


def _survey(
    dataset: Dataset,
    progress: Callable[[Iterable[int]], Iterable[int]],
    grid: VoxelGrid | None,
    ground_z: float,
    doubts: Sequence[Doubt],
) -> tuple[Survey, Doubt | None]:
    """With the boxes as doubts have them, and a doubt about these."""
    looks, unreadable, tally, readings = [], [], Tally(), LabelReadings()
    checks = FolderChecks(dataset) if isinstance(dataset, FolderDataset) else None
    for index in progress(range(len(dataset))):
        try:
            frame = dataset[index]
            look = _look_at(dataset, frame, index, grid, ground_z, doubts, readings)
        except (ValueError, OSError) as error:
            unreadable.append(str(error))
            continue
        if checks is not None:
            checks.add(frame)
        looks.append(look)
        tally.add(f"frame {look.frame_id}", look.notes)
    intensity = [value for look in looks for value in look.intensity]
    reaches = [look.reach for look in looks if look.intensity]
    found = Survey(
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
        doubts=tuple(doubts),
        read_ids=np.array([look.frame_id for look in looks], dtype=str),
        reach=np.stack([np.min(reaches, axis=0)[0], np.max(reaches, axis=0)[1]])
        if reaches
        else np.zeros((2, 3)),
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
    return found, readings.doubt()


def _look_at(
    dataset: Dataset,
    frame: Frame,
    index: int,
    grid: VoxelGrid | None,
    ground_z: float,
    doubts: Sequence[Doubt],
    readings: LabelReadings,
) -> _Look:
    """Raises ValueError or OSError for a frame that cannot be read."""
    every = dataset.whole_points(index) if dataset.crop else frame.points
    whole, every = len(every), every[np.isfinite(every).all(axis=1)]
    finite = frame.points[np.isfinite(frame.points).all(axis=1)]
    if isinstance(dataset, FolderDataset):
        boxes = _as_meant(dataset.objects(index).boxes, doubts)
        turns = np.abs(boxes[:, 6])
        flat = np.zeros(len(turns), bool)
    else:
        boxes = _as_meant(frame.boxes, doubts)
        labels = dataset.labels(index)
        labels = labels.select(labels.types != DONT_CARE)
        turns = np.abs(labels.rotation_y)
        flat = np.any(labels.bbox[:, 2:] <= labels.bbox[:, :2], axis=1)
    notes: list[Note] = []
    if grid and len(frame.points) >= FEWEST_POINTS:
        notes = oddities(frame.points[:, :4], grid.point_range, ground_z)
    readings.add(every, boxes)
    boxes[:, 6] = wrap_angle(boxes[:, 6])
    boxes = boxes.astype(np.float32)
    return _Look(
        frame_id=frame.frame_id,
        points=len(frame.points),
        whole=whole,
        reach=np.quantile(finite[:, :3], (OUTLIERS / 2, 1 - OUTLIERS / 2), axis=0)
        if len(finite)
        else np.full((2, 3), np.nan),
        not_finite=len(frame.points) - len(finite),
        intensity=(finite[:, 3].min(), finite[:, 3].max()) if len(finite) else (),
        turns=turns,
        voxels=int(voxels_per_level(finite, grid)[0]) if grid else 0,
        # the survey has the intensities itself
        notes=[note for note in notes if "intensity" not in note.kind],
        names=tuple(frame.names),
        boxes=boxes,
        counts=points_in_boxes(finite, boxes).sum(axis=1),
        whole_counts=points_in_boxes(every, boxes).sum(axis=1),
        flat=flat,
    )


def _as_meant(boxes: np.ndarray, doubts: Sequence[Doubt]) -> np.ndarray:
    """[M, 7] float64, the yaw not wrapped."""
    boxes = boxes.astype(np.float64)
    for doubt in doubts:
        boxes = doubt.reading.read(boxes)
    return boxes


def voxels_of(dataset: Dataset, places: Iterable[int], grid: VoxelGrid) -> np.ndarray:
    """[F] cells of the grid with points, of the frames that can be read."""
    found = []
    for place in places:
        with suppress(ValueError, OSError):
            points = dataset[place].points
            finite = points[np.isfinite(points).all(axis=1)]
            found.append(voxels_per_level(finite, grid)[0])
    return np.array(found, int)


EMPTY = 0.02  # share of boxes without points from which it is told
EMPTY_TOLERANCE = 0.3  # share of boxes without points: the nearest to none that occlusion explains
SHORT = 0.1  # share of the points of the median cloud: fewer are not a whole scan


def short_frames(found: Survey) -> np.ndarray:
    """[F] bool: frames whose cloud has too few points for a scan; some have none."""
    least = max(FEWEST_POINTS, SHORT * float(np.median(found.whole)) if len(found.whole) else 0)
    return found.whole < least


def hollow_boxes(found: Survey) -> np.ndarray:
    """[M] bool: boxes without points for which the cloud is not to blame."""
    short = np.isin(found.frame_ids, found.read_ids[short_frames(found)])
    return (found.whole_counts == 0) & ~short


def seen_boxes(counts: np.ndarray, min_points: int) -> np.ndarray:
    """[M] bool: boxes with enough points, for what has hardly one at its distance cannot be learnt
    there. All where most have none: then the boxes or the points are wrong."""
    seen = counts >= min_points
    return seen if 2 * seen.sum() >= len(seen) else np.ones(len(counts), bool)


def empty_advice(found: Survey) -> list[str]:
    """Clouds with too few points, and boxes that hold none in the others."""
    lines, short = [], short_frames(found)
    if short.any():
        row = int(np.argmin(found.whole))
        lines.append(
            f"data: the clouds of {short.sum()} of {len(short)} frames have too few points for a "
            f"scan, such as {found.whole[row]} in frame {found.read_ids[row]} (median "
            f"{np.median(found.whole):.0f}); get the files again or take the frames out of the "
            "split"
        )
    hollow = hollow_boxes(found)
    if hollow.sum() > EMPTY * len(hollow):
        row = int(np.argmax(hollow))
        remedy = (
            "do labels and clouds have the same names, axes and unit (metres)?"
            if hollow.sum() > EMPTY_TOLERANCE * len(hollow)
            else "take them out, or correct them: a network cannot learn to see what no point shows"
        )
        lines.append(
            f"data: {hollow.sum()} of {len(hollow)} boxes hold no point, such as a "
            f"{found.names[row]} in frame {found.frame_ids[row]}; {remedy}"
        )
    return lines


def doubled_advice(found: Survey) -> list[str]:
    """Objects that stand more than once in their label file, to the last digit."""
    objects = zip(found.frame_ids.tolist(), found.names.tolist(), found.boxes, strict=True)
    count = Counter((frame, name, box.tobytes()) for frame, name, box in objects)
    more = sum(count.values()) - len(count)
    if not more:
        return []
    frame, name, _ = next(key for key, times in count.items() if times > 1)
    return [
        f"data: {more} of {len(found.boxes)} boxes stand in their label file once more, such as a "
        f"{name} in frame {frame}; take the second ones out"
    ]


APART = 1.6  # times, the medians of two groups of sizes that make two classes
SMALL_GROUP = 0.15  # share of a class that is not an outlier


def largest_group(sizes: np.ndarray) -> np.ndarray:
    """[M, 3] sizes -> [M] bool: the larger of two groups (2-means of their logarithms), or all
    where the groups are near one another or one is small."""
    logs = np.log(sizes)
    volume = logs.sum(axis=1)
    centres = logs[[int(volume.argmin()), int(volume.argmax())]]
    second = np.zeros(len(sizes), bool)
    for _ in range(20):
        distance = ((logs[:, None] - centres) ** 2).sum(axis=2)
        second = distance[:, 1] < distance[:, 0]
        if second.all() or not second.any():
            return np.ones(len(sizes), bool)
        centres = np.stack([logs[~second].mean(axis=0), logs[second].mean(axis=0)])
    medians = [np.median(sizes[rows], axis=0) for rows in (~second, second)]
    apart = np.max(medians[1] / medians[0]) > APART
    share = min(second.mean(), 1 - second.mean())
    if not apart or share < SMALL_GROUP:
        return np.ones(len(sizes), bool)
    return second if second.mean() > 0.5 else ~second
