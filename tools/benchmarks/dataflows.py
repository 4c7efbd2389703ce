"""Which dataflow is the fastest where: SECOND's layers, a U-Net's, and sites of many densities."""

import gc
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops.lab.dataflow import Dataflow
from millisecond.ops.lab.dataflow_times import (
    DENSITIES,
    SHOWN,
    Maps,
    dataflow_times,
    map_times,
    random_layers,
)
from millisecond.ops.lab.networks import Layer, second_layers, unet_layers
from millisecond.tools.benchmarks.peers import spconv_time
from millisecond.tools.benchmarks.timing import AROUND, Scans, simulated_sweeps


class LayerCase(NamedTuple):
    """Layers on the sites of one batch."""

    name: str
    batch: int
    layers: list[Layer]


def measure(
    scans: Scans, batches: Sequence[int], precisions: Sequence[str], training: bool
) -> dict:
    """Microseconds of every layer by every dataflow; prints the table."""
    torch.manual_seed(0)
    gc.freeze()  # every capture of a graph collects garbage: what was imported is none
    result: dict = {"device": torch.cuda.get_device_name(), "scans": scans.source, "rows": []}
    print(f"{result['device']}, torch {torch.__version__}, {scans.source}; us per layer")
    print(f"{', '.join(map(str, SHOWN))}; launched: the fastest, spconv\n")
    for case in cases(scans, batches):
        result["rows"].append(search_times(case))
        maps = Maps(case.batch)
        for precision in precisions:
            rows = [measured(case, layer, maps, precision, training) for layer in case.layers]
            result["rows"] += rows
            print_sum(case, precision, rows)
    return result


def cases(scans: Scans, batches: Sequence[int]) -> Iterator[LayerCase]:
    """Two networks on scans, then layers on random sites."""
    sweeps = simulated_sweeps(max(batches))
    for batch in batches:
        levels = scans.levels(range(batch))
        yield LayerCase("SECOND", batch, second_layers(levels, DOWNS))
    for batch in batches:
        coords = sweeps.voxels(range(batch), AROUND, 200_000).coords
        yield LayerCase("U-Net", batch, unet_layers(coords, AROUND.sparse_shape, batch))
    for density in DENSITIES:
        yield LayerCase(f"{density:.1%}", 1, random_layers(density))


def search_times(case: LayerCase) -> dict:
    """A row of the times to make the map of the first layer; prints them."""
    layer = case.layers[0]
    found = map_times(layer, case.batch)
    row = {"case": case.name, "batch": case.batch, "rows": len(layer.inputs.coords), **found}
    times = ", ".join(f"{name} {ms:.2f}" for name, ms in found.items() if ms is not None)
    print(f"{case.name} B={case.batch} {row['rows']} sites: ms of the map by {times}", flush=True)
    return row


def measured(case: LayerCase, layer: Layer, maps: Maps, precision: str, training: bool) -> dict:
    """A row of the table; prints it."""
    neighbours = layer.kernel_map.forward.neighbours
    times = dataflow_times(layer, maps, precision, SHOWN, training)
    best = min(times, key=lambda name: times[name])
    fastest = [Dataflow.parse(best)]
    launched = dataflow_times(layer, maps, precision, fastest, training, graph=False)[best]
    theirs = spconv_time(layer, case.batch, precision, training)
    row = {
        "case": case.name,
        "batch": case.batch,
        "layer": layer.name,
        "times": layer.times,
        "rows": neighbours.shape[1],
        "pairs": float((neighbours >= 0).sum() / max(neighbours.shape[1], 1)),
        "precision": precision,
        "training": training,
        "us": times,
        "launched_us": launched,
        "spconv_us": theirs,
    }
    line = f"{case.name:>6} B={case.batch} {layer.name:<24} {row['rows']:>7} {row['pairs']:>5.1f} "
    line += f"{precision} " + " ".join(f"{us:8.1f}" for us in times.values())
    line += f"  {launched:8.1f}" + (f" {theirs:8.1f}" if theirs else "        -")
    print(f"{line}  {best}", flush=True)
    return row


def print_sum(case: LayerCase, precision: str, rows: list[dict]) -> None:
    """The convolutions of a network together."""
    if not case.layers or case.name.endswith("%"):
        return
    total = lambda pick: sum(row["times"] * pick(row["us"]) for row in rows)  # noqa: E731
    implicit = total(lambda us: us["implicit_gemm"])
    best = total(lambda us: min(us.values()))
    line = f"{case.name} B={case.batch} {precision}, all layers: implicit GEMM {implicit:.0f} us, "
    line += f"best of each {best:.0f} us"
    if all(row["spconv_us"] for row in rows):
        line += f", spconv {sum(row['times'] * row['spconv_us'] for row in rows):.0f} us"
    print(line + "\n", flush=True)
