"""The whole network against OpenPCDet's results from the same weights and points, in float32."""

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from millisecond.detector.anchors import build_anchors
from millisecond.detector.config import load_config
from millisecond.detector.detector import Detector
from millisecond.detector.import_openpcdet import convert
from millisecond.detector.inference import build_postprocessor
from millisecond.detector.models.second import build_second
from millisecond.detector.training.losses import build_criterion
from millisecond.detector.weights import restore
from millisecond.ops import Targets, apply_direction, decode, voxelize
from tests.helpers.criterion import targets_of

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "second_kitti.yaml"


@pytest.fixture(scope="module")
def folder(golden):
    return golden / "openpcdet_second"


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def setup(folder, request):
    """Configuration, OpenPCDet's state and the network made from it, in exact float32."""
    # The recorded step ran with the voxel cap of a test: its second frame has 16833.
    config = load_config(CONFIG, ["grid.max_voxels_train=40000"])
    with np.load(folder / "weights_fp16.npz") as file:
        state = {name: torch.from_numpy(file[name]) for name in file.files}
    model = build_second(config)
    restore(model, convert(state, config, "weights_fp16.npz"), "weights_fp16.npz")
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device(request.param)
    yield SimpleNamespace(config=config, state=state, model=model.to(device), device=device)
    torch.backends.cudnn.allow_tf32 = tf32


def relative(a: torch.Tensor, b: np.ndarray) -> float:
    """Largest difference over the largest value."""
    return float(np.abs(a.detach().double().cpu().numpy() - b).max() / np.abs(b).max())


@pytest.fixture(scope="module")
def inference(setup, folder):
    golden = np.load(folder / "infer_0.npz")
    model = setup.model.eval()
    points = torch.from_numpy(golden["points"]).to(setup.device)
    offsets = torch.tensor([0, len(points)], dtype=torch.int32, device=setup.device)
    with torch.inference_mode():
        voxels = voxelize(points, offsets, model.grid, model.max_points, model.max_voxels[1])
        bev = model.encoder(voxels)
        features = model.backbone(bev.contiguous(memory_format=torch.channels_last))
        predictions = model.head(features)
        folded = model.fold()
        (detections,) = build_postprocessor(setup.config).to(setup.device)(predictions)
        return SimpleNamespace(
            golden=golden,
            voxels=voxels,
            bev=bev,
            features=features,
            predictions=predictions,
            detections=detections,
            folded=folded(*folded.sites(points, offsets)),
        )


def test_voxels_and_map(inference):
    golden, bev = inference.golden, inference.bev
    coords, count = inference.voxels.coords, inference.voxels.count
    assert (len(coords) if count is None else int(count)) == golden["num_voxels"]
    theirs = bev[0].unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1)  # channel c * Z + z
    assert relative(theirs.flatten(1)[:, golden["pos"]], golden["bev"]) < 1e-3
    assert bev.abs().sum().item() == pytest.approx(float(golden["bev_abs_sum"]), rel=1e-5)
    features = inference.features[0].flatten(1)[:, golden["pos"][:500]]
    assert relative(features, golden["feat2d"]) < 1e-3


@pytest.mark.parametrize("which", ["predictions", "folded"])
def test_head_outputs(inference, which):
    golden, predictions = inference.golden, getattr(inference, which)
    names = ("cls", "box", "dir")
    for prediction, name in zip(predictions, names, strict=True):
        cells = prediction[0].view(200 * 176, -1)
        assert relative(cells[golden["pos"]], golden[name]) < 1e-4
    top = golden["top"]
    assert relative(predictions.class_logits[0, top], golden["top_logits"]) < 1e-4


def test_best_boxes(setup, inference):
    top, predictions = inference.golden["top"], inference.predictions
    anchors = build_anchors(setup.config).reshape(-1, 7)[top]
    boxes = decode(predictions.box_residuals[0, top].cpu(), anchors)
    bins = predictions.direction_logits[0, top].argmax(dim=1).cpu()
    boxes[:, 6] = apply_direction(boxes[:, 6], bins)
    np.testing.assert_allclose(boxes, inference.golden["top_boxes"], atol=1e-4)


def test_detections(inference):
    golden, found = inference.golden, inference.detections
    assert found.labels.tolist() == golden["det_labels"].tolist()
    assert relative(found.scores, golden["det_scores"]) < 1e-4
    np.testing.assert_allclose(found.boxes.cpu(), golden["det_boxes"], atol=1e-4)


def test_the_detector_finds_the_same(setup, inference):
    golden = inference.golden
    found = Detector(setup.model, setup.config, setup.device)(golden["points"])
    assert found.labels.tolist() == golden["det_labels"].tolist()
    assert relative(found.scores, golden["det_scores"]) < 1e-4
    np.testing.assert_allclose(found.boxes.cpu(), golden["det_boxes"], atol=1e-4)


@pytest.mark.parametrize("precision, score, metres", [("fp16", 0.01, 0.01), ("bf16", 0.03, 0.05)])
def test_detections_in_half_precision(setup, inference, precision, score, metres):
    golden, least = inference.golden, setup.config.postprocess.score
    # rounding moves a score by so much, also to the other side of the least one
    lower = replace(setup.config.postprocess, score=least - score)
    config = replace(setup.config, postprocess=lower)
    found = Detector(setup.model, config, setup.device, precision)(golden["points"])
    nearest = torch.cdist(torch.from_numpy(golden["det_boxes"]), found.boxes.cpu()).argmin(dim=1)
    assert len(set(nearest.tolist())) == len(nearest)
    assert found.labels.cpu()[nearest].tolist() == golden["det_labels"].tolist()
    np.testing.assert_allclose(found.scores.cpu()[nearest], golden["det_scores"], atol=score)
    np.testing.assert_allclose(found.boxes.cpu()[nearest], golden["det_boxes"], atol=metres)
    others = np.delete(found.scores.cpu().numpy(), nearest.numpy())
    assert (others < least + score).all()


@pytest.fixture(scope="module")
def training(setup, folder):
    golden = np.load(folder / "train_a.npz")
    model, criterion = (
        copy.deepcopy(setup.model).train(),
        build_criterion(setup.config).to(setup.device),
    )
    clouds = [torch.from_numpy(golden[name]) for name in ("points0", "points1")]
    offsets = torch.tensor([0, *map(len, clouds)], dtype=torch.int32).cumsum(0).int()
    truth = torch.from_numpy(golden["gt"]).float().to(setup.device)
    boxes, labels = truth[..., :7], truth[..., 7].long()
    voxels, pyramid = model.sites(torch.cat(clouds).to(setup.device), offsets.to(setup.device))
    bev = model.encode(voxels, pyramid)
    if setup.device.type == "cpu":  # in this order of axes oneDNN takes a third of the time less
        model, bev = model.to(memory_format=torch.contiguous_format), bev.contiguous()
    losses = criterion(model.predict(bev), boxes, labels)
    losses.total.backward()
    targets = targets_of(criterion.assigner, boxes, labels)
    return SimpleNamespace(golden=golden, model=model, losses=losses, targets=targets)


def test_assignments(training):
    golden = training.golden
    targets = Targets(*(tensor.cpu() for tensor in training.targets))
    positive = targets.labels > 0
    np.testing.assert_array_equal(positive.nonzero().numpy(), golden["pos_anchors"])
    np.testing.assert_array_equal(targets.labels[positive].numpy(), golden["pos_labels"])
    np.testing.assert_allclose(targets.residuals[positive], golden["pos_targets"], atol=1e-5)
    assert int((targets.labels == -1).sum()) == golden["ignored"]


def test_losses(training):
    golden, losses = training.golden, training.losses
    for loss, name in (
        (losses.classification, "rpn_loss_cls"),
        (losses.box, "rpn_loss_loc"),
        (losses.direction, "rpn_loss_dir"),
        (losses.total, "rpn_loss"),
    ):
        assert loss.item() == pytest.approx(float(golden[name]), rel=1e-4), name


def test_gradients(setup, training):
    golden = training.golden
    ours = {name: p.grad.cpu() for name, p in training.model.named_parameters()}
    names = their_names(setup)
    for name, grad in ours.items():
        norm = float(golden[f"grad_norm:{names[name]}"])
        assert grad.double().norm().item() == pytest.approx(norm, rel=5e-3), name
        key = f"grad:{names[name]}"
        if key in golden:
            whole = golden[key]
            if whole.ndim == 5:
                whole = whole.transpose(1, 2, 3, 4, 0).reshape(grad.shape)
            error = np.linalg.norm(grad.numpy() - whole) / np.linalg.norm(whole)
            assert error < 3e-2, name  # sums that nearly cancel: float64 is 1e-2 away as well


def their_names(setup) -> dict[str, str]:
    """OpenPCDet's name of each of our parameters: numbered tensors go through the import."""
    keys = list(setup.state)
    numbered = {k: torch.full(setup.state[k].shape, float(i)) for i, k in enumerate(keys)}
    converted = convert(numbered, setup.config, "numbers")
    return {name: keys[int(t.flatten()[0])] for name, t in converted.items() if t.ndim}
