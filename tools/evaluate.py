"""Score detections, from result files or from a weights file: by the KITTI metric, or by
one that needs no camera."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tqdm import tqdm

from millisecond.data.checks.scans import Tally
from millisecond.data.datasets import is_folder, require_apart
from millisecond.data.files import locked, require_own_json, write_json
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import Labels
from millisecond.data.kitti.results import ResultFolder, detections_to_labels
from millisecond.data.metric.kitti import MIN_OVERLAP, Result, evaluate, format_table
from millisecond.detector.config import PRECISIONS
from millisecond.detector.detector import Detector
from millisecond.tools.evaluating import evaluate_files, score_lidar
from millisecond.tools.program import (
    COLUMN_CONFIG,
    WEIGHTS,
    add_mounting,
    mounting_of,
    number,
    output_path,
    parser_of,
    run,
)

EXAMPLE = """example:
  millisecond evaluate weights.safetensors --root kitti --split val --output results
  millisecond evaluate --detections results --labels kitti/training/label_2 \\
      --split kitti/ImageSets/val.txt --json ap.json
  millisecond evaluate weights.safetensors --root mine --overlap 0.5 Car=0.7,0.5 \\
      --rings 20 40 --curves curves.png
  millisecond evaluate --detections results --root mine --split val

Data in KITTI's layout are scored by KITTI's metric, with weights or with --labels. All else is
scored in the LiDAR frame, as --metric lidar does it for KITTI's data too; docs/evaluation.md
explains the figures. AP is in percent. A class with fewer than 41 objects cannot reach 100 by
KITTI's rules; the table marks it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: score(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE)
    add_input(parser)
    parser.add_argument(
        "--output", type=output_path, help="with weights: write result files into this folder"
    )
    parser.add_argument("--device", help="with weights: cpu, cuda, cuda:1 (a GPU if there is one)")
    parser.add_argument("--precision", choices=PRECISIONS, help="with weights: of the network")
    parser.add_argument("--json", type=output_path, help="write the table's figures here")
    add_mounting(parser)
    add_lidar(parser)
    options = parser.parse_args(arguments)
    check(parser, options)
    return options


def add_input(parser: argparse.ArgumentParser) -> None:
    """The arguments that name what is scored."""
    parser.add_argument("weights", nargs="?", type=Path, help=f"to run on --root: {WEIGHTS}")
    parser.add_argument("--root", type=Path, help="folder of a data set with labels")
    parser.add_argument(
        "--detections", type=Path, help="folder of result files; with --labels, of KITTI's"
    )
    parser.add_argument("--labels", type=Path, help="folder of KITTI label files")
    parser.add_argument(
        "--split",
        help="frames to score: a name in ImageSets of ROOT or beside LABELS, a file with one frame "
        "id per line, or all (default: val with --root, all label files with --labels)",
    )
    parser.add_argument(
        "--metric",
        choices=("kitti", "lidar"),
        help="kitti: the benchmark's; lidar: for any sensor and classes (default: see below)",
    )


def add_lidar(parser: argparse.ArgumentParser) -> None:
    """The arguments of the metric without a camera."""
    group = parser.add_argument_group("for --metric lidar")
    group.add_argument(
        "--overlap",
        nargs="+",
        metavar="[CLASS=]IOU[,IOU]",
        help="least overlaps of a match (default: Car=0.7, others 0.5)",
    )
    group.add_argument(
        "--rings",
        nargs="+",
        type=float,
        metavar="METRES",
        help="edges of the rings of distance (default: 30 50)",
    )
    group.add_argument(
        "--points",
        nargs="+",
        type=number,
        metavar="N",
        help="edges of the groups by points on the object (default: 10 50 200)",
    )
    group.add_argument(
        "--curves", type=output_path, metavar="PNG", help="draw precision over recall here"
    )
    group.add_argument(
        "--classes",
        nargs="+",
        metavar="NAME",
        help="with --detections: to score (default: all that labels or results name)",
    )
    group.add_argument("--config", type=Path, help=COLUMN_CONFIG)


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where arguments do not go together; settles the metric where they do."""
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
    asked = ("overlap", "rings", "points", "curves", "classes", "config")
    wanted = next((name for name in asked if getattr(options, name)), None)
    if wanted and options.metric == "kitti":
        parser.error(f"--{wanted} goes with --metric lidar")
    if wanted:
        options.metric = "lidar"


def score(options: argparse.Namespace) -> None:
    """Print the table of AP, and write its figures where that is asked for."""
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
    print(format_table(result))
    if options.json:
        write_json(options.json, result)


def evaluate_weights(options: argparse.Namespace) -> Result:
    """Detections of a network on the frames of a split, written as result files if asked for."""
    detector = Detector.from_weights(
        options.weights, options.device, options.precision, mounting=mounting_of(options)
    )
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
    with locked(options.output) if options.output else nullcontext():
        results = ResultFolder(options.output, dataset.frame_ids) if options.output else None
        detections = detect(detector, dataset, results)
    return evaluate(detections, truth, scored)


def detect(detector: Detector, dataset: KittiDataset, results: ResultFolder | None) -> list[Labels]:
    """What is found in every frame, written where there is a folder for it."""
    classes = detector.config.class_names
    detections, notes = [], Tally()
    for frame in tqdm(dataset, desc="detecting", total=len(dataset), unit="frame", disable=None):
        found, left_out = detector.detect(frame.points)
        notes.add(frame.frame_id, left_out + detector.examine(frame.points))
        named = found.named(classes)
        detections.append(detections_to_labels(named, frame.calibration, frame.image_shape))
        if results:
            results.write(frame.frame_id, labels=detections[-1])
    for line in notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    return detections


if __name__ == "__main__":
    sys.exit(main())
