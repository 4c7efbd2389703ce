"""Points with intensities clamped, frame by frame."""

import math

import pytest
import torch

from millisecond.ops import load_points, load_workspace, stage_points

WORKSPACE = load_workspace(3, torch.device("cpu"))


def test_the_scale_is_each_frame_s_own():
    points = torch.zeros(700, 4)
    points[:, 3] = torch.cat([torch.full((200,), 0.5), torch.full((300,), 200.0), torch.ones(200)])
    points[0, 3], points[1, 3], points[2, 3], points[3, 3] = 9.0, -1.0, math.inf, math.nan
    points[200, 3] = 1e6
    offsets = torch.tensor([0, 200, 200, 500], dtype=torch.int32)  # the last 200 belong to no frame
    loaded, starts, late = load_points(points, offsets, WORKSPACE)
    assert torch.equal(starts, offsets) and not late
    # of 200 intensities two may be over the scale: 9 and infinity are
    assert loaded[:5, 3].nan_to_num(7, posinf=8).tolist() == [1, 0, 8, 7, 0.5]
    assert loaded[200:202, 3].tolist() == [255, 200]
    assert torch.equal(loaded[500:], points[500:]) and points[0, 3] == 9


def test_clouds_are_staged_one_behind_another():
    clouds = [torch.rand(n, 5) for n in (3, 0, 70)]
    points, staged = torch.full((90, 5), 7.0), torch.zeros(2, dtype=torch.int32)
    stage_points(clouds[:2], points, staged)
    assert staged.tolist() == [3, 0]
    stage_points(clouds[2:], points, staged)
    assert staged.tolist() == [73, 0]
    assert torch.equal(points[:73], torch.cat(clouds)) and (points[73:] == 7).all()


def test_points_that_are_not_staged_are_late():
    points, offsets = torch.zeros(9, 4), torch.tensor([0, 5], dtype=torch.int32)
    for count, late in ((4, 1), (5, 0), (9, 0)):
        staged = torch.tensor([count, 0], dtype=torch.int32)
        assert load_points(points, offsets, WORKSPACE, staged)[2].tolist() == [late]


@pytest.mark.parametrize("staged", [torch.zeros(2), torch.zeros(1).int()])
def test_a_wrong_counter_is_one_line(staged):
    with pytest.raises(ValueError, match=r"staged: expected \[2\] int32"):
        load_points(torch.zeros(5, 4), torch.zeros(2).int(), WORKSPACE, staged)


@pytest.mark.parametrize(
    ("points", "offsets", "message"),
    [
        (torch.zeros(5, 3), torch.zeros(2).int(), r"points: expected \[P, 4 or more\] float32"),
        (torch.zeros(5, 4).half(), torch.zeros(2).int(), "float16"),
        (torch.zeros(5, 4), torch.zeros(1).int(), r"offsets: expected \[B \+ 1\] int32"),
        (torch.zeros(5, 4), torch.zeros(2), "offsets: .*float32"),
        (torch.zeros(5, 4, device="meta"), torch.zeros(2).int(), "points: expected on the host"),
    ],
)
def test_a_wrong_argument_is_one_line(points, offsets, message):
    with pytest.raises(ValueError, match=message):
        load_points(points, offsets, WORKSPACE)
