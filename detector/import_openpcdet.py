"""Import of OpenPCDet's SECOND weights (spconv 1 or 2): to this project's names and layout."""

import math
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from millisecond.detector.config import Config
from millisecond.detector.models.second import build_second
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.detector.weights import FIRST_OF_MAP, depth_first, restore

NORM = ("weight", "bias", "running_mean", "running_var")
COUNTERS = ("global_step", "num_batches_tracked")
KERNEL = (3, 3, 3)
LARGEST = 1 << 30  # bytes; SECOND's with its optimiser's state has 64 million


def import_openpcdet(path: str | Path, config: Config) -> nn.Module:
    """The network of a configuration with the weights of an OpenPCDet checkpoint.

    Only tensors and plain values are read; a file with anything else in it is refused before any
    of it runs. Raises FileNotFoundError, or ValueError with one line.
    """
    path = Path(path)
    if not path.is_file():
        fault = "is not a checkpoint" if path.exists() else "no such checkpoint"
        raise FileNotFoundError(f"{path}: {fault}")
    _check_size(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile file can make the reader raise anything
        raise ValueError(
            f"{path}: not a checkpoint of tensors alone, or damaged ({type(error).__name__})"
        ) from None
    state = content.get("model_state", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(_is_entry(*item) for item in state.items()):
        raise ValueError(f"{path}: no 'model_state' of tensors in this file; is it OpenPCDet's?")
    model = build_second(config)
    restore(model, convert(state, config, path), path)
    return model


def _check_size(path: Path) -> None:
    """Raises ValueError for a file that is larger than any checkpoint, or becomes so unpacked."""
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            size = max(size, sum(entry.file_size for entry in archive.infolist()))
    if size > LARGEST:
        raise ValueError(f"{path}: {size} bytes are more than a checkpoint of SECOND has")


def convert(state: Mapping[str, Tensor], config: Config, source: str | Path) -> dict[str, Tensor]:
    """OpenPCDet's state dict as ours. Raises ValueError for a key or a shape of another network."""
    rest = {k: t for k, t in state.items() if k.split(".")[-1] not in COUNTERS}
    try:
        converted = _sparse(rest, config, source) | _dense(rest, config)
    except KeyError as error:
        raise ValueError(f"{source}: not SECOND's weights: {error.args[0]} is missing") from None
    if rest:
        raise ValueError(f"{source}: not SECOND's weights: {next(iter(rest))} is unknown")
    return converted


def _is_entry(name: object, value: object) -> bool:
    """Whether this is a name and a tensor of numbers as a state dict has them."""
    plain = isinstance(value, Tensor) and value.layout == torch.strided and not value.is_complex()
    return isinstance(name, str) and plain


def _sparse(state: dict[str, Tensor], config: Config, source: str | Path) -> dict[str, Tensor]:
    """Takes the sparse convolutions and their norms out of `state`."""
    channels, out_channels = config.model.encoder.channels, config.model.encoder.out_channels
    blocks: list[tuple[str, str, tuple[int, ...], int, int]]
    blocks = [("levels.0.0", "conv_input", KERNEL, config.points.width, channels[0])]
    blocks += [("levels.0.1", "conv1.0", KERNEL, channels[0], channels[0])]
    for level in range(1, 4):
        narrow, wide = channels[level - 1 : level + 1]
        blocks += [(f"downs.{level - 1}", f"conv{level + 1}.0", KERNEL, narrow, wide)]
        blocks += [
            (f"levels.{level}.{i}", f"conv{level + 1}.{i + 1}", KERNEL, wide, wide) for i in (0, 1)
        ]
    blocks += [("downs.3", "conv_out", DOWNS[-1].kernel_size, channels[-1], out_channels)]
    converted, layouts = {}, {}
    for ours, theirs, kernel, inputs, outputs in blocks:
        weight = state.pop(f"backbone_3d.{theirs}.0.weight")
        name = f"{source}: backbone_3d.{theirs}.0.weight"
        layouts[name] = layout = _layout(weight, kernel, inputs, outputs, name)
        converted[f"encoder.{ours}.weight"] = _kernel_major(weight, layout)
        converted |= _norm(state, f"encoder.{ours}", f"backbone_3d.{theirs}.1")
    if len(set(layouts.values())) > 1:
        raise ValueError(f"{source}: some layers have spconv 1's layout, some spconv 2's")
    return converted


def _layout(weight: Tensor, kernel: tuple[int, ...], inputs: int, outputs: int, name: str) -> int:
    """The spconv version (1 or 2) whose layout a weight has, told by its shape."""
    shapes = {1: (*kernel, inputs, outputs), 2: (outputs, *kernel, inputs)}
    fitting = [version for version, shape in shapes.items() if tuple(weight.shape) == shape]
    if not fitting:
        raise ValueError(
            f"{name} is {list(weight.shape)}, neither {list(shapes[2])} as of spconv 2 nor "
            f"{list(shapes[1])} as of spconv 1"
        )
    if len(fitting) > 1:
        raise ValueError(f"{name} is {list(weight.shape)}, which fits both layouts")
    return fitting[0]


def _kernel_major(weight: Tensor, version: int) -> Tensor:
    """[V, C_in, C_out]"""
    if version == 2:
        weight = weight.permute(1, 2, 3, 4, 0)
    return weight.reshape(math.prod(weight.shape[:3]), *weight.shape[3:])


def _dense(state: dict[str, Tensor], config: Config) -> dict[str, Tensor]:
    """Takes the bird's-eye-view backbone and the heads out of `state`."""
    converted = {}
    for b, layers in enumerate(config.model.bev.layers):
        convs = [
            (f"blocks.{b}.{i}", f"blocks.{b}.{3 * i + 1}", f"blocks.{b}.{3 * i + 2}")
            for i in range(layers + 1)
        ]
        convs += [(f"upsamples.{b}", f"deblocks.{b}.0", f"deblocks.{b}.1")]
        for ours, conv, norm in convs:
            weight = state.pop(f"backbone_2d.{conv}.weight")
            converted[f"backbone.{ours}.conv.weight"] = weight
            converted |= _norm(state, f"backbone.{ours}", f"backbone_2d.{norm}")
    first = converted[FIRST_OF_MAP]
    converted[FIRST_OF_MAP] = depth_first(first, config.bev_cells[0])
    for ours, theirs in (("classes", "cls"), ("boxes", "box"), ("directions", "dir_cls")):
        for part in ("weight", "bias"):
            converted[f"head.{ours}.{part}"] = state.pop(f"dense_head.conv_{theirs}.{part}")
    return converted


def _norm(state: dict[str, Tensor], ours: str, theirs: str) -> dict[str, Tensor]:
    parts = {f"{ours}.norm.{part}": state.pop(f"{theirs}.{part}") for part in NORM}
    return parts | {f"{ours}.norm.num_batches_tracked": torch.zeros(())}
