"""millisecond prepare as a user runs it; stopped, killed, damaged, called twice it makes the same
bytes in the end."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from millisecond.data.augment import GroundTruthDatabase
from millisecond.data.datasets.prepare import open_database
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.packed import Pack
from millisecond.tools.prepare import main
from tests.helpers.kitti_miniature import IDS
from tests.helpers.plain_files import write_plain_files
from tests.helpers.warm_processes import WarmProcess

REPOSITORY = Path(__file__).resolve().parents[2]


def contents(folder: Path) -> dict[str, bytes]:
    """Of each file of a folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_packs(root, capsys):
    assert main(["--root", str(root)]) == 0
    out = capsys.readouterr().out
    assert "train: 3 frames: packed" in out and "val: 1 frames: packed" in out
    assert any(line.split()[:2] == ["Pedestrian", "3"] for line in out.splitlines())
    names = ["clouds_train", "clouds_val", "database_train"]
    files = sorted(path.name for path in (root / "millisecond").iterdir())
    assert files == sorted(f"{name}.{kind}" for name in names for kind in ("bin", "npz"))
    database = GroundTruthDatabase(root / "millisecond/database_train")
    # 40 and 20 points were put inside, and some of those all around may be there by chance.
    assert np.isin(database.counts[database.names == "Car"], range(40, 45)).all()
    assert np.isin(database.counts[database.names == "Pedestrian"], range(20, 25)).all()


def test_packed_frames_equal_raw_ones(root):
    main(["--root", str(root)])
    packed, raw = KittiDataset(root, "train"), KittiDataset(root, "train", packed=False)
    for name in IDS[:3]:
        path = root / f"training/velodyne/{name}.bin"
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        old = path.read_bytes()
        frame = raw[IDS.index(name)]
        path.write_bytes(b"\0" * len(old))  # of the same size and time: it must not be read
        os.utime(path, ns=times)
        np.testing.assert_array_equal(packed[IDS.index(name)].points, frame.points)
        path.write_bytes(old)


def test_pack_of_older_files_is_not_used(root):
    main(["--root", str(root)])
    path = root / "training/velodyne/000005.bin"
    path.write_bytes(path.read_bytes()[: 16 * 500])
    dataset = KittiDataset(root, "train")
    with pytest.warns(UserWarning, match=r"run millisecond prepare .* again"):
        assert len(dataset[1].points) <= 500
    main(["--root", str(root)])
    assert len(KittiDataset(root, "train")[1].points) <= 500


def test_second_run_does_nothing_and_a_changed_label_is_seen(root, capsys):
    main(["--root", str(root)])
    first = contents(root / "millisecond")
    capsys.readouterr()
    main(["--root", str(root)])
    assert capsys.readouterr().out.count("already packed") == 2
    assert contents(root / "millisecond") == first
    path = root / "training/label_2/000005.txt"
    path.write_text(path.read_text().replace("Car 0", "Van 0"))
    main(["--root", str(root)])
    assert "Van" in capsys.readouterr().out


def test_real_frames(kitti, tmp_path, capsys):
    assert main(["--root", str(kitti), "--splits", "all", "--output", str(tmp_path)]) == 0
    pack = Pack(tmp_path / "clouds_all")
    frames = pack.columns["frame"].tolist()
    counts = dict(zip(frames, np.diff(pack.offsets).tolist(), strict=True))
    assert (counts["000003"], counts["000008"], counts["000001"]) == (18911, 17238, 18630)
    dataset = KittiDataset(kitti, "all", prepared=tmp_path)
    raw = KittiDataset(kitti, "all", packed=False)
    np.testing.assert_array_equal(dataset[8].points, raw[8].points)
    assert "Car" in capsys.readouterr().out


def cut(root):
    path = root / "training/velodyne/000005.bin"
    path.write_bytes(path.read_bytes()[:-3])


def empty(root):
    (root / "training/velodyne/000005.bin").write_bytes(b"")


def no_calibration(root):
    (root / "training/calib/000005.txt").unlink()


def no_output(root):
    (root / "millisecond").write_text("a file is in the way")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (cut, "000005.bin is not a whole number of 16-byte points"),
        (empty, "000005.bin is empty; get the file again or take the frame out of the split"),
        (no_calibration, "calib: 000005.txt is not there"),
        (no_output, "millisecond"),
    ],
)
def test_mistakes_are_one_line(root, capsys, mistake, message):
    mistake(root)
    assert main(["--root", str(root)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


def test_a_copied_data_set_keeps_its_pack(root, tmp_path):
    """Contents count, not times."""
    main(["--root", str(root)])
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    for path in (copy / "training/velodyne").iterdir():
        os.utime(path, (1, 1))
    dataset = KittiDataset(copy, "train")
    assert dataset.packed_clouds.stale == []
    assert len(open_database(dataset))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(dataset)) == 3
    path = copy / "training/velodyne/000005.bin"
    points = np.fromfile(path, "<f4")
    points[7] += 1  # the same size
    points.tofile(path)
    changed = KittiDataset(copy, "train")
    assert changed.packed_clouds.stale == ["000005"]
    with pytest.warns(UserWarning, match=r"1 of 3 clouds .* \(000005\)") as said:
        frames = list(changed) + list(changed)
    assert len(said) == 1
    raw = KittiDataset(copy, "train", packed=False)[1].points
    np.testing.assert_array_equal(frames[1].points, raw)


def relabel(root):
    path = root / "training/label_2/000005.txt"
    path.write_text(path.read_text().replace("Car 0", "Van 0"))


def move_camera(root):
    path = root / "training/calib/000005.txt"
    path.write_text(path.read_text().replace("P2: 700 0 600", "P2: 700 0 590"))


def touch_cloud(root):
    path = root / "training/velodyne/000005.bin"
    path.write_bytes(path.read_bytes()[:-16] + bytes(16))


def tilt_road(root):
    path = root / "training/planes/000002.txt"
    path.write_text(path.read_text().replace("1.6", "1.7"))


def other_frames(root):
    (root / "ImageSets/train.txt").write_text("000002\n000007\n000005\n")


@pytest.mark.parametrize(
    "change", [relabel, move_camera, touch_cloud, tilt_road, other_frames], ids=lambda f: f.__name__
)
def test_objects_of_changed_data_are_not_pasted(root, change):
    main(["--root", str(root)])
    open_database(KittiDataset(root, "train"))
    change(root)
    with pytest.raises(ValueError, match="made from other labels") as caught:
        open_database(KittiDataset(root, "train"))
    command = f"millisecond prepare --root {root} --splits train"
    assert str(caught.value).endswith(command)
    assert main(shlex.split(command)[2:]) == 0
    open_database(KittiDataset(root, "train"))


def test_the_whole_clouds_are_packed_where_there_is_no_camera(root, capsys):
    assert main(["--root", str(root)]) == 0
    assert "% of their points are in the camera's picture" in capsys.readouterr().out
    assert main(["--root", str(root), "--no-crop"]) == 0
    assert "camera" not in capsys.readouterr().out
    whole = KittiDataset(root, "train", crop=False)
    raw = np.fromfile(root / "training/velodyne/000002.bin", "<f4").reshape(-1, 4)
    np.testing.assert_array_equal(whole[0].points, raw)
    assert whole.packed_clouds.stale == []
    assert len(KittiDataset(root, "train")[0].points) < len(raw)
    assert len(open_database(whole)) == len(open_database(KittiDataset(root, "train")))


def test_the_remedy_for_a_missing_database_makes_it(root):
    for dataset in (
        KittiDataset(root, "all"),
        KittiDataset(root, "all", crop=False),
        KittiDataset(root, "val", ["Forklift"], root / "else where"),
    ):
        with pytest.raises(FileNotFoundError, match="make it with millisecond prepare") as caught:
            open_database(dataset)
        command = shlex.split(str(caught.value).partition("make it with ")[2])
        assert main(command[2:]) == 0
        assert len(open_database(dataset))


def test_a_strange_type_names_both_remedies(root, capsys):
    path = root / "training/label_2/000005.txt"
    path.write_text(path.read_text().replace("Car 0", "Forklift 0"))
    assert main(["--root", str(root)]) == 2
    assert "after --classes" in capsys.readouterr().err
    assert main(["--root", str(root), "--classes", "Forklift"]) == 0


def test_what_the_configuration_says_is_not_said_twice(root, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--root", str(root), "--config", "configs/second_kitti.yaml", "--no-crop"])
    assert "--no-crop do not go with --config" in capsys.readouterr().err
    plain = write_plain_files(tmp_path / "plain", frames=1)
    assert main(["--root", str(plain)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{plain}: plain files; give --config" in error


def test_a_configuration_of_kitti_packs_the_same(root, tmp_path):
    for number, more in enumerate(([], ["--config", "configs/second_kitti.yaml"])):
        assert main(["--root", str(root), "--output", str(tmp_path / str(number)), *more]) == 0
    assert contents(tmp_path / "0") == contents(tmp_path / "1")


@pytest.mark.parametrize("after", [0, 1, 2])
def test_interrupted_work_goes_on_to_the_same_bytes(root, tmp_path, monkeypatch, capsys, after):
    arguments = ["--root", str(root), "--splits", "train", "--output"]
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    read = KittiDataset.__getitem__

    def stop(self, index):
        if index == after:
            raise KeyboardInterrupt
        return read(self, index)

    monkeypatch.setattr(KittiDataset, "__getitem__", stop)
    assert main([*arguments, str(tmp_path / "parts")]) == 130
    seen = []
    monkeypatch.setattr(
        KittiDataset, "__getitem__", lambda self, i: seen.append(i) or read(self, i)
    )
    assert main([*arguments, str(tmp_path / "parts")]) == 0
    assert seen == list(range(after, 3))
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_killed_process(root, tmp_path):
    """Many frames, SIGKILL somewhere in between, and the same bytes in the end."""
    ids = [f"{i:06d}" for i in range(100, 400)]
    for kind, suffix in (("velodyne", "bin"), ("calib", "txt"), ("label_2", "txt")):
        for name in ids:
            source = root / f"training/{kind}/000002.{suffix}"
            (root / f"training/{kind}/{name}.{suffix}").symlink_to(source)
    for name in ids:
        (root / f"training/image_2/{name}.png").symlink_to(root / "training/image_2/000002.png")
    (root / "ImageSets/many.txt").write_text("\n".join(ids))
    arguments = ["--root", str(root), "--splits", "many", "--output"]
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    program = str(REPOSITORY / "tools" / "prepare.py")
    process = WarmProcess([program, *arguments, str(tmp_path / "parts")], {})
    journal = tmp_path / "parts/database_many.journal"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > 3000):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert main([*arguments, str(tmp_path / "parts")]) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_damaged_pack_is_made_anew(root):
    main(["--root", str(root)])
    first = contents(root / "millisecond")
    for path in (root / "millisecond").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    assert main(["--root", str(root)]) == 0
    assert contents(root / "millisecond") == first


def test_two_at_once(root, capsys):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root / "millisecond")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        assert main(["--root", str(root)]) == 2
        assert f"process {holder.pid} is writing there" in capsys.readouterr().err
        holder.stdin.close()
    assert main(["--root", str(root)]) == 0


HOLD = """
import sys
from pathlib import Path
from millisecond.data.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
