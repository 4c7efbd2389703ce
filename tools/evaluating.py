"""Parts of `millisecond evaluate`: KITTI's result files, scores without a camera, curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.data.checks.scans import Tally
from millisecond.data.datasets import Dataset, is_folder, open_dataset
from millisecond.data.files import locked, require_own_json, write_json
from millisecond.data.formats.points import KITTI_POINTS
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import DECIMALS, TYPES, Labels, read_labels
from millisecond.data.kitti.layout import Layout, check_name, read_split, require_files
from millisecond.data.kitti.results import ResultFolder, detections_to_labels
from millisecond.data.metric import kitti
from millisecond.data.metric.evaluation import (
    Overlaps,
    Result,
    default_overlaps,
    evaluate,
    format_tables,
)
from millisecond.data.metric.overlap import (
    ALL,
    FrameBoxes,
    Group,
    detections_in,
    objects_of,
    point_groups,
    rings,
)
from millisecond.data.schema import nearest
from millisecond.detector.config import load_config
from millisecond.detector.detection_files import find_detections, names_in, read_detections
from millisecond.detector.detector import Detector
from millisecond.detector.draw.plot import COLOURS, Line, Panel, Scale, draw_panels
from millisecond.detector.draw.png import require_own, save_png
from millisecond.detector.draw.style import TEXT
from millisecond.tools.program import columns_of, mounting_of


def evaluate_files(found: Path, known: Path, split: str | None) -> kitti.Result:
    """Result files in the folder `found` against label files of the same names in `known`.

    split: None for all frames that have labels.
    """
    for folder in (known, found):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
    if split and split != "all":
        path = find_list(split, known)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such split; without --split all frames that have labels are scored"
            )
        ids: Sequence[str] = read_split(path)
        require_files(ids, known, ".txt", split)
    else:
        ids = sorted(path.stem for path in known.glob("*.txt"))
    if not ids:
        raise FileNotFoundError(f"{known}: no label files (.txt) in it")
    for frame_id in ids:
        path = found / f"{frame_id}.txt"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such file; KITTI wants one result file per frame, an empty one where "
                "nothing was found (or name the frames to score with --split FILE)"
            )
    detections = read_folder(found, ids, "detections")
    for frame_id, labels in zip(ids, detections, strict=True):
        if labels.score is None:
            raise ValueError(
                f"{found / frame_id}.txt: no scores; a result line has 16 fields, the score last"
            )
    return kitti.evaluate(detections, read_folder(known, ids, "labels"))


def find_list(split: str, labels: Path) -> Path:
    """The list of a split: the file itself or, of a name, that in ImageSets beside the labels."""
    if split.endswith(".txt"):
        return Path(split)
    check_name(split)
    return labels.resolve().parent.parent / "ImageSets" / f"{split}.txt"


def read_folder(folder: Path, ids: Sequence[str], name: str) -> list[Labels]:
    """The files of the frames; ValueError for a type that KITTI does not know."""
    known = {kind.lower() for kind in TYPES}
    frames = []
    for frame_id in tqdm(ids, desc=name, unit="file", leave=False, disable=None):
        path = folder / f"{frame_id}.txt"
        labels = read_labels(path)
        strange = next((kind for kind in labels.types if kind.lower() not in known), None)
        if strange is not None:
            raise ValueError(f"{path}: type {strange!r} is none of KITTI's: {', '.join(TYPES)}")
        frames.append(labels)
    return frames


TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
RECALL, PRECISION = Scale("recall", 0, 1.02, TICKS), Scale("precision", 0, 1.02, TICKS)
TITLES = {"distance": "by distance", "points": "by points on the object"}


def draw_curves(result: Result, overlaps: Overlaps, groups: Sequence[Group]) -> np.ndarray:
    """A row per class, [H, W, 3] uint8: left the groups by distance, right those by points.

    The curves are those that AP averages: in 3-D at the first overlap of the class, for all objects
    from above too. Groups without objects have none.
    """
    kinds = dict.fromkeys(group.by for group in groups) or {ALL.by: None}
    rows = []
    for name, figures in result["classes"].items():
        least = overlaps[name][0]
        row = []
        for kind in kinds:
            shown = [group.title for group in groups if group.by == kind]
            title = f"{name}, overlap {least:g}, {TITLES[kind]}"
            row.append(Panel(title, RECALL, PRECISION, _lines(figures, shown, least)))
        rows.append(row)
    return draw_panels(rows)


def _lines(figures: Mapping[str, Any], groups: Sequence[str], least: float) -> list[Line]:
    lines = []
    if figures[ALL.title]["count"]:
        lines.append(_line(figures, ALL.title, f"bev@{least:g}", "from above", dashed=True))
        lines.append(_line(figures, ALL.title, f"3d@{least:g}", "3-D"))
    for number, group in enumerate(groups):
        if figures[group]["count"]:
            line = _line(figures, group, f"3d@{least:g}", "3-D")
            lines.append(line._replace(colour=COLOURS[number % len(COLOURS)]))
    return lines


def _line(
    figures: Mapping[str, Any], group: str, metric: str, kind: str, dashed: bool = False
) -> Line:
    curve = figures[group][metric]
    recall, precision = np.array(curve["curve_recall"]), np.array(curve["curve_precision"])
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    name = f"{group}, {kind}: AP {curve['R40']:.1f}, {figures[group]['count']} objects"
    x, y = np.append(0, recall), np.append(falling[:1], falling)
    return Line(name, x[: len(y)].tolist(), y.tolist(), TEXT, dashed)


RINGS, POINTS = (30.0, 50.0), (10, 50, 200)  # metres; numbers of points

Find = Callable[[Frame], NamedDetections]


class SplitDetections(NamedTuple):
    """The frames of a split and what was found in them."""

    frame_ids: Sequence[str]
    objects: Sequence[FrameBoxes]
    detections: Sequence[FrameBoxes]
    classes: Sequence[str]  # that are scored


def score_lidar(options: argparse.Namespace) -> None:
    """Print the tables, and write what is asked for."""
    groups = [*rings(options.rings or RINGS), *point_groups(options.points or POINTS)]
    if options.json:
        require_own_json(options.json, lambda old: {"classes", "confusion"} <= set(old))
    if options.curves:
        require_own(options.curves)
    found = from_files(options) if options.detections else from_weights(options)
    if not found.classes:
        raise ValueError(f"{options.detections}: neither the results nor the labels name a class")
    overlaps = overlaps_of(options.overlap or (), found.classes)
    result = evaluate(found.detections, found.objects, overlaps, groups, found.frame_ids)
    print(format_tables(result, overlaps))
    if options.json:
        write_json(options.json, result)
    if options.curves:
        save_png(options.curves, draw_curves(result, overlaps, groups))
        print(f"curves: {options.curves}")


def overlaps_of(words: Sequence[str], classes: Sequence[str]) -> Overlaps:
    """From `0.5` for all classes and `Car=0.7,0.5` for one; what is not named has the default.

    Raises ValueError for an unknown class, and for a value that is not an overlap.
    """
    overlaps: dict[str, tuple[float, ...]] = dict(default_overlaps(classes))
    for word in sorted(words, key=lambda word: "=" in word):
        name, _, values = word.rpartition("=")
        if name and name not in classes:
            raise ValueError(f"--overlap {word}: unknown class{nearest(name, classes)}")
        least = tuple(_overlap(value, word) for value in values.split(","))
        overlaps |= {name: least} if name else dict.fromkeys(classes, least)
    return overlaps


def _overlap(text: str, word: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise ValueError(
            f"--overlap {word}: {text!r} is not between 0 and 1; say 0.5 for all classes, or "
            "Car=0.7 or Car=0.7,0.5 for one"
        )
    return value


def from_weights(options: argparse.Namespace) -> SplitDetections:
    """What a network finds in the frames of a split; written as result files if asked for."""
    detector = Detector.from_weights(
        options.weights, options.device, options.precision, mounting=mounting_of(options)
    )
    config, notes = detector.config, Tally()
    dataset = open_dataset(
        options.root,
        options.split or "val",
        config.class_names,
        crop=config.grid.crop_to_image,
        points=columns_of(options.config, config),
    )
    with locked(options.output) if options.output else nullcontext():
        results = ResultFolder(options.output, dataset.frame_ids) if options.output else None

        def find(frame: Frame) -> NamedDetections:
            found, left_out = detector.detect(frame.points)
            notes.add(frame.frame_id, left_out + detector.examine(frame.points))
            named = as_in_a_file(found.named(config.class_names))
            if results:
                _write(results, frame, named)
            return named

        found = _collect(dataset, find, config.class_names)
    for line in notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    return found


def from_files(options: argparse.Namespace) -> SplitDetections:
    """Result files, JSON or KITTI's, against the labels of a data set."""
    split, columns = options.split or "val", KITTI_POINTS
    if options.config:
        columns = load_config(options.config).points
    crop = not is_folder(options.root) and Layout.find(options.root, split).has_images
    dataset = open_dataset(options.root, split, options.classes or (), crop=crop, points=columns)
    find_detections(options.detections, dataset.frame_ids)
    names = set(names_in(options.detections, dataset.frame_ids))
    found = _collect(
        dataset,
        lambda frame: read_detections(options.detections, frame.frame_id, frame.calibration),
        options.classes,
    )
    if options.classes:
        return found
    names |= {str(name) for frame in found.objects for name in frame.names}
    return found._replace(classes=sorted(names))


def _collect(dataset: Dataset, find: Find, classes: Sequence[str] | None) -> SplitDetections:
    objects, detections = [], []
    for frame in _frames(dataset):
        objects.append(objects_of(frame))
        detections.append(detections_in(frame, find(frame)))
    return SplitDetections(dataset.frame_ids, objects, detections, list(classes or ()))


def _frames(dataset: Dataset) -> Iterator[Frame]:
    return iter(tqdm(dataset, desc="scoring", total=len(dataset), unit="frame", disable=None))


def as_in_a_file(found: NamedDetections) -> NamedDetections:
    """Rounded as in a result file, so that both score the same."""
    boxes = found.boxes.astype(np.float64)
    boxes[:, 6] = wrap_angle(boxes[:, 6])
    scores = np.array([float(f"{score:.9g}") for score in found.scores], np.float64)
    return NamedDetections(boxes.round(DECIMALS).astype(np.float32), scores, found.names)


def _write(results: ResultFolder, frame: Frame, found: NamedDetections) -> None:
    result = {
        "frame": frame.frame_id,
        "boxes": found.boxes.astype(np.float64).round(DECIMALS).tolist(),
        "scores": found.scores.tolist(),
        "names": list(found.names),
    }
    labels = None
    if frame.calibration is not None:
        labels = detections_to_labels(found, frame.calibration, frame.image_shape)
    results.write(frame.frame_id, result, labels)
