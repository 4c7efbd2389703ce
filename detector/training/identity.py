"""The identity of a training: all that must be the same when it is resumed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from detector.config import Config, parse_config

FORMAT = "millisecond training 2"  # of a checkpoint's tensors

# They have no influence on the weights.
MAY_CHANGE = ("train.workers", "train.checkpoint_every", "train.keep", "train.validate_every")


@dataclass(frozen=True)
class RunIdentity:
    """A resumed training continues bit for bit only if all of this is unchanged."""

    config: Config
    processes: int
    frames: int
    frames_digest: int
    # digest of clouds, labels and calibrations, or `SimulatedStreets.signature`; "" of a run that
    # did not note it
    data: str
    dataflows: str = ""  # of layers that are no implicit GEMMs: they round otherwise

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
            "dataflows": self.dataflows,
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
        rest = texts.get("data", ""), texts.get("dataflows", "")
        return cls(config, processes, frames, digest, *rest)

    def changes(self, new: RunIdentity) -> list[str]:
        """`key: old value -> new value` for everything that keeps `new` from going on with this."""
        old_values, new_values = _leaves(asdict(self.config)), _leaves(asdict(new.config))
        lines = [
            f"{key}: {old_values.get(key)} -> {new_values.get(key)}"
            for key in old_values | new_values
            if old_values.get(key) != new_values.get(key) and key not in MAY_CHANGE
        ]
        if new.processes != self.processes:
            lines.append(f"processes: {self.processes} -> {new.processes}")
        if (new.frames, new.frames_digest) != (self.frames, self.frames_digest):
            lines.append(f"training frames: {self.frames} -> {new.frames}, not the same ones")
        elif self.data and new.data != self.data:
            if new.data.startswith("world"):
                lines.append(f"simulated streets: {self.data} -> {new.data}: changed since")
            else:
                lines.append("clouds, labels or calibrations: changed since")
        if new.dataflows != self.dataflows:
            none = "implicit GEMMs"
            lines.append(f"dataflows: {self.dataflows or none} -> {new.dataflows or none}")
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
