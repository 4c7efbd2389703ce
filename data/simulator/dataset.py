"""Simulated streets as an endless data set, without files: every epoch has new ones."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

from data.frame import Frame
from data.simulator.lidar import default_sensor
from data.simulator.recording import LARGEST_SEED, simulate
from data.simulator.sensors import Sensor
from data.simulator.street import WORLD
from ops.ray_casting import has_kernels

MOST = 10_000_000  # streets per epoch: an epoch is a permutation in memory


@dataclass(frozen=True)
class SimulatedStreets:
    """`count` frames per epoch, each made when it is asked for: in the workers of a loader.

    Frame `index` of an epoch is the street with the seed first + epoch * count + index, so no
    street comes twice, and a resumed training sees the same ones.

    Raises ValueError for no frames, for more than MOST, and for seeds that are beyond 64 bits.
    """

    count: int
    first: int = 10_000_000  # beyond the streets that tools/simulate.py writes
    sensor: Sensor | None = None  # KITTI's unless given
    crop: bool = True  # to the camera's image
    epoch: int = 0

    def __post_init__(self):
        if not 1 <= self.count <= MOST:
            raise ValueError(
                f"{self.count} streets per epoch: give 1 to {MOST}; every epoch has new ones"
            )
        last = self._seed(self.count - 1)
        if not 0 <= self.first <= last <= LARGEST_SEED:
            raise ValueError(f"streets {self.first} to {last}: seeds are 0 to {LARGEST_SEED}")
        has_kernels()  # builds them here, once, and not in every worker

    def of_epoch(self, epoch: int) -> SimulatedStreets:
        """The streets of another epoch."""
        return replace(self, epoch=epoch)

    @property
    def signature(self) -> str:
        """What the frames depend on: the version of the world, and a digest of the rest."""
        sensor = self.sensor or default_sensor()
        digest = zlib.crc32(repr((self.count, self.first, sensor, self.crop)).encode())
        return f"world {WORLD}, streets {digest:08x}"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Frame:
        if not 0 <= index < self.count:
            raise IndexError(f"street {index} of {self.count}")
        return simulate(self._seed(index), sensor=self.sensor, crop=self.crop)

    def _seed(self, index: int) -> int:
        return self.first + self.epoch * self.count + index
