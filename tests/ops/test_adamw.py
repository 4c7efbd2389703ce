"""The update of all weights against torch's own optimizer, clipping and loss scaling in float64."""

import pytest
import torch

from millisecond.ops import LossScale, Moments, Recipe, adamw_update
from millisecond.ops.library import extension

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RECIPE = Recipe(beta2=0.99, eps=1e-8, weight_decay=0.1, clip_norm=3.0, growth_interval=2)
SIZE = 70_004


@pytest.mark.parametrize("device", DEVICES)
def test_is_what_torch_does_in_steps(device):
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(SIZE, generator=generator)
    twin = torch.nn.Parameter(weights.double())
    optimizer = torch.optim.AdamW([twin], weight_decay=RECIPE.weight_decay, eps=RECIPE.eps)
    average, expected_average = weights.clone().to(device), weights.double()
    weights = weights.to(device)
    moments = Moments(
        *(torch.zeros(SIZE, device=device) for _ in range(2)), torch.zeros((), device=device)
    )
    loss_scale = LossScale(
        torch.tensor(4.0, device=device), torch.tensor(0, dtype=torch.int32, device=device)
    )
    scales = []
    for step in range(6):
        rate, beta1, share = 0.01 * (step + 1), 0.9 - 0.01 * step, 0.3
        gradient = torch.randn(SIZE, generator=generator) * 10.0 ** (step - 4)
        scaled = gradient.double() * loss_scale.scale.item()
        if step == 2:
            scaled[777] = float("inf")
        schedule = torch.tensor([rate, beta1, share], dtype=torch.float64, device=device)
        norm = adamw_update(
            weights, scaled.float().to(device), moments, schedule, RECIPE, average, loss_scale
        )
        scales.append(loss_scale.scale.item())
        if step != 2:
            twin.grad = gradient.double()
            expected = torch.nn.utils.clip_grad_norm_([twin], RECIPE.clip_norm)
            assert norm.item() == pytest.approx(expected.item(), rel=1e-5)
            optimizer.param_groups[0].update(lr=rate, betas=(beta1, RECIPE.beta2))
            optimizer.step()
        expected_average += share * (twin.detach() - expected_average)
        torch.testing.assert_close(weights.cpu().double(), twin.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(average.cpu().double(), expected_average, rtol=1e-5, atol=1e-6)
    assert scales == [4, 8, 4, 4, 8, 8]  # twice good; not finite; twice good
    assert moments.steps.item() == 5


@pytest.mark.gpu
def test_same_bits_every_time():
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.rand(SIZE, generator=generator).cuda() for _ in range(4)]
    schedule = torch.tensor([0.01, 0.9, 0.0], dtype=torch.float64).cuda()
    results = []
    for _ in range(5):
        weights, gradient, *moments = (tensor.clone() for tensor in drawn)
        state = Moments(*moments, torch.zeros((), device="cuda"))
        norm = adamw_update(weights, gradient, state, schedule, RECIPE)
        results.append((weights, norm, *state))
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


@pytest.mark.gpu
def test_what_does_not_match_is_refused():
    extension()
    tensors = [torch.zeros(8, device="cuda") for _ in range(4)]
    steps, schedule = torch.zeros((), device="cuda"), torch.zeros(3, device="cuda")
    call = torch.ops.millisecond.adamw_update
    fitting = *tensors, steps, schedule.double(), None, None, None, *RECIPE
    torch.library.opcheck(call.default, fitting)
    with pytest.raises(RuntimeError, match="schedule must be"):
        call(*tensors, steps, schedule, None, None, None, *RECIPE)
    with pytest.raises(RuntimeError, match="gradient must have 8 elements"):
        call(
            tensors[0], tensors[1][:4], *tensors[2:], steps, schedule.double(), *[None] * 3, *RECIPE
        )


def test_odd_sizes_are_refused():
    odd = torch.zeros(7)
    with pytest.raises(ValueError, match="multiple of 4"):
        adamw_update(odd, odd, Moments(odd, odd, odd), torch.zeros(3), RECIPE)


def test_a_gradient_of_one_number_is_refused():
    weights, moments = torch.ones(8), Moments(torch.ones(8), torch.ones(8), torch.zeros(()))
    schedule = torch.tensor([0.01, 0.9, 0.5], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"gradient: expected \[8\] float32, got \[1\]"):
        adamw_update(weights, torch.ones(1), moments, schedule, RECIPE)
    assert torch.equal(weights, torch.ones(8)) and moments.steps == 0
