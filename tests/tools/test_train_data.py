"""Training on data that changed, or that is seldom meant."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from millisecond.tools.prepare import main as prepare
from millisecond.tools.train import main
from tests.helpers.training_program import arguments

pytestmark = pytest.mark.usefixtures("one_thread", "no_pictures")


def copy_data(minute, folder: Path) -> tuple[Path, Path]:
    config, root = minute
    return config, Path(shutil.copytree(root, folder / "kitti"))


def test_changed_labels_are_not_pasted_nor_learnt_unsaid(minute, tmp_path, capsys):
    copied = copy_data(minute, tmp_path)
    labels = copied[1] / "training/label_2/000003.txt"
    labels.write_text(labels.read_text().replace("Car 0", "Van 0"))
    assert main(arguments(copied, tmp_path / "run")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "database_train" in error and "millisecond prepare --root" in error
    without = ("--set", "augment.sample={}", "train.epochs=1")
    assert main(arguments(copied, tmp_path / "run", *without)) == 0


@pytest.mark.filterwarnings("ignore:.*made before")
@pytest.mark.parametrize("kind", ["label_2", "velodyne", "calib"])
def test_a_training_does_not_go_on_with_changed_data(minute, tmp_path, capsys, kind):
    copied = copy_data(minute, tmp_path)
    output, short = tmp_path / "run", ("--set", "augment.sample={}", "train.epochs=1")
    assert main(arguments(copied, output, *short)) == 0
    assert main(arguments(copied, output, "--resume", *short)) == 0
    path = next(path for path in (copied[1] / "training" / kind).iterdir() if "000003" in path.name)
    content = path.read_bytes()
    changed = {
        "label_2": content.replace(b"Car 0", b"Van 0"),
        "velodyne": content[:-16],
        "calib": content.replace(b"6.095", b"6.195"),
    }[kind]
    assert changed != content
    path.write_bytes(changed)
    capsys.readouterr()
    assert main(arguments(copied, output, "--resume", *short)) == 2
    assert "clouds, labels or calibrations: changed since" in capsys.readouterr().err


def test_what_is_seldom_meant_is_said(minute, tmp_path, capsys):
    copied = copy_data(minute, tmp_path)
    for path in (copied[1] / "training/velodyne").iterdir():
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        points[:, 3] *= 255
        points.tofile(path)
    both = ("--val-split", "train", "--set", "augment.sample={}", "train.epochs=1")
    with pytest.warns(UserWarning, match="clouds_train: made before 9 of 9 clouds"):
        assert main(arguments(copied, tmp_path / "run", *both)) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert any("in both splits, of 9 validation frames" in line for line in said)
    assert any("intensity up to" in line for line in said)
    assert not any("picture" in line for line in said)  # what is simulated is cropped
    for path in (copied[1] / "training/velodyne").iterdir():
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        turned = [points * np.float32([-1, -1, 1, 1]), points * np.float32([-1, 1, 1, 1])]
        np.concatenate([points, *turned]).tofile(path)
    again = ("--set", "augment.sample={}", "train.epochs=1")
    with pytest.warns(UserWarning, match="made before"):
        assert main(arguments(copied, tmp_path / "again", *again)) == 0
    assert "if there is no camera, say grid.crop_to_image: false" in capsys.readouterr().err


def test_a_class_that_cannot_be_pasted_is_said(minute, tmp_path, capsys):
    copied = copy_data(minute, tmp_path)
    for path in (copied[1] / "training/label_2").iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        flat = [" ".join([*line[:4], *(["0", "0", "0", "0"]), *line[8:]]) for line in lines]
        path.write_text("".join(f"{line}\n" for line in flat))
    assert prepare(["--root", str(copied[1])]) == 0
    capsys.readouterr()
    assert main(arguments(copied, tmp_path / "run", "--set", "train.epochs=1")) == 0
    assert "no Car to paste (augment.sample.Car: 4)" in capsys.readouterr().err
