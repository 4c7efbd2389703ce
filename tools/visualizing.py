"""Parts of `millisecond visualize`: frames with their boxes, errors in them, reports."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.data.checks.scans import Tally
from millisecond.data.datasets import is_folder, open_dataset
from millisecond.data.files import make_folder, require_own_json, write_json
from millisecond.data.folder.dataset import FolderDataset
from millisecond.data.formats.clouds import find_scans, read_scan
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import DONT_CARE, Labels
from millisecond.data.kitti.layout import Layout
from millisecond.data.kitti.results import detections_to_labels
from millisecond.data.metric.kitti import Count, Verdicts, badness, count, default_overlap, judge
from millisecond.detector.config import load_config
from millisecond.detector.detection_files import find_detections, names_in, read_detections
from millisecond.detector.detector import Detector
from millisecond.detector.draw.camera import photo_of
from millisecond.detector.draw.style import CLASS_COLOURS, FAINT, BoxSet, Palette, Shown
from millisecond.detector.draw.view import View
from millisecond.detector.inference import ScoreMap
from millisecond.tools.autolabel import ACCEPT, REJECT, ObjectList, box_of, class_of, line_of
from millisecond.tools.program import columns_of, mounting_of, one_line

NO_POINTS = np.zeros((0, 4), np.float32)


class Account:
    """Counts frames that cannot be drawn, and detections whose score is too low to be drawn."""

    def __init__(self, score: float, palette: Palette, at_once: bool):
        """score: least score that is drawn. at_once: report a bad frame immediately, not at the
        end."""
        self._score, self._palette, self._at_once = score, palette, at_once
        self.notes = Tally()  # on the scans
        self._hidden: dict[str, int] = {}  # by frame
        self._bad: dict[str, str] = {}

    def best(self, frame: str, found: NamedDetections) -> tuple[BoxSet, str]:
        """The detections with a sufficient score, and a text for the title about the others."""
        best = self.sufficient(found)
        hidden = self._hidden[frame] = len(found.scores) - len(best.scores)
        shown = self._palette.paint(best.boxes, best.names, best.scores)
        return shown, f"   {hidden} below {self._score:g} hidden" if hidden else ""

    def sufficient(self, found: NamedDetections) -> NamedDetections:
        """The detections that score enough to be drawn."""
        return found.select(np.flatnonzero(found.scores >= self._score))

    def bad(self, frame: str, error: Exception) -> str:
        """Note a frame that cannot be drawn; returns a line that says why."""
        line = f"frame {frame}: {one_line(error)}"
        if self._at_once and frame not in self._bad:
            print(f"error: {line}", file=sys.stderr)
        self._bad[frame] = line
        return line

    def close(self, frames: int) -> int:
        """Print the report after so many frames; returns the exit code."""
        for line in self.notes.lines():
            print(f"warning: {line}", file=sys.stderr)
        hidden = sum(self._hidden.values())
        if hidden:
            print(f"detections below {self._score:g} that were not drawn (--score): {hidden}")
        if self._bad and not self._at_once:
            counted = f" ({len(self._bad)} of {frames} frames could not be drawn)"
            lines = "\n".join(f"error: {line}" for line in self._bad.values())
            print(lines + counted * (frames > 1), file=sys.stderr)
        return 2 if self._bad else 0


class NamedFrames(NamedTuple):
    """Frames by their place among the names; they are read when they are asked for."""

    names: Sequence[str]
    read: Callable[[int], Frame]
    read_bare: Callable[[int], Frame]  # without points and boxes
    labels: Callable[[int], Labels] | None  # without DontCare regions; None: no ground truth


class CommandSource(NamedTuple):
    """All that the command line names."""

    frames: NamedFrames
    detections: Callable[[Frame, Tally], NamedDetections] | None
    scores: Callable[[Frame], ScoreMap] | None  # of the ground, where a network detects
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


def find_source(options: argparse.Namespace) -> CommandSource:
    """What the command line names; what is not there is found before any frame is drawn."""
    if bool(options.scans) == bool(options.root):
        raise ValueError("give either scans (or folders of them) or --root, not both")
    detector, classes, view = None, list(options.classes), None
    columns = load_config(options.config).points if options.config else KITTI_POINTS
    if not (options.detections or options.no_detections or options.review):
        detector = Detector.from_weights(
            options.weights, options.device, mounting=mounting_of(options)
        )
        columns = columns_of(options.config, detector.config)
        classes = [*dict.fromkeys([*detector.config.class_names, *classes])]
        view = View.of_grid(detector.range)
    crop = detector and detector.config.grid.crop_to_image
    frames = find_frames(options, classes, crop, columns)
    detections, detected, scores = None, (), None
    if detector is not None:
        detections, detected = Found(detector), detector.config.class_names
        scores = detections.scores
    elif options.detections is not None:
        find_detections(options.detections, frames.names)
        folder = options.detections
        detections = lambda frame, _: read_detections(folder, frame.frame_id, frame.calibration)  # noqa: E731
        if frames.labels is not None:
            detected = names_in(options.detections, frames.names)
            if options.root and is_folder(options.root):  # as evaluate: missed classes too
                detected = [*dict.fromkeys([*detected, *_labelled(frames)])]
    return CommandSource(frames, detections, scores, detected, Palette(classes), view)


def _labelled(frames: NamedFrames) -> set[str]:
    """The classes of all labels. Labels that cannot be read are told where they are judged."""
    assert frames.labels is not None, "no ground truth"
    found: set[str] = set()
    for place in range(len(frames.names)):
        with suppress(ValueError, OSError):
            found |= {*frames.labels(place).types.tolist()}
    return found


def find_frames(
    options: argparse.Namespace, classes: Sequence[str], crop: bool | None, columns: PointColumns
) -> NamedFrames:
    """crop: to the image, as the detector's training had it; None: where there are images."""
    if options.scans:
        scans = find_scans(options.scans)
        names = [scan.stem for scan in scans]
        return NamedFrames(
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
    if dataset.layout.labelled and not isinstance(dataset, FolderDataset):
        # a frame without its labels would be judged as empty
        Layout.find(options.root, options.split)
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

    return NamedFrames(
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
            found, left_out = self._detector.detect(frame.points)
            self._known[name] = found.named(self._detector.config.class_names)
            notes.add(f"frame {name}", left_out + self._detector.examine(frame.points))
        return self._known[name]

    def scores(self, frame: Frame) -> ScoreMap:
        """The scores of the ground."""
        return self._detector.score_map(frame.points)


PRINTED = 20  # frames of the ranking
RANKING = "ranking.json"


class Rank(NamedTuple):
    """What is wrong in one frame."""

    place: int  # of the frame in the source
    badness: float
    count: Count


class Judge:
    """Compares detections with ground truth by KITTI's rules."""

    def __init__(self, source: CommandSource, overlap: float | None, metric: str):
        """overlap: that makes a match; None for KITTI's, by class."""
        self._source, self._metric = source, metric
        self._least = {name: overlap or default_overlap(name) for name in source.classes}

    def verdicts(self, place: int, frame: Frame, found: NamedDetections) -> Verdicts:
        """found: the detections that score enough."""
        labels = self._source.frames.labels
        assert labels is not None  # of a data set with ground truth
        detections = detections_to_labels(found, frame.calibration, frame.image_shape)
        return judge(detections, labels(place), self._least, self._metric)

    def rank(self, account: Account) -> list[Rank]:
        """All frames, the worst first; those that cannot be judged are told and come last."""
        source, ranks = self._source, []
        assert source.detections is not None
        from_points = source.scores is not None  # by a network; else detections are in files
        read = source.frames.read if from_points else source.frames.read_bare
        places = tqdm(range(len(source.names)), desc="judging", unit="frame", disable=None)
        for place in places:
            try:
                frame = read(place)
                found = account.sufficient(source.detections(frame, account.notes))
                verdicts = self.verdicts(place, frame, found)
            except (ValueError, OSError) as error:
                account.bad(source.names[place], error)
                ranks.append(Rank(place, -1.0, Count()))
                continue
            counted = count(verdicts.truth, verdicts.detections)
            ranks.append(Rank(place, badness(verdicts, found.scores), counted))
        return sorted(ranks, key=lambda rank: -rank.badness)


def require_judged(options: argparse.Namespace, source: CommandSource) -> None:
    """Raise ValueError, with the remedy, where errors are asked for and cannot be known."""
    asked = {
        "--overlap": options.overlap is not None,
        "--metric": options.metric is not None,
        "--boxes error": options.boxes == "error",
        "--colour error": options.colour == "error",
        "--order worst": options.order == "worst",
    }
    wanted = next((name for name, given in asked.items() if given), None)
    if wanted is None or source.judged:
        return
    if options.root is None:
        raise ValueError(f"{wanted} needs ground truth: give a data set with --root, not scans")
    if source.frames.labels is None:
        raise ValueError(f"{wanted} needs ground truth: {options.root} has no labels (label_2)")
    raise ValueError(f"{wanted} needs detections: leave out --no-detections")


def report_ranking(names: Sequence[str], ranks: Sequence[Rank], folder: Path) -> None:
    """Print the worst frames, and write the ranking of all to a file."""
    wide = max(5, *(len(names[rank.place]) for rank in ranks))
    print(f"{'frame':{wide}}  matched  missed  false  badness")
    judged = [rank for rank in ranks if rank.badness >= 0]
    for rank in judged[:PRINTED]:
        matched, missed, false = rank.count
        name = names[rank.place]
        print(f"{name:{wide}}  {matched:7}  {missed:6}  {false:5}  {rank.badness:7.2f}")
    rows = [
        {"frame": names[rank.place], **rank.count._asdict(), "badness": rank.badness}
        for rank in judged
    ]
    make_folder(folder)
    require_own_json(folder / RANKING, lambda old: set(old) == {"worst_first"})
    write_json(folder / RANKING, {"worst_first": rows})
    sums = Count(*np.sum([rank.count for rank in judged], axis=0).tolist()) if judged else Count()
    print(f"{len(judged)} frames: {sums}; all of them are in {folder / RANKING}")


BOXES = ("class", "error")  # what the colours of boxes say


class Content(NamedTuple):
    """A frame and what is drawn of it."""

    frame: Frame | None  # None where it cannot be read
    shown: Shown


class Studio:
    """Makes the content of any frame."""

    def __init__(self, source: CommandSource, judge: Judge, account: Account):
        self.source, self.judge, self.account = source, judge, account

    def content(self, place: int, by_error: bool) -> Content:
        """Raises ValueError or OSError where the frame cannot be drawn.

        by_error: boxes in the colours of their verdicts.
        """
        source, account = self.source, self.account
        frame = source.frames.read(place)
        labelled = source.frames.labels is not None
        truth = source.palette.paint(frame.boxes, frame.names) if labelled else None
        title = f"{frame.frame_id}   {len(frame.points)} points"
        photo = photo_of(frame)
        if source.detections is None:
            return Content(frame, Shown(frame.points, truth, None, title, photo=photo))
        all_found = source.detections(frame, account.notes)
        found, left_out = account.best(frame.frame_id, all_found)
        if truth is not None:
            verdicts = self.judge.verdicts(place, frame, account.sufficient(all_found))
            truth = truth.judged(verdicts.truth, None, by_error, verdicts.truth_reasons)
            told = verdicts.overlap, by_error, verdicts.reasons
            found = found.judged(verdicts.detections, *told)
            title += f"   {count(truth.verdicts, found.verdicts)}"
        title += left_out
        return Content(frame, Shown(frame.points, truth, found, title, photo=photo))

    def content_or_reason(self, place: int, by_error: bool) -> Content:
        """Of a frame that cannot be drawn, nothing but a title that says why."""
        try:
            return self.content(place, by_error)
        except (ValueError, OSError) as error:
            title = self.account.bad(self.source.names[place], error)
            return Content(None, Shown(title=title))


class Review:
    """The objects of `millisecond autolabel` one after another, and the user's verdicts on them,
    which are in the list as soon as they are given."""

    def __init__(
        self,
        listed: ObjectList,
        frames: Sequence[str],
        palette: Palette,
        classes: Sequence[str] = (),
    ):
        """frames: that can be shown. classes: that objects may get, after KITTI's and the list's.

        Raises ValueError where the list has other frames, or no objects.
        """
        self._listed, self._objects, self._palette = listed, listed.objects, palette
        self._before = deepcopy(self._objects)  # as the window found them
        self._kinds = [*dict.fromkeys([*CLASS_COLOURS, *map(class_of, self._objects), *classes])]
        if not self._objects:
            raise ValueError(f"{listed.path}: has no objects")
        if strange := {name for one in self._objects for name in one["boxes"]} - {*frames}:
            raise ValueError(f"{listed.path}: has a scan {min(strange)}, which is not to be shown")
        verdicts = [one["verdict"] for one in self._objects]
        self._go_to(verdicts.index(None) if None in verdicts else 0)

    def _go_to(self, place: int) -> None:
        self.place = min(max(place, 0), len(self._objects) - 1)
        self.frame = self._objects[self.place]["frame"]

    def press(self, key: str) -> None:
        """Does what a key says. Raises OSError where the list cannot be written."""
        one, kinds = self._objects[self.place], self._kinds
        match key:
            case "n" | "b":
                self._go_to(self.place + (1 if key == "n" else -1))
            case "left" | "right":
                scans = list(one["boxes"])
                place = scans.index(self.frame) + (1 if key == "right" else -1)
                self.frame = scans[min(max(place, 0), len(scans) - 1)]
            case "a" | "x":
                self._decide(one, REJECT if key == "x" else class_of(one))
                self._go_to(self.place + 1)
            case "k":
                self._decide(one, kinds[(kinds.index(class_of(one)) + 1) % len(kinds)])
            case "v":
                one["boxes"] = {scan: turned(line) for scan, line in one["boxes"].items()}
                self._decide(one, class_of(one))
            case "u":
                one.update(deepcopy(self._before[self.place]), verdict=None)
                self._listed.save()

    def _decide(self, one: dict[str, Any], verdict: str) -> None:
        """verdict: REJECT, or the class that the object has."""
        one["verdict"] = ACCEPT if verdict == one["class"] else verdict
        self._listed.save()

    def over(self, shown: Shown, follow: bool) -> Shown:
        """The scan with the objects that are not rejected, all grey but the one in question.

        follow: turns the camera to that one.
        """
        one = self._objects[self.place]
        seen = [other for other in self._objects if other is one or other["verdict"] != REJECT]
        seen = [other for other in seen if self.frame in other["boxes"]]
        seen.sort(key=lambda other: other is one)  # a legend takes the colour of the last
        boxes = np.array([box_of(other["boxes"][self.frame]) for other in seen], np.float32)
        scores = np.array([other["confidence"] for other in seen])
        found = self._palette.paint(boxes, [class_of(other) for other in seen], scores)
        colours = [self._palette.colour(class_of(o)) if o is one else FAINT for o in seen]
        ids = np.array([other["id"] for other in seen], np.int64)
        scans, count = list(one["boxes"]), len(self._objects)
        decided = sum(other["verdict"] is not None for other in self._objects)
        figures = {
            "object": f"#{one['id']} {class_of(one)}",
            "verdict": one["verdict"] or ("labelled" if one["labelled"] else "not labelled"),
            "doubt": f"{one['doubt']:.2f}, {one['why']}",
            "confidence": f"{one['confidence']:.2f}",
            "scan": f"{scans.index(self.frame) + 1} of {len(scans)}",
            "decided": f"{decided} of {count}",
        }
        place = f"     object {self.place + 1} of {count}"
        return shown._replace(
            detections=found._replace(colours=tuple(colours), ids=ids),
            title=shown.title + place,
            figures=figures,
            follow=one["id"] if follow else 0,
        )


def turned(line: str) -> str:
    """A box of the list that heads to the other side."""
    box = box_of(line)
    box[6] = wrap_angle(box[6] + np.pi)
    return line_of(box)
