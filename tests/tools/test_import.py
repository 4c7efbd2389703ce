"""Published data sets become plain files: each scan as it was, or one line that says why not."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.boxes import points_in_boxes, wrap_angle
from millisecond.data.datasets import open_dataset
from millisecond.data.formats.clouds import read_fields
from millisecond.data.formats.points import KITTI, PointColumns
from millisecond.detector.config import load_config
from millisecond.tools.detect import main as detect
from millisecond.tools.evaluate import main as evaluate
from millisecond.tools.prepare import main as prepare
from millisecond.tools.train import main as train
from tests.conftest import SHARED
from tests.helpers.published_trees import (
    LASER,
    STAMP,
    TREES,
    Placed,
    about,
    conjugate,
    heading,
    moving,
    times,
    turned,
    write_argoverse,
    write_feather,
    write_json,
    write_nuscenes,
)

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")
tool = import_module("millisecond.tools.import")  # a word of Python
NUSCENES = Path("v1.0-trainval")
LIDAR_TURN = times(heading(-1.5), about((1, 0, 0), 0.01))
DRIVE = Path("train/adcf7d18-0510")


def run(name: str, root: Path, output: Path, *more: str) -> int:
    return tool.main([name, str(root), str(output), *more])


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def told(output: Path) -> dict[str, dict]:
    """The lines of sequences/*.jsonl by the names of the scans."""
    lines = (line for path in output.glob("sequences/*") for line in path.read_text().splitlines())
    return {row["name"]: row for row in map(json.loads, lines)}


@pytest.mark.parametrize("name", TREES)
def test_every_scan_is_there_with_points_boxes_classes_times_and_tracks(name, tmp_path):
    truth = TREES[name](tmp_path / "in")
    assert run(name, tmp_path / "in", tmp_path / "out") == 0
    dataset, rows = open_dataset(tmp_path / "out", "all", labels=False), told(tmp_path / "out")
    assert set(dataset.frame_ids) == set(truth) == set(rows)
    for index, scan in enumerate(dataset.frame_ids):
        frame, wanted = dataset[index], truth[scan]
        np.testing.assert_allclose(frame.points[:, :3], wanted.points, atol=2e-5)
        np.testing.assert_allclose(frame.points[:, 3], 0.2, atol=1e-6)
        if wanted.boxes is None:
            assert not (tmp_path / f"out/labels/{scan}.txt").exists()
            assert rows[scan]["tracks"] is None
            continue
        difference = frame.boxes - wanted.boxes
        difference[:, 6] = wrap_angle(difference[:, 6])
        assert np.abs(difference).max(initial=0) < 1e-3  # upright in a frame tilted by 0.02
        assert list(frame.names) == wanted.classes and rows[scan]["tracks"] == wanted.tracks
    times = [rows[scan]["time"] for scan in sorted(rows)]
    assert len(times) > 1 and np.isfinite(times).all()


def test_velocities_are_over_ground_along_the_axes_of_the_scan(tmp_path):
    """In the frame of each scan of nuScenes' tree, from the labels as they are in the world; the
    scene has two keyframes."""
    TREES["nuscenes"](tmp_path / "in")
    table = json.loads((tmp_path / "in" / NUSCENES / "sample_annotation.json").read_text())
    assert run("nuscenes", tmp_path / "in", tmp_path / "out") == 0
    kinds = ["vehicle.car", "human.pedestrian.adult", "vehicle.bicycle", "vehicle.trailer"]
    places = {row["token"]: np.array(row["translation"]) for row in table}
    rows = [row for name, row in sorted(told(tmp_path / "out").items()) if "0061" in name]
    assert len(rows) == 2
    for step, row in zip((2, 5), rows, strict=True):
        for kind, velocity in zip(kinds, row["velocities"], strict=True):
            first, last = (places[f"b-scene-0061-{number}-{kind}"] for number in (0, 1))
            lidar = moving(step).of(Placed(np.array([0.9, 0, 1.8]), LIDAR_TURN))
            x, y, _ = turned(conjugate(lidar.turn), (last - first) / 0.15)
            np.testing.assert_allclose(velocity, (y, -x), atol=0.01)


@pytest.mark.parametrize("name", TREES)
def test_velocities_need_tracks_and_scans_that_are_near(name, tmp_path):
    TREES[name](tmp_path / "in")
    assert run(name, tmp_path / "in", tmp_path / "out") == 0
    for row in told(tmp_path / "out").values():
        if row["tracks"] is None:
            assert "velocities" not in row
            continue
        known = [velocity is not None for velocity in row["velocities"]]
        assert known == [track is not None for track in row["tracks"]]


@pytest.mark.parametrize("name", [name for name in TREES if name != "waymo"])
def test_sweeps_of_things_that_stand_still_fall_together(name, tmp_path):
    truth = TREES[name](tmp_path / "in")
    assert run(name, tmp_path / "in", tmp_path / "out", "--sweeps", "3") == 0
    steps = {"nuscenes": 0.05, "argoverse2": 0.100196, "kitti-tracking": 0.1, "once": 0.5}
    scan = max(truth) if name != "kitti-tracking" else "training_0003_000002"
    fields = read_fields(tmp_path / "out/points" / f"{scan}.pcd", KITTI)
    sweeps = 2 if name == "argoverse2" else 3  # the tree has no more
    points = np.column_stack([fields[axis] for axis in "xyz"]).reshape(sweeps, -1, 3)
    # KITTI's poses come from degrees on a sphere
    np.testing.assert_allclose(points, points[:1].repeat(sweeps, axis=0), atol=1e-3)
    np.testing.assert_allclose(points[0], truth[scan].points, atol=2e-5)
    ages = np.arange(sweeps) * steps[name]
    np.testing.assert_allclose(fields["time"].reshape(sweeps, -1)[:, 0], ages, atol=1e-5)
    with_time = PointColumns((*KITTI, "ring", "time"), (*KITTI, "time"))
    dataset = open_dataset(tmp_path / "out", "all", labels=False, points=with_time)
    assert dataset[0].points.shape[1] == 5


def test_the_splits_are_the_data_sets_own(tmp_path):
    for name, write in TREES.items():
        write(tmp_path / name)
        assert run(name, tmp_path / name, tmp_path / f"{name}-out") == 0
    scenes = {
        (name, path.stem): path.read_text().split()[0].rsplit("_", 1)[0]
        for name in TREES
        for path in (tmp_path / f"{name}-out/ImageSets").glob("*.txt")
    }
    assert scenes == {
        ("nuscenes", "train"): "scene-0061",
        ("nuscenes", "val"): "scene-0103",
        ("argoverse2", "train"): "adcf7d18-0510",
        ("argoverse2", "test"): "0c6e62d7-bdfa",
        ("kitti-tracking", "train"): "training_0003",
        ("kitti-tracking", "test"): "testing_0003",
        ("once", "train"): "000076",
        ("waymo", "train"): "1005_t",
        ("waymo", "test"): "1006_t",
    }


def test_nobody_has_labelled_the_test_set_of_nuscenes(tmp_path):
    write_nuscenes(tmp_path / "in", "v1.0-test")
    write_json(tmp_path / "in/v1.0-test/sample_annotation.json", [])
    assert run("nuscenes", tmp_path / "in", tmp_path / "out") == 0
    assert not (tmp_path / "out/labels").exists()
    assert len(open_dataset(tmp_path / "out", "test", labels=False)) == 4


def test_classes_are_named_as_asked_for(tmp_path, capsys):
    TREES["nuscenes"](tmp_path / "in")
    walker = "b-scene-0061-0-human.pedestrian.adult"  # the data set has riders of scooters, too
    row("sample_annotation", walker, attribute_tokens=["a"])(tmp_path / "in")
    assert run("nuscenes", tmp_path / "in", tmp_path / "no", "--classes", "vehicle.truck=car") == 2
    assert "vehicle.car=Car, vehicle.truck=car differ by case" in capsys.readouterr().err
    more = ("--classes", "vehicle.trailer=Trailer", "vehicle.cra=Car")
    assert run("nuscenes", tmp_path / "in", tmp_path / "out", *more) == 0
    label = (tmp_path / "out/labels/scene-0061_1532402927100000.txt").read_text()
    assert [line.split()[7] for line in label.splitlines()] == [
        "Car",
        "Pedestrian",
        "Cyclist",
        "Trailer",
    ]
    assert "no object is called vehicle.cra" in capsys.readouterr().out


def test_an_interrupted_import_goes_on(tmp_path, monkeypatch, capsys):
    TREES["once"](tmp_path / "in")
    assert run("once", tmp_path / "in", tmp_path / "whole") == 0
    write, done = tool.write_pcd, []

    def stopping(path, *others):
        write(path, *others)
        done.append(path)
        if len(done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(tool, "write_pcd", stopping)
    assert run("once", tmp_path / "in", tmp_path / "out") == 130
    assert "goes on from here" in capsys.readouterr().err
    found = files(tmp_path / "out")
    assert len([name for name in found if name.startswith("points/")]) == 1
    label = tmp_path / "out/labels/000076_1616101200400.txt"
    label.write_text("1 2 3 4 5 6 0 Car\n")  # corrected by hand
    monkeypatch.setattr(tool, "write_pcd", write)
    assert run("once", tmp_path / "in", tmp_path / "out") == 0
    wanted = files(tmp_path / "whole") | {f"labels/{label.name}": label.read_bytes()}
    assert files(tmp_path / "out") == wanted and label.read_text().startswith("1 2 3")


def change(path: Path, edit) -> None:
    """Changes the content of a JSON file."""
    content = json.loads(path.read_text())
    edit(content)
    write_json(path, content)


def row(table: str, token: str, **new):
    """A mistake in a record of nuScenes' table."""

    def spoil(root: Path) -> None:
        def edit(rows):
            next(row for row in rows if row["token"] == token).update(new)

        change(root / NUSCENES / f"{table}.json", edit)

    return spoil


def cut(name: str, size: int):
    return lambda root: (root / name).write_bytes((root / name).read_bytes()[:size])


def gone(name: str):
    return lambda root: (root / name).unlink()


def column(name: str, key: str, place: int, value):
    """A mistake in a Feather file."""

    def spoil(root: Path) -> None:
        from pyarrow import feather

        table = feather.read_table(root / name).to_pydict()
        table[key][place] = value
        write_feather(root / name, **table)

    return spoil


def renamed(name: str, old: str, new: str):
    def spoil(root: Path) -> None:
        from pyarrow import feather

        table = feather.read_table(root / name)
        write_feather(root / name, **{k.replace(old, new): table[k] for k in table.column_names})

    return spoil


def no_text(root: Path) -> None:
    """Bytes that are not UTF-8, as a damaged file may have them."""
    import pyarrow
    from pyarrow import feather

    table = feather.read_table(root / LABELS)
    damaged = pyarrow.array([b"\xff"] * len(table), pyarrow.binary()).buffers()
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(table), damaged)
    place = table.column_names.index("track_uuid")
    feather.write_feather(table.set_column(place, "track_uuid", column), root / LABELS)


def replaced(name: str, old: str, new: str):
    def spoil(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new, 1))

    return spoil


def frame(number: int, edit):
    return lambda root: change(root / ONCE, lambda content: edit(content["frames"][number]))


def other_drive(root: Path) -> None:
    """Poses where boxes should be."""
    boxes = root / "training/lidar_box" / WAYMO
    boxes.write_bytes((root / "training/vehicle_pose" / WAYMO).read_bytes())


def cells(component: str, number: int, end: str, edit):
    """A mistake in a row of a Parquet file of Waymo's: edit changes the value of the column."""

    def spoil(root: Path) -> None:
        from pyarrow import Table, parquet

        path = root / "training" / component / WAYMO
        table = parquet.read_table(path)
        rows = table.to_pylist()
        key = next(name for name in rows[number] if name.endswith(end))
        rows[number][key] = edit(rows[number][key])
        parquet.write_table(Table.from_pylist(rows, table.schema), path)

    return spoil


NAN = float("nan")
LABEL = "b-scene-0061-0-vehicle.car"
KEY = "samples/LIDAR_TOP/scene-0061-2.pcd.bin"
WAYMO = "1005_t.parquet"
ONCE = "data/000076/000076.json"
CLOUD = str(DRIVE / "sensors/lidar/315966265259836000.feather")
LABELS = str(DRIVE / "annotations.feather")
BAD = [  # data set, mistake, what the line says, scans that are imported
    ("nuscenes", gone("v1.0-trainval/instance.json"), "instance.json: no such file", 0),
    ("nuscenes", cut("v1.0-trainval/sample.json", 90), "sample.json: not JSON, or cut off", 0),
    ("nuscenes", row("scene", "scene-0061", name=3), "scene.json: a record without name", 0),
    ("nuscenes", row("sample", "scene-0061-0", scene_token="x"), "scene.json: no record", 3),
    ("nuscenes", row("sample_annotation", LABEL, instance_token="x"), "json: no record", 3),
    ("nuscenes", row("sample_annotation", LABEL, size=[1, 2, 0]), f"{LABEL}: height is 0", 3),
    ("nuscenes", row("category", "c-vehicle.car", name="ufo"), "class 'ufo' is unknown", 0),
    ("nuscenes", row("ego_pose", "e-scene-0061-2", translation=[NAN, 0, 0]), "not finite", 3),
    ("nuscenes", row("ego_pose", "e-scene-0061-2", rotation=[0, 0, 0, 0]), "of length 1", 3),
    ("nuscenes", row("sample_data", "scene-0061-2", sample_token="x"), "no keyframe of", 3),
    ("nuscenes", gone(KEY), f"{KEY}: no such file", 3),
    ("nuscenes", cut(KEY, 333), f"{KEY}: 333 bytes", 3),
    ("argoverse2", gone(str(DRIVE / "city_SE3_egovehicle.feather")), "no such file", 2),
    ("argoverse2", renamed(LABELS, "category", "label"), "category", 2),
    ("argoverse2", no_text, f"{LABELS}: cut off, or not as published", 2),
    ("argoverse2", cut(CLOUD, 500), f"{CLOUD}: cut off, or not as published", 3),
    ("argoverse2", gone(CLOUD), f"{CLOUD}: no such file", 3),
    ("argoverse2", column(LABELS, "tx_m", 0, NAN), "track_uuid t-REGULAR_VEHICLE: the place", 3),
    ("argoverse2", column(LABELS, "category", 0, "UFO"), "class 'UFO' is unknown", 3),
    (
        "argoverse2",
        column(str(DRIVE / "city_SE3_egovehicle.feather"), "timestamp_ns", 0, 5),
        "no pose at timestamp_ns 315966265259836000",
        3,
    ),
    ("kitti-tracking", gone("training/calib/0003.txt"), "0003.txt: no such file", 3),
    ("kitti-tracking", gone("training/velodyne/0003/000001.bin"), "000001.bin: no such file", 5),
    ("kitti-tracking", replaced("training/label_02/0003.txt", " Car ", " Ufo "), "'Ufo'", 5),
    ("kitti-tracking", replaced("training/label_02/0003.txt", " 50 50 ", " 50 "), "16 fields", 5),
    ("kitti-tracking", replaced("training/oxts/0003.txt", "49.0", "nan"), "line 1: does not", 3),
    ("waymo", gone(f"training/vehicle_pose/{WAYMO}"), f"vehicle_pose/{WAYMO}: no such file", 2),
    ("waymo", gone(f"training/lidar_pose/{WAYMO}"), f"lidar_pose/{WAYMO}: no such file", 2),
    ("waymo", cut(f"training/lidar/{WAYMO}", 999), f"lidar/{WAYMO}: cut off, or not as", 2),
    ("waymo", gone(f"training/lidar_box/{WAYMO}"), f"lidar_box/{WAYMO}: no such file", 2),
    ("waymo", other_drive, "lidar_box", 2),
    ("waymo", cells("vehicle_pose", 0, "transform", lambda x: [NAN, *x[1:]]), "16 finite", 3),
    ("waymo", cells("vehicle_pose", 0, "transform", lambda x: [2 * x[0], *x[1:]]), "a rotation", 3),
    (
        "waymo",
        cells("vehicle_pose", 0, STAMP, lambda x: x + 1),
        "vehicle_pose/1005_t.parquet: no",
        3,
    ),
    ("waymo", cells("lidar", 1, "return1.values", lambda x: x[1:]), "are not an image", 3),
    ("waymo", cells("lidar", 1, "return1.shape", lambda x: [x[0], 4, x[1]]), "not an image", 3),
    ("waymo", cells("lidar_pose", 0, "shape", lambda x: [x[1], x[0], 6]), "another size", 3),
    ("waymo", cells("lidar_pose", 0, LASER, lambda x: x + 4), "no calibration, or no lidar_p", 3),
    ("once", lambda root: change(root / ONCE, lambda one: one.update(frames=[1])), "no list f", 0),
    ("once", frame(1, lambda frame: frame.update(frame_id="x")), "is not a time in millis", 2),
    ("once", frame(1, lambda frame: frame["pose"].pop()), "frames 1, pose: ", 2),
    ("once", cut(ONCE, 300), "000076.json: not JSON, or cut off", 0),
    ("once", frame(0, lambda frame: frame["pose"].__setitem__(4, NAN)), "frames 0, pose: ", 2),
    ("once", frame(2, lambda frame: frame["annos"]["names"].pop()), "frames 2, annos: names", 2),
    ("once", frame(1, lambda frame: frame.update(frame_id="1616101200901")), "901.bin: no", 2),
]


@pytest.mark.parametrize(("name", "spoil", "says", "imported"), BAD)
def test_a_mistake_is_one_line_and_the_rest_is_imported(
    name, spoil, says, imported, tmp_path, capsys
):
    TREES[name](tmp_path / "in")
    spoil(tmp_path / "in")
    assert run(name, tmp_path / "in", tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(says in line for line in lines), lines
    assert all(line.startswith(("left out: ", "error: ")) for line in lines)
    found = files(tmp_path / "out")
    assert len([path for path in found if path.startswith("points/")]) == imported
    assert len(told(tmp_path / "out")) == imported
    assert not [path for path in found if path.endswith(".tmp")]
    if imported:
        assert len(open_dataset(tmp_path / "out", "all", labels=False)) == imported


def test_times_that_go_back_are_told(tmp_path, capsys):
    TREES["once"](tmp_path / "in")
    clouds = tmp_path / "in/data/000076/lidar_roof"
    (clouds / "1616101200900.bin").rename(clouds / "1616101200300.bin")
    frame(1, lambda frame: frame.update(frame_id="1616101200300"))(tmp_path / "in")
    assert run("once", tmp_path / "in", tmp_path / "out") == 2
    assert "1616101200.300000 s is not after 1616101200.400000 s" in capsys.readouterr().err
    assert len(told(tmp_path / "out")) == 2


def test_sweeps_whose_times_do_not_go_back_are_told(tmp_path, capsys):
    TREES["nuscenes"](tmp_path / "in")
    row("sample_data", "scene-0061-1", prev="scene-0061-2")(tmp_path / "in")  # a ring
    assert run("nuscenes", tmp_path / "in", tmp_path / "out", "--sweeps", "9") == 2
    assert "which is not before" in capsys.readouterr().err
    assert len(told(tmp_path / "out")) == 2


def test_what_was_missing_is_imported_by_the_same_command(tmp_path):
    TREES["kitti-tracking"](tmp_path / "in")
    cloud = tmp_path / "in/training/velodyne/0003/000001.bin"
    content = cloud.read_bytes()
    cloud.unlink()
    assert run("kitti-tracking", tmp_path / "in", tmp_path / "out") == 2
    cloud.write_bytes(content)
    assert run("kitti-tracking", tmp_path / "in", tmp_path / "out") == 0
    assert len(open_dataset(tmp_path / "out", "train")) == 3


def test_scans_that_were_moved_to_another_list_stay_there(tmp_path):
    TREES["kitti-tracking"](tmp_path / "in")
    assert run("kitti-tracking", tmp_path / "in", tmp_path / "out") == 0
    train, val = (tmp_path / f"out/ImageSets/{split}.txt" for split in ("train", "val"))
    first, *rest = train.read_text().splitlines(keepends=True)
    val.write_text(first)
    train.write_text(rest[0])  # the last is in no list any more
    assert run("kitti-tracking", tmp_path / "in", tmp_path / "out") == 0
    assert (train.read_text(), val.read_text()) == ("".join(rest), first)


def test_poses_must_be_there_for_sweeps(tmp_path, capsys):
    TREES["kitti-tracking"](tmp_path / "in")
    for part in ("training", "testing"):
        (tmp_path / f"in/{part}/oxts/0003.txt").unlink()
    assert run("kitti-tracking", tmp_path / "in", tmp_path / "out") == 0
    assert {row["pose"] for row in told(tmp_path / "out").values()} == {None}
    assert run("kitti-tracking", tmp_path / "in", tmp_path / "more", "--sweeps", "2") == 2
    assert "has no pose, by which sweeps are joined" in capsys.readouterr().err


def test_other_files_are_not_touched(tmp_path, capsys):
    TREES["once"](tmp_path / "in")
    before = files(tmp_path / "in")
    assert run("once", tmp_path / "in", tmp_path / "in") == 2
    assert "holds other files" in capsys.readouterr().err and files(tmp_path / "in") == before
    assert run("once", tmp_path / "in", tmp_path / "out") == 0
    before = files(tmp_path / "out")
    assert run("once", tmp_path / "in", tmp_path / "out", "--sweeps", "2") == 2
    assert "give the same arguments" in capsys.readouterr().err
    assert files(tmp_path / "out") == before


@pytest.mark.parametrize("name", TREES)
def test_a_folder_of_something_else_is_one_line(name, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    assert run(name, tmp_path / "in", tmp_path / "out") == 2
    assert str(tmp_path / "in") in capsys.readouterr().err


def test_an_import_that_found_nothing_leaves_the_folder_to_another(tmp_path):
    TREES["once"](tmp_path / "in")
    assert run("nuscenes", tmp_path / "in", tmp_path / "out") == 2
    assert run("once", tmp_path / "in", tmp_path / "out") == 0
    assert told(tmp_path / "out")


def test_names_do_not_lead_out_of_the_folder(tmp_path, capsys):
    TREES["nuscenes"](tmp_path / "in")
    row("scene", "scene-0061", name="../../x")(tmp_path / "in")
    assert run("nuscenes", tmp_path / "in", tmp_path / "out") == 2
    assert "'../../x': a name has letters" in capsys.readouterr().err
    assert len(told(tmp_path / "out")) == 2 and sorted(tmp_path.iterdir())[0].name == "in"


def shared_frames(pattern: str) -> list[Path]:
    found = sorted((SHARED / "sensors").glob(pattern))
    if not found:
        pytest.skip("the real frames are not here")
    return found


def counts_of(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    return points_in_boxes(points, boxes).sum(axis=1)


def test_real_frames_of_argoverse_hold_the_same_points_in_boxes(tmp_path):
    for text in shared_frames("other/argoverse2/*.txt"):
        root, stamp = tmp_path / text.stem / "in", int(text.stem)
        write_argoverse(root, [stamp])
        points = np.load(text.with_suffix(".npy"))
        columns = dict(zip("xyz", points[:, :3].T.astype(np.float16), strict=True))
        columns |= {"intensity": (points[:, 3] * 255).astype(np.uint8)}
        columns |= {"laser_number": np.zeros(len(points), np.uint8)}
        write_feather(root / DRIVE / f"sensors/lidar/{stamp}.feather", **columns)
        lines = [line.split() for line in text.read_text().splitlines()]
        boxes = np.array([line[:7] for line in lines], float)
        turns = np.array([heading(yaw) for yaw in boxes[:, 6]]).T
        keys = ("tx_m", "ty_m", "tz_m", "length_m", "width_m", "height_m", "qw", "qx", "qy", "qz")
        table = dict(zip(keys, [*boxes[:, :6].T, *turns], strict=True))
        table |= {"category": [line[7] for line in lines], "timestamp_ns": [stamp] * len(lines)}
        table |= {"track_uuid": [str(number) for number in range(len(lines))]}
        write_feather(root / DRIVE / "annotations.feather", **table)
        assert run("argoverse2", root, tmp_path / text.stem / "out") == 0
        (frame,) = open_dataset(tmp_path / text.stem / "out", "train")
        near = np.abs(boxes[:, :2]).max(axis=1) < 60  # float16 is coarse farther away
        before, after = counts_of(points, boxes)[near], counts_of(frame.points, frame.boxes)[near]
        assert before.sum() > 1000
        assert np.abs(after - before).sum() <= 0.02 * before.sum()


def test_a_real_sweep_of_nuscenes_holds_the_same_points_in_boxes(tmp_path):
    (text,) = shared_frames("nuscenes/*.txt")
    root, tables = tmp_path / "in", tmp_path / "in" / NUSCENES
    TREES["nuscenes"](root)
    points = np.fromfile(text.with_suffix(".bin"), "<f4").reshape(-1, 5)
    points.tofile(root / KEY)
    lines = [line.split() for line in text.read_text().splitlines()]
    boxes = np.array([line[:7] for line in lines], float)
    mount = json.loads((tables / "calibrated_sensor.json").read_text())[0]
    lidar = moving(2).of(Placed(np.array(mount["translation"]), np.array(mount["rotation"])))
    rows = []
    for number, box in enumerate(boxes):
        place = lidar.of(Placed(box[:3], heading(box[6])))
        rows.append({"token": str(number), "sample_token": "scene-0061-0"})
        rows[-1] |= {"instance_token": "i-vehicle.car", "attribute_tokens": []}
        rows[-1] |= {"translation": place.shift.tolist(), "rotation": place.turn.tolist()}
        rows[-1] |= {"size": box[[4, 3, 5]].tolist()}
    write_json(tables / "sample_annotation.json", rows)
    assert run("nuscenes", root, tmp_path / "out") == 0
    frame = open_dataset(tmp_path / "out", "train")[0]
    counts = counts_of(frame.points, frame.boxes)
    assert counts.sum() == 984  # as in the LiDAR's own frame; the data set counted 999
    assert np.abs(counts - [int(line[8]) for line in lines]).sum() < 40
    own = frame.points[np.hypot(*frame.points[:, :2].T) < 2.5]  # the car's own roof lies along x
    assert np.ptp(own[:, 0]) > 2 * np.ptp(own[:, 1])


@pytest.mark.parametrize("name", ["nuscenes", "argoverse2"])
@pytest.mark.usefixtures("one_thread", "no_pictures")
def test_the_configuration_of_a_benchmark_trains_on_its_import(name, tmp_path):
    """On a small grid, with few channels."""
    config = str(Path(__file__).parents[2] / f"configs/{name}.yaml")
    TREES[name](tmp_path / "in")
    assert run(name, tmp_path / "in", tmp_path / "out", "--sweeps", "2", "--classes", config) == 0
    labelled = {
        line.split()[7]
        for path in tmp_path.glob("out/labels/*.txt")
        for line in path.read_text().splitlines()
    }
    learnt = load_config(config)
    assert labelled <= {name for kind in learnt.classes for name in (kind.name, *kind.also)}
    small = ["grid.range=[-24,-24,-5,24,24,3]", "grid.voxel_size=[0.3,0.3,0.2]"]
    small += ["model.encoder={channels: [4, 4, 4, 4], out_channels: 8}", "augment.min_points=0"]
    small += ["model.bev={layers: [1], channels: [8], strides: [1], upsample_channels: [8]}"]
    small += ["train.batch_size=1", "train.epochs=2", "train.precision=fp32", "train.workers=0"]
    root, output = str(tmp_path / "out"), tmp_path / "run"
    assert prepare(["--config", config, "--root", root, "--splits", "train"]) == 0
    arguments = [config, "--root", root, "--output", str(output), "--device", "cpu"]
    assert train([*arguments, "--val-split", "train", "--set", *small]) == 0
    logged = [json.loads(line) for line in (output / "log.jsonl").open()]
    # without the velocities: these objects have some of 500 m/s, and no step learns them so soon
    parts = "classification", "box", "direction"
    (before,) = (row for row in logged if "train/total" in row)
    (after,) = (row for row in logged if "validation/total" in row)
    assert sum(after[f"validation/{part}"] for part in parts) < sum(
        before[f"train/{part}"] for part in parts
    )
    moving = [value for key, value in after.items() if key.startswith("validation/velocity of")]
    assert len(moving) == len(learnt.classes) and max(moving) > 0
    recordings = [str(path) for path in tmp_path.glob("out/sequences/*.jsonl")]
    weights = ["--weights", str(output / "weights.safetensors"), "--device", "cpu"]
    found = tmp_path / "found"
    assert detect([*recordings, "--track", *weights, "--output", str(found)]) == 0
    asked = ["--benchmark", name, "--root", str(tmp_path / "in"), "--detections", str(found)]
    assert (
        evaluate(
            [
                *asked,
                "--split",
                "test" if name == "argoverse2" else "train",
                "--output",
                str(tmp_path / "submission"),
            ]
        )
        == 0
    )
