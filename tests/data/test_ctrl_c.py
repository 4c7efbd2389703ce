"""Numpy drops an exception that a signal raises while it makes a np.str_ or looks at an open file,
so what programs do for hours does neither."""

import random
import signal
import time

import numpy as np
import pytest

from millisecond.data.formats.clouds import read_rows
from millisecond.data.kitti.labels import read_labels, write_labels
from millisecond.data.metric.kitti import judge

SECONDS = 0.5
LINE = "Car 0.00 0 1.5 100 150 200 250 1.5 1.6 4.0 {x} 1.7 20 1.5 {score}\n"


@pytest.fixture
def actions(tmp_path):
    truth, found, cloud = tmp_path / "truth.txt", tmp_path / "found.txt", tmp_path / "points.bin"
    truth.write_text("".join(LINE.format(x=4 * i, score="") for i in range(20)))
    found.write_text("".join(LINE.format(x=4 * i + 2, score=0.9) for i in range(20)))
    np.zeros((10, 4), "<f4").tofile(cloud)
    labels, detections = read_labels(truth), read_labels(found)
    return {
        "write": lambda: write_labels(tmp_path / "written.txt", detections),
        "read": lambda: read_rows(cloud, "xyzi"),
        "judge": lambda: judge(detections, labels, {"Car": 0.7}),
    }


@pytest.mark.parametrize("name", ["write", "read", "judge"])
def test_ctrl_c_is_never_lost(name, actions):
    action, chance, came, ended, armed = actions[name], random.Random(0), 0, 0, False

    def interrupt(*_):  # beside other threads Python may call it later, when the action is over
        nonlocal came, armed
        if armed:
            came, armed = came + 1, False
            raise KeyboardInterrupt

    action()
    begin = time.monotonic()
    action()
    span = time.monotonic() - begin
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        while time.monotonic() < begin + SECONDS:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, span))
                action()
                armed = False
            except KeyboardInterrupt:
                ended += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came == ended > 0
