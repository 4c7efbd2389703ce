"""The sites and map of a convolution's call: those that its indice_key names, or new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ops.geometry import ConvGeometry
from ops.spconv.core import Shared, SparseConvTensor
from ops.spconv.indice_data import SharedMap
from ops.spconv.sites import Sites

if TYPE_CHECKING:
    from ops.spconv.convolution import SparseConvolution


def shared_map(layer: SparseConvolution, input: SparseConvTensor) -> SharedMap:
    """Sites and map of this layer on its input; ValueError where those of its key do not fit."""
    found = _own(layer, input.find_indice_pair(layer.indice_key))
    if layer.inverse:
        return _inverted(layer, input, found)
    sites = input.sites
    sites.follow(layer)
    if found is not None:
        _check_shared(layer, sites, found)
        return found
    check_dimensions(layer, input)
    geometry = window(layer)
    outputs = sites
    if layer.subm:
        kernel_map = sites.submanifold(geometry.kernel_size, geometry.dilation)
    else:
        more = layer.output_padding if layer.transposed else ()
        outputs, kernel_map = sites.strided(geometry, layer.transposed, more)
    return SharedMap(sites, outputs, kernel_map, layer.subm, geometry, layer.algo)


def check_dimensions(layer: Any, input: SparseConvTensor) -> None:
    """ValueError unless a convolution or pooling has the dimensions of its input."""
    if layer.ndim != len(input.spatial_shape):
        raise ValueError(
            f"spatial_shape: {input.spatial_shape}, {type(layer).__name__} takes one of "
            f"{layer.ndim} numbers"
        )


def window(layer: Any) -> ConvGeometry:
    """That of a convolution or pooling."""
    return ConvGeometry(
        tuple(layer.kernel_size), tuple(layer.stride), tuple(layer.padding), tuple(layer.dilation)
    )


def _own(layer: SparseConvolution, found: Shared | None) -> SharedMap | None:
    if found is None or isinstance(found, SharedMap):
        return found
    raise ValueError(
        f"indice_key {layer.indice_key!r}: {type(found).__name__} that a layer of the program "
        f"has left; {type(layer).__name__} needs a key of its own"
    )


def _inverted(
    layer: SparseConvolution, input: SparseConvTensor, found: SharedMap | None
) -> SharedMap:
    key = layer.indice_key
    if found is None or found.is_subm:
        what = "no layer" if found is None else "a submanifold layer"
        raise ValueError(
            f"indice_key {key!r}: {what} of this name before an inverse convolution, which "
            "needs a strided convolution or pooling"
        )
    if found.ksize != layer.kernel_size:
        raise ValueError(
            f"indice_key {key!r}: kernel_size is {layer.kernel_size}, that of the convolution "
            f"to invert {found.ksize}"
        )
    rows, shape = len(found.out_indices), found.out_spatial_shape
    if len(input.indices) != rows or list(input.spatial_shape) != shape:
        raise ValueError(
            f"indice_key {key!r}: {len(input.indices)} rows of {input.spatial_shape}, the "
            f"convolution to invert has {rows} of {shape}"
        )
    return found


def _check_shared(layer: SparseConvolution, sites: Sites, found: SharedMap) -> None:
    key = layer.indice_key
    if not (layer.subm and found.is_subm):
        raise ValueError(
            f"indice_key {key!r}: there already, only submanifold convolutions share one"
        )
    if found.inputs is sites and found.geometry == window(layer):  # most often
        return
    for name, mine, theirs in (
        ("kernel_size", layer.kernel_size, found.ksize),
        ("dilation", layer.dilation, found.dilation),
        ("spatial_shape", list(sites.shape), found.spatial_shape),
        ("rows", len(sites.indices), len(found.indices)),
    ):
        if mine != theirs:
            raise ValueError(
                f"indice_key {key!r}: {name} is {mine}, that of the first layer with this key "
                f"{theirs}"
            )
