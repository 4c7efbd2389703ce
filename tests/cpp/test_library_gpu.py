"""The detector of libmillisecond on a GPU, through its C header: the same boxes as Python's."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from millisecond.data.checks.leveling import Placement
from millisecond.data.checks.sensor import Mounting
from millisecond.detector import Detector, network_file
from millisecond.detector.weights import save_weights
from millisecond.ops.transfer import UNMOVED
from millisecond.tools.export import CppDetector, GivenScans, LeftOut
from tests.cpp.dlpack import address
from tests.cpp.structures import LOG
from tests.helpers.moves import placement_of
from tests.helpers.small_detector import build_small_network, cloud

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


@pytest.mark.parametrize("precision", ["fp16", "fp32", "bf16"])
def test_velocities_are_python_s_bit_for_bit(
    library, moving_weights, network_of, precision, monkeypatch
):
    python = Detector.from_weights(moving_weights, "cuda", precision)
    monkeypatch.setattr(python._inference, "on_cells", True)
    cpp = CppDetector(library, network_of(moving_weights), precision)
    assert cpp.info.velocity == 1
    for points in (cloud(3_000), cloud(0), cloud(12_000, seed=2)):
        wanted, _ = python.detect(points)
        boxes, scores, labels = cpp(points)
        assert boxes.shape == tuple(wanted.boxes.shape) and boxes.shape[1] == 9
        assert np.array_equal(boxes.view(np.uint32), wanted.boxes.numpy().view(np.uint32))
        assert np.array_equal(scores, wanted.scores.numpy())
        assert np.array_equal(labels, wanted.labels.numpy())
    assert len(boxes) > 5 and np.abs(boxes[:, 7:]).max() > 1
    # nobody has to take them
    cpp._boxes[:] = 0
    found, left_out = ctypes.byref(cpp._found), ctypes.byref(cpp.left_out)
    out = (*cpp._out, cpp.info.most_boxes, found, left_out, None)
    library("ms_detect", cpp._handle, points.ctypes.data, len(points), *out)
    assert np.array_equal(cpp._boxes[: len(boxes)], boxes[:, :7])
    cpp.close()


def test_velocities_of_a_network_without_are_a_mistake(library, network):
    cpp, points, room = CppDetector(library, network), cloud(500), np.zeros((500, 2), np.float32)
    assert cpp.info.velocity == 0
    given = GivenScans(ctypes.sizeof(GivenScans), 1, points.ctypes.data, (ctypes.c_int64 * 1)(500))
    given.velocities = room.ctypes.data
    out = (*cpp._out, cpp.info.most_boxes, ctypes.byref(cpp._found), None, None)
    with pytest.raises(OSError, match=r"scans\.velocities: the network has none"):
        library("ms_detect_batch", cpp._handle, ctypes.byref(given), *out)
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


def batch_of(cpp, scans, capacity=None, moves=()):
    """What ms_detect_batch finds in each of the scans, and how many points it left out."""
    capacity = cpp.info.most_boxes if capacity is None else capacity
    points = np.concatenate(scans)
    counts = (ctypes.c_int64 * len(scans))(*map(len, scans))
    boxes = np.full((len(scans), capacity, 7), np.nan, np.float32)
    scores = np.empty((len(scans), capacity), np.float32)
    labels = np.empty((len(scans), capacity), np.int32)
    found = (ctypes.c_int64 * len(scans))()
    left_out = LeftOut(ctypes.sizeof(LeftOut))
    given = GivenScans(ctypes.sizeof(GivenScans), len(scans), points.ctypes.data, counts)
    if moves:
        given.moves = (ctypes.c_float * (13 * len(scans)))(*np.ravel(moves))
    out = [array.ctypes.data for array in (boxes, scores, labels)]
    out += [capacity, found, ctypes.byref(left_out), None]
    cpp._library("ms_detect_batch", cpp._handle, ctypes.byref(given), *out)
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


@pytest.fixture(scope="session")
def levelled(tmp_path_factory):
    """Weights of a network that takes levelled clouds, and its network file."""
    config, model = build_small_network()
    config = replace(config, grid=replace(config.grid, level=True))
    folder = tmp_path_factory.mktemp("levelled")
    save_weights(folder / "level.safetensors", model, config)
    network_file.write(folder / "level.network", config, model)
    return folder / "level.safetensors", folder / "level.network"


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_moved_scans_are_found_as_python_moves_them(library, levelled, precision, monkeypatch):
    python = Detector.from_weights(levelled[0], "cuda", precision)
    monkeypatch.setattr(python._inference, "on_cells", True)
    cpp, rng = CppDetector(library, levelled[1], precision), np.random.default_rng(7)
    assert cpp.info.level == 1
    of, found_any = clouds(), False
    for names in (("a",), ("a", "b", "none"), ("larger", "a"), ("broken", "wild")):
        ways, scans = [placement_of(rng) for _ in names], [of[name] for name in names]
        moves = [way.move for way in ways]
        graphs = python._graphs
        wanted = graphs.finish(graphs.launch(scans, moves), scans, moves).detections
        found, _ = batch_of(cpp, scans, moves=moves)
        for mine, one in zip(found, wanted, strict=True):
            assert same(mine, [array.numpy() for array in one]), names
            found_any |= len(mine[0]) > 0
        if len(names) == 1:
            assert same(cpp(scans[0], moves[0]), found[0])
    assert found_any
    with pytest.raises(OSError, match=r"scans\.moves: is null, and the network takes levelled"):
        cpp(of["a"])
    library("ms_detector_warm_up", cpp._handle, 10, None)
    cpp.close()


def test_any_network_takes_moves(library, network):
    cpp, points = CppDetector(library, network), cloud(12_000, seed=2)
    mounting = Mounting(0.5, 30)
    moved = mounting.to_network(points)
    assert cpp.info.level == 0 and len(cpp(moved)[0]) > 5
    assert same(cpp(points, Placement(mounting).move), cpp(moved))
    assert same(cpp(points, UNMOVED), cpp(points))
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


class Records:
    """Points as in a PointCloud2, with other fields between their columns."""

    def __init__(self, scans, step, offsets):
        self.packed = np.concatenate(scans)
        columns = zip(offsets, self.packed.T, strict=True)
        self.bytes = np.full((len(self.packed), step), 0xFF, np.uint8)  # NaN, if it were read
        for first, column in columns:
            self.bytes[:, first : first + 4] = column.copy().view(np.uint8).reshape(-1, 4)
        self._counts = (ctypes.c_int64 * len(scans))(*map(len, scans))
        self._offsets = (ctypes.c_int32 * len(offsets))(*offsets)
        self.step = step

    def scans(self, address=None, offsets=True):
        given = address or self.bytes.ctypes.data
        where = self._offsets if offsets else None
        size, count = ctypes.sizeof(GivenScans), len(self._counts)
        return GivenScans(size, count, given, self._counts, self.step, where)


def begin(cpp, scans, stream=None):
    job = ctypes.c_void_p()
    on = ctypes.c_void_p(stream)
    cpp._library("ms_detect_async", cpp._handle, ctypes.byref(scans), on, ctypes.byref(job))
    return job


def collect(cpp, job):
    """Of a single scan: as CppDetector.found."""
    found, left_out = ctypes.byref(cpp._found), ctypes.byref(cpp.left_out)
    out = [ctypes.c_void_p(address) for address in cpp._out]
    cpp._library("ms_collect", job, *out, ctypes.c_int64(cpp.info.most_boxes), found, left_out)
    return cpp.found()


def same(found, wanted):
    return all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("step", "offsets"), [(32, (0, 4, 8, 16)), (22, (0, 4, 8, 12)), (23, (18, 1, 5, 11))]
)
@pytest.mark.parametrize("place", ["host", "GPU"])
def test_points_as_records(library, network, step, offsets, place):
    cpp, scan = CppDetector(library, network), cloud(12_000, seed=2)
    wanted, records = cpp(scan), Records([scan], step, offsets)
    on_gpu = torch.from_numpy(records.bytes).cuda()
    address = on_gpu.data_ptr() if place == "GPU" else None
    stream = torch.cuda.current_stream().cuda_stream
    assert len(wanted[0]) > 5
    assert same(collect(cpp, begin(cpp, records.scans(address), stream)), wanted)
    if offsets == (0, 4, 8, 12):  # where columns are if nothing is said
        job = begin(cpp, records.scans(address, offsets=False), stream)
        assert same(collect(cpp, job), wanted)
    outside = records.scans(address)
    outside.stride = max(offsets) + 3
    with pytest.raises(OSError, match=r"scans\.offsets: \d+ is not from 0 to"):
        begin(cpp, outside)
    cpp.close()


def test_jobs_run_beside_each_other_and_are_collected_in_any_order(library, network):
    """Their points are gone when they are collected."""
    cpp, names = CppDetector(library, network), ("a", "b", "none", "larger")
    wanted = {name: cpp(clouds()[name]) for name in names}
    assert len(wanted["b"][0]) > 5
    streams, jobs = [torch.cuda.Stream() for _ in range(2)], []
    for number, name in enumerate([*names] * 4):
        records = Records([clouds()[name]], 16, (0, 4, 8, 12))
        stream, address = streams[number % 2], None
        if number % 3 == 0:
            with torch.cuda.stream(stream):
                on_gpu = torch.from_numpy(records.bytes).cuda()
            address = on_gpu.data_ptr()
        jobs.append((name, begin(cpp, records.scans(address), stream.cuda_stream)))
        records.bytes[:] = 0xFF
        if number % 3 == 0:
            with torch.cuda.stream(stream):
                on_gpu.fill_(0xFF)
    for name, job in reversed(jobs):
        assert same(collect(cpp, job), wanted[name]), name
    cpp.close()


def test_a_job_ends_with_its_error(library, network):
    cpp, scan = CppDetector(library, network), cloud(12_000, seed=2)
    records, found = Records([scan], 16, (0, 4, 8, 12)), ctypes.c_int64()
    job = begin(cpp, records.scans())
    with pytest.raises(OSError, match="room for 0"):
        library("ms_collect", job, None, None, None, ctypes.c_int64(0), ctypes.byref(found), None)
    assert found.value == len(cpp(scan)[0])
    with pytest.raises(OSError, match="found: is null"):
        library(
            "ms_collect", begin(cpp, records.scans()), *[None] * 3, ctypes.c_int64(0), *[None] * 2
        )
    assert len(cpp(scan)[0]) == found.value
    cpp.close()


def test_a_log_hears_of_graphs_and_second_runs(library, network):
    lines = []
    log = LOG(lambda event, line, _: lines.append((event, line.decode())))
    library.functions.ms_set_log.argtypes = [LOG, ctypes.c_void_p]
    library.functions.ms_set_log(log, None)
    try:
        cpp = CppDetector(library, network)
        spread = cloud(30_000, seed=9)  # far from each other: more sites than the first graph has
        first = cpp(spread)
        graphs = [line for event, line in lines if event == 3]
        assert "batches of 1 with up to" in graphs[0]
        assert len(graphs) == 1 + sum(event == 2 for event, _ in lines) > 1
        del lines[:]
        assert same(cpp(spread), first)  # the graph is there, and is taken at once
        assert lines == []
        with pytest.raises(OSError, match="count: -1"):
            cpp.detect(spread.ctypes.data, -1)
        assert lines == [(0, "count: -1 is not from 0 to 16777216")]
        cpp.close()
    finally:
        library.functions.ms_set_log(LOG(), None)
