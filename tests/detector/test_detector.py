"""The Detector, as another program calls it."""

import warnings

import numpy as np
import pytest
import torch

from data.kitti.points import read_points
from data.scan_checks import ScanWarning
from detector import Detector
from detector.config import load_config
from detector.models.second import build_second
from detector.postprocess import build_postprocessor
from detector.weights import save_weights
from ops.voxelize import voxelize
from tests.helpers.small_detector import CONFIG, cloud


def test_the_detector_is_the_network_and_its_postprocessor(weights, trained):
    config, model = trained
    points = cloud(5000)
    with torch.inference_mode():
        predictions = model.eval()(
            torch.from_numpy(points), torch.tensor([0, 5000], dtype=torch.int32)
        )
    (expected,) = build_postprocessor(config)(predictions)
    for given in (points, torch.from_numpy(points), np.frombuffer(points, "f4").reshape(-1, 4)):
        found = Detector.from_weights(weights, "cpu")(given)
        assert len(found.boxes) == len(expected.boxes) > 0
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(found.boxes, expected.boxes, rtol=1e-3, atol=1e-3)
    boxes, scores, labels = found
    assert boxes.shape[1:] == (7,) and set(labels.tolist()) == {1}
    assert (scores.diff() <= 0).all()


def test_a_configuration_without_its_model_is_a_mistake():
    with pytest.raises(ValueError, match="a model and its configuration together"):
        Detector(config=load_config(CONFIG), device="cpu")


def test_low_precision_sees_nearly_the_same(weights):
    points = cloud(5000)
    exact = Detector.from_weights(weights, "cpu")(points)
    rough = Detector.from_weights(weights, "cpu", "bf16")(points)
    assert rough.boxes.dtype == torch.float32
    assert abs(rough.scores[0] - exact.scores[0]) < 0.05


def test_clouds_without_points_in_range_give_few_boxes_and_no_error(weights):
    detector = Detector.from_weights(weights, "cpu")
    far = np.full((10, 4), 200, np.float32)
    far[:, 3] = 0.5
    nan = np.full((10, 4), np.nan, np.float32)
    nothing = detector(np.zeros((0, 4), np.float32))
    with pytest.warns(ScanWarning, match="no point in the grid"):
        assert torch.equal(detector(far).boxes, nothing.boxes)
    with pytest.warns(ScanWarning, match="10 of 10 points are not finite"):
        assert torch.equal(detector(nan).boxes, nothing.boxes)


@pytest.mark.parametrize("scale", [1, 255, 65535])
def test_one_wild_intensity_changes_nothing_far_from_it(weights, scale):
    detector = Detector.from_weights(weights, "cpu")
    points = cloud(5000) * np.float32([1, 1, 1, scale])
    wild = points.copy()
    wild[17, 3] = 1e30
    points[17, 3] = scale
    for quiet, loud in zip(detector.detect(points)[0], detector.detect(wild)[0], strict=True):
        assert torch.equal(quiet, loud)


def test_any_array_of_points_will_do(weights):
    detector, points = Detector.from_weights(weights, "cpu"), cloud(3000)
    expected = detector(points)
    for given in (
        torch.from_numpy(points).requires_grad_(),
        points[::-1][::-1],
        np.asfortranarray(points),
    ):
        assert torch.equal(detector(given).boxes, expected.boxes)


def test_a_sparse_tensor_is_one_line(weights):
    with pytest.raises(ValueError, match="points: expected a dense tensor"):
        Detector.from_weights(weights, "cpu")(torch.from_numpy(cloud(9)).to_sparse())


@pytest.mark.parametrize("points", [cloud(3000) * np.float32(1e-40), cloud(3000) * 0])
def test_what_is_no_scan_is_warned_of(weights, points):
    detector = Detector.from_weights(weights, "cpu")
    with pytest.warns(ScanWarning, match="points: "):
        detector(points)


def test_a_warning_is_given_once(weights):
    detector = Detector.from_weights(weights, "cpu")
    points = cloud(3000) * np.float32([1, 1, 1, 255])
    with pytest.warns(ScanWarning, match="divide it by 255"):
        first = detector(points)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(detector(points).boxes, first.boxes)


def test_no_voxel_is_dropped_without_a_word(tmp_path, trained):
    config, model = trained
    points = cloud(20000)
    save_weights(tmp_path / "large", model, config)
    found, notes = Detector.from_weights(tmp_path / "large", "cpu").detect(points)
    assert notes == [] and len(found.boxes)
    small = load_config(CONFIG, ["grid.max_voxels_test=1000"])
    save_weights(tmp_path / "small", build_second(small), small)
    detector = Detector.from_weights(tmp_path / "small", "cpu")
    (note,) = detector.detect(points)[1]
    grid = small.grid.voxel_grid
    offsets = torch.tensor([0, len(points)], dtype=torch.int32)
    left_out = int(voxelize(torch.from_numpy(points), offsets, grid, 5, 1000).dropped[1])
    assert left_out > 0
    assert note.text == f"{left_out} points are over grid.max_voxels_test (1000): left out"
    with pytest.warns(ScanWarning, match="over grid.max_voxels_test"):
        detector(points)


def test_a_full_sweep_keeps_its_nearest_rings(kitti, trained, tmp_path):
    """A file ends with the nearest rings: a cap in file order would take those first."""
    config = load_config(CONFIG.with_name("second_kitti.yaml"))
    for name in ("000001", "000008"):
        points = torch.from_numpy(read_points(kitti / f"training/velodyne/{name}.bin"))
        offsets = torch.tensor([0, len(points)], dtype=torch.int32)
        cap = config.grid.max_voxels_test
        assert voxelize(points, offsets, config.grid.voxel_grid, 5, cap).dropped.tolist() == [0, 0]


@pytest.mark.parametrize(
    "points",
    [
        np.zeros((5, 3), np.float32),
        np.zeros((5, 4), np.float64),
        np.zeros(4, np.float32),
        torch.zeros(5, 4, dtype=torch.float16),
        [[0.0, 0.0, 0.0, 0.0]],
        None,
    ],
)
def test_points_of_another_shape_or_type_are_one_line(weights, points):
    with pytest.raises(ValueError, match=r"points: expected \[P, 4\] float32, got"):
        Detector.from_weights(weights, "cpu")(points)


def test_wrong_devices_and_precisions_are_one_line(weights):
    with pytest.raises(ValueError, match="abacus"):
        Detector.from_weights(weights, "abacus")
    with pytest.raises(ValueError, match="fp8"):
        Detector.from_weights(weights, "cpu", "fp8")
    for other in ("mps", "meta", "xla", "hpu"):
        with pytest.raises(ValueError, match=f"{other}.*say cpu"):
            Detector.from_weights(weights, other)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU"):
            Detector.from_weights(weights, "cuda")
