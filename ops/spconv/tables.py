"""Modules over lists of sparse tensors, as in spconv 2."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from millisecond.ops.spconv.core import SparseConvTensor
from millisecond.ops.spconv.functional import check_same_grid, sparse_add
from millisecond.ops.spconv.modules import SparseModule


class JoinTable(SparseModule):
    """The channels of tensors with the same rows side by side."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        _check_same_rows(input)
        return input[0].replace_feature(torch.cat([x.features for x in input], dim=1))


class AddTable(SparseModule):
    """The sum of tensors with the same rows."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        _check_same_rows(input)
        features = input[0].features
        for x in input[1:]:
            features = features + x.features
        return input[0].replace_feature(features)


class AddTableMisaligned(SparseModule):
    """The sum of tensors on different sites."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        return sparse_add(*input)


class ConcatTable(SparseModule):
    """A list: each module's result on the input."""

    def forward(self, input: SparseConvTensor) -> list:
        return [module(input) for module in self._modules.values() if module is not None]

    def add(self, module: torch.nn.Module) -> ConcatTable:
        self.add_module(str(len(self._modules)), module)
        return self


def _check_same_rows(tensors: Sequence[SparseConvTensor]) -> None:
    check_same_grid(tensors)
    rows = [len(x.indices) for x in tensors]
    if len(set(rows)) > 1:
        raise ValueError(f"indices: {rows} rows; sparse_add adds tensors on different sites")
