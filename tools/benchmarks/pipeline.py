"""From points on the host to boxes on the host, as a user's program calls it: latency, stages,
frames per second, memory, start; a picture of the latencies.

On a GPU each stage is a CUDA graph of its own, else it is timed by the wall clock.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from millisecond.data.checks.leveling import SCANS
from millisecond.detector.config import Config
from millisecond.detector.detector import Detector
from millisecond.detector.draw.style import BACKGROUND, FAINT, GRID, TEXT, Colour
from millisecond.detector.draw.text import shortened, width, write
from millisecond.detector.frame_graph import FrameGraph, FrameGraphs
from millisecond.detector.inference import Inference
from millisecond.detector.models.second import Second
from millisecond.detector.weights import save_weights
from millisecond.ops import Pyramid, Voxels
from millisecond.ops.lab.timing import kernel_time, wall
from millisecond.tools.benchmarks.first_box import first_box
from millisecond.tools.benchmarks.network import hardware
from millisecond.tools.benchmarks.peers import PeerNetwork, peer_networks, reason
from millisecond.tools.benchmarks.timing import Percentiles, Scans

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
    voxels, pyramid = model.sites(cloud, offsets)
    times = {
        "voxelize": clock(lambda: model.voxelize(cloud, offsets)),
        "index": clock(lambda: model.index(voxels)),
    }
    return times | _network(inference, voxels, pyramid, clock)


def _on_gpu(inference: Inference, cloud: Tensor) -> dict[str, float]:
    graph = graph_of(inference, [cloud])
    points, offsets, late = graph.load()
    model, fixed = inference.model, graph.fixed
    voxels, pyramid = model.sites(points, offsets, fixed)
    times = {
        "load": kernel_time(graph.load),
        "voxelize": kernel_time(lambda: model.voxelize(points, offsets, fixed)),
        "index": kernel_time(lambda: model.index(voxels, fixed)),
    }
    times |= _network(inference, voxels, pyramid, kernel_time)
    cells = inference.cells(pyramid)
    if cells is not None:
        times["cells, beside the encoder"] = kernel_time(lambda: inference.cells(pyramid))
    found = inference.postprocess.select(inference.forward(points, offsets, fixed).predictions)
    bev = model.encode(voxels, pyramid)
    times["dense BEV network"] = kernel_time(lambda: model.predict(bev))
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


def graph_of(inference: Inference, clouds: Sequence[Tensor]) -> FrameGraph:
    """A graph that holds the clouds' points."""
    graphs = FrameGraphs(inference)
    graphs.finish(graphs.launch(clouds), clouds)  # from now on the capacity is known
    graph = graphs.launch(clouds)
    if graph is None:
        raise ValueError(
            f"a cloud of {max(map(len, clouds))} points fits no graph; raise grid.max_voxels_test"
        )
    graphs.finish(graph, clouds)
    return graph


WIDTH, LEFT, RIGHT = 1100, 40, 40  # pixels
TITLE, ROW, BARS = 56, 150, 78  # heights: of the title, of a series, of its bars
BAR = 4  # pixels of a bar
FILL: Colour = (70, 110, 178)
MARKS: dict[str, Colour] = {"p50": (52, 224, 108), "p90": (255, 214, 50), "p99": (255, 84, 84)}


def draw_latencies(samples: Mapping[str, Sequence[float]], title: str) -> np.ndarray:
    """Milliseconds by the name of their series -> a picture [H, W, 3] uint8.

    Each series has its own scale: from its fastest call to its 99.9th percentile.
    """
    image = Image.new("RGB", (WIDTH, TITLE + ROW * len(samples)), BACKGROUND)
    draw = ImageDraw.Draw(image)
    write(draw, (LEFT, TITLE / 2), shortened(title, 18, WIDTH - LEFT - RIGHT), TEXT, 18)
    for number, (name, milliseconds) in enumerate(samples.items()):
        _series(draw, TITLE + ROW * number, name, milliseconds)
    return np.asarray(image)


def _series(
    draw: ImageDraw.ImageDraw, top: float, name: str, milliseconds: Sequence[float]
) -> None:
    times = Percentiles.of(milliseconds)
    low, high = min(milliseconds), times.p99_9
    high = max(high, low * 1.01, low + 1e-3)  # calls that all took the same
    room, base = WIDTH - LEFT - RIGHT, top + 26 + BARS
    counts, _ = np.histogram(milliseconds, bins=room // BAR, range=(low, high))
    write(draw, (LEFT, top + 10), f"{name}: {len(milliseconds)} calls", TEXT, 14)
    slow = sum(time > high for time in milliseconds)
    text = f"p99.9 {times.p99_9:.3f} ms" + (f", {slow} slower" if slow else "")
    right: float = WIDTH - RIGHT
    percentiles = [(f"{mark} {getattr(times, mark):.3f}", MARKS[mark]) for mark in MARKS]
    for said, colour in ((text, FAINT), *reversed(percentiles)):  # the slowest first
        write(draw, (right, top + 10), said, colour, 14, "rm")
        right -= width(said, 14) + 16

    # ---- axis ----
    step = _step(high - low)
    for tick in np.arange(np.ceil(low / step) * step, high + step * 1e-6, step):
        x = LEFT + room * (tick - low) / (high - low)
        draw.line((x, base - BARS, x, base + 4), GRID)
        write(draw, (x, base + 14), f"{tick:.6g}", FAINT, 12, "mm")
    draw.line((LEFT, base, LEFT + room, base), FAINT)

    # ---- bars and percentiles ----
    for place, count in enumerate(counts):
        if count:
            x = LEFT + place * BAR
            height = max(1, round(BARS * count / counts.max()))
            draw.rectangle((x, base - height, x + BAR - 2, base - 1), FILL)
    for mark, colour in MARKS.items():
        x = LEFT + room * (getattr(times, mark) - low) / (high - low)
        draw.line((x, base - BARS, x, base), colour)


def _step(span: float) -> float:
    """A round distance of the ticks: 1, 2 or 5 times a power of ten, six to fifteen of them."""
    power = 10 ** np.floor(np.log10(span / 5))
    return float(next(step for step in (power, 2 * power, 5 * power) if span / step < 15))


SECONDS = 1.0  # for which frames are counted
FEWER = 10  # the calls that are not the detector's own are fewer by this factor


class Benchmark:
    """Everything that is measured of one network, printed as it comes."""

    def __init__(
        self, config: Config, model: Second, device: torch.device, sets: Sequence[Scans], calls: int
    ):
        """sets: clouds that are measured one set after another; batches are of the first."""
        self._config, self._model, self._device = config, model, device
        self._sets, self._calls = sets, calls
        self.samples: dict[str, list[float]] = {}  # milliseconds of every call, for a picture
        self.result: dict = {
            "device": hardware(device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "scans": [scans.source for scans in sets],
            "latency": [],
            "stages": [],
            "throughput": [],
            "memory_mb": {},
            "peers_left_out": {},
        }

    def measure(self, precision: str, batches: Sequence[int]) -> None:
        """All tables of one precision."""
        detector = Detector(self._model, self._config, self._device, precision)
        inference = Inference(self._model, self._config, self._device, precision)
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        for scans in self._sets:
            name = "graph" if on_gpu else "eager"
            self._latency(precision, name, scans, detector.detect, self._calls)
            if on_gpu:
                eager = lambda cloud: inference([cloud])  # noqa: E731
                self._latency(precision, "eager", scans, eager, self._calls // FEWER)
                self._peers(precision, scans)
        self._stages(precision, inference)
        for batch in batches:
            self._throughput(precision, detector, batch)
        if on_gpu:
            self._stream(precision, detector)
            held = torch.cuda.max_memory_reserved() / 1e6
            self.result["memory_mb"][precision] = held
            print(f"{precision}: {held:.0f} MB of the GPU's memory held at most, caches included")
        gc.collect()

    def _latency(
        self, precision: str, name: str, scans: Scans, call: Callable[[Tensor], object], calls: int
    ) -> None:
        """Every call by the wall clock, over the scans in turn, the graphs made before."""
        samples, recordings = [], self._recordings(scans)
        for clouds in recordings:
            for cloud in clouds * (SCANS + 1 if self._config.grid.level else 2):
                call(cloud)
            for cloud in islice(cycle(clouds), max(calls // len(recordings), 1)):
                started = time.perf_counter()
                call(cloud)  # its boxes are on the host
                samples.append(1e3 * (time.perf_counter() - started))
        times = Percentiles.of(samples)
        self.samples[f"{precision}, {name}, {scans.source}"] = samples
        row = {"precision": precision, "path": name, "scans": scans.source, "calls": len(samples)}
        self.result["latency"].append({**row, **times.named()})
        print(f"{precision:>5} {name:<22} {scans.source:<22} {times}", flush=True)

    def _recordings(self, scans: Scans) -> list[list[Tensor]]:
        """All scans in turn; each for itself where the network knows the ground of a recording."""
        clouds = scans.points
        return [[cloud] for cloud in clouds] if self._config.grid.level else [clouds]

    def _peers(self, precision: str, scans: Scans) -> None:
        for name, build in peer_networks().items():
            try:
                peer: PeerNetwork = build(self._config, self._model, self._device, precision)
                self._latency(precision, name, scans, peer, self._calls // FEWER)
            except Exception as error:  # one that cannot do this is a result, not the end
                why = self.result["peers_left_out"][f"{name}, {precision}"] = reason(error)
                print(f"{precision:>5} {name}: {why}", flush=True)

    def _stages(self, precision: str, inference: Inference) -> None:
        for scans in self._sets:
            found = stages(inference, scans.points)
            self.result["stages"].append({"precision": precision, "scans": scans.source, **found})
            parts = ", ".join(f"{name} {ms:.3f}" for name, ms in found.items())
            print(f"{precision:>5} stages, ms, {scans.source}: {parts}", flush=True)

    def _throughput(self, precision: str, detector: Detector, batch: int) -> None:
        """Frames per second of calls with so many clouds."""
        clouds = self._recordings(self._sets[0])[0]
        together = [clouds[number % len(clouds)] for number in range(batch)]
        detector.detect_batch(together)
        frames, rate = 0, 0.0
        started = time.perf_counter()
        while not rate or time.perf_counter() - started < SECONDS:
            detector.detect_batch(together)
            frames += batch
            rate = frames / (time.perf_counter() - started)
        self._rate(precision, f"batch of {batch}", rate)

    def _stream(self, precision: str, detector: Detector) -> None:
        """Frames per second one after another, the next one's copy beside the work."""
        clouds = self._recordings(self._sets[0])[0]
        for _ in detector.stream(clouds):
            pass
        started, repeats = time.perf_counter(), max(1, self._calls // len(clouds))
        frames = sum(1 for _ in detector.stream(clouds * repeats))
        self._rate(precision, "stream", frames / (time.perf_counter() - started))

    def _rate(self, precision: str, way: str, rate: float) -> None:
        row = {"precision": precision, "way": way, "frames_per_second": rate}
        self.result["throughput"].append(row)
        print(f"{precision:>5} {way:<12} {rate:8.0f} frames per second", flush=True)

    def start(self, precision: str) -> None:
        """Seconds from the start of a fresh process to its first box."""
        with tempfile.TemporaryDirectory() as folder:
            weights = Path(folder) / "weights.safetensors"
            save_weights(weights, self._model, self._config)
            times = first_box(weights, str(self._device), precision, self._sets[0].points[0])
        self.result["start"] = {"precision": precision, **times}
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in times.items())
        print(f"start of a process, s, {precision}: {parts}")
