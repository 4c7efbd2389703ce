"""The data check: figures against brute force, and advice that helps when it is followed."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from millisecond.data.checks.survey import survey
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import load_config
from millisecond.detector.config_check import advice, best_overlap, check_class
from millisecond.detector.draw.style import CLASS_COLOURS
from millisecond.ops.boxes import iou_bev
from millisecond.tools.check import CONFIG, main, print_classes
from tests.helpers.kitti_miniature import CAR

SMALL = ["grid.range=[0,-8,-3,16,8,1]"]


def add_cars(root, size=(1.5, 1.8, 4.0), forward=(8.0, 60.0), number=12):
    """Cars beside the made-up ones: (h, w, l) in metres, spread over so many metres ahead."""
    height, width, length = size
    lines = [
        f"Car 0 0 0 10 10 20 90 {height} {width} {length} {x - 5} 1.6 {z} -1.57\n"
        for x, z in zip(np.linspace(0, 9, number), np.linspace(*forward, number), strict=True)
    ]
    for path in (root / "training/label_2").iterdir():
        path.write_text(path.read_text() + "".join(lines))


def followed(lines, overrides=()):
    """The configuration after the advice."""
    config = load_config(CONFIG, overrides)
    values = list(overrides)
    for line in lines:
        if match := re.match(r"grid\.range: .* -> (\[.*?\])", line):
            values.append(f"grid.range={match[1].replace(' ', '')}")
        elif match := re.match(r"classes\.(\w+)\.(size|bottom): .* -> ([-\d.]+|\[.*?\])", line):
            place = config.class_names.index(match[1])
            values.append(f"classes.{place}.{match[2]}={match[3].replace(' ', '')}")
    return load_config(CONFIG, values)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_best_overlap_is_that_of_all_anchors(number):
    config = load_config(CONFIG, SMALL)
    rng = np.random.default_rng(number)
    boxes = rng.uniform((0, -8, -2, 0.5, 0.4, 1, -4), (16, 8, 0, 5, 2, 2, 4), (60, 7))
    boxes = boxes.astype(np.float32)
    # Turned to the nearest quarter turn, the exact overlap is the overlap of the aligned boxes.
    anchors = build_anchors(config)[:, :, number].reshape(-1, 7).double()
    turned = torch.from_numpy(boxes).double()
    for rows in (anchors, turned):
        rows[:, 6] = torch.round(rows[:, 6] / (np.pi / 2)) * (np.pi / 2)
    every = iou_bev(turned, anchors).max(dim=1).values
    np.testing.assert_allclose(best_overlap(config, number, boxes), every.numpy(), atol=1e-5)


def test_figures(root, capsys):
    found = survey(KittiDataset(root, "all"))
    config = load_config(CONFIG)
    assert found.frames == 4 and not found.unreadable and found.without_boxes == 0
    car = check_class(found, config, 0)
    assert (car.boxes, car.outside, car.empty, car.sparse) == (4, 0, 0, 0)
    np.testing.assert_allclose(car.size, CAR[3:6], atol=1e-6)
    assert car.bottom == pytest.approx(-1.6, abs=1e-6) and car.recall == 1
    assert (found.counts[found.names == "Car"] >= 40).all()
    cyclist = check_class(found, config, 2)
    assert cyclist.boxes == 0 and np.isnan(cyclist.recall)
    print_classes(found, config)
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 100 and "none in range" in table


def test_fitting_data_needs_no_change(root):
    add_cars(root, forward=(15.0, 15.0), number=1)
    on_the_ground = load_config(CONFIG, ["classes.1.bottom=-1.6"])  # KITTI's recipe floats
    lines = advice(on_the_ground, survey(KittiDataset(root, "all")))
    assert lines == ["classes.Cyclist: no such object in the data; take the class out, or correct "
                     "its name"]  # fmt: skip


def test_advice_on_the_range_and_sizes_helps(root):
    add_cars(root, size=(3.0, 2.5, 9.0), forward=(30.0, 130.0), number=20)
    found = survey(KittiDataset(root, "all"))
    config = load_config(CONFIG)
    lines = advice(config, found)
    keys = [line.split(":")[0] for line in lines]
    assert "grid.range" in keys and "classes.Car.size" in keys
    assert check_class(found, config, 0).outside > 20
    better = followed(lines)
    check = check_class(found, better, 0)
    assert check.outside == 0 and better.grid.range[1] == -40
    assert check.recall > 0.9 > 0.2 > check_class(found, config, 0).recall
    assert not any(line.startswith(("grid", "classes.Car.size")) for line in advice(better, found))


def test_advice_on_thresholds_is_the_highest_that_enough_boxes_reach(root):
    def thresholds(matched, *more):
        unmatched = round(matched - 0.15, 2)
        values = [f"classes.0.matched={matched}", f"classes.0.unmatched={unmatched}", *more]
        return load_config(CONFIG, values)

    def of_cars(*given):
        return "".join(line for line in advice(thresholds(*given), found) if "boxes reach" in line)

    found = survey(KittiDataset(root, "all"))
    assert not of_cars(0.95)  # four boxes say nothing
    add_cars(root, size=(1.5, 1.6, 6.0))  # longer than the anchors, and no wider
    found = survey(KittiDataset(root, "all"))
    wanted = (
        r"classes.Car.matched, unmatched: 0.95, 0.8 -> ([\d.]+), ([\d.]+); only 0% of the boxes"
    )
    matched, unmatched = map(float, re.match(wanted, of_cars(0.95)).groups())
    assert unmatched == pytest.approx(matched - 0.15) and not of_cars(matched)
    recalls = [check_class(found, thresholds(m), 0).recall for m in (matched, matched + 0.05)]
    assert recalls[0] >= 0.8 > recalls[1]
    assert any(line.startswith("classes.Car.size") for line in advice(thresholds(0.5), found))
    coarse = "grid.voxel_size=[1.1,1.25,0.1]"
    assert of_cars(0.25, coarse).startswith("grid.voxel_size: is too coarse for Car; only ")


@pytest.mark.parametrize(("moved", "said"), [(1.0, "float"), (0.2, None), (-1.0, "lie")])
def test_anchors_that_float_over_few_objects(root, moved, said):
    """The distance is that by which the anchors were moved; recall is from above, and stays."""
    config, found = load_config(CONFIG), survey(KittiDataset(root, "all"))
    number = config.class_names.index("Pedestrian")
    boxes = found.boxes[found.names == "Pedestrian"].astype(np.float64)
    ground = float(np.median(boxes[:, 2] - boxes[:, 5] / 2))
    config = load_config(CONFIG, [f"classes.{number}.bottom={ground + moved}"])
    lines = [line for line in advice(config, found) if "Pedestrian.bottom" in line]
    assert len(lines) == (said is not None)
    for line in lines:
        assert (
            f"-> {ground:.2f}; anchors {said} 1.00 m " in line
            and f"(median of {len(boxes)})" in line
        )
        overlaps = best_overlap(config, number, found.boxes[found.names == "Pedestrian"])
        assert f"recall is {(overlaps >= 0.5).mean():.0%} at an overlap of 0.5" in line


def test_sizes_in_centimetres_are_told_and_do_not_widen_the_range(root):
    add_cars(root, size=(150, 180, 400), forward=(20.0, 60.0))
    lines = advice(load_config(CONFIG), survey(KittiDataset(root, "all")))
    (line,) = (line for line in lines if "centre outside" in line or "sizes are in metres" in line)
    assert line.startswith("classes.Car: 48 boxes are over 3 times") and "[400, 180, 150]" in line


def test_boxes_beside_their_points(root):
    for path in (root / "training/velodyne").iterdir():
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        points[:, 2] += 50
        points[:, 3] = 0
        points.tofile(path)
    lines = advice(load_config(CONFIG), survey(KittiDataset(root, "all")))
    assert any(line.startswith("classes.Car: 4 of 4 boxes hold no point") for line in lines)
    (line,) = (line for line in lines if "intensit" in line)
    assert line.startswith("points.features: [x, y, z]; the clouds have no intensities")


def test_angles_in_degrees(root):
    config, dataset = load_config(CONFIG), KittiDataset(root, "all")
    assert not any("radians" in line for line in advice(config, survey(dataset)))
    path = root / "training/label_2/000005.txt"
    path.write_text("Car 0 0 0 10 10 20 90 1.5 1.8 4.0 0 1.6 15 -90\n")
    (line,) = (line for line in advice(config, survey(dataset)) if "radians" in line)
    assert "rotation_y goes up to 90" in line


def test_objects_that_stand_twice_in_their_label_file(root):
    config, dataset = load_config(CONFIG), KittiDataset(root, "all")
    assert not any("once more" in line for line in advice(config, survey(dataset)))
    path = root / "training/label_2/000005.txt"
    cars = [f"Car 0 0 0 10 10 20 90 1.5 1.8 4.0 {x} 1.6 15 0\n" for x in range(3)]
    path.write_text("".join(cars) * 2)
    (line,) = (line for line in advice(config, survey(dataset)) if "once more" in line)
    assert re.match(r"data: 3 of \d+ boxes stand .* such as a Car in frame 000005; take", line)


def test_odd_clouds(root):
    first, second = sorted((root / "training/velodyne").iterdir())[:2]
    first.write_bytes(b"")
    points = np.fromfile(second, "<f4").reshape(-1, 4)
    points[:, 3] *= 255
    points[-1, 3] = np.nan
    points.tofile(second)
    found = survey(KittiDataset(root, "all"))
    assert found.without_points == ("000002",) and found.not_finite == 1
    lines = "\n".join(advice(load_config(CONFIG), found))
    assert (
        "the clouds of 1 of 4 frames have too few points for a scan, such as 0 in frame 000002"
        in lines
    )
    assert "intensities run from" in lines
    assert f"points that are not finite: 1, the first in frame {second.stem};" in lines


def test_program(root, tmp_path, capsys):
    """Where training takes vans for cars, a van is a car."""
    for path in root.glob("training/label_2/*.txt"):
        path.write_text(path.read_text().replace("Car ", "Van "))
    (tmp_path / "vans.yaml").write_text(load_config(CONFIG, ["classes.0.also=[Van]"]).to_yaml())
    arguments = ["--config", str(tmp_path / "vans.yaml"), "--output", str(tmp_path / "out")]
    assert main(["--root", str(root), *arguments]) == 0
    out = capsys.readouterr().out
    assert "4 frames: " in out and "8 boxes" in out and "what to change:" in out
    assert "not learnt" not in out
    with Image.open(tmp_path / "out/objects.png") as picture:
        pixels = np.asarray(picture)
    for name in ("Car", "Pedestrian"):
        assert (pixels == CLASS_COLOURS[name]).all(axis=2).sum() > 100


def test_real_frames(kitti, tmp_path, capsys):
    assert main(["--root", str(kitti), "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    car = next(line.split() for line in out.splitlines() if line.startswith("Car"))
    assert car[1:5] == ["29", "0", "0", "2"] and car[-1] == "97%"
    assert "Misc, Truck" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "/nowhere"], "/nowhere: no such folder"),
        (["--root", "{root}", "--split", "fold7"], "fold7.txt: no such split"),
        (["--root", "{root}", "--config", "{root}/no.yaml"], "no.yaml"),
    ],
)
def test_mistakes_are_one_line(root, tmp_path, capsys, arguments, message):
    arguments = [argument.replace("{root}", str(root)) for argument in arguments]
    assert main([*arguments, "--output", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_frames_that_cannot_be_read_do_not_hide_the_others(root, tmp_path, capsys):
    path = root / "training/label_2/000005.txt"
    path.write_text("Car 1 2\n")
    assert main(["--root", str(root), "--output", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "6 boxes" in captured.out
    last = captured.err.splitlines()[-1]
    assert last.startswith("error: 1 of 4 frames cannot be read") and "line 1: 3 fields" in last


def test_every_frame_that_cannot_be_read_is_named(root):
    for path in (root / "training/label_2").iterdir():
        path.write_text("Car 1 2\n")
    found = survey(KittiDataset(root, "all"))
    lines = advice(load_config(CONFIG), found)
    assert sum("label_2" in line and "3 fields" in line for line in lines) == 4


def all_round(root):
    """A data set without a camera: cars behind the sensor, no boxes in an image."""
    for path in (root / "training/label_2").iterdir():
        path.write_text(
            "".join(
                f"Car 0 0 0 0 0 0 0 1.5 1.8 4 {x} 1.6 {-z} -1.57\n" for x, z in ((-4, 15), (4, 25))
            )
        )
    for path in (root / "training/velodyne").iterdir():
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        rng = np.random.default_rng(0)
        for x, y in ((-15, 4), (-25, -4)):
            car = rng.uniform((x - 1.8, y - 0.8, -1.5, 0), (x + 1.8, y + 0.8, -0.2, 1), (80, 4))
            points = np.concatenate([points, car.astype(np.float32)])
        points.tofile(path)


def test_without_a_camera_the_crop_is_blamed_and_not_the_calibration(root, tmp_path, capsys):
    all_round(root)
    wide = "[-40, -40, -3, 40, 40, 1]"
    config = tmp_path / "mine.yaml"
    config.write_text(load_config(CONFIG, [f"grid.range={wide}"]).to_yaml())
    command = ["--root", str(root), "--output", str(tmp_path / "out"), "--config", str(config)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "% of the points are in the camera's picture, the others are left out" in out
    assert "- grid.crop_to_image: true -> false; 8 of 8 boxes" in out
    assert "calibration" not in out
    followed_config = load_config(config, ["grid.crop_to_image=false"])
    config.write_text(followed_config.to_yaml())
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "camera's picture" not in out and "hold no point" not in out
    car = next(line.split() for line in out.splitlines() if line.startswith("Car"))
    assert car[1:4] == ["8", "0", "0"]
    assert "classes.Car: 8 of 8 boxes have an empty box in the image" in out


def test_the_caps_on_voxels(root, tmp_path, capsys):
    config = tmp_path / "mine.yaml"
    caps = ["grid.max_voxels_test=100", "grid.max_voxels_train=300"]
    config.write_text(load_config(CONFIG, caps).to_yaml())
    command = ["--root", str(root), "--output", str(tmp_path / "out"), "--config", str(config)]
    assert main(command) == 0
    out = capsys.readouterr().out
    grid = load_config(CONFIG).grid.voxel_grid
    counts = [cells(frame.points, grid) for frame in KittiDataset(root, "all")]
    assert f"{min(counts)} to {max(counts)} voxels per frame" in out
    assert f"- grid.max_voxels_test: 100 -> {max(counts)}; 4 of 4 frames have more" in out
    assert f"training leaves out up to {(max(counts) - 300) / max(counts):.0%} of them" in out


def cells(points, grid) -> int:
    """How many cells of the grid hold points."""
    low, high = np.array(grid.point_range[:3]), np.array(grid.point_range[3:])
    inside = points[((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1), :3]
    return len({tuple(cell) for cell in np.floor((inside - low) / grid.voxel_size).tolist()})


def test_odd_scans_and_numbers(root):
    for path in (root / "training/velodyne").iterdir():
        points = np.fromfile(path, "<f4").reshape(-1, 4)
        points[:, :3] = points[:, [0, 2, 1]]
        points.tofile(path)
    path = root / "training/label_2/000005.txt"
    path.write_text(path.read_text().replace("0.00 1.60 20.00", "1e30 1.60 20.00"))
    config = load_config(CONFIG)
    found = survey(KittiDataset(root, "all"), iter, config.grid.voxel_grid, config.ground_z)
    lines = "\n".join(advice(config, found))
    assert "z must be the axis that points up" in lines
    assert "000005.txt, line 1: x is 1e+30; metres" in lines and "nan" not in lines


def test_a_picture_of_others_is_spared(root, tmp_path, capsys):
    picture = tmp_path / "out" / "objects.png"
    picture.parent.mkdir()
    picture.write_bytes(b"a holiday")
    assert main(["--root", str(root), "--output", str(picture.parent)]) == 2
    out, err = capsys.readouterr()
    assert "objects.png: is there and is not a picture of this program" in err and not out
    assert picture.read_bytes() == b"a holiday"
