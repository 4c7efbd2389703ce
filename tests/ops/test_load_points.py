"""Points with intensities clamped, frame by frame."""

import math

import numpy as np
import pytest
import torch

from millisecond.ops import load_points, load_workspace, stage_points
from tests.helpers.moves import moves_of

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
    stage_points(clouds[2:], points, staged, finish=False)
    stage_points([], points, staged)
    assert staged.tolist() == [73, 0]
    assert torch.equal(points[:73], torch.cat(clouds)) and (points[73:] == 7).all()


def test_points_move_as_their_frame_does():
    rng, sizes = np.random.default_rng(1), (900, 0, 1, 700)
    for width in (4, 5, 7):
        points = torch.from_numpy(rng.normal(0, 30, (1650, width)).astype(np.float32))
        points[:, 3] = torch.from_numpy(rng.uniform(0, 200, 1650))
        offsets, moves = torch.tensor([0, *np.cumsum(sizes)], dtype=torch.int32), moves_of(rng, 4)
        before = points.clone()
        loaded, _, _ = load_points(points, offsets, WORKSPACE, moves=moves)
        assert torch.equal(points, before) and torch.equal(loaded[1601:], points[1601:])
        assert torch.equal(loaded[:, 4:], points[:, 4:])
        frames = np.repeat(range(4), sizes)
        given, move = points[:1601].double().numpy(), moves.double().numpy()[frames]
        matrix = move[:, :12].reshape(-1, 3, 4)
        wanted = np.einsum("pij,pj->pi", matrix[:, :, :3], given[:, :3]) + matrix[:, :, 3]
        summed = np.einsum("pij,pj->pi", abs(matrix[:, :, :3]), abs(given[:, :3]))
        rounded = 4 * 2.0**-24 * (summed + abs(matrix[:, :, 3]))
        assert (abs(loaded[:1601, :3].numpy() - wanted) <= rounded).all()
        bright = given[:, 3] * move[:, 12]  # within the scale of its frame
        np.testing.assert_allclose(loaded[:1601, 3], bright, rtol=2.0**-23)


def test_a_move_that_moves_nothing_keeps_all_bits():
    points = torch.randn(300, 4).abs() / 9
    still = torch.tensor([[1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1]], dtype=torch.float32)
    offsets = torch.tensor([0, 300], dtype=torch.int32)
    assert torch.equal(load_points(points, offsets, WORKSPACE, moves=still)[0], points)


def test_points_that_are_not_staged_are_late():
    points, offsets = torch.zeros(9, 4), torch.tensor([0, 5], dtype=torch.int32)
    for count, late in ((4, 1), (5, 0), (9, 0)):
        staged = torch.tensor([count, 0], dtype=torch.int32)
        assert load_points(points, offsets, WORKSPACE, staged)[2].tolist() == [late]


@pytest.mark.parametrize("staged", [torch.zeros(2), torch.zeros(1).int()])
def test_a_wrong_counter_is_one_line(staged):
    with pytest.raises(ValueError, match=r"staged: expected \[2\] int32"):
        load_points(torch.zeros(5, 4), torch.zeros(2).int(), WORKSPACE, staged)


@pytest.mark.parametrize("moves", [torch.zeros(2, 13), torch.zeros(1, 12), torch.ones(1, 13).int()])
def test_wrong_moves_are_one_line(moves):
    with pytest.raises(ValueError, match=r"moves: expected \[1, 13\] float32"):
        load_points(torch.zeros(5, 4), torch.zeros(2).int(), WORKSPACE, moves=moves)


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
