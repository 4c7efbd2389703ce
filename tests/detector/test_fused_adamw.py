"""The update on flat memory, by its definition in plain torch, against torch's own classes."""

import copy

import torch
from torch import nn

from millisecond.detector.training.checkpoints import Ema, TrainState
from millisecond.detector.training.distributed import Processes
from millisecond.detector.training.gpu_trainer import FusedAdamW, flat_size, move_into, parts_of
from millisecond.ops import Recipe

RECIPE = Recipe(beta2=0.99, eps=1e-8, weight_decay=0.1, clip_norm=0.5)
ALONE = Processes(0, 1, torch.device("cpu"))


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 2, 1))
    return net.to(memory_format=torch.channels_last)


def fused() -> TrainState:
    net, scaler = network(), torch.amp.GradScaler("cpu", init_scale=8.0)
    ema = Ema(net, 0.9)
    return TrainState(net, FusedAdamW(net, RECIPE, scaler, ema), scaler, ema)


def draw(net: nn.Module, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(w.shape, generator=generator) for w in net.parameters()]


def update(state: TrainState, step: int) -> torch.Tensor:
    gradient = torch.zeros_like(state.optimizer.flat)
    weights = list(state.model.parameters())
    for part, drawn in zip(parts_of(gradient, weights), draw(state.model, step), strict=True):
        part.copy_(drawn * state.scaler.get_scale())
    rate, beta1 = 0.01 * (step + 1), 0.9 - 0.01 * step
    return state.optimizer.update(gradient, rate, beta1, state.ema.share(step))


def test_is_clipping_and_adamw_and_the_average():
    state, plain = fused(), network()
    ema = Ema(plain, 0.9)
    optimizer = torch.optim.AdamW(plain.parameters(), weight_decay=RECIPE.weight_decay)
    for step in range(4):
        norm = update(state, step)
        for weight, gradient in zip(plain.parameters(), draw(plain, step), strict=True):
            weight.grad = torch.empty_like(weight).copy_(gradient)
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.5))
        optimizer.param_groups[0].update(lr=0.01 * (step + 1), betas=(0.9 - 0.01 * step, 0.99))
        optimizer.step()
        ema.update(plain, step)
    pairs = (state.model, plain), (state.ema.model, ema.model)
    for one, other in pairs:
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_restored_state_goes_on_with_the_same_bits():
    one, other = fused(), fused()
    for step in range(2):
        update(one, step)
    update(other, 7)
    tensors, numbers = one.capture(ALONE)
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    other.restore(tensors, copy.deepcopy(numbers), ALONE)
    for step in range(2, 4):
        assert torch.equal(update(one, step), update(other, step))
    a, b = (state.capture(ALONE)[0] for state in (one, other))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_checkpoints_of_torch_s_optimizer_are_taken():
    """Checkpoints of earlier trainings, and of a first step, before it has moments."""
    state, plain = fused(), network()
    update(state, 0)
    optimizer = torch.optim.AdamW(plain.parameters())
    state.optimizer.load_state_dict(optimizer.state_dict())
    assert all(not m["exp_avg"].any() and m["step"] == 0 for m in state.optimizer.state.values())
    for weight, gradient in zip(plain.parameters(), draw(plain, 3), strict=True):
        weight.grad = gradient
    optimizer.step()
    state.optimizer.load_state_dict(optimizer.state_dict())
    pairs = zip(state.optimizer.state.values(), optimizer.state.values(), strict=True)
    for found, wanted in pairs:
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    states = optimizer.state_dict()
    last = states["state"].pop(len(states["state"]) - 1)
    state.optimizer.load_state_dict(states)
    *others, found = state.optimizer.state.values()
    assert not found["exp_avg"].any() and last["exp_avg"].any()
    assert all(part["step"] == 1 for part in (*others, found))


def test_parts_have_the_layout_of_their_tensors_and_share_nothing():
    wide = torch.arange(24.0).view(2, 3, 2, 2).to(memory_format=torch.channels_last)
    tensors = [wide.clone(), torch.arange(5.0), torch.tensor(7.0)]
    flat = torch.full((2 + flat_size(tensors),), -1.0)[2:]
    before = [tensor.clone() for tensor in tensors]
    move_into(flat, tensors)
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor, old) and tensor.stride() == old.stride()
    for number, tensor in enumerate(tensors):
        tensor.fill_(100 + number)
    assert [int((flat == 100 + n).sum()) for n in range(3)] == [24, 5, 1]
