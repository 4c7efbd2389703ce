"""Imports go down only: tools -> detector -> data -> ops -> torch, and inside detector training ->
inference, while draw stands alone."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ["ops", "data", "detector", "tools"]
FILES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
DETECTOR = sorted((ROOT / "detector").rglob("*.py"))


@cache
def imported_modules(path: Path) -> list[str]:
    """Names as `detector.training.run`, those that only a function or a type checker wants too."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules += [f"{node.module}.{alias.name}" for alias in node.names]
    return [module.removeprefix("millisecond.") for module in modules]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(module: str) -> str:
    """`training`, `draw` or `inference` of a module of detector."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ("training", "draw") else "inference"


def test_there_are_files_on_the_floors():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} >= {"ops", "data", "detector"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_nothing_from_above(path):
    floor = FLOORS.index(path.relative_to(ROOT).parts[0])
    above = {*FLOORS[floor + 1 :], "tests"}
    wrong = [name for name in imported_modules(path) if name.split(".")[0] in above]
    assert not wrong, f"{path.name} imports {wrong} from above {FLOORS[floor]}"


@pytest.mark.parametrize("path", DETECTOR, ids=name_of)
def test_rooms_of_the_detector(path):
    """Inference needs neither training nor pictures; pictures need nothing of the detector."""
    allowed = {
        "inference": {"inference"},
        "training": {"inference", "training", "draw"},
        "draw": {"draw"},
    }
    room = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    own = [name for name in imported_modules(path) if name.split(".")[0] == "detector"]
    wrong = [name for name in own if room_of(name) not in allowed[room]]
    assert not wrong, f"{path.name} of {room} imports {wrong}"


@pytest.mark.parametrize("path", sorted((ROOT / "ops").rglob("*.py")), ids=lambda path: path.name)
def test_ops_need_torch_alone(path):
    allowed = {"ops", "torch", *sys.stdlib_module_names}
    assert {name.split(".")[0] for name in imported_modules(path)} <= allowed


def test_only_measurements_import_the_lab():
    users = {
        name_of(path)
        for path in FILES
        if any(f"{name}.".startswith("ops.lab.") for name in imported_modules(path))
    }
    house = {name for name in users if not name.startswith(("ops/lab/", "tools/benchmarks/"))}
    assert house == {"tools/tune.py"}
