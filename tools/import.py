"""Write a published data set as plain files: clouds, labels, lists of frames, poses and tracks."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections
from millisecond.data.datasets.published import (
    DATA_SETS,
    PublishedDrive,
    PublishedScan,
    PublishedSet,
    places_of,
    points_of,
    velocities_of,
)
from millisecond.data.files import locked, read_text, replacing, write_lines, write_text
from millisecond.data.folder.labels import label_lines
from millisecond.data.formats.pcd import write_pcd
from millisecond.data.formats.points import require_scan
from millisecond.data.kitti.layout import NAME
from millisecond.detector.config import load_config
from millisecond.tools.program import STOPPED, number, one_line, output_path, parser_of, run

EXAMPLE = """examples:
  millisecond import nuscenes /data/nuscenes plain
  millisecond import argoverse2 /data/av2 plain --sweeps 5

Writes OUT/points/NAME.pcd and OUT/labels/NAME.txt, the splits in OUT/ImageSets, and times, poses,
track ids and velocities of each recording in OUT/sequences, which `millisecond detect`
takes. x points forward, y left, z up. The same command goes on where it was stopped, and tries
again what was missing. docs/datasets.md says more.
"""
MARK = "import.json"
TOLD = 10  # scans of a recording that are left out with a line of their own


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: import_dataset(options), stopped=STOPPED)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE)
    add = parser.add_argument
    add("dataset", choices=DATA_SETS)
    add("root", type=Path, metavar="ROOT", help="folder of the data set as it was downloaded")
    add("output", type=output_path, metavar="OUT", help="folder to write to")
    add(
        "--sweeps",
        type=number,
        default=1,
        metavar="N",
        help="join the scan and the N - 1 turns of the LiDAR before it by their poses; the column "
        "time says how many seconds older a point is (default: 1)",
    )
    add(
        "--classes",
        nargs="+",
        type=renaming,
        default=[],
        metavar="OLD=NEW",
        help="name objects of a class of the data set so, or as the classes of a configuration "
        "FILE.yaml have it, by `name` and `also` (default: the table in docs/datasets.md)",
    )
    return parser.parse_args(arguments)


def renaming(text: str) -> str:
    old, equals, new = text.partition("=")
    if not (text.endswith(".yaml") or (old and equals and new.split() == [new])):
        raise argparse.ArgumentTypeError(f"{text!r} is neither OLD=NEW, NEW one word, nor .yaml")
    return text


def table_of(words: Sequence[str]) -> dict[str, str]:
    """New names by old ones. Raises ValueError or FileNotFoundError for a configuration."""
    table = {}
    for word in words:
        if word.endswith(".yaml"):
            for kind in load_config(word).classes:
                table |= dict.fromkeys((kind.name, *kind.also), kind.name)
        else:
            old, _, new = word.partition("=")
            table[old] = new
    return table


def import_dataset(options: argparse.Namespace) -> None:
    """Write what is not there yet. Raises ValueError in the end where scans were left out."""
    root, output, given = options.root, options.output, table_of(options.classes)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; give the folder of the data set")
    settings = {"dataset": options.dataset, "sweeps": options.sweeps}
    settings["classes"] = dict(sorted(given.items()))
    require_own(output, settings)
    kind = DATA_SETS[options.dataset]
    classes = {**kind.classes, **given}
    spellings = Counter(name.lower() for name in {*classes.values()})
    if alike := [f"{old}={new}" for old, new in classes.items() if spellings[new.lower()] > 1]:
        remedy = "name them alike by --classes OLD=NEW"
        raise ValueError(f"classes: {', '.join(alike)} differ by case only; {remedy}")
    with locked(output):
        write_text(output / MARK, json.dumps(settings) + "\n")
        writer = Writer(output, kind._replace(classes=classes), options.sweeps)
        bar = tqdm(desc="importing", unit="scan", disable=None)
        for recording in kind.recordings(root):
            writer.write(recording, bar)
        bar.close()
        writer.write_splits()
    for word in options.classes:
        if (old := word.partition("=")[0]) != word and old not in writer.seen:
            print(f"--classes {word}: no object is called {old}")
    objects = ", ".join(f"{count} {name}" for name, count in sorted(writer.seen.items()))
    print(
        f"{output}: {writer.imported} scans; objects by the data set's names: {objects or 'none'}"
    )
    if writer.left_out:
        raise ValueError(
            f"{writer.left_out} scans or recordings were left out, see the lines above; the same "
            "command tries them again"
        )


def require_own(output: Path, settings: dict[str, Any]) -> None:
    """Raises ValueError for a folder that holds anything but files of the same import."""
    mark, there = output / MARK, output.iterdir() if output.exists() else ()
    if not any(path.name[0] != "." and path != mark for path in there):
        return  # also where an import has failed before its first scan
    if not mark.exists():
        raise ValueError(f"{output}: holds other files; give a new folder")
    try:
        same = json.loads(read_text(mark)) == settings
    except json.JSONDecodeError:
        same = False
    if not same:
        raise ValueError(
            f"{mark}: the folder was made with {' '.join(read_text(mark).split())[:200]}; give the "
            "same arguments or another folder"
        )


class Writer:
    """The plain files of an import, each whole or not there; what is there stays."""

    def __init__(self, output: Path, kind: PublishedSet, sweeps: int):
        self._output, self._kind, self._sweeps = output, kind, sweeps
        self._columns = (*kind.columns, "time") if sweeps > 1 else kind.columns
        self._splits: dict[str, list[str]] = {}
        self.seen: Counter[str] = Counter()
        self.imported = self.left_out = 0

    def write(self, recording: PublishedDrive, bar: tqdm) -> None:
        """Write the scans of a recording; say in one line each which are left out and why."""
        scans, wrong, lines = *scans_of(recording), []
        near = [(scan.sweep.time, places_of(scan)) for scan in scans]
        bar.update(len(wrong))
        for place, scan in enumerate(scans):
            try:
                velocities = velocities_of(scan, near[max(place - 1, 0) : place + 2])
                lines.append(self._write(scan, velocities))
                self._splits.setdefault(recording.split, []).append(scan.name)
            except (ValueError, OSError, OverflowError) as error:
                wrong.append(one_line(error))
            bar.update()
        if lines:
            write_lines(self._output / "sequences" / f"{recording.name}.jsonl", lines)
        self.imported, self.left_out = self.imported + len(lines), self.left_out + len(wrong)
        more = f"{recording.name}: {len(wrong) - TOLD} more scans are left out"
        for line in [*wrong[:TOLD], *([more] if len(wrong) > TOLD else [])]:
            tqdm.write(f"left out: {line}", file=sys.stderr)

    def _write(self, scan: PublishedScan, velocities: Sequence[list[float] | None]) -> str:
        """Write a scan's files; returns what they cannot hold as a line of JSON."""
        require_name(scan.name)
        objects = scan.objects or []
        names = [self._name(kind, place) for _, kind, _, place in objects]
        boxes = np.array([one.box for one in objects]).reshape(-1, 7)
        cloud = self._output / "points" / f"{scan.name}.pcd"
        label = self._output / "labels" / f"{scan.name}.txt"
        if not cloud.exists():
            points = points_of(scan, self._sweeps)
            require_scan(points[:, :4], scan.name)
            with replacing(cloud) as temporary:
                write_pcd(temporary, points, self._columns)
        if scan.objects is not None and not label.exists():
            found = NamedDetections(boxes, np.ones(len(boxes)), names)
            write_lines(label, label_lines(found))
        self.seen.update(one.kind for one in objects)
        pose = None if scan.sweep.pose is None else scan.sweep.pose.tolist()
        told = {"name": scan.name, "time": scan.sweep.time, "pose": pose, "tracks": None}
        if scan.objects is not None:
            told |= {"tracks": [one.track for one in objects], "velocities": velocities}
        return json.dumps(told)

    def _name(self, kind: str, place: str) -> str:
        if kind not in self._kind.classes:
            raise ValueError(f"{place}: class {kind!r} is unknown; name it: --classes {kind}=NAME")
        return self._kind.classes[kind]

    def write_splits(self) -> None:
        """Add the scans that no list has: somebody may have moved others to a list of their own."""
        folder = self._output / "ImageSets"
        lists = {path.stem: read_text(path).split() for path in folder.glob("*.txt")}
        known = {name for names in lists.values() for name in names}
        for split, names in self._splits.items():
            new = [name for name in names if name not in known]
            write_lines(folder / f"{split}.txt", [*lists.get(split, ()), *new])


def scans_of(recording: PublishedDrive) -> tuple[list[PublishedScan], list[str]]:
    """The scans of a recording, without their points, and lines on those that cannot be made."""
    scans: list[PublishedScan] = []
    wrong, last = [], -np.inf
    try:
        require_name(recording.name)
        for make in recording.scans():
            try:
                scan = make()
                if scan.sweep.time <= last:
                    raise ValueError(
                        f"{scan.name}: its time {scan.sweep.time:.6f} s is not after "
                        f"{last:.6f} s, the time of the scan before"
                    )
                scans.append(scan)
                last = scan.sweep.time
            except (ValueError, OSError, OverflowError) as error:
                wrong.append(one_line(error))
    except (ValueError, OSError) as error:
        wrong.append(one_line(error))
    return scans, wrong


def require_name(name: str) -> None:
    """Raises ValueError for what cannot be the name of a file."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r}: a name has letters, digits, '-', '_' and '.' only")
