"""Train a network on a data set in KITTI's layout, or of plain files."""

if __name__ == "__main__":
    from millisecond.tools import program

    program.start(__file__)

import argparse
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path

from millisecond.data.augment import GroundTruthDatabase
from millisecond.data.datasets import Dataset, require_apart
from millisecond.data.datasets.prepare import open_database
from millisecond.data.files import locked
from millisecond.data.metric.kitti import WIDTH
from millisecond.data.simulator.recording import SimulatedStreets
from millisecond.data.simulator.sensors import street_sensor
from millisecond.detector.config import Config, load_config
from millisecond.detector.config_check import data_warnings
from millisecond.detector.training.checkpoints import BEST
from millisecond.detector.training.distributed import EXIT_CODE, Processes, first_to_say, processes
from millisecond.detector.training.outcome import advice, outcome_of, read_records, table
from millisecond.detector.training.run import Training, build_training
from millisecond.detector.training.trainer import NotFinite
from millisecond.tools.program import config_file, dataset_for, number, output_path, parser_of, run

EXAMPLE = """examples:
  millisecond prepare --root kitti
  millisecond train configs/second_kitti.yaml --root kitti --output output/second
  torchrun --nproc-per-node 8 tools/train.py configs/second_kitti.yaml --root kitti \\
      --output output/second --resume
  millisecond train mine.yaml --root mine --output output/mine --from weights.safetensors

Ctrl-C and SIGTERM save a checkpoint; the same command with --resume goes on from it as if it had
never stopped. detector/config.py explains the keys of CONFIG. A training ends with what was
reached, where weights and curves are, and what may come next.
"""
USUAL = "--resume --from --set --val-split --device"

CONTINUED = " \\\n      "  # between the options of a command that is too long for a line
STREETS_OF_A_SEED = 1_000_000_000  # trainings with other seeds see other streets


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return run(lambda: train_together(options), say=say_once)


def train_together(options: argparse.Namespace) -> int:
    """Train as one of the processes that torchrun started, or alone; returns the exit code."""
    try:
        with processes(options.device) as group:
            return train(options, group)
    except NotFinite as error:
        say_once(f"error: {error}")
        return 1


def say_once(line: str) -> None:
    """Prints what all processes have to say once, on stderr."""
    if first_to_say(line):
        print(line, file=sys.stderr)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, EXAMPLE, USUAL)
    add = parser.add_argument
    add("config", nargs="?", type=config_file, metavar="CONFIG", help="YAML file, see configs/")
    add("--output", type=output_path, required=True, help="folder for all that is written")
    add("--resume", action="store_true", help="go on with the training in OUTPUT")
    add(
        "--from",
        dest="start",
        type=Path,
        metavar="WEIGHTS",
        help="begin with the weights of this file, or of second, second_small or any, which are "
        "shipped, as far as they fit; see docs/few_labels.md",
    )
    add(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="values that replace values of CONFIG, e.g. train.lr=0.001",
    )
    add("--device", help="cpu or cuda; the GPU where there is one")
    add = parser.add_argument_group("data").add_argument
    add("--root", type=Path, required=True, help="folder of the data set")
    add("--train-split", metavar="SPLIT", help="default: train")
    add(
        "--streets",
        type=number,
        metavar="N",
        help="train on N new simulated streets per epoch instead, made while it trains; ROOT is "
        "for validation then, and no objects are pasted",
    )
    add("--sensor", help="that scans the streets, see millisecond simulate (default: train.sensor)")
    add("--val-split", default="val", metavar="SPLIT", help="default: val")
    add(
        "--prepared",
        type=Path,
        metavar="DIR",
        help="what millisecond prepare wrote (default: ROOT/millisecond)",
    )
    options = parser.parse_args(arguments)
    if options.config is None and options.set and "=" not in options.set[-1]:
        # `--set a=b CONFIG`: the option took it along
        options.config = config_file(options.set.pop())
    if options.config is None:
        parser.error("the following arguments are required: CONFIG")
    if options.start and options.resume:
        parser.error("--resume goes on from the checkpoint in OUTPUT: leave --from out")
    return options


def train(options: argparse.Namespace, group: Processes) -> int:
    """Runs a training to its end or to a signal; returns the exit code."""
    if options.sensor is not None and not options.streets:
        raise ValueError(f"--sensor {options.sensor}: is for simulated streets; add --streets N")
    if options.train_split is not None and options.streets:
        raise ValueError(
            f"--train-split {options.train_split}: --streets {options.streets} trains on no split; "
            "leave one of them out"
        )
    require_apart(options.output, options.root)
    config = load_config(options.config, options.set)
    moving = config.model.velocity and not options.streets  # streets tell the velocities themselves
    opened = partial(
        dataset_for, config, options.root, prepared=options.prepared, velocities=moving
    )
    validation_frames = opened(options.val_split)
    frames, database = training_frames(options, config, opened, group)
    with ExitStack() as held:
        group.of_first(lambda: held.enter_context(locked(options.output)))
        if group.first:
            if not isinstance(frames, SimulatedStreets):  # they are made as they are needed
                for line in data_warnings(config, frames, validation_frames, database):
                    print(f"warning: {line}", file=sys.stderr)
                frames.warn_of_changes()
            validation_frames.warn_of_changes()
        data, place = (frames, validation_frames, database), (options.output, group)
        training = build_training(config, *data, *place, options.resume, options.start)
        stopped_by = training.run()
    if stopped_by and group.first:
        again = "the same command with --resume" + " instead of --from" * bool(options.start)
        print(f"stopped at step {training.state.step}; {again} goes on")
    elif group.first:
        print(report(training, options))
    return EXIT_CODE.get(stopped_by, 0)


def training_frames(
    options: argparse.Namespace, config: Config, opened: Callable[[str], Dataset], group: Processes
) -> tuple[Dataset | SimulatedStreets, GroundTruthDatabase | None]:
    """What to train on, and the objects to paste into it."""
    if options.streets:
        config.points.require_plain(f"--streets {options.streets}", "train on a split instead")
        sensor = street_sensor(options.sensor or config.train.sensor)
        first = SimulatedStreets.first + STREETS_OF_A_SEED * config.train.seed
        return SimulatedStreets(options.streets, first, sensor, config.grid.crop_to_image), None
    frames = opened(options.train_split or "train")
    if not any(config.augment.sample.values()):
        return frames, None
    return frames, group.of_first(lambda: open_database(frames))


def report(training: Training, options: argparse.Namespace) -> str:
    """What was reached and where it lies, and what may come next."""
    output, config = options.output, training.config
    outcome = outcome_of(read_records(output / "log.jsonl"))
    last, best = output / "weights.safetensors", outcome.best
    took = timedelta(seconds=round(outcome.seconds))
    epochs = f"{config.train.epochs} epoch{'s' * (config.train.epochs > 1)}"
    lines = [f"trained {epochs}, {training.state.step} steps, in {took}"]
    if best is not None and best.mean > 0:
        lines[0] += f": the best AP in validation was {best.mean:.1f}, after epoch {best.epoch}"
    lines += ["", *table(outcome), "", f"weights: {last}, after the last epoch"]
    if best is not None and (output / BEST).is_file():
        lines.append(f"         {output / BEST}, after epoch {best.epoch}")
    lines.append(f"curves:  tensorboard --logdir {shlex.quote(str(output))}")
    data, results = [["--root", options.root], ["--split", options.val_split]], output / "results"
    lines += ["", "next:"]
    for command in (
        [["evaluate", last], *data, ["--output", results]],
        [["report", results], *data, ["--output", output / "report.html"]],
        [["visualize"], *data, ["--weights", last], ["--order", "worst"]],
    ):
        parts = [shlex.join(map(str, words)) for words in command]
        line = f"  millisecond {' '.join(parts)}"
        lines.append(line if len(line) <= WIDTH else f"  millisecond {CONTINUED.join(parts)}")
    tips = advice(outcome, config)
    lines += ["", "what to try:"] * bool(tips)
    lines += [textwrap.fill(f"- {tip}", WIDTH, subsequent_indent="  ") for tip in tips]
    return "\n".join(lines)
