"""A folder of training checkpoints: each whole or not there, and known to be undamaged before it is
used."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
from torch import Tensor

from data.files import replacing

_NAME = re.compile(r"step_(\d{9})\.safetensors")
_BLANK = "0" * 64  # stands where the digest goes while the digest is taken


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    identity: dict[str, str]  # what the run is, see `RunIdentity`


class CheckpointStore:
    """The newest `keep` checkpoints of a run, `step_000000120.safetensors` and so on.

    A checkpoint is one safetensors file; its metadata holds the numbers as JSON, the run's identity
    and the SHA-256 of the whole file, taken with 64 zeros in the digest's place. Nothing is
    pickled.
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

        Raises OSError, a full disk for one; what was there stays as it was.
        """
        path = self.folder / f"step_{step:09d}.safetensors"
        _write(path, _to_bytes(checkpoint))
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
    blob = Path(path).read_bytes()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        digest, numbers = metadata.pop("sha256"), metadata.pop("numbers")
    except (safetensors.SafetensorError, KeyError):
        raise ValueError(f"{path}: is not a whole checkpoint") from None
    blank = blob.replace(digest.encode(), _BLANK.encode(), 1)
    if hashlib.sha256(blank).hexdigest() != digest:
        raise ValueError(f"{path}: is damaged: its checksum differs")
    return Checkpoint(safetensors.torch.load(blob), json.loads(numbers), metadata)


def _to_bytes(checkpoint: Checkpoint) -> bytes:
    tensors = {name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()}
    numbers = json.dumps(checkpoint.numbers)
    metadata = checkpoint.identity | {"numbers": numbers, "sha256": _BLANK}
    blob = safetensors.torch.save(tensors, metadata)
    digest = hashlib.sha256(blob).hexdigest()
    return blob.replace(_BLANK.encode(), digest.encode(), 1)


def _write(path: Path, blob: bytes) -> None:
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # else the new name itself may be lost with the power
    finally:
        os.close(folder)
