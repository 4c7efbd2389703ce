"""Training on streets that are made while it trains."""

import pytest

from tests.helpers.training_program import arguments, assert_same_weights
from tools.train import main

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = ("--streets", "4", "--set", "train.epochs=1")


def test_streets_are_made_in_the_workers(minute, tmp_path, capsys):
    for name, workers in (("none", 0), ("one", 1)):
        more = (*SHORT, f"train.workers={workers}")
        assert main(arguments(minute, tmp_path / name, *more)) == 0
    assert_same_weights(tmp_path / "none", tmp_path / "one")
    capsys.readouterr()
    other = (*SHORT, "--resume", "--sensor", "hdl-32e")
    assert main(arguments(minute, tmp_path / "one", *other)) == 2
    assert "changed since" in capsys.readouterr().err


def test_a_wrong_sensor_gets_one_line(minute, tmp_path, capsys):
    assert main(arguments(minute, tmp_path / "run", *SHORT, "--sensor", "hdl-65e")) == 2
    err = capsys.readouterr().err
    assert "sensor 'hdl-65e'" in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_sensor_without_streets_is_a_mistake(minute, tmp_path, capsys):
    assert main(arguments(minute, tmp_path / "run", "--sensor", "hdl-64e")) == 2
    err = capsys.readouterr().err
    assert "--sensor hdl-64e" in err and "--streets N" in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()
