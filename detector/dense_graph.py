"""The dense part of training as CUDA graphs: one launch a direction instead of two hundred."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from detector.models.anchor_head import Predictions
from detector.models.second import Second


class DenseGraph:
    """Backbone and head of a network in training, forward and backward, for maps of one shape.

    The weights are those of the network, whatever they become; they must stay where they are in
    memory. So do the results and the gradients of the weights: the next call overwrites them.
    """

    def __init__(self, model: Second, batch_size: int, dtype: torch.dtype):
        """dtype: float32, or one to compute in by autocast. To be called before other threads use
        CUDA, for a capture allows no allocation beside it."""
        part = nn.Sequential(model.backbone, model.head)
        device = next(part.parameters()).device
        statistics = [buffer.clone() for buffer in part.buffers()]
        sample = torch.zeros(batch_size, *model.encoder.bev_shape, dtype=dtype, device=device)
        sample = sample.contiguous(memory_format=torch.channels_last).requires_grad_()
        # the graph casts the weights anew every time, for they change
        half = dtype != torch.float32
        with torch.autocast("cuda", dtype if half else None, enabled=half, cache_enabled=False):
            self._replay = torch.cuda.make_graphed_callables(part, (sample,))
        for buffer, before in zip(part.buffers(), statistics, strict=True):
            buffer.copy_(before)  # the capture has run the part on zeros

    def __call__(self, bev: Tensor) -> Predictions:
        """[B, C, Y, X] -> predictions, with gradients."""
        return self._replay(bev)
