"""The ladder of sparse convolutions: naive and tensor-core kernels on the same layer."""

from __future__ import annotations

import torch
from torch import Tensor

from millisecond.ops.lab import naive
from millisecond.ops.lab.networks import Layer
from millisecond.ops.lab.timing import kernel_time
from millisecond.ops.rulebook import KernelMap
from millisecond.ops.sparse_conv import sparse_conv

NAIVE = "naive fp32"
# name, dtype, torch.set_float32_matmul_precision, largest error against the naive rung
RUNGS = (
    ("tensor fp32", torch.float32, "highest", 1e-5),
    ("tensor tf32", torch.float32, "high", 2e-3),
    ("tensor fp16", torch.float16, "highest", 2e-3),
)


def rung_times(layer: Layer, batch_size: int) -> dict[str, float]:
    """Rows, and microseconds by rung. RuntimeError where the rungs do not agree."""
    source, kernel_map = layer.inputs, layer.kernel_map
    features = torch.randn(len(source.coords), layer.c_in, device="cuda")
    volume = len(kernel_map.forward.neighbours)
    weight = torch.randn(volume, layer.c_in, layer.c_out, device="cuda") / (5 * layer.c_in) ** 0.5
    place = source.coords, source.spatial_shape, batch_size, layer.geometry, layer.outputs.coords
    tables = naive.tables(*place)
    expected = naive.sparse_conv(features, weight, tables)
    row = {
        "rows": len(expected),
        NAIVE: 1e3 * kernel_time(lambda: naive.sparse_conv(features, weight, tables)),
    }
    for name, dtype, precision, tolerance in RUNGS:
        torch.set_float32_matmul_precision(precision)
        row[name] = _rung(features.to(dtype), weight.to(dtype), kernel_map, expected, tolerance)
    return row


def _rung(
    features: Tensor, weight: Tensor, kernel_map: KernelMap, expected: Tensor, tolerance: float
) -> float:
    with torch.inference_mode():
        out = sparse_conv(features, weight, kernel_map).float()
        error = (out - expected).norm() / expected.norm()
        if not error < tolerance:
            raise RuntimeError(f"{features.dtype} is off by {error:.1e} from the naive kernel")
        return 1e3 * kernel_time(lambda: sparse_conv(features, weight, kernel_map))
