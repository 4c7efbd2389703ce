"""millisecond suggest: which scans it orders, and what it writes."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from millisecond.data.datasets import open_dataset
from millisecond.detector.draw.style import CLASS_COLOURS
from millisecond.detector.weights import save_weights
from millisecond.tools.detect import main as detect
from millisecond.tools.suggest import main
from tests.helpers.kitti_miniature import IDS, png, write_miniature
from tests.helpers.small_detector import build_small_network


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Of a network whose scores depend on the points."""
    config, model = build_small_network()
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.fill_(0.15)
    torch.nn.init.normal_(model.head.classes.weight, std=0.03)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    save_weights(path, model, config)
    return path


@pytest.fixture
def folder(tmp_path):
    """Five scans; the last has labels."""
    root, rng = tmp_path / "mine", np.random.default_rng(0)
    for name in ("points", "labels"):
        (root / name).mkdir(parents=True)
    for number in range(5):
        points = rng.uniform((0, -18, -2, 0), (40, 18, 0, 1), (50 + 800 * number, 4))
        np.save(root / "points" / f"{number}.npy", points.astype(np.float32))
    (root / "labels" / "4.txt").write_text("")
    return root


def test_orders_what_has_no_labels(folder, weights, tmp_path, capsys):
    lists, figures = tmp_path / "lists" / "next.txt", tmp_path / "all.json"
    options = [str(weights), "--root", str(folder), "--device", "cpu", "--count", "2"]
    assert main([*options, "--output", str(lists), "--json", str(figures), "--by", "entropy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = json.loads(figures.read_text())["most_first"]
    assert {row["frame"] for row in rows} == {"0", "1", "2", "3"}
    entropies = [row["entropy"] for row in rows]
    assert entropies == sorted(entropies, reverse=True) and entropies[0] > entropies[-1]
    best = [row["frame"] for row in rows[:2]]
    assert lists.read_text().split() == best == [line.split()[0] for line in lines[1:3]]
    assert main([*options, "--output", str(lists)]) == 2
    assert "is there already" in capsys.readouterr().err
    again = [*options[:-2], "--split", str(lists), "--count", "9", "--json", str(figures)]
    assert main(again) == 0
    assert {row["frame"] for row in json.loads(figures.read_text())["most_first"]} == set(best)


def test_a_picture_shows_the_boxes_in_doubt(folder, weights, tmp_path, capsys):
    picture, figures = tmp_path / "why.png", tmp_path / "all.json"
    options = [str(weights), "--root", str(folder), "--device", "cpu", "--count", "3"]
    assert main([*options, "--picture", str(picture), "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    rows = json.loads(figures.read_text())["most_first"]
    assert all(row["why"] and row["why"] in out for row in rows[:3]) and "3 scans drawn" in out
    with Image.open(picture) as image:
        pixels = np.asarray(image).astype(int)
    cells = np.split(pixels[:, : pixels.shape[1] // 4 * 4], 4, axis=1)
    colours = [CLASS_COLOURS[name] for name in ("Car", "Pedestrian", "Cyclist")]
    drawn = [sum((np.abs(cell - c).max(2) <= 2).sum() for c in colours) for cell in cells]
    assert min(drawn[:3]) > 30 and drawn[3] == 0
    picture.write_bytes(png(4, 4))  # somebody else's
    assert main([*options, "--picture", str(picture)]) == 2
    assert picture.read_bytes() == png(4, 4)
    with pytest.raises(SystemExit):
        main(["--detections", "found", "--picture", str(picture)])


@pytest.mark.parametrize("missing", [2, 4])
@pytest.mark.parametrize("folder_of_labels", [True, False])
def test_orders_what_has_no_labels_in_kittis_layout(
    tmp_path, weights, capsys, missing, folder_of_labels
):
    """Half of the frames labelled, none, or no folder for labels."""
    root, figures = write_miniature(tmp_path / "kitti"), tmp_path / "all.json"
    for name in IDS[:missing]:
        (root / f"training/label_2/{name}.txt").unlink()
    if not folder_of_labels:
        shutil.rmtree(root / "training/label_2")
        missing = 4
    assert main([str(weights), "--root", str(root), "--json", str(figures), "--device", "cpu"]) == 0
    rows = json.loads(figures.read_text())["most_first"]
    assert {row["frame"] for row in rows} == set(IDS[:missing])
    frames = open_dataset(root, "all", labels=False)
    labelled = [name for name, frame in zip(IDS, frames, strict=True) if len(frame.boxes)]
    assert labelled == list(IDS[missing:])
    if folder_of_labels:
        assert [len(frames.labels(i)) for i in range(4)] == [0] * missing + [3] * (4 - missing)
        with pytest.raises(FileNotFoundError, match=r"000002\.txt"):
            open_dataset(root, "all")


@pytest.mark.parametrize("kind", ["folder", "table", "shards"])
def test_results_tell_the_entropy_that_the_network_has(
    folder, weights, tmp_path, kind, capsys, monkeypatch
):
    common, options = ["--device", "cpu"], ["--root", str(folder), "--count", "2"]
    if kind != "folder":
        pytest.importorskip("pyarrow")
    output = tmp_path / ("results" if kind == "folder" else "all.parquet")
    for shard in (["--shard", "1/2"], ["--shard", "2/2"]) if kind == "shards" else ([],):
        detection = [str(folder / "points"), "--weights", str(weights), "--output", str(output)]
        assert detect([*detection, *common, *shard]) == 0
    figures = [tmp_path / f"{number}.json" for number in range(3)]
    ours = [str(weights), *common, *options, "--by", "entropy", "--json", str(figures[0])]
    assert main(ours) == 0
    monkeypatch.setattr(np, "load", None)  # no scan is read
    capsys.readouterr()
    assert main(["--detections", str(output), *options, "--json", str(figures[1])]) == 0
    assert main(["--detections", str(output), "--json", str(figures[2])]) == 0
    network, results, every = (json.loads(path.read_text())["most_first"] for path in figures)
    assert [row["frame"] for row in results] == [row["frame"] for row in network]
    for row, wanted in zip(results, network, strict=True):
        assert row["entropy"] == pytest.approx(wanted["entropy"], abs=1e-5)
        assert row["boxes"] == wanted["boxes"] and row["disagreement"] is None
    assert {row["frame"] for row in every} == {"0", "1", "2", "3", "4"}
    assert capsys.readouterr().out.splitlines()[1].split()[3] == "-"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give WEIGHTS and --root, or --detections"),
        (["any"], "give WEIGHTS and --root, or --detections"),
        (["any", "--root", "mine", "--detections", "found"], "give WEIGHTS and --root, or"),
        (["--detections", "found", "--by", "both"], "--by both compares with the scan's mirror"),
        (["--detections", "found", "--turn", "90"], "go with WEIGHTS"),
        (["--detections", "found", "--split", "val"], "--split goes with --root"),
    ],
)
def test_arguments_that_do_not_go_together(arguments, told, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert told in capsys.readouterr().err


def test_a_turned_sensor_suggests_the_same(folder, weights, tmp_path):
    figures = [tmp_path / "a.json", tmp_path / "b.json"]
    options = [str(weights), "--root", str(folder), "--device", "cpu"]
    assert main([*options, "--json", str(figures[0])]) == 0
    for path in (folder / "points").iterdir():
        points = np.load(path)
        np.save(
            path, points[:, [1, 0, 2, 3]] * np.float32([1, -1, 1, 1]) - np.float32([0, 0, 1, 0])
        )
    assert main([*options, "--json", str(figures[1]), "--turn", "90", "--shift-z", "1"]) == 0
    one, other = (json.loads(path.read_text())["most_first"] for path in figures)
    assert [row["frame"] for row in one] == [row["frame"] for row in other]
    np.testing.assert_allclose([row["value"] for row in one], [row["value"] for row in other], 0.05)


def test_mistakes_are_one_line(folder, weights, capsys):
    for number in range(4):
        (folder / "labels" / f"{number}.txt").write_text("")
    first = folder / "first.txt"
    first.write_text("0\n")
    for arguments, told in [
        ([str(weights), "--root", str(folder)], "all 5 scans have labels; name a split"),
        ([str(weights), "--root", str(folder), "--split", "odd"], "odd.txt"),
        (["no.safetensors", "--root", str(folder)], "no.safetensors"),
        (["--detections", str(folder)], "mine: no results of millisecond detect"),
        (["--detections", str(folder / "no.parquet")], "no.parquet: no such file"),
        (["--detections", "x", "--root", str(folder), "--split", "odd"], "odd.txt"),
        (["--detections", "x", "--root", str(folder), "--split", str(first)], "0.json: no such"),
    ]:
        device = [] if "--detections" in arguments else ["--device", "cpu"]
        assert main([*arguments, *device]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith("error: ") and told in line
