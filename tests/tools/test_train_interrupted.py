"""A training that is stopped, killed or hindered, and what it goes on from."""

import json
import os
import random
import select
import signal
import threading
import time
from pathlib import Path
from shutil import copytree
from unittest import mock

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

from millisecond.detector.training.loader import Forked
from millisecond.detector.training.monitor import Monitor
from millisecond.tools.program import INTERRUPTED, PIPE_CLOSED
from millisecond.tools.train import main
from tests.helpers.training_program import (
    PROGRAM,
    STEPS,
    arguments,
    assert_same_weights,
    finish,
    last_step,
    read_log,
    start,
)
from tests.helpers.warm_processes import WarmProcess

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


def test_stopped_and_killed_and_resumed(minute, uninterrupted, tmp_path):
    """SIGTERM, Ctrl-C, SIGHUP and SIGKILL at any step, another number of workers each time: the
    weights at the end are the weights of the run that was left alone, bit for bit."""
    codes = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGHUP: 0}
    codes[signal.SIGKILL] = -signal.SIGKILL
    for workers, (number, code) in enumerate(codes.items()):
        before = last_step(tmp_path)
        process = start(minute, tmp_path, "--resume", "--set", f"train.workers={workers}")
        while last_step(tmp_path) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.15))
        process.send_signal(number)
        process.send_signal(number)  # torchrun and schedulers may pass it on once more
        output, _ = process.communicate(timeout=180)
        assert process.returncode == code, output
    (tmp_path / ".best.safetensors.7.tmp").touch()  # half written when it was killed
    finish(start(minute, tmp_path, "--resume"))
    assert_same_weights(tmp_path, uninterrupted)
    assert not list(tmp_path.glob(".*"))
    steps = [line["step"] for line in read_log(tmp_path) if "validation/total" in line]
    assert steps == sorted(set(steps))
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    shown = [event.step for event in board.Scalars("1 overview/validation/total")]
    assert shown == steps


def test_ctrl_c_while_a_slow_disk_is_waited_for(minute, tmp_path, monkeypatch):
    """The second one, which insists: the checkpoint is not begun again."""
    asked = []

    def interrupted(forked):
        asked.append(forked)
        forked.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(Forked, "result", interrupted)
    settings = ("--set", "train.epochs=2", "train.validate_every=2")
    assert main(arguments(minute, tmp_path, *settings)) == INTERRUPTED
    assert len(asked) == 1


def test_log_of_a_kill_after_a_validation(tmp_path):
    """It will be repeated from the checkpoint before it: its numbers are not there twice."""
    lines = [{"step": 8, "validation/total": 3.0}, {"step": 10, "train/total": 2.0}]
    repeated = [{"step": 16, "validation/total": 1.0}, {"step": 20, "train/total": 1.0}]
    log = tmp_path / "log.jsonl"
    broken = '7\n[]\n{"step": "8"}\n{"step": 2'
    log.write_text("".join(json.dumps(line) + "\n" for line in lines + repeated) + broken)
    Monitor(tmp_path, 16, validated=8, total_steps=20, epochs=5).close()
    assert read_log(tmp_path) == lines


def test_a_validation_that_is_repeated_is_on_the_board_once(tmp_path):
    """The checkpoint is of its step, and was saved before it."""
    for loss, validated in ((3.0, -1), (2.0, -1), (1.0, 8)):
        monitor = Monitor(tmp_path, 8 * (loss < 3), validated, total_steps=20, epochs=5)
        step = 16 if validated == 8 else 8
        monitor.numbers(step, {"validation/total": loss})
        monitor.close()
        time.sleep(1.1)  # files of one second have the order of their names
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    shown = board.Scalars("1 overview/validation/total")
    assert [(event.step, event.value) for event in shown] == [(8, 2.0), (16, 1.0)]


def test_changed_configuration_is_refused(minute, uninterrupted, capsys):
    assert main(arguments(minute, uninterrupted)) == 2
    assert "--resume" in capsys.readouterr().err
    change = arguments(minute, uninterrupted, "--resume", "--set", "train.lr=0.02", "train.keep=9")
    assert main(change) == 2
    error = capsys.readouterr().err
    assert "train.lr: 0.01 -> 0.02" in error
    assert "keep" not in error
    other_frames = arguments(minute, uninterrupted, "--resume", "--train-split", "val")
    assert main(other_frames) == 2


def test_damaged_checkpoint_falls_back(minute, uninterrupted, tmp_path, capsys):
    copytree(uninterrupted, tmp_path, dirs_exist_ok=True)
    (tmp_path / "weights.safetensors").unlink()
    newest = max((tmp_path / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    assert main(arguments(minute, tmp_path, "--resume")) == 0
    assert newest.name in capsys.readouterr().err
    assert_same_weights(tmp_path, uninterrupted)


def test_full_disk_is_said_and_training_goes_on(
    minute, uninterrupted, tmp_path, capsys, monkeypatch
):
    fsync, calls = os.fsync, []

    def full_for_a_while(descriptor):
        calls.append(descriptor)
        if 2 < len(calls) <= 6:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_for_a_while)
    assert main(arguments(minute, tmp_path)) == 0
    assert "No space left" in capsys.readouterr().err
    assert_same_weights(tmp_path, uninterrupted)


@pytest.mark.filterwarnings("error")  # as an error of the thread would be
def test_curves_of_a_full_disk_are_told_in_a_line(tmp_path, capsys):
    monitor = Monitor(tmp_path, 0, 0, 100, 1)
    (thread,) = (one for one in threading.enumerate() if "AsyncWriter" in type(one).__name__)
    with mock.patch.object(RecordWriter, "write", side_effect=OSError(28, "No space left")):
        monitor.numbers(1, {"train/total": 1.0})
        thread.join(60)
    monitor.numbers(2, {"train/total": 1.0})
    monitor.close()
    assert capsys.readouterr().err.count("No space left") == 1


def test_failures_of_other_threads_are_told(tmp_path, monkeypatch):
    seen: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    monitor = Monitor(tmp_path, 0, 0, 100, 1)
    thread = threading.Thread(target=Path("not_there").read_bytes)
    thread.start()
    thread.join()
    monitor.close()
    assert [type(failed.exc_value) for failed in seen] == [FileNotFoundError]


def test_one_training_to_a_folder(minute, tmp_path, capsys):
    process = start(minute, tmp_path)
    while last_step(tmp_path) < 0 and process.poll() is None:
        time.sleep(0.01)
    assert main(arguments(minute, tmp_path, "--resume")) == 2
    assert f"process {process.pid} is writing there" in capsys.readouterr().err
    process.kill()
    process.communicate()
    assert main(arguments(minute, tmp_path, "--resume")) == 0


@pytest.mark.parametrize("name", ["weights.safetensors", "best.safetensors", "log.jsonl"])
def test_what_another_training_left_is_not_written_over(minute, tmp_path, capsys, name):
    (tmp_path / name).write_text("of days")
    assert main(arguments(minute, tmp_path)) == 2
    assert f"holds a training ({name})" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "of days"


IN_A_TERMINAL = """
import fcntl, os, runpy, sys, termios
_, terminal, *sys.argv = sys.argv
os.setsid()
end = os.open(terminal, os.O_RDWR)
fcntl.ioctl(end, termios.TIOCSCTTY, 0)
for stream in range(3):
    os.dup2(end, stream)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_closed_terminal_saves_what_is_done(minute, uninterrupted, tmp_path):
    """SIGHUP comes, and nothing can be printed any more."""
    terminal, end = os.openpty()
    command = [os.ttyname(end), str(PROGRAM), *arguments(minute, tmp_path)]
    process = WarmProcess(["-c", IN_A_TERMINAL, *command], {})
    while last_step(tmp_path) < 4 and process.poll() is None:
        if select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 1 << 16)
    os.close(end)
    os.close(terminal)
    process.communicate(timeout=60)
    assert process.returncode in (0, PIPE_CLOSED)
    assert 4 <= last_step(tmp_path) < STEPS
    finish(start(minute, tmp_path, "--resume"))
    assert_same_weights(tmp_path, uninterrupted)
