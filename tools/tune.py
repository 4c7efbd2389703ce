"""Measure which dataflow is the fastest for each convolution of a network on your scans."""

from __future__ import annotations

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import gc
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from millisecond.tools.program import CONFIG, number, output_path, parser_of, run

if TYPE_CHECKING:
    from millisecond.ops.lab.networks import Layer
    from millisecond.ops.lab.tuned import FastestDataflow, Work
    from millisecond.tools.benchmarks.timing import Scans

EXAMPLE = """examples:
  millisecond tune scans/ --output tuned.json --precision fp16
  millisecond tune scans/ --output tuned.json --network unet --batch 1 2 4 8
"""
NETWORKS = ("second", "unet")
PRECISIONS = ("fp16", "bf16", "tf32", "fp32")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: tune(options))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE)
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
    from millisecond.data.files import require_own_json, write_json
    from millisecond.ops.lab.tuned import FORMAT, Origin, as_json
    from millisecond.ops.lab.tuner import choose, measure
    from millisecond.ops.toolchain import no_gpu
    from millisecond.tools.benchmarks.timing import load_scans

    require_own_json(options.output, lambda old: str(old.get("format")).startswith(FORMAT[:-1]))
    if wrong := no_gpu():
        raise ValueError(f"tune: needs a CUDA device; {wrong[0]}")
    scans, origin = load_scans(options.scans, options.count * max(options.batch)), Origin.here()
    print(f"{origin.device}, torch {origin.torch_version}, {scans.source}")
    gc.freeze()  # every capture of a graph collects garbage: what was imported is none
    print("us of the implicit GEMM and of the fastest dataflow, us to list the pairs of the map")
    times = measure(batches(options, scans), options.precision)
    fastest = {work: choose(us) for work, us in times.items()}
    for work, us in times.items():
        print(line(work, us, fastest[work]))
    write_json(options.output, as_json(origin, fastest, times))
    others = sum(choice.unlisted.kind != "implicit_gemm" for choice in fastest.values())
    print(f"{options.output}: {len(fastest)} layers and sizes, {others} are not an implicit GEMM")


def batches(options: argparse.Namespace, scans: Scans) -> Iterator[tuple[list[Layer], int]]:
    """The layers of each network on each batch, and the size of the batch."""
    from millisecond.detector.config import load_config
    from millisecond.detector.models.sparse_encoder import DOWNS
    from millisecond.ops import index_pyramid
    from millisecond.ops.lab.networks import second_layers, unet_layers
    from millisecond.tools.benchmarks.timing import AROUND

    config = load_config(options.config)
    encoder = config.model.encoder
    for network, batch, first in product(options.network, options.batch, range(options.count)):
        grid = config.grid.voxel_grid if network == "second" else AROUND
        frames = range(first * batch, (first + 1) * batch)
        sites = scans.voxels(frames, grid, 200_000).coords, grid.sparse_shape, batch
        if network == "second":
            levels = index_pyramid(*sites, DOWNS).levels
            layers = second_layers(levels, DOWNS, encoder.channels, encoder.out_channels)
        else:
            layers = unet_layers(*sites)
        yield layers, batch


def line(work: Work, us: dict[str, float], choice: FastestDataflow) -> str:
    """A row of the table."""
    from millisecond.ops.lab.tuner import PAIRS

    pass_ = "training" if work.training else "inference"
    rows = f"{1 << work.size >> 1}+ rows"
    what = f"{work.kind} {work.offsets} x {work.c_in}-{work.c_out} {work.precision} {pass_}, {rows}"
    times = f"{us['implicit_gemm']:9.1f} {us[str(choice.listed)]:9.1f} {us[PAIRS]:9.1f}"
    alone = "" if choice.unlisted == choice.listed else f"; alone {choice.unlisted}"
    return f"{what:<62} {times}  {choice.listed}{alone}"
