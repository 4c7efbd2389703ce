"""Plain files: each form of labels and of clouds gives the same frame; mistakes give one line."""

import json
import re

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections, wrap_angle
from millisecond.data.datasets import open_dataset
from millisecond.data.folder.labels import labelcloud_json
from millisecond.data.formats.clouds import read_scan
from millisecond.data.formats.pcd import write_pcd
from millisecond.data.formats.points import PointColumns
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import boxes_to_labels, write_labels
from millisecond.data.schema import ConfigError
from tests.helpers.plain_files import make_boxes, make_points, write, write_plain_files

COLUMNS = ("x", "y", "z", "intensity", "ring", "time")
SIX = PointColumns(COLUMNS, ("x", "y", "z", "intensity", "time"))


@pytest.fixture
def root(tmp_path):
    return write_plain_files(tmp_path / "mine", frames=4)


def as_labelcloud(path, boxes, kinds):
    found = NamedDetections(boxes, np.ones(len(boxes)), tuple(kinds))
    write(path.with_suffix(".json"), json.dumps(labelcloud_json(path, found)))


def as_sustech(path, boxes, kinds):
    entries = [
        {
            "obj_id": str(number),
            "obj_type": kind,
            "psr": {
                "position": dict(zip("xyz", box[:3], strict=True)),
                "scale": dict(zip("xyz", box[3:6], strict=True)),
                "rotation": {"x": 0, "y": 0, "z": box[6]},
            },
        }
        for number, (box, kind) in enumerate(zip(boxes.tolist(), kinds, strict=True))
    ]
    write(path.with_suffix(".json"), json.dumps(entries))


def as_kitti(path, boxes, kinds):
    """In the camera's frame, with the calibration of a camera that looks along x."""
    folder = path.parents[1] / "label_2"
    folder.mkdir(exist_ok=True)
    write_labels(folder / path.name, boxes_to_labels(boxes, kinds))
    matrices = "P2: 700 0 600 0 0 700 180 0 0 0 1 0\nR0_rect: 1 0 0 0 1 0 0 0 1\n"
    matrices += "Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0\n"
    write(path.parents[1] / "calib.txt", matrices)


@pytest.mark.parametrize("form", [as_labelcloud, as_sustech, as_kitti])
def test_every_form_of_labels_gives_the_same_boxes(root, form):
    expected = list(open_dataset(root, "all"))
    for frame in expected:
        path = root / "labels" / f"{frame.frame_id}.txt"
        path.unlink()
        frame.boxes[:1, 6] = 0.01  # less than a degree
        form(path, frame.boxes.astype(float), frame.names)
    if form is as_kitti:
        (root / "labels").rmdir()
    for frame, same in zip(expected, open_dataset(root, "all"), strict=True):
        assert same.names == frame.names
        np.testing.assert_allclose(same.boxes[:, :6], frame.boxes[:, :6], atol=2e-4)
        turned = wrap_angle(same.boxes[:, 6].astype(float) - frame.boxes[:, 6])
        np.testing.assert_allclose(turned, 0, atol=2e-4)


def test_every_form_of_clouds_gives_the_same_points(tmp_path):
    """Six columns in, five features out: the intensity from 0 to 1, then the time."""
    rng = np.random.default_rng(0)
    table = make_points(rng, make_boxes(rng)[0])
    table = np.column_stack([table, np.arange(len(table)) % 32, rng.random(len(table))])
    table = table.astype("<f4")
    expected = table[:, [0, 1, 2, 3, 5]]
    table.tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", table)
    np.savez(tmp_path / "c.npz", points=table)
    np.savez(tmp_path / "d.npz", **dict(zip(SIX.columns, table.T, strict=True)))
    ascii_points = "\n".join(" ".join(map(repr, row)) for row in table.tolist())
    head = f"FIELDS {' '.join(COLUMNS)}\nSIZE 4 4 4 4 4 4\nTYPE F F F F F F\nWIDTH {len(table)}\n"
    for name, data in (("e", "ascii"), ("f", "binary")):
        body = ascii_points.encode() if data == "ascii" else table.tobytes()
        (tmp_path / f"{name}.pcd").write_bytes(f"{head}DATA {data}\n".encode() + body)
    properties = "".join(f"property float {name}\n" for name in SIX.columns)
    ply = f"ply\nformat ascii 1.0\nelement vertex {len(table)}\n{properties}end_header\n"
    write(tmp_path / "g.ply", ply + ascii_points)
    for path in sorted(tmp_path.iterdir()):
        np.testing.assert_allclose(read_scan(path, SIX), expected, rtol=1e-6, err_msg=path.name)
    scaled = PointColumns(SIX.columns, ("x", "y", "z"), 255)
    np.testing.assert_array_equal(read_scan(tmp_path / "a.bin", scaled)[:, 3], 0)
    write_pcd(tmp_path / "h.pcd", table[:, :4])
    np.testing.assert_array_equal(read_scan(tmp_path / "h.pcd"), table[:, :4])
    upper = (tmp_path / "f.pcd").rename(tmp_path / "F.PCD")
    np.testing.assert_allclose(read_scan(upper, SIX), expected, rtol=1e-6)


def test_las(tmp_path):
    laspy = pytest.importorskip("laspy")
    points = np.random.default_rng(0).uniform(-20, 20, (100, 3)).round(3)
    cloud = laspy.create(point_format=3)
    cloud.header.scales = (0.001, 0.001, 0.001)
    cloud.x, cloud.y, cloud.z = points.T
    cloud.intensity = np.arange(100)
    cloud.write(tmp_path / "a.las")
    found = read_scan(tmp_path / "a.las", PointColumns(intensity_scale=65535))
    np.testing.assert_allclose(found[:, :3], points, atol=1e-3)
    np.testing.assert_allclose(found[:, 3], np.arange(100) / 65535, rtol=1e-6)


def test_a_drive_of_kitti_without_its_calibration(kitti, tmp_path):
    """Turned into plain files, every frame is as through KITTI's loader, to the last bit."""
    drive = KittiDataset(kitti / "sequences/2011_09_26_drive_0005_sync", "all")
    chosen = [drive[place] for place in (0, 60, 153)]
    (tmp_path / "points").mkdir()
    for frame in chosen:
        frame.points.tofile(tmp_path / f"points/{frame.frame_id}.bin")
        lines = [
            " ".join(f"{value:.9g}" for value in box) + f" {name}\n"
            for box, name in zip(frame.boxes, frame.names, strict=True)
        ]
        write(tmp_path / f"labels/{frame.frame_id}.txt", "".join(lines))
    for frame, same in zip(chosen, open_dataset(tmp_path, "all"), strict=True):
        assert len(frame.boxes) and same.names == frame.names and same.calibration is None
        np.testing.assert_array_equal(same.points, frame.points)
        np.testing.assert_array_equal(same.boxes, frame.boxes)


def test_frames_without_labels_are_left_out_and_told(root):
    (root / "labels/000001.txt").unlink()
    write(root / "labels/000002.txt", "")
    dataset = open_dataset(root, "all")
    assert dataset.frame_ids == ("000000", "000002", "000003") and len(dataset[1].boxes) == 0
    with pytest.warns(UserWarning, match="000001 is without a label file and left out"):
        dataset.warn_of_changes()
    assert len(open_dataset(root, "all", labels=False)) == 4


BOX = "1 2 0 4 2 1.5 0.3"
MISTAKES = {  # a file, its new content, the message
    "fields": ("labels/000001.txt", f"{BOX} Car\n1 2 3 Car\n", "000001.txt, line 2: 4 fields"),
    "NaN": ("labels/000001.txt", "1 nan 0 4 2 1.5 0.3 Car\n", "line 1: y is nan"),
    "word": ("labels/000001.txt", "1 two 0 4 2 1.5 0.3 Car\n", "line 1: 'two' is not a number"),
    "grouped": ("labels/000001.txt", "1_0.5 2 0 4 2 1 0 Car\n", "line 1: '1_0.5' is not a number"),
    "digits of Arabic": ("labels/000001.txt", "1 2 0 4 2 1 \u0663 Car\n", "is not a number"),
    "negative size": ("labels/000001.txt", "1 2 0 4 -2 1.5 0 Car\n", "line 1: width is -2"),
    "far": ("labels/000001.txt", "1e9 2 0 4 2 1.5 0 Car\n", "line 1: x is 1e"),
    "class of another case": (
        "labels/000001.txt",
        f"{BOX} Car\n{BOX} forklift\n",
        "line 2: class 'forklift'; is 'Forklift' meant?",
    ),
    "no JSON": ("labels/000009.json", "{", "000009.json: no cloud of this name"),
    "label of no cloud": ("labels/000009.txt", "", "000009.txt: no cloud of this name"),
    "two clouds": ("points/000001.pcd", "", "frame 000001 has 000001.bin too"),
    "two labels": ("labels/000001.json", "{}", "frame 000001 has"),
    "frame twice": (
        "ImageSets/all.txt",
        "000001\n000001\n",
        ":2: 000001 is named in line 1",
    ),
    "no such frame": ("ImageSets/all.txt", "000001\n000008\n", "000008 is not there"),
    "mixed columns": ("points/000001.bin", "x" * 36, "text file"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_give_one_line(root, name):
    path, text, expected = MISTAKES[name]
    write(root / path, text)
    split = str(root / path) if path.startswith("ImageSets") else "all"
    with pytest.raises((ValueError, OSError)) as error:
        list(open_dataset(root, split, ["Forklift", "Person"]))
    assert expected in str(error.value) and "\n" not in str(error.value)
    assert path.rpartition("/")[2].partition(".")[0] in str(error.value)


def test_two_spellings_of_a_class(root):
    write(root / "labels/000002.txt", f"{BOX} Crate\n")
    write(root / "labels/000003.txt", f"{BOX} Person\n{BOX} crate\n")
    with pytest.raises(ValueError, match=r"000003\.txt, line 2: class 'crate'; is 'Crate' meant"):
        list(open_dataset(root, "all"))


JSON_MISTAKES = {
    "grouped": (
        '[{"obj_id": "7", "psr": {"rotation": {"x": 0, "y": 0, "z": "1_0"}}}]',
        "object 1: '1_0' is not a number",
    ),
    "nothing": ("{}", "neither labels of labelCloud nor"),
    "damaged": ("{", "not JSON"),
    "no size": ('{"objects": [{"name": "a", "centroid": {"x": 0, "y": 0, "z": 0}}]}', "object 1"),
    "twice": ('[{"obj_id": "7"}, {"obj_id": "7"}]', "objects 1, 2: obj_id '7' in all"),
    "relative": (
        '{"objects": [{"name": "a", "centroid": {"x": 0, "y": 0, "z": 0}, "dimensions": '
        '{"length": 1, "width": 1, "height": 1}, "rotations": {"x": 0, "y": 0, "z": -1}}]}',
        "centroid_abs",
    ),
    "tilted": (
        '[{"obj_id": "1", "obj_type": "a", "psr": {"position": {"x": 0, "y": 0, "z": 0}, "scale": '
        '{"x": 1, "y": 1, "z": 1}, "rotation": {"x": 0.5, "y": 0, "z": 0}}}]',
        "turned about x or y",
    ),
    "two words": (
        '[{"obj_id": "1", "obj_type": "a b", "psr": {"position": {"x": 0, "y": 0, "z": 0}, "scale":'
        ' {"x": 1, "y": 1, "z": 1}, "rotation": {"x": 0, "y": 0, "z": 0}}}]',
        "the class 'a b' is not one word",
    ),
    "corners": ('{"objects": [{"name": "a", "vertices": []}]}', "no centroid; let labelCloud"),
}


@pytest.mark.parametrize("name", JSON_MISTAKES)
def test_mistakes_in_json_give_one_line(root, name):
    text, expected = JSON_MISTAKES[name]
    (root / "labels/000001.txt").unlink()
    write(root / "labels/000001.json", text)
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        open_dataset(root, "all").objects(1)
    assert "000001.json" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("write_cloud", "expected"),
    [
        (lambda p: np.zeros((9, 5), "<f4").tofile(p), "180 bytes are not a multiple of 24"),
        (lambda p: np.savez(p.with_suffix(".npz"), a=np.zeros((9, 5))), r"shape [9, 5]"),
        (lambda p: np.savez(p.with_suffix(".npz"), x=np.zeros(9), y=np.zeros(8)), "equally long"),
        (lambda p: p.with_suffix(".npz").write_bytes(b"PK"), "not a .npz file"),
        (
            lambda p: p.with_suffix(".pcd").write_bytes(
                b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 9\nDATA binary\n" + bytes(60)
            ),
            "60 bytes are not 9 points of 12; it is cut off",
        ),
        (
            lambda p: p.with_suffix(".pcd").write_bytes(
                b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 4\nDATA binary\n" + bytes(60)
            ),
            "60 bytes are more than 4 points of 12",
        ),
        (
            lambda p: p.with_suffix(".pcd").write_bytes(
                b"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 1\nDATA ascii\n1 2 3\n"
            ),
            "no field time, which points.features",
        ),
    ],
)
def test_clouds_that_are_not_as_said(tmp_path, write_cloud, expected):
    write_cloud(tmp_path / "a.bin")
    (path,) = tmp_path.iterdir()
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        read_scan(path, SIX)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "features", "scale", "key"),
    [
        (("x", "y", "intensity"), ("x", "y"), 1, "columns"),
        (("x", "y", "z"), ("x", "y", "z", "ring"), 1, "features"),
        (("x", "y", "z", "ring", "intensity"), ("x", "y", "z", "ring", "intensity"), 1, "features"),
        (("x", "y", "z", "x"), ("x", "y", "z"), 1, "columns"),
        (("x", "y", "z"), ("x", "y", "z"), 0, "intensity_scale"),
    ],
)
def test_columns_that_cannot_be(columns, features, scale, key):
    with pytest.raises(ConfigError, match=f"^{key}"):
        PointColumns(columns, features, scale)


def test_velocities_are_of_the_recordings(root):
    lines = []
    for number, name in enumerate(open_dataset(root, "all").frame_ids[:3]):
        count = len(open_dataset(root, "all")[number].boxes)
        told = {
            "name": name,
            "time": number,
            "pose": None,
            "tracks": [str(i) for i in range(count)],
        }
        told["velocities"] = [[i, number] if i else None for i in range(count)]
        lines.append(json.dumps(told | {"velocities": None} if number == 2 else told))
    with pytest.raises(ValueError, match=r"sequences: no recordings, .* model.velocity=false"):
        open_dataset(root, "all", velocities=True)
    write(root / "sequences/one.jsonl", "\n".join(lines))
    frames = list(open_dataset(root, "all", velocities=True))
    for number, frame in enumerate(frames[:2]):
        assert np.isnan(frame.velocities[0]).all()
        wanted = [[i, number] for i in range(1, len(frame.boxes))]
        np.testing.assert_array_equal(frame.velocities[1:], np.reshape(wanted, (-1, 2)))
    assert all(np.isnan(frame.velocities).all() for frame in frames[2:])
    assert open_dataset(root, "all")[0].velocities is None
    label = next(root.glob(f"labels/{frames[0].frame_id}.*"))
    label.write_text(label.read_text() + "1 2 0 4 2 1.5 0 Car\n")
    with pytest.raises(
        ValueError, match=r"one.jsonl: \d+ velocities in scan \S+, whose label file"
    ):
        open_dataset(root, "all", velocities=True)[0]
    (root / "training/velodyne").mkdir(parents=True)
    with pytest.raises(ValueError, match="KITTI's labels have no velocities"):
        open_dataset(root, "all", velocities=True)
