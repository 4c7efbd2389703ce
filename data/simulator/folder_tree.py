"""Simulated scans as a data set of plain files on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from data.detections import NamedDetections
from data.files import replacing
from data.folder.labels import label_lines
from data.frame import Frame
from data.pcd import write_pcd
from data.schema import plain
from data.simulator.hall import simulate_hall
from data.simulator.kitti_tree import require_points, write_tree
from data.simulator.lidar import default_sensor
from data.simulator.recording import simulate
from data.simulator.sensors import Sensor
from data.simulator.site import Site

SUFFIXES = (".bin", ".pcd")


def write_folder_tree(
    root: Path | str,
    seeds: Sequence[int],
    split: str,
    processes: int = 1,
    sensor: Sensor | None = None,
    site: Site | None = None,
    suffix: str = SUFFIXES[0],
) -> None:
    """Scan one street, or one hall of the site, per seed, in all directions.

    Writes root/points/NNNNNN.bin (or .pcd), root/labels/NNNNNN.txt and root/ImageSets/SPLIT.txt;
    otherwise as `write_kitti_tree`.
    """
    sensor = sensor or default_sensor()
    note = "# plain files\n"
    parts = {"sensor": asdict(sensor)} | ({"site": asdict(site)} if site else {})
    note += yaml.safe_dump(plain(parts), sort_keys=False, default_flow_style=None)
    for seed in seeds[:1]:
        require_points(_scan(sensor, site, seed))
    write = partial(_write, Path(root), sensor, site, suffix)
    files = {"points": suffix, "labels": ".txt"}
    write_tree(Path(root), seeds, split, processes, files, note, write)


def _write(root: Path, sensor: Sensor, site: Site | None, suffix: str, seed: int) -> None:
    write_frame(root, _scan(sensor, site, seed), suffix)


def _scan(sensor: Sensor, site: Site | None, seed: int) -> Frame:
    if site is not None:
        return simulate_hall(seed, site, sensor)
    return simulate(seed, sensor=sensor, crop=False)


def write_frame(root: Path, frame: Frame, suffix: str) -> None:
    """The cloud and the labels of a frame."""
    with replacing(root / "points" / f"{frame.frame_id}{suffix}") as temporary:
        if suffix == ".pcd":
            write_pcd(temporary, frame.points)
        else:
            frame.points.astype("<f4").tofile(temporary)
    found = NamedDetections(frame.boxes, np.ones(len(frame.boxes)), frame.names)
    with replacing(root / "labels" / f"{frame.frame_id}.txt") as temporary:
        text = "".join(f"{line}\n" for line in label_lines(found))
        temporary.write_text(text, encoding="utf-8")
