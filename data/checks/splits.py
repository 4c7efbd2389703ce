"""Frames that are there twice, and scenes that two splits share."""

import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from millisecond.data.folder.dataset import FolderDataset
from millisecond.data.frame import Frame
from millisecond.data.kitti.layout import read_split, some

CELL, SIDE = 1.0, 128  # metres, cells: the part of the scene that is compared
ABOVE = 0.7  # metres above the lowest points of a column's surroundings: no ground
SAME_SCENE = 0.35  # share of occupied columns that two frames have in common
MOST = 400  # frames per split that are compared


class FolderChecks:
    """Looks at frame after frame; `lines` says what was odd.

    A frame is known by its very numbers, and by the columns that things stand in."""

    def __init__(self, dataset: FolderDataset):
        self._layout = dataset.layout
        self._content: dict[str, int] = {}
        self._columns: dict[str, np.ndarray] = {}  # [SIDE * SIDE / 8] uint8, bits

    def add(self, frame: Frame) -> None:
        if len(frame.points):
            content = np.ascontiguousarray(frame.points).tobytes()
            self._content[frame.frame_id] = zlib.crc32(content)
            self._columns[frame.frame_id] = np.packbits(occupied_columns(frame.points))

    def lines(self) -> list[str]:
        """One line per oddity."""
        found = []
        twice = self._duplicates()
        if twice:
            found.append(
                f"{some([name for _, name in twice])} the same cloud as another frame, such as "
                f"{twice[0][1]} as {twice[0][0]}; keep one of each"
            )
        lists = sorted((self._layout.root / "ImageSets").glob("*.txt"))
        there = {path.name for path in lists}
        if missing := [name for name in ("train.txt", "val.txt") if name not in there]:
            names = " and ".join(missing)
            found.append(f"no ImageSets/{names}; docs/own_data.md shows how to make them")
        for path in lists:
            lost = [name for name in read_split(path) if name not in self._layout.cloud_of]
            if lost:
                found.append(
                    f"{path}: {some(lost)} without a cloud; the list has names of frames without "
                    "suffix or folder, such as 000001"
                )
        leak = self._leak({path.stem: read_split(path) for path in lists})
        if leak is not None:
            found.append(leak)
        left_out = self._layout.unlabelled
        if left_out:
            found.append(
                f"{some(left_out)} without a label file, and left out; an empty file says that a "
                "frame has no objects"
            )
        return found

    def _duplicates(self) -> list[tuple[str, str]]:
        """Frames whose clouds are the same, the first one of each group with every other."""
        first: dict[int, str] = {}
        found = []
        for name, content in self._content.items():
            other = first.setdefault(content, name)
            if other != name:
                found.append((other, name))
        return found

    def _leak(self, splits: Mapping[str, Iterable[str]]) -> str | None:
        """A line where train and val share frames or scenes; splits: their frames by name."""
        if not {"train", "val"} <= splits.keys():
            return None
        train, val = (self._some(splits[name]) for name in ("train", "val"))
        both = sorted(set(splits["train"]) & set(splits["val"]))
        if both:
            return f"{some(both)} in train and in val; the AP would be of frames that were learnt"
        if not (train and val):
            return None
        learnt = np.stack([self._columns[name] for name in train])
        alike = []
        for name in val:
            likeness = _likeness(self._columns[name], learnt)
            best = int(likeness.argmax())
            if likeness[best] > SAME_SCENE:
                alike.append((name, train[best]))
        if len(alike) < max(2, 0.1 * len(val)):
            return None
        return (
            f"{len(alike)} of {len(val)} frames of val show a scene that train has too, such as "
            f"{alike[0][0]} and {alike[0][1]}; split by recordings, not by frames, or the AP is "
            "too high"
        )

    def _some(self, names: Iterable[str]) -> list[str]:
        known = [name for name in names if name in self._columns]
        places = np.linspace(0, len(known) - 1, min(MOST, len(known))).round().astype(int)
        return [known[place] for place in places]


def occupied_columns(points: np.ndarray) -> np.ndarray:
    """[SIDE, SIDE] bool: columns around the sensor that hold something that rises over the ground;
    the rings on the ground are alike everywhere."""
    half = SIDE * CELL / 2
    inside = np.isfinite(points[:, 2]) & (np.abs(points[:, :2]) < half).all(axis=1)
    cell = np.floor((points[inside, :2] + half) / CELL).astype(np.int64).clip(0, SIDE - 1)
    key = SIDE * cell[:, 0] + cell[:, 1]
    low, high = np.full(SIDE * SIDE, np.inf), np.full(SIDE * SIDE, -np.inf)
    np.minimum.at(low, key, points[inside, 2])
    np.maximum.at(high, key, points[inside, 2])
    return (high - low > ABOVE).reshape(SIDE, SIDE)


def _likeness(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[N] occupied columns in both / in either, of bits [W] and [N, W]."""
    both = np.bitwise_count(one & others).sum(axis=1)
    either = np.bitwise_count(one | others).sum(axis=1)
    return both / np.maximum(either, 1)
