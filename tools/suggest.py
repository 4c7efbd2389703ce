"""Order scans that have no labels by what they would teach a network most."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from millisecond.data.checks.scans import Tally
from millisecond.data.datasets import Dataset, open_dataset
from millisecond.data.files import require_own_json, write_json, write_lines
from millisecond.detector.detection_files import read_result, scans_in
from millisecond.detector.detector import Detector
from millisecond.detector.draw.birds_eye import draw_thumbnail
from millisecond.detector.draw.png import require_own, save_png
from millisecond.detector.draw.sheets import CELL, compose_contact_sheet
from millisecond.detector.draw.style import Palette, Shown
from millisecond.detector.uncertainty import MEASURES, Uncertainty, examine, examine_found, values
from millisecond.tools.program import (
    COLUMN_CONFIG,
    add_mounting,
    columns_of,
    dataset_for,
    mounting_of,
    number,
    output_path,
    parser_of,
    run,
)

EXAMPLE = """examples:
  millisecond suggest weights.safetensors --root mine --count 50 --output next.txt
  millisecond suggest --detections results.parquet --count 50 --output next.txt

A scan is worth more where the network is unsure: scores far from 0 and 1 (entropy), and other
boxes in the scan's mirror image (disagreement under flips). detector/uncertainty.py defines both.
Results of millisecond detect, files or a table, tell the entropy alone, without reading any scan.
The column `why` names the boxes that are most in doubt, each with its score there and, found again
or not, in the mirror image; --picture draws them, the second ones dashed.
OUTPUT names the best scans, one per line, as the lists in ImageSets do. docs/few_labels.md shows
how to go on.
"""
USUAL = "--detections --root --split --count --output --picture"
COLUMNS = ("value", "entropy", "disagreement", "boxes", "why")
MOST, BESIDE = 48, 4  # scans in the picture, and how many of them side by side


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add(
        "weights",
        nargs="?",
        type=Path,
        help="of the network to be taught: a file, or second, second_small or any, which are "
        "shipped",
    )
    add("--detections", type=Path, help="folder of results, or a .parquet file, instead of weights")
    add(
        "--root",
        type=Path,
        help="folder of the data set (with --detections, default: all scans of the results)",
    )
    add(
        "--split",
        default="all",
        help="scans to order: a name in ImageSets of ROOT, a file with one name per line, or all "
        "that have no label file (default)",
    )
    add("--count", type=number, default=20, metavar="N", help="scans to suggest (default: 20)")
    add(
        "--by",
        choices=MEASURES,
        help="what makes a scan worth more (default: both; with --detections entropy)",
    )
    add("--output", type=output_path, help="write the names of those scans here")
    add("--json", type=output_path, help="write the figures of all scans here")
    add(
        "--picture",
        type=output_path,
        metavar="PNG",
        help="draw those scans from above with the boxes in doubt",
    )
    add("--config", type=Path, help=COLUMN_CONFIG)
    add("--device", help="cpu, cuda, cuda:1 (a GPU if there is one)")
    add_mounting(parser)
    options = parser.parse_args(arguments)
    check(parser, options)
    return run(lambda: suggest(options))


def check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where arguments do not go together; settles the measure where they do."""
    if bool(options.weights) == bool(options.detections) or not (
        options.root or options.detections
    ):
        parser.error("give WEIGHTS and --root, or --detections")
    if options.picture and not options.root:
        parser.error("--picture draws points: give --root")
    if options.weights:
        options.by = options.by or "both"
        return
    if options.by not in (None, "entropy"):
        parser.error(f"--by {options.by} compares with the scan's mirror image: give WEIGHTS")
    if any((options.config, options.device, options.shift_z, options.turn)):
        parser.error("--config, --device, --shift-z and --turn go with WEIGHTS")
    if options.split != "all" and not options.root:
        parser.error("--split goes with --root")
    options.by = "entropy"


def suggest(options: argparse.Namespace) -> None:
    """Print the best scans, and write what is asked for."""
    if options.output and options.output.exists():
        raise ValueError(f"{options.output}: is there already; give another --output")
    if options.json:
        require_own_json(options.json, lambda old: set(old) == {"most_first"})
    if options.picture:
        require_own(options.picture)
    read, names, found = from_weights(options) if options.weights else from_results(options)
    worth = values(found, options.by)
    order = np.argsort(-worth, kind="stable")
    print(table([(names[i], float(worth[i]), found[i]) for i in order[: options.count]]))
    if options.output:
        chosen = [names[i] for i in order[: options.count]]
        write_lines(options.output, chosen)
        print(f"{len(chosen)} of {len(names)} scans: {options.output}")
    if options.json:
        lines = []
        for i in order:
            figures = found[i]._asdict()
            del figures["doubts"]
            lines.append(
                {"frame": names[i], "value": float(worth[i]), **figures, "why": found[i].why}
            )
        write_json(options.json, {"most_first": lines})
    if options.picture:
        cells = []
        for i in order[: min(options.count, MOST)]:
            said = f"{names[i]}   {worth[i]:.2f}   {found[i].why}"
            cells.append((said, draw_doubts(read(i), found[i])))
        save_png(options.picture, compose_contact_sheet(cells, BESIDE))
        print(f"{len(cells)} scans drawn: {options.picture}")


def draw_doubts(points: np.ndarray, scan: Uncertainty) -> np.ndarray:
    """[H, W, 3] uint8: from above, with the boxes in doubt: solid as found, dashed as found in the
    mirror image."""
    palette, sets = Palette(), []
    for place in ("found", "mirrored"):
        doubts = [doubt for doubt in scan.doubts if getattr(doubt, place) is not None]
        boxes = np.array([getattr(doubt, place) for doubt in doubts], np.float32).reshape(-1, 7)
        scores = np.array([doubt.score for doubt in doubts]) if place == "found" else None
        sets.append(palette.paint(boxes, [doubt.name for doubt in doubts], scores))
    solid, dashed = sets
    return draw_thumbnail(Shown(points, dashed, solid), "height", None, CELL, captions=True)


Scans = tuple[Callable[[int], np.ndarray], list[str], list[Uncertainty]]


def from_weights(options: argparse.Namespace) -> Scans:
    """What reads the points of a scan, the names of the scans, and how unsure the network is of
    each."""
    detector = Detector.from_weights(options.weights, options.device)
    config = detector.config
    columns = columns_of(options.config, config)
    dataset = dataset_for(config, options.root, options.split, columns, labels=False)
    mounting, rows = mounting_of(options), rows_of(dataset, options.split)
    found, notes = [], Tally()

    def read(place: int) -> np.ndarray:
        return mounting.to_network(dataset[rows[place]].points)

    for place, row in enumerate(tqdm(rows, desc="examining", unit="scan", disable=None)):
        points = read(place)
        found.append(examine(detector, points))
        notes.add(dataset.frame_ids[row], detector.examine(points))
    for line in notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    return read, [dataset.frame_ids[row] for row in rows], found


def from_results(options: argparse.Namespace) -> Scans:
    """As `from_weights`, from what was found."""

    def read(place: int) -> np.ndarray:
        return dataset[rows[place]].points

    if options.root:
        dataset = open_dataset(options.root, options.split, (), crop=False, labels=False)
        rows = rows_of(dataset, options.split)
        names = [dataset.frame_ids[row] for row in rows]
    else:
        names = scans_in(options.detections)
    results = (read_result(options.detections / f"{name}.json") for name in names)
    return read, names, [examine_found(result.found) for result in results]


def rows_of(dataset: Dataset, split: str) -> Sequence[int]:
    """The numbers of the frames of a split, or of all frames that have no label file. Raises
    ValueError where there are none."""
    ids = dataset.frame_ids
    if split != "all":
        return range(len(ids))
    without = set(dataset.layout.unlabelled)
    rows = [row for row, name in enumerate(ids) if name in without]
    if not rows:
        raise ValueError(
            f"{dataset.layout.root}: all {len(ids)} scans have labels; name a split with --split "
            "to order its scans nevertheless"
        )
    return rows


def table(rows: Sequence[tuple[str, float, Uncertainty]]) -> str:
    """Names, values and figures in columns."""
    wide = max(len("scan"), *(len(name) for name, *_ in rows))
    lines = [f"{'scan':{wide}}" + "".join(f"{column:>{len(column) + 2}}" for column in COLUMNS)]
    for name, value, figures in rows:
        entropy, disagreement, boxes, _ = figures
        other = "-" if disagreement is None else f"{disagreement:.2f}"
        lines.append(f"{name:{wide}}{value:7.2f}{entropy:9.2f}{other:>14}{boxes:7}  {figures.why}")
    return "\n".join(lines)
