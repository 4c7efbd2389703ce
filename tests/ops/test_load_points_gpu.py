"""Points from pinned memory to the GPU, as the reference has them."""

import math
import time

import numpy as np
import pytest
import torch

from millisecond.ops import load_points, load_workspace, stage_points
from tests.helpers.moves import moves_of

pytestmark = pytest.mark.gpu


def clouds(seed: int, sizes, scale: float, wild: float, channels: int = 4):
    """Points of all frames and their offsets in pinned memory; wild: share of odd intensities."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(sum(sizes) + 30, channels, generator=generator)
    points[:, 3] = points[:, 3].abs().clamp(max=1) * scale
    odd = torch.rand(len(points), generator=generator) < wild
    values = torch.tensor([-1.0, 2.0, 300.0, 1e30, math.inf, -math.inf, math.nan])
    points[odd, 3] = values[torch.randint(len(values), (int(odd.sum()),), generator=generator)]
    offsets = torch.tensor([0, *sizes]).cumsum(0).int()
    return points.pin_memory(), offsets.pin_memory()


@pytest.mark.parametrize("scale", [0.5, 1.0, 255.0, 65535.0, 1e6])
@pytest.mark.parametrize("channels", [4, 5, 8])
def test_same_as_the_reference(scale, channels):
    workspace, host = (load_workspace(5, torch.device(d)) for d in ("cuda", "cpu"))
    for seed, (sizes, wild) in enumerate(
        (
            ((100,), 0.0),
            ((100,), 0.01),
            ((100,), 0.02),
            ((70_000,), 0.004),
            ((0,), 0.0),
            ((1,), 1.0),
            ((0, 3000, 0, 9000, 1), 0.01),
            ((20_000, 500, 29_000), 0.008),
        )
    ):
        points, offsets = clouds(seed, sizes, scale, wild, channels)
        got = load_points(points, offsets, workspace)
        want = load_points(points, offsets, host)
        total = sum(sizes)
        same = (got[0][:total].cpu() == want[0][:total]) | want[0][:total].isnan()
        assert same.all() and torch.equal(got[0][:total].isnan().cpu(), want[0][:total].isnan())
        assert torch.equal(got[1].cpu(), want[1])
        assert not workspace.any() and not got[2].any()
        there = load_points(points.cuda(), offsets.cuda(), workspace)  # they are on the GPU already
        assert torch.equal(there[0][:total].view(torch.int32), got[0][:total].view(torch.int32))
        assert torch.equal(there[1], got[1])


@pytest.mark.parametrize("channels", [4, 5, 8])
def test_moved_points_have_the_bits_of_the_reference(channels):
    """Intensities are counted and clamped as the moved points have them."""
    workspace, host = (load_workspace(512, torch.device(d)) for d in ("cuda", "cpu"))
    rng = np.random.default_rng(channels)
    many = tuple(rng.integers(0, 90, 512).tolist())  # as many frames as the kernel takes
    for sizes in ((100,), (0,), (70_000,), (0, 3000, 0, 9000, 1), (20_000, 500, 29_000), many):
        for scale, wild in ((1.0, 0.0), (255.0, 0.004), (65535.0, 0.02)):
            points, offsets = clouds(len(sizes), sizes, scale, wild, channels)
            moves, total = moves_of(rng, len(sizes)).pin_memory(), sum(sizes)
            got = load_points(points, offsets, workspace, moves=moves)
            want = load_points(points, offsets, host, moves=moves)[0][:total]
            found = got[0][:total].cpu()
            assert torch.equal(found.isnan(), want.isnan())
            assert torch.equal(found.nan_to_num(), want.nan_to_num())
            assert not workspace.any() and not got[2].any()


@pytest.mark.parametrize("channels", [4, 5])
def test_a_replay_moves_points_as_the_memory_then_says(channels):
    sizes, rng = (60_000, 0, 80_000), np.random.default_rng(2)
    fresh, offsets = clouds(5, sizes, 1.0, 0.004, channels)
    fresh = fresh[: sum(sizes)]
    points, staged = torch.zeros(fresh.shape, pin_memory=True), counter(0, 0)
    moves, workspace = moves_of(rng, 3).pin_memory(), load_workspace(3, torch.device("cuda"))
    staged[0] = staged[1] = len(fresh)
    load_points(points, offsets, workspace, staged, moves)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loaded, _, late = load_points(points, offsets, workspace, staged, moves)
    for _ in range(3):
        moves.copy_(moves_of(rng, 3))
        points.zero_()
        staged.zero_()
        graph.replay()
        for piece in fresh.chunk(7):  # they come while the kernel waits
            stage_points([piece], points, staged)
        torch.cuda.synchronize()
        want = load_points(fresh, offsets, load_workspace(3, torch.device("cpu")), moves=moves)[0]
        assert not late.any() and torch.equal(loaded.cpu().isnan(), want.isnan())
        assert torch.equal(loaded.cpu().nan_to_num(), want.nan_to_num())


def test_a_replay_reads_what_the_memory_then_holds():
    points, offsets = clouds(1, (4000, 3000), 1.0, 0.0)
    workspace = load_workspace(2, torch.device("cuda"))
    load_points(points, offsets, workspace)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loaded, starts, _ = load_points(points, offsets, workspace)
    for seed in (2, 3):
        fresh, fresh_offsets = clouds(seed, (1000 * seed, 10), 1.0, 0.005)
        points[: len(fresh)] = fresh
        offsets.copy_(fresh_offsets)
        graph.replay()
        torch.cuda.synchronize()
        total = int(offsets[-1])
        want = load_points(points, offsets, load_workspace(2, torch.device("cpu")))[0]
        assert torch.equal(loaded[:total].cpu().nan_to_num(), want[:total].nan_to_num())
        assert torch.equal(starts.cpu(), offsets)


def counter(now: int, at_launch: int) -> torch.Tensor:
    return torch.tensor([now, at_launch], dtype=torch.int32).pin_memory()


@pytest.mark.parametrize("channels", [4, 5])
def test_points_that_come_while_the_kernel_waits(channels):
    sizes = (60_000, 0, 80_000)
    fresh, offsets = clouds(5, sizes, 1.0, 0.004, channels)
    fresh = fresh[: sum(sizes)]
    points, staged = torch.zeros(fresh.shape, pin_memory=True), counter(0, 0)
    workspace = load_workspace(3, torch.device("cuda"))
    want = load_points(fresh, offsets, load_workspace(3, torch.device("cpu")))[0].nan_to_num()
    for pieces in (1, 2, 30):
        points.zero_()
        staged[0] = 0
        torch.cuda.synchronize()
        loaded, starts, late = load_points(points, offsets, workspace, staged)
        for piece in fresh.chunk(pieces):
            time.sleep(1e-3)  # long for the kernel, which must not give up
            stage_points([piece], points, staged)
        assert staged.tolist() == [len(fresh), 0] and torch.equal(
            points.nan_to_num(), fresh.nan_to_num()
        )
        assert not late.any() and not workspace.any() and torch.equal(starts.cpu(), offsets)
        assert torch.equal(loaded.cpu().nan_to_num(), want)


@pytest.mark.parametrize("channels", [4, 5])
def test_points_that_another_thread_begins_to_copy(channels):
    """Large clouds and small ones; the kernel starts when some points are there."""
    sizes = (90_000, 0, 900)
    fresh, offsets = clouds(7, sizes, 1.0, 0.004, channels)
    workspace = load_workspace(3, torch.device("cuda"))
    for total in (sum(sizes), 900):
        offsets.clamp_(max=total)
        want = load_points(fresh, offsets, load_workspace(3, torch.device("cpu")))[0][:total]
        points, staged = torch.zeros(fresh.shape, pin_memory=True), counter(0, 0)
        for _ in range(20):
            points.zero_()
            staged.zero_()
            parts = fresh[: total // 2].clone(), fresh[total // 2 : total].clone()
            stage_points(parts, points, staged, finish=False)
            staged[1] = int(staged[0])
            loaded, _, late = load_points(points, offsets, workspace, staged)
            stage_points([], points, staged)
            assert staged[0] == total and torch.equal(
                points[:total].nan_to_num(), fresh[:total].nan_to_num()
            )
            for part in parts:
                part.fill_(7)  # they are the caller's again
            assert not late.any() and not workspace.any()
            assert torch.equal(loaded[:total].cpu().nan_to_num(), want.nan_to_num())


def test_a_call_first_ends_what_the_last_one_began():
    points, staged = torch.zeros(90_000, 4, pin_memory=True), counter(0, 0)
    stage_points([torch.ones(80_000, 4)], points, staged, finish=False)
    stage_points([torch.full((9000, 4), 2.0)], points, staged, finish=False)
    assert staged[0] >= 80_000 and (points[:80_000] == 1).all()
    stage_points([], points, staged)
    assert staged.tolist() == [89_000, 0] and (points[80_000:89_000] == 2).all()


@pytest.mark.parametrize("channels", [4, 5])
@pytest.mark.parametrize("count", [0, 2000])
def test_points_that_never_come_are_late(channels, count):
    points, offsets = clouds(6, (4000, 3000), 1.0, 0.004, channels)
    staged, workspace = counter(count, min(count, 1000)), load_workspace(2, torch.device("cuda"))
    started = time.monotonic()
    _, _, late = load_points(points, offsets, workspace, staged)
    assert late.tolist() == [1] and time.monotonic() - started < 1
    assert not workspace.any()
    want = load_points(points, offsets, load_workspace(2, torch.device("cpu")))[0]
    staged[0] = 7000
    for at_launch in (0, 1234, 7000):
        staged[1] = at_launch
        loaded, _, late = load_points(points, offsets, workspace, staged)
        assert late.tolist() == [0] and not workspace.any()
        assert torch.equal(loaded[:7000].cpu().nan_to_num(), want[:7000].nan_to_num())


def test_what_is_refused():
    points, offsets = clouds(4, (10,), 1.0, 0.0)
    workspace = load_workspace(1, torch.device("cuda"))
    with pytest.raises(ValueError, match="points: not in pinned memory"):
        load_points(points.clone(), offsets, workspace)
    with pytest.raises(RuntimeError, match="offsets must be a CUDA tensor, is on cpu"):
        load_points(points.cuda(), offsets, workspace)
    with pytest.raises(RuntimeError, match="workspace must have 7 elements"):
        torch.ops.millisecond.load_points(
            points, offsets, workspace[:4], None, None, (1, 2, 3), 0.01
        )
    with pytest.raises(ValueError, match="staged: not in pinned memory"):
        load_points(points, offsets, workspace, torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match="moves: not in pinned memory"):
        load_points(points, offsets, workspace, moves=torch.zeros(1, 13))
    with pytest.raises(RuntimeError, match=r"moves must be \[1, 13\]"):
        wrong = None, torch.zeros(2, 13).pin_memory(), (1, 2, 3), 0.01
        torch.ops.millisecond.load_points(points, offsets, workspace, *wrong)
    with pytest.raises(RuntimeError, match="points has room for 40, the clouds need 41"):
        torch.ops.millisecond.stage_points([points, points[:1]], points, counter(0, 0))
    with pytest.raises(RuntimeError, match="cloud must have 4 columns"):
        stage_points([torch.zeros(3, 5)], points, counter(0, 0))
