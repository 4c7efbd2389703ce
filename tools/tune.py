"""Measure which dataflow is the fastest for each convolution of a network on your scans."""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

    from tools import program

    program.begin()

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tools.program import number, output_path, run

if TYPE_CHECKING:
    from ops.dataflow import Dataflow
    from ops.tuned import Work
    from tools.benchmarks.layer_times import Layer
    from tools.benchmarks.scans import Scans

EXAMPLE = """example:
  python tools/tune.py scans/ --output tuned.json --network unet --precision fp16
"""
NETWORKS = ("second", "unet")
PRECISIONS = ("fp16", "bf16", "tf32", "fp32")
MARGIN = 0.97  # of the implicit GEMM's time: what is hardly faster is not worth another engine


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: tune(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scans", type=Path, help="folder of .bin scans")
    parser.add_argument("--output", type=output_path, required=True, help="JSON file to write")
    parser.add_argument("--network", choices=NETWORKS, nargs="+", default=["second"])
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=["fp16"])
    parser.add_argument("--batch", type=number, nargs="+", default=[1, 4])
    parser.add_argument("--count", type=number, default=4, help="batches of each (default: 4)")
    return parser.parse_args(arguments)


def tune(options: argparse.Namespace) -> None:
    import torch

    from data.files import require_own_json, write_json
    from ops.tuned import FORMAT, Tuned, as_json
    from tools.benchmarks.scans import load_scans

    require_own_json(options.output, lambda old: old.get("format") == FORMAT)
    if not torch.cuda.is_available():
        raise ValueError("tune: needs a CUDA device, torch sees none")
    scans = load_scans(options.scans, options.count * max(options.batch))
    device = torch.cuda.get_device_name()
    print(f"{device}, {scans.source}; us of the implicit GEMM and of the fastest dataflow")
    times = measure(options, scans)
    fastest = {work: choose(us) for work, us in times.items()}
    for work, us in times.items():
        print(line(work, us, fastest[work]))
    write_json(options.output, as_json(Tuned(device, fastest), times))
    print(f"{options.output}: {len(fastest)} layers and sizes")


def measure(options: argparse.Namespace, scans: Scans) -> dict[Work, dict[str, float]]:
    """Median microseconds of each work by dataflow."""
    from ops.tuned import Work
    from tools.benchmarks.layer_times import CANDIDATES, Maps, dataflow_times

    candidates = [dataflow for dataflow in CANDIDATES if dataflow.kind != "direct"]
    samples: dict[Work, dict[str, list[float]]] = {}
    for layers, batch in batches(options, scans):
        maps = Maps(batch)
        for layer, precision, training in product(layers, options.precision, (False, True)):
            volume, rows = layer.kernel_map.forward.neighbours.shape
            shape = volume, layer.c_in, layer.c_out
            work = Work(layer.kind, *shape, precision, training, rows.bit_length())
            us = dataflow_times(layer, maps, precision, candidates, training)
            for name, time in us.items():
                samples.setdefault(work, {}).setdefault(name, []).append(time)
    return {
        work: {name: median(times) for name, times in us.items()} for work, us in samples.items()
    }


def batches(options: argparse.Namespace, scans: Scans) -> Iterator[tuple[list[Layer], int]]:
    """The layers of each network on each batch, and the size of the batch."""
    import torch

    from ops.voxelize import voxelize
    from tools.benchmarks.dataflows import SEMANTIC
    from tools.benchmarks.layer_times import second_layers, unet_layers
    from tools.benchmarks.ops import GRID

    networks = {"second": (second_layers, GRID), "unet": (unet_layers, SEMANTIC)}
    for network, batch, first in product(options.network, options.batch, range(options.count)):
        layers_of, grid = networks[network]
        frames = range(first * batch, (first + 1) * batch)
        points, offsets = scans.batch(frames, torch.device("cuda"))
        voxels = voxelize(points, offsets, grid, max_voxels=200_000)
        yield layers_of(voxels.coords, grid.sparse_shape, batch), batch


def choose(us: dict[str, float]) -> Dataflow:
    """The fastest, if it is clearly faster than the implicit GEMM."""
    from ops.dataflow import IMPLICIT_GEMM, Dataflow

    best = min(us, key=lambda name: us[name])
    worth = us[best] < MARGIN * us[str(IMPLICIT_GEMM)]
    return Dataflow.parse(best) if worth else IMPLICIT_GEMM


def line(work: Work, us: dict[str, float], dataflow: Dataflow) -> str:
    """A row of the table."""
    pass_ = "training" if work.training else "inference"
    rows = f"{1 << work.size - 1 if work.size else 0}+ rows"
    what = f"{work.kind} {work.offsets} x {work.c_in}-{work.c_out} {work.precision} {pass_}, {rows}"
    return f"{what:<62} {us['implicit_gemm']:9.1f} {us[str(dataflow)]:9.1f}  {dataflow}"


if __name__ == "__main__":
    sys.exit(main())
