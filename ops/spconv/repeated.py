"""Sites with several rows, or outside of the grid, as spconv 2 takes them.

A strided layer adds the rows of a site. A submanifold layer keeps all rows, and the first row of
a site stands for the site. At the offsets before the centre this row alone is an output, and gets
what all rows of a neighbour give. At the offsets behind the centre this row alone is an input,
and all rows of a neighbour get what it gives. The centre takes each row to itself.

spconv's CPU build does this; on a GPU the row that stands for a site is left to chance there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from millisecond.ops.geometry import ConvGeometry, coords_of_keys, linear_keys
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sites import Ordered, Sites, sites_of

Convolve = Callable[[Tensor], Tensor]


class RepeatedSites(Sites):
    """Maps are of the sites inside of the grid, each of them once: of `unique`. A submanifold map
    has three parts instead, of its inputs and of its outputs: all rows, for the centre; the sites,
    whose inputs are sums of rows and whose outputs go to all rows; the sites, whose inputs are
    their first rows and whose outputs go there."""

    def __init__(self, indices: Tensor, shape: tuple[int, ...], batch_size: int):
        super().__init__(indices, shape, batch_size)
        limit = torch.tensor([batch_size, *shape], device=indices.device)
        outside = ((indices < 0) | (indices >= limit)).any(dim=1)
        nowhere = torch.iinfo(torch.int64).max  # the last key
        keys = torch.where(outside, nowhere, linear_keys(indices, shape))
        keys, cell, count = keys.unique(return_inverse=True, return_counts=True)
        sites = len(keys) - int(outside.any())
        self.cell, self.count = cell, count[:sites]  # [N]: len(unique) for a row outside
        self._by_cell = cell.argsort(stable=True)[: int(self.count.sum())]
        start = self.count.cumsum(0)
        self.first, self.last = self._by_cell[start - self.count], self._by_cell[start - 1]
        coords = coords_of_keys(keys[:sites], shape)
        self.unique = sites_of(coords, shape, batch_size, is_sorted=True)

    def follow(self, layer: object) -> None:
        self.unique.follow(layer)

    def ordered(self) -> Ordered:
        """Of several rows of a site the last one."""
        return self.unique.indices, self.last

    def dense(self, features: Tensor) -> Tensor:
        return self.unique.dense(features.index_select(0, self.last))

    def begun(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        """[V, N + 2 * len(unique)]: see the class."""
        found = self._submanifold.get((kernel, dilation))
        if found is None:
            table = self.unique.submanifold(kernel, dilation).forward.neighbours
            rows, sites, centre = len(self.indices), table.shape[1], len(table) // 2
            parts = table.new_full((len(table), rows + 2 * sites), -1)
            parts[centre, :rows] = torch.arange(rows, device=table.device)
            before, behind = table[:centre], table[centre + 1 :]
            parts[:centre, rows + sites :] = torch.where(before < 0, -1, before + rows)
            behind = torch.where(behind < 0, -1, behind + rows + sites)
            parts[centre + 1 :, rows : rows + sites] = behind
            # the two parts of the sites change places in the opposite direction: it is symmetric
            found = KernelMap.around(Table(parts))
            self._submanifold[kernel, dilation] = found
        return found

    def strided(
        self,
        geometry: ConvGeometry,
        transposed: bool = False,
        output_padding: Sequence[int] = (),
        both_ways: bool | None = None,
    ) -> tuple[Sites, KernelMap]:
        return self.unique.strided(geometry, transposed, output_padding, both_ways)

    def inverted(self, geometry: ConvGeometry, kernel_map: KernelMap) -> KernelMap:
        return self.unique.inverted(geometry, kernel_map)

    def sums(self, features: Tensor) -> Tensor:
        """Rows [N, C] added by site: [len(unique), C]."""
        return _ByCell.apply(features, self, True)

    def spread(self, features: Tensor) -> Tensor:
        """Features of sites [len(unique), C] as rows [N, C]; zero outside of the grid."""
        return _ByCell.apply(features, self, False)

    def largest(self, features: Tensor) -> Tensor:
        """The largest of rows [N, C] by site and channel: [len(unique), C]."""
        rows = self._by_cell
        cell = self.cell[rows, None].expand(-1, features.shape[1])
        empty = features.new_zeros(len(self.count), features.shape[1])
        return empty.scatter_reduce(0, cell, features[rows], "amax", include_self=False)

    def among_rows(self, features: Tensor, convolve: Convolve) -> Tensor:
        """A submanifold convolution, without its bias, along a map of `submanifold`."""
        rows, sites = features.shape[0], len(self.count)
        first = features.index_select(0, self.first)
        out = convolve(torch.cat((features, self.sums(features), first)))
        own, to_all, to_first = out.split((rows, sites, sites))
        return (own + self.spread(to_all)).index_add(0, self.first, to_first)


def are_repeated(source: Sites, target: Sites) -> bool:
    """Whether a convolution between these sites takes `between`."""
    return isinstance(source, RepeatedSites) or isinstance(target, RepeatedSites)


def between(source: Sites, target: Sites, features: Tensor, convolve: Convolve) -> Tensor:
    """A convolution, without its bias, to or from repeated sites."""
    if source is target and isinstance(source, RepeatedSites):
        return source.among_rows(features, convolve)
    if isinstance(source, RepeatedSites):
        features = source.sums(features)
    out = convolve(features)
    return target.spread(out) if isinstance(target, RepeatedSites) else out


class _ByCell(torch.autograd.Function):
    """Sums of rows by site, or the sites' features as rows: each is the gradient of the other. No
    sum depends on the order of atomics."""

    @staticmethod
    def forward(ctx, features, sites, adds):
        ctx.sites, ctx.adds = sites, adds
        return _sums(features, sites) if adds else _spread(features, sites)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return (_spread if ctx.adds else _sums)(grad, ctx.sites), None, None


def _sums(features: Tensor, sites: RepeatedSites) -> Tensor:
    rows = features.index_select(0, sites._by_cell)
    if len(sites.count) == 0:  # all rows are outside of the grid
        return rows
    exact = rows if rows.dtype == torch.float64 else rows.float()
    added = torch.segment_reduce(exact, "sum", lengths=sites.count, axis=0, unsafe=True)
    return added.to(features.dtype)


def _spread(features: Tensor, sites: RepeatedSites) -> Tensor:
    return pad(features, (0, 0, 0, 1)).index_select(0, sites.cell)
