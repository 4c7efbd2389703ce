"""Dense 3-D convolution beside cuDNN's and beside sparse convolution: tables, and a picture of
milliseconds over occupancy."""

from collections.abc import Sequence

import numpy as np
import torch

from millisecond.detector.draw.plot import COLOURS, Line, Panel, Scale, draw_panels
from millisecond.ops.lab import dense_times
from millisecond.ops.lab.dense_conv3d import RUNGS
from millisecond.ops.lab.dense_times import CUDNN

OCCUPANCY = Scale("occupied sites, %", 0.1, 100, (0.1, 1, 10, 100), logarithmic=True)


def measure() -> dict:
    """Both tables; prints them as they come."""
    torch.manual_seed(0)
    result: dict = {"device": torch.cuda.get_device_name(), "grid": list(dense_times.GRID)}
    result |= {"dense": [], "occupancy": []}
    print(f"{result['device']}, torch {torch.__version__}, milliseconds on the device")
    engines = [*RUNGS, CUDNN]
    with dense_times.whole_float32():
        print(f"\n{'dense':<34}" + "".join(f"{name:>12}" for name in engines))
        for row in dense_times.dense_rows():
            result["dense"].append(row)
            size = " x ".join(map(str, row["shape"]))
            what = "{precision}  {channels:>2} channels  {kernel}^3  ".format(**row) + size
            print(f"{what:<34}" + "".join(f"{row[name]:>12.3f}" for name in engines), flush=True)
        print(f"{'sparse':<22}{'occupied':>9}{'rows':>9}{'map':>9}{'sparse':>9}{CUDNN:>9}")
        for row in dense_times.occupancy_rows():
            result["occupancy"].append(row)
            print(
                "{precision}  {channels:>2} channels    {occupancy:>9.1%}{rows:>9}{map_ms:>9.3f}"
                "{sparse_ms:>9.3f}{dense_ms:>9.3f}".format(**row),
                flush=True,
            )
    result["crossings"] = dense_times.crossings(result["occupancy"])
    for row in result["crossings"]:
        print("{precision}, {channels} channels: sparse is faster below {below:.1%}".format(**row))
    return result


def draw_occupancies(rows: Sequence[dict], crossings: Sequence[dict], title: str) -> np.ndarray:
    """A panel per precision, [H, W, 3] uint8: solid is sparse, dashed is dense, and a dot is where
    they cross."""
    times = [row[key] for row in rows for key in ("sparse_ms", "dense_ms")]
    low, high = (10.0 ** f(np.log10(t)) for f, t in ((np.floor, min(times)), (np.ceil, max(times))))
    ticks = 10.0 ** np.arange(round(np.log10(low)), round(np.log10(high)) + 1)
    scale = Scale("ms; dashed: dense, by cuDNN", low, high, ticks.tolist(), logarithmic=True)
    panels = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        lines: list[Line] = []
        for number, channels in enumerate(dict.fromkeys(row["channels"] for row in rows)):
            kind = {"precision": precision, "channels": channels}
            curve = [row for row in rows if kind.items() <= row.items()]
            crossing = next(row for row in crossings if kind.items() <= row.items())
            lines += _lines(curve, crossing["below"], COLOURS[number])
        panels.append(Panel(f"{title}, {precision}", OCCUPANCY, scale, lines))
    return draw_panels([panels])


def _lines(curve: Sequence[dict], below: float, colour: tuple[int, int, int]) -> list[Line]:
    percent = [100 * row["occupancy"] for row in curve]
    sparse, dense = ([row[key] for row in curve] for key in ("sparse_ms", "dense_ms"))
    where = {0.0: "nowhere", 1.0: "everywhere"}.get(below, f"below {100 * below:.2g} %")
    name = f"{curve[0]['channels']} channels: sparse faster {where}"
    lines = [Line(name, percent, sparse, colour), Line("", percent, dense, colour, dashed=True)]
    if 0 < below < 1:
        lines.append(Line("", [100 * below], dense[:1], colour, marked=True))
    return lines
