"""Measures this system, and its peers in the same run where they are installed."""

from __future__ import annotations

if __name__ == "__main__":
    from millisecond.tools import program

    program.begin()

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millisecond.tools.program import CONFIG, number, output_path, parser_of, run

if TYPE_CHECKING:
    from millisecond.detector.config import Config
    from millisecond.detector.models.second import Second
    from millisecond.tools.benchmarks.timing import Scans

PRECISIONS = ["fp32", "bf16", "fp16"]
ENGINES = ["Spira", "WarpConvNet", "FlexGEMM"]
KERNELS = ["fp16", "bf16", "tf32", "fp32"]  # precisions of single operators
EXAMPLES = {
    "network": "--frames scans/ --device cpu",
    "train": "--root kitti",
    "scaling": "--root kitti --streets --workers 6 12",
    "spconv": "--frames scans/ --precision fp16",
    "engines": "--json engines.json",
    "pipeline": "--frames scans/ --plot latency.png",
    "fleet": "--frames scans/ --weights second --precision fp16",
    "ops": "--frames scans/ --json ops.json",
    "ladder": "--frames scans/",
    "sampling": "--json sampling.json",
    "points": "--frames scans/ --json points.json",
    "bev": "--frames scans/ --json bev.json",
    "dataflows": "--frames scans/ --training",
    "dense3d": "--plot dense3d.png",
    "operators": "--frames scans/",
}
STREETS = 16  # simulated for the training step where there is no data set
SWEEPS = 3  # scans of all directions, simulated for points to boxes
BATCHES = [1, 2, 4, 8]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return run(lambda: _run(options))


def _example(command: str) -> str:
    return f"example: millisecond bench {command} {EXAMPLES[command]}"


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, _example("ops"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, purpose: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=purpose, epilog=_example(name))

    _add_network_arguments(add("network", "one scan from points to boxes"))
    _add_training_arguments(add("train", "a training step"))
    _add_scaling_arguments(add("scaling", "training on several GPUs"))
    _add_spconv_arguments(add("spconv", "networks on spconv and on what stands in for it"))
    _add_engines_arguments(add("engines", "one sparse convolution beside the newest engines"))
    _add_pipeline_arguments(add("pipeline", "points on the host to boxes on the host"))
    _add_fleet_arguments(add("fleet", "files to result files, as detect goes over a recording"))
    ops = add("ops", "the sparse encoder on a GPU")
    ops.add_argument("--batch", type=number, nargs="+", default=[1, 4])
    ops.add_argument("--precision", nargs="+", choices=KERNELS, default=KERNELS)
    ladder = add("ladder", "naive and tensor-core convolution")
    ladder.add_argument("--batch", type=number, default=1, help="scans in a batch (default: 1)")
    sampling = add("sampling", "furthest point sampling beside PointNet++'s")
    sampling.add_argument("--repeats", type=number, default=20, help="calls (default: 20)")
    points = add("points", "neighbours of points and their features beside PointNet++'s")
    points.add_argument("--repeats", type=number, default=5, help="of a measurement (default: 5)")
    bev = add("bev", "the bird's-eye-view network on a GPU")
    bev.add_argument("--config", type=Path, default=CONFIG)
    bev.add_argument("--batch", type=number, nargs="+", default=[1, 4, 8])
    dataflows = add("dataflows", "sparse convolution by every dataflow")
    dataflows.add_argument("--batch", type=number, nargs="+", default=[1, 4])
    dataflows.add_argument("--precision", nargs="+", choices=KERNELS, default=["fp16"])
    dataflows.add_argument("--training", action="store_true", help="with the backward pass")
    dense3d = add("dense3d", "dense 3-D convolution beside cuDNN and sparse")
    dense3d.add_argument("--plot", type=output_path, help="draw times over occupancy there, a PNG")
    add("operators", "every operator by itself")
    known = commands.choices
    framed = ("network", "spconv", "pipeline", "ops", "ladder", "bev", "operators", "points")
    for name in (*framed, "dataflows", "fleet"):
        known[name].add_argument(
            "--frames", type=Path, help="folder of .bin scans (default: simulated)"
        )
        known[name].add_argument(
            "--count", type=number, default=10, help="scans to use (default: 10)"
        )
    for name in ("network", "spconv", "ops", "operators"):
        known[name].add_argument(
            "--repeats", type=number, default=20, help="calls per scan (default: 20)"
        )
    for command in known.values():
        command.add_argument("--json", type=output_path, help="also write the figures there")
    return parser


def _add_network_arguments(network: argparse.ArgumentParser) -> None:
    network.add_argument("--config", type=Path, default=CONFIG)
    network.add_argument("--weights", type=Path, help="weights file (default: random, seed 0)")
    network.add_argument("--precision", choices=PRECISIONS, default="fp32")
    network.add_argument("--device", help="cpu or cuda; the GPU where there is one")


def _add_spconv_arguments(spconv: argparse.ArgumentParser) -> None:
    spconv.add_argument("--batch", type=number, nargs="+", default=[1, 4])
    spconv.add_argument("--precision", nargs="+", choices=KERNELS, default=KERNELS[:3])
    widths = [16, 32, 64, 128, 256, 512]
    spconv.add_argument("--channels", type=number, nargs="+", default=widths)
    spconv.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    spconv.add_argument(
        "--voxels", type=number, default=200_000, help="of a scan, at most (default: 200,000)"
    )


def _add_engines_arguments(engines: argparse.ArgumentParser) -> None:
    engines.add_argument("--batch", type=number, nargs="+", default=[1, 4])
    engines.add_argument("--peers", nargs="*", choices=ENGINES, default=ENGINES)
    engines.add_argument("--repeats", type=number, default=30, help="of a call (default: 30)")
    engines.add_argument(
        "--seconds", type=number, default=120, help="of an engine, at most (default: 120)"
    )
    engines.add_argument("--frames", type=Path, help="folder of .bin scans (default: simulated)")


def _add_pipeline_arguments(pipeline: argparse.ArgumentParser) -> None:
    pipeline.add_argument("--config", type=Path, default=CONFIG)
    pipeline.add_argument("--weights", type=Path, help="weights file (default: random, seed 0)")
    pipeline.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, help="default: all on a GPU, else fp32"
    )
    pipeline.add_argument("--device", help="cpu or cuda; the GPU where there is one")
    pipeline.add_argument("--calls", type=number, default=1000, help="per table (default: 1000)")
    pipeline.add_argument("--batch", type=number, nargs="+", default=BATCHES)
    pipeline.add_argument("--plot", type=output_path, help="draw the latencies there, a PNG")


def _add_fleet_arguments(fleet: argparse.ArgumentParser) -> None:
    fleet.add_argument("--weights", help="as of detect")
    fleet.add_argument("--precision", choices=PRECISIONS, default="fp32")
    fleet.add_argument("--device", help="cpu or cuda; the GPU where there is one")
    fleet.add_argument(
        "--scans", type=number, default=2000, help="files of each kind (default: 2000)"
    )


def _add_training_arguments(train: argparse.ArgumentParser) -> None:
    train.add_argument("--config", type=Path, default=CONFIG)
    train.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="as of train")
    train.add_argument("--root", type=Path, help="prepared data set (default: simulated streets)")
    train.add_argument("--split", default="train")
    train.add_argument("--prepared", type=Path, help="default: ROOT/millisecond")
    train.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    train.add_argument("--repeats", type=number, default=50, help="steps (default: 50)")
    train.add_argument("--device", help="cpu or cuda; the GPU where there is one")


def _add_scaling_arguments(scaling: argparse.ArgumentParser) -> None:
    scaling.add_argument("--config", type=Path, default=CONFIG)
    scaling.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="as of train")
    scaling.add_argument("--root", type=Path, required=True, help="prepared data set")
    scaling.add_argument(
        "--streets", action="store_true", help="train on simulated streets, made on the way"
    )
    scaling.add_argument("--processes", type=number, nargs="+", default=[1, 2, 4])
    scaling.add_argument("--workers", type=number, nargs="+", default=[12], help="per process")
    scaling.add_argument("--runs", type=number, default=3, help="of each (default: 3)")
    scaling.add_argument("--steps", type=number, default=300, help="of a run (default: 300)")


def _run(options: argparse.Namespace) -> None:
    from millisecond.data.files import require_own_json, write_json

    if options.json:
        require_own_json(options.json, lambda old: old.get("benchmark") == options.command)
    result = {"benchmark": options.command, **_measure(options)}
    if options.json:
        write_json(options.json, result)


def _measure(options: argparse.Namespace) -> dict:
    if options.command == "train":
        return _measure_training(options)
    if options.command == "scaling":
        return _measure_scaling(options)
    from millisecond.detector.config import load_config
    from millisecond.tools.benchmarks import bev, ops, points
    from millisecond.tools.benchmarks.timing import load_scans

    if options.command == "network":
        return _measure_network(options, load_scans(options.frames, options.count))
    if options.command == "pipeline":
        return _measure_pipeline(options)
    if options.command == "fleet":
        return _measure_fleet(options)
    if options.command == "spconv":
        return _measure_spconv(options)
    _require_cuda(options.command)
    if options.command == "sampling":
        return points.sampling(options.repeats)
    if options.command == "dense3d":
        return _measure_dense3d(options)
    if options.command == "engines":
        return _measure_engines(options)
    scans = load_scans(options.frames, options.count)
    if options.command == "points":
        return points.measure(scans, options.repeats)
    if options.command == "operators":
        return ops.operators(scans, options.repeats)
    if options.command == "dataflows":
        from millisecond.tools.benchmarks import dataflows

        return dataflows.measure(scans, options.batch, options.precision, options.training)
    if options.command == "bev":
        return bev.measure(load_config(options.config), scans, options.batch)
    if options.command == "ladder":
        return ops.ladder(scans, options.batch)
    sizes = options.batch, options.precision, options.repeats
    return ops.measure(load_config(CONFIG), scans, *sizes)


def _measure_spconv(options: argparse.Namespace) -> dict:
    from millisecond.tools.benchmarks.from_spconv import cases, measure
    from millisecond.tools.benchmarks.timing import load_scans

    if options.device == "cuda":
        _require_cuda(options.command)
    elif options.precision != ["fp32"]:
        raise ValueError(f"precision: {options.precision}, on a CPU --precision fp32 is measured")
    scans = load_scans(options.frames, options.count)
    place = options.voxels, options.device
    found = cases(scans, options.batch, options.channels, *place)
    return measure(found, options.precision, options.repeats, scans.source, options.device)


def _measure_engines(options: argparse.Namespace) -> dict:
    from millisecond.data.files import write_json
    from millisecond.tools.benchmarks.engines import measure
    from millisecond.tools.benchmarks.timing import load_scans, simulated_sweeps

    def keep(result: dict) -> None:
        if options.json:
            write_json(options.json, {"benchmark": options.command, **result})

    count = max(options.batch)
    scans = load_scans(options.frames, count) if options.frames else simulated_sweeps(count)
    sizes = options.batch, options.peers, options.repeats, options.seconds
    return measure(scans, *sizes, keep)


def _require_cuda(command: str) -> None:
    from millisecond.ops.toolchain import no_gpu

    if wrong := no_gpu():
        raise ValueError(f"benchmark {command}: needs a CUDA device; {wrong[0]}")


def _measure_network(options: argparse.Namespace, scans: Scans) -> dict:
    from millisecond.detector.training.distributed import processes
    from millisecond.tools.benchmarks.network import measure

    config, model = _network(options)
    with processes(options.device) as group:
        return measure(config, model, scans, options.repeats, group.device, options.precision)


def _measure_dense3d(options: argparse.Namespace) -> dict:
    from millisecond.detector.draw.png import require_own, save_png
    from millisecond.tools.benchmarks.dense3d import draw_occupancies, measure

    if options.plot:
        require_own(options.plot)
    result = measure()
    if options.plot:
        picture = draw_occupancies(result["occupancy"], result["crossings"], result["device"])
        save_png(options.plot, picture)
    return result


def _measure_pipeline(options: argparse.Namespace) -> dict:
    from millisecond.detector.draw.png import require_own, save_png
    from millisecond.detector.training.distributed import processes
    from millisecond.tools.benchmarks.pipeline import Benchmark, draw_latencies
    from millisecond.tools.benchmarks.timing import load_scans, simulated_sweeps

    if options.plot:
        require_own(options.plot)
    sets = [load_scans(options.frames, options.count), simulated_sweeps(SWEEPS)]
    config, model = _network(options)
    with processes(options.device) as group:
        every = PRECISIONS if group.device.type == "cuda" else ["fp32"]
        benchmark = Benchmark(config, model, group.device, sets, options.calls)
        for precision in options.precision or every:
            benchmark.measure(precision, options.batch)
        benchmark.start((options.precision or every)[-1])
    if options.plot:
        title = f"Points to boxes, {benchmark.result['device']}"
        save_png(options.plot, draw_latencies(benchmark.samples, title))
    return benchmark.result


def _measure_fleet(options: argparse.Namespace) -> dict:
    from millisecond.tools.benchmarks.fleet import measure
    from millisecond.tools.benchmarks.timing import load_scans, simulated_sweeps

    sets = [load_scans(options.frames, options.count), simulated_sweeps(SWEEPS)]
    given = {"--weights": options.weights, "--device": options.device}
    others = [word for name, value in given.items() if value for word in (name, value)]
    return measure(sets, options.scans, options.precision, others)


def _network(options: argparse.Namespace) -> tuple[Config, Second]:
    """The configuration and network of --weights, or of --config with random weights."""
    import torch

    from millisecond.detector.config import load_config
    from millisecond.detector.models.second import build_second
    from millisecond.detector.weights import load_weights, restore

    torch.manual_seed(0)
    if not options.weights:
        config = load_config(options.config)
        return config, build_second(config)
    config, state = load_weights(options.weights)
    model = build_second(config)
    restore(model, state, options.weights)
    return config, model


def _measure_training(options: argparse.Namespace) -> dict:
    from millisecond.data.datasets.prepare import open_database
    from millisecond.data.kitti.dataset import KittiDataset
    from millisecond.data.simulator import simulate
    from millisecond.detector.config import load_config
    from millisecond.detector.training.distributed import processes
    from millisecond.tools.benchmarks.train import measure

    config = load_config(options.config, options.set)
    if options.root:
        names, crop = config.class_names, config.grid.crop_to_image
        frames = KittiDataset(options.root, options.split, names, options.prepared, crop=crop)
        database = open_database(frames)
    else:
        frames, database = [simulate(seed) for seed in range(STREETS)], None
    with processes(options.device) as group:
        return measure(config, frames, database, options.precision, options.repeats, group.device)


def _measure_scaling(options: argparse.Namespace) -> dict:
    from millisecond.tools.benchmarks.scaling import measure

    _require_cuda(options.command)
    kind = options.config, options.root, options.streets
    numbers = options.processes, options.workers, options.runs, options.steps
    return measure(*kind, *numbers, options.set)


if __name__ == "__main__":
    sys.exit(main())
