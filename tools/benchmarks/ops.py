"""The sparse encoder: layer by layer and whole, forward and backward, beside its peers; its layers
on the ladder of kernels; every operator by itself.

"forward, graph" is the encoder as `Detector` runs it, index included: from the voxels of a frame
graph to the rows of the last level, recorded with that graph's capacities and memory. "forward,
eager" goes on to the bird's-eye-view map, as the peers do, call by call.
"""

import copy
from collections.abc import Sequence
from itertools import chain, product

import torch
from torch import Tensor, nn

from millisecond.detector.config import PRECISIONS, Config
from millisecond.detector.cuda_graph import KITTI_ROWS
from millisecond.detector.frame_graph import FrameGraph
from millisecond.detector.inference import Inference
from millisecond.detector.models.second import Second, build_second
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops.capture import captured, side_stream
from millisecond.ops.lab.dataflow_times import draw_tensors
from millisecond.ops.lab.examples import EXAMPLES, Scene
from millisecond.ops.lab.ladder import NAIVE, RUNGS, rung_times
from millisecond.ops.lab.networks import Layer, encoder_layers, second_layers
from millisecond.ops.lab.timing import DTYPES, Times, kernel_time, set_precision, wall
from millisecond.ops.sparse_conv import sparse_conv
from millisecond.ops.voxelize import Voxels
from millisecond.tools.benchmarks.peers import available, reason
from millisecond.tools.benchmarks.pipeline import graph_of
from millisecond.tools.benchmarks.timing import KITTI, Scans


def measure(
    config: Config, scans: Scans, batches: Sequence[int], precisions: Sequence[str], repeats: int
) -> dict:
    """All tables; prints them as they come. config: second_kitti.yaml."""
    torch.manual_seed(0)
    result = {"device": torch.cuda.get_device_name(), "scans": scans.source}
    result["roofline"] = roofline()
    print(f"{result['device']}, torch {torch.__version__}, {scans.source}")
    print(
        "copy {copy_tb_s:.2f} TB/s, fp16 product {fp16_tflop_s:.0f} TFLOP/s\n".format(
            **result["roofline"]
        )
    )
    result["layers"] = layers(scans, batches, result["roofline"])
    result["encoder"] = [
        row
        for precision, batch in product(precisions, batches)
        for row in encoder(config, scans, batch, precision, repeats)
    ]
    return result


def roofline() -> dict[str, float]:
    """What a large copy and a large product reach on this device."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copying = kernel_time(lambda: target.copy_(source), launches=3)
    a, b = (torch.randn(8192, 8192, device="cuda").half() for _ in range(2))
    multiplying = kernel_time(lambda: a @ b, launches=3)
    return {
        "copy_tb_s": 2 * (1 << 30) / copying / 1e9,
        "fp16_tflop_s": 2 * 8192**3 / multiplying / 1e9,
    }


def layers(scans: Scans, batches: Sequence[int], roof: dict[str, float]) -> list[dict]:
    """Every convolution alone, in fp16, its input in the cache as in the network."""
    rows = []
    print(
        f"{'layer':>14} {'B':>2} {'rows':>7} {'pairs':>8} {'us':>7} {'GB/s':>6} "
        f"{'TFLOP/s':>8} {'of roof':>7}"
    )
    for batch in batches:
        distinct = second_layers(scans.levels(range(batch)), DOWNS)
        for layer in chain.from_iterable([layer] * layer.times for layer in distinct):
            name = f"{layer.place} {layer.c_in}-{layer.c_out}"
            row = {"layer": name, "batch": batch, **layer_row(layer, roof)}
            rows.append(row)
            print(
                "{layer:>14} {batch:>2} {rows:>7} {pairs:>8} {us:>7.1f} {gb_s:>6.0f} "
                "{tflop_s:>8.1f} {of_roof:>6.0%}".format(**row)
            )
    print()
    return rows


def layer_row(layer: Layer, roof: dict[str, float]) -> dict:
    neighbours, c_in, c_out = layer.kernel_map.forward.neighbours, layer.c_in, layer.c_out
    pairs, rows = int((neighbours >= 0).sum()), neighbours.shape[1]
    features, weight, _ = draw_tensors(layer, torch.float16, training=False)
    with torch.inference_mode():
        us = 1e3 * kernel_time(lambda: sparse_conv(features, weight, layer.kernel_map))
    # the least traffic: features, weights and table read once, the result written once
    moved = 2 * (features.numel() + weight.numel() + rows * c_out) + 4 * neighbours.numel()
    flops = 2 * pairs * c_in * c_out
    floor_us = max(moved / roof["copy_tb_s"], flops / roof["fp16_tflop_s"]) / 1e6
    return {
        "rows": rows,
        "pairs": pairs,
        "us": us,
        "gb_s": moved / us / 1e3,
        "tflop_s": flops / us / 1e6,
        "of_roof": floor_us / us,
    }


def encoder(config: Config, scans: Scans, batch: int, precision: str, repeats: int) -> list[dict]:
    """The whole encoder, index included, from voxels on."""
    set_precision(precision)
    # consecutive scans of the list, a new start for every batch
    batches = [scans.voxels(range(i, i + batch)) for i in range(len(scans.points))]
    model = build_second(config)
    ours = model.encoder.cuda()
    rows = []

    def row(engine: str, work: str, samples: list[float], memory: float | None = None) -> None:
        times = Times.of(samples)
        entry = {"engine": engine, "work": work, "batch": batch, "precision": precision}
        entry |= {"median_ms": times.median, "p99_ms": times.p99, "peak_mb": memory}
        rows.append(entry)
        peak = f"{memory:8.0f} MB" if memory else ""
        print(
            f"{precision:>5} B={batch} {work:<22} {engine:<12} "
            f"median {times.median:7.3f} ms  p99 {times.p99:7.3f} ms {peak}",
            flush=True,
        )

    row("millisecond", "forward, graph", _replayed(model, config, scans, batch, precision, repeats))
    folded = copy.deepcopy(ours).eval()
    folded.fold()
    folded = folded.to(DTYPES[precision])
    with torch.inference_mode():
        row("millisecond", "forward, eager", _over(batches, repeats, folded))
    row("millisecond", "forward + backward", *_trained(ours, batches, precision, repeats))
    for name, build in available().items():
        try:
            peer = build(KITTI.sparse_shape, encoder_layers()).cuda()
            with torch.inference_mode():
                eager = copy.deepcopy(peer).eval().to(DTYPES[precision])
                row(name, "forward, eager", _over(batches, repeats, eager))
            row(name, "forward + backward", *_trained(peer, batches, precision, repeats))
        except Exception as error:  # a peer that cannot do this precision is a result, not the end
            why = reason(error)
            rows.append({"engine": name, "batch": batch, "precision": precision, "error": why})
            print(f"{precision:>5} B={batch} {name}: {why}", flush=True)
    print()
    return rows


def _over(batches: list[Voxels], repeats: int, call) -> list[float]:
    return [t for voxels in batches for t in wall(lambda v=voxels: call(v), repeats)]


@torch.inference_mode()
def _replayed(
    model: Second, config: Config, scans: Scans, batch: int, precision: str, repeats: int
) -> list[float]:
    """The encoder inside a frame graph, replayed for every batch; its rows equal the rows of calls
    one by one."""
    device = torch.device("cuda")
    named = precision if precision in PRECISIONS else "fp32"  # tf32: as torch is set
    inference = Inference(model, config, device, named)
    samples = []
    for first in range(len(scans.points)):
        clouds = [scans.points[(first + i) % len(scans.points)] for i in range(batch)]
        frame = graph_of(inference, clouds)
        points, offsets, _ = frame.load()
        there = sum(map(len, clouds))  # behind them the graph's memory holds nothing
        voxels = inference.model.voxelize(points, offsets, frame.fixed)

        def encode(voxels: Voxels = voxels, frame: FrameGraph = frame) -> tuple[Tensor, Tensor]:
            side = side_stream()
            pyramid = inference.model.index(voxels, frame.fixed, side)
            rows = inference.encode(voxels, pyramid)
            torch.cuda.current_stream().wait_stream(side)
            assert pyramid.overflow is not None  # with capacities there is one
            return rows, pyramid.overflow

        graph, (rows, overflow) = captured(encode)
        samples += wall(graph.replay, repeats)
        expected = inference.encode(*inference.model.sites(points[:there], offsets)).float()
        error = (rows[: len(expected)].float() - expected).norm() / expected.norm()
        if overflow.item() or not error < 1e-2:
            raise RuntimeError(f"the replayed graph is off by {error:.1e}")
    return samples


def _trained(
    encoder: nn.Module, batches: list[Voxels], precision: str, repeats: int
) -> tuple[list[float], float]:
    """Forward and backward in training mode, master weights in fp32; peak memory in MB."""
    encoder = copy.deepcopy(encoder).train()
    half = DTYPES[precision] != torch.float32
    gradient: list[Tensor] = []

    def step(voxels: Voxels) -> None:
        encoder.zero_grad(set_to_none=True)
        with torch.autocast("cuda", DTYPES[precision] if half else torch.float16, enabled=half):
            bev = encoder(voxels)
        if not gradient:
            gradient.append(torch.randn_like(bev))
        bev.backward(gradient[0].to(bev.dtype))

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    samples = _over(batches[: max(1, len(batches) // 2)], repeats, step)
    return samples, (torch.cuda.max_memory_allocated() - before) / 1e6


def ladder(scans: Scans, batch: int) -> dict:
    """Naive and tensor-core kernels on the same layers: microseconds of every distinct layer of
    the encoder on every rung; prints the table."""
    torch.manual_seed(0)
    levels = scans.levels(range(batch))
    names = [NAIVE, *(name for name, *_ in RUNGS)]
    result = {"device": torch.cuda.get_device_name(), "scans": scans.source, "batch": batch}
    print("{device}, torch {}, {scans}, batch {batch}".format(torch.__version__, **result))
    print(f"{'us, x faster than naive':<24} {'rows':>7}" + "".join(f"{n:>20}" for n in names))
    result["layers"] = []
    for layer in second_layers(levels, DOWNS):
        name = f"{layer.place} {layer.c_in}-{layer.c_out}"
        row = {"layer": name, **rung_times(layer, batch)}
        result["layers"].append(row)
        times = [f"{row[n]:>11.1f} {row[NAIVE] / row[n]:>6.1f} x" for n in names]
        print(f"{row['layer']:<24} {row['rows']:>7}" + "".join(times), flush=True)
    return result


def operators(scans: Scans, repeats: int) -> dict:
    """Every operator by itself, at the sizes of one KITTI scan: median milliseconds of a call, the
    device idle before and after it; prints the table."""
    torch.manual_seed(0)
    scene = Scene.of(*scans.batch([0]), KITTI, DOWNS, KITTI_ROWS, number=2)
    result: dict = {"device": torch.cuda.get_device_name(), "scans": scans.source, "rows": []}
    print(f"{result['device']}, torch {torch.__version__}, the first of {scans.source}")
    for operators, example in EXAMPLES.items():
        for name, call in example(scene):
            times = Times.of(wall(call, repeats))
            row = {"name": name, "operators": list(operators), "median_ms": times.median}
            result["rows"].append(row)
            print(f"{name:<42} {times.median:9.3f} ms", flush=True)
    return result
