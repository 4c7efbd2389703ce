"""Active sites in the caller's order, with the kernel maps that were built on them.

A GPU makes a submanifold map of rows in any order. The other operators want rows sorted by
(b, z, y, x): sites are sorted once, and their maps are renumbered once for the caller's order. No
convolution moves a row of features.

Programs ask for one map at a time, and each strided one waits for the device. The maps depend on
the sites and the windows alone, so the maps of the last input tell what to build for this one, in
one call (foreseen maps). What was not foreseen is built when it is asked for.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millisecond.ops import line_maps
from millisecond.ops.dense import dense, dense_definition
from millisecond.ops.geometry import (
    MOST,
    ConvGeometry,
    check_cells,
    level_shapes,
    linear_keys,
    submanifold_window,
)
from millisecond.ops.kernel_map import (
    map_of,
    pyramid_builder,
    reached_outputs,
    strided_map,
    strided_map_definition,
    submanifold_map,
    submanifold_map_definition,
)
from millisecond.ops.line_maps import (
    OUTSIDE,
    TWICE,
    line_table,
    site_faults,
    site_order,
    site_order_definition,
    site_table,
)
from millisecond.ops.row_order import MOST_OFFSETS, row_order
from millisecond.ops.rulebook import KernelMap, Level, Pyramid, Table

INDEXED = 2, 3  # dimensions that the kernels index
Ordered = tuple[Tensor, Tensor | None]


class WrongSites(ValueError):
    """A site is there twice or outside of its grid. The message names the first one; to find it
    takes long, so that it is looked for where somebody reads it."""

    def __init__(self, indices: Tensor, shape: tuple[int, ...], batch_size: int):
        super().__init__(indices, shape, batch_size)

    def __str__(self) -> str:
        return _first_fault(*self.args)


class Asked(NamedTuple):
    """What a GPU is to tell about the sites of a map; see `line_maps.site_faults`."""

    coords: Tensor  # [N, 1 + D] int32
    neighbours: Tensor
    question: int
    by_lines: bool  # for sorted sites alone
    window: tuple[tuple[int, ...], tuple[int, ...]]  # kernel and dilation


class Sites:
    """Sites of a batch of grids; raises WrongSites for one that is there twice or outside. One
    thread at a time may work on them."""

    _site_order = staticmethod(site_order)
    _dense = staticmethod(dense)

    def __init__(
        self,
        indices: Tensor,  # [N, 1 + D] int32 or int64, in any order
        shape: tuple[int, ...],
        batch_size: int,
        is_sorted: bool = False,
    ):
        self.indices, self.shape, self.batch_size = indices, shape, batch_size
        self._version = None if indices.is_inference() else indices._version
        self._ordered: Ordered | None = (indices, None) if is_sorted else None
        self._submanifold: dict[tuple, KernelMap] = {}
        self._asked: Asked | None = None  # by the map that was begun last
        self._in_order = True  # as far as is known
        self._strided: dict[tuple, tuple[Sites, KernelMap]] = {}
        # with the neighbours that have the id
        self._orders: dict[tuple[int, int, bool], tuple[Tensor, Tensor]] = {}
        self._record: Record | None = None
        self._foreseen: Foreseen | None = None
        self._below: Foreseen | None = None  # what to foresee from the next level on
        self._level = 0  # of the record

    def are(self, indices: Tensor, shape: Sequence[int], batch_size: int) -> bool:
        """Whether they are the sites of these indices, unchanged."""
        return (
            self.indices is indices
            and (self._version is None or self._version == indices._version)
            and self.shape == tuple(shape)
            and self.batch_size == batch_size
        )

    def unchanged(self) -> bool:
        """Whether no program has changed the indices in place."""
        return self._version is None or self._version == self.indices._version

    def follow(self, layer: Any) -> None:
        """Foresee what will be asked for from what was asked for after this layer's last input,
        and record it for the next one. The first layer on the sites of an input calls this."""
        if self._record is not None:
            return
        last, self._record = layer.__dict__.get("_record"), Record()
        layer.__dict__["_record"] = self._record
        if last is not None:
            self._foreseen = last.foreseen()
            self._record.is_sorted = self._in_order = last.is_sorted

    def ordered(self) -> Ordered:
        """Coords [N, 1 + D] int32, sorted, and the caller's row [N] int64 of each; None where the
        rows are sorted as they are."""
        if self._ordered is None:
            self._ordered = self._sort()
        return self._ordered

    def dense(self, features: Tensor) -> Tensor:
        """The caller's rows [N, C] as [B, C, *shape]."""
        coords, order = self.ordered()
        rows = features if order is None else features.index_select(0, order)
        return self._dense(rows, coords, self.shape, self.batch_size)

    def submanifold(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        """The map of a convolution whose outputs are these sites."""
        while True:
            found = self.begun(kernel, dilation)
            if self.sure():
                return found

    def begun(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        """The same, while a GPU still looks whether the sites are as they should be. What is
        computed along the map counts if the sites are then `sure`, else it is to be done again."""
        if self._asked is not None:  # an error came between: nobody asks any more
            self._submanifold.pop(self._asked.window, None)
            self._asked = None
        if self._record is not None:
            self._record.saw_submanifold(self._level, kernel, dilation)
        if self._foreseen is not None:
            self._build_foreseen(self._foreseen, torch.is_grad_enabled())
        found = self._submanifold.get((kernel, dilation))
        if found is None and self._on_gpu():
            found = self._map_on_gpu(kernel, dilation)
        if found is None:
            coords, order = self.ordered()
            found = submanifold_in(order, self._submanifold_map(coords, kernel, dilation))
        self._submanifold[kernel, dilation] = found
        return found

    def sure(self) -> bool:
        """Whether the map that was begun last counts; waits where a GPU made it."""
        if self._asked is None:
            return True
        coords, neighbours, question, by_lines, window = self._asked
        fault = site_faults(neighbours, question)
        self._asked = None
        self._in_order = fault == 0
        if self._record is not None:
            self._record.is_sorted = self._in_order
        if fault == 0:
            self._ordered = coords, None
            return True
        if by_lines or fault & (OUTSIDE | TWICE):
            self._submanifold.pop(window, None)
            self._orders.clear()
        if not by_lines and fault & (OUTSIDE | TWICE):
            raise WrongSites(self.indices, self.shape, self.batch_size)
        return not by_lines

    def strided(
        self,
        geometry: ConvGeometry,
        transposed: bool = False,
        output_padding: Sequence[int] = (),
        both_ways: bool | None = None,
    ) -> tuple[Sites, KernelMap]:
        """The sites of the outputs, and the map to them. Both ways where gradients are on, unless
        given; else the way back may be missing."""
        both_ways = torch.is_grad_enabled() if both_ways is None else both_ways
        goes_on = not transposed and self._record is not None
        if goes_on:
            goes_on = self._record.saw_strided(self._level, geometry)  # type: ignore[union-attr]
            if self._foreseen is not None:
                self._build_foreseen(self._foreseen, both_ways)
        key = geometry, transposed, tuple(output_padding)
        found = self._strided.get(key)
        if found is not None and not found[0].unchanged():  # then all is built anew
            found = None
        elif found is not None and both_ways and found[1].backward is None:
            found = self._with_way_back(geometry, *found)
        if found is None:
            if len(geometry.kernel_size) != len(self.shape):
                ConvGeometry.of(*geometry, dims=len(self.shape))  # says so
            coords, order = self.ordered()
            # programs change `indices` in place: those made in inference mode would not tell
            with _tracked():
                if transposed:
                    made = self._transposed_map(coords, geometry, output_padding)
                else:
                    made = self._strided_map(coords, geometry, both_ways)
            outputs, shape, kernel_map = made
            sites = type(self)(outputs, shape, self.batch_size, is_sorted=True)
            found = sites, strided_in(order, kernel_map)
        self._strided[key] = found
        if goes_on:
            found[0]._record, found[0]._level = self._record, self._level + 1
            if self._below is not None and geometry == self._below.downs[0]:
                found[0]._foreseen, self._below = self._below.below(), None
        return found

    def with_order(self, table: Table, segment: int) -> Table:
        """A table of the outputs on these sites with an order of its rows, computed once; see
        `ops.row_order`."""
        in_pieces = len(table.neighbours) > MOST_OFFSETS
        key = id(table.neighbours), segment, in_pieces and table.flipped
        if key not in self._orders:
            self._orders[key] = table.neighbours, row_order(table, segment)
        return table._replace(order=self._orders[key][1])

    def inverted(self, geometry: ConvGeometry, kernel_map: KernelMap) -> KernelMap:
        """The map back to these sites of a strided map that was built here."""
        if self._record is not None:
            self._record.inverted = True
        if kernel_map.backward is None:
            kernel_map = self.strided(geometry, both_ways=True)[1]
        return kernel_map.reversed()

    def way_back_from(self, outputs: Sites) -> KernelMap:
        """The map back to these sites of the strided map from here to `outputs`."""
        for (geometry, transposed, _), (found, kernel_map) in self._strided.items():
            if found is outputs and not transposed:
                return self.inverted(geometry, kernel_map)
        raise ValueError(
            "x: no strided layer made its sites from the sites of `like`; pass that layer's "
            "kernel_map"
        )

    def _with_way_back(
        self, geometry: ConvGeometry, outputs: Sites, kernel_map: KernelMap
    ) -> tuple[Sites, KernelMap]:
        coords, order = self.ordered()
        grid = self.batch_size, outputs.shape
        with _tracked():  # see `strided`
            back = Table(line_table(coords, outputs.ordered()[0], *grid, geometry, True))
            return outputs, kernel_map._replace(backward=outputs_in(order, back))

    def _submanifold_map(
        self, coords: Tensor, kernel: tuple[int, ...], dilation: tuple[int, ...]
    ) -> KernelMap:
        return submanifold_map(coords, self.shape, self.batch_size, kernel, dilation)

    def _strided_map(
        self, coords: Tensor, geometry: ConvGeometry, both_ways: bool
    ) -> tuple[Tensor, tuple[int, ...], KernelMap]:
        grid = self.shape, self.batch_size
        shapes = level_shapes(self.shape, [geometry])
        if line_maps.too_large(coords, self.batch_size, shapes):
            return line_maps.strided_map(coords, *grid, geometry, both_ways)
        return strided_map(coords, *grid, geometry)

    def _transposed_map(
        self, coords: Tensor, geometry: ConvGeometry, output_padding: Sequence[int]
    ) -> tuple[Tensor, tuple[int, ...], KernelMap]:
        """By the maps of strided convolutions, which have kernels, wherever there is one."""
        shape = transposed_shape(self.shape, geometry, output_padding)
        apart = strides_apart(self.shape, shape, geometry)
        if apart is None:
            return transposed_map_definition(coords, shape, geometry)
        grid, window = apart
        coords = coords * coords.new_tensor((1, *geometry.stride))
        sites = type(self)(coords, grid, self.batch_size, is_sorted=True)
        outputs, _, kernel_map = sites._strided_map(coords, window, both_ways=True)
        return outputs, shape, turned(kernel_map)

    def _sort(self) -> Ordered:
        coords = self.indices.int().contiguous()
        grid = self.batch_size, self.shape
        fault = int(self._site_order(coords, *grid))  # sync: once for an input
        if self._record is not None:
            self._record.is_sorted = fault == 0
        if fault == 0:
            return coords, None
        keys, order = linear_keys(coords, self.shape).sort()
        coords = coords.index_select(0, order)
        if fault & OUTSIDE or (keys[1:] == keys[:-1]).any():  # sync: unsorted inputs only
            raise WrongSites(self.indices, self.shape, self.batch_size)
        return coords, order

    def _on_gpu(self) -> bool:
        return self.indices.is_cuda and len(self.shape) in INDEXED

    def _map_on_gpu(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        """The map whatever the order of the rows, if the sites are `sure`."""
        coords, known = self.indices.int().contiguous(), self._ordered
        by_lines = self._in_order if known is None else known[1] is None
        grid, right = (coords, self.batch_size, self.shape), known is not None
        neighbours, question = site_table(*grid, kernel, dilation, by_lines, right)
        if not right:
            self._asked = Asked(coords, neighbours, question, by_lines, (kernel, dilation))
        return KernelMap.around(Table(neighbours))

    def _build_foreseen(self, foreseen: Foreseen, both_ways: bool) -> None:
        """All maps that the last input needed, where it went down: in one call that waits once."""
        self._foreseen = None
        if not foreseen.downs or self.indices.shape[0] == 0:
            return
        assert self._record is not None  # what has foreseen this follows a layer
        if self._ordered is None and not self._record.is_sorted:
            self._ordered = self._sort()
        downs, kernel, last, inverted = foreseen
        if self._too_large(downs):
            self._below = foreseen  # whose grid is an eighth as large
            return
        coords, order = self._ordered or (self.indices.int().contiguous(), None)
        wanted = downs, kernel, last, inverted or both_ways
        try:
            with _tracked():  # see `strided`
                pyramid = _builder(self.shape, self.batch_size, *wanted, coords.device)(coords)
        except ValueError:
            # not sorted, or wrong, or a grid too small for a window: as if nothing was foreseen
            return
        self._ordered = coords, order
        self._take(pyramid, downs, kernel)

    def _too_large(self, downs: tuple[ConvGeometry, ...]) -> bool:
        try:
            shapes = _shapes(self.shape, downs)
        except ValueError:  # a window does not fit: its own layer will say so
            return True
        return line_maps.too_large(self.indices, self.batch_size, shapes)

    def _take(
        self, pyramid: Pyramid, downs: Sequence[ConvGeometry], kernel: tuple[int, ...]
    ) -> None:
        """Keep the maps of a pyramid, at every level."""
        assert self._ordered is not None  # they were built from it
        sites, order = self, self._ordered[1]
        dilation = (1,) * len(kernel)
        for depth, level in enumerate(pyramid.levels):
            if level.submanifold is not None:
                sites._submanifold[kernel, dilation] = submanifold_in(order, level.submanifold)
            if depth == len(downs):
                break
            below = pyramid.levels[depth + 1]
            assert below.down is not None  # there is one from each level to the next
            outputs = sites._made(downs[depth], below)
            sites._strided[downs[depth], False, ()] = outputs, strided_in(order, below.down)
            sites, order = outputs, None

    def _made(self, down: ConvGeometry, below: Level) -> Sites:
        """The sites of the level that a convolution of this window makes."""
        return Sites(below.coords, below.spatial_shape, self.batch_size, is_sorted=True)


def _first_fault(indices: Tensor, shape: Sequence[int], batch_size: int) -> str:
    """Which of the caller's rows is the first one that is outside or there twice."""
    first: dict[tuple[int, ...], int] = {}
    limit = [batch_size, *shape]
    for row, site in enumerate(indices.tolist()):
        if not all(0 <= c < n for c, n in zip(site, limit, strict=True)):
            return f"indices: row {row} is {site}, outside of {batch_size} grids of {list(shape)}"
        if first.setdefault(tuple(site), row) != row:
            return (
                f"indices: row {row} is {site}, as row {first[tuple(site)]}: each site may be "
                "there once"
            )
    return f"indices: no sites of {batch_size} grids of {list(shape)}"


def _tracked() -> AbstractContextManager:
    """Tensors that are made tell when they change."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


_builder = lru_cache(maxsize=256)(pyramid_builder)
_shapes = lru_cache(maxsize=256)(level_shapes)


# ---- sites in one dimension or in four, which the kernels do not index: by plain torch ----------


def sites_of(
    indices: Tensor, shape: Sequence[int], batch_size: int, is_sorted: bool = False
) -> Sites:
    """The sites [N, 1 + D] of a batch of grids of 1 to 4 dimensions."""
    kind = Sites if len(shape) in INDEXED else PlainSites
    return kind(indices, tuple(shape), batch_size, is_sorted)


class PlainSites(Sites):
    """See Sites."""

    _site_order = staticmethod(site_order_definition)

    def follow(self, layer: Any) -> None:
        """Nothing is foreseen."""

    _dense = staticmethod(partial(dense_definition, count=None))

    def _submanifold_map(
        self, coords: Tensor, kernel: tuple[int, ...], dilation: tuple[int, ...]
    ) -> KernelMap:
        window = submanifold_window(kernel, dilation, len(self.shape))
        return submanifold_map_definition(coords, self.shape, self.batch_size, *window)

    def _strided_map(
        self, coords: Tensor, geometry: ConvGeometry, both_ways: bool
    ) -> tuple[Tensor, tuple[int, ...], KernelMap]:
        return strided_map_definition(coords, self.shape, self.batch_size, geometry)


# ---- which maps a network asks for --------------------------------------------------------------


class Foreseen(NamedTuple):
    """Arguments of `ops.index_pyramid`."""

    downs: tuple[ConvGeometry, ...]
    submanifold_kernel: tuple[int, ...]
    last_submanifold: bool
    transposed: bool  # an inverse convolution has asked for the way back

    def below(self) -> Foreseen:
        """What is left of it for the outputs of its first strided layer."""
        return self._replace(downs=self.downs[1:])


class Record:
    """What was asked for on the sites of one input: along its first chain of strided layers."""

    def __init__(self) -> None:
        self.downs: list[ConvGeometry] = []
        self.kernels: list[list[tuple[int, ...]]] = []  # submanifold, of every level
        self.inverted = False
        self.is_sorted = True  # rows of the input; until they are seen, of the one before

    def saw_submanifold(
        self, level: int, kernel: tuple[int, ...], dilation: tuple[int, ...]
    ) -> None:
        if level < len(self.kernels) and kernel in self.kernels[level]:  # most often
            return
        if max(dilation) > 1:
            return
        while len(self.kernels) <= level:
            self.kernels.append([])
        self.kernels[level].append(kernel)

    def saw_strided(self, level: int, geometry: ConvGeometry) -> bool:
        """Whether it goes on with the chain."""
        if len(self.downs) == level:
            self.downs.append(geometry)
        return self.downs[level] == geometry

    def foreseen(self) -> Foreseen | None:
        """What one call can build: levels with submanifold maps of one kernel."""
        kernels = self.kernels[0] if self.kernels else []
        if not kernels:
            return None
        kernel = max(kernels, key=self._depth)
        depth = self._depth(kernel)
        downs = tuple(self.downs[:depth])
        return Foreseen(downs, kernel, self._has(depth, kernel), self.inverted)

    def _depth(self, kernel: tuple[int, ...]) -> int:
        depth = 0
        while depth < len(self.downs) and self._has(depth, kernel):
            depth += 1
        return depth

    def _has(self, level: int, kernel: tuple[int, ...]) -> bool:
        return level < len(self.kernels) and kernel in self.kernels[level]


# ---- maps of sorted rows as maps of rows in the caller's order ----------------------------------


def submanifold_in(order: Tensor | None, kernel_map: KernelMap) -> KernelMap:
    """A map of sorted rows as one of the caller's rows."""
    if order is None:
        return kernel_map
    table = kernel_map.forward
    columns = table.filled().index_select(1, _inverse(order))
    return KernelMap.around(Table(_renumbered(columns, order), table.count))


def strided_in(order: Tensor | None, kernel_map: KernelMap) -> KernelMap:
    """The same for a map whose inputs alone are in the caller's order."""
    if order is None:
        return kernel_map
    forward, backward = kernel_map
    if backward is not None:
        backward = outputs_in(order, backward)
    return KernelMap(Table(_renumbered(forward.filled(), order), forward.count), backward)


def outputs_in(order: Tensor | None, table: Table) -> Table:
    """The same for a table whose outputs alone are in the caller's order."""
    if order is None:
        return table
    return Table(table.neighbours.index_select(1, _inverse(order)), table.count)


def _renumbered(neighbours: Tensor, order: Tensor) -> Tensor:
    """Entries that are sorted rows as the caller's rows; -1 stays."""
    rows = torch.cat((order.int(), order.new_full((1,), -1, dtype=torch.int32)))
    return rows[neighbours]


def _inverse(order: Tensor) -> Tensor:
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank


# ---- the map of a transposed convolution: output = input * stride - padding + offset * dilation -


def transposed_shape(
    shape: Sequence[int], geometry: ConvGeometry, output_padding: Sequence[int]
) -> tuple[int, ...]:
    """(in - 1) * stride - 2 padding + kernel + output padding on each axis, as spconv 2 has it: the
    dilation does not enlarge the grid."""
    axes = zip(
        shape, geometry.kernel_size, geometry.stride, geometry.padding, output_padding, strict=True
    )
    found = tuple((n - 1) * s - 2 * p + k + more for n, k, s, p, more in axes)
    if min(found) < 1 or max(found) >= MOST:
        raise ValueError(
            f"stride: {geometry.stride} with padding {geometry.padding} makes no grid of "
            f"{tuple(shape)}"
        )
    check_cells(1, [found])
    return found


def strides_apart(
    shape: Sequence[int], out_shape: Sequence[int], geometry: ConvGeometry
) -> tuple[tuple[int, ...], ConvGeometry] | None:
    """A transposed convolution is one of stride 1 over sites that lie its strides apart, with the
    offsets in reverse order: the grid of these sites, and the window. None where it would need less
    than no padding, or the grid is too small or too large for the sites."""
    _, strides, paddings, dilations = geometry
    reach = [(k - 1) * d for k, d in zip(geometry.kernel_size, dilations, strict=True)]
    padding = tuple([r - p for r, p in zip(reach, paddings, strict=True)])
    grid = tuple([n - q + p for n, q, p in zip(out_shape, padding, paddings, strict=True)])
    last = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    if min(padding) < 0 or max(grid) >= MOST or any(map(operator.ge, last, grid)):
        return None
    ones = (1,) * len(grid)
    return grid, ConvGeometry(geometry.kernel_size, ones, padding, dilations)


def turned(kernel_map: KernelMap) -> KernelMap:
    """With the offsets in reverse order."""
    forward, backward = kernel_map
    assert backward is not None  # asked for
    tables = (table._replace(neighbours=table.neighbours.flip(0)) for table in (forward, backward))
    return KernelMap(*tables)


def transposed_map_definition(
    coords: Tensor,  # [N, 1 + D] int32, sorted
    out_shape: tuple[int, ...],
    geometry: ConvGeometry,
) -> tuple[Tensor, tuple[int, ...], KernelMap]:
    """Output coords [M, 1 + D] int32, sorted, their grid, and the map to them, in plain torch."""
    reached = reached_outputs(coords, out_shape, geometry, transposed=True)
    outputs, kernel_map = map_of(reached, out_shape, both_ways=True)
    return outputs, out_shape, kernel_map
