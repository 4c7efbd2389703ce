"""A data set of plain files: a made-up sensor that sees boxes, a floor and some posts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

SIZES = {"Forklift": (2.6, 1.1, 2.0), "Person": (0.7, 0.6, 1.7)}
FLOOR = -1.1  # metres
FRAMES = 12


def write_plain_files(root: Path, frames: int = FRAMES, seed: int = 0) -> Path:
    """points/*.bin, labels/*.txt, ImageSets/train.txt (three quarters) and val.txt."""
    names = [f"{number:06d}" for number in range(frames)]
    for name in names:
        scene = np.random.default_rng((seed, int(name)))
        boxes, kinds = make_boxes(scene)
        write_cloud(root, name, make_points(scene, boxes))
        write_labels(root, name, boxes, kinds)
    train = frames * 3 // 4
    write(root / "ImageSets/train.txt", "\n".join(names[:train]))
    write(root / "ImageSets/val.txt", "\n".join(names[train:]))
    return root


def make_boxes(rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """Boxes all around, 4 m apart at least, turned to everywhere."""
    kinds = ["Forklift"] * 3 + ["Person"] * 2
    places: list[np.ndarray] = []
    while len(places) < len(kinds):
        place = rng.uniform(-17, 17, 2)
        if np.hypot(*place) > 3 and all(np.hypot(*(place - p)) > 4 for p in places):
            places.append(place)
    rows = []
    for kind, (x, y) in zip(kinds, places, strict=True):
        size = np.array(SIZES[kind]) * rng.uniform(0.97, 1.03)
        rows.append((x, y, FLOOR + size[2] / 2, *size, rng.uniform(-np.pi, np.pi)))
    return np.array(rows), kinds


def make_points(rng: np.random.Generator, boxes: np.ndarray) -> np.ndarray:
    """[P, 4] float32: 80 in the shell of each box, a floor without what they cover, posts."""
    clouds = []
    for x, y, z, length, width, height, yaw in boxes:
        inner = rng.uniform(-0.49, 0.49, (80, 3))
        side = rng.integers(0, 2, 80)
        inner[np.arange(80), side] = np.sign(inner[np.arange(80), side]) * 0.49
        u, v, w = (inner * (length, width, height)).T
        cos, sin = np.cos(yaw), np.sin(yaw)
        clouds.append(np.stack([x + cos * u - sin * v, y + sin * u + cos * v, z + w], 1))
    floor = rng.uniform((-25, -25, FLOOR - 0.02), (25, 25, FLOOR + 0.02), (1500, 3))
    near = np.hypot(*(floor[:, None, :2] - boxes[:, :2]).transpose(2, 0, 1)) < boxes[:, 3] / 2
    posts = np.repeat(rng.uniform(-25, 25, (40, 2)), 10, axis=0)
    posts = np.column_stack([posts, np.tile(np.linspace(FLOOR, 2, 10), 40)])
    points = np.concatenate([*clouds, floor[~near.any(axis=1)], posts])
    return np.column_stack([points, rng.uniform(0, 1, len(points))]).astype(np.float32)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # it may be a link to the file of another data set
    path.write_text(text, encoding="utf-8")


def write_cloud(root: Path, name: str, points: np.ndarray) -> None:
    path = root / "points" / f"{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    points.astype("<f4").tofile(path)


def write_labels(root: Path, name: str, boxes: np.ndarray, kinds: list[str]) -> None:
    lines = [
        " ".join(f"{value:.5f}" for value in box) + f" {kind}\n"
        for box, kind in zip(boxes, kinds, strict=True)
    ]
    write(root / "labels" / f"{name}.txt", "".join(lines))


def read_boxes(path: Path) -> tuple[np.ndarray, list[str]]:
    rows = [line.split() for line in path.read_text().splitlines()]
    return np.array([row[:7] for row in rows], float), [row[7] for row in rows]


def spoil_boxes(root: Path, change: Callable[[np.ndarray], None]) -> None:
    """Changes the boxes [M, 7] of every label file in place."""
    for path in sorted((root / "labels").glob("*.txt")):
        boxes, kinds = read_boxes(path)
        change(boxes)
        write_labels(root, path.stem, boxes, kinds)


def spoil_clouds(root: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replaces the points [P, 4] of every cloud."""
    for path in sorted((root / "points").glob("*.bin")):
        write_cloud(root, path.stem, change(np.fromfile(path, "<f4").reshape(-1, 4)))
