"""KITTI result files against KITTI label files, by KITTI's metric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from data.kitti.labels import TYPES, Labels, read_labels
from data.kitti.metric.evaluation import Result, evaluate
from data.kitti.splits import check_name, read_split, require_files


def evaluate_files(found: Path, known: Path, split: str | None) -> Result:
    """Result files in the folder `found` against label files of the same names in `known`.

    split: None for all frames that have labels.
    """
    for folder in (known, found):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
    if split and split != "all":
        path = find_list(split, known)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such split; without --split all frames that have labels are scored"
            )
        ids: Sequence[str] = read_split(path)
        require_files(ids, known, ".txt", split)
    else:
        ids = sorted(path.stem for path in known.glob("*.txt"))
    if not ids:
        raise FileNotFoundError(f"{known}: no label files (.txt) in it")
    for frame_id in ids:
        path = found / f"{frame_id}.txt"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: no such file; KITTI wants one result file per frame, an empty one where "
                "nothing was found (or name the frames to score with --split FILE)"
            )
    detections = read_folder(found, ids, "detections")
    for frame_id, labels in zip(ids, detections, strict=True):
        if labels.score is None:
            raise ValueError(
                f"{found / frame_id}.txt: no scores; a result line has 16 fields, the score last"
            )
    return evaluate(detections, read_folder(known, ids, "labels"))


def find_list(split: str, labels: Path) -> Path:
    """The list of a split: the file itself or, of a name, that in ImageSets beside the labels."""
    if split.endswith(".txt"):
        return Path(split)
    check_name(split)
    return labels.resolve().parent.parent / "ImageSets" / f"{split}.txt"


def read_folder(folder: Path, ids: Sequence[str], name: str) -> list[Labels]:
    """The files of the frames; ValueError for a type that KITTI does not know."""
    known = {kind.lower() for kind in TYPES}
    frames = []
    for frame_id in tqdm(ids, desc=name, unit="file", leave=False, disable=None):
        path = folder / f"{frame_id}.txt"
        labels = read_labels(path)
        strange = next((kind for kind in labels.types if kind.lower() not in known), None)
        if strange is not None:
            raise ValueError(f"{path}: type {strange!r} is none of KITTI's: {', '.join(TYPES)}")
        frames.append(labels)
    return frames
