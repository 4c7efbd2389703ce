"""Sparse convolution by any dataflow, and its gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from millisecond.ops.dispatch import on_kernels, tf32_allowed
from millisecond.ops.lab.dataflow import IMPLICIT_GEMM, Dataflow
from millisecond.ops.lab.gather_scatter import gather_scatter, weight_gradient
from millisecond.ops.lab.library import extension
from millisecond.ops.lab.locations import LocationMap, Locations, check_direct, conv_direct, locate
from millisecond.ops.lab.locations import kernel_map as searched
from millisecond.ops.lab.pairs import PairMap, Pairs, fetch_on_demand, pair_map
from millisecond.ops.library import extension as main_extension
from millisecond.ops.rulebook import KernelMap, Table
from millisecond.ops.sparse_conv import cast_by_autocast, check_conv, gradient_of_weight
from millisecond.ops.sparse_conv import sparse_conv as implicit_gemm


def sparse_conv(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    kernel_map: KernelMap | PairMap | LocationMap,
    bias: Tensor | None = None,  # [C_out]
    residual: Tensor | None = None,  # [N_out, C_out]
    relu: bool = False,
    dataflow: Dataflow | None = None,
) -> Tensor:  # [N_out, C_out]
    """`ops.sparse_conv` by the dataflow; None for the implicit GEMM, or direct for a `LocationMap`.

    gather_scatter and fetch_on_demand need the pairs of the map as lists. A `PairMap` holds these
    lists; from a `KernelMap` each call makes them anew. float64 and CPU tensors are computed by one
    code, whatever the dataflow.
    """
    features, weight = cast_by_autocast(features, weight)
    rest = bias, residual, relu
    if isinstance(kernel_map, LocationMap):
        if dataflow is not None and dataflow.kind != "direct":
            raise ValueError(f"dataflow: a LocationMap is for direct, not for {dataflow.kind}")
        check_direct(features, weight, kernel_map)
        if on_kernels(features):
            return _on_kernels(features, weight, kernel_map, *rest, dataflow or Dataflow("direct"))
        return implicit_gemm(features, weight, searched(kernel_map), *rest)
    if dataflow is not None and dataflow.kind == "direct":
        raise ValueError("dataflow: direct takes the map of lab.location_map, not a kernel map")
    plain = kernel_map.kernel_map() if isinstance(kernel_map, PairMap) else kernel_map
    if dataflow in (None, IMPLICIT_GEMM) or not on_kernels(features):
        return implicit_gemm(features, weight, plain, *rest)
    check_conv(features, weight, plain, bias, residual)
    listed = kernel_map if isinstance(kernel_map, PairMap) else pair_map(kernel_map)
    return _on_kernels(features, weight, listed, *rest, dataflow)


def _on_kernels(
    features: Tensor,
    weight: Tensor,
    kernel_map: PairMap | LocationMap,
    bias: Tensor | None,
    residual: Tensor | None,
    relu: bool,
    dataflow: Dataflow,
) -> Tensor:
    extension()
    main_extension()  # has the gradient of the weights
    bias = None if bias is None else bias.float()
    flow = dataflow, tf32_allowed()
    if torch.is_grad_enabled():
        return DataflowConv.apply(features, weight, bias, residual, kernel_map, relu, flow)
    return _convolve(features, weight, _sides(kernel_map)[0], flow, bias, residual, relu)


class DataflowConv(torch.autograd.Function):
    """As csrc/conv/conv_torch.cpp. In the backward pass, cuBLAS multiplies in the precision that
    torch is set to at that time."""

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
        return conv_direct(features, weight, side, bias, residual, relu)
    if dataflow.kind == "gather_scatter":
        return gather_scatter(features, weight, side, bias, residual, relu, dataflow)
    return fetch_on_demand(features, weight, side, bias, residual, relu, tf32)


def _weight_gradient(features: Tensor, grad: Tensor, side: Side, flow: Flow) -> Tensor:
    """[V, C_in, C_out] float32. The kernel of the implicit GEMM is itself one that fetches the rows
    of an offset's pairs on demand."""
    dataflow, tf32 = flow
    if isinstance(side, Pairs) and dataflow.kind == "gather_scatter":
        return weight_gradient(features, grad, side, dataflow)
    table = Table(locate(side)) if isinstance(side, Locations) else side.table
    return gradient_of_weight(features, grad, table, tf32)
