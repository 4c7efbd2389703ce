"""Measure which dataflow is the fastest for each convolution of a network on your scans."""

from __future__ import annotations

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from millisecond.tools.program import number, output_path, run

if TYPE_CHECKING:
    from millisecond.ops.lab.tuned import FastestDataflow, Work
    from millisecond.tools.benchmarks.layer_times import Layer, Maps
    from millisecond.tools.benchmarks.timing import Scans

EXAMPLE = """examples:
  millisecond tune scans/ --output tuned.json --precision fp16
  millisecond tune scans/ --output tuned.json --network unet --batch 1 2 4 8
"""
CONFIG = Path(__file__).resolve().parents[1] / "configs" / "second_kitti.yaml"
NETWORKS = ("second", "unet")
PRECISIONS = ("fp16", "bf16", "tf32", "fp32")
ORDERED, PAIRS = "implicit_gemm, rows in order", "list pairs"  # beside the dataflows
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
    parser.add_argument(
        "--config", type=Path, default=CONFIG, help="of second (default: configs/second_kitti.yaml)"
    )
    parser.add_argument("--precision", choices=PRECISIONS, nargs="+", default=["fp16"])
    parser.add_argument("--batch", type=number, nargs="+", default=[1, 4])
    parser.add_argument("--count", type=number, default=4, help="batches of each (default: 4)")
    return parser.parse_args(arguments)


def tune(options: argparse.Namespace) -> None:
    import torch

    from millisecond.data.files import require_own_json, write_json
    from millisecond.ops.lab.tuned import FORMAT, Origin, as_json
    from millisecond.tools.benchmarks.timing import load_scans

    require_own_json(options.output, lambda old: str(old.get("format")).startswith(FORMAT[:-1]))
    if not torch.cuda.is_available():
        raise ValueError("tune: needs a CUDA device, torch sees none")
    scans, origin = load_scans(options.scans, options.count * max(options.batch)), Origin.here()
    print(f"{origin.device}, torch {origin.torch_version}, {scans.source}")
    gc.freeze()  # every capture of a graph collects garbage: what was imported is none
    print("us of the implicit GEMM and of the fastest dataflow, us to list the pairs of the map")
    times = measure(options, scans)
    fastest = {work: choose(us) for work, us in times.items()}
    for work, us in times.items():
        print(line(work, us, fastest[work]))
    write_json(options.output, as_json(origin, fastest, times))
    others = sum(choice.unlisted.kind != "implicit_gemm" for choice in fastest.values())
    print(f"{options.output}: {len(fastest)} layers and sizes, {others} are not an implicit GEMM")


def measure(options: argparse.Namespace, scans: Scans) -> dict[Work, dict[str, float]]:
    """Median microseconds of each work by dataflow, of the implicit GEMM on rows in order (where a
    layer of ops.spconv gains by it), and to list the pairs of the map."""
    from millisecond.ops.lab.tuned import Work
    from millisecond.tools.benchmarks.layer_times import Maps

    samples: dict[Work, dict[str, list[float]]] = {}
    for layers, batch in batches(options, scans):
        maps = Maps(batch)
        for layer, precision, training in product(layers, options.precision, (False, True)):
            volume, rows = layer.kernel_map.forward.neighbours.shape
            shape = volume, layer.c_in, layer.c_out
            work = Work(layer.kind, *shape, precision, training, rows.bit_length())
            for name, time in times_of(layer, maps, precision, training).items():
                samples.setdefault(work, {}).setdefault(name, []).append(time)
    return {
        work: {name: median(times) for name, times in us.items()} for work, us in samples.items()
    }


def times_of(layer: Layer, maps: Maps, precision: str, training: bool) -> dict[str, float]:
    """Microseconds, see `measure`."""
    from millisecond.ops.lab import pair_map
    from millisecond.ops.lab.dataflow import IMPLICIT_GEMM
    from millisecond.tools.benchmarks.layer_times import CANDIDATES, dataflow_times, in_order
    from millisecond.tools.benchmarks.timing import Times, wall

    candidates = [dataflow for dataflow in CANDIDATES if dataflow.kind != "direct"]
    us = dataflow_times(layer, maps, precision, candidates, training)
    ordered = in_order(layer, precision)
    if ordered is not None:
        implicit = dataflow_times(ordered, maps, precision, [IMPLICIT_GEMM], training)
        us[ORDERED] = implicit[str(IMPLICIT_GEMM)]
    us[PAIRS] = 1e3 * Times.of(wall(lambda: pair_map(layer.kernel_map), 5)).median
    return us


def batches(options: argparse.Namespace, scans: Scans) -> Iterator[tuple[list[Layer], int]]:
    """The layers of each network on each batch, and the size of the batch."""
    import torch

    from millisecond.detector.config import load_config
    from millisecond.ops.voxelize import voxelize
    from millisecond.tools.benchmarks.dataflows import SEMANTIC
    from millisecond.tools.benchmarks.layer_times import second_layers, unet_layers

    config = load_config(options.config)
    encoder = config.model.encoder
    second = partial(second_layers, channels=encoder.channels, out_channels=encoder.out_channels)
    networks = {"second": (second, config.grid.voxel_grid), "unet": (unet_layers, SEMANTIC)}
    for network, batch, first in product(options.network, options.batch, range(options.count)):
        layers_of, grid = networks[network]
        frames = range(first * batch, (first + 1) * batch)
        points, offsets = scans.batch(frames, torch.device("cuda"))
        voxels = voxelize(points, offsets, grid, max_voxels=200_000)
        yield layers_of(voxels.coords, grid.sparse_shape, batch), batch


def choose(us: dict[str, float]) -> FastestDataflow:
    """The fastest, if it is clearly faster than the implicit GEMM: on listed pairs, and together
    with the time to list them."""
    from millisecond.ops.lab.dataflow import IMPLICIT_GEMM, Dataflow
    from millisecond.ops.lab.tuned import FastestDataflow

    flows = {name: time for name, time in us.items() if name not in (ORDERED, PAIRS)}
    best, implicit = min(flows, key=lambda name: flows[name]), us[str(IMPLICIT_GEMM)]
    listed = flows[best] < MARGIN * implicit
    unlisted = flows[best] + us[PAIRS] < MARGIN * min(implicit, us.get(ORDERED, implicit))
    fastest = Dataflow.parse(best)
    return FastestDataflow(*(fastest if worth else IMPLICIT_GEMM for worth in (listed, unlisted)))


def line(work: Work, us: dict[str, float], choice: FastestDataflow) -> str:
    """A row of the table."""
    pass_ = "training" if work.training else "inference"
    rows = f"{1 << work.size >> 1}+ rows"
    what = f"{work.kind} {work.offsets} x {work.c_in}-{work.c_out} {work.precision} {pass_}, {rows}"
    times = f"{us['implicit_gemm']:9.1f} {us[str(choice.listed)]:9.1f} {us[PAIRS]:9.1f}"
    alone = "" if choice.unlisted == choice.listed else f"; alone {choice.unlisted}"
    return f"{what:<62} {times}  {choice.listed}{alone}"


if __name__ == "__main__":
    sys.exit(main())
