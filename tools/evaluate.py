"""Score detections, from result files or from a weights file: by the KITTI metric, by one that
needs no camera, or as the benchmark of a published data set scores them."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections, nearest_of_class, wrap_angle
from millisecond.data.checks.scans import Tally
from millisecond.data.datasets import Dataset, is_folder, open_dataset, require_apart
from millisecond.data.datasets.benchmarks import BENCHMARKS, Findings, NuscenesDetection
from millisecond.data.files import led_to, locked, require_own_json, write_json
from millisecond.data.folder.dataset import SEQUENCES
from millisecond.data.formats.points import KITTI_POINTS
from millisecond.data.frame import Frame
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import DECIMALS, TYPES, Labels, read_labels
from millisecond.data.kitti.layout import RECORDING, Layout, check_name, read_split, require_files
from millisecond.data.kitti.results import (
    ResultFolder,
    detections_to_labels,
    json_result,
    rounded_scores,
)
from millisecond.data.metric import kitti
from millisecond.data.metric.evaluation import (
    Overlaps,
    Result,
    default_overlaps,
    evaluate,
    format_tables,
    sensor_report,
)
from millisecond.data.metric.kitti import MIN_OVERLAP
from millisecond.data.metric.matching import SAMPLES
from millisecond.data.metric.nuscenes import NEAR, mean_velocity_errors, velocity_errors
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
from millisecond.detector.config import PRECISIONS, load_config
from millisecond.detector.detection_files import (
    find_detections,
    names_in,
    read_detections,
    read_result,
)
from millisecond.detector.detector import Detector
from millisecond.detector.draw.plot import COLOURS, Line, Panel, Scale, draw_panels
from millisecond.detector.draw.png import require_own, save_png
from millisecond.detector.draw.style import TEXT
from millisecond.detector.tracking import Tracker
from millisecond.tools.program import (
    COLUMN_CONFIG,
    WEIGHTS,
    add_mounting,
    columns_of,
    command_line,
    dataset_for,
    detector_of,
    number,
    output_path,
    parser_of,
    run,
)

EXAMPLE = """example:
  millisecond evaluate weights.safetensors --root kitti --split val --output results
  millisecond evaluate --detections results --root mine --split val
  millisecond evaluate weights.safetensors --root mine --overlap 0.5 Car=0.7,0.5 \\
      --rings 20 40 --curves curves.png

  millisecond evaluate --detections results --labels kitti/training/label_2 \\
      --split kitti/ImageSets/val.txt --json ap.json
  millisecond evaluate --benchmark nuscenes --root /data/nuscenes --detections results \\
      --output submission.json

Data in KITTI's layout are scored by KITTI's metric, with weights or with --labels. All else is
scored in the LiDAR frame, as --metric lidar does it for KITTI's data too; docs/evaluation.md
explains the figures. AP is in percent. A class with fewer than 41 objects cannot reach 100 by
KITTI's rules; the table marks it.
"""
USUAL = "--root --detections --split --json --overlap --report"
TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
RECALL = Scale("recall, at the places of AP R40", 0, 1.02, TICKS)
PRECISION = Scale("precision", 0, 1.02, TICKS)
SCORE, RIGHT = Scale("score", 0, 1.02, TICKS), Scale("share of right boxes", 0, 1.02, TICKS)
TITLES = {"distance": "by distance", "points": "by points on the object"}
RINGS, POINTS = (30.0, 50.0), (10, 50, 200)  # metres; numbers of points


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: score(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add_input(parser)
    add = parser.add_argument
    add(
        "--output",
        type=output_path,
        help="with weights: write result files into this folder; with --benchmark: the submission",
    )
    add("--device", help="with weights: cpu, cuda, cuda:1 (a GPU if there is one)")
    add("--precision", choices=PRECISIONS, help="with weights: of the network")
    add("--json", type=output_path, help="write the table's figures here")
    add_mounting(parser)
    add = add_lidar(parser, "for --metric lidar").add_argument
    add("--curves", type=output_path, metavar="PNG", help="draw precision and reliability here")
    add("--sensor-report", action="store_true", help="recall by distance, points and beams too")
    add("--report", type=output_path, metavar="HTML", help="write all of it as one page here")
    options = parser.parse_args(arguments)
    check(parser, options)
    options.command = command_line("evaluate", arguments)
    return options


def add_input(parser: argparse.ArgumentParser) -> None:
    """The arguments that name what is scored."""
    add = parser.add_argument
    add("weights", nargs="?", type=Path, help=f"to run on --root: {WEIGHTS}")
    add("--root", type=Path, help="folder of a data set with labels")
    add(
        "--detections",
        type=Path,
        metavar="DIR",
        help="folder of result files, or .parquet; with --labels, of KITTI's",
    )
    add("--labels", type=Path, help="folder of KITTI label files")
    add(
        "--split",
        help="frames: a name in ImageSets of ROOT or beside LABELS, a file with an id per line, or "
        "all (default: val; with --labels all)",
    )
    add(
        "--metric",
        choices=("kitti", "lidar"),
        help="kitti: the benchmark's; lidar: for any sensor and classes (default: see below)",
    )
    add(
        "--benchmark",
        choices=BENCHMARKS,
        help="score the results of imported scans as this benchmark does; ROOT is the data set as "
        "it was downloaded, SPLIT its own or a file of scans",
    )


def add_lidar(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The arguments of the metric without a camera."""
    group = parser.add_argument_group(title)
    add = group.add_argument
    add(
        "--overlap",
        nargs="+",
        metavar="[CLASS=]IOU[,IOU]",
        help="least overlaps of a match (default: Car=0.7, others 0.5)",
    )
    add(
        "--rings",
        nargs="+",
        type=float,
        metavar="METRES",
        help="edges of the rings of distance (default: 30 50)",
    )
    add(
        "--points",
        nargs="+",
        type=number,
        metavar="N",
        help="edges of the groups by points on the object (default: 10 50 200)",
    )
    add(
        "--classes",
        nargs="+",
        metavar="NAME",
        help="of results: to score (default: all that labels or results name)",
    )
    add("--config", type=Path, help=COLUMN_CONFIG)
    return group


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where arguments do not go together; settles the metric where they do."""
    if options.benchmark:
        fitting = ("benchmark", "root", "detections", "split", "output", "json")
        others = any(value for name, value in vars(options).items() if name not in fitting)
        if others or not (options.root and options.detections):
            parser.error("--benchmark goes with --root and --detections, --split, --output, --json")
        return
    given = options.weights, options.root, options.detections, options.labels
    weights, root, detections, labels = map(bool, given)
    network = root and not (detections or labels)
    files = detections and root != labels and not weights
    if not (network or files):
        parser.error("give WEIGHTS and --root, or --detections and --root or --labels")
    of_network = options.output, options.device, options.precision, options.shift_z, options.turn
    if files and any(of_network):
        parser.error("--output, --device, --precision, --shift-z and --turn go with WEIGHTS")
    if network and options.classes:
        parser.error("--classes goes with --detections: weights know theirs")
    if labels and options.metric == "lidar":
        parser.error("--metric lidar counts the points on objects: give --root, not --labels")
    if files and root and options.metric == "kitti":
        parser.error("--metric kitti takes result files with --labels, not with --root")
    if labels:
        options.metric = "kitti"
    elif files:
        options.metric = "lidar"
    asked = ("overlap", "rings", "points", "curves", "sensor_report", "report", "classes", "config")
    wanted = next((name for name in asked if getattr(options, name)), None)
    if wanted and options.metric == "kitti":
        parser.error(f"--{wanted.replace('_', '-')} goes with --metric lidar")
    if wanted:
        options.metric = "lidar"


def score(options: argparse.Namespace) -> None:
    """Print the table of AP, and write its figures where that is asked for."""
    if options.benchmark:
        score_benchmark(options)
        return
    if options.output and options.root:
        require_apart(options.output, options.root)
    if options.metric is None:
        options.metric = "lidar" if is_folder(options.root) else "kitti"
    if options.metric == "lidar":
        score_lidar(options)
        return
    if options.json:
        require_own_json(options.json, lambda old: bool(old) and set(old) <= set(MIN_OVERLAP))
    result = (
        evaluate_files(options.detections, options.labels, options.split)
        if options.detections
        else evaluate_weights(options)
    )
    print(kitti.format_table(result))
    if options.json:
        write_json(options.json, result)


def evaluate_weights(options: argparse.Namespace) -> kitti.Result:
    """Detections of a network on the frames of a split, written as result files if asked for."""
    detector = detector_of(options)
    classes = detector.config.class_names
    scored = [name for name in classes if name in MIN_OVERLAP]
    if not scored:
        raise ValueError(
            f"{options.weights}: finds {', '.join(classes)}; KITTI's metric knows only "
            f"{', '.join(MIN_OVERLAP)}; add --metric lidar"
        )
    split, crop = options.split or "val", detector.config.grid.crop_to_image
    points = detector.config.points
    dataset = KittiDataset(options.root, split, classes, crop=crop, points=points)
    truth = [dataset.labels(index) for index in range(len(dataset))]
    detections = []
    with result_folder(options.output, dataset) as results:
        for frame, found in detected(detector, dataset, "detecting"):
            labels = detections_to_labels(found, frame.calibration, frame.image_shape)
            detections.append(labels)
            if results:
                results.write(frame.frame_id, labels=labels)
    return kitti.evaluate(detections, truth, scored)


@contextmanager
def result_folder(output: Path | None, dataset: Dataset) -> Iterator[ResultFolder | None]:
    """The folder for result files, which no other program writes to meanwhile, if there is one."""
    with locked(output) if output else nullcontext():
        yield ResultFolder(output, dataset.frame_ids) if output else None


def detected(
    detector: Detector, dataset: Dataset, title: str
) -> Iterator[tuple[Frame, NamedDetections]]:
    """What is found in every frame; at the end, prints what was odd about the scans."""
    notes = Tally()
    for frame in progress(dataset, title):
        detector.forget()  # frames of a data set need not follow one another
        found, left_out = detector.detect(frame.points)
        notes.add(frame.frame_id, left_out + detector.examine(frame.points))
        yield frame, found.named(detector.config.class_names)
    for line in notes.lines():
        print(f"warning: {line}", file=sys.stderr)


def progress(dataset: Dataset, title: str) -> Iterator[Frame]:
    return iter(tqdm(dataset, desc=title, total=len(dataset), unit="frame", disable=None))


def evaluate_files(found: Path, known: Path, split: str | None) -> kitti.Result:
    """Result files in the folder `found` against label files of the same names in `known`.

    split: None for all frames that have labels.
    """
    for folder in (known, found):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
    if split and split != "all":
        path = Path(split)
        if not split.endswith(".txt"):
            check_name(split)
            path = led_to(known).parent.parent / "ImageSets" / f"{split}.txt"
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


def read_folder(folder: Path, ids: Sequence[str], name: str) -> list[Labels]:
    """The files of the frames; ValueError for a type that KITTI does not know."""
    known = {kind.lower() for kind in TYPES}
    frames = []
    for frame_id in tqdm(ids, desc=name, unit="file", leave=False, disable=None):
        path = folder / f"{frame_id}.txt"
        labels = read_labels(path)
        strange = next((kind for kind in labels.types.tolist() if kind.lower() not in known), None)
        if strange is not None:
            raise ValueError(f"{path}: type {strange!r} is none of KITTI's: {', '.join(TYPES)}")
        frames.append(labels)
    return frames


def score_benchmark(options: argparse.Namespace) -> None:
    """Write results as a benchmark takes them, if asked for, and score them as it does."""
    if options.output and options.output.exists():
        raise ValueError(f"{options.output}: is there already; give another --output")
    if options.json:
        require_own_json(options.json, lambda old: old.get("benchmark") in BENCHMARKS)
    kind = BENCHMARKS[options.benchmark]
    split = options.split or kind.default
    benchmark = kind(options.root, split)
    if not benchmark.scans:
        raise ValueError(f"{options.root}: no scans of the split {split}; name another by --split")
    strange = {*read_split(split)} - {*benchmark.scans} if split.endswith(".txt") else ()
    if strange:
        raise ValueError(f"{split}: {min(strange)} is not in {options.root}; correct the list")
    if not benchmark.labelled and (options.json or not options.output):
        raise ValueError(f"{options.root}: nobody has labelled {split}; give --output alone")
    if not options.output:
        kind.kit()  # before all results are read
    results = results_of(options.detections, benchmark.scans, kind.classes)
    if isinstance(benchmark, NuscenesDetection):
        give_velocities(benchmark, results)
    with TemporaryDirectory() as folder:
        path = options.output or Path(folder) / f"submission{kind.ending}"
        benchmark.write(results, path)
        if options.output:
            print(f"submission: {path}")
        if benchmark.labelled:
            figures = benchmark.score(path)
            print(figures.table)
            if options.json:
                write_json(options.json, {"benchmark": options.benchmark, **figures.content})


def results_of(
    folder: Path, scans: Sequence[str], classes: Mapping[str, str]
) -> dict[str, Findings]:
    """The results of all scans with a benchmark's classes; says which others are left out."""
    results, strange = {}, Counter[str]()
    for scan in tqdm(scans, desc="reading", unit="scan", disable=None):
        try:
            found, ids = read_result(folder / f"{scan}.json")
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error}; the benchmark takes all {len(scans)} scans of the split, or those that "
                "a file names: --split FILE.txt"
            ) from None
        strange.update(name for name in found.names if name not in classes)
        rows = np.flatnonzero([name in classes for name in found.names])
        own = found.select(rows)
        own = own._replace(names=tuple(classes[name] for name in own.names))
        results[scan] = Findings(own, None if ids is None else ids[rows])
    if strange:
        counted = ", ".join(f"{number} {name}" for name, number in sorted(strange.items()))
        print(f"left out, as the benchmark has no such class: {counted}")
    return results


def give_velocities(benchmark: NuscenesDetection, results: dict[str, Findings]) -> None:
    """Detections that have none get the velocity over ground of the nearest track; the tracker
    follows them through their recording."""
    for scans in benchmark.recordings:
        tracker = Tracker(confirm=1)
        for scan in scans:
            found, ids = results[scan]
            if found.velocities is not None:
                continue
            sweep = benchmark.sweep(scan)
            tracks = tracker.update(found, sweep.time, sweep.pose)
            rows = nearest_of_class(found, tracks.named(), NEAR)
            velocities = np.zeros((len(rows), 2))
            velocities[rows >= 0] = tracks.velocities[rows[rows >= 0]]
            results[scan] = Findings(found._replace(velocities=velocities), ids)


class SplitDetections(NamedTuple):
    """The frames of a split and what was found in them."""

    frame_ids: Sequence[str]
    objects: Sequence[FrameBoxes]
    detections: Sequence[FrameBoxes]
    classes: Sequence[str]  # that are scored
    dataset: Dataset
    velocities: Sequence[dict[str, np.ndarray]]  # errors of each frame, see `velocity_errors`


def score_lidar(options: argparse.Namespace) -> None:
    """Print the tables, and write what is asked for."""
    groups = groups_of(options)
    if options.report:
        from millisecond.tools import report  # it needs this module

        report.require_own_page(options.report)
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
    means, lines = mean_velocity_errors(found.velocities, found.classes)
    if means:
        mean = float(np.mean([*means.values()]))
        print("\n".join(["", *lines, f"mean of the classes (mAVE): {mean:.2f} m/s"]))
        result["velocity_errors"] = means
    if options.sensor_report:
        print(f"\n{sensor_report(found.detections, found.objects, overlaps, groups)}")
    if options.json:
        write_json(options.json, result)
    if options.curves:
        save_png(options.curves, draw_curves(result, overlaps, groups))
        print(f"curves: {options.curves}")
    if options.report:
        name = str(options.detections or options.weights or "the shipped weights")
        own = report.Run.of(name, found, overlaps, groups)
        told = {"command": options.command, "weights": str(options.weights or "not known")}
        report.write_page(options.report, own, None, groups, told)


def groups_of(options: argparse.Namespace) -> list[Group]:
    """The groups of objects that get rows of their own."""
    return [*rings(options.rings or RINGS), *point_groups(options.points or POINTS)]


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
    detector = detector_of(options)
    config = detector.config
    columns = columns_of(options.config, config)
    split, moving = options.split or "val", config.model.velocity and tells_velocities(options.root)
    dataset = dataset_for(config, options.root, split, columns, velocities=moving)
    objects, detections, velocities = [], [], []
    with result_folder(options.output, dataset) as results:
        for frame, found in detected(detector, dataset, "scoring"):
            found = as_in_a_file(found)
            objects.append(objects_of(frame, columns.features))
            detections.append(detections_in(frame, found))
            velocities.append(velocity_errors(labelled(frame), found))
            if results:
                labels = None
                if frame.calibration is not None:
                    labels = detections_to_labels(found, frame.calibration, frame.image_shape)
                results.write(frame.frame_id, json_result(frame.frame_id, found), labels)
    return SplitDetections(
        dataset.frame_ids, objects, detections, config.class_names, dataset, velocities
    )


def from_files(options: argparse.Namespace) -> SplitDetections:
    """Result files, JSON or KITTI's, against the labels of a data set."""
    split, columns = options.split or "val", KITTI_POINTS
    if options.config:
        columns = load_config(options.config).points
    crop = not is_folder(options.root) and Layout.find(options.root, split).has_images
    how = {"crop": crop, "points": columns, "velocities": tells_velocities(options.root)}
    dataset = open_dataset(options.root, split, options.classes or (), **how)
    find_detections(options.detections, dataset.frame_ids)
    found_names, labelled_names = set(names_in(options.detections, dataset.frame_ids)), set[str]()
    objects, detections, velocities = [], [], []
    for frame in progress(dataset, "scoring"):
        found = read_detections(options.detections, frame.frame_id, frame.calibration)
        objects.append(objects_of(frame, columns.features))
        detections.append(detections_in(frame, found))
        velocities.append(velocity_errors(labelled(frame), found))
        labelled_names.update(map(str, frame.names))
    classes = options.classes or sorted(found_names | labelled_names)
    _tell_of_names([name for name in classes if name not in found_names], labelled_names)
    return SplitDetections(dataset.frame_ids, objects, detections, classes, dataset, velocities)


def _tell_of_names(unfound: Sequence[str], labelled: set[str]) -> None:
    """Tells of classes that no result names: none was found, or the name is a mistake."""
    for name in unfound:
        if name in labelled:
            print(f"note: {name}: no result names it, it counts 0 in the mean", file=sys.stderr)
        else:
            near = nearest(name, sorted(labelled))
            print(f"note: neither labels nor results name {name!r}{near}", file=sys.stderr)


def tells_velocities(root: Path) -> bool:
    """Whether the labels of a data set have velocities: recordings of plain files tell them."""
    return is_folder(root) and any((root / SEQUENCES).glob(f"*{RECORDING}"))


def labelled(frame: Frame) -> NamedDetections:
    """The labels as perfect detections."""
    return NamedDetections(frame.boxes, np.ones(len(frame.boxes)), frame.names, frame.velocities)


def as_in_a_file(found: NamedDetections) -> NamedDetections:
    """Rounded as in a result file, so that both score the same."""
    boxes = found.boxes.astype(np.float64)
    boxes[:, 6] = wrap_angle(boxes[:, 6])
    boxes = boxes.round(DECIMALS).astype(np.float32)
    return found._replace(boxes=boxes, scores=rounded_scores(found))


def draw_curves(result: Result, overlaps: Overlaps, groups: Sequence[Group]) -> np.ndarray:
    """A row per class, [H, W, 3] uint8: left the groups by distance, right those by points.

    The curves are those that AP averages: in 3-D at the first overlap of the class, for all objects
    from above too. The area below a curve is its AP, also of few objects, which do not reach all
    places of recall. Groups without objects have none. On the right is the reliability of scores.
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
        dots = [Line("", (0, 1), (0, 1), dashed=True)]
        for bin in result["reliability"][name]:
            key = f"{bin['low']:g}-{bin['high']:g}: {bin['boxes']} boxes"
            dots.append(Line(key, [bin["score"]], [bin["right"]], COLOURS[0]))
        row.append(Panel(f"{name}, overlap {least:g}, reliability", SCORE, RIGHT, dots))
        rows.append(row)
    return draw_panels(rows)


def _lines(figures: Mapping[str, Any], groups: Sequence[str], least: float) -> list[Line]:
    shown = [(ALL.title, "bev", "from above", TEXT, True), (ALL.title, "3d", "3-D", TEXT, False)]
    for place, group in enumerate(groups):
        shown.append((group, "3d", "3-D", COLOURS[place % len(COLOURS)], False))
    lines = []
    for group, metric, kind, colour, dashed in shown:
        if count := figures[group]["count"]:
            curve = figures[group][f"{metric}@{least:g}"]
            x, y = sampled(curve["curve_precision"])
            most = 100 * (min(count, SAMPLES) - 1) / (SAMPLES - 1)
            capped = f" of {most:.1f}" if most < 100 else ""
            name = f"{group}, {kind}: AP {curve['R40']:.1f}{capped}, {count} objects"
            lines.append(Line(name, x.tolist(), y.tolist(), colour, dashed))
    return lines


def sampled(precision: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The steps [81] of a curve as R40 averages it: its area is AP."""
    samples = np.zeros(SAMPLES)
    samples[: len(precision)] = np.maximum.accumulate(np.array(precision)[::-1])[::-1]
    places = np.linspace(0, 1, SAMPLES)
    return np.repeat(places, 2)[:-1], np.repeat(samples, 2)[1:]
