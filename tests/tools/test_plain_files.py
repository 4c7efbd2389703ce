"""The programs on plain files with six columns; the network takes five: prepare, train,
detect and visualize."""

import json
from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest
import torch

from millisecond.data.datasets import open_dataset
from millisecond.data.folder.labels import read_json_labels, read_text_labels
from millisecond.data.formats.points import PointColumns
from millisecond.data.packed import Pack
from millisecond.detector.config import load_config
from millisecond.detector.detector import Detector
from millisecond.detector.models.second import build_second
from millisecond.tools.detect import main as detect
from millisecond.tools.prepare import main as prepare
from millisecond.tools.train import main as train
from millisecond.tools.visualize import main as visualize
from millisecond.tools.visualize import parse
from millisecond.tools.visualizing import find_source
from tests.helpers.plain_files import spoil_clouds, write_plain_files

COLUMNS = PointColumns(
    ("x", "y", "z", "intensity", "ring", "time"), ("x", "y", "z", "intensity", "time"), 255.0
)


def six_columns(points):
    """Intensities to 255, a ring and a time."""
    order = np.arange(len(points))
    return np.column_stack([points[:, :3], points[:, 3] * 255, order % 32, order / len(points)])


def say(main, *arguments) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data set, its configuration, and a training of four steps."""
    folder = tmp_path_factory.mktemp("plain")
    root = write_plain_files(folder / "mine", frames=6)
    spoil_clouds(root, six_columns)
    config = load_config("configs/second_small.yaml")
    kinds = (
        replace(config.classes[0], name="Forklift", size=(2.6, 1.1, 2.0), bottom=-1.1),
        replace(config.classes[0], name="Person", size=(0.7, 0.6, 1.7), bottom=-1.1, matched=0.5),
    )
    grid = replace(
        config.grid,
        range=(-19.2, -19.2, -2, 19.2, 19.2, 2),
        voxel_size=(0.2, 0.2, 0.16),
        crop_to_image=False,
    )
    augment = replace(config.augment, sample={"Forklift": 5})
    epochs = replace(config.train, epochs=2, validate_every=2, lr=0.003)
    config = replace(
        config,
        classes=kinds,
        grid=grid,
        augment=augment,
        train=epochs,
        points=COLUMNS,
        postprocess=replace(config.postprocess, score=0.001),
    )
    path = folder / "mine.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    assert say(prepare, "--config", path, "--root", root) == 0
    assert say(train, path, "--root", root, "--output", folder / "out", "--device", "cpu") == 0
    return root, path, folder / "out/weights.safetensors"


def test_packs_have_the_features(trained):
    root, path, _ = trained
    config = load_config(path)
    assert config.points == COLUMNS
    whole = open_dataset(root, "train", packed=False, points=COLUMNS)
    packed = open_dataset(root, "train", points=COLUMNS)
    assert packed.packed_clouds is not None and not packed.packed_clouds.stale
    for one, other in zip(whole, packed, strict=True):
        assert one.points.shape[1] == 5 and one.points[:, 3].max() <= 1
        np.testing.assert_array_equal(one.points, other.points)
    assert Pack(packed.pack_path("database")).width == 5
    others = open_dataset(root, "train", points=PointColumns(COLUMNS.columns))
    assert others.packed_clouds.stale == list(others.frame_ids), "packed with other features"


def test_training_validates_classes_that_kitti_does_not_know(trained):
    log = (trained[2].parent / "log.jsonl").read_text()
    validated = [json.loads(line) for line in log.splitlines() if "validation/total" in line]
    assert "AP Forklift/3d/moderate" in validated[-1] and "AP Person/3d/moderate" in validated[-1]


def test_detections_become_labels(trained, tmp_path):
    """Written as labels, they are read back as the labels of a data set; what somebody may have
    corrected is never written over."""
    root, _, weights = trained
    common = ["--weights", weights, "--device", "cpu", "--score", 0.002, root / "points"]
    assert say(detect, *common, "--output", tmp_path / "json") == 0
    for form, read in (("labelcloud", read_json_labels), ("text", read_text_labels)):
        output = tmp_path / form
        assert say(detect, *common, "--output", output, "--format", form) == 0
        (path, *_) = sorted(output.glob("0*"))
        found = json.loads((tmp_path / "json/000000.json").read_text())
        boxes, labels = np.array(found["boxes"]).reshape(-1, 7), read(path)
        assert labels.names == tuple(found["names"])
        np.testing.assert_allclose(labels.boxes[:, :6], boxes[:, :6], atol=2e-3)
        assert np.abs(np.sin(labels.boxes[:, 6] - boxes[:, 6])).max(initial=0) < 1e-3
        before = path.read_bytes()
        assert say(detect, *common, "--output", output, "--format", form) == 2
        assert path.read_bytes() == before


def test_pictures_of_plain_files(trained, tmp_path, plain):
    root, path, weights = trained
    for source in (["--weights", weights], ["--config", path, "--no-detections"]):
        where = ["--root", root, "--frames", "000005", "--output", tmp_path / source[0][2:]]
        assert say(visualize, *where, *source) == 0
        assert (tmp_path / source[0][2:] / "000005_birds_eye.png").is_file()


def test_a_class_that_is_never_found_is_judged_too(trained, tmp_path):
    """Also where some labels cannot be read: those are told when their frame is judged."""
    root, results = tmp_path / "data", tmp_path / "results"
    copytree(trained[0], root)
    frames = list(open_dataset(root, "all", points=COLUMNS))
    nothing = ["--score", 1, root / "points"]
    assert say(detect, "--weights", trained[2], "--output", results, *nothing) == 0
    options = parse(["--root", str(root), "--detections", str(results)])
    assert set(find_source(options).classes) == {name for frame in frames for name in frame.names}
    (root / "labels" / f"{frames[0].frame_id}.txt").write_text("1 2 3\n")
    readable = {name for frame in frames[1:] for name in frame.names}
    assert set(find_source(options).classes) == readable


def network_and_points(trained):
    config = load_config(trained[1])
    torch.manual_seed(0)
    model = build_second(config).eval()
    torch.nn.init.normal_(model.head.classes.weight, std=0.3)
    points = torch.from_numpy(open_dataset(trained[0], "all", points=COLUMNS)[0].points)
    return config, model, points, torch.tensor([0, len(points)], dtype=torch.int32)


def assert_near(found, expected, tolerance):
    difference = (found.cpu().float() - expected).abs().max()
    assert difference <= tolerance * expected.abs().max()


@torch.inference_mode()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_folded_network_of_five_features(trained, dtype, tolerance):
    """The CPU kernels against the layers as they were trained."""
    _, model, points, offsets = network_and_points(trained)
    expected = model(*model.sites(points, offsets)).class_logits
    folded = model.fold().to(dtype)
    assert_near(folded(*folded.sites(points, offsets)).class_logits, expected, tolerance)


@pytest.mark.gpu
@torch.inference_mode()
def test_network_of_five_features_on_a_gpu(trained):
    """The general kernels, and from points to boxes in half precision."""
    config, model, points, offsets = network_and_points(trained)
    expected = model(*model.sites(points, offsets)).class_logits
    detector = Detector(model, config, torch.device("cuda"), "fp16")
    model.cuda()
    found = model(*model.sites(points.cuda(), offsets.cuda()))
    assert_near(found.class_logits, expected, 1e-3)
    boxes, scores, _ = detector(points)
    assert len(boxes) and boxes.isfinite().all() and scores.isfinite().all()


def test_points_of_other_columns_are_refused(trained, tmp_path, capsys):
    config, model, points, _ = network_and_points(trained)
    detector = Detector(model, config, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"expected \[P, 5\] float32 \(x, y, z, intensity, time\)"):
        detector(points[:, :4])
    other = tmp_path / "other.yaml"
    other.write_text(replace(config, points=PointColumns()).to_yaml(), encoding="utf-8")
    where = ["--config", other, trained[0] / "points", "--output", tmp_path / "out"]
    assert say(detect, "--weights", trained[2], "--device", "cpu", *where) == 2
    assert "the network takes x, y, z, intensity, time" in capsys.readouterr().err
