"""The fastest measured dataflow of each layer, and the file of `millisecond tune` with it.

A running network searches nothing: a layer that was not measured is an implicit GEMM.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from millisecond.ops.dispatch import tf32_allowed
from millisecond.ops.lab.dataflow import IMPLICIT_GEMM, Dataflow
from millisecond.ops.lab.library import LAB
from millisecond.ops.lab.pairs import PairMap
from millisecond.ops.library import read_sources
from millisecond.ops.rulebook import KernelMap

KINDS = ("submanifold", "strided", "inverse")
HALVES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
PRECISIONS = (*HALVES.values(), "tf32", "fp32")
FORMAT = "millisecond dataflows 2"
MEASURED = ("conv/", "pairs/")  # folders of the kernels
MAX_BYTES = 16 << 20


class Work(NamedTuple):
    """A layer at one size, the unit of a measurement."""

    kind: str  # one of KINDS
    offsets: int
    c_in: int
    c_out: int
    precision: str  # one of PRECISIONS
    training: bool  # with the backward pass
    size: int  # bits of the number of output rows: 17 for 65536 to 131071

    @classmethod
    def of(
        cls, kind: str, weight_shape: Sequence[int], dtype: torch.dtype, rows: int, training: bool
    ) -> Work:
        """Of a weight [V, C_in, C_out]."""
        volume, c_in, c_out = weight_shape
        return cls(kind, volume, c_in, c_out, precision_of(dtype), training, rows.bit_length())


class FastestDataflow(NamedTuple):
    """The fastest dataflow of a work."""

    listed: Dataflow  # on a map whose pairs are listed
    unlisted: Dataflow  # where they have to be listed for this layer alone


@dataclass(frozen=True)
class Tuned:
    """The fastest dataflow of each work, measured on one kind of GPU; `read_tuned` reads it."""

    fastest: Mapping[Work, FastestDataflow]

    def dataflow(
        self,
        kind: str,
        weight_shape: Sequence[int],
        dtype: torch.dtype,
        kernel_map: KernelMap | PairMap,
    ) -> Dataflow:
        """For a layer's call that computes in `dtype`, see `product_type`."""
        rows, training = kernel_map.forward.neighbours.shape[1], torch.is_grad_enabled()
        choice = self.fastest.get(Work.of(kind, weight_shape, dtype, rows, training))
        if choice is None or dtype == torch.float64:
            return IMPLICIT_GEMM
        return choice.listed if isinstance(kernel_map, PairMap) else choice.unlisted


def precision_of(dtype: torch.dtype) -> str:
    """One of PRECISIONS; float32 has the precision that torch is set to."""
    return HALVES.get(dtype, "tf32" if tf32_allowed() else "fp32")


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
        for path, content in (read_sources() | read_sources(LAB)).items():
            if path.startswith(MEASURED):
                digest.update(b"%s\0%d\0" % (path.encode(), len(content)) + content)
        return cls(name, torch.__version__, digest.hexdigest()[:12])

    def difference(self, here: Origin) -> str | None:
        """The first difference from here; None if all is equal."""
        if self.device != here.device:
            return f"measured on {self.device}, here is {here.device}"
        if self.torch_version != here.torch_version:
            return f"measured with torch {self.torch_version}, here is {here.torch_version}"
        if self.kernels != here.kernels:
            return f"measured with kernels {self.kernels}, here are {here.kernels}"
        return None


def read_tuned(path: str | Path, device: torch.device | str | None = None) -> Tuned:
    """The file of millisecond tune; warns (UserWarning), and then chooses nothing, where it was
    measured on another GPU, with another torch or with other kernels.

    device: that the network runs on; None for the current GPU.

    Raises OSError, or ValueError with one line for a file that is incomplete or wrong.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'is not a' if path.exists() else 'no such'} file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: is not a tuning file ({path.stat().st_size} bytes)")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON ({error})") from None
    origin, tuned = _parsed(path, content)
    difference = origin.difference(Origin.here(device))
    if difference is None:
        return tuned
    text = f"{path}: {difference}: all layers stay implicit GEMMs; run millisecond tune here"
    warnings.warn(text, stacklevel=2)
    return Tuned({})


def as_json(
    origin: Origin,
    fastest: Mapping[Work, FastestDataflow],
    microseconds: Mapping[Work, Mapping[str, float]],
) -> dict[str, Any]:
    """The content of a file for `read_tuned`, with the measured times."""
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
        raise ValueError(f"{path}: is not a tuning file of this version (format is not {FORMAT!r})")
    try:
        origin = Origin(*(_text(name, content.get(name)) for name in Origin._fields))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    layers = content.get("layers")
    if not isinstance(layers, list):
        raise ValueError(f"{path}: layers: {layers!r} is not a list")
    fastest: dict[Work, FastestDataflow] = {}
    for index, layer in enumerate(layers):
        try:
            work, choice = _layer(layer)
        except ValueError as error:
            raise ValueError(f"{path}: layers[{index}]: {error}") from None
        if work in fastest:
            raise ValueError(f"{path}: layers[{index}]: {work} is there twice")
        fastest[work] = choice
    return origin, Tuned(fastest)


def _layer(layer: object) -> tuple[Work, FastestDataflow]:
    wanted = {*Work._fields, *FastestDataflow._fields, "us"}
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
            raise ValueError(f"{name}: {value!r} is not a whole number from 0")
    return work, FastestDataflow(
        *(_dataflow(name, layer[name]) for name in FastestDataflow._fields)
    )


def _dataflow(name: str, value: object) -> Dataflow:
    dataflow = Dataflow.parse(_text(name, value))
    if dataflow.kind == "direct":
        raise ValueError(f"{name}: direct takes no kernel map")
    return dataflow


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: {value!r} is not text")
    return value
