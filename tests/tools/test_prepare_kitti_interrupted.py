"""millisecond prepare stopped, killed, damaged, called twice: in the end the same bytes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millisecond.data.kitti.dataset import KittiDataset
from millisecond.tools.prepare import main
from tests.helpers.files import contents
from tests.helpers.warm_processes import WarmProcess

REPOSITORY = Path(__file__).resolve().parents[2]


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
