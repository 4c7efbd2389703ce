"""Box code and directions: inverses of each other, and equal to the formulas written out."""

import math

import torch

from millisecond.ops import apply_direction, decode, direction_bin, encode, limit_period


def random_boxes(count: int, generator: torch.Generator) -> torch.Tensor:
    boxes = torch.rand(count, 7, generator=generator, dtype=torch.float64) * 4 + 0.3
    boxes[:, :3] = torch.randn(count, 3, generator=generator) * 30
    boxes[:, 6] = torch.randn(count, generator=generator) * 4
    return boxes


def test_decode_inverts_encode():
    generator = torch.Generator().manual_seed(1)
    boxes, anchors = random_boxes(500, generator), random_boxes(500, generator)
    torch.testing.assert_close(decode(encode(boxes, anchors), anchors), boxes)


def test_code_is_the_formula():
    x, y, z, length, width, height, yaw = 10.0, -3.0, -1.2, 4.2, 1.7, 1.4, 0.3
    anchor = [9.5, -3.4, -1.0, 3.9, 1.6, 1.56, 1.57]
    diagonal = math.hypot(3.9, 1.6)
    expected = [
        (x - 9.5) / diagonal,
        (y + 3.4) / diagonal,
        (z + 1.0) / 1.56,
        math.log(length / 3.9),
        math.log(width / 1.6),
        math.log(height / 1.56),
        yaw - 1.57,
    ]
    code = encode(torch.tensor([x, y, z, length, width, height, yaw]), torch.tensor(anchor))
    torch.testing.assert_close(code, torch.tensor(expected))


def test_wild_residuals_stay_finite():
    wild = torch.full((1, 7), 1e4)
    assert decode(wild, torch.ones(1, 7)).isfinite().all()


def test_limit_period_moves_by_whole_periods():
    value = torch.linspace(-20, 20, 1001, dtype=torch.float64)
    for offset, period in ((0.5, math.pi), (0.0, 2 * math.pi)):
        limited = limit_period(value, offset, period)
        assert (limited >= -offset * period - 1e-9).all()
        assert (limited < (1 - offset) * period + 1e-9).all()
        turns = (value - limited) / period
        torch.testing.assert_close(turns, turns.round())


def test_direction_gives_the_heading_back():
    yaw = torch.linspace(-9, 9, 997, dtype=torch.float64)
    bins = direction_bin(yaw)
    assert set(bins.tolist()) == {0, 1}
    for guess in (yaw, yaw + math.pi, yaw - 3 * math.pi):  # the axis alone: half turns are lost
        turned = apply_direction(guess, bins) - yaw
        torch.testing.assert_close(turned.cos(), torch.ones_like(yaw))
    assert direction_bin(torch.tensor(0.78539 + 0.1)) == 0
    assert direction_bin(torch.tensor(0.78539 - 0.1)) == 1
