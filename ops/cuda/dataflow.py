"""Convolutions by the dataflows beside the implicit GEMM, and their gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ops.cuda import fetch_on_demand, gather_scatter, locations
from ops.cuda.library import extension
from ops.cuda.precision import tf32_allowed
from ops.cuda.sparse_conv import gradient_of_weight
from ops.dataflow import Dataflow, LocationMap, Locations, PairMap, Pairs
from ops.rulebook import Table


def sparse_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: PairMap | LocationMap,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    dataflow: Dataflow,
) -> Tensor:
    """See ops.sparse_conv.sparse_conv."""
    extension()
    bias = None if bias is None else bias.float()
    flow = dataflow, tf32_allowed()
    if torch.is_grad_enabled():
        return DataflowConv.apply(features, weight, bias, residual, kernel_map, relu, flow)
    return _convolve(features, weight, _sides(kernel_map)[0], flow, bias, residual, relu)


class DataflowConv(torch.autograd.Function):
    """As ops.cuda.sparse_conv.CudaConv. Products of cuBLAS in the backward pass are in the
    precision that torch is set to by then."""

    @staticmethod
    def forward(ctx, features, weight, bias, residual, kernel_map, relu, flow):
        out = _convolve(features, weight, _sides(kernel_map)[0], flow, bias, residual, relu)
        ctx.save_for_backward(features, weight, out if relu else None)
        ctx.kernel_map, ctx.flow = kernel_map, flow
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        features, weight, out = ctx.saved_tensors
        wants_features, wants_weight, wants_bias, wants_residual, *_ = ctx.needs_input_grad
        grad = grad.contiguous() if out is None else torch.where(out > 0, grad, 0)
        forward, backward = _sides(ctx.kernel_map)
        grad_features = grad_weight = grad_bias = None
        if wants_features:
            assert backward is not None  # checked with the features
            transposed = weight.transpose(1, 2).contiguous()
            grad_features = _convolve(grad, transposed, backward, ctx.flow)
        if wants_weight:
            grad_weight = _weight_gradient(features, grad, forward, ctx.flow).to(weight.dtype)
        if wants_bias:
            grad_bias = grad.sum(0, dtype=torch.float32)
        grad_residual = grad if wants_residual else None
        return grad_features, grad_weight, grad_bias, grad_residual, None, None, None


Side = Pairs | Locations  # one direction of a map
Flow = tuple[Dataflow, bool]  # and whether float32 may be rounded to tf32


def _sides(kernel_map: PairMap | LocationMap) -> tuple[Side, Side | None]:
    if isinstance(kernel_map, LocationMap):
        return kernel_map.forward, kernel_map.backward
    return kernel_map.pairs, kernel_map.pairs_back


def _convolve(
    features: Tensor,
    weight: Tensor,  # [V, C_in, C_out]
    side: Side,
    flow: Flow,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    dataflow, tf32 = flow
    if isinstance(side, Locations):
        return locations.convolve(features, weight, side, bias, residual, relu)
    if dataflow.kind == "gather_scatter":
        return gather_scatter.convolve(features, weight, side, bias, residual, relu, dataflow)
    return fetch_on_demand.convolve(features, weight, side, bias, residual, relu, tf32)


def _weight_gradient(features: Tensor, grad: Tensor, side: Side, flow: Flow) -> Tensor:
    """[V, C_in, C_out] float32. The kernel of the implicit GEMM is itself one that fetches the rows
    of an offset's pairs on demand."""
    dataflow, tf32 = flow
    if isinstance(side, Pairs) and dataflow.kind == "gather_scatter":
        return gather_scatter.weight_gradient(features, grad, side, dataflow)
    table = Table(locations.locate(side)) if isinstance(side, Locations) else side.table
    return gradient_of_weight(features, grad, table, tf32)
