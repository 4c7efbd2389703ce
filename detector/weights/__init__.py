"""Weights on disk: tensors in safetensors with the configuration inside, whole or not there;
weights that are shipped, each with a model card beside it, e.g. second.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from millisecond.detector import tensor_file
from millisecond.detector.config import Config, parse_config

FOLDER = Path(__file__).resolve().parent
ANY = "any"  # for every LiDAR
SHIPPED = ("second", "second_small", ANY)


def find_weights(weights: str | Path) -> Path:
    """The file of shipped weights that are called so; any other path is returned as it is.

    A file of one's own that has such a name is meant where it is there.
    """
    path = Path(weights)
    if str(weights) in SHIPPED and not path.is_file():
        return FOLDER / f"{weights}.safetensors"
    return path


def usual_weights(device: torch.device) -> str:
    """The name of the shipped weights that a device uses; a line on stderr says which they are."""
    name, kind = ("second", "a GPU") if device.type == "cuda" else ("second_small", "a CPU")
    print(f"weights: none given; {name} is used, which is shipped for {kind}", file=sys.stderr)
    return name


FORMAT = "millisecond weights 3"
WITHOUT_CHECKSUM = "millisecond weights 1"
OLDER = (WITHOUT_CHECKSUM, "millisecond weights 2")  # channel c * Z + z of the bird's-eye-view map
FIRST_OF_MAP = "backbone.blocks.0.0.conv.weight"  # the convolution that reads that map


def save_weights(path: str | Path, model: nn.Module | Mapping[str, Tensor], config: Config) -> None:
    """Writes a model's weights, given as a model or by name, and the configuration it is built
    from, atomically."""
    _write(path, model.state_dict() if isinstance(model, nn.Module) else model, config)


Fits = dict[str, tuple[float, float]]  # of each class: scale and shift of its logit


def calibration_of(path: str | Path) -> Fits:
    """By what `calibrate_head` has changed the weights of a file since their training."""
    return json.loads(tensor_file.read(find_weights(path)).texts.get("calibration", "{}"))


def calibrate_head(state: Mapping[str, Tensor], names: Sequence[str], fits: Fits) -> None:
    """Scales and shifts the logits of each class, in the weights of the head that computes them."""
    scales, shifts = torch.tensor([fits[name] for name in names]).T
    weight, bias = (state[f"head.classes.{part}"] for part in ("weight", "bias"))
    weight.mul_(scales.repeat(len(bias) // len(names))[:, None, None, None])
    bias.view(-1, len(names)).mul_(scales).add_(shifts)


def save_halved(
    path: str | Path, state: Mapping[str, Tensor], config: Config, calibration: Fits | None = None
) -> None:
    """As `save_weights`, in about half the size: weights of convolutions in fp16.

    calibration: see `calibration_of`.
    Vectors stay in fp32: running variances may be too small for fp16, and they are few. Raises
    ValueError where a weight is too large for fp16.
    """
    halved = dict(state)
    for name, value in state.items():
        if value.is_floating_point():
            halved[name] = value.half() if value.ndim > 1 else value.float()
        if not torch.isfinite(halved[name]).all():
            raise ValueError(f"{name} has values beyond 65504, the largest of fp16")
    _write(path, halved, config, calibration=json.dumps(calibration or {}))


def _write(path: str | Path, state: Mapping[str, Tensor], config: Config, **more: str) -> None:
    texts = {"format": FORMAT, "config": config.to_yaml(), **more}
    tensor_file.write(Path(path), state, texts)


def load_weights(path: str | Path) -> tuple[Config, dict[str, Tensor]]:
    """The configuration and the weights of a file that `save_weights` wrote; nothing is unpickled.

    path: of a file, or the name of shipped weights (see `find_weights`).
    Raises FileNotFoundError, or ValueError where the file is damaged or of another program.
    """
    path = find_weights(path)
    if not path.is_file():
        fault = f"no such weights file; shipped are {', '.join(SHIPPED)}"
        if path.exists():
            fault = f"is {'a folder, not a' if path.is_dir() else 'no'} weights file"
        raise FileNotFoundError(f"{path}: {fault}")
    try:
        state, texts, checked = tensor_file.read(path)
    except ValueError as error:
        hint = "; convert it by millisecond import_openpcdet" if path.suffix == ".pth" else ""
        raise ValueError(f"{error}{hint}") from None
    known = texts.get("format") in (FORMAT, *OLDER)
    if not known or "config" not in texts:
        raise ValueError(
            f"{path}: not weights of this program; a training writes best.safetensors and "
            "weights.safetensors, and millisecond import_openpcdet converts a .pth"
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
