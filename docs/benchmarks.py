"""Figures of a run from the JSON file of millisecond bench, for `python -m docs.figures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
Tables = dict[str, dict[str, dict[str, str]]]  # table, row, column
FP16 = {"precision": "fp16"}
PLACES = [(scan, batch) for scan in ("KITTI", "360") for batch in (1, 4)]


def rows(found: list[Json], **facts: object) -> list[Json]:
    """The rows with these facts."""
    return [row for row in found if facts.items() <= row.items()]


def one(found: list[Json], **facts: object) -> Json:
    those = rows(found, **facts)
    if len(those) != 1:
        raise ValueError(f"the benchmark has {len(those)} rows with {facts}, one is needed")
    return those[0]


def digits(value: float) -> str:
    """Three digits of a number from 1 on, three decimals of a smaller one."""
    return f"{value:.{max(0, 3 - len(str(int(value))) if value >= 1 else 3)}f}"


def pipeline(result: Json) -> Tables:
    names = dict(zip(("ten scans", "three sweeps"), result["scans"], strict=True))
    columns = {"p50": "p50_ms", "p90": "p90_ms", "p99": "p99_ms", "p99.9": "p99_9_ms"}
    calls = {n: one(result["latency"], path="graph", scans=s, **FP16) for n, s in names.items()}
    whole = {n: one(result["stages"], scans=s, **FP16) for n, s in names.items()}
    return {
        "latency": {
            name: {column: f"{row[key]:.3f}" for column, key in columns.items()}
            for name, row in calls.items()
        },
        "graph": {
            name: {"us": f"{1e3 * row['all in one graph']:.0f}"} for name, row in whole.items()
        },
    }


def pipeline_stages(result: Json) -> Tables:
    stages = {
        "load": "load",
        "voxelize": "voxelize",
        "index": "index",
        "encoder": "encoder",
        "cells": "cells, beside the encoder",
        "BEV network": "BEV network",
        "postprocess": "postprocess",
        "report": "report",
        "all in one graph": "all in one graph",
    }
    ways = {f"{'batches ' if n == 1 else ''}of {n}": f"batch of {n}" for n in (1, 2, 4, 8)}
    ways["one after another (`stream`)"] = "stream"
    rates = {way: one(result["throughput"], way=key, **FP16) for way, key in ways.items()}
    return {
        "stages": {
            name: {
                column: f"{1e3 * one(result['stages'], scans=scans, **FP16)[key]:.0f}"
                for column, key in stages.items()
            }
            for name, scans in zip(("scans", "sweeps"), result["scans"], strict=True)
        },
        "batches": {
            "ten scans": {way: f"{row['frames_per_second']:,.0f}" for way, row in rates.items()}
        },
        "memory": {"GPU": {"MB": f"{result['memory_mb']['fp16']:.0f}"}},
        "start": {
            "first boxes": {"s": f"{result['start']['first boxes']:.1f}"},
            "imports": {"s": f"{result['start']['imported']:.1f}"},
        },
    }


def encoder(result: Json) -> Tables:
    works = {
        "forward, fp16": ("forward, graph", "fp16"),
        "forward and backward, AMP fp16": ("forward + backward", "fp16"),
        "forward, tf32": ("forward, graph", "tf32"),
        "forward, exact fp32": ("forward, graph", "fp32"),
    }
    found = rows(result["encoder"], engine="millisecond")
    return {
        "encoder": {
            name: {
                f"{batch} scan{'s' if batch > 1 else ''}": digits(
                    one(found, work=work, precision=precision, batch=batch)["median_ms"]
                )
                for batch in (1, 4)
            }
            for name, (work, precision) in works.items()
        }
    }


def bev(result: Json) -> Tables:
    table: dict[str, dict[str, str]] = {}
    for whole in result["whole"]:
        steps = rows(result["steps"], batch=whole["batch"])
        ends = [row["us"] for row in steps if row["step"].startswith("up ")]
        layers = [row["us"] for row in steps if row["cells"] and not row["step"].startswith("up ")]
        figures = {
            "network and heads on rows": whole["rows_ms"],
            "cuDNN, all cells": whole["cudnn_ms"],
            "cells, tables and tiles": one(steps, step="cells and tables")["us"] / 1e3,
            "twelve convolutions, each by itself": sum(layers) / 1e3,
            "up-sampling and heads, both blocks": sum(ends) / 1e3,
            "predictions of all cells": one(steps, step="predictions of all cells")["us"] / 1e3,
        }
        column = f"{whole['batch']} scan{'s' if whole['batch'] > 1 else ''}"
        for name, value in figures.items():
            table.setdefault(name, {})[column] = f"{value:.3f}"
    return {"network": table}


def train(result: Json) -> Tables:
    row = one(result["steps"], **FP16)
    columns = {
        "whole step": "whole step, ms",
        "backbone and heads": "backbone and heads forward, ms",
        "losses and backward": "losses and backward, ms",
        "clip and update": "clip and update, ms",
        "the host's own work": "of it the host's own work, ms",
    }
    figures = {column: f"{row[key]:.2f} ms" for column, key in columns.items()}
    return {"step": {"AMP fp16": figures | {"memory": f"{row['peak memory, GiB']:.2f} GiB"}}}


def networks_fp16(result: Json) -> Tables:
    table = {}
    for scan, batch in PLACES:
        found = rows(result["rows"], scan=scan, batch=batch, **FP16)
        for row in rows(found, work="inference"):
            figures = {}
            columns = {
                "inference": ("inference, ms", "faster", "MB"),
                "training": ("training, ms", "times faster", "MB in training"),
            }
            for kind, (time, faster, memory) in columns.items():
                work = one(found, network=row["network"], work=kind)
                ours, theirs = work["millisecond_ms"], work["spconv_ms"]
                figures[time] = f"{digits(ours)}, {digits(theirs)}"
                figures[faster] = f"{theirs / ours:.1f}"
                figures[memory] = f"{work['millisecond_mb']:.0f}, {work['spconv_mb']:.0f}"
            table[f"{row['network']}, {scan}, {batch}"] = figures
    return {"fp16": table}


def networks_tf32(result: Json) -> Tables:
    """A row has both works of a precision, or training alone."""
    table: dict[str, dict[str, str]] = {}
    for precision, works in {"tf32": ("inference", "training"), "bf16": ("training",)}.items():
        for scan, batch in PLACES:
            figures = table.setdefault(f"{precision}, {scan}, {batch}", {})
            found = rows(result["rows"], precision=precision, scan=scan, batch=batch)
            for row in rows(found, work="training"):
                pair = [one(found, network=row["network"], work=work) for work in works]
                speeds = [work["spconv_ms"] / work["millisecond_ms"] for work in pair]
                figures[row["network"]] = ", ".join(f"{speed:.1f}" for speed in speeds)
    return {"times as fast": table}


FIGURES: dict[str, Callable[[Json], Tables]] = {
    "bev": bev,
    "encoder": encoder,
    "encoder_precisions": encoder,
    "networks_fp16": networks_fp16,
    "networks_tf32": networks_tf32,
    "pipeline": pipeline,
    "pipeline_stages": pipeline_stages,
    "train": train,
}
