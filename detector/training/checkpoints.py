"""What a training keeps on disk, and how --resume finds it again: the state of a run (weights,
optimiser, step, averaged weights), restored bit for bit; its identity, i.e. all that must be the
same when it is resumed; checkpoints, each whole or not there, and known to be undamaged before it
is used; the output folder.
"""

from __future__ import annotations

import copy
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millisecond.detector import tensor_file
from millisecond.detector.config import Config, parse_config
from millisecond.detector.models.second import Second
from millisecond.detector.training.distributed import Processes
from millisecond.detector.weights import save_weights


class Ema:
    """The averaged model: average = d * average + (1 - d) * weights after each step.

    d is min(decay, (1 + step) / (10 + step)), so that the first weights are soon forgotten.
    Buffers, the running statistics among them, are the newest.
    """

    def __init__(self, model: Second, decay: float):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    def share(self, step: int) -> float:
        """Of the weights that step `step` (0-based) left, in the new average."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: Second, step: int) -> None:
        """Takes in the weights that step `step` (0-based) left."""
        averages: list[Tensor] = list(self.model.parameters())
        weights: list[Tensor] = list(model.parameters())
        torch._foreach_lerp_(averages, weights, self.share(step))
        self.take_buffers(model)

    def take_buffers(self, model: Second) -> None:
        """Copies the buffers of the model."""
        torch._foreach_copy_(list(self.model.buffers()), list(model.buffers()))


@dataclass
class TrainState:
    """What a step changes. `step` counts the finished updates and so is the position of the
    schedule and of the sampler, which are functions of it; `validated` is the step of the last
    validation, `best` its highest AP."""

    model: Second
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: Ema | None = None
    step: int = 0
    validated: int = -1
    best: float = -1.0

    @property
    def trained(self) -> Second:
        """The model to validate and to export: the averaged one where there is one."""
        return self.ema.model if self.ema else self.model

    def capture(self, processes: Processes) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies of named tensors, and numbers that JSON keeps exactly; every process must call."""
        tensors = _prefixed("model", self.model.state_dict())
        if self.ema:
            tensors |= _prefixed("ema", self.ema.model.state_dict())
        moments = self.optimizer.state_dict()["state"]
        for index, (name, _) in enumerate(self.model.named_parameters()):
            tensors |= _prefixed(f"optimizer.{name}", moments.get(index, {}))
        generators = {"cpu": torch.get_rng_state()}
        if processes.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(processes.device)
        for rank, states in enumerate(processes.gather(generators)):
            tensors |= _prefixed(f"random.{rank}", states)
        numbers = {
            "step": self.step,
            "validated": self.validated,
            "best": self.best,
            "scaler": self.scaler.state_dict(),
        }
        return tensors, numbers

    def restore(
        self, tensors: dict[str, Tensor], numbers: dict[str, Any], processes: Processes
    ) -> None:
        """The inverse of `capture`. Raises ValueError where the tensors are another network's."""
        try:
            self.model.load_state_dict(_below("model", tensors))
            if self.ema:
                self.ema.model.load_state_dict(_below("ema", tensors))
        except RuntimeError as error:
            detail = " ".join(str(error).split())
            raise ValueError(f"the checkpoint is of another network: {detail}") from None
        self._restore_moments(tensors)
        self.scaler.load_state_dict(numbers["scaler"])
        self.step, self.validated = numbers["step"], numbers["validated"]
        self.best = numbers["best"]
        generators = _below(f"random.{processes.rank}", tensors)
        if "cpu" in generators:  # else fewer processes have saved theirs
            torch.set_rng_state(generators["cpu"])
        if processes.device.type == "cuda" and "cuda" in generators:
            torch.cuda.set_rng_state(generators["cuda"], processes.device)

    def _restore_moments(self, tensors: dict[str, Tensor]) -> None:
        names = [name for name, _ in self.model.named_parameters()]
        state = {i: _below(f"optimizer.{name}", tensors) for i, name in enumerate(names)}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(
            {
                "state": {i: moments for i, moments in state.items() if moments},
                "param_groups": groups,
            }
        )
        for parameter, moments in self.optimizer.state.items():
            for key, value in moments.items():
                apart = value.stride() != parameter.stride()  # saved contiguous
                if value.shape == parameter.shape and apart:
                    moments[key] = torch.empty_like(parameter).copy_(value)


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the host."""
    items = tensors.items()
    return {f"{prefix}.{name}": tensor.detach().to("cpu", copy=True) for name, tensor in items}


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


FORMAT = "millisecond training 2"  # of a checkpoint's tensors

# They have no influence on the weights.
MAY_CHANGE = ("train.workers", "train.checkpoint_every", "train.keep", "train.validate_every")


@dataclass(frozen=True)
class RunIdentity:
    """A resumed training continues bit for bit only if all of this is unchanged."""

    config: Config
    processes: int  # that have begun the run; others share the batches of its steps
    frames: int
    frames_digest: int
    # digest of clouds, labels and calibrations, or `SimulatedStreets.signature`; "" of a run that
    # did not note it
    data: str

    @classmethod
    def of(cls, config: Config, processes: int, frame_ids: Sequence[str], data: str) -> RunIdentity:
        """The identity of a training on the frames in this order."""
        digest = zlib.crc32("\n".join(frame_ids).encode())
        return cls(config, processes, len(frame_ids), digest, data)

    def to_metadata(self) -> dict[str, str]:
        """As text; `from_metadata` reads it back."""
        return {
            "format": FORMAT,
            "config": self.config.to_yaml(),
            "processes": str(self.processes),
            "frames": str(self.frames),
            "frames_digest": str(self.frames_digest),
            "data": self.data,
        }

    @classmethod
    def from_metadata(cls, texts: Mapping[str, str]) -> RunIdentity:
        """Raises ValueError for texts of another version of this program."""
        if texts.get("format") != FORMAT:
            raise ValueError(
                "the checkpoint is of an older version of this program, whose training cannot go "
                "on here; give another --output"
            )
        try:
            config = parse_config(texts["config"], source="the checkpoint's configuration")
            processes, frames = int(texts["processes"]), int(texts["frames"])
            digest = int(texts["frames_digest"])
        except KeyError as error:
            raise ValueError(f"the checkpoint has no entry {error}") from None
        return cls(config, processes, frames, digest, texts.get("data", ""))

    def changes(self, new: RunIdentity) -> list[str]:
        """`key: old value -> new value` for everything that keeps `new` from going on with this."""
        old_values, new_values = _leaves(asdict(self.config)), _leaves(asdict(new.config))
        lines = [
            f"{key}: {old_values.get(key)} -> {new_values.get(key)}"
            for key in old_values | new_values
            if old_values.get(key) != new_values.get(key) and key not in MAY_CHANGE
        ]
        if (new.frames, new.frames_digest) != (self.frames, self.frames_digest):
            lines.append(f"training frames: {self.frames} -> {new.frames}, not the same ones")
        elif self.data and new.data != self.data:
            if new.data.startswith("world"):
                lines.append(f"simulated streets: {self.data} -> {new.data}: changed since")
            else:
                lines.append("clouds, labels or calibrations: changed since")
        return lines


def _leaves(tree: Any, path: str = "") -> dict[str, Any]:
    items: Iterable[tuple[Any, Any]]
    if isinstance(tree, Mapping):
        items = tree.items()
    elif isinstance(tree, tuple) and any(isinstance(item, Mapping) for item in tree):
        items = enumerate(tree)
    else:
        return {path: tree}
    leaves: dict[str, Any] = {}
    for key, value in items:
        leaves |= _leaves(value, f"{path}.{key}" if path else str(key))
    return leaves


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
        for path in paths:
            try:
                return read(path)
            except (ValueError, OSError) as error:
                report(f"warning: {error}; trying the one before it")
        if paths:
            raise ValueError(
                f"{self.folder}: all {len(paths)} checkpoints are damaged; start anew elsewhere"
            )
        return None


def begun_run(output: Path, processes: Processes) -> RunIdentity | None:
    """The run that has begun in a folder; None where there is none."""
    store = CheckpointStore(output / "checkpoints", 1)

    def identity() -> RunIdentity | None:
        newest = store.newest(lambda _: None)  # `RunFolder.restore` will tell of damaged ones
        return RunIdentity.from_metadata(newest.identity) if newest else None

    return processes.of_first(identity)


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
        """Gives the state what the newest checkpoint has, if `resume` is said and there is one.

        Raises ValueError where the folder holds a run and `resume` is false, or where that run had
        another configuration or other data.
        """
        if not resume:
            self._require_no_run()
            return
        for left_by_a_kill in self.path.glob(".*.safetensors.*.tmp"):
            left_by_a_kill.unlink(missing_ok=True)
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

    def checkpoint(self, state: TrainState) -> Callable[[], None]:
        """What writes a checkpoint of the state as it is now. Every process must call this; only
        the first one writes."""
        tensors, numbers = state.capture(self.processes)
        checkpoint = Checkpoint(tensors, numbers, self.identity.to_metadata())

        def write() -> None:
            if self.processes.first:
                self._store.save(checkpoint.numbers["step"], checkpoint)

        return write

    def save_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """name: WEIGHTS or BEST. weights: of a network, by name."""
        if self.processes.first:
            save_weights(self.path / name, weights, self.config)

    def _require_no_run(self) -> None:
        found = self.processes.of_first(
            lambda: [name for name in CONTENT if (self.path / name).exists()]
        )
        if found:
            raise ValueError(
                f"{self.path}: holds a training ({found[0]}); add --resume to continue it, "
                "or give another --output"
            )


def _warn(line: str) -> None:
    print(line, file=sys.stderr)
