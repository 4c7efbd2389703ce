"""A street as a drive on disk."""

import numpy as np
import pytest

from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.simulator import simulate, write_drive, write_kitti_tree
from millisecond.data.simulator.scenes import make_street
from millisecond.tools import simulate as program

STREET = 200_102


def test_a_drive_is_the_street_as_time_passes(tmp_path):
    write_drive(tmp_path, STREET, 3)
    drive = KittiDataset(tmp_path, "all")
    assert drive.frame_ids == ("000000", "000001", "000002")
    for place, frame in enumerate(drive):
        street = simulate(STREET, place / 10)
        np.testing.assert_array_equal(frame.points, street.points)
        np.testing.assert_allclose(frame.boxes, street.boxes, atol=2e-3)
        assert frame.names == street.names
    first, last = (drive[place].boxes[:, None, :2] for place in (0, 2))
    moved = np.linalg.norm(first - last.swapaxes(0, 1), axis=2).min(axis=1)
    assert (moved > 0.5).sum() > 5  # of parked cars, too: the car drives 8 m/s


@pytest.mark.parametrize("seed", [STREET, 3, 12, 29, 48])
def test_labels_know_the_velocities_over_ground(seed):
    """By the boxes a moment later, moved back by the way of the car along its street."""
    street, moment = make_street(np.random.default_rng(seed)), 1e-4
    before, after = street.poses(1.0), street.poses(1.0 + moment)
    x, y, turn = street.ground.to_sensor(np.array(street.ego_speed * moment), np.array(0.0))
    turn = turn - street.ground.yaw
    back = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    moved = after[:, :2] @ back.T + [x, y] - before[:, :2]
    np.testing.assert_allclose(street.velocities(1.0), moved / moment, atol=1e-3)
    frame = simulate(seed, 1.0, crop=False)
    assert frame.velocities.shape == (len(frame.boxes), 2)
    # a turn of the sensor takes 0.1 s, in which a thing goes on in its bend
    apart = np.abs(frame.velocities[:, None] - street.velocities(1.0)).max(axis=2).min(axis=1)
    assert apart.max() < 0.05
    assert np.linalg.norm(frame.velocities, axis=1).max() > 1 or seed != STREET


def test_a_shorter_drive_takes_the_place_of_a_longer_one(tmp_path):
    write_drive(tmp_path, 3, 2)
    write_drive(tmp_path, 4, 1)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == [
        "000000.bin", "000000.txt", "calib.txt", "simulated.txt",
    ]  # fmt: skip
    np.testing.assert_array_equal(KittiDataset(tmp_path, "all")[0].points, simulate(4).points)


def test_what_is_there_is_not_written_over(tmp_path):
    (tmp_path / "own" / "velodyne_reduced").mkdir(parents=True)
    with pytest.raises(ValueError, match="velodyne_reduced is there already and not simulated"):
        write_drive(tmp_path / "own", 1, 1)
    write_kitti_tree(tmp_path / "streets", [1], "val")
    with pytest.raises(ValueError, match="streets are there already"):
        write_drive(tmp_path / "streets", 1, 1)


@pytest.mark.parametrize("scans", [0, 51])
def test_a_street_is_built_for_five_seconds(tmp_path, scans):
    with pytest.raises(ValueError, match=f"{scans} scans: a street is built for 1 to 50"):
        write_drive(tmp_path, 1, scans)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([], "or --drive"),
        (["--split", "val"], "or --drive"),
        (["--drive", "1", "--split", "val"], "--drive goes without"),
        (["--drive", "1", "--first", "2"], "--drive goes without"),
        (["--drive", "1", "--layout", "folder"], "--drive goes without"),
    ],
)
def test_the_program_wants_streets_or_a_drive(tmp_path, capsys, wrong, said):
    with pytest.raises(SystemExit):
        program.main(["--root", str(tmp_path), *wrong])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("processes", ["0", "-3"])
def test_the_program_wants_a_process(tmp_path, capsys, processes):
    with pytest.raises(SystemExit):
        program.main(["--root", str(tmp_path), "--drive", "1", "--processes", processes])
    assert f"--processes: '{processes}' is not a whole number from 1" in capsys.readouterr().err
