"""The frames that visualize.py draws, their ground truth and their detections."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.cloud_files import find_scans, read_scan
from data.datasets import is_folder, open_dataset
from data.detections import NamedDetections
from data.folder.dataset import FolderDataset
from data.frame import Frame
from data.kitti.dataset import DONT_CARE
from data.kitti.labels import Labels
from data.kitti.layout import Layout
from data.point_columns import KITTI_POINTS, PointColumns
from data.scan_checks import Tally
from detector.config import load_config
from detector.detector import Detector
from detector.draw.detection_files import find_detections, names_in, read_detections
from detector.draw.style import Palette
from detector.draw.view import View
from tools.columns import columns_of
from tools.drawing import detect

NO_POINTS = np.zeros((0, 4), np.float32)


class Frames(NamedTuple):
    """Frames by their place among the names; they are read when they are asked for."""

    names: Sequence[str]
    read: Callable[[int], Frame]
    read_bare: Callable[[int], Frame]  # without points and boxes
    labels: Callable[[int], Labels] | None  # without DontCare regions; None: no ground truth


class Source(NamedTuple):
    """All that the command line names."""

    frames: Frames
    detections: Callable[[Frame, Tally], NamedDetections] | None
    needs_points: bool  # whether detections are found in points, not read from files
    classes: Sequence[str]  # that are detected
    palette: Palette
    view: View | None  # of the bird's-eye view: the detector's grid

    @property
    def names(self) -> Sequence[str]:
        return self.frames.names

    @property
    def judged(self) -> bool:
        """Whether it can be said what is missed or false."""
        return self.frames.labels is not None and self.detections is not None


def find_source(options: argparse.Namespace) -> Source:
    """What the command line names; what is not there is found before any frame is drawn."""
    if bool(options.scans) == bool(options.root):
        raise ValueError("give either scans (or folders of them) or --root, not both")
    detector, classes, view = None, list(options.classes), None
    columns = load_config(options.config).points if options.config else KITTI_POINTS
    if options.detections is None and not options.no_detections:
        detector = Detector.from_weights(options.weights, options.device)
        columns = columns_of(options.config, detector.config)
        classes = [*dict.fromkeys([*detector.config.class_names, *classes])]
        view = View.of_grid(detector.config.grid.range)
    crop = detector and detector.config.grid.crop_to_image
    frames = find_frames(options, classes, crop, columns)
    detections, detected = None, ()
    if detector is not None:
        detections, detected = Found(detector), detector.config.class_names
    elif options.detections is not None:
        find_detections(options.detections, frames.names)
        detections = partial(read_found, options.detections)
        if frames.labels is not None:
            detected = names_in(options.detections, frames.names)
            if options.root and is_folder(options.root):  # as evaluate.py: missed classes too
                detected = [*dict.fromkeys([*detected, *_labelled(frames)])]
    return Source(frames, detections, detector is not None, detected, Palette(classes), view)


def _labelled(frames: Frames) -> set[str]:
    """The classes of all labels. Labels that cannot be read are told where they are judged."""
    assert frames.labels is not None, "no ground truth"
    found: set[str] = set()
    for place in range(len(frames.names)):
        with suppress(ValueError, OSError):
            found |= set(map(str, frames.labels(place).types))
    return found


def find_frames(
    options: argparse.Namespace, classes: Sequence[str], crop: bool | None, columns: PointColumns
) -> Frames:
    """crop: to the image, as the detector's training had it; None: where there are images."""
    if options.scans:
        scans = find_scans(options.scans)
        names = [scan.stem for scan in scans]
        return Frames(
            names,
            lambda place: Frame(names[place], read_scan(scans[place], columns)),
            lambda place: Frame(names[place], NO_POINTS),
            None,
        )
    if crop is None and not is_folder(options.root):
        crop = Layout.find(options.root, options.split, labels=False).has_images
    dataset = open_dataset(
        options.root, options.split, classes, crop=bool(crop), labels=False, points=columns
    )
    ids = dataset.frame_ids
    for name in options.frames or ():
        if name not in ids:
            raise ValueError(
                f"frame {name} is not in split '{options.split}' of {options.root}, whose "
                f"{len(ids)} frames go from {ids[0]} to {ids[-1]}"
            )
    places = {name: row for row, name in enumerate(ids)}
    rows = [places[name] for name in options.frames or ids]

    def labels(place: int) -> Labels:
        found = dataset.labels(rows[place])
        return found.select(found.types != DONT_CARE)

    def bare(place: int) -> Frame:
        row = rows[place]
        if isinstance(dataset, FolderDataset):
            return Frame(ids[row], NO_POINTS)
        calibration, shape = dataset.calibration(row), dataset.image_shape(row)
        return Frame(ids[row], NO_POINTS, calibration=calibration, image_shape=shape)

    return Frames(
        [ids[row] for row in rows],
        lambda place: dataset[rows[place]],
        bare,
        labels if dataset.layout.labelled else None,
    )


class Found:
    """The detections of a network, found once per frame."""

    def __init__(self, detector: Detector):
        self._detector = detector
        self._known: dict[str, NamedDetections] = {}  # by frame

    def __call__(self, frame: Frame, notes: Tally) -> NamedDetections:
        name = frame.frame_id
        if name not in self._known:
            self._known[name], left_out = detect(self._detector, frame.points)
            notes.add(f"frame {name}", left_out + self._detector.examine(frame.points))
        return self._known[name]


def read_found(folder: Path, frame: Frame, _: Tally) -> NamedDetections:
    return read_detections(folder, frame.frame_id, frame.calibration)
