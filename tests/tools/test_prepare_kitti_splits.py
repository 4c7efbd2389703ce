"""millisecond prepare and lists of frames."""

import shutil

import pytest

from millisecond.data.datasets.prepare import open_database
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.tools.prepare import main
from tests.helpers.kitti_miniature import IDS


def test_lists_of_one_name_have_packs_of_their_own(root, tmp_path):
    """As in cross-validation: fold0/train.txt, fold1/train.txt."""
    datasets = []
    for fold, names in enumerate((IDS[:2], IDS[2:])):
        path = tmp_path / f"fold{fold}" / "train.txt"
        path.parent.mkdir()
        path.write_text("\n".join(names))
        assert main(["--root", str(root), "--splits", str(path)]) == 0
        datasets.append(KittiDataset(root, str(path)))
    main(["--root", str(root)])
    assert len({dataset.pack_path("database") for dataset in datasets}) == 2
    for dataset in datasets:
        assert set(open_database(dataset).frames.tolist()) == set(dataset.frame_ids)
    own = KittiDataset(root, str(root / "ImageSets/train.txt"))  # the split itself, as a path
    assert own.pack_path("database") == KittiDataset(root, "train").pack_path("database")


@pytest.mark.parametrize("split", ["../../x", "..", "a/b", "/etc/passwd", "a b", ".hidden"])
def test_a_split_cannot_lead_out_of_the_folder(root, tmp_path, capsys, split):
    (tmp_path / "x.txt").write_text("000002")
    before = sorted(tmp_path.rglob("*"))
    assert main(["--root", str(root), "--splits", split]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: split {split!r}") and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../000002", "/etc/passwd", "a/b", "..", ".hidden", "a\\b"])
def test_a_frame_cannot_lead_out_of_the_folder(root, capsys, name):
    (root / "ImageSets/train.txt").write_text(f"000002\n{name}\n")
    assert main(["--root", str(root)]) == 2
    err = capsys.readouterr().err
    assert f"{name!r} is not a frame id" in err and err.count("\n") == 1


def test_a_list_with_a_byte_order_mark(root):
    path = root / "ImageSets/train.txt"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert KittiDataset(root, "train").frame_ids == IDS[:3]


def test_test_frames_are_those_of_testing(root):
    """Also where their list is given as a file."""
    shutil.copytree(root / "training", root / "testing")
    (root / "ImageSets/test.txt").write_text("000005\n")
    for split in ("test", str(root / "ImageSets/test.txt")):
        dataset = KittiDataset(root, split)
        assert dataset.layout.folder == root / "testing" and not dataset.layout.labelled
    listed = root / "ImageSets/fold.txt"
    listed.write_text("000005\n")
    assert KittiDataset(root, str(listed)).layout.folder == root / "training"
