"""Find boxes in LiDAR scans: one JSON file per scan and, with a calibration, KITTI result files."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.data.calibration import Calibration
from millisecond.data.checks.scans import Note, Tally
from millisecond.data.files import is_text, locked
from millisecond.data.folder.labels import label_lines, labelcloud_json
from millisecond.data.formats.clouds import find_scans, read_scan
from millisecond.data.formats.points import KITTI_POINTS, PointColumns
from millisecond.data.kitti.layout import USUAL_IMAGE, image_shape
from millisecond.data.kitti.results import ResultFolder, detections_to_labels
from millisecond.detector.config import PRECISIONS
from millisecond.detector.detector import Detector
from millisecond.detector.tracking import EgoMotion, Tracker, Tracks
from millisecond.tools.program import (
    COLUMN_CONFIG,
    WEIGHTS,
    add_mounting,
    columns_of,
    detector_of,
    one_line,
    output_path,
    parser_of,
    rate,
    run,
    share,
)

EXAMPLE = """example:
  millisecond detect kitti/training/velodyne --calib kitti/training/calib --output results

A scan is a .bin file of float32 (x, y, z, intensity), an array [P, 4] of them in .npy or .npz, or
a .pcd, .ply or .las file; other columns are named by `points` in a configuration (--config).
OUTPUT/000008.json holds boxes (x, y, z, l, w, h, yaw in the LiDAR frame, metres and radians),
scores, names and the time taken. With --calib, points outside the camera's field of view are left
out, as in training, and OUTPUT/000008.txt is the result file that KITTI's evaluation takes. The
image's size is read from ../image_2/000008.png beside the scan's folder, 1242 x 375 where there
is none. Scans that cannot be read are named at the end, and the exit code is 2.

With --format text, OUTPUT/000008.txt holds lines `x y z l w h yaw class` instead; with --format
labelcloud, OUTPUT/000008.json is what labelCloud opens. Both are labels of a data set of plain
files, to be corrected by hand, and are never written over.

With --track the scans are one recording, in the order of their names. The boxes are then boxes
of tracks, with their ids, velocities (metres per second along x and y of the scan) and ages
(scans).
"""
NOTHING_SEEN = Note(
    "camera",
    "no point is in the camera's picture; does the calibration belong to this scan's camera?",
)
RATE = 10.0  # scans per second
LARGEST_YAW = 3.1415  # of four decimals within half a turn


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: detect_all(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE)
    add = parser.add_argument
    add("input", nargs="+", type=Path, help="scans, or folders of them")
    add("--weights", type=Path, help=WEIGHTS)
    add("--output", type=output_path, required=True, help="folder to write to")
    add("--config", type=Path, help=COLUMN_CONFIG)
    add("--calib", type=Path, help="KITTI calibration file, or folder of them")
    add("--device", help="cpu, cuda, cuda:1 (a GPU if there is one)")
    add("--precision", choices=PRECISIONS, default="fp32", help="of the network")
    add(
        "--format",
        choices=("json", "text", "labelcloud"),
        default="json",
        help="of the files (default: json)",
    )
    add("--score", type=share, default=0.0, help="least score that is written (default: all)")
    add("--track", action="store_true", help="follow objects from scan to scan")
    add("--rate", type=rate, help=f"with --track: scans per second (default: {RATE:g})")
    add(
        "--ego",
        action="store_true",
        help="with --track: take the car's own motion into account, from its scans (KISS-ICP)",
    )
    add_mounting(parser)
    options = parser.parse_args(arguments)
    for name, given in (("--ego", options.ego), ("--rate", options.rate)):
        if given and not options.track:
            parser.error(f"{name} goes with --track")
    options.rate = options.rate or RATE
    if options.format != "json" and (options.track or options.calib):
        parser.error(f"--format {options.format}: not with --track or --calib")
    return options


def detect_all(options: argparse.Namespace) -> None:
    """Detect in every scan; raises ValueError at the end where some could not be read."""
    scans = find_scans(options.input)
    if options.track:
        scans = sorted(scans, key=by_name)
    if options.calib and not options.calib.exists():
        raise FileNotFoundError(f"{options.calib}: no such calibration file or folder")
    detector = detector_of(options)
    columns = columns_of(options.config, detector.config)
    with locked(options.output):
        detect_and_write(detector, scans, columns, options)


def detect_and_write(
    detector: Detector,
    scans: Sequence[Path],
    columns: PointColumns,
    options: argparse.Namespace,
) -> None:
    names = [scan.stem for scan in scans if is_text(scan.name)]
    results = ResultFolder(options.output, names, replace=options.format == "json")
    tracker = Tracker() if options.track else None
    ego = EgoMotion() if options.ego else None
    crop = detector.config.grid.crop_to_image
    total, bad, notes, left_out, assumed = 0, [], Tally(), 0, 0
    for place, scan in enumerate(tqdm(scans, unit="scan", disable=None)):
        try:
            points, view = read(scan, options.calib, crop, columns)
        except (ValueError, OSError) as error:
            bad.append(one_line(error))
            continue
        left_out += view.left_out if view else 0
        assumed += view.assumed if view else 0
        if view and view.left_out and not len(points):
            notes.add(scan.name, [NOTHING_SEEN])
        named, milliseconds = find(detector, scan, points, options.score, notes)
        tracks, at = None, place / options.rate  # seconds
        if tracker is not None:
            tracks = tracker.update(named, at, ego(points, at) if ego else None)
        write(scan, named, milliseconds, view, results, options.format, tracks)
        total += len(named.boxes)
    for line in notes.lines():
        print(f"warning: {line}", file=sys.stderr)
    if assumed:
        height, width = USUAL_IMAGE
        print(f"{assumed} scans have no image beside them: {width} x {height} pixels are assumed")
    if left_out:
        print(f"{left_out} points out of the camera's picture were left out")
    if done := len(scans) - len(bad):
        print(f"{total} boxes in {done} scan{'s' * (done > 1)}, written to {options.output}")
    for line in bad[:-1]:
        print(f"error: {line}", file=sys.stderr)
    if bad:
        counted = f" ({len(bad)} of {len(scans)} scans could not be read)" if len(scans) > 1 else ""
        raise ValueError(bad[-1] + counted)


def by_name(scan: Path) -> list[tuple[int, str]]:
    """Sorts by name, numbers in it by their value: 9 comes before 10."""
    parts = re.split(r"(\d+)", scan.stem)
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts]


class CameraView(NamedTuple):
    """A camera that looks at a scan."""

    calibration: Calibration
    image_shape: tuple[int, int]  # height, width
    left_out: int  # points that it does not see
    assumed: bool  # the image's size, for want of an image


def read(
    scan: Path, calib: Path | None, crop: bool, columns: PointColumns = KITTI_POINTS
) -> tuple[np.ndarray, CameraView | None]:
    """The points of a scan, without those out of the camera's picture if asked for, and the camera
    where there is a calibration: the file itself, or the one of the scan's name in the folder."""
    points = read_scan(scan, columns)
    if calib is None:
        return points, None
    path = calib / f"{scan.stem}.txt" if calib.is_dir() else calib
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such calibration file")
    calibration = Calibration.from_file(path)
    places = (scan.absolute(), scan.resolve())  # a link in a KITTI folder, or a link to one
    images = [place.parent.parent / "image_2" / f"{scan.stem}.png" for place in places]
    image = next((image for image in images if image.is_file()), None)
    shape = image_shape(image) if image else USUAL_IMAGE
    seen = points[calibration.in_image(points, shape)] if crop else points
    return seen, CameraView(calibration, shape, len(points) - len(seen), image is None)


def find(
    detector: Detector, scan: Path, points: np.ndarray, score: float, notes: Tally
) -> tuple[NamedDetections, float]:
    """What a scan has, and the milliseconds that it took."""
    start = time.perf_counter()
    found, left_out = detector.detect(points)
    named = found.named(detector.config.class_names)
    milliseconds = 1000 * (time.perf_counter() - start)
    notes.add(scan.name, left_out + detector.examine(points))
    return named.select(np.flatnonzero(named.scores >= score)), milliseconds


def write(
    scan: Path,
    named: NamedDetections,
    milliseconds: float,
    view: CameraView | None,
    results: ResultFolder,
    form: str,
    tracks: Tracks | None,
) -> None:
    """The file of a scan, of its tracks if they are followed."""
    if tracks is not None:
        named = NamedDetections(tracks.boxes, tracks.scores, tracks.names)
    boxes = named.boxes.astype(np.float64)
    boxes[:, 6] = wrap_angle(boxes[:, 6]).clip(-LARGEST_YAW, LARGEST_YAW)
    named = named._replace(boxes=boxes)
    if form == "labelcloud":
        results.write(scan.stem, labelcloud_json(scan, named))
        return
    if form == "text":
        results.write_lines(scan.stem, label_lines(named))
        return
    result = {
        "frame": scan.stem,
        "boxes": boxes.round(4).tolist(),
        "scores": [float(f"{score:.9g}") for score in named.scores],
        "names": list(named.names),
        "milliseconds": round(milliseconds, 3),
    }
    if tracks is not None:
        result["ids"] = tracks.ids.tolist()
        result["velocities"] = tracks.velocities.round(3).tolist()
        result["ages"] = tracks.ages.tolist()
    results.write(scan.stem, result, view and detections_to_labels(named, *view[:2]))


if __name__ == "__main__":
    sys.exit(main())
