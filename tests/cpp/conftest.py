"""The library, built once, what its parts without a GPU read, and weights and network files."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from millisecond.data.formats.points import KITTI, PointColumns
from millisecond.detector import network_file
from millisecond.detector.config import load_config
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import load_weights, restore, save_weights
from millisecond.ops.library import cache_folder
from millisecond.tools.export import Library
from tests.helpers.small_detector import build_small_network

ROOT = Path(__file__).resolve().parents[2]
CPP = ROOT / "detector" / "cpp"


def built(*arguments: object) -> Path:
    """What g++ makes of these arguments. It is kept in torch's cache, and made again once the
    compiler, an option, or any line that the preprocessor hands on is another one."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    words = list(map(str, arguments))
    options = [word for word in words if word.startswith("-") and not word.startswith("-I")]
    read = [["--version"], ["-E", "-P", *words]]
    parts = [subprocess.run(["g++", *one], check=True, stdout=-1).stdout for one in read]
    digest = hashlib.sha256(b"\0".join([*parts, *map(str.encode, options)]))
    path = cache_folder().parent / "millisecond_test_programs" / digest.hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        if not path.exists():
            new = path.with_suffix(".new")
            subprocess.run(["g++", *words, "-o", str(new)], check=True)
            new.replace(path)
    return path


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
    build.mkdir(parents=True, exist_ok=True)
    with open(build / "test.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        subprocess.run(["cmake", *generator, "-S", str(CPP), "-B", str(build)], check=True)
        subprocess.run(["cmake", "--build", str(build), "-j"], check=True)
    return Library(build / "libmillisecond.so")


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Of a small network that finds something."""
    config, model = build_small_network()
    path = tmp_path_factory.mktemp("cpp") / "small.safetensors"
    save_weights(path, model, config)
    return path


@pytest.fixture(scope="session")
def moving_weights(tmp_path_factory):
    """The same of a network with velocities."""
    config, model = build_small_network(velocity=True)
    path = tmp_path_factory.mktemp("cpp") / "moving.safetensors"
    save_weights(path, model, config)
    return path


@pytest.fixture(scope="session")
def network_of(tmp_path_factory):
    """The network file of weights; each is made once."""
    folder, made = tmp_path_factory.mktemp("networks"), {}

    def file_of(weights):
        if weights not in made:
            config, state = load_weights(weights)
            model = build_second(config)
            restore(model, state, weights)
            made[weights] = folder / f"{len(made)}.network"
            network_file.write(made[weights], config, model)
        return made[weights]

    return file_of


@pytest.fixture(scope="session")
def network(network_of, weights):
    """Of `weights`."""
    return network_of(weights)


@pytest.fixture(scope="session")
def inspect():
    """Runs inspect.cpp, whose parts of detector/cpp need no GPU; any wrong access ends it."""
    flags = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags += [f"-I{CPP / 'src'}", f"-I{CPP / 'include'}"]
    program = built(*flags, Path(__file__).with_name("inspect.cpp"))

    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, check=False)

    return run


SMALL = (
    "model.encoder.channels=[4, 8, 16, 8]",
    "model.encoder.out_channels=16",
    "model.bev.layers=[1, 2]",
    "model.bev.channels=[8, 16]",
    "model.bev.strides=[2, 2]",
    "model.bev.upsample_channels=[16, 8]",
)


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Weights of a small network whose numbers are all different, with a fifth feature."""
    torch.manual_seed(1)
    config = load_config(ROOT / "configs" / "second_small.yaml", SMALL)
    config = replace(config, points=PointColumns((*KITTI, "ring"), (*KITTI, "ring")))
    model = build_second(config)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + (0.1 if name.endswith("var") else -0.5))
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_weights(path, model, config)
    return path
