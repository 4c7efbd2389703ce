"""From points on the host to boxes on the host, as a user's program calls it: latency, stages,
frames per second, memory, start."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor

from detector.config import Config
from detector.detector import Detector
from detector.inference import Inference
from detector.models.second import Second
from detector.weights import save_weights
from tools.benchmarks.first_box import first_box
from tools.benchmarks.network import hardware
from tools.benchmarks.peer_network import PeerNetwork, peer_networks
from tools.benchmarks.percentiles import Percentiles
from tools.benchmarks.pipeline_stages import stages
from tools.benchmarks.scans import Scans

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
        self,
        precision: str,
        name: str,
        scans: Scans,
        call: Callable[[Tensor], object],
        calls: int,
    ) -> None:
        """Every call by the wall clock, over the scans in turn, the graphs made before."""
        clouds, samples = scans.points, []
        for cloud in clouds * 2:
            call(cloud)
        for cloud in islice(cycle(clouds), max(calls, 1)):
            started = time.perf_counter()
            call(cloud)  # its boxes are on the host
            samples.append(1e3 * (time.perf_counter() - started))
        times = Percentiles.of(samples)
        self.samples[f"{precision}, {name}, {scans.source}"] = samples
        row = {"precision": precision, "path": name, "scans": scans.source, "calls": len(samples)}
        self.result["latency"].append({**row, **times.named()})
        print(f"{precision:>5} {name:<22} {scans.source:<22} {times}", flush=True)

    def _peers(self, precision: str, scans: Scans) -> None:
        for name, build in peer_networks().items():
            try:
                peer: PeerNetwork = build(self._config, self._model, self._device, precision)
                self._latency(precision, name, scans, peer, self._calls // FEWER)
            except Exception as error:  # one that cannot do this is a result, not the end
                reason = (str(error).strip() or repr(error)).splitlines()[-1][:80]
                self.result["peers_left_out"][f"{name}, {precision}"] = reason
                print(f"{precision:>5} {name}: {reason}", flush=True)

    def _stages(self, precision: str, inference: Inference) -> None:
        for scans in self._sets:
            found = stages(inference, scans.points)
            self.result["stages"].append({"precision": precision, "scans": scans.source, **found})
            parts = ", ".join(f"{name} {ms:.3f}" for name, ms in found.items())
            print(f"{precision:>5} stages, ms, {scans.source}: {parts}", flush=True)

    def _throughput(self, precision: str, detector: Detector, batch: int) -> None:
        """Frames per second of calls with so many clouds."""
        clouds = self._sets[0].points
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
        clouds = self._sets[0].points
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
