"""`SparseConvTensor` of spconv 2: features on active sites, with the maps that were built on them.

Rows stay in the order in which the caller gave them. `ops.sites` sorts for the operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from millisecond.ops.geometry import check_cells, same_device, whole
from millisecond.ops.sites import Sites, WrongSites, sites_of
from millisecond.ops.spconv.indice_data import (
    AlgoHint,
    ConvAlgo,
    ImplicitGemmIndiceData,
    IndiceData,
    SharedMap,
)
from millisecond.ops.spconv.repeated import RepeatedSites
from millisecond.ops.spconv.tools import CUDAKernelTimer

__all__ = [
    "AlgoHint",
    "ConvAlgo",
    "ImplicitGemmIndiceData",
    "IndiceData",
    "SparseConvTensor",
    "expand_nd",
]
T = TypeVar("T")
# how sites are made of indices: ops.spconv.graph gives a network the sites of its input
MAKE_SITES: ContextVar[Callable[..., Sites]] = ContextVar("make_sites", default=sites_of)
Shared = SharedMap | IndiceData | ImplicitGemmIndiceData


class SparseConvTensor:
    """Features [N, C] on active sites; `indices` [N, 1 + D] int32 or int64 are (b, z, y, x) or
    (b, y, x) in any order; `ops.spconv.repeated` says how a site counts that is there twice.

    `features` may be replaced in place. `grid`, `voxel_num`, `benchmark` and the other arguments
    that tune spconv are kept and not used.
    """

    def __init__(
        self,
        features: Tensor,
        indices: Tensor,
        spatial_shape: Sequence[int] | Tensor,
        batch_size: int | Tensor,
        grid: Tensor | None = None,
        voxel_num: Tensor | None = None,
        indice_dict: dict[Any, Shared] | None = None,
        benchmark: bool = False,
        permanent_thrust_allocator: bool = False,
        enable_timer: bool = False,
        force_algo: ConvAlgo | None = None,
    ):
        self._features = features
        self.indices = indices
        self.spatial_shape = whole_numbers(spatial_shape)
        self.batch_size = int(batch_size)
        self.indice_dict = {} if indice_dict is None else indice_dict
        self.grid, self.voxel_num = grid, voxel_num
        self.benchmark = benchmark
        self.benchmark_record: dict = {}
        self.thrust_allocator, self.int8_scale = None, None
        self._timer = CUDAKernelTimer(enable_timer)
        self.force_algo = force_algo
        self._sites: Sites | None = None
        check_indices(indices, self.spatial_shape, self.batch_size)
        if features.ndim != 2:
            raise ValueError(f"features: expected [N, C], got {list(features.shape)}")

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseConvTensor:
        """The sites of x [B, *spatial_shape, C] where some channel is not zero."""
        indices = (x != 0).any(dim=-1).nonzero()  # sync: number of sites
        features = x[tuple(indices.T)]
        return cls(features, indices.int(), x.shape[1:-1], len(x))

    @property
    def features(self) -> Tensor:
        return self._features

    @features.setter
    def features(self, features: Tensor) -> None:
        self._features = features

    @property
    def sites(self) -> Sites:
        """The sites that `indices` hold now."""
        if self._sites is None or not self._sites.are(
            self.indices, self.spatial_shape, self.batch_size
        ):
            self.spatial_shape = whole_numbers(self.spatial_shape)  # programs write arrays there
            make = MAKE_SITES.get()
            self._sites = make(self.indices, self.spatial_shape, self.batch_size)
        return self._sites

    def on_sites(self, build: Callable[[Sites], T]) -> T:
        """What `build` makes of the sites. Where a site is there twice or outside of the grid, they
        are `RepeatedSites` from now on."""
        try:
            return build(self.sites)
        except WrongSites:
            return build(self._repeated())

    def sure(self) -> bool:
        """Whether the map that was begun last on these sites counts; see `on_sites`."""
        try:
            return self.sites.sure()
        except WrongSites:
            self._repeated()
            return False

    def _repeated(self) -> Sites:
        self._sites = RepeatedSites(self.indices, self.sites.shape, self.batch_size)
        return self._sites

    def on(self, sites: Sites, features: Tensor) -> SparseConvTensor:
        """Features [N', C'] on other sites."""
        moved = self.shadow_copy()
        moved._features = features
        moved.move(sites)
        return moved

    def move(self, sites: Sites) -> None:
        """To other sites, in place; the features are not theirs yet."""
        self.indices, self._sites, self.spatial_shape = sites.indices, sites, list(sites.shape)

    def replace_feature(self, feature: Tensor) -> SparseConvTensor:
        """Other features [N, C'] on the same sites."""
        replaced = self.shadow_copy()
        replaced._features = feature
        return replaced

    def shadow_copy(self) -> SparseConvTensor:
        """Another tensor of the same content; `indice_dict` is shared."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        shape = self.spatial_shape
        copy.spatial_shape = [*shape] if type(shape) is list else whole_numbers(shape)
        return copy

    __copy__ = shadow_copy

    def select_by_index(self, valid_indices: Tensor) -> SparseConvTensor:
        """The rows that a mask [N] or row numbers choose."""
        chosen = self.replace_feature(self._features[valid_indices])
        chosen.indices, chosen._sites = self.indices[valid_indices], None
        chosen.indice_dict = {}
        return chosen

    def dense(self, channels_first: bool = True) -> Tensor:
        """[B, C, *spatial_shape], or [B, *spatial_shape, C]; zero where no site is active."""
        check_rows(self)
        grid = self.on_sites(lambda sites: sites.dense(self._features))
        return grid if channels_first else grid.movedim(1, -1).contiguous()

    def find_indice_pair(self, key: Any) -> Shared | None:
        """What the layers with this indice_key share; None before the first of them. Layers of a
        program's own leave what they like."""
        return None if key is None else self.indice_dict.get(key)

    def minus(self) -> SparseConvTensor:
        return self.replace_feature(-self._features)

    @property
    def spatial_size(self) -> int:
        return math.prod(self.spatial_shape)

    @property
    def sparity(self) -> float:
        """The share of cells that are active (spconv's spelling)."""
        return len(self.indices) / self.spatial_size / self.batch_size

    @property
    def is_quantized(self) -> bool:
        return False

    def __add__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        return self.replace_feature(self._features + _features_of(other))

    __radd__ = __add__

    def __iadd__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        self._features = self._features + _features_of(other)
        return self

    def __repr__(self) -> str:
        return f"SparseConvTensor[shape={self._features.shape}]"

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_sites": None, "indice_dict": {}}

    def __dir__(self) -> list[str]:
        # OpenPCDet asks at each layer: the usual answer takes long
        return [*_names(type(self)), *self.__dict__]  # type: ignore[arg-type]  # classes are hashable


@cache
def _names(kind: type[SparseConvTensor]) -> list[str]:
    return dir(kind)


def whole_numbers(values: Iterable) -> list[int]:
    """A list, tuple, tensor or array of numbers as a list of ints."""
    return [int(value) for value in (values.tolist() if isinstance(values, Tensor) else values)]


def expand_nd(ndim: int, val: int | Sequence[int] | Tensor) -> list[int]:
    """One number for each of `ndim` axes."""
    numbers = [int(val)] * ndim if isinstance(val, int) else whole_numbers(val)
    if len(numbers) != ndim:
        raise ValueError(f"expected one number or {ndim}, one for each axis, got {val}")
    return numbers


def check_rows(input: SparseConvTensor) -> None:
    """ValueError unless there is a row of features for each site, on one device."""
    features, indices = input.features, input.indices
    same_device(features=features, indices=indices)
    if features.shape[0] != indices.shape[0]:
        raise ValueError(f"features: {list(features.shape)}, indices have {len(indices)} rows")


def of_dimensions(name: str, *bases: type, most: int = 4) -> list[Any]:
    """The classes name1d, name2d and so on, which know their number of dimensions as NDIM."""
    doc = bases[-1].__doc__
    return [
        type(
            f"{name}{ndim}d",
            bases,
            {"NDIM": ndim, "__module__": bases[0].__module__, "__doc__": f"{ndim}-D. {doc}"},
        )
        for ndim in range(1, most + 1)
    ]


def _features_of(other: SparseConvTensor | Tensor) -> Tensor:
    return other.features if isinstance(other, SparseConvTensor) else other


def check_indices(indices: Tensor, shape: list[int], batch_size: int) -> None:
    """ValueError unless they may be sites of a batch of grids, as far as shapes and types tell."""
    if indices.ndim != 2 or indices.shape[1] != 1 + len(shape):
        raise ValueError(
            f"indices: expected [N, {1 + len(shape)}] for a spatial_shape of {shape}, "
            f"got {list(indices.shape)}"
        )
    if indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices: expected int32 or int64, got {indices.dtype}")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
    for size in shape:
        whole("spatial_shape", size, 0)
    check_cells(batch_size, [shape])
