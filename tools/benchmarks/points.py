"""Operators of points beside PointNet++'s kernels: equal results, one run."""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from millisecond import ops
from millisecond.ops.lab.pointnet2 import PointNet2, sampler
from millisecond.ops.lab.timing import Times, by_turns, kernel_time
from millisecond.tools.benchmarks.timing import Scans

# clouds, points of a cloud, centres or queries
SIZES = ((1, 16_384, 4096), (16, 16_384, 4096), (1, 131_072, 16_384))
RADIUS, SAMPLES, CHANNELS = 0.8, 32, 64  # metres; points of a ball; of the features
ROUNDED = 1e-5  # of the norm: sums of float32 in another order
ENGINES = "millisecond", "PointNet++"
ORDERS = "shuffled", "as scanned"  # of the points; the first one for features
SAMPLES_OF = ((1024, 16_384), (2048, 131_072))  # of furthest point sampling; points of a cloud
CLOUDS, WARM_UP = (1, 16), 3  # at once; calls

Sampler = Callable[[Tensor, int], Tensor]


class Pair(NamedTuple):
    """Two calls for the same result."""

    name: str
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]


def measure(scans: Scans, repeats: int) -> dict:
    """Neighbours and features: device time of every operator at all sizes; prints the table."""
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, points of {scans.source}, ms per call in a graph")
    pool = torch.cat([cloud[:, :3] for cloud in scans.points])
    baseline = PointNet2()
    rows = []
    for (batch, count, queries), order in product(SIZES, ORDERS):
        points, centres = _clouds(pool, batch, count, queries, order)
        sizes = {"order": order, "clouds": batch, "points": count, "queries": queries}
        pairs = list(_searches(points, centres, baseline))
        if order == ORDERS[0]:
            pairs += _features(points, centres, baseline)
        for pair in pairs:
            rows += _compare(pair, sizes, repeats)
    return {"device": name, "scans": scans.source, "rows": rows}


def _clouds(
    pool: Tensor, batch: int, count: int, queries: int, order: str
) -> tuple[Tensor, Tensor]:
    """Points [B, P, 3], four of five successive ones of the pool, and some of them as centres."""
    generator = torch.Generator().manual_seed(0)
    span = min(count * 5 // 4, len(pool))
    some = torch.randperm(count, generator=generator)[:queries]
    rows = torch.randperm(span, generator=generator)[torch.arange(count) % span]
    if order == "as scanned":
        rows, some = rows.sort().values, some.sort().values
    firsts = torch.randint(len(pool) - span + 1, (batch, 1), generator=generator)
    points = pool[firsts + rows].cuda()
    return points, points[:, some.cuda()].contiguous()


def _compare(pair: Pair, sizes: dict[str, int | str], repeats: int) -> list[dict]:
    """One row per engine."""
    got, want = pair.ours().double(), pair.theirs().double()
    if not (got - want).norm() <= ROUNDED * want.norm():
        raise RuntimeError(f"{pair.name}: {' and '.join(ENGINES)} have different results")
    del got, want
    calls = dict(zip(ENGINES, pair[1:], strict=True))
    clock = partial(kernel_time, launches=5, repeats=3)
    milliseconds = by_turns(calls, repeats, clock=clock)
    fastest = statistics.median(milliseconds[ENGINES[0]])
    rows = []
    for name, values in milliseconds.items():
        row = {"operator": pair.name, "engine": name, **sizes}
        row |= {"median_ms": statistics.median(values), "least_ms": min(values)}
        row |= {"most_ms": max(values), "factor": statistics.median(values) / fastest}
        rows.append(row)
        print(
            "{operator:<26} {order:<10} B={clouds:<2} {queries:>6} of {points:>6} {engine:<12} "
            "median {median_ms:8.4f}  {least_ms:8.4f} to {most_ms:8.4f}  {factor:5.1f} x".format(
                **row
            ),
            flush=True,
        )
    return rows


def _searches(points: Tensor, centres: Tensor, baseline: PointNet2) -> Iterator[Pair]:
    yield Pair(
        "ball query",
        lambda: ops.ball_query(points, centres, RADIUS, SAMPLES),
        lambda: baseline.ball_query(points, centres, RADIUS, SAMPLES),
    )
    yield Pair(
        "three nearest",
        lambda: ops.three_nearest(centres, points).rows,
        lambda: baseline.three_nearest(centres, points),
    )


def _features(points: Tensor, centres: Tensor, baseline: PointNet2) -> Iterator[Pair]:
    balls = ops.ball_query(points, centres, RADIUS, SAMPLES)
    yield from _with_backward(
        "grouping",
        torch.randn(*points.shape[:2], CHANNELS, device="cuda"),
        lambda features: ops.group_points(features, balls).flatten(1, 2),
        baseline.grouping(balls),
    )
    rows, distances = ops.three_nearest(centres, points)
    weights = ops.inverse_distance_weights(distances)
    yield from _with_backward(
        "interpolation",
        torch.randn(*centres.shape[:2], CHANNELS, device="cuda"),
        lambda features: ops.interpolate(features, rows, weights),
        baseline.interpolation(rows, weights),
    )


def _with_backward(
    name: str,
    features: Tensor,  # [B, P, C]
    ours: Callable[[Tensor], Tensor],  # to [B, places, C]
    theirs: Callable[[Tensor, int, bool], Tensor],
) -> Iterator[Pair]:
    """The forward pass alone, and both; PointNet++'s features are [B, C, P]."""
    by_channel, places = features.mT.contiguous(), ours(features).shape[1]
    share = torch.randn(len(features), places, CHANNELS, device="cuda")
    share_by_channel, count = share.mT.contiguous(), features.shape[1]
    yield Pair(name, lambda: ours(features), lambda: theirs(by_channel, places, False).mT)
    leaf = features.clone().requires_grad_()

    def both_of_ours() -> Tensor:
        return torch.autograd.grad(ours(leaf), leaf, share)[0]

    def both_of_theirs() -> Tensor:
        theirs(by_channel, places, False)
        return theirs(share_by_channel, count, True).mT

    yield Pair(f"{name} and backward", both_of_ours, both_of_theirs)


def sampling(repeats: int) -> dict:
    """Furthest point sampling: the table of all sizes and batches; prints it."""
    torch.manual_seed(0)
    both = ops.furthest_point_sampling, sampler()
    samplers: dict[str, Sampler] = dict(zip(ENGINES, both, strict=True))
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, uniform points, {repeats} calls each, one by one")
    rows = []
    for samples, count in SAMPLES_OF:
        for batch in CLOUDS:
            points = (torch.rand(batch, count, 3) * torch.tensor([70, 80, 4])).cuda()
            rows += _compare_samplers(samplers, points, samples, repeats)
    return {"device": name, "rows": rows}


def _compare_samplers(
    samplers: dict[str, Sampler], points: Tensor, samples: int, repeats: int
) -> list[dict]:
    """One row for each sampler."""
    chosen = [sampler(points, samples) for sampler in samplers.values()]
    if not all(torch.equal(rows, chosen[0]) for rows in chosen):
        raise RuntimeError(f"{' and '.join(samplers)} choose different rows")
    calls = {name: partial(sampler, points, samples) for name, sampler in samplers.items()}
    times = {name: Times.of(values) for name, values in by_turns(calls, repeats, WARM_UP).items()}
    rows = []
    for name, (median, p99, least) in times.items():
        row = {"engine": name, "samples": samples, "points": points.shape[1], "batch": len(points)}
        row |= {"median_ms": median, "p99_ms": p99, "least_ms": least}
        row["factor"] = median / times["millisecond"].median
        rows.append(row)
        print(
            "{samples:>5} of {points:>6} B={batch:<2} {engine:<12} median {median_ms:9.3f} ms  "
            "{least_ms:9.3f} to {p99_ms:9.3f}  {factor:5.1f} x".format(**row),
            flush=True,
        )
    return rows
