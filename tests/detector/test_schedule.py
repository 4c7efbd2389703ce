import pytest
import torch

from millisecond.detector.training.trainer import OneCycle


@pytest.mark.parametrize(("total", "warmup"), [(10, 0.4), (37, 0.4), (1000, 0.4), (64, 0.25)])
def test_equals_torch_one_cycle(total, warmup):
    """torch counts phases to their last step, so the same curve is its cycle of one step more."""
    peak = int(total * warmup)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    oracle = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=0.003,
        total_steps=total + 1,
        pct_start=(peak + 1) / (total + 1),
        div_factor=10,
        final_div_factor=1e4,
        base_momentum=0.85,
        max_momentum=0.95,
    )
    schedule = OneCycle(total, lr=0.003, warmup=warmup)
    for step in range(total):
        group = optimizer.param_groups[0]
        assert schedule(step) == pytest.approx(
            (group["lr"], group["betas"][0]), rel=1e-9, abs=1e-15
        )
        optimizer.step()
        oracle.step()


def test_ends_and_peak():
    schedule = OneCycle(100, lr=0.003)
    assert schedule(0) == pytest.approx((0.0003, 0.95))
    assert schedule(40) == pytest.approx((0.003, 0.85))
    assert schedule(100) == pytest.approx((0.003 / 1e5, 0.95))
    assert schedule(1000) == schedule(100)


@pytest.mark.parametrize("total", [1, 2, 3])
def test_shortest_runs(total):
    for step in range(total):
        lr, momentum = OneCycle(total, lr=0.003)(step)
        assert 0 < lr <= 0.003
        assert 0.85 <= momentum <= 0.95
