"""Fixtures: the shared real data where it is present; GPU tests skip where there is no GPU."""

import atexit
import gc
import os
import signal
from pathlib import Path

# Threads that wait for each other sleep. Where other programs use the cores too, threads that spin
# make small networks fifty times as slow. OpenMP reads it when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

from tests.helpers.device_limits import stand_for

# A job in the background, or under nohup, ignores these signals, and so would all programs that
# the tests start and stop: a signal that is handled here has its default action there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

SHARED = Path(os.environ.get("MILLISECOND_SHARED", Path(__file__).resolve().parents[2] / "shared"))


# Tolerances, by type. ||found - wanted|| / ||wanted|| that rounding explains:
# of a result that is rounded once
ROUNDED_ONCE = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 3e-3}
# of a convolution, by torch.set_float32_matmul_precision too; fp16 and bf16 inputs are exact in the
# reference, so only the result is rounded, while tf32 rounds both factors of every product
CONVOLUTION = {
    (torch.float32, "highest"): 2e-6,
    (torch.float32, "high"): 7e-4,
    (torch.float16, "highest"): 4e-4,
    (torch.bfloat16, "highest"): 3e-3,
}
# of three convolutions in a row, in float32
CONV_CHAIN = {"highest": 2e-6, "high": 2e-3}
# of three training blocks in a row, each rounded several times, and of their gradients
CONV_BLOCKS = {torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# relative, of each number of a gradient of the losses
LOSS_GRADIENT = {torch.float32: 1e-5, torch.float16: 2**-11, torch.bfloat16: 2**-8}
# m^2, of an area of about 10 m^2
OVERLAP = {torch.float32: 1e-5, torch.float64: 1e-12}


# Files that may take half a minute begin first: in several processes, none is left for the end.
LONG = {
    "test_detect_fleet.py",
    "test_detect_ray.py",
    "test_distributed.py",
    "test_four_packages.py",
    "test_golden_openpcdet.py",
    "test_label_readings.py",
    "test_sources.py",
    "test_train.py",
    "test_train_interrupted.py",
    "test_visualize.py",
    "test_window.py",
}


def pytest_addoption(parser):
    group = parser.getgroup("fuzzing", "tests/tools/test_fuzz.py")
    group.addoption("--seconds", type=float, default=6, help="how long (default: 6)")
    group.addoption("--seed", type=int, default=0, help="of the cases (default: 0)")
    group.addoption("--case", type=int, help="number of the only case")
    group = parser.getgroup("devices", "tests of kernels")
    group.addoption("--device-limits", metavar="8.6", help="run kernels as on a GPU that has less")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Searches for garbage neither look while tests are collected, nor ever at what is there then:
    most of all objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # else modules of C++ tell of leaks


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.name not in LONG)
    if torch.cuda.is_available():
        if device := config.getoption("--device-limits"):
            stand_for(device)
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def _folder(*parts: str) -> Path:
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture(scope="module")
def trained():
    """Configuration and model of a small network that finds something."""
    from tests.helpers.small_detector import build_small_network  # not for the tests of ops

    return build_small_network()


@pytest.fixture
def weights(tmp_path, trained) -> Path:
    """The file of its weights."""
    from millisecond.detector.weights import save_weights

    path = tmp_path / "weights.safetensors"
    save_weights(path, trained[1], trained[0])
    return path


@pytest.fixture(scope="session")
def kitti() -> Path:
    """Real KITTI frames, labels and splits."""
    return _folder("kitti")


@pytest.fixture(scope="session")
def sensors() -> Path:
    """Recordings of other sensors than KITTI's."""
    return _folder("sensors")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Golden tensors and results of other implementations."""
    return _folder("golden")
