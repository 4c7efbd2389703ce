"""Intensities in [0, 1], whatever the sensor counts in."""

from __future__ import annotations

import numpy as np

from data.point_fields import Cloud
from data.scan_checks import Note
from ops.reference.load_points import FEW, SCALES


class IntensityScale:
    """Brings the intensities of all clouds of one source to [0, 1].

    A field of unsigned 8 bits has 255 as its largest intensity. For any other type that is 1, 255
    or 65535: the least of them to which all but one in a hundred intensities keep. The largest one
    so far counts, so that a dark scan is divided by the same number as a bright one.
    """

    def __init__(self):
        self._full = 1.0  # intensity that becomes 1

    def __call__(self, cloud: Cloud) -> tuple[np.ndarray, list[Note]]:
        """Points [P, 4] with intensities in [0, 1], and what a user should know of it."""
        if cloud.intensity is None:
            return cloud.points, [Note("no intensity", "no intensities; they are taken as 0")]
        intensity, notes = cloud.points[:, 3], []
        if cloud.intensity == np.uint8:
            full = 255.0
        else:
            full = max(self._full, full_intensity(intensity))
            if full != self._full:
                notes = [
                    Note(
                        "intensity",
                        f"intensities up to {np.nanmax(intensity):.4g}; from here on they are "
                        f"divided by {full:g}",
                    )
                ]
            self._full = full
        points = cloud.points.copy()
        points[:, 3] = np.clip(intensity / np.float32(full), 0, 1)
        return points, notes


def full_intensity(intensity: np.ndarray) -> float:
    """[P] -> 1, 255 or 65535, the least to which all but one in a hundred keep."""
    for scale in SCALES:
        if np.count_nonzero(intensity > scale) <= FEW * len(intensity):
            return scale
    return SCALES[-1]
