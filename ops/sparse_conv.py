"""Sparse convolution along a kernel map: gather, multiply by the offset's weight, add up.

On CUDA it is an implicit GEMM (csrc/conv/): the gathered matrix exists tile by tile only. A
`Dataflow` chooses another way (csrc/dataflow/).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ops.cpu import sparse_conv as cpu
from ops.cuda import dataflow as dataflows
from ops.cuda import sparse_conv as cuda
from ops.dataflow import IMPLICIT_GEMM, Dataflow, LocationMap, PairMap
from ops.dispatch import on_cpu_kernels, on_kernels
from ops.locations import check_direct
from ops.locations import kernel_map as searched
from ops.pairs import pair_map
from ops.reference import sparse_conv as reference
from ops.rulebook import KernelMap

FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def sparse_conv(
    features: Tensor,  # [N_in, C_in]
    weight: Tensor,  # [V, C_in, C_out]
    kernel_map: KernelMap | PairMap | LocationMap,
    bias: Tensor | None = None,  # [C_out]
    residual: Tensor | None = None,  # [N_out, C_out]
    relu: bool = False,
    dataflow: Dataflow | None = None,
) -> Tensor:
    """out[n] = sum over v of features[neighbours[v, n]] @ weight[v], + bias, + residual, ReLU.

    Returns [N_out, C_out] in the dtype of the features; rows from the map's count on hold nothing.
    Sums are taken in float32 (float64 for float64) and rounded once. Differentiable in features,
    weight, bias and residual. Under autocast features and weight are cast to its dtype.

    dataflow: how a GPU computes it; None for the implicit GEMM, or direct for a `LocationMap`. The
    others but direct list the pairs of the map in every call, so give them a `PairMap`, which has
    them listed. float64 and CPU tensors are computed by one code whatever the dataflow.
    """
    kind = features.device.type
    if torch.is_autocast_enabled(kind) and features.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        features, weight = features.to(dtype), weight.to(dtype)
    if isinstance(kernel_map, LocationMap):
        if dataflow is not None and dataflow.kind != "direct":
            raise ValueError(f"dataflow: a LocationMap is for direct, not for {dataflow.kind}")
        check_direct(features, weight, kernel_map)
        if on_kernels(features):
            flow = dataflow or Dataflow("direct")
            return dataflows.sparse_conv(features, weight, kernel_map, bias, residual, relu, flow)
        kernel_map = searched(kernel_map)
    elif dataflow is not None and dataflow.kind == "direct":
        raise ValueError("dataflow: direct takes the map of ops.location_map, not a kernel map")
    _check_conv(features, weight, kernel_map, bias, residual)
    if on_kernels(features) and dataflow not in (None, IMPLICIT_GEMM):
        listed = kernel_map if isinstance(kernel_map, PairMap) else pair_map(kernel_map)
        return dataflows.sparse_conv(features, weight, listed, bias, residual, relu, dataflow)
    if isinstance(kernel_map, PairMap):
        kernel_map = kernel_map.kernel_map()
    backend = cuda if on_kernels(features) else cpu if on_cpu_kernels(features) else reference
    return backend.sparse_conv(features, weight, kernel_map, bias, residual, relu)


def check_features(features: Tensor, kernel_map: KernelMap | PairMap) -> None:
    """ValueError unless the features are rows that the kernel map can read."""
    if features.dtype not in FLOATING:
        raise ValueError(f"features: expected a floating dtype, got {features.dtype}")
    if features.ndim != 2:
        raise ValueError(f"features: expected [N, C], got {list(features.shape)}")
    if kernel_map.forward.neighbours.device != features.device:
        raise ValueError(
            f"kernel_map: on {kernel_map.forward.neighbours.device}, features on {features.device}"
        )
    if kernel_map.backward is not None:
        rows = kernel_map.backward.neighbours.shape[1]
        if rows != len(features):
            raise ValueError(f"features: {len(features)} rows, the kernel map has {rows} inputs")
        return
    if features.requires_grad and torch.is_grad_enabled():
        raise ValueError("kernel_map: backward is None, features that need a gradient need it")
    if features.device.type == "cpu":  # elsewhere the host would have to wait here
        last = kernel_map.forward.neighbours.max() if kernel_map.forward.neighbours.numel() else -1
        if last >= len(features):
            raise ValueError(f"features: {len(features)} rows, the kernel map reads row {last}")


def _check_conv(
    features: Tensor,
    weight: Tensor,
    kernel_map: KernelMap | PairMap,
    bias: Tensor | None,
    residual: Tensor | None,
) -> None:
    check_features(features, kernel_map)
    offsets, rows = kernel_map.forward.neighbours.shape
    if weight.ndim != 3 or weight.shape[:2] != (offsets, features.shape[1]):
        raise ValueError(
            f"weight: expected [{offsets}, {features.shape[1]}, C_out], got {list(weight.shape)}"
        )
    channels = weight.shape[2]
    for name, tensor, shape in (
        ("weight", weight, None),
        ("bias", bias, (channels,)),
        ("residual", residual, (rows, channels)),
    ):
        if tensor is None:
            continue
        if tensor.device != features.device:
            raise ValueError(f"{name}: on {tensor.device}, features on {features.device}")
        if shape is not None and tensor.shape != shape:
            raise ValueError(f"{name}: expected {list(shape)}, got {list(tensor.shape)}")
    if weight.dtype != features.dtype:
        raise ValueError(f"weight: {weight.dtype}, features are {features.dtype}")
