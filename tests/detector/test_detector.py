"""The Detector, as another program calls it."""

import contextlib
import copy
import os
import pickle
import signal
import warnings
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
import torch

from millisecond.data.boxes import points_in_boxes
from millisecond.data.checks.leveling import Leveling, Placement
from millisecond.data.checks.scans import ScanWarning
from millisecond.data.checks.sensor import Mounting
from millisecond.data.formats.clouds import read_points
from millisecond.data.frame import Frame
from millisecond.data.simulator import simulate
from millisecond.data.simulator.sensors import find_sensor
from millisecond.detector import Detector
from millisecond.detector.config import load_config
from millisecond.detector.inference import build_postprocessor
from millisecond.detector.models.second import build_second
from millisecond.detector.weights import find_weights, save_weights
from millisecond.ops.voxelize import voxelize
from tests.helpers.small_detector import CONFIG, cloud


def test_the_detector_is_the_network_and_its_postprocessor(weights, trained):
    config, model = trained
    points = cloud(5000)
    with torch.inference_mode():
        offsets = torch.tensor([0, 5000], dtype=torch.int32)
        predictions = model.eval()(*model.sites(torch.from_numpy(points), offsets))
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


@pytest.fixture
def any_there(tmp_path, trained, monkeypatch):
    """Weights for every LiDAR beside the shipped ones."""
    config, model = trained
    folder = tmp_path / "shipped"
    folder.mkdir()
    for name in ("second", "second_small"):
        (folder / f"{name}.safetensors").symlink_to(find_weights(name))
    levelled = replace(config, grid=replace(config.grid, level=True))
    save_weights(folder / "any.safetensors", model, levelled)
    monkeypatch.setattr("millisecond.detector.weights.FOLDER", folder)
    return levelled


def test_a_scan_unlike_kittis_brings_the_weights_for_every_lidar(any_there, capsys):
    points = simulate(7, sensor=find_sensor("vlp-16"), crop=False).points
    given = points.copy()
    detector = Detector(device="cpu")
    assert not detector(points[:0]).boxes.numel() and not detector.config.grid.level
    found = [detector(points), detector(points)]
    err = capsys.readouterr().err
    assert err.count("any is used instead") == 1 and "15 degrees" in err
    assert detector.config == any_there and np.array_equal(points, given)
    assert len(found[0].boxes) and torch.equal(found[0].boxes, found[1].boxes)
    # from another height and tilted by 3 degrees: the boxes come back in the cloud's frame
    other = Mounting(0.7, 0.0, (0.05, 0.0))
    moved = Detector(device="cpu")(other.from_network(points))
    near = torch.cdist(other.to_network(moved.boxes)[:, :3], found[0].boxes[:, :3]).amin(1)
    assert near.quantile(0.8) < 0.3
    assert not Detector.from_weights("second_small", "cpu").config.grid.level
    # a scan after scans of another recording is found as the first one
    after = Detector.from_weights("any", "cpu")
    after.detect(other.from_network(points))
    after.forget()
    assert torch.equal(after(points).boxes, found[0].boxes)


@pytest.mark.parametrize("poor", ["zeros", "not finite", "few"])
def test_a_scan_that_tells_nothing_leaves_the_choice_to_the_next(any_there, poor):
    points = simulate(7, sensor=find_sensor("vlp-16"), crop=False).points
    first = {
        "zeros": 0 * points,
        "not finite": points * np.float32(np.nan),
        "few": points[::100].copy(),
    }[poor]
    detector = Detector(device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)
        detector(first)
        assert not detector.config.grid.level and detector.remembers
        found = detector(points)
        assert detector.config == any_there
        assert torch.equal(found.boxes, Detector.from_weights("any", "cpu")(points).boxes)
    # of a batch, too, all go through the network that one of them has chosen
    made = Detector(device="cpu"), Detector.from_weights("any", "cpu")
    (one, _), (other, _) = (detector.detect_batch([first, points]) for detector in made)
    assert torch.equal(one[0].boxes, other[0].boxes)


def test_threads_that_choose_together_find_the_same(any_there, monkeypatch):
    """A scan that tells nothing is detected from its beginning to its end by one network, though
    another thread's scan chooses meanwhile."""
    points = simulate(7, sensor=find_sensor("vlp-16"), crop=False).points
    poor, detector = points[::40].copy(), Detector(device="cpu")
    places = {name: Detector.from_weights(name, "cpu") for name in ("second_small", "any")}
    other, detect = Thread(target=detector.detect, args=(points,)), detector._detect

    def slowly(batch):
        if other.ident is None:
            other.start()
            other.join(0.3)
        return detect(batch)

    monkeypatch.setattr(detector, "_detect", slowly)
    found = detector.detect(poor)[0].boxes
    other.join()
    assert detector.config == any_there
    assert torch.equal(found, places["second_small"].detect(poor)[0].boxes)
    assert not torch.equal(found, places["any"].detect(poor)[0].boxes)
    streamed = [boxes for boxes, _ in Detector(device="cpu").stream([poor, points, points])]
    assert torch.equal(streamed[0].boxes, found)
    again = Detector.from_weights("any", "cpu")
    assert torch.equal(streamed[1].boxes, again.detect(points)[0].boxes)


def test_a_ground_that_is_lost_is_told_whichever_the_scan(any_there):
    points = simulate(7, sensor=find_sensor("vlp-16"), crop=False).points
    tilted = Mounting(slopes=(0.6, 0.0)).to_network(points)
    detector = Detector.from_weights("any", "cpu")
    notes = [detector.detect(one)[1] for one in (points, tilted, points)]
    assert [[note.kind for note in one] for one in notes] == [[], ["ground"], []]
    detector = Detector.from_weights("any", "cpu")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for one in (points, tilted, tilted):
            detector(one)
    assert ["ground cannot be told" in str(one.message) for one in told] == [True]


def test_what_warms_up_is_not_a_scan(any_there, capsys):
    warm = Detector(device="cpu")
    warm.warm_up()
    warm(simulate(7).points)  # like KITTI's
    assert "is used instead" not in capsys.readouterr().err and not warm.config.grid.level
    points = simulate(7, sensor=find_sensor("vlp-16"), crop=False).points
    warm, cold = (Detector.from_weights("any", "cpu") for _ in range(2))
    warm.warm_up()
    assert torch.equal(warm(points).boxes, cold(points).boxes) and len(warm(points).boxes)


def test_intensities_of_any_scale_are_nothing_to_warn_of(any_there, capsys):
    scan = simulate(7, sensor=find_sensor("vlp-16"), crop=False).points
    for factor in (0, 255):
        points = scan * np.float32((1, 1, 1, factor))
        notes = Detector.from_weights("any", "cpu").examine(points)
        assert not [note for note in notes if "intensit" in note.text]
        assert [
            note
            for note in Detector.from_weights("second", "cpu").examine(points)
            if "intensit" in note.text
        ]


def test_a_scan_like_kittis_keeps_the_bits(any_there, capsys):
    points = simulate(7).points
    plain, chosen = Detector.from_weights("second_small", "cpu"), Detector(device="cpu")
    assert all(map(torch.equal, plain(points), chosen(points)))
    assert "any is used" not in capsys.readouterr().err


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
        assert detector.examine(given) == detector.examine(points)


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


@pytest.mark.parametrize(("shift", "turn"), [(1.25, 0), (0, 90), (-0.5, -90), (1.25, 180), (0, 30)])
def test_boxes_come_back_in_the_frame_of_the_points(weights, shift, turn):
    """The sensor stands otherwise than in the training: the same boxes hold the same points."""
    points = cloud(5000)
    angle = np.radians(turn)
    given = points.copy()
    given[:, 0] = np.cos(angle) * points[:, 0] + np.sin(angle) * points[:, 1]
    given[:, 1] = np.cos(angle) * points[:, 1] - np.sin(angle) * points[:, 0]
    given[:, 2] -= shift
    kept = given.copy()
    plain = Detector.from_weights(weights, "cpu")
    moved = Detector.from_weights(weights, "cpu", mounting=Mounting(shift, turn))
    expected, found = plain(points), moved(given)
    assert np.array_equal(given, kept)
    if turn % 90 == 0:
        assert len(found.boxes) == len(expected.boxes) > 0
        torch.testing.assert_close(found.scores, expected.scores, rtol=1e-3, atol=1e-4)
        inside = points_in_boxes(points, expected.boxes.numpy()).sum(axis=1)
        assert inside.any()
        same = points_in_boxes(given, found.boxes.numpy()).sum(axis=1)
        assert (np.abs(inside - same) <= 1).mean() > 0.95  # points on faces, equal scores
        turned = (expected.boxes[:, 6] - found.boxes[:, 6] - angle + 0.1) % (2 * np.pi) - 0.1
        assert (turned.abs() < 1e-3).float().mean() > 0.95
        assert ((found.boxes[:, 6] >= np.pi / 4) & (found.boxes[:, 6] < 9 / 4 * np.pi)).all()
    ((batched, _), _) = moved.detect_batch([given, given])
    assert torch.equal(batched.boxes, found.boxes)
    ((torched, _),) = moved.stream([torch.from_numpy(given)])
    assert torch.equal(torched.boxes, found.boxes)
    assert [note.kind for note in moved.examine(given)] == [n.kind for n in plain.examine(points)]
    x0, y0, z0, x1, y1, z1 = moved.range
    assert (given[:, :3] >= np.float32([x0, y0, z0]) - 2).all()
    assert (given[:, :3] <= np.float32([x1, y1, z1]) + 2).all()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("level", [False, True])
def test_moved_clouds_are_found_as_if_they_came_moved(trained, device, level):
    config, model = trained
    config, mounting = replace(config, grid=replace(config.grid, level=level)), Mounting(0.4, 30)
    detector, leveling = Detector(model, config, device, mounting=mounting), Leveling(mounting)
    clouds = [mounting.from_network(cloud(4000 - seed, seed)) for seed in range(3)]
    clouds = [points * np.float32([1, 1, 1, 99]) for points in clouds] if level else clouds
    tensors = list(map(torch.from_numpy, clouds))
    ways = [leveling(points) if level else Placement(mounting) for points in tensors]
    moved = [way(points) for way, points in zip(ways, tensors, strict=True)]
    together = [moved] if device == "cuda" else [[points] for points in moved]
    wanted = [found for batch in together for found in detector._inference(batch).detections]
    for way, (found, _), want in zip(ways, detector.detect_batch(clouds), wanted, strict=True):
        assert len(found.boxes) and torch.equal(found.scores, want.scores)
        assert torch.equal(found.boxes, way.mounting.boxes_from_network(want.boxes))


@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("cpu", "fp32"),
        pytest.param("cuda", "fp32", marks=pytest.mark.gpu),
        pytest.param("cuda", "fp16", marks=pytest.mark.gpu),
    ],
)
def test_the_map_of_scores_peaks_where_the_boxes_are(device, precision):
    """Of a street, and of the same seen by a sensor that is turned and lower."""
    points, common = simulate(6).points, ("second_small", device, precision)
    detector = Detector.from_weights(*common)
    boxes, scores, _ = detector(points)
    scores_at = detector.score_map(points)
    assert scores_at.scores.max() == pytest.approx(scores.max().item(), abs=2e-3)
    sure = boxes[scores > 0.9].numpy()[:, :2]
    assert len(sure) >= 5
    around = np.stack(np.meshgrid(*[np.linspace(-1, 1, 11)] * 2), axis=-1)  # cells are 0.4 m
    near = (sure[:, None] + around.reshape(1, -1, 2)).reshape(-1, 2)
    assert (scores_at(near).reshape(len(sure), -1).max(axis=1) > 0.9).all()
    low, high = np.array(scores_at.range).reshape(2, 3)[:, :2]
    places = np.random.default_rng(0).uniform(low, high, (20_000, 2))
    assert np.mean(scores_at(places) > 0.5) < 0.05  # nearly all of the ground is empty
    assert (scores_at(np.array([[-1.0, 0], [300, 0], [10, 99], high])) == 0).all()
    mounting = Mounting(0.5, -90)
    turned = mounting.from_network(points)
    detector = Detector.from_weights(*common, mounting=mounting)
    detector(turned)
    there = mounting.from_network(np.pad(places, ((0, 0), (0, 1))))[:, :2]
    np.testing.assert_allclose(detector.score_map(turned)(there), scores_at(places), atol=0.02)


def test_a_mounting_is_finite():
    for wrong in ({"shift_z": np.nan}, {"turn": np.inf}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Mounting(**wrong)


def test_masked_points_are_refused(weights):
    """Torch would take the numbers under the mask for measured ones."""
    detector = Detector.from_weights(weights, "cpu")
    points = np.ma.masked_less(cloud(300), -1)
    for call in (detector, detector.detect, detector.examine, lambda p: detector.detect_batch([p])):
        with pytest.raises(ValueError, match=r"\Apoints: a masked array, [^\n]*\.filled\("):
            call(points)
    with pytest.raises(ValueError, match="points: a masked array"):
        Frame("000001", points)
    with pytest.raises(ValueError, match="boxes: a masked array"):
        Frame("000001", points.data, np.ma.zeros((0, 7)))


def test_wrong_devices_and_precisions_are_one_line(weights):
    with pytest.raises(ValueError, match="abacus"):
        Detector.from_weights(weights, "abacus")
    with pytest.raises(ValueError, match="fp8"):
        Detector.from_weights(weights, "cpu", "fp8")
    for other in ("mps", "meta", "xla", "hpu"):
        with pytest.raises(ValueError, match=f"{other}.*say cpu"):
            Detector.from_weights(weights, other)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"device 'cuda' is not there: .*; or say cpu$"):
            Detector.from_weights(weights, "cuda")


def test_a_gpu_that_is_not_visible_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")  # a process sees one slice
    with pytest.raises(ValueError, match=r"'cuda:1' .* cuda:0 \(CUDA_VISIBLE_DEVICES=MIG-1\)"):
        Detector(device="cuda:1")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"precision": "int8"}, "precision 'int8' is none of fp32, bf16, fp16"),
        ({"precision": ["fp32"]}, "precision .* is none of"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not there: "),
        ({"device": "meta"}, "say cpu"),
        ({"device": 1.5}, "device 1.5 is unknown"),
    ],
)
def test_wrong_options_of_a_detector_are_one_line(trained, options, fault):
    config, model = trained
    for given in ((), (model, config)):
        with pytest.raises(ValueError, match=fault) as error:
            Detector(*given, **{"device": "cpu", **options})
        assert "\n" not in str(error.value)


def test_other_objects_in_the_place_of_model_and_points_are_one_line(trained):
    config, model = trained
    with pytest.raises(TypeError, match="takes a Second and its Config, got Config and Second"):
        Detector(config, model, "cpu")
    with pytest.raises(ValueError, match="points: on meta, which is neither a CPU nor a GPU"):
        Detector(model, config, "cpu")(torch.zeros(5, 4, device="meta"))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_a_detector_is_neither_copied_nor_pickled(weights, copied):
    detector = Detector.from_weights(weights, "cpu")
    with pytest.raises(TypeError, match="cannot be pickled or copied: make one by"):
        copied(detector)


@contextlib.contextmanager
def setting(change, value, back):
    change(value)
    try:
        yield
    finally:
        change(back)


AROUND = {  # what a program may set: how to enter it, on this kind of device
    "autocast bf16": lambda kind: torch.autocast(kind, torch.bfloat16),
    "autocast fp16": lambda kind: torch.autocast(kind, torch.float16),
    "inference mode": lambda kind: torch.inference_mode(),
    "no grad": lambda kind: torch.no_grad(),
    "grad": lambda kind: torch.enable_grad(),
    "default device": lambda kind: torch.device("meta"),
    "default type": lambda kind: setting(torch.set_default_dtype, torch.float16, torch.float32),
    "float64": lambda kind: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "one thread": lambda kind: setting(torch.set_num_threads, 1, torch.get_num_threads()),
    "three threads": lambda kind: setting(torch.set_num_threads, 3, torch.get_num_threads()),
    "deterministic": lambda kind: setting(torch.use_deterministic_algorithms, True, False),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_program_sets_does_not_change_the_results(weights, precision, device):
    points = cloud(1000)
    before = Detector.from_weights(weights, device, precision)
    expected = before(points)
    assert len(expected.scores)
    names = AROUND if precision == "fp32" else ("autocast fp16", "float64", "three threads")
    for name in names:
        if (name, device) == ("deterministic", "cuda"):
            continue  # torch then refuses cuBLAS
        with AROUND[name](device):
            random = torch.random.get_rng_state()
            made_inside = Detector.from_weights(weights, device, precision)
            assert torch.equal(random, torch.random.get_rng_state())
            found = [before(points), made_inside(points)]
        if name == "inference mode":
            found.append(made_inside(points))
        for result in found:
            for values, wanted in zip(result, expected, strict=True):
                assert values.dtype == wanted.dtype, name
                assert torch.equal(values, wanted), name


def test_a_detection_leaves_what_a_training_has_set(weights):
    detector, points = Detector.from_weights(weights, "cpu"), cloud(3000)
    layer, inputs = torch.nn.Linear(8, 8), torch.randn(4, 8)
    gradients = []
    for detects in (False, True):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16), setting(torch.set_default_dtype, *FLOATS):
            result = layer(inputs)
            if detects:
                detector(points)
            assert torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
            assert torch.get_default_dtype() == FLOATS[0]
            result = layer(result)
            assert result.dtype == torch.bfloat16
            result.float().square().sum().backward()
        gradients.append(layer.weight.grad.clone())
    assert torch.equal(*gradients)


FLOATS = torch.float64, torch.float32


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_detects(weights):
    points = cloud(3000)
    with setting(torch.set_num_threads, 2, torch.get_num_threads()):
        detector = Detector.from_weights(weights, "cpu")
        expected = detector(points)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends it where it waits for threads that are not there
            same = False
            try:
                found = [detector(points), Detector.from_weights(weights, "cpu")(points)]
                same = all(torch.equal(one.boxes, expected.boxes) for one in found)
            finally:
                os._exit(0 if same else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.get_num_threads() == 2


def test_a_forked_process_of_a_detector_on_a_gpu_is_one_line(weights, monkeypatch):
    detector = Detector.from_weights(weights, "cpu")
    detector.device = torch.device("cuda")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="start processes by spawn and make a Detector in each"):
        detector(cloud(3000))
