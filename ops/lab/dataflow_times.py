"""How long one convolution takes by each dataflow, and how long its maps take to make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from millisecond.ops.kernel_map import index_pyramid, submanifold_map
from millisecond.ops.lab.dataflow import GROUPINGS, Dataflow
from millisecond.ops.lab.locations import LocationMap, kernel_map, location_map
from millisecond.ops.lab.networks import AROUND, Layer, same_sites
from millisecond.ops.lab.pairs import PairMap, pair_map
from millisecond.ops.lab.sparse_conv import sparse_conv
from millisecond.ops.lab.timing import (
    DTYPES,
    Times,
    kernel_time,
    launched_time,
    set_precision,
    wall,
)
from millisecond.ops.layers import gains_by_order, segment_of
from millisecond.ops.row_order import row_order
from millisecond.ops.rulebook import KernelMap

DIRECT_LIMIT = 32 * 32  # products of channels up to which direct is tried
SHOWN = (  # by the benchmark
    Dataflow(),
    *(Dataflow("gather_scatter", grouping) for grouping in GROUPINGS),
    Dataflow("fetch_on_demand"),
    Dataflow("direct"),
)
SITES = 100_000  # of a cube of random sites
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
WIDTHS = (16, 32, 64, 128, 256)


def random_layers(density: float) -> list[Layer]:
    """Submanifold convolutions of several widths on the random sites of a cube on the GPU."""
    side = round((SITES / density) ** (1 / 3))
    cells = torch.rand(side, side, side, device="cuda") < density
    coords = torch.nn.functional.pad(cells.nonzero(), (1, 0)).int()
    (level,) = index_pyramid(coords, (side,) * 3, 1, [], last_submanifold=True).levels
    return [same_sites(level, 0, width, width) for width in WIDTHS]


class Maps:
    """What the dataflows take of each kernel map, made once for the layers that share it."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self._made: dict[tuple, PairMap | LocationMap] = {}

    def taken(self, layer: Layer, dataflow: Dataflow) -> KernelMap | PairMap | LocationMap:
        if dataflow.kind == "implicit_gemm":
            return layer.kernel_map
        direct = dataflow.kind == "direct"
        key = direct, layer.kind, layer.level, layer.kernel_map.forward.neighbours.data_ptr()
        if key not in self._made:
            self._made[key] = self._located(layer) if direct else pair_map(layer.kernel_map)
        return self._made[key]

    def _located(self, layer: Layer) -> LocationMap:
        above, below = layer.inputs, layer.outputs
        if layer.kind == "inverse":
            above, below = below, above
        place = above.coords, above.spatial_shape, self.batch_size, layer.geometry, below.coords
        found = location_map(*place)
        return found.reversed() if layer.kind == "inverse" else found


def map_times(layer: Layer, batch_size: int) -> dict[str, float | None]:
    """Milliseconds by the wall clock of the map of a submanifold layer, as a program calls for it:
    by the bitmap, by a location table (None for a grid that is too large for it), and of the list
    of its pairs."""
    level = layer.inputs
    place = level.coords, level.spatial_shape, batch_size

    def search(table: str) -> KernelMap:
        return kernel_map(location_map(*place, AROUND, level.coords, table))

    calls: dict[str, Callable[[], object]] = {
        "bitmap": lambda: submanifold_map(*place),
        "hash": partial(search, "hash"),
        "array": partial(search, "array"),
        "pairs": lambda: pair_map(layer.kernel_map),
    }
    times: dict[str, float | None] = {}
    for name, call in calls.items():
        try:
            times[name] = Times.of(wall(call, 10)).median
        except (ValueError, torch.OutOfMemoryError):  # no array of so large a grid
            times[name] = None
    return times


def dataflow_times(
    layer: Layer,
    maps: Maps,
    precision: str,
    candidates: Iterable[Dataflow],
    training: bool,
    graph: bool = True,
) -> dict[str, float]:
    """Microseconds by dataflow of the forward pass, in training with the backward pass: in a CUDA
    graph, i.e. the device's own, or as they are launched. What a dataflow takes of the map is made
    before."""
    features, weight, gradient = draw_tensors(layer, set_precision(precision), training)
    leaves, found = (features, weight), {}
    for dataflow in candidates:
        if dataflow.kind == "direct" and layer.c_in * layer.c_out > DIRECT_LIMIT:
            continue
        taken = maps.taken(layer, dataflow)
        call = lambda: sparse_conv(features, weight, taken, dataflow=dataflow)  # noqa: B023, E731
        step = (lambda: differentiate(call, leaves, gradient)) if training else call  # noqa: B023
        with torch.inference_mode(not training):
            ms = kernel_time(step, 5, 5) if graph else launched_time(step, 5)
        found[str(dataflow)] = 1e3 * ms
    return found


def in_order(layer: Layer, precision: str) -> Layer | None:
    """The layer with its rows in the order in which ops.spconv computes them; None where it does
    not gain by one."""
    dtype, (forward, backward) = DTYPES[precision], layer.kernel_map
    c_in, c_out = layer.c_in, layer.c_out
    if not gains_by_order(forward, dtype, c_in, c_out):
        return None
    forward = forward._replace(order=row_order(forward, segment_of(dtype, c_in, c_out)))
    if backward is not None and gains_by_order(backward, dtype, c_out, c_in):
        backward = backward._replace(order=row_order(backward, segment_of(dtype, c_in, c_out)))
    return layer._replace(kernel_map=KernelMap(forward, backward))


def draw_tensors(layer: Layer, dtype: torch.dtype, training: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Features, weight, and a gradient of the result."""
    volume = len(layer.kernel_map.forward.neighbours)
    features = torch.randn(len(layer.inputs.coords), layer.c_in, device="cuda").to(dtype)
    weight = torch.randn(volume, layer.c_in, layer.c_out, device="cuda").to(dtype)
    gradient = torch.randn(len(layer.outputs.coords), layer.c_out, device="cuda").to(dtype)
    return features.requires_grad_(training), weight.requires_grad_(training), gradient


def differentiate(call: Callable[[], Tensor], leaves: Sequence[Tensor], gradient: Tensor) -> None:
    """A call with its backward pass."""
    torch.autograd.grad(call(), leaves, gradient)
