"""The ladder of sparse convolutions: naive and tensor-core kernels on the same layers."""

from __future__ import annotations

import torch
from torch import Tensor

from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops import ConvGeometry, KernelMap, Level, index_pyramid, sparse_conv
from millisecond.ops.lab import naive
from millisecond.tools.benchmarks.ops import GRID
from millisecond.tools.benchmarks.peers import LAYERS
from millisecond.tools.benchmarks.timing import Scans, kernel_time

SUBMANIFOLD = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
# name, dtype, torch.set_float32_matmul_precision, largest error against the naive rung
RUNGS = (
    ("tensor fp32", torch.float32, "highest", 1e-5),
    ("tensor tf32", torch.float32, "high", 2e-3),
    ("tensor fp16", torch.float16, "highest", 2e-3),
)


def measure(scans: Scans, batch: int) -> dict:
    """Microseconds of every distinct layer of the encoder on every rung; prints the table."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    voxels = scans.voxels(range(batch), GRID, device)
    levels = index_pyramid(voxels.coords, GRID.sparse_shape, batch, DOWNS).levels
    names = ["naive fp32", *(name for name, *_ in RUNGS)]
    result = {"device": torch.cuda.get_device_name(), "scans": scans.source, "batch": batch}
    print("{device}, torch {}, {scans}, batch {batch}".format(torch.__version__, **result))
    print(f"{'us, x faster than naive':<24} {'rows':>7}" + "".join(f"{n:>20}" for n in names))
    result["layers"] = []
    for c_in, c_out, place in dict.fromkeys(LAYERS):
        row = {"layer": f"{place} {c_in}-{c_out}", **_layer(levels, batch, c_in, c_out, place)}
        result["layers"].append(row)
        times = [f"{row[n]:>11.1f} {row['naive fp32'] / row[n]:>6.1f} x" for n in names]
        print(f"{row['layer']:<24} {row['rows']:>7}" + "".join(times), flush=True)
    return result


def _layer(
    levels: tuple[Level, ...], batch: int, c_in: int, c_out: int, place: int | str
) -> dict[str, float]:
    """Microseconds by rung, and rows. RuntimeError where the rungs do not agree."""
    if isinstance(place, str):
        target = int(place[1])
        source, geometry, kernel_map = levels[target - 1], DOWNS[target - 1], levels[target].down
    else:
        target, source, geometry = place, levels[place], SUBMANIFOLD
        kernel_map = source.submanifold
    features = torch.randn(len(source.coords), c_in, device="cuda")
    volume = len(kernel_map.forward.neighbours)
    weight = torch.randn(volume, c_in, c_out, device="cuda") / (5 * c_in) ** 0.5
    tables = naive.tables(
        source.coords, source.spatial_shape, batch, geometry, levels[target].coords
    )
    expected = naive.sparse_conv(features, weight, tables)
    row = {
        "rows": len(expected),
        "naive fp32": 1e3 * kernel_time(lambda: naive.sparse_conv(features, weight, tables)),
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
