"""A Kalman filter of constant velocity over boxes, for many boxes at once.

The state is (x, y, z, yaw, l, w, h, vx, vy), the measurement a box. x and y move with the velocity;
velocity, height, yaw and size are random walks, so that the noise grows with time and not with the
number of scans. Weng et al., "3D Multi-Object Tracking: A Baseline and New Evaluation Metrics",
IROS 2020, have the same filter with noise per scan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data.boxes import wrap_angle

STATE, MEASURED = 9, 7  # numbers of a state; the first of them are measured
YAW = 3
COLUMNS = [0, 1, 2, 4, 5, 6, 3]  # of a state that make a box: x, y, z, l, w, h, yaw
ORDER = [0, 1, 2, 6, 3, 4, 5]  # of a box that make a measurement: x, y, z, yaw, l, w, h

# Standard deviations of a measured x, y, z, yaw, l, w, h in metres and radians.
NOISE = np.array([0.15, 0.15, 0.2, 0.2, 0.3, 0.2, 0.2])
# Of z, yaw, l, w, h, vx, vy: standard deviations of the change within one second.
WALK = np.array([0.3, 0.5, 0.1, 0.1, 0.1, 1.5, 1.5])
# Of the unknown velocity of a new object. Along its heading it may be fast, the faster the longer
# the object is (per metre of length, and at most); across it is slow. Metres per second.
SPEED_PER_LENGTH, LARGEST_SPEED, SIDEWAYS = 5.0, 20.0, 3.0


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
        return self.mean[:, MEASURED:]


def begin(boxes: np.ndarray) -> Estimates:
    """Estimates from one measurement each: boxes [n, 7]."""
    mean = np.zeros((len(boxes), STATE))
    mean[:, COLUMNS] = boxes
    covariance = np.zeros((len(boxes), STATE, STATE))
    covariance[:, range(MEASURED), range(MEASURED)] = NOISE**2
    along = np.minimum(SPEED_PER_LENGTH * boxes[:, 3], LARGEST_SPEED) ** 2
    heading = np.stack([np.cos(boxes[:, 6]), np.sin(boxes[:, 6])], axis=1)  # [n, 2]
    stretch = (along - SIDEWAYS**2)[:, None, None] * heading[:, :, None] * heading[:, None, :]
    covariance[:, MEASURED:, MEASURED:] = stretch + SIDEWAYS**2 * np.eye(2)
    return Estimates(mean, covariance)


def predict(known: Estimates, seconds: float) -> Estimates:
    """The estimates after a time without measurements. Two steps give what one long step does."""
    move = np.eye(STATE)
    move[[0, 1], [7, 8]] = seconds
    mean = known.mean @ move.T
    return Estimates(mean, move @ known.covariance @ move.T + _process_noise(seconds))


def _process_noise(seconds: float) -> np.ndarray:
    """[9, 9] covariance that random walks add; that of the velocity moves x and y with it (Bar-
    Shalom et al., "Estimation with Applications to Tracking and Navigation", 2001, 6.2.2)."""
    noise = np.diag(np.concatenate([np.zeros(2), WALK**2 * seconds]))
    for place, velocity in ((0, 7), (1, 8)):
        rate = WALK[velocity - 2] ** 2
        noise[place, place] = rate * seconds**3 / 3
        noise[place, velocity] = noise[velocity, place] = rate * seconds**2 / 2
    return noise


def correct(known: Estimates, boxes: np.ndarray) -> Estimates:
    """The estimates after one measurement each: boxes [n, 7]."""
    error = boxes[:, ORDER] - known.mean[:, :MEASURED]
    error[:, YAW] = wrap_angle(error[:, YAW])
    shared = known.covariance[:, :MEASURED]  # [n, 7, 9] of measurement and state
    expected = known.covariance[:, :MEASURED, :MEASURED] + np.diag(NOISE**2)
    gain = np.linalg.solve(expected, shared).transpose(0, 2, 1)  # [n, 9, 7]
    mean = known.mean + (gain @ error[:, :, None])[:, :, 0]
    covariance = known.covariance - gain @ shared
    return Estimates(mean, (covariance + covariance.transpose(0, 2, 1)) / 2)
