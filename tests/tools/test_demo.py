"""millisecond demo as a user calls it, without a display; and its keys, on a window of paper."""

import queue
import threading

import numpy as np
import pytest

from millisecond.data.boxes import NamedDetections
from millisecond.data.live.scan import LiveScan, Trouble
from millisecond.data.simulator import simulate
from millisecond.detector.draw.png import save_png
from millisecond.detector.draw.window import SCREENSHOT, keys_for, names_of
from millisecond.detector.following import LiveFrame, Statistics
from millisecond.tools import demo
from millisecond.tools.demo import KEYS, Choices, LiveView, Player
from tests.helpers.kitti_miniature import png

av = pytest.importorskip("av")


def test_a_folder_of_scans_becomes_pictures_and_a_film(tmp_path, plain, untrained, capsys):
    for k in range(2):
        simulate(1, 0.1 * k).points.tofile(tmp_path / f"{k}.bin")
    np.zeros((0, 4), np.float32).tofile(tmp_path / "2.bin")
    pictures, film = tmp_path / "film", tmp_path / "film.mp4"
    command = [str(tmp_path), "--weights", str(untrained)]
    written = ["--output", str(pictures), "--record", str(film)]
    assert demo.main([*command, *written]) == 0
    assert sorted(path.name for path in pictures.iterdir()) == [f"00000{k}.png" for k in range(3)]
    with av.open(str(film)) as container:
        assert len(list(container.decode(video=0))) == 3
        assert float(container.streams.video[0].average_rate) == 10
    out, err = capsys.readouterr()
    assert err.count("note:") == 1
    for line in ("frames     3,", "dropped    0", "troubles   0", "latency    p50 "):
        assert line in out

    # What is not an error is a note: intensities up to 255, an image that is not there.
    for k in range(3):
        points = np.fromfile(tmp_path / f"{k}.bin", "<f4").reshape(-1, 4)
        (points * np.float32([1, 1, 1, 255])).tofile(tmp_path / f"{k}.bin")
    drive = tmp_path / "drive" / "velodyne"
    drive.mkdir(parents=True)
    (drive.parent / "image_2").mkdir()
    for k in range(3):
        (tmp_path / f"{k}.bin").rename(drive / f"00000{2 * k}.bin")
    assert demo.main([str(drive.parent), "--weights", str(untrained), *written]) == 0
    out, err = capsys.readouterr()
    assert "troubles   0" in out and "error:" not in err
    for text in ("divided by 255", "no image of scan 000000"):
        assert any(line.startswith("note:") and text in line for line in err.splitlines()), err
    for k in range(3):
        (drive / f"00000{2 * k}.bin").rename(tmp_path / f"{k}.bin")

    # A second film, shorter and with a scan that cannot be read, leaves nothing of the first.
    (tmp_path / "0.bin").write_bytes(b"cut off")
    (tmp_path / "2.bin").unlink()
    assert demo.main([*command, "--output", str(pictures)]) == 2
    out, err = capsys.readouterr()
    assert "3 pictures of an earlier film removed" in out and "0.bin" in err
    assert "frames     1," in out and "troubles   1" in out
    assert [path.name for path in pictures.iterdir()] == ["000000.png"]


def test_a_film_spares_the_files_of_others(tmp_path, plain, untrained, capsys):
    simulate(1).points.tofile(tmp_path / "0.bin")
    film = tmp_path / "film"
    save_png(film / "000000.png", np.zeros((4, 4, 3), np.uint8))
    (film / "000007.png").write_bytes(png(4, 4))
    (film / "a.mp4").write_text("notes")
    before = {path.name: path.read_bytes() for path in film.iterdir()}
    command = [str(tmp_path), "--weights", str(untrained)]
    for option, path in (("--output", film), ("--record", film / "a.mp4")):
        assert demo.main([*command, option, str(path)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and str(path) in err
        assert {path.name: path.read_bytes() for path in film.iterdir()} == before


def test_ctrl_c_keeps_the_film_and_ends_with_a_summary(
    tmp_path, plain, untrained, capsys, monkeypatch
):
    for k in range(3):
        simulate(1).points.tofile(tmp_path / f"{k}.bin")
    shown = LiveView.shown

    def interrupted(self, frame, dropped):
        if frame.scan.name == "2":
            raise KeyboardInterrupt
        return shown(self, frame, dropped)

    monkeypatch.setattr(LiveView, "shown", interrupted)
    film = tmp_path / "film.mp4"
    command = [str(tmp_path), "--weights", str(untrained), "--record", str(film)]
    assert demo.main(command) == 130
    with av.open(str(film)) as container:
        assert len(list(container.decode(video=0))) == 2
    assert "frames     3," in capsys.readouterr().out
    left = {thread.name for thread in threading.enumerate()}
    assert not left & {"scans", "detection"} and not list(tmp_path.glob(".*"))


def test_a_recording_holds_every_scan_with_its_objects(tmp_path, untrained, capsys, monkeypatch):
    highlevel = pytest.importorskip("rosbags.highlevel")
    shots, seen = [simulate(1, k / 10).points for k in range(3)], []
    for k, points in enumerate(shots):
        points.tofile(tmp_path / f"{k}.bin")
    objects = LiveFrame.objects

    def watched(self, score):
        if len(seen) == 2 and interrupted:
            raise KeyboardInterrupt
        seen.append(objects(self, score))
        return seen[-1]

    monkeypatch.setattr(LiveFrame, "objects", watched)
    for interrupted, code in ((False, 0), (True, 130)):  # Ctrl-C keeps the scans until then
        seen.clear()
        file = tmp_path / f"{code}.mcap"
        command = [str(tmp_path), "--weights", str(untrained), "--score", "0"]
        assert demo.main([*command, "--record", str(file)]) == code
        count = 2 if interrupted else 3
        assert f"{count} scans written to {file}" in capsys.readouterr().out
        with highlevel.AnyReader([file]) as bag:
            found = [
                (c.topic.rpartition("/")[2], bag.deserialize(data, c.msgtype))
                for c, _, data in bag.messages()
            ]
        clouds = [message for name, message in found if name == "points"]
        boxes = [message.detections for name, message in found if name == "detections"]
        for message, points in zip(clouds, shots[:count], strict=True):
            assert message.data.tobytes() == points.tobytes()
        for some, expected in zip(boxes, seen, strict=True):
            centres = [(one.bbox.center.position.x, one.bbox.center.position.y) for one in some]
            np.testing.assert_array_equal(np.reshape(centres, (-1, 2)), expected.boxes[:, :2])
            assert [int(one.id or 0) for one in some] == expected.ids.tolist()
    assert sum(len(one.ids) for one in seen) > 0 and not list(tmp_path.glob(".*"))


def test_mistakes_are_one_line(tmp_path, untrained, capsys):
    assert demo.main([str(tmp_path), "--weights", str(untrained)]) == 2
    err = capsys.readouterr().err
    assert str(tmp_path) in err and err.count("\n") == 1
    for wrong in (
        ["--browser", "99999"],
        ["--browser", "--record", "a.mp4"],
        ["--ego", "--no-tracks"],
        ["--frames", "0"],
    ):
        with pytest.raises(SystemExit) as error:
            demo.main([str(tmp_path), "--weights", str(untrained), *wrong])
        assert error.value.code == 2


class Paper:
    """A window on which one key is pressed before each look at the frames; it closes after the
    last. None is not a key."""

    def __init__(self, keys):
        self.open, self.screenshots = True, []
        self.shown, self._keys = [], list(keys)

    def show(self, shown):
        scores = shown.detections.scores.tolist()
        self.shown.append((shown.title.split(), scores, shown.figures))

    def wait(self, seconds):
        key = self._keys.pop(0)
        self.open = bool(self._keys)
        if key == SCREENSHOT:
            self.screenshots.append(np.zeros((4, 4, 3), np.uint8))
        return [key] if key else []


class Scans:
    """A recording that says what is done to it."""

    def __init__(self):
        self.dropped, self.done = 4, []

    def pause(self, paused):
        self.done.append(("pause", paused))

    def step(self):
        self.done.append("step")

    def set_speed(self, speed):
        self.done.append(("speed", speed))


class Frames:
    """Results in turn; where there is a hole, there is none yet."""

    def __init__(self, results):
        self.statistics, self._results = Statistics(), list(results)

    def get(self, timeout):
        result = self._results.pop(0) if self._results else HOLE
        if result is HOLE:
            raise queue.Empty
        return result


HOLE = object()


def frame(number: int) -> LiveFrame:
    boxes = np.tile(np.array([10.0, 0, 0, 4, 2, 1.5, 0]), (3, 1))
    found = NamedDetections(boxes, np.array([0.9, 0.4, 0.31]), ("Car", "Cyclist", "Car"))
    return LiveFrame(LiveScan(np.zeros((1, 4), np.float32), number / 10, f"{number}"), found)


def play(keys, results) -> tuple[Paper, Scans]:
    window, scans, frames = Paper(keys), Scans(), Frames(results)
    view = LiveView(("Car", "Cyclist"), Choices(0.3), frames.statistics)
    Player(window, scans, frames, view).play()
    return window, scans


def test_a_pause_holds_the_scans_and_a_step_lets_one_through():
    keys = [None, "space", None, "right", None, None, "space", None, None, None]
    window, scans = play(keys, [frame(0), HOLE, HOLE, frame(1), frame(2), None, frame(3)])
    titles = [title for title, *_ in window.shown]
    assert titles == [["0"], ["0", "paused"], ["1", "paused"], ["1"], ["2"]]
    assert scans.done == [("pause", True), "step", ("pause", False)]


def test_keys_choose_what_is_shown(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "SCREENSHOTS", tmp_path / "screenshots")
    keys = [None, "up", "2", "2", "down", "[", "]", "]", "s", "s", None]
    window, scans = play(keys, [frame(0), Trouble("a bad packet")])
    every, sure, cars = [0.9, 0.4, 0.31], [0.9, 0.4], [0.9]
    assert [scores for _, scores, _ in window.shown] == [
        *(every, sure, cars, sure, every, every, every, every)
    ]
    figures = [figures for *_, figures in window.shown]
    assert figures[1]["score from"] == "0.35" and figures[2]["hidden"] == "Cyclist"
    assert figures[5]["speed"] == "x 0.5" and "speed" not in figures[6]
    assert figures[0]["dropped"] == "4"
    assert scans.done == [("speed", 0.5), ("speed", 1.0), ("speed", 2.0)]
    assert sorted(path.name for path in (tmp_path / "screenshots").iterdir()) == [
        *("0.png", "0_2.png")
    ]
    assert "a bad packet" in capsys.readouterr().err


def test_a_screenshot_that_cannot_be_written_does_not_end_the_view(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(demo, "SCREENSHOTS", tmp_path / "file" / "screenshots")
    window, _ = play([None, "s", "up", None], [frame(0)])
    assert len(window.shown) == 2 and not window.screenshots
    assert capsys.readouterr().err.count("error: ") == 1


def test_every_key_has_a_row_in_the_help():
    assert keys_for(("Car",), *KEYS)["1"] == "Car off, on"
    rows = keys_for(("Car", "Pedestrian", "Cyclist"), *KEYS)
    names = {name for row in rows for name in names_of(row)}
    answered = {"space", "right", "[", "]", "up", "down", "1", "2", "3", "s", "f", "l"}
    assert names == answered
    assert names_of("1 to 3, enter") == ["1", "2", "3", "enter"]
    assert names_of("left, right") == ["left", "right"] and names_of("[, ]") == ["[", "]"]


def test_a_camera_image_that_cannot_be_read_is_told_once(tmp_path, capsys):
    image = tmp_path / "0.png"
    image.write_text("no image")
    statistics = Statistics()
    view = LiveView(("Car", "Cyclist"), Choices(0.3), statistics)
    bad = frame(0)._replace(scan=frame(0).scan._replace(image=image))
    assert view.shown(bad, 0).photo is None and view.shown(bad, 0).photo is None
    assert statistics.troubles == 1 and capsys.readouterr().err.count("error:") == 1
    image.write_bytes(png(200, 600))
    assert view.shown(bad, 0).photo.image.shape == (200, 600, 3)
