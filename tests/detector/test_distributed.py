import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed import TCPStore

from millisecond.data.kitti.dataset import KittiDataset
from millisecond.detector.models.second import build_second
from millisecond.detector.training import distributed
from millisecond.detector.training.build import build_trainer
from millisecond.detector.training.checkpoints import CheckpointStore
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.losses import build_criterion
from millisecond.detector.training.validation import Validation
from millisecond.detector.weights import load_weights
from tests.helpers.minute_training import (
    ENVIRONMENT,
    REPOSITORY,
    UPDATE,
    start_on_gpus,
    start_processes,
    succeed,
    write_minute_training,
)
from tests.helpers.warm_processes import WarmProcess

PATIENCE = 180  # seconds, on a busy machine; a process that waits for a dead one waits 30 minutes


@pytest.fixture(scope="module")
def minute(tmp_path_factory):
    return write_minute_training(tmp_path_factory.mktemp("minute"))


def test_two_processes_make_the_update_of_one(minute, tmp_path):
    """Two processes of two frames each, one process of all four: the same losses, gradient and
    weights but for rounding, and the two end with the same bits."""
    update = ["-c", UPDATE, *map(str, minute), str(tmp_path), "cpu", "frozen"]
    started = start_processes(2, [*update, "train.batch_size=2"])
    started += start_processes(1, [*update, "train.batch_size=4"])
    succeed(started)
    one, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("1_0", "2_0", "2_1"))
    assert first["ids"] + second["ids"] == one["ids"]
    torch.testing.assert_close(first["record"], one["record"], rtol=1e-5, atol=1e-6)
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name]), name
    moved = (
        0.0003 * 10
    )  # Adam's first update moves by about the learning rate, whatever the gradient
    for name, weight in one["weights"].items():
        torch.testing.assert_close(first["weights"][name], weight, rtol=1e-4, atol=moved / 100)


def _arguments(minute, output: Path, *more: str) -> list[str]:
    config, root = map(str, minute)
    program = str(REPOSITORY / "tools" / "train.py")
    return [program, config, "--root", root, "--output", str(output), "--device", "cpu", *more]


@pytest.fixture(scope="module")
def whole(minute, tmp_path_factory) -> Path:
    """A training by two processes that was left alone."""
    output = tmp_path_factory.mktemp("left_alone") / "whole"
    succeed(start_processes(2, _arguments(minute, output)))
    return output


def test_training_stopped_and_resumed(minute, whole, tmp_path):
    """A signal to one of two processes stops both at the same step; resumed, they end with the bits
    of a training that was left alone. Validation counts every frame once."""
    stopped = tmp_path / "stopped"
    started = start_processes(2, _arguments(minute, stopped))
    while not list(stopped.glob("checkpoints/step_*")) and started[0].poll() is None:
        time.sleep(0.01)
    started[1].terminate()
    succeed(started)
    assert not (stopped / "weights.safetensors").exists()
    assert CheckpointStore(stopped / "checkpoints", 1).newest().numbers["step"] < 10
    more = start_processes(3, _arguments(minute, stopped, "--resume"))
    said = "".join(process.communicate(timeout=PATIENCE)[0] for process in more)
    assert "error: 3 processes cannot share the 2 batches of a step evenly" in said
    succeed(start_processes(2, _arguments(minute, stopped, "--resume")))
    _assert_validation_counts_every_frame(minute, whole)
    one, other = (load_file(run / "weights.safetensors") for run in (whole, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)


def _assert_validation_counts_every_frame(minute, output: Path) -> None:
    """Three frames shared by two processes give the losses that one process finds."""
    _, root = minute
    config, weights = load_weights(output / "weights.safetensors")
    group = Processes(0, 1, torch.device("cpu"))
    model = build_second(config)
    model.load_state_dict(weights)
    trainer = build_trainer(model, build_criterion(config), config.train, 1, group)
    validation = Validation(KittiDataset(root, "val"), config, group)
    unscored = validation(trainer.state.model, trainer.forward)
    last = json.loads((output / "log.jsonl").read_text().splitlines()[-1])
    assert len(unscored.found) == 3
    for name, loss in unscored.losses.items():
        assert last[f"validation/{name}"] == pytest.approx(loss, rel=1e-4)


def test_dead_process_ends_all(minute, tmp_path):
    started = start_processes(
        2, _arguments(minute, tmp_path, "--set", "train.epochs=50", "train.workers=1")
    )
    while not list(tmp_path.glob("checkpoints/step_*")) and started[0].poll() is None:
        time.sleep(0.01)
    time.sleep(1)  # workers have begun
    started[1].kill()
    output, _ = started[0].communicate(timeout=PATIENCE)
    started[1].communicate()
    assert started[0].returncode == 1, output
    assert "process 1 of the training died" in output and "Traceback" not in output


# Of three processes the second dies while the others wait for something else than one another.
WAITING = """
import os, time
from millisecond.detector.training.distributed import processes

with processes("cpu") as group:
    group.wait()
    if group.rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(600)
"""


def test_process_that_waits_elsewhere_ends_after_a_dead_one():
    started = start_processes(3, ["-c", WAITING])
    ends = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [1, -9, 1]
    assert "process 1 of the training died" in ends[0]
    assert "process 1 of the training died" in ends[2]  # handed on by 0


# What torchrun does, with processes that it forks instead of programs that import torch.
TORCHRUN = """
import sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from millisecond.tools.train import main

rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "max_restarts": 0}
codes = elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", **rendezvous), main)(sys.argv[1:])
assert codes == {0: 2, 1: 2}
"""


def test_processes_that_are_restarted_read_nothing_that_others_left(monkeypatch):
    host = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {"MASTER_ADDR": host.host, "MASTER_PORT": str(host.port), "RANK": "1"}
    told |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for attempt in ("0", "1"):
        for name, value in (told | {"TORCHELASTIC_RESTART_COUNT": attempt}).items():
            monkeypatch.setenv(name, value)
        store = distributed._store.__wrapped__()
        assert not store.check(["address"])
        store.set("address", "")


# Python takes a while to end the first one; meanwhile the others have ended.
MISTAKE = """
import sys, time
from millisecond.detector.training.distributed import processes

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1)

with processes("cpu") as group:
    slow = Slow() if group.first else None
    group.wait()
    if group.first or sys.argv[1] == "all":
        raise SystemExit("a mistake")
    group.wait()
"""


@pytest.mark.parametrize("whose", ["all", "first"])
def test_mistake_is_told_and_aborts_none(whose):
    started = start_on_gpus(3, ["-c", MISTAKE, whose])  # warm processes have no such end
    said = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [1, 1, 1]
    assert said[0] == "a mistake\n"
    if whose == "all":
        assert said == 3 * said[:1]
    else:
        assert [line.split(" of ")[0] for line in said[1:]] == ["process 0", "process 0"]


def test_mistake_under_torchrun_is_said_once(minute, tmp_path):
    _, *arguments = _arguments(minute, tmp_path, "--set", "train.epoch=3")
    torchrun = WarmProcess(["-c", TORCHRUN, *arguments], ENVIRONMENT)
    said, _ = torchrun.communicate(timeout=PATIENCE)
    assert torchrun.returncode == 0, said
    assert said.count("train.epoch: unknown key") == 1


# One of two machines, with the process that it starts; a dead one is noticed after four seconds.
NODE = """
import sys
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from millisecond.tools.train import main

endpoint, least, *arguments = sys.argv[1:]
rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "run_id": "two"}
quick = {"keep_alive_interval": 1, "keep_alive_max_attempt": 4, "last_call_timeout": 5}
launch = LaunchConfig(
    int(least), 2, 1, start_method="fork", max_restarts=3, rdzv_configs=quick, monitor_interval=0.1,
    **rendezvous,
)
assert set(elastic_launch(launch, main)(arguments).values()) == {0}
"""


def _listens(place: tuple[str, int]) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(place) == 0


@pytest.mark.parametrize("least", [2, 1])
def test_a_machine_dies(minute, whole, tmp_path, least):
    """The others start anew from the last checkpoint. With a machine in its place they end with the
    bits of a training that was left alone, without it the steps have the same frames."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = free.getsockname()
    endpoint = "{}:{}".format(*place)
    _, *arguments = _arguments(minute, tmp_path / "run", "--resume")
    # else torch 2.13 never tells a new machine where the others meet
    environment = ENVIRONMENT | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    node = ["-c", NODE, endpoint, str(least), *arguments]
    nodes = [WarmProcess(node, environment)]
    while not _listens(place) and nodes[0].poll() is None:  # the machine that stays
        time.sleep(0.01)
    nodes.append(WarmProcess(node, environment))
    checkpoints = tmp_path / "run" / "checkpoints"
    while not list(checkpoints.glob("step_*")) and nodes[0].poll() is None:
        time.sleep(0.01)
    one = nodes[1].pid
    workers = Path(f"/proc/{one}/task/{one}/children").read_text().split()
    nodes[1].kill()
    for worker in workers:
        os.kill(int(worker), signal.SIGKILL)
    assert workers and not (tmp_path / "run" / "weights.safetensors").exists()
    if least == 1:
        (said,) = succeed(nodes[:1])
        assert "2 processes have begun, 1 go on: a step keeps its 2 batches" in said
    else:
        time.sleep(6)  # a machine takes longer to start
        succeed([nodes[0], WarmProcess(node, environment)])
    one, other = (load_file(run / "weights.safetensors") for run in (whole, tmp_path / "run"))
    for name, values in one.items():
        if least == 2:
            assert torch.equal(values, other[name])
        elif name.endswith(("weight", "bias")):  # running statistics count each batch by itself
            torch.testing.assert_close(values, other[name], rtol=1e-3, atol=1e-5)


# No scan that passes the readers makes a loss infinite: the batch of one frame is spoiled.
SPOILED = """
import sys
from millisecond.detector.training import loader
from millisecond.tools.train import main

collate = loader.collate

def spoiled(*arguments, **options):
    batch = collate(*arguments, **options)
    if "000004" in batch.frame_ids:
        batch.points[:, 3] = 3e38  # two of them in one voxel are infinite
    return batch

loader.collate = spoiled
sys.exit(main(sys.argv[1:]))
"""


def test_loss_that_one_process_finds_not_finite_stops_both(minute, tmp_path):
    """Under a loss scale the others just skip the update. The batch is saved and named."""
    more = ("--set", "train.precision=fp16", "augment.sample={}", "train.workers=1")
    _, *arguments = _arguments(minute, tmp_path / "run", *more)
    started = start_processes(2, ["-c", SPOILED, *arguments])
    said = "".join(process.communicate(timeout=PATIENCE)[0] for process in started)
    assert [process.returncode for process in started] == [1, 1], said
    assert said.count("the loss is not finite") == 1
    (saved,) = (tmp_path / "run").glob("not_finite_*")
    with safe_open(saved, framework="pt") as file:
        assert "000004" in file.metadata()["frame_ids"].split()
    assert saved.name in said


AGREE = """
import torch
from millisecond.detector.training.distributed import first_to_say, processes
from millisecond.detector.training.checkpoints import TrainState
with processes("cpu") as group:
    print(first_to_say("what all notice"), first_to_say(f"what {group.rank} notices"))
    torch.manual_seed(group.rank)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainState(model, optimizer, torch.amp.GradScaler("cpu", enabled=False))
    tensors, numbers = state.capture(group)
    drawn = torch.rand(3)
    state.restore(tensors, numbers, group)
    assert torch.equal(torch.rand(3), drawn)
    both = group.gather(drawn)
    assert not torch.equal(*both)
"""


def test_what_all_notice_is_said_once_and_random_numbers_of_every_process_go_on():
    started = start_processes(2, ["-c", AGREE])
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    assert sorted(output.split() for output in outputs) == [["False", "True"], ["True", "True"]]
