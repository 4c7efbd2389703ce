"""Which dataflow is the fastest for each work of a network: measured, and chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import median

from millisecond.ops.lab.dataflow import IMPLICIT_GEMM, Dataflow
from millisecond.ops.lab.dataflow_times import Maps, dataflow_times, in_order
from millisecond.ops.lab.networks import Layer
from millisecond.ops.lab.pairs import pair_map
from millisecond.ops.lab.timing import Times, wall
from millisecond.ops.lab.tuned import FastestDataflow, Work

CANDIDATES = (  # direct takes no kernel map, so it is none
    Dataflow(),
    *(Dataflow("gather_scatter", grouping) for grouping in ("symmetric", "fixed")),
    *(Dataflow("gather_scatter", "adaptive", epsilon) for epsilon in (0.1, 0.3, 0.5)),
    Dataflow("gather_scatter", "adaptive", 0.3, 16384),
    Dataflow("fetch_on_demand"),
)
ORDERED, PAIRS = "implicit_gemm, rows in order", "list pairs"  # beside the dataflows
MARGIN = 0.97  # of the implicit GEMM's time: what is hardly faster is not worth another engine


def measure(
    batches: Iterable[tuple[list[Layer], int]], precisions: Sequence[str]
) -> dict[Work, dict[str, float]]:
    """Median microseconds of each work by dataflow, of the implicit GEMM on rows in order (where a
    layer of ops.spconv gains by it), and to list the pairs of the map.

    batches: the layers of a network on a batch, and the size of the batch.
    """
    samples: dict[Work, dict[str, list[float]]] = {}
    for layers, batch in batches:
        maps = Maps(batch)
        for layer, precision, training in product(layers, precisions, (False, True)):
            volume, rows = layer.kernel_map.forward.neighbours.shape
            shape = volume, layer.c_in, layer.c_out
            work = Work(layer.kind, *shape, precision, training, rows.bit_length())
            for name, time in _times_of(layer, maps, precision, training).items():
                samples.setdefault(work, {}).setdefault(name, []).append(time)
    return {
        work: {name: median(times) for name, times in us.items()} for work, us in samples.items()
    }


def _times_of(layer: Layer, maps: Maps, precision: str, training: bool) -> dict[str, float]:
    """Microseconds, see `measure`."""
    us = dataflow_times(layer, maps, precision, CANDIDATES, training)
    ordered = in_order(layer, precision)
    if ordered is not None:
        implicit = dataflow_times(ordered, maps, precision, [IMPLICIT_GEMM], training)
        us[ORDERED] = implicit[str(IMPLICIT_GEMM)]
    us[PAIRS] = 1e3 * Times.of(wall(lambda: pair_map(layer.kernel_map), 5)).median
    return us


def choose(us: dict[str, float]) -> FastestDataflow:
    """The fastest, if it is clearly faster than the implicit GEMM: on listed pairs, and together
    with the time to list them."""
    flows = {name: time for name, time in us.items() if name not in (ORDERED, PAIRS)}
    best, implicit = min(flows, key=lambda name: flows[name]), us[str(IMPLICIT_GEMM)]
    listed = flows[best] < MARGIN * implicit
    unlisted = flows[best] + us[PAIRS] < MARGIN * min(implicit, us.get(ORDERED, implicit))
    fastest = Dataflow.parse(best)
    return FastestDataflow(*(fastest if worth else IMPLICIT_GEMM for worth in (listed, unlisted)))
