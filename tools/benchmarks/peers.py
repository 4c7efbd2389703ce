"""The same encoder on other engines, where they can be imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from detector.models.sparse_encoder import DOWNS
from ops import Voxels

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
