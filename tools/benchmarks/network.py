"""The whole network on one scan: stage by stage, points to boxes, its encoder beside its peers."""

import os
import platform
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

from millisecond.detector.config import PRECISIONS, Config
from millisecond.detector.detector import Detector
from millisecond.detector.inference import build_postprocessor
from millisecond.detector.models.bev_rows import BevRows
from millisecond.detector.models.second import Second
from millisecond.ops.lab.networks import encoder_layers
from millisecond.ops.lab.timing import Times, timed
from millisecond.ops.voxelize import Voxels
from millisecond.tools.benchmarks.peers import available, reason
from millisecond.tools.benchmarks.timing import Scans

WARM_UP = 3  # calls


def measure(
    config: Config,
    model: Second,
    scans: Scans,
    repeats: int,
    device: torch.device,
    precision: str = "fp32",
) -> dict:
    """The table of every stage over all scans, one scan per call; prints it."""
    stages = _Stages(config, model, device, precision)
    with torch.inference_mode():
        for _ in range(WARM_UP):
            stages.run(scans.points[0])
        frames = [[stages.run(cloud) for _ in range(repeats)] for cloud in scans.points]
        boxes = [len(stages.detector(cloud).boxes) for cloud in scans.points]
    calls = [call for frame in frames for call in frame]
    # a peer may have failed after the first call
    measured = [name for name in calls[0] if all(name in call for call in calls)]
    result = {
        "device": hardware(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": precision,
        "scans": scans.source,
        "boxes": boxes,
        "stages": [_row(name, frames) for name in measured],
        "peers_left_out": stages.left_out,
    }
    print_table(result)
    return result


class _Stages:
    """The parts of a detector, and the encoders of its peers."""

    def __init__(self, config: Config, model: Second, device: torch.device, precision: str):
        self.device, self.detector = device, Detector(model, config, device, precision)
        self.model = model.fold().to(device, PRECISIONS[precision])
        self.rows = BevRows.of(self.model) if device.type == "cpu" else None
        self.postprocess = build_postprocessor(config).to(device)
        layers = encoder_layers(config.model.encoder.channels, config.model.encoder.out_channels)
        self.peers: dict[str, nn.Module] = {}
        self.left_out: dict[str, str] = {}
        for name, build in available().items():
            peer = build(config.grid.voxel_grid.sparse_shape, layers).eval()
            self.peers[name] = peer.to(device, PRECISIONS[precision])

    def run(self, cloud: Tensor) -> dict[str, float]:
        """Milliseconds of each stage for points [P, 4], one after another, then of the whole."""
        model, times = self.model, {}
        points = cloud.to(self.device)
        offsets = torch.tensor([0, len(points)], dtype=torch.int32, device=self.device)
        voxels, times["voxelize"] = timed(lambda: model.voxelize(points, offsets))
        bev, times["encoder"] = timed(lambda: model.encode(voxels, model.index(voxels)))
        times |= self._peers(voxels)
        if self.rows is None:
            features, times["BEV backbone"] = timed(lambda: model.backbone(bev))
            predictions, times["heads"] = timed(lambda: model.head(features))
        else:
            pyramid = model.index(voxels)
            rows, level = model.encoder.rows(voxels.features, pyramid), pyramid.levels[-1]
            predict = self.rows.predict
            predictions, times["BEV network"] = timed(lambda: predict(rows, level, 1))
        _, times["postprocess"] = timed(lambda: self.postprocess(predictions))
        _, times["points to boxes"] = timed(lambda: self.detector(cloud))
        return times

    def _peers(self, voxels: Voxels) -> dict[str, float]:
        times = {}
        for name, peer in list(self.peers.items()):
            try:
                _, times[f"encoder of {name}"] = timed(lambda p=peer: p(voxels))
            except Exception as error:  # one that cannot do this is a result, not the end
                del self.peers[name]
                self.left_out[name] = reason(error)
        return times


def _row(stage: str, frames: list[list[dict[str, float]]]) -> dict:
    """Over all calls, and over the medians of the scans."""
    samples = [[times[stage] for times in frame] for frame in frames]
    times = Times.of([t for frame in samples for t in frame])
    medians = [statistics.median(frame) for frame in samples]
    return {
        "stage": stage,
        "median_ms": times.median,
        "p99_ms": times.p99,
        "fastest_scan_ms": min(medians),
        "slowest_scan_ms": max(medians),
    }


def print_table(result: dict) -> None:
    print(
        "{device}, {threads} threads, torch {torch}, {precision}, {scans}, "
        "{least} to {most} boxes per scan".format(
            **result, least=min(result["boxes"]), most=max(result["boxes"])
        )
    )
    print(f"{'ms':<22} {'median':>8} {'p99':>8}   median of the scans")
    for row in result["stages"]:
        print(
            "{stage:<22} {median_ms:>8.1f} {p99_ms:>8.1f}   "
            "{fastest_scan_ms:.1f} to {slowest_scan_ms:.1f}".format(**row)
        )
    for name, why in result["peers_left_out"].items():
        print(f"encoder of {name}: {why}")


def hardware(device: torch.device) -> str:
    """The device's name; of a CPU with its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        names = [line for line in listing.read_text().splitlines() if line.startswith("model name")]
        name = names[0].partition(":")[2].strip() if names else name
    return f"{name}, {os.cpu_count()} cores"
