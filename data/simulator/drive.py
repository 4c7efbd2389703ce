"""A simulated street as a drive: successive scans in the layout of one of KITTI's recordings."""

from functools import partial
from pathlib import Path

from tqdm import tqdm

from data.files import locked, replacing
from data.kitti.labels import write_labels
from data.simulator.kitti_tree import (
    MARK,
    calibration_text,
    each,
    made_before,
    require_points,
    write_lines,
)
from data.simulator.recording import record, simulated_calibration
from data.simulator.sensors import Sensor

RATE = 10.0  # scans per second
LONGEST = 50  # scans: a street is built for about 5 s


def write_drive(
    root: Path | str,
    seed: int,
    scans: int = LONGEST,
    processes: int = 1,
    sensor: Sensor | None = None,
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
        with replacing(root / "calib.txt") as temporary:
            temporary.write_text(calibration_text(simulated_calibration()), encoding="utf-8")
        written = each(partial(_write_scan, root, seed, sensor), range(scans), processes)
        for _ in tqdm(written, desc="simulating", total=scans, unit="scan"):
            pass


def _write_scan(root: Path, seed: int, sensor: Sensor | None, number: int) -> None:
    recording = record(seed, number / RATE, sensor)
    cloud, labels = _paths(root, f"{number:06d}")
    with replacing(cloud) as temporary:
        recording.frame.points.astype("<f4").tofile(temporary)
    write_labels(labels, recording.labels)


def _paths(root: Path, name: str) -> tuple[Path, Path]:
    return root / "velodyne_reduced" / f"{name}.bin", root / "label_2" / f"{name}.txt"
