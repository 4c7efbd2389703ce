"""The same network with its encoder on another engine, eager, as that engine's users run it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from detector.config import PRECISIONS, Config
from detector.models.second import Second
from detector.postprocess import Detections, build_postprocessor
from tools.benchmarks.peers import available, encoder_layers


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
