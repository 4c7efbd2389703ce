"""The sparse 3-D encoder, the middle extractor of SECOND: twelve sparse convolutions from voxels to
a bird's-eye-view map."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from millisecond.detector.models.layers import RowNorm
from millisecond.ops import bev_map, conv_blocks
from millisecond.ops.conv_chain import ConvChain
from millisecond.ops.geometry import level_shapes
from millisecond.ops.kernel_map import (
    ConvGeometry,
    KernelMap,
    Pyramid,
    index_pyramid,
    index_workspace,
)
from millisecond.ops.layers import Conv
from millisecond.ops.sparse_conv import sparse_conv
from millisecond.ops.voxelize import Voxels

# The strided convolutions between the levels. Three halve all axes, the last one z alone: the 41
# cells of KITTI along z become 21, 11, 5 and 2.
DOWNS = (  # kernel size, stride, padding, dilation, each (z, y, x)
    ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 3, 3), (2, 2, 2), (0, 1, 1), (1, 1, 1)),
    ConvGeometry((3, 1, 1), (2, 1, 1), (0, 0, 0), (1, 1, 1)),
)
STRIDE = math.prod(down.stride[-1] for down in DOWNS)  # along x and y: voxels per map cell


def last_level_shape(sparse_shape: Sequence[int]) -> tuple[int, int, int]:
    """(Z, Y, X) cells of the encoder's last level over a grid (z, y, x).

    Raises ValueError for a grid that is too small.
    """
    z, y, x = level_shapes(tuple(sparse_shape), DOWNS)[-1]
    return z, y, x


class SparseBlock(Conv):
    """Sparse convolution, BatchNorm, ReLU on rows."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: tuple[int, ...] = (3, 3, 3)
    ):
        super().__init__(in_channels, out_channels, kernel_size, bias=False)
        self.norm = RowNorm(out_channels)

    def forward(self, features: Tensor, kernel_map: KernelMap) -> Tensor:
        """[N_in, C_in] -> [N_out, C_out]."""
        return torch.relu(self.norm(sparse_conv(features, self.weight, kernel_map)))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias with the running statistics of the BatchNorm in them."""
        scale = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        return self.weight * scale, self.norm.bias - self.norm.running_mean * scale


class SparseEncoder(nn.Module):
    """Four levels with two submanifold convolutions each, and `DOWNS`: a strided convolution after
    each level.

    The index, i.e. the active sites and kernel maps of all levels, is built once from the voxels.
    """

    def __init__(
        self,
        sparse_shape: tuple[int, int, int],
        channels: Sequence[int],
        out_channels: int,
        features: int = 4,
    ):
        """sparse_shape: (z, y, x) cells of the grid of voxels; channels: one number per level;
        features: of a voxel."""
        super().__init__()
        self.sparse_shape, self.out_channels = sparse_shape, out_channels
        self.features = features
        kernels = [down.kernel_size for down in DOWNS]
        first = [SparseBlock(features, channels[0]), SparseBlock(channels[0], channels[0])]
        self.levels = nn.ModuleList([nn.ModuleList(first)])
        self.downs = nn.ModuleList()
        for kernel, (narrow, wide) in zip(kernels, pairwise(channels), strict=False):
            self.downs.append(SparseBlock(narrow, wide, kernel))
            self.levels.append(nn.ModuleList([SparseBlock(wide, wide) for _ in range(2)]))
        self.downs.append(SparseBlock(channels[-1], out_channels, kernels[-1]))
        self.chain: ConvChain | None = None  # of the folded encoder

    @property
    def bev_shape(self) -> tuple[int, int, int]:
        """(Z * C, Y, X) of the bird's-eye-view map of one frame."""
        z, y, x = last_level_shape(self.sparse_shape)
        return self.out_channels * z, y, x

    def forward(
        self,
        voxels: Voxels,
        capacities: Sequence[int] | None = None,
        workspace: Tensor | None = None,
    ) -> Tensor:  # [B, Z * C, Y, X]
        """Voxels -> the bird's-eye-view map: the heights of each cell become channels.

        Channel c at height z is channel z * C + c of the map, so that the channels of a site lie
        side by side. capacities, workspace: see `index`.
        """
        pyramid = self.index(voxels, capacities, workspace)
        return self.encode(voxels.features, pyramid)

    def index(
        self,
        voxels: Voxels,
        capacities: Sequence[int] | None = None,
        workspace: Tensor | None = None,
        clear_on: torch.cuda.Stream | None = None,
    ) -> Pyramid:
        """The sites of all levels and their kernel maps (rule generation in SECOND).

        capacities: a fixed number of rows for every level, so that nothing is read back to the
        host; workspace: from `workspace`, saves zeroing one in every call; clear_on: the stream
        that does it, see `index_pyramid`.
        """
        return index_pyramid(
            voxels.coords,
            self.sparse_shape,
            voxels.batch_size,
            DOWNS,
            capacities=capacities,
            count=voxels.count,
            transposed=torch.is_grad_enabled(),
            workspace=workspace,
            clear_on=clear_on,
        )

    def workspace(self, batch_size: int, device: torch.device) -> Tensor:
        """For `index` of up to `batch_size` frames; calls on one stream may share it."""
        return index_workspace(self.sparse_shape, batch_size, DOWNS, device)

    def encode(self, features: Tensor, pyramid: Pyramid) -> Tensor:
        """The map [B, Z * C, Y, X], channels last, of voxels' features [N, C] and their pyramid."""
        rows, level = self.rows(features, pyramid), pyramid.levels[-1]
        return bev_map(rows, level.coords, level.spatial_shape, pyramid.batch_size, level.count)

    def rows(self, features: Tensor, pyramid: Pyramid) -> Tensor:
        """As `encode`, but the rows [N, C] of the last level's sites."""
        convolved = self._through_blocks if self.chain is None else self.chain
        return convolved(features, _kernel_maps(pyramid))

    def fold(self) -> None:
        """Turns the blocks into a chain of convolutions with bias and ReLU, in place."""
        self.chain = ConvChain(*zip(*(block.folded() for block in self._blocks()), strict=True))
        self.levels, self.downs = nn.ModuleList(), nn.ModuleList()

    def _through_blocks(self, features: Tensor, maps: Sequence[KernelMap]) -> Tensor:
        blocks = self._blocks()
        norms = [block.norm for block in blocks]
        rows = min(kernel_map.forward.neighbours.shape[1] for kernel_map in maps)
        plain = all(type(norm) is RowNorm for norm in norms)  # not synchronised over processes
        if features.is_cuda and self.training and plain and rows > 1:
            return conv_blocks(features, [block.weight for block in blocks], maps, norms)
        for block, kernel_map in zip(blocks, maps, strict=True):
            features = block(features, kernel_map)
        return features

    def _blocks(self) -> list[SparseBlock]:
        blocks = list(self.levels[0])  # type: ignore[call-overload]  # modules have no types
        for depth, down in enumerate(self.downs, start=1):
            blocks.append(down)
            if depth < len(self.levels):
                blocks += self.levels[depth]
        return blocks


def _kernel_maps(pyramid: Pyramid) -> list[KernelMap]:
    """One for each convolution."""
    maps = []
    for level in pyramid.levels:
        maps += [level.down] if level.down else []
        maps += [level.submanifold] * 2 if level.submanifold else []
    return maps
