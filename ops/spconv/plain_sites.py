"""Sites in one dimension or in four, which the kernels do not index: by plain torch, anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ops.geometry import ConvGeometry, submanifold_window
from ops.reference import kernel_map as reference
from ops.reference.coords import linear_keys
from ops.reference.dense import dense
from ops.reference.site_order import site_order
from ops.rulebook import KernelMap
from ops.site_order import OUTSIDE
from ops.spconv.renumbering import strided_in, submanifold_in
from ops.spconv.sites import Ordered, Sites
from ops.spconv.transposed import transposed_map

INDEXED = 2, 3  # dimensions that the kernels index


def sites_of(indices: Tensor, shape: Sequence[int], batch_size: int) -> Sites:
    """The sites [N, 1 + D] of a batch of grids of 1 to 4 dimensions."""
    kind = Sites if len(shape) in INDEXED else PlainSites
    return kind(indices, tuple(shape), batch_size)


class PlainSites(Sites):
    """See Sites."""

    def follow(self, layer: Any) -> None:
        """Nothing is foreseen."""

    def submanifold(self, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> KernelMap:
        if (kernel, dilation) not in self._submanifold:
            coords, order = self.ordered()
            window = submanifold_window(kernel, dilation, len(self.shape))
            found = reference.submanifold_map(coords, self.shape, self.batch_size, *window)
            self._submanifold[kernel, dilation] = submanifold_in(order, found)
        return self._submanifold[kernel, dilation]

    def strided(
        self,
        geometry: ConvGeometry,
        transposed: bool = False,
        output_padding: Sequence[int] = (),
        both_ways: bool | None = None,
    ) -> tuple[Sites, KernelMap]:
        key = geometry, transposed, tuple(output_padding)
        if key not in self._strided or not self._strided[key][0].unchanged():
            coords, order = self.ordered()
            geometry = ConvGeometry.of(*geometry, dims=len(self.shape))
            with torch.inference_mode(False):  # as in Sites
                if transposed:
                    made = transposed_map(coords, self.shape, geometry, output_padding)
                else:
                    made = reference.strided_map(coords, self.shape, self.batch_size, geometry)
            outputs, shape, kernel_map = made
            sites = PlainSites(outputs, shape, self.batch_size, is_sorted=True)
            self._strided[key] = sites, strided_in(order, kernel_map)
        return self._strided[key]

    def dense(self, features: Tensor) -> Tensor:
        """Rows of the sorted sites as [B, C, *shape]."""
        return dense(features, self.ordered()[0], self.shape, self.batch_size, None)

    def _sort(self) -> Ordered:
        coords = self.indices.int().contiguous()
        fault = int(site_order(coords, self.batch_size, self.shape)) if len(coords) else 0
        if fault == 0:
            return coords, None
        keys, order = linear_keys(coords, self.shape).sort()
        if fault & OUTSIDE or (keys[1:] == keys[:-1]).any():
            raise self._fault()
        return coords.index_select(0, order), order
