"""Measures this system, and its peers in the same run where they are installed."""

from __future__ import annotations

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millisecond.data.files import require_own_json, write_json
from millisecond.tools.program import CONFIG, number, output_path, parser_of, run

if TYPE_CHECKING:
    from millisecond.detector.config import Config
    from millisecond.detector.models.second import Second

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
BATCHES = {
    "pipeline": [1, 2, 4, 8],
    "bev": [1, 4, 8],
    **{name: [1, 4] for name in ("spconv", "engines", "ops", "dataflows")},
}
REPEATS = {
    "train": (50, "steps"),
    "engines": (30, "of a call"),
    "sampling": (20, "calls"),
    "points": (5, "of a measurement"),
    **dict.fromkeys(("network", "spconv", "ops", "operators"), (20, "calls per scan")),
}
Add = Callable[..., object]  # add_argument of a command's parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    return run(lambda: _run(options))


def _example(command: str) -> str:
    return f"example: millisecond bench {command} {EXAMPLES[command]}"


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, _example("ops"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, purpose: str) -> Add:
        return commands.add_parser(name, help=purpose, epilog=_example(name)).add_argument

    add("network", "one scan from points to boxes")
    _add_training_arguments(add("train", "a training step"))
    _add_scaling_arguments(add("scaling", "training on several GPUs"))
    _add_spconv_arguments(add("spconv", "networks on spconv and on what stands in for it"))
    add_to = add("engines", "one sparse convolution beside the newest engines")
    add_to("--peers", nargs="*", choices=ENGINES, default=ENGINES)
    add_to("--seconds", type=number, default=120, help="of an engine, at most (default: 120)")
    add_to = add("pipeline", "points on the host to boxes on the host")
    add_to("--precision", nargs="+", choices=PRECISIONS, help="default: all on a GPU, else fp32")
    add_to("--calls", type=number, default=1000, help="per table (default: 1000)")
    add_to("--plot", type=output_path, help="draw the latencies there, a PNG")
    add_to = add("fleet", "files to result files, as detect goes over a recording")
    add_to("--weights", help="as of detect")
    add_to("--scans", type=number, default=2000, help="files of each kind (default: 2000)")
    add_to = add("ops", "the sparse encoder on a GPU")
    add_to("--precision", nargs="+", choices=KERNELS, default=KERNELS)
    add_to = add("ladder", "naive and tensor-core convolution")
    add_to("--batch", type=number, default=1, help="scans in a batch (default: 1)")
    add("sampling", "furthest point sampling beside PointNet++'s")
    add("points", "neighbours of points and their features beside PointNet++'s")
    add("bev", "the bird's-eye-view network on a GPU")
    add_to = add("dataflows", "sparse convolution by every dataflow")
    add_to("--precision", nargs="+", choices=KERNELS, default=["fp16"])
    add_to("--training", action="store_true", help="with the backward pass")
    add_to = add("dense3d", "dense 3-D convolution beside cuDNN and sparse")
    add_to("--plot", type=output_path, help="draw times over occupancy there, a PNG")
    add("operators", "every operator by itself")
    for name, command in commands.choices.items():
        _add_shared_arguments(name, command.add_argument)
    return parser


def _add_shared_arguments(name: str, add: Add) -> None:
    """The arguments that several commands have."""
    if name in ("network", "train", "scaling", "pipeline", "bev"):
        add("--config", type=Path, default=CONFIG)
    if name in ("network", "pipeline"):
        add("--weights", type=Path, help="weights file (default: random, seed 0)")
    if name in ("train", "scaling"):
        add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="as of train")
    if name in ("network", "fleet"):
        add("--precision", choices=PRECISIONS, default="fp32")
    if name in ("network", "train", "pipeline", "fleet"):
        add("--device", help="cpu or cuda; the GPU where there is one")
    if name in BATCHES:
        add("--batch", type=number, nargs="+", default=BATCHES[name])
    if name in REPEATS:
        repeats, what = REPEATS[name]
        add("--repeats", type=number, default=repeats, help=f"{what} (default: {repeats})")
    if name not in ("train", "scaling", "sampling", "dense3d"):
        add("--frames", type=Path, help="folder of .bin scans (default: simulated)")
        if name != "engines":
            add("--count", type=number, default=10, help="scans to use (default: 10)")
    add("--json", type=output_path, help="also write the figures there")


def _add_spconv_arguments(add: Add) -> None:
    add("--precision", nargs="+", choices=KERNELS, default=KERNELS[:3])
    add("--channels", type=number, nargs="+", default=[16, 32, 64, 128, 256, 512])
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--voxels", type=number, default=200_000, help="of a scan, at most (default: 200,000)")


def _add_training_arguments(add: Add) -> None:
    add("--root", type=Path, help="prepared data set (default: simulated streets)")
    add("--split", default="train")
    add("--prepared", type=Path, help="default: ROOT/millisecond")
    add("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)


def _add_scaling_arguments(add: Add) -> None:
    add("--root", type=Path, required=True, help="prepared data set")
    add("--streets", action="store_true", help="train on simulated streets, made on the way")
    add("--processes", type=number, nargs="+", default=[1, 2, 4])
    add("--workers", type=number, nargs="+", default=[12], help="per process")
    add("--runs", type=number, default=3, help="of each (default: 3)")
    add("--steps", type=number, default=300, help="of a run (default: 300)")


def _run(options: argparse.Namespace) -> None:
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
        return _measure_network(options)
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


def _measure_network(options: argparse.Namespace) -> dict:
    from millisecond.detector.training.distributed import processes
    from millisecond.tools.benchmarks.network import measure
    from millisecond.tools.benchmarks.timing import load_scans

    model, config = _network(options)
    scans = load_scans(options.frames, options.count, config.points)
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
    model, config = _network(options)
    scans = load_scans(options.frames, options.count, config.points)
    sets = [scans, simulated_sweeps(SWEEPS, config.points)]
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


def _network(options: argparse.Namespace) -> tuple[Second, Config]:
    """The network of --weights, or of --config with random weights, and its configuration."""
    import torch

    from millisecond.detector.config import load_config
    from millisecond.detector.detector import load_network
    from millisecond.detector.models.second import build_second

    torch.manual_seed(0)
    if options.weights:
        return load_network(options.weights)
    config = load_config(options.config)
    return build_second(config), config


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
