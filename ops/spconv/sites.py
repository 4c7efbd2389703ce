"""Active sites in the caller's order, and the kernel maps on them.

The operators want rows sorted by (b, z, y, x). Sites are sorted once, and their maps are renumbered
once for the caller's order: no convolution moves a row of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ops.geometry import ConvGeometry, level_shapes
from ops.kernel_map import index_pyramid, pyramid_builder, strided_map, submanifold_map
from ops.reference.coords import linear_keys
from ops.row_order import row_order
from ops.rulebook import KernelMap, Pyramid, Table
from ops.site_order import OUTSIDE, site_order
from ops.spconv import line_maps
from ops.spconv.foresight import Foreseen, Record
from ops.spconv.renumbering import outputs_in, strided_in, submanifold_in
from ops.spconv.transposed import transposed_map
from ops.tuned import PairLists

Ordered = tuple[Tensor, Tensor | None]


class Sites:
    """Sites of a batch of grids; raises ValueError for one that is there twice or outside."""

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
        self._strided: dict[tuple, tuple[Sites, KernelMap]] = {}
        # with the neighbours that have the id
        self._orders: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.pairs = PairLists()  # of the maps from these sites
        self._record: Record | None = None
        self._foreseen: Foreseen | None = None
        self._below: Foreseen | None = None  # what to foresee from the next level on
        self._level = 0  # of the record

    def are(self, indices: Tensor, shape: Sequence[int], batch_size: int) -> bool:
        """Whether they are those of these indices, unchanged."""
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
            self._foreseen, self._record.is_sorted = last.foreseen(), last.is_sorted

    def ordered(self) -> Ordered:
        """Coords [N, 1 + D] int32, sorted, and the caller's row [N] int64 of each; None where the
        rows are sorted as they are."""
        if self._ordered is None:
            self._ordered = self._sort()
        return self._ordered

    def submanifold(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        """The map of a convolution whose outputs are these sites."""
        if self._record is not None:
            self._record.saw_submanifold(self._level, kernel, dilation)
        if self._foreseen is not None:
            self._build_foreseen(self._foreseen, torch.is_grad_enabled())
        found = self._submanifold.get((kernel, dilation))
        if found is None:
            found = self._map_by_lines(kernel, dilation)
        if found is None:
            coords, order = self.ordered()
            found = _submanifold_map(coords, self.shape, self.batch_size, kernel, dilation)
            found = submanifold_in(order, found)
        self._submanifold[kernel, dilation] = found
        return found

    def strided(
        self,
        geometry: ConvGeometry,
        transposed: bool = False,
        output_padding: Sequence[int] = (),
        both_ways: bool | None = None,
    ) -> tuple[Sites, KernelMap]:
        """The sites of the outputs, and the map to them. Both ways where gradients are on, unless
        given; else there may be no way back."""
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
            coords, order = self.ordered()
            # programs change `indices` in place: those made in inference mode would not tell
            with _tracked():
                if transposed:
                    made = transposed_map(coords, self.shape, geometry, output_padding)
                else:
                    made = self._strided_map(coords, geometry, both_ways)
            outputs, shape, kernel_map = made
            sites = Sites(outputs, shape, self.batch_size, is_sorted=True)
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
        key = id(table.neighbours), segment
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

    def _with_way_back(
        self, geometry: ConvGeometry, outputs: Sites, kernel_map: KernelMap
    ) -> tuple[Sites, KernelMap]:
        coords, order = self.ordered()
        grid = outputs.shape, self.batch_size
        with _tracked():  # see `strided`
            back = line_maps.way_back(coords, outputs.ordered()[0], *grid, geometry)
            return outputs, kernel_map._replace(backward=outputs_in(order, back))

    def _strided_map(
        self, coords: Tensor, geometry: ConvGeometry, both_ways: bool
    ) -> tuple[Tensor, tuple[int, ...], KernelMap]:
        grid = self.shape, self.batch_size
        shapes = level_shapes(self.shape, [geometry])
        if line_maps.too_large(coords, self.batch_size, shapes):
            return line_maps.strided_map(coords, *grid, geometry, both_ways)
        return strided_map(coords, *grid, geometry)

    def _sort(self) -> Ordered:
        coords = self.indices.int().contiguous()
        fault = int(site_order(coords, self.batch_size, self.shape))  # sync: once for an input
        if fault == 0:
            return coords, None
        keys, order = linear_keys(coords, self.shape).sort()
        coords = coords.index_select(0, order)
        if fault & OUTSIDE or (keys[1:] == keys[:-1]).any():  # sync: unsorted inputs only
            raise self._fault()
        if self._record is not None:
            self._record.is_sorted = False
        return coords, order

    def _map_by_lines(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap | None:
        """The map of sites that are likely to be sorted, on a GPU; None where they are not."""
        if self._ordered is not None or self._record is None or not self._record.is_sorted:
            return None
        if not self.indices.is_cuda:
            return None
        coords = self.indices.int().contiguous()
        grid = self.shape, self.batch_size
        found = line_maps.submanifold_map_if_sorted(coords, *grid, kernel, dilation)
        if found is not None:
            self._ordered = coords, None
        return found

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
            outputs = Sites(below.coords, below.spatial_shape, self.batch_size, is_sorted=True)
            sites._strided[downs[depth], False, ()] = outputs, strided_in(order, below.down)
            sites, order = outputs, None

    def _fault(self) -> ValueError:
        """The error for the first of the caller's rows that is outside or there twice."""
        first: dict[tuple[int, ...], int] = {}
        limit = [self.batch_size, *self.shape]
        for row, site in enumerate(self.indices.tolist()):
            if not all(0 <= c < n for c, n in zip(site, limit, strict=True)):
                return ValueError(
                    f"indices: row {row} is {site}, outside of {self.batch_size} grids of "
                    f"{list(self.shape)}"
                )
            if first.setdefault(tuple(site), row) != row:
                return ValueError(
                    f"indices: row {row} is {site}, as row {first[tuple(site)]}: each site may be "
                    "there once"
                )
        return ValueError(f"indices: no sites of {self.batch_size} grids of {list(self.shape)}")


def _tracked() -> AbstractContextManager:
    """Tensors that are made tell when they change."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


_builder = lru_cache(maxsize=256)(pyramid_builder)
_shapes = lru_cache(maxsize=256)(level_shapes)


def _submanifold_map(
    coords: Tensor,
    shape: tuple[int, ...],
    batch_size: int,
    kernel: tuple[int, ...],
    dilation: tuple[int, ...],
) -> KernelMap:
    if line_maps.too_large(coords, batch_size, [shape]):
        return line_maps.submanifold_map(coords, shape, batch_size, kernel, dilation)
    if not coords.is_cuda or any(step != 1 for step in dilation) or len(coords) == 0:
        return submanifold_map(coords, shape, batch_size, kernel, dilation)
    # with a capacity nothing is read back: the number of outputs is known
    sizes = [len(coords)]
    found = index_pyramid(coords, shape, batch_size, (), kernel, True, sizes).levels[0].submanifold
    assert found is not None  # asked for
    table = Table(found.forward.neighbours)
    return KernelMap(table, table.reversed())
