"""Training on GPUs: the same bits again, and statistics of BatchNorm shared by processes."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.minute_training import (
    ENVIRONMENT,
    REPOSITORY,
    UPDATE,
    start_on_gpus,
    succeed,
    write_minute_training,
)

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
WIDE = (  # channels of the tensor-core kernels
    "model.encoder.channels=[16,32,64,64]",
    "model.encoder.out_channels=64",
    "model.bev.channels=[64,64]",
    "model.bev.upsample_channels=[64,64]",
)
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")


@pytest.fixture(scope="module")
def minute(tmp_path_factory):
    return write_minute_training(tmp_path_factory.mktemp("minute"))


def _program(minute, output: Path, *settings: str, resume: bool = False) -> list[str]:
    config, root = map(str, minute)
    program = [str(REPOSITORY / "tools" / "train.py"), config, "--root", root]
    program += ["--output", str(output), "--device", DEVICE]
    return program + ["--resume"] * resume + ["--set", "train.workers=1", *WIDE, *settings]


def _start(program: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *program],
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _stop_after_the_first_checkpoint(process: subprocess.Popen, output: Path) -> None:
    while not list(output.glob("checkpoints/step_*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)


def _assert_same_weights(a: Path, b: Path) -> None:
    one, other = load_file(a / "weights.safetensors"), load_file(b / "weights.safetensors")
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_deterministic_gives_the_same_bits(minute, tmp_path, precision):
    """Twice in one go, and once stopped and resumed."""
    settings = f"train.precision={precision}", "train.deterministic=true"
    runs = [tmp_path / name for name in ("first", "second", "stopped")]
    started = [_start(_program(minute, run, *settings)) for run in runs]
    _stop_after_the_first_checkpoint(started[2], runs[2])
    succeed(started)
    assert not (runs[2] / "weights.safetensors").exists()
    succeed([_start(_program(minute, runs[2], *settings, resume=True))])
    _assert_same_weights(runs[0], runs[1])
    _assert_same_weights(runs[0], runs[2])


@two_gpus
def test_shared_statistics_make_the_update_of_one_process(minute, tmp_path):
    """Two GPUs of two frames each, one GPU of all four: the same losses, norm of the gradient and
    statistics but for rounding, and the two end with the same bits."""
    update = ["-c", UPDATE, *map(str, minute), str(tmp_path), DEVICE, "own", *WIDE]
    succeed(start_on_gpus(2, [*update, "train.batch_size=2", "train.sync_batchnorm=true"]))
    succeed(start_on_gpus(1, [*update, "train.batch_size=4"]))
    one, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1_0", "2_0", "2_1"))
    assert first["ids"] + second["ids"] == one["ids"]
    torch.testing.assert_close(first["record"], one["record"], rtol=1e-3, atol=1e-5)
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name]), name
        if "running" in name:
            torch.testing.assert_close(weight, one["weights"][name], rtol=1e-3, atol=1e-5)


@two_gpus
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_shared_statistics_train_to_the_end(minute, tmp_path, precision):
    settings = f"train.precision={precision}", "train.sync_batchnorm=true", "train.ema=0"
    settings += "train.deterministic=true", "train.epochs=3"
    started = [
        process
        for name in ("first", "second")
        for process in start_on_gpus(2, _program(minute, tmp_path / name, *settings))
    ]
    succeed(started)
    _assert_same_weights(tmp_path / "first", tmp_path / "second")
    weights = load_file(tmp_path / "first" / "weights.safetensors")
    assert all(math.isfinite(weight.double().sum()) for weight in weights.values())


@two_gpus
def test_dead_process_ends_all(minute, tmp_path):
    started = start_on_gpus(2, _program(minute, tmp_path, "train.epochs=500"))
    while not list(tmp_path.glob("checkpoints/step_*")) and started[0].poll() is None:
        time.sleep(0.01)
    time.sleep(2)  # workers have begun
    started[1].kill()
    try:
        output, _ = started[0].communicate(timeout=60)
    finally:
        started[0].kill()  # a failure must not leave a process that keeps the GPU busy
    assert started[0].returncode not in (0, None), output
