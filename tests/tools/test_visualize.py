"""millisecond visualize as a user calls it, without a display."""

import json
import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from millisecond.data.boxes import NamedDetections
from millisecond.data.calibration import Calibration
from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import write_labels
from millisecond.data.kitti.results import detections_to_labels
from millisecond.data.simulator import simulate
from millisecond.detector.draw.scene import usual_view
from millisecond.detector.draw.style import CLASS_COLOURS, OTHER_COLOURS, VERDICT_COLOURS
from millisecond.tools import demo, visualize
from tests.helpers import chromium
from tests.helpers.kitti_miniature import CAR, png, write_miniature
from tests.helpers.warm_processes import WarmProcess
from tests.helpers.weights import write_weights

ROOT = Path(__file__).resolve().parents[2]


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def drawn(picture: np.ndarray, name: str) -> int:
    """Pixels of the very colour of one of KITTI's classes."""
    return painted(picture, CLASS_COLOURS[name])


def painted(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((np.abs(picture - colour).max(axis=2) <= 2).sum())


def write_json(path: Path, boxes, scores, names) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"boxes": np.array(boxes).tolist(), "scores": scores, "names": names})
    )


def test_pictures_of_a_data_set_come_from_the_command_line(tmp_path):
    root = write_miniature(tmp_path / "kitti")
    command = [str(ROOT / "tools" / "visualize.py"), "--root", str(root), "--frames", "000002"]
    command += ["--output", str(tmp_path / "out"), "--no-detections"]
    process = WarmProcess(command, {"VK_ICD_FILENAMES": "/nonexistent"})
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"000002_birds_eye.png", "000002_camera.png"} <= written
    note = [line for line in said.splitlines() if line.startswith("note:")]
    assert "000002_scene.png" in written or (len(note) == 1 and "apt-get install" in note[0])
    assert opened(tmp_path / "out" / "000002_camera.png").shape[1] == 1224


def test_detections_come_from_json_and_from_kitti_results(tmp_path, plain):
    root = write_miniature(tmp_path / "kitti")
    results = tmp_path / "results"
    results.mkdir()
    box = np.array([CAR])
    camera = Calibration.from_file(root / "training" / "calib" / "000002.txt")
    found = detections_to_labels(NamedDetections(box, np.array([0.8]), ["Car"]), camera, None)
    arguments = ["--root", str(root), "--frames", "000002", "--detections", str(results)]

    pictures = []
    for kind in ("json", "txt"):
        path = results / f"000002.{kind}"
        if kind == "json":
            path.write_text(json.dumps({"boxes": box.tolist(), "scores": [0.8], "names": ["Car"]}))
        else:
            write_labels(path, found)
        assert visualize.main([*arguments, "--output", str(tmp_path / kind)]) == 0
        pictures.append(opened(tmp_path / kind / "000002_birds_eye.png"))
        path.unlink()
    assert drawn(pictures[0], "Car") > 100
    assert np.abs(pictures[0] - pictures[1]).max(axis=2).astype(bool).mean() < 1e-3


def test_of_two_results_the_newer_is_drawn(tmp_path, plain):
    root, results = write_miniature(tmp_path / "kitti"), tmp_path / "results"
    camera = Calibration.from_file(root / "training" / "calib" / "000002.txt")
    own, result = results / "000002.json", results / "000002.txt"
    write_json(own, [CAR], [0.8], ["Van"])
    write_labels(
        result,
        detections_to_labels(
            NamedDetections(np.array([CAR]), np.array([0.8]), ["Cyclist"]), camera, None
        ),
    )
    arguments = ["--root", str(root), "--frames", "000002", "--detections", str(results)]
    for newer, older, seen, unseen in (
        (result, own, "Cyclist", "Van"),
        (own, result, "Van", "Cyclist"),
    ):
        os.utime(older, (1e9, 1e9))
        os.utime(newer, (1e9 + 1, 1e9 + 1))
        assert visualize.main([*arguments, "--output", str(tmp_path / "out")]) == 0
        picture = opened(tmp_path / "out" / "000002_birds_eye.png")
        assert drawn(picture, seen) > 100 and drawn(picture, unseen) == 0


def test_an_older_result_is_not_drawn_where_the_newer_cannot_be(tmp_path, plain, capsys):
    simulate(1).points.tofile(tmp_path / "street.bin")
    own, result = (tmp_path / "results" / f"street.{kind}" for kind in ("json", "txt"))
    write_json(own, [CAR], [0.8], ["Van"])
    result.write_text("Car -1 -1 0 1 1 9 9 1.5 1.8 4 0 1.6 20 0 0.9\n")
    arguments = [str(tmp_path / "street.bin"), "--detections", str(tmp_path / "results")]
    for age, code in ((0, 0), (600, 2)):
        os.utime(own, (1e9, 1e9))
        os.utime(result, (1e9 + age, 1e9 + age))
        assert visualize.main([*arguments, "--output", str(tmp_path / "out")]) == code
    assert "street.json: is older than street.txt" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["nan", "-1", "2", "much"])
def test_a_score_is_from_0_to_1(value, capsys):
    for program in (visualize, demo):
        with pytest.raises(SystemExit) as end:
            program.main(["scan.bin", "--score", value])
        assert end.value.code == 2 and f"'{value}' is not from 0 to 1" in capsys.readouterr().err


def test_what_scores_too_little_is_hidden_and_counted(tmp_path, plain, capsys):
    simulate(1).points.tofile(tmp_path / "street.bin")
    rows = np.array([CAR, CAR, CAR]) + np.array([[0], [8], [16]]) * np.eye(7)[1]
    write_json(tmp_path / "results" / "street.json", rows, [0.8, 0.25, 0.1], ["Car"] * 3)
    arguments = [str(tmp_path / "street.bin"), "--detections", str(tmp_path / "results")]
    pictures, said = [], []
    for score in ("0", "0.2", "0.3", "0.9"):
        out = tmp_path / score
        assert visualize.main([*arguments, "--score", score, "--output", str(out)]) == 0
        pictures.append(opened(out / "street_birds_eye.png"))
        said.append(capsys.readouterr().out)
    counts = [drawn(picture, "Car") for picture in pictures]
    assert counts[0] > counts[1] > counts[2] > counts[3] == 0
    lines = [[line for line in out.splitlines() if "not drawn" in line] for out in said]
    assert [len(some) for some in lines] == [0, 1, 1, 1]
    for (line,), score, hidden in zip(lines[1:], ("0.2", "0.3", "0.9"), "123", strict=True):
        assert f"below {score} " in line and line.endswith(f": {hidden}")
    titles = [picture[10:32, 44:400] for picture in pictures]  # say it too
    assert all((titles[i] != titles[i - 1]).any() for i in range(1, 4))


def test_classes_of_ones_own_have_colours_of_their_own(tmp_path, plain):
    root = write_miniature(tmp_path / "kitti")
    for name in ("000002", "000005"):
        label = root / "training" / "label_2" / f"{name}.txt"
        own = label.read_text().replace("Car 0", "Forklift 0").replace("Pedestrian", "Pallet")
        label.write_text(own)
    write_json(tmp_path / "found" / "000002.json", [CAR], [0.9], ["Forklift"])
    arguments = ["--root", str(root), "--frames", "000002", "--detections", str(tmp_path / "found")]
    arguments += ["--output", str(tmp_path)]
    assert visualize.main(arguments) == 2  # types that nobody named may be slips of the pen
    assert visualize.main([*arguments, "--classes", "Pallet", "Forklift"]) == 0
    assert painted(opened(tmp_path / "000002_birds_eye.png"), OTHER_COLOURS[1]) > 100
    weights = write_weights(
        tmp_path / "own.safetensors", "classes.0.name=Forklift", "augment.sample={Forklift: 0}"
    )
    arguments = ["--root", str(root), "--frames", "000005", "--weights", str(weights)]
    assert visualize.main([*arguments, "--output", str(tmp_path)]) == 2  # Pallet
    label = root / "training" / "label_2" / "000005.txt"
    label.write_text(label.read_text().replace("Pallet", "Car"))
    assert visualize.main([*arguments, "--output", str(tmp_path)]) == 0


def test_a_drive_without_labels_is_drawn_but_not_trained_on(tmp_path, plain):
    training = write_miniature(tmp_path / "kitti") / "training"
    drive = tmp_path / "drive"
    drive.mkdir()
    (training / "velodyne").rename(drive / "velodyne_reduced")
    (training / "calib" / "000002.txt").rename(drive / "calib.txt")
    arguments = ["--root", str(drive), "--no-detections", "--output", str(tmp_path / "out")]
    assert visualize.main(arguments) == 0
    assert len(list((tmp_path / "out").glob("*_birds_eye.png"))) == 4
    with pytest.raises(FileNotFoundError, match="label_2"):
        KittiDataset(drive, "all")
    # A folder that is there must be whole.
    (drive / "label_2").mkdir()
    assert visualize.main(arguments) == 2


def test_a_film_has_all_frames_that_can_be_read(tmp_path, root, plain, capsys):
    av = pytest.importorskip("av")
    film, found = tmp_path / "a.mp4", tmp_path / "results"
    write_json(found / "000005.json", [CAR], [0.87], ["Cyclist"])
    for name in ("000002", "000007", "000011"):
        write_json(found / f"{name}.json", np.zeros((0, 7)), [], [])
    command = ["--root", str(root), "--detections", str(found), "--film", str(film)]
    cloud = root / "training" / "velodyne" / "000007.bin"
    cloud.write_bytes(cloud.read_bytes()[:-3])
    assert visualize.main(command) == 2
    out, err = capsys.readouterr()
    assert f"3 pictures written to {film}" in out and "000007.bin" in err
    with av.open(str(film)) as container:
        pictures = [one.to_ndarray(format="rgb24").astype(int) for one in container.decode()]
    assert len(pictures) == 3
    yellow = [(np.abs(p - CLASS_COLOURS["Cyclist"]).max(axis=2) < 60).sum() for p in pictures]
    assert yellow[1] > 50 and yellow[0] == yellow[2] == 0  # the detection in the second
    film.write_text("notes")
    assert visualize.main(command) == 2
    assert film.read_text() == "notes"
    for others in (["--output", str(tmp_path)], ["--browser"]):
        with pytest.raises(SystemExit):
            visualize.main([*command, *others])


@pytest.mark.parametrize("kind", ["class", "error"])
def test_points_are_coloured_as_the_option_says(tmp_path, root, plain, kind):
    shade = CLASS_COLOURS["Car"] if kind == "class" else VERDICT_COLOURS["matched"]
    write_json(tmp_path / "results/000005.json", [CAR], [0.87], ["Car"])
    source = ["--root", str(root), "--frames", "000005", "--boxes", kind]
    found = []
    for colour in ("height", kind):
        command = [*source, "--detections", str(tmp_path / "results"), "--colour", colour]
        assert visualize.main([*command, "--output", str(tmp_path / colour)]) == 0
        found.append(painted(opened(tmp_path / colour / "000005_birds_eye.png"), shade))
    assert found[1] > found[0] + 20 > 120


@pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium")
def test_a_page_has_a_slider_over_frames_and_tells_of_a_box_that_is_clicked(tmp_path, root):
    pytest.importorskip("viser")
    near = (CAR[0] - 1, *CAR[1:])
    for name, box, score in (("000002", CAR, 0.51), ("000005", near, 0.87)):
        write_json(tmp_path / f"results/{name}.json", [box], [score], ["Car"])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(ROOT / "tools" / "visualize.py"), "--root", str(root), "--browser", str(port)]
    command += ["--detections", str(tmp_path / "results"), "--frames", "000002", "000005"]
    process = WarmProcess(command, {})
    try:
        address = process.told(r"http://\S+")
        with chromium.opened(address, tmp_path / "browser") as page:
            page.wait_for("000002")
            page.wait_for("000005", lambda: page.press("ArrowRight", of="[role=slider]"))
            page.tell("Page.reload")  # a key that came before the slider may have turned the scene
            page.wait_for("000005")
            size = page.evaluate("[innerWidth, innerHeight].join()")
            view = usual_view(tuple(map(int, size.split(","))))
            x, y = view.project(np.array([near[:3]]))[0][0].tolist()
            told = page.wait_for("0.87", lambda: page.click(x, y)).splitlines()
            figures = dict(line.split("\t") for line in told if "\t" in line)
            page.wait_for("click on a box", lambda: page.click(x, y - 150))  # the sky
    finally:
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wanted = {"class": "Car", "from": "detection", "score": "0.87", "distance": "19.0 m"}
    wanted |= {"verdict": "false: best overlap 0.60 < 0.70", "size": "4.00 x 1.80 x 1.50 m"}
    assert wanted.items() <= figures.items() and int(figures["points"]) >= 20


def test_frames_that_cannot_be_drawn_do_not_stop_the_rest(tmp_path, plain, capsys):
    root = write_miniature(tmp_path / "kitti")
    cloud = root / "training" / "velodyne" / "000002.bin"
    cloud.write_bytes(cloud.read_bytes()[:-3])
    image = root / "training" / "image_2" / "000005.png"
    image.write_bytes(image.read_bytes()[:60])
    (root / "training" / "image_2" / "000011.png").write_bytes(png(14_000, 14_000))
    arguments = ["--root", str(root), "--no-detections", "--output", str(tmp_path / "out")]
    assert visualize.main(arguments) == 2
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"000007_birds_eye.png", "000007_camera.png"}
    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error:")]
    assert len(errors) == 3
    for name, line in zip(("000002.bin", "000005.png", "000011.png"), errors, strict=True):
        assert name in line


def test_scans_and_weights_alone_are_enough(tmp_path, plain, untrained):
    simulate(1).points.tofile(tmp_path / "street.bin")
    arguments = [
        str(tmp_path / "street.bin"),
        "--weights",
        str(untrained),
        "--output",
        str(tmp_path),
    ]
    assert visualize.main(arguments) == 0
    assert (tmp_path / "street_birds_eye.png").is_file()
    assert not (tmp_path / "street_camera.png").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--root"),
        (["nothing.bin"], "nothing.bin"),
        (["--root", "{tmp}/none"], "none"),
        (["--root", "{root}", "--frames", "999999"], "999999"),
        (["--root", "{root}", "--detections", "{tmp}/none"], "none"),
        (["--root", "{root}", "--detections", "{tmp}"], "000002.json"),
        (["--root", "{root}", "--frames", "000002", "--detections", "{tmp}/bad"], "000002.json"),
        (
            ["{root}/training/velodyne/000002.bin", "--detections", "{tmp}/kitti_results"],
            "calibration",
        ),
        (["--root", "{root}", "--weights", "{tmp}/none.safetensors"], "none.safetensors"),
        (["--root", "{root}", "--no-detections", "--output", "{tmp}/file"], "file"),
    ],
)
def test_a_mistake_gets_one_line(tmp_path, plain, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    root = write_miniature(tmp_path / "kitti")
    for folder in ("bad", "kitti_results"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bad" / "000002.json").write_text('{"boxes": [[1, 2]]}')
    (tmp_path / "kitti_results" / "000002.txt").write_text("")
    (tmp_path / "file").write_text("")
    filled = [argument.format(tmp=tmp_path, root=root) for argument in arguments]
    assert visualize.main(filled) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in lines if line.startswith("error:")]
    assert len(errors) == 1 and said in errors[0]
