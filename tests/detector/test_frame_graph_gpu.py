"""The detector's CUDA graph finds what its calls one by one find, to the bit."""

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from millisecond.data.checks.leveling import SCANS
from millisecond.data.checks.sensor import Mounting
from millisecond.data.formats.clouds import read_points
from millisecond.data.formats.points import KITTI, PointColumns
from millisecond.data.simulator import simulate
from millisecond.detector import Detector, frame_graph
from millisecond.detector.config import load_config
from millisecond.detector.cuda_graph import Capacity
from millisecond.detector.frame_graph import FrameGraph
from millisecond.detector.import_openpcdet import convert
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import restore, save_weights
from tests.helpers.moves import placement_of
from tests.helpers.small_detector import CONFIG, cloud

pytestmark = pytest.mark.gpu

PRECISIONS = ["fp32", "bf16", "fp16"]


def street(count: int, seed: int) -> np.ndarray:
    """Points on the ground and of clusters: fewer voxels at the deeper levels than random ones."""
    generator = np.random.default_rng(seed)
    points = cloud(count, seed)
    points[:, 2] = -1.8 + 0.05 * generator.normal(size=count)
    some = count // 3
    points[:some, :3] = points[:some, :3].round() + generator.normal(size=(some, 3)) * 0.3
    return points.astype(np.float32)


def assert_same(found, expected) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == "cpu" and a.dtype == b.dtype and torch.equal(a, b)


def by_calls(detector: Detector, clouds) -> list:
    return detector._inference([torch.from_numpy(points) for points in clouds]).detections


@pytest.fixture(params=PRECISIONS)
def detector(weights, request) -> Detector:
    return Detector.from_weights(weights, "cuda", request.param)


def test_same_bits_as_call_by_call(detector):
    nan = street(3000, 5)
    nan[::9] = np.nan
    odd = street(3000, 6) * np.float32([1, 1, 1, 255])
    odd[7, 3] = 1e9
    far = cloud(50) + np.float32([500, 0, 0, 0])
    clouds = [street(20_000, 1), cloud(1), cloud(0), nan, odd, far, cloud(40_000), street(9000, 2)]
    for points in clouds * 2:  # the second time from graphs that were used before
        found, _ = detector.detect(points)
        (expected,) = by_calls(detector, [points])
        assert_same(found, expected)
    assert len(detector.detect(clouds[0])[0].boxes) > 0


def test_batches_of_any_size(detector):
    clouds = [street(count, seed) for seed, count in enumerate((9000, 0, 17_000, 1, 4000, 12_000))]
    clouds += [cloud(5000, seed) for seed in range(5)]
    for first, last in ((0, 1), (0, 2), (1, 4), (0, 8), (0, 11)):
        batch = clouds[first:last]
        found = [boxes for boxes, _ in detector.detect_batch(batch)]
        expected = by_calls(detector, batch[:8]) + (
            by_calls(detector, batch[8:]) if batch[8:] else []
        )
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)


def test_a_stream_of_clouds_is_each_by_itself(detector):
    clouds = [street(3000 + 700 * seed, seed) for seed in range(7)]
    expected = [detector.detect(points)[0] for points in clouds]
    for a, b in zip(detector.stream(clouds), expected, strict=True):
        assert_same(a[0], b)
    for _ in itertools.islice(detector.stream(clouds), 2):
        pass  # and the rest is not asked for
    assert_same(detector.detect(clouds[3])[0], expected[3])


def test_an_array_may_be_used_again_for_the_next_cloud(weights, monkeypatch):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    clouds = [street(3000 + 700 * seed, seed) for seed in range(7)]
    expected = [detector.detect(points)[0] for points in clouds]
    rows = [detector._inference([torch.from_numpy(points)]).rows for points in clouds]
    ladder = Capacity(9000, rows[3]), Capacity(9000, tuple(map(max, *rows)))
    for capacities in (
        detector._graphs._capacities,
        ladder,
    ):  # later clouds do not fit the first graph
        monkeypatch.setattr(detector._graphs, "_capacities", capacities)
        monkeypatch.setattr(detector._graphs, "_rows", ())
        memory = np.zeros((9000, 4), np.float32)

        def reused(memory=memory):
            for points in clouds:
                memory[: len(points)] = points
                memory[len(points) :] = np.nan
                yield memory[: len(points)]

        for (found, _), wanted in zip(detector.stream(reused()), expected, strict=True):
            assert_same(found, wanted)


def test_arrays_and_tensors_of_any_layout(weights):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    points = street(9000, 1)
    expected = detector.detect(points)[0]
    read_only, wide = points.copy(), np.zeros((9000, 6), np.float32)
    read_only.flags.writeable, wide[:, 1:5] = False, points
    by_column = torch.from_numpy(points).T.contiguous().T
    layouts = read_only, wide[:, 1:5], points[::-1].copy()[::-1], by_column, by_column.cuda()
    for same in layouts:
        assert_same(detector.detect(same)[0], expected)


def test_over_a_capacity_the_next_one_runs(weights, monkeypatch):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    graphs = detector._graphs
    rows = detector._inference([torch.from_numpy(street(9000, 1))]).rows
    for small in range(6):  # what is too small: the points, or one of the levels
        tight = [count - (level == small) for level, count in enumerate(rows)]
        points = 8999 if small == 5 else 9000
        ladder = Capacity(points, tuple(tight)), Capacity(9000, rows)
        monkeypatch.setattr(graphs, "_capacities", ladder)
        monkeypatch.setattr(graphs, "_rows", ())
        graphs._idle.clear()
        found, notes = detector.detect(street(9000, 1))
        assert notes == []
        assert_same(found, by_calls(detector, [street(9000, 1)])[0])
        assert [capacity for capacity, _ in graphs._idle] == list(ladder)[small == 5 :]
        detector.detect(street(8000, 1))
    monkeypatch.setattr(graphs, "_capacities", (Capacity(9000, (*tight[:4], 1)),))
    for _ in range(2):  # none holds it
        assert_same(detector.detect(street(9000, 1))[0], found)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_moved_clouds_are_as_the_host_moves_them(trained, precision, monkeypatch):
    """Each cloud of a batch by its own way; also where a graph does not hold it, or none does."""
    config, model = trained
    levelled = replace(config, grid=replace(config.grid, level=True))
    detector, rng = Detector(model, levelled, "cuda", precision), np.random.default_rng(4)
    graphs, boxes = detector._graphs, 0
    for round_ in range(6):
        ways = [placement_of(rng) for _ in range(1 + round_ % 3)]
        before = [street(9000 - 40 * i, 10 * round_ + i) for i in range(len(ways))]
        clouds = [
            np.hstack([way.mounting.from_network(c[:, :3]), c[:, 3:] * min(way.full, 1e5)])
            for way, c in zip(ways, before, strict=True)
        ]
        moves = [way.move for way in ways]
        moved = [w(torch.from_numpy(c)).numpy() for w, c in zip(ways, clouds, strict=True)]
        wanted = by_calls(detector, moved)
        if round_ > 2:  # the first graph is too small, in the last round the only one
            rows = detector._inference([torch.from_numpy(points) for points in moved]).rows
            most = tuple(-(-count // len(ways)) for count in rows)
            ladder = Capacity(9000, (*most[:4], 1)), Capacity(9000, most)
            monkeypatch.setattr(graphs, "_capacities", ladder[: 2 - (round_ == 5)])
            monkeypatch.setattr(graphs, "_rows", ())
        found = graphs.finish(graphs.launch(clouds, moves), clouds, moves).detections
        for a, b in zip(found, wanted, strict=True):
            assert_same(a, b)
            boxes += len(b.boxes)
        assert_same(detector._inference(clouds, moves).detections[0], wanted[0])
    assert boxes


def test_a_settled_recording_whose_ground_changes(trained):
    """The host looks at the ground beside the GPU's work; a stream looks before."""
    config, model = trained
    levelled = replace(config, grid=replace(config.grid, level=True))
    clouds, higher = [simulate(7, t / 10).points for t in range(SCANS + 2)], Mounting(0.9)
    clouds += [higher.from_network(points) for points in clouds[:3]]
    expected = [found for found, _ in Detector(model, levelled, "cuda").stream(clouds)]
    detector = Detector(model, levelled, "cuda")
    found = [detector.detect(points)[0] for points in clouds[:-3]]
    before = detector._leveling.now.mounting.shift_z
    found += [detector.detect(points)[0] for points in clouds[-3:]]
    assert detector._leveling.now.mounting.shift_z - before == pytest.approx(0.9, abs=0.2)
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)


def test_points_that_come_too_late_are_found_all_the_same(weights, monkeypatch):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    clouds = [street(9000, 1), street(3000, 2), cloud(0), street(9000, 3)]
    expected = [detector.detect(points)[0] for points in clouds]
    launches = []
    replay, stage = FrameGraph._replay, frame_graph.stage_points

    def late(*arguments) -> None:
        time.sleep(60e-3)
        stage(*arguments)

    def counted(graph: FrameGraph) -> None:
        launches.append(graph)
        replay(graph)

    monkeypatch.setattr(frame_graph, "stage_points", late)
    monkeypatch.setattr(FrameGraph, "_replay", counted)
    for points, boxes in zip(clouds, expected, strict=True):
        assert_same(detector.detect(points)[0], boxes)
    assert len(launches) == 7  # a cloud without points is not waited for
    for (boxes, _), wanted in zip(detector.stream(clouds), expected, strict=True):
        assert_same(boxes, wanted)
    assert len(launches) == 12  # of a stream only the first ones come after the launch


def test_points_come_before_a_launch_that_blocks(weights, monkeypatch):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    points = street(9000, 1)
    expected, _ = detector.detect(points)
    calls = []
    replay, stage = FrameGraph._replay, frame_graph.stage_points
    monkeypatch.setattr(frame_graph, "LAUNCHES_BLOCK", True)
    monkeypatch.setattr(frame_graph, "stage_points", lambda *a: (calls.append("copy"), stage(*a)))
    monkeypatch.setattr(
        FrameGraph, "_replay", lambda graph: (calls.append("launch"), replay(graph))
    )
    assert_same(detector.detect(points)[0], expected)
    assert calls == ["copy", "launch"]


def test_a_launch_that_fails_leaves_the_cloud_to_its_owner(weights, monkeypatch):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    points, copied = street(80_000, 1), []
    expected, _ = detector.detect(points)

    def failing(graph: FrameGraph) -> None:
        copied.append(graph)
        raise RuntimeError("no launch")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no launch"):
        patch.setattr(FrameGraph, "_replay", failing)
        detector.detect(points)
    (staged,) = copied[0].clouds()
    assert np.array_equal(staged, points) and copied[0]._there[frame_graph.NOW] == len(points)
    assert_same(detector.detect(points)[0], expected)


def test_clouds_of_any_layout(weights):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    points = street(9000, 1)
    expected, _ = detector.detect(points)
    fixed = points.copy()
    fixed.setflags(write=False)
    turned = torch.from_numpy(points).T.contiguous().T
    for same in (
        fixed,
        np.asfortranarray(points),
        np.repeat(points, 2, axis=0)[::2],
        points[::-1].copy()[::-1],
        turned,
        torch.from_numpy(points).cuda(),
        turned.cuda().requires_grad_(),
    ):
        assert_same(detector.detect(same)[0], expected)


def test_notes_are_those_of_each_cloud(tmp_path):
    config = load_config(CONFIG, ["grid.max_voxels_test=1000"])
    save_weights(tmp_path / "small", build_second(config), config)
    detectors = [Detector.from_weights(tmp_path / "small", device) for device in ("cuda", "cpu")]
    many, nan, few = cloud(20_000), cloud(900), cloud(500)
    nan[::3] = np.nan
    clouds = [many, nan, few, many[:5000], cloud(0)]
    wanted = [detectors[1].detect(points)[1] for points in clouds]
    assert [len(notes) for notes in wanted] == [1, 1, 0, 1, 0]
    assert [detectors[0].detect(points)[1] for points in clouds] == wanted
    assert [notes for _, notes in detectors[0].detect_batch(clouds)] == wanted
    assert [notes for _, notes in detectors[0].stream(clouds)] == wanted


def test_points_with_further_features(trained):
    five = PointColumns(columns=(*KITTI, "ring"), features=(*KITTI, "ring"))
    config = replace(trained[0], points=five)
    torch.manual_seed(1)
    model = build_second(config)
    torch.nn.init.normal_(model.head.classes.weight, std=0.5)
    detector = Detector(model, config, torch.device("cuda"), "fp16")
    for count in (9000, 0, 4000):
        points = np.column_stack([street(count, count), np.arange(count) % 64]).astype(np.float32)
        assert_same(detector.detect(points)[0], by_calls(detector, [points])[0])


def test_threads(weights):
    detector = Detector.from_weights(weights, "cuda", "fp16")
    clouds = [street(2000 + 500 * seed, seed) for seed in range(6)]
    expected = [detector.detect(points)[0] for points in clouds]
    wrong = []

    def work(seed: int) -> None:
        for turn in range(20):
            number = (seed + turn) % len(clouds)
            found, _ = detector.detect(clouds[number])
            if not all(torch.equal(a, b) for a, b in zip(found, expected[number], strict=True)):
                wrong.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture(scope="module")
def published(golden, tmp_path_factory):
    """Weights that find KITTI's objects, and the scan that they were recorded on."""
    folder = golden / "openpcdet_second"
    config = load_config(CONFIG.with_name("second_kitti.yaml"))
    with np.load(folder / "weights_fp16.npz") as file:
        state = {name: torch.from_numpy(file[name]) for name in file.files}
    model = build_second(config)
    restore(model, convert(state, config, "weights_fp16.npz"), "weights_fp16.npz")
    path = tmp_path_factory.mktemp("weights") / "published.safetensors"
    save_weights(path, model, config)
    return path, np.load(folder / "infer_0.npz")["points"]


def test_published_weights(published):
    path, points = published
    exact = Detector.from_weights(path, "cuda", "fp32")
    wanted = exact(points)
    assert_same(wanted, by_calls(exact, [points])[0])
    sure = int((wanted.scores > 0.11).sum())  # the threshold is 0.1
    assert sure > 3
    for precision in ("fp16", "bf16"):
        detector = Detector.from_weights(path, "cuda", precision)
        found = detector(points)
        assert_same(found, by_calls(detector, [points])[0])
        nearest = torch.cdist(wanted.boxes[:sure, :3], found.boxes[:, :3]).min(dim=1)
        assert nearest.values.max() < 0.05
        assert torch.equal(found.labels[nearest.indices], wanted.labels[:sure])
        change = found.scores[nearest.indices] - wanted.scores[:sure]
        assert change.abs().max() < 0.03


def test_real_scans(published, kitti):
    detector = Detector.from_weights(published[0], "cuda", "fp16")
    clouds = [read_points(path) for path in sorted(kitti.glob("training/velodyne/*.bin"))[:4]]
    for points in clouds:
        assert_same(detector.detect(points)[0], by_calls(detector, [points])[0])
    found = detector.detect_batch(clouds)
    for (boxes, _), expected in zip(found, by_calls(detector, clouds), strict=True):
        assert_same(boxes, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one(weights):
    clouds = [street(4000, seed) for seed in range(3)]
    detectors = [Detector.from_weights(weights, f"cuda:{number}", "fp16") for number in range(2)]
    for points in clouds * 2:
        assert_same(detectors[1].detect(points)[0], detectors[0].detect(points)[0])
    for a, b in zip(detectors[1].stream(clouds), detectors[0].stream(clouds), strict=True):
        assert_same(a[0], b[0])
