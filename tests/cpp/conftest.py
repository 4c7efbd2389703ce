"""The library, built once, and weights for it."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from detector.weights import save_weights
from ops.cuda.library import cache_folder
from tests.helpers.small_detector import build_small_network
from tools.exporting.library import Library

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def library():
    """The library of MILLISECOND_LIBRARY, or one that is built and kept in torch's cache."""
    if path := os.environ.get("MILLISECOND_LIBRARY"):
        return Library(path)
    if shutil.which("cmake") is None or shutil.which("nvcc") is None:
        pytest.skip("no cmake or no nvcc")
    checkout = hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]
    build = cache_folder().parent / f"millisecond_cpp_{checkout}"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    source = str(ROOT / "detector" / "cpp")
    build.mkdir(parents=True, exist_ok=True)
    with open(build / "test.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        subprocess.run(["cmake", *generator, "-S", source, "-B", str(build)], check=True)
        subprocess.run(["cmake", "--build", str(build), "-j"], check=True)
    return Library(build / "libmillisecond.so")


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Of a small network that finds something."""
    config, model = build_small_network()
    path = tmp_path_factory.mktemp("cpp") / "small.safetensors"
    save_weights(path, model, config)
    return path
