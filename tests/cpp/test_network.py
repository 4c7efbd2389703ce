"""The parts of detector/cpp that need no GPU: files, configurations, folded weights, geometry."""

import json
import shutil
import struct
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from detector.anchors import build_anchors
from detector.buckets import buckets_of
from detector.config import PRECISIONS, load_config
from detector.inference import Inference
from detector.models.bev_rows import BevRows
from detector.models.second import build_second
from detector.weights import find_weights, load_weights, restore, save_weights

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "detector" / "cpp"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def inspect(tmp_path_factory):
    """Runs tests/cpp/inspect.cpp."""
    program = tmp_path_factory.mktemp("cpp") / "inspect"
    flags = ["-std=c++17", "-O0", "-ffp-contract=off", f"-I{CPP}", f"-I{CPP / 'include'}"]
    source = str(Path(__file__).with_name("inspect.cpp"))
    subprocess.run(["g++", *flags, source, "-o", str(program)], check=True)

    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, check=False)

    return run


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


@pytest.mark.parametrize(
    ("name", "precision"), [("second", "fp16"), ("second_small", "fp32"), ("second_small", "bf16")]
)
def test_folds_as_python_bit_for_bit(inspect, name, precision):
    result = inspect("network", find_weights(name), precision)
    assert result.returncode == 0, result.stderr
    found = arrays(result.stdout)
    wanted = [tensor.detach().contiguous().numpy().ravel() for tensor in expected(name, precision)]
    assert len(found) >= len(wanted)
    for number, (a, b) in enumerate(zip(found, wanted, strict=False)):
        assert np.array_equal(a, b.view("<u4")), number
