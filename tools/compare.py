"""Compare two sets of scans: points per ring, beam and object, and whether they look alike."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
from tqdm import tqdm

from millisecond.data.checks.comparison import FigureRow, Measure, Verdict, compare, tell_apart
from millisecond.data.checks.sensor import Mounting
from millisecond.data.files import make_folder, write_json
from millisecond.data.formats.clouds import find_scans, read_scan
from millisecond.data.frame import Frame
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.metric.kitti import WIDTH
from millisecond.data.simulator import simulate
from millisecond.data.simulator.sensors import Sensor, find_sensor, sensor_names
from millisecond.detector.config import load_config
from millisecond.detector.draw.png import require_own, save_png
from millisecond.detector.draw.sheets import draw_scan_sheet
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.tools.program import (
    CONFIG,
    add_mounting,
    config_file,
    mounting_of,
    number,
    output_path,
    parser_of,
    run,
    shown,
)

EXAMPLE = """example:
  millisecond compare /data/kitti street:0-99 --output output/compare

A set is a KITTI data set, a folder of scans in files (without labels), or street:FIRST-LAST,
streets of the simulator. Figures of B outside of 0.8 to 1.2 times A's are marked. --shift-z and
--turn move scans in files, not streets.
"""
USUAL = "--sensor --split --every"
WITHIN = (0.8, 1.2)
PAIRS = 4  # scans of each set on the sheet
Open = Callable[[], Frame]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("sets", nargs=2, metavar="SET", help="A and B")
    add(
        "--sensor",
        default="hdl-64e",
        help=f"of both sets: {', '.join(sensor_names())}, or a .yaml file (default: hdl-64e)",
    )
    add("--split", default="all", help="of KITTI data sets (default: all)")
    add("--every", type=number, default=1, metavar="N", help="take each Nth scan")
    add("--config", type=config_file, default=CONFIG, help=f"whose grid ({shown(CONFIG)})")
    add(
        "--output",
        type=output_path,
        required=True,
        help="folder for comparison.json and the pictures of comparison.png",
    )
    add_mounting(parser)
    options = parser.parse_args(arguments)
    return run(lambda: compare_sets(options))


def compare_sets(options: argparse.Namespace) -> None:
    sensor, config = find_sensor(options.sensor), load_config(options.config)
    sheet = options.output / "comparison.png"
    measure = Measure(sensor, config.grid.voxel_grid, DOWNS)
    mounting = mounting_of(options)
    sets = [
        open_set(name, options.split, sensor, config.class_names, mounting)[:: options.every]
        for name in options.sets
    ]
    make_folder(options.output)
    require_own(sheet)
    a, b = (
        [measure(frame()) for frame in tqdm(frames, desc=name, unit="scan", disable=None)]
        for name, frames in zip(options.sets, sets, strict=True)
    )
    rows, verdict = compare(a, b), tell_apart(a, b)
    print("\n".join(judgement(rows, verdict, len(a), len(b))))
    print("\n".join(table(rows)))
    write_json(options.output / "comparison.json", figures(options.sets, rows, verdict))
    save_png(sheet, draw_scan_sheet(tuple(options.sets), [*pairs(*sets)]))
    print(f"\nwritten: {options.output}/comparison.json, {sheet}")


def open_set(
    name: str, split: str, sensor: Sensor, classes: Sequence[str], mounting: Mounting
) -> list[Open]:
    """What reads each scan of a set. mounting: of scans in files. Raises ValueError or
    FileNotFoundError for what is none."""
    if name.startswith("street:"):
        numbers = re.fullmatch(r"street:(\d{1,9})(?:-(\d{1,9}))?", name)
        first, last = (int(n) if n else -1 for n in numbers.groups()) if numbers else (0, 0)
        last = first if last < 0 else last
        if not numbers or last < first:
            raise ValueError(f"{name}: give numbers such as street:0-99")
        return [partial(simulate, seed, sensor=sensor) for seed in range(first, last + 1)]
    root = Path(name)
    if any((root / part).is_dir() for part in ("training", "velodyne_reduced", "velodyne")):
        dataset = KittiDataset(root, split, classes, packed=False, labels=False)
        reads = [partial(dataset.__getitem__, index) for index in range(len(dataset))]
    else:
        reads = [lambda path=path: Frame(path.stem, read_scan(path)) for path in find_scans([root])]
    return [partial(_moved, mounting, read) for read in reads]


def _moved(mounting: Mounting, read: Open) -> Frame:
    frame = read()
    points, boxes = mounting.to_network(frame.points), mounting.boxes_to_network(frame.boxes)
    return replace(frame, points=points, boxes=boxes)


def table(rows: Sequence[FigureRow]) -> Iterator[str]:
    """The lines of all tables."""
    for name, group in groupby(sorted(rows, key=lambda row: row.table), key=lambda row: row.table):
        yield f"\n{name:<28}{'A':>10}{'B':>10}{'B / A':>9}"
        for row in group:
            if row.table in ("beams", "free") and row.a == row.b:
                continue  # beams that the crop leaves out
            counted = f"   {row.behind[0]} and {row.behind[1]}" if "object" in row.table else ""
            yield (
                f"  {row.name:<26}{_short(row.a):>10}{_short(row.b):>10}{_short(row.ratio):>9}"
                f"{'' if _close(row) else ' *'}{counted}"
            )


def judgement(rows: Sequence[FigureRow], verdict: Verdict, a: int, b: int) -> Iterator[str]:
    """The lines that sum up the tables of a and b scans."""
    counted = [row for row in rows if row.table in ("rings", "beams", "heights", "voxels")]
    counted = [row for row in counted if max(row.a, row.b) >= 1]
    close = sum(map(_close, counted))
    yield f"scans: {a} and {b}; counts within 20 %: {close} of {len(counted)}"
    accuracy = verdict.accuracy
    told = "too few scans to train it" if np.isnan(accuracy) else f"{accuracy:.0%} of the scans"
    yield f"a classifier tells apart: {told} (50 % is guessing)"
    most = f"what differs most: {', '.join(verdict.telling)}"
    yield textwrap.fill(most, WIDTH, subsequent_indent="  ")


def _close(row: FigureRow) -> bool:
    same = row.a == row.b or (np.isnan(row.a) and np.isnan(row.b))
    return same or WITHIN[0] <= row.ratio <= WITHIN[1]


def _short(value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def figures(names: Sequence[str], rows: Sequence[FigureRow], verdict: Verdict) -> dict:
    """What the JSON file has; numbers that there are none of are null."""
    tables: dict[str, dict] = {}
    for row in rows:
        values = (row.a, row.b, row.ratio)
        tables.setdefault(row.table, {})[row.name] = [None if np.isnan(v) else v for v in values]
    accuracy = None if np.isnan(verdict.accuracy) else verdict.accuracy
    return {
        "a": names[0],
        "b": names[1],
        "columns": ["a", "b", "b / a"],
        "tables": tables,
        "told apart": accuracy,
        "telling": list(verdict.telling),
    }


def pairs(a: Sequence[Open], b: Sequence[Open]):
    """Scans of both sets, evenly taken, as (name, points) in pairs."""
    count = min(PAIRS, len(a), len(b))
    for index in range(count):
        frames = [some[index * len(some) // count]() for some in (a, b)]
        yield tuple((frame.frame_id, frame.points) for frame in frames)
