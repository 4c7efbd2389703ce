"""Simulated streets as a KITTI data set on disk."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.files import replacing
from data.kitti.calibration import Calibration
from data.kitti.labels import write_labels
from data.simulator.recording import Recording, record


def write_kitti_tree(
    root: Path | str, seeds: Sequence[int], split: str, processes: int = 1
) -> None:
    """Scan one street a seed and write the frames where KITTI has its own.

    Writes root/training/{velodyne,calib,label_2,planes}/NNNNNN.* with the seed as the number, and
    the numbers to root/ImageSets/SPLIT.txt. Other splits of the same root stay as they are.
    """
    root = Path(root)
    ids = [f"{seed:06d}" for seed in seeds]
    write = partial(_write_street, root / "training")
    with ProcessPoolExecutor(processes) if processes > 1 else nullcontext() as pool:
        streets = pool.map(write, seeds, chunksize=8) if pool else map(write, seeds)
        for _ in tqdm(streets, desc=f"simulating {split}", total=len(ids), unit="street"):
            pass
    with replacing(root / "ImageSets" / f"{split}.txt") as temporary:
        temporary.write_text("".join(f"{name}\n" for name in ids), encoding="utf-8")


def _write_street(folder: Path, seed: int) -> None:
    _write_frame(folder, record(seed))


def _write_frame(folder: Path, recording: Recording) -> None:
    frame = recording.frame
    name, camera = frame.frame_id, frame.calibration
    with replacing(folder / "velodyne" / f"{name}.bin") as temporary:
        frame.points.astype("<f4").tofile(temporary)
    with replacing(folder / "calib" / f"{name}.txt") as temporary:
        temporary.write_text(_calibration_text(camera), encoding="utf-8")
    with replacing(folder / "planes" / f"{name}.txt") as temporary:
        temporary.write_text(_plane_text(frame.plane, camera), encoding="utf-8")
    write_labels(folder / "label_2" / f"{name}.txt", recording.labels)


def _calibration_text(camera: Calibration) -> str:
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
