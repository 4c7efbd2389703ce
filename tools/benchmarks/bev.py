"""The bird's-eye-view network and its heads on a GPU, fp16: on rows, step by step, and whole beside
cuDNN's dense one."""

import statistics
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from millisecond.detector.config import Config
from millisecond.detector.models.bev_rows import BevRows
from millisecond.detector.models.second import Second, build_second
from millisecond.ops import BevHeads, ConvChain, KernelMap, Level, Table, bev_cells, bev_spread
from millisecond.ops.lab.timing import kernel_time
from millisecond.tools.benchmarks.timing import Scans


@torch.inference_mode()
def measure(config: Config, scans: Scans, batches: Sequence[int]) -> dict:
    """All tables; prints them as they come."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = build_second(config).fold().to("cuda", torch.float16)
    result: dict = {"device": torch.cuda.get_device_name(), "scans": scans.source}
    print(f"{result['device']}, torch {torch.__version__}, {scans.source}, fp16")
    result["steps"] = [row for batch in batches for row in steps(model, scans, batch)]
    print(f"\n{'whole, CUDA graph, ms':>24} {'B':>2} {'rows':>7} {'cuDNN, all cells':>17}")
    result["whole"] = [whole(model, scans, batch) for batch in batches]
    return result


def steps(model: Second, scans: Scans, batch: int) -> list[dict]:
    """Every step alone, of the first scans; random features."""
    _, level, _ = encoded(model, scans, 0, batch)
    plan = BevRows.of(model).plan(level)
    cells = bev_cells(level, batch, plan)
    print(f"\n{'step':>24} {'B':>2} {'cells':>7} {'share':>6} {'us':>7} {'TFLOP/s':>8}")
    rows = [step("cells and tables", batch, lambda: bev_cells(level, batch, plan))]
    tables, values, factors = iter(cells.tables), [], []
    for block, upsample in zip(model.backbone.blocks, model.backbone.upsamples, strict=True):
        for layer in block:  # type: ignore[attr-defined]  # modules have no types
            table = next(tables)
            c_out, c_in = layer.conv.weight.shape[:2]
            rows.append(convolution(table, c_in, c_out, batch))
        factors.append(upsample.conv.stride[0])
        row, value = end(model, table, upsample.conv, batch)
        rows.append(row)
        values.append(value)
    spread = lambda: bev_spread(values, cells.rows, factors, model.head.groups())  # noqa: E731
    return [*rows, step("predictions of all cells", batch, spread)]


def convolution(table: Table, c_in: int, c_out: int, batch: int) -> dict:
    """c_in: of a cell, all heights together."""
    volume, room = table.neighbours.shape
    channels = c_in * 9 // volume
    weight = torch.randn(volume, channels, c_out, device="cuda").half() / 30
    chain = ConvChain([weight], [torch.randn(c_out, device="cuda")])
    count = int(table.count)  # type: ignore[call-overload]  # on CUDA there is one
    read = table.neighbours[:, :count]
    features = torch.randn(int(read.max()) + 1, channels, device="cuda").half()
    pairs = int((read >= 0).sum())
    name = f"{c_in}-{c_out}"
    call = lambda: chain(features, [KernelMap(table, None)])  # noqa: E731
    return step(name, batch, call, count, count / room, 2 * pairs * channels * c_out)


def end(model: Second, table: Table, conv, batch: int) -> tuple[dict, Tensor]:
    """Up-sampling and heads of a block's cells, and what they answer."""
    c_in, width, factor = *conv.weight.shape[:2], conv.stride[0]
    outputs, parts = sum(model.head.groups()), factor**2
    sizes = (c_in, parts * width), (parts * width,), (width, outputs), (outputs,)
    up, up_bias, head, head_bias = (torch.randn(size, device="cuda").half() / 30 for size in sizes)
    heads = BevHeads(up, up_bias, head, head_bias, parts)
    room, count = table.neighbours.shape[1], int(table.count)  # type: ignore[call-overload]
    features = torch.randn(room, c_in, device="cuda").half()
    operations = 2 * count * parts * width * (c_in + outputs)
    call = lambda: heads(features, table.count)  # noqa: E731
    row = step(f"up {c_in}-{width}, heads", batch, call, count, count / room, operations)
    return row, call()


def step(
    name: str,
    batch: int,
    call: Callable[[], object],
    cells: int | None = None,
    share: float | None = None,
    operations: int | None = None,
) -> dict:
    """A line of the table; share: of all cells of the map."""
    us = 1e3 * kernel_time(call)
    rate = None if operations is None else operations / us / 1e6
    row = {"step": name, "batch": batch, "cells": cells, "share": share, "us": us, "tflop_s": rate}
    texts = "" if cells is None else f"{cells}", "" if share is None else f"{share:.0%}"
    speed = "" if rate is None else f"{rate:.0f}"
    print(f"{name:>24} {batch:>2} {texts[0]:>7} {texts[1]:>6} {us:>7.1f} {speed:>8}", flush=True)
    return row


def whole(model: Second, scans: Scans, batch: int) -> dict:
    """Medians over the scans; a graph of calls one after another."""
    network, rows, dense = BevRows.of(model), [], []
    for first in range(len(scans.points)):
        features, level, bev = encoded(model, scans, first, batch)
        on_rows = lambda: network.predict(features, level, batch)  # noqa: B023, E731
        rows.append(kernel_time(on_rows, launches=5))
        dense.append(kernel_time(lambda: through_cudnn(model, bev), launches=5))  # noqa: B023
    row = {
        "batch": batch,
        "rows_ms": statistics.median(rows),
        "cudnn_ms": statistics.median(dense),
        "rows_of_each": rows,
    }
    print(f"{'':>24} {batch:>2} {row['rows_ms']:>7.3f} {row['cudnn_ms']:>17.3f}", flush=True)
    return row


def encoded(model: Second, scans: Scans, first: int, batch: int) -> tuple[Tensor, Level, Tensor]:
    """The encoder's rows of some scans, their sites, and their map."""
    frames = [(first + i) % len(scans.points) for i in range(batch)]
    voxels, pyramid = model.sites(*scans.batch(frames))
    rows = model.encoder.rows(voxels.features, pyramid)
    return rows, pyramid.levels[-1], model.encode(voxels, pyramid)


def through_cudnn(model: Second, features: Tensor) -> Tensor:
    """The dense network, convolution, bias and ReLU in one of cuDNN's kernels where it has one."""
    maps = []
    for block, upsample in zip(model.backbone.blocks, model.backbone.upsamples, strict=True):
        for layer in block:  # type: ignore[attr-defined]  # modules have no types
            conv = layer.conv
            features = torch.cudnn_convolution_relu(
                features, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, 1
            )
        maps.append(torch.relu_(upsample.conv(features)))
    return F.conv2d(torch.cat(maps, dim=1), *model.head.joined())
