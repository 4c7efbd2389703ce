"""The ladder of sparse convolutions: naive and tensor-core kernels on the same layers."""

from __future__ import annotations

import torch

from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops.lab.ladder import NAIVE, RUNGS, rung_times
from millisecond.ops.lab.networks import second_layers
from millisecond.tools.benchmarks.timing import Scans


def measure(scans: Scans, batch: int) -> dict:
    """Microseconds of every distinct layer of the encoder on every rung; prints the table."""
    torch.manual_seed(0)
    levels = scans.levels(range(batch))
    names = [NAIVE, *(name for name, *_ in RUNGS)]
    result = {"device": torch.cuda.get_device_name(), "scans": scans.source, "batch": batch}
    print("{device}, torch {}, {scans}, batch {batch}".format(torch.__version__, **result))
    print(f"{'us, x faster than naive':<24} {'rows':>7}" + "".join(f"{n:>20}" for n in names))
    result["layers"] = []
    for layer in second_layers(levels, DOWNS):
        name = f"{layer.place} {layer.c_in}-{layer.c_out}"
        row = {"layer": name, **rung_times(layer, batch)}
        result["layers"].append(row)
        times = [f"{row[n]:>11.1f} {row[NAIVE] / row[n]:>6.1f} x" for n in names]
        print(f"{row['layer']:<24} {row['rows']:>7}" + "".join(times), flush=True)
    return result
