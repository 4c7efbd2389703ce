"""The check of plain files: a sound data set, the same spoiled in every known way, and what the
written configuration says."""

import json
import shutil

import numpy as np
import pytest

from data.datasets import open_dataset
from data.survey import survey
from detector.config import load_config
from detector.training.data_check import advice
from tests.helpers.plain_files import (
    FLOOR,
    FRAMES,
    read_boxes,
    spoil_boxes,
    spoil_clouds,
    write,
    write_cloud,
    write_plain_files,
)
from tools.check_data import main

SMALL = "configs/second_small.yaml"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A data set and the configuration that was written for it."""
    root = write_plain_files(tmp_path_factory.mktemp("plain") / "mine")
    config = root.parent / "mine.yaml"
    arguments = ["--root", root, "--config", SMALL, "--write-config", config]
    assert main([*map(str, arguments), "--output", str(root.parent / "check")]) == 0
    return root, config


@pytest.fixture
def root(sound, tmp_path):
    return shutil.copytree(sound[0], tmp_path / "mine")


def advised(root, path) -> list[str]:
    """What the check of a data set against a configuration says."""
    config = load_config(path)
    dataset = open_dataset(root, "all", config.class_names, points=config.points)
    return advice(config, survey(dataset, iter, config.grid.voxel_grid, config.ground_z))


def test_a_sound_data_set_needs_nothing(sound):
    assert advised(*sound) == []


def test_the_written_configuration_fits_the_data(sound):
    root, path = sound
    config = load_config(path)
    assert set(config.class_names) == {"Forklift", "Person"} and not config.grid.crop_to_image
    by_name = {kind.name: kind for kind in config.classes}
    np.testing.assert_allclose(by_name["Forklift"].size, (2.6, 1.1, 2.0), rtol=0.05)
    assert by_name["Person"].bottom == pytest.approx(FLOOR, abs=0.03)
    boxes = np.concatenate([frame.boxes for frame in open_dataset(root, "all")])
    low, high = np.array(config.grid.range).reshape(2, 3)
    assert ((boxes[:, :3] > low) & (boxes[:, :3] < high)).all()
    assert low[0] == -high[0] == low[1] == -high[1], "boxes all around"
    # 9 training frames, and the template's 3 epochs of 250 at least
    assert config.train.epochs == 84 and config.augment.sample["Forklift"] == 6
    reasons = [line for line in path.read_text().splitlines() if "#" in line]
    assert len(reasons) > 12


def test_a_written_configuration_is_never_written_over(sound, capsys):
    root, config = sound
    before = config.read_bytes()
    assert main(["--root", str(root), "--write-config", str(config)]) == 2
    assert "already exists" in capsys.readouterr().err and config.read_bytes() == before


def columns(*places):
    def change(boxes):
        boxes[:] = boxes[:, list(places)]

    return change


def change(place, value):
    def changed(boxes):
        boxes[:, place] = value(boxes)

    return changed


def mirrored(boxes):
    boxes[:, [1, 6]] *= -1


def quarter(boxes):
    boxes[:, :2] = np.stack([-boxes[:, 1], boxes[:, 0]], axis=1)
    boxes[:, 6] += np.pi / 2


SPOILED_BOXES = {
    "yaw of the wrong sign": (change(6, lambda b: -b[:, 6]), "yaw seems to have the wrong sign"),
    "length and width exchanged": (columns(0, 1, 2, 4, 3, 5, 6), "off by a quarter turn"),
    "yaw of a camera": (change(6, lambda b: -b[:, 6] - np.pi / 2), "as rotation_y of a camera"),
    "degrees": (change(6, lambda b: np.degrees(b[:, 6])), "yaw seems to be in degrees"),
    "bottom face": (change(2, lambda b: b[:, 2] - b[:, 5] / 2), "z seems to be that of the lower"),
    "turned axes": (quarter, "turned by a quarter to the left"),
    "y to the right": (mirrored, "y points to the other side"),
    "elsewhere": (change(0, lambda b: b[:, 0] + 300), "60 of 60 boxes hold no point"),
}


@pytest.mark.parametrize("name", SPOILED_BOXES)
def test_spoiled_boxes_are_told(root, sound, name):
    spoil, expected = SPOILED_BOXES[name]
    spoil_boxes(root, spoil)
    lines = advised(root, sound[1])
    assert any(expected in line for line in lines), lines


def test_degrees_and_radians_of_labelcloud(root, sound):
    """Right angles are in degrees; radians in their place are told."""
    for number, unit in enumerate((np.degrees, lambda angle: angle)):
        for path in sorted((root / "labels").iterdir()):
            boxes, kinds = read_boxes(sound[0] / "labels" / f"{path.stem}.txt")
            path.unlink()
            write(path.with_suffix(".json"), json.dumps(labelcloud(boxes, kinds, unit)))
        lines = advised(root, sound[1])
        assert any("radians where degrees are read" in line for line in lines) == (number == 1)


def labelcloud(boxes, kinds, unit):
    return {
        "objects": [
            {
                "name": kind,
                "centroid": dict(zip("xyz", box[:3], strict=True)),
                "dimensions": dict(zip(("length", "width", "height"), box[3:6], strict=True)),
                "rotations": {"x": 0, "y": 0, "z": unit(box[6] % (2 * np.pi))},
            }
            for box, kind in zip(boxes.tolist(), kinds, strict=True)
        ]
    }


SPOILED_CLOUDS = {
    "intensities to 255": (lambda p: p * (1, 1, 1, 255), "points.intensity_scale: 1 -> 255"),
    "z pointing down": (lambda p: p * (1, -1, -1, 1), "the ground seems to be overhead"),
    "not finite": (lambda p: np.where(p == p[5], np.nan, p), "points that are not finite: "),
}


@pytest.mark.parametrize("name", SPOILED_CLOUDS)
def test_spoiled_clouds_are_told(root, sound, name):
    spoil, expected = SPOILED_CLOUDS[name]
    spoil_clouds(root, spoil)
    lines = advised(root, sound[1])
    assert any(expected in line for line in lines), lines


def test_spoiled_frames_and_splits_are_told(root, sound):
    points = root / "points"
    shutil.copy(points / "000001.bin", points / "000004.bin")
    write_cloud(root, "000005", np.zeros((0, 4), np.float32))
    (root / "labels/000006.txt").unlink()
    for learnt, unseen in (("000000", "000009"), ("000002", "000010")):  # the next turn
        cloud = np.fromfile(points / f"{learnt}.bin", "<f4").reshape(-1, 4)
        write_cloud(root, unseen, cloud + np.float32([0.1, 0.05, 0, 0]))
    lines = "\n".join(advised(root, sound[1]))
    assert "the same cloud as another frame, such as 000004 as 000001" in lines
    assert "1 frames have no points (000005" in lines
    assert "000006 is without a label file" in lines
    assert "2 of 3 frames of val show a scene that train has too" in lines
    write(root / "ImageSets/val.txt", "000000\n000003\n000011\n")
    lines = "\n".join(advised(root, sound[1]))
    assert "000000, 000003 are in train and in val" in lines


def test_columns_are_told_from_their_numbers(root, tmp_path):
    """Six columns, as many devices write them, and intensities to 255."""
    rng = np.random.default_rng(0)

    def six(points):
        ring, time = rng.integers(0, 32, len(points)), np.sort(rng.uniform(0, 0.1, len(points)))
        return np.column_stack([points[:, :3], points[:, 3] * 255, ring, time])

    spoil_clouds(root, six)
    path = tmp_path / "six.yaml"
    arguments = ["--root", root, "--config", SMALL, "--write-config", path, "--output", tmp_path]
    assert main(list(map(str, arguments))) == 0
    points = load_config(path).points
    assert points.columns == ("x", "y", "z", "intensity", "ring", "time")
    assert points.features == ("x", "y", "z", "intensity") and points.intensity_scale == 255
    frame = open_dataset(root, "all", points=points)[FRAMES - 1]
    assert frame.points.shape[1] == 4 and 0.9 < frame.points[:, 3].max() <= 1
