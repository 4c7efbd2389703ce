"""The detector of libmillisecond on a GPU, through its C header: the same boxes as Python's."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from millisecond.detector import Detector
from millisecond.tools.export import CppDetector
from tests.cpp.dlpack import address
from tests.cpp.structures import Scans
from tests.helpers.small_detector import cloud

pytestmark = pytest.mark.gpu


def clouds() -> dict[str, np.ndarray]:
    broken = cloud(4_000, seed=5)
    broken[::7, 1] = np.nan
    wild = cloud(4_000, seed=6)
    wild[:3, 3] = 1e5
    everywhere = {"a": cloud(3_000), "b": cloud(12_000, seed=2), "larger": cloud(60_000, seed=3)}
    beyond = {"beyond all buckets of Python": cloud(400_000, seed=4)}
    return {**everywhere, "none": cloud(0), "broken": broken, "wild": wild, **beyond}


@pytest.mark.parametrize("precision", ["fp16", "fp32", "bf16"])
def test_finds_the_boxes_of_python_bit_for_bit(library, weights, network, precision, monkeypatch):
    python = Detector.from_weights(weights, "cuda", precision)
    # Python takes cuDNN's dense network in fp32, which no other library has: here its own rows
    monkeypatch.setattr(python._inference, "on_cells", True)
    cpp = CppDetector(library, network, precision)
    name_of = library.functions.ms_detector_class
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int32]
    names = [name_of(cpp._handle, label + 1).decode() for label in range(cpp.info.classes)]
    assert names == list(python.config.class_names)
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


def test_calls_from_several_threads(library, network):
    cpp, points = CppDetector(library, network), [cloud(2_000 + 50 * i, seed=i) for i in range(8)]
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


def test_mistakes_are_told(library, network, tmp_path):
    with pytest.raises(OSError, match="cannot be opened"):
        CppDetector(library, tmp_path / "none.network")
    with pytest.raises(OSError, match="null"):
        library("ms_detect", None, None, 0, None, None, None, 0, None, None, None)
    cpp, points, found = CppDetector(library, network), cloud(12_000, seed=2), ctypes.c_int64()
    everything, _, _ = cpp(points)
    few = np.zeros((3, 7), np.float32)
    out = few.ctypes.data, None, None, 3, ctypes.byref(found), None, None
    with pytest.raises(OSError, match="room for 3"):
        library("ms_detect", cpp._handle, points.ctypes.data, len(points), *out)
    assert found.value == len(everything)
    assert np.array_equal(few, everything[:3])
    with pytest.raises(OSError, match="count: -1 is not from 0 to 16777216"):
        library("ms_detect", cpp._handle, points.ctypes.data, -1, *out)
    with pytest.raises(OSError, match="count: 16777217 is not from 0 to 16777216"):
        library("ms_detect", cpp._handle, points.ctypes.data, 2**24 + 1, *out)
    with pytest.raises(OSError, match="count: 16777217 is not from 0"):
        library("ms_detector_warm_up", cpp._handle, 2**24 + 1, None)
    cpp.close()


def test_detects_in_arrays_of_jax(library, network, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    cpp, points = CppDetector(library, network), cloud(12_000, seed=2)
    wanted = cpp(points)
    array = jax.block_until_ready(jax.numpy.asarray(points) * 1.0)
    cpp.detect(address(array), len(points))
    assert len(wanted[0]) > 5
    assert all(np.array_equal(a, b) for a, b in zip(cpp.found(), wanted, strict=True))
    cpp.close()


def batch_of(cpp, scans, capacity=None):
    """What ms_detect_batch finds in each of the scans, and how many points it left out."""
    capacity = cpp.info.most_boxes if capacity is None else capacity
    points = np.concatenate(scans)
    counts = (ctypes.c_int64 * len(scans))(*map(len, scans))
    boxes = np.full((len(scans), capacity, 7), np.nan, np.float32)
    scores = np.empty((len(scans), capacity), np.float32)
    labels = np.empty((len(scans), capacity), np.int32)
    found, left_out = (ctypes.c_int64 * len(scans))(), type(cpp.left_out)()
    given = Scans(points.ctypes.data, counts, len(scans))
    cpp._library(
        "ms_detect_batch", cpp._handle, ctypes.byref(given),
        *(ctypes.c_void_p(array.ctypes.data) for array in (boxes, scores, labels)),
        ctypes.c_int64(capacity), found, ctypes.byref(left_out), None,
    )  # fmt: skip
    results = [(boxes[i, :n], scores[i, :n], labels[i, :n]) for i, n in enumerate(found)]
    assert all(np.isnan(boxes[i, n:]).all() for i, n in enumerate(found))
    return results, left_out.not_finite


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_batch_finds_the_boxes_of_python_s_bit_for_bit(
    library, weights, network, precision, monkeypatch
):
    python = Detector.from_weights(weights, "cuda", precision)
    monkeypatch.setattr(python._inference, "on_cells", True)
    cpp = CppDetector(library, network, precision)
    of = clouds()
    for names in (("a", "b", "none"), ("b",), ("larger", "a"), ("none", "none"), ("broken", "b")):
        scans = [of[name] for name in names]
        wanted = python.detect_batch(scans)
        found, not_finite = batch_of(cpp, scans)
        assert not_finite == sum((~np.isfinite(scan).all(1)).sum() for scan in scans)
        for (boxes, scores, labels), (one, _) in zip(found, wanted, strict=True):
            assert len(boxes) == len(one.boxes), names
            assert np.array_equal(boxes.view(np.uint32), one.boxes.numpy().view(np.uint32)), names
            assert np.array_equal(scores, one.scores.numpy()), names
            assert np.array_equal(labels, one.labels.numpy()), names
    cpp.close()


def test_mistakes_in_a_batch_are_told(library, network):
    cpp, scans = CppDetector(library, network), [cloud(12_000, seed=2), cloud(3_000)]
    with pytest.raises(OSError, match="room for 3"):
        batch_of(cpp, scans, capacity=3)
    with pytest.raises(OSError, match=r"scans\.batch: 65 is not from 1 to 64"):
        batch_of(cpp, [cloud(1)] * 65)
    with pytest.raises(OSError, match="batch: 0 is not from 1 to 64"):
        library("ms_detector_warm_up_batch", cpp._handle, ctypes.c_int64(10), 0, None)
    library("ms_detector_warm_up_batch", cpp._handle, ctypes.c_int64(10), 3, None)
    cpp.close()
