"""Detections as KITTI labels: the form the metric scores and the benchmark takes."""

from collections.abc import Sequence

import numpy as np

from data.kitti.calibration import Calibration, observation_angle
from data.kitti.labels import DECIMALS, Labels


def detections_to_labels(
    boxes: np.ndarray,
    scores: np.ndarray,
    names: Sequence[str],
    calibration: Calibration,
    image_shape: tuple[int, int] | None,
) -> Labels:
    """boxes [n, 7] LiDAR frame, scores [n], n type names -> Labels with a score.

    Image boxes are clipped to the image of shape (height, width) when that is given. Truncation and
    occlusion are -1, not given, as in the benchmark's own example results. Numbers are rounded as
    in a file, so that both score the same.
    """
    camera = calibration.boxes_to_camera(boxes).round(DECIMALS)
    return Labels(
        types=np.array(names, dtype=str),
        truncated=np.full(len(boxes), -1.0),
        occluded=np.full(len(boxes), -1, np.int64),
        alpha=observation_angle(camera).round(DECIMALS),
        bbox=calibration.image_boxes(boxes, image_shape).round(DECIMALS),
        size=camera[:, 3:6],
        location=camera[:, :3],
        rotation_y=camera[:, 6],
        score=np.asarray(scores, np.float64),
    )
