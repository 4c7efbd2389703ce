"""A folder of detections: NAME.json in the LiDAR frame and NAME.txt as KITTI's evaluation takes
them, the results of one run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from data.files import make_folder, read_text, replacing
from data.kitti.labels import Labels, write_labels
from data.kitti.splits import some

KEYS = {"boxes", "scores", "names"}  # of a result in JSON
LABEL, RESULT = 15, 16  # columns of a line


class ResultFolder:
    """Results of an earlier run are replaced, nothing else is."""

    def __init__(self, folder: Path, frame_ids: Sequence[str]):
        """Make the folder and take old results of these frames out of it.

        Raises ValueError, with everything as it was, where files of these names are no results, or
        where results of other frames would stay beside the new ones.
        """
        self.folder = Path(folder)
        make_folder(self.folder)
        own = set(frame_ids)
        found = {path: _is_result(path) for path in self._files()}
        labels = [path.name for path in found if path.suffix == ".txt" and _columns(path) == LABEL]
        if labels:
            raise ValueError(
                f"{self.folder}: {some(labels)} labels, not results; give another folder"
            )
        foreign = [path.name for path, result in found.items() if not result and path.stem in own]
        if foreign:
            raise ValueError(
                f"{self.folder}: {some(foreign)} there already and no result; give another folder"
            )
        stale = [path.name for path, result in found.items() if result and path.stem not in own]
        if stale:
            raise ValueError(
                f"{self.folder}: {some(stale)} there from another run and would stay beside the "
                "new results; delete them or give another folder"
            )
        for path, result in found.items():
            if result:
                path.unlink()

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
        if result is not None:
            with replacing(self.folder / f"{frame_id}.json") as temporary:
                temporary.write_text(json.dumps(result) + "\n", encoding="utf-8")
        if labels is not None:
            write_labels(self.folder / f"{frame_id}.txt", labels)


def _is_result(path: Path) -> bool:
    if path.suffix == ".txt":
        return _columns(path) in (None, RESULT)
    with suppress(ValueError, OSError, RecursionError):
        content = json.loads(read_text(path))
        return isinstance(content, dict) and content.keys() >= KEYS
    return False


def _columns(path: Path) -> int | None:
    """Words in the first line of a text file, None for an empty one; 0 for what is no text."""
    with suppress(ValueError, OSError):
        lines = read_text(path).split("\n")
        return next((len(line.split()) for line in lines if line.strip()), None)
    return 0
