import copy

import pytest
import torch

from millisecond.data.frame import collate
from millisecond.data.simulator import simulate
from millisecond.detector.config import parse_config
from millisecond.detector.models.second import build_second
from millisecond.detector.training.build import build_trainer
from millisecond.detector.training.checkpoints import Ema
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.losses import build_criterion
from tests.helpers.minute_training import CONFIG

ALONE = Processes(0, 1, torch.device("cpu"))


def _trainer(seed: int, *overrides: str):
    config = parse_config(CONFIG, overrides)
    torch.manual_seed(seed)
    return build_trainer(build_second(config), build_criterion(config), config.train, 20, ALONE)


@pytest.fixture(scope="module")
def batches():
    classes = parse_config(CONFIG).class_names
    return [[collate([simulate(2 * i), simulate(2 * i + 1)], classes)] for i in range(4)]


def _everything(trainer) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trainer.state.capture(ALONE)[0].items() if "random" not in k}


@pytest.mark.parametrize("overrides", [(), ("train.precision=fp16",), ("train.ema=0",)])
def test_a_restored_state_goes_on_with_the_same_bits(batches, overrides):
    """Restored into a trainer that began elsewhere and has moments of its own."""
    one, other = _trainer(0, *overrides), _trainer(1, *overrides)
    for batch in batches[:2]:
        one.step(batch)
    other.step(batches[3])
    assert one.state.validated < 0 > one.state.best  # less than any AP
    one.state.validated, one.state.best = 1, 2.5
    tensors, numbers = one.state.capture(ALONE)
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    drawn = torch.rand(3)
    other.state.restore(tensors, copy.deepcopy(numbers), ALONE)
    assert torch.equal(torch.rand(3), drawn)
    assert (other.state.step, other.state.validated, other.state.best) == (2, 1, 2.5)
    for batch in batches[2:]:
        assert torch.equal(one.step(batch), other.step(batch))
    a, b = _everything(one), _everything(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_layouts_survive(batches):
    """The moments of a channels-last weight are channels-last again, as the fused update wants."""
    trainer = _trainer(0)
    trainer.step(batches[0])
    tensors, numbers = trainer.state.capture(ALONE)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    trainer.state.restore(tensors, numbers, ALONE)
    for weight, moments in trainer.state.optimizer.state.items():
        assert moments["exp_avg"].stride() == weight.stride()


def test_another_network_is_refused(batches):
    small, other = _trainer(0), _trainer(0, "model.encoder.out_channels=16")
    tensors, numbers = small.state.capture(ALONE)
    with pytest.raises(ValueError, match="another network"):
        other.state.restore(tensors, numbers, ALONE)


def test_update_is_decoupled_adam(batches):
    """One step by hand: clip, moments with the schedule's momentum, decay by the learning rate."""
    trainer = _trainer(0, "train.ema=0", "train.clip_norm=0.5", "train.weight_decay=0.1")
    model = trainer.state.model
    before = [weight.detach().clone() for weight in model.parameters()]
    losses = trainer.forward(copy.deepcopy(model), batches[0][0]).losses
    twin = copy.deepcopy(model)
    trainer.forward(twin, batches[0][0]).losses.total.backward()
    gradients = [weight.grad for weight in twin.parameters()]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    record = trainer.step(batches[0])
    assert record[-1] == pytest.approx(norm.item(), rel=1e-5)
    assert record[0] == pytest.approx(losses.total.item(), rel=1e-5)
    rate = 0.01 / 10
    for old, gradient, new in zip(before, gradients, model.parameters(), strict=True):
        g = gradient * min(1, 0.5 / (norm.item() + 1e-6))
        # After one step the corrected moments are g and g^2, whatever the betas.
        expected = old * (1 - rate * 0.1) - rate * g / (g.abs() + 1e-8)
        torch.testing.assert_close(new.detach(), expected, rtol=1e-4, atol=2e-5)
    assert trainer.state.optimizer.param_groups[0]["betas"] == (0.95, 0.99)


def test_average_of_weights():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    ema = Ema(model, decay=0.9)
    expected = model[0].weight.detach().clone()
    for step in range(200):
        with torch.no_grad():
            model[0].weight += 0.1
            model[1].running_mean += 1
        ema.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model[0].weight.detach()
        torch.testing.assert_close(ema.model[0].weight, expected)
    assert torch.equal(ema.model[1].running_mean, model[1].running_mean)
