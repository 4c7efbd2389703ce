"""Calibration against hand-computed projections, round trips and the published reduced clouds."""

import tarfile

import numpy as np
import pytest

from millisecond.data.calibration import Calibration, observation_angle
from millisecond.data.formats.clouds import read_points
from millisecond.data.kitti.labels import read_labels
from tests.helpers.kitti_miniature import CALIBRATION, CAR, FOCAL, IMAGE, PEDESTRIAN


@pytest.fixture
def simple(tmp_path) -> Calibration:
    path = tmp_path / "calib.txt"
    path.write_text(CALIBRATION)
    return Calibration.from_file(path)


def test_projection_by_hand(simple):
    # 10 m ahead, 1 m left, 0.5 m up: left of and above the principal point.
    pixels, depth = simple.lidar_to_image(np.array([[10.0, 1.0, 0.5, 0.3]]))
    np.testing.assert_allclose(pixels, [[600 - FOCAL / 10, 180 - FOCAL / 20]])
    np.testing.assert_allclose(depth, [10.0])


@pytest.mark.parametrize("change", [(": ", ":"), (": ", ":\t"), (" ", "\t"), (": ", " ")])
def test_separators_of_keys_and_numbers(simple, tmp_path, change):
    path = tmp_path / "other.txt"
    path.write_text(CALIBRATION.replace(*change))
    read = Calibration.from_file(path)
    np.testing.assert_array_equal(read.p2, simple.p2)
    np.testing.assert_array_equal(read.velo_to_cam, simple.velo_to_cam)


def test_image_borders_are_half_open(simple):
    at = np.array([[0, 0], [1223.99, 369.99], [1224, 100], [100, 370], [-0.01, 100]])
    rect = np.concatenate([(at - [600, 180]) / FOCAL, np.ones((5, 1))], axis=1)
    points = simple.rect_to_lidar(rect)
    assert simple.in_image(points, IMAGE).tolist() == [True, True, False, False, False]
    assert not simple.in_image(-points, IMAGE).any()


def test_boxes_by_hand(simple):
    camera = simple.boxes_to_camera(np.array([CAR, PEDESTRIAN]))
    expected = [[0, 1.6, 20, 4, 1.5, 1.8, -np.pi / 2], [-2, 1.6, 10, 0.8, 1.7, 0.6, 0]]
    np.testing.assert_allclose(camera, expected, atol=1e-12)
    np.testing.assert_allclose(simple.boxes_from_camera(camera), [CAR, PEDESTRIAN], atol=1e-6)


def test_image_box_by_hand(simple):
    # The nearest face of the car is 18 m away, 1.8 m wide, from 1.6 m to 0.1 m below the axis.
    left, top, right, bottom = simple.image_boxes(np.array([CAR]), IMAGE)[0]
    assert (left, right) == pytest.approx((600 - FOCAL * 0.9 / 18, 600 + FOCAL * 0.9 / 18))
    assert (top, bottom) == pytest.approx((180 + FOCAL * 0.1 / 22, 180 + FOCAL * 1.6 / 18))


def test_image_box_of_what_is_partly_behind_the_camera(simple):
    beside = np.array([[0.0, 3.0, 0.0, 6.0, 2.0, 2.0, 0.0]])
    left, top, right, bottom = simple.image_boxes(beside, IMAGE)[0]
    assert (left, top, bottom) == (0, 0, IMAGE[0] - 1)
    # Its right-most edge in view is the far near-side one: 3 m ahead, 2 m left.
    assert right == pytest.approx(600 - FOCAL * 2 / 3)
    behind = np.array([[-20.0, 0.0, 0.0, 4.0, 2.0, 2.0, 0.0]])
    both = simple.image_boxes(np.concatenate([behind, beside]), IMAGE).tolist()
    assert both == [[0, 0, 0, 0], [left, top, right, bottom]]


def test_round_trips_of_random_boxes(kitti):
    calibration = Calibration.from_file(kitti / "training/calib/000001.txt")
    rng = np.random.default_rng(3)
    low, high = (-50, -40, -3, 0.3, 0.3, 0.3, -3.14), (70, 40, 3, 12, 3, 4, 3.14)
    boxes = rng.uniform(low, high, (500, 7))
    back = calibration.boxes_from_camera(calibration.boxes_to_camera(boxes))
    np.testing.assert_allclose(back, boxes, atol=1e-5)
    points = rng.uniform(-80, 80, (500, 3))
    there = calibration.rect_to_lidar(calibration.lidar_to_rect(points))
    np.testing.assert_allclose(there, points, atol=1e-9)


@pytest.mark.parametrize(
    ("frame", "count"), [("000003", 18911), ("000008", 17238), ("000001", 18630)]
)
def test_published_reduced_clouds(kitti, frame, count):
    calibration = Calibration.from_file(kitti / f"training/calib/{frame}.txt")
    points = read_points(kitti / f"training/velodyne/{frame}.bin")
    assert calibration.in_image(points, (375, 1242)).sum() == count


def test_reduced_sequence_is_all_in_view(kitti):
    folder = kitti / "sequences/2011_09_26_drive_0005_sync"
    calibration = Calibration.from_file(folder / "calib.txt")
    for number in (0, 77, 153):
        points = read_points(folder / f"velodyne_reduced/{number:06d}.bin")
        assert calibration.in_image(points, (375, 1242)).all()


def test_projected_labels_agree_with_the_labelled_image_boxes_and_angles(kitti):
    overlaps, turns = [], []
    for number in range(11):
        labels = read_labels(kitti / f"training/label_2/{number:06d}.txt")
        calibration = Calibration.from_file(kitti / f"training/calib/{number:06d}.txt")
        labels = labels.select((labels.types != "DontCare") & (labels.truncated == 0))
        boxes = calibration.boxes_from_camera(labels.boxes)
        ours = calibration.image_boxes(boxes, (375, 1242))
        overlaps += [image_iou(a, b) for a, b in zip(ours, labels.bbox, strict=True)]
        turn = observation_angle(calibration.boxes_to_camera(boxes)) - labels.alpha
        turns += np.abs(np.angle(np.exp(1j * turn))).tolist()
    assert len(overlaps) > 15
    assert np.median(overlaps) > 0.9 and min(overlaps) > 0.6
    assert max(turns) < 0.06  # what KITTI's own alphas are off by


def image_iou(a, b):
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    both = np.prod(np.maximum(high - low, 0))
    return both / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - both)


def test_tracking_names_of_the_matrices(tmp_path, simple):
    path = tmp_path / "0005.txt"
    text = CALIBRATION.replace("R0_rect:", "R_rect").replace("Tr_velo_to_cam:", "Tr_velo_cam")
    path.write_text(text)
    np.testing.assert_array_equal(Calibration.from_file(path).velo_to_cam, simple.velo_to_cam)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Tr_velo_to_cam", "Tr_other", "Tr_velo_to_cam is missing"),
        ("P2: 700 0", "P2: 700", "P2 has 11 numbers, it needs 12"),
        ("P2: 700", "P2: x", "P2: 'x' is not a number"),
        ("P2: 700", "P2: 7_00", "P2: '7_00' is not a number"),
        ("P2: 700", "P2: \uff17", "is not a number"),
        ("P2: 700", "P2: nan", "it needs 12 finite ones"),
        ("P2: 700 0 600 0 0 700 180 0 0 0 1 0", "P2:" + " 0" * 12, "P2 does not project"),
        ("P2: 700", "P2: -700", "focal lengths above 0 (has -700 700)"),
        ("P2: 700 0 600 0 0 700 180 0 0 0 1 0", "P2:" + " 1" * 12, "(has 1 1 1 1)"),
        ("R0_rect: 1 0 0 0 1 0 0 0 1", "R0_rect:" + " 0" * 9, "R0_rect is not a rotation"),
        ("R0_rect: 1 0 0", "R0_rect: 2 0 0", "(lengths 2 1 1, determinant 2)"),
        ("R0_rect: 1 0 0", "R0_rect: -1 0 0", "determinant -1)"),
        ("Tr_velo_to_cam: 0 -1", "Tr_velo_to_cam: 0.5 -1", "Tr_velo_to_cam is not a rotation"),
        ("1 0 0 0\nTr_imu", "1 0 0 27000\nTr_imu", "Tr_velo_to_cam moves by 2.7e+04"),
        ("P0:", "P2:", "line 2: P2 stands there a second time"),
    ],
)
def test_bad_files(tmp_path, old, new, message):
    path = tmp_path / "000004.txt"
    path.write_text(CALIBRATION.replace(old, new))
    with pytest.raises(ValueError, match=r"000004\.txt") as caught:
        Calibration.from_file(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_plane_moves_with_its_points(kitti):
    calibration = Calibration.from_file(kitti / "training/calib/000001.txt")
    plane = np.array([0.01, -0.99, 0.02, 1.7])
    rng = np.random.default_rng(0)
    x, z = rng.uniform(-20, 40, (2, 50))
    on_it = np.stack([x, -(plane[0] * x + plane[2] * z + plane[3]) / plane[1], z], axis=1)
    moved = calibration.plane_from_camera(plane)
    lidar = calibration.rect_to_lidar(on_it)
    np.testing.assert_allclose(lidar @ moved[:3] + moved[3], 0, atol=1e-9)


def test_what_is_no_text_is_told_by_its_file(tmp_path):
    path = tmp_path / "000004.txt"
    path.write_bytes(CALIBRATION.encode().replace(b"P2", b"P2\xff"))
    with pytest.raises(ValueError, match=r"000004\.txt: not a text file .* at byte"):
        Calibration.from_file(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, simple):
    path = tmp_path / "000004.txt"
    path.write_text(CALIBRATION.partition("\n")[2], encoding="utf-8-sig")  # P2 comes first
    np.testing.assert_array_equal(Calibration.from_file(path).p2, simple.p2)


def test_the_calibrations_of_kitti_pass(kitti, tmp_path):
    with tarfile.open(kitti / "calib_all.tar.xz") as archive:
        for member in list(archive)[:400]:
            if member.isfile():
                (tmp_path / "calib.txt").write_bytes(archive.extractfile(member).read())
                Calibration.from_file(tmp_path / "calib.txt")
