"""libmillisecond on a GPU, through its C header: the same boxes as the Python detector."""

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from detector import Detector
from detector.weights import save_weights
from ops import ConvGeometry, sparse_conv, strided_map, submanifold_map, voxelize
from ops.boxes import iou_bev, nms
from ops.cuda.library import cache_folder
from ops.furthest_point_sampling import furthest_point_sampling
from ops.point_features import group_points
from ops.point_neighbours import ball_query, three_nearest
from ops.voxelize import VoxelGrid
from tests.cpp.dlpack import address
from tests.helpers.small_detector import build_small_network, cloud
from tools.exporting.library import CppDetector, Library

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def library():
    """The library of MILLISECOND_LIBRARY, or one that is built and kept in torch's cache."""
    if path := os.environ.get("MILLISECOND_LIBRARY"):
        return Library(path)
    if shutil.which("cmake") is None or shutil.which("nvcc") is None:
        pytest.skip("no cmake or no nvcc")
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]
    build = cache_folder().parent / f"millisecond_cpp_{checkout}"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    source = str(ROOT / "detector" / "cpp")
    build.mkdir(parents=True, exist_ok=True)
    with open(build / "test.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        subprocess.run(["cmake", *generator, "-S", source, "-B", str(build)], check=True)
        subprocess.run(["cmake", "--build", str(build), "-j"], check=True)
    return Library(build / "libmillisecond.so")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    config, model = build_small_network()
    path = tmp_path_factory.mktemp("cpp") / "small.safetensors"
    save_weights(path, model, config)
    return path


def clouds() -> dict[str, np.ndarray]:
    broken = cloud(4_000, seed=5)
    broken[::7, 1] = np.nan
    wild = cloud(4_000, seed=6)
    wild[:3, 3] = 1e5
    everywhere = {"a": cloud(3_000), "b": cloud(12_000, seed=2), "larger": cloud(60_000, seed=3)}
    beyond = {"beyond all buckets of Python": cloud(400_000, seed=4)}
    return {**everywhere, "none": cloud(0), "broken": broken, "wild": wild, **beyond}


@pytest.mark.parametrize("precision", ["fp16", "fp32", "bf16"])
def test_finds_the_boxes_of_python_bit_for_bit(library, weights, precision, monkeypatch):
    python = Detector.from_weights(weights, "cuda", precision)
    # Python takes cuDNN's dense network in fp32, which no other library has: here its own rows
    monkeypatch.setattr(python._inference, "_on_cells", True)
    cpp = CppDetector(library, weights, precision)
    assert cpp.class_names() == list(python.config.class_names)
    for name, points in clouds().items():
        wanted, _ = python.detect(points)
        boxes, scores, labels = cpp(points)
        assert len(boxes) == len(wanted.boxes), name
        assert np.array_equal(boxes.view(np.uint32), wanted.boxes.numpy().view(np.uint32)), name
        assert np.array_equal(scores, wanted.scores.numpy()), name
        assert np.array_equal(labels, wanted.labels.numpy()), name
    assert len(cpp(clouds()["b"])[0]) > 5
    cpp(clouds()["broken"])
    assert cpp.left_out.not_finite == len(range(0, 4_000, 7))
    cpp.close()


def test_calls_from_several_threads(library, weights):
    cpp, points = CppDetector(library, weights), [cloud(2_000 + 50 * i, seed=i) for i in range(8)]
    wanted = [cpp(scan) for scan in points]

    def one(number):
        own = CppDetector.__new__(CppDetector)  # the same handle, with results of its own
        own.__dict__ = dict(cpp.__dict__)
        own.allocate()
        stream = torch.cuda.Stream()
        for _ in range(20):
            own.detect(points[number].ctypes.data, len(points[number]), stream.cuda_stream)
            assert all(
                np.array_equal(*pair) for pair in zip(own.found(), wanted[number], strict=True)
            )
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(8)))
    cpp.close()


def test_mistakes_are_told(library, weights, tmp_path):
    with pytest.raises(OSError, match="cannot be opened"):
        CppDetector(library, tmp_path / "none.safetensors")
    with pytest.raises(OSError, match="null"):
        library("ms_detect", None, None, 0, None, None, None, 0, None, None, None)
    cpp, points, found = CppDetector(library, weights), cloud(12_000, seed=2), ctypes.c_int64()
    everything, _, _ = cpp(points)
    few = np.zeros((3, 7), np.float32)
    out = few.ctypes.data, None, None, 3, ctypes.byref(found), None, None
    with pytest.raises(OSError, match="room for 3"):
        library("ms_detect", cpp._handle, points.ctypes.data, len(points), *out)
    assert found.value == len(everything)
    assert np.array_equal(few, everything[:3])
    with pytest.raises(OSError, match="negative"):
        library("ms_detect", cpp._handle, points.ctypes.data, -1, *out)
    with pytest.raises(OSError, match="16777217 are too many; a scan has at most 16777216"):
        library("ms_detect", cpp._handle, points.ctypes.data, 2**24 + 1, *out)
    with pytest.raises(OSError, match="16777217 are too many"):
        library("ms_detector_warm_up", cpp._handle, 2**24 + 1, None)
    cpp.close()


def test_detects_in_arrays_of_jax(library, weights, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    cpp, points = CppDetector(library, weights), cloud(12_000, seed=2)
    wanted = cpp(points)
    array = jax.block_until_ready(jax.numpy.asarray(points) * 1.0)
    cpp.detect(address(array), len(points))
    assert len(wanted[0]) > 5
    assert all(np.array_equal(a, b) for a, b in zip(cpp.found(), wanted, strict=True))
    cpp.close()


GRID = VoxelGrid((0.0, -20.0, -2.0, 40.0, 20.0, 1.0), (0.2, 0.2, 0.2))


class _Grid(ctypes.Structure):
    _fields_ = (
        ("lower", ctypes.c_float * 3),
        ("size", ctypes.c_float * 3),
        ("shape", ctypes.c_int32 * 3),
    )


class _Window(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int32 * 3) for name in ("kernel", "stride", "padding", "dilation")
    )


class _Table(ctypes.Structure):
    _fields_ = (
        ("neighbours", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("volume", ctypes.c_int32),
        ("flipped", ctypes.c_int32),
    )


def pointer(array) -> ctypes.c_void_p:
    return ctypes.c_void_p(address(array))


def integer(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def test_operators_on_arrays_of_cupy(library):
    """Voxels, two kernel maps and two convolutions on a stream of CuPy, as torch's wrappers."""
    cupy = pytest.importorskip("cupy")
    points, capacity = cloud(12_000, seed=7), 80_000
    shape = (ctypes.c_int32 * 3)(*GRID.shape)
    three = lambda n: (ctypes.c_int32 * 3)(n, n, n)  # noqa: E731
    with cupy.cuda.Stream(non_blocking=True) as stream:
        on = ctypes.c_void_p(stream.ptr)
        given = cupy.asarray(points)
        offsets = cupy.asarray([0, len(points)], dtype=cupy.int32)
        features = cupy.empty((len(points), 4), cupy.float32)
        coords = cupy.empty((len(points), 4), cupy.int32)
        found, dropped = cupy.empty(1, cupy.int32), cupy.empty(2, cupy.int64)
        low, size = (
            (ctypes.c_float * 3)(*GRID.point_range[:3]),
            (ctypes.c_float * 3)(*GRID.voxel_size),
        )
        library(
            "ms_voxelize", pointer(given), pointer(offsets), integer(len(points)), 4, 1,
            ctypes.byref(_Grid(low, size, shape)), 5, 40_000, integer(len(points)),
            pointer(features), pointer(coords), pointer(found), pointer(dropped), on,
        )  # fmt: skip
        rows = int(found.get()[0])
        same = cupy.empty((27, rows), cupy.int32)
        state = cupy.empty(4, cupy.int32)
        library(
            "ms_submanifold_map", pointer(coords), None, integer(rows), 1, shape, three(3),
            three(1), pointer(same), pointer(state), on,
        )  # fmt: skip
        weight = cupy.random.default_rng(0).random((27, 4, 16), dtype=cupy.float32) - 0.5
        middle = cupy.empty((rows, 16), cupy.float32)
        table = _Table(address(same), None, rows, 27, 0)
        library(
            "ms_sparse_conv", 0, pointer(features), 4, pointer(weight), 0, 16,
            ctypes.byref(table), None, None, 1, pointer(middle), on,
        )  # fmt: skip
        window = _Window(three(3), three(2), three(1), three(1))
        down = cupy.empty((27, capacity), cupy.int32)
        sites = cupy.empty((capacity, 4), cupy.int32)
        library(
            "ms_strided_map", pointer(coords), None, integer(rows), 1, shape,
            ctypes.byref(window), integer(capacity), pointer(sites), pointer(down),
            pointer(state), on,
        )  # fmt: skip
        wide = cupy.random.default_rng(1).random((27, 16, 32), dtype=cupy.float32) - 0.5
        out = cupy.empty((capacity, 32), cupy.float32)
        table = _Table(address(down), address(state) + 4, capacity, 27, 0)
        library(
            "ms_sparse_conv", 0, pointer(middle), 16, pointer(wide), 0, 32,
            ctypes.byref(table), None, None, 0, pointer(out), on,
        )  # fmt: skip
        stream.synchronize()
        outputs, fault = int(state.get()[1]), int(state.get()[2])

    tensor = torch.from_numpy(points).cuda()
    starts = torch.tensor([0, len(points)], dtype=torch.int32, device="cuda")
    voxels = voxelize(tensor, starts, GRID)
    around = submanifold_map(voxels.coords, GRID.shape, 1)
    geometry = ConvGeometry.of(3, 2, 1)
    level, _, strided = strided_map(voxels.coords, GRID.shape, 1, geometry)
    first = torch.relu(sparse_conv(voxels.features, torch.from_dlpack(weight), around))
    second = sparse_conv(first, torch.from_dlpack(wide), strided)
    assert (rows, outputs, fault) == (len(voxels.coords), len(level), 0)
    assert torch.equal(torch.from_dlpack(coords)[:rows], voxels.coords)
    assert torch.equal(torch.from_dlpack(features)[:rows], voxels.features)
    assert torch.equal(torch.from_dlpack(sites)[:outputs], level)
    assert torch.equal(torch.from_dlpack(middle), first)
    assert torch.equal(torch.from_dlpack(out)[:outputs], second)


def test_operators_on_points_and_boxes_of_cupy(library):
    """One after another on a stream of CuPy, as torch's wrappers."""
    cupy = pytest.importorskip("cupy")
    generator = np.random.default_rng(8)
    scan = np.ascontiguousarray(cloud(3_000, seed=8)[None, :, :3])
    wanted = generator.uniform(-20, 20, (1, 200, 3)).astype(np.float32)
    sides = generator.uniform(1, 4, (300, 3)), generator.uniform(-3, 3, (300, 1))
    around = np.hstack([generator.uniform(-8, 8, (300, 3)), *sides]).astype(np.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        on = ctypes.c_void_p(stream.ptr)
        points, queries, boxes = (cupy.asarray(values) for values in (scan, wanted, around))
        rows, near = cupy.empty((1, 200, 8), cupy.int64), cupy.empty((1, 200, 3), cupy.int64)
        squared, chosen = cupy.empty((1, 200, 3), cupy.float32), cupy.empty((1, 64), cupy.int64)
        ball = 1, 3_000, pointer(queries), 200, ctypes.c_float(2.0), 8, pointer(rows), on
        library("ms_ball_query", pointer(points), *ball)
        found = pointer(queries), 200, pointer(near), pointer(squared), on
        library("ms_three_nearest", pointer(points), 1, 3_000, *found)
        start = cupy.zeros(1, cupy.int64)
        library(
            "ms_furthest_points", pointer(points), pointer(start), 1, 3_000, 64, pointer(chosen), on
        )
        grouped = cupy.empty((1, 1600, 3), cupy.float32)
        taken = pointer(rows), 1600, pointer(grouped), on
        library("ms_group_points", 0, pointer(points), 1, 3_000, 3, *taken)
        overlaps, kept = cupy.empty((300, 300), cupy.float32), cupy.empty(1, cupy.int32)
        both = pointer(boxes), integer(300), pointer(boxes), integer(300)
        library("ms_overlap", *both, 1, pointer(overlaps), on)
        best = cupy.empty(50, cupy.int64)
        limits = integer(300), ctypes.c_float(0.1), 50, pointer(best), pointer(kept), on
        library("ms_nms", pointer(boxes), None, None, None, *limits)
        stream.synchronize()

    cuda = [torch.from_numpy(values).cuda() for values in (scan, wanted, around)]
    assert torch.equal(torch.from_dlpack(rows), ball_query(cuda[0], cuda[1], 2.0, 8))
    nearest = three_nearest(cuda[0], cuda[1])
    assert torch.equal(torch.from_dlpack(near), nearest[0])
    sampled = furthest_point_sampling(cuda[0], 64)
    assert torch.equal(torch.from_dlpack(chosen), sampled)
    expected = group_points(cuda[0], torch.from_dlpack(rows)).reshape(1, 1600, 3)
    assert torch.equal(torch.from_dlpack(grouped), expected)
    assert torch.equal(torch.from_dlpack(overlaps), iou_bev(cuda[2], cuda[2]))
    scores = torch.linspace(1, 0.5, 300, device="cuda")
    chosen_boxes = nms(cuda[2], scores, 0.1, 50)
    count = int(kept.get()[0])
    assert count == int(chosen_boxes.count[0]) > 5
    assert torch.equal(torch.from_dlpack(best)[:count], chosen_boxes.indices[:count])
