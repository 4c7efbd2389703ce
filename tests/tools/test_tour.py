"""The steps of the tour, on a short drive."""

import argparse
import json

import numpy as np
import pytest
from PIL import Image

from millisecond.data.boxes import NamedDetections
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import write_labels
from millisecond.data.kitti.results import detections_to_labels
from millisecond.data.simulator import write_drive
from millisecond.detector.draw.scene import SceneRenderer, SceneUnavailable
from millisecond.tools import tour


@pytest.fixture
def found(tmp_path, monkeypatch):
    """A drive of three scans and results that are its labels, but for one false pedestrian."""
    write_drive(tmp_path / "drive", tour.STREET, 3)
    drive, folder = KittiDataset(tmp_path / "drive", "all"), tmp_path / "detections"
    folder.mkdir()
    for frame in drive:
        boxes = np.concatenate([frame.boxes, [[9.0, 0, -0.8, 0.8, 0.6, 1.8, 0]]])
        names, scores = (*frame.names, "Pedestrian"), np.full(len(boxes), 0.9)
        result = {"boxes": boxes.tolist(), "scores": scores.tolist(), "names": names}
        (folder / f"{frame.frame_id}.json").write_text(json.dumps(result))
        labels = detections_to_labels(
            NamedDetections(boxes, scores, names), frame.calibration, frame.image_shape
        )
        write_labels(folder / f"{frame.frame_id}.txt", labels)
    monkeypatch.setattr(tour, "SHOWN", (0, 1, 2, 2))
    monkeypatch.setattr(tour, "POSTER", 2)
    return tmp_path


def test_every_command_line_is_understood(tmp_path):
    commands = [command for _, _, command in tour.steps(tmp_path)]
    assert [command[0] for command in commands] == ["simulate", "detect", "evaluate_tracks"]
    for (_, program, _), (_, *arguments) in zip(tour.steps(tmp_path), commands, strict=True):
        module = __import__(program.__module__, fromlist=["parse"])
        assert isinstance(module.parse([str(a) for a in arguments]), argparse.Namespace)


def test_what_was_found_is_counted(found):
    lines = tour.evaluation(found).splitlines()
    assert lines[0].startswith("in 3 scans")
    car, pedestrian, cyclist = (line.split() for line in lines[1:])
    for line in (car, cyclist):
        assert (
            int(line[1]) > 0
            and line[6:8] == ["100", "%"]
            and "100 % of the boxes" in " ".join(line)
        )
    share = round(100 * int(pedestrian[1]) / (int(pedestrian[1]) + 3))
    assert f"{share} % of the boxes are right" in " ".join(pedestrian)


def test_pictures_are_drawn_where_there_is_no_3d(found, monkeypatch, capsys):
    def draw(*_, **__):
        raise SceneUnavailable("not in this test")

    monkeypatch.setattr(SceneRenderer, "draw", draw)
    film, street = tour.draw(found)
    with Image.open(film) as picture:
        assert picture.size == (2 * 640 + 4, 2 * 360 + 4)
    with Image.open(street) as picture:
        assert picture.height == tour.HEIGHT
    assert "not in this test" in capsys.readouterr().err
