"""The sizes of the house: no change makes it larger, but for what a new use takes.

`make lint` prints them.
"""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.warm_processes import WarmProcess

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("ops", "data", "detector", "tools")
PLACES = (*FLOORS, "examples")
LIMITS = {
    "code files beside the tests, without ops/lab": 360,
    "lines of code outside ops/lab": 72_145,
    "import circles": 0,
    "class names that occur twice": 5,
    "Python files that a scan on a CPU runs through": 18,
    "Python files that a training step on a CPU runs through": 16,
}
SETUP = """
import sys, warnings, numpy
warnings.simplefilter("ignore")
cloud = numpy.random.default_rng(0).uniform((0, -20, -2, 0), (40, 20, 0, 1), (500, 4)).astype("f4")
files = set()
def watched(action):
    action()  # what only the first call does
    sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
    action()
    sys.setprofile(None)
    print(*files, sep="\\n")
"""
SCAN = """
from millisecond import Detector
detector = Detector.from_weights("second_small", "cpu")
watched(lambda: detector(cloud))
"""
STEP = """
import torch
from millisecond.data.frame import collate
from millisecond.data.simulator import simulate
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.training.build import build_trainer
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.losses import build_criterion
config = load_config("configs/second_small.yaml")
alone = Processes(0, 1, torch.device("cpu"))
trainer = build_trainer(build_second(config), build_criterion(config), config.train, 9, alone)
batch = collate([simulate(3)], config.class_names)
watched(lambda: trainer.step([batch]))
"""


def sources() -> list[Path]:
    kinds = {".py", ".cu", ".cuh", ".h", ".cpp"}
    files = (path for place in PLACES for path in (ROOT / place).rglob("*"))
    return [p for p in files if p.suffix in kinds and "lab" not in p.relative_to(ROOT).parts[:2]]


def trees() -> dict[str, ast.Module]:
    """The Python modules by their names without `millisecond.`."""
    paths = (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
    return {
        re.sub(r"\.__init__$", "", ".".join(path.relative_to(ROOT).with_suffix("").parts)): (
            ast.parse(path.read_text(encoding="utf-8"))
        )
        for path in paths
    }


def circles(modules: dict[str, ast.Module]) -> int:
    """Groups of modules that import each other, when they are loaded."""
    graph = {}
    for name, tree in modules.items():
        wanted = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                home = node.module.removeprefix("millisecond.")
                inner = {f"{home}.{alias.name}" for alias in node.names} & modules.keys()
                wanted |= inner or {home} & modules.keys()
        graph[name] = wanted - {name}

    def reached(start: str) -> set[str]:
        seen, rest = set(), [start]
        while rest:
            new = graph[rest.pop()] - seen
            seen |= new
            rest += new
        return seen

    below = {name: reached(name) for name in graph}
    groups = {frozenset(m for m in below[n] if n in below[m]) for n in below if n in below[n]}
    return len(groups)


def files_run_by(program: str) -> int:
    begin = f"import os; os.chdir({str(ROOT)!r})\n"
    process = WarmProcess(["-c", begin + SETUP + program], {})
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    inside = [line for line in output.splitlines() if Path(line).is_relative_to(ROOT)]
    return sum(Path(line).suffix == ".py" and ".venv" not in line for line in inside)


@pytest.fixture(scope="module")
def sizes() -> dict[str, int]:
    files, modules = sources(), trees()
    classes = Counter(
        node.name
        for tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    twice = sum(count > 1 for count in classes.values())
    numbers = (len(files), lines, circles(modules), twice, files_run_by(SCAN), files_run_by(STEP))
    return dict(zip(LIMITS, numbers, strict=True))


@pytest.mark.parametrize("size", LIMITS)
def test_the_house_does_not_grow(size, sizes):
    print(f"{sizes[size]:7,} {size} (limit {LIMITS[size]:,})")
    assert sizes[size] <= LIMITS[size]
