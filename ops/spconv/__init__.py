"""spconv 2 on these operators: `import millisecond.ops.spconv as spconv` replaces `spconv.pytorch`.

`install()` stands in for `spconv` in every import of a program. `python -m millisecond.ops.spconv
SCRIPT` does so for a script as it is. docs/from_spconv.md says what is the same and what differs.
"""

# ruff: noqa: F401 - programs take these names from here

from typing import Any

from millisecond.ops.spconv import (
    constants,
    conv,
    core,
    functional,
    hash,
    identity,
    modules,
    ops,
    pool,
    tables,
    utils,
)
from millisecond.ops.spconv.conv import (
    SparseConv1d,
    SparseConv2d,
    SparseConv3d,
    SparseConv4d,
    SparseConvolution,
    SparseConvTranspose1d,
    SparseConvTranspose2d,
    SparseConvTranspose3d,
    SparseConvTranspose4d,
    SparseInverseConv1d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseInverseConv4d,
    SubMConv1d,
    SubMConv2d,
    SubMConv3d,
    SubMConv4d,
)
from millisecond.ops.spconv.core import AlgoHint, ConvAlgo, SparseConvTensor
from millisecond.ops.spconv.graph import graphed
from millisecond.ops.spconv.identity import Identity
from millisecond.ops.spconv.modules import (
    RemoveGrid,
    SparseBatchNorm,
    SparseIdentity,
    SparseModule,
    SparseReLU,
    SparseSequential,
    ToDense,
    assign_name_for_sparse_modules,
)
from millisecond.ops.spconv.pool import (
    SparseAvgPool1d,
    SparseAvgPool2d,
    SparseAvgPool3d,
    SparseGlobalAvgPool,
    SparseGlobalMaxPool,
    SparseMaxPool1d,
    SparseMaxPool2d,
    SparseMaxPool3d,
    SparseMaxPool4d,
)
from millisecond.ops.spconv.stand_in import VERSION as __version__
from millisecond.ops.spconv.stand_in import install
from millisecond.ops.spconv.tables import AddTable, ConcatTable, JoinTable

SPCONV_VERSION_NUMBERS = [int(number) for number in __version__.split(".")]


def __getattr__(name: str) -> Any:
    raise AttributeError(f"spconv.{name}: not in ops.spconv; docs/from_spconv.md lists what is")
