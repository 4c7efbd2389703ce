"""millisecond train as a user calls it, for a minute."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.helpers.warm_processes import WarmProcess

PROGRAM = Path(__file__).parents[2] / "tools" / "train.py"
STEPS = 20  # 5 epochs of 9 frames in batches of 2


def arguments(minute, output: Path, *more: str) -> list[str]:
    config, root = minute
    return [str(config), "--root", str(root), "--output", str(output), "--device", "cpu", *more]


def start(minute, output: Path, *more: str) -> WarmProcess:
    return WarmProcess([str(PROGRAM), *arguments(minute, output, *more)], {})


def finish(process: WarmProcess) -> None:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output


def last_step(output: Path) -> int:
    steps = [int(path.stem[5:]) for path in (output / "checkpoints").glob("step_*.safetensors")]
    return max(steps, default=-1)


def read_log(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


def assert_same_weights(a: Path, b: Path) -> None:
    one, other = load_file(a / "weights.safetensors"), load_file(b / "weights.safetensors")
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
