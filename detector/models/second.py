"""SECOND: sparsely embedded convolutional detection (Yan, Mao and Li 2018)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from millisecond.detector.anchors import ROTATIONS
from millisecond.detector.config import Config
from millisecond.detector.models.bev_backbone import BevBackbone, ConvBlock
from millisecond.detector.models.layers import convolve_heads
from millisecond.detector.models.sparse_encoder import SparseEncoder
from millisecond.ops.kernel_map import Pyramid
from millisecond.ops.voxelize import VoxelGrid, Voxels, voxelize


class Fixed(NamedTuple):
    """Memory that calls share, and sizes that make a call the same for every batch, so that nothing
    is read back to the host (CUDA graph capture)."""

    workspace: Tensor | None = None  # of `Second.workspace`: saves zeroing one in every call
    rows: Sequence[int] | None = None  # of each level of the encoder, in the whole batch
    voxels: int | None = None  # rows of the voxels: as many as level 0 has, or more
    cap: int | None = None  # voxels per frame, where it is not the network's


FREE = Fixed()  # nothing is fixed


class IndexedVoxels(NamedTuple):
    """The voxels of a batch, and the index of the sites that they make active."""

    voxels: Voxels
    pyramid: Pyramid


class Predictions(NamedTuple):
    """The network's outputs for every anchor; A in the order (y, x, class, rotation)."""

    class_logits: Tensor  # [B, A, K]
    box_residuals: Tensor  # [B, A, 7]
    direction_logits: Tensor  # [B, A, 2]


class MovingPredictions(NamedTuple):
    """The same of a network with velocities."""

    class_logits: Tensor  # [B, A, K]
    box_residuals: Tensor  # [B, A, 7]
    direction_logits: Tensor  # [B, A, 2]
    velocities: Tensor  # [B, A, 2] m/s over ground along x and y


AnyPredictions = Predictions | MovingPredictions


class AnchorHead(nn.Module):
    """Three 1x1 convolutions, a fourth for velocities; the channels of a cell are ordered by anchor
    first, then by value."""

    def __init__(
        self, in_channels: int, anchors_per_cell: int, num_classes: int, velocity: bool = False
    ):
        super().__init__()
        self.classes = nn.Conv2d(in_channels, anchors_per_cell * num_classes, 1)
        self.boxes = nn.Conv2d(in_channels, anchors_per_cell * 7, 1)
        self.directions = nn.Conv2d(in_channels, anchors_per_cell * 2, 1)
        rare = 0.01  # first score of every anchor; with 0.5 the many negatives would rule the loss
        assert self.classes.bias is not None  # Conv2d makes one
        nn.init.constant_(self.classes.bias, -math.log((1 - rare) / rare))
        nn.init.normal_(self.boxes.weight, mean=0, std=0.001)
        self.widths: tuple[int, ...] = (num_classes, 7, 2)
        self.velocities = None
        if velocity:
            self.velocities = nn.Conv2d(in_channels, anchors_per_cell * 2, 1)
            nn.init.normal_(self.velocities.weight, mean=0, std=0.001)
            self.widths = (*self.widths, 2)

    def forward(self, features: Tensor) -> AnyPredictions:
        """[B, C, Y, X] -> predictions of A = Y * X * anchors_per_cell anchors."""
        parts = convolve_heads(features, *self.joined(), self.groups())
        return self.named(
            part.reshape(len(features), -1, width)
            for part, width in zip(parts, self.widths, strict=True)
        )

    def named(self, parts: Iterable[Tensor]) -> AnyPredictions:
        """Predictions of each head, by their names."""
        return (Predictions if self.velocities is None else MovingPredictions)(*parts)

    def joined(self) -> tuple[Tensor, Tensor]:
        """Weight [C_out, C, 1, 1] and bias [C_out] of all heads as one convolution: each by itself
        would read the whole map, and leave a gradient of it."""
        parts = zip(*(head.parameters() for head in self._heads()), strict=True)
        weight, bias = (torch.cat(part) for part in parts)
        return weight, bias

    def groups(self) -> list[int]:
        """Outputs of `joined` that belong to each head."""
        return [head.out_channels for head in self._heads()]

    def predictions(self, values: Tensor, rows: Tensor) -> AnyPredictions:
        """Of cells that share values: values [N, C_out] of `joined`, rows [B, Y * X] their own."""
        parts = values.split(self.groups(), dim=-1)
        return self.named(
            part.contiguous().index_select(0, rows.flatten()).view(len(rows), -1, width)
            for part, width in zip(parts, self.widths, strict=True)
        )

    def _heads(self) -> tuple[nn.Conv2d, ...]:
        moving = () if self.velocities is None else (self.velocities,)
        return (self.classes, self.boxes, self.directions, *moving)


class Second(nn.Module):
    """From points to predictions: voxelizer (mean VFE), sparse encoder, bird's-eye-view backbone,
    heads.

    >>> predictions = model(*model.sites(points, offsets))
    """

    def __init__(
        self,
        grid: VoxelGrid,
        max_points: int,
        max_voxels: tuple[int, int],
        encoder: SparseEncoder,
        backbone: BevBackbone,
        head: AnchorHead,
    ):
        """max_points per voxel; max_voxels per frame: (in training, otherwise)."""
        super().__init__()
        self.grid, self.max_points, self.max_voxels = grid, max_points, max_voxels
        self.encoder, self.backbone, self.head = encoder, backbone, head
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's lack it

    def forward(
        self, voxels: Voxels, pyramid: Pyramid, ready: Callable[[], object] | None = None
    ) -> AnyPredictions:
        """What `sites` returns -> predictions. ready: called between encoder and backbone, e.g. to
        wait for what runs beside the encoder."""
        bev = self.encode(voxels, pyramid)
        if ready is not None:
            ready()
        return self.predict(bev)

    def sites(
        self,
        points: Tensor,
        offsets: Tensor,
        fixed: Fixed = FREE,
        clear_on: torch.cuda.Stream | None = None,
    ) -> IndexedVoxels:
        """All that needs no weights: voxels and their index.

        points [P, C] float32 of all frames one after another (x, y, z in metres, intensity in
        [0, 1], further features); offsets [B + 1] int32: frame b has the rows offsets[b] to
        offsets[b + 1]. clear_on: see `index_pyramid`.
        """
        voxels = self.voxelize(points, offsets, fixed)
        return IndexedVoxels(voxels, self.index(voxels, fixed, clear_on))

    def voxelize(self, points: Tensor, offsets: Tensor, fixed: Fixed = FREE) -> Voxels:
        """Points as in `sites` -> the cells that hold points."""
        cap = self.max_voxels[0 if self.training else 1] if fixed.cap is None else fixed.cap
        memory = fixed.voxels, fixed.workspace
        return voxelize(points, offsets, self.grid, self.max_points, cap, *memory)

    def index(
        self, voxels: Voxels, fixed: Fixed = FREE, clear_on: torch.cuda.Stream | None = None
    ) -> Pyramid:
        """Voxels -> the sites of every level of the encoder and the kernel maps between them."""
        return self.encoder.index(voxels, fixed.rows, fixed.workspace, clear_on)

    def encode(self, voxels: Voxels, pyramid: Pyramid) -> Tensor:
        """Voxels and their pyramid -> the bird's-eye-view map [B, C, Y, X], channels last."""
        bev = self.encoder.encode(voxels.features, pyramid)
        return bev.contiguous(memory_format=torch.channels_last)

    def predict(self, bev: Tensor) -> AnyPredictions:
        """Bird's-eye-view map [B, C, Y, X] -> predictions."""
        features = self.backbone(bev)
        return self.head(features)

    def workspace(self, batch_size: int, device: torch.device) -> Tensor:
        """For `voxelize` and `index` of up to `batch_size` frames; calls on one stream may share
        it."""
        return self.encoder.workspace(batch_size, device)

    def fold(self) -> Second:
        """A copy for inference, its BatchNorms part of the convolutions: equal but for rounding."""
        folded = copy.deepcopy(self).eval()
        for module in list(folded.modules()):
            if isinstance(module, SparseEncoder | ConvBlock):
                module.fold()
        return folded.requires_grad_(False)


def build_second(config: Config) -> Second:
    """The network of a configuration, freshly initialised from torch's global generator."""
    grid, model = config.grid, config.model
    encoder = SparseEncoder(
        grid.voxel_grid.sparse_shape,
        model.encoder.channels,
        model.encoder.out_channels,
        config.points.width,
    )
    bev = model.bev
    backbone = BevBackbone(
        encoder.bev_shape[0], bev.layers, bev.channels, bev.strides, bev.upsample_channels
    )
    classes = len(config.classes)
    return Second(
        grid.voxel_grid,
        grid.max_points,
        (grid.max_voxels_train, grid.max_voxels_test),
        encoder,
        backbone,
        AnchorHead(backbone.out_channels, classes * len(ROTATIONS), classes, model.velocity),
    )
