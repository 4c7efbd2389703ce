"""Detections as KITTI labels: the form the metric scores and the benchmark takes."""

import numpy as np

from data.detections import NamedDetections
from data.kitti.calibration import Calibration, observation_angle
from data.kitti.labels import DECIMALS, Labels
from data.kitti.no_camera import boxes_to_labels


def detections_to_labels(
    found: NamedDetections, calibration: Calibration | None, image_shape: tuple[int, int] | None
) -> Labels:
    """Detections of a frame -> Labels with a score.

    Image boxes are clipped to the image of shape (height, width) when that is given. Truncation and
    occlusion are -1, not given, as in the benchmark's own example results. Numbers are rounded as
    in a file, so that both score the same. Without a calibration see `boxes_to_labels`.
    """
    if calibration is None:
        return boxes_to_labels(found.boxes, found.names, found.scores)
    camera = calibration.boxes_to_camera(found.boxes).round(DECIMALS)
    return Labels(
        types=np.array(found.names, dtype=str),
        truncated=np.full(len(camera), -1.0),
        occluded=np.full(len(camera), -1, np.int64),
        alpha=observation_angle(camera).round(DECIMALS),
        bbox=calibration.image_boxes(found.boxes, image_shape).round(DECIMALS),
        size=camera[:, 3:6],
        location=camera[:, :3],
        rotation_y=camera[:, 6],
        score=np.asarray(found.scores, np.float64),
    )
