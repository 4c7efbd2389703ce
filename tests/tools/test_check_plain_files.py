"""The check of plain files: a sound data set, the same spoiled in every known way, and what the
written configuration says."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.boxes import box_corners
from millisecond.data.checks.sensor import guess_points
from millisecond.data.checks.survey import survey
from millisecond.data.datasets import open_dataset
from millisecond.detector.config import load_config
from millisecond.detector.config_check import advice
from millisecond.detector.config_choice import choose_config, config_text, with_voxels
from millisecond.tools.check import main
from tests.helpers.plain_files import (
    FLOOR,
    FRAMES,
    read_boxes,
    spoil_boxes,
    spoil_clouds,
    write,
    write_cloud,
    write_labels,
    write_plain_files,
)

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
    assert low[0] == -high[0] and low[1] == -high[1], "boxes all around"
    # 9 training frames, and the template's 3 epochs of 250 at least
    assert config.train.epochs == 84 and config.augment.sample["Forklift"] == 6
    assert config.augment.rotation == pytest.approx(np.pi / 4, abs=1e-4)
    reasons = [line for line in path.read_text().splitlines() if "#" in line]
    assert any("all around, objects may stand at any angle" in line for line in reasons)
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
    "bottom face": (
        change(2, lambda b: b[:, 2] - b[:, 5] / 2),
        "z seems to be the height of the lower",
    ),
    "turned axes": (quarter, "turned by a quarter to the left"),
    "y to the right": (mirrored, "y points to the other side"),
    "millimetres": (change(slice(0, 6), lambda b: b[:, :6] * 1000), "seem to be in millimetres"),
    "centimetres": (change(slice(0, 6), lambda b: b[:, :6] * 100), "seem to be in centimetres"),
    "feet": (change(slice(0, 6), lambda b: b[:, :6] / 0.3048), "seem to be in feet"),
    "elsewhere": (change(0, lambda b: b[:, 0] + 300), "60 of 60 boxes hold no point"),
}


@pytest.mark.parametrize("name", SPOILED_BOXES)
def test_spoiled_boxes_are_told(root, sound, name):
    spoil, expected = SPOILED_BOXES[name]
    spoil_boxes(root, spoil)
    lines = advised(root, sound[1])
    assert any(expected in line for line in lines), lines


@pytest.mark.parametrize("name", ["bottom face", "degrees", "turned axes", "feet"])
def test_the_configuration_fits_the_labels_as_they_are_meant(root, sound, tmp_path, capsys, name):
    spoil_boxes(root, SPOILED_BOXES[name][0])
    path = tmp_path / "spoiled.yaml"
    arguments = ["--root", root, "--config", SMALL, "--write-config", path, "--output", tmp_path]
    assert main(list(map(str, arguments))) == 0
    meant, written = load_config(sound[1]), load_config(path)
    assert written.classes == meant.classes and written.grid == meant.grid
    out = capsys.readouterr().out
    assert "- labels: " in out and "of boxes corrected so" in out and "hold no point" not in out
    assert "fits the labels only after this correction: write " in path.read_text()


def test_two_mistakes_in_the_labels_are_told(root, sound):
    spoil_boxes(
        root, lambda boxes: [SPOILED_BOXES[n][0](boxes) for n in ("bottom face", "degrees")]
    )
    lines = "\n".join(advised(root, sound[1]))
    assert "write z + h/2 for z" in lines and "write yaw * pi/180 for yaw" in lines


QUADRANT = {
    "all around": lambda places: np.ones(len(places), bool),
    "ahead": lambda places: places[:, 0] > 0,
    "left": lambda places: places[:, 1] > 0,
    "ahead on the left": lambda places: (places[:, :2] > 0).all(axis=1),
    "behind on the right": lambda places: (places[:, :2] < 0).all(axis=1),
    "far ahead": lambda places: places[:, 0] > 9,
}


@pytest.mark.parametrize("name", QUADRANT)
def test_the_grid_is_where_the_points_and_the_boxes_are(root, tmp_path, name):
    """Objects and points of a part of the surroundings: no cells farther than 3 m beside them."""
    seen = QUADRANT[name]
    spoil_clouds(root, lambda points: points[seen(points)])
    every = []
    for path in sorted((root / "labels").iterdir()):
        boxes, kinds = read_boxes(path)
        kept = seen(boxes)
        every.append(boxes[kept])
        write_labels(root, path.stem, boxes[kept], np.array(kinds)[kept].tolist())
    path = tmp_path / "part.yaml"
    arguments = ["--root", root, "--config", SMALL, "--write-config", path, "--output", tmp_path]
    assert main(list(map(str, arguments))) == 0
    config = load_config(path)
    low, high = np.array(config.grid.range).reshape(2, 3)
    points = np.concatenate([frame.points for frame in open_dataset(root, "all")])[:, :3]
    corners = box_corners(np.concatenate(every)).reshape(-1, 3)
    assert (low <= corners.min(axis=0)).all() and (corners.max(axis=0) <= high).all()
    assert (low > np.minimum(points, 0).min(axis=0) - 3).all(), "a range without points"
    assert (high < np.maximum(points, 0).max(axis=0) + 3).all(), "a range without points"
    if name == "far ahead":
        assert low[0] > 3
    both = points[:, 1].min() < -5 and points[:, 1].max() > 5
    assert (config.augment.flip > 0) == both


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize("template", sorted(Path("configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_few_frames_and_every_template(sound, template, frames):
    root, _ = sound
    found = survey(open_dataset(root, "all"))
    guess = guess_points(sorted((root / "points").iterdir()))
    chosen = choose_config(load_config(template), found, guess, frames)
    train = chosen.config.train
    assert train.batch_size % train.views == 0 and train.batch_size // train.views <= frames


def test_a_class_of_few_boxes_is_left_out(sound):
    root, _ = sound
    found, guess = (
        survey(open_dataset(root, "all")),
        guess_points(sorted((root / "points").iterdir())),
    )

    def named(*few):
        names = np.full(len(found.boxes), "Person", object)
        for first, (name, count) in enumerate(few):
            names[10 * first : 10 * first + count] = name
        return choose_config(load_config(SMALL), replace(found, names=names), guess, FRAMES)

    chosen = named(("Crane", 4), ("Tug", 5))
    assert chosen.config.class_names == ("Person", "Tug")
    assert chosen.reasons["classes"] == "left out for fewer than 5 boxes: Crane (4)"
    assert "  # left out for fewer than 5 boxes: Crane (4)\n" in config_text(
        with_voxels(chosen, np.array([2000])), []
    )
    assert "classes" not in named(("Tug", 5)).reasons
    wide = chosen.config.grid.range
    for reach in ([[-90, -90, -3], [5, 5, 3]], [[-5, -5, -3], [90, 90, 3]]):  # of points alone
        farther = replace(found, reach=np.array(reach, float))
        grid = choose_config(load_config(SMALL), farther, guess, FRAMES).config.grid
        low, high = np.reshape(grid.range, (2, 3))
        assert (low > np.array(wide[:3]) - 5).all() and (high < np.array(wide[3:]) + 5).all()
    few = replace(found, names=found.names[:4], boxes=found.boxes[:4])
    with pytest.raises(ValueError, match=r"no class has 5 labelled boxes .4 boxes in 12 frames"):
        choose_config(load_config(SMALL), few, guess, FRAMES)


def test_a_signalling_nan_among_the_columns_is_no_warning(tmp_path):
    points = np.random.default_rng(0).uniform((-30, -30, -2, 0), (30, 30, 1, 1), (400, 4))
    rows = points.astype("<f4")
    rows.view("<u4")[7, 1] = 0x7F800001
    rows.tofile(tmp_path / "000000.bin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert guess_points([tmp_path / "000000.bin"]).points.columns == (*"xyz", "intensity")


@pytest.mark.parametrize("left", [0, 10, 150])
def test_a_cloud_with_too_few_points_is_blamed_and_not_its_labels(root, sound, left):
    """As a file whose header names fewer points than it holds."""
    for name in ("000000", "000001", "000002"):
        cloud = np.fromfile(root / f"points/{name}.bin", "<f4").reshape(-1, 4)
        write_cloud(root, name, cloud[len(cloud) - left :])
    lines = advised(root, sound[1])
    (line,) = (line for line in lines if "points for a scan" in line)
    assert "the clouds of 3 of 12 frames have too few points for a scan" in line
    assert f"such as {left} in frame 000000" in line
    assert not any("hold no point" in line or line.startswith("labels") for line in lines)
    assert left > 100 or lines == [line], "so few points have no axes and no ground"


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
    assert (
        "clouds of 1 of 11 frames have too few points for a scan, such as 0 in frame 000005"
        in lines
    )
    assert "000006 is without a label file" in lines
    assert "2 of 3 frames of val show a scene that train has too" in lines
    write(root / "ImageSets/val.txt", "000000\n000003\n000011\n")
    lines = "\n".join(advised(root, sound[1]))
    assert "000000, 000003 are in train and in val" in lines


def test_axes_of_the_clouds_come_before_the_labels(root, sound):
    """Turned upside down, a cloud suits boxes that are mirrored; that is not the labels' fault."""
    spoil_clouds(root, lambda points: points * (1, -1, -1, 1))
    lines = advised(root, sound[1])
    assert lines[0].startswith("data: turn the clouds first") and "labels: " in lines[1]


def test_lists_with_suffixes_are_told(root, sound):
    write(root / "ImageSets/train.txt", "000000.bin\n000001\n")
    (line,) = advised(root, sound[1])
    assert "train.txt: 000000.bin is without a cloud; the list has names of frames" in line


def test_lists_that_are_missing_are_told(root, sound):
    (root / "ImageSets/val.txt").unlink()
    (line,) = advised(root, sound[1])
    assert "no ImageSets/val.txt; docs/own_data.md" in line
    shutil.rmtree(root / "ImageSets")
    (line,) = advised(root, sound[1])
    assert "no ImageSets/train.txt and val.txt; docs/own_data.md" in line


def test_labels_elsewhere_are_doubted_before_the_range(root, sound):
    spoil_boxes(root, SPOILED_BOXES["elsewhere"][0])
    lines = advised(root, sound[1])
    assert "do labels and clouds have the same names, axes and unit" in lines[0]


def all_empty(root):
    spoil_clouds(root, lambda points: points[:0])


def one_folder_deeper(root):
    for name in ("points", "labels"):
        shutil.move(root / name, root / "data" / name)


def no_labels(root):
    for path in sorted((root / "labels").iterdir())[:-2]:
        path.write_text("1 2 3\n")


def huge(root):
    spoil_boxes(root, change(3, lambda b: b[:, 3] * 12345))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (all_empty, "points: all clouds are empty files; get them again"),
        (one_folder_deeper, "/mine/data meant?"),
        (no_labels, "frames cannot be read, the first: "),
        (huge, "class Forklift: the median box is 32"),
    ],
)
def test_a_hopeless_data_set_gives_one_line(root, tmp_path, capsys, spoil, message):
    (root / "data").mkdir()
    spoil(root)
    arguments = ["--root", root, "--write-config", tmp_path / "new.yaml", "--output", tmp_path]
    assert main(list(map(str, arguments))) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "new.yaml").exists()


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
