"""A folder of training checkpoints: each whole or not there, and known to be undamaged before it is
used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from detector import tensor_file

_NAME = re.compile(r"step_(\d{9})\.safetensors")


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    identity: dict[str, str]  # what the run is, see `RunIdentity`


class CheckpointStore:
    """The newest `keep` checkpoints of a run, `step_000000120.safetensors` and so on.

    A checkpoint is a `tensor_file`, whose texts hold the numbers as JSON and the run's identity.
    Nothing is pickled.
    """

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = Path(folder), keep

    def paths(self) -> list[Path]:
        """The checkpoints that are there, newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((p for p in self.folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)

    def save(self, step: int, checkpoint: Checkpoint) -> Path:
        """Writes a checkpoint, then removes the oldest beyond `keep`.

        Raises OSError, e.g. for a full disk; the older checkpoints then stay.
        """
        path = self.folder / f"step_{step:09d}.safetensors"
        texts = checkpoint.identity | {"numbers": json.dumps(checkpoint.numbers)}
        tensor_file.write(path, checkpoint.tensors, texts)
        left_by_a_kill = self.folder.glob(".step_*.tmp")
        for old in (*self.paths()[self.keep :], *left_by_a_kill):
            old.unlink(missing_ok=True)
        return path

    def newest(self, report=print) -> Checkpoint | None:
        """The newest undamaged checkpoint, None where there is none at all.

        Each damaged one is reported with a line. Raises ValueError where all are damaged.
        """
        paths = self.paths()
        for checkpoint in self._undamaged(paths, report):
            return checkpoint
        if paths:
            raise ValueError(
                f"{self.folder}: all {len(paths)} checkpoints are damaged; start anew elsewhere"
            )
        return None

    def _undamaged(self, paths: list[Path], report) -> Iterator[Checkpoint]:
        for path in paths:
            try:
                checkpoint = read(path)
            except (ValueError, OSError) as error:
                report(f"warning: {error}; trying the one before it")
            else:
                yield checkpoint


def read(path: Path) -> Checkpoint:
    """A checkpoint from a file. Raises ValueError for one that is not as it was written."""
    try:
        tensors, texts, checked = tensor_file.read(path)
    except ValueError as error:
        raise ValueError(f"{error}, so it is not a whole checkpoint") from None
    try:
        numbers = json.loads(texts.pop("numbers"))
    except (KeyError, ValueError):
        raise ValueError(f"{path}: is not a whole checkpoint") from None
    if not checked:
        raise ValueError(f"{path}: is not a whole checkpoint")
    return Checkpoint(tensors, numbers, texts)
