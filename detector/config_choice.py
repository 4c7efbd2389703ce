"""A configuration that fits a data set: each choice with its reason, also as commented YAML."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import yaml

from millisecond.data.checks.sensor import Guess
from millisecond.data.checks.survey import Survey, largest_group, seen_boxes
from millisecond.data.schema import plain
from millisecond.detector.config import LARGEST_SIDE, ClassConfig, Config, GridConfig
from millisecond.detector.config_check import best_overlap, reachable
from millisecond.detector.models.sparse_encoder import STRIDE

FEWEST = 5  # boxes of a class that can be learnt
FARTHEST = 100.0  # metres: the grid ends there
VOXELS = (0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)  # metres
CELL_SHARE = 0.7  # of the narrowest class's width that a cell of the map may have
MAP_GROWTH = 4  # times the cells of the template's map
LAYERS = 40  # voxels along z: the map has two layers
BEHIND = 0.25  # of the reach to one side, from which on there is something on the other one
SHARES = (1.0, 0.99)  # of the boxes in the range; fewer where that allows finer voxels
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
    grid = _grid(template, classes, boxes[seen], found.reach, reasons)
    sample = {name: _sampled(name, found, reasons) for name in kept}
    augment = replace(template.augment, sample=sample)
    x0, _, _, x1, _, _ = grid.range
    both_sides = _both_sides(found.reach[:, 1])
    if x0 == -x1 and both_sides:
        augment = replace(augment, rotation=max(augment.rotation, round(math.pi / 4, 4)))
        reasons["augment.rotation"] = "all around, objects may stand at any angle"
    if not both_sides:
        augment = replace(augment, flip=0.0)
        reasons["augment.flip"] = "mirrored, the points would be out of the range"
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
    if max(sides) > LARGEST_SIDE:
        raise ValueError(
            f"class {name}: the median box is {' x '.join(f'{side:g}' for side in sides)}; sizes "
            "are in metres"
        )
    return ClassConfig(name, sides, round(bottom, 2), MOST_MATCHED, MOST_MATCHED - GAP)  # type: ignore[arg-type]  # three


def _grid(
    template: Config,
    classes: Sequence[ClassConfig],
    boxes: np.ndarray,
    reach: np.ndarray,
    reasons: dict[str, str],
) -> GridConfig:
    tried = []
    for share in SHARES:
        why: dict[str, str] = {}
        low, high = _extent(boxes, reach, share, why)
        tried.append((_voxel(template, classes, high - low, why), low, high, why))
    voxel, low, high, why = min(tried, key=lambda choice: choice[0])  # the first of equal ones
    reasons |= why
    bottom = float((boxes[:, 2] - boxes[:, 5] / 2).min()) - HEADROOM
    top = float((boxes[:, 2] + boxes[:, 5] / 2).max()) + HEADROOM
    layer = float(max(0.05, math.ceil((top - bottom) / LAYERS / 0.025 - 1e-6) * 0.025))
    bottom = math.floor(bottom / layer) * layer
    cells = STRIDE * math.prod(template.model.bev.strides)
    step = voxel * cells / 2  # half: both sides grow
    low, high = -np.ceil(-low / step - 1e-6) * step, np.ceil(high / step - 1e-6) * step
    odd = np.rint((high - low) / step) % 2 == 1
    high = high + odd * step
    ends = [low[0], low[1], bottom, high[0], high[1], bottom + LAYERS * layer]
    x0, y0, z0, x1, y1, z1 = (round(float(value), 4) for value in ends)
    layer = round(layer, 4)
    reasons["z"] = f"{LAYERS} layers of {layer:g} m hold them"
    return replace(template.grid, range=(x0, y0, z0, x1, y1, z1), voxel_size=(voxel, voxel, layer))


def _extent(
    boxes: np.ndarray, reach: np.ndarray, share: float, reasons: dict[str, str]
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends [2] of x and y, metres: a share of the boxes in every direction, and the
    places like theirs on the other sides of the sensor where there are points. reach: see
    `Survey`."""
    cos, sin = np.abs(np.cos(boxes[:, 6:])), np.abs(np.sin(boxes[:, 6:]))
    length, width = boxes[:, 3:4], boxes[:, 4:5]
    half = np.concatenate([length * cos + width * sin, length * sin + width * cos], axis=1) / 2
    lower, upper = boxes[:, :2] - half - MARGIN, boxes[:, :2] + half + MARGIN
    ends = np.stack([np.quantile(lower, 1 - share, axis=0), np.quantile(upper, share, axis=0)])
    ends = ends.clip(-FARTHEST, FARTHEST)
    low, high = ends
    farthest = np.abs(ends).max(axis=0)  # of x and y, either way
    if _both_sides(ends[:, 0]):
        usual = np.abs([np.quantile(lower, 0.01, axis=0), np.quantile(upper, 0.99, axis=0)])
        wide = np.maximum(farthest, min(np.max(usual), FARTHEST))
        wide_low, wide_high, way = -wide, wide, "all around"
    else:
        wide_low = np.array([min(low[0], 0), -farthest[1]])
        wide_high, way = np.array([max(high[0], 0), farthest[1]]), "one way"
    most = "all boxes" if share == 1 else f"{share:.0%} of the boxes"
    reason = f"{way}: {most} with points are within {farthest.max():.0f} m"
    for axis, (less, more) in enumerate((("behind", "ahead"), ("on the right", "on the left"))):
        if _both_sides(reach[:, axis]):
            continue
        seen = reach[0, axis] - MARGIN, reach[1, axis] + MARGIN
        if min(low[axis], seen[0]) > wide_low[axis]:
            wide_low[axis], reason = min(low[axis], seen[0]), f"{reason}, few points {less}"
        if max(high[axis], seen[1]) < wide_high[axis]:
            wide_high[axis], reason = max(high[axis], seen[1]), f"{reason}, few points {more}"
    reasons["grid.range"] = reason
    return wide_low, wide_high


def _both_sides(ends: np.ndarray) -> bool:
    """Whether a lower and an upper end [2] are on both sides of the sensor, alike far from it."""
    return min(-ends[0], ends[1]) > BEHIND * max(-ends[0], ends[1])


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
        batch_size=min(train.batch_size, max(frames, 1) * train.views),
        checkpoint_every=max(1, round(train.checkpoint_every * longer)),
        validate_every=max(1, round(train.validate_every * longer)),
    )


def _thresholds(
    config: Config, number: int, boxes: np.ndarray, reasons: dict[str, str]
) -> ClassConfig:
    """So that an anchor reaches four of five boxes."""
    kind = config.classes[number]
    overlap = best_overlap(config, number, boxes)
    matched = min(reachable(overlap), MOST_MATCHED)
    share = float((overlap >= matched).mean())
    reasons[f"classes.{kind.name}"] += f"; an anchor matches {share:.0%} of them"
    return replace(kind, matched=round(matched, 2), unmatched=round(max(matched - GAP, 0), 2))


def config_text(choice: Choice, title: Sequence[str]) -> str:
    """YAML that `parse_config` reads back to the choice; title: lines of comment at the top."""
    config, reasons = choice.config, choice.reasons
    lines = [f"# {line}" for line in title] + ["", "points:"]
    points = config.points
    lines += [
        f"  columns: {_flow(points.columns)}  # {reasons['points.columns']}",
        f"  features: {_flow(points.features)}  # what the network takes; any columns may follow",
        f"  intensity_scale: {points.intensity_scale:g}  # {reasons['points.intensity_scale']}",
        "",
        "classes:  # anchor: size (l, w, h) and bottom face in metres; IoU from which it is "
        "positive, below which negative",
    ]
    if "classes" in reasons:
        lines.append(f"  # {reasons['classes']}")
    for kind in config.classes:
        lines.append(f"  # {kind.name}: {reasons[f'classes.{kind.name}']}")
        lines.append(f"  - {_flow(asdict(kind))}")
    grid = config.grid
    lines += [
        "",
        "grid:  # metres: x forward, y left, z up",
        f"  # {reasons['grid.range']}; {reasons['z']}",
        f"  range: {_flow(grid.range)}",
        f"  voxel_size: {_flow(grid.voxel_size)}  # {reasons['grid.voxel_size']}",
        f"  max_points: {grid.max_points}",
    ]
    for key in ("max_voxels_train", "max_voxels_test"):
        lines.append(f"  {key}: {getattr(grid, key)}  # {reasons[f'grid.{key}']}")
    camera = "labels name only what the camera sees" if grid.crop_to_image else "there is no camera"
    lines += [f"  crop_to_image: {str(grid.crop_to_image).lower()}  # {camera}", ""]
    lines += ["model:", f"  encoder: {_flow(asdict(config.model.encoder))}"]
    lines += [f"  bev: {_flow(asdict(config.model.bev))}", ""]
    lines += [f"loss: {_flow(asdict(config.loss))}", ""]
    lines += [f"postprocess: {_flow(asdict(config.postprocess))}", ""]
    augment = asdict(config.augment)
    lines += ["augment:", "  sample:  # boxes per class that pasting fills a scene up to"]
    for name, number in augment.pop("sample").items():
        lines.append(f"    {_word(name)}: {number}  # {reasons[f'augment.sample.{name}']}")
    for section, values in (("augment", augment), ("train", asdict(config.train))):
        lines += ["", "train:"] if section == "train" else []
        for key, value in values.items():
            reason = reasons.get(f"{section}.{key}")
            lines.append(f"  {key}: {_flow(value)}" + (f"  # {reason}" if reason else ""))
    return "\n".join(lines) + "\n"


def _flow(value) -> str:
    """A value in one line."""
    text = yaml.safe_dump(plain(value), sort_keys=False, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _word(name: str) -> str:
    """A key, in quotes where YAML would read something else."""
    return _flow({name: 0})[1:-4]
