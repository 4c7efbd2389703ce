"""What detector/cpp reads from a network file, beside the same numbers from the raw weights."""

import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from millisecond.detector import network_file
from millisecond.detector.config import Config
from millisecond.detector.cuda_graph import capacities_of
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import find_weights, load_weights, restore
from millisecond.ops.anchors import DIRECTION_OFFSET, LARGEST_LOG_SIZE
from millisecond.ops.transfer import FEW, SCALES
from tests.cpp import network_arrays

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "detector" / "cpp"
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def arrays(output: bytes) -> list[np.ndarray]:
    found, at = [], 0
    while at < len(output):
        (count,) = struct.unpack_from("<q", output, at)
        found.append(np.frombuffer(output, "<u4", count, at + 8))
        at += 8 + 4 * count
    return found


def rounded(values: np.ndarray, precision: str) -> np.ndarray:
    return torch.from_numpy(values).to(DTYPES[precision]).float().numpy()


class Raw:
    """Raw weights as numpy's arrays, and the BatchNorms with which they are multiplied."""

    def __init__(self, state: dict[str, torch.Tensor]):
        self.values = {name: value.float().numpy() for name, value in state.items()}

    def norm(self, name: str) -> tuple[np.ndarray, ...]:
        """weight, bias, mean and 1 / sqrt(variance + eps)."""
        parts = "weight", "bias", "running_mean", "running_var"
        scale, shift, mean, variance = (self.values[f"{name}.norm.{part}"] for part in parts)
        return scale, shift, mean, np.float32(1) / np.sqrt(variance + np.float32(1e-3))

    def sparse(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        scale, shift, mean, inverse = self.norm(name)
        return self.values[f"{name}.weight"] * (scale * inverse), shift - mean * (scale * inverse)

    def bias(self, name: str, precision: str) -> np.ndarray:
        scale, shift, mean, inverse = self.norm(name)
        return rounded((0 - mean) * inverse * scale + shift, precision)

    def map(self, name: str, precision: str, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """A 3x3 convolution; of the first one the heights of a cell are rows, not channels."""
        given = self.values[f"{name}.conv.weight"]  # [C_out, depth * C_in, 3, 3]
        scale, _, _, inverse = self.norm(name)
        wide, narrow = len(given), given.shape[1] // depth
        weight = np.empty((9 * depth, narrow, wide), np.float32)
        for y, x, z in np.ndindex(3, 3, depth):
            part = given[:, z * narrow : (z + 1) * narrow, y, x] * (scale * inverse)[:, None]
            weight[(3 * y + x) * depth + z] = part.T
        return weight, self.bias(name, precision)

    def up(self, name: str, precision: str) -> tuple[np.ndarray, np.ndarray]:
        given = self.values[f"{name}.conv.weight"]  # [C_in, width, factor, factor]
        scale, _, _, inverse = self.norm(name)
        factor, width = given.shape[-1], given.shape[1]
        weight = np.empty((1, len(given), factor * factor * width), np.float32)
        for y, x in np.ndindex(factor, factor):
            first = (y * factor + x) * width
            weight[0, :, first : first + width] = given[:, :, y, x] * (scale * inverse)
        return weight, np.tile(self.bias(name, precision), factor * factor)

    def heads(self, widths: list[int], precision: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """All heads as one, filled up to whole panels: the part that reads each block."""
        names = ["classes", "boxes", "directions"]
        names += ["velocities"] * ("head.velocities.bias" in self.values)
        weight = np.concatenate([self.values[f"head.{name}.weight"] for name in names])[..., 0, 0]
        bias = np.concatenate([self.values[f"head.{name}.bias"] for name in names])
        filled, parts, first = -(-len(bias) // 128) * 128, [], 0
        for width in widths:
            part, once = np.zeros((1, width, filled), np.float32), np.zeros(filled, np.float32)
            part[0, :, : len(bias)] = weight[:, first : first + width].T
            if first == 0:
                once[: len(bias)] = rounded(bias, precision)
            parts.append((part, once))
            first += width
        return parts


def convolved(line: np.ndarray, window: tuple[int, int, int], weight: np.ndarray) -> np.ndarray:
    """An empty map along one axis: its values after a convolution, alike where they are equal."""
    size, stride, padding = window
    padded = np.pad(line, padding)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::stride]
    return (windows * weight[:size]).sum(1) + weight[-1]


def kinds_of(line: np.ndarray) -> tuple[list[int], list[int], int]:
    """Whether each position is the first of its kind, the number of its kind, and all kinds."""
    _, first, inverse = np.unique(line, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))  # by the first position
    return [int(i in first) for i in range(len(line))], number[inverse].tolist(), len(first)


def cell_plan(config: Config) -> Iterator[np.ndarray]:
    """Windows, capacities, kept maps and kinds."""
    _, height, width = config.bev_cells
    lines, random = [np.zeros(height), np.zeros(width)], np.random.default_rng(0)
    windows, capacities, kept, first, kind = [], [], [], [], []
    for layers, stride in zip(config.model.bev.layers, config.model.bev.strides, strict=True):
        for layer in range(1 + layers):
            windows.append((3, 1 if layer else stride, 1))
            weight = random.normal(size=4)
            lines = [convolved(line, windows[-1], weight) for line in lines]
            (first_y, kind_y, along_y), (first_x, kind_x, along_x) = map(kinds_of, lines)
            first += first_y + first_x
            kind += [number * along_x for number in kind_y] + kind_x
            capacities.append(len(lines[0]) * len(lines[1]) + along_y * along_x)
        kept.append(len(windows) - 1)
    yield from np.int32(windows)
    yield from map(np.int32, (capacities, kept, [first, kind]))


def spaced(start: float, end: float, count: int) -> np.ndarray:
    """From both ends to the middle, as torch computes them."""
    step, i = (end - start) / (count - 1), np.arange(count)
    return np.where(i < count // 2, start + step * i, end - step * (count - 1 - i))


def anchors(config: Config) -> np.ndarray:
    _, height, width = config.bev_cells
    x0, y0, _, x1, y1, _ = config.grid.range
    found = np.empty((height, width, len(config.classes), 2, 7))
    for number, one in enumerate(config.classes):
        found[:, :, number, :, 0] = spaced(x0, x1, width)[:, None]
        found[:, :, number, :, 1] = spaced(y0, y1, height)[:, None, None]
        found[:, :, number, :, 2:6] = one.bottom + one.size[2] / 2, *one.size
        found[:, :, number, :, 6] = 0, 1.57
    return found.astype(np.float32)


STEPS = (  # kernel, stride, padding
    ((3, 3, 3), (2, 2, 2), (1, 1, 1)),
    ((3, 3, 3), (2, 2, 2), (1, 1, 1)),
    ((3, 3, 3), (2, 2, 2), (0, 1, 1)),
    ((3, 1, 1), (2, 1, 1), (0, 0, 0)),
)


def expected(name: str | Path, precision: str) -> Iterator[np.ndarray]:
    """All numbers but the buckets, in the order of inspect.cpp."""
    config, state = load_weights(name)
    raw, grid, post = Raw(state), config.grid, config.postprocess
    for one in config.classes:
        yield np.int32(list(one.name.encode()))
    yield from (np.float32(grid.range), np.float32(grid.voxel_size))
    yield np.int32(
        [config.points.width, grid.max_points, grid.max_voxels_test, grid.level, grid.relative]
    )
    shape = np.array([config.grid.shape[0] + 1, *config.grid.shape[1:]])
    yield shape.astype(np.int32)
    for kernel, stride, padding in np.array(STEPS):
        shape = (shape + 2 * padding - kernel) // stride + 1
        yield shape.astype(np.int32)
    yield from (np.int32(part) for step in STEPS for part in step)

    def layer(weight: np.ndarray, bias: np.ndarray) -> Iterator[np.ndarray]:
        yield from (np.int32(weight.shape), weight, bias)

    for level in range(5):
        if level > 0:
            yield from layer(*raw.sparse(f"encoder.downs.{level - 1}"))
        for i in range(2 if level < 4 else 0):
            yield from layer(*raw.sparse(f"encoder.levels.{level}.{i}"))
    yield from cell_plan(config)
    bev, factor = config.model.bev, 1
    heads = raw.heads(list(bev.upsample_channels), precision)
    for block, (layers, stride) in enumerate(zip(bev.layers, bev.strides, strict=True)):
        for i in range(1 + layers):
            depth = int(shape[0]) if block == i == 0 else 1
            yield from layer(*raw.map(f"backbone.blocks.{block}.{i}", precision, depth))
        factor *= stride
        yield np.int32([factor])
        yield from layer(*raw.up(f"backbone.upsamples.{block}", precision))
        yield from layer(*heads[block])
    classes = len(config.classes)
    moving = [2] * config.model.velocity
    yield np.int32([2 * classes * values for values in (classes, 7, 2, *moving)])
    boxes = anchors(config)
    yield boxes
    yield np.float32([post.score, post.iou, DIRECTION_OFFSET, LARGEST_LOG_SIZE])
    yield np.int32([min(post.before_nms, boxes.size // 7), post.after_nms, post.per_class])


@needs_compiler
@pytest.mark.parametrize(
    ("name", "precision"),
    [("second", "fp16"), ("small", "fp32"), ("small", "bf16"), ("moving_weights", "fp16")],
)
def test_cpp_reads_the_folded_network_bit_for_bit(inspect, network_of, request, name, precision):
    path = find_weights(name) if name == "second" else request.getfixturevalue(name)
    result = inspect("network", network_of(path), precision)
    assert result.returncode == 0, result.stderr
    found = arrays(result.stdout)
    wanted = list(expected(path, precision))
    for number, (a, b) in enumerate(zip(found, wanted, strict=False)):
        assert np.array_equal(a, np.ascontiguousarray(b).ravel().view("<u4")), number
    config, _ = load_weights(path)
    buckets = [values.tolist() for values in found[len(wanted) :]]
    of_python = [[each.points, *each.rows] for each in capacities_of(build_second(config))]
    assert buckets[: len(of_python)] == of_python
    assert np.all(np.diff(buckets, axis=0) >= 0)
    assert buckets[-1][0] == 2**24


def test_the_last_bucket_holds_every_scan(network_of, small, tmp_path):
    """On a grid whose deeper levels fit the first bucket as a whole."""
    config, state = load_weights(small)
    config = replace(config, grid=replace(config.grid, range=(0, -1.6, -3, 3.2, 1.6, 1)))
    model = build_second(config)
    restore(model, state, small)
    network_file.write(tmp_path / "tiny.network", config, model)
    found = network_arrays.read(tmp_path / "tiny.network")
    cells = found["encoder.shapes"].prod(1)
    assert cells[0] == 26 * 32 * 32  # one empty layer on top of the grid
    assert found["buckets"][-1].tolist() == [2**24, *cells.tolist()]


@needs_compiler
def test_older_files_do_not_say_whether_scans_come_levelled(inspect, network, tmp_path):
    older = network_arrays.read(network)
    assert older.pop("grid.level").tolist() == [0]
    assert older.pop("grid.relative").tolist() == [0]
    path = network_arrays.write(tmp_path / "older.network", older)
    found, wanted = (inspect("network", each, "fp32") for each in (path, network))
    assert found.returncode == 0 and found.stdout == wanted.stdout


def test_a_written_file_has_no_gaps(network, tmp_path):
    """The documented layout reads all of it and gives the same bytes again."""
    again = network_arrays.write(tmp_path / "again.network", network_arrays.read(network))
    assert again.read_bytes() == network.read_bytes()


def test_constants_are_those_of_python():
    files = "encoder_stages.cpp", "operators.cpp"
    text = "".join((CPP / "src" / name).read_text() for name in files)
    (scales,) = re.findall(r"SCALES\[INTENSITY_SCALES\] = \{(.*)\}", text)
    assert tuple(map(float, scales.split(","))) == SCALES
    for name, value in {
        "FEW": FEW,
        "DIRECTION_OFFSET": DIRECTION_OFFSET,
        "LARGEST_LOG_SIZE": LARGEST_LOG_SIZE,
    }.items():
        (found,) = re.findall(rf"{name} = ([\d.]+)", text)
        assert float(found) == value, name
