"""Frames per second of trainings on several GPUs of this machine, beside those on one."""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
WARM_UP = 50  # steps: the graphs are made, the workers have begun
PATIENCE = 300  # seconds, for a training to get that far
FOREVER = 1_000_000  # streets or epochs: it is stopped


class Speed(NamedTuple):
    """Medians over the records of a training."""

    frames: float  # per second
    waiting: float  # share of the time, for data


def measure(
    config: Path,
    root: Path,
    streets: bool,
    processes: Sequence[int],
    workers: Sequence[int],
    runs: int,
    steps: int,
    settings: Sequence[str],
) -> dict:
    """Trains `runs` times with each number of processes and of workers per process; prints a line
    for each. streets: train on simulated streets, and take the data set for validation alone.

    Raises OSError where a training fails.
    """
    result: dict = {"root": str(root), "streets": streets, "steps": steps, "runs": []}
    program = [sys.executable, str(TRAIN), str(config), "--root", str(root)]
    program += ["--streets", str(FOREVER)] if streets else []
    rare = [f"train.{key}={FOREVER}" for key in ("validate_every", "checkpoint_every")]
    settings = [f"train.epochs={1 if streets else FOREVER}", *rare, *settings]
    for number in workers:
        one: list[float] = []  # process
        own = [*settings, f"train.workers={number}"]
        for run, count in product(range(1, runs + 1), processes):
            speed = _train([*program, "--set", *own], count, WARM_UP + steps)
            one += [speed.frames] if count == 1 else []
            row = {"workers": number, "run": run, "processes": count, **speed._asdict()}
            line = f"{speed.frames:8.1f} frames per second, {speed.waiting:.1%} waiting for data"
            if one:
                row["of_one"] = speed.frames / count / statistics.median(one)
                line += f", per GPU {row['of_one']:.1%} of one GPU's"
            print(f"run {run}, {count} processes, {number} workers each: {line}", flush=True)
            result["runs"].append(row)
    return result


def _train(program: Sequence[str], count: int, steps: int) -> Speed:
    """The speed of a training of so many processes, which is stopped after so many steps."""
    with tempfile.TemporaryDirectory() as folder:
        output, said = Path(folder) / "training", Path(folder) / "said"
        program = [*program[:2], "--output", str(output), *program[2:]]
        with open(said, "wb") as file:
            started = [
                subprocess.Popen(program, env=environment, stdout=file, stderr=file)
                for environment in _environments(count)
            ]
            try:
                records = _wait_for(output / "log.jsonl", steps, started)
            finally:
                started[0].send_signal(signal.SIGTERM)  # stops all of them
                for process in started:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(60)
                    process.kill()
        if not records:
            last = said.read_text(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"{count} processes: the training failed: {last.removeprefix('error: ')}")
    kept = [record for record in records if record["step"] > WARM_UP]
    names = "speed/frames a second", "speed/share of waiting for data"
    return Speed(*(statistics.median(record[name] for record in kept) for name in names))


def _environments(count: int) -> list[dict[str, str]]:
    """Of each process, as torchrun sets them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    common |= {"OMP_NUM_THREADS": "1"}
    return [os.environ | common | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(count)]


def _wait_for(log: Path, step: int, started: Sequence[subprocess.Popen]) -> list[dict]:
    """The records of a training that has reached the step; none of one that ended before."""
    deadline = time.monotonic() + PATIENCE
    while all(process.poll() is None for process in started) and time.monotonic() < deadline:
        time.sleep(0.1)
        records = []
        with suppress(OSError, ValueError):  # not there yet, or its last line half written
            records = [json.loads(line) for line in log.read_text().splitlines()]
        if records and records[-1]["step"] >= step:
            return records
    return []
