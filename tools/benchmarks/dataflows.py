"""Which dataflow is the fastest where: SECOND's layers, a U-Net's, and sites of many densities."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from millisecond import ops
from millisecond.ops.lab import Dataflow, location_map, pair_map
from millisecond.ops.lab.dataflow import GROUPINGS
from millisecond.ops.lab.locations import kernel_map
from millisecond.ops.voxelize import VoxelGrid, voxelize
from millisecond.tools.benchmarks.layer_times import (
    AROUND,
    Layer,
    Maps,
    dataflow_times,
    second_layers,
    spconv_time,
    unet_layers,
)
from millisecond.tools.benchmarks.ops import GRID
from millisecond.tools.benchmarks.timing import Scans, Times, simulated_sweeps, wall

SEMANTIC = VoxelGrid((-80, -80, -4, 80, 80, 8), (0.05, 0.05, 0.05))  # as SemanticKITTI is cut
SITES = 100_000  # of a cube of random sites
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
WIDTHS = (16, 32, 64, 128, 256)
SHOWN = (
    Dataflow(),
    *(Dataflow("gather_scatter", grouping) for grouping in GROUPINGS),
    Dataflow("fetch_on_demand"),
    Dataflow("direct"),
)


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
    device, sweeps = torch.device("cuda"), simulated_sweeps(max(batches))
    for batch in batches:
        voxels = scans.voxels(range(batch), GRID, device)
        yield LayerCase("SECOND", batch, second_layers(voxels.coords, GRID.sparse_shape, batch))
    for batch in batches:
        voxels = voxelize(*sweeps.batch(range(batch), device), SEMANTIC, max_voxels=200_000)
        yield LayerCase("U-Net", batch, unet_layers(voxels.coords, SEMANTIC.sparse_shape, batch))
    for density in DENSITIES:
        side = round((SITES / density) ** (1 / 3))
        cells = torch.rand(side, side, side, device=device) < density
        coords = torch.nn.functional.pad(cells.nonzero(), (1, 0)).int()
        (level,) = ops.index_pyramid(coords, (side,) * 3, 1, [], last_submanifold=True).levels
        place = level, level, AROUND, level.submanifold
        layers = [Layer("submanifold", 0, width, width, 1, *place) for width in WIDTHS]
        yield LayerCase(f"{density:.1%}", 1, layers)


def search_times(case: LayerCase) -> dict:
    """Milliseconds by the wall clock of the map of the first layer, as a program calls for it: by
    the bitmap, by a location table, and of the list of its pairs; prints them."""
    layer = case.layers[0]
    level = layer.inputs
    place = level.coords, level.spatial_shape, case.batch
    calls = {"bitmap": lambda: ops.submanifold_map(*place)}
    for table in ("hash", "array"):
        calls[table] = lambda t=table: kernel_map(location_map(*place, AROUND, level.coords, t))
    calls["pairs"] = lambda: pair_map(layer.kernel_map)
    row: dict = {"case": case.name, "batch": case.batch, "rows": len(level.coords)}
    for name, call in calls.items():
        try:
            row[name] = Times.of(wall(call, 10)).median
        except (ValueError, torch.OutOfMemoryError):  # no array of so large a grid
            row[name] = None
    times = ", ".join(f"{name} {ms:.2f}" for name in calls if (ms := row[name]) is not None)
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
