"""A KITTI tree of a few made-up frames, for machines without the real data."""

import struct
import zlib
from pathlib import Path

import numpy as np

FOCAL, CENTRE, IMAGE = 700.0, (600.0, 180.0), (370, 1224)
IDS = ("000002", "000005", "000007", "000011")

# LiDAR x forward, y left, z up -> camera x right, y down, z forward, no offset.
CALIBRATION = """P0: 700 0 600 0 0 700 180 0 0 0 1 0
P2: 700 0 600 0 0 700 180 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0
Tr_imu_to_velo: 1 0 0 0 0 1 0 0 0 0 1 0
"""
# In the LiDAR frame: a car 20 m ahead that heads away (yaw 0), a pedestrian 10 m ahead, 2 m left.
LABELS = """Car 0.00 0 -1.57 540.00 180.00 660.00 240.00 1.50 1.80 4.00 0.00 1.60 20.00 -1.57
Pedestrian 0.00 1 0.00 430.00 120.00 490.00 250.00 1.70 0.60 0.80 -2.00 1.60 10.00 0.00
DontCare -1 -1 -10 100.00 100.00 150.00 150.00 -1 -1 -1 -1000 -1000 -1000 -10
"""
PLANE = "# Plane\nWidth 4\nHeight 1\n0.0 -1.0 0.0 1.6\n"
CAR = (20.0, 0.0, -0.85, 4.0, 1.8, 1.5, 0.0)
PEDESTRIAN = (10.0, 2.0, -0.75, 0.8, 0.6, 1.7, -np.pi / 2)


def write_miniature(root: Path, seed: int = 0) -> Path:
    """root/training with all of IDS, root/ImageSets with train (the first three) and val."""
    rng = np.random.default_rng(seed)
    for frame_id in IDS:
        write(root / f"training/velodyne/{frame_id}.bin", make_points(rng).tobytes())
        write(root / f"training/calib/{frame_id}.txt", CALIBRATION.encode())
        write(root / f"training/label_2/{frame_id}.txt", LABELS.encode())
        write(root / f"training/image_2/{frame_id}.png", png(*IMAGE))
    write(root / "training/planes/000002.txt", PLANE.encode())
    write(root / "ImageSets/train.txt", "\n".join(IDS[:3]).encode())
    write(root / "ImageSets/val.txt", b"000011\n")
    return root


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def make_points(rng: np.random.Generator) -> np.ndarray:
    """Points all around, 40 in the car and 20 in the pedestrian, and not on their faces."""
    around = rng.uniform((-30, -30, -2.5, 0), (60, 30, 1, 1), (2000, 4))
    unit = rng.uniform(-0.45, 0.45, (60, 3))
    car = unit[:40] * CAR[3:6] + CAR[:3]
    # The pedestrian's length lies along y, for its yaw is -90 degrees.
    pedestrian = unit[40:] * np.array(PEDESTRIAN)[[4, 3, 5]] + PEDESTRIAN[:3]
    objects = np.concatenate([car, pedestrian])
    objects = np.concatenate([objects, rng.uniform(0, 1, (60, 1))], axis=1)
    return np.concatenate([around, objects]).astype("<f4")


def png(height: int, width: int) -> bytes:
    """A black picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * height))
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
