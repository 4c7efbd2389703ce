"""The parts of detector/cpp that need no GPU: files, configurations, folded weights, geometry."""

import json
import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.point_columns import KITTI, PointColumns
from detector import tensor_file
from detector.anchors import build_anchors
from detector.buckets import buckets_of
from detector.config import load_config
from detector.inference import Inference
from detector.models.bev_rows import BevRows
from detector.models.second import build_second
from detector.weights import FIRST_OF_MAP, find_weights, load_weights, restore, save_weights
from ops.box_coder import DIRECTION_OFFSET, LARGEST_LOG_SIZE
from ops.reference.load_points import FEW, SCALES

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "detector" / "cpp"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def inspect(tmp_path_factory):
    """Runs tests/cpp/inspect.cpp."""
    program = tmp_path_factory.mktemp("cpp") / "inspect"
    flags = ["-std=c++17", "-O0", "-ffp-contract=off", f"-I{CPP / 'src'}", f"-I{CPP / 'include'}"]
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


SMALL = (
    "model.encoder.channels=[4, 8, 16, 8]",
    "model.encoder.out_channels=16",
    "model.bev.layers=[1, 2]",
    "model.bev.channels=[8, 16]",
    "model.bev.strides=[2, 2]",
    "model.bev.upsample_channels=[16, 8]",
)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Weights of a small network whose numbers are all different, with a fifth feature."""
    torch.manual_seed(1)
    config = load_config(ROOT / "configs" / "second_small.yaml", SMALL)
    config = replace(config, points=PointColumns((*KITTI, "ring"), (*KITTI, "ring")))
    model = build_second(config)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + (0.1 if name.endswith("var") else -0.5))
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_weights(path, model, config)
    return path


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


def stored(path: Path, header: dict, data: bytes = b"", size: int | None = None) -> Path:
    """A safetensors file byte by byte; size: what it says of its header."""
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return path


def entry(offsets=(0, 4), shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "data", "size", "fault"),
    [
        (b"", b"", None, "its header of 0 bytes"),
        (b"{}", b"", 1 << 60, "does not fit its 10"),
        (b"{}", b"", 3, "does not fit its 10"),
        (b'{"a": ', b"", None, "line 1"),
        (b'{"a": 1, "a": 2}', b"", None, "the key a stands twice"),
        (b"[" * 1000, b"", None, "nested too deeply"),
        (b'{"a": "\\ud8', b"", None, "a wrong escape"),
        ({"a": entry()}, b"abc", None, "a does not lie where"),
        ({"a": entry((0, 8))}, b"12345678", None, "a does not lie where"),
        ({"a": entry((4, 0))}, b"1234", None, "a does not lie where"),
        ({"a": entry((-4, 0))}, b"1234", None, "a does not lie where"),
        ({"a": entry(shape=(1 << 62, 4))}, b"1234", None, "an impossible shape"),
        ({"a": entry(shape=(-1,))}, b"1234", None, "an impossible shape"),
        ({"a": entry(shape=(0.5,))}, b"1234", None, "an impossible shape"),
        ({"a": entry(dtype="F12")}, b"1234", None, "the unknown type F12"),
        ({"a": entry(), "b": entry()}, b"1234", None, "overlap or leave gaps"),
        ({"a": entry()}, b"12345", None, "1 bytes more"),
        ({"a": entry()}, b"1234", None, "not weights of this program"),
    ],
)
def test_files_that_lie_are_refused_with_what_is_wrong(
    inspect, tmp_path, header, data, size, fault
):
    path = stored(tmp_path / "wrong.safetensors", header, data, size)
    result = inspect("network", path, "fp32")
    assert result.returncode == 1
    assert fault in result.stderr.decode()
    assert str(path) in result.stderr.decode()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda state: state.pop("head.boxes.bias"), "head.boxes.bias is missing"),
        (lambda state: state.update(more=torch.ones(1)), "more is unknown"),
        (lambda state: state["head.boxes.bias"].fill_(torch.nan), "head.boxes.bias are not finite"),
        (
            lambda state: state["encoder.downs.0.norm.running_var"].neg_(),
            "encoder.downs.0.norm.running_var has a negative variance",
        ),
        (
            lambda state: state.update({"head.boxes.bias": torch.ones(3)}),
            "head.boxes.bias is [3] instead of [14]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(inspect, small, tmp_path, change, fault):
    config, state = load_weights(small)
    change(state)
    texts = {"format": "millisecond weights 3", "config": config.to_yaml()}
    tensor_file.write(tmp_path / "wrong.safetensors", state, texts)
    path = tmp_path / "wrong.safetensors"
    result = inspect("network", path, "fp32")
    told = result.stderr.decode()
    assert (result.returncode, fault in told, str(path) in told) == (1, True, True), told


def test_older_files_are_read_and_changed_ones_refused(inspect, small, tmp_path):
    config, state = load_weights(small)
    weight, depth = state[FIRST_OF_MAP], config.bev_cells[0]
    state[FIRST_OF_MAP] = weight.unflatten(1, (depth, -1)).transpose(1, 2).flatten(1, 2)
    texts = {"format": "millisecond weights 2", "config": config.to_yaml()}
    tensor_file.write(tmp_path / "older.safetensors", state, texts)
    results = [inspect("network", path, "fp32") for path in (small, tmp_path / "older.safetensors")]
    assert results[0].returncode == 0
    assert results[0].stdout == results[1].stdout

    changed = bytearray(small.read_bytes())
    changed[-5] ^= 1
    (tmp_path / "changed.safetensors").write_bytes(changed)
    result = inspect("network", tmp_path / "changed.safetensors", "fp32")
    assert (result.returncode, b"its checksum differs" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("score: 0.1", "score: 2.0", "postprocess.score: is not between 0 and 1"),
        ("max_points: 5", "max_points: five", "grid.max_points: is no number"),
        ("layers: [1, 2]", "layers: [1, 2", "expected , or ]"),
        ("grid:", "gird:", "grid.range: is missing"),
        ("voxel_size: [0.1,", "voxel_size: [0.7,", "it is no whole number of voxels"),
        ("strides: [2, 2]", "strides: [536870912, 1]", "model.bev.strides: 536870912 is no whole"),
        ("layers: [1, 2]", "layers: [1, 1000000000]", "model.bev.layers: 1000000000 is no whole"),
        ("out_channels: 16", "out_channels: 1000000000", "model.encoder.out_channels: 1000000000"),
    ],
)
def test_configurations_that_are_wrong_are_refused(inspect, small, tmp_path, old, new, fault):
    config, state = load_weights(small)
    text = config.to_yaml()
    assert old in text
    texts = {"format": "millisecond weights 3", "config": text.replace(old, new)}
    tensor_file.write(tmp_path / "wrong.safetensors", state, texts)
    result = inspect("network", tmp_path / "wrong.safetensors", "fp32")
    assert (result.returncode, fault in result.stderr.decode()) == (1, True), result.stderr


def test_damaged_files_never_crash(inspect, small, tmp_path):
    state = {"a": torch.ones(2), "b": torch.ones(3)}
    tensor_file.write(tmp_path / "few.safetensors", state, {"format": "millisecond weights 1"})
    assert inspect("fuzz", tmp_path / "few.safetensors", 500).returncode == 0
    assert inspect("fuzz", small, 10).returncode == 0


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
