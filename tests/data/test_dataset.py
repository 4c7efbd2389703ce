"""KittiDataset on the miniature tree and the real frames; a mistake in a tree is one line."""

import io
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

from millisecond.data.formats.clouds import read_points
from millisecond.data.frame import Batch, Frame, collate
from millisecond.data.kitti.dataset import KittiDataset
from tests.helpers.kitti_miniature import CAR, IDS, IMAGE, PEDESTRIAN, PLANE, write_miniature


@pytest.fixture
def root(tmp_path):
    return write_miniature(tmp_path / "kitti")


def test_frame_of_the_miniature(root):
    dataset = KittiDataset(root, "train")
    other = KittiDataset(root, "train", points=("x", "z", "y", "intensity"))
    assert len({one.view(dataset.frame_ids[0]) for one in (dataset, other)}) == 2  # of a pack
    assert len(dataset) == 3 and dataset.frame_ids == IDS[:3]
    frame = dataset[0]
    assert frame.frame_id == "000002" and frame.image_shape == IMAGE
    assert frame.image == root / "training/image_2/000002.png"
    assert frame.names == ("Car", "Pedestrian") and frame.difficulty.tolist() == [0, 1]
    assert frame.boxes.dtype == np.float32
    np.testing.assert_allclose(frame.boxes, [CAR, PEDESTRIAN], atol=1e-3)
    np.testing.assert_allclose(frame.plane, [0, 0, 1, 1.6], atol=1e-6)
    assert dataset[1].plane is None
    assert dataset.labels(0).types.tolist() == ["Car", "Pedestrian", "DontCare"]


def test_crop_keeps_what_a_pinhole_sees_in_file_order(root):
    frame = KittiDataset(root, "train")[0]
    every = read_points(root / "training/velodyne/000002.bin").astype(np.float64)
    seen = []
    for x, y, z, intensity in every:
        if x > 0 and 0 <= 600 - 700 * y / x < IMAGE[1] and 0 <= 180 - 700 * z / x < IMAGE[0]:
            seen.append((x, y, z, intensity))
    np.testing.assert_array_equal(frame.points, np.array(seen, np.float32))


def test_all_and_own_lists(root, tmp_path):
    assert KittiDataset(root, "all").frame_ids == IDS
    own = tmp_path / "mine.txt"
    own.write_text("000007\n\n000002\n")
    assert KittiDataset(root, str(own)).frame_ids == ("000007", "000002")


def test_links_in_a_circle_are_no_list_of_the_data_set(root, tmp_path):
    (root / "ImageSets/test.txt").unlink(missing_ok=True)
    (root / "ImageSets/test.txt").symlink_to(root / "ImageSets/test.txt")
    own = tmp_path / "mine.txt"
    own.write_text("000007")
    assert KittiDataset(root, str(own)).frame_ids == ("000007",)


def test_test_split_has_no_labels(root):
    (root / "training").rename(root / "testing")
    (root / "ImageSets/test.txt").write_text("000005")
    for name in ("label_2", "planes"):
        (root / "testing" / name).rename(root / name)
    dataset = KittiDataset(root, "test")
    assert len(dataset[0].boxes) == 0 and dataset[0].names == () and len(dataset[0].points)
    with pytest.raises(ValueError, match="split 'test' has no labels"):
        dataset.labels(0)


def test_sequence_folder(kitti):
    dataset = KittiDataset(kitti / "sequences/2011_09_26_drive_0005_sync", "all")
    assert len(dataset) == 154
    frame = dataset[50]
    assert frame.names == ("Van", "Cyclist", "Van") and frame.image is None
    path = kitti / "sequences/2011_09_26_drive_0005_sync/velodyne_reduced/000050.bin"
    np.testing.assert_array_equal(frame.points, read_points(path))


def test_real_boxes_hold_the_points_of_their_objects(kitti):
    # What the labels call fully visible and near must have points, all of it above the road.
    for frame in KittiDataset(kitti, "all"):
        near = (frame.difficulty == 0) & (frame.boxes[:, 0] < 30)
        for box in frame.boxes[near]:
            at = np.linalg.norm(frame.points[:, :2] - box[:2], axis=1) < box[3:5].max() / 2
            level = np.abs(frame.points[:, 2] - box[2]) < box[5] / 2
            assert (at & level).sum() > 50, frame.frame_id


def break_cloud(root):
    path = root / "training/velodyne/000005.bin"
    path.write_bytes(path.read_bytes()[:-3])


def edit(folder, old, new):
    def mistake(root):
        path = root / f"training/{folder}/000005.txt"
        path.write_text(path.read_text().replace(old, new))

    return mistake


def remove(name):
    return lambda root: (root / name).unlink()


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (break_cloud, ValueError, r"000005\.bin: \d+ bytes are not a multiple of 16"),
        (remove("training/velodyne/000005.bin"), FileNotFoundError, r"velodyne: 000005\.bin is"),
        (remove("training/calib/000005.txt"), FileNotFoundError, r"calib: 000005\.txt is not"),
        (remove("training/label_2/000005.txt"), FileNotFoundError, r"label_2: 000005\.txt is not"),
        (remove("training/image_2/000005.png"), FileNotFoundError, r"image_2: 000005\.png is not"),
        (remove("ImageSets/train.txt"), FileNotFoundError, r"train\.txt: no such split"),
        (edit("label_2", "Car 0", "car 0"), ValueError, r"object 1 is a 'car'; is 'Car' meant\?"),
        (edit("label_2", "1.50 1.80", "0.00 1.80"), ValueError, r"a Car has height 0, width 1\.8"),
        (edit("label_2", " 20.00 -1.57", ""), ValueError, r"000005\.txt, line 1: 13 fields"),
        (edit("calib", "P2:", "P4:"), ValueError, r"000005\.txt: P2 is missing"),
    ],
)
def test_mistakes_are_one_line(root, mistake, error, message):
    mistake(root)
    with pytest.raises(error, match=message) as caught:
        list(KittiDataset(root, "train"))
    assert "\n" not in str(caught.value)


def test_split_of_frames_that_are_not_there(root):
    (root / "ImageSets/train.txt").write_text("\n".join(f"{i:06d}" for i in range(10)))
    with pytest.raises(FileNotFoundError) as caught:
        KittiDataset(root, "train")
    assert "000000.bin, 000001.bin, 000003.bin ... (7 in all) are not there, of 10" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "names no frames"), ("000002\n000002", "000002 is named in line 1")],
)
def test_bad_splits(root, content, message):
    (root / "ImageSets/train.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        KittiDataset(root, "train")


def test_no_data_at_all(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder; give the root"):
        KittiDataset(tmp_path / "nowhere", "train")
    with pytest.raises(FileNotFoundError, match="training/velodyne: no such folder"):
        KittiDataset(tmp_path, "train")


def test_own_classes_are_allowed_when_named(root):
    edit("label_2", "Car 0", "Forklift 0")(root)
    assert KittiDataset(root, "train", classes=["Forklift"])[1].names[0] == "Forklift"


def test_images_are_optional(root):
    for frame_id in IDS:
        (root / f"training/image_2/{frame_id}.png").unlink()
    (root / "training/image_2").rmdir()
    frame = KittiDataset(root, "train")[0]
    assert frame.image is None and frame.image_shape == (375, 1242)


def test_picture_that_is_none(root):
    (root / "training/image_2/000002.png").write_bytes(b"JFIF")
    with pytest.raises(ValueError, match="not a PNG image"):
        KittiDataset(root, "train")[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# Plane\nWidth 4\nHeight 1\n", "line 4 must be the four numbers"),
        (PLANE.replace("-1.0", "0.1"), "stands up"),
    ],
)
def test_bad_planes(root, content, message):
    content = content.replace("0.0 0.1 0.0", "1.0 0.1 0.0")
    (root / "training/planes/000002.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        KittiDataset(root, "train")[0]


def test_plane_with_the_normal_down_is_turned(root):
    text = PLANE.replace("-1.0", "2.0").replace("1.6", "-3.2")
    (root / "training/planes/000002.txt").write_text(text)
    np.testing.assert_allclose(KittiDataset(root, "train")[0].plane, [0, 0, 1, 1.6], atol=1e-6)


def test_empty_cloud_is_a_frame_without_points(root):
    (root / "training/velodyne/000002.bin").write_bytes(b"")
    assert KittiDataset(root, "train")[0].points.shape == (0, 4)


def test_dataset_and_frames_travel_to_workers(root):
    dataset = pickle.loads(pickle.dumps(KittiDataset(root, "train")))
    frame = pickle.loads(pickle.dumps(dataset[0]))
    assert frame.names == ("Car", "Pedestrian")


def test_collate(root):
    dataset = KittiDataset(root, "train")
    frames = [dataset[0], Frame("empty", np.zeros((0, 4), np.float32)), dataset[2]]
    batch = collate(frames, ["Pedestrian", "Cyclist"])
    assert batch.frame_ids == ("000002", "empty", "000007")
    assert batch.offsets.dtype == torch.int32 and batch.labels.dtype == torch.int64
    assert batch.labels.tolist() == [[1], [0], [1]]
    np.testing.assert_array_equal(batch.boxes[0, 0].numpy(), frames[0].boxes[1])
    assert not batch.boxes[1].any()
    for number, frame in enumerate(frames):
        start, end = batch.offsets[number : number + 2].tolist()
        np.testing.assert_array_equal(batch.points[start:end].numpy(), frame.points)
    moved = batch.to("cpu", non_blocking=True)
    assert moved.frame_ids == batch.frame_ids and torch.equal(moved.points, batch.points)


def test_collate_pads_to_the_longest(root):
    frame = KittiDataset(root, "train")[0]
    batch = collate([Frame("none", frame.points), frame], ["Car", "Pedestrian"])
    assert batch.labels.tolist() == [[0, 0], [1, 2]] and batch.boxes.shape == (2, 2, 7)
    with pytest.raises(ValueError, match="at least one frame"):
        collate([], ["Car"])


def batches():
    """With no points, an odd number of bytes, channels of one's own, and a part of a batch."""
    draw = torch.Generator().manual_seed(4)
    for points, frames, channels, width in ((0, 1, 4, 7), (13, 3, 5, 9), (501, 2, 6, 7)):
        ends = torch.linspace(0, points, frames + 1).int()
        boxes = torch.randn(frames, 3, width, generator=draw)
        labels = torch.randint(0, 4, (frames, 3), generator=draw)
        cloud = torch.randn(points, channels, generator=draw)
        whole = Batch(cloud, ends, boxes, labels, tuple("abc"[:frames]))
        yield whole
        yield whole.part(frames // 2, frames)


@pytest.mark.parametrize("batch", list(batches()))
def test_a_batch_goes_to_another_process_as_one_tensor(batch):
    batch.boxes[0, 0, 0] = math.nan
    sent = []

    class Sender(pickle.Pickler):
        def reducer_override(self, value):
            if isinstance(value, torch.Tensor):
                sent.append(value)
            return NotImplemented

    memory = io.BytesIO()
    Sender(memory).dump(batch)
    found = pickle.loads(memory.getvalue())
    assert len(sent) == 1 and isinstance(found, Batch) and found.frame_ids == batch.frame_ids
    for a, b in zip(found[:4], batch[:4], strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_frame_that_does_not_fit_together():
    points = np.zeros((3, 4), np.float32)
    with pytest.raises(ValueError, match="1 names"):
        Frame("a", points, np.zeros((2, 7), np.float32), ("Car",), np.zeros(2, np.int8))
    with pytest.raises(ValueError, match=r"not \[P, 4 or more\]"):
        Frame("a", points[:, :3])


def test_reading_gives_no_warnings(root):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(KittiDataset(root, "all"))
