"""From points to boxes, as another program calls it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data.point_columns import KITTI
from data.scan_checks import Note, ScanWarning, clamp_intensity, oddities, require_scan
from detector.config import PRECISIONS, Config
from detector.device import parse_device
from detector.models.anchor_head import Predictions
from detector.models.bev_rows import BevRows
from detector.models.second import Second, build_second
from detector.postprocess import Detections, build_postprocessor
from detector.weights import load_weights, restore, usual_weights
from ops.voxelize import Voxels


class Detector:
    """A trained network that turns one scan into boxes.

    >>> detector = Detector()
    >>> boxes, scores, labels = detector(points)
    """

    def __init__(
        self,
        model: Second | None = None,
        config: Config | None = None,
        device: str | torch.device | None = None,
        precision: str = "fp32",
    ):
        """A copy of `model` is used: for inference, with its BatchNorms folded.

        Without a model as `from_weights` without a path.
        """
        device = parse_device(device)
        if model is None or config is None:
            model, config = _load(usual_weights(device))
        self.config, self.device = config, device
        self._model = model.fold().to(device, PRECISIONS[precision])
        self._rows = BevRows.of(self._model) if device.type == "cpu" else None
        self._postprocess = build_postprocessor(config).to(device)
        self._warned: set[str] = set()
        self._seen = False  # a scan that holds points

    @classmethod
    def from_weights(
        cls,
        path: str | Path | None = None,
        device: str | torch.device | None = None,
        precision: str | None = None,
    ) -> Detector:
        """A detector from a weights file; the configuration is in it.

        path: also the name of shipped weights, second or second_small. None for second on a GPU and
        second_small on a CPU, which a line on stderr says.
        device: None for the GPU where there is one. precision: fp32 (None), bf16 or fp16 of the
        network; boxes are always computed in fp32. Raises FileNotFoundError or ValueError.
        """
        precision = precision or "fp32"
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
        place = parse_device(device)
        if place.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {device!r} is not there: torch sees no GPU; say cpu")
        model, config = _load(usual_weights(place) if path is None else path)
        return cls(model, config, place, precision)

    def __call__(self, points: np.ndarray | Tensor) -> Detections:
        """points [P, 4] float32 (x, y, z in metres in the LiDAR frame, intensity in [0, 1]), with
        further columns where the configuration names further features (`points`).

        An empty cloud gives no boxes. Raises ValueError for another shape or type. Warns
        (ScanWarning, once per kind) of anything unusual in the first scan, and of points that were
        left out of any scan.
        """
        points = self._checked(points)
        found, notes = self._detect(points)
        if not self._seen and len(points):
            self._seen = True
            notes += self.examine(points)
        for note in notes:
            if note.kind not in self._warned:
                self._warned.add(note.kind)
                warnings.warn(note.text, ScanWarning, stacklevel=2)
        return found

    def detect(self, points: np.ndarray | Tensor) -> tuple[Detections, list[Note]]:
        """As a call, but returns notes on the points that were left out instead of warning."""
        return self._detect(self._checked(points))

    def examine(self, points: np.ndarray | Tensor) -> list[Note]:
        """Notes on what is unusual about points [P, 4]; takes a few milliseconds on the host."""
        points = self._checked(points).cpu().numpy()
        try:
            require_scan(points[:, :4], "points")
        except ValueError as error:
            return [Note("no scan", str(error))]
        return oddities(points[:, :4], self.config.grid.range, self.config.ground_z)

    @torch.inference_mode()
    def _detect(self, points: Tensor) -> tuple[Detections, list[Note]]:
        points = clamp_intensity(points).to(self.device)
        offsets = torch.tensor([0, len(points)], dtype=torch.int32).to(self.device)
        voxels = self._model.voxelize(points, offsets)
        predictions = self._predict(voxels)
        (found,) = self._postprocess(predictions)
        return found, self._left_out(voxels, len(points))

    def _predict(self, voxels: Voxels) -> Predictions:
        pyramid = self._model.index(voxels)
        if self._rows is None:
            return self._model.predict(self._model.encode(voxels, pyramid))
        rows = self._model.encoder.rows(voxels.features, pyramid)
        return self._rows.predict(rows, pyramid.levels[-1], voxels.batch_size)

    def _left_out(self, voxels: Voxels, points: int) -> list[Note]:
        not_finite, capped = voxels.dropped.tolist()  # sync: the boxes are awaited anyway
        cap, notes = self.config.grid.max_voxels_test, []
        if not_finite:
            notes.append(
                Note("not finite", f"{not_finite} of {points} points are not finite: left out")
            )
        if capped:
            notes.append(
                Note("cap", f"{capped} points are over grid.max_voxels_test ({cap}): left out")
            )
        return notes

    def _checked(self, points: np.ndarray | Tensor) -> Tensor:
        kind = str(getattr(points, "dtype", type(points).__name__)).removeprefix("torch.")
        shape = tuple(getattr(points, "shape", ()))
        if getattr(points, "layout", torch.strided) != torch.strided:
            raise ValueError("points: expected a dense tensor, got a sparse one; call .to_dense()")
        columns = self.config.points
        if kind != "float32" or len(shape) != 2 or shape[1] != columns.width:
            others = f" ({', '.join((*KITTI, *columns.others))})" if columns.others else ""
            raise ValueError(
                f"points: expected [P, {columns.width}] float32{others}, got {list(shape)} {kind}"
            )
        if isinstance(points, Tensor):
            return points.detach()
        # torch has no tensors that must not be written to, nor any with negative strides
        usable = points.flags.writeable and min(points.strides) >= 0
        return torch.as_tensor(points if usable else points.copy())


def _load(path: str | Path) -> tuple[Second, Config]:
    config, state = load_weights(path)
    model = build_second(config)
    restore(model, state, path)
    return model, config
