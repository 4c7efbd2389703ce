"""Training on streets that are made while it trains."""

import pytest

from millisecond.data.simulator.street import WORLD
from millisecond.tools.train import main
from tests.helpers.small_detector import RING
from tests.helpers.training_program import arguments, assert_same_weights

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")
SHORT = ("--streets", "4", "--set", "train.epochs=1")


def test_streets_are_made_in_the_workers(minute, tmp_path, capsys, monkeypatch):
    for name, workers in (("none", 0), ("one", 1)):
        more = (*SHORT, f"train.workers={workers}")
        assert main(arguments(minute, tmp_path / name, *more)) == 0
    assert_same_weights(tmp_path / "none", tmp_path / "one")
    capsys.readouterr()
    other = (*SHORT, "--resume", "--sensor", "hdl-32e")
    assert main(arguments(minute, tmp_path / "one", *other)) == 2
    assert "changed since" in capsys.readouterr().err
    monkeypatch.setattr("millisecond.data.simulator.recording.WORLD", 1000)
    assert main(arguments(minute, tmp_path / "one", *SHORT, "--resume")) == 2
    err = capsys.readouterr().err
    assert f"world {WORLD}" in err and "world 1000" in err and err.count("\n") == 1


def test_trainings_of_other_seeds_see_other_streets(minute, tmp_path, monkeypatch):
    seen = []

    def note(config, frames, *rest):
        seen.append(set(range(frames.first, frames.first + len(frames))))
        raise ValueError("noted")

    monkeypatch.setattr("millisecond.tools.train.build_training", note)
    for seed in (0, 0, 1):
        more = (*SHORT, f"train.seed={seed}")
        assert main(arguments(minute, tmp_path / str(len(seen)), *more)) == 2
    assert seen[0] == seen[1] and not seen[0] & seen[2]


def test_a_wrong_sensor_gets_one_line(minute, tmp_path, capsys):
    assert main(arguments(minute, tmp_path / "run", *SHORT, "--sensor", "hdl-65e")) == 2
    err = capsys.readouterr().err
    assert "sensor 'hdl-65e'" in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--sensor", "hdl-64e"), ("--sensor hdl-64e", "--streets N")),
        (("--streets", "4", "--train-split", "val"), ("--train-split val", "--streets 4")),
        (("--streets", "99999999"), ("99999999 streets per epoch",)),
        (("--streets", "4", "--set", RING), ("--streets 4", "no ring", "on a split")),
    ],
)
def test_options_that_do_not_go_together_get_one_line(minute, tmp_path, capsys, more, said):
    assert main(arguments(minute, tmp_path / "run", *more)) == 2
    err = capsys.readouterr().err
    assert all(part in err for part in said) and err.count("\n") == 1
    assert not (tmp_path / "run").exists()
