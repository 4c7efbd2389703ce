"""Results of a run: a folder with two files a frame.

NAME.json has boxes in the LiDAR frame, NAME.txt is a KITTI result file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from millisecond.data.boxes import NamedDetections
from millisecond.data.calibration import Calibration
from millisecond.data.files import is_json_of, make_folder, read_text, write_lines, write_text
from millisecond.data.kitti.labels import DECIMALS, Labels, boxes_to_labels, write_labels
from millisecond.data.kitti.layout import some

Camera = tuple[Calibration | None, tuple[int, int] | None]  # and the (height, width) of its image


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


def json_result(frame_id: str, found: NamedDetections) -> dict[str, Any]:
    """What the JSON file of a frame has. Yaws are within half a turn already."""
    result = {
        "frame": frame_id,
        "boxes": found.boxes.astype(np.float64).round(DECIMALS).tolist(),
        "scores": rounded_scores(found).tolist(),
        "names": list(found.names),
    }
    if found.velocities is not None:
        result["velocities"] = found.velocities.astype(np.float64).round(3).tolist()
    return result


def rounded_scores(found: NamedDetections) -> np.ndarray:
    """[N] float64, as in a file: with as many digits as tell two float32 apart."""
    return np.array([float(f"{score:.9g}") for score in found.scores], np.float64)


TOGETHER = 128  # frames: more boxes at once take more memory, and no less time


def frames_to_labels(found: Sequence[NamedDetections], cameras: Sequence[Camera]) -> list[Labels]:
    """`detections_to_labels` of many frames, with one call for all that have the same camera: numpy
    takes as long for ten boxes as for some hundreds."""
    made: dict[int, Labels] = {}
    for begin in range(0, len(found), TOGETHER):
        alike: dict[tuple, list[int]] = {}
        for frame in range(begin, min(begin + TOGETHER, len(found))):
            calibration, shape = cameras[frame]
            alike.setdefault((calibration and calibration.values, shape), []).append(frame)
        for frames in alike.values():
            own = [found[frame] for frame in frames]
            joined = NamedDetections(
                np.concatenate([one.boxes for one in own]),
                np.concatenate([one.scores for one in own]),
                [name for one in own for name in one.names],
            )
            labels, end = detections_to_labels(joined, *cameras[frames[0]]), 0
            for frame, one in zip(frames, own, strict=True):
                end += len(one.scores)
                made[frame] = labels.select(slice(end - len(one.scores), end))
    return [made[frame] for frame in range(len(found))]


KEYS = {"boxes", "scores", "names"}  # of a result in JSON
MARK = ".results"  # hidden file: settings of a run as JSON, ids of its frames, one per line
LABEL, RESULT = 15, 16  # columns of a line
UNFINISHED = re.compile(r"\..+\.(json|txt)\.[0-9]+\.tmp")  # see `replacing`


class ResultFolder:
    """Replaces only results that an earlier run of this program wrote, see MARK."""

    def __init__(
        self,
        folder: Path,
        frame_ids: Sequence[str],
        replace: bool = True,
        settings: Mapping[str, Any] | None = None,
        resume: bool = False,
    ):
        """Make the folder; old results of these frames go when the first new one is written, or are
        an error unless `replace`: somebody may have corrected them.

        frame_ids: one that ends in / means all frames of a folder. settings: see
        `require_same_run`; resume: old results stay, and must be of such a run.

        Raises ValueError, with everything as it was, where files of these names were not written
        as results, or where results of other frames would stay beside the new ones.
        """
        self.folder = Path(folder)
        make_folder(self.folder)
        self._own, self._settings = list(frame_ids), settings
        mark, old = self.folder / MARK, None
        lines = read_text(mark).split("\n") if mark.is_file() else []
        with suppress(ValueError, IndexError):
            old = json.loads(lines[0])
        self.resumes = resume and mark.is_file()
        self._old: list[Path] | None = []
        if self.resumes:
            require_same_run(self.folder, old, settings or {})
        else:
            self._old = self._replaceable(_Frames(frame_ids), _Frames(lines), replace)

    def _replaceable(self, own: _Frames, written: _Frames, replace: bool) -> list[Path]:
        """Old results of one's own frames. Raises ValueError for files that must stay."""
        files = self._files()
        labels = [path.name for path in files if path.suffix == ".txt" and _columns(path) == LABEL]
        if labels:
            raise ValueError(
                f"{self.folder}: {some(labels)} labels, not results; give another folder"
            )
        results = [path for path in files if _is_result(path)]
        frames = {path: path.relative_to(self.folder).with_suffix("").as_posix() for path in files}
        foreign = [
            path.name
            for path in files
            if frames[path] in own and not (path in results and frames[path] in written)
        ]
        if not replace:
            foreign = [path.name for path in files if frames[path] in own]
        if foreign:
            reason = "not written by this program" if replace else "perhaps corrected by hand"
            raise ValueError(
                f"{self.folder}: {some(foreign)} there already and {reason}; give another folder"
            )
        stale = [path.name for path in results if frames[path] not in own]
        if stale:
            raise ValueError(
                f"{self.folder}: {some(stale)} there from another run and would stay beside the "
                "new results; delete them or give another folder"
            )
        return results

    def begin(self) -> None:
        """Removes old results, and what runs that were killed have left half-written."""
        if self._old is None:
            return
        for path in self._old:
            path.unlink(missing_ok=True)
        for folder in self._folders():
            for path in folder.glob(".*.tmp"):
                if UNFINISHED.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        settings = [] if self._settings is None else [json.dumps(self._settings)]
        write_lines(self.folder / MARK, [*settings, *self._own])
        self._old = None

    def _folders(self) -> list[Path]:
        """That hold results of these frames, and are there."""
        # of a million names in a folder there is one path to be made
        inner = {self.folder / where for where in {os.path.dirname(name) for name in self._own}}
        return sorted(folder for folder in {self.folder, *inner} if folder.is_dir())

    def _files(self) -> list[Path]:
        return sorted(
            path
            for folder in self._folders()
            for path in folder.iterdir()
            if path.suffix in (".json", ".txt") and path.is_file() and path.name[0] != "."
        )

    def write(
        self, frame_id: str, result: Mapping[str, Any] | None = None, labels: Labels | None = None
    ) -> None:
        """What was found in a frame, in one form or both."""
        self.begin()
        write_result(self.folder, frame_id, result, labels)


def write_result(
    folder: Path,
    frame_id: str,
    result: Mapping[str, Any] | None = None,
    labels: Labels | None = None,
) -> None:
    """The files of a frame in a folder of results that has begun."""
    if labels is not None:
        write_labels(folder / f"{frame_id}.txt", labels)
    if result is not None:  # last: the newer is the one that is drawn, and it says more
        write_text(folder / f"{frame_id}.json", json.dumps(result) + "\n")


def require_same_run(output: Path, old: Any, new: Mapping[str, Any]) -> None:
    """Raises ValueError where the results of an output were begun with other settings than a run
    that is to continue them has. old: what the output tells of them."""
    old = old if isinstance(old, dict) else {}
    if old.get("version") != new.get("version"):
        begun = f"version {old['version']}" if "version" in old else "an older version"
        raise ValueError(
            f"{output}: was begun by {begun} of this program, not by {new['version']}; give "
            "another output, or begin anew without --resume"
        )
    other = next((name for name in new if old.get(name) != new[name]), None)
    if other:
        raise ValueError(
            f"{output}: was begun with other {other} ({old.get(other)}, now {new[other]}); give "
            "another output, or begin anew without --resume"
        )


class _Frames:
    """Names of frames, and names that end in / for all frames of a folder."""

    def __init__(self, names: Sequence[str]):
        self._names = set(names)

    def __contains__(self, name: str) -> bool:
        return name in self._names or f"{name.rpartition('/')[0]}/" in self._names


def _is_result(path: Path) -> bool:
    if path.suffix == ".txt":
        return _columns(path) in (None, RESULT)
    return is_json_of(path, lambda content: content.keys() >= KEYS)


def _columns(path: Path) -> int | None:
    """Words in the first line of a text file, None for an empty one; 0 for another file."""
    with suppress(ValueError, OSError):
        lines = read_text(path).split("\n")
        return next((len(line.split()) for line in lines if line.strip()), None)
    return 0
