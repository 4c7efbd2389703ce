"""A configuration that fits a data set, each choice with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from data.column_guess import Guess
from data.survey import Survey
from detector.config import Config
from detector.config_sections import ClassConfig, GridConfig
from detector.models.sparse_encoder import STRIDE
from detector.training.data_check import LEAST_MATCHED, RECALL_WISHED, best_overlap, seen_boxes
from detector.training.size_groups import largest_group

FEWEST = 5  # boxes of a class that can be learnt
FARTHEST = 100.0  # metres: the grid ends there
VOXELS = (0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)  # metres
CELL_SHARE = 0.7  # of the narrowest class's width that a cell of the map may have
MAP_GROWTH = 4  # times the cells of the template's map
LAYERS = 40  # voxels along z: the map has two layers
BEHIND = 0.25  # of the reach ahead, from which on the data is of all directions
MARGIN = 1.0  # metres around the boxes
HEADROOM = 0.5  # metres above and below the boxes
MOST_MATCHED, GAP = 0.6, 0.15  # thresholds of the anchors
SAMPLED = (5, 20)  # least and most boxes of a class that pasting fills a scene up to
SEEN = 250  # frames of training per epoch of the template, at least


@dataclass(frozen=True)
class Choice:
    """The configuration, and the reasons by key."""

    config: Config
    reasons: dict[str, str]


def choose_config(template: Config, found: Survey, guess: Guess, frames: int) -> Choice:
    """The configuration for a data set: network, losses and recipe are the template's.

    found: of all labelled frames, without a grid. frames: that training will see. Raises ValueError
    where there are too few objects of every class.
    """
    names, counts = np.unique(found.names, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    kept = [str(names[i]) for i in order if counts[i] >= FEWEST]
    if not kept:
        raise ValueError(
            f"no class has {FEWEST} labelled boxes ({len(found.boxes)} boxes in {found.frames} "
            "frames); label more"
        )
    rows = np.isin(found.names, kept)
    boxes, box_names = found.boxes[rows].astype(np.float64), found.names[rows]
    reasons: dict[str, str] = {}
    classes = tuple(_anchor(name, boxes[box_names == name], reasons) for name in kept)
    rare = [f"{names[i]} ({counts[i]})" for i in order if counts[i] < FEWEST]
    if rare:
        reasons["classes"] = f"left out for fewer than {FEWEST} boxes: {', '.join(rare)}"
    seen = seen_boxes(found.counts[rows], template.augment.min_points)
    grid = _grid(template, classes, boxes[seen], reasons)
    sample = {name: _sampled(name, found, reasons) for name in kept}
    augment = replace(template.augment, sample=sample)
    if grid.range[0] == -grid.range[3]:
        augment = replace(augment, rotation=max(augment.rotation, round(math.pi / 4, 4)))
        reasons["augment.rotation"] = "all around, objects may stand at any angle"
    config = replace(
        template,
        classes=classes,
        grid=grid,
        augment=augment,
        train=_recipe(template, frames, reasons),
        points=guess.points,
    )
    reasons["points.columns"] = guess.columns_reason
    reasons["points.intensity_scale"] = guess.scale_reason
    inside = [boxes[box_names == kind.name].astype(np.float32) for kind in classes]
    matched = tuple(
        _thresholds(config, number, inside[number], reasons) for number in range(len(classes))
    )
    return Choice(replace(config, classes=matched), reasons)


def with_voxels(choice: Choice, voxels: np.ndarray) -> Choice:
    """The caps by the voxels [F] that frames have in the chosen grid."""
    most = int(voxels.max(initial=0))
    train, test = (max(1000, math.ceil(most * factor / 1000) * 1000) for factor in (1.3, 1.5))
    grid = replace(choice.config.grid, max_voxels_train=train, max_voxels_test=test)
    reasons = choice.reasons | {
        "grid.max_voxels_train": f"the fullest frame has {most} voxels; pasted objects add some",
        "grid.max_voxels_test": f"{test / max(most, 1):.1f} times the fullest frame",
    }
    return Choice(replace(choice.config, grid=grid), reasons)


def _anchor(name: str, boxes: np.ndarray, reasons: dict[str, str]) -> ClassConfig:
    """By the larger group of its sizes."""
    group = largest_group(boxes[:, 3:6])
    size = np.median(boxes[group, 3:6], axis=0).round(2).clip(min=0.01)
    bottom = float(np.median((boxes[:, 2] - boxes[:, 5] / 2)[group]))
    spread = (np.quantile(boxes[:, 3], (0.05, 0.95))).round(1)
    reason = f"median of {len(boxes)} boxes, lengths {spread[0]:g} to {spread[1]:g} m"
    if not group.all():
        other = np.median(boxes[~group, 3:6], axis=0)
        reason = (
            f"median of {group.sum()} of {len(boxes)} boxes; the other {(~group).sum()} are about "
            f"{' x '.join(f'{side:.1f}' for side in other)} m: label them as a class of their own"
        )
    reasons[f"classes.{name}"] = reason
    sides = tuple(float(side) for side in size)
    return ClassConfig(name, sides, round(bottom, 2), MOST_MATCHED, MOST_MATCHED - GAP)  # type: ignore[arg-type]  # three


def _grid(
    template: Config, classes: Sequence[ClassConfig], boxes: np.ndarray, reasons: dict[str, str]
) -> GridConfig:
    reach = np.hypot(boxes[:, 3], boxes[:, 4])[:, None] / 2 + MARGIN
    low = np.quantile(boxes[:, :2] - reach, 0.01, axis=0).clip(-FARTHEST, 0)
    high = np.quantile(boxes[:, :2] + reach, 0.99, axis=0).clip(0, FARTHEST)
    side = max(high[1], -low[1])
    if -low[0] > BEHIND * high[0]:
        half = float(max(high[0], -low[0], side))
        low, high = np.array([-half, -half]), np.array([half, half])
        reasons["grid.range"] = f"all around: 99 % of the boxes with points are within {half:.0f} m"
    else:
        low, high = np.array([min(low[0], 0), -side]), np.array([high[0], side])
        reasons["grid.range"] = "forward: 99 % of the boxes with points are inside"
    bottom = float(np.quantile(boxes[:, 2] - boxes[:, 5] / 2, 0.005)) - HEADROOM
    top = float(np.quantile(boxes[:, 2] + boxes[:, 5] / 2, 0.995)) + HEADROOM
    layer = float(max(0.05, math.ceil((top - bottom) / LAYERS / 0.025 - 1e-6) * 0.025))
    bottom = math.floor(bottom / layer) * layer
    voxel = _voxel(template, classes, high - low, reasons)
    cells = STRIDE * math.prod(template.model.bev.strides)
    step = voxel * cells / 2  # half: both sides grow
    low, high = -np.ceil(-low / step - 1e-6) * step, np.ceil(high / step - 1e-6) * step
    odd = np.rint((high - low) / step) % 2 == 1
    high = high + odd * step
    ends = [low[0], low[1], bottom, high[0], high[1], bottom + LAYERS * layer]
    x0, y0, z0, x1, y1, z1 = (round(float(value), 4) for value in ends)
    layer = round(layer, 4)
    reasons["z"] = f"{LAYERS} layers of {layer:g} m hold them"
    return replace(
        template.grid,
        range=(x0, y0, z0, x1, y1, z1),
        voxel_size=(voxel, voxel, layer),
    )


def _voxel(
    template: Config, classes: Sequence[ClassConfig], extent: np.ndarray, reasons: dict[str, str]
) -> float:
    """Fine enough for the narrowest class, but no finer than the map's size allows."""
    narrowest = min(classes, key=lambda kind: min(kind.size[:2]))
    width = min(narrowest.size[:2])
    fine = max((size for size in VOXELS if STRIDE * size <= CELL_SHARE * width), default=VOXELS[0])
    _, rows, columns = template.bev_cells
    most = MAP_GROWTH * rows * columns
    fitting = [size for size in VOXELS if np.prod(extent / (STRIDE * size)) <= most]
    voxel = max(fine, min(fitting, default=VOXELS[-1]))
    cell = STRIDE * voxel
    reason = f"a cell of the map is {cell:g} m; {narrowest.name} is {width:g} m wide"
    if cell > width:
        reason += ", which is less: take a template with a larger map, or a shorter range"
    elif voxel > fine:
        reason += f"; {fine:g} would make the map more than {MAP_GROWTH} times the template's"
    reasons["grid.voxel_size"] = reason
    return voxel


def _sampled(name: str, found: Survey, reasons: dict[str, str]) -> int:
    rows = found.names == name
    per_frame = np.unique(found.frame_ids[rows], return_counts=True)[1]
    usual = 2 * float(np.quantile(per_frame, 0.9))
    number = int(np.clip(math.ceil(usual), *SAMPLED))
    reasons[f"augment.sample.{name}"] = f"up to {per_frame.max()} in a frame"
    return number


def _recipe(template: Config, frames: int, reasons: dict[str, str]):
    train = template.train
    epochs = max(train.epochs, math.ceil(SEEN * train.epochs / max(frames, 1)))
    longer = epochs / train.epochs
    reasons["train.epochs"] = f"{frames} training frames; the template has {train.epochs}"
    return replace(
        train,
        epochs=epochs,
        batch_size=max(1, min(train.batch_size, frames)),
        checkpoint_every=max(1, round(train.checkpoint_every * longer)),
        validate_every=max(1, round(train.validate_every * longer)),
    )


def _thresholds(
    config: Config, number: int, boxes: np.ndarray, reasons: dict[str, str]
) -> ClassConfig:
    """So that an anchor reaches four of five boxes."""
    kind = config.classes[number]
    overlap = best_overlap(config, number, boxes)
    reached = math.floor(float(np.quantile(overlap, 1 - RECALL_WISHED)) * 20) / 20
    matched = min(max(reached, LEAST_MATCHED), MOST_MATCHED)
    share = float((overlap >= matched).mean())
    reasons[f"classes.{kind.name}"] += f"; an anchor matches {share:.0%} of them"
    return replace(kind, matched=round(matched, 2), unmatched=round(max(matched - GAP, 0), 2))
