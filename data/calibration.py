"""Calibration of a camera: LiDAR frame <-> rectified camera frame -> image, as KITTI has it.

rect = R0_rect * Tr_velo_to_cam * lidar; image = P2 * rect (Geiger et al., IJRR 2013), P2 the left
colour camera. Camera boxes are [M, 7] (x, y, z, l, h, w, rotation_y) with (x, y, z) the centre of
the bottom face. Road planes are files beside the labels of some frames.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from millisecond.data.boxes import box_corners, wrap_angle
from millisecond.data.files import plain_numbers, read_text

KEYS = {  # the names in the object and in the tracking benchmark
    "p2": (("P2",), (3, 4)),
    "r0_rect": (("R0_rect", "R_rect"), (3, 3)),
    "velo_to_cam": (("Tr_velo_to_cam", "Tr_velo_cam"), (3, 4)),
}
LARGEST_SHIFT = 1e3  # metres between LiDAR and camera
LARGEST_FOCAL = 1e6  # pixels
LOOSE = 0.01  # allowed error of a rotation's products: files have few digits
NEAR = 0.1  # metres: anything nearer to the image plane does not project to a useful place
EDGES = np.array(
    [[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4], [0, 4], [1, 5], [2, 6], [3, 7]]
)


@dataclass(frozen=True)
class Calibration:
    """The three matrices, float64."""

    p2: np.ndarray  # [3, 4]
    r0_rect: np.ndarray  # [3, 3]
    velo_to_cam: np.ndarray  # [3, 4]

    @classmethod
    def from_file(cls, path: Path | str) -> Calibration:
        """Read `calib/000123.txt` or a tracking calibration; errors name the file and the key."""
        path = Path(path)
        found = _entries(path)
        matrices = {name: _matrix(found, *spec, path) for name, spec in KEYS.items()}
        _check(**matrices, path=path)
        return cls(**matrices)

    @classmethod
    def from_raw(cls, folder: Path) -> Calibration:
        """Of a day of KITTI's raw recordings: `calib_cam_to_cam.txt` and `calib_velo_to_cam.txt`
        in the folder of the day; errors name the file and the key."""
        cameras, lidar = folder / "calib_cam_to_cam.txt", folder / "calib_velo_to_cam.txt"
        found = _entries(cameras)
        p2 = _matrix(found, ("P_rect_02",), (3, 4), cameras)
        r0_rect = _matrix(found, ("R_rect_00",), (3, 3), cameras)
        found = _entries(lidar)
        parts = (_matrix(found, ("R",), (3, 3), lidar), _matrix(found, ("T",), (3, 1), lidar))
        matrices = {"p2": p2, "r0_rect": r0_rect, "velo_to_cam": np.hstack(parts)}
        _check(**matrices, path=folder)
        return cls(**matrices)

    @property
    def values(self) -> bytes:
        """All numbers as bytes: equal of cameras that are alike."""
        return b"".join(matrix.tobytes() for matrix in (self.p2, self.r0_rect, self.velo_to_cam))

    @cached_property
    def _lidar_to_rect(self) -> np.ndarray:
        return self.r0_rect @ self.velo_to_cam

    @cached_property
    def _rect_to_lidar(self) -> np.ndarray:
        square = np.vstack([self._lidar_to_rect, [0, 0, 0, 1]])
        return np.linalg.inv(square)[:3]

    def lidar_to_rect(self, points: np.ndarray) -> np.ndarray:
        """[N, 3 or more] LiDAR -> [N, 3] float64 rectified camera frame."""
        return _affine(self._lidar_to_rect, points)

    def rect_to_lidar(self, points: np.ndarray) -> np.ndarray:
        """[N, 3 or more] rectified camera frame -> [N, 3] float64 LiDAR."""
        return _affine(self._rect_to_lidar, points)

    def rect_to_image(self, points: np.ndarray) -> np.ndarray:
        """[N, 3] rectified camera frame -> [N, 2] pixels (u right, v down)."""
        projected = _affine(self.p2, points)
        with np.errstate(divide="ignore", invalid="ignore"):
            return projected[:, :2] / projected[:, 2:]

    def lidar_to_image(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[N, 3 or more] LiDAR -> pixels [N, 2] and depth [N] in the rectified camera frame."""
        rect = self.lidar_to_rect(points)
        return self.rect_to_image(rect), rect[:, 2]

    def in_image(self, points: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """[N] bool: depth >= 0 and inside the image of shape (height, width).

        It selects the points of the published reduced clouds.
        """
        pixels, depth = self.lidar_to_image(points)
        height, width = shape
        u, v = pixels.T
        return (depth >= 0) & (u >= 0) & (u < width) & (v >= 0) & (v < height)

    def boxes_to_camera(self, boxes: np.ndarray) -> np.ndarray:
        """[M, 7] LiDAR boxes -> [M, 7] float64 camera boxes."""
        boxes = np.asarray(boxes, np.float64)
        bottom = boxes[:, :3].copy()
        bottom[:, 2] -= boxes[:, 5] / 2
        rotation = wrap_angle(-boxes[:, 6:7] - np.pi / 2)
        return np.concatenate([self.lidar_to_rect(bottom), boxes[:, [3, 5, 4]], rotation], axis=1)

    def boxes_from_camera(self, boxes: np.ndarray) -> np.ndarray:
        """[M, 7] camera boxes -> [M, 7] float32 LiDAR boxes."""
        boxes = np.asarray(boxes, np.float64)
        centre = self.rect_to_lidar(boxes)
        centre[:, 2] += boxes[:, 4] / 2
        yaw = wrap_angle(-boxes[:, 6:7] - np.pi / 2)
        return np.concatenate([centre, boxes[:, [3, 5, 4]], yaw], axis=1).astype(np.float32)

    def plane_from_camera(self, plane: np.ndarray) -> np.ndarray:
        """[4] plane a x + b y + c z + d = 0 of the rectified camera frame -> LiDAR, float64."""
        return plane @ np.vstack([self._lidar_to_rect, [0, 0, 0, 1]])

    def image_boxes(self, boxes: np.ndarray, shape: tuple[int, int] | None = None) -> np.ndarray:
        """[M, 7] LiDAR boxes -> [M, 4] float64 image boxes (left, top, right, bottom).

        The part of a box behind the camera is cut off first. Clipped to an image of shape (height,
        width) when that is given; a box wholly behind the camera gives zeros.
        """
        boxes = np.asarray(boxes, np.float64)
        corners = self.lidar_to_rect(box_corners(boxes).reshape(-1, 3)).reshape(-1, 8, 3)
        seen = corners[..., 2] >= NEAR
        low, high = self._extent(corners, seen)
        cut = ~seen.all(axis=1)
        if cut.any():
            low[cut], high[cut] = self._extent(*_with_crossings(corners[cut], seen[cut]))
        if shape is not None:
            limit = np.array([shape[1] - 1, shape[0] - 1], np.float64)
            low, high = np.clip(low, 0, limit), np.clip(high, 0, limit)
        return np.where(seen.any(axis=1, keepdims=True), np.concatenate([low, high], axis=1), 0.0)

    def _extent(self, places: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest pixels, [M, 2] each, of the places [M, P, 3] in the rectified camera
        frame that are seen [M, P]."""
        pixels = self.rect_to_image(places.reshape(-1, 3)).reshape(*places.shape[:2], 2)
        low = np.where(seen[..., None], pixels, np.inf).min(axis=1)
        return low, np.where(seen[..., None], pixels, -np.inf).max(axis=1)


def _with_crossings(corners: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corners [M, 8, 3] of boxes, and whether each is in front [M, 8] -> the same, [M, 20, 3] and
    [M, 20], with the places where the 12 edges come to the front."""
    ends = corners[:, EDGES]  # [M, 12, 2, 3]
    depth = ends[..., 2]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (NEAR - depth[..., 0]) / (depth[..., 1] - depth[..., 0])
        crossed = (share > 0) & (share < 1)
    share = np.where(crossed, share, 0.0)
    crossing = ends[..., 0, :] + share[..., None] * (ends[..., 1, :] - ends[..., 0, :])
    return np.concatenate([corners, crossing], axis=1), np.concatenate([seen, crossed], axis=1)


def observation_angle(camera_boxes: np.ndarray) -> np.ndarray:
    """[M, 7] camera boxes -> [M] KITTI's alpha, rotation_y as seen along the ray to the object."""
    return wrap_angle(camera_boxes[:, 6] - np.arctan2(camera_boxes[:, 0], camera_boxes[:, 2]))


def _affine(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so
        return points[:, :3].astype(np.float64) @ matrix[:, :3].T + matrix[:, 3]


def _entries(path: Path) -> dict[str, str]:
    """The text behind each key of a calibration file."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        # the object benchmark ends a key with a colon, parts of the tracking one do not
        [(key, numbers)] = re.findall(r"^([^\s:]*)[\s:]*(.*)$", line.strip())
        if key and key in found:
            raise ValueError(f"{path}, line {number}: {key[:40]} stands there a second time")
        found[key] = numbers
    return found


def _matrix(
    found: dict[str, str], names: tuple[str, ...], shape: tuple[int, int], path: Path
) -> np.ndarray:
    key = next((name for name in names if name in found), None)
    if key is None:
        raise ValueError(f"{path}: {names[0]} is missing; is this a KITTI calibration file?")
    values = np.array(plain_numbers(found[key].split(), f"{path}: {key}"), np.float64)
    if values.size != shape[0] * shape[1] or not np.isfinite(values).all():
        raise ValueError(
            f"{path}: {key} has {values.size} numbers, it needs {shape[0] * shape[1]} finite ones"
        )
    return values.reshape(shape)


def _check(p2: np.ndarray, r0_rect: np.ndarray, velo_to_cam: np.ndarray, path: Path) -> None:
    """Raise ValueError for a matrix that is not a rotation, or not a projection."""
    for name, rotation in (("R0_rect", r0_rect), ("Tr_velo_to_cam", velo_to_cam[:, :3])):
        product = rotation @ rotation.T
        if np.abs(product - np.eye(3)).max() > LOOSE or np.linalg.det(rotation) < 0:
            raise ValueError(
                f"{path}: {name} is not a rotation: its rows must be of length 1 and at right "
                f"angles (lengths {_list(np.linalg.norm(rotation, axis=1))}, determinant "
                f"{np.linalg.det(rotation):.3g})"
            )
    far = np.abs(velo_to_cam[:, 3]).max()
    if far > LARGEST_SHIFT:
        raise ValueError(f"{path}: Tr_velo_to_cam moves by {far:.3g}; it is in metres")
    # a camera looks along z: the third row is the depth, the others grow to the right and down
    scale = p2[2, 2] if p2[2, 2] > 0 else np.nan
    focal = np.array([p2[0, 0], p2[1, 1]]) / scale
    ahead = np.abs(p2[2, :2] / scale).max() <= LOOSE
    if not (ahead and focal.min() > 0 and focal.max() < LARGEST_FOCAL):
        raise ValueError(
            f"{path}: P2 does not project into an image: its first two rows need focal lengths "
            f"above 0 (has {_list([p2[0, 0], p2[1, 1]])}), its last row is 0 0 1 and a number (has "
            f"{_list(p2[2])})"
        )


def _list(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.3g}" for number in numbers)


def imu_to_velo(path: Path) -> np.ndarray:
    """[3, 4] float64 from the frame of the GPS and IMU to the LiDAR's; errors name file and key."""
    return _matrix(_entries(path), ("Tr_imu_to_velo", "Tr_imu_velo"), (3, 4), path)


def read_plane(path: Path | str, calibration: Calibration) -> np.ndarray:
    """Read `planes/000123.txt`: three lines of heading, then a b c d of the rectified camera frame.

    Returns [4] float32 (a, b, c, d) in the LiDAR frame, a x + b y + c z + d = 0, the normal of
    length 1 and up. Raises ValueError for a file without four numbers or a plane that stands up.
    """
    path = Path(path)
    lines = read_text(path).splitlines()
    words = lines[3].split() if len(lines) > 3 else []
    plane = np.array(plain_numbers(words, f"{path}, line 4"), np.float64)
    if plane.shape != (4,) or not np.isfinite(plane).all():
        raise ValueError(f"{path}: line 4 must be the four numbers a b c d of a road plane")
    plane = calibration.plane_from_camera(plane)
    plane /= np.linalg.norm(plane[:3]) or 1.0
    if abs(plane[2]) < 0.5:
        raise ValueError(f"{path}: the plane is not the road's, it stands up (normal {plane[:3]})")
    return (plane * np.sign(plane[2])).astype(np.float32)
