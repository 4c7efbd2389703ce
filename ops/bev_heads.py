"""The end of a bird's-eye-view network for the rows of one map."""

from __future__ import annotations

from torch import Tensor

from ops.cuda import bev_heads as cuda
from ops.dispatch import on_kernels
from ops.reference import bev_heads as reference


class BevHeads:
    """rows -> head(relu(up(rows))): up-sampling, and a map's share of the heads' outputs.

    A row becomes `parts` rows, those of the enlarged cell's parts in the order (y, x). On CUDA the
    weights are kept in the order in which the tensor cores read them.
    """

    def __init__(self, up: Tensor, up_bias: Tensor, head: Tensor, head_bias: Tensor, parts: int):
        """up: [C_in, parts * width]; head: [width, outputs]; biases float32 or as the weights."""
        self._backend = cuda if on_kernels(up) else reference
        self._weights = self._backend.pack_heads(up, up_bias.float(), head, head_bias.float())
        self._parts = parts

    def __call__(self, rows: Tensor, count: Tensor | None = None) -> Tensor:
        """[N, C_in] -> [N * parts, outputs or more]; columns behind the outputs hold nothing.

        count [1] int32: rows from there on are not there.
        """
        return self._backend.bev_heads(rows, self._weights, self._parts, count)
