"""The folded encoder as one CUDA graph: index and convolutions in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detector.cuda_graph import captured, side_stream
from detector.models.sparse_encoder import SparseEncoder
from ops.voxelize import Voxels

# Rows per frame of the levels 0 to 4 of second_kitti.yaml: 1.3 times the most of ten scans that are
# cropped to the camera's view, rounded up.
KITTI_CAPACITIES = (24_000, 48_000, 36_000, 18_000, 15_000)


class EncoderGraph:
    """A folded encoder on a GPU, captured once for batches of one size.

    Nothing is read back to the host. The map always lies in the same memory: the next replay
    overwrites it.
    """

    @torch.inference_mode()
    def __init__(self, encoder: SparseEncoder, batch_size: int, capacities: Sequence[int]):
        """capacities: rows per frame of each level."""
        rows, device = [batch_size * capacity for capacity in capacities], torch.device("cuda")
        with torch.inference_mode(False):  # `load` writes to them in any mode
            features = torch.zeros(rows[0], encoder.features, device=device)
            coords = torch.full((rows[0], 4), -1, dtype=torch.int32, device=device)
            count = torch.zeros(1, dtype=torch.int32, device=device)
            dropped = torch.zeros(2, dtype=torch.int64, device=device)
            workspace = encoder.workspace(batch_size, device)
        self._voxels, self._count = Voxels(features, coords, count, dropped, batch_size), count
        self._read = encoder, workspace  # kept, for the graph reads their memory

        def encode() -> tuple[Tensor, Tensor | None]:
            side = side_stream()
            pyramid = encoder.index(self._voxels, rows, workspace, side)
            bev = encoder.encode(features, pyramid)
            torch.cuda.current_stream().wait_stream(side)
            return bev, pyramid.overflow

        self._graph, (self._bev, self._overflow) = captured(encode)

    def __call__(self, voxels: Voxels) -> Tensor:
        """Voxels without a count -> the map [B, Z * C, Y, X], as the folded encoder's."""
        self.load(voxels)
        return self.replay()

    @torch.inference_mode()
    def load(self, voxels: Voxels) -> None:
        """Copies voxels to where the graph reads them. Raises ValueError where they do not fit."""
        features, coords, _, _, batch_size = self._voxels
        rows = len(voxels.coords)
        if voxels.batch_size != batch_size or rows > len(coords):
            raise ValueError(
                f"voxels: {rows} of {voxels.batch_size} frames do not fit a graph of {batch_size} "
                f"frames and {len(coords)} rows; make one with larger capacities"
            )
        features[:rows], coords[:rows] = voxels.features, voxels.coords
        self._count.fill_(rows)

    def replay(self) -> Tensor:
        """The map [B, Z * C, Y, X] of the voxels that were loaded."""
        self._graph.replay()
        return self._bev

    def overflowed(self) -> bool:
        """Whether a level of the last batch had more rows than its capacity, which are left out."""
        assert self._overflow is not None  # with capacities there is one
        return bool(self._overflow.item())  # sync: the answer is for the host
