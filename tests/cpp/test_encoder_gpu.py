"""ms_encode: the bird's-eye-view map of Python's encoder, on a stream and in a CUDA graph."""

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np
import pytest
import torch

from millisecond.detector.config import PRECISIONS
from millisecond.detector.inference import Inference
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import find_weights, load_weights, restore
from millisecond.ops.transfer import clamp_intensity
from millisecond.tools.export import TYPES
from tests.cpp.structures import EncoderInfo, at, on_stream
from tests.helpers.small_detector import cloud

pytestmark = pytest.mark.gpu


class Encoder:
    """ms_encoder on torch's tensors."""

    def __init__(self, library, network, precision, points):
        self._library, self._handle, self.info = library, c_void_p(), EncoderInfo()
        path = str(network).encode()
        library("ms_encoder_describe", path, ctypes.byref(self.info))
        handle = ctypes.byref(self._handle)
        library("ms_encoder_open", path, TYPES[precision], 0, c_int64(points), handle)
        self.type = PRECISIONS[precision]

    def __call__(self, points, count=None, channels_last=False):
        """points [P, C] on the GPU -> the map [1, C, Y, X] and the report's numbers, both there."""
        info = self.info
        shape = info.channels, info.height, info.width
        order = (1, shape[1], shape[2], shape[0]) if channels_last else (1, *shape)
        found = torch.full(order, torch.nan, dtype=self.type, device="cuda")
        report = torch.full((8,), -1, dtype=torch.int32, device="cuda")
        self._library(
            "ms_encode", self._handle, at(points), at(count), int(channels_last), at(found),
            at(report), on_stream(),
        )  # fmt: skip
        return found.permute(0, 3, 1, 2) if channels_last else found, report

    def close(self):
        self._library.functions.ms_encoder_close.argtypes = [c_void_p]
        self._library.functions.ms_encoder_close(self._handle)


def of_python(weights, precision, points):
    """The map and the rows of each level."""
    config, state = load_weights(weights)
    model = build_second(config)
    restore(model, state, str(weights))
    model = Inference(model, config, torch.device("cuda"), precision).model
    with torch.inference_mode():
        offsets = torch.tensor([0, len(points)], dtype=torch.int32, device="cuda")
        voxels = model.voxelize(clamp_intensity(torch.from_numpy(points)).cuda(), offsets)
        pyramid = model.index(voxels)
        rows = [len(level.coords) for level in pyramid.levels]
        return model.encode(voxels, pyramid), rows


@pytest.mark.parametrize("precision", ["fp16", "fp32", "bf16"])
@pytest.mark.parametrize("name", ["small", "second"])
def test_the_map_of_python_bit_for_bit(library, weights, network_of, precision, name):
    path = weights if name == "small" else find_weights(name)
    points = cloud(12_000, seed=2)
    points[:, :3] *= 0.2  # as dense as a scan: every level has room for its sites
    points[5::100, 2] = np.nan
    points[:3, 3] = 1e5  # an intensity that is clamped
    wanted, rows = of_python(path, precision, points)
    encoder = Encoder(library, network_of(path), precision, 20_000)
    assert wanted.shape == (1, encoder.info.channels, encoder.info.height, encoder.info.width)
    room = torch.full((20_000, 4), 7.0, device="cuda")  # behind the count there is anything
    room[:12_000] = torch.from_numpy(points)
    count = torch.tensor([12_000], dtype=torch.int32, device="cuda")
    for channels_last in (False, True, False):
        found, report = encoder(room, count, channels_last)
        assert torch.equal(found, wanted)
        assert report.tolist() == [*rows, 0, 120, 0]
    encoder.close()


def test_without_a_count_all_points_are_there(library, weights, network):
    points = cloud(5_000, seed=4)
    wanted, rows = of_python(weights, "fp16", points)
    encoder = Encoder(library, network, "fp16", 5_000)
    found, report = encoder(torch.from_numpy(points).cuda())
    assert torch.equal(found, wanted)
    assert report.tolist() == [*rows, 0, 0, 0]
    none = torch.zeros(1, dtype=torch.int32, device="cuda")
    found, report = encoder(torch.from_numpy(points).cuda(), none)
    assert (found.abs().sum().item(), report.tolist()) == (0, [0] * 8)
    encoder.close()


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_graph_of_it_takes_other_points(library, weights, network, channels_last):
    encoder = Encoder(library, network, "fp16", 6_000)
    points = torch.zeros(6_000, 4, device="cuda")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found, report = encoder(points, count, channels_last)
    for seed, size in ((1, 6_000), (2, 100), (3, 3_000)):
        scan = cloud(size, seed=seed)
        points[:size], count[0] = torch.from_numpy(scan), size
        graph.replay()
        wanted, rows = of_python(weights, "fp16", scan)
        assert torch.equal(found, wanted)
        assert report.tolist() == [*rows, 0, 0, 0]
    encoder.close()


def test_a_level_without_room_is_reported(library, weights, network):
    """30,000 points far from each other: the second level has more sites than LiDARs give."""
    points = cloud(30_000, seed=9)
    _, rows = of_python(weights, "fp16", points)
    assert rows[1] > 48_000
    encoder = Encoder(library, network, "fp16", 30_000)
    _, report = encoder(torch.from_numpy(points).cuda())
    assert report[5] != 0
    few = cloud(3_000, seed=10)
    wanted, rows = of_python(weights, "fp16", few)
    count = torch.tensor([3_000], dtype=torch.int32, device="cuda")
    points[:3_000] = few
    found, report = encoder(torch.from_numpy(points).cuda(), count)
    assert torch.equal(found, wanted)
    assert report.tolist() == [*rows, 0, 0, 0]
    encoder.close()


def test_mistakes_are_told(library, network, tmp_path):
    none = str(tmp_path / "none.network").encode()
    with pytest.raises(OSError, match=r"none\.network: cannot be opened"):
        library("ms_encoder_describe", none, ctypes.byref(EncoderInfo()))
    with pytest.raises(OSError, match="points: 0 is not from 1 to 16777216"):
        Encoder(library, network, "fp16", 0)
    path, handle = str(network).encode(), ctypes.byref(c_void_p())
    with pytest.raises(OSError, match="precision: 7 is not an ms_type"):
        library("ms_encoder_open", path, 7, 0, c_int64(10), handle)
    with pytest.raises(OSError, match="device 99 is not there"):
        library("ms_encoder_open", path, 1, 99, c_int64(10), handle)
    encoder = Encoder(library, network, "fp16", 100)
    points = torch.zeros(101, 4, device="cuda")
    with pytest.raises(OSError, match="points: must start at a multiple of 16 bytes"):
        encoder(points.view(-1)[1:401])
    with pytest.raises(OSError, match="points, map or report: is null"):
        encoder(None)
    encoder.close()
