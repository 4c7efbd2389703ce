"""Shapes and gradients of the CUDA operators, for torch.compile and autograd.

Imported once they are loaded. Sections as in csrc/bindings.cpp: index, voxelize, sparse max
pooling, dense, convolution, boxes.
"""

import torch
from torch import Tensor

# ---- convolution ---------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::conv")
def _conv(features, weight, neighbours, count, flipped, bias, residual, relu) -> Tensor:
    return features.new_empty(neighbours.shape[1], weight.shape[1])


@torch.library.register_fake("millisecond::conv_weight_gradient")
def _conv_weight_gradient(features, gradient, neighbours, count, flipped) -> Tensor:
    shape = neighbours.shape[0], features.shape[1], gradient.shape[1]
    return features.new_empty(shape, dtype=torch.float32)


# ---- boxes ---------------------------------------------------------------------------------------


@torch.library.register_fake("millisecond::overlap")
def _overlap(a, b, kind) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0])


@torch.library.register_fake("millisecond::paired_overlap")
def _paired_overlap(a, b) -> Tensor:
    return a.new_empty(a.shape[0])


@torch.library.register_fake("millisecond::nms")
def _nms(boxes, order, iou_threshold, max_output, count) -> tuple[Tensor, Tensor]:
    return order.new_empty(max_output), order.new_empty(1, dtype=torch.int32)
