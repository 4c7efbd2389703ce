"""The same encoder, and the network around it, on other engines where these can be imported: eager,
as the engine's users run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from millisecond.detector.config import PRECISIONS, Config
from millisecond.detector.inference import Detections, build_postprocessor
from millisecond.detector.models.second import Second
from millisecond.detector.models.sparse_encoder import DOWNS
from millisecond.ops import Voxels


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


Layer = tuple[int, int, int | str]


def encoder_layers(channels: Sequence[int], out_channels: int) -> tuple[Layer, ...]:
    """(channels in, channels out, map) of each convolution of SECOND's encoder.

    A number is a submanifold level, "d1" the step down to level 1.
    """
    layers: list[Layer] = [(4, channels[0], 0), (channels[0], channels[0], 0)]
    for level, (narrow, wide) in enumerate(pairwise(channels), start=1):
        layers += [(narrow, wide, f"d{level}"), (wide, wide, level), (wide, wide, level)]
    return (*layers, (channels[-1], out_channels, f"d{len(channels)}"))


LAYERS = encoder_layers((16, 32, 64, 64), 128)  # of second_kitti.yaml


def available() -> dict[str, Callable[..., nn.Module]]:
    """Encoders of the peers that are installed, built from (sparse shape, layers); each takes
    voxels to the BEV map."""
    found = {}
    try:
        import spconv.pytorch  # noqa: F401

        found["spconv"] = SpconvEncoder
    except ImportError:
        pass
    try:
        import torchsparse.nn  # noqa: F401

        found["torchsparse"] = TorchsparseEncoder
    except ImportError:
        pass
    return found


class SpconvEncoder(nn.Module):
    """SECOND's encoder as spconv's users write it."""

    def __init__(self, sparse_shape: tuple[int, int, int], layers: Sequence[Layer] = LAYERS):
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

    def __init__(self, sparse_shape: tuple[int, int, int], layers: Sequence[Layer] = LAYERS):
        super().__init__()
        import torchsparse
        import torchsparse.backends
        import torchsparse.nn as spnn

        torchsparse.backends.hash_rsv_ratio = 4  # the configuration of convolutions has no such key
        self.sparse_shape, self.tensor = sparse_shape, torchsparse.SparseTensor
        blocks = []
        for c_in, c_out, place in layers:
            window = {}
            if not isinstance(place, int):
                down = DOWNS[int(place[1]) - 1]
                window = {"stride": down.stride, "padding": down.padding}
                kernel = down.kernel_size
            else:
                kernel = 3
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
