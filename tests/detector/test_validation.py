"""A validation finds the same whatever the size of its batches and the number of its workers."""

import io
import weakref
from dataclasses import fields, replace
from functools import partial
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from millisecond.data.kitti.dataset import KittiDataset
from millisecond.data.kitti.labels import Labels
from millisecond.detector.config import load_config
from millisecond.detector.draw.birds_eye import draw_birds_eye
from millisecond.detector.draw.style import Shown
from millisecond.detector.draw.view import View
from millisecond.detector.models.second import build_second
from millisecond.detector.training import validation as module
from millisecond.detector.training.build import build_trainer
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.loader import Forked
from millisecond.detector.training.losses import build_criterion
from millisecond.detector.training.monitor import Monitor
from millisecond.detector.training.validation import (
    DRAWN,
    LARGER,
    Validation,
    evaluating,
    frames_at_once,
)
from millisecond.ops import voxelize
from tests.helpers.minute_training import write_minute_training

ALONE = Processes(0, 1, torch.device("cpu"))
FRAMES = 9


@pytest.fixture(scope="module")
def minute(tmp_path_factory):
    """Configuration, frames, and a trainer whose network knows nothing and finds many boxes."""
    path, root = write_minute_training(tmp_path_factory.mktemp("minute"))
    config = load_config(path, ["postprocess.score=0.001"])
    torch.manual_seed(0)
    model, criterion = build_second(config), build_criterion(config)
    return (
        config,
        KittiDataset(root, "train"),
        build_trainer(model, criterion, config.train, 1, ALONE),
    )


def found_by(monkeypatch, minute, validation: Validation, forward=None) -> tuple:
    """What is found, and the labels that the metric was given."""
    _, _, trainer = minute
    seen: list[Labels] = []
    unscored = validation(trainer.state.model, forward or trainer.forward)
    with monkeypatch.context() as patch:
        patch.setattr(module, "evaluate", lambda detections, *_: seen.extend(detections) or {})
        validation.score(unscored)
    assert len(unscored.found) == len(seen) == FRAMES
    assert sum(map(len, seen)) > 10 * FRAMES
    return unscored, seen


def assert_same(one: tuple, other: tuple) -> None:
    for a, b in zip(one[1], other[1], strict=True):
        for column in fields(Labels):
            assert np.array_equal(getattr(a, column.name), getattr(b, column.name)), column.name
    assert one[0].losses == pytest.approx(other[0].losses, rel=1e-5)
    assert one[0].capped == other[0].capped


def test_a_batch_of_any_size_finds_the_same(monkeypatch, minute):
    """Also one that a GPU has no room for, which is halved until there is."""
    config, frames, trainer = minute
    validation = Validation(frames, config, ALONE)
    assert validation.batch_size == config.train.batch_size == 2
    want = found_by(monkeypatch, minute, validation)
    limits = config.grid.voxel_grid, config.grid.max_points, config.grid.max_voxels_test
    lost = []
    for frame in frames:
        points = torch.from_numpy(frame.points)
        ends = torch.tensor([0, len(points)], dtype=torch.int32)
        lost.append(int(voxelize(points, ends, *limits).dropped[1]))
    assert want[0].capped == sum(lost) / FRAMES > 0
    validation = Validation(frames, config, ALONE)
    validation.batch_size = 8  # of 9 frames: the last batch is another size
    tried: list[int] = []

    def narrow(room, model, batch, predict):
        tried.append(len(batch.frame_ids))
        if tried[-1] > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return trainer.forward(model, batch, predict)

    for room, sizes in ((8, [8, 1]), (3, [8, 4, 2, 2, 4, 2, 2, 1])):
        tried.clear()
        assert_same(want, found_by(monkeypatch, minute, validation, partial(narrow, room)))
        assert tried == sizes
    with pytest.raises(torch.OutOfMemoryError):  # no room for what a training step takes
        found_by(monkeypatch, minute, validation, partial(narrow, 1))


def test_nothing_of_a_batch_is_held_while_its_halves_are_computed(monkeypatch, minute):
    config, frames, trainer = minute
    validation = Validation(frames, config, ALONE)
    validation.batch_size, select = 8, validation.postprocess.select
    whole: list[weakref.ref] = []

    def narrow(predictions):
        assert not any(logits() is not None for logits in whole)
        if len(predictions.class_logits) > config.train.batch_size:
            whole.append(weakref.ref(predictions.class_logits))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return select(predictions)

    monkeypatch.setattr(validation.postprocess, "select", narrow)
    assert validation(trainer.state.model, trainer.forward, limit=8) is not None
    assert len(whole) == 3  # of 8, 4 and 4 frames


def test_workers_stay_until_they_are_closed(monkeypatch, minute):
    """They find what the process itself finds, each time, also after a validation that was stopped
    with batches on their way. Of other frames, as many start as there are batches, and the ones
    before end."""
    config, frames, trainer = minute
    want = found_by(monkeypatch, minute, Validation(frames, config, ALONE))
    some = replace(config, train=replace(config.train, workers=2))
    validation, others = Validation(frames, some, ALONE), set(active_children())
    try:
        assert len(validation(trainer.state.model, trainer.forward, limit=2).found) == 2
        first = set(active_children()) - others
        assert len(first) == 1
        assert_same(want, found_by(monkeypatch, minute, validation))
        own = set(active_children()) - others
        assert len(own) == 2 and not own & first
        asked = iter([0, 0, 15])
        assert validation(trainer.state.model, trainer.forward, lambda: next(asked)) is None
        assert_same(want, found_by(monkeypatch, minute, validation))
        assert set(active_children()) - others == own
    finally:
        validation.close()
    assert set(active_children()) <= others
    assert_same(want, found_by(monkeypatch, minute, validation))  # opened again
    validation.close()


def test_a_stopped_validation_finds_nothing(minute):
    config, frames, trainer = minute
    asked = iter([0, 0, 15])
    validation = Validation(frames, config, ALONE)
    assert validation(trainer.state.model, trainer.forward, lambda: next(asked)) is None


def test_the_first_frames_are_drawn_as_by_themselves(minute, tmp_path):
    """And each is in TensorBoard under its name, though threads draw and write them."""
    config, frames, trainer = minute
    validation = Validation(frames, config, ALONE)
    unscored = validation(trainer.state.model, trainer.forward)
    scores = Forked(partial(validation.score, unscored)).result()
    assert scores.result == validation.score(unscored).result
    drawn, alone = scores.pictures, []
    for index in range(DRAWN):
        alone += validation._draw([frames[index]], [unscored.found[index]])
    assert drawn == alone and len(drawn) == DRAWN
    monitor = Monitor(tmp_path, 0, 0, total_steps=2, epochs=1)
    monitor.scores(1, unscored, scores, scores.mean_ap)
    monitor.close()
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    view = View.of_grid(config.grid.range)
    names = {f"frame {frames[index].frame_id}" for index in range(DRAWN)}
    assert set(board.Tags()["images"]) == names
    for (picture,) in (summary.value for summary in drawn):
        (image,) = board.Images(picture.tag)
        written = Image.open(io.BytesIO(image.encoded_image_string))
        assert image.step == 1 and image.encoded_image_string == picture.image.encoded_image_string
        frame = frames[frames.frame_ids.index(picture.tag.removeprefix("frame "))]
        ground = draw_birds_eye(Shown(frame.points, None, None), view=view)
        pixels = np.asarray(written)  # with boxes and a title
        assert (
            pixels.shape[1] == ground.shape[1] and 0.7 < np.mean(pixels[:400] == ground[:400]) < 1
        )


def test_a_gpu_takes_larger_batches_while_there_is_an_index(monkeypatch, minute):
    config, cuda = minute[0], torch.device("cuda")
    assert frames_at_once(config, ALONE.device) == 2
    for most, frames in ((100, 2 * LARGER), (7, 6), (5, 4), (1, 2)):
        monkeypatch.setattr(
            module, "fits", lambda batch_size, shapes, most=most: batch_size <= most
        )
        assert frames_at_once(config, cuda) == frames


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_a_gpu_scores_the_network_as_inference_has_it(minute, precision):
    """Its losses equal the trained network's but for rounding, and that one stays as it is."""
    config, frames, _ = minute
    config = replace(config, train=replace(config.train, precision=precision))
    one = Processes(0, 1, torch.device("cuda", torch.cuda.current_device()))
    torch.manual_seed(0)
    criterion = build_criterion(config)
    trainer = build_trainer(build_second(config), criterion, config.train, 1, one)
    model, validation = trainer.state.trained, Validation(frames, config, one)
    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):  # worth folding
            torch.nn.init.uniform_(norm.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def forward(network, batch, predict):
        assert (predict is None) == (precision == "fp32")
        return trainer.forward(network, batch, predict)

    unscored = validation(model, forward)
    sums = torch.zeros(len(validation.names), dtype=torch.float64)
    with evaluating(model):
        for batch, _ in validation._batches(range(FRAMES)):
            losses = trainer.forward(model, batch).losses.flat()
            sums += losses.double().cpu() * len(batch.frame_ids)
    validation.close()
    want = dict(zip(validation.names, (sums / FRAMES).tolist(), strict=True))
    assert unscored.losses == pytest.approx(want, rel={"bf16": 2e-2}.get(precision, 3e-3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
