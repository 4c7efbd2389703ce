"""One process of a data-parallel training of `ops.spconv`: spconv_replica.py cpu|cuda FOLDER.

It writes the gradients of two passes over its half of the frames to FOLDER/RANK.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import millisecond.ops.spconv as spconv

SHAPE = (6, 24, 24)


class Network(nn.Module):
    """Submanifold, strided and inverse convolutions, and one without normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = spconv.SparseSequential(
            spconv.SubMConv3d(4, 16, 3, bias=False, indice_key="subm"),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            spconv.SparseConv3d(16, 64, 3, stride=2, padding=1, bias=False, indice_key="down"),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            spconv.SparseInverseConv3d(64, 16, 3, indice_key="down"),
        )

    def forward(self, features: Tensor, indices: Tensor) -> Tensor:
        x = spconv.SparseConvTensor(features, indices, SHAPE, batch_size=1)
        return self.layers(x).features


def gradients_of(network: nn.Module, rank: int, device: torch.device) -> list[Tensor]:
    """Of the frame of this rank, on the CPU."""
    draw = torch.Generator().manual_seed(rank)
    indices = (torch.rand(1, *SHAPE, generator=draw) < 0.1).nonzero().int()
    features = torch.randn(len(indices), 4, generator=draw)
    network.zero_grad()
    with torch.autocast("cuda", enabled=device.type == "cuda"):
        out = network(features.to(device), indices.to(device))
    out.float().square().mean().backward()
    return [parameter.grad.cpu() for parameter in network.parameters()]


def build(device: torch.device) -> Network:
    torch.manual_seed(0)
    return Network().to(device)


def main(kind: str, folder: str) -> None:
    rank = int(os.environ["RANK"])
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
    network = DistributedDataParallel(build(device), [rank] if kind == "cuda" else None)
    passes = [gradients_of(network, rank, device) for _ in range(2)]
    torch.save(passes, Path(folder, f"{rank}.pt"))
    del network  # or it owns the group last, whose end then holds the lock that gloo waits for
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
