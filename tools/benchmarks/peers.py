"""The same encoder, and the network around it, on other engines where these can be imported: eager,
as the engine's users run it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from millisecond.detector.config import PRECISIONS, Config
from millisecond.detector.inference import Detections, build_postprocessor
from millisecond.detector.models.second import Second
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops import Voxels
from millisecond.ops.lab.dataflow_times import differentiate, draw_tensors
from millisecond.ops.lab.networks import Convolution, Layer, encoder_layers
from millisecond.ops.lab.timing import DTYPES, launched_time


class PeerNetwork:
    """OpenPCDet's SECOND: voxels, the peer's encoder, backbone and heads in torch, postprocess."""

    def __init__(
        self,
        encoder: Callable[..., nn.Module],
        config: Config,
        model: Second,
        device: torch.device,
        precision: str,
    ):
        layers = encoder_layers(config.model.encoder.channels, config.model.encoder.out_channels)
        dtype = PRECISIONS[precision]
        built = encoder(config.grid.voxel_grid.sparse_shape, layers)
        self._device, self._encoder = device, built.eval().to(device, dtype)
        self._model = model.fold().to(device, dtype)
        self._postprocess = build_postprocessor(config).to(device)

    @torch.inference_mode()
    def __call__(self, cloud: Tensor) -> Detections:
        """Points [P, 4] on the host -> boxes on the host."""
        points = cloud.to(self._device)
        offsets = torch.tensor([0, len(points)], dtype=torch.int32, device=self._device)
        bev = self._encoder(self._model.voxelize(points, offsets))
        bev = bev.contiguous(memory_format=torch.channels_last)
        (found,) = self._postprocess(self._model.predict(bev))
        return Detections(*(tensor.cpu() for tensor in found))


def peer_networks() -> dict[str, Callable[..., PeerNetwork]]:
    """By name, those whose engine is installed; each is built from (config, model, device,
    precision)."""
    return {f"{name}, eager": partial(PeerNetwork, build) for name, build in available().items()}


def available() -> dict[str, Callable[..., nn.Module]]:
    """Encoders of the peers that are installed, built from (sparse shape, layers); each takes
    voxels to the BEV map."""
    found: dict[str, Callable[..., nn.Module]] = {}
    with suppress(ImportError):
        import_module("spconv.pytorch")
        found["spconv"] = SpconvEncoder
    with suppress(ImportError):
        import_module("torchsparse.nn")
        found["torchsparse"] = TorchsparseEncoder
    return found


def reason(error: Exception) -> str:
    """Why a peer is left out: the last line of the error."""
    return (str(error).strip() or repr(error)).splitlines()[-1][:80]


class SpconvEncoder(nn.Module):
    """SECOND's encoder as spconv's users write it."""

    def __init__(self, sparse_shape: tuple[int, int, int], layers: Sequence[Convolution]):
        super().__init__()
        import spconv.pytorch as spconv

        self.sparse_shape = list(sparse_shape)
        self.tensor = spconv.SparseConvTensor
        blocks = []
        for c_in, c_out, place in layers:
            if isinstance(place, int):
                conv = spconv.SubMConv3d(c_in, c_out, 3, bias=False, indice_key=f"subm{place}")
            else:
                down = DOWNS[int(place[1]) - 1]
                conv = spconv.SparseConv3d(
                    c_in,
                    c_out,
                    list(down.kernel_size),
                    list(down.stride),
                    list(down.padding),
                    bias=False,
                    indice_key=place,
                )
            norm = nn.BatchNorm1d(c_out, eps=1e-3, momentum=0.01)
            blocks.append(spconv.SparseSequential(conv, norm, nn.ReLU()))
        self.layers = nn.ModuleList(blocks)

    def forward(self, voxels: Voxels) -> Tensor:
        dtype = next(self.parameters()).dtype
        x = self.tensor(
            voxels.features.to(dtype), voxels.coords, self.sparse_shape, voxels.batch_size
        )
        for layer in self.layers:
            x = layer(x)
        return x.dense().flatten(1, 2)


class TorchsparseEncoder(nn.Module):
    """SECOND's encoder on TorchSparse 2.1, its hash table large enough for these scans: by default
    it raises "capacity of hashtable is not sufficient"."""

    def __init__(self, sparse_shape: tuple[int, int, int], layers: Sequence[Convolution]):
        super().__init__()
        import torchsparse
        import torchsparse.backends
        import torchsparse.nn as spnn

        torchsparse.backends.hash_rsv_ratio = 4  # the configuration of convolutions has no such key
        self.sparse_shape, self.tensor = sparse_shape, torchsparse.SparseTensor
        blocks = []
        for c_in, c_out, place in layers:
            kernel, window = 3, {}
            if not isinstance(place, int):
                kernel, stride, padding, *_ = DOWNS[int(place[1]) - 1]
                window = {"stride": stride, "padding": padding}
            blocks += [
                spnn.Conv3d(c_in, c_out, kernel, bias=False, **window),
                spnn.BatchNorm(c_out, eps=1e-3, momentum=0.01),
                spnn.ReLU(True),
            ]
        self.layers = nn.Sequential(*blocks)

    def forward(self, voxels: Voxels) -> Tensor:
        dtype = next(self.parameters()).dtype
        x = self.tensor(
            voxels.features.to(dtype),
            voxels.coords,
            spatial_range=(voxels.batch_size, *self.sparse_shape),
        )
        x = self.layers(x)
        return x.dense().permute(0, 4, 1, 2, 3).flatten(1, 2).to(torch.get_default_dtype())


def spconv_time(layer: Layer, batch_size: int, precision: str, training: bool) -> float | None:
    """Microseconds of spconv on the same layer, launched one after another, its map made before;
    None without spconv, or where it has no kernel."""
    try:
        import spconv.constants
        import spconv.pytorch as spconv
    except ImportError:
        return None
    spconv.constants.SPCONV_ALLOW_TF32 = precision == "tf32"
    features, _, gradient = draw_tensors(layer, DTYPES[precision], training)
    try:
        conv, x = _in_spconv(spconv, layer, batch_size, features)

        def call() -> None:
            if training:
                differentiate(lambda: conv(x).features, (features, *conv.parameters()), gradient)
            else:
                conv(x)

        with torch.set_grad_enabled(training):
            call()  # in which spconv chooses its kernel
            return 1e3 * launched_time(call, 5)
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
