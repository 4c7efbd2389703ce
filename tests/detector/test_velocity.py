"""Networks with velocities: loss, boxes, and all others as they were."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from millisecond.data.checks.sensor import Mounting
from millisecond.data.frame import Frame, collate
from millisecond.detector import Detector
from millisecond.detector.config import LossConfig, load_config
from millisecond.detector.inference import build_postprocessor
from millisecond.detector.models.second import MovingPredictions, Predictions, build_second
from millisecond.detector.training.build import start_from
from millisecond.detector.training.losses import Criterion, loss_names
from millisecond.detector.weights import load_weights, save_weights
from millisecond.ops import CellValues, bev_spread, select_boxes, select_boxes_of_cells
from tests.helpers.criterion import WEIGHTS, build, random_predictions, scenes
from tests.helpers.small_detector import CONFIG, build_small_network, cloud


def moving(predictions: Predictions, seed: int = 0) -> MovingPredictions:
    generator = torch.Generator().manual_seed(seed)
    shape = (*predictions.class_logits.shape[:2], 2)
    velocities = 5 * torch.randn(shape, generator=generator)
    return MovingPredictions(*predictions, velocities.to(predictions[0].dtype))


def truth(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes [3, 12, 9], a third without a known velocity, and labels."""
    boxes, labels = scenes(3, 12, seed)
    velocities = 4 * torch.randn(3, 12, 2, generator=torch.Generator().manual_seed(seed))
    velocities[:, ::3] = torch.nan
    return torch.cat((boxes, velocities), dim=2), labels


def test_the_loss_is_smooth_l1_of_the_matched_velocities_anchor_by_anchor():
    criterion, (boxes, labels) = build(), truth()
    criterion.loss = replace(criterion.loss, velocity=0.3)
    labels[2], labels[2, 0] = 0, 2  # one thin box, with which one anchor is matched
    boxes[2, 0] = torch.tensor([6.1, 1.0, 0.0, 0.8, 0.1, 1.7, 0.0, 3.0, 4.0])
    predictions = moving(random_predictions(criterion, 3, torch.float32))
    losses = criterion(predictions, boxes, labels)
    match = criterion.assigner.match(boxes, labels)
    wanted, known = torch.zeros(3), 0
    for b, row in (match.rows >= 0).nonzero().tolist():
        own = boxes[b, match.rows[b, row], 7:]
        if own.isnan().any():
            continue
        known += 1
        away = (predictions.velocities[b, row] - own).abs()
        each = torch.where(away < 1 / 9, 4.5 * away**2, away - 1 / 18).sum()
        wanted[row // 2 % 3] += 0.3 * each / match.positives[b] / 3  # two rotations, three classes
    assert 0 < known < match.positives.sum() and match.positives[2] == 1
    torch.testing.assert_close(losses.by_class[3], wanted, rtol=1e-4, atol=1e-6)
    without = criterion(Predictions(*predictions[:3]), boxes[..., :7], labels)
    torch.testing.assert_close(losses.total, without.total + wanted.sum())
    assert torch.equal(losses.by_class[:3], without.by_class)
    names = loss_names(("Car", "Pedestrian", "Cyclist"), velocity=True)
    named = dict(zip(names, losses.flat().tolist(), strict=True))
    assert named["velocity of Cyclist"] == pytest.approx(wanted[2].item(), rel=1e-4)


@pytest.mark.parametrize("quality", [False, True])
def test_gradients_are_those_of_autograd_and_reach_known_velocities_alone(quality):
    plain, (boxes, labels) = build(), truth(1)
    criterion = Criterion(plain.assigner, LossConfig(*WEIGHTS, quality=quality, velocity=0.7))
    leaves = moving(random_predictions(criterion, 3, torch.float32))
    leaves = MovingPredictions(*(p.requires_grad_() for p in leaves))
    match, of_total = criterion.assigner.match(boxes, labels), torch.tensor(8.0)
    criterion.losses(leaves, boxes, match).total.backward(of_total)
    found = criterion.gradients(leaves, boxes, match, of_total)
    for leaf, gradient in zip(leaves, found, strict=True):
        torch.testing.assert_close(gradient, leaf.grad)
    own = boxes.gather(1, match.rows.clamp(min=0).long()[..., None].expand(-1, -1, 9))[..., 7:]
    reached = (match.rows >= 0) & ~own.isnan().any(-1)
    assert found.velocities[reached].abs().sum(1).min() > 0
    assert not found.velocities[~reached].any()


def test_exact_velocities_cost_nothing():
    criterion, (boxes, labels) = build(), truth(2)
    predictions = moving(random_predictions(criterion, 3, torch.float32))
    match = criterion.assigner.match(boxes, labels)
    rows = match.rows.clamp(min=0).long()[..., None].expand(-1, -1, 2)
    exact = predictions._replace(velocities=boxes[..., 7:].gather(1, rows).nan_to_num(nan=1e3))
    assert not criterion(exact, boxes, labels).by_class[3].any()
    unknown = torch.cat((boxes[..., :7], torch.full_like(boxes[..., 7:], torch.nan)), dim=2)
    losses = criterion(predictions, unknown, labels)
    assert losses.total.isfinite() and not losses.by_class[3].any()


def test_streets_without_a_box_have_no_velocity_to_learn():
    criterion, (boxes, labels) = build(), truth(3)
    leaves = moving(random_predictions(criterion, 3, torch.float32))
    none, empty = criterion.assigner.match(boxes[:, :0], labels[:, :0]), boxes[:, :0]
    losses = criterion(leaves, empty, labels[:, :0])
    assert losses.total.isfinite() and not losses.by_class[3].any()
    assert not criterion.gradients(leaves, empty, none, torch.tensor(1.0)).velocities.any()


def test_a_network_without_is_as_it_was():
    with_it = build_small_network(velocity=True)[1].state_dict()
    without = build_small_network()[1].state_dict()
    more = {"head.velocities.weight", "head.velocities.bias"}
    assert with_it.keys() - without.keys() == more and without.keys() <= with_it.keys()
    for name in without:
        if not name.startswith("head."):  # drawn before the heads
            assert torch.equal(with_it[name], without[name])


@pytest.mark.parametrize("seed", range(6))
def test_boxes_keep_the_velocities_of_their_anchors(seed):
    criterion = build(1 + seed % 3)
    predictions = moving(random_predictions(criterion, 3, torch.float32), seed)
    predictions.velocities[:, ::11] = torch.nan  # counts as 0
    anchors = criterion.assigner.anchors.reshape(-1, 7)
    limits = 0.6, 200, 0.1, 40, bool(seed % 2)
    without = select_boxes(*predictions[:3], anchors, *limits)
    found = select_boxes(*predictions[:3], anchors, *limits, predictions.velocities)
    assert torch.equal(found.boxes[..., :7], without.boxes)
    assert all(torch.equal(a, b) for a, b in zip(found[1:], without[1:], strict=True))
    scores = predictions.class_logits.sigmoid().max(-1).values
    for b, count in enumerate(found.count.tolist()):
        assert count > 5 and not found.boxes[b, count:].any()
        for box, score in zip(found.boxes[b, :count], found.scores[b], strict=False):
            (own,) = (scores[b] == score).nonzero()  # one anchor has this score
            wanted = predictions.velocities[b, own[0]].nan_to_num()
            assert torch.equal(box[7:], wanted)


def test_boxes_of_cells_have_them_too():
    torch.manual_seed(1)
    values = [torch.randn(20 * factor**2, 26) for factor in (1, 2)]
    rows = [torch.randint(20, (2, 6 // f, 4 // f), dtype=torch.int32) for f in (1, 2)]
    cells, anchors = CellValues(values, rows, [1, 2], [4, 14, 4, 4]), torch.rand(48, 7) * 9
    *parts, velocities = (part.view(2, 48, -1) for part in bev_spread(*cells))
    wanted = select_boxes(*parts, anchors, 0.6, 40, 0.3, 9, velocities=velocities)
    found = select_boxes_of_cells(cells, anchors, 0.6, 40, 0.3, 9)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert found.boxes.shape == (2, 9, 9) and found.boxes[..., 7:].any(-1).sum() > 3
    with pytest.raises(ValueError, match=r"velocities: expected \[2, 48, 2\] of floats, got"):
        select_boxes(*parts, anchors, 0.6, 40, 0.3, 9, velocities=torch.zeros(2, 48, 3))


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("velocity") / "moving.safetensors"
    config, model = build_small_network(velocity=True)
    save_weights(path, model, config)
    return path


def test_a_detector_gives_boxes_of_nine_that_turn_with_the_mounting(weights):
    points = cloud(3_000)
    boxes, scores, labels = Detector.from_weights(weights, "cpu")(points)
    assert boxes.shape == (len(scores), 9) and len(labels) == len(boxes) > 5
    turned = points.copy()
    turned[:, 0], turned[:, 1] = points[:, 1], -points[:, 0]  # a sensor turned by 90 degrees
    mounted = Detector.from_weights(weights, "cpu", mounting=Mounting(turn=90))
    found = mounted(turned)
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)
    np.testing.assert_allclose(found.boxes[:, 7], boxes[:, 8], atol=1e-4)
    np.testing.assert_allclose(found.boxes[:, 8], -boxes[:, 7], atol=1e-4)
    named = found.named(mounted.config.class_names)
    assert named.boxes.shape[1] == 7
    np.testing.assert_array_equal(named.velocities, found.boxes[:, 7:])


def test_the_way_through_occupied_cells_is_the_dense_network(weights):
    config, _ = load_weights(weights)
    detector = Detector.from_weights(weights, "cpu")
    model = detector._inference.model
    points = torch.from_numpy(cloud(2_000, seed=3))
    sites = model.sites(points, torch.tensor([0, len(points)], dtype=torch.int32))
    with torch.inference_mode():
        dense = model(*sites)
        rows = detector._inference.forward(points, torch.tensor([0, 2_000], dtype=torch.int32))
    assert isinstance(dense, MovingPredictions)
    for a, b in zip(dense, rows.predictions, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    (found,) = build_postprocessor(config)(dense)
    assert found.boxes.shape[1] == 9


def test_fine_tuning_keeps_the_boxes_and_learns_velocities_anew(tmp_path):
    config, model = build_small_network()
    save_weights(tmp_path / "still.safetensors", model, config)
    config = load_config(CONFIG, ["model.velocity=true"])
    network = build_second(config)
    path = tmp_path / "still.safetensors"
    *_, boxes, directions, velocities = start_from(network, config, path)
    assert (boxes, directions) == ("  head.boxes: kept", "  head.directions: kept")
    assert velocities == "  head.velocities: new: weight [4, 64, 1, 1], bias [4]"
    assert torch.equal(network.head.boxes.weight, model.head.boxes.weight)
    assert "velocities" not in start_from(model, config, path)[-1]


def test_targets_of_a_batch_have_velocities_only_where_asked():
    boxes = np.float32([[5, 0, -1, 4, 2, 1.5, 0], [9, 1, -1, 4, 2, 1.5, 0]])
    points, kinds = np.zeros((1, 4), np.float32), ("Car", "Van")
    known = Frame("a", points, boxes, kinds, np.zeros(2, np.int8))
    known = Frame(**{**known.__dict__, "velocities": np.float32([[3, 4], [5, 6]])})
    unknown = Frame("b", points, boxes, kinds, np.zeros(2, np.int8))
    assert collate([known, unknown], ["Car"]).boxes.shape == (2, 1, 7)
    batch = collate([known, unknown], ["Car"], velocity=True)
    assert batch.boxes[0, 0, 7:].tolist() == [3, 4] and batch.boxes[1, 0, 7:].isnan().all()
    with pytest.raises(ValueError, match=r"velocities \(1, 2\) do not describe"):
        Frame(**{**known.__dict__, "velocities": np.zeros((1, 2), np.float32)})


# ---- on a GPU -----------------------------------------------------------------------------------

gpu = pytest.mark.gpu


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("per_class", [False, True])
def test_kernels_keep_the_velocities_of_their_anchors(dtype, per_class):
    """Equal scores too; velocities that are not finite; frames in which nothing passes."""
    generator = torch.Generator().manual_seed(3)
    batch, count, classes = 3, 9000, 3
    logits = (torch.randn(batch, count, classes, generator=generator) * 4).round() / 4 - 2
    logits[2] = -20
    velocities = torch.randn(batch, count, 2, generator=generator) * 9
    velocities[:, ::13], velocities[:, ::17] = torch.nan, torch.inf
    parts = [logits, torch.randn(batch, count, 7, generator=generator) * 0.3]
    parts.append(torch.randn(batch, count, 2, generator=generator))
    *parts, velocities = (part.to("cuda", dtype) for part in (*parts, velocities))
    anchors = torch.rand(count, 7, generator=generator) * torch.tensor([70.0, 80, 2, 4, 2, 2, 6])
    anchors = (anchors + 0.1).cuda()
    for score, before_nms, after_nms in ((0.3, 4096, 500), (0.3, 40, 60), (0.5, 4096, 7)):
        limits = score, before_nms, 0.2, after_nms, per_class
        without = select_boxes(*parts, anchors, *limits)
        found = select_boxes(*parts, anchors, *limits, velocities)
        assert found.boxes.shape == (batch, after_nms, 9) and found.count[:2].min() > 5
        assert torch.equal(found.boxes[..., :7], without.boxes)
        assert all(torch.equal(a, b) for a, b in zip(found[1:], without[1:], strict=True))
        # what the velocities belong to is told by velocities that are the number of the anchor
        number = torch.arange(count, device="cuda", dtype=torch.float32)
        numbered = torch.stack((number // 128, number % 128), dim=1).to(dtype)
        numbers = select_boxes(*parts, anchors, *limits, numbered.expand(batch, -1, -1)).boxes
        rows = (numbers[..., 7] * 128 + numbers[..., 8]).long()
        own = velocities.float().nan_to_num(nan=0, posinf=0, neginf=0)
        wanted = own.gather(1, rows[..., None].expand(-1, -1, 2))
        there = torch.arange(after_nms, device="cuda") < found.count[:, None]
        assert torch.equal(found.boxes[..., 7:], wanted * there[..., None])
        scores = torch.sigmoid(parts[0].float()).max(-1).values
        torch.testing.assert_close(scores.gather(1, rows)[there], found.scores[there])
    rest = anchors, 0.3, 40, 0.2, 50, False, 0.8, 9.0, velocities
    torch.library.opcheck(torch.ops.millisecond.select_boxes.default, (*parts, *rest))


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_kernels_take_velocities_of_cells(dtype):
    generator = torch.Generator().manual_seed(4)
    batch, y, x, classes, of_cell = 3, 12, 10, 3, 6
    channels, rows, values = [of_cell * n for n in (classes, 7, 2, 2)], [], []
    for factor in (1, 2):
        shape = batch, y // factor, x // factor
        rows.append(torch.randint(90, shape, generator=generator, dtype=torch.int32).cuda())
        numbers = torch.randn(90 * factor**2, 128, generator=generator)
        numbers[::17, ::5] = torch.nan
        values.append(numbers.to("cuda", dtype))
    cells = CellValues(values, rows, [1, 2], channels)
    spread = torch.tensor([70.0, 80, 2, 4, 2, 2, 6])
    anchors = (torch.rand(y * x * of_cell, 7, generator=generator) * spread + 0.1).cuda()
    groups = zip(bev_spread(*cells), (classes, 7, 2, 2), strict=True)
    *parts, velocities = (group.view(batch, -1, width) for group, width in groups)
    for limits in ((0.6, 720, 0.2, 50), (0.5, 40, 0.2, 50)):
        got = select_boxes_of_cells(cells, anchors, *limits)
        want = select_boxes(*parts, anchors, *limits, velocities=velocities)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        assert got.boxes.shape[2] == 9 and got.count.min() > 0
    arguments = (*cells, anchors, 0.6, 40, 0.2, 50, False, 0.8, 9.0)
    torch.library.opcheck(torch.ops.millisecond.select_boxes_of_cells.default, arguments)


@gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_graph_finds_them_as_call_by_call(weights, precision):
    detector = Detector.from_weights(weights, "cuda", precision)
    for points in (cloud(3_000), cloud(0), cloud(500, seed=5), cloud(12_000, seed=2)):
        found = detector.detect(points)[0]
        (alone,) = detector._inference([torch.from_numpy(points)]).detections
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))
        assert found.boxes.shape[1] == 9
    assert len(found.boxes) > 5 and found.boxes[:, 7:].abs().max() > 1
    if precision == "fp32":
        boxes = Detector.from_weights(weights, "cpu")(points).boxes
        away = (boxes[:, None] - found.boxes).abs()
        same = away[..., :7].amax(2) < 1e-3  # scores of empty places tie: not all boxes are chosen
        assert same.sum() > 5 and away[same].max() < 1e-2


@gpu
def test_losses_and_gradients_on_a_gpu_are_those_of_the_cpu():
    plain, (boxes, labels) = build(), truth(5)
    criterion = Criterion(plain.assigner, LossConfig(*WEIGHTS, velocity=0.7))
    predictions = moving(random_predictions(criterion, 3, torch.float32))
    match, of_total = criterion.assigner.match(boxes, labels), torch.tensor(8.0)
    wanted = criterion.losses(predictions, boxes, match)
    gradients = criterion.gradients(predictions, boxes, match, of_total)
    criterion = criterion.cuda()
    there = MovingPredictions(*(p.cuda() for p in predictions))
    boxes, labels, of_total = boxes.cuda(), labels.cuda(), of_total.cuda()
    match = criterion.assigner.match(boxes, labels)
    for a, b in zip(criterion.losses(there, boxes, match), wanted, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = criterion.gradients(there, boxes, match, of_total)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(found, gradients, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-5)
