"""Folders as sources: plain clouds, KITTI's kinds of drives, faults on the way, loops, streets."""

import re
import shutil
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.calibration import Calibration
from millisecond.data.formats.points import PointColumns
from millisecond.data.live.scan import LiveScan, Trouble, Troubles
from millisecond.data.live.source import open_source
from millisecond.data.simulator import simulate, simulated_calibration
from millisecond.data.simulator.scenes import make_street

PNG = b"\x89PNG\r\n\x1a\n"
RAW_CAMERAS = """calib_time: 09-Jan-2012 13:57:47
corner_dist: 9.950000e-02
R_rect_00: 9.999239e-01 9.837760e-03 -7.445048e-03 -9.869795e-03 9.999421e-01 -4.278459e-03 7.402527e-03 4.351614e-03 9.999631e-01
P_rect_00: 7.215377e+02 0 6.095593e+02 0 0 7.215377e+02 1.728540e+02 0 0 0 1 0
R_rect_02: 9.998817e-01 1.511453e-02 -2.841595e-03 -1.511724e-02 9.998853e-01 -9.338510e-04 2.827154e-03 9.766976e-04 9.999955e-01
P_rect_02: 7.215377e+02 0 6.095593e+02 4.485728e+01 0 7.215377e+02 1.728540e+02 2.163791e-01 0 0 1 2.745884e-03
"""  # noqa: E501
RAW_LIDAR = """calib_time: 15-Mar-2012 11:37:16
R: 7.533745e-03 -9.999714e-01 -6.166020e-04 1.480249e-02 7.280733e-04 -9.998902e-01 9.998621e-01 7.523790e-03 1.480755e-02
T: -4.069766e-03 -7.631618e-02 -2.717806e-01
delta_f: 0.000000e+00 0.000000e+00
"""  # noqa: E501
POINTS = simulate(1).points


def write_scans(folder: Path, names: str, pictures: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names.split()):
        (POINTS + np.float32([number, 0, 0, 0])).tofile(folder / f"{name}.bin")
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            (pictures / f"{name}.png").write_bytes(PNG)


def split(name: Path | str, **options) -> tuple[list[LiveScan], list[str]]:
    items = list(open_source(str(name), **options))
    scans = [item for item in items if isinstance(item, LiveScan)]
    return scans, [item.text for item in items if isinstance(item, Trouble)]


def write_calibration(path: Path) -> Calibration:
    calibration = simulated_calibration()
    lines = {
        "P2": calibration.p2,
        "R0_rect": calibration.r0_rect,
        "Tr_velo_to_cam": calibration.velo_to_cam,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{k}: {' '.join(map(str, v.flat))}\n" for k, v in lines.items()))
    return calibration


def assert_same_calibration(found: Calibration | None, wanted: Calibration) -> None:
    assert found is not None
    for part in ("p2", "r0_rect", "velo_to_cam"):
        np.testing.assert_array_equal(getattr(found, part), getattr(wanted, part))


def test_files_come_by_their_numbers(tmp_path):
    write_scans(tmp_path, "9 10 100 8")
    np.save(tmp_path / "11.npy", POINTS)
    (tmp_path / "notes.txt").write_text("no cloud")
    scans, troubles = split(tmp_path)
    assert [scan.name for scan in scans] == ["8", "9", "10", "11", "100"] and not troubles
    assert [scan.time for scan in scans] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert all(scan.image is None and scan.calibration is None for scan in scans)
    np.testing.assert_array_equal(scans[1].points, POINTS)
    assert scans[1].points.dtype == np.float32


def test_a_single_file(tmp_path):
    write_scans(tmp_path, "a b")
    assert [scan.name for scan in split(tmp_path / "b.bin")[0]] == ["b"]


def test_what_cannot_be_read_is_reported_and_the_rest_goes_on(tmp_path):
    write_scans(tmp_path, "1 2 3 4")
    (tmp_path / "2.bin").write_bytes(b"\0" * 100)
    (tmp_path / "3.bin").rename(tmp_path / "3.pcd")
    scans, troubles = split(tmp_path)
    assert [scan.name for scan in scans] == ["1", "4"]
    assert [text.partition(":")[0] for text in troubles] == [
        str(tmp_path / "2.bin"),
        str(tmp_path / "3.pcd"),
    ]


def test_intensities_of_another_scale_are_told_of_once(tmp_path):
    for name in "abc":
        np.save(tmp_path / f"{name}.npy", POINTS * np.float32([1, 1, 1, 200]))
    scans, troubles = split(tmp_path)
    for scan in scans:
        np.testing.assert_allclose(scan.points[:, 3], POINTS[:, 3] * (200 / 255), rtol=1e-6)
    assert len(troubles) == 1 and "divided by 255" in troubles[0]


def test_a_folder_that_vanishes(tmp_path):
    write_scans(tmp_path / "scans", "1 2 3 4 5")
    source = iter(open_source(str(tmp_path / "scans")))
    assert next(source).name == "1"
    shutil.rmtree(tmp_path / "scans")
    assert [item.text for item in source] == [f"{tmp_path / 'scans'}: the folder is gone"]


def test_a_scan_of_two_formats_is_not_a_missing_one(tmp_path):
    clouds = tmp_path / "2011_09_26" / "drive" / "velodyne_points" / "data"
    write_scans(clouds, "0000000000 0000000001")
    np.save(clouds / "0000000001.npy", POINTS)
    assert not any("not there" in text for text in split(clouds)[1])


def test_a_raw_drive(tmp_path):
    drive = tmp_path / "2011_09_26" / "2011_09_26_drive_0001_sync"
    clouds, pictures = drive / "velodyne_points" / "data", drive / "image_02" / "data"
    write_scans(clouds, "0000000000 0000000001 0000000003", pictures)
    (pictures / "0000000001.png").unlink()
    seconds = ("02:59.964389445", "03:00.064389445", "03:00.164389445", "03:00.267389445")
    times = "".join(f"2011-09-26 13:{time}\n" for time in seconds)
    (drive / "velodyne_points" / "timestamps.txt").write_text(times)
    (drive.parent / "calib_cam_to_cam.txt").write_text(RAW_CAMERAS)
    (drive.parent / "calib_velo_to_cam.txt").write_text(RAW_LIDAR)
    for name in (drive, clouds):
        scans, troubles = split(name)
        steps = np.array([scan.time for scan in scans]) - scans[0].time
        np.testing.assert_allclose(steps, [0, 0.1, 0.303], atol=2e-6)
        assert scans[0].image == pictures / "0000000000.png" and scans[1].image is None
        assert troubles == [
            f"{clouds}: scans of this recording that are not there: 1",
            f"{pictures}: no image of scan 0000000001",
        ]


def test_the_raw_calibration_is_that_of_the_same_drive_elsewhere(tmp_path, kitti):
    """The drive's calib.txt comes from another conversion of the same recording."""
    (tmp_path / "calib_cam_to_cam.txt").write_text(RAW_CAMERAS)
    (tmp_path / "calib_velo_to_cam.txt").write_text(RAW_LIDAR)
    drive = kitti / "sequences" / "2011_09_26_drive_0005_sync"
    found = Calibration.from_raw(tmp_path)
    assert_same_calibration(found, Calibration.from_file(drive / "calib.txt"))
    scan = next(iter(open_source(str(drive))))
    assert_same_calibration(scan.calibration, found)
    assert found.in_image(scan.points, (375, 1242)).mean() > 0.99


def test_a_tracking_sequence(tmp_path):
    root = tmp_path / "training"
    for name in ("0000", "0001"):
        write_scans(root / "velodyne" / name, "000000 000001", root / "image_02" / name)
    calibration = write_calibration(root / "calib" / "0001.txt")
    scans, troubles = split(root / "velodyne" / "0001")
    assert [scan.name for scan in scans] == ["000000", "000001"] and not troubles
    assert [scan.time for scan in scans] == [0.0, 0.1]
    assert scans[1].image == root / "image_02" / "0001" / "000001.png"
    assert_same_calibration(scans[0].calibration, calibration)
    with pytest.raises(ValueError, match=r"2 sequences; name one, e\.g\. .*velodyne/0000$"):
        open_source(str(tmp_path))


def test_scans_that_a_sequence_lacks_leave_a_gap_in_time(tmp_path):
    """As 000177 to 000180 of KITTI's sequence 0001."""
    clouds = tmp_path / "velodyne" / "0001"
    write_scans(clouds, "000175 000176 000181")
    scans, [calibration, missing] = split(clouds)
    np.testing.assert_allclose([scan.time for scan in scans], [17.5, 17.6, 18.1])
    assert missing == f"{clouds}: scans of this recording that are not there: 4"
    assert "0001.txt: no such file; played without it" in calibration
    assert len(split(clouds / "000176.bin")[1]) == 1


def test_frames_of_the_object_benchmark(tmp_path):
    root = tmp_path / "training"
    write_scans(root / "velodyne", "000000 000001 000002", root / "image_2")
    calibration = write_calibration(root / "calib" / "000000.txt")
    (root / "calib" / "000001.txt").write_text("P2: 1 2 3\n")
    (root / "image_2" / "000002.png").rename(root / "image_2" / "000002.jpg")
    write_calibration(root / "calib" / "000002.txt")
    for name in (tmp_path, root, root / "velodyne"):
        scans, troubles = split(name)
        assert_same_calibration(scans[0].calibration, calibration)
        assert scans[1].calibration is None and scans[2].image.suffix == ".jpg"
        assert len(troubles) == 1 and "000001.txt: P2 has 3 numbers" in troubles[0]


def test_a_drive_of_reduced_clouds_whose_calibration_is_broken(tmp_path):
    write_scans(tmp_path / "velodyne_reduced", "000000")
    (tmp_path / "calib.txt").write_text("nothing")
    scans, troubles = split(tmp_path)
    assert scans[0].calibration is None and len(troubles) == 1
    assert troubles[0].startswith(f"{tmp_path / 'calib.txt'}: P2 is missing")


def test_a_loop_goes_on_in_time_and_reports_a_fault_once(tmp_path):
    write_scans(tmp_path, "1 2 3 4")
    (tmp_path / "2.bin").write_bytes(b"\0" * 100)
    items = list(islice(open_source(str(tmp_path), loop=True), 10))
    scans = [item for item in items if isinstance(item, LiveScan)]
    assert [scan.name for scan in scans] == ["1", "3", "4"] * 3
    times = [scan.time for scan in scans]
    np.testing.assert_allclose(np.diff(times), [0.2, 0.1, 0.1] * 2 + [0.2, 0.1])


def test_a_loop_without_a_scan_ends(tmp_path):
    (tmp_path / "2.bin").write_bytes(b"\0" * 100)
    assert len(list(open_source(str(tmp_path), loop=True))) == 1


def test_columns_that_only_files_have(tmp_path):
    columns = ("x", "y", "z", "ring")
    points = PointColumns(columns, columns)
    with pytest.raises(ValueError, match=r"street:7: gives the network no ring, .*give scans in"):
        open_source("street:7", points=points)
    POINTS.tofile(tmp_path / "0.bin")
    (scan,), troubles = split(tmp_path, points=points)
    np.testing.assert_array_equal(scan.points[:, 4], POINTS[:, 3])
    assert not troubles


def test_streets_one_after_the_other(monkeypatch):
    monkeypatch.setattr("millisecond.data.live.source.TURNS", 3)  # for speed
    scans = list(islice(open_source("street:7"), 5))
    assert [scan.name for scan in scans[1:]] == ["000007_01", "000007_02", "000008_00", "000008_01"]
    np.testing.assert_allclose([scan.time for scan in scans], [0, 0.1, 0.2, 0.3, 0.4])
    np.testing.assert_array_equal(scans[4].points, simulate(8, 0.1).points)
    assert scans[0].calibration is simulated_calibration()


def test_a_street_begins_with_something_in_view(monkeypatch):
    """Street 28 is empty, by its own labels."""
    monkeypatch.setattr("millisecond.data.live.source.TURNS", 1)
    names = [scan.name for scan in islice(open_source("street:27"), 2)]
    assert names == ["000027_00", "000029_00"]
    assert len(simulate(28).boxes) == 0


@pytest.mark.parametrize("seed", [36, 24, 48])  # straight; in bends to the left and to the right
def test_the_pose_of_a_street_is_that_of_its_standing_things(seed):
    """Whatever stands keeps its place in the world; the sensor moves at 8 m/s."""
    street = make_street(np.random.default_rng(seed))
    standing = [row for row, placed in enumerate(street.placed) if placed.speed == 0]
    assert len(standing) > 20
    before, after, pose = street.poses(0.0)[standing], street.poses(2.0)[standing], street.pose(2.0)
    world = after[:, :2] @ pose[:2, :2].T + pose[:2, 3]
    np.testing.assert_allclose(world, before[:, :2], atol=1e-6)
    assert np.linalg.norm(pose[:3, 3]) == pytest.approx(16, rel=0.01)
    np.testing.assert_allclose(street.pose(0.0), np.eye(4), atol=1e-12)


def test_streets_follow_each_other_in_one_world(monkeypatch):
    monkeypatch.setattr("millisecond.data.live.source.TURNS", 3)
    poses = [scan.pose for scan in islice(open_source("street:36"), 7)]
    steps = [np.linalg.inv(a) @ b for a, b in pairwise(poses)]
    np.testing.assert_allclose([step[0, 3] for step in steps[:3]], 0.8, rtol=0.01)  # 8 m/s
    np.testing.assert_allclose([step[0, 3] for step in steps[3:6]], 1.2, rtol=0.01)  # street 37


def test_the_example_of_the_readme_is_full_and_in_motion():
    """Its film begins with many objects of all classes before the camera, and they move."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for seed in map(int, re.findall(r"street:(\d+)", readme)):
        first, later = (simulate(seed, time) for time in (0.0, 1.0))
        near = np.hypot(*first.boxes[:, :2].T) < 50
        kinds = Counter(name for name, seen in zip(first.names, near, strict=True) if seen)
        assert all(kinds[name] >= 3 for name in ("Car", "Pedestrian", "Cyclist")), kinds
        apart = first.boxes[:, None, :2] - later.boxes[None, :, :2]
        assert (np.hypot(*apart.transpose(2, 0, 1)).min(axis=1) > 0.5).sum() >= 5


def test_a_fault_that_returns_is_no_flood():
    troubles = Troubles()
    told = [troubles.add("size", f"packet {number}") for number in range(1, 151)]
    assert [one.text for some in told for one in some] == [
        "packet 1",
        "packet 10 (the 10th such case)",
        "packet 100 (the 100th such case)",
    ]
    assert [one.text for one in troubles.rest()] == ["packet 100 (so 150 times in all)"]
    assert not Troubles().rest()
