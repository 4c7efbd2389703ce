"""Spoils what users hand in, at random but seeded, and calls every program on it.

`pytest tests/tools/test_fuzz.py` runs it for 20 s; by hand, for longer: `pytest -s
tests/tools/test_fuzz.py --seconds 3600 --seed 1`. A case that fails is repeated by its seed and
number: `--seed 1 --case 7`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch

from millisecond.detector.draw.scene import SceneRenderer, SceneUnavailable
from millisecond.tools import simulate
from tests.helpers.fuzz.arrays import spoiled, wrong_with
from tests.helpers.fuzz.judge import call, snapshot
from tests.helpers.fuzz.mutations import spoil, spoil_argument, spoil_data_set
from tests.helpers.fuzz.world import COMMANDS, World


class Failure(NamedTuple):
    case: int
    command: str
    spoiled: str
    what: str


def no_scene(*_, **__) -> None:
    """The 3-D picture depends on no file, and takes seconds."""
    raise SceneUnavailable("not here")


def run_case(world: World, folder: Path, seed: int, case: int) -> Failure | None:
    """One program on one spoiled world; what went wrong, if anything did."""
    rng = np.random.default_rng((seed, case))
    weights = np.array([command.weight for command in COMMANDS])
    command = COMMANDS[rng.choice(len(COMMANDS), p=weights / weights.sum())]
    place = folder / f"case{case}" / "deep" / "down"  # ../../x is still of this case
    own = world.copy(place / "world")
    arguments, writes, done = command.arguments.split(), command.writes.split(), []
    if rng.random() < 0.15:
        done.append(spoil_argument(arguments, rng))
        writes += [done[0].partition("/")[0], "output"]  # it may name the output
    if "plain" in arguments and rng.random() < 0.6:
        done.append(spoil_data_set(own / "plain", rng))
    if not done or rng.random() < 0.3:
        done += [spoil(own, rng) for _ in range(rng.choice([1, 1, 1, 2, 5]))]
    if command.tool is simulate and not any((own / "kitti").rglob("*")):
        writes.append("kitti")  # it makes the root anew
    before = snapshot(own, writes)
    wrong = call(command.tool, arguments, own)
    after = snapshot(own, writes)
    if not wrong and after != before:
        wrong = (
            f"changed {[name for name in before | after if before.get(name) != after.get(name)]}"
        )
    beside = [path for path in place.parents[1].rglob("*") if own not in (path, *path.parents)]
    beside = sorted(path.name for path in beside if path not in (place, place.parent))
    if not wrong and beside and not done[0].startswith(".."):
        wrong = f"wrote beside the world: {beside}"
    shutil.rmtree(folder / f"case{case}")
    tool = command.tool.__name__.rpartition(".")[2]
    return Failure(case, " ".join([tool, *arguments]), "; ".join(done), wrong) if wrong else None


def run_call(world: World, seed: int, case: int) -> Failure | None:
    """A detector that is handed a hostile array from Python."""
    rng = np.random.default_rng((seed, case, 1))
    what, given = spoiled(world.points, rng)
    wrong = wrong_with(world.detectors[rng.integers(2)], given, rng)
    return Failure(case, "Detector", what, wrong) if wrong else None


def fuzz(seconds: float, seed: int, case: int | None = None) -> list[Failure]:
    """Runs cases until the time is over, or one case alone; returns those that failed."""
    failures, number, threads = [], case or 0, torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small for more
    no_scenes = mock.patch.object(SceneRenderer, "draw", no_scene)
    with tempfile.TemporaryDirectory() as folder, no_scenes:
        world = World(Path(folder) / "made")
        cases = Path(folder) / "cases"
        cases.mkdir()
        began = time.monotonic()
        while number == case or (case is None and time.monotonic() - began < seconds):
            failures_here = [run_case(world, cases, seed, number), run_call(world, seed, number)]
            for failure in filter(None, failures_here):
                failures.append(failure)
                print(json.dumps(failure._asdict(), indent=1).replace("\\n", "\n"), flush=True)
            number += 1
    torch.set_num_threads(threads)
    print(f"{number - (case or 0)} cases, {len(failures)} failed", flush=True)
    return failures
