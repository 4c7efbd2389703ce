"""How long one convolution takes by each dataflow, and on spconv where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from millisecond import ops
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops import ConvGeometry, KernelMap, Level, lab
from millisecond.ops.lab import Dataflow, LocationMap, PairMap
from millisecond.ops.layers import gains_by_order, segment_of
from millisecond.ops.row_order import row_order
from millisecond.tools.benchmarks.peers import encoder_layers
from millisecond.tools.benchmarks.timing import kernel_time

AROUND = ConvGeometry((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1))
HALF = ConvGeometry((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1))
TYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "fp32": torch.float32,
}
CANDIDATES = (  # what millisecond tune chooses among
    Dataflow(),
    *(Dataflow("gather_scatter", grouping) for grouping in ("symmetric", "fixed")),
    *(Dataflow("gather_scatter", "adaptive", epsilon) for epsilon in (0.1, 0.3, 0.5)),
    Dataflow("gather_scatter", "adaptive", 0.3, 16384),
    Dataflow("fetch_on_demand"),
    Dataflow("direct"),
)
DIRECT_LIMIT = 32 * 32  # products of channels up to which direct is tried


class Layer(NamedTuple):
    """One convolution of a network on the sites of a scan."""

    kind: str  # submanifold, strided, inverse
    level: int  # of the inputs
    c_in: int
    c_out: int
    times: int  # how often the network has it
    inputs: Level
    outputs: Level
    geometry: ConvGeometry
    kernel_map: KernelMap

    @property
    def name(self) -> str:
        return f"{self.kind} {self.level}: {self.c_in}-{self.c_out}"


class Maps:
    """What the dataflows take of each kernel map, made once for the layers that share it."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self._made: dict[tuple, PairMap | LocationMap] = {}

    def taken(self, layer: Layer, dataflow: Dataflow) -> KernelMap | PairMap | LocationMap:
        if dataflow.kind == "implicit_gemm":
            return layer.kernel_map
        direct = dataflow.kind == "direct"
        key = direct, layer.kind, layer.level, layer.kernel_map.forward.neighbours.data_ptr()
        if key not in self._made:
            self._made[key] = self._located(layer) if direct else lab.pair_map(layer.kernel_map)
        return self._made[key]

    def _located(self, layer: Layer) -> LocationMap:
        above, below = layer.inputs, layer.outputs
        if layer.kind == "inverse":
            above, below = below, above
        place = above.coords, above.spatial_shape, self.batch_size, layer.geometry, below.coords
        found = lab.location_map(*place)
        return found.reversed() if layer.kind == "inverse" else found


def second_layers(
    coords: Tensor,
    shape: Sequence[int],
    batch_size: int,
    channels: Sequence[int] = (16, 32, 64, 64),
    out_channels: int = 128,
) -> list[Layer]:
    """SECOND's encoder, by default as in second_kitti.yaml."""
    levels = ops.index_pyramid(coords, shape, batch_size, DOWNS).levels
    found: dict[tuple, Layer] = {}
    for c_in, c_out, place in encoder_layers(channels, out_channels):
        if isinstance(place, int):
            layer = _same(levels[place], place, c_in, c_out)
        else:
            to = int(place[1])
            layer = _down(levels[to - 1], levels[to], to - 1, c_in, c_out, DOWNS[to - 1])
        _count(found, layer)
    return list(found.values())


def unet_layers(coords: Tensor, shape: Sequence[int], batch_size: int) -> list[Layer]:
    """The convolutions of MinkUNet18 (Choy, Gwak and Savarese 2019), kernels of 3 in place of the
    stem's 5: four levels down by 2 x 2 x 2, residual blocks of two convolutions, inverse
    convolutions up, the skipped features beside them."""
    levels = ops.index_pyramid(coords, shape, batch_size, [HALF] * 4, last_submanifold=True).levels
    found: dict[tuple, Layer] = {}

    def blocks(level: int, c_in: int, c_out: int) -> None:
        for channels in (c_in, c_out, c_out, c_out):
            _count(found, _same(levels[level], level, channels, c_out))

    _count(found, _same(levels[0], 0, 4, 32))
    width = 32
    for level, wide in enumerate((32, 64, 128, 256)):
        _count(found, _down(levels[level], levels[level + 1], level, width, width, HALF))
        blocks(level + 1, width, wide)
        width = wide
    for level, wide, skipped in ((3, 256, 128), (2, 128, 64), (1, 96, 32), (0, 96, 32)):
        _count(found, _up(levels[level + 1], levels[level], level + 1, width, wide))
        blocks(level, wide + skipped, wide)
        width = wide
    return list(found.values())


def _same(level: Level, number: int, c_in: int, c_out: int) -> Layer:
    assert level.submanifold is not None
    place = level, level, AROUND, level.submanifold
    return Layer("submanifold", number, c_in, c_out, 1, *place)


def _down(
    above: Level, below: Level, number: int, c_in: int, c_out: int, geometry: ConvGeometry
) -> Layer:
    assert below.down is not None
    return Layer("strided", number, c_in, c_out, 1, above, below, geometry, below.down)


def _up(below: Level, above: Level, number: int, c_in: int, c_out: int) -> Layer:
    assert below.down is not None
    place = below, above, HALF, below.down.reversed()
    return Layer("inverse", number, c_in, c_out, 1, *place)


def _count(found: dict[tuple, Layer], layer: Layer) -> None:
    times = found[layer[:4]].times + 1 if layer[:4] in found else 1
    found[layer[:4]] = layer._replace(times=times)


def dataflow_times(
    layer: Layer,
    maps: Maps,
    precision: str,
    candidates: Iterable[Dataflow],
    training: bool,
    graph: bool = True,
) -> dict[str, float]:
    """Microseconds by dataflow of the forward pass, in training with the backward pass: in a CUDA
    graph, i.e. the device's own, or as they are launched. What a dataflow takes of the map is made
    before."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    features, weight, gradient = _tensors(layer, TYPES[precision], training)
    leaves, found = (features, weight), {}
    for dataflow in candidates:
        if dataflow.kind == "direct" and layer.c_in * layer.c_out > DIRECT_LIMIT:
            continue
        taken = maps.taken(layer, dataflow)
        call = lambda: lab.sparse_conv(features, weight, taken, dataflow=dataflow)  # noqa: B023, E731
        step = (lambda: _step(call, leaves, gradient)) if training else call  # noqa: B023
        with torch.inference_mode(not training):
            us = 1e3 * kernel_time(step, launches=5, repeats=5) if graph else launched_time(step, 5)
            found[str(dataflow)] = us
    return found


def in_order(layer: Layer, precision: str) -> Layer | None:
    """The layer with its rows in the order in which ops.spconv computes them; None where it does
    not gain by one."""
    dtype, (forward, backward) = TYPES[precision], layer.kernel_map
    c_in, c_out = layer.c_in, layer.c_out
    if not gains_by_order(forward, dtype, c_in, c_out):
        return None
    forward = forward._replace(order=row_order(forward, segment_of(dtype, c_in, c_out)))
    if backward is not None and gains_by_order(backward, dtype, c_out, c_in):
        backward = backward._replace(order=row_order(backward, segment_of(dtype, c_in, c_out)))
    return layer._replace(kernel_map=KernelMap(forward, backward))


def launched_time(call: Callable[[], object], launches: int, repeats: int = 5) -> float:
    """Median microseconds of a call among several that are launched one after another: what the
    device spends, or the host where that takes longer."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    call()
    for _ in range(repeats):
        start.record()
        for _ in range(launches):
            call()
        end.record()
        torch.cuda.synchronize()
        samples.append(1e3 * start.elapsed_time(end) / launches)
    return sorted(samples)[repeats // 2]


def spconv_time(layer: Layer, batch_size: int, precision: str, training: bool) -> float | None:
    """Microseconds of spconv on the same layer, launched one after another, its map made before;
    None without spconv, or where it has no kernel."""
    try:
        import spconv.constants
        import spconv.pytorch as spconv
    except ImportError:
        return None
    spconv.constants.SPCONV_ALLOW_TF32 = precision == "tf32"
    features, _, gradient = _tensors(layer, TYPES[precision], training)
    try:
        conv, x = _in_spconv(spconv, layer, batch_size, features)

        def call() -> None:
            if training:
                _step(lambda: conv(x).features, (features, *conv.parameters()), gradient)
            else:
                conv(x)

        with torch.set_grad_enabled(training):
            call()  # in which spconv chooses its kernel
            return launched_time(call, 5)
    except Exception as error:  # an engine that cannot do this is a result, not the end
        print(f"spconv, {layer.name}: {type(error).__name__} {str(error).strip()[-80:]}")
        return None


def _in_spconv(
    spconv: ModuleType, layer: Layer, batch_size: int, features: Tensor
) -> tuple[Callable[[Any], Any], Any]:
    """The layer in spconv, and its input."""
    channels, kernel = (layer.c_in, layer.c_out), list(layer.geometry.kernel_size)
    options: dict[str, Any] = {"bias": False, "indice_key": "key"}
    window = {"stride": list(layer.geometry.stride), "padding": list(layer.geometry.padding)}
    dtype, sites = features.dtype, (layer.inputs.coords, [*layer.inputs.spatial_shape], batch_size)
    if layer.kind != "inverse":
        if layer.kind == "submanifold":
            conv = spconv.SubMConv3d(*channels, kernel, **options)
        else:
            conv = spconv.SparseConv3d(*channels, kernel, **window, **options)
        return conv.cuda().to(dtype), spconv.SparseConvTensor(features, *sites)
    # a convolution down makes the map that the inverse one reads
    above = layer.outputs
    fine = torch.randn(len(above.coords), 16, device="cuda", dtype=dtype)
    y = spconv.SparseConvTensor(fine, above.coords, [*above.spatial_shape], batch_size)
    with torch.no_grad():
        y = spconv.SparseConv3d(16, 16, kernel, **window, **options).cuda().to(dtype)(y)
    x = spconv.SparseConvTensor(features, y.indices, y.spatial_shape, batch_size)
    x.indice_dict = y.indice_dict
    return spconv.SparseInverseConv3d(*channels, kernel, **options).cuda().to(dtype), x


def _tensors(layer: Layer, dtype: torch.dtype, training: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Features, weight, and a gradient of the result."""
    volume = len(layer.kernel_map.forward.neighbours)
    features = torch.randn(len(layer.inputs.coords), layer.c_in, device="cuda").to(dtype)
    weight = torch.randn(volume, layer.c_in, layer.c_out, device="cuda").to(dtype)
    gradient = torch.randn(len(layer.outputs.coords), layer.c_out, device="cuda").to(dtype)
    return features.requires_grad_(training), weight.requires_grad_(training), gradient


def _step(call: Callable[[], Tensor], leaves: Sequence[Tensor], gradient: Tensor) -> None:
    torch.autograd.grad(call(), leaves, gradient)
