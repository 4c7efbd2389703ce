"""The simulator against ray marching, geometry, and KITTI's own files."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from millisecond.data.boxes import points_in_boxes
from millisecond.data.calibration import Calibration
from millisecond.data.kitti.labels import read_labels
from millisecond.data.simulator import record, simulate, write_kitti_tree
from millisecond.data.simulator.cars import car
from millisecond.data.simulator.ground import flat_ground
from millisecond.data.simulator.lidar import default_sensor, scan
from millisecond.data.simulator.rays import GROUND
from millisecond.data.simulator.scenes import make_street
from millisecond.data.simulator.solids import Material, Thing, boxes, solids, upright
from millisecond.data.simulator.statistics import SIZES
from millisecond.data.simulator.street import Placed, Street
from millisecond.ops import overlap_bev
from millisecond.tools import simulate as simulate_tool
from tests.helpers.kitti_miniature import write_miniature

SEEDS = range(8)


def _street(*placed: Placed) -> Street:
    return Street(placed, flat_ground(np.array([0, 0, 1, 1.73], dtype=np.float32)))


def _block(length: float, width: float, height: float, kind: str | None = None) -> Thing:
    extent = upright(length, width, height)
    row = (-length / 2, length / 2, -width / 2, width / 2, 0, height)
    return Thing(lambda: solids(boxes([row], Material.CONCRETE)), extent, kind)


def test_nothing_is_seen_behind_a_wall():
    wall = _block(0.3, 60.0, 5.0)
    hidden = car(np.random.default_rng(0))
    seen = scan(
        _street(Placed(hidden, 20, 0, 0), Placed(wall, 12, 0, 0)),
        0,
        np.random.default_rng(0),
        degrees=84,
    )
    assert seen.points[:, 0].max() < 12 - 0.15 + 0.12  # six standard deviations of the noise
    assert seen.reachable[0] > 100
    assert seen.seen[0] == 0
    alone = scan(_street(Placed(hidden, 20, 0, 0)), 0, np.random.default_rng(0), degrees=84)
    assert alone.seen[0] == alone.reachable[0] == seen.reachable[0]


def test_half_a_car_behind_a_wall_is_half_occluded():
    wall = _block(0.3, 30.0, 5.0)
    box = _block(1.6, 4.0, 1.5, "Car")
    # From the sensor the wall's edge at (10, 0) lies in front of the middle of the car.
    seen = scan(
        _street(Placed(wall, 10, -15, 0), Placed(box, 20, 0, 0)), 0, np.random.default_rng(0)
    )
    assert seen.seen[1] / seen.reachable[1] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
def test_points_lie_on_what_they_hit(seed):
    street = make_street(np.random.default_rng(seed))
    exact = {"divergence": 0.0, "range_noise": 0.01, "beam_noise": 0.0}  # no mixed pixels
    narrow = replace(default_sensor(), **exact)
    seen = scan(street, 0.0, np.random.default_rng(seed), narrow)
    ground = seen.points[seen.owner == GROUND]
    height = street.ground.height(ground[:, 0], ground[:, 1], 0.0)
    kerb = np.abs(ground[:, 2] - height) > 0.12  # its upright face
    assert kerb.mean() < 0.03 and np.abs(ground[:, 2] - height).max() < 0.4
    for index in np.unique(seen.owner[seen.owner >= 0]):
        placed = street.placed[index]
        x, y, z, yaw = street.poses(0.0)[index]
        offset = seen.points[seen.owner == index, :3] - (x, y, z)
        cos, sin = np.cos(yaw), np.sin(yaw)
        local = offset @ np.array([(cos, -sin, 0), (sin, cos, 0), (0, 0, 1)])
        low, high = np.reshape(placed.thing.extent, (2, 3))
        assert (local > low - 0.12).all() and (local < high + 0.12).all()


@pytest.mark.parametrize("time", [0.0, 3.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_boxes_hold_points_and_do_not_overlap(seed, time):
    frame = simulate(seed, time)
    wider = frame.boxes + np.array([0, 0, 0, 0.2, 0.2, 0.2, 0], dtype=np.float32)
    held = points_in_boxes(frame.points, wider).sum(1)
    assert (held[frame.difficulty >= 0] > 0).all()  # of others, a mixed pixel perhaps
    assert set(frame.names) <= set(SIZES) | {"Misc"}
    boxes = torch.from_numpy(frame.boxes)
    overlap = overlap_bev(boxes, boxes).fill_diagonal_(0)
    assert (overlap < 0.02).all()


def test_a_seed_makes_one_frame():
    first, second, other = simulate(3), simulate(3), simulate(4)
    assert first.points.tobytes() == second.points.tobytes()
    assert first.boxes.tobytes() == second.boxes.tobytes()
    assert first.names == second.names
    assert first.points.tobytes() != other.points.tobytes()


def test_traffic_moves_with_time():
    moving = next(seed for seed in range(20) if make_street(np.random.default_rng(seed)).ego_speed)
    street = make_street(np.random.default_rng(moving))
    poses = street.poses(0.0)[:, :2], street.poses(0.5)[:, :2]
    for placed, before, after in zip(street.placed, *poses, strict=True):
        ego = (
            0.5
            * street.ego_speed
            * np.array([np.cos(street.ground.yaw), np.sin(street.ground.yaw)])
        )
        assert np.linalg.norm(after - before + ego) == pytest.approx(0.5 * placed.speed, abs=1e-6)


def test_kitti_tree_comes_back(tmp_path):
    write_kitti_tree(tmp_path, [5, 6], "val")
    assert (tmp_path / "ImageSets" / "val.txt").read_text().split() == ["000005", "000006"]
    folder = tmp_path / "training"
    for seed in (5, 6):
        recording = record(seed)
        frame, name = recording.frame, f"{seed:06d}"
        points = np.fromfile(folder / "velodyne" / f"{name}.bin", dtype="<f4").reshape(-1, 4)
        np.testing.assert_array_equal(points, frame.points)
        camera = Calibration.from_file(folder / "calib" / f"{name}.txt")
        assert camera.in_image(points, frame.image_shape).all()
        labels = read_labels(folder / "label_2" / f"{name}.txt")
        cared = labels.select(labels.types != "DontCare")
        assert tuple(cared.types) == frame.names
        np.testing.assert_allclose(camera.boxes_from_camera(cared.boxes), frame.boxes, atol=1e-3)
        np.testing.assert_array_equal(cared.difficulty, frame.difficulty)
        a, b, c, d = map(
            float, (folder / "planes" / f"{name}.txt").read_text().split("\n")[3].split()
        )
        on_road = np.array([[10.0, 2.0, 0.0], [30.0, -3.0, 0.0]])
        on_road[:, 2] = -(on_road[:, :2] @ frame.plane[:2] + frame.plane[3]) / frame.plane[2]
        np.testing.assert_allclose(camera.lidar_to_rect(on_road) @ (a, b, c) + d, 0, atol=1e-5)


def contents(folder) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_real_data_set_is_not_written_over(tmp_path, capsys):
    root = write_miniature(tmp_path / "kitti")
    before = contents(root)
    for more in ([], ["--first", "500000"], ["--split", "other"]):
        command = ["--root", str(root), "--split", "train", "--streets", "3", *more]
        assert simulate_tool.main(command) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {root}: ") and err.count("\n") == 1
        assert "not simulated" in err
    assert contents(root) == before


def test_a_second_simulation_adds_to_the_split(tmp_path):
    write_kitti_tree(tmp_path, [1, 2], "train")
    first = contents(tmp_path)
    write_kitti_tree(tmp_path, [2, 3], "train", processes=2)
    after = contents(tmp_path)
    assert after.pop("ImageSets/train.txt").split() == [b"000001", b"000002", b"000003"]
    assert after.pop("simulated.txt") and first.pop("simulated.txt")
    del first["ImageSets/train.txt"]
    assert {name: after[name] for name in first} == first
    assert not list(tmp_path.rglob(".*"))


def test_streets_of_an_earlier_version_are_not_mixed_with_these(tmp_path):
    write_kitti_tree(tmp_path, [1], "train")
    note = tmp_path / "simulated_sensor.yaml"
    now = note.read_text()
    for earlier in (now.split("\n", 1)[1], now.replace("# world ", "# world 0"), None):
        note.unlink() if earlier is None else note.write_text(earlier)
        before = contents(tmp_path)
        with pytest.raises(ValueError, match="another version simulated its streets"):
            write_kitti_tree(tmp_path, [2], "train")
        assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("split", "seeds", "said"),
    [
        ("val", [5, 2], "000002 is in split 'train' already"),
        ("../../x", [5], "split '../../x'"),
        ("test", [5], "split 'test'"),
        ("mine", [5], "ImageSets/mine.txt: real is not simulated"),
        ("train", [7], "velodyne: 000007.bin is there already"),
    ],
)
def test_what_was_not_simulated_stays(tmp_path, split, seeds, said):
    write_kitti_tree(tmp_path / "root", [1, 2], "train")
    (tmp_path / "root" / "ImageSets" / "mine.txt").write_text("real\n")
    (tmp_path / "root" / "training" / "velodyne" / "000007.bin").write_bytes(bytes(16))
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=re.escape(said)):
        write_kitti_tree(tmp_path / "root", seeds, split)
    assert contents(tmp_path) == before


def test_an_interrupted_simulation_goes_on(tmp_path, monkeypatch):
    write_kitti_tree(tmp_path / "whole", [1, 2, 3], "train")

    def stop(seed, **options):
        if seed == 3:
            raise KeyboardInterrupt
        return record(seed, **options)

    monkeypatch.setattr("millisecond.data.simulator.trees.record", stop)
    with pytest.raises(KeyboardInterrupt):
        write_kitti_tree(tmp_path / "parts", [1, 2, 3], "train")
    assert not (tmp_path / "parts" / "ImageSets").exists()
    monkeypatch.undo()
    write_kitti_tree(tmp_path / "parts", [1, 2, 3], "train")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_two_at_once_do_not_share_a_folder(tmp_path):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from data.files import locked\n"
            "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=f"process {holder.pid} is writing there"):
            write_kitti_tree(tmp_path, [1], "train")
        holder.kill()
    write_kitti_tree(tmp_path, [1], "train")  # a dead process holds nothing
    assert not (tmp_path / ".lock").exists()
