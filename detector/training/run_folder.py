"""The output folder of a training: checkpoints, weights, and the check before --resume."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from detector.config import Config
from detector.training.checkpoints import Checkpoint, CheckpointStore
from detector.training.distributed import Processes
from detector.training.finite_guard import NotFinite
from detector.training.identity import RunIdentity
from detector.training.state import TrainState
from detector.weights import save_weights

WEIGHTS, BEST = "weights.safetensors", "best.safetensors"
CONTENT = ("checkpoints", WEIGHTS, BEST, "log.jsonl", "tensorboard")


class RunFolder:
    """`checkpoints/`, `best.safetensors` by validation AP and, at the end, `weights.safetensors`.

    Only the first process writes them. Every method raises OSError where a file cannot be written;
    what was saved before is still there then.
    """

    def __init__(self, path: Path, config: Config, identity: RunIdentity, processes: Processes):
        self.path, self.config = path, config
        self.identity, self.processes = identity, processes
        self._store = CheckpointStore(path / "checkpoints", config.train.keep)

    def restore(self, state: TrainState, resume: bool) -> None:
        """Makes the state that of the newest checkpoint, if `resume` is said and there is one.

        Raises ValueError where the folder holds a run and `resume` is false, or where that run had
        another configuration, data or number of processes.
        """
        if not resume:
            self._require_no_run()
            return
        checkpoint = self.processes.of_first(lambda: self._store.newest(_warn))
        if checkpoint is None:
            if self.processes.first:
                where = self._store.folder
                _warn(f"{where}: no checkpoint yet, the training starts from the beginning")
            return
        changes = RunIdentity.from_metadata(checkpoint.identity).changes(self.identity)
        if changes:
            raise ValueError(
                f"{self.path}: the training there differs in {'; '.join(changes)}; change it "
                "back, give another --output, or delete that folder to start anew"
            )
        state.restore(checkpoint.tensors, checkpoint.numbers, self.processes)

    def save_checkpoint(self, state: TrainState) -> None:
        """Every process must call."""
        tensors, numbers = state.capture(self.processes)
        if self.processes.first:
            checkpoint = Checkpoint(tensors, numbers, self.identity.to_metadata())
            self._store.save(state.step, checkpoint)

    def save_weights(self, name: str, state: TrainState) -> None:
        """name: WEIGHTS or BEST."""
        if self.processes.first:
            save_weights(self.path / name, state.trained, self.config)

    def save_batches(self, error: NotFinite) -> Path:
        """The batches of a step that this process found not finite; returns the file."""
        path = self.path / f"not_finite_{error.step}_{self.processes.rank}.safetensors"
        error.save(path)
        return path

    def _require_no_run(self) -> None:
        found = self.processes.of_first(partial(_content_of, self.path))
        if found:
            raise ValueError(
                f"{self.path}: holds a training ({found[0]}); add --resume to continue it, "
                "or give another --output"
            )


def _content_of(folder: Path) -> list[str]:
    return [name for name in CONTENT if (folder / name).exists()]


def _warn(line: str) -> None:
    print(line, file=sys.stderr)
