"""The backbone and the heads on a CPU: only for the cells of the map that are not constant."""

from __future__ import annotations

import torch
from torch import Tensor

from detector.models.anchor_head import AnchorHead, Predictions
from detector.models.bev_backbone import BevBackbone, ConvBlock
from detector.models.bev_cells import Cells, Window, upsampled
from detector.models.second import Second
from ops import ConvChain, sparse_conv
from ops.rulebook import KernelMap, Level, Table


class BevRows:
    """A folded backbone and its heads as convolutions of rows; a row is a cell that is computed.

    Results are those of the dense network but for rounding, and do not depend on which cells are
    computed.
    """

    def __init__(self, backbone: BevBackbone, head: AnchorHead, channels: int):
        """channels: of a row of the encoder. The weights are copied."""
        self._head = head
        self._blocks: list[tuple[list[Window], ConvChain]] = []
        self._upsamples: list[tuple[int, ConvChain]] = []
        self._widths: list[int] = []
        for block, upsample in zip(backbone.blocks, backbone.upsamples, strict=True):
            layers: list[ConvBlock] = list(block)  # type: ignore[call-overload]  # no types
            weights = [_weight(layer) for layer in layers]
            if not self._blocks:  # the heights of a cell are channels of the map, but rows here
                weights[0] = weights[0].unflatten(1, (-1, channels)).flatten(0, 1)
            chain = ConvChain(weights, [_bias(layer) for layer in layers])
            self._blocks.append(([_window(layer) for layer in layers], chain))
            assert isinstance(upsample, ConvBlock)
            factor = upsample.conv.stride[0]
            weight = upsample.conv.weight.permute(0, 2, 3, 1).flatten(1)[None]
            bias = _bias(upsample).repeat(factor * factor)
            self._upsamples.append((factor, ConvChain([weight], [bias])))
            self._widths.append(upsample.conv.out_channels)

    @classmethod
    def of(cls, model: Second) -> BevRows:
        """Of a folded network."""
        return cls(model.backbone, model.head, model.encoder.out_channels)

    @torch.inference_mode()
    def predict(self, rows: Tensor, level: Level, batch_size: int) -> Predictions:
        """The encoder's rows [N, C] at the sites of `level` -> predictions of every anchor."""
        cells = Cells.of_sites(level, batch_size)
        maps, features = [], []
        for (windows, chain), (factor, upsample), width in zip(
            self._blocks, self._upsamples, self._widths, strict=True
        ):
            kernel_maps = []
            for window in windows:
                cells, kernel_map = cells.convolved(window)
                kernel_maps.append(kernel_map)
            rows = chain(rows, kernel_maps)
            features.append(upsample(rows, [_each(len(rows))]).view(-1, width))
            maps.append((cells, factor))
        whole, kernel_maps = upsampled(maps)
        weight, bias = self._head.joined()
        pieces = weight.flatten(1).T.split(self._widths)
        values: Tensor | None = None
        for feature, piece, kernel_map in zip(features, pieces, kernel_maps, strict=True):
            once = bias if values is None else None
            values = sparse_conv(feature, piece[None], kernel_map, once, values)
        assert values is not None
        return self._head.predictions(values, whole.row[:batch_size].flatten(1))


def _window(layer: ConvBlock) -> Window:
    conv = layer.conv
    return Window(conv.kernel_size[0], conv.stride[0], int(conv.padding[0]))


def _weight(layer: ConvBlock) -> Tensor:
    """[C_out, C_in, H, W] -> [H * W, C_in, C_out]."""
    return layer.conv.weight.permute(2, 3, 1, 0).flatten(0, 1)


def _bias(layer: ConvBlock) -> Tensor:
    assert layer.conv.bias is not None, "not folded"
    return layer.conv.bias.float()


def _each(rows: int) -> KernelMap:
    """Every row by itself: a 1x1 convolution."""
    return KernelMap(Table(torch.arange(rows, dtype=torch.int32)[None]), None)
