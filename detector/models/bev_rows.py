"""The backbone and the heads, only for the cells of the map that are not constant."""

from __future__ import annotations

import torch
from torch import Tensor

from millisecond.detector.models.bev_backbone import BevBackbone, ConvBlock
from millisecond.detector.models.second import AnchorHead, AnyPredictions, Second
from millisecond.ops import BevHeads, ConvChain, bev_cells, bev_map, bev_spread, sparse_conv
from millisecond.ops.bev import BevCells, CellPlan, CellValues, SquareWindow, joined_cells, planned
from millisecond.ops.rulebook import KernelMap, Level, Table

Layer = tuple[Tensor, Tensor]  # of rows: weight [V, C_in, C_out], bias [C_out] float32


class BevRows:
    """A folded backbone and its heads as convolutions of rows; a row is a cell that is computed.

    Results equal the dense network's but for rounding, and do not depend on which cells are
    computed.
    """

    def __init__(self, backbone: BevBackbone, head: AnchorHead, channels: int):
        """channels: of a row of the encoder. The weights are copied."""
        self._backbone, self._head = backbone, head
        self._plans: dict[tuple[int, ...], CellPlan] = {}  # by the size of the map
        self._blocks: list[tuple[list[SquareWindow], ConvChain]] = []
        self._upsamples: list[tuple[int, ConvChain]] = []
        self._widths: list[int] = []
        for block, upsample in zip(backbone.blocks, backbone.upsamples, strict=True):
            layers: list[ConvBlock] = list(block)  # type: ignore[call-overload]  # no types
            # [C_out, C_in, H, W] -> [H * W, C_in, C_out]
            weights = [layer.conv.weight.permute(2, 3, 1, 0).flatten(0, 1) for layer in layers]
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
        self._ends = [
            BevHeads(up[0], up_bias, head[0], head_bias, factor**2)
            for ((up, up_bias), (head, head_bias)), factor in zip(
                self.ends(), self.factors, strict=True
            )
        ]

    @classmethod
    def of(cls, model: Second) -> BevRows:
        """Of a folded network."""
        return cls(model.backbone, model.head, model.encoder.out_channels)

    @torch.inference_mode()
    def predict(self, rows: Tensor, level: Level, batch_size: int) -> AnyPredictions:
        """The encoder's rows [N, C] at the sites of `level` -> predictions of every anchor.

        On CUDA nothing is read back to the host, and there is room for every cell of the map: rows
        from `level.count` on are not read, and nothing can overflow. float32 takes the dense
        network there: without tensor cores that is faster.
        """
        if not rows.is_cuda:
            return self._predict_on_cpu(rows, level, batch_size)
        if rows.dtype == torch.float32:
            bev = bev_map(rows, level.coords, level.spatial_shape, batch_size, level.count)
            return self._head(self._backbone(bev.contiguous(memory_format=torch.channels_last)))
        parts = bev_spread(*self.values(rows, self.cells(level, batch_size)))
        return self._head.named(
            part.view(batch_size, -1, width)
            for part, width in zip(parts, self._head.widths, strict=True)
        )

    @torch.inference_mode()
    def cells(self, level: Level, batch_size: int) -> BevCells:
        """The cells that are computed for these sites, on CUDA; they wait for the sites alone."""
        return bev_cells(level, batch_size, self.plan(level))

    @torch.inference_mode()
    def values(self, rows: Tensor, cells: BevCells) -> CellValues:
        """What `predict` sums to predictions, on CUDA and of 16 bits."""
        tables, values = iter(cells.tables), []
        for (windows, chain), end in zip(self._blocks, self._ends, strict=True):
            kernel_maps = [KernelMap(next(tables), None) for _ in windows]
            rows = chain(rows, kernel_maps)
            values.append(end(rows, kernel_maps[-1].forward.count))
        return CellValues(values, cells.rows, self.factors, self._head.groups())

    def _predict_on_cpu(self, rows: Tensor, level: Level, batch_size: int) -> AnyPredictions:
        plan, features = self.plan(level), []
        cells = bev_cells(level, batch_size, plan)
        tables = iter(cells.tables)
        for (windows, chain), (_, upsample), width in zip(
            self._blocks, self._upsamples, self._widths, strict=True
        ):
            rows = chain(rows, [KernelMap(next(tables), None) for _ in windows])
            itself = Table(torch.arange(len(rows), dtype=torch.int32)[None])  # a 1x1 convolution
            features.append(upsample(rows, [KernelMap(itself, None)]).view(-1, width))
        whole, kernel_maps = joined_cells(cells, plan, [factor for factor, _ in self._upsamples])
        weight, bias = self._head.joined()
        pieces = weight.flatten(1).T.split(self._widths)
        values: Tensor | None = None
        for feature, piece, kernel_map in zip(features, pieces, kernel_maps, strict=True):
            once = bias if values is None else None
            values = sparse_conv(feature, piece[None], kernel_map, once, values)
        assert values is not None
        return self._head.predictions(values, whole.flatten(1))

    def ends(self) -> list[tuple[Layer, Layer]]:
        """Of each block: its up-sampling of a row by itself, [1, C_in, factor * factor * width],
        and the part of the heads that reads it, [1, width, C_out]. The first has their bias."""
        weight, bias = self._head.joined()
        pieces = weight.flatten(1).T.split(self._widths)
        biases = [bias.float(), *[torch.zeros_like(bias).float()] * (len(pieces) - 1)]
        heads = [(piece[None], part) for piece, part in zip(pieces, biases, strict=True)]
        ups = [chain.layers()[0] for _, chain in self._upsamples]
        return list(zip(ups, heads, strict=True))

    def layers(self) -> list[list[Layer]]:
        """The convolutions of each block."""
        return [chain.layers() for _, chain in self._blocks]

    @property
    def factors(self) -> list[int]:
        """Of the up-sampling of each block, along y and x."""
        return [factor for factor, _ in self._upsamples]

    def plan(self, level: Level) -> CellPlan:
        """What the network computes for maps of the size of `level`: made once, before a graph is
        captured."""
        if level.spatial_shape not in self._plans:
            windows = [windows for windows, _ in self._blocks]
            channels = [len(bias) for _, chain in self._blocks for _, bias in chain.layers()]
            shape, device = level.spatial_shape[1:], level.coords.device
            plan = planned(windows, shape, device, channels)
            self._plans[level.spatial_shape] = plan
        return self._plans[level.spatial_shape]


def _window(layer: ConvBlock) -> SquareWindow:
    conv = layer.conv
    return SquareWindow(conv.kernel_size[0], conv.stride[0], int(conv.padding[0]))


def _bias(layer: ConvBlock) -> Tensor:
    assert layer.conv.bias is not None, "not folded"
    return layer.conv.bias.float()
