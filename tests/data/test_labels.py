"""Label files against lines written by hand."""

from dataclasses import fields, replace

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections
from millisecond.data.kitti.labels import CALIBRATION, Labels, read_labels, write_labels
from millisecond.data.kitti.results import TOGETHER, detections_to_labels, frames_to_labels

CAR = "Car 0.10 1 -1.33 597.59 176.18 720.90 261.14 1.47 1.60 3.66 1.07 1.55 14.44 -1.25"
DONT_CARE = "DontCare -1 -1 -10 800.38 163.67 825.45 184.07 -1 -1 -1 -1000 -1000 -1000 -10"


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "000123.txt"
        path.write_text(text)
        return read_labels(path)

    return read


def test_columns(read):
    labels = read(f"{CAR}\n{DONT_CARE}\n")
    assert len(labels) == 2 and labels.types.tolist() == ["Car", "DontCare"]
    assert labels.truncated.tolist() == [0.1, -1] and labels.occluded.tolist() == [1, -1]
    assert labels.alpha[0] == -1.33 and labels.rotation_y[0] == -1.25
    assert labels.bbox[0].tolist() == [597.59, 176.18, 720.90, 261.14]
    assert labels.boxes[0].tolist() == [1.07, 1.55, 14.44, 3.66, 1.47, 1.60, -1.25]
    assert labels.score is None


def test_result_lines_have_a_score(read):
    assert read(f"{CAR} 0.75").score.tolist() == [0.75]


@pytest.mark.parametrize("text", ["", "\n", "  \n\n"])
def test_no_objects(read, text):
    labels = read(text)
    assert len(labels) == 0 and labels.boxes.shape == (0, 7) and labels.difficulty.shape == (0,)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (CAR.rsplit(" ", 1)[0], "line 2: 14 fields, a KITTI line has 15 (16 with a score)"),
        (f"{CAR} 0.5 7", "line 2: 17 fields"),
        (CAR.replace("3.66", "long"), "line 2: length is 'long', not a finite number"),
        (CAR.replace("14.44", "nan"), "line 2: z is 'nan', not a finite number"),
        (CAR.replace("3.66", "3_6.6"), "line 2: length is '3_6.6', not a finite number"),
        (CAR.replace("14.44", "\uff11\uff14"), "not a finite number"),
        (f"{CAR} 0.5", "line 2: some lines have a score and some have none"),
    ],
)
def test_bad_lines(read, line, message):
    with pytest.raises(ValueError, match=r"000123\.txt") as caught:
        read(f"{CAR}\n{line}\n")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_not_text(tmp_path):
    path = tmp_path / "000001.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a text file"):
        read_labels(path)


@pytest.mark.parametrize(
    ("height", "occluded", "truncated", "level"),
    [
        (40, 0, 0.15, 0),
        (39.9, 0, 0.0, 1),
        (40, 1, 0.0, 1),
        (40, 0, 0.3, 1),
        (25, 2, 0.5, 2),
        (24.9, 0, 0.0, -1),
        (100, 3, 0.0, -1),
        (100, 0, 0.51, -1),
    ],
)
def test_difficulty(read, height, occluded, truncated, level):
    line = f"Car {truncated} {occluded} 0 0 100 50 {100 + height} 1.5 1.6 3.9 0 1.7 20 0"
    assert read(line).difficulty.tolist() == [level]
    assert read(line.replace("Car", "DontCare")).difficulty.tolist() == [-1]


def test_written_files_read_back_equal(tmp_path, read):
    labels = read(f"{CAR} 0.12345\n{CAR.replace('Car', 'Van')} -3.5\n")
    path = tmp_path / "results" / "000123.txt"
    write_labels(path, labels)
    lines = path.read_text().splitlines()
    assert [len(line.split()) for line in lines] == [16, 16]
    first = "Car 0.1 1 -1.3300 597.5900 176.1800 720.9000 261.1400 1.4700 1.6000 3.6600 "
    assert lines[0] == first + "1.0700 1.5500 14.4400 -1.2500 0.12345"
    back = read_labels(path)
    np.testing.assert_allclose(back.boxes, labels.boxes)
    assert sorted(p.name for p in path.parent.iterdir()) == ["000123.txt"]


def test_failed_writing_leaves_the_old_file(tmp_path, read, monkeypatch):
    path = tmp_path / "000001.txt"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk is full")))
    with pytest.raises(OSError, match="disk is full"):
        write_labels(path, read(CAR))
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 2


def test_real_labels_survive_writing(kitti, tmp_path):
    for number in range(11):
        labels = read_labels(kitti / f"training/label_2/{number:06d}.txt")
        write_labels(tmp_path / "copy.txt", labels)
        back = read_labels(tmp_path / "copy.txt")
        for column in ("types", "truncated", "occluded", "alpha", "bbox", "boxes"):
            np.testing.assert_array_equal(getattr(back, column), getattr(labels, column))


def test_frames_together_are_rounded_to_the_same_labels():
    """As by themselves: without boxes, behind the camera, by cameras of several kinds."""
    rng, names = np.random.default_rng(0), np.array(["Car", "Pedestrian", "Cyclist"])
    turned = replace(CALIBRATION, p2=CALIBRATION.p2 + rng.uniform(0, 1, (3, 4)))
    cameras = [(None, None), (CALIBRATION, (375, 1242)), (turned, (375, 1242)), (turned, None)]
    cameras += [(replace(turned), (370, 1224))]
    found = []
    for _ in range(TOGETHER + 100):
        count = rng.integers(0, 30)
        places = rng.uniform((-5, -40, -3), (70, 40, 1), (count, 3))
        boxes = np.hstack((places, rng.uniform(0.5, 5, (count, 3)), rng.uniform(-4, 4, (count, 1))))
        scores, kinds = rng.uniform(0, 1, count).astype("f4"), rng.choice(names, count)
        found.append(NamedDetections(boxes.astype("f4"), scores, tuple(kinds)))
    own = [cameras[number] for number in rng.integers(0, len(cameras), len(found))]
    made = frames_to_labels(found, own)
    for one, camera, together in zip(found, own, made, strict=True):
        alone = detections_to_labels(one, *camera)
        assert camera[0] or (alone.difficulty == 0).all()  # they count at every difficulty
        for column in fields(Labels):
            a, b = getattr(alone, column.name), getattr(together, column.name)
            np.testing.assert_array_equal(a, b, column.name)
    assert frames_to_labels([], []) == []
