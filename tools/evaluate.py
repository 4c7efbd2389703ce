"""Score detections by the KITTI metric: those in result files, or those of a weights file."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tqdm import tqdm

from data.files import locked, require_own_json, write_json
from data.kitti.dataset import KittiDataset
from data.kitti.labels import TYPES, Labels, read_labels
from data.kitti.metric.ap_table import format_table
from data.kitti.metric.evaluation import MIN_OVERLAP, Result, evaluate
from data.kitti.results import detections_to_labels
from data.kitti.splits import check_name, read_split, require_files
from data.result_folder import ResultFolder
from data.scan_checks import Tally
from detector.config import PRECISIONS
from detector.detector import Detector
from tools.program import WEIGHTS, output_path, run

EXAMPLE = """example:
  python tools/evaluate.py weights.safetensors --root kitti --split val --output results
  python tools/evaluate.py --detections results --labels kitti/training/label_2 \\
      --split kitti/ImageSets/val.txt --json ap.json

AP is in percent. A class with fewer than 41 ground truths cannot reach 100 by KITTI's rules; the
table marks it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: score(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", nargs="?", type=Path, help=f"to run on --root: {WEIGHTS}")
    parser.add_argument("--root", type=Path, help="KITTI folder: training/velodyne and so on")
    parser.add_argument("--detections", type=Path, help="folder of KITTI result files")
    parser.add_argument("--labels", type=Path, help="folder of KITTI label files")
    parser.add_argument(
        "--split",
        help="frames to score: a name in ImageSets of ROOT or beside LABELS, a file with one frame "
        "id per line, or all (default: val with weights, all label files with results)",
    )
    parser.add_argument(
        "--output", type=output_path, help="with weights: write KITTI result files here"
    )
    parser.add_argument("--device", help="with weights: cpu, cuda, cuda:1 (a GPU if there is one)")
    parser.add_argument("--precision", choices=PRECISIONS, help="with weights: of the network")
    parser.add_argument("--json", type=output_path, help="write the table's figures here")
    options = parser.parse_args(arguments)
    files = options.detections and options.labels and not options.weights and not options.root
    weights = options.root and not options.detections and not options.labels
    if not files and not weights:
        parser.error("give either --root, or --detections and --labels")
    if files and (options.output or options.device or options.precision):
        parser.error("--output, --device and --precision go with WEIGHTS")
    return options


def score(options: argparse.Namespace) -> None:
    """Print the table of AP, and write its figures where that is asked for."""
    if options.json:
        require_own_json(options.json, lambda old: bool(old) and set(old) <= set(MIN_OVERLAP))
    result = evaluate_files(options) if options.detections else evaluate_weights(options)
    print(format_table(result))
    if options.json:
        write_json(options.json, result)


def evaluate_files(options: argparse.Namespace) -> Result:
    """Result files against label files of the same names."""
    for folder in (options.labels, options.detections):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
    if options.split and options.split != "all":
        path = find_list(options.split, options.labels)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such split; without --split all frames that have labels are scored"
            )
        ids: Sequence[str] = read_split(path)
        require_files(ids, options.labels, ".txt", options.split)
    else:
        ids = sorted(path.stem for path in options.labels.glob("*.txt"))
    if not ids:
        raise FileNotFoundError(f"{options.labels}: no label files (.txt) in it")
    for frame_id in ids:
        path = options.detections / f"{frame_id}.txt"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such file; KITTI wants one result file per frame, an empty one where "
                "nothing was found (or name the frames to score with --split FILE)"
            )
    detections = read_folder(options.detections, ids, "detections")
    for frame_id, labels in zip(ids, detections, strict=True):
        if labels.score is None:
            raise ValueError(
                f"{options.detections / frame_id}.txt: no scores; a result line has 16 fields, the "
                "score last"
            )
    return evaluate(detections, read_folder(options.labels, ids, "labels"))


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


def evaluate_weights(options: argparse.Namespace) -> Result:
    """Detections of a network on the frames of a split, written as result files if asked for."""
    detector = Detector.from_weights(options.weights, options.device, options.precision)
    classes = detector.config.class_names
    scored = [name for name in classes if name in MIN_OVERLAP]
    if not scored:
        raise ValueError(
            f"{options.weights}: finds {', '.join(classes)}; KITTI's metric knows only "
            f"{', '.join(MIN_OVERLAP)}"
        )
    split, crop = options.split or "val", detector.config.grid.crop_to_image
    dataset = KittiDataset(options.root, split, classes, crop=crop)
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
