"""Simulated scans on disk: KITTI's layout, plain files, and a drive as one of its recordings."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from millisecond.data.boxes import NamedDetections
from millisecond.data.calibration import Calibration
from millisecond.data.files import (
    locked,
    read_text,
    replacing,
    usable_cores,
    write_lines,
    write_text,
)
from millisecond.data.folder.labels import label_lines
from millisecond.data.formats.pcd import write_pcd
from millisecond.data.frame import Frame
from millisecond.data.kitti.labels import write_labels
from millisecond.data.kitti.layout import check_name, read_split, some
from millisecond.data.schema import plain
from millisecond.data.simulator.fast_casting import has_kernels
from millisecond.data.simulator.hall import Site, simulate_hall
from millisecond.data.simulator.lidar import default_sensor
from millisecond.data.simulator.recording import record, simulate, simulated_calibration
from millisecond.data.simulator.sensors import StreetSensor
from millisecond.data.simulator.street import WORLD

MARK = "simulated.txt"  # in the root: the frames that were simulated, one per line
SENSOR = "simulated_sensor.yaml"  # in the root: the sensor, and whether cropped to the image
PARTS = {"training/velodyne": ".bin"}
PARTS |= {f"training/{folder}": ".txt" for folder in ("calib", "label_2", "planes")}
OTHERS = ("training", "testing", "ImageSets", "velodyne", "velodyne_reduced", "calib.txt", "points")


def write_kitti_tree(
    root: Path | str,
    seeds: Sequence[int],
    split: str,
    processes: int = 1,
    sensor: StreetSensor | None = None,
    crop: bool = True,
) -> None:
    """Scan one street per seed and write the frames in KITTI's layout.

    Writes root/training/{velodyne,calib,label_2,planes}/NNNNNN.* with the seed as the number, and
    adds the numbers to root/ImageSets/SPLIT.txt. Other splits of the same root stay as they are.
    root/simulated.txt names the frames: other files are never overwritten. The sensor, KITTI's
    unless given, is written down in root/simulated_sensor.yaml; crop: see `simulate`.

    Raises ValueError where the root holds a data set that is not simulated, or that was simulated
    by another version or with another sensor or crop. Raises it too where another split has one of
    the streets, and where the first scan has no point.
    """
    root, sensor = Path(root), sensor or default_sensor()
    note = f"# cropped to the camera's image: {'yes' if crop else 'no'}\n"
    note += yaml.safe_dump(plain(asdict(sensor)), sort_keys=False, default_flow_style=None)
    for seed in seeds[:1]:
        require_points(record(seed, sensor=sensor, crop=crop).frame)
    write = partial(_write_street, root / "training", sensor, crop)
    write_tree(root, seeds, split, processes, PARTS, note, write)


def write_tree(
    root: Path,
    seeds: Sequence[int],
    split: str,
    processes: int,
    files: Mapping[str, str],
    note: str,
    write: Callable[[int], None],
) -> None:
    """Calls `write` for every seed, in several processes, and lists the frames in the split.

    files: folder -> suffix of the files that `write` makes. note: facts that hold for all frames of
    a root.
    """
    ids = [f"{seed:06d}" for seed in seeds]
    check_name(split)
    if split in ("all", "test"):
        raise ValueError(f"split '{split}': that name means other frames; take train, val or so")
    with locked(root):
        made = made_before(root)
        _check_own(root, ids, made, files)
        listed = _listed(root, ids, split, made)
        _check_note(root, note, bool(made))
        write_lines(root / MARK, dict.fromkeys([*made, *ids]))
        write_all(write, seeds, processes, f"simulating {split}", "street")
        write_lines(root / "ImageSets" / f"{split}.txt", dict.fromkeys([*listed, *ids]))


def require_points(frame: Frame) -> None:
    """Raises ValueError for a scan without any point, before files are written."""
    if not len(frame.points):
        raise ValueError(
            f"scan {frame.frame_id} has no point: no beam of the sensor meets anything; check its "
            "elevations, field_of_view and max_range"
        )


def made_before(root: Path) -> list[str]:
    """The frames that were simulated into this root before, perhaps not completely."""
    if (root / MARK).is_file():
        return read_text(root / MARK).split()
    others = [name for name in OTHERS if (root / name).exists()]
    if others:
        raise ValueError(
            f"{root}: {some(others)} there already and not simulated; give a folder of its own"
        )
    return []


def _check_own(
    root: Path, ids: Sequence[str], made: Sequence[str], files: Mapping[str, str]
) -> None:
    foreign = set(ids) - set(made)
    for folder, suffix in files.items():
        path = root / folder
        present = {file.name for file in path.iterdir()} if path.is_dir() else set()
        taken = sorted(name + suffix for name in foreign if name + suffix in present)
        if taken:
            raise ValueError(
                f"{path}: {some(taken)} there already and not simulated; take other numbers, by "
                "--first, or a folder of its own"
            )


def _check_note(root: Path, text: str, made: bool) -> None:
    """Writes down the sensor of this root; all frames of a root have one sensor. made: some frames
    exist already."""
    path, text = root / SENSOR, f"# world {WORLD}\n{text}"
    old = read_text(path) if path.exists() else ""
    if made and old.splitlines()[:1] != text.splitlines()[:1]:
        raise ValueError(
            f"{root}: another version simulated its streets, which differ from this version's; "
            "delete it, or give another folder"
        )
    if old and old != text:
        raise ValueError(
            f"{path}: says another sensor, or another crop; give a folder of its own for this one"
        )
    write_text(path, text)


def _listed(root: Path, ids: Sequence[str], split: str, made: Sequence[str]) -> tuple[str, ...]:
    """The frames of the split so far."""
    lists = {path.stem: path for path in (root / "ImageSets").glob("*.txt")}
    for name, path in sorted(lists.items()):
        both = sorted(set(ids) & set(read_split(path))) if name != split else ()
        if both:
            raise ValueError(
                f"{path}: street {some(both)} in split '{name}' already; take other numbers, by "
                "--first"
            )
    if split not in lists:
        return ()
    listed = read_split(lists[split])
    foreign = [name for name in listed if name not in set(made)]
    if foreign:
        raise ValueError(
            f"{lists[split]}: {some(foreign)} not simulated; take another name for the split"
        )
    return listed


def write_all(
    write: Callable[[int], None], seeds: Sequence[int], processes: int, title: str, unit: str
) -> None:
    """Writes one by one, in this process or several, but no more than there are cores. title, unit:
    of the progress bar."""
    from tqdm import tqdm

    bar = partial(tqdm, desc=title, total=len(seeds), unit=unit, disable=None)
    has_kernels()  # builds them here, once, and not in every process
    processes = min(processes, usable_cores(), len(seeds))
    if processes <= 1:
        for _ in bar(map(write, seeds)):
            pass
        return
    pool = ProcessPoolExecutor(processes)
    try:
        chunk = min(8, max(1, len(seeds) // (4 * processes)))  # small: no long wait at the end
        # Ctrl-C is answered by this process: the others begin with it blocked, and keep it so
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            written = pool.map(write, seeds, chunksize=chunk)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for _ in bar(written):
            pass
    except BrokenProcessPool:
        raise OSError("a simulating process ended without a message; is memory full?") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _write_street(folder: Path, sensor: StreetSensor, crop: bool, seed: int) -> None:
    frame, labels = record(seed, sensor=sensor, crop=crop)
    name, camera = frame.frame_id, frame.calibration
    assert camera is not None and frame.plane is not None  # `record` gives both
    _write_cloud(folder / "velodyne" / f"{name}.bin", frame.points)
    write_text(folder / "calib" / f"{name}.txt", calibration_text(camera))
    write_text(folder / "planes" / f"{name}.txt", _plane_text(frame.plane, camera))
    write_labels(folder / "label_2" / f"{name}.txt", labels)


def _write_cloud(path: Path, points: np.ndarray) -> None:
    with replacing(path) as temporary:
        if path.suffix == ".pcd":
            write_pcd(temporary, points)
        else:
            # unlike tofile this tells of a full disk
            temporary.write_bytes(points.astype("<f4").tobytes())


def calibration_text(camera: Calibration) -> str:
    matrices = {f"P{i}": camera.p2 for i in range(4)}
    matrices |= {"R0_rect": camera.r0_rect, "Tr_velo_to_cam": camera.velo_to_cam}
    matrices |= {"Tr_imu_to_velo": np.eye(3, 4)}
    rows = (" ".join(f"{value:.12e}" for value in m.ravel()) for m in matrices.values())
    return "".join(f"{key}: {row}\n" for key, row in zip(matrices, rows, strict=True))


def _plane_text(plane: np.ndarray, camera: Calibration) -> str:
    """The plane a x + b y + c z + d = 0 of the LiDAR frame, in the camera's frame."""
    normal = camera.velo_to_cam[:, :3] @ plane[:3]
    offset = plane[3] - normal @ camera.velo_to_cam[:, 3]
    values = np.array([*normal, offset]) / np.linalg.norm(normal)
    return "# Plane\nWidth 4\nHeight 1\n" + " ".join(f"{value:.9e}" for value in values) + "\n"


SUFFIXES = (".bin", ".pcd")


def write_folder_tree(
    root: Path | str,
    seeds: Sequence[int],
    split: str,
    processes: int = 1,
    sensor: StreetSensor | None = None,
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
    write = partial(_write_frame, Path(root), sensor, site, suffix)
    files = {"points": suffix, "labels": ".txt"}
    write_tree(Path(root), seeds, split, processes, files, note, write)


def _scan(sensor: StreetSensor, site: Site | None, seed: int) -> Frame:
    if site is not None:
        return simulate_hall(seed, site, sensor.of_street(seed))
    return simulate(seed, sensor=sensor, crop=False)


def _write_frame(
    root: Path, sensor: StreetSensor, site: Site | None, suffix: str, seed: int
) -> None:
    frame = _scan(sensor, site, seed)
    _write_cloud(root / "points" / f"{frame.frame_id}{suffix}", frame.points)
    found = NamedDetections(frame.boxes, np.ones(len(frame.boxes)), frame.names)
    write_lines(root / "labels" / f"{frame.frame_id}.txt", label_lines(found))


RATE = 10.0  # scans per second
LONGEST = 50  # scans: a street is built for about 5 s


def write_drive(
    root: Path | str,
    seed: int,
    scans: int = LONGEST,
    processes: int = 1,
    sensor: StreetSensor | None = None,
) -> None:
    """Scan one street from the car that moves in it, 10 times per second.

    Writes root/velodyne_reduced/NNNNNN.bin, label_2/NNNNNN.txt and calib.txt, cropped to the
    camera's image as KITTI's drives are. sensor: KITTI's unless given. Raises ValueError for a
    number of scans that a street is not built for, a seed beyond 64 bits, a first scan without
    points, and where the root holds something else.
    """
    if not 0 < scans <= LONGEST:
        raise ValueError(f"{scans} scans: a street is built for 1 to {LONGEST}")
    root = Path(root)
    require_points(record(seed, sensor=sensor).frame)
    with locked(root):
        earlier = made_before(root)
        if (root / "training").exists():
            raise ValueError(f"{root}: streets are there already; give a folder of its own")
        names = [f"{number:06d}" for number in range(scans)]
        write_lines(root / MARK, dict.fromkeys([*earlier, *names]))
        for name in set(earlier) - set(names):  # of a longer drive
            for path in _paths(root, name):
                path.unlink(missing_ok=True)
        write_lines(root / MARK, names)
        write_text(root / "calib.txt", calibration_text(simulated_calibration()))
        write = partial(_write_scan, root, seed, sensor)
        write_all(write, range(scans), processes, "simulating", "scan")


def _write_scan(root: Path, seed: int, sensor: StreetSensor | None, number: int) -> None:
    recording = record(seed, number / RATE, sensor)
    cloud, labels = _paths(root, f"{number:06d}")
    _write_cloud(cloud, recording.frame.points)
    write_labels(labels, recording.labels)


def _paths(root: Path, name: str) -> tuple[Path, Path]:
    return root / "velodyne_reduced" / f"{name}.bin", root / "label_2" / f"{name}.txt"
