"""Which graph a batch gets, with stand-ins for the graphs; batches and streams on a CPU."""

import itertools

import numpy as np
import pytest
import torch

from millisecond.detector import Detector, frame_graph
from millisecond.detector.config import load_config
from millisecond.detector.cuda_graph import Capacity, capacities_of, first_that_holds
from millisecond.detector.inference import Outcome
from millisecond.detector.models.second import build_second
from tests.helpers.small_detector import CONFIG, cloud

LADDER = Capacity(100, (50, 80)), Capacity(300, (150, 200)), Capacity(900, (400, 500))


@pytest.mark.parametrize("name", ["second_small", "second_kitti"])
@pytest.mark.parametrize("cap", [1, 1000, 24_000, 60_001, 10**9])
def test_capacities_rise_to_the_cap_on_voxels(name, cap):
    config = load_config(CONFIG.with_name(f"{name}.yaml"), [f"grid.max_voxels_test={cap}"])
    model = build_second(config)
    capacities = capacities_of(model)
    z, y, x = config.grid.voxel_grid.sparse_shape
    assert capacities[-1].rows[0] == min(cap, z * y * x)
    for a, b in itertools.pairwise(capacities):
        assert a.points < b.points and a.rows[0] < b.rows[0]
        assert all(m <= n for m, n in zip(a.rows, b.rows, strict=True))
    last = np.prod(config.bev_cells)
    assert all(1 <= each.rows[-1] <= last and len(each.rows) == 5 for each in capacities)


def test_the_first_capacity_that_holds_all_of_a_frame():
    for points, rows, number in (
        (0, (), 0),
        (100, (50, 80), 0),
        (101, (), 1),
        (1, (51, 1), 1),
        (1, (1, 201), 2),
        (901, (), 3),
        (1, (401, 1), 3),
    ):
        assert first_that_holds(LADDER, points, rows) == number


class Stand:
    """A graph that finds how many rows its clouds have: one number each, in their first point."""

    made: list  # one list per test

    def __init__(self, inference, capacity, batch_size, moves):
        self.capacity, self.batch_size = capacity, batch_size
        Stand.made.append((LADDER.index(capacity), batch_size))

    def launch(self, clouds, moves, beside, busy):
        assert len(clouds) == self.batch_size
        assert max(map(len, clouds)) <= self.capacity.points
        self.rows = int(sum(cloud[0, 0] for cloud in clouds))
        self.taken = [cloud.clone() for cloud in clouds]

    def clouds(self):
        return self.taken

    def outcome(self):
        if self.rows > self.capacity.rows[0] * self.batch_size:
            return None
        return Outcome(["graph"], 0, 0, (self.rows, self.rows))


class Calls:
    """The network call by call."""

    model = None

    def __call__(self, clouds, moves):
        rows = int(sum(cloud[0, 0] for cloud in clouds))
        return Outcome(["calls"], 0, 0, (rows, rows))


@pytest.fixture
def graphs(monkeypatch):
    Stand.made = []
    monkeypatch.setattr(frame_graph, "FrameGraph", Stand)
    monkeypatch.setattr(frame_graph, "capacities_of", lambda model: LADDER)
    monkeypatch.setattr(frame_graph, "indexable", lambda model, batch_size: batch_size < 9)
    return frame_graph.FrameGraphs(Calls())


def found(graphs, *clouds) -> str:
    """`graph` or `calls`; each cloud is (points, rows)."""
    batch = [torch.full((points, 4), float(rows)) for points, rows in clouds]
    return graphs.finish(graphs.launch(batch), batch).detections[0]


def test_what_does_not_fit_goes_to_the_next_graph_and_then_call_by_call(graphs):
    assert found(graphs, (90, 40)) == found(graphs, (90, 50)) == "graph"
    assert Stand.made == [(0, 1)]  # the same graph
    assert found(graphs, (90, 51)) == "graph" and Stand.made == [(0, 1), (1, 1)]
    assert found(graphs, (90, 60)) == "graph" and Stand.made[2:] == []  # begins where it ended
    assert found(graphs, (90, 30)) == "graph"
    assert found(graphs, (90, 401)) == "calls" and Stand.made[2:] == [(2, 1)]
    assert found(graphs, (901, 1)) == "calls"
    assert found(graphs, (90, 40)) == "graph" and Stand.made[3:] == []


def test_a_cloud_may_change_while_its_graph_runs(graphs):
    for rows, expected, made in ((51, "graph", [0, 1]), (501, "calls", [0, 1, 2])):
        batch = [torch.full((90, 4), float(rows))]
        graph = graphs.launch(batch)
        batch[0].zero_()
        outcome = graphs.finish(graph, batch)
        assert outcome.detections == [expected] and outcome.rows == (rows, rows)
        assert [number for number, _ in Stand.made] == made
        graphs._rows = ()


def test_each_batch_size_and_each_batch_under_way_has_a_graph(graphs):
    assert found(graphs, (90, 40), (20, 50)) == "graph" and Stand.made == [(0, 2)]
    assert found(graphs, *[(9, 9)] * 9) == "calls"  # no index for so many
    batch = [torch.full((9, 4), 1.0)]
    under_way = [graphs.launch(batch) for _ in range(3)]
    assert Stand.made[1:] == [(0, 1)] * 3 and len(set(map(id, under_way))) == 3
    for graph in under_way:
        graphs.finish(graph, batch)
    for _ in range(2):
        assert graphs.launch(batch) in under_way
    assert len(Stand.made) == 4


def test_two_clouds_of_a_stream_are_under_way_while_others_work(weights):
    detector, under_way, seen = Detector.from_weights(weights, "cpu"), [], []

    class Graphs:
        def launch(self, clouds, moves, beside, busy):
            assert busy == bool(under_way) and len(under_way) < 2
            under_way.append(len(clouds[0]))
            return under_way[-1]

        def finish(self, graph, clouds, moves):
            assert under_way.pop(0) == graph == len(clouds[0])
            return Outcome([graph], 0, 0, ())

    def clouds():
        for count in range(1, 8):
            seen.append(len(under_way))
            yield np.zeros((count, 4), np.float32)

    detector._graphs = Graphs()
    for number, (count, _) in enumerate(detector.stream(clouds()), start=1):
        assert count == number
        seen.append(len(under_way))
    assert seen == [0, 1, *[2] * 10, 1, 0]  # none is left at the end, and none here:
    results = detector.stream(clouds())
    assert next(results)[0] == 1 and len(under_way) == 2
    results.close()
    assert not under_way


def test_batches_and_streams_are_clouds_one_by_one_on_a_cpu(weights):
    detector = Detector.from_weights(weights, "cpu")
    clouds = [cloud(count, count) for count in (3000, 0, 2000)]
    clouds[2][5] = np.nan
    expected = [detector.detect(points) for points in clouds]
    assert [len(notes) for _, notes in expected] == [0, 0, 1]
    for results in (detector.detect_batch(clouds), list(detector.stream(iter(clouds)))):
        for (boxes, notes), (wanted, told) in zip(results, expected, strict=True):
            assert notes == told
            assert all(torch.equal(a, b) for a, b in zip(boxes, wanted, strict=True))
    assert detector.detect_batch([]) == []
    with pytest.raises(ValueError, match=r"points: expected \[P, 4\]"):
        detector.detect_batch([clouds[0], clouds[0][:, :3]])
