"""Networks written against spconv 2's documented API, on spconv and on millisecond.ops.spconv: the
same networks, from one source, on both engines.

A function that builds a network takes the engine: the module `spconv.pytorch`, or one that stands
in for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import millisecond.ops.spconv as ours
from millisecond.ops.lab.timing import Times, set_precision, timed, wall
from millisecond.ops.voxelize import Voxels
from millisecond.tools.benchmarks.timing import AROUND, KITTI, Scans, simulated_sweeps

norm = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)


def second(spconv: ModuleType, channels: int = 4) -> nn.Module:
    """SECOND's encoder with the names of OpenPCDet's VoxelBackBone8x."""

    def block(c_in: int, c_out: int, key: str, stride: Any = None, padding: Any = 1) -> nn.Module:
        if stride is None:
            conv = spconv.SubMConv3d(c_in, c_out, 3, bias=False, indice_key=key)
        else:
            window = {"stride": stride, "padding": padding, "bias": False, "indice_key": key}
            conv = spconv.SparseConv3d(c_in, c_out, 3, **window)
        return spconv.SparseSequential(conv, norm(c_out), nn.ReLU())

    class Second(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = spconv.SubMConv3d(channels, 16, 3, padding=1, bias=False, indice_key="subm1")
            self.conv_input = spconv.SparseSequential(first, norm(16), nn.ReLU())
            self.conv1 = spconv.SparseSequential(block(16, 16, "subm1"))
            self.conv2 = spconv.SparseSequential(
                block(16, 32, "spconv2", 2), block(32, 32, "subm2"), block(32, 32, "subm2")
            )
            self.conv3 = spconv.SparseSequential(
                block(32, 64, "spconv3", 2), block(64, 64, "subm3"), block(64, 64, "subm3")
            )
            self.conv4 = spconv.SparseSequential(
                block(64, 64, "spconv4", 2, (0, 1, 1)),
                block(64, 64, "subm4"),
                block(64, 64, "subm4"),
            )
            down = spconv.SparseConv3d(
                64, 128, (3, 1, 1), stride=(2, 1, 1), bias=False, indice_key="spconv_down2"
            )
            self.conv_out = spconv.SparseSequential(down, norm(128), nn.ReLU())

        def forward(self, x: Any) -> Tensor:
            x = self.conv_input(x)
            for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
                x = layer(x)
            out = self.conv_out(x).dense()
            b, c, d, h, w = out.shape
            return out.view(b, c * d, h, w)

    return Second()


def residual_block(spconv: ModuleType, channels: int, key: str) -> nn.Module:
    """Two submanifold convolutions and the input added, as in VoxelResBackBone8x."""

    class Residual(spconv.SparseModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            window = {"padding": 1, "bias": True, "indice_key": key}
            self.conv1 = spconv.SubMConv3d(channels, channels, 3, **window)
            self.bn1, self.relu = norm(channels), nn.ReLU()
            self.conv2 = spconv.SubMConv3d(channels, channels, 3, **window)
            self.bn2 = norm(channels)

        def forward(self, x: Any) -> Any:
            out = self.conv1(x)
            out = out.replace_feature(self.bn1(out.features))
            out = out.replace_feature(self.relu(out.features))
            out = self.conv2(out)
            out = out.replace_feature(self.bn2(out.features))
            return out.replace_feature(self.relu(out.features + x.features))

    return Residual()


def unet(spconv: ModuleType, channels: int = 32, levels: int = 3, inputs: int = 4) -> nn.Module:
    """Residual blocks, strided convolutions down, inverse ones up, skips added."""

    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wide = [channels * 2**level for level in range(levels)]
            stem = spconv.SubMConv3d(inputs, channels, 5, padding=2, bias=False, indice_key="stem")
            self.stem = spconv.SparseSequential(stem, norm(channels), nn.ReLU())
            self.blocks, self.downs, self.ups, self.lasts = (nn.ModuleList() for _ in range(4))
            for level, width in enumerate(wide):
                self.blocks.append(residual_block(spconv, width, f"subm{level}"))
                if level + 1 == levels:
                    break
                down = spconv.SparseConv3d(
                    width, 2 * width, 2, stride=2, bias=False, indice_key=f"down{level}"
                )
                self.downs.append(
                    spconv.SparseSequential(down, norm(2 * width), nn.ReLU(inplace=True))
                )
                up = spconv.SparseInverseConv3d(
                    2 * width, width, 2, indice_key=f"down{level}", bias=False
                )
                self.ups.append(spconv.SparseSequential(up, norm(width), nn.ReLU(inplace=True)))
                self.lasts.append(residual_block(spconv, width, f"subm{level}"))

        def forward(self, x: Any) -> Tensor:
            x = self.stem(x)
            skips = []
            for block, down in zip(self.blocks, self.downs, strict=False):
                x = block(x)
                skips.append(x)
                x = down(x)
            x = self.blocks[-1](x)
            for up, last, skip in zip(
                reversed(self.ups), reversed(self.lasts), reversed(skips), strict=True
            ):
                x = up(x)
                x = last(x.replace_feature(x.features + skip.features))
            return x.features

    return Unet()


def positional_encoding(spconv: ModuleType, channels: int = 32, inputs: int = 6) -> nn.Module:
    """Point Transformer V3's stem and conditional positional encoding, two blocks of it."""

    class Encoding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = spconv.SparseSequential(
                conv=spconv.SubMConv3d(
                    inputs, channels, kernel_size=5, padding=1, bias=False, indice_key="stem"
                ),
                norm=norm(channels),
                act=nn.GELU(),
            )
            self.cpe = nn.ModuleList(
                nn.ModuleList(
                    (
                        spconv.SubMConv3d(
                            channels, channels, kernel_size=3, bias=True, indice_key="stage0"
                        ),
                        nn.Linear(channels, channels),
                        nn.LayerNorm(channels),
                    )
                )
                for _ in range(2)
            )

        def forward(self, x: Any) -> Tensor:
            x = self.stem(x)
            for conv, linear, layer_norm in self.cpe:  # type: ignore[misc, union-attr]
                shortcut = x.features
                x = conv(x)
                x = x.replace_feature(shortcut + layer_norm(linear(x.features)))
            return x.features

    return Encoding()


def stack(spconv: ModuleType, channels: int, layers: int = 2) -> nn.Module:
    """Submanifold convolutions of one width and one indice_key, with norm and ReLU."""
    modules: list[nn.Module] = []
    for _ in range(layers):
        conv = spconv.SubMConv3d(channels, channels, 3, bias=False, indice_key="subm")
        modules += [conv, norm(channels), nn.ReLU()]

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = spconv.SparseSequential(*modules)

        def forward(self, x: Any) -> Tensor:
            return self.layers(x).features

    return Stack()


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
    scans: Scans, batches: list[int], precisions: list[str], channels: list[int], repeats: int
) -> dict:
    """The table; prints it as it comes."""
    engines = available()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {scans.source}")
    print(f"engines: {', '.join(engines)}; ms by the wall clock, MB of peak memory\n")
    rows = []
    for case in cases(scans, batches, channels):
        state = settled(case)
        for precision in precisions:
            for training in (False, True):
                rows.append(compare(case, state, engines, precision, training, repeats))
    return {"device": torch.cuda.get_device_name(), "scans": scans.source, "rows": rows}


def available() -> dict[str, ModuleType]:
    """This engine, and spconv where it is installed."""
    engines = {"millisecond": ours}
    try:
        import spconv.constants
        import spconv.pytorch

        spconv.constants.SPCONV_ALLOW_TF32 = True  # rows of tf32 are tf32 on both
        engines["spconv"] = spconv.pytorch
    except ImportError:
        print("spconv is not installed: one engine only")
    return engines


def cases(scans: Scans, batches: list[int], channels: list[int]) -> Iterator[NetworkCase]:
    """SECOND's encoder, a U-Net, PTv3's positional encoding, and layers of every width."""
    places = {"KITTI": (scans, KITTI), "360": (simulated_sweeps(4), AROUND)}
    for scan, (clouds, grid) in places.items():
        for batch in batches:
            voxels = clouds.voxels(range(batch), grid, 200_000)
            place = scan, voxels, grid.sparse_shape
            yield NetworkCase("SECOND", second, 4, *place)
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
    row: dict[str, Any] = {"network": case.name, "scan": case.scan, "batch": batch, "voxels": rows}
    row |= {"precision": precision, "work": "training" if training else "inference"}
    outputs = {}
    for name, engine in engines.items():
        try:
            network = case.build(engine).cuda()
            network.load_state_dict(state)
            step = Step(case, engine, network, set_precision(precision), training)
            outputs[name] = step().detach().float()
            gc.collect()  # a cycle that goes in the step would count as less memory
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            _, once = timed(step)
            row[f"{name}_mb"] = (torch.cuda.max_memory_allocated() - before) / 1e6
            times = Times.of(wall(step, min(repeats, max(3, int(PATIENCE / once))), warmup=1))
            row[f"{name}_ms"], row[f"{name}_p99"] = times.median, times.p99
        except Exception as error:  # an engine that cannot do this is a result, not the end
            text = str(error).strip().splitlines()
            row[f"{name}_error"] = f"{type(error).__name__}: {text[-1][:60] if text else ''}"
    if len(outputs) == 2 and outputs["spconv"].shape == outputs["millisecond"].shape:
        ours, theirs = outputs.values()
        row["difference"] = float((ours - theirs).norm() / theirs.norm())
    _print(row)
    return row


@torch.no_grad()
def settled(case: NetworkCase) -> dict[str, Tensor]:
    """Random weights, and the running statistics of these voxels: numbers as in a trained
    network."""
    torch.manual_seed(0)
    network = case.build(ours).cuda()
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
    ):
        self.case, self.engine, self.dtype, self.training = case, engine, dtype, training
        self.network = network.train(training) if training else network.eval().to(dtype)
        generator = torch.Generator("cuda").manual_seed(1)
        shape = len(case.voxels.coords), case.inputs
        self.features = torch.randn(shape, device="cuda", generator=generator)
        if not training:
            self.features = self.features.to(dtype)
        self.half = dtype != torch.float32
        self.gradient: Tensor | None = None

    def __call__(self) -> Tensor:
        if not self.training:
            with torch.no_grad():
                return self.forward()
        self.network.zero_grad(set_to_none=True)
        with torch.autocast("cuda", self.dtype if self.half else torch.float16, self.half):
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
    if "difference" in row:
        line += f"  differ {row['difference']:.0e}"
    print(line, flush=True)
