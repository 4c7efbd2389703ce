"""Imports go down only: tools -> detector -> data -> ops -> torch."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ["ops", "data", "detector", "tools"]
FILES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


def imported_modules(path: Path) -> list[str]:
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules.append(node.module)
    return modules


def test_there_are_files_on_the_floors():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} >= {"ops", "data", "detector"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_nothing_from_above(path):
    floor = FLOORS.index(path.relative_to(ROOT).parts[0])
    above = {*FLOORS[floor + 1 :], "tests"}
    wrong = [name for name in imported_modules(path) if name.split(".")[0] in above]
    assert not wrong, f"{path.name} imports {wrong} from above {FLOORS[floor]}"


@pytest.mark.parametrize("path", sorted((ROOT / "ops").rglob("*.py")), ids=lambda path: path.name)
def test_ops_need_torch_alone(path):
    allowed = {"ops", "torch", *sys.stdlib_module_names}
    assert {name.split(".")[0] for name in imported_modules(path)} <= allowed
