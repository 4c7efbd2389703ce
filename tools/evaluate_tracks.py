"""Score tracks by MOTA and IDF1 on a labelled drive: those in result files, or those that the
tracker makes of stored detections, or of the labels themselves."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from millisecond.data.boxes import NamedDetections
from millisecond.data.datasets import Dataset, open_dataset
from millisecond.data.files import require_own_json, write_json
from millisecond.data.folder.dataset import FolderDataset, ImportedFrame, read_recording
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import Labels
from millisecond.data.kitti.layout import RECORDING
from millisecond.data.kitti.results import detections_to_labels
from millisecond.data.metric.nuscenes import mean_velocity_errors, velocity_errors
from millisecond.data.metric.tracking import (
    MIN_IOU,
    Identified,
    evaluate_tracks,
    figures,
    format_tracks,
    nearest_identities,
    sum_counts,
)
from millisecond.detector.detection_files import Result, read_result
from millisecond.detector.tracking import EgoMotion, Tracker
from millisecond.tools.program import output_path, parser_of, rate, run, share

EXAMPLE = """examples:
  millisecond detect --weights weights.safetensors drive/velodyne --track --output tracks
  millisecond evaluate_tracks tracks --root drive
  millisecond evaluate_tracks --root drive --ego
  millisecond evaluate_tracks tracks --root plain/sequences/scene-0061.jsonl

ROOT is a drive in KITTI's layout, with label_2 and calib.txt beside the scans, one of plain files,
or a recording of millisecond import, which tells times, poses and track ids. Labels have no ids: an
object is taken to be the one of its type that was nearest in the frame before, within 2 m. RESULTS
has the .json file of every frame. If these are detections without ids, they are tracked here.
Without RESULTS the labels themselves are tracked, as they are and disturbed: this scores the
tracker alone.

A box matches an object of its class from an IoU of the volumes on. MOTP is the mean IoU of the
matches. MOTA, MOTP and IDF1 are in percent.
"""
USUAL = "--classes --overlap --ego --json"
SEEDS = range(10)
MISSED, FLIPPED = 0.1, 0.1  # shares of disturbed labels
NOISE = np.array([0.15, 0.15, 0.1, 0.1])  # deviations of x, y, z, yaw in metres and radians
STRETCH = 0.05  # of each size, relative
FALSE_POSITIVES = 1.0  # per scan, on average
VIEW = ((5.0, -0.6), (45.0, 0.6))  # distance in metres and angle: where they are


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: score(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("results", nargs="?", type=Path, help="folder of results, or a .parquet file")
    add("--root", type=Path, required=True, help="folder of the drive, or NAME.jsonl")
    add("--split", default="all", help="list of successive frames (default: all)")
    add(
        "--classes",
        nargs="+",
        default=[],
        metavar="NAME",
        help="(default: the classes of the results)",
    )
    add("--overlap", type=share, default=MIN_IOU, help="IoU of a match (default: %(default)s)")
    add("--score", type=share, help="track only detections of this score on")
    add("--rate", type=rate, default=10.0, help="scans per second (default: 10)")
    add("--ego", action="store_true", help="track with the car's own motion (KISS-ICP)")
    add("--json", type=output_path, help="write the tables' figures here")
    return parser.parse_args(arguments)


def score(options: argparse.Namespace) -> None:
    """Print the tables, and write their figures where that is asked for."""
    if options.json:
        require_own_json(options.json, is_ours)
    drive = read_drive(options)
    tables, content = [], {}
    for title, followed in all_runs(options, drive).items():
        runs = [in_camera(drive, results) for results in followed]
        classes = options.classes or classes_of(runs)
        results = [evaluate_tracks(run, drive.truth, classes, options.overlap) for run in runs]
        total = {name: sum_counts(result[name] for result in results) for name in classes}
        tables.append(f"{title}\n{format_tracks(total, len(runs))}")
        content[title] = figures(total, len(runs))
        means, lines = mean_velocity_errors(errors_of(drive, followed), classes)
        for name, mean in means.items():
            content[title][name]["velocity_error"] = mean
        tables[-1] = "\n".join([tables[-1], *lines])
    print("\n\n".join(tables))
    unscored = Counter(name for found in drive.objects for name in found.names if name not in total)
    if unscored:
        counted = ", ".join(f"{number} {name}" for name, number in sorted(unscored.items()))
        why = "--classes does not name" if options.classes else "no track has"
        print(f"\nnot scored, as {why} these classes: {counted}")
    if options.json:
        write_json(options.json, content)


def is_ours(content: dict) -> bool:
    rows = [row for table in content.values() if isinstance(table, dict) for row in table.values()]
    return bool(rows) and all(isinstance(row, dict) and "idf1" in row for row in rows)


class Drive(NamedTuple):
    """What is known of a recording, per frame."""

    frames: list[Frame]  # without their points
    truth: Identified
    objects: list[NamedDetections]  # the labels as perfect detections
    times: list[float]  # seconds
    poses: list[np.ndarray] | list[None]  # [4, 4]
    velocities: list[np.ndarray | None]  # [M, 2] of the objects, NaN where unknown


def read_drive(options: argparse.Namespace) -> Drive:
    dataset, told = open_drive(options)
    labels = [dataset.labels(index) for index in range(len(dataset))]
    ego, frames = EgoMotion() if options.ego else None, []
    times = [one.time for one in told] or [n / options.rate for n in range(len(dataset))]
    poses = [one.pose for one in told] or [None] * len(dataset)
    reading = tqdm(dataset, desc="reading", total=len(dataset), unit="frame", disable=None)
    for place, frame in enumerate(reading):
        if ego:
            poses[place] = ego(frame.points, times[place])
        frames.append(replace(frame, points=frame.points[:0]))
    objects = [NamedDetections(f.boxes, np.ones(len(f.boxes)), f.names) for f in frames]
    ids = identities(told, labels) or nearest_identities(labels)
    unknown = (np.nan, np.nan)
    velocities = [
        one.velocities and np.array([velocity or unknown for velocity in one.velocities])
        for one in told
    ]
    return Drive(frames, Identified(labels, ids), objects, times, poses, velocities)


def errors_of(
    drive: Drive, followed: Sequence[Sequence[Result]]
) -> Iterator[dict[str, np.ndarray]]:
    """See `velocity_errors`, of each scan."""
    for results in followed:
        for objects, known, result in zip(drive.objects, drive.velocities, results, strict=False):
            yield velocity_errors(objects._replace(velocities=known), result.found)


def open_drive(
    options: argparse.Namespace,
) -> tuple[Dataset, list[ImportedFrame]]:
    """The labelled frames, and what a recording of `millisecond import` tells of each."""
    root, split = options.root, options.split
    if root.suffix != RECORDING:
        return open_dataset(root, split, options.classes), []
    if split != "all":
        raise ValueError(f"--split {split}: {root} is one recording already")
    told = {one.name: one for one in read_recording(root)}
    dataset = FolderDataset(root.absolute().parents[1], str(root), options.classes)
    return dataset, [told[name] for name in dataset.frame_ids]


def identities(told: Sequence[ImportedFrame], labels: Sequence[Labels]) -> list[np.ndarray]:
    """Ids of a recording's objects; none where it does not tell them. Raises ValueError where label
    files have other lines than the import wrote."""
    for one, own in zip(told, labels, strict=bool(told)):
        if one.tracks is None or len(one.tracks) != len(own):
            number = "no" if one.tracks is None else len(one.tracks)
            raise ValueError(
                f"{one.name}: {len(own)} labelled objects, but {number} tracks in the recording; "
                "the label file was changed, import it anew into another folder"
            )
    tracks = [track for one in told for track in one.tracks or ()]
    if None in tracks:
        return []
    number = {track: place for place, track in enumerate(dict.fromkeys(tracks), start=1)}
    return [np.array([number[t] for t in one.tracks or ()], np.int64) for one in told]


def all_runs(options: argparse.Namespace, drive: Drive) -> dict[str, list[list[Result]]]:
    """The tracks to score, by the title of their table."""
    posed = drive.poses[0] is not None
    how = ", tracked with the car's own motion" if posed else ", tracked"
    if options.results is None:
        if not any(len(found.names) for found in drive.objects):
            raise ValueError(f"{options.root}: its labels have no objects that could be tracked")
        disturbed = [follow(drive, disturb(drive.objects, seed)) for seed in SEEDS]
        return {
            f"labels{how}": [follow(drive, drive.objects)],
            f"disturbed labels{how}, mean of {len(SEEDS)} runs": disturbed,
        }
    results = [read_result(options.results / f"{frame.frame_id}.json") for frame in drive.frames]
    if all(result.ids is None for result in results):
        least = options.score or 0.0
        all_found = (result.found for result in results)
        chosen = [found.select(np.flatnonzero(found.scores >= least)) for found in all_found]
        return {f"detections that score at least {least:g}{how}": [follow(drive, chosen)]}
    if options.ego or options.score is not None:
        raise ValueError(
            f"{options.results}: these are tracks already; --ego and --score are for detections"
        )
    return {f"tracks of {options.results}": [results]}


def follow(drive: Drive, detections: Sequence[NamedDetections]) -> list[Result]:
    """The tracks of a new tracker through the drive."""
    tracker, results = Tracker(), []
    for found, time, pose in zip(detections, drive.times, drive.poses, strict=True):
        tracks = tracker.update(found, time, pose)
        results.append(Result(tracks.named(), tracks.ids))
    return results


def in_camera(drive: Drive, results: Sequence[Result]) -> Identified:
    """As labels, which the metric takes."""
    labels, ids = [], []
    for frame, result in zip(drive.frames, results, strict=True):
        if result.ids is None:
            raise ValueError(f"{frame.frame_id}.json has no ids, but others of the results have")
        labels.append(detections_to_labels(result.found, frame.calibration, frame.image_shape))
        ids.append(result.ids)
    return Identified(labels, ids)


def classes_of(runs: Sequence[Identified]) -> list[str]:
    found = {name for run in runs for labels in run.labels for name in labels.types.tolist()}
    if not found:
        raise ValueError("there is no track at all; name what to score with --classes")
    return sorted(found)


def disturb(objects: Sequence[NamedDetections], seed: int) -> list[NamedDetections]:
    """Labels as a detector might find them: some missed, none exact, some turned round; and false
    positives, which score less."""
    rng = np.random.default_rng(seed)
    boxes = np.concatenate([found.boxes for found in objects])
    names = [name for found in objects for name in found.names]
    scans = []
    for found in objects:
        seen = found.select(np.flatnonzero(rng.uniform(size=len(found.scores)) >= MISSED))
        count, false = len(seen.scores), int(rng.poisson(FALSE_POSITIVES))
        true = seen.boxes.astype(np.float64)
        true[:, [0, 1, 2, 6]] += rng.normal(0, NOISE, (count, 4))
        true[:, 3:6] *= rng.lognormal(0, STRETCH, (count, 3))
        true[:, 6] += np.pi * (rng.uniform(size=count) < FLIPPED)
        rows = rng.integers(len(boxes), size=false)
        ghosts = boxes[rows].astype(np.float64)
        distance, angle = rng.uniform(*VIEW, (false, 2)).T
        ghosts[:, :2] = np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1)
        ghosts[:, 6] = rng.uniform(-np.pi, np.pi, false)
        scores = np.concatenate([rng.normal(0.7, 0.15, count), rng.normal(0.4, 0.15, false)])
        kinds = (*seen.names, *(names[row] for row in rows))
        scans.append(NamedDetections(np.concatenate([true, ghosts]), scores.clip(0, 1), kinds))
    return scans
