"""The trainer's graph and its stream for the index change when things run, not what comes out."""

import os
from dataclasses import replace

import pytest
import torch

from data.collate import collate
from data.simulator import simulate
from detector.config import parse_config
from detector.models.second import build_second
from detector.training.bev_graph import BevGraph
from detector.training.distributed import Processes
from detector.training.losses import build_criterion
from detector.training.randomness import fix_randomness
from detector.training.trainer import build_trainer
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
    trainer.bev_graph = trainer.side_stream = None
    return trainer


def train(trainer, batches, steps: int) -> list[torch.Tensor]:
    count = trainer.settings.accumulate
    records = []
    for step in range(steps):
        group = [batches[(step * count + i) % len(batches)] for i in range(count)]
        records.append(trainer.step(group))
    state = trainer.state.model.state_dict().values()
    return [torch.stack(records), *(tensor.clone() for tensor in state)]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_same_bits_as_without(batches, precision, accumulate):
    overrides = f"train.precision={precision}", f"train.accumulate={accumulate}"
    want = train(plain(*overrides), batches, 12)
    got = train(build(*overrides), batches, 12)
    for one, other in zip(want, got, strict=True):
        assert torch.equal(one, other)


def test_capture_leaves_the_network_as_it_was():
    config = parse_config(CONFIG)
    model = build_second(config).cuda().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    BevGraph(model, 2, torch.float16)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(weight.grad is None for weight in model.parameters())


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
    for one, two in zip(want, got, strict=True):
        assert torch.equal(one, two)


def test_validation_in_between_changes_nothing(batches):
    trainer = build("train.precision=fp16")
    want = train(build("train.precision=fp16"), batches, 4)
    model = trainer.state.model
    records = []
    for batch in batches[:4]:
        records.append(trainer.step([batch]))
        model.eval()
        with torch.inference_mode():
            predictions = trainer.forward(model, batch).predictions
            assert len(predictions.class_logits) == 2
        model.train()
    got = [torch.stack(records), *model.state_dict().values()]
    for one, other in zip(want, got, strict=True):
        assert torch.equal(one, other)
