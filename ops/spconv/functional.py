"""Functions of sparse tensors, as in `spconv.pytorch.functional`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from millisecond.ops.geometry import coords_of_keys, linear_keys
from millisecond.ops.spconv.core import SparseConvTensor


def sparse_add(*tens: SparseConvTensor) -> SparseConvTensor:
    """The sum on the union of the sites.

    Where one of the tensors has all sites of the others, rows, order and `indice_dict` are its own;
    else rows are sorted and the `indice_dict` is empty.
    """
    check_same_grid(tens)
    first = tens[0]
    if all(x.indices is first.indices for x in tens):
        return first.replace_feature(sum((x.features for x in tens[1:]), start=first.features))
    keys = [linear_keys(x.indices, first.spatial_shape) for x in tens]
    union, row = torch.cat(keys).unique(return_inverse=True)  # sync: number of sites
    largest = max(range(len(tens)), key=lambda i: len(keys[i]))
    rows = list(row.split([len(part) for part in keys]))
    base = tens[largest]
    if len(union) == len(keys[largest]):
        place = torch.empty_like(rows[largest])
        place[rows[largest]] = torch.arange(len(place), device=place.device)
        rows = [place[part] for part in rows]
        result = base
    else:
        indices = coords_of_keys(union, first.spatial_shape)
        result = SparseConvTensor(first.features, indices, first.spatial_shape, first.batch_size)
    # a tensor has a site once: no sum depends on the order of atomics
    features = first.features.new_zeros(len(union), first.features.shape[1])
    for x, part in zip(tens, rows, strict=True):
        features = features.index_add(0, part, x.features.to(features.dtype))
    return result.replace_feature(features)


sparse_add_hash_based = sparse_add


def _indice_to_scalar(indices: Tensor, shape: Sequence[int]) -> Tensor:
    """A number [N] for each row of indices [N, len(shape)], of their type, under the name by which
    programs import it from spconv."""
    return linear_keys(indices, shape[1:]).to(indices.dtype)


def check_same_grid(tensors: Sequence[SparseConvTensor]) -> None:
    """ValueError unless the tensors have one grid and one number of channels."""
    for name in ("spatial_shape", "batch_size"):
        values = [getattr(x, name) for x in tensors]
        if any(value != values[0] for value in values):
            raise ValueError(f"{name}: {values}, tensors that are joined have the same")
    channels = [x.features.shape[1] for x in tensors]
    if len(set(channels)) > 1:
        raise ValueError(f"features: {channels} channels, tensors that are joined have the same")
