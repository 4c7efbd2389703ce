"""The stages of a scan one by one: on a GPU each as a graph of its own, else by the wall clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from detector.frame_graph import FrameGraph, FrameGraphs
from detector.inference import Inference
from ops import Pyramid, Voxels
from tools.benchmarks.timing import kernel_time, wall

REPEATS = 5  # calls, on a CPU
Clock = Callable[[Callable[[], object]], float]


def stages(inference: Inference, clouds: Sequence[Tensor]) -> dict[str, float]:
    """Milliseconds of each stage, the median over the clouds."""
    measured = _on_gpu if inference.device.type == "cuda" else _on_cpu
    with torch.inference_mode():
        times = [measured(inference, cloud) for cloud in clouds]
    return {name: statistics.median(row[name] for row in times) for name in times[0]}


def _on_cpu(inference: Inference, cloud: Tensor) -> dict[str, float]:
    clock: Clock = lambda call: statistics.median(wall(call, REPEATS, warmup=1))  # noqa: E731
    model, offsets = inference.model, torch.tensor([0, len(cloud)], dtype=torch.int32)
    voxels = model.voxelize(cloud, offsets)
    pyramid = model.index(voxels)
    times = {
        "voxelize": clock(lambda: model.voxelize(cloud, offsets)),
        "index": clock(lambda: model.index(voxels)),
    }
    return times | _network(inference, voxels, pyramid, clock)


def _on_gpu(inference: Inference, cloud: Tensor) -> dict[str, float]:
    graph = _graph_of(inference, cloud)
    points, offsets, late = graph.load()
    voxels = graph.voxelize(points, offsets)
    pyramid = graph.index(voxels)
    times = {
        "load": kernel_time(graph.load),
        "voxelize": kernel_time(lambda: graph.voxelize(points, offsets)),
        "index": kernel_time(lambda: graph.index(voxels)),
    }
    times |= _network(inference, voxels, pyramid, kernel_time)
    cells = inference.cells(pyramid)
    if cells is not None:
        times["cells, beside the encoder"] = kernel_time(lambda: inference.cells(pyramid))
    found = inference.postprocess.select(
        inference.predict(inference.encode(voxels, pyramid), pyramid, cells)
    )
    bev = inference.model.encode(voxels, pyramid)
    times["dense BEV network"] = kernel_time(lambda: inference.model.predict(bev))
    times["report"] = kernel_time(lambda: graph.report(voxels, pyramid, found, late))
    times["all in one graph"] = kernel_time(graph.run, launches=3)
    return times


def _network(
    inference: Inference, voxels: Voxels, pyramid: Pyramid, clock: Clock
) -> dict[str, float]:
    features, cells = inference.encode(voxels, pyramid), inference.cells(pyramid)
    predictions = inference.predict(features, pyramid, cells)
    return {
        "encoder": clock(lambda: inference.encode(voxels, pyramid)),
        "BEV network": clock(lambda: inference.predict(features, pyramid, cells)),
        "postprocess": clock(lambda: inference.postprocess.select(predictions)),
    }


def _graph_of(inference: Inference, cloud: Tensor) -> FrameGraph:
    """A graph that holds the cloud's points."""
    graphs = FrameGraphs(inference)
    graphs.finish(graphs.launch([cloud]), [cloud])  # from now on the bucket is known
    graph = graphs.launch([cloud])
    if graph is None:
        raise ValueError(
            f"a cloud of {len(cloud)} points fits no graph; raise grid.max_voxels_test"
        )
    graphs.finish(graph, [cloud])
    return graph
