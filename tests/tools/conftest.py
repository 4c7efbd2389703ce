"""Fixtures of the programs' tests: data sets, weights, a training."""

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from millisecond.detector.draw.scene import SceneRenderer, SceneUnavailable
from millisecond.tools.train import main as train
from tests.helpers.kitti_miniature import write_miniature
from tests.helpers.minute_training import write_minute_training
from tests.helpers.training_program import arguments
from tests.helpers.weights import write_weights


@pytest.fixture
def root(tmp_path):
    return write_miniature(tmp_path / "kitti")


@pytest.fixture
def plain(monkeypatch):
    """No display, and no 3-D pictures: those are judged in test_draw.py."""

    def draw(*_, **__):
        raise SceneUnavailable("no 3-D picture in this test")

    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(SceneRenderer, "draw", draw)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    return write_weights(tmp_path_factory.mktemp("weights") / "weights.safetensors")


@pytest.fixture(scope="session")
def minute(tmp_path_factory):
    return write_minute_training(tmp_path_factory.mktemp("minute"))


@contextmanager
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def one_thread():
    with _one_thread():
        yield


@pytest.fixture
def no_pictures(monkeypatch):
    """Trainings of a test draw none, which takes a third of their time; `uninterrupted` does."""
    monkeypatch.setattr("millisecond.detector.training.validation.Validation._draw", lambda *_: [])


@pytest.fixture(scope="session")
def uninterrupted(minute, tmp_path_factory) -> Path:
    """A training that nothing stops: its folder."""
    output = tmp_path_factory.mktemp("uninterrupted")
    with _one_thread():
        assert train(arguments(minute, output)) == 0
    return output
