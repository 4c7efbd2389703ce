"""The lock of a build: one process builds, and one that died leaves it free."""

import signal
import subprocess
import sys
import time

import pytest

from millisecond.ops import library

HOLD = "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
HOLD += "f.write(str(os.getpid())); f.flush(); print('held', flush=True); time.sleep(60)"


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "library.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_held_lock_times_out_and_names_its_holder(holder, tmp_path):
    message = f"process {holder.pid} has held .*TORCH_EXTENSIONS_DIR"
    with (
        pytest.raises(library.BuildError, match=message),
        library._locked(tmp_path / "library.lock", 0.3),
    ):
        pass


def test_a_killed_holder_leaves_the_lock_free(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    started = time.monotonic()
    with library._locked(tmp_path / "library.lock", 30):
        assert time.monotonic() - started < 10
