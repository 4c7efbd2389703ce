"""The stages of a scan, from points to boxes, on one device: each written once, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from millisecond.detector.config import PRECISIONS, Config
from millisecond.detector.cuda_graph import side_stream
from millisecond.detector.device import torch_defaults
from millisecond.detector.models.anchor_head import Predictions
from millisecond.detector.models.bev_rows import BevRows
from millisecond.detector.models.second import Fixed, Second
from millisecond.detector.postprocess import Detections, build_postprocessor
from millisecond.ops.bev import BevCells, CellValues
from millisecond.ops.kernel_map import Pyramid
from millisecond.ops.transfer import clamp_intensity
from millisecond.ops.voxelize import Voxels

Cloud = np.ndarray | Tensor  # [P, C] float32


class Outcome(NamedTuple):
    """What was found in a batch of clouds."""

    detections: list[Detections]  # of each cloud, on the host
    not_finite: int  # points of the batch that were left out because of that
    capped: int  # points of the batch that were left out by the cap on voxels
    rows: tuple[int, ...]  # of each level of the encoder, in the whole batch


class Predicted(NamedTuple):
    """What the network makes of a batch, all on its device."""

    voxels: Voxels
    pyramid: Pyramid
    predictions: Predictions | CellValues  # of every anchor


class Inference:
    """A network for inference with its postprocessor; nothing is kept between calls."""

    def __init__(self, model: Second, config: Config, device: torch.device, precision: str):
        """A copy of `model` is used, with its BatchNorms folded."""
        self.device = device
        self.model = model.fold().to(device, PRECISIONS[precision])
        self.postprocess = build_postprocessor(config).to(device)
        self._rows = BevRows.of(self.model)
        # whether a GPU computes occupied cells of the map, by our kernels; else all, by cuDNN
        self.on_cells = precision != "fp32"

    @torch_defaults()
    @torch.inference_mode()
    def __call__(self, clouds: Sequence[Cloud]) -> Outcome:
        """Clouds in one batch."""
        parts = [clamp_intensity(as_tensor(cloud)).to(self.device) for cloud in clouds]
        points = torch.cat(parts)
        sizes = torch.tensor([0, *map(len, clouds)])
        offsets = sizes.cumsum(0).int().to(self.device)
        voxels, pyramid, predictions = self.forward(points, offsets)
        found = self.postprocess(predictions)
        not_finite, capped = voxels.dropped.tolist()  # sync: the boxes are awaited anyway
        rows = tuple(len(level.coords) for level in pyramid.levels)
        on_host = [Detections(*(tensor.cpu() for tensor in frame)) for frame in found]
        return Outcome(on_host, not_finite, capped, rows)

    def forward(self, points: Tensor, offsets: Tensor, fixed: Fixed | None = None) -> Predicted:
        """Points on the device, see `Second.sites` -> predictions. With fixed sizes a CUDA graph
        can be captured, in which a side stream works beside the encoder."""
        if fixed is None:
            voxels, pyramid = self.model.sites(points, offsets)
            cells, rows = self.cells(pyramid), self.encode(voxels, pyramid)
        else:
            side, current = side_stream(), torch.cuda.current_stream()
            voxels, pyramid = self.model.sites(points, offsets, fixed, side)
            side.wait_stream(current)
            with torch.cuda.stream(side):  # beside the encoder: they need the sites alone
                cells = self.cells(pyramid)
            rows = self.encode(voxels, pyramid)
            current.wait_stream(side)
        return Predicted(voxels, pyramid, self.predict(rows, pyramid, cells))

    def encode(self, voxels: Voxels, pyramid: Pyramid) -> Tensor:
        """Voxels and their pyramid -> the rows of the bird's-eye-view map."""
        return self.model.encoder.rows(voxels.features, pyramid)

    def cells(self, pyramid: Pyramid) -> BevCells | None:
        """The cells of the map that `predict` computes; None where it finds them itself."""
        level = pyramid.levels[-1]
        if not (level.coords.is_cuda and self.on_cells):
            return None
        return self._rows.cells(level, pyramid.batch_size)

    def predict(
        self, rows: Tensor, pyramid: Pyramid, cells: BevCells | None
    ) -> Predictions | CellValues:
        """What `encode` and `cells` return -> predictions of every anchor."""
        if cells is not None:
            return self._rows.values(rows, cells)
        return self._rows.predict(rows, pyramid.levels[-1], pyramid.batch_size)


def as_tensor(cloud: Cloud) -> Tensor:
    """The same points for torch."""
    if isinstance(cloud, Tensor):
        return cloud
    # torch has no tensors that must not be written to, nor any with negative strides
    usable = cloud.flags.writeable and min(cloud.strides) >= 0
    return torch.from_numpy(cloud if usable else cloud.copy())
