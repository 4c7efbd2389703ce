"""One submanifold convolution on these operators and on the newest engines, where these can be
imported: the map included and cached, forward and training.

Each engine is measured in a process of its own beside these operators, by turns: one that fails or
takes too long ends alone.
"""

import importlib.util
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import millisecond.ops.spconv as spconv
from millisecond.ops import VoxelGrid
from millisecond.ops.lab.timing import by_turns
from millisecond.ops.layers import SparseTensor, SubmanifoldConv
from millisecond.tools.benchmarks.network import hardware
from millisecond.tools.benchmarks.peers import reason
from millisecond.tools.benchmarks.timing import Scans

AROUND = VoxelGrid((-80, -80, -4, 80, 80, 8), (0.05, 0.05, 0.1))
MOST = 200_000  # voxels of a scan
SIZES = [(3, c) for c in (16, 32, 64, 128, 256, 512)] + [
    (k, c) for k in (5, 7) for c in (32, 64, 128)
]
OURS = ("ops", "ops.spconv")
FEW = [(3, channels, 1) for channels in (16, 64, 128, 256)]  # kernel, channels, batch
WARMUP = 3


class Timed(NamedTuple):
    """What is timed: from the sites on, or on a map that is there; or the map alone."""

    name: str
    order: str = "sorted"
    cached: bool = False
    training: bool = False
    alone: bool = False


WORKS = [  # unsorted at the end: a layer remembers how its rows come
    Timed("map alone", alone=True),
    Timed("forward"),
    Timed("forward, cached", cached=True),
    Timed("training", training=True),
    Timed("training, cached", cached=True, training=True),
    Timed("forward, unsorted", "unsorted"),
    Timed("map alone, unsorted", "unsorted", alone=True),
]


class Given(NamedTuple):
    """The rows of a case in some order."""

    features: Tensor  # [N, C]
    coords: Tensor  # [N, 4] int32, (b, z, y, x); b ascends
    rows: Tensor  # [N]: each one's row in the case


class Case:
    """One layer on sorted sites, with everything that all engines take alike."""

    def __init__(
        self,
        kernel: int,
        channels: int,
        coords: Tensor,  # [N, 4] int32, sorted
        shape: tuple[int, ...],
        batch: int,
        dtype: torch.dtype = torch.float16,
    ):
        self.kernel, self.channels, self.coords = kernel, channels, coords.contiguous()
        self.shape, self.batch, self.dtype = shape, batch, dtype
        generator = torch.Generator(coords.device).manual_seed(kernel * channels)
        place = {"device": coords.device, "generator": generator}
        draw = partial(torch.randn, **place)
        rows, volume = len(coords), kernel**3
        weight = draw(volume, channels, channels) / (volume * channels) ** 0.5
        self.weight = weight.to(dtype)  # [V, C_in, C_out]
        self.gradient, features = (draw(rows, channels).to(dtype) for _ in range(2))
        mixed = torch.argsort(coords[:, 0] + torch.rand(rows, **place) * 0.9)
        same = torch.arange(rows, device=coords.device)
        self.given = {
            "sorted": Given(features, self.coords, same),
            "unsorted": Given(features[mixed], coords[mixed], mixed),
        }


# ---- engines ------------------------------------------------------------------------------------


class Engine:
    """A layer of an engine on a case. `native` is what it takes of the rows, made beforehand."""

    trains, few = True, False
    index: Callable[[Any], Any] | None = None  # the map alone
    layer: Any  # where it has one
    weight: Tensor  # a leaf, as the engine lays it out

    def __init__(self, case: Case):
        self.case = case
        self.native = {order: self.convert(given) for order, given in case.given.items()}

    def convert(self, given: Given) -> Any:
        return given.features.clone().requires_grad_(self.trains), given.coords

    def input(self, native: Any) -> Any:
        """A tensor without maps."""
        raise NotImplementedError

    def convolve(self, x: Any) -> Tensor:
        """[N, C], in the order of `rows`."""
        return self.layer(x).features

    def mapped(self, native: Any) -> Any:
        """A tensor with its map."""
        x = self.input(native)
        self.convolve(x)
        return x

    def rows(self, order: str) -> Tensor:
        """Rows of the case in the order of the outputs."""
        return self.case.given[order].rows


class Native(Engine):
    """The layers of `ops`."""

    def __init__(self, case: Case):
        super().__init__(case)
        self.layer = SubmanifoldConv(case.channels, case.channels, case.kernel)
        self.weight = set_weight(self.layer, case.weight)

    def input(self, native: Any) -> SparseTensor:
        return SparseTensor(*native, self.case.shape, self.case.batch)

    def index(self, native: Any) -> Any:
        sites = self.input(native).sites
        sites.follow(self.layer)
        return sites.submanifold(self.layer.kernel_size, self.layer.dilation)


class Shim(Engine):
    """What stands in for spconv 2."""

    def __init__(self, case: Case):
        super().__init__(case)
        size = case.channels, case.channels, case.kernel
        self.layer = spconv.SubMConv3d(*size, bias=False, indice_key="subm")
        self.weight = set_weight(self.layer, outputs_first(case.weight, case.kernel))

    def input(self, native: Any) -> spconv.SparseConvTensor:
        return spconv.SparseConvTensor(*native, list(self.case.shape), self.case.batch)

    def mapped(self, native: Any) -> spconv.SparseConvTensor:
        return self.layer(self.input(native)).replace_feature(native[0])

    def index(self, native: Any) -> Any:
        return self.layer.mapped(self.input(native))


class Spira(Engine):
    """Inference alone. It packs (x, y, z) into 32 or 64 bits, without a batch: scans lie side by
    side along x, and a margin keeps neighbours from the next line."""

    trains, margin = False, 4

    def __init__(self, case: Case):
        import spira
        from spira.nn.functional import flat_sort

        self.engine, self.wide = spira, case.batch > 1
        super().__init__(case)
        _, self.order = flat_sort(self.native["sorted"][0], self.wide)
        layer = spira.nn.SparseConv(case.channels, case.channels, case.kernel)
        self.layer = layer.to(case.coords.device, case.dtype).eval()
        self.maps_kept = spira.nn.KernelMapCache()
        spira.set_kernel_map_cache(self.layer, self.maps_kept)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            x = self.input(self.native["sorted"])
            options = {"n_samples": 5, "force_retune": True, "save_dir": folder}
            spira.tune(self.layer, [x] * 6, self.maps_kept, **options)
            self.layer.kernel.copy_(case.weight[self._offsets()])
        self.weight = self.layer.kernel

    def _offsets(self) -> list[int]:
        """Which of our offsets, z first, each of its weights belongs to: x first, and by the
        dataflow that was tuned."""
        side, config = range(self.case.kernel), self.layer.tunable_config
        places = list(product(side, side, side))  # (x, y, z)
        if config["map_dataflow"] == 0 or config["force_os"]:
            places.sort(key=lambda place: place[2])
        elif config["map_dataflow"] > 2:
            near, middle = (config["map_dataflow"] - 1) // 2, self.case.kernel // 2
            places.sort(key=lambda place: sum(abs(c - middle) for c in place) >= near)
        return [(z * len(side) + y) * len(side) + x for x, y, z in places]

    def convert(self, given: Given) -> Any:
        b, z, y, x = given.coords.unbind(1)
        x = x + b * (self.case.shape[2] + 2 * self.margin)
        coords = (torch.stack((x, y, z), dim=1) + self.margin).contiguous()
        if given is self.case.given["unsorted"]:
            return coords, given.features, False
        from spira.nn.functional import flat_sort

        packed, order = flat_sort(coords, self.wide)
        return coords, given.features[order].contiguous(), packed

    def input(self, native: Any) -> Any:
        self.maps_kept.reset()
        coords, features, packed = native
        if packed is not False:
            return self.engine.SparseTensor(packed, features)
        return self.engine.SparseTensor(coords, features, double=self.wide).order()

    def convolve(self, x: Any) -> Tensor:
        return self.layer(x)._features

    def rows(self, order: str) -> Tensor:
        return self.order


class WarpConvNet(Engine):
    """Its `auto` mode, tuned on the first call; sums in float32, as outside of inference_mode."""

    def __init__(self, case: Case):
        os.environ.setdefault("WARPCONVNET_AUTOTUNE_LOG", "false")
        from warpconvnet.geometry.types.voxels import Voxels
        from warpconvnet.nn.modules.sparse_conv import SparseConv3d

        self.voxels = Voxels
        counts = case.coords[:, 0].long().bincount(minlength=case.batch)
        self.offsets = torch.tensor([0, *counts.cumsum(0).tolist()], dtype=torch.int32)
        super().__init__(case)
        self.layer = SparseConv3d(case.channels, case.channels, case.kernel, bias=False)
        self.weight = set_weight(self.layer, case.weight)

    def convert(self, given: Given) -> Any:
        features = given.features.clone().requires_grad_()
        return features, given.coords[:, 1:].contiguous()

    def input(self, native: Any) -> Any:
        features, coords = native
        return self.voxels(coords, features, self.offsets)

    def convolve(self, x: Any) -> Tensor:
        return self.layer(x).feature_tensor


class FlexGemm(Engine):
    """Its default algorithm. Its tuner takes long, so that few cases are measured."""

    few = True

    def __init__(self, case: Case):
        os.environ.setdefault("FLEX_GEMM_AUTOSAVE_AUTOTUNE_CACHE", "0")
        from flex_gemm.ops import spconv as engine

        self.engine = engine
        super().__init__(case)
        self.weight = outputs_first(case.weight, case.kernel).contiguous().requires_grad_()
        self.bias = torch.zeros_like(case.weight[0, 0])  # its backward pass asks for one
        self.shape = torch.Size([case.batch, case.channels, *case.shape])

    def input(self, native: Any) -> Any:
        return [*native, None]

    def convolve(self, x: Any) -> Tensor:
        features, coords, kept = x
        weight = self.weight
        if not torch.is_grad_enabled():  # it would prepare for gradients
            features, weight = features.detach(), weight.detach()
        out, x[2] = self.engine.sparse_submanifold_conv3d(
            features, coords, self.shape, weight, self.bias, kept
        )
        return out


PEERS: dict[str, tuple[str, type[Engine]]] = {  # by name: the module, and the layer
    "Spira": ("spira", Spira),
    "WarpConvNet": ("warpconvnet", WarpConvNet),
    "FlexGEMM": ("flex_gemm", FlexGemm),
}


def set_weight(layer: nn.Module, weight: Tensor) -> nn.Parameter:
    """The weight as the layer's parameter, on its device and in its type."""
    layer.weight = nn.Parameter(weight.contiguous().clone())
    return layer.weight


def outputs_first(weight: Tensor, kernel: int) -> Tensor:
    """[V, C_in, C_out] as [C_out, *kernel, C_in]."""
    return weight.permute(2, 0, 1).unflatten(1, (kernel,) * 3)


# ---- a case -------------------------------------------------------------------------------------


def reference(case: Case) -> list[Tensor]:
    """Outputs [N, C], gradient of the features [N, C] and of the weight [V, C_in, C_out]: offset by
    offset, by plain torch in float64."""
    features, gradient = case.given["sorted"].features.double(), case.gradient.double()
    weight, coords = case.weight.double(), case.coords.long()
    size = torch.tensor(case.shape, device=coords.device)
    strides = size.new_tensor([size.prod(), size[1:].prod(), size[2], 1])
    keys, reach = (coords * strides).sum(dim=1), case.kernel // 2
    out, to_features, to_weight = (torch.zeros_like(t) for t in (gradient, features, weight))
    side = range(-reach, reach + 1)
    for v, offset in enumerate(product(side, side, side)):
        there = coords[:, 1:] + size.new_tensor(offset)
        wanted = keys + (strides[1:] * size.new_tensor(offset)).sum()
        found = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        inside = ((there >= 0) & (there < size)).all(dim=1) & (keys[found] == wanted)
        targets, sources = inside.nonzero().squeeze(1), found[inside]
        out[targets] += features[sources] @ weight[v]
        to_features.index_add_(0, sources, gradient[targets] @ weight[v].T)
        to_weight[v] = features[sources].T @ gradient[targets]
    return [out, to_features, to_weight]


def call_of(engine: Engine, work: Timed) -> Callable[[], list[Tensor]]:
    """What is timed. It returns the outputs and, in training, both gradients."""
    native = engine.native[work.order]
    features, gradient = native[0], engine.case.gradient[engine.rows(work.order)].contiguous()
    with torch.set_grad_enabled(work.training):
        kept = engine.mapped(native) if work.cached else None

    def forward() -> Tensor:
        return engine.convolve(engine.input(native) if kept is None else kept)

    def infer() -> list[Tensor]:
        with torch.no_grad():
            if work.alone:
                engine.index(native)
                return []
            return [forward()]

    def train() -> list[Tensor]:
        features.grad = engine.weight.grad = None
        out = forward()
        out.backward(gradient)
        assert features.grad is not None and engine.weight.grad is not None
        return [out, features.grad, engine.weight.grad]

    return train if work.training else infer


def as_ours(engine: Engine, work: Timed, results: list[Tensor]) -> list[Tensor]:
    """Results of a call in the case's order of rows and our order of weights."""
    rows = engine.rows(work.order)
    moved = [torch.empty_like(result).index_copy_(0, rows, result) for result in results[:2]]
    return moved + [w if w.ndim == 3 else w.flatten(1, 3).permute(1, 2, 0) for w in results[2:]]


def compare(
    case: Case, engines: dict[str, Engine], work: Timed, expected: list[Tensor], repeats: int
) -> dict[str, dict]:
    """By engine: milliseconds (median and quartiles), the largest relative error of the results,
    and whether a second call gave the same bits; or why it failed."""
    found: dict[str, dict] = {}
    calls = {}
    for name, engine in engines.items():
        if (work.training and not engine.trains) or (work.alone and not engine.index):
            continue
        try:
            call = call_of(engine, work)
            first, again = ([t.detach().clone() for t in call()] for _ in range(2))
            found[name] = {"same": all(map(torch.equal, first, again))}
            pairs = zip(as_ours(engine, work, first), expected, strict=False)
            errors = [float((a.double() - b).norm() / b.norm()) for a, b in pairs]
            if errors:  # a map alone is in each engine's own form
                found[name]["error"] = max(errors)
            calls[name] = call
        except Exception as error:  # an engine that cannot do this is a result, not the end
            found[name] = {"failed": reason(error)}
    for name, samples in by_turns(calls, repeats, WARMUP).items():
        low, middle, high = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
        found[name] |= {"ms": middle, "low": low, "high": high}
    return found


def rows_of(case: Case, kinds: dict[str, type[Engine]], repeats: int) -> Iterator[dict]:
    """Every work on a case, by turns."""
    engines, failed = {}, {}
    for name, kind in kinds.items():
        try:
            engines[name] = kind(case)
        except Exception as error:  # it is measured on the other cases
            failed[name] = {"failed": reason(error)}
    expected = reference(case)
    row = {"batch": case.batch, "voxels": len(case.coords)}
    row |= {"kernel": case.kernel, "channels": case.channels}
    first = case.channels == min(channels for kernel, channels in SIZES if kernel == case.kernel)
    for work in WORKS:
        if not work.alone or first:  # a map has no channels
            found = failed | compare(case, engines, work, expected, repeats)
            yield row | {"work": work.name, "engines": found}


# ---- all of them --------------------------------------------------------------------------------

Sized = tuple[int, int, Any, tuple[int, ...], int]  # kernel, channels, numpy coords, shape, batch


def measure(
    scans: Scans,
    batches: Sequence[int],
    peers: Sequence[str],
    repeats: int,
    seconds: int,
    keep: Callable[[dict], None],
    device: str = "cuda",
    sizes: Sequence[tuple[int, int]] = tuple(SIZES),
) -> dict:
    """The table; prints rows as they come, and hands everything to `keep` after each engine."""
    cases: list[Sized] = []
    for batch in batches:
        coords = scans.voxels(range(batch), AROUND, MOST, "cpu").coords.numpy()
        cases += [(*size, coords, AROUND.sparse_shape, batch) for size in sizes]
    name = hardware(torch.device(device))
    print(f"{name}, torch {torch.__version__}, fp16, {scans.source}; ms from an idle device")
    result: dict[str, Any] = {"device": name, "scans": scans.source, "rows": []}
    for peer in ("", *peers):
        if peer and importlib.util.find_spec(PEERS[peer][0]) is None:
            print(f"{peer}: no module {PEERS[peer][0]}, left out")
            continue
        print(f"\n{peer or 'these operators alone'}", flush=True)
        for row in _in_a_process(peer, cases, device, repeats, seconds):
            result["rows"].append({"beside": peer, **row})
            print(line(row), flush=True)
        result["summary"] = summary(result["rows"])
        keep(result)
    print("", table(result["summary"]), *verdicts(result["rows"]), sep="\n")
    return result


def _in_a_process(
    peer: str, cases: list[Sized], device: str, repeats: int, seconds: int
) -> Iterator[dict]:
    """Rows of one engine beside ours, from a process that has so many seconds."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_one, args=(peer, cases, device, repeats, sender))
    process.start()
    sender.close()  # so that its end is seen
    deadline = time.monotonic() + seconds
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            yield receiver.recv()
        print(f"stopped after {seconds} s; --seconds gives it more")
    except EOFError:
        process.join()
        if process.exitcode:
            print(f"ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _measure_one(
    peer: str, cases: list[Sized], device: str, repeats: int, sender: Connection
) -> None:
    kinds: dict[str, type[Engine]] = {"ops": Native, "ops.spconv": Shim}
    if peer:
        kinds[peer] = PEERS[peer][1]
    few = any(kind.few for kind in kinds.values())
    for kernel, channels, coords, shape, batch in cases:
        if not few or (kernel, channels, batch) in FEW:
            case = Case(kernel, channels, torch.from_numpy(coords).to(device), shape, batch)
            for row in rows_of(case, kinds, repeats):
                sender.send(row)


# ---- in words -----------------------------------------------------------------------------------


def line(row: dict) -> str:
    """A row as it comes."""
    text = _title(row)
    for name, found in row["engines"].items():
        text += f"  {name} {found['ms']:.3f}" if "ms" in found else f"  {name} {found['failed']}"
    return text


def summary(rows: Sequence[dict]) -> list[dict]:
    """A row for each case and work: milliseconds by engine, ours as measured alone, and how many
    times the best peer's that is, each peer beside ours as measured in one process."""
    merged: dict[tuple, dict] = {}
    for row in rows:
        case = {key: row[key] for key in ("batch", "voxels", "kernel", "channels", "work")}
        into = merged.setdefault(tuple(case.values()), case | {"ms": {}, "best": {}})
        times = {name: found["ms"] for name, found in row["engines"].items() if "ms" in found}
        into["ms"] = times | into["ms"]
        for (peer, ms), ours in product(times.items(), set(OURS) & set(times)):
            if peer not in OURS:
                into["best"][ours] = min(ms / times[ours], into["best"].get(ours, math.inf))
    return list(merged.values())


def table(found: Sequence[dict]) -> str:
    """The summary within 100 columns, and the ratios' medians."""
    widths = {name: max(7, len(name)) for name in (*OURS, *PEERS)}
    head = " ".join(f"{name:>{width}}" for name, width in widths.items())
    lines = ["ms; then the best peer's time divided by ours, ops and its shim for spconv"]
    lines.append(f"{'':35} {head} {'/ops':>5} {'/shim':>5}")
    for row in found:
        cells = [_cell(row["ms"].get(name), width, 3) for name, width in widths.items()]
        cells += [_cell(row["best"].get(name), 5, 2) for name in OURS]
        lines.append(f"{_title(row):35} {' '.join(cells)}")
    for name in OURS:
        every = [row["best"][name] for row in found if name in row["best"]]
        if every:
            faster, middle = sum(ratio > 1 for ratio in every), statistics.median(every)
            lines.append(
                f"{name}: faster than the best peer in {faster} of {len(every)} rows, "
                f"{middle:.2f} times in the median, {min(every):.2f} at least"
            )
    return "\n".join(lines)


def _cell(number: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if number is None else f"{number:{width}.{digits}f}"


def verdicts(rows: Sequence[dict]) -> list[str]:
    """A line for each engine: its largest error, and whether second calls gave the same bits."""
    lines = []
    for name in (*OURS, *PEERS):
        found = [(row, row["engines"][name]) for row in rows if name in row["engines"]]
        done = [(row, result) for row, result in found if "error" in result]
        if not done:
            continue
        other = [_title(row).strip() for row, result in done if not result["same"]]
        text = f"{name}: relative error up to {max(r['error'] for _, r in done):.1e}, "
        text += f"other bits in {len(other)} of {len(done)} rows" if other else "the same bits"
        lines.append(text + (f", as in {other[0]}" if other else ""))
    return lines


def _title(row: dict) -> str:
    side, batch = row["kernel"], row["batch"]
    return f"B={batch} {side}x{side}x{side} {row['channels']:>3} {row['work']}"
