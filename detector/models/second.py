"""SECOND: sparsely embedded convolutional detection (Yan, Mao and Li 2018)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from detector.anchors import ROTATIONS
from detector.config import Config
from detector.models.anchor_head import AnchorHead, Predictions
from detector.models.bev_backbone import BevBackbone, ConvBlock
from detector.models.sparse_encoder import SparseEncoder
from ops.kernel_map import Pyramid
from ops.voxelize import VoxelGrid, Voxels, voxelize


class Second(nn.Module):
    """From points to predictions: voxelizer, sparse encoder, bird's-eye-view backbone, heads."""

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

    def forward(self, points: Tensor, offsets: Tensor) -> Predictions:
        """points [P, C] float32 of all frames one after another (x, y, z in metres, intensity in
        [0, 1], further features); offsets [B + 1] int32: frame b has the rows offsets[b] to
        offsets[b + 1]."""
        voxels = self.voxelize(points, offsets)
        pyramid = self.index(voxels)
        bev = self.encode(voxels, pyramid)
        return self.predict(bev)

    def voxelize(self, points: Tensor, offsets: Tensor, workspace: Tensor | None = None) -> Voxels:
        """Points as in `forward` -> the cells that hold points.

        workspace: from `workspace`, saves zeroing one in every call.
        """
        max_voxels = self.max_voxels[0 if self.training else 1]
        return voxelize(
            points, offsets, self.grid, self.max_points, max_voxels, workspace=workspace
        )

    def index(self, voxels: Voxels, workspace: Tensor | None = None) -> Pyramid:
        """Voxels -> the sites of every level of the encoder and the kernel maps between them."""
        return self.encoder.index(voxels, workspace=workspace)

    def encode(self, voxels: Voxels, pyramid: Pyramid) -> Tensor:
        """Voxels and their pyramid -> the bird's-eye-view map [B, C, Y, X], channels last."""
        bev = self.encoder.encode(voxels.features, pyramid)
        return bev.contiguous(memory_format=torch.channels_last)

    def predict(self, bev: Tensor) -> Predictions:
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
        encoder.bev_shape[0],
        bev.layers,
        bev.channels,
        bev.strides,
        bev.upsample_channels,
    )
    classes = len(config.classes)
    return Second(
        grid.voxel_grid,
        grid.max_points,
        (grid.max_voxels_train, grid.max_voxels_test),
        encoder,
        backbone,
        AnchorHead(backbone.out_channels, classes * len(ROTATIONS), classes),
    )
