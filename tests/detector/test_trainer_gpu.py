"""The trainer's graphs and its stream for the index change when things run, not what comes out."""

import os
from dataclasses import replace

import pytest
import torch

from millisecond.data.frame import collate
from millisecond.data.simulator import simulate
from millisecond.detector.config import parse_config
from millisecond.detector.models.second import build_second
from millisecond.detector.training.build import build_trainer, fix_randomness
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.gpu_trainer import GpuTrainer, parts_of
from millisecond.detector.training.losses import build_criterion
from tests.helpers.minute_training import CONFIG

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def deterministic():
    before = torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    fix_randomness(0, deterministic=True)
    yield
    torch.backends.cudnn.benchmark = before[0]
    torch.use_deterministic_algorithms(before[1])
    if workspace is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.fixture(scope="module")
def batches():
    """Of very different numbers of points, so that memory is used again in other sizes."""
    classes = parse_config(CONFIG).class_names
    frames = [simulate(seed) for seed in range(6)]
    shares = (1, 7, 2, 1, 30, 3)
    frames = [
        replace(frame, points=frame.points[::share])
        for frame, share in zip(frames, shares, strict=True)
    ]
    pairs = [(0, 1), (2, 3), (4, 5), (1, 4), (5, 0)]
    return [collate([frames[i] for i in pair], classes).pin_memory() for pair in pairs]


def build(*overrides: str):
    config = parse_config(CONFIG, overrides)
    torch.manual_seed(0)
    alone = Processes(0, 1, torch.device("cuda", torch.cuda.current_device()))
    return build_trainer(build_second(config), build_criterion(config), config.train, 60, alone)


def plain(*overrides: str):
    trainer = build(*overrides)
    trainer.graphs = False
    return trainer


def train(trainer, batches, steps: int) -> list[torch.Tensor]:
    count = trainer.settings.accumulate
    records = []
    for step in range(steps):
        group = [batches[(step * count + i) % len(batches)] for i in range(count)]
        records.append(trainer.step(group))
    models = trainer.state.model, trainer.state.ema.model
    state = (tensor for model in models for tensor in model.state_dict().values())
    return [torch.stack(records), *(tensor.clone() for tensor in state)]


def assert_same_bits(want: list[torch.Tensor], got: list[torch.Tensor]) -> None:
    for one, other in zip(want, got, strict=True):  # the first loss scale is too large: NaN
        torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_same_bits_as_without(batches, precision, accumulate):
    overrides = f"train.precision={precision}", f"train.accumulate={accumulate}"
    want = train(plain(*overrides), batches, 12)
    got = train(build(*overrides), batches, 12)
    assert_same_bits(want, got)


def test_same_bits_with_scores_that_learn_the_overlap(batches):
    overrides = "train.precision=fp16", "loss.quality=true", "loss.overlap=3"
    want = train(plain(*overrides), batches, 12)
    assert_same_bits(want, train(build(*overrides), batches, 12))
    assert not torch.equal(want[1], train(plain(overrides[0]), batches, 12)[1])


def test_same_bits_with_velocities():
    overrides = "train.precision=fp16", "model.velocity=true"
    frames = [simulate(seed) for seed in range(6)]
    classes = parse_config(CONFIG).class_names
    moving = [collate([frames[i], frames[i - 1]], classes, velocity=True) for i in range(6)]
    moving = [batch.pin_memory() for batch in moving]
    want = train(plain(*overrides), moving, 12)
    assert_same_bits(want, train(build(*overrides), moving, 12))
    assert want[0][:, 0].isfinite().all()  # the losses


def test_batches_without_room_make_more(batches):
    """Points, boxes and levels outgrow the graphs; then all batches fit."""
    trainer = build()
    rooms = []
    for batch in (*batches, *batches):
        trainer.step([batch])
        if trainer.capacity not in rooms:
            rooms.append(trainer.capacity)
    assert rooms[0] is None and len(rooms) > 2
    largest = max(len(batch.points) for batch in batches)
    assert rooms[-1].points > largest
    ran = []
    trainer.differentiate = lambda indexed: ran.append(indexed)
    for batch in batches:
        trainer.step([batch])
    assert not ran


def test_without_memory_for_graphs_training_goes_on(batches, capsys):
    """What the GPU has no memory for is asked in the middle of the capture of backward."""
    want = train(plain(), batches, 3)
    trainer = build()

    def greedy(indexed):
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return GpuTrainer.differentiate(trainer, indexed)

    trainer.differentiate = greedy
    assert_same_bits(want, train(trainer, batches, 3))
    assert not trainer.graphs and trainer.capacity is None
    assert capsys.readouterr().err.count("warning: the GPU's memory does not hold the CUDA") == 1


def test_capture_leaves_the_network_as_it_was(batches):
    trainer = build()
    trainer.step([batches[0]])
    before = {name: tensor.clone() for name, tensor in trainer.state.model.state_dict().items()}
    trainer.capture()
    for name, tensor in trainer.state.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("loss", [[], ["loss.quality=true"], ["loss.overlap=3"]])
def test_the_branch_leaves_the_gradients_of_backward(batches, loss):
    trainer = build("train.precision=fp16", *loss)
    model, indexed = trainer.state.model, trainer.index(trainer.state.model, batches[0])
    record = trainer.differentiate(indexed)
    found = [part.clone() for part in parts_of(trainer.gradient, list(model.parameters()))]
    outcome = trainer.outcome(model, indexed)
    trainer.state.scaler.scale(outcome.losses.total).backward()
    assert_same_bits([outcome.record()], [record])
    assert_same_bits([weight.grad for weight in model.parameters()], found)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_gradient_that_is_not_finite_skips_the_update(batches, graphs):
    trainer = build("train.precision=fp16", "train.ema=0")
    trainer.graphs = graphs
    for batch in batches[:2]:
        trainer.step([batch])
    weights = [weight.detach().clone() for weight in trainer.state.model.parameters()]
    scale = trainer.state.scaler.get_scale()
    steps = [moments["step"].item() for moments in trainer.state.optimizer.state.values()]
    wild = batches[1]._replace(points=batches[1].points.clone())
    wild.points[:, 3] = 3e38
    record = trainer.step([wild])
    assert not record.isfinite().all()
    for weight, before in zip(trainer.state.model.parameters(), weights, strict=True):
        assert torch.equal(weight, before)
    assert trainer.state.scaler.get_scale() == scale / 2
    after = [moments["step"].item() for moments in trainer.state.optimizer.state.values()]
    assert after == steps and trainer.state.step == 3
    assert trainer.guard.check(wait=True).step == 2


def test_a_restored_state_goes_on_through_the_graph(batches):
    """The weights of a checkpoint reach the graph, which has their addresses."""
    trainer = build("train.precision=fp16")
    train(trainer, batches, 3)
    tensors, numbers = trainer.state.capture(trainer.processes)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    want = train(trainer, batches, 4)
    other = build("train.precision=fp16", "train.seed=1")
    train(other, batches[2:], 2)
    other.state.restore(tensors, numbers, other.processes)
    got = train(other, batches, 4)
    assert_same_bits(want, got)


def test_validation_in_between_changes_nothing(batches):
    """Also one that takes more frames at once than a step."""
    classes = parse_config(CONFIG).class_names
    five = collate([simulate(seed) for seed in range(5)], classes).pin_memory()
    trainer = build("train.precision=fp16")
    want = train(build("train.precision=fp16"), batches, 4)
    model = trainer.state.model
    records = []
    for batch in batches[:4]:
        records.append(trainer.step([batch]))
        model.eval()
        with torch.inference_mode():
            for part in (batch, five):
                predictions = trainer.forward(model, part).predictions
                assert len(predictions.class_logits) == len(part.labels)
        model.train()
    got = [torch.stack(records), *model.state_dict().values()]
    assert_same_bits(want[: len(got)], got)
