"""The parts of detector/cpp that need no GPU: configurations, folded weights, geometry."""

import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from detector import tensor_file
from detector.anchors import build_anchors
from detector.buckets import buckets_of
from detector.inference import Inference
from detector.models.bev_rows import BevRows
from detector.models.second import build_second
from detector.weights import find_weights, load_weights, restore
from ops.box_coder import DIRECTION_OFFSET, LARGEST_LOG_SIZE
from ops.reference.load_points import FEW, SCALES

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "detector" / "cpp"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def arrays(output: bytes) -> list[np.ndarray]:
    found, at = [], 0
    while at < len(output):
        (count,) = struct.unpack_from("<q", output, at)
        found.append(np.frombuffer(output, "<u4", count, at + 8))
        at += 8 + 4 * count
    return found


def expected(name: str, precision: str) -> list[torch.Tensor]:
    """The same numbers from the Python detector; weights as they are before their last cast."""
    config, state = load_weights(name)
    model = build_second(config)
    restore(model, state, name)
    exact = model.fold()
    cast = Inference(model, config, torch.device("cpu"), precision).model
    numbers: list[torch.Tensor] = []
    chain = exact.encoder.chain
    for i in range(chain.count):
        numbers += [getattr(chain, f"weight_{i}"), getattr(cast.encoder.chain, f"bias_{i}")]
    rows, cast_rows = BevRows.of(exact), BevRows.of(cast)
    weight, bias = exact.head.joined()
    pieces = weight.flatten(1).T.split(rows._widths)
    for block, ((_, layers), (_, up)) in enumerate(zip(rows._blocks, rows._upsamples, strict=True)):
        for i in range(layers.count):
            biases = cast_rows._blocks[block][1]
            numbers += [getattr(layers, f"weight_{i}"), getattr(biases, f"bias_{i}")]
        numbers += [up.weight_0, cast_rows._upsamples[block][1].bias_0]
        room = (0, -len(bias) % 128)
        once = cast.head.joined()[1].float() if block == 0 else torch.zeros_like(bias)
        numbers += [torch.nn.functional.pad(values, room) for values in (pieces[block], once)]
    numbers.append(build_anchors(config))
    z, y, x = config.bev_cells
    plan = rows.plan(_Level((z, y, x)))
    lines = plan.alike[1:].clone()
    numbers.append(lines)
    cells = [h * w + kinds for (h, w), kinds in zip(plan.shapes, plan.kinds, strict=True)]
    numbers += [torch.tensor(cells, dtype=torch.int32), torch.tensor(plan.kept, dtype=torch.int32)]
    buckets = buckets_of(exact)
    numbers += [torch.tensor([b.points, *b.rows], dtype=torch.int32) for b in buckets]
    return numbers


class _Level:
    """As much of a level as a plan asks for."""

    def __init__(self, spatial_shape):
        self.spatial_shape, self.coords = spatial_shape, torch.zeros(0, 4, dtype=torch.int32)


@pytest.mark.parametrize(("name", "precision"), [("second", "fp16"), ("", "fp32"), ("", "bf16")])
def test_folds_as_python_bit_for_bit(inspect, small, name, precision):
    path = find_weights(name) if name else small
    result = inspect("network", path, precision)
    assert result.returncode == 0, result.stderr
    found = arrays(result.stdout)
    wanted = [tensor.detach().contiguous().numpy().ravel() for tensor in expected(path, precision)]
    assert len(found) >= len(wanted)
    for number, (a, b) in enumerate(zip(found, wanted, strict=False)):
        assert np.array_equal(a, b.view("<u4")), number


def test_the_last_bucket_holds_every_voxel(inspect, small, tmp_path):
    """On a grid whose deeper levels fit the first bucket as a whole."""
    config, state = load_weights(small)
    config = replace(config, grid=replace(config.grid, range=(0, -1.6, -3, 3.2, 1.6, 1)))
    texts = {"format": "millisecond weights 3", "config": config.to_yaml()}
    tensor_file.write(tmp_path / "tiny.safetensors", state, texts)
    result = inspect("network", tmp_path / "tiny.safetensors", "fp32")
    assert result.returncode == 0, result.stderr
    buckets = buckets_of(build_second(config))
    assert len(buckets) > 1
    last = [values.tolist() for values in arrays(result.stdout)][-len(buckets) :]
    assert last == [[bucket.points, *bucket.rows] for bucket in buckets]
    assert last[-1][1] == 26 * 32 * 32  # one empty layer on top of the grid


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_the_header_is_plain_c():
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    subprocess.run([*command, CPP / "include" / "millisecond.h"], check=True)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_all_of_it_agrees_with_the_engine(tmp_path):
    together = tmp_path / "all.cpp"  # headers are read once
    sources = [*sorted((CPP / "src").glob("*.cpp")), ROOT / "examples" / "detect.cpp"]
    together.write_text("".join(f'#include "{source}"\n' for source in sources))
    folders = [CPP / "src", CPP / "include", ROOT / "ops" / "csrc"]
    warnings = "-Wall,-Wextra,-Wno-missing-field-initializers,-Werror,-fsyntax-only"
    command = ["nvcc", "-std=c++17", "-Xcompiler", warnings, *(f"-I{path}" for path in folders)]
    result = subprocess.run([*command, "-c", together, "-o", tmp_path / "all.o"], stderr=-1)
    assert result.returncode == 0, result.stderr.decode()


def test_constants_are_those_of_python():
    files = "encoder_stages.cpp", "box_constants.h"
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
