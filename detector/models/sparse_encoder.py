"""The sparse 3-D encoder, the middle extractor of SECOND: twelve sparse convolutions from voxels to
a bird's-eye-view map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from detector.models.batch_norm import RowNorm
from ops import bev_map, conv_blocks
from ops.conv_chain import ConvChain
from ops.dataflow import IMPLICIT_GEMM, Dataflow, PairMap
from ops.kernel_map import ConvGeometry, KernelMap, Pyramid, index_pyramid, index_workspace
from ops.sparse_conv import sparse_conv
from ops.tuned import PairLists, Tunable, Tuned, precision_of, product_type
from ops.voxelize import Voxels

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
    shape = tuple(sparse_shape)
    for down in DOWNS:
        shape = down.output_shape(shape)
    z, y, x = shape
    return z, y, x


def no_graphs(layers: Sequence[str]) -> str:
    """What layers of `SparseEncoder.by_other_dataflows` mean, as the end of a warning."""
    more = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    return (
        f"{layers[0]}{more}: a CUDA graph cannot hold that, so there is none, and the host has "
        "more to do; without the file all layers are implicit GEMMs in a graph"
    )


class SparseBlock(nn.Module):
    """Sparse convolution, BatchNorm, ReLU on rows."""

    def __init__(self, in_channels: int, out_channels: int, kernel_volume: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(kernel_volume, in_channels, out_channels))
        self.norm = RowNorm(out_channels)
        bound = 1 / math.sqrt(kernel_volume * in_channels)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self, features: Tensor, kernel_map: KernelMap | PairMap, dataflow: Dataflow | None = None
    ) -> Tensor:
        """[N_in, C_in] -> [N_out, C_out]."""
        out = sparse_conv(features, self.weight, kernel_map, dataflow=dataflow)
        return torch.relu(self.norm(out))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias with the running statistics of the BatchNorm in them."""
        scale = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        return self.weight * scale, self.norm.bias - self.norm.running_mean * scale


class SparseEncoder(Tunable, nn.Module):
    """Four levels with two submanifold convolutions each, and `DOWNS`: a strided convolution after
    each level.

    The index, i.e. the active sites and kernel maps of all levels, is built once from the voxels.
    Layers that `use_tuned` gives another dataflow than the implicit GEMM run one by one.
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
        volumes = [math.prod(down.kernel_size) for down in DOWNS]
        first = [SparseBlock(features, channels[0], 27), SparseBlock(channels[0], channels[0], 27)]
        self.levels = nn.ModuleList([nn.ModuleList(first)])
        self.downs = nn.ModuleList()
        for volume, (narrow, wide) in zip(volumes, pairwise(channels), strict=False):
            self.downs.append(SparseBlock(narrow, wide, volume))
            self.levels.append(nn.ModuleList([SparseBlock(wide, wide, 27) for _ in range(2)]))
        self.downs.append(SparseBlock(channels[-1], out_channels, volumes[-1]))
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
        level, batch_size, maps = pyramid.levels[-1], pyramid.batch_size, _kernel_maps(pyramid)
        flows = self._flows(features, maps)
        if self.chain is not None and not any(flows):
            return self.chain.bev_map(features, maps, level, batch_size)
        through = self._through_blocks if self.chain is None else self._through_chain
        features = through(features, maps, flows)
        return bev_map(features, level.coords, level.spatial_shape, batch_size, count=level.count)

    def rows(self, features: Tensor, pyramid: Pyramid) -> Tensor:
        """As `encode`, but the rows [N, C] of the last level's sites; of the folded encoder."""
        assert self.chain is not None, "not folded"
        maps = _kernel_maps(pyramid)
        flows = self._flows(features, maps)
        if any(flows):
            return self._through_chain(features, maps, flows)
        return self.chain(features, maps)

    def fold(self) -> None:
        """Turns the blocks into a chain of convolutions with bias and ReLU, in place."""
        self.chain = ConvChain(*zip(*(block.folded() for block in self._blocks()), strict=True))
        self.levels, self.downs = nn.ModuleList(), nn.ModuleList()

    def by_other_dataflows(self, precision: str, training: bool) -> list[str]:
        """Layers that are not implicit GEMMs at some size, by what `use_tuned` was given. Their
        pairs are counted on the host, so a CUDA graph cannot hold them.

        precision: fp32 (of which torch may be set to make tf32), bf16 or fp16.
        """
        if not isinstance(self.dataflow, Tuned):
            return []
        if precision == "fp32":
            precision = precision_of(torch.float32)
        layers = {(kind, *shape) for kind, shape in self._layers()}
        return [
            f"{work.kind} {work.offsets} x {work.c_in}-{work.c_out} by {choice.unlisted}, "
            f"{1 << work.size >> 1}+ rows"
            for work, choice in self.dataflow.fastest.items()
            if choice.unlisted != IMPLICIT_GEMM
            and work[:4] in layers
            and (work.precision, work.training) == (precision, training)
        ]

    def _layers(self) -> list[tuple[str, torch.Size]]:
        """Kind and shape of the weight of each convolution."""
        if self.chain is not None:
            weights = [weight for weight, _ in self.chain.layers()]
        else:
            weights = [block.weight for block in self._blocks()]
        kinds = ["submanifold", "submanifold", "strided"] * len(DOWNS)
        return [(kind, weight.shape) for kind, weight in zip(kinds, weights, strict=True)]

    def _flows(self, features: Tensor, maps: Sequence[KernelMap]) -> list[Dataflow | None]:
        """Of each layer; None for the implicit GEMM."""
        if self.dataflow is None:
            return [None] * len(maps)
        dtype = product_type(features) if self.chain is None else self.chain.weight_0.dtype
        layers = zip(self._layers(), maps, strict=True)
        return [self.chosen(*layer, dtype, kernel_map) for layer, kernel_map in layers]

    def _through_chain(
        self, features: Tensor, maps: Sequence[KernelMap], flows: Sequence[Dataflow | None]
    ) -> Tensor:
        """The folded encoder one layer after the other."""
        assert self.chain is not None
        layers, lists = self.chain.layers(), PairLists()
        features = features.to(layers[0][0].dtype)
        for (weight, bias), kernel_map, flow in zip(layers, maps, flows, strict=True):
            taken = lists(kernel_map) if flow else kernel_map
            features = sparse_conv(features, weight, taken, bias, relu=True, dataflow=flow)
        return features

    def _through_blocks(
        self, features: Tensor, maps: Sequence[KernelMap], flows: Sequence[Dataflow | None]
    ) -> Tensor:
        blocks = self._blocks()
        norms = [block.norm for block in blocks]
        rows = min(kernel_map.forward.neighbours.shape[1] for kernel_map in maps)
        plain = all(type(norm) is RowNorm for norm in norms)  # not synchronised over processes
        if features.is_cuda and self.training and plain and rows > 1 and not any(flows):
            return conv_blocks(features, [block.weight for block in blocks], maps, norms)
        lists = PairLists()
        for block, kernel_map, flow in zip(blocks, maps, flows, strict=True):
            features = block(features, lists(kernel_map) if flow else kernel_map, flow)
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
