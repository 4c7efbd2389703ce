"""The file of tools/tune.py: the fastest dataflow of each layer, and where it was measured."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ops.cuda.library import read_sources
from ops.dataflow import Dataflow
from ops.tuned import KINDS, PRECISIONS, Choice, Tuned, Work

FORMAT = "millisecond dataflows 2"
MEASURED = ("conv/", "dataflow/")  # folders of csrc
MAX_BYTES = 16 << 20


class Origin(NamedTuple):
    """Where a file was measured."""

    device: str
    torch_version: str
    kernels: str  # digest of their sources

    @classmethod
    def here(cls, device: torch.device | str | None = None) -> Origin:
        on_cpu = device is not None and torch.device(device).type == "cpu"
        if on_cpu or not torch.cuda.is_available():
            name = "no GPU"
        else:
            name = torch.cuda.get_device_name(device)
        digest = hashlib.sha256()
        for path, content in read_sources().items():
            if path.startswith(MEASURED):
                digest.update(b"%s\0%d\0" % (path.encode(), len(content)) + content)
        return cls(name, torch.__version__, digest.hexdigest()[:12])

    def difference(self, here: Origin) -> str | None:
        """What is not the same here; None where all is."""
        if self.device != here.device:
            return f"measured on {self.device}, here is {here.device}"
        if self.torch_version != here.torch_version:
            return f"measured with torch {self.torch_version}, here is {here.torch_version}"
        if self.kernels != here.kernels:
            return f"measured with kernels {self.kernels}, here are {here.kernels}"
        return None


def read_tuned(path: str | Path, device: torch.device | str | None = None) -> Tuned:
    """The file of tools/tune.py; warns (UserWarning), and then chooses nothing, where it was
    measured on another GPU, with another torch or with other kernels.

    device: that the network runs on; None for the current GPU.

    Raises OSError, or ValueError with one line for a file that is not whole and right.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'is no' if path.exists() else 'no such'} file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size} bytes are no file of tools/tune.py")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is no JSON ({error})") from None
    origin, tuned = _parsed(path, content)
    difference = origin.difference(Origin.here(device))
    if difference is None:
        return tuned
    text = f"{path}: {difference}: all layers stay implicit GEMMs; run tools/tune.py here"
    warnings.warn(text, stacklevel=2)
    return Tuned({})


def as_json(
    origin: Origin,
    fastest: Mapping[Work, Choice],
    microseconds: Mapping[Work, Mapping[str, float]],
) -> dict[str, Any]:
    """What `read_tuned` reads, with the times that led to it."""
    layers = [
        {
            **work._asdict(),
            "listed": str(choice.listed),
            "unlisted": str(choice.unlisted),
            "us": dict(microseconds[work]),
        }
        for work, choice in fastest.items()
    ]
    return {"format": FORMAT, **origin._asdict(), "layers": layers}


def _parsed(path: Path, content: object) -> tuple[Origin, Tuned]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: is no file of this tools/tune.py (format is not {FORMAT!r})")
    try:
        origin = Origin(*(_text(name, content.get(name)) for name in Origin._fields))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    layers = content.get("layers")
    if not isinstance(layers, list):
        raise ValueError(f"{path}: layers: {layers!r} is no list")
    fastest: dict[Work, Choice] = {}
    for index, layer in enumerate(layers):
        try:
            work, choice = _layer(layer)
        except ValueError as error:
            raise ValueError(f"{path}: layers[{index}]: {error}") from None
        if work in fastest:
            raise ValueError(f"{path}: layers[{index}]: {work} is there twice")
        fastest[work] = choice
    return origin, Tuned(fastest)


def _layer(layer: object) -> tuple[Work, Choice]:
    wanted = {*Work._fields, *Choice._fields, "us"}
    if not isinstance(layer, dict) or layer.keys() != wanted:
        raise ValueError(f"expected the keys {', '.join(sorted(wanted))}")
    work = Work(*(layer[key] for key in Work._fields))
    if work.kind not in KINDS:
        raise ValueError(f"kind: {work.kind!r} is none of {', '.join(KINDS)}")
    if work.precision not in PRECISIONS:
        raise ValueError(f"precision: {work.precision!r} is none of {', '.join(PRECISIONS)}")
    if not isinstance(work.training, bool):
        raise ValueError(f"training: {work.training!r} is neither true nor false")
    for name in ("offsets", "c_in", "c_out", "size"):
        value = getattr(work, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
            raise ValueError(f"{name}: {value!r} is no whole number from 0")
    return work, Choice(*(_dataflow(name, layer[name]) for name in Choice._fields))


def _dataflow(name: str, value: object) -> Dataflow:
    dataflow = Dataflow.parse(_text(name, value))
    if dataflow.kind == "direct":
        raise ValueError(f"{name}: direct takes no kernel map")
    return dataflow


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {value!r} is no text")
    return value
