"""A Kalman filter of constant velocity over boxes, for many boxes at once.

The state is (x, y, z, yaw, l, w, h, vx, vy), the measurement a box. x and y move with the velocity,
which is disturbed by white acceleration; all else is a random walk. This is the filter of Weng et
al., "3D Multi-Object Tracking: A Baseline and New Evaluation Metrics", IROS 2020, with noise that
grows with time instead of with scans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data.boxes import wrap_angle

SIZE = 9
YAW = 3
VELOCITY = slice(7, 9)
COLUMNS = [0, 1, 2, 4, 5, 6, 3]  # of the state that are a box: x, y, z, l, w, h, yaw

# Standard deviations of a measured (x, y, z, yaw, l, w, h), metres and radians.
MEASURED = np.array([0.2, 0.2, 0.2, 0.2, 0.3, 0.2, 0.2])
UNKNOWN_SPEED = 10.0  # standard deviation of the speed of a new object, metres per second
ACCELERATION = 3.0  # standard deviation, metres per second squared
# Standard deviations of the random walks of (z, yaw, l, w, h) within one second.
WALK = np.array([0.3, 0.5, 0.1, 0.1, 0.1])


class Estimates(NamedTuple):
    """What is known of n boxes."""

    mean: np.ndarray  # [n, 9]
    covariance: np.ndarray  # [n, 9, 9]

    @property
    def boxes(self) -> np.ndarray:
        """[n, 7] (x, y, z, l, w, h, yaw)."""
        return self.mean[:, COLUMNS]

    @property
    def velocities(self) -> np.ndarray:
        """[n, 2] metres per second."""
        return self.mean[:, VELOCITY]


def begin(boxes: np.ndarray) -> Estimates:
    """Estimates from one measurement each: boxes [n, 7], of unknown velocity."""
    mean = np.zeros((len(boxes), SIZE))
    mean[:, COLUMNS] = boxes
    deviations = np.concatenate([MEASURED, [UNKNOWN_SPEED, UNKNOWN_SPEED]])
    return Estimates(mean, np.tile(np.diag(deviations**2), (len(boxes), 1, 1)))


def predict(known: Estimates, seconds: float) -> Estimates:
    """The estimates after some time without a measurement."""
    move = np.eye(SIZE)
    move[[0, 1], [7, 8]] = seconds
    mean = known.mean @ move.T
    covariance = move @ known.covariance @ move.T + process_noise(seconds)
    return Estimates(mean, covariance)


def process_noise(seconds: float) -> np.ndarray:
    """[9, 9] covariance that time adds: white acceleration and random walks."""
    noise = np.zeros((SIZE, SIZE))
    effect = np.array([seconds**2 / 2, seconds]) * ACCELERATION
    for position, velocity in ((0, 7), (1, 8)):
        noise[np.ix_([position, velocity], [position, velocity])] = np.outer(effect, effect)
    noise[range(2, 7), range(2, 7)] = WALK**2 * seconds
    return noise


def correct(known: Estimates, boxes: np.ndarray) -> Estimates:
    """The estimates after one measurement each: boxes [n, 7], yaws within a quarter turn."""
    measured = SIZE - 2
    error = boxes[:, [0, 1, 2, 6, 3, 4, 5]] - known.mean[:, :measured]
    error[:, YAW] = wrap_angle(error[:, YAW])
    shared = known.covariance[:, :, :measured]  # [n, 9, 7] covariance of state and measurement
    expected = known.covariance[:, :measured, :measured] + np.diag(MEASURED**2)
    gain = np.linalg.solve(expected, shared.transpose(0, 2, 1)).transpose(0, 2, 1)
    mean = known.mean + (gain @ error[:, :, None])[:, :, 0]
    covariance = known.covariance - gain @ shared.transpose(0, 2, 1)
    return Estimates(mean, (covariance + covariance.transpose(0, 2, 1)) / 2)
