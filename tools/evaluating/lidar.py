"""Scores without a camera, of weights or of result files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data.boxes import wrap_angle
from data.datasets import Dataset, is_folder, open_dataset
from data.detections import NamedDetections
from data.files import locked, require_own_json, write_json
from data.frame import Frame
from data.kitti.labels import DECIMALS
from data.kitti.layout import Layout
from data.kitti.results import detections_to_labels
from data.metric.boxes import FrameBoxes, detections_in, objects_of, point_groups, rings
from data.metric.evaluation import Overlaps, default_overlaps, evaluate
from data.metric.table import format_tables
from data.point_columns import KITTI_POINTS
from data.result_folder import ResultFolder
from data.scan_checks import Tally
from data.schema import nearest
from detector.config import load_config
from detector.detector import Detector
from detector.draw.detection_files import find_detections, names_in, read_detections
from detector.draw.png import require_own, save_png
from tools.columns import columns_of
from tools.evaluating.curves import draw_curves

RINGS, POINTS = (30.0, 50.0), (10, 50, 200)  # metres; numbers of points

Find = Callable[[Frame], NamedDetections]


class Found(NamedTuple):
    """The frames of a split and what was found in them."""

    frame_ids: Sequence[str]
    objects: Sequence[FrameBoxes]
    detections: Sequence[FrameBoxes]
    classes: Sequence[str]  # that are scored


def score(options: argparse.Namespace) -> None:
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

    Raises ValueError for an unknown class, and for what is no overlap.
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


def from_weights(options: argparse.Namespace) -> Found:
    """What a network finds in the frames of a split; written as result files if asked for."""
    detector = Detector.from_weights(options.weights, options.device, options.precision)
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


def from_files(options: argparse.Namespace) -> Found:
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


def _collect(dataset: Dataset, find: Find, classes: Sequence[str] | None) -> Found:
    objects, detections = [], []
    for frame in _frames(dataset):
        objects.append(objects_of(frame))
        detections.append(detections_in(frame, find(frame)))
    return Found(dataset.frame_ids, objects, detections, list(classes or ()))


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
