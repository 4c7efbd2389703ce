"""Where a configuration does not fit a data set, and warnings before a training starts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millisecond.data.augment import GroundTruthDatabase, in_range
from millisecond.data.checks.scans import Note, Tally, oddities
from millisecond.data.checks.sensor import full_intensity
from millisecond.data.checks.survey import (
    EMPTY_TOLERANCE,
    Survey,
    doubled_advice,
    empty_advice,
    hollow_boxes,
    largest_group,
    seen_boxes,
)
from millisecond.data.datasets import Dataset
from millisecond.data.files import led_to
from millisecond.data.formats.points import INTENSITY
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.layout import some
from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import ClassConfig, Config
from millisecond.detector.models.sparse_encoder import STRIDE

MIN_BOXES = 10  # fewer say nothing of a class's size
SIZE_TOLERANCE = 0.2  # of an anchor's side
BOTTOM_TOLERANCE = 0.25  # of an anchor's height, between its bottom and the boxes'
FAR_OFF = 3.0  # times an anchor's side: no object of that class, or not metres
OUTSIDE_TOLERANCE = 0.05  # share of boxes whose centre is out of range
RECALL_WISHED = 0.8  # share of boxes that an anchor of the same class matches
LEAST_MATCHED = 0.25  # a lower threshold would call anything an object
MOST_ERRORS = 5  # lines on frames that cannot be read


@dataclass(frozen=True)
class ClassCheck:
    """The boxes of one class beside its anchor. Figures of sizes, bottoms and overlaps are of the
    boxes in range; NaN where there are none."""

    boxes: int
    outside: int  # centre out of range
    empty: int  # no point inside
    hollow: int  # nor before the crop to the image, in whole clouds
    flat: int  # no box in the image
    sparse: int  # fewer than augment.min_points
    size: np.ndarray  # [3] mean l, w, h, metres
    spread: np.ndarray  # [3] standard deviation of them
    usual: np.ndarray  # [3] median of the larger group of sizes
    bottom: float  # median height of the lower face
    overlap: np.ndarray  # [boxes in range] IoU with the best anchor, as targets are matched
    recall: float  # share of boxes that reach the threshold `matched`


def check_class(found: Survey, config: Config, number: int) -> ClassCheck:
    """The class of that number in the configuration."""
    kind = config.classes[number]
    rows = found.names == kind.name
    boxes, counts = found.boxes[rows], found.counts[rows]
    inside = in_range(boxes, config.grid.range)
    seen = boxes[inside].astype(np.float64)
    overlap = best_overlap(config, number, boxes[inside])
    any_seen = len(seen) > 0
    nothing = np.full(3, np.nan)
    return ClassCheck(
        boxes=len(boxes),
        outside=int((~inside).sum()),
        empty=int((counts == 0).sum()),
        hollow=int(hollow_boxes(found)[rows].sum()),
        flat=int(found.flat[rows].sum()),
        sparse=int((counts < config.augment.min_points).sum()),
        size=seen[:, 3:6].mean(axis=0) if any_seen else nothing,
        spread=seen[:, 3:6].std(axis=0) if any_seen else nothing,
        usual=np.median(seen[largest_group(seen[:, 3:6]), 3:6], axis=0) if any_seen else nothing,
        bottom=float(np.median(seen[:, 2] - seen[:, 5] / 2)) if any_seen else math.nan,
        overlap=overlap,
        recall=float((overlap >= kind.matched).mean()) if any_seen else math.nan,
    )


def best_overlap(config: Config, number: int, boxes: np.ndarray) -> np.ndarray:
    """[M, 7] boxes in range -> [M] overlap with the best anchor of a class.

    All anchors of a class have one size, so the best of each rotation is the nearest in x and in y.
    """
    anchors = build_anchors(config)[:, :, number].numpy()  # [Y, X, R, 7]
    column = _nearest(anchors[0, :, 0, 0], boxes[:, 0])
    row = _nearest(anchors[:, 0, 0, 1], boxes[:, 1])
    anchor_low, anchor_high = _aligned(anchors[row, column])  # [M, R, 2]
    low, high = _aligned(boxes[:, None])  # [M, 1, 2]
    shared = np.minimum(anchor_high, high) - np.maximum(anchor_low, low)
    shared = shared.clip(min=0).prod(axis=-1)
    areas = (anchor_high - anchor_low).prod(axis=-1) + (high - low).prod(axis=-1)
    return (shared / (areas - shared)).max(axis=1, initial=0)


def reachable(overlap: np.ndarray) -> float:
    """The threshold, in steps of 0.05, that enough of the overlaps [M] reach; see LEAST_MATCHED."""
    reached = math.floor(float(np.quantile(overlap, 1 - RECALL_WISHED)) * 20) / 20
    return max(reached, LEAST_MATCHED)


def advice(config: Config, found: Survey) -> list[str]:
    """What to change, a line each: labels that are read otherwise than they were written, keys of
    the configuration, then the data."""
    lines = [f"labels: {doubt.line()}" for doubt in found.doubts]
    if lines:
        lines.append("labels: table, picture and all advice below are of boxes corrected so")
    if lines and any("points up" in line for line in found.oddities):
        lines.insert(0, "data: turn the clouds first, see below; then check the labels again")
    lines += empty_advice(found) + _range_advice(config, found) + _crop_advice(config, found)
    most = max(found.voxels, default=0)
    if most > config.grid.max_voxels_test:
        over = int((found.voxels > config.grid.max_voxels_test).sum())
        lines.append(
            f"grid.max_voxels_test: {config.grid.max_voxels_test} -> {most}; {over} of "
            f"{len(found.voxels)} frames have more voxels, which are left out"
        )
    for number, kind in enumerate(config.classes):
        lines += _class_advice(kind, check_class(found, config, number))
        lines += _size_advice(kind, found)
    others = sorted(set(found.names.tolist()) - set(config.class_names))
    if others:
        lines.append(f"not learnt, for the configuration has no such class: {', '.join(others)}")
    return lines + _data_advice(config, found)


def _class_advice(kind: ClassConfig, check: ClassCheck) -> list[str]:
    key = f"classes.{kind.name}"
    if check.boxes == 0:
        return [f"{key}: no such object in the data; take the class out, or correct its name"]
    lines = []
    if check.flat:
        lines.append(
            f"{key}: {check.flat} of {check.boxes} boxes have an empty box in the image (columns 5 "
            "to 8 of the label); without one an object has no difficulty: training never pastes "
            "it, and it counts in no AP"
        )
    if check.hollow > EMPTY_TOLERANCE * check.boxes:
        lines.append(
            f"{key}: {check.hollow} of {check.boxes} boxes hold no point; look at the picture: if "
            "boxes stand beside their points, calibration, unit, axes or height of the boxes are "
            "wrong"
        )
    lines += _bottom_advice(kind, check)
    if len(check.overlap) < MIN_BOXES:
        return lines
    size = np.array(kind.size)
    off = [np.abs(value - size) > SIZE_TOLERANCE * size for value in (check.size, check.usual)]
    if all(far.any() for far in off):
        lines.append(f"{key}.size: {_list(size)} -> {_list(check.size)}, the mean of the boxes")
    if check.recall < RECALL_WISHED:
        matched = reachable(check.overlap)
        unmatched = max(matched - (kind.matched - kind.unmatched), 0)
        only = (
            f"only {check.recall:.0%} of the boxes reach {kind.matched:g} with an anchor, the "
            "others get their best one alone"
        )
        if matched < kind.matched:
            lines.append(
                f"{key}.matched, unmatched: {kind.matched:g}, {kind.unmatched:g} -> {matched:g}, "
                f"{unmatched:g}; {only}"
            )
        elif kind.matched <= LEAST_MATCHED:
            lines.append(f"grid.voxel_size: is too coarse for {kind.name}; {only}")
    return lines


def _bottom_advice(kind: ClassConfig, check: ClassCheck) -> list[str]:
    """Of few boxes too: they all stand on the ground."""
    above = kind.bottom - check.bottom
    if not abs(above) > BOTTOM_TOLERANCE * kind.size[2]:  # NaN without boxes
        return []
    place = f"float {above:.2f} m above" if above > 0 else f"lie {-above:.2f} m below"
    boxes, recall = f"boxes' bottoms (median of {len(check.overlap)})", f"{check.recall:.0%}"
    return [
        f"classes.{kind.name}.bottom: {kind.bottom:g} -> {check.bottom:.2f}; anchors {place} the "
        f"{boxes}, their recall is {recall} at an overlap of {kind.matched:g} (a trained network "
        "must keep its own)"
    ]


def _size_advice(kind: ClassConfig, found: Survey) -> list[str]:
    far_off = _far_off(kind, found)
    if not far_off.any():
        return []
    row = int(np.argmax(far_off))
    return [
        f"classes.{kind.name}: {far_off.sum()} boxes are over {FAR_OFF:g} times larger or smaller "
        f"than the anchor, such as {_list(found.boxes[row, 3:6])} in frame {found.frame_ids[row]}; "
        "sizes are in metres"
    ]


def _far_off(kind: ClassConfig, found: Survey) -> np.ndarray:
    """[M] the boxes of a class whose size has nothing to do with its anchor's."""
    ratio = found.boxes[:, 3:6].astype(np.float64) / kind.size
    off = (ratio > FAR_OFF) | (ratio < 1 / FAR_OFF)
    return (found.names == kind.name) & off.any(axis=1)


def _range_advice(config: Config, found: Survey) -> list[str]:
    """The range that holds all boxes with points whose size can be believed."""
    believed = np.isin(found.names, config.class_names)
    for kind in config.classes:
        believed &= ~_far_off(kind, found)
    believed &= seen_boxes(found.counts, config.augment.min_points)
    boxes = found.boxes[believed].astype(np.float64)
    outside = ~in_range(boxes, config.grid.range)
    if outside.sum() <= OUTSIDE_TOLERANCE * len(boxes):
        return []
    low, high = np.array(config.grid.range[:3]), np.array(config.grid.range[3:])
    # The network's stride asks for whole multiples of so many voxels along x and y.
    multiple = STRIDE * math.prod(config.model.bev.strides)
    step = np.array(config.grid.voxel_size) * (multiple, multiple, 1)
    reach = boxes[:, 3:6].max(axis=1, keepdims=True) / 2
    least = np.quantile(boxes[:, :3] - reach, 0.005, axis=0)
    most = np.quantile(boxes[:, :3] + reach, 0.995, axis=0)
    low = low - np.ceil(np.maximum(low - least, 0) / step - 1e-6) * step
    high = high + np.ceil(np.maximum(most - high, 0) / step - 1e-6) * step
    old = np.subtract(config.grid.range[3:5], config.grid.range[:2])
    growth = ((high - low)[:2] / old).prod()
    return [
        f"grid.range: {_list(config.grid.range)} -> {_list([*low, *high])}; {outside.sum()} of "
        f"{len(boxes)} boxes have their centre outside ({growth:.1f} times the area, and memory)"
    ]


def _crop_advice(config: Config, found: Survey) -> list[str]:
    full = found.whole_counts > 0
    lost = full & (found.counts == 0)
    if not config.grid.crop_to_image or lost.sum() <= EMPTY_TOLERANCE * full.sum():
        return []
    return [
        f"grid.crop_to_image: true -> false; {lost.sum()} of {full.sum()} boxes have all their "
        "points out of the camera's picture, where they are left out (and millisecond prepare "
        "--no-crop)"
    ]


def _data_advice(config: Config, found: Survey) -> list[str]:
    lines = [f"data: {error}" for error in found.unreadable[:MOST_ERRORS]]
    if len(found.unreadable) > MOST_ERRORS:
        lines.append(f"data: {len(found.unreadable) - MOST_ERRORS} more frames cannot be read")
    lines += [f"data: {line}" for line in (*found.oddities, *found.checks)]
    lines += doubled_advice(found)
    low, high = found.intensity
    if low == high == 0 and len(found.points) and INTENSITY in config.points.features:
        lines.append(
            "points.features: [x, y, z]; the clouds have no intensities, they are taken as 0"
        )
    if low < 0 or high > 1:
        scale = config.points.intensity_scale * full_intensity(np.array([high]))
        lines.append(
            f"points.intensity_scale: {config.points.intensity_scale:g} -> {scale:g}; intensities "
            f"run from {low:g} to {high:g}, they are to be from 0 to 1"
        )
    if found.largest_turn > 2 * math.pi:
        lines.append(
            f"data: yaw or rotation_y goes up to {found.largest_turn:g} in the label files; it is "
            "an angle in radians"
        )
    if found.not_finite:
        lines.append(
            f"data: points that are not finite: {found.not_finite}, the first in frame "
            f"{found.first_not_finite}; they will be dropped"
        )
    return lines


def _nearest(grid: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Index of the entry of an ascending, even grid that is nearest to each value."""
    step = (grid[-1] - grid[0]) / max(len(grid) - 1, 1)
    return np.rint((values - grid[0]) / step).clip(0, len(grid) - 1).astype(int)


def _aligned(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corners [..., 2] of the axis-aligned boxes nearest to boxes [..., 7]."""
    across = np.abs(np.sin(boxes[..., 6:7])) > np.abs(np.cos(boxes[..., 6:7]))
    half = np.where(across, boxes[..., [4, 3]], boxes[..., 3:5]) / 2
    return boxes[..., :2] - half, boxes[..., :2] + half


def _list(values: Sequence[float] | np.ndarray) -> str:
    return "[" + ", ".join(f"{round(float(value), 2):g}" for value in values) + "]"


LOOKED_AT = 5  # training frames whose points are examined


def data_warnings(
    config: Config,
    frames: Dataset,
    validation_frames: Dataset,
    database: GroundTruthDatabase | None,
) -> list[str]:
    """A line for everything that is allowed but probably not intended."""
    lines = []
    same_place = led_to(frames.layout.clouds) == led_to(validation_frames.layout.clouds)
    shared = [name for name in validation_frames.frame_ids if name in set(frames.frame_ids)]
    if shared and same_place:
        lines.append(
            f"{some(shared)} in both splits, of {len(validation_frames)} validation frames: the "
            "AP is too high, because training sees them too"
        )
    for name, wanted in config.augment.sample.items():
        if database is None or not wanted:
            continue
        if not len(database.select(name, config.augment.min_points)):
            owned = int((database.names == name).sum())
            lines.append(
                f"no {name} to paste (augment.sample.{name}: {wanted}): of {owned} in the database "
                f"none has a difficulty and {config.augment.min_points} points; a difficulty takes "
                "a box in the image of 25 pixels or more, columns 5 to 8 of a label"
            )
    return lines + _odd_scans(config, frames)


def _odd_scans(config: Config, frames: Dataset) -> list[str]:
    """Of the first frames, each kind of oddity once."""
    tally = Tally()
    for index in range(min(LOOKED_AT, len(frames))):
        points = frames[index].points
        notes = oddities(points[:, :4], config.grid.range, config.ground_z, config.points.features)
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
