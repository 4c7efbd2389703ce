"""Results of a run: a folder with two files a frame.

NAME.json has boxes in the LiDAR frame, NAME.txt is a KITTI result file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from millisecond.data.boxes import NamedDetections
from millisecond.data.calibration import Calibration
from millisecond.data.files import make_folder, read_text, write_lines, write_text
from millisecond.data.kitti.labels import DECIMALS, Labels, boxes_to_labels, write_labels
from millisecond.data.kitti.layout import some


def detections_to_labels(
    found: NamedDetections, calibration: Calibration | None, image_shape: tuple[int, int] | None
) -> Labels:
    """Detections of a frame -> Labels with a score.

    Image boxes are clipped to the image of shape (height, width) when that is given. Truncation and
    occlusion are -1, not given, as in the benchmark's own example results. Numbers are rounded as
    in a file, so that both score the same. Without a calibration see `boxes_to_labels`.
    """
    if calibration is None:
        return boxes_to_labels(found.boxes, found.names, found.scores)
    labels = boxes_to_labels(found.boxes, found.names, found.scores, calibration)
    return replace(
        labels,
        truncated=np.full(len(labels), -1.0),
        occluded=np.full(len(labels), -1, np.int64),
        bbox=calibration.image_boxes(found.boxes, image_shape).round(DECIMALS),
    )


KEYS = {"boxes", "scores", "names"}  # of a result in JSON
MARK = ".results"  # hidden file: ids of the frames that a run wrote results of, one per line
LABEL, RESULT = 15, 16  # columns of a line


class ResultFolder:
    """Replaces only results that an earlier run of this program wrote, see MARK."""

    def __init__(self, folder: Path, frame_ids: Sequence[str], replace: bool = True):
        """Make the folder; old results of these frames go when the first new one is written, or are
        an error unless `replace`: somebody may have corrected them.

        Raises ValueError, with everything as it was, where files of these names were not written
        as results, or where results of other frames would stay beside the new ones.
        """
        self.folder = Path(folder)
        make_folder(self.folder)
        self._own = list(frame_ids)
        own, written, files = set(frame_ids), self._written(), self._files()
        labels = [path.name for path in files if path.suffix == ".txt" and _columns(path) == LABEL]
        if labels:
            raise ValueError(
                f"{self.folder}: {some(labels)} labels, not results; give another folder"
            )
        results = [path for path in files if _is_result(path)]
        foreign = [
            path.name
            for path in files
            if path.stem in own and not (path in results and path.stem in written)
        ]
        if not replace:
            foreign = [path.name for path in files if path.stem in own]
        if foreign:
            reason = "not written by this program" if replace else "perhaps corrected by hand"
            raise ValueError(
                f"{self.folder}: {some(foreign)} there already and {reason}; give another folder"
            )
        stale = [path.name for path in results if path.stem not in own]
        if stale:
            raise ValueError(
                f"{self.folder}: {some(stale)} there from another run and would stay beside the "
                "new results; delete them or give another folder"
            )
        self._old: list[Path] | None = [path for path in results if path.stem in own]

    def _written(self) -> set[str]:
        mark = self.folder / MARK
        return set(read_text(mark).split()) if mark.is_file() else set()

    def _replace_old(self) -> None:
        for path in self._old or ():
            path.unlink(missing_ok=True)
        write_lines(self.folder / MARK, self._own)
        self._old = None

    def _files(self) -> list[Path]:
        return sorted(
            path
            for path in self.folder.iterdir()
            if path.suffix in (".json", ".txt") and path.is_file()
        )

    def write(
        self, frame_id: str, result: Mapping[str, Any] | None = None, labels: Labels | None = None
    ) -> None:
        """What was found in a frame, in one form or both."""
        if self._old is not None:
            self._replace_old()
        if labels is not None:
            write_labels(self.folder / f"{frame_id}.txt", labels)
        if result is not None:  # last: the newer is the one that is drawn, and it says more
            write_text(self.folder / f"{frame_id}.json", json.dumps(result) + "\n")

    def write_lines(self, frame_id: str, lines: Sequence[str]) -> None:
        """What was found in a frame, as NAME.txt."""
        if self._old is not None:
            self._replace_old()
        write_lines(self.folder / f"{frame_id}.txt", lines)


def _is_result(path: Path) -> bool:
    if path.suffix == ".txt":
        return _columns(path) in (None, RESULT)
    with suppress(ValueError, OSError, RecursionError):
        content = json.loads(read_text(path))
        return isinstance(content, dict) and content.keys() >= KEYS
    return False


def _columns(path: Path) -> int | None:
    """Words in the first line of a text file, None for an empty one; 0 for another file."""
    with suppress(ValueError, OSError):
        lines = read_text(path).split("\n")
        return next((len(line.split()) for line in lines if line.strip()), None)
    return 0
