"""Fixtures: the shared real data where it is present; GPU tests skip where there is no GPU."""

import os
from pathlib import Path

import pytest
import torch

SHARED = Path(os.environ.get("MILLISECOND_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def pytest_addoption(parser):
    group = parser.getgroup("fuzzing", "tests/tools/test_fuzz.py")
    group.addoption("--seconds", type=float, default=20, help="how long (default: 20)")
    group.addoption("--seed", type=int, default=0, help="of the cases (default: 0)")
    group.addoption("--case", type=int, help="number of the only case")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _folder(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(scope="session")
def kitti() -> Path:
    """Real KITTI frames, labels and splits."""
    return _folder("kitti")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Golden tensors and results of other implementations."""
    return _folder("golden")
