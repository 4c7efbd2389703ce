"""Networks that are written against spconv 2's documented API, on spconv and on
millisecond.ops.spconv: the same networks, from one source, on both engines."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import millisecond.ops.spconv as ours
from millisecond.ops.lab.spconv_networks import positional_encoding, residual, second, stack, unet
from millisecond.ops.lab.timing import Times, by_turns, set_precision, timed
from millisecond.ops.voxelize import Voxels
from millisecond.tools.benchmarks.network import hardware
from millisecond.tools.benchmarks.timing import AROUND, KITTI, Scans, simulated_sweeps

GRAPHED = "graphed"  # this engine's inference as a CUDA graph
PATIENCE = 200  # ms for the calls of one figure, three at least


class NetworkCase(NamedTuple):
    """A network on the voxels of a batch."""

    name: str
    build: Callable[[ModuleType], nn.Module]
    inputs: int  # channels of the voxels that it takes
    scan: str
    voxels: Voxels
    shape: tuple[int, ...]  # (z, y, x)


def measure(
    found: Iterable[NetworkCase], precisions: list[str], repeats: int, source: str, device: str
) -> dict:
    """The table; prints it as it comes."""
    engines, name = available(device), hardware(torch.device(device))
    print(f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, {source}")
    print(f"engines: {', '.join(engines)}; ms by the wall clock, MB of a GPU's peak memory\n")
    rows = []
    for case in found:
        state = settled(case)
        for precision in precisions:
            for training in (False, True):
                rows.append(compare(case, state, engines, precision, training, repeats))
    return {"device": name, "scans": source, "rows": rows}


def available(device: str) -> dict[str, ModuleType]:
    """This engine, and spconv where it is installed."""
    engines = {"millisecond": ours}
    try:
        import spconv.constants
        import spconv.pytorch

        spconv.constants.SPCONV_ALLOW_TF32 = True  # rows of tf32 are tf32 on both
        engines["spconv"] = spconv.pytorch
        if device == "cpu":  # its gradients ask for a GPU's stream there, and use none
            spconv.pytorch.ops.get_current_stream = lambda: 0
    except ImportError:
        print("spconv is not installed: one engine only")
    return engines


def cases(
    scans: Scans, batches: list[int], channels: list[int], most: int, device: str
) -> Iterator[NetworkCase]:
    """SECOND's encoder, a residual one, a U-Net, PTv3's encoding, layers of every width."""
    places = {"KITTI": (scans, KITTI), "360": (simulated_sweeps(4), AROUND)}
    for scan, (clouds, grid) in places.items():
        for batch in batches:
            voxels = clouds.voxels(range(batch), grid, most, device)
            place = scan, voxels, grid.sparse_shape
            yield NetworkCase("SECOND", second, 4, *place)
            yield NetworkCase("Residual", residual, 4, *place)
            yield NetworkCase("U-Net", unet, 4, *place)
            yield NetworkCase("PTv3 CPE", positional_encoding, 6, *place)
            for width in channels:
                yield NetworkCase(f"2 x {width}", lambda e, c=width: stack(e, c), width, *place)


def compare(
    case: NetworkCase,
    state: dict[str, Tensor],
    engines: dict[str, ModuleType],
    precision: str,
    training: bool,
    repeats: int,
) -> dict:
    """Time and peak memory of both engines on one set of weights, and how their results differ."""
    rows, batch = len(case.voxels.coords), case.voxels.batch_size
    device = case.voxels.coords.device
    row: dict[str, Any] = {"network": case.name, "scan": case.scan, "batch": batch, "voxels": rows}
    row |= {"precision": precision, "work": "training" if training else "inference"}
    outputs, steps, slowest = {}, {}, 0.0
    graphs = {} if training or device.type == "cpu" else {GRAPHED: ours}
    for name, engine in (engines | graphs).items():
        try:
            network = case.build(engine).to(device)
            network.load_state_dict(state)
            step = Step(case, engine, network, set_precision(precision), training, name == GRAPHED)
            outputs[name] = step().detach().float()
            row[f"{name}_mb"], once = _memory(step, device)
            steps[name], slowest = step, max(slowest, once)
        except Exception as error:  # an engine that cannot do this is a result, not the end
            text = str(error).strip().splitlines()
            row[f"{name}_error"] = f"{type(error).__name__}: {text[-1][:60] if text else ''}"
    turns = min(repeats, max(3, int(PATIENCE / slowest))) if steps else 0
    for name, samples in by_turns(steps, turns, warmup=1).items():
        times = Times.of(samples)
        row[f"{name}_ms"], row[f"{name}_p99"] = times.median, times.p99
    mine, theirs = outputs.get("millisecond"), outputs.get("spconv")
    if mine is not None and theirs is not None and mine.shape == theirs.shape:
        row["difference"] = float((mine - theirs).norm() / theirs.norm())
    _print(row)
    return row


def _memory(step: Step, device: torch.device) -> tuple[float, float]:
    """Megabytes of a GPU's memory that a step takes, 0 on a CPU; and its milliseconds."""
    if device.type == "cpu":
        return 0.0, timed(step)[1]
    gc.collect()  # a cycle that goes in the step would count as less memory
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _, once = timed(step)
    return (torch.cuda.max_memory_allocated() - before) / 1e6, once


@torch.no_grad()
def settled(case: NetworkCase) -> dict[str, Tensor]:
    """Random weights, and the running statistics of these voxels: numbers as in a trained
    network."""
    torch.manual_seed(0)
    network = case.build(ours).to(case.voxels.coords.device)
    torch.set_float32_matmul_precision("high")  # exact sums of 512 channels take long
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.momentum = 1.0
    Step(case, ours, network, torch.float32, training=True).forward()
    return network.state_dict()


class Step:
    """One call of a network in inference or training, from voxels on."""

    def __init__(
        self,
        case: NetworkCase,
        engine: ModuleType,
        network: nn.Module,
        dtype: torch.dtype,
        training: bool,
        graphed: bool = False,
    ):
        self.case, self.engine, self.dtype, self.training = case, engine, dtype, training
        self.module = network.train() if training else network.eval().to(dtype)
        self.network: Callable = ours.graphed(network) if graphed else self.module
        self.device = case.voxels.coords.device.type
        generator = torch.Generator(self.device).manual_seed(1)
        shape = len(case.voxels.coords), case.inputs
        self.features = torch.randn(shape, device=self.device, generator=generator)
        if not training:
            self.features = self.features.to(dtype)
        self.half = dtype != torch.float32
        self.gradient: Tensor | None = None

    def __call__(self) -> Tensor:
        if not self.training:
            with torch.no_grad():
                return self.forward()
        self.module.zero_grad(set_to_none=True)
        dtype = self.dtype if self.half else torch.bfloat16
        with torch.autocast(self.device, dtype, self.half):
            out = self.forward()
        if self.gradient is None:
            self.gradient = torch.randn_like(out)
        out.backward(self.gradient)
        return out

    def forward(self) -> Tensor:
        """The network's result, gradients as they are set."""
        voxels = self.case.voxels
        grid = list(self.case.shape), voxels.batch_size
        return self.network(self.engine.SparseConvTensor(self.features, voxels.coords, *grid))


def _print(row: dict) -> None:
    line = "{scan:>5} {network:>9} B={batch} {voxels:>7} {precision} {work:>9} ".format(**row)
    for name in ("millisecond", "spconv"):
        if f"{name}_ms" in row:
            line += f" {row[f'{name}_ms']:8.3f} ms {row[f'{name}_mb']:6.0f} MB"
        else:
            line += " " + row.get(f"{name}_error", "-")
    if "spconv_ms" in row and "millisecond_ms" in row:
        line += f"  x{row['spconv_ms'] / row['millisecond_ms']:.2f}"
    if f"{GRAPHED}_ms" in row:
        line += f"  as a graph {row[f'{GRAPHED}_ms']:.3f} ms"
    line += f"  {row[f'{GRAPHED}_error']}" if f"{GRAPHED}_error" in row else ""
    if "difference" in row:
        line += f"  differ {row['difference']:.0e}"
    print(line, flush=True)
