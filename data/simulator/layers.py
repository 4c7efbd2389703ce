"""The first surface that each ray meets."""

from typing import NamedTuple

import numpy as np

MISS = np.float32(np.inf)
GROUND = -1  # owner of a ray that ends on the ground


class Layer(NamedTuple):
    """The first surface of a kind along each of R rays."""

    depth: np.ndarray  # [R] float32 metres, `MISS` where there is none
    owner: np.ndarray  # [R] int32: index of the thing, `GROUND` for the ground
    material: np.ndarray  # [R] int64, `Material`
    cosine: np.ndarray  # [R] float32, of the angle of incidence; 1 in a volume

    @classmethod
    def empty(cls, count: int) -> "Layer":
        """Nothing along any ray."""
        return cls(
            np.full(count, MISS),
            np.full(count, GROUND, dtype=np.int32),
            np.zeros(count, dtype=np.int64),
            np.ones(count, dtype=np.float32),
        )

    def part(self, first: int, last: int) -> "Layer":
        """A view of some rays."""
        return Layer(*(values[first:last] for values in self))

    def put(self, ray, depth, owner, material, cosine) -> None:
        """Hits [H], each where it is not farther than what its ray has; of equal ones the last."""
        nearer = depth <= self.depth[ray]
        ray, depth = ray[nearer], depth[nearer]
        np.minimum.at(self.depth, ray, depth)
        first = depth == self.depth[ray]
        ray = ray[first]
        self.owner[ray] = owner[nearer][first]
        self.material[ray] = material[nearer][first]
        self.cosine[ray] = cosine[nearer][first]
