"""Backbone and head in training as CUDA graphs: one launch per direction instead of two hundred."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from detector.models.anchor_head import Predictions
from detector.models.second import Second

WARM_UP = 3  # runs before the capture, in which cuDNN chooses its kernels


class BevGraph:
    """Backbone and head of a network in training, forward and backward, for maps of one shape.

    The weights are those of the network and must stay where they are in memory. The predictions
    and the gradients, those of the weights too, are always left in the same place: the next call
    overwrites them.
    """

    def __init__(self, model: Second, batch_size: int, dtype: torch.dtype):
        """dtype: float32, or one to compute in by autocast."""
        part = nn.Sequential(model.backbone, model.head)
        self._weights = list(part.parameters())
        statistics = [buffer.clone() for buffer in part.buffers()]
        bev = torch.zeros(batch_size, *model.encoder.bev_shape, dtype=dtype, device="cuda")
        self._bev = bev.contiguous(memory_format=torch.channels_last).requires_grad_()

        def predict() -> Predictions:
            # the weights change, so that each replay has to cast them anew
            half = dtype != torch.float32
            with torch.autocast("cuda", dtype if half else None, enabled=half, cache_enabled=False):
                return part(self._bev)

        def differentiate(predictions: Predictions) -> list[Tensor]:
            inputs = [self._bev, *self._weights]
            gradients = torch.autograd.grad(predictions, inputs, self._received)
            return [_laid_out_as(*pair) for pair in zip(inputs, gradients, strict=True)]

        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(WARM_UP):
                predictions = predict()
                self._received = [torch.zeros_like(values) for values in predictions]
                differentiate(predictions)
            del predictions  # what autograd has made for the weights belongs to this stream
            torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        mode = "thread_local"  # other threads may be pinning the memory of batches meanwhile
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, pool, capture_error_mode=mode):
            predictions = predict()
        with torch.cuda.graph(self._backward, pool, capture_error_mode=mode):
            self._of_bev, *self._of_weights = differentiate(predictions)
        self._predictions = [values.detach() for values in predictions]
        for buffer, before in zip(part.buffers(), statistics, strict=True):
            buffer.copy_(before)  # the warm-up has normalised zeros

    def __call__(self, bev: Tensor) -> Predictions:
        """[B, C, Y, X] of the graph's shape -> predictions, with gradients."""
        if bev.shape != self._bev.shape:
            raise ValueError(f"bev: expected {list(self._bev.shape)}, got {list(bev.shape)}")
        return Predictions(*_Replay.apply(bev, self))

    def predict(self, bev: Tensor) -> list[Tensor]:
        """The predictions, without gradients."""
        self._bev.detach().copy_(bev)
        self._forward.replay()
        return self._predictions

    def differentiate(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """The gradient of the map from those of the predictions; the weights get theirs."""
        torch._foreach_copy_(self._received, gradients)
        self._backward.replay()
        for weight, gradient in zip(self._weights, self._of_weights, strict=True):
            if weight.grad is None:
                weight.grad = gradient
            else:
                weight.grad += gradient
        return self._of_bev


class _Replay(torch.autograd.Function):
    """The weights are not inputs for autograd: it would make one call per weight."""

    @staticmethod
    def forward(ctx: Any, bev: Tensor, graph: BevGraph) -> tuple[Tensor, ...]:
        ctx.graph = graph
        return tuple(values.detach() for values in graph.predict(bev))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.graph.differentiate(gradients).detach(), None


def _laid_out_as(weight: Tensor, gradient: Tensor) -> Tensor:
    """A gradient with the strides of its weight, which is what optimisers count on."""
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)
