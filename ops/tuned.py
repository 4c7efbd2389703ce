"""Which dataflow was measured to be the fastest, as tools/tune.py writes it and layers read it.

Nothing is searched when a network runs: what the file does not name is an implicit GEMM.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ops.dataflow import IMPLICIT_GEMM, Dataflow, PairMap
from ops.rulebook import KernelMap

FORMAT = "millisecond dataflows 1"
KINDS = ("submanifold", "strided", "inverse")
PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}
MAX_BYTES = 16 << 20


class Work(NamedTuple):
    """What is measured: a layer at one size."""

    kind: str  # one of KINDS
    offsets: int
    c_in: int
    c_out: int
    precision: str  # fp16, bf16, tf32 or fp32
    training: bool  # with the backward pass
    size: int  # bits of the number of output rows: 17 for 65536 to 131071

    @classmethod
    def of(cls, kind: str, weight: Tensor, dtype: torch.dtype, rows: int, training: bool) -> Work:
        """Of weight [V, C_in, C_out]; the precision of float32 is what torch is set to."""
        exact = torch.get_float32_matmul_precision() == "highest"
        precision = PRECISIONS.get(dtype, "fp32" if exact else "tf32")
        volume, c_in, c_out = weight.shape
        return cls(kind, volume, c_in, c_out, precision, training, rows.bit_length())


@dataclass(frozen=True)
class Tuned:
    """The fastest dataflow of each work, measured on one kind of GPU."""

    device: str
    fastest: Mapping[Work, Dataflow]

    def dataflow(
        self, kind: str, features: Tensor, weight: Tensor, kernel_map: KernelMap | PairMap
    ) -> Dataflow:
        """For a layer's call. The implicit GEMM for a map whose pairs are not listed: to list them
        in every call takes longer than is won."""
        if not isinstance(kernel_map, PairMap):
            return IMPLICIT_GEMM
        rows, training = kernel_map.forward.neighbours.shape[1], torch.is_grad_enabled()
        work = Work.of(kind, weight, features.dtype, rows, training)
        return self.fastest.get(work, IMPLICIT_GEMM)


def use_tuned(network: torch.nn.Module, tuned: Tuned | None) -> None:
    """Every convolution of `ops.layers` in the network takes the dataflow that was the fastest for
    it, where it is called with a `PairMap`; None: implicit GEMMs again."""
    from ops.layers import Conv  # which reads this module

    for module in network.modules():
        if isinstance(module, Conv):
            module.dataflow = tuned


def read_tuned(path: str | Path, device: torch.device | str | None = None) -> Tuned:
    """The file of tools/tune.py; warns, and then chooses nothing, where another GPU was measured.

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
    tuned = _tuned(path, content)
    here = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "no GPU"
    if here != tuned.device:
        text = f"{path}: measured on {tuned.device}, here is {here}: implicit GEMMs; run tune.py"
        warnings.warn(text, stacklevel=2)
        return Tuned(here, {})
    return tuned


def as_json(tuned: Tuned, microseconds: Mapping[Work, Mapping[str, float]]) -> dict:
    """What `read_tuned` reads, with the times of each dataflow."""
    layers = [
        {**work._asdict(), "dataflow": str(dataflow), "us": dict(microseconds[work])}
        for work, dataflow in tuned.fastest.items()
    ]
    return {"format": FORMAT, "device": tuned.device, "layers": layers}


def _tuned(path: Path, content: object) -> Tuned:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: is no file of tools/tune.py (format is not {FORMAT!r})")
    device, layers = content.get("device"), content.get("layers")
    if not isinstance(device, str) or not isinstance(layers, list):
        raise ValueError(f"{path}: device must be a name, layers a list")
    fastest: dict[Work, Dataflow] = {}
    for index, layer in enumerate(layers):
        try:
            work, dataflow = _layer(layer)
        except ValueError as error:
            raise ValueError(f"{path}: layers[{index}]: {error}") from None
        if work in fastest:
            raise ValueError(f"{path}: layers[{index}]: {work} is there twice")
        fastest[work] = dataflow
    return Tuned(device, fastest)


def _layer(layer: object) -> tuple[Work, Dataflow]:
    wanted = {*Work._fields, "dataflow", "us"}
    if not isinstance(layer, dict) or layer.keys() != wanted:
        raise ValueError(f"expected the keys {', '.join(sorted(wanted))}")
    work = Work(*(layer[key] for key in Work._fields))
    if work.kind not in KINDS:
        raise ValueError(f"kind: {work.kind!r} is none of {', '.join(KINDS)}")
    if work.precision not in ("fp16", "bf16", "tf32", "fp32"):
        raise ValueError(f"precision: {work.precision!r} is none of fp16, bf16, tf32, fp32")
    if not isinstance(work.training, bool):
        raise ValueError(f"training: {work.training!r} is neither true nor false")
    for name in ("offsets", "c_in", "c_out", "size"):
        value = getattr(work, name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
            raise ValueError(f"{name}: {value!r} is no whole number from 0")
    if not isinstance(layer["dataflow"], str):
        raise ValueError(f"dataflow: {layer['dataflow']!r} is no text")
    return work, Dataflow.parse(layer["dataflow"])
