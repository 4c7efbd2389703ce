"""Weights on disk: tensors in safetensors with the configuration inside, whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from detector import tensor_file
from detector.config import Config, parse_config
from detector.weights.shipped import SHIPPED, find_weights

FORMAT = "millisecond weights 3"
WITHOUT_CHECKSUM = "millisecond weights 1"
OLDER = (WITHOUT_CHECKSUM, "millisecond weights 2")  # channel c * Z + z of the bird's-eye-view map
FIRST_OF_MAP = "backbone.blocks.0.0.conv.weight"  # the convolution that reads that map


def save_weights(path: str | Path, model: nn.Module, config: Config) -> None:
    """Writes a model's weights and the configuration it is built from, atomically."""
    _write(path, model.state_dict(), config)


def save_halved(path: str | Path, state: Mapping[str, Tensor], config: Config) -> None:
    """As `save_weights`, in about half the size: weights of convolutions in fp16.

    Vectors stay in fp32: running variances may be too small for fp16, and they are few. Raises
    ValueError where a weight is too large for fp16.
    """
    halved = {name: _narrow(value) for name, value in state.items()}
    for name, value in halved.items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{name} has values beyond 65504, the largest of fp16")
    _write(path, halved, config)


def _narrow(value: Tensor) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.half() if value.ndim > 1 else value.float()


def _write(path: str | Path, state: Mapping[str, Tensor], config: Config) -> None:
    texts = {"format": FORMAT, "config": config.to_yaml()}
    tensor_file.write(Path(path), state, texts)


def load_weights(path: str | Path) -> tuple[Config, dict[str, Tensor]]:
    """The configuration and the weights of a file that `save_weights` wrote; nothing is unpickled.

    path: of a file, or the name of shipped weights (see `find_weights`).
    Raises FileNotFoundError, or ValueError where the file is damaged or of another program.
    """
    path = find_weights(path)
    if not path.is_file():
        fault = (
            "is no weights file"
            if path.exists()
            else f"no such weights file; shipped are {' and '.join(SHIPPED)}"
        )
        raise FileNotFoundError(f"{path}: {fault}")
    try:
        state, texts, checked = tensor_file.read(path)
    except ValueError as error:
        hint = "; convert it by tools/import_openpcdet.py" if path.suffix == ".pth" else ""
        raise ValueError(f"{error}{hint}") from None
    known = texts.get("format") in (FORMAT, *OLDER)
    if not known or "config" not in texts:
        raise ValueError(
            f"{path}: not weights of this program; a .pth of OpenPCDet is converted by "
            "tools/import_openpcdet.py"
        )
    if texts["format"] != WITHOUT_CHECKSUM and not checked:
        raise ValueError(f"{path}: is damaged: its checksum is missing")
    config = parse_config(texts["config"], source=f"{path}, its configuration")
    if texts["format"] in OLDER and FIRST_OF_MAP in state:
        state[FIRST_OF_MAP] = depth_first(state[FIRST_OF_MAP], config.bev_cells[0])
    return config, state


def depth_first(weight: Tensor, depth: int) -> Tensor:
    """Turns a weight [C_out, C * Z, ...] for a bird's-eye-view map with channel c * Z + z, as in
    OpenPCDet, into one for a map with channel z * C + c."""
    if weight.ndim != 4 or weight.shape[1] % depth:
        return weight  # of another network, which `restore` tells
    return weight.unflatten(1, (-1, depth)).transpose(1, 2).flatten(1, 2).contiguous()


def restore(model: nn.Module, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Copies weights into a model.

    Raises ValueError naming the first that does not fit, or holds a value that is not finite.
    """
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in state:
            raise ValueError(f"{source}: weights of another network: {name} is missing")
        given = state[name]
        if given.shape != tensor.shape:
            raise ValueError(
                f"{source}: weights of another network: {name} is {list(given.shape)} "
                f"instead of {list(tensor.shape)}"
            )
        if tensor.is_floating_point() and not given.is_floating_point():
            kind = str(given.dtype).removeprefix("torch.")
            raise ValueError(f"{source}: {name} is of type {kind}, not of floating point")
        wrong = int((~torch.isfinite(given.to(tensor.dtype))).sum())
        if wrong:
            raise ValueError(
                f"{source}: {wrong} of the {given.numel()} values of {name} are not finite; the "
                "file is damaged, or its training had failed"
            )
        if name.endswith("running_var") and (given.to(tensor.dtype) < 0).any():
            raise ValueError(f"{source}: {name} has a negative variance; the file is damaged")
    for name in state:
        if name not in expected:
            raise ValueError(f"{source}: weights of another network: {name} is unknown")
    model.load_state_dict(dict(state))
